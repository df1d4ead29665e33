--- Lists the names that PyTorch has and Luminary lacks, with the reason for each:
---
---   python scripts/dev/missing_names.py > names.txt       (with a Python that has torch)
---   luajit scripts/dev/missing_names.lua names.txt
---
--- A name counts as there under its own spelling, and in place (add_) where the op is there. Ends with 1 where a name
--- has no reason, and where a name that many programs use is left out.
local lm = require "luminary"

local libraries = {
  {"torch", lm}, {"Tensor", lm.zeros {1, 1}}, {"nn", lm.nn}, {"nn.functional", lm.nn.functional},
  {"nn.init", lm.nn.init},
  {"nn.utils", lm.nn.utils}, {"optim", lm.optim}, {"optim.lr_scheduler", lm.optim.lr_scheduler},
  {"linalg", lm.linalg}, {"fft", lm.fft}, {"distributions", lm.distributions},
}

-- Names that are left out as a group, by patterns: what they are, and why. The first group that fits counts.
local groups = {
  {"sparse tensors, which are not in this version", [[sparse spmm smm$ spaddmm saddmm ^crow_ ^ccol_ ^col_ind ^row_ind
    coalesce ^indices ^values dense to_padded segment_reduce is_nested]]},
  {"quantized tensors, which are not in this version", [[quant ^q_ qscheme fbgemm int_repr choose_qparams scaled_.*mm
    grouped_mm]]},
  {"complex dtypes are not in this version; lm.fft returns pairs", [[complex conj ^real$ ^imag$ isreal polar angle
    cdouble cfloat chalf ^mH$ ^H$ adjoint _neg$ ^eig$ ^eigvals$ view_as_real]]},
  {"inner functions of PyTorch's and its backends'", [[cudnn mkldnn miopen ^native_ vulkan ^batch_norm_ _with_indices$
    ^convolution$ conv_tbc ^unsafe_ embedding_renorm ^grid_sampler affine_grid_generator norm_except_dim ^sym_
    slice_inverse hash_tensor ^feature_ ^instance_norm$ ^rrelu ^alpha_dropout ^bilinear$ ^rnn_ ^gru ^lstm has_torch
    _torch_function boolean_dispatch assert_int multi_head_attention_forward Base$ classproperty profiler_ ^parse_
    import_ir unify_type merge_type thread_safe prepare_multi get_file_path module_load init_num ^is_storage
    compiled_with is_distributed is_same_size reinforce is_set_to output_nr const_data_ptr grad_dtype dim_order
    CrossMapLRN2d NLLLoss2d Container LinearCrossEntropy]]},
  {"other devices than this library's", "ipu xla maia mps mtia xpu get_device_module is_meta"},
  {"copies; the view has a name, and clone() copies", "_copy$ narrow_copy"},
  {"Python's and the compiler's: LuaJIT compiles by itself", [[^compile$ ^fork$ ^wait$ ^Optional$ ^Literal$ while_loop
    ^cond$ ^vmap$ typename as_subclass ^numpy$ from_numpy frombuffer dlpack from_file storage ^name$]]},
  {"autocast's state; lm.autocast(…, f) is scoped", "autocast"},
  {"inference mode: no_grad", "inference"},
  {"classes of parameters without sizes: those of Lazy layers are empty at first", "^Uninitialized"},
  {"to come", "AdaptiveLogSoftmax"},
  {"deprecated in PyTorch", [[symeig ^solve$ ^lstsq$ ^matrix_rank$ ^ger$ ^new$ volatile ^eye$ ^uniform$ ^normal$
    ^constant$ ^dirac$ ^xavier_ ^kaiming_ ^orthogonal$ ^sparse$ ^clip_grad_norm$ ^range$ set_default_tensor_type]]},
}

-- Names left out one by one; after a colon how many of 76 public repositories use it, where any does. What COMMON or
-- more use may not be left out so.
local COMMON = 4
local reasons = {}
for reason, names in pairs {
  ["has another name or form here: help and the error about it say which"] = [[index resize resize_as
    ctc_loss embedding_bag is_cpu:1 grad_fn grad layout empty_permuted retains_grad frobenius_norm
    nuclear_norm]],
  ["determinism: kernels here are deterministic except those that docs/explain/promises.md names"] = [[
    is_deterministic_algorithms_warn_only_enabled set_deterministic_debug_mode get_deterministic_debug_mode]],
  ["a setting of PyTorch's runtime that has no counterpart"] = [[set_flush_denormal get_num_interop_threads
    set_num_interop_threads set_warn_always
    is_warn_always_enabled set_anomaly_enabled is_anomaly_enabled is_anomaly_check_nan_enabled]],
  ["rare, and made of other ops in a line or two"] = [[gradient nonzero_static histogramdd
    convert_conv2d_weight_memory_format convert_conv3d_weight_memory_format Buffer]],
  ["not in this version"] = [[frexp nextafter nextafter_ i0 i0_ geqrf
    orgqr ormqr householder_product lobpcg pca_lowrank svd_lowrank cholesky_ex inv_ex lu_factor_ex solve_ex ldl_factor
    ldl_factor_ex ldl_solve matrix_sqrth SparseAdam]],
} do
  for entry in names:gmatch "%S+" do
    local name, uses = entry:match "^([^:]+):?(%d*)$"
    reasons[name] = reason
    if (tonumber(uses) or 0) >= COMMON then error(("%s is used by %s: it must exist here"):format(name, uses)) end
  end
end

local function reason_of(name)
  if reasons[name] then return reasons[name] end
  for _, group in ipairs(groups) do
    for pattern in group[2]:gmatch "%S+" do
      if name:find(pattern) then return group[1], true end
    end
  end
end

local function has(library, name)
  local ok, value = pcall(function() return library[name] end)
  return ok and value ~= nil
end

local theirs = {}
for line in io.lines(arg[1]) do
  local library, name = line:match "^(%S+) (%S+)$"
  theirs[library] = theirs[library] or {}
  table.insert(theirs[library], name)
end

local unexplained, alone = 0, {}
for _, row in ipairs(libraries) do
  local title, library = unpack(row)
  local by_reason, order, count = {}, {}, 0
  for _, name in ipairs(theirs[title] or {}) do
    if not has(library, name) and not has(library, (name:gsub("_$", ""))) then
      local reason, grouped = reason_of(name)
      if not grouped then alone[name] = true end
      reason = reason or "NO REASON"
      if not by_reason[reason] then by_reason[reason], order[#order + 1] = {}, reason end
      table.insert(by_reason[reason], name)
      count = count + 1
      if reason == "NO REASON" then unexplained = unexplained + 1 end
    end
  end
  print(("%s: %d of %d"):format(title, #(theirs[title] or {}) - count, #(theirs[title] or {})))
  table.sort(order)
  for _, reason in ipairs(order) do
    print(("  %s (%d): %s"):format(reason, #by_reason[reason], table.concat(by_reason[reason], " ")))
  end
end
local singles = 0
for _ in pairs(alone) do singles = singles + 1 end
print(("%d names beside the groups are missing, %d without a reason"):format(singles, unexplained))
os.exit(unexplained == 0 and 0 or 1, true)
