--- Determines where the nodes of a job meet, and this node's number, from options of `luminary run`.
local core = require "luminary.core"
local ffi = require "ffi"

for _, text in ipairs {
  "struct lm_cli_lock { short type, whence; long start, length; int pid; };", -- 64-bit Linux's struct flock
  "int open(const char *path, int flags, ...);", "int close(int fd);", "int unlink(const char *path);",
  "long readlink(const char *path, char *out, size_t capacity);", "int fcntl(int fd, int command, ...);",
  "char *strerror(int number);",
} do
  pcall(ffi.cdef, text) -- a script may have declared it before
end

local meeting = {}

--- Returns the value of an environment variable; nil if it is empty, too.
function meeting.variable(name)
  local text = core.getenv(name)
  return text ~= "" and text or nil
end
local variable = meeting.variable

-- Reads torchrun's options. Its two backends differ in who numbers the nodes.
local function read_torchrun(o)
  local backend, endpoint = o["rdzv-backend"], o["rdzv-endpoint"]
  if not backend and not endpoint then return nil end
  if backend and backend ~= "c10d" and backend ~= "static" then
    return ("--rdzv-backend %s: nodes meet at --rdzv-endpoint host:port, or with --rdzv file:///path"):format(backend)
  end
  if o.rdzv then return "--rdzv and --rdzv-endpoint: one of the two" end
  if not endpoint and o.nnodes == 1 or o["master-addr"] and not endpoint then return nil end
  if not endpoint then return "--rdzv-backend needs --rdzv-endpoint host:port" end
  o.rdzv = "tcp://" .. (endpoint:match(":%d+$") and endpoint or endpoint .. ":29500")
end

-- Reads master-addr and master-port, or file, from --rdzv.
local function read_rdzv(o)
  if not o.rdzv then return nil end
  local path = o.rdzv:match("^file://(/.+)$")
  local host, port = o.rdzv:match("^tcp://%[?(.-)%]?:(%d+)$")
  port = tonumber(port)
  if not path and not (host and host ~= "" and port <= 65535) then
    return ("--rdzv must be tcp://host:port or file:///path, a path that all nodes share, got '%s'"):format(o.rdzv)
  end
  if o["master-addr"] or o["master-port"] then
    return "--rdzv says where to meet: leave --master-addr and --master-port out"
  end
  o.file, o["master-addr"], o["master-port"] = path, host, port
end

