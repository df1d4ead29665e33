-- Runs the specs under luajit with busted, and closes the Lua state at the end so that leaks show.
--   luajit spec/run.lua [--sanitized] [busted's options and files]
-- --sanitized leaves out what needs the unsanitized speed (specs tagged #speed) and what is Lua alone (#lua).
local args = {}
for _, a in ipairs(arg) do
  if a == "--sanitized" then args[#args + 1] = "--exclude-tags=speed,lua" else args[#args + 1] = a end
end
local named = false
for _, a in ipairs(args) do named = named or not a:match("^%-") end
if not named then args[#args + 1] = "spec" end
table.insert(args, 1, "--helper=spec/support/leaks.lua")
table.insert(args, 1, "--keep-going")
args[0] = "busted"
_G.arg = args

local ok, err = pcall(function() require("busted.runner") { standalone = false } end)
if not ok and err then io.stderr:write(tostring(err), "\n") end
io.stdout:flush()
os.exit(ok and 0 or 1, true)
