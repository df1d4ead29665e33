--- Fourier transforms of lines, the dim before the pairs. Complex numbers are pairs in a last dim of 2, as
--- torch.view_as_real shows them. float32 and float64.
local op = ...

op "fft_c2c" {
  "x", "inverse = false", "scale: number = 1", "dim: dim?",
  grad = {x = "fft_c2c(g, !inverse, scale, dim)"},
  autocast = "keep",
  help = "the discrete Fourier transform of lines of complex numbers, the pairs in x's last dim, along dim, by default "
    .. "the one before the pairs, times scale; inverse: with the other sign in the exponent",
}
op "fft_r2c" {
  "x", "scale: number = 1",
  grad = {x = "fft_c2r(fft_weighted(g, size_of(x)[-1], 0.5), size_of(x)[-1], scale)"},
  autocast = "keep",
  help = "the first n / 2 + 1 entries [..., n / 2 + 1, 2] of the transform of each line of x [..., n], times scale",
}
op "fft_c2r" {
  "x", "n: int", "scale: number = 1",
  grad = {x = "fft_weighted(fft_r2c(g, scale), n, 2)"},
  autocast = "keep",
  help = "lines of n real numbers from the first n / 2 + 1 entries of their transforms x [..., n / 2 + 1, 2]: the "
    .. "inverse transform, times scale",
}
