--- lm.func: Transforms functions: gradients, Jacobians, maps over a batch, and calls of modules with other parameters.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local map_tensors = require "luminary.base.map_tensors"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local check_callable = require("luminary.autograd.function").check_callable
local records = require "luminary.nn.module_fields"
local pack = options.pack

local ops, fail = core.ops, options.fail
local func = {}

-- Replaces each floating tensor t of v, a tensor or a nested table of tensors, by make(t). Keys are visited in order.
local function map_floating(who, v, make)
  if core.is_tensor(v) then
    if not core.is_floating_point(v) then fail("%s: expected a floating tensor, got %s", who, v.dtype) end
    return make(v)
  end
  if not options.is_plain(v) then options.expected(who, "a tensor or a table of tensors", v) end
  local keys, out = {}, {}
  for key in pairs(v) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do out[key] = map_floating(who, v[key], make) end
  return out
end

local depth = 0 -- number of transforms in progress: inner ones record a graph for outer ones

-- Copies v with tensors that require gradients, and appends these to list. They are leaves, or views if the graph has
-- recorded the tensor already, as within another transform.
local function inputs_of(who, v, list)
  return map_floating(who, v, function(t)
    local x = (t.requires_grad and core.is_grad_enabled()) and ops.view(t, t.shape) or t:detach():requires_grad_(true)
    list[#list + 1] = x
    return x
  end)
end

local function wants_graph(v)
  if core.is_tensor(v) then return v.requires_grad end
  local wanted = false
  for _, each in pairs(options.is_plain(v) and v or {}) do wanted = wanted or wants_graph(each) end
  return wanted
end

-- Calls f(...) with gradients enabled and depth increased by one; restores depth also after errors.
local function deeper(f, ...)
  local before = depth
  return options.restoring(function() depth = before end, function(...)
    depth = before + 1
    return core.enable_grad(f, ...)
  end, ...)
end

local function without_graph(v) return map_tensors(v, core.methods.detach) end

-- Returns the gradients of y; zeros for inputs on which it does not depend.
local function gradients(y, inputs, how)
  how.allow_unused = true
  local grads = y.requires_grad and core.grad(y, inputs, how) or {}
  for i, x in ipairs(inputs) do grads[i] = grads[i] or ops.zeros_like(x) end
  return grads
end

-- Returns a list of the arguments with these numbers, with gradients in place of their tensors.
local function like_arguments(who, args, numbers, grads)
  local out, used = {}, 0
  for i, n in ipairs(numbers) do
    out[i] = map_floating(who, args[n], function()
      used = used + 1
      return grads[used]
    end)
  end
  return out
end

local function positions(who, argnums)
  local list = type(argnums) == "number" and {argnums} or argnums
  return options.arg(who, "argnums", list, "count[]")
end

-- Returns the arguments, with copies as inputs in place of those with these numbers, and the list of all inputs.
local function prepared(who, args, numbers)
  local list, new = {}, {n = args.n, unpack(args, 1, args.n)}
  for _, n in ipairs(numbers) do
    if n > args.n then fail("%s: argument %d is out of range; there are %d", who, n, args.n) end
    new[n] = inputs_of(who, args[n], list)
  end
  return new, list
end

-- Returns true if derivatives of a call with these arguments need a graph themselves.
local function keeps_graph(args) return depth > 0 or core.is_grad_enabled() and wants_graph(args) end

-- Defines a function that returns one of gradients and value of f; arrange(gradients, value, the result aux of f).
local function define(who, arrange)
  local text = who .. "(f, {argnums: any = 1, has_aux = false, create_graph = false})"
  func[who] = signature.of(text, function(f, opts)
    check_callable(who, f)
    local numbers = positions(who, opts.argnums)
    return function(...)
      local args = pack(...)
      local keep = opts.create_graph or keeps_graph(args)
      return deeper(function()
        local given, inputs = prepared(who, args, numbers)
        local y, aux = f(unpack(given, 1, given.n))
        if not core.is_tensor(y) or y:numel() ~= 1 then
          options.must_be(who, "the result of f", "a tensor of one element", y)
        end
        local grads = gradients(y:reshape({}), inputs, {create_graph = keep})
        local out = like_arguments(who, given, numbers, grads)
        if not keep then y, aux = without_graph(y), without_graph(aux) end
        local results = arrange(type(opts.argnums) == "number" and out[1] or out, y)
        local n = #results
        if opts.has_aux then results[n + 1] = aux end
        return unpack(results, 1, opts.has_aux and n + 1 or n)
      end)
    end
  end)
end

--- lm.func.grad(…): Returns a function that computes the gradient of f with respect to its argument argnums.
--- lm.func.grad_and_value(…): Returns a function that computes the gradient and the value of f.
--- lm.func.value_and_grad(…): Returns a function that computes the value and the gradient of f.

define("grad", function(grads) return {grads} end)
define("grad_and_value", function(grads, y) return {grads, y} end)
define("value_and_grad", function(grads, y) return {y, grads} end)

--- lm.func.vjp(f, ...): Computes f(...), and a function for vector-Jacobian products.
function func.vjp(f, ...)
  local args = pack(...)
  check_callable("vjp", f)
  return deeper(function()
    local numbers = {}
    for i = 1, args.n do numbers[i] = i end
    local given, inputs = prepared("vjp", args, numbers)
    local y = f(unpack(given, 1, given.n))
    options.arg("vjp", "the result of f", y, "tensor")
    return without_graph(y), function(v)
      options.arg("vjp", "v", v, "tensor")
      local grads = gradients(y, inputs, {grad_outputs = v, retain_graph = true, create_graph = depth > 0})
      return unpack(like_arguments("vjp", given, numbers, grads), 1, args.n)
    end
  end)
end

-- Returns y and its derivative along the tangents: the derivative of v^T J with respect to v, by two backward passes.
local function jvp(who, f, primals, tangents, keep)
  return deeper(function()
    local inputs = {}
    local given = {n = #primals}
    for i, p in ipairs(primals) do given[i] = inputs_of(who, p, inputs) end
    local directions = {}
    for i = 1, #primals do
      map_floating(who, tangents[i], function(t)
        directions[#directions + 1] = t
        return t
      end)
    end
    if #directions ~= #inputs then
      fail("%s: tangents and primals must have the same number of tensors, got %d and %d", who, #directions, #inputs)
    end
    for i, x in ipairs(inputs) do
      if directions[i].shape ~= x.shape then
        fail("%s: tangent %d must have the shape of its primal, got %s for %s", who, i, options.describe(directions[i]),
          options.describe(x))
      end
    end
    local y = options.arg(who, "the result of f", f(unpack(given, 1, given.n)), "tensor")
    if not y.requires_grad then return y, ops.zeros_like(y) end
    local v = ops.zeros_like(y):requires_grad_(true)
    local grads = core.grad(y, inputs, {grad_outputs = v, create_graph = true, allow_unused = true})
    local sum
    for i in ipairs(inputs) do
      local part = grads[i] and grads[i].requires_grad and (grads[i] * directions[i]):sum()
      sum = part and (sum and sum + part or part) or sum
    end
    local out = sum and core.grad(sum, {v}, {create_graph = keep, allow_unused = true})[1] or ops.zeros_like(y)
    if keep then return y, out end
    return y:detach(), out:detach()
  end)
end
func._jvp = jvp

--- Computes f(primals…) and the Jacobian-vector product with tangents.
func.jvp = signature.of("jvp(f, primals: table, tangents: table)", function(f, primals, tangents)
  check_callable("jvp", f)
  return jvp("jvp", f, primals, tangents, depth > 0)
end)

-- Returns the Jacobians of y [out…] with respect to the inputs: tensors [out…, in…].
local function jacobians(y, inputs, keep)
  local rows, flat = {}, y:reshape({-1})
  for k = 1, #inputs do rows[k] = {} end
  for i = 1, flat:numel() do
    local grads = gradients(flat:select(1, i), inputs, {retain_graph = true, create_graph = keep})
    for k, g in ipairs(grads) do rows[k][i] = g end
  end
  for k, x in ipairs(inputs) do
    local shape = lists.joined(y.shape, x.shape)
    rows[k] = #rows[k] > 0 and ops.stack(rows[k]):reshape(shape)
      or ops.zeros(shape, {dtype = x.dtype, device = x.device})
  end
  return rows
end

local function jacrev(who, f, opts)
  check_callable(who, f)
  local numbers = positions(who, opts.argnums)
  return function(...)
    local args = pack(...)
    local keep = keeps_graph(args)
    return deeper(function()
      local given, inputs = prepared(who, args, numbers)
      local y = options.arg(who, "the result of f", f(unpack(given, 1, given.n)), "tensor")
      local out = like_arguments(who, given, numbers, jacobians(y, inputs, keep))
      return type(opts.argnums) == "number" and out[1] or out
    end)
  end
end

--- Returns a function that computes the Jacobian of f with respect to an argument.
func.jacrev = signature.of("jacrev(f, {argnums: any = 1})", function(f, opts) return jacrev("jacrev", f, opts) end)
--- Returns a function that computes the Jacobian of f; the same as jacrev.
func.jacobian = signature.of("jacobian(f, {argnums: any = 1})", function(f, opts)
  return jacrev("jacobian", f, opts)
end)

--- Returns a function that computes the Hessian of f with respect to an argument.
func.hessian = signature.of("hessian(f, {argnums: count = 1})", function(f, opts)
  check_callable("hessian", f)
  return jacrev("hessian", func.grad(f, opts), opts)
end)

-- Returns the size of the mapped dims, which all arguments share.
local function mapped_size(args, dims)
  local size
  for i = 1, args.n do
    if dims[i] then
      local x, dim = options.arg("vmap", "argument " .. i, args[i], "tensor"), dims[i]
      local n = x:size(dim)
      if size and n ~= size then
        fail("vmap: mapped dims must have the same size: argument %d has %d in dim %d, others %d", i, n, dim, size)
      end
      size = n
    end
  end
  return size or fail("vmap: at least one argument must be mapped")
end

--- Returns a function that maps f over a dim of its arguments.
func.vmap = signature.of("vmap(f, {in_dims: any = 1, out_dims: integer = 1})", function(f, opts)
  check_callable("vmap", f)
  return function(...)
    local args, dims = pack(...), {}
    for i = 1, args.n do
      if type(opts.in_dims) == "number" then
        dims[i] = core.is_tensor(args[i]) and opts.in_dims
      else
        dims[i] = options.arg("vmap", "in_dims", opts.in_dims, "table")[i]
      end
    end
    local outputs, count = {}, 0
    local size = mapped_size(args, dims)
    if size == 0 then fail("vmap: the mapped dim must not be empty") end
    for k = 1, size do
      local slices = {}
      for i = 1, args.n do slices[i] = dims[i] and args[i]:select(dims[i], k) or args[i] end
      local results = pack(f(unpack(slices, 1, args.n)))
      count = results.n
      for i = 1, results.n do
        outputs[i] = outputs[i] or {}
        outputs[i][k] = options.arg("vmap", "result " .. i, results[i], "tensor")
      end
    end
    for i = 1, count do outputs[i] = ops.stack(outputs[i], opts.out_dims) end
    return unpack(outputs, 1, count)
  end
end)

--- lm.func.functional_call(module, values, ...): Calls a module with given tensors in place of its parameters
--- and buffers.
function func.functional_call(module, values, ...)
  local who = "functional_call"
  if not records.is_module(module) then options.expected(who, "a module", module) end
  local by_tensor, replaced, known = {}, {}, {}
  local function record_of(each)
    known[each] = known[each] or records.of(each)
    return known[each]
  end
  for _, named in ipairs(options.is_plain(values) and options.is_plain(values[1]) and values or {values}) do
    for path, t in pairs(options.arg(who, "values", named, "table")) do
      options.arg(who, tostring(path), t, "tensor")
      local parent, name = path:match "^(.*)%.([^.]+)$"
      local owner = record_of((records.find(who, module, parent or "", "child", record_of)))
      name = name or path
      if owner.kind[name] ~= "param" and owner.kind[name] ~= "buffer" then
        fail("%s: %s has no parameter or buffer '%s'", who, module.__name, path)
      end
      by_tensor[owner.values[name]] = t
    end
  end
  for _, each in ipairs(module:modules()) do
    local record = record_of(each)
    for _, kind in ipairs {"param", "buffer"} do
      for _, name in ipairs(record[kind]) do
        local was = record.values[name]
        replaced[#replaced + 1] = by_tensor[was] and {record, name, was} or nil
      end
    end
  end
  return options.restoring(function()
    for _, each in ipairs(replaced) do each[1].values[each[2]] = each[3] end
  end, function(...)
    for _, each in ipairs(replaced) do each[1].values[each[2]] = by_tensor[each[3]] end
    return module(...)
  end, ...)
end

return options.strict("func", func)
