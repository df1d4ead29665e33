-- Luminary's side of scripts/bench/compiled: THREADS FOLDER [small]. It answers each line with a line:
--   build NAME         writes the step's weights and inputs to FOLDER/NAME.pt
--   start VARIANT N    runs N steps from these weights, eager or compiled: seconds of the first, by the clock and of
--                      the CPU, then the losses
--   time VARIANT N     seconds a step, of N more, likewise
--   memory VARIANT     bytes at the peak of two more steps, of weights, inputs and states too, of every started variant
--   ops NAME           the ops of an eager step, as lines with tabs between
local lm = require "luminary"
local lists = require "luminary.base.lists"
local nn = lm.nn
local here = arg[0]:match "^(.*)/[^/]*$" or "."
local cases = assert(loadfile(here .. "/compiled_cases.lua"))(arg[3] == "small")
local threads, folder = tonumber(arg[1]), arg[2]
lm.set_num_threads(threads)

-- Returns a case's step from the weights on file, its inputs, and its parameters.
local function step_of(case, saved)
  local p, params = {}, {}
  if case.net then
    p = case.net()
    p:load_state_dict(saved.weights)
    params = p:parameters()
  else
    for i, name in ipairs(lists.sorted_keys(saved.weights)) do
      p[name] = nn.Parameter(saved.weights[name]:clone())
      params[i] = p[name]
    end
  end
  local opt, loss_of = case.optimizer(params), case.loss(p)
  local function step(x, y)
    local loss = loss_of(x, y)
    opt:zero_grad()
    loss:backward()
    opt:step()
    return loss
  end
  return step, {saved.x, saved.y}, params
end

local function path_of(name) return ("%s/%s.pt"):format(folder, name) end

local case, name, variants
local answer = {}

function answer.build(which)
  case, name, variants = cases[which], which, nil
  collectgarbage()
  collectgarbage()
  lm.manual_seed(1)
  local x, y = case.inputs()
  lm.save(path_of(name), {weights = case.net and case.net():state_dict() or case.weights(), x = x, y = y})
  variants = {}
  return "ok"
end

function answer.start(variant, n)
  local step, inputs = step_of(case, lm.load(path_of(name)))
  if variant == "compiled" then step = lm.compile(step) end
  local function run() return step(unpack(inputs)) end
  local line, began, used = {}, lm.time(), os.clock()
  for i = 1, n do
    local loss = run():item()
    line[1] = line[1] or ("%.6f %.6f"):format(lm.time() - began, os.clock() - used)
    line[i + 1] = ("%.9g"):format(loss)
  end
  variants[variant] = run
  return table.concat(line, " ")
end

function answer.time(variant, n)
  local run, began, used = variants[variant], lm.time(), os.clock()
  for _ = 1, n do run() end
  return ("%.9f %.9f"):format((lm.time() - began) / n, (os.clock() - used) / n)
end

function answer.memory(variant)
  collectgarbage()
  collectgarbage()
  lm.reset_peak_memory_stats()
  for _ = 1, 2 do variants[variant]() end
  return ("%d"):format(lm.max_memory_allocated())
end

-- ---- the ops of a step

-- Returns the bytes of each tensor that the profiler's text lists: "float32 [32, 128], number, int64 []".
local function sizes_of(shapes)
  local sizes = {}
  for dtype, dims in (shapes or ""):gmatch "(%l+%d*) %[([^%]]*)%]" do
    local n = (tonumber(dtype:match "%d+$") or 8) / 8
    for size in dims:gmatch "%d+" do n = n * size end
    sizes[#sizes + 1] = n
  end
  return sizes
end

local function sum(list)
  local total = 0
  for _, n in ipairs(list) do total = total + n end
  return total
end

-- Ops that read as much as they write: of lists, which the profiler does not describe, and of few rows of a table.
local COPIES = {cat = true, stack = true, embedding = true}

-- Bytes that an update reads and writes for each byte of parameters.
local UPDATE = {SGD = {3, 2}, AdamW = {4, 3}}

-- Returns rows {name, calls, read, written} of an eager step. An op reads its operands and writes what it allocates, or
-- its first operand if it works in place; a view moves nothing. A node of backward that computes by itself writes what
-- it allocates and is taken to read its op's operands and a gradient of each result: an upper bound.
local function ops_of(which)
  answer.build(which)
  local step, inputs, params = step_of(case, lm.load(path_of(which)))
  for _ = 1, 2 do step(unpack(inputs)) end
  local profile = lm.profile(function() step(unpack(inputs)) end, {shapes = true, lines = false})
  local rows, forward, within = {}, {}, {}
  local function add(key, read, written)
    local row = rows[key] or {name = key, calls = 0, read = 0, written = 0}
    if not rows[key] then rows[#rows + 1], rows[key] = row, row end
    row.calls, row.read, row.written = row.calls + 1, row.read + read, row.written + written
  end
  local bytes = 0
  for _, p in ipairs(params) do bytes = bytes + p:numel() * p:element_size() end
  for i = 1, profile.recording:count() do
    local span, kind, _, shapes, _, depth, _, _, _, _, allocated = profile.recording:span(i)
    local has_parts = within[depth + 1]
    within[depth + 1], within[depth] = nil, true
    local sizes, written = sizes_of(shapes), math.max(allocated, 0)
    if kind == "op" then
      local info = lm.core.op_info(span) or lm.core.op_info((span:gsub("_$", ""))) or {}
      local in_place = info.kind == "write" or span:find "_$"
      if info.kind == "view" or has_parts and info.kind == "composite" then
        add(span, 0, 0)
      else
        add(span, COPIES[span] and written or sum(sizes), in_place and sizes[1] or written)
      end
      forward[span] = forward[span] or {}
      table.insert(forward[span], sum(sizes) + written)
    elseif kind == "backward" and span ~= "backward" then
      local list = forward[span:gsub(" backward$", "")]
      local reads = list and table.remove(list) or 0
      if not has_parts and written > 0 then add(span, reads, written) end
    elseif UPDATE[span] then
      add(span, UPDATE[span][1] * bytes, UPDATE[span][2] * bytes)
    end
  end
  table.sort(rows, function(a, b)
    local x, y = a.read + a.written, b.read + b.written
    if x ~= y then return x > y end
    return a.name < b.name
  end)
  return rows
end

function answer.ops(which)
  local rows, lines = ops_of(which), {}
  local calls, read, written = 0, 0, 0
  local function line(name_, n, r, w)
    lines[#lines + 1] = ("%-34s %6d %10.2f %10.2f"):format(name_, n, r / 1e6, w / 1e6)
  end
  lines[1] = ("%-34s %6s %10s %10s"):format(which, "calls", "MB read", "MB written")
  for _, row in ipairs(rows) do
    line(row.name, row.calls, row.read, row.written)
    calls, read, written = calls + row.calls, read + row.read, written + row.written
  end
  line("all", calls, read, written)
  return table.concat(lines, "\t")
end

for line in io.lines() do
  local what, which, n = line:match "^(%l+) (%S+) ?(%d*)$"
  io.write(answer[what](which, tonumber(n)), "\n")
  io.flush()
end
