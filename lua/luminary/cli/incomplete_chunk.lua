--- Detects, by tokens, that lines of Lua are an incomplete chunk: open brackets and blocks, strings and comments over
--- several lines, an operator at the end. Each line is scanned once.
local find, match, sub, setmetatable = string.find, string.match, string.sub, setmetatable

-- The change of depth by a token; tokens of two characters are no brackets.
local deeper = {
  ["("] = 1, ["["] = 1, ["{"] = 1, [")"] = -1, ["]"] = -1, ["}"] = -1, ["function"] = 1, ["if"] = 1, ["repeat"] = 1,
  ["for"] = 1, ["while"] = 1, ["do"] = 1, ["end"] = -1, ["until"] = -1,
}
-- Tokens after which a chunk cannot end.
local wants_more = {
  ["and"] = true, ["or"] = true, ["not"] = true, ["until"] = true, ["local"] = true, ["in"] = true,
}
for operator in string.gmatch("+ - * / % ^ # = < > , . ~", "%S") do wants_more[operator] = true end

local Scan = {}
Scan.__index = Scan

-- Returns the position after the string at `at`; nil if it continues on the next line, or is wrong.
local function after_string(self, text, at)
  while true do
    local place, c = match(text, "()([\\" .. self.quote .. "])", at)
    if not place then
      self.quote, self.wrong = nil, true
      return nil
    elseif c ~= "\\" then
      self.quote = nil
      return place + 1
    end
    local behind = match(text, "^z%s*()", place + 1) -- \z skips spaces and ends of lines
    if place == #text or behind == #text + 1 then return nil end
    at = behind or place + 2
  end
end

-- Returns the next token from `at` on, and its end; other than names, dots and brackets, it is one character.
local function token(text, at)
  local word = match(text, "^[%a_\128-\255][%w_\128-\255]*", at)
  if word then return word, at + #word end
  local number = match(text, "^%.?%d[%w_.]*", at)
  if number then return "0", at + #number end
  if find(text, "^%.%.%.", at) then return "...", at + 3 end
  return sub(text, at, at), at + 1
end

--- Scans a further line.
function Scan:line(text)
  local at = 1
  while at do
    if self.long then
      local _, last = find(text, self.long, at, true)
      if not last then return end
      at, self.long = last + 1, nil
    elseif self.quote then
      at = after_string(self, text, at)
    else
      at = match(text, "^%s*()", at)
      if at > #text then return end
      local dashes, level = match(text, "^(%-?%-?)%[(=*)%[", at)
      if level and #dashes ~= 1 then
        self.long, at = "]" .. level .. "]", at + #dashes + #level + 2
        if dashes == "" then self.last = "" end
      elseif find(text, "^%-%-", at) then
        return
      elseif find(text, "^[\"']", at) then
        self.quote, self.last, at = sub(text, at, at), "", at + 1
      else
        local word
        word, at = token(text, at)
        self.last = word
        if word == "for" or word == "while" then self.headers = self.headers + 1 end
        if word == "do" and self.headers > 0 then
          self.headers = self.headers - 1 -- the `for` or `while` of this `do` is counted already
        else
          self.depth = self.depth + (deeper[word] or 0)
        end
      end
    end
  end
end

--- Returns true if more lines must follow, and false if that is unknown.
function Scan:incomplete_chunk()
  if self.wrong then return false end
  return (self.long or self.quote or self.depth > 0 or wants_more[self.last]) and true or false
end

--- Returns a new scan of a chunk's lines.
return function() return setmetatable({depth = 0, headers = 0, last = ""}, Scan) end
