-- Warnings of what code ported from PyTorch gets wrong without an error: LM_PORT=1, or 2 for each line with a dim of 1,
-- and lm.set_warnings("port").
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

-- The lines of a script that were warned of, and all that it wrote. `head` is its first line.
local head = "local lm = require 'luminary' local nn, F = lm.nn, lm.nn.functional local x = lm.rand(2, 3, 4)\n"
local function lines_of(text, variable)
  local path = temp.write(folder .. "/script.lua", head .. text)
  local ok, out = temp.run(folder, (variable or "LM_PORT=2") .. " luajit " .. path)
  assert(ok, out)
  local lines = {}
  for line in out:gmatch "script.lua:(%d+): warning: " do lines[#lines + 1] = tonumber(line) end
  return lines, out
end

-- Expects a warning for each line of `text`; returns the output.
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

  it("is reported once of a layer, which is made and called", function()
    local lines, out = lines_of [[
local flatten, gelu = nn.Flatten(1), {gate = nn.GLU(1)}
flatten(x)
gelu.gate(x)
nn.Flatten(1)(x)
]]
    assert.same({2, 2, 5}, lines, out)
    lines, out = lines_of [[
local layers, functions = {nn.Flatten(1), nn.LogSoftmax(1)}, {F.softmax, lm.sum}
for i = 1, 2 do
  layers[i](x)
  functions[i](x, 1)
end
local Gate = nn.Module:extend "Gate"
function Gate:forward(t) return F.glu(t, 1) end
local gates = {Gate()}
gates[#gates](lm.rand(2, 4, 4))
]]
    assert.same({2, 2, 5, 5, 10}, lines, out)
  end)

  it("is reported of a function that the script keeps in a variable or field", function()
    local lines, out = lines_of [[
local log_softmax, add_up, unit, my = F.log_softmax, lm.sum, F.normalize, {total = lm.sum}
log_softmax(x, 1)
add_up(x, 1)
unit(x, 2, 1)
my.total(x, 1)
total_of = lm.sum
total_of(x, 1)
]]
    assert.same({3, 4, 5, 6, 8}, lines, out)
  end)

  it("is reported of each function of a line", function()
    local lines, out = lines_of [[
x:sum(1); x:mean(1)
F.normalize(lm.cat({x, x}, 1), 2, 1)
for _ = 1, 2 do x:sum(1); x:sum(1) end
]]
    assert.same({2, 2, 3, 3, 4}, lines, out)
    assert.matches(":2: warning: sum: .*:2: warning: mean: .*:3: warning: cat: .*:3: warning: normalize: ", out)
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
F.interpolate(lm.rand(1, 2, 4, 4), {scale_factor = 2})
nn.Upsample {scale_factor = 2, mode = "bilinear"}(lm.rand(1, 2, 4, 4))
lm.vision.transforms.MixUp {num_classes = 3}(lm.rand(2, 3, 8, 8), lm.tensor({1, 2}):long())
for _ = 1, 20 do lm.vision.transforms.CutMix {num_classes = 3}(lm.rand(2, 3, 8, 8), lm.tensor({1, 2}):long()) end
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
local net, my = Net(), {probabilities = probabilities}
net(x)
my.probabilities(x)
net:forward(x)
lm.func.vmap(function(t) return t:sum(1) end)(lm.rand(2, 3, 4))
]]
    assert.same({4, 5, 7, 8, 9, 11, 12, 13, 14}, lines, out)
  end)

  it("is reported once for each line, and only where that is asked for", function()
    local text = "for _ = 1, 3 do x:sum(1) end\nx:sum(1)\n"
    assert.same({2, 3}, (lines_of(text)))
    assert.same({}, (lines_of(text, "unset LM_PORT;")))
    assert.same({4}, (lines_of("x:sum(1)\nassert(lm.set_warnings('port') == true)\nx:sum(1)\n"
      .. "assert(lm.set_warnings(false) == 'port')\nx:sum(1)\nassert(lm.set_warnings(true) == false)\nx:sum(1)",
      "unset LM_PORT;")))
  end)

  it("is reported once a program, and not of one that counts from 1", function()
    local text = "x:sum(1)\nx:softmax(1)\nnn.Flatten(1)\n"
    local lines, out = lines_of(text, "LM_PORT=1")
    assert.same({2}, lines)
    assert.matches("PyTorch's dim=1 is 2; LM_PORT=2 reports each such line\n", out, 1, true)
    assert.same({2, 3, 4}, (lines_of(text)))
    assert.same({3}, (lines_of("lm.set_warnings 'port'\n" .. text, "unset LM_PORT;")))
    assert.same("", select(2, lines_of("x:softmax(3)\n" .. text, "LM_PORT=1"))) -- PyTorch has no dim 3 there
    lines = lines_of("lm.ones(3):softmax(1) x:softmax(2) x:sum(-1)\n" .. text, "LM_PORT=1")
    assert.same({3}, lines) -- nothing so far has shown it
    lines = lines_of(text .. "for _ = 1, 9 do F.cross_entropy(lm.rand(4, 5), lm.tensor({1, 2, 4, 3}):long()) end\n"
      .. "print(True)\n", "LM_PORT=1")
    assert.same({2, 5, 6}, lines) -- values that show a mistake are reported as before
  end)

  it("is set by true, false or \"port\" alone", function()
    local _, out = lines_of "print(pcall(lm.set_warnings, 'prot'))\nprint(pcall(lm.set_warnings, 3))"
    assert.matches("set_warnings: on must be true, false or \"port\", got string 'prot'", out, 1, true)
    assert.matches("set_warnings: on must be true, false or \"port\", got 3", out, 1, true)
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
    assert.matches("cross_entropy: of 20 labels so far the smallest is 1, the largest 4, and none is 5, the number "
      .. "of classes: they seem to count from 0, as in PyTorch; labels count from 1 here, so add 1\n", out, 1, true)
  end)

  it("are no labels that come sorted by class", function()
    none_of [[
for c = 1, 5 do for _ = 1, 9 do F.cross_entropy(lm.rand(4, 5), lm.tensor({c, c, c, c}):long()) end end
for c = 1, 5 do F.nll_loss(lm.rand(64, 5), lm.tensor({c, math.min(c + 1, 5)}):long():repeat_interleave(32)) end
F.cross_entropy(lm.rand(40, 5), lm.arange(1, 5):long():repeat_interleave(10))
F.cross_entropy(lm.rand(2, 1000), lm.tensor({999, 999}):long()) F.one_hot(lm.tensor({1, 2, 3}):long(), 4)
]]
    local text = "F.cross_entropy(lm.rand(20, 5), lm.tensor({%s}):long()%s)\n"
    local half = "1, 2, 3, 4, 4, 3, 2, 1, 2, 3"
    assert.same({2}, (lines_of(text:format(half .. ", " .. half, ""))))
    assert.same({3}, (lines_of((text:format(("1, "):rep(10) .. ("4, "):rep(10), ""))
      .. text:format(half .. ", " .. half, ", {ignore_index = -100}"))))
  end)

  it("are labels of masks of many images, none of which has the last class", function()
    local mask = "local mask = lm.ones(2, 8, 8):long() mask[1]:fill_(4) mask[{2, 1}]:fill_(3)\n"
    local call = "for _ = 1, %d do F.cross_entropy(lm.rand(2, 5, 8, 8), mask) end\n"
    none_of(mask .. call:format(3) .. "for _ = 1, 3 do F.nll_loss(lm.rand(2, 5, 8, 8), mask) end")
    assert.same({3}, (lines_of(mask .. call:format(10))))
  end)

  it("are classes of one_hot and ids of embedding_bag, not of gather", function()
    local lines, out = lines_of [[
for _ = 1, 5 do F.one_hot(lm.tensor({1, 2, 4, 3}):long(), 5) end
nn.EmbeddingBag(1000, 2)(lm.tensor({{15, 999, 3}}):long())
F.embedding_bag(lm.tensor({{15, 999, 3}}):long(), lm.rand(1000, 2), {mode = "max"})
for _ = 1, 5 do F.one_hot(lm.tensor({1, 2, 4, 3}):long()) end
for _ = 1, 5 do lm.rand(5):gather(1, lm.tensor({1, 2, 4, 3}):long()) end
nn.EmbeddingBag(1000, 2)(lm.tensor({{15, 1000, 999}}):long())
]]
    assert.same({2, 3, 4}, lines, out)
    assert.matches("one_hot: of 20 labels so far", out, 1, true)
    assert.matches(":3: warning: embedding_bag: of 3 ids so far the smallest is 3, the largest 999, and none is 1000, "
      .. "the size: ", out, 1, true)
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

describe("LM_PORT=1: Python's names of values", function()
  it("are nil in Lua, and reported where they are read", function()
    local lines, out = lines_of [[
nn.LSTM(8, 4, 1, True, True)
for _ = 1, 2 do local _ = {x = None, y = False} end
print(rawget(_G, "True"), unknown, getmetatable(_G) ~= nil)
lm.set_warnings(true)
print(True, getmetatable(_G))
lm.set_warnings "port"
print(None)
]]
    assert.same({2, 3, 3, 8}, lines, out)
    assert.matches("script.lua:2: warning: True is not defined in Lua; write true\n", out, 1, true)
    assert.matches(":3: warning: None is not defined in Lua; write nil\n", out, 1, true)
    assert.matches(":3: warning: False is not defined in Lua; write false\n", out, 1, true)
    assert.matches("nil\tnil\ttrue\n", out, 1, true)
    assert.matches("nil\tnil\n", out, 1, true)
  end)

  it("are left to a script that watches its globals", function()
    local lines, out = lines_of [[
True = 1 print(True) True = nil
local meta = getmetatable(_G)
meta.__index = function(_, name) error("no global " .. name) end
print(pcall(function() return None end))
lm.set_warnings(true)
print(getmetatable(_G) == meta, pcall(function() return None end))
setmetatable(_G, {__index = function() return 7 end})
lm.set_warnings "port"
print(True)
]]
    assert.same({}, lines, out)
    assert.matches("^1\nfalse\t[^\n]*no global None\ntrue\tfalse\t[^\n]*no global None\n7\n$", out)
  end)

  it("are nobody's business elsewhere", function()
    local lines, out = lines_of("print(True, getmetatable(_G))", "unset LM_PORT;")
    assert.same({}, lines)
    assert.matches("nil\tnil\n", out, 1, true)
  end)
end)
