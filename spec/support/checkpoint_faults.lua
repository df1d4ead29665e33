-- Saves under a fault, for spec/checkpoint/faults_spec.lua, on one rank or several:
--   luajit checkpoint_faults.lua FOLDER RANK EXPECTED ON OFF
-- RANK (or "all") alone meets the fault. ON and OFF are chunks of Lua that begin and end it, with folder and lm_fault.
-- EXPECTED: "works", or a pattern of the error. Of each way to save: earlier checkpoints load under the fault, and
-- after it; a save that returned loads; the next save leaves no temporary file and no shard that nothing names.
local lm = require "luminary"
local ffi = require "ffi"
local folder, where, expected, on, off = unpack(arg, 1, 5)
local optim, dist = lm.optim, lm.dist

ffi.cdef "void lm_fault(const char *folder, const char *call, int first, int error); int lm_fault_calls(void);"
local size = tonumber(os.getenv "WORLD_SIZE" or 1)
if size > 1 then dist.init_process_group {timeout = 60} end
local rank = size > 1 and dist.get_rank() or 0
local env = setmetatable({folder = folder, lm_fault = function(...) ffi.C.lm_fault(folder, ...) end}, {__index = _G})
local function barrier() if size > 1 then dist.barrier() end end
local function switch(chunk)
  for _ = 1, 2 do collectgarbage() end -- a mount is busy while a file that was replaced is still mapped
  barrier()
  if where == "all" and rank == 0 or where == tostring(rank) then setfenv(assert(loadstring(chunk)), env)() end
  barrier()
end

lm.manual_seed(1)
local net = lm.nn.Linear(50, 40)
local opt = size > 1 and optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = optim.Adam, lr = 0.01})
  or optim.Adam(net:parameters(), {lr = 0.01})
net(lm.ones(1, 50)):sum():backward()
opt:step()
local function parts(step) return {net = net, opt = opt, rng = true, w = lm.full({300000}, step)} end

local function of_save(path, async)
  return {
    save = function(step)
      local saving = lm.checkpoint.save(path, parts(step), {async = async})
      if async then saving:wait() end
    end,
    load = function() return lm.checkpoint.load(path, {net = net, opt = opt}) end,
  }
end

local function of_manager(dir, async)
  local manager = lm.checkpoint.Manager {dir = dir, keep_last = 9, async = async} -- none is removed, which makes room
  return {
    save = function(step)
      manager:save(step, parts(step))
      lm.checkpoint.wait()
    end,
    load = function() return manager:load {net = net, opt = opt} end, manager = manager,
  }
end

local function assert_clean(dir, context)
  local named = {}
  for _, name in ipairs(lm.paths.dir(dir)) do
    if name:find "%.safetensors$" then
      named[name] = true
      local text = require("luminary.file_formats").load(dir .. "/" .. name, {}).metadata.luminary_checkpoint
      for shard in text:gmatch '"([^"]*%.shard%-[^"]*)"' do named[shard] = true end
    end
  end
  for _, name in ipairs(lm.paths.dir(dir)) do
    if name:find "^step" or name:find "^a%." then assert(named[name], context .. ": left over: " .. name) end
  end
end

local ways = {
  {"save", of_save(folder .. "/a.safetensors", false)}, {"async save", of_save(folder .. "/a.safetensors", true)},
  {"Manager", of_manager(folder, false)}, {"async Manager", of_manager(folder, true)},
}
local step = 0
for _, way in ipairs(ways) do
  local name, by = way[1], way[2]
  by.save(step + 1)
  by.save(step + 2)
  barrier()
  step = step + 2
  switch(on)
  local began = lm.time()
  local ok, why = pcall(by.save, step + 1)
  assert(lm.time() - began < 30, name .. ": took too long")
  barrier()
  if expected == "works" then
    assert(ok, why)
    step = step + 1
  else
    local later = name:find "async" and (name:find "Manager" and ": checkpoint.wait: " or ": PendingSave:wait: ")
    local now = name:find "Manager" and ": Manager:save: " or ": checkpoint.save: "
    local names_call = not ok and (why:find(now, 1, true) or later and why:find(later, 1, true))
    assert(names_call and why:find(expected), ("%s: %s"):format(name, tostring(why)))
  end
  local loaded = by.load()
  assert(loaded.w[1] == step and loaded.w[-1] == step, ("%s: %s instead of %d"):format(name, loaded.w[1], step))
  if on:find "lm_fault" and tostring(rank) == where then assert(ffi.C.lm_fault_calls() > 0, "the fault was not met") end
  switch(off)
  if by.manager then
    for _, each in ipairs(by.manager:steps()) do
      assert(lm.checkpoint.load(by.manager:path(each)).w[1] == each, name .. ": an earlier one is lost")
    end
    assert(#by.manager:steps() >= 2)
  end
  assert(by.load().w[1] == step)
  barrier()
  by.save(step + 1)
  step = step + 1
  barrier()
  assert(by.load().w[1] == step)
  barrier()
  assert_clean(folder, name)
  barrier()
end
if size > 1 then dist.destroy_process_group() end
print "finished"
