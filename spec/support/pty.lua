--- A program on a terminal of its own, driven as a person would: typing after what was waited for has come.
local ffi = require "ffi"

ffi.cdef [[
  typedef struct { int fd; short events, revents; } pty_poll;
  int posix_openpt(int flags);
  int grantpt(int fd);
  int unlockpt(int fd);
  char *ptsname(int fd);
  int poll(pty_poll *list, unsigned long n, int milliseconds) __asm__("poll");
  long pty_read(int fd, void *to, size_t bytes) __asm__("read");
  long pty_write(int fd, const void *from, size_t bytes) __asm__("write");
  int pty_close(int fd) __asm__("close");
  int pty_attributes(int fd, unsigned *attributes) __asm__("tcgetattr");
]]

local O_RDWR, O_NOCTTY, O_CLOEXEC, POLLIN = 2, 256, 524288, 1
local Terminal = {}
Terminal.__index = Terminal
local pty = {}

--- Returns why there is no terminal; nil if there is.
function pty.lacking()
  if os.execute "command -v setsid timeout >/dev/null" ~= 0 then return "no setsid or no timeout" end
  local fd = ffi.C.posix_openpt(O_RDWR + O_NOCTTY)
  if fd < 0 then return "no pseudo-terminal to be had" end
  ffi.C.pty_close(fd)
end

--- Runs a command there, which may begin with variables, NAME=value; `seconds` (120) at most.
function pty.open(command, seconds)
  local fd = ffi.C.posix_openpt(O_RDWR + O_NOCTTY + O_CLOEXEC)
  assert(fd >= 0 and ffi.C.grantpt(fd) == 0 and ffi.C.unlockpt(fd) == 0, "no pseudo-terminal")
  local name, status = ffi.string(ffi.C.ptsname(fd)), os.tmpname()
  -- setsid -c makes the terminal the program's own, so that Ctrl-C is a signal to it and to nobody else. The other end
  -- is open before this continues: until somebody has it open, reading here is an error.
  assert(os.execute(("exec 3<>%s; (timeout -k 1 %d setsid -c -w env %s <&3 >&3 2>&3; echo $? >%s) &"):
    format(name, seconds or 120, command, status)) == 0)
  return setmetatable({fd = fd, text = "", all = "", status = status}, Terminal)
end

-- Reads more output; returns false when there is none for `milliseconds`, or will be none.
local function more(self, milliseconds)
  local buffer = ffi.new("char[4096]")
  local list = ffi.new("pty_poll[1]", {{self.fd, POLLIN, 0}})
  if ffi.C.poll(list, 1, milliseconds) <= 0 then return false end
  local n = tonumber(ffi.C.pty_read(self.fd, buffer, 4096))
  if n <= 0 then return false end
  local new = ffi.string(buffer, n)
  self.text, self.all = self.text .. new, self.all .. new
  return true
end

--- Types text.
function Terminal:send(text)
  assert(tonumber(ffi.C.pty_write(self.fd, text, #text)) == #text, "the terminal took no more")
  return self
end

--- Waits until `wanted`, plain text, has come; returns what came before it. What comes next is looked for after it.
function Terminal:expect(wanted, seconds)
  while true do
    local from, to = self.text:find(wanted, 1, true)
    if from then
      local before = self.text:sub(1, from - 1)
      self.text = self.text:sub(to + 1)
      return before
    end
    if not more(self, (seconds or 40) * 1000) then
      error(("'%s' did not come; there came:\n%s"):format(wanted, self.all), 2)
    end
  end
end

--- Waits until the program reads keys, not lines: what is typed before may be taken for something else.
function Terminal:raw()
  local ICANON, attributes = 2, ffi.new("unsigned[32]") -- the fourth are the local modes
  for _ = 1, 500 do
    if ffi.C.pty_attributes(self.fd, attributes) == 0 and bit.band(attributes[3], ICANON) == 0 then return end
    ffi.C.poll(nil, 0, 10)
  end
  error("the terminal reads lines", 2)
end

--- Reads to the program's end; its exit code and everything it wrote.
function Terminal:finish()
  while more(self, 15000) do end
  ffi.C.pty_close(self.fd)
  local code
  for _ = 1, 100 do -- the shell writes it a moment later
    local file = assert(io.open(self.status))
    code = file:read("*n")
    file:close()
    if code then break end
    os.execute "sleep 0.05"
  end
  os.remove(self.status)
  return code, self.all
end

return pty
