-- MatMulNBits with accuracy_level 4: the weight becomes blocks of lm.block_linear where these hold it.
local lm = require "luminary"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"

describe("MatMulNBits", function()
  if needs.lacks(it, pending, needs.onnx()) then return end
  local folder = temp.during(setup, teardown)

  local function loaded(bits, size, K, level, zeros, scales)
    local path, N = folder .. "/x.onnx", 6
    local count = math.ceil(K / size)
    lm.manual_seed(bits + size)
    local w = lm.randint(0, 256, {N, count, size * bits / 8}):to "uint8"
    scales = scales or lm.rand(N * count) * 0.02 + 0.001
    local z = lm.randint(0, 256, {N * math.ceil(count * bits / 8)}):to "uint8"
    local function info(name) return {name = name, type = {tensor_type = {elem_type = 1}}} end
    local attributes = {}
    for name, value in pairs {K = K, N = N, bits = bits, block_size = size, accuracy_level = level} do
      attributes[#attributes + 1] = {name = name, type = 2, i = value}
    end
    lm.core.onnx_write(path, {
      ir_version = 8, opset_import = {{version = 17}, {domain = "com.microsoft", version = 1}},
      graph = {
        name = "bits", input = {info "x"}, output = {info "y"},
        initializer = {
          {name = "w", data_type = 2, dims = w.shape, raw_data = w},
          {name = "z", data_type = 2, dims = z.shape, raw_data = z},
          {name = "s", data_type = 1, dims = scales.shape, raw_data = scales},
        },
        node = {{
          op_type = "MatMulNBits", domain = "com.microsoft", output = {"y"},
          input = {"x", "w", "s", zeros and "z" or nil},
          attribute = attributes,
        }},
      },
    })
    return lm.onnx.load(path)
  end

  local function difference(...)
    local bits, size, K, zeros, scales = ...
    local x = lm.randn(2, 3, K)
    local exact, y = loaded(bits, size, K, 0, zeros, scales)(x), loaded(bits, size, K, 4, zeros, scales)(x)
    assert.equal("float32", y.dtype)
    return ((y - exact):norm() / exact:norm()):item()
  end

  it("refuses other numbers of scales than of blocks", function()
    for _, level in ipairs {0, 4} do
      for _, count in ipairs {1, 24} do
        assert.error_matches(function() loaded(4, 32, 64, level, false, lm.rand(count))(lm.ones(2, 64)) end,
          "expected 12 scales and blocks of 32 numbers of 4 bits, got " .. count .. " scales and 192 bytes")
      end
    end
  end)

  it("rounds x by groups of 32 numbers to int8, and nothing else", function()
    for _, bits in ipairs {4, 8} do
      for _, size in ipairs {32, 64, 128, 256} do
        local off = difference(bits, size, 512, false)
        assert.is_true(off > 1e-4 and off < 0.012, off)
      end
    end
    for _, size in ipairs {32, 128} do
      local off = difference(4, size, 512, true)
      assert.is_true(off > 1e-4 and off < 0.012, off)
    end
  end)

  it("computes with floats what blocks do not hold", function()
    assert.equal(0, difference(4, 16, 512, false))
    assert.equal(0, difference(4, 32, 500, true))
    assert.equal(0, difference(8, 32, 512, true))
    assert.equal(0, difference(4, 64, 512, false, lm.full({48}, 1e-6)))
    assert.equal(0, difference(4, 64, 512, false, lm.full({48}, 1e5)))
    local zeros = difference(4, 64, 512, false, lm.cat({lm.zeros(1), lm.full({47}, 0.01)}, 1))
    assert.is_true(zeros > 0 and zeros < 0.012)
  end)
end)
