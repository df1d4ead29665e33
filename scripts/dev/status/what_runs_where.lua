-- Rows of docs/status/what_runs_where.md that no code knows. gen_status.lua writes the page.
--
-- A row is {part, CPU, CUDA [, remark]}. A state is one of `states`, or "" where the part has nothing to do there.
return {
  states = {
    {"tested", "the specs run it there"},
    {"H200", "its specs or checks of `scripts/dev/gpu_check` pass on an NVIDIA H200; other specs run it over a "
      .. "stand-in for the CUDA libraries"},
    {"stand-in", "compiled by nvcc; the specs run it over the stand-in; not yet run on a GPU"},
    {"compiled", "compiled by nvcc; not yet run, and not covered over the stand-in by all of its specs"},
    {"host", "copied to the host, computed there, copied back"},
    {"no", "not there"},
  },

  gpu = "CUDA code ran on one NVIDIA H200 in November 2026 (driver 580, CUDA 13.0, cuDNN 9.19, NCCL 2.28.9): "
    .. "`scripts/dev/gpu_check` compares the op table, optimizers, attention, recurrent layers, amp, streams, graphs "
    .. "and tensors between processes with the CPU, trains LeNet and ResNet-18, and measures. No other card has "
    .. "run it, nor have several cards. nvcc builds it without warnings for sm_80, sm_90 and PTX. Without a GPU the "
    .. "specs run the plug-in as built over a stand-in: the kernels' bodies run on an emulated grid, work is done only "
    .. "when somebody waits for it, and each call fails in turn. There NCCL is a library with its symbols "
    .. "(`spec/support/nccl/`): that shows that the group calls NCCL as its manual says, and is no evidence about NCCL "
    .. "between cards. `scripts/dev/count_step gpt2` counts over the stand-in what a training step would ask of an "
    .. "H200: launches, bytes by kernel, and the time that these take at least.",

  sections = {
    {
      "Tensors and training",
      {"tensors, views, indexing, dtypes (float32, float64, float16, bfloat16, int64, int32, int16, int8, uint16, "
        .. "uint8, bool)", "tested", "H200"},
      {"autograd, double backward, checkpoints, hooks", "tested", "H200"},
      {"elementwise ops, reductions, softmax, losses, random numbers, dropout", "tested", "H200"},
      {"matrix products", "tested", "H200", "own kernels, oneDNN for bfloat16 by AMX; cuBLASLt"},
      {"convolutions and pooling in 1, 2 and 3 dims, transposed, `interpolate`, `grid_sample`, `unfold`", "tested",
        "H200", "own kernels, oneDNN for bfloat16 and narrow groups; cuDNN"},
      {"normalization layers", "tested", "H200"},
      {"attention, transformers", "tested", "H200", "cuDNN in half precision, or a kernel of the library"},
      {"`RNN`, `LSTM`, `GRU` and their cells", "tested", "H200", "one op for a layer; cuDNN"},
      {"sorting, scans, medians, quantiles, distinct elements, scattering", "tested", "H200"},
      {"`lm.linalg`, `lm.fft`, `lm.stft`", "tested", "H200", "LAPACK; cuSOLVER, cuFFT, else through the host"},
      {"optimizers, schedules, gradient clipping, averages of weights", "tested", "H200"},
      {"mixed precision: `lm.autocast`, `lm.GradScaler`, `lm.amp`", "tested", "H200", "bfloat16 on the CPU"},
      {"boxes (`lm.vision.nms`, `roi_align`), `CTCLoss`, `EmbeddingBag`", "tested", "H200"},
      {"`lm.func`, `lm.distributions`, `lm.Generator`", "tested", "compiled"},
      {"the rock luminary-torch7: [Torch7's names](../from_torch7.md)", "tested", "compiled"},
      {"`lm.quantize`, `nn.Int8Linear`", "tested", "compiled", "on a GPU the weight is expanded at each call"},
      {"streams, events, pinned memory, caching allocator, capture of a step", "", "H200"},
      {"complex, sparse and quantized tensors", "no", "no", "[all missing names](../from_pytorch.md#what-is-missing)"},
    },
    {
      "Several devices and processes",
      {"`nn.DataParallel`, `nn.parallel.replicate`, `scatter`, `parallel_apply`, `gather`", "tested", "H200",
        "one card split in four by `LM_CUDA_VIRTUAL`; `cpu:1`, `cpu:2`, … are separate devices"},
      {"`DistributedDataParallel`, `dist.*` over gloo", "tested", "stand-in", "one host or several, IPv6"},
      {"process group `nccl`", "", "H200", "one rank; several over the stand-in alone"},
      {"process group `mpi` (Open MPI)", "tested", "host"},
      {"`SyncBatchNorm`, communication hooks, `ZeroRedundancyOptimizer`", "tested", "stand-in"},
      {"`nn.parallel.fully_shard`, `parallelize`, `Pipeline`, `context_parallel`, `dist.init_device_mesh`", "tested",
        "stand-in", "gloo; a part by MPI; NCCL over the stand-in"},
      {"start by `luminary run`, torchrun, mpirun, srun, by hand", "tested", ""},
      {"`lm.mp`: processes, pools, queues, pipes, locks, shared tensors", "tested", "H200", "CUDA IPC"},
    },
    {
      "Data and files",
      {"loaders with threads or processes, samplers, state within an epoch", "tested", "H200",
        "the next batch is copied ahead to a GPU"},
      {"data sets: CIFAR, MNIST, folders of images, tar shards, tokens, CSV, JSON lines", "tested", ""},
      {"JPEG, PNG, WebP, GIF, BMP, TIFF; transforms, with torchvision's results", "tested", "no"},
      {"safetensors, `.pt`, `.npy`, `.npz` read and written; `.t7`, shards, GGUF read; `luminary inspect`",
        "tested", ""},
      {"tokenizers, with the results of `tokenizers` 0.23", "tested", ""},
      {"`lm.models`: image networks, GPT-2, LLaMA, BERT, ViT, U-Net; `generate`, `nn.KVCache`", "tested", "H200",
        "GPT-2, ResNet-50 and LeNet; the others compiled"},
    },
  },

  systems = {
    {"x86-64 Linux, Debian 12 and 13", "tested", "AVX2 and AVX-512 where the CPU has them"},
    {"x86-64 Linux, Fedora and Arch", "setup knows the packages' names; nobody has tried it", ""},
    {"arm64 Linux", "cross-compiled, and tried under an emulator", ""},
    {"LuaJIT of Debian or OpenResty; oneDNN 2 or 3", "tested", ""},
  },
}
