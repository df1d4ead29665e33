--- run_command: Runs programs without a shell, and waits for each for a limited time.
local ffi = require "ffi"

-- The prefix lm_command_ avoids clashes: scripts may declare these functions otherwise.
ffi.cdef [[
  struct lm_command_pollfd { int fd; short events, revents; };
  struct lm_command_time { long seconds, nanoseconds; };
  extern char **lm_command_environ __asm__("environ");
  int lm_command_access(const char *path, int mode) __asm__("access");
  int lm_command_pipe2(int fds[2], int flags) __asm__("pipe2");
  int lm_command_close(int fd) __asm__("close");
  long lm_command_read(int fd, void *data, size_t n) __asm__("read");
  int lm_command_poll(struct lm_command_pollfd *fds, unsigned long n, int timeout) __asm__("poll");
  int lm_command_kill(int pid, int signal) __asm__("kill");
  int lm_command_waitpid(int pid, int *status, int options) __asm__("waitpid");
  int lm_command_clock(int clock, struct lm_command_time *out) __asm__("clock_gettime");
  int lm_command_actions_init(void *a) __asm__("posix_spawn_file_actions_init");
  int lm_command_actions_destroy(void *a) __asm__("posix_spawn_file_actions_destroy");
  int lm_command_adddup2(void *a, int from, int to) __asm__("posix_spawn_file_actions_adddup2");
  int lm_command_addopen(void *a, int fd, const char *path, int flags, unsigned mode)
    __asm__("posix_spawn_file_actions_addopen");
  int lm_command_spawn(int *pid, const char *path, const void *a, const void *attributes, const char **argv,
    const char **env) __asm__("posix_spawn");]]
local C = ffi.C

local run_command = {}

local O_CLOEXEC, POLLIN, SIGKILL, WNOHANG, EINTR, EXECUTABLE = 0x80000, 1, 9, 1, 4, 1
local MONOTONIC = 1
local FLOOD = 2 ^ 24 -- bytes of output after which a command is killed

--- Returns seconds of CLOCK_MONOTONIC, which never runs backward.
function run_command.now()
  local t = ffi.new "struct lm_command_time"
  C.lm_command_clock(MONOTONIC, t)
  return tonumber(t.seconds) + tonumber(t.nanoseconds) * 1e-9
end
local now = run_command.now

--- Returns the environment's variables, by name.
function run_command.environment()
  local found, i = {}, 0
  while C.lm_command_environ[i] ~= nil do
    local name, value = ffi.string(C.lm_command_environ[i]):match("^([^=]*)=(.*)$")
    if name then found[name] = value end
    i = i + 1
  end
  return found
end

--- Returns the path of a program in the folders of `search`, separated by colons; nil if none has it.
function run_command.find(name, search)
  for folder in search:gmatch "[^:]+" do
    local path = folder .. "/" .. name
    if C.lm_command_access(path, EXECUTABLE) == 0 then return path end
  end
end

--- Returns a list of strings as an array that ends with a null pointer, and the list, which must live as long.
function run_command.strings(list)
  local array = ffi.new("const char *[?]", #list + 1)
  for i, text in ipairs(list) do array[i - 1] = text end
  return array, list
end
local strings = run_command.strings

-- Returns a program's environment: this process's, in plain English, without the variable `without`.
local function environment_of_program(without)
  local list = {"LC_ALL=C"}
  for name, value in pairs(run_command.environment()) do
    if name ~= "LC_ALL" and name ~= "LANGUAGE" and name ~= without then list[#list + 1] = name .. "=" .. value end
  end
  return list
end

-- Starts a program. Returns its process id and the pipe that carries its output, or nil.
local function start(path, words, without)
  local ends, pid, actions = ffi.new "int[2]", ffi.new "int[1]", ffi.new "uint64_t[32]" -- glibc's has 80 bytes
  if C.lm_command_pipe2(ends, O_CLOEXEC) ~= 0 then return nil end
  C.lm_command_actions_init(actions)
  C.lm_command_addopen(actions, 0, "/dev/null", 0, 0)
  C.lm_command_adddup2(actions, ends[1], 1)
  C.lm_command_adddup2(actions, ends[1], 2)
  local argv, words_kept = strings(words)
  local env, env_kept = strings(environment_of_program(without))
  local code = C.lm_command_spawn(pid, path, actions, nil, argv, env)
  C.lm_command_actions_destroy(actions)
  C.lm_command_close(ends[1])
  if code ~= 0 or not (words_kept and env_kept) then
    C.lm_command_close(ends[0])
    return nil
  end
  return pid[0], ends[0]
end

-- Waits until the process ends or the deadline passes. Returns its exit code (128 + signal), or nil if it still runs.
local function reap(pid, deadline)
  local status = ffi.new "int[1]"
  repeat
    local ended = C.lm_command_waitpid(pid, status, WNOHANG)
    if ended == pid then
      local signal = bit.band(status[0], 127)
      return signal > 0 and 128 + signal or bit.band(bit.rshift(status[0], 8), 255)
    end
    if ended < 0 and ffi.errno() ~= EINTR then return 255 end
    C.lm_command_poll(nil, 0, 5)
  until now() > deadline
end

--- Runs the program at `path` with argv `words`. It kills the program after `limit` seconds in all, `idle` seconds
--- without output, or 16 MiB of output. Its environment lacks the variable `without`. Returns {out = stdout and stderr,
--- code = exit code, timed_out = seconds after which it was killed, missing = true if it cannot run}. A process that
--- even SIGKILL does not end, since it waits for a driver, is left behind.
function run_command.run(path, words, limit, idle, without)
  idle = idle or math.huge
  local pieces = {}
  local pid, fd = start(path, words, without)
  if not pid then return {out = "", missing = true, code = 127} end
  local deadline, heard = now() + limit, now()
  local buffer, wanted, ended = ffi.new "char[65536]", ffi.new("struct lm_command_pollfd[1]", {{fd, POLLIN, 0}}), false
  local total = 0
  while not ended and total < FLOOD do
    local left = math.min(deadline, heard + idle) - now()
    if left <= 0 then break end
    if C.lm_command_poll(wanted, 1, math.ceil(left * 1000)) > 0 then
      local n = tonumber(C.lm_command_read(fd, buffer, 65536))
      if n > 0 then
        pieces[#pieces + 1] = ffi.string(buffer, n)
        total, heard = total + n, now()
      end
      ended = n == 0 or (n < 0 and ffi.errno() ~= EINTR)
    end
  end
  C.lm_command_close(fd)
  local code = ended and reap(pid, deadline)
  local result = {out = table.concat(pieces), code = code or 137}
  if not code and total < FLOOD then result.timed_out = math.min(limit, idle) end
  if not code then
    C.lm_command_kill(pid, SIGKILL)
    reap(pid, now() + 0.5)
  end
  return result
end

return run_command
