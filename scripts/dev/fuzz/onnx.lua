-- Mutated ONNX files: small models of spec/golden/_onnx.safetensors, and the files of the folder LM_FUZZ_ONNX if it is
-- set, with fields changed, moved, repeated or left out, bytes damaged, or the graph changed: names that collide, nodes
-- of other kinds, forged numbers, data in other files, nodes in bodies of If and Loop, and in functions that call
-- themselves. A model that loads is called, which may be an error too. A case that takes a minute ends the process and
-- leaves the file.
local bytes = require "scripts.dev.fuzz.bytes"
local ffi = require "ffi"
local lm = require "luminary"
local golden = require("spec.support.golden").load "_onnx"
local temp = require "spec.support.temp"
local random = math.random

-- A model that is run may make large tensors of little.
ffi.cdef "struct onnx_limit { unsigned long now, most; }; int setrlimit(int, const struct onnx_limit *);"
ffi.cdef "int alarm(int);"
local RLIMIT_AS, MOST, SECONDS, STEPS = 9, 3e9, 60, 1e5
local sanitized = (os.getenv "LD_PRELOAD" or ""):find "[at]san" -- which reserves more addresses
local function limit()
  if not sanitized then ffi.C.setrlimit(RLIMIT_AS, ffi.new("struct onnx_limit", {MOST, MOST})) end
end

