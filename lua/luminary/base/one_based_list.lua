--- Metatables of lists that users index: what stands at 0 in Python stands at 1 here, and nil would go unnoticed.
local core = require "luminary.core"

--- A metatable for lists called `what` in messages, of which [0] is an error.
return function(what)
  return {
    __plain = true,
    __index = function(list, key)
      if key ~= 0 then return nil end
      core.error_at_caller(("%s[0]: lists start at 1; %s[1] is the first of %d"):format(what, what, #list))
    end,
  }
end
