--- serve: Joins the calls of many connections to a model into batches.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local map_tensors = require "luminary.base.map_tensors"
local prepare = require "luminary.prepare"
local failure = require "luminary.mp.worker_failure"
local Executor = require "luminary.mp.executor"

-- ---- in the worker

-- Returns the number of a call's rows in a batch.
local function rows_of(task, batch) return batch.collate_fn and 1 or task.args[1]:size(1) end

-- Returns true if the inputs of two calls can be joined: dtype, device and all sizes but the first are equal.
local function fits(a, b, batch)
  if batch.collate_fn then return true end
  local x, y = a.args[1], b.args[1]
  if x.dtype ~= y.dtype or x.device ~= y.device or x:dim() ~= y:dim() then return false end
  for dim = 2, x:dim() do
    if x:size(dim) ~= y:size(dim) then return false end
  end
  return true
end

-- Adds calls of the same kind to list, {first}, until they have max_batch rows or max_wait seconds are over. Returns
-- the next call, if one came that does not fit; nil if none did, false at the end of all calls.
local function gather(list, batch, may_run)
  local rows, deadline = rows_of(list[1], batch), core.time() + batch.max_wait
  while rows < batch.max_batch do
    local task = Executor.next_task(math.max(0, deadline - core.time()))
    if task == false then return nil end
    if task == nil then return false end
    if may_run(task) then
      rows = rows + rows_of(task, batch)
      if rows > batch.max_batch or not fits(task, list[1], batch) then return task end
      list[#list + 1] = task
    end
  end
end

-- Returns the values of a module's results that belong to some of all `total` rows. Fails if a tensor has others, or if
-- none is a tensor.
local function part_of(values, first, rows, total)
  local has_rows = values.n == 0
  local part = map_tensors(values, function(t)
    if t:dim() == 0 or t:size(1) ~= total then
      options.wrong_shape("Batcher", "the module's result", t, {total, "..."})
    end
    has_rows = true
    return rows == total and t or t:narrow(1, first, rows)
  end)
  if not has_rows then
    options.must_be("Batcher", "the module's result", "tensors, also in tables", values[1],
      'results = "list" takes a list with a value for each row')
  end
  return unpack(part, 1, values.n)
end

local function compute(batch, inputs, total)
  local is_one = #inputs == 1 and not batch.collate_fn
  local x = is_one and inputs[1] or (batch.collate_fn or core.ops.cat)(inputs)
  if batch.results == "rows" then return batch.module(x) end
  local list = batch.module(x)
  if type(list) ~= "table" or #list ~= total then
    options.must_be("Batcher", "the module's result", ('a list of %d values (results = "list")'):format(total),
      type(list) == "table" and #list or list)
  end
  return list
end

-- Runs the module once for the calls of a list, and calls answer(task, outcome) for each. If that fails, runs it for
-- each of them alone, so that one connection's input does not fail the others.
local function run_batch(batch, list, answer)
  local inputs, total, first = {}, 0, 1
  for i, task in ipairs(list) do inputs[i], total = task.args[1], total + rows_of(task, batch) end
  local outcome = Executor.finish_work(failure.outcome(core.no_grad, compute, batch, inputs, total))
  local values = outcome.values
  if not values and #list > 1 then
    for _, task in ipairs(list) do run_batch(batch, {task}, answer) end
    return
  end
  local y = values and values.n == 1 and values[1]
  local is_rows = core.is_tensor(y) and y:dim() > 0 and y:size(1) == total
  for i, task in ipairs(list) do
    local rows, own = rows_of(task, batch), outcome
    if values and batch.results == "list" then
      own = {values = {batch.collate_fn and y[i] or lists.slice(y, first, first + rows - 1), n = 1}}
    elseif values and not is_rows then
      own = failure.outcome(part_of, values, first, rows, total)
    elseif values and #list > 1 then
      own = {values = {y:narrow(1, first, rows), n = 1}}
    end
    answer(task, own)
    first = first + rows
  end
end

local function serve(index, setup)
  local begun = setup.begun[index + 1]
  setup.module = prepare.of_library(setup.module)
  local function may_run(task)
    local runs = Executor.begin(task, begun)
    if runs and not task.problem then return true end
    Executor.answer(task, {problem = runs and task.problem or nil})
    return false
  end
  local task, is_new
  while task ~= false do
    if not task then task, is_new = Executor.next_task() or false, true end
    if task and (not is_new or may_run(task)) then
      local list = {task}
      task, is_new = gather(list, setup, may_run), false
      run_batch(setup, list, Executor.answer)
    elseif task then
      task = nil
    end
  end
end

-- ---- on the caller's thread

--- Computes calls when the result of one is needed first.
local Inline = class.define("Inline", Executor)

function Inline:submit(who, _, args, _)
  self:make_room(who)
  local task = {args = args, future = Executor.new_future(self)}
  table.insert(self.pending, task)
  self:set_open(#self.pending)
  return task.future
end

function Inline.read() end

function Inline.finish() end -- at the end of the program the inputs may be gone

local function resolve(task, outcome) Executor.resolve(task.future, outcome) end

--- Computes the first call, and others with it.
function Inline:wait(_)
  local batch, first, list, rest, rows = self.spec.setup, self.pending[1], {}, {}, 0
  if not first then options.fail "Batcher: the module waits for a result of its own" end
  local most = math.max(batch.max_batch, rows_of(first, batch))
  for _, task in ipairs(self.pending) do
    local n = rows_of(task, batch)
    if rows + n <= most and fits(task, first, batch) then
      list[#list + 1], rows = task, rows + n
    else
      rest[#rest + 1] = task
    end
  end
  self.pending = rest
  self:set_open(#rest)
  run_batch(batch, list, resolve)
end

function Inline:withdraw(future)
  local n = self.open
  for i = n, 1, -1 do
    if self.pending[i].future == future then table.remove(self.pending, i) end
  end
  self:set_open(#self.pending)
  return self.open < n
end

function Inline:advance()
  while self.open > 0 do self:wait() end
end

-- ---- in the script

--- Joins calls of a module into batches, which it computes on worker threads.
local Batcher = class.define "Batcher"

--- lm.serve.Batcher(…): Makes a batcher. batcher:submit(x) takes a tensor whose first dim counts rows. The module gets
--- the rows of calls with equal sizes and dtype together, up to max_batch, or those that came within max_wait_ms
--- milliseconds after the first; each future's result is the part of the module's results (tensors, also in tables)
--- with its rows. The module's weights are shared and not copied; it computes without gradients. num_workers = 0:
--- there is no worker thread; the first future whose result is needed, or lm.poll(), computes what was submitted.
--- collate_fn(list) makes the module's input of a list of submitted values, each of which counts as a row and may be
--- anything. results = "list": the module returns a list with a value for each row. A module in evaluation mode,
--- without hooks and made of the library's modules alone, runs on workers as by lm.prepare.
Batcher.init = signature.of([[Batcher(module, {max_batch: count = 32, max_wait_ms: positive = 2,
  max_queue: integer(1, 512) = 128, threads: count, socket_paths = false, num_workers: natural = 1,
  collate_fn: callable, results: "rows" | "list" = "rows"})]], function(self, module, opts)
  if not class.record(module) and type(module) ~= "function" then
    options.must_be("Batcher", "module", "a module or a function", module)
  end
  opts.module, opts.max_wait = module, opts.max_wait_ms / 1000
  self.executor = (opts.num_workers == 0 and Inline or Executor) {
    who = "Batcher", workers = opts.num_workers, threads = opts.threads, max_queue = opts.max_queue,
    socket_paths = opts.socket_paths, serve = serve, setup = opts,
  }
end)

--- Sends rows to the module; returns a future of its results for them. An error names what is wrong with x.
function Batcher:submit(x)
  local collates = self.executor.spec.setup.collate_fn
  if not collates and not core.is_tensor(x) then options.must_be("Batcher", "x", "a tensor", x) end
  if not collates and (x:dim() == 0 or x:size(1) == 0) then
    options.wrong_shape("Batcher", "x", x, "[rows, ...] with at least one row")
  end
  return self.executor:submit("Batcher", nil, {x}, 1)
end

--- Waits for the calls that are open, and ends the worker. Calls after it are refused.
function Batcher:close() self.executor:close() end

return options.strict("serve", {
  Batcher = Batcher, Engine = require "luminary.serve.engine", nginx = require "luminary.serve.nginx",
  neovim = require "luminary.serve.neovim", OpenAI = require "luminary.serve.openai",
})
