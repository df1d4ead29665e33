--- Tracks the nodes and rounds of an elastic job, `luminary run --nnodes MIN:MAX`.
---
--- One launcher is the head: it listens at one of the job's endpoints, and knows all others. A round is one start of
--- all ranks. It ends on all nodes when a node joins, leaves or is lost, or when a rank fails; the head then starts the
--- next round with the present nodes. Messages are JSON objects with a `kind`:
---
---   to the head    join {nproc, host, script, round, failures}; result {round, result, code, text, own}; alive;
---                  query {n, index}: another head asks
---   from the head  start {round, node_rank, nnodes, first_rank, world_size, port, failures}; alive;
---                  stop {wait, grace, why}; over {code, text}; answer {n, index}
---
--- Two heads can exist: if the first nodes start at once, or after a network partition. Each asks at all other
--- endpoints; the one with the smaller round steps down; of equal ones, the one later in the list.
local core = require "luminary.core"
local hostname = require "luminary.base.hostname"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"

local Nodes = {}
Nodes.__index = Nodes

-- Seconds: between checks of the time; to connect to one address; between two searches; until the second endpoint's
-- node becomes the head (twice that for the third); until a new node counts, as it may leave at once; the longest wait
-- for further ones below MAX; between queries to other heads; for others to learn that the job is over.
local TICK, CONNECT, SEARCH, TURN, SETTLE, GATHER, QUERY, FAREWELL = 0.1, 0.7, 0.25, 0.8, 1, 5, 1, 2
local SIGPIPE = 13

-- Seconds before SIGTERM, and from there to SIGKILL, by the reason for a round's end on all nodes; an omitted one is
-- --grace. After the loss of a node nothing can be saved, since the ranks cannot agree any more.
local STOP = {
  lost = {wait = 0, grace = 1}, joined = {wait = 0},
  failed = {wait = 2, grace = 1}, preempted = {grace = 1},
}

--- Opens the node. options: {endpoints, least, most, nproc, script, node_timeout, join_timeout, max_restarts, grace,
--- port}; script: its name without folders; port: where rank 0 listens, nil: a free one.
local function open_node(supervisor, out, secret, options)
  local token = secret.id and secret.token and secret.id .. "\n" .. secret.token or secret.token
  local self = setmetatable({
    supervisor = supervisor, out = out, options = options, links = core.node_links(secret.job, token),
    role = "searching", heard = {}, pending = {}, queries = {}, inbox = {}, round = -1, failures = 0,
    alive_at = 0, lead_at = 0, problems = {},
    waits_since = core.time(), searches_since = core.time(), tries = {},
  }, Nodes)
  supervisor:watch(self.links:fd())
  return self
end

