--- Defines ops of matrices whose rows are quantized blocks, uint8 [rows, bytes of a row]; lua/luminary/block_kinds.lua
--- has the kinds.
local op = ...

op "block_linear(x, weight, bias?, kind: block_kind = q8_0)" {
  operands = {
    "weight: [K, B] uint8", "blocks(B, kind, D)", "x: [at..., D] float in float32 rows", "bias: [K] float in float32",
  },
  results = {"y: [at..., K] of x in float32 rows"}, host = true,
  forms = { -- float64 has no kernel of its own, nor have many rows on a GPU
    {
      when = "(is_float(x) && epsilon_of(x) < 1e-10) || (!on_cpu(x) && numel_of(x) > 16 * size_of(x)[-1])",
      "linear(x, in_dtype_of(expand_blocks(weight, kind), x), in_dtype_of(bias, x))",
    },
  },
  grad = {x = "block_linear_input(g, weight, kind)", bias = "g"},
  autocast = "lower", flops = "2 * numel_of(y) * size_of(x)[-1]",
  help = "Applies a linear layer with a weight of quantized blocks.",
}
op "block_linear_input(grad, weight, kind: block_kind = q8_0)" {
  operands = {"weight: [K, B] uint8", "blocks(B, kind, D)", "grad: [at..., K] float in float32 rows"},
  results = {"y: [at..., D] of grad in float32 rows"}, host = true,
  forms = {
    {when = "is_float(grad) && (epsilon_of(grad) < 1e-10 || !on_cpu(grad))",
      "linear(grad, in_dtype_of(t(expand_blocks(weight, kind)), grad))"},
  },
  grad = {grad = "block_linear(g, weight, nil, kind)"}, flops = "2 * numel_of(y) * size_of(grad)[-1]",
  internal = true, help = "gradient of block_linear's x: grad times the expanded weight",
}
op "block_rows(index, weight, kind: block_kind = q8_0)" {
  operands = {"weight: [V, B] uint8", "blocks(B, kind, D)", "index: [at...] index flat"},
  results = {"rows: [at..., D] float32 rows"}, grad = "none",
  forms = {{when = "!on_cpu(weight)", "expand_blocks(embedding(index, weight), kind)"}},
  index_below = {"index", "weight", 1},
  help = "Returns the rows of a matrix of quantized blocks at the given indices, as float32.",
}
op "expand_blocks(x, kind: block_kind = q8_0)" {
  operands = {"x: [at..., B] uint8 rows", "blocks(B, kind, D)"}, results = {"y: [at..., D] float32 rows"},
  host = true, grad = "none", help = "Returns the numbers of quantized blocks, as float32.",
}
op "quantize_blocks(x, kind: block_kind = q8_0)" {
  operands = {"x: [at..., D] float in float32 rows", "elements_of_blocks(D, kind, B)"},
  results = {"y: [at..., B] uint8 rows"}, host = true, grad = "none",
  help = "Rounds numbers to quantized blocks.",
}
