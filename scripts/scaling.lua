-- A discrete simulation of data-parallel training: how long a step takes on n GPUs.
--
--   local scaling = dofile "scripts/scaling.lua"
--   local got = scaling.simulate {model = scaling.models.resnet50, machine = scaling.machines.dgx1v, gpus = 16}
--   got.step, got.alone, got.efficiency, got.exposed, got.algorithm
--
-- Every rank walks through forward, backward and optimizer with a pace of its own, again each step. A bucket of
-- gradients can leave when the slowest rank has filled it and the one before is through, as in
-- DistributedDataParallel. What a collective takes is NCCL's own model of it: latency by the number of hops, and bytes
-- over the bandwidth of the narrowest place. Seconds, bytes, bytes a second.
local scaling = {}

local cost = require "luminary.distributed.cost_model"

local MB = 2 ^ 20

-- ---- models: layers in the order of forward, {parameters, share of the work, how often}; shares are multiply-adds of
-- one image of 224 x 224 (299 x 299 for Inception), counted from the architectures, in millions.
scaling.models = {
  -- He et al., "Deep Residual Learning for Image Recognition", 2015
  resnet50 = {layers = {{9.5e3, 118}, {0.0719e6, 226, 3}, {0.305e6, 258, 4}, {1.183e6, 244, 6}, {4.988e6, 270, 3},
    {2.049e6, 2}}},
  resnet101 = {layers = {{9.5e3, 118}, {0.0719e6, 226, 3}, {0.305e6, 258, 4}, {1.134e6, 225, 23}, {4.988e6, 270, 3},
    {2.049e6, 2}}},
  -- Xie et al., "Aggregated Residual Transformations", 2017
  resnext50_32x4d = {layers = {{9.5e3, 118}, {0.0703e6, 232, 3}, {0.305e6, 266, 4}, {1.178e6, 252, 6},
    {4.843e6, 281, 3}, {2.049e6, 2}}},
  resnext101_32x8d = {layers = {{9.5e3, 118}, {0.140e6, 420, 3}, {0.609e6, 580, 4}, {2.50e6, 560, 23},
    {8.77e6, 600, 3}, {2.049e6, 2}}},
  -- Simonyan and Zisserman, "Very Deep Convolutional Networks", 2014: almost all parameters are in three layers that
  -- take little time
  vgg16 = {layers = {{0.039e6, 1936}, {0.221e6, 2775}, {1.475e6, 4625}, {5.899e6, 4625}, {7.079e6, 1387},
    {102.76e6, 103}, {16.78e6, 17}, {4.097e6, 4}}},
  -- Szegedy et al., "Rethinking the Inception Architecture", 2015 (without the auxiliary classifier)
  inception3 = {layers = {{0.20e6, 1900}, {0.275e6, 370, 3}, {1.153e6, 230}, {1.70e6, 440, 4}, {1.70e6, 240},
    {5.55e6, 330, 2}, {2.049e6, 2}}},
}

