-- Prepares a process for busted, which loads this before a spec file (its --helper).
-- Open MPI's hwloc would write on every run that a container has no /sys.
local ffi = require "ffi"
ffi.cdef "int setenv(const char *, const char *, int);"
ffi.C.setenv("HWLOC_HIDE_ERRORS", "2", 0)
-- Results above a quarter, 3 MiB, are written past the caches, whatever machine this is.
ffi.C.setenv("LM_CACHE_BYTES", tostring(12 * 2 ^ 20), 0)

dofile "spec/support/leaks.lua"
dofile "spec/support/report.lua" -- after the leaks, which are reported here
