-- Luminary's side of scripts/bench/language: MODEL THREADS BATCH LENGTH NEW; answers each line
-- "step|prompt|generate|continue DTYPE" with seconds of the clock and of the CPU.
local lm = require "luminary"
local model = arg[1]
local threads, batch, length, new = tonumber(arg[2]), tonumber(arg[3]), tonumber(arg[4]), tonumber(arg[5])
lm.set_num_threads(threads)
local build = {
  gpt2 = function() return lm.models.gpt2 {embd_pdrop = 0, attn_pdrop = 0, resid_pdrop = 0} end,
  tinyllama = function()
    return lm.models.llama {vocab_size = 32000, hidden_size = 2048, intermediate_size = 5632, num_hidden_layers = 22,
      num_attention_heads = 32, num_key_value_heads = 4, max_position_embeddings = 2048}
  end,
}
local vocabulary = {gpt2 = 50257, tinyllama = 32000}
lm.manual_seed(1)
local ids = lm.randint(1, vocabulary[model] + 1, {batch, length}):long()
local targets = lm.cat({ids:narrow(2, 2, length - 1), lm.full({batch, 1}, -100):long()}, 2):view(-1)
local prompt = ids:narrow(1, 1, 1):narrow(2, 1, math.min(32, length))
local net, net_dtype, optimizer

local function become(dtype)
  if dtype == net_dtype then return end
  if not net or net_dtype == "int8" then
    net = nil
    collectgarbage()
    net = build[model]()
  end
  if dtype == "int8" then
    lm.quantize(net:to "float32")
  else
    net:to(dtype)
  end
  net_dtype = dtype
end

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
function work.continue() return net:generate(prompt:narrow(2, 1, 1), {max_new_tokens = new})[{1, 1}] end

for line in io.lines() do
  local what, dtype = line:match "^(%l+) (%w+)"
  if what ~= "step" then
    if net then net:zero_grad() end
    optimizer = nil
  end
  become(dtype)
  collectgarbage()
  local clock, cpu = lm.time(), os.clock()
  work[what]()
  io.write(("%.6f %.6f\n"):format(lm.time() - clock, os.clock() - cpu))
  io.flush()
end
