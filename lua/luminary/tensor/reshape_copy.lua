--- reshape_copy(x, shape): a contiguous copy of x in that shape. ops.reshape returns a view where the strides allow
--- one: of an expanded x a view whose elements share memory.
local ops = require("luminary.core").ops

return function(x, shape) return ops.view(ops.clone(x, {memory_format = "contiguous"}), shape) end
