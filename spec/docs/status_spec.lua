-- docs/status/ is what scripts/dev/gen_status.lua writes; its rows/ are of scripts/bench/all.
local temp = require "spec.support.temp"

describe("docs/status #lua", function()
  it("is what scripts/dev/gen_status.lua writes", function()
    local folder = temp.folder()
    local ok, text = temp.run(folder, ("luajit scripts/dev/gen_status.lua %s/status"):format(folder))
    local pipe = io.popen(("diff -r --exclude rows docs/status %s/status 2>&1 | head -20"):format(folder))
    local difference = pipe:read "*a"
    pipe:close()
    temp.remove(folder)
    assert(ok, text)
    assert.equal("", difference, "docs/status is not up to date: luajit scripts/dev/gen_status.lua")
  end)
end)
