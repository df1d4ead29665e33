--- Reports variables that change the behavior of luminary, NCCL or CUDA, and are easily forgotten.
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

-- NCCL's variables: name, the values to warn of (nil: any), severity, effect, remedy (nil: to unset it).
local SWITCHES = {
  {"NCCL_P2P_DISABLE", {["1"] = true}, "warning", "GPUs of one machine talk through the host's memory, several times "
    .. "slower", "unset NCCL_P2P_DISABLE once luminary doctor --only pci,peers finds nothing"},
  {"NCCL_SHM_DISABLE", {["1"] = true}, "warning", "ranks of one machine talk over the network instead of shared memory",
    "unset NCCL_SHM_DISABLE; if it was for want of room in /dev/shm, enlarge that"},
  {"NCCL_CUMEM_ENABLE", {["0"] = true}, "note", "NCCL allocates in the old way; some of its features need the new one",
    "unset NCCL_CUMEM_ENABLE if the reason for it is gone"},
}

-- Variables of CUDA and Luminary that slow programs down or change them: name, values, severity, reason.
local HABITS = {
  {"CUDA_LAUNCH_BLOCKING", {["1"] = true}, "warning", "every kernel is waited for: much slower, and no overlap of "
    .. "communication with backward"},
  {"CUDA_DEVICE_MAX_CONNECTIONS", {["1"] = true}, "note", "kernels and copies queue behind each other"},
}
for _, variable in ipairs(require "luminary.environment_variables") do
  if variable.doctor_warning then HABITS[#HABITS + 1] = {variable.name, unpack(variable.doctor_warning, 1, 3)} end
end

-- Reports the rows whose variable has a value to warn of. read(name) returns the value, and its source if it may vary.
local function report(found, rows, read)
  for _, row in ipairs(rows) do
    local name, values, severity, effect, remedy = unpack(row, 1, 5)
    local value, from = read(name)
    if (value or "") ~= "" and (not values or values[value]) then
      found[severity]("environment." .. name:lower(), name .. "=" .. value,
        from and ("%s (from %s)"):format(effect, from) or effect, remedy or "unset " .. name)
    end
  end
end

-- Variables only for debugging by NVIDIA's manual (docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
local FOR_DEBUGGING = {"NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
  "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_LAUNCH_MODE",
  "NCCL_CHECKS_DISABLE", "NCCL_CHECK_POINTERS", "NCCL_NVLS_ENABLE"}

local function nccl(found)
  report(found, SWITCHES, facts.nccl)
  local given, from = facts.nccl "NCCL_IB_DISABLE"
  if given == "1" and #facts.rdma() > 0 then
    found.warning("environment.nccl_ib_disable", "NCCL_IB_DISABLE=1 on a machine with RDMA",
      ("%s is there, and NCCL uses plain TCP instead (from %s)"):format(table.concat(facts.rdma(), ", "), from),
      "unset NCCL_IB_DISABLE")
  end
  given, from = facts.nccl "NCCL_DEBUG"
  if given and given:upper() ~= "WARN" and given:upper() ~= "VERSION" then
    found.note("environment.nccl_debug", "NCCL_DEBUG=" .. given, ("every rank prints much (from %s)"):format(from),
      "NCCL_DEBUG=WARN once the search is over")
  end
  local left = {}
  for _, name in ipairs(FOR_DEBUGGING) do
    local value, at = facts.nccl(name)
    if value then left[#left + 1] = ("%s=%s (from %s)"):format(name, value, at) end
  end
  if #left > 0 then
    found.warning("environment.nccl_tuning", "NCCL's own choices are overridden", table.concat(left, ", ")
      .. ": meant for experiments, and wrong on another machine or version: slow, or hanging", "unset them")
  end
  found.ok_if_clean("environment.nccl", "nothing of NCCL's is set oddly", "")
end

-- ---- CUDA

local function visible(found)
  local text, n = machine.env "CUDA_VISIBLE_DEVICES", facts.card_count()
  if not text then return end
  if text == "" or text == "-1" then
    if n > 0 then
      found.warning("environment.no_visible", "CUDA_VISIBLE_DEVICES hides all GPUs",
        ("it is '%s', with %d GPUs here"):format(text, n), "unset CUDA_VISIBLE_DEVICES")
    end
    return
  end
  local seen = {}
  for part in (text .. ","):gmatch("%s*([^,]-)%s*,") do
    local index = tonumber(part:match("^%d+$"))
    if seen[part] then
      return found.problem("environment.visible_twice", "CUDA_VISIBLE_DEVICES names a GPU twice",
        ("'%s': CUDA then shows none at all"):format(text), "name each once")
    elseif index and n > 0 and index >= n then
      return found.problem("environment.visible_range", "CUDA_VISIBLE_DEVICES names a GPU that is not there",
        ("'%s': there are %d, from 0 to %d; number %d and all that follow are hidden"):format(text, n, n - 1, index),
        "correct it; nvidia-smi -L lists them")
    elseif not index and not part:match("^GPU%-%x") and not part:match("^MIG%-") then
      return found.problem("environment.visible_odd", "CUDA_VISIBLE_DEVICES is not understood",
        ("'%s': '%s' is neither a number nor a GPU-… or MIG-… name, and ends the list"):format(text, part),
        "give numbers with commas between, as in CUDA_VISIBLE_DEVICES=0,1")
    end
    seen[part] = true
  end
  found.ok("environment.visible", "CUDA_VISIBLE_DEVICES", text)
end

local function habits(found)
  report(found, HABITS, machine.env)
  local preload = machine.env "LD_PRELOAD"
  if preload and preload ~= "" then
    found.warning("environment.ld_preload", "LD_PRELOAD is set", preload .. ": it replaces functions in every program",
      "unset LD_PRELOAD, unless a tool set it on purpose")
  end
  found.ok_if_clean("environment.habits", "no debugging switch is left on", "")
end

-- ---- a rank's variables

local LAUNCHERS = {"LM_JOB", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "PMI_RANK",
  "LM_ERROR_FILE", "KUBERNETES_SERVICE_HOST"}

local function ranks(found)
  local rank, size = machine.env "RANK", machine.env "WORLD_SIZE"
  if not rank and not size then return found.ok("environment.no_rank", "no rank's variables are left over", "") end
  local r, n = tonumber(rank or ""), tonumber(size or "")
  local launched = lists.find(LAUNCHERS, machine.env)
  local seen = ("RANK=%s WORLD_SIZE=%s"):format(rank or "(not set)", size or "(not set)")
  local unset = "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"
  if not rank or not size then
    found.problem("environment.half_rank", "only one of RANK and WORLD_SIZE is set", seen, "set both, or " .. unset)
  elseif not r or not n or r < 0 or r >= n or r % 1 ~= 0 then
    found.problem("environment.odd_rank", "RANK and WORLD_SIZE contradict each other", seen,
      "ranks are 0 to WORLD_SIZE - 1; or " .. unset)
  elseif not launched then
    found.warning("environment.stale_rank", "a rank's variables, but no launcher", seen
      .. (n > 1 and (": init_process_group waits for %d others"):format(n - 1) or ""),
      "if a shell of yours has them left over: " .. unset)
  else
    found.ok("environment.rank", "a rank's variables, of a launcher", seen .. ", " .. launched)
  end
end

return {{"nccl", nccl}, {"visible", visible}, {"habits", habits}, {"ranks", ranks}}
