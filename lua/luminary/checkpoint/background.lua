--- The save during training: a copy of all tensors, which a thread writes (io/background_write.h). There is at most
--- one; its error is raised by the next call that waits for it, or shown when the program ends.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local background = {}

local running -- the one save

local Pending = class.root "PendingSave"

function Pending:init(path, write) self.path, self.write = path, write end

--- Whether the save has ended.
function Pending:is_done() return self.write == nil or core.background_write_done(self.write) end

local function wait(who, pending)
  local write, problem = pending.write
  if not write then return end
  repeat problem = core.background_write_ended(write, 1) until problem -- a second, so that Ctrl-C is heard
  core.background_write_close(write)
  pending.write = nil
  if running == pending then running = nil end
  if problem ~= "" then
    options.fail("%s: the save of '%s' in the background failed: %s", who, options.shown_path(pending.path), problem)
  end
end

--- Waits for the end of the save; raises its error, once.
function Pending:wait() wait("PendingSave:wait", self) end

function Pending:repr() return ("PendingSave('%s'%s)"):format(self.path, self:is_done() and ", done" or "") end

--- Returns a PendingSave of what core.background_write returned, or of nil on ranks that write nothing.
function background.pending(path, write)
  local pending = Pending(path, write)
  if write then running = pending end
  return pending
end

--- Waits for the save that is running, if one is. Errors begin with `who`.
function background.finish(who)
  if running then wait(who, running) end
end

return background
