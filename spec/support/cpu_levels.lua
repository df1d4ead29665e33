-- Lists the instruction levels (LM_CPU_LEVEL) that this build accepts: all, or those from its only one up.
local levels = {}
for level = 0, 2 do
  local load = "LM_CPU_LEVEL=%d luajit -e 'require \"luminary\"' 2>/dev/null"
  if os.execute(load:format(level)) == 0 then levels[#levels + 1] = level end
end
return levels
