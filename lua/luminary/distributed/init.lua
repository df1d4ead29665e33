--- dist: Provides process groups: collectives and messages between the processes of a job.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local environment = require "luminary.distributed.rank_from_environment"
local groups = require "luminary.distributed.groups"
local fail = options.fail

local dist = {}

for _, part in ipairs {"collectives", "objects"} do
  for name, value in pairs(require("luminary.distributed." .. part)) do dist[name] = value end
end
for _, name in ipairs {
  "NON_MEMBER", "new_group", "get_rank", "get_world_size", "get_backend", "get_process_group_ranks", "get_global_rank",
  "get_group_rank",
} do
  dist[name] = groups[name]
end

dist.init_device_mesh = require("luminary.distributed.device_mesh").init_device_mesh

--- dist.group: Holds dist.group.WORLD, the group of all ranks; nil before dist.init_process_group.
dist.group = setmetatable({}, {__index = function(_, key)
  if key == "WORLD" then return groups.default end
  fail("dist.group has no '%s'; its only field is WORLD", tostring(key))
end})

-- The default of timeout is LM_DEFAULT_TIMEOUT of src/distributed/group/world.h.
--- Initializes the process group of all ranks.
dist.init_process_group = signature.of([[init_process_group({backend: string, init_method = "env://",
  timeout: seconds = 1800, world_size: count, rank: natural, store: lacks, group_name: lacks, *,
  heartbeat_timeout: positive})]], function(opts)
  local who = "init_process_group"
  local backend = opts.backend or environment.backend()
  if backend then backend = groups.backend(who, backend) end
  local method = environment.parse(opts.init_method)
  if groups.default then
    fail("%s: the process group is already initialized; call destroy_process_group() first", who)
  end

  local rank, size, launcher = environment.place {
    rank = opts.rank or method.rank, world_size = opts.world_size or method.world_size,
  }
  if size == 1 then return groups.start(nil) end
  if backend == "solo" then fail("%s: the backend solo requires one process, got a world of %d", who, size) end
  local where, job = environment.meeting(method, launcher, rank, size)
  local world = core.dist_open {
    init_method = where, rank = rank, size = size, job = job, token = environment.token(), timeout = opts.timeout,
    heartbeat_timeout = opts.heartbeat_timeout or environment.heartbeat_timeout(),
    offers_nccl = not backend or backend:find("nccl", 1, true) ~= nil,
  }
  local ok, problem = pcall(groups.start, world, backend or core.dist_backend(world), size)
  if not ok then
    groups.start_cause = core.dist_cause(world)
    core.dist_fail(world, "", problem) -- the other ranks wait for this one
    core.dist_close(world)
    error(problem, 0)
  end
end)

--- Ends a process group, or all of them.
function dist.destroy_process_group(group)
  groups.destroy(groups.resolve("destroy_process_group", group))
end

--- Returns whether this build has process groups, which is always true.
function dist.is_available() return true end

--- Returns whether a backend is available: built in, or on the plug-in path.
function dist.is_backend_available(name)
  options.arg("is_backend_available", "the backend", name, "string")
  return (pcall(groups.backend, "is_backend_available", name))
end

for _, name in ipairs {"gloo", "nccl", "mpi"} do
  --- Returns whether this backend is available: built in, or on the plug-in path.
  dist["is_" .. name .. "_available"] = function() return dist.is_backend_available(name) end
end

--- Returns a table about the failure of the job, once a call raised an error for it; nil without one.
function dist.failure()
  return groups.cause()
end

--- Returns whether the process group of all ranks is initialized.
function dist.is_initialized() return groups.default ~= nil end

--- Returns the rank of this process among those of its host.
function dist.get_local_rank()
  local rank = environment.local_rank()
  if rank then return rank end
  return groups.world and core.dist_local_rank(groups.world) or 0
end

--- Returns the device for this process: "cuda:<local rank>" if there is a GPU, else "cpu".
function dist.local_device()
  local cards = core.device_count("cuda")
  return cards > 0 and "cuda:" .. dist.get_local_rank() % cards or "cpu"
end

options.strict("dist", dist)
-- Make lm.dist(x, other) PyTorch's torch.dist, the norm of a difference.
getmetatable(dist).__call = function(_, ...) return core.methods.dist(...) end
return dist
