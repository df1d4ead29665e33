--- Rules of ONNX for nodes: kinds and choices of attributes, those that must be given, and the number of inputs.
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"

local function is_number(v) return type(v) == "number" end
local function is_integer(least)
  return function(v) return is_number(v) and v >= least and v == math.floor(v) end
end
local function is_text(v) return type(v) == "string" end
-- Maps an attribute, NAME, or OPERATOR.NAME if it differs in one, to its kind: {text, test of a value}.
local kinds = {}
local function add(text, test, names)
  for name in names:gmatch "%S+" do kinds[name] = {text, test} end
end
add("0 or 1", function(v) return v == 0 or v == 1 end, [[
    align_corners allowzero antialias ceil_mode center_point_box count_include_pad detect_negative detect_positive
    exclude_outside exclusive fmod input_forget interleaved inverse is_case_sensitive is_causal keepdims largest layout
    linear_before_reset new_axis noop_with_empty_axes one_class onesided periodic reverse select_last_index sorted
    storage_order training_mode transA transB upper zeros]])
add("an integer", is_integer(-math.huge), [[
    axis batch_axis batch_dims default_int64 dtype end ignore_index k left_window_size n_supports n_targets
    output_datatype output_dtype precision qk_matmul_output_mode right_window_size sampling_ratio softmax_precision
    start targets time_axis TreeEnsemble.aggregate_function TreeEnsemble.post_transform value_int]])
add("an integer of at least 0", is_integer(0), "block_size max_skip_count num_scan_inputs rotary_embedding_dim")
add("an integer of at least 1", is_integer(1), [[
    blocksize group hidden_size kv_num_heads LpNormalization.p max_gram_length min_gram_length num_groups num_heads
    num_outputs offset_group output_height output_width q_num_heads sample_size size]])
add("a number", is_number, [[
    alpha beta bias clip cubic_coeff_a decay_factor default_float epsilon extrapolation_value gamma high lambd low max
    mean min momentum norm_coefficient norm_coefficient_post p ratio replaced_value_float scale seed softcap
    spatial_scale threshold value_float]])
add("a text", is_text, "coordinate_transformation_mode default_string equation mode value_string y")
add("a list", function(v) return type(v) == "table" end, [[
    activation_alpha activation_beta activations axes base_values cats_int64s cats_strings classes_strings
    classlabels_int64s classlabels_ints classlabels_strings coefficients dilations directions ends imputed_value_floats
    imputed_value_int64s inputdimensions intercepts kernel_params kernel_shape leaf_targetids ngram_counts
    ngram_indexes nodes_falseleafs nodes_falsenodeids nodes_featureids nodes_missing_value_tracks_true nodes_nodeids
    nodes_treeids nodes_trueleafs nodes_truenodeids nodes_values offset output_padding output_shape paddings pads perm
    pool_int64s pool_strings pooled_shape prob_a prob_b rho Scaler.scale scales scan_input_axes scan_input_directions
    scan_output_axes scan_output_directions shape split starts stopwords strides support_vectors tree_roots
    value_floats value_ints value_strings vectors_per_class weights xs zs]])
for name, words in pairs {
  activation = "none silu swish", approximate = "none tanh", auto_pad = "NOTSET SAME_UPPER SAME_LOWER VALID",
  case_change_action = "NONE LOWER UPPER", direction = "forward reverse bidirectional", norm = "MAX L1 L2",
  keep_aspect_ratio_policy = "stretch not_larger not_smaller", kernel_type = "LINEAR POLY RBF SIGMOID",
  nearest_mode = "round_prefer_floor round_prefer_ceil floor ceil", padding_mode = "zeros border reflection",
  reduction = "none mean sum", ["ScatterElements.reduction"] = "none add mul max min",
  ["ScatterND.reduction"] = "none add mul max min", update_rule = "linear gated delta gated_delta",
  aggregate_function = "AVERAGE SUM MIN MAX", post_transform = "NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT",
  ["BitShift.direction"] = "LEFT RIGHT", ["DepthToSpace.mode"] = "DCR CRD", ["SpaceToDepth.mode"] = "DCR CRD",
  ["GridSample.mode"] = "linear nearest cubic bilinear bicubic", ["Momentum.mode"] = "standard nesterov",
  ["Pad.mode"] = "constant reflect edge wrap", ["Resize.mode"] = "nearest linear cubic", ["RoiAlign.mode"] = "avg max",
  ["TensorScatter.mode"] = "linear circular", ["TfIdfVectorizer.mode"] = "TF IDF TFIDF",
  ["Upsample.mode"] = "nearest linear bilinear",
} do
  add("one of '" .. words:gsub(" ", "', '") .. "'", function(v) -- exporters write an empty auto_pad
    return is_text(v) and (" " .. words .. " "):find(" " .. v .. " ", 1, true) or v == "" and name == "auto_pad"
  end, name)
