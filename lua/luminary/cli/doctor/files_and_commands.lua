--- Reads the machine for the doctor. All probes use these functions, so that specs can replace the machine
--- (outside.look_at). None waits without a limit: commands have a time limit, and a command reads files that may hang
--- in the kernel.
local read_file = require "luminary.base.read_file"
local run_command = require "luminary.base.run_command"
local ffi = require "ffi"

for _, text in ipairs {
  "struct lm_doctor_pollfd { int fd; short events, revents; };",
  "struct lm_doctor_dirent { uint64_t ino; int64_t off; uint16_t length; uint8_t kind; char name[256]; };",
  "char *realpath(const char *path, char *resolved);", "void free(void *p);", "int access(const char *path, int mode);",
  "void *opendir(const char *path);", "struct lm_doctor_dirent *readdir(void *dir);", "int closedir(void *dir);",
  "int close(int fd);", "int poll(void *fds, unsigned long n, int timeout);",
} do
  pcall(ffi.cdef, text) -- a script may have declared it before
end
local C = ffi.C

local outside = {made_up = false}

local ROOT, BIN, MOST = nil, nil, math.huge -- set for a stand-in machine
local EXECUTABLE = 1
local LIMIT = 5 -- seconds, the default limit of a command
local PLAIN = {cat = true, ls = true, stat = true, grep = true} -- commands that only read files given to them

--- Replaces the machine from now on: `root` is the folder of its /, `bin` that of its commands, besides which it has
--- only a few that read files; `limit` is the most seconds to wait for any command.
function outside.look_at(root, bin, limit)
  ROOT, BIN, MOST, outside.made_up = root, bin, limit or math.huge, true
end

--- Returns seconds of a clock that never runs backward.
outside.now = run_command.now

-- ---- files

--- Returns the real path of a path on the machine.
function outside.at(path) return (ROOT or "") .. path end

--- Returns a file's text; nil if it cannot be read.
function outside.read(path) return read_file(outside.at(path)) end

--- Returns a file's text without surrounding white space; nil if nothing else remains.
function outside.word(path)
  local text = outside.read(path)
  return text and text:match("^%s*(.-)%s*$"):match("^(..*)$")
end

function outside.number(path) return tonumber(outside.word(path) or "") end

function outside.exists(path) return C.access(outside.at(path), 0) == 0 end

--- Returns the names in a folder, sorted; an empty list if it cannot be read.
function outside.list(path)
  local names, dir = {}, C.opendir(outside.at(path))
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
function outside.link(path)
  local resolved, root = realpath(outside.at(path)), ROOT and realpath(ROOT)
  if resolved and root and resolved:sub(1, #root) == root then return resolved:sub(#root + 1) end
  return resolved
end

-- ---- the environment

function outside.env(name) return os.getenv(name) end

--- Returns all variables, by name.
outside.environment = run_command.environment

-- ---- commands

local function find(name)
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
function outside.command(name, args, limit, idle)
  local path = find(name)
  return path and outside.run(path, name, args, limit, idle) or {out = "", missing = true, code = 127}
end

function outside.run(path, name, args, limit, idle)
  local words = {name}
  for _, word in ipairs(args or {}) do words[#words + 1] = word end
  return run_command.run(path, words, math.min(limit or LIMIT, MOST), math.min(idle or math.huge, MOST))
end

--- Runs a function of doctor/in_child_process.lua in a separate process; returns its output, as a command's result.
function outside.child(call, limit, idle)
  local chunk = ("package.path, package.cpath = %q, %q; require('luminary.cli.doctor.in_child_process').%s()")
    :format(package.path, package.cpath, call)
  local stand_in = BIN and BIN .. "/luajit"
  if stand_in and C.access(stand_in, EXECUTABLE) == 0 then
    return outside.run(stand_in, "luajit", {"-e", chunk}, limit, idle)
  elseif ROOT then
    return {out = "", missing = true, code = 127}
  end
  return outside.run(realpath "/proc/self/exe", "luajit", {"-e", chunk}, limit, idle)
end

--- Returns the text of a file whose read a hung driver may block; nil, or nil and the reason.
function outside.read_of_driver(path)
  if not outside.exists(path) then return nil end
  local result = outside.command("cat", {outside.at(path)}, 3)
  if result.timed_out then return nil, ("reading it takes longer than %g s"):format(result.timed_out) end
  return result.code == 0 and result.out or nil
end

--- Returns a file's mode (as a number), its owner and its group; nil if it does not exist.
function outside.stat(path)
  local result = outside.command("stat", {"-L", "-c", "%a %u %g", outside.at(path)})
  local mode, owner, group = result.out:match("^(%d+) (%d+) (%d+)")
  if result.code == 0 and mode then return tonumber(mode, 8), tonumber(owner), tonumber(group) end
end

--- Returns the addresses of a host's name; nil and the reason.
function outside.resolve(name)
  local result = outside.command("getent", {"ahosts", name})
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

return outside
