--- Declares the environment variables of luminary. C code and the library read them by this table; `luminary help
--- environment` and the reference print it. It requires no other file of the library.
local entries = require "luminary.base.entry_reader"

local list, variable = entries.of("variable", {
  help = "string",     -- effect of the variable, one sentence without a period
  one_of = "table?",   -- allowed values; others are reported and ignored
  default = "string?", -- the behavior if it is not set
  carried = "boolean?", -- true if `luminary run --backend mpi --hosts` exports it to other hosts
  doctor_warning = "table?", -- a finding of `luminary doctor` if it is set: {values (nil: any), severity, effect}
})

-- ---- jobs of many ranks

variable "LM_TOKEN" {
  help = "The job's secret, by which its ranks authenticate to each other",
  default = "made by `luminary run` for one node",
}
variable "LM_JOB" {
  help = "The job's name, which distinguishes jobs that share a rendezvous",
  default = "made by the launcher",
}
variable "LM_RENDEZVOUS" {
  help = "The default of init_method, where the ranks meet: tcp://host:port, file:///path",
  default = "MASTER_ADDR and MASTER_PORT",
}
variable "LM_BACKEND" {
  help = "The default backend of init_process_group()",
  default = "cpu:gloo,cuda:nccl if each rank has a GPU, else gloo",
}
variable "LM_HEARTBEAT_TIMEOUT" {
  help = "Seconds without a sign of life after which a rank is declared dead; 0: never", default = "10", carried = true,
}
variable "LM_SOCKET_IFNAME" {
  help = "The network interface to use: prefixes of names (eth0,ib), an exact name (=eth0), or prefixes to exclude "
    .. "(^docker,lo)",
  default = "the interface of the default route", carried = true,
}
variable "LM_NCCL_REGISTER" {
  help = "1: gradient buckets on GPUs are in memory that is registered with NCCL 2.19 or later", one_of = {"0", "1"},
  default = "0", carried = true,
}
variable "LM_SHM" {
  help = "0: ranks of one host communicate by sockets instead of shared memory", one_of = {"0", "1"}, default = "1",
  carried = true,
  doctor_warning = {{["0"] = true}, "warning", "ranks of one machine communicate by sockets instead of shared memory"},
}
variable "LM_HOOK_IMPORT" {
  help = "0: no call of Open MPI 5 is redirected; its first use ends the process's connection to PMIx instead",
  one_of = {"0", "1"}, default = "1", carried = true,
}
variable "LM_ERROR_FILE" {
  help = "The file to which a failing rank writes its error as JSON, for its launcher",
  default = "set by `luminary run`",
}
variable "LM_RESTART_COUNT" {
  help = "How often `luminary run` has started all ranks again, after a failure or for another number of nodes",
  default = "set by `luminary run`",
}

-- ---- devices and speed

variable "LM_CPU_LEVEL" {
  help = "The highest instruction set of kernels: 0 any x86-64, 1 AVX2, 2 AVX-512", one_of = {"0", "1", "2"},
  default = "the CPU's", doctor_warning = {nil, "note", "kernels for an older CPU may be in use"},
}
variable "LM_CACHE_BYTES" {
  help = "The bytes of the last-level cache; results above a quarter go past it to memory, and while Lua's heap is "
    .. "small its collector runs once for each eighth to quarter of it of new tensors",
  default = "the system's, at most 32 MB",
}
variable "LM_SAVE_TIMEOUT" {
  help = "Seconds without a written byte after which the end of the process stops waiting for a save in the background",
  default = "60", carried = true,
}
variable "LM_CONV" {
  help = "The algorithm of convolutions on the CPU", one_of = {"auto", "direct", "winograd", "onednn"},
  default = "auto",
}
variable "LM_CUDA_VIRTUAL" {
  help = "The number of virtual devices of each GPU, to test programs for several GPUs", default = "1",
  doctor_warning = {nil, "warning", "devices are virtual: several share one GPU"},
}
variable "LM_CUDA_WITHOUT" {
  help = "Libraries not to use, separated by commas: cufft and cusolver (the CPU computes instead), cudnn_rnn "
    .. "(recurrent layers are computed step by step), nvrtc (lm.compile writes no kernels)", carried = true,
  doctor_warning = {nil, "note", "the functions of these libraries are computed in other ways, which are slower"},
}
variable "LM_SYNC" {
  help = "1: wait for each op on a GPU, so that an error is raised at its line", one_of = {"0", "1"}, default = "0",
  doctor_warning = {{["1"] = true}, "warning", "the program waits for every op, to find one that fails; this is slow"},
}

-- ---- files and the prompt

variable "LUMINARY_DATA" {help = "The folder of data sets", default = "/usr/share/datasets", carried = true}
variable "LM_KERNEL_CACHE" {
  help = "The folder of kernels that lm.compile has compiled for a GPU", default = "~/.cache/luminary",
}
variable "LUMINARY_HISTORY" {help = "The history file of the prompt", default = "~/.luminary_history"}
variable "LM_BACKEND_PATH" {
  help = "Folders of backend plug-ins, luminary_backend_<name>.so, separated by colons", carried = true,
}
variable "LM_GROUP_PATH" {
  help = "Folders of process group plug-ins, luminary_group_<name>.so, separated by colons", carried = true,
}
variable "LM_LUA_FOLDER" {
  help = "The folder with luminary/init.lua, for programs that use luminary.h",
  default = "share/lua/5.1 above the library, or lua of a checkout", carried = true,
}

-- ---- debugging

variable "LM_LOG" {
  help = "What to log to standard error, separated by commas: op, dist, alloc, trace (the library's own frames in the "
    .. "tracebacks of `luminary FILE` and the prompt), all", carried = true,
}
variable "LM_PORT" {
  help = "1: warn of mistakes in code ported from PyTorch that are not errors: ids or labels that seem to count from "
    .. "0, the globals True, False and None, and once a dim of 1, PyTorch's 0, for a tensor of 2 dims or more; "
    .. "lm.set_warnings(\"port\") does the same; 2: of each line with such a dim",
  one_of = {"0", "1", "2"}, default = "0", carried = true,
  doctor_warning = {
    {["1"] = true, ["2"] = true}, "note", "each op checks its arguments for dims and ids of PyTorch; this is slower",
  },
}
variable "LM_GUARD_BLOCKS" {
  help = "1: with AddressSanitizer, detect kernels that access memory outside of their tensor; else allocate each "
    .. "tensor on a GPU separately, for compute-sanitizer",
  one_of = {"0", "1"}, default = "0",
  doctor_warning = {{["1"] = true}, "warning", "every block of memory is guarded, which is only for debugging"},
}

-- ---- building

variable "LM_CUDA" {
  help = "While building: 0 leaves the CUDA backend out, 1 builds it where there is nvcc but no GPU",
  one_of = {"0", "1"}, default = "1 if nvcc and a GPU are found",
  doctor_warning = {{["0"] = true}, "note", "it only leaves the CUDA backend out of a build; to hide GPUs from a "
    .. "program set CUDA_VISIBLE_DEVICES="},
}

--- Returns the table as lines of text, or in Markdown.
function list.text(markdown)
  local lines = {}
  if markdown then lines[1] = "| variable | effect | default |\n|---|---|---|" end
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
