-- Tar archives, written byte by byte.
local tar = {}

local BLOCK = 512

local function field(text, n) return text .. ("\0"):rep(n - #text) end
local function octal(v, n) return ("%0" .. n - 1 .. "o\0"):format(v) end

--- Returns the header of a member; more: kind ("0"), prefix, magic, size_field (12 bytes instead of octal digits).
function tar.header(name, size, more)
  more = more or {}
  local head = field(name, 100) .. octal(420, 8) .. octal(0, 8) .. octal(0, 8)
    .. (more.size_field or octal(size, 12)) .. octal(0, 12)
  local tail = (more.kind or "0") .. field("", 100) .. (more.magic or "ustar\00000") .. field("", 80)
    .. field(more.prefix or "", 155) .. field("", 12)
  local sum = 8 * 32
  for i = 1, #head do sum = sum + head:byte(i) end
  for i = 1, #tail do sum = sum + tail:byte(i) end
  return head .. ("%06o\0 "):format(sum) .. tail
end

function tar.padded(text) return text .. ("\0"):rep(-#text % BLOCK) end

function tar.member(name, text, more) return tar.header(name, #text, more) .. tar.padded(text) end

--- Returns a member with a name of any length, as GNU's tar and as pax have them.
function tar.gnu_member(name, text)
  return tar.member("././@LongLink", name .. "\0", {kind = "L", magic = "ustar  \0"})
    .. tar.member(name:sub(1, 100), text, {magic = "ustar  \0"})
end

function tar.pax_member(name, text)
  local record = " path=" .. name .. "\n"
  local n = #record + 1
  while #tostring(n) + #record ~= n do n = #tostring(n) + #record end
  return tar.member("pax", n .. record, {kind = "x"}) .. tar.member("short", text)
end

tar.ending = ("\0"):rep(2 * BLOCK)

--- Returns an archive of {{name, text}, …}.
function tar.archive(files)
  local out = {}
  for i, file in ipairs(files) do out[i] = tar.member(file[1], file[2]) end
  return table.concat(out) .. tar.ending
end

return tar
