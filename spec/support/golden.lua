-- Golden values and comparing with them, shared by the specs.
local core = require "luminary.core"
local Source = require "luminary.file_formats.source"
local safetensors = require "luminary.file_formats.safetensors"

local golden = {}
local inf = math.huge

-- PyTorch's assert_close defaults.
golden.tolerance = {
  float16 = { 1e-3, 1e-5 }, bfloat16 = { 1.6e-2, 1e-5 }, float32 = { 1.3e-6, 1e-5 }, float64 = { 1e-7, 1e-7 },
  int64 = { 0, 0 }, int32 = { 0, 0 },
  int16 = { 0, 0 }, int8 = { 0, 0 }, uint16 = { 0, 0 }, uint8 = { 0, 0 }, bool = { 0, 0 },
}

local function flat(t)
  local list = t:double():reshape { -1 }:totable()
  return type(list) == "table" and list or { list }
end

-- Returns nil if they agree, else the difference.
function golden.differs(got, want, tol)
  if not core.is_tensor(got) then got = core.tensor(got, { dtype = want.dtype }) end
  local gs, ws = table.concat(got.shape, ", "), table.concat(want.shape, ", ")
  if gs ~= ws then return ("shape [%s] instead of [%s]"):format(gs, ws) end
  if got.dtype ~= want.dtype then return ("dtype %s instead of %s"):format(got.dtype, want.dtype) end
  tol = tol or golden.tolerance[want.dtype]
  local a, b = flat(got), flat(want)
  for k = 1, #b do
    local x, y = a[k], b[k]
    if not (x ~= x and y ~= y) and x ~= y then
      local close = math.abs(x - y) <= tol[2] + tol[1] * math.abs(y)
      if not close or math.abs(y) == inf or math.abs(x) == inf or x ~= x or y ~= y then
        return ("element %d: %.9g instead of %.9g (%s)"):format(k, x, y, want.dtype)
      end
    end
  end
end

-- Fails with the difference, if they do not agree.
function golden.same(got, want, tolerance, what)
  local difference = golden.differs(got, want, tolerance)
  if difference then error(what and what .. ": " .. difference or difference, 2) end
end

-- Returns the file of one op: a table of tensors by key.
function golden.load(name)
  return (Source.with("spec/golden/" .. name .. ".safetensors", {}, safetensors.read))
end

return golden
