-- Prints spec/op/op_cases.lua as a Python expression, for gen_golden.py.
local root = arg[0]:match("^(.*)/scripts/dev/golden/[^/]*$") or "."
local rows = dofile(root .. "/spec/op/op_cases.lua")

local function py(v)
  if type(v) == "number" then
    if v ~= v then return "nan" elseif v == math.huge then return "inf" elseif v == -math.huge then return "-inf" end
    if v == 0 and 1 / v < 0 then return "-0.0" end
    return string.format("%.17g", v)
  elseif type(v) == "string" then return string.format("%q", v)
  elseif type(v) == "boolean" then return v and "True" or "False" end
  local parts = {}
  if #v > 0 or next(v) == nil then
    for k = 1, #v do parts[k] = py(v[k]) end
    return "[" .. table.concat(parts, ", ") .. "]"
  end
  local keys = {}
  for k in pairs(v) do keys[#keys + 1] = k end
  table.sort(keys)
  for _, k in ipairs(keys) do parts[#parts + 1] = py(k) .. ": " .. py(v[k]) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local out = {}
for k, row in ipairs(rows) do
  local cases = {}
  for j = 1, #row do cases[j] = row[j] end
  out[k] = py { name = row.name, py = row.py, positional = row.positional, cases = cases, index_out = row.index_out,
    defaults = row.defaults, dtypes = row.dtypes }
end
print("[" .. table.concat(out, ",\n") .. "]")
