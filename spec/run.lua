-- Runs the specs under luajit with busted.
--   luajit spec/run.lua [options] [files, folders, or names: ops, ops_spec, cuda/memory]
-- One file runs in this process, which closes the Lua state at the end so that leaks show. Of several, each runs in a
-- process of its own, two for each CPU at once, since many wait (spec/support/workers.lua).
--   --jobs=N       that many at once, in processes of their own even if there is one file
--   --again=N      if specs of at most N files failed and none crashed, those files run once more, alone, which counts
--   --slowest[=N]  at the end the N (20) slowest specs and files
--   --sanitized    leaves out specs tagged #unsanitized (too slow or large under sanitizers) and #lua (no C of ours, or
--                  none that other specs do not call); sets LM_SPEC_SANITIZED=1, with which random cases are fewer
--   --except=NAMES files to leave out, named as above, with commas between
--   --times        only the files with bounds on time (spec/support/time.lua), one after the other, and judges them;
--                  without it no bound on time is judged, and specs that are nothing else, tagged #time, are left out
-- Other options are busted's.
local ffi = require "ffi"
ffi.cdef "int chdir(const char *); char *getcwd(char *, size_t); int setenv(const char *, const char *, int);"

-- Specs run in the tree's folder; `given` turns paths that were meant from where this began.
local before = ffi.string(ffi.C.getcwd(ffi.new "char[4096]", 4096))
ffi.C.chdir((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/..")
local moved = before ~= ffi.string(ffi.C.getcwd(ffi.new "char[4096]", 4096))
local function given(path) return moved and path:sub(1, 1) ~= "/" and before .. "/" .. path or path end

local options, passed, files, excluded, except = {}, {}, {}, {}, {}
for _, a in ipairs(arg) do
  local name, value = a:match("^%-%-([%w-]+)=?(.*)$")
  if name == "jobs" or name == "slowest" or name == "again" then
    options[name] = tonumber(value) or 20
  elseif name == "sanitized" then
    excluded[#excluded + 1] = "unsanitized,lua"
    ffi.C.setenv("LM_SPEC_SANITIZED", "1", 1)
  elseif name == "times" then
    options.times = true
  elseif name == "exclude-tags" then
    excluded[#excluded + 1] = value
  elseif name == "except" then
    for file in value:gmatch "[^,]+" do except[#except + 1] = file end
  elseif a:match("^%-") then
    passed[#passed + 1] = a
  else
    files[#files + 1] = a
  end
end

local function specs_under(...)
  local found, paths = {}, {}
  for i, path in ipairs {...} do paths[i] = "'" .. path:gsub("'", "'\\''") .. "'" end
  local pipe = io.popen("find " .. table.concat(paths, " ") .. " -name '*_spec.lua' 2>/dev/null | sort")
  for file in pipe:lines() do found[#found + 1] = file end
  pipe:close()
  return found
end

-- A path is the file, or what the folder holds; anything else is how the paths of specs end.
local list, all = {}, specs_under("spec", "torch7/spec")
local function files_of(name)
  local file, found = io.open(given(name)), specs_under(given(name))
  if file and not found[1] and name:match "%.lua$" then found = { given(name) } end
  if file then file:close() end
  if not found[1] then
    local short = name:gsub("^%./", ""):gsub("^torch7/", ""):gsub("^spec/", "")
    local ending = "/" .. short:gsub("%.lua$", ""):gsub("_spec$", "") .. "_spec.lua"
    for _, path in ipairs(all) do
      if path:sub(-#ending) == ending then found[#found + 1] = path end
    end
  end
  if not found[1] then
    io.stderr:write(("run.lua: there is no spec file, folder or name '%s'\n"):format(name))
    os.exit(1)
  end
  return found
end
local left_out = {}
for _, name in ipairs(except) do
  for _, path in ipairs(files_of(name)) do left_out[path] = true end
end
for _, name in ipairs(#files > 0 and files or {"spec", "torch7/spec"}) do
  for _, path in ipairs(files_of(name)) do
    if not left_out[path] then list[#list + 1] = path end
  end
end

local function read(path)
  local file = assert(io.open(path))
  local text = file:read "*a"
  file:close()
  return text
end

if options.times then
  local judging = {}
  for _, path in ipairs(list) do
    local text = read(path)
    if text:find("spec.support.time", 1, true) or text:find('#time[%s"]') then judging[#judging + 1] = path end
  end
  list = judging
  ffi.C.setenv("LM_TEST_TIMES", "1", 1)
  options.jobs = 1
elseif os.getenv "LM_TEST_TIMES" ~= "1" then
  excluded[#excluded + 1] = "time"
end

if #list ~= 1 or options.jobs then
  options.busted, options.excluded = passed, excluded
  options.jobs = options.jobs or 2 * (tonumber(io.popen("nproc"):read "*l") or 1)
  os.exit(dofile "spec/support/workers.lua"(list, options), true)
end

_G.arg = { [0] = "busted", "--keep-going", "--helper=spec/support/helper.lua", list[1] }
for _, option in ipairs(passed) do table.insert(arg, 1, option) end
if #excluded > 0 then table.insert(arg, 1, "--exclude-tags=" .. table.concat(excluded, ",")) end
local ok, err = pcall(function() require("busted.runner") { standalone = false } end)
if not ok and err then io.stderr:write(tostring(err), "\n") end
io.stdout:flush()
os.exit(ok and 0 or 1, true)
