--- Publishes an uncaught error: notifies the other ranks, and writes files that a launcher reads.
---
--- LM_ERROR_FILE gets one JSON object: rank, kind ("error", or the kind of another rank's failure: "died", "frozen",
--- "absent", "left", "unreachable"; or "mismatch": ranks made different calls), cause_rank, message, traceback, time.
--- TORCHELASTIC_ERROR_FILE gets the text that torchrun's agent prints.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"

local function write(path, value)
  if not path or path == "" then return end
  pcall(function() core.growing_file_write(core.growing_file_open(path, false), json_encode(value) .. "\n") end)
end

--- Publishes an error. message: its text; traceback: the text with its traceback.
return function(message, traceback)
  local groups = package.loaded["luminary.distributed.groups"]
  local world = groups and groups.world
  local rank = world and groups.default and groups.default.rank or tonumber(core.getenv "RANK") or 0
  local cause = groups and groups.cause()
  local elsewhere = cause and cause.rank ~= rank
  local known = elsewhere or cause and cause.kind == "mismatch" -- a mismatch is a failure of several ranks
  write(core.getenv "LM_ERROR_FILE", {
    rank = rank, kind = known and cause.kind or "error", cause_rank = elsewhere and cause.rank or rank,
    message = message, traceback = traceback, time = require("os").time(),
  })
  write(core.getenv "TORCHELASTIC_ERROR_FILE", {
    message = {message = message, extraInfo = {py_callstack = traceback, timestamp = tostring(require("os").time())}},
  })
  if world then -- last: once the others know, a launcher may end this process at once
    local where, text = message:match("^([^\n]-:%d+): (.*)$")
    core.dist_fail(world, where or "", text or message)
  end
end
