-- Indexing, sorting, joining, norms, pooling and optimizers: the CUDA device against the CPU, on random sizes, dtypes
-- and layouts. LM_TEST_LONG=1 takes many more. compare_spec.lua has the other families.
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end
local compare = require "spec.support.compare"

local nn, F, ops = lm.nn, lm.nn.functional, core.ops
local random, one_of, twin = math.random, compare.one_of, compare.twin
local dtypes = {
  "bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
}

-- Does what compare.same does, for calls that must succeed.
local function same(what, tol, f, ...)
  assert(compare.same(what, tol, f, ...), what .. " fails on both sides")
end

-- Returns compare.tolerance times `units`; 0 for other dtypes.
local function tolerance(dtype, units) return (compare.tolerance[dtype] or 0) * (units or 1) end

local function dtype_of(seed) return dtypes[seed % #dtypes + 1] end

-- Returns n random sizes of at most `most`.
local function sizes(n, most)
  local list = {}
  for d = 1, n do list[d] = random(most) end
  return list
end

local function with(list, d, value)
  local other = { unpack(list) }
  other[d] = value
  return other
end

-- Halves from -2 to 2, of which sums are exact, in some layout.
local function halves(dtype, size)
  local whole = dtype == "uint8" or dtype == "bool"
  local x = (whole and lm.randint(0, 3, size) or lm.randint(-4, 5, size):double() * 0.5):to(dtype)
  local n, layout = #size, random(3)
  if n > 1 and layout == 1 then x = x:transpose(1, n):contiguous():transpose(1, n) end
  if n == 4 and layout == 2 then x = x:contiguous { memory_format = "channels_last" } end
  return x
end

local function indices(size, n) return lm.randint(1, n + 1, size) end

local function what_of(name, dtype, size) return ("%s %s [%s]"):format(name, dtype, table.concat(size, ", ")) end

describe("casts of floats to integers", function()
  it("are the CPU's of numbers that do not fit, too", function()
    local list = {
      0 / 0, 1 / 0, -1 / 0, 1e20, -1e20, 2 ^ 63, -2 ^ 63, 2 ^ 62, 2 ^ 40 + 3, -2 ^ 40 - 3, 2 ^ 31, -2 ^ 31 - 1, 300,
      -1, 255.9, -0.9, 0.5, -129, 65543,
    }
    for _, from in ipairs { "float16", "bfloat16", "float32", "float64" } do
      local x = lm.tensor(list, { dtype = "float64" }):to(from)
      for _, to in ipairs { "bool", "uint8", "int8", "int16", "uint16", "int32", "int64" } do
        local apart = x:view { -1, 1 }:expand(#list, 2):contiguous():cuda():select(2, 1)
        for _, y in ipairs { x:cuda():to(to), apart:to(to) } do
          assert(y:cpu():equal(x:to(to)), from .. " to " .. to)
        end
      end
    end
  end)
end)

describe("attention", function()
  -- Queries that see nothing among them, and masks that are the same for all queries, heads or keys.
  it("of masks of all kinds", function()
    compare.rounds(40, 1000, function(seed)
      local l, k, e, heads = random(9), random(9), random(5), random(3)
      local q, key, v = lm.randn { 2, heads, l, e }, lm.randn { 2, heads, k, e }, lm.randn { 2, heads, k, e }
      local shapes = { { l, k }, { k }, { 2, 1, l, k }, { heads, l, 1 }, { 2, 1, 1, k }, {} }
      local mask = lm.rand(one_of(shapes)):lt(0.5)
      if seed % 3 == 0 then mask = lm.where(mask, lm.randn(mask.shape), lm.tensor(-math.huge)) end
      local given = twin(mask)
      local o = { is_causal = seed % 4 == 3 }
      local what = ("seen %s of %d and %d"):format(table.concat(mask.shape, "x"), l, k)
      same(what, 1e-4, function(m)
        o.attn_mask = not o.is_causal and m or nil
        local device = m.device
        local function attend(a, b, c) return F.scaled_dot_product_attention(a, b, c, o) end
        local w = lm.arange(2 * heads * l * e, { device = device }):view(2, heads, l, e):float() / 100
        local function sum(a, b, c) return (attend(a, b, c) * w):sum() end
        return attend(q:to(device), key:to(device), v:to(device)),
          compare.gradients(sum, nil, q:to(device), key:to(device), v:to(device))
      end, given)
    end)
  end)
end)

describe("by index", function()
  it("gather, scatter_add, index_select, index_add", function()
    compare.rounds(160, 2000, function(seed)
      local dtype, n = dtype_of(seed), random(4)
      local size, d = sizes(n, 8), random(n)
      size[n] = size[n] * random(4)
      local x, what = twin(halves(dtype, size)), what_of("", dtype, size)
      local part = {}
      for k = 1, n do part[k] = k == d and random(12) or random(size[k]) end
      local where, src = twin(indices(part, size[d])), twin(halves(dtype, part))
      same("gather" .. what, 0, function(t, i) return t:gather(d, i) end, x, where)
      same("scatter_add" .. what, nil, function(t, i, s) return lm.scatter_add(t, d, i, s) end, x, where, src)
      local count = random(40)
      local row, rows = twin(indices({ count }, size[d])), twin(halves(dtype, with(size, d, count)))
      same("index_select" .. what, 0, function(t, i) return t:index_select(d, i) end, x, row)
      same("index_add" .. what, nil, function(t, i, s) return lm.index_add(t, d, i, s) end, x, row, rows)
    end)
  end)

  it("index_add of thousands to few and to many", function()
    compare.rounds(40, 400, function(seed)
      local dtype = dtype_of(seed)
      local n, rows, columns = 1000 + random(2000), random(3) == 1 and random(2) or random(300), random(5)
      local x, src = twin(halves(dtype, { rows, columns })), twin(halves(dtype, { n, columns }))
      same(what_of("index_add of " .. n .. " to", dtype, { rows, columns }), nil,
        function(t, i, s) return lm.index_add(t, 1, i, s) end, x, twin(indices({ n }, rows)), src)
    end)
  end)

  it("scatter by whole entries, bags of rows, masks in index_put", function()
    for _, dim in ipairs { 1, 2 } do
      local size = dim == 1 and { 6, 4 } or { 4, 6 }
      local x, src = twin(halves("float32", size)), twin(halves("float32", size))
      local where = twin(indices(dim == 1 and { 6, 1 } or { 1, 6 }, 6))
      for _, how in ipairs { "sum", "prod", "mean", "amax", "amin" } do
        same("scatter_reduce " .. how, 1e-5, function(t, s, i)
          return t:scatter_reduce(dim, i:expand(unpack(size)), s, how, { include_self = false })
        end, x, src, where)
      end
    end
    local table_, index = twin(halves("float32", { 5, 3 })), twin(indices({ 6 }, 5))
    local offsets = twin(lm.tensor({ 1, 3, 3 }, { dtype = "int64" }))
    for _, mode in ipairs { "sum", "mean", "max" } do
      same("embedding_bag " .. mode, 1e-6, function(w, i, o)
        return lm.nn.functional.embedding_bag(i, w, o, { mode = mode, padding_idx = 2 })
      end, table_, index, offsets)
    end
    same("index_put", 0, function(t, m) return t:index_put({ m }, 7) end, table_, twin(halves("float32", { 5 }):gt(0)))
  end)

  it("x[{i, j}] and its assignment", function()
    compare.rounds(160, 2000, function(seed)
      local dtype, n = dtype_of(seed), 1 + random(3)
      local size, tail = sizes(n, 6), one_of { { random(4) }, { random(5), random(4) } }
      local x, what = twin(halves(dtype, size)), what_of("", dtype, size)
      local function index(d) -- also from the end
        local i = indices(tail, size[d])
        return twin(random(2) == 1 and i or i - (size[d] + 1))
      end
      local list = { index(1), random(2) == 1 and index(2) or nil }
      same("index_get" .. what, 0, function(t, ...) return lm.index_get(t, { ... }) end, x, unpack(list))
      same("the second dim" .. what, 0, function(t, i) return t[{ {}, i }] end, x, index(2))
      local there = { list[1].here, list[2] and list[2].here }
      local got = lm.index_get(x.here, there).shape
      for _, values in ipairs { halves(dtype, got), halves(dtype, { 1 }) } do
        for _, accumulate in ipairs { false, true } do
          same("index_put" .. what, nil, function(t, v, ...)
            return lm.index_put(t, { ... }, v, { accumulate = accumulate })
          end, x, twin(values), unpack(list))
        end
      end
    end)
  end)

  it("nonzero, one_hot, embedding", function()
    compare.rounds(80, 1000, function(seed)
      local dtype = dtype_of(seed)
      same("nonzero " .. dtype, 0, function(t) return t:nonzero() end, twin(halves(dtype, sizes(random(4), 9))))
      local words, width, n = random(20), random(40), random(30)
      local weight, index = twin(halves(dtype, { words, width })), twin(indices({ n, 2 }, words))
      local grad, what = twin(halves(dtype, { n, 2, width })), what_of("", dtype, { words, width })
      same("embedding" .. what, 0, function(i, w) return lm.embedding(i, w) end, index, weight)
      for _, padding in ipairs { 0, words } do
        same("embedding_backward" .. what, nil, function(g, i)
          return ops.embedding_backward(g, i, words, padding)
        end, grad, index)
      end
      same("one_hot", 0, function(i) return lm.one_hot(i, words), lm.one_hot(i) end, index)
    end)
  end)

  it("out of range is an error, and the device goes on", function()
    local function on(...) return lm.tensor({ ... }, { dtype = "int64", device = "cuda" }) end
    local x, ones = lm.arange(12):float():view(3, 4):cuda(), lm.ones({ 2, 4 }, { device = "cuda" })
    local function fails(message, f)
      assert.error_matches(function() f():cpu() end, message)
    end
    fails("index_select: index 7 .* out of range for 3 entries", function() return x:index_select(1, on(1, 7)) end)
    fails("gather: index 0 .* out of range for 3 entries", function() return x:gather(1, on(0):view(1, 1)) end)
    fails("scatter_add: index 4 .* out of range for 3 entries",
      function() return lm.scatter_add(x, 1, on(4):view(1, 1), ones) end)
    fails("index_add: index 9 .* out of range for 3 entries", function() return lm.index_add(x, 1, on(1, 9), ones) end)
    fails("index_get: index %-4", function() return lm.index_get(x, { on(-3, -4) }) end)
    fails("index_put_: index %-4", function() return lm.index_put(x, { on(1, -4) }, ones) end)
    fails("one_hot: .*[78]", function() return lm.one_hot(on(7, 8), 5) end)
    fails("embedding: index 0 .* out of range for 3 entries", function() return lm.embedding(on(0, 1), x) end)
    fails("embedding_backward: index 6 .* out of range for 5 entries",
      function() return ops.embedding_backward(ones, on(1, 6), 5, 0) end)
    local box = lm.tensor({ { 1, 0, 0, 2, 2 } }, { device = "cuda" })
    for n, image in pairs { [0] = 1, 3 } do
      box[{ 1, 1 }] = image
      fails(("roi_pool: index %d at position 1 is out of range for %d entries"):format(image, n),
        function() return (lm.vision.roi_pool(lm.ones({ n, 2, 4, 3 }, { device = "cuda" }), box, { 2, 2 })) end)
    end
    assert.same({ 9, 1 }, x:index_select(1, on(3, 1)):select(2, 2):cpu():tolist())
  end)
end)

describe("topk", function()
  it("of short and long lines, with ties and NaN", function()
    compare.rounds(120, 2000, function(seed)
      local dtype, n = dtype_of(seed), random(3)
      local size, d = sizes(n, 40), random(n)
      if random(3) == 1 then
        size = sizes(n, 3)
        size[d] = 2000 + random(1500)
      end
      local x, nan = halves(dtype, size), compare.is_float(dtype) and random(2) == 1
      if nan then x = x:masked_fill(lm.randint(0, 20, size):eq(0), 0 / 0) end
      local k, largest = random(size[d]), random(2) == 1
      if random(2) == 1 then k = math.min(k, 5) end
      same(what_of(("topk %d of dim %d"):format(k, d), dtype, size), 0, function(t)
        return lm.topk(t, k, { dim = d, largest = largest })
      end, twin(x))
    end)
  end)

  it("by sorting: many of long lines, few of very long ones", function()
    for _, case in ipairs {
      { lm.randint(0, 1000, { 3, 5000 }):float(), 3000, 2 },
      { lm.randint(-1000, 1000, { 270000 }), 9, 1, false },
      { lm.randn({ 3, 9000 }):t(), 2500, 1 },
      { lm.zeros { 5000 }, 1000, 1 },
    } do
      same("topk " .. case[2], 0, function(t)
        return lm.topk(t, case[2], { dim = case[3], largest = case[4] })
      end, twin(case[1]))
    end
  end)
end)

describe("sorting, scans and counts", function()
  it("of short and long lines, with ties and NaN", function()
    compare.rounds(60, 1000, function(seed)
      local dtype, n = dtype_of(seed), random(3)
      local size, d = sizes(n, 20), random(n)
      if random(4) == 1 then
        size = sizes(n, 3)
        size[d] = 2000 + random(1500)
      end
      local x = halves(dtype, size)
      if compare.is_float(dtype) and random(2) == 1 then x = x:masked_fill(lm.randint(0, 20, size):eq(0), 0 / 0) end
      local both, k, what = twin(x), random(size[d]), what_of("of dim " .. d, dtype, size)
      same("sort " .. what, 0, function(t) return t:sort(d, { descending = seed % 2 == 0 }) end, both)
      same("kthvalue " .. what, 0, function(t) return (t:kthvalue(k, d)) end, both)
      for _, name in ipairs { "median", "nanmedian", "cummax", "cummin", "mode" } do
        same(name .. what, 0, function(t) return (t[name](t, d)) end, both)
      end
      for _, name in ipairs { "cumsum", "prod", "nansum", "count_nonzero" } do
        same(name .. what, nil, function(t) return t[name](t, d) end, both)
      end
      same("cumsum back" .. what, nil, function(t) return t:cumsum(d, { reverse = true }) end, both)
      same("cumprod" .. what, nil, function(t) return (t:eq(t) * t:clamp { max = 1 }):cumprod(d) end, both)
      same("unique" .. what, 0, function(t) return t:unique { return_inverse = true, return_counts = true } end, both)
      same("unique dim" .. what, 0, function(t) return t:unique { dim = d, return_inverse = true } end, both)
      same("searchsorted" .. what, 0, function(t) return lm.searchsorted(t:flatten():msort(), t) end, both)
      same("isin" .. what, 0, function(t) return t:isin(t:flatten():narrow(1, 1, 1):repeat_tensor(3)) end, both)
      if compare.is_float(dtype) then
        local decay = twin(lm.rand(size):to(dtype))
        same("logcumsumexp" .. what, nil, function(t) return t:logcumsumexp(d) end, both)
        same("linear_recurrence" .. what, nil, function(t, a) return lm.linear_recurrence(t, a, d) end, both, decay)
        same("quantile" .. what, nil, function(t) return t:double():quantile(0.3, d), t:double():nanquantile(0.7) end,
          both)
      else
        same("bincount" .. what, 0, function(t) return t:flatten():long():abs():add(1):bincount() end, both)
      end
    end)
  end)
end)

it("multinomial draws from more rows than a launch has blocks, by each row's weights #unsanitized", function()
  local last = (lm.arange(4099) - 1):remainder(3):add(1):long()
  local x = lm.one_hot(last, 3):float():cuda()
  assert(x:multinomial(2, true):cpu():equal(lm.stack({ last, last }, 2)))
end)

it("randperm gives the CPU's permutation", function()
  for _, n in ipairs { 0, 1, 2, 3, 7, 100, 3001 } do
    for _, dtype in ipairs { "int64", "float32" } do
      same("randperm " .. n, 0, function(t)
        return lm.randperm(n, { dtype = dtype, device = t.device })
      end, twin(lm.zeros { 1 }))
    end
  end
end)

describe("cat", function()
  it("of few and many, in one dtype and in several", function()
    compare.rounds(160, 2000, function(seed)
      local dtype, n = dtype_of(seed), random(4)
      local size, d, mixed, list, plain = sizes(n, 6), random(n), random(3) == 1, {}, {}
      for i = 1, random(4) == 1 and 100 + random(40) or random(6) do
        local part = with(size, d, random(0, 4))
        local x = halves(mixed and one_of(dtypes) or dtype, part)
        list[i], plain[i] = twin(x), twin(x:contiguous())
      end
      for _, given in ipairs { list, plain } do
        same(what_of("cat of " .. #list, dtype, size), 0, function(...) return lm.cat({ ... }, d) end, unpack(given))
      end
    end)
  end)
end)

-- Compares f's results and gradients by x and the further leaves; tensors changed in place count as results.
local function differentiated(what, tol, f, leaves, others)
  local n = #leaves
  local given = { unpack(leaves) }
  for i, x in ipairs(others or {}) do given[n + i] = x end
  same(what, tol, function(...)
    local all = { ... }
    for i = 1, n do all[i] = all[i]:detach():clone():requires_grad_() end
    for i = n + 1, #all do all[i] = all[i]:clone() end
    local y = f(unpack(all))
    local weight = lm.randn(y.shape):to(y.dtype):to(y.device)
    y:backward(weight)
    local got = { y:detach() }
    for i = 1, #all do got[#got + 1] = i <= n and all[i].grad or all[i] end
    return unpack(got)
  end, unpack(given))
end

-- Returns an image or rows, around 3.
local function some(dtype, size, last)
  local x = lm.randn(size):to(dtype) * 2 + 3
  return last and x:contiguous { memory_format = "channels_last" } or x
end

-- Differences of norms grow with the number of elements and the distance of the mean from 0.
local function norm_tolerance(dtype) return tolerance(dtype, dtype:match "16" and 20 or 100) end

describe("norms", function()
  it("over batches", function()
    local shapes = { { 6, 16 }, { 3, 5 }, { 700, 8 }, { 4, 8, 6, 4 }, { 3, 3, 5, 7 }, { 2, 64, 9, 9 }, { 5, 4, 33 },
      { 5, 40, 12, 12 }, { 40, 3, 14, 14 }, { 50, 2, 7, 7 }, { 6, 12, 4, 4 } }
    compare.rounds(#shapes * 8, #shapes * 80, function(seed)
      local dtype, shape = one_of(compare.floats), shapes[seed % #shapes + 1]
      local last, training, c = #shape == 4 and random(2) == 1, random(2) == 1, shape[2]
      local what = what_of("batch_norm", dtype, shape) .. (last and " channels-last" or "")
      local function vector() return twin(lm.randn({ c }):to(dtype)) end
      differentiated(what, norm_tolerance(dtype), function(x, weight, bias, mean, var)
        return F.batch_norm(x, mean, var, weight, bias, { training = training })
      end, { twin(some(dtype, shape, last)), vector(), vector() },
        { vector(), twin(lm.rand({ c }):to(dtype) + 0.5) })
      differentiated(what .. " without parameters", norm_tolerance(dtype), function(x)
        return F.batch_norm(x, nil, nil, nil, nil, { training = true })
      end, { twin(some(dtype, shape, last)) })
    end)
  end)

  it("over batches with relu, and an addend", function()
    local shapes = { { 6, 16 }, { 3, 5 }, { 700, 8 }, { 4, 8, 6, 4 }, { 3, 3, 5, 7 }, { 5, 4, 33 }, { 40, 3, 14, 14 } }
    compare.rounds(#shapes * 8, #shapes * 80, function(seed)
      local dtype, shape = one_of(compare.floats), shapes[seed % #shapes + 1]
      local last, training, c = #shape == 4 and random(2) == 1, random(2) == 1, shape[2]
      local what = what_of("batch_norm_relu", dtype, shape) .. (last and " channels-last" or "")
      -- Halves: results next to 0, which one side rounds up to it, have another gradient.
      local function away(x, mean, var, weight, bias)
        return F.batch_norm(x, mean, var, weight, bias, { training = training }):abs():min():item() > 1e-4
      end
      local function vector() return lm.randn({ c }):to(dtype) end
      local x, weight, bias, mean, var = some(dtype, shape, last), vector(), vector(), vector(), vector():abs() + 0.5
      if away(x, mean:clone(), var:clone(), weight, bias) then
        differentiated(what, norm_tolerance(dtype), function(...)
          local a, w, b, m, v = ...
          return F.batch_norm_relu(a, m, v, w, b, nil, { training = training })
        end, { twin(x), twin(weight), twin(bias) }, { twin(mean), twin(var) })
      end
      local addend = some(dtype, shape, last)
      if (F.batch_norm(x, mean:clone(), var:clone(), nil, nil, { training = training }) + addend):abs():min():item()
        > 1e-2 then
        differentiated(what .. " and addend", norm_tolerance(dtype), function(a, more, m, v)
          return F.batch_norm_relu(a, m, v, nil, nil, more, { training = training })
        end, { twin(x), twin(addend) }, { twin(mean), twin(var) })
      end
    end)
  end)

  it("over batches with relu, of several gradients to the bit as of their sum", function()
    for seed, shape in ipairs { { 6, 16 }, { 3, 5 }, { 700, 8 }, { 4, 8, 6, 4 }, { 3, 3, 5, 7 }, { 40, 3, 14, 14 } } do
      for k, dtype in ipairs(compare.floats) do
        lm.manual_seed(seed)
        local last, training, c = #shape == 4 and k % 2 == 1, seed % 3 > 0, shape[2]
        local function cuda(t) return t:to(dtype):cuda() end
        local function random_of_shape()
          local t = cuda(lm.randn(shape))
          return last and t:contiguous { memory_format = "channels_last" } or t
        end
        local leaves = { random_of_shape(), cuda(lm.randn { c }), cuda(lm.randn { c }), random_of_shape() }
        local given = { random_of_shape(), random_of_shape(), random_of_shape() }
        local mean, var = lm.zeros { c }, lm.ones { c }
        for n = 2, 3 do
          for addends = 0, 1 do
            local function gradients(hooked)
              local x, w, b, addend = unpack(leaves)
              for _, leaf in ipairs(leaves) do leaf:requires_grad_() end
              local y = F.batch_norm_relu(x, cuda(mean), cuda(var), w, b, addends == 1 and addend or nil,
                { training = training })
              if hooked then y:register_hook(function() end) end -- a hook gets the sum
              local all = 0
              for i = 1, n do all = all + (y * given[i]):sum() end
              all:backward()
              local found = {}
              for i, leaf in ipairs(leaves) do
                found[i] = leaf.grad or false
                leaf.grad = nil
              end
              return found
            end
            local sum, more = gradients(true), gradients(false)
            for i = 1, 3 + addends do
              assert(lm.equal(sum[i], more[i]), ("%s, %d gradients, result %d"):format(what_of("", dtype, shape), n, i))
            end
          end
        end
      end
    end
  end)

  it("over batches with relu and an addend, to the bit as without relu of the gradient where it passes", function()
    local shapes = { { 6, 16 }, { 3, 5 }, { 700, 8 }, { 4, 8, 6, 4 }, { 3, 3, 5, 7 }, { 9, 4, 14, 14 }, { 3, 12, 2, 1 },
      { 2, 5, 9 }, { 3, 16, 1, 1 } }
    for seed, shape in ipairs(shapes) do
      for nth, dtype in ipairs(compare.floats) do
        for k = (seed + nth) % 3, 15, 3 do -- channels-last; x, addend and the gradient not aligned
          lm.manual_seed(seed)
          local function random_of_shape(off)
            local t = lm.randn(shape):to(dtype)
            if k >= 8 and #shape == 4 then t = t:contiguous { memory_format = "channels_last" } end
            local memory = lm.zeros({ t:numel() + 1 }, { dtype = dtype, device = "cuda" })
            return memory:as_strided(shape, t:stride(), off and 1 or 0):copy_(t)
          end
          local x = random_of_shape(k % 2 >= 1):requires_grad_()
          local addend = random_of_shape(k % 4 >= 2):requires_grad_()
          local g = random_of_shape(k % 8 >= 4)
          local max = seed % 2 == 0 and 0.5 or math.huge
          local what = what_of("batch_norm_relu", dtype, shape) .. " " .. k
          local y = F.batch_norm_relu(x, nil, nil, nil, nil, addend, { training = true, max = max })
          y:backward(g)
          local masked = lm.where(y:detach():gt(0):logical_and(y:detach():lt(max)), g, lm.zeros_like(g))
          assert(addend.grad:equal(masked), what)
          local plain = x:detach():requires_grad_()
          F.batch_norm(plain, nil, nil, nil, nil, { training = true }):backward(g:copy_(masked))
          assert(x.grad:equal(plain.grad), what)
        end
      end
    end
  end)

  it("over batches, the same to the bit however the memory is aligned", function()
    for _, dtype in ipairs(compare.floats) do
      for _, side in ipairs { 3, 7, 9 } do
        local shape = { 5, 3, side, side }
        local n = 5 * 3 * side * side
        local results = {}
        for k, off in ipairs { 0, 1 } do
          lm.manual_seed(side)
          local values = lm.randn({ n }):to(dtype)
          local x = lm.zeros({ n + off }, { dtype = dtype, device = "cuda" }):narrow(1, 1 + off, n):copy_(values)
          x = x:view(shape):requires_grad_()
          local y = F.batch_norm(x, nil, nil, nil, nil, { training = true })
          local loss = (y * y * 0.5):sum()
          loss:backward()
          results[k] = { y:detach():cpu(), x.grad:cpu() }
        end
        for i = 1, 2 do assert.is_true(results[1][i]:equal(results[2][i]), dtype .. " " .. side) end
      end
    end
  end)

  it("over rows #unsanitized", function()
    local shapes = { { 4, 8 }, { 9, 64 }, { 3, 33 }, { 5, 700 }, { 300, 16 }, { 2, 1500 }, { 2, 4096 }, { 2, 1031 },
      { 1, 20000 } }
    compare.rounds(#shapes * 8, #shapes * 80, function(seed)
      local dtype, shape = one_of(compare.floats), shapes[seed % #shapes + 1]
      local weight, bias = lm.randn({ shape[2] }):to(dtype), lm.randn({ shape[2] }):to(dtype)
      differentiated(what_of("layer_norm", dtype, shape), norm_tolerance(dtype), function(x, w, b)
        return F.layer_norm(x, { shape[2] }, w, b)
      end, { twin(some(dtype, shape)), twin(weight), twin(bias) })
    end)
  end)
end)

describe("pooling", function()
  local windows = { -- kernel, options
    max = { { 2 }, { 3, { stride = 2, padding = 1 } }, { 3, { stride = 1, dilation = 2, padding = 1 } },
      { { 2, 3 }, { stride = { 1, 2 }, ceil_mode = true } } },
    avg = { { 2 }, { 3, { stride = 2, padding = 1 } }, { 3, { stride = 2, padding = 1, count_include_pad = false } },
      { { 6, 6 }, { stride = 3, ceil_mode = true, padding = 2 } } },
  }

  it("and its gradients", function()
    local shapes = { { 2, 8, 9, 11 }, { 3, 3, 8, 8 }, { 1, 24, 14, 14 }, { 5, 7, 6 }, { 2, 16, 20, 20 } }
    compare.rounds(#shapes * 8, #shapes * 80, function(seed)
      local dtype, shape = one_of(compare.floats), shapes[seed % #shapes + 1]
      local last, tol = #shape == 4 and random(2) == 1, tolerance(dtype, 4)
      local x, what = twin(some(dtype, shape, last)), what_of("", dtype, shape)
      for kind, list in pairs(windows) do
        for i, window in ipairs(list) do
          differentiated(kind .. " " .. i .. what, tol, function(t)
            return F[kind .. "_pool2d"](t, window[1], window[2])
          end, { x })
        end
      end
      for _, size in ipairs { 1, 2, 6, { 3, 5 } } do
        differentiated("adaptive" .. what, tol, function(t) return F.adaptive_avg_pool2d(t, size) end, { x })
      end
    end)
  end)

  it("of maxima have the gradients of these by their indices, to the bit", function()
    local kinds = { { { 1, 256 }, { stride = 1, padding = { 0, 128 } } }, { { 16, 17 }, { padding = { 8, 8 } } },
      { { 4, 2 }, { stride = 3, padding = { 2, 1 }, dilation = { 3, 2 } } }, unpack(windows.max) }
    for seed, window in ipairs(kinds) do
      for _, dtype in ipairs(compare.floats) do
        for _, format in ipairs { "contiguous", "channels_last" } do
          lm.manual_seed(seed)
          local x = lm.randint(0, 5, { 2, 24, 13, 21 }):to(dtype):cuda():contiguous { memory_format = format }
          if seed % 2 == 0 then x[{ 1, 2, 3, 4 }] = 0 / 0 end
          local found = {}
          for k, return_indices in ipairs { false, true } do
            local leaf, options = x:detach():requires_grad_(), { return_indices = return_indices }
            for name, value in pairs(window[2] or {}) do options[name] = value end
            local y = F.max_pool2d(leaf, window[1], options)
            lm.manual_seed(seed)
            local g = lm.randn(y.shape):to(dtype):cuda():requires_grad_()
            local dx = lm.autograd.grad(y, leaf, { grad_outputs = g, create_graph = true })[1]
            found[k] = { y:detach():nan_to_num(), dx:detach() }
            found[k][3] = lm.autograd.grad((dx * dx):sum(), g)[1]
          end
          for i = 1, 3 do
            assert(found[1][i]:equal(found[2][i]), ("%s, window %d, %s: %d"):format(dtype, seed, format, i))
          end
        end
      end
    end
    local x = lm.randn { 1, 8, 4, 4 }
    same("of no gradient", 0, function(t) return lm.no_grad(function() return F.max_pool2d(t, 2) end) end, twin(x))
    assert.error_matches(function()
      ops.max_pool2d_backward(lm.ones { 1, 1, 2, 2 }:cuda(), lm.zeros({ 1, 1, 2, 2 }, { dtype = "uint8" }):cuda(),
        { 1, 1, 4, 4 })
    end, "max_pool2d_backward: indices must be int64, got uint8")
  end)

  it("of integers, of NaN, of places without their windows", function()
    for _, dtype in ipairs { "uint8", "int32", "int64" } do
      for _, format in ipairs { "contiguous", "channels_last" } do
        local x = twin((lm.rand({ 2, 16, 6, 6 }) * 100):to(dtype):contiguous { memory_format = format })
        same("max of " .. dtype, 0, function(t) return F.max_pool2d(t, 2), F.max_pool2d(t, 3, { stride = 2 }) end, x)
      end
    end
    local x = lm.randn { 1, 4, 6, 6 }
    x[{ 1, 2, 3, 3 }] = 0 / 0
    same("max with NaN", 0, function(t) return F.max_pool2d(t, 2) end, twin(x))
    same("mean with NaN", nil, function(t) return F.avg_pool2d(t, 2) end, twin(x))
    local grad, places = twin(lm.randn { 1, 1, 2, 2 }), lm.tensor({ 1, 3, 14, 16 }, { dtype = "int64" })
    same("scattered", 0, function(g, p)
      local size = { 1, 1, 4, 4 }
      return ops.max_pool2d_backward(g, p, size), ops.max_pool2d_backward(g, p, size, { kernel_size = 2 })
    end, grad, twin(places:view(1, 1, 2, 2)))
    places[3] = 99
    assert.error_matches(function()
      ops.max_pool2d_backward(grad.there, places:view(1, 1, 2, 2):cuda(), { 1, 1, 4, 4 }):cpu()
    end, "max_pool2d_backward: index 99 at position 3 is out of range for 16 entries")
  end)
end)

describe("windows", function()
  local function floats(dtype, ...) return twin(lm.randn({ ... }):to(dtype)) end

  it("of lines and volumes, resized images, samples, columns", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local tol = tolerance(dtype, 40)
      local conv = dtype == "float32" and 2e-2 or tol -- cuDNN rounds to TF32
      local line, volume = floats(dtype, 2, 4, 9), floats(dtype, 2, 4, 5, 4, 6)
      local image = floats(dtype, 2, 4, 6, 7)
      local last = twin(image.here:contiguous { memory_format = "channels_last" })
      differentiated("conv1d " .. dtype, conv, function(x, w, b) return F.conv1d(x, w, b, 2, 1, 1, 2) end,
        { line, floats(dtype, 6, 2, 3), floats(dtype, 6) })
      differentiated("conv3d " .. dtype, conv, function(x, w) return F.conv3d(x, w, nil, { 2, 1, 1 }, 1) end,
        { volume, floats(dtype, 3, 4, 3, 2, 3) })
      differentiated("conv_transpose3d " .. dtype, conv, function(x, w)
        return F.conv_transpose3d(x, w, nil, 2, 1, 1)
      end, { volume, floats(dtype, 4, 2, 3, 3, 3) })
      differentiated("max_pool3d " .. dtype, tol, function(x) return F.max_pool3d(x, 2, 1) end, { volume })
      differentiated("adaptive_max_pool2d " .. dtype, tol, function(x) return F.adaptive_max_pool2d(x, { 4, 3 }) end,
        { image })
      for _, x in ipairs { image, last } do
        for _, mode in ipairs { "nearest", "bilinear", "bicubic" } do
          differentiated(mode .. dtype, tol, function(t) return F.interpolate(t, { size = { 9, 4 }, mode = mode }) end,
            { x })
        end
        local grid = twin((lm.rand(2, 3, 5, 2) * 2.2 - 1.1):to(dtype))
        for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
          for _, padding in ipairs { "zeros", "border", "reflection" } do
            differentiated(("grid_sample %s %s %s"):format(mode, padding, dtype), tol, function(t, g)
              return F.grid_sample(t, g, mode, padding)
            end, { x, grid })
          end
        end
        local boxes = twin(lm.tensor { { 1, 0.5, 1, 4, 5 }, { 2, -1, 2, 7, 4 }, { 2, 3, 3, 3, 3 } }:to(dtype))
        differentiated("roi_pool " .. dtype, tol, function(t, b) return lm.vision.roi_pool(t, b, { 2, 3 }) end,
          { x, boxes })
        differentiated("roi_align " .. dtype, tol, function(t, b) return lm.vision.roi_align(t, b, { 2, 3 }) end,
          { x, boxes })
      end
      differentiated("unfold " .. dtype, tol, function(x) return F.unfold(x, { 2, 3 }, 1, 1, 2) end, { image })
      differentiated("fold " .. dtype, tol, function(x) return F.fold(x, { 4, 5 }, 2) end, { floats(dtype, 2, 8, 12) })
    end
  end)
end)

describe("scans of a few long lines, which several blocks share", function()
  for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool" } do
    it("have the CPU's sums, products and extremes, of " .. dtype, function()
      for _, case in ipairs {
        { { 40003 }, 1 }, { { 3, 20000 }, 2 }, { { 16385 }, 1 }, { { 2, 30001, 1 }, 2 }, { { 1003, 5 }, 1 },
        { { 2, 129, 3 }, 2 },
      } do
        local size, d = case[1], case[2]
        local both, what = twin(halves(dtype, size)), what_of("of dim " .. d, dtype, size)
        for _, reverse in ipairs { false, true } do
          same("cumsum" .. what, nil, function(t) return t:long():cumsum(d, { reverse = reverse }) end, both)
          same("cumsum as double" .. what, nil, function(t)
            return t:double():cumsum(d, { reverse = reverse })
          end, both)
        end
        same("cumprod" .. what, nil, function(t) return (t:eq(t) * t:clamp { max = 1 }):cumprod(d) end, both)
        same("cummax" .. what, 0, function(t) return t:cummax(d) end, both)
        same("cummin" .. what, 0, function(t) return t:cummin(d) end, both)
        if compare.is_float(dtype) then
          local decay = twin(lm.rand(size):to(dtype))
          same("logcumsumexp" .. what, nil, function(t) return t:logcumsumexp(d) end, both)
          same("linear_recurrence" .. what, nil, function(t, a) return lm.linear_recurrence(t, a, d) end, both, decay)
        end
      end
    end)
  end
end)

describe("medians of a few long lines, which are sorted", function()
  for _, dtype in ipairs { "float32", "bfloat16", "int64", "uint8" } do
    it("are the CPU's, of " .. dtype, function()
      for _, size in ipairs { { 262147 }, { 2, 262150 } } do
        local x = halves(dtype, size)
        local both, what = twin(x), what_of("", dtype, size)
        same("kthvalue" .. what, 0, function(t) return t:kthvalue(99999, -1) end, both)
        for _, name in ipairs { "median", "nanmedian" } do
          same(name .. what, 0, function(t) return t[name](t, -1) end, both)
          if compare.is_float(dtype) then
            local odd = twin(x:masked_fill(lm.randint(0, 20, size):eq(0), 0 / 0))
            same(name .. " with NaN" .. what, 0, function(t) return t[name](t, -1) end, odd)
            same(name .. " of NaN" .. what, 0, function(t) return t[name](t, -1) end, twin(x * (0 / 0)))
          end
        end
      end
    end)
  end
end)

describe("sequences and boxes", function()
  it("have the CPU's losses, and the CPU's choice", function()
    local labels = lm.tensor({ { 2, 2, 5 }, { 3, 4, 2 }, { 6, 2, 2 } }, { dtype = "int64" })
    for _, dtype in ipairs { "float32", "float64" } do
      local x = lm.randn(12, 3, 6, { dtype = dtype }):log_softmax(3)
      local a, b = x:clone():requires_grad_(), x:cuda():requires_grad_()
      local function loss(v, t) return F.ctc_loss(v, t, { 12, 9, 1 }, { 3, 2, 2 }, { zero_infinity = true }) end
      local want, got = loss(a, labels), loss(b, labels:cuda())
      want:backward()
      got:backward()
      assert.is_true(got:cpu():allclose(want))
      assert.is_true(b.grad:cpu():allclose(a.grad, { atol = 1e-6 }))
      for _, n in ipairs { 1, 63, 64, 65, 300, 1500, dtype == "float32" and 8200 or 128 } do
        local corner = lm.rand(n, 2, { dtype = dtype }) * (n > 1000 and 300 or 30)
        local boxes, scores = lm.cat({ corner, corner + lm.rand(n, 2, { dtype = dtype }) * 20 }, 2), lm.rand(n)
        local best = lm.vision.nms(boxes, scores, 0.3)
        assert.is_true(lm.vision.nms(boxes:cuda(), scores:cuda(), 0.3):cpu():equal(best), n .. " boxes")
      end
    end
    local bad = pcall(function()
      F.ctc_loss(lm.zeros(3, 1, 4):cuda(), lm.tensor({ { 9 } }, { dtype = "int64" }):cuda(), { 3 }, { 1 }):item()
    end)
    assert.is_false(bad)
  end)
end)

describe("optimizers", function()
  -- Parameters of sizes around a chunk's, some at odd addresses, with their gradients; on both sides.
  local function parameters(dtype, n)
    local lists = { {}, {} }
    for i = 1, n do
      local count = ({ 5, 16, 4096, 4097, 9000, 1, 0 })[i % 7 + 1]
      local base, grad = lm.randn({ count + 3 }):to(dtype), lm.randn({ count }):to(dtype)
      for side, device in ipairs { "cpu", "cuda" } do
        local p = base:to(device):narrow(1, i % 3 == 0 and 2 or 1, count)
        if i % 3 ~= 0 then p = p:clone() end
        p = p:detach():requires_grad_()
        p.grad = grad:to(device)
        lists[side][i] = p
      end
    end
    return unpack(lists)
  end

  local function check(what, here, there, tol, get)
    for i = 1, #here do
      same(what .. ", parameter " .. i, tol, function(t) return t end,
        setmetatable({ here = get(here[i]), there = get(there[i]) }, getmetatable(twin(lm.zeros { 1 }))))
    end
  end

  local steps = {
    { "SGD", { lr = 0.1 } }, { "SGD", { lr = 0.1, weight_decay = 0.1, maximize = true } },
    { "SGD", { lr = 0.1, momentum = 0.9, dampening = 0.1 } },
    { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01 } },
    { "Adam", { lr = 0.01 } }, { "Adam", { lr = 0.01, weight_decay = 0.1, amsgrad = true } },
    { "AdamW", { lr = 0.01 } }, { "AdamW", { lr = 0.01, amsgrad = true, maximize = true } },
    { "Adamax", { weight_decay = 0.1 } }, { "NAdam", { weight_decay = 0.1, decoupled_weight_decay = true } },
    { "RAdam", { betas = { 0.5, 0.7 } } }, { "Adagrad", { lr = 0.01, weight_decay = 0.1 } },
    { "Adadelta", { lr = 0.1 } }, { "Rprop", {} }, { "ASGD", { t0 = 1 } },
    { "RMSprop", { lr = 0.001 } }, { "RMSprop", { lr = 0.001, centered = true, eps = 0.1 } },
    { "RMSprop", { lr = 0.001, centered = true, momentum = 0.9, eps = 0.1, weight_decay = 0.1 } },
    { "RMSprop", { lr = 0.001, momentum = 0.9 } }, { "Lion", { weight_decay = 0.1, maximize = true } },
  }

  it("step", function()
    compare.rounds(#steps * 2, #steps * 20, function(seed)
      local how = steps[seed % #steps + 1]
      local dtype = one_of(compare.floats)
      local here, there = parameters(dtype, random(3) == 1 and 150 or 10)
      local a, b = lm.optim[how[1]](here, how[2]), lm.optim[how[1]](there, how[2])
      for _ = 1, 3 do
        a:step()
        b:step()
      end
      check(how[1] .. " " .. dtype, here, there, tolerance(dtype, 4), function(p) return p:detach() end)
    end)
  end)

  it("clip_grad_norm_", function()
    compare.rounds(8, 80, function(seed)
      local dtype, p = compare.floats[seed % 4 + 1], ({ 1, 2, 3.5, math.huge })[random(4)]
      local here, there = parameters(dtype, 140)
      local a = nn.utils.clip_grad_norm_(here, 0.5, { norm_type = p }):item()
      local b = nn.utils.clip_grad_norm_(there, 0.5, { norm_type = p }):item()
      assert.near(a, b, 1e-9 * a)
      check("gradients in " .. dtype, here, there, tolerance(dtype), function(t) return t.grad end)
      here[4].grad[2] = 0 / 0
      there[4].grad[2] = 0 / 0
      a = nn.utils.clip_grad_norm_(here, 0.5, { norm_type = p }):item()
      b = nn.utils.clip_grad_norm_(there, 0.5, { norm_type = p }):item()
      assert.is_true(a ~= a and b ~= b)
    end)
  end)
end)

describe("a convolution network in channels-last", function()
  it("has such weights and such gradients", function()
    local net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 2)):to("cuda",
      { memory_format = "channels_last" })
    net(lm.randn({ 2, 3, 9, 9 }, { device = "cuda" })):sum():backward()
    for _, k in ipairs { 1, 3 } do
      assert.is_true(net[k].weight:is_contiguous { memory_format = "channels_last" })
      assert.is_true(net[k].weight.grad:is_contiguous { memory_format = "channels_last" })
    end
  end)

  it("computes as the CPU does", function()
    local cudnn = lm.backends.cudnn
    local before = cudnn.allow_tf32
    cudnn.allow_tf32 = false
    finally(function() cudnn.allow_tf32 = before end)
    compare.rounds(32, 400, function()
      local groups, dtype = one_of { 1, 1, 2 }, one_of { "float32", "float64" }
      local weight = lm.randn({ groups * random(4), random(3), random(3), random(3) }):to(dtype)
      local size = { random(3), weight.shape[2] * groups, 4 + random(6), 4 + random(6) }
      local how = { stride = random(2), padding = random(0, 1), dilation = random(2), groups = groups }
      local last = random(2) == 1
      if last then weight = weight:contiguous { memory_format = "channels_last" } end
      local tol = dtype == "float32" and 1e-4 or 1e-10
      differentiated(what_of("conv2d", dtype, size), tol, function(x, w, b)
        return F.conv2d(x, w, b, how)
      end, { twin(some(dtype, size, last)), twin(weight), twin(lm.randn({ weight.shape[1] }):to(dtype)) })
    end)
  end)
end)

describe("copies between float32 and 16 bits", function()
  it("are the CPU's in bits, of any size, at any address and in any layout", function()
    local far = lm.tensor { math.huge, -math.huge, 0, -0.0, 1e-8, 6e-5, 65520, -3e38 }
    for _, n in ipairs { 1, 7, 8, 9, 2048, 4099 } do
      local x = lm.cat({ lm.randn({ n }), far }, 1)[{ { 1, n } }]
      if n >= 8 then x[{ { 1, 8 } }] = far end
      for _, low in ipairs { "float16", "bfloat16" } do
        for _, pair in ipairs { { "float32", low }, { low, "float32" } } do
          local from = x:to(pair[1])
          local on_gpu = from:cuda()
          local what = ("%d from %s to %s"):format(n, pair[1], pair[2])
          assert.is_true(on_gpu:to(pair[2]):cpu():equal(from:to(pair[2])), what)
          if n > 1 then -- begins off a boundary of 16 bytes
            local later, expected = on_gpu:narrow(1, 2, n - 1), from:narrow(1, 2, n - 1):to(pair[2])
            assert.is_true(later:to(pair[2]):cpu():equal(expected), what)
          end
        end
      end
    end
    local image = lm.randn({ 2, 3, 4, 5 })
    local channels_last = image:contiguous { memory_format = "channels_last" }
    for _, like in ipairs { channels_last, image:transpose(1, 4), image[{ {}, 2 }] } do
      local copy = like:cuda():to "bfloat16"
      assert.is_true(copy:cpu():equal(like:to "bfloat16"))
      assert.same(like:to("bfloat16"):stride(), copy:stride())
      local into = lm.zeros(like.shape, { device = "cuda" })
      into:copy_(copy)
      assert.is_true(into:cpu():equal(like:to("bfloat16"):float()))
    end
  end)
end)
