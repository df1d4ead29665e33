-- Results of a node that are one of its inputs, or one another: nobody else's tensor is freed with them.
local lm = require "luminary"
local files = require "spec.support.onnx_files"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)
local info = files.info

-- Loads a model of nodes with inputs and outputs by name, calls it three times with and without gradients, and checks
-- that each time the results are the same, that they live, and that the arguments do.
local function check(nodes, inputs, outputs, args, tensors)
  local path = files.write(folder, nodes, tensors, {version = 23, input = inputs, output = outputs})
  local before = {}
  for i, x in ipairs(args) do before[i] = x:clone() end
  local first
  for _, with_gradients in ipairs {true, false} do
    local net = lm.onnx.load(path)
    for _ = 1, 3 do
      local function call() return {net(unpack(args))} end
      local got = with_gradients and call() or lm.no_grad(call)
      first = first or got
      assert.equal(#outputs, #got)
      for i, y in ipairs(got) do
        assert.is_true(lm.allclose(y:double(), first[i]:double(), 1e-3, 1e-3))
        assert.is_true(y:isfinite():all():item())
        for k = 1, i - 1 do assert.is_false(rawequal(y, got[k])) end
      end
      for i, x in ipairs(args) do assert.is_true(lm.equal(x, before[i])) end
      collectgarbage()
    end
  end
  return first
end

describe("results that are inputs", function()
  if needs.lacks(it, pending, needs.onnx()) then return end
  before_each(function() lm.manual_seed(0) end)

  for _, dtype in ipairs {"float16", "bfloat16", "float32"} do
    local kind = files.numbers[dtype]
    local function inputs(names)
      local list = {}
      for name in names:gmatch "%S+" do list[#list + 1] = info(name, kind) end
      return list
    end
    local function heads() return lm.randn(1, 2, 3, 4):to(dtype) end

    it("do not free the caller's keys and values after Attention, in " .. dtype, function()
      local node = {"Attention", "q k v", "y pk pv", {is_causal = 1}}
      check({node}, inputs "q k v", {info "y"}, {heads(), heads(), heads()})
      local got = check({node}, inputs "q k v", {info "y", info "pk", info "pv"}, {heads(), heads(), heads()})
      assert.same({1, 2, 3, 4}, {unpack(got[3].shape)})
      local turned = {perm = {0, 2, 1, 3}}
      local k, v = lm.randn(1, 3, 2, 4):to(dtype), lm.randn(1, 3, 2, 4):to(dtype)
      local results = check({
        {"Transpose", "k", "a", turned}, {"Transpose", "v", "b", turned}, {"Attention", "q a b", "y pk pv"},
      }, inputs "q k v", {info "y", info "pk", info "pv"}, {heads(), k, v})
      assert.is_true(lm.equal(results[2], k:transpose(2, 3)) and lm.equal(results[3], v:transpose(2, 3)))
      local one = heads() -- keys that are values too
      check({{"Relu", "k", "a"}, {"Attention", "q a a", "y pk pv"}}, inputs "q k", {info "y", info "pk", info "pv"},
        {heads(), one})
    end)

    it("do not free them after onnxruntime's attention, in " .. dtype, function()
      check({{"com.microsoft.MultiHeadAttention", "q k v", "y pk pv", {num_heads = 2}}}, inputs "q k v", {info "y"},
        {lm.randn(1, 3, 8):to(dtype), heads(), heads()})
      local node = {"com.microsoft.MultiHeadAttention", "q a a", "y pk pv", {num_heads = 2}}
      check({{"Relu", "k", "a"}, node}, inputs "q k", {info "pv", info "y", info "pk"},
        {lm.randn(1, 3, 8):to(dtype), heads()})
      local count = {last = lm.tensor({2}, {dtype = "int32"}), total = lm.tensor(3, {dtype = "int32"})}
      node = {"com.microsoft.GroupQueryAttention", "q k v - - last total", "y pk pv", {num_heads = 2, kv_num_heads = 2}}
      check({node}, inputs "q k v", {info "y", info "pk"}, {lm.randn(1, 3, 8):to(dtype), heads(), heads()}, count)
    end)

    it("do not free what Dropout, Identity, Split and branches pass on, in " .. dtype, function()
      local x = lm.randn(2, 4):to(dtype)
      check({{"Dropout", "x", "a m"}, {"Identity", "a", "b"}, {"Dropout", "b", "y"}}, inputs "x", {info "y"}, {x})
      check({{"Relu", "x", "r"}, {"Identity", "r", "a"}, {"Identity", "r", "b"}, {"Add", "a b", "y"}}, inputs "x",
        {info "y", info "a"}, {x})
      check({{"Split", "x", "a b", {axis = 1, num_outputs = 2}}, {"Sum", "a", "y"}}, inputs "x", {info "y", info "b"},
        {x})
      check({{"Max", "x", "a"}, {"Concat", "a", "b", {axis = 0}}, {"Expand", "b s", "y"}}, inputs "x", {info "y"}, {x},
        {s = lm.tensor({2, 4}, {dtype = "int64"})})
      local branch = {name = "b", node = files.nodes {{"Identity", "r", "z"}, {"Identity", "x", "w"}},
        output = {info "z", info "w", info "r", info "z", info "x"}}
      check({
        {"Relu", "x", "r"}, {"If", "c", "p q s t u", {then_branch = branch, else_branch = branch}}, {"Neg", "q", "y"},
      }, inputs "x", {info "y", info "p", info "t"}, {x}, {c = lm.tensor(true)})
    end)
  end
end)
