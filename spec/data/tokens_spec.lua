-- TokenDataset.
local lm = require "luminary"
local sets = require "spec.support.sets"
local data = lm.data
local write, says, plain, all, same_with_workers, folder =
  sets.write, sets.says, sets.plain, sets.all, sets.same_with_workers, sets.folder
teardown(sets.remove)

describe("a TokenDataset", function()
  local ffi = require "ffi"
  local function tokens(name, kind, n, f)
    local list = ffi.new(kind .. "[?]", n)
    for i = 0, n - 1 do list[i] = f(i) end
    return write(name, ffi.string(list, ffi.sizeof(list)))
  end

  it("gives blocks and the same one token later", function()
    for kind, v in pairs {uint8 = 200, int16 = -5, uint16 = 60000, int32 = -70000, uint32 = 4e9, int64 = 2 ^ 40} do
      local path = tokens("t.bin", kind .. "_t", 11, function(i) return v + i end)
      local set = data.TokenDataset(path, {block_size = 3, dtype = kind, base = 0})
      assert.equal(3, #set)
      local x, y = set:get(2)
      assert.equal("int64", x.dtype)
      assert.same({{v + 3, v + 4, v + 5}, {v + 4, v + 5, v + 6}}, {plain(x), plain(y)})
    end
    local path = tokens("t.bin", "uint16_t", 11, function(i) return i end)
    local every = data.TokenDataset(path, {block_size = 3, stride = 1})
    assert.equal(8, #every)
    assert.same({9, 10, 11}, plain(select(2, every:get(-1)))) -- from 1
    local x, y = every:get_batch(lm.tensor({8, 1}, {dtype = "int64"}))
    assert(x:equal((every:get_batch {8, 1})))
    assert.same({{{8, 9, 10}, {1, 2, 3}}, {{9, 10, 11}, {2, 3, 4}}}, {plain(x), plain(y)})
    assert.is_true(x:is_contiguous() and y:is_contiguous())
    assert.equal(2, #data.TokenDataset(path, {block_size = 3, offset = 4, stride = 4}))
    local sums = data.TokenDataset(path, {block_size = 3, transform = function(a, b) return (a + b):sum():item() end})
    assert.equal(15, sums:get(1))
    same_with_workers(every)
    same_with_workers(sums)
  end)

  it("says what is wrong with the file", function()
    local path = tokens("u.bin", "uint16_t", 11, function(i) return i * 10 end)
    says("u.bin' has 22 bytes, not a multiple of the token", data.TokenDataset, path, {block_size = 3, dtype = "int32"})
    says("u.bin' has 11 tokens; block_size (11)", data.TokenDataset, path, {block_size = 11})
    says("block_size is required", data.TokenDataset, path)
    says("cannot open '" .. folder .. "/none'", data.TokenDataset, folder .. "/none", {block_size = 1})
    local set = data.TokenDataset(path, {block_size = 3, vocab_size = 100})
    assert.same({31, 41, 51}, plain((set:get(2))))
    says(path .. ": token 11 of it is 100, not from 0 to 99",
      data.TokenDataset(path, {block_size = 3, vocab_size = 100, stride = 7}).get,
      data.TokenDataset(path, {block_size = 3, vocab_size = 100, stride = 7}), 2)
    says("index 4 is out of range for 3 samples (indices start at 1)", set.get, set, 4)
    says("has no block 4611686018427387904", set.get_batch, set, lm.tensor({2 ^ 53}, {dtype = "int64"}):mul(512))
    says("are not in it", set.get_batch, set, lm.tensor({0}, {dtype = "int64"}))
    says("TokenDataset: the list of indices must be a tensor, got 3", set.get_batch, set, 3)
  end)

  it("takes a transform that is set later, as a CSVDataset does", function()
    local set = data.TokenDataset(tokens("later.bin", "uint16_t", 100, function(i) return i end), {block_size = 4})
    local rows = data.CSVDataset(write("later.csv", "a,b\n1,2\n3,4\n"), {label = "b"})
    local function first(of) return (data.DataLoader(of, {batch_size = 2}):iter()()):double() end
    for _, of in ipairs {set, rows} do
      local before = first(of)
      of.transform = function(x, ...) return x + 10, ... end
      assert(lm.equal(before + 10, first(of)))
      of.transform = nil
      assert(lm.equal(before, first(of)))
    end
  end)

  it("has an error for a file that changes, in workers too", function()
    local path = tokens("v.bin", "uint16_t", 5000, function(i) return i end)
    local set = data.TokenDataset(path, {block_size = 4})
    set:get(1)
    write("v.bin", "short")
    says("cannot read '" .. path .. "': its size changed from 10000 to 5 bytes", set.get, set, 1000)
    for _, kind in ipairs {"thread", "process"} do
      says(path .. "' has changed since the dataset was created: it had 10000 bytes", all, set,
        {num_workers = 1, worker_type = kind})
    end
    tokens("v.bin", "uint16_t", 5000, function(i) return i + 1 end)
    says("v.bin", set.get, set, 1)
  end)
end)