local function send(self, link, message)
  if link == 0 then -- the head's own node
    self.inbox[#self.inbox + 1] = message
  else
    self.links:send(link, json_encode(message))
  end
end

-- ---- search for the head

-- Drops the links that are the keys of a field, and empties it.
local function drop_all(self, field)
  for link in pairs(self[field]) do self.links:drop(link) end
  self[field] = {}
end

-- Begins the search for a head; stops the ranks, if they run.
local function search_for_head(self, why)
  if self.starts then self.stop = STOP.lost end
  self.role, self.head, self.joined, self.members, self.active = "searching", nil, false, nil, nil
  self.searches_since, self.waits_since, self.tries = core.time(), core.time(), {}
  self.out:say(why)
end

local function become_head(self, index)
  drop_all(self, "pending")
  self.role, self.index, self.members, self.active, self.stopping = "head", index, {}, nil, nil
  self.arrived_at, self.query_at = core.time(), 0
  self.out:say(("this node is the head of the job, at %s"):format(self.options.endpoints[index]))
end

local function try_to_lead(self, now)
  if now < self.lead_at then return end
  self.lead_at = now + SEARCH
  for index, endpoint in ipairs(self.options.endpoints) do
    if now - self.searches_since < (index - 1) * TURN then return end
    local ok, listens = pcall(self.links.listen, self.links, endpoint)
    if ok and listens then return become_head(self, index) end
    if not ok and not self.problems[endpoint] then
      self.problems[endpoint] = true
      self.out:say((tostring(listens):gsub("^%S+:%d+: ", "")))
    end
  end
end

local function keep_searching(self, now)
  local all_failed = true
  for i, endpoint in ipairs(self.options.endpoints) do
    local try = self.tries[i] or {at = 0}
    self.tries[i] = try
    if not try.connecting and now >= try.at then
      local link = self.links:connect(endpoint, CONNECT)
      self.pending[link], try.connecting, try.at = try, true, now + SEARCH
    end
    all_failed = all_failed and try.failed
  end
  if all_failed then try_to_lead(self, now) end
end

-- ---- the head

local function found_member(self, link)
  return lists.find(self.members or {}, function(member) return member.link == link end)
end

local function is_done(member) return member.result and member.result.result == "done" end

local function stop_round(self, kind, why)
  if self.stopping == "lost" or self.stopping and kind ~= "lost" then return end
  self.stopping = kind
  local wait, grace = STOP[kind].wait or self.options.grace, STOP[kind].grace or self.options.grace
  for _, member in ipairs(self.active) do
    if not member.lost and not member.result then
      send(self, member.link, {kind = "stop", wait = wait, grace = grace, why = why})
    end
  end
end

local function lose_member(self, link, why)
  local member, i = found_member(self, link)
  if not member then return end
  table.remove(self.members, i)
  member.lost = not is_done(member)
  if member.lost and self.active and lists.index_of(self.active, member) then
    stop_round(self, "lost", ("the node %s %s"):format(member.host, why))
  end
end

local function finish_job(self, code, text)
  self.is_finished = true
  for _, member in ipairs(self.members) do send(self, member.link, {kind = "over", code = code, text = text}) end
end

-- Returns the report of the first failure, preferably by the node whose own failure it is.
local function first_failure(active)
  local found
  for _, member in ipairs(active) do
    local result = member.result
    if result and result.result == "failed" and (not found or result.own and not found.own
      or result.own == found.own and result.order < found.order) then
      found = result
    end
  end
  return found
end

local function end_round(self)
  local all_done = lists.every(self.active, is_done)
  local spoiled = lists.find(self.active, function(each) return each.lost or each.result.result == "preempted" end)
  local failure = self.stopping ~= "joined" and not spoiled and first_failure(self.active)
  self.active, self.stopping, self.news = nil, nil, nil
  if all_done then return finish_job(self, 0) end
  if not failure then return end
  local line = failure.text
  if self.failures >= self.options.max_restarts then return finish_job(self, failure.code, line) end
  self.failures = self.failures + 1
  self.news = ("%s; restart %d of %d"):format(line, self.failures, self.options.max_restarts)
end

local function start_round(self, n)
  self.active, self.world_size, self.results, self.ready_at = {}, 0, 0, nil
  self.port = self.port or self.options.port or self.supervisor:port()
  for i = 1, n do
    local member = self.members[i]
    member.first_rank, member.result = self.world_size, nil
    self.world_size = self.world_size + member.nproc
    self.active[i] = member
  end
  local round = self.round + 1
  self.active.round = round
  for i, member in ipairs(self.active) do
    send(self, member.link, {
      kind = "start", round = round, node_rank = i - 1, nnodes = n, first_rank = member.first_rank,
      world_size = self.world_size, port = self.port, failures = self.failures, news = self.news,
      address = self.options.endpoints[self.index],
    })
  end
end

local function lead_round(self, now)
  local ended = lists.every(self.active, function(member) return member.lost or member.result ~= nil end)
  if ended then return end_round(self) end
  local waiting = #self.active < self.options.most and not lists.find(self.active, is_done)
    and self.members[#self.active + 1]
  if waiting and now - waiting.since >= SETTLE then
    stop_round(self, "joined", ("the node %s joined"):format(waiting.host))
  end
end

-- Returns the number of nodes with which the next round starts now, or nil.
local function nodes_to_start(self, now)
  local n, settled = math.min(#self.members, self.options.most), 0
  if n < self.options.least then
    self.ready_at = nil
    return nil
  end
  self.ready_at = self.ready_at or now
  if n == self.options.most or now - self.arrived_at >= SETTLE then return n end
  while settled < n and now - self.members[settled + 1].since >= SETTLE do settled = settled + 1 end
  return now - self.ready_at >= GATHER and settled >= self.options.least and settled or nil
end

local function lead_job(self, now)
  if not self.starts and not found_member(self, 0) then
    table.insert(self.members, 1, {link = 0, nproc = self.options.nproc, host = hostname() or "?", since = 0})
  end
  if now >= self.query_at then
    self.query_at = now + QUERY
    for index, endpoint in ipairs(self.options.endpoints) do
      if index ~= self.index then self.queries[self.links:connect(endpoint, CONNECT)] = true end
    end
  end
  if self.active then return lead_round(self, now) end
  -- Rank 0, which serves the store, is a rank of this node.
  if not (self.members[1] and self.members[1].link == 0) then return end
  local n = nodes_to_start(self, now)
  if n then
    start_round(self, n)
  elseif #self.members < self.options.least and now - self.waits_since > self.options.join_timeout then
    finish_job(self, 1, ("%d of at least %d nodes joined within %g s"):format(#self.members, self.options.least,
      self.options.join_timeout))
  end
end

-- Returns true if this head has the smaller round of two.
local function is_smaller(self, other)
  local n = self.active and #self.active or 0
  return other.n > n or other.n == n and other.index < self.index
end

local function step_down(self)
  self.links:stop_listening()
  drop_all(self, "heard")
  drop_all(self, "queries")
  self.inbox = {}
  search_for_head(self, "another node is the head of the job")
end

local to_head = {}

function to_head.join(self, link, message)
  if found_member(self, link) then return end
  if message.script ~= self.options.script then
    return send(self, link, {kind = "over", code = 1, text = (
      "the job at %s runs '%s', got '%s'; choose another port or --rdzv-id"):format(
      self.options.endpoints[self.index], self.options.script, message.script)})
  end
  self.round, self.failures = math.max(self.round, message.round), math.max(self.failures, message.failures)
  self.arrived_at = core.time()
  self.members[#self.members + 1] = {
    link = link, nproc = message.nproc, host = message.host, since = self.arrived_at,
  }
end

function to_head.result(self, link, message)
  local member = found_member(self, link)
  if not member or not self.active or message.round ~= self.active.round then return end
  self.results = self.results + 1
  message.order = self.results
  member.result = message
  if message.result ~= "done" and message.result ~= "stopped" then
    stop_round(self, message.result, ("ranks of the node %s %s"):format(member.host,
      message.result == "failed" and "failed" or "ended after SIGTERM"))
  end
end

function to_head.query(self, link, message)
  send(self, link, {kind = "answer", n = self.active and #self.active or 0, index = self.index})
  if is_smaller(self, message) then step_down(self) end
end

-- ---- every node

local from_head = {}

function from_head.start(self, message)
  self.round, self.failures, self.starts, self.stop = message.round, message.failures, message, nil
  if message.news then self.out:say(message.news) end
end

function from_head.stop(self, message)
  if not self.starts then return end
  self.stop = {wait = message.wait, grace = message.grace}
  self.out:say(message.why .. "; the ranks are stopped")
end

function from_head.over(self, message) self.over = message end

local NUMBERS = {
  join = {"nproc", "round", "failures"}, result = {"round", "code"}, query = {"n", "index"}, answer = {"n", "index"},
  start = {"round", "node_rank", "nnodes", "first_rank", "world_size", "port", "failures"}, stop = {"wait", "grace"},
  over = {"code"}, alive = {},
}
local TEXTS = {join = {"host", "script"}, result = {"result"}, start = {"address"}, stop = {"why"}}

-- Parses a message; nil if it is malformed.
local function parse_message(text)
  local ok, message = pcall(core.json_decode, text)
  local numbers = ok and type(message) == "table" and NUMBERS[message.kind]
  if not numbers then return nil end
  local is_valid = lists.every(numbers, function(name) return type(message[name]) == "number" end)
    and lists.every(TEXTS[message.kind] or {}, function(name) return type(message[name]) == "string" end)
  return is_valid and message or nil
end

local function receive_message(self, link, message)
  if not message then
    self.links:drop(link)
    self.heard[link] = nil
  elseif self.queries[link] and message.kind == "answer" then
    self.links:drop(link)
    self.queries[link], self.heard[link] = nil, nil
    if self.role == "head" and is_smaller(self, message) then step_down(self) end
  elseif self.role == "head" and to_head[message.kind] then
    to_head[message.kind](self, link, message)
  elseif (link == 0 or link == self.head) and from_head[message.kind] then
    from_head[message.kind](self, message)
  end
end

local on = {}

function on.opened(self, link)
  self.heard[link] = core.time()
  if self.pending[link] then
    self.pending[link] = nil
    drop_all(self, "pending")
    self.role, self.head, self.joined = "member", link, false
  elseif self.queries[link] then
    send(self, link, {kind = "query", n = self.active and #self.active or 0, index = self.index})
  end
end

function on.message(self, link, text)
  self.heard[link] = core.time()
  receive_message(self, link, parse_message(text))
end

function on.closed(self, link, why)
  local try = self.pending[link]
  self.heard[link], self.pending[link], self.queries[link] = nil, nil, nil
  if try then try.connecting, try.failed, try.why = false, true, why end
  if try and why:find "LM_TOKEN" and not self.has_warned then
    self.has_warned = true
    self.out:say("a launcher at an address of --rdzv: " .. why)
  end
  if self.role == "head" then
    lose_member(self, link, "left or was lost")
  elseif link == self.head and not self.over then
    search_for_head(self, "the head of the job left or was lost")
  end
end

local function check_silent(self, now)
  for link, at in pairs(self.heard) do
    if now - at > self.options.node_timeout then
      self.links:drop(link)
      self.heard[link] = nil
      if self.role == "head" then
        lose_member(self, link, ("is silent for %g s"):format(self.options.node_timeout))
      elseif link == self.head then
        search_for_head(self, ("the head of the job is silent for %g s"):format(self.options.node_timeout))
      end
    end
  end
end

--- Does all due work, without waiting. Returns how to end the round here, {wait, grace}, once it must end.
function Nodes:serve()
  while true do
    local kind, link, text = self.links:next()
    if not kind then break end
    on[kind](self, link, text)
  end
  local now = core.time()
  check_silent(self, now)
  if self.role == "searching" then keep_searching(self, now) end
  if self.role == "head" and not self.is_finished then lead_job(self, now) end
  if self.role == "member" and not self.starts and not self.joined then
    self.joined = true
    send(self, self.head, {
      kind = "join", nproc = self.options.nproc, host = hostname() or "?", script = self.options.script,
      round = self.round, failures = self.failures,
    })
  end
  if now >= self.alive_at then
    self.alive_at = now + self.options.node_timeout / 6
    for each in pairs(self.heard) do send(self, each, {kind = "alive"}) end
  end
  while self.inbox[1] do receive_message(self, 0, table.remove(self.inbox, 1)) end
  return self.stop
end

--- Returns the longest time between two calls of serve, in seconds.
function Nodes.tick() return TICK end

--- Waits for the next round. Returns its start message; or nil and the message that the job is over; or nil, nil, and
--- the signal that arrived.
function Nodes:wait()
  self.stop, self.waits_since = nil, core.time()
  while true do
    local kind, number = self.supervisor:next(TICK)
    if kind == "signal" then return nil, nil, number end
    if kind == "closed" and number == 1 then return nil, nil, SIGPIPE end
    self:serve()
    if self.over then return nil, self.over end
    if self.starts then return self.starts end
    if self.role == "searching" and core.time() - self.waits_since > self.options.join_timeout then
      local tried = lists.map(self.options.endpoints, function(endpoint, i)
        return ("%s (%s)"):format(endpoint, self.tries[i] and self.tries[i].why or "no answer")
      end)
      return nil, {code = 1, text = ("no head of the job was found within %g s at %s"):format(
        self.options.join_timeout, table.concat(tried, ", "))}
    end
  end
end

--- Reports the outcome of this node's ranks in the round: "done", "failed", "preempted" or "stopped". text: a failure's
--- message; own: true if a rank of this node is its cause.
function Nodes:report(result, code, text, own)
  local message = {
    kind = "result", round = self.round, result = result, code = code, own = own, text = text and text:match "^[^\n]*",
  }
  if self.role == "head" then
    to_head.result(self, 0, message)
  elseif self.role == "member" and self.joined then
    send(self, self.head, message)
  end
  self.starts = nil
end

--- Leaves the job. A head that has ended the job waits until the others know.
function Nodes:close()
  if self.role == "head" and self.over then
    local deadline = core.time() + FAREWELL
    while #self.members > 1 and core.time() < deadline do
      self.supervisor:next(TICK)
      self:serve()
    end
  end
  self.supervisor:watch(-1)
  self.links:close()
end

return {open = open_node}
