--- The reference's pages: which public names are on which, in which order. gen_reference.lua fails for a name that no
--- page has. A page is {file, title, group, section …}; a section is {title, names}, where a word that ends in ".*" is
--- all of a library that no other page names, and "prefix:" before words is put before each of them.
--- torch7/reference_pages.lua has those of the rock luminary-torch7.
local pages = {}

local function page(file, title, ...) pages[#pages + 1] = {file = file, title = title, ...} end
local function part(title) pages[#pages + 1] = {part = title} end

part "Tensors"
page("tensors", "Tensors: attributes and methods", {"Attributes", [[
  x. shape ndim dtype device data requires_grad grad grad_fn is_leaf is_cuda itemsize nbytes T mT]]},
  {"Sizes and storage", [[
    x: size dim ndimension nelement stride storage_offset storage_size element_size data_ptr is_contiguous is_pinned
    is_shared is_floating_point get_device expand_as view_as reshape_as resize_ set_ free]]},
  {"Values and conversion", [[
    x: item tolist totable to type type_as bool byte char short int long half bfloat16 float double cpu cuda
    pin_memory share_memory_ record_stream]]},
  {"Autograd", "x: backward requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook"},
  {"Others", [[
    x: new_tensor new_empty new_empty_strided new_full new_ones new_zeros apply_ map_ map2_ fill_diagonal_ dist
    istft stft lu lu_solve matrix_exp matrix_power pinverse qr svd where]]})
page("creation", "Creating tensors", {"From values", [[
    lm. tensor as_tensor asarray frombuffer scalar_tensor]]},
  {"Filled", [[
    lm. zeros zeros_like ones ones_like full full_like empty empty_like empty_strided eye arange linspace logspace
    tril_indices triu_indices vander]]},
  {"Windows", "lm. bartlett_window blackman_window hamming_window hann_window kaiser_window"},
  {"Constructors by dtype", [[
    lm. FloatTensor DoubleTensor HalfTensor BFloat16Tensor ByteTensor CharTensor ShortTensor IntTensor LongTensor
    BoolTensor]]})
page("joining", "Joining, splitting and reshaping", {"Joining and splitting", [[
    lm. cat stack hstack vstack dstack column_stack row_stack split split_with_sizes tensor_split chunk hsplit vsplit
    dsplit unbind block_diag]]},
  {"Shape", [[
    lm. reshape view flatten unflatten ravel squeeze unsqueeze permute transpose t movedim moveaxis expand
    broadcast_tensors broadcast_shapes atleast_1d atleast_2d atleast_3d repeat_tensor repeat_interleave tile
    as_strided as_strided_scatter contiguous newaxis unfold resize_as_]]})
page("indexing", "Indexing and writing into tensors", {"Indexing", [[
    lm. select narrow slice index_select masked_select gather take take_along_dim where nonzero argwhere
    diagonal unravel_index]]},
  {"Writing", [[
    lm. scatter scatter_add scatter_reduce index_add index_copy index_fill index_put_ index_reduce masked_fill
    masked_scatter put select_scatter slice_scatter diagonal_scatter copy_ fill zero_]]},
  {"Order of elements", "lm. flip fliplr flipud roll rot90 tril triu"})
page("pointwise", "Pointwise ops: arithmetic", {"Arithmetic", [[
    lm. add sub rsub mul div floor_divide remainder fmod neg positive abs sign signbit copysign reciprocal addcdiv
    addcmul lerp clamp clamp_min clamp_max maximum minimum fmax fmin nan_to_num gcd lcm]]})
page("rounding", "Pointwise ops: rounding, bits and logic", {"Rounding", "lm. floor ceil round trunc frac"},
  {"Bits and logic", [[
    lm. bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift logical_and logical_or
    logical_xor logical_not]]})
page("math", "Pointwise ops: powers, exponentials, logarithms", {"Powers, exponentials and logarithms", [[
    lm. pow float_power square sqrt rsqrt exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2 xlogy ldexp logit
    hypot]]})
page("trigonometry", "Pointwise ops: trigonometric and special functions", {"Trigonometric and hyperbolic", [[
    lm. sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh sinc deg2rad rad2deg]]},
  {"Special functions", "lm. erf erfc erfinv lgamma digamma polygamma mvlgamma igamma igammac heaviside"})
page("reduction", "Reductions", {"Sums and means", [[
    lm. sum nansum mean nanmean prod std std_mean var var_mean norm logsumexp sum_to_size count_nonzero]]},
  {"Extremes and order statistics", [[
    lm. max min amax amin aminmax argmax argmin median nanmedian mode quantile nanquantile]]},
  {"Tests", "lm. all any"},
  {"Along a dim", [[
    lm. cumsum cumprod cummax cummin logcumsumexp diff trapezoid trapz cumulative_trapezoid]]},
  {"Counts", "lm. unique unique_consecutive bincount histc histogram"})
page("comparison", "Comparison and sorting", {"Comparison", [[
    lm. eq ne lt le gt ge equal allclose isclose isfinite isinf isposinf isneginf isnan isin]]},
  {"Sorting", "lm. sort argsort msort topk kthvalue searchsorted bucketize linear_sum_assignment"})
page("blas", "BLAS and LAPACK", {"Products", [[
    lm. matmul mm bmm mv dot vdot inner outer addmm addmv addr addbmm baddbmm chain_matmul tensordot einsum kron cross
    cartesian_prod combinations cdist]]},
  {"Matrices", [[
    lm. trace diag diag_embed diagflat det logdet slogdet inverse pinverse cholesky cholesky_inverse cholesky_solve
    orgqr lu lu_solve lu_unpack qr svd triangular_solve matrix_exp matrix_power renorm cov corrcoef]]})
page("linalg", "lm.linalg: linear algebra", {"", "lm.linalg lm.linalg.*"})
page("fft", "lm.fft: Fourier transforms", {"", "lm.fft lm.fft.* lm.stft lm.istft"})
page("random", "Random numbers", {"Creating random tensors", [[
    lm. rand rand_like randn randn_like randint randint_like randperm normal bernoulli binomial multinomial poisson]]},
  {"In place", "lm. random_ uniform_ normal_ log_normal_ exponential_ cauchy_ geometric_ bernoulli_"},
  {"Generators and seeds", [[
    lm. manual_seed seed initial_seed get_rng_state set_rng_state default_generator Generator Generator.*]]})
page("other-ops", "Other ops and dtypes", {"Ops", [[
    lm. clone detach meshgrid numel roi_pool quantize int8_linear block_linear block_rows expand_blocks
    quantize_blocks paged_attention embedding adaptive_avg_pool2d adaptive_max_pool2d max_pool2d_with_indices
    constant_pad_nd log_sigmoid]]},
  {"Dtypes", [[
    lm. finfo iinfo result_type promote_types can_cast is_tensor is_floating_point is_signed is_nonzero]]})

part "Layers"
page("nn-convolution", "nn: convolution layers", {"Convolutions", "nn. Conv1d Conv2d Conv3d"},
  {"Transposed convolutions", "nn. ConvTranspose1d ConvTranspose2d ConvTranspose3d"},
  {"Lazy", [[
    nn. LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d]]},
  {"Patches", "nn. Unfold Fold"})
page("nn-pooling", "nn: pooling layers", {"Max pooling", [[
    nn. MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d FractionalMaxPool2d
    FractionalMaxPool3d]]},
  {"Average pooling", "nn. AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d LPPool3d"},
  {"Adaptive pooling", [[
    nn. AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
    AdaptiveMaxPool3d]]})
page("nn-padding", "nn: padding layers", {"", [[
    nn. ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d ReflectionPad2d
    ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d CircularPad1d CircularPad2d CircularPad3d]]})
page("nn-activation", "nn: activations", {"Activations", [[
    nn. ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SELU GELU SiLU Mish GLU Sigmoid LogSigmoid Tanh Softplus Softsign
    Hardtanh Hardsigmoid Hardswish Hardshrink Softshrink Tanhshrink Threshold]]},
  {"Softmax", "nn. Softmax Softmin LogSoftmax Softmax2d"})
page("nn-normalization", "nn: normalization layers", {"Batch normalization", [[
    nn. BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d SyncBatchNorm]]},
  {"Others", [[
    nn. LayerNorm RMSNorm GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d LazyInstanceNorm2d
    LazyInstanceNorm3d LocalResponseNorm CrossMapLRN2d]]})
page("nn-recurrent", "nn: recurrent layers", {"Layers", "nn. RNN LSTM GRU"}, {"Cells", "nn. RNNCell LSTMCell GRUCell"},
  {"Sequences of different lengths", "nn.utils.rnn nn.utils.rnn.*"})
page("nn-transformer", "nn: transformer layers", {"", [[
    nn. MultiheadAttention Transformer TransformerEncoder TransformerEncoderLayer TransformerDecoder
    TransformerDecoderLayer MixtureOfExperts KVCache RotaryPositionalEmbeddings SinusoidalPositions]]})
page("nn-linear", "nn: linear, dropout, embedding and other layers",
  {"Linear", "nn. Linear Bilinear LazyLinear Identity Int8Linear BlockLinear BlockEmbedding LoRALinear"},
  {"Dropout", "nn. Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout"},
  {"Embedding", "nn. Embedding EmbeddingBag"}, {"Distance", "nn. CosineSimilarity PairwiseDistance"},
  {"Vision", [[
    nn. PixelShuffle PixelUnshuffle ChannelShuffle Upsample UpsamplingNearest2d UpsamplingBilinear2d]]},
  {"Shape", "nn. Flatten Unflatten"})
page("nn-loss", "nn: losses", {"Classification", [[
    nn. CrossEntropyLoss NLLLoss BCELoss BCEWithLogitsLoss MultiMarginLoss MultiLabelMarginLoss
    MultiLabelSoftMarginLoss SoftMarginLoss CTCLoss LinearCrossEntropyLoss AdaptiveLogSoftmaxWithLoss
    AdaptiveLogSoftmaxWithLoss.*]]},
  {"Regression", [[
    nn. MSELoss L1Loss SmoothL1Loss HuberLoss PoissonNLLLoss GaussianNLLLoss KLDivLoss]]},
  {"Embeddings and ranking", [[
    nn. MarginRankingLoss HingeEmbeddingLoss CosineEmbeddingLoss TripletMarginLoss
    TripletMarginWithDistanceLoss]]})
page("nn-module", "nn.Module and parameters", {"", "nn nn.Module nn.Parameter nn.is_parameter"})
page("nn-containers", "nn: containers", {"", [[
    nn. Sequential ModuleList ModuleDict ParameterList ParameterDict]]})
page("nn-parallel", "nn: several devices", {"", [[
    nn.DataParallel nn.parallel.DistributedDataParallel nn.parallel nn.parallel.* nn.parallel.comm
    nn.parallel.comm.* nn.parallel.comm_hooks nn.parallel.comm_hooks.* lm.parallel lm.parallel.*]]})
page("nn-utilities", "nn.init and nn.utils", {"Initialization", "nn.init nn.init.*"},
  {"Gradients and parameters", "nn.utils nn.utils.*"},
  {"Parametrizations", [[
    nn.utils.parametrize nn.utils.parametrize.* nn.utils.parametrizations nn.utils.parametrizations.*
    nn.utils.stateless nn.utils.stateless.*]]})
page("functional", "nn.functional", {"Convolution and patches", [[
    F F. conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d unfold fold]]},
  {"Pooling", [[
    F. avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_unpool1d max_unpool2d max_unpool3d
    lp_pool1d lp_pool2d lp_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d]]},
  {"Attention and linear", "F. scaled_dot_product_attention linear bilinear"},
  {"Dropout", "F. dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"},
  {"Normalization", [[
    F. batch_norm batch_norm_relu layer_norm rms_norm group_norm instance_norm local_response_norm normalize]]},
  {"Embedding and distance", "F. embedding embedding_bag one_hot cosine_similarity pairwise_distance pdist"},
  {"Vision", [[
    F. pad interpolate upsample upsample_nearest upsample_bilinear grid_sample affine_grid pixel_shuffle
    pixel_unshuffle channel_shuffle]]})
page("functional-activation", "nn.functional: activations", {"", [[
    F. relu relu6 leaky_relu prelu rrelu elu celu selu gelu silu mish glu sigmoid logsigmoid tanh softplus softsign
    hardtanh hardsigmoid hardswish hardshrink softshrink tanhshrink threshold softmax softmin log_softmax
    gumbel_softmax]]})
page("functional-loss", "nn.functional: losses", {"", [[
    F. cross_entropy
    linear_cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits bce_with_logits mse_loss l1_loss
    smooth_l1_loss huber_loss poisson_nll_loss gaussian_nll_loss kl_div ctc_loss soft_margin_loss multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss margin_ranking_loss hinge_embedding_loss cosine_embedding_loss
    triplet_margin_loss triplet_margin_with_distance_loss]]})

part "Training"
page("autograd", "Autograd", {"Modes", [[
    lm. no_grad enable_grad inference_mode set_grad_enabled is_grad_enabled]]},
  {"lm.autograd", [[
    lm.autograd lm.grad lm.autograd.* lm.autograd.functional lm.autograd.functional.*]]},
  {"lm.func", "lm.func lm.func.*"})
page("amp", "Mixed precision", {"", [[
    lm.autocast lm.GradScaler lm.is_autocast_enabled lm.get_autocast_dtype lm.amp lm.amp.*]]})
page("optim", "optim: optimizers", {"Optimizers", [[
    optim optim. SGD Adam AdamW Adamax NAdam RAdam AdaBelief Adadelta Adafactor Adagrad ASGD LAMB LBFGS Lion Muon
    RMSprop Rprop]]},
  {"By name", "optim. get_optimizer list_optimizers"},
  {"The base class, and other training tools", [[
    optim. Optimizer DiLoCo ZeroRedundancyOptimizer AveragedModel SWALR swa_utils]]},
  {"swa_utils", "optim.swa_utils.*"})
page("schedulers", "optim.lr_scheduler: learning rates", {"", "optim.lr_scheduler optim.lr_scheduler.*"})
page("data", "data: loading", {"Loader", "data data.DataLoader data.default_collate data.get_worker_info"},
  {"Datasets", [[
    data. Dataset IterableDataset TensorDataset ConcatDataset Subset random_split]]},
  {"Samplers", [[
    data. Sampler SequentialSampler RandomSampler SubsetRandomSampler WeightedRandomSampler BatchSampler
    DistributedSampler]]})
page("datasets", "data: datasets of files", {"", [[
    data. MNIST FashionMNIST CIFAR10 CIFAR100 ImageFolder DatasetFolder CSVDataset JSONLinesDataset TokenDataset
    WebDataset FakeData]]})

part "Domains"
page("text", "text: tokenizers", {"", "text text.*"})
page("vision", "vision: images and boxes", {"", "vision vision.*"})
page("transforms", "vision.transforms", {"", "transforms transforms.*"})
page("transforms-functional", "vision.transforms.functional", {"", [[
    transforms.functional transforms.functional.*]]})
page("models", "lm.models", {"Vision", [[
    lm.models lm.models. lenet mlp
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169
    densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5
    efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s mnasnet0_5 mnasnet0_75
    mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
    regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf
    regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152
    resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5
    shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t
    swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vgg_f wide_resnet101_2
    wide_resnet50_2 googlenet inception_v3
    vit vit_b_16 vit_b_32 vit_l_16 vit_l_32 vit_h_14 deit dinov2]]},
  {"Text", "lm.models. gpt2 llama mistral qwen2 qwen3 qwen3_moe olmoe smollm3 gemma gemma2 gemma3 phi3 bert "
    .. "roberta distilbert generate net.* lm.chat lm.chat.*"},
  {"Diffusion", "lm.models. unet2d DDPMScheduler DDIMScheduler"})
page("distributions", "lm.distributions", {"", "lm.distributions lm.distributions.* lm.distributions.constraints.*"})
page("onnx", "lm.onnx: models of other frameworks", {"", "lm.onnx lm.onnx.*"})
page("metrics", "lm.metrics", {"Objects", [[
    lm.metrics lm.metrics. Metric MetricCollection Accuracy Precision Recall F1Score FBetaScore ConfusionMatrix
    JaccardIndex AUROC MeanSquaredError MeanAbsoluteError R2Score BLEUScore Perplexity MeanMetric SumMetric MaxMetric
    MinMetric RunningMean RunningSum evaluate]]},
  {"Functions", "lm.metrics.functional lm.metrics.functional.*"})
page("checkpoint", "lm.checkpoint", {"", "lm.checkpoint lm.checkpoint.* lm.checkpoint.Manager.*"})
page("watch", "lm.watch", {"", "lm.watch lm.watch.* lm.watch.progress lm.watch.progress.* lm.watch.plot.* lm.summary "
  .. "lm.profile lm.record_function lm.record_memory_history lm.memory_snapshot lm.graph"})

part "Several devices and processes"
page("distributed", "dist: process groups", {"", "dist dist.* dist.ReduceOp dist.ReduceOp.*"})
page("multiprocessing", "lm.mp: processes", {"", "lm.mp lm.mp.* lm.mp.Event.*"})
page("async", "lm.async, lm.serve: results without waiting", {"", "lm. async send_part set_async poll"},
  {"lm.serve", "lm.serve lm.serve.* lm.serve.nginx.* lm.serve.neovim.*"})
page("cuda", "lm.cuda: devices, streams, graphs", {"", "lm.cuda lm.cuda.*"},
  {"lm.cuda.comm", "lm.cuda.comm lm.cuda.comm.*"},
  {"lm.cuda.nccl and lm.backends", [[
    lm.cuda.nccl lm.cuda.nccl.* lm.cuda.nvtx.* lm.backends lm.backends.* lm.backends.cuda lm.backends.cuda.*]]})

part "The rest"
page("lm", "lm: saving, defaults, memory", {"Saving and loading", "lm lm.save lm.load"},
  {"Defaults", [[
    lm. get_default_dtype set_default_dtype get_default_device set_default_device get_num_threads set_num_threads
    get_float32_matmul_precision set_float32_matmul_precision use_deterministic_algorithms
    are_deterministic_algorithms_enabled get_printoptions set_printoptions set_warnings]]},
  {"Devices and memory", [[
    lm. try_gpu try_all_gpus get_device synchronize empty_cache memory_allocated memory_reserved max_memory_allocated
    max_memory_reserved reset_peak_memory_stats live_tensors scope keep compile prepare]]})
page("utilities", "Utilities", {"", "lm. Timer help op_list repr time version getenv setenv"},
  {"lm.paths", "lm.paths lm.paths.*"})

return pages
