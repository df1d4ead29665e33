--- Torch7's .t7 files, binary (64-bit, little-endian) and ascii, as its File.lua writes them. Tensors and storages
--- become tensors; objects of any other class plain tables with their class's name under "__typename". Functions are
--- left out: nothing is run.
local core = require "luminary.core"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"
local ffi = require "ffi"

local torch7_file = {}

local kinds = {
  Double = "float64", Float = "float32", Half = "float16", Long = "int64", Int = "int32", Short = "int16",
  Char = "int8", Byte = "uint8", Cuda = "float32", CudaDouble = "float64", CudaHalf = "float16", CudaLong = "int64",
  CudaInt = "int32", CudaShort = "int16", CudaChar = "int8", CudaByte = "uint8",
}
local ctypes = {float64 = "double[?]", float32 = "float[?]", int64 = "int64_t[?]", int32 = "int32_t[?]",
  int16 = "int16_t[?]"}
local DEEPEST = 1000 -- objects within objects
torch7_file.DEEPEST = DEEPEST

-- ---- numbers and texts, as either kind of file has them

local Binary = {}
Binary.__index = Binary

function Binary:int() return self.cursor:signed(4) end
function Binary:long() return tonumber(self.cursor:int64()) end
function Binary:double() return self.cursor:float(8) end

function Binary:text()
  local n = self:int()
  if n < 0 then self.source:malformed("Torch7 file", "a string of %d bytes", n) end
  return self.cursor:take(n)
end

-- uint8 of n elements of a dtype.
function Binary:elements(dtype, n)
  local at, bytes = self.cursor.at, n * Source.item_bytes[dtype]
  self.source:check(at, bytes)
  self.cursor.at = at + bytes
  self.cursor.piece, self.cursor.from = "", self.cursor.at
  return self.source:bytes(at, bytes)
end

local Ascii = {}
Ascii.__index = Ascii

-- What stands between white space; the newline behind it is read too.
function Ascii:word()
  local c, out = " ", {}
  while c:find "%s" do c = self.cursor:take(1) end
  while not c:find "%s" do
    out[#out + 1] = c
    if #out > 64 then self.source:malformed("Torch7 file", "expected a number, got '%s…'", table.concat(out)) end
    c = self.cursor:take(1)
  end
  return table.concat(out)
end

local function digits_of(self, word)
  local digits = word:match "^%-?%d+$"
  return digits and #digits <= 20 and digits or self.source:malformed("Torch7 file", "expected an integer, got '%s'",
    word)
end

function Ascii:int() return tonumber(digits_of(self, self:word())) end
Ascii.long = Ascii.int

function Ascii:double()
  local word = self:word():lower()
  if word:find "nan" then return 0 / 0 end
  return tonumber(word) or self.source:malformed("Torch7 file", "expected a number, got '%s'", word)
end

function Ascii:text()
  local n = self:int()
  if n < 0 then self.source:malformed("Torch7 file", "a string of %d bytes", n) end
  local text = self.cursor:take(n)
  self.cursor:take(1)
  return text
end

function Ascii:elements(dtype, n)
  self.source:check(self.cursor.at, n) -- each takes a byte or more
  if Source.item_bytes[dtype] == 1 then
    local text = self.cursor:take(n)
    self.cursor:take(1)
    return core.bytes_tensor(text)
  end
  if not ctypes[dtype] then self.source:fail("a storage of %s in ASCII format is not supported", dtype) end
  local array = ffi.new(ctypes[dtype], n)
  for i = 0, n - 1 do
    if dtype == "int64" then
      local value, digits = ffi.new("int64_t", 0), digits_of(self, self:word())
      for digit in digits:gmatch "%d" do value = value * 10 - tonumber(digit) end
      array[i] = digits:sub(1, 1) == "-" and value or -value
    else
      array[i] = self:double()
    end
  end
  if n == 0 then self.cursor:take(1) end
  return core.bytes_tensor(ffi.string(array, n * Source.item_bytes[dtype]))
end

-- ---- objects

local Reader = {}
local read_object

local function natural(self, what)
  local n = self.file:long()
  if not (n >= 0 and n <= 2 ^ 50) then self.source:malformed("Torch7 file", "%s of %.0f", what, n) end
  return n
end

local function read_storage(self, dtype)
  local n = natural(self, "a storage")
  return {dtype = dtype, n = n, bytes = self.source:placed(self.file:elements(dtype, n))}
end

