--- dist: process groups. This version runs one process; the interface is the one that several will use,
--- so a script written for many ranks runs as one of one.
local core = require "luminary.core"
local options = require "luminary.options"
local fail = options.fail

local dist = {}

local group -- {rank, size, backend} once initialized

-- How launchers say how many processes they started, in the order in which they are believed.
local launchers = {
  {size = "WORLD_SIZE", rank = "RANK", by = "torchrun or the environment"},
  {size = "OMPI_COMM_WORLD_SIZE", rank = "OMPI_COMM_WORLD_RANK", by = "mpirun"},
  {size = "PMI_SIZE", rank = "PMI_RANK", by = "a PMI launcher"},
  {size = "SLURM_STEP_NUM_TASKS", rank = "SLURM_PROCID", by = "srun"},
}

local function from_environment()
  for _, launcher in ipairs(launchers) do
    local text = core.getenv(launcher.size)
    if text then
      local size, rank = tonumber(text), tonumber(core.getenv(launcher.rank) or "0")
      if not size or size < 1 or size ~= math.floor(size) then
        fail("init_process_group: %s = '%s' is no number of processes", launcher.size, text)
      end
      if not rank then fail("init_process_group: %s is no rank", launcher.rank) end
      return size, rank, ("%s = %d (%s)"):format(launcher.size, size, launcher.by)
    end
  end
  return 1, 0, "no launcher in the environment"
end

--- Join the process group: dist.init_process_group([backend] [, {backend, init_method, world_size, rank,
--- timeout}]). World size and rank given here win over what the launcher put in the environment.
function dist.init_process_group(backend, opts)
  if type(backend) == "table" and opts == nil then backend, opts = nil, backend end
  opts = options.check("init_process_group", opts, {
    backend = {"string"}, init_method = {"string", "env://"}, world_size = {"count"}, rank = {"natural"},
    timeout = {"positive"},
  }, "init_method")
  backend = backend or opts.backend
  if backend then
    options.choice("init_process_group", "backend", backend, {"gloo", "nccl", "mpi", "solo"})
  end
  local scheme = opts.init_method:match("^(%w+)://")
  if scheme ~= "env" and scheme ~= "tcp" and scheme ~= "file" then
    fail("init_process_group: init_method '%s' is none of env://, tcp://host:port and file:///path", opts.init_method)
  end
  if group then fail("init_process_group: the process group is there already; destroy_process_group() ends it") end

  local size, rank, source = from_environment()
  if opts.world_size then size, source = opts.world_size, "world_size = " .. opts.world_size end
  if opts.rank then rank = opts.rank elseif opts.world_size then rank = math.min(rank, size - 1) end
  if size > 1 then
    fail("init_process_group: %s asks for %d processes; groups of several processes come in a later version: "
      .. "run one process, without a launcher", source, size)
  end
  if rank ~= 0 then fail("init_process_group: rank %d is outside a world of 1", rank) end
  group = {rank = rank, size = size, backend = "solo"}
end

--- Leave the group.
function dist.destroy_process_group()
  if not group then fail("destroy_process_group: no process group; call dist.init_process_group() first") end
  group = nil
end

function dist.is_available() return true end
function dist.is_initialized() return group ~= nil end

local function need(who)
  if not group then fail("%s: no process group; call dist.init_process_group() first", who) end
  return group
end

--- This process among all: 0 to get_world_size() - 1.
function dist.get_rank() return need("get_rank").rank end
--- How many processes there are.
function dist.get_world_size() return need("get_world_size").size end
--- The backend in use: "solo" for one process.
function dist.get_backend() return need("get_backend").backend end

--- This process among those of its host, from the launcher; 0 without one.
function dist.get_local_rank()
  for _, name in ipairs {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"} do
    local rank = tonumber(core.getenv(name))
    if rank then return rank end
  end
  return 0
end

--- The device this process should use: "cuda:<local rank>" where there is CUDA, else "cpu".
function dist.local_device()
  local cards = core.device_count("cuda")
  return cards > 0 and "cuda:" .. dist.get_local_rank() % cards or "cpu"
end

-- ---- collectives: all in place. With one process each checks its arguments and leaves the data alone.

local function check_tensor(who, t) return options.arg(who, "the tensor", t, "tensor") end

local function check_root(who, root)
  root = options.arg(who, "the root's rank", root or 0, "integer")
  if root < 0 or root >= group.size then fail("%s: rank %d is outside a world of %d", who, root, group.size) end
end

--- t becomes the sum over all ranks, or {op = "mean" | "product" | "min" | "max"}. Gives t.
function dist.all_reduce(t, opts)
  need("all_reduce")
  check_tensor("all_reduce", t)
  opts = options.check("all_reduce", opts, {op = {"string", "sum"}}, "op")
  options.choice("all_reduce", "op", opts.op, {"sum", "mean", "product", "min", "max"})
  return t
end

--- t becomes what it is on rank `root` (0 by default). Gives t.
function dist.broadcast(t, root)
  need("broadcast")
  check_tensor("broadcast", t)
  check_root("broadcast", root)
  return t
end

--- outputs[r + 1] becomes rank r's t. Gives the list.
function dist.all_gather(outputs, t)
  need("all_gather")
  check_tensor("all_gather", t)
  options.arg("all_gather", "the list of outputs", outputs, "table")
  if #outputs ~= group.size then
    fail("all_gather: %d outputs for a world of %d", #outputs, group.size)
  end
  for i, out in ipairs(outputs) do
    options.arg("all_gather", "output " .. i, out, "tensor")
    if table.concat(out.shape, ",") ~= table.concat(t.shape, ",") or out.dtype ~= t.dtype then
      fail("all_gather: output %d is a %s %s, the tensor a %s %s", i, out.dtype, options.describe(out), t.dtype,
        options.describe(t))
    end
  end
  core.no_grad(outputs[1].copy_, outputs[1], t)
  return outputs
end

--- Returns when every rank has come here.
function dist.barrier() need("barrier") end

return dist
