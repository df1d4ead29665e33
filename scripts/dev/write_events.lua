-- Luminary's side of check_tensorboard.py: writes every kind of event into a folder.
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional

-- Returns the k-th of the numbers that both sides have: multiples of 1/64 from -50/64 to 50/64.
local function numbers(n, ...) return (lm.arange(n):mul(37):remainder(101) - 50):div(64):reshape(...) end

local writer = lm.watch.SummaryWriter(arg[1])
for step = 0, 300, 100 do writer:add_scalar("loss", 1 / (1 + step), step, 1000 + step) end
writer:add_scalar("negative", -3, -7, 5)
writer:add_scalar("new", 0.1, 3, 5, {new_style = true})
writer:add_scalar("double", 0.1, 2 ^ 40, 5, {new_style = true, double_precision = true})
writer:add_scalars("both", {train = 1.5, test = 2.5}, 3, 5)
writer:add_histogram("weights", numbers(5000, -1), 1, {walltime = 5})
writer:add_histogram("constant", lm.ones(7), 1, {walltime = 5})
writer:add_histogram("ten", numbers(5000, -1), 1, {bins = 10, walltime = 5})
writer:add_histogram("joined", numbers(5000, -1), 1, {bins = {-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 2}, walltime = 5,
  max_bins = 3})
writer:add_image("chw", numbers(60, 3, 4, 5), 1, 5)
writer:add_image("hw", numbers(20, 4, 5), 1, 5, {dataformats = "HW"})
writer:add_image("bytes", lm.arange(60):reshape(4, 5, 3):to "uint8", 1, 5, {dataformats = "HWC"})
writer:add_images("grid", numbers(600, 10, 3, 4, 5), 1, 5)
writer:add_text("notes", "# Title\n*text* ü", 1, 5)
writer:add_hparams({lr = 0.1, opt = "sgd", big = true}, {["hparam/accuracy"] = 0.5}, {
  hparam_domain_discrete = {opt = {"sgd", "adam"}}, run_name = "trial",
})
local Block = nn.Module:extend "Block"
function Block:init()
  self.conv = nn.Conv2d(2, 2, 3, {padding = 1})
  self.norm = nn.BatchNorm2d(2)
end
function Block:forward(x) return F.relu(x + self.norm(self.conv(x))) end
local net = nn.Sequential(nn.Conv2d(1, 2, 3), Block(), nn.Flatten(), nn.Linear(72, 10))
writer:add_graph(net, lm.rand(2, 1, 8, 8))
writer:close()
