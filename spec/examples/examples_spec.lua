-- Every program of examples/ learns: its --selftest says so. Those without one are libraries of the others.
local temp = require "spec.support.temp"

describe("examples #speed", function()
  local folder
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  local programs, libraries = {}, {}
  for path in io.popen "ls examples/*.lua":lines() do
    local list = temp.read(path):find("--selftest", 1, true) and programs or libraries
    list[#list + 1] = path
  end

  it("are there", function()
    assert.same({ "examples/cartpole.lua", "examples/pictures.lua", "examples/sentences.lua" }, libraries)
    assert.is_true(#programs >= 9)
  end)

  for _, path in ipairs(programs) do
    it(path .. " learns", function()
      local ok, output = temp.run(folder, "timeout 120 luajit " .. path .. " --selftest")
      assert(ok, output)
    end)
  end

  it("fail their selftest where they do not learn", function()
    local ok, output = temp.run(folder, "timeout 60 luajit examples/char_lstm.lua --selftest --steps 1")
    assert.is_false(ok)
    assert.matches("it did not learn", output)
  end)
end)
