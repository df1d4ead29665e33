-- A device built outside the tree: compiled against what an installation has, found by its name, running ops. Its
-- memory is cut into segments by the core's allocator, whose rules are small here.
local temp = require "spec.support.temp"
local ranks = require "spec.support.ranks"
local plugin = require "spec.support.plugin"

describe("a backend built elsewhere", function()
  local path
  local folder = temp.during(setup, teardown)

  it("compiles against the installed headers", function()
    if not plugin.build(folder, "backend_tiny") then return pending("the module does not come from a build") end
    path = folder
  end)

  -- Returns what the script printed, in its own process that finds the plug-in.
  local function run(script, env)
    if not path then return pending("there is no plug-in") end
    env = env or {}
    env.LM_BACKEND_PATH = env.LM_BACKEND_PATH or "/nowhere:" .. path
    local got = ranks.run { n = 1, script = script, env = env, timeout = 40 }
    assert(got.ok, got.text)
    return got[0].output
  end

  it("is found by its name and runs ops", function()
    local output = run [[
      local lm = require "luminary"
      local x = lm.tensor({{1, 2}, {3, -4}}, {device = "tiny"})
      local y = lm.ones({2, 2}, {device = "tiny:0"})
      print(x.device, y.device, x.is_cuda)
      print((x * 2 - y):relu())
      print((x:t():mm(y) + x[1]):sum():item(), x[2][1], x:to("cpu", "int64"):sum():item())
      local other = x:to("tiny:1")
      other[{1, 2}] = 10
      print(other.device, other:sum():item(), x:sum():item())
      print(pcall(function() return x + other end))
      print(pcall(function() return x:exp() end))
      print(pcall(function() return x:cumsum(1) end))
      print(pcall(function() return x:softmax(1) end))
      print(pcall(lm.ones, {2}, {device = "tiny:2"}))
    ]]
    if not output then return end
    assert.matches("^tiny:0\ttiny:0\tfalse\n", output)
    assert.matches("1, 3", output:gsub("%.", ""), 1, true)
    assert.matches("10\t3\t2\n", output, 1, true)
    assert.matches("tiny:1\t10\t2\n", output, 1, true)
    assert.matches("add: device mismatch: tensors are on tiny:0 and tiny:1", output, 1, true)
    assert.matches("exp: tiny has no kernel for it", output, 1, true)
    assert.matches("softmax: not implemented for tiny:0", output, 1, true)
    assert.matches("unavailable device 'tiny:2': tiny devices are tiny:0 to tiny:1", output, 1, true)
  end)

  it("carries gradients", function()
    local output = run [[
      local lm = require "luminary"
      local w = lm.tensor({2, -3}, {device = "tiny", requires_grad = true})
      local x = lm.tensor({5, 7}, {device = "tiny"});
      (w * x):sum():backward()
      print(w.grad.device, w.grad[1], w.grad[2])
    ]]
    if not output then return end
    assert.equal("tiny:0\t5\t7\n", output)
  end)

  it("is not loaded before it is asked for, nor found without its path", function()
    local output = run([[
      local lm = require "luminary"
      local maps = io.open("/proc/self/maps"):read("*a")
      print(maps:find("luminary_backend_", 1, true))
      print(pcall(lm.ones, {2}, {device = "tiny"}))
    ]], { LM_BACKEND_PATH = "/nowhere" })
    if not output then return end
    assert.matches("^nil\n", output)
    assert.matches("ones: unknown device 'tiny'; devices are 'cpu'", output, 1, true)
  end)

  it("says what is wrong with a file that is none", function()
    if not path then return pending("there is no plug-in") end
    temp.write(path .. "/luminary_backend_broken.so", "no library")
    local output = run [[ print(pcall(require("luminary").ones, {2}, {device = "broken:0"})) ]]
    assert.matches("cannot load backend 'broken': ", output, 1, true)
  end)

  local function looks_on(script)
    return run([[
      local lm = require "luminary"
      local ffi = require "ffi"
      lm.ones({1}, {device = "tiny"}):free()
      ffi.cdef "long tiny_bytes(int card); long tiny_segments(int card);"
      local tiny = ffi.load(os.getenv("LM_BACKEND_PATH"):match("[^:]*$") .. "/luminary_backend_tiny.so")
      local function held() return tonumber(tiny.tiny_segments(0)), tonumber(tiny.tiny_bytes(0)) end
      local function new(bytes) return lm.empty({bytes}, {dtype = "uint8", device = "tiny"}) end
      local function address(t) return tonumber(ffi.cast("uintptr_t", t:data_ptr())) end
      local function used() return lm.memory_allocated "tiny", lm.memory_reserved "tiny" end
    ]] .. script)
  end

  it("gets its memory cut from segments", function()
    local output = looks_on [[
      lm.empty_cache "tiny"
      assert(held() == 0)
      local a, b = new(1), new(65)         -- both from one small segment, in steps of 64
      print(held()) print(used())
      assert(address(b) - address(a) == 64)
      local c = new(5000)                  -- a large one
      print(held()) print(used())
      local d = new(61440)                 -- a segment of its own, in steps of 4096
      print(held()) print(used())
      local at = address(a)
      a:free()
      local e = new(30)                    -- the best fit is the hole that a left
      assert(address(e) == at)
      b:free() e:free() c:free()
      lm.empty_cache "tiny"                -- d's is in use
      print(held()) print(used())
      d:free()
      lm.empty_cache "tiny"
      print(held()) print(used())
    ]]
    if not output then return end
    assert.equal("1\t16384\n192\t16384\n" .. "2\t81920\n5248\t81920\n" .. "3\t143360\n66688\t143360\n" ..
      "1\t61440\n61440\t61440\n" .. "0\t0\n0\t0\n", output)
  end)

  it("has blocks grow together again, in any order", function()
    local output = looks_on [[
      lm.empty_cache "tiny"
      math.randomseed(7)
      local live, marks, sum = {}, {}, 0
      for step = 1, 4000 do
        local i = math.random(40)
        if live[i] then
          assert(live[i]:numel() == 0 or live[i]:cpu():max():item() == marks[i])
          live[i]:free()
          live[i] = nil
        else
          local mark = step % 250
          local host = lm.full({math.random(1, 6000)}, mark, {dtype = "int64"})
          live[i], marks[i] = host:to "tiny", mark
        end
      end
      for i = 1, 40 do if live[i] then live[i]:free() end end
      collectgarbage() collectgarbage()
      assert(lm.memory_allocated "tiny" == 0)
      lm.empty_cache "tiny"
      print(held()) -- everything was whole again
    ]]
    if not output then return end
    assert.equal("0\t0\n", output)
  end)

  it("runs out of memory with words, and goes on", function()
    local output = looks_on [[
      lm.empty_cache "tiny"
      local a = new(600000)
      print(pcall(new, 600000))
      a:free()
      local b = new(600000)
      print(b.device)
      b:free()
      for i = 1, 6 do new(150000) end      -- garbage is collected, then cached segments are given back
      local c = new(900000)
      print(lm.memory_allocated "tiny")
      c:free()
      require("luminary.core")._fail_alloc_from(1)
      local ok, message = pcall(new, 10)
      require("luminary.core")._fail_alloc_from(0)
      print(ok, message)
      print(pcall(new, 2 ^ 50))
    ]]
    if not output then return end
    assert.matches("cannot allocate 585.9 KiB on tiny:0: out of memory; 436.0 KiB free of 1.0 MiB, 588.0 KiB " ..
      "reserved by this process, 588.0 KiB of them allocated", output, 1, true)
    assert.matches("\ntiny:0\n901120\n", output, 1, true)
    assert.matches("cannot allocate 1.0 PiB on tiny:0: out of memory", output, 1, true)
  end)
end)

