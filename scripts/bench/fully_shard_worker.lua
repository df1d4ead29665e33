-- A rank of scripts/bench/fully_shard: prints the median of its steps in seconds, and the peak of its memory in KB.
--   luajit fully_shard_worker.lua reshard|noreshard HIDDEN LAYERS BATCH LENGTH STEPS
local lm = require "luminary"
local nn, dist = lm.nn, lm.dist
local form, hidden, layers, batch, length, steps = arg[1], unpack(arg, 2)
hidden, layers, steps = tonumber(hidden), tonumber(layers), tonumber(steps)

local function status(name)
  local file = assert(io.open "/proc/self/status")
  local text = file:read "*a"
  file:close()
  return tonumber(text:match(name .. ":%s*(%d+)"))
end

dist.init_process_group "gloo"
lm.set_num_threads(1)
local before = status "VmRSS"
local net, how = nn.Sequential(), {}
if form == "noreshard" then how.reshard_after_forward = false end
for _ = 1, layers do
  local block = nn.TransformerEncoderLayer(hidden, hidden / 64, {
    dim_feedforward = 4 * hidden, dropout = 0, activation = "gelu", batch_first = true, norm_first = true,
  })
  net:append(nn.parallel.fully_shard(block, how))
end
nn.parallel.fully_shard(net, how)
local opt = lm.optim.AdamW(net:parameters(), {lr = 1e-4})
local x = lm.randn(tonumber(batch), tonumber(length), hidden)
local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."
local seconds = dofile(here .. "/averages.lua").of_steps(steps, function()
  local loss = net(x):square():mean()
  opt:zero_grad()
  loss:backward()
  opt:step()
  loss:item()
end)
if dist.get_rank() == 0 then print(("median %.6f peak %d"):format(seconds, status "VmHWM" - before)) end
dist.barrier()
