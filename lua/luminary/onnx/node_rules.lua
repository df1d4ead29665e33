--- Rules of ONNX for nodes: kinds and choices of attributes, those that must be given, and the number of inputs.
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"

local function is_integer(v) return type(v) == "number" and v == math.floor(v) end
local function is_text(v) return type(v) == "string" end
local function is_number(v) return type(v) == "number" end

-- A kind: its text, a test of a value, and a test of each entry of a list; then the names of its attributes, which have
-- one kind in all operators, but for OPERATOR.NAME.
local kinds = {
  {"0 or 1", function(v) return v == 0 or v == 1 end, nil, [[
    align_corners allowzero antialias ceil_mode center_point_box count_include_pad exclude_outside exclusive fmod
    input_forget interleaved inverse is_case_sensitive is_causal keepdims largest layout linear_before_reset new_axis
    noop_with_empty_axes one_class onesided periodic reverse select_last_index sorted storage_order training_mode transA
    transB upper zeros]]},
  {"an integer", is_integer, nil, [[
    axis batch_axis batch_dims default_int64 detect_negative detect_positive dtype end ignore_index k left_window_size
    max_skip_count n_supports n_targets num_scan_inputs output_datatype output_dtype precision qk_matmul_output_mode
    right_window_size sampling_ratio softmax_precision start targets time_axis value_int TreeEnsemble.aggregate_function
    TreeEnsemble.post_transform]]},
  {"an integer of at least 0", function(v) return is_integer(v) and v >= 0 end, nil,
    "block_size rotary_embedding_dim"},
  {"an integer of at least 1", function(v) return is_integer(v) and v >= 1 end, nil, [[
    blocksize group hidden_size kv_num_heads max_gram_length min_gram_length num_groups num_heads num_outputs
    offset_group output_height output_width q_num_heads sample_size size]]},
  {"a number", is_number, nil, [[
    alpha beta bias clip cubic_coeff_a decay_factor default_float epsilon extrapolation_value gamma high lambd low max
    mean min momentum norm_coefficient norm_coefficient_post p ratio replaced_value_float scale seed softcap
    spatial_scale threshold value_float]]},
  {"a text", is_text, nil, "equation value_string y default_string"},
  {"a list of integers", nil, is_integer, [[
    axes cats_int64s classlabels_int64s classlabels_ints dilations directions ends imputed_value_int64s inputdimensions
    kernel_shape leaf_targetids ngram_counts ngram_indexes nodes_falseleafs nodes_falsenodeids nodes_featureids
    nodes_missing_value_tracks_true nodes_nodeids nodes_treeids nodes_trueleafs nodes_truenodeids output_padding
    output_shape paddings pads perm pool_int64s pooled_shape scan_input_axes scan_input_directions scan_output_axes
    scan_output_directions shape split starts strides tree_roots value_ints vectors_per_class]]},
  {"a list of numbers", nil, is_number, [[
    activation_alpha activation_beta base_values coefficients imputed_value_floats intercepts kernel_params nodes_values
    offset prob_a prob_b rho scales support_vectors value_floats weights Scaler.scale]]},
  {"a list of texts", nil, is_text, [[
    activations cats_strings classes_strings classlabels_strings pool_strings stopwords value_strings xs zs]]},
}
-- Choices of attributes that are texts.
local choices = {
  activation = "none silu swish", approximate = "none tanh", auto_pad = "NOTSET SAME_UPPER SAME_LOWER VALID",
  case_change_action = "NONE LOWER UPPER", direction = "forward reverse bidirectional",
  keep_aspect_ratio_policy = "stretch not_larger not_smaller", kernel_type = "LINEAR POLY RBF SIGMOID",
  nearest_mode = "round_prefer_floor round_prefer_ceil floor ceil", norm = "MAX L1 L2",
  padding_mode = "zeros border reflection", reduction = "none mean sum", mode = "",
  update_rule = "linear gated delta gated_delta", aggregate_function = "AVERAGE SUM MIN MAX",
  post_transform = "NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT", coordinate_transformation_mode = "",
  ["BitShift.direction"] = "LEFT RIGHT", ["ScatterElements.reduction"] = "none add mul max min",
  ["ScatterND.reduction"] = "none add mul max min", ["DepthToSpace.mode"] = "DCR CRD",
  ["SpaceToDepth.mode"] = "DCR CRD",
  ["GridSample.mode"] = "linear nearest cubic bilinear bicubic", ["Momentum.mode"] = "standard nesterov",
  ["Pad.mode"] = "constant reflect edge wrap", ["Resize.mode"] = "nearest linear cubic",
  ["RoiAlign.mode"] = "avg max", ["TensorScatter.mode"] = "linear circular", ["TfIdfVectorizer.mode"] = "TF IDF TFIDF",
  ["Upsample.mode"] = "nearest linear bilinear",
}
-- Attributes that a node must have.
local required = {
  BitShift = "direction", Cast = "to", BitCast = "to", ConcatFromSequence = "axis", DepthToSpace = "blocksize",
  Einsum = "equation", GRU = "hidden_size", GroupNormalization = "num_groups", LRN = "size", LSTM = "hidden_size",
  LinearAttention = "q_num_heads kv_num_heads", LinearClassifier = "coefficients", MaxRoiPool = "pooled_shape",
  Momentum = "alpha beta mode norm_coefficient", RNN = "hidden_size", RandomNormal = "shape", RandomUniform = "shape",
  Scan = "num_scan_inputs", SpaceToDepth = "blocksize",
  TfIdfVectorizer = "mode ngram_indexes ngram_counts max_skip_count min_gram_length max_gram_length",
  TreeEnsemble = "tree_roots nodes_modes nodes_splits nodes_featureids nodes_truenodeids nodes_trueleafs "
    .. "nodes_falsenodeids nodes_falseleafs leaf_targetids leaf_weights",
}
-- The number of first inputs that must be given, of operators that need another number than 1; `since`: from a version
-- on, {version, number}.
local least = {
  [0] = "Constant Optional OptionalHasElement RandomNormal RandomUniform SequenceEmpty Loop If Scan",
  [2] = [[
    Add AffineGrid And ArrayFeatureExtractor BitShift BitwiseAnd BitwiseOr BitwiseXor CastLike CausalConvWithState
    CenterCropPad Compress Conv ConvInteger ConvTranspose CumProd CumSum DequantizeLinear Div Equal Expand Gather
    GatherElements GatherND Gemm Greater GreaterOrEqual GridSample LayerNormalization Less LessOrEqual MatMul
    MatMulInteger MaxRoiPool MaxUnpool Mod Mul NegativeLogLikelihoodLoss NonMaxSuppression Or PRelu Pow QuantizeLinear
    RMSNormalization ReverseSequence STFT SequenceAt SequenceInsert SoftmaxCrossEntropyLoss Sub SwiGLU TensorScatter
    Tile Xor]],
  [3] = [[
    Attention Col2Im DeformConv FlexAttention GRU GroupNormalization InstanceNormalization LSTM LinearAttention OneHot
    RNN Range RoiAlign RotaryEmbedding Scatter ScatterElements ScatterND Where]],
  [5] = "BatchNormalization MelWeightMatrix", [8] = "QLinearConv QLinearMatMul",
}
local since = {Pad = {11, 2}, Reshape = {5, 2}, Slice = {10, 3}, TopK = {10, 2}, Unsqueeze = {13, 2}}

