--- Provides collectives. Each takes its tensors, then options in one table: group (the default one), async_op (false;
--- true returns a work at once, with work:wait([seconds]) and work:is_completed()), timeout in seconds (the group's),
--- and for reductions `op`: "sum", "mean" (of floats), "product", "min", "max", "band" or "bor" (of integers and bool).
--- Tensors are written in place, and may have any dtype, sizes and strides; dtype and sizes must be the same on all
--- ranks. Roots and peers are ranks in the world, also in groups of some ranks. A disagreement between ranks, or the
--- failure of another rank, is an error that names the rank.
--- A work uses the memory its tensors had at the call, even if they get other memory meanwhile (t.data = other,
--- net:double()). Over nccl a call returns once it is enqueued, as in PyTorch, work:wait() makes the current stream
--- wait, and such an error is raised by a later call or work. After an error the outputs of collectives, and all
--- tensors computed from them, are undefined: t:item() then returns undefined values. Call dist.barrier() to detect
--- errors, for example before saving results.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local groups = require "luminary.distributed.groups"
local fail = options.fail

local collectives = {}

--- dist.ReduceOp: Names the reductions: SUM, AVG (or MEAN), PRODUCT, MIN, MAX, BAND, BOR.
collectives.ReduceOp = options.strict("dist.ReduceOp", {
  SUM = "sum", AVG = "mean", MEAN = "mean", PRODUCT = "product", MIN = "min", MAX = "max", BAND = "band", BOR = "bor",
})
local reduction = [[op = "sum" | "mean" | "product" | "min" | "max" | "band" | "bor", ]]

-- The options of all collectives, after their own.
local common = "group, async_op = false, *, timeout: seconds"

-- Runs a collective of the group that the options name.
local function run_call(who, opts, peer, t, first, second)
  local group = groups.resolve(who, opts.group)
  return core.dist_run(who, group.handle, opts.async_op, opts.timeout, opts.op, peer, opts.tag, t, first, second,
    opts.scale)
end

local function check(who, name, value, kind) return options.arg(who, name, value, kind or "tensor") end

local function check_list(who, name, list, opts)
  local size = groups.resolve(who, opts.group).size
  if #list ~= size then options.wrong_length(who, name, size, "rank", #list) end
  return list
end

local function same_sizes(a, b) return table.concat(a, ",") == table.concat(b, ",") end

-- Checks `all`, the one tensor for the tensors of all ranks, which are like t: stacked, or joined along dim 1.
local function check_joined(who, name, all, name_of_t, t, opts)
  local size, joined = groups.resolve(who, opts.group).size, t.shape
  if all.dtype ~= t.dtype then options.dtypes_differ(who, name, all, name_of_t, t) end
  local stacked = {size, unpack(joined)}
  if t.ndim > 0 then joined[1] = size * joined[1] end
  if not same_sizes(all.shape, stacked) and (t.ndim == 0 or not same_sizes(all.shape, joined)) then
    options.wrong_shape(who, name, all, t.ndim == 0 and stacked or joined)
  end
end

--- Reduces the tensors of all ranks in such a way that all get the final result.
collectives.all_reduce = signature.of("all_reduce(tensor: tensor, {" .. reduction .. common .. ", scale: number})",
  function(t, opts)
  if opts.scale and opts.op ~= "sum" then fail("all_reduce: scale requires op = 'sum', got '%s'", opts.op) end
  return run_call("all_reduce", opts, nil, t) or t
end)

--- Broadcasts the tensor of one rank to the whole group.
collectives.broadcast = signature.of("broadcast(tensor: tensor, {src: natural = 0, " .. common .. "})",
  function(t, opts)
  return run_call("broadcast", opts, opts.src, t) or t
end)

--- Reduces the tensors of all ranks; only rank dst gets the final result.
collectives.reduce = signature.of("reduce(tensor: tensor, {dst: natural = 0, " .. reduction .. common .. "})",
  function(t, opts)
  return run_call("reduce", opts, opts.dst, t) or t
end)

--- Gathers the tensors of all ranks in a list.
collectives.all_gather = signature.of("all_gather(outputs: list, tensor: tensor, {" .. common .. "})",
  function(outputs, t, opts)
  return run_call("all_gather", opts, nil, t, check_list("all_gather", "outputs", outputs, opts)) or outputs
end)

--- Gathers the tensors of all ranks in one output tensor.
collectives.all_gather_into_tensor = signature.of("all_gather_into_tensor(output: tensor, tensor: tensor, {"
  .. common .. "})", function(output, t, opts)
  check_joined("all_gather_into_tensor", "output", output, "tensor", t, opts)
  return run_call("all_gather", opts, nil, t, {output}) or output
end)

-- Checks a list on the root; other ranks ignore it.
local function list_at(who, name, list, root, opts)
  local group = groups.resolve(who, opts.group)
  if groups.default.rank ~= root then return nil end
  if list == nil then
    fail("%s: rank %d is the root and needs %s, a list of %d tensors", who, root, name, group.size)
  end
  return check_list(who, name, list, opts)
end

--- dist.gather(…): Gathers the tensors of all ranks in a list on one rank.
collectives.gather = signature.of("gather(tensor: tensor, {gather_list: list, dst: natural = 0, " .. common .. "})",
  function(t, opts)
  local list = list_at("gather", "gather_list", opts.gather_list, opts.dst, opts)
  return run_call("gather", opts, opts.dst, t, list) or list
end)

--- dist.scatter(…): Scatters a list of tensors of one rank: each rank gets one.
collectives.scatter = signature.of("scatter(tensor: tensor, {scatter_list: list, src: natural = 0, " .. common .. "})",
  function(t, opts)
  local list = list_at("scatter", "scatter_list", opts.scatter_list, opts.src, opts)
  return run_call("scatter", opts, opts.src, t, list) or t
end)

--- Reduces a list of tensors over all ranks, then scatters the results: each rank gets one.
collectives.reduce_scatter = signature.of("reduce_scatter(output: tensor, inputs: list, {"
  .. reduction .. common .. "})", function(output, inputs, opts)
  return run_call("reduce_scatter", opts, nil, output, check_list("reduce_scatter", "inputs", inputs, opts)) or output
end)

--- Reduces a tensor over all ranks, then scatters the result: each rank gets one part.
collectives.reduce_scatter_tensor = signature.of("reduce_scatter_tensor(output: tensor, input: tensor, {"
  .. reduction .. common .. "})", function(output, input, opts)
  check_joined("reduce_scatter_tensor", "input", input, "output", output, opts)
  return run_call("reduce_scatter", opts, nil, output, {input}) or output
end)

--- Scatters a list of tensors from each rank to all ranks, and gathers the received tensors in a list.
collectives.all_to_all = signature.of("all_to_all(outputs: list, inputs: list, {"
  .. common .. "})", function(outputs, inputs, opts)
  check_list("all_to_all", "outputs", outputs, opts)
  check_list("all_to_all", "inputs", inputs, opts)
  return run_call("all_to_all", opts, nil, nil, outputs, inputs) or outputs
end)

-- Returns t's parts for the ranks, as views: equal ones, or with the numbers of rows in `sizes`.
local function parts_for_ranks(who, name, t, sizes, opts)
  local group, rows, sum = groups.resolve(who, opts.group), t.ndim > 0 and t.shape[1] or 0, 0
  if not sizes then
    if t.ndim == 0 or rows % group.size ~= 0 then
      fail("%s: the first dim of %s must be divisible by the number of ranks (%d)", who, options.describe(t),
        group.size)
    end
    sizes = {}
    for i = 1, group.size do sizes[i] = rows / group.size end
  end
  if #sizes ~= group.size then options.wrong_length(who, name, group.size, "rank", #sizes) end
  for i, size in ipairs(sizes) do sum = sum + options.arg(who, ("%s[%d]"):format(name, i), size, "natural") end
  if t.ndim == 0 or sum ~= rows then
    fail("%s: %s adds up to %d rows, but the tensor has %d", who, name, sum, rows)
  end
  return core.no_grad(t.split, t, sizes, 1)
end

--- dist.all_to_all_single(…): Splits a tensor, scatters the parts to all ranks and concatenates the parts received from
--- them.
collectives.all_to_all_single = signature.of([[all_to_all_single(output: tensor, input: tensor,
  {output_split_sizes: table, input_split_sizes: table, ]] .. common .. "})", function(output, input, opts)
  local outputs, inputs = {output}, {input}
  if opts.output_split_sizes or opts.input_split_sizes then
    outputs = parts_for_ranks("all_to_all_single", "output_split_sizes", output, opts.output_split_sizes, opts)
    inputs = parts_for_ranks("all_to_all_single", "input_split_sizes", input, opts.input_split_sizes, opts)
  end
  return run_call("all_to_all", opts, nil, nil, outputs, inputs) or output
end)

--- Waits until all ranks of the group have called it.
collectives.barrier = signature.of([[barrier({group, async_op = false, device_ids: lacks,
  timeout: seconds})]], function(opts)
  return run_call("barrier", opts)
end)

--- Waits until all ranks of the group have called it; after the timeout its error names those that did not.
collectives.monitored_barrier = signature.of([[monitored_barrier({group, timeout: seconds,
  wait_all_ranks = false})]], function(opts)
  opts.group = groups.resolve("monitored_barrier", opts.group)
  return run_call("barrier", opts)
end)

-- ---- point-to-point messages

local to_peer = ": natural, group, tag: natural = 0, *, timeout: seconds})"

local function post(who, t, asynchronous, opts)
  local out = who == "send" or who == "isend"
  opts.group, opts.async_op = groups.resolve(who, opts.group), asynchronous
  if out and not opts.dst then fail("%s: dst, the receiving rank, is required", who) end
  return run_call(out and "send" or "recv", opts, opts.dst or opts.src, t)
end

--- Sends a tensor to a rank.
collectives.send = signature.of("send(tensor: tensor, {dst" .. to_peer, function(t, opts)
  post("send", t, false, opts)
end)

--- Receives a tensor from a rank; returns that rank.
collectives.recv = signature.of("recv(tensor: tensor, {src" .. to_peer, function(t, opts)
  return post("recv", t, false, opts)
end)

--- Sends a tensor asynchronously; returns a work.
collectives.isend = signature.of("isend(tensor: tensor, {dst" .. to_peer, function(t, opts)
  return post("isend", t, true, opts)
end)

--- Receives a tensor asynchronously; returns a work.
collectives.irecv = signature.of("irecv(tensor: tensor, {src" .. to_peer, function(t, opts)
  return post("irecv", t, true, opts)
end)

-- ---- batches of messages

local P2POp = {}
P2POp.__index = P2POp
function P2POp:__tostring()
  return ("P2POp(%s, %s, rank %d)"):format(self.op, options.describe(self.tensor), self.peer)
end

local function new_op(who, op, t, peer, opts)
  op = op == collectives.isend and "isend" or op == collectives.irecv and "irecv" or op
  if op ~= "isend" and op ~= "irecv" then
    options.must_be(who, "op", "dist.isend or dist.irecv", op)
  end
  return setmetatable({
    op = op, tensor = check(who, "tensor", t), peer = check(who, "peer", peer, "natural"),
    tag = opts.tag and check(who, "tag", opts.tag, "natural") or 0, group = opts.group,
  }, P2POp)
end

--- Makes a send or a receive for dist.batch_isend_irecv.
collectives.P2POp = signature.of("P2POp(op, tensor, peer, {group, tag: natural = 0})", function(op, t, peer, opts)
  return new_op("P2POp", op, t, peer, opts)
end)

--- Starts a batch of sends and receives; returns a list of works.
collectives.batch_isend_irecv = signature.of("batch_isend_irecv(list: table, {timeout: positive})", function(list, opts)
  local who = "batch_isend_irecv"
  if #list == 0 then fail("%s: the list must not be empty", who) end
  local ops = {}
  for i, entry in ipairs(list) do
    local name = ("%s: entry %d"):format(who, i)
    check(name, "it", entry, "table")
    if getmetatable(entry) ~= P2POp then
      signature.read("({op, tensor, peer, tag, group})", name, entry)
    end
    ops[i] = new_op(name, entry.op, entry.tensor, entry.peer, entry)
    if ops[i].group ~= ops[1].group then fail("%s: entry %d must have the same group as the first", who, i) end
  end
  return core.dist_batch(groups.resolve(who, ops[1].group).handle, opts.timeout, ops)
end)

return collectives
