-- What busted loads before a spec file (its --helper).
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
dofile(here .. "/leaks.lua")
dofile(here .. "/report.lua") -- after the leaks, which are told of here
