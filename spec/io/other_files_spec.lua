-- Files that other programs write and read: NumPy's, PyTorch's, Torch7's, GGUF, sharded safetensors
-- (spec/golden/_files.safetensors has the files and what is in them); hostile ones.
local lm = require "luminary"
local core = require "luminary.core"
local bytes = require "scripts.dev.fuzz.bytes"
local ffi = require "ffi"
local temp = require "spec.support.temp"
local within = require("spec.support.time").within
local message = require "spec.support.error_of"

local golden = require("spec.support.golden").load "_files"
local little_endian, crc32 = bytes.little_endian, bytes.crc32

local folder = temp.during(setup, teardown)

local function text_of(name)
  local t = assert(golden[name], name)
  return ffi.string(ffi.cast("const char *", t:data_ptr()), t:numel())
end

local function write(name, text) return temp.write(folder .. "/" .. name, text) end

-- Writes the golden file of that name; returns its path.
local function file(name) return write((name:gsub("[ /<>]", "_")), text_of(name)) end

local function load_text(name, text, opts) return lm.load(write(name, text), opts) end

local function same(expected, t, what)
  assert(core.is_tensor(t), what)
  assert.equal(expected.dtype, t.dtype, what)
  assert.same(expected.shape, t.shape, what)
  assert(expected:equal(t), what)
end

-- Returns the texts that f warns of.
local function warnings(f)
  local list, warn = {}, core.warn
  core.warn = function(text) list[#list + 1] = text end
  local ok, why = pcall(f)
  core.warn = warn
  assert(ok, why)
  return list
end

-- Expects that every prefix of some lengths is an error that names the file.
local function cut_everywhere(name, text, step)
  for n = 0, #text - 1, step or 1 do
    local path = write(name, text:sub(1, n))
    local ok, why = pcall(lm.load, path)
    os.remove(path) -- writing over an old file would wait for the disk
    assert(not ok and why:find(path, 1, true), ("%s cut to %d of %d: %s"):format(name, n, #text, tostring(why)))
  end
end

describe(".npy", function()
  it("is read in every dtype that tensors have, of either byte order", function()
    local count = 0
    for name in pairs(golden) do
      if name:find "^[<>].*%.npy$" then
        for _, mmap in ipairs { false, true } do
          same(golden[name .. " x"], lm.load(file(name), { mmap = mmap }), name)
          count = count + 1
        end
      end
    end
    assert.equal(40, count)
  end)

  it("may have Fortran's order, no dim, no element, and a header of versions 1 to 3", function()
    for _, name in ipairs { "fortran.npy", "scalar.npy", "empty.npy", "2.npy", "3.npy" } do
      same(golden[name .. " x"], lm.load(file(name)), name)
    end
    assert.same({ 1, 2, 6 }, lm.load(file "fortran.npy"):stride())
  end)

  it("that tensors have no dtype for is an error that says what to do", function()
    for name, pattern in pairs {
      U = "unsupported dtype '<U1'$", fields = "records of several fields",
    } do
      assert.matches(pattern, message(lm.load, file("lacking " .. name .. ".npy")))
    end
    local large = text_of("lacking u8.npy"):gsub("%z$", "\128")
    assert.matches("the array: dtype uint64 with values of 2%^63 and more", message(load_text, "u8.npy", large))
  end)

  it("of uint64 becomes int64, of complex numbers pairs", function()
    same(lm.zeros({ 2 }, { dtype = "int64" }), lm.load(file "lacking u8.npy"))
    same(lm.zeros { 2, 2 }, lm.load(file "lacking c8.npy"))
    same(lm.zeros({ 2, 2 }, { dtype = "float64" }), lm.load(file "lacking c16.npy"))
  end)

  it("is written as NumPy writes it", function()
    for _, name in ipairs { "<f4.npy", "<i8.npy", "scalar.npy", "empty.npy", "<?1.npy", "<u2.npy" } do
      local path = folder .. "/written.npy"
      lm.save(path, golden[name .. " x"])
      assert.equal(text_of(name), temp.read(path))
    end
    lm.save(folder .. "/t.npy", lm.arange(6):view(2, 3):t())
    assert.same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, lm.load(folder .. "/t.npy"):totable())
    assert.matches("the tensor is bfloat16, which NumPy does not have; convert", message(lm.save, folder .. "/x.npy",
      lm.ones({ 2 }, { dtype = "bfloat16" })))
    assert.matches("expected a tensor for a %.npy file, got a table", message(lm.save, folder .. "/x.npy", {}))
  end)

  it("goes onto a device, and may be written to", function()
    local path = file "<f4.npy"
    assert.equal("cpu:1", lm.load(path, { device = "cpu:1" }).device)
    lm.load(path, { mmap = true }):zero_()
    assert.equal(text_of "<f4.npy", temp.read(path))
  end)

  it("with a broken header is an error", function()
    local function npy(header, data)
      return "\147NUMPY\1\0" .. little_endian(#header, 2) .. header .. (data or ("\0"):rep(8))
    end
    same(lm.zeros { 2 }, load_text("x.npy", npy "{'descr':'<f4','fortran_order':False,'shape':(2,)}\n"))
    for header, pattern in pairs {
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}"] = "does not match its 8 bytes",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (2)}"] = "malformed %.npy header: shape %(2%)",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (2,,)}"] = "malformed %.npy header: shape %(2,,%)",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (1 2,)}"] = "malformed %.npy header: shape %(1 2,%)",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}"] = "malformed %.npy header: unexpected",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 99999999999999999999)}"] = "integers",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 2)}"] = "does not match its 8 bytes",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2)}"] = "9 dims",
      ["{'descr': '<f4', 'fortran_order': False}"] = "lacks",
      ["{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"] = "malformed %.npy header: 'descr'",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': True}"] = "unknown field 'x'",
      ["{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} + os.system('x')"] = "data follows its end",
      ["{'descr': __import__('os'), 'fortran_order': False, 'shape': (2,)}"] = "malformed %.npy header: unexpected",
      ["os.system('x')"] = "does not start with {", ["{'descr': '|O', 'fortran_order': False, 'shape': ()}"] = "'|O'",
      ["{'descr': '|b1', 'fortran_order': False, 'shape': (8,)}"] = "bool but has the value 7",
    } do
      local data = ("\0"):rep(7) .. (header:find "b1" and "\7" or "\0")
      assert.matches(pattern, message(load_text, "x.npy", npy(header, data)))
    end
    assert.matches("version 4", message(load_text, "x.npy", "\147NUMPY\4\0\0\0\0\0"))
    assert.matches("malformed %.npy header: it has", message(load_text, "x.npy", "\147NUMPY\2\0\255\255\255\255xx"))
    cut_everywhere("cut.npy", text_of "scalar.npy")
  end)
end)

