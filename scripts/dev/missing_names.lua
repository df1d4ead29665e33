--- What PyTorch has and Luminary has not, with the reason for each name:
---
---   python scripts/dev/missing_names.py > names.txt       (with a Python that has torch)
---   luajit scripts/dev/missing_names.lua names.txt
---
--- Fails where a name has no reason, or where one that many programs use is missing.
local lm = require "luminary"

local libraries = {
  torch = lm, Tensor = lm.zeros {1}, nn = lm.nn, ["nn.functional"] = lm.nn.functional, ["nn.init"] = lm.nn.init,
  ["nn.utils"] = lm.nn.utils, optim = lm.optim, ["optim.lr_scheduler"] = lm.optim.lr_scheduler, linalg = lm.linalg,
  fft = rawget(getmetatable(lm).lazy(), "fft") and lm.fft or {}, distributions = lm.distributions,
}

-- Groups of names that are left out, by patterns of which one has to be found in the name; the first group counts.
local groups = {
  {"sparse tensors", "sparse spmm smm$ dsmm saddmm sspaddmm crow_ ccol_ ^col_indices ^row_indices coalesce ^indices "
    .. "^values dense to_padded segment_reduce is_nested"},
  {"quantized tensors", "quant ^q_ qscheme fbgemm int_repr choose_qparams scaled_ grouped_mm"},
  {"complex dtypes", "complex conj ^real$ ^imag$ isreal polar angle cdouble cfloat chalf ^mH$ ^H$ adjoint resolve_neg "
    .. "is_neg eig$ eigvals$ ^fft$x"},
  {"inner functions of PyTorch's backends", "cudnn mkldnn miopen ^native_ vulkan batch_norm_ _with_indices$ "
    .. "^convolution$ conv_tbc constant_pad_nd ^unsafe_ embedding_renorm ^grid_sampler affine_grid_generator "
    .. "norm_except_dim sym_ slice_inverse hash_tensor"},
  {"other devices", "ipu xla maia mps mtia xpu get_device_module"},
  {"copies where the view has a name: x:t():clone()", "_copy$ detach_copy"},
  {"TorchScript, the compiler, Python's own machinery", "^parse_ import_ir fork ^wait$ compile classproperty unify_type "
    .. "merge_type thread_safe profiler_ prepare_multi torch_function boolean_dispatch assert_int handle_torch Optional "
    .. "Literal while_loop ^vmap$ init_num_threads is_storage typename as_subclass module_load get_file_path"},
}
