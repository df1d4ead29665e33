--- Orders the forward and backward passes of a pipeline's micro-batches.
--- 1F1B: Narayanan et al., "PipeDream", 2019; interleaved: Narayanan et al., "Efficient Large-Scale Language Model
--- Training on GPU Clusters Using Megatron-LM", 2021; GPipe: Huang et al., 2019.
local lists = require "luminary.base.lists"
local schedule = {}

-- Returns the largest number of rounds with at least `ranks` micro-batches each into which n is divisible.
local function rounds_of(n, ranks)
  local rounds = math.max(1, math.floor(n / ranks))
  while n % rounds > 0 do rounds = rounds - 1 end
  return rounds
end

--- Returns a rank's list of passes {kind = "forward" | "backward", stage = from 1, batch = from 1}, in their order.
--- kind: "gpipe", "1f1b" or "interleaved"; n: the number of micro-batches; count: the number of stages of each rank,
--- 1 unless interleaved; stage s is on rank (s - 1) % ranks.
function schedule.passes(kind, rank, ranks, n, count)
  local each = n / rounds_of(n, ranks) -- micro-batches that pass a stage before the next stage of the rank runs
  local passes, total = {}, n * count
  local function add(name, i, is_last_first)
    local place = math.floor(i / each) % count
    if is_last_first then place = count - 1 - place end
    passes[#passes + 1] = {
      kind = name, stage = place * ranks + rank + 1, batch = math.floor(i / (each * count)) * each + i % each + 1,
    }
  end
  local ahead = ranks - 1 - rank -- forward passes before the first backward
  if kind == "gpipe" then ahead = total end
  if kind == "interleaved" then ahead = 2 * ahead + (count - 1) * each end
  ahead = math.min(ahead, total)
  for i = 0, ahead - 1 do add("forward", i) end
  for i = 0, total - 1 do
    if ahead + i < total then add("forward", ahead + i) end
    add("backward", i, true)
  end
  return passes
end

--- Returns the pass {kind, stage, batch} whose results a pass receives; nil for the first stage's forward passes and
--- the last one's backward passes. total: the number of stages.
function schedule.source_of(pass, total)
  if pass.stage == (pass.kind == "forward" and 1 or total) then return nil end
  return {kind = pass.kind, stage = pass.stage + (pass.kind == "forward" and -1 or 1), batch = pass.batch}
end

--- Returns the passes of a rank in the rounds of a run, a list of {pass = this rank's or nil, receives = its passes
--- whose sources others run in that round}. In a round each rank runs its next pass if it has received the source. A
--- rank that sends and receives at the end of each round, all at once, waits for no rank that waits for it, in any
--- schedule. is_kept(pass): returns true for passes that run.
function schedule.rounds(kind, rank, ranks, n, count, is_kept)
  local rounds, left, at, done, targets = {}, {}, {}, {}, {}
  local function key_of(pass) return ("%s %d %d"):format(pass.kind, pass.stage, pass.batch) end
  for r = 0, ranks - 1 do left[r], at[r] = lists.filter(schedule.passes(kind, r, ranks, n, count), is_kept), 1 end
  for _, pass in ipairs(left[rank]) do
    local source = schedule.source_of(pass, ranks * count)
    if source then targets[key_of(source)] = pass end
  end
  repeat
    local ran, round = {}, {receives = {}}
    for r = 0, ranks - 1 do
      local pass = left[r][at[r]]
      local source = pass and schedule.source_of(pass, ranks * count)
      if pass and (not source or done[key_of(source)]) then
        if r == rank then round.pass = pass end
        ran[#ran + 1], at[r] = key_of(pass), at[r] + 1
      end
    end
    for _, key in ipairs(ran) do
      done[key] = true
      round.receives[#round.receives + 1] = targets[key]
    end
    rounds[#rounds + 1] = #ran > 0 and round or nil
  until #ran == 0
  return rounds
end

return schedule
