--- Determines this process's rank, the number of ranks, and where they meet: from the call's arguments, then from a
--- launcher's environment variables.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local truncate_text = require "luminary.base.truncate_text"
local who = "init_process_group: "
local function fail(format, ...) options.fail(who .. format, ...) end

local environment = {}

-- Variables of launchers, in order of precedence. Slurm counts only within a step: an sbatch script itself has
-- SLURM_PROCID although it is not one of several.
local launchers = {
  {size = "WORLD_SIZE", rank = "RANK", by = "the environment"},
  {size = "OMPI_COMM_WORLD_SIZE", rank = "OMPI_COMM_WORLD_RANK", by = "mpirun"},
  {size = "PMI_SIZE", rank = "PMI_RANK", by = "a PMI launcher"},
  {size = "SLURM_STEP_NUM_TASKS", rank = "SLURM_PROCID", by = "srun"},
  {rank = "PMIX_RANK", by = "a PMIx launcher"},
}
local local_ranks = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}

local function variable(name)
  local text = core.getenv(name)
  return text ~= "" and text or nil
end

local function read_number(name, least, what, most)
  local text = variable(name)
  if not text then return nil end
  local value = tonumber(text)
  local fits = value and value % 1 == 0 and value >= least and value <= (most or math.huge)
  if not fits then fail("%s = '%s' is not a valid %s", name, text, what) end
  return value
end

-- Returns {size, rank, by} as far as a launcher sets them, each with the name of its variable; {} without one. If only
-- the rank is set, by variables that set both, its launcher is unknown.
local function launched()
  for _, launcher in ipairs(launchers) do
    local size = launcher.size and read_number(launcher.size, 1, "number of processes")
    local decides = size or launcher.rank == "RANK" or not launcher.size
    local rank = decides and read_number(launcher.rank, 0, "rank")
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
    fail("%s = '%s' means several ranks, but rank and world_size are neither set (RANK, WORLD_SIZE) nor passed", name,
      text)
  end
end

--- Returns rank and size from {rank, world_size} and the environment, and the launcher ({} if none).
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
    fail("%s = %d, but the number of processes is unknown; %s", rank_from, rank,
      given.rank and "pass world_size, or set WORLD_SIZE" or "set WORLD_SIZE too")
  end
  if not rank then
    if size > 1 then
      fail("%s = %d, but the rank of this process is unknown; %s", size_from, size,
        given.world_size and "pass rank, or set RANK (0 to " .. size - 1 .. ")" or "set " .. found.rank_from .. " too")
    end
    rank = 0
  end
  if rank >= size then
    fail("rank %d is out of range for %d ranks (%s = %d, %s = %d); ranks start at 0", rank, size, size_from, size,
      rank_from, rank)
  end
  return rank, size, found
end

local schemes = {"env", "tcp", "file"} -- schemes for users; the core also knows agent:// and pmix://

--- Parses an init_method to {scheme, rest} and, for tcp and file, an optional rank and size after it:
--- "tcp://host:port?rank=0&world_size=2".
function environment.parse(method)
  local scheme, rest = method:match("^(%w+)://(.*)$")
  if not lists.index_of(schemes, scheme) then
    local near = scheme and core.nearest(scheme, schemes)
    fail("init_method '%s' must start with env://, tcp:// or file://%s", truncate_text(method, 200),
      near and "; did you mean " .. near .. "://?" or "")
  end
  local query = {}
  local place, extra = rest:match("^([^?]*)%?(.*)$")
  for part in (extra and extra .. "&" or ""):gmatch("([^&]*)&") do
    local key, value = part:match("^([^=]*)=(%d+)$")
    if key ~= "rank" and key ~= "world_size" then
      fail("init_method '%s': only rank=N and world_size=N may follow ?", truncate_text(method, 200))
    end
    query[key] = tonumber(value)
  end
  return {scheme = scheme, place = place or rest, rank = query.rank, world_size = query.world_size}
end

--- Returns the first host of Slurm's short form: "node01" of "node[01-03,7],x5".
function environment.first_host(list)
  return (list:gsub("%[([^%],-]*)[^%]]*%]", "%1"):match("^[^,]*"))
