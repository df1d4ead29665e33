-- Tests Torch7's containers and layers around tables.
local lm = require "luminary"
require "luminary.torch7"
local nn = lm.nn

local function seq(...) return lm.tensor { ... } end

local function shape(x) return tostring(x.shape) end

describe("Torch7's containers", function()
  it("branch and join, with gradients", function()
    local net = nn.Sequential():add(nn.ConcatTable():add(nn.Linear(3, 2)):add(nn.Linear(3, 2))):add(nn.CAddTable())
    local x = lm.ones(4, 3)
    local want = net[1][1](x) + net[1][2](x)
    assert.is_true(net(x):allclose(want))
    net(x):sum():backward()
    for _, p in ipairs(net:parameters()) do assert.is_true(p.grad:abs():sum():item() > 0) end
    local names = {}
    for name in net:named_parameters() do names[#names + 1] = name end
    assert.equal("0.0.weight 0.0.bias 0.1.weight 0.1.bias", table.concat(names, " "))
  end)

  it("call each with its own entry, and refuse other numbers of them", function()
    local t = nn.ParallelTable(nn.MulConstant(2), nn.AddConstant(1)) { seq(1), seq(1) }
    assert.same({ 2 }, t[1]:totable())
    assert.same({ 2 }, t[2]:totable())
    t = nn.ParallelTable(nn.MulConstant(2), nn.AddConstant(2)) { seq(3), seq(3) }
    assert.same({ 6, 5 }, { t[1]:item(), t[2]:item() })
    assert.error_matches(function() nn.ParallelTable(nn.Identity()) { seq(1), seq(1) } end,
      "^ParallelTable: the table has 2 entries; expected 1, one for each module$")
    assert.error_matches(function() nn.ParallelTable(nn.Identity())(seq(1)) end,
      "^ParallelTable: the input must be a table, {a, b}, got a tensor %[1%]$")
  end)

  it("Concat joins along its dim and prints as a container", function()
    local net = nn.Concat(2, nn.Identity(), nn.MulConstant(3))
    assert.same({ { 1, 2, 3, 6 } }, net(lm.tensor { { 1, 2 } }):totable())
    assert.equal("Concat(\n  (0): Identity()\n  (1): MulConstant(3.0)\n)", tostring(net))
    assert.error_matches(function() nn.Concat(nn.Identity()) end,
      "^Concat: dim must be an integer, got a module, Identity$")
  end)
end)

describe("Torch7's layers of tables", function()
  it("compute by elements", function()
    local a, b = seq(6, 8), seq(3, 2)
    for name, want in pairs {
      CAddTable = { 9, 10 }, CMulTable = { 18, 16 }, CSubTable = { 3, 6 }, CDivTable = { 2, 4 }, CMaxTable = { 6, 8 },
      CMinTable = { 3, 2 },
    } do
      assert.same(want, nn[name]() { a, b }:totable(), name)
    end
    assert.error_matches(function() nn.CSubTable() { a } end,
      "^CSubTable: the table has 1 entries; expected at least 2$")
    assert.error_matches(function() nn.CAddTable() { a, 1 } end,
      "^CAddTable: entry 2 of the table must be a tensor, got 1$")
  end)

  it("take apart and put together", function()
    local x = lm.arange(1, 7):view { 2, 3 }
    local parts = nn.SplitTable(1, 1)(x)
    assert.equal(3, #parts)
    assert.same({ 2, 5 }, parts[2]:totable())
    assert.equal("{2, 6}", shape(nn.JoinTable(1, 1) { x, x }))
    assert.equal("{4, 3}", shape(nn.JoinTable(1) { x, x }))
    assert.equal(3, nn.SelectTable(-1) { 1, 2, 3 })
    assert.same({ 2, 3 }, nn.NarrowTable(2, 2) { 1, 2, 3 })
    assert.same({ 1, 2, 3, 4 }, nn.FlattenTable() { 1, { 2, { 3 } }, 4 })
    assert.error_matches(function() nn.SelectTable(4) { 1, 2, 3 } end,
      "^SelectTable: index 4 is out of range for 3 entries %(indices start at 1%)$")
  end)
end)

describe("Torch7's layers of shapes", function()
  local x = lm.arange(1, 13):view { 2, 2, 3 }

  it("View and Reshape keep a batch", function()
    assert.equal("{2, 6}", shape(nn.View(6)(x)))
    assert.equal("{12}", shape(nn.View(-1)(x)))
    assert.equal("{2, 6}", shape(nn.View(-1):setNumInputDims(2)(x)))
    assert.equal("{2, 6}", shape(nn.Reshape(6)(x)))
    assert.equal("{1, 6}", shape(nn.Reshape(6)(x:narrow(1, 1, 1))))
    assert.equal("{6}", shape(nn.Reshape(6, false)(x:narrow(1, 1, 1))))
    assert.equal("View((-1, 6))", tostring(nn.View(-1, 6)))
    assert.error_matches(function() nn.View() end, "^View: expected sizes, such as nn%.View%(%-1, 16%)$")
    assert.error_matches(function() nn.View(-2) end,
      "^View: size 1 must be at least 0, or %-1 to be inferred, got %-2$")
  end)

  it("Select, Narrow, Transpose, Squeeze, Unsqueeze", function()
    assert.same({ { 7, 8, 9 }, { 10, 11, 12 } }, nn.Select(1, 2)(x):totable())
    assert.equal("{2, 2, 2}", shape(nn.Narrow(3, 2, -1)(x)))
    assert.equal("{3, 2, 2}", shape(nn.Transpose({ 1, 3 })(x)))
    assert.equal("{2, 1, 2, 3}", shape(nn.Unsqueeze(1, 2)(x)))
    assert.equal("{2, 3}", shape(nn.Squeeze(1, 2)(lm.ones(2, 1, 3))))
  end)

  it("Mean, Sum, Max and Min take away a dim", function()
    local y = lm.tensor { { 1, 5 }, { 4, 2 } }
    assert.same({ 3, 3 }, nn.Mean(1, 1)(y):totable())
    assert.same({ 5, 7 }, nn.Sum(1)(y):totable())
    assert.same({ 2.5, 3.5 }, nn.Sum(1, 2, true)(y):totable())
    assert.same({ 5, 4 }, nn.Max(2)(y):totable())
    assert.same({ 1, 2 }, nn.Min(1, 1)(y):totable())
  end)

  it("that fold a table copy the only tensor of a table", function()
    for _, name in ipairs { "CAddTable", "CMulTable", "CMaxTable", "CMinTable" } do
      local only = seq(1, 2, 3)
      nn[name]() { only }:fill_(9)
      assert.same({ 1, 2, 3 }, only:totable(), name)
    end
  end)
end)
