-- The part of a spec file's cases that this process runs. A file whose head has a line "-- parts: 3" runs in as many
-- processes (spec/support/workers.lua), and asks for each case, by number.
local k, n = (os.getenv "LM_SPEC_PART" or "0/1"):match "^(%d+)/(%d+)$"
k, n = tonumber(k), tonumber(n)

--- Returns whether case i is one of this process's.
return function(i) return i % n == k end
