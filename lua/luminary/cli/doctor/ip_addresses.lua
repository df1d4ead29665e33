--- Lists the addresses of this machine's interfaces: by `ip`, or by luminary's core if `ip` is missing, as in slim
--- containers.
local machine = require "luminary.cli.doctor.files_and_commands"

local addresses = {}

--- Returns a list of {interface, address, bits, family = 4 or 6}; an empty one if luminary's core does not load.
function addresses.of_core()
  local list, ok, core = {}, pcall(require, "luminary.core")
  for name, address, bits in (ok and core.interfaces() or ""):gmatch("(%S+) (%S+) (%d+)\n") do
    list[#list + 1] = {
      interface = name, address = address, bits = tonumber(bits), family = address:find(":", 1, true) and 6 or 4,
    }
  end
  return list
end

--- Returns the addresses that `ip -o addr show` lists; nil if there is no such command.
function addresses.of_ip()
  local result = machine.command("ip", {"-o", "addr", "show"})
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
  return addresses.of_ip() or (machine.made_up and {} or addresses.of_core())
end

--- Returns true for a text such as "192.0.2.1" or "::1".
function addresses.is_address(text) return (text:find(":", 1, true) or text:find("^%d+%.%d+%.%d+%.%d+$")) ~= nil end

--- Returns the addresses of a host, a name or an address; nil and the reason.
function addresses.resolve(host)
  if addresses.is_address(host) then return {host} end
  return machine.resolve(host)
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
