--- Captures a training step: the kernels that a function enqueues are recorded once and then replayed as one graph, at
--- almost no cost on the host. A replay reads and writes the same tensors as the capture.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local devices = require "luminary.cuda.devices"
local stream = require "luminary.cuda.stream"

local graph = {}
local fail = options.fail

--- lm.cuda.Graph: Represents the result of lm.cuda.graph, with replay() and results.
local Graph = class.root("Graph")
graph.Graph = Graph

local graph_options = "warmup: natural = 3, device"

local followers -- {count, check} for each on_replay of the graph being captured

-- Calls f in a capture on a new stream. Returns the graph's handle, then f's results.
local function capture(device, f)
  local side = stream.Stream(device)
  side:wait_stream(stream.current_stream(device))
  return core.graph_capture(side.device, side.id, f)
end

--- Makes each replay of the step being captured call count(), for state on the device that Lua counts too, such as an
--- optimizer's steps. The captured call did not run on the device; the first replay counts it. check(handle), if given,
--- runs before each replay with the graph's handle, and fails if the graph has become outdated.
function graph.on_replay(count, check) table.insert(followers, {count = count, check = check}) end

local function warm_up(device, times, f)
  local side = stream.Stream(device)
  side:wait_stream(stream.current_stream(device))
  for _ = 1, times do stream.stream(side, f) end
  stream.current_stream(device):wait_stream(side)
end

--- Captures the GPU work of a function as a graph that can be replayed.
graph.graph = signature.of("graph(f: function, {" .. graph_options .. "})", function(f, o)
  local device = devices.gpu("graph", o.device)
  warm_up(device, o.warmup, f)
  local g = class.object(Graph)
  g.device = device
  g.followers = {}
  followers = g.followers
  local returned = {pcall(capture, device, f)}
  followers = nil
  if not returned[1] then error(returned[2], 0) end
  g.handle = returned[2]
  g.captured = f -- keeps alive the tensors that the graph reads and writes
  g.results = {select(3, unpack(returned, 1, table.maxn(returned)))}
  return g
end)

--- Replays the captured work on the current stream of the device.
function Graph:replay()
  for _, follower in ipairs(self.followers) do
    if follower.check then follower.check(self.handle) end
  end
  core.graph_replay(self.handle)
  for _, follower in ipairs(self.followers) do follower.count() end
end

function Graph:repr() return ("Graph(%s)"):format(self.device) end

--- Returns whether this thread is capturing a graph.
function graph.is_current_stream_capturing() return core.graph_is_capturing() end

local function check_like(i, given, static)
  if not core.is_tensor(given) then
    options.must_be("make_graphed_step", ("input %d"):format(i), "a tensor", given)
  end
  if table.concat(given.shape, ",") ~= table.concat(static.shape, ",") or given.dtype ~= static.dtype then
    fail("make_graphed_step: input %d was captured as %s [%s], got %s [%s]; the shape and dtype must not change", i,
      static.dtype, table.concat(static.shape, ", "), given.dtype, table.concat(given.shape, ", "))
  end
end

-- Copies x to a captured input, from the host through two alternating pinned buffers: the host prepares a batch while
-- the last replay still runs, and is at most two batches ahead.
local function upload(ring, static, x)
  if x.is_cuda then return static:copy_(x) end
  ring.turn = 3 - (ring.turn or 2)
  local slot = ring[ring.turn]
  if not slot then
    slot = {buffer = core.ops.empty(x.shape, {dtype = x.dtype}):pin_memory(), event = stream.Event()}
    ring[ring.turn] = slot
  end
  slot.event:synchronize()
  slot.buffer:copy_(x)
  static:copy_(slot.buffer, {non_blocking = true})
  slot.event:record(stream.current_stream(static.device))
end

--- Returns a function that runs a training step (forward, backward, optimizer) as one graph.
graph.make_graphed_step = signature.of("make_graphed_step(step: function, inputs: table, {" .. graph_options .. "})",
  function(step, inputs, o)
  local static, rings = {}, {}
  for i, x in ipairs(inputs) do
    if not core.is_tensor(x) or not x.is_cuda then
      fail("make_graphed_step: input %d must be a CUDA tensor, got %s", i,
        core.is_tensor(x) and "one on " .. x.device or options.describe(x))
    end
    static[i], rings[i] = x:detach():clone(), {}
  end
  o.device = o.device or (static[1] and static[1].device)
  local g = graph.graph(function() return step(unpack(static)) end, o)
  return function(...)
    local n = select("#", ...)
    if n ~= #static then fail("make_graphed_step: expected %d inputs, got %d", #static, n) end
    core.no_grad(function(...)
      for i = 1, n do
        local x = select(i, ...)
        check_like(i, x, static[i])
        if x ~= static[i] then upload(rings[i], static[i], x) end
      end
    end, ...)
    g:replay()
    return unpack(g.results)
  end, g
end)

return graph
