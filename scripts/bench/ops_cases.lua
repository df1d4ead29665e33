-- luacheck: no max line length
-- What scripts/bench/ops measures: the inputs of both sides, and expressions of them.
--
-- An input is {kind, size ...}: "uniform" between 0.05 and 0.95, "normal", "spd" (symmetric, positive definite),
-- "bool", "integer" and the other dtypes of whole numbers (from 1 to 100), "index HIGH" (positions among HIGH, from 1
-- here and from 0 there), "sorted", "shuffled" and "shuffled32" (whole numbers below 1e9, of 8 and of 4 bytes).
-- An expression is Lua; PyTorch's is the same by the rules of scripts/bench/ops, or stands behind "|".
-- "grad NAME ..." before ":" says of which inputs the backward pass returns gradients; without it none is run.
--
-- cases.input(lm, name [, device, rows]) makes an input. With rows those of [1000, 1000] and [1000, 1], which
-- cases.has_rows(name) reports, have that many rows instead. cases.compile(expression, env) is a function that
-- evaluates an expression. cases.each(f) calls f(grads, expression, group) for every line, expression being Lua's.
local cases = {}

cases.inputs = {
  u = {"uniform", 1000, 1000}, v = {"uniform", 1000, 1000}, w = {"uniform", 1000, 1000}, n = {"normal", 1000, 1000},
  row = {"uniform", 1000}, column = {"uniform", 1000, 1},
  c = {"uniform", 8, 64, 2048}, k64 = {"uniform", 64},
  i = {"int64", 1000, 1000}, j = {"int64", 1000, 1000}, i32 = {"int32", 1000, 1000}, j32 = {"int32", 1000, 1000},
  i8 = {"int8", 1000, 1000}, j8 = {"int8", 1000, 1000}, u8 = {"uint8", 1000, 1000}, v8 = {"uint8", 1000, 1000},
  i16 = {"int16", 1000, 1000}, j16 = {"int16", 1000, 1000}, small = {"shift", 1000, 1000},
  b = {"bool", 1000, 1000}, h = {"bool", 1000, 1000},
  ix = {"index 1000", 1000, 1000}, ix1 = {"index 1000", 1000}, ixall = {"index 1000000", 1000, 1000},
  permutation = {"permutation", 1000},
  long = {"uniform", 1000000}, m = {"uniform", 1000, 1000}, sorted = {"sorted", 10000}, repeats = {"int64", 10000},
  batch = {"uniform", 64, 128, 128}, batch2 = {"uniform", 64, 128, 128}, three = {"uniform", 330000, 3},
  three2 = {"uniform", 330000, 3}, points = {"uniform", 1000, 64}, points2 = {"uniform", 1000, 64},
  few = {"uniform", 500, 32}, vec = {"uniform", 1000}, kr1 = {"uniform", 32, 32}, kr2 = {"uniform", 32, 32},
  s256 = {"spd", 256, 256}, s512 = {"spd", 512, 512}, g256 = {"normal", 256, 256}, sb = {"spd", 1000, 4, 4},
  rhs = {"normal", 512, 16}, rhsb = {"normal", 1000, 4, 2}, tall = {"normal", 512, 128}, tallrhs = {"normal", 512, 4},
  img = {"normal", 8, 16, 96, 96}, x1 = {"normal", 8, 64, 2048}, x3 = {"normal", 4, 16, 16, 32, 32},
  grid = {"grid", 8, 96, 96, 2}, theta = {"uniform", 8, 2, 3}, un = {"normal", 8, 144, 9216}, half = {"normal", 8, 16, 48, 48},
  w1 = {"normal", 64, 64, 3}, w2 = {"normal", 16, 32, 3, 3}, w3 = {"normal", 32, 16, 3, 3, 3},
  t1 = {"normal", 64, 64, 3}, t3 = {"normal", 16, 16, 2, 2, 2}, k16 = {"uniform", 16}, k16b = {"uniform", 16},
  lines = {"normal", 4096, 256}, pairs = {"normal", 4096, 129, 2}, cpairs = {"normal", 4096, 128, 2},
  audio = {"normal", 8, 131072}, hann = {"hann", 512}, spec = {"normal", 8, 257, 1025, 2}, fimg = {"normal", 16, 256, 256},
  pm = {"sign", 1000, 1000}, pmrow = {"sign", 1000}, hot = {"zeroone", 1000, 1000}, labels = {"index 1000", 1000},
  emb = {"normal", 10000, 100}, words = {"index 10000", 1000, 10},
  counts = {"shift", 1000000}, dice = {"uniform", 8, 16, 2},
  -- 4 M elements, more than the caches hold, and 32 K, which they do.
  big = {"uniform", 2048, 2048}, big2 = {"uniform", 2048, 2048}, bigrow = {"uniform", 2048}, bigcol = {"uniform", 2048, 1},
  four = {"uniform", 64, 64, 32, 32}, half1 = {"bfloat16", 2048, 2048}, half2 = {"bfloat16", 2048, 2048},
  hrow = {"bfloat16", 2048}, f16 = {"float16", 2048, 2048}, g16 = {"float16", 2048, 2048},
  b8 = {"int8", 2048, 2048}, c8 = {"int8", 2048, 2048}, b16 = {"int16", 2048, 2048}, c16 = {"int16", 2048, 2048},
  b64 = {"int64", 2048, 2048}, bigix = {"index 2048", 2048, 2048}, bigix1 = {"index 2048", 2048},
  some = {"uniform", 128, 256}, some2 = {"uniform", 128, 256}, somerow = {"uniform", 256}, somecol = {"uniform", 128, 1},
  somei = {"int64", 32768}, manyi = {"shuffled", 4194304}, many32 = {"shuffled32", 4194304}, many = {"normal", 4194304},
  a256 = {"normal", 256, 256}, a384 = {"normal", 384, 384}, a512 = {"normal", 512, 512}, a1024 = {"normal", 1024, 1024},
  one1024 = {"normal", 1, 1024}, eight1024 = {"normal", 8, 1024}, thin = {"normal", 65536, 64}, thin2 = {"normal", 65536, 64},
  few32 = {"normal", 32, 768}, w768 = {"normal", 3072, 768}, bias3072 = {"normal", 3072},
  m64 = {"normal", 256, 64, 64}, m64b = {"normal", 256, 64, 64}, x64 = {"normal", 8, 64, 56, 56},
  x256 = {"normal", 8, 256, 56, 56}, x128 = {"normal", 8, 128, 28, 28}, stem = {"normal", 8, 3, 224, 224},
  k33 = {"normal", 64, 64, 3, 3}, k11 = {"normal", 64, 256, 1, 1}, k11b = {"normal", 256, 64, 1, 1}, k55 = {"normal", 64, 64, 5, 5},
  k33d = {"normal", 128, 128, 3, 3}, k77 = {"normal", 64, 3, 7, 7}, kd = {"normal", 256, 1, 3, 3}, kt = {"normal", 128, 64, 2, 2},
  heads = {"normal", 8, 8, 256, 64}, one = {"normal", 1, 2, 1500, 64}, scores = {"normal", 100, 16, 50}, letters = {"index 49", 16, 20},
  x2 = {"normal", 100000, 2}, x3k = {"normal", 66667, 3}, x4 = {"normal", 50000, 4}, x10 = {"normal", 20000, 10},
  x16 = {"normal", 12500, 16}, x32 = {"normal", 6250, 32}, x33 = {"normal", 6060, 33}, x50 = {"normal", 4000, 50},
  x100 = {"normal", 2000, 100}, r2 = {"normal", 2}, r3 = {"normal", 3}, r10 = {"normal", 10}, r16 = {"normal", 16},
  r33 = {"normal", 33}, r50 = {"normal", 50}, r100 = {"normal", 100}, l10 = {"normal", 1, 10}, l32 = {"normal", 1, 32},
  one1 = {"normal", 1}, l10b = {"normal", 3, 10}, three3 = {"normal", 3}, m22 = {"normal", 2, 2},
  bm2 = {"normal", 1000, 2, 2}, bm3 = {"normal", 1000, 3, 3}, bm4 = {"normal", 1000, 4, 4}, bm8 = {"normal", 1000, 8, 8},
  bm16 = {"normal", 1000, 16, 16}, bv2 = {"normal", 1000, 2, 1}, bv3 = {"normal", 1000, 3, 1}, bv4 = {"normal", 1000, 4, 1},
  bv8 = {"normal", 1000, 8, 1}, bv16 = {"normal", 1000, 16, 1}, sb16 = {"spd", 1000, 16, 16},
  z32 = {"normal", 64, 32, 1, 1}, t32 = {"normal", 32, 64, 7, 7}, z100 = {"normal", 64, 100, 1, 1},
  t100 = {"normal", 100, 128, 4, 4}, z1 = {"normal", 1, 32, 1, 1},
  c10 = {"normal", 32, 10, 200}, w10 = {"normal", 16, 10, 3},
  spd1024 = {"spd", 1024, 1024}, rhs1024 = {"normal", 1024, 64}, tokens = {"normal", 2048, 768}, k768 = {"normal", 768},
}

