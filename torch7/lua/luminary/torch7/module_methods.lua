--- Adds Torch7's methods to Luminary's own modules, containers and timers.
local core = require "luminary.core"
local options = require "luminary.base.options"
local gradients = require "luminary.autograd.zero_gradients"
local Module = require "luminary.nn.module"
local Timer = require "luminary.timer"
local fail, ops = options.fail, core.ops

local Numbered = require("luminary.nn.containers").Sequential.super

--- Adds a module at the end, as append does.
function Numbered:add(module) return self:append(module) end

--- Returns net[i].
function Numbered:get(i) return self[i] end

--- Sets evaluation mode, as eval does.
function Module:evaluate() return self:eval() end

--- Fills all gradients with zeros.
function Module:zeroGradParameters() self:zero_grad {set_to_none = false} end

--- Returns all parameters as one 1-d tensor and all gradients as another: x, dx = net:getParameters().
--- Afterwards the parameters and their .grad are views of the two, and zero_grad fills the gradients with zeros.
--- Parameters must have one dtype and device. Call it once, after the module was moved to its device; moving it later
--- does not move the two. net:share_memory() does.
function Module:getParameters()
  local params, n = self:parameters(), 0
  for i, p in ipairs(params) do
    if p.dtype ~= params[1].dtype or p.device ~= params[1].device then
      fail("%s:getParameters: all parameters must have the same dtype and device: parameter 1 is %s on %s, parameter "
        .. "%d is %s on %s", self.__name, params[1].dtype, params[1].device, i, p.dtype, p.device)
    end
    if p.device:find "^cpu" and p:is_shared() then
      fail("%s:getParameters: the parameters are in shared memory; call net:getParameters() before net:share_memory()",
        self.__name)
    end
    n = n + p:numel()
  end
  if n == 0 then fail("%s:getParameters: the module has no parameters", self.__name) end
  local like = {dtype = params[1].dtype, device = params[1].device}
  local flat, grads, first = ops.empty({n}, like), ops.zeros({n}, like), 1
  local vectors = {flat, grads}
  for _, p in ipairs(params) do
    local count, grad = p:numel(), p.grad
    local function part(of) return of:narrow(1, first, count):view(p.shape) end
    part(flat):copy_(p:detach())
    if grad then part(grads):copy_(grad:detach()) end
    p.grad = nil
    core.set_data(p, part(flat))
    p.grad = part(grads)
    gradients.stay(p, vectors)
    first = first + count
  end
  return core.keep(flat), core.keep(grads)
end

local by_backward = "loss:backward() computes all gradients"
for name, remedy in pairs {
  updateOutput = "net(x) calls forward", updateGradInput = by_backward, accGradParameters = by_backward,
  updateParameters = "optim.SGD(net:parameters(), {lr = 0.1}):step() does it",
  gradInput = "x.grad has it, where x requires grad", output = "net(x) returns it",
} do
  Module.__missing[name] = remedy
end

--- Begins a lap, as start does; does nothing while one runs.
function Timer:resume() return self.began and self or self:start() end
