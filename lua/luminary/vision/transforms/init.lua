--- vision.transforms: Transforms images for training and evaluation, under torchvision's names (transforms.v2):
---
---   local T = lm.vision.transforms
---   local train = T.Compose {
---     T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(),
---     T.Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}),
---   }
---   local x = train(img)
---
--- Images are [C, H, W], or batches and videos [..., C, H, W], of uint8 (0 to 255) or floating (0 to 1) on the CPU;
--- those that move pixels also take masks [..., C, H, W] and [H, W] of any dtype. Random numbers come from the CPU's
--- generator (lm.manual_seed).
local options = require "luminary.base.options"

local transforms = {functional = require "luminary.vision.transforms.functional"}
-- These files add their classes to the list.
for _, family in ipairs {"geometry_classes", "color_classes", "rand_augment", "mixup_cutmix"} do
  require("luminary.vision.transforms." .. family)
end
for name, class in pairs(require("luminary.vision.transforms.transform_and_compose").list) do
  transforms[name] = class
end

return options.strict("vision.transforms", transforms)
