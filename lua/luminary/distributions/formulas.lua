--- Compiles the formulas of entries, texts such as "loc + scale * x". A name is a field of the distribution d, except:
--- x, the formula's argument; normal and uniform, random numbers for samples of the shape x; constants; and functions,
--- which are ops and those of `known`. A list has lines NAME = FORMULA before its last formula.
local core = require "luminary.core"
local class = require "luminary.base.class"
local full_precision = require "luminary.base.full_precision"
local options = require "luminary.base.options"
local finfo = require("luminary.tensor.dtype_info").finfo
local ops = core.ops

local formulas = {}

--- Clamps probabilities to [eps, 1 - eps], eps of their dtype.
local function clamp_probs(p)
  local eps = finfo(p.dtype).eps
  return p:clamp(eps, {max = 1 - eps})
end

-- Returns the logarithm of a sample of Gamma(a, 1) for each element of a, in float64, by squeezed rejection; for a < 1
-- from a sample of a + 1 (Marsaglia and Tsang 2000). Gradients pass to a by implicit reparameterization.
local function log_gamma_sample(a)
  a = a:to("float64")
  local y = core.no_grad(function()
    local below = a:lt(1)
    local d = ops.where(below, a + 1, a) - 1 / 3
    local c = 1 / (9 * d):sqrt()
    local v, done
    repeat
      local x, u = ops.randn_like(d), ops.rand_like(d)
      local t = 1 + c * x
      local new = t:clamp(1e-30) ^ 3
      local bound = 0.5 * x * x + d - d * new + d * new:log()
      local good = ops.logical_and(t:gt(0), u:log():lt(bound)):logical_or(bound:isnan()) -- NaN if a is not positive
      v = v and ops.where(done, v, new) or new
      done = done and ops.logical_or(done, good) or good
    until done:all():item()
    local log = d:log() + v:log()
    return ops.where(below, log + ops.rand_like(d):clamp(1e-300):log() / a, log)
  end)
  if not a.requires_grad then return y end
  return y + (a - a:detach()) * ops.gamma_slope(a:detach(), y)
end

--- The functions and constants that formulas may name beside ops and fields.
local known = {
  pi = math.pi, inf = math.huge, nan = 0 / 0, EULER = 0.57721566490153286, SQRT2 = math.sqrt(2), LN2 = math.log(2),
  LOG_2PI = math.log(2 * math.pi), LOG_PI = math.log(math.pi),
  clamp_probs = clamp_probs, log_gamma_sample = log_gamma_sample, wide = full_precision.wide,
  both = ops.logical_and, either = ops.logical_or, no = ops.logical_not,
  -- Returns x log p + (1 - x) log(1 - p), given the logits of p.
  bernoulli_log_prob = function(l, x) return x * ops.log_sigmoid(l) + (1 - x) * ops.log_sigmoid(-l) end,
  clipped_sigmoid = function(x)
    local info = finfo(x.dtype)
    return x:sigmoid():clamp(info.tiny, {max = 1 - info.eps})
  end,
  keep_sum = function(x) return x:sum(-1, {keepdim = true}) end,
  tiny_of = function(x) return finfo(x.dtype).tiny end, least_of = function(x) return finfo(x.dtype).min end,
  larger = math.max, eps_of = function(x) return finfo(x.dtype).eps end,
  in_dtype = function(x, like) return x:to(like.dtype) end, double = function(x) return x:to("float64") end,
  -- Returns 1 where a condition holds, else 0, in the dtype of `like`.
  flags = function(ok, like) return ok:to(like.dtype) end,
  one_hot_like = function(x) return ops.one_hot(x:argmax(-1), x.shape[x.ndim]):to(x.dtype) end,
  filled = function(like, value) return ops.full_like(like, value) end,
  joined = function(...)
    local all = {}
    for i = 1, select("#", ...) do
      for _, v in ipairs((select(i, ...))) do all[#all + 1] = v end
    end
    return all
  end,
}
formulas.known = setmetatable(known, {__index = ops})

local own = {normal = 'd:noise("randn", x)', uniform = 'd:noise("rand", x)'}
for word in ("c d p q s t x y and or not true false nil"):gmatch "%S+" do own[word] = word end

-- Returns the Lua code of a formula. locals: the set of names that lines before it define.
local function code_of(text, locals)
  return (text:gsub("%f[%w_.:\"]([%w_.:\"]+)(%(?)", function(token, call)
    local name, rest = token:match "^([%a_][%w_]*)(.*)$"
    if not name then return nil end
    if locals[name] or own[name] then return (own[name] or name) .. rest .. call end
    local is_known = rest == "" and call == "(" or rawget(known, name) ~= nil
    return (is_known and "known." or "d.") .. token .. call
  end))
end

--- Compiles a text, or a list of lines, into function(d, x), or one of other argument names; returns others unchanged.
function formulas.compile(text, names)
  if type(text) == "string" then text = {text} end
  if type(text) ~= "table" then return text end
  local locals, lines = {}, {}
  for i, line in ipairs(text) do
    local name, rest = line:match "^([%a_][%w_]*) = (.*)$"
    local code = code_of(rest or line, locals)
    lines[i] = name and ("local %s = %s"):format(name, code) or "return " .. code
    if name then locals[name] = true end
  end
  local code = ("local known = ... return function(%s) %s end"):format(names or "d, x", table.concat(lines, "\n"))
  return assert(loadstring(code, require("debug").getinfo(1, "S").source))(formulas.known)
end

--- Adds a kind of arguments: instances of a class. remedy(value) returns the end of an error for another value, or nil.
function formulas.kind(kind, of, remedy)
  options.kind(kind, kind, function(who, name, value)
    return class.is(value, of) and value or options.must_be(who, name, "a " .. kind, value, remedy and remedy(value))
  end)
end

--- Fails for a method or field `name` that an object's class lacks. A user's class is asked for `definition`, a text
--- with the class's name as %s; the error for a class of the library ends by `remedy`, if there is one.
function formulas.undefined(object, name, definition, remedy)
  local of = class.record(object).class
  if not rawget(of, "strict") then
    options.fail("%s: %s is not defined; define %s", of.__name, name, (definition:gsub("%%s", of.__name)))
  end
  options.fail("%s: %s is not supported%s", of.__name, name, remedy and "; " .. remedy or "")
end

return formulas
