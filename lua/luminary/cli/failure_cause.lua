--- Finds why a job under `luminary run` failed: the text of the first cause, and its exit code.
---
--- A rank's record (LM_ERROR_FILE) says if it failed by itself or because of another rank, cause_rank. The ranks name
--- another by the store's verdict, which saw the first failure first; so it wins. Without one, the cause is the rank
--- that ended first among those that a signal ended or that recorded their own error; an exit code alone, which may be
--- a consequence, counts last. Ranks that the launcher ended are not causes, unless named: a frozen one. If ranks made
--- different calls, that is the cause, and not a rank.
local core = require "luminary.core"
local PREEMPTED = require "luminary.base.preempted_exit_code"
local hostname = require "luminary.base.hostname"
local lists = require "luminary.base.lists"
local truncate_text = require "luminary.base.truncate_text"

local cause = {}

local TRACEBACK_LINES, LINE_BYTES = 12, 600 -- the rank itself has printed all of it
local SIGKILL = 9

-- Returns the rank that this one's record blames; nil if it blames itself or nobody.
local function blamed(rank)
  local other = rank.record and tonumber(rank.record.cause_rank)
  return other ~= rank.rank and other or nil
end

local function failed(rank) return rank.code ~= nil and rank.code ~= 0 and not rank.ended_by_us end

-- Returns the rank that ended first among those for which chosen(rank) is true.
local function first_of(ranks, chosen)
  local best
  for _, rank in ipairs(ranks) do
    if rank.order and chosen(rank) and (not best or rank.order < best.order) then best = rank end
  end
  return best
end

-- Returns the cause's number, its rank if it is on this node, and the rank that blamed it, if one did.
local function choose(ranks)
  local witness = first_of(ranks, function(rank) return rank.code ~= 0 and blamed(rank) end)
  if witness then
    local number = blamed(witness)
    return number, lists.find(ranks, function(rank) return rank.rank == number end), witness
  end
  local own = first_of(ranks, function(rank) return failed(rank) and (rank.signal or rank.record) end)
    or first_of(ranks, failed)
  if own then return own.rank, own end
end

local function how_it_ended(rank, witness)
  if rank.frozen then
    return "was stopped while all others ended, and did not continue"
  elseif rank.ended_by_us or not rank.code then
    return witness and witness.record.kind == "frozen" and "was frozen" or "did not continue"
  elseif rank.signal == SIGKILL then
    return "was killed by SIGKILL: from outside, or by the system for want of memory"
  elseif rank.signal then
    return "was killed by " .. core.signal_name(rank.signal)
  elseif rank.code == 0 then
    return "ended, with exit code 0, while others waited for it"
  end
  return "failed with exit code " .. rank.code
end

local function indented(text)
  local lines = {}
  for line in text:gsub("\n+$", ""):gmatch("[^\n]*") do
    if line ~= "" then lines[#lines + 1] = "  " .. truncate_text(line, LINE_BYTES) end
    if #lines > TRACEBACK_LINES then break end
  end
  return table.concat(lines, "\n")
end

local function own_words(record)
  local text = tostring(record.message or "")
  local traceback = type(record.traceback) == "string" and record.traceback or ""
  if traceback:sub(1, #text) == text then return traceback end
  return text .. "\n" .. traceback
end

local function describe_cause(number, rank, witness)
  local lines = {}
  if rank then
    local host = hostname() or "this host"
    lines[1] = ("rank %d on %s, pid %d, %s"):format(number, host, rank.pid, how_it_ended(rank, witness))
  else
    lines[1] = ("rank %d, of another node, failed first"):format(number)
  end
  if rank and rank.record and not blamed(rank) then
    lines[2] = indented(own_words(rank.record))
  elseif witness and not (rank and rank.signal and witness.record.kind == "died") then -- "died" is in the first line
    lines[2] = ("  rank %d reported:\n%s"):format(witness.rank, indented(tostring(witness.record.message)))
  end
  return table.concat(lines, "\n")
end

--- Returns true if all ranks ended well, some or all of them after they saved their state on a SIGTERM.
function cause.is_preempted(ranks)
  return lists.every(ranks, function(rank) return rank.code == 0 or rank.code == PREEMPTED end)
end

--- Returns true if a rank failed that the launcher did not end.
function cause.has_failure(ranks) return first_of(ranks, failed) ~= nil end

--- Returns the message about ranks after job.run (nil: none), the launcher's exit code, and true if the cause is on
--- this node.
function cause.of(ranks, stopped_by)
  if lists.every(ranks, function(rank) return rank.code == 0 end) then return nil, 0 end
  if not stopped_by and cause.is_preempted(ranks) then
    return "the ranks saved a checkpoint after SIGTERM, and ended; start the job again to continue", PREEMPTED, true
  end
  if stopped_by then -- later failures are consequences of the signal
    ranks = lists.filter(ranks, function(rank) return not rank.after_signal end)
  end
  -- The first rank to end that made a different call than another rank.
  local differs = first_of(ranks, function(rank)
    return failed(rank) and rank.record and rank.record.kind == "mismatch"
  end)
  if differs then return "ranks made different calls\n" .. indented(own_words(differs.record)), differs.code, true end
  local number, rank, witness = choose(ranks)
  if not number then
    if stopped_by then return "stopped by " .. core.signal_name(stopped_by), 128 + stopped_by end
    return "the ranks did not end", 1, true
  end
  local code_of = rank and failed(rank) and rank or witness -- a rank that ended well, or never, has no code
  return describe_cause(number, rank, witness), code_of.code, rank ~= nil
end

return cause
