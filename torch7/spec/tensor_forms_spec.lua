-- Tests the call forms of Torch7's tensor functions, their operands, storages, random numbers and printed texts.
local torch = require "luminary.torch7"

local function same(want, got) assert.same(want, torch.isTensor(got) and got:totable() or got) end

describe("a function of Torch7", function()
  it("writes into result tensors, as torch.f and as a method", function()
    local x, r, i = torch.Tensor { { 3, 1 }, { 2, 4 } }, torch.Tensor(), torch.LongTensor()
    for name, case in pairs {
      sum = { { { 5, 5 } }, 1 }, view = { { 3, 1, 2, 4 }, 4 }, index = { { { 2, 4 } }, 1, torch.LongTensor { 2 } },
      reshape = { { { 3, 1, 2, 4 } }, 1, 4 }, cumsum = { { { 3, 4 }, { 2, 6 } }, 2 },
      cmul = { { { 9, 1 }, { 4, 16 } }, x },
      add = { { { 4, 2 }, { 3, 5 } }, 1 }, lt = { { { 0, 1 }, { 1, 0 } }, 3 }, exp = { torch.exp(x):totable() },
      maskedSelect = { { 3, 4 }, x:gt(2) }, gather = { { { 1 }, { 2 } }, 2, torch.LongTensor { { 2 }, { 1 } } },
      expand = { { { 3, 1 }, { 2, 4 } }, 2, 2 }, repeatTensor = { { { 3, 1, 3, 1 }, { 2, 4, 2, 4 } }, 1, 2 },
      cat = { { { 3, 1 }, { 2, 4 }, { 3, 1 }, { 2, 4 } }, x, 1 }, norm = { { { 10 ^ 0.5 }, { 20 ^ 0.5 } }, 2, 2 },
      tril = { { { 3, 0 }, { 2, 4 } } }, mm = { (x * x):totable(), x }, addmm = { (x + x * x):totable(), x, x },
    } do
      r = torch.Tensor()
      assert.equal(r, torch[name](r, x, select(2, unpack(case))), name)
      same(case[1], r)
      r = torch.FloatTensor(1)
      assert.equal(r, r[name](r, x, select(2, unpack(case))), name)
      assert.is_true(r:double():dist(torch.Tensor(case[1])) < 1e-4, name)
    end
    torch.max(r, i, x, 2)
    same({ { 3 }, { 4 } }, r)
    same({ { 1 }, { 2 } }, i)
    r:sort(i, x, 1)
    same({ { 2, 1 }, { 3, 4 } }, r)
    same({ { 2, 1 }, { 1, 2 } }, i)
    assert.equal(r, torch.randn(r, 2, 3))
    assert.equal(6, r:nElement())
    same({ 1, 2, 3 }, torch.range(r, 1, 3))
    same({ { 0, 1 }, { 2, 3 } }, torch.Tensor(2, 2):range(0, 3))
    same({ 2, 3, 4 }, torch.IntTensor():add(torch.IntTensor { 1, 2, 3 }, 1))
  end)

  it("takes operands of as many elements, in x's sizes, and broadcasts nothing", function()
    local x, y = torch.Tensor { 1, 2 }, torch.Tensor { { 3 }, { 4 } }
    for _, r in ipairs { x - y, torch.csub(x, y), x:clone():csub(y), x:clone():add(-1, y) } do same({ -2, -2 }, r) end
    same({ { 3 }, { 8 } }, torch.cmul(y, x))
    same({ 3, 8 }, x:clone():cmul(y))
    same({ 1, 0 }, x:lt(torch.Tensor { { 2 }, { 1 } }))
    assert.equal(11, x:dot(y))
    for _, f in ipairs { "add", "cmul", "cdiv", "copy", "lt", "dot" } do
      assert.error_matches(function() y[f](y, torch.ones(1)) end, f .. ": the numbers of elements must match, got")
    end
    local z = torch.zeros(2, 2)
    z[1] = torch.Tensor { { 5 }, { 6 } }
    z[{ 2, 1 }] = torch.Tensor { 7 }
    same({ { 5, 6 }, { 7, 0 } }, z)
  end)

  it("computes integers as C does", function()
    same({ 44, 44 }, torch.ByteTensor(2):fill(300))
    same({ 255, 254 }, torch.ByteTensor { -1, 300 }:mul(1):csub(torch.ByteTensor { 0, 46 }))
    same({ 7, 3 }, torch.IntTensor { 7, 3 }:mul(1.5))
    same({ 3, -3 }, torch.LongTensor { 7, -7 }:div(2))
    same({ 1 }, torch.CharTensor { 127 }:add(2):add(128))
    same({ 1.5 }, torch.Tensor { 3.5 } % 2)
    same({ 0, 0 }, torch.IntTensor { 1, 2 }:lt(1.5)) -- compares with 1
    assert.equal(510, torch.ByteTensor { 255, 255 }:sum())
    assert.equal(1 / 3, torch.FloatTensor { 1, 0, 0 }:mean()) -- in double precision
  end)

  it("takes numbers, and truncates sizes and indices", function()
    same({ 7, 2, 3, 8, 0.5 }, { torch.floor(7.5), torch.sqrt(4), torch.abs(-3), torch.pow(2, 3), torch.sigmoid(0) })
    assert.equal(2, torch.Tensor(2.7):nElement())
    assert.equal(2, torch.range(1, 9)[2.9])
    same({ 2, 3 }, torch.range(1, 5):narrow(1, 5 / 2, 5 / 2))
    same({ 2, 3 }, torch.range(1, 5):sub(2.2, 3.5))
    assert.equal(3, torch.range(1, 5):select(2, 3))
  end)

  it("reads numbers from strings of digits in tables", function()
    assert.same({ { 1, 2.5 }, { 3, 4 } }, torch.Tensor { { "1", 2.5 }, { "3", 4 } }:totable())
    assert.has_error(function() torch.Tensor { "one" } end)
  end)

  it("says which forms it has", function()
    assert.error_matches(function() torch.topk {} end,
      "^torch.topk: expected %(tensor, %[number%], %[number%], %[boolean%], %[boolean%]%), after result tensors if any")
    assert.error_matches(function() torch.zeros(2):apply(3) end, "^apply: f must be a function, got 3")
    assert.error_matches(function() torch.mm(torch.ones(2), torch.ones(2)) end,
      "^torch.mm: expected tensors of 2 and 2 dims, got 1 and 1")
  end)
end)

