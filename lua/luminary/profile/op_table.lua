--- op_table: Builds the table of a profile: spans by op, line or shapes.
local aligned_columns = require "luminary.base.aligned_columns"
local bytes_text = require "luminary.base.bytes_text"
local lists = require "luminary.base.lists"

local op_table = {}

local KEYS = {
  op = function(span) return span.name end,
  line = function(span) return span.line or "an unknown line" end,
  shapes = function(span) return span.name .. "\0" .. (span.shapes or "") end,
}

--- Returns an iterator over the spans of a recording, in the order in which they end: inner spans before the outer one.
--- It returns the same table each time.
function op_table.spans(recording)
  local i, n, span = 0, recording:count(), {}
  local within = {} -- device seconds of spans not yet subtracted, by thread and depth
  return function()
    i = i + 1
    if i > n then return nil end
    span.name, span.kind, span.line, span.shapes, span.thread, span.depth, span.start, span.time, span.self_time,
      span.memory, span.self_memory, span.flops, span.bytes, span.device, span.stream, span.device_start,
      span.device_time = recording:span(i)
    local depths = within[span.thread] or {}
    within[span.thread] = depths
    local inside, depth = depths[span.depth + 1] or 0, span.depth
    depths[depth + 1], depths[depth] = 0, (depths[depth] or 0) + (span.device_time or inside)
    span.self_device_time = span.device_time and math.max(span.device_time - inside, 0) or 0
    return span
  end
end

local SUMS = {
  "time", "self_time", "memory", "self_memory", "flops", "bytes", "device_time", "self_device_time",
}

--- Returns rows {name, kind, calls, and the sums of SUMS, …}, and their number without the limit. A line's time is its
--- spans' own time: backward of its ops is within the span of another line.
function op_table.rows(recording, opts)
  local by_key, rows, key_of = {}, {}, KEYS[opts.group_by]
  for span in op_table.spans(recording) do
    local key = key_of(span)
    local row = by_key[key]
    if not row then
      row = {name = span.name, kind = span.kind, calls = 0, device = span.device}
      if opts.group_by == "line" then row.name, row.kind = key, "line" end
      if opts.group_by == "shapes" then row.shapes = span.shapes end
      for _, sum in ipairs(SUMS) do row[sum] = 0 end
      by_key[key], rows[#rows + 1] = row, row
    end
    row.calls = row.calls + 1
    for _, sum in ipairs(SUMS) do row[sum] = row[sum] + (span[sum] or 0) end
  end
  for _, row in ipairs(rows) do
    if opts.group_by == "line" then
      row.time, row.memory, row.device_time = row.self_time, row.self_memory, row.self_device_time
    end
  end
  local by = opts.sort_by
  table.sort(rows, function(a, b)
    if by ~= "name" and a[by] ~= b[by] then return a[by] > b[by] end
    if a.name ~= b.name then return a.name < b.name end
    return (a.shapes or "") < (b.shapes or "")
  end)
  local n = #rows
  for i = n, (opts.limit or n) + 1, -1 do rows[i] = nil end
  return rows, n
end

--- Adds the number of omitted rows, of n, to the lines of a table.
function op_table.add_omitted(lines, rows, n)
  if n > #rows then lines[#lines + 1] = ("%d more; {limit = %d} shows all"):format(n - #rows, n) end
end

-- ---- the text

local function seconds(s)
  if s < 1e-3 then return ("%.1f us"):format(s * 1e6) end
  return s < 1 and ("%.3f ms"):format(s * 1e3) or ("%.3f s"):format(s)
end

local function bytes(n) return n == 0 and "-" or (n < 0 and "-" or "") .. bytes_text(math.abs(n)) end

local function flops(n)
  if n == 0 then return "-" end
  for _, unit in ipairs {"FLOP", "kFLOP", "MFLOP", "GFLOP"} do
    if n < 1000 then return ("%.4g %s"):format(n, unit) end
    n = n / 1000
  end
  return ("%.4g TFLOP"):format(n)
end

-- Returns lines of columns; the first is flush left. A column without values is omitted.
local function aligned(columns, rows)
  columns = lists.filter(columns, function(column)
    return not column.optional or not lists.every(rows, function(row) return column[2](row) == "-" end)
  end)
  local cells = {lists.map(columns, function(column) return column[1] end)}
  for r, row in ipairs(rows) do
    cells[r + 1] = lists.map(columns, function(column) return column[2](row) end)
  end
  local lines, width = aligned_columns(cells, 2)
  table.insert(lines, 2, ("-"):rep(width))
  return lines
end

local HEADS = {op = "Name", line = "Line", shapes = "Name"}

--- Returns the table as text. profile: {recording, dropped, wall}.
function op_table.text(profile, opts)
  local total, total_device, total_flops = 0, 0, 0
  for span in op_table.spans(profile.recording) do
    total, total_device = total + span.self_time, total_device + span.self_device_time
    total_flops = total_flops + span.flops
  end
  local function value(name, text) return function(row) return text(row[name]) end end
  local function device(name) return function(row) return row[name] == 0 and "-" or seconds(row[name]) end end
  local columns = {
    {HEADS[opts.group_by], function(row) return row.name end},
    {"Self time", value("self_time", seconds)},
    {"Self %", function(row) return ("%.1f"):format(total > 0 and 100 * row.self_time / total or 0) end},
    {"Time", value("time", seconds)},
    {"Time / call", function(row) return seconds(row.time / row.calls) end},
    {"Calls", function(row) return ("%d"):format(row.calls) end},
    {"Self device", device "self_device_time", optional = true},
    {"Device", device "device_time", optional = true},
    {"Self memory", value("self_memory", bytes), optional = true},
    {"Memory", value("memory", bytes), optional = true},
    {"FLOPs", value("flops", flops), optional = true},
    {"Sent", value("bytes", bytes), optional = true},
    {"Shapes", function(row) return row.shapes or "-" end, optional = true},
  }
  local rows, n = op_table.rows(profile.recording, opts)
  local lines = aligned(columns, rows)
  lines[#lines + 1] = lines[2]
  op_table.add_omitted(lines, rows, n)
  local devices = total_device > 0 and (", %s on devices"):format(seconds(total_device)) or ""
  lines[#lines + 1] = ("%s in spans%s, of %s; %s"):format(seconds(total), devices, seconds(profile.wall),
    flops(total_flops))
  if profile.dropped > 0 then
    lines[#lines + 1] = ("%d spans were dropped; pass a larger max_events"):format(profile.dropped)
  end
  return table.concat(lines, "\n")
end

return op_table
