-- Reports the outcome of each spec to spec/support/workers.lua, in the file LM_SPEC_REPORT: a line when it begins and
-- one when it has ended, "success|pending|failure|error TAB seconds TAB name TAB reason", and "end" when all have run.
local path = os.getenv "LM_SPEC_REPORT"
if not path then return end
local ffi = require "ffi"
ffi.cdef "int unsetenv(const char *);"
ffi.C.unsetenv "LM_SPEC_REPORT" -- specs that a spec runs have nothing to tell here
local busted = require "busted"
local file = assert(io.open(path, "w"))
file:setvbuf "line"

local function flat(text) return (tostring(text or ""):gsub("%s+", " ")) end

local function name_of(element)
  local names = {}
  while element and element.descriptor ~= "file" and element.descriptor ~= "suite" do
    table.insert(names, 1, element.name or element.descriptor)
    element = busted.parent(element)
  end
  return flat(table.concat(names, " "))
end

local function tell(status, seconds, element, reason)
  file:write(("%s\t%.3f\t%s\t%s\n"):format(status, seconds, name_of(element), flat(reason)))
end

local began, reason, worse
local function on(channel, f)
  busted.subscribe(channel, function(...)
    f(...)
    return nil, true
  end)
end
on({ "test", "start" }, function(element)
  began, reason, worse = busted.monotime(), nil, nil
  tell("begin", 0, element)
end)
on({ "pending" }, function(_, _, message) reason = type(message) == "table" and message.message or message end)
for _, status in ipairs { "failure", "error" } do
  on({ status }, function(element, _, message)
    if element.descriptor == "it" then worse = status else tell(status, 0, element, message) end
  end)
end
on({ "test", "end" }, function(element, _, status)
  tell(worse or status, began and busted.monotime() - began or 0, element, reason)
end)
on({ "suite", "end" }, function() file:write "end\n" end)
