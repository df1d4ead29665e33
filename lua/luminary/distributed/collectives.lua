--- Collectives. Each takes its tensors, then options in one table: group (the default one), async_op (false; true gives
--- a work at once, with work:wait([seconds]) and work:is_completed()), timeout in seconds (the group's), and `op` where
--- there is a reduction: "sum", "mean" (of floats), "product", "min", "max", "band" or "bor" (of integers and bool).
--- Tensors are written in place, and may have any dtype, sizes and strides; dtype and sizes have to be the same on all
--- ranks. Roots and peers are ranks in the world, also in groups of some ranks. What a rank does not agree on with the
--- others, and what happened to another rank, is an error that names that rank.
--- A work goes on with the memory its tensors had, whatever they are given meanwhile (t.data = other, net:double()).
--- Over nccl a call returns once it is enqueued, as PyTorch's do, and such an error comes from a later call or work.
--- Once there was one, what collectives were to write is undefined, with all that was made of it: reading a tensor, by
--- t:item() say, then gives whatever is there. Before results are saved, say, dist.barrier() makes sure of them.
local core = require "luminary.core"
local options = require "luminary.base.options"
local groups = require "luminary.distributed.groups"
local fail = options.fail

local collectives = {}

--- dist.ReduceOp: names of the reductions, as PyTorch's constants: SUM, AVG (or MEAN), PRODUCT, MIN, MAX, BAND, BOR.
collectives.ReduceOp = options.strict("dist.ReduceOp", {
  SUM = "sum", AVG = "mean", MEAN = "mean", PRODUCT = "product", MIN = "min", MAX = "max", BAND = "band", BOR = "bor",
})
local reductions = {"sum", "mean", "product", "min", "max", "band", "bor"}

-- Rows that every collective has, and those of one, for options.check.
local function with(rows)
  rows.group, rows.async_op, rows.timeout = {"any"}, {"boolean", false}, {"positive"}
  return rows
end

local function is_options(v) return options.is_plain(v) and type(next(v)) == "string" end

-- What follows the tensor: positional values by `names`, then options, in which they may stand too. Gives all of
-- them by name, with `group` resolved.
local function take(who, rows, names, ...)
  local n, given = select("#", ...), nil
  if n > 0 then
    local last = select(n, ...)
    if n > #names or is_options(last) then n, given = n - 1, last end
  end
  if n > #names then fail("%s: too many arguments; options go in one table at the end", who) end
  local opts = options.check(who, given, rows, names[n + 1] or (rows.op and "op") or "group")
  for i = 1, n do
    local name, value = names[i], (select(i, ...))
    if value ~= nil then
      if given and given[name] ~= nil then fail("%s: %s is given twice, by position and by name", who, name) end
      opts[name] = options.arg(who, name, value, rows[name][1])
    end
  end
  if opts.op then options.choice(who, "op", opts.op, reductions) end
  if opts.timeout == 0 then fail("%s: timeout has to be more than 0 seconds", who) end
  opts.group = groups.resolve(who, opts.group)
  return opts
end

local function run(who, opts, peer, t, first, second)
  return core.dist_run(who, opts.group.handle, opts.async_op, opts.timeout, opts.op, peer, opts.tag, t, first, second,
    opts.scale)
end

local function check(who, name, value, kind) return options.arg(who, name, value, kind or "tensor") end

local function check_list(who, name, list, group)
  check(who, name, list, "table")
  if #list ~= group.size then
    fail("%s: %s has %d tensors for %s of %d", who, name, #list,
      group == groups.default and "a world" or "a group", group.size)
  end
  return list
end

local reducing = with {op = {"string", "sum"}}

local scaling = with {op = {"string", "sum"}, scale = {"number"}}

--- t becomes the reduction over all ranks. {scale = 0.5}: the sum of what each rank's t is times its own scale; floats.
--- Gives t.
function collectives.all_reduce(t, ...)
  check("all_reduce", "the tensor", t)
  local opts = take("all_reduce", scaling, {}, ...)
  if opts.scale and opts.op ~= "sum" then fail("all_reduce: scale goes with op = 'sum', not with '%s'", opts.op) end
  return run("all_reduce", opts, nil, t) or t
end

local rooted = with {src = {"natural", 0}}

--- t becomes what it is on rank `src` (0). Gives t.
function collectives.broadcast(t, ...)
  check("broadcast", "the tensor", t)
  local opts = take("broadcast", rooted, {"src"}, ...)
  return run("broadcast", opts, opts.src, t) or t
end

local reducing_to = with {op = {"string", "sum"}, dst = {"natural", 0}}

--- t becomes the reduction on rank `dst` (0) alone; elsewhere it stays as it is. Gives t.
function collectives.reduce(t, ...)
  check("reduce", "the tensor", t)
  local opts = take("reduce", reducing_to, {"dst"}, ...)
  return run("reduce", opts, opts.dst, t) or t
end

local plain = with {}

--- outputs[r + 1] becomes rank r's t. Gives the list.
function collectives.all_gather(outputs, t, ...)
  check("all_gather", "the tensor", t)
  local opts = take("all_gather", plain, {}, ...)
  return run("all_gather", opts, nil, t, check_list("all_gather", "the list of outputs", outputs, opts.group))
    or outputs
end

--- output, [size * n, …] or [size, n, …], becomes the t, [n, …], of all ranks in their order. Gives output.
function collectives.all_gather_into_tensor(output, t, ...)
  local who = "all_gather_into_tensor"
  check(who, "the output", output)
  check(who, "the tensor", t)
  local opts = take(who, plain, {}, ...)
  return run("all_gather", opts, nil, t, {output}) or output
end

-- The list is looked at on the root alone; elsewhere it may be there or not.
local function list_at(who, name, list, root, group)
  if groups.default.rank ~= root then return nil end
  if list == nil then
    fail("%s: this is rank %d, the root: it needs %s, a list of %d tensors", who, root, name, group.size)
  end
  return check_list(who, name, list, group)
end

local gathering = with {gather_list = {"table"}, dst = {"natural", 0}}

--- dist.gather(t [, gather_list] [, dst] [, opts]): on rank `dst` (0) gather_list[r + 1] becomes rank r's t, and it
--- gives the list.
function collectives.gather(t, ...)
  check("gather", "the tensor", t)
  local opts = take("gather", gathering, {"gather_list", "dst"}, ...)
  local list = list_at("gather", "gather_list", opts.gather_list, opts.dst, opts.group)
  return run("gather", opts, opts.dst, t, list) or list
end

local scattering = with {scatter_list = {"table"}, src = {"natural", 0}}

--- dist.scatter(t [, scatter_list] [, src] [, opts]): on rank r, t becomes scatter_list[r + 1] of rank `src` (0).
--- Gives t.
function collectives.scatter(t, ...)
  check("scatter", "the tensor", t)
  local opts = take("scatter", scattering, {"scatter_list", "src"}, ...)
  local list = list_at("scatter", "scatter_list", opts.scatter_list, opts.src, opts.group)
  return run("scatter", opts, opts.src, t, list) or t
end

--- output becomes the reduction over all ranks of inputs[r + 1], r being this rank. Gives output.
function collectives.reduce_scatter(output, inputs, ...)
  check("reduce_scatter", "the output", output)
  local opts = take("reduce_scatter", reducing, {}, ...)
  return run("reduce_scatter", opts, nil, output,
    check_list("reduce_scatter", "the list of inputs", inputs, opts.group)) or output
end

--- The same with one input, [size * n, …] or [size, n, …], for an output of [n, …].
function collectives.reduce_scatter_tensor(output, input, ...)
  local who = "reduce_scatter_tensor"
  check(who, "the output", output)
  check(who, "the input", input)
  local opts = take(who, reducing, {}, ...)
  return run("reduce_scatter", opts, nil, output, {input}) or output
end

--- outputs[r + 1] becomes rank r's inputs[s + 1], s being this rank. Sizes may differ from pair to pair. Gives outputs.
function collectives.all_to_all(outputs, inputs, ...)
  local opts = take("all_to_all", plain, {}, ...)
  check_list("all_to_all", "the list of outputs", outputs, opts.group)
  check_list("all_to_all", "the list of inputs", inputs, opts.group)
  return run("all_to_all", opts, nil, nil, outputs, inputs) or outputs
end

local splitting = with {output_split_sizes = {"table"}, input_split_sizes = {"table"}}

-- t's parts for the ranks, as views: equal ones, or as many rows as `sizes` says.
local function parts(who, name, t, sizes, group)
  local rows, sum = t.ndim > 0 and t.shape[1] or 0, 0
  if not sizes then
    if t.ndim == 0 or rows % group.size ~= 0 then
      fail("%s: the first dim of %s cannot be divided among %d ranks", who, options.describe(t), group.size)
    end
    sizes = {}
    for i = 1, group.size do sizes[i] = rows / group.size end
  end
  if #sizes ~= group.size then fail("%s: %s has %d numbers for %d ranks", who, name, #sizes, group.size) end
  for i, size in ipairs(sizes) do sum = sum + options.arg(who, ("%s[%d]"):format(name, i), size, "natural") end
  if t.ndim == 0 or sum ~= rows then
    fail("%s: %s adds up to %d rows, and the tensor has %d", who, name, sum, rows)
  end
  return core.no_grad(t.split, t, sizes, 1)
end

--- dist.all_to_all_single(output, input [, {output_split_sizes, input_split_sizes}]): the same with one tensor each,
--- whose first dim is cut into equal parts, or into those that the lists say: input_split_sizes[r + 1] rows go to rank
--- r, output_split_sizes[r + 1] come from it. Gives output.
function collectives.all_to_all_single(output, input, ...)
  local who = "all_to_all_single"
  check(who, "the output", output)
  check(who, "the input", input)
  local opts = take(who, splitting, {}, ...)
  local outputs, inputs = {output}, {input}
  if opts.output_split_sizes or opts.input_split_sizes then
    outputs = parts(who, "output_split_sizes", output, opts.output_split_sizes, opts.group)
    inputs = parts(who, "input_split_sizes", input, opts.input_split_sizes, opts.group)
  end
  return run("all_to_all", opts, nil, nil, outputs, inputs) or output
end

--- Returns when every rank has come here, and what it called in this group before is done, on its device too. With
--- async_op its work says that every rank has come.
function collectives.barrier(...) return run("barrier", take("barrier", plain, {}, ...)) end

local monitored = {group = {"any"}, timeout = {"positive"}, wait_all_ranks = {"boolean", false}}

--- A barrier whose error, when `timeout` seconds are over, names the ranks that did not come (all of them, whatever
--- wait_all_ranks says).
function collectives.monitored_barrier(...)
  local opts = take("monitored_barrier", monitored, {}, ...)
  opts.async_op = false
  return run("barrier", opts)
end

-- ---- from one rank to another

local sending = {group = {"any"}, timeout = {"positive"}, tag = {"natural", 0}, dst = {"natural"}}
local receiving = {group = {"any"}, timeout = {"positive"}, tag = {"natural", 0}, src = {"natural"}}

local function post(who, t, asynchronous, ...)
  local out = who == "send" or who == "isend"
  check(who, "the tensor", t)
  local opts = take(who, out and sending or receiving, {out and "dst" or "src"}, ...)
  opts.async_op = asynchronous
  if out and not opts.dst then fail("%s: to which rank?", who) end
  return run(out and "send" or "recv", opts, opts.dst or opts.src, t)
end

--- Sends t to rank `dst`; {tag = 0} tells messages between the same two ranks apart. Returns when t may be changed.
function collectives.send(t, ...) post("send", t, false, ...) end

--- t becomes what rank `src` (any, without) sent with the same tag. Gives the sender's rank.
function collectives.recv(t, ...) return post("recv", t, false, ...) end

--- The same without waiting: they give a work, to be waited for before t is touched. Over nccl they run one after the
--- other, and the first with a peer may wait for it to come: ranks that send to each other, or in a ring, need
--- dist.batch_isend_irecv.
function collectives.isend(t, ...) return post("isend", t, true, ...) end

--- Of an irecv from any rank, work:source_rank() is the sender's once it is done.
function collectives.irecv(t, ...) return post("irecv", t, true, ...) end

-- ---- several of them at once

local P2POp = {}
P2POp.__index = P2POp
function P2POp:__tostring()
  return ("P2POp(%s, %s, rank %d)"):format(self.op, options.describe(self.tensor), self.peer)
end

local function new_op(who, op, t, peer, opts)
  op = op == collectives.isend and "isend" or op == collectives.irecv and "irecv" or op
  if op ~= "isend" and op ~= "irecv" then
    fail("%s: op has to be dist.isend or dist.irecv, got %s", who, options.describe(op))
  end
  return setmetatable({
    op = op, tensor = check(who, "the tensor", t), peer = check(who, "peer", peer, "natural"),
    tag = opts.tag and check(who, "tag", opts.tag, "natural") or 0, group = opts.group,
  }, P2POp)
end

--- dist.P2POp(op, t, peer [, {tag, group}]): one send or receive for dist.batch_isend_irecv. op: dist.isend or
--- dist.irecv; peer: a rank in the world.
function collectives.P2POp(op, t, peer, opts)
  return new_op("P2POp", op, t, peer, options.check("P2POp", opts, {tag = {"natural", 0}, group = {"any"}}, "tag"))
end

--- dist.batch_isend_irecv(list [, {timeout}]): starts several sends and receives of which none has to wait for another;
--- gives a list of works. Entries are dist.P2POp's, or {op = "isend", tensor = t, peer = 1, tag = 0, group = g}; all of
--- one group.
function collectives.batch_isend_irecv(list, opts)
  local who = "batch_isend_irecv"
  check(who, "the list", list, "table")
  opts = options.check(who, opts, {timeout = {"positive"}}, "timeout")
  if #list == 0 then fail("%s: the list is empty", who) end
  local ops = {}
  for i, entry in ipairs(list) do
    local name = ("%s: entry %d"):format(who, i)
    check(name, "it", entry, "table")
    if getmetatable(entry) ~= P2POp then
      options.check(name, entry, {op = {"any"}, tensor = {"any"}, peer = {"any"}, tag = {"any"}, group = {"any"}}, "op")
    end
    ops[i] = new_op(name, entry.op, entry.tensor, entry.peer, entry)
    if ops[i].group ~= ops[1].group then fail("%s: entry %d is of another group than the first", who, i) end
  end
  return core.dist_batch(groups.resolve(who, ops[1].group).handle, opts.timeout, ops)
end

return collectives
