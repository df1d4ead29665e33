--- Helpers for specs of loaders and samplers: a set whose samples are their numbers, and passes over a loader as lists.
local lm = require "luminary"
local assert = require "luassert"
local batches = {}

--- Returns the error of f(...), which must fail.
function batches.message(f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(err)
end

--- A set whose samples are their numbers.
local Numbers = lm.data.Dataset:extend("Numbers")
function Numbers:init(n) self.n = n end
function Numbers:len() return self.n end
function Numbers:get(i) return self:index(i) end
batches.Numbers = Numbers

--- Returns all samples of one pass over a loader, batch by batch: {{1, 2}, {3}}.
function batches.of(iterator)
  local list = {}
  for x in iterator do list[#list + 1] = lm.is_tensor(x) and x:totable() or x end
  return list
end

--- Returns a list of lists as one list.
function batches.flat(lists)
  local all = {}
  for _, list in ipairs(lists) do
    for _, v in ipairs(list) do all[#all + 1] = v end
  end
  return all
end

function batches.sorted(list)
  local copy = { unpack(list) }
  table.sort(copy)
  return copy
end

--- Returns 1 to n.
function batches.count_to(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end

return batches
