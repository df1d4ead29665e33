-- Machines without a GPU: the rest works, and lm.cuda says one clear sentence.
local lm = require "luminary"
local core = require "luminary.core"

local function lua(program, environment)
  local pipe = io.popen((environment or "") .. " luajit -e '" .. program .. "' 2>&1")
  local text = pipe:read("*a")
  pipe:close()
  return text
end

describe("a process that never names a GPU", function()
  it("loads nothing of CUDA", function()
    local text = lua [[
      local lm = require "luminary"
      local x = lm.ones({2}) + 1
      lm.nn.Linear(2, 2)(x)
      for line in io.lines("/proc/self/maps") do
        local instead = line:find("/instead/") -- the stand-in is loaded instead
        if line:find("libcud") and not instead or line:find("backend_cuda") then io.write(line, "\n") end
      end]]
    assert.equal("", text)
  end)
end)

if core.device_count("cuda") > 0 then return end

describe("without a CUDA device", function()
  it("there is none to list", function()
    assert.is_false(lm.cuda.is_available())
    assert.equal(0, lm.cuda.device_count())
    assert.equal(0, #lm.cuda.devices())
    assert.matches("^no CUDA device: .", tostring(lm.cuda.devices()))
    assert.equal("cpu", lm.try_gpu())
    assert.equal("cpu:1", lm.try_gpu(1))
    assert.same({"cpu"}, lm.try_all_gpus())
  end)

  it("everything else raises one sentence that names the call", function()
    for name, f in pairs {
      current_device = lm.cuda.current_device, get_device_name = lm.cuda.get_device_name,
      set_device = function() lm.cuda.set_device(0) end, mem_get_info = lm.cuda.mem_get_info,
      get_device_properties = lm.cuda.get_device_properties, synchronize = lm.cuda.synchronize,
      memory_allocated = lm.cuda.memory_allocated, empty_cache = lm.cuda.empty_cache, Stream = lm.cuda.Stream,
      current_stream = lm.cuda.current_stream, graph = function() lm.cuda.graph(print) end,
      FloatTensor = function() lm.cuda.FloatTensor {1} end,
    } do
      local ok, err = pcall(f)
      assert.is_false(ok, name)
      assert.matches(name .. ": ", err, 1, true)
      assert.is_nil(err:find("\n", 1, true))
    end
    assert.error_matches(function() lm.ones({2}):cuda() end, "CUDA")
    assert.error_matches(function() lm.ones({2}, {device = "cuda:1"}) end, "CUDA")
  end)

  it("pin_memory gives the tensor itself", function()
    local x = lm.ones {3}
    assert.is_true(x:pin_memory() == x)
    assert.is_false(x:is_pinned())
    assert.equal(-1, x:get_device())
  end)
end)

describe("typed constructors", function()
  it("take values in a table, or sizes", function()
    local x = lm.FloatTensor {{1, 2}, {3, 4}}
    assert.same({2, 2}, x.shape)
    assert.equal("float32", x.dtype)
    assert.same({2, 3}, lm.DoubleTensor(2, 3).shape)
    assert.equal("float64", lm.DoubleTensor(2, 3).dtype)
    assert.same({1, 2}, lm.LongTensor({1, 2}):totable())
    assert.equal("int64", lm.LongTensor({1}).dtype)
    assert.same({0}, lm.ByteTensor().shape)
    assert.error_matches(function() lm.FloatTensor("3") end, "FloatTensor: size 1")
    assert.error_matches(function() return lm.NoTensor end, "luminary has no .NoTensor.")
  end)
end)