--- Returns cost.all_reduce's results; of a machine with `measured`, {{bytes, seconds}, …}, ascending, the seconds that
--- these say, between their points and beyond.
function scaling.all_reduce(machine, gpus, bytes, algorithm)
  local points = machine.measured
  if gpus == 1 or not points then return cost.all_reduce(machine, gpus, bytes, algorithm) end
  local low, high = points[1], points[#points]
  for i = 1, #points - 1 do
    if bytes >= points[i][1] then low, high = points[i], points[i + 1] end
  end
  if #points == 1 then return points[1][2] * math.max(1, bytes / points[1][1]), "measured" end
  if bytes <= points[1][1] then return points[1][2], "measured" end
  return low[2] + (bytes - low[1]) * (high[2] - low[2]) / (high[1] - low[1]), "measured"
end

--- Returns a model of one kind of layer: for questions of which only the number of parameters is known.
function scaling.even(parameters, layers)
  return {layers = {{parameters / layers, 1, layers}}}
end

-- ---- machines: GPUs a node; bandwidth of rings within a node and out of it (all network cards together), in bytes a
-- second as NCCL counts them (busbw); latency of a hop within a node and between nodes.
scaling.machines = {
  dgx1v = {name = "8 V100 with NVLink, 4 x 100 Gbit/s", node = 8, inside = 130e9, outside = cost.gigabits(400),
    hop = cost.NVLINK, net = cost.NET},
  p100 = {name = "4 P100 on PCIe, 25 Gbit/s RoCE", node = 4, inside = 10e9, outside = cost.gigabits(25), hop = cost.PCI,
    net = cost.NET},
  h200 = {name = "8 H200 with NVLink, 8 x 400 Gbit/s", node = 8, inside = cost.cards.h200.inside,
    outside = cost.gigabits(3200), hop = cost.NVLINK, net = cost.NET},
  ethernet = {name = "1 GPU a node, 10 Gbit/s", node = 1, inside = 10e9, outside = cost.gigabits(10), hop = cost.PCI,
    net = 3 * cost.NET},
}

-- ---- buckets

--- Returns {bytes, ready} of each bucket in the order in which backward fills them; ready: the share of backward that
--- is over by then. Buckets are as the reducer's: from the last layer to the first, closed when `cap` is reached, the
--- first one at `first`.
function scaling.buckets(model, cap, first)
  local pieces, work = {}, 0
  for _, layer in ipairs(model.layers) do
    for _ = 1, layer[3] or 1 do
      table.insert(pieces, 1, layer)
      work = work + layer[2]
    end
  end
  local list, bytes, done = {}, 0, 0
  for i, piece in ipairs(pieces) do
    bytes, done = bytes + 4 * piece[1], done + piece[2]
    if bytes >= (#list == 0 and first or cap) or i == #pieces then
      list[#list + 1] = {bytes = bytes, ready = done / work}
      bytes = 0
    end
  end
  return list
end

function scaling.parameters(model)
  local n = 0
  for _, layer in ipairs(model.layers) do n = n + layer[1] * (layer[3] or 1) end
  return n
end

-- ---- the simulation

-- Returns a function that draws normals by Park and Miller's generator and Box and Muller: the same on every machine.
local function normals(seed)
  local state = seed % 2147483646 + 1
  local function uniform()
    state = (state * 48271) % 2147483647
    return state / 2147483647
  end
  return function() return math.sqrt(-2 * math.log(uniform())) * math.cos(2 * math.pi * uniform()) end
end

local defaults = {
  alone = 0.1,        -- seconds of a step on one GPU
  forward = 1 / 3,    -- share of forward in forward and backward: backward does twice the arithmetic
  optimizer = 0.03,   -- share of a step
  first = MB,         -- the first bucket's size; cap, the others': as DistributedDataParallel chooses it
  algorithm = "best",
  overlap = 1,        -- share of a collective that runs beside backward: 1 on GPUs, 0 where the same cores do both
  launch = cost.BUCKET, -- seconds a bucket takes from backward: launches, and the multiprocessors that reduce it. The
                      -- mean of what steps with buckets of 1 MB take longer than with 25 in PyTorch's measurements
                      -- (simulate_scale --check), for each bucket more
  cycle = 0,          -- buckets are looked for only so often (Horovod)
  jitter = cost.JITTER, -- standard deviation of a rank's pace from step to step, relative
  zero = false,       -- ZeRO stage 1: each rank updates its share, then sends it to the others
  compress = 1,       -- bytes of a gradient on the way, as a share of its own: 0.5 for bf16_compress
  steps = 20, seed = 1,
}

--- Runs `steps` steps. Options: model, machine, gpus and those above. Returns step (seconds, mean), alone, efficiency
--- (alone / step), exposed (seconds of a step in which the slowest rank only waits), traffic (seconds that collectives
--- take), buckets, algorithm (of the largest bucket), and optimizer_bytes a GPU (Adam: two float32 a parameter).
function scaling.simulate(options)
  local o = setmetatable(options, {__index = defaults})
  local buckets = scaling.buckets(o.model, o.cap or cost.bucket_size(4 * scaling.parameters(o.model)), o.first)
  local n, machine = o.gpus, o.machine
  local traffic, largest, algorithm = 0, -1, "none"
  for _, b in ipairs(buckets) do
    local which
    b.seconds, which = scaling.all_reduce(machine, n, b.bytes * o.compress, o.algorithm)
    traffic = traffic + b.seconds
    if b.bytes > largest then largest, algorithm = b.bytes, which end
  end
  local parameters = scaling.parameters(o.model)
  local update = o.alone * o.optimizer / (o.zero and n or 1)
  local spread = o.zero and n > 1 and cost.ring(machine, n, 4 * parameters, 1) or 0
  local compute = o.alone * (1 - o.optimizer)
  local forward, backward = compute * o.forward, compute * (1 - o.forward)

  local normal = normals(o.seed)
  local starts, pace = {}, {}
  for r = 1, n do starts[r] = 0 end
  local launch = n > 1 and o.launch or 0
  local began, exposed = 0, 0
  for _ = 1, o.steps do
    for r = 1, n do pace[r] = math.max(0.5, 1 + o.jitter * (n > 1 and normal() or 0)) end
    local free, held, finished = 0, 0, 0 -- when the wire is free; what buckets took from backward so far
    for _, b in ipairs(buckets) do
      local ready = 0
      for r = 1, n do ready = math.max(ready, starts[r] + pace[r] * (forward + backward * b.ready) + held) end
      if o.cycle > 0 then ready = math.ceil(ready / o.cycle) * o.cycle end
      free = math.max(ready, free) + b.seconds
      held = held + (1 - o.overlap) * b.seconds + launch
    end
    for r = 1, n do finished = math.max(finished, starts[r] + pace[r] * compute + launch * #buckets) end
    exposed = exposed + math.max(0, free - finished)
    local over = math.max(free, finished)
    for r = 1, n do starts[r] = over + spread + pace[r] * update end
  end
  local last = 0
  for r = 1, n do last = math.max(last, starts[r]) end
  local step = (last - began) / o.steps
  return {
    step = step, alone = o.alone, efficiency = o.alone / step, exposed = exposed / o.steps, traffic = traffic,
    spread = spread, buckets = #buckets, algorithm = algorithm, optimizer_bytes = 8 * parameters / (o.zero and n or 1),
  }
end

return scaling
