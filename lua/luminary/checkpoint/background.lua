--- Tracks the save in progress: the files that this rank writes, by the call or on threads (io/background_write.h). At
--- most one save runs; its error is raised by the next call that waits for it, or shown when the program ends.
---
--- A save with shards consists of parts: each rank's shard, and rank 0's file with a suffix, which rank 0 removes once
--- all parts are written; in the background, the writer of the last part, as the program may end without a call. All
--- parts stay locked until the save is finished, so that other savers leave them.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local paths = require "luminary.paths"
local rank_and_size = require "luminary.base.rank_and_size"
local files = require "luminary.checkpoint.files"
local ranks = require "luminary.checkpoint.ranks"

local background = {}

local running -- the save in progress

local Pending = class.root "PendingSave"

--- Initializes a save. shards: nil, or {names = names of all ranks' shards, suffix}.
function Pending:init(path, shards)
  self.path, self.shards, self.writes, self.size = path, shards, {}, select(2, rank_and_size())
end

--- Returns whether this rank has written its part of the save, or failed.
function Pending:is_done()
  return lists.every(self.writes, core.background_write_done)
end

-- Waits until this rank's part is written, or failed.
local function wait_here(pending)
  for _, write in ipairs(pending.writes) do
    local is_done
    repeat is_done = core.background_write_done(write, 1) until is_done -- 1 s, so that Ctrl-C is noticed
  end
end

-- Waits until this rank's part is written, and returns the first error, or nil.
local function error_here(pending)
  wait_here(pending)
  local first = ""
  for _, write in ipairs(pending.writes) do
    local problem = core.background_write_ended(write)
    if first == "" then first = problem end
  end
  return first ~= "" and first or nil
end

local function close_writes(pending)
  for _, write in ipairs(pending.writes) do core.background_write_close(write) end
  pending.writes = {}
  if running == pending then running = nil end
end

local function raise_write_error(who, pending, problem)
  if not problem then return end
  options.fail("%s: the save of '%s' in the background failed: %s", who, options.shown_path(pending.path), problem)
end

-- Completes, on rank 0, parts that all ranks have written and none completed. No rank has looked up others' names
-- before. Fails for shards in other folders: such a file would be saved at each step, and never load.
local function complete_sharded_checkpoint(who, pending)
  if rank_and_size() > 0 then return end
  local folder, shards = files.folder_of(pending.path), pending.shards
  for r, name in ipairs(shards.names) do
    if not paths.filep(folder .. name) then
      options.fail("%s: rank %d's shard is not in rank 0's folder '%s'; save into a folder that all ranks share", who,
        r - 1, options.shown_path(folder))
    end
  end
  core.complete_parts(pending.path, shards.suffix, shards.names)
end

--- Removes the files of a save that failed on some rank; all ranks call it.
function background.abandon(pending)
  error_here(pending) -- the write's error is raised already
  local path, shards = pending.path, pending.shards
  if shards then
    local ok, is_free = pcall(ranks.of_first, "", function()
      core.remove_part(path, shards.suffix) -- removed, so that nobody can complete it
      return not files.names_shards(path, shards.suffix:match "^(.*)main$")
    end)
    if ok and is_free then require("os").remove(files.folder_of(path) .. shards.names[rank_and_size() + 1]) end
    if ok then pcall(ranks.gather) end -- the error may end a rank's program, which ends the others' collectives
  end
  close_writes(pending)
end

local function finish_background_save(who, pending)
  if pending.shards and pending.writes[1] and select(2, rank_and_size()) == pending.size then
    local ok, problem = pcall(function()
      ranks.attempt(who, function() raise_write_error(who, pending, error_here(pending)) end)
      ranks.attempt(who, function() complete_sharded_checkpoint(who, pending) end)
    end)
    if not ok then
      background.abandon(pending)
      error(problem, 0)
    end
    close_writes(pending)
  else -- a save without shards, or by another number of ranks
    local problem = error_here(pending)
    close_writes(pending)
    raise_write_error(who, pending, problem)
  end
end

--- Waits for the end of the save; raises its error once. All ranks call it for a save with shards.
function Pending:wait() finish_background_save("PendingSave:wait", self) end

function Pending:repr() return ("PendingSave('%s'%s)"):format(self.path, self:is_done() and ", done" or "") end

--- The class of saves; the caller adds their `writes`.
background.Pending = Pending

--- Makes the save the one in progress.
function background.run(pending)
  if pending.writes[1] then running = pending end
  return pending
end

--- Waits for a save, by default the one in progress. Errors begin with `who`. All ranks call it for a save with shards,
--- and all raise.
function background.finish(who, pending)
  pending = pending or running
  if pending then finish_background_save(who, pending) end
end

--- Waits for the save in progress in a call of one rank alone: if it has shards, only until this rank has written its
--- part, and leaves errors to the next call.
function background.finish_here(who)
  if running and running.shards then wait_here(running) else background.finish(who) end
end

return background
