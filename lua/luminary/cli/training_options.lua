--- Defines the options that all training scripts have, alone or as one of several ranks, for script_options.lua, and
--- sets up what they name.
local lm = require "luminary"

local training = {}

--- The end of the usage text.
training.USAGE = [[
  --max-steps N       stop after this many steps in all             (no limit)
  --save-every N      write a checkpoint every N steps, too         (never)
  --resume FILE       resume from a checkpoint
  --log-file, --log FILE  write one JSON object a step and an epoch; appended to when resumed. torchrun takes --log for
                      its own
  --seed N            of the weights and of the order of samples    (1)
  --threads N         CPU threads of a process                      ($OMP_NUM_THREADS, else all cores, shared)
  --device NAME       cpu, cuda:0, ...                              (cuda:<local rank> if there is one, else cpu)
  --backend NAME      how processes talk to each other: gloo, mpi, nccl  (gloo, and nccl between GPUs)
  --init-method URL   env://, tcp://host:port or file:///path       (env://)
  --world-size N      number of processes                           (what the launcher says, else 1)
  --rank N            this process among them, from 0               (what the launcher says)
  --local-rank N      what some launchers add; LOCAL_RANK says the same
  --timeout X         seconds to wait for another process           (1800)
  --help              print this
]]

--- Initializes the process group, the random numbers and the number of threads: the ranks of a host share its cores.
--- Returns the rank, the number of ranks, this rank's device and its share of --batch-size.
function training.start(options, refuse)
  local dist = lm.dist
  dist.init_process_group(options.backend, {
    init_method = options["init-method"], timeout = options.timeout,
    world_size = options["world-size"], rank = options.rank,
  })
  local rank, world = dist.get_rank(), dist.get_world_size()
  if options.threads then
    lm.set_num_threads(options.threads)
  elseif not lm.getenv "OMP_NUM_THREADS" then -- launchers set it
    local local_ranks = tonumber(lm.getenv "LOCAL_WORLD_SIZE") or world
    lm.set_num_threads(math.max(1, math.floor(lm.get_num_threads() / local_ranks)))
  end
  lm.manual_seed(options.seed)
  local batch_size = options["batch-size"]
  if batch_size % world ~= 0 then refuse("--batch-size %d cannot be shared evenly by %d ranks", batch_size, world) end
  return rank, world, options.device or dist.local_device(), batch_size / world
end

return training
