-- Lists the instruction levels (LM_CPU_LEVEL) that this build accepts: all, or those from its only one up. Its field
-- `only` is the one level that the build was made for (LM_ISA); nil for all.
local library = package.searchpath("luminary.core", package.cpath)
local cache = io.open(library:match "^(.*)/lib/" .. "/CMakeCache.txt")
local levels = {only = cache and cache:read("*a"):match "\nLM_ISA:STRING=(%w+)"}
if cache then cache:close() end
for level = 0, 2 do
  local load = "LM_CPU_LEVEL=%d luajit -e 'require \"luminary\"' 2>/dev/null"
  if os.execute(load:format(level)) == 0 then levels[#levels + 1] = level end
end
return levels
