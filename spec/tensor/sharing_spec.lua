-- Results that share memory with an argument: only views, in-place writes, and functions that PyTorch lets return their
-- input. Every op and every public function that returns tensors is called, where possible with arguments that change
-- nothing (one repetition, padding of 0, a factor of 1): an implementation made of views then tends to return a view.
local lm = require "luminary"
local core = require "luminary.core"
local ffi = require "ffi"
local golden = require "spec.support.golden"
local rows = dofile "spec/op/op_cases.lua"

local F = lm.nn.functional
local device = os.getenv "LM_SPEC_DEVICE" or "cpu"

local function words(text)
  local set = {}
  for word in text:gmatch "%S+" do set[word] = true end
  return set
end

-- Returns where x's storage begins; nil for an empty tensor, which has no memory.
local function storage_of(x)
  if x:numel() == 0 then return nil end
  return tonumber(ffi.cast("intptr_t", x:data_ptr())) - x:storage_offset() * x:element_size()
end

local function tensors_in(values, into)
  for _, v in pairs(values) do
    if lm.is_tensor(v) then into[#into + 1] = v elseif type(v) == "table" then tensors_in(v, into) end
  end
  return into
end

-- Fails if a result shares memory with an argument, or an element of it with another.
local function check_copies(what, arguments, ...)
  local results = tensors_in({ ... }, {})
  assert(#results > 0, what .. " returned no tensor")
  for _, y in ipairs(results) do
    for _, x in ipairs(arguments) do
      local shared = storage_of(y) and storage_of(y) == storage_of(x)
      assert(not shared, what .. " returned a result that shares memory with an argument")
    end
    for d = 1, y.ndim do
      assert(y.shape[d] < 2 or y:stride(d) ~= 0, what .. " returned a result whose elements share memory")
    end
  end
end

-- ---- ops

-- Views, and what PyTorch too returns without a copy.
local views = words [[
  as_strided diagonal expand detach narrow permute select slice squeeze t transpose unfold unsqueeze view
]]
local may_share = words "contiguous dropout flatten reshape sum_to_size"

describe("an op that is no view", function()
  local function is_spec(v) return type(v) == "table" and v.tensor ~= nil end

  for _, row in ipairs(rows) do
    local name = row.name
    if not (views[name] or may_share[name] or name:sub(-1) == "_") then
      it(name .. " shares no memory with its inputs", function()
        local file, positional = golden.load(name), row.positional:match "%S+"
        for k = 1, #row do
          local options, inputs, first = {}, {}, nil
          for argument, value in pairs(row[k]) do
            local key = ("%d.float32.in.%s"):format(k, argument)
            if is_spec(value) then
              value = file[key]:to(device, { copy = true })
            elseif type(value) == "table" and is_spec(value[1]) then
              local list = {}
              for j = 1, #value do list[j] = file[key .. "." .. j]:to(device, { copy = true }) end
              value = list
            end
            tensors_in({ value }, inputs)
            if argument == positional then first = value else options[argument] = value end
          end
          local call = next(options) and { core.ops[name](first, options) } or { core.ops[name](first) }
          if #tensors_in(call, {}) > 0 then check_copies(("%s, case %d,"):format(name, k), inputs, call) end
        end
      end)
    end
  end
end)

-- ---- functions

-- Returns inputs of the calls below.
local function inputs()
  local t = {
    one = lm.rand { 1 }, row = lm.rand { 1, 4 }, v = lm.rand { 6 }, m = lm.rand { 4, 4 } + lm.eye(4) * 4,
    c = lm.rand { 1, 4, 4 },
    b = lm.rand { 1, 4, 4, 4 }, d = lm.rand { 1, 1, 4, 4, 4 }, n = lm.rand {},
    i = lm.arange(4, { dtype = "int64" }) + 1,
    ones = lm.ones { 4, 4 }:long(), rgb = lm.rand { 3, 4, 4 }, grey = lm.rand { 1, 4, 4 },
    mask = lm.ones { 4, 4 }:bool(),
    boxes = lm.tensor { { 0, 0, 2, 2 }, { 1, 1, 3, 3 } }, scores = lm.tensor { 0.5, 0.25 }, pair = lm.rand { 1, 3, 2 },
    bytes = lm.ones({ 3, 4, 4 }, { dtype = "uint8" }),
  }
  for name, x in pairs(t) do
    if name ~= "bytes" then t[name] = x:to(device) end -- files are encoded in host memory
  end
  return t
end

local function of(...)
  local names = { ... }
  return function(f, t)
    local given = {}
    for i, name in ipairs(names) do given[i] = t[name] or name end
    return f(unpack(given, 1, #names))
  end
end

-- Calls by name, or by library and name, one or several. Each gets the function and the inputs.
local calls = {
  -- repeated and rearranged
  repeat_tensor = {
    of("one", 1), of("row", 4, 1), of("v", 4, 1), of("m", 1, 1), of("m", 1, 1, 1), of("one", 3), of("n", 3),
    function(f, t) return f(t.v, { 2, 1, 1, 1, 1, 1, 1 }) end, function(f, t) return f(t.n, {}) end,
  },
  ["repeat"] = { of("v", 1), of("v", 4, 1) },
  tile = { of("one", 3), of("v", 1), of("v", 2, 1), of("m", 1), function(f, t) return f(t.v, {}) end },
  repeat_interleave = {
    of("row", 3, 1), of("one", 3), of("n", 3), of("v", 1), of("m", 1, 2), of("m", 1), of("c", 2, 1), of("v", 2),
    function(f, t) return f(t.i, lm.ones(4, { dtype = "int64", device = device })) end,
  },
  rot90 = { of("m", 0), of("m", 4), of("m", 1) }, fliplr = of "row", flipud = of "one", diag = { of "one", of "m" },
  diag_embed = of "one", diagflat = of "one",
  hstack = of "v", vstack = of "v", row_stack = of "v", dstack = of "v", column_stack = of("v"), block_diag = of "m",
  concat = function(f, t) return f { t.m } end, concatenate = function(f, t) return f { t.m } end,
  combinations = of("v", 1),
  -- indexed and written into a copy
  take = of("m", "ones"), take_along_dim = of("m", "ones", 1), masked_select = of("m", "mask"), argwhere = of "m",
  index_copy = of("m", 1, "i", "m"), index_fill = of("m", 1, "i", 2), index_reduce = of("m", 1, "i", "m", "amax"),
  masked_scatter = of("m", "mask", "m"), put = function(f, t) return f(t.m, t.i, t.i:float()) end,
  select_scatter = of("one", "n", 1, 1), slice_scatter = of("m", "m"),
  diagonal_scatter = function(f, t) return f(t.m, t.i:float()) end,
  as_strided_scatter = function(f, t) return f(t.m, t.m, { 4, 4 }, { 4, 1 }) end,
  constant_pad_nd = function(f, t) return f(t.m, { 0, 0 }, 0) end, fill = of("m", 1),
  -- elementwise
  clamp_max = of("m", 9), clamp_min = of("m", -9), float_power = of("m", 1), mvlgamma = of("m", 1),
  -- sorted, counted, averaged
  bincount = of "i", corrcoef = of "m", cov = of "m", diff = { of("v", 0), of("v", 1) }, histc = of("v"),
  histogram = of("v", 3),
  isin = of("i", "i"), max = { of "n", of("row", 1), of("n", "n") }, min = { of "n", of("row", 1), of("n", "n") },
  median = { of "n", of("row", 1) }, nanmedian = { of "n", of("row", 1) }, mode = of("row", 1),
  quantile = of("one", 0.5),
  nanquantile = of("one", 0.5), unique = of "one", unique_consecutive = of "one", renorm = of("m", 2, 1, 1000),
  trapezoid = of "m", trapz = of "m", cumulative_trapezoid = of "m", std_mean = of "m", var_mean = of "m",
  unravel_index = function(f, t) return f(t.i, { 4 }) end,
  -- products and matrices
  inner = of("v", "v"), kron = { of("one", "one"), of("m", "one") }, linear_sum_assignment = of "m",
  tensordot = of("m", "m", 1), cdist = of("m", "m"),
  pdist = of "m",
  chain_matmul = of("m", "m"), multi_dot = function(f, t) return f { t.m, t.m } end, dist = of("m", "m"),
  matrix_power = { of("m", 1), of("m", 2), of("m", 0), of("m", -1) }, matrix_exp = of "m", pinverse = of "m",
  pinv = of "m",
  svd = of "m", qr = of "m", lu = of "m", lu_factor = of "m", vander = { of("v", 1), of("v", 2) }, inv = of "m",
  lu_solve = function(f, t)
    local lu, pivots = lm.lu(t.m)
    return f(t.m, lu, pivots)
  end,
  ["linalg.lu_solve"] = function(f, t)
    local lu, pivots = lm.lu(t.m)
    return f(lu, pivots, t.m)
  end,
  cond = of "m", eigh = of "m", eigvalsh = of "m", lstsq = of("m", "m"), matrix_norm = of "m", matrix_rank = of "m",
  solve = of("m", "m"),
  solve_triangular = function(f, t) return f(t.m, t.m, { upper = true }) end, svdvals = of "m", tensorinv = of("m", 1),
  tensorsolve = function(f, t) return f(t.m, t.m[1]) end, vecdot = of("m", "m"), vector_norm = of "n",
  -- Fourier transforms
  stft = function(f, t) return f(t.v, 4) end,
  istft = function(f, t) return f(lm.stft(t.v, 4), 4) end,
  fft = of "pair", fft2 = of "pair", fftn = of "pair", ifft = of "pair", ifft2 = of "pair", ifftn = of "pair",
  hfft = of "pair", hfft2 = of "pair", hfftn = of "pair", ihfft = of "row", ihfft2 = of "row", ihfftn = of "row",
  rfft = of "row", rfft2 = of "row", rfftn = of "row", irfft = of "pair", irfft2 = of "pair", irfftn = of "pair",
  conjugate = of "pair", ["fft.multiply"] = of("pair", "pair"),
  fftshift = { of "one", of "m" }, ifftshift = { of "one", of "m" }, fftfreq = of(4), rfftfreq = of(4),
  hann_window = of(4), hamming_window = of(4), blackman_window = of(4), bartlett_window = of(4), kaiser_window = of(4),
  -- made
  tensor = of "m", new_tensor = of("m", "m"), new_empty = of("m", 2), new_full = of("m", { 2 }, 1),
  new_ones = of("m", 2), new_zeros = of("m", 2),
  new_empty_strided = function(f, t) return f(t.m, { 2 }, { 1 }) end,
  empty_strided = function(f) return f({ 2 }, { 1 }) end,
  scalar_tensor = of(1), logspace = of(1, 2, 3), tril_indices = of(3, 3), triu_indices = of(3, 3),
  frombuffer = function(f) return f("abcd", { dtype = "uint8" }) end,
  -- layers' functions
  adaptive_avg_pool1d = of("c", 4), adaptive_avg_pool3d = of("d", 4), adaptive_max_pool1d = of("c", 4),
  adaptive_max_pool3d = of("d", 4),
  avg_pool1d = of("c", 1), avg_pool3d = of("d", 1), max_pool1d = of("c", 1), max_pool3d = of("d", 1),
  lp_pool1d = of("c", 1, 1), lp_pool2d = of("b", 1, 1),
  lp_pool3d = of("d", 1, 1),
  affine_grid = function(f) return f(lm.eye(2, 3, { device = device }):unsqueeze(1), { 1, 1, 2, 2 }) end,
  bilinear = function(f, t) return f(t.m, t.m, lm.ones({ 2, 4, 4 }, { device = device })) end,
  binary_cross_entropy_with_logits = of("m", "m"), channel_shuffle = { of("b", 1), of("b", 4), of("b", 2) },
  pixel_shuffle = { of("b", 1), of("b", 2) }, pixel_unshuffle = { of("b", 1), of("b", 2) },
  conv1d = of("c", "c"), conv3d = of("d", "d"),
  conv_transpose1d = function(f, t) return f(t.c, t.c:transpose(1, 2)) end,
  conv_transpose2d = function(f, t) return f(t.b, t.b:transpose(1, 2)) end, conv_transpose3d = of("d", "d"),
  ctc_loss = function(f, t) return f(t.m:unsqueeze(2), t.ones[1]:view(1, 4) * 2, { 4 }, { 1 }) end,
  embedding_bag = function(f, t) return f(t.ones, t.m) end, fold = function(f, t) return f(t.c, { 2, 2 }, 1) end,
  fractional_max_pool3d = function(f, t) return f(t.b:unsqueeze(1), 1, { output_size = { 1, 2, 2 } }) end,
  fractional_max_pool2d = function(f, t) return f(t.b, 1, { output_size = { 3, 3 } }) end, glu = of "m",
  gumbel_softmax = of "m", instance_norm = of "c",
  interpolate = {
    function(f, t) return f(t.b, { size = { 4, 4 } }) end,
    function(f, t) return f(t.b, { scale_factor = 1, mode = "bilinear" }) end,
    function(f, t) return f(t.b, { size = { 4, 4 }, mode = "area" }) end,
    function(f, t) return f(t.b, { size = { 4, 4 }, mode = "bicubic" }) end,
  },
  upsample = function(f, t) return f(t.b, { scale_factor = 1 }) end,
  upsample_bilinear = function(f, t) return f(t.b, { scale_factor = 1 }) end,
  upsample_nearest = function(f, t) return f(t.b, { scale_factor = 1 }) end,
  linear_cross_entropy = {
    function(f, t) return f(t.m, t.m, t.ones[1]) end,
    function(f, t) return f(t.m, t.m, t.ones[1], { reduction = "none", chunk_size = 1 }) end,
  },
  local_response_norm = of("b", 1), logsigmoid = of "m", normalize = of "m", rrelu = of "m",
  max_unpool1d = function(f, t) return f(t.c, lm.ones({ 1, 4, 4 }, { device = device }):long():cumsum(3), 1) end,
  max_unpool3d = function(f, t) return f(t.d, lm.arange(64, { device = device }):reshape(1, 1, 4, 4, 4) + 1, 1) end,
  multilabel_margin_loss = of("m", "ones"), triplet_margin_with_distance_loss = of("m", "m", "m"),
  -- images
  make_grid = {
    of "m", of "grey", of "rgb", function(f, t) return f { t.grey } end,
    function(f, t) return f(t.rgb:unsqueeze(1)) end,
    function(f, t) return f(t.grey:unsqueeze(1)) end,
  },
  batched_nms = function(f, t) return f(t.boxes, t.scores, t.i:narrow(1, 1, 2), 0.5) end,
  nms = of("boxes", "scores", 0.5), box_area = of "boxes",
  box_convert = of("boxes", "xyxy", "xyxy"), box_iou = of("boxes", "boxes"), generalized_box_iou = of("boxes", "boxes"),
  clip_boxes_to_image = function(f, t) return f(t.boxes, { 9, 9 }) end, remove_small_boxes = of("boxes", 0),
  roi_align = function(f, t) return f(t.b, { t.boxes }, 2) end,
  encode_png = of "bytes", encode_jpeg = of "bytes", encode_webp = of "bytes",
}

-- Returned as they are, or as a view of the argument: what PyTorch does too, or what their text says.
local shared = {
  lm = words [[
    as_tensor asarray atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cartesian_prod chunk dsplit
    einsum hsplit keep meshgrid moveaxis movedim positive ravel resize_as_ split split_with_sizes swapaxes swapdims
    tensor_split unbind unflatten vsplit dist
  ]],
  tensors = words [[
    bfloat16 bool broadcast_to byte char chunk cpu cuda double dsplit expand_as float half hsplit int long moveaxis
    movedim pin_memory positive ravel reshape_as short split split_with_sizes swapaxes swapdims tensor_split to type
    type_as unbind unflatten view_as vsplit register_hook
  ]],
  ["nn.functional"] = words "alpha_dropout dropout1d dropout2d dropout3d feature_alpha_dropout",
  linalg = {}, fft = {}, vision = {},
}
-- Return no tensor, make one of Lua numbers, or return what a function of the caller returns.
local others = {
  lm = words [[
    allclose are_deterministic_algorithms_enabled autocast broadcast_shapes can_cast checkpoint empty_cache
    enable_grad equal finfo get_autocast_dtype get_default_device get_default_dtype get_device
    get_float32_matmul_precision get_num_threads get_printoptions get_rng_state getenv grad help iinfo
    inference_mode initial_seed is_autocast_enabled is_floating_point is_grad_enabled is_nonzero is_signed is_tensor
    live_tensors load manual_seed max_memory_allocated max_memory_reserved memory_allocated memory_reserved no_grad
    numel op_list promote_types quantize repr reset_peak_memory_stats result_type save scope seed set_default_device
    set_default_dtype set_float32_matmul_precision set_grad_enabled set_num_threads set_printoptions set_rng_state
    async set_async send_part poll compile prepare graph memory_snapshot profile record_function record_memory_history
    set_warnings setenv summary synchronize time try_all_gpus try_gpu Generator use_deterministic_algorithms
    BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor ShortTensor
  ]],
  tensors = words [[
    allclose backward data_ptr dim element_size equal free get_device is_contiguous is_floating_point is_nonzero
    is_pinned is_shared is_signed item ndimension nelement numel record_stream register_post_accumulate_grad_hook
    retain_grad size storage_offset storage_size stride tolist totable
  ]],
  ["nn.functional"] = {}, linalg = {},
  fft = {},
  vision = words [[decode_gif decode_image open_image read_file read_image save_image write_file write_jpeg write_png
    write_webp]],
}
local libraries = { lm = lm, tensors = core.methods, ["nn.functional"] = F, linalg = lm.linalg, fft = lm.fft,
vision = lm.vision }

-- Returns the names of a library's functions that are no ops, those loaded at need among them.
local function functions_of(room)
  local library, of_op, names = libraries[room], {}, {}
  for name, f in pairs(core.ops) do of_op[f], of_op[name], of_op[name:gsub("^linalg_", "")] = true, true, true end
  local later = (getmetatable(library) or {}).lazy
  for name in pairs(later and later() or {}) do local _ = library[name] end
  for name, f in pairs(library) do
    local called = calls[room .. "." .. name] or calls[name]
    local known = of_op[f] or of_op[name] or shared[room][name] or others[room][name]
    if type(f) == "function" and name:sub(-1) ~= "_" and (called or not known) then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

describe("a function that makes a tensor", function()
  for room, library in pairs(libraries) do
    for _, name in ipairs(functions_of(room)) do
      it(("%s.%s shares no memory with its arguments"):format(room, name), function()
        local list = calls[room .. "." .. name] or calls[name]
        assert(list,
        ("%s.%s has no call in spec/tensor/sharing_spec.lua, which tries all that make a tensor"):format(room, name))
        for k, call in ipairs(type(list) == "table" and list or { list }) do
          local t = inputs()
          check_copies(("%s, call %d,"):format(name, k), tensors_in(t, {}), call(library[name], t))
        end
      end)
    end
  end
end)

describe("repeated rows", function()
  it("are written one by one", function()
    local row = lm.arange(3):float():to(device)
    local rows_ = row:repeat_tensor(4, 1)
    rows_[1]:fill_(9)
    assert.same({ 0, 1, 2 }, row:totable())
    assert.same({ { 9, 9, 9 }, { 0, 1, 2 }, { 0, 1, 2 }, { 0, 1, 2 } }, rows_:totable())
    rows_:add_(1)
    assert.same({ 1, 2, 3 }, rows_[4]:totable())
  end)
end)
