-- A short form of scripts/dev/chaos; LM_TEST_LONG=1 runs all of it. Its seed is printed when a trial fails.
local lm = require "luminary"
local root = debug.getinfo(1, "S").source:match("^@(.*)/spec/[^/]*$") or "."

describe("ranks that go wrong at a random moment", function()
  it("are named by all others, in time, and leave nothing behind #speed", function()
    local trials = lm.getenv "LM_TEST_LONG" and 200 or 24
    local pipe = io.popen(("timeout %d luajit %s/scripts/dev/chaos --trials %d 2>&1"):format(trials * 12, root, trials))
    local text = pipe:read("*a")
    pipe:close()
    assert(text:find(("%d of %d trials held"):format(trials, trials), 1, true), text)
  end)
end)
