--- Torch7's files: torch.DiskFile, torch.MemoryFile, and objects in them, which torch.save, load, serialize and
--- deserialize write and read in Torch7's own format (.t7). Functions are neither written nor read, since their bytes
--- could make a process crash; tensors of the GPU come back as FloatTensors on the CPU. Each tensor is written with
--- memory of its own: those that shared it are apart after reading, except one tensor at several positions.
local core = require "luminary.core"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local storage = require "luminary.torch7.storage"
local Source = require "luminary.file_formats.source"
local torch7_file = require "luminary.file_formats.torch7_file"
local ffi = require "ffi"
local fail, ops = options.fail, core.ops

local File = {__typename = "torch.File"}
File.__index = File

local NIL, NUMBER, STRING, TABLE, OBJECT, BOOLEAN = 0, 1, 2, 3, 4, 5
local FUNCTIONS = {[6] = true, [7] = true, [8] = true}
local types = {Byte = {"uint8_t", "uint8"}, Char = {"int8_t", "int8"}, Short = {"int16_t", "int16"},
  Int = {"int32_t", "int32"}, Long = {"int64_t", "int64"}, Float = {"float", "float32"}, Double = {"double", "float64"},
  Half = {"uint16_t", "float16"}}

-- ---- bytes

local PIECE = 65536 -- bytes that are read at a time
local LARGEST = 2 ^ 30 -- bytes of a string
local LONGEST_NUMBER = 64 -- characters

-- An error's text without the place where it was raised.
local function without_place(why) return (tostring(why):gsub("^[^\n]-:%d+: ", "")) end

local function source_of(path)
  local ok, source = pcall(Source.open, path, {})
  if not ok then fail("torch.DiskFile: %s", (without_place(source):gsub("^%w+: ", ""))) end
  return source
end

--- torch.DiskFile(path [, mode = "r"]): "r", "w" or "rw"; in text (:ascii(), as at first) or :binary(). What is written
--- is held in memory until it is closed, and in "rw" what was there before, up to 1 GiB.
local function disk_file(path, mode)
  options.arg("torch.DiskFile", "path", path, "string")
  mode = mode or "r"
  local flags = ({r = "rb", w = "wb", rw = "r+b"})[mode]
  if not flags then fail("torch.DiskFile: mode must be 'r', 'w' or 'rw', got '%s'", tostring(mode)) end
  local source = mode ~= "w" and source_of(path) or nil
  local file = setmetatable({__typename = "torch.DiskFile", path = path, at = 0, text = true, seen = {}, made = {},
    mode = mode, data = "", piece = "", from = 0, source = source}, File)
  if mode == "r" then return file end
  if source then
    if source.size > LARGEST then
      fail("torch.DiskFile: '%s' has %.1f GiB; mode 'rw' supports up to 1 GiB, 'r' and 'w' any size", path,
        source.size / 2 ^ 30)
    end
    file.data, file.source = source:text(0, source.size), nil
    source:close()
  end
  local handle, why = io.open(path, flags)
  if not handle then fail("torch.DiskFile: %s", why) end
  handle:close()
  file.guard = newproxy(true) -- what a script does not close is kept when the collector comes, or at the end
  getmetatable(file.guard).__gc = function() pcall(File.close, file) end
  return file
end

--- torch.MemoryFile([storage or text] [, mode = "rw"])
local function memory_file(data, mode)
  if mode == nil and (data == "r" or data == "w" or data == "rw") then data, mode = nil, data end
  if storage.is(data) then data = data:string():gsub("%z$", "") end
  return setmetatable({__typename = "torch.MemoryFile", at = 0, text = true, seen = {}, made = {}, mode = mode or "rw",
    data = data or ""}, File)
end

