--- Implements a worker: another Lua state, in a process or on a thread, that runs one function. Spawn contexts and
--- Processes consist of workers.
local jit = require "jit"
local core = require "luminary.core"
local at_exit = require "luminary.mp.at_exit"
local lists = require "luminary.base.lists"
local serializer = require "luminary.mp.serialization"
local options = require "luminary.base.options"
local problems = require "luminary.mp.worker_failure"
local shared = require "luminary.mp.shared_handle"
local fail = options.fail

local Worker = {}
Worker.__index = Worker

Worker.SIGTERM, Worker.SIGKILL = 15, 9

-- ---- which program

local executable

--- Sets the interpreter of workers, instead of the one that runs here or `luajit` on the PATH.
function Worker.set_executable(path)
  executable = options.arg("set_executable", "path", path, "string")
end

local function is_file(path) return core.file_kind(path) == "a regular file" end

--- Returns the path of this process's program, and whether it is LuaJIT itself, which runs a script, and not a host.
function Worker.program()
  local own = core.process_self()
  return own, own:match("[^/]*$"):find("^luajit") ~= nil
end

local function interpreter(who)
  if executable then return executable end
  local own, is_luajit = Worker.program()
  if is_luajit and is_file(own) then return own end
  for folder in (core.getenv "PATH" or ""):gmatch("[^:]+") do
    if is_file(folder .. "/luajit") then return folder .. "/luajit" end
  end
  fail("%s: this program (%s) is not luajit, and PATH has none; select one with lm.mp.set_executable(path)", who, own)
end

-- ---- starting

--- Returns the arguments for a function, a plain list that may have holes; nil means none. remedy: the form of a
--- correct call, for errors.
function Worker.check_args(who, args, remedy)
  args = args or {}
  if not options.is_plain(args) then
    fail("%s must be a plain list, got %s; write %s", who, options.describe(args), remedy)
  end
  for key in pairs(args) do
    if type(key) ~= "number" and key ~= "n" then
      fail("%s must be a plain list, but has a field '%s'; write %s", who, tostring(key), remedy)
    end
  end
  return options.list(who, "list", args)
end

--- Returns the compute threads of each of n workers, which share the cores; nil if a variable sets them.
function Worker.share_of_threads(n)
  if core.getenv "OMP_NUM_THREADS" then return nil end
  return math.max(1, math.floor(core.process_cores() / n))
end

--- Encodes a worker's job, {fn, args}, once for all workers.
function Worker.job(who, fn, args, method)
  local n = args.n or table.maxn(args)
  local text, tensors, handles = serializer.encode(who, {fn = fn, args = args, n = n}, {
    envelope = true, processes = method == "process",
  })
  return {text = text, tensors = tensors, handles = handles}
end

-- Returns the code with which a worker begins. LuaJIT's compiler is off there if it is off here.
local function chunk(channel, thread)
  return ("%spackage.path, package.cpath = %q, %q; local channel = %s; LM_CHANNEL = nil; "
    .. "local file, why = io.open '/'; if not file then error('cannot load modules: ' .. why, 0) end; file:close(); "
    .. "local code = require('luminary.mp.worker_main')(channel, %s)"):format(
    jit.status() and "" or "jit.off(); ", package.path, package.cpath, channel, thread)
end

