--- Splits the arguments of a module over devices, and joins the results of its replicas: tensors at any depth in
--- tables.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local comm = require "luminary.nn.parallel.comm"

local fail, is_plain = options.fail, options.is_plain

-- Calls visit(tensor) for all tensors to split. A table that occurs twice is one table in each piece, too.
local function each_tensor(v, visit, seen)
  if core.is_tensor(v) then
    if v.ndim > 0 then visit(v) end
  elseif is_plain(v) and not seen[v] then
    seen[v] = true
    for _, value in lists.sorted_pairs(v) do each_tensor(value, visit, seen) end
  end
end

-- Returns the number of pieces, and the sizes of the first tensor's pieces; nil if there is no tensor.
local function plan_pieces(who, inputs, count, dim, shares)
  local sizes, first
  local function check_tensor_pieces(t)
    if math.abs(dim) > t.ndim or dim == 0 then
      fail("%s: cannot split dim %d of a tensor [%s]; pass inputs without a batch dim in another way, such as a field "
        .. "of the module", who, dim, table.concat(t.shape, ", "))
    end
    local these = comm.chunk_sizes(t:size(dim), count, shares)
    if not sizes then
      sizes, first = these, t
    elseif #these ~= #sizes then
      fail("%s: all tensors must have the same number of samples: [%s] and [%s] split into %d and %d pieces along dim "
        .. "%d", who, table.concat(first.shape, ", "), table.concat(t.shape, ", "), #sizes, #these, dim)
    end
  end
  -- Positional arguments are first: the first tensor has the number of samples.
  local seen = {}
  if is_plain(inputs) then
    for i = 1, inputs.n or #inputs do each_tensor(inputs[i], check_tensor_pieces, seen) end
  end
  each_tensor(inputs, check_tensor_pieces, {})
  return sizes
end

local function split(v, devices, pieces, dim, shares, made)
  local out = {}
  if core.is_tensor(v) and v.ndim > 0 then
    return comm.scatter(v, devices, {dim = dim, chunk_sizes = comm.chunk_sizes(v:size(dim), #devices, shares)})
  elseif core.is_tensor(v) then
    for k = 1, pieces do out[k] = v:to(devices[k]) end
  elseif is_plain(v) then
    if made[v] then return made[v] end
    made[v] = out
    for k = 1, pieces do out[k] = {} end
    for key, value in pairs(v) do
      for k, part in ipairs(split(value, devices, pieces, dim, shares, made)) do out[k][key] = part end
    end
  else
    for k = 1, pieces do out[k] = v end
  end
  return out
end

local module = {}

--- scatter(inputs, devices [, dim = 1]): Returns a list with the inputs of each device. Tensors, also those within
--- tables, are split along dim, in the sizes of chunk; tensors without dims are copied; everything else is passed to
--- each. Fewer samples than devices yield fewer pieces. `shares`: relative numbers of samples for the devices. The
--- second result has the size of each piece of the first tensor.
function module.scatter(inputs, devices, dim, shares, who)
  who = who or "scatter"
  devices = comm.devices(who, devices)
  dim = dim == nil and 1 or options.arg(who, "dim", dim, "integer")
  local sizes = plan_pieces(who, inputs, #devices, dim, shares)
  local pieces = sizes and #sizes or #devices
  return split(inputs, devices, pieces, dim, shares, {}), sizes
end

--- scatter_kwargs(inputs, options, devices [, dim = 1]): Divides a list of arguments and a table of options over
--- devices.
function module.scatter_kwargs(inputs, kwargs, devices, dim)
  if core.is_tensor(inputs) then inputs = {inputs} end
  options.arg("scatter_kwargs", "inputs", inputs, "table")
  local both = module.scatter({inputs, kwargs or {}}, devices, dim, nil, "scatter_kwargs")
  local positional, named = {}, {}
  for k, pair in ipairs(both) do positional[k], named[k] = pair[1], pair[2] end
  return positional, named
end

local function join_parts(who, values, destination, dim)
  local first = values[1]
  local function check_same(same, what)
    for k = 2, #values do
      if not same(values[k]) then
        fail("%s: replica 1 returned %s, replica %d returned %s", who, what, k, options.describe(values[k]))
      end
    end
  end
  if core.is_tensor(first) then
    check_same(core.is_tensor, "a tensor")
    return comm.gather(values, {dim = dim, destination = destination})
  elseif is_plain(first) then
    check_same(is_plain, "a table")
    local out = {}
    for key in lists.sorted_pairs(first) do
      local column = {}
      for k, value in ipairs(values) do
        if value[key] == nil then
          fail("%s: replica 1 returned a field '%s', replica %d did not", who, tostring(key), k)
        end
        column[k] = value[key]
      end
      out[key] = join_parts(who, column, destination, dim)
    end
    return out
  end
  for k = 2, #values do
    if values[k] ~= first then return values end
  end
  return first
end

--- gather(outputs, device [, dim = 1]): Reverses scatter. Tensors are joined along dim on the device; those without
--- dims, such as losses, become a vector; equal values are returned once, others as a list.
function module.gather(outputs, destination, dim, who)
  who = who or "gather"
  options.arg(who, "outputs", outputs, "table")
  if #outputs == 0 then fail("%s: outputs must not be empty", who) end
  return join_parts(who, outputs, core.device(destination), dim == nil and 1 or options.arg(who, "dim", dim, "integer"))
end

return module
