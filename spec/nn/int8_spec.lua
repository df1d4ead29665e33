-- lm.quantize and nn.Int8Linear; the product itself is spec/op/ops_spec.lua's.
local lm = require "luminary"
local temp = require "spec.support.temp"
local work = require "spec.support.work"
local message = require "spec.support.error_of"
local nn = lm.nn

describe("nn.Int8Linear", function()
  it("is off by half a step of each output's weight at most", function()
    local weight, x = lm.randn(9, 33) * lm.linspace(0.01, 10, 9):view(9, 1), lm.randn(4, 33)
    local layer = nn.Int8Linear(weight, lm.randn(9))
    local half = weight:abs():amax(2) / 127 / 2
    assert.is_true((layer.weight * layer.scale:view(9, 1) - weight):abs():le(half:view(9, 1) * 1.0001):all():item())
    local error = (layer(x) - lm.nn.functional.linear(x, weight, layer.bias)):abs()
    assert.is_true(error:le(x:abs():sum(2, true) * half * 1.001):all():item())
    assert.equal("int8", layer.weight.dtype)
    assert.equal("Int8Linear(in_features=33, out_features=9, bias=True)", tostring(layer))
  end)

  it("takes rows of zeros, and refuses what int8 cannot hold", function()
    local layer = nn.Int8Linear(lm.zeros(2, 3))
    assert.same({ { 0, 0 } }, layer(lm.ones(1, 3)):totable())
    assert.matches("Int8Linear: weight must be finite$", message(nn.Int8Linear, lm.full({ 2, 3 }, math.huge)))
    assert.matches("Int8Linear: weight must be a floating tensor %[out, in%], got a tensor %[3%]$",
      message(nn.Int8Linear, lm.ones(3)))
    assert.matches("Int8Linear: expected bias to have shape %[2%], got %[3%]$",
      message(nn.Int8Linear, lm.ones(2, 3), lm.ones(3)))
  end)

  it("takes numbers of any size, and what is not finite, in few rows as in many", function()
    local drawn = lm.randn(6, 150)
    drawn[{{}, {3}}] = lm.tensor {1, -1, 1, -1, 1, -1}:view(6, 1) -- none is rounded to 0, by which infinity is NaN
    local layer = nn.Int8Linear(drawn)
    local weight = layer.weight * layer.scale:view(6, 1)
    for _, scale in ipairs { 1, 1e-30, 1e-38, 1e30, 0 } do
      for _, rows in ipairs { 1, 2, 3, 4, 5, 17 } do
        local x = lm.randn(rows, 150) * scale
        x[{{}, {70}}] = x[{{}, {70}}] * 1000 -- no other block is rounded by this
        local bound = lm.zeros(rows, 6, {dtype = "float64"})
        for first = 1, 150, 64 do
          local n = math.min(64, 151 - first)
          local largest = x:narrow(2, first, n):abs():amax(2, true):double()
          bound = bound + largest / 65534 * weight:narrow(2, first, n):abs():sum(2):double()
        end
        local want = lm.nn.functional.linear(x:double(), weight:double())
        local off = (layer(x):double() - want):abs()
        local limit = bound * 1.01 + want:abs() * 1e-6 + 1e-33
        assert.is_true(off:le(limit):all():item(), ("%g, %d rows"):format(scale, rows))
      end
    end
    local x = lm.ones(2, 150)
    x[{2, 3}] = math.huge
    local got = layer(x)
    assert.is_true((got[1] - lm.nn.functional.linear(x[1], weight)):abs():max():item() < 1e-4)
    assert.same(lm.nn.functional.linear(x, weight)[2]:totable(), got[2]:totable())
    x[{2, 3}] = 0 / 0
    assert.is_true(layer(x)[2]:isnan():all():item())
  end)

  it("keeps what is tiny until the weight has made it larger", function()
    local layer, x = nn.Int8Linear(lm.full({3, 100}, 1e4)), lm.full({1, 100}, 1e-37)
    assert.is_true((layer(x) / 1e-31 - 1):abs():max():item() < 1e-3)
  end)

  it("multiplies by rows of any length", function()
    for _, k in ipairs { 3071, 3072, 3136, 5001 } do
      local layer, x = nn.Int8Linear(lm.randn(9, k)), lm.randn(1, k)
      local want = lm.nn.functional.linear(x:double(), (layer.weight * layer.scale:view(9, 1)):double())
      assert.is_true((layer(x) - want):abs():max():item() < 1e-2, k .. " numbers")
    end
  end)

  it("lets gradients through to x, in bfloat16 too", function()
    local layer = nn.Int8Linear(lm.randn(5, 20))
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local x = lm.randn(3, 20):to(dtype):requires_grad_()
      local y = layer(x)
      assert.equal(dtype, y.dtype)
      y:sum():backward()
      local want = (layer.weight * layer.scale:view(5, 1)):sum(1):expand(3, 20):to(dtype)
      assert.is_true(x.grad:allclose(want, { rtol = 2e-2, atol = 1e-2 }))
    end
  end)
end)

