--- nn.parallel.DistributedDataParallel(…): Implements data parallelism over the ranks of a process group.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local groups = require "luminary.distributed.groups"
local alike = require "luminary.distributed.same_on_all_ranks"
local layer = require "luminary.nn.define_layer"
local records = require "luminary.nn.module_fields"
local batch_size = require "luminary.nn.parallel.batch_size"
local comm_hooks = require "luminary.nn.parallel.comm_hooks"
local placement = require "luminary.nn.parallel.placement"
local SyncBatchNorm = require "luminary.nn.parallel.sync_batch_norm"

local who = "DistributedDataParallel"
local DDP = layer.define(who)
DDP.__inner = {"share"}
DDP.transparent = true -- state_dict has the bare model's keys

-- ---- constructing: checks that ranks agree, and the reducer

local function check_devices(opts, module)
  local devices, given = {}, opts.device_ids or {}
  if #given > 1 then
    options.fail("%s: device_ids must have at most 1 entry, got %d; start one process for each device", who, #given)
  end
  for i, device in ipairs(given) do
    local known, found = pcall(core.device, device)
    if not known then options.fail("%s: device_ids: %s", who, (tostring(found):gsub("^.-%f[%w]device: ", ""))) end
    devices[i] = found
  end
  for name, p in module:named_parameters() do
    if devices[1] and p.device ~= devices[1] then
      options.fail("%s: device mismatch: device_ids is %s, but the parameter '%s' is on %s; move the model first with "
        .. "module:to(%q)", who, devices[1], name, p.device, devices[1])
    end
  end
  return opts.output_device ~= nil and core.device(opts.output_device) or nil
end

-- Returns the properties that must be equal on all ranks, as lines.
local function describe(module)
  local lines = {}
  for _, kind in ipairs {"parameter", "buffer"} do
    local i = 0
    for name, t in module["named_" .. kind .. "s"](module) do
      i = i + 1
      lines[#lines + 1] = ("%s %d is %s"):format(kind, i, placement.summarize(name, t))
    end
  end
  return lines
end

local function make_reducer(net)
  local r = net.reduced
  net.reducer = core.reducer_new(net.process_group.handle, r.parameters, r.names, r.options)
end

DDP.init = signature.of([[DistributedDataParallel(module: module, {device_ids: table, output_device, dim: lacks,
  broadcast_buffers = true, init_sync = true, process_group, bucket_cap_mb: above(0), find_unused_parameters = false,
  check_reduction: lacks, gradient_as_bucket_view = true, static_graph = false, *,
  batch_dim: count|false = 1, broadcast_in_eval = false})]], function(self, module, opts)
  groups.need(who)
  local group = groups.resolve(who, opts.process_group)
  local output_device = check_devices(opts, module)
  placement.fill(who, module)

  placement.refuse(who, module:parameters(), "it averages gradients itself, without DistributedDataParallel")
  local params, names, bytes = {}, {}, 0
  self.replicas = {}
  placement.check_experts(who, module, {group})
  for name, p in module:named_parameters() do
    local averages = placement.averages_over(p, group)
    if not averages then
      placement.check_replicas(who, name, p, group)
      table.insert(self.replicas, p)
    end
    if p.requires_grad and not averages then
      params[#params + 1], names[#names + 1] = p, name
      bytes = bytes + (p.is_cuda and p:numel() * core.dtype_size(p.dtype) or 0)
    end
  end
  if #params == 0 then options.fail("%s: at least one parameter of the module must require a gradient", who) end
  placement.note_names(who, group, module)
  self.module = module
  self.synced = {} -- layers that exchange gradients themselves, with the rank's weight
  for _, each in ipairs(module:modules()) do
    if each:is(SyncBatchNorm) then table.insert(self.synced, each) end
    records.check_sized(who, each)
  end
  self.process_group, self.output_device, self.batch_dim = group, output_device, opts.batch_dim
  local cap = math.ceil(opts.bucket_cap_mb and opts.bucket_cap_mb * 2 ^ 20
    or load_module("luminary.distributed.cost_model").bucket_size(bytes))
  self.reduced = {parameters = params, names = names, options = {
    first_bytes = math.min(cap, 2 ^ 20), cap_bytes = cap, find_unused = opts.find_unused_parameters,
    static_graph = opts.static_graph, separate = not opts.gradient_as_bucket_view, weighted = opts.batch_dim ~= false,
  }}
  if group.size == 1 then return end

  alike(group, who, "model differs", describe(module), "parameter or buffer")
  self.module_buffers = module:buffers()
  self.broadcast_buffers = opts.broadcast_buffers and #self.module_buffers > 0
  self.broadcast_in_eval = self.broadcast_buffers and opts.broadcast_in_eval
  if opts.init_sync then self:share(0) end
  make_reducer(self)
end)

--- Copies the parameters and buffers of the root, a rank of the group, to all ranks.
function DDP:share(root)
  core.reducer_share(self.process_group.handle, lists.joined(self.replicas, self.module_buffers), root)
end

-- ---- running a batch, whose backward averages gradients

local function to_device(device, ...)
  local results = {n = select("#", ...), ...}
  for i = 1, results.n do
    if core.is_tensor(results[i]) then results[i] = results[i]:to(device) end
  end
  return unpack(results, 1, results.n)
end

-- Calls the module, with the rank's weight set in layers that exchange gradients themselves.
local function weighted(net, weight, ...)
  if #net.synced == 0 then return net.module(...) end
  for _, norm in ipairs(net.synced) do norm.batch_share = weight end
  return options.restoring(function()
    for _, norm in ipairs(net.synced) do norm.batch_share = nil end -- direct calls of the module have no weights
  end, net.module, ...)
end

function DDP:forward(...)
  local weight, root = nil, self.broadcast_in_eval and not self.training and 0 or nil
  if self.reducer and core.is_grad_enabled() then
    if core.is_checkpointing() then
      options.fail("DistributedDataParallel: cannot be inside a checkpoint; put checkpoints into the wrapped module")
    end
    weight = self.batch_dim and batch_size("DistributedDataParallel", self.batch_dim, ...) or 1
    root = core.reducer_forward(self.reducer, weight, self.training, self.broadcast_buffers) or root
  end
  if root then core.reducer_share(self.process_group.handle, self.module_buffers, root) end
  if self.output_device then return to_device(self.output_device, weighted(self, weight, ...)) end
  return weighted(self, weight, ...)
end

--- net:no_sync(f, ...): Calls f(...), within which gradients are accumulated without averaging; the next backward pass
--- outside averages them. Returns what f returns.
function DDP:no_sync(f, ...)
  options.arg("no_sync", "the first argument", f, "function")
  if not self.reducer then return f(...) end
  return core.reducer_no_sync(self.reducer, f, ...)
end

--- net:join(f, ...): Calls f(...), within which ranks may have different numbers of batches. A rank that has returned
--- from f takes part in the others' collectives, without weight, until all are done. Then all take the parameters and
--- buffers of the last one. Returns what f returns.
function DDP:join(f, ...)
  options.arg("join", "the first argument", f, "function")
  if self.process_group.size == 1 then return f(...) end
  if #self.synced > 0 then
    options.fail(
      "join: SyncBatchNorm layers need a batch of every rank in each pass; give all ranks the same number of "
        .. "batches")
  end
  return core.reducer_join(self.reducer, function()
    local what, root
    repeat
      what, root = core.reducer_shadow(self.reducer)
      if what == "buffers" then core.reducer_share(self.process_group.handle, self.module_buffers, root) end
    until what == "over"
    self:share(root)
  end, f, ...)
end

--- net:register_comm_hook(state, hook): Registers a hook that reduces gradients, once and on all ranks, before the
--- first backward pass. hook: "allreduce", "bf16_compress", "fp16_compress", "bf16_compress_fp32_sum", one of
--- nn.parallel.comm_hooks, or a function hook(state, bucket).
function DDP:register_comm_hook(state, hook)
  if not self.reducer then make_reducer(self) end -- a rank that is alone has no reducer otherwise
  comm_hooks.register(self, state, hook)
end

return DDP
