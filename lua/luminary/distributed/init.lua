--- dist: process groups. A script written for many ranks runs unchanged as one of one.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local options = require "luminary.base.options"
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

--- dist.group: dist.group.WORLD is the group of all ranks; nil before init_process_group.
dist.group = setmetatable({}, {__index = function(_, key)
  if key == "WORLD" then return groups.default end
  fail("dist.group has no '%s'; its only field is WORLD", tostring(key))
end})

--- Join the process group: dist.init_process_group([backend] [, {backend, init_method, world_size, rank, timeout,
--- heartbeat_timeout}]). Returns when all ranks have. backend: "gloo", "nccl", … for tensors of all devices, or one for
--- each, "cpu:gloo,cuda:nccl", which is the default where every rank can have a card of its own; elsewhere gloo is.
--- World size and rank given here win over what the launcher put in the environment. init_method: "env://"
--- (MASTER_ADDR, MASTER_PORT), "tcp://host:port" (rank 0 listens there) or "file:///path" (on a disk all ranks see; one
--- job's until it ends, and an error for rank 0 of a second one; without LM_TOKEN it has to be this user's own).
--- timeout (1800): seconds for all to join, and for each collective. heartbeat_timeout (10; 0: never): silence after
--- which a rank is given up.
dist.init_process_group = arguments.takes("init_process_group", {
  {"backend", "string"}, {"init_method", "string", "env://"}, {"timeout", "positive", 1800}, {"world_size", "count"},
  {"rank", "natural"}, {"store", lacks = true}, {"group_name", lacks = true},
  {"heartbeat_timeout", "positive", named = true},
}, function(opts)
  local who = "init_process_group"
  local backend = opts.backend or environment.backend()
  if backend then backend = groups.backend(who, backend) end
  if opts.timeout == 0 then options.must_be(who, "timeout", "more than 0 seconds", opts.timeout) end
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
    core.dist_fail(world, "", problem) -- the others wait for this rank there
    core.dist_close(world)
    error(problem, 0)
  end
end)

--- Leave: one group, or without an argument all of them, with a goodbye to the other ranks.
function dist.destroy_process_group(group)
  groups.destroy(groups.resolve("destroy_process_group", group))
end

--- Whether this build has process groups: always.
function dist.is_available() return true end

--- Whether a group of that name ("gloo", "nccl", …) is built in, or on the plug-in path.
function dist.is_backend_available(name)
  options.arg("is_backend_available", "the backend", name, "string")
  return (pcall(groups.backend, "is_backend_available", name))
end

for _, name in ipairs {"gloo", "nccl", "mpi"} do
  --- Whether a group of that name is built in, or on the plug-in path.
  dist["is_" .. name .. "_available"] = function() return dist.is_backend_available(name) end
end

--- What has gone wrong in the job, once a call here has failed for it; nil while all is well. A table: kind ("error",
--- "died", "frozen", "mismatch", "absent", "left", "unreachable"), rank and host of who failed, where (its script's
--- line), message, text (all of it as a sentence); who and other: {rank, host, standing, seconds, call, where}, the
--- rank that failed and the one whose call or waiting shows it, as far as that is known.
function dist.failure()
  return groups.world and core.dist_cause(groups.world) or nil
end

--- Whether init_process_group was called, and destroy_process_group not since.
function dist.is_initialized() return groups.default ~= nil end

--- This process among those of its host: from the launcher, or by counting them.
function dist.get_local_rank()
  local rank = environment.local_rank()
  if rank then return rank end
  return groups.world and core.dist_local_rank(groups.world) or 0
end

--- The device this process should use: "cuda:<local rank>" where there is CUDA, else "cpu".
function dist.local_device()
  local cards = core.device_count("cuda")
  return cards > 0 and "cuda:" .. dist.get_local_rank() % cards or "cpu"
end

options.strict("dist", dist)
-- lm.dist(x, other) is PyTorch's torch.dist, the norm of a difference.
getmetatable(dist).__call = function(_, ...) return core.methods.dist(...) end
return dist
