--- lm.memory_snapshot(): Returns the live memory of tensors by the script's line that allocated it, since
--- lm.record_memory_history.
local core = require "luminary.core"
local bytes_text = require "luminary.base.bytes_text"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local op_table = require "luminary.profile.op_table"

local Snapshot = class.root "MemorySnapshot"

local GROUPED = "({group_by = \"line\" | \"op\" | \"none\", limit: count?})"

-- Returns the rows, and their number without the limit.
local function rows_of(self, opts)
  local by_key, rows = {}, {}
  for i, block in ipairs(self.blocks) do
    local by = opts.group_by
    local key = by == "none" and i or (block[by] or "?") .. "\0" .. block.device
    local row = by_key[key]
    if not row then
      row = {line = block.line, op = block.op, device = block.device, bytes = 0, count = 0, seconds = block.seconds}
      if by == "op" then row.line = nil end
      by_key[key], rows[#rows + 1] = row, row
    end
    if by == "line" and row.op ~= block.op then row.op = nil end -- the line has several ops
    row.bytes, row.count = row.bytes + block.bytes, row.count + 1
    row.seconds = math.max(row.seconds, block.seconds)
  end
  table.sort(rows, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.seconds < b.seconds
  end)
  local n = #rows
  for i = n, (opts.limit or n) + 1, -1 do rows[i] = nil end
  return rows, n
end

--- Returns live memory as a list of rows {line, op, device, bytes, count, seconds}, the most bytes first.
Snapshot.rows = signature.of("rows" .. GROUPED, function(self, opts) return (rows_of(self, opts)) end)

--- Returns live memory as a table in text, a line for each row of `rows`.
Snapshot.table = signature.of("table" .. GROUPED, function(self, opts)
  local lines, width = {}, #"Line"
  local rows, n = rows_of(self, opts)
  for _, row in ipairs(rows) do width = math.max(width, #(row.line or "-")) end
  local function add(line, ...)
    lines[#lines + 1] = line .. (" "):rep(width - #line) .. ("  %10s  %7s  %-8s %s"):format(...)
  end
  add("Line", "Memory", "Tensors", "Device", "Op")
  lines[2] = ("-"):rep(#lines[1])
  for _, row in ipairs(rows) do
    add(row.line or "-", bytes_text(row.bytes), row.count, row.device, row.op or "-")
  end
  lines[#lines + 1] = lines[2]
  op_table.add_omitted(lines, rows, n)
  lines[#lines + 1] = ("%s in %d tensors' memory"):format(bytes_text(self.total), #self.blocks)
  if self.missed > 0 then lines[#lines + 1] = ("%d could not be noted: out of memory"):format(self.missed) end
  return table.concat(lines, "\n")
end)

function Snapshot:repr() return self:table {limit = 20} end

return class.returned(Snapshot, signature.of("memory_snapshot()", function()
  if not core.is_memory_history_on() then
    options.fail "memory_snapshot: nothing is recorded; call lm.record_memory_history() before the tensors are made"
  end
  local self = class.object(Snapshot)
  self.blocks, self.total = {}, 0
  self.missed = core.live_memory(function(line, op, device, bytes, seconds)
    self.total = self.total + bytes
    table.insert(self.blocks, {line = line, op = op, device = device, bytes = bytes, seconds = seconds})
  end)
  return self
end))
