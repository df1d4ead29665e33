-- The network that train.c trains, and its training step: gets points [N, 2] and labels [N], returns the loss.
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
local opt = optim.Adam(net:parameters(), {lr = 0.02})

local function train_step(points, labels)
  net:train()
  local loss = F.cross_entropy(net(points), labels)
  opt:zero_grad()
  loss:backward()
  opt:step()
  return loss
end

return {model = net, inputs = {"points"}, outputs = {"scores"}, train_step = train_step}
