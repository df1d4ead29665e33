--- Reads what a guest may not change in its host's process and Lua state, and works as guests do. A file of its own
--- that any host's Lua loads: dofile "spec/support/manners.lua".
---
---   local manners = dofile(…)
---   local before = manners.snapshot()
---   …
---   manners.differences(before) -- a text, "" for none
local ffi = require "ffi"
pcall(ffi.cdef, [[
  int sigaction(int, const void *, void *); int sigaltstack(const void *, void *);
  char *setlocale(int, const char *); int fegetenv(void *);
  int prctl(int, ...); long readlink(const char *, char *, size_t); int fcntl(int, int, ...);
  int rand(void); void srand(unsigned);
  void *opendir(const char *); int closedir(void *);
]])
pcall(ffi.cdef, "struct manners_dirent { uint64_t inode, offset; uint16_t length; uint8_t kind; char name[256]; };")
pcall(ffi.cdef, "struct manners_dirent *readdir(void *);")
pcall(ffi.cdef, "extern char **environ;")
local C = ffi.C
local manners = {}

local io, collectgarbage, debug = io, collectgarbage, debug

-- Returns a file of /proc as text; "" where there is none.
local function read(path)
  local file = io.open(path)
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text
end

-- Returns the names in a folder, sorted; opens no descriptor that stays.
local function names_in(path)
  local folder, list = C.opendir(path), {}
  if folder == nil then return list end
  local entry = C.readdir(folder)
  while entry ~= nil do
    local name = ffi.string(entry.name)
    if not name:find "^%." then list[#list + 1] = name end
    entry = C.readdir(folder)
  end
  C.closedir(folder)
  table.sort(list)
  return list
end

local function link(path)
  local text = ffi.new "char[4096]"
  local n = tonumber(C.readlink(path, text, 4096))
  return n >= 0 and ffi.string(text, n) or "closed"
end

--- Returns the names of this process's threads but the calling one's, sorted.
function manners.threads()
  local list, own = {}, link "/proc/thread-self":match "%d+$"
  for _, id in ipairs(names_in "/proc/self/task") do
    if id ~= own then list[#list + 1] = read("/proc/self/task/" .. id .. "/comm"):gsub("\n", "") end
  end
  table.sort(list)
  return list
end

--- Returns the counts that must not grow: kilobytes of memory, and numbers of descriptors, threads and mappings.
function manners.counts()
  return {
    memory = tonumber(read "/proc/self/status":match "VmRSS:%s*(%d+)"), descriptors = #names_in "/proc/self/fd" - 1,
    threads = #names_in "/proc/self/task", mappings = select(2, read "/proc/self/maps":gsub("\n", "")),
  }
end

local RESTORER = 0x04000000 -- a flag that the C library sets for itself
local FIELDS = "Name Umask Uid Gid Groups NoNewPrivs Seccomp Cpus_allowed_list CapInh CapPrm CapEff CapBnd CapAmb"

-- Notes the state of the process in `seen`, a text for each name.
local function look_at_process(seen)
  local action = ffi.new "uint64_t[32]"
  for signal = 1, 64 do
    ffi.fill(action, ffi.sizeof(action))
    if C.sigaction(signal, nil, action) == 0 then
      seen["signal " .. signal] = ("handler %x, flags %x"):format(tonumber(action[0]),
        bit.band(tonumber(action[17]), bit.bnot(RESTORER)))
    end
  end
  for name, value in read "/proc/thread-self/status":gmatch "([^\n:]+):%s*([^\n]*)" do
    -- The C library's own two signals, 32 and 33, are in no other state.
    if name:find "^Sig" and name ~= "SigQ" then seen[name] = value:sub(1, 7) .. "." .. value:sub(9) end
    if (" " .. FIELDS .. " "):find(" " .. name .. " ", 1, true) then seen[name] = value end
  end
  local i = 0
  while C.environ[i] ~= nil do
    local name, value = ffi.string(C.environ[i]):match "^([^=]*)=?(.*)$"
    seen["environment " .. name] = value
    i = i + 1
  end
  for category = 0, 12 do
    local text = C.setlocale(category, nil)
    seen["locale " .. category] = text ~= nil and ffi.string(text) or nil
  end
  if jit.arch == "x64" then
    local STICKY, env = 0x3f, ffi.new "uint32_t[16]" -- flags of what happened are no mode
    C.fegetenv(env)
    seen["x87 control"] = bit.band(env[0], 0xffff)
    seen["MXCSR"] = bit.band(env[7], bit.bnot(STICKY))
  end
  for fd = 0, 2 do
    seen["descriptor " .. fd] = ("%s, flags %d, status %d"):format(link("/proc/self/fd/" .. fd), C.fcntl(fd, 1),
      C.fcntl(fd, 3))
  end
  for line in read "/proc/self/limits":gmatch "[^\n]+" do seen["limit " .. line:sub(1, 25)] = line:sub(26) end
  seen.folder, seen.root = link "/proc/self/cwd", link "/proc/self/root"
  local PR = {dumpable = 3, keepcaps = 7, timerslack = 30}
  for name, number in pairs(PR) do seen["prctl " .. name] = C.prctl(number) end
  local number = ffi.new "int[1]"
  seen["prctl child subreaper"] = C.prctl(37, number) == 0 and number[0]
  local stack = ffi.new "uint64_t[3]"
  C.sigaltstack(nil, stack)
  seen["signals' stack"] = ("%x"):format(tonumber(stack[0]))
end

local path_of = {} -- maps a table to where it was found first, for reports

-- Notes the fields of a table, and of those in it, each table once. A table is named by its address: the order in which
-- tables are found changes with their sizes.
local function look_at_table(seen, t, path, done)
  if done[t] then return end
  done[t] = true
  path_of[t] = path_of[t] or path
  local mt = debug and debug.getmetatable and debug.getmetatable(t) or nil
  local address = tostring(t)
  if mt and mt.__tostring then address = path end
  seen[address .. " metatable"] = mt
  if type(mt) == "table" then look_at_table(seen, mt, path .. "'s metatable", done) end
  for k, v in next, t do
    if not (t == package.loaded and type(k) == "string" and k:find "^luminary") then
      seen[("%s %s (%s)"):format(address, tostring(k), path_of[t])] = v
      if type(v) == "table" then look_at_table(seen, v, path .. "." .. tostring(k), done) end
    end
  end
end

-- Returns a setting of the garbage collector, which stays.
local function setting(name)
  local value = collectgarbage(name, 100)
  collectgarbage(name, value)
  return value
end

-- Standard modules that a host may not have loaded before.
for name in ("bit jit ffi jit.opt jit.util jit.profile string.buffer table.new table.clear"):gmatch "%S+" do
  pcall(require, name)
end

local held = {} -- keeps functions and tables alive, so that no new one has an old one's address

local function look_at_lua(seen)
  look_at_table(seen, _G, "_G", {[held] = true, [manners] = true, [path_of] = true})
  if debug and debug.getmetatable then
    local ok, thread = pcall(coroutine.create, function() end) -- nginx allows none at its start
    for name, value in pairs {["nil"] = false, boolean = true, number = 1, string = "", ["function"] = print,
      thread = ok and thread, file = io.stdout} do
      if name == "nil" then value = nil end
      local mt = debug.getmetatable(value)
      seen["metatable of a " .. name] = mt
      if type(mt) == "table" then look_at_table(seen, mt, "metatable of a " .. name, {}) end
    end
    seen.hook, seen["hook's mask"] = debug.gethook()
  end
  seen["collector's pause"], seen["collector's step"] = setting "setpause", setting "setstepmul"
  seen.jit = table.concat({tostring(jit.status()), select(2, jit.status())}, " ")
end

local function seed()
  math.randomseed(4711)
  C.srand(4711)
end

--- Returns the state of the process and of this Lua state, and sets the seeds of both kinds of random numbers.
function manners.snapshot()
  local seen = {}
  look_at_process(seen)
  look_at_lua(seen)
  held[#held + 1] = seen
  seed()
  return seen
end

-- Returns the next numbers of each kind, for the seed that snapshot sets.
local function numbers() return ("%.17g %d"):format(math.random(), C.rand()) end

--- Returns what differs from a snapshot, a line each; "" if nothing does.
function manners.differences(before)
  local drawn = numbers()
  local now, lines = manners.snapshot(), {}
  if drawn ~= numbers() then lines[1] = "random numbers are others" end
  seed()
  for name, value in pairs(now) do
    if before[name] ~= value then lines[#lines + 1] = ("%s: was %s, is %s"):format(name, before[name], value) end
  end
  for name, value in pairs(before) do
    if now[name] == nil then lines[#lines + 1] = ("%s: was %s, is gone"):format(name, value) end
  end
  table.sort(lines)
  return table.concat(lines, "\n")
end

-- Returns a text for the threads that were started since.
local function new_threads(before)
  local had, list = {}, {}
  for _, name in ipairs(before) do had[name] = (had[name] or 0) + 1 end
  for _, name in ipairs(manners.threads()) do
    if (had[name] or 0) > 0 then had[name] = had[name] - 1 else list[#list + 1] = name end
  end
  return table.concat(list, " ")
end

--- Works as a guest does: requires, trains, draws, saves to the folder, calls lm.async, ends it. Calls report(text) for
--- each change of the host's that it sees, and for each step at which threads were started.
function manners.work(folder, report)
  local before, threads = manners.snapshot(), manners.threads()
  local function step(name)
    for line in manners.differences(before):gmatch "[^\n]+" do report(name .. ": " .. line) end
    local started = new_threads(threads)
    if started ~= "" then report(("%s: threads %s"):format(name, started)) end
    threads = manners.threads()
  end
  local lm = require "luminary"
  step "require"
  lm.set_num_threads(2)
  local nn, F = lm.nn, lm.nn.functional
  lm.manual_seed(1)
  local x = lm.randn(4, 3)
  nn.Linear(3, 2)(x):sum():backward()
  assert(lm.get_num_threads() == 2)
  step "small ops"
  local big = lm.randn(300, 300)
  assert((big:mm(big) - big:double():mm(big:double())):abs():max():item() < 1e-3)
  step "a large op"
  local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1),
    nn.Linear(4 * 13 * 13, 10))
  local opt = lm.optim.Adam(net:parameters(), {lr = 0.01})
  for _ = 1, 2 do
    local loss = F.cross_entropy(net(lm.rand(16, 1, 28, 28)), lm.randint(1, 11, {16}))
    opt:zero_grad()
    loss:backward()
    opt:step()
  end
  lm.linalg.svd(big)
  lm.fft.rfft(big)
  lm.save(folder .. "/x.safetensors", net:state_dict())
  net:load_state_dict(lm.load(folder .. "/x.safetensors"))
  step "training"
  net:eval()
  local images = lm.rand(2, 1, 28, 28)
  assert(lm.async(net, images):get(120):equal(net(images)))
  step "lm.async"
  lm.set_async {}
  collectgarbage()
  collectgarbage()
  step "the end of lm.async"
end

return manners
