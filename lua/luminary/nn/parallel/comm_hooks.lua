--- nn.parallel.comm_hooks: Reduces gradients, as hooks of DistributedDataParallel's net:register_comm_hook(state,
--- hook).
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local groups = require "luminary.distributed.groups"
local collectives = require "luminary.distributed.collectives"
local compression = require "luminary.nn.parallel.gradient_compression"
local cuda = require "luminary.cuda"

local who = "register_comm_hook"

-- ---- buckets

local Bucket = {}
Bucket.__index = Bucket

function Bucket:buffer()
  if not self.memory then self.memory, self.members = core.reducer_buffer(self.reducer, self.number) end
  return self.memory
end

function Bucket:index() return self.number end
function Bucket:is_last() return self.number == core.reducer_buckets(self.reducer) end

local function map(bucket, f)
  bucket:buffer()
  return lists.map(bucket.members, f)
end

function Bucket:gradients()
  return map(self, function(i) return core.reducer_gradient(self.reducer, i) end)
end

function Bucket:parameters()
  return map(self, function(i) return self.all[i] end)
end

function Bucket:names()
  return map(self, function(i) return self.all_names[i] end)
end

-- ---- hooks

local hooks = {PowerSGDState = compression.PowerSGDState, Int8State = compression.Int8State}

local function check(name, bucket)
  if getmetatable(bucket) == Bucket then return bucket:buffer() end
  options.expected(name, "(state, bucket), the arguments of a communication hook", bucket)
end

local function start(state, bucket, t)
  return collectives.all_reduce(t, {group = state or bucket.group, async_op = true})
end

--- Reduces gradients by their sum over the ranks, as without a hook.
function hooks.allreduce_hook(state, bucket) return start(state, bucket, check("allreduce_hook", bucket)) end

local function compress(name, dtype)
  --- Reduces gradients by their sum over the ranks, which is computed in 16 bits.
  return function(state, bucket)
    local buffer = check(name, bucket)
    if core.dtype_size(buffer.dtype) <= core.dtype_size(dtype) then return start(state, bucket, buffer) end
    local short = buffer:to(dtype)
    local work = start(state, bucket, short)
    return {wait = function()
      work:wait()
      return short
    end}
  end
end

hooks.fp16_compress_hook = compress("fp16_compress_hook", "float16")
hooks.bf16_compress_hook = compress("bf16_compress_hook", "bfloat16")

local side = {} -- maps a GPU to the stream on which sums run parallel to backward

-- Adds this rank's part once all ranks' contributions have arrived, and sends the sum to all ranks.
local function sum_part(group, arrived, parts, all)
  arrived:wait()
  local sum = parts:view(group.size, -1):sum(1, {dtype = "float32"}):to(all.dtype)
  return collectives.all_gather_into_tensor(all, sum, {group = group, async_op = true})
end

--- Reduces gradients by their sum over the ranks: sends them as bfloat16 and adds them in float32. Each rank adds one
--- part of the bucket. The bytes equal an all_reduce's in bfloat16; the error does not grow with the number of ranks.
function hooks.bf16_compress_fp32_sum_hook(state, bucket)
  local buffer = check("bf16_compress_fp32_sum_hook", bucket)
  local group = groups.resolve(who, state or bucket.group)
  local count, device = buffer:numel(), buffer.device
  if group.size == 1 or core.dtype_size(buffer.dtype) <= 2 then return start(state, bucket, buffer) end
  local all = buffer:new_zeros(math.ceil(count / group.size) * group.size, {dtype = "bfloat16"})
  all:narrow(1, 1, count):copy_(buffer)
  local parts = all:new_empty(all.shape)
  local work = collectives.all_to_all_single(parts, all, {group = group, async_op = true})
  local last = false
  if device ~= "cpu" then -- the host does not wait
    side[device] = side[device] or cuda.Stream {device = device}
    work, last = cuda.stream(side[device], sum_part, group, work, parts, all), true
  end
  return {wait = function()
    if not last then work = sum_part(group, work, parts, all) end
    work:wait()
    return all:narrow(1, 1, count)
  end}
end

local function compressing(name, of)
  --- Reduces gradients by their sum over the ranks, sent compressed as the state says: as two factors of low rank
  --- (PowerSGDState), or as 8-bit integers (Int8State). Each rank adds its error to its gradients of the next step.
  return function(state, bucket)
    local buffer = check(name, bucket)
    if not class.is(state, of) then options.expected(name, ("a state, comm_hooks.%s(…)"):format(of.__name), state) end
    local group = groups.resolve(who, state.process_group or bucket.group)
    local early = state.iter < (state.start_powerSGD_iter or 0)
    if bucket:is_last() then state.iter = state.iter + 1 end
    if early or group.size == 1 then return start(group, bucket, buffer) end
    return state:reduce(bucket, group)
  end
end

hooks.powerSGD_hook = compressing("powerSGD_hook", compression.PowerSGDState)
hooks.int8_hook = compressing("int8_hook", compression.Int8State)

local computed_here = {bf16_compress_fp32_sum = hooks.bf16_compress_fp32_sum_hook}
-- The core computes all of these except computed_here.
local names = {"allreduce", "fp16_compress", "bf16_compress", "bf16_compress_fp32_sum"}
local by_name = {}
for _, name in ipairs(names) do by_name[name], by_name[hooks[name .. "_hook"]] = name, name end

local function can_wait(v)
  if type(v) ~= "table" and type(v) ~= "userdata" then return false end
  local found, wait = pcall(function() return v.wait end)
  return found and (type(wait) == "function" or (getmetatable(wait) or {}).__call ~= nil)
end

-- Returns the function that the reducer calls for each full bucket, and again with `last` if the hook returned an
-- object with wait().
local function caller(net, state, hook)
  local waiting = {}
  local function begin_bucket(number)
    local bucket = setmetatable({
      number = number, reducer = net.reducer, all = net.reduced.parameters, all_names = net.reduced.names,
      group = net.process_group,
    }, Bucket)
    local result = hook(state, bucket)
    if core.is_tensor(result) then return result end
    if not can_wait(result) then
      options.must_be(who, "the result of the hook", "a tensor or an object with wait()", result)
    end
    waiting[number] = {result, bucket}
  end
  local function finish_bucket(number)
    local result, bucket = unpack(waiting[number])
    waiting[number] = nil
    local content = result:wait()
    if core.is_tensor(content) then return content end
    if content ~= nil and type(content) ~= "boolean" then
      options.must_be(who, "the result of the hook's wait()", "a tensor or nil", content)
    end
    return bucket:buffer()
  end
  return function(number, last) return (last and finish_bucket or begin_bucket)(number) end
end

local function register(net, state, hook)
  local name = by_name[hook]
  if not name and type(hook) ~= "function" then
    if type(hook) == "string" then options.choice(who, "the hook", hook, names) end
    options.expected(who, "(state, hook), the hook a function of (state, bucket) or a name", hook)
  end
  if name and state ~= nil and groups.resolve(who, state) ~= net.process_group then
    options.fail("%s: %s uses the model's process group; state must be that group or nil", who, name)
  end
  local _, shared = core.reducer_buckets(net.reducer) -- shared memory: nothing is sent, and sums are exact
  local f = not name and hook or not shared and computed_here[name] or nil
  core.reducer_set_hook(net.reducer, name or "a function", f and caller(net, state, f))
end

return {hooks = hooks, register = register}
