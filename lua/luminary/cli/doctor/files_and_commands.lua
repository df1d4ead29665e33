--- Reads the machine for the doctor. All probes use these functions, so that specs can replace the machine
--- (machine.replace). None waits without a limit: commands have a time limit, and a command reads files that may hang
--- in the kernel.
local read_file = require "luminary.base.read_file"
local run_command = require "luminary.base.run_command"
local ffi = require "ffi"

for _, text in ipairs {
  "struct lm_doctor_dirent { uint64_t ino; int64_t off; uint16_t length; uint8_t kind; char name[256]; };",
  "char *realpath(const char *path, char *resolved);", "void free(void *p);", "int access(const char *path, int mode);",
  "void *opendir(const char *path);", "struct lm_doctor_dirent *readdir(void *dir);", "int closedir(void *dir);",
} do
  pcall(ffi.cdef, text) -- a script may have declared it before
end
local C = ffi.C

local machine = {made_up = false}

local ROOT, BIN, MOST = nil, nil, math.huge -- set for a stand-in machine
local EXECUTABLE = 1
local LIMIT = 5 -- seconds, the default limit of a command
local PLAIN = {cat = true, ls = true, stat = true, grep = true} -- commands that only read files given to them

--- Replaces the machine from now on: `root` is the folder of its /, `bin` that of its commands, besides which it has
--- only a few that read files; `limit` is the most seconds to wait for any command.
function machine.replace(root, bin, limit)
  ROOT, BIN, MOST, machine.made_up = root, bin, limit or math.huge, true
end

--- Returns seconds of a clock that never runs backward.
machine.now = run_command.now

-- ---- files

--- Returns the real path of a path on the machine.
function machine.path(path) return (ROOT or "") .. path end

--- Returns a file's text; nil if it cannot be read.
function machine.read(path) return read_file(machine.path(path)) end

--- Returns a file's text without surrounding white space; nil if nothing else remains.
function machine.read_word(path)
  local text = machine.read(path)
  return text and text:match("^%s*(.-)%s*$"):match("^(..*)$")
end

function machine.read_number(path) return tonumber(machine.read_word(path) or "") end

function machine.exists(path) return C.access(machine.path(path), 0) == 0 end

--- Returns the names in a folder, sorted; an empty list if it cannot be read.
function machine.list(path)
  local names, dir = {}, C.opendir(machine.path(path))
  if dir == nil then return names end
  local entry = C.readdir(dir)
  while entry ~= nil do
    local name = ffi.string(entry.name)
    if name ~= "." and name ~= ".." then names[#names + 1] = name end
    entry = C.readdir(dir)
  end
  C.closedir(dir)
  table.sort(names)
  return names
end

local function realpath(path)
  local resolved = C.realpath(path, nil)
  if resolved == nil then return nil end
  local text = ffi.string(resolved)
  C.free(resolved)
  return text
end

--- Returns the target of links; nil if there is none.
function machine.resolve_link(path)
  local resolved, root = realpath(machine.path(path)), ROOT and realpath(ROOT)
  if resolved and root and resolved:sub(1, #root) == root then return resolved:sub(#root + 1) end
  return resolved
end

-- ---- the environment

function machine.env(name) return os.getenv(name) end

--- Returns all variables, by name.
machine.environment = run_command.environment

-- ---- commands

local function find_command(name)
  local folders = BIN and {BIN} or {}
  if not ROOT or PLAIN[name] then
    -- users other than root lack the folders of lspci and nft
    folders[#folders + 1] = (os.getenv "PATH" or "") .. ":/usr/bin:/bin:/usr/sbin:/sbin"
  end
  return run_command.find(name, table.concat(folders, ":"))
end

--- Runs a command. It kills the command after `limit` seconds (5) in all, `idle` seconds without output, or 16 MiB of
--- output. Returns {out = stdout and stderr, code = exit code, timed_out = seconds after which it was killed, missing =
--- true if there is no such command}. A process that even SIGKILL does not end, since it waits for a driver, is left
--- behind.
function machine.command(name, args, limit, idle)
  local path = find_command(name)
  return path and machine.run(path, name, args, limit, idle) or {out = "", missing = true, code = 127}
end

function machine.run(path, name, args, limit, idle)
  local words = {name}
  for _, word in ipairs(args or {}) do words[#words + 1] = word end
  return run_command.run(path, words, math.min(limit or LIMIT, MOST), math.min(idle or math.huge, MOST))
end

--- Runs a function of doctor/in_child_process.lua in a separate process; returns its output, as a command's result.
function machine.child(call, limit, idle)
  local chunk = ("package.path, package.cpath = %q, %q; require('luminary.cli.doctor.in_child_process').%s()")
    :format(package.path, package.cpath, call)
  local stand_in = BIN and BIN .. "/luajit"
  if stand_in and C.access(stand_in, EXECUTABLE) == 0 then
    return machine.run(stand_in, "luajit", {"-e", chunk}, limit, idle)
  elseif ROOT then
    return {out = "", missing = true, code = 127}
  end
  return machine.run(realpath "/proc/self/exe", "luajit", {"-e", chunk}, limit, idle)
end

--- Returns the text of a file whose read a hung driver may block; nil, or nil and the reason.
function machine.read_of_driver(path)
  if not machine.exists(path) then return nil end
  local result = machine.command("cat", {machine.path(path)}, 3)
  if result.timed_out then return nil, ("reading it takes longer than %g s"):format(result.timed_out) end
  return result.code == 0 and result.out or nil
end

--- Returns a file's mode (as a number), its owner and its group; nil if it does not exist.
function machine.stat(path)
  local result = machine.command("stat", {"-L", "-c", "%a %u %g", machine.path(path)})
  local mode, owner, group = result.out:match("^(%d+) (%d+) (%d+)")
  if result.code == 0 and mode then return tonumber(mode, 8), tonumber(owner), tonumber(group) end
end

--- Returns the addresses of a host's name; nil and the reason.
function machine.resolve(name)
  local result = machine.command("getent", {"ahosts", name})
  if result.missing then return nil, "getent is not installed" end
  if result.timed_out then return nil, ("no answer within %g s"):format(result.timed_out) end
  local list, seen = {}, {}
  for address in result.out:gmatch("([%x:.]+)%S*%s+STREAM") do
    if not seen[address] then list[#list + 1] = address end
    seen[address] = true
  end
  if #list == 0 then return nil, "it has no address" end
  return list
end

return machine
