--- Reports the GPUs' state by the NVIDIA driver: nvidia-smi, the NVLink fabric, and logged errors (Xid).
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

local SMI_LIMIT = 20 -- seconds; without persistence mode the driver first starts every GPU

-- ---- nvidia-smi

local FIELDS = {"index", "name", "persistence_mode", "compute_mode", "mig.mode.current",
  "ecc.errors.uncorrected.volatile.total", "pcie.link.width.current", "pcie.link.width.max"}

local function card(found, row)
  local which = ("GPU %s (%s)"):format(row.index, row.name)
  local errors = tonumber(row["ecc.errors.uncorrected.volatile.total"])
  local width, widest = tonumber(row["pcie.link.width.current"]), tonumber(row["pcie.link.width.max"])
  if errors and errors > 0 then
    found.problem("gpu.ecc", which .. " has uncorrectable memory errors",
      ("%d since the driver was loaded (nvidia-smi)"):format(errors),
      "drain the machine and reset the GPU (sudo nvidia-smi --gpu-reset -i " .. row.index
        .. "); look at nvidia-smi -q -d ROW_REMAPPER,ECC: with remapping failures the card must be replaced")
  end
  if width and widest and width < widest then
    found.warning("gpu.pcie_width", ("%s has %d of %d PCIe lanes"):format(which, width, widest),
      "nvidia-smi: pcie.link.width.current; copies are that much slower",
      "reseat the card and its riser, or use a slot with all lanes: lspci -vv shows LnkSta beside LnkCap, and the "
        .. "mainboard's manual says which slots share lanes")
  end
  if row["compute_mode"]:find("Exclusive") then
    found.warning("gpu.exclusive", which .. " takes one process only", "compute mode " .. row["compute_mode"],
      "if several ranks are to share it: sudo nvidia-smi -i " .. row.index .. " -c DEFAULT")
  elseif row["compute_mode"]:find("Prohibited") then
    found.problem("gpu.prohibited", which .. " takes no process at all", "compute mode " .. row["compute_mode"],
      "sudo nvidia-smi -i " .. row.index .. " -c DEFAULT")
  end
  if row["mig.mode.current"] == "Enabled" then
    found.warning("gpu.mig", which .. " is split (MIG)",
      "a process sees one slice only, and slices do not reach each other's memory",
      "one rank a slice, over gloo; for NCCL between whole GPUs: sudo nvidia-smi -i " .. row.index .. " -mig 0")
  end
end

