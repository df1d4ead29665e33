--- Defines padding of the last dims: ZeroPad, ConstantPad, ReflectionPad, ReplicationPad, CircularPad with 1d, 2d, 3d.
local core = require "luminary.core"
local options = require "luminary.base.options"
local layer = require "luminary.nn.define_layer"

local ops = core.ops
local list, padding = layer.entries()

-- The kind of n dims' padding: a number for all sides, or before and after the last dim, then the dim before it, ….
options.kinds("paddings", function(n)
  return "integer or list of " .. 2 * n, function(who, name, v)
    if type(v) == "number" then
      local all = {}
      for i = 1, 2 * n do all[i] = v end
      v = all
    end
    local fits = type(v) == "table" and #v == 2 * n
    for i = 1, fits and #v or 0 do fits = fits and options.is("integer", v[i]) end
    if not fits then
      options.must_be(who, name, ("an integer or a list of %d (before and after the last dim, …)"):format(2 * n), v)
    end
    return v
  end
end)

local modes = {
  Zero = {mode = "constant", help = "Pads the last %s with zeros."},
  Constant = {mode = "constant", help = "Pads the last %s with a constant value."},
  Reflection = {mode = "reflect", help = "Pads the last %s with a reflection of the input at its edges."},
  Replication = {mode = "replicate", help = "Pads the last %s with copies of the input's edges."},
  Circular = {mode = "circular", help = "Pads the last %s with the input's other side."},
}
local dims = {"dim", "2 dims", "3 dims"}

for name, kind in pairs(modes) do
  for n = 1, 3 do
    local constant = name == "Constant"
    padding(("%sPad%dd(padding: paddings(%d)%s)"):format(name, n, n, constant and ", value: number" or "")) {
      prints = constant and "padding value" or "{padding}", help = kind.help:format(dims[n]),
      forward = function(self, x)
        options.arg(self.__name, "x", x, "tensor")
        return ops.pad(x, self.padding, {mode = kind.mode, value = self.value})
      end,
    }
  end
end

return layer.classes(list)
