--- reshape_copy(x, shape): Returns a contiguous copy of x in that shape. ops.reshape may return a view, whose elements
--- share memory if x is expanded.
local ops = require("luminary.core").ops

return function(x, shape) return ops.view(ops.clone(x, {memory_format = "contiguous"}), shape) end
