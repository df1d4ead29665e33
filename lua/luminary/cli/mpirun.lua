--- Implements `luminary run --backend mpi`: MPI knows only processes that its own launcher starts, so this command
--- becomes mpirun.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local run_command = require "luminary.base.run_command"
local ffi = require "ffi"

pcall(ffi.cdef, "int execvp(const char *file, const char *const argv[]);")
pcall(ffi.cdef, "unsigned geteuid(void);")

local mpirun = {}

local INSTALL = "on Debian: apt install openmpi-bin libopenmpi-dev"
local MEETING = "mpirun passes the ranks the address where they meet"

-- Options of `luminary run` without an equivalent in mpirun, and remedies.
local REFUSED = {
  ["node-rank"] = "mpirun starts the ranks of all nodes from one: --hosts a:2,b:2",
  ["max-restarts"] = "mpirun ends the job with its first rank that fails; start it again, from a checkpoint",
  grace = "mpirun itself kills the ranks",
  ["master-addr"] = MEETING, ["master-port"] = MEETING, rdzv = MEETING, ["rdzv-endpoint"] = MEETING,
  ["pass-local-rank"] = "dist.get_local_rank() and OMPI_COMM_WORLD_LOCAL_RANK tell a rank which it is on its host",
}

-- Variables of the script, the library and Lua that ranks on other hosts need, too.
local CARRIED = {"LUA_PATH", "LUA_CPATH", "PATH", "LD_LIBRARY_PATH", "MASTER_ADDR", "MASTER_PORT"}
for _, variable in ipairs(require "luminary.environment_variables") do
  if variable.carried then CARRIED[#CARRIED + 1] = variable.name end
end
-- Variables of other launchers that would take precedence over mpirun's.
local FOREIGN = {
  "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "LM_ERROR_FILE",
  "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "LM_RENDEZVOUS",
}

local variable = require("luminary.cli.node_rendezvous").variable

--- Returns true if mpirun supports the options; otherwise nil and the reason.
function mpirun.check(o)
  for name, why in pairs(REFUSED) do
    if o[name] and o[name] ~= 0 then return nil, ("--%s cannot be used with --backend mpi: %s"):format(name, why) end
  end
  if o.nnodes > 1 then return nil, "--nnodes cannot be used with --backend mpi: " .. REFUSED["node-rank"] end
  for part in (o.hosts and o.hosts .. "," or ""):gmatch "([^,]*)," do
    local host, slots = part:match "^([%w_.-]+):?(%d*)$"
    if not host or slots == "0" or part:match ":$" then
      return nil, ("--hosts must be names with numbers of ranks, such as a:2,b:2, got '%s'"):format(
        o.hosts)
    end
  end
  local built, why = pcall(core.dist_has, "mpi", "--backend mpi")
  if not built then
    return nil, ("%s; install Open MPI (%s) and rebuild Luminary"):format(tostring(why):gsub("^[^\n]-:%d+: ", ""),
      INSTALL)
  end
  local pipe = io.popen "mpirun --version 2>&1"
  local version = pipe:read "*a"
  pipe:close()
  if version:find("Open MPI", 1, true) then return true end
  if version:find("not found", 1, true) or version == "" then
    return nil, "--backend mpi: cannot find mpirun; install Open MPI (" .. INSTALL .. ")"
  end
  return nil, ("--backend mpi: mpirun must be Open MPI's, got '%s'; put Open MPI's first in PATH (%s)"):format(
    version:match "[^\n]*", INSTALL)
end

-- Returns "a:2,b:2" and the number of ranks; a host without a number has nproc.
local function placed(o)
  local list, count = {}, 0
  for host, slots in o.hosts:gmatch "([^,:]+):?(%d*)" do
    local n = tonumber(slots) or o.nproc
    list[#list + 1], count = host .. ":" .. n, count + n
  end
  return table.concat(list, ","), count
end

--- Returns the variables ("NAME=value") and the words of the command that starts `words` (a rank's) under mpirun.
function mpirun.command(o, secret, words)
  local cores, cards = math.max(1, math.floor(core.process_cores() / o.nproc)), core.device_count "cuda"
  local nccl = cards >= o.nproc and pcall(core.dist_has, "nccl", "run")
  local env = {"LM_BACKEND=" .. (nccl and "cpu:mpi,cuda:nccl" or "mpi"), "LM_JOB=" .. secret.job}
  if secret.made then env[#env + 1] = "LM_TOKEN=" .. secret.token end
  if not variable "OMP_NUM_THREADS" then env[#env + 1] = "OMP_NUM_THREADS=" .. cores end
  if ffi.C.geteuid() == 0 then
    lists.append(env, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"})
  end
  local carried = {"LM_BACKEND", "LM_JOB", "LM_TOKEN", "OMP_NUM_THREADS"}
  local argv = {"mpirun", "-np", tostring(o.nproc)}
  if o.hosts then
    local hosts, count = placed(o)
    argv[3], argv[4], argv[5] = tostring(count), "--host", hosts
    lists.append(carried, lists.filter(CARRIED, variable))
  end
  -- Ranks get the cores of OMP_NUM_THREADS, wherever the system schedules them, as under `luminary run`.
  lists.append(argv, {"--bind-to", "none", "--oversubscribe", "--tag-output"})
  if o["log-dir"] then lists.append(argv, {"--output-filename", o["log-dir"]}) end
  for _, name in ipairs(carried) do
    if name ~= "LM_TOKEN" or secret.token then lists.append(argv, {"-x", name}) end
  end
  return env, lists.append(argv, words)
end

--- Replaces this process by mpirun with the arguments argv; returns only if that fails, with the reason.
function mpirun.exec(env, argv)
  for _, name in ipairs(FOREIGN) do core.setenv(name) end
  for _, each in ipairs(env) do core.setenv(each:match "^([^=]*)=(.*)$") end
  io.stdout:flush()
  ffi.C.execvp("mpirun", (run_command.strings(argv)))
  return "mpirun cannot be started (errno " .. ffi.errno() .. "); install Open MPI (" .. INSTALL .. ")"
end

return mpirun
