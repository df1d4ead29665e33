--- Measures how fast luminary copies memory between GPUs and between GPUs and the host.
local aligned_columns = require "luminary.base.aligned_columns"
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

local LIMIT, IDLE = 90, 20 -- seconds in all, and without output
local SLOW_PEER, SLOW_PINNED = 4, 5 -- GB/s; 16 lanes of PCIe 3 do 12, 4 lanes 3
local WAYS = "check ACS and IOMMU (luminary doctor --only pci); BIOS: ACS off, boot with iommu=pt; meanwhile "
  .. "NCCL_P2P_DISABLE=1, or the backend gloo"

-- Parses the lines of child.measure.
local function parse(out)
  local m = {devices = {}, host = {}, batches = {}, peers = {}, problems = {}}
  for line in out:gmatch("[^\n]+") do
    local what, rest = line:match("^(%w+) (.*)$")
    local words = lists.map(lists.parts(rest or ""), function(word) return tonumber(word) or word end)
    local a, b, c, d, e = unpack(words, 1, 5)
    if what == "step" then m.step = rest end
    if what == "count" then m.count = a end
    if what == "problem" then m.problems[#m.problems + 1] = rest end
    if what == "device" then
      m.devices[a] = rest:match("^%d+ (.*)$")
    elseif what == "host" then
      m.host[a] = m.host[a] or {}
      m.host[a][b] = {up = c, down = d}
    elseif what == "batch" then
      m.batches[#m.batches + 1] = {device = "cuda:" .. a, megabytes = b, pageable = c, stage = d, pinned = e}
    elseif what == "peer" then
      m.peers[#m.peers + 1] = {from = a, to = b, direct = c == "direct", rate = d, right = e == "right"}
    end
  end
  return m
end

-- Returns "cuda:0 to cuda:1, cuda:1 to cuda:0" for the pairs that chosen() selects; nil without one.
local function pairs_where(m, chosen, shows_rate)
  local list = lists.map(lists.filter(m.peers, chosen), function(one)
    return ("cuda:%d to cuda:%d%s"):format(one.from, one.to, shows_rate and (" %.1f GB/s"):format(one.rate) or "")
  end)
  return #list > 0 and table.concat(list, ", ") or nil
end

-- Returns the matrix as text: rows are sources, a star marks copies through the host.
local function matrix(m)
  local rows = {{"from\\to"}}
  for i = 0, m.count - 1 do
    rows[1][i + 2], rows[i + 2] = "cuda:" .. i, {"cuda:" .. i}
    for j = 0, m.count - 1 do rows[i + 2][j + 2] = i == j and "-" or "?" end
  end
  for _, one in ipairs(m.peers) do
    rows[one.from + 2][one.to + 2] = ("%.1f%s"):format(one.rate, one.direct and "" or "*")
  end
  return "GB/s (*: by way of the host)\n" .. table.concat(aligned_columns(rows, 2), "\n")
end

local function between_gpus(found, m)
  if m.count < 2 then return found.ok("peers.single", "one GPU: there is no peer to copy to", m.devices[0] or "") end
  local wrong = pairs_where(m, function(one) return not one.right end)
  local through = pairs_where(m, function(one) return not one.direct end)
  local slow = pairs_where(m, function(one) return one.direct and one.rate < SLOW_PEER end, true)
  if wrong then
    found.problem("peers.wrong", "copies between GPUs arrive wrong", wrong,
      "do not train on this machine with peer-to-peer copies: " .. WAYS)
  end
  if slow then
    found.warning("peers.slow", "direct copies between GPUs are slow", slow .. "; 16 lanes of PCIe 3 do about 12",
      "if nothing else uses the GPUs: " .. WAYS .. "; and see the lanes (nvidia-smi topo -m, lspci -vv)")
  end
  if through then
    found.note("peers.through_host", "some GPUs do not reach each other's memory", through
      .. ": copies go by way of the host. Most GeForce cards allow no other, nor do GPUs below different CPUs",
      "nothing to do for such cards; else see nvidia-smi topo -m and " .. WAYS)
  end
  if #m.peers > 0 then found.ok("peers.matrix", "copies between GPUs", matrix(m)) end
end

local function to_the_host(found, m)
  local texts, slow = {}, {}
  for i = 0, m.count - 1 do
    local pinned, pageable = (m.host[i] or {}).pinned, (m.host[i] or {}).pageable
    if pinned then
      texts[#texts + 1] = ("cuda:%d: pinned %.1f up, %.1f down%s"):format(i, pinned.up, pinned.down,
        pageable and ("; pageable %.1f up, %.1f down"):format(pageable.up, pageable.down) or "")
      if math.min(pinned.up, pinned.down) < SLOW_PINNED then slow[#slow + 1] = texts[#texts] end
    end
  end
  if #slow > 0 then
    found.warning("peers.pinned_slow", "copies from pinned memory are slow",
      table.concat(slow, "\n") .. "\nGB/s; 16 lanes of PCIe 3 do about 12",
      "see the number of lanes (lspci -vv, LnkSta), let the process run on the cores near the GPU (numactl, "
        .. "nvidia-smi topo -m), and measure again while nothing else runs")
  end
  if #texts > 0 then
    found.ok("peers.pinned", "copies between the host and GPUs", "GB/s\n" .. table.concat(texts, "\n"))
  end
end

-- Reports whether pin_memory pays: data.DataLoader measures the same.
local function report_pin_memory(found, m)
  local texts, slower = {}, {}
  for _, one in ipairs(m.batches) do
    local list = one.stage > one.pageable and slower or texts
    list[#list + 1] = ("%s, %.3g MB: %.3g ms as it is; pinned %.3g ms, after %.3g ms to pin it"):format(one.device,
      one.megabytes, one.pageable, one.pinned, one.stage)
  end
  if #slower > 0 then
    found.note("peers.pinning", "pin_memory makes a loader without workers slower", table.concat(slower, "\n"),
      "DataLoader: leave pin_memory out, or let workers pin: {num_workers = 1, pin_memory = true}")
  end
  if #texts > 0 then
    found.ok("peers.batches", "a loader's batch to a GPU", table.concat(texts, "\n"))
  end
end

local function measure(found)
  local preloaded = (machine.env "LD_PRELOAD" or "") ~= "" -- it may contain a stand-in driver
  if facts.card_count() == 0 and not preloaded and not facts.driver() then
    return found.note("peers.none", "no GPU: not measured", "neither the copies between GPUs nor those "
      .. "from pinned memory",
      "")
  end
  local result = machine.child("measure", LIMIT, IDLE)
  local m = parse(result.out)
  if result.missing then
    return found.note("peers.unknown", "not measured", "no child process could be started", "")
  elseif result.timed_out then
    found.problem("peers.hangs", "a copy hangs",
      ("%s: no end within %g s"):format(m.step or "starting", result.timed_out),
      WAYS .. ". A GPU that other programs keep busy may also be the reason: see nvidia-smi")
    if (m.count or 0) == 0 then return end
  elseif m.count == 0 then
    return found.note("peers.none", "no GPU: not measured", "CUDA finds no device; luminary doctor --only "
      .. "gpu,libraries says why", "")
  elseif not m.count or m.step ~= "end" then
    return found.problem("peers.fails", "measuring ends the process", ("exit code %d, %s: %s"):format(result.code,
      m.step or "starting", result.out:match("([^\n]*)\n*$")), "luminary doctor --only gpu,libraries may say why")
  end
  for _, text in ipairs(m.problems) do
    local remedy = text:match "has no code for compute capability [%d.]+; (.*)$"
    if remedy then
      found.problem("libraries.no_kernels", "no kernel runs on the GPU", text, remedy)
    else
      found.warning("peers.failed", "a copy failed", text, "a GPU without free memory is in use: see nvidia-smi; else "
        .. "luminary doctor --only gpu,libraries")
    end
  end
  between_gpus(found, m)
  to_the_host(found, m)
  report_pin_memory(found, m)
end

return {{"measure", measure}}
