--- Describes dtypes and type promotion: finfo, iinfo, promote_types, result_type, can_cast.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops, fail = core.ops, options.fail
local rules = {}

local floating = { -- bits, bits of the mantissa, largest exponent, decimal digits
  float16 = {16, 10, 15, 3}, bfloat16 = {16, 7, 127, 2}, float32 = {32, 23, 127, 6}, float64 = {64, 52, 1023, 15},
}
local whole = { -- bits, min, max
  uint8 = {8, 0, 255}, int8 = {8, -128, 127}, int16 = {16, -32768, 32767}, uint16 = {16, 0, 65535},
  int32 = {32, -2147483648, 2147483647}, int64 = {64, -9223372036854775807LL - 1, 9223372036854775807LL},
}

-- Returns the name of a dtype, a tensor's dtype or a name or alias of PyTorch such as "float".
local function dtype_of(who, dtype)
  if core.is_tensor(dtype) then return dtype.dtype end
  options.arg(who, "dtype", dtype, "string")
  return core.dtype(dtype, who)
end

--- lm.finfo([dtype]): Returns the numerical limits of a floating dtype.
function rules.finfo(dtype)
  dtype = dtype_of("finfo", dtype or core.get_default_dtype())
  local row = floating[dtype]
  if not row then fail("finfo: dtype must be floating, got %s; use iinfo for integers", dtype) end
  local bits, after, exponent, digits = unpack(row)
  local max, tiny = (2 - 2 ^ -after) * 2 ^ exponent, 2 ^ (1 - exponent)
  return {
    dtype = dtype, bits = bits, eps = 2 ^ -after, max = max, min = -max, tiny = tiny, smallest_normal = tiny,
    resolution = tonumber("1e-" .. digits),
  }
end

--- lm.iinfo(dtype): Returns the numerical limits of an integer dtype.
function rules.iinfo(dtype)
  dtype = dtype_of("iinfo", dtype)
  local row = whole[dtype]
  if not row then fail("iinfo: dtype must be an integer dtype, got %s; use finfo for floating dtypes", dtype) end
  return {dtype = dtype, bits = row[1], min = row[2], max = row[3]}
end

--- lm.result_type(a, b): Returns the dtype of an operation on two tensors or numbers.
function rules.result_type(a, b)
  local function alike(v)
    if type(v) == "number" then return v end
    if not core.is_tensor(v) then options.expected("result_type", "a tensor or a number", v) end
    return ops.zeros(v.ndim == 0 and {} or {0}, {dtype = v.dtype})
  end
  if type(a) == "number" and type(b) == "number" then
    return a % 1 == 0 and b % 1 == 0 and "int64" or core.get_default_dtype()
  end
  return ops.where(ops.zeros({0}, {dtype = "bool"}), alike(a), alike(b)).dtype
end

--- lm.promote_types(a, b): Returns the dtype to which two dtypes are promoted.
function rules.promote_types(a, b)
  local function empty(dtype) return ops.empty({0}, {dtype = dtype_of("promote_types", dtype)}) end
  return rules.result_type(empty(a), empty(b))
end

--- lm.can_cast(from, to): Returns whether a result of one dtype may be stored in another.
function rules.can_cast(from, to)
  from, to = dtype_of("can_cast", from), dtype_of("can_cast", to)
  local function rank(dtype) return floating[dtype] and 3 or whole[dtype] and 2 or 1 end
  return rank(from) <= rank(to)
end

return rules
