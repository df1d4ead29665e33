--- Returns the size in bytes of DistributedDataParallel's buckets for `bytes` of gradients on GPUs.
--- n buckets take n * launch from backward, and of the transfer only the last bucket, bytes / n / bandwidth, comes
--- after it: the sum is least for buckets of sqrt(launch * bandwidth * bytes). launch * bandwidth is 130 us (fitted to
--- measurements, scripts/scaling.lua) times 80 GB/s of gradients in an all_reduce over NVLink, about 10 MB.
local MB = 2 ^ 20

return function(bytes) return math.max(25 * MB, math.sqrt(10 * MB * bytes)) end
