-- Sets the environment of both sides of a bench, and runs processes that answer lines.
local workers = {}

local LEVELS = { -- for PyTorch, oneDNN, MKL and OpenBLAS
  ["0"] = {"default", "SSE41", "SSE4_2", "Nehalem"},
  ["1"] = {"avx2", "AVX2", "AVX2", "Haswell"},
}

local LIMITS = "ATEN_CPU_CAPABILITY=%s ONEDNN_MAX_CPU_ISA=%s MKL_ENABLE_INSTRUCTIONS=%s OPENBLAS_CORETYPE=%s "

--- Returns the variables before a command: its threads, and the instructions that $LM_CPU_LEVEL allows to it.
function workers.env(threads)
  local env, level = ("OMP_NUM_THREADS=%d "):format(threads), LEVELS[os.getenv "LM_CPU_LEVEL"]
  return level and env .. LIMITS:format(unpack(level)) or env
end

--- Returns the variables before the command of a peer that has no switch for instructions: with LM_CPU_LEVEL=1, a
--- preloaded library, compiled into the folder, that hides AVX-512 from it.
function workers.hidden_env(here, folder, refuse)
  local level = os.getenv "LM_CPU_LEVEL"
  if not LEVELS[level] then return "" end
  if level ~= "1" then refuse("LM_CPU_LEVEL must be 1 for this peer, got %s", level) end
  local library = workers.quote(folder .. "/hide_avx512.so")
  local compile = ("cc -O2 -shared -fPIC -o %s %s"):format(library, workers.quote(here .. "/hide_avx512.c"))
  if os.execute(compile) ~= 0 then refuse "hide_avx512.c does not compile; cc is needed" end
  return "LD_PRELOAD=" .. library .. " "
end

--- Returns a sentence that names what limits the instructions of each library of the peer; nil without a limit.
function workers.limits()
  local name = os.getenv "LM_CPU_LEVEL"
  local level = LEVELS[name]
  if not level then return end
  return ("LM_CPU_LEVEL=%s limits Luminary; of PyTorch, ATEN_CPU_CAPABILITY=%s its own kernels and the vectors that "
    .. "torch.compile writes (whose C++ compiler has no limit: -march=native), ONEDNN_MAX_CPU_ISA=%s oneDNN, "
    .. "MKL_ENABLE_INSTRUCTIONS=%s MKL, OPENBLAS_CORETYPE=%s OpenBLAS."):format(name, unpack(level))
end

function workers.quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

--- Ends by refuse, of luminary.cli.script_options, unless the peer is a Python that has torch.
function workers.check_peer(peer, refuse)
  if os.execute(workers.quote(peer) .. " -c 'import torch' >/dev/null 2>&1") ~= 0 then
    refuse("--peer: %s is not a Python that has torch", peer)
  end
end

--- Starts a command: `tell(line)` writes it a line, `ask(line)` returns the line that it answers too.
function workers.start(command)
  local fifo = os.tmpname()
  os.remove(fifo)
  assert(os.execute("mkfifo " .. workers.quote(fifo)) == 0, "mkfifo failed")
  local input = assert(io.popen(command .. " >" .. workers.quote(fifo), "w"))
  local output = assert(io.open(fifo))
  os.remove(fifo)
  local worker = {}
  function worker.tell(line)
    input:write(line, "\n")
    input:flush()
  end
  function worker.ask(line)
    worker.tell(line)
    return output:read "*l" or error(("worker ended at %s: %s"):format(line, command))
  end
  function worker.close() input:close() output:close() end
  return worker
end

--- Starts PyTorch's worker, and one with tcmalloc (not its slow debugging variant) if the machine has it; returns a
--- list of {tag, worker}. A tag goes behind the names of a worker's variants. plain: without tcmalloc.
function workers.peers(env, command, plain)
  local peers = {{tag = "", worker = workers.start(env .. command)}}
  if plain then return peers end
  local find = io.popen "ldconfig -p | grep -Eo '/.*/libtcmalloc(_minimal)?\\.so\\.[0-9]+' | head -n 1"
  local tcmalloc = find:read "*l"
  find:close()
  if tcmalloc then
    peers[2] = {tag = "+tcmalloc", worker = workers.start(env .. "LD_PRELOAD=" .. tcmalloc .. " " .. command)}
  else
    io.stderr:write "bench: no libtcmalloc here (Debian: libtcmalloc-minimal4); the peer runs without it\n"
  end
  return peers
end

--- Returns a function that appends a row, a table, to a file of JSON lines; without a path it does nothing.
function workers.report(path)
  if not path then return function() end end
  local encode = require "luminary.base.json_encode"
  local file = assert(io.open(path, "a"))
  return function(row) file:write(encode(row), "\n") file:flush() end
end

return workers
