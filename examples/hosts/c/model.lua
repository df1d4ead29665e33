-- The network of infer.c: four numbers a row, three scores. The weights come from a file that the program names; run by
-- luajit with `--make FILE`, this file writes those of an untrained network, or all of it to a .onnx file.
local lm = require "luminary"
local nn = lm.nn

if arg and arg[1] == "--make" then lm.manual_seed(0) end
local net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
if arg and arg[1] == "--make" then
  if arg[2]:find "%.onnx$" then
    lm.onnx.export(net, lm.zeros(2, 4), arg[2], {
      input_names = {"features"}, output_names = {"scores"}, dynamic_axes = {features = {[1] = "N"}},
    })
  else
    lm.save(arg[2], net:state_dict())
  end
end

return {
  model = net,
  inputs = {{name = "features", dtype = "float32", shape = {"N", 4}}},
  outputs = {{name = "scores", dtype = "float32", shape = {"N", 3}}},
}
