-- lm.summary: sizes, parameters, multiply-adds, memory. Counts of multiply-adds are those of PyTorch's FlopCounterMode.
local lm = require "luminary"
local message = require "spec.support.error_of"
local nn, F = lm.nn, lm.nn.functional

local function mult_adds(net, ...) return lm.summary(net, {...}).total_mult_adds end

describe("summary", function()
  it("shows modules, sizes, parameters and multiply-adds", function()
    local Block = nn.Module:extend "Block"
    function Block:init()
      self.conv = nn.Conv2d(4, 4, 3, {padding = 1})
      self.norm = nn.BatchNorm2d(4)
    end
    function Block:forward(x) return F.relu(x + self.norm(self.conv(x))) end
    local net = nn.Sequential(nn.Conv2d(1, 4, 3), Block(), nn.Flatten(), nn.Linear(144, 1000))
    net[1].weight.requires_grad = false
    local state = lm.get_rng_state()
    local summary = lm.summary(net, {2, 1, 8, 8})
    assert.is_true(state:equal(lm.get_rng_state()))
    assert.is_true(net.training)
    assert.equal(0, net[2].norm.running_mean:abs():sum():item())
    local function squeezed(text) return (text:gsub(" +", " "):gsub("%-+", "-")) end
    assert.equal(squeezed [[
Module             Output size   Parameters  Multiply-adds
----------------------------------------------------------
Sequential         [2, 1000]              -
  0: Conv2d        [2, 4, 6, 6]          40          2,592
  1: Block         [2, 4, 6, 6]           -
    conv: Conv2d   [2, 4, 6, 6]         148         10,368
    norm: BatchNorm2d  [2, 4, 6, 6]       8              0
  2: Flatten       [2, 144]               -              0
  3: Linear        [2, 1000]        145,000        288,000
----------------------------------------------------------
Parameters:              145,196
Trainable parameters:    145,160
Multiply-adds of modules: 300,960
Input:                   512 B
Outputs of modules:      12.6 kB
Parameters and buffers:  580.8 kB]], squeezed(tostring(summary)))
    assert.equal(145196, summary.total_params)
    assert.equal(145160, summary.trainable_params)
    assert.equal(300960, summary.total_mult_adds)
    assert.equal(4 * 145196 + 4 * 8 + 8, summary.total_param_bytes)
    assert.same({2, 4, 6, 6}, summary.rows[3].output_shapes[1])
    local shallow = tostring(lm.summary(net, lm.rand(2, 1, 8, 8), {depth = 1}))
    assert.is_nil(shallow:find("norm", 1, true))
    assert.matches("1: Block +%[2, 4, 6, 6%] +156 +10,368\n", shallow) -- with those of the modules not shown
    assert.matches("1: Block +156\n", tostring(lm.summary(net, {depth = 1})))
  end)

  it("draws inputs of several sizes", function()
    local Two = nn.Module:extend "Two"
    function Two:init() self.a, self.b = nn.Linear(4, 8), nn.Linear(6, 8) end
    function Two:forward(x, y) return self.a(x) + self.b(y) end
    assert.equal(2 * (32 + 48), lm.summary(Two(), {{2, 4}, {2, 6}}).total_mult_adds)
    assert.equal(2 * (32 + 48), lm.summary(Two(), {{2, 4}, lm.ones(2, 6)}).total_mult_adds)
  end)

  it("takes arguments that contain themselves", function()
    local Net = nn.Module:extend "Net"
    function Net.forward(_, x) return x.again.again end
    local x = {lm.ones(2, 3)}
    x.again = x
    assert.same({2, 3}, lm.summary(Net(), {x}).rows[1].output_shapes[1])
  end)

  it("leaves modes and hooks as they were, wherever an error or Ctrl-C comes", function()
    local step, at = 97, 0
    local done
    repeat
      local net, n = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)), 0
      local handle = net:register_forward_hook(function() end)
      at, done = at + step, true
      pcall(function()
        require("debug").sethook(function()
          n = n + 1
          if n < at then return end
          require("debug").sethook()
          done = false
          error "interrupted"
        end, "", 1)
        lm.summary(net, {2, 2})
        require("debug").sethook()
      end)
      for _, module in ipairs(net:modules()) do
        local record = require("luminary.nn.module_fields").of(module)
        assert.is_true(module.training, at)
        assert.same({0, module == net and 1 or 0}, {#(record.pre_hooks or {}), #(record.hooks or {})}, at)
      end
      handle:remove()
    until done
    assert.is_true(at > 10 * step)
  end)

  it("without an input shows parameters alone", function()
    local text = tostring(lm.summary(nn.Sequential(nn.Linear(2, 3), nn.ReLU())))
    assert.matches("0: Linear", text, 1, true)
    assert.matches("Parameters: +9\n", text)
    assert.is_nil(text:find("Multiply-adds of", 1, true))
  end)

  it("counts what PyTorch counts", function()
    assert.equal(8640, mult_adds(nn.ConvTranspose2d(3, 4, 2), lm.rand(5, 3, 6, 6)))
    assert.equal(7776, mult_adds(nn.Conv2d(4, 6, 3, {padding = 1, groups = 2}), lm.rand(2, 4, 6, 6)))
    assert.equal(1000800, mult_adds(nn.TransformerEncoderLayer(16, 4), lm.rand(5, 3, 16)))
    assert.equal(17760, mult_adds(nn.MultiheadAttention(16, 4, {kdim = 8, vdim = 12}), lm.rand(5, 3, 16),
      lm.rand(7, 3, 8), lm.rand(7, 3, 12)))
    assert.equal(5 * 3 * (4 * 16 * 8 + 4 * 16 * 16), mult_adds(nn.LSTM(8, 16), lm.rand(5, 3, 8)))
    assert.equal(0, mult_adds(nn.Embedding(9, 4), lm.ones(2, 3, {dtype = "int64"})))
    local gpt = lm.models.gpt2 {n_layer = 2, n_embd = 32, n_head = 4, vocab_size = 100, n_positions = 64}
    local summary = lm.summary(gpt, lm.ones(1, 8, {dtype = "int64"}))
    assert.equal(8 * 2 * 12 * 32 * 32, summary.total_mult_adds) -- counts its modules, without functions between them
    assert.matches("\n  transformer: .*\n    h: .*\n      1: GPT2Block", tostring(summary))
    local shared = nn.Linear(4, 4)
    local twice = lm.summary(nn.Sequential(shared, shared), lm.rand(1, 4))
    assert.equal(32, twice.total_mult_adds)
    assert.equal(20, twice.total_params)
  end)

  it("says of what it does not know the multiply-adds", function()
    local Own = nn.Module:extend "Own"
    function Own:init() self.matrix = nn.Parameter(lm.rand(4, 4)) end
    function Own:forward(x) return x:mm(self.matrix) end
    local summary = lm.summary(Own(), lm.rand(2, 4))
    assert.is_true(summary.unknown)
    assert.matches("16 +%?", tostring(summary))
    assert.matches("without those marked ?", tostring(summary), 1, true)
  end)

  it("takes a model that continues after a module's error", function()
    local Net = nn.Module:extend "Net"
    function Net:init() self.a, self.b, self.c = nn.Linear(9, 9), nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 4) end
    function Net:forward(x)
      pcall(self.a, x)
      return self.c(self.b(x))
    end
    local summary = lm.summary(Net(), {1, 2})
    assert.equal(4 + 8, summary.total_mult_adds)
    assert.is_true(summary.unknown)
    local shapes = {}
    for _, row in ipairs(summary.rows) do shapes[row.path] = {unpack(row.output_shapes)} end
    assert.same({[""] = {{1, 4}}, a = {}, b = {{1, 2}}, ["b.0"] = {{1, 2}}, c = {{1, 4}}}, shapes)
  end)

  it("leaves the model as it was, also after an error", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.Dropout())
    assert.matches("2", message(lm.summary, net, lm.rand(1, 5)))
    assert.is_true(net[2].training)
    net(lm.rand(1, 2)) -- leaves no hook
    assert.matches("input must be a tensor, a size, or a list of arguments and sizes", message(lm.summary, net, 3))
    assert.matches("model must be a module", message(lm.summary, 3))
  end)
end)
