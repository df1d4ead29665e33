--- nn.parallel: Runs modules on several devices or ranks.
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local sharing = require "luminary.nn.parallel.scatter_gather"
local data_parallel = require "luminary.nn.parallel.data_parallel"

-- These wrappers hide arguments that only the library passes.
--- scatter(inputs, devices [, dim = 1]): Divides inputs over devices.
local function scatter(inputs, devices, dim) return (sharing.scatter(inputs, devices, dim)) end
--- gather(outputs, device [, dim = 1]): Joins the outputs of several devices on one.
local function gather(outputs, device, dim) return sharing.gather(outputs, device, dim) end
local replicate = require "luminary.nn.parallel.replicate"
local context = require "luminary.nn.parallel.context_parallel"

local public_comm = lists.copy(require "luminary.nn.parallel.comm")
public_comm.devices, public_comm.chunk_sizes = nil, nil

return options.strict("nn.parallel", {
  DistributedDataParallel = require "luminary.nn.parallel.distributed",
  Pipeline = require "luminary.nn.parallel.pipeline",
  fully_shard = require "luminary.nn.parallel.fully_shard",
  parallelize = require "luminary.nn.parallel.tensor_parallel",
  vocabulary_cross_entropy = require("luminary.nn.parallel.vocabulary").cross_entropy,
  full_state_dict = require("luminary.nn.parallel.placement").full_state_dict,
  context_parallel = context.context_parallel,
  context_unshard = context.context_unshard,
  comm_hooks = require("luminary.nn.parallel.comm_hooks").hooks,
  DataParallel = data_parallel.DataParallel,
  data_parallel = data_parallel.data_parallel,
  replicate = function(module, devices, detach) return replicate(module, devices, detach) end,
  parallel_apply = require("luminary.nn.parallel.parallel_apply").parallel_apply,
  scatter = scatter,
  scatter_kwargs = sharing.scatter_kwargs,
  gather = gather,
  comm = public_comm,
})
