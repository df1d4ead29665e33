--- Lists the addresses of this machine's interfaces: by `ip`, or by libc if `ip` is missing, as in slim containers.
local outside = require "luminary.cli.doctor.files_and_commands"
local ffi = require "ffi"

for _, text in ipairs {
  [[struct lm_doctor_ifaddrs {
    struct lm_doctor_ifaddrs *next; char *name; unsigned flags; uint8_t *address, *netmask; void *more, *data;
  };]],
  "int getifaddrs(struct lm_doctor_ifaddrs **out);", "void freeifaddrs(struct lm_doctor_ifaddrs *all);",
  "const char *inet_ntop(int family, const void *address, char *text, unsigned n);",
} do
  pcall(ffi.cdef, text)
end

local addresses = {}

local AF_INET, AF_INET6 = 2, 10

-- Returns the number of leading set bits of n bytes.
local function prefix(mask, n)
  local bits = 0
  for i = 0, n - 1 do
    local byte = mask[i]
    while byte >= 128 do bits, byte = bits + 1, byte * 2 % 256 end
  end
  return bits
end

--- Returns a list of {interface, address, bits, family = 4 or 6}, by libc.
function addresses.of_libc()
  local list, all, text = {}, ffi.new "struct lm_doctor_ifaddrs *[1]", ffi.new "char[64]"
  if ffi.C.getifaddrs(all) ~= 0 then return list end
  local one = all[0]
  while one ~= nil do
    local family = one.address ~= nil and ffi.cast("uint16_t *", one.address)[0]
    if family == AF_INET or family == AF_INET6 then
      local at, n = family == AF_INET and 4 or 8, family == AF_INET and 4 or 16
      ffi.C.inet_ntop(family, one.address + at, text, 64)
      list[#list + 1] = {
        interface = ffi.string(one.name), address = ffi.string(text), family = family == AF_INET and 4 or 6,
        bits = one.netmask ~= nil and prefix(one.netmask + at, n) or n * 8,
      }
    end
    one = one.next
  end
  ffi.C.freeifaddrs(all[0])
  return list
end

--- Returns the addresses that `ip -o addr show` lists; nil if there is no such command.
function addresses.of_ip()
  local result = outside.command("ip", {"-o", "addr", "show"})
  if result.missing or result.code ~= 0 then return nil end
  local list = {}
  for line in result.out:gmatch("[^\n]+") do
    local name, kind, address, bits = line:match("^%d+:%s+(%S+)%s+(inet6?)%s+([%x.:]+)/(%d+)")
    if not name then name, kind, address = line:match("^%d+:%s+(%S+)%s+(inet6?)%s+([%x.:]+) peer") end
    if name then
      local six = kind == "inet6"
      list[#list + 1] = {
        interface = name:match("^[^@:]+"), address = address, family = six and 6 or 4,
        bits = tonumber(bits) or (six and 128 or 32),
      }
    end
  end
  return list
end

--- Returns the list, by the first way that works.
function addresses.all()
  return addresses.of_ip() or (outside.made_up and {} or addresses.of_libc())
end

--- Returns true for an address of the loopback interface.
function addresses.is_loopback(address) return address:match("^127%.") ~= nil or address == "::1" end

--- Returns the network of an IPv4 address as text, "192.0.2.0/24"; nil for others.
function addresses.network(one)
  local a, b, c, d = one.address:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)$")
  if not a or one.family ~= 4 then return nil end
  local number, size = ((a * 256 + b) * 256 + c) * 256 + d, 2 ^ (32 - one.bits)
  local first = number - number % size
  return ("%d.%d.%d.%d/%d"):format(math.floor(first / 2 ^ 24), math.floor(first / 2 ^ 16) % 256,
    math.floor(first / 2 ^ 8) % 256, first % 256, one.bits)
end

return addresses
