--- lm.models: Definitions of well-known neural networks for images, text and diffusion.
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

-- What makes a network, as a table that is called: asked for what other libraries' classes have, such as
-- from_pretrained, it says what there is instead. load gives the function.
local function maker(name, load)
  return setmetatable({__name = name}, {
    instance = {}, called = load, __tostring = function() return "function: lm.models." .. name end,
    __call = function(_, ...) return options.exact(name, load())(...) end,
    __index = function(_, key)
      if type(key) ~= "string" or key:sub(1, 2) ~= "__" then options.no_name("models." .. name, key, {}) end
    end,
  })
end

local models = {}
for _, family in ipairs {"mnist_networks", "alexnet_vgg", "resnet", "mobilenet"} do
  for name, make in pairs(require("luminary.models." .. family)) do
    models[name] = maker(name, function() return make end)
  end
end
for file, names in pairs {
  gpt2 = "gpt2", llama = "llama", bert = "bert", unet2d = "unet2d",
  vit = "vit vit_b_16 vit_b_32 vit_l_16 vit_l_32 vit_h_14",
} do
  for name in names:gmatch "%S+" do
    models[name] = maker(name, function() return load_module("luminary.models." .. file)[name] end)
  end
end

return options.strict("models", models, {
  generate = {"models.generate"}, DDPMScheduler = {"models.noise_schedulers", "DDPMScheduler"},
  DDIMScheduler = {"models.noise_schedulers", "DDIMScheduler"},
})
