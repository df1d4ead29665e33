-- Lua finalizers may call any function: first uses of modules and values of other types than before, after LuaJIT has
-- compiled loops over tables. LuaJIT 2.1.0-beta3 never leaves a loop over pairs(…) there whose values differ.
local temp = require "spec.support.temp"

local folder
setup(function() folder = temp.folder() end)
teardown(function() temp.remove(folder) end)

-- Runs a program whose function `finalizer` is called by the collector; returns its output.
local function run(program)
  temp.write(folder .. "/program.lua", ("local folder = %q\n"):format(folder) .. program .. [[

    local sentinel = newproxy(true)
    getmetatable(sentinel).__gc = function() print(pcall(finalizer)) end
    sentinel = nil
    collectgarbage()
    if finish then finish() end]])
  local _, text = temp.run(folder, ("timeout 30 luajit %s/program.lua"):format(folder))
  return text
end

describe("a finalizer", function()
  it("loads modules at their first use, however many are loaded", function()
    for _, n in ipairs {2, 4, 7} do
      assert.equal("true\n", run(([[
        require "luminary"
        local load_module = require "luminary.base.load_module"
        local names = {"paths", "func", "fft", "linalg", "timer", "generator", "metrics", "watch", "models", "vision"}
        for i = 1, %d do load_module("luminary." .. names[i]) end
        function finalizer()
          for _, name in ipairs(names) do load_module("luminary." .. name) end
        end]]):format(n)))
    end
  end)

  it("saves, loads, logs and prints values of other types than the program did", function()
    assert.equal("true\n", run [[
      local lm = require "luminary"
      local nn, optim = lm.nn, lm.optim
      local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
      local opt = optim.Adam(net:parameters(), {lr = 0.1})
      net(lm.ones(1, 2)):sum():backward()
      opt:step()
      local state = opt:state_dict()
      local log = lm.watch.JSONLogger(folder .. "/log.jsonl")
      for i = 1, 60 do
        opt:load_state_dict(opt:state_dict())
        net:load_state_dict(net:state_dict())
        lm.save(folder .. "/a.pt", state)
        lm.load(folder .. "/a.pt")
        lm.save(folder .. "/a.safetensors", net:state_dict())
        lm.load(folder .. "/a.safetensors")
        log:log_metrics({a = i, b = 2}, i)
        local _ = lm.repr {a = 1, b = 2}, tostring(net)
      end
      function finalizer()
        local mixed = {1, "x", false, a = 1, b = "x", c = {1, {lm.ones(2)}}, d = true}
        for _, name in ipairs {"a.pt", "a.lm"} do
          lm.save(folder .. "/" .. name, {a = 1, b = "x", c = {1, {x = lm.ones(2)}}, d = true})
          assert(lm.load(folder .. "/" .. name).b == "x")
        end
        lm.save(folder .. "/a.npz", {a = lm.ones(2), b = lm.ones(3)})
        assert(lm.load(folder .. "/a.npz").b:numel() == 3)
        log:add_hparams({a = 1, b = "x", c = true}, {m = 1})
        log:close()
        assert(lm.async(function(t) return t end, mixed):get().b == "x")
        local other = nn.Sequential(nn.Conv2d(1, 1, 2), nn.BatchNorm2d(1))
        other:load_state_dict(other:state_dict())
        optim.SGD(other:parameters(), {lr = 0.1, momentum = 0.9}):state_dict()
        lm.repr(mixed)
        assert(not pcall(optim.SGD, other:parameters(), {lrr = 1}))
      end]])
  end)

  it("loads modules whose functions are not to be compiled, which then are not", function()
    assert.equal("true\n", run [[
      require "luminary"
      function finalizer()
        for _, name in ipairs {"prepare", "file_formats.checkpoint", "checkpoint.ranks", "checkpoint.files"} do
          require("luminary." .. name)
        end
      end]])
    assert.equal("true\n0\t1\n", run [[
      local interpreted = require "luminary.base.interpreted"
      local function adder()
        return assert(loadstring "local n = ... for i = 1, 100 do n = n + i end return n")
      end
      local late, plain, traces = adder(), adder(), {}
      jit.attach(function(what, _, f) if what == "start" then traces[f] = (traces[f] or 0) + 1 end end, "trace")
      local called
      function finalizer()
        called = interpreted(late)
        assert(called(1) == 5051)
      end
      function finish()
        for i = 1, 300 do
          called(i)
          plain(i)
        end
        print(traces[late] or 0, math.min(traces[plain], 1))
      end
    ]])
  end)
end)
