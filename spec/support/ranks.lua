--- Real ranks for specs: processes on this machine, each with a rank's environment.
---
---   local got = ranks.run {n = 2, script = [[ … ]]}      -- or file = "scripts/train_ddp.lua", args = "--epochs 1"
---   assert(got.ok, got.text); got[0].output, got[1].code -- by rank, from 0
---
--- ranks.start returns a running job: job:pid(rank), job:kill(rank, "STOP"), job:output(rank),
--- job:wait_for(rank, "ready"), job:wait(). Options of both:
---   n          how many (2)                         timeout   seconds (60), after three times which a rank is ended:
---                                                             a busy machine takes long, and only a hang so long
---   script     the text of a script, or             args      its arguments, as the shell reads them
---   file       its path                             command   what runs it ("luajit")
---   env        variables for all; false takes one away. env_of(rank) returns more of them for one rank
local ffi = require "ffi"
local temp = require "spec.support.temp"

ffi.cdef [[
  int usleep(unsigned);
  struct lm_spec_address { uint16_t family, port; uint8_t host[4]; char zero[8]; };
  int socket(int, int, int); int bind(int, const void *, unsigned); int getsockname(int, void *, unsigned *);
  int setsockopt(int, int, int, const void *, unsigned);
]]

local ranks = {}

-- Programs of somebody else's are no concern of a sanitizer's that is preloaded; what they start of ours is.
local preload = os.getenv "LD_PRELOAD"
ranks.others, ranks.ours = "env -u LD_PRELOAD ", preload and "env LD_PRELOAD='" .. preload .. "' " or ""

--- The command `luminary` of this tree.
ranks.luminary = "bin/luminary"

function ranks.sleep(seconds) ffi.C.usleep(seconds * 1e6) end

--- Returns a TCP port of 127.0.0.1 that no program listens at. It stays bound until this process ends, so that the
--- system assigns it to nobody else; with SO_REUSEADDR on both sockets a server may listen there all the same.
function ranks.free_port()
  local address, size = ffi.new("struct lm_spec_address", { 2, 0, { 127, 0, 0, 1 } }), ffi.new("unsigned[1]", 16)
  local fd = ffi.C.socket(2, 0x80001, 0) -- AF_INET, SOCK_STREAM | SOCK_CLOEXEC
  assert(fd >= 0 and ffi.C.setsockopt(fd, 1, 2, ffi.new("int[1]", 1), 4) == 0) -- SOL_SOCKET, SO_REUSEADDR
  assert(ffi.C.bind(fd, address, 16) == 0 and ffi.C.getsockname(fd, address, size) == 0)
  return bit.rshift(bit.bswap(address.port), 16)
end

local function quote(text) return "'" .. tostring(text):gsub("'", "'\\''") .. "'" end

ffi.cdef [[
  struct lm_spec_wall { long s, ns; };
  int lm_spec_wall_time(int, struct lm_spec_wall *) __asm__("clock_gettime");
]]
local function wall() -- seconds since 1970
  local now = ffi.new "struct lm_spec_wall"
  ffi.C.lm_spec_wall_time(0, now)
  return tonumber(now.s) + tonumber(now.ns) / 1e9
end

-- Returns the shell's lines that set a table of variables.
local function exports(env)
  local lines = {}
  for name, value in pairs(env or {}) do
    lines[#lines + 1] = value and ("export %s=%s"):format(name, quote(value)) or "unset " .. name
  end
  return table.concat(lines, "; ")
end

local Job = {}
Job.__index = Job

function ranks.start(options)
  local n, folder = options.n or 2, temp.folder()
  local job = setmetatable({ n = n, folder = folder, timeout = 3 * (options.timeout or 60) }, Job)
  local script = options.file or temp.write(folder .. "/script.lua", options.script)
  local run = ("exec %s %s %s"):format(options.command or "luajit", quote(script), options.args or "")
  if preload then run = ('export LD_PRELOAD="${LD_PRELOAD-%s}"; %s'):format(preload, run) end -- for it alone
  local common = {
    WORLD_SIZE = n, LOCAL_WORLD_SIZE = n, MASTER_ADDR = "127.0.0.1", MASTER_PORT = ranks.free_port(),
    LM_JOB = "spec-" .. folder:match("[^/]*$"), OMP_NUM_THREADS = 1,
  }
  local lines = {}
  for rank = 0, n - 1 do
    local at = folder .. "/" .. rank
    lines[#lines + 1] = "(" .. exports(common)
    lines[#lines + 1] = exports { RANK = rank, LOCAL_RANK = rank }
    lines[#lines + 1] = exports(options.env) .. "\n" .. exports(options.env_of and options.env_of(rank))
    lines[#lines + 1] = ("timeout -k 2 %g sh -c %s >%s.out 2>&1 </dev/null"):format(job.timeout,
      quote(("echo $$ >%s.pid; %s"):format(at, run)), at)
    lines[#lines + 1] = ("echo $? $(date +%%s.%%N) >%s.tmp; mv %s.tmp %s.end) 2>/dev/null &"):format(at, at, at)
  end
  job.began = wall()
  temp.execute("sh " .. temp.write(folder .. "/start.sh", table.concat(lines, "\n") .. "\n"))
  return job
end

--- Returns a rank's output so far.
function Job:output(rank)
  local path = self.folder .. "/" .. rank .. ".out"
  return temp.exists(path) and temp.read(path) or ""
end

--- Returns the rank's process.
function Job:pid(rank)
  for _ = 1, 1000 do
    local path = self.folder .. "/" .. rank .. ".pid"
    local pid = temp.exists(path) and tonumber(temp.read(path))
    if pid then return pid end
    ranks.sleep(0.01)
  end
  error("rank " .. rank .. " did not start")
end

function Job:kill(rank, signal) return temp.execute(("kill -%s %d"):format(signal or "KILL", self:pid(rank))) == 0 end

--- Waits until a rank has printed something with this in it; returns true, or false after `seconds` (20).
function Job:wait_for(rank, text, seconds)
  for _ = 1, (seconds or 20) * 100 do
    if self:output(rank):find(text, 1, true) then return true end
    if temp.exists(self.folder .. "/" .. rank .. ".end") then return self:output(rank):find(text, 1, true) ~= nil end
    ranks.sleep(0.01)
  end
  return false
end

--- Waits until all have ended. Returns by rank: code (124: out of time; 128 + n: signal n), output, seconds from the
--- start; for all of them ok and text.
function Job:wait()
  local got, texts = { ok = true }, {}
  for rank = 0, self.n - 1 do
    local path = self.folder .. "/" .. rank .. ".end"
    for _ = 1, (self.timeout + 10) * 100 do
      if temp.exists(path) then break end
      ranks.sleep(0.01)
    end
    local code, ended = (temp.exists(path) and temp.read(path) or ""):match("(%d+) (%S+)")
    local one = {
      code = tonumber(code) or 999, seconds = (tonumber(ended) or wall()) - self.began, output = self:output(rank),
    }
    got[rank] = one
    got.ok = got.ok and one.code == 0
    texts[#texts + 1] = ("-- rank %d: exit code %d after %.2f s\n%s"):format(rank, one.code, one.seconds, one.output)
  end
  got.text = table.concat(texts, "\n")
  temp.remove(self.folder)
  return got
end

function ranks.run(options) return ranks.start(options):wait() end

return ranks
