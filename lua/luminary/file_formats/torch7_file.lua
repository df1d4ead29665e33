--- Reads Torch7's .t7 files, binary (64-bit, little-endian) and ascii, as its File.lua writes them. Tensors and
--- storages become tensors; an object becomes a table of its fields with its class in "__typename". Functions are
--- skipped, and no code runs. A package may convert these parts differently: torch7_file.reader.
local core = require "luminary.core"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"
local ffi = require "ffi"

local DEEPEST = 1000 -- levels of nested objects
local LONGEST_NUMBER = 64 -- characters

local torch7_file = {DEEPEST = DEEPEST}

--- Maps the types of torch.DoubleTensor, torch.DoubleStorage and others to dtypes; CUDA's are the same in files.
torch7_file.dtypes = {
  Double = "float64", Float = "float32", Half = "float16", Long = "int64", Int = "int32", Short = "int16",
  Char = "int8", Byte = "uint8",
}

--- Maps dtypes to C's element types.
torch7_file.ctypes = {
  float64 = "double", float32 = "float", float16 = "uint16_t", int64 = "int64_t", int32 = "int32_t", int16 = "int16_t",
  int8 = "int8_t", uint8 = "uint8_t",
}

-- ---- numbers and texts in either kind of file

local Binary, Ascii = {}, {}
Binary.__index, Ascii.__index = Binary, Ascii

local function malformed(self, ...) self.cursor.source:malformed("Torch7 file", ...) end

-- Returns the size of a text or a table; `what` is its name in the error.
local function size_of(self, what)
  local n = self:int()
  if n < 0 then malformed(self, what, n) end
  return n
end

local int = ffi.new "int32_t[1]"

function Binary:int()
  ffi.copy(int, self.cursor:take(4), 4)
  return int[0]
end

function Binary:double() return self.cursor:float(8) end

function Binary:long() return tonumber(self.cursor:int64()) end
function Binary:text() return self.cursor:take(size_of(self, "a string of %.0f bytes")) end

-- Returns n elements of a dtype as uint8 bytes.
function Binary:elements(dtype, n)
  local cursor = self.cursor
  local at, bytes = cursor.at, n * Source.item_bytes[dtype]
  cursor.source:check(at, bytes)
  cursor:seek(at + bytes)
  return cursor.source:bytes(at, bytes)
end

-- Returns the byte after a value. A complete file ends with a newline; others may end with a value (`unfinished`).
local function behind(self)
  local cursor = self.cursor
  return self.unfinished and cursor.at == cursor.source.size and "\n" or cursor:take(1)
end