local function read_tensor(self, dtype, depth)
  local ndim, sizes, strides = self.file:int(), {}, {}
  if ndim < 0 or ndim > 8 then
    self.source:malformed("Torch7 file", "a tensor of %.0f dims, at most 8 are allowed", ndim)
  end
  for d = 1, ndim do sizes[d] = natural(self, "a size") end
  for d = 1, ndim do strides[d] = natural(self, "a stride") end
  local offset = natural(self, "an offset")
  local storage = read_object(self, depth + 1, true)
  local what = ("a %s tensor"):format(dtype)
  self.source:numel(sizes, what)
  if storage == nil or ndim == 0 then -- Torch7 knows no dims as no elements
    return self.source:view(self.source:placed(core.bytes_tensor ""), dtype, {0}, {1}, 0, what)
  end
  if type(storage) ~= "table" or storage.dtype ~= dtype then
    self.source:malformed("Torch7 file", "%s without its storage", what)
  end
  if offset < 1 then self.source:malformed("Torch7 file", "%s starts at element 0; elements start at 1", what) end
  return self.source:view(storage.bytes, dtype, sizes, strides, (offset - 1) * Source.item_bytes[dtype], what)
end

local function read_table(self, t, depth)
  local n = self.file:int()
  if n < 0 then self.source:malformed("Torch7 file", "a table of %.0f entries", n) end
  for _ = 1, n do
    local key = read_object(self, depth + 1)
    local value = read_object(self, depth + 1)
    if key == nil or key ~= key then self.source:malformed("Torch7 file", "a table key is nil or NaN") end
    t[key] = value
  end
  return t
end

local function read_class(self, index, depth)
  local name = self.file:text()
  if name:find "^V %d+$" then name = self.file:text() end -- before version 1 the name came first
  local element, shape = name:match "^torch%.(%w-)(%u%l+)$"
  local dtype = kinds[element]
  if dtype and shape == "Storage" then
    self.made[index] = read_storage(self, dtype)
  elseif dtype and shape == "Tensor" then
    self.made[index] = read_tensor(self, dtype, depth)
  elseif name:find "^tds%." or name:find "^torch%." then
    self.source:fail("it has an object of class %s, which is not supported", printable_name(name, 100))
  else
    local object = {__typename = name}
    self.made[index] = object
    local fields = read_object(self, depth + 1)
    if type(fields) ~= "table" or fields.bytes and fields.dtype then
      self.source:malformed("Torch7 file", "an object of class %s without fields", printable_name(name, 100))
    end
    for key, value in pairs(fields) do
      self.file.cursor:copies(1)
      object[key] = value
    end
    object.__typename = name
  end
  return self.made[index]
end

local function read_function(self, kind, depth)
  local index
  if kind ~= 6 then
    index = self.file:int()
    if self.seen[index] then return nil end
    self.seen[index] = true
  end
  local n = self.file:int()
  if n < 0 then self.source:malformed("Torch7 file", "a function of %d bytes", n) end
  self.file.cursor:take(n)
  if self.file.ascii then self.file.cursor:take(1) end
  read_object(self, depth + 1) -- its upvalues
  return nil
end

-- A storage is {dtype, n, bytes} where a tensor wants it, else a tensor.
function Reader.read(self, depth, as_storage)
  if depth > DEEPEST then self.source:malformed("Torch7 file", "objects are nested too deeply") end
  local kind = self.file:int()
  if kind == 0 then return nil end
  if kind == 1 then return self.file:double() end
  if kind == 2 then return self.file:text() end
  if kind == 5 then return self.file:int() ~= 0 end
  if kind >= 6 and kind <= 8 then return read_function(self, kind, depth) end
  if kind ~= 3 and kind ~= 4 then self.source:malformed("Torch7 file", "unknown kind of object %.0f", kind) end
  local index = self.file:int()
  local value = self.made[index]
  if value == nil then
    if kind == 3 then
      self.made[index] = {}
      value = read_table(self, self.made[index], depth)
    else
      value = read_class(self, index, depth)
    end
  end
  if type(value) == "table" and value.bytes and value.dtype and not as_storage then
    value.tensor = value.tensor or self.source:view(value.bytes, value.dtype, {value.n}, {1}, 0, "a storage")
    return value.tensor
  end
  return value
end
read_object = Reader.read

--- The first object of the file.
function torch7_file.load(source)
  local ascii = source:text(0, math.min(source.size, 2)):find "^%d%s" ~= nil
  local file = setmetatable({source = source, cursor = source:cursor(0), ascii = ascii}, ascii and Ascii or Binary)
  return read_object({source = source, file = file, made = {}, seen = {}}, 1)
end

return torch7_file
