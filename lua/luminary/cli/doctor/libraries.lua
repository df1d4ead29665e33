--- Checks that luminary's libraries load, that CUDA then finds devices, and that versions fit; finds several copies of
--- a library.
local lists = require "luminary.base.lists"
local machine = require "luminary.cli.doctor.files_and_commands"
local facts = require "luminary.cli.doctor.machine_facts"

-- ---- loading

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
        .. (machine.env "CUDA_VISIBLE_DEVICES" and "'" .. machine.env "CUDA_VISIBLE_DEVICES" .. "'" or "not set")
        .. ")")
  end
end

-- ---- several copies

local WATCHED = {"libcudart", "libcudnn", "libcublasLt", "libnccl"}

-- Returns the folders that the loader searches, in order: {path, override = true for one of LD_LIBRARY_PATH}. A folder
-- that does not respond, on a network that is down, is reported and omitted.
local function folders(found)
  local list, seen = {}, {}
  for path in (machine.env "LD_LIBRARY_PATH" or ""):gmatch("[^:]+") do
    path = path:gsub("/+$", "")
    if not seen[path] and machine.command("ls", {machine.path(path)}, 3).timed_out then
      found.problem("libraries.folder_hangs", "a folder in LD_LIBRARY_PATH does not answer", path
        .. ": every program looks for its libraries there first, and hangs",
        "take it out of LD_LIBRARY_PATH, or remount it (df, dmesg)")
    elseif not seen[path] then
      list[#list + 1] = {path = path, override = true}
    end
    seen[path] = true
  end
  for path in machine.command("ldconfig", {"-p"}).out:gmatch("=>%s*(/[^\n]*)/[^/\n]*") do
    if not seen[path] then list[#list + 1] = {path = path} end
    seen[path] = true
  end
  return list
end

-- Returns the files behind a library's name, each once: {path, version = the one in its name, override = true if
-- LD_LIBRARY_PATH selects it}.
local function copies(name, all)
  local list, seen = {}, {}
  for _, folder in ipairs(all) do
    for _, file in ipairs(machine.list(folder.path)) do
      local digits = file:match("^" .. name .. "%.so%.(%d[%d.]*)$")
      local real = digits and machine.resolve_link(folder.path .. "/" .. file)
      if real and not seen[real] then
        seen[real] = true
        list[#list + 1] = {
          path = folder.path .. "/" .. file, version = real:match("%.so%.([%d.]+)$") or digits,
          override = folder.override,
        }
      end
    end
  end
  return list
end

local function report_several_versions(found)
  local all = folders(found)
  for _, name in ipairs(WATCHED) do
    local list = copies(name, all)
    if not lists.every(list, function(one) return one.version == list[1].version end) then
      local texts = lists.map(list, function(one) return ("%s (%s)"):format(one.path, one.version) end)
      local overridden = lists.find(list, function(one) return one.override end)
      found[overridden and "warning" or "note"]("libraries.several", ("several versions of %s"):format(name),
        ("%s; the first one found is loaded, by luminary and by any other program"):format(table.concat(texts, ", ")),
        overridden and "take the folders that do not belong to this CUDA out of LD_LIBRARY_PATH (packages of Python's "
          .. "pip bring their own copies, which only they need)"
          or "fine as long as the right one comes first (luminary doctor --verbose shows which is loaded); "
            .. "else remove one")
    end
  end
  found.ok_if_clean("libraries.single", "one version of each CUDA library", table.concat(WATCHED, ", "))
end

-- ---- NCCL

-- Returns the CUDA version with which an NCCL file was built, from its line such as "NCCL version 2.28.9+cuda13.0".
local function built_with(path)
  local words = {"-a", "-o", "-m", "1", "NCCL version [0-9.]*+cuda[0-9.]*", machine.path(path)}
  return machine.command("grep", words, 10).out:match("NCCL version [%d.]+%+cuda([%d.]+)")
end

local function nccl(found)
  local v = facts.versions()
  if v.core ~= "yes" then return end
  local cards, version = facts.card_count(), facts.dotted(v.nccl)
  if not version then
    if cards > 1 then
      found.warning("libraries.no_nccl", "no NCCL for several GPUs", ("%d GPUs, and no libnccl.so.2"):format(cards),
        "install it (sudo apt install libnccl2) and rebuild luminary; without it ranks on GPUs talk over gloo, "
          .. "through the host's memory")
    end
    return
  end
  local path = lists.find(v.loaded, function(one) return one:find("/libnccl", 1, true) end)
  local cuda_version = built_with(path or "")
  local runtime = facts.dotted(v.cuda, true)
  if cuda_version and runtime and cuda_version:match("^%d+") ~= runtime:match("^%d+") then
    return found.problem("libraries.nccl_cuda", "NCCL was built for another CUDA",
      ("%s is NCCL %s for CUDA %s, the runtime is CUDA %s"):format(path, version, cuda_version, runtime),
      ("install NCCL for CUDA %s: sudo apt install 'libnccl2=*+cuda%s'"):format(runtime:match("^%d+"), runtime))
  end
  found.ok("libraries.nccl", "NCCL loads", ("%s%s%s"):format(version,
    cuda_version and ", for CUDA " .. cuda_version or "", path and ", " .. path or ""))
end

local function loaded(found)
  local v = facts.versions()
  if #v.loaded > 0 then found.ok("libraries.loaded", "what is loaded", table.concat(v.loaded, ", ")) end
end

return {{"loading", loading}, {"cuda", cuda}, {"several", report_several_versions}, {"nccl", nccl}, {"loaded", loaded}}
