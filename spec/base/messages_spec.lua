-- Foreign text in messages: names out of files, paths, keys.
local lm = require "luminary"
local core = require "luminary.core"
local message = require "spec.support.error_of"

-- Control characters of terminals, and characters that they show.
local FOREIGN, SHOWN = "\27]0;title\7\r\194\155 é€", "?]0;title???" .. " é€"

local function printable(text)
  assert.is_nil(text:gsub("\194[\128-\159]", "\1"):find "[%z\1-\8\11-\31\127]", ("%q"):format(text))
  return text
end

describe("foreign text", function()
  it("is printable in errors of C and of Lua", function()
    assert.matches("/nowhere/" .. SHOWN, printable(message(lm.load, "/nowhere/" .. FOREIGN)), 1, true)
    assert.matches(SHOWN, printable(message(lm.zeros, { 2 }, { [FOREIGN] = 1 })), 1, true)
    assert.matches(SHOWN, printable(message(lm.nn.Linear, 2, 2, { [FOREIGN] = 1 })), 1, true)
    assert.matches(SHOWN, printable(message(core.error_at_caller, "of Lua: " .. FOREIGN)), 1, true)
    assert.matches("two\n\tlines", message(core.error_at_caller, "two\n\tlines"), 1, true)
  end)

  it("is printable in what load_state_dict says of a file's names", function()
    local net = lm.nn.Linear(1, 1, { bias = false })
    for _, dict in ipairs { { weight = lm.ones(1, 1), [FOREIGN] = lm.ones(1) }, { [FOREIGN] = { weight = 1 } } } do
      assert.matches(SHOWN, printable(message(net.load_state_dict, net, dict)), 1, true)
    end
    local report = net:load_state_dict({ weight = lm.ones(1, 1), [FOREIGN] = lm.ones(1) }, { strict = false })
    assert.matches("  " .. SHOWN, printable(tostring(report)), 1, true)
    assert.same({ FOREIGN }, report.unexpected_keys)
  end)

  it("is printable in warnings", function()
    local path = os.tmpname()
    local script = ("require('luminary.core').warn('about ' .. %q)"):format(FOREIGN)
    local command = ("luajit -e '%s' 2> %s"):format(script:gsub("'", "'\\''"), path)
    assert.equal(0, os.execute(command))
    local file = io.open(path)
    local text = file:read "*a"
    file:close()
    os.remove(path)
    assert.matches("warning: about " .. SHOWN .. "\n", printable(text), 1, true)
  end)
end)
