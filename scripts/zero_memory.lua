-- Measures what ZeroRedundancyOptimizer saves: the bytes of Adam's state on each of 1, 2, 4, … ranks, as the allocator
-- counts them.
--
--   luminary run --nproc 4 scripts/zero_memory.lua [--model resnet18] [--device cpu]
--
-- Prints a line for each number of ranks up to the world's: bytes on the rank with the most and on the one
-- with the least, the former's share of the plain optimizer's, and the step's time there.
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path
local lm = require "luminary"
local models = require "models"
local dist, optim = lm.dist, lm.optim

local USAGE = "usage: luminary run --nproc N scripts/zero_memory.lua [--model mlp|lenet|resnet18] [--device NAME]"

local options = { model = "resnet18", device = false }
for i = 1, #arg, 2 do
  local name = arg[i]:match "^%-%-(.*)$"
  if options[name] == nil or not arg[i + 1] or name == "model" and type(models[arg[i + 1]]) ~= "function" then
    io.stderr:write(USAGE, "\n")
    os.exit(2)
  end
  options[name] = arg[i + 1]
end

dist.init_process_group()
local rank, world = dist.get_rank(), dist.get_world_size()
local device = options.device or dist.local_device()

local function allocated()
  collectgarbage()
  collectgarbage()
  return lm.memory_allocated(device)
end

-- Returns the bytes of the state on this rank after a step, and the seconds of one.
local function measure(group)
  lm.manual_seed(1)
  local net = models[options.model]():to(device)
  local params, numbers = net:parameters(), 0
  for _, p in ipairs(params) do
    p.grad = lm.ones(p.shape, { device = device })
    numbers = numbers + p:numel()
  end
  local opt = optim.ZeroRedundancyOptimizer(params, { optimizer_class = optim.Adam, process_group = group })
  local before = allocated()
  opt:step()
  local bytes = allocated() - before
  local best = math.huge
  for _ = 1, 5 do
    dist.barrier { group = group }
    lm.synchronize(device)
    local start = lm.time()
    opt:step()
    lm.synchronize(device)
    best = math.min(best, lm.time() - start)
  end
  return bytes, best, numbers
end

local plain
local size = 1
while size <= world do
  local members = {}
  for r = 0, size - 1 do members[r + 1] = r end
  local group = dist.new_group(members)
  if group ~= dist.NON_MEMBER then
    local bytes, seconds, numbers = measure(group)
    local max_bytes, min_bytes = lm.tensor({ bytes }, { dtype = "int64" }), lm.tensor({ bytes }, { dtype = "int64" })
    dist.all_reduce(max_bytes, { op = "max", group = group })
    dist.all_reduce(min_bytes, { op = "min", group = group })
    max_bytes, min_bytes = max_bytes:item(), min_bytes:item()
    if rank == 0 then
      plain = plain or max_bytes
      if size == 1 then print(("Adam's state for %d parameters of %s on %s"):format(numbers, options.model, device)) end
      print(("%2d rank%s  %7.2f MB at most  %7.2f MB at least  %5.1f%% of one rank's  %6.2f ms a step"):format(size,
        size == 1 and " " or "s", max_bytes / 1e6, min_bytes / 1e6, 100 * max_bytes / plain, 1e3 * seconds))
    end
  end
  dist.barrier()
  size = size * 2
end
dist.destroy_process_group()
