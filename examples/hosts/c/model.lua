-- The network of infer.c: four numbers a row, three scores. The weights come from a file that the program names; run by
-- luajit with `--make FILE`, this file writes those of an untrained network.
local lm = require "luminary"
local nn = lm.nn

if arg and arg[1] == "--make" then lm.manual_seed(0) end
local net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
if arg and arg[1] == "--make" then lm.save(arg[2], net:state_dict()) end

return {
  model = net,
  inputs = {{name = "features", dtype = "float32", shape = {"N", 4}}},
  outputs = {{name = "scores", dtype = "float32", shape = {"N", 3}}},
}