describe("a type of Torch7", function()
  it("has its own metatable and constructor", function()
    local x = torch.FloatTensor(3)
    assert.equal("torch.FloatTensor", x.new(2, 2):type())
    assert.equal(4, torch.FloatTensor.new(2, 2):nElement())
    assert.equal(0, x.new():nElement())
    function torch.FloatTensor.spec_only() return 5 end
    assert.equal(5, x:spec_only())
    assert.is_nil(torch.DoubleTensor(1).spec_only)
    torch.getmetatable("torch.FloatTensor").spec_only = nil
    assert.is_nil(x.spec_only)
    assert.equal(torch.DoubleTensor, torch.Tensor)
    assert.equal("torch.LongTensor", torch.factory "torch.LongTensor"():type())
    for kind, wanted in pairs { [torch.FloatTensor] = true, [torch.IntTensor] = false, ["torch.*Tensor"] = true,
      FloatTensor = true, ["torch.Float"] = false } do
      assert.equal(wanted, torch.isTypeOf(x, kind))
    end
  end)

  it("is a storage, which views share, with offset, sizes and strides", function()
    local x = torch.range(1, 6):resize(2, 3)
    local s, column = x:storage(), x:select(2, 2)
    assert.is_true(s == column:storage() and s ~= x:clone():storage())
    assert.equal(torch.pointer(s), torch.pointer(column:storage()))
    assert.same({ 6, 2, 3, 8 }, { #column:storage(), column:storageOffset(), column:stride(1), x:elementSize() })
    s[2] = 9
    assert.equal(9, column[1])
    same({ 3, 6 }, torch.Tensor(s, 3, 2, 3))
    same({ { 9, 3 }, { 4, 5 } }, torch.Tensor():set(s, 2, 2, 2, 2, 1))
    local sizes = torch.LongStorage { 3, 4, 5 }
    local part = torch.LongStorage(sizes, 2)
    part[1] = 13
    assert.same({ 3, 13, 5 }, sizes:totable())
    torch.LongTensor(sizes):fill(1)
    assert.same({ 1, 1, 1 }, sizes:totable())
    assert.equal(6, torch.LongTensor(x:size()):prod())
    assert.error_matches(function() torch.Tensor(s, 3, 2, 4) end, "must be within a storage of 48 bytes")
    assert.equal("torch.FloatStorage", torch.type(s:float()))
  end)

  it("is a class of its element's size, also of sizes", function()
    assert.same({ 4, 8 }, { torch.FloatStorage.elementSize(), torch.LongStorage.elementSize() })
    local sizes = torch.setmetatable({ 2, 3 }, "torch.LongStorage")
    assert.same({ 2, 3 }, torch.zeros(sizes):size():totable())
  end)

  it("prints as in Torch7", function()
    for text, x in pairs {
      [" 1\n 2\n[torch.IntTensor of size 2]\n"] = torch.IntTensor { 1, 2 },
      [" 0.5000  1.0000\n-2.0000  3.0000\n[torch.DoubleTensor of size 2x2]\n"] = torch.Tensor { { 0.5, 1 }, { -2, 3 } },
      ["1e+06 *\n 1.2345\n 2.0000\n[torch.DoubleTensor of size 2]\n"] = torch.Tensor { 1234500.5, 2000000 },
      [" 1.0000e-05\n 1.5000e+01\n[torch.DoubleTensor of size 2]\n"] = torch.Tensor { 1e-5, 15 },
      ["(1,.,.) = \n  1\n  2\n\n(2,.,.) = \n  3\n  4\n[torch.ByteTensor of size 2x2x1]\n"] =
        torch.ByteTensor { { { 1 }, { 2 } }, { { 3 }, { 4 } } },
      ["[torch.FloatTensor with no dimension]\n"] = torch.FloatTensor(),
      [" 2\n 3\n[torch.LongStorage of size 2]\n"] = torch.ones(2, 3):size(),
      [" 4\n[torch.ByteStorage of size 1]\n"] = torch.ByteStorage { 4 },
    } do
      assert.equal(text, tostring(x))
    end
    local wide = tostring(torch.range(1, 60):view(1, 60))
    assert.matches("^Columns 1 to 20\n  1   2 .*\n\nColumns 21 to 40\n 21  22.*Columns 41 to 60\n", wide)
  end)
end)

describe("random numbers of Torch7", function()
  it("come from a generator of their own", function()
    local g = torch.Generator()
    torch.manualSeed(g, 3)
    local kept = torch.deserialize(torch.serialize(g))
    local a = { torch.uniform(g), torch.random(g, 9), torch.randperm(g, 5)[1], torch.rand(g, 2)[2] }
    assert.same(a, { torch.uniform(kept), torch.random(kept, 9), torch.randperm(kept, 5)[1], torch.rand(kept, 2)[2] })
    assert.equal(3, torch.initialSeed(g))
    local state = torch.getRNGState(g)
    local b = torch.Tensor(3):normal(g, 0, 1)
    torch.setRNGState(g, state)
    assert.is_true(b:equal(torch.Tensor(3):normal(g)))
    local global = torch.getRNGState()
    torch.randn(g, 4)
    assert.is_true(global:equal(torch.getRNGState()))
  end)

  it("have tensors of parameters, and alias tables", function()
    same({ 0, 1, 0 }, torch.ByteTensor(3):bernoulli(torch.Tensor { 0, 1, 0 }))
    same({ 3, 5 }, torch.Tensor(2):normal(torch.Tensor { 3, 5 }, 0))
    torch.manualSeed(1)
    local state = torch.multinomialAliasSetup(torch.Tensor { 0.1, 0.2, 0.7 })
    local drawn = torch.multinomialAlias(torch.LongTensor(4000), state)
    for i, p in ipairs { 0.1, 0.2, 0.7 } do assert.near(p, drawn:eq(i):sum() / 4000, 0.03) end
  end)
end)

describe("matrix functions of Torch7", function()
  it("compute eigenvalues, complex ones in pairs", function()
    torch.manualSeed(2)
    for _, n in ipairs { 1, 2, 7, 20 } do
      local a = torch.randn(n, n)
      local e, v = torch.eig(a, "V")
      assert.near(torch.trace(a), e:select(2, 1):sum(), 1e-10)
      local i = 1
      while i <= n do
        local re, im, x = e[i][1], e[i][2], v:select(2, i)
        if im == 0 then
          assert.near(0, torch.dist(a * x, x * re), 1e-10)
        else
          local y = v:select(2, i + 1)
          assert.near(0, torch.dist(a * x, x * re - y * im) + torch.dist(a * y, x * im + y * re), 1e-10)
          assert.same({ re, -im }, e[i + 1]:totable())
          i = i + 1
        end
        i = i + 1
      end
    end
    assert.near(0, torch.eig(torch.Tensor { { 0, 1 }, { -1, 0 } }):dist(torch.Tensor { { 0, 1 }, { 0, -1 } }), 1e-14)
    assert.near(40, torch.eig(torch.ones(20, 20) * 2):max(), 1e-12)
    assert.error_matches(function() torch.eig(torch.ones(2, 3)) end, "expected a square matrix, got sizes 2x3")
    assert.error_matches(function() torch.eig(torch.Tensor { { 0 / 0, 1 }, { 1, 2 } }) end, "x must be finite")
  end)

  it("pivot, and return results in columns", function()
    torch.manualSeed(3)
    local m = torch.rand(5, 2)
    local a = m * m:t() + torch.eye(5) * 1e-7
    for _, part in ipairs { "U", "L" } do
      local factor, order = torch.pstrf(a, part)
      if part == "U" then factor = factor:t() end
      local ordered = a:index(1, order:long()):index(2, order:long())
      assert.near(0, torch.dist(factor * factor:t(), ordered), 1e-12)
    end
    local u, s, v = torch.zeros(5, 5), torch.Tensor(), torch.Tensor()
    torch.svd(u, s, v, a)
    assert.is_false(u:isContiguous())
    assert.near(0, torch.dist(u * torch.diag(s) * v:t(), a), 1e-12)
  end)

  it("convolve planes", function()
    local x, k = torch.range(1, 18):view(2, 3, 3), torch.Tensor { { { 1, 0 }, { 0, -1 } }, { { 2, 0 }, { 0, 1 } } }
    local planes = torch.conv2(x, k)
    same(torch.conv2(x[2], k[2]):totable(), planes[2])
    local sums = torch.xcorr2(x, torch.Tensor(1, 2, 2, 2):copy(k))
    same((torch.xcorr2(x[1], k[1]) + torch.xcorr2(x[2], k[2])):totable(), sums[1])
    local volumes = torch.conv3(torch.ones(2, 2, 2, 2), torch.ones(3, 2, 1, 2, 2))
    assert.same({ 3, 2, 1, 1 }, volumes:size():totable())
    assert.equal(8, volumes:max())
  end)
end)
