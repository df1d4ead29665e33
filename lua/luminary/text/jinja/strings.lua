--- Methods of Python's str, list and dict for templates, as the sandbox of transformers allows them.
local lists = require "luminary.base.lists"
local values = require "luminary.text.jinja.values"

local fail, charge, NONE, kind = values.fail, values.charge, values.NONE, values.kind
local strings = {}

-- Characters beyond ASCII that are white space in Python.
local white = {}
for _, code in ipairs {0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000} do
  white[values.character(code)] = true
end
for code = 0x2000, 0x200a do white[values.character(code)] = true end

--- Returns the first index from i on that is not white space.
function strings.skip_white(s, i)
  while true do
    i = s:find("[^\t-\r\28-\32]", i) or #s + 1
    local wide = white[s:sub(i, i + 1)] and 2 or white[s:sub(i, i + 2)] and 3
    if not wide then return i end
    i = i + wide
  end
end

--- Returns the last index up to i that is not white space; 0 if there is none.
function strings.skip_white_back(s, i)
  while i > 0 do
    local n = s:find("^[\t-\r\28-\32]", i) and 1 or white[s:sub(i - 1, i)] and 2 or white[s:sub(i - 2, i)] and 3
    if not n then break end
    i = i - n
  end
  return i
end

-- ---- cases: of ASCII, Latin-1, Latin Extended-A, Greek and Cyrillic

local upper_of, lower_of = {["\195\159"] = "SS", ["\195\191"] = "\197\184"}, {["\197\184"] = "\195\191"} -- ß and ÿ
for _, row in ipairs {
  {0xc0, 0xd6, 32, 1}, {0xd8, 0xde, 32, 1}, {0x100, 0x12e, 1, 2}, {0x132, 0x136, 1, 2}, {0x139, 0x147, 1, 2},
  {0x14a, 0x176, 1, 2}, {0x179, 0x17d, 1, 2}, {0x391, 0x3a1, 32, 1}, {0x3a3, 0x3ab, 32, 1}, {0x400, 0x40f, 80, 1},
  {0x410, 0x42f, 32, 1},
} do
  for code = row[1], row[2], row[4] do
    local upper, lower = values.character(code), values.character(code + row[3])
    upper_of[lower], lower_of[upper] = upper, lower
  end
end

function strings.upper(s) return (s:upper():gsub("[\194-\209][\128-\191]", upper_of)) end
function strings.lower(s) return (s:lower():gsub("[\194-\209][\128-\191]", lower_of)) end

