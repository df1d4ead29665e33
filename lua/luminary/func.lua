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

-- Returns a tree with make(leaf, path, the part of `beside` at its keys) in place of each leaf of v. A tree is a plain
-- table of trees, whose keys are visited in order; all else is a leaf. `beside` is a tree with keys of v, or one value
-- for all leaves below it; false stands for absent parts, below which v is a leaf. `what` names it in errors. With
-- `model`, the name of v in errors, `beside` has all keys of v, and `path` is that of its parts.
local function walk(who, path, v, make, beside, what, model)
  local nested = options.is_plain(beside)
  if model and nested ~= options.is_plain(v) then
    options.must_be(who, path, nested and "a tensor" or "a table as " .. model .. " is", beside or nil)
  end
  if beside == false or not options.is_plain(v) then return make(v, path, beside) end
  if #path > 5000 then fail("%s: %s… is a table that contains itself, or too many others", who, path:sub(1, 60)) end
  local out = {}
  for key in lists.sorted_pairs(nested and beside or {}) do
    if v[key] == nil then
      fail("%s: %s has '%s', which %s lacks", who, model and path or what, tostring(key), model or path)
    end
  end
  for key, part in lists.sorted_pairs(v) do
    local at = beside
    if nested then at = beside[key] or false end
    local name = type(key) == "number" and "%s[%s]" or "%s.%s"
    out[key] = walk(who, name:format(path, tostring(key)), part, make, at, what, model)
  end
  return out
end

