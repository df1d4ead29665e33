-- lm.save and lm.load: the bytes of the file, nesting, broken files, atomicity.
local lm = require "luminary"
local ffi = require "ffi"
local temp = require "spec.support.temp"
local nn, optim = lm.nn, lm.optim
local load_idx = require("luminary.file_formats.idx").load
local message = require "spec.support.error_of"
local LONG = os.getenv "LM_TEST_LONG" ~= nil

ffi.cdef "int getpid(void);"

local path
local folder = temp.during(setup, teardown)
before_each(function() path = folder .. "/file.safetensors" end)
after_each(function() os.execute("rm -f " .. folder .. "/*") end)

local function little_endian(n)
  local bytes = {}
  for i = 1, 8 do bytes[i], n = string.char(n % 256), math.floor(n / 256) end
  return table.concat(bytes)
end

-- Returns a safetensors file of that header and data.
local function file_of(header, bytes) return little_endian(#header) .. header .. (bytes or "") end

-- Returns header and data of a file.
local function taken_apart(text)
  local length = 0
  for i = 8, 1, -1 do length = length * 256 + text:byte(i) end
  return text:sub(9, 8 + length), text:sub(9 + length)
end

local function raw(values, ctype)
  return ffi.string(ffi.new(ctype .. "[?]", #values, values), ffi.sizeof(ctype) * #values)
end

describe("a flat table of tensors", function()
  it("is a plain safetensors file", function()
    lm.save(path, { weight = lm.tensor { { 1, 2 }, { 3, 4.5 } }, bias = lm.tensor { -1 } })
    local header, bytes = taken_apart(temp.read(path))
    assert.equal(0, #header % 8)
    assert.equal('{"bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
      .. '"weight":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]}}', (header:gsub(" +$", "")))
    assert.equal(raw({ -1, 1, 2, 3, 4.5 }, "float"), bytes)
  end)

  it("is written the same each time, in order of names, wider elements first", function()
    local function save()
      lm.save(path, { b = lm.zeros { 3 }, a = lm.zeros({ 3 }, { dtype = "uint8" }),
        z = lm.zeros({ 1 }, { dtype = "int64" }), c = lm.zeros({ 1 }, { dtype = "float16" }) })
      return temp.read(path)
    end
    local first = save()
    assert.equal(first, save())
    local header = taken_apart(first)
    local order = {}
    for name in header:gmatch('"(%w)":{') do order[#order + 1] = name end
    assert.equal("z b c a", table.concat(order, " "))
    assert.matches('"z":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}', header, 1, true)
    assert.matches('"a":{"dtype":"U8","shape":[3],"data_offsets":[22,25]}', header, 1, true)
  end)

  it("may have every dtype, no dim, no element", function()
    local saved = {}
    for _, dtype in ipairs {
      "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint16", "uint8", "bool",
    } do
      saved[dtype] = lm.tensor({ { 1, 0 }, { 3, 2 } }):to(dtype)
      saved[dtype .. " 0-d"] = lm.ones({}, { dtype = dtype })
      saved[dtype .. " empty"] = lm.ones({ 2, 0, 3 }, { dtype = dtype })
    end
    lm.save(path, saved)
    local loaded, count = lm.load(path), 0
    for name, t in pairs(loaded) do
      assert.equal(saved[name].dtype, t.dtype)
      assert.is_true(saved[name]:equal(t))
      assert.same(saved[name].shape, t.shape)
      count = count + 1
    end
    assert.equal(33, count)
  end)

  it("is written contiguous, tensors that share memory apart", function()
    local x = lm.arange(24):view(2, 3, 4)
    lm.save(path, { x = x, t = x:permute(3, 1, 2), row = x[1], expanded = lm.ones({ 1, 2 }):expand { 3, 2 },
      last = lm.randn({ 2, 3, 4, 5 }):contiguous { memory_format = "channels_last" } })
    local loaded = lm.load(path)
    assert.is_true(loaded.t:equal(x:permute(3, 1, 2)))
    assert.is_true(loaded.row:equal(x[1]))
    assert.same({ { 1, 1 }, { 1, 1 }, { 1, 1 } }, loaded.expanded:totable())
    loaded.x:zero_()
    assert.equal(11, loaded.row:max():item())
    for _, t in pairs(loaded) do assert.is_true(t:is_contiguous()) end
  end)

  it("may need gradients, or be large", function()
    local p = nn.Parameter(lm.randn { 1000, 300 })
    lm.save(path, { p = p })
    local loaded = lm.load(path).p
    assert.is_true(loaded:equal(p:detach()))
    assert.is_false(loaded.requires_grad)
  end)

  it("loads from bytes written by hand", function()
    local header = '{"__metadata__":{"format":"pt"},"b":{"shape":[],"data_offsets":[6,14],"dtype":"F64"},'
      .. '"a":{"dtype":"F16","shape":[3,1],"data_offsets":[0,6]}}   '
    temp.write(path, file_of(header, "\0\60\0\192\0\56" .. raw({ 0.1 }, "double")))
    local loaded = lm.load(path)
    assert.same({ { 1 }, { -2 }, { 0.5 } }, loaded.a:totable())
    assert.equal("float16", loaded.a.dtype)
    assert.equal(0.1, loaded.b:item())
    temp.write(path, file_of('{}'))
    assert.same({}, lm.load(path))
  end)

  it("loads onto a device", function()
    lm.save(path, { lm.ones { 2 }, deep = { t = lm.ones { 3 } } })
    local loaded = lm.load(path, { device = "cpu:1" })
    assert.equal("cpu:1 cpu:1", loaded[1].device .. " " .. loaded.deep.t.device)
    assert.matches("{device = \"cpu:1\"}", message(lm.load, path, "cpu:1"), 1, true)
    lm.save(path, { t = loaded[1] }) -- saves from a mapped file
    assert.equal("cpu", lm.load(path).t.device)
  end)
end)

describe("what is loaded", function()
  it("may be written to without reaching the file", function()
    lm.save(path, { t = lm.zeros { 100000 } })
    local before = temp.read(path)
    local t = lm.load(path).t
    t:fill_(7)
    assert.equal(before, temp.read(path))
    assert.equal(0, lm.load(path).t:sum():item())
    assert.equal(700000, t:sum():item())
  end)

  it("outlives its file, replaced or removed", function()
    lm.save(path, { t = lm.ones { 100000 } })
    local old = lm.load(path).t
    lm.save(path, { t = lm.zeros { 100000 } })
    local new = lm.load(path).t
    os.remove(path)
    collectgarbage()
    assert.same({ 100000, 0 }, { old:sum():item(), new:sum():item() })
  end)

  it("may be saved over its own file", function()
    lm.save(path, { t = lm.ones { 100000 } })
    local t = lm.load(path).t
    lm.save(path, { t = t, twice = t })
    assert.equal(100000, lm.load(path).twice:sum():item())
  end)

  it("stays what it was when the file is written over in place, or cut", function()
    lm.save(path, { t = lm.ones { 100000 } })
    temp.write(folder .. "/child.lua", ([[
      local lm = require "luminary"
      local path = %q
      local function write(bytes) local file = io.open(path, "wb") file:write(bytes) file:close() end
      local bytes = io.open(path, "rb"):read "*a"
      local t = lm.load(path).t
      write(("\0"):rep(#bytes)) -- as cp does
      print(t:sum():item())
      write "" -- a mapping would end the process at the next touch
      print(t:sum():item())
    ]]):format(path))
    local ok, text = temp.run(folder, "timeout 60 luajit " .. folder .. "/child.lua")
    assert(ok, text)
    assert.equal("100000\n100000\n", text)
  end)

  it("may be mapped instead", function()
    lm.save(path, { t = lm.ones { 100000 }, small = lm.ones { 2 }, b = lm.ones({ 5000 }, { dtype = "bool" }) })
    local function mapped() return temp.read("/proc/self/maps"):find(path, 1, true) ~= nil end
    local read = lm.load(path)
    assert.is_false(mapped())
    local t = lm.load(path, { mmap = true })
    assert.is_true(mapped())
    for name in pairs(t) do assert.is_true(t[name]:equal(read[name])) end
    t.t:fill_(7) -- the process's own
    assert.equal(100000, lm.load(path).t:sum():item())
    t = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.is_false(mapped())
    assert.matches("mmap", message(lm.load, path, { mmap = 3 }))
  end)

  -- Loads a file while the collector runs, and a finalizer does what another process might.
  local function load_while(meanwhile)
    local header, at = {}, 0
    local function add(name, n)
      header[#header + 1] = ('"%s":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}'):format(name, n, at, at + n)
      at = at + n
    end
    for i = 1, 2000 do add("small" .. i, 1) end
    add("large", 40 * 2 ^ 20) -- two of them are not read at once
    add("larger", 60 * 2 ^ 20)
    temp.write(path, file_of("{" .. table.concat(header, ",") .. "}"))
    local length = #temp.read(path)
    assert(os.execute(("truncate -s %d %s; sleep 0.05"):format(length + at, path)) == 0)
    local done = false
    local function is_open()
      return os.execute(("ls -l /proc/%d/fd | grep -q %s"):format(ffi.C.getpid(), path)) == 0
    end
    local function plant()
      getmetatable(newproxy(true)).__gc = function()
        if done then return end
        if is_open() then
          done = true
          meanwhile(length + at)
        else
          plant()
        end
      end
    end
    local pause, mul = collectgarbage("setpause", 10), collectgarbage("setstepmul", 10000)
    collectgarbage()
    plant()
    local ok, problem = pcall(lm.load, path)
    collectgarbage("setpause", pause)
    collectgarbage("setstepmul", mul)
    assert.is_true(done)
    return ok, problem
  end

  it("is never half of one file and half of another", function()
    local ok, problem = load_while(function(bytes)
      os.execute(("truncate -s %d %s"):format(bytes - 1000, path))
    end)
    assert.is_false(ok)
    assert.matches(path .. "': changed while it was read: it had %d+ bytes and has %d+ now", problem)
    ok, problem = load_while(function()
      local file = io.open(path, "r+b")
      file:seek("end", -1)
      file:write "x"
      file:close()
    end)
    assert.is_false(ok)
    assert.matches(path .. "': changed while it was read", problem, 1, true)
    assert.is_true((load_while(function() end)))
  end)
end)

describe("nested values", function()
  local function round(value)
    lm.save(path, value)
    return lm.load(path)
  end

  it("come back as they were", function()
    local value = {
      step = 3, lr = 0.1, name = "a \"quoted\" \\ name\nwith UTF-8: ü", yes = true, no = false,
      list = { 1, 2, { 3, "four" } }, empty = {}, [10] = "ten", [-1] = "minus one", [0] = "zero",
      mixed = { "one", "two", key = "value", [7] = "seven" }, ["10"] = "a string", [""] = "no name",
      numbers = { 1e300, -0.1, 2 ^ 53, 1 / 3, 123456789.123456789 }, ["a.b"] = { c = 1 }, a = { b = { c = 2 } },
    }
    assert.same(value, round(value))
    local numbers = {} -- to the last bit
    for k = 1, 300 do numbers[k] = (math.random() - 0.5) * 10 ^ math.random(-300, 300) end
    for k, number in ipairs(round(numbers)) do assert.equal(numbers[k], number) end
  end)

  it("may be strings of any bytes", function()
    local texts = { "a\0b", "\255\254", "\0", "ü", "\192\128", "\237\160\128", "\240\159\152\128 ü €",
      "\244\144\128\128", "\195", "\195x\169", ("\200"):rep(1000), "" }
    assert.same(texts, round(texts))
    local name = {}
    for i = 0, 255 do name[i + 1] = string.char(i) end
    name = table.concat(name)
    assert.equal(name, round(name))
  end)

  it("may be named by the empty string", function()
    assert.equal(3, round { [""] = lm.tensor { 3 } }[""]:item())
    local loaded = round { [""] = lm.tensor { 3 }, tensor = lm.tensor { 4 } }
    assert.same({ 3, 4 }, { loaded[""]:item(), loaded.tensor:item() })
  end)

  it("may hold tensors anywhere", function()
    local loaded = round { model = { ["0.weight"] = lm.tensor { 1 } }, ["model.0.weight"] = lm.tensor { 2 },
      list = { lm.tensor { 3 }, { deep = lm.tensor { 4 } } }, [5] = lm.tensor { 5 } }
    assert.equal(1, loaded.model["0.weight"]:item())
    assert.equal(2, loaded["model.0.weight"]:item())
    assert.equal(3, loaded.list[1]:item())
    assert.equal(4, loaded.list[2].deep:item())
    assert.equal(5, loaded[5]:item())
    local header = taken_apart(temp.read(path))
    assert.matches('"list.2.deep":{"dtype":"F32"', header, 1, true)
    assert.matches('"__metadata__":{"luminary":"', header, 1, true)
  end)

  it("may be one tensor, or one plain value", function()
    assert.same({ 1, 2 }, round(lm.tensor { 1, 2 }):totable())
    assert.equal(3.5, round(3.5))
    assert.equal("text", round("text"))
    assert.is_false(round(false))
    assert.same({}, round({}))
  end)

  it("may be numbers that JSON lacks", function()
    local loaded = round { math.huge, -math.huge, 0 / 0, -0.0, 9007199254740993LL, -5LL,
      ffi.cast("int64_t", -2 ^ 63) }
    assert.same({ math.huge, -math.huge }, { loaded[1], loaded[2] })
    assert.is_true(loaded[3] ~= loaded[3])
    assert.equal(-math.huge, 1 / loaded[4])
    assert.is_true(loaded[5] == 9007199254740993LL and loaded[6] == -5LL)
    assert.equal(ffi.cast("int64_t", -2 ^ 63), loaded[7])
  end)

  it("hold a training run: model, optimizer, schedule, generators", function()
    local function build()
      lm.manual_seed(1)
      local net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
      local opt = optim.AdamW({ { params = net[1]:parameters(), lr = 0.05 }, { params = net[2]:parameters() },
        { params = net[4]:parameters() } }, { lr = 0.01, amsgrad = true })
      return net, opt, optim.lr_scheduler.StepLR(opt, 2)
    end
    local function train(net, opt, schedule, steps)
      for _ = 1, steps do
        local loss = nn.functional.cross_entropy(net(lm.randn { 6, 4 }), lm.randint(1, 3, { 6 }))
        opt:zero_grad()
        loss:backward()
        opt:step()
        schedule:step()
      end
    end
    local net, opt, schedule = build()
    train(net, opt, schedule, 3)
    lm.save(path, { model = net:state_dict(), optimizer = opt:state_dict(), schedule = schedule:state_dict(),
      generator = lm.get_rng_state() })
    train(net, opt, schedule, 3)
    local other, other_opt, other_schedule = build()
    lm.manual_seed(99)
    local saved = lm.load(path)
    other:load_state_dict(saved.model)
    other_opt:load_state_dict(saved.optimizer)
    other_schedule:load_state_dict(saved.schedule)
    lm.set_rng_state(saved.generator)
    train(other, other_opt, other_schedule, 3)
    local want = net:state_dict()
    for key, t in pairs(other:state_dict()) do assert(t:equal(want[key]), key) end
  end)

  it("refuse what is no plain value, by its path", function()
    assert.matches("save: model.f is a function", message(lm.save, path, { model = { f = print } }))
    assert.matches("state_dict", message(lm.save, path, { model = nn.Linear(1, 1) }))
    assert.matches("save: model is an object; save its :state_dict()", message(lm.save, path,
      { model = nn.Linear(1, 1) }), 1, true)
    assert.matches("the value is an object", message(lm.save, path, optim.SGD(nn.Linear(1, 1):parameters())))
    assert.matches("key of type boolean", message(lm.save, path, { [true] = 1 }))
    assert.matches("key of type number", message(lm.save, path, { deep = { [1.5] = 1 } }))
    local loop = {}
    loop.again = loop
    assert.matches("contains itself", message(lm.save, path, loop))
    assert.matches("thread", message(lm.save, path, { coroutine.create(print) }))
    assert.error(function() lm.save(path, { ["bad \255 name"] = lm.ones { 1 } }) end)
    assert.error(function() lm.save(path, { ["__metadata__"] = lm.ones { 1 } }) end)
    assert.matches("which is not valid UTF%-8", message(lm.save, path, { ["\255\254"] = 1 }))
    assert.is_nil(io.open(path)) -- nothing was written
  end)
end)

describe("arguments", function()
  it("in the wrong order are caught", function()
    assert.matches("pass the path first: lm%.save%(path, value%)", message(lm.save, { t = lm.ones { 1 } }, path))
    assert.matches("pass the path first: lm%.save%(path, value%)", message(lm.save, lm.ones { 1 }, path))
    assert.matches("path", message(lm.save, { t = lm.ones { 1 } }))
    assert.matches("value is required: lm%.save%(path, value%)", message(lm.save, path))
    assert.matches("path must be a string, got nil", message(lm.load))
    assert.matches("path must be a string, got a table", message(lm.load, { path }))
    assert.matches("did you mean 'device'", message(lm.load, path, { devise = "cpu" }))
  end)
end)

describe("a dtype that tensors here do not have", function()
  local function entry(name, dtype, shape, from, to)
    return ('"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}'):format(name, dtype, shape, from, to)
  end

  it("is widened where that loses nothing", function()
    local n = 5000 -- more than a small tensor, which is not mapped
    local long, bytes = {}, {}
    for i = 1, n do
      long[i] = i * 13 % 65536
      bytes[i] = string.char(long[i] % 256, math.floor(long[i] / 256), 0, 0)
    end
    local header = "{" .. table.concat({ entry("i8", "I8", "[4]", 0, 4), entry("f", "F32", "[1]", 4, 8),
      entry("i16", "I16", "[2,2]", 8, 16), entry("u16", "U16", "[3]", 16, 22), entry("u32", "U32", "[3]", 22, 34),
      entry("none", "I16", "[0,2]", 34, 34), entry("one", "I8", "[]", 34, 35),
      entry("long", "U32", "[" .. n .. "]", 35, 35 + 4 * n) }, ",") .. "}"
    temp.write(path, file_of(header, raw({ 0, 127, -128, -1 }, "int8_t") .. raw({ 0.5 }, "float")
      .. raw({ 1, -1, 32767, -32768 }, "int16_t") .. raw({ 1, 32768, 65535 }, "uint16_t")
      .. raw({ 1, 2147483648, 4294967295 }, "uint32_t") .. raw({ -7 }, "int8_t") .. table.concat(bytes)))
    for _, mmap in ipairs { false, true } do
      local loaded = lm.load(path, { mmap = mmap })
      assert.same({ 0, 127, -128, -1 }, loaded.i8:totable())
      assert.same({ { 1, -1 }, { 32767, -32768 } }, loaded.i16:totable())
      assert.same({ 1, 32768, 65535 }, loaded.u16:totable())
      assert.same({ 1, 2147483648, 4294967295 }, loaded.u32:totable())
      assert.same({ { 0, 2 }, -7, 0.5 }, { loaded.none.shape, loaded.one:item(), loaded.f:item() })
      assert.same(long, loaded.long:totable())
      assert.same({ "int8", "int16", "uint16", "int64" },
        { loaded.i8.dtype, loaded.i16.dtype, loaded.u16.dtype, loaded.u32.dtype })
    end
    temp.write(path, file_of("{" .. entry("a", "I16", "[2]", 0, 8) .. "}", ("x"):rep(8)))
    assert.matches("malformed safetensors header: 'a' of shape [2] and dtype I16 does not match its 8 bytes",
      message(lm.load, path), 1, true)
  end)

  it("has a header of names and sizes alone, whose values take bounded memory", function()
    local function refuses(words, header)
      temp.write(path, file_of(header, ""))
      collectgarbage()
      local before = collectgarbage "count"
      assert.matches(words, message(lm.load, path))
      assert(collectgarbage "count" - before < 150 * #header / 1024, words) -- KB, before anything is collected
    end
    local numbers = ("0,"):rep(200000) .. "0"
    refuses("'a' has more than 8 dims", '{"a":{"dtype":"F32","shape":[' .. numbers .. "]}}")
    local most = 2 ^ 22
    for _, value in ipairs { "0", "[]", '""' } do
      refuses("malformed safetensors header: the number of values must be at most 4194304, got more",
        '{"a":[' .. (value .. ","):rep(most) .. "0]}")
    end
    local described = '{"__metadata__":{"luminary":"{\\"list\\":[' .. ("0,"):rep(most) .. '0]}"}}'
    temp.write(path, file_of(described, ""))
    assert.matches("malformed description in the metadata: the number of values must be at most 4194304, got more",
      message(lm.load, path))
    local safetensors = require "luminary.file_formats.safetensors"
    local function save(metadata) safetensors.write(path, {}, metadata, {}) end
    save { x = ("0,"):rep(most) } -- a text is one value
    local _, metadata = require("luminary.file_formats.source").with(path, {}, safetensors.read)
    assert.equal(2 * most, #metadata.x)
    assert.matches("save: the header of 0 tensors and other values has 100000025 bytes, more than readers accept",
      message(save, { x = ("n"):rep(1e8) }))
    local list, n = {}, 0 -- the shortest that there are
    for i = 1, 300 do
      list[i] = ('"%s":{"dtype":"I8","shape":[1,1,1,1,1,1,1,1],"data_offsets":[%d,%d]}'):format(
        string.char(48 + i % 43, 48 + math.floor(i / 43)):gsub('["\\]', "_"), n, n + 1)
      n = n + 1
    end
    temp.write(path, file_of("{" .. table.concat(list, ",") .. "}", ("x"):rep(n)))
    local loaded = 0
    for _ in pairs(lm.load(path)) do loaded = loaded + 1 end
    assert.equal(300, loaded)
  end)

  it("is left out else, which is one warning that names it, and an error where nothing is left", function()
    local list = { entry("w", "F32", "[2]", 0, 8) }
    for i = 1, 5 do list[i + 1] = entry("q" .. i, "F6_E2M3", "[2]", 6 + 2 * i, 8 + 2 * i) end
    list[#list + 1] = entry("end", "F32", "[1]", 18, 22)
    temp.write(path, file_of("{" .. table.concat(list, ",") .. "}", raw({ 1, 2 }, "float") .. ("q"):rep(10)
      .. raw({ 3 }, "float")))
    temp.write(folder .. "/child.lua", [[
      local lm = require "luminary"
      for _, mmap in ipairs { false, true } do
        local loaded, names = lm.load(arg[1], { mmap = mmap }), {}
        for name in pairs(loaded) do names[#names + 1] = name end
        table.sort(names)
        print(table.concat(names, " "), loaded.w[2], loaded["end"][1])
      end
    ]])
    local ok, text = temp.run(folder, ("luajit %s/child.lua %s 2>&1"):format(folder, path))
    assert(ok, text)
    assert.equal(2, select(2, text:gsub("end w%s+2%s+3", "")))
    assert.matches("warning: load: '" .. path .. "': unsupported: 'q1' (F6_E2M3), 'q2' (F6_E2M3), "
      .. "'q3' (F6_E2M3) and 2 more, left out", text, 1, true)
    assert.equal(1, select(2, text:gsub("warning", "")))
    local root = temp.folder()
    local long = root .. ("/" .. ("é"):rep(100)):rep(9) -- the warning is not cut off
    assert(temp.execute("mkdir -p " .. long) == 0 and temp.execute(("cp %s %s/x"):format(path, long)) == 0)
    ok, text = temp.run(folder, ("luajit %s/child.lua %s/x 2>&1"):format(folder, long))
    temp.remove(root)
    assert(ok, text)
    assert.matches("warning: load: '" .. long .. "/x': unsupported: 'q1' (F6_E2M3), 'q2' (F6_E2M3), "
      .. "'q3' (F6_E2M3) and 2 more, left out\n", text, 1, true)
    temp.write(path, file_of("{" .. entry("a", "F4", "[1]", 0, 8) .. "}", ("x"):rep(8)))
    assert.matches("unsupported: 'a' (F4), and the file has nothing else",
      message(lm.load, path), 1, true)
    temp.write(path, file_of("{" .. entry("a", "F6_E3M2", "[2]", 0, 2) .. "," .. list[1]:gsub("0,8", "3,11") .. "}",
      ("x"):rep(11)))
    assert.matches("a gap or an overlap", message(lm.load, path)) -- its offsets are checked all the same
  end)
end)

describe("a file that is none", function()
  local one = '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
  local eight = ("x"):rep(8)
  local function entry(dtype, shape, offsets)
    return ('{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}'):format(dtype, shape, offsets)
  end
  local broken = {
    ["is empty"] = "", ["is too short"] = "\1\0\0\0",
    ["has a header longer than the file"] = little_endian(100) .. "{}",
    ["has a huge header"] = ("\255"):rep(8) .. "{}", ["has no header"] = little_endian(0) .. "xx",
    ["is a text"] = ("hello world, this is a text\n"):rep(9), ["is a list"] = file_of("[]"),
    ["has no JSON"] = file_of("{abc}"), ["has an open object"] = file_of("{" .. one, eight),
    ["goes on after the object"] = file_of("{" .. one .. "}x", eight),
    ["has bad UTF-8"] = file_of('{"\255":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', eight),
    ["has a name twice"] = file_of("{" .. one .. "," .. one .. "}", eight),
    ["has a tensor that is no object"] = file_of('{"a":3}'),
    ["lacks dtype"] = file_of('{"a":{"shape":[],"data_offsets":[0,0]}}'),
    ["lacks shape"] = file_of('{"a":{"dtype":"F32","data_offsets":[0,8]}}', eight),
    ["lacks offsets"] = file_of('{"a":{"dtype":"F32","shape":[2]}}', eight),
    ["has a strange field"] = file_of('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}', eight),
    ["has an unknown dtype"] = file_of(entry('"F31"', "[2]", "[0,8]"), eight),
    ["has a dtype that is a number"] = file_of(entry("32", "[2]", "[0,8]"), eight),
    ["has a negative size"] = file_of(entry('"F32"', "[-2]", "[0,8]"), eight),
    ["has half a size"] = file_of(entry('"F32"', "[1.5]", "[0,8]"), eight),
    ["has a size that is a string"] = file_of(entry('"F32"', '["2"]', "[0,8]"), eight),
    ["has a shape that is a number"] = file_of(entry('"F32"', "2", "[0,8]"), eight),
    ["has sizes that overflow"] = file_of(entry('"F32"', "[4294967296,4294967296,4294967296]", "[0,8]"), eight),
    ["has sizes that overflow in bytes"] = file_of(entry('"F64"', "[2305843009213693953]", "[0,8]"), eight),
    ["has too many dims"] = file_of(entry('"F32"', "[" .. ("1,"):rep(64) .. "2]", "[0,8]"), eight),
    ["has offsets beyond the end"] = file_of(entry('"F32"', "[3]", "[0,12]"), eight),
    ["has offsets the wrong way round"] = file_of(entry('"F32"', "[2]", "[8,0]"), eight),
    ["has huge offsets"] = file_of(entry('"F32"', "[2]", "[18446744073709551608,16]"), eight),
    ["has negative offsets"] = file_of(entry('"F32"', "[2]", "[-8,0]"), eight),
    ["has one offset"] = file_of(entry('"F32"', "[2]", "[8]"), eight),
    ["has three offsets"] = file_of(entry('"F32"', "[2]", "[0,8,8]"), eight),
    ["has offsets that do not fit the shape"] = file_of(entry('"F32"', "[1]", "[0,8]"), eight),
    ["has a gap"] = file_of(entry('"F32"', "[1]", "[4,8]"), eight),
    ["has bytes no tensor has"] = file_of("{" .. one .. "}", eight .. "x"),
    ["has an overlap"] = file_of("{" .. one .. ',"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
      eight .. "1234"),
    ["is cut short"] = file_of("{" .. one .. "}", "1234567"),
    ["has a boolean of 2"] = file_of(entry('"BOOL"', "[2]", "[0,2]"), "\1\2"),
    ["has metadata that is a list"] = file_of('{"__metadata__":["a"],' .. one .. "}", eight),
    ["has metadata that is a number"] = file_of('{"__metadata__":{"a":3},' .. one .. "}", eight),
    ["has metadata twice"] = file_of('{"__metadata__":{},"__metadata__":{},' .. one .. "}", eight),
    ["is nested deep"] = file_of(('{"a":'):rep(5000) .. "1" .. ("}"):rep(5000)),
  }
  for what, bytes in pairs(broken) do
    it(what, function()
      temp.write(path, bytes)
      assert.matches(path, message(lm.load, path), 1, true) -- the message names the file
    end)
  end

  it("is of another kind: the error says what it is, or what would be read", function()
    for pattern, text in pairs {
      ["not a file of weights: JSON"] = '{"hidden_size": 8}',
      ["not a file of weights: compressed by"] = "\31\139\8\0\0\0\0\0\0\3\1",
      ["not a file of weights: HDF5"] = "\137HDF\r\n\26\n",
      ["unknown format"] = "some text of somebody's",
    } do
      temp.write(path, text)
      assert.matches(pattern, message(lm.load, path))
    end
  end)

  it("names what is in it without what a terminal would obey", function()
    temp.write(path, file_of('{"\\u001b[31m\\na":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', eight))
    assert.matches("'?[31m?a' of shape [3]", message(lm.load, path), 1, true)
    temp.write(path, file_of('{"\\u001b[31ma":{"dtype":"F9\\u001b","shape":[3],"data_offsets":[0,8]}}', eight))
    assert.matches("unsupported: '?[31ma' (F9?), and the file has nothing else", message(lm.load, path), 1, true)
  end)

  it("is missing, a folder, a device", function()
    assert.matches("No such file", message(lm.load, folder .. "/nothing"))
    assert.matches("not a regular file", message(lm.load, folder))
    assert.matches("not a regular file", message(lm.load, "/dev/zero"))
  end)

  it("is a FIFO, a socket, or a link to one: nobody is waited for", function()
    temp.write(folder .. "/child.lua", [[
      local ffi = require "ffi"
      ffi.cdef "int mkfifo(const char *, unsigned); int socket(int, int, int); int bind(int, const void *, unsigned);"
      ffi.cdef "struct address { uint16_t family; char path[108]; };"
      local lm, folder = require "luminary", arg[1]
      local core = require "luminary.core"
      local fifo, socket, link = folder .. "/fifo", folder .. "/socket", folder .. "/link"
      assert(ffi.C.mkfifo(fifo, 384) == 0)
      assert(ffi.C.bind(ffi.C.socket(1, 1, 0), ffi.new("struct address", {1, socket}), 110) == 0)
      assert(os.execute("ln -s fifo " .. link) == 0)
      for _, path in ipairs {fifo, socket, link} do
        for name, f in pairs {
          load = lm.load, map = function(p) lm.load(p, {mmap = true}) end,
          idx = require("luminary.file_formats.idx").load,
          save = function(p) lm.save(p, {lm.ones(2)}) end,
        } do
          local ok, problem = pcall(f, path)
          assert(not ok and problem:find("not a regular file", 1, true), name .. ": " .. tostring(problem))
        end
        assert(core.file_kind(path) == (path == socket and "a socket" or "a FIFO"))
      end
    ]])
    local ok, text = temp.run(folder, ("timeout 60 luajit %s/child.lua %s"):format(folder, folder))
    assert(ok, text)
  end)

  it("written over another keeps who may read it", function()
    lm.save(path, { lm.ones { 2 } })
    assert.equal(0, os.execute("chmod 640 " .. path))
    lm.save(path, { lm.ones { 3 } })
    local _, mode = temp.run(folder, "stat -c %a " .. path)
    assert.equal("640\n", mode)
  end)

  it("is named by a long path, and still the reason is told", function()
    for _, n in ipairs { 300, 1500, 5000 } do
      local long = folder .. "/" .. ("directory/"):rep(n / 10) .. "x"
      for _, f in ipairs { lm.load, load_idx, function(p) lm.save(p, { lm.ones { 2 } }) end } do
        local text = message(f, long)
        assert(text:find("No such file", 1, true) or text:find("File name too long", 1, true), text)
        assert(#text < 1200)
      end
    end
  end)

  it("has a zero byte in a name", function()
    temp.write(path, file_of('{"a\\u0000b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', eight))
    assert.matches("a string contains a NUL byte", message(lm.load, path))
    temp.write(path, file_of('{"__metadata__":{"a":"b\\u0000c"},' .. one .. "}", eight))
    assert.matches("a string contains a NUL byte", message(lm.load, path))
    temp.write(path, file_of('{"__metadata__":{"a":"\\\\u0000c"},' .. one .. "}", eight)) -- a backslash, and text
    assert.same({ 2 }, lm.load(path).a.shape)
  end)

  it("has a broken description", function()
    for what, description in pairs {
      ["a null"] = '{"table":{"x":{"tensor":"a"},"y":null}}',
      ["no JSON"] = "{", ["no tensor"] = '{"tensor":"b"}', ["a field"] = '{"code":"os.exit()"}', ["null"] = "null",
      ["a bad key"] = '{"integers":{"x":1}}', ["a bad number"] = '{"number":"big"}',
      ["a list as table"] = '{"table":3}', ["half a byte"] = '{"bytes":"abc"}', ["no hex"] = '{"bytes":"xy"}',
      ["an integer"] = '{"integer":"12x"}', ["a long integer"] = '{"integer":"99999999999999999999"}',
      ["deep nesting"] = ('{"table":{"a":'):rep(300) .. "1" .. ("}}"):rep(300), ["a list of what"] = '{"list":[[1]]}',
      ["a tensor that is a table"] = '{"tensor":{}}', ["no tensor that is there"] = '{"table":{"x":1}}',
      ["a tensor and more"] = '{"tensor":"a","table":{"x":1}}', ["a number and more"] = '{"number":"inf","x":1}',
      ["a key twice"] = '{"table":{"x":1,"x":{"tensor":"a"}}}', ["holes"] = '{"list":[{"tensor":"a"},null,2]}',
      ["a place twice"] = '{"list":[{"tensor":"a"}],"integers":{"1":2}}',
      ["a place twice by zeros"] = '{"table":{"a":{"tensor":"a"}},"integers":{"7":2,"07":3}}',
      ["two tables of a number"] = '{"list":[{"tensor":"a"},{"id":1,"list":[1]},{"id":1,"list":[2]}]}',
      ["the same and more"] = '{"list":[{"id":1,"list":[{"tensor":"a"}]},{"same":1,"list":[2]}]}',
      ["an integer that is rounded"] = '{"table":{"a":{"tensor":"a"}},"integers":{"9007199254740993":2}}',
    } do
      local metadata = ('{"__metadata__":{"luminary":%q},%s}'):format(description, one)
      temp.write(path, file_of(metadata, eight))
      local ok, value = pcall(lm.load, path)
      assert(not ok, what .. " loaded as " .. lm.repr(value))
      assert.matches(path, value, 1, true)
    end
  end)

  it("never runs code", function()
    _G.ran = nil
    lm.save(path, { "_G.ran = true", ["os.execute('false')"] = "return error('ran')" })
    lm.load(path)
    assert.is_nil(rawget(_G, "ran"))
  end)
end)

describe("a write that fails", function()
  local function files()
    local list = {}
    for name in io.popen("ls " .. folder):lines() do list[#list + 1] = name end
    return table.concat(list, " ")
  end

  it("names the path and leaves the old file", function()
    lm.save(path, { t = lm.ones { 3 } })
    local old = temp.read(path)
    assert.matches(folder .. "/none/file", message(lm.save, folder .. "/none/file", { t = lm.ones { 1 } }), 1, true)
    assert.matches("not a regular file", message(lm.save, "/dev/full", { t = lm.ones { 1 } }))
    assert.matches("not a regular file", message(lm.save, folder, { t = lm.ones { 1 } }))
    assert.error(function() lm.save(path, { t = lm.ones { 1 }, f = print }) end)
    assert.equal(old, temp.read(path))
    assert.equal("file.safetensors", files())
  end)

  it("for want of space leaves the old file and nothing else", function()
    lm.save(path, { t = lm.ones { 3 } })
    local old = temp.read(path)
    temp.write(folder .. "/child.lua", ([[
      local lm = require "luminary"
      print(pcall(lm.save, %q, {t = lm.zeros {100000}}))
    ]]):format(path))
    local ok, text = temp.run(folder, ("trap '' XFSZ; ulimit -f 100; exec luajit %s/child.lua"):format(folder))
    assert(ok, text)
    assert.matches("^false.*too large", text)
    os.remove(folder .. "/child.lua")
    assert.equal(old, temp.read(path))
    assert.equal("file.safetensors", files())
  end)

  it("of an earlier process, left behind, is no obstacle", function()
    temp.write(folder .. "/child.lua", ([[
      local lm, ffi = require "luminary", require "ffi"
      ffi.cdef "int getpid(void);"
      for n = 0, 5 do io.open(%q .. (".tmp-%%d-%%d"):format(ffi.C.getpid(), n), "w"):close() end
      lm.save(%q, {t = lm.ones {2}})
    ]]):format(path, path))
    local ok, text = temp.run(folder, "luajit " .. folder .. "/child.lua")
    assert(ok, text)
    assert.equal(2, lm.load(path).t:sum():item())
  end)
end)

describe("saving through a link", function()
  it("replaces what it points to", function()
    local target = folder .. "/target"
    lm.save(target, { t = lm.ones { 1 } })
    assert(os.execute(("ln -s %s %s"):format(target, path)) == 0)
    lm.save(path, { t = lm.ones { 4 } })
    assert.equal(4, lm.load(target).t:sum():item())
    assert(os.execute("test -L " .. path) == 0)
  end)

  it("creates what a link without a target points to", function()
    assert(os.execute(("cd %s && ln -s ./second %s && ln -s target second"):format(folder, path)) == 0)
    for n = 1, 2 do -- the second replaces it
      lm.save(path, { t = lm.full({ 2 }, n) })
      assert.equal(2 * n, lm.load(folder .. "/target").t:sum():item())
      assert(os.execute(("test -L %s && test -L %s/second"):format(path, folder)) == 0)
    end
    assert(os.execute(("ln -s /nowhere/at/all %s/astray && ln -s circle %s/circle"):format(folder, folder)) == 0)
    assert.matches("cannot write '/nowhere/at/all': No such file or directory", message(lm.save, folder .. "/astray",
      {}))
    assert.matches("circle': Too many levels", message(lm.save, folder .. "/circle", {}))
    assert(os.execute(("test -L %s/astray && test -L %s/circle"):format(folder, folder)) == 0)
  end)
end)

describe("a file name as long as names may be", function()
  it("can be saved", function()
    for _, ending in ipairs { "", ".npz", ".pt" } do
      for _, bytes in ipairs { 99, 100, 101, 238, 255 } do
        local name = folder .. "/" .. ("aé"):rep(85):sub(1, bytes - #ending) .. ending
        lm.save(name, { t = lm.full({ 2 }, bytes) })
        assert.equal(2 * bytes, lm.load(name).t:sum():item())
        os.remove(name)
      end
    end
    assert.equal(0, os.execute(("test -z \"$(ls -A %s)\""):format(folder)))
    assert.matches("File name too long", message(lm.save, folder .. "/" .. ("a"):rep(256), {}))
  end)
end)

describe("a writer killed at any moment", function()
  -- Returns whether the file system has O_TMPFILE.
  local function nameless()
    ffi.cdef "int open(const char *path, int flags, ...); int close(int fd);"
    local flags = jit.arch == "x64" and 0x410001 or 0x404001
    local fd = ffi.C.open(folder, flags, ffi.new("int", 384))
    return fd >= 0 and ffi.C.close(fd) == 0
  end

  it("leaves the old file or the new one, whole, and nothing else where files can be without a name", function()
    local child, tries, hits, left = folder .. "/child.lua", LONG and 200 or 20, 0, 0
    -- Saves files whose every element is their step, as fast as it can.
    temp.write(child, ([[
      local lm = require "luminary"
      local step = lm.load(%q).step
      while true do
        step = step + 1
        lm.save(%q, {step = step, a = lm.full({200000}, step), b = lm.full({70000}, step, {dtype = "int64"})})
        if step %% 2 == 0 then io.open(%q, "w"):close() end
      end
    ]]):format(path, path, folder .. "/ready"))
    lm.save(path, { step = 0, a = lm.zeros { 1 }, b = lm.zeros { 1 } })
    math.randomseed(os.time())
    for try = 1, 10 * tries do -- on a busy machine it may take more until one is hit while it writes
      if try > tries and hits > 0 then break end
      os.remove(folder .. "/ready")
      local delay = math.random() * 0.03
      local ok, text = temp.run(folder, ([[
        luajit %s & child=$!
        while [ ! -e %s/ready ]; do kill -0 $child || exit 1; sleep 0.01; done
        sleep %.4f
        kill -STOP $child
        ls -l /proc/$child/fd >%s/open
        kill -9 $child
        wait $child
        true]]):format(child, folder, delay, folder))
      assert(ok, text)
      local function expect_whole(file)
        local value = lm.load(file)
        local a, b = value.a, value.b
        assert(a:min():item() == value.step and a:max():item() == value.step and b:min():item() == value.step
          and b:max():item() == value.step and value.step > 0, ("%s: try %d, after %.4f s"):format(file, try, delay))
      end
      expect_whole(path)
      local open = temp.read(folder .. "/open")
      if open:find(folder .. "/", 1, true) then hits = hits + 1 end
      for file in temp.output_of(("ls %s.tmp-*"):format(path)):gmatch "[^\n]+" do
        left = left + 1
        if nameless() then expect_whole(file) end -- it had its name, but was not renamed
      end
      os.execute("rm -f " .. path .. ".tmp-*")
    end
    assert(hits > 0, "no writer was killed while it wrote")
    -- A writer has some microseconds between the name and the renaming; one that began with a name would leave each.
    if nameless() then assert(left <= math.max(1, hits / 4), ("%d of %d left a file behind"):format(left, hits)) end
  end)
end)

-- PYTHON may name an interpreter that has numpy and safetensors: each reads what the other wrote.
local python = os.getenv "PYTHON"
if python then
  describe("Python's safetensors", function()
    local dtypes = { "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint16", "uint8", "bool" }

    it("reads what is written here", function()
      local tensors = {}
      for _, dtype in ipairs(dtypes) do
        tensors[dtype] = lm.tensor({ { 1, 0, 2 }, { 3, 4, 5 } }):to(dtype)
        tensors[dtype .. ".scalar"] = lm.ones({}, { dtype = dtype })
        tensors[dtype .. ".empty"] = lm.ones({ 0, 2 }, { dtype = dtype })
      end
      lm.save(path, tensors)
      lm.save(path .. ".nested", { list = { lm.ones { 2 } }, step = 3 })
      temp.write(folder .. "/check.py", [=[
import sys, numpy
from safetensors.numpy import load_file
from safetensors import safe_open
got = load_file(sys.argv[1])
assert len(got) == 21, len(got)
for name, a in got.items():
    dtype, _, kind = name.partition(".")
    assert str(a.dtype) == dtype, (name, a.dtype)
    want = {"": [[1, 0, 2], [3, 4, 5]], "scalar": 1, "empty": numpy.ones((0, 2))}[kind]
    assert numpy.array_equal(a, numpy.array(want).astype(dtype)), name
    assert a.shape == numpy.array(want).shape
with safe_open(sys.argv[1] + ".nested", "np") as f:
    assert list(f.keys()) == ["list.1"] and "luminary" in f.metadata()
]=])
      local ok, text = temp.run(folder, ("%s %s/check.py %s"):format(python, folder, path))
      assert(ok, text)
    end)

    it("writes what is read here", function()
      temp.write(folder .. "/write.py", [=[
import sys, numpy
from safetensors.numpy import save_file
out = {}
for dtype in sys.argv[2:]:
    out[dtype] = numpy.array([[1, 0, 2], [3, 4, 5]]).astype(dtype)
    out[dtype + ".scalar"] = numpy.array(1).astype(dtype)
    out[dtype + ".empty"] = numpy.ones((0, 2)).astype(dtype)
save_file(out, sys.argv[1], metadata={"format": "np"})
]=])
      local names = table.concat(dtypes, " ")
      local ok, text = temp.run(folder, ("%s %s/write.py %s %s"):format(python, folder, path, names))
      assert(ok, text)
      local loaded = lm.load(path)
      for _, dtype in ipairs(dtypes) do
        assert.is_true(loaded[dtype]:equal(lm.tensor({ { 1, 0, 2 }, { 3, 4, 5 } }):to(dtype)))
        assert.equal(dtype, loaded[dtype].dtype)
        assert.same({}, loaded[dtype .. ".scalar"].shape)
        assert.same({ 0, 2 }, loaded[dtype .. ".empty"].shape)
      end
    end)
  end)
end
