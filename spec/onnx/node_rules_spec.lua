-- Nodes with another number of inputs or outputs than their operator has, or with attributes of others.
local lm = require "luminary"
local files = require "spec.support.onnx_files"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)
local function load(...) return lm.onnx.load(files.write(folder, {{...}}, {})) end

describe("a node of an ONNX file", function()
  if needs.lacks(it, pending, needs.onnx()) then return end

  it("has no more outputs than its operator", function()
    for op, most in pairs {
      Neg = 1, Relu = 1, Softmax = 1, Identity = 1, Transpose = 1, Cast = 1, Sqrt = 1, Dropout = 2, MaxPool = 2,
      Unique = 4, DynamicQuantizeLinear = 3, Shape = 1, Flatten = 1, Gelu = 1, ReduceSum = 1,
    } do
      local outputs = {"y"}
      for i = 1, most do outputs[i + 1] = "o" .. i end
      assert.error_matches(function() load(op, "x", table.concat(outputs, " "), op == "Cast" and {to = 1} or {}) end,
        ("made.onnx': node '' %%(%s%%): it has %d outputs, at most %d "):format(op, most + 1, most))
    end
    for op, case in pairs {Add = {2, 1}, LayerNormalization = {2, 3}, LSTM = {3, 3}, TopK = {2, 2}, Conv = {2, 1}} do
      local outputs = {"y"}
      for i = 1, case[2] + 3 do outputs[i + 1] = "o" .. i end
      assert.error_matches(function()
        load(op, ("x "):rep(case[1]), table.concat(outputs, " "), op == "LSTM" and {hidden_size = 1} or {})
      end, ("node '' %%(%s%%): it has %d outputs, at most %d "):format(op, case[2] + 4, case[2]))
    end
    local parts = load("Split", "x", "y b c d e f", {axis = 0})
    assert.same({1}, (parts(lm.tensor {1, 2, 3, 4, 5, 6})):totable())
  end)

  it("has no more inputs than its operator", function()
    for op, most in pairs {Neg = 1, Softmax = 1, Add = 2, MatMul = 2, Clip = 3, Conv = 3, Where = 3, Pad = 4} do
      assert.error_matches(function() load(op, ("x "):rep(most + 1), "y") end,
        ("made.onnx': node '' %%(%s%%): it has %d inputs, at most %d "):format(op, most + 1, most))
    end
    assert.is_true(pcall(load, "Sum", ("x "):rep(50), "y"))
    assert.is_true(pcall(load, "Clip", "x - -", "y"))
  end)

  it("has no attribute that its operator lacks", function()
    for op, name in pairs {Relu = "axis", Softmax = "kernel_shape", Neg = "foo", Conv = "hidden_size", MatMul = "alpha",
      Gather = "keepdims"} do
      local inputs = ({Conv = "x x", MatMul = "x x", Gather = "x x"})[op] or "x"
      assert.error_matches(function() load(op, inputs, "y", {[name] = 1}) end,
        ("made.onnx': node '' %%(%s%%): it has no attribute '%s'"):format(op, name))
    end
    assert.is_true(pcall(load, "Relu", "x", "y", {consumed_inputs = {0}}))
    assert.is_true(pcall(load, "com.microsoft.QuickGelu", "x", "y", {other = 1}))
  end)

  it("of onnxruntime's operators makes the results that it declares, or none is taken for another", function()
    local path = files.write(folder, {{"com.microsoft.QuickGelu", "x", "y a b c d"}}, {})
    assert.error_matches(function() lm.onnx.load(path)(lm.ones(5, 2)) end,
      "onnx: node '' %(QuickGelu%): it makes one result, 5 are declared")
    path = files.write(folder, {{"com.microsoft.QuickGelu", "x", "z y"}}, {})
    assert.error_matches(function() lm.onnx.load(path)(lm.ones(5, 2)) end, "onnx: no node computed the output 'y'")
  end)
end)