end

-- Returns the host of rank 0 of a Slurm step, if this is one of `size` tasks, and a port and a job id that all tasks
-- derive. Two steps on one host have the same port only by chance.
local function slurm_step(rank, size)
  local list, job, step = variable "SLURM_STEP_NODELIST", variable "SLURM_JOB_ID", variable "SLURM_STEP_ID"
  if not (list and job and step and tonumber(variable "SLURM_STEP_NUM_TASKS") == size) then return nil end
  if not job:match "^%d" then return nil end
  local host, here = environment.first_host(list), variable "SLURMD_NODENAME"
  if rank == 0 and here and here ~= host then
    fail("rank 0 runs on %s, but the other ranks look for it on %s, the step's first node; set MASTER_ADDR to %s", here,
      host, here)
  end
  local number_of = tonumber((job:match "%d+")) * 31 + tonumber((step:match "%d+") or 0)
  return host, 20000 + number_of % 10000, ("slurm/%s.%s"):format(job, step)
end

-- Returns the meeting place under a launcher that sets none: by PMIx, or else by Slurm's variables; fails without both.
local function launcher_meeting(found, rank, size)
  local why = "PMIX_RANK is not this process's rank"
  if tonumber(variable "PMIX_RANK") == rank or not variable "PMIX_RANK" then
    local there
    there, why = core.dist_pmix()
    if there then return "pmix://", variable "PMIX_NAMESPACE" end
  end
  local host, port, job = slurm_step(rank, size)
  if host then return ("tcp://%s:%d"):format(host, read_number("MASTER_PORT", 1, "port", 65535) or port), job end
  fail("%s has %d processes but no address to meet at, and PMIx has none (%s); set MASTER_ADDR (the host of rank 0) "
    .. "and MASTER_PORT, or pass init_method = \"tcp://host:port\" or \"file:///path/all/see\"", found.by, size, why)
end

--- Returns the init_method by which this rank finds the store, in the core's form, and the job's id if it is known.
function environment.meeting(method, found, rank, size)
  local job = variable "LM_JOB"
  if method.scheme ~= "env" then return method.scheme .. "://" .. method.place, job end
  if variable "LM_RENDEZVOUS" then return variable "LM_RENDEZVOUS", job end
  local host, port = variable "MASTER_ADDR", read_number("MASTER_PORT", 1, "port", 65535)
  if not host and found.by and found.size_from ~= "WORLD_SIZE" then
    local where, its_job = launcher_meeting(found, rank, size)
    return where, job or its_job
  end
  host, port = host or "127.0.0.1", port or 29500
  if host:find(":", 1, true) and not host:find("[", 1, true) then host = "[" .. host .. "]" end
  if variable "TORCHELASTIC_USE_AGENT_STORE" ~= "True" then return ("tcp://%s:%d"):format(host, port), job end
  -- torchrun's agent owns that port; our store takes a free one, which it publishes there.
  local run = ("%s/%s"):format(variable "TORCHELASTIC_RUN_ID" or "none", variable "TORCHELASTIC_RESTART_COUNT" or "0")
  return ("agent://%s:%d/luminary/%s"):format(host, port, run), job or "torchrun/" .. run
end

--- Returns the backend that the launcher selects, or nil.
function environment.backend() return variable "LM_BACKEND" end

--- Returns the job's secret, or nil.
function environment.token() return variable "LM_TOKEN" end

--- Returns the seconds after which a silent rank counts as dead; 0: never.
function environment.heartbeat_timeout()
  local text = variable "LM_HEARTBEAT_TIMEOUT"
  local seconds = tonumber(text or 10)
  if seconds and seconds >= 0 then return seconds end
  fail("LM_HEARTBEAT_TIMEOUT = '%s' must be a number of seconds", text)
end

--- Returns this process's rank on its host, if a launcher sets it.
function environment.local_rank()
  for _, name in ipairs(local_ranks) do
    local rank = tonumber(variable(name))
    if rank then return rank end
  end
end

return environment
