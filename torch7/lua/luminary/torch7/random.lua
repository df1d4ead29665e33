--- Defines Torch7's functions that create tensors of sizes, fill them with random numbers, and draw numbers.
local core = require "luminary.core"
local options = require "luminary.base.options"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local fail, ops = options.fail, core.ops
local functions, methods, is, raw, wrap, put = tensor.functions, tensor.methods, tensor.is, tensor.raw, tensor.wrap,
  tensor.put
local sizes_from = tensor.sizes_from

-- ---- generators

--- torch.Generator(): Creates a generator of random numbers; torch.manualSeed(g, seed), g as the first argument of
--- functions that draw.
local Generator = class.new "torch.Generator"
function Generator:__init() self.state = core.generator "cpu" end
function Generator:write(file) file:writeObject(wrap(core.get_rng_state(self.state))) end
function Generator:read(file)
  self:__init()
  core.set_rng_state(raw(file:readObject(), "torch.Generator"), self.state)
end

-- Returns the core's generator for a torch.Generator; nil for other values.
local function generator_of(v) return type(v) == "table" and getmetatable(v) == Generator and v.state or nil end

--- torch.manualSeed([g,] seed), torch.seed([g]), torch.initialSeed([g]): Set the seed; set a random one and return it;
--- return the seed.
function functions.manualSeed(g, seed)
  local own = generator_of(g)
  if own then core.seed_generator(own, seed) else core.manual_seed(g) end
end
function functions.seed(g)
  local own = generator_of(g)
  if own then return core.seed_generator(own) end
  local seed = os.time()
  core.manual_seed(seed)
  return seed
end
function functions.initialSeed(g) return core.initial_seed(generator_of(g)) end
--- torch.getRNGState([g]) and torch.setRNGState([g,] state): Return and set a generator's state, a ByteTensor.
function functions.getRNGState(g) return wrap(core.get_rng_state(generator_of(g) or "cpu")) end
function functions.setRNGState(g, state)
  local own = generator_of(g)
  core.set_rng_state(raw(own and state or g, "torch.setRNGState"), own or "cpu")
end

-- ---- creation

-- Defines torch.name([r,] [g,] …) and r:name(…). compute(options, …) returns a luminary tensor.
local function created(name, compute, into)
  local function create(how, first, ...)
    local g = generator_of(first)
    if not g then return compute(how, first, ...) end
    how.generator = g
    return compute(how, ...)
  end
  functions[name] = function(first, ...)
    if is(first) then return (into or put)(first, create({dtype = raw(first).dtype}, ...)) end
    local list, n, dtype = {first, ...}, 1 + select("#", ...), tensor.default
    if type(list[n]) == "string" then dtype, n = tensor.dtype_of(list[n]), n - 1 end -- a type comes last
    return wrap(create({dtype = dtype}, unpack(list, 1, n)))
  end
  methods[name] = functions[name]
end

local function float_options(how)
  local floating = how.dtype:find "float" or how.dtype == "bfloat16"
  return {dtype = floating and how.dtype or tensor.default, generator = how.generator}
end
for _, name in ipairs {"zeros", "ones"} do
  created(name, function(how, ...) return ops[name](sizes_from(...), how) end)
end
for _, name in ipairs {"rand", "randn"} do
  created(name, function(how, ...) return ops[name](sizes_from(...), float_options(how)) end)
end
created("eye", function(how, n, m) return ops.eye(n, {m = m or n, dtype = how.dtype}) end)
created("randperm", function(how, n)
  return ops.add(ops.randperm(n, {generator = how.generator}), 0):to(how.dtype)
end)

-- Returns n numbers from a on, step apart.
local function progression(how, a, step, n)
  return ops.add(ops.mul(ops.arange(0, n, {dtype = "float64"}), step), a):to(how.dtype)
end
local function numbers(who, ...)
  for i, name in ipairs {"a", "b"} do options.arg(who, name, (select(i, ...)), "number") end
end
--- torch.range(a, b [, step]): Returns numbers from a to b, including b.
created("range", function(how, a, b, step)
  numbers("torch.range", a, b)
  step = options.arg("torch.range", "step", step or 1, "number")
  if step == 0 or (b - a) / step < 0 then fail("torch.range: step must lead from %g to %g, got %g", a, b, step) end
  return progression(how, a, step, math.floor((b - a) / step + 1e-9) + 1)
end, tensor.put_by_count)
local function linspace(who, how, a, b, n)
  numbers(who, a, b)
  n = options.arg(who, "n", n or 100, "count")
  if n == 1 and a ~= b then fail("%s: n must be at least 2 for different ends, got 1", who) end
  return progression(how, a, n > 1 and (b - a) / (n - 1) or 0, n)
end
created("linspace", function(how, a, b, n) return linspace("torch.linspace", how, a, b, n) end,
  tensor.put_by_count)
--- torch.logspace(a, b [, n]): Returns numbers from 10^a to 10^b.
created("logspace", function(how, a, b, n)
  local exponents = linspace("torch.logspace", {dtype = "float64"}, a, b, n)
  return ops.pow(ops.full({}, 10, {dtype = "float64"}), exponents):to(how.dtype)
end, tensor.put_by_count)

-- ---- random numbers

