-- A variational autoencoder on Fashion-MNIST (Kingma and Welling, "Auto-Encoding Variational Bayes", 2013; PyTorch's
-- examples/vae): it puts a picture into a few numbers and makes the picture from them again, and new pictures from
-- random numbers.
--
--   luajit examples/vae.lua --out pictures        writes what it drew as pictures/*.png
--   luajit examples/vae.lua --data shapes         learns rectangles and ellipses, which need no files (pictures.lua)
local lm = require "luminary"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data

local USAGE = [[
usage: luajit vae.lua [options]

  --epochs N       passes over the training set          (10)
  --batch-size N   (128)
  --hidden N       width of both networks                (400)
  --latent N       numbers that stand for a picture      (20)
  --lr X           learning rate of Adam                 (0.001)
  --out DIR        samples.png and reconstructions.png   (none are written)
  --data ROOT      folder of Fashion-MNIST, or shapes    ($LUMINARY_DATA, /usr/share/datasets)
  --seed N         (1)
  --device DEVICE  such as cpu or cuda:0                 (a GPU if there is one)
  --selftest       a few seconds; fails if it did not learn
]]

local options, _, _, files = require "luminary.cli.script_options"(USAGE, {}, {
  epochs = 1, ["batch-size"] = 64, hidden = 128, latent = 10, lr = 3e-3,
})
local device = options.device
if options.out then lm.paths.mkdir(options.out) end

-- ---- data: pixels from 0 to 1, taken as probabilities that they are white

local pictures = files.beside "pictures.lua"

local function loader_of(train)
  local set = pictures.set(train, options.data)
  if options.selftest then set = data.Subset(set, lm.arange(1, train and 10001 or 1001)) end
  local size = train and options["batch-size"] or 500
  return data.DataLoader(set, {batch_size = size, shuffle = train, seed = options.seed})
end
local train_loader, test_loader = loader_of(true), loader_of(false)

-- ---- model

local VAE = nn.Module:extend "VAE"

function VAE:init(hidden, latent)
  self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
  self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 28 * 28))
end

function VAE:forward(x)
  local mean, log_variance = unpack(self.encoder(x):chunk(2, 2))
  local z = mean + (0.5 * log_variance):exp() * lm.randn_like(mean)
  return self.decoder(z), mean, log_variance
end

-- Returns the bound on -log p(x), in nats a picture: what it takes to say the pixels, and the numbers between.
local function loss_of(x, logits, mean, log_variance)
  local pixels = F.binary_cross_entropy_with_logits(logits, x:flatten(2), {reduction = "sum"})
  local between = -0.5 * (1 + log_variance - mean ^ 2 - log_variance:exp()):sum()
  return (pixels + between) / x:size(1)
end

local function drawn(logits) return logits:sigmoid():view(-1, 1, 28, 28) end

lm.manual_seed(options.seed)
local net = VAE(options.hidden, options.latent):to(device)
local opt = optim.Adam(net:parameters(), {lr = options.lr})

local function test()
  net:eval()
  local sum, n = 0, 0
  lm.no_grad(function()
    for x in test_loader:iter() do
      x = x:to(device)
      sum, n = sum + loss_of(x, net(x)):item() * x:size(1), n + x:size(1)
    end
  end)
  net:train()
  return sum / n
end

-- ---- training

local began, reached = lm.time(), nil
for epoch = 1, options.epochs do
  local sum, steps = 0, 0
  for x in train_loader:epoch(epoch) do
    x = x:to(device)
    local loss = loss_of(x, net(x))
    opt:zero_grad()
    loss:backward()
    opt:step()
    sum, steps = sum + loss:item(), steps + 1
  end
  reached = test()
  print(("epoch %d  loss %.2f  test %.2f nats a picture  %.1f s"):format(epoch, sum / steps, reached,
    lm.time() - began))
end

if options.out then
  net:eval()
  lm.no_grad(function()
    local z = lm.randn({64, options.latent}, {device = device})
    lm.vision.save_image(drawn(net.decoder(z)), options.out .. "/samples.png")
    local x = test_loader:iter()():narrow(1, 1, 8):to(device)
    lm.vision.save_image(lm.cat {x, drawn((net(x)))}, options.out .. "/reconstructions.png")
  end)
end

-- A decoder that does not look at z is at the mean picture at best, which takes 384 nats.
if options.selftest then assert(reached < 290, "it did not learn: less than 290 nats were expected") end
