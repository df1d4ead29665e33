--- What PyTorch and Torch7 call things that have another name here, or that this version lacks: for the errors about
--- names that are not there. A name that is that of something here, words if there is a blank in it, or false: not in
--- this version. Written as "theirs=ours …", and "theirs …" for what is lacking.
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

local colon = "net.forward(x) would be net:forward(x), with a colon, or net(x)"
local two = "such ops give two results: local values, indices = x:max(2)"

local other = {}

other.tensors = with(pairs_of([[
  cmul=mul cdiv=div cadd=add csub=sub cpow=pow cmax=maximum cmin=minimum nElement=numel
  nelement=numel nDimension=dim ndimension=dim multiply=mul divide=div subtract=sub
  negative=neg true_divide=div greater=gt less=lt greater_equal=ge less_equal=le not_equal=ne absolute=abs
  clip=clamp clip_=clamp_ swapaxes=transpose swapdims=transpose numpy=totable
  maskedFill=masked_fill_ repeatTensor=repeat_tensor repeat=repeat_tensor
  tile=repeat_tensor mv=matmul dot=matmul inner=matmul type=to]],
  [[
  cumsum cumprod sort argsort tril triu diag diagonal outer cross det inverse inv svd qr trace multinomial unique
  unfold flip roll prod scatter scatter_ median mode kthvalue addcmul addcdiv addcmul_ addcdiv_ lerp lerp_ sinh
  cosh tan asin acos atan atan2 hypot frac sinc floor_mod histc bincount baddbmm addmv addr ger exponential_
  cauchy_ isinf index_fill index_fill_ index_copy index_copy_ masked_select masked_scatter take take_along_dim
  cummax cummin logcumsumexp renorm dist nansum nanmean bitwise_and bitwise_or bitwise_xor softmin hardtanh]]), {
  values = two, indices = two, apply = "ops work on whole tensors; x:totable() is there for loops",
  map = "ops work on whole tensors; x:totable() is there for loops", device_type = "x.device says it",
  weight = colon, training = colon,
})

other.luminary = with(pairs_of([[
  range=arange Tensor=tensor from_numpy=tensor as_tensor=tensor cmul=mul cdiv=div concat=cat concatenate=cat
  multiply=mul divide=div subtract=sub negative=neg greater=gt less=lt greater_equal=ge less_equal=le not_equal=ne
  absolute=abs clip=clamp manualSeed=manual_seed seed=manual_seed setnumthreads=set_num_threads
  getnumthreads=get_num_threads setdefaulttensortype=set_default_dtype isTensor=is_tensor repeat=repeat_tensor
  inner=matmul dot=matmul mv=matmul utils=nn.utils distributed=dist multiprocessing=mp
  F=nn.functional]],
  [[
  cumsum cumprod sort argsort tril triu diag outer cross einsum meshgrid multinomial unique flip roll prod scatter
  logspace vstack hstack dstack column_stack tensordot bincount histc searchsorted isclose isinf normal poisson
  compile jit vmap func onnx fft linalg sparse complex quantization hub profiler Generator finfo iinfo hypot atan2
  addcmul lerp]]), {
  Size = "sizes are plain lists: x.shape", float32 = "dtypes are strings: {dtype = \"float32\"}",
  float64 = "dtypes are strings: {dtype = \"float64\"}", int64 = "dtypes are strings: {dtype = \"int64\"}",
  long = "dtypes are strings: {dtype = \"int64\"}", float = "dtypes are strings: {dtype = \"float32\"}",
  amp = "lm.autocast is there; a gradient scaler is not in this version",
  inference_mode = "lm.no_grad(function() … end) is what there is",
  class = "nn.Module:extend(\"Name\") makes a class", CmdLine = "a command line is not in this version",
})

