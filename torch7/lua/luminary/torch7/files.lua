--- Implements Torch7's files: torch.DiskFile, torch.MemoryFile, and objects in them, which torch.save, load, serialize
--- and deserialize write and read in Torch7's own format (.t7). Luminary's reader of .t7 files reads them, and makes
--- Torch7's tensors and objects. Functions are neither written nor read, since their bytes could make a process crash.
--- A GPU's tensors are read as FloatTensors and so on where there is no GPU. A tensor is written with all of its
--- storage, once for all tensors that share it, as in Torch7.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local paths = require "luminary.paths"
local printable_name = require "luminary.base.printable_name"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local storage = require "luminary.torch7.storage"
local Source = require "luminary.file_formats.source"
local torch7_file = require "luminary.file_formats.torch7_file"
local ffi = require "ffi"
local fail, without_position = options.fail, options.without_position

local File = {__typename = "torch.File"}
File.__index = File

local NIL, NUMBER, STRING, TABLE, OBJECT, BOOLEAN = 0, 1, 2, 3, 4, 5

-- ---- bytes

local LARGEST = 2 ^ 30 -- bytes of a string

-- Returns a file as a source; nil if may_lack is true and there is none.
local function source_of(path, may_lack)
  local ok, source = pcall(Source.open, path, {})
  if not ok and may_lack and source:find("No such file", 1, true) then return nil end
  if not ok then fail("torch.DiskFile: %s", (without_position(source):gsub("^%w+: ", ""))) end
  return source
end

-- Returns a text in memory as a source, whose reads are copies.
local function source_over(name, data)
  return setmetatable({
    path = name, from = 0, size = #data, opts = {},
    text = function(self, at, n)
      self:check(at, n)
      return data:sub(at + 1, at + n)
    end,
    bytes = function(self, at, n) return core.bytes_tensor(self:text(at, n)) end,
  }, Source)
end

local function take_fields(object, file)
  for k, v in pairs(file.reader:fields(class.typename(object), file.depth)) do rawset(object, k, v) end
end

-- Returns the reader's constructors for a file's parts: Torch7's tensors, storages, and objects by their `read`.
local function make_for(file)
  local make = {storage = storage.of}
  if core.device_count "cuda" > 0 then function make.on_gpu(x) return x:to "cuda" end end
  function make.tensor(x, was_on_gpu) -- whose storage is where it shall be, except of no elements
    return tensor.wrap(was_on_gpu and make.on_gpu and not x.is_cuda and make.on_gpu(x) or x)
  end
  function make.on_function()
    fail("torch.load: functions are not supported, since their bytes could crash the process")
  end
  function make.object(reader, index, name, depth)
    local methods = class.by_name[name] or fail("torch.load: luminary.torch7 has no class '%s'",
      printable_name(name, 100))
    local object, outer = setmetatable({}, methods), file.depth
    reader.made[index], file.depth = object, depth
    local ok, why = pcall(object.read or take_fields, object, file)
    file.depth = outer
    if ok then return end
    local of_file = reader.cursor.source:why(why) ~= tostring(why)
    if of_file or tostring(why):find("torch.load: ", 1, true) then error(why, 0) end
    fail("torch.load: cannot create an object of class %s: %s", printable_name(name, 100), without_position(why))
  end
  return make
end

-- Returns a file in text format, at its start. seen: numbers of the objects written; depth: nesting depth of objects.
local function new_file(kind, mode, source, data)
  local file = setmetatable({
    __typename = kind, mode = mode, data = data, seen = {}, kept = {}, count = 0, depth = 0, written_depth = 0,
    cursor = source:cursor(0),
  }, File)
  file.reader = torch7_file.reader(file.cursor, true, make_for(file))
  return file:ascii()
end

