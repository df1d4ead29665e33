--- Orders the forward and backward passes of a pipeline's micro-batches.
--- 1F1B: Narayanan et al., "PipeDream", 2019; interleaved: Narayanan et al., "Efficient Large-Scale Language Model
--- Training on GPU Clusters Using Megatron-LM", 2021; GPipe: Huang et al., 2019.
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

return schedule
