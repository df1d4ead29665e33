--- Maps PyTorch's names that are different here or absent, for errors about unknown names. The value of a name is our
--- name, a sentence (with a blank), or false: not in this version. pairs_of reads "theirs=ours …", and "theirs …" for
--- absent names.
local function pairs_of(text, lacking)
  local names = {}
  for theirs, ours in text:gmatch "(%S+)=(%S+)" do names[theirs] = ours end
  for theirs in lacking:gmatch "%S+" do names[theirs] = false end
  return names
end

local function with(names, words)
  for name, text in pairs(words) do names[name] = text end
  return names
end

-- Adds to `names` the same sentence for several names: rows are {sentence, "name …"}.
local function add_sentences(names, rows)
  for _, row in ipairs(rows) do
    for name in row[2]:gmatch "%S+" do names[name] = row[1] end
  end
  return names
end

-- Names for which another op or an op of another library here is the replacement.
local of_ops = {
  ger = "lm.outer(x, y) is the outer product of two vectors",
  ormqr = "Q of local Q = lm.linalg.qr(x) is a tensor: Q:matmul(other) multiplies by it",
  pca_lowrank = "lm.linalg.svd(x - x:mean(1, true), false) returns all components, the largest first",
  svd_lowrank = "lm.linalg.svd(x, false) returns all singular values, the largest first",
  gradient = "lm.diff(x) subtracts neighbors; derivatives of functions are by lm.grad",
  segment_reduce = "lm.scatter_reduce(zeros, dim, index, x, \"sum\") takes the segment of each element as index",
  histogramdd = "lm.histogram is of one dim; for two, lm.bincount((i - 1) * n + j) counts pairs of bins i and j",
  nextafter = "lm.finfo(x.dtype).eps is the distance from 1 to the next number",
  vmap = "lm.func.vmap(f) is that",
}
local of_a_loop = "a loop of a few lines is in charge: `luminary help early stopping` shows one that stops"
local of_lazy = "parameters of lazy layers, such as nn.LazyLinear, are nil until the first input"
local no_sparse = "there are no sparse tensors here; lm.zeros(n, m):index_put({i, j}, v, true) makes a dense one"
local fusing = "nothing is compiled, but lm.fuse(f) computes elementwise ops in a row together, f a function or module"
local bars = "lm.watch.progress.new(total) makes a bar, and bar:over(loader:epoch(1)) iterates with it"
local profiling = "lm.profile(f) records the ops of a call, and lm.profile {schedule = {…}} those of steps"
local compilers = {jit = fusing, _dynamo = fusing}

local two = "such ops return two results: local values, indices = x:max(2)"

-- Hints for names of functions of complex numbers.
local lack = "there are no complex numbers here, but pairs of real and imaginary parts in a last dim of 2"
local eigenvalues = "eigenvalues of matrices that are not symmetric may be complex, and there are no complex numbers "
  .. "here; "
local complex = {
  view_as_complex = lack .. ", which lm.fft and lm.istft take as they are; lm.fft.multiply multiplies them",
  view_as_real = lack .. ": the results of lm.fft and lm.stft are in that form", conj = lack .. ": lm.fft.conjugate(x)",
  real = lack .. ": x:select(-1, 1)", imag = lack .. ": x:select(-1, 2)",
  angle = lack .. ": lm.atan2(x:select(-1, 2), x:select(-1, 1))",
  polar = lack .. ": lm.stack({r * angle:cos(), r * angle:sin()}, -1)",
  complex = lack .. ": lm.stack({real, imag}, -1)",
  eig = eigenvalues .. "lm.linalg.eigh is for symmetric ones",
  eigvals = eigenvalues .. "lm.linalg.eigvalsh is for symmetric ones",
}

local other = {}

-- Hints for PyTorch's dtypes that tensors lack.
local no_dtype = add_sentences({}, {
  {lack, "complex32 complex64 complex128 cfloat cdouble chalf"},
  {"dtypes are strings, and int64 is the one that holds such numbers: {dtype = \"int64\"}", "uint32 uint64"},
})

-- Names of transformers, diffusers and tokenizers, for queries of lm, lm.models or lm.text.
local local_files = "nothing is downloaded: {weights = path} takes a folder or file that is there"
local int8 = "lm.quantize(net) makes int8 of a net's linear layers, once it has its weights"
local reads = "{weights = \"folder\"} reads a folder of Hugging Face's, as `hf download NAME --local-dir FOLDER` "
  .. "leaves it; nothing is downloaded"
local as_options = "lm.models.gpt2 {n_layer = 12} and the like take what a config.json says as options"
local lacking_families = "of Hugging Face's families this version has gpt2, llama, mistral, qwen2, qwen3, gemma, phi3, "
  .. "bert, roberta, distilbert, vit, deit, dinov2 and unet2d, in lm.models"