describe("lm.quantize", function()
  it("replaces linear layers wherever they are, a shared one once", function()
    local shared = nn.Linear(8, 8)
    local net = nn.Sequential(shared, nn.ReLU(), nn.ModuleDict { a = nn.Sequential(shared) },
      nn.MultiheadAttention(8, 2))
    assert.is_true(nn.Int8Linear(lm.randn(3, 4):t()).weight:is_contiguous()) -- each call would copy another layout
    assert.equal(net, lm.quantize(net))
    assert.equal(net, lm.quantize(net, net:load_state_dict(net:state_dict()))) -- as in lm.quantize(lm.models.gpt2 {…})
    assert.is_true(net[1]:is(nn.Int8Linear))
    assert.equal(net[1], net[3].a[1])
    assert.is_true(net[4].out_proj:is(nn.Linear)) -- attention itself multiplies by its weight
    assert.is_true(lm.quantize(nn.Linear(2, 3)):is(nn.Int8Linear))
    assert.equal(net[1], lm.quantize(net)[1])
    assert.matches("quantize: net must be a module, got 3$", message(lm.quantize, 3))
    local seen, fc = 0, nn.Linear(2, 3)
    fc:register_forward_hook(function() seen = seen + 1 end)
    lm.quantize(nn.Sequential(fc))[1](lm.ones(1, 2))
    assert.equal(1, seen)
    assert.matches("quantize: unknown option 'dtype'; options are net, kind$",
      message(lm.quantize, nn.Linear(2, 3), { dtype = "int8" }))
  end)

  it("takes work in proportion to the children of a container", function()
    local function thousands(n)
      local net = nn.Sequential()
      for _ = 1, n do net:append(nn.Linear(1, 1, { bias = false })) end
      local taken = work(function() return lm.quantize(net) end)
      assert.same({ "Int8Linear", "Int8Linear", n }, { net[1].__name, net[n].__name, #net:children() })
      return taken
    end
    local few, many = thousands(300), thousands(600)
    assert(many < 2.5 * few, ("%d and %d thousand instructions"):format(few, many))
  end)

  it("changes all of a net or nothing", function()
    local function net() return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4))) end
    local it = net()
    lm.no_grad(function() it[2][1].weight[{ 2, 2 }] = 0 / 0 end)
    assert.matches("quantize: 1%.0: Int8Linear: weight must be finite", message(lm.quantize, it))
    assert.is_true(it[1]:is(nn.Linear) and it[2][1]:is(nn.Linear))
    local lazy = nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(4))
    assert.matches("quantize: 1: this LazyLinear has no weight before its first forward pass; call the net once",
      message(lm.quantize, lazy))
    assert.is_true(lazy[1]:is(nn.Linear))
    lazy(lm.ones(1, 2))
    assert.is_true(lm.quantize(lazy)[2]:is(nn.Int8Linear))
    local Own = nn.Module:extend "Own"
    function Own.to_int8() return 5 end
    assert.matches("quantize: 1: Own:to_int8%(%) must be a module or self, got 5",
      message(lm.quantize, nn.Sequential(nn.Linear(2, 3), Own())))
    function Own.to_int8() error { "mine" } end
    assert.same({ "mine" }, select(2, pcall(lm.quantize, Own())))
    function Own:to_int8() -- changes its parts, and returns itself
      self.fc, self.more = nn.Linear(2, 2), nn.Linear(2, 2)
      return self
    end
    local own = lm.quantize(Own())
    assert.is_true(own.fc:is(nn.Int8Linear) and own.more:is(nn.Int8Linear))
    local gpt = lm.models.gpt2 { vocab_size = 5, n_positions = 4, n_embd = 4, n_head = 1, n_layer = 1 }
    lm.no_grad(function() gpt.transformer.wte.weight[{ 2, 2 }] = math.huge end)
    assert.matches("quantize: GPT2: Int8Linear: weight must be finite", message(lm.quantize, gpt))
    assert.is_nil(gpt.lm_head)
    assert.is_false(gpt.transformer.h[1].mlp.c_fc:is(nn.Int8Linear))
  end)

  it("keeps what a transformer says, to a percent", function()
    local x = lm.randn(2, 7, 16)
    local net = nn.TransformerEncoderLayer(16, 4, 32, { batch_first = true, dropout = 0 }):eval()
    local want = net(x)
    assert.is_true(((lm.quantize(net)(x) - want):norm() / want:norm()):item() < 0.02)
  end)

  for _, name in ipairs { "gpt2", "llama" } do
    it("quantizes " .. name .. ", and its file comes back", function()
      local function made()
        if name == "gpt2" then
          return lm.models.gpt2({ vocab_size = 50, n_positions = 16, n_embd = 32, n_layer = 2, n_head = 2 }):eval()
        end
        return lm.models.llama({ vocab_size = 50, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2,
          num_attention_heads = 2, max_position_embeddings = 16, tie_word_embeddings = true }):eval()
      end
      local net, ids = made(), lm.randint(1, 51, { 2, 9 })
      local want = net(ids)
      lm.quantize(net)
      for key, t in pairs(net:state_dict()) do
        if key:find "weight$" and not key:find "norm" and not key:find "ln_" and not key:find "embed"
          and not key:find "w[tp]e" then
          assert.equal("int8", t.dtype, key)
        end
      end
      local got = net(ids)
      assert.is_true(((got - want):norm() / want:norm()):item() < 0.03)
      local folder = temp.folder()
      local path = folder .. "/int8.safetensors"
      lm.save(path, net:state_dict())
      local other = lm.quantize(made())
      other:load_state_dict(lm.load(path))
      temp.remove(folder)
      assert.is_true(other(ids):equal(got))
      local tokens = net:generate(ids, { max_new_tokens = 3 })
      assert.same({ 2, 12 }, tokens.shape)
    end)
  end
end)
