--- lm.models: networks for images that people know, with torchvision's names of parameters, so that a state_dict of
--- theirs fits: net:load_state_dict(lm.load("resnet50.pth")). Nothing is downloaded.
local options = require "luminary.base.options"

local models = {}
for _, family in ipairs {"mnist_networks", "alexnet_vgg", "resnet", "mobilenet"} do
  for name, make in pairs(require("luminary.models." .. family)) do models[name] = make end
end

return options.strict("models", models)
