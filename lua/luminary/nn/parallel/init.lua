--- nn.parallel: models on several devices or ranks.
return {
  DistributedDataParallel = require "luminary.nn.parallel.distributed",
  DataParallel = require "luminary.nn.parallel.data_parallel",
}
