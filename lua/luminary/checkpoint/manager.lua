--- lm.checkpoint.Manager(…): Keeps the newest and the best checkpoints of a run in a folder, and finds them again.
local os = require "os"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local core = require "luminary.core"
local PREEMPTED = require "luminary.base.preempted_exit_code"
local options = require "luminary.base.options"
local paths = require "luminary.paths"
local printable_name = require "luminary.base.printable_name"
local rank_and_size = require "luminary.base.rank_and_size"
local signature = require "luminary.base.signature"
local checkpoint = require "luminary.checkpoint"
local files = require "luminary.checkpoint.files"
local background = require "luminary.checkpoint.background"
local formats = require "luminary.file_formats"
local ranks = require "luminary.checkpoint.ranks"
local save = require "luminary.checkpoint.save"
local fail = options.fail

local Manager = class.root "Manager"
local who = "checkpoint.Manager"

local NAME, PATTERN = "step-%010.0f.safetensors", "^step%-(%d+)%.safetensors$"

--- Creates a manager of the checkpoints in the folder `dir`, which it creates. Each save keeps the `keep_last` newest
--- and the `keep_best` best by `metric`, one of the numbers passed to :save, with `mode` "min" or "max", and removes
--- others. Only every `every`-th step is saved; `async` saves during training. With `on_sigterm`, a SIGTERM to any rank
--- makes all ranks save at their next :save, and end.
Manager.init = signature.of([[checkpoint.Manager({dir: string, keep_last: count = 3, keep_best: natural = 0,
  metric: string, mode = "min" | "max", every: count = 1, async = false, on_sigterm = false})]], function(self, opts)
  if not opts.dir then options.absent(who, "dir", "the path of a folder") end
  files.check_text(who, "dir", opts.dir)
  if opts.keep_best > 0 and not opts.metric then fail("%s: keep_best requires metric, the name of a number", who) end
  signature.assign(self, opts)
  if rank_and_size() == 0 and not paths.mkdir(self.dir) then
    options.fail_file("create", self.dir, "it is not a folder that can be written to")
  end
  if opts.on_sigterm then core.sigterm_defer() end
  self.known = {} -- keyed by path: {stamp of the file, value = its metric}
end)

-- Returns the names in the folder; none if it does not exist.
local function names_in(dir)
  local names, why = paths.dir(dir)
  if why then options.fail_file("read", dir, why) end
  return names or {}
end

