--- Rules of ONNX for nodes: kinds and choices of attributes, those that must be given, and the number of inputs.
local options = require "luminary.base.options"

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
    align_corners allowzero antialias ceil_mode center_point_box count_include_pad exclude_outside exclusive fmod
    input_forget interleaved inverse is_case_sensitive is_causal keepdims largest layout linear_before_reset new_axis
    noop_with_empty_axes one_class onesided periodic reverse select_last_index sorted storage_order training_mode
    transA transB upper zeros]])
add("an integer", is_integer(-math.huge), [[
    axis batch_axis batch_dims default_int64 detect_negative detect_positive dtype end ignore_index k left_window_size
    n_supports n_targets output_datatype output_dtype precision qk_matmul_output_mode right_window_size sampling_ratio
    softmax_precision start targets time_axis TreeEnsemble.aggregate_function TreeEnsemble.post_transform value_int]])
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

-- Attributes that a node must have.
local required = {
  BitShift = "direction", BitCast = "to", Cast = "to", Concat = "axis", ConcatFromSequence = "axis",
  DepthToSpace = "blocksize", Einsum = "equation", GRU = "hidden_size", GroupNormalization = "num_groups",
  LRN = "size", LSTM = "hidden_size", LinearAttention = "q_num_heads kv_num_heads", LinearClassifier = "coefficients",
  MaxRoiPool = "pooled_shape", Momentum = "alpha beta mode norm_coefficient", RNN = "hidden_size",
  RandomNormal = "shape", RandomUniform = "shape", Scan = "num_scan_inputs", SpaceToDepth = "blocksize",
  TfIdfVectorizer = "mode ngram_indexes ngram_counts max_skip_count min_gram_length max_gram_length",
}
-- The number of first inputs that must be given, 1 if not listed; `since`: from a version on, {version, number}.
local least = {
  Constant = 0, Loop = 0, Optional = 0, OptionalHasElement = 0, RandomNormal = 0, RandomUniform = 0, SequenceEmpty = 0,
  BatchNormalization = 5, MelWeightMatrix = 5, QLinearConv = 8, QLinearMatMul = 8,
}
local since = {Pad = {11, 2}, Reshape = {5, 2}, Slice = {10, 3}, TopK = {10, 2}, Unsqueeze = {13, 2}}
for op in ([[
    Add AffineGrid And ArrayFeatureExtractor BitShift BitwiseAnd BitwiseOr BitwiseXor CastLike CausalConvWithState
    CenterCropPad Compress Conv ConvInteger ConvTranspose CumProd CumSum DequantizeLinear Div Equal Expand Gather
    GatherElements GatherND Gemm Greater GreaterOrEqual GridSample LayerNormalization Less LessOrEqual MatMul
    MatMulInteger MaxRoiPool MaxUnpool Mod Mul NegativeLogLikelihoodLoss NonMaxSuppression Or Pow PRelu QuantizeLinear
    ReverseSequence RMSNormalization SequenceAt SequenceInsert SoftmaxCrossEntropyLoss STFT Sub SwiGLU TensorScatter
    Tile Xor]]):gmatch "%S+" do least[op] = 2 end
for op in ([[
    Attention Col2Im DeformConv FlexAttention GroupNormalization GRU InstanceNormalization LinearAttention LSTM OneHot
    Range RNN RoiAlign RotaryEmbedding Scatter ScatterElements ScatterND Where]]):gmatch "%S+" do least[op] = 3 end

--- Fails if a node of ONNX's domains breaks a rule, with an error that names the node.
return function(node)
  if node.domain == "com.microsoft" then return end
  for name, v in pairs(node.given) do
    local kind = kinds[node.op .. "." .. name] or kinds[name]
    if kind and not kind[2](v) then
      node:fail("attribute '%s' must be %s, got %s", name, kind[1], options.describe(v))
    end
  end
  for name in (required[node.op] or ""):gmatch "%S+" do
    if node.given[name] == nil then node:fail("attribute '%s' is missing", name) end
  end
  local count, later = least[node.op] or 1, since[node.op]
  if later and node.version >= later[1] then count = later[2] end
  for i = 1, count do
    if (node.inputs[i] or 0) == 0 then node:fail("input %d of at least %d is missing", i, count) end
  end
end
