-- nn.Module: finding by name, options of walks, hooks of backward and of states, assigned states.
local lm = require "luminary"
local temp = require "spec.support.temp"
local message = require "spec.support.error_of"
local nn = lm.nn

local function names(iterator)
  local list = {}
  for name in iterator do list[#list + 1] = name end
  return table.concat(list, " ")
end

local function nested() return nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.ReLU()) end

describe("a class that nobody has used yet", function()
  local folder = temp.during(setup, teardown)
  -- Runs code in a separate process, since another spec may have used the class.
  local function of_new_process(code)
    local _, said = temp.run(folder, ("luajit -e 'local nn = require([[luminary]]).nn; %s' 2>&1"):format(code))
    return said
  end
  it("is there, with its name, and is filled at its first use", function()
    assert.equal("class Mish\tMish\n", of_new_process "print(nn.Mish, rawget(nn.Mish, [[__name]]))")
    assert.equal("nil\tfunction\tfunction\n",
      of_new_process "print(rawget(nn.Mish, [[forward]]), type(nn.Mish.forward), type(rawget(nn.Mish, [[forward]])))")
    assert.equal("Mine\ttrue\n",
      of_new_process "local Mine = nn.Mish:extend [[Mine]]; print(Mine().__name, Mine():is(nn.Mish))")
    assert.equal("Mish()\tfalse\ttrue\n",
      of_new_process "local m = nn.Mish(); print(m, m:is(nn.Tanh), m:is(nn.Mish))")
    assert.matches("Mish: takes at most 1 argument, got 2", of_new_process "nn.Mish({}, 2)")
  end)
end)

