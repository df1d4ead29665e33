--- lm.summary(model [, input] [, {depth = 3}]): Summarizes a model: its modules, their output sizes, parameters and
--- multiply-adds, and the memory it needs.
local core = require "luminary.core"
local aligned_columns = require "luminary.base.aligned_columns"
local bytes_text = require "luminary.base.bytes_text"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local module_calls = require "luminary.watch.module_calls"

local product, sum = lists.product, lists.sum

local function elements(t) return t:numel() end
local function bytes(t) return t:numel() * t:element_size() end
local function own(module) return module:parameters {recurse = false} end

-- ---- multiply-adds of a module itself: its products, without biases and elementwise ops

-- Counts attention's multiply-adds; calls_out_proj: true if out_proj is a separate call.
local function attention_work(m, q, k, calls_out_proj)
  local E, rows, keys = m.embed_dim, product(q) / m.embed_dim, product(k) / m.kdim
  local length = #q == 3 and q[m.batch_first and 2 or 1] or rows
  local projections = rows * E * E * (calls_out_proj and 1 or 2) + keys * E * (m.kdim + m.vdim)
  return projections + 2 * rows * (keys / (rows / length)) * E -- each query with all keys, and with all values
end

-- Returns a module's multiply-adds; nil if unknown.
local function multiply_adds(m, call)
  local weight, x, y = m.weight, call.inputs[1], call.outputs[1]
  if not (x and y) then return nil end
  if m.embed_dim and m.num_heads and m.kdim then return attention_work(m, x, call.inputs[2] or x, not call.is_leaf) end
  if m.kernel_size and m.in_channels and weight then
    return weight:numel() * (m.transposed and product(x) / m.in_channels or product(y) / m.out_channels)
  end
  if m.num_embeddings then return 0 end
  local inputs, outputs = x[#x] or 1, y[#y] or 1 -- sizes of the last dim, for a matrix
  if weight and weight.ndim == 2 and weight:numel() == inputs * outputs then
    return weight:numel() * product(y) / outputs
  end
  if m.hidden_size and m.input_size then
    return sum(own(m), function(p) return p.ndim == 2 and p:numel() or 0 end) * product(x) / m.input_size
  end
  return sum(own(m), function(p) return p.ndim > 1 and p:numel() or 0 end) == 0 and 0 or nil
end

-- ---- the text

local function grouped(n) -- 1234567 as 1,234,567
  local text = ("%.0f"):format(n)
  return (text:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", ""))
end

local function shapes_text(shapes)
  return table.concat(lists.map(shapes, function(shape) return "[" .. table.concat(shape, ", ") .. "]" end), " ")
end

local function cells_of(row, params, mult_adds, complete)
  return {
    ("  "):rep(row.depth) .. (row.name == "" and "" or row.name .. ": ") .. row.type, shapes_text(row.output_shapes),
    params > 0 and grouped(params) or "-", complete and (mult_adds and grouped(mult_adds) or "?") or "",
  }
end

-- Returns the rows down to `depth`; the deepest include the parameters and multiply-adds of the rows below them.
local function cells_to(depth, rows)
  local list = {}
  for i, row in ipairs(rows) do
    local params, mult_adds, complete = row.params, row.mult_adds, row.is_leaf or row.mult_adds ~= 0
    for j = i + 1, row.depth == depth and #rows or 0 do
      local below = rows[j]
      if below.depth <= depth then break end
      params, complete = params + below.params, complete or below.is_leaf
      mult_adds = mult_adds and below.mult_adds and mult_adds + below.mult_adds
    end
    if row.depth <= depth then list[#list + 1] = cells_of(row, params, mult_adds, complete) end
  end
  return list
end

local Summary = class.root "Summary"

function Summary:repr()
  local rows = cells_to(self.depth, self.rows)
  table.insert(rows, 1, {"Module", "Output size", "Parameters", "Multiply-adds"})
  local lines, width = aligned_columns(rows, 3)
  local rule = ("-"):rep(width)
  table.insert(lines, 2, rule)
  local function add(name, text) lines[#lines + 1] = ("%-25s %s"):format(name .. ":", text) end
  lines[#lines + 1] = rule
  add("Parameters", grouped(self.total_params))
  add("Trainable parameters", grouped(self.trainable_params))
  if self.total_mult_adds then
    local known = self.unknown and ", without those marked ?" or ""
    add("Multiply-adds of modules", grouped(self.total_mult_adds) .. known)
    add("Input", bytes_text(self.total_input))
    add("Outputs of modules", bytes_text(self.total_output_bytes))
  end
  add("Parameters and buffers", bytes_text(self.total_param_bytes))
  return table.concat(lines, "\n")
end

-- ---- the summary

-- Returns random numbers for a size such as {1, 3, 32, 32}; other values unchanged.
local function drawn(model, size)
  if type(size) ~= "table" or type(size[1]) ~= "number" then return size end
  local first = model:parameters()[1]
  local how = first and {dtype = first.dtype, device = first.device} or {dtype = "float32"}
  return core.ops.rand(size, {generator = require("luminary.generator").Generator()}):to(how)
end

-- Returns the arguments of a call, from a tensor, a size, or a list of arguments and sizes.
local function inputs_of(model, input)
  local one = drawn(model, input)
  if core.is_tensor(one) then return {one} end
  if type(input) ~= "table" then
    options.must_be("summary", "input", "a tensor, a size, or a list of arguments and sizes", input)
  end
  local inputs = {}
  for i, each in lists.sorted_pairs(input) do inputs[i] = drawn(model, each) end
  return inputs
end

local function fill(self, model, calls)
  local of_module = {}
  for _, call in ipairs(calls) do of_module[call.module] = of_module[call.module] or call end
  for path, module in model:named_modules() do
    local _, depth = path:gsub("%.", "")
    local call = of_module[module]
    if call or #calls == 0 or #module:children() > 0 then
      self.rows[#self.rows + 1] = {
        path = path, name = path:match "[^.]*$", type = module.__name, depth = path == "" and 0 or depth + 1,
        params = sum(call and call.is_leaf and module:parameters() or own(module), elements),
        is_leaf = call and call.is_leaf or false, output_shapes = call and call.outputs or {}, mult_adds = 0,
        module = module,
      }
    end
  end
end

--- lm.summary(model, input, {depth = 3}): Summarizes a model: its modules, their output sizes, parameters and
--- multiply-adds, and the memory it needs.
return signature.of("summary(model: module, input: any?, depth: natural = 3)", function(model, input, depth)
  local self = class.object(Summary)
  self.rows, self.depth = {}, depth
  local calls = input ~= nil and module_calls.trace(model, inputs_of(model, input)) or {}
  fill(self, model, calls)
  self.total_params = sum(model:parameters(), elements)
  self.trainable_params = sum(model:parameters(), function(p) return p.requires_grad and p:numel() or 0 end)
  self.total_param_bytes = sum(model:parameters(), bytes) + sum(model:buffers(), bytes)
  if not calls[1] then return self end
  self.total_mult_adds, self.total_output_bytes, self.total_input = 0, 0, calls[1].inputs.bytes
  local by_module = {}
  for _, row in ipairs(self.rows) do by_module[row.module] = row end
  for _, call in ipairs(calls) do
    local row = by_module[call.module]
    local n = multiply_adds(call.module, call)
    row.mult_adds = n and row.mult_adds and row.mult_adds + n or nil
    self.total_mult_adds, self.unknown = self.total_mult_adds + (n or 0), self.unknown or n == nil
    if call.is_leaf then self.total_output_bytes = self.total_output_bytes + call.outputs.bytes end
  end
  for _, row in ipairs(self.rows) do row.module = nil end
  return self
end)