-- Inputs made of others.
local LAST = '%s:contiguous({memory_format = "channels_last"})|%s.contiguous(memory_format=torch.channels_last)'
cases.derived = {
  spans = 'lm.full({16}, 100, {dtype = "int64"})|torch.full((16,), 100)',
  spells = 'lm.full({16}, 20, {dtype = "int64"})|torch.full((16,), 20)',
  bags = 'lm.arange(1, 10001, 10, {dtype = "int64"})|torch.arange(0, 10000, 10)',
  d256 = "a256:double()|a256.double()", d512 = "a512:double()|a512.double()",
  h512 = "a512:bfloat16()|a512.bfloat16()", h1024 = "a1024:bfloat16()|a1024.bfloat16()", htokens = "tokens:bfloat16()|tokens.bfloat16()",
  dx3 = "x3k:double()|x3k.double()", dr3 = "r3:double()|r3.double()", dbm4 = "bm4:double()|bm4.double()",
  hx32 = "x32:bfloat16()|x32.bfloat16()", hr32 = "k768:narrow(1, 1, 32):bfloat16()|k768[:32].bfloat16()",
  hx50 = "x50:bfloat16()|x50.bfloat16()", hr50 = "r50:bfloat16()|r50.bfloat16()",
  h768 = "k768:bfloat16()|k768.bfloat16()",
  l64 = LAST:format("x64", "x64"), l256 = LAST:format("x256", "x256"), l128 = LAST:format("x128", "x128"),
  lstem = LAST:format("stem", "stem"),
  pooled = "select(2, F.max_pool2d(img, 2, {return_indices = true}))|F.max_pool2d(img, 2, return_indices=True)[1]",
}

