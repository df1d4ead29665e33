-- Paddings as layers, dropouts of channels, shuffles, Unflatten, Bilinear, Embedding's options: PyTorch's values.
local lm = require "luminary"
local message = require "spec.support.error_of"
local nn, F = lm.nn, lm.nn.functional

local function is(want, t)
  local got = t:detach():reshape({ -1 }):totable()
  assert.equal(#want, #got)
  for i, v in ipairs(want) do assert.near(v, got[i], 1e-5) end
end

local function count(...) return lm.arange((...), { dtype = "float32" }):view(select(2, ...)) end

describe("a padding layer", function()
  local x = count(6, 1, 2, 3)
  local cases = {
    { nn.ReflectionPad1d { 1, 2 }, "ReflectionPad1d((1, 2))", { 1, 0, 1, 2, 1, 0, 4, 3, 4, 5, 4, 3 } },
    { nn.ReplicationPad1d { 2, 1 }, "ReplicationPad1d((2, 1))", { 0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 5, 5 } },
    { nn.CircularPad1d(1), "CircularPad1d((1, 1))", { 2, 0, 1, 2, 0, 5, 3, 4, 5, 3 } },
    { nn.ConstantPad1d({ 1, -1 }, 2.5), "ConstantPad1d(padding=(1, -1), value=2.5)", { 2.5, 0, 1, 2.5, 3, 4 } },
    { nn.ZeroPad2d { 1, 0, 0, 1 }, "ZeroPad2d((1, 0, 0, 1))", { 0, 0, 1, 2, 0, 3, 4, 5, 0, 0, 0, 0 } },
  }
  for _, case in ipairs(cases) do
    it(case[2], function()
      assert.equal(case[2], tostring(case[1]))
      is(case[3], case[1](x))
    end)
  end
  it("of each kind and number of dims is F.pad", function()
    local x3 = lm.randn { 2, 2, 4, 4, 4 }
    for n = 1, 3 do
      for name, mode in pairs {
        ZeroPad = "constant", ReflectionPad = "reflect", ReplicationPad = "replicate", CircularPad = "circular",
      } do
        local input, sides = n == 1 and x3[1][1] or n == 2 and x3[1] or x3, {}
        for i = 1, 2 * n do sides[i] = 1 + i % 2 end
        local y = nn[("%s%dd"):format(name, n)](sides)(input)
        assert(y:equal(F.pad(input, sides, { mode = mode })), name .. n)
      end
    end
  end)
  it("refuses other numbers of sides", function()
    assert.matches("padding must be an integer or a list of 4 (before and", message(nn.ZeroPad2d, { 1, 2 }), 1, true)
    assert.matches("value is missing or nil; expected a number", message(nn.ConstantPad1d, 1), 1, true)
  end)
end)

describe("pixels and channels are shuffled:", function()
  it("as PyTorch does", function()
    is({ 0, 1, 2, 3, 4, 5, 6, 7 }, nn.PixelShuffle(2)(count(8, 1, 8, 1, 1)))
    is({ 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15 }, nn.PixelUnshuffle(2)(count(16, 1, 2, 2, 4)))
    is({ 0, 2, 4, 1, 3, 5 }, nn.ChannelShuffle(3)(count(6, 1, 6, 1)))
    local x = lm.randn { 2, 8, 3, 5 }
    assert(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2):equal(x))
  end)
  it("with gradients", function()
    local x = lm.randn({ 1, 4, 2, 2 }, { dtype = "float64", requires_grad = true })
    assert(lm.autograd.gradgradcheck(function(v) return F.pixel_shuffle(v, 2):sin() end, { x }))
  end)
  it("where sizes fit", function()
    assert.matches("the number of channels (6) must be divisible by upscale_factor^2 (4)",
      message(F.pixel_shuffle, lm.ones { 6, 1, 1 }, 2), 1, true)
    assert.matches("pixel_unshuffle: height %(3%) and width %(2%) must be divisible by downscale_factor %(2%)$",
      message(F.pixel_unshuffle, lm.ones { 1, 3, 2 }, 2))
    assert.matches("channel_shuffle: the number of channels %(6%) must be divisible by groups %(4%)$",
      message(F.channel_shuffle, lm.ones { 1, 6, 2 }, 4))
  end)
end)