describe("a module's parts", function()
  it("are found by dotted names", function()
    local net = nested()
    assert.equal(net[1][1], net:get_submodule "0.0")
    assert.equal(net, net:get_submodule "")
    assert.equal(net[1][1].weight, net:get_parameter "0.0.weight")
    assert.equal(net[1][2].running_mean, net:get_buffer "0.1.running_mean")
    assert.matches("get_parameter: '0%.0' has no parameter 'wait'; it has weight, bias$",
      message(net.get_parameter, net, "0.0.wait"))
    assert.matches("get_submodule: '0' has no child module '7'; it has 0, 1$", message(net.get_submodule, net, "0.7.1"))
    assert.matches("get_parameter: Sequential has no child module 'x'; it has 0, 1$",
      message(net.get_parameter, net, "x.y"))
    local tanh = nn.Tanh()
    net:set_submodule("0.1", tanh)
    assert.equal(tanh, net[1][2])
  end)
  it("are walked with a prefix, here alone, at each place", function()
    local net, shared = nn.Module(), nn.Linear(2, 2, { bias = false })
    net.a = shared
    net.b, net.w = shared, nn.Parameter(lm.ones(1))
    assert.equal("w a.weight", names(net:named_parameters()))
    assert.equal("m.w m.a.weight m.b.weight", names(net:named_parameters { prefix = "m", remove_duplicate = false }))
    assert.equal("w", names(net:named_parameters { recurse = false }))
    assert.equal(1, #net:parameters { recurse = false })
    assert.equal(" a b", names(net:named_modules { remove_duplicate = false }))
    assert.equal("m m.a", names(net:named_modules { prefix = "m" }))
    assert.equal(0, #nested():buffers { recurse = false })
    assert.equal("0.1.running_mean 0.1.running_var 0.1.num_batches_tracked", names(nested():named_buffers()))
    assert.matches("parameters: unknown option 'recurs'; did you mean 'recurse'%?$",
      message(net.parameters, net, { recurs = true }))
  end)
  it("take a dtype by type, and memory by to_empty", function()
    local net = nested():type("float64")
    assert.equal("float64", net[1][1].weight.dtype)
    local w = net[1][1].weight
    assert.equal(net, net:to_empty { device = "cpu" })
    assert.equal(w, net[1][1].weight)
    assert.same({ 3, 2 }, w.shape)
    assert.matches("type: dtype is missing or nil; expected a string$", message(net.type, net))
  end)
end)

describe("hooks of backward", function()
  it("see and replace gradients", function()
    local fc, seen = nn.Linear(2, 1, { bias = false }), {}
    fc.weight = nn.Parameter(lm.tensor { { 3, 5 } })
    local handle = fc:register_full_backward_hook(function(module, inputs, outputs)
      seen[#seen + 1] = { module, inputs[1]:totable(), outputs[1]:totable(), inputs.n }
      return { inputs[1] * 10 }
    end)
    local x = lm.tensor({ { 1, 2 } }, { requires_grad = true })
    fc(x):mul(2):sum():backward()
    assert.same({ { fc, { { 6, 10 } }, { { 2 } }, 1 } }, seen)
    assert.same({ { 60, 100 } }, x.grad:totable())
    assert.same({ { 2, 4 } }, fc.weight.grad:totable())
    handle.remove()
    fc(x):sum():backward()
    assert.equal(1, #seen)
  end)
  it("run where no input wants a gradient", function()
    local fc, seen = nn.Linear(2, 1), {}
    fc:register_full_backward_hook(function(_, inputs, outputs) seen = { inputs[1] == nil, outputs[1]:totable() } end)
    fc(lm.ones(1, 2)):sum():backward()
    assert.same({ true, { { 1 } } }, seen)
    lm.no_grad(function() fc(lm.ones(1, 2)) end)
  end)
  it("before the module change what it is given", function()
    local fc = nn.Linear(2, 1, { bias = false })
    local handle = fc:register_full_backward_pre_hook(function(_, outputs) return outputs[1] * 3 end)
    fc(lm.ones(1, 2)):sum():backward()
    assert.same({ { 3, 3 } }, fc.weight.grad:totable())
    handle.remove()
    fc:zero_grad()
    fc(lm.ones(1, 2)):sum():backward()
    assert.same({ { 1, 1 } }, fc.weight.grad:totable())
    fc:register_full_backward_hook(function() return "x" end)
    assert.matches("Linear: the result of a backward hook must be a list of gradients, a tensor", message(function()
      fc(lm.ones({ 1, 2 }, { requires_grad = true })):sum():backward()
    end))
  end)
  it("are differentiated through", function()
    local fc = nn.Linear(2, 2):to("float64")
    fc:register_full_backward_hook(function(_, inputs) return inputs[1] * 2 end)
    local x = lm.randn({ 1, 2 }, { dtype = "float64", requires_grad = true })
    local g = lm.grad((fc(x) ^ 3):sum(), { x }, { create_graph = true })[1]
    assert.is_true(g.requires_grad)
    assert.is_true(lm.grad(g:sum(), { x })[1]:abs():sum():item() > 0)
  end)
end)

describe("states", function()
  it("pass through hooks", function()
    local net = nested()
    net[1]:register_state_dict_post_hook(function(_, dict, prefix) dict[prefix .. "extra"] = lm.ones(1) end)
    assert.is_true(net:state_dict()["0.extra"] ~= nil)
    net[1]:register_load_state_dict_pre_hook(function(_, dict, prefix) dict[prefix .. "extra"] = nil end)
    local dict = net:state_dict()
    net:load_state_dict(dict)
    assert.is_true(dict["0.extra"] ~= nil)
    dict["1.odd"] = lm.ones(1)
    local seen
    net:register_load_state_dict_post_hook(function(_, keys) seen, keys.unexpected_keys = keys.unexpected_keys, {} end)
    net:load_state_dict(dict)
    assert.same({ "1.odd" }, seen)
  end)
  it("are assigned", function()
    local fc = nn.Linear(2, 2)
    local w = fc.weight
    local dict = { weight = lm.ones({ 2, 2 }, { dtype = "float64" }), bias = lm.zeros({ 2 }, { dtype = "float64" }) }
    fc:load_state_dict(dict, { assign = true })
    assert.equal(w, fc.weight)
    assert.equal("float64", w.dtype)
    assert.equal(dict.weight:data_ptr(), w:data_ptr())
    assert.is_true(w.requires_grad and nn.is_parameter(w))
    fc:load_state_dict { weight = lm.zeros(2, 2), bias = lm.zeros(2) }
    assert.equal("float64", w.dtype)
  end)
  it("of wrapped and compiled modules load", function()
    local w, b = lm.randn(1, 2), lm.ones(1)
    for _, prefix in ipairs {
      "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module._orig_mod.",
      "_orig_mod._orig_mod.",
    } do
      local fc = nn.Linear(2, 1)
      fc:load_state_dict { [prefix .. "weight"] = w, [prefix .. "bias"] = b }
      assert.is_true(fc.weight:equal(w), prefix)
      local net = nn.Sequential(nn.ReLU(), nn.Linear(2, 1))
      net:load_state_dict { [prefix .. "1._orig_mod.weight"] = w, [prefix .. "1._orig_mod.bias"] = b }
      assert.is_true(net[2].weight:equal(w), prefix)
    end
    local both = { weight = w, ["_orig_mod.weight"] = w, bias = b }
    assert.matches('unexpected keys in the state_dict: "_orig_mod.weight"', message(nn.Linear(2, 1).load_state_dict,
      nn.Linear(2, 1), both), 1, true)
    local own = nn.Module:extend "Own"
    function own:init() self.module = nn.Linear(2, 1) end
    local net = own()
    net:load_state_dict { ["_orig_mod.module.weight"] = w, ["_orig_mod.module.bias"] = b }
    assert.is_true(net.module.weight:equal(w))
  end)
  it("of PyTorch before 0.4.1 have no num_batches_tracked", function()
    local net = nn.Sequential(nn.BatchNorm2d(2), nn.LazyBatchNorm1d(),
      nn.InstanceNorm1d(2, { track_running_stats = true }))
    local dict = {}
    for i = 0, 2 do
      for _, name in ipairs { "running_mean", "running_var", i < 2 and "weight" or nil, i < 2 and "bias" or nil } do
        dict[i .. "." .. name] = lm.full({ 2 }, i + 2)
      end
    end
    net:load_state_dict(dict)
    assert.same({ 4, 6, 8 }, { net[1].running_mean:sum():item(), net[2].weight:sum():item(),
      net[3].running_var:sum():item() })
    dict["0.running_mean"] = nil
    assert.matches('missing keys in the state_dict: "0.running_mean", "0.num_batches_tracked"',
      message(net.load_state_dict, net, dict), 1, true)
  end)
  it("without up to 20 leading \"module.\", since a name of many would take long", function()
    local fc, value = nn.Linear(2, 1, { bias = false }), lm.ones(1, 2)
    fc:load_state_dict { [("module."):rep(20) .. "weight"] = value }
    assert.is_true(fc.weight:equal(value))
    assert.matches("missing keys in the state_dict: \"weight\"", message(fc.load_state_dict, fc, {
      [("module."):rep(1e5) .. "weight"] = value }))
  end)

  it("give lazy layers their sizes", function()
    for name, case in pairs {
      LazyLinear = { { 5 }, nn.Linear(7, 5) }, LazyConv1d = { { 6, 3 }, nn.Conv1d(2, 6, 3) },
      LazyConv2d = { { 6, 3, { groups = 3 } }, nn.Conv2d(9, 6, 3, { groups = 3 }) },
      LazyConv3d = { { 6, 1, { bias = false } }, nn.Conv3d(2, 6, 1, { bias = false }) },
      LazyConvTranspose2d = { { 6, 3, { groups = 2 } }, nn.ConvTranspose2d(4, 6, 3, { groups = 2 }) },
      LazyBatchNorm2d = { {}, nn.BatchNorm2d(4) },
      LazyInstanceNorm1d = { { track_running_stats = false }, nn.InstanceNorm1d(4, { affine = true }) },
      LazyInstanceNorm2d = { {}, nn.InstanceNorm2d(4, { affine = true, track_running_stats = true }) },
      LazyBatchNorm1d = { { affine = false }, nn.BatchNorm1d(4, { affine = false }) },
    } do
      local made = name:find "Norm" and nn[name](case[1]) or nn[name](unpack(case[1]))
      local before, dict = made:parameters(), case[2]:state_dict()
      made:load_state_dict(dict, { dry_run = true })
      for _, p in ipairs(made:parameters()) do assert.equal(0, p:numel()) end
      made:load_state_dict(dict)
      assert.same(names(case[2]:named_parameters()), names(made:named_parameters()), name)
      for i, p in ipairs(made:parameters()) do
        assert.equal(before[i], p)
        assert.is_true(p:equal(case[2]:parameters()[i]), name)
      end
    end
    local fc = nn.LazyLinear(5)
    assert.matches("size mismatch for bias: [4] in the state_dict, [5] in the model",
      message(fc.load_state_dict, fc, { weight = lm.ones(5, 3), bias = lm.ones(4) }), 1, true)
    assert.same({ 2, 5 }, fc(lm.ones(2, 9)).shape)
  end)
  it("have one element for parameters without dims", function()
    local Scale = nn.Module:extend "Scale"
    function Scale:init() self.a = nn.Parameter(lm.zeros {}) end
    local net = Scale()
    net:load_state_dict { a = lm.tensor { 3 } }
    assert.equal(3, net.a:item())
    assert.matches("size mismatch for a: [2] in the state_dict, [] in the model",
      message(net.load_state_dict, net, { a = lm.ones(2) }), 1, true)
  end)
end)

-- An optimizer's state, saved by number, goes by this order.
describe("the order of parameters is PyTorch's", function()
  local function parameters(m) return names(m:named_parameters()) end
  local function attended(name)
    return ("%s.in_proj_weight %s.in_proj_bias %s.out_proj.weight %s.out_proj.bias"):gsub("%%s", name)
  end
  local function normed(n)
    local list = {}
    for i = 1, n do list[i] = ("norm%d.weight norm%d.bias"):format(i, i) end
    return table.concat(list, " ")
  end
  local feed_forward = "linear1.weight linear1.bias linear2.weight linear2.bias"
  -- Returns the names under prefix.
  local function below(prefix, list) return (list:gsub("%S+", prefix .. ".%0")) end
  local encoded = attended("self_attn") .. " " .. feed_forward .. " " .. normed(2)
  local decoded = attended("self_attn") .. " " .. attended("multihead_attn") .. " " .. feed_forward .. " " .. normed(3)
  local encoder = below("layers.0", encoded) .. " norm.weight norm.bias"
  local decoder = below("layers.0", decoded) .. " norm.weight norm.bias"

  it("of the cells of recurrent layers", function()
    for _, cell in ipairs {"RNNCell", "GRUCell", "LSTMCell"} do
      assert.equal("weight_ih weight_hh bias_ih bias_hh", parameters(nn[cell](2, 3)))
    end
    assert.equal("weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_hr_l0",
      parameters(nn.LSTM(2, 3, {proj_size = 2})))
  end)

  it("of attention and transformers", function()
    assert.equal("in_proj_weight in_proj_bias bias_k bias_v out_proj.weight out_proj.bias",
      parameters(nn.MultiheadAttention(4, 2, {add_bias_kv = true})))
    assert.equal("q_proj_weight k_proj_weight v_proj_weight in_proj_bias bias_k bias_v out_proj.weight out_proj.bias",
      parameters(nn.MultiheadAttention(4, 2, {add_bias_kv = true, kdim = 3, vdim = 2})))
    local one = nn.TransformerEncoderLayer(4, 2, {dim_feedforward = 8})
    assert.equal(encoder, parameters(nn.TransformerEncoder(one, 1, nn.LayerNorm(4))))
    one = nn.TransformerDecoderLayer(4, 2, {dim_feedforward = 8})
    assert.equal(decoder, parameters(nn.TransformerDecoder(one, 1, nn.LayerNorm(4))))
    assert.equal(below("encoder", encoder) .. " " .. below("decoder", decoder), parameters(nn.Transformer {
      d_model = 4, nhead = 2, num_encoder_layers = 1, num_decoder_layers = 1, dim_feedforward = 8,
    }))
  end)

  it("of models", function()
    local net = lm.models.unet2d {
      block_out_channels = {4, 8}, norm_num_groups = 2, layers_per_block = 1, attention_head_dim = 2,
      down_block_types = {"DownBlock2D", "DownBlock2D"}, up_block_types = {"UpBlock2D", "UpBlock2D"},
    }
    assert.equal("conv_in time_embedding down_blocks up_blocks mid_block conv_norm_out conv_out",
      names(net:named_children()))
  end)
end)
