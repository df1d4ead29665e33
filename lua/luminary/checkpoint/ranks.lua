--- Gathers values and errors of all ranks for checkpoints. With one rank it does not communicate.
local core = require "luminary.core"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"
local rank_and_size = require "luminary.base.rank_and_size"

local ranks = {}

--- Returns a string of a value, in which its tensors have a dtype and a shape and no elements.
function ranks.outline(value)
  return (load_module("luminary.mp.serialization").encode("load", value, {plain = "value"}))
end

local zeros = {
  tensor = function(_, dtype, shape) return core.ops.zeros({}, {dtype = dtype, device = "cpu"}):expand(shape) end,
}

--- Inverts ranks.outline. Tensors have its dtypes and shapes; all elements of one are the same zero in memory.
function ranks.from_outline(text) return load_module("luminary.mp.serialization").decode(text, {}, {}, zeros) end

-- Raises another rank's error.
local function fail_for(who, rank, problem)
  problem = options.without_position(problem)
  if problem:sub(1, #who + 2) == who .. ": " then problem = problem:sub(#who + 3) end
  core.error_at_caller(("%s: rank %d: %s"):format(who, rank, problem))
end

--- Returns the values of all ranks, a list.
function ranks.gather(value)
  if select(2, rank_and_size()) == 1 then return {value} end
  return load_module("luminary.distributed").all_gather_object({}, value)
end

--- Returns rank 0's result of f(); if it fails there, all ranks raise.
function ranks.of_first(who, f)
  local rank, size = rank_and_size()
  if size == 1 then return f() end
  local ok, value
  if rank == 0 then ok, value = pcall(f) end
  local list = load_module("luminary.distributed").broadcast_object_list(rank > 0 and {}
    or {ok, ok and {value} or tostring(value)})
  if list[1] then return list[2][1] end
  if rank == 0 then error(value, 0) end
  fail_for(who, 0, list[2])
end

--- Returns true if `is_true` is true on any rank, by one small reduction, cheap enough for each training step. It waits
--- for other hosts, and for no device.
function ranks.any_quick(is_true)
  if select(2, rank_and_size()) == 1 then return is_true end
  local flag = core.tensor({is_true and 1 or 0}, {dtype = "int64", device = "cpu"})
  return load_module("luminary.distributed").all_reduce(flag, {op = "max"}):item() > 0
end

--- Calls f(). Returns the list of all ranks' results, and their errors, by rank from 1.
function ranks.try(f)
  local ok, value = pcall(f)
  local values, problems = {}, {}
  for r, each in ipairs(ranks.gather(ok and {value} or tostring(value))) do
    if type(each) == "string" then problems[r] = each else values[r] = each[1] end
  end
  return values, problems
end

--- Raises an error of ranks.try, if there is one: this rank's own, else the first.
function ranks.raise(who, problems)
  local rank, size = rank_and_size()
  local own = problems[rank + 1]
  if own and options.without_position(own):sub(1, #who + 2) == who .. ": " then error(own, 0) end
  if own then core.error_at_caller(who .. ": " .. options.without_position(own)) end
  for r = 1, size do
    if problems[r] then fail_for(who, r - 1, problems[r]) end
  end
end

--- Calls f() and returns the list of all ranks' results. If it fails on any rank, all raise, so that none waits for
--- another.
function ranks.gather_from(who, f)
  if select(2, rank_and_size()) == 1 then return {f()} end
  local values, problems = ranks.try(f)
  ranks.raise(who, problems)
  return values
end

--- Calls f() and returns this rank's result, which is not sent. If it fails on any rank, all raise.
function ranks.attempt(who, f)
  local value
  ranks.gather_from(who, function() value = f() end)
  return value
end

return ranks