-- What was written stands in a list until it is read or kept.
local function settle(self)
  if not self.parts then return end
  local text = table.concat(self.parts)
  self.data = self.data:sub(1, self.from) .. text .. self.data:sub(self.from + #text + 1)
  self.parts = nil
end

local function write(self, text)
  if self.mode == "r" then fail("%s: the file was opened for reading", self.__typename) end
  if self.closed then fail("%s: it is closed", self.__typename) end
  if not self.parts then self.parts, self.from = {}, self.at end
  self.parts[#self.parts + 1] = text
  self.at = self.at + #text
end

local function size_of(self)
  settle(self)
  return self.source and self.source.size or #self.data
end

-- A text, and the place in it behind which the file continues, by n bytes or all that are left.
local function ahead(self, n)
  if not self.source then
    settle(self)
    return self.data, self.at
  end
  if self.closed then fail("%s: it is closed", self.__typename) end
  local left, start = self.source.size - self.at, self.at - self.from
  n = math.min(n, left)
  if start < 0 or start + n > #self.piece then
    self.piece, self.from, start = self.source:text(self.at, math.min(math.max(n, PIECE), left)), self.at, 0
  end
  return self.piece, start
end

local function check_left(self, n)
  if not (n >= 0 and n % 1 == 0 and self.at + n <= size_of(self)) then -- a text may say 2.5, or nan
    fail("%s: cannot read %.14g bytes at byte %.0f of %.0f", self.__typename, n, self.at, size_of(self))
  end
end

local function read(self, n)
  check_left(self, n)
  if n > LARGEST then
    fail("%s: %.0f bytes do not fit in a string; readChar(n) reads them", self.__typename, n)
  end
  local text, start = ahead(self, n)
  self.at = self.at + n
  return text:sub(start + 1, start + n)
end

-- In text, the end of line that may stand behind a value.
local function skip_newline(self)
  local text, start = ahead(self, 1)
  if text:sub(start + 1, start + 1) == "\n" then self.at = self.at + 1 end
end

-- In text, the next number and one end of line behind it.
local function read_number(self)
  local text, start, first
  repeat
    text, start = ahead(self, 1)
    first = text:find("%S", start + 1)
    self.at = self.at + (first or #text + 1) - start - 1
  until first or self.at >= size_of(self)
  text, start = ahead(self, LONGEST_NUMBER + 1)
  local word = text:match("^%S+", start + 1)
  if not word then fail("%s: end of file at byte %.0f of %.0f", self.__typename, self.at, size_of(self)) end
  if #word > LONGEST_NUMBER then
    fail("%s: '%s…' is not a number", self.__typename, printable_name(word:sub(1, LONGEST_NUMBER)))
  end
  self.at = self.at + #word
  skip_newline(self)
  return tonumber(word) or fail("%s: '%s' is not a number", self.__typename, printable_name(word))
end

-- The next n elements, each of `size` bytes, in a tensor.
local function read_elements(self, dtype, n, size)
  check_left(self, n * size)
  local flat
  if n == 0 then return ops.empty({0}, {dtype = dtype}) end
  if self.source then
    ahead(self, 1)
    flat = core.view_as(self.source:bytes(self.at, n * size), dtype, {n}, {1}, 0)
    self.at = self.at + n * size
  else
    flat = ops.empty({n}, {dtype = dtype})
    ffi.copy(flat:data_ptr(), read(self, n * size), n * size)
  end
  return flat
end

function File:ascii()
  self.text = true
  return self
end
function File:binary()
  self.text = false
  return self
end
function File:position() return self.at + 1 end
function File:seek(at)
  at = options.arg("seek", "position", at, "count")
  if at - 1 > size_of(self) then
    fail("%s: position %.0f is out of range for %.0f bytes", self.__typename, at, size_of(self))
  end
  settle(self)
  self.at = at - 1
end
function File:seekEnd() self.at = size_of(self) end
function File:synchronize()
  settle(self)
  if self.mode == "r" or not self.path then return self end
  local handle, why = io.open(self.path, "wb")
  if not handle then fail("torch.DiskFile: %s", why) end
  handle:write(self.data)
  handle:close()
  return self
end
function File:close()
  if not self.closed then self:synchronize() end
  if self.source and not self.closed then self.source:close() end
  self.closed = true
end
function File:isOpened() return not self.closed end
--- The bytes, as a CharStorage.
function File:storage()
  if not self.source then
    settle(self)
    return storage.new("int8"):string(self.data)
  end
  local at = self.at
  self.at = 0
  local bytes = read_elements(self, "int8", size_of(self), 1)
  self.at = at
  return storage.of(bytes)
end
for _, name in ipairs {"quiet", "pedantic", "autoSpacing", "noAutoSpacing", "longSize", "clearError"} do
  File[name] = function(self) return self end
end
function File:hasError() return false end -- luacheck: ignore self

function File:writeString(text) write(self, options.arg("writeString", "text", text, "string")) end
--- "*l": a line; "*a": all that follows.
function File:readString(what)
  local left, n = size_of(self) - self.at, 256
  if what == "*a" then return read(self, left) end
  while true do
    local text, start = ahead(self, n)
    local stop = text:find("\n", start + 1, true)
    if stop or #text - start >= left then
      self.at = self.at + (stop or #text) - start
      return text:sub(start + 1, (stop or 0) - 1)
    end
    n = n * 2
  end
end

for name, row in pairs(types) do
  local c_type, dtype = row[1], row[2]
  local size = ffi.sizeof(c_type)
  local one = ffi.typeof(c_type .. "[1]")
  --- file:writeName(number or storage), file:readName([n]): a number, or n as a storage.
  File["write" .. name] = function(self, v)
    if storage.is(v) then
      local flat = storage.flat(v):to("cpu", dtype):contiguous()
      local bytes = flat:numel() > 0 and ffi.string(flat:data_ptr(), flat:numel() * size) or ""
      if not self.text then return write(self, bytes) end
      if name == "Char" or name == "Byte" then return write(self, bytes .. "\n") end
      local values = flat:totable()
      for i, each in ipairs(values) do
        values[i] = type(each) == "number" and ("%.17g"):format(each) or tostring(each):gsub("LL", "")
      end
      return write(self, table.concat(values, " ") .. "\n")
    end
    options.arg("write" .. name, "value", v, "number")
    write(self, self.text and ("%.17g\n"):format(v) or ffi.string(one(v), size))
  end
  File["read" .. name] = function(self, n)
    if n == nil then
      if self.text then return read_number(self) end
      return tonumber(ffi.cast("const " .. c_type .. " *", read(self, size))[0])
    end
    n = options.arg("read" .. name, "n", n, "natural")
    if self.text and name ~= "Char" and name ~= "Byte" then
      local values = {}
      for i = 1, n do values[i] = read_number(self) end
      return storage.new(dtype, values)
    end
    local flat = read_elements(self, dtype, n, size)
    if self.text then skip_newline(self) end
    return storage.of(flat)
  end
end

-- ---- objects

-- f(self, v), which may come here again for what is within v.
local function deeper(self, who, f, v)
  local depth = self.depth or 0
  if depth >= torch7_file.DEEPEST then
    fail("%s: tables and objects must not be nested deeper than %d", who, torch7_file.DEEPEST)
  end
  self.depth = depth + 1
  local ok, result = pcall(f, self, v)
  self.depth = depth
  if not ok then error(result, 0) end
  return result
end

local function write_text(self, text)
  self:writeInt(#text)
  write(self, self.text and text .. "\n" or text)
end
local function read_text(self)
  local text = read(self, self:readInt())
  if self.text then skip_newline(self) end
  return text
end

-- What a module computes with here, and what was computed last, is made again.
local transient = {inner = true, taped = true, value = true, inputs = true}
local function fields_of(object)
  local fields = {}
  for k, v in pairs(object) do
    if not transient[k] then fields[k] = v end
  end
  return fields
end

local function write_tensor(self, object)
  local x = tensor.raw(object):to "cpu"
  if x.dtype == "bfloat16" then x = x:to "float32" end
  local n = x:numel() > 0 and x.ndim or 0
  self:writeInt(n)
  self:writeLong(storage.new("int64", n > 0 and x.shape or {}))
  self:writeLong(storage.new("int64", n > 0 and x:contiguous():stride() or {}))
  self:writeLong(1)
  self:writeObject(n > 0 and storage.of(x:contiguous():view {-1}) or nil)
end

local function kind_of(name, what) return name:match("^torch%.(%a+)" .. what .. "$") end

local function write_inner(self, v)
  local name = class.typename(v)
  if name == "torch.LongStorage" and type(v) == "table" then v = storage.new("int64", v) end
  self:writeInt(name and OBJECT or TABLE)
  local seen = self.seen[v]
  if seen then return self:writeInt(seen) end
  self.count = (self.count or 0) + 1
  self.seen[v] = self.count
  self:writeInt(self.count)
  if not name then
    local n = 0
    for _ in pairs(v) do n = n + 1 end
    self:writeInt(n)
    for k, each in pairs(v) do
      self:writeObject(k)
      self:writeObject(each)
    end
    return
  end
  write_text(self, "V 1")
  write_text(self, (name:gsub("Cuda", "Float")))
  if tensor.is(v) then return write_tensor(self, v) end
  if storage.is(v) then
    self:writeLong(#v)
    return self["write" .. kind_of(name:gsub("Cuda", "Float"), "Storage")](self, v)
  end
  if v.write then return v:write(self) end
  self:writeObject(fields_of(v))
end

--- Any value but a function: a number, a string, a boolean, nil, a table, a tensor, a storage, an object of a class.
function File:writeObject(v)
  local kind = type(v)
  if v == nil then return self:writeInt(NIL) end
  if kind == "number" then
    self:writeInt(NUMBER)
    return self:writeDouble(v)
  elseif kind == "boolean" then
    self:writeInt(BOOLEAN)
    return self:writeInt(v and 1 or 0)
  elseif kind == "string" then
    self:writeInt(STRING)
    return write_text(self, v)
  end
  if kind ~= "table" and not class.typename(v) then
    fail("torch.save: %s cannot be written", options.describe(v))
  end
  return deeper(self, "torch.save", write_inner, v)
end

local function read_tensor(self, dtype)
  local n = self:readInt()
  local sizes, strides = self:readLong(n):totable(), self:readLong(n):totable()
  local offset = self:readLong()
  local memory = self:readObject()
  if n == 0 or memory == nil then return tensor.new(dtype) end
  if not storage.is(memory) then fail("torch.load: a tensor has no storage") end
  return tensor.wrap(storage.view(memory, offset, sizes, strides))
end

-- Takes the file's next value, a table, as an object's fields. One table may be those of many objects: what is copied
-- is at most the number of bytes in the file.
local function read_fields(object, file)
  local fields = file:readObject()
  if type(fields) ~= "table" then fail("torch.load: '%s' has no table of fields", class.typename(object)) end
  for k, v in pairs(fields) do
    file.copies = (file.copies or 0) + 1
    if file.copies > size_of(file) then fail "torch.load: it repeats its parts until they are larger than itself" end
    rawset(object, k, v)
  end
end

local function read_named(self, at, name)
  local kind = kind_of(name, "Tensor") or kind_of(name, "Storage")
  if kind then
    if kind == "Cuda" then kind = "Float" end
    kind = kind:gsub("^Cuda", "")
    if not types[kind] then fail("torch.load: unknown type '%s'", printable_name(name, 100)) end
    local value
    if name:find "Tensor$" then
      value = read_tensor(self, types[kind][2])
    else
      value = self["read" .. kind](self, self:readLong())
    end
    self.made[at] = value
    return value
  end
  local methods = class.by_name[name] or fail("torch.load: luminary.torch7 has no class '%s'",
    printable_name(name, 100))
  local object = setmetatable({}, methods)
  self.made[at] = object
  local ok, why = pcall(object.read or read_fields, object, self)
  if not ok then
    why = tostring(why)
    if why:find("torch.load: ", 1, true) then error(why, 0) end
    fail("torch.load: cannot create an object of class %s: %s", printable_name(name, 100), without_place(why))
  end
  return object
end

local function read_inner(self, kind)
  local at = self:readInt()
  if self.made[at] ~= nil then return self.made[at] end
  if kind == OBJECT then
    local version = read_text(self)
    return read_named(self, at, version:match "^V %d+$" and read_text(self) or version)
  end
  local t, n = {}, self:readInt()
  if n < 0 or n ~= n then fail("torch.load: malformed file: a table with %.0f entries", n) end
  self.made[at] = t
  for _ = 1, n do
    local key = self:readObject()
    if key == nil or key ~= key then fail("torch.load: malformed file: a table key is nil or NaN") end
    t[key] = self:readObject()
  end
  return t
end

--- The next value.
function File:readObject()
  local kind = self:readInt()
  if kind == NIL then return nil end
  if kind == NUMBER then return self:readDouble() end
  if kind == BOOLEAN then return self:readInt() == 1 end
  if kind == STRING then return read_text(self) end
  if FUNCTIONS[kind] then fail("torch.load: functions are not supported, since their bytes could crash the process") end
  if kind ~= TABLE and kind ~= OBJECT then fail("torch.load: not a .t7 file: unknown kind of value %d", kind) end
  return deeper(self, "torch.load", read_inner, kind)
end

-- ---- torch.save and the like

local function formatted(file, format)
  format = format or "binary"
  if format ~= "ascii" and format ~= "binary" and format ~= "b32" and format ~= "b64" then
    fail("torch: format must be 'binary' or 'ascii', got '%s'", tostring(format))
  end
  return format == "ascii" and file:ascii() or file:binary()
end

local files = {File = File, DiskFile = disk_file, MemoryFile = memory_file, fields_of = fields_of,
  read_fields = read_fields, size_of = size_of}

--- torch.save(path, value [, format = "binary"]): in Torch7's format; "ascii" for text.
function files.save(path, value, format)
  local file = formatted(disk_file(path, "w"), format)
  file:writeObject(value)
  file:close()
end
--- torch.load(path [, format = "binary"])
function files.load(path, format)
  local file = formatted(disk_file(path, "r"), format)
  local ok, value = pcall(file.readObject, file)
  file:close()
  if not ok then fail("torch.load: '%s': %s", path, (without_place(value):gsub("^torch%.load: ", ""))) end
  return value
end
--- torch.serialize(value [, format]): the same as a string; torch.deserialize(text [, format]): the value.
function files.serialize(value, format)
  local file = formatted(memory_file(), format)
  file:writeObject(value)
  settle(file)
  return file.data
end
function files.deserialize(text, format)
  if storage.is(text) then text = text:string() end
  return formatted(memory_file(options.arg("torch.deserialize", "text", text, "string"), "r"), format):readObject()
end

return files
