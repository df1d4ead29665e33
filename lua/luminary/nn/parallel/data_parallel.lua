--- nn.parallel.DataParallel(module [, {device_ids, output_device, dim}]): each batch split over the CUDA
--- devices of this process. Without any, the module simply runs where it is.
local core = require "luminary.core"
local options = require "luminary.options"
local Module = require "luminary.nn.module"
local layer = require "luminary.nn.layer"

local DataParallel = layer.define("DataParallel")
DataParallel.transparent = true -- state_dict has the bare model's keys

function DataParallel:init(module, opts)
  if not Module.is_module(module) then
    options.fail("DataParallel: a module wanted, got %s", options.describe(module))
  end
  opts = options.check("DataParallel", opts, {
    device_ids = {"table"}, output_device = {"any"}, dim = {"integer", 1},
  }, "device_ids")
  for _, device in ipairs(opts.device_ids or {}) do core.device(device) end
  self.module = module
end

function DataParallel:forward(...) return self.module(...) end

return DataParallel