local kind_of, least_of = {}, {}
for _, kind in ipairs(kinds) do
  for name in kind[4]:gmatch "%S+" do kind_of[name] = kind end
end
for count, names in pairs(least) do
  for name in names:gmatch "%S+" do least_of[name] = count end
end

local function is_list_of(v, test)
  for i = 1, type(v) == "table" and #v or 0 do
    if not test(v[i]) then return false end
  end
  return type(v) == "table"
end

-- Returns the problem of an attribute, nil if there is none.
local function problem_of(op, name, v)
  local words, kind = choices[op .. "." .. name] or choices[name], kind_of[op .. "." .. name] or kind_of[name]
  if kind and not (kind[3] and is_list_of(v, kind[3]) or kind[2] and kind[2](v)) then
    return ("attribute '%s' must be %s, got %s"):format(name, kind[1], options.describe(v))
  elseif not kind and words and not is_text(v) or words and words ~= "" and is_text(v) and
    not (" " .. words .. " "):find(" " .. v .. " ", 1, true) then
    return ("attribute '%s' must be %s, got %s"):format(name, words == "" and "a text"
      or "one of '" .. words:gsub(" ", "', '") .. "'", is_text(v) and "'" .. printable_name(v, 60) .. "'" or
      options.describe(v))
  end
end

--- Fails if a node of ONNX's domains breaks a rule, with an error that names the node.
local function check(node)
  if node.domain == "com.microsoft" then return end
  for name, v in pairs(node.given) do
    local problem = problem_of(node.op, name, v)
    if problem then node:fail("%s", problem) end
  end
  for name in (required[node.op] or ""):gmatch "%S+" do
    if node.given[name] == nil then node:fail("attribute '%s' is missing", name) end
  end
  local count, later = least_of[node.op] or 1, since[node.op]
  if later and node.version >= later[1] then count = later[2] end
  for i = 1, count do
    if (node.inputs[i] or 0) == 0 then node:fail("input %d of at least %d is missing", i, count) end
  end
end

return check
