-- Reads files of torch.save, also without weights (spec/golden/_pickles.safetensors, of gen_files.py: files, tensors in
-- them as torch.load has them, and the names that PyTorch's own restricted unpickler allows); hostile forms of these.
local lm = require "luminary"
local core = require "luminary.core"
local bytes = require "scripts.dev.fuzz.bytes"
local ffi = require "ffi"
local temp = require "spec.support.temp"
local message = require "spec.support.error_of"

local golden = require("spec.support.golden").load "_pickles"
local little_endian, crc32 = bytes.little_endian, bytes.crc32

local folder = temp.during(setup, teardown)

local function text_of(name)
  local t = assert(golden[name], name)
  return ffi.string(ffi.cast("const char *", t:data_ptr()), t:numel())
end

local function file(name) return temp.write(folder .. "/" .. name:gsub(" ", "_"), text_of(name)) end

-- Returns what f returns, and the texts that it warns of, joined.
local function heard(f, ...)
  local list, warn = {}, core.warn
  core.warn = function(text) list[#list + 1] = text end
  local results = {pcall(f, ...)}
  core.warn = warn
  assert(results[1], results[2])
  return table.concat(list, "\n"), unpack(results, 2)
end

local function same(expected, t, what)
  assert(core.is_tensor(t), what .. " is no tensor")
  assert.equal(expected.dtype, t.dtype, what)
  assert.same({unpack(expected.shape)}, {unpack(t.shape)}, what)
  local a, b = t:detach():cpu():double(), expected:double()
  assert(a:eq(b):logical_or(a:isnan():logical_and(b:isnan())):all():item(), what .. " has other values")
end

-- Compares the tensors of a file with torch.load's; returns what was read, the warning, and their number.
local function compare(name, opts)
  local warning, value, left_out = heard(lm.load, file(name), opts)
  local count, prefix = 0, name .. " "
  for key, expected in pairs(golden) do
    if key:sub(1, #prefix) == prefix then
      local own = key:sub(#prefix + 1)
      same(expected, value[own], key)
      count = count + 1
    end
  end
  return value, warning, count, left_out
end

describe("of torch.save's files", function()
  for name, count in pairs {
    ["views new.pt"] = 10, ["views old.pt"] = 10, ["storages new.pt"] = 13, ["storages old.pt"] = 13,
    ["dtypes new.pt"] = 9, ["sparse old.pt"] = 21, ["sparse new.pt"] = 3, ["quantized new.pt"] = 8,
    ["quantized old.pt"] = 8,
  } do
    it(name .. " has torch.load's values", function()
      for _, opts in ipairs {{}, {mmap = true}, {device = "cpu:1"}} do
        local _, warning, n = compare(name, opts)
        assert.same({"", count}, {warning, n})
      end
    end)
  end

  it("parameters and subclasses require gradients as saved; other properties are listed", function()
    local v, warning, n, left_out = compare "owners new.pt"
    assert.equal(11, n)
    local list = {unpack(left_out)}
    table.sort(list)
    assert.same({"'by_type' (its class __main__.Picture)", "'picture' (its attributes)",
      "'picture' (its class __main__.Picture)", "'with_state' (its attributes)"}, list)
    assert.matches("unsupported: 'by_type' %(its class __main__.Picture%), ", warning)
    for key, wants in pairs {
      parameter = true, with_state = true, leaf = true, from_numpy = true, frozen = false, buffer = false,
      first = false, int = false,
    } do
      assert.equal(wants, v[key].requires_grad, key)
      assert.is_true(v[key].is_leaf, key)
    end
    local _, other = heard(lm.load, file "owners old.pt", {dtype = "float64"})
    assert.same({"float64", true, true}, {other.leaf.dtype, other.leaf.requires_grad, other.leaf.is_leaf})
    local net = lm.nn.Linear(3, 2, {bias = false})
    net:load_state_dict {weight = v.parameter}
    assert.is_true(net.weight:equal(v.parameter))
  end)

  it("float8 becomes the dtype that is asked for", function()
    local v = lm.load(file "dtypes new.pt", {dtype = "float32"})
    assert.equal("float32", v.float8_e4m3fn.dtype)
    assert.same({2 ^ -9, 448, -448}, {v.float8_e4m3fn[2], v.float8_e4m3fn[127], v.float8_e4m3fn[255]})
    assert.same({math.huge, -57344}, {v.float8_e5m2[125], v.float8_e5m2[252]})
    assert.equal("uint16", v.uint16.dtype)
  end)

  it("dtypes that tensors lack are left out with a warning, and what is no data if that is wanted", function()
    local v, warning, n, left_out = compare "lacking dtypes old.pt"
    assert.same({1, 8, true}, {n, #left_out, v.large == nil})
    assert.matches("'bits16' %(dtype bits16%)", warning)
    local all = table.concat(left_out, ", ")
    for _, each in ipairs {"large' (dtype uint64 with values of 2^63 and more)", "quint4x2' (dtype quint4x2)"} do
      assert(all:find(each, 1, true), all)
    end
    for _, age in ipairs {"new", "old"} do
      local name = ("refused %s.pt"):format(age)
      assert.matches("'class': it calls __main__%.Picture, which is not allowed: tensors, .*{skip_unreadable = true}",
        message(lm.load, file(name)))
      for _, opts in ipairs {{skip = true}, {skip_unreadable = true}} do
        v, warning, n, left_out = compare(name, opts)
        assert.same({1, 9}, {n, #left_out})
        for key in pairs(v) do assert.equal("w", key) end
        for key, why in pairs {
          meta = "a tensor without data", nested = "a nested tensor", enum = "it calls __main__.Color, which is not",
          masked = "the data of its class are in its attributes", dates = "dtype M8", records = "of several fields",
          texts = "an array of dtype U1 and 2 dims", random = "it calls numpy.random._pickle.__generator_ctor",
        } do
          local found
          for _, each in ipairs(left_out) do found = found or each:find("'" .. key .. "' (", 1, true) and each end
          assert(found and found:find(why, 1, true), key .. ": " .. tostring(found))
        end
      end
      assert.matches("unsupported: 'class' .* and 6 more, left out", warning)
    end
    local net = lm.nn.Linear(1, 1)
    local _, report = heard(function() -- the list is no option of what takes the value
      return net:load_state_dict(lm.load(file "lacking dtypes old.pt"), {strict = false})
    end)
    assert.equal("w", report.unexpected_keys[1])
  end)

  it("plain values of Python's and NumPy's are read in each protocol", function()
    local inner = {
      counter = {a = 2, b = 1}, deque = {2, 3}, ordered = {a = 1}, default = {x = {2}}, custom = {x = 1}, path = "/a/b",
      relative = "c/d", here = ".", root = "/", windows = "C:\\x\\y", date = "1999-12-31",
      datetime = "2024-05-01T13:04:05.000678", zoned = "2024-05-01T00:00:00-03:30", fold = "2024-05-01T01:00:00",
      time = "01:02:03.000004", delta = 86402.000003, decimal = "1.50", slice = {start = 1, step = 2},
      range = {start = 0, stop = 10, step = 3}, bytes = "", complex = {real = 1, imag = 2}, bytearray = "x\255y",
      no_bytes = "", frozenset = {1}, set = {5}, tuple = {1, {2}}, namespace = {lr = 0.1, inner = {k = "v"}},
      simple = {b = 2}, float64 = 0.5, int64 = 2LL ^ 60, uint64 = 0x7fffffffffffffffLL, float32 = 0.25, float16 = 0.5,
      bool = true, complex64 = {real = 1, imag = 2}, str = "h\195\169\240\159\152\128", bytes_ = "ab",
      words = {"cat", "d\195\182g", "\240\159\152\128", ""}, bytes_array = {"ab", "c"}, big_words = {"a", "bc"},
      word = "ab", dtype = "float32", objects = {{x = 1}, nil, {2}}, random = {2147483648, 163610392, 3414454684},
      size = {2, 3}, device = "cuda:1", torch_dtype = "float8_e5m2", layout = "sparse_csr",
      scheme = "per_channel_affine",
    }
    local first
    for _, name in ipairs {"values 2 new.pt", "values 3 old.pt", "values 4 old.pt", "values 5 new.pt"} do
      local v = compare(name)
      for key, expected in pairs(inner) do assert.same(expected, v[key], name .. " " .. key) end
      assert.same({1, 1, 2}, {v.best[1][1], v.best[1][2], #v.best})
      first = first or v
      for key, t in pairs(first) do
        if core.is_tensor(t) then same(t, v[key], name .. " " .. key) end
      end
    end
    local state = lm.load(file "generator old.pt").generator.state
    assert.same({7, "uint8"}, {state[1], state[3].dtype})
  end)

  it("all names that PyTorch's own restricted unpickler allows are met, or never written", function()
    local all = {}
    for name in pairs(golden) do
      if name:find "%.pt$" then all[#all + 1] = text_of(name) end
    end
    all = table.concat(all)
    local never = { -- names torch.save never writes: tensor classes, small integers, an old function, CUDA's storages
      "^torch%.[%l.]*%u%w+Tensor$", "^torch%.cuda%.", "^torch%.u?int[1-7]$", "_rebuild_xla_tensor$", "TypedStorage$",
      "parameter%.Parameter$", "symmetric$", "QUInt2x4Storage$", "quint2x4$",
    }
    local plain = { -- as dtypes of storages alone
      "^torch%.[%l%d_]+$",
    }
    local count = 0
    for full in text_of("names"):gmatch "%S+" do
      local module, name = full:match "^(.*)%.([^.]+)$"
      local is_there = all:find(("c%s\n%s\n"):format(module:gsub("builtins", "__builtin__"), name), 1, true)
      local is_never = false
      for _, list in ipairs {never, plain} do
        for _, pattern in ipairs(list) do is_never = is_never or full:find(pattern) end
      end
      assert(is_there or is_never, full .. " is in no golden file")
      count = count + 1
    end
    assert(count > 140, count)
  end)

  it("those of CUDA tensors from before 1.12 have storages of their own names", function()
    local text = text_of "storages old.pt"
    local changed, n = text:gsub("ctorch\n(%w-)Storage\n", "ctorch.cuda\n%1Storage\n")
    assert(n > 10)
    local v = lm.load(temp.write(folder .. "/cuda.pt", changed))
    same(golden["storages old.pt float32"], v.float32, "float32")
  end)
end)

describe("other files", function()
  it("have float8 and 64-bit unsigned tensors too", function()
    local function entry(name, dtype, shape, from, past)
      return ('"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(name, dtype, shape, from, past)
    end
    local header = "{" .. table.concat({entry("a", "F8_E4M3", "2,2", 0, 4), entry("b", "F8_E5M2", "1", 4, 5),
      entry("c", "F8_E8M0", "3", 5, 8), entry("d", "U64", "1", 8, 16), entry("e", "U64", "1", 16, 24),
      entry("f", "F8_E4M3", "0", 24, 24)}, ",") .. "}"
    local path = temp.write(folder .. "/f8.safetensors", little_endian(#header, 8) .. header
      .. "\8\127\126\184" .. "\124" .. "\127\0\128" .. "\255\255\255\255\255\255\255\127" .. ("\255"):rep(8))
    for _, mmap in ipairs {false, true} do
      local warning, v = heard(lm.load, path, {mmap = mmap})
      assert.matches("unsupported: 'e' %(dtype uint64 with values of 2^63 and more%), left out", warning)
      assert.equal("bfloat16", v.a.dtype)
      assert.same({2 ^ -6, 448, -1}, {v.a[1][1], v.a[2][1], v.a[2][2]})
      assert.is_true(v.a[1][2] ~= v.a[1][2])
      assert.same({math.huge, {1, 2 ^ -127, 2}, 0}, {v.b[1], v.c:double():totable(), v.f:numel()})
      assert.equal("9223372036854775807LL", tostring(v.d[1]))
    end
    assert.equal("float32", (select(2, heard(lm.load, path, {dtype = "float32"}))).a.dtype)
  end)
end)

-- ---- hostile files

local function short(text) return "X" .. little_endian(#text, 4) .. text end
local function int(v) return "\138\8" .. ffi.string(ffi.new("int64_t[1]", v), 8) end
local function name(full) return ("c%s\n%s\n"):format(full:match "^(.*)%.([^.]+)$") end
local function tuple(...) return "(" .. table.concat {...} .. "t" end
local function call(full, ...) return name(full) .. tuple(...) .. "R" end
local function ints(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = int(v) end
  return tuple(unpack(out))
end

local data = {
  ["0"] = ffi.string(ffi.new("int64_t[8]", {0, 1, 2, 3, -1, 2LL ^ 40, 1, 0}), 64), ["1"] = ("\0"):rep(64),
}
local numel = {FloatStorage = 16, LongStorage = 8, QInt8Storage = 64, BoolStorage = 64, ComplexFloatStorage = 8}
local function tensor(class, sizes, strides, offset, more)
  local storage = tuple(short "storage", name("torch." .. class), short(class == "LongStorage" and "0" or "1"),
    short "cpu", int(numel[class])) .. "Q"
  return call("torch._utils._rebuild_tensor_v2", storage, int(offset or 0), ints(sizes), ints(strides), "\137", "}",
    more or "")
end
local function long(...) return tensor("LongStorage", ...) end
local function float(...) return tensor("FloatStorage", ...) end
local function sparse(layout, ...)
  return call("torch._utils._rebuild_sparse_tensor", call("torch.serialization._get_layout", short("torch." .. layout)),
    tuple(...))
end
local function quantized(sizes, strides, ...)
  local storage = tuple(short "storage", name "torch.QInt8Storage", short "1", short "cpu", int(64)) .. "Q"
  return call("torch._utils._rebuild_qtensor", storage, int(0), ints(sizes), ints(strides), tuple(...), "\137", "}")
end
local function array(code, shape, raw)
  return call("numpy._core.multiarray._reconstruct", name "numpy.ndarray", tuple(int(0)), short "b")
    .. tuple(int(1), ints(shape), call("numpy.dtype", short(code), "\137", "\136"), "\137", raw) .. "b"
end

-- Returns a stored zip archive of the pickle and the data.
local function pt(pickle)
  local entries, out, directory, at = {{"a/data.pkl", "\128\2" .. pickle .. "."}}, {}, {}, 0
  for key, text in pairs(data) do entries[#entries + 1] = {"a/data/" .. key, text} end
  for i, entry in ipairs(entries) do
    local middle = ("\0"):rep(8) .. little_endian(crc32(entry[2]), 4) .. little_endian(#entry[2], 4):rep(2)
      .. little_endian(#entry[1], 2)
    directory[i] = "PK\1\2\20\0\20\0" .. middle .. ("\0"):rep(12) .. little_endian(at, 4) .. entry[1]
    out[i] = "PK\3\4\20\0" .. middle .. "\0\0" .. entry[1] .. entry[2]
    at = at + #out[i]
  end
  local list = table.concat(directory)
  return table.concat(out) .. list .. "PK\5\6\0\0\0\0" .. little_endian(#entries, 2):rep(2) .. little_endian(#list, 4)
    .. little_endian(at, 4) .. "\0\0"
end
local function load(pickle, opts) return lm.load(temp.write(folder .. "/x.pt", pt(pickle)), opts) end

describe("a hostile file", function()
  local half = "G\63\224\0\0\0\0\0\0"
  local fits = {
    [sparse("sparse_coo", long({1, 2}, {2, 1}), float({2}, {1}), ints {3}, "\137")] = {3},
    [sparse("sparse_csr", long({3}, {1}), long({2}, {1}), float({2}, {1}), ints {2, 2})] = {2, 2},
    [quantized({3}, {1}, name "torch.per_tensor_affine", half, int(1))] = {3},
  }
  it("is like these, which are none", function()
    for pickle, shape in pairs(fits) do assert.same(shape, {unpack(load(pickle).shape)}) end
  end)

  local not_fit, too_many = "with arguments that do not fit", "it has too many elements for the file's size"
  local cases = {
    [not_fit] = {
      sparse("sparse_coo", long({1, 2}, {1, 1}, 4), float({2}, {1}), ints {3}, "\137"), -- -1 and 2^40
      sparse("sparse_coo", long({2, 2}, {2, 1}), float({2}, {1}), ints {2, 2}, "\137"), -- 3, of 2
      sparse("sparse_coo", long({1, 2}, {2, 1}), float({3}, {1}), ints {3}, "\137"),
      sparse("sparse_coo", float({1, 2}, {2, 1}), float({2}, {1}), ints {3}, "\137"),
      sparse("sparse_coo", long({}, {}), float({}, {}), ints {}, "\137"),
      sparse("sparse_coo", long({1, 2}, {2, 1}), float({2}, {1}), tuple(short "x"), "\137"),
      sparse("sparse_coo", long({1, 2}, {2, 1}), float({2}, {1}), "N", "\137"),
      sparse("sparse_csr", long({3}, {1}, 1), long({2}, {1}), float({2}, {1}), ints {2, 2}),
      sparse("sparse_csr", long({3}, {1}), ints {2, 2}),
      sparse("sparse_bsr", long({3}, {1}), long({2}, {1}), float({2, 0, 0}, {1, 1, 1}), ints {2, 2}),
      sparse("jagged", long({3}, {1})),
      quantized({3}, {1}, name "torch.per_channel_affine", float({3}, {1}), long({3}, {1}), int(5)),
      quantized({3}, {1}, short "x", short "y", short "z"),
      tensor("BoolStorage", {2}, {1}, 0, "}" .. short "neg" .. "\136s"),
      call("torch._utils._rebuild_device_tensor_from_cpu_tensor", float({2}, {1}), short "nope", short "xla:0", "\137"),
      call("torch._utils._rebuild_device_tensor_from_cpu_tensor", float({2}, {1}), name "torch.FloatStorage",
        short "xla:0", "\137"), -- whose error lists memory_format
      array("u1", {5}, short "abc"), array("u1", {2 ^ 50}, short "abc"), array("u1", {3}, int(3)),
      array("O8", {1}, short "x"), array("U1", {1}, short "abc"), array("U1", {1}, short "\0\0\17\0"),
      call("numpy._core.multiarray._reconstruct", name "numpy.ndarray", tuple(int(0)), short "b"),
      call("numpy._core.multiarray._reconstruct", name "numpy.ndarray", tuple(int(0)), short "b") .. "K\1b",
      call("datetime.datetime", short "abc"), call("datetime.date", int(4)), call("datetime.timedelta", short "x"),
      call("_codecs.encode", short "abc", short "rot13"), call("decimal.Decimal", int(1)),
      call("torch.serialization._get_layout", int(1)), call("pathlib.PosixPath", int(1)),
      -- a tuple that holds itself, and one 10,000 deep
      name "torch._tensor._rebuild_from_type_v2" .. "q\1(h\1" .. name "torch.Tensor" .. "tq\2h\2aNaR",
      name "torch._tensor._rebuild_from_type_v2" .. "q\1" .. ("(h\1" .. name "torch.Tensor"):rep(10000) .. ")"
        .. ("Nt"):rep(10000) .. "R",
    },
    [too_many] = {
      sparse("sparse_coo", long({2, 2}, {2, 1}), float({2}, {1}), ints {2 ^ 26, 2 ^ 26}, "\137"),
      sparse("sparse_coo", long({1, 2}, {2, 1}), float({2, 2 ^ 50}, {0, 0}), ints {3, 2 ^ 50}, "\137"),
      sparse("sparse_coo", long({1, 2 ^ 40}, {0, 0}), float({2 ^ 40}, {0}), ints {3}, "\137"),
      sparse("sparse_csr", long({3}, {1}), long({2}, {1}), float({2}, {1}), ints {2, 2 ^ 50}),
      sparse("sparse_csr", long({2 ^ 30, 2}, {0, 1}), long({2 ^ 30, 1}, {0, 1}), float({2 ^ 30, 1}, {0, 1}),
        ints {2 ^ 30, 1, 1}),
      quantized({2 ^ 20, 2 ^ 20}, {0, 0}, name "torch.per_tensor_affine", half, int(1)),
      quantized({2 ^ 40, 0}, {0, 0}, name "torch.per_channel_affine", float({2 ^ 40}, {0}), long({2 ^ 40}, {0}),
        int(0)),
      float({2 ^ 20, 2 ^ 20}, {0, 0}, 0, "}" .. short "neg" .. "\136s"),
      call("torch._utils._rebuild_device_tensor_from_cpu_tensor", float({2 ^ 20, 2 ^ 20}, {0, 0}), name "torch.float64",
        short "xla:0", "\137"),
    },
    ["it has unknown properties"] = {
      float({2}, {1}, 0, "}" .. short "other" .. "\136s"), float({2}, {1}, 0, "}" .. short "conj" .. "\136s"),
    },
    ["which is not allowed"] = {
      call("numpy._core.multiarray._reconstruct", name "os.system", tuple(int(0)), short "b"),
      call("builtins.getattr", name "os.system", short "x"), call("functools.partial", name "os.system"),
      name "x.Y" .. ")}\146",
    },
    ["an integer of about"] = { -- 2^64 - 1, -2^63 - 1, 2^8191 and two in decimals
      "\138\9" .. ("\255"):rep(8) .. "\0", "\138\9" .. ("\255"):rep(7) .. "\127\255",
      "\139\0\4\0\0" .. ("\0"):rep(1023) .. "\64", "L9223372036854775809L\n", "I-100000000000000000001\n",
    },
  }
  for pattern, pickles in pairs(cases) do
    it("is an error of the one value: " .. pattern, function()
      for i, pickle in ipairs(pickles) do
        lm.reset_peak_memory_stats()
        local before = lm.memory_allocated()
        local why = message(load, pickle)
        assert(why:find("the whole value: ", 1, true) and why:find(pattern, 1, true), i .. ": " .. why)
        local warning, value = heard(load, "}" .. short "a" .. pickle .. "s" .. short "b" .. "K\1s", {skip = true})
        assert.same({b = 1}, value)
        assert(warning:find(pattern, 1, true), i .. ": " .. warning)
        assert(lm.max_memory_allocated() - before < 2 ^ 24)
      end
    end)
  end

  it("integers beyond int64 keep every digit, or are an error that names the entry", function()
    local limit = ("\0"):rep(7) .. "\128"
    for pickle, want in pairs {
      ["\138\9" .. limit .. "\0"] = 2 ^ 63, ["\138\8" .. limit] = -2 ^ 63,
      ["\138\10" .. ("\0"):rep(9) .. "\253"] = -3 * 2 ^ 72,
      ["\138\13" .. ("\0"):rep(6) .. "uF\208\156,\159\12"] = 1e30, ["L1000000000000000019884624838656L\n"] = 1e30,
      ["L9223372036854775807L\n"] = 2LL ^ 63 - 1, ["I-9223372036854775808\n"] = -2 ^ 63,
    } do
      local value = load("}" .. short "a" .. pickle .. "s").a
      assert(value == want, tostring(value))
    end
    assert.matches("'a.seed': an integer of about 1.84e+19 is beyond int64: in Python, save str(n), or a float; "
      .. "lm.load(path, {skip_unreadable = true}) leaves it out", message(load, "}" .. short "a" .. "}" .. short "seed"
      .. "\138\9" .. ("\255"):rep(8) .. "\0ss"), 1, true)
  end)

  it("runs nothing", function()
    load(call("collections.defaultdict", name "os.system"))
    assert.matches("posix.system", message(load, "cposix\nsystem\n(" .. short "touch /tmp/never" .. "tR"))
    assert.is_false(temp.exists "/tmp/never")
  end)

  it("that uses a part again and again costs no more than a multiple of its size", function()
    local keys = {}
    for i = 1, 20000 do keys[i] = short("k" .. i) .. "K\1" end
    local dict, text = "}q\1(" .. table.concat(keys) .. "u", short(("x"):rep(1000000)) .. "q\1"
    for _, pickle in ipairs {
      dict .. name "types.SimpleNamespace" .. "q\2(" .. ("h\2)Rh\1b"):rep(20000) .. "l",
      dict .. name "collections.Counter" .. "q\2(" .. ("h\2h\1\133R"):rep(20000) .. "l",
      text .. name "pathlib.PosixPath" .. "q\2(" .. ("h\2(h\1h\1h\1h\1tR"):rep(20000) .. "l",
      text .. "(" .. array("u1", {1000000}, "h\1"):rep(2000) .. "l",
      text .. "(" .. array("S1000000", {1}, "h\1"):rep(2000) .. "l",
    } do
      assert.matches("malformed file: repeated parts are larger than the file", message(load, pickle))
    end
    load(short("torch." .. ("x"):rep(1000000)) .. "q\1" .. name "torch.serialization._get_layout" .. "q\2("
      .. ("h\2h\1\133R"):rep(20000) .. "l")
  end)
end)
