--- Prints tensors and storages as Torch7 does: one format for all numbers, a common scale, and a last line with type
--- and sizes.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local tensor = require "luminary.torch7.tensor"
local ops = core.ops
local LINE = 80 -- characters

-- Returns the number of digits before the point; 1 for 0.
local function digits(v) return v ~= 0 and v == v and math.floor(math.log10(v)) + 1 or 1 end

-- Returns the format of a list of numbers, the scale that is printed before them, or nil, and the width.
local function format_of(values)
  local low, high, integral = math.huge, 0, true
  for _, v in ipairs(values) do
    integral = integral and v == math.ceil(v)
    low, high = math.min(low, math.abs(v)), math.max(high, math.abs(v))
  end
  low, high = digits(low), digits(high)
  if not (math.abs(low) < 400 and math.abs(high) < 400) then return "%11.4e", nil, 11 end -- infinite
  if integral then
    if high > 9 then return "%11.4e", nil, 11 end
    return ("%%%dd"):format(high + 1), nil, high + 1
  elseif high - low > 4 then
    local width = (math.abs(high) > 99 or math.abs(low) > 99) and 12 or 11
    return ("%%%d.4e"):format(width), nil, width
  elseif high > 5 or high < 0 then
    return "%7.4f", 10 ^ (high - 1), 7
  end
  local width = high == 0 and 7 or high + 6
  return ("%%%d.4f"):format(width), nil, width
end

local function scale_line(scale) return scale and scale ~= 1 and ("%g *\n"):format(scale) or "" end

local function column(values)
  local format, scale = format_of(values)
  local lines = lists.map(values, function(v) return format:format(v / (scale or 1)) .. "\n" end)
  return scale_line(scale) .. table.concat(lines)
end

local function matrix(rows, format, scale, width, indent)
  local out, count = {indent}, #rows[1]
  local per_line = math.max(1, math.floor((LINE - #indent) / (width + 1)))
  for first = 1, count, per_line do
    local last = math.min(first + per_line - 1, count)
    if per_line < count then
      out[#out + 1] = ("%sColumns %d to %d\n%s"):format(first > 1 and "\n" or "", first, last, indent)
    end
    if scale and scale ~= 1 then out[#out + 1] = scale_line(scale) .. " " .. indent end
    for i, row in ipairs(rows) do
      local texts = {}
      for c = first, last do texts[#texts + 1] = format:format(row[c] / (scale or 1)) end
      out[#out + 1] = table.concat(texts, " ") .. "\n"
      if i < #rows then out[#out + 1] = indent .. (scale and scale ~= 1 and " " or "") end
    end
  end
  return table.concat(out)
end

function tensor.methods.__tostring__(object)
  local x = tensor.raw(object)
  local shape, name = tensor.shape_of(x), tensor.type_of(x)
  if #shape == 0 then return ("[%s with no dimension]\n"):format(name) end
  x = x:to("cpu", "float64")
  local values = ops.reshape(x, {-1}):totable()
  local text
  if #shape == 1 then
    text = column(values)
  else
    local format, scale, width = format_of(values)
    local outer, order = #shape - 2, {}
    for d = 1, #shape do order[d] = d <= outer and outer + 1 - d or d end -- the first outer dim changes fastest
    local parts = ops.reshape(ops.permute(x, order), {-1, shape[outer + 1], shape[outer + 2]}):totable()
    text = table.concat(lists.map(parts, function(part, i)
      local head, rest = {}, i - 1
      for d = 1, outer do head[d], rest = rest % shape[d] + 1, math.floor(rest / shape[d]) end
      local title = outer > 0 and "(" .. table.concat(head, ",") .. ",.,.) = \n" or ""
      return (i > 1 and "\n" or "") .. title .. matrix(part, format, scale, width, outer > 0 and " " or "")
    end))
  end
  return ("%s[%s of size %s]\n"):format(text, name, table.concat(shape, "x"))
end

--- Returns the text of a storage of this type with these values.
function tensor.storage_text(name, values)
  return (#values > 0 and column(values) or "") .. ("[%s of size %d]\n"):format(name, #values)
end
