-- One network, 1 to N devices: how many images a second training takes in, as a table and a chart. Data is made up and
-- lies on the devices' host beforehand, so that only training counts.
--
--   luajit scripts/rosetta.lua                                     1 to all GPUs
--   luajit scripts/rosetta.lua --devices cpu:0,cpu:1 --model lenet
--   luajit scripts/rosetta.lua --plot speed.svg

local lm = require "luminary"

local USAGE = [[
usage: luajit rosetta.lua [options]

  --devices DEVICES 1 to all of them are used in turn        (all CUDA devices, else cpu)
  --model NAME      mlp, lenet or resnet18                   (resnet18)
  --epochs N        measurements, the best of which counts   (3)
  --max-steps N     steps a measurement                      (20)
  --batch-size N    samples a step on each device            (256)
  --lr X            learning rate                            (0.01)
  --dtype NAME      float32, float64, bfloat16 or float16    (float32)
  --plot FILE       chart as FILE.png or FILE.svg; on the terminal without it
]]

local options, _, refuse, files = require "luminary.cli.script_options"(USAGE)
local models = files.models()
local format = options.plot and options.plot:match("%.(%w+)$")
if options.plot and format ~= "png" and format ~= "svg" then refuse("--plot: a name that ends in .png or .svg") end

-- ---- measuring

-- Images a second on the first n devices.
local function speed(n)
  local devices = { unpack(options.devices, 1, n) }
  local images = n * options["batch-size"]
  lm.manual_seed(1)
  local net = models[options.model]():to(devices[1], options.dtype)
  net = lm.nn.DataParallel(net, { device_ids = devices, criterion = lm.nn.CrossEntropyLoss() })
  local trainer = lm.optim.SGD(net:parameters(), { lr = options.lr })
  local x, y = lm.rand({ images, 1, 28, 28 }, { dtype = options.dtype }), lm.randint(1, 11, { images })

  local function train(steps)
    for _ = 1, steps do
      trainer:zero_grad()
      net(x, y):backward()
      trainer:step()
    end
    for _, device in ipairs(devices) do lm.synchronize(device) end
  end

  local best = 0
  train(math.min(3, options["max-steps"])) -- caches fill, kernels load
  for _ = 1, options.epochs do
    local timer = lm.Timer()
    train(options["max-steps"])
    best = math.max(best, images * options["max-steps"] / timer:stop())
  end
  return best
end

local rows = {}
print(("%s, %s, %d images a device and step"):format(options.model, options.dtype, options["batch-size"]))
print("devices      images/s   speed-up")
for n = 1, #options.devices do
  local s = speed(n)
  rows[n] = { n = n, speed = s, ratio = s / (rows[1] and rows[1].speed or s) }
  print(("%7d  %12.1f  %9.2f"):format(n, s, rows[n].ratio))
end

-- ---- the chart

if options.plot or #rows > 1 then
  local measured, linear = {}, {}
  for n, row in ipairs(rows) do measured[n], linear[n] = row.speed, n * rows[1].speed end
  local drawn, problem = pcall(lm.watch.plot.curves, {measured, linear}, {
    names = {"measured", "linear"}, title = options.model, xlabel = "devices", ylabel = "images/s", path = options.plot,
  })
  if not drawn then
    io.stderr:write("rosetta.lua: ", problem, "\n")
  elseif options.plot then
    print("chart in " .. options.plot)
  end
end
