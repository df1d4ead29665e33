-- Mutated ONNX files: small models of spec/golden/_onnx.safetensors, with bytes, lengths and names changed. A model that
-- loads is called with zeros, which may be an error too.
local bytes = require "scripts.dev.fuzz.bytes"
local ffi = require "ffi"
local lm = require "luminary"
local golden = require("spec.support.golden").load "_onnx"
local random = math.random

local names = {}
for name in pairs(golden) do
  if not name:find "%.data%.onnx$" then names[#names + 1] = name end
end
table.sort(names)

local function text_of(name) return ffi.string(ffi.cast("const char *", golden[name]:data_ptr()), golden[name]:numel()) end

local function change()
  local text = text_of(bytes.pick(names))
  local kind = random(4)
  if kind == 1 then
    text = bytes.flip(text)
  elseif kind == 2 then
    text = bytes.damage(text)
  elseif kind == 3 then -- a part of another model
    local other = text_of(bytes.pick(names))
    local at, from = random(#text), random(#other)
    text = bytes.replace(text, at, at + random(0, 20), other:sub(from, from + random(0, 40)))
  else
    local at = random(#text)
    text = bytes.replace(text, at, at, bytes.pick {"\0", "\127", "\255", "\255\255\255\255\255\255\255\255\255\1"})
  end
  return text, "case.onnx"
end

local function load(path)
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
