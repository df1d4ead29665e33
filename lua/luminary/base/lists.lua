--- Functions of lists and tables that Lua lacks. They need no other file of the library, since the doctor uses them
--- where the core does not load.
local ipairs, pairs, type, sort, gmatch = ipairs, pairs, type, table.sort, string.gmatch

local lists = {}

--- Returns the list of f(v, i) for each entry v of a list.
function lists.map(list, f)
  local out = {}
  for i, v in ipairs(list) do out[i] = f(v, i) end
  return out
end

--- Returns the list of the entries for which fits(v) is true.
function lists.filter(list, fits)
  local out = {}
  for _, v in ipairs(list) do
    if fits(v) then out[#out + 1] = v end
  end
  return out
end

--- Returns the first entry for which fits(v) is true, and its index; nil if there is none.
function lists.find(list, fits)
  for i, v in ipairs(list) do
    if fits(v) then return v, i end
  end
end

--- Returns the index of the first entry that equals `value`; nil if there is none.
function lists.index_of(list, value)
  for i, v in ipairs(list) do
    if v == value then return i end
  end
end

--- Returns true if fits(v) is true for all entries.
function lists.every(list, fits)
  for _, v in ipairs(list) do
    if not fits(v) then return false end
  end
  return true
end

--- Appends the entries of `more` to a list. Returns the list.
function lists.append(list, more)
  for _, v in ipairs(more) do list[#list + 1] = v end
  return list
end

--- Returns a new list of the entries of two or three lists, one list after the other.
function lists.joined(a, b, c)
  local out = lists.append(lists.append({}, a), b)
  return c and lists.append(out, c) or out
end

--- Returns the list of the values of a table at the keys of a list.
function lists.pick(t, keys)
  local out = {}
  for i, key in ipairs(keys) do out[i] = t[key] end
  return out
end

--- Returns a new list of the entries of a list from `first` (1) to `last` (the end). {unpack(list)} fails for more than
--- about 7990 entries.
function lists.slice(list, first, last)
  local out = {}
  for i = first or 1, last or #list do out[#out + 1] = list[i] end
  return out
end

--- Returns the sum of a list of numbers, or of f(value) of its entries.
function lists.sum(list, f)
  local total = 0
  for _, v in ipairs(list) do total = total + (f and f(v) or v) end
  return total
end

--- Returns the product of a list of numbers; 1 for an empty one.
function lists.product(list)
  local product = 1
  for _, n in ipairs(list) do product = product * n end
  return product
end

--- Returns a copy of a table, whose values are the same.
function lists.copy(t)
  local out = {}
  for key, value in pairs(t) do out[key] = value end
  return out
end

local function by_type(a, b)
  if type(a) == type(b) then return a < b end
  return type(a) < type(b)
end

--- Returns the sorted keys of a table, numbers before strings; with `fits`, only those for which fits(key, value) is
--- true.
function lists.sorted_keys(t, fits)
  local keys = {}
  for key, value in pairs(t) do
    if not fits or fits(key, value) then keys[#keys + 1] = key end
  end
  sort(keys, by_type)
  return keys
end

--- Returns the parts of a text that match a pattern, by default its words.
function lists.parts(text, pattern)
  local out = {}
  for part in gmatch(text, pattern or "%S+") do out[#out + 1] = part end
  return out
end

--- Returns the set {[word] = true} of a list's entries, or of the words of a text.
function lists.set(words)
  local out = {}
  for _, word in ipairs(type(words) == "string" and lists.parts(words) or words) do out[word] = true end
  return out
end

return lists
