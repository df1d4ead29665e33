--- lm.einsum: sums of products that are told by subscripts, pair by pair in the order that costs least.
---
--- A term is {x = tensor, labels = {"b", "i", …}}, one label for each of its dims; dims behind an ellipsis are labelled
--- "...1" (the last), "...2" and so on.
local core = require "luminary.core"
local options = require "luminary.base.options"

local ops, describe = core.ops, options.describe
local function fail(...) return options.fail("einsum: " .. select(1, ...), select(2, ...)) end

local function place_of(list, label)
  for i, each in ipairs(list) do
    if each == label then return i end
  end
end

local function shown(label) return tostring(label):sub(1, 3) == "..." and "..." or label end

-- The labels of subscripts "i...j"; `dims` says how many the ellipsis stands for.
local function labels_of(text, dims)
  local labels, at, dotted = {}, 1, false
  while at <= #text do
    local letter = text:sub(at, at)
    if text:sub(at, at + 2) == "..." then
      if dotted then fail("'%s' has two ellipses", text) end
      dotted, at = true, at + 3
      for i = dims, 1, -1 do labels[#labels + 1] = "..." .. i end
    elseif letter:find "%a" then
      labels[#labels + 1], at = letter, at + 1
    else
      fail("'%s' in '%s' is no subscript; subscripts are letters, and ... stands for any dims", letter, text)
    end
  end
  return labels, dotted
end

-- x's dims p and q, of one size, made one, the last: their diagonal.
local function diagonal(x, p, q)
  local order, n = {}, x.shape[p]
  for d = 1, x.ndim do
    if d ~= p and d ~= q then order[#order + 1] = d end
  end
  order[#order + 1], order[#order + 2] = p, q
  local flat = ops.flatten(ops.permute(x, order), -2, -1)
  return n == 0 and flat or ops.slice(flat, -1, 1, -1, n + 1)
end

local function term_of(number, text, x)
  options.arg("einsum", "operand " .. number, x, "tensor")
  local letters = #text:gsub("%.%.%.", "")
  local rest = x.ndim - letters
  local labels, dotted = labels_of(text, math.max(rest, 0))
  if rest < 0 or rest > 0 and not dotted then
    fail("operand %d has the subscripts '%s', which are %d, and is %s", number, text, letters, describe(x))
  end
  local i = 1
  while i <= #labels do
    local first = place_of(labels, labels[i])
    if first < i then
      if x.shape[first] ~= x.shape[i] then
        fail("subscript '%s' of operand %d, '%s', is %d and %d", labels[i], number, text, x.shape[first], x.shape[i])
      end
      x = diagonal(x, first, i)
      table.remove(labels, i)
      table.insert(labels, table.remove(labels, first))
    else
      i = i + 1
    end
  end
  return {x = x, labels = labels}
end

-- What each label's size is; dims of size 1 where it is larger go from the terms.
local function sizes_of(terms)
  local sizes, whose = {}, {}
  for number, term in ipairs(terms) do
    for d, label in ipairs(term.labels) do
      local size, other = term.x.shape[d], sizes[label]
      if other and other ~= size and other ~= 1 and size ~= 1 then
        fail("subscript '%s' is %d in operand %d and %d in operand %d", shown(label), other, whose[label], size, number)
      end
      if not other or other == 1 then sizes[label], whose[label] = size, number end
    end
  end
  for _, term in ipairs(terms) do
    for d = #term.labels, 1, -1 do
      if term.x.shape[d] == 1 and sizes[term.labels[d]] ~= 1 then
        term.x = ops.squeeze(term.x, d)
        table.remove(term.labels, d)
      end
    end
  end
  return sizes
end

-- The term summed over the labels that are not in the set `wanted`.
local function summed(term, wanted)
  local dims, labels = {}, {}
  for d, label in ipairs(term.labels) do
    if wanted[label] then labels[#labels + 1] = label else dims[#dims + 1] = d end
  end
  if #dims == 0 then return term end
  return {x = ops.sum(term.x, dims, {dtype = term.x.dtype}), labels = labels}
end

-- The term with its dims in the order of the labels, and of these sizes.
local function arranged(term, labels, shape)
  local order = {}
  for i, label in ipairs(labels) do order[i] = place_of(term.labels, label) end
  return ops.reshape(ops.permute(term.x, order), shape)
end

local function joined(...)
  local all = {}
  for _, list in ipairs {...} do
    for _, v in ipairs(list) do all[#all + 1] = v end
  end
  return all
end

local function set_of(list)
  local set = {}
  for _, label in ipairs(list) do set[label] = true end
  return set
end

-- Two terms made one, with those of their labels that are in the set `wanted`.
local function contracted(a, b, wanted, sizes)
  local in_a, in_b = set_of(a.labels), set_of(b.labels)
  a = summed(a, setmetatable({}, {__index = function(_, label) return wanted[label] or in_b[label] end}))
  b = summed(b, setmetatable({}, {__index = function(_, label) return wanted[label] or in_a[label] end}))
  local batch, inner, left, right = {}, {}, {}, {}
  for _, label in ipairs(a.labels) do
    local list = not in_b[label] and left or wanted[label] and batch or inner
    list[#list + 1] = label
  end
  for _, label in ipairs(b.labels) do
    if not in_a[label] then right[#right + 1] = label end
  end
  local labels = joined(batch, left, right)
  local shape, count = {}, {}
  for i, label in ipairs(labels) do shape[i] = sizes[label] end
  for _, each in ipairs {batch, inner, left, right} do
    local n = 1
    for _, label in ipairs(each) do n = n * sizes[label] end
    count[each] = n
  end
  if #inner == 0 then -- no sum: the product of each with each
    local shape_a, shape_b = {unpack(shape, 1, #batch + #left)}, {unpack(shape, 1, #batch)}
    for _ = 1, #right do shape_a[#shape_a + 1] = 1 end
    for _ = 1, #left do shape_b[#shape_b + 1] = 1 end
    for _, label in ipairs(right) do shape_b[#shape_b + 1] = sizes[label] end
    return {x = arranged(a, joined(batch, left), shape_a) * arranged(b, joined(batch, right), shape_b), labels = labels}
  end
  local product
  if #batch == 0 then
    product = ops.mm(arranged(a, joined(left, inner), {count[left], count[inner]}),
      arranged(b, joined(inner, right), {count[inner], count[right]}))
  else
    product = ops.bmm(arranged(a, joined(batch, left, inner), {count[batch], count[left], count[inner]}),
      arranged(b, joined(batch, inner, right), {count[batch], count[inner], count[right]}))
  end
  return {x = ops.reshape(product, shape), labels = labels}
end

-- What is left to be had of the labels of terms `i` and `j` once they are one: those of the others and of the output.
local function wanted_without(terms, i, j, output)
  local wanted = set_of(output)
  for k, term in ipairs(terms) do
    if k ~= i and k ~= j then
      for _, label in ipairs(term.labels) do wanted[label] = true end
    end
  end
  return wanted
end

-- Multiplications of making the pair one, and the size of what comes of it.
local function cost_of(a, b, wanted, sizes)
  local work, size, seen = 1, 1, {}
  for _, label in ipairs(joined(a.labels, b.labels)) do
    if not seen[label] then
      seen[label], work = true, work * sizes[label]
      if wanted[label] then size = size * sizes[label] end
    end
  end
  return work, size
end

local EXHAUSTIVE = 6 -- terms for which every order is looked at

-- The cheapest order of pairs: its cost, and the pair to begin with. Tried on labels alone.
local function best_pair(terms, output, sizes)
  local best, first, second
  for i = 1, #terms do
    for j = i + 1, #terms do
      local wanted = wanted_without(terms, i, j, output)
      local cost, size = cost_of(terms[i], terms[j], wanted, sizes)
      if #terms > 2 and #terms <= EXHAUSTIVE and (not best or cost < best) then
        local rest, labels = {}, {}
        for k, term in ipairs(terms) do
          if k ~= i and k ~= j then rest[#rest + 1] = term end
        end
        for label in pairs(set_of(joined(terms[i].labels, terms[j].labels))) do
          if wanted[label] then labels[#labels + 1] = label end
        end
        rest[#rest + 1] = {labels = labels}
        cost = cost + best_pair(rest, output, sizes)
      else
        cost = cost + size * 1e-3
      end
      if not best or cost < best then best, first, second = cost, i, j end
    end
  end
  return best, first, second
end

-- The subscripts of an output that is not told: those that occur once, in alphabetical order, after the ellipsis.
local function implied(text)
  local counts, once = {}, {}
  for letter in text:gmatch "%a" do counts[letter] = (counts[letter] or 0) + 1 end
  for letter, n in pairs(counts) do
    if n == 1 then once[#once + 1] = letter end
  end
  table.sort(once)
  return (text:find("...", 1, true) and "..." or "") .. table.concat(once)
end

local function output_labels(text, terms)
  local there, dots = {}, 0
  for _, term in ipairs(terms) do
    for _, label in ipairs(term.labels) do
      there[label] = true
      dots = math.max(dots, tonumber(label:match "^%.%.%.(%d+)$") or 0)
    end
  end
  local labels, seen = labels_of(text, dots), {}
  for _, label in ipairs(labels) do
    if not there[label] then fail("subscript '%s' of the output '%s' is in no operand", label, text) end
    if seen[label] then fail("subscript '%s' is twice in the output '%s'", label, text) end
    seen[label] = true
  end
  return labels
end

-- One tensor of terms, with the dims whose labels are `kept`, in that order.
local function product(terms, kept)
  local sizes = sizes_of(terms)
  while #terms > 1 do
    local i, j = 1, 2
    if #terms > 2 then i, j = select(2, best_pair(terms, kept, sizes)) end
    local wanted = wanted_without(terms, i, j, kept)
    local b, a = table.remove(terms, j), table.remove(terms, i)
    terms[#terms + 1] = contracted(a, b, wanted, sizes)
  end
  local last, order = summed(terms[1], set_of(kept)), {}
  for i, label in ipairs(kept) do order[i] = place_of(last.labels, label) end
  return ops.permute(last.x, order)
end

local einsum = {product = product}

--- lm.einsum("bij,bjk->bik", a, b): the sum of the products of tensors, one name for each dim; those that are not
--- behind the arrow are summed over. Without an arrow the output has those that occur once, in alphabetical order;
--- "ii" is a diagonal, "..." any more dims, which broadcast. Tensors may stand in a list.
function einsum.of(equation, ...)
  options.arg("einsum", "equation", equation, "string")
  local tensors = select("#", ...) == 1 and options.is_plain((...)) and (...) or {...}
  local text = equation:gsub("%s+", "")
  local inputs, output = text:match "^(.-)%->(.*)$"
  inputs = inputs or text
  local terms = {}
  for subscripts in (inputs .. ","):gmatch "([^,]*)," do
    local number = #terms + 1
    if tensors[number] == nil then break end
    terms[number] = term_of(number, subscripts, tensors[number])
  end
  local _, commas = inputs:gsub(",", "")
  if #tensors == 0 or commas + 1 ~= #tensors then
    fail("'%s' is for %d tensors, got %d", equation, commas + 1, #tensors)
  end
  local kept = output_labels(output or implied(inputs), terms)
  return product(terms, kept)
end

return einsum
