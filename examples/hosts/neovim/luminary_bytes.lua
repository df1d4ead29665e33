-- A network over bytes that continues and learns text. It lives on the worker threads of luminary_complete.lua: the
-- editor's thread never loads this module, and holds only the list of weights, which all threads share.
local lm = require "luminary"
local nn = lm.nn

local bytes = {}

local Network = nn.Module:extend "Network"

function Network:init(width)
  self.embedding = nn.Embedding(256, 64)
  self.gru = nn.GRU(64, width, {batch_first = true})
  self.scores = nn.Linear(width, 256)
end

--- Returns the scores of the next byte after each, [N, length, 256], and the state.
function Network:forward(ids, state)
  local y, new_state = self.gru(self.embedding(ids), state)
  return self.scores(y), new_state
end

local function ids_of(text) return lm.frombuffer(text, {dtype = "uint8"}):long() + 1 end

-- Returns this thread's network over a model's weights.
local net
local function network(model)
  if not net then
    net = nn.utils.skip_init(Network, model.width)
    net:load_state_dict(model.weights, {assign = true})
  end
  return net
end

--- Makes a model: {width, weights, trained}. path: a file of its weights, if it was saved before.
function bytes.make(width, path)
  lm.manual_seed(0)
  net = Network(width)
  local file = path and io.open(path)
  if file then
    file:close()
    net:load_state_dict(lm.load(path))
  end
  return {width = width, weights = net:state_dict(), trained = 0}
end

-- The state after each text, and the likeliest byte that follows: a keystroke costs one step of the network.
local known, count, trained = {}, 0, 0
local MOST, PIECE = 2000, 8

local function longest_known(text)
  for n = #text, 1, -1 do
    local after = known[text:sub(1, n)]
    if after then return after, n end
  end
  return {}, 0
end

-- Reads text until `deadline`; returns the byte that follows it, or nil if there was not enough time.
local function following(model, text, deadline)
  local after, n = longest_known(text)
  while n < #text do
    local last = math.min(n + PIECE, #text)
    local scores, state = network(model)(ids_of(text:sub(n + 1, last)):unsqueeze(1), after.state)
    after, n = {state = state, byte = string.char(scores[1][-1]:argmax():item() - 1)}, last
    known[text:sub(1, n)], count = after, count + 1
    if n < #text and lm.time() >= deadline then return nil end
  end
  return after.byte
end

--- Appends bytes to `shown`, which continues text, to the end of the line or up to `most` bytes, for `seconds`. Returns
--- the result, and whether another call would continue.
function bytes.continued(model, text, shown, most, seconds)
  if count > MOST or model.trained ~= trained then known, count, trained = {}, 0, model.trained end
  local deadline = lm.time() + seconds
  return lm.no_grad(function()
    repeat
      if #shown == most then return shown, false end
      local byte = following(model, text .. shown, deadline)
      if byte == "\n" then return shown, false end
      shown = shown .. (byte or "")
    until lm.time() >= deadline
    return shown, true
  end)
end

--- Trains on rows cut from text. control: a tensor of the steps done, the loss, and 1 to stop, which the editor reads
--- and sets meanwhile. Saves the weights to `path`, if given.
function bytes.train(model, text, steps, control, path)
  local ids, length, rows = ids_of(text), 64, 8
  local optimizer = lm.optim.Adam(network(model):parameters(), {lr = 3e-3})
  for step = 1, steps do
    if control[3] == 1 then break end
    local starts, parts = lm.randint(1, math.max(2, #ids - length), {rows}):totable(), {}
    for i, start in ipairs(starts) do parts[i] = ids:narrow(1, start, math.min(length + 1, #ids - start + 1)) end
    local batch = lm.stack(parts)
    local n = batch.shape[2] - 1
    local scores = net(batch:narrow(2, 1, n))
    local loss = nn.functional.cross_entropy(scores:flatten(1, 2), batch:narrow(2, 2, n):flatten())
    optimizer:zero_grad()
    loss:backward()
    optimizer:step()
    control[2], control[1] = loss:item(), step
  end
  if path then lm.save(path, net:state_dict()) end
end

return bytes