local no_training = "tokenizers are not trained here; Python's tokenizers train one, whose tokenizer.json "
  .. "lm.text.Tokenizer(path) reads"
local preparing = "lm.vision.transforms prepare images: Compose {Resize(256), CenterCrop(224), ToTensor(), …}"
local streaming = "tokenizer:streamer(write) is for generate's streamer, and {on_text = f, tokenizer = tokenizer} "
  .. "calls f with each new piece of text"
local stopping = "{streamer = f} ends generate when f returns false; stop_strings and eos_token_id end a row"
local options_of_generate = "options of generate say it, or net.generation_config, a folder's generation_config.json"
local warming_up = "lm.optim.lr_scheduler.get_scheduler warms up and falls, or LambdaLR takes any function"
local of_warm_up = "get_linear_schedule_with_warmup get_cosine_schedule_with_warmup get_constant_schedule_with_warmup "
  .. "get_constant_schedule get_polynomial_decay_schedule_with_warmup get_wsd_schedule"
local hugging_face = add_sentences({}, {
  {"lm.models.gpt2 " .. reads, "GPT2LMHeadModel GPT2Model GPT2"},
  {"lm.models.llama " .. reads, "LlamaForCausalLM LlamaModel Llama"},
  {"lm.models.bert " .. reads, [[
    BertModel BertForMaskedLM BertForSequenceClassification BertForTokenClassification BertForPreTraining]]},
  {"lm.models.vit " .. reads, "ViTModel ViTForImageClassification VisionTransformer"},
  {"lm.models' mistral, qwen2, qwen3, gemma, phi3, roberta, distilbert, deit and dinov2 " .. reads, [[
    MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM GemmaForCausalLM Phi3ForCausalLM RobertaModel
    DistilBertModel DeiTModel Dinov2Model]]},
  {"lm.models.unet2d " .. reads, "UNet2DModel"},
  {"lm.models' gpt2, llama, bert, vit or unet2d " .. reads, [[
    from_pretrained AutoModel AutoModelForCausalLM AutoModelForSequenceClassification AutoModelForMaskedLM
    AutoModelForTokenClassification AutoModelForImageClassification AutoConfig PreTrainedModel PretrainedConfig
    pipeline DiffusionPipeline transformers diffusers]]},
  {as_options, "GPT2Config LlamaConfig BertConfig ViTConfig"},
  {lacking_families, [[
    t5 T5ForConditionalGeneration T5Model bart opt gpt_neo gpt_neox mixtral gemma2 gemma3 phi falcon bloom albert
    electra deberta CLIPModel whisper WhisperForConditionalGeneration
    AutoModelForSeq2SeqLM UNet2DConditionModel AutoencoderKL StableDiffusionPipeline]]},
  {"lm.text.Tokenizer(\"folder\") reads Hugging Face's; nothing is downloaded", [[
    AutoTokenizer AutoProcessor PreTrainedTokenizerFast PreTrainedTokenizer LlamaTokenizer LlamaTokenizerFast
    T5Tokenizer SentencePieceUnigramTokenizer]]},
  {no_training, [[
    BpeTrainer WordPieceTrainer UnigramTrainer WordLevelTrainer CharBPETokenizer train_tokenizer]]},
  {streaming, "TextStreamer TextIteratorStreamer AsyncTextIteratorStreamer BaseStreamer"},
  {stopping, "StoppingCriteria StoppingCriteriaList MaxTimeCriteria"},
  {options_of_generate, [[
    GenerationConfig LogitsProcessor LogitsProcessorList TemperatureLogitsWarper TopKLogitsWarper TopPLogitsWarper]]},
  {int8, "quantize_dynamic BitsAndBytesConfig QuantoConfig GPTQConfig quantization ao"},
  {preparing, "AutoImageProcessor AutoFeatureExtractor ViTImageProcessor ViTFeatureExtractor CLIPProcessor"},
  {"of noise schedulers lm.models has DDPMScheduler and DDIMScheduler", [[
    EulerDiscreteScheduler EulerAncestralDiscreteScheduler DPMSolverMultistepScheduler PNDMScheduler
    LMSDiscreteScheduler HeunDiscreteScheduler UniPCMultistepScheduler LCMScheduler FlowMatchEulerDiscreteScheduler
    DDPMPipeline DDIMPipeline]]},
  {"a loop of a few lines trains: opt:zero_grad(), loss:backward(), opt:step()",
    "Trainer TrainingArguments Accelerator"},
  {"tokenizer(texts, {padding = true}) in a loader's collate_fn pads",
    "DataCollatorWithPadding DataCollatorForLanguageModeling"},
  {"lm.optim.lr_scheduler.get_scheduler", "get_scheduler"}, {warming_up, of_warm_up},
})

