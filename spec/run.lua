-- Runs the specs under luajit with busted.
--   luajit spec/run.lua [options] [files, folders, or names: ops, ops_spec, cuda/memory]
-- One file runs in this process, which closes the Lua state at the end so that leaks show. Of several, each runs in a
-- process of its own, two for each CPU at once, and up to six while CPUs are idle (spec/support/workers.lua). Specs
-- find this tree's build as after `. build/env`, unless LUA_CPATH names another.
--   --jobs=N       that many at once, in processes of their own even if there is one file
--   --again=N      if specs of at most N files failed and none crashed, those files run again, alone, which counts;
--                  each has to pass three times
--   --slowest[=N]  at the end the N (20) slowest specs and files
--   --sanitized    leaves out specs tagged #unsanitized (too slow or large under sanitizers) and #lua (no C of ours, or
--                  none that other specs do not call), and the files of LUA_OVER_C unless they are named; sets
--                  LM_SPEC_SANITIZED=1, with which random cases are fewer
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

local function refuse(...)
  io.stderr:write("run.lua: ", string.format(...), "\n")
  os.exit(1)
end
if not package.searchpath("busted.runner", package.path) then
  refuse("there is no busted for LuaJIT: scripts/setup --dev installs it, or luarocks --lua-version 5.1 install busted")
end
local tree = ffi.string(ffi.C.getcwd(ffi.new "char[4096]", 4096))
if not package.searchpath("luminary.core", os.getenv "LUA_CPATH" or "") then
  local modules = ("%s/lua/?.lua;%s/lua/?/init.lua;"):rep(2):format(tree, tree, tree .. "/torch7", tree .. "/torch7")
  local libraries = tree .. "/build/lib/?.so;"
  if package.searchpath("luminary.core", libraries) then
    package.path, package.cpath = modules .. package.path, libraries .. package.cpath
    ffi.C.setenv("LUA_PATH", modules .. (os.getenv "LUA_PATH" or ";"), 1)
    ffi.C.setenv("LUA_CPATH", libraries .. (os.getenv "LUA_CPATH" or ";"), 1)
    ffi.C.setenv("PATH", tree .. "/bin:" .. os.getenv "PATH", 1)
  elseif not package.searchpath("luminary.core", package.cpath) then
    refuse("there is no build: scripts/setup --dev --no-install makes it")
  end
end

local options, passed, files, excluded, except = {}, {}, {}, {}, {}
for _, a in ipairs(arg) do
  local name, value = a:match("^%-%-([%w-]+)=?(.*)$")
  if name == "jobs" or name == "slowest" or name == "again" then
    options[name] = tonumber(value) or 20
  elseif name == "sanitized" then
    options.sanitized = true
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
    refuse("there is no spec file, folder or name '%s'", name)
  end
  return found
end
local left_out = {}
for _, name in ipairs(except) do
  for _, path in ipairs(files_of(name)) do left_out[path] = true end
end
-- Patterns of files whose C other files call, too: Lua over ops and collectives (layers divided over ranks, networks,
-- distributions, metrics, Torch7's names), scripts, commands, help, logs. LM_TEST_LONG=1 sanitizes them as well.
local LUA_OVER_C = {
  "^spec/nn/parallel/", "^spec/models/[^w]", "^spec/distributions/", "^spec/metrics/", "^torch7/spec/",
  "^spec/scripts/[%w_]+%.lua", "^spec/scripts/dev/[bn]", "^spec/examples/", "^spec/docs", "^spec/help/", "^spec/watch/",
  "^spec/cli/[^l]", "^spec/run_spec", "^spec/codegen/",
  "^spec/cuda/%w*_?parallel_", "^spec/cuda/fully_shard", "^spec/cuda/pipeline", "^spec/cuda/divided_layers",
  "^spec/cuda/gpu_check", "^spec/cuda/bundle", "^spec/cuda/step_counts",
}
local function is_lua_over_c(path)
  for _, pattern in ipairs(LUA_OVER_C) do
    if path:find(pattern) then return true end
  end
  return false
end

for _, name in ipairs(#files > 0 and files or {"all"}) do
  local paths = #files > 0 and files_of(name) or all
  for _, path in ipairs(paths) do
    local is_named = paths[2] == nil -- itself, and not a folder of it
    local sanitizes = is_named or not options.sanitized or os.getenv "LM_TEST_LONG" or not is_lua_over_c(path)
    if not left_out[path] and sanitizes then list[#list + 1] = path end
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
  if not options.jobs then
    local cpus = tonumber(io.popen("nproc"):read "*l") or 1
    options.jobs, options.most = 2 * cpus, 6 * cpus
  end
  os.exit(dofile "spec/support/workers.lua"(list, options), true)
end

_G.arg = { [0] = "busted", "--keep-going", "--helper=spec/support/helper.lua", list[1] }
for _, option in ipairs(passed) do table.insert(arg, 1, option) end
if #excluded > 0 then table.insert(arg, 1, "--exclude-tags=" .. table.concat(excluded, ",")) end
local ok, err = pcall(function() require("busted.runner") { standalone = false } end)
if not ok and err then io.stderr:write(tostring(err), "\n") end
io.stdout:flush()
os.exit(ok and 0 or 1, true)
