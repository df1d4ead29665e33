-- nn.utils: vectors, weights of fixed norms, parametrizations, packed sequences, batch norm taken into convolutions.
local lm = require "luminary"
local message = require "spec.support.error_of"
local nn = lm.nn
local utils = nn.utils
local parametrize, rnn = utils.parametrize, utils.rnn

local function is(want, t)
  assert(lm.tensor(want, { dtype = t.dtype }):allclose(t:detach(), { atol = 1e-5 }), tostring(t))
end

local function keys(dict) return table.concat(require("luminary.base.lists").sorted_keys(dict), " ") end

describe("nn.utils", function()
  it("makes parameters a vector and back", function()
    local fc = nn.Linear(2, 2)
    local v = utils.parameters_to_vector(fc:parameters())
    assert.same({ 6 }, v.shape)
    v:sum():backward()
    is({ 1, 1 }, fc.bias.grad)
    utils.vector_to_parameters(lm.arange(6), fc:parameters())
    is({ { 0, 1 }, { 2, 3 } }, fc.weight)
    is({ 4, 5 }, fc.bias)
    assert.matches("vector_to_parameters: expected a vector of 6 elements, got a tensor %[5%]$",
      message(utils.vector_to_parameters, lm.ones(5), fc:parameters()))
  end)
  it("skips initial values", function()
    local fc = utils.skip_init(nn.Linear, 3, 4, { bias = false })
    assert.same({ 4, 3 }, fc.weight.shape)
    assert.is_true(fc:is(nn.Linear))
    fc:reset_parameters()
    assert.equal("Linear(in_features=3, out_features=4, bias=False)", tostring(fc))
    assert.matches("skip_init: expected a class, such as nn%.Linear, got a module, Linear$",
      message(utils.skip_init, fc))
  end)
  it("takes batch norm into the layer before", function()
    local conv, bn = nn.Conv2d(2, 3, 2, { bias = false }), nn.BatchNorm2d(3)
    bn(lm.randn(4, 3, 5, 5) * 2 + 1)
    assert.matches("fuse_conv_bn_eval: conv must be in eval mode; call its eval%(%) first$",
      message(utils.fuse_conv_bn_eval, conv, bn:eval()))
    local x, fc, bn1 = lm.randn(2, 2, 4, 4), nn.Linear(2, 3):eval(), nn.BatchNorm1d(3):eval()
    local fused = utils.fuse_conv_bn_eval(conv:eval(), bn)
    assert(fused(x):allclose(bn(conv(x)), { atol = 1e-5 }))
    assert.is_nil(conv.bias)
    bn1.running_mean:fill_(2)
    assert(utils.fuse_linear_bn_eval(fc, bn1)(lm.ones(1, 2)):allclose(bn1(fc(lm.ones(1, 2))), { atol = 1e-5 }))
  end)
end)

