-- Tests that errors name the call that the script made, and its line, not an op of Luminary.
local torch = require "luminary.torch7"
local nn = torch.nn

local function message(f) return select(2, pcall(f)):match "errors_spec.lua:%d+: (.*)$" end

describe("an error names", function()
  it("the method or function of Torch7, not the op", function()
    local x, three = torch.zeros(2, 3), torch.LongTensor { 3 }
    assert.equal("mv: inner sizes of x and other must match, got 3 and 2 in [2, 3] and [2]",
      message(function() x:mv(torch.zeros(2)) end))
    for name, f in pairs {
      index = function() x:index(1, three) end,
      max = function() torch.max(x, 4) end,
      min = function() x:min(4) end,
      indexCopy = function() x:indexCopy(1, three, torch.zeros(1, 3)) end,
      scatter = function() x:scatter(1, three:view(1, 1), 1) end,
      conv2 = function() torch.conv2(x, torch.zeros(5, 5)) end,
      cmul = function() x:cmul(torch.zeros(7)) end,
    } do
      assert.is_truthy(message(f):find("^" .. name .. ": [^:]*$"), message(f))
    end
    assert.equal("resize: size 1 must be an integer, got string 'x'", message(function() x:resize "x" end))
  end)

  it("the layer or criterion, also inside containers, and in backward", function()
    local linear, five = nn.Linear(2, 3), torch.zeros(4, 5)
    local expected = "nn.Linear: expected x to have shape [*, 2] for weight of [3, 2], got [4, 5]"
    assert.equal(expected, message(function() linear:forward(five) end))
    assert.equal(expected, message(function() nn.Sequential():add(nn.Concat(1):add(linear)):forward(five) end))
    assert.equal("nn.Linear: expected a tensor, got 5", message(function() linear:forward(5) end))
    for name, f in pairs {
      ["nn.Linear"] = function() linear:backward(torch.zeros(1, 2), five) end,
      ["nn.Tanh"] = function() nn.Tanh():backward(five, torch.zeros(3)) end,
      ["nn.SpatialConvolution"] = function() nn.SpatialConvolution(3, 4, 3, 3):forward(five) end,
      ["nn.ClassNLLCriterion"] = function() nn.ClassNLLCriterion():forward(five, torch.Tensor { 1, 2, 3, 9 }) end,
      ["nn.CAddTable"] = function() nn.CAddTable():forward { five, torch.zeros(3) } end,
    } do
      assert.is_truthy(message(f):find("^" .. name .. ": "), message(f))
    end
  end)

  it("nothing else where the error is not an op's", function()
    local own = nn.Tanh()
    own.__compute = function() error("mine", 0) end
    assert.equal("mine", select(2, pcall(own.forward, own, torch.zeros(3))))
  end)
end)
