--- Reads and writes NumPy's .npz and .npy (versions 1 to 3), and parses the header, a Python literal, itself; see
--- https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
local core = require "luminary.core"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"
local zip = require "luminary.file_formats.zip"

local numpy = {}
numpy.MAGIC = "\147NUMPY"
local LONGEST = 2 ^ 20

local dtypes = {
  b1 = "bool", u1 = "uint8", i1 = "int8", i2 = "int16", u2 = "uint16", i4 = "int32", u4 = "uint32", i8 = "int64",
  u8 = "uint64", f2 = "float16", f4 = "float32", f8 = "float64", c8 = "complex64", c16 = "complex128",
}
numpy.dtypes = dtypes
local descriptions = {}
for code, dtype in pairs(dtypes) do
  descriptions[dtype] = (Source.item_bytes[dtype] == 1 and "|" or "<") .. code
end

-- Parses a value of a header: a string, a boolean, a tuple of counts.
local function read_value(source, text, at)
  local word, past = text:match("^'([^'\\]*)'()", at)
  if word then return word, past end
  word, past = text:match("^(%a+)()", at)
  if word == "True" or word == "False" then return word == "True", past end
  local inside
  inside, past = text:match("^%(([%dL, ]*)%)()", at)
  if not inside then
    if text:find("^%[", at) then source:fail "records of several fields are not supported" end
    source:malformed(".npy header", "unexpected '%s'", printable_name(text:sub(at), 40))
  end
  local list = {}
  for item, comma in inside:gmatch("%s*([^,]*)(,?)") do
    local digits = item:match("^(%d+)L?%s*$")
    if digits then
      list[#list + 1] = tonumber(digits)
    elseif item ~= "" or comma ~= "" then
      source:malformed(".npy header", "shape (%s)", printable_name(inside, 80))
    end
  end
  if #list == 1 and not inside:find "," then
    source:malformed(".npy header", "shape (%s)", printable_name(inside, 80))
  end
  return list, past
end

local function read_header(source, text)
  local header, at = {}, text:match("^%s*{%s*()")
  if not at then source:malformed(".npy header", "it does not start with {") end
  while not text:find("^}", at) do
    local key, past = text:match("^'(%a[%w_]*)'%s*:%s*()", at)
    if not key then source:malformed(".npy header", "unexpected '%s'", printable_name(text:sub(at), 40)) end
    if header[key] ~= nil then source:malformed(".npy header", "'%s' appears twice", key) end
    header[key], at = read_value(source, text, past)
    at = text:match("^%s*,%s*()", at) or text:match("^%s*()}", at)
      or source:malformed(".npy header", "unexpected '%s'", printable_name(text:sub(at), 40))
  end
  if not text:find("^}%s*$", at) then source:malformed(".npy header", "data follows its end") end
  for key in pairs(header) do
    if key ~= "descr" and key ~= "fortran_order" and key ~= "shape" then
      source:malformed(".npy header", "unknown field '%s'", printable_name(key, 40))
    end
  end
  if type(header.descr) ~= "string" or type(header.fortran_order) ~= "boolean" or type(header.shape) ~= "table" then
    source:malformed(".npy header", "it lacks 'descr', 'fortran_order' or 'shape'")
  end
  return header
end

-- Reads the head: returns dtype, sizes, data offset, layout; or nil and the name of an unsupported dtype.
local function read_head(source)
  if source:text(0, math.min(source.size, 6)) ~= numpy.MAGIC then source:fail "not a .npy file" end
  local cursor = source:cursor(6)
  local version = cursor:unsigned(1)
  if version < 1 or version > 3 then source:fail("unsupported .npy version %d; supported are 1 to 3", version) end
  cursor:take(1)
  local length = cursor:unsigned(version == 1 and 2 or 4)
  if length > LONGEST then source:malformed(".npy header", "it has %.0f bytes", length) end
  local header = read_header(source, cursor:take(length))
  local order, code = header.descr:match("^([<>|=])(%a%d*)$")
  local dtype = dtypes[code]
  if not dtype then return nil, ("'%s'"):format(printable_name(header.descr, 40)) end
  return dtype, header.shape, cursor.at, {fortran = header.fortran_order, swapped = order == ">"}
end

--- Returns the tensor of a .npy source.
function numpy.load(source)
  local dtype, sizes, at, layout = read_head(source)
  if not dtype then source:fail("unsupported dtype %s", sizes) end
  return source:tensor(dtype, sizes, at, source.size - at, "the array", layout)
end

-- Returns the tensor of an entry, or nil and the dtype's description if it is unsupported.
local function load_entry(archive, entry, name)
  if not name then archive.source:fail("entry '%s' is not a .npy file", printable_name(entry.name, 100)) end
  local start = archive:start(entry, LONGEST + 12) -- avoids inflating a small array to gigabytes
  local dtype, sizes, at = read_head(start)
  if not dtype then return nil, sizes end
  start:check_size(dtype, sizes, entry.size - at, "the array")
  return numpy.load(archive:read(entry))
end

--- Returns the tensors of an archive of .npy by name, and a list of the skipped ones.
function numpy.load_all(archive)
  local tensors, left_out = {}, {}
  for _, entry in ipairs(archive.entries) do
    local name = entry.name:match("^(.*)%.npy$")
    local ok, t, dtype = pcall(load_entry, archive, entry, name)
    if ok and t then
      tensors[name] = t
    elseif ok or archive.source.opts.skip_unreadable then
      left_out[#left_out + 1] = ("'%s' (%s)"):format(printable_name(name or entry.name, 100),
        ok and "dtype " .. dtype or archive.source:why(t))
    else
      error(t .. "; pass {skip_unreadable = true} to read the others", 0)
    end
  end
  return tensors, left_out
end

-- ---- writing

-- Returns the head and the data of a .npy.
local function pieces_of(t, what)
  local code = descriptions[t.dtype]
  if not code then
    options.fail("save: %s is %s, which NumPy does not have; convert it with x:float()", what, t.dtype)
  end
  local sizes = table.concat(t.shape, ", ")
  local header = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }"):format(code, sizes,
    #t.shape == 1 and "," or "")
  header = header .. (" "):rep(-(#header + 11) % 64) .. "\n"
  return {numpy.MAGIC .. "\1\0" .. Source.little_endian(#header, 2) .. header, t:detach():cpu():contiguous()}
end

--- Writes a tensor as .npy.
function numpy.save(path, t)
  if not core.is_tensor(t) then options.expected("save", "a tensor for a .npy file", t) end
  core.write_pieces(path, pieces_of(t, "the tensor"))
end

--- Writes tensors by name as .npz.
function numpy.save_all(path, tensors)
  local names, entries = {}, {}
  for name, t in pairs(options.is_plain(tensors) and tensors or {false}) do
    if type(name) ~= "string" or not core.is_tensor(t) then
      options.fail "save: a .npz holds a table of tensors by name"
    end
    names[#names + 1] = name
  end
  table.sort(names)
  for i, name in ipairs(names) do entries[i] = {name .. ".npy", pieces_of(tensors[name], name)} end
  zip.write(path, entries)
end

return numpy