describe("the numbers of plug-ins", function()
  local folder = temp.during(setup, teardown)

  -- Returns the versions of driver, backend and group, from a copy of the sources in which a file's text was changed.
  local function numbers(file, from, to)
    temp.remove(folder)
    os.execute((([[unset LD_PRELOAD; mkdir -p OUT/src OUT/kernels OUT/lua/luminary OUT/out &&
      cp -r src/codegen src/op src/base src/device src/tensor OUT/src/ && cp --parents src/distributed/group/backend.h
      src/distributed/store/ticket.h src/autograd/formulas.h kernels/dtypes.h kernels/integers.h
      lua/luminary/base/entry_reader.lua OUT/]]):gsub("%s+", " "):gsub("OUT", folder)))
    local path = folder .. "/" .. file
    local text = temp.read(path)
    local at, last = text:find(from, 1, true)
    temp.write(path, text:sub(1, at - 1) .. to .. text:sub(last + 1))
    for _, script in ipairs { "op/entries/generate.lua", "codegen/abi.lua" } do
      local ok, said = temp.run(folder, ("luajit %s/src/%s %s %s/out"):format(folder, script, folder, folder))
      assert(ok, said)
    end
    local found = {}
    for _, name in ipairs { "DRIVER", "BACKEND", "GROUP" } do
      found[name] = temp.read(("%s/out/abi_%s.h"):format(folder, name:lower())):match(name .. "_ABI = (%d+)")
    end
    return found
  end

  it("change with what a plug-in reads, and with nothing else", function()
    local before = numbers("src/op/kernels.h", "int abi;", "int abi;")
    assert(before.DRIVER and before.BACKEND and before.GROUP)
    assert.same(before, numbers("src/op/kernels.h", "int abi;", "int  abi; /* of what it was built with */"))
    assert.same(before, numbers("src/op/entries/families/elementwise.lua", "natural logarithm", "logarithm"))
    local after = numbers("src/op/entries/families/elementwise.lua", "negative_slope: number = 0.01",
      "negative_slope: number = 0.01, offset: number = 0")
    assert.same({ before.DRIVER, before.GROUP }, { after.DRIVER, after.GROUP })
    assert.not_equal(before.BACKEND, after.BACKEND)
    after = numbers("src/device/driver.h", "int abi;", "int abi, more;")
    assert.not_equal(before.DRIVER, after.DRIVER)
    assert.not_equal(before.BACKEND, after.BACKEND)
  end)
end)
