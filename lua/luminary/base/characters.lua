--- characters: Counts and cuts the characters of UTF-8 texts, and their columns on a terminal.
local core = require "luminary.core"

local byte, find, gsub, sub = string.byte, string.find, string.gsub, string.sub

local characters = {}

--- Returns the number of characters of a text.
function characters.count(text)
  local _, n = gsub(text, "[^\128-\191]", "")
  return n
end

--- Returns the first n characters of a text, or all.
function characters.first(text, n)
  local at = find(text, "[^\128-\191]")
  for _ = 1, n do
    if not at then return text end
    at = find(text, "[^\128-\191]", at + 1)
  end
  return at and sub(text, 1, at - 1) or text
end

-- Ranges of code points, first and last, that a terminal shows in two columns (W and F in Unicode's EastAsianWidth.txt)
-- and in none (combining marks).
local TWO = {
  0x1100, 0x115f, 0x2e80, 0x303e, 0x3041, 0xa4cf, 0xa960, 0xa97f, 0xac00, 0xd7a3, 0xf900, 0xfaff, 0xfe30, 0xfe6f,
  0xff00, 0xff60, 0xffe0, 0xffe6, 0x1f300, 0x1f64f, 0x1f680, 0x1f6ff, 0x1f900, 0x1f9ff, 0x20000, 0x3fffd,
}
local NONE = {0x0300, 0x036f, 0x200b, 0x200f, 0x20d0, 0x20ff, 0xfe00, 0xfe0f, 0xfe20, 0xfe2f}

local function is_in(ranges, code)
  for i = 1, #ranges, 2 do
    if code >= ranges[i] and code <= ranges[i + 1] then return true end
  end
  return false
end

-- Returns the number of columns (0, 1 or 2) of the character at byte `at`.
local function columns_at(text, at)
  local first = byte(text, at)
  if first < 0xcc then return 1 end
  local code = first < 0xe0 and first - 0xc0 or first < 0xf0 and first - 0xe0 or first - 0xf0
  for i = at + 1, at + (first < 0xe0 and 1 or first < 0xf0 and 2 or 3) do
    code = code * 64 + (byte(text, i) or 128) % 64
  end
  return is_in(TWO, code) and 2 or is_in(NONE, code) and 0 or 1
end

--- Returns the number of columns in which a terminal shows a text.
function characters.columns(text)
  if not find(text, "[\204-\255]") then return characters.count(text) end
  local n, at = 0, find(text, "[^\128-\191]")
  while at do
    n, at = n + columns_at(text, at), find(text, "[^\128-\191]", at + 1)
  end
  return n
end

--- Returns the longest beginning of a text that a terminal shows in at most n columns.
function characters.first_columns(text, n)
  local at = find(text, "[^\128-\191]")
  while at do
    n = n - columns_at(text, at)
    if n < 0 then return sub(text, 1, at - 1) end
    at = find(text, "[^\128-\191]", at + 1)
  end
  return text
end

--- Returns a text as UTF-8: bytes that are not UTF-8 become the replacement character, U+FFFD.
function characters.as_utf8(text)
  if core.is_utf8_text(text) then return text end
  return (gsub(text, "[\128-\255]+", function(run)
    return not core.is_utf8_text(run) and gsub(run, ".", "\239\191\189") or nil
  end))
end

return characters
