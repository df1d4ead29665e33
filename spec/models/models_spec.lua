-- lm.models: torchvision's parameters by number and name, and its logits of one image; those of all networks, not of
-- one or two of each family, with LM_TEST_LONG=1.
local lm = require "luminary"
local golden = require "spec.golden.models"
local meta = require "luminary.nn.meta"
local models = lm.models

local long = os.getenv "LM_TEST_LONG" ~= nil

-- Computes the formula of scripts/dev/golden/gen_models.py: sin(0.7 n + phase), by rows and columns, since a sine takes
-- long: sin(a + b) = sin a cos b + cos a sin b.
local function wave(shape, phase)
  local columns = 1
  for i = 2, #shape do columns = columns * shape[i] end
  local a = lm.arange(shape[1], {dtype = "float64"}) * (0.7 * columns) + phase
  local b = lm.arange(columns, {dtype = "float64"}) * 0.7
  return lm.stack({a:sin(), a:cos()}, 2):mm(lm.stack {b:cos(), b:sin()}):view(shape)
end

local sorted_names = require("luminary.base.lists").sorted_keys

local function fill(net)
  local state = net:state_dict()
  lm.no_grad(function()
    for i, name in ipairs(sorted_names(state)) do
      local t = state[name]
      local kept = name:find "num_batches_tracked$" or name:find "relative_position_index$"
        or name:find "relative_coords_table$"
      if not kept and t.ndim > 1 and not name:find "logit_scale$" then
        t:copy_(wave(t.shape, i - 1) * math.sqrt(4 / (t:numel() / t.shape[1])))
      elseif not kept then
        local middle = name:find "running_var$" and 1 or name:find "logit_scale$" and 2
          or name:find "weight$" and 0.6 or 0
        t:copy_(wave(t.shape, i - 1) * 0.1 + middle)
      end
    end
  end)
end

local function hash_of(text)
  local value = 0
  for i = 1, #text do value = (value * 31 + text:byte(i)) % 2 ^ 32 end
  return value
end

local function parameters_of(net)
  local n = 0
  for _, p in ipairs(net:parameters()) do n = n + p:numel() end
  return n
end

-- One of each family is compared in every run.
local small = {}
for name in ([[resnet18 mobilenet_v2 mobilenet_v3_small efficientnet_b0 efficientnet_v2_s mnasnet0_5 regnet_x_400mf
  regnet_y_400mf squeezenet1_0 squeezenet1_1 shufflenet_v2_x0_5 densenet121 convnext_tiny swin_t swin_v2_t googlenet
  inception_v3 resnext50_32x4d]]):gmatch "%S+" do
  small[name] = true
end

