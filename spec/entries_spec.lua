-- The reader of entries, and what the build writes from those of optimizers.
local entries = require "luminary.entries"
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = here .. "/support/?.lua;" .. package.path
local temp = require "temp"

local fields = { options = "table", check = "function?", update = "string" }
local function message(f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(err)
end

describe("entries", function()
  it("are a list, by place and by name; one may be like another", function()
    local list, thing = entries.of("thing", fields)
    thing "A" { options = { { "x", 1 }, { "y", 2 } }, update = "a" }
    thing "B" { like = "A", options = { { "y", 3 }, { "z", 4 } } }
    assert.equal(2, #list)
    assert.equal(list[2], list.B)
    assert.equal("a", list.B.update)
    assert.same({ { "x", 1 }, { "y", 3 }, { "z", 4 } }, list.B.options)
    assert.same({ { "x", 1 }, { "y", 2 } }, list.A.options)
  end)

  it("are checked where they stand", function()
    local _, thing = entries.of("thing", fields)
    for text, entry in pairs {
      ["entries_spec.lua:%d+: thing C: no field 'updat'; there are check, options, update"] = { updat = "" },
      ["thing C: options has to be a table"] = { options = 1, update = "" },
      ["thing C: check has to be a function"] = { options = {}, update = "", check = 1 },
      ["thing C: update is missing"] = { options = {} },
      ["thing C: like = 'D': there is no such entry before it"] = { like = "D" },
    } do
      assert.matches(text, message(function() thing "C" (entry) end))
    end
    thing "C" { options = {}, update = "" }
    assert.matches("thing C: it is there twice", message(function() thing "C" { options = {}, update = "" } end))
  end)
end)

describe("the generator of optimizers", function()
  -- Runs it on a copy of the sources with another entry beside those that are there.
  local folder
  local function generate(entry)
    local root = here .. "/.."
    temp.remove(folder)
    os.execute((([[mkdir -p OUT/lua/luminary/optim OUT/src/optim OUT/out && cp -r IN/src/codegen OUT/src/ &&
      cp IN/src/optim/generate.lua OUT/src/optim/ && cp IN/lua/luminary/entries.lua OUT/lua/luminary/]])
      :gsub("%u+", { IN = root, OUT = folder })))
    local file = assert(io.open(root .. "/lua/luminary/optim/entries.lua"))
    local text = file:read("*a"):gsub("return list%s*$", function() return entry .. "\nreturn list\n" end)
    file:close()
    temp.write(folder .. "/lua/luminary/optim/entries.lua", text)
    local pipe = io.popen(("luajit %s/src/optim/generate.lua %s %s/out 2>&1"):format(folder, folder, folder))
    local said = pipe:read("*a")
    pipe:close()
    return said
  end
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  local function with(changes)
    local entry = {
      options = '{{"lr", 1, "positive"}, {"size", 0}}', modes = '{{"size"}}', states = '{{"old", when = "size"}}',
      scalars = "{}", update = "[[\n    p -= lr * g;\n    if (with_size) old = size * g;]]",
      source = '"nobody"', help = '"none"',
    }
    for key, value in pairs(changes) do entry[key] = value end
    local parts = {}
    for key, value in pairs(entry) do parts[#parts + 1] = key .. " = " .. value end
    return 'optimizer "Extra" {' .. table.concat(parts, ", ") .. "}"
  end

  it("writes code that says where its text stands", function()
    assert.equal("", generate(with {}))
    local file = assert(io.open(folder .. "/out/optim_entries.h"))
    local text = file:read("*a")
    file:close()
    assert.matches('#line %d+ "lua/luminary/optim/entries.lua"\n  p %-= lr %* g;', text)
    assert.matches("enum { LM_EXTRA_SIZE = 1 };", text, 1, true)
  end)

  it("refuses entries that make no sense", function()
    for text, changes in pairs {
      ["optimizer Extra: mode speed is no option"] = { modes = '{{"speed"}}', states = "{}" },
      ["optimizer Extra: mode size: 'speed' is no mode"] = { modes = '{{"size", needs = "speed"}}' },
      ["optimizer Extra: state old: 'speed' is no mode"] = { states = '{{"old", when = "speed"}}' },
      ["optimizer Extra: scalar twice is used by nothing"] = { scalars = '{{"twice", "2 * lr"}}' },
      ["optimizer Extra: 'lr' is there twice"] = { scalars = '{{"lr", "2"}}' },
      ["optimizer Extra: 'size' is a state and a number"] = { states = '{{"size"}}' },
      ["optimizer Extra: update has to stand in the file as it is"] = { update = [["a;\nb;"]] },
    } do
      assert.matches(text, generate(with(changes)), 1, true)
    end
  end)
end)