--- Returns the saved steps, in order. A folder that cannot be read is an error.
function Manager:steps()
  local steps = {}
  for _, name in ipairs(names_in(self.dir)) do
    local step = tonumber(name:match(PATTERN))
    if step and step < 2 ^ 53 and NAME:format(step) == name then steps[#steps + 1] = step end
  end
  table.sort(steps)
  return steps
end

--- Returns the path of the checkpoint of a step, even if it does not exist.
function Manager:path(step)
  return ("%s/" .. NAME):format(self.dir, options.arg("Manager:path", "step", step, "natural"))
end

-- Raises errors that are not about a file: Ctrl-C and lack of memory.
local function raise_own(ok, problem)
  if ok then return end
  if problem:find "interrupted!$" or problem:find "out of memory" or problem:find "not enough memory" then
    error(problem, 0)
  end
end

-- Returns the metric of a saved step; nil if it has none, or cannot be read.
local function metric_of(self, step)
  local path = self:path(step)
  local opened, file, _, stamp = pcall(core.file_open, path)
  if not opened then return nil end
  core.file_close(file)
  local known = self.known[path]
  if not known or known.stamp ~= stamp then
    local ok, loaded = pcall(formats.load, path, {mmap = true})
    raise_own(ok, loaded)
    local metrics = ok and type(loaded.value) == "table" and loaded.value.metrics
    local value = type(metrics) == "table" and metrics[self.metric]
    known = {stamp = stamp, value = type(value) == "number" and value or nil}
    self.known[path] = ok and known or nil
  end
  return known.value
end

-- Returns the steps that have the metric, the best first; of equal ones the newest first.
local function steps_by_metric(self)
  local steps, values = {}, {}
  for _, step in ipairs(self.metric and self:steps() or {}) do
    values[step] = metric_of(self, step)
    if values[step] and values[step] == values[step] then steps[#steps + 1] = step end
  end
  table.sort(steps, function(a, b)
    if values[a] == values[b] then return a > b end
    if self.mode == "min" then return values[a] < values[b] end
    return values[a] > values[b]
  end)
  return steps
end

--- Returns the path of the newest checkpoint; nil without one.
function Manager:latest()
  local steps = self:steps()
  return steps[1] and self:path(steps[#steps])
end

--- Returns the path of the best checkpoint by the manager's metric; nil without one.
function Manager:best()
  background.finish_here "Manager:best"
  local step = steps_by_metric(self)[1]
  return step and self:path(step)
end

-- Removes checkpoints that are not kept, and remains of unfinished saves. A background save may still be writing the
-- newest.
local function prune(self, newest)
  local stays, steps = {[newest] = true}, self:steps()
  for i = math.max(1, #steps - self.keep_last + 1), #steps do stays[steps[i]] = true end
  local best = self.keep_best > 0 and steps_by_metric(self) or {}
  for i = 1, math.min(self.keep_best, #best) do stays[best[i]] = true end
  for _, step in ipairs(steps) do
    if not stays[step] then
      os.remove(self:path(step))
      self.known[self:path(step)] = nil
    end
  end
  local seen = {}
  for _, name in ipairs(names_in(self.dir)) do -- shards and temporary files
    local step = tonumber(name:match "^step%-(%d+)%.safetensors%.")
    local path = step and step < 2 ^ 53 and step ~= newest and self:path(step)
    if path and not seen[path] and not paths.filep(path) then core.remove_abandoned(path, {}) end
    if path then seen[path] = true end
  end
end

-- Ends all ranks after the save that a SIGTERM requested.
local function end_preempted(step)
  ranks.attempt("Manager:save", function() background.finish "Manager:save" end)
  if rank_and_size() == 0 then core.warn(("Manager:save: saved step %d after SIGTERM; the job ends"):format(step)) end
  os.exit(PREEMPTED, true)
end

-- Returns the metrics as numbers.
local function as_numbers(metrics)
  local numbers = {}
  for name, value in pairs(options.arg("Manager:save", "metrics", metrics, "table")) do
    local number = core.is_tensor(value) and value:numel() == 1 and value:item() or value
    if type(number) ~= "number" then
      options.must_be("Manager:save", "metrics." .. printable_name(tostring(name), 60), "a number", value)
    end
    numbers[name] = number
  end
  return numbers
end

--- Saves parts, as lm.checkpoint.save does, after a step that is a multiple of `every`, and removes checkpoints that
--- are not kept. All ranks call it. `metrics` are numbers by name, or tensors of one element. The step is saved as the
--- part `step`, the metrics as `metrics`. Returns the path, or nil if the step was not saved.
function Manager:save(step, parts, metrics)
  options.arg("Manager:save", "step", step, "natural")
  local is_last = self.on_sigterm and checkpoint.is_preempted()
  if step % self.every ~= 0 and not is_last then return nil end
  options.arg("Manager:save", "parts", parts, "table")
  local all = lists.copy(parts)
  for _, name in ipairs {"step", "metrics"} do
    if class.record(all[name]) then
      fail("Manager:save: a part cannot be named '%s', which the manager saves; choose another name", name)
    end
  end
  all.step, all.metrics = step, metrics and as_numbers(metrics)
  local path = self:path(step)
  save("Manager:save", path, all, self.async)
  if rank_and_size() == 0 then
    local ok, problem = pcall(prune, self, step)
    raise_own(ok, problem)
    if not ok then core.warn("Manager:save: removed no older checkpoint: " .. options.without_position(problem)) end
  end
  if is_last then end_preempted(step) end
  return path
end

-- Fails because no checkpoint loads on all ranks; `by_rank` has the ranks' steps and folders.
local function fail_without_any(by_rank, problem)
  local differ, sides = false, {}
  for r, list in ipairs(by_rank) do
    local steps = table.concat(list.steps, ", ")
    differ = differ or steps ~= table.concat(by_rank[1].steps, ", ")
    sides[r] = ("rank %d has %s in '%s'"):format(r - 1, #list.steps == 0 and "no step"
      or (#list.steps == 1 and "step " or "steps ") .. printable_name(steps, 200), options.shown_path(list.dir))
  end
  if differ then fail("Manager:load: no checkpoint is whole on all ranks: %s", table.concat(sides, "; ")) end
  fail("Manager:load: no checkpoint in '%s' is whole: %s", options.shown_path(by_rank[1].dir), problem)
end

--- Loads the newest checkpoint that is complete on all ranks into a table of objects, as lm.checkpoint.load does, and
--- warns of newer ones. All ranks call it. Returns the saved table, with `step`; nil if no rank finds any.
function Manager:load(parts, opts)
  if parts ~= nil then options.arg("Manager:load", "parts", parts, "table") end
  opts = options.check("Manager:load", opts, "{strict = true}")
  local by_rank = ranks.gather_from("Manager:load", function()
    background.finish "Manager:load"
    return {steps = self:steps(), dir = self.dir, orders = files.orders_of("Manager:load", parts or {}, true)}
  end)
  files.check_orders("Manager:load", lists.map(by_rank, function(each) return each.orders end))
  local is_there = {} -- set of files on any rank: a list may be older than the files
  for _, list in ipairs(by_rank) do
    for _, step in ipairs(list.steps) do is_there[step] = true end
  end
  local steps = options.sorted_keys(is_there)
  for i = #steps, 1, -1 do
    local file, problems = files.read_on_all("Manager:load", self:path(steps[i]))
    if file then
      return ranks.attempt("Manager:load", function()
        return files.apply("Manager:load", file, parts or {}, opts.strict)
      end)
    end
    for r = 1, #by_rank do raise_own(not problems[r], problems[r]) end
    local _, problem = pcall(ranks.raise, "Manager:load", problems)
    problem = options.without_position(problem):gsub("^Manager:load: ", "")
    if i == 1 then fail_without_any(by_rank, problem) end
    core.warn("Manager:load: left out " .. problem)
  end
end

function Manager:repr()
  return ("Manager('%s', keep_last=%d, keep_best=%d)"):format(self.dir, self.keep_last, self.keep_best)
end

return Manager
