-- Carries packets between network namespaces PREFIX0 to PREFIX<HOSTS - 1>, 10.95.0.1 and on, until its input ends: a
-- host sends RATE bits a second, and a packet arrives DELAY seconds after its last bit was sent, as by netem, which not
-- all kernels have.
-- usage: luajit scripts/bench/cable.lua PREFIX HOSTS RATE DELAY < PIPE
local ffi = require "ffi"
local C = ffi.C
ffi.cdef [[
typedef struct { long seconds, nanoseconds; } lm_bench_time;
typedef struct { int fd; short wanted, got; } lm_bench_poll;
int open(const char *path, int flags, ...);
int setns(int fd, int kind);
int ioctl(int fd, unsigned long request, ...);
long read(int fd, void *to, size_t bytes);
long write(int fd, const void *from, size_t bytes);
int ppoll(lm_bench_poll *list, unsigned long n, const lm_bench_time *most, const void *signals);
int clock_gettime(int clock, lm_bench_time *now);
int sched_setscheduler(int pid, int policy, const int *priority);
]]
local RDWR, NONBLOCK, NEWNET, MONOTONIC, FIFO, POLLIN = 2, 0x800, 0x40000000, 1, 1, 1
local SET_INTERFACE, SET_OFFLOAD, TUN_WITH_HEADERS, CHECKSUMS_AND_SEGMENTS = 0x400454ca, 0x400454d0ULL, 0x5001, 3
local HEADER, BIGGEST, SLOTS = 10, 2 ^ 16 + 64, 2 ^ 10 -- bytes of a packet's header and of a packet; packets on the way
local FRAME, AROUND, HEADERS = 1500, 38, 52 -- bytes of a frame of Ethernet, those around it, and of its IP and TCP

local prefix, n, rate, delay = arg[1], tonumber(arg[2]), tonumber(arg[3]) / 8, tonumber(arg[4])

local function check(value)
  if value < 0 then error("cable: errno " .. ffi.errno(), 0) end
  return value
end

local clock = ffi.new "lm_bench_time"
local function time()
  C.clock_gettime(MONOTONIC, clock)
  return tonumber(clock.seconds) + 1e-9 * tonumber(clock.nanoseconds)
end

-- Returns the descriptor of a namespace's eth0. Packets pass as its kernel cuts them, checksums and segments undone.
local function interface_of(host)
  check(C.setns(check(C.open("/var/run/netns/" .. prefix .. host, 0)), NEWNET))
  local fd, about = check(C.open("/dev/net/tun", RDWR + NONBLOCK)), ffi.new("char[40]", "eth0")
  ffi.cast("short *", about + 16)[0] = TUN_WITH_HEADERS
  check(C.ioctl(fd, SET_INTERFACE, about))
  check(C.ioctl(fd, SET_OFFLOAD, ffi.cast("unsigned long", CHECKSUMS_AND_SEGMENTS)))
  return fd
end

-- Hosts' {fd, first and last (numbers of the packets on their way), sent (when its last one is), data, bytes, due}.
local lanes = {}
for host = 0, n - 1 do
  lanes[host] = {fd = interface_of(host), first = 1, last = 0, sent = 0, data = ffi.new("uint8_t[?]", SLOTS * BIGGEST),
    bytes = ffi.new("int[?]", SLOTS), due = ffi.new("double[?]", SLOTS)}
end
C.sched_setscheduler(0, FIFO, ffi.new("int[1]", 1)) -- on time, whatever the ranks compute

local function take(lane, now)
  while lane.last - lane.first + 1 < SLOTS do
    local slot = (lane.last + 1) % SLOTS
    local bytes = tonumber(C.read(lane.fd, lane.data + slot * BIGGEST, BIGGEST))
    if bytes <= HEADER then return end
    local frames = math.ceil((bytes - HEADER) / FRAME)
    local sent = bytes - HEADER + frames * AROUND + (frames - 1) * HEADERS
    lane.sent = math.max(now, lane.sent) + sent / rate
    lane.last, lane.bytes[slot], lane.due[slot] = lane.last + 1, bytes, lane.sent + delay
  end
end

-- Delivers what is due. Returns when the next packet is, or nil.
local function deliver(lane, now)
  while lane.first <= lane.last do
    local slot = lane.first % SLOTS
    if lane.due[slot] > now then return lane.due[slot] end
    local packet = lane.data + slot * BIGGEST
    local to = lanes[packet[HEADER + 19] - 1] -- the last byte of the address
    if math.floor(packet[HEADER] / 16) == 4 and to then C.write(to.fd, packet, lane.bytes[slot]) end
    lane.first = lane.first + 1
  end
end

local list, most = ffi.new("lm_bench_poll[?]", n + 1), ffi.new "lm_bench_time"
for host = 0, n - 1 do list[host] = {lanes[host].fd, POLLIN} end
list[n] = {0, POLLIN}
repeat
  local now, next_due = time(), math.huge
  for host = 0, n - 1 do
    take(lanes[host], now)
    next_due = math.min(next_due, deliver(lanes[host], now) or math.huge)
  end
  local wait = math.max(0, math.min(1, next_due - time()))
  most.seconds, most.nanoseconds = math.floor(wait), wait % 1 * 1e9
  C.ppoll(list, n + 1, most, nil)
until list[n].got ~= 0
