-- scripts/dev/fuzz/files at its short length (LM_TEST_LONG: 100,000 files, and a million of each format of data sets,
-- from another seed each time).
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"
local fuzz = "scripts/dev/fuzz/files"

describe("mutated files #full", function()
  local long = os.getenv "LM_TEST_LONG"
  local folder = temp.during(setup, teardown)

  it("load or are errors that name the file", function()
    local count, seed = long and 100000 or 3000, long and os.time() or 1
    local ok, text = temp.run(folder, ("luajit %s --count %d --seed %d"):format(fuzz, count, seed))
    assert(ok, text)
    local past, all, loaded = text:match("in all (%d+) of (%d+) got past the header, (%d+) loaded, 0 strange")
    assert(past, text)
    assert.equal(count, tonumber(all))
    assert(past * 2 >= count and tonumber(loaded) > count / 10, text)
    for _, kind in ipairs {"jpeg", "png"} do
      local beyond, of = text:match(kind .. ": (%d+) of (%d+) got past the header")
      assert(tonumber(of) > count / 6 and beyond * 2 >= tonumber(of), text)
    end
    if long then print(text) end
  end)

  it("of data sets do, most of them past the first record", function()
    for _, format in ipairs {"tar", "CSV", "JSON lines", "CIFAR"} do
      local count, seed = long and 1000000 or 300, long and os.time() or 2
      local command = ("luajit %s --only '%s' --count %d --seed %d"):format(fuzz, format, count, seed)
      local ok, text = temp.run(folder, command)
      assert(ok, text)
      local past, all, loaded = text:match("(%d+) of (%d+) got past the header, (%d+) loaded, 0 strange errors")
      assert(past and past * 2 >= count and tonumber(all) == count and tonumber(loaded) > count / 10, text)
      if long then print(text) end
    end
  end)

  it("of other programs do, most of them past the header", function()
    for _, format in ipairs {"npy", "npz", "torch", "GGUF", "t7", "torch7", "shards", "GGUF tokenizer", "model files",
      "webp", "gif", "bmp", "tiff", "onnx"} do
      if needs.images(format) or format == "onnx" and needs.onnx() then goto next end
      local count, seed = long and 1000000 or 150, long and os.time() or 3
      local command = ("luajit %s --only '%s' --count %d --seed %d"):format(fuzz, format, count, seed)
      local ok, text = temp.run(folder, command)
      assert(ok, text)
      local past = text:match("(%d+) of %d+ got past the header, %d+ loaded, 0 strange errors")
      assert(past and past * 2 >= count, text)
      if long then print(text) end
      ::next::
    end
  end)

  it("are the same for the same seed", function()
    local function run()
      local _, text = temp.run(folder, ("luajit %s --count 100 --seed 7"):format(fuzz))
      return (text:gsub("^[^\n]*\n", ""):gsub("; %d+ a second of the CPU", ""))
    end
    assert.equal(run(), run())
  end)
end)
