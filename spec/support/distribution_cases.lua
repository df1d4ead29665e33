-- Cases of scripts/dev/golden/gen_distributions.py: objects and their methods, with PyTorch's values and gradients.
local lm = require "luminary"
local D = lm.distributions

local cases = {}

-- Returns the rows of a file, and the numbers that their tensors refer to.
function cases.load(path)
  local stored = lm.load(path)
  local bytes, parts = stored.cases:totable(), {}
  for i, byte in ipairs(bytes) do parts[i] = string.char(byte) end
  return lm.core.json_decode(table.concat(parts)), stored.numbers
end

local function tensor(ref, numbers)
  local count = 1
  for _, size in ipairs(ref.shape) do count = count * size end
  local t = count == 0 and lm.zeros(ref.shape) or numbers:narrow(1, ref.at + 1, count):reshape(ref.shape)
  return t:to(ref.dtype):clone()
end

-- Builds what a plan describes. Floating tensors that require a gradient are added to `leaves`, in PyTorch's order.
local function build(plan, numbers, leaves)
  if type(plan) ~= "table" then return plan end
  if plan.none then return nil end
  if plan.at then
    local t = tensor(plan, numbers)
    if t:is_floating_point() then
      t:requires_grad_(true)
      leaves[#leaves + 1] = t
    end
    return t
  end
  if plan.list then
    local list = {}
    for i, part in ipairs(plan.list) do list[i] = build(part, numbers, leaves) end
    return list
  end
  local args, options, names = {}, {}, {}
  for i, part in ipairs(plan.args) do args[i] = build(part, numbers, leaves) end
  for name in pairs(plan.options) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do options[name] = build(plan.options[name], numbers, leaves) end
  if plan.make == "inverse" then return args[1]:inv() end
  local made = (plan.space == "" and D or D.constraints)[plan.make]
  if plan.space ~= "" and #args == 0 and #names == 0 and type(made) ~= "function" then return made end
  if #names > 0 then args[#args + 1] = options end
  return made(unpack(args))
end

local function flat(t)
  local list = t:detach():double():reshape {-1}:totable()
  return type(list) == "table" and list or {list}
end

-- Relative to a value, and to the largest of a tensor.
local TOLERANCE = {float64 = {1e-7, 1e-9}, float32 = {2e-4, 2e-5}}

local function differs(got, want, dtype, is_grad)
  if table.concat(got.shape, " ") ~= table.concat(want.shape, " ") then
    return ("shape [%s] instead of [%s]"):format(table.concat(got.shape, ", "), table.concat(want.shape, ", "))
  end
  local tolerance, a, b, largest = TOLERANCE[dtype], flat(got), flat(want), 1
  for _, v in ipairs(b) do
    if math.abs(v) < math.huge then largest = math.max(largest, math.abs(v)) end
  end
  for i, w in ipairs(b) do
    local g = a[i]
    local same = g == w or g ~= g and w ~= w or is_grad and w ~= w
    local off = math.abs(g - w) - tolerance[2] * largest - tolerance[1] * math.abs(w)
    if not same and (off > 0 or off ~= off) then
      return ("element %d: %.9g instead of %.9g"):format(i, g, w)
    end
  end
end

local function called(object, check, x)
  if check.expand then object = object:expand(check.expand) end
  if check.property then return object[check.call] end
  if check.support then return object.support:check(x) end
  if check.call == "enumerate_support" then return object:enumerate_support(check.flag) end
  if check.call == "domain" or check.call == "codomain" then return object[check.call].event_dim end
  if check.call == "bijective" or check.call == "event_dim" or check.call == "is_discrete" then
    return object[check.call]
  end
  if check.shape then return object[check.call](object, check.shape) end
  if check.call == "log_abs_det_jacobian" then return object:log_abs_det_jacobian(x, object(x)) end
  if check.call == "transform_to" or check.call == "biject_to" then return D[check.call](object)(x) end
  if check.call == "forward" then return object(x) end
  return object[check.call](object, x)
end

local function value_differs(got, want)
  if type(want) == "table" then
    got, want = table.concat(got, " "), table.concat(want, " ")
  elseif lm.is_tensor(got) then
    got = got:reshape {-1}:totable()[1]
  end
  if got ~= want then return ("%s instead of %s"):format(tostring(got), tostring(want)) end
end

-- Returns nil, or how one check of a row differs. counts[…] is incremented.
local function difference(row, check, numbers, counts)
  local leaves, x = {}, nil
  local ok, got = pcall(function()
    local object, other
    if row.kind == "kl" then
      object, other = build(row.p, numbers, leaves), build(row.q, numbers, leaves)
    else
      object = build(row.make, numbers, leaves)
    end
    if check.x then
      x = tensor(check.x, numbers)
      if check.grads and #check.grads > #leaves then x:requires_grad_(true) end
    end
    return row.kind == "kl" and D.kl_divergence(object, other) or row.kind ~= "kl" and called(object, check, x)
  end)
  counts.checks = counts.checks + 1
  if check.fails then
    counts.refused = counts.refused + 1
    if ok and got ~= nil then counts.more = counts.more + 1 end -- PyTorch lacks it
    return nil
  end
  if not ok then return tostring(got) end
  if check.want == nil then return value_differs(got, check.value) end
  if not lm.is_tensor(got) then return ("%s instead of a tensor"):format(tostring(got)) end
  local want = tensor(check.want, numbers)
  local dtype = want.dtype == "float32" and "float32" or "float64"
  local problem = differs(got, want, dtype)
  if problem or not check.grads then return problem end
  if x and x.requires_grad then leaves[#leaves + 1] = x end
  if not got.requires_grad then return "no gradient" end
  local seed = lm.arange(0, got:numel(), {dtype = "float64"}):cos():reshape(got.shape):to(got.dtype)
  local grads = lm.autograd.grad((got * seed):sum(), leaves, {allow_unused = true})
  for i, ref in ipairs(check.grads) do
    local wanted, own = not ref.none and tensor(ref, numbers) or nil, grads[i] or nil
    counts.gradients = counts.gradients + 1
    if wanted == nil and own ~= nil then wanted = lm.zeros_like(own) end
    if wanted ~= nil then
      problem = differs(own or lm.zeros_like(wanted), wanted, dtype, true)
      if problem then return ("gradient %d: %s"):format(i, problem) end
    end
  end
end

--- Returns descriptions of the checks of a row that differ.
function cases.check(row, numbers, counts)
  local wrong = {}
  for _, check in ipairs(row.checks) do
    local problem = difference(row, check, numbers, counts)
    if problem then wrong[#wrong + 1] = ("%s %s: %s"):format(row.name, check.call, problem) end
  end
  return wrong
end

function cases.counts() return {checks = 0, gradients = 0, refused = 0, more = 0} end

return cases
