--- Makes the lists of tensors that methods return in place of PyTorch's tuples, which users unpack by `a, b = …`.
local core = require "luminary.core"
local one_based_list = require "luminary.base.one_based_list"

local list_of_tensors = one_based_list "list"
local at_zero = list_of_tensors.__index

function list_of_tensors.__index(list, key)
  if type(key) == "string" and (rawget(core.methods, key) or core.tensor_fields[key]) then
    core.error_at_caller(
      ("a list of %d tensors has no '%s'; local a, b = unpack(list) assigns its tensors to names"):format(#list, key))
  end
  return at_zero(list, key)
end

-- Makes `list`, a table of tensors, a list whose errors suggest unpack. Returns it.
return function(list) return setmetatable(list, list_of_tensors) end