--- Returns a string with its first character in upper case and the others in lower case.
function strings.capitalize(s)
  local first = s:match "^[%z\1-\127\194-\244][\128-\191]*" or ""
  return strings.upper(first) .. strings.lower(s:sub(#first + 1))
end

-- ---- parts

--- Returns a string without white space, or the characters of a set, at its left and right end.
function strings.strip(s, chars, left, right)
  if chars == nil or chars == NONE then
    local last = right and strings.skip_white_back(s, #s) or #s
    return s:sub(left and strings.skip_white(s, 1) or 1, last)
  end
  local set, list, to = {}, values.characters(s)
  for _, c in ipairs((values.characters(strings.checked(chars, "strip")))) do set[c] = true end
  local from = 1
  while left and from <= to and set[list[from]] do from = from + 1 end
  while right and to >= from and set[list[to]] do to = to - 1 end
  return table.concat(list, "", from, to)
end

--- Returns v; fails if it is no string.
function strings.checked(v, who)
  return type(v) == "string" and v or fail("%s: expected a string, got %s", who, kind(v))
end

--- Returns s with the first `most` occurrences of old replaced by new.
function strings.replace(s, old, new, most)
  local out, at = {}, 1
  if old == "" then fail "replace: the text to replace must not be empty" end
  while most > 0 do
    local first, last = s:find(old, at, true)
    if not first then break end
    charge(32 + #new + first - at)
    out[#out + 1] = s:sub(at, first - 1) .. new
    most, at = most - 1, last + 1
  end
  return table.concat(out) .. s:sub(at)
end

-- Returns the parts of s between white space (separator: nil) or a separator, after at most `most` cuts.
local function split(s, separator, most)
  local out, at = {}, separator and 1 or strings.skip_white(s, 1)
  if separator == "" then fail "empty separator" end
  while separator or at <= #s do
    values.step()
    local first, last
    if #out < most and separator then
      first, last = s:find(separator, at, true)
    elseif #out < most then
      first = at
      repeat first = s:find("[\t-\r\28-\32\194\225-\227]", first + 1)
      until not first or strings.skip_white(s, first) > first
      last = first and strings.skip_white(s, first) - 1
    end
    out[#out + 1] = s:sub(at, first and first - 1 or #s)
    if not first then break end
    at = last + 1
  end
  return values.list(out)
end

--- Returns Python's s % args for %s, %d and %%. args: a list with n.
function strings.percent(s, args)
  local used = 0
  local text = s:gsub("%%(.?)", function(letter)
    if letter == "%" then return letter end
    if not letter:find "[sd]" then fail("unsupported format '%%%s'; supported are %%s and %%d", letter) end
    used = used + 1
    local v = args[used]
    if v == nil then fail "not enough arguments for format string" end
    local x = letter == "d" and (values.number(v) or fail("%%d format: a number is required, not %s", kind(v)))
    local one = x and ("%.0f"):format(x < 0 and math.ceil(x) or math.floor(x)) or values.text(v)
    charge(#one)
    return one
  end)
  if used < args.n then fail "not all arguments converted during string formatting" end
  return text
end

-- ---- methods

--- Returns arguments by the names of parameters, "a b? …". Fails for missing and unknown ones.
function strings.arguments(who, parameters, args, named)
  local out, n, known = {}, 0, {}
  for name, optional in parameters:gmatch "([%w_]+)(%??)" do
    n, known[name] = n + 1, true
    out[n] = args[n]
    if out[n] == nil then out[n] = named[name] end
    if out[n] == nil and optional == "" then fail("%s() requires the argument '%s'", who, name) end
  end
  if args.n > n then fail("%s() takes at most %d arguments (%d given)", who, n, args.n) end
  for name in pairs(named) do
    if not known[name] then fail("%s() has no argument '%s'", who, name) end
  end
  return unpack(out, 1, n)
end

--- Returns a count of at least 0, or math.huge for absent, None and negative ones.
function strings.count(v)
  local n = v ~= nil and v ~= NONE and values.index(v, "the count") or -1
  return n < 0 and math.huge or n
end

local function stripped(left, right)
  return {"chars?", function(s, chars) return strings.strip(s, chars, left, right) end}
end

-- Defines startswith or endswith, of a string or a tuple.
local function has_part(test)
  return {"part", function(s, parts)
    for _, part in ipairs(kind(parts) == "tuple" and parts or {parts}) do
      if test(s, strings.checked(part, "startswith")) then return true end
    end
    return false
  end}
end

--- Methods of str: {parameters, function(s, …)}.
strings.str = {
  strip = stripped(true, true), lstrip = stripped(true), rstrip = stripped(false, true),
  upper = {"", strings.upper}, lower = {"", strings.lower}, capitalize = {"", strings.capitalize},
  title = {"", function(s) return (s:gsub("[%a\195-\244][%a\128-\244]*", strings.capitalize)) end},
  startswith = has_part(function(s, part) return s:sub(1, #part) == part end),
  endswith = has_part(function(s, part) return part == "" or s:sub(-#part) == part end),
  replace = {"old new count?", function(s, old, new, count)
    return strings.replace(s, strings.checked(old, "replace"), strings.checked(new, "replace"), strings.count(count))
  end},
  split = {"sep? maxsplit?", function(s, sep, most)
    return split(s, sep and sep ~= NONE and strings.checked(sep, "split") or nil, strings.count(most))
  end},
  join = {"iterable", function(s, list)
    list = values.items(list)
    for i = 1, list.n do strings.checked(list[i], "join") end
    return strings.join(list, s)
  end},
}

-- Returns the list of f(key) of a dict.
local function of_keys(d, f) return values.list(lists.map(d.keys, f)) end

--- Methods of dict.
strings.dict = {
  items = {"", function(d) return of_keys(d, function(key) return values.tuple {key, values.at(d, key)} end) end},
  values = {"", function(d) return of_keys(d, function(key) return values.at(d, key) end) end},
  keys = {"", values.items},
  get = {"key default?", function(d, key, default)
    local v = values.at(d, key)
    if v == nil then v = default end
    return v == nil and NONE or v
  end},
}

local unsafe = " append clear extend insert pop popitem remove reverse setdefault sort update " -- change their object

--- Returns the result of rows[name], {parameters, function(v, …)}, for a value and arguments.
function strings.run(rows, name, v, args, named)
  local row = rows[name]
  if type(v) == "string" then values.scan(v, type(args[1]) == "string" and args[1] or nil) end
  if not row[1] then return row[2](v, args, named) end
  return row[2](v, strings.arguments(name, row[1], args, named))
end

--- Returns the method `name` of a value as a function; undefined if the sandbox refuses it; nil if there is none.
function strings.method(v, name)
  local k = kind(v)
  if type(strings[k]) == "table" and strings[k][name] then
    return values.func(function(args, named) return strings.run(strings[k], name, v, args, named) end)
  elseif (k == "list" or k == "dict" and values.at(v, name) == nil) and unsafe:find(" " .. name .. " ", 1, true) then
    return values.undefined("access to attribute '%s' of '%s' object is unsafe", name, k)
  end
end

--- Returns the texts of a list's items with `between` between them.
function strings.join(list, between)
  local out = {}
  for i = 1, list.n do
    out[i] = values.text(list[i])
    charge(#out[i] + #between)
  end
  return table.concat(out, between)
end

return strings
