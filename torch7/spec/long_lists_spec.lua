-- Tests Torch7's layers, logger and storages with more entries than Lua's unpack takes, about 7990.
local lm = require "luminary"
local torch = require "luminary.torch7"
local temp = require "spec.support.temp"
local nn = lm.nn

local MANY = 10000

local function times(n, f)
  local list = {}
  for i = 1, n do list[i] = f(i) end
  return list
end

describe("a list of thousands", function()
  it("of tensors is split, cut and joined by layers of tables", function()
    local parts = nn.SplitTable(1)(lm.arange(MANY))
    assert.same({MANY, MANY - 1}, {#parts, parts[MANY]:item()})
    assert.is_nil(getmetatable(parts))
    local some = nn.NarrowTable(2, MANY - 1)(parts)
    assert.same({MANY - 1, 1}, {#some, some[1]:item()})
    assert.equal(MANY, nn.JoinTable(1)(times(MANY, function() return lm.ones(1) end)):numel())
  end)
  it("of names heads a Logger's file", function()
    local folder = temp.folder()
    local path = folder .. "/log"
    local log = lm.optim.Logger(path)
    log:setNames(times(MANY, function(i) return "n" .. i end))
    log:add(times(MANY, function(i) return i end))
    local line = io.lines(path)()
    assert.matches("n" .. MANY .. "\t$", line)
    temp.remove(folder)
  end)
  it("of sizes is an error of ours", function()
    local sizes = times(MANY, function() return 1 end)
    assert.error_matches(function() nn.View(sizes) end, "View: expected at most 8 sizes, got 10000")
    assert.error_matches(function() nn.Reshape(sizes) end, "Reshape: expected at most 8 sizes, got 10000")
    assert.equal(MANY, #torch.LongStorage(sizes):totable())
    assert.error_matches(function() torch.Tensor(torch.LongStorage(sizes)) end, "at most 8")
    assert.error_matches(function() torch.FloatTensor(1):view(torch.LongStorage(sizes)) end, "at most 8")
  end)
end)
