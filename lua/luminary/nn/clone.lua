--- Copies a module deeply, for module:clone().
local core = require "luminary.core"
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"
local records = require "luminary.nn.module_fields"

local copy_of

-- Copies a tensor to new memory, as a leaf, with its gradient.
local function copy_tensor(t)
  local new = core.no_grad(core.ops.clone, t)
  if parameter.is(t) then new = parameter.new(new, t.requires_grad) else new:requires_grad_(t.requires_grad) end
  if t.is_leaf and t.grad then new.grad = core.no_grad(core.ops.clone, t.grad) end
  local place = core.field(t, "placement")
  if place then place:copy_to(new) end
  return core.keep(new)
end

local function copy_table(t, copies)
  local new = {}
  copies[t] = new
  for key, value in pairs(t) do new[copy_of(key, copies)] = copy_of(value, copies) end
  return new
end

local function copy_module(module, copies)
  local source = records.of(module)
  if source.class.transparent then
    options.fail("clone: %s belongs to its processes or devices; clone %s", source.class.__name,
      source.values.module and "the module inside it, its field module" or "its parts")
  end
  local twin = records.twin(module, copies, function(value) return copy_of(value, copies) end)
  if source.on_clone then source.on_clone(twin) end
  return twin
end

-- Copies a value. A value that occurs several times has one copy, in the same positions.
function copy_of(v, copies)
  local kind = type(v)
  if kind ~= "table" and kind ~= "userdata" then return v end
  if copies[v] ~= nil then return copies[v] end
  if core.is_tensor(v) then
    copies[v] = copy_tensor(v)
  elseif records.is_module(v) then
    return copy_module(v, copies)
  elseif kind == "table" and not getmetatable(v) then
    return copy_table(v, copies)
  else
    copies[v] = v
  end
  return copies[v]
end

return function(module) return copy_of(module, {}) end
