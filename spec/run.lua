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
--                  none that other specs do not call), and files that are not of ODD_FOR_C unless they are named; sets
--                  LM_SPEC_SANITIZED=1, with which random cases are fewer
--   --unsanitized  of files of ODD_FOR_C whose C is the same however it is optimized, only the specs that --sanitized
--                  leaves out
--   --except=NAMES files to leave out, named as above, with commas between
--   --times        only the files with bounds on time (spec/support/time.lua), one after the other, and judges them;
--                  without it no bound on time is judged, and specs that are nothing else, tagged #time, are left out
-- Specs tagged #long run with LM_TEST_LONG=1 alone. Other options are busted's.
local ffi = require "ffi"
ffi.cdef [[
  int chdir(const char *);
  char *getcwd(char *, size_t);
  int setenv(const char *, const char *, int);
  int unsetenv(const char *);
]]

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
  elseif name == "unsanitized" then
    options.unsanitized = true
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

local function read(path)
  local file = assert(io.open(path))
  local text = file:read "*a"
  file:close()
  return text
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
-- Folders and files that give our C odd sizes, bytes and calls, or free what it holds. The others repeat values, or are
-- Lua over ops that these call: with LM_TEST_LONG=1 sanitizers see them, too, all at their usual length.
local ODD_FOR_C = {}
for name in ([[
  autograd/autograd autograd/recompute backend/ base/ bind/abuse bind/arguments bind/bounds bind/runtime
  checkpoint/hostile compile_passes compile_segments data/cifar data/csv data/jsonl data/loader_workers data/web
  device/memory distributed/dist distributed/group/collectives distributed/group/plugin_group distributed/group/world
  io/ mp/ nn/cross_entropy nn/ctc nn/sequences nn/windows onnx/bounds onnx/node_rules onnx/onnx onnx/parts op/attention
  op/blocks op/conv op/copies op/fourier op/gemm op/index op/linalg op/ops op/random op/random_programs op/random_steps
  op/rows op/selection op/skinny_gemm op/views op/winograd prepare scripts/dev/fuzz serve/openai tensor/sharing
  tensor/tensor text/constraint text/gguf_tokenizer text/tokenizer vision/transforms vision/vision]]):gmatch "%S+" do
  ODD_FOR_C[name] = true
end
local sees_all = os.getenv "LM_TEST_LONG" ~= nil
if options.sanitized then ffi.C.unsetenv "LM_TEST_LONG" end
local function is_odd_for_c(path)
  local name = path:match "^spec/(.*)_spec%.lua$" or ""
  return ODD_FOR_C[name] or ODD_FOR_C[name:match "^.*/"]
end

-- Folders whose files compare what vectorized loops compute: these run with full optimization, too.
local COMPUTES = {autograd = true, nn = true, op = true, tensor = true, vision = true}
-- Returns the tags of a file's specs that --unsanitized runs; nil if it runs all.
local function tags_of(path)
  local folder = path:match "^spec/(%w+)/"
  return options.unsanitized and folder and not COMPUTES[folder] and is_odd_for_c(path) and "unsanitized,lua" or nil
end

for _, name in ipairs(#files > 0 and files or {"all"}) do
  local paths = #files > 0 and files_of(name) or all
  for _, path in ipairs(paths) do
    local is_named = paths[2] == nil -- itself, and not a folder of it
    local sanitizes = is_named or not options.sanitized or sees_all or is_odd_for_c(path)
    local has_specs = not tags_of(path) or read(path):find "#unsanitized" or read(path):find "#lua"
    if not left_out[path] and sanitizes and has_specs then list[#list + 1] = path end
  end
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
if not os.getenv "LM_TEST_LONG" then excluded[#excluded + 1] = "long" end

if #list ~= 1 or options.jobs then
  options.busted, options.excluded, options.tags_of = passed, excluded, tags_of
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