-- Reads endpoints from --rdzv, tcp://host:port[,host:port...], for a job whose nodes come and go.
local function read_endpoints(o)
  if o["node-rank"] then return "--node-rank: the nodes of an elastic job number themselves; leave it out" end
  if o.rdzv and o["master-addr"] then return "--rdzv says where to meet: leave --master-addr out" end
  if not o.rdzv and (o["master-addr"] or o.standalone) then
    o.rdzv = ("tcp://%s:%d"):format(o["master-addr"] or "127.0.0.1", o["master-port"] or 29500)
    o["master-port"] = nil
  end
  local list = (o.rdzv or ""):match "^tcp://(.+)$"
  if not list then
    return "--nnodes MIN:MAX needs --rdzv tcp://HOST:PORT[,HOST:PORT...], "
      .. (o.rdzv and ("got '%s'"):format(o.rdzv) or "the hosts that may be the head of the job")
  end
  o.endpoints = {}
  for endpoint in (list .. ","):gmatch "([^,]*)," do
    endpoint = endpoint:match ":%d+$" and endpoint or endpoint .. ":29500"
    local host, port = endpoint:match "^%[?(.-)%]?:(%d+)$"
    if host == "" or tonumber(port) < 1 or tonumber(port) > 65535 then
      return ("--rdzv must be tcp://HOST:PORT[,HOST:PORT...], got '%s'"):format(o.rdzv)
    end
    o.endpoints[#o.endpoints + 1] = endpoint
  end
  o["node-rank"], o["master-addr"] = 0, o.endpoints[1]:match "^%[?(.-)%]?:%d+$" -- for --dry-run
end

-- Determines this node's number among several. Returns an error message if it is unknown.
local function read_rank(o)
  if o["node-rank"] then return nil end
  if tonumber(variable "SLURM_STEP_NUM_NODES") == o.nnodes then
    o["node-rank"] = tonumber(variable "SLURM_NODEID")
    if o["node-rank"] then return nil end
  end
  if o.file then return nil end -- the nodes number themselves in the file
  return ("--nnodes %d needs --node-rank, from 0 to %d; with --rdzv file:///path that all nodes see they number "
    .. "themselves"):format(o.nnodes, o.nnodes - 1)
end

local function read_address(o)
  if o.file then return nil end
  o["master-addr"] = o["master-addr"] or variable "MASTER_ADDR"
  if not o["master-addr"] then
    return ("--nnodes %d needs --master-addr, the address of node 0, or --rdzv file:///path that all nodes see"):format(
      o.nnodes)
  end
  o["master-port"] = o["master-port"] or tonumber(variable "MASTER_PORT" or 29500)
  if o["master-port"] == 0 then return "--master-port 0: several nodes need to know the port" end
end

--- Completes the options: endpoints of an elastic job; else file, or master-addr and master-port; node-rank, if the
--- node's number is known already. Returns an error message, or nil.
function meeting.read(o)
  local problem = read_torchrun(o)
  if problem or o.is_elastic then return problem or read_endpoints(o) end
  problem = read_rdzv(o)
  if problem then return problem end
  if o.nnodes > 1 then
    if o.standalone then return "--standalone means one node; leave it or --nnodes out" end
    problem = read_rank(o) or read_address(o)
    if problem then return problem end
  else
    o["node-rank"] = o["node-rank"] or 0
  end
  if o["node-rank"] and o["node-rank"] >= o.nnodes then
    return ("--node-rank %d is outside of %d node%s"):format(o["node-rank"], o.nnodes, o.nnodes > 1 and "s" or "")
  end
  o["master-addr"] = o["master-addr"] or "127.0.0.1"
end

-- ---- nodes number themselves

-- A node holds number i by a lock on byte i of a file next to the rendezvous file. The kernel releases the lock when
-- its process ends in any way, so no stale lock remains.
local F_SETLK, F_WRLCK, F_UNLCK, F_DUPFD_CLOEXEC = 6, 1, 2, 1030
local O_NOFOLLOW = jit.arch:find "^arm" and 0x8000 or 0x20000
local OPEN = 2 + 64 + 2048 + 524288 + O_NOFOLLOW -- O_RDWR, O_CREAT, O_NONBLOCK, O_CLOEXEC
local EACCES, EAGAIN = 13, 11

local Claim = {}
Claim.__index = Claim

local function system_error() return ffi.string(ffi.C.strerror(ffi.errno())) end

-- Returns true; false if another process holds one of the bytes; nil and a message on errors. 0 bytes means to the end.
local function lock_node_number(fd, first, count, kind)
  local wanted = ffi.new("struct lm_cli_lock", {kind or F_WRLCK, 0, first, count, 0})
  if ffi.C.fcntl(fd, F_SETLK, wanted) == 0 then return true end
  if ffi.errno() == EACCES or ffi.errno() == EAGAIN then return false end
  return nil, system_error()
end

-- Returns true if the last node to leave removed the file; later nodes then create a new one.
local function is_removed(fd)
  local path = ffi.new "char[4096]"
  local n = ffi.C.readlink("/proc/self/fd/" .. fd, path, 4096)
  return n > 0 and ffi.string(path, n):match(" %(deleted%)$") ~= nil
end

-- Returns the requested number, or the first free one.
local function take_node_number(fd, o)
  for number = o["node-rank"] or 0, o["node-rank"] or o.nnodes - 1 do
    local taken, problem = lock_node_number(fd, number, 1)
    if taken then return number end
    -- Some network file systems have no locks; a node with a given number needs none.
    if problem and o["node-rank"] then return number end
    if problem then return nil, ("%s; pass --node-rank"):format(problem) end
  end
  if o["node-rank"] then
    return nil, ("another `luminary run` is already node %d; is another job using this rendezvous?"):format(
      o["node-rank"])
  end
  return nil, ("all %d nodes have already joined; is another job using this rendezvous?"):format(o.nnodes)
end

-- Returns a file descriptor above 2: the launcher may have been started without 0, 1 or 2, to which output is printed.
local function above_stdio(fd)
  if fd < 0 or fd > 2 then return fd end
  local copy = ffi.C.fcntl(fd, F_DUPFD_CLOEXEC, ffi.cast("int", 3))
  ffi.C.close(fd)
  return copy
end

-- Returns true if the file is absent or empty: it only holds locks, and the last node removes it.
local function is_ours(path)
  local kind, bytes = core.file_kind(path)
  return kind == nil or kind == "a regular file" and bytes == 0
end

local function open_file(path)
  if not is_ours(path) then return nil, "it must be absent or empty" end
  local fd = above_stdio(ffi.C.open(path, OPEN, ffi.cast("int", 384))) -- 0600
  if fd < 0 then return nil, system_error() end
  if is_ours("/proc/self/fd/" .. fd) then return fd end
  ffi.C.close(fd)
  return nil, "something else replaced it"
end

--- Takes the node's number at --rdzv file:///path until claim:leave(), and sets node-rank; returns nil and a message on
--- failure.
function meeting.claim(o)
  local path = o.file .. ".nodes"
  local fd, number, problem
  repeat
    if fd then ffi.C.close(fd) end
    fd, problem = open_file(path)
    if not fd then return nil, ("--rdzv file://%s: %s: %s"):format(o.file, path, problem) end
    number, problem = take_node_number(fd, o)
  until not is_removed(fd)
  if not number then
    ffi.C.close(fd)
    return nil, ("--rdzv file://%s: %s"):format(o.file, problem)
  end
  o["node-rank"] = number
  return setmetatable({fd = fd, path = path}, Claim)
end

function Claim:leave()
  lock_node_number(self.fd, 0, 0, F_UNLCK) -- first, so that the last of several nodes leaving at once sees no locks
  if lock_node_number(self.fd, 0, 0) then ffi.C.unlink(self.path) end
  ffi.C.close(self.fd)
end

return meeting
