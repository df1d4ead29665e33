--- Finds the function that prepares a node: find(domain, op) returns f(node), or nil for an unknown op. f reads the
--- node's attributes once (graph.lua: Node) and returns a function of the node's inputs, with one of the words of
--- graph.lua's runner, or a value if the node is a constant.
local load_module = require "luminary.base.load_module"

local files = {
  [""] = {"elementwise", "reduction", "shape", "indexing", "convolution", "normalization", "recurrent", "signal",
    "quantized", "control", "image"},

  ["ai.onnx.ml"] = {"ml"}, ["ai.onnx.preview.training"] = {"training"}, ["com.microsoft"] = {"microsoft"},
  ["ai.onnx.preview"] = {"preview"},
}
local loaded = {}

local function load(domain)
  local all = {}
  for _, name in ipairs(files[domain] or {}) do
    for op, f in pairs(load_module("luminary.onnx.ops." .. name)) do all[op] = f end
  end
  return all
end

return {
  find = function(domain, op)
    loaded[domain] = loaded[domain] or load(domain)
    return loaded[domain][op]
  end,
}
