--- Runs what walk_samples.py wrote: PyTorch's own samples of its operators, forward and gradient.
---
---   luajit scripts/dev/walk_samples.lua FOLDER [--show] [op ...]
---
--- Prints, for each op, samples that are right, refused (an error: this call cannot be expressed here), and wrong
--- (another value, shape, dtype or gradient), with the first of each; at the end the sums, and names that are not
--- there.
local lm = require "luminary"
local core = require "luminary.core"
local F = lm.nn.functional

local folder, show, only = arg[1], false, {}
for i = 2, #arg do
  if arg[i] == "--show" then show = true else only[arg[i]], only[1] = true, arg[i] end
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function room(name) local ok, value = pcall(function() return lm[name] end) return ok and value or {} end
local function member(t, name) local ok, value = pcall(function() return t[name] end) return ok and value or nil end
local probe = lm.zeros(1)
local from_1
function from_1(v)
  if type(v) == "number" then return v < 0 and v or v + 1 end
  for i, n in ipairs(v or {}) do v[i] = from_1(n) end
  return v
end
-- Those whose samples have their arguments in another order, or indices as PyTorch's users write them, and properties.
local by_hand = {
  searchsorted = function(sequence, x, given)
    if given and given.sorter then given.sorter = given.sorter + 1 end
    return lm.searchsorted(sequence, x, given)
  end,
  unique = function(x, o) -- the second result counts from 1 in the file, whatever it is
    local values, second, counts = lm.unique(x, o)
    return values, second and not o.return_inverse and second + 1 or second, counts
  end,
  unique_consecutive = function(x, o) -- there it counts from 0
    local values, second, counts = lm.unique_consecutive(x, o)
    return values, second and o.return_inverse and second - 1 or second, counts
  end,
  where = function(x, condition, other) return lm.where(condition, x, other) end,
  ["nn.functional.embedding"] = function(weight, index, ...) return F.embedding(index, weight, ...) end,
  ["nn.functional.embedding_bag"] = function(weight, index, given)
    if given.offsets then given.offsets = given.offsets + 1 end
    if given.padding_idx and given.padding_idx >= 0 then given.padding_idx = given.padding_idx + 1 end
    return F.embedding_bag(index + 1, weight, given)
  end,
  dist = probe.dist, -- lm.dist is a module
  einsum = function(tensors, equation) return lm.einsum(equation, tensors) end,
  -- These are written with PyTorch's numbers, or with other arguments for dims.
  roll = function(x, shifts, dims) return lm.roll(x, shifts, from_1(dims)) end,
  unfold = function(x, dim, ...) return x:unfold(from_1(dim), ...) end,
  tile = function(x, counts)
    for i, n in ipairs(counts) do counts[i] = n - 1 end
    return lm.tile(x, counts)
  end,
  tensor_split = function(x, parts, ...)
    return x:tensor_split(lm.is_tensor(parts) and parts.ndim == 1 and from_1(parts:totable()) or parts, ...)
  end,
  slice_scatter = function(x, src, dim, start, stop, step)
    return lm.slice_scatter(x, src, dim, start + 1, math.min(stop, x:size(dim)), step)
  end,
  arange = function(a, b, ...) -- "end" is no name in Lua, and False and True are no numbers
    if type(a) == "boolean" then a = a and 1 or 0 end
    if type(b) == "boolean" then b = b and 1 or 0 end
    if type(b) == "table" and not lm.is_tensor(b) and b["end"] then b.stop, b["end"] = b["end"], nil end
    local step = ...
    if type(step) == "boolean" then return lm.arange(a, b, step and 1 or 0, select(2, ...)) end
    return lm.arange(a, b, ...)
  end,
  ["linalg.tensorinv"] = function(x, o) return lm.linalg.tensorinv(x, {ind = o.ind - 1}) end, -- it is a count of dims
  T = function(x) return x.T end,
  mT = function(x) return x.mT end,
  -- some samples are of a product that is singular: pinv(a @ b.mT)
  ["linalg.pinv"] = function(a, b, ...)
    if not (lm.is_tensor(b) and b.ndim > 1) then return lm.linalg.pinv(a, b, ...) end
    return lm.linalg.pinv(a:matmul(b.mT))
  end,
}
-- Half transforms of the file are of real numbers, which PyTorch takes for complex ones and we would for pairs.
for name in ("irfft irfft2 irfftn hfft hfft2 hfftn"):gmatch "%S+" do
  by_hand["fft." .. name] = function(x, ...) return lm.fft[name](lm.stack({x, lm.zeros_like(x)}, -1), ...) end