end

-- Operators with three counts and their attributes in any version. The counts: first inputs that must be given, most
-- inputs, most outputs; *: any. An attribute with a ! must be given; a word in capitals is a list in `groups`.
local groups = {
  WINDOW = "auto_pad dilations kernel_shape pads strides", DRAW = "dtype seed",
  GATES = "activation_alpha activation_beta activations clip direction hidden_size! layout output_sequence",
}
local signatures = {}
for entry in ([[
  Adagrad 1** decay_factor epsilon norm_coefficient, Adam 1** alpha beta epsilon norm_coefficient
  norm_coefficient_post, AffineGrid 221 align_corners, ArgMax ArgMin 111 axis keepdims select_last_index, Attention
  374 is_causal kv_num_heads left_window_size q_num_heads qk_matmul_output_mode right_window_size scale softcap
  softmax_precision, AveragePool 111 WINDOW ceil_mode count_include_pad, BatchNormalization 555 epsilon is_test
  momentum spatial training_mode, Bernoulli 111 DRAW, BitCast 111 to!, BitShift 221 direction!, BitwiseAnd BitwiseOr
  BitwiseXor Expand GreaterOrEqual LessOrEqual MatMul PRelu SequenceAt 221, BlackmanWindow HammingWindow HannWindow
  111 output_datatype periodic, Cast 111 round_mode saturate to!, CastLike 221 round_mode saturate,
  CausalConvWithState 242 activation, Celu Elu LeakyRelu Swish ThresholdedRelu 111 alpha, CenterCropPad 221 axes, Clip
  131 max min, Col2Im 331 dilations pads strides, Concat 1*1 axis!, ConcatFromSequence 111 axis! new_axis, Constant
  001 sparse_value value value_float value_floats value_int value_ints value_string value_strings, ConstantOfShape 111
  value, Conv 231 WINDOW group, ConvInteger 241 WINDOW group, ConvTranspose 231 WINDOW group output_padding
  output_shape, CumProd CumSum 221 exclusive reverse, DFT 131 axis inverse onesided, DeformConv 351 dilations group
  kernel_shape offset_group pads strides, DepthToSpace SpaceToDepth 111 blocksize! mode, DequantizeLinear 231 axis
  block_size output_dtype, Dropout 132 is_test ratio seed, DynamicQuantizeLinear 113, Einsum 1*1 equation!, EyeLike
  111 dtype k, Flatten Hardmax LogSoftmax Softmax 111 axis, FlexAttention 331 prob_mod scale score_mod
  softmax_precision, GRU 362 GATES linear_before_reset, Compress Gather GatherElements 221 axis, GatherND 221
  batch_dims, Gelu 111 approximate, Gemm 231 alpha beta broadcast transA transB, GlobalLpPool 111 p, Gradient 1** xs y
  zs, GridSample 221 align_corners mode padding_mode, GroupNormalization 331 epsilon num_groups! stash_type,
  HardSigmoid 111 alpha beta, If 11* else_branch then_branch, InstanceNormalization 331 epsilon, IsInf 111
  detect_negative detect_positive, LRN 111 alpha beta bias size!, LSTM 383 GATES input_forget, LayerNormalization 233
  axis epsilon stash_type, LinearAttention 362 chunk_size kv_num_heads! q_num_heads! scale update_rule, Loop 0** body,
  LpNormalization 111 axis p, LpPool 111 WINDOW ceil_mode p, MatMulInteger 241, MaxPool 112 WINDOW ceil_mode
  storage_order, MaxRoiPool 221 pooled_shape! spatial_scale, MaxUnpool 231 kernel_shape pads strides,
  MeanVarianceNormalization 111 axes, MelWeightMatrix 551 output_datatype, Mod 221 fmod, Momentum 1** alpha! beta!
  mode! norm_coefficient!, Multinomial 111 DRAW sample_size, NegativeLogLikelihoodLoss 231 ignore_index reduction,
  NonMaxSuppression 251 center_point_box, OneHot Scatter 331 axis, Optional 011 type, OptionalHasElement 011, Add And
  Div Equal Greater Less Mul Or Pow Sub Xor 221 axis broadcast, Pad 141 mode paddings pads value, QLinearConv 891
  WINDOW group, QLinearMatMul 881, QuantizeLinear 231 axis block_size output_dtype precision saturate,
  RMSNormalization 221 axis epsilon stash_type, RNN 362 GATES, RandomNormal 001 DRAW mean scale shape!,
  RandomNormalLike 111 DRAW mean scale, RandomUniform 001 DRAW high low shape!, RandomUniformLike 111 DRAW high low,
  Range 331 stash_type, ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
  ReduceSum ReduceSumSquare 121 axes keepdims noop_with_empty_axes, Reshape 121 allowzero shape, Resize 141 antialias
  axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value keep_aspect_ratio_policy mode
  nearest_mode, ReverseSequence 221 batch_axis time_axis, RoiAlign 331 coordinate_transformation_mode mode
  output_height output_width sampling_ratio spatial_scale, RotaryEmbedding 341 interleaved num_heads
  rotary_embedding_dim, STFT 241 onesided, Scan 0** body directions num_scan_inputs! scan_input_axes
  scan_input_directions scan_output_axes scan_output_directions, ScatterElements 331 axis reduction, ScatterND 331
  reduction, Selu 111 alpha gamma, Max Mean Min SequenceConstruct Sum 1*1, SequenceEmpty 001 dtype, SequenceErase 121,
  SequenceInsert Tile 231, SequenceMap 1** body, Shape 111 end start, Shrink 111 bias lambd,
  SimplifiedLayerNormalization 122 axis epsilon stash_type, Slice 151 axes ends starts, SoftmaxCrossEntropyLoss 232
  ignore_index reduction, Split 12* axis num_outputs split, SplitToSequence 121 axis keepdims, Squeeze Unsqueeze 121
  axes, StringNormalizer 111 case_change_action is_case_sensitive locale stopwords, SwiGLU 221 alpha, TensorScatter
  231 axis mode, TfIdfVectorizer 111 max_gram_length! max_skip_count! min_gram_length! mode! ngram_counts!
  ngram_indexes! pool_int64s pool_strings weights, TopK 122 axis k largest sorted, Transpose 111 perm, Trilu 121
  upper, Unique 114 axis sorted, Upsample 121 height_scale mode scales width_scale, Where 331, LinearClassifier 112
  coefficients!, SVMClassifier TreeEnsembleClassifier 112, FeatureVectorizer 1*1, ArrayFeatureExtractor 221, others
  111
]]):gmatch "[^,]+" do
  local names, least, inputs, outputs, attributes = entry:match "^(.-)([%d*])([%d*])([%d*])(.*)$"
  attributes = attributes:gsub("%u+", groups)
  local signature = {tonumber(least), tonumber(inputs), tonumber(outputs), required = lists.parts(attributes, "(%S+)!")}
  signature.known = lists.set(attributes:gsub("!", "") .. " consumed_inputs")
  for name in names:gmatch "%S+" do signatures[name] = signature end
