--- Sets the globals of Torch7's command th, for scripts that run unchanged: torch, nn, optim, paths, xlua, sys,
--- include; print shows tables. `require "nn"` and the like return them; so do "image", "threads" and "tds", which load
--- then. require of a path, "./a", "../a", "models/a.lua", reads the file relative to the calling one, as th does.
--- cutorch, cunn and cudnn are there if the machine has a GPU.
local debug = require "debug"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local torch = require "luminary.torch7"
local fail = options.fail

local began = core.time()
local sys = {
  clock = core.time, dirname = torch.paths.dirname, basename = torch.paths.basename, concat = torch.paths.concat,
  sleep = function(s) os.execute(("sleep %.3f"):format(s)) end, isNaN = function(v) return v ~= v end, OS = "linux",
  uname = function() return "linux" end, tic = function() began = core.time() end,
  COLORS = setmetatable({}, {__index = function() return "" end}), -- output is not colored
  --- sys.execute(command): Runs a command of the shell; returns its output.
  execute = function(command)
    local pipe = io.popen(command .. " 2>&1")
    local text = pipe:read "*a"
    pipe:close()
    return (text:gsub("^%s+", ""):gsub("%s+$", ""))
  end,
}
sys.fexecute = sys.execute
function sys.toc(verbose)
  local seconds = core.time() - began
  if verbose then print(seconds) end
  return seconds
end
function sys.ls(folder) return sys.execute("ls " .. (folder or "")) end
function sys.fpath() return torch.paths.dirname(debug.getinfo(2, "S").source:match "^@(.*)$" or "./-") end

-- Runs a Lua file; the message names it if it fails to load.
local function run(path) return assert(loadfile(path))() end
--- torch.include(package, file): Runs a file in the folder of a package that package.path finds.
function torch.include(package_name, file)
  local found = package.searchpath(package_name, package.path)
  if not found then fail("torch.include: package '%s' not found", tostring(package_name)) end
  return run(found:gsub("[^/]*$", "") .. file)
end
--- include(file): Runs a file in the folder of the calling one.
function include(file) -- luacheck: ignore
  local folder = debug.getinfo(2, "S").source:match "^@(.*/)[^/]*$" or ""
  return run(folder .. file)
end

-- ---- the GPU

-- Packages that need a GPU, by name; without one, package.path may have the user's own.
local on_gpu = {}
table.insert(package.loaders, 2, function(name)
  if not on_gpu[name] then return nil end
  if core.device_count "cuda" == 0 then return "\n\tno CUDA device is available" end
  return function()
    local made = on_gpu[name]()
    rawset(_G, name, made)
    return made
  end
end)
function on_gpu.cutorch()
  local cuda = require("luminary").cuda
  for _, constructors in ipairs {
    require("luminary.torch7.tensor").constructors, require("luminary.torch7.storage").constructors,
  } do
    for name, constructor in pairs(constructors) do torch[name] = constructor end
  end
  return {
    getDeviceCount = cuda.device_count, getDevice = function() return cuda.current_device() + 1 end,
    setDevice = function(i) cuda.set_device(i - 1) end, manualSeed = cuda.manual_seed,
    manualSeedAll = cuda.manual_seed_all, synchronize = cuda.synchronize,
    synchronizeAll = function() for i = 0, cuda.device_count() - 1 do cuda.synchronize(i) end end,
    withDevice = function(i, f, ...) return cuda.device(i - 1, f, ...) end,
    getMemoryUsage = function(i) return cuda.mem_get_info(i and i - 1) end,
    getRNGState = function() return torch.wrap(cuda.get_rng_state()) end,
    setRNGState = function(state) cuda.set_rng_state(state:raw()) end,
  }
end
function on_gpu.cunn()
  require "cutorch"
  return torch.nn
end
function on_gpu.cudnn()
  require "cutorch"
  return setmetatable({convert = function(net) return net end, version = 5000}, {__index = torch.nn})
end

-- ---- names

for _, name in ipairs {"image", "threads", "tds"} do -- loaded when a script requires them
  package.preload[name] = function()
    local made = require("luminary.torch7." .. name)
    if name == "image" then rawset(_G, name, made) end
    return made
  end
end
local paths = setmetatable({uname = function() return jit.os end}, {__index = function(_, name) -- nil if absent
  return rawget(torch.paths, name)
end})
local packages = {torch = torch, nn = torch.nn, optim = torch.optim, paths = paths, xlua = torch.xlua, sys = sys}
for name, library in pairs(packages) do
  rawset(_G, name, library)
  package.loaded[name] = library
end
-- "optim.sgd", "nn.Module": in Torch7 files of the packages
table.insert(package.loaders, function(name)
  local library, field = name:match "^(%w+)%.([%w_]+)$"
  local value = packages[library] and packages[library][field]
  return value ~= nil and function() return value end or nil
end)
function package.preload.trepl() return function() end end -- the prompt: there is another
package.preload["trepl.colorize"] = function() return setmetatable({}, {__index = function() return tostring end}) end
local plain_require = require
rawset(_G, "require", function(name)
  local is_path = type(name) == "string" and name:find "^%."
  if type(name) == "string" and (is_path or not (package.loaded[name] or package.preload[name]
    or package.searchpath(name, package.path) or package.searchpath(name, package.cpath))) then
    local path = torch.paths.concat(debug.getinfo(2, "S").source:match "^@(.*/)[^/]*$" or ".", name)
    for _, ending in ipairs {".lua", "", ".th", ".net", "/init.lua"} do
      local file = path .. ending
      local read = (file:find "%.net$" or file:find "%.th$") and torch.load or run
      if torch.paths.filep(file) then return read(file) end
    end
    if is_path then fail("require: no file '%s', also with .lua, .th, .net or /init.lua", path) end
  end
  return plain_require(name)
end)
--- sys.split and string.split(text, pattern): Return the list of the parts between matches, without a first empty one.
function sys.split(text, pattern)
  local parts, at = {}, 1
  while true do
    local first, last = text:find(pattern, at)
    if not first then break end
    if first > 1 then parts[#parts + 1] = text:sub(at, first - 1) end
    at = last + 1
  end
  if at <= #text then parts[#parts + 1] = text:sub(at) end
  return parts
end
rawset(string, "split", sys.split)

-- ---- what th adds: Penlight's modules as globals, if it is installed, and print of tables

if pcall(require, "pl") then require("pl.text").format_operator() end

local print_plain, DEPTH = print, 5
local function is_plain(v) return type(v) == "table" and not (getmetatable(v) or {}).__tostring end
local function table_text(t, indent)
  if next(t) == nil or indent >= 4 * DEPTH then return next(t) == nil and "{}" or "{...}" end
  local lines, margin = {"{"}, (" "):rep(indent)
  for key, v in lists.sorted_pairs(t) do
    local text = is_plain(v) and table_text(v, indent + 4) or type(v) == "string" and '"' .. v .. '"' or tostring(v)
    lines[#lines + 1] = ("%s  %s : %s"):format(margin, tostring(key), text)
  end
  return table.concat(lines, "\n") .. "\n" .. margin .. "}"
end
--- print(…): Prints the fields of tables without __tostring, too, to a depth of 5.
rawset(_G, "print", function(...)
  local args, n = {...}, select("#", ...)
  for i = 1, n do if is_plain(args[i]) then args[i] = table_text(args[i], 0) end end
  print_plain(unpack(args, 1, n))
end)

return torch
