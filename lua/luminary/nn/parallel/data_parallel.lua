--- nn.DataParallel(module [, opts]): a module whose batches are split over the devices of this process. Each forward
--- pass copies the parameters to the devices, runs a replica on each with its part of the batch, and joins the results
--- on one; backward adds the replicas' gradients to the module's. Without a CUDA device (and no other named) the module
--- simply runs where it is. Its parameters have to be on the first device; wrapping before or after moving them is the
--- same.
---
--- Options, in one table:
---   device_ids     {device, …}: all CUDA devices by default; "cpu:0", "cpu:1" will do
---   output_device  where the results go; the first device by default
---   dim            1: what counts the samples of a batch
---   shares         {1, 2, 2}: how many samples each device gets, in relation to the others: relieves the first,
---                  which also joins results and adds gradients
---   criterion      a loss, called by each replica with its results and its part of the last argument, the targets:
---                  net(x, y) gives the loss, and outputs stay where they are. Means are weighted by the samples of
---                  each part, so that uneven ones count right; {reduction = "sum"} and "none" are followed. A function
---                  is taken to give the mean
local core = require "luminary.core"
local options = require "luminary.options"
local Module = require "luminary.nn.module"
local layer = require "luminary.nn.layer"
local comm = require "luminary.nn.parallel.comm"
local sharing = require "luminary.nn.parallel.scatter_gather"
local replicate = require "luminary.nn.parallel.replicate"
local apply = require "luminary.nn.parallel.parallel_apply"

local fail = options.fail
local who = "DataParallel"
local DataParallel = layer.define(who)
DataParallel.transparent = true -- state_dict has the bare model's keys

local function pack(...) return {n = select("#", ...), ...} end

-- ---- the start

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
    if seen[device] then fail("%s: device_ids names %s twice, at %d and %d", who, device, seen[device], i) end
    seen[device] = i
  end
  return devices
end

local function check_shares(shares, devices)
  if not shares then return nil end
  if #shares ~= (devices and #devices or 1) then
    fail("%s: shares has %d numbers for %d devices", who, #shares, devices and #devices or 1)
  end
  for i, share in ipairs(shares) do
    if type(share) ~= "number" or not (share > 0 and share < math.huge) then
      fail("%s: shares[%d] has to be a number above 0, got %s; leave a device out of device_ids instead", who, i,
        options.describe(share))
    end
  end
  return shares
end

local function check_criterion(criterion)
  if criterion == nil or type(criterion) == "function" or Module.is_module(criterion) then return criterion end
  fail("%s: criterion has to be a loss such as nn.CrossEntropyLoss(), or a function, got %s", who,
    options.describe(criterion))
end

function DataParallel:init(module, opts)
  if not Module.is_module(module) then fail("%s: a module wanted, got %s", who, options.describe(module)) end
  opts = options.check(who, opts, {
    device_ids = {"table"}, output_device = {"any"}, dim = {"integer", 1}, criterion = {"any"}, shares = {"table"},
  }, "device_ids")
  local devices = check_devices(opts.device_ids)
  self.module = module
  self.plan = { -- a plain table: the criterion is no part of the model
    devices = devices, dim = opts.dim,
    output_device = opts.output_device ~= nil and core.device(opts.output_device) or devices and devices[1],
    shares = check_shares(opts.shares, devices),
    criterion = check_criterion(opts.criterion),
  }
end

-- ---- each batch

-- What a replica is asked to do with its arguments.
local function call_of(module, criterion, args)
  if not criterion then return function() return module(unpack(args, 1, args.n)) end end
  return function()
    local results = pack(module(unpack(args, 1, args.n - 1)))
    results[results.n + 1] = args[args.n]
    return criterion(unpack(results, 1, results.n + 1))
  end
end

local function reduction_of(criterion) return Module.is_module(criterion) and criterion.reduction or "mean" end

-- One loss of those of the replicas, sizes[k] samples each.
local function joined_loss(plan, losses, sizes)
  if losses[1].ndim > 0 or reduction_of(plan.criterion) == "none" then
    return sharing.gather(losses, plan.output_device, plan.dim, who)
  end
  local samples, total = 0, nil
  for k = 1, #losses do samples = samples + sizes[k] end
  for k, loss in ipairs(losses) do
    local weight = reduction_of(plan.criterion) == "sum" and 1 or sizes[k] / samples
    local part = loss:to(plan.output_device)
    if weight ~= 1 then part = part * weight end
    total = total and total + part or part
  end
  return total
end

local function check_losses(results)
  local losses = {}
  for k, result in ipairs(results) do
    if not core.is_tensor(result[1]) then
      fail("%s: the criterion has to give a tensor, replica %d gave %s", who, k, options.describe(result[1]))
    end
    losses[k] = result[1]
  end
  return losses
end

-- args: packed.
local function run(module, plan, args)
  local criterion = plan.criterion
  if criterion and args.n < 2 then
    fail("%s: with a criterion it is called with inputs and, last, the targets; got %d argument%s", who, args.n,
      args.n == 1 and "" or "s")
  end
  if not plan.devices then return call_of(module, criterion, args)() end

  local pieces, sizes = sharing.scatter(args, plan.devices, plan.dim, plan.shares, who)
  local devices = {unpack(plan.devices, 1, #pieces)}
  local detach = not core.is_grad_enabled()
  local replicas = replicate(module, devices, detach, who)
  local criteria = Module.is_module(criterion) and replicate(criterion, devices, true, who)
  local calls = {}
  for k, piece in ipairs(pieces) do
    calls[k] = call_of(replicas[k], criteria and criteria[k] or criterion, piece)
  end
  local results = apply.run(who, calls, devices)
  if criterion then return joined_loss(plan, check_losses(results), sizes) end
  if #plan.devices == 1 and plan.output_device == devices[1] then return unpack(results[1], 1, results[1].n) end
  local together = sharing.gather(results, plan.output_device, plan.dim, who)
  return unpack(together, 1, results[1].n)
end

function DataParallel:forward(...) return run(self.module, self.plan, pack(...)) end

--- nn.parallel.data_parallel(module, inputs [, opts]): one such call, without a wrapper. inputs: a tensor, or the list
--- of all arguments; opts as DataParallel's.
local function data_parallel(module, inputs, opts)
  local wrapper = DataParallel(module, opts)
  local args = core.is_tensor(inputs) and {n = 1, inputs} or options.arg("data_parallel", "inputs", inputs, "table")
  return wrapper(unpack(args, 1, args.n or #args))
end

return {DataParallel = DataParallel, data_parallel = data_parallel}
