--- Provides the input of readers of file formats: a file or a part of one, by offset, in order, and as tensors. All
--- errors name the file. Offsets count from 0, as in the formats.
local core = require "luminary.core"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local ffi = require "ffi"
local ops = core.ops

ffi.cdef 'char *lm_source_realpath(const char *, char *) __asm__("realpath");'

local Source = {}
Source.__index = Source

--- Bytes of an element by dtype: all dtypes of tensors, and those of Source.becomes.
Source.item_bytes = {
  bool = 1, uint8 = 1, int8 = 1, int16 = 2, uint16 = 2, float16 = 2, bfloat16 = 2, int32 = 4, float32 = 4, int64 = 8,
  float64 = 8, uint32 = 4, uint64 = 8, complex32 = 4, bcomplex32 = 4, complex64 = 8, complex128 = 16,
}

--- Number of elements, beyond one for each byte of a file, that its tensors may repeat.
Source.MOST_REPEATED = 2 ^ 24

--- Opens the file at a path; opts: {mmap, device, null, skip_unreadable}, as in lm.load.
function Source.open(path, opts)
  local file, size = core.file_open(path, opts.mmap == true)
  return setmetatable({path = path, file = file, from = 0, size = size, opts = opts}, Source)
end

local function close(source, ok, ...)
  core.file_close(source.file)
  if not ok then error(..., 0) end -- the error names the position already
  return ...
end

--- Opens the file at a path, returns read(source), and closes the file.
function Source.with(path, opts, read)
  local source = Source.open(path, opts)
  return close(source, pcall(read, source))
end

-- Returns a path without links and "..", or nil if nothing is there.
local function real_path(path)
  local buffer = ffi.new "char[4097]"
  return ffi.C.lm_source_realpath(path, buffer) ~= nil and ffi.string(buffer) or nil
end

