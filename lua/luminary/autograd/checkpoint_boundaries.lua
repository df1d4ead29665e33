--- Counts the begins and ends of checkpoints' runs: results kept across one are not those that backward recomputes.
local boundaries = {count = 0}

local function call(f, ...) return f(...) end

--- Returns a function that calls its first argument with the others, where backward runs f, a checkpoint's function,
--- again. Modules whose forward runs replace this, to restore their state then.
function boundaries.runner_of(_f) return call end

return boundaries