cases.list = [[
# elementwise
grad u: u:abs()
grad u: u:ceil()
grad u: u:cos()
grad u: u:deg2rad()
grad u: u:erf()
grad u: u:exp()
grad u: u:expm1()
grad u: u:floor()
grad u: u:log()
grad u: u:log1p()
grad u: u:neg()
grad u: u:rad2deg()
grad u: u:reciprocal()
grad u: u:round()
grad u: u:rsqrt()
grad u: u:sigmoid()
grad u: u:sign()
grad u: u:sin()
grad u: u:sinc()
grad u: u:sqrt()
grad u: u:square()
grad u: u:tanh()
grad u: u:trunc()
grad u: u:polygamma(1)|torch.polygamma(1, u)
grad u: u:round({decimals = 2})|u.round(decimals=2)
grad u v: u - v
grad u v: u * v
grad u v: u / v
grad u v: u ^ v|u ** v
grad u: u ^ 3|u ** 3
grad u v: u:maximum(v)
grad u v: u:minimum(v)
grad u v: u:fmax(v)
grad u v: u:fmin(v)
grad u v: u:logaddexp2(v)
u:ldexp(small)
u:ge(v)
u:gt(v)
u:le(v)
u:ne(v)
u:isnan()
u:isneginf()
u:isposinf()
u:signbit()
grad u: u:clamp(0.2, 0.8)
grad u v w: u:clamp(v, w)
grad u: 2 - u
u:fill_(0.5)
w:copy_(v)
m:zero_()
grad u: u:log2()
grad u: u:log10()
grad u: u:tan()
grad u: u:asin()
grad u: u:acos()
grad u: u:atan()
grad u: u:sinh()
grad u: u:cosh()
grad u: u:asinh()
grad u: (u + 1):acosh()
grad u: u:atanh()
grad u: u:erfc()
grad u: u:erfinv()
grad u: u:lgamma()
grad u: u:digamma()
grad u: u:exp2()
grad u: u:logit()
grad n: n:frac()
grad n: n:nan_to_num()
u:isfinite()
u:isinf()
u:isclose(v)
grad u v: u:atan2(v)
grad u v: u:xlogy(v)
grad u v: u:hypot(v)
grad u n: u:copysign(n)
grad u v: u:logaddexp(v)
grad u v: u:fmod(v)
grad u v: u:remainder(v)
n:heaviside(u)
u:floor_divide(v)
grad u v: u:lerp(v, 0.3)
grad u v w: u:lerp(v, w)
grad u v w: u:addcmul(v, w)
grad u v w: u:addcdiv(v, w)
grad u: u + row
grad u: u * column
grad u: u / column
# whole numbers
i:gcd(j)
i:lcm(j)
b:logical_not()
b:logical_or(h)
b:logical_xor(h)
i + j
i * j
i:bitwise_and(j)
i:bitwise_xor(j)
i:bitwise_not()
i:bitwise_left_shift(small)
i:bitwise_right_shift(small)
i:remainder(j)
i:floor_divide(j)
i32 + j32
i32 * j32
i32:bitwise_or(j32)
i16 + j16
i16 * j16
i16:lt(j16)
i8 + j8
i8 * j8
i8:eq(j8)
i8:clamp(3, 20)
u8 + v8
u8:bitwise_xor(v8)
u8:float()
b:logical_and(h)
# activations
grad n: F.relu(n)
grad n: F.relu6(n)
grad n: F.leaky_relu(n)
grad n: F.silu(n)
grad n: F.gelu(n)
grad n: F.gelu(n, {approximate = "tanh"})
grad n: F.softplus(n)
grad n: F.logsigmoid(n)
grad n: F.softmax(n, {dim = -1})
grad n: F.log_softmax(n, {dim = -1})
F.dropout(n, 0.1)
grad n: F.elu(n)
grad n: F.selu(n)
grad n: F.celu(n)
grad n: F.softsign(n)
grad n: F.hardtanh(n)
grad n: F.hardsigmoid(n)
grad n: F.hardswish(n)
grad n: F.mish(n)
grad n: F.prelu(n, row)
grad n: F.rrelu(n)
grad n: F.glu(n)
grad n: F.softmin(n, {dim = -1})
grad n: F.hardshrink(n)
grad n: F.softshrink(n)
grad n: F.tanhshrink(n)
grad n: F.threshold(n, 0.1, 0)
# reductions
grad u: u:sum()
grad u: u:sum(-1)
grad u: u:sum(1)|u.sum(0)
grad u: u:mean(-1)
grad u: u:amin(-1)
u:argmin(-1)
grad u: u:max(-1)|u.max(-1)[0]
grad u: u:min(-1)|u.min(-1)[0]
grad u: u:std(-1)
grad u: u:logsumexp(-1)
grad u: u:cummin(-1)
grad u: u:median()
grad u: u:nanmedian()
grad u: u:msort()
b:nonzero()
F.one_hot(labels, 1000)
grad u: u:prod(-1)
b:any()
b:all()
b:any(-1)
grad u: u:cumsum(-1)
grad u: u:cumsum(-2)
i:cumsum(-1)
grad u: u:cumprod(-1)
grad u: u:cummax(-1)
grad u: u:logcumsumexp(-1)
grad u: u:diff()
grad u: u:median(-1)
grad u: u:nanmedian(-1)
grad u: u:kthvalue(100, -1)
i:mode(-1)
grad u: u:quantile(0.3, -1)
n:count_nonzero()
u:aminmax()
grad u: u:nansum()
grad u: u:nanmean(-1)
grad u: u:norm(2, -1)
grad u: u:var(-1)
u:histc(100)
i:flatten():bincount()
i:unique()
i:flatten():unique_consecutive()
lm.searchsorted(sorted, u)
lm.bucketize(u, sorted)
grad u: u:sort(-1)
grad u: u:sort(-2)
i:sort(-1)
u:argsort(-1)
# products
grad u v: u:mm(v)
grad u v: u:addmm(v, v)
grad batch: batch[1]:addbmm(batch, batch2)|batch[0].addbmm(batch, batch2)
grad batch batch2: batch:bmm(batch2)
grad heads: F.scaled_dot_product_attention(heads, heads, heads)
grad one: F.scaled_dot_product_attention(one, one, one)
grad u vec: u:mv(vec)
grad long: long:dot(long)
grad vec row: vec:outer(row)
grad batch batch2: batch:baddbmm(batch, batch2)
grad vec: vec:addmv(u, row)
grad u: u:addr(vec, row)
grad batch batch2: lm.einsum("bij,bjk->bik", batch, batch2)
grad u v: lm.einsum("ij,ij->i", u, v)
grad batch: lm.tensordot(batch, batch2[1], 1)|torch.tensordot(batch, batch2[0], 1)
grad kr1 kr2: kr1:kron(kr2)
grad three three2: three:cross(three2, -1)
grad points: lm.cdist(points, points2)
grad points: lm.cdist(points, points2, 1)
grad few: F.pdist(few)
grad u: u:trace()
# linalg
lm.linalg.eigvalsh(s256)
lm.linalg.svdvals(s256)
grad s512: lm.linalg.lu_factor(s512)
grad s512 rhs: lm.linalg.solve_triangular(s512, rhs, {upper = true})
grad s512: lm.logdet(s512)
grad s512: lm.cholesky_inverse(s512)
grad rhs s512: lm.cholesky_solve(rhs, s512)
grad u: lm.linalg.norm(u)
grad u: lm.linalg.vector_norm(u, 3)
grad s512: lm.linalg.inv(s512)
grad s512: lm.linalg.det(s512 / 100)
grad s512: lm.linalg.slogdet(s512)
grad s512 rhs: lm.linalg.solve(s512, rhs)
grad s512: lm.linalg.cholesky(s512)
grad tall: lm.linalg.qr(tall)
grad s256: lm.linalg.svd(s256)
grad s256: lm.linalg.eigh(s256)
grad tall tallrhs: lm.linalg.lstsq(tall, tallrhs)
grad tall: lm.linalg.pinv(tall)
grad s256: lm.linalg.matrix_power(s256, 5)
grad sb: lm.linalg.inv(sb)
grad sb rhsb: lm.linalg.solve(sb, rhsb)
grad sb: lm.linalg.cholesky(sb)
grad sb: lm.linalg.det(sb)
# indices
grad u v: u:scatter(-1, ix, v)
grad u v: u:scatter_add(-1, ix, v)
grad u v: u:scatter_add(-2, ix, v)
grad u v: u:scatter_reduce(-1, ix, v, "amax")
grad u v: u:scatter_reduce(-2, ix, v, "mean")
grad u v: u:index_add(1, ix1, v)|u.index_add(0, ix1, v)
grad u v: u:index_copy(1, permutation, v)|u.index_copy(0, permutation, v)
grad u: u:index_fill(1, ix1, 0.5)|u.index_fill(0, ix1, 0.5)
grad u v: u:index_reduce(1, ix1, v, "amax")|u.index_reduce(0, ix1, v, "amax")
grad u: u:index_select(1, ix1)|u.index_select(0, ix1)
grad u: u:gather(-1, ix)
grad u: u:masked_select(b)
grad u: u:masked_fill(b, 0)
grad u v: u:masked_scatter(b, v)
grad u: u:take(ixall)
grad u: u:take_along_dim(ix, -1)
grad u: u[ix1]
grad u: u:tril()
grad u: u:triu()
grad long: long:view(1000, 1000):diagonal()
grad u: u:narrow(1, 1, 100):diag_embed():sum(-1)|torch.diag_embed(u[:100]).sum(-1)
grad u: u:flip(-1)|u.flip(-1)
grad u: u:flip(1, 2)|u.flip(0, 1)
grad u: u:roll(7, -1)
grad u: u:rot90()
grad row: row:repeat_interleave(1000)
grad long: long:repeat_interleave(2)
grad long: long:repeat_interleave(counts)
grad u: u:tile(2, 2)
lm.meshgrid({vec, row}, {indexing = "ij"})[1]:contiguous()|torch.meshgrid(vec, row, indexing="ij")[0].contiguous()
grad u: u:t():contiguous()
grad u: F.pad(u, {3, 3, 3, 3})
grad img: F.pad(img, {3, 3, 3, 3}, "reflect")
grad img: F.pad(img, {3, 3, 3, 3}, "replicate")
grad img: F.pad(img, {3, 3, 3, 3}, "circular")
grad img: F.pixel_shuffle(img, 4)
grad img: F.pixel_unshuffle(img, 4)
grad img: F.channel_shuffle(img, 4)
emb:put_(words, words:float())|emb.put_(words, words.float())
long:multinomial(10000)
long:multinomial(10000, true)
grad emb: F.embedding(words, emb)
grad emb: F.embedding_bag(words, emb)
grad emb: F.embedding_bag(words:flatten(), emb, {offsets = bags, mode = "sum"})
# images
grad img: F.interpolate(img, {scale_factor = 2, mode = "nearest"})
grad img: F.interpolate(img, {scale_factor = 2, mode = "bilinear"})
grad img: F.interpolate(img, {scale_factor = 2, mode = "bicubic"})
grad img: F.interpolate(img, {scale_factor = 0.5, mode = "area"})
grad img: F.interpolate(img, {scale_factor = 0.4, mode = "bilinear", antialias = true})
grad img grid: F.grid_sample(img, grid, {align_corners = false})
grad img grid: F.grid_sample(img, grid, {mode = "bicubic", align_corners = false})
F.grid_sample(img, grid, {mode = "nearest", align_corners = false})
grad theta: F.affine_grid(theta, {8, 1, 96, 96}, {align_corners = false})
grad x1 w1: F.conv1d(x1, w1, {padding = 1})
grad x3 w3: F.conv3d(x3, w3, {padding = 1})
grad x1 t1: F.conv_transpose1d(x1, t1, {stride = 2})
grad img w2: F.conv_transpose2d(img, w2, {stride = 2})
grad x3 t3: F.conv_transpose3d(x3, t3, {stride = 2})
grad img: F.unfold(img, 3, {padding = 1})
grad un: F.fold(un, {96, 96}, 3, {padding = 1})
grad x1: F.max_pool1d(x1, 2)
grad x1: F.avg_pool1d(x1, 2)
grad x3: F.max_pool3d(x3, 2)
grad x3: F.avg_pool3d(x3, 2)
grad img: F.max_pool2d(img, 3, {stride = 2, padding = 1})
grad img: F.avg_pool2d(img, 3, {stride = 2, padding = 1})
grad img: F.adaptive_avg_pool2d(img, 7)
grad img: F.adaptive_max_pool2d(img, 7)
grad img: F.lp_pool2d(img, 2, 2)
grad img: F.fractional_max_pool2d(img, 2, {output_size = 48})
grad half: F.max_unpool2d(half, pooled, 2)
# norms
grad c: F.local_response_norm(c, 5)
grad c k64: F.group_norm(c, 8, k64, k64)
grad c: F.instance_norm(c)
grad n row: F.rms_norm(n, {1000}, row)
grad n row: F.layer_norm(n, {1000}, row, row)
grad n: F.normalize(n, {dim = -1})
grad u v: F.cosine_similarity(u, v, {dim = -1})
grad u v: F.pairwise_distance(u, v)
# Fourier transforms
grad lines: lm.fft.rfft(lines)|torch.view_as_real(torch.fft.rfft(lines))
grad pairs: lm.fft.irfft(pairs)|torch.fft.irfft(torch.view_as_complex(pairs))
grad cpairs: lm.fft.fft(cpairs)|torch.view_as_real(torch.fft.fft(torch.view_as_complex(cpairs)))
grad fimg: lm.fft.rfft2(fimg)|torch.view_as_real(torch.fft.rfft2(fimg))
grad long: lm.fft.rfft(long)|torch.view_as_real(torch.fft.rfft(long))
grad audio: lm.stft(audio, 512, {hop_length = 128, window = hann})|torch.view_as_real(audio.stft(512, 128, window=hann, return_complex=True))
grad spec: lm.istft(spec, 512, {hop_length = 128, window = hann})|torch.istft(torch.view_as_complex(spec), 512, 128, window=hann)
lm.hann_window(100000)
# losses
grad u: F.mse_loss(u, v)
grad u: F.nll_loss(u, labels)
grad n: F.cross_entropy(n, labels)
grad scores: F.ctc_loss(scores, letters + 1, spans, spells)
grad u: F.l1_loss(u, v)
grad u: F.smooth_l1_loss(u, v)
grad u: F.huber_loss(u, v)
grad u: F.binary_cross_entropy(u, v)
grad n: F.binary_cross_entropy_with_logits(n, v)
grad u: F.kl_div(u, v, {reduction = "batchmean"})
grad u: F.hinge_embedding_loss(u, pm)
grad u v: F.margin_ranking_loss(u, v, pm)
grad u v: F.cosine_embedding_loss(u, v, pmrow)
grad u v: F.triplet_margin_loss(u, v, w)
grad u: F.poisson_nll_loss(u, v)
grad u w: F.gaussian_nll_loss(u, v, w)
grad u: F.multi_margin_loss(u, labels)
grad n: F.multilabel_soft_margin_loss(n, hot)
grad n: F.soft_margin_loss(n, pm)
# draws
lm.randint(0, 100, {1000, 1000})|torch.randint(0, 100, (1000, 1000))
lm.randperm(1000000)
n:geometric_(0.5)
n:log_normal_()
n:cauchy_()
F.dropout(n, 0.5)
u:bernoulli()
lm.normal(n, u)
lm.poisson(u)
n:exponential_()
n:normal_()
n:uniform_()
n:random_(0, 100)
lm.randn(2048, 2048)
lm.rand(2048, 2048)
# made
lm.arange(1000000)
lm.eye(1000)
lm.full({1000, 1000}, 2)|torch.full((1000, 1000), 2.0)
lm.linspace(0, 1, 1000000)
lm.ones(1000, 1000)
lm.zeros(1000, 1000)
lm.empty(1000, 1000)
# views
u:t()
u:view(-1)
u:reshape(500, 2000)
u:unsqueeze(1)|u.unsqueeze(0)
u:select(1, 5)|u.select(0, 5)
u:narrow(1, 3, 9)|u.narrow(0, 2, 9)
u[5]|u[4]
row:expand(1000, 1000)
u:detach()
u:as_strided({9, 9}, {2, 3})
# memory
big:clone()
big:t():contiguous()
four:permute(1, 3, 4, 2):contiguous()|four.permute(0, 2, 3, 1).contiguous()
four:permute(1, 3, 2, 4):contiguous()|four.permute(0, 2, 1, 3).contiguous()
four:permute(4, 3, 2, 1):contiguous()|four.permute(3, 2, 1, 0).contiguous()
half1:t():contiguous()
b8:t():contiguous()
b64:t():contiguous()
big:to("bfloat16")|big.to(torch.bfloat16)
big:to("float16")|big.to(torch.float16)
half1:float()
b8:float()
b64:float()
big:to("int64")|big.to(torch.int64)
big + big2
big * 2
big:relu()
big:exp()
big + bigrow
big + bigcol
half1 + half2
half1 * 2
f16 + g16
b8 + c8
b8 * c8
b16 + c16
b8:lt(c8)
big:lt(big2)
lm.where(big:lt(0.5), big, big2)
big:clone():add_(big2)
big:flip(-1)
big:flip(1)|big.flip(0)
big:roll(7, -1)
big:roll(7, 1)|big.roll(7, 0)
big:tril()
lm.cat({big, big2}, 1)|torch.cat([big, big2], 0)
lm.cat({big, big2}, -1)
lm.stack({big, big2}, -1)
big:index_select(1, bigix1)|big.index_select(0, bigix1)
big:index_select(2, bigix1)|big.index_select(1, bigix1)
big:gather(-1, bigix)
big:gather(1, bigix)|big.gather(0, bigix)
big:sum()
big:sum(-1)
big:sum(1)|big.sum(0)
big:mean(-1)
big:amax(-1)
big:max(1)|big.max(0)
big:argmax(-1)
big:var(-1)
half1:sum(-1)
b64:sum(-1)
big:cumsum(-1)
big:cumsum(1)|big.cumsum(0)
grad big: F.softmax(big, {dim = -1})
grad half1: F.softmax(half1, {dim = -1})
grad big: F.log_softmax(big, {dim = -1})
grad big bigrow: F.layer_norm(big, {2048}, bigrow, bigrow)
grad half1 hrow: F.layer_norm(half1, {2048}, hrow, hrow)
grad tokens k768: F.layer_norm(tokens, {768}, k768, k768)
grad htokens h768: F.layer_norm(htokens, {768}, h768, h768)
grad tokens: F.gelu(tokens)
grad htokens: F.gelu(htokens)
grad four: F.batch_norm(four, nil, nil, k64, k64, true)|F.batch_norm(four, None, None, k64, k64, True)
grad four: F.batch_norm_relu(four, nil, nil, k64, k64, nil, { training = true, max = 6 })|F.relu6(F.batch_norm(four, None, None, k64, k64, True))
# 32 K elements
some + some2
some + somerow
some + somecol
some:exp()
some:t():contiguous()
some:sum(-1)
some:sum(1)|some.sum(0)
some:to("bfloat16")|some.to(torch.bfloat16)
some:flip(-1)
some:cumsum(-1)
grad some: F.softmax(some, {dim = -1})
grad some somerow: F.layer_norm(some, {256}, somerow, somerow)
lm.cat({some, some2}, 1)|torch.cat([some, some2], 0)
somei:sort()
somei:argsort()
somei:unique()
# sorting
many:sort()
many:argsort()
manyi:sort()
manyi:argsort()
many32:sort()
manyi:unique()
b64:unique()
b64:argsort(-1)
big:sort(-1)
big:sort(1)|big.sort(0)
big:topk(10, -1)
big:topk(200, -1)
many:topk(100)
big:kthvalue(100, -1)
big:median(-1)
grad big big2: big:scatter_reduce(-1, bigix, big2, "sum")
grad big big2: big:scatter_reduce(1, bigix, big2, "mean")|big.scatter_reduce(0, bigix, big2, "mean")
grad big big2: big:scatter_add(-1, bigix, big2)
# products by size
grad a256: a256:mm(a256)
grad a384: a384:mm(a384)
grad a512: a512:mm(a512)
grad a1024: a1024:mm(a1024)
a512:t():mm(a512)
a512:mm(a512:t())
one1024:mm(a1024)
eight1024:mm(a1024)
eight1024:mm(a1024:t())
thin:t():mm(thin2)
thin:mm(a256:narrow(1, 1, 64))|thin.mm(a256[:64])
grad few32 w768 bias3072: F.linear(few32, w768, bias3072)
grad tokens w768 bias3072: F.linear(tokens, w768, bias3072)
grad m64 m64b: m64:bmm(m64b)
d256:mm(d256)
d512:mm(d512)
h512:mm(h512)
h1024:mm(h1024)
# short rows that are broadcast
x3k + r3
x16 + r16
x33 - r33
x100 + r100
x3k * x3k:narrow(2, 1, 1)|x3k * x3k[:, :1]
x16 * x16:narrow(2, 1, 1)|x16 * x16[:, :1]
x100 * x100:narrow(2, 1, 1)|x100 * x100[:, :1]
few:unsqueeze(2) - few:unsqueeze(1)|few.unsqueeze(1) - few.unsqueeze(0)
sb + sb:select(1, 1)|sb + sb[0]
sb * sb:narrow(3, 1, 1)|sb * sb[:, :, :1]
dx3 + dr3
# small products
x2:mv(r2)
x3k:mv(r3)
x10:mv(r10)
x16:mv(r16)
x33:mv(r33)
x50:mv(r50)
grad x100 r100: x100:mv(r100)
x10:matmul(r10:unsqueeze(2))|x10 @ r10.unsqueeze(1)
grad x10 l10 one1: F.linear(x10, l10, one1)
grad x32 l32 one1: F.linear(x32, l32, one1)
grad x10 l10b three3: F.linear(x10, l10b, three3)
dx3:mv(dr3)
hx32:mv(hr32)
hx50:mv(hr50)
x2:t():mm(x2)
x4:t():mm(x4)
x10:t():mm(x10)
x16:t():mm(x16)
bm2:bmm(bm2)
bm3:bmm(bm3)
bm4:bmm(bm4)
bm8:bmm(bm8)
bm16:bmm(bm16)
grad bm4 bv4: bm4:bmm(bv4)
bm2:bmm(bv2)
bm3:bmm(bv3)
bm8:bmm(bv8)
bm16:bmm(bv16)
bv16:bmm(bv16:transpose(2, 3))|bv16.bmm(bv16.transpose(1, 2))
bm4:bmm(bm4:transpose(2, 3))|bm4.bmm(bm4.transpose(1, 2))
bv8:transpose(2, 3):bmm(bm8)|bv8.transpose(1, 2).bmm(bm8)
bm4:narrow(3, 1, 2):matmul(m22)|bm4[:, :, :2].matmul(m22)
dbm4:bmm(dbm4)
lm.linalg.solve(sb, rhsb)
lm.linalg.solve(sb16, bv16)
grad z32 t32: F.conv_transpose2d(z32, t32)
grad z100 t100: F.conv_transpose2d(z100, t100)
F.conv_transpose2d(z1, t32)
grad c10 w10: F.conv1d(c10, w10, {padding = 1})
# convolutions
grad l64 k33: F.conv2d(l64, k33, {padding = 1})
grad x64 k33: F.conv2d(x64, k33, {padding = 1})
grad l128 k33d: F.conv2d(l128, k33d, {padding = 1, stride = 2})
grad l256 k11: F.conv2d(l256, k11)
grad x256 k11: F.conv2d(x256, k11)
grad l64 k11b: F.conv2d(l64, k11b)
grad l256 k11: F.conv2d(l256, k11, {stride = 2})
grad l64 k55: F.conv2d(l64, k55, {padding = 2})
grad l256 kd: F.conv2d(l256, kd, {padding = 1, groups = 256})
grad x256 kd: F.conv2d(x256, kd, {padding = 1, groups = 256})
grad l256 kd: F.conv2d(l256, kd, {padding = 1, stride = 2, groups = 256})
grad lstem k77: F.conv2d(lstem, k77, {padding = 3, stride = 2})
grad l128 kt: F.conv_transpose2d(l128, kt, {stride = 2})
grad k33: F.conv2d(l64[{{1, 1}}], k33, {padding = 1})|F.conv2d(l64[:1], k33, padding=1)
# spectra and matrices
lm.linalg.cholesky(spd1024)
lm.linalg.solve(spd1024, rhs1024)
lm.linalg.inv(spd1024)
lm.linalg.eigh(s512)
lm.fft.rfft(big)|torch.view_as_real(torch.fft.rfft(big))
lm.fft.rfft2(fimg)|torch.view_as_real(torch.fft.rfft2(fimg))
]]