describe("weight_norm", function()
  it("has PyTorch's values and names", function()
    local fc = nn.Linear(2, 3, { bias = false })
    fc.weight = nn.Parameter(lm.arange(1, 7):to("float32"):view(3, 2))
    assert.equal(fc, utils.weight_norm(fc))
    assert.equal("parametrizations.weight.original0 parametrizations.weight.original1", keys(fc:state_dict()))
    is({ { 2.236068 }, { 5 }, { 7.81025 } }, fc.parametrizations.weight.original0)
    is({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, fc.weight)
    ;(fc(lm.ones(1, 2)) * lm.tensor { 1, 2, 3 }):sum():backward()
    is({ { 1.341641 }, { 2.8 }, { 4.225217 } }, fc.parametrizations.weight.original0.grad)
    is({ { 0.4, -0.2 }, { 0.32, -0.24 }, { 0.2950822, -0.2459013 } }, fc.parametrizations.weight.original1.grad)
    local head = "ParametrizedLinear(\n  in_features=2, out_features=3, bias=False\n  (parametrizations): ModuleDict"
    assert.equal(head, tostring(fc):sub(1, #head))
    local twin = fc:clone()
    twin.parametrizations.weight.original0:detach():mul_(2)
    is({ { 2, 4 }, { 6, 8 }, { 10, 12 } }, twin.weight)
    is({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, fc.weight)
    utils.remove_weight_norm(fc)
    assert.equal("weight", keys(fc:state_dict()))
    assert.is_true(nn.is_parameter(fc.weight))
    assert.equal("Linear(in_features=2, out_features=3, bias=False)", tostring(fc))
  end)
  it("takes other dims, and says what is wrong", function()
    local conv = utils.weight_norm(nn.Conv2d(2, 3, 2), { dim = 2 })
    assert.same({ 1, 2, 1, 1 }, conv.parametrizations.weight.original0.shape)
    for _, all in ipairs { false, -1 } do -- PyTorch's None and -1
      assert.same({}, utils.weight_norm(nn.Linear(2, 2), { dim = all }).parametrizations.weight.original0.shape)
    end
    conv = utils.weight_norm(nn.Conv2d(2, 3, 2), { dim = -2 })
    assert.same({ 1, 1, 2, 1 }, conv.parametrizations.weight.original0.shape)
    assert.matches("weight_norm: ReLU has no parameter 'weight'$", message(utils.weight_norm, nn.ReLU()))
    assert.matches("weight_norm: dim 3 is out of range for a tensor %[2, 2%]$",
      message(utils.weight_norm, nn.Linear(2, 2), { dim = 3 }))
  end)
end)

describe("spectral_norm", function()
  it("divides by the largest singular value", function()
    local fc = nn.Linear(2, 2, { bias = false })
    fc.weight = nn.Parameter(lm.tensor { { 3, 0 }, { 0, 0.5 } })
    utils.parametrizations.spectral_norm(fc, { n_power_iterations = 5 })
    is({ { 1, 0 }, { 0, 1 / 6 } }, fc.weight)
    assert.equal("parametrizations.weight.0._u parametrizations.weight.0._v parametrizations.weight.original",
      keys(fc:state_dict()))
    fc(lm.ones(1, 2)):sum():backward()
    assert.is_true(fc.parametrizations.weight.original.grad:isfinite():all():item())
    utils.remove_spectral_norm(fc)
    is({ { 1, 0 }, { 0, 1 / 6 } }, fc.weight)
    assert.same({ 4, 2, 3, 3 }, utils.spectral_norm(nn.Conv2d(2, 4, 3)).weight.shape)
  end)
end)

describe("a module with several names", function()
  local shapes = { bias = { 3 }, weight_g = { 3, 1, 1 }, weight_orig = { 3, 2, 2 }, weight_u = { 3 } }
  -- Returns a net with a layer and a batch norm under three names each, and an old state for it.
  local function shared(layer, dtype, entries)
    local net, state = nn.Module(), {}
    net.conv1, net.bn = layer, nn.BatchNorm1d(3)
    net.net = nn.Sequential(nn.Sequential(net.conv1, net.bn), net.conv1, net.bn)
    for i, at in ipairs { "conv1.", "net.0.0.", "net.1." } do
      for _, name in ipairs(entries) do
        state[at .. name] = i == 1 and lm.randn(shapes[name], { dtype = dtype }) or state["conv1." .. name]
      end
    end
    for _, at in ipairs { "bn.", "net.0.1.", "net.2." } do -- PyTorch before 0.4.1 had no num_batches_tracked
      for _, name in ipairs { "weight", "bias", "running_mean", "running_var" } do
        state[at .. name] = lm.ones({ 3 }, { dtype = dtype })
      end
    end
    return net:to(dtype), state
  end
  for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
    it("loads old states, which have each name: " .. dtype, function()
      shapes.weight_v = { 3, 2, 2 }
      local net, old = shared(utils.weight_norm(nn.Conv1d(2, 3, 2)), dtype, { "bias", "weight_g", "weight_v" })
      assert.equal("<all keys matched>", tostring(net:load_state_dict(old)))
      assert(net.net[1][1].parametrizations.weight.original1:equal(old["conv1.weight_v"]))
      local names = keys(net:state_dict())
      for _, at in ipairs { "conv1", "net%.0%.0", "net%.1" } do
        assert.matches(at .. "%.parametrizations%.weight%.original0", names)
      end
      shapes.weight_v = { 4 }
      local layer = utils.spectral_norm(nn.Conv1d(2, 3, 2))
      net, old = shared(layer, dtype, { "bias", "weight_orig", "weight_u", "weight_v" })
      assert.equal("<all keys matched>", tostring(net:load_state_dict(old)))
      assert(net.conv1.parametrizations.weight.original:equal(old["conv1.weight_orig"]))
    end)
  end
  it("runs hooks of states once for each, as PyTorch does, and fills lazy layers", function()
    local net, from = nn.Module(), nn.Module()
    for _, each in ipairs { net, from } do
      each.a = nn.LazyLinear(3)
      each.b = nn.Sequential(each.a)
    end
    from.a(lm.ones(1, 2))
    local prefixes = {}
    net.a:register_load_state_dict_pre_hook(function(_, _, prefix) prefixes[#prefixes + 1] = prefix end)
    net:load_state_dict(from:state_dict())
    assert.same({ "a.", "b.0." }, prefixes)
    assert(net.b[1].weight:equal(from.a.weight))
    assert.equal(net.a.weight, net.b[1].weight)
  end)
end)

describe("orthogonal", function()
  local orthogonal = utils.parametrizations.orthogonal
  it("keeps rows or columns orthonormal, as they are trained", function()
    for _, case in ipairs {
      { 4, 4 }, { 4, 4, "cayley" }, { 5, 3 }, { 3, 5 }, { 3, 5, "cayley" }, { 5, 3, "matrix_exp", false },
      { 4, 4, "cayley", false }, { 4, 4, "householder" }, { 5, 3, nil, false }, { 3, 5, "householder", false },
    } do
      local fc = nn.Linear(case[2], case[1], { bias = false }):double()
      if case[4] ~= false then nn.init.orthogonal_(fc.weight) end
      local before = fc.weight:detach():clone()
      orthogonal(fc, { orthogonal_map = case[3], use_trivialization = case[4] })
      if case[4] ~= false then assert(fc.weight:allclose(before, { atol = 1e-9 }), tostring(case[3])) end
      local opt = lm.optim.SGD(fc:parameters(), { lr = 0.1 })
      for _ = 1, 3 do
        opt:zero_grad();
        (fc(lm.ones(1, case[2]):double()) ^ 3):sum():backward()
        opt:step()
      end
      local w = fc.weight
      if case[1] < case[2] then w = w:t() end
      assert(w:t():mm(w):allclose(lm.eye(w.shape[2], { dtype = "float64" }), { atol = 1e-9 }), tostring(case[3]))
      assert.is_false(fc.weight:allclose(before))
      local twin = orthogonal(nn.Linear(case[2], case[1], { bias = false }):double(),
        { orthogonal_map = case[3], use_trivialization = case[4] })
      twin:load_state_dict(fc:state_dict())
      assert.is_true(twin.weight:equal(fc.weight))
    end
  end)
  it("has PyTorch's values", function() -- torch 2.15: base, original and weight of a Linear
    local fc = orthogonal(nn.Linear(2, 2, { bias = false }), { orthogonal_map = "cayley" })
    fc:load_state_dict { ["parametrizations.weight.0.base"] = lm.eye(2),
      ["parametrizations.weight.original"] = lm.tensor { { 1, 2 }, { 0.5, 3 } } }
    is({ { 0.88235295, -0.47058824 }, { 0.47058824, 0.88235295 } }, fc.weight)
    fc = orthogonal(nn.Linear(2, 3, { bias = false }))
    fc:load_state_dict { ["parametrizations.weight.0.base"] = lm.eye(3),
      ["parametrizations.weight.original"] = lm.tensor { { -1, 2 }, { 0.5, -1 }, { 0.25, 3 } } }
    is({ { 0.5238096, 0.3809524 }, { 0.7619048, -0.6095238 }, { 0.3809524, 0.6952381 } }, fc.weight)
  end)
  it("has PyTorch's Householder reflections without a base", function() -- torch 2.15
    for _, case in ipairs {
      { { { 3, 1 }, { 4, 2 }, { 0, 5 } }, { { -1, -2.2 }, { 0.5, -1 }, { 0, 0.9231949 } },
        { { 0.6, -0.06379624 }, { 0.8, 0.04784717 }, { 0, 0.9968153 } },
        { { 0, 0 }, { 0.3592966, 0 }, { 1.418802, -0.172209 } } },
      { { { 3, 1, 4 }, { 2, 0, 5 } }, { { -1, 0.1234717, 0.493887 }, { -5.09902, 1, -0.5726821 } },
        { { 0.5883484, 0.1961161, 0.7844646 }, { -0.5773503, -0.5773505, 0.5773503 } },
        { { 0, 2.896184, -4.54793 }, { 0, 0, -1.364225 } } },
      { { { 0, -2 }, { 3, 1 } }, { { -1, -1 }, { 1, -1 } }, { { 0, -1 }, { 1, 0 } }, { { 0, 0 }, { -3, 0 } } },
      { { { -2 } }, { { 1 } }, { { -1 } }, { { 0 } } },
    } do
      local first, original, weight, grad = unpack(case)
      local fc = nn.Linear(#first[1], #first, { bias = false })
      fc.weight = nn.Parameter(lm.tensor(first, { dtype = "float32" }))
      orthogonal(fc, { orthogonal_map = "householder", use_trivialization = false })
      assert.equal("parametrizations.weight.original", keys(fc:state_dict()))
      is(original, fc.parametrizations.weight.original)
      is(weight, fc.weight);
      (fc(lm.ones(1, #first[1])) * lm.arange(1, #first + 1)):sum():backward()
      is(grad, fc.parametrizations.weight.original.grad)
      fc.weight = lm.tensor(weight, { dtype = "float32" }) * 2
      is(weight, fc.weight)
    end
    local batch = nn.Module()
    batch.w = nn.Parameter(lm.randn(2, 5, 3))
    orthogonal(batch, { name = "w", use_trivialization = false })
    assert(batch.w:transpose(-2, -1):matmul(batch.w):allclose(lm.eye(3):expand(2, 3, 3), { atol = 1e-5 }))
  end)
  it("says what it cannot take", function()
    assert.matches("orthogonal: Linear has no matrix 'bias'$", message(orthogonal, nn.Linear(2, 2), { name = "bias" }))
    local fc = orthogonal(nn.Linear(2, 2), { use_trivialization = false })
    assert.matches("it has no right_inverse", message(function() fc.weight = lm.eye(2) end))
  end)
end)

describe("parametrizations of a parametrized weight", function()
  local P = utils.parametrizations

  it("stack where PyTorch's do, and say which must be first", function()
    local function both(first, second)
      local layer = P[second](P[first](nn.Linear(3, 4)))
      layer(lm.ones { 1, 3 }):sum():backward()
      return keys(layer:state_dict()):gsub("parametrizations%.weight%.", "")
    end
    assert.equal("bias 1._u 1._v original0 original1", (both("weight_norm", "spectral_norm")))
    assert.equal("bias 0.base 1._u 1._v original", (both("orthogonal", "spectral_norm")))
    for _, first in ipairs { "spectral_norm", "orthogonal" } do
      assert.matches("weight_norm: 'weight' has a parametrization already; register weight_norm first",
        message(both, first, "weight_norm"), 1, true)
    end
    assert.matches("register orthogonal first", message(both, "weight_norm", "orthogonal"), 1, true)
  end)

  it("have PyTorch's values, gradients and states", function() -- torch 2.15: two names, state, weight, gradients
    local Own = nn.Module:extend("Own")
    function Own.forward(_, x) return x * 2 end
    local apply = { weight_norm = P.weight_norm, spectral_norm = P.spectral_norm, orthogonal = P.orthogonal }
    function apply.own(layer) parametrize.register_parametrization(layer, "weight", Own()) end
    function apply.free(layer) P.orthogonal(layer, { orthogonal_map = "cayley", use_trivialization = false }) end
    function apply.reflections(layer)
      P.orthogonal(layer, { orthogonal_map = "householder", use_trivialization = false })
    end
    local m = { { 3, 1 }, { -2, 2.5 } }
    local values = { original = m, original1 = m, original0 = { { 2 }, { 3 } }, base = { { 0.6, -0.8 }, { 0.8, 0.6 } },
      _u = { 0.6, 0.8 }, _v = { 0.8, -0.6 } }
    for _, case in ipairs {
      { "weight_norm", "spectral_norm", "1._u 1._v original0 original1",
        { -1.15636, -0.385452, 1.14217, -1.42771 }, { 3.43465, -2.28977, 0.0677751, -0.203325, 1.16881, 0.935048 } },
      { "weight_norm", "free", "original0 original1",
        { 0.0649351, 0.997889, -0.997889, 0.0649351 }, { 0, 0.659649, 0, 0, -0.603338, -0.48267 } },
      { "weight_norm", "reflections", "original0 original1",
        { 0.556757, -1.66135, 0.830676, 1.11351 }, { 0, 1.18927, 0, 0, -1.08775, -0.8702 } },
      { "weight_norm", "own", "original0 original1",
        { 3.79473, 1.26491, -3.74817, 4.68521 }, { 25.6, 1.17073, -2.56, 7.68, 7.7097, 6.16776 } },
      { "spectral_norm", "spectral_norm", "0._u 0._v 1._u 1._v original",
        { -2.14286, -0.714286, 1.42857, -1.78571 }, { 9.85423, -0.247813, 8.7172, -4.75219 } },
      { "spectral_norm", "free", "0._u 0._v original",
        { 0.324324, -0.945946, 0.945946, 0.324324 }, { -0.512191, 0.384143, 0.0640238, 0.512191 } },
      { "spectral_norm", "reflections", "0._u 0._v original",
        { -0.684564, -0.939597, 1.87919, -0.342282 }, { -1.60829, 1.20621, 0.201036, 1.60829 } },
      { "spectral_norm", "own", "0._u 0._v original",
        { -4.28571, -1.42857, 2.85714, -3.57143 }, { 39.4169, -0.991254, 34.8688, -19.0087 } },
      { "orthogonal", "spectral_norm", "0.base 1._u 1._v original",
        { -0.543827, -1, 1, -0.543827 }, { 0, 0, 1.63648, 0 } },
      { "orthogonal", "free", "0.base original",
        { 0.676532, 0.736413, -0.736413, 0.676532 }, { 0, 0, -0.0677686, 0 } },
      { "orthogonal", "own", "0.base original",
        { 0.9555, 1.75699, -1.75699, 0.9555 }, { 0, 0, -4.34808, 0 } },
      { "free", "spectral_norm", "1._u 1._v original",
        { 0, -1, 1, 0 }, { 0, 0, -1, 0 } },
      { "free", "free", "original",
        { 0.6, 0.8, -0.8, 0.6 }, { 0, 0, 0, 0 } },
      { "free", "own", "original",
        { 0, 2, -2, 0 }, { 0, 0, -4, 0 } },
      { "own", "spectral_norm", "1._u 1._v original",
        { -2.14286, -0.714286, 1.42857, -1.78571 }, { 9.85423, -0.247813, 8.7172, -4.75219 } },
      { "own", "free", "original",
        { -0.6, 0.8, -0.8, -0.6 }, { 0, 0, -0.224, 0 } },
      { "own", "reflections", "original",
        { 5.29412, -2.35294, 2.82353, 4.41176 }, { 0, 0, 10.0142, 0 } },
      { "own", "own", "original",
        { 12, 4, -8, 10 }, { 128, 128, 32, 32 } },
    } do
      local layer, state, grads = nn.Linear(2, 2, { bias = false }), {}, {}
      apply[case[1]](layer)
      apply[case[2]](layer)
      local names = keys(layer:state_dict())
      assert.equal(case[3], (names:gsub("parametrizations%.weight%.", "")))
      for name in names:gmatch "%S+" do
        state[name] = lm.tensor(values[name:match "[^.]+$"], { dtype = "float32" })
      end
      layer:load_state_dict(state)
      layer:eval();
      (layer(lm.ones(1, 2)) ^ 2 * lm.tensor { 1, 2 }):sum():backward()
      is(case[4], layer.weight:flatten())
      for i, p in ipairs(layer:parameters()) do grads[i] = p.grad:flatten() end
      assert(lm.cat(grads):allclose(lm.tensor(case[5]), { rtol = 1e-4, atol = 1e-4 }), case[1] .. " " .. case[2])
    end
  end)

  it("compute the earlier ones as often as PyTorch's", function() -- torch 2.15: _u of the first spectral_norm
    local layer = nn.Linear(2, 2, { bias = false })
    layer.weight = nn.Parameter(lm.tensor { { 3, 1 }, { 2, 2.5 } })
    local first = P.spectral_norm(layer).parametrizations.weight["0"]
    first._u:copy_(lm.tensor { 0, 1 })
    first._v:copy_(lm.tensor { 1, 0 })
    P.orthogonal(layer, { orthogonal_map = "cayley", use_trivialization = false })
    is({ 0.8320503, 0.5547002 }, first._u)
  end)

  it("keep its shape and dtype", function()
    local layer = P.weight_norm(nn.Linear(3, 4))
    local text = message(parametrize.register_parametrization, layer, "weight", nn.Flatten(1))
    assert.matches("the parametrization returned a tensor %[12%] for a tensor %[4, 3%]", text)
    assert.same({ 4, 3 }, layer.weight.shape)
  end)

  it("are checked forward and back, and change nothing if they fail", function()
    local register = parametrize.register_parametrization
    local function own(forward, right_inverse)
      local Own = nn.Module:extend("Own")
      function Own.forward(_, x) return forward(x) end
      if right_inverse then function Own.right_inverse(_, x) return right_inverse(x) end end
      return Own()
    end
    local function same(x) return x end
    local function double(x) return x:double() end
    local function flat(x) return x:flatten() end
    local function twice(x) return x, x end
    local function number() return 1 end
    local forward, back = "the parametrization returned ", "right_inverse returned "
    for _, case in ipairs { -- the functions, the messages for the first and the second parametrization
      { double, nil, forward .. "dtype float64 for float32; {unsafe = true} allows it", "like the first" },
      { flat, nil, forward .. "a tensor [12] for a tensor [4, 3]; {unsafe = true} allows it", "like the first" },
      { number, nil, forward .. "1 for a tensor [4, 3]; {unsafe = true} allows it", "like the first" },
      { same, double, back .. "dtype float64 for float32",
        back .. "dtype float64 for float32; {unsafe = true} allows it" },
      { same, flat, forward .. "a tensor [12] for a tensor [4, 3]; {unsafe = true} allows it",
        back .. "a tensor [12] for a tensor [4, 3]; {unsafe = true} allows it" },
      { same, twice, nil, back .. "2 values for a tensor [4, 3]; {unsafe = true} allows it" },
    } do
      for at, first in ipairs { same, P.weight_norm } do
        local want, layer = case[at + 2], first(nn.Linear(3, 4))
        if want == "like the first" then want = case[3] end
        local before, text, weight = keys(layer:state_dict()), tostring(layer), layer.weight:detach():clone()
        if want then
          local failure = message(register, layer, "weight", own(case[1], case[2]))
          assert.equal("register_parametrization: " .. want, (failure:gsub("^.-: ", "", 1)))
        end
        assert.equal(before .. text, keys(layer:state_dict()) .. tostring(layer))
        assert.is_true(weight:equal(layer.weight))
        if at == 2 then register(layer, "weight", own(case[1], case[2]), { unsafe = true }) end
      end
    end
    assert.matches("right_inverse returned dtype float64 for float32$", -- PyTorch's first original keeps its dtype
      message(register, nn.Linear(3, 4), "weight", own(same, double), { unsafe = true }))
  end)

  it("take the mode of their module", function()
    local layer = P.spectral_norm(P.weight_norm(nn.Linear(3, 4):eval()))
    local u = layer.parametrizations.weight["1"]._u
    local before = u:clone()
    assert.is_false(layer.parametrizations.weight["1"].training)
    assert.is_true(layer.weight:equal(layer.weight) and u:equal(before))
  end)
end)

-- States of torch.nn.utils.weight_norm and spectral_norm.
describe("older names", function()
  it("of weight_norm load", function()
    local net = nn.Sequential(utils.weight_norm(nn.Linear(2, 1, { bias = false })),
      utils.weight_norm(nn.LSTM(2, 3), { name = "weight_hh_l0" }))
    local dict = {}
    for name, t in pairs(net:state_dict()) do
      name = name:gsub("parametrizations%.(.-)%.original0", "%1_g"):gsub("parametrizations%.(.-)%.original1", "%1_v")
      dict[name] = lm.full(t.shape, 2)
    end
    assert.is_not_nil(dict["1.weight_hh_l0_g"])
    net:load_state_dict(dict)
    is({ { 2 / math.sqrt(2), 2 / math.sqrt(2) } }, net[1].weight)
    is({ { 2 / math.sqrt(3) } }, net[2].weight_hh_l0[{ { 1, 1 }, { 1, 1 } }])
    dict["0.weight_v"] = nil
    assert.matches('missing keys in the state_dict: "0.weight_v"\n', message(net.load_state_dict, net, dict), 1, true)
    assert.same({ "0.weight_v" }, net:load_state_dict(dict, { strict = false }).missing_keys)
  end)
  it("of spectral_norm load", function()
    local fc = utils.spectral_norm(nn.Linear(2, 1, { bias = false })):eval()
    local dict = { weight_orig = lm.tensor { { 3, 4 } }, weight_u = lm.ones(1), weight_v = lm.tensor { 0.6, 0.8 } }
    fc:load_state_dict(dict)
    is({ { 0.6, 0.8 } }, fc.weight)
    dict.weight = lm.zeros(1, 2) -- in files of PyTorch 0.4
    fc:load_state_dict(dict)
    is({ { 0.6, 0.8 } }, fc.weight)
    dict.weight_u, dict.weight_v = nil, nil
    assert.matches('missing keys in the state_dict: "weight_u", "weight_v"\n', message(fc.load_state_dict, fc, dict), 1,
      true)
    fc:load_state_dict(fc:state_dict())
  end)
end)

describe("a parametrization", function()
  local Symmetric = nn.Module:extend("Symmetric")
  function Symmetric:forward(x)
    self.calls = (self.calls or 0) + 1
    return (x + x:t()) * 0.5
  end
  local Doubled = nn.Module:extend("Doubled")
  function Doubled.forward(_, x) return x * 2 end
  function Doubled.right_inverse(_, x) return x / 2 end

  it("computes what is read, one after the other", function()
    local fc, symmetric = nn.Linear(2, 2, { bias = false }), Symmetric()
    parametrize.register_parametrization(fc, "weight", symmetric)
    assert(fc.weight:equal(fc.weight:t()))
    assert.is_true(parametrize.is_parametrized(fc, "weight") and not parametrize.is_parametrized(fc, "bias"))
    parametrize.register_parametrization(fc, "weight", Doubled())
    assert(fc.weight:allclose(fc.parametrizations.weight.original + fc.parametrizations.weight.original:t()))
    symmetric.calls = 0
    parametrize.cached(function() return fc(lm.ones(2)) + fc(lm.ones(2)) end)
    assert.equal(1, symmetric.calls)
    assert.matches("yield across C", message(coroutine.wrap(function()
      parametrize.cached(function() coroutine.yield(fc.weight) end)
    end)))
    symmetric.calls = 0
    assert.is_true(fc.weight:equal(fc.weight))
    assert.equal(2, symmetric.calls) -- nothing is cached any more
    assert.equal(1, #fc:parameters())
    assert.matches("the child 'weight' is or contains this module, and a module cannot contain itself", message(
      parametrize.register_parametrization, fc, "weight", nn.Sequential(fc)))
    local own = nn.Linear(2, 2)
    assert.is_false(pcall(parametrize.register_parametrization, own, "weight", own))
    assert.is_true(lm.is_tensor(own(lm.ones(2)))) -- the failed call has changed nothing
    assert.matches("Symmetric: it has no right_inverse, so the parameter cannot be assigned$",
      message(function() fc.weight = lm.ones(2, 2) end))
    parametrize.remove_parametrizations(fc, "weight", { leave_parametrized = false })
    assert.is_false(parametrize.is_parametrized(fc))
  end)
  it("is assigned through right_inverse", function()
    local fc = nn.Linear(2, 2)
    local w = fc.weight:detach():clone()
    parametrize.register_parametrization(fc, "weight", Doubled())
    assert(fc.weight:allclose(w))
    fc.weight = lm.ones(2, 2)
    is({ { 0.5, 0.5 }, { 0.5, 0.5 } }, fc.parametrizations.weight.original)
    local sgd = lm.optim.SGD(fc:parameters(), { lr = 1 })
    fc.weight:sum():backward()
    sgd:step()
    is({ { -3, -3 }, { -3, -3 } }, fc.weight)
  end)
  it("keeps the parameter as its original, so that an earlier optimizer trains it", function()
    for _, apply in ipairs { utils.parametrizations.orthogonal,
      function(fc) parametrize.register_parametrization(fc, "weight", Doubled()) end } do
      local fc = nn.Linear(2, 2, { bias = false })
      local w, sgd = fc.weight, lm.optim.SGD(fc:parameters(), { lr = 1 })
      apply(fc)
      assert.is_true(rawequal(w, fc.parametrizations.weight.original) and w.requires_grad)
      local before = w:detach():clone()
      fc.weight[{ 1, 2 }]:backward()
      sgd:step()
      assert.is_false(fc.parametrizations.weight.original:equal(before))
    end
    local fc = nn.Linear(2, 2)
    local before, Wrong = fc.weight:detach():clone(), Doubled:extend("Wrong")
    function Wrong.forward() return 1 end
    assert.matches("returned 1 for", message(parametrize.register_parametrization, fc, "weight", Wrong()))
    assert.is_true(fc.weight:equal(before))
  end)
  it("keeps shapes, and stands on a parameter", function()
    local Wide = nn.Module:extend("Wide")
    function Wide.forward(_, x) return lm.cat({ x, x }) end
    local fc = nn.Linear(2, 2)
    assert.matches("the parametrization returned a tensor %[4, 2%] for a tensor %[2, 2%]",
      message(parametrize.register_parametrization, fc, "weight", Wide()))
    assert.matches("Linear has no parameter or buffer 'wait'",
      message(parametrize.register_parametrization, fc, "wait", Doubled()))
    assert.matches("has no parametrization of 'weight'", message(parametrize.remove_parametrizations, fc, "weight"))
    assert.same({ 4, 2 }, parametrize.register_parametrization(fc, "weight", Wide(), { unsafe = true }).weight.shape)
  end)
end)

describe("nn.utils.rnn", function()
  local function sequences() return { lm.tensor { 1, 2 }, lm.tensor { 3, 4, 5 }, lm.tensor { 6 } } end
  it("pads", function()
    is({ { 1, 3, 6 }, { 2, 4, 0 }, { 0, 5, 0 } }, rnn.pad_sequence(sequences()))
    local x = rnn.pad_sequence(sequences(), { batch_first = true, padding_value = -1, padding_side = "left" })
    is({ { -1, 1, 2 }, { 3, 4, 5 }, { -1, -1, 6 } }, x)
    assert.same({ 4, 2, 5 }, rnn.pad_sequence({ lm.ones(4, 5), lm.ones(2, 5) }).shape)
    is({ 1, 2 }, rnn.unpad_sequence(rnn.pad_sequence(sequences()), { 2, 3, 1 })[1])
    assert.matches("pad_sequence: expected a list of tensors, got a table$", message(rnn.pad_sequence, {}))
  end)
  it("packs and unpacks", function()
    local packed = rnn.pack_sequence(sequences(), { enforce_sorted = false })
    is({ 3, 1, 6, 4, 2, 5 }, packed.data)
    is({ 3, 2, 1 }, packed.batch_sizes)
    is({ 2, 1, 3 }, packed.sorted_indices)
    is({ 2, 1, 3 }, packed.unsorted_indices)
    local x, lengths = rnn.pad_packed_sequence(packed, { batch_first = true, padding_value = 9, total_length = 4 })
    is({ { 1, 2, 9, 9 }, { 3, 4, 5, 9 }, { 6, 9, 9, 9 } }, x)
    is({ 2, 3, 1 }, lengths)
    assert.matches("out of memory", message(rnn.pad_packed_sequence, packed, { total_length = 2 ^ 40 }))
    is({ 6 }, rnn.unpack_sequence(packed)[3])
    assert.equal("float64", packed:to("float64").data.dtype)
    assert.matches("sequence 2 is longer than the previous one", message(rnn.pack_sequence, sequences()))
    assert.matches("pack_padded_sequence: lengths must have 3 entries, one for each sequence, got 2$",
      message(rnn.pack_padded_sequence, lm.ones(3, 3), { 1, 1 }))
    local y = lm.randn({ 3, 2, 4 }, { requires_grad = true })
    local p = rnn.pack_padded_sequence(y, lm.tensor({ 3, 1 }, { dtype = "int64" }))
    assert.is_nil(p.sorted_indices)
    rnn.pad_packed_sequence(p):sum():backward()
    is({ 4, 0 }, y.grad[2]:sum(2))
  end)
end)
