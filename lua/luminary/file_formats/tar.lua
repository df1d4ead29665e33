--- Reads tar archives, plain or gzipped, from one regular file to the next: v7, ustar, GNU's long names and pax. Only
--- the requested file is in memory.
local core = require "luminary.core"
local options = require "luminary.base.options"

local Tar = {}
Tar.__index = Tar

local BLOCK, LONGEST_NAME, LARGEST, MOST = 512, 2 ^ 20, 2 ^ 30, 2 ^ 60 -- bytes; a file must fit in a string
local ZEROS = ("\0"):rep(BLOCK)

--- Opens the archive at a path.
function Tar.open(path)
  return setmetatable({path = path, stream = core.stream_open(path), at = 0, begins = 0, left = 0, after = 0}, Tar)
end

function Tar:close() core.stream_close(self.stream) end

function Tar:malformed(reason)
  options.malformed_file(self.path, ("tar member at byte %.0f"):format(self.begins), reason)
end

function Tar:truncated()
  options.fail_in_file(self.path, "truncated: the tar member at byte %.0f is incomplete", self.begins)
end

function Tar:unsupported(what)
  options.fail_in_file(self.path, "the tar member at byte %.0f is %s, which is not supported", self.begins, what)
end

function Tar:take(n)
  local text = core.stream_text(self.stream, n)
  self.at = self.at + #text
  return #text == n and text or self:truncated()
end

function Tar:skip(n)
  if not core.stream_skip(self.stream, n) then self:truncated() end
  self.at = self.at + n
end

-- Returns the number in a field: octal digits, or GNU's big-endian bytes after a bit; nil for other contents.
local function number_of(field)
  local from, past, base = 2, #field + 1, 256
  if field:byte() < 128 then
    base, from, past = 8, field:match "^ *()[0-7]*()"
    if past <= #field and not field:find("^[%z ]", past) then return nil end
  elseif field:byte() > 128 then
    return nil
  end
  local value = 0
  for i = from, past - 1 do value = value * base + field:byte(i) % base end
  return value <= MOST and value or nil
end

local function has_right_sum(block)
  local sum = 8 * 32 -- the checksum's own field counts as spaces
  for i = 1, BLOCK do
    if i <= 148 or i > 156 then sum = sum + block:byte(i) end
  end
  return number_of(block:sub(149, 156)) == sum
end

local function until_zero(text) return text:match "^[^%z]*" end

local function name_in(block)
  local name, prefix = until_zero(block:sub(1, 100)), until_zero(block:sub(346, 500))
  return block:sub(258, 263) == "ustar\0" and prefix ~= "" and prefix .. "/" .. name or name
end

-- Stores, of a pax header's records "<length> <key>=<value>\n", those that change how a member is read.
function Tar:read_pax(text, said)
  local at = 1
  while at <= #text do
    local digits, from = text:match("^(%d+) ()", at)
    local last = digits and #digits <= 7 and at + tonumber(digits) - 1 or 0
    local key, value = text:sub(from or 1, last - 1):match "^([^=]*)=(.*)$"
    if not key or last > #text or text:sub(last, last) ~= "\n" then
      self:malformed "a pax record must be 'LENGTH KEY=VALUE'"
    end
    if key == "path" then
      said.name = value
    elseif key == "size" then
      said.size = value:find "^%d*$" and (tonumber(value) or 0)
        or self:malformed "the size in its pax header must be an integer"
    elseif key:find "^GNU%.sparse%." then
      self:unsupported "a sparse file"
    end
    at = last + 1
  end
end

--- Returns the name of the next regular file; nil at the end. Other members are skipped. An error names the archive and
--- the member's first byte, unpacked; nothing can be read after it.
function Tar:next()
  local said = {} -- fields of headers before a file
  while true do
    self:skip(self.left + self.after)
    self.left, self.after, self.begins = 0, 0, self.at
    local block = self:take(BLOCK)
    if block == ZEROS then
      core.stream_finish(self.stream)
      return nil
    end
    if not has_right_sum(block) then
      self:malformed("wrong checksum of its header" .. (self.begins == 0 and "; is it a tar archive?" or ""))
    end
    local kind = block:sub(157, 157)
    local is_file = kind:find "^[%z07]$" ~= nil
    local size = is_file and said.size or number_of(block:sub(125, 136))
    if not size or size > MOST then self:malformed "its size must be an integer up to 2^60" end
    self.left, self.after = size, -size % BLOCK
    if is_file then
      return said.name and said.name ~= "" and said.name or name_in(block)
    elseif kind == "x" or kind == "L" then
      if size == 0 or size > LONGEST_NAME then self:malformed "its extended header must have 1 byte to 1 MiB" end
      local text = self:take(size)
      self.left = 0
      if kind == "x" then self:read_pax(text, said) else said.name = until_zero(text) end
    elseif kind == "S" then
      self:unsupported "a sparse file"
    else
      said = {}
      if kind:find "[1-46]" then self.left, self.after = 0, 0 end -- these kinds have no data
    end
  end
end

--- Returns all bytes of the current file as a string; once for each file.
function Tar:read()
  if self.left > LARGEST then self:unsupported "a file of more than 1 GiB" end
  local text = self:take(self.left)
  self.left = 0
  return text
end

return Tar
