-- Functions that LuaJIT must not compile are right whatever traces it has, and spec/support/compiled_walks.lua has all.
-- LM_TEST_LONG=1: more rounds, and that LuaJIT is wrong where it compiles them.
local temp = require "spec.support.temp"

local folder
setup(function() folder = temp.folder "/dev/shm" end)
teardown(function() temp.remove(folder) end)

local program = temp.read "spec/support/compiled_walks.lua"
local function run(rounds, name, how, options)
  local _, text = temp.run(folder, ("timeout 100 luajit %s spec/support/compiled_walks.lua %s %d '%s' %s"):format(
    options or "", folder, rounds, name, how or ""))
  return text
end

describe("LuaJIT 2.1.0-beta3 #lua #long", function()
  if jit.version ~= "LuaJIT 2.1.0-beta3" then return pending "needs LuaJIT 2.1.0-beta3" end

  it("computes a recursion in a loop that calls C wrongly, but not without stitched traces", function()
    assert.matches("^[1-9]%d* of 60 rounds are wrong", run(60, "plain"))
    assert.matches("^0 of 60 rounds are wrong", run(60, "plain", "", "-Ominstitch=100000"))
    assert.matches("^0 of 60 rounds are wrong", run(60, "plain", "", "-joff"))
  end)

  it("would so lose levels of what is saved", function()
    assert.matches("^[1-9]%d* of 150 rounds are wrong", run(150, "file_formats.checkpoint: Description", "compiled"))
  end)
end)

local rounds = os.getenv "LM_TEST_LONG" and 25 or 8

describe("what is interpreted #lua #full", function()
  for name in program:gmatch '\nwalks%["([^"]+)"%]' do
    it("is right: " .. name, function()
      assert.matches(("^0 of %d rounds are wrong"):format(rounds), run(rounds, name))
    end)
  end

  it("has a program each, but what finalizers call", function()
    local finalizers = {["base.load_module"] = true, ["base.signature"] = true}
    for path in io.popen "grep -rlE '(= |^)interpreted\\(' lua/luminary":lines() do
      local name = path:match "^lua/luminary/(.*)%.lua$":gsub("/", ".")
      assert(finalizers[name] or program:find('walks["' .. name .. ":", 1, true), name .. " is not in the program")
    end
  end)
end)
