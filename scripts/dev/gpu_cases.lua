-- What scripts/dev/gpu_check runs in a process of its own, so that a lost context takes nothing else along:
--   luajit gpu_cases.lua smoke                                      a step of training in each dtype, beside the CPU
--   luajit gpu_cases.lua off OP DTYPE WHICH N                       linear or conv2d with an operand N elements off
--   luajit gpu_cases.lua properties PROGRAM JSON                    the card's properties beside those on file
--   luajit gpu_cases.lua nccl                                       the group "nccl" of one rank
--   luminary run --nproc 2 gpu_cases.lua issue                      what a call of NCCL costs the thread that makes it
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional
lm.backends.cudnn.allow_tf32 = false -- the tolerances below are float32's own

local function fail(...) error(string.format(...), 0) end

-- The largest difference relative to the largest value.
local function apart(here, there)
  here, there = here:double(), there:to("cpu"):double()
  local scale = here:abs():max():item()
  return (here - there):abs():max():item() / (scale > 0 and scale or 1)
end

local function expect(what, here, there, limit)
  local worst = apart(here, there)
  print(("%-40s off by %.2e"):format(what, worst))
  if worst > limit or worst ~= worst then fail("%s: off by %.2e, which may be %.0e", what, worst, limit) end
end

local tolerance = { float64 = 1e-10, float32 = 1e-4, bfloat16 = 5e-2, float16 = 1e-2 }

local case = {}

function case.smoke()
  for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
    lm.manual_seed(1)
    local net = nn.Sequential(nn.Conv2d(3, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    local twin = nn.Sequential(nn.Conv2d(3, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    twin:load_state_dict(net:state_dict())
    local x, y = lm.randn { 8, 3, 16, 16 }, lm.randint(1, 11, { 8 })
    twin:to("cuda", dtype)
    -- The CPU's side in float64 is the judge of all.
    net:double()
    local function losses(model, input, label)
      local opt, list = lm.optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 }), {}
      for i = 1, 3 do
        local loss = F.cross_entropy(model(input), label)
        opt:zero_grad()
        loss:backward()
        opt:step()
        list[i] = loss:detach():to("cpu"):double()
      end
      return lm.stack(list)
    end
    expect("three steps in " .. dtype, losses(net, x:double(), y), losses(twin, x:to("cuda", dtype), y:cuda()),
      tolerance[dtype])
  end
end

function case.off(op, dtype, which, n)
  lm.manual_seed(1)
  n = assert(tonumber(n), "how many elements off?")
  local shapes = op == "linear" and { x = { 64, 128 }, weight = { 96, 128 }, bias = { 96 } }
    or { x = { 8, 16, 14, 14 }, weight = { 32, 16, 3, 3 }, bias = { 32 } }
  local here, there = {}, {}
  for name, shape in pairs(shapes) do
    here[name] = lm.randn(shape):to(dtype)
    local off = name == which and n or 0
    local room = lm.zeros({ here[name]:numel() + off }, { dtype = dtype, device = "cuda" })
    local view = room:narrow(1, off + 1, here[name]:numel()):view(shape)
    view:copy_(here[name])
    there[name] = view:detach():requires_grad_()
    here[name] = here[name]:double():requires_grad_()
  end
  local function run(t)
    local y = op == "linear" and F.linear(t.x, t.weight, t.bias)
      or F.conv2d(t.x, t.weight, t.bias, { padding = 1 })
    y:sum():backward()
    return y
  end
  expect("result", run(here), run(there), tolerance[dtype])
  for name in pairs(shapes) do expect("gradient of " .. name, here[name].grad, there[name].grad, tolerance[dtype]) end
  lm.synchronize("cuda")
end

function case.properties(program, path)
  local function facts(text)
    local list = {}
    for name, value in text:gmatch '"([%w_]+)"%s*:%s*([^,}%s]+)' do list[name] = value end
    return list
  end
  local file = assert(io.open(path))
  local filed = facts(file:read("*a"))
  file:close()
  local pipe = io.popen(program .. " --dump")
  local own = facts(pipe:read("*a"))
  pipe:close()
  if next(own) == nil then fail("%s --dump says nothing", program) end
  local names, different = {}, 0
  for name in pairs(filed) do names[#names + 1] = name end
  for name in pairs(own) do
    if filed[name] == nil then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if own[name] ~= filed[name] then
      different = different + 1
      print(("%-40s on file %s, here %s"):format(name, tostring(filed[name]), tostring(own[name])))
    end
  end
  if different > 0 then fail("%d properties differ: put this card's own JSON into %s", different, path) end
end

function case.nccl()
  local dist = lm.dist
  dist.init_process_group { backend = "cpu:gloo,cuda:nccl", rank = 0, world_size = 1,
    init_method = "tcp://127.0.0.1:0" }
  local group = dist.new_group({ 0 }, { backend = "nccl" })
  local x = lm.arange(1000, { dtype = "float32", device = "cuda" })
  local before = x:clone()
  for _, op in ipairs { "sum", "max", "min", "mean" } do
    dist.all_reduce(x, { op = op, group = group })
    expect("all_reduce, " .. op, before:to("cpu"), x, 0)
  end
  dist.broadcast(x, 0, { group = group })
  expect("broadcast", before:to("cpu"), x, 0)
  local work = dist.all_reduce(x, { group = group, async_op = true })
  work:wait()
  expect("all_reduce, asynchronous", before:to("cpu"), x, 0)
  dist.destroy_process_group()
end

-- What backward pays for each bucket that it sends.
function case.issue()
  local dist, taken = lm.dist, {}
  dist.init_process_group { timeout = 30 }
  local x = lm.ones({ 2 ^ 18 }, { device = "cuda:" .. dist.local_device():match "%d+" })
  for i = -20, 200 do
    local start = lm.time()
    local work = dist.all_reduce(x, { op = "mean", async_op = true })
    if i > 0 then taken[i] = 1e6 * (lm.time() - start) end
    work:wait()
    if i % 10 == 0 then lm.cuda.synchronize() end
  end
  table.sort(taken)
  print(("rank %d: %.0f us, one in ten calls more than %.0f us"):format(dist.get_rank(), taken[100], taken[180]))
  dist.destroy_process_group()
end

local run = case[arg[1] or ""] or fail("gpu_cases: smoke, off, properties, nccl or issue, not %s", tostring(arg[1]))
local ok, message = pcall(run, select(2, unpack(arg)))
if not ok then
  print(message)
  os.exit(1)
end
