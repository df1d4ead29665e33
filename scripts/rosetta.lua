-- One network, 1 to N devices: how many images a second training takes in, as a table and a chart. Data is made up and
-- lies on the devices' host beforehand, so that only training counts.
--
--   luajit scripts/rosetta.lua                                     1 to all GPUs
--   luajit scripts/rosetta.lua --devices cpu:0,cpu:1 --model lenet
--   luajit scripts/rosetta.lua --plot speed.svg                    with gnuplot

local lm = require "luminary"

local USAGE = [[
usage: luajit rosetta.lua [options]

  --devices NAMES   1 to all of them are used in turn        (all CUDA devices, else cpu)
  --model NAME      mlp, lenet or resnet18                   (resnet18)
  --epochs N        measurements, the best of which counts   (3)
  --max-steps N     steps a measurement                      (20)
  --batch-size N    samples a step on each device            (256)
  --lr X            learning rate                            (0.01)
  --dtype NAME      float32, float64, bfloat16 or float16    (float32)
  --plot FILE       chart as FILE.png or FILE.svg, by gnuplot; without it the chart is text
]]

local options, _, refuse, files = require "luminary.cli.script_options"(USAGE, {
  devices = {"devices"}, model = {"text", "resnet18"}, epochs = {"count", 3}, ["max-steps"] = {"count", 20},
  ["batch-size"] = {"count", 256}, lr = {"number", 0.01}, dtype = {"dtype", "float32"}, plot = {"text"},
})
local models = files.beside "models.lua"
local format = options.plot and options.plot:match("%.(%w+)$")
if type(models[options.model]) ~= "function" then refuse("--model: no model '%s'", options.model) end
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

local function text_chart()
  local max_speed = 0
  for _, row in ipairs(rows) do max_speed = math.max(max_speed, row.speed) end
  print("\nimages/s")
  for _, row in ipairs(rows) do
    local width = math.max(1, math.floor(row.speed / max_speed * 60 + 0.5))
    print(("%3d %s %.0f"):format(row.n, ("#"):rep(width), row.speed))
  end
end

local function gnuplot_chart()
  local pipe = io.popen("gnuplot 2>/dev/null", "w")
  pipe:write(format and ("set terminal %s\nset output '%s'\n"):format(format, (options.plot:gsub("'", "''")))
    or "set terminal dumb 78 22\n")
  pipe:write(("set title '%s'\nset xlabel 'devices'\nset ylabel 'images/s'\nset yrange [0:*]\nset xtics 1\n")
    :format(options.model))
  pipe:write(("plot '-' with linespoints title 'measured', %g * x title '%s'\n"):format(rows[1].speed, "linear"))
  for _, row in ipairs(rows) do pipe:write(row.n, " ", row.speed, "\n") end
  pipe:write("e\n")
  pipe:close()
end

local has_gnuplot = os.execute("command -v gnuplot >/dev/null 2>&1") == 0
if has_gnuplot and (format or #rows > 1) then
  gnuplot_chart()
  if format then print("chart in " .. options.plot) end
else
  text_chart()
  if format then io.stderr:write("rosetta.lua: no gnuplot here, so no ", options.plot, "\n") end
end
