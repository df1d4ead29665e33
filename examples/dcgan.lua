-- DCGAN (Radford, Metz and Chintala, "Unsupervised Representation Learning with Deep Convolutional Generative
-- Adversarial Networks", 2016), as in PyTorch's tutorial, at 28 x 28: a generator draws pictures of noise, and a
-- discriminator learns to tell them from those of Fashion-MNIST, or from discs that the program draws.
--
--   luajit examples/dcgan.lua --epochs 5 --out clothes.png
--   luajit examples/dcgan.lua --discs 6400 --out discs.png

local lm = require "luminary"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data

local USAGE = [[
usage: luajit dcgan.lua [options]

  --epochs N        passes over the pictures                        (5)
  --batch-size N    pictures of a step                              (128)
  --noise N         numbers that a picture is drawn from            (64)
  --width N         channels of the widest pictures, half the least (32)
  --lr X            learning rate                                   (0.0002)
  --data ROOT       folder of the dataset's IDX files               ($LUMINARY_DATA, /usr/share/datasets)
  --discs N         learns from N pictures of discs instead
  --out FILE        64 pictures after each epoch, .png or .jpg
  --seed N          of everything                                   (1)
  --selftest        whether pictures of discs come much nearer to real ones
]]

local options = require "luminary.cli.script_options"(USAGE)
if options.selftest then
  options.discs, options.epochs, options["batch-size"], options.width, options.lr = 2048, 5, 64, 16, 0.001
end
lm.manual_seed(options.seed)
local device = lm.try_gpu()

-- ---- the pictures: [N, 1, 28, 28], from 0 to 1

-- Discs of any size and place.
local function discs(n)
  local function uniform(from, to) return lm.rand(n, 1, 1, 1) * (to - from) + from end
  local axis = lm.arange(28):to("float32")
  local x, y = axis:view(1, 1, 1, 28) - uniform(9, 18), axis:view(1, 1, 28, 1) - uniform(9, 18)
  return ((uniform(4, 8) - (x:square() + y:square()):sqrt()) * 2):sigmoid()
end

local set = options.discs and data.TensorDataset(discs(options.discs)) or data.FashionMNIST {root = options.data}
local loader = data.DataLoader(set, {batch_size = options["batch-size"], shuffle = true, drop_last = true})

-- ---- the two networks

local w = options.width
local generator = nn.Sequential(                        -- from [N, noise, 1, 1]
  nn.ConvTranspose2d(options.noise, 2 * w, 7, 1, 0, {bias = false}), nn.BatchNorm2d(2 * w), nn.ReLU(),  -- 7 x 7
  nn.ConvTranspose2d(2 * w, w, 4, 2, 1, {bias = false}), nn.BatchNorm2d(w), nn.ReLU(),                  -- 14 x 14
  nn.ConvTranspose2d(w, 1, 4, 2, 1), nn.Tanh())                                                         -- 28 x 28
local discriminator = nn.Sequential(
  nn.Conv2d(1, w, 4, 2, 1), nn.LeakyReLU(0.2),                                                          -- 14 x 14
  nn.Conv2d(w, 2 * w, 4, 2, 1, {bias = false}), nn.BatchNorm2d(2 * w), nn.LeakyReLU(0.2),               -- 7 x 7
  nn.Conv2d(2 * w, 1, 7), nn.Flatten(1))                -- a logit for each picture: [N]

for _, net in ipairs {generator, discriminator} do
  net:apply(function(m)
    if m:is(nn.BatchNorm2d) then
      nn.init.normal_(m.weight, 1, 0.02)
    elseif m:is(nn.Conv2d) or m:is(nn.ConvTranspose2d) then
      nn.init.normal_(m.weight, 0, 0.02)
    end
  end)
  net:to(device)
end

-- Pictures from -1 to 1.
local function draw(n) return generator(lm.randn({n, options.noise, 1, 1}, {device = device})) end

-- ---- how near drawn pictures are to real ones

-- Returns the sliced Wasserstein distance (Bonneel et al., "Sliced and Radon Wasserstein Barycenters of Measures",
-- 2015): the mean distance of sorted shadows, on 128 random directions, of as many pictures of each kind.
local function distance(a, b)
  local directions = F.normalize(lm.randn({28 * 28, 128}, {device = device}), {dim = 1})
  local function shadows(x) return (x:flatten(2):matmul(directions):sort(1)) end
  return (shadows(a) - shadows(b)):abs():mean():item()
end

local function distance_of_drawn()
  generator:eval()
  local result = lm.no_grad(function() return distance(draw(512), discs(512):to(device) * 2 - 1) end)
  generator:train()
  return result
end

-- ---- learning

local betas = {0.5, 0.999}
local opt_d = optim.Adam(discriminator:parameters(), {lr = options.lr, betas = betas})
local opt_g = optim.Adam(generator:parameters(), {lr = options.lr, betas = betas})

-- Returns the loss of pictures that are to be taken for real ones (1) or drawn ones (0).
local function loss_of(pictures, taken_for)
  local logits = discriminator(pictures)
  return F.binary_cross_entropy_with_logits(logits, lm.full_like(logits, taken_for))
end

local function step(real)
  local drawn = draw(#real)
  opt_d:zero_grad()
  local loss_d = loss_of(real, 1) + loss_of(drawn:detach(), 0)
  loss_d:backward()
  opt_d:step()

  opt_g:zero_grad()
  local loss_g = loss_of(drawn, 1)
  loss_g:backward()
  opt_g:step()
  return loss_d:detach(), loss_g:detach()
end

local untrained = options.discs and distance_of_drawn()
for epoch = 1, options.epochs do
  local sum_d, sum_g, timer = 0, 0, lm.Timer()
  timer:start()
  for pictures in loader:epoch(epoch) do
    local loss_d, loss_g = step(pictures:to(device) * 2 - 1)
    sum_d, sum_g = sum_d + loss_d, sum_g + loss_g
  end
  print(("epoch %d: loss of the discriminator %.3f, of the generator %.3f; %.1f s"):format(
    epoch, sum_d:item() / #loader, sum_g:item() / #loader, timer:stop()))
  if options.out then
    local pictures = lm.no_grad(function() return draw(64) end)
    lm.vision.save_image(pictures, options.out, {normalize = true, value_range = {-1, 1}})
  end
end

if options.discs then
  local trained, between_real = distance_of_drawn(), distance(discs(512):to(device) * 2, discs(512):to(device) * 2)
  print(("distance from real pictures: %.3f, untrained %.3f (real ones among themselves: %.3f)"):format(
    trained, untrained, between_real))
  if options.selftest then os.exit(trained < 0.3 * untrained and 0 or 1, true) end
end
