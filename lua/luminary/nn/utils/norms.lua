--- Weights of a fixed norm: weight_norm and spectral_norm, both as parametrizations.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Module = require "luminary.nn.module"
local parametrize = require "luminary.nn.utils.parametrize"
local records = require "luminary.nn.module_fields"

local ops, fail = core.ops, options.fail
local norms = {}

-- Returns the norms of w's slices along dim, as a tensor of size 1 in all other dims; without dim the norm of w.
local function slice_norms(w, dim)
  if not dim then return ops.norm(w) end
  local others = {}
  for i = 1, w.ndim do
    if i ~= dim then others[#others + 1] = i end
  end
  if #others == 0 then return w:abs() end
  return (w * w):sum(others, {keepdim = true}):sqrt()
end

local WeightNorm = class.define("_WeightNorm", Module)
WeightNorm.old_names = {original0 = "_g", original1 = "_v"}
function WeightNorm:init(dim) self.dim = dim end
function WeightNorm:forward(g, v) return v * (g / slice_norms(v, self.dim)) end
function WeightNorm:right_inverse(w) return slice_norms(w, self.dim), w end

local function dim_of(who, module, name, dim, default)
  local w = records.of(module).values[name]
  if not core.is_tensor(w) then fail("%s: %s has no parameter '%s'", who, module.__name, tostring(name)) end
  if dim == false or dim == -1 and not default then return nil, w end -- PyTorch takes -1 as None
  dim = dim or default or 1
  local at = dim < 0 and w.ndim + dim + 1 or dim
  if at < 1 or at > w.ndim then fail("%s: dim %d is out of range for %s", who, dim, options.describe(w)) end
  return at, w
end

--- Applies weight normalization to a parameter of a module.
norms.weight_norm = signature.of([[weight_norm(module: module, {name = "weight",
  dim: integer|false})]], function(module, opts)
  local who = "weight_norm"
  local dim = dim_of(who, module, opts.name, opts.dim)
  return parametrize.register_parametrization(module, opts.name, WeightNorm(dim))
end)

local SpectralNorm = class.define("_SpectralNorm", Module)
SpectralNorm.old_names = {original = "_orig", ["0._u"] = "_u", ["0._v"] = "_v"}

function SpectralNorm:init(w, dim, iterations, eps)
  self.dim, self.n_power_iterations, self.eps = dim, iterations, eps
  core.no_grad(function()
    local m = self:as_matrix(w:detach())
    self:register_buffer("_u", self:unit(ops.randn({m.shape[1]}, {dtype = w.dtype, device = w.device})))
    self:register_buffer("_v", self:unit(ops.randn({m.shape[2]}, {dtype = w.dtype, device = w.device})))
    self:iterate(m, 15)
  end)
end

function SpectralNorm:unit(x) return x / x:norm():clamp(self.eps) end

function SpectralNorm:as_matrix(w)
  if self.dim ~= 1 then w = w:transpose(1, self.dim) end
  return w:reshape({w.shape[1], -1})
end

-- Moves _u and _v towards the singular vectors of the largest singular value.
function SpectralNorm:iterate(m, times)
  for _ = 1, times do
    self._u:copy_(self:unit(m:matmul(self._v)))
    self._v:copy_(self:unit(m:t():matmul(self._u)))
  end
end

function SpectralNorm:forward(w)
  if w.ndim == 1 then return w / w:norm():clamp(self.eps) end
  local m = self:as_matrix(w)
  if self.training then core.no_grad(function() self:iterate(m:detach(), self.n_power_iterations) end) end
  local u, v = self._u:clone(), self._v:clone()
  return w / (u * m:matmul(v)):sum()
end

function SpectralNorm:right_inverse(w) return w end -- luacheck: ignore self

--- Applies spectral normalization to a parameter of a module.
norms.spectral_norm = signature.of([[spectral_norm(module: module, {name = "weight", n_power_iterations: count = 1,
  eps: positive = 1e-12, dim: integer})]], function(module, opts)
  local who = "spectral_norm"
  local transposed = module.__name:find "^ConvTranspose"
  local dim, w = dim_of(who, module, opts.name, opts.dim, transposed and 2 or 1)
  return parametrize.register_parametrization(module, opts.name,
    SpectralNorm(w, dim, opts.n_power_iterations, opts.eps))
end)

for _, which in ipairs {"weight_norm", "spectral_norm"} do
  --- remove_weight_norm(module [, name = "weight"]): Removes the normalization of a parameter of a module.
  norms["remove_" .. which] = function(module, name)
    name = options.arg("remove_" .. which, "name", name == nil and "weight" or name, "string")
    if not parametrize.is_parametrized(module, name) then
      local owner = records.is_module(module) and module.__name or options.describe(module)
      options.fail("remove_%s: %s has no %s of '%s'", which, owner, which, name)
    end
    return parametrize.remove_parametrizations(module, name)
  end
end

return norms
