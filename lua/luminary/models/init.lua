--- lm.models: networks that people know, for images with torchvision's names of parameters, for language with Hugging
--- Face's, so that weights of theirs fit: lm.models.resnet50 {weights = "resnet50.pth"}, lm.models.gpt2 {weights =
--- "folder"}. Nothing is downloaded.
---
--- Every network takes weights, a file or folder that lm.load reads, or a table of tensors by name; with it rename,
--- strict and ignore_mismatched_sizes, as load_state_dict has them, whose report is a second result; device and dtype.
--- A config.json beside weights of Hugging Face's says what is not told; such a net is in evaluation mode, until
--- net:train(). lm.models.generate lets any net of language write.
local options = require "luminary.base.options"

local models = {}
for _, family in ipairs {"mnist_networks", "alexnet_vgg", "resnet", "mobilenet"} do
  for name, make in pairs(require("luminary.models." .. family)) do models[name] = make end
end

local later = {
  gpt2 = {"models.gpt2", "gpt2"}, llama = {"models.llama", "llama"}, bert = {"models.bert", "bert"},
  unet2d = {"models.unet2d", "unet2d"}, generate = {"models.generate"},
  DDPMScheduler = {"models.noise_schedulers", "DDPMScheduler"},
  DDIMScheduler = {"models.noise_schedulers", "DDIMScheduler"},
}
for _, name in ipairs {"vit", "vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"} do
  later[name] = {"models.vit", name}
end

return options.strict("models", models, later)
