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

--- Returns a copy of a table, whose values are the same.
function lists.copy(t)
  local out = {}
  for key, value in pairs(t) do out[key] = value end
  return out
end

--- Returns the sorted keys of a table; with `fits`, only keys for which fits(key, value) is true.
function lists.sorted_keys(t, fits)
  local keys = {}
  for key, value in pairs(t) do
    if not fits or fits(key, value) then keys[#keys + 1] = key end
  end
  sort(keys)
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
