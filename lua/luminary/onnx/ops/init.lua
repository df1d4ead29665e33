--- Finds an op of ONNX: find(domain, name) returns its entry or nil.
---
--- An entry is a function of the node's inputs, nil where one is left out, that returns its results; or a table:
---   [1]       f(n, ...), which also gets the node (graph.lua: Node), whose fields are the attributes, too
---   choose    choose(n): returns such a function without n, or nil: [1]
---   constant  constant(n): returns the value of a node without inputs
---   prepare   prepare(n): reads attributes once, when the model is loaded; may call n:unsupported()
---   dtype_in  the attribute with an element type, which n.dtype becomes by name
---   how       "list": f(n, list, count) gets all inputs in a list; "frame": f(n, frame, ...) runs graphs; "results": f
---             returns a list; "holds": inputs and results may be in one another, so that none is freed early
---   others    defaults of attributes
local load_module = require "luminary.base.load_module"

local files = {
  [""] = "elementwise reduction shape indexing convolution normalization recurrent signal quantized control image",
  ["ai.onnx.ml"] = "ml", ["ai.onnx.preview.training"] = "training", ["ai.onnx.preview"] = "training",
  ["com.microsoft"] = "microsoft microsoft_quantized",
}
local loaded = {}

local function find(domain, name)
  if not loaded[domain] then
    loaded[domain] = {}
    for file in (files[domain] or ""):gmatch "%S+" do
      for op, entry in pairs(load_module("luminary.onnx.ops." .. file)) do loaded[domain][op] = entry end
    end
  end
  return loaded[domain][name]
end

return {find = find}
