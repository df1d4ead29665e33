--- Checks the paths between GPUs on the PCI bus: an IOMMU that translates addresses, and bridges whose access control
--- (ACS) routes writes between GPUs through the CPU. Both together make peer-to-peer copies hang, with the GPUs at 100
--- % utilization, or corrupt data; each alone makes them slow.
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

local ACS_CAPABILITY = 0x000D -- among PCI Express' extended capabilities, which begin at byte 256
local BITS = {"SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans"}
local PAST_P2P = "NCCL_P2P_DISABLE=1 makes NCCL go through the host's memory, as the backend gloo always does"

local function number(text, at, bytes)
  local value = 0
  for i = bytes, 1, -1 do value = value * 256 + text:byte(at + i) end
  return value
end

-- Returns the set bits of the ACS control register, as lspci names them, from a bridge's configuration space; nil if it
-- has no such register, false if the space is not readable that far, as for all users except root.
local function acs_from_sysfs(address)
  local space = machine.read("/sys/bus/pci/devices/" .. address .. "/config")
  if not space or #space < 0x104 then return false end
  local at = 0x100
  for _ = 1, 100 do -- a broken space may have a circular list
    if at < 0x100 or at + 8 > #space then return nil end
    local head = number(space, at, 4)
    if head == 0 or head == 0xffffffff then return nil end
    if head % 0x10000 == ACS_CAPABILITY then
      local control, set = number(space, at + 6, 2), {}
      for i, name in ipairs(BITS) do
        if bit.band(bit.rshift(control, i - 1), 1) == 1 then set[#set + 1] = name .. "+" end
      end
      return set
    end
    at = math.floor(head / 0x100000)
  end
end

-- Returns the set bits of the ACS control register by lspci, which finds more than sysfs shows on some machines.
local listing
local function acs_from_lspci(address)
  listing = listing or machine.command("lspci", {"-D", "-vvv"}, 10).out
  local begins = listing:find("\n" .. address:gsub("%p", "%%%0") .. " ") or listing:find("^" .. address:gsub("%p",
    "%%%0"))
  local block = begins and listing:sub(begins + 1):match("^(.-)\n%x+:%x%x:%x%x%.%x ") or begins and listing:sub(begins)
  if not block or block:find("Capabilities: <access denied>", 1, true) then return false end
  local control = block:match("ACSCtl:%s*([^\n]*)")
  return control and lists.parts(control, "%a+%+")
end

-- Returns true or false, if the IOMMU translates the GPUs' addresses or not, or nil if unknown; and the evidence.
local function translates()
  local line = machine.read_word "/proc/cmdline" or ""
  local groups, kinds = 0, {}
  for _, one in ipairs(facts.gpus()) do
    if one.group then groups, kinds[one.group] = groups + 1, true end
  end
  if groups > 0 then
    for kind in pairs(kinds) do
      if kind:match("^DMA") then return true, ("iommu_group/type of the GPUs is %s"):format(kind) end
    end
    return false, "iommu_group/type of the GPUs is " .. table.concat(lists.sorted_keys(kinds), ", ")
  end
  local units = machine.list "/sys/class/iommu"
  if #units == 0 and #machine.list "/sys/kernel/iommu_groups" == 0 then return false, "no unit in /sys/class/iommu" end
  if (" " .. line .. " "):find("[ ]iommu=pt[ ,]") or line:find("iommu.passthrough=1", 1, true) then
    return false, "passed through: iommu=pt on the kernel's command line"
  end
  return true, ("%s in /sys/class/iommu, and no iommu=pt in /proc/cmdline"):format(units[1] or "groups")
end

-- Returns the bridges above the GPUs with access control on, as texts; and the bridges whose state is unknown.
local function controlled()
  local on, unknown, seen, names = {}, {}, {}, {}
  for _, one in ipairs(facts.gpus()) do
    for _, bridge in ipairs(facts.bridges(one)) do
      if not seen[bridge] then
        seen[bridge] = true
        local set = acs_from_sysfs(bridge)
        if set == false then set = acs_from_lspci(bridge) end
        if set == false then
          unknown[#unknown + 1] = bridge
        elseif set and #set > 0 then
          on[#on + 1], names[#names + 1] = ("%s (ACSCtl: %s)"):format(bridge, table.concat(set, " ")), bridge
        end
      end
    end
  end
  return on, unknown, names
end

local function remedy_text(bridges)
  local now = ("until the next boot, as root: for b in %s; do setpci -s $b ECAP_ACS+6.w=0000; done"):format(
    #bridges > 0 and table.concat(bridges, " ") or "BRIDGE…")
  local first = facts.virtual() and "this is a virtual machine: its host has to change it (ACS, and IOMMU with ATS). "
    or "BIOS: switch ACS off, and VT-d or AMD IOMMU too if nothing needs them; or boot with iommu=pt "
      .. "(GRUB_CMDLINE_LINUX in /etc/default/grub, sudo update-grub, reboot); " .. now .. ". "
  return first .. "Meanwhile " .. PAST_P2P
end

local function check_peer_traffic(found)
  local n = #facts.gpus()
  if n == 0 then return found.ok("pci.none", "no GPU on the bus", "nothing to check") end
  local translated, how = translates()
  local on, unknown, names = controlled()
  local avoided = facts.nccl "NCCL_P2P_DISABLE" == "1"
  if n == 1 then
    return found.ok("pci.single", "a single GPU has no peers on the bus", "IOMMU: " .. how)
  elseif #on > 0 and translated then
    local severity = avoided and "warning" or "problem"
    found[severity]("pci.acs_iommu", "IOMMU with ACS: copies between GPUs may hang at 100 % utilization",
      ("access control is on in %s; IOMMU: %s%s"):format(table.concat(on, ", "), how,
        avoided and "; NCCL_P2P_DISABLE=1 is set, which goes round it, slowly" or ""), remedy_text(names))
  elseif #on > 0 then
    found.warning("pci.acs", "ACS sends copies between GPUs through the CPU",
      ("access control is on in %s; IOMMU: %s. Slow, and on some mainboards it hangs"):format(table.concat(on, ", "),
        how),
      remedy_text(names))
  elseif translated then
    found.warning("pci.iommu", "the IOMMU translates what GPUs send each other", how, remedy_text(names))
  elseif #unknown == 0 then
    found.ok("pci.clear", "nothing stands between the GPUs", "no ACS on the bridges above them; IOMMU: " .. how)
  end
  if #unknown > 0 then
    found.note("pci.unknown", "not known whether ACS is on", ("the configuration space of %s is for root's eyes")
      :format(table.concat(unknown, ", ")), "sudo luminary doctor --only pci; or sudo lspci -vvv | grep ACSCtl, where "
        .. "SrcValid+ on a bridge means that it is on")
  end
end

return {{"check", check_peer_traffic}}
