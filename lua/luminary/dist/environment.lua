--- Which rank of how many this process is, and where they meet: what the call says, then what a launcher
--- put in the environment.
local core = require "luminary.core"
local options = require "luminary.options"
local who = "init_process_group: "
local function fail(format, ...) options.fail(who .. format, ...) end

local environment = {}

-- How launchers say it, in the order in which they are believed. Slurm only within a step: an sbatch script itself
-- has SLURM_PROCID without being one of several.
local launchers = {
  {size = "WORLD_SIZE", rank = "RANK", by = "the environment"},
  {size = "OMPI_COMM_WORLD_SIZE", rank = "OMPI_COMM_WORLD_RANK", by = "mpirun"},
  {size = "PMI_SIZE", rank = "PMI_RANK", by = "a PMI launcher"},
  {size = "SLURM_STEP_NUM_TASKS", rank = "SLURM_PROCID", by = "srun"},
}
local local_ranks = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}

local function variable(name)
  local text = core.getenv(name)
  return text ~= "" and text or nil
end

local function number(name, least, what, most)
  local text = variable(name)
  if not text then return nil end
  local value = tonumber(text)
  local fits = value and value % 1 == 0 and value >= least and value <= (most or math.huge)
  if not fits then fail("%s = '%s' is no %s", name, text, what) end
  return value
end

-- {size, rank, by} as far as a launcher tells, each with the name of its variable; {} without one.
local function launched()
  for _, launcher in ipairs(launchers) do
    local size = number(launcher.size, 1, "number of processes")
    local rank = (size or launcher.rank == "RANK") and number(launcher.rank, 0, "rank")
    if size or rank then
      return {size = size, rank = rank, size_from = launcher.size, rank_from = launcher.rank, by = launcher.by}
    end
  end
  return {}
end

local function check_alone()
  local name = local_ranks[1]
  local text = variable(name)
  if text then
    fail("%s = '%s' says that there are other ranks, but neither RANK and WORLD_SIZE are set nor rank and world_size "
      .. "given", name, text)
  end
end

--- rank and size out of {rank, world_size} and the environment, and the launcher ({} if none).
function environment.place(given)
  local found = launched()
  local size, rank = given.world_size or found.size, given.rank or found.rank
  local size_from = given.world_size and "world_size" or found.size_from
  local rank_from = given.rank and "rank" or found.rank_from
  if not size and not rank then
    check_alone()
    return 0, 1, found
  end
  if not size then
    fail("%s = %d, but not of how many: %s", rank_from, rank,
      given.rank and "give world_size, or set WORLD_SIZE" or "set WORLD_SIZE too")
  end
  if not rank then
    if size > 1 then
      fail("%s = %d, but which of them is this process? %s", size_from, size,
        given.world_size and "Give rank, or set RANK (0 to " .. size - 1 .. ")" or "Set " .. found.rank_from .. " too")
    end
    rank = 0
  end
  if rank >= size then
    fail("rank %d is outside a world of %d (%s = %d, %s = %d); ranks count from 0", rank, size, size_from, size,
      rank_from, rank)
  end
  return rank, size, found
end

local schemes = {"env", "tcp", "file"}

--- An init_method as {scheme, rest} and, of tcp and file, a rank and a size that may follow it:
--- "tcp://host:port?rank=0&world_size=2".
function environment.parse(method)
  local scheme, rest = method:match("^(%w+)://(.*)$")
  local known = {}
  for _, name in ipairs(schemes) do known[name] = true end
  if not known[scheme] then
    local near = scheme and core.nearest(scheme, schemes)
    fail("init_method '%s' is none of env://, tcp://host:port and file:///path%s", method,
      near and "; did you mean " .. near .. "://?" or "")
  end
  local query = {}
  local place, extra = rest:match("^([^?]*)%?(.*)$")
  for key, value in (extra or ""):gmatch("([^&=]+)=([^&]*)") do
    if (key ~= "rank" and key ~= "world_size") or not value:match("^%d+$") then
      fail("init_method '%s': after ? stand rank=N and world_size=N", method)
    end
    query[key] = tonumber(value)
  end
  return {scheme = scheme, place = place or rest, rank = query.rank, world_size = query.world_size}
end

--- Where the store is to be found: the init_method that the core takes, and the job's id if one is known.
function environment.meeting(method, found)
  local job = variable "LM_JOB"
  if method.scheme ~= "env" then return method.scheme .. "://" .. method.place, job end
  local host, port = variable "MASTER_ADDR", number("MASTER_PORT", 1, "port", 65535)
  if not host and found.by and found.size_from ~= "WORLD_SIZE" then
    fail("%s says that there are %d processes, but not where they meet: set MASTER_ADDR (the host of rank 0) and "
      .. "MASTER_PORT, or give init_method = \"tcp://host:port\" or \"file:///path/all/see\"", found.by, found.size)
  end
  host, port = host or "127.0.0.1", port or 29500
  if host:find(":", 1, true) and not host:find("[", 1, true) then host = "[" .. host .. "]" end
  if variable "TORCHELASTIC_USE_AGENT_STORE" ~= "True" then return ("tcp://%s:%d"):format(host, port), job end
  -- torchrun's agent owns that port; ours goes to a free one, published there.
  local run = ("%s/%s"):format(variable "TORCHELASTIC_RUN_ID" or "none", variable "TORCHELASTIC_RESTART_COUNT" or "0")
  return ("agent://%s:%d/luminary/%s"):format(host, port, run), job or "torchrun/" .. run
end

--- The job's secret, or nil.
function environment.token() return variable "LM_TOKEN" end

--- Seconds after which a silent rank is given up; 0: never.
function environment.heartbeat_timeout()
  local text = variable "LM_HEARTBEAT_TIMEOUT"
  local seconds = tonumber(text or 10)
  if seconds and seconds >= 0 then return seconds end
  fail("LM_HEARTBEAT_TIMEOUT = '%s' is no number of seconds", text)
end

--- This process's rank on its host, if a launcher says it.
function environment.local_rank()
  for _, name in ipairs(local_ranks) do
    local rank = tonumber(variable(name))
    if rank then return rank end
  end
end

return environment
