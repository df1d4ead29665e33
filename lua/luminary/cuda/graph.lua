--- Whole-step capture: the kernels that a function enqueues are recorded once and then replayed as one, which costs the
--- host next to nothing. What a replay reads and writes are the very tensors of the capture.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local stream = require "luminary.cuda.stream"

local graph = {}
local fail = options.fail

--- lm.cuda.Graph: The class of what lm.cuda.graph returns, with replay() and results.
local Graph = class.root("Graph")
graph.Graph = Graph

local graph_options = {{"warmup", "natural", 3}, {"device", "any"}}

-- f in a capture on a stream of its own; the graph's handle, then what f returned. `followers` is filled with what is
-- called at each replay.
local followers

local function capture(device, f)
  local side = stream.Stream(device)
  side:wait_stream(stream.current_stream(device))
  return core.graph_capture(side.device, side.id, f)
end

--- While a step is captured: count() is called at each replay from now on, for what a replay does on the device and Lua
--- keeps a number of. The call that says so has not happened on the device: it is counted with the first replay.
--- check(handle), if given, comes before the replay with the graph's handle, and raises an error where that would not
--- do what is wanted by now.
function graph.on_replay(count, check) table.insert(followers, {count = count, check = check}) end

local function warm_up(device, times, f)
  local side = stream.Stream(device)
  side:wait_stream(stream.current_stream(device))
  for _ = 1, times do stream.stream(side, f) end
  stream.current_stream(device):wait_stream(side)
end

--- lm.cuda.graph(f, {warmup = 3, device =}): Captures the GPU work of a function as a graph that can be replayed.
graph.graph = arguments.takes("graph", graph_options, function(f, given)
  options.arg("graph", "f", f, "function")
  local o = given
  local device = graph.device_of("graph", o.device)
  warm_up(device, o.warmup, f)
  local g = class.object(Graph)
  g.device = device
  g.followers = {}
  followers = g.followers
  local got = {pcall(capture, device, f)}
  followers = nil
  if not got[1] then error(got[2], 0) end
  g.handle = got[2]
  g.captured = f -- what it reads and writes has to live as long
  g.results = {select(3, unpack(got, 1, table.maxn(got)))}
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
    fail("make_graphed_step: input %d has to be a tensor, got %s", i, options.describe(given))
  end
  if table.concat(given.shape, ",") ~= table.concat(static.shape, ",") or given.dtype ~= static.dtype then
    fail("make_graphed_step: input %d was captured as %s [%s], got %s [%s]; a step is captured for one shape", i,
      static.dtype, table.concat(static.shape, ", "), given.dtype, table.concat(given.shape, ", "))
  end
end

-- Into a captured input, from the host by way of two pinned buffers in turn: so the host prepares a batch while the
-- last replay still runs, and is never more than two ahead.
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
graph.make_graphed_step = arguments.takes("make_graphed_step", graph_options, function(step, inputs, given)
  options.arg("make_graphed_step", "step", step, "function")
  options.arg("make_graphed_step", "inputs", inputs, "table")
  local static, rings = {}, {}
  for i, x in ipairs(inputs) do
    if not core.is_tensor(x) or not x.is_cuda then
      fail("make_graphed_step: input %d has to be a tensor on a CUDA device, got %s", i,
        core.is_tensor(x) and "one on " .. x.device or options.describe(x))
    end
    static[i], rings[i] = x:detach():clone(), {}
  end
  local o = given
  o.device = o.device or (static[1] and static[1].device)
  local g = graph.graph(function() return step(unpack(static)) end, o)
  return function(...)
    local n = select("#", ...)
    if n ~= #static then fail("make_graphed_step: %d inputs expected, got %d", #static, n) end
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
