-- Every binding while its arguments are freed under it (support/freeing.lua), in processes of their own.
local temp = require "spec.support.temp"

describe("arguments freed during a call", function()
  local folder = temp.during(before_each, after_each)

  local function sweep(way)
    local ok, text, code = temp.run(folder, ("LM_SPEC_FOLDER=%s timeout 900 luajit spec/support/freeing.lua %s")
      :format(folder, way))
    assert(ok, ("exit code %d: %s"):format(code, text))
    local calls, freed = text:match("(%d+) calls, (%d+) freed")
    assert(tonumber(calls) > 500 and tonumber(freed) > 100, text)
  end

  it("by a finalizer: they are as before, or an error", function() sweep "finalizer" end)
  it("by a finalizer that gives them other memory", function() sweep "changing" end)
  it("by a finalizer, when memory has run out", function() sweep "out_of_memory" end)
  it("by a debug hook while an int64 is read", function() sweep "hook" end)
end)
