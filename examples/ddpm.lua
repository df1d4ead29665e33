-- A diffusion model on Fashion-MNIST (Ho, Jain and Abbeel, "Denoising Diffusion Probabilistic Models", 2020): a small
-- U-Net learns which noise was added to a picture, and then makes pictures out of nothing but noise by taking it away
-- bit by bit.
--
--   luajit examples/ddpm.lua --out pictures       writes pictures/samples.png
--   luajit examples/ddpm.lua --data shapes        learns rectangles and ellipses, which need no files (pictures.lua)
local lm = require "luminary"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data

local USAGE = [[
usage: luajit ddpm.lua [options]

  --steps N        steps of the optimizer                    (1500)
  --batch-size N   (64)
  --channels N     of the U-Net at its top, a multiple of 8  (32)
  --levels N       of noise                                  (300)
  --lr X           learning rate of Adam                     (0.001)
  --ema X          how slowly the weights' average moves     (0.995)
  --out DIR        samples.png                               (none is written)
  --data ROOT      folder of Fashion-MNIST, or shapes        ($LUMINARY_DATA, /usr/share/datasets)
  --seed N         (1)
  --device DEVICE  such as cpu or cuda:0                     (a GPU if there is one)
  --selftest       a few seconds; fails if it did not learn
]]

local options, _, refuse, files = require "luminary.cli.script_options"(USAGE, {}, {
  steps = 80, ["batch-size"] = 32, channels = 8, lr = 4e-3, ema = 0.9,
})
local device, levels = options.device, options.levels
local pictures = files.beside "pictures.lua"
if options.channels % 8 ~= 0 then refuse("--channels must be a multiple of 8, got %d", options.channels) end
if options.out then lm.paths.mkdir(options.out) end

-- ---- how much noise: x_t = sqrt(kept) x + sqrt(1 - kept) noise, at levels 1 to `levels`

local betas = lm.linspace(0.1 / levels, 20 / levels, levels, {device = device}) -- the paper's, for any number of levels
local alphas = 1 - betas
local kept = alphas:cumprod(1)

local function of(list, t) return list:index_select(1, t):view(-1, 1, 1, 1) end

local function noised(x, t, noise) return of(kept, t):sqrt() * x + (1 - of(kept, t)):sqrt() * noise end

-- ---- model: down to a quarter of the size and up again; each block is given the level

local Block = nn.Module:extend "Block"

function Block:init(inputs, outputs, width)
  self.first = nn.Sequential(nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, {padding = 1}))
  self.level = nn.Linear(width, outputs)
  self.second = nn.Sequential(nn.GroupNorm(8, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, {padding = 1}))
  self.short = inputs == outputs and nn.Identity() or nn.Conv2d(inputs, outputs, 1)
end

function Block:forward(x, level)
  local y = self.first(x) + self.level(level):unsqueeze(-1):unsqueeze(-1)
  return self.second(y) + self.short(x)
end

local UNet = nn.Module:extend "UNet"

function UNet:init(c)
  local width = 4 * c
  self.width = c
  self.embed = nn.Sequential(nn.Linear(c, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
  self.stem = nn.Conv2d(1, c, 3, {padding = 1})
  self.down1 = Block(c, c, width)
  self.down2 = Block(c, 2 * c, width)
  self.middle1 = Block(2 * c, 2 * c, width)
  self.middle2 = Block(2 * c, 2 * c, width)
  self.up2 = Block(4 * c, c, width)
  self.up1 = Block(2 * c, c, width)
  self.head = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 1, 3, {padding = 1}))
end

-- Levels [N] as waves of many lengths, [N, width].
local function waves(t, width)
  local rates = (lm.arange(width / 2, {device = t.device}) * (-math.log(10000) * 2 / width)):exp()
  local angles = t:float():unsqueeze(2) * rates
  return lm.cat({angles:sin(), angles:cos()}, 2)
end

function UNet:forward(x, t)
  local level = self.embed(waves(t * (1000 / levels), self.width))
  local top = self.down1(self.stem(x), level)                                            -- 28 x 28
  local half = self.down2(F.avg_pool2d(top, 2), level)                                   -- 14 x 14
  local low = self.middle2(self.middle1(F.avg_pool2d(half, 2), level), level)            -- 7 x 7
  local y = self.up2(lm.cat({F.interpolate(low, {scale_factor = 2}), half}, 2), level)
  y = self.up1(lm.cat({F.interpolate(y, {scale_factor = 2}), top}, 2), level)
  return self.head(y)
end

lm.manual_seed(options.seed)
local net = UNet(options.channels):to(device)
local opt = optim.Adam(net:parameters(), {lr = options.lr})
local average = optim.AveragedModel(net, {decay = options.ema})

-- ---- training

local function loss_of(model, images, generator)
  local x = images:to(device) * 2 - 1
  local t = lm.randint(1, levels + 1, {x:size(1)}, {generator = generator}):to(device)
  local noise = lm.randn(x.shape, {generator = generator}):to(device)
  return F.mse_loss(model(noised(x, t, noise), t), noise)
end

local function test()
  local set = pictures.set(false, options.data)
  local generator, sum, batches = lm.Generator():manual_seed(1), 0, options.selftest and 2 or 10
  local images = data.DataLoader(set, {batch_size = 200}):iter()
  average:eval()
  lm.no_grad(function()
    for _ = 1, batches do sum = sum + loss_of(average, images(), generator):item() end
  end)
  return sum / batches
end

local loader = data.DataLoader(pictures.set(true, options.data), {
  batch_size = options["batch-size"], shuffle = true, drop_last = true, seed = options.seed,
})
local began, epoch, batches = lm.time(), 0, nil
for step = 1, options.steps do
  local images = batches and batches()
  if not images then
    epoch = epoch + 1
    batches = loader:epoch(epoch)
    images = batches()
  end
  local loss = loss_of(net, images)
  opt:zero_grad()
  loss:backward()
  nn.utils.clip_grad_norm_(net:parameters(), 1)
  opt:step()
  average:update(net)
  if step % 100 == 0 then print(("step %d  loss %.4f  %.1f s"):format(step, loss:item(), lm.time() - began)) end
end
local reached = test()
print(("squared error of the noise, test: %.4f"):format(reached))

-- ---- pictures: from noise, level by level down

local function sample(n)
  local x = lm.randn({n, 1, 28, 28}, {device = device})
  for level = levels, 1, -1 do
    local t = lm.full({n}, level, {dtype = "int64", device = device})
    local rate = of(betas, t) / (1 - of(kept, t)):sqrt()
    x = (x - rate * average(x, t)) / of(alphas, t):sqrt()
    if level > 1 then x = x + of(betas, t):sqrt() * lm.randn_like(x) end
  end
  return (x + 1) / 2
end

if options.out then lm.vision.save_image(lm.no_grad(sample, 64):clamp(0, 1), options.out .. "/samples.png") end

-- Half of what a model that says x_t itself has (0.31).
if options.selftest then assert(reached < 0.16, "it did not learn: less than 0.16 was expected") end
