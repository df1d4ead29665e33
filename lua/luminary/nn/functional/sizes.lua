--- Defines kinds of arguments for sizes, one number for each spatial dim, and layouts of such inputs.
local core = require "luminary.core"
local options = require "luminary.base.options"

local sizes = {}

--- Fails for a list with named fields, which would be ignored.
function sizes.check_list(who, name, list)
  if options.named_field(list) then options.fail("%s: %s is %s", who, name, options.describe(list)) end
end

-- Returns n integers ≥ min, from an integer, a list of one, or a list of n; `words` allows "same", "valid".
local function read(n, min, words, who, name, v)
  if words and (v == "same" or v == "valid") then return v end
  local list = type(v) == "number" and {v} or v
  if type(list) == "table" then options.list(who, name, list) end
  local good = type(list) == "table" and (#list == n or #list == 1)
  good = good and not options.named_field(list)
  for i = 1, good and #list or 0 do good = good and options.is("integer", list[i]) and list[i] >= min end
  if not good then
    local others = (n > 1 and " or a list of " .. n or "") .. (words and ", or 'valid' or 'same'" or "")
    options.must_be(who, name, "an integer of at least " .. min .. others, v)
  end
  local all = {}
  for i = 1, n do all[i] = list[#list == 1 and 1 or i] end
  return all
end

local function text_of(n) return n > 1 and "integer or list of " .. n or "integer" end

-- The kind of n integers of at least min.
options.kinds("sizes", function(n, min)
  return text_of(n), function(...) return read(n, min, false, ...) end
end)

-- The kind of n integers whose value stays as passed, for print.
options.kinds("sizes_as_given", function(n, min)
  return text_of(n), function(who, name, v) return read(n, min, false, who, name, v) and v end
end)

-- The kind of a convolution's padding.
options.kinds("sizes_or_word", function(n)
  return text_of(n) .. ', or "same" or "valid"', function(...) return read(n, 0, true, ...) end
end)

-- The kind of n integers of at least 0, or -1 for an unchanged size; in a list, nil is -1.
options.kinds("output_sizes", function(n)
  return text_of(n), function(who, name, v)
    if type(v) ~= "table" or options.named_field(v) then return read(n, -1, false, who, name, v) end
    local list = {}
    for i = 1, n do list[i] = v[i] == nil and -1 or v[i] end
    return read(n, -1, false, who, name, #v <= n and list or v)
  end
end)

-- The kind of a tensor with n spatial dims after its channels, with or without a batch dim.
options.kinds("input", function(n)
  return "tensor", function(who, name, x)
    options.arg(who, name, x, "tensor")
    if x.ndim ~= n + 1 and x.ndim ~= n + 2 then
      local last = ({"L", "H, W", "D, H, W"})[n]
      options.wrong_shape(who, name, x, ("[N, C, %s] or [C, %s]"):format(last, last))
    end
    return x
  end
end)

-- The kind output_sizes, except that a number stays a number.
options.kinds("output_sizes_as_given", function(n)
  local kind = ("output_sizes(%d)"):format(n)
  return text_of(n), function(who, name, v)
    local all = options.arg(who, name, v, kind)
    return type(v) == "table" and all or v
  end
end)

-- Moves dim `from` of x to dim `to`.
local function moved(x, from, to)
  local order = {}
  for d = 1, x.ndim do
    if d ~= from then order[#order + 1] = d end
  end
  table.insert(order, to, from)
  return core.ops.permute(x, order)
end

--- Returns x [N, C, …] as a view [N, …, C].
function sizes.channels_last(x) return moved(x, 2, x.ndim) end
--- Returns x [N, …, C] as a view [N, C, …].
function sizes.channels_second(x) return moved(x, x.ndim, 2) end
--- Returns true if x [N, C, …] has its channels last in memory and is not contiguous too.
function sizes.is_channels_last(x) return not x:is_contiguous() and sizes.channels_last(x):is_contiguous() end

return sizes
