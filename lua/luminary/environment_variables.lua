--- The environment variables of luminary. C code and the library read them by this table; `luminary help environment`
--- and docs/status/environment_variables.md print it. It requires no other file of the library.
local entries = require "luminary.base.entry_reader"

local list, variable = entries.of("variable", {
  help = "string",     -- its effect, one sentence without a dot
  one_of = "table?",   -- its values; others are reported and ignored
  default = "string?", -- the behavior if it is not set
  carried = "boolean?", -- whether `luminary run --backend mpi --hosts` exports it to other hosts
  doctor_warning = "table?", -- of `luminary doctor` if it is set: {values (nil: any), severity, effect}
})

-- ---- jobs of many ranks

variable "LM_TOKEN" {
  help = "The job's secret, which its ranks prove to each other that they know",
  default = "made by `luminary run` for one node",
}
variable "LM_JOB" {
  help = "The job's name, which keeps jobs that share a rendezvous apart",
  default = "made by the launcher",
}
variable "LM_RENDEZVOUS" {
  help = "Where the ranks meet, as init_method says it: tcp://host:port, file:///path",
  default = "MASTER_ADDR and MASTER_PORT",
}
variable "LM_BACKEND" {
  help = "The backend of init_process_group() without one",
  default = "cpu:gloo,cuda:nccl where each rank has a card, else gloo",
}
variable "LM_HEARTBEAT_TIMEOUT" {
  help = "Seconds of silence after which a rank is given up; 0: never", default = "10", carried = true,
}
variable "LM_SOCKET_IFNAME" {
  help = "The network interface to use: names that begin so (eth0,ib), that very one (=eth0), any but those "
    .. "(^docker,lo)",
  default = "the one with the route out", carried = true,
}
variable "LM_SHM" {
  help = "0: ranks of one host talk through sockets instead of shared memory", one_of = {"0", "1"}, default = "1",
  carried = true,
  doctor_warning = {{["0"] = true}, "warning", "ranks of one machine talk through sockets instead of shared memory"},
}
variable "LM_ERROR_FILE" {
  help = "Where a rank that fails leaves its error as JSON, for its launcher", default = "set by `luminary run`",
}
variable "LM_RESTART_COUNT" {
  help = "How often `luminary run --max-restarts` has restarted the job",
  default = "set by it",
}

-- ---- devices and speed

variable "LM_CPU_LEVEL" {
  help = "The kernels to use at most: 0 any x86-64, 1 AVX2, 2 AVX-512", one_of = {"0", "1", "2"},
  default = "what this CPU has", doctor_warning = {nil, "note", "kernels for an older CPU than this one may be in use"},
}
variable "LM_CONV" {
  help = "Which algorithm convolutions on the CPU take", one_of = {"auto", "direct", "winograd"}, default = "auto",
}
variable "LM_CUDA_VIRTUAL" {
  help = "How many devices to make of each GPU, to try what is for several", default = "1",
  doctor_warning = {nil, "warning", "devices are virtual: several share one GPU"},
}
variable "LM_CUDA_WITHOUT" {
  help = "Libraries, with commas between, to do without: cufft and cusolver, whose work the CPU does, and cudnn_rnn: "
    .. "recurrent layers go step by step", carried = true,
  doctor_warning = {nil, "note", "what these libraries would do on the GPU is done otherwise, and slower"},
}
variable "LM_SYNC" {
  help = "1: wait for each op on a GPU, so that an error comes at its line", one_of = {"0", "1"}, default = "0",
  doctor_warning = {{["1"] = true}, "warning", "every op is waited for, to find the one that fails: slow"},
}

-- ---- files and the prompt

variable "LUMINARY_DATA" {help = "The folder of data sets", default = "/usr/share/datasets", carried = true}
variable "LUMINARY_HISTORY" {help = "The prompt's file of lines typed before", default = "~/.luminary_history"}
variable "LM_BACKEND_PATH" {
  help = "Folders, with colons between, of backends built elsewhere: luminary_backend_<name>.so", carried = true,
}
variable "LM_GROUP_PATH" {
  help = "Folders, with colons between, of process groups built elsewhere: luminary_group_<name>.so", carried = true,
}

-- ---- debugging

variable "LM_LOG" {
  help = "What to tell on standard error, with commas between: op, dist, alloc, trace (the library's own frames "
    .. "in the tracebacks of `luminary FILE` and the prompt), all", carried = true,
}
variable "LM_PORT" {
  help = "1: warn of what code ported from PyTorch gets wrong without an error: a dim of 1 (PyTorch's 0), given for a "
    .. "tensor of 2 dims or more, ids or labels that seem to count from 0, and the globals True, False and None; "
    .. "lm.set_warnings(\"port\") does the same",
  one_of = {"0", "1"}, default = "0", carried = true,
  doctor_warning = {
    {["1"] = true}, "note", "each op looks at its arguments for dims and ids carried over from PyTorch: slower",
  },
}
variable "LM_GUARD_BLOCKS" {
  help = "1: in a build with AddressSanitizer, stop kernels where they leave their tensor; in others, give each tensor "
    .. "on a GPU an allocation of its own, whose bounds compute-sanitizer knows",
  one_of = {"0", "1"}, default = "0",
  doctor_warning = {{["1"] = true}, "warning", "every block of memory is guarded: for finding faults only"},
}
variable "LM_DOCTOR_ROOT" {help = "A folder in which `luminary doctor` sees another machine's files", default = "/"}
variable "LM_DOCTOR_BIN" {help = "A folder whose commands `luminary doctor` takes before the PATH's"}
variable "LM_DOCTOR_LIMIT" {
  help = "Seconds for which `luminary doctor` waits for a command at most",
  default = "each command's own",
}

-- ---- building

variable "LM_CUDA" {
  help = "0, while building: leave the CUDA backend out", one_of = {"0", "1"}, default = "1 where there is nvcc",
  doctor_warning = {{["0"] = true}, "note", "it only leaves the CUDA backend out of a build; to hide the GPUs from a "
    .. "program set CUDA_VISIBLE_DEVICES="},
}

--- Returns the table as lines of text, or in Markdown.
function list.text(markdown)
  local lines = {}
  if markdown then lines[1] = "| variable | what it does | without it |\n|---|---|---|" end
  for _, v in ipairs(list) do
    local values = v.one_of and (" (%s)"):format(table.concat(v.one_of, ", ")) or ""
    if markdown then
      lines[#lines + 1] = ("| `%s` | %s%s | %s |"):format(v.name, v.help, values, v.default or "")
    else
      lines[#lines + 1] = ("%s%s\n    %s%s"):format(v.name, values, v.help, v.default and "; else " .. v.default or "")
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

return list