other.tensors = with(pairs_of([[numpy=totable resize=resize_ resize_as=resize_as_]],
  [[
  inv floor_mod lstsq narrow_copy is_sparse_csr solve to_sparse to_dense sparse_mask is_sparse is_complex is_quantized
  is_meta is_mps retains_grad]]), {
  values = two, indices = two, device_type = "x.device says it",
  is_cpu = "x.device says it",
  len = "#x is the size of its first dim", storage = "x.data is the tensor outside the graph",
  repeat_ = "it is x:repeat_tensor(2, 3); Lua reserves the word repeat",
  index = "x[{i, j}] indexes", combinations = "lm.combinations(x) is a function of lm",
})

other.luminary = with(pairs_of([[
  random=rand from_numpy=tensor repeat=repeat_tensor distributed=dist
  multiprocessing=mp F=nn.functional set_default_tensor_type=set_default_dtype
  gammainc=igamma gammaincc=igammac gammaln=lgamma multigammaln=mvlgamma psi=digamma expit=sigmoid]],
  [[
  export fx gru instance_norm layer_norm_ lstm matrix_rank mps rrelu set_num_interop_threads solve swapaxes_
  xpu airy_ai entr erfcx log_ndtr ndtr ndtri xlog1py zeta i0 i0e i1 i1e
  bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
  modified_bessel_k1 chebyshev_polynomial_t chebyshev_polynomial_u hermite_polynomial_h laguerre_polynomial_l
  legendre_polynomial_p]]), {
  len = "#x is the size of a tensor's first dim",
  copy = "y = x:clone() makes a copy, y:copy_(x) writes into y",
  deepcopy = "net:clone() copies a module, x:clone() a tensor",
  utils = "nn.utils is for gradients, lm.data for sets and loaders, lm.autograd.checkpoint for checkpoints",
  Size = "sizes are plain lists: x.shape", device = "devices are strings: {device = \"cuda:0\"}",
  inf = "math.huge is it", nan = "0 / 0 is one", pi = "math.pi is it", e = "math.exp(1) is it",
  memory_format = "{memory_format = \"channels_last\"} is an option",
  channels_last = "{memory_format = \"channels_last\"} is an option",
  contiguous_format = "{memory_format = \"contiguous\"} is an option",
  special = "those of its functions that this version has are in lm itself: lm.erfinv(x), lm.xlogy(x, y), lm.lgamma(x)",
  repeat_ = "it is lm.repeat_tensor(x, 2, 3); Lua reserves the word repeat",
  Stream = "lm.cuda.Stream makes one", Event = "lm.cuda.Event makes one", cpu = "\"cpu\" is a string",
  Tensor = "lm.empty(2, 3) makes one of that size, lm.tensor {1, 2} one of values; lm.is_tensor(x) asks",
  quantize_per_tensor = int8, quantize_per_channel = int8, from_dlpack = "x:data_ptr() is the address, for the FFI",
  nested = "nn.utils.rnn.pad_sequence(list) pads tensors of several lengths", callbacks = of_a_loop,
  hungarian = "lm.linear_sum_assignment(cost) matches rows to columns",
  accelerator = "lm.cuda is what there is", torch = "lm is the library itself",
  profiler = profiling, tqdm = bars,
  torchvision = "lm.vision is that; lm.data has the sets, lm.models the networks",
  hub = "nothing is downloaded: lm.models.resnet50 {weights = path} takes a file that is there",
})
for theirs, ours in ([[float32=float32 float64=float64 int64=int64 long=int64 float=float32 double=float64 half=float16
  float16=float16 bfloat16=bfloat16 int=int32 int32=int32 int8=int8 int16=int16 short=int16 uint16=uint16 uint8=uint8
  bool=bool dtype=float32]]):gmatch "(%w+)=(%w+)" do
  other.luminary[theirs] = ("dtypes are strings: {dtype = %q}"):format(ours)
end

other.nn = with(pairs_of([[
  DistributedDataParallel=parallel.DistributedDataParallel clip_grad_norm_=utils.clip_grad_norm_
  clip_grad_value_=utils.clip_grad_value_ NLLLoss2d=NLLLoss Container=Sequential]],
  "RNNBase RNNCellBase quantized qat"), {
  UninitializedParameter = of_lazy, UninitializedBuffer = of_lazy,
  LinearCrossEntropyOptions = "nn.LinearCrossEntropyLoss takes {chunk_size = n}",
  Buffer = "net:register_buffer(name, tensor) makes one", modules = "the layers are in nn itself",
  parameter = "nn.Parameter makes one",
  Lambda = "any Module's forward is a function: nn.Module:extend(\"Name\")",
})

other["nn.functional"] = with(pairs_of([[linear_sum_assignment=lm.linear_sum_assignment
  erf=lm.erf sigmoid_=lm.sigmoid_ tanh_=lm.tanh_ gelu_tanh=lm.gelu_tanh log_sigmoid=logsigmoid]], ""),
  {multi_head_attention_forward = "nn.MultiheadAttention has the weights and calls F.scaled_dot_product_attention"})
