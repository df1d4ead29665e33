--- Checks that all ranks of a group have equal descriptions: compares lines of text with the first rank's.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

--- alike(group, who, what, lines, more): Compares this rank's description, a list of lines, with the first rank's.
--- Collective. If any differs, all ranks fail, and the error names the first difference: "who: the <what> from rank
--- 0's: here …; there …". more: the name of a missing line.
return function(group, who, what, lines, more)
  if group.size == 1 then return end
  local broadcast = load_module("luminary.distributed.objects").broadcast_object_list
  local first = broadcast(lists.slice(lines), {src = group.ranks[1], group = group})
  local n = 1
  while lines[n] == first[n] do
    if lines[n] == nil then return end
    n = n + 1
  end
  local missing = "is no further " .. more
  local message = ("%s: the %s from rank %d's: here %s; there %s"):format(who, what, group.ranks[1],
    lines[n] or missing, first[n] or missing)
  core.reducer_fail(group.handle, message)
  options.fail("%s", message)
end
