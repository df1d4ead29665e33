-- Measured speed: docs/status/speed.md is written from it by gen_status.lua. To add figures, run a section's command on
-- a quiet machine, both sides in one sitting, and copy what it prints.
--
-- A section is a list of rows below a head; {row, Luminary, the other, ratio} or what `columns` says. `when` is the
-- date; sections without one are older than the page.
local ZEN5 = "two cores of a Zen 5"
local EMERALD = "two cores of an Emerald Rapids with AVX-512, AMX hidden"
local ZEN3 = "two cores of a Zen 3 with AVX2"
local SAPPHIRE = "two cores of a Sapphire Rapids, AMX hidden"

return {
  {
    title = "Beside PyTorch, on a GPU",
    command = "scripts/dev/gpu_check 5 --peer PYTHON", machine = "one NVIDIA H200", when = "November 2026",
    against = "PyTorch 2.11 with CUDA 13.0",
    columns = {"", "Luminary", "PyTorch", "ratio"},
    {"GPT-2 of 124 million parameters, a training step of 8 × 1,024 tokens, bfloat16, captured; PyTorch's by "
      .. "torch.compile", "33.9 ms", "19.6 ms", 0.58},
    {"the same, both eager", "35.0 ms", "37.1 ms", 1.06},
    {"ResNet-50 (224×224), a training step of 256, bfloat16, both eager", "36.6 ms", "54.4 ms", 1.48},
    {"LeNet, an epoch of 234 steps of 256, captured; PyTorch's compiled", "127 ms", "252 ms", 1.99},
    {"ResNet-18 (28×28), a training step of 256, TF32, captured; PyTorch's compiled", "6.7 ms", "6.0 ms", 0.89},
    {"the same, both eager", "7.2 ms", "11.2 ms", 1.56},
    {"forward and backward of add, mul, sum on 4 floats", "39 µs", "136 µs", 3.44},
    {"a launch of add", "6.1 µs", "7.2 µs", 1.17},
    {"products of 8,192: bfloat16, TF32, float32", "1.40, 2.76, 21.6 ms", "1.45, 2.85, 21.5 ms", "1.04, 1.04, 1.00"},
    {"attention over 2,048 tokens, causal: bfloat16, TF32", "0.83, 5.93 ms", "0.84, 7.74 ms", "1.01, 1.31"},
    {"LSTM and GRU in bfloat16, LSTM in float32", "9.7, 8.1, 11.0 ms", "13.0, 11.5, 12.2 ms", "1.34, 1.42, 1.11"},
    {"AdamW over 124 million parameters; PyTorch's fused", "0.91 ms", "1.07 ms", 1.18},
    {"softmax, layer norm, batch norm", "0.63, 0.30, 0.25 ms", "0.85, 0.42, 0.32 ms", "1.35, 1.36, 1.32"},
    {"log_softmax of 50,257 classes", "4.50 ms", "4.39 ms", 0.98},
    {"1 GiB: copy, add, exp, sum, sum over rows", "0.53, 0.82, 0.60, 0.28, 0.28 ms",
      "0.53, 0.76, 0.53, 0.27, 0.27 ms", "1.00, 0.93, 0.88, 0.97, 0.98"},
    remark = "By `scripts/dev/gpu_check 4` GPT-2 reaches 0.29 of the rate of a large product there, its tokens come at "
      .. "530 a second in bfloat16 one by one (7,980 for 16 sequences), and elementwise ops at 0.7 to 0.95 of a copy's "
      .. "bandwidth where operands lie alike in memory, 0.42 with a broadcast row. "
      .. "PyTorch warns there that its recurrent weights are not in one piece.",
  },
  {
    title = "Beside PyTorch, with AVX-512",
    command = "scripts/bench/compute --peer PYTHON", machine = ZEN5, against = "PyTorch 2.15",
    columns = {"", "Luminary", "PyTorch", "ratio"},
    {"`require \"luminary\"`, `import torch`", "21.8 ms", "2,275 ms", 104},
    {"`a + b` on 4 floats", "0.23 µs", "0.87 µs", 3.8},
    {"forward and backward of add, mul, sum", "2.9 µs", "18.3 µs", 6.4},
    {"an epoch of Fashion-MNIST through the loader, shuffled, as float", "43 ms", "46 ms", 1.07},
    {"SGD with momentum over 11.2 M parameters (PyTorch's fused)", "3.6 ms", "3.8 ms", 1.07},
    {"Adam over 11.2 M parameters (PyTorch's fused)", "4.6 ms", "5.2 ms", 1.12},
    {"MLP 784-256-10, a training step of 256", "0.81 ms", "1.47 ms", 1.8},
    {"LeNet, a training step of 256", "16.1 ms", "21.1 ms", 1.3},
    {"ResNet-18 (28×28), a training step of 64", "232 ms", "456 ms", "2.0"},
    {"ResNet-18 (28×28), a training step of 256", "905 ms", "2,000 ms", 2.2},
  },
  {
    title = "Beside PyTorch, with AVX2",
    command = "LM_CPU_LEVEL=1 scripts/bench/compute --peer PYTHON --rounds 3 resnet64 resnet50 vgg11",
    machine = ZEN5 .. ", both sides held to AVX2", against = "PyTorch 2.15", when = "November 2026",
    columns = {"", "ratio"},
    {"ResNet-18 (28×28), a training step of 64", 1.96},
    {"ResNet-50 (224×224), a training step of 8", 1.26},
    {"VGG-11 (224×224), a training step of 16", 3.02},
  },
  {
    title = "Beside PyTorch, on a server's CPU",
    command = "scripts/bench/compute --peer PYTHON --rounds 5 add4 small_step mlp1 mlp256 lenet256 resnet64 mobilenet "
      .. "lstm256 transformer256",
    machine = SAPPHIRE, against = "PyTorch 2.15", when = "November 2026",
    columns = {"", "ratio with AVX-512", "with AVX2 (`LM_CPU_LEVEL=1`)"},
    {"`a + b` on 4 floats", 1.9, 2.4},
    {"forward and backward of add, mul, sum", 6.5, 6.2},
    {"MLP 784-256-10, a training step of 1; of 256", "3.5; 1.33", "3.0; 1.19"},
    {"LeNet, a training step of 256", 1.24, 1.18},
    {"ResNet-18 (28×28), a training step of 64", 1.84, "2.0"},
    {"MobileNetV2 (224×224), a training step of 8", 1.49, 1.39},
    {"LSTM, 256 wide, 64 steps, 32 sequences", 1.26, 1.24},
    {"a transformer of six layers, 256 wide, 16 × 128 tokens", 1.14, "1.0"},
  },
  {
    title = "Beside PyTorch, on a Zen 4",
    command = "scripts/bench/compute --peer PYTHON --rounds 3 add4 small_step mlp1 mlp256 lenet256 resnet64 mobilenet "
      .. "lstm256 gru256 transformer256 resnet50 vgg11",
    machine = "two cores of a Zen 4", against = "PyTorch 2.15", when = "November 2026",
    columns = {"", "ratio with AVX-512", "with AVX2 (`LM_CPU_LEVEL=1`)"},
    {"`a + b` on 4 floats", 2.3, 2.9},
    {"forward and backward of add, mul, sum", 6.7, 7.1},
    {"MLP 784-256-10, a training step of 1; of 256", "3.9; 1.30", "3.2; 1.46"},
    {"LeNet, a training step of 256", 1.76, "1.50"},
    {"ResNet-18 (28×28), a training step of 64", 1.85, "2.10"},
    {"ResNet-50 (224×224), a training step of 8", 1.28, 1.34},
    {"VGG-11 (224×224), a training step of 16", 2.61, 2.89},
    {"MobileNetV2 (224×224), a training step of 8", 1.33, 1.19},
    {"LSTM; GRU: 256 wide, 64 steps, 32 sequences", "1.27; 1.90", "1.21; 2.03"},
    {"a transformer of six layers, 256 wide, 16 × 128 tokens", "1.20", 1.09},
  },
  {
    title = "ResNet-50",
    command = "scripts/bench/compute --peer PYTHON --rounds 5 resnet50", machine = EMERALD,
    against = "PyTorch 2.15, without tcmalloc",
    columns = {"", "ratio"},
    {"a training step of 8 images of 224×224, two threads, three runs", "1.25, 1.29, 1.20"},
    {"the same on one thread", 1.39},
  },
  {
    title = "bfloat16 and optimizers",
    command = "scripts/bench/compute --peer PYTHON", machine = EMERALD, against = "PyTorch 2.15",
    columns = {"", "ratio"},
    {"ResNet-18, a training step of 64 under autocast to bfloat16", 2.4},
    {"LeNet, a training step of 256 under autocast to bfloat16", 1.6},
    {"steps over 11.2 M parameters: SGD, Adam, AdamW, Adagrad", "1.04, 1.10, 1.1, 1.04"},
    {"ASGD, Adamax, RMSprop, NAdam", "1.8, 2.3, 3.1, 3.6"},
    {"RAdam, Adadelta, Rprop", "3.8, 4.2, 11"},
    remark = "A product of bfloat16 matrices takes as long there as one of float32, since that CPU's instruction is no "
      .. "faster; PyTorch's takes 1.8 times as long.",
  },
  {
    title = "Language models",
    command = "scripts/bench/language --peer PYTHON --llama FILE", machine = ZEN3,
    against = "Hugging Face's GPT-2 with PyTorch's attention; llama.cpp",
    columns = {"GPT-2 of 124 million parameters, two threads", "tokens a second", "ratio"},
    {"a training step of 4 × 256 tokens with AdamW, beside Hugging Face's", "", 1.3},
    {"the same on " .. EMERALD, "", 1.14},
    {"tokens one by one with the cache, after a prompt of 32, float32, beside Hugging Face's", "40", 1.7},
    {"tokens one by one in float32, beside llama.cpp, several runs", "40", "0.79 to 0.97"},
    {"in bfloat16, beside llama.cpp", "70", "0.89 to 0.91"},
    {"with int8 weights, beside llama.cpp's Q8_0", "118", "0.88 to 1.02"},
    {"1.1 billion parameters in TinyLlama's shape (`--model tinyllama`), the same three", "", "0.90, 0.89, 0.91"},
    remark = "Waiting threads sleep here after at most 200 µs, which leaves the cores to others; llama.cpp's do not.",
  },
  {
    title = "Layers over sequences",
    command = "scripts/bench/compute --peer PYTHON rnn256 gru256 lstm256 transformer256 transformer256_dropout "
      .. "attention4096 attention4096_causal attention4096_dropout",
    machine = ZEN3, against = "PyTorch 2.15", columns = {"a training step", "ratio"},
    {"LSTM, GRU, RNN, 256 wide, 64 steps, 32 sequences", "1.14, 1.8, 1.65"},
    {"a transformer of six layers, 256 wide, 16 × 128 tokens; with dropout", "1.0; 1.3"},
    {"attention over 4,096 tokens; causal; with dropout", "1.14; 1.18; 5.9"},
  },
  {
    title = "Less memory",
    command = "scripts/bench/recompute.lua", machine = "a CPU", against = "the same step without checkpoints",
    columns = {"a step of a 12-layer transformer with checkpoints", "ratio"},
    {"memory", 0.13},
    {"time", 1.35},
  },
  {
    title = "ONNX models, beside onnxruntime",
    command = "scripts/bench/onnx --peer PYTHON; scripts/bench/onnx --peer PYTHON --batch 8 --threads 2",
    machine = ZEN5 .. " and AVX-512", against = "onnxruntime 1.32", when = "2026-11-27",
    columns = {"milliseconds of a call: ratio", "batch 1, 1 thread", "2 threads", "batch 8, 1 thread", "2 threads"},
    {"ResNet-50", "30.4: 1.14", "21.5: 0.93", "227: 1.21", "119: 1.19"},
    {"MobileNetV2", "4.3: 0.96", "4.2: 0.81", "35.1: 1.01", "19.3: 0.96"},
    {"MobileNetV3", "4.0: 0.92", "4.2: 0.93", "27.8: 1.00", "15.7: 0.95"},
    {"EfficientNet-B0", "6.5: 0.96", "6.0: 0.93", "52.9: 1.05", "27.9: 0.97"},
    {"ViT-B/16", "147: 1.12", "84.0: 1.11", "1,210: 1.11", "613: 1.14"},
    {"ConvNeXt-T", "39.5: 1.19", "22.0: 1.20", "328: 1.28", "172: 1.47"},
    {"detector with NMS", "38.6: 1.82", "38.0: 1.76", "", ""},
    {"U-Net", "9.9: 1.92", "9.2: 1.12", "72.1: 2.08", "42.7: 1.94"},
    {"BERT", "45.0: 1.43", "27.1: 1.31", "356: 1.15", "184: 1.18"},
    {"DistilBERT", "22.7: 1.43", "13.8: 1.31", "179: 1.17", "92.0: 1.17"},
    {"T5", "10.7: 1.30", "7.5: 1.05", "81.5: 1.03", "43.3: 1.02"},
    {"GPT-2", "45.6: 1.33", "26.2: 1.27", "365: 1.10", "183: 1.13"},
    {"Whisper's encoder", "171: 1.14", "88.2: 1.15", "1,403: 1.30", "726: 1.33"},
    {"geometric mean", "1.25", "1.12", "1.18", "1.18"},
    remark = "Random weights in float32, exported by PyTorch 2.15 and read by both. Models of 8-bit integers "
      .. "(`--int8`), batch 1, 1 thread: ResNet-18 with QDQ nodes 11.0 ms, 1.90; BERT quantized dynamically 18.9 ms, "
      .. "1.22. With AVX2 alone (`LM_CPU_LEVEL=1`, on a Xeon of 2023), batch 1: geometric mean 1.21 on 1 thread, "
      .. "from 0.80 (MobileNetV3) to 2.51, and 1.11 on 2 threads, from 0.79 (MobileNetV3) to 2.55; batch 8: 1.11, "
      .. "from 0.80 (MobileNetV3) to 2.34, and 1.13, from 0.92 (MobileNetV3) to 2.24.",
  },
  {
    title = "Two ranks on one host",
    command = "scripts/bench/collectives; scripts/bench/collectives --buckets; scripts/bench/ddp --peer PYTHON",
    machine = ZEN5 .. ", one compute thread for each rank", against = "`LM_SHM=0`, which is sockets",
    columns = {"", "shared memory", "sockets"},
    {"all_reduce of 1,000 floats", "12 µs", "57 µs"},
    {"all_reduce of 45 MB", "3.3 ms", "8.0 ms"},
    {"averaging 45 MB of gradients, beyond backward", "2.4 ms", ""},
    {"ResNet-18, batch 32 a rank: share of twice one rank's throughput", "88 %", "81 %"},
    {"PyTorch's DistributedDataParallel over gloo beside it", "", "80 %"},
    remark = "Averaging costs 1 to 2 of the 12 %. The rest is memory and caches that two such processes share, which "
      .. "differs from minute to minute (86 to 97 % without averaging).",
  },
  {
    title = "Images and loaders",
    command = "scripts/bench/transforms 1; scripts/bench/compute --peer PYTHON normal_epoch; "
      .. "scripts/bench/compute --peer PYTHON --images DIR photo_epoch",
    machine = "a busy machine with AVX-512, one thread", against = "torchvision's transforms.v2 and PyTorch's loader",
    columns = {"", "ratio"},
    {"an image of 375×500 resized to 256; a batch of float32", "2.7; 6.8"},
    {"rotated: an image; a batch", "3.3; 1.5"},
    {"blurred: an image; a batch", "19; 18"},
    {"colors jittered: an image; a batch", "88; 19"},
    {"flips and inversion of one image", "1"},
    {"Fashion-MNIST with `ToTensor` and `Normalize` in batches of 256, each loader at its best of 0 to 2 workers", 30},
    {"1,000 drawn JPEGs of 500×375 through RandomResizedCrop, flip and Normalize", 2.2},
  },
  {
    title = "Tokenizers",
    command = "scripts/dev/golden/gen_tokenizers.py --speed", machine = "one core", against = "`tokenizers` 0.23",
    columns = {"", "ratio"},
    {"encoding", "2.7 to 4.6"},
  },
  {
    title = "Beside other processes",
    command = "scripts/dev/busy_neighbor", machine = ZEN5, against = "the same step alone",
    columns = {"", "times as long"},
    {"a step on two threads beside one process that computes", "2 to 2.3"},
    remark = "Threads that wait spin for 5 to 200 µs, longer where that was worth it before, and then sleep. Where "
      .. "more processes want the cores than there are, one thread for each process is best.",
  },
}
