--- Reads regular expressions and GBNF grammars as nodes of rules.
local rules = require "luminary.text.constraint.rules"
local values = require "luminary.text.jinja.values"

local notations = {}

local CLASSES = {
  d = {48, 57}, w = {48, 57, 65, 90, 95, 95, 97, 122}, s = {9, 13, 32, 32, 160, 160},
}
for letter, upper in pairs {d = "D", w = "W", s = "S"} do CLASSES[upper] = rules.complement(CLASSES[letter]) end
local LETTERS = {n = 10, r = 13, t = 9, f = 12, v = 11, ["0"] = 0}
local ANY = rules.complement {10, 10}

local MOST_LEVELS = 100

-- Returns a reader of a text: at(), and functions that take what is next.
local function reader_of(text, what, fail)
  local r = {at = 1, level = 0}
  function r.fail(format, ...) fail("%s, byte %d: %s", what, r.at - 1, format:format(...)) end
  function r.is(s) return text:sub(r.at, r.at + #s - 1) == s and s ~= "" end
  function r.skip(s)
    local is = r.is(s)
    if is then r.at = r.at + #s end
    return is
  end
  function r.match(pattern)
    local found = text:match("^" .. pattern, r.at)
    if found then r.at = r.at + #found end
    return found
  end
  function r.is_end() return r.at > #text end
  function r.character()
    local c = r.match "[%z\1-\127\194-\244][\128-\191]*"
    return c or r.fail "it ends too early"
  end
  -- Reads behind a backslash. Returns a code point, or nil and a class's ranges.
  function r.escape()
    local c = r.character()
    local digits = ({x = 2, u = 4, U = 8})[c]
    if digits then
      local hex = r.match(("%x"):rep(digits)) or r.fail("\\%s requires %d hexadecimal digits", c, digits)
      return math.min(tonumber(hex, 16), 0x10ffff)
    end
    if CLASSES[c] then return nil, CLASSES[c] end
    if LETTERS[c] then return LETTERS[c] end
    if c:find "[%w]" then r.fail("\\%s is not supported", c) end
    return values.code(c)
  end
  -- Reads a class behind "[".
  function r.class()
    local negated, ranges, is_first = r.skip "^", {}, true
    local function one()
      if r.skip "\\" then return r.escape() end
      return values.code(r.character())
    end
    while is_first and r.is "]" or not r.skip "]" do
      if r.is_end() then r.fail "']' is missing" end
      is_first = false
      local first, class = one()
      if class then
        for _, each in ipairs(class) do ranges[#ranges + 1] = each end
      else
        local last = first
        if r.is "-" and not r.is "-]" and r.skip "-" then last = one() or r.fail "a range ends with a class" end
        if last < first then r.fail "a range is in descending order" end
        ranges[#ranges + 1], ranges[#ranges + 2] = first, last
      end
    end
    return {set = negated and rules.complement(ranges) or ranges}
  end
  -- Reads the repetitions behind a node.
  function r.repeated(node)
    while true do
      local min, max = 0, nil
      if r.skip "*" then min = 0 elseif r.skip "+" then min = 1 elseif r.skip "?" then max = 1 else
        local counts = r.match "{%d+,?%d*}"
        if not counts then return node end
        local low, comma, high = counts:match "(%d+)(,?)(%d*)"
        min, max = tonumber(low), tonumber(high) or comma == "" and tonumber(low) or nil
        if max and max < min or min > 1e5 then r.fail("the repetition %s is not possible", counts) end
      end
      node = rules.rep(node, min, max)
      if what == "regex" then r.skip "?" end -- lazy: the same texts
    end
  end
  -- Calls f one level deeper.
  function r.deeper(f)
    r.level = r.level + 1
    if r.level > MOST_LEVELS then r.fail("it is nested more than %d deep", MOST_LEVELS) end
    local node = f()
    r.level = r.level - 1
    return node
  end
  return r
end

--- Returns the node of a regular expression that matches a whole text; is_search: a text with a match.
function notations.regex(text, fail, is_search)
  local r = reader_of(text, "regex", fail)
  local anything = rules.rep({set = {0, 0x10ffff}}, 0)
  local alternatives
  local function atom()
    if r.skip "\\" then
      local code, class = r.escape()
      return {set = class or {code, code}}
    elseif r.skip "[" then
      return r.class()
    elseif r.skip "." then
      return {set = ANY}
    elseif r.skip "(" then
      if not r.skip "?:" and r.is "?" then r.fail "(?…) other than (?:…) is not supported" end
      local node = r.deeper(alternatives)
      return r.skip ")" and node or r.fail "')' is missing"
    end
    if text:find("^[*+?{}%^$|)]", r.at) then r.fail("unexpected '%s'", text:sub(r.at, r.at)) end
    local code = values.code(r.character())
    return {set = {code, code}}
  end
  function alternatives()
    local list = {}
    repeat
      local parts = {}
      if r.level == 0 then
        if not r.skip "^" and is_search then parts[1] = anything end
      end
      while not (r.is_end() or r.is "|" or r.is ")" or r.is "$") do parts[#parts + 1] = r.repeated(atom()) end
      local is_anchored = r.level == 0 and r.skip "$"
      if r.is "$" or is_anchored and not (r.is_end() or r.is "|") then r.fail "'$' is supported at the end alone" end
      if r.level == 0 and is_search and not is_anchored then parts[#parts + 1] = anything end
      list[#list + 1] = {seq = parts}
    until not r.skip "|"
    return rules.alt(list)
  end
  local node = alternatives()
  if not r.is_end() then r.fail "unexpected ')'" end
  return node
end

--- Returns the named nodes of a grammar in llama.cpp's notation, whose rule `root` begins.
function notations.gbnf(text, fail)
  local r, named = reader_of(text, "grammar", fail), {}
  local alternatives
  local function space(with_lines)
    while r.match(with_lines and "%s+" or "[ \t]+") or r.match "#[^\n]*" do end
  end
  local function atom()
    if r.skip '"' then
      local out = {}
      while not r.skip '"' do
        if r.is_end() or r.is "\n" then r.fail "'\"' is missing" end
        out[#out + 1] = r.skip "\\" and values.character(r.escape() or r.fail "a class is in quotes") or r.character()
      end
      return rules.text(table.concat(out))
    elseif r.skip "[" then
      return r.class()
    elseif r.skip "." then
      return {set = {0, 0x10ffff}}
    elseif r.skip "(" then
      space(true)
      local node = r.deeper(alternatives)
      return r.skip ")" and node or r.fail "')' is missing"
    end
    local name = r.match "[%a][%w_-]*"
    return name and rules.ref(name) or r.fail("unexpected '%s'", text:sub(r.at, r.at))
  end
  function alternatives()
    local list = {}
    repeat
      space(true)
      local parts = {}
      while not (r.is_end() or r.is "|" or r.is ")" or r.is "\n" or r.is "\r") do
        parts[#parts + 1] = r.repeated(atom())
        space(r.level > 0)
      end
      list[#list + 1] = {seq = parts}
      local at = r.at
      space(true)
      if not r.is "|" then r.at = r.level > 0 and r.at or at end
    until not r.skip "|"
    return rules.alt(list)
  end
  space(true)
  while not r.is_end() do
    local name = r.match "[%a][%w_-]*" or r.fail "expected the name of a rule"
    space(false)
    if not r.skip "::=" then r.fail("expected '::=' behind %s", name) end
    if named[name] then r.fail("the rule %s is defined twice", name) end
    named[name] = alternatives()
    space(true)
  end
  if not named.root then fail "grammar: the rule 'root' is missing" end
  return named
end

return notations
