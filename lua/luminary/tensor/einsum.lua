--- lm.einsum: Sums products by subscripts, contracted pair by pair in the cheapest order.
---
--- A term is {x = tensor, labels = {"b", "i", …}}, one label for each of its dims; dims of an ellipsis are labeled
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

-- Replaces dims p and q of x, of the same size, by their diagonal as the last dim.
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
    fail("operand %d has the subscripts '%s', %d letters, and is %s", number, text, letters, describe(x))
  end
  local i = 1
  while i <= #labels do
    local first = place_of(labels, labels[i])
    if first < i then
      if x.shape[first] ~= x.shape[i] then
        fail("subscript '%s' of operand %d, '%s', has sizes %d and %d", labels[i], number, text, x.shape[first],
          x.shape[i])
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

-- Returns the term's tensor with its dims in the order of the labels, reshaped to `shape`.
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

-- Contracts two terms to one with the labels in the set `wanted`.
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
  if #inner == 0 then -- no sum: an outer product
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
        local rest, set, labels = {}, needed(terms[i], terms[j], counts, output), {}
        for k, term in ipairs(terms) do
          if k ~= i and k ~= j then rest[#rest + 1] = term end
        end
        for label in pairs(set) do labels[#labels + 1] = label end
        rest[#rest + 1] = {labels = labels, set = set}
        cost = cost + best_pair(rest, output, sizes)
      end
      if not best or cost < best then best, first, second = cost, i, j end
    end
  end
  return best, first, second
end

-- A heap of pairs of terms' numbers, i < j, ordered by cost and then by numbers.
local Heap = {}
Heap.__index = Heap
local CODE = 2 ^ 26 -- above any number of terms

function Heap:before(p, q)
  local a, b = self.costs[p], self.costs[q]
  return a < b or a == b and self.pairs[p] < self.pairs[q]
end

function Heap:swap(p, q)
  local costs, pairs_of = self.costs, self.pairs
  costs[p], costs[q], pairs_of[p], pairs_of[q] = costs[q], costs[p], pairs_of[q], pairs_of[p]
end

function Heap:push(cost, i, j)
  local p = self.n + 1
  self.n, self.costs[p], self.pairs[p] = p, cost, i * CODE + j
  while p > 1 and self:before(p, math.floor(p / 2)) do
    self:swap(p, math.floor(p / 2))
    p = math.floor(p / 2)
  end
end

function Heap:pop()
  local code, n, p = self.pairs[1], self.n, 1
  self:swap(1, n)
  self.n, self.costs[n], self.pairs[n] = n - 1, nil, nil
  while 2 * p < n do
    local child = 2 * p
    if child + 1 < n and self:before(child + 1, child) then child = child + 1 end
    if not self:before(child, p) then break end
    self:swap(p, child)
    p = child
  end
  return math.floor(code / CODE), code % CODE
end

local EXHAUSTIVE = 6 -- largest number of terms for which all orders are tried

-- Multiplies terms with the same labels elementwise, which grows nothing. Returns the list of remaining terms.
local function merged(terms, merge)
  local by_labels, left = {}, {}
  for _, term in ipairs(terms) do
    local names = {}
    for i, label in ipairs(term.labels) do names[i] = tostring(label) end
    table.sort(names)
    local key = table.concat(names, ",")
    local first = by_labels[key]
    if first then
      left[first] = merge(left[first], term)
    else
      left[#left + 1], by_labels[key] = term, #left + 1
    end
  end
  return left
end

-- Contracts the cheapest pairs until few terms are left. Other contractions do not change a pair's cost: a label that
-- other terms share with the pair remains in the terms made of them.
local function greedy(terms, counts, output, sizes, merge)
  local heap, live = setmetatable({n = 0, costs = {}, pairs = {}}, Heap), #terms
  local last = live
  local function push(i, j)
    local work, size = cost_of(terms[i], terms[j], counts, output, sizes)
    heap:push(work + size, i, j)
  end
  for i = 1, last do
    for j = i + 1, last do push(i, j) end
  end
  while live > EXHAUSTIVE do
    local i, j = heap:pop()
    if terms[i] and terms[j] then
      last, live = last + 1, live - 1
      terms[last] = merge(terms[i], terms[j])
      terms[i], terms[j] = false, false
      for k = 1, last - 1 do
        if terms[k] then push(k, last) end
      end
    end
  end
  local left = {}
  for k = 1, last do left[#left + 1] = terms[k] or nil end
  return left
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
  local last, order = summed(terms[1], output), {}
  for i, label in ipairs(kept) do order[i] = place_of(last.labels, label) end
  return ops.permute(last.x, order)
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
