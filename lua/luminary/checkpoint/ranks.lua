--- What a checkpoint asks of the other ranks: their values, and whether they failed too. Alone, it asks nobody.
local core = require "luminary.core"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"
local rank_and_size = require "luminary.base.rank_and_size"
local ffi = require "ffi"

local ranks = {}

local item_bytes -- of dtypes, at first use

-- Tensors as plain tables, since objects that travel between ranks have none: every table is put in a field.
local function packed(value)
  if core.is_tensor(value) then
    local t = value:detach():cpu():contiguous()
    local n = t:numel() * item_bytes[t.dtype]
    return {dtype = t.dtype, shape = {unpack(t.shape)}, bytes = n > 0 and ffi.string(t:data_ptr(), n) or ""}
  elseif type(value) == "table" then
    local fields = {}
    for key, each in pairs(value) do fields[key] = packed(each) end
    return {fields = fields}
  end
  return value
end

local function unpacked(value)
  if type(value) ~= "table" then return value end
  if value.fields then
    local t = {}
    for key, each in pairs(value.fields) do t[key] = unpacked(each) end
    return t
  end
  local stride, size = {}, 1
  for i = #value.shape, 1, -1 do stride[i], size = size, size * value.shape[i] end
  if size == 0 then return core.ops.empty(value.shape, {dtype = value.dtype, device = "cpu"}) end
  return core.view_as(core.bytes_tensor(value.bytes), value.dtype, value.shape, stride, 0)
end

--- Returns the values of all ranks, a list.
function ranks.gather(value)
  if select(2, rank_and_size()) == 1 then return {value} end
  item_bytes = item_bytes or load_module("luminary.file_formats.source").item_bytes
  local list = load_module("luminary.distributed").all_gather_object({}, packed(value))
  for i, each in ipairs(list) do list[i] = unpacked(each) end
  return list
end

--- Returns f() of rank 0.
function ranks.of_first(f)
  local rank, size = rank_and_size()
  local value = rank == 0 and f() or nil
  if size == 1 then return value end
  return load_module("luminary.distributed").broadcast_object_list({value or false})[1]
end

--- Whether it is true of any rank.
function ranks.any(is_true)
  for _, each in ipairs(ranks.gather(is_true)) do
    if each then return true end
  end
  return false
end

--- As any, by one small reduction: for each step of a training.
function ranks.any_quick(is_true)
  if select(2, rank_and_size()) == 1 then return is_true end
  local dist = load_module "luminary.distributed"
  local device = dist.get_backend() == "nccl" and dist.local_device() or "cpu"
  local flag = core.tensor({is_true and 1 or 0}, {dtype = "int64", device = device})
  return dist.all_reduce(flag, {op = "max"}):item() > 0
end

--- Calls functions, one after the other, and returns what the last one returns. If one fails on any rank, all raise the
--- error of the first such rank, so that none waits for another.
function ranks.attempt(who, ...)
  local rank, size = rank_and_size()
  local ok, value
  for i = 1, select("#", ...) do
    ok, value = pcall((select(i, ...)))
    if not ok then break end
  end
  if size == 1 then
    if not ok then error(value, 0) end
    return value
  end
  local problems = ranks.gather(ok and "" or tostring(value))
  if not ok then error(value, 0) end
  for r, problem in ipairs(problems) do
    if problem ~= "" and r ~= rank + 1 then
      core.error_at_caller(("%s: rank %d: %s"):format(who, r - 1, options.without_position(problem)))
    end
  end
  return value
end

return ranks
