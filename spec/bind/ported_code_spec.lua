-- Warnings of what code ported from PyTorch gets wrong without an error: LM_PORT=1, lm.set_warnings("port").
local temp = require "spec.support.temp"

local folder
setup(function() folder = temp.folder() end)
teardown(function() temp.remove(folder) end)

-- The lines of a script that were warned of, and all that it wrote. `head` is its first line.
local head = "local lm = require 'luminary' local nn, F = lm.nn, lm.nn.functional local x = lm.rand(2, 3, 4)\n"
local function lines_of(text, without)
  local path = temp.write(folder .. "/script.lua", head .. text)
  local ok, out = temp.run(folder, (without and "unset LM_PORT; " or "LM_PORT=1 ") .. "luajit " .. path)
  assert(ok, out)
  local lines = {}
  for line in out:gmatch "script.lua:(%d+): warning: " do lines[#lines + 1] = tonumber(line) end
  return lines, out
end

-- Each line of `text` is warned of, or none is.
local function all_of(text)
  local _, n = text:gsub("[^\n]+", "")
  local expected = {}
  for i = 1, n do expected[i] = i + 1 end
  local lines, out = lines_of(text)
  assert.same(expected, lines, out)
  return out
end

local function none_of(text) assert.same("", (select(2, lines_of(text)))) end

describe("LM_PORT=1: a dim of 1", function()
  it("is reported for every op that takes a dim, by place and by name", function()
    local out = all_of [[
x:softmax(1)
lm.log_softmax(x, {dim = 1})
F.normalize(x, {dim = 1})
F.normalize(x, 2, 1)
lm.cat({x, x}, 1)
lm.stack({lm.ones(2), lm.ones(2)}, {dim = 1})
x:flatten(1)
x:argmax(1)
x:argmin(1)
x:max(1)
lm.min(x, {dim = 1})
x:sum(1, true)
x:mean {dim = 1}
x:norm(2, 1)
x:squeeze(1)
x:std(1)
lm.var_mean(x, 1)
x:cumsum(1)
x:split(1, 1)
x:chunk(2, {dim = 1})
x:unbind(1)
x:gather(1, lm.ones(1, 3, 4):long())
x:index_select(1, lm.tensor({1}):long())
x:scatter_(1, lm.ones(1, 3, 4):long(), 0)
x:topk(1, 1)
x:sort(1)
x:unsqueeze(1)
x:transpose(1, 2)
x:median(1)
F.cosine_similarity(x, x, {dim = 1})
F.glu(x, 1)
F.gumbel_softmax(x, {dim = 1})
lm.linalg.norm(x, {dim = 1})
]]
    assert.matches("script.lua:2: warning: softmax: dim 1 is the first dimension here (PyTorch's dim 0); PyTorch's "
      .. "dim=1 is 2\n", out, 1, true)
    assert.matches(":11: warning: max: dim 1 ", out, 1, true)
    assert.matches(":8: warning: flatten: start_dim 1 is the first dimension here (PyTorch's dim 0); PyTorch's "
      .. "start_dim=1 is 2\n", out, 1, true)
  end)

  it("is reported of layers, where they are made, and of a dim that a new dim takes", function()
    all_of [[
nn.Softmax(1)
nn.LogSoftmax {dim = 1}
nn.Flatten(1)
nn.GLU(1)
nn.CosineSimilarity {dim = 1}
lm.ones(3):unsqueeze(1)
]]
    none_of [[
nn.Sequential(nn.Flatten(), nn.Softmax(2), nn.LogSoftmax(-1))(x)
]]
  end)

  it("is no mistake of a vector, nor beside a dim that PyTorch would not have", function()
    none_of [[
lm.ones(3):sum(1) lm.ones(3):softmax(1) lm.cat({lm.ones(3), lm.ones(2)}, 1) lm.ones(4):split(2, 1)
x:sum({1, 3}) x:permute(2, 1, 3) lm.ones(2, 2):transpose(1, 2) lm.ones(2, 2):flatten(1, 2)
x:softmax(2) x:softmax(-1) x:sum(-3) x:sum() x:max() x:split(1) x:chunk(2) local _ = x[1], x:size(1), x:view(6, 4)
]]
  end)

  it("is not reported of the library's own calls", function()
    none_of [[
lm.flipud(x) lm.hstack({lm.ones(2), lm.ones(2)}) lm.block_diag(lm.ones(2, 2), lm.ones(2, 2)) x:rot90()
nn.utils.rnn.pad_sequence({lm.ones(2), lm.ones(3)}, {batch_first = true})
nn.MultiheadAttention(4, 2)(x, x, x) nn.LSTM(4, 3, {bidirectional = true})(x) nn.BatchNorm1d(3)(x)
lm.kthvalue(x, 1) x:unique() x:quantile(0.5) lm.einsum("abc,abc->b", x, x) lm.trapezoid(x)
]]
  end)

  it("is seen in a function of the script's that returns the call, within the library's too", function()
    local lines, out = lines_of [[
local Net = nn.Module:extend "Net"
function Net:forward(t) return F.log_softmax(t, 1) end
Net()(x)
nn.Sequential(Net(), nn.ReLU())(x)
local function probabilities(t) return t:softmax(1) end
probabilities(x)
pcall(x.sum, x, 1)
lm.no_grad(function() return x:argmax(1) end)
]]
    assert.same({4, 5, 7, 8, 9}, lines, out)
  end)

  it("is reported once for each line, and only where that is asked for", function()
    local text = "for _ = 1, 3 do x:sum(1) end\nx:sum(1)\n"
    assert.same({2, 3}, (lines_of(text)))
    assert.same({}, (lines_of(text, true)))
    assert.same({4}, (lines_of("x:sum(1)\nassert(lm.set_warnings('port') == true)\nx:sum(1)\n"
      .. "assert(lm.set_warnings(false) == 'port')\nx:sum(1)\nassert(lm.set_warnings(true) == false)\nx:sum(1)", true)))
  end)

  it("is set by true, false or \"port\" alone", function()
    local _, out = lines_of "print(pcall(lm.set_warnings, 'prot'))\nprint(pcall(lm.set_warnings, 3))"
    assert.matches("set_warnings: on: no 'prot'; there are true, false and \"port\"", out, 1, true)
    assert.matches("set_warnings: on: true, false or \"port\" expected, got number 3", out, 1, true)
  end)
end)

describe("LM_PORT=1: ids that seem to count from 0", function()
  it("are labels of which the last never comes, after four times as many as there are classes", function()
    local lines, out = lines_of [[
local loss = nn.CrossEntropyLoss()
for _ = 1, 5 do loss(lm.rand(4, 5), lm.tensor({1, 2, 3, 4}):long()) end
for _ = 1, 4 do loss(lm.rand(4, 5), lm.tensor({1, 2, 3, 4}):long()) end
for _ = 1, 5 do F.nll_loss(lm.rand(4, 5, 2), lm.tensor({{1, 2}, {3, 4}, {1, 2}, {3, 4}}):long()) end
for _ = 1, 9 do loss(lm.rand(4, 5), lm.tensor({1, 2, 3, 5}):long()) end
for _ = 1, 9 do loss(lm.rand(4, 5), lm.tensor({1, 2, 3, 3}):long()) end
for _ = 1, 9 do loss(lm.rand(4, 2), lm.tensor({1, 1, 1, 1}):long()) end
for _ = 1, 9 do loss(lm.rand(4, 5), lm.rand(4, 5)) end
for _ = 1, 5 do F.cross_entropy(lm.rand(4, 5), lm.tensor({0, 2, 3, 1}):long(), {ignore_index = 0}) end
for _ = 1, 5 do F.cross_entropy(lm.rand(4, 5), lm.tensor({0, 2, 3, 5}):long(), {ignore_index = 0}) end
for _ = 1, 5 do F.cross_entropy(lm.rand(4, 5), lm.tensor({-100, 2, 3, 1}):long()) end
]]
    assert.same({3, 5, 10}, lines, out)
    assert.matches("cross_entropy: of 20 ids so far the smallest is 1, the largest 4, and none is 5, the size: they "
      .. "seem to count from 0, as in PyTorch; ids count from 1 here, so add 1\n", out, 1, true)
  end)

  it("are tokens among which the vocabulary's last of PyTorch stands out", function()
    local lines, out = lines_of [[
local table = nn.Embedding(1000, 2)
table(lm.tensor({15, 999, 3}):long())
table(lm.tensor({15, 1000, 999}):long())
table(lm.tensor({15, 7, 3}):long())
nn.Embedding(64, 2)(lm.arange(1, 64):long())
for _ = 1, 9 do nn.Embedding(64, 2)(lm.arange(1, 64):long()) end
for _ = 1, 4 do F.embedding(lm.tensor({1, 3, 1, 3}):long(), lm.rand(4, 2)) end
]]
    assert.same({3, 8}, lines, out)
  end)
end)