describe("dropout of channels", function()
  it("drops whole ones and scales the rest", function()
    for n, name in ipairs { "Dropout1d", "Dropout2d", "Dropout3d" } do
      local shape = { 4, 50, 3, 3, 3 }
      for _ = n + 3, 5 do shape[#shape] = nil end
      local layer = nn[name](0.4)
      local y = layer(lm.ones(shape)):reshape({ 200, -1 })
      local first = y:select(2, 1):contiguous():unsqueeze(2)
      assert(y:equal(first:expand(y.shape)))
      assert.near(0.4, first:eq(0):to("float32"):mean():item(), 0.15)
      assert.near(1 / 0.6, first:max():item(), 1e-5)
      assert(layer:eval()(y:view(shape)):equal(y:view(shape)))
      assert.equal(name .. "(p=0.4, inplace=False)", tostring(layer))
    end
    assert.matches("dropout2d: expected x to have shape %[N, C, H, W%] or %[C, H, W%], got %[2, 2%]$",
      message(F.dropout2d, lm.ones { 2, 2 }))
  end)
  it("keeps mean and variance in AlphaDropout", function()
    lm.manual_seed(3)
    local x = lm.randn { 100, 100, 4 }
    for _, layer in ipairs { nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3) } do
      local y = layer(x)
      assert.near(0, y:mean():item(), 0.05)
      assert.near(1, y:std():item(), 0.05)
      assert(layer:eval()(x):equal(x))
    end
    assert(F.alpha_dropout(x, { p = 1, training = true }):equal(lm.zeros(x.shape)))
    assert(F.alpha_dropout(x):equal(x))
    local v = lm.ones(5) -- has no channels, which only a mask asks for
    assert.equal(v, F.feature_alpha_dropout(v))
    assert.equal(v, F.feature_alpha_dropout(v, { p = 0, training = true }))
    assert.same({ 0, 0, 0, 0, 0 }, F.feature_alpha_dropout(v, { p = 1, training = true }):totable())
    assert.same({ 0 }, F.feature_alpha_dropout(lm.ones(0), { training = true }).shape)
    assert.error_matches(function() F.feature_alpha_dropout(v, { training = true }) end,
      "^feature_alpha_dropout: expected x to have shape %[N, C, …%], got %[5%]$")
  end)
end)

describe("Unflatten", function()
  it("makes one dim several", function()
    local layer = nn.Unflatten(2, { 2, -1 })
    assert.same({ 3, 2, 3 }, layer(lm.ones { 3, 6 }).shape)
    assert.same({ 2, 3, 6 }, nn.Unflatten(1, { 2, 3 })(lm.ones { 6, 6 }).shape)
    assert.same({ 3, 3, 2 }, nn.Unflatten(-1, { 3, 2 })(lm.ones { 3, 6 }).shape)
    for _, sizes in ipairs {{3, 5}, {3, -1}, {-1, -1}, {0, -1}} do
      local text = "Unflatten: dim 2 of a tensor [2, 4] has size 4, which does not match unflattened_size {%d, %d}"
      assert.matches(text:format(unpack(sizes)), message(nn.Unflatten(2, sizes), lm.ones {2, 4}), 1, true)
    end
    assert.same({2, 0, 3}, nn.Unflatten(2, {0, 3})(lm.ones {2, 0}).shape)
    assert.same({0, 2, 3}, nn.Unflatten(2, {2, -1})(lm.ones {0, 6}).shape)
    assert.same({2, 0, 3}, nn.Unflatten(2, {-1, 3})(lm.ones {2, 0}).shape)
    assert.matches("Unflatten: dim 3 is out of range for a tensor %[2%]$",
      message(nn.Unflatten(3, { 1 }), lm.ones { 2 }))
    assert.matches("Unflatten: unflattened_size must be a list of sizes, of which one may be %-1, got 3$",
      message(nn.Unflatten, 2, 3))
  end)
end)

