--- What the doctor sees of the machine. Probes look through here alone, so that specs can show them another machine
--- (outside.look_at). Nothing here waits without an end: commands have a time limit, and what may hang in the kernel is
--- read by a command.
local run_command = require "luminary.base.run_command"
local ffi = require "ffi"

for _, text in ipairs {
  "struct lm_doctor_pollfd { int fd; short events, revents; };",
  "struct lm_doctor_dirent { uint64_t ino; int64_t off; uint16_t length; uint8_t kind; char name[256]; };",
  "char *realpath(const char *path, char *resolved);", "void free(void *p);", "int access(const char *path, int mode);",
  "void *opendir(const char *path);", "struct lm_doctor_dirent *readdir(void *dir);", "int closedir(void *dir);",
  "int close(int fd);", "int poll(void *fds, unsigned long n, int timeout);",
} do
  pcall(ffi.cdef, text) -- somebody may have declared it before
end
local C = ffi.C

local outside = {made_up = false}

local ROOT, BIN, MOST = nil, nil, math.huge -- of a made-up machine
local EXECUTABLE = 1
local LIMIT = 5 -- seconds for a command that has no limit of its own
local PLAIN = {cat = true, ls = true, stat = true, grep = true} -- they look at nothing but the files they are given

--- Looks at a made-up machine from now on: `root` is the folder that is its /, `bin` that of its commands, beside which
--- it has only a few that read files; `limit`: the most seconds that any command is waited for.
function outside.look_at(root, bin, limit)
  ROOT, BIN, MOST, outside.made_up = root, bin, limit or math.huge, true
end

--- Seconds of a clock that only goes forward.
outside.now = run_command.now

-- ---- files

--- Where a path really lies.
function outside.at(path) return (ROOT or "") .. path end

--- A file's text; nil if it cannot be read.
function outside.read(path)
  local file = io.open(outside.at(path), "rb")
  if not file then return nil end
  local text = file:read "*a" -- files of the kernel refuse large reads of a stated size
  file:close()
  return text
end

--- The same without the white space around it; nil if nothing else is there.
function outside.word(path)
  local text = outside.read(path)
  return text and text:match("^%s*(.-)%s*$"):match("^(..*)$")
end

function outside.number(path) return tonumber(outside.word(path) or "") end

function outside.exists(path) return C.access(outside.at(path), 0) == 0 end

--- The names in a folder, sorted; an empty list if it cannot be read.
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

--- Where links lead; nil if nowhere.
function outside.link(path)
  local resolved, root = realpath(outside.at(path)), ROOT and realpath(ROOT)
  if resolved and root and resolved:sub(1, #root) == root then return resolved:sub(#root + 1) end
  return resolved
end

-- ---- the environment

function outside.env(name) return os.getenv(name) end

--- All variables, by name.
outside.environment = run_command.environment

-- ---- commands

local function find(name)
  local folders = BIN and {BIN} or {}
  if not ROOT or PLAIN[name] then
    -- people who are not root lack the folders of lspci and nft
    folders[#folders + 1] = (os.getenv "PATH" or "") .. ":/usr/bin:/bin:/usr/sbin:/sbin"
  end
  return run_command.find(name, table.concat(folders, ":"))
end

--- Runs a command and waits for at most `limit` seconds (5) in all, and for `idle` without any output, and reads no
--- more than 16 MiB. Returns
--- {out = what it printed, errors too, code = exit code, timed_out = the seconds after which it was ended, missing =
--- true if there is no such command}. One that even SIGKILL does not end, waiting for a driver, is left behind.
function outside.command(name, args, limit, idle)
  local path = find(name)
  return path and outside.run(path, name, args, limit, idle) or {out = "", missing = true, code = 127}
end

function outside.run(path, name, args, limit, idle)
  local words = {name}
  for _, word in ipairs(args or {}) do words[#words + 1] = word end
  return run_command.run(path, words, math.min(limit or LIMIT, MOST), math.min(idle or math.huge, MOST))
end

--- A function of doctor/in_child_process.lua in a process of its own: what it prints, as a command's result.
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

--- A file that a hung driver may keep from being read.
function outside.read_of_driver(path)
  if not outside.exists(path) then return nil end
  local got = outside.command("cat", {outside.at(path)}, 3)
  if got.timed_out then return nil, ("reading it takes longer than %g s"):format(got.timed_out) end
  return got.code == 0 and got.out or nil
end

--- A file's mode (as a number), its owner and its group; nil if there is none.
function outside.stat(path)
  local got = outside.command("stat", {"-L", "-c", "%a %u %g", outside.at(path)})
  local mode, owner, group = got.out:match("^(%d+) (%d+) (%d+)")
  if got.code == 0 and mode then return tonumber(mode, 8), tonumber(owner), tonumber(group) end
end

--- The addresses that a host's name stands for; nil and why not.
function outside.resolve(name)
  local got = outside.command("getent", {"ahosts", name})
  if got.missing then return nil, "getent is not installed" end
  if got.timed_out then return nil, ("no answer within %g s"):format(got.timed_out) end
  local list, seen = {}, {}
  for address in got.out:gmatch("([%x:.]+)%S*%s+STREAM") do
    if not seen[address] then list[#list + 1] = address end
    seen[address] = true
  end
  if #list == 0 then return nil, "it has no address" end
  return list
end

return outside