for pool in ([[max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
  fractional_max_pool2d fractional_max_pool3d]]):gmatch "%S+" do
  other["nn.functional"][pool .. "_with_indices"] = pool .. " has {return_indices = true}"
end

other["nn.init"] = pairs_of("", [[orthogonal]])

other["nn.utils"] = pairs_of([[
  clip_grad_norm=clip_grad_norm_ clip_grad=clip_grad_norm_ checkpoint=lm.autograd.checkpoint
  checkpoint_sequential=lm.autograd.checkpoint_sequential fusion=fuse_conv_bn_eval]], "")
other["nn.utils"].prune = "nn.utils.parametrize.register_parametrization(m, \"weight\", mask) applies a mask's module"
other.func = add_sentences({}, {
  {"lm.func.jvp(f, primals, tangents) computes f and its derivative along the tangents", "linearize hvp"},
  {"nothing is traced here; functions take tensors as they are", "functionalize debug_unwrap"},
  {"nn.BatchNorm2d(n, {track_running_stats = false}) has none to update", "replace_all_batch_norm_modules_"},
})

other.optim = with(pairs_of([[
  adamw=AdamW
  StepLR=lr_scheduler.StepLR MultiStepLR=lr_scheduler.MultiStepLR ConstantLR=lr_scheduler.ConstantLR
  LinearLR=lr_scheduler.LinearLR ExponentialLR=lr_scheduler.ExponentialLR PolynomialLR=lr_scheduler.PolynomialLR
  CosineAnnealingLR=lr_scheduler.CosineAnnealingLR OneCycleLR=lr_scheduler.OneCycleLR CyclicLR=lr_scheduler.CyclicLR
  CosineAnnealingWarmRestarts=lr_scheduler.CosineAnnealingWarmRestarts LambdaLR=lr_scheduler.LambdaLR
  MultiplicativeLR=lr_scheduler.MultiplicativeLR ReduceLROnPlateau=lr_scheduler.ReduceLROnPlateau
  SequentialLR=lr_scheduler.SequentialLR ChainedScheduler=lr_scheduler.ChainedScheduler EMA=AveragedModel
  ExponentialMovingAverage=AveragedModel]], ""), {
  SparseAdam = "gradients of Embedding are dense here: optim.Adam",
})

other.text = pairs_of([[
  AutoTokenizer=Tokenizer PreTrainedTokenizerFast=Tokenizer PreTrainedTokenizer=Tokenizer
  LlamaTokenizer=Tokenizer T5Tokenizer=Tokenizer
  SentencePieceUnigramTokenizer=Tokenizer GPT2Tokenizer=ByteLevelBPETokenizer BertTokenizer=BertWordPieceTokenizer
  GPT2TokenizerFast=ByteLevelBPETokenizer BertTokenizerFast=BertWordPieceTokenizer]], "")

other["optim.lr_scheduler"] = pairs_of("SWALR=lm.optim.SWALR _LRScheduler=LRScheduler", "")
other["optim.swa_utils"] = {}
for _, library in ipairs {"optim", "optim.lr_scheduler", "optim.swa_utils", "luminary"} do
  add_sentences(other[library], {
    {warming_up, of_warm_up}, {of_a_loop, "EarlyStopping early_stopping"},
    {"optim.AveragedModel(net, {decay = 0.999}) has it", "get_ema_multi_avg_fn get_ema_avg_fn"},
    {"optim.AveragedModel(net) takes the plain average", "get_swa_multi_avg_fn get_swa_avg_fn"},
    {no_sparse, "sparse sparse_coo_tensor sparse_csr_tensor"},
  })
end

other.data = with(pairs_of([[
  TensorDataSet=TensorDataset Dataloader=DataLoader StatefulDataLoader=DataLoader dataset=Dataset
  dataloader=DataLoader sampler=Sampler
  distributed=DistributedSampler TarDataset=WebDataset TarArchiveLoader=WebDataset CsvDataset=CSVDataset
  JSONDataset=JSONLinesDataset JSONLDataset=JSONLinesDataset]],
  [[
  ChainDataset StackDataset default_convert IterDataPipe MapDataPipe
  ]]), {transforms = "lm.vision.transforms is that"})

other.watch = {tqdm = bars, trange = bars, EarlyStopping = of_a_loop}

