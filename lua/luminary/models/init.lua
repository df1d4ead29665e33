--- lm.models: Provides definitions of well-known neural networks for images, text and diffusion.
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

-- Returns a callable table that makes a network; load() returns the function. Reading a field that other libraries'
-- classes have, such as from_pretrained, is an error that names the replacement.
local function lazy_model_maker(name, load)
  return setmetatable({__name = name}, {
    instance = {}, called = load, __tostring = function() return "function: lm.models." .. name end,
    __call = function(_, ...) return options.exact(name, load())(...) end,
    __index = function(_, key)
      if type(key) ~= "string" or key:sub(1, 2) ~= "__" then options.no_name("models." .. name, key, {}) end
    end,
  })
end

local models = {}
for file, names in pairs {
  gpt2 = "gpt2", llama = "llama mistral qwen2 qwen3 qwen3_moe olmoe smollm3 gemma gemma2 gemma3 phi3",
  bert = "bert roberta distilbert",
  unet2d = "unet2d", mnist_networks = "mlp lenet",
  vit = "vit deit dinov2 vit_b_16 vit_b_32 vit_l_16 vit_l_32 vit_h_14", inception = "googlenet inception_v3",
  image_networks = [[alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
    densenet169 densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4
    efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s mnasnet0_5
    mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf
    regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf
    regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101
    resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5
    shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t
    swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vgg_f wide_resnet101_2
    wide_resnet50_2]],
} do
  for name in names:gmatch "%S+" do
    models[name] = lazy_model_maker(name, function() return load_module("luminary.models." .. file)[name] end)
  end
end

return options.strict("models", models, {
  generate = {"models.generate"}, DDPMScheduler = {"models.noise_schedulers", "DDPMScheduler"},
  DDIMScheduler = {"models.noise_schedulers", "DDIMScheduler"},
})
