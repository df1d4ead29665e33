--- Checks that luminary's own libraries load, and that CUDA then finds devices.
local outside = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

local function loading(found)
  local v = facts.versions()
  if v.missing then
    return found.note("libraries.unknown", "not known whether the libraries load", "no child process could be started",
      "")
  elseif v.timed_out then
    return found.problem("libraries.hang", "loading the libraries hangs",
      ("it did not end within %g s; the last step was: %s"):format(v.timed_out, v.step or "starting"),
      "a driver that does not answer (see dmesg for NVRM and Xid) needs a reboot; a network folder that does not "
        .. "answer, in LD_LIBRARY_PATH or LUA_CPATH, has to go")
  elseif v.core_problem then
    return found.problem("libraries.core", "luminary's own library does not load", v.core_problem,
      "ldd on the file named says which library is missing: install it, or set LD_LIBRARY_PATH to its folder; "
        .. "scripts/setup installs all that is needed")
  elseif v.core ~= "yes" or v.step ~= "end" then
    return found.problem("libraries.crash", "loading the libraries ends the process",
      ("exit code %d after the step: %s; output: %s"):format(v.code, v.step or "starting", v.out:match("([^\n]*)\n?$")),
      "an incompatible library is loaded: see which with LD_DEBUG=libs luminary doctor --only libraries; take "
        .. "LD_PRELOAD and foreign folders in LD_LIBRARY_PATH away")
  end
  found.ok("libraries.core_loads", "luminary's library loads", "luminary.core")
end

local function cuda(found)
  local v = facts.versions()
  if v.core ~= "yes" then return end
  local count = tonumber(v.count) or 0
  if count > 0 then
    found.ok("libraries.cuda", "CUDA works", ("%d devices, runtime %s, cuDNN %s"):format(count,
      facts.dotted(v.cuda, true) or "?", facts.dotted(v.cudnn) or "?"))
  elseif facts.card_count() == 0 then
    found.ok("libraries.no_cuda", "CUDA is not in use", v.why or "no GPU")
  elseif not v.cuda then
    found.problem("libraries.no_backend", "there are GPUs, but luminary's CUDA backend is missing or does not load",
      v.why or "luminary_backend_cuda.so is not beside the core",
      "build with nvcc and cuDNN present (cmake says 'the CUDA backend is left out' and why), or make its libraries "
        .. "be found: ldd luminary_backend_cuda.so")
  else
    found.problem("libraries.cuda_fails", "there are GPUs, but CUDA finds none", v.why or "no reason was given",
      "see the findings about the driver above; CUDA_VISIBLE_DEVICES must not hide them (it is "
        .. (outside.env "CUDA_VISIBLE_DEVICES" and "'" .. outside.env "CUDA_VISIBLE_DEVICES" .. "'" or "not set")
        .. ")")
  end
end

return {{"loading", loading}, {"cuda", cuda}}
