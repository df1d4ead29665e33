--- Reports firewalls on this machine that block other ranks.
local outside = require "luminary.cli.doctor.files_and_commands"

-- Returns the first rule that blocks other machines, of `iptables -S` or `nft list ruleset`. Rules for packets without
-- a connection (INVALID) do not count, since they exist everywhere.
local function iptables_rule(text)
  for line in text:gmatch("[^\n]+") do
    local entry = line:match("^%-[PA] INPUT ")
    local verdict = line:match("^%-P INPUT (%u+)") or line:match("%-j (%u+)")
    if entry and (verdict == "DROP" or verdict == "REJECT") and not line:find("INVALID", 1, true) then return line end
  end
end

local function nft_rule(text)
  local inside = false
  for line in text:gmatch("[^\n]+") do
    if line:match("^%s*chain ") then inside = false end
    inside = inside or line:find("hook input", 1, true) ~= nil
    local drops = line:match("%f[%w]drop%f[%W]") or line:match("%f[%w]reject%f[%W]")
    if inside and drops and not line:find("ct state invalid", 1, true) then return line:match("^%s*(.-)%s*$") end
  end
end

local function firewall(found)
  local looked, failed
  for _, row in ipairs {{"nft", {"list", "ruleset"}, nft_rule}, {"iptables", {"-S"}, iptables_rule}} do
    local result = outside.command(row[1], row[2])
    if not result.missing and result.code == 0 then
      looked = true
      local rule = row[3](result.out)
      if rule then
        return found.warning("network.firewall", "a firewall keeps connections out", ("%s: %s"):format(row[1], rule),
          "ranks connect to each other on ports that the system chooses: let the nodes' network in as a whole (sudo "
            .. "ufw allow from NETWORK; sudo firewall-cmd --zone=trusted --add-source=NETWORK), and test with "
            .. "luminary doctor --listen 29500 there and --with HOST:29500 here")
      end
    elseif not result.missing then
      failed = ("%s: %s"):format(row[1], result.out:match("%S[^\n]*") or "no answer")
    end
  end
  if looked then return found.ok("network.no_firewall", "no firewall rule keeps connections out",
    "of this machine's own") end
  found.note("network.firewall_unknown", "not known whether a firewall keeps connections out", failed
    or "there is neither nft nor iptables to ask", "luminary doctor --listen 29500 on one machine and --with "
      .. "HOST:29500 on another tests the way itself")
end

return {{"firewall", firewall}}
