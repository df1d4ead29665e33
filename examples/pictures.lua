-- The pictures that vae.lua and ddpm.lua learn: Fashion-MNIST, or shapes drawn here, which need no files.
local lm = require "luminary"
local pictures = {}

-- Rectangles and ellipses of random place, size and gray on black: [count, 1, 28, 28] from 0 to 1.
local function shapes(count, generator)
  local function between(low, high) return low + (high - low) * lm.rand({count, 1, 1, 1}, {generator = generator}) end
  local x = (lm.arange(28):view(1, 1, 1, 28) - between(9, 19)) / between(4, 9)
  local y = (lm.arange(28):view(1, 1, 28, 1) - between(9, 19)) / between(4, 9)
  local from_center = lm.where(between(0, 1):lt(0.5), (x ^ 2 + y ^ 2):sqrt(), lm.maximum(x:abs(), y:abs()))
  return ((1 - from_center) * 6):clamp(0, 1) * between(0.4, 1)
end

--- pictures.set(train [, root]): Loads a set whose first value is a picture, [1, 28, 28] from 0 to 1. root: the folder
--- of Fashion-MNIST's files, or "shapes"; without it, shapes where Fashion-MNIST is not installed.
function pictures.set(train, root)
  if root ~= "shapes" then
    local found, set = pcall(lm.data.FashionMNIST, {root = root, train = train})
    if found then return set end
    if root then error(set, 0) end
    if train then print(("%s:\nshapes are drawn instead"):format(set:match "[^\n]*")) end
  end
  return lm.data.TensorDataset(shapes(train and 10000 or 1000, lm.Generator():manual_seed(train and 1 or 2)))
end

return pictures