-- Options of PyTorch's functions with the same name.
local weights = "nothing is downloaded; {weights = path} takes torchvision's .pth, as load_state_dict does"
other.options = {
  map_location = "it is device", weights_only = "it is always so: nothing in a file is run",
  mmap_mode = "it is mmap = true", allow_pickle = "nothing in a file is run",
  sparse = "gradients are dense here; leave it out",
  out = "results are new tensors: y:copy_(result) copies one into y",
  size_average = 'reduction = "mean" or "sum" says it', reduce = 'reduction = "none" says it',
  pretrained = weights, download = "nothing is downloaded: the files must exist",
  hop_size = "here it is hop_length", options = "batch_chunk_size is chunk_size here",
  return_tensors = "results are tensors", text_pair = "the second text is the second argument",
  return_attention_mask = "attention_mask is always there", return_token_type_ids = "token_type_ids is always there",
  return_offsets_mapping = "tokenizer:encode(text).offsets is that",
  return_special_tokens_mask = "tokenizer:encode(text).special_tokens_mask is that",
  return_overflowing_tokens = "what truncation leaves out is not given in this version",
  is_split_into_words = "texts are strings: table.concat(words, \" \")",
  clean_up_tokenization_spaces = "the file's decoder says it", return_length = "input_ids.shape[2] is that",
  row_limit = "here it is limit", record_shapes = "here it is shapes = true",
  with_modules = "here it is modules = true", with_stack = "here it is lines = true, the default",
  profile_memory = "memory is always recorded", with_flops = "FLOPs are always counted",
  activities = "the CPU is always recorded, and each GPU that computes",
  group_by_input_shape = "here it is group_by = \"shapes\"", group_by_stack_n = "here it is group_by = \"line\"",
  multiprocessing_context = "worker_type = \"process\" or \"thread\"", maxsize = "it is the capacity",
}

-- Options of transformers' from_pretrained, generate and models.
local without_tokens = "bad_words_ids names tokens that never come: {{3}, {4, 5}}"
local no_processors = "functions of scores are not options; generate takes any function net, where net(ids) returns "
  .. "scores"
add_sentences(with(other.options, {
  torch_dtype = "it is dtype: {dtype = \"bfloat16\"}, or \"auto\" for that of the weights",
  load_in_4bit = "there are no 4 bits; " .. int8,
  device_map = "it is device, one for the whole net: {device = \"cuda:0\"}",
  low_cpu_mem_usage = "it is always so: files are mapped, and nothing is drawn that they have",
  trust_remote_code = "nothing in a file is run",
  attn_implementation = "lm.nn.functional.scaled_dot_product_attention is what there is",
  max_length = "here it is max_new_tokens, which counts new tokens alone",
  min_length = "here it is min_new_tokens, which counts new tokens alone",
  input_ids = "ids come first, before the options", past_key_values = "it is cache, which the net's new_cache makes",
  labels = "the call returns scores, and F.cross_entropy(scores, labels) the loss; for text, scores 1 to L - 1 belong "
    .. "to ids 2 to L",
  bad_words = "it is bad_words_ids: {{3}, {4, 5}}",
  prefix_allowed_tokens_fn = no_processors .. "; " .. without_tokens,
  penalty_alpha = "repetition_penalty and no_repeat_ngram_size are against repeating",
  forced_eos_token_id = "max_new_tokens is there", forced_bos_token_id = "a token that comes first is one of ids",
  exponential_decay_length_penalty = "length_penalty is there, and max_new_tokens",
  cache_implementation = "use_cache is there", encoder_repetition_penalty = "repetition_penalty is there",
  seed = "{generator = lm.Generator():manual_seed(1)} draws by a seed, and so does all after lm.manual_seed(1)",
}), {
  {int8, "load_in_8bit quantization_config"},
  {local_files, [[cache_dir revision force_download local_files_only use_auth_token pretrained_model_name_or_path
    use_safetensors]]},
  {"{streamer = f} ends it when f returns false", "stopping_criteria max_time"},
  {"net(ids) returns scores, and generate returns tokens", [[return_dict_in_generate output_scores output_logits
    output_attentions output_hidden_states return_dict]]},
  {without_tokens, "suppress_tokens begin_suppress_tokens force_words_ids constraints sequence_bias"},
  {"top_k, top_p and min_p are there to draw among the likeliest", "typical_p epsilon_cutoff eta_cutoff top_h"},
  {"num_beams, with do_sample = true where they shall differ, is there", "num_beam_groups diversity_penalty"},
  {no_processors, "logits_processor guidance_scale watermarking_config renormalize_logits"},
  {"the net is the only one", "assistant_model prompt_lookup_num_tokens"},
})

local strings = {"interpolations are strings: {interpolation = \"bilinear\"}", "InterpolationMode"}
other["vision.transforms"] = add_sentences(pairs_of([[
  HorizontalFlip=RandomHorizontalFlip VerticalFlip=RandomVerticalFlip RandomSizedCrop=RandomResizedCrop Scale=Resize
  Mixup=MixUp Cutmix=CutMix ToFloat=ToTensor v2=lm.vision.transforms F=functional]],
  [[
  AutoAugment AutoAugmentPolicy AugMix RandomZoomOut RandomIoUCrop ScaleJitter RandomResize RandomShortestSize
  RandomPhotometricDistort LinearTransformation GaussianNoise RandomChannelPermutation RGB JPEG
  UniformTemporalSubsample]]), {
  strings, {"vision.read_image returns tensors", "PILToTensor ToImage"},
  {"vision.write_png writes a tensor", "ToPILImage"}, {"images are tensors", "ToPureTensor"},
})

