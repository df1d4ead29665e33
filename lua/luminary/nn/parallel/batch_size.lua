--- Finds the number of samples of a module's arguments, which weighs a rank's gradients.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local is_module = require("luminary.nn.module").is_module

-- Returns the tensor of a value whose size counts: the first one of a list, before those with names, whose sizes must
-- be equal, since names have no order. depth: that of nested tables, at most 8, since a table may contain itself.
local function first_tensor(who, dim, v, depth)
  if core.is_tensor(v) then return v end
  if type(v) ~= "table" or is_module(v) or depth == 8 then return nil end
  for _, each in ipairs(v) do
    local t = first_tensor(who, dim, each, depth + 1)
    if t then return t end
  end
  local found, name
  for _, key in ipairs(lists.sorted_keys(v, function(key) return type(key) == "string" or type(key) == "number" end)) do
    local t = first_tensor(who, dim, v[key], depth + 1)
    if t and type(key) == "number" then return t end
    if found and t and math.min(found.ndim, t.ndim) >= dim and found:size(dim) ~= t:size(dim) then
      options.fail("%s: expected tensors in a table of arguments to have the same size in dim %d, the batch, got %d of "
        .. "'%s' and %d of '%s'; pass the batch as first argument, or {batch_dim = false}", who, dim, found:size(dim),
        name, t:size(dim), key)
    end
    if t and (not found or found.ndim < dim) then found, name = t, key end
  end
  return found
end

--- Returns the size of dim `dim` of the first tensor among the arguments; 1 without one, or if dim is 1 and it has no
--- dims. who: the function that was given `dim` as batch_dim, for errors.
return function(who, dim, ...)
  for i = 1, select("#", ...) do
    local t = first_tensor(who, dim, (select(i, ...)), 0)
    if t and dim > math.max(t.ndim, 1) then
      options.must_be(who, "batch_dim", ("at most %d, the number of dims of the first tensor"):format(t.ndim), dim)
    end
    if t then return t.ndim > 0 and t:size(dim) or 1 end
  end
  return 1
end
