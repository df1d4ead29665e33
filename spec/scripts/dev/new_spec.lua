-- scripts/dev/new: each kind is written to its files, and its spec fails until it is filled in.
local temp = require "spec.support.temp"

describe("scripts/dev/new #lua", function()
  local folder
  before_each(function()
    folder = temp.folder()
    assert(temp.run(folder, ("mkdir -p %s/spec/metrics && cp -r --parents src/op/entries spec/op spec/nn spec/optim "
      .. "scripts/dev/reference_pages.lua lua %s"):format(folder, folder)))
  end)
  after_each(function() temp.remove(folder) end)

  local function new(arguments) return temp.run(folder, ("scripts/dev/new %s --root %s"):format(arguments, folder)) end

  it("writes each place of a kind, and says what is left", function()
    for kind, name in pairs {
      op = "hypot2", optimizer = "Lion2", schedule = "HalfLR", layer = "Scale", metric = "Spread",
    } do
      local ok, text = new(kind .. " " .. name)
      assert(ok, text)
      assert.matches("\nfails  luajit spec/run.lua %S+\nleft:\n", text)
      local n = 0
      for path in text:gmatch "wrote  (%S+)" do
        n = n + 1
        assert(temp.read(folder .. "/" .. path):find(name, 1, true), path)
      end
      assert(n >= 2 and n <= 4, n)
    end
  end)

  it("makes layers, schedules and metrics that run, with a spec that fails", function()
    for kind, name in pairs { schedule = "HalfLR", layer = "Scale", metric = "Spread" } do
      local _, text = new(kind .. " " .. name)
      local path = text:match "wrote  (spec/%S+)"
      local ok, said = temp.run(folder, ("env LUA_PATH='%s/lua/?.lua;%s/lua/?/init.lua;;' luajit spec/run.lua %s/%s")
        :format(folder, folder, folder, path))
      assert.is_false(ok)
      assert.matches("to be filled in", said, 1, true)
      assert.matches("0 successes / 1 failure / 0 errors", said, 1, true)
    end
  end)

  it("refuses kinds, names and places that are not there", function()
    for arguments, message in pairs {
      ["kernel x"] = "expected KIND NAME; KIND is one of layer, metric, op, optimizer, schedule",
      ["op Hypot"] = "op is lower case, as hypot, got 'Hypot'",
      ["layer"] = "expected KIND NAME",
    } do
      local ok, text = new(arguments)
      assert.is_false(ok)
      assert.matches(message, text, 1, true)
    end
    new "layer Scale"
    local ok, text = new "layer Scale"
    assert.is_false(ok)
    assert.matches("spec/nn/scale_spec.lua is there already", text, 1, true)
  end)
end)
