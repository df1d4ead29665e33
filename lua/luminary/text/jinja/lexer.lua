--- Cuts a template into tokens, with trim_blocks and lstrip_blocks, as transformers sets them.
local strings = require "luminary.text.jinja.strings"
local values = require "luminary.text.jinja.values"

local fail = values.fail

local MOST_TOKENS = 2 ^ 18

-- Operators, longer ones first.
local operators = {}
for operator in ("// == != >= <= + - * / % ~ [ ] ( ) { } > < = . : | , ;"):gmatch "%S+" do
  operators[#operators + 1] = operator
end
local closing = {["("] = ")", ["["] = "]", ["{"] = "}"}
local letters = {
  n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v", ["\\"] = "\\", ["'"] = "'", ['"'] = '"',
  ["\n"] = "",
}

local function unescaped(s)
  if not s:find("\\", 1, true) then return s end
  local out, at = {}, 1
  while true do
    local first = s:find("\\", at, true)
    out[#out + 1] = s:sub(at, (first or 0) - 1)
    if not first then return table.concat(out) end
    local c = s:sub(first + 1, first + 1)
    local digits = ({x = 2, u = 4, U = 8})[c]
    if digits then
      local hex = s:sub(first + 2, first + 1 + digits)
      local code = #hex == digits and hex:find "^%x+$" and tonumber(hex, 16) or 0xd800
      if code > 0x10ffff or code >= 0xd800 and code < 0xe000 then fail("malformed escape '\\%s%s'", c, hex) end
      out[#out + 1], at = values.character(code), first + 2 + digits
    else
      out[#out + 1], at = letters[c] or "\\" .. c, first + 2
    end
  end
end

-- Returns the digits of a number at a position, and those of its fraction and exponent; nil if there is none.
local function number_at(s, at)
  local whole = s:match("^%d+", at)
  if not whole then return nil end
  local fraction = s:match("^%.%d+", at + #whole) or ""
  return whole, fraction .. (s:match("^[eE][-+]?%d+", at + #whole + #fraction) or "")
end

--- Returns the list of a template's tokens, {kind, value, line}. Kinds: data, begin and end of "block" and "variable",
--- name, str, number, float, op, eof.
return function(source)
  source = source:gsub("\r\n?", "\n"):gsub("\n$", "", 1)
  local tokens, at, line, counted = {}, 1, 1, 1

  local function add(kind, value, from)
    if #tokens == MOST_TOKENS then fail("more than %d tokens", MOST_TOKENS) end
    while true do -- counts lines up to the token
      local newline = source:find("\n", counted, true)
      if not newline or newline >= from then break end
      line, counted = line + 1, newline + 1
    end
    tokens[#tokens + 1] = {kind = kind, value = value, line = line}
  end

  -- Adds text before a tag, which `sign` strips.
  local function add_data(text, sign, is_block, from)
    if sign == "-" then
      text = text:sub(1, strings.skip_white_back(text, #text))
    elseif sign ~= "+" and is_block then
      local newline = text:match ".*()\n" or 0
      local begins_line = newline > 0 or from == 1 or source:sub(from - 1, from - 1) == "\n"
      if begins_line and strings.skip_white_back(text, #text) <= newline then text = text:sub(1, newline) end
    end
    if text ~= "" then add("data", text, from) end
  end

  -- Moves behind a tag's end, of `size` bytes at `at`; sign: "-" strips what follows.
  local function close(size, sign, trims)
    at = at + size
    if sign == "-" then
      at = strings.skip_white(source, at)
    elseif sign ~= "+" and trims and source:sub(at, at) == "\n" then
      at = at + 1
    end
  end

  local function expression_token(open)
    local c = source:sub(at, at)
    local name = source:match("^[%a_][%w_]*", at)
    if name then
      add("name", name, at)
      at = at + #name
      return
    end
    local whole, rest = number_at(source, at)
    if whole then
      add(rest ~= "" and "float" or "number", tonumber(whole .. rest), at)
      at = at + #whole + #rest
    elseif c == "'" or c == '"' then
      local ends = at + 1
      while true do
        ends = source:find('[\\' .. c .. ']', ends) or fail("line %d: unterminated string", line)
        if source:sub(ends, ends) == c then break end
        ends = ends + 2
      end
      add("str", unescaped(source:sub(at + 1, ends - 1)), at)
      at = ends + 1
    else
      for _, operator in ipairs(operators) do
        if source:sub(at, at + #operator - 1) == operator then
          if closing[operator] then
            open[#open + 1] = closing[operator]
          elseif operator:find "^[%]%)}]$" and table.remove(open) ~= operator then
            fail("line %d: unexpected '%s'", line, operator)
          end
          add("op", operator, at)
          at = at + #operator
          return
        end
      end
      fail("line %d: unexpected character '%s'", line, source:match("^[%z\1-\127\194-\244][\128-\191]*", at) or "?")
    end
  end

  local function tag(kind, ends)
    local open = {}
    add(kind, "begin", at)
    at = at + (source:find("^[-+]", at + 2) and 3 or 2)
    while true do
      at = strings.skip_white(source, at)
      local sign = source:match("^[-+]?", at)
      local is_end = #open == 0 and source:sub(at + #sign, at + #sign + 1) == ends and (sign ~= "+" or kind == "block")
      if is_end then
        add(kind, "end", at)
        return close(2 + #sign, sign, kind == "block")
      end
      if at > #source then fail("line %d: a tag does not end", line) end
      expression_token(open)
    end
  end

  while true do
    local first = source:find("{[{%%#]", at)
    if not first then
      add_data(source:sub(at), "+", false, at)
      add("eof", "the end of the template", #source + 1)
      return tokens
    end
    local c, sign = source:sub(first + 1, first + 1), source:match("^[-+]?", first + 2)
    add_data(source:sub(at, first - 1), sign, c ~= "{", at)
    at = first
    local _, raw, raw_sign = source:find("^{%%[-+]?%s*raw%s*(%-?)%%}", at)
    if raw then
      at = raw + 1
      if raw_sign == "-" then at = strings.skip_white(source, at) end
      local begins, ends, before, after = source:find("{%%([-+]?)%s*endraw%s*([-+]?)%%}", at)
      if not begins then fail("line %d: missing end of raw", line) end
      add_data(source:sub(at, begins - 1), before, true, at)
      at = ends + 1
      close(0, after, true)
    elseif c == "#" then
      local ends = source:find("#}", at + 2, true) or fail("line %d: missing end of a comment", line)
      sign = ends > at + 2 and source:match("^[-+]", ends - 1) or ""
      at = ends
      close(2, sign, true)
    else
      tag(c == "{" and "variable" or "block", c == "{" and "}}" or "%}")
    end
  end
end