local makers = {
  uniform = function(lm, size, on) return lm.rand(size, on) * 0.9 + 0.05 end,
  normal = function(lm, size, on) return lm.randn(size, on) end,
  bool = function(lm, size, on) return lm.rand(size, on):gt(0.5) end,
  zeroone = function(lm, size, on) return lm.rand(size, on):gt(0.5):float() end,
  sign = function(lm, size, on) return lm.rand(size, on):gt(0.5):float() * 2 - 1 end,
  shift = function(lm, size, on) return lm.randint(0, 8, size, on) end,
  index = function(lm, size, on, high) return lm.randint(1, tonumber(high) + 1, size, on) end,
  shuffled = function(lm, size, on) return lm.randint(0, 1000000000, size, on) end,
  shuffled32 = function(lm, size, on) return lm.randint(0, 1000000000, size, on):to("int32") end,
  permutation = function(lm, size, on) return lm.randperm(size[1], on) end,
  sorted = function(lm, size, on) return (lm.rand(size, on):sort()) end,
  hann = function(lm, size, on) return lm.hann_window(size[1]):to(on.device) end,
  grid = function(lm, size, on) return lm.rand(size, on) * 2 - 1 end,
  spd = function(lm, size, on)
    local a = lm.randn(size, on)
    return a:matmul(a:transpose(-1, -2)) / size[#size] + lm.eye(size[#size], on)
  end,
}

function cases.has_rows(name)
  local spec = cases.inputs[name]
  return #spec == 3 and spec[2] == 1000 and (spec[3] == 1000 or spec[3] == 1)
end

--- Returns an input's kind and sizes, with `rows` rows in place of its own if it has_rows.
function cases.spec(name, rows)
  local spec = {unpack(cases.inputs[name])}
  if not (rows and cases.has_rows(name)) then return spec end
  spec[2] = rows
  local high = tonumber(spec[1]:match "^index (%d+)$") -- within a dim, or within all of [rows, 1000]
  if high then spec[1] = "index " .. math.min(high, high > 1000 and 1000 * rows or rows) end
  return spec
end

--- Returns whether one of an expression's inputs has_rows.
function cases.uses_rows(expression)
  for name in expression:gmatch "%f[%w_][%a_][%w_]*" do
    if cases.inputs[name] and cases.has_rows(name) then return true end
  end
  return false
end

function cases.input(lm, name, device, rows)
  local spec, size, on = cases.spec(name, rows), {}, { device = device or "cpu" }
  for k = 2, #spec do size[k - 1] = spec[k] end
  local kind, high = spec[1]:match "^(%S+) ?(%d*)$"
  if makers[kind] then return makers[kind](lm, size, on, high) end
  return lm.randint(1, 101, size, on):to(kind)
end

function cases.compile(expression, env)
  return setfenv(assert(loadstring("return function() return (" .. expression .. ") end", expression)), env)()
end

function cases.each(f)
  local group
  for line in cases.list:gmatch "[^\n]+" do
    group = line:match "^# (.*)" or group
    local grads, expression = line:match "^grad ([%w ]+): (.*)$"
    expression = (expression or line):match "^[^|]*"
    if line:sub(1, 1) ~= "#" then f(grads or "", expression, group) end
  end
end

return cases
