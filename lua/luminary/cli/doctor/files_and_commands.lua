--- What the doctor sees of the machine. Probes look through here alone, so that specs can show them another machine
--- (outside.look_at). Nothing here waits without an end: commands have a time limit, and what may hang in the kernel is
--- read by a command.
local ffi = require "ffi"

for _, text in ipairs {
  "struct lm_doctor_pollfd { int fd; short events, revents; };",
  "struct lm_doctor_dirent { uint64_t ino; int64_t off; uint16_t length; uint8_t kind; char name[256]; };",
  "char *realpath(const char *path, char *resolved);", "void free(void *p);", "int access(const char *path, int mode);",
  "void *opendir(const char *path);", "struct lm_doctor_dirent *readdir(void *dir);", "int closedir(void *dir);",
  "int pipe2(int fds[2], int flags);", "int close(int fd);", "long read(int fd, void *data, size_t n);",
  "int poll(void *fds, unsigned long n, int timeout);", "int kill(int pid, int signal);",
  "int waitpid(int pid, int *status, int options);", "extern char **environ;",
  "int posix_spawn_file_actions_init(void *a);", "int posix_spawn_file_actions_destroy(void *a);",
  "int posix_spawn_file_actions_adddup2(void *a, int from, int to);",
  "int posix_spawn_file_actions_addopen(void *a, int fd, const char *path, int flags, unsigned mode);",
  "int posix_spawn(int *pid, const char *path, const void *a, const void *attributes, const char **argv, "
    .. "const char **env);",
  "typedef struct { long seconds, nanoseconds; } lm_doctor_time;", "int clock_gettime(int clock, lm_doctor_time *out);",
} do
  pcall(ffi.cdef, text) -- somebody may have declared it before
end
local C = ffi.C

local outside = {made_up = false}

local ROOT, BIN, MOST = nil, nil, math.huge -- of a made-up machine
local O_CLOEXEC, POLLIN, SIGKILL, WNOHANG, EINTR, EXECUTABLE = 0x80000, 1, 9, 1, 4, 1
local MONOTONIC = 1
local LIMIT = 5 -- seconds for a command that has no limit of its own
local FLOOD = 2 ^ 24 -- bytes after which a command is ended that does not stop printing
local PLAIN = {cat = true, ls = true, stat = true, grep = true} -- they look at nothing but the files they are given

--- Looks at a made-up machine from now on: `root` is the folder that is its /, `bin` that of its commands, beside which
--- it has only a few that read files; `limit`: the most seconds that any command is waited for.
function outside.look_at(root, bin, limit)
  ROOT, BIN, MOST, outside.made_up = root, bin, limit or math.huge, true
end

--- Seconds of a clock that only goes forward.
function outside.now()
  local t = ffi.new "lm_doctor_time"
  C.clock_gettime(MONOTONIC, t)
  return tonumber(t.seconds) + tonumber(t.nanoseconds) * 1e-9
end

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
function outside.environment()
  local found, i = {}, 0
  while C.environ[i] ~= nil do
    local name, value = ffi.string(C.environ[i]):match("^([^=]*)=(.*)$")
    if name then found[name] = value end
    i = i + 1
  end
  return found
end

-- ---- commands

local function find(name)
  local folders = {}
  if BIN then folders[1] = BIN end
  if not ROOT or PLAIN[name] then
    -- people who are not root lack the folders of lspci and nft
    for folder in ((os.getenv "PATH" or "") .. ":/usr/bin:/bin:/usr/sbin:/sbin"):gmatch("[^:]+") do
      folders[#folders + 1] = folder
    end
  end
  for _, folder in ipairs(folders) do
    local path = folder .. "/" .. name
    if C.access(path, EXECUTABLE) == 0 then return path end
  end
end

local function strings(list)
  local array = ffi.new("const char *[?]", #list + 1)
  for i, text in ipairs(list) do array[i - 1] = text end
  return array, list -- the texts live as long as the list
end

local function in_plain_english()
  local list = {"LC_ALL=C"}
  for name, value in pairs(outside.environment()) do
    if name ~= "LC_ALL" and name ~= "LANGUAGE" then list[#list + 1] = name .. "=" .. value end
  end
  return list
end

-- Its process and the pipe that carries its output, or nil.
local function start(path, words)
  local ends, pid, actions = ffi.new "int[2]", ffi.new "int[1]", ffi.new "uint64_t[32]" -- glibc's has 80 bytes
  if C.pipe2(ends, O_CLOEXEC) ~= 0 then return nil end
  C.posix_spawn_file_actions_init(actions)
  C.posix_spawn_file_actions_addopen(actions, 0, "/dev/null", 0, 0)
  C.posix_spawn_file_actions_adddup2(actions, ends[1], 1)
  C.posix_spawn_file_actions_adddup2(actions, ends[1], 2)
  local argv, words_kept = strings(words)
  local env, env_kept = strings(in_plain_english())
  local code = C.posix_spawn(pid, path, actions, nil, argv, env)
  C.posix_spawn_file_actions_destroy(actions)
  C.close(ends[1])
  if code ~= 0 or not (words_kept and env_kept) then
    C.close(ends[0])
    return nil
  end
  return pid[0], ends[0]
end

-- The exit code (128 + the signal that ended it), or nil if it has not ended by then.
local function reap(pid, deadline)
  local status = ffi.new "int[1]"
  repeat
    local got = C.waitpid(pid, status, WNOHANG)
    if got == pid then
      local signal = bit.band(status[0], 127)
      return signal > 0 and 128 + signal or bit.band(bit.rshift(status[0], 8), 255)
    end
    if got < 0 and ffi.errno() ~= EINTR then return 255 end
    C.poll(nil, 0, 5)
  until outside.now() > deadline
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
  local words, pieces = {name}, {}
  for _, word in ipairs(args or {}) do words[#words + 1] = word end
  local pid, fd = start(path, words)
  if not pid then return {out = "", missing = true, code = 127} end
  limit, idle = math.min(limit or LIMIT, MOST), math.min(idle or math.huge, MOST)
  local deadline, heard = outside.now() + limit, outside.now()
  local buffer, wanted, ended = ffi.new "char[65536]", ffi.new("struct lm_doctor_pollfd", {fd, POLLIN, 0}), false
  local total = 0
  while not ended and total < FLOOD do
    local left = math.min(deadline, heard + idle) - outside.now()
    if left <= 0 then break end
    if C.poll(wanted, 1, math.ceil(left * 1000)) > 0 then
      local n = tonumber(C.read(fd, buffer, 65536))
      if n > 0 then
        pieces[#pieces + 1] = ffi.string(buffer, n)
        total, heard = total + n, outside.now()
      end
      ended = n == 0 or (n < 0 and ffi.errno() ~= EINTR)
    end
  end
  C.close(fd)
  local code = ended and reap(pid, deadline)
  local result = {out = table.concat(pieces), code = code or 137}
  if not code and total < FLOOD then result.timed_out = math.min(limit, idle) end
  if not code then
    C.kill(pid, SIGKILL)
    reap(pid, outside.now() + 0.5)
  end
  return result
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
