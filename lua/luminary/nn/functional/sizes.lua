--- Kinds of arguments (base/arguments.lua) for sizes with one number for each spatial dim.
local core = require "luminary.core"
local options = require "luminary.base.options"

local sizes = {}

--- Fails for a list with named fields, which would be dropped.
function sizes.check_list(who, name, list)
  if options.named_field(list) then options.fail("%s: %s is %s", who, name, options.describe(list)) end
end

--- A kind: n integers of at least min, from an integer, a list of one, or a list of n. Words in the set `also` are
--- returned unchanged.
function sizes.of(n, min, also)
  local text = n > 1 and "integer or list of " .. n or "integer"
  return options.kind(also and text .. ', or "same" or "valid"' or text, function(who, name, v)
    if also and also[v] then return v end
    local list = type(v) == "number" and {v} or v
    if type(list) == "table" then options.list(who, name, list) end
    local good = type(list) == "table" and (#list == n or #list == 1)
    good = good and not options.named_field(list)
    for i = 1, good and #list or 0 do good = good and options.is("integer", list[i]) and list[i] >= min end
    if not good then
      local list_of = n > 1 and " or a list of " .. n or ""
      local words = also and ", or 'valid' or 'same'" or ""
      options.must_be(who, name, "an integer of at least " .. min .. list_of .. words, v)
    end
    local all = {}
    for i = 1, n do all[i] = list[#list == 1 and 1 or i] end
    return all
  end)
end

--- A kind: n integers of at least 0, or -1 for a size that stays as it is, which in a list may also be nil.
function sizes.kept(n)
  local all_of = sizes.of(n, -1)
  return options.kind(n > 1 and "integer or list of " .. n or "integer", function(who, name, v)
    if type(v) ~= "table" or options.named_field(v) then return all_of(who, name, v) end
    local list = {}
    for i = 1, n do list[i] = v[i] == nil and -1 or v[i] end
    return all_of(who, name, #v <= n and list or v)
  end)
end

--- Fails unless x is a tensor with n spatial dims after its channels, with or without a batch dim.
function sizes.check(who, x, n)
  options.arg(who, "x", x, "tensor")
  if x.ndim ~= n + 1 and x.ndim ~= n + 2 then
    local last = ({"L", "H, W", "D, H, W"})[n]
    options.wrong_shape(who, "x", x, ("[N, C, %s] or [C, %s]"):format(last, last))
  end
end

-- Moves dim `from` of x to dim `to`.
local function moved(x, from, to)
  local order = {}
  for d = 1, x.ndim do
    if d ~= from then order[#order + 1] = d end
  end
  table.insert(order, to, from)
  return core.ops.permute(x, order)
end

--- x [N, C, …] as a view [N, …, C].
function sizes.channels_last(x) return moved(x, 2, x.ndim) end
--- x [N, …, C] as a view [N, C, …].
function sizes.channels_second(x) return moved(x, x.ndim, 2) end
--- Whether x [N, C, …] has its channels last in memory, and not also second.
function sizes.is_channels_last(x) return not x:is_contiguous() and sizes.channels_last(x):is_contiguous() end

return sizes