-- Returns a zip archive of {name, data [, {method, packed, size, crc, at, flags}]}, as it says it is.
local function zip_of(entries, change)
  local out, directory, at = {}, {}, 0
  for i, entry in ipairs(entries) do
    local name, data, says = entry[1], entry[2], entry[3] or {}
    local middle = little_endian(says.flags or 0, 2) .. little_endian(says.method or 0, 2) .. "\0\0\0\0"
      .. little_endian(says.crc or crc32(data), 4) .. little_endian(says.packed or #data, 4)
      .. little_endian(says.size or #data, 4) .. little_endian(#name, 2)
    local local_header = "PK\3\4\20\0" .. middle .. "\0\0" .. name .. data
    directory[i] = "PK\1\2\20\0\20\0" .. middle .. ("\0"):rep(12) .. little_endian(says.at or at, 4)
      .. (says.other or name)
    out[i], at = local_header, at + #local_header
  end
  local list = table.concat(directory)
  local text = table.concat(out) .. list .. "PK\5\6\0\0\0\0" .. little_endian(#entries, 2):rep(2)
    .. little_endian(#list, 4) .. little_endian(at, 4) .. "\0\0"
  return change and change(text) or text
end

describe(".npz", function()
  it("is read, stored and deflated, and written as NumPy reads it", function()
    for _, name in ipairs { "stored.npz", "deflated.npz" } do
      for _, mmap in ipairs { false, true } do
        local all, count = lm.load(file(name), { mmap = mmap }), 0
        for key, t in pairs(all) do
          same(golden[name .. " " .. key], t, key)
          count = count + 1
        end
        assert.equal(3, count)
      end
    end
    local saved = { a = lm.rand { 3, 4 }, b = lm.ones({}, { dtype = "bool" }), ["c/d"] = lm.ones { 0, 2 } }
    lm.save(folder .. "/mine.npz", saved)
    for key, t in pairs(lm.load(folder .. "/mine.npz")) do same(saved[key], t, key) end
    local first = temp.read(folder .. "/mine.npz")
    lm.save(folder .. "/mine.npz", saved)
    assert.equal(first, temp.read(folder .. "/mine.npz"))
    lm.save(folder .. "/none.npz", {})
    assert.same({}, lm.load(folder .. "/none.npz"))
    assert.matches("a table of tensors by name", message(lm.save, folder .. "/x.npz", { 1 }))
    assert.matches("a table of tensors by name", message(lm.save, folder .. "/x.npz", lm.ones { 2 }))
  end)

  it("of uint32 becomes int64", function()
    local header = "{'descr': '%su4', 'fortran_order': True, 'shape': (2, 2), }"
    for order, raw in pairs {
      ["<"] = "\1\0\0\0" .. "\0\0\0\128" .. "\255\255\255\255" .. "\7\0\0\0",
      [">"] = "\0\0\0\1" .. "\128\0\0\0" .. "\255\255\255\255" .. "\0\0\0\7",
    } do
      local text = header:format(order)
      local whole = "\147NUMPY\1\0" .. string.char(#text, 0) .. text .. raw
      local want = lm.tensor({ { 1, 2 ^ 32 - 1 }, { 2 ^ 31, 7 } }, { dtype = "int64" })
      same(want, load_text("u4.npy", whole), order)
      same(want, lm.load(write("u4.npz", zip_of { { "a.npy", whole } }), { mmap = true }).a, order)
    end
  end)

  it("gives what it can: a dtype that tensors lack is left out, what is damaged only if that is wanted", function()
    local text = text_of "unreadable.npz"
    local function check(v, what)
      for _, name in ipairs { "a", "b" } do same(golden["unreadable.npz " .. name], v[name], what) end
      assert.is_nil(v.objects or v.words)
    end
    local path = file "unreadable.npz"
    local heard = warnings(function() check(lm.load(path), "objects") end)
    assert.equal(1, #heard)
    assert.matches("unreadable.npz': unsupported: 'objects' %(dtype '|O'.*%), 'words' %(dtype '<U1'.*left "
      .. "out", heard[1])
    local at = assert(text:find("\147NUMPY", text:find("words.npy", 1, true), true))
    local broken = write("broken.npz", text:sub(1, at + 9) .. "?" .. text:sub(at + 11))
    assert.matches("broken.npz: words.npy': .*; pass {skip_unreadable = true} to read the others",
      message(lm.load, broken))
    heard = warnings(function() check(lm.load(broken, { skip_unreadable = true }), "a damaged entry") end)
    assert.matches("'words' %(words.npy: ", heard[1])
    local one = text_of "scalar.npy"
    local odd = write("odd.npz", zip_of { { "a.npy", one }, { "b\27[31m.npy", one, { crc = 1 } }, { "c.txt", one } })
    heard = warnings(function()
      assert.equal(2.5, lm.load(odd, { skip_unreadable = true }).a:item())
    end)
    assert.matches("unsupported: 'b%?%[31m' %(.*entry 'b%?%[31m.npy' has a wrong.*%), 'c.txt' %(.*is not a .npy file%)"
      .. ", left out", heard[1])
    local none = write("none.npz", zip_of { { "b.npy", one, { crc = 1 } } })
    assert.matches("the file has nothing else", message(lm.load, none, { skip_unreadable = true }))
  end)

  it("that lies about itself is an error in bounded memory", function()
    local one = text_of "scalar.npy"
    local function refused(pattern, entries, change)
      assert.matches(pattern, message(load_text, "x.npz", zip_of(entries, change)))
    end
    assert.equal(2.5, load_text("x.npz", zip_of { { "a.npy", one } }).a:item())
    assert.equal(2.5, load_text("x.npz", zip_of { { "../../etc/a.npy", one } })["../../etc/a"]:item())
    refused("malformed zip archive: entry 'a%.npy' has a wrong checksum", { { "a.npy", one, { crc = 1 } } })
    refused("stored in", { { "a.npy", one, { size = #one + 1 } } })
    refused("malformed zip archive: entry 'a%.npy' overlaps what", { { "a.npy", one }, { "b.npy", one, { at = 0 } } })
    refused("malformed zip archive: entry 'a%.npy' overlaps what", { { "a.npy", one }, { "b.npy", one, { at = 10 } } })
    refused("malformed zip archive: entry 'a%.npy'", { { "a.npy", "PK" .. one, { at = 7, packed = 9, size = 9 } } })
    refused("malformed zip archive: entry 'b%.npy' has another name in", { { "a.npy", one, { other = "b.npy" } } })
    refused("malformed zip archive: two entries are named 'a%.npy'", { { "a.npy", one }, { "a.npy", one } })
    refused("encrypted", { { "a.npy", one, { flags = 1 } } })
    refused("entry 'a%.npy' uses compression method 12", { { "a.npy", one, { method = 12 } } })
    refused("malformed deflate data at byte 35: ", { { "a.npy", one, { method = 8 } } })
    refused("malformed deflate data at byte 35: 136 bytes cannot unpack to 1048588", { { "a.npy", one, { method = 8,
      size = 4000000000 } } })
    refused("not an %.npz or torch%.save file: a zip archive of 1 file: 'a%.txt'", { { "a.txt", one } })
    refused("no directory at its end", { { "a.npy", one } }, function(t) return t .. "x" end)
    refused("cannot have 9 entries", { { "a.npy", one } }, function(t)
      return t:sub(1, -15) .. "\9\0\9\0" .. t:sub(-10)
    end)
    refused("reaches beyond its end", { { "a.npy", one } }, function(t)
      return t:sub(1, -7) .. little_endian(2 ^ 31, 4) .. "\0\0"
    end)
    assert.matches("does not match its", message(lm.load, file "bomb.npz")) -- the file's head states three elements
    -- Deflated: a stored block of one or two bytes.
    refused("unpacks to fewer bytes than the file states", { { "a/data.pkl", "\1\1\0\254\255x", { method = 8, size =
      2 } } })
    refused("unpacks to more bytes than the file states", { { "a/data.pkl", "\1\2\0\253\255xy", { method = 8, size =
      1 } } })
    refused("does not end where", { { "a/data.pkl", "\1\1\0\254\255xz", { method = 8, size = 1 } } })
    cut_everywhere("cut.npz", text_of "stored.npz", 37)
    cut_everywhere("cut.npz", text_of "deflated.npz", 3)
  end)
end)

-- ---- PyTorch

local function check_checkpoint(name, opts)
  local value = lm.load(file(name), opts)
  local count = 0
  for key, t in pairs(value.state_dict) do
    local expected = golden[name .. " " .. key]
    if key == "u16" then expected = lm.arange(3):to "uint16" end
    same(expected, t, key)
    count = count + 1
  end
  assert.equal(18, count)
  return value
end

describe("torch.save's file", function()
  for _, name in ipairs { "new.pt", "old.pt" } do
    for _, mmap in ipairs { false, true } do
      it(("%s gives tensors and plain values%s"):format(name, mmap and ", mapped" or ""), function()
        local v = check_checkpoint(name, { mmap = mmap })
        assert.same({ 3, 0.1, 2LL ^ 60, 2 ^ 70, "float16", "cuda:1", false, "\255\0z\195\169", "gr\195\188\195\159" },
          { v.epoch, v.lr, v.large, v.huge, v.dtype, v.device, v[true], v.bytes, v.text })
        assert.equal(-2 ^ 62, tonumber(v.negative))
        assert.equal("cdata", type(v.negative))
        assert.equal(math.huge, v.infinite)
        assert.is_nil(v.none)
        assert.same({ 1, nil, "x" }, v.list)
        assert.same({ 1, { 2, 3 } }, v.tuple)
        assert.same({ 2, 3 }, v.size)
        assert.equal("zero", v[5][0])
        assert.same({ 1 }, v.set)
        assert.is_true(v.same == v.again)
        assert.same({ 1, 8 }, v.state_dict.transposed:stride())
        assert.same({ 8, 3 }, v.state_dict.columns:stride())
        assert.same({ 0, 1 }, v.state_dict.expanded:stride())
        v.state_dict.w:fill_(7) -- the others share w, and the file's copy does not
        assert.same({ 7, 7, 7 }, { v.state_dict.row:max():item(), v.state_dict.transposed:min():item(),
          v.state_dict.parameter:min():item() })
        assert.equal(text_of(name), temp.read(folder .. "/" .. name))
      end)
    end

    it(name .. " goes onto a device, shared memory with it; None may have a value", function()
      local v = lm.load(file(name), { device = "cpu:1", null = "nothing" })
      assert.equal("nothing", v.none)
      assert.equal("nothing", v.list[2])
      assert.equal("cpu:1", v.state_dict.row.device)
      v.state_dict.w:fill_(7)
      assert.equal(7, v.state_dict.row:max():item())
    end)

    it(name .. " cut short is an error", function()
      cut_everywhere(name, text_of(name), name == "new.pt" and 101 or 13)
    end)
  end

  it("of uint32 becomes int64", function()
    local pickle = "\128\2](ctorch._utils\n_rebuild_tensor_v3\nq\0((X\7\0\0\0storagectorch.storage\nUntypedStorage\n"
      .. "X\1\0\0\0" .. "0X\3\0\0\0cpuK\16tQq\1%s\137ccollections\nOrderedDict\n)Rctorch\nuint32\nq\2tR"
      .. "h\0(h\1K\0K\4\133K\1\133\137Nh\2tRe."
    local function loaded(place)
      return lm.load(write("u32.pt", zip_of { { "u32/data.pkl", (pickle:format(place)) }, { "u32/data/0",
        "\1\0\0\0" .. "\0\0\0\128" .. "\255\255\255\255" .. "\7\0\0\0" } }))
    end
    local list = loaded "K\1K\2\133K\2\133"
    same(lm.tensor({ 2 ^ 31, 7 }, { dtype = "int64" }), list[1])
    same(lm.tensor({ 1, 2 ^ 31, 2 ^ 32 - 1, 7 }, { dtype = "int64" }), list[2])
    assert.equal(list[1]:data_ptr(), list[2]:narrow(1, 2, 1):data_ptr()) -- the storage is widened once
    assert.matches(
      "the tensor over storage '0': size and strides must be within a storage of %d+ bytes, got %[2%] and "
        .. "%[2%]", message(loaded, "K\2K\2\133K\2\133"))
  end)

  it("that wants something run is an error that names it", function()
    for what, pattern in pairs {
      ["os.system"] = "the whole value: it calls posix%.system, which is not", eval = "the whole value: it calls",
      layer = "the whole value: it calls torch%.nn%.modules%.linear%.Linear, which is not allowed: tensors, numbers,",
    } do
      for _, age in ipairs { "new", "old" } do
        local name = ("evil %s %s.pt"):format(what, age)
        assert.matches(pattern, message(lm.load, file(name)))
      end
    end
    same(lm.zeros { 2, 2 }, lm.load(file "evil complex new.pt"), "complex numbers as pairs")
    assert.is_false(temp.exists "/tmp/never")
    assert.matches("TorchScript programs are not supported", message(lm.load, file "script.pt"))
  end)

  for _, age in ipairs { "new", "old" } do
    it(("that wants something run may be read without it (%s)"):format(age), function()
      local path = file(("unreadable %s.pt"):format(age))
      assert.matches("'%(a key%)': a key is not a string, number or boolean: a tuple; lm%.load%(path,",
        message(lm.load, path))
      local v
      local heard = warnings(function() v = lm.load(path, { skip_unreadable = true }) end)
      assert.equal(1, #heard)
      assert.matches("unsupported: '%(a key%)' %(.*a tuple%), 'hooks.run' %(it calls posix.system, which is not "
        .. "allowed%), 'layer' %(it calls torch%.nn%.modules%.linear%.Linear, which is not allowed%) and 1 more, left "
        .. "out", heard[1])
      same(lm.zeros { 3, 2 }, v.complex, "complex numbers as pairs")
      same(golden["new.pt w"], v.w)
      same(golden["new.pt row"] - 8, v.last)
      assert.same({ 1, nil, "x" }, v.list)
      assert.same({ n = 1 }, v.hooks)
      assert.is_nil(v.layer)
      assert.is_false(temp.exists "/tmp/never")
    end)
  end

  it("names what is damaged in it, and gives the rest", function()
    local path = folder .. "/damaged.pt"
    lm.save(path, { good = lm.arange(3), deep = { bad = lm.ones { 3 } } })
    local text = temp.read(path)
    local at = assert(text:find("\0\0\128\63\0\0\128\63", 1, true))
    temp.write(path, text:sub(1, at - 1) .. "\1" .. text:sub(at + 1))
    assert.matches("'deep%.bad': malformed zip archive: entry 'archive/data/0' has a wrong", message(lm.load, path))
    local v
    local heard = warnings(function() v = lm.load(path, { skip_unreadable = true }) end)
    assert.matches("unsupported: 'deep%.bad' %(malformed zip archive: entry 'archive/data/0' has a wrong", heard[1])
    assert.same({ good = { 0, 1, 2 }, deep = {} }, { good = v.good:totable(), deep = v.deep })
  end)

  it("of PyTorch's optimizer is one that ours goes on with", function()
    local count = 0
    for name, before in pairs(lm.load(file "optimizers.pt")) do
      local w, b = lm.nn.Parameter(before.w), lm.nn.Parameter(before.b)
      local opt = lm.optim[name]({ { params = { lm.nn.Parameter(lm.ones(2)), w } }, { params = { b } } }, { lr = 7 })
      opt:load_state_dict(before.optimizer)
      w.grad, b.grad = before.w_grad, before.b_grad
      opt:step()
      for key, p in pairs { w = w, b = b } do
        local off = (p:detach() - before[key .. "_after"]):abs():max():item()
        assert(off < 1e-6, ("%s: %s is off by %g"):format(name, key, off))
      end
      count = count + 1
    end
    assert.equal(12, count)
  end)

  it("of our optimizer has parameters counted from 0, as torch.optim has them", function()
    local path = folder .. "/optimizer.pt"
    local p, q = lm.nn.Parameter(lm.ones(2)), lm.nn.Parameter(lm.ones(3))
    local opt = lm.optim.Adam({ { params = { p } }, { params = { q }, lr = 0.5 } }, { lr = 0.1 })
    q.grad = lm.ones(3)
    opt:step()
    local function saved()
      lm.save(path, { epoch = 3, optimizer = opt:state_dict() })
      local v = lm.load(path).optimizer
      assert.same({ { 0 }, { 1 } }, { v.param_groups[1].params, v.param_groups[2].params })
      local function is_dict() return temp.read(path):find("state}", 1, true) ~= nil end -- whatever is in it
      assert.is_true(is_dict())
      lm.save(path, v) -- is written as it was read
      assert.is_true(is_dict())
      assert.same({ { 0 }, { 1 } }, { lm.load(path).param_groups[1].params, lm.load(path).param_groups[2].params })
      assert.equal(v.state[1].step, lm.load(path).state[1].step)
      return v
    end
    local v = saved()
    assert.is_nil(v.state[0] or v.state[2])
    assert.equal(1, v.state[1].step)
    p.grad = lm.ones(2)
    opt:step()
    v = saved()
    assert.same({ 1, 2 }, { v.state[0].step, v.state[1].step })
    same(opt.state[q].exp_avg, v.state[1].exp_avg)
    local other = lm.optim.Adam({ { params = { lm.nn.Parameter(lm.ones(2)) } },
      { params = { lm.nn.Parameter(lm.ones(3)) } } }, { lr = 9 })
    other:load_state_dict(v)
    assert.same({ 0.1, 0.5 }, { other.param_groups[1].lr, other.param_groups[2].lr })
    local lbfgs = lm.optim.LBFGS({ p }):state_dict()
    lbfgs.state[lbfgs.param_groups[1].params[1]] = { func_evals = 1, al = { lm.ones(1) } } -- al's Nones would be lost
    lm.save(path, lbfgs)
    v = lm.load(path, { null = "None" })
    assert.equal("None", v.param_groups[1].line_search_fn)
    assert.same({ func_evals = 1 }, v.state[0])
    lbfgs.state[lbfgs.param_groups[1].params[1]] = { old_dirs = {}, old_stps = {}, ro = {} } -- "]": an empty list
    lm.save(path, lbfgs)
    for _, name in ipairs { "old_dirs", "old_stps", "ro" } do
      assert.matches(name .. "%]", temp.read(path))
    end
    opt = lm.optim.Adafactor { p }
    lm.save(path, opt:state_dict())
    v = lm.load(path, { null = "None" })
    assert.same({ "None", 0.001 }, v.param_groups[1].eps) -- False would be 0 there
    opt:load_state_dict(lm.load(path))
    assert.same({ false, 0.001 }, opt.param_groups[1].eps)
  end)

  it("may be of any protocol, and hold NumPy's numbers", function()
    for protocol = 3, 5 do
      for _, age in ipairs { "new", "old" } do
        local v = lm.load(file(("%d %s.pt"):format(protocol, age)))
        assert.same({ 0.1, 0.5, -3, 2 ^ 40, true, 7 }, { v.f8, v.f4, v.i2, v.i8, v.yes, v.list[1] })
        same(golden["new.pt w"], v.w)
      end
    end
    same(lm.zeros({ 2 }, { dtype = "bfloat16" }), lm.load(file "float8.pt"), "float8")
  end)

  it("may hold a list that holds itself", function()
    local v = lm.load(file "cyclic.pt")
    assert.is_true(v.cyclic[1] == v.cyclic)
  end)

  it("with a hostile pickle is an error", function()
    local function pt(pickle) return zip_of { { "a/data.pkl", pickle }, { "a/data/0", ("\0"):rep(16) } } end
    local function storage(class, key, numel)
      return "(X\7\0\0\0storagectorch\n" .. class .. "\nX\1\0\0\0" .. key .. "X\3\0\0\0cpuJ"
        .. little_endian(numel, 4) .. "tQ"
    end
    local function tensor(storage_of, offset, sizes, strides)
      return "ctorch._utils\n_rebuild_tensor_v2\n(" .. storage_of .. offset .. sizes .. strides .. "\137)tR."
    end
    local four = storage("FloatStorage", "0", 4)
    assert.same({ 4 }, load_text("x.pt", pt("\128\2" .. tensor(four, "K\0", "K\4\133", "K\1\133"))).shape)
    for pattern, pickle in pairs {
      ["size and strides must be within a storage of 16 bytes, got %[5%] and %[1%] from byte 0"] = tensor(four, "K\0",
        "K\5\133", "K\1\133"),
      ["within a storage of 16 bytes, got %[4%] and %[1%] from byte 4"] = tensor(four, "K\1", "K\4\133", "K\1\133"),
      ["has the stride %-1"] = tensor(four, "K\0", "K\4\133", "J\255\255\255\255\133"),
      ["must be non%-negative integers, got %-1"] = tensor(four, "K\0", "J\255\255\255\255\133", "K\1\133"),
      ["must be non%-negative integers, got 1%.5"] = tensor(four, "K\0", "G\63\248\0\0\0\0\0\0\133", "K\1\133"),
      ["strides of a tensor do not match"] = tensor(four, "K\0", "K\4\133", "K\1K\1\134"),
      ["without storage"] = tensor("N", "K\0", "K\4\133", "K\1\133"),
      ["within a storage of 16 bytes, got %[9007199254740991%]"] = tensor(four, "K\0",
        "\138\7\255\255\255\255\255\255\31\133",
        "\138\6\255\255\255\255\255\31\133"),
      ["has 16 bytes, expected 20"] = tensor(storage("FloatStorage", "0", 5), "K\0", ")", ")"),
      ["has 16 bytes, expected 8000000000"] = tensor(storage("DoubleStorage", "0", 1e9), "K\0", ")", ")"),
      ["storage '1' is missing"] = tensor(storage("FloatStorage", "1", 4), "K\0", ")", ")"),
      ["storage '../../etc/passwd' is missing"] = tensor((storage("FloatStorage", "0", 4):gsub("\1%z%z%z0",
        "\16\0\0\0../../etc/passwd")), "K\0", ")", ")"),
      ["a persistent id is not a storage"] = "(X\1\0\0\0xtQ.", ["malformed pickle: the stack is empty"] = "0.",
      ["a mark is missing"] = "t.",
      ["code 255"] = "\255", ["malformed pickle: memo 7 is empty"] = "h\7.", ["protocol 9"] = "\128\9N.",
      ["a key without a value"] = "}(K\1u.", ["a key is not a string"] = "})N" .. "s.",
      ["it calls os.system"] = "cos\nsystem\n(X\2\0\0\0lstR.",
      ["calls posix.system"] = "(X\2\0\0\0lsiposix\nsystem\n.",
      ["calls a.b"] = "X\1\0\0\0aX\1\0\0\0b\147.", ["calls torch.FloatStorage"] = "ctorch\nFloatStorage\n.",
      ["expected a tuple"] = "ccollections\nOrderedDict\nK\1R.", ["attributes must be a dict"] = "K\1}b.",
      ["truncated: needs"] = "X\255\255\255\127ab", ["calls a number"] = "K\1)R.",
    } do
      assert.matches(pattern, message(load_text, "x.pt", pt(pickle)), pickle)
    end
    local bomb = zip_of { { "a/data.pkl", tensor(storage("FloatStorage", "0", 1e9), "K\0", "K\4\133", "K\1\133") },
      { "a/data/0", ("x"):rep(1000), { method = 8, size = 4e9 } } }
    assert.matches("malformed deflate data at byte 179: 1000 bytes cannot unpack to 4000000000", message(load_text,
      "x.pt", bomb))
    local own = load_text("x.pt", pt "\128\2}q\0(X\1\0\0\0ah\0X\1\0\0\0b(h\0tq\1u.", { dtype = "float16" })
    assert.is_true(own.a == own and own.b[1] == own)
    local twice = load_text("x.pt", pt("\128\2](" .. tensor(four, "K\0", "K\4\133", "K\1\133"):gsub("%.$", "")
      .. "q\9h\9e."), { dtype = "float16" })
    assert.is_true(#twice == 2 and rawequal(twice[1], twice[2]))
    -- Builds a pickle that uses one value again and again: quadratic in memory or time if nothing counts.
    local function used(f, args) return f .. "\nq\0" .. args .. "q\2(" .. ("h\0h\2R"):rep(20000) .. "l." end
    local word, call = "X\80\195\0\0" .. ("\195\169"):rep(25000), tensor(four, "K\0", "K\4\133", "K\1\133")
    for _, text in ipairs {
      used("ctorch\nSize", "](" .. ("K\1"):rep(50000) .. "e\133"),
      used("ccollections\nOrderedDict", "](" .. ("K\1K\1\134"):rep(20000) .. "e\133"),
      used("c_codecs\nencode", word .. "X\6\0\0\0latin1\134"),
      used("ctorch._utils\n_rebuild_tensor_v2", call:match "v2\n(.*)R%.$"),
    } do
      local began = os.clock()
      assert.matches("malformed file: repeated parts are larger than the file", message(load_text, "x.pt", pt(text)))
      within(os.clock() - began, 5)
    end
    -- A million lists within one another, and a list of 2^100 ones, which is 100 tables.
    local deep = load_text("x.pt", pt(("]"):rep(1000000) .. ("a"):rep(999999) .. "."))
    assert.equal("table", type(deep[1][1][1]))
    local out = { "]q\0" }
    for i = 1, 100 do
      local before = "h" .. string.char(i - 1) .. "a"
      out[i + 1] = "]" .. before .. before .. "q" .. string.char(i)
    end
    local wide = load_text("x.pt", pt(table.concat(out) .. "."))
    assert.is_true(wide[1] == wide[2] and wide[1][1] == wide[2][2])
    local packed = zip_of { { "a/data.pkl", ("x"):rep(20000), { method = 8, size = 2 ^ 24 + 1 } } }
    assert.matches("malformed zip archive: the pickle of 16777217 bytes is", message(load_text, "x.pt", packed))
    assert.matches("a pickle that torch%.save did not write", message(load_text, "x.pt", "\128\2}q\0X\1\0\0\0aK\1s."))
    assert.matches("it calls os.system", message(load_text, "x.pt", "\128\2cos\nsystem\n(X\1\0\0\0atR."))
  end)

  -- Returns a dict of n tensors of 1024 x 1024 elements over a storage of 4, or one of 2^16 x 2^16.
  local function repeating(n, side)
    local function int(v) return "J" .. little_endian(v, 4) end
    local parts = {}
    for i = 1, n do
      local key = ("t%d"):format(i)
      parts[i] = "X" .. little_endian(#key, 4) .. key .. "ctorch._utils\n_rebuild_tensor_v2\n("
        .. "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" .. "0X\3\0\0\0cpu" .. int(4) .. "tQ" .. "K\0" .. int(side)
        .. int(side) .. "\134K\0K\0\134\137)tR"
    end
    return zip_of { { "a/data.pkl", "\128\2}(" .. table.concat(parts) .. "u." }, { "a/data/0", ("\0"):rep(16) } }
  end

  it("whose views repeat a few elements costs no more memory than its size bounds", function()
    for _, case in ipairs { { 1, 2 ^ 16 }, { 300, 1024 } } do
      local path = write("views.pt", repeating(unpack(case)))
      for _, mmap in ipairs { false, true } do
        local x = lm.load(path, { mmap = mmap }).t1
        assert.same({ { case[2], case[2] }, { 0, 0 } }, { x.shape, x:stride() })
        lm.reset_peak_memory_stats()
        local before = lm.memory_allocated()
        local why = message(lm.load, path, { mmap = mmap, dtype = "float64" })
        assert.matches("' of %d+ elements is a view that repeats the file too often", why)
        assert(lm.max_memory_allocated() - before <= 8 * 2 ^ 24 + 2 ^ 20)
        assert.equal("float32", lm.load(path, { mmap = mmap, dtype = "float32" }).t1.dtype)
      end
    end
    local few = load_text("few.pt", repeating(3, 1024), { dtype = "float64" })
    assert.same({ "float64", { 1024, 1024 } }, { few.t3.dtype, few.t3.shape })
  end)

  it("is written for torch.load: values come back", function()
    local path, w = folder .. "/mine.pt", lm.rand { 3, 4 }
    local value = {
      model = { w = w, tied = w, t = w:t(), half = w:half(), scalar = lm.ones {}, none = lm.ones { 2, 0 } },
      list = { 1, { true }, "text" }, n = -1.5, inf = math.huge, large = 2 ^ 40, whole = -5, cdata = 2LL ^ 60,
      bytes = "\255\0", [7] = "seven", empty = {},
    }
    for _, dtype in ipairs { "float64", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool" } do
      value.model[dtype] = lm.tensor({ 1, 0, 3 }):to(dtype)
    end
    lm.save(path, value)
    local back = lm.load(path)
    for key, t in pairs(value.model) do same(t, back.model[key], key) end
    back.model.w:zero_()
    assert.equal(0, back.model.tied:max():item())
    value.model, back.model = nil, nil
    assert.same(value, back)
    lm.save(path, value)
    local first = temp.read(path)
    lm.save(path, value)
    assert.equal(first, temp.read(path))
    for pattern, bad in pairs {
      ["the value is uint16, which"] = lm.ones({ 2 }, { dtype = "uint16" }), ["x is a function"] = { x = print },
      ["save its :state_dict%(%)"] = lm.nn.Linear(1, 1), ["a key of type boolean"] = { [true] = 1 },
    } do
      assert.matches(pattern, message(lm.save, path, bad))
    end
    local loop = {}
    loop.x = loop
    assert.matches("contains itself", message(lm.save, path, loop))
    assert.equal(first, temp.read(path))
  end)

  it("has storages at multiples of 64 bytes, which lie over the file when mapped", function()
    local path = folder .. "/mapped.pt"
    lm.save(path, { a = lm.rand { 1000 }, b = lm.rand { 1000 } })
    local text, count = temp.read(path), 0
    for at in text:gmatch "()PK\3\4" do
      local name, extra = text:byte(at + 26), text:byte(at + 28) + 256 * text:byte(at + 29)
      assert.equal(0, (at - 1 + 30 + name + extra) % 64)
      count = count + 1
    end
    assert.equal(5, count)
  end)

  it("trains on: a module takes what PyTorch saved", function()
    local net = lm.nn.Linear(3, 2)
    lm.save(folder .. "/net.pth", net:state_dict())
    local other = lm.nn.Linear(3, 2)
    other:load_state_dict(lm.load(folder .. "/net.pth"))
    assert.is_true(net.weight:equal(other.weight))
  end)
end)

-- ---- the others

describe("sharded safetensors", function()
  local here
  local function index(text) temp.write(here .. "/model.safetensors.index.json", text) end
  setup(function()
    here = folder .. "/sharded"
    os.execute("mkdir " .. here)
    lm.save(here .. "/1.safetensors", { a = lm.ones { 2 }, b = lm.zeros { 3 } })
    lm.save(here .. "/2.safetensors", { c = lm.ones { 4 } })
  end)

  it("have an index of 2^28 bytes at most, and a config of as many", function()
    for name, read in pairs {
      ["model.safetensors.index.json"] = lm.load,
      ["config.json"] = function(path) return lm.models.gpt2 { weights = path:match "^(.*)/" } end,
    } do
      local long = temp.folder(folder)
      local path = long .. "/" .. name
      local out = assert(io.open(path, "wb"))
      out:write "{"
      assert(out:seek("set", 1e11)) -- zero bytes take no room
      out:write "}"
      out:close()
      assert.matches(path:gsub("%p", "%%%0")
        .. "': JSON and vocabularies must have at most 268435456 bytes, got 100000000001", message(read, path))
    end
  end)

  it("are read by their index or their folder", function()
    index('{"metadata":{"total_size":36},'
      .. '"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}')
    for _, path in ipairs { here, here .. "/", here .. "/model.safetensors.index.json" } do
      for _, mmap in ipairs { false, true } do
        local v = lm.load(path, { mmap = mmap })
        assert.same({ 2, 3, 4 }, { v.a:numel(), v.b:numel(), v.c:numel() })
      end
    end
  end)

  it("may be torch.save's", function()
    local there = here .. "/torch"
    os.execute("mkdir " .. there)
    temp.write(there .. "/pytorch_model.bin.index.json", '{"metadata":{},"weight_map":{'
      .. '"weight":"pytorch_model-00001-of-00002.bin","bias":"pytorch_model-00002-of-00002.bin"}}')
    lm.save(there .. "/1.pt", { weight = lm.ones(2, 3), other = lm.ones(1) })
    lm.save(there .. "/2.pt", { bias = lm.arange(2) })
    for i = 1, 2 do os.rename(there .. "/" .. i .. ".pt", there .. "/pytorch_model-0000" .. i .. "-of-00002.bin") end
    for _, path in ipairs { there, there .. "/pytorch_model.bin.index.json" } do
      for _, mmap in ipairs { false, true } do
        local v = lm.load(path, { mmap = mmap, dtype = "float64", rename = { ["^bias$"] = "b" } })
        assert.same({ 2, 3 }, v.weight.shape)
        assert.same({ 0, 1 }, v.b:tolist())
        assert.equal("float64", v.weight.dtype)
        assert.is_nil(v.other)
      end
    end
    local pipe = assert(io.popen("bin/luminary inspect " .. there .. " 2>&1"))
    local text = pipe:read "*a"
    pipe:close()
    assert.matches("sharded torch.save, %d%.%d kB", text) -- the index itself has some 150 bytes
    assert.matches("2 tensors, 8 elements", text)
    temp.write(there .. "/pytorch_model-00002-of-00002.bin", temp.read(there .. "/pytorch_model-00001-of-00002.bin"))
    assert.matches("'bias' is missing in", message(lm.load, there))
    os.remove(there .. "/pytorch_model-00002-of-00002.bin")
    assert.matches("cannot open its shard 'pytorch_model%-00002%-of%-00002%.bin': No such file or directory",
      message(lm.load, there))
    temp.write(there .. "/pytorch_model.bin.index.json", '{"weight_map":{"a":"pytorch_model.bin.index.json"}}')
    assert.matches("pytorch_model.bin.index.json", message(lm.load, there))
  end)

  it("are an error where the index does not fit", function()
    for text, pattern in pairs {
      ['{"weight_map":{"x":"1.safetensors"}}'] = "'x' is missing in", ["{}"] = "no weight_map",
      ['{"weight_map":{"a":"../1.safetensors"}}'] = "malformed index: 'a' is in '%.%./1%.safetensors', which is not",
      ["{"] = "model.safetensors.index.json",
      ['{"weight_map":{"a":"3.safetensors"}}'] = "cannot open its shard '3%.safetensors': No such file or directory",
      ['{"weight_map":{"a":1}}'] = "malformed index: 'a' is in '1', which is not a file name",
    } do
      index(text)
      assert.matches(pattern, message(lm.load, here))
    end
    os.remove(here .. "/model.safetensors.index.json")
    assert.matches("is a folder, not a regular file", message(lm.load, here))
  end)
end)

describe("GGUF", function()
  it("gives metadata, and tensors of which quantized ones become float32", function()
    for _, version in ipairs { 2, 3 } do
      for _, mmap in ipairs { false, true } do
        local v = lm.load(file(version .. ".gguf"), { mmap = mmap })
        local count = 0
        for key, t in pairs(v.tensors) do
          local expected = golden["gguf " .. key]
          assert.equal(expected.dtype, t.dtype)
          assert.same(expected.shape, t.shape)
          local off = (expected:double() - t:double()):abs():max():item()
          assert(off <= 1e-6 * expected:double():abs():max():item(), ("%s is off by %g"):format(key, off))
          count = count + 1
        end
        assert.equal(12, count)
        local m = v.metadata
        assert.same({ "test", 255, -1, 65535, -1, -1, 0.5, true, 2 ^ 40, 0.1, "a", "b" }, { m["general.architecture"],
          m.u8, m.i8, m.u16, m.i16, m.i32, m.f32, m.yes, m.u64, m.f64, m.tokens[1], m.tokens[2] })
        assert.equal(-2 ^ 62, tonumber(m.i64))
      end
    end
  end)

  it("gives what gguf's quants make of more kinds", function() -- gen_gguf.py
    local more = require("spec.support.golden").load "_gguf"
    local bytes_of = ffi.string(ffi.cast("const char *", more.file:data_ptr()), more.file:numel())
    local tensors = load_text("quantized.gguf", bytes_of).tensors
    local count = 0
    for name, expected in pairs(more) do
      local t = tensors[name]
      if name ~= "file" then
        assert.same(expected.shape, assert(t, name).shape)
        assert(expected:allclose(t, 1e-6, 1e-6), name)
        count = count + 1
      end
    end
    assert.equal(19, count)
    local pipe = assert(io.popen(("bin/luminary inspect --quick %s 2>&1"):format(write("quantized.gguf", bytes_of))))
    local text = pipe:read "*a"
    pipe:close()
    assert.matches("\ntensors.Q4_1 +Q4_1 +%[3, 512%] +960 B\n", text) -- 20 bytes of 32 elements
    assert.matches("\ntensors.Q5_K +Q5_K +%[3, 512%] +1.1 kB\n", text)
  end)

  it("that is broken is an error", function()
    local text = text_of "3.gguf"
    local function changed(at, with) return text:sub(1, at) .. with .. text:sub(at + #with + 1) end
    for kind, values in pairs {
      [10] = {0, 3, 2 ^ 53, 2 ^ 53 + 1ULL, 0x7fffffffffffffffULL, 0x8000000000000000ULL, 0xffffffffffffffffULL},
      [11] = {-1, 2 ^ 53, 2 ^ 53 + 1LL, -2 ^ 53 - 1LL, 0x7fffffffffffffffLL, -0x7fffffffffffffffLL - 1LL},
    } do
      for _, value in ipairs(values) do
        local value_bytes = ffi.string(ffi.new(kind == 10 and "uint64_t[1]" or "int64_t[1]", value), 8)
        local metadata = load_text("x.gguf", "GGUF" .. little_endian(3, 4) .. little_endian(0, 8) .. little_endian(1, 8)
          .. little_endian(1, 8) .. "n" .. little_endian(kind, 4) .. value_bytes)
          .metadata
        assert.equal(tostring(value), tostring(metadata.n)) -- with its type: 9007199254740993ULL
      end
    end
    assert.matches("unsupported GGUF version 1", message(load_text, "x.gguf", changed(4, "\1\0\0\0")))
    assert.matches("GGUF header: %d+ entries", message(load_text, "x.gguf", changed(8, ("\255"):rep(6) .. "\1\0")))
    local at = text:find("q4_k", 1, true) + 3
    assert.matches("does not consist of rows of 256 elements",
      message(load_text, "x.gguf", changed(at + 4, little_endian(100, 8))))
    assert.matches("beyond the end", message(load_text, "x.gguf", changed(at + 4 + 16 + 4, little_endian(2 ^ 40, 8))))
    assert.matches("over another", message(load_text, "x.gguf", changed(at + 4 + 16 + 4, little_endian(0, 8))))
    assert.matches("beyond the end", message(load_text, "x.gguf", changed(at + 4, little_endian(2 ^ 50, 8))))
    cut_everywhere("cut.gguf", text:sub(1, -149), 61) -- the last tensor has a type that is not read
  end)
end)

describe("a .t7 file", function()
  for _, name in ipairs { "binary.t7", "ascii.t7" } do
    it(name .. " gives tables, tensors and objects", function()
      local v = lm.load(file(name))
      local linear = v.net.modules[1]
      assert.same({ "nn.Sequential", "nn.Linear", true }, { v.net.__typename, linear.__typename, linear.train })
      assert.is_nil(linear.forward)
      same(golden["t7 weight"], linear.weight)
      same(golden["t7 whole"], v.whole)
      same(golden["t7 storage"], v.storage)
      assert.same({ "x", 0.5, false }, { v.name, v[1], v[2][3] })
      assert.is_true(v.self == v)
      assert.is_true(v.size[2] == 2 ^ 60)
      assert.equal(0, v.none:numel())
      for kind, dtype in pairs {
        Double = "float64", Float = "float32", Long = "int64", Int = "int32", Short = "int16", Char = "int8",
        Byte = "uint8",
      } do
        same(lm.tensor({ 1, 2, 3, 97 }):to(dtype), v[kind])
      end
      v.whole:zero_()
      assert.equal(0, linear.weight:max():item())
      cut_everywhere(name, text_of(name), 11)
    end)
  end

  it("that is broken is an error", function()
    local function int(n) return little_endian(n % 2 ^ 32, 4) end
    local function tensor(ndim, rest)
      return int(4) .. int(1) .. int(3) .. "V 1" .. int(17) .. "torch.FloatTensor" .. int(ndim) .. rest
    end
    local function storage(n, data)
      return int(4) .. int(2) .. int(3) .. "V 1" .. int(18) .. "torch.FloatStorage" .. little_endian(n, 8) .. data
    end
    local function one(size, stride, offset, of)
      return tensor(1, little_endian(size, 8) .. little_endian(stride, 8) .. little_endian(offset, 8) .. of)
    end
    local two = storage(2, ("\0"):rep(8))
    same(lm.zeros { 2 }, load_text("x.t7", one(2, 1, 1, two)))
    -- A table of 20,000 entries that is the fields of 10,000 objects.
    local pairs_of, objects = {}, {}
    local function pair(i, value) return int(1) .. ffi.string(ffi.new("double[1]", i), 8) .. value end
    for i = 1, 20000 do pairs_of[i] = pair(i, int(5) .. int(1)) end
    for i = 1, 10000 do
      objects[i] = pair(i, int(4) .. int(i + 2) .. int(3) .. "V 1" .. int(1) .. "x" .. int(3) .. int(2))
    end
    local began = os.clock()
    assert.matches("malformed file: repeated parts are", message(load_text, "x.t7", int(3) .. int(1) .. int(10001)
      .. pair(0, int(3) .. int(2) .. int(20000) .. table.concat(pairs_of)) .. table.concat(objects)))
    within(os.clock() - began, 5)
    for pattern, text in pairs {
      ["within a storage of 8 bytes, got %[3%]"] = one(3, 1, 1, two),
      ["within a storage of 8 bytes, got %[2%]"] = one(2, 1, 2, two),
      ["starts at element 0"] = one(2, 1, 0, two), ["truncated: needs"] = one(2, 1, 1, storage(2 ^ 40, "")),
      ["9 dims"] = tensor(9, ""), ["malformed Torch7 file: unknown kind of object 9"] = int(9),
      ["class tds.Hash"] = int(4) .. int(1) .. int(8) .. "tds.Hash",
      ["malformed Torch7 file: a table key is nil or NaN"] = int(3) .. int(1) .. int(1) .. int(0) .. int(0),
      ["nested too deep"] = (int(3) .. int(0)):gsub("^.*$", function()
        local out = {}
        for i = 1, 2000 do out[i] = int(3) .. int(i) .. int(1) .. int(1) .. ("\0"):rep(8) end
        return table.concat(out)
      end),
      ["without fields"] = int(4) .. int(1) .. int(1) .. "x" .. int(0), ["a string of %-1 bytes"] = int(2) .. int(-1),
    } do
      assert.matches(pattern, message(load_text, "x.t7", text))
    end
  end)
end)

-- Writes a file of little text and many zero bytes, which takes no room: pieces are strings and numbers of zero bytes.
local function sparse(name, pieces)
  local path = folder .. "/" .. name
  local out = assert(io.open(path, "wb"))
  for _, piece in ipairs(pieces) do
    if type(piece) == "number" then assert(out:seek("cur", piece)) else assert(out:write(piece)) end
  end
  assert(out:close())
  return path
end

describe("a file of 4 GiB", function()
  local LARGE = 2 ^ 32
  local function safetensors()
    local header = ('{"large":{"dtype":"F32","shape":[%.0f],"data_offsets":[0,%.0f]},'):format(LARGE / 4, LARGE)
      .. ('"small":{"dtype":"F32","shape":[1],"data_offsets":[%.0f,%.0f]}}'):format(LARGE, LARGE + 4)
    header = header .. (" "):rep(-#header % 8)
    return sparse("large.safetensors", { little_endian(#header, 8), header, LARGE, "\0\0\128\63" })
  end
  local function npy()
    local header = ("{'descr': '<f4', 'fortran_order': False, 'shape': (%.0f,)}"):format(LARGE / 4)
    header = header .. (" "):rep(117 - #header) .. "\n"
    return sparse("large.npy", { "\147NUMPY\1\0" .. little_endian(#header, 2) .. header, LARGE - 4, "\0\0\128\63" })
  end
  local function gguf()
    local head = "GGUF" .. little_endian(3, 4) .. little_endian(1, 8) .. little_endian(0, 8) .. little_endian(5, 8)
      .. "large" .. little_endian(1, 4) .. little_endian(LARGE / 4, 8) .. little_endian(0, 4) .. little_endian(0, 8)
    return sparse("large.gguf", { head .. ("\0"):rep(-#head % 32), LARGE - 4, "\0\0\128\63" })
  end
  local function pt() -- zip64, since its storage is too large for anything less
    local pickle = "\128\2ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"
      .. "X\1\0\0\0\48X\3\0\0\0cpu\138\5" .. little_endian(LARGE / 4, 5) .. "tQK\0"
      .. "\138\5" .. little_endian(LARGE / 4, 5) .. "\133K\1\133\137)tR."
    local all = "\255\255\255\255"
    local function heads(name, at, text)
      local wide = text and "" or little_endian(1, 2) .. little_endian(16, 2) .. little_endian(LARGE, 8):rep(2)
      local middle = ("\0"):rep(8) .. little_endian(text and crc32(text) or 0, 4)
        .. (text and little_endian(#text, 4) or all):rep(2) .. little_endian(#name, 2) .. little_endian(#wide, 2)
      return "PK\3\4\45\0" .. middle .. name .. wide,
        "PK\1\2\45\0\45\0" .. middle .. ("\0"):rep(10) .. little_endian(at, 4) .. name .. wide
    end
    pickle = pickle .. ("x"):rep(-(#pickle + 30 + 10 + 30 + 8 + 20) % 64) -- after its end: the storage is aligned
    local first, first_entry = heads("a/data.pkl", 0, pickle)
    local second, second_entry = heads("a/data/0", #first + #pickle)
    local directory, at = first_entry .. second_entry, #first + #pickle + #second + LARGE
    local ending = "PK\6\6" .. little_endian(44, 8) .. "\45\0\45\0" .. ("\0"):rep(8) .. little_endian(2, 8):rep(2)
      .. little_endian(#directory, 8) .. little_endian(at, 8) .. "PK\6\7\0\0\0\0" .. little_endian(at + #directory, 8)
      .. "\1\0\0\0PK\5\6\0\0\0\0" .. little_endian(2, 2):rep(2) .. all .. all .. "\0\0"
    return sparse("large.pt", { first, pickle, second, LARGE - 4, "\0\0\128\63", directory .. ending })
  end

  local function resident() -- bytes
    return tonumber(temp.read("/proc/self/statm"):match "^%d+ (%d+)") * 4096
  end

  for name, make in pairs { safetensors = safetensors, npy = npy, gguf = gguf, pt = pt } do
    it(("(%s) is mapped, and only what is used of it is in memory"):format(name), function()
      local path = make()
      local before = resident()
      local value = lm.load(path, { mmap = true })
      local large = core.is_tensor(value) and value or value.large or value.tensors.large
      assert.same({ LARGE / 4, 1 }, { large:numel(), name == "safetensors" and value.small:item() or large[-1] })
      assert.equal(0, large:narrow(1, LARGE / 8, 2 ^ 18):sum():item())
      assert(resident() - before < 2 ^ 24, ("%.0f bytes"):format(resident() - before))
      os.remove(path)
    end)
  end

  it("with a list of so many is an error at once", function()
    local key = little_endian(1, 8) .. "a" .. little_endian(9, 4) .. little_endian(7, 4) .. little_endian(LARGE, 8)
    local head = "GGUF" .. little_endian(3, 4) .. little_endian(0, 8) .. little_endian(1, 8)
    local path = sparse("list.gguf", { head .. key, LARGE, "x" })
    assert.matches("malformed GGUF metadata: list of 4294967296 entries", message(lm.load, path))
  end)
end)

describe("a float in a file", function()
  local Source = require "luminary.file_formats.source"
  local function float(hex)
    local text = hex:gsub("%x%x", function(digits) return string.char(tonumber(digits, 16)) end):reverse()
    return Source.float("x" .. text, 2, #text)
  end

  it("is NaN for all of NaN's bits, some of which LuaJIT takes for other values", function()
    for _, hex in ipairs {
      "fffdc14141414140", "fffbc14141414140", "fffe7fffffffffff", "ffffffffffffffff", "7ff0000000000001",
      "7ff8000000000000", "fff4000000000000", "ffffffff", "7f800001", "ff949c66", "ffc00000",
    } do
      local value = float(hex)
      assert(type(value) == "number" and value ~= value, hex)
    end
    for hex, value in pairs {
      ["7ff0000000000000"] = math.huge, ["fff0000000000000"] = -math.huge,
      ["ffefffffffffffff"] = -1.797693134862315708e308, ["3ff8000000000000"] = 1.5,
      ["7f800000"] = math.huge, ["ff800000"] = -math.huge, ["3fc00000"] = 1.5, ["ff7fffff"] = -3.4028234663852886e38,
    } do assert.equal(value, float(hex)) end
    local value = load_text("forged.t7", "\1\0\0\0\64\65\65\65\65\193\253\255")
    assert(type(value) == "number" and value ~= value)
  end)
end)

describe("lm.save", function()
  it("writes the format that the ending names, or says which it can write", function()
    local beginnings = {
      ["x.npy"] = "^\147NUMPY", ["x.NPZ"] = "^PK", ["x.pt"] = "^PK.*data%.pkl", ["x.pth"] = "^PK.*data%.pkl",
      ["x.ckpt"] = "^PK.*data%.pkl",
      ["pytorch_model.bin"] = "^PK.*data%.pkl", ["x.safetensors"] = "^........{", ["x"] = "^........{",
      ["x.step100"] = "^........{", ["dir.t7.best"] = "^........{",
    }
    for name, beginning in pairs(beginnings) do
      local path = folder .. "/" .. name
      lm.save(path, name == "x.npy" and lm.arange(3) or { t = lm.arange(3) })
      assert.is_truthy(temp.read(path):find(beginning), name)
      local value = lm.load(path)
      assert.same({ 0, 1, 2 }, (name == "x.npy" and value or value.t):totable())
    end
    for ending, remedy in pairs {
      t7 = "; the rock luminary-torch7 writes it", T7 = "writes it", h5 = "",
      onnx = "", pkl = "", json = "", csv = "", zip = "", gz = "",
    } do
      local path = folder .. "/refused." .. ending
      local text = message(lm.save, path, { t = lm.arange(3) })
      local refusal = "cannot write '%s': unsupported extension .%s; use .safetensors, .pt, .npz or .npy"
      assert.matches(refusal:format(path, ending:lower()), text, 1, true)
      assert.matches(remedy, text, 1, true)
      assert.is_nil(io.open(path))
    end
  end)
end)
