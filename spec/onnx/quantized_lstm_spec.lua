-- com.microsoft.DynamicQuantizeLSTM, which onnxruntime's quantize_dynamic writes: values of onnxruntime.
local lm = require "luminary"
local files = require "spec.support.onnx_files"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

-- Returns values as a tensor of a shape.
local function of(shape, values, dtype) return lm.tensor(values, {dtype = dtype or "float32"}):reshape(shape) end

local cases = {
  ["both directions, lengths, one scale for each"] = {
    direction = "bidirectional", inputs = "x w r b l h c - s z s2 z",
    x = {1.375, -0.25, 1.5, 1.125, 0.75, -1.125, 1, -1.875, 0.25, -0.5, 1.875, -1.25, 1.75, -1.75, 0.375, 0.25,
      1.5, -0.875},
    tensors = {
      w = of({2, 3, 8}, {42, 16, 1, -28, -24, -56, -51, -59, -39, 37, 17, 49, 0, 12, 56, 27, 15, 5, 7, 52, -27, 37,
        20, -60,
        -13, 42, 6, -56, 31, 27, 41, -39, -50, 43, -58, 4, -51, -25, -3, -10, -12, -57, -60, -46, -60, 20, 3, 17},
          "int8"),
      r = of({2, 2, 8}, {-30, 13, 31, -14, -5, 59, 36, 57, -15, 22, 54, 18, 40, 22, 24, -14, 45, -44, 9, 26, 41, 3,
        -15, -23,
        -10, -2, 26, 46, -52, 52, 3, -18}, "int8"),
      b = of({2, 16}, {0.125, 0.0625, -0.25, -0.1875, 0.1875, 0.0625, 0, -0.1875, 0.25, -0.125, -0.1875, 0.375, -0.25,
        -0.3125, 0.1875, 0.0625, -0.5, -0.4375, -0.125, 0.3125, -0.125, 0.25, -0.1875, -0.3125, 0.25, 0.375,
          -0.4375, -0.5,
        0.125, -0.1875, 0.0625, -0.375}),
      s = of({2}, {0.03125, 0.0234375}), s2 = of({2}, {0.03125, 0.0234375}), z = of({2}, {0, 0}, "int8"),
      l = of({2}, {3, 2}, "int32"), h = lm.full({2, 2, 2}, 0.25), c = lm.full({2, 2, 2}, -0.5),
    },
    y = of({3, 2, 2, 2}, {-0.405341, -0.532942, -0.292702, 0.0951247, 0.0737147, -0.0226342, -0.0250915, -0.201867,
      -0.0536398, -0.00439876, -0.196819, 0.645306, 0.603673, -0.0893986, -0.0567035, -0.664303, -0.177989,
        -0.0077124, 0, 0,
      0.222442, -0.0423353, 0, 0}),
    last = of({2, 2, 2}, {-0.177989, -0.0077124, -0.196819, 0.645306, 0.0737147, -0.0226342, -0.0250915, -0.201867}),
    cell = of({2, 2, 2}, {-1.16751, -0.238934, -0.385147, 1.02299, 0.783984, -0.83243, -0.0580278, -1.17839}),
  },
  ["one direction, scales for each gate's elements"] = {
    direction = "forward", inputs = "x w r b - h c - s z s2 z",
    x = {-1.75, 1.875, 1.25, 1.75, -0.625, -1.5, 0, 1.875, -0.625, 1.5, -0.5, 1.25, -1.125, -0.125, -0.75, -1.125,
      1.5, 1.125},
    tensors = {
      w = of({1, 3, 8}, {107, 31, 93, 113, 15, 50, 80, 21, 66, 79, 94, 111, 55, 58, 62, 115, 31, 64, 15, 56, 113,
        78, 48, 119},
        "uint8"),
      r = of({1, 2, 8}, {76, 114, 11, 60, 101, 93, 54, 64, 56, 68, 35, 96, 18, 55, 41, 90}, "uint8"),
      b = of({1, 16}, {0.1875, 0.1875, 0.375, 0.375, -0.375, -0.4375, -0.375, 0.1875, 0.4375, 0.375, 0.125, 0.4375,
        0.3125,
        -0.5, -0.4375, 0.3125}),
      s = of({1, 8}, {2, 8, 8, 3, 4, 5, 6, 4}) / 256, s2 = of({1, 8}, {4, 6, 5, 4, 3, 8, 8, 2}) / 256,
      z = lm.full({1, 8}, 64, {dtype = "uint8"}), h = lm.full({1, 2, 2}, 0.25), c = lm.full({1, 2, 2}, -0.5),
    },
    y = of({3, 1, 2, 2}, {-0.113704, 0.440579, 0.10603, -0.254067, -0.58885, 0.620292, -0.108659, -0.052376,
      -0.441423,
      0.319962, -0.201438, 0.498884}),
    last = of({1, 2, 2}, {-0.441423, 0.319962, -0.201438, 0.498884}),
    cell = of({1, 2, 2}, {-0.767092, 0.564238, -0.693257, 0.88174}),
  },
}

describe("com.microsoft.DynamicQuantizeLSTM", function()
  if needs.lacks(it, pending, needs.onnx()) then return end

  for name, case in pairs(cases) do
    it("computes what onnxruntime does: " .. name, function()
      local path = files.write(folder, {{
        "com.microsoft.DynamicQuantizeLSTM", case.inputs, "y last cell", {hidden_size = 2,
          direction = case.direction},
      }}, case.tensors, {output = {files.info "y", files.info "last", files.info "cell"}})
      local net, x = lm.onnx.load(path), of({3, 2, 3}, case.x)
      for _, input in ipairs {x, x:permute(3, 2, 1):contiguous():permute(3, 2, 1)} do
        for _ = 1, 3 do
          local y, last, cell = lm.no_grad(function() return net(input) end)
          for i, pair in ipairs {{y, case.y}, {last, case.last}, {cell, case.cell}} do
            assert.same(pair[2].shape, pair[1].shape)
            assert.is_true(lm.allclose(pair[1], pair[2], 1e-5, 2e-6), "result " .. i)
          end
        end
      end
      lm.no_grad(function() net.w:zero_() end) -- weights that change are not kept
      assert.is_false(lm.allclose((lm.no_grad(function() return net(x) end)), case.y, 1e-3, 1e-3))
    end)
  end

  it("trains its biases, and neither bytes nor scales", function()
    local case = cases["one direction, scales for each gate's elements"]
    local net = lm.onnx.load(files.write(folder, {{
      "com.microsoft.DynamicQuantizeLSTM", case.inputs, "y", {hidden_size = 2},
    }}, case.tensors))
    local names = {}
    for name in net:named_parameters() do names[#names + 1] = name end
    assert.same({"b"}, names)
    net(of({3, 2, 3}, case.x)):sum():backward()
    assert.is_true(net.b.grad:isfinite():all():item())
  end)
end)
