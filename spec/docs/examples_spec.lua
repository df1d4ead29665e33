-- docs/examples.md names every example and script, and shows pictures that are there and small.
local temp = require "spec.support.temp"

local PICTURE_BYTES = 60 * 1024

describe("docs/examples.md #lua", function()
  local page = temp.read "docs/examples.md"

  it("names every file of examples/ and every script of scripts/ that takes options", function()
    local missing, n = {}, 0
    local list = "ls examples/*.lua; ls torch7/mnist.lua; grep -lE 'usage: ' scripts/*.lua scripts/simulate_scale"
    for path in io.popen(list):lines() do
      n = n + 1
      local name = path:match "^torch7/.*" or path:match "[^/]*$"
      if not page:find(("[`%s`](../%s)"):format(name, path), 1, true) then missing[#missing + 1] = path end
    end
    assert.is_true(n > 20)
    assert.equal("", table.concat(missing, " "))
  end)

  it("shows pictures of less than 60 KB", function()
    local shown = {}
    for name in page:gmatch "%]%(images/([%w_.]+)%)" do
      shown[name] = true
      local picture = temp.read("docs/images/" .. name)
      assert.is_true(#picture > 0 and #picture < PICTURE_BYTES, ("%s has %d bytes"):format(name, #picture))
    end
    for name in io.popen "ls docs/images":lines() do assert.is_true(shown[name], name .. " is not shown") end
  end)
end)