-- Defines x:name([g,] …), which fills x, and torch.name([g,] …), which returns one number.
local function drawn(name, fill)
  methods[name] = function(object, first, ...)
    local x, g = raw(object, name), generator_of(first)
    if g then fill(x, {generator = g}, ...) else fill(x, {}, first, ...) end
    return object
  end
  functions[name] = function(first, ...)
    if is(first) then return methods[name](first, ...) end
    return methods[name](wrap(ops.empty({1}, {dtype = "float64"})), first, ...)[1]
  end
end
-- Fills integer types by way of floating numbers.
local function of_floats(op)
  return function(x, ...)
    if core.is_floating_point(x) then return op(x, ...) end
    x:copy_(op(ops.empty(x.shape, {dtype = "float64"}), ...))
  end
end
local function plain(name, first, second)
  local op_ = of_floats(ops[name .. "_"])
  return function(x, how, a, b)
    if second then return op_(x, a or first, b or second, how) end
    return op_(x, options.arg(name, "parameter", a or first, "number"), how)
  end
end
drawn("uniform", plain("uniform", 0, 1))
drawn("cauchy", plain("cauchy", 0, 1))
drawn("exponential", plain("exponential", 1))
drawn("geometric", plain("geometric"))
drawn("normal", function(x, how, mean, std)
  if not (is(mean) or is(std)) then return of_floats(ops.normal_)(x, mean or 0, std or 1, how) end
  local z = ops.randn(x.shape, {dtype = x.dtype, device = x.device, generator = how.generator})
  local function operand(v) return is(v) and tensor.fitted("normal", x, raw(v)) or v end
  x:copy_(ops.add(ops.mul(z, operand(std or 1)), operand(mean or 0)))
end)
--- x:logNormal(mean, std): Draws numbers whose logarithms have this mean and standard deviation.
drawn("logNormal", function(x, how, mean, std) of_floats(ops.log_normal_)(x, mean or 1, std or 2, how) end)
--- x:bernoulli([p = 0.5]): Draws 1 with probability p, a number or a tensor with as many elements, else 0.
drawn("bernoulli", function(x, how, p)
  if not is(p) then return x:bernoulli_(p or 0.5, how) end
  x:copy_(ops.bernoulli(tensor.fitted("bernoulli", x, raw(p)), how))
end)
--- x:random([a,] b): Draws integers from a, by default 1, to b, with both ends.
drawn("random", function(x, how, a, b)
  local largest = ({float64 = 2 ^ 53, float32 = 2 ^ 24, float16 = 2 ^ 11, uint8 = 255, int8 = 127, int16 = 2 ^ 15 - 1,
    int32 = 2 ^ 31 - 1})[x.dtype] or 2 ^ 32
  if b == nil then a, b = a and 1 or 0, a or math.min(largest, 2 ^ 32 - 1) end
  if a > b then fail("random: a must be at most b, got %g and %g", a, b) end
  x:random_(a, b + 1, how)
end)

--- torch.multinomial([r,] p, n [, replacement]): Draws n indices by weight from each row.
tensor.define("multinomial", {"t n b?", "t T n b?"}, function(p, n, replacement, last)
  local g = generator_of(n)
  if g then n, replacement = replacement, last end
  return ops.multinomial(p, n, {replacement = replacement or false, generator = g})
end, {in_place = false})

--- torch.multinomialAliasSetup(p [, state]): Returns the tables of the alias method (Vose 1991) for weights p, a list
--- of indices and of probabilities; torch.multinomialAlias(r, state) fills r with indices by weight.
function functions.multinomialAliasSetup(p, state)
  local x = raw(p, "torch.multinomialAliasSetup")
  local n = x:numel()
  if x.ndim ~= 1 or n == 0 then
    fail("torch.multinomialAliasSetup: p must be 1-d with one or more elements, got shape %s", tostring(x.shape))
  end
  local q, alias, small, large = ops.mul(x:double(), n / ops.sum(x:double()):item()):totable(), {}, {}, {}
  for i = 1, n do
    local list = q[i] < 1 and small or large
    list[#list + 1], alias[i] = i, i
  end
  while #small > 0 and #large > 0 do
    local low, high = table.remove(small), large[#large]
    alias[low], q[high] = high, q[high] - (1 - q[low])
    if q[high] < 1 then small[#small + 1] = table.remove(large) end
  end
  state = state or {tensor.new "int64", tensor.new(x.dtype)}
  put(state[1], core.tensor(alias, {dtype = "int64"}))
  put(state[2], core.tensor(q, {dtype = "float64"}):clamp(0, 1))
  return state
end
function functions.multinomialAlias(r, state)
  local x, alias, q = raw(r, "torch.multinomialAlias"), raw(state[1]), raw(state[2])
  local at = ops.empty({x:numel()}, {dtype = "int64"}):random_(1, q:numel() + 1)
  local kept = ops.lt(ops.rand({x:numel()}, {dtype = "float64"}), ops.index_select(q, 1, at))
  x:copy_(ops.where(kept, at, ops.index_select(alias, 1, at)):view(x.shape))
  return r
end
methods.multinomialAliasSetup, methods.multinomialAlias = functions.multinomialAliasSetup, functions.multinomialAlias