describe("Bilinear", function()
  it("gives PyTorch's values, and gradients", function()
    local x1, x2, w = count(4, 2, 2) / 3, count(6, 2, 3) / 5, count(12, 2, 2, 3) / 7
    is({ 1.133333, 2.304762, 2.695238, 7.12381 }, F.bilinear(x1, x2, w, lm.tensor { 1, 2 }))
    local function leaf(t) return t:to("float64"):requires_grad_() end
    assert(lm.autograd.gradgradcheck(F.bilinear, { leaf(x1), leaf(x2), leaf(w) }))
    local layer = nn.Bilinear(2, 3, 4)
    assert.same({ 5, 2, 4 }, layer(lm.ones { 5, 2, 2 }, lm.ones { 5, 2, 3 }).shape)
    assert.same({ 4 }, layer(lm.ones { 2 }, lm.ones { 3 }).shape)
    assert.equal("Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True)", tostring(layer))
    assert.matches("bilinear: expected x1 %[%.%.%., 2%] and x2 %[%.%.%., 3%], got a tensor %[2%] and a tensor %[2%]$",
      message(layer, lm.ones { 2 }, lm.ones { 2 }))
  end)
end)

describe("Embedding", function()
  local function weight() return count(8, 4, 2) end
  local function index(...) return lm.tensor({ ... }, { dtype = "int64" }) end
  it("shortens the rows it looks up to max_norm", function()
    local layer = nn.Embedding.from_pretrained(weight(), { max_norm = 3 })
    is({ 1.664101, 2.496151, 1.952374, 2.27777 }, layer(index(2, 4)))
    is({ 0, 1, 1.664101, 2.496151, 4, 5, 1.952374, 2.27777 }, layer.weight)
    assert.equal("Embedding(4, 2, max_norm=3.0)", tostring(layer))
  end)
  it("divides gradients by how often a row occurs", function()
    local w = weight():requires_grad_()
    local y = F.embedding(index(2, 4, 2), w, { scale_grad_by_freq = true })
    ;(y * lm.tensor { { 1 }, { 2 }, { 3 } }):sum():backward()
    is({ 0, 0, 2, 2, 0, 0, 2, 2 }, w.grad)
  end)
  it("freezes what was trained before", function()
    local w = weight()
    assert.is_false(nn.Embedding.from_pretrained(w).weight.requires_grad)
    local layer = nn.Embedding.from_pretrained(w, { freeze = false, padding_idx = 1 })
    assert.is_true(layer.weight.requires_grad)
    assert.equal(w:data_ptr(), layer.weight:data_ptr())
    assert.equal("Embedding(4, 2, padding_idx=1)", tostring(layer))
  end)
  it("has no sparse gradients", function()
    assert.matches("Embedding: unknown option 'sparse'; gradients are dense here; leave it out$",
      message(nn.Embedding, 2, 2, { sparse = true }))
    assert.matches("embedding: unknown option 'sparse'; gradients are dense here; leave it out$",
      message(F.embedding, index(1), weight(), { sparse = true }))
  end)
end)

describe("Embedding of padding alone", function()
  it("has a gradient of 0", function()
    for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
      for _, shape in ipairs { { 2, 3 }, { 0 }, {} } do
        local layer = nn.Embedding(10, 4, { padding_idx = 1 }):to(dtype)
        layer(lm.ones(shape):long()):float():sum():backward()
        assert.equal(0, layer.weight.grad:float():abs():sum():item())
        assert.same({ 10, 4 }, layer.weight.grad.shape)
      end
    end
  end)
end)

