--- Compares gradients with finite differences.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local check_callable = require("luminary.autograd.function").check_callable

local ops, methods = core.ops, core.methods
local fail = options.fail
local checks = {}

local check_options = "eps = 1e-6, atol: positive = 1e-5, rtol: positive = 1e-3, raise_exception = true"

-- Returns the tensors among f's results that have a gradient.
local function differentiable(...)
  local list = {}
  local function add(v)
    if core.is_tensor(v) and v.requires_grad then list[#list + 1] = v end
  end
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if type(v) == "table" then
      for _, item in ipairs(v) do add(item) end
    else
      add(v)
    end
  end
  return list
end

local function flat(x) return methods.totable(ops.reshape(ops.detach(x), {-1})) end

-- Returns the key (indices from 1) of element `k` (from 0) of a tensor of that shape.
local function key_of(shape, k)
  local key = {}
  for d = #shape, 1, -1 do
    key[d] = k % shape[d] + 1
    k = math.floor(k / shape[d])
  end
  return key
end

-- Sets one element of a tensor.
local function set_element(x, key, value)
  if x.ndim == 0 then ops.fill_(x, value) else x[key] = value end
end

-- Returns columns of the Jacobian of all outputs together, for input j, by central differences.
local function numeric_columns(f, inputs, j, eps)
  local x = ops.detach(inputs[j])
  local shape, columns = x.shape, {}
  local function values()
    local all = {}
    for _, y in ipairs(differentiable(f(unpack(inputs, 1, inputs.n)))) do
      for _, v in ipairs(flat(y)) do all[#all + 1] = v end
    end
    return all
  end
  for k = 1, x:numel() do
    local key = key_of(shape, k - 1)
    local at = x.ndim == 0 and x:item() or x[key]
    set_element(x, key, at + eps)
    local above = values()
    set_element(x, key, at - eps)
    local below = values()
    set_element(x, key, at)
    local column = {}
    for i = 1, #above do column[i] = (above[i] - below[i]) / (2 * eps) end
    columns[k] = column
  end
  return columns
end

-- Returns rows of the same Jacobian by backward: rows[i][j][k] for output element i, input j, its element k.
local function analytic_rows(f, inputs, wanted)
  local rows = {}
  for _, y in ipairs(differentiable(f(unpack(inputs, 1, inputs.n)))) do
    local shape = y.shape
    for k = 1, y:numel() do
      local seed = ops.zeros_like(y)
      set_element(seed, key_of(shape, k - 1), 1)
      local grads = core.grad(y, wanted, {grad_outputs = seed, retain_graph = true, allow_unused = true})
      local row = {}
      for j = 1, #wanted do row[j] = grads[j] and flat(grads[j]) or {} end
      rows[#rows + 1] = row
    end
  end
  return rows
end

local function prepare_inputs(who, inputs)
  if core.is_tensor(inputs) then inputs = {inputs} end
  options.arg(who, "inputs", inputs, "table")
  local n = 0
  for i in pairs(inputs) do n = math.max(n, type(i) == "number" and i or 0) end
  local all, wanted, index = {n = n}, {}, {}
  for i = 1, n do
    local x = inputs[i]
    all[i] = x
    if core.is_tensor(x) and x.requires_grad then
      if x.dtype ~= "float64" then options.must_be(who, ("input %d"):format(i), "float64", x.dtype) end
      wanted[#wanted + 1] = x
      index[#wanted] = i
    end
  end
  if #wanted == 0 then fail("%s: at least one input must require a gradient; set x.requires_grad = true", who) end
  return all, wanted, index
end

local function compare(who, f, inputs, o)
  local all, wanted, index = prepare_inputs(who, inputs)
  local rows = core.enable_grad(analytic_rows, f, all, wanted)
  if #rows == 0 then return ("%s: no output depends on an input that requires a gradient"):format(who) end
  for j = 1, #wanted do
    local columns = core.enable_grad(numeric_columns, f, all, index[j], o.eps)
    for k, column in ipairs(columns) do
      if #column ~= #rows then
        return ("%s: the number of output elements changed from %d to %d between calls of f"):format(who, #rows,
          #column)
      end
      for i, expected in ipairs(column) do
        local got = rows[i][j][k] or 0
        local near = math.abs(got - expected) <= o.atol + o.rtol * math.abs(expected) -- false for NaN
        if not near then
          return ("%s: d output[%d] / d input %d[%d]: %.9g by backward, %.9g by differences"):format(who, i,
            index[j], k, got, expected)
        end
      end
    end
  end
end

local function run_check(who, f, inputs, o)
  check_callable(who, f)
  local message = compare(who, f, inputs, o)
  if not message then return true end
  if o.raise_exception then fail("%s", message) end
  return false, message
end

--- Checks gradients of a function against finite differences.
checks.gradcheck = signature.of("gradcheck(f, inputs, {" .. check_options .. "})", function(f, inputs, opts)
  return run_check("gradcheck", f, inputs, opts)
end)

--- Checks second-order gradients of a function against finite differences.
checks.gradgradcheck = signature.of("gradgradcheck(f, inputs, {grad_outputs: lacks, " .. check_options .. "})",
  function(f, inputs, opts)
  check_callable("gradgradcheck", f)
  local all, wanted, index = prepare_inputs("gradgradcheck", inputs)
  local outputs = core.enable_grad(function() return differentiable(f(unpack(all, 1, all.n))) end)
  if #outputs == 0 then fail("gradgradcheck: at least one output must depend on an input that requires a gradient") end
  local joined = {n = all.n + #outputs}
  for i = 1, all.n do joined[i] = all[i] end
  for i, y in ipairs(outputs) do
    joined[all.n + i] = ops.randn(y.shape, {dtype = y.dtype, device = y.device, requires_grad = true})
  end
  local function gradients(...)
    local now, seeds = {}, {}
    for i = 1, #wanted do now[i] = (select(index[i], ...)) end
    for i = 1, #outputs do seeds[i] = (select(all.n + i, ...)) end
    local results = differentiable(f(unpack({...}, 1, all.n)))
    local grads = core.grad(results, now, {grad_outputs = seeds, create_graph = true, allow_unused = true})
    local list = {}
    for i = 1, #now do
      if grads[i] then list[#list + 1] = grads[i] end
    end
    return list
  end
  return run_check("gradgradcheck", gradients, joined, opts)
end)

return checks
