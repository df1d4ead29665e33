-- Measures what lm.autograd.checkpoint costs and saves: a training step of a 12-layer transformer with it and without,
-- interleaved.
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local median = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/averages.lua").median

local options = require "luminary.cli.script_options"([[
usage: luajit scripts/bench/recompute.lua [options]

  --rounds N         of both kinds of steps, in turn; medians count    (5)
  --help             print this
]])

local WIDTH, HEADS, LAYERS, BATCH, TOKENS = 256, 4, 12, 8, 256

local Block = nn.Module:extend("Block")
function Block:init()
  self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
  self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
  self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
  self.dropout = nn.Dropout(0.1)
end

function Block:forward(x) -- [batch, tokens, width]
  local b, t = x.shape[1], x.shape[2]
  local heads = self.qkv(self.norm1(x)):view(b, t, 3, HEADS, WIDTH / HEADS):permute(3, 1, 4, 2, 5)
  local q, k, v = heads[1], heads[2], heads[3]
  local weights = F.softmax(q:matmul(k:transpose(-2, -1)) * (WIDTH / HEADS) ^ -0.5, -1)
  local y = self.dropout(weights):matmul(v):transpose(2, 3):reshape(b, t, WIDTH)
  x = x + self.dropout(self.out(y))
  return x + self.dropout(self.narrow(F.gelu(self.wide(self.norm2(x)))))
end

local blocks = nn.ModuleList()
for _ = 1, LAYERS do blocks:append(Block()) end
local opt = optim.SGD(blocks:parameters(), { lr = 0.01 })
local x = lm.randn(BATCH, TOKENS, WIDTH)

local function step(recompute)
  local h = x
  for _, block in ipairs(blocks) do h = recompute and lm.autograd.checkpoint(block, h) or block(h) end
  local loss = h:square():mean()
  opt:zero_grad()
  loss:backward()
  opt:step()
end

local function measure(recompute)
  collectgarbage()
  collectgarbage()
  local before = lm.memory_allocated()
  lm.reset_peak_memory_stats()
  local began = lm.time()
  step(recompute)
  return lm.time() - began, (lm.max_memory_allocated() - before) / 1e6
end

step(false)
step(true)
local seconds, peak = { [false] = {}, [true] = {} }, {}
for _ = 1, options.rounds do
  for _, recompute in ipairs { false, true } do
    local s, mb = measure(recompute)
    table.insert(seconds[recompute], s)
    peak[recompute] = mb
  end
end
local plain, again = median(seconds[false]), median(seconds[true])
print(("plain       %6.0f ms, peak %5.0f MB above the parameters"):format(plain * 1e3, peak[false]))
print(("checkpoints %6.0f ms, peak %5.0f MB: %.2f of the time, %.2f of the memory"):format(again * 1e3, peak[true],
  again / plain, peak[true] / peak[false]))
