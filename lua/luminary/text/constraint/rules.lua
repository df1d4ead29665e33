--- Rules of grammars over bytes. A notation builds nodes; `compile` numbers them for the matcher.
---
--- Nodes: {set = {first, last, …}} (ranges of code points), {text = bytes}, {seq = list}, {alt = list}, {rep = node,
--- min, max or nil}, {ref = a rule's name}.
local bit = require "bit"
local values = require "luminary.text.jinja.values"

local rules = {}

local MOST_ELEMENTS = 2 ^ 17
local LAST = 0x10ffff

function rules.text(s) return {text = s} end
function rules.seq(...) return {seq = {...}} end
function rules.alt(list) return #list == 1 and list[1] or {alt = list} end
function rules.rep(node, min, max) return {rep = node, min = min, max = max} end
function rules.ref(name) return {ref = name} end

--- Returns the ranges of all code points that are in none of the given ones.
function rules.complement(ranges)
  local pairs_, out, from = {}, {}, 0
  for i = 1, #ranges, 2 do pairs_[#pairs_ + 1] = {ranges[i], ranges[i + 1]} end
  table.sort(pairs_, function(a, b) return a[1] < b[1] end)
  for _, range in ipairs(pairs_) do
    if range[1] > from then out[#out + 1], out[#out + 2] = from, range[1] - 1 end
    from = math.max(from, range[2] + 1)
  end
  if from <= LAST then out[#out + 1], out[#out + 2] = from, LAST end
  return out
end

-- Appends the sequences of byte ranges that encode the code points from lo to hi: lists {first, last, first, last, …}.
local function utf8_ranges(lo, hi, out)
  for _, edge in ipairs {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff} do
    if lo <= edge and hi > edge then
      utf8_ranges(lo, edge, out)
      return utf8_ranges(edge + 1, hi, out)
    end
  end
  if lo >= 0xd800 and hi <= 0xdfff then return end -- surrogates
  for i = 1, lo < 0x80 and 0 or lo < 0x800 and 1 or lo < 0x10000 and 2 or 3 do
    local low = 2 ^ (6 * i) - 1
    if bit.rshift(lo, 6 * i) ~= bit.rshift(hi, 6 * i) then
      local cut = bit.band(lo, low) ~= 0 and bit.bor(lo, low) or bit.band(hi, low) ~= low and hi - bit.band(hi, low) - 1
      if cut then
        utf8_ranges(lo, cut, out)
        return utf8_ranges(cut + 1, hi, out)
      end
    end
  end
  local a, b, one = values.character(lo), values.character(hi), {}
  for k = 1, #a do one[#one + 1], one[#one + 2] = a:byte(k), b:byte(k) end
  out[#out + 1] = one
end

-- Returns a set of bytes.
local function bytes_from(first, last, set)
  for byte = first, last do set[byte] = true end
  return set
end

--- Compiles named nodes, of which `root` begins. Returns {sets, refs, starts, root}: by position a set of bytes, or the
--- number of a rule; neither at the end of an alternative. starts: by rule, the positions where alternatives begin.
function rules.compile(named, root, fail)
  local sets, refs, starts, numbers, position = {}, {}, {}, {}, 0
  local emit, ranges_of = nil, {}

  local function add(set, ref)
    position = position + 1
    if position > MOST_ELEMENTS then fail("it has more than %d elements; use smaller repetitions", MOST_ELEMENTS) end
    sets[position], refs[position] = set, ref
  end

  -- Adds a rule with alternatives, functions that emit. Returns its number.
  local pending = {}
  local function new_rule(alternatives)
    starts[#starts + 1] = {}
    pending[#pending + 1] = {#starts, alternatives}
    return #starts
  end

  local function add_set(ranges)
    local sequences = {}
    for i = 1, #ranges, 2 do utf8_ranges(ranges[i], ranges[i + 1], sequences) end
    local ascii, longer = {}, {}
    for _, one in ipairs(sequences) do
      if #one == 2 then bytes_from(one[1], one[2], ascii) else longer[#longer + 1] = one end
    end
    if #longer == 0 then return add(ascii) end
    local key = table.concat(ranges, ",")
    ranges_of[key] = ranges_of[key] or (function()
      local alternatives = next(ascii) and {function() add(ascii) end} or {}
      for _, one in ipairs(longer) do
        alternatives[#alternatives + 1] = function()
          for k = 1, #one, 2 do add(bytes_from(one[k], one[k + 1], {})) end
        end
      end
      return new_rule(alternatives)
    end)()
    add(nil, ranges_of[key])
  end

  local function rule_of(name)
    if not named[name] then fail("the grammar has no rule '%s'", name) end
    if not numbers[name] then
      numbers[name] = 0
      numbers[name] = new_rule {function() emit(named[name]) end}
    end
    return numbers[name]
  end

  function emit(node)
    if node.text then
      for i = 1, #node.text do add {[node.text:byte(i)] = true} end
    elseif node.set then
      add_set(node.set)
    elseif node.seq then
      for _, each in ipairs(node.seq) do emit(each) end
    elseif node.alt then
      local alternatives = {}
      for i, each in ipairs(node.alt) do alternatives[i] = function() emit(each) end end
      add(nil, new_rule(alternatives))
    elseif node.ref then
      add(nil, rule_of(node.ref))
    else
      local one, rest = new_rule {function() emit(node.rep) end}, nil
      for _ = 1, node.min do add(nil, one) end
      local function nothing() end
      if not node.max then
        rest = new_rule {nothing, function()
          add(nil, one)
          add(nil, rest)
        end}
      end
      for _ = 1, (node.max or 0) - node.min do
        local following = rest
        if #starts > MOST_ELEMENTS then break end
        rest = new_rule {nothing, function()
          add(nil, one)
          if following then add(nil, following) end
        end}
      end
      if rest then add(nil, rest) end
    end
  end

  local first, at = rule_of(root), 0
  while at < #pending do
    at = at + 1
    for _, alternative in ipairs(pending[at][2]) do
      local list = starts[pending[at][1]]
      list[#list + 1] = position + 1
      alternative()
      add(nil, nil)
    end
  end
  return {sets = sets, refs = refs, starts = starts, root = first}
end

return rules