other["vision.transforms.functional"] = add_sentences(pairs_of([[
  adjust_color=adjust_saturation to_gray=to_grayscale]],
  "gaussian_noise grayscale_to_rgb permute_channels jpeg uniform_temporal_subsample"), {
  strings, {"vision.read_image returns tensors", "pil_to_tensor to_image"},
  {"vision.write_png writes a tensor", "to_pil_image"},
  {"img.shape says it", "get_image_size get_dimensions get_size get_image_num_channels"},
})

other.dist = add_sentences(pairs_of([[
  ReduceOps=ReduceOp reduce_op=ReduceOp get_node_local_rank=get_local_rank spawn=lm.mp.spawn
  DistributedDataParallel=lm.nn.parallel.DistributedDataParallel DistributedSampler=lm.data.DistributedSampler
  gather_into_tensor=all_gather_into_tensor allreduce=all_reduce allgather=all_gather reduceScatter=reduce_scatter
  all_reduce_multigpu=all_reduce world_size=get_world_size rank=get_rank size=get_world_size
  _all_gather_base=all_gather_into_tensor _reduce_scatter_base=reduce_scatter_tensor]],
  [[
  device_mesh recv_object_list send_object_list new_subgroups new_subgroups_by_enumeration
  rpc autograd all_gather_coalesced all_reduce_coalesced split_group shrink_group
  get_debug_level set_debug_level is_ucc_available is_xccl_available is_torchelastic_launched rendezvous
  register_rendezvous_handler get_pg_count record_comm GradBucket Work HashStore PrefixStore]]), {
  {"luminary run --nproc N FILE starts the ranks", "launch run elastic"},
  {"backends are strings: \"gloo\"", "Backend"},
  {"{timeout = seconds} is an option of init_process_group", "default_pg_timeout set_timeout"},
  {"dist.new_group makes one", "ProcessGroup"}, {"dist.init_device_mesh makes one", "DeviceMesh"},
  {"nn.parallel.fully_shard shards parameters", "fsdp"},
  {"nn.parallel.parallelize divides layers", "tensor"},
  {"init_process_group makes the store: {init_method = …}", "Store"},
  {"init_process_group makes the store: {init_method = \"tcp://host:port\"}", "TCPStore"},
  {"init_process_group makes the store: {init_method = \"file:///path\"}", "FileStore"},
  {"errors are strings, as pcall returns them", "DistBackendError DistError"},
  {"lm.nn.parallel.comm_hooks is what there is", "algorithms"},
  {"lm.optim.ZeroRedundancyOptimizer is what there is", "optim"},
  {"dist.group and dist.NON_MEMBER are there", "GroupMember"},
})

-- Sharded training: names that PyTorch has in torch.distributed.fsdp, tensor.parallel, pipelining and checkpoint.
local sharded = {
  {"nn.parallel.fully_shard(net) shards a module", "FullyShardedDataParallel FSDP FSDPModule fully_shard"},
  {"nn.parallel.fully_shard takes {mixed_precision = {param_dtype = …}}", "MixedPrecisionPolicy MixedPrecision"},
  {"nn.parallel.fully_shard takes {offload = true}", "OffloadPolicy CPUOffloadPolicy CPUOffload"},
  {"nn.parallel.fully_shard takes {reshard_after_forward = …} and a mesh", "ShardingStrategy"},
  {"nn.parallel.fully_shard takes {methods = {\"name\"}}", "register_fsdp_forward_method"},
  {"nn.parallel.parallelize(net, mesh, plan) divides layers", "parallelize_module DTensor distribute_tensor"},
  {"it is a style in a plan of nn.parallel.parallelize: \"column\"", "ColwiseParallel"},
  {"it is a style in a plan of nn.parallel.parallelize: \"row\"", "RowwiseParallel"},
  {"it is a style in a plan of nn.parallel.parallelize: \"sequence\"", "SequenceParallel"},
  {"styles in a plan of nn.parallel.parallelize take input and output", "PrepareModuleInput PrepareModuleOutput"},
  {"nn.parallel.vocabulary_cross_entropy takes divided logits", "loss_parallel"},
  {"nn.parallel.Pipeline runs the stages of a module", [[pipelining pipeline PipelineStage SplitPoint ScheduleGPipe
    Schedule1F1B ScheduleInterleaved1F1B]]},
  {"lm.checkpoint.save and load handle sharded models", "checkpoint get_state_dict set_state_dict"},
  {"nn.parallel.full_state_dict(net) returns full tensors", "get_model_state_dict StateDictOptions"},
  {"net:load_state_dict takes full tensors, of which each rank keeps its part", "set_model_state_dict"},
}
add_sentences(other.dist, sharded)
other["nn.parallel"] = add_sentences({}, sharded)
other["nn.parallel"].fully_shard = nil

