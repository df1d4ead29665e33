--- Defines Fourier transforms along one dim, of float32 and float64. Complex numbers are pairs in a last dim of 2, as
--- torch.view_as_real returns them.
local op = ...

op "fft_c2c(x, inverse = false, scale: number = 1, dim: dim?)" {
  grad = {x = "fft_c2c(g, !inverse, scale, dim)"},
  autocast = "keep", internal = true,
  help = "the discrete Fourier transform of lines of complex numbers, the pairs in x's last dim, along dim, by default "
    .. "the one before the pairs, times scale; inverse: with the other sign in the exponent",
}
op "fft_r2c(x, scale: number = 1, inner: number = 1)" {
  operands = {"x: [..., n+] real"}, results = {"y: [..., n / 2 + 1, 2] of x"}, host = true,
  grad = {x = "fft_c2r(g, size_of(x)[-1], scale, inner / 2)"},
  autocast = "keep", internal = true,
  help = "the first n / 2 + 1 entries [..., n / 2 + 1, 2] of the transform of each line of x [..., n], times scale; "
    .. "those that stand for two entries, all but the first and for even n the last, also times inner",
}
op "fft_r2c_2d(x, scale: number = 1)" {
  operands = {"x: [..., m+, n+] real"}, results = {"y: [..., m, n / 2 + 1, 2] of x"}, host = true,
  forms = {
    {when = "!on_cpu(x) && ndim_of(x) >= 2 && numel_of(x) > 0", "fft_c2c(fft_r2c(x, scale), false, 1, ndim_of(x) - 2)"},
  },
  grad = "formula",
  formula = "fft_c2c(fft_r2c(x, scale), false, 1, ndim_of(x) - 2)",
  autocast = "keep", internal = true,
  help = "of matrices x [..., m, n] fft_r2c along the rows and then fft_c2c down the columns, times scale: "
    .. "[..., m, n / 2 + 1, 2]",
}
op "fft_c2r(x, n: int, scale: number = 1, inner: number = 1)" {
  operands = {"n: at least 1", "x: [..., n / 2 + 1, 2] real layout(transposed)"}, results = {"y: [..., n] of x"},
  host = true,
  grad = {x = "fft_r2c(g, scale, 2 * inner)"},
  autocast = "keep", internal = true,
  help = "lines of n real numbers from the first n / 2 + 1 entries of their transforms x [..., n / 2 + 1, 2]: the "
    .. "inverse transform, times scale; inner as of fft_r2c",
}
op "stft_lines(x, window, hop: int, scale: number = 1, inner: number = 1)" {
  operands = {"x: [batch, samples] real", "window: [n+] of x", "hop: at least 1", "samples(samples, n)"},
  results = {"y: [batch, (samples - n) / hop + 1, n / 2 + 1, 2] of x"}, host = true,
  grad = {
    x = "overlap_add(fft_c2r(g, numel_of(window), scale, inner / 2), window, hop, size_of(x)[2])",
    window = "sum(unfold(x, 1, numel_of(window), hop) * fft_c2r(g, numel_of(window), scale, inner / 2), [0, 1])",
  },
  autocast = "keep",
  internal = true,
  help = "fft_r2c of frames that begin hop samples apart in the lines x [batch, n], each times window [n_fft]: "
    .. "[batch, frames, n_fft / 2 + 1, 2]",
}
op "overlap_add(frames, window, hop: int, length: int)" {
  operands = {
    "frames: [batch, count, n+] real", "window: [n] of frames", "hop: at least 1", "overlap(count, n, hop, length)",
  },
  results = {"y: [batch, length] of frames"}, host = true,
  grad = {
    frames = "unfold(g, 1, numel_of(window), hop) * window",
    window = "sum(unfold(g, 1, numel_of(window), hop) * frames, [0, 1])",
  },
  autocast = "keep",
  internal = true,
  help = "frames [batch, count, n], each times window [n], added where they stand in lines [batch, length], hop "
    .. "samples apart; length must hold that number of frames",
}
local pairs_shape = "to have shape [..., 2], real and imaginary parts"
op "fft_multiply(x, other, conjugate = false)" {
  needs = {
    {"ndim_of(x) > 0 && size_of(x)[-1] == 2", "expected x " .. pairs_shape .. ", got {x}"},
    {"ndim_of(other) > 0 && size_of(other)[-1] == 2", "expected other " .. pairs_shape .. ", got {other}"},
    {"is_float(x)", "x must be float32 or float64, got {dtype_of(x)}"},
    {"is_float(other)", "other must be float32 or float64, got {dtype_of(other)}"},
  },
  forms = {
    {
      when = "!on_cpu(x) && !on_cpu(other)",
      "re1 = select(x, -1, 1)",
      "im1 = select(x, -1, 2)",
      "re2 = select(other, -1, 1)",
      "im2 = select(other, -1, 2)",
      "re = addcmul(re1 * re2, im1, im2, conjugate ? 1 : -1)",
      "im = addcmul(im1 * re2, re1, im2, conjugate ? -1 : 1)",
      "stack([re, im], -1)",
    },
  },
  grad = {
    x = "fft_multiply(g, other, !conjugate)",
    other = "conjugate ? fft_multiply(x, g, true) : fft_multiply(g, x, true)",
  },
  autocast = "keep",
  internal = true,
  help = "the product of complex numbers, pairs in the last dim; the other dims broadcast. conjugate: with the "
    .. "conjugates of other's",
}