other.nn = with(pairs_of([[
  SpatialConvolution=Conv2d SpatialConvolutionMM=Conv2d SpatialMaxPooling=MaxPool2d
  SpatialAveragePooling=AvgPool2d SpatialBatchNormalization=BatchNorm2d BatchNormalization=BatchNorm1d
  VolumetricBatchNormalization=BatchNorm3d SpatialAdaptiveAveragePooling=AdaptiveAvgPool2d
  ClassNLLCriterion=NLLLoss CrossEntropyCriterion=CrossEntropyLoss MSECriterion=MSELoss LookupTable=Embedding
  LogSoftMax=LogSoftmax SoftMax=Softmax SoftPlus=Softplus Container=Module
  DataParallelTable=DataParallel DistributedDataParallel=parallel.DistributedDataParallel
  clip_grad_norm_=utils.clip_grad_norm_ clip_grad_value_=utils.clip_grad_value_]],
  [[
  LSTM GRU RNN LSTMCell GRUCell RNNCell MultiheadAttention Transformer TransformerEncoder TransformerEncoderLayer
  TransformerDecoder TransformerDecoderLayer Conv1d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
  MaxPool1d MaxPool3d AvgPool1d AvgPool3d AdaptiveMaxPool2d AdaptiveAvgPool1d GroupNorm InstanceNorm1d
  InstanceNorm2d RMSNorm LocalResponseNorm ELU SELU CELU PReLU ReLU6 Hardtanh Hardswish Hardsigmoid Mish GLU
  Softmin Softsign Softmax2d LogSigmoid Threshold L1Loss SmoothL1Loss HuberLoss BCELoss KLDivLoss
  CosineEmbeddingLoss MarginRankingLoss TripletMarginLoss CTCLoss PoissonNLLLoss GaussianNLLLoss
  HingeEmbeddingLoss ModuleDict ParameterList ParameterDict Upsample PixelShuffle Unfold Fold ZeroPad2d
  ReflectionPad2d ReplicationPad2d ConstantPad2d Dropout1d Dropout2d Dropout3d AlphaDropout EmbeddingBag Bilinear
  CosineSimilarity PairwiseDistance Unflatten LazyLinear LazyConv2d Concat ConcatTable ParallelTable JoinTable
  CAddTable CMulTable SplitTable SelectTable Narrow Squeeze gModule BCECriterion AbsCriterion MarginCriterion
  TemporalConvolution SpatialFullConvolution SpatialZeroPadding]]), {
  Lambda = "any Module's forward is a function: nn.Module:extend(\"Name\")",
})

other["nn.functional"] = pairs_of([[
  relu6=lm.relu6 erf=lm.erf sigmoid_=lm.sigmoid_ tanh_=lm.tanh_ gelu_tanh=lm.gelu_tanh log_sigmoid=logsigmoid]],
  [[
  l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div normalize cosine_similarity interpolate upsample
  pad scaled_dot_product_attention conv1d conv3d conv_transpose1d conv_transpose2d max_pool1d avg_pool1d
  adaptive_max_pool2d group_norm instance_norm rms_norm elu selu celu prelu hardtanh hardswish hardsigmoid mish
  glu softmin softsign threshold gumbel_softmax unfold fold grid_sample affine_grid pixel_shuffle dropout1d
  dropout2d alpha_dropout embedding_bag bilinear pairwise_distance triplet_margin_loss margin_ranking_loss
  cosine_embedding_loss ctc_loss hinge_embedding_loss poisson_nll_loss gaussian_nll_loss multi_margin_loss
  multilabel_margin_loss soft_margin_loss]])

other.optim = pairs_of([[
  sgd=SGD adam=Adam adamw=AdamW StepLR=lr_scheduler.StepLR CosineAnnealingLR=lr_scheduler.CosineAnnealingLR]], [[
  RMSprop Adagrad Adadelta LBFGS NAdam RAdam Adamax ASGD Rprop SparseAdam rmsprop adagrad
  adadelta lbfgs rprop ConfusionMatrix Logger]])

other["optim.lr_scheduler"] = pairs_of("", "LRScheduler _LRScheduler")

other.data = pairs_of([[
  TensorDataSet=TensorDataset Dataloader=DataLoader dataset=Dataset]],
  [[
  IterableDataset ConcatDataset ChainDataset BatchSampler WeightedRandomSampler SubsetRandomSampler CIFAR10
  CIFAR100 ImageFolder default_collate]])

return other