other["dist.ReduceOp"] = pairs_of("sum=SUM mean=MEAN product=PRODUCT min=MIN max=MAX", "BXOR PREMUL_SUM")

-- Names of torchmetrics; those for one task are options here.
other.metrics = pairs_of("MeanIoU=JaccardIndex AUC=AUROC R2=R2Score MSE=MeanSquaredError MAE=MeanAbsoluteError",
  [[
  AveragePrecision ROC PrecisionRecallCurve CalibrationError CohenKappa MatthewsCorrCoef Specificity StatScores
  HammingDistance HingeLoss ExactMatch Dice CatMetric ClasswiseWrapper MetricTracker MinMaxMetric BootStrapper
  MultioutputWrapper ROUGEScore WordErrorRate CharErrorRate SacreBLEUScore CHRFScore PearsonCorrCoef SpearmanCorrCoef
  ExplainedVariance CosineSimilarity MeanAbsolutePercentageError KLDivergence PeakSignalNoiseRatio
  StructuralSimilarityIndexMeasure]])
other["metrics.functional"] = pairs_of("mean_iou=jaccard_index auc=auroc", [[
  average_precision roc precision_recall_curve cohen_kappa matthews_corrcoef specificity stat_scores hamming_distance
  exact_match pearson_corrcoef spearman_corrcoef explained_variance]])
for class, f in pairs {
  Accuracy = "accuracy", Precision = "precision", Recall = "recall", F1Score = "f1_score", FBetaScore = "fbeta_score",
  ConfusionMatrix = "confusion_matrix", JaccardIndex = "jaccard_index", AUROC = "auroc",
} do
  for _, task in ipairs {"Binary", "Multiclass", "Multilabel"} do
    local small = task:lower()
    other.metrics[task .. class] = ("it is %s(%q, …) here"):format(class, small)
    other["metrics.functional"][small .. "_" .. f] = ("it is %s(preds, target, %q, …) here"):format(f, small)
  end
end

other.cuda = with(pairs_of([[
  CUDAGraph=Graph make_graphed_callables=make_graphed_step graphs=graph StreamContext=stream seed=manual_seed
  seed_all=manual_seed_all reset_max_memory_allocated=reset_peak_memory_stats
  reset_max_memory_cached=reset_peak_memory_stats]],
  [[
  memory_snapshot memory_usage utilization temperature power_draw clock_rate get_arch_list
  get_gencode_flags get_rng_state_all set_rng_state_all initial_seed ipc_collect jiterator
  list_gpu_processes ExternalStream MemPool use_mem_pool CUDAPluggableAllocator cudart graph_pool_handle
  get_per_process_memory_fraction get_sync_debug_mode set_sync_debug_mode caching_allocator_alloc sparse tunable
  host_memory_stats]]), {
  profiler = profiling,
  OutOfMemoryError = "errors are strings, as pcall returns them; this one has \"out of memory\" in it",
  memory_summary = "memory_stats() returns the numbers", device_of = "x.device says it",
  init = "CUDA is started when first used", is_initialized = "CUDA is started when first used; is_available() asks",
  is_bf16_supported = "every GPU that this version runs on has bfloat16",
  memory = "its functions are in lm.cuda itself",
  random = "its functions are in lm.cuda itself", streams = "Stream and Event are in lm.cuda itself",
  is_tf32_supported = "lm.backends.cuda.matmul.allow_tf32 is the setting",
})

other.models = add_sentences(pairs_of("", "maxvit_t detection segmentation video"), {
  {"lm.models[name]() makes one", "get_model"}, {"for name in pairs(lm.models) lists them", "list_models"},
  {weights, [[ResNet18_Weights ResNet34_Weights ResNet50_Weights VGG16_Weights AlexNet_Weights
    MobileNet_V2_Weights]]},
})

-- Names for queries of the constructors of networks.
for name in pairs(require "luminary.models") do
  local of_folder = ("gpt2 llama mistral qwen2 qwen3 gemma phi3 bert roberta distilbert vit deit dinov2 unet2d ")
    :find("%f[%w]" .. name .. " ")
  local loading = of_folder and ("lm.models.%s %s"):format(name, reads) or weights
  other["models." .. name] = {from_pretrained = loading, from_single_file = loading, from_config = as_options}
end

-- Fields of results of transformers' and diffusers' models.
local itself = "a net returns tensors, not an object with fields: net(ids) is "
with(other.tensors, {
  logits = itself .. "the scores", last_hidden_state = itself .. "the hidden states",
  pooler_output = itself .. "the hidden states, with the pooled ones second",
  prev_sample = itself .. "a sample, and so is scheduler:step(…)", sample = itself .. "the sample",
  loss = itself .. "the scores; lm.nn.functional.cross_entropy makes a loss of them",
})

