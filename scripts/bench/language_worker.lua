-- Luminary's side of scripts/bench/language: THREADS BATCH LENGTH NEW; answers each line "step|prompt|generate DTYPE"
-- with seconds of the clock and of the CPU.
local lm = require "luminary"
local threads, batch, length, new = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3]), tonumber(arg[4])
lm.set_num_threads(threads)
lm.manual_seed(1)
local net = lm.models.gpt2 {embd_pdrop = 0, attn_pdrop = 0, resid_pdrop = 0}
local ids = lm.randint(1, 50258, {batch, length}):long()
local targets = lm.cat({ids:narrow(2, 2, length - 1), lm.full({batch, 1}, -100):long()}, 2):view(-1)
local prompt = ids:narrow(1, 1, 1):narrow(2, 1, math.min(32, length))
local optimizer

local work = {}

function work.step()
  optimizer = optimizer or lm.optim.AdamW(net:parameters(), {lr = 1e-4})
  local loss = lm.nn.functional.cross_entropy(net(ids):view(batch * length, -1), targets)
  optimizer:zero_grad()
  loss:backward()
  optimizer:step()
  return loss:item()
end

function work.prompt()
  return lm.no_grad(function() return net(ids)[{1, 1, 1}] end)
end

function work.generate() return net:generate(prompt, {max_new_tokens = new})[{1, 1}] end

for line in io.lines() do
  local what, dtype = line:match "^(%l+) (%w+)"
  if what ~= "step" then
    net:zero_grad()
    optimizer = nil
    if net.transformer.wte.weight.dtype ~= dtype then net:to(dtype) end
  end
  collectgarbage()
  local clock, cpu = lm.time(), os.clock()
  work[what]()
  io.write(("%.6f %.6f\n"):format(lm.time() - clock, os.clock() - cpu))
  io.flush()
end
