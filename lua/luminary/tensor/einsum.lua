--- lm.einsum: Sums products by subscripts, contracted pair by pair in the cheapest order.
---
--- A term is {x = tensor, labels = {"b", "i", …}}, one label for each of its dims; dims of an ellipsis are labeled
--- "...1" (the last), "...2" and so on.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"

local ops, describe, joined, pick, set_of = core.ops, options.describe, lists.joined, lists.pick, lists.set
local function fail(format, ...) return options.fail("einsum: " .. format, ...) end

local function shown(label) return tostring(label):sub(1, 3) == "..." and "..." or label end

-- Returns the labels of subscripts "i...j"; `dims` is the number of dims of the ellipsis.
local function labels_of(text, dims)
  local labels, at, dotted = {}, 1, false
  while at <= #text do
    local letter = text:sub(at, at)
    if text:sub(at, at + 2) == "..." then
      if dotted then fail("'%s' has more than one ellipsis", text) end
      dotted, at = true, at + 3
      for i = dims, 1, -1 do labels[#labels + 1] = "..." .. i end
    elseif letter:find "%a" then
      labels[#labels + 1], at = letter, at + 1
    else
      fail("unexpected '%s' in '%s'; subscripts are letters, and ... is any number of dims", letter, text)
    end
  end
  return labels, dotted
end

local function term_of(number, text, x)
  options.arg("einsum", "operand " .. number, x, "tensor")
  local letters = #text:gsub("%.%.%.", "")
  local rest = x.ndim - letters
  local labels, dotted = labels_of(text, math.max(rest, 0))
  if rest < 0 or rest > 0 and not dotted then
    fail("operand %d has the subscripts '%s', %d letters, and is %s", number, text, letters, describe(x))
  end
  local i = 1
  while i <= #labels do
    local first = lists.index_of(labels, labels[i])
    if first < i then
      if x.shape[first] ~= x.shape[i] then
        fail("subscript '%s' of operand %d, '%s', has sizes %d and %d", labels[i], number, text, x.shape[first],
          x.shape[i])
      end
      x = ops.diagonal(x, 0, first, i) -- moves the diagonal to the last dim
      table.remove(labels, i)
      table.insert(labels, table.remove(labels, first))
    else
      i = i + 1
    end
  end
  return {x = x, labels = labels}
end

-- Returns the size of each label. Removes dims of size 1 from terms if the label has a larger size in others.
local function sizes_of(terms)
  local sizes, whose = {}, {}
  for number, term in ipairs(terms) do
    for d, label in ipairs(term.labels) do
      local size, other = term.x.shape[d], sizes[label]
      if other and other ~= size and other ~= 1 and size ~= 1 then
        fail("subscript '%s' has size %d in operand %d and %d in operand %d", shown(label), other, whose[label], size,
          number)
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

-- Sums a term over the labels that are not in the set `wanted`.
local function summed(term, wanted)
  local dims, labels = {}, {}
  for d, label in ipairs(term.labels) do
    if wanted[label] then labels[#labels + 1] = label else dims[#dims + 1] = d end
  end
  if #dims == 0 then return term end
  return {x = ops.sum(term.x, dims, {dtype = term.x.dtype}), labels = labels}
end

local function order_of(term, labels)
  local dim_of = {}
  for d, label in ipairs(term.labels) do dim_of[label] = d end
  return pick(dim_of, labels)
end

-- Returns the term's tensor with its dims in the order of the labels, reshaped to `shape`.
local function arranged(term, labels, shape)
  return ops.reshape(ops.permute(term.x, order_of(term, labels)), shape)
end

-- Contracts two terms to one with the labels in the set `wanted`.
local function contracted(a, b, wanted, sizes)
  local in_a, in_b = set_of(a.labels), set_of(b.labels)
  a = summed(a, setmetatable({}, {__index = function(_, label) return wanted[label] or in_b[label] end}))
  b = summed(b, setmetatable({}, {__index = function(_, label) return wanted[label] or in_a[label] end}))
  local batch, inner, left, right, count = {}, {}, {}, {}, {}
  for _, label in ipairs(a.labels) do
    local list = not in_b[label] and left or wanted[label] and batch or inner
    list[#list + 1] = label
  end
  for _, label in ipairs(b.labels) do
    if not in_a[label] then right[#right + 1] = label end
  end
  local labels = joined(batch, left, right)
  local shape = pick(sizes, labels)
  for _, each in ipairs {batch, inner, left, right} do count[each] = lists.product(pick(sizes, each)) end
  if #inner == 0 then -- no sum: an outer product
    local shape_a, shape_b = pick(sizes, joined(batch, left)), pick(sizes, batch)
    for _ = 1, #right do shape_a[#shape_a + 1] = 1 end
    for _ = 1, #left do shape_b[#shape_b + 1] = 1 end
    lists.append(shape_b, pick(sizes, right))
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

-- Returns the number of terms with each label.
local function counted(terms)
  local counts = {}
  for _, term in ipairs(terms) do
    for _, label in ipairs(term.labels) do counts[label] = (counts[label] or 0) + 1 end
  end
  return counts
end

-- Returns the set of the two terms' labels that the output (a set) or other terms also have.
local function needed(a, b, counts, output)
  local wanted, own = {}, counted {a, b}
  for label, n in pairs(own) do
    if output[label] or counts[label] > n then wanted[label] = true end
  end
  return wanted
end

-- Returns the cost of contracting two terms: the multiplications, plus 1/1000 of the result's size as a tie-break.
local function cost_of(a, b, counts, output, sizes)
  local work, size = 1, 1
  for _, label in ipairs(a.labels) do
    work = work * sizes[label]
    if output[label] or counts[label] > (b.set[label] and 2 or 1) then size = size * sizes[label] end
  end
  for _, label in ipairs(b.labels) do
    if not a.set[label] then
      work = work * sizes[label]
      if output[label] or counts[label] > 1 then size = size * sizes[label] end
    end
  end
  return work, size * 1e-3
end

-- Searches all orders of contracting a few terms, by labels alone. Returns the lowest cost and its first pair.
local function best_pair(terms, output, sizes)
  local counts, best, first, second = counted(terms), nil, nil, nil
  for i = 1, #terms do
    for j = i + 1, #terms do
      local cost, size = cost_of(terms[i], terms[j], counts, output, sizes)
      if #terms == 2 then
        cost = cost + size
      elseif not best or cost < best then
        local set, labels = needed(terms[i], terms[j], counts, output), {}
        local rest = lists.filter(terms, function(term) return term ~= terms[i] and term ~= terms[j] end)
        for label in pairs(set) do labels[#labels + 1] = label end
        rest[#rest + 1] = {labels = labels, set = set}
        cost = cost + best_pair(rest, output, sizes)
      end
      if not best or cost < best then best, first, second = cost, i, j end
    end
  end
  return best, first, second
end

local EXHAUSTIVE = 6 -- largest number of terms for which all orders are tried

-- Multiplies terms with the same labels elementwise, which grows nothing. Returns the list of remaining terms.
local function merged(terms, merge)
  local by_labels, left = {}, {}
  for _, term in ipairs(terms) do
    local key = table.concat(lists.sorted_keys(set_of(term.labels)), ",")
    local first = by_labels[key]
    if first then
      left[first] = merge(left[first], term)
    else
      left[#left + 1], by_labels[key] = term, #left + 1
    end
  end
  return left
end

-- Contracts the cheapest pairs, of equal costs the first, until few terms are left. Other contractions do not change a
-- pair's cost: a label that other terms share with the pair remains in the terms made of them.
local function greedy(terms, counts, output, sizes, merge)
  local live, partner, lowest = #terms, {}, {} -- maps a term to the cheapest later one, and to their cost
  local function compare(i, j)
    if not (terms[i] and terms[j]) then return end
    local work, size = cost_of(terms[i], terms[j], counts, output, sizes)
    if not partner[i] or work + size < lowest[i] then partner[i], lowest[i] = j, work + size end
  end
  for i = 1, #terms do
    for j = i + 1, #terms do compare(i, j) end
  end
  while live > EXHAUSTIVE do
    local i
    for k = 1, #terms do
      if terms[k] and partner[k] and not (i and lowest[i] <= lowest[k]) then i = k end
    end
    local j, new = partner[i], #terms + 1
    terms[new] = merge(terms[i], terms[j])
    terms[i], terms[j], live = false, false, live - 1
    for k = 1, new - 1 do
      local lost = terms[k] and partner[k] and not terms[partner[k]]
      if lost then partner[k] = nil end
      for other = lost and k + 1 or new, new do compare(k, other) end
    end
  end
  return lists.filter(terms, function(term) return term end)
end

-- Returns the subscripts of an implicit output: labels that occur once, in alphabetical order, after the ellipsis.
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
    if not there[label] then fail("subscript '%s' of the output '%s' is not in any operand", label, text) end
    if seen[label] then fail("subscript '%s' appears twice in the output '%s'", label, text) end
    seen[label] = true
  end
  return labels
end

-- Contracts all terms to one tensor, with the dims labeled `kept`, in that order.
local function product(terms, kept)
  local sizes, output = sizes_of(terms), set_of(kept)
  local counts = counted(terms)
  for _, term in ipairs(terms) do term.set = set_of(term.labels) end
  local function merge(a, b)
    local term = contracted(a, b, needed(a, b, counts, output), sizes)
    term.set = set_of(term.labels)
    for _, each in ipairs {a, b} do
      for _, label in ipairs(each.labels) do counts[label] = counts[label] - 1 end
    end
    for _, label in ipairs(term.labels) do counts[label] = counts[label] + 1 end
    return term
  end
  if #terms > EXHAUSTIVE then terms = merged(terms, merge) end
  if #terms > EXHAUSTIVE then terms = greedy(terms, counts, output, sizes, merge) end
  while #terms > 1 do
    local _, i, j = best_pair(terms, output, sizes)
    local b, a = table.remove(terms, j), table.remove(terms, i)
    terms[#terms + 1] = merge(a, b)
  end
  local last = summed(terms[1], output)
  return ops.permute(last.x, order_of(last, kept))
end

local einsum = {product = product}

--- lm.einsum("bij,bjk->bik", a, b): Sums products of the elements of tensors over dims named in Einstein's notation.
function einsum.of(equation, ...)
  options.arg("einsum", "equation", equation, "string")
  local tensors = {...}
  if select("#", ...) == 1 and options.is_plain(tensors[1]) then
    tensors = options.list("einsum", "tensors", tensors[1])
  end
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
    fail("'%s' expects %d tensors, got %d", equation, commas + 1, #tensors)
  end
  local kept = output_labels(output or implied(inputs), terms)
  return product(terms, kept)
end

return einsum
