--- Runs `luminary doctor`, which looks for frequent causes of failures on this machine.
---
--- A subject has a name for --only, a title, and files of probes {name, f(found)}. A probe reports findings by
--- found.problem, found.warning, found.note or found.ok(id, title, reason, remedy): the id never changes, the reason is
--- the observation and its source, the remedy says what to do. Unreadable facts are notes, "not known".
--- found.ok_if_clean does nothing if the probe has reported something else.
local lists = require "luminary.base.lists"
local terminal = require "luminary.base.terminal"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"
local flags = require "luminary.cli.command_options"
local reach = require "luminary.cli.doctor.other_machines"
local report = require "luminary.cli.doctor.report"

local doctor = {}

local SUBJECTS = {"gpu", "libraries", "pci", "peers", "host", "cores", "network", "reach", "environment"}
local CONTENTS = {
  gpu = {"GPUs and their driver", "nvidia_driver", "gpu_state"},
  libraries = {"libraries", "libraries"},
  pci = {"PCI: IOMMU and ACS", "pci"},
  peers = {"copies, measured", "copy_speed"},
  host = {"memory and limits", "memory_and_limits"},
  cores = {"cores and threads", "cores_and_threads"},
  network = {"network", "network"},
  reach = {"other machines (--with)"},
  environment = {"environment", "environment_variables"},
}

local USAGE = [[
usage: luminary doctor [option ...]

Looks for what keeps training from running, or makes it hang or slow: on this machine, and on the way to others.

  --only SUBJECTS   some of these, with commas between:
                      gpu          NVIDIA's driver: there, new enough, one version, usable; errors it logged
                      libraries    whether luminary's libraries, CUDA, cuDNN and NCCL load and fit together
                      pci          IOMMU and ACS, which make copies between GPUs hang at 100 % utilization
                      peers        speed of copies between GPUs, and from pinned memory: measured
                      host         /dev/shm, locked memory, open files, memory, swap
                      cores        cores and threads: affinity, quota, OMP_NUM_THREADS, NUMA
                      network      interfaces (NCCL's and ours), names, ports, RDMA, firewall
                      environment  variables that are easily forgotten
  --with H:P        also connect to another machine's port P ([::1]:P for IPv6; several with commas between)
  --listen P        instead of looking for anything, answer --with of other machines; reports round trip and bandwidth
  --json            one object: version, host, kernel, seconds, exit_code, counts, and findings, each with id, subject,
                    severity (problem, warning, note, ok), title, reason and remedy
  --verbose         show what is fine, too
  --help            print this

Nothing is changed. As root it sees more: ACS, the kernel's log, the firewall. Exit code: 0 if there is no problem
(warnings and notes do not count), 1 if there is one, 2 for wrong usage.
]]

-- ---- options

-- Checks the options, and splits those with commas into lists. Returns an error message, or nil.
local function read_doctor_options(o, at, args)
  if args[at] then return ("unrecognized argument '%s'"):format(args[at]) end
  local known = lists.set(SUBJECTS)
  for name, row in pairs {
    only = {function(part) return known[part] end,
      "--only: unknown subject '%s'; subjects are " .. table.concat(SUBJECTS, ", ")},
    with = {reach.split, "--with must be host:port or [address]:port, got '%s'"},
  } do
    o[name] = o[name] and lists.parts(o[name] .. ",", "%s*([^,]-)%s*,")
    for _, part in ipairs(o[name] or {}) do
      if not row[1](part) then return row[2]:format(part) end
    end
  end
end

-- ---- probing

-- Returns the functions by which a probe adds to findings.
local function collector(findings, subject)
  local found, is_clean = {}, true
  for severity in pairs(report.rank) do
    found[severity] = function(id, title, reason, remedy)
      is_clean = is_clean and severity == "ok"
      findings[#findings + 1] = {
        id = id, subject = subject, severity = severity, title = report.clean(title),
        reason = report.clean(reason or ""), remedy = report.clean(remedy or ""),
      }
    end
  end
  function found.ok_if_clean(...)
    if is_clean then found.ok(...) end
  end
  return found
end

-- Returns the probes of a subject, in order.
local function probes_of(name, o)
  if name == "reach" then return reach.probes_of(o.with) end
  local list = {}
  for i = 2, #CONTENTS[name] do lists.append(list, require("luminary.cli.doctor." .. CONTENTS[name][i])) end
  return list
end

local function examine(o)
  local findings, subjects, requested = {}, {}, lists.set(o.only or SUBJECTS)
  requested.reach = o.with ~= nil
  for _, name in ipairs(SUBJECTS) do
    if requested[name] then
      subjects[#subjects + 1] = {name = name, title = CONTENTS[name][1]}
      for _, probe in ipairs(probes_of(name, o)) do
        local found = collector(findings, name)
        local ok, problem = pcall(probe[2], found)
        if not ok then
          found.note(name .. ".failed", ("the check '%s' did not come to an end"):format(probe[1]), tostring(problem),
            "that is a fault of luminary's; please report it with this text")
        end
      end
    end
  end
  return findings, subjects
end

--- Runs the command on args from `first` on; returns the exit status.
function doctor.main(args, first)
  local o, status = flags.read("doctor", USAGE, args, first, {v = {same = "verbose"}}, read_doctor_options)
  if not o then return status end
  if o.listen then return reach.listen(o.listen) end
  local began = machine.now()
  local findings, subjects = examine(o)
  local code = report.count(findings).problem > 0 and 1 or 0
  local about = {
    version = require "luminary.version", host = report.clean(facts.hostname() or "this host"), code = code,
    kernel = report.clean("Linux " .. (machine.read_word "/proc/sys/kernel/osrelease" or "?")),
    seconds = machine.now() - began,
  }
  local text = o.json and report.json(about, findings)
    or report.text(about, subjects, findings, o.verbose, terminal.has_color())
  local written, why = io.stdout:write(text)
  if written then written, why = io.stdout:flush() end
  if written then return code end
  io.stderr:write("luminary doctor: the report could not be written: ", why, "\n")
  return 1
end

return doctor
