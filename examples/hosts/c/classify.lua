-- The Lua side of classify.c: returns a function that computes the class of a row of four numbers. Run by luajit with
-- `--make FILE`, it writes the weights of an untrained network in its place.
local lm = require "luminary"
local nn = lm.nn

lm.manual_seed(0)
local net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
if arg and arg[1] == "--make" then
  lm.save(arg[2], net:state_dict())
  return
end

lm.set_num_threads(1) -- the program has threads of its own
net:load_state_dict(lm.load(WEIGHTS, {mmap = true}), {assign = true}) -- luacheck: globals WEIGHTS
net:eval()

return function(numbers)
  return lm.no_grad(function() return net(lm.tensor {numbers}):argmax(2):item() end)
end
