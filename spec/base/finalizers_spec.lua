-- Lua finalizers may use modules for the first time, though LuaJIT 2.1.0-beta3 never leaves a compiled loop over pairs
-- there whose values differ, and jit.off is an error there.
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

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
    for _, n in ipairs {2, 4, 5, 6, 7} do
      assert.equal("true\n", run(([[
        require "luminary"
        local load_module = require "luminary.base.load_module"
        local names = {"paths", "func", "fft", "linalg", "timer", "generator", "metrics", "watch", "models", "vision"}
        for i = 1, %d do load_module("luminary." .. names[i]) end
        function finalizer()
          for i = %d, #names do assert(pcall(load_module, "luminary." .. names[i])) end
        end]]):format(n, n + 1)))
    end
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