-- Returns the word up to white space, and skips one newline or blank after it.
function Ascii:word()
  local cursor = self.cursor
  repeat
    cursor.source:check(cursor.at, 1)
    local blank, before = cursor:look(1)
    local first = blank:find("%S", before + 1)
    cursor.at = cursor.from + (first and first - 1 or #blank)
  until first
  local piece, start = cursor:look(LONGEST_NUMBER + 1)
  local word = piece:match("^%S+", start + 1)
  if #word > LONGEST_NUMBER then malformed(self, "expected a number, got '%s…'", word:sub(1, LONGEST_NUMBER)) end
  cursor.at = cursor.at + #word
  behind(self)
  return word
end

function Ascii:int()
  local word = self:word()
  local value = word:find "^%-?%d+$" and #word <= 20 and tonumber(word)
  return value or malformed(self, "expected an integer, got '%s'", word)
end
Ascii.long = Ascii.int

function Ascii:double()
  local word = self:word():lower()
  if word:find "nan" then return 0 / 0 end
  return tonumber(word) or malformed(self, "expected a number, got '%s'", word)
end

-- Returns n bytes, and skips a newline after them.
local function take_line(self, n)
  local text = self.cursor:take(n)
  if behind(self) ~= "\n" then self.cursor.at = self.cursor.at - 1 end
  return text
end

function Ascii:text() return take_line(self, size_of(self, "a string of %.0f bytes")) end

function Ascii:elements(dtype, n)
  self.cursor.source:check(self.cursor.at, n) -- each element takes a byte or more
  if Source.item_bytes[dtype] == 1 then return core.bytes_tensor(take_line(self, n)) end
  local read = dtype == "float16" and "float32" or dtype
  local array = ffi.new(torch7_file.ctypes[read] .. "[?]", n)
  for i = 0, n - 1 do
    if dtype == "int64" then
      local word = self:word()
      array[i] = Source.decimal(word) or malformed(self, "expected an integer, got '%s'", word)
    else
      array[i] = self:double()
    end
  end
  if n == 0 then take_line(self, 0) end
  local bytes = core.bytes_tensor(ffi.string(array, n * Source.item_bytes[read]))
  if read == dtype or n == 0 then return bytes end
  local narrow = core.view_as(bytes, read, {n}, {1}, 0):to(dtype)
  return core.bytes_tensor(ffi.string(narrow:data_ptr(), n * Source.item_bytes[dtype]))
end

-- ---- objects

local Reader = {}
Reader.__index = Reader
local Storage = {} -- the metatable of {dtype, n, bytes}, of which tensors are views; `value` is its form in the result

local function natural(self, what)
  local n = self.numbers:long()
  if not (n >= 0 and n <= 2 ^ 50) then malformed(self, "%s of %.0f", what, n) end
  return n
end

local function read_storage(self, dtype, on_gpu)
  local n = natural(self, "a storage")
  local bytes = self.cursor.source:placed(self.numbers:elements(dtype, n))
  if on_gpu and self.make.on_gpu then bytes = self.make.on_gpu(bytes) end
  return setmetatable({dtype = dtype, n = n, bytes = bytes}, Storage)
end

local function read_tensor(self, dtype, depth)
  local source, ndim, sizes, strides = self.cursor.source, self.numbers:int(), {}, {}
  if ndim < 0 or ndim > 8 then malformed(self, "a tensor of %.0f dims, at most 8 are allowed", ndim) end
  for d = 1, ndim do sizes[d] = natural(self, "a size") end
  for d = 1, ndim do strides[d] = natural(self, "a stride") end
  local offset = natural(self, "an offset")
  local storage = self:read(depth + 1, true)
  local what = ("a %s tensor"):format(dtype)
  source:numel(sizes, what)
  if storage == nil or ndim == 0 then -- in Torch7, no dims means no elements
    return source:view(source:placed(core.bytes_tensor ""), dtype, {0}, {1}, 0, what)
  end
  if getmetatable(storage) ~= Storage or storage.dtype ~= dtype then malformed(self, "%s without its storage", what) end
  if offset < 1 then malformed(self, "%s starts at element 0; elements start at 1", what) end
  return source:view(storage.bytes, dtype, sizes, strides, (offset - 1) * Source.item_bytes[dtype], what)
end

local function read_table(self, t, depth)
  for _ = 1, size_of(self.numbers, "a table of %.0f entries") do
    local key = self:read(depth + 1)
    local value = self:read(depth + 1)
    if key == nil or key ~= key then malformed(self, "a table key is nil or NaN") end
    t[key] = value
  end
end

--- Returns the fields of an object of class `name`, which are the next value; `depth` is the object's depth.
function Reader:fields(name, depth)
  local fields, n = self:read(depth + 1), 0
  if type(fields) ~= "table" then malformed(self, "an object of class %s without fields", printable_name(name, 100)) end
  for _ in pairs(fields) do n = n + 1 end
  self.cursor:copies(n)
  return fields
end

local function read_class(self, index, depth)
  local name = self.numbers:text()
  if name:find "^V %d+$" then name = self.numbers:text() end -- before version 1 the name was first
  local element, shape = name:match "^torch%.(%w-)(%u%l+)$"
  local dtype = torch7_file.dtypes[element == "Cuda" and "Float" or element and element:gsub("^Cuda", "")]
  local on_gpu = element and element:find "^Cuda" ~= nil
  if dtype and shape == "Storage" then
    self.made[index] = read_storage(self, dtype, on_gpu)
  elseif dtype and shape == "Tensor" then
    self.made[index] = self.make.tensor(read_tensor(self, dtype, depth), on_gpu)
  else
    self.make.object(self, index, name, depth)
  end
end

local function skip_function(self, kind, depth)
  self.make.on_function()
  if kind ~= 6 then
    local index = self.numbers:int()
    if self.seen[index] then return end
    self.seen[index] = true
  end
  self.numbers:text()
  self:read(depth + 1) -- skips its upvalues
end

--- Returns the next value. `depth`: number of objects around it; as_storage: the form that a tensor's storage needs.
function Reader:read(depth, as_storage)
  if depth > DEEPEST then malformed(self, "objects are nested too deeply") end
  local kind = self.numbers:int()
  if kind == 0 then return nil end
  if kind == 1 then return self.numbers:double() end
  if kind == 2 then return self.numbers:text() end
  if kind == 5 then return self.numbers:int() ~= 0 end
  if kind >= 6 and kind <= 8 then return skip_function(self, kind, depth) end
  if kind ~= 3 and kind ~= 4 then malformed(self, "unknown kind of object %.0f", kind) end
  local index = self.numbers:int()
  if self.made[index] == nil and kind == 4 then
    read_class(self, index, depth)
  elseif self.made[index] == nil then
    self.made[index] = {}
    read_table(self, self.made[index], depth)
  end
  local value = self.made[index]
  if as_storage or getmetatable(value) ~= Storage then return value end
  if value.value == nil then
    value.value = self.make.storage(self.cursor.source:view(value.bytes, value.dtype, {value.n}, {1}, 0, "a storage"))
  end
  return value.value
end

local function same(x) return x end

local plain = {tensor = same, storage = same, on_function = function() end}

function plain.object(reader, index, name, depth)
  if name:find "^tds%." or name:find "^torch%." then
    reader.cursor.source:fail("it has an object of class %s, which is not supported", printable_name(name, 100))
  end
  local object = {__typename = name}
  reader.made[index] = object
  for key, value in pairs(reader:fields(name, depth)) do object[key] = value end
  object.__typename = name
end

--- Returns a reader of numbers (int, long, double), texts and elements from a cursor over a binary or an ascii file,
--- which may be unfinished: end without a newline.
function torch7_file.numbers(cursor, ascii, unfinished)
  return setmetatable({cursor = cursor, unfinished = unfinished}, ascii and Ascii or Binary)
end

--- Returns a reader of values from a cursor: reader:read(1) is the next. `make` has functions that convert parts; by
--- default they are as in the head of this file: tensor(t, on_gpu) and storage(t), of a 1-d tensor; object(reader,
--- index, name, depth), which sets reader.made[index]; on_function(), for each function before it is skipped;
--- on_gpu(bytes), or nil, which returns those of a storage that was on a GPU.
function torch7_file.reader(cursor, ascii, make)
  return setmetatable({
    cursor = cursor, numbers = torch7_file.numbers(cursor, ascii), made = {}, seen = {}, make = make or plain,
  }, Reader)
end

--- Returns the first object of the file.
function torch7_file.load(source)
  local ascii = source:text(0, math.min(source.size, 2)):find "^%d%s" ~= nil
  return torch7_file.reader(source:cursor(0), ascii):read(1)
end

return torch7_file
