--- nn.DataParallel(…): Implements data parallelism over the devices of this process.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Module = require "luminary.nn.module"
local layer = require "luminary.nn.define_layer"
local comm = require "luminary.nn.parallel.comm"
local sharing = require "luminary.nn.parallel.scatter_gather"
local replicate = require "luminary.nn.parallel.replicate"
local apply = require "luminary.nn.parallel.parallel_apply"
local pack = options.pack

local ops, fail = core.ops, options.fail
local who = "DataParallel"
local DataParallel = layer.define(who)
DataParallel.transparent = true -- state_dict has the bare model's keys

-- ---- constructing: devices and options

local function all_devices()
  local list = {}
  for i = 1, core.device_count("cuda") do list[i] = i - 1 end
  return #list > 0 and list or nil
end

local function check_devices(given)
  given = given or all_devices()
  if not given then return nil end
  local devices, seen = comm.devices(who, given), {}
  for i, device in ipairs(devices) do
    if seen[device] then fail("%s: device_ids lists %s twice, at %d and %d", who, device, seen[device], i) end
    seen[device] = i
  end
  return devices
end

local function check_shares(shares, devices)
  if not shares then return nil end
  if #shares ~= (devices and #devices or 1) then
    options.wrong_length(who, "shares", devices and #devices or 1, "device", #shares)
  end
  for i, share in ipairs(shares) do
    if type(share) ~= "number" or not (share > 0 and share < math.huge) then
      options.must_be(who, ("shares[%d]"):format(i), "a number above 0", share,
        "leave a device out of device_ids instead")
    end
  end
  return shares
end

local function check_criterion(criterion)
  if criterion == nil or type(criterion) == "function" or Module.is_module(criterion) then return criterion end
  options.must_be(who, "criterion", "a loss such as nn.CrossEntropyLoss(), or a function", criterion)
end

local rows = "device_ids: table, output_device, dim: integer = 1, *, criterion, shares: table"

DataParallel.init = signature.of("DataParallel(module: module, {" .. rows .. "})", function(self, module, opts)
  local devices = check_devices(opts.device_ids)
  self.module, self.device_ids = module, devices or {}
  self.plan = { -- a plain table, since the criterion is not part of the model
    devices = devices, dim = opts.dim,
    output_device = opts.output_device ~= nil and core.device(opts.output_device) or devices and devices[1],
    shares = check_shares(opts.shares, devices),
    criterion = check_criterion(opts.criterion),
  }
end)

-- ---- running a batch on the replicas

local function reduction_of(criterion) return Module.is_module(criterion) and criterion.reduction or "mean" end

-- Returns the weight of target's labels in a mean that ignores some or has class weights; nil if all weigh the same.
local function count_of(criterion, target)
  local ignored = Module.is_module(criterion) and criterion.reduction == "mean" and criterion.ignore_index
  if not ignored or not core.is_tensor(target) or target:is_floating_point() then return nil end
  return core.no_grad(function()
    local counted = target:ne(ignored)
    if not criterion.weight then return counted:sum() end
    local labels = ops.where(counted, target, 1):reshape {-1}
    return (criterion.weight:index_select(1, labels) * counted:reshape {-1}):sum()
  end)
end

-- Returns a function that calls a replica with its arguments, and the criterion with the results and the target.
local function call_of(module, criterion, args)
  if not criterion then return function() return module(unpack(args, 1, args.n)) end end
  return function()
    local results = pack(module(unpack(args, 1, args.n - 1)))
    results[results.n + 1] = args[args.n]
    return (criterion(unpack(results, 1, results.n + 1))), count_of(criterion, args[args.n])
  end
end

-- Returns the replicas' losses on the output device, and each one's weight in a mean: its samples, or a tensor.
local function losses_of(results, sizes, device)
  local losses, counts = {}, {}
  for k, result in ipairs(results) do
    local loss, count = result[1], result[2]
    if not core.is_tensor(loss) then
      fail("%s: the criterion must return a tensor; replica %d returned %s", who, k, options.describe(loss))
    end
    losses[k] = loss:to(device)
    counts[k] = count and count:to(device, "float64") or sizes and sizes[k] or 1
  end
  return losses, counts
end

local function joined_loss(plan, losses, counts)
  local reduction = reduction_of(plan.criterion)
  if losses[1].ndim > 0 or reduction == "none" then
    return sharing.gather(losses, plan.output_device, plan.dim, who)
  end
  if #losses == 1 then return losses[1] end
  local whole, total = 0, 0
  for _, count in ipairs(counts) do whole = whole + count end
  for k, loss in ipairs(losses) do
    if reduction == "mean" then
      local weight = counts[k] / whole
      if core.is_tensor(weight) then
        weight = weight:to {dtype = loss.dtype}
        loss = ops.where(counts[k]:eq(0), weight, loss * weight) -- the mean of no labels is NaN
      else
        loss = loss * weight
      end
    end
    total = total + loss
  end
  return total
end

-- Runs the module on args, a packed list, over the plan's devices.
local function run(module, plan, args)
  local criterion = plan.criterion
  if criterion and args.n < 2 then
    fail("%s: with a criterion, pass the inputs and then the targets; got %d argument%s", who, args.n,
      args.n == 1 and "" or "s")
  end
  if not plan.devices then return call_of(module, criterion, args)() end

  local pieces, sizes = sharing.scatter(args, plan.devices, plan.dim, plan.shares, who)
  local devices = {unpack(plan.devices, 1, #pieces)}
  local replicas = replicate(module, devices, false, who)
  local criteria = Module.is_module(criterion) and replicate(criterion, devices, true, who)
  local calls = {}
  for k, piece in ipairs(pieces) do
    calls[k] = call_of(replicas[k], criteria and criteria[k] or criterion, piece)
  end
  local results = apply.run(who, calls, devices)
  if criterion then return joined_loss(plan, losses_of(results, sizes, plan.output_device)) end
  if #plan.devices == 1 and plan.output_device == devices[1] then return unpack(results[1], 1, results[1].n) end
  local together = sharing.gather(results, plan.output_device, plan.dim, who)
  return unpack(together, 1, results[1].n)
end

function DataParallel:forward(...) return run(self.module, self.plan, pack(...)) end

--- nn.parallel.data_parallel(…): Evaluates a module in parallel over devices, without a wrapper.
local data_parallel = signature.of("data_parallel(module, inputs, {" .. rows .. "})", function(module, inputs, opts)
  local wrapper = DataParallel(module, opts)
  local args = core.is_tensor(inputs) and {n = 1, inputs} or options.arg("data_parallel", "inputs", inputs, "table")
  return wrapper(unpack(args, 1, args.n or #args))
end)

return {DataParallel = DataParallel, data_parallel = data_parallel}
