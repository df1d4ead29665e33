--- Caches the keys and values of all positions so far, for attention during generation.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local ops, arg, fail = core.ops, options.arg, options.fail

--- nn.KVCache(…): Stores the keys and values of an attention layer during generation.
local KVCache = class.root("KVCache")

KVCache.init = signature.of([[KVCache(batch_size: count, max_seq_len: count, num_kv_heads: count, head_dim: count,
  {device, dtype: string})]], function(self, batch_size, max_seq_len, num_kv_heads, head_dim, o)
  local size = {batch_size, num_kv_heads, max_seq_len, head_dim}
  self.keys = core.keep(ops.zeros(size, {device = o.device, dtype = o.dtype}))
  self.values = core.keep(ops.zeros(size, {device = o.device, dtype = o.dtype}))
  self.length = 0
end)

-- Returns cache.length, which users may set; fails if the cache has fewer positions.
local function length_of(self, who, room)
  local n = arg(who, "cache.length", self.length, "natural")
  room = room or self.keys.shape[3]
  if n > room then fail("%s: cache.length (%d) must be at most the size of the cache (%d)", who, n, room) end
  return n
end

-- Fails unless t is [N, heads, n, width], with N, heads and width as in `room`, the shape of the cache.
local function check_entries(who, name, t, room, n, dtype)
  local shape = t.shape
  if t.ndim ~= 4 or shape[1] ~= room[1] or shape[2] ~= room[2] or shape[4] ~= room[4] or shape[3] ~= n then
    options.wrong_shape(who, name, t, {room[1], room[2], "n", room[4]})
  end
  if t.dtype ~= dtype and not core.is_autocast_enabled() then
    fail("%s: %s is %s, the cache %s; create the cache with {dtype = \"%s\"}", who, name, t.dtype, dtype, t.dtype)
  end
end

local function write_keys_values(keys, k, values, v)
  keys:copy_(k)
  values:copy_(v)
end

-- Writes one position, an int64 tensor [1].
local function write_at(position, keys, k, values, v)
  local place = position:view(1, 1, 1, 1):expand {keys.shape[1], keys.shape[2], 1, keys.shape[4]}
  keys:scatter_(3, place, k:to(keys.dtype))
  values:scatter_(3, place, v:to(values.dtype))
end

--- local k, v = cache:update(k, v): Stores the keys and values of n new positions, [batch_size, num_kv_heads, n,
--- head_dim], and returns those of all positions so far, [batch_size, num_kv_heads, cache.length, head_dim], as views.
--- Both must have the dtype of the cache, except within autocast, which converts them. There is no gradient. With
--- cache.position, an int64 tensor [1], the one new position is stored there, cache.length does not change, and all
--- max_seq_len positions are returned, so that no shape depends on it.
function KVCache:update(k, v)
  local who, keys, values = "KVCache:update", self.keys, self.values
  local room, n = keys.shape, arg(who, "k", k, "tensor").ndim == 4 and k.shape[3]
  check_entries(who, "k", k, room, n, keys.dtype)
  check_entries(who, "v", arg(who, "v", v, "tensor"), room, n, keys.dtype)
  if self.position then
    core.no_grad(write_at, self.position, keys, k, values, v)
    return keys, values
  end
  local first = length_of(self, who, room[3])
  if first + n > room[3] then
    fail("%s: the cache holds %d of %d positions; cannot append %d more", who, first, room[3], n)
  end
  core.no_grad(write_keys_values, keys:narrow(3, first + 1, n), k, values:narrow(3, first + 1, n), v)
  self.length = first + n
  return keys:narrow(3, 1, self.length), values:narrow(3, 1, self.length)
end

--- Keeps the first n positions and drops the others; without n it drops all. Returns the cache.
function KVCache:reset(n)
  n = arg("KVCache:reset", "n", n or 0, "natural")
  if n > 0 and n > length_of(self, "KVCache:reset") then
    fail("KVCache:reset: the cache holds %d positions, not %d", self.length, n)
  end
  self.length = n
  return self
end

--- Replaces the sequences by those in index (int64 [N], from 1), in its order; a sequence may occur several times. N
--- becomes the batch size. Returns the cache.
function KVCache:reorder(index)
  local who = "KVCache:reorder"
  if arg(who, "index", index, "tensor").ndim ~= 1 or index.shape[1] == 0 then
    options.must_be(who, "index", "1-d and not empty", index)
  end
  local length, n = length_of(self, who), index.shape[1]
  core.no_grad(function()
    local keys, values = self.keys, self.values
    local kept_keys = keys:narrow(3, 1, length):index_select(1, index)
    local kept_values = values:narrow(3, 1, length):index_select(1, index)
    if n ~= keys.shape[1] then
      local size = {n, unpack(keys.shape, 2)}
      keys, values = core.keep(keys:new_empty(size)), core.keep(values:new_empty(size))
    end
    write_keys_values(keys:narrow(3, 1, length), kept_keys, values:narrow(3, 1, length), kept_values)
    self.keys, self.values = keys, values
  end)
  return self
end

return KVCache