with(other.luminary, no_dtype)
for name, ours in pairs(other.text) do other.luminary[name] = "text." .. ours end
for _, library in ipairs {"luminary", "models", "text"} do
  for name, words in pairs(hugging_face) do other[library][name] = other[library][name] or words end
end

other.mp = with(pairs_of([[start_processes=spawn SimpleQueue=Queue JoinableQueue=Queue]], [[
  Manager current_process parent_process active_children get_logger log_to_stderr]]), {
  RawValue = "lm.zeros({}):share_memory_() is that; lm.mp.Value has a lock, too",
  RawArray = "lm.zeros(n):share_memory_() is that; lm.mp.Array has a lock, too",
  cpu_count = "lm.get_num_threads() says how many threads compute", freeze_support = "it is not needed here",
  Thread = "mp.spawn(f, {method = \"thread\"}) has them",
})
add_sentences(other.mp, {
  {"each is given its own: mp.spawn(f, {method = \"process\" or \"thread\"})",
    "set_start_method get_start_method get_context"},
  {"tensors that travel are in shared memory, always",
    "set_sharing_strategy get_sharing_strategy get_all_sharing_strategies"},
  {"errors are strings, as pcall returns them", "ProcessRaisedException ProcessExitedException"},
})

other.autograd = with(pairs_of([[
  no_grad=lm.no_grad enable_grad=lm.enable_grad set_grad_enabled=lm.set_grad_enabled grad_mode=lm.no_grad
  function=Function]], [[
  graph]]), {
  forward_ad = "lm.func.jvp(f, primals, tangents) computes derivatives along the tangents",
  jacobian = "lm.autograd.functional.jacobian(f, inputs)", hessian = "lm.autograd.functional.hessian(f, inputs)",
  profiler = profiling, Variable = "tensors record by themselves: lm.tensor(v, {requires_grad = true})",
  inference_mode = "lm.no_grad(function() … end) is what there is",
  is_grad_enabled = "lm.is_grad_enabled() asks",
})

other.vision = with(pairs_of([[
  load=read_image save=save_image decode_jpeg=decode_image decode_png=decode_image decode_webp=decode_image
  load_image=read_image models=lm.models datasets=lm.data]], [[
  ops tv_tensors draw_bounding_boxes draw_segmentation_masks draw_keypoints flow_to_image
  decode_avif decode_heic read_video write_video VideoReader]]), {
  io = "its functions are lm.vision's own", utils = "its functions are lm.vision's own",
  ImageReadMode = "modes are strings: {mode = \"rgb\"}",
})

other.backends = pairs_of("", [[
  cpu mps mkl mkldnn openmp opt_einsum quantized xeon nnpack miopen mha cusparselt kleidiai]])

local in_itself = "its functions are in lm.distributions itself"
other.distributions = {
  transforms = in_itself, kl = in_itself,
  utils = "lm.broadcast_tensors, x:sigmoid() and x:softmax(-1) are its functions",
  constraint_registry = in_itself .. ": biject_to, transform_to and their register",
}
local of_object = "a support that depends on parameters is self.support, set in init, or T.properties = "
  .. "{support = function(d) … end}"
other["distributions.constraints"] = {
  dependent = of_object, dependent_property = of_object, is_dependent = of_object,
}

other.linalg = {eig = complex.eig, eigvals = complex.eigvals}
for _, names in ipairs {complex, of_ops} do
  with(other.tensors, names)
  with(other.luminary, names)
end
with(other.luminary, compilers)
for name, words in pairs(require "luminary.help.python_names") do
  local is_sentence = words:find " is " or words:find " are " or words:find " has "
  if other.luminary[name] == nil then other.luminary[name] = (is_sentence and "" or "write ") .. words end
end

-- Removes replacements for names that exist here by now.
local core, lm = require "luminary.core", require "luminary"
for _, names in ipairs {core.ops, core.methods, lm, getmetatable(lm).lazy()} do
  for name in pairs(names) do
    if names ~= core.methods then other.luminary[name] = nil end
    if rawget(core.methods, name) then other.tensors[name] = nil end
  end
end
-- Functions of our other libraries: a query of lm for one names its library.
for library, names in pairs {
  ["nn.functional"] = "interpolate gumbel_softmax grid_sample affine_grid normalize cross_entropy linear one_hot",
  data = "random_split DataLoader Dataset TensorDataset Subset",
  nn = "Module Linear Sequential Parameter",
} do
  for name in names:gmatch "%S+" do
    local lacking = other.luminary[name] == nil and rawget(core.ops, name) == nil
    if lacking then other.luminary[name] = library .. "." .. name end
  end
end

return other