end

-- Vectors whose sign is free, of which the results have several: each result's dim along which such a vector lies. One
-- sign counts for all of its results, so that their products, and gradients, still must be right. Vectors beyond
-- those of singular values are any that span their space: PyTorch's must be their own projections to it.
local signs_free = {
  ["linalg.eigh"] = {[2] = -2}, ["linalg.svd"] = {-2, [3] = -1}, svd = {-2, [3] = -2},
}
local function with_signs_of(name, got, want)
  local along = signs_free[name]
  local which = along and next(along)
  if not along or got[which].ndim ~= want[which].ndim then return got end
  local signs
  for at, dim in pairs(along) do
    if table.concat(got[at].shape, ",") ~= table.concat(want[at].shape, ",") then return got end
    local other, few = dim == -1 and -2 or -1, math.huge
    for i in pairs(along) do few = math.min(few, got[i]:size(-1), got[i]:size(-2)) end
    if not signs then
      local sum = (got[at]:detach() * want[at]):sum(dim)
      signs = lm.where(sum:lt(0), -1, 1):to(want[at].dtype):narrow(-1, 1, few)
    end
    local mine = got[at]
    local first, more = mine:narrow(other, 1, few) * signs:unsqueeze(dim), mine:size(other) - few
    local rest, theirs = mine:narrow(other, few + 1, more), want[at]:narrow(other, few + 1, more)
    if more > 0 and other == -1 then
      rest = rest:matmul(rest:detach().mT:matmul(theirs))
    elseif more > 0 then
      rest = theirs:matmul(rest:detach().mT):matmul(rest)
    end
    got[at] = lm.cat({first, rest}, other)
  end
  return got
end

local function find(name)
  if by_hand[name] then return by_hand[name] end
  local last = name:match("([^.]+)$")
  if name:find("^nn%.functional%.") then return member(F, last) or member(lm, last) end
  local head = name:match("^(%a+)%.")
  if head then return member(room(head), last) end
  return member(lm, name) or member(probe, name)
end

