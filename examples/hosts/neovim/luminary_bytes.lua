-- A network over bytes that continues and learns text. It lives on the worker threads of luminary_complete.lua: the
-- editor's thread never loads this module, and holds only the list of weights, which all threads share.
local lm = require "luminary"
local nn = lm.nn

local bytes = {}

local POSITIONS = 96 -- the most bytes that the network reads: those before the cursor, and a completion

local function ids_of(text) return lm.frombuffer(text, {dtype = "uint8"}):long() + 1 end

-- Returns an untrained network; each layer has about 12 * width ^ 2 parameters.
local function new_network(size)
  local width = size.width
  return lm.models.llama {
    vocab_size = 256, hidden_size = width, intermediate_size = math.floor(8 / 3 * width), tie_word_embeddings = true,
    num_hidden_layers = size.layers, num_attention_heads = math.max(1, math.floor(width / 64)),
    max_position_embeddings = POSITIONS,
  }
end

-- This thread's network over a model's weights, and what it has read: a keystroke costs the step of one byte.
local net, cache, seen, trained

local function network(model)
  if not net then
    net = new_network(model.size)
    for name, weight in pairs(model.weights) do
      local path, field = name:match "^(.*)%.(.-)$"
      net:get_submodule(path)[field] = nn.Parameter(weight)
    end
  end
  return net
end

--- Makes a model of a size, {width, layers}: {size, weights, trained}. path: a file of its weights, if it was saved
--- before.
function bytes.make(size, path)
  lm.manual_seed(0)
  net = new_network(size)
  local file = path and io.open(path)
  if file then
    file:close()
    net:load_state_dict(lm.load(path))
  end
  return {size = size, weights = net:state_dict(), trained = 0}
end

-- Returns the number of bytes that two texts begin with in common.
local function common(a, b)
  local n = math.min(#a, #b)
  for i = 1, n do
    if a:byte(i) ~= b:byte(i) then return i - 1 end
  end
  return n
end

-- Returns the likeliest byte after text. The cache keeps what this text and the one before begin with.
local function following(model, text)
  cache = cache or network(model):new_cache(1, POSITIONS)
  local kept = model.trained == trained and math.min(common(text, seen), #text - 1) or 0
  for _, layer in ipairs(cache) do layer:reset(kept) end
  seen, trained = text, model.trained
  local scores = network(model)(ids_of(text:sub(kept + 1)):unsqueeze(1), {cache = cache})
  return string.char(scores[1][-1]:argmax():item() - 1)
end

--- Appends bytes to `shown`, which continues text, to the end of the line or up to `most` bytes, for `seconds` or a
--- little longer. Returns the result, and whether another call would continue.
function bytes.continued(model, text, shown, most, seconds)
  local deadline = lm.time() + seconds
  return lm.no_grad(function()
    repeat
      if #shown == most then return shown, false end
      local byte = following(model, text .. shown)
      if byte == "\n" then return shown, false end
      shown = shown .. byte
    until lm.time() >= deadline
    return shown, true
  end)
end

--- Trains on rows cut from text. control: a tensor of the steps done, the loss, and 1 to stop, which the editor reads
--- and sets meanwhile. Saves the weights to `path`, if given.
function bytes.train(model, text, steps, control, path)
  local ids, length, rows = ids_of(text), POSITIONS, 8
  local optimizer = lm.optim.Adam(network(model):parameters(), {lr = 0.2 / model.size.width})
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