-- Returns the tensors of the tree v. `like`: a tree named `model`, whose keys v must have, and shapes if `shapes`.
local function leaves(who, path, v, like, model, shapes)
  local list = {}
  walk(who, path, like == nil and v or like, function(t, at, mine)
    if like == nil then mine = t end
    if not core.is_tensor(mine) then options.must_be(who, at, "a tensor or a table of tensors", mine or nil) end
    if shapes and mine.shape ~= t.shape then options.wrong_shape(who, at, mine, t.shape) end
    list[#list + 1] = mine
  end, v, nil, model)
  return list
end

-- Returns a tree like v with the tensors of a list.
local function filled(v, list)
  local used = 0
  return walk("", "", v, function()
    used = used + 1
    return list[used]
  end)
end

local depth = 0 -- number of transforms in progress: inner ones record a graph for outer ones

-- Copies v with tensors that require gradients, and appends these to list. They are leaves, or views if the graph has
-- recorded the tensor already, as within another transform.
local function inputs_of(who, path, v, list)
  leaves(who, path, v)
  return walk(who, path, v, function(t, at)
    if not core.is_floating_point(t) then options.wrong_dtype(who, at, "floating", t) end
    local x = (t.requires_grad and core.is_grad_enabled()) and ops.view(t, t.shape) or t:detach():requires_grad_(true)
    list[#list + 1] = x
    return x
  end)
end

local function wants_graph(v)
  local wanted = false
  map_tensors(v, function(t) wanted = wanted or t.requires_grad end)
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

-- Returns the gradients of the tensors ys, weighted by vs if there are any; zeros for inputs without influence.
local function gradients(ys, inputs, how, vs)
  local roots, weights = {}, {}
  for i, y in ipairs(ys) do
    if y.requires_grad then
      roots[#roots + 1], weights[#roots + 1] = y, vs and vs[i]
    end
  end
  how.allow_unused, how.grad_outputs = true, vs and weights
  local grads = #roots > 0 and #inputs > 0 and core.grad(roots, inputs, how) or {}
  for i, x in ipairs(inputs) do grads[i] = grads[i] or ops.zeros_like(x) end
  return grads
end

local function positions(who, argnums)
  local list = type(argnums) == "number" and {argnums} or argnums
  return options.arg(who, "argnums", list, "count[]")
end

-- Returns the arguments, with copies as inputs in place of those with these numbers, the list of all inputs, and a
-- function that returns the argument (`argnums` is a number) or the list of arguments with a list's tensors instead.
local function prepared(who, args, numbers, argnums)
  local list, new, chosen = {}, {n = args.n, unpack(args, 1, args.n)}, {}
  for i, n in ipairs(numbers) do
    if n > args.n then fail("%s: argument %d is out of range; there are %d", who, n, args.n) end
    new[n] = inputs_of(who, "argument " .. n, args[n], list)
    chosen[i] = args[n]
  end
  return new, list, function(tensors) return filled(type(argnums) == "number" and chosen[1] or chosen, tensors) end
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
        local given, inputs, arranged = prepared(who, args, numbers, opts.argnums)
        local y, aux = f(unpack(given, 1, given.n))
        if not core.is_tensor(y) or y:numel() ~= 1 then
          options.must_be(who, "the result of f", "a tensor of one element", y)
        end
        local grads = gradients({y:reshape({})}, inputs, {create_graph = keep})
        if not keep then y, aux = without_graph(y), without_graph(aux) end
        local results = arrange(arranged(grads), y)
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

-- Returns the one result of f, and a list of its tensors.
local function single_result(who, ...)
  local n = select("#", ...)
  if n > 1 then fail("%s: f must return one value, got %d; return them in a table", who, n) end
  return ..., leaves(who, "the result of f", (...))
end

--- lm.func.vjp(f, ...): Computes f(...), and a function for vector-Jacobian products.
function func.vjp(f, ...)
  local args = pack(...)
  check_callable("vjp", f)
  return deeper(function()
    local numbers = {}
    for i = 1, args.n do numbers[i] = i end
    local given, inputs, arranged = prepared("vjp", args, numbers)
    local y, ys = single_result("vjp", f(unpack(given, 1, given.n)))
    return without_graph(y), function(v)
      local vs = leaves("vjp", "v", v, y, "the result of f", true)
      local grads = gradients(ys, inputs, {retain_graph = true, create_graph = depth > 0}, vs)
      return unpack(arranged(grads), 1, args.n)
    end
  end)
end

-- Returns y and its derivative along the tangents: the derivative of v^T J with respect to v, by two backward passes.
local function jvp(who, f, primals, tangents, keep)
  return deeper(function()
    local inputs = {}
    local given = inputs_of(who, "primals", primals, inputs)
    local directions = leaves(who, "tangents", tangents, primals, "primals", true)
    local y, ys = single_result(who, f(unpack(given, 1, #primals)))
    local vs = lists.map(ys, function(t)
      return (core.is_floating_point(t) and ops.zeros_like(t) or ops.zeros(t.shape)):requires_grad_(true)
    end)
    local sum
    for i, g in ipairs(gradients(ys, inputs, {create_graph = true}, vs)) do
      local part = g.requires_grad and (g * directions[i]):sum()
      sum = part and (sum and sum + part or part) or sum
    end
    local out = filled(y, gradients({sum}, vs, {create_graph = keep}))
    if keep then return y, out end
    return without_graph(y), without_graph(out)
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
    local grads = gradients({flat:select(1, i)}, inputs, {retain_graph = true, create_graph = keep})
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
      local given, inputs, arranged = prepared(who, args, numbers, opts.argnums)
      local results = pack(f(unpack(given, 1, given.n)))
      for i = 1, opts.has_aux and 1 or math.max(results.n, 1) do
        local path = i == 1 and "the result of f" or "result " .. i .. " of f"
        leaves(who, path, results[i])
        results[i] = walk(who, path, results[i], function(y) return arranged(jacobians(y, inputs, keep)) end)
      end
      if opts.has_aux and not keep then results[2] = without_graph(results[2]) end
      return unpack(results, 1, opts.has_aux and 2 or results.n)
    end)
  end
end

--- lm.func.jacrev(…): Returns a function that computes the Jacobian of f with respect to an argument.
--- lm.func.jacfwd(…): Returns a function that computes the Jacobian of f; the same as jacrev.
--- lm.func.jacobian(…): Returns a function that computes the Jacobian of f; the same as jacrev.

for _, who in ipairs {"jacrev", "jacfwd", "jacobian"} do
  func[who] = signature.of(who .. "(f, {argnums: any = 1, has_aux = false})", function(f, opts)
    return jacrev(who, f, opts)
  end)
end

--- Returns a function that computes the Hessian of f with respect to an argument.
func.hessian = signature.of("hessian(f, {argnums: any = 1})", function(f, opts)
  return jacrev("hessian", jacrev("hessian", f, opts), opts)
end)

-- Returns a list of functions that return the arguments' slice k, and the number of slices.
local function slices_of(args, in_dims)
  local size, slices = nil, {}
  local single = type(in_dims) == "number"
  for key in lists.sorted_pairs(single and {} or options.arg("vmap", "in_dims", in_dims, "table")) do
    if not (type(key) == "number" and key >= 1 and key <= args.n) then
      fail("vmap: in_dims is a dim, or a list with an entry for each of the %d arguments; it has '%s'", args.n,
        tostring(key))
    end
  end
  for i = 1, args.n do
    local dims, path = in_dims, "argument " .. i
    if not single then dims = in_dims[i] or false end
    local function read_mapped_size(t, at, dim)
      if not dim or single and not core.is_tensor(t) then return end
      local n = options.arg("vmap", at, t, "tensor"):size(options.arg("vmap", "in_dims of " .. at, dim, "integer"))
      if size and n ~= size then
        fail("vmap: mapped dims must have the same size: %s has %d in dim %d, others %d; false in in_dims passes "
          .. "an argument whole", at, n, dim, size)
      end
      size = n
    end
    walk("vmap", path, args[i], read_mapped_size, dims, "in_dims")
    slices[i] = function(k)
      return walk("vmap", path, args[i], function(t, _, dim)
        return dim and core.is_tensor(t) and t:select(dim, k) or t
      end, dims, "in_dims")
    end
  end
  return slices, size or fail("vmap: at least one argument must be mapped")
end

--- Returns a function that maps f over a dim of its arguments.
func.vmap = signature.of("vmap(f, {in_dims: any = 1, out_dims: any = 1})", function(f, opts)
  check_callable("vmap", f)
  return function(...)
    local args, outputs, first = pack(...), {}, nil
    local slices, size = slices_of(args, opts.in_dims)
    if size == 0 then fail("vmap: the mapped dim must not be empty") end
    for k = 1, size do
      local results = pack(f(unpack(lists.map(slices, function(slice) return slice(k) end), 1, args.n)))
      first = first or results
      for i = 1, math.max(first.n, results.n) do
        outputs[i] = outputs[i] or {}
        outputs[i][k] = leaves("vmap", "result " .. i, results[i], first[i], "that of the first call")
      end
    end
    for i = 1, first.n do
      local dims, used = opts.out_dims, 0
      local of_each = options.is_plain(dims) and (first.n > 1 or not (options.is_plain(first[1]) and first[1][1]))
      if of_each and (first.n > 1 or dims[1] ~= nil) then dims = dims[i] end
      outputs[i] = walk("vmap", "result " .. i, first[i], function(_, at, dim)
        used = used + 1
        options.arg("vmap", "out_dims of " .. at, dim, "integer")
        return ops.stack(lists.map(outputs[i], function(list) return list[used] end), dim)
      end, dims, "out_dims")
    end
    return unpack(outputs, 1, first.n)
  end
end)

--- Stacks the parameters and buffers of modules of the same class: returns two tables by name, for functional_call in
--- vmap.
func.stack_module_state = signature.of("stack_module_state(models: list)", function(models)
  local who, stacks = "stack_module_state", {{}, {}}
  if not models[1] then options.must_be(who, "models", "a list of modules", models) end
  for i, net in ipairs(models) do
    options.arg(who, ("models[%d]"):format(i), net, "module")
    if options.record(net).class ~= options.record(models[1]).class or net.training ~= models[1].training then
      fail("%s: models must have one class and mode, got %s and %s", who, tostring(models[1].__name), net.__name)
    end
    for k, walker in ipairs {net.named_parameters, net.named_buffers} do
      for name, t in walker(net) do
        stacks[k][name] = stacks[k][name] or {}
        stacks[k][name][i] = t
      end
    end
  end
  for _, by_name in ipairs(stacks) do
    for name, list in lists.sorted_pairs(by_name) do
      if #list ~= #models then fail("%s: not all models have '%s'", who, name) end
      by_name[name] = ops.stack(list):detach():requires_grad_(list[1].requires_grad)
    end
  end
  return stacks[1], stacks[2]
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
