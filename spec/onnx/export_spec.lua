-- lm.onnx.export: what it writes is read back by lm.onnx.load with the same results; what it refuses. onnx.checker and
-- onnxruntime judge the same files in scripts/dev/onnx_export.
local lm = require "luminary"
local class = require "luminary.base.class"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"
local nn, export = lm.nn, lm.onnx.export

local folder = temp.during(setup, teardown)
local path = folder .. "/net.onnx"

-- Returns a module with this forward; init(self) adds its parameters.
local function module(forward, init)
  local Module = class.define("Module", nn.Module)
  Module.forward, Module.init = forward, init or function() end
  return Module()
end

-- Exports a module and returns what lm.onnx.load makes of it.
local function again(net, inputs, options)
  export(net, inputs, path, options)
  return lm.onnx.load(path)
end

local function near(a, b)
  assert.same(a.shape, b.shape)
  assert.equal(a.dtype, b.dtype)
  assert.is_true((a:double() - b:double()):abs():max():item() <= 1e-5 * math.max(1, a:double():abs():max():item()))
end

local function says(words, ...)
  local args = {n = select("#", ...), ...}
  assert.error_matches(function() export(unpack(args, 1, args.n)) end, words)
end

describe("lm.onnx.export", function()
  if needs.lacks(it, pending, needs.onnx()) then return end
  before_each(function() lm.manual_seed(0) end)

  it("writes a network for images with any size of the batch, at opsets 13 to the newest", function()
    local net = nn.Sequential(
      nn.Conv2d(2, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(4, 4, 3, {groups = 2}), nn.GELU(), nn.AdaptiveAvgPool2d {2, 3},
      nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 3), nn.Softmax(2)):eval()
    net[2].running_mean:normal_()
    for _, opset in ipairs {13, 18, 21, 28} do
      local back = again(net, lm.randn(2, 2, 12, 10), {opset = opset, input_names = {"image"},
        output_names = {"scores"}, dynamic_axes = {image = {[1] = "N"}}})
      assert.same({"image"}, back:names "inputs")
      assert.same({"scores"}, back:names "outputs")
      assert.same({{"N", 2, 12, 10}, {"N", 3}}, {back.inputs[1].dims, back.outputs[1].dims})
      for _, n in ipairs {1, 2, 5} do
        local x = lm.randn(n, 2, 12, 10)
        near(net(x), (back(x)))
      end
    end
    assert.same(net[1].weight:totable(), lm.onnx.load(path):get_parameter("0.weight"):totable())
  end)

  it("keeps the dynamic axes of a language model, whose ids count from 0 in the file", function()
    for name, options in pairs {
      gpt2 = {vocab_size = 20, n_positions = 32, n_embd = 8, n_layer = 1, n_head = 2},
      qwen3 = {vocab_size = 20, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2, head_dim = 4,
        num_key_value_heads = 1, intermediate_size = 8, max_position_embeddings = 32},
    } do
      local net = lm.models[name](options):eval()
      local back = again(net, lm.randint(1, 21, {2, 5}), {dynamic_axes = {input = {"N", "L"}}})
      for _, size in ipairs {{1, 1}, {2, 5}, {3, 9}} do
        local ids = lm.randint(1, 21, size)
        near(net(ids), (back(ids - 1)))
      end
    end
  end)

  it("derives sizes from dynamic axes, or names the step that it cannot express", function()
    local axes = {dynamic_axes = {input = {"N", "L"}}}
    local net = module(function(_, x)
      local n, l = unpack(x.shape)
      local zeros, numbers = lm.zeros(l + 1, n), lm.full({n, l}, n)
      return x:reshape(n * l, -1), x:view(n, l / 2, 2), x * n, lm.arange(l) + 1, zeros, numbers + x
    end)
    local back, x = again(net, lm.randn(2, 4), axes), lm.randn(3, 10)
    local wanted, got = {net(x)}, {back(x)}
    for i = 1, 6 do near(wanted[i], got[i]) end
    assert.same({"N", "L"}, back.outputs[3].dims)
    assert.same({"L+1", "N"}, back.outputs[5].dims)
    for batch = 0, 2 do -- also an empty example
      local scale = module(function(_, y) return y.shape[1] * y, y.shape[1] - y, y.shape[1] / y:exp() end)
      local other, y = again(scale, lm.randn(batch, 4), {dynamic_axes = {input = {"N"}}}), lm.randn(7, 4)
      wanted, got = {scale(y)}, {other(y)}
      for i = 1, 3 do near(wanted[i], got[i]) end
    end
    says("expand %(a size that is 4, 16, 36, 25, 9, 1, 169 there does not follow from the dynamic axes",
      module(function(_, y) return y:narrow(1, 1, 1):expand(y.shape[1] ^ 2, 4) end), lm.randn(2, 4), path,
      {dynamic_axes = {input = {"N"}}})
    for _, forward in ipairs { -- right for even sizes alone, or for none other than the example's
      function(_, y) return nn.functional.pad(y, {0, 0, 0, y.shape[1] % 2}) end,
      function(_, y) return y:narrow(1, math.floor(y.shape[1] / 4) + 1, math.floor(y.shape[1] / 2)) end,
      function(_, y) return y * (y.shape[1] / 10) end,
    } do
      says("does not follow from the dynamic axes", module(forward), lm.randn(4, 4), path,
        {dynamic_axes = {input = {"N"}}})
    end
    local half = module(function(_, y)
      local size = math.floor(y.shape[1] / 2)
      return y:roll(size, 1):narrow(1, 1, size)
    end)
    back, x = again(half, lm.randn(4, 4), {dynamic_axes = {input = {"N"}}}), lm.randn(7, 4)
    near(half(x), (back(x)))
    local parts = {
      function(n) return math.floor(n / 2) end, function(n) return math.ceil(n / 2) end,
      function(n) return math.floor((n - 1) / 3) + 2 end, function(n) return math.ceil(n / 4) end,
    }
    for size = 4, 9 do
      for _, part in ipairs(parts) do
        local cut = module(function(_, y) return y:narrow(1, 1, part(y.shape[1])) end)
        back = again(cut, lm.randn(size, 2), {dynamic_axes = {input = {"N"}}})
        for n = 5, 14 do assert.equal(part(n), back(lm.randn(n, 2)).shape[1]) end
      end
    end
    local chunk = module(function(_, y) return y:chunk(2, 1)[1] * 2 end)
    back = again(chunk, lm.randn(4, 4), {dynamic_axes = {input = {"N"}}})
    assert.equal(4, back(x).shape[1])
    says("leaky_relu %(alpha depends on a dynamic axis%)", module(function(_, y)
      return nn.functional.leaky_relu(y, y.shape[1] / 10)
    end), lm.randn(2, 4), path, {dynamic_axes = {input = {"N"}}})
    says("add is called for some sizes of the dynamic axes only", module(function(_, y)
      return y.shape[1] > 3 and y * 2 or y + 1
    end), lm.randn(2, 4), path, {dynamic_axes = {input = {"N"}}})
    says("does not run with other sizes of its dynamic axes: linear: expected x", nn.Linear(4, 2), lm.randn(2, 4), path,
      {dynamic_axes = {input = {[2] = "L"}}})
  end)

  it("warns if other sizes have other steps, and keeps those of the example and its multiples", function()
    local net = module(function(_, y) return y.shape[1] % 2 == 1 and lm.cat({y, y}, 1) or y * 2 end)
    local warn, text = lm.core.warn, nil
    lm.core.warn = function(line) text = line end
    local ok, back = pcall(again, net, lm.randn(4, 4), {dynamic_axes = {input = {"N"}}})
    lm.core.warn = warn
    assert(ok, back)
    assert.matches("export: with N = 11 the module has other steps than with the example's sizes", text)
    local x = lm.randn(6, 4)
    near(net(x), (back(x)))
  end)

  it("has indices from 0 where they leave, and their values where the module computes with them", function()
    local net = module(function(_, x)
      local i = x:argmax(2, {keepdim = true})
      return i, x:gather(2, i), i + 1, i:eq(2), (select(2, x:topk(2)))
    end)
    local x = lm.tensor {{1, 3, 2}, {5, 1, 4}}
    local i, v, more, is_2, top = again(net, x)(x)
    assert.same({{1}, {0}}, i:totable())
    assert.same({{3}, {5}}, v:totable())
    assert.same({{3}, {2}}, more:totable())
    assert.same({{true}, {false}}, is_2:totable())
    assert.same({{1, 2}, {0, 2}}, top:totable())
  end)

  it("takes each input for itself, though the example has one twice or a tensor of the module", function()
    local x, y = lm.ones(2), lm.tensor {3, 5}
    local differ = again(module(function(_, a, b) return a - b end), {x, x})
    assert.same({"input", "input_2"}, differ:names "inputs")
    assert.same({-2, -4}, differ(x, y):totable())
    assert.same({2, 4}, again(module(function(_, a) return a - x end), x)(y):totable())
    says("tensor reads values", module(function(_, a) return lm.tensor(a) + 1 end), x, path)
  end)

  it("writes returned inputs and parameters, tensors twice, tables, and shared parameters once", function()
    local net = module(function(self, x, more)
      local y = x * self.w + self.v + more.scale
      return x, y, {states = {y, self.w}, last = y}
    end, function(self)
      self.w = nn.Parameter(lm.ones(3))
      self.v = self.w
    end)
    local x = lm.randn(2, 3)
    local back = again(net, {x, {scale = lm.ones(1)}})
    assert.same({"input", "scale"}, back:names "inputs")
    assert.same({"output", "output_2", "last", "states.1", "states.2"}, back:names "outputs")
    local x1, y1, last, first, w = back(x, lm.ones(1))
    near(x, x1)
    near(x + 2, y1:detach())
    near(last, y1)
    near(first, y1)
    near(w, lm.ones(3))
    assert.equal(1, #back:parameters())
    assert.equal(2, #again(nn.Linear(3, 2), x):parameters())
  end)

  it("writes in place only where no other tensor sees it", function()
    local net = module(function(_, x)
      local y = x * 2
      y:add_(1):relu_()
      return y
    end)
    near(net(lm.ones(2, 3)), (again(net, lm.ones(2, 3))(lm.ones(2, 3))))
    local shared = module(function(_, x)
      local y = x * 2
      y[1] = x[2]
      return y
    end)
    says("copy_ %(it writes to memory that another tensor shares%) at .*export_spec.lua:%d+", shared, lm.ones(2, 3),
      path)
    local built = module(function(_, x)
      local y = lm.zeros(3)
      y:add_(1)
      return x + y
    end)
    near(lm.ones(2, 3) * 2, (again(built, lm.ones(2, 3))(lm.ones(2, 3))))
    says("writes to an input, a parameter", module(function(_, x) return x:add_(1) end), lm.ones(2, 3), path)
  end)

  it("keeps dtypes, weights beside the file, and the mode of the module", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float64"} do
      local net, x = nn.Linear(4, 3):to(dtype), lm.randn(2, 4):to(dtype)
      near(net(x), (again(net, x)(x)))
    end
    local net, x = nn.Sequential(nn.Linear(40, 30), nn.Dropout(0.9)):train(), lm.randn(2, 40)
    local back = again(net, x, {external_data = true})
    assert.is_true(net.training and net[2].training)
    near(net:eval()(x), (back(x)))
    assert.equal(40 * 30 * 4, #temp.read(path .. ".data"))
    local ints = module(function(_, i) return i * 2 + 1, i:floor_divide(2), i:remainder(3), i / 2, i:gt(1.5) end)
    local empty = module(function(_, e) return e:reshape(3, 0) end)
    assert.same({3, 0}, (again(empty, lm.zeros(0, 3))(lm.zeros(0, 3))).shape)
    local i = lm.tensor({-3, 2, 5}, {dtype = "int64"})
    local wanted, got = {ints(i)}, {again(ints, i)(i)}
    for k = 1, 5 do assert.same(wanted[k]:totable(), got[k]:totable()) end
  end)

  it("lists every step that it cannot write, with line and count, and refuses values that Lua reads", function()
    local net = module(function(_, x)
      for _ = 1, 2 do x = lm.linalg.inv(x) end
      return x + lm.randn(2, 2)
    end)
    says("cannot write 2 kinds of steps: 2 × inverse at .*export_spec.lua:%d+, 1 × randn at .*export_spec.lua:%d+", net,
      lm.eye(2), path)
    says("export_spec.lua:%d+: item reads values", module(function(_, x) return x * x:sum():item() end), lm.ones(2),
      path)
  end)

  it("writes and prepares attention with a mask of padding, whose values nothing reads", function()
    local attention = nn.MultiheadAttention(8, 2, {batch_first = true})
    local of_layer = nn.TransformerEncoderLayer(8, 2, {dim_feedforward = 16, batch_first = true})
    local encoder = nn.TransformerEncoder(of_layer, 2)
    local function mask_of(n, first)
      local mask = lm.zeros(n, 5, {dtype = "bool"})
      mask[{{}, {first, 5}}] = true
      return mask
    end
    for _, net in ipairs {
      module(function(_, x, m) return (attention(x, x, x, {key_padding_mask = m})) end),
      module(function(_, x, m)
        return (attention(x, x, x, {key_padding_mask = m, attn_mask = lm.ones(5, 5, {dtype = "bool"}):triu(1)}))
      end),
      module(function(_, x, m) return encoder(x, {src_key_padding_mask = m}) end),
      module(function(_, x, m) return encoder(x, {src_key_padding_mask = m:float() * -1e4}) end),
    } do
      encoder:eval()
      local inputs = {lm.randn(2, 5, 8), mask_of(2, 4)}
      local back = again(net, inputs, {input_names = {"x", "m"}, dynamic_axes = {x = {"N"}, m = {"N"}}})
      local run, state = lm.prepare(net:eval(), unpack(inputs))
      for _, n in ipairs {2, 3} do
        for first = 3, 6 do
          local x, m = lm.randn(n, 5, 8), first < 6 and mask_of(n, first) or lm.zeros(n, 5, {dtype = "bool"})
          local expected = lm.no_grad(function() return net(x, m) end)
          near(expected, (back(x, m)))
          near(expected, (run(x, m)))
        end
      end
      assert.is_nil(state.reason)
      assert.equal(2, state.recordings)
    end
  end)

  it("writes recurrent layers over packed sequences whose lengths are an input", function()
    local rnn = nn.utils.rnn
    for _, case in ipairs {
      {"LSTM", {num_layers = 2, bidirectional = true, batch_first = true}}, {"GRU", {bidirectional = true}},
      {"GRU", {bias = false}}, {"RNN", {nonlinearity = "relu", batch_first = true}}, {"LSTM", {}},
    } do
      local how = {batch_first = case[2].batch_first, enforce_sorted = false}
      local net = module(function(self, x, lengths, h, c)
        local packed = rnn.pack_padded_sequence(x, lengths, how)
        local y, state = self.layer(packed, h and c and {h, c} or h)
        y.data = y.data * 2 + 1
        local steps = x.shape[how.batch_first and 2 or 1]
        local all, n = rnn.pad_packed_sequence(y,
          {batch_first = how.batch_first, padding_value = -1, total_length = steps})
        return all, n, unpack(case[1] == "LSTM" and state or {state})
      end, function(self) self.layer = nn[case[1]](4, 5, case[2]) end)
      local function inputs(n, steps, ...)
        local list = {how.batch_first and lm.randn(n, steps, 4) or lm.randn(steps, n, 4)}
        list[2] = lm.tensor({...}, {dtype = "int64"})
        local states = (case[2].num_layers or 1) * (case[2].bidirectional and 2 or 1)
        for k = 1, case[1] == "LSTM" and 2 or 1 do list[2 + k] = lm.randn(states, n, 5) end
        return list
      end
      local time = how.batch_first and 2 or 1
      local c = case[1] == "LSTM" and "c" or nil
      local axes = {x = {[time] = "T", [3 - time] = "N"}, lengths = {[1] = "N"}, h = {[2] = "N"}, c = c and {[2] = "N"}}
      local back = again(net, inputs(3, 6, 4, 6, 2),
        {input_names = {"x", "lengths", "h", c}, dynamic_axes = axes})
      for _, given in ipairs {inputs(3, 6, 4, 6, 2), inputs(2, 9, 9, 1), inputs(4, 3, 1, 2, 2, 3), inputs(1, 5, 5)} do
        local want, got = {net(unpack(given))}, {back(unpack(given))}
        assert.equal(#want, #got)
        for i, t in ipairs(want) do near(t, got[i]) end
      end
    end
    local net = module(function(self, x, lengths) return self.layer(rnn.pack_padded_sequence(x, lengths)).data end,
      function(self)
        self.layer = nn.LSTM(4, 5)
        self.layer.by_steps = true
      end)
    says("LSTM: lengths that are an input can be exported on the CPU alone", net,
      {lm.randn(3, 2, 4), lm.tensor({3, 1}, {dtype = "int64"})}, path)
    assert.equal(4, net(lm.randn(3, 2, 4), lm.tensor({3, 1}, {dtype = "int64"})).shape[1]) -- packed again
  end)

  it("writes order statistics, transforms, distances and pooled indices with any size of the batch", function()
    local F = nn.functional
    local unpooled = function(x, ...)
      local y, i = F.max_pool2d(x, 2, {return_indices = true, ...})
      return y, F.max_unpool2d(y * 2, i, 2), i
    end
    local bags = lm.randn(9, 3)
    local cases = {
      {function(x) return (x:abs() - 1):sqrt():nan_to_num(2), (x / 0):nan_to_num(0, 5), (x / 0):nan_to_num() end, 6},
      {function(x) return x:argmax(2):nan_to_num(), x:double():nan_to_num(), (x:half() / 0):nan_to_num() end, 6},
      {function(x) return x:atan2(x:flip {2}), (x - x):atan2(x), x:atan2(0), lm.atan2(x:round(), 0.5) end, 6},
      {function(x) return lm.outer(x[1], x:select(2, 1)) end, 6},
      {function(x) return lm.cdist(x, x + 1), lm.cdist(x, x + 1, 1), lm.cdist(x, x * 2, 3) end, 4, 6},
      {function(x) return lm.cdist(x, x:flip {1}, math.huge) end, 4, 6},
      {function(x) return (x:median(2)), (x:median(3, {keepdim = true})), x:median(), (x:median(-1)) end, 4, 7},
      {function(x) return (x:median(2)) end, 6}, {function(x) return (x:median(1)) end, 6},
      {function(x) return x:kthvalue(3, 2) end, 7}, {function(x) return (x:kthvalue(2, 3, {keepdim = true})) end, 4, 7},
      {unpooled, 3, 6, 8}, {function(x) return unpooled(x[1]) end, 3, 6, 8},
      {function(x) return lm.linalg.det(x) end, 4, 4},
      {function(x) return lm.fft.rfft(x), lm.fft.rfft(x, {norm = "ortho"}), lm.fft.rfft(x, {dim = 2}) end, 3, 15},
      {function(x) return lm.fft.rfft(x[1]), lm.fft.rfft(x[1], {n = 8}) end, 10},
      {function(x) return lm.stft(x, 16, {hop_length = 4, window = lm.hann_window(16), center = false}) end, 64},
      {function(x)
        local at = x:abs():mul(9):remainder(9):long() + 1
        return F.embedding_bag(at, bags, {mode = "sum", per_sample_weights = x}), F.embedding_bag(at, bags),
          F.embedding_bag(at, bags, {padding_idx = 2}),
          F.embedding_bag(at:view(-1), bags, {offsets = lm.tensor({1, 3, 3}, {dtype = "int64"}), mode = "sum"})
      end, 4},
    }
    for k, case in ipairs(cases) do
      local net = module(function(_, x) return case[1](x) end)
      for _, opset in ipairs {18, 20} do
        local back = again(net, lm.randn(2, unpack(case, 2)), {opset = opset, dynamic_axes = {input = {"N"}}})
        for _, n in ipairs {1, 3} do
          local x = lm.randn(n, unpack(case, 2))
          local wanted, got = {net(x)}, {back(x)}
          assert.equal(#wanted, #got)
          for i, each in ipairs(wanted) do
            assert.same(each.shape, got[i].shape, k)
            if each.dtype == "int64" and (k == 10 or k == 12 or k == 13) then got[i] = got[i] + 1 end
            near(each, got[i])
          end
        end
      end
    end
  end)

  it("writes loaded graphs with a dynamic batch, also those that were not called", function()
    local function info(name, dtype, ...)
      local dims = {}
      for i, v in ipairs {...} do dims[i] = type(v) == "string" and {dim_param = v} or {dim_value = v} end
      return {name = name, type = {tensor_type = {elem_type = dtype, shape = {dim = dims}}}}
    end
    local function numbers(name, list)
      return {name = name, data_type = 7, dims = {#list}, raw_data = lm.tensor(list, {dtype = "int64"})}
    end
    local function weight(name, ...) return {name = name, data_type = 1, dims = {...}, raw_data = lm.randn(...)} end
    local at = {name = "at", data_type = 7, dims = {}, raw_data = lm.zeros({}, {dtype = "int64"})}
    lm.core.onnx_write(path, {ir_version = 8, opset_import = {{version = 17}}, graph = {
      name = "g", input = {info("x", 1, "T", "N", 3), info("lengths", 6, "N")}, output = {info("y", 1), info("c", 1)},
      initializer = {
        weight("w", 2, 16, 3), weight("r", 2, 16, 4), weight("b", 2, 32), numbers("one", {1}), numbers("zero", {0}),
        numbers("last", {-1}), numbers("two", {2}), numbers("four", {4}), at,
      },
      node = {
        {op_type = "Shape", input = {"x"}, output = {"shape"}},
        {op_type = "Gather", input = {"shape", "one"}, output = {"n"}},
        {op_type = "Concat", input = {"two", "n", "four"}, output = {"sizes"}, attribute = {
          {name = "axis", type = 2, i = 0}}},
        {op_type = "ConstantOfShape", input = {"sizes"}, output = {"h"}},
        {op_type = "LSTM", input = {"x", "w", "r", "b", "lengths", "h", "h"}, output = {"all", "", "c"}, attribute = {
          {name = "hidden_size", type = 2, i = 4}, {name = "direction", type = 3, s = "bidirectional"}}},
        {op_type = "Transpose", input = {"all"}, output = {"turned"}, attribute = {
          {name = "perm", type = 7, ints = {0, 2, 1, 3}}}},
        {op_type = "Gather", input = {"shape", "at"}, output = {"t"}},
        {op_type = "Unsqueeze", input = {"t", "zero"}, output = {"t1"}},
        {op_type = "Concat", input = {"t1", "n", "last"}, output = {"flat"}, attribute = {
          {name = "axis", type = 2, i = 0}}},
        {op_type = "Reshape", input = {"turned", "flat"}, output = {"y"}},
      },
    }})
    local net = lm.onnx.load(path)
    local function inputs(t, ...) return lm.randn(t, select("#", ...), 3), lm.tensor({...}, {dtype = "int32"}) end
    local back = again(net, {inputs(5, 5, 2)}, {
      input_names = {"x", "lengths"}, dynamic_axes = {x = {"T", "N"}, lengths = {"N"}},
    })
    for _, each in ipairs {{5, 5, 2}, {4, 1, 4, 3}, {7, 7}} do
      local x, lengths = inputs(unpack(each))
      local wanted, got = {net(x, lengths)}, {back(x, lengths)}
      for i = 1, 2 do near(wanted[i], got[i]) end
    end
  end)

  it("names the line of the library that reads values, and reads none for a quantile", function()
    says("reads values", module(function(_, x) return x * x:sum():item() end), lm.ones(2), path)
    says("totable %(called by luminary/nn/utils/rnn.lua:%d+%) reads values", module(function(_, x, n)
      return nn.utils.rnn.unpad_sequence(x, n)[1]
    end), {lm.randn(4, 2, 3), lm.tensor {2, 4}}, path)
    local net = module(function(_, x) return x:quantile(0.3, 2), x:quantile(0.5, 1, {interpolation = "nearest"}) end)
    local back, x = again(net, lm.randn(2, 9), {dynamic_axes = {input = {"N"}}}), lm.randn(5, 9)
    for i = 1, 2 do near((select(i, net(x))), (select(i, back(x)))) end
  end)

  it("refuses bad arguments", function()
    local net, x = nn.Linear(4, 2), lm.randn(2, 4)
    says("module must be an nn.Module, got a function", print, x, path)
    says("example_inputs must be a tensor or a list", net, 3, path)
    says("arguments with at least one tensor", net, {3}, path)
    says("the module returns no tensor", module(function() return 3 end), x, path)
    says("opset must be from 13 to %d+, got 12", net, x, path, {opset = 12})
    says("did you mean 'opset'", net, x, path, {opsett = 17})
    says("input_names has 2 names, the module has 1 input", net, x, path, {input_names = {"a", "b"}})
    says("input_names: 'weight' is the name of another tensor", net, x, path, {input_names = {"weight"}})
    says("output_names: 'a' is the name of another", net, x, path, {input_names = {"a"}, output_names = {"a"}})
    says("input_names must be a list of names in UTF%-8", net, x, path, {input_names = {"a\255"}})
    says("contains a NUL byte", net, x, path, {input_names = {"a\0b"}})
    says("dynamic_axes.input must be axes from 1 to 2", net, x, path, {dynamic_axes = {input = {[3] = "N"}}})
    says("dynamic_axes.input must be a table", net, x, path, {dynamic_axes = {input = "N"}})
    says("names 'other', which is no input", net, x, path, {dynamic_axes = {other = {"N"}}})
    says("the axes named 'N' have the sizes 2 and 4", net, x, path, {dynamic_axes = {input = {"N", "N"}}})
    says("cannot write '/nonexistent/net.onnx'", net, x, "/nonexistent/net.onnx")
    says("expected x to have shape", net, lm.randn(2, 5), path)
  end)
end)
