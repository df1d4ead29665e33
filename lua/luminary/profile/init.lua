--- lm.profile(f [, options]): Calls f() and records its ops, with their time, memory, FLOPs and the script's lines;
--- returns a profiler, and f's results. Without f, returns a profiler for start, step and stop.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local rank_and_size = require "luminary.base.rank_and_size"
local signature = require "luminary.base.signature"
local records = require "luminary.nn.module_fields"
local chrome_trace = require "luminary.profile.chrome_trace"
local op_table = require "luminary.profile.op_table"

local fail = options.fail

local Profiler = class.root "Profiler"

local OPTIONS = "{lines = true, shapes = false, modules = false, nvtx = false, max_events: count = 1000000, "
  .. "schedule: table?, on_trace_ready: function?}"

local PHASES = {wait = 0, warmup = 0, active = 1, ["repeat"] = 0, skip_first = 0}

-- Returns a schedule with all of its numbers.
local function schedule_of(given)
  local schedule = {}
  for name, n in pairs(given) do
    if not PHASES[name] then
      fail("profile: unknown option '%s' in schedule; it has wait, warmup, active, repeat and skip_first",
        tostring(name))
    end
    schedule[name] = options.arg("profile", "schedule." .. name, n, "natural")
  end
  for name, default in pairs(PHASES) do schedule[name] = schedule[name] or default end
  if schedule.active == 0 then options.must_be("profile", "schedule.active", "at least 1", 0) end
  return schedule
end

-- Returns the phase of step n, from 1: "none", "warmup" or "active"; and true if its cycle ends with it.
local function phase_of(schedule, n)
  n = n - schedule.skip_first
  if n < 1 then return "none" end
  local length = schedule.wait + schedule.warmup + schedule.active
  if schedule["repeat"] > 0 and n > schedule["repeat"] * length then return "none" end
  local at = (n - 1) % length
  local phase = at < schedule.wait and "none" or at < schedule.wait + schedule.warmup and "warmup" or "active"
  return phase, at == length - 1
end

Profiler.__missing = {
  key_averages = "profiler:table {group_by = \"op\" or \"shapes\"} sums by op, and profiler:rows() lists the sums",
  events = "profiler:export_chrome_trace(path) writes each span", add_metadata = "there is no metadata in this version",
  export_stacks = "profiler:table {group_by = \"line\"} sums by the script's line",
}

function Profiler:init(opts)
  self.options, self.schedule = opts, opts.schedule and schedule_of(opts.schedule) or nil
  self.recording, self.dropped, self.steps, self.cycles = nil, 0, 0, 0
  self.is_started, self.phase = false, "none"
end

-- ---- recording

local current = setmetatable({}, {__mode = "v"}) -- field `by`: the recording profiler
local is_on = false

local function forget() records.call_in_range, is_on, current.by = nil, false, nil end

local function begin_recording(self)
  if is_on then
    collectgarbage() -- stops a lost profiler, as after an error in a loop at the prompt
    if not current.by then forget() end
  end
  local opts, began = self.options, core.time()
  self.running = core.recording_start {
    lines = opts.lines, shapes = opts.shapes, nvtx = opts.nvtx, max_spans = opts.max_events,
  }
  self.recording_began, self.is_recording, is_on, current.by = began, true, true, self
  if opts.modules then
    records.call_in_range = function(name, f, ...) return core.record_kind("module", name, f, ...) end
  end
end

local function end_recording(self, keep)
  if not self.is_recording then return end -- the recording failed to begin
  local wall = core.time() - self.recording_began
  self.is_recording = false
  forget()
  local recording = core.recording_stop()
  self.running = nil
  if not keep then return end
  self.recording, self.dropped, self.began, self.wall = recording, recording:dropped(), self.recording_began, wall
  self.rank, self.size = rank_and_size()
end

local function end_step(self)
  if self.phase == "active" then
    core.record_span(("ProfilerStep#%d"):format(self.steps), self.step_began, core.time())
  end
end

local function begin_step(self)
  local before = self.phase
  self.steps = self.steps + 1
  self.phase, self.is_last = "active", false
  if self.schedule then self.phase, self.is_last = phase_of(self.schedule, self.steps) end
  if before == "warmup" and self.phase == "active" then end_recording(self, false) end
  if self.phase ~= "none" and (before == "none" or before ~= self.phase) then begin_recording(self) end
  self.step_began = core.time()
end

local function finish_cycle(self)
  self.is_last = false
  end_recording(self, self.phase == "active")
  if self.phase ~= "active" then return end
  self.phase, self.cycles = "none", self.cycles + 1
  if self.options.on_trace_ready then self.options.on_trace_ready(self) end
end

--- Starts the profiler, with step 1 of its schedule.
function Profiler:start()
  if self.is_started then fail("Profiler:start: the profiler is running already; call stop() first") end
  self.steps, self.cycles, self.phase = 0, 0, "none"
  begin_step(self)
  self.is_started = true
  return self
end

--- Ends a step of a training loop and begins the next, which the schedule may skip.
function Profiler:step()
  if not self.is_started then fail("Profiler:step: the profiler is not running; call start() first") end
  end_step(self)
  if self.is_last then finish_cycle(self) end
  if self.is_started then begin_step(self) end -- on_trace_ready may have stopped it
end

--- Stops the profiler. rows, table and export_chrome_trace then return its records.
function Profiler:stop()
  if not self.is_started then fail("Profiler:stop: the profiler is not running; call start() first") end
  self.is_started = false
  if self.schedule then end_step(self) end
  if self.phase ~= "none" then finish_cycle(self) end
  self.phase = "none"
  return self
end

--- Calls f(...) as a named range, as lm.record_function does.
function Profiler.range(_self, name, f, ...) return core.record_function(name, f, ...) end

-- ---- results

local function recorded(self, who)
  if not self.recording then fail("Profiler:%s: nothing was recorded; call start() and stop() first", who) end
  return self
end

local TABLE = "({sort_by = \"self_time\" | \"time\" | \"calls\" | \"memory\" | \"self_memory\" | \"flops\" | "
  .. "\"device_time\" | \"bytes\" | \"name\", group_by = \"op\" | \"line\" | \"shapes\", limit: count? = (20)})"

--- Returns the records as a list of rows, the largest first: fields name, kind, calls, and sums in seconds, bytes and
--- FLOPs.
Profiler.rows = signature.of("rows" .. TABLE:gsub(" = %(20%)", ""), function(self, opts)
  return (op_table.rows(recorded(self, "rows").recording, opts))
end)

--- Returns the records as text, with a row for each op, line or op on shapes, the largest first.
Profiler.table = signature.of("table" .. TABLE, function(self, opts)
  opts.limit = opts.limit or 20
  return op_table.text(recorded(self, "table"), opts)
end)

function Profiler:repr() return self.recording and self:table() or "Profiler()" end

--- Writes a trace in the Trace Event Format, which Perfetto and chrome://tracing show.
Profiler.export_chrome_trace = signature.of("export_chrome_trace(path: string)", function(self, path)
  chrome_trace.write(recorded(self, "export_chrome_trace"), path)
end)

-- ---- lm.profile

local function run_profiled(self, f)
  self:start()
  local results = options.pack(pcall(f))
  if self.is_started then self:stop() end
  if not results[1] then error(results[2], 0) end
  return self, unpack(results, 2, results.n)
end

return class.returned(Profiler, signature.of("profile(f: function?, " .. OPTIONS .. ")", function(f, opts)
  if f and opts.schedule then fail "profile: a schedule needs a profiler that steps; leave out f" end
  local self = Profiler(opts)
  if f then return run_profiled(self, f) end
  return self
end))
