--- Runs `luminary run`: starts a script as several ranks.
local core = require "luminary.core"
local read_file = require "luminary.base.read_file"
local cause = require "luminary.cli.failure_cause"
local flags = require "luminary.cli.command_options"
local lists = require "luminary.base.lists"
local rank_output = require "luminary.cli.rank_output"
local job = require "luminary.cli.run_ranks"
local elastic_nodes = require "luminary.cli.elastic_nodes"
local meeting = require "luminary.cli.node_rendezvous"
local mpirun = require "luminary.cli.mpirun"
local PREEMPTED = require "luminary.base.preempted_exit_code"

local run = {}

local USAGE = [[
usage: luminary run [options] SCRIPT [argument ...]
       luminary run --plan MODEL [--nodes N] [--gpus N] [--memory GB] ...

  --nproc N           processes on this node: a number; cpu: one a core; gpu: one a GPU; auto: gpu if there
                      is one, else cpu                                (1)
  --nnodes M          nodes of the job; start this command on each    (1)
  --nnodes MIN:MAX    an elastic job: it runs with MIN to MAX nodes, which come and go; see below
  --node-rank R       which of them this is, from 0                   (in a Slurm step of that many nodes: its number)
  --master-addr A     address of node 0                               (127.0.0.1; needed with several nodes)
  --master-port P     where rank 0 listens                            (one node, or elastic: a free port; else 29500)
  --rdzv URL          instead of these: tcp://host:port, or file:///path on a disk that all nodes see, where they need
                      no --node-rank
  --node-timeout S    an elastic job: seconds of silence after which a node is lost  (3)
  --join-timeout S    an elastic job: seconds to wait for MIN nodes   (600)
  --grace S           seconds from SIGTERM to SIGKILL for ranks to save their state  (30)
  --max-restarts K    after a failure start all ranks again, K times at most  (0)
  --backend NAME      default backend of init_process_group(): gloo, nccl or mpi; mpi: the ranks are
                      started by Open MPI's mpirun, whose output it is from then on
  --hosts A:2,B:2     with --backend mpi: hosts of the job, and how many ranks on each (--nproc)
  --log-dir D         also write each rank's output to files in D
  --pass-local-rank   give the script --local_rank=I before its arguments
  --dry-run           print each rank's environment and command, and start nothing
  --help              print this

Options of --plan, which prints layouts of a model's training with memory and time (docs/howto/plan.md):

  --plan MODEL        gpt2, gpt2-xl, llama-7b, llama3-70b, ..., a config.json of Hugging Face, or a Lua file that
                      returns a module made in nn.utils.init_empty_weights
  --nodes N           nodes (1)
  --gpus N            cards of a node (8)
  --memory GB         memory of a card (the card's)
  --card NAME         a100, h100, h200 or cpu (h100)
  --network GBIT      Gbit/s out of a node, all cards together (400 a card; a100 200)
  --batch N           sequences of a step on all cards together (4 a card)
  --seq N             tokens of a sequence (the model's positions, at most 8192; a Lua file's module: 1)
  --dtype NAME        of blocks and activations: bfloat16, float16 or float32; shards are float32 (bfloat16)
  --layouts N         how many to print (5)

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT in its
environment, as under torchrun, whose spellings are taken too (--nproc_per_node 2, --rdzv-backend c10d --rdzv-endpoint
host:port); with a file LM_RENDEZVOUS instead of the last two. Cores are shared among the ranks unless OMP_NUM_THREADS
is set. With several nodes set LM_TOKEN to the same secret on each. The file of --rdzv file:///path is one already, as
long as it is yours, and only you can write to it: another is refused without LM_TOKEN.

Of an elastic job each node is started with the same --nnodes MIN:MAX --rdzv tcp://HOST:PORT[,HOST:PORT...] FILE, at any
time. The first node at one of these hosts is the head; when it is lost, the next one in the list takes over. When a
node comes, leaves or is lost, all ranks are stopped (SIGTERM; SIGKILL after the head's --grace, or 1 s where a node was
lost) and started again with the nodes that are there; LM_RESTART_COUNT counts that. The script continues from its
newest checkpoint. Only failures of ranks count against --max-restarts. In a network that is parted both sides continue
if both have MIN nodes and a host of the list: a MIN above half of all nodes that are started, those beyond MAX
included, prevents that.

When a rank fails, the others have 2 s to end by themselves. The last lines then name the first cause, and the exit
code is that rank's (128 + N if signal N ended it). Signals are passed on; ranks that have not ended after --grace
seconds are killed; a second Ctrl-C kills at once.
]]

local rows = { -- rows in addition to those of USAGE
  nproc = {"text", "1"}, ["nproc-per-node"] = {same = "nproc"}, nnodes = {"text", "1"},
  ["rdzv-backend"] = {"text"}, ["rdzv-endpoint"] = {"text"}, ["rdzv-id"] = {"text"},
  ["rdzv-conf"] = {refuse = "there is nothing to set about how ranks meet; --rdzv says where"},
  grace = {"number", false}, -- mpirun.check refuses a given one
  ["use-env"] = {"flag"}, standalone = {"flag"},
  module = {refuse = "a rank runs a script: give its file"}, m = {same = "module"},
  ["no-python"] = {refuse = "a rank runs a Lua script; torchrun --no-python luajit SCRIPT starts one under torchrun"},
  tee = {refuse = "output is shown with its rank as it comes; --log-dir D also writes it to files"},
  redirects = {same = "tee"}, t = {same = "tee"}, r = {same = "tee"},
}

-- Rows of --plan's options. Their defaults are in cli/plan.lua.
local of_plan = {
  plan = {"text", false}, nodes = {"count", false}, gpus = {"count", false}, memory = {"positive", false},
  card = {"text", false}, network = {"positive", false}, batch = {"count", false}, seq = {"count", false},
  dtype = {"text", false}, layouts = {"count", false},
}
for name, row in pairs(of_plan) do rows[name] = row end

local function say(...) io.stderr:write("luminary run: ", string.format(...), "\n") end

-- ---- options

local function process_count(text)
  local number = tonumber(text)
  if number and number >= 1 and number <= 512 and number % 1 == 0 then return number end
  if text == "cpu" then return core.process_cores() end
  local cards = core.device_count("cuda")
  if text == "auto" then return cards > 0 and cards or core.process_cores() end
  if text ~= "gpu" then
    return nil, ("--nproc must be a number from 1 to 512, auto, cpu or gpu, got '%s'"):format(text)
  end
  if cards == 0 then return nil, "--nproc gpu: no GPU is available; --nproc cpu starts one process per core" end
  return cards
end

local backends = {"gloo", "nccl", "mpi"}

local function backend_problem(o)
  if o.is_elastic and o.backend == "mpi" then return "--nnodes MIN:MAX is not for --backend mpi; use gloo or nccl" end
  if o.hosts and o.backend ~= "mpi" then return "--hosts is for --backend mpi; otherwise start this command on each" end
  for _, name in ipairs(backends) do
    if o.backend == name or not o.backend then return o.backend == "mpi" and select(2, mpirun.check(o)) or nil end
  end
  local near = core.nearest(o.backend, backends)
  return ("--backend must be gloo, nccl or mpi, got '%s'%s"):format(o.backend,
    near and "; did you mean " .. near .. "?" or "")
end

-- Checks and completes the options; `at` is the script's position in args, named the set of names of those in args.
-- Returns an error message, or nil.
local function complete_options(o, at, args, named)
  for name in pairs(named) do
    if o.plan and not of_plan[name] then return ("--%s is not an option of --plan"):format(name) end
    if of_plan[name] and not o.plan then return ("--%s requires --plan MODEL"):format(name) end
  end
  if o.plan then
    return args[at] and ("--plan runs no script, got '%s'"):format(args[at]) or require("luminary.cli.plan").run(o)
  end
  local problem
  o.nproc, problem = process_count(o.nproc)
  if not o.nproc then return problem end
  local given = o.nnodes
  local least, most = given:match "^(%d+):(%d+)$"
  o.is_elastic = least ~= nil
  o.least, o.nnodes = tonumber(least or o.nnodes), tonumber(most or o.nnodes)
  if not o.least or o.least < 1 or o.least % 1 ~= 0 or o.nnodes < o.least then
    return ("--nnodes must be an integer of at least 1, or MIN:MAX with MIN at most MAX, got '%s'"):format(given)
  end
  if o["node-timeout"] < 0.5 then
    return ("--node-timeout must be at least 0.5 s, got '%g'"):format(o["node-timeout"])
  end
  problem = backend_problem(o) or meeting.read(o) or not args[at] and "SCRIPT is required"
  if problem then return problem end
  o.grace = o.grace or 30
  local file, why = io.open(args[at])
  if not file then return why end
  file:close()
end

-- ---- one rank's environment and command

local function random_hex()
  return (read_file("/dev/urandom", 16):gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

-- Returns the token, which other users do not know, and the job's id; both are made once for all rounds.
local function secrets(o)
  local token, given_id = meeting.variable "LM_TOKEN", meeting.variable "LM_JOB" or o["rdzv-id"]
  if o.nnodes == 1 and not o.is_elastic then
    return {token = token or random_hex(), job = given_id or random_hex(), made = not token}
  end
  local id = given_id or o.file or o.endpoints and table.concat(o.endpoints, ",")
    or o["master-addr"] .. ":" .. o["master-port"]
  if not token and not o.file and (o.is_elastic or o["node-rank"] == 0) then
    say("no LM_TOKEN: the job id %s keeps other jobs out, but not other users; set the same secret LM_TOKEN on "
      .. "every node", id)
  end
  return {token = token, job = id, id = given_id}
end

-- Returns the round of a job with fixed nodes: {restart, node_rank, first_rank, world_size, address, port, or file}.
local function fixed_round(o, restart)
  return {
    restart = restart, node_rank = o["node-rank"], first_rank = o["node-rank"] * o.nproc,
    world_size = o.nnodes * o.nproc, address = o["master-addr"], port = o["master-port"], file = o.file,
  }
end

-- Returns the rank's variables, "NAME=value", in the order of --dry-run.
local function environment(o, secret, i, round)
  local restart, node_rank = round.restart, round.node_rank
  local cores = math.max(1, math.floor(core.process_cores() / o.nproc))
  local list = {
    "RANK=" .. round.first_rank + i, "WORLD_SIZE=" .. round.world_size, "LOCAL_RANK=" .. i,
    "LOCAL_WORLD_SIZE=" .. o.nproc, "NODE_RANK=" .. node_rank, "GROUP_RANK=" .. node_rank,
    "LM_JOB=" .. secret.job .. (restart > 0 and "." .. restart or ""),
    "LM_RESTART_COUNT=" .. restart,
  }
  if round.file then -- a new file for each round
    list[#list + 1] = "LM_RENDEZVOUS=file://" .. round.file .. (restart > 0 and "." .. restart or "")
  else
    list[#list + 1] = "MASTER_ADDR=" .. round.address
    list[#list + 1] = "MASTER_PORT=" .. round.port
  end
  if secret.made then list[#list + 1] = "LM_TOKEN=" .. secret.token end
  if o.backend then list[#list + 1] = "LM_BACKEND=" .. o.backend end
  if not core.getenv "OMP_NUM_THREADS" then list[#list + 1] = "OMP_NUM_THREADS=" .. cores end
  return list
end

-- Returns the rank's command: the running program with its options, this command's file, the script and its arguments.
local function command(args, at, o, i)
  local list = {core.process_self()}
  local lowest = 0
  while args[lowest - 1] do lowest = lowest - 1 end
  for k = lowest + 1, 0 do list[#list + 1] = args[k] end
  list[#list + 1] = args[at]
  if o["pass-local-rank"] then list[#list + 1] = "--local_rank=" .. i end
  for k = at + 1, #args do list[#list + 1] = args[k] end
  return list
end

local function quoted(words)
  return table.concat(lists.map(words, function(word)
    return word:match("^[%w_@%%+=:,./-]+$") and word or "'" .. word:gsub("'", "'\\''") .. "'"
  end), " ")
end

-- Variables of other launchers that would take precedence over ours.
local FOREIGN = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}

-- Returns one round's ranks, for job.run; files: each rank's file for the cause of its failure.
local function ranks_of_round(args, at, o, secret, round, files)
  local ranks = {}
  for i = 0, o.nproc - 1 do
    local env = environment(o, secret, i, round)
    env[#env + 1] = files and "LM_ERROR_FILE=" .. files[i + 1] or nil
    ranks[i + 1] = {
      rank = round.first_rank + i, argv = command(args, at, o, i), env = env,
      error_file = files and files[i + 1], input = not o.is_elastic and o.nnodes * o.nproc == 1,
    }
    if files then lists.append(env, FOREIGN) end
    if files and not round.file then env[#env + 1] = "LM_RENDEZVOUS" end
  end
  return ranks
end

-- ---- rounds

-- Seconds before a restart, until this round's ranks on other nodes are gone and cannot meet those of the next.
local OTHER_NODES = 5

-- Returns a file for the error of each rank of this node, and the output of ranks.
local function open_files(supervisor, o)
  local files = {}
  for i = 1, o.nproc do files[i] = supervisor:file() end
  return files, rank_output(supervisor, o["log-dir"])
end

local function run_rounds(supervisor, args, at, o, secret)
  if (o["master-port"] or 0) == 0 then o["master-port"] = supervisor:port() end
  local files, out = open_files(supervisor, o)
  out:add(o["node-rank"] * o.nproc, o.nproc)
  local restart = 0
  while true do
    local ranks = ranks_of_round(args, at, o, secret, fixed_round(o, restart), files)
    local stopped_by = job.run(supervisor, out, ranks, o.grace)
    local text, code = cause.of(ranks, stopped_by)
    if text then out:say(text) end
    local again = code ~= 0 and code ~= PREEMPTED and not stopped_by and restart < o["max-restarts"]
    if again then
      restart = restart + 1
      out:say(("starting all ranks again, restart %d of %d"):format(restart, o["max-restarts"]))
      stopped_by = o.nnodes > 1 and job.pause(supervisor, OTHER_NODES) or nil
    end
    if not again or stopped_by then
      out:close(stopped_by)
      return code
    end
  end
end

-- Runs a round of an elastic job, and reports its outcome to the other nodes. Returns the signal that stopped this
-- node, and the exit code then.
local function run_elastic_round(supervisor, nodes, out, start, ranks, grace)
  out:say(("round %d: node %d of %d, ranks %d to %d of %d"):format(start.round, start.node_rank, start.nnodes,
    start.first_rank, start.first_rank + #ranks - 1, start.world_size))
  local stopped_by, is_over = job.run(supervisor, out, ranks, grace, nodes)
  local text, code, is_own = cause.of(ranks, stopped_by)
  if stopped_by then
    out:say(text or "stopped by " .. core.signal_name(stopped_by))
    return stopped_by, code
  elseif code == 0 then
    nodes:report("done", 0)
  elseif code == PREEMPTED then
    nodes:report("preempted", code)
  elseif is_over and not cause.has_failure(ranks) then
    nodes:report("stopped", code)
  else
    if is_own then out:say(text) end
    nodes:report("failed", code, text, is_own)
  end
end

local function run_elastic(supervisor, args, at, o, secret)
  local files, out = open_files(supervisor, o)
  local nodes = elastic_nodes.open(supervisor, out, secret, {
    endpoints = o.endpoints, least = o.least, most = o.nnodes, nproc = o.nproc, node_timeout = o["node-timeout"],
    join_timeout = o["join-timeout"], max_restarts = o["max-restarts"], grace = o.grace,
    script = args[at]:match "[^/]*$", port = (o["master-port"] or 0) > 0 and o["master-port"] or nil,
  })
  local code, stopped_by
  repeat
    local start, over
    start, over, stopped_by = nodes:wait()
    if start then
      local round = {
        restart = start.round, node_rank = start.node_rank, first_rank = start.first_rank,
        world_size = start.world_size, address = start.address:match "^%[?(.-)%]?:%d+$", port = start.port,
      }
      out:add(start.first_rank, o.nproc)
      stopped_by, code = run_elastic_round(supervisor, nodes, out, start,
        ranks_of_round(args, at, o, secret, round, files), o.grace)
    elseif over then
      code = over.code
      if over.text then out:say(over.text) end
    else
      code = 128 + stopped_by
    end
  until over or stopped_by
  nodes:close()
  out:close(stopped_by)
  return code
end

-- Replaces this process by mpirun.
local function run_mpi(args, at, o, secret)
  local env, argv = mpirun.command(o, secret, command(args, at, o))
  if o["dry-run"] then
    print(quoted(env) .. " " .. quoted(argv))
    return 0
  end
  say("%s", mpirun.exec(env, argv))
  return 1
end

--- Runs the command on args from `first` on; returns the exit status.
function run.main(args, first)
  local o, at = flags.read("run", USAGE, args, first, rows, complete_options)
  if not o then return at end
  if o.plan then return 0 end
  local secret = secrets(o)
  if o.backend == "mpi" then return run_mpi(args, at, o, secret) end
  local claim, problem
  if o.file and not o["dry-run"] then
    claim, problem = meeting.claim(o)
    if not claim then
      say("%s", problem)
      return 1
    end
  end
  local supervisor = core.process_supervisor()
  if o["dry-run"] then
    o["node-rank"] = o["node-rank"] or 0
    o["master-port"] = (o["master-port"] or 0) > 0 and o["master-port"] or supervisor:port()
    supervisor:close()
    for _, rank in ipairs(ranks_of_round(args, at, o, secret, fixed_round(o, 0))) do
      print(("# rank %d\n%s %s"):format(rank.rank, quoted(rank.env), quoted(rank.argv)))
    end
    return 0
  end
  local ok, code = pcall(o.is_elastic and run_elastic or run_rounds, supervisor, args, at, o, secret)
  supervisor:close()
  if claim then claim:leave() end
  if ok then return code end
  say("%s", (tostring(code):gsub("^[^\n]-:%d+: ", "")))
  return 1
end

return run
