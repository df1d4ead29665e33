-- Kinds of quantized blocks: values, products and their bounds, rounding, on each level of the CPU's instructions; on
-- the device that LM_SPEC_DEVICE names.
local lm = require "luminary"
local kinds = require "luminary.block_kinds"

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
setup(function() lm.set_default_device(device) end)
teardown(function() lm.set_default_device "cpu" end)

-- Returns an x [rows, n] with blocks of very different sizes.
local function inputs(rows, n)
  return lm.randn(rows, n) * lm.pow(10, lm.randn(rows, n / 32):clamp(-3, 3)):repeat_interleave(32, 2)
end

describe("quantized blocks", function()
  for _, kind in ipairs(kinds) do
    local name = kind.name

    it("multiply within the bound of rounding x, in few rows and in many: " .. name, function()
      for _, n in ipairs {kind.elements, 3 * kind.elements, 512} do
        local weight = lm.quantize_blocks(lm.randn(37, n), name)
        assert.same({37, n / kind.elements * kind.bytes}, weight.shape)
        local expanded, bias = lm.expand_blocks(weight, name):double(), lm.randn(37)
        for _, rows in ipairs {1, 4, 7, 16, 17, 33} do
          local x = inputs(rows, n)
          local largest = x:view(rows, -1, 32):abs():amax(3):double()
          local bound = largest:matmul(expanded:view(37, -1, 32):abs():sum(3):t()) / 254
          local want = lm.nn.functional.linear(x:double(), expanded, bias:double())
          local off = (lm.block_linear(x, weight, bias, name):double() - want):abs()
          local sums = x:abs():double():matmul(expanded:abs():t()) -- float32 rounds sums and minima
          assert.is_true(off:le(bound * 1.001 + sums * 1e-5 + 1e-6):all():item(), ("%d rows of %d"):format(rows, n))
        end
      end
    end)

    it("are rounded with a small error, and again to the same numbers: " .. name, function()
      local x = lm.randn(16, 1024)
      local once = lm.expand_blocks(lm.quantize_blocks(x, name), name)
      local bits = kind.low[3] + kind.high[3]
      local error = ((once - x):norm() / x:norm()):item()
      local most = name == "mxfp4" and 2.2 or 1.4 -- its scales are powers of two
      assert(error < most / 2 ^ bits, ("%s is off by %g"):format(name, error))
      assert.is_true(lm.expand_blocks(lm.quantize_blocks(lm.zeros(kind.elements), name), name):eq(0):all():item())
      local wild = lm.tensor {0 / 0, math.huge, -math.huge, 1e38, 1e-40}:repeat_interleave(kind.elements)
      assert.equal(5 * kind.elements, lm.expand_blocks(lm.quantize_blocks(wild, name), name):numel())
    end)

    it("take any dtype and layout of x, and rows that others do not change: " .. name, function()
      local weight, x = lm.quantize_blocks(lm.randn(9, 512), name), lm.randn(6, 512)
      local want = lm.block_linear(x, weight, nil, name)
      for _, rows in ipairs {6, 8, device == "cuda" and 16 or 7} do
        for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
          local many = lm.randn(rows, 2, 512):to(dtype):select(2, 2) -- stepped
          local y = lm.block_linear(many, weight, nil, name)
          for r = 1, rows do assert.same(y[r]:totable(), lm.block_linear(many[r], weight, nil, name):totable()) end
        end
      end
      assert.same(want:totable(), lm.block_linear(x:t():contiguous():t(), weight, nil, name):totable())
      assert.same({2, 3, 9}, lm.block_linear(x:view(2, 3, 512), weight, nil, name).shape)
      local spread = lm.zeros(9, 2 * weight:size(2), {dtype = "uint8"}):narrow(2, 5, weight:size(2))
      spread:copy_(weight)
      assert.same(want:totable(), lm.block_linear(x, spread, nil, name):totable())
      for _, dtype in ipairs {"bfloat16", "float16"} do
        local half = x:to(dtype)
        local y = lm.block_linear(half, weight, nil, name)
        assert.equal(dtype, y.dtype)
        assert.same(lm.block_linear(half:float(), weight, nil, name):to(dtype):totable(), y:totable())
      end
      local index = lm.tensor({9, 1}, {dtype = "int64"})
      local rows = lm.block_rows(index:view(1, 2), weight, name)
      assert.same(lm.expand_blocks(weight, name):index_select(1, index):totable(), rows[1]:totable())
    end)
  end

  it("serve attention as keys and values, equal to the expanded ones, within the bound of their rounding", function()
    local tokens, positions, pages = 9, 100, lm.tensor({{3, 7, 1, 5, 2, 6, 4}}, {dtype = "int64"})
    local sequence, position = lm.ones(tokens):long(), lm.arange(positions - tokens + 1, positions + 1):long()
    for i = 1, #kinds, device == "cpu" and 1 or 4 do -- elsewhere one of each form: the stand-in is slow
      local kind = kinds[i]
      local width = math.max(kind.elements, 64)
      local k, v = inputs(112 * 2, width):view(112, 2, width), lm.randn(112, 2, width)
      local q = lm.randn(tokens, 4, width)
      local function stored(t) return lm.quantize_blocks(t, kind.name) end
      local function read(t) return lm.expand_blocks(stored(t), kind.name) end
      for name, layout in pairs {rows = 1, spread = 2} do
        local function laid_out(t) return t:repeat_interleave(layout, 1):view(112, layout, 2, -1):select(2, layout) end
        for _, dtype in ipairs {"float32", "bfloat16", "float64"} do
          local o = {kind = kind.name, window = 70, cap = 30}
          local query = q:to(dtype)
          local function attend(x, keys, values)
            return lm.paged_attention(x, keys, values, pages, sequence, position, 16, o)
          end
          local y = attend(query, laid_out(stored(k)), laid_out(stored(v)))
          assert.equal(dtype, y.dtype)
          local wide = dtype == "float64" and query or query:float()
          local want = attend(wide, read(k):to(wide.dtype), read(v):to(wide.dtype))
          local off = (y:to(wide.dtype) - want:to(dtype):to(wide.dtype)):abs():max():item()
          assert(off <= 1e-5, ("%s %s %s: %g"):format(kind.name, name, dtype, off))
        end
      end
      -- A weight changes by at most a factor of exp(2 d) where scores change by at most d.
      local exact = lm.paged_attention(q, k, v, pages, sequence, position, 16)
      local y = lm.paged_attention(q, stored(k), stored(v), pages, sequence, position, 16, {kind = kind.name})
      local rounding = (read(k) - k):transpose(1, 2):repeat_interleave(2, 1)
      local d = rounding:matmul(q:permute {2, 3, 1}):abs():max():item() / math.sqrt(width)
      local bound = (read(v) - v):abs():max():item() + (math.exp(2 * d) - 1) * v:abs():max():item()
      assert.is_true((y - exact):abs():max():item() <= bound + 1e-5)
    end
  end)

  it("of 8 bits have at most the error of rounding to 1 / 127 of the largest magnitude", function()
    for _, scale in ipairs {1e-3, 1, 1e4} do
      local x = inputs(64, 512):clamp(-1, 1) * scale
      local off = (lm.expand_blocks(lm.quantize_blocks(x, "q8_0"), "q8_0") - x):view(-1, 32):norm(2, 2)
      local largest = x:view(-1, 32):abs():amax(2)
      -- scales are halves: 11 bits, and no finer than 2^-24
      local bound = largest * (math.sqrt(32) * (1 / 254 + 2 ^ -11)) + math.sqrt(32) * 127 * 2 ^ -25
      assert.is_true(off:le(bound):all():item())
    end
  end)

  it("make no finite number of a row with one that is not finite, and of no other", function()
    local weight = lm.quantize_blocks(lm.randn(5, 64), "q4_0")
    for _, rows in ipairs {3, 20} do
      for _, value in ipairs {0 / 0, math.huge} do
        local x = lm.randn(rows, 64)
        x[{2, 40}] = value
        local bad = lm.block_linear(x, weight, nil, "q4_0"):isfinite():logical_not() -- infinities in many rows on a GPU
        assert.is_true(bad[2]:all():item())
        assert.equal(5, bad:sum():item())
      end
    end
  end)

  it("report a page that keys of no positions do not have", function()
    local none, index = lm.zeros(0, 2, 32), lm.ones(1):long()
    assert.error_matches(function()
      lm.paged_attention(lm.ones(1, 4, 32), none, none, index:view(1, 1), index, index, 4):sum():item()
    end, "1 at position 1 is out of range for 0 entries")
  end)

  it("have the gradient of the expanded weight", function()
    local weight, bias = lm.quantize_blocks(lm.randn(150, 256), "q4_k"), lm.randn(150, {requires_grad = true})
    local expanded = lm.expand_blocks(weight, "q4_k")
    local function is_near(dtype, got, want)
      assert.equal(dtype, got.dtype)
      assert.is_true((got:float() - want):norm():item() < (dtype == "float32" and 1e-2 or 2e-2) * want:norm():item())
    end
    for _, dtype in ipairs {"bfloat16", "float16", "float32"} do
      for _, rows in ipairs {3, 20} do
        local x, g = lm.randn(rows, 256):to(dtype):requires_grad_(), lm.randn(rows, 150):to(dtype)
        local y = lm.block_linear(x, weight, bias, "q4_k")
        y:backward(g)
        is_near(dtype, y, lm.nn.functional.linear(x:float(), expanded, bias))
        is_near(dtype, x.grad, g:float():matmul(expanded))
        assert.same({150}, bias.grad.shape)
      end
    end
  end)

  it("are equal on all levels of instructions, but for the order of sums #unsanitized", function()
    local script = [[
      local lm = require "luminary"
      lm.manual_seed(3)
      for _, kind in ipairs(require "luminary.block_kinds") do
        local weight = lm.randint(0, 120, {21, 2 * 256 / kind.elements * kind.bytes}):to "uint8"
        local expanded = lm.expand_blocks(weight, kind.name)
        for _, rows in ipairs {2, 18} do
          local x = lm.randn(rows, 512)
          local y = lm.block_linear(x, weight, nil, kind.name)
          local sums = lm.nn.functional.linear(x:abs(), expanded:abs()):clamp_min(1e-30)
          local off = (y - lm.nn.functional.linear(x, expanded)):abs() / sums
          if off:max():item() > 8e-3 then print(kind.name, rows, off:max():item()) end
        end
      end
    ]]
    for level = 0, 2 do
      local pipe = assert(io.popen(("LM_CPU_LEVEL=%d luajit -e '%s' 2>&1"):format(level, script)))
      local text = pipe:read "*a"
      pipe:close()
      assert.equal("", text, "level " .. level)
    end
  end)
end)