describe("models.", function()
  for name, row in pairs(golden) do
    local parameters, names, largest, size, first = unpack(row)
    -- Without batch norm float32 itself is off by that much: of float64, PyTorch's VGG-16 by 2.8e-4 and its VGG-19 by
    -- 1.5e-3, and ours by 2.4e-3 to 4.6e-3, by the algorithm of the CPU's level.
    local within = name == "vgg19" and 6e-3 or name:find "^vgg%d+$" and 1e-3 or name:find "^vgg" and 2e-4 or 1e-4
    local quick = name == "resnet18"
    local tags = quick and "" or small[name] and " #unsanitized" or " #full #unsanitized"
    it(name .. " is torchvision's" .. tags, function()
      local runs = #first > 0 and (long or small[name])
      local net = runs and models[name]() or meta.of(models[name])
      assert.equal(parameters, parameters_of(net))
      assert.equal(names, hash_of(table.concat(sorted_names(net:state_dict()), " ")))
      if not runs then return end
      fill(net)
      net:eval()
      local logits = lm.no_grad(function()
        return net(wave({1, 3, size, size}, 0):float())
      end)[1]
      for i, v in ipairs(first) do assert.near(v, logits[i], within * largest) end
    end)
  end

  it("have scores of auxiliary classifiers in training, the last one first", function()
    local net = models.googlenet {num_classes = 3}
    local y, second, first = net(lm.randn(2, 3, 64, 64))
    assert.same({{2, 3}, {2, 3}, {2, 3}}, {y.shape, second.shape, first.shape})
    assert.is_nil((select(2, net:eval()(lm.randn(2, 3, 64, 64)))))
    assert.is_nil(models.googlenet({num_classes = 3, aux_logits = false}):state_dict()["aux1.fc1.weight"])
    local other = models.googlenet {num_classes = 3, transform_input = true, weights = net:state_dict()}
    local x = lm.randn(1, 3, 64, 64)
    local scale, mean = lm.tensor({0.229, 0.224, 0.225}):view(3, 1, 1), lm.tensor({0.485, 0.456, 0.406}):view(3, 1, 1)
    assert.is_true(net((x * scale + mean - 0.5) / 0.5):allclose(other:eval()(x), {rtol = 1e-4, atol = 1e-5}))
  end)

  it("drop whole residuals of samples, and keep their mean", function()
    local net = models.convnext_tiny {num_classes = 2, stochastic_depth_prob = 1, layer_scale = 1}
    local block = net.features[-1][-1] -- the last block's probability is the option's
    local x = lm.randn(4, 768, 2, 2)
    assert.is_true(block(x):equal(x))
    assert.is_false(block:eval()(x):equal(x))
    net = models.efficientnet_b0 {num_classes = 2, stochastic_depth_prob = 0.9}
    block = net.features[7][4]
    block.rate = 0.5
    local rows = lm.ones(64, 192, 1, 1)
    for _, m in ipairs(block:modules()) do
      if m:is(lm.nn.BatchNorm2d) then m:eval() end
    end
    local y = block(rows) - 1
    local eval = block:eval()(rows) - 1
    local dropped = 0
    for i = 1, 64 do
      local zero = y[i]:abs():max():item() == 0
      dropped = dropped + (zero and 1 or 0)
      if not zero then assert.is_true(y[i]:allclose(eval[i] * 2, {rtol = 1e-3, atol = 1e-5})) end
    end
    assert.is_true(dropped > 8 and dropped < 56)
  end)

  it("take older names of torchvision's files", function()
    local net = models.densenet121 {num_classes = 2}
    local old = {}
    for key, t in pairs(net:state_dict()) do
      old[key:gsub("(denselayer%d+%.%l+)([12]%.)", "%1.%2")] = t
    end
    assert.is_true(old["features.denseblock1.denselayer1.norm.1.weight"] ~= nil)
    assert.equal("<all keys matched>", tostring((select(2, models.densenet121 {num_classes = 2, weights = old}))))
    local config = {image_size = 8, patch_size = 4, num_layers = 1, num_heads = 1, hidden_dim = 4, mlp_dim = 6}
    local vit = models.vit(config)
    config.weights = {}
    for key, t in pairs(vit:state_dict()) do
      config.weights[key:gsub("mlp%.0%.", "mlp.linear_1."):gsub("mlp%.3%.", "mlp.linear_2.")] = t
    end
    assert.is_true(config.weights["encoder.layers.encoder_layer_0.mlp.linear_2.bias"] ~= nil)
    assert.equal("<all keys matched>", tostring((select(2, models.vit(config)))))
  end)

  it("resnets train alike where hooks look between their norms and ReLUs #unsanitized", function()
    for _, name in ipairs { "resnet18", "resnet50" } do
      local net = models[name] { num_classes = 3 }:double()
      net:apply(function(m)
        if m:is(lm.nn.BatchNorm2d) then
          m.weight:detach():uniform_(0.5, 1.5)
          m.bias:detach():normal_()
        end
      end)
      local twin, seen = net:clone(), 0
      twin:apply(function(m)
        if m:is(lm.nn.BatchNorm2d) then m:register_forward_hook(function() seen = seen + 1 end) end
      end)
      local x = lm.randn({ 2, 3, 40, 40 }, { dtype = "float64" })
      local y, want, target = net(x), twin(x), lm.tensor({ 1, 3 }, { dtype = "int64" })
      assert.equal(name == "resnet18" and 20 or 53, seen)
      lm.nn.functional.cross_entropy(y, target):backward()
      lm.nn.functional.cross_entropy(want, target):backward()
      assert.near(0, (y - want):abs():max():item(), 1e-9)
      local wanted = {}
      for key, p in twin:named_parameters() do wanted[key] = p.grad end
      for key, p in net:named_parameters() do
        local largest = wanted[key]:abs():max():item()
        assert.near(0, (p.grad - wanted[key]):abs():max():item(), 1e-7 * largest + 1e-12, key)
      end
    end
  end)

  it("all take num_classes, and nothing else that they do not know", function()
    assert.equal(7, models.resnet18 { num_classes = 7 }.fc.weight.shape[1])
    assert.equal(5, models.mobilenet_v2 { num_classes = 5 }.classifier[2].bias.shape[1])
    assert.equal(3, models.lenet { num_classes = 3 }(lm.randn(2, 1, 28, 28)).shape[2])
    assert.equal(10, models.mlp()(lm.randn(2, 1, 28, 28)).shape[2])
    assert.error_matches(function() models.resnet18 { classes = 7 } end,
      "resnet18: unknown option 'classes'; options are assign, device, dtype, ignore_mismatched_sizes, num_classes,")
    assert.error_matches(function() models.alexnet(10) end,
      "alexnet: options must be in one table at the end: {num_classes = 10}")
    assert.error_matches(function() return models.resnet19 end, "models has no 'resnet19'; did you mean 'resnet1")
  end)

  it("vgg_f has Chatfield's sizes", function()
    local net = models.vgg_f { num_classes = 10 }
    local shapes = {}
    for _, name in ipairs { "features.0", "features.4", "features.8", "classifier.0", "classifier.3" } do
      shapes[#shapes + 1] = tostring(net:state_dict()[name .. ".weight"].shape)
    end
    assert.same({ "{64, 3, 11, 11}", "{256, 64, 5, 5}", "{256, 256, 3, 3}", "{4096, 9216}", "{4096, 4096}" }, shapes)
    assert.same({ 1, 256, 6, 6 }, net.features(lm.randn(1, 3, 224, 224)).shape)
  end)
end)

describe("local_response_norm", function()
  it("divides by what is around", function()
    local x = lm.randn({ 2, 7, 3, 2 }, { dtype = "float64" })
    local y = lm.nn.functional.local_response_norm(x, 4, { alpha = 0.5, beta = 0.8, k = 2 })
    for c = 1, 7 do
      local sum = 0
      for other = c - 2, c + 1 do -- 2 before, 1 after, as PyTorch has an even size
        if other >= 1 and other <= 7 then sum = sum + x[{ 1, other, 2, 1 }] ^ 2 end
      end
      assert.near(x[{ 1, c, 2, 1 }] / (2 + 0.5 * sum / 4) ^ 0.8, y[{ 1, c, 2, 1 }], 1e-12)
    end
    assert.equal("LocalResponseNorm(5, alpha=0.0001, beta=0.75, k=1.0)", tostring(lm.nn.LocalResponseNorm(5)))
    assert.same({ 2, 0, 3 }, lm.nn.functional.local_response_norm(lm.ones(2, 0, 3), 2).shape)
    assert.error_matches(function() lm.nn.functional.local_response_norm(lm.ones(3), 2) end, "expected x %[N, C,")
  end)

  it("takes any dims and strides", function()
    local norm = lm.nn.LocalResponseNorm(3)
    local of_4 = norm(lm.arange(1, 13, {dtype = "float32"}):view(2, 3, 2, 1)) -- the spec above has its values
    assert.is_true(lm.allclose(of_4, norm(lm.arange(1, 13, {dtype = "float32"}):view(2, 3, 2))
      :view(2, 3, 2, 1)))
    local of_3 = lm.arange(1, 13, {dtype = "float32"}):view(2, 3, 2)
    assert.is_true(lm.allclose(of_4:select(3, 1):squeeze(3), norm(of_3:select(3, 1))))
    for _, shape in ipairs { { 2, 3 }, { 2, 3, 4 }, { 2, 5, 3, 2 }, { 2, 5, 3, 2, 2 }, { 2, 5, 1, 2, 1, 2 } } do
      local x = lm.randn(shape)
      for d = 2, #shape do
        local turned = x:transpose(1, d):contiguous():transpose(1, d)
        assert.is_true(lm.allclose(norm(x), norm(turned)))
      end
    end
  end)

  it("has gradients", function()
    local x = lm.randn({ 2, 3 }, { dtype = "float64" }):requires_grad_()
    assert.is_true(lm.autograd.gradcheck(lm.nn.LocalResponseNorm(2), { x }))
  end)
end)
