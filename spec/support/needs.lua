--- Tests for what specs need of a machine and not every one has, a container least of all: nil where it is there, else
--- the reason to be pending.
---
---   local why = needs.ipv6()
---   if why then return pending(why) end
local needs = {}

local function succeeds(command) return os.execute("( " .. command .. " ) >/dev/null 2>&1 </dev/null") == 0 end

local function status(field)
  for line in io.lines "/proc/self/status" do
    local value = line:match("^" .. field .. ":%s*(%S+)")
    if value then return value end
  end
end

-- Bits of the kernel's capability sets.
local CAPABILITIES = { CAP_SETGID = 6, CAP_SETUID = 7, CAP_NET_ADMIN = 12, CAP_SYS_ADMIN = 21 }

local function capable(...)
  local effective = tonumber(status("CapEff"):sub(-8), 16)
  for _, name in ipairs { ... } do
    if bit.band(effective, bit.lshift(1, CAPABILITIES[name])) == 0 then
      return (status "Uid" == "0" and "needs root's capability %s" or "needs root (%s)"):format(name)
    end
  end
end

--- Makes one pending spec with the reason `why`, if there is one, of a block without others; returns it.
function needs.lacks(it, pending, why)
  if why then it("has what it needs", function() return pending(why) end) end
  return why
end

function needs.program(...)
  for _, name in ipairs { ... } do
    if not succeeds("command -v " .. name) then return "needs the program " .. name end
  end
end

--- Kernels of an instruction level (LM_CPU_LEVEL), which a build for one newer level lacks.
function needs.cpu_level(level)
  for _, accepted in ipairs(require "spec.support.cpu_levels") do
    if accepted == level then return end
  end
  return ("needs kernels for LM_CPU_LEVEL=%d, which this build for newer CPUs lacks"):format(level)
end

local lacking -- why, by ending

--- Decoders of WebP, GIF and TIFF, or of the ending alone; a build may lack them.
function needs.images(ending)
  if not lacking then
    local lm = require "luminary"
    local golden = lm.load "spec/golden/_images.safetensors"
    lacking = {}
    for of, name in pairs { webp = "lossy.webp", gif = "palette.gif", tiff = "plain.tiff" } do
      local ok, said = pcall(lm.vision.Encoded, golden[name])
      if not ok then lacking[of] = said:gsub("^.*'image': ", "") end
    end
  end
  return lacking[ending or next(lacking) or ""]
end

--- oneDNN's plug-in, which a build may lack.
function needs.onednn()
  local core = assert(package.searchpath("luminary.core", package.cpath))
  local file = io.open((core:gsub("[^/]+$", "luminary_cpu_onednn.so")))
  if not file then return "needs oneDNN" end
  file:close()
end

--- The reader of ONNX files, which a build without protobuf-c lacks.
function needs.onnx()
  local core = require "luminary.core"
  local ok, why = pcall(core.onnx_read, core.tensor({8, 8}, {dtype = "uint8"}))
  return not ok and why:find "protobuf" and why or nil
end

--- Tests for network namespaces with interfaces in them (spec/support/netns.lua).
function needs.namespaces()
  local why = needs.program("ip", "unshare") or capable("CAP_NET_ADMIN", "CAP_SYS_ADMIN")
  if why then return why .. ", for network namespaces" end
  if not succeeds "env -u LD_PRELOAD unshare -n -m -u true" then return "needs network namespaces: unshare fails" end
end

--- Mounts of this process's own.
function needs.mounts()
  local why = needs.program("mount", "unshare") or capable "CAP_SYS_ADMIN"
  if why then return why .. ", for mounts" end
  if not succeeds "env -u LD_PRELOAD unshare -m mount -t tmpfs none /mnt" then
    return "needs mounts: mount fails"
  end
end

--- Daemons that drop what root has and, before version 23, want cgroups even where nothing is done with them.
function needs.slurm()
  local why = needs.program("slurmctld", "slurmd", "srun", "sbatch") or capable("CAP_SETGID", "CAP_SETUID")
  if not why and needs.slurm_version() < 23 and not succeeds "mountpoint -q /sys/fs/cgroup" then
    why = "needs cgroups (/sys/fs/cgroup)"
  end
  return why and why .. ", for Slurm"
end

function needs.slurm_version()
  local pipe = io.popen "slurmd -V"
  local version = pipe:read("*a"):match "%d+"
  pipe:close()
  return tonumber(version) or 0
end

function needs.ipv6()
  if not succeeds "grep -q 00000000000000000000000000000001 /proc/net/if_inet6" then return "needs IPv6 (::1)" end
end

--- Tests for names of the loopback and of this machine, as mpirun and Slurm look them up.
function needs.names()
  local pipe = io.popen "uname -n"
  local host = pipe:read "*l"
  pipe:close()
  for _, name in ipairs { "localhost", host } do
    if not succeeds("timeout 5 getent hosts '" .. name .. "'") then
      return ("needs a name that is not known here: '%s' (/etc/hosts)"):format(name)
    end
  end
end

return needs
