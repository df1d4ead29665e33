--- Makes index 0, the first in Python, an error in lists that users index; they would not notice a nil.
local core = require "luminary.core"

--- Returns a metatable for lists called `what` in messages, for which reading [0] is an error.
return function(what)
  return {
    __plain = true,
    __index = function(list, key)
      if key ~= 0 then return nil end
      core.error_at_caller(("%s[0]: lists start at 1; %s[1] is the first of %d"):format(what, what, #list))
    end,
  }
end
