-- A test of sysbench: an event is a forward of a network, or a training step. Each thread has a Lua state and a network
-- of its own.
--   sysbench forward.lua --threads=2 --time=10 --batch=32 run
-- luacheck: globals sysbench thread_init event

sysbench.cmdline.options = {
  batch = {"Rows of an event", 32},
  width = {"Numbers in a hidden layer", 256},
  train = {"Train by each event instead of a forward alone", false},
}

local lm, net, opt, x, y

function thread_init()
  lm = require "luminary" -- on the thread that computes
  local nn, options = lm.nn, sysbench.opt
  lm.set_num_threads(1) -- sysbench has threads of its own
  net = nn.Sequential(nn.Linear(784, options.width), nn.ReLU(), nn.Linear(options.width, 10))
  opt = lm.optim.Adam(net:parameters())
  x, y = lm.rand(options.batch, 784), lm.randint(1, 11, {options.batch})
end

function event()
  if not sysbench.opt.train then
    lm.no_grad(function() net(x) end)
    return
  end
  local loss = lm.nn.functional.cross_entropy(net(x), y)
  opt:zero_grad()
  loss:backward()
  opt:step()
end
