--- Runs one round of a job under `luminary run`: its ranks from start to end.
local core = require "luminary.core"
local PREEMPTED = require "luminary.base.preempted_exit_code"
local read_file = require "luminary.base.read_file"

local job = {}

-- Seconds: for others to end by themselves once one failed; from SIGTERM to SIGKILL; after that; for reading output
-- that ranks left; for a stopped rank to continue.
local FAILURE, TERM, KILL, SWEEP, FROZEN = 2, 1, 5, 3, 10
local SIGINT, SIGKILL, SIGPIPE, SIGTERM = 2, 9, 13, 15

local Round = {}
Round.__index = Round

-- Sends a signal to every running rank. `ending`: true if the launcher ends them, which makes them no causes.
local function signal_all(self, number, ending)
  for id, rank in pairs(self.running) do
    rank.ended_by_us = rank.ended_by_us or ending
    self.supervisor:signal(id, number)
  end
end

local function kill_all(self)
  signal_all(self, SIGKILL, true)
  self.next_signal, self.stop_at = 0, core.time() + KILL
end

-- Schedules SIGTERM in `seconds`, unless it is due sooner.
local function stop_in(self, seconds)
  self.stop_at = math.min(self.stop_at or math.huge, core.time() + seconds)
  self.next_signal = self.next_signal or SIGTERM
end

local function is_stopped(rank)
  return (read_file(("/proc/%d/stat"):format(rank.pid)) or ""):match("^.*%) (%a)") == "T"
end

-- Kills stopped ranks (SIGSTOP) once all others have ended, since nobody else would notice them.
local function end_stopped(self)
  for _, rank in pairs(self.running) do
    if not is_stopped(rank) then
      self.stopped_since = nil
      return
    end
  end
  self.stopped_since = self.stopped_since or core.time()
  if core.time() - self.stopped_since < self.heartbeat_timeout then return end
  for id, rank in pairs(self.running) do
    rank.frozen = true
    self.supervisor:signal(id, SIGKILL)
  end
end

-- Ends the round of an elastic job: SIGTERM after stop.wait seconds, SIGKILL stop.grace seconds later. After one
-- SIGTERM it sends no other, which would interrupt a save.
local function end_round(self, stop)
  if not stop or self.stop == stop or self.next_signal == 0 then return end
  self.stop = stop
  if self.next_signal == SIGKILL or self.stopped_by == SIGTERM then
    self.next_signal = SIGKILL
    self.stop_at = math.min(self.stop_at, core.time() + stop.wait + stop.grace)
  else
    stop_in(self, stop.wait)
  end
end

-- Sends due signals; returns the seconds to wait for the next event.
local function seconds_left(self)
  if not self.stop_at and self.count > 0 and self.heartbeat_timeout > 0 then
    end_stopped(self)
    return 0.5
  end
  if not self.stop_at then return -1 end
  local left = self.stop_at - core.time()
  if left > 0 then return left end
  if self.next_signal == SIGTERM then
    signal_all(self, SIGTERM, true)
    self.next_signal, self.stop_at = SIGKILL, core.time() + (self.stop and self.stop.grace or TERM)
  elseif self.next_signal == SIGKILL then
    kill_all(self)
  else -- the kernel itself is stuck with them
    self.running = {}
  end
  return 0
end

local on = {}

function on.output(self, id, stream, text)
  local rank = self.ranks[id]
  if not rank then return end
  if text == "" then self.open = self.open - 1 end
  self.out:take(rank.rank, stream, text)
end

function on.ended(self, id, code, signal)
  local rank = self.running[id]
  if not rank then return end
  self.running[id] = nil
  self.count = self.count + 1
  rank.code, rank.signal, rank.order = code, signal, self.count
  rank.after_signal = self.stopped_by ~= nil
  if code ~= 0 and not self.stopped_by then stop_in(self, code == PREEMPTED and self.grace or FAILURE) end
end

function on.signal(self, number)
  if self.stopped_by and number == SIGINT and self.interrupted then return kill_all(self) end
  local has_come = number == SIGTERM and self.next_signal == SIGKILL and not self.stopped_by
  self.interrupted = self.interrupted or number == SIGINT
  self.stopped_by = self.stopped_by or number
  stop_in(self, self.grace)
  if has_come then return end -- the ranks got SIGTERM at the round's end
  signal_all(self, number)
  self.out:say(("%s passed on to the ranks; %s kills them"):format(core.signal_name(number),
    self.interrupted and "Ctrl-C once more" or "Ctrl-C twice"))
end

function on.closed(self, stream)
  if stream ~= 1 then return end
  self.stopped_by = self.stopped_by or SIGPIPE
  stop_in(self, 0)
end

function on.ready() end -- nodes:serve handles it

local function handle(self, kind, ...)
  if kind then on[kind](self, ...) end
  if self.nodes then end_round(self, self.nodes:serve()) end
  return kind
end

-- Returns the next event after waiting at most `seconds` (< 0: without a limit).
local function next_event(self, seconds)
  local tick = self.nodes and self.nodes.tick()
  if tick and (seconds < 0 or seconds > tick) then seconds = tick end
  return handle(self, self.supervisor:next(seconds))
end

-- Starts all ranks, with empty error files.
local function start_all(self, ranks)
  for _, rank in ipairs(ranks) do core.growing_file_close(core.growing_file_open(rank.error_file, false)) end
  for _, rank in ipairs(ranks) do
    local id, pid = self.supervisor:start(rank)
    rank.pid = pid
    self.ranks[id], self.running[id], self.open = rank, rank, self.open + 2
  end
end

-- Reads the output that remains in the pipes once all writers have ended. A process that escaped may hold a pipe open,
-- so silence ends it too.
local function drain(self)
  local deadline = self.out.deadline(self.stopped_by)
  while self.open > 0 and core.time() < deadline do
    local kind = next_event(self, 0.5)
    if kind == "signal" or (not kind and self.supervisor:printed()) then break end
  end
end

--- Waits; returns the signal that arrived meanwhile, if one did.
function job.pause(supervisor, seconds)
  local deadline = core.time() + seconds
  while core.time() < deadline do
    local kind, number = supervisor:next(deadline - core.time())
    if kind == "signal" then return number end
    if kind == "closed" and number == 1 then return SIGPIPE end
  end
end

--- Runs all ranks ({rank, argv, env, error_file, input}) to their end, and sets each one's pid, code, signal, order (of
--- ending), ended_by_us, after_signal and record. grace: seconds that a signal leaves them. Returns the signal that
--- stopped the launcher, if one did, and true if `nodes`, those of an elastic job, ended the round. No process of the
--- ranks remains.
function job.run(supervisor, out, ranks, grace, nodes)
  local self = setmetatable({
    supervisor = supervisor, out = out, grace = grace, nodes = nodes, ranks = {}, running = {}, open = 0, count = 0,
  }, Round)
  self.heartbeat_timeout = tonumber(core.getenv "LM_HEARTBEAT_TIMEOUT") or FROZEN
  start_all(self, ranks)
  while next(self.running) do next_event(self, seconds_left(self)) end
  local left = supervisor:sweep(SWEEP)
  drain(self)
  if left > 0 then out:say(("%d processes cannot be killed"):format(left)) end
  for _, rank in ipairs(ranks) do
    local known, record = pcall(core.json_decode, assert(read_file(rank.error_file), rank.error_file))
    rank.record = known and type(record) == "table" and record or nil
  end
  return self.stopped_by, self.stop ~= nil
end

return job
