--- Locks and events for processes and threads, and tensors with a lock.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local shared = require "luminary.mp.shared"
local fail = options.fail

-- ---- locks

--- lm.mp.Lock(): held by one thread of one process at a time. If who holds it ends, by kill -9 too, the next one gets
--- it and is told that the other did not come to release it: what it guards may be half changed.
local Lock = {kind = "Lock"}
Lock.__index = Lock

local function lock_handle(method, self) return shared.handle(Lock, method, self) end

local SLICE = 0.1 -- seconds: no signal ends the core's wait

--- Waits for it, `timeout` seconds at most (nil: as long as it takes; 0 or {block = false} only tries): whether it is
--- held now, and then whether the one before ended without releasing it.
function Lock:acquire(timeout)
  local h = lock_handle("acquire", self)
  timeout = shared.seconds("Lock:acquire", timeout)
  if not self.again and core.mp_held(h) > 0 then
    fail "Lock:acquire: it is held here already; lm.mp.RLock() is one that can be acquired again"
  end
  local how = shared.wait(timeout, function(seconds) return core.mp_acquire(h, seconds) or false end, SLICE)
  return how ~= false, how == 2
end

--- Lets the next one have it.
function Lock:release()
  local h = lock_handle("release", self)
  if core.mp_held(h) == 0 then fail "Lock:release: it is not held here" end
  core.mp_release(h)
end

local function give_back(self, ok, ...)
  self:release()
  if not ok then error((...), 0) end
  return ...
end

--- Acquires it, calls f(left) and releases it, after an error too. Gives what f gives. left: whether who held it before
--- ended without releasing it.
function Lock:with(f)
  lock_handle("with", self)
  options.arg("Lock:with", "f", f, "function")
  local _, left = self:acquire()
  return give_back(self, pcall(f, left))
end

function Lock.__tostring(self)
  local name = self.again and "RLock" or "Lock"
  return core.mp_held(self.handle) > 0 and name .. "(held here)" or name
end

setmetatable(Lock, {__call = function(_, ...)
  if select("#", ...) > 0 then fail "Lock: takes no arguments" end
  return setmetatable({handle = core.mp_lock()}, Lock)
end})

--- lm.mp.RLock(): a Lock that the thread which holds it can acquire again; it is free after as many releases.
local function new_rlock(...)
  if select("#", ...) > 0 then fail "RLock: takes no arguments" end
  return setmetatable({handle = core.mp_lock(), again = true}, Lock)
end

-- ---- events

--- lm.mp.Event(): a flag that others wait for. It is not set at first.
local Event = {kind = "Event", __name = "lm.mp.Event"} -- there is lm.cuda.Event, too
Event.__index = Event

local function event_handle(method, self) return shared.handle(Event, method, self) end

--- Sets it: all who wait go on, and who waits later does not wait.
function Event:set() core.mp_event_set(event_handle("set", self), true) end

--- Takes it back.
function Event:clear() core.mp_event_set(event_handle("clear", self), false) end

--- Whether it is set.
function Event:is_set() return core.mp_event_wait(event_handle("is_set", self), 0) end

--- Waits until it is set, `timeout` seconds at most (nil: as long as it takes): whether it is.
function Event:wait(timeout)
  local h = event_handle("wait", self)
  timeout = shared.seconds("Event:wait", timeout)
  return shared.wait(timeout, function(seconds) return core.mp_event_wait(h, seconds) end)
end

function Event.__tostring(self) return self:is_set() and "Event(set)" or "Event(not set)" end

setmetatable(Event, {__call = function(_, ...)
  if select("#", ...) > 0 then fail "Event: takes no arguments" end
  return setmetatable({handle = core.mp_event()}, Event)
end})

-- ---- shared tensors with a lock

-- Python's codes of types.
local codes = {
  B = "uint8", i = "int32", l = "int64", q = "int64", f = "float32", d = "float64", ["?"] = "bool",
}

-- A class of userdata, so that `#array` is its length. make(dtype, …) gives the tensor of a new one; `_get` and
-- `_set` are the instances' __index and __newindex.
local function define(name, make)
  local new
  new = class.new(name, nil, function(_, dtype, ...)
    if codes[dtype] then fail("%s: dtypes have names here: '%s' for '%s'", name, codes[dtype], dtype) end
    local tensor = make(core.dtype(dtype), ...)
    local values = setmetatable({tensor = tensor:share_memory_(), lock = Lock()}, getmetatable(new).instance)
    return class.object(new, {
      values = values,
      __index = function(_, key) return new._get(values, key) end,
      __newindex = function(_, key, x) new._set(values, key, x) end,
    })
  end)
  --- Its Lock.
  function new:get_lock() return self.lock end
  --- Calls f(self, left) while its lock is held (Lock:with) and gives what f gives.
  function new:with(f)
    options.arg("with", "f", f, "function")
    return self.lock:with(function(left) return f(self, left) end)
  end
  return new
end

--- lm.mp.Value(dtype [, v = 0]): one number that processes and threads share: v.value reads and sets it. One read or
--- one write needs no lock; v:with(function(v) v.value = v.value + 1 end) is both in one.
local Value = define("Value", function(dtype, v, ...)
  if select("#", ...) > 0 then fail "Value: takes a dtype and a number" end
  if v == nil then v = 0 end
  if type(v) ~= "number" and type(v) ~= "boolean" and type(v) ~= "cdata" then
    fail("Value: the second argument has to be a number or a boolean, got %s", options.describe(v))
  end
  return core.tensor(v, {dtype = dtype})
end)

function Value:repr() return ("Value(%s)"):format(tostring(self.value)) end

function Value._get(values, key)
  if key == "value" then return values.tensor:item() end
  return values[key]
end

function Value._set(values, key, x)
  if key ~= "value" then fail("Value: no field '%s' to set; there is 'value'", tostring(key)) end
  values.tensor:fill_(x)
end

--- lm.mp.Array(dtype, n or list): a shared tensor of one dim, of n zeros or of a list's numbers: a[i] reads and sets
--- one, a.tensor is all of it, #a is its length, a:with(function(a) … end) holds its lock.
local Array = define("Array", function(dtype, what, ...)
  if select("#", ...) > 0 then fail "Array: takes a dtype and a size, or a list of numbers" end
  if type(what) == "number" then
    return core.ops.zeros({options.arg("Array", "the size", what, "count")}, {dtype = dtype})
  end
  if not options.is_plain(what) or type(what[1]) == "table" or what[1] == nil then
    fail("Array: the second argument has to be a size or a list of numbers, got %s", options.describe(what))
  end
  return core.tensor(what, {dtype = dtype})
end)

--- How many there are: #array.
function Array:len() return self.tensor.shape[1] end
function Array:repr() return ("Array(%s)"):format(tostring(self.tensor)) end

function Array._get(values, key)
  if type(key) == "number" then return values.tensor[key] end
  return values[key]
end

function Array._set(values, key, x)
  if type(key) ~= "number" then fail("Array: no field '%s' to set", tostring(key)) end
  values.tensor[key] = x
end

return {Lock = Lock, RLock = new_rlock, Event = Event, Value = Value, Array = Array}