--- Starts a worker. spec: method, job, index (put before the job's arguments; nil: nothing), environment (a table;
--- false removes a variable), threads (compute threads; nil: the default), nice (a thread's niceness, above 0),
--- own_streams (a thread computes on streams of its own), name (its errors go to standard error under that name; nil:
--- the caller handles them).
function Worker.start(who, spec)
  local environment = spec.environment or {}
  if not spec.name then environment.LM_ERROR_FILE, environment.TORCHELASTIC_ERROR_FILE = false, false end
  local self = setmetatable({index = spec.index}, Worker)
  local thread = spec.method == "thread"
  if thread then
    self.handle, self.channel = core.mp_thread(chunk("LM_CHANNEL", true), spec.nice or 0)
  else
    local changes = {}
    for name, value in pairs(environment) do changes[#changes + 1] = value and name .. "=" .. value or name end
    if spec.threads then changes[#changes + 1] = "OMP_NUM_THREADS=" .. spec.threads end
    local arguments = {"-e", chunk("3", false) .. "; os.exit(code, true)"}
    self.handle, self.channel = core.mp_process(interpreter(who), arguments, changes)
    self.pid = core.mp_pid(self.handle)
  end
  at_exit.renew()
  self.thread = thread
  local script = _G.arg and _G.arg[0]
  local boot = {
    script = type(script) == "string" and script or nil, environment = environment, threads = spec.threads,
    name = spec.name, index = spec.index, own_streams = spec.own_streams,
  }
  local ok, problem = pcall(function()
    shared.send(self.channel, (serializer.encode(who, boot, {processes = not thread})), {})
    shared.send(self.channel, spec.job.text, spec.job.tensors, spec.job.handles)
  end)
  if not ok and not problem:find("closed$") then -- if it died before reading, its end is reported later
    Worker.stop({self}, 0)
    error(problem, 0)
  end
  return self
end

-- ---- its state

-- Reads all messages that the worker has sent.
local function read(self)
  while core.mp_is_open(self.channel) do
    local text, tensors, handles = core.mp_get(self.channel, 0)
    if text == nil then core.mp_close_handle(self.channel) end
    if not text then return end
    self.report = serializer.decode(text, tensors, handles)
  end
end

--- Closes its channel; kills a process; asks a thread to end, and waits up to `seconds` for that.
function Worker:close(seconds)
  core.mp_close_handle(self.channel)
  core.mp_close(self.handle, seconds)
end

--- Returns true if it has ended; then `code` and `signal`, or `report` (its own report), are set.
function Worker:look()
  if self.ended then return true end
  local code, signal, problem = core.mp_ended(self.handle)
  read(self)
  if not code then return false end
  self.ended, self.code, self.signal = true, code, signal
  if self.thread and self.report and self.report.code then self.code = self.report.code end
  if self.thread and self.report and not self.report.ok then self.code = self.report.code or 1 end
  if problem ~= "" then self.problem = problem end
  self:close()
  return true
end

--- Returns nil while it runs, then minus the signal that ended it, or its exit code, as in Python.
function Worker:exitcode()
  if not self:look() then return nil end
  return self.signal and -self.signal or self.code
end

--- Returns the process ids of workers, by number; an empty list for threads.
function Worker.pids(workers)
  return lists.map(workers, function(worker) return worker.pid end)
end

--- Waits until one of these workers has a message or ends, or a handle of a queue has one, `seconds` at most. A thread
--- ends after it has closed its channel.
function Worker.wait(workers, seconds, queue)
  local list = {queue}
  for _, worker in ipairs(workers) do
    local is_open = core.mp_is_open(worker.channel)
    if is_open then list[#list + 1] = worker.channel end
    if not (is_open and worker.thread) then list[#list + 1] = worker.handle end
  end
  core.mp_wait(list, seconds)
end

--- Waits for its end; returns true if it came within `seconds` (nil: no limit).
function Worker:join(seconds)
  local deadline = core.time() + (seconds or math.huge)
  while not self:look() do
    local left = deadline - core.time()
    if left <= 0 then return false end
    Worker.wait({self}, math.min(left, 1))
  end
  return true
end

function Worker:send_signal(number)
  if self:look() then return end
  self.asked_to_stop = true
  core.mp_signal(self.handle, number)
end

--- Treats a thread that does not end on request as ended, though it still runs.
function Worker:abandon()
  self.ended, self.code, self.abandoned = true, 1, true
  self.problem = "its thread did not end when it was asked to, and still runs"
  self:close(0)
end

--- Ends workers: asks all of them, and after `seconds` kills processes. Threads that do not respond are left alone.
function Worker.stop(workers, seconds)
  local deadline = core.time() + seconds
  for _, worker in ipairs(workers) do worker:send_signal(Worker.SIGTERM) end
  for _, worker in ipairs(workers) do
    while not worker:join(math.max(0, math.min(0.05, deadline - core.time()))) and core.time() < deadline do
      if worker.thread then worker:send_signal(Worker.SIGTERM) end -- a thread may have caught the first one
    end
    if not worker.thread then
      worker:send_signal(Worker.SIGKILL)
      worker:join(5)
    elseif not worker:look() then
      worker:abandon()
    end
  end
end

--- Words the end of a worker, or its failure: "failed: MESSAGE", with the traceback of `who`, or "was ended by
--- SIGKILL". `when` follows these words: " before it took any task".
function Worker.how_it_ended(ended, who, when)
  when = when or ""
  if ended.message then return ("failed%s: %s"):format(when, problems.text(ended, who)) end
  if ended.signal then return "was ended by " .. core.signal_name(ended.signal) .. when end
  return ("ended with exit code %d%s"):format(ended.code, when)
end

--- Returns a worker's failure, {message, traceback, cause_rank, given}, once it has ended; nil if there was none.
function Worker:failure()
  if self.report and self.report.ok or not self.report and self.code == 0 and not self.signal then return nil end
  local failure = {asked_to_stop = self.asked_to_stop, pid = self.pid, code = self.code, signal = self.signal}
  if self.report and self.report.message then
    failure.message, failure.traceback = self.report.message, self.report.traceback
    failure.cause_rank = self.report.cause_rank
  elseif self.problem then
    failure.message = self.problem
  end
  return failure
end

return Worker
