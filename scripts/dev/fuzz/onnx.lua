-- Mutated ONNX files: small models of spec/golden/_onnx.safetensors, with fields changed, moved, repeated or left out,
-- or bytes. A model that loads is called with zeros, which may be an error too.
local bytes = require "scripts.dev.fuzz.bytes"
local ffi = require "ffi"
local lm = require "luminary"
local golden = require("spec.support.golden").load "_onnx"
local random = math.random

-- A model that is run may make large tensors of little.
ffi.cdef "struct onnx_limit { unsigned long now, most; }; int setrlimit(int, const struct onnx_limit *);"
local RLIMIT_AS, MOST = 9, 6e9
local sanitized = (os.getenv "LD_PRELOAD" or ""):find "[at]san" -- which reserves more addresses
local function limit()
  if not sanitized then ffi.C.setrlimit(RLIMIT_AS, ffi.new("struct onnx_limit", {MOST, MOST})) end
end

local names = {}
for name in pairs(golden) do
  if not name:find "%.data%.onnx$" then names[#names + 1] = name end
end
table.sort(names)

local function text_of(name)
  return ffi.string(ffi.cast("const char *", golden[name]:data_ptr()), golden[name]:numel())
end

-- Returns the varint at position `at` and the position after it; nil if there is none.
local function varint(text, at)
  local v, scale = 0, 1
  for i = at, at + 9 do
    local c = text:byte(i)
    if not c then return nil end
    v, scale = v + c % 128 * scale, scale * 128
    if c < 128 then return v, i + 1 end
  end
end

local function encode(v)
  local out = ""
  while v >= 128 do
    out, v = out .. string.char(v % 128 + 128), math.floor(v / 128)
  end
  return out .. string.char(v)
end

-- Returns the fields of a message, {tag, value}: a string, or a list of fields; nil if the text is none.
local function parse(text)
  local fields, at = {}, 1
  while at <= #text do
    local tag, past = varint(text, at)
    if not tag or tag < 8 or tag >= 31 * 8 then return nil end
    local kind = tag % 8
    if kind == 2 then
      local n, from = varint(text, past)
      if not n or from + n - 1 > #text then return nil end
      local value = text:sub(from, from + n - 1)
      fields[#fields + 1] = {tag, n > 1 and not value:find "^[%w_.]+$" and parse(value) or value}
      at = from + n
    else
      local _, last = varint(text, past)
      at = kind == 0 and last or kind == 5 and past + 4 or kind == 1 and past + 8
      if not at or at > #text + 1 then return nil end
      fields[#fields + 1] = {tag, text:sub(past, at - 1)}
    end
  end
  return fields
end

local function serialize(fields)
  local parts = {}
  for i, field in ipairs(fields) do
    local value = type(field[2]) == "table" and serialize(field[2]) or field[2]
    parts[i] = encode(field[1]) .. (field[1] % 8 == 2 and encode(#value) or "") .. value
  end
  return table.concat(parts)
end

local words = {"", "x", "y", "Loop", "If", "Conv", "Reshape", "axis", "body", "ai.onnx.ml", "../x", "\255\0"}

-- Changes one field somewhere below: its number, its value, its position, or how often it is there.
local function change_field(fields)
  local i = random(#fields)
  local field, kind = fields[i], random(8)
  if type(field[2]) == "table" and #field[2] > 0 and kind <= 6 then return change_field(field[2]) end
  if kind == 1 then
    table.remove(fields, i)
  elseif kind == 2 then
    table.insert(fields, random(#fields), fields[random(#fields)])
  elseif kind == 3 then
    field[1] = random(30) * 8 + field[1] % 8
  elseif field[1] % 8 == 0 then
    field[2] = bytes.pick {
      "\0", "\1", "\2", "\16", ("\255"):rep(9) .. "\1", "\255\255\255\255\7", "\128\128\4",
    }
  elseif type(field[2]) == "string" and field[1] % 8 == 2 then
    field[2] = random(3) == 1 and bytes.pick(words) or #field[2] > 0 and bytes.damage(field[2]) or "a"
  elseif type(field[2]) == "string" then
    field[2] = bytes.flip(field[2])
  end
end

local function change()
  local text = text_of(bytes.pick(names))
  if random(5) == 1 then return bytes.damage(text), "case.onnx" end
  local fields = parse(text)
  for _ = 1, random(4) do
    if #fields > 0 then change_field(fields) end
  end
  return serialize(fields), "case.onnx"
end

local function load(path)
  limit()
  local net = lm.onnx.load(path)
  local inputs, small = {}, true
  for i, info in ipairs(net.inputs) do
    local sizes, numel = {}, 1
    for d, size in ipairs(info.dims or {}) do
      sizes[d] = type(size) == "number" and size or 2
      numel = numel * math.max(sizes[d], 1)
    end
    small = small and numel < 1e5 and numel >= 0 and #sizes <= 8 and info.kind == "tensor" and info.dtype ~= "string"
    if not small then return end
    inputs[i] = lm.zeros(sizes, {dtype = info.dtype or "float32"})
  end
  lm.no_grad(function() pcall(net, unpack(inputs, 1, #inputs)) end)
end

local function past(message) return not message:find "is no ONNX model" end

return {name = "onnx", share = 1, change = change, load = load, past = past}
