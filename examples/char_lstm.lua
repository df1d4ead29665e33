-- A character language model: an LSTM that reads a text and continues with it (Karpathy's char-rnn, PyTorch's
-- word_language_model).
--
--   luajit examples/char_lstm.lua                          a text of its own making (sentences.lua)
--   luajit examples/char_lstm.lua --text shakespeare.txt --hidden 256 --steps 3000
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local USAGE = [[
usage: luajit char_lstm.lua [options]

  --text FILE       what to learn                            (20,000 sentences of a small grammar)
  --hidden N        width of the LSTM                        (128)
  --layers N        LSTMs one over the other                 (2)
  --batch-size N    parts of the text read side by side      (32)
  --length N        characters through which errors go back  (64)
  --steps N         steps of the optimizer                   (1000)
  --lr X            learning rate of Adam                    (0.003)
  --dropout X       between the layers                       (0)
  --sample N        characters to write at the end           (300)
  --temperature X   0 is the likeliest, 0.5 careful, 1 as the model says (0.8)
  --save FILE       the weights, as safetensors
  --seed N          (1)
  --device DEVICE   such as cpu or cuda:0                    (a GPU if there is one)
  --selftest        a few seconds; fails if it did not learn
]]

local options, _, refuse, files = require "luminary.cli.script_options"(USAGE, {
  sample = {"natural"},
}, {hidden = 64, layers = 1, ["batch-size"] = 16, length = 32, steps = 150, lr = 0.01, sample = 100})
local device = options.device
if options.dropout > 1 then refuse("--dropout: at most 1, got %g", options.dropout) end

-- ---- data: the text as numbers of its characters

local sentences = files.beside "sentences.lua"
local text, entropy = sentences.text(options.text, options.selftest and 2000 or 20000, refuse)
local bytes, ids = lm.frombuffer(text, {dtype = "uint8"}):unique {return_inverse = true}
local chars = bytes:totable()
for i, byte in ipairs(chars) do chars[i] = string.char(byte) end

-- Cuts a stretch of the text into rows, which are read side by side: inputs and what comes next, [rows, columns].
local function in_rows(stretch, rows)
  local columns = math.floor((#stretch - 1) / rows)
  if columns < options.length then
    refuse("a text of %d characters is too short for --batch-size and --length", #text)
  end
  local function cut(first) return stretch:narrow(1, first, rows * columns):view(rows, columns):to(device) end
  return cut(1), cut(2)
end

local split = math.floor(0.9 * #ids)
local inputs, targets = in_rows(ids:narrow(1, 1, split), options["batch-size"])
local valid_inputs, valid_targets = in_rows(ids:narrow(1, split + 1, #ids - split), 8)

-- ---- model

local CharLSTM = nn.Module:extend "CharLSTM"

function CharLSTM:init(vocabulary, hidden, layers, dropout)
  self.embed = nn.Embedding(vocabulary, hidden)
  self.lstm = nn.LSTM(hidden, hidden, {num_layers = layers, batch_first = true, dropout = dropout})
  self.head = nn.Linear(hidden, vocabulary)
end

function CharLSTM:forward(x, state)
  local y, after = self.lstm(self.embed(x), state)
  return self.head(y), after
end

lm.manual_seed(options.seed)
local net = CharLSTM(#chars, options.hidden, options.layers, options.dropout):to(device)
local opt = optim.Adam(net:parameters(), {lr = options.lr})

local function loss_of(logits, y) return F.cross_entropy(logits:flatten(1, 2), y:flatten()) end

local function validate()
  net:eval()
  local loss = lm.no_grad(function() return loss_of((net(valid_inputs)), valid_targets):item() end)
  net:train()
  return loss
end

-- ---- training: the state continues from one step to the next, its gradient does not

local length, columns, state = options.length, inputs:size(2), nil
local began, first = lm.time(), 1

for step = 1, options.steps do
  if first + length - 1 > columns then first, state = 1, nil end
  local logits, after = net(inputs:narrow(2, first, length), state)
  local loss = loss_of(logits, targets:narrow(2, first, length))
  opt:zero_grad()
  loss:backward()
  nn.utils.clip_grad_norm_(net:parameters(), 1)
  opt:step()
  state, first = {after[1]:detach(), after[2]:detach()}, first + length
  if step % 100 == 0 then
    print(("step %d  loss %.4f  %.1f s"):format(step, loss:item(), lm.time() - began))
  end
end

local reached = validate()
print(("loss on text not seen: %.4f nats a character%s"):format(reached,
  entropy and (", of which the text itself has %.4f"):format(entropy) or ""))
if options.save then lm.save(options.save, net:state_dict()) end

-- ---- what it writes by itself

net:eval()
lm.no_grad(function()
  local written, x, memory = {}, ids:narrow(1, 1, 1):view(1, 1):to(device), nil
  for i = 1, options.sample do
    local logits
    logits, memory = net(x, memory)
    local scores, temperature = logits:view(-1), options.temperature
    local drawn = temperature > 0 and (scores / temperature):softmax(1):multinomial(1) or scores:argmax(1)
    x = drawn:view(1, 1)
    written[i] = chars[x:item()]
  end
  print(table.concat(written))
end)

-- Characters by their frequency alone are 2.79 nats, by the one before 1.60, by the two before 0.78.
if options.selftest then assert(reached < 0.75, "it did not learn: a loss below 0.75 was expected") end
