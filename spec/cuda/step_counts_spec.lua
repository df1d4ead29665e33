-- Counts what a step of tiny sizes, or a token, asks of a device: launches, products, plan searches, waits, and the
-- bytes that its products and kernels move, as scripts/dev/count_step --small --totals counts them. A change that
-- lowers a number changes it here; one that raises it has a reason. Bytes of kernels are counted over checked kernels
-- alone.
local lists = require "luminary.base.lists"
local ffi = require "ffi"
local lm = require "luminary"
local temp = require "spec.support.temp"
ffi.cdef "long lm_fake_call_count(const char *name);"
if not lm.cuda.is_available() or not pcall(function() return ffi.C.lm_fake_call_count end) then return end
local checked = (os.getenv "LD_PRELOAD" or ""):find("/checked/fake_cuda", 1, true) ~= nil

-- Lists by name: launches, works, products, their FLOPs, bytes read and written by products, the same by all work,
-- launches whose bytes are not known (a library's). ideal: bytes that an ideal step moves. less: bytes that kernels do
-- not read unless they are optimized, as scripts/test --long has them.
local steps = {
  lenet = {
    ideal = 6035856,
    eager = {29, 29, 11, 13258800, 1159312, 603504, 3080896, 1871372, 0},
    captured = {3, 32, 11, 13258800, 1162456, 606648, 3084056, 1874524, 0},
  },
  resnet18 = {
    ideal = 403477216, less = 4,
    eager = {283, 283, 62, 415592448, 45288548, 22647976, 249160208, 180525464, 0},
    captured = {3, 286, 62, 415592448, 45289076, 22648504, 249160752, 180526000, 0},
  },
  resnet50 = {
    ideal = 55296, less = 4,
    eager = {38, 38, 8, 258432, 15700, 5752, 58072, 29052, 0},
    captured = {3, 41, 8, 258432, 21860, 11912, 64248, 35220, 0},
  },
  gpt2 = {
    ideal = 1696512,
    eager = {130, 131, 31, 11862016, 458944, 259072, 1814984, 1178284, 1},
    captured = {3, 135, 31, 11862016, 459968, 260096, 1816168, 1179404, 1},
  },
  llama_1b = {
    ideal = 1378688, less = 24576,
    eager = {241, 242, 49, 9502720, 413696, 232448, 2189320, 1445772, 1},
    captured = {3, 246, 49, 9502720, 414720, 233472, 2190448, 1446892, 1},
  },
  token = {
    ideal = 111168,
    eager = {30, 30, 9, 52224, 54336, 1248, 57064, 3104, 0},
    captured = {2, 32, 9, 52224, 54344, 1256, 57088, 3120, 0},
  },
}

-- Returns LeNet's bytes by the shapes: one image of 28 x 28, float32.
local function lenet()
  local x, c1, p1, c2, p2, h, y = 784, 20 * 26 * 26, 20 * 13 * 13, 50 * 9 * 9, 50 * 4 * 4, 128, 10
  local w1, w2, w3, w4 = 20 * 9, 50 * 20 * 25, h * p2, y * h
  local parameters = w1 + 20 + w2 + 50 + w3 + h + w4 + y
  local products = {
    {x + w1 + 20, c1}, {p1 + w2 + 50, c2}, {p2 + w3 + h, h}, {h + w4 + y, y},             -- forward
    {y + w4, h}, {y + h, w4}, {h + w3, p2}, {h + p2, w3}, {c2 + w2, p1}, {c2 + p1, w2}, {c1 + x, w1},
  }
  local kernels = {
    {c1, c1}, {c2, c2}, {h, h}, {2 * c1, c1}, {2 * c2, c2}, {2 * h, h},                   -- relu
    {c1, p1}, {50 * 8 * 8, p2}, {p1, c1}, {p2, c2},                                       -- average pooling
    {p2, p2}, {p2, p2}, {c1, 20}, {c2, 50},              -- flatten of channels-last, biases of convolutions
    {y + 2, 1 + 2 + 1}, {y + 2 + 1 + 2 + 1, y}, {0, 1},  -- cross entropy: an int64 label, loss, statistics, total
    {3 * parameters, 2 * parameters},                    -- SGD with momentum
  }
  local function sum(list, from)
    for _, each in ipairs(list) do from = {from[1] + 4 * each[1], from[2] + 4 * each[2]} end
    return from
  end
  local of_products = sum(products, {0, 0})
  return of_products, sum(kernels, of_products)
end

describe("a training step #unsanitized", function() -- count_step preloads a library
  for _, captured in ipairs {false, true} do
    for model, both in pairs(steps) do
      local how = captured and "captured" or "eager"
      it(("of %s, %s, launches and moves as much as it did"):format(model, how), function()
        local ok, text = temp.run(".", ("scripts/dev/count_step %s --small --totals%s%s"):format(model,
          captured and " --captured" or "", checked and "" or " --unchecked"))
        assert.is_true(ok, text)
        local found = {}
        for name, value in text:gmatch "([%a_]+)=(%d+)" do found[name] = tonumber(value) end
        local e = both[how]
        local bytes = checked and 7 or 5
        local less = checked and not os.getenv "LM_TEST_LONG" and both.less or 0
        assert.same({
          launches = e[1], work = e[2], products = e[3], flops = e[4], read = e[bytes] - less, written = e[bytes + 1],
          searches = 0, waits = 0, uploads_and_downloads = 0, unseen = checked and e[9] or found.unseen,
          ideal = checked and both.ideal or found.ideal,
        }, found)
      end)
    end
  end

  -- Products, and most launches with them.
  for model, limits in lists.sorted_pairs {gpt2 = {31, 62}, llama_1b = {49, 102}, resnet18 = {62, 227}} do
    it(("of %s through lm.compile launches fewer kernels than the eager one"):format(model), function()
      local ok, text = temp.run(".", ("scripts/dev/count_step %s --small --compiled --unchecked"):format(model))
      assert.is_true(ok, text)
      assert.is_nil(text:find "runs as it is", text)
      local eager, compiled = text:match "\nproduct +(%d+) +(%d+)"
      assert.same({limits[1], limits[1]}, {tonumber(eager), tonumber(compiled)}) -- none is lost or computed twice
      assert.is_true(tonumber((text:match "\nall +%d+ +(%d+)")) <= limits[2], text)
    end)
  end

  it("of a sharded GPT-2 gathers what its shapes say, and sends gradients once", function()
    local ok, text = temp.run(".", "scripts/dev/count_step gpt2 --mesh 2x4 --small --totals --unchecked")
    assert.is_true(ok, text)
    local gathered, by_shapes = text:match "gathered (%d+) bytes; by the shapes (%d+)"
    assert.equal(by_shapes, gathered, text)
    local counts = {}
    for name, calls, bytes in text:gmatch "([%a_]+), stream %d+ +(%d+) calls +(%d+) bytes" do
      counts[#counts + 1] = ("%s %s %s"):format(name, calls, bytes)
    end
    -- Two blocks, twice, and the rest once; rows of gradients and of their sums over replicas; the number of samples.
    -- Each parameter's rows begin at a multiple of 64 bytes. Behind them are flags: whether there is a gradient.
    assert.same({"all_gather 5 28032", "all_reduce 4 14920", "all_reduce 1 8", "reduce_scatter 3 14912"}, counts)
  end)

  if checked then -- unchecked kernels do not say what they write
    it("has the ideal that it has where each tensor is an allocation of its own", function()
      for _, model in ipairs {"resnet18", "gpt2", "llama_1b"} do
        local ok, text = temp.run(".", ("LM_GUARD_BLOCKS=1 scripts/dev/count_step %s --small --totals"):format(model))
        assert.is_true(ok, text)
        assert.equal(steps[model].ideal, tonumber(text:match "ideal=(%d+)"))
      end
    end)
  end

  it("of LeNet moves what its shapes say", function()
    local of_products, of_all = lenet()
    local e = steps.lenet.eager
    assert.same({of_products[1], of_products[2], of_all[1], of_all[2]}, {e[5], e[6], e[7], e[8]})
  end)
end)