--- torch.DiskFile(path [, mode = "r" [, quiet]]): Opens a file for "r", "w" or "rw"; in text (:ascii(), the default) or
--- :binary(); returns nil if it cannot and quiet is true. Written data is held in memory until it is closed, in "rw"
--- with the earlier content, up to 1 GiB.
local function disk_file(path, mode, quiet)
  if quiet then
    local ok, file = pcall(disk_file, path, mode)
    return ok and file:quiet() or nil
  end
  options.arg("torch.DiskFile", "path", path, "string")
  mode = options.arg("torch.DiskFile", "mode", mode or "r", {"r", "w", "rw"})
  local source, data = mode ~= "w" and source_of(path, mode == "rw") or nil, ""
  if mode == "r" then return new_file("torch.DiskFile", mode, source) end
  if source then
    if source.size > LARGEST then
      fail("torch.DiskFile: '%s' has %.1f GiB; mode 'rw' supports up to 1 GiB, 'r' and 'w' any size", path,
        source.size / 2 ^ 30)
    end
    data = source:text(0, source.size)
    source:close()
  end
  core.growing_file_close(core.growing_file_open(path, true)) -- checks that it can be written; keeps its content
  local file = new_file("torch.DiskFile", mode, source_over(path, data), data)
  file.path = path
  file.guard = newproxy(true) -- its collection, or the exit, closes a file left open
  getmetatable(file.guard).__gc = function()
    local ok, why = pcall(File.close, file)
    if not ok then core.warn(without_position(why)) end
  end
  return file
end

--- torch.MemoryFile([storage or text] [, mode = "rw"]): Opens a file in memory. The last element of a CharStorage must
--- be 0, which does not count, as that of file:storage().
local function memory_file(data, mode)
  if mode == nil and (data == "r" or data == "w" or data == "rw") then data, mode = nil, data end
  if storage.is(data) then
    data = data:string()
    if data:sub(-1) ~= "\0" then fail("torch.MemoryFile: the last element of a storage must be 0") end
    data = data:sub(1, -2)
  end
  options.arg("torch.MemoryFile", "data", data or "", "string")
  return new_file("torch.MemoryFile", mode or "rw", source_over("torch.MemoryFile", data or ""), data or "")
end

--- torch.PipeFile(command [, mode = "r"]): Reads the output of a command of the shell, or with "w" writes its input, at
--- synchronize and close.
local function pipe_file(command, mode)
  options.arg("torch.PipeFile", "command", command, "string")
  if mode ~= "w" then
    local pipe = io.popen(command)
    local text = pipe:read "*a"
    pipe:close()
    return new_file("torch.PipeFile", "r", source_over(command, text))
  end
  -- cat takes text that the command does not read, since writing to a closed pipe would end this process by a signal.
  local pipe = io.popen(("{ %s\n}; cat >/dev/null"):format(command), "w")
  local file = new_file("torch.PipeFile", "w", source_over(command, ""), "")
  function file:synchronize()
    pipe:write(table.concat(self.parts or {}))
    pipe:flush()
    self.parts, self.cursor.at = nil, 0
    return self
  end
  function file:close()
    self:synchronize()
    pipe:close()
    self.closed = true
  end
  return file
end

