--- Loads families/*.lua, which define every op once, and describes an entry. The build writes argument structs,
--- descriptors, scalar functions and loops for the CPU, rows for CUDA, gradients and calls for formulas;
--- op/entries/generate.lua lists the files.
---
--- An entry's name is followed by its arguments in order: first those that may be passed by position, then in braces
--- those passed by name only: op "gelu(x, {approximate: approximate = none})". The forms are name, name: kind and
--- name: kind = default; a ? makes an argument optional:
---
---   x               a tensor; weight? or nothing        lm_tensor *, NULL if left out
---   m: mask         a tensor of bool                    lm_tensor *
---   other: scalar   a tensor or a number (made 0-d)     lm_tensor *
---   xs: tensors     a list of tensors; "tensors or nil" may have holes       lm_list
---   p: number       double; number?: NaN if left out, so NaN cannot be passed
---   k: int          int64_t; int?: LM_NO_INT if left out
---   b = false       bool                                s: pair   int64_t[2], of a number or a pair; pair?: LM_NO_INT
---   p: padding      as a pair, or "valid" (0) or "same" (both LM_PAD_SAME)
---   d: dim          int64_t from 0; dim?: LM_NO_DIM     d: dims?  lm_ints; n = -1 if left out
---   s: size         lm_ints, of numbers or one table    p: pads         lm_pads, twice as many
---   dtype: dtype?, device: device?    LM_NO_DTYPE, LM_NO_DEVICE
---   m: reduction = mean    int, one of a choice's names    g: generator?    lm_generator *, NULL: the device's default
---
--- kind        left out: lm_op_<name>, in op/ or written from `operands`, checks and allocates, and a backend's kernel
---             computes; `elementwise` or `formula` replaces both. "view": shares x's storage, has no kernel.
---             "write": writes into its first tensor and returns it; counts as an in-place write. "new": makes a
---             tensor from no tensor. "composite": composed of other ops, by lm_composite_<name> in autograd/ if a
---             formula cannot express it.
--- kernel      a call of a family, whose function and kernel run the op under the op's own name
--- results     number of tensors that a caller sees, 1 by default; `hidden` more are for the gradient only. With
---             `operands` the list of both
--- operands    requirements on tensors, from which lm_op_<name> is written; only a kernel is needed then. See below
--- zeros       with operands: a condition under which results are 0 and the kernel is not called
--- host        with operands: the CPU computes if the device has no kernel
--- compute     with operands: lm_compute_<this>(frame, args) replaces the kernel
--- elementwise the value of one element. Tensors come first among the arguments, then numbers. It may call functions
---             and other ops of one element; both sides of ? : && || are computed, so that loops vectorize. NaN
---             propagates wherever it does in PyTorch. `name_` writes in place.
--- formula     the op as a formula of others, or lines of "name = formula" and then one formula for each result
--- needs       {condition, message} rows, checked at each call: an error if the condition is false, or with
---             `warn = true` a warning. In a message {x} is x's sizes, {p} a number; any formula is allowed
--- forms       calls that become calls of other ops: `when`, a condition, with a formula or its lines, and its own
---             `needs`. The formula's last op works in place if the call does
--- result_dtype  dtypes of an elementwise op. "float": integers become floating; "bool": tests; "number": bool becomes
---             int64; an argument's name: its dtype; left out: the common dtype of the inputs except masks
--- takes       "integers": an elementwise op that refuses floating inputs, and may use & | ^ ~ << >>
--- divisor_arg  the argument that must not be 0 for integers
--- integral_arg  the number that must be integral for integers
--- bool        advice in the error for bool, if the op is not defined for it
--- writes      arguments that are written beside the results; `when`: only if that argument is true
--- grad        a formula for each tensor argument that may require a gradient, so that double backward and every
---             backend need no more code; recording for another argument is an error. In it g is the gradient of the
---             result (g1 of the second), y the result (y1, y2 those after it, hidden ones too), nil an undefined
---             (zero) gradient, which every op passes on, size_of(x) the sizes of x, is_transposed(x) true if that
---             matrix has dense columns, as its gradient then must, given(x) true if an optional x was passed. For an
---             elementwise op a formula of such ops is also one fused kernel. For several arguments, "x, weight": one
---             call has all of their gradients as results. For a list: the gradient of its tensor number `at`. Tensors
---             that a formula uses are saved for it. more: a second gradient of the result on a GPU, or nil, which the
---             formula adds to g itself; otherwise backward has added it. "none": no gradient. "formula": for an op
---             with a kernel and a formula, recorded as the ops of the formula. A `formula` alone is recorded as its
---             ops, with `grad` as one op.
---             The engine sums a gradient to the argument's shape if that was broadcast, casts it to its dtype, and
---             checks versions. Formulas are PyTorch's (tools/autograd/derivatives.yaml), also where the gradient is a
---             convention: ties, 0 and NaN.
--- autocast    casts of floating inputs (except float64), as in PyTorch: "lower": to the autocast dtype; "keep":
---             to float32; "keep_result": none, but the result is float32 (in_kept_dtype and in_result_dtype_of in
---             formulas); "keep_gpu": to float32 except on the CPU, where PyTorch's kernels compute low dtypes in
---             float32 anyway; "banned_gpu": an error except on the CPU, there to float32; "widest": to the widest of
---             them; left out: none (elementwise ops promote by themselves)
--- flops       the floating-point operations of a call: for matrix products, convolutions and attention 2 for each
---             multiply-add, as in PyTorch's FlopCounterMode. A formula of numel_of(x) and size_of(x)[k], entry k from
---             1 or from the end, where x is an argument or y, the first result; left out: none are counted
--- widens      true: with half-precision tensors the op's formula, unless one of its forms applies, and those of its
---             gradients are computed in float32 and rounded once, to the dtype of all tensors, or of
---             those in a list. Kernels and elementwise ops do so by themselves
--- values      what the values of tensors decide beside the results': "shape": the shape of a result; "mask": that, if
---             a mask is in its list; "fail": whether it fails, beyond integers that are out of range
--- index_below  {index, x, dim}: tensor `index` holds numbers from 1 to the size of x's dim, so that a compiled step
---             can tell before the op runs that it does not fail
--- draws       true for an op that draws random numbers, or the bool or number that makes it draw some, if true or
---             above 0. An op with a generator draws in any case
--- internal    true for ops that only the library's functions use: lists of ops leave them out
---
--- In formulas over tensors (`formula`, `forms`, `grad`) ops have their defaults and dims count from 0. Tensors and
--- numbers have arithmetic operators, a @ b is a matrix product, x.T transposes matrices, ? : is `where` for tensors
--- and a choice for numbers. [1, 2] is a list of sizes, dims or tensors; size_of(x)[1] an entry from 1, or [-1] from
--- the end; reduction == 'mean' compares a choice. Other names are functions of autograd/formulas.h: given(weight),
--- ndim_of(x), is_float(x), reduced(loss, reduction), …
---
--- Operands are checked, and bind names of sizes, in the order of their list. "x: [N, C, H, W] float preserve" is an
--- argument, its shape and words. Arguments of kind size have shapes alone. A number has bounds: "at least 1",
--- "above 0", "from 1 to C", "a number". A row "name(…)" calls at that point lm_check_name(op, …) of
--- op/operand_checks.h, for conditions that shapes do not express; it computes unbound names (OH, at...), and may
--- replace &name.
---
---   [N, C]          sizes; a bound name must be equal. C+ is at least 1, 1|N is 1 or N, N? a batch dim that may be
---                   left out, in results too; 5, 2 * n or an argument is that size
---   [N, at..., D]   at is any number of sizes; [...] without a name; [*, m, n] batches that broadcast: operands are
---                   expanded to the common batch
---   float           floating; real: float32 or float64; matrix: real, not too large; not_bool; float_or_int;
---                   float_or_int64; index: integers, which become int64 that nobody else writes to
---   of x, int64     x's dtype, or that one; stat of x: that of statistics, float64 for float64, otherwise float32;
---                   of x or stat of x: either
---   like x          sizes, dtype and layout of x
---   preserve        contiguous or channels-last; dense: without gaps; strided: unchanged; private: contiguous, and
---                   nobody else writes to it; as x: in x's format; layout(f): by lm_layout_f; default: contiguous
---   in float32      converted to that dtype, or by lm_f_dtype(x) for `in f(x)`; results are converted from it
---   flat rows       the view that the kernel gets: [numel], or a matrix of the last dim
---   on_host         a CPU tensor on every device
---
--- Results: "y: [N, K] of x", with `as`, `in`, `rows`, `like` as above. as f(x): in lm_f_format(x); near x: in x's
--- layout if sizes are equal; columns: column-major matrices, columns(c) if c is true. "… if c" is NULL if c is false,
--- "… if c else [0]" has those sizes then.
---
--- A family is the common part of several ops: the arguments of lm_op_<family>(op, args, out), which checks and
--- allocates for the op that is called, and of one kernel of the backend. It is no op itself. Its `results` are the
--- kernel's, its `writes` the arguments that the kernel writes besides; with `operands` that function is written too.
---
--- Shapes in help: N batch, C channels, H, W.
local entries = require "luminary.base.entry_reader"

local blocks = require "luminary.block_kinds"

local list, op = entries.of("op", {
  kind = "string?", kernel = "string?", results = "number|table?",
  hidden = "number?", operands = "table?", zeros = "string?", host = "boolean?", compute = "string?",
  elementwise = "string?", formula = "table|string?", needs = "table?", forms = "table?", result_dtype = "string?",
  takes = "string?", divisor_arg = "string?", integral_arg = "string?", bool = "string?", writes = "table?",
  grad = "table|string?", autocast = "string?", flops = "string?", widens = "boolean|table?",
  values = "string?", draws = "boolean|string?", index_below = "table?", internal = "boolean?", help = "string",
}, true)

local families, family = entries.of("family", {
  results = "number|table?", writes = "table?", operands = "table?", zeros = "string?", host = "boolean?",
  help = "string",
}, true)
list.families = families

--- Names of the numbers 0, 1, …, and C's names for those.
list.choices = {
  reduction = {"none", "mean", "sum", enum = {"LM_NONE", "LM_MEAN", "LM_SUM"}},
  divergence_reduction = {"none", "mean", "sum", "batchmean"},
  rounding_mode = {"none", "floor", "trunc", enum = {"LM_EXACT", "LM_FLOOR", "LM_TRUNC"}},
  pad_mode = {
    "constant", "reflect", "replicate", "circular",
    enum = {"LM_PAD_CONSTANT", "LM_PAD_REFLECT", "LM_PAD_REPLICATE", "LM_PAD_CIRCULAR"},
  },
  statistic = {
    "sum", "nansum", "prod", "mean", "var", "norm", "logsumexp", "amax", "amin", "all", "any", "count_nonzero",
    enum = {
      "LM_STATISTIC_SUM", "LM_STATISTIC_NANSUM", "LM_STATISTIC_PROD", "LM_STATISTIC_MEAN", "LM_STATISTIC_VAR",
      "LM_STATISTIC_NORM", "LM_STATISTIC_LOGSUMEXP", "LM_STATISTIC_AMAX", "LM_STATISTIC_AMIN", "LM_STATISTIC_ALL",
      "LM_STATISTIC_ANY", "LM_STATISTIC_COUNT_NONZERO", "LM_STATISTICS",
    },
  },
  scan_kind = {"sum", "product", "max", "min", "logsumexp", "recurrence"}, -- kinds in the order of kernels/scan_kinds.h
  softmax_kind = { -- kinds in the order of kernels/reduce_kinds.h
    "softmax", "log_softmax", "softmax_backward", "log_softmax_backward",
  },
  distribution = { -- distributions in the order of kernels/fill.h
    "uniform", "normal", "log_normal", "exponential", "cauchy", "geometric", "bernoulli", "integers",
    enum = {
      "LM_DRAW_UNIFORM", "LM_DRAW_NORMAL", "LM_DRAW_LOG_NORMAL", "LM_DRAW_EXPONENTIAL", "LM_DRAW_CAUCHY",
      "LM_DRAW_GEOMETRIC", "LM_DRAW_BERNOULLI", "LM_DRAW_INTEGERS", "LM_DISTRIBUTIONS",
    },
  },
  approximate = {"none", "tanh"},
  activation = { -- names of elementwise ops
    "none", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "hardsigmoid", "hardswish",
    enum = {
      "LM_ACTIVATION_NONE", "LM_ACTIVATION_SIGMOID", "LM_ACTIVATION_TANH", "LM_ACTIVATION_SILU", "LM_ACTIVATION_GELU",
      "LM_ACTIVATION_GELU_TANH", "LM_ACTIVATION_HARDSIGMOID", "LM_ACTIVATION_HARDSWISH",
    },
  },
  grid_mode = {"bilinear", "nearest", "bicubic"}, -- modes in the order of kernels/grid_taps.h
  grid_padding = {"zeros", "border", "reflection"},
  scatter_writing = {"replace", "add", "multiply"},
  scatter_reduction = {"sum", "prod", "mean", "amax", "amin"},
  fold = { -- begins with scatter_reduction
    "sum", "prod", "mean", "amax", "amin", "replace",
    enum = {"LM_FOLD_SUM", "LM_FOLD_PROD", "LM_FOLD_MEAN", "LM_FOLD_AMAX", "LM_FOLD_AMIN", "LM_FOLD_REPLACE"},
  },
  memory_format = {"preserve", "contiguous", "channels_last"},
  padding = {"valid", "same"},
  recurrent_cell = {
    "rnn_tanh", "rnn_relu", "gru", "lstm", enum = {"LM_RNN_TANH", "LM_RNN_RELU", "LM_GRU", "LM_LSTM"},
  },
  side = {"none", "left", "right", enum = {"LM_SIDE_NONE", "LM_SIDE_LEFT", "LM_SIDE_RIGHT"}},
  triangle = {"L", "U"},
  qr_mode = {"reduced", "complete", "r", enum = {"LM_QR_REDUCED", "LM_QR_COMPLETE", "LM_QR_R"}},
  lstsq_driver = {"gelsy", "gels", "gelsd", "gelss", enum = {"LM_GELSY", "LM_GELS", "LM_GELSD", "LM_GELSS"}},
  block_kind = {}, -- kinds of lua/luminary/block_kinds.lua, in its order
  fft_norm = {"backward", "ortho", "forward", enum = {"LM_FFT_BACKWARD", "LM_FFT_ORTHO", "LM_FFT_FORWARD"}},
}

for i, kind in ipairs(blocks) do list.choices.block_kind[i] = kind.name end

--- The ops, a file for each family.
local here = debug.getinfo(1, "S").source:match "^@(.*)/"
for _, name in ipairs {
  "elementwise", "reductions", "ordering", "products", "indexing", "scattering", "blocks", "convolution", "resampling",
  "normalization", "attention", "recurrent", "losses", "views", "flip_roll_pad", "creation", "linalg", "fourier",
  "random",
} do
  assert(loadfile(("%s/families/%s.lua"):format(here, name)))(op, family)
end

--- Names for several ops: the first, or that for a `number` or a `tensor` as second argument; or with a true `option`.
list.overloads = {
  max = {"amax", number = "max_dim", tensor = "maximum"},
  max_pool2d = {"max_pool2d", option = "return_indices", with = "max_pool2d_with_indices"},
  median = {"median_all", number = "median_dim"},
  min = {"amin", number = "min_dim", tensor = "minimum"},
  nanmedian = {"nanmedian_all", number = "nanmedian_dim"},
}

return list
