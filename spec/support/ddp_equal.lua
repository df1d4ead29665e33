--- The script of a rank that trains a small net with DistributedDataParallel on its part of the samples beside the same
--- net on all of them, and prints "equal" if their parameters stay so. `before`: lines that may change how passes run
--- and how steps are taken; `hook`: a Lua expression, the communication hook.
---   ddp_equal {backend = "gloo", device = "cpu" [, before = "…"] [, hook = "…"] [, most = 1e-6]}
local script = [[
  local lm = require "luminary"
  local dist, nn, F = lm.dist, lm.nn, lm.nn.functional
  dist.init_process_group("$backend", {timeout = 30})
  local rank, size = dist.get_rank(), dist.get_world_size()
  local function run(f) return f() end
  local function step(opt) opt:step() end
  $before
  local function model()
    lm.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)):to("$device")
  end
  lm.manual_seed(11)
  local x, y = lm.randn({4 * size, 5}):to("$device"), lm.randint(1, 4, {4 * size}):to("$device")
  local alone, net = model(), nn.parallel.DistributedDataParallel(model(), {bucket_cap_mb = 1e-4})
  if $hook then net:register_comm_hook(nil, $hook) end
  local steps = {lm.optim.SGD(alone:parameters(), {lr = 0.1}), lm.optim.SGD(net:parameters(), {lr = 0.1})}
  for _ = 1, 3 do
    for _, opt in ipairs(steps) do opt:zero_grad() end
    F.cross_entropy(alone(x), y):backward()
    local part = {rank * 4 + 1, rank * 4 + 4}
    run(function() F.cross_entropy(net(x[{part}]), y[{part}]):backward() end)
    for _, opt in ipairs(steps) do step(opt) end
  end
  local worst = 0
  local mine, theirs = alone:parameters(), net:parameters()
  for i = 1, #mine do worst = math.max(worst, (mine[i]:detach() - theirs[i]:detach()):abs():max():item()) end
  assert(worst < $most, "differs by " .. worst)
  print "equal"
  dist.destroy_process_group()
]]

return function(with)
  local values = {before = "", hook = "nil", most = "1e-6"}
  for name, value in pairs(with) do values[name] = tostring(value) end
  return (script:gsub("%$(%l+)", values))
end
