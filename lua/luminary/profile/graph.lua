--- lm.graph(x [, {params, shapes = true}]): Returns the autograd graph of x, such as a loss, as text in the dot
--- language of Graphviz.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local escapes = {['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n"}
local function quoted(text) return '"' .. text:gsub('["\\\n]', escapes) .. '"' end

-- Returns names and tensors of a module's parameters, or of a table of tensors by name.
local function named(params)
  local names, tensors = {}, {}
  if params == nil then return names, tensors end
  if options.record(params) then
    for name, p in params:named_parameters() do names[#names + 1], tensors[#tensors + 1] = name, p end
    return names, tensors
  end
  for _, name in ipairs(options.sorted_keys(params, function(key) return type(key) == "string" end)) do
    if not core.is_tensor(params[name]) then options.must_be("graph", "params." .. name, "a tensor", params[name]) end
    names[#names + 1], tensors[#tensors + 1] = name, params[name]
  end
  return names, tensors
end

-- Returns a tensor's graph as text for Graphviz, in torchviz's colors.
return signature.of("graph(x: tensor, {params: any?, shapes = true})", function(x, opts)
  if opts.params ~= nil and type(opts.params) ~= "table" and not options.record(opts.params) then
    options.must_be("graph", "params", "a module or a table of tensors by name", opts.params)
  end
  local names, tensors = named(opts.params)
  local nodes, indices = core.graph_nodes(x, tensors)
  local name_of = {}
  for i, index in ipairs(indices) do
    if index then name_of[index] = names[i] end
  end
  local lines = {
    "digraph {", "  node [shape=box, style=filled, fontname=monospace, fontsize=10, color=lightgrey]",
    ('  x [label=%s, color="darkolivegreen1"]'):format(quoted("[" .. table.concat(x.shape, ", ") .. "]")), "  n1 -> x",
  }
  for i, node in ipairs(nodes) do
    local label = node.is_leaf and (name_of[i] or "leaf") or node.name
    if node.line then label = label .. "\n" .. node.line end
    if opts.shapes then label = label .. "\n[" .. table.concat(node.shape, ", ") .. "]" end
    lines[#lines + 1] = ("  n%d [label=%s%s]"):format(i, quoted(label), node.is_leaf and ", color=lightblue" or "")
    for _, edge in ipairs(node.edges) do
      if edge then lines[#lines + 1] = ("  n%d -> n%d"):format(edge, i) end
    end
  end
  lines[#lines + 1] = "}"
  return table.concat(lines, "\n") .. "\n"
end)
