--- The save during training: a copy of all tensors, which a thread with a Lua state of its own writes.
--- There is at most one; its error is raised by the next call that waits for it.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"

local background = {}

local running -- the one save

-- A copy on the CPU, in which tensors and tables that are met twice are one again.
local function snapshot(value, copies)
  if copies[value] ~= nil then return copies[value] end
  if core.is_tensor(value) then
    local source = value:detach()
    copies[value] = core.keep(source.is_cuda and source:cpu() or source:clone())
    return copies[value]
  elseif type(value) == "table" and options.is_plain(value) then
    local copy = {}
    copies[value] = copy
    for key, each in pairs(value) do copy[key] = snapshot(each, copies) end
    return copy
  end
  return value
end

local Pending = class.root "PendingSave"

function Pending:init(path, worker) self.path, self.worker = path, worker end

--- Whether the save has ended.
function Pending:is_done() return self.worker == nil or self.worker:look() end

--- Waits for the end of the save; raises its error, once.
function Pending:wait()
  local worker = self.worker
  if not worker then return end
  worker:join()
  self.worker = nil
  if running == self then running = nil end
  load_module("luminary.mp.at_exit").forget(self)
  local failure = worker:failure()
  if failure then
    options.fail("checkpoint.save: the save of '%s' in the background failed: %s", options.shown_path(self.path),
      failure.message or "its thread ended")
  end
end

Pending.finish = Pending.wait -- when the program ends

function Pending:repr() return ("PendingSave('%s'%s)"):format(self.path, self:is_done() and ", done" or "") end

--- Starts a save of what write takes. Returns a PendingSave.
function background.start(path, value, about)
  local Worker = load_module "luminary.mp.worker"
  local write = load_module("luminary.checkpoint.files").write
  local job = Worker.job("checkpoint.save", write, {path, snapshot(value, {}), about}, "thread")
  running = Pending(path, Worker.start("checkpoint.save", {method = "thread", job = job, threads = 1}))
  load_module("luminary.mp.at_exit").remember(running)
  return running
end

--- What ranks that write nothing have to wait for.
function background.none() return Pending("", nil) end

--- Waits for the save that is running, if one is.
function background.finish()
  if running then running:wait() end
end

return background
