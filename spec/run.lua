-- Runs the specs under luajit with busted.
--   luajit spec/run.lua [options] [files and folders]
-- One file runs in this process, which closes the Lua state at the end so that leaks show. Of several, each runs in a
-- process of its own, as many at once as there are CPUs (spec/support/workers.lua).
--   --jobs=N       so many at once
--   --slowest[=N]  at the end the N (20) slowest specs and files
--   --sanitized    leaves out what needs the unsanitized speed (specs tagged #speed) and what is Lua alone (#lua)
-- Other options are busted's. Specs that judge time are tagged #alone: nothing else runs beside them.
local here = arg[0]:match("^(.*)/[^/]*$") or "."
local options, passed, files, excluded = {}, {}, {}, {}
for _, a in ipairs(arg) do
  local name, value = a:match("^%-%-([%w-]+)=?(.*)$")
  if name == "jobs" or name == "slowest" then
    options[name] = tonumber(value) or 20
  elseif name == "sanitized" then
    excluded[#excluded + 1] = "speed,lua"
  elseif name == "exclude-tags" then
    excluded[#excluded + 1] = value
  elseif a:match("^%-") then
    passed[#passed + 1] = a
  else
    files[#files + 1] = a
  end
end

-- Folders are what they hold.
local list = {}
local quoted = {}
for i, file in ipairs(files) do quoted[i] = "'" .. file:gsub("'", "'\\''") .. "'" end
local pipe = io.popen("find " .. (quoted[1] and table.concat(quoted, " ") or here) .. " -name '*.lua' | sort")
local named = {}
for _, file in ipairs(files) do named[file] = true end
for file in pipe:lines() do
  if named[file] or file:match("_spec%.lua$") then list[#list + 1] = file end
end
pipe:close()

if #list ~= 1 then
  options.busted, options.excluded = passed, excluded
  options.jobs = options.jobs or tonumber(io.popen("nproc"):read "*l") or 1
  os.exit(dofile(here .. "/support/workers.lua")(list, options), true)
end

_G.arg = { [0] = "busted", "--keep-going", "--helper=" .. here .. "/support/helper.lua", list[1] }
for _, option in ipairs(passed) do table.insert(arg, 1, option) end
if #excluded > 0 then table.insert(arg, 1, "--exclude-tags=" .. table.concat(excluded, ",")) end
local ok, err = pcall(function() require("busted.runner") { standalone = false } end)
if not ok and err then io.stderr:write(tostring(err), "\n") end
io.stdout:flush()
os.exit(ok and 0 or 1, true)
