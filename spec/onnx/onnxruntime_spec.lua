-- Models as onnxruntime's optimizer and quantizer write them (spec/golden/_onnxruntime.safetensors), products of
-- integers of 8 bits, and the patterns that are joined when a file is read.
local lm = require "luminary"
local core = require "luminary.core"
local cases = require "spec.support.onnx_cases"
local patterns = require "luminary.onnx.patterns"
local tensors = require "luminary.onnx.tensors"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)
local names, _, write_case = cases.load "_onnxruntime"
local function write(name) return write_case(folder, name) end

-- Returns the number of nodes of each op that a file's graph is joined to, with more outputs.
local function joined(name, outputs)
  local graph = tensors.read(write(name)).graph
  for _, output in ipairs(outputs or {}) do table.insert(graph.output, {name = output}) end
  local read = tensors.reader(folder .. "/")
  local counts = {}
  for _, node in ipairs(patterns.joined(graph, function(t) return read(t, error) end, 17)) do
    counts[node.op_type] = (counts[node.op_type] or 0) + 1
  end
  return counts
end

describe("models of onnxruntime", function()
  if needs.lacks(it, pending, needs.onnx()) then return end

  for _, name in ipairs(names) do
    it("runs " .. name, function()
      write(name)
      for _, device in ipairs {"cpu", "cpu:1"} do
        local _, why = cases.run(folder .. "/" .. name, device)
        assert.is_nil(why)
      end
    end)
  end

  it("joins attention, GELU and normalizations", function()
    local counts = joined "block"
    assert.same({1, 1, 1, 1},
      {counts.JoinedAttention, counts.Gelu, counts.LayerNormalization, counts.SimplifiedLayerNormalization})
    assert.same({}, {counts.Softmax, counts.Erf, counts.ReduceMean, counts.Sqrt})
  end)

  local function node(op, inputs, output, to)
    return {op_type = op, input = inputs, output = {output}, attribute = {to and {name = "to", i = to}}}
  end

  it("reads what copies and casts to the same dtype read", function()
    local nodes = {
      node("Gather", {"x", "k"}, "a"), node("Cast", {"a"}, "b", 1), node("Identity", {"b"}, "c"),
      node("Cast", {"c"}, "d", 10), node("Cast", {"other"}, "e", 1), node("Cast", {"k"}, "f", 7),
      node("Concat", {"c", "d", "e", "f"}, "y"), node("Identity", {"d"}, "z"),
    }
    local graph = {
      node = nodes, output = {{name = "y"}, {name = "z"}}, initializer = {{name = "k", data_type = 7}},
      input = {{name = "x", type = {tensor_type = {elem_type = 1}}}, {name = "other"}},
    }
    local parts = {}
    for _, each in ipairs(patterns.joined(graph, error, 17)) do
      parts[#parts + 1] = each.op_type .. " " .. table.concat(each.input, " ")
    end
    assert.equal("Gather x k, Cast a, Cast other, Concat a d e k, Identity d", table.concat(parts, ", "))
  end)

  it("joins the approximation of GELU by tanh", function()
    local numbers = {c = 0.044715, three = 3, one = 1, half = 0.5, root = 0.7978846}
    for _, last in ipairs {
      {node("Mul", {"half", "x"}, "a"), node("Mul", {"a", "f"}, "y")},
      {node("Mul", {"f", "half"}, "a"), node("Mul", {"x", "a"}, "y")},
    } do
      local graph = {initializer = {}, output = {{name = "y"}}, node = {
        node("Pow", {"x", "three"}, "p"), node("Mul", {"p", "c"}, "q"), node("Add", {"x", "q"}, "u"),
        node("Mul", {"u", "root"}, "v"), node("Tanh", {"v"}, "t"), node("Add", {"t", "one"}, "f"), unpack(last),
      }}
      for name in pairs(numbers) do table.insert(graph.initializer, {name = name}) end
      local nodes = patterns.joined(graph, function(message) return lm.tensor {numbers[message.name]} end, 17)
      assert.same({1, "FastGelu", {"x"}}, {#nodes, nodes[1].op_type, nodes[1].input})
      numbers.c = 0.05
      assert.equal(8, #patterns.joined(graph, function(message) return lm.tensor {numbers[message.name]} end, 17))
      numbers.c = 0.044715
      for _, near in ipairs {3.001, lm.full({1, 1}, 3)} do
        numbers.three = near
        assert.equal(8, #patterns.joined(graph, function(message)
          local value = numbers[message.name]
          return lm.is_tensor(value) and value or lm.tensor {value}
        end, 17))
      end
      numbers.three = 3
    end
  end)

  it("joins integers and scales if there is one for all rows", function()
    local graph = {initializer = {{name = "w"}, {name = "s"}}, output = {{name = "y"}}, node = {
      {op_type = "DynamicQuantizeLinear", input = {"x"}, output = {"a", "a_scale", "a_zero"}},
      node("MatMulInteger", {"a", "w", "a_zero"}, "p"), node("Cast", {"p"}, "q", 1),
      node("Mul", {"a_scale", "s"}, "r"), node("Mul", {"q", "r"}, "y"),
    }}
    local function count(scale)
      return #patterns.joined(graph, function(m) return m.name == "s" and scale or lm.zeros(4, 3):to "int8" end, 17)
    end
    assert.same({2, 2, 5}, {count(lm.ones {}), count(lm.ones(3)), count(lm.ones(4, 1))})
  end)

  it("joins the product with its sigmoid", function()
    local function ops_of(...)
      local nodes = patterns.joined({node = {node("Sigmoid", {"x"}, "s"), ...}, output = {{name = "y"}}}, error, 17)
      return table.concat(require "luminary.base.lists".map(nodes, function(each) return each.op_type end), " ")
    end
    assert.equal("Swish", ops_of(node("Mul", {"x", "s"}, "y")))
    assert.equal("Swish", ops_of(node("Mul", {"s", "x"}, "y")))
    assert.equal("Sigmoid Mul", ops_of(node("Mul", {"s", "z"}, "y")))
    assert.equal("Sigmoid Mul Add", ops_of(node("Mul", {"s", "x"}, "z"), node("Add", {"s", "z"}, "y")))
  end)

  it("records models whose scales depend on the inputs", function()
    for name, x in pairs {["mlp.dynamic"] = lm.randn(3, 6), ["cnn.QDQ.QUInt8"] = lm.randn(2, 3, 9, 8)} do
      local net = lm.onnx.load(write(name)):eval()
      local run, state = lm.prepare(net, x)
      local expected = lm.no_grad(function() return net(x * 2) end)
      assert.is_true(lm.allclose(expected, run(x * 2)))
      assert.is_nil(state.reason)
      assert.equal(1, state.recordings)
    end
  end)

  it("joins the ops between DequantizeLinear and QuantizeLinear", function()
    for _, kind in ipairs {"QUInt8", "QInt8"} do
      local counts = joined("cnn.QDQ." .. kind)
      assert.same({3, 1, 1}, {counts.QLinearConv, counts.QLinearAdd, counts.QGemm})
      assert.is_nil(counts.Conv or counts.Gemm)
    end
    assert.equal(2, joined("mlp.dynamic").MatMulIntegerToFloat)
  end)

  it("leaves nodes whose values between are used elsewhere", function()
    local counts = joined("block", {"e1", "weights"})
    assert.same({1, 1}, {counts.Erf, counts.Softmax})
    assert.is_nil(counts.Gelu or counts.JoinedAttention)
  end)

  it("packs a weight again after it changed", function()
    local net = lm.onnx.load(write "node.MatMulInteger")
    local x, zero = lm.ones(2, 3, 37):to "uint8", lm.full({}, 5, {dtype = "uint8"})
    assert.is_false(net(x, zero):eq(4 * 9 * 37):all():item())
    for _, value in pairs(net:state_dict()) do
      if value.ndim == 2 then value:zero_() end
    end
    assert.is_true(net(x, zero):eq(4 * 9 * 37):all():item())
  end)

  it("computes with the tensors that the network has, for all shapes and in plans", function()
    local function tensor(name, t)
      return {name = name, data_type = tensors.number_of[t.dtype], dims = {unpack(t.shape)}, raw_data = t}
    end
    local function number(name, dtype, v) return tensor(name, lm.full({}, v, {dtype = dtype})) end
    local path = folder .. "/conv.onnx"
    core.onnx_write(path, {
      ir_version = 8, opset_import = {{domain = "", version = 13}},
      graph = {
        name = "g", input = {{name = "x"}}, output = {{name = "y"}}, node = {{
          op_type = "QLinearConv", output = {"y"},
          input = {"x", "x.scale", "x.zero", "conv.weight", "w.scale", "w.zero", "y.scale", "y.zero"},
        }},
        initializer = {
          tensor("conv.weight", lm.randint(-90, 90, {4, 3, 3, 3}):to "int8"), number("w.zero", "int8", 0),
          number("x.scale", "float32", 0.02), number("x.zero", "uint8", 3), number("w.scale", "float32", 0.01),
          number("y.scale", "float32", 0.05), number("y.zero", "uint8", 100),
        },
      },
    })
    local net = lm.onnx.load(path)
    local images = {lm.randint(0, 255, {1, 3, 6, 6}):to "uint8", lm.randint(0, 255, {2, 3, 7, 6}):to "uint8"}
    local function run(of, x) return lm.no_grad(function() return of(x) end) end
    for _, change in ipairs {
      function() end, function() net.conv.weight:fill_(3) end, function() net.x.zero:fill_(120) end,
      function() net.w.zero:fill_(5) end, function() net.y.zero:fill_(9) end, function() net.x.scale:fill_(0.07) end,
      function() net.conv.weight.data = lm.randint(-90, 90, {4, 3, 3, 3}):to "int8" end,
    } do
      lm.no_grad(change)
      local fresh = lm.onnx.load(path)
      fresh:load_state_dict(net:state_dict())
      for _, x in ipairs(images) do
        local expected = fresh(x)
        for _ = 1, 2 do assert.is_true(lm.equal(expected, run(net, x))) end
        assert.is_true(lm.equal(expected, net(x)))
      end
    end
  end)

  it("takes any names of initializers and inputs", function()
    local named = {
      "inputs", "outputs", "source", "run_plan", "has_input", "training", "a.training", "a", "a.b", "forward", "..",
      "1", "nil", "a/b:0", "__index", "constants.1",
    }
    local inputs, initializers, path = {"shape"}, {}, folder .. "/names.onnx"
    for i, name in ipairs(named) do
      inputs[i + 1] = name
      initializers[i] = {name = name, data_type = 1, dims = {1}, raw_data = lm.full({1}, i)}
    end
    core.onnx_write(path, {
      ir_version = 8, opset_import = {{domain = "", version = 13}}, graph = {
        name = "g", input = {{name = "shape"}}, output = {{name = "y"}}, initializer = initializers,
        node = {{op_type = "Sum", input = inputs, output = {"y"}}},
      },
    })
    local net = lm.onnx.load(path, {trainable = true})
    net:load_state_dict(lm.onnx.load(path):state_dict())
    assert.equal(#named, #net:parameters())
    for _, each in ipairs {net, net:clone():train():eval()} do
      assert.equal(#named * (#named + 1) / 2 + 1, lm.no_grad(function() return each {shape = lm.ones(1)} end):item())
    end
    assert.equal("shape", net.inputs[1].name)
  end)

  it("lets go of its arguments when the call that records returns, as the C interface promises", function()
    local path = folder .. "/relu.onnx"
    core.onnx_write(path, {
      ir_version = 8, opset_import = {{domain = "", version = 13}}, graph = {
        name = "g", input = {{name = "x"}}, output = {{name = "y"}},
        node = {{op_type = "Relu", input = {"x"}, output = {"y"}}},
      },
    })
    local net, x = lm.onnx.load(path), lm.ones(3)
    collectgarbage()
    collectgarbage()
    collectgarbage "stop"
    local before = lm.live_tensors()
    lm.no_grad(function() return net(x) end):free()
    local after = lm.live_tensors()
    collectgarbage "restart"
    assert.equal(before, after)
  end)

  it("multiplies integers exactly, whatever their sizes", function()
    lm.manual_seed(2)
    for _, c in ipairs {
      {2, 3, 9, 8, 5, 3, 1, 1, "uint8", "int8"}, {1, 64, 6, 7, 70, 3, 2, 1, "int8", "int8"},
      {1, 19, 7, 7, 19, 3, 1, 19, "int8", "uint8"}, {3, 8, 5, 3, 12, 1, 1, 4, "uint8", "uint8"},
      {29, 67, 1, 1, 33, 1, 1, 1, "int8", "int8"}, {0, 3, 4, 4, 2, 3, 1, 1, "uint8", "int8"},
    } do
      local N, C, H, W, K, k, stride, groups, x_dtype, w_dtype = unpack(c)
      local function random(dtype, ...)
        local low = dtype == "int8" and -128 or 0
        return lm.randint(low, low + 256, {...}):to(dtype)
      end
      local x, w = random(x_dtype, N, C, H, W), random(w_dtype, K, C / groups, k, k)
      local w_zero = lm.randint(-9, 9, {K}):to "int32"
      local padding = k == 3 and 1 or 0
      local zero = lm.zeros({}, {dtype = "int32"})
      local y = core.ops.int8_conv(x, w, core.ops.int8_pack(w, groups), zero, nil, nil, w_zero,
        {x_zero = 7, stride = stride, padding = padding, groups = groups})
      x, w = x:to "int32" - 7, w:to "int32" - w_zero:reshape(-1, 1, 1, 1)
      local expected = core.ops.conv2d(x, w, nil, stride, padding, 1, groups)
      assert.same(expected.shape, y.shape)
      assert.is_true(y:eq(expected):all():item())
    end
  end)

  it("multiplies integers of no columns", function()
    local reads = {const = function() end, number = function() end}
    local y = require("luminary.onnx.ops.quantized").MatMulInteger[1](reads, lm.zeros(2, 3, 0):to "uint8",
      lm.zeros(0, 5):to "int8")
    assert.is_true(lm.equal(lm.zeros({2, 3, 5}, {dtype = "int32"}), y))
  end)

  it("refuses wrong arguments", function()
    local w, zero = lm.ones(4, 3, 1, 1):to "int8", lm.zeros({}, {dtype = "uint8"})
    local packed = core.ops.int8_pack(w)
    local x = lm.ones(1, 3, 2, 2)
    assert.error_matches(function() core.ops.int8_pack(w, 3) end, "must be divisible by groups")
    assert.error_matches(function() core.ops.int8_pack(x) end, "weight must be uint8 or int8, got float32")
    assert.error_matches(function() core.ops.int8_conv(x, w, packed, zero) end, "x must be uint8 or int8, got float32")
    assert.error_matches(function() core.ops.int8_conv(x:to "int8", w, packed, zero) end, "scale is missing")
    assert.error_matches(function() core.ops.int8_conv(x:to "int8", w, w:reshape(-1), zero) end, "packed")
  end)

  it("refuses inputs whose sizes of one name differ", function()
    local net = lm.onnx.load(write "block")
    assert.error_matches(function() net(lm.zeros(2, 5, 8), lm.zeros(2, 1, 1, 4)) end,
      "size 'T' must be equal in all inputs, got 5 in input 'x' and 4 in input 'mask'")
  end)
end)