--- Returns the path of a file that the file at `path` names: it must be in the same folder or one in that, also after
--- symbolic links are followed. If the naming file is a link, it may be beside that one's target instead, as in the
--- cache of Hugging Face's hub. Returns nil and where the file is, for a message, if it is elsewhere.
function Source.beside(path, name)
  local folder, outside = path:match "^(.*/)" or "", printable_name(name, 100)
  if name == "" or name:find "^/" or name:find "[%z\\]" or ("/" .. name .. "/"):find("/../", 1, true) then
    return nil, outside
  end
  local there, file = real_path(folder .. name), real_path(path)
  local is_inside = not there -- a missing file: opening it fails
  for _, root in ipairs {real_path(folder == "" and "." or folder) or "/", file and file:match "^(.*)/" or "/"} do
    root = root:gsub("/*$", "/")
    is_inside = is_inside or there:sub(1, #root) == root
  end
  if is_inside then return folder .. name end
  return nil, outside .. " -> " .. printable_name(there, 200)
end

local LONGEST_TEXT = 2 ^ 28

--- Returns all of a text file, such as JSON or a vocabulary. Fails for more than 2^28 bytes, before it reads any.
function Source.whole_text(path)
  return Source.with(path, {}, function(source)
    if source.size > LONGEST_TEXT then
      source:fail("JSON and vocabularies must have at most %.0f bytes, got %.0f", LONGEST_TEXT, source.size)
    end
    return source:text(0, source.size)
  end)
end

--- Returns n bytes from `at` on, as a source.
function Source:part(at, n, name)
  self:check(at, n)
  return setmetatable({path = name, file = self.file, from = self.from + at, size = n, opts = self.opts}, Source)
end

--- Returns bytes in memory, a uint8 tensor, as a source.
function Source.over(bytes, path, opts)
  return setmetatable({path = path, memory = bytes, from = 0, size = bytes:numel(), opts = opts}, Source)
end

function Source:close()
  if self.file then core.file_close(self.file) end
end

function Source:fail(format, ...)
  options.fail_in_file(self.path, format, ...)
end

--- Fails for a file that violates its format: 'PATH': malformed WHAT: REASON.
function Source:malformed(what, format, ...)
  options.malformed_file(self.path, what, format, ...)
end

--- Returns this source's error as a text that does not name it.
function Source:why(problem)
  local text = tostring(problem)
  local _, past = text:find("'" .. options.shown_path(self.path), 1, true)
  if not past then return text end
  return (text:sub(past + 1):gsub("^': ", ""):gsub("^: (.-)': ", "%1: ")) -- the latter for a part: 'PATH: NAME': …
end

function Source:check(at, n)
  if not (at >= 0 and n >= 0 and at + n <= self.size) then
    self:fail("truncated: needs %.0f bytes at byte %.0f, the file has %.0f", n, at, self.size)
  end
end

--- Returns n bytes from `at` on as a string.
function Source:text(at, n)
  self:check(at, n)
  if not self.memory then return core.file_text(self.file, self.from + at, n) end
  return n > 0 and ffi.string(ffi.cast("const char *", self.memory:data_ptr()) + at, n) or ""
end

--- Returns n bytes from `at` on as uint8 [n], aligned to 8 bytes in memory.
function Source:bytes(at, n)
  self:check(at, n)
  if not self.memory then return core.file_section(self.file, self.from + at, n) end
  local part = self.memory:narrow(1, at + 1, n)
  return at % 8 == 0 and part or part:clone()
end

-- ---- integers in strings

local function unsigned(text, at, n)
  local value = 0
  for i = at + n - 1, at, -1 do value = value * 256 + text:byte(i) end
  return value
end
Source.unsigned = unsigned

--- Returns eight bytes of text from position i (from 1) on as int64 cdata, or as a number if that is exact.
function Source.int64(text, i)
  local value = ffi.new "int64_t[1]"
  ffi.copy(value, text:sub(i, i + 7), 8)
  local number = tonumber(value[0])
  return math.abs(number) <= 2 ^ 53 and value[0] == number and number or value[0]
end

--- Returns the little-endian float of n bytes, 4 or 8, at position i (from 1) of text. A NaN is 0 / 0 whatever its
--- other bits: FFI would return them, and LuaJIT takes some for pointers to tables or functions.
function Source.float(text, i, n)
  local last, before, least = text:byte(i + n - 1), text:byte(i + n - 2), n == 4 and 128 or 240
  if last % 128 == 127 and before >= least
    and (before > least or text:sub(i, i + n - 3) ~= ("\0"):rep(n - 2)) then
    return 0 / 0
  end
  local value = ffi.new(n == 4 and "float[1]" or "double[1]")
  ffi.copy(value, text:sub(i, i + n - 1), n)
  return tonumber(value[0])
end

--- Returns decimal digits, with or without a minus sign, as int64 cdata, since doubles hold only 53 bits; nil if they
--- are none, or exceed 64 bits.
function Source.decimal(digits)
  local sign, rest = digits:match "^(%-?)0*(%d+)$"
  if not rest or #rest > 19 then return nil end
  local value = ffi.new("int64_t", 0)
  for digit in rest:gmatch "%d" do value = value * 10 - tonumber(digit) end
  value = sign == "-" and value or -value
  return tostring(value) == (rest == "0" and "" or sign) .. rest .. "LL" and value or nil
end

--- Returns a number as n little-endian bytes.
function Source.little_endian(value, n)
  local out = {}
  for i = 1, n do
    out[i] = string.char(value % 256)
    value = math.floor(value / 256)
  end
  return table.concat(out)
end

-- ---- sequential reading

local Cursor = {}
Cursor.__index = Cursor

local PIECE = 65536

--- Returns a cursor that reads from `at` on, in pieces.
function Source:cursor(at)
  self:check(at, 0)
  return setmetatable({source = self, at = at, piece = "", from = at}, Cursor)
end

--- Moves the cursor to `at`.
function Cursor:seek(at) self.at, self.piece, self.from = at, "", at end

--- Returns a string and the number of its bytes before the cursor; it contains the next n bytes, or all that remain.
function Cursor:look(n)
  local start, left = self.at - self.from, self.source.size - self.at
  if start + math.min(n, left) > #self.piece then
    self.piece, self.from, start = self.source:text(self.at, math.min(math.max(n, PIECE), left)), self.at, 0
  end
  return self.piece, start
end

--- Returns the next n bytes as a string.
function Cursor:take(n)
  local start = self.at - self.from
  if start + n > #self.piece then
    self.source:check(self.at, n)
    start = select(2, self:look(n))
  end
  self.at = self.at + n
  return self.piece:sub(start + 1, start + n)
end

function Cursor:unsigned(n) return unsigned(self:take(n), 1, n) end

function Cursor:signed(n)
  local value = self:unsigned(n)
  return value >= 2 ^ (8 * n - 1) and value - 2 ^ (8 * n) or value
end

--- Returns eight bytes as a count or an offset: at most 2^53.
function Cursor:count()
  local value = self:unsigned(8)
  if value > 2 ^ 53 then self.source:malformed("file", "size %.0f at byte %.0f", value, self.at - 8) end
  return value
end

function Cursor:int64() return Source.int64(self:take(8), 1) end
function Cursor:float(n) return Source.float(self:take(n), 1, n) end

--- Returns the text up to the next newline, without it.
function Cursor:line()
  local out = {}
  while true do
    local start = self.at - self.from + 1
    local stop = self.piece:find("\n", start, true)
    out[#out + 1] = self.piece:sub(start, (stop or 0) - 1)
    self.at = self.from + (stop or #self.piece)
    if stop then return table.concat(out) end
    self:take(1) -- loads the next piece
    self.at = self.at - 1
  end
end

--- Counts n bytes of repeated parts. A file can repeat parts in a few bytes; copies of them may be at most four times
--- as large as the file, which no honest file approaches.
function Cursor:copies(n)
  self.copied = (self.copied or 0) + n
  local source = self.source
  if self.copied > 4 * source.size then source:malformed("file", "repeated parts are larger than the file") end
end

-- ---- tensors

-- Maps complex dtypes to the dtype of their parts.
local parts_of = {complex32 = "float16", bcomplex32 = "bfloat16", complex64 = "float32", complex128 = "float64"}

--- Returns the number of elements; fails if `sizes` is no list of sizes.
function Source:numel(sizes, what)
  local numel = 1
  if #sizes > 8 then self:malformed("file", "%s has %d dims, at most 8 are allowed", what, #sizes) end
  for _, size in ipairs(sizes) do
    if type(size) ~= "number" or size < 0 or size > 2 ^ 53 or size % 1 ~= 0 then
      self:malformed("file", "%s: shape must be non-negative integers, got %s", what,
        printable_name(tostring(size), 40))
    end
    numel = numel * size
  end
  return numel == numel and numel or 0 -- inf * 0 is NaN
end

--- Returns the strides of dense elements: the last dim varies fastest, or with `fortran` the first.
function Source.dense_strides(sizes, fortran)
  local strides, stride = {}, 1
  for i = 1, #sizes do
    local d = fortran and i or #sizes + 1 - i
    strides[d], stride = stride, math.min(stride * math.max(sizes[d], 1), 2 ^ 53)
  end
  return strides
end

--- Returns elements of a dtype, as bytes, with the bytes of each number reversed.
function Source.swapped(bytes, dtype)
  local width = (Source.item_bytes[dtype] or 1) / (parts_of[dtype] and 2 or 1)
  if width == 1 or bytes:numel() == 0 then return bytes end
  return bytes:view(-1, width):flip(2):contiguous():view(-1)
end

--- Fails unless bytes of bool are 0 or 1.
function Source:check_bools(bytes, what)
  local most = bytes:numel() > 0 and bytes:max():item() or 0
  if most > 1 then self:malformed("file", "%s is bool but has the value %d", what, most) end
end

--- Returns uint8 bytes on the requested device.
function Source:placed(bytes)
  return self.opts.device and bytes:to(self.opts.device) or bytes
end

-- Returns the value of a float8 byte. mantissa: its bits; bias: of the exponent; nan: the first byte that is NaN.
local function float8(code, mantissa, bias, nan)
  local steps, magnitude = 2 ^ mantissa, code % 128
  local exponent, rest = math.floor(magnitude / steps), code % steps
  local v = exponent == 0 and rest * 2 ^ (1 - bias - mantissa) or (1 + rest / steps) * 2 ^ (exponent - bias)
  if nan < 128 and magnitude >= nan or code == nan then v = 0 / 0 end
  if nan == 125 and magnitude == 124 then v = math.huge end -- e5m2 alone has infinities
  return code > 127 and -v or v
end

local AT_ONCE = 2 ^ 22 -- elements in one step, which bounds the memory of their indices

local function decoder_by_table(value, ...)
  local more = {...}
  return {"uint8", function(codes)
    local n, opts, list = codes:numel(), {dtype = "bfloat16", device = codes.device}, {}
    for code = 0, 255 do list[code + 1] = value(code, unpack(more)) end
    local values, out = core.tensor(list, opts), ops.empty({n}, opts)
    for at = 1, n, AT_ONCE do
      local size = math.min(AT_ONCE, n - at + 1)
      out:narrow(1, at, size):copy_(ops.index_select(values, 1, codes:narrow(1, at, size):to "int32" + 1))
    end
    return out
  end}
end

--- Dtypes that tensors lack, each {dtype of the same width, function that converts such elements [n]}. float8 becomes
--- bfloat16, which holds all its values. The function returns nil if int64 cannot hold all values.
Source.becomes = {
  uint32 = {"int32", function(t) return ops.bitwise_and(t:to "int64", 2 ^ 32 - 1) end},
  uint64 = {"int64", function(t) return (t:numel() == 0 or t:min():item() >= 0) and t or nil end},
  float8_e4m3fn = decoder_by_table(float8, 3, 7, 127), float8_e5m2 = decoder_by_table(float8, 2, 15, 125),
  float8_e4m3fnuz = decoder_by_table(float8, 3, 8, 128), float8_e5m2fnuz = decoder_by_table(float8, 2, 16, 128),
  float8_e8m0fnu = decoder_by_table(function(code) return code == 255 and 0 / 0 or 2 ^ (code - 127) end),
}
for dtype in pairs(Source.becomes) do Source.item_bytes[dtype] = Source.item_bytes[dtype] or 1 end
Source.TOO_LARGE = "dtype uint64 with values of 2^63 and more"

local converted = setmetatable({}, {__mode = "k"}) -- keyed by the bytes, which many tensors may share

-- Returns a view of elements whose dtype Luminary lacks; converts `bytes` once, in whole, since tensors share them.
local function view_of_others(bytes, dtype, sizes, strides, at)
  converted[bytes] = converted[bytes] or {}
  local by_dtype, item = converted[bytes], Source.item_bytes[dtype]
  if by_dtype[dtype] == nil then
    local stored = core.view_as(bytes, Source.becomes[dtype][1], {math.floor(bytes:numel() / item)}, {1}, 0)
    by_dtype[dtype] = Source.becomes[dtype][2](stored) or false
  end
  return by_dtype[dtype] and ops.as_strided(by_dtype[dtype], sizes, strides, {storage_offset = at / item})
end

-- Returns complex elements as pairs, in an additional last dim.
local function view_of_pairs(bytes, dtype, sizes, strides, at)
  local shape, steps = {}, {}
  for i, size in ipairs(sizes) do shape[i], steps[i] = size, strides[i] * 2 end
  shape[#shape + 1], steps[#steps + 1] = 2, 1
  return core.view_as(bytes, parts_of[dtype], shape, steps, at)
end

--- Returns a view of uint8 bytes from byte `at` on; nil for values of Source.TOO_LARGE. Complex numbers are pairs in a
--- last dim of 2.
function Source:view(bytes, dtype, sizes, strides, at, what)
  local view = Source.becomes[dtype] and view_of_others or parts_of[dtype] and view_of_pairs or core.view_as
  local ok, t = pcall(view, bytes, dtype, sizes, strides, at)
  if not ok then
    t = t:gsub("^.-:%d+: ", ""):gsub("^[%l_]+: ", ""):gsub("^view: ", "")
    t = t:gsub("from element 0", ("from byte %.0f"):format(at)) -- the view begins at byte `at`
    self:fail("%s: %s", what, t)
  end
  return t or nil
end

--- Fails unless elements of those sizes fill n bytes.
function Source:check_size(dtype, sizes, n, what)
  if self:numel(sizes, what) * Source.item_bytes[dtype] ~= n then
    self:malformed("file", "%s of shape [%s] and dtype %s does not match its %.0f bytes", what,
      table.concat(sizes, ", "), dtype, n)
  end
end

--- Returns dense elements that fill n bytes from `at` on, on the requested device.
function Source:tensor(dtype, sizes, at, n, what, layout)
  layout = layout or {}
  self:check_size(dtype, sizes, n, what)
  local bytes = self:bytes(at, n)
  if dtype == "bool" then self:check_bools(bytes, what) end
  if layout.swapped then bytes = Source.swapped(bytes, dtype) end
  return self:view(self:placed(bytes), dtype, sizes, Source.dense_strides(sizes, layout.fortran), 0, what)
    or self:fail("%s: %s", what, Source.TOO_LARGE)
end

return Source
