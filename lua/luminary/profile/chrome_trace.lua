--- chrome_trace.write(profile, path): Writes the spans of a profile in the Trace Event Format,
--- https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete events ("X") with times in
--- microseconds, a row for each thread and for each stream of a device. Processes have numbers by rank, so that traces
--- of several ranks can be joined.
local characters = require "luminary.base.characters"
local json_encode = require "luminary.base.json_encode"
local paths = require "luminary.paths"
local op_table = require "luminary.profile.op_table"

local chrome_trace = {}

local PER_RANK = 1000 -- process numbers of a rank: first its threads, then each device

-- Returns microseconds, rounded to the clock's nanoseconds: without rounding errors of sums, spans nest exactly.
local function microseconds(seconds) return math.floor(seconds * 1e9 + 0.5) / 1e3 end

local function name_event(what, pid, tid, name)
  return {ph = "M", name = what, pid = pid, tid = tid, args = {name = name}}
end

function chrome_trace.write(profile, path)
  local pieces = {'{"displayTimeUnit":"ms","traceEvents":[\n'}
  local function put(event)
    pieces[#pieces + 1] = (#pieces > 1 and ",\n" or "") .. characters.as_utf8(json_encode(event))
  end
  local host = profile.rank * PER_RANK + 1
  local prefix = profile.size > 1 and ("rank %d: "):format(profile.rank) or ""
  local threads, devices, n_devices, streams = {}, {}, 0, {}
  put(name_event("process_name", host, 0, prefix .. "CPU"))
  for span in op_table.spans(profile.recording) do
    if not threads[span.thread] then
      threads[span.thread] = true
      put(name_event("thread_name", host, span.thread, ("thread %d"):format(span.thread)))
    end
    local args = {line = span.line, shapes = span.shapes}
    for _, name in ipairs {"memory", "flops", "bytes"} do
      if span[name] ~= 0 then args[name] = span[name] end
    end
    local event = {
      ph = "X", name = span.name, cat = span.kind, pid = host, tid = span.thread,
      ts = microseconds(span.start - profile.began), dur = microseconds(span.time), args = args,
    }
    put(event)
    if span.device_time then
      local pid = devices[span.device]
      if not pid then
        n_devices = n_devices + 1
        pid = host + n_devices
        devices[span.device], streams[pid] = pid, {}
        put(name_event("process_name", pid, 0, prefix .. span.device))
      end
      if not streams[pid][span.stream] then
        streams[pid][span.stream] = true
        put(name_event("thread_name", pid, span.stream, ("stream %d"):format(span.stream)))
      end
      event.pid, event.tid, event.ts = pid, span.stream, microseconds(span.device_start - profile.began)
      event.dur = microseconds(span.device_time)
      put(event)
    end
  end
  pieces[#pieces + 1] = "\n]}\n"
  paths.write(path, pieces)
end

return chrome_trace