-- Arguments by name in the order in which PyTorch's user gave them, which is that of their tensors in the file.
local text = ""
local function in_order(kwargs)
  local keys, at = {}, {}
  for key, v in pairs(kwargs) do
    keys[#keys + 1], at[key] = key, v.t and text:find('"' .. v.t .. '"', 1, true) or math.huge
  end
  table.sort(keys, function(a, b) return at[a] < at[b] end)
  return keys
end

local function case(call, tensors)
  local leaves = {}
  local function value(v)
    if v.t then
      local t = tensors[v.t]:clone()
      if v.grad then
        t:requires_grad_(true)
        leaves[#leaves + 1] = t
      end
      return t
    elseif v.list then
      local list = {}
      for i, x in ipairs(v.list) do list[i] = value(x) end
      return list
    elseif v.n then
      return v.n == "inf" and math.huge or v.n == "-inf" and -math.huge or 0 / 0
    end
    return v.v
  end
  local args, named, n = {}, {}, #call.args
  for i, v in ipairs(call.args) do args[i] = value(v) end
  for _, k in ipairs(in_order(call.kwargs)) do named[k] = value(call.kwargs[k]) end
  return args, named, n, leaves
end

local function brief(t) return (tostring(t):gsub("%s+", " "):sub(1, 120)) end

local function same(mine, want)
  if type(mine) == "number" or type(mine) == "boolean" then mine = lm.tensor(mine, {dtype = want.dtype}) end
  if not lm.is_tensor(mine) then return false, "returns a " .. type(mine) end
  local a, b = table.concat(mine.shape, ","), table.concat(want.shape, ",")
  if a ~= b then return false, ("shape [%s], PyTorch's is [%s]"):format(a, b) end
  if mine.dtype ~= want.dtype then return false, ("dtype %s, PyTorch's is %s"):format(mine.dtype, want.dtype) end
  if want:numel() == 0 then return true end
  local x, y = mine:detach():to "float64", want:to "float64"
  local rtol = want.dtype == "float64" and 1e-7 or 1e-4
  local scale = 1
  local finite = y:masked_fill(y:isfinite():logical_not(), 0):abs():max():item()
  if finite > 1 then scale = finite end
  local atol = (want.dtype == "float64" and 1e-8 or 1e-5) * scale
  if x:allclose(y, {rtol = rtol, atol = atol, equal_nan = true}) then return true end
  return false, ("%s, PyTorch's is %s"):format(brief(mine), brief(want))
end

local function outputs(...)
  local list = {}
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if type(v) == "table" and not lm.is_tensor(v) then
      for _, t in ipairs(v) do list[#list + 1] = t end
    else
      list[#list + 1] = v
    end
  end
  return list
end

-- Ways to write one call: as PyTorch's user did; only the tensors that come first by place; only the first.
local function written(call, tensors, way)
  local args, named, n, leaves = case(call, tensors)
  local last = n
  if way > 1 then
    last = 1
    while way == 2 and last < n and lm.is_tensor(args[last + 1]) do last = last + 1 end
    for i = last + 1, n do named[call.names[i]], args[i] = args[i], nil end
  end
  if next(named) == nil then return args, last, leaves end
  args[last + 1] = named
  return args, last + 1, leaves
end

local function try(name, call, tensors, f)
  if (((call.kwargs or {}).dropout_p or {}).v or 0) > 0 then return end -- drawn: nothing to compare with
  local got, leaves, ok, e
  for way = 1, call.names and 3 or 1 do
    local args, n, its = written(call, tensors, way)
    local fine, message = pcall(function() got = outputs(f(unpack(args, 1, n))) end)
    ok, e, leaves = fine, e or message, its
    if ok then break end
  end
  if not ok then return "refused", tostring(e) end
  local wanted = {}
  for i, key in ipairs(call.out) do wanted[i] = tensors[key] end
  got = with_signs_of(name, got, wanted)
  for i, key in ipairs(call.out) do
    local fine, how = same(got[i], tensors[key])
    if not fine then return "wrong", ("result %d: %s"):format(i, how) end
  end
  if next(call.grads) then
    local total
    ok, e = pcall(function()
      for i, key in pairs(call.cotangents) do
        local part = (got[tonumber(i)] * tensors[key]):sum()
        total = total and total + part or part
      end
      total:backward()
    end)
    if not ok then return "wrong", "backward: " .. tostring(e) end
    for i, key in pairs(call.grads) do
      local grad = leaves[tonumber(i)].grad
      if not grad then
        if tensors[key]:ne(0):any():item() then return "wrong", ("no gradient of input %s"):format(i) end
      else
        local fine, how = same(grad, tensors[key])
        if not fine then return "wrong", ("gradient %s: %s"):format(i, how) end
      end
    end
  end
  return "right"
end

local names = {}
for path in io.popen("ls '" .. folder .. "'"):lines() do
  local name = path:match("^(.*)%.json$")
  if name and (not only[1] or only[name]) then names[#names + 1] = name end
end

local sums, absent, ops = {right = 0, refused = 0, wrong = 0, left_out = 0}, {}, 0
for _, name in ipairs(names) do
  local f = find(name)
  if not f then
    absent[#absent + 1] = name
  else
    ops = ops + 1
    text = read(folder .. "/" .. name .. ".json")
    local calls = core.json_decode(text)
    local tensors = lm.load(folder .. "/" .. name .. ".safetensors")
    local counts, first = {right = 0, refused = 0, wrong = 0, left_out = 0}, {}
    for number, call in ipairs(calls) do
      local how, why = try(name, call, tensors, f)
      how = how or "left_out"
      counts[how] = counts[how] + 1
      if why and (show or not first[how]) then
        first[how] = (first[how] or "") .. ("\n    %s %d: %s"):format(how, number - 1, why:gsub("%s+", " "):sub(1, 300))
      end
    end
    for how, n in pairs(counts) do sums[how] = sums[how] + n end
    print(("%-45s %4d of %4d%s%s"):format(name, counts.right, #calls - counts.left_out, first.wrong or "",
      first.refused or ""))
  end
end
local total = sums.right + sums.refused + sums.wrong
print(("\n%d ops, %d samples: %d right (%.1f %%), %d refused, %d wrong"):format(ops, total, sums.right,
  100 * sums.right / math.max(total, 1), sums.refused, sums.wrong))
print(("not there: %d\n%s"):format(#absent, table.concat(absent, " ")))