local names = {}
for name in pairs(golden) do
  if not name:find "%.data%.onnx$" then names[#names + 1] = name end
end
table.sort(names)
local more = os.getenv "LM_FUZZ_ONNX"
if more then
  local list = io.popen("ls " .. more .. "/*.onnx")
  for path in list:lines() do names[#names + 1] = path end
  list:close()
end

local function text_of(name)
  if not golden[name] then return temp.read(name) end
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

-- ---- changes of the graph: fields by the numbers of io/onnx.proto

-- Returns the fields of a message with a number, that are messages.
local function messages(fields, number)
  local list = {}
  for _, field in ipairs(type(fields) == "table" and fields or {}) do
    if field[1] == number * 8 + 2 and type(field[2]) == "table" then list[#list + 1] = field end
  end
  return list
end

local function graph_of(model) return (messages(model, 7)[1] or {})[2] or {} end
local function text(number, value) return {number * 8 + 2, value} end
local function integer(number, v) return {number * 8, encode(v)} end

local ops = {}
for _, file in ipairs {
  "elementwise", "reduction", "shape", "indexing", "convolution", "normalization", "recurrent", "signal", "quantized",
  "control", "image", "ml", "training",
} do
  for op in pairs(require("luminary.onnx.ops." .. file)) do ops[#ops + 1] = op end
end
table.sort(ops)

local numbers = {
  "\0", "\1", "\3", "\128\128\4", "\255\255\255\255\7", "\128\160\148\165\141\29", ("\255"):rep(8) .. "\127",
  ("\255"):rep(9) .. "\1", ("\128"):rep(9) .. "\1", "\128\128\128\128\248\255\255\255\255\1",
}

-- Calls f(list, i, path) for each leaf below: a text or a number.
local function each_leaf(fields, f)
  for _, field in ipairs(fields) do
    if type(field[2]) == "table" then each_leaf(field[2], f) else f(field) end
  end
end

local function leaves(fields, chosen)
  local list = {}
  each_leaf(fields, function(field)
    if chosen(field) then list[#list + 1] = field end
  end)
  return list
end

local function is_name(field) return field[1] % 8 == 2 and #field[2] > 0 and field[2]:find "^[%w_.]+$" end

-- Returns a node of an op with inputs and outputs.
local function node_of(op, input, output, attributes)
  return text(1, {text(1, input), text(2, output), text(4, op), unpack(attributes)})
end

-- Returns an attribute with a graph.
local function graph_attribute(name, fields) return text(5, {text(1, name), text(6, fields), integer(20, 5)}) end

local changes = {
  function(model) -- a name becomes another one
    local list = leaves(model, is_name)
    if #list > 0 then bytes.pick(list)[2] = bytes.pick(list)[2] end
  end,
  function(model) -- a node becomes one of another kind
    local nodes = messages(graph_of(model), 1)
    if #nodes == 0 then return end
    for _, field in ipairs(bytes.pick(nodes)[2]) do
      if field[1] == 34 then field[2] = bytes.pick(ops) end
    end
  end,
  function(model) -- numbers of one or two fields are forged: dims, attributes, versions
    local list = leaves(model, function(field) return field[1] % 8 == 0 end)
    for _ = 1, #list > 0 and random(2) or 0 do bytes.pick(list)[2] = bytes.pick(numbers) end
  end,
  function(model) -- so are the elements of an initializer, often sizes
    local tensors = messages(graph_of(model), 5)
    if #tensors == 0 then return end
    local list = leaves(bytes.pick(tensors)[2], function(field) return field[1] == 74 or field[1] == 58 end)
    if #list == 0 then return end
    local field, number = bytes.pick(list), bytes.pick {0, 1, 2, 3, 2 ^ 31, 2 ^ 40, 2 ^ 53, 2 ^ 62, 1e12, 65536}
    if field[1] == 58 then
      field[2] = bytes.pick(numbers)
    elseif #field[2] >= 8 then
      local at = random(0, math.floor(#field[2] / 8) - 1) * 8
      local new = random(4) == 1 and ("\255"):rep(8) or bytes.little_endian(number, 8)
      field[2] = bytes.replace(field[2], at + 1, at + 8, new)
    end
  end,
  function(model) -- an initializer's bytes are in another file
    local tensors = messages(graph_of(model), 5)
    if #tensors == 0 then return end
    local fields = bytes.pick(tensors)[2]
    local function entry(key, value) table.insert(fields, text(13, {text(1, key), text(2, value)})) end
    entry("location", bytes.pick {"case.onnx", "case.onnx", "case.onnx1", "../case.onnx", "/dev/zero", ""})
    entry("offset", bytes.pick {"0", "8", "-1", "1e3", "18446744073709551615", "nan", "inf", "0x10", "4096", "1.5"})
    if random(2) == 1 then entry("length", bytes.pick {"0", "4", "-1", "1e18"}) end
    fields[#fields + 1] = integer(14, 1)
  end,
  function(model) -- the graph's nodes are in the bodies of If or Loop, up to 200 deep
    local graph = graph_of(model)
    local outputs, inner = messages(graph, 12), {}
    if #outputs == 0 then return end
    for i = #graph, 1, -1 do
      if graph[i][1] == 10 then table.insert(inner, 1, table.remove(graph, i)) end
    end
    local name = "y"
    for _, field in ipairs(outputs[1][2]) do
      if field[1] == 10 then name = field[2] end
    end
    local flag = text(5, {integer(1, 1), integer(2, 9), text(8, "flag"), text(9, "\1")})
    local count = bytes.little_endian(bytes.pick {0, 1, 3, 2 ^ 40, 2 ^ 62}, 8)
    local trips = text(5, {integer(1, 1), integer(2, 7), text(8, "trips"), text(9, count)})
    local loops = random(3) == 1
    for _ = 1, random(4) == 1 and random(200) or random(3) do
      inner[#inner + 1] = text(12, loops and {text(1, "flag")} or {text(1, name)})
      if loops then
        inner[#inner + 1] = text(12, {text(1, name)})
        inner = {node_of("Loop", "trips", name, {graph_attribute("body", inner)})}
      else
        inner = {node_of("If", "flag", name, {graph_attribute("then_branch", inner),
          graph_attribute("else_branch", inner)})}
        if random(2) == 1 then table.remove(inner[1][2]) end
      end
      if #serialize(inner) > 1e6 then break end
    end
    for i, field in ipairs(inner) do table.insert(graph, i, field) end
    graph[#graph + 1], graph[#graph + 2] = flag, trips
  end,
  function(model) -- the nodes are also a function, which a node calls, and perhaps the function
    local nodes = messages(graph_of(model), 1)
    if #nodes == 0 then return end
    local node, fields = bytes.pick(nodes), {text(1, "called"), text(10, "own")}
    for _, each in ipairs(nodes) do fields[#fields + 1] = text(7, each[2]) end
    for _, name in ipairs(leaves(model, is_name)) do
      if random(8) == 1 then fields[#fields + 1] = text(random(2) == 1 and 4 or 5, name[2]) end
    end
    model[#model + 1] = text(25, fields)
    for _, field in ipairs(node[2]) do
      if field[1] == 34 then field[2] = "called" end
    end
    node[2][#node[2] + 1] = text(7, "own")
  end,
}
changes[#changes + 1], changes[#changes + 2], changes[#changes + 3] = changes[2], changes[3], changes[4]

local function change()
  local whole = text_of(bytes.pick(names))
  if random(8) == 1 then return bytes.damage(whole), "case.onnx" end
  local fields = parse(whole)
  for _ = 1, random(4) do
    if #fields > 0 then (random(3) == 1 and change_field or bytes.pick(changes))(fields) end
  end
  return serialize(fields), "case.onnx"
end

-- Calls f; raises an error once it has run this many thousand instructions, since a Loop may have no end.
local function call_bounded(f, ...)
  local steps = 0
  debug.sethook(function()
    steps = steps + 1
    if steps > STEPS / 1000 then error "too many steps" end
  end, "", 1000)
  local ok, problem = pcall(f, ...)
  debug.sethook()
  return ok, problem
end

local function load(path)
  limit()
  ffi.C.alarm(SECONDS)
  jit.on()
  local ok, net = pcall(lm.onnx.load, path)
  -- An external file that is missing is named instead.
  if not ok then error((net:gsub("cannot open '[^']*'", "cannot open '" .. path .. "'")), 0) end
  local inputs, small = {}, true
  for i, info in ipairs(net.inputs) do
    local sizes, numel = {}, 1
    for d, size in ipairs(info.dims or {}) do
      sizes[d] = type(size) == "number" and size or 2
      numel = numel * math.max(sizes[d], 1)
    end
    small = small and numel < 1e5 and numel >= 0 and #sizes <= 8 and info.kind == "tensor" and info.dtype ~= "string"
    if not small then return end
    local dtype = info.dtype or "float32"
    inputs[i] = random(2) == 1 and lm.zeros(sizes, {dtype = dtype})
      or (lm.rand(sizes) * (dtype == "bool" and 1 or 6)):to(dtype)
  end
  lm.no_grad(function()
    jit.off()
    local ran, problem = call_bounded(net, unpack(inputs, 1, #inputs))
    if not ran and not (type(problem) == "string" and problem:find "onnx: [^\n]+$") then
      error("a call raised " .. tostring(problem), 0)
    end
  end)
end

local function past(message) return not message:find "is no ONNX model" end

return {name = "onnx", share = 1, change = change, load = load, past = past}
