--- Implements Torch7's package threads over lm.mp: jobs run in threads with Lua states of their own, which have the
--- globals of luminary.torch7.globals. Functions are sent with their upvalues, objects of torch.class by the name of
--- their class, which the thread must have, tensors as copies.
local debug = require "debug"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local Pool = require "luminary.mp.pool"
local torch = require "luminary.torch7.globals"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local fail = options.fail

-- ---- values between states

-- Returns a function that returns the name of a value of a loaded module, {module [, field]}.
local function names_of_modules()
  local names = {[_G] = {"_G"}}
  for name, module in pairs(package.loaded) do
    if type(module) == "table" then
      names[module] = names[module] or {name}
      for field, v in next, module do
        if type(field) == "string" and (type(v) == "function" or type(v) == "table" and getmetatable(v)) then
          names[v] = names[v] or {name, field}
        end
      end
    end
  end
  return names
end

local way = "threads.serialize"

-- Returns a tensor to send: with sharedserialize over the same memory, if no other tensor is a view of that.
local function sent(x)
  if way == "threads.sharedserialize" and (x:is_shared() or not core.mp_share {x}) then return x end
  return core.ops.clone(x)
end

-- Returns a list of plain tables for the objects in a list of n values, the first of which is the list itself.
local function encode(values, n)
  local objects, ids, names = {}, {}, names_of_modules()
  local put
  local function fields(o, v)
    for key, each in next, v do o[#o + 1], o[#o + 2] = put(key), put(each) end
  end
  function put(v)
    local kind = type(v)
    if kind ~= "table" and kind ~= "function" and kind ~= "userdata" then return v end
    if ids[v] then return {ids[v]} end
    local o = {}
    objects[#objects + 1], ids[v] = o, #objects + 1
    if names[v] then
      o.name = names[v]
    elseif tensor.is(v) then
      o.tensor = sent(tensor.raw(v))
    elseif kind == "userdata" then
      fail("threads: cannot send %s to a thread", class.type(v))
    elseif kind == "function" then
      o.code = string.dump(v)
      for i = 1, debug.getinfo(v, "u").nups do o[i] = {put((select(2, debug.getupvalue(v, i))))} end
    else
      local mt = getmetatable(v)
      o.class = class.typename(v)
      if mt and not o.class then o.meta = put(mt) end
      fields(o, v)
    end
    return {ids[v]}
  end
  local first = {n = n, way = way}
  objects[1] = first
  for i = 1, n do first[i] = {put(values[i])} end
  return objects
end

local function decode(objects)
  local made = {}
  for i, o in ipairs(objects) do
    if o.name then
      local module = o.name[1] == "_G" and _G or require(o.name[1])
      made[i] = o.name[2] and module[o.name[2]] or module
    elseif o.class then
      made[i] = torch.factory(o.class)()
    else
      made[i] = o.tensor and tensor.wrap(o.tensor) or o.code and assert(loadstring(o.code)) or {}
    end
  end
  local function get(v) return type(v) == "table" and made[v[1]] or v end
  for i, o in ipairs(objects) do
    local new = made[i]
    if o.code then
      for k, up in ipairs(o) do debug.setupvalue(new, k, get(up[1])) end
    elseif i > 1 and not o.tensor and not o.name then
      for k = 1, #o, 2 do rawset(new, get(o[k]), get(o[k + 1])) end
      if o.meta then setmetatable(new, get(o.meta)) end
    end
  end
  local first = objects[1]
  return lists.map({unpack(first, 1, first.n)}, function(v) return get(v[1]) end), first.n
end

local threads = {}

-- Runs a job in a thread: the thread's number, the function and its arguments.
function threads.__run(objects)
  local job, n = decode(objects)
  way = objects[1].way
  rawset(_G, "__threadid", job[1])
  local results = options.pack(job[2](unpack(job, 3, n)))
  return encode(results, results.n)
end
local function start(objects) return require("luminary.torch7.threads").__run(objects) end

-- ---- the threads

local Threads = {}
Threads.__index = Threads

--- threads, results = Threads(n [, init, …]): Starts n threads, each of which calls the functions with its number;
--- results has a list of the last one's results for each thread.
local function new(_, n, ...)
  options.arg("threads.Threads", "n", n, "count")
  local self = setmetatable({N = n, pools = {}, jobs = {}, errors = {}, is_specific = true}, Threads)
  for i = 1, n do self.pools[i] = Pool(1, {method = "thread"}) end
  local results, inits = {}, {...}
  for k, init in ipairs(inits) do
    for i = 1, n do
      self:addjob(i, init, function(...) if k == #inits then results[#results + 1] = {...} end end, i)
    end
  end
  self:specific(false)
  return self, results
end

--- Sets whether addjob's first argument is the number of a thread; waits for all jobs.
function Threads:specific(on)
  if on == nil then return self.is_specific end
  self:synchronize()
  self.is_specific = on
end

-- Returns the number of jobs of thread i, or the thread with the fewest and their number.
local function load_of(self, i)
  local counts = {}
  for k = 1, self.N do counts[k] = 0 end
  for _, job in ipairs(self.jobs) do counts[job.thread] = counts[job.thread] + 1 end
  for k = 1, i and 0 or self.N do if not i or counts[k] < counts[i] then i = k end end
  return i, counts[i]
end
function Threads:acceptsjob(i)
  local _, count = load_of(self, i)
  return count < 2
end

--- threads:addjob([i,] job [, callback], …): Calls job(…) in a thread, and in dojob callback with its results.
function Threads:addjob(...)
  local args, n = {...}, select("#", ...)
  local i = self.is_specific and table.remove(args, 1) or nil
  n = n - (i and 1 or 0)
  if #self.errors > 0 then self:synchronize() end
  options.arg("threads:addjob", "job", args[1], "function")
  while not self:acceptsjob(i) do self:dojob() end
  local thread, callback = load_of(self, i), args[2]
  local values = {thread, args[1], unpack(args, 3, n)}
  local result = self.pools[thread]:apply_async(start, {encode(values, math.max(n, 2))})
  table.insert(self.jobs, {thread = thread, result = result, callback = callback})
end

-- Returns the index of a job that is done; waits for one.
local function next_done(self)
  while true do
    for k, job in ipairs(self.jobs) do if job.result:ready() then return k end end
    self.jobs[1].result:wait(0.001)
  end
end
--- Waits for a job, and calls its callback.
function Threads:dojob()
  if #self.jobs == 0 then return end
  local job = table.remove(self.jobs, next_done(self))
  local ok, objects = pcall(job.result.get, job.result)
  if ok and job.callback then
    local values, n = decode(objects)
    ok, objects = xpcall(function() job.callback(unpack(values, 1, n)) end, debug.traceback)
  end
  if not ok then table.insert(self.errors, ("[thread %d] %s"):format(job.thread, tostring(objects))) end
end
function Threads:hasjob() return #self.jobs > 0 end
function Threads:haserror() return #self.errors > 0 end
function Threads:isrunning() return #self.pools > 0 end

--- Waits for all jobs; raises the errors of those that failed.
function Threads:synchronize()
  while self:hasjob() do self:dojob() end
  local errors = self.errors
  self.errors = {}
  if #errors > 0 then core.error_at_caller(table.concat(errors, "\n")) end
end
function Threads:terminate()
  self:synchronize()
  for _, pool in ipairs(self.pools) do pool:close() end
  self.pools = {}
end

--- Returns the way in which values are sent, or sets it: "threads.serialize", or "threads.sharedserialize", with which
--- both sides see the same tensors.
function threads.serialization(name)
  way = name or way
  return way
end
function threads.safe(f) return f end -- a thread runs one function at a time
function threads.new(...) return new(nil, ...) end
threads.Threads = setmetatable({}, {__call = new})
return setmetatable(threads, {__call = new})
