--- Makes the classes of the optimizers in luminary.optim.sgd_adam_rules: options, states and steps as their entries
--- declare. Returns a table of them by name.
local core = require "luminary.core"
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Optimizer = require "luminary.optim.optimizer"

-- ---- options

local function number_text(v) return (tostring(v):gsub("e%-0", "e-")) end

-- Returns the options as in a signature, in order of position; names the entry lacks are arguments of PyTorch.
local function items_of(entry)
  local items, rest = {}, {}
  for _, row in ipairs(entry.options) do
    local name, default = row[1], row[2]
    if not row.fixed then
      rest[#rest + 1] = name
      items[name] = type(default) == "table"
        and ("%s: two = {%s, %s}"):format(name, number_text(default[1]), number_text(default[2]))
        or ("%s: %s = %s"):format(name, row[3] or type(default), number_text(default))
    end
  end
  for name in ((entry.positions or "") .. " " .. table.concat(rest, " ")):gmatch "%S+" do
    if items[name] ~= false then items[#items + 1], items[name] = items[name] or name .. ": lacks = false", false end
  end
  return "{" .. table.concat(items, ", ") .. "}"
end

local Elementwise = class.define("Elementwise", Optimizer)

function Elementwise:check_group(group)
  local entry = self.entry
  for _, row in ipairs(entry.options) do
    local limits = type(row[2]) == "table" and row[3]
    for i, v in ipairs(limits and group[row[1]] or {}) do
      options.arg(self.__name, ("%s[%d]"):format(row[1], i), v, type(limits) == "table" and limits[i] or limits)
    end
  end
  local wrong = entry.check and entry.check(group)
  if wrong then options.fail("%s: %s", self.__name, wrong) end
end

-- Returns the group's options as the core takes them: a list of numbers in the entry's order.
local function numbers_of(entry, group)
  local numbers, n = {}, 0
  for _, row in ipairs(entry.options) do
    local value = group[row[1]]
    if row.as then
      if type(value) ~= "table" then value = {value, value} end
      numbers[n + 1], numbers[n + 2] = value[1], value[2]
      n = n + 2
    else
      n = n + 1
      numbers[n] = value
    end
  end
  return numbers
end

-- ---- states

local function is_on(value) return value ~= 0 and value ~= false and value ~= nil end

-- Returns the rows of the states that a group's options require.
local function rows_of(entry, group)
  local rows = {}
  for _, row in ipairs(entry.states) do
    if not row.when or is_on(group[row.when]) then rows[#rows + 1] = row end
  end
  return rows
end

function Elementwise:check_state(state)
  for _, row in ipairs(self.entry.states) do
    local value = state[row[1]]
    if not row.when and value == nil then return row[1] .. " is missing" end
    if value and not core.is_tensor(value) then
      return ("%s must be a tensor, got %s"):format(row[1], options.describe(value))
    end
  end
  for _, row in ipairs(self.entry.carried or {}) do
    if type(state[row[1]]) ~= "number" then return row[1] .. " must be a number" end
  end
  return Optimizer.check_state(self, state)
end

-- ---- steps

-- Returns the states as a list for each row, by name. Missing ones are made by make(row, index), and listed as {state,
-- name, tensor} in the second result, to store once the step is done. Without `make` returns nil if one is missing.
local function lists_of(rows, states, make)
  local lists, new = {}, {}
  for _, row in ipairs(rows) do
    local name, list = row[1], {}
    for i, state in ipairs(states) do
      local t = state[name]
      if not t then
        if not make then return nil end
        t = make(row, i)
        new[#new + 1] = {state, name, t}
      end
      list[i] = t
    end
    lists[name] = list
  end
  return lists, new
end

-- Returns the list of numbers that a parameter carried from its last step; nil before the first.
local function carried_by(entry, state)
  local list
  for k, row in ipairs(entry.carried or {}) do
    local value = state[row[1]]
    if value == nil then return nil end
    list = list or {}
    list[k] = value
  end
  return list
end

local function carry_the_same(entry, states)
  for _, row in ipairs(entry.carried or {}) do
    local value = states[1][row[1]]
    for _, state in ipairs(states) do
      if state[row[1]] ~= value then return false end
    end
  end
  return true
end

-- Divides parameters that cannot be in one call into parts that can: their states all exist or all do not, and they
-- carried equal numbers.
local function parts_of(entry, rows, params, states)
  local parts, by_key = {}, {}
  for i, p in ipairs(params) do
    local state, first = states[i], false
    for _, row in ipairs(rows) do first = first or not state[row[1]] end
    local key = tostring(first)
    for _, row in ipairs(entry.carried or {}) do key = ("%s %.17g"):format(key, state[row[1]] or 0 / 0) end
    local part = by_key[key]
    if not part then
      part = {params = {}, states = {}}
      by_key[key], parts[#parts + 1] = part, part
    end
    part.params[#part.params + 1], part.states[#part.states + 1] = p, state
  end
  for _, part in ipairs(parts) do part.lists = lists_of(rows, part.states) end
  return parts
end

local function carry(entry, states, ...)
  for k, row in ipairs(entry.carried) do
    local value = select(k, ...)
    for _, state in ipairs(states) do state[row[1]] = value end
  end
end

-- Advances the step number and the carried numbers at each replay of a captured step, as the device does. The device is
-- notified of steps between replays before the next replay.
local function follow_replays(self, states, call)
  local entry, at, who = self.entry, core.optim_numbers_at(), self.__name
  local replay = {kind = call.kind, options = call.options, params = {}, step = call.step, carried = call.carried}
  load_module("luminary.cuda.graph").on_replay(function()
    local carried = {select(2, core.optim_step(replay))}
    if entry.carried then
      carry(entry, states, unpack(carried))
      replay.carried = carried
    end
    replay.step = replay.step + 1
  end, function(graph)
    local step, carried = states[1].step + 1, carried_by(entry, states[1])
    local same = carry_the_same(entry, states)
    for _, state in ipairs(states) do same = same and state.step + 1 == step end
    if not same then
      options.fail(
        "replay: since the capture, %s has stepped some of the captured parameters but not all; capture the graph "
          .. "again", who)
    end
    local unchanged = step == replay.step
    for k, number in ipairs(carried or {}) do unchanged = unchanged and number == replay.carried[k] end
    if unchanged then return end
    core.graph_set_numbers(graph, at, {step, unpack(carried or {})})
    replay.step, replay.carried = step, carried
  end)
end

function Elementwise:advance(group, params, states, count)
  local entry = self.entry
  local rows, numbers = rows_of(entry, group), numbers_of(entry, group)
  local lists = lists_of(rows, states)
  local parts = lists and carry_the_same(entry, states) and {{params = params, states = states, lists = lists}}
    or parts_of(entry, rows, params, states)
  for _, part in ipairs(parts) do
    local new
    if not part.lists then
      part.lists, new = lists_of(rows, part.states, function(row, i)
        local start = row.start and (group[row.start] or row.start) or 0
        return core.keep(core.ops.full_like(part.params[i]:detach(), start, {dtype = self.state_dtype(part.params[i])}))
      end)
    end
    local call = {
      kind = self.kind, options = numbers, params = part.params, states = part.lists, step = count,
      first = new ~= nil, carried = carried_by(entry, part.states[1]),
    }
    local capturing = core.graph_is_capturing()
    local carried = {select(2, core.optim_step(call))}
    if capturing and (self.counts or entry.carried) then
      follow_replays(self, part.states, call)
    elseif entry.carried and not capturing then
      carry(entry, part.states, unpack(carried))
    end
    for _, each in ipairs(new or {}) do each[1][each[2]] = each[3] end
  end
end

--- Keeps states only for a class with its own `advance`; states made here already outlive the scope.
function Elementwise:keep_states(states)
  if self.advance ~= Elementwise.advance then Optimizer.keep_states(self, states) end
end

-- ---- classes

-- Returns true if a formula in an entry uses the step number t.
local function counts(entry)
  for _, rows in ipairs {entry.scalars, entry.carried or {}} do
    for _, row in ipairs(rows) do
      if (row.next or row[2]):find("%f[%w_]t%f[^%w_]") then return true end
    end
  end
  return false
end

local classes = {}
for _, entry in ipairs(require "luminary.optim.sgd_adam_rules") do
  local new = class.define(entry.name, entry.like and classes[entry.like] or Elementwise)
  new.entry, new.kind, new.counts = entry, entry.name, counts(entry)
  Optimizer.declare(new, items_of(entry))
  new.numbers = {step = true}
  for _, row in ipairs(entry.carried or {}) do new.numbers[row[1]] = true end
  new.__help = ("%s. %s."):format(signature.help("optim." .. entry.name, entry.help), entry.source)
  classes[entry.name] = new
end
return classes
