--- lm.parallel: Provides the modules of several ranks, under apex's names.
local nn = require "luminary.nn"
local options = require "luminary.base.options"

return options.strict("parallel", {
  DistributedDataParallel = nn.parallel.DistributedDataParallel,
  SyncBatchNorm = nn.SyncBatchNorm,
  --- convert_syncbn_model(module [, process_group]): Calls nn.SyncBatchNorm.convert_sync_batchnorm.
  convert_syncbn_model = nn.SyncBatchNorm.convert_sync_batchnorm,
})