local function smi(found)
  if not facts.driver() then return end
  local query = {"--query-gpu=" .. table.concat(FIELDS, ","), "--format=csv,noheader,nounits"}
  local result = machine.command("nvidia-smi", query, SMI_LIMIT)
  if result.missing then
    return found.note("gpu.no_smi", "no nvidia-smi: the GPUs' state is not known", "it is not on the PATH",
      "install nvidia-utils of the driver's version (in containers: NVIDIA_DRIVER_CAPABILITIES=compute,utility)")
  elseif result.timed_out then
    return found.problem("gpu.smi_hangs", "nvidia-smi hangs", ("no answer within %g s"):format(result.timed_out),
      "look into dmesg for NVRM and Xid; a driver that hangs needs a reboot")
  elseif result.out:find("version mismatch", 1, true) then
    return found.problem("gpu.driver_mismatch", "the driver's module and its library are of different versions",
      "nvidia-smi: " .. result.out:match("[^\n]*version mismatch[^\n]*"),
      "reboot: the driver was updated, and the old module is still loaded")
  elseif result.out:find("not a valid field", 1, true) then
    return found.note("gpu.smi_old", "this nvidia-smi is too old to be asked", result.out:match("%S[^\n]*"),
      "nvidia-smi -q shows what it knows")
  elseif result.code ~= 0 then
    return found.problem("gpu.smi_fails", "nvidia-smi fails",
      ("exit code %d: %s"):format(result.code, result.out:match("%S[^\n]*") or "no output"),
      "a GPU that is lost needs a reboot, with the power off for a while; see dmesg | grep -i -e nvrm -e xid")
  end
  local n, tired = 0, {}
  for line in result.out:gmatch("[^\n]+") do
    local cells, row = lists.parts(line .. ",", "%s*(.-)%s*,"), {}
    for i, name in ipairs(FIELDS) do row[name] = cells[i] end
    if #cells == #FIELDS then
      n = n + 1
      card(found, row)
      if row.persistence_mode == "Disabled" then tired[#tired + 1] = row.index end
    end
  end
  if #tired > 0 then
    found.note("gpu.persistence", "persistence mode is off", "GPU " .. table.concat(tired, ", ")
      .. ": when the last process ends, the driver shuts the GPU down, and the next start takes seconds",
      "sudo systemctl enable --now nvidia-persistenced")
  end
  local held = #lists.filter(facts.gpus(), function(one) return one.driver == "nvidia" end)
  if n < held and not facts.container() and not machine.env "SLURM_JOB_ID" then -- there nvidia-smi may show fewer
    found.problem("gpu.lost", "a GPU is on the bus, but the driver does not show it",
      ("%d on the PCI bus (%s), %d in nvidia-smi"):format(held, facts.gpu_addresses(), n),
      "dmesg | grep -i nvrm says why: power, a BAR without room ('Resizable BAR'/'Above 4G decoding' in the BIOS), or "
        .. "a card that fell off the bus; then power off and on again")
  elseif n > 0 then
    found.ok("gpu.smi", "nvidia-smi shows GPUs", n .. " of them")
  end
end

-- ---- the fabric of NVSwitch machines

local function manager_runs()
  return lists.find(machine.list "/proc", function(name)
    return name:match("^%d+$") and (machine.read_word("/proc/" .. name .. "/comm") or ""):match("^nv%-fabric")
  end) ~= nil
end

local function fabric(found)
  local switched = #facts.switches() > 0 or machine.exists "/dev/nvidia-nvswitchctl"
  local version = facts.driver()
  if not switched or not version then return end
  local state = machine.command("nvidia-smi", {"-q"}, SMI_LIMIT).out:match("\n%s+Fabric%s*\n%s+State%s*:%s*([^\n]*)")
  local own = machine.command("nv-fabricmanager", {"--version"}).out:match("(%d+%.%d+[%d.]*)")
  local remedy = ("sudo apt install nvidia-fabricmanager-%s (the driver's version to the last digit), then sudo "
    .. "systemctl enable --now nvidia-fabricmanager"):format(version:match("^%d+"))
  if own and own ~= version then
    found.problem("gpu.fabric_version", "the fabric manager is of another version than the driver",
      ("nv-fabricmanager %s, driver %s: it refuses to start"):format(own, version), remedy)
  elseif state and state:find("Completed") or manager_runs() then
    found.ok("gpu.fabric", "the NVSwitch fabric is up", state or "the fabric manager runs")
  elseif facts.container() and not state then
    found.note("gpu.fabric_unknown", "not known whether the fabric manager runs",
      "a container does not see the host's processes", "on the host: systemctl status nvidia-fabricmanager")
  else
    found.problem("gpu.fabric_manager", "NVSwitch without its fabric manager",
      ("%d NVSwitch chips, %s: CUDA fails with 'system not yet initialized' (error 802)"):format(#facts.switches(),
        state and "fabric state '" .. state .. "'" or "no process nv-fabricmanager"), remedy)
  end
end

-- ---- the kernel's log

-- Explanations of frequent Xid errors, from NVIDIA's list (https://docs.nvidia.com/deploy/xid-errors); programs cause
-- those of the first table.
local OF_PROGRAMS = {[13] = "illegal access or instruction in a kernel",
  [31] = "a kernel touched memory that is not its",
  [43] = "a program was stopped", [45] = "a program was stopped, by an earlier error or a signal",
  [68] = "the video decoder failed"}
local OF_HARDWARE = {[48] = "uncorrectable memory error", [61] = "firmware error", [62] = "firmware error",
  [63] = "a memory row was remapped", [64] = "remapping a memory row failed", [74] = "NVLink error",
  [79] = "the GPU fell off the bus", [92] = "many corrected memory errors", [94] = "contained memory error",
  [95] = "uncontained memory error", [119] = "the GPU's system processor timed out",
  [120] = "the GPU's system processor failed"}

local function xid(found)
  if facts.card_count() == 0 then return end
  local result = machine.command("dmesg", {})
  if result.missing or result.timed_out or result.code ~= 0 then
    return found.note("gpu.log_unknown", "not known whether the driver logged errors (Xid)",
      "dmesg cannot be read: " .. (result.out:match("%S[^\n]*") or "no such command"),
      "sudo luminary doctor --only gpu")
  end
  local last, times = {}, {}
  for line in result.out:gmatch("[^\n]*NVRM: Xid[^\n]*") do
    local number = tonumber(line:match("Xid %b(): (%d+)"))
    if number then last[number], times[number] = line:match("NVRM.*"), (times[number] or 0) + 1 end
  end
  for _, number in ipairs(lists.sorted_keys(last)) do
    local reason = ("%d times; the last: %s"):format(times[number], last[number])
    if OF_PROGRAMS[number] then
      found.warning("gpu.xid_program", ("Xid %d: %s"):format(number, OF_PROGRAMS[number]), reason,
        "most often a fault of a program: run it with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer; if all "
          .. "programs cause it, suspect the card")
    else
      local meaning = OF_HARDWARE[number] or "an error of the GPU or its driver"
      found.problem("gpu.xid", ("Xid %d: %s"):format(number, meaning), reason, "look it up at "
        .. "https://docs.nvidia.com/deploy/xid-errors; reset the GPU or reboot; if it comes back, check power, cooling "
        .. "and the slot, and have the card replaced")
    end
  end
  found.ok_if_clean("gpu.log", "the driver logged no errors", "no Xid in dmesg")
end

return {{"smi", smi}, {"fabric", fabric}, {"log", xid}}