end
-- The number of first inputs that must be given from a version on, {version, number}.
local since = {Pad = {11, 2}, Reshape = {5, 2}, Slice = {10, 3}, TopK = {10, 2}, Unsqueeze = {13, 2}}

--- Fails if a node of ONNX's domains breaks a rule, with an error that names the node.
return function(node)
  if node.domain == "com.microsoft" then return end
  local signature = signatures[node.op] or signatures.others
  for name, v in pairs(node.given) do
    if node.domain == "" and not signature.known[name] then
      node:fail("it has no attribute '%s'", printable_name(name, 100))
    end
    local kind = kinds[node.op .. "." .. name] or kinds[name]
    if kind and not kind[2](v) then
      node:fail("attribute '%s' must be %s, got %s", name, kind[1], options.describe(v))
    end
  end
  for _, name in ipairs(signature.required) do
    if node.given[name] == nil then node:fail("attribute '%s' is missing", name) end
  end
  local count, later = signature[1], since[node.op]
  if later and node.version >= later[1] then count = later[2] end
  for i = 1, count do
    if (node.inputs[i] or 0) == 0 then node:fail("input %d of at least %d is missing", i, count) end
  end
  for k, word in pairs {[2] = "input", [3] = "output"} do
    local most, got = signature[k] or math.huge, k == 2 and #node.inputs or node.results
    if got > most then node:fail("it has %d %ss, at most %d are allowed", got, word, most) end
  end
end
