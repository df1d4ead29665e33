--- Implements Torch7's package threads over lm.mp: jobs run in threads with Lua states of their own, which have the
--- globals of luminary.torch7.globals. Functions are sent with their upvalues, objects of torch.class by the name of
--- their class, which the thread must have, tensors as copies.
local debug = require "debug"
local core = require "luminary.core"
local options = require "luminary.base.options"
local Pool = require "luminary.mp.pool"
local serializer = require "luminary.mp.serialization"
local names = require "luminary.mp.module_references"
require "luminary.torch7.globals"
local class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"

-- ---- values between states

local threads, way = {}, "threads.serialize"

-- Returns a tensor to send: with sharedserialize over the same memory, if no other tensor is a view of that.
local function sent(x)
  if way == "threads.sharedserialize" and (x:is_shared() or not core.mp_share {x}) then return x end
  return core.ops.clone(x)
end

-- Returns a message with values for another state. There a tensor has a name in __received, and a class its own name.
local function encode(...)
  local objects, find = {}, names.cached_finder()
  local function name_of(v)
    if tensor.is(v) then
      objects[#objects + 1] = sent(tensor.raw(v))
      return {"luminary.torch7.threads", "field", "__received", "field", tostring(#objects)}
    end
    local name = type(v) == "table" and rawget(v, "__typename")
    if name and class.by_name[name] == v then return {"luminary.torch7.class", "field", "by_name", "field", name} end
    return find(v)
  end
  local text, tensors, handles = serializer.encode("threads", options.pack(...), {name_of = name_of})
  return {text = text, tensors = tensors, handles = handles, objects = objects, way = way}
end

-- Returns the values in a message.
local function decode(message)
  threads.__received = {}
  for i, x in ipairs(message.objects) do threads.__received[tostring(i)] = tensor.wrap(x) end
  local values = serializer.decode(message.text, message.tensors, message.handles)
  threads.__received = nil
  return unpack(values, 1, values.n)
end

local function call(thread, job, ...)
  rawset(_G, "__threadid", thread)
  return job(...)
end
-- Runs the job of a message, which has the thread's number, the function and its arguments; returns one of its results.
function threads.__run(message)
  way = message.way
  return encode(call(decode(message)))
end

-- ---- the threads

local Threads = {}
Threads.__index = Threads

-- Returns n; fails unless it is an integer from 1 to `most`.
local function within(who, name, n, most)
  if options.arg(who, name, n, "count") > most then options.must_be(who, name, "at most " .. most, n) end
  return n
end

--- threads, results = Threads(n [, init, …]): Starts n threads, each of which calls the functions with its number;
--- results has a list of the last one's results for each thread.
local function new(_, n, ...)
  within("threads.Threads", "n", n, 256)
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
  if #self.pools == 0 then options.fail "threads:addjob: the threads were terminated" end
  local i = self.is_specific and within("threads:addjob", "thread", table.remove(args, 1), self.N) or nil
  n = n - (i and 1 or 0)
  if #self.errors > 0 then self:synchronize() end
  options.arg("threads:addjob", "job", args[1], "function")
  while not self:acceptsjob(i) do self:dojob() end
  local thread, callback = load_of(self, i), args[2]
  local result = self.pools[thread]:apply_async(threads.__run, {encode(thread, args[1], unpack(args, 3, n))})
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
  local ok, message = pcall(job.result.get, job.result)
  if ok and job.callback then
    ok, message = xpcall(function() job.callback(decode(message)) end, debug.traceback)
  end
  if not ok then table.insert(self.errors, ("[thread %d] %s"):format(job.thread, tostring(message))) end
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
threads.Threads = setmetatable(Threads, {__call = new, __index = threads})
return setmetatable(threads, {__call = new})