-- Merges the list of written texts into the file's data, before reading or saving.
local function settle(self)
  if not self.parts then return end
  local text = table.concat(self.parts)
  self.data = self.data:sub(1, self.from) .. text .. self.data:sub(self.from + #text + 1)
  self.parts = nil
  self.cursor.source = source_over(self.cursor.source.path, self.data)
  self.cursor:seek(self.cursor.at)
end

local function write(self, text)
  if self.mode == "r" then fail("%s: the file was opened for reading", self.__typename) end
  if self.closed then fail("%s: it is closed", self.__typename) end
  if not self.parts then self.parts, self.from = {}, self.cursor.at end
  self.parts[#self.parts + 1] = text
  self.cursor.at = self.cursor.at + #text
end

-- Returns the cursor for reading.
local function readable(self)
  if self.closed then fail("%s: it is closed", self.__typename) end
  settle(self)
  return self.cursor
end

local function size_of(self) return readable(self).source.size end

-- Returns the bytes of numbers of `size` bytes in the opposite order.
local function swapped(text, size)
  if size == 1 then return text end
  return (text:gsub(("."):rep(size), string.reverse))
end

-- Returns a reader of numbers, as torch7_file.numbers, of a binary file in big-endian order.
local function big_endian(numbers)
  local big = setmetatable({}, {__index = numbers})
  function big:elements(dtype, n)
    local size = Source.item_bytes[dtype]
    return core.bytes_tensor(swapped(self.cursor:take(n * size), size))
  end
  for name, ctype in pairs {int = "int32_t[1]", long = "int64_t[1]", double = "double[1]"} do
    local one = ffi.new(ctype)
    big[name] = function(self)
      ffi.copy(one, self.cursor:take(ffi.sizeof(one)):reverse(), ffi.sizeof(one))
      return tonumber(one[0])
    end
  end
  return big
end

-- Sets the reader of numbers, by the file's format and byte order.
local function set_numbers(self)
  local numbers = torch7_file.numbers(self.cursor, self.text, true)
  self.reader.numbers = self.swapped and not self.text and big_endian(numbers) or numbers
  return self
end
function File:position() return self.cursor.at + 1 end
function File:seek(at)
  at = options.arg("seek", "position", at, "count")
  if at - 1 > size_of(self) then
    fail("%s: position %.0f is out of range for %.0f bytes", self.__typename, at, size_of(self))
  end
  self.cursor:seek(at - 1)
end
function File:seekEnd() self.cursor:seek(size_of(self)) end
function File:synchronize()
  settle(self)
  if self.mode == "r" or not self.path then return self end
  paths.write(self.path, self.data)
  return self
end
function File:close()
  if self.closed then return end
  self.closed = true -- also after an error: the collector does not try again
  local ok, why = pcall(self.synchronize, self)
  self.cursor.source:close()
  if not ok then error(why, 0) end
end
function File:isOpened() return not self.closed end
--- Returns the bytes as a CharStorage, those of a MemoryFile with a zero after them.
function File:storage()
  local source = readable(self).source
  local ending = self.__typename == "torch.MemoryFile" and "\0" or ""
  return storage.new("int8"):string(source:text(0, source.size) .. ending)
end
for _, name in ipairs {"autoSpacing", "noAutoSpacing", "longSize", "noBuffer"} do
  File[name] = function(self) return self end
end
-- Define settings: failed reads of a quiet file return nothing and set file:hasError(), of others they raise an error;
-- writeObject writes an object that comes again by its number, unless referenced(false) was called.
for name, setting in pairs {
  ascii = {"text", true}, binary = {"text", false}, bigEndianEncoding = {"swapped", true},
  littleEndianEncoding = {"swapped", false}, nativeEndianEncoding = {"swapped", false}, quiet = {"is_quiet", true},
  pedantic = {"is_quiet", false}, clearError = {"has_error", false},
} do
  File[name] = function(self)
    self[setting[1]] = setting[2]
    return set_numbers(self)
  end
end
function File:referenced(on)
  self.unreferenced = not on
  return self
end
for name, value in pairs {
  isBigEndianCPU = function() return false end, isLittleEndianCPU = function() return true end,
  isQuiet = function(self) return self.is_quiet or false end,
  hasError = function(self) return self.has_error or false end,
  isReadable = function(self) return self.mode ~= "w" end, isWritable = function(self) return self.mode ~= "r" end,
  isReferenced = function(self) return not self.unreferenced end,
} do
  File[name] = value
end

-- Defines a method that reads, of a file that may be quiet.
local function reads(name, read)
  File[name] = function(self, ...)
    if not self.is_quiet then return read(self, ...) end
    local ok, value = pcall(read, self, ...)
    if ok then return value end
    self.has_error = true
  end
end

function File:writeString(text) write(self, options.arg("writeString", "text", text, "string")) end
--- Reads a line for "*l", the rest for "*a".
reads("readString", function(self, what)
  local cursor = readable(self)
  local start, left, n = cursor.at, cursor.source.size - cursor.at, 256
  if what == "*a" then
    if left > LARGEST then
      fail("%s: %.0f bytes do not fit in a string; readChar(n) reads them", self.__typename, left)
    end
    return cursor:take(left)
  end
  local text, stop
  repeat
    n = math.min(2 * n, left)
    cursor.at = start
    text = cursor:take(n)
    stop = text:find("\n", 1, true)
  until stop or n == left
  cursor.at = start + (stop or n)
  if n == 0 then fail("%s: end of file", self.__typename) end
  return text:sub(1, (stop or 0) - 1)
end)

for name, dtype in pairs(torch7_file.dtypes) do
  local size, one = Source.item_bytes[dtype], ffi.typeof(torch7_file.ctypes[dtype] .. "[1]")
  --- file:writeName(number or storage), file:readName([n]): Write and read a number, or n numbers as a storage.
  File["write" .. name] = function(self, v)
    if storage.is(v) then
      local flat = storage.flat(v):to("cpu", dtype):contiguous()
      local bytes = flat:numel() > 0 and ffi.string(flat:data_ptr(), flat:numel() * size) or ""
      if not self.text then return write(self, self.swapped and swapped(bytes, size) or bytes) end
      if size == 1 then return write(self, bytes .. "\n") end
      local values = flat:totable()
      for i, each in ipairs(values) do
        values[i] = type(each) == "number" and ("%.17g"):format(each) or tostring(each):gsub("LL", "")
      end
      return write(self, table.concat(values, " ") .. "\n")
    end
    options.arg("write" .. name, "value", v, "number")
    if self.text then return write(self, ("%.17g\n"):format(v)) end
    local bytes = ffi.string(one(v), size)
    write(self, self.swapped and bytes:reverse() or bytes)
  end
  reads("read" .. name, function(self, n)
    local cursor, numbers = readable(self), self.reader.numbers
    if n then
      n = options.arg("read" .. name, "n", n, "natural")
      return storage.of(core.view_as(numbers:elements(dtype, n), dtype, {n}, {1}, 0))
    end
    if self.text then return numbers:double() end
    local value, bytes = one(), cursor:take(size)
    ffi.copy(value, self.swapped and bytes:reverse() or bytes, size)
    return tonumber(value[0])
  end)
end

function File:writeBool(v) self:writeInt(v and 1 or 0) end
function File:readBool() return self:readInt() == 1 end

-- ---- objects

-- Calls f(self, v) with another value of a field.
local function with_field(self, field, value, f, v)
  local outer = self[field]
  self[field] = value
  local ok, why = pcall(f, self, v)
  self[field] = outer
  if not ok then error(why, 0) end
end

local function write_text(self, text)
  self:writeInt(#text)
  write(self, self.text and text .. "\n" or text)
end

local function write_tensor(self, object)
  local x = tensor.raw(object)
  if x.dtype == "bfloat16" then x = x:to "float32" end
  local n = x:numel() > 0 and x.ndim or 0
  self:writeInt(n)
  self:writeLong(storage.new("int64", n > 0 and x.shape or {}))
  self:writeLong(storage.new("int64", n > 0 and x:stride() or {}))
  self:writeLong(n > 0 and x:storage_offset() + 1 or 1)
  self:writeObject(n > 0 and tensor.wrap(x):storage() or nil)
end

local function write_inner(self, v)
  local name = class.typename(v)
  if name == "torch.LongStorage" and type(v) == "table" then v = storage.new("int64", v) end
  self:writeInt(name and OBJECT or TABLE)
  -- a storage is its memory, which `kept` keeps allocated
  local key = storage.is(v) and ("%s %.0f %d"):format(name, v:data(true), #v) or v
  local seen = self.seen[key]
  if seen and not self.unreferenced then return self:writeInt(seen) end
  self.count = self.count + 1
  self.seen[key], self.kept[self.count] = self.count, v
  self:writeInt(self.count)
  if not name then
    local n = 0
    for _ in pairs(v) do n = n + 1 end
    self:writeInt(n)
    for k, each in lists.sorted_pairs(v) do -- the same bytes in each process
      self:writeObject(k)
      self:writeObject(each)
    end
    return
  end
  write_text(self, "V 1")
  write_text(self, name)
  if tensor.is(v) then return write_tensor(self, v) end
  if storage.is(v) then
    self:writeLong(#v)
    return self["write" .. name:gsub("CudaS", "FloatS"):gsub("Cuda", ""):match "^torch%.(%a+)Storage$"](self, v)
  end
  if v.write then return v:write(self) end
  self:writeObject(lists.copy(v)) -- without its class
end

-- Type -> its number in files, and the method that writes a value of it.
local plain_kinds = {
  ["nil"] = {NIL, function() end}, number = {NUMBER, File.writeDouble}, string = {STRING, write_text},
  boolean = {BOOLEAN, File.writeBool},
}

--- Returns the number of a value's type in files if it can be written: not a function, a thread or a foreign object.
function File.isWritableObject(_, v)
  local kind = plain_kinds[type(v)]
  return kind and kind[1] or class.typename(v) and OBJECT or type(v) == "table" and TABLE or nil
end

--- file:writeObject(v [, _] [, hook]): Writes any value except a function: a number, a string, a boolean, nil, a table,
--- a tensor, a storage, an object; of objects what hook(object) returns.
function File:writeObject(v, _, hook)
  if hook then return with_field(self, "hook", hook, self.writeObject, v) end
  if self.hook and class.typename(v) then v = self.hook(v) end
  local kind = type(v)
  local plain = plain_kinds[kind]
  if plain then
    self:writeInt(plain[1])
    return plain[2](self, v)
  end
  if not self:isWritableObject(v) then fail("torch.save: %s cannot be written", options.describe(v)) end
  if self.written_depth >= torch7_file.DEEPEST then
    fail("torch.save: tables and objects must not be nested deeper than %d", torch7_file.DEEPEST)
  end
  with_field(self, "written_depth", self.written_depth + 1, write_inner, v)
end

--- Reads the next value.
reads("readObject", function(self)
  readable(self)
  return self.reader:read(self.depth + 1)
end)

-- ---- torch.save, load, serialize and deserialize

local function formatted(file, format)
  format = options.arg("torch", "format", format or "binary", {"binary", "ascii", "b32", "b64"})
  return format == "ascii" and file:ascii() or file:binary()
end

local files = {File = File, DiskFile = disk_file, MemoryFile = memory_file, PipeFile = pipe_file,
  read_fields = take_fields}

--- torch.save(path, value [, format = "binary"]): Writes a value in Torch7's format; "ascii" for text.
function files.save(path, value, format)
  local file = formatted(disk_file(path, "w"), format)
  file:writeObject(value)
  file:close()
end
--- torch.load(path [, format = "binary"]): Reads a value.
function files.load(path, format)
  local file = formatted(disk_file(path, "r"), format)
  local ok, value = pcall(file.readObject, file)
  local why = not ok and without_position(file.cursor.source:why(value)):gsub("^torch%.load: ", "")
  file:close()
  if why then fail("torch.load: '%s': %s", path, why) end
  return value
end
local function written(value, format)
  local file = formatted(memory_file(), format)
  file:writeObject(value)
  settle(file)
  return file.data
end
--- torch.serialize(value [, format]): Returns a value as a string; torch.deserialize(text [, format]) reads it.
--- torch.serializeToStorage and torch.deserializeFromStorage do so with a CharStorage.
files.serialize = written
function files.serializeToStorage(value, format) return storage.new("int8"):string(written(value, format)) end
function files.deserialize(text, format)
  if tensor.is(text) then text = storage.of(tensor.raw(text):contiguous():view {-1}) end
  if storage.is(text) then text = text:string() end
  return formatted(memory_file(options.arg("torch.deserialize", "text", text, "string"), "r"), format):readObject()
end
files.deserializeFromStorage = files.deserialize

return files