describe("EmbeddingBag", function() -- values are PyTorch's
  local function weight() return count(8, 4, 2) end
  local function long(...) return lm.tensor({ ... }, { dtype = "int64" }) end
  local index, offsets = long(2, 4, 2, 1, 3), long(1, 3, 3)
  local g = lm.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }
  it("sums, averages or compares the rows of each bag, also of none, and leaves padding out", function()
    local t, h, s = 5 / 3, 13 / 6, 1 / 2
    for _, case in ipairs {
      { "sum", nil, { 8, 10, 0, 0, 6, 9 }, { 5, 6, 6, 8, 5, 6, 1, 2 } },
      { "sum", 2, { 6, 7, 0, 0, 4, 6 }, { 5, 6, 0, 0, 5, 6, 1, 2 } },
      { "mean", nil, { 4, 5, 0, 0, 2, 3 }, { t, 2, h, 3, t, 2, s, 1 } },
      { "mean", -3, { 6, 7, 0, 0, 2, 3 }, { 2.5, 3, 0, 0, 2.5, 3, 1, 2 } },
      { "max", nil, { 6, 7, 0, 0, 4, 5 }, { 0, 0, 0, 0, 5, 6, 1, 2 } },
      { "max", 2, { 6, 7, 0, 0, 4, 5 }, { 0, 0, 0, 0, 5, 6, 1, 2 } },
    } do
      local w = weight():requires_grad_()
      local y = F.embedding_bag(index, w, offsets, { mode = case[1], padding_idx = case[2] })
      is(case[3], y)
      ;(y * g):sum():backward()
      is(case[4], w.grad)
    end
  end)
  it("passes a maximum's gradient to the first of equal rows", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local w = lm.tensor({ { 1, 2 }, { 1, 3 }, { 0, 3 } }, { dtype = dtype }):requires_grad_()
      local bags = F.embedding_bag(long(1, 2, 3, 3, 2), w, { offsets = long(1, 4, 4), mode = "max" })
      is({ 1, 3, 0, 0, 1, 3 }, bags:float():flatten())
      bags:sum():backward()
      is({ 1, 0, 1, 1, 0, 1 }, w.grad:float():flatten())
    end
    local w = lm.tensor({ { 1 }, { 0 / 0 }, { 3 } }):requires_grad_()
    local y = F.embedding_bag(long(1, 2, 3):view(1, 3), w, { mode = "max" })
    assert(y:isnan():all():item())
    y:sum():backward()
    is({ 0, 1, 0 }, w.grad:flatten())
    local none = lm.zeros({ 0 }, { dtype = "int64" })
    is({ 0, 0 }, F.embedding_bag(none, w, { offsets = long(1, 1), mode = "max" }):flatten())
  end)
  it("weighs the rows of a sum; the last offset may be where the last bag ends", function()
    local w, each = weight():requires_grad_(), count(5, 5):add(1):requires_grad_()
    local y = F.embedding_bag(index, w, {
      offsets = long(1, 3, 6), mode = "sum", per_sample_weights = each, include_last_offset = true,
    })
    is({ 14, 17, 26, 38 }, y)
    ;(y * g[{ { 1, 2 } }]):sum():backward()
    is({ 12, 16, 10, 14, 15, 20, 2, 4 }, w.grad)
    is({ 8, 20, 18, 4, 32 }, each.grad)
    local sum = function(table_, weights)
      return F.embedding_bag(index, table_, offsets, { mode = "sum", per_sample_weights = weights })
    end
    local wide = { dtype = "float64", requires_grad = true }
    assert.is_true(lm.autograd.gradgradcheck(sum, { lm.randn({ 4, 2 }, wide), lm.randn({ 5 }, wide) }))
  end)
  it("takes bags of one length without offsets, shortens rows, counts them", function()
    local w = weight()
    is({ 1.430932, 2.122535 }, F.embedding_bag(index:view(1, 5), w, { max_norm = 3 }))
    is({ 0, 1, 1.664101, 2.496151, 1.874085, 2.342606, 1.952374, 2.27777 }, w)
    w = weight():requires_grad_()
    F.embedding_bag(index, w, offsets, { mode = "sum", scale_grad_by_freq = true }):sum():backward()
    is({ 1, 1, 1, 1, 1, 1, 1, 1 }, w.grad)
  end)
  it("sums bags of like lengths as it does those of any", function()
    lm.manual_seed(2)
    for _, dtype in ipairs { "float32", "float64", "float16" } do
      local w = lm.randn({ 20, 33 }, { dtype = dtype })
      local entries, each = lm.randint(1, 21, { 60 }), lm.rand({ 60 }, { dtype = dtype })
      local alike, unlike = { 1, 6, 10, 14, 20, 24, 30, 35, 40, 45, 49, 55 }, { 1, 1, 59, 60, 61, 61 }
      for _, begins in ipairs { alike, unlike } do
        for _, padding_idx in ipairs { 0, 7, -3 } do
          for _, mode in ipairs { "sum", "weighed", "mean" } do
            local weighed, own, mine = mode == "weighed", w:clone():requires_grad_(), each:clone():requires_grad_()
            local y = F.embedding_bag(entries, own, long(unpack(begins)), {
              mode = weighed and "sum" or mode, padding_idx = padding_idx, per_sample_weights = weighed and mine or nil,
            })
            local rows, counted = {}, entries:ne((padding_idx + 21) % 21)
            if padding_idx == 0 then counted = entries:gt(0) end
            local other, mine2 = w:clone():double():requires_grad_(), each:clone():double():requires_grad_()
            for b, first in ipairs(begins) do
              local last = (begins[b + 1] or 61) - 1
              local sum = lm.zeros({ 33 }, { dtype = "float64" })
              local n = 0
              for k = first, last do
                if counted[k] then
                  n, sum = n + 1, sum + other[entries[k]] * (weighed and mine2:narrow(1, k, 1) or 1)
                end
              end
              rows[b] = mode == "mean" and sum / math.max(n, 1) or sum
            end
            local want, near = lm.stack(rows), { atol = dtype == "float16" and 0.05 or 1e-5, rtol = 1e-2 }
            assert.is_true(y:double():allclose(want, near))
            y:sum():backward()
            want:sum():backward()
            assert.is_true(own.grad:double():allclose(other.grad, near))
            if weighed then assert.is_true(mine.grad:double():allclose(mine2.grad, { atol = 0.1, rtol = 1e-2 })) end
          end
        end
      end
    end
  end)
  it("is a layer", function()
    local layer = nn.EmbeddingBag.from_pretrained(weight(), { mode = "sum", freeze = false, padding_idx = 2 })
    is({ 6, 7, 0, 0, 4, 6 }, layer(index, offsets))
    assert.is_true(layer.weight.requires_grad)
    assert.equal("EmbeddingBag(4, 2, mode='sum', padding_idx=2)", tostring(layer))
    assert.equal("EmbeddingBag(4, 2, max_norm=1.0, norm_type=3.0, scale_grad_by_freq=True, mode='mean')",
      tostring(nn.EmbeddingBag(4, 2, { max_norm = 1, norm_type = 3, scale_grad_by_freq = true })))
    local own = nn.EmbeddingBag(4, 2, { padding_idx = 3 })
    is({ 0, 0 }, own.weight[3])
    assert.same({ "weight" }, (function()
      local names = {}
      for name in pairs(own:state_dict()) do names[#names + 1] = name end
      return names
    end)())
  end)
  it("says what does not fit", function()
    local w = weight()
    assert.matches("offsets%[1%] must be 1", message(F.embedding_bag, index, w, long(2, 3)))
    assert.matches("offsets%[3%] must be non%-decreasing and at most 6, got 3",
      message(F.embedding_bag, index, w, long(1, 4, 3)))
    assert.matches("embedding_bag: a 1%-d index requires offsets$", message(F.embedding_bag, index, w))
    assert.matches("embedding_bag: offsets require a 1%-d index, got a tensor %[1, 5%]$",
      message(F.embedding_bag, index:view(1, 5), w, offsets))
    assert.matches("requires mode 'sum'",
      message(F.embedding_bag, index, w, offsets, { per_sample_weights = lm.ones(5) }))
    assert.matches("index 5", message(F.embedding_bag, long(5), w, long(1)))
    for _, pad in ipairs { 5, 9, -5, -9 } do
      for _, mode in ipairs { "sum", "mean", "max" } do
        assert.matches((" embedding_bag: padding_idx must be from 1 to 4, got %d"):format(pad):gsub("%-", "%%-"),
          message(F.embedding_bag, index, w, offsets, { mode = mode, padding_idx = pad }))
      end
      assert.matches((" embedding: padding_idx must be from 1 to 4, got %d"):format(pad):gsub("%-", "%%-"),
        message(F.embedding, index, w, { padding_idx = pad }))
    end
    local bag, layer = F.embedding_bag, nn.EmbeddingBag(4, 2)
    index, offsets = long(1, 2, 4), long(1, 3)
    assert.is_true(layer(index, { offsets = offsets }):equal(layer(index, offsets)))
    assert.matches("EmbeddingBag: unknown option 'offset'; did you mean 'offsets'?",
      message(layer, index, { offset = offsets }), 1, true)
    for _, f in ipairs { function() local y = F.embedding_bag(index, w, long(2)) return y end,
      function() return F.embedding_bag(index, w, long(2)) end, function() return bag(index, w, long(2)) end,
      function() return layer(index, long(2)) end } do
      assert.matches("^[^ ]+ embedding_bag: offsets%[1%] must be 1", message(f))
    end
    assert.matches("EmbeddingBag: unknown option 'sparse'; gradients are dense here; leave it out$",
      message(nn.EmbeddingBag, 2, 2, { sparse = true }))
    assert.matches("EmbeddingBag: padding_idx must be from 1 to 2, got 9$",
      message(nn.EmbeddingBag, 2, 2, { padding_idx = 9 }))
  end)
end)
