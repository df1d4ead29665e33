-- Luminary's side of scripts/bench/blocks: MODEL FILE THREADS; answers each line "tokens|prompt|read N" with seconds
-- and the bytes of weights that a token reads. The first answer includes loading the file.
local lm = require "luminary"
lm.set_num_threads(tonumber(arg[3]))
local memory, net, bytes

local function load()
  net = lm.models[arg[1] == "gpt2" and "gpt2" or "llama"] {weights = arg[2], dtype = "auto"}
  bytes = 0
  for name, t in pairs(net:state_dict()) do
    if t.ndim == 2 and not name:find "embed" and not name:find "wte" and not name:find "wpe" then
      bytes = bytes + t:numel() * t:element_size()
    end
  end
end

local work = {}
function work.tokens(n) return net:generate(lm.LongTensor {{1}}, {max_new_tokens = n})[{1, 1}] end
function work.prompt(n) return net:generate(lm.LongTensor(1, n):fill_(7), {max_new_tokens = 1})[{1, 1}] end
function work.read()
  memory = memory or lm.ones(2 ^ 28)
  return memory:sum():item()
end

for line in io.lines() do
  local what, n = line:match "^(%l+) (%d+)"
  if what == "read" and not memory then work.read() end
  if net and what == "tokens" then work.tokens(2) end -- llama-bench warms up, too
  local start = lm.time()
  if not net then load() end
  work[what](tonumber(n))
  io.write(("%.6f %d\n"):format(lm.time() - start, bytes))
  io.flush()
end
