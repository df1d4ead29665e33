--- lm.models: networks that people know, for images with torchvision's names of parameters, for language with Hugging
--- Face's, so that a state_dict of theirs fits: net:load_state_dict(lm.load("resnet50.pth")). Nothing is
--- downloaded.
local options = require "luminary.base.options"

local models = {}
for _, family in ipairs {"mnist_networks", "alexnet_vgg", "resnet", "mobilenet"} do
  for name, make in pairs(require("luminary.models." .. family)) do models[name] = make end
end

return options.strict("models", models, {
  gpt2 = {"models.gpt2", "gpt2"}, llama = {"models.llama", "llama"},
})
