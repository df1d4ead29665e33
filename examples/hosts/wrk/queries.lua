-- A network that writes search queries, byte by byte. Run by luajit with `--make FILE [QUERIES]`, it learns from a file
-- of queries, one a line (of a server's log), or from some that it makes itself, and writes its weights.
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional
local queries = {}

local END, MOST = 11, 64 -- the id of a line's end, with which a query begins and ends; bytes of a query at most

local Queries = nn.Module:extend "Queries"

function Queries:init()
  self.embedding = nn.Embedding(256, 32)
  self.gru = nn.GRU(32, 96, {batch_first = true})
  self.scores = nn.Linear(96, 256)
end

--- Returns the scores of the next byte after each, [N, length, 256], and the state.
function Queries:forward(ids, state)
  local y, new_state = self.gru(self.embedding(ids), state)
  return self.scores(y), new_state
end

--- Returns a network with the weights of a file, mapped, so that threads share them.
function queries.network(path)
  local net = Queries()
  net:load_state_dict(lm.load(path, {mmap = true}), {assign = true})
  return net:eval()
end

--- Returns n queries that the network draws, all at once. generator: the random numbers, of one thread.
function queries.draw(net, n, generator)
  return lm.no_grad(function()
    local ids, state, columns = lm.full({n, 1}, END, {dtype = "int64"}), nil, {}
    local ended = lm.zeros(n, 1, {dtype = "bool"})
    for i = 1, MOST do
      local scores
      scores, state = net(ids, state)
      ids = scores:select(2, 1):softmax(2):multinomial(1, {generator = generator})
      ended = ended:logical_or(ids:eq(END))
      if ended:all():item() then break end
      columns[i] = ids:masked_fill(ended, END)
    end
    local rows, texts = lm.cat(columns, 2):totable(), {}
    for k, row in ipairs(rows) do
      for i, id in ipairs(row) do row[i] = string.char(id - 1) end
      texts[k] = table.concat(row):match "[^\n]*"
    end
    return texts
  end)
end

-- ---- learning

-- Returns queries that ask for a few things in a few ways, as text.
local function made(n)
  local things = {"weather", "train times", "cheap flights", "hotels", "a used bike", "jobs", "restaurants", "concerts"}
  local cities = {"berlin", "paris", "madrid", "oslo", "vienna", "lisbon", "dublin", "prague"}
  local forms = {"%s %s", "%s in %s", "%s near %s", "best %s in %s", "where to find %s in %s", "%s %s tomorrow"}
  local lines, draws = {}, lm.randint(1, 9, {n, 2}):totable()
  local form = lm.randint(1, #forms + 1, {n}):totable()
  for i, draw in ipairs(draws) do lines[i] = forms[form[i]]:format(things[draw[1]], cities[draw[2]]) end
  return table.concat(lines, "\n")
end

--- Returns a network that has learned from a text, and the loss of its last step.
function queries.trained(text, steps)
  lm.manual_seed(1)
  text = "\n" .. (text or made(2000)) .. "\n"
  local net, length, loss = Queries(), 48, nil
  local ids = lm.frombuffer(text, {dtype = "uint8"}):long() + 1
  local windows = ids:unfold(1, math.min(length + 1, #ids), 1)
  local opt = lm.optim.Adam(net:parameters(), {lr = 5e-3})
  for _ = 1, steps do
    local batch = windows:index_select(1, lm.randint(1, #windows + 1, {32}))
    local n = batch.shape[2] - 1
    loss = F.cross_entropy(net(batch:narrow(2, 1, n)):flatten(1, 2), batch:narrow(2, 2, n):flatten())
    opt:zero_grad()
    loss:backward()
    opt:step()
  end
  return net, loss:item()
end

if arg and arg[1] == "--make" then
  local text = arg[3] and assert(io.open(arg[3])):read "*a"
  local net, loss = queries.trained(text, 300)
  lm.save(arg[2], net:state_dict())
  print(("loss %.2f; it writes, for instance:"):format(loss))
  print(table.concat(queries.draw(net, 4), "\n"))
end

return queries
