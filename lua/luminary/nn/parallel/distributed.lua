--- nn.parallel.DistributedDataParallel(module [, opts]): the same model on every rank, gradients averaged
--- while backward runs. With one process there is nothing to average and the module simply runs.
local options = require "luminary.options"
local dist = require "luminary.dist"
local Module = require "luminary.nn.module"
local layer = require "luminary.nn.layer"

local DDP = layer.define("DistributedDataParallel")
DDP.transparent = true -- state_dict has the bare model's keys

function DDP:init(module, opts)
  if not Module.is_module(module) then
    options.fail("DistributedDataParallel: a module wanted, got %s", options.describe(module))
  end
  if not dist.is_initialized() then
    options.fail("DistributedDataParallel: no process group; call dist.init_process_group() first")
  end
  opts = options.check("DistributedDataParallel", opts, {
    device_ids = {"table"}, output_device = {"any"}, broadcast_buffers = {"boolean", true},
    find_unused_parameters = {"boolean", false}, bucket_cap_mb = {"number", 25},
    gradient_as_bucket_view = {"boolean", true}, static_graph = {"boolean", false},
  }, "device_ids")
  if opts.device_ids and #opts.device_ids > 1 then
    options.fail("DistributedDataParallel: one device a process, got %d device_ids", #opts.device_ids)
  end
  local trains = false
  for _, p in ipairs(module:parameters()) do trains = trains or p.requires_grad end
  if not trains then
    options.fail("DistributedDataParallel: no parameter of the module requires a gradient")
  end
  self.module = module
end

function DDP:forward(...) return self.module(...) end

--- net:no_sync(f, ...): backward inside f leaves gradients local, for accumulating them over batches.
function DDP:no_sync(f, ...) -- luacheck: ignore self
  return options.arg("no_sync", "the first argument", f, "function")(...)
end

--- net:join(f, ...): inside f, ranks may run out of batches at different times.
function DDP:join(f, ...) -- luacheck: ignore self
  return options.arg("join", "the first argument", f, "function")(...)
end

return DDP
