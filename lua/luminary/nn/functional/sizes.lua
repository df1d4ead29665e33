--- Defines kinds of arguments for sizes, one number for each spatial dim, and layouts of such inputs.
local core = require "luminary.core"
local options = require "luminary.base.options"

local sizes = {}

--- Fails for a list with named fields, which would be ignored.
function sizes.check_list(who, name, list)
  if options.named_field(list) then options.fail("%s: %s is %s", who, name, options.describe(list)) end
end

-- Returns n integers ≥ min, from an integer, a list of one, or a list of n; `words` allows "same", "valid".
local function read(who, name, v, n, min, words)
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
options.kind("sizes", text_of, read)

-- The kind of n integers whose value stays as passed, for print.
options.kind("sizes_as_given", text_of, function(who, name, v, n, min) return read(who, name, v, n, min) and v end)

-- The kind of a convolution's padding.
options.kind("sizes_or_word", function(n) return text_of(n) .. ', or "same" or "valid"' end, function(who, name, v, n)
  return read(who, name, v, n, 0, true)
end)

-- The kind of n integers of at least 0, or -1 for an unchanged size; in a list, nil is -1.
options.kind("output_sizes", text_of, function(who, name, v, n)
  if type(v) ~= "table" or options.named_field(v) then return read(who, name, v, n, -1) end
  local list = {}
  for i = 1, n do list[i] = v[i] == nil and -1 or v[i] end
  return read(who, name, #v <= n and list or v, n, -1)
end)

-- The kind of a tensor with n spatial dims after its channels, with or without a batch dim.
options.kind("input", "tensor", function(who, name, x, n)
  options.arg(who, name, x, "tensor")
  if x.ndim ~= n + 1 and x.ndim ~= n + 2 then
    local last = ({"L", "H, W", "D, H, W"})[n]
    options.wrong_shape(who, name, x, ("[N, C, %s] or [C, %s]"):format(last, last))
  end
  return x
end)

-- The kind output_sizes, except that a number stays a number.
options.kind("output_sizes_as_given", text_of, function(who, name, v, n)
  local all = options.arg(who, name, v, ("output_sizes(%d)"):format(n))
  return type(v) == "table" and all or v
end)

-- Moves dim `from` of x to dim `to`.
local function move_dim(x, from, to)
  local order = {}
  for d = 1, x.ndim do
    if d ~= from then order[#order + 1] = d end
  end
  table.insert(order, to, from)
  return core.ops.permute(x, order)
end

--- Returns x [N, C, …] as a view [N, …, C].
function sizes.channels_last(x) return move_dim(x, 2, x.ndim) end
--- Returns x [N, …, C] as a view [N, C, …].
function sizes.channels_second(x) return move_dim(x, x.ndim, 2) end
--- Returns true if x [N, C, …] has its channels last in memory and is not contiguous too.
function sizes.is_channels_last(x) return not x:is_contiguous() and sizes.channels_last(x):is_contiguous() end

return sizes
