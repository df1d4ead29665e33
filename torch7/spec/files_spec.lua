-- Tests Torch7's files: numbers, text and objects in its own format, and their errors.
local lm = require "luminary"
local torch = require "luminary.torch7"
local temp = require "spec.support.temp"
local nn = torch.nn

setup(function() torch.manualSeed(3) end)

describe("torch.serialize", function()
  it("writes the names of a table in order, whatever its history, with keys of any type", function()
    local one, other = {}, {}
    for i = 1, 40 do one["name" .. i] = i end
    for i = 1, 100 do other["filler" .. i] = i end
    for i = 40, 1, -1 do other["name" .. i] = i end
    for i = 1, 100 do other["filler" .. i] = nil end
    for _, t in ipairs { one, other } do t[3], t[2.5], t[true], t[-1] = "three", "half", "yes", "below" end
    assert.equal(torch.serialize(one), torch.serialize(other))
    assert.same(one, torch.deserialize(torch.serialize(other)))
    local key = {}
    assert.equal(7, select(2, next(torch.deserialize(torch.serialize { [key] = 7 }))))
  end)

  it("writes Torch7's bytes", function()
    local function int(n) return string.char(n, 0, 0, 0) end
    local function long(n) return int(n) .. int(0) end
    assert.equal(int(0), torch.serialize(nil))
    assert.equal(int(1) .. "\0\0\0\0\0\0\20\64", torch.serialize(5))
    assert.equal(int(2) .. int(2) .. "ab", torch.serialize "ab")
    assert.equal(int(5) .. int(1), torch.serialize(true))
    assert.equal(int(3) .. int(1) .. int(1) .. int(1) .. "\0\0\0\0\0\0\240\63" .. int(5) .. int(0),
      torch.serialize { false })
    assert.equal(int(4) .. int(1) .. int(3) .. "V 1" .. int(16) .. "torch.ByteTensor" .. int(1) .. long(2) .. long(1)
      .. long(1) .. int(4) .. int(2) .. int(3) .. "V 1" .. int(17) .. "torch.ByteStorage" .. long(2) .. "\7\9",
      torch.serialize(torch.ByteTensor { 7, 9 }))
    assert.equal("3\n1\n1\n1\n2\n2\n3\na b\n", torch.serialize({ [2] = "a b" }, "ascii"))
  end)

  it("comes back as it was", function()
    for _, format in ipairs { "binary", "ascii" } do
      local x = torch.randn(2, 3)
      local value = { x, x, "a\nb", { 1.5, true, deep = { false } }, torch.LongTensor { 2 ^ 40, -1 },
        torch.FloatTensor(), half = torch.HalfTensor { 0.5 }, byte = torch.ByteTensor { 200 }, turned = x:t(),
        store = torch.IntStorage { 4, 5 } }
      value.self = value
      local back = torch.deserialize(torch.serialize(value, format), format)
      assert.is_true(back[1]:equal(x) and rawequal(back[1], back[2]) and rawequal(back, back.self))
      assert.same({ "a\nb", 1.5, true, false }, { back[3], back[4][1], back[4][2], back[4].deep[1] })
      assert.same({ 2 ^ 40, -1 }, { tonumber(back[5][1]), tonumber(back[5][2]) })
      assert.equal("torch.FloatTensor", back[6]:type())
      assert.equal(0, back[6]:nElement())
      assert.same({ 200, 0.5, 5 }, { back.byte[1], back.half[1], back.store[2] })
      assert.is_true(back.turned:equal(x:t()))
    end
  end)

  it("takes long rows of numbers as text", function()
    local x = torch.range(1, 20000)
    assert.is_true(torch.deserialize(torch.serialize(x, "ascii"), "ascii"):equal(x))
  end)

  it("says which object lacks what, and copies no table into thousands of objects", function()
    local function int(n) return string.char(n % 256, math.floor(n / 256) % 256, 0, 0) end
    local function string_of(text) return int(#text) .. text end
    local function object(i, class, fields) return int(4) .. int(i) .. string_of "V 1" .. string_of(class) .. fields end
    assert.error_matches(function() torch.deserialize(object(1, "nn.Linear", int(3) .. int(2) .. int(0))) end,
      "torch%.load: cannot create an object of class nn%.Linear: it has no weight or bias")
    assert.error_matches(function() torch.deserialize(object(1, "nn.Sequential", int(0))) end,
      "malformed Torch7 file: an object of class nn%.Sequential without fields")
    local entries, objects = {}, {}
    for i = 1, 20000 do entries[i] = int(2) .. string_of(tostring(i)) .. int(5) .. int(1) end
    for i = 1, 10000 do objects[i] = object(i + 2, "nn.Sequential", int(3) .. int(2)) .. int(5) .. int(1) end
    local text = int(3) .. int(1) .. int(10001) .. int(5) .. int(0) .. int(3) .. int(2) .. int(20000)
      .. table.concat(entries) .. table.concat(objects)
    assert.error_matches(function() torch.deserialize(text) end,
      "malformed file: repeated parts are larger than the file")
  end)

  it("refuses functions, unknown classes, and every part and change of what it wrote", function()
    assert.error_matches(function() torch.serialize { print } end, "function.* cannot be written")
    local text = torch.serialize { torch.randn(2), "text", { a = 1 } }
    assert.error_matches(function() torch.deserialize "\8\0\0\0" end, "functions are not supported, since their")
    assert.error_matches(function() torch.deserialize "abcd" end,
      "malformed Torch7 file: unknown kind of object 1684234849")
    assert.error_matches(function() torch.deserialize(text, "xml") end, "format must be one of 'binary', 'ascii'")
    assert.error_matches(function() torch.deserialize((text:gsub("DoubleTensor", "DoubleTanser"))) end,
      "no class 'torch.DoubleTanser'")
    for n = 0, #text - 1 do assert.is_false((pcall(torch.deserialize, text:sub(1, n)))) end
    for n = 1, #text do
      for _, byte in ipairs { 0, 1, 127, 255 } do
        pcall(torch.deserialize, text:sub(1, n - 1) .. string.char(byte) .. text:sub(n + 1))
      end
    end
  end)
end)

describe("torch.save", function()
  local folder = temp.during(before_each, after_each)
  local path = folder .. "/net.t7"

  it("keeps networks, which go on as they were", function()
    local net = nn.Sequential():add(nn.SpatialConvolution(1, 2, 3, 3)):add(nn.SpatialBatchNormalization(2))
      :add(nn.ReLU()):add(nn.SpatialMaxPooling(2, 2, 2, 2):ceil()):add(nn.View(-1):setNumInputDims(3))
      :add(nn.Linear(18, 2)):add(nn.Dropout(0.5)):add(nn.LogSoftMax())
    local x = torch.randn(3, 1, 7, 7)
    net:forward(x)
    net:evaluate()
    local want = net:forward(x):clone()
    torch.save(path, { net = net, criterion = nn.ClassNLLCriterion() })
    local back = torch.load(path)
    assert.is_true(back.net:forward(x):equal(want))
    assert.near(net:forward(x)[1][1], back.net:forward(x)[1][1], 0)
    local params, grads = back.net:getParameters()
    assert.equal(net:getParameters():nElement(), params:nElement())
    back.net:training()
    back.net:zeroGradParameters()
    local y = back.net:forward(x)
    local t = torch.LongTensor { 1, 2, 1 }
    back.criterion:forward(y, t)
    back.net:backward(x, back.criterion:backward(y, t))
    assert.is_true(grads:norm() > 0)
    torch.save(path, net:float())
    assert.equal("torch.FloatTensor", torch.load(path):get(1).weight:type())
  end)

  it("reads layers that Torch7 wrote, by their fields", function()
    for name, case in pairs {
      Linear = { {}, { 3, 2 }, { 4, 3 } },
      SpatialConvolution = { { nInputPlane = 1, nOutputPlane = 2, kW = 3, kH = 2, dW = 2, dH = 1, padW = 1, padH = 0 },
        { 1, 2, 3, 2, 2, 1, 1, 0 }, { 2, 1, 5, 5 } },
      SpatialAveragePooling = { { kW = 2, kH = 3, dW = 1, dH = 2, padW = 0, padH = 0 }, { 2, 3, 1, 2 },
        { 1, 1, 6, 5 } },
      Threshold = { { threshold = 0.5, val = 2 }, { 0.5, 2 }, { 4 } },
      View = { { size = torch.LongStorage { -1, 2 } }, { -1, 2 }, { 6 } },
      SpatialBatchNormalization = { { eps = 0.1, momentum = 0.2, affine = true }, { 2, 0.1, 0.2 }, { 2, 2, 3, 3 } },
      JoinTable = { { dimension = 1 }, { 1 } }, MulConstant = { { constant_scalar = 3 }, { 3 }, { 2 } },
      LookupTable = { {}, { 4, 2 } }, PReLU = { { nOutputPlane = 0 }, {}, { 3 } },
    } do
      local layer = nn[name](unpack(case[2]))
      local input = name == "JoinTable" and { torch.randn(2), torch.randn(1) } or name == "LookupTable"
        and torch.LongTensor { 4, 1 } or torch.randn(unpack(case[3]))
      local want = layer:forward(input)
      for key, v in pairs(case[1]) do layer[key] = v end
      local back = torch.deserialize(torch.serialize(layer))
      assert.is_true(back:forward(input):equal(want), name)
    end
  end)

  it("reads the arguments in older files", function()
    local layer = nn.SoftShrink(0.5)
    layer.lambda, layer.made_with = nil, { n = 1, 0.25 }
    local back = torch.deserialize(torch.serialize(layer))
    assert.equal(0.75, back:forward(torch.ones(1))[1])
    assert.is_nil(back.made_with)
  end)

  it("makes no layers that are much larger than the file", function()
    for _, layer in ipairs {nn.SpatialConvolution(1, 2, 3, 3), nn.SpatialFullConvolution(1, 2, 3, 3)} do
      layer.nInputPlane, layer.nOutputPlane = 2 ^ 15, 2 ^ 15
      local text = torch.serialize(layer)
      collectgarbage()
      lm.reset_peak_memory_stats()
      local before = lm.memory_allocated()
      local read = torch.deserialize(text)
      assert(lm.max_memory_allocated() - before < 2 ^ 20)
      assert.equal(18, read.weight:nElement())
    end
  end)

  it("copies no views of one element as if they were so large", function()
    local le, made = require("luminary.file_formats.source").little_endian, 0
    local function int(n) return le(n, 4) end
    local function text(s) return int(#s) .. s end
    local function object(class, rest)
      made = made + 1
      return int(4) .. int(made) .. text "V 1" .. text(class) .. rest
    end
    local function expanded(n, stride) -- float32 [n, n] over one element for stride 0, over n for 1
      local head = object("torch.FloatTensor", int(2) .. le(n, 8) .. le(n, 8) .. le(stride, 8) .. le(0, 8) .. le(1, 8))
      local count = stride * (n - 1) + 1
      return head .. object("torch.FloatStorage", le(count, 8) .. ("\0"):rep(4 * count))
    end
    local function layer(class, fields)
      local parts, head, n = {}, object(class, ""), 0
      made = made + 1
      local at = made
      for name, value in pairs(fields) do
        parts[#parts + 1], n = int(2) .. text(name) .. value(), n + 1
      end
      return head .. int(3) .. int(at) .. int(n) .. table.concat(parts)
    end
    local function one() return expanded(1, 1) end
    local function many() return expanded(2 ^ 14, 0) end
    for _, case in ipairs {
      { "Linear", { weight = many }, "Linear: weight has 268435456 elements, its storage 1" },
      { "LookupTable", { weight = many }, "LookupTable: weight has 268435456 elements, its storage 1" },
      { "Linear", { weight = one, gradWeight = many }, "gradWeight has 268435456 elements, its storage 1" },
    } do
      collectgarbage()
      lm.reset_peak_memory_stats()
      local before = lm.memory_allocated()
      local bytes = layer("nn." .. case[1], case[2])
      assert.error_matches(function() torch.deserialize(bytes) end, case[3])
      assert(lm.max_memory_allocated() - before < 2 ^ 20, case[3])
    end
    for _, name in ipairs { "Reshape", "Transpose", "View" } do
      local field = name == "Transpose" and "permutations" or "size"
      local read = torch.deserialize(layer("nn." .. name, { [field] = many }))
      assert.is_false(pcall(read.forward, read, torch.ones(2, 3)))
    end
  end)

  it("keeps objects of classes of one's own, with their write and read", function()
    local place = {}
    local Plain = torch.class("spec.Plain", place)
    function Plain:__init(n) self.n = n end
    local Own = torch.class("spec.Own", place)
    function Own:__init(n) self.n = n end
    function Own:write(file) file:writeObject(self.n * 2) end
    function Own:read(file) self.n = file:readObject() end
    torch.save(path, { place.Plain(4), place.Own(4) }, "ascii")
    local back = torch.load(path, "ascii")
    assert.same({ 4, 8 }, { back[1].n, back[2].n })
    assert.equal("spec.Plain", torch.type(back[1]))
  end)

  it("files hold numbers, lines and storages", function()
    for _, kind in ipairs { "ascii", "binary" } do
      local file = torch.DiskFile(path, "w")
      file[kind](file)
      file:writeInt(7)
      file:writeFloat(0.5)
      file:writeLong(torch.LongStorage { 1, 2 } and torch.LongTensor { 1, 2 }:storage())
      file:writeString "a line\nanother"
      file:close()
      file = torch.DiskFile(path)
      file[kind](file)
      assert.equal(7, file:readInt())
      assert.equal(0.5, file:readFloat())
      assert.equal(2, #file:readLong(2))
      assert.equal("a line", file:readString "*l")
      assert.equal("another", file:readString "*a")
      assert.error_matches(function() file:readInt() end,
        "'" .. path .. "': truncated: needs %d+ bytes at byte (%d+), the file has %1$")
      assert.error_matches(function() file:writeInt(1) end, "opened for reading")
    end
    local file = torch.DiskFile(path, "w"):binary()
    file:writeString "abcdef"
    file:seek(3)
    file:writeString "XY"
    assert.equal(5, file:position())
    file:seekEnd()
    file:writeString "!"
    assert.error_matches(function() file:seek(20) end, "position 20 is out of range for 7 bytes")
    file = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal("abXYef!", temp.read(path))
    file = torch.DiskFile(path, "rw")
    file:writeString "Z"
    file:close()
    assert.equal("ZbXYef!", temp.read(path))
    local memory = torch.MemoryFile():binary()
    memory:writeObject { 1 }
    memory:seek(1)
    assert.same({ 1 }, memory:readObject())
    assert.equal("torch.CharStorage", torch.type(memory:storage()))
    assert.error_matches(function() torch.DiskFile(folder .. "/none") end, "No such file")
    assert.error_matches(function() torch.DiskFile(path, "x") end, "mode must be one of 'r', 'w', 'rw', got string 'x'")
  end)

  it("reads files without holding them, back and forth, from pieces of them", function()
    for _, format in ipairs { "binary", "ascii" } do
      local text, numbers = ("x"):rep(200000) .. "\nend", torch.range(1, 30000)
      torch.save(path, { text, numbers, 7 }, format)
      local back = torch.load(path, format)
      assert.is_true(back[1] == text and back[2]:equal(numbers) and back[3] == 7)
      local file = torch.DiskFile(path)[format](torch.DiskFile(path))
      local first = file:readInt()
      file:readString "*a"
      assert.error_matches(function() file:readChar() end, "truncated: needs 1 bytes at byte (%d+), the file has %1$")
      file:seek(1)
      assert.equal(first, file:readInt())
      local bytes = file:storage()
      assert.equal(#temp.read(path), #bytes)
      assert.equal(temp.read(path):byte(1), bytes[1])
      file:close()
      assert.error_matches(function() file:readInt() end, "torch.DiskFile: it is closed")
    end
    temp.write(path, ("y"):rep(100000) .. "\n" .. (" "):rep(100000) .. "12 " .. ("9"):rep(100))
    local file = torch.DiskFile(path)
    assert.equal(100000, #file:readString "*l")
    assert.equal(12, file:readInt())
    assert.error_matches(function() file:readInt() end, "malformed Torch7 file: expected a number, got '99")
  end)

  it("waits for no FIFO and reads no device, and names what it reads", function()
    os.execute("mkfifo " .. path)
    for _, mode in ipairs { "r", "rw" } do
      assert.error_matches(function() torch.DiskFile(path, mode) end,
        "torch.DiskFile: cannot open '" .. path .. "': it is a FIFO, not a regular file")
      assert.error_matches(function() torch.DiskFile("/dev/zero", mode) end, "cannot open '/dev/zero': it is a device")
    end
    assert.error_matches(function() torch.load(path) end, "cannot open '" .. path .. "': it is a FIFO")
    os.remove(path)
    local wide = torch.serialize(torch.FloatTensor(2, 3))
    local strides = "\3" .. ("%z"):rep(7) .. "\1" .. ("%z"):rep(7)
    temp.write(path, (wide:gsub(strides, "\9" .. ("\0"):rep(7) .. "\1" .. ("\0"):rep(7))))
    for _, load in ipairs { torch.load, lm.load } do
      assert.error_matches(function() load(path) end, path .. "': a float32 tensor: .*storage")
    end
  end)

  it("takes neither tables of sizes below 0 nor those nested without end", function()
    local function int(n) return string.char(n % 256, n < 0 and 255 or 0, n < 0 and 255 or 0, n < 0 and 255 or 0) end
    temp.write(path, int(3) .. int(1) .. int(-5))
    for _, load in ipairs { torch.load, lm.load } do
      assert.error_matches(function() load(path) end, path .. "': malformed Torch7 file: a table of %-5")
    end
    for text, word in pairs { ["3\n1\nnan\n"] = "nan", ["2\n1.5\nab\n"] = "1%.5", ["2\nnan\nab\n"] = "nan" } do
      assert.error_matches(function() torch.deserialize(text, "ascii") end, "expected an integer, got '" .. word .. "'")
    end
    local parts = {}
    for i = 1, 100000 do
      parts[i] = int(3) .. string.char(i % 256, math.floor(i / 256) % 256, math.floor(i / 65536), 0) .. int(1)
        .. int(1) .. "\0\0\0\0\0\0\240\63"
    end
    temp.write(path, table.concat(parts) .. int(0))
    for _, load in ipairs { torch.load, lm.load } do
      assert.error_matches(function() load(path) end, path .. "': malformed Torch7 file: objects are nested too")
    end
    local deep, net = {}, nn.Sequential()
    for _ = 1, 300 do deep, net = { deep }, nn.Sequential():add(net) end
    torch.save(path, { deep, net })
    local back, layers = torch.load(path)[2], 0
    while back:get(1) do back, layers = back:get(1), layers + 1 end
    assert.equal(300, layers)
    for _ = 1, 1000 do deep = { deep } end
    assert.error_matches(function() torch.save(path, deep) end, "torch.save: .*nested deeper than %d+")
  end)

  it("of a command reads its output or writes its input", function()
    local pipe = torch.PipeFile("printf '3 4\\n5'"):ascii()
    assert.same({ 3, 4, 5 }, { pipe:readInt(), pipe:readInt(), pipe:readInt() })
    pipe:close()
    local to = os.tmpname()
    pipe = torch.PipeFile("cat >" .. to, "w"):ascii()
    pipe:writeString "one\n"
    pipe:synchronize()
    pipe:writeString "two"
    pipe:close()
    assert.equal("one\ntwo", temp.read(to))
    pipe = torch.PipeFile("true", "w"):ascii()
    pipe:writeString(("x"):rep(200000)) -- which nobody reads
    pipe:close()
    os.remove(to)
  end)

  it("keeps shared storages, ends memory files with a zero, and swaps bytes", function()
    local x = torch.range(1, 6)
    local back = torch.deserialize(torch.serialize { x, x:narrow(1, 2, 2), x:storage() })
    back[1]:fill(7)
    assert.same({ 7, 7 }, back[2]:totable())
    assert.equal(7, back[3][6])
    assert.equal(torch.pointer(back[1]:storage()), torch.pointer(back[2]:storage()))
    local file = torch.MemoryFile("w"):binary()
    file:writeObject { false }
    local bytes = file:storage()
    assert.equal(0, bytes[#bytes])
    assert.same({ false }, torch.MemoryFile(bytes, "r"):binary():readObject())
    assert.error_matches(function() torch.MemoryFile(torch.CharStorage { 1 }) end, "element of a storage must be 0")
    assert.error_matches(function() torch.MemoryFile(5) end, "torch.MemoryFile: data must be a string, got 5")
    local kept = torch.serializeToStorage "text"
    assert.equal(#torch.serialize "text", #kept)
    assert.equal("text", torch.deserializeFromStorage(kept))
    file = torch.MemoryFile():binary():bigEndianEncoding()
    file:writeInt(258)
    file:writeShort(torch.ShortStorage { 1, 2 })
    file:writeObject { "a", 2.5 }
    assert.equal("\0\0\1\2\0\1\0\2", file:storage():string():sub(1, 8))
    file:seek(1)
    assert.same({ 258, 1 }, { file:readInt(), file:readShort() })
    assert.same({ 2 }, file:readShort(1):totable())
    assert.same({ "a", 2.5 }, file:readObject())
    file:seek(1)
    assert.equal(33619968, file:littleEndianEncoding():readInt())
    assert.is_false(file:isBigEndianCPU())
  end)

  it("may be quiet, write objects again, and change them by a hook", function()
    local file = torch.MemoryFile():ascii()
    file:writeString "one\ntwo\n"
    file:seek(1)
    local lines = {}
    file:quiet()
    while true do
      local text = file:readString "*l"
      if file:hasError() then break end
      lines[#lines + 1] = text
    end
    assert.same({ "one", "two" }, lines)
    assert.is_true(file:isQuiet())
    assert.is_false(file:clearError():hasError())
    assert.error_matches(function() file:pedantic():readString "*l" end, "end of file")
    local t, again = {}, torch.MemoryFile():binary():referenced(false)
    again:writeObject { t, t }
    again:seek(1)
    local back = again:readObject()
    assert.is_false(rawequal(back[1], back[2]))
    local hooked = torch.MemoryFile():binary()
    hooked:writeObject({ torch.ones(1) }, nil, function(x) return torch.isTensor(x) and x:clone():fill(5) or x end)
    hooked:seek(1)
    assert.equal(5, hooked:readObject()[1][1])
  end)
end)

describe("torch.DiskFile", function()
  it("creates a file for 'rw'; if quiet, one that cannot be opened is nil", function()
    local folder = temp.folder()
    local file = torch.DiskFile(folder .. "/new", "rw"):binary()
    file:writeBool(true)
    file:writeBool(false)
    file:seek(1)
    assert.same({ true, false }, { file:readBool(), file:readBool() })
    file:close()
    assert.is_nil(torch.DiskFile(folder .. "/none", "r", true))
    assert.is_nil(torch.DiskFile(folder .. "/none/file", "w", true))
    assert.error_matches(function() torch.DiskFile(folder .. "/none", "r") end, "torch.DiskFile: cannot open")
    temp.remove(folder)
  end)
end)
