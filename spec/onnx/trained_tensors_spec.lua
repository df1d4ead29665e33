-- The tensors of an ONNX file that train: the rule, weights in constant nodes, the option trainable, and inspect.
local lm = require "luminary"
local class = require "luminary.base.class"
local files = require "spec.support.onnx_files"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"
local info, tensor, nodes_of = files.info, files.tensor, files.nodes

local folder = temp.during(setup, teardown)
local function write(...) return files.write(folder, ...) end

local function names_of(net)
  local names = {}
  for name in net:named_parameters() do names[#names + 1] = name end
  table.sort(names)
  return table.concat(names, " ")
end

local function trained(...) return names_of(lm.onnx.load(write(...))) end

describe("which tensors of an ONNX file train", function()
  if needs.lacks(it, pending, needs.onnx()) then return end
  before_each(function() lm.manual_seed(0) end)

  it("leaves an exponent, an epsilon, a scale and a mask as they are, and training finite", function()
    for _, dtype in ipairs {"float32", "float64", "float16", "bfloat16"} do
      local path = write({
        {"MatMul", "x w", "a"}, {"Add", "a b", "h"}, {"Pow", "h two", "p"}, {"Add", "p eps", "q"}, {"Log", "q", "l"},
        {"Mul", "l scale", "m"}, {"Add", "m mask", "n"}, {"Softmax", "n", "y"},
      }, {
        w = lm.randn(3, 4):to(dtype), b = lm.randn(4):to(dtype), two = lm.full({}, 2):to(dtype),
        eps = lm.full({1}, 1e-3):to(dtype), scale = lm.full({}, 0.5):to(dtype),
        mask = lm.full({2, 4}, -math.huge):tril(-1):triu(-1):nan_to_num(0, 0, -math.huge):to(dtype),
      }, {input = {info("x", files.numbers[dtype])}})
      local net = lm.onnx.load(path)
      assert.equal("b w", names_of(net))
      local x, opt, losses = lm.randn(2, 3):to(dtype), lm.optim.SGD(net:parameters(), {lr = 0.05}), {}
      for step = 1, 3 do
        local loss = net(x):float():square():sum()
        losses[step] = loss:item()
        opt:zero_grad()
        loss:backward()
        opt:step()
        for _, p in ipairs(net:parameters()) do assert.is_true(p:isfinite():all():item()) end
      end
      assert.is_true(losses[3] <= losses[1])
      local state, count = net:state_dict(), 0
      for _ in pairs(state) do count = count + 1 end
      assert.equal(6, count) -- under the file's names, trained or not
      assert.is_true(state.two ~= nil and state.mask ~= nil)
    end
  end)

  it("trains the weights and biases of layers, of one element too", function()
    for _, case in ipairs {
      {"b w", {{"Conv", "x w b", "y"}}, {w = {1, 1, 1, 1}, b = {1}}},
      {"b w", {{"ConvTranspose", "x w b", "y"}}, {w = {1, 2, 3, 3}, b = {2}}},
      {"b w", {{"Gemm", "x w b", "y"}}, {w = {4, 1}, b = {1}}},
      {"b w", {{"MatMul", "x w", "a"}, {"Add", "b a", "y"}}, {w = {4, 1}, b = {1}}},
      {"w", {{"MatMul", "x w", "a"}, {"Add", "a eps", "y"}}, {w = {4, 2}, eps = {1}}},
      {"b s w", {{"Conv", "x w", "a"}, {"Mul", "a s", "c"}, {"Add", "c b", "y"}},
        {w = {3, 1, 1, 1}, b = {1, 3, 1, 1}, s = {1, 3, 1, 1}}},
      {"b s", {{"BatchNormalization", "x s b m v", "y"}}, {s = {2}, b = {2}, m = {2}, v = {2}}},
      {"b s", {{"InstanceNormalization", "x s b", "y"}}, {s = {1}, b = {1}}},
      {"b s", {{"LayerNormalization", "x s b", "y"}}, {s = {2}, b = {2}}},
      {"slope", {{"PRelu", "x slope", "y"}}, {slope = {1}}},
      {"b r w", {{"LSTM", "x w r b - h c", "y", {hidden_size = 2}}},
        {w = {1, 8, 3}, r = {1, 8, 2}, b = {1, 16}, h = {1, 1, 2}, c = {1, 1, 2}}},
      {"b r w", {{"GRU", "x w r b - h", "y", {hidden_size = 2}}},
        {w = {1, 6, 3}, r = {1, 6, 2}, b = {1, 12}, h = {1, 1, 2}}},
      {"w", {{"Einsum", "x w", "y", {equation = "ij,jk->ik"}}}, {w = {2, 3}}},
      {"", {{"Einsum", "x w", "y", {equation = "ij,j->ij"}}}, {w = {3}}},
      {"b s", {{"com.microsoft.SkipLayerNormalization", "x x s b", "y"}}, {s = {2}, b = {2}}},
      {"b w", {{"com.microsoft.Attention", "x w b", "y", {num_heads = 1}}}, {w = {2, 6}, b = {6}}},
    } do
      assert.equal(case[1], trained(case[2], case[3]))
    end
  end)

  it("follows a weight through nodes that compute it from constants", function()
    local size = lm.tensor({2, 3}, {dtype = "int64"})
    assert.equal("w", trained({{"Reshape", "w size", "r"}, {"Transpose", "r", "t"}, {"MatMul", "x t", "y"}},
      {w = {6}, size = size}))
    assert.equal("g v", trained({ -- weight norm
      {"ReduceL2", "v", "n"}, {"Div", "v n", "u"}, {"Mul", "u g", "w"}, {"Conv", "x w", "y"},
    }, {v = {2, 1, 3, 3}, g = {2, 1, 1, 1}}))
    assert.equal("v", trained({{"Add", "v one", "w"}, {"LayerNormalization", "x w", "y"}},
      {v = {4}, one = lm.ones(1)}))
    assert.equal("w", trained({ -- trained with quantization in mind: scales of rows are no weights
      {"QuantizeLinear", "w s z", "q", {axis = 0}}, {"DequantizeLinear", "q s z", "d", {axis = 0}},
      {"MatMul", "x d", "y"},
    }, {w = {2, 3}, s = lm.full({2}, 0.1), z = lm.zeros({2}, {dtype = "int8"})}))
    assert.equal("", trained({{"DequantizeLinear", "q s z", "d", {axis = 0}}, {"MatMul", "x d", "y"}},
      {q = lm.zeros({2, 3}, {dtype = "int8"}), s = lm.full({2}, 0.1), z = lm.zeros({2}, {dtype = "int8"})}))
  end)

  it("trains tables of embeddings, and no tables of positions, anchors or an image's statistics", function()
    local at = lm.arange(1, 16):reshape(-1, 1) * lm.tensor {{0.7, 0.31}}
    local ids = {input = {info("x", 7)}}
    assert.equal("w", trained({{"Gather", "w x", "y"}}, {w = {16, 4}}, ids))
    assert.equal("", trained({{"Gather", "w x", "y"}}, {w = lm.cat({at:sin(), at:cos()}, 2)}, ids))
    assert.equal("", trained({{"Gather", "w x", "y"}}, {w = at:cos()}, ids))
    assert.equal("", trained({{"Gather", "w x", "y"}}, {w = {16}}, ids))
    local at_fixed = {{"Gather", "w at", "p"}, {"Gather", "e x", "a"}, {"Add", "a p", "y"}} -- learned positions
    local three = lm.tensor({{0, 1, 2}}, {dtype = "int64"})
    assert.equal("e w", trained(at_fixed, {w = {16, 4}, e = {9, 4}, at = three}, ids))
    assert.equal("e", trained({{"Gather", "e x", "a"}, {"Add", "a p", "y"}}, {e = {16, 4}, p = {1, 5, 4}}, ids))
    assert.equal("w", trained({ -- indices that a layer computes are of no embedding
      {"MatMul", "x w", "a"}, {"ArgMax", "a", "i", {axis = 1}}, {"Gather", "t i", "y"},
    }, {w = {2, 5}, t = {5, 4}}))
    assert.equal("w", trained({{"Sub", "x m", "a"}, {"Mul", "a s", "b"}, {"Add", "b o", "c"}, {"Conv", "c w", "y"}},
      {m = {1, 3, 1, 1}, s = {1, 3, 1, 1}, o = {1, 3, 1, 1}, w = {2, 3, 1, 1}}))
    assert.equal("", trained({{"Clip", "x low high", "y"}}, {low = {}, high = {}}))
    assert.equal("b v w", trained({ -- biases of relative positions, as in Swin Transformer V2
      {"Identity", "t", "u"}, {"MatMul", "u v", "a"}, {"Add", "b a", "c"}, {"Relu", "c", "d"}, {"MatMul", "d w", "e"},
      {"Reshape", "e size", "f"}, {"Gather", "f at", "g"}, {"Add", "x g", "y"},
    }, {t = {1, 3, 3, 2}, v = {2, 8}, b = {8}, w = {8, 4}, size = lm.tensor({9, 4}, {dtype = "int64"}), at = three}))
  end)

  it("trains weights in constant nodes, in branches and in functions, under the names of their results", function()
    local function constant(name, sizes) return {"Constant", "", name, {value = tensor("", sizes)}} end
    local function branch(inner) return {name = "b", node = nodes_of(inner), output = {info "z"}} end
    local yes = branch {constant("w", {3, 3}), constant("eps", {}), {"MatMul", "x w", "a"}, {"Add", "a eps", "z"}}
    local no = branch {constant("w", {3, 3}), {"MatMul", "x w", "a"}, {"Add", "a bias", "z"}}
    local path = write({
      constant("bias", {3}), {"If", "c", "u", {then_branch = yes, else_branch = no}}, constant("d", {3, 2}),
      {"MatMul", "u d", "y"},
    }, {c = lm.tensor(false)})
    local net = lm.onnx.load(path)
    assert.equal("bias d w w_", names_of(net))
    local x = lm.randn(2, 3)
    net(x):sum():backward()
    assert.is_nil(net.w_.grad) -- then_branch, which comes second
    assert.is_true(net.w.grad:abs():sum():item() > 0 and net.bias.grad ~= nil)
    local values, before = lm.load(path), net(x):detach()
    assert.same({3, 3}, {unpack(values.w_.shape)})
    lm.no_grad(function() net.d:mul_(2) end)
    assert.is_true((net(x) - before * 2):abs():max():item() < 1e-5)
    local other = lm.onnx.load(path)
    other:load_state_dict(net:state_dict())
    assert.is_true(lm.equal(other(x), net(x)))

    local call = {{"d.f", "x", "a"}, {"d.f", "a", "y"}}
    local again = lm.onnx.load(write(call, {}, {functions = {{
      name = "f", domain = "d", input = {"v"}, output = {"r"}, opset_import = {{domain = "", version = 17}},
      node = nodes_of {constant("weight", {3, 3}), {"MatMul", "v weight", "r"}},
    }}}))
    assert.equal("weight", names_of(again)) -- one, which both calls read
    local w = again.weight:detach()
    assert.is_true((again(x) - x:matmul(w):matmul(w)):abs():max():item() < 1e-5)
  end)

  it("does not take a shape of another dtype for one", function()
    assert.equal("w", trained({{"Reshape", "w s", "r"}, {"MatMul", "x r", "y"}},
      {w = lm.randn(3, 4), s = lm.tensor({true, false})}))
  end)

  it("takes names, a function or a boolean instead of the rule", function()
    local path = write({{"MatMul", "x w", "a"}, {"Mul", "a temperature", "y"}}, {w = {3, 3}, temperature = {}})
    local function with(trainable) return names_of(lm.onnx.load(path, {trainable = trainable})) end
    assert.equal("w", with(nil))
    assert.equal("temperature w", with(true))
    assert.equal("", with(false))
    assert.equal("temperature w", with {temperature = true})
    assert.equal("temperature", with {temperature = true, w = false})
    local seen = {}
    assert.equal("temperature", with(function(name, trains)
      seen[name] = trains
      return not trains
    end))
    assert.same({w = true, temperature = false}, seen)
    assert.error_matches(function() with {temperatur = true} end,
      "onnx.load: trainable: unknown option 'temperatur'; did you mean 'temperature'%?")
    assert.error_matches(function() with "w" end, "onnx.load: trainable must be a boolean, a table")
    assert.error_matches(function() with {w = 1} end, "onnx.load: trainable must be booleans by name, got 1")
  end)

  it("says in a sentence that nothing trains to whoever asks for the parameters", function()
    local net = lm.onnx.load(write({{"Mul", "x s", "y"}}, {s = {}}))
    local program = temp.write(folder .. "/nothing.lua", 'require("luminary").onnx.load(arg[1]):parameters()')
    local pipe = io.popen(("luajit %s %s/made.onnx 2>&1"):format(program, folder))
    local text = pipe:read "*a"
    pipe:close()
    assert.matches("onnx: no tensor of '.*made.onnx' trains", text)
    assert.is_false(net(lm.ones(2)).requires_grad)
  end)

  it("says nothing where the caller or the file said that nothing trains, or a network is frozen", function()
    local path = write({{"MatMul", "x w", "a"}, {"Mul", "a s", "y"}}, {w = {3, 3}, s = {}})
    local untrained = folder .. "/untrained.onnx"
    lm.onnx.export(lm.onnx.load(path, {trainable = false}), lm.randn(2, 3), untrained)
    local function warned(nets)
      local program = temp.write(folder .. "/frozen.lua", ([[
        local lm, path = require "luminary", %q
        for _, net in ipairs {%s} do net:parameters() end
      ]]):format(path, nets:gsub("UNTRAINED", ("%q"):format(untrained))))
      local pipe = io.popen("luajit " .. program .. " 2>&1")
      local text = pipe:read "*a"
      pipe:close()
      return text
    end
    for _, nets in ipairs {
      "lm.onnx.load(path, {trainable = false})", "lm.onnx.load(path, {trainable = {w = false}}):clone()",
      "lm.onnx.load(path, {trainable = function() return false end})", "lm.onnx.load(UNTRAINED)",
      "lm.onnx.load(path):requires_grad_(false)",
    } do
      assert.equal(nets, nets .. warned(nets))
    end
    write({{"Mul", "x s", "y"}}, {s = {}})
    assert.equal("", (warned "nil, lm.onnx.load(path):requires_grad_(false)"))
    assert.matches("onnx: no tensor of", (warned "lm.onnx.load(path)"))
  end)

  it("reads which tensors were parameters from a file of lm.onnx.export", function()
    local Net = class.define("Net", lm.nn.Module)
    function Net:init()
      self.factor = lm.nn.Parameter(lm.full({}, 2))
      self.frozen = lm.nn.Parameter(lm.ones(3, 3), false)
      self:register_buffer("matrix", lm.ones(3, 3))
    end
    function Net:forward(x) return x:matmul(self.matrix):matmul(self.frozen) * self.factor end
    local path = folder .. "/own.onnx"
    lm.onnx.export(Net(), lm.randn(2, 3), path)
    local net = lm.onnx.load(path)
    assert.equal("factor", names_of(net))
    local others = {factor = false, matrix = true, frozen = true}
    assert.equal("frozen matrix", names_of(lm.onnx.load(path, {trainable = others})))
    lm.onnx.export(net, lm.randn(2, 3), path)
    assert.equal("factor", names_of(lm.onnx.load(path)))
  end)

  it("is decided for files that break the rules too, so that the errors are those of the file", function()
    local empty = {w = lm.zeros({4, 0}), v = lm.zeros({0, 0}), s = {}}
    for _, nodes in ipairs {
      {{"Gather", "w x", "y"}}, {{"Gather", "v x", "y"}}, {{"Gather", "s x", "y"}}, {{"MatMul", "x w", "y"}},
      {{"Reshape", "w s", "r"}, {"MatMul", "x r", "y"}}, {{"Reshape", "w w", "r"}, {"Add", "r r", "y"}},
      {{"MatMul", "x", "y"}}, {{"Add", "x none", "y"}}, {{"Conv", "x - s", "y"}}, {{"LSTM", "x", "y"}},
    } do
      local ok, why = pcall(lm.onnx.load, write(nodes, empty, {input = {info("x", 7)}}))
      assert.is_true(ok or why:find("made.onnx'", 1, true) ~= nil, tostring(why))
    end
    local net = lm.onnx.load(write({{"MatMul", "x w", "y"}}, {w = {3, 3}}))
    assert.equal(1, #net:parameters {recurse = false})
  end)

  it("is listed by inspect", function()
    write({{"MatMul", "x w", "a"}, {"Mul", "a s", "b"}, {"Constant", "", "v", {value = tensor("", {3, 2})}},
      {"MatMul", "b v", "y"}}, {w = {4, 3}, s = {}})
    local pipe = io.popen("luajit bin/luminary inspect " .. folder .. "/made.onnx 2>&1")
    local text = pipe:read "*a"
    pipe:close()
    assert.matches("name +dtype +shape +size +trains +least", text)
    assert.matches("\ns +float32 +%[%] +4 B +[%d-]", text)
    assert.matches("\nv +float32 +%[3, 2%] +24 B +yes +[%d-]", text)
    assert.matches("\nw +float32 +%[4, 3%] +48 B +yes +[%d-]", text)
    assert.matches("3 tensors, 19 elements; 2 of them train, with 18 elements", text)
  end)
end)
