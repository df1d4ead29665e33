-- Policy rules of Knot Resolver that refuse names made by programs. A new name is scored on a worker thread while the
-- resolver asks for its address; kresd's event loop answers other queries meanwhile.
local lm = require "luminary"
local names = require "names"
local ffi = require "ffi"
local filter = {}

-- luacheck: globals policy event kres log_notice log_warn
local MOST = 4096 -- labels in each half of the memory of scores

local batcher, options
local young, old, count = {}, {}, 0 -- scores of labels; the old half is forgotten when the young one is full
local waiting, asked, open = {}, {}, nil -- labels for the next call; all without a score; the call and its labels

local function score_of(label) return young[label] or old[label] end

local function remember(label, score)
  if count == MOST then young, old, count = {}, young, 0 end
  young[label], count = score, count + 1
end

-- Sends the labels that wait to the worker, as one batch, unless a call is open.
local function send()
  if open or #waiting == 0 then return end
  open = {labels = waiting, future = batcher:submit(names.encode(waiting))}
  waiting = {}
  open.event = event.socket(open.future:fileno(), function() filter.take() end)
end

--- Takes the scores of the open call if it has ended, and sends the next one.
function filter.take()
  if not (open and open.future:done()) then return end
  local call = open
  open = nil
  event.cancel(call.event)
  local ok, scores = pcall(function() return call.future:get():sigmoid():totable() end)
  if not ok then log_warn(ffi.C.LOG_GRP_POLICY, "names are not scored: %s", tostring(scores)) end
  for i, label in ipairs(call.labels) do
    asked[label] = nil
    if ok then remember(label, scores[i]) end
  end
  send()
end

-- Returns the action for a name with a score, nil if it is harmless.
local function judged(name, score)
  if score < options.threshold then return nil end
  log_notice(ffi.C.LOG_GRP_POLICY, "suspicious: %s, score %.3f", name, score)
  return options.action
end

-- Runs before kresd resolves a name.
local function before(req, query)
  local name = kres.dname2str(query:name())
  local label = name and names.label(name)
  if not label then return nil end
  local score = score_of(label)
  if score then return judged(name, score) end
  if not asked[label] then
    asked[label] = true
    waiting[#waiting + 1] = label
    send()
  end
  req:vars().label = label
end

-- Runs before kresd sends the answer: the score has come, as asking other servers takes longer. For a name that is
-- answered without asking anybody, it waits up to `longest` seconds.
local function after(req, query)
  local label = req.vars_ref > 0 and req:vars().label
  if not label then return nil end
  local deadline = lm.time() + options.longest
  filter.take()
  while not score_of(label) and open and lm.time() < deadline do
    open.future:wait(deadline - lm.time())
    filter.take()
  end
  local score = score_of(label)
  return score and judged(kres.dname2str(query:name()), score)
end

--- filter.start{network =, threshold = 0.95, action = policy.REFUSE, longest = 0}: Adds the rules. network: a module or
--- function of bytes as names.encode returns them. action: false only logs.
function filter.start(opts)
  options = {threshold = opts.threshold or 0.95, longest = opts.longest or 0, action = policy.REFUSE}
  if opts.action ~= nil then options.action = opts.action or nil end
  lm.set_num_threads(1) -- one process of kresd a core computes enough
  batcher = lm.serve.Batcher(opts.network, {max_batch = 1, threads = 1})
  batcher:submit(names.encode {"luminary"}):get() -- starts the worker; fails here if the network does
  policy.add(before)
  policy.add(after, true)
end

return filter
