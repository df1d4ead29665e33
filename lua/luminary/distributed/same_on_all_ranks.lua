--- Checks that all ranks of a group have equal descriptions: compares lines of text with the first rank's.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

--- alike(group, who, what, text, more): Compares this rank's description `text`, lines that each end with a newline,
--- with the first rank's. Collective. If any differs, all ranks fail, and the error names the first difference: "who:
--- the <what> from rank 0's: here …; there …". more: the name of a missing line.
return function(group, who, what, text, more)
  local broadcast = load_module("luminary.distributed.objects").broadcast_object_list
  local first = broadcast({text}, {src = group.ranks[1], group = group})[1]
  if first == text then return end
  local next_here, next_there = text:gmatch("([^\n]+)\n"), first:gmatch("([^\n]+)\n")
  local here, there
  repeat here, there = next_here(), next_there() until here ~= there
  local missing = "is no further " .. more
  local message = ("%s: the %s from rank %d's: here %s; there %s"):format(who, what, group.ranks[1], here or missing,
    there or missing)
  core.reducer_fail(group.handle, message)
  options.fail("%s", message)
end
