--- Positions of tokens, as numbers of their own or as turns of queries and keys.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local options = require "luminary.base.options"
local layer = require "luminary.nn.define_layer"

local ops, arg, fail, describe = core.ops, options.arg, options.fail, options.describe
local positions = {}

-- [n, dim / 2]: place times base^(-2 i / dim), from place 0.
local function angles(n, dim, base)
  local rates = ops.arange(0, dim, 2, {dtype = "float64"}):mul(-math.log(base) / dim):exp()
  return ops.arange(0, n, {dtype = "float64"}):unsqueeze(2) * rates
end

--- nn.SinusoidalPositions(dim [, {max_seq_len = 5000, base = 10000, batch_first = false}]): x [L, N, dim] (batch_first:
--- [N, L, dim]) with sines and cosines of its places added, in turn (Vaswani et al. 2017).
local SinusoidalPositions = layer.define("SinusoidalPositions")
positions.SinusoidalPositions = SinusoidalPositions

function SinusoidalPositions:init(dim, ...)
  local who = "SinusoidalPositions"
  self.dim = arg(who, "dim", dim, "count")
  local o = layer.options(who, {
    {"max_seq_len", "count", 5000}, {"base", "positive", 10000}, {"batch_first", "boolean", false},
  }, ...)
  if dim % 2 ~= 0 then fail("%s: dim %d is odd; sines and cosines go in pairs", who, dim) end
  self.max_seq_len, self.batch_first = o.max_seq_len, o.batch_first
  local turns = angles(o.max_seq_len, dim, o.base)
  local table_of = ops.stack({turns:sin(), turns:cos()}, -1):view(o.max_seq_len, dim)
  self:register_buffer("positions", table_of:to(o.dtype or "float32"):to(o.device or "cpu"), {persistent = false})
end

function SinusoidalPositions:forward(x)
  local who = "SinusoidalPositions"
  arg(who, "x", x, "tensor")
  if x.ndim ~= 3 or x.shape[3] ~= self.dim then fail("%s: x is %s; 3 dims, the last of %d, wanted", who, describe(x),
    self.dim) end
  local n = x.shape[self.batch_first and 2 or 1]
  if n > self.max_seq_len then fail("%s: %d places, max_seq_len is %d", who, n, self.max_seq_len) end
  local own = self.positions:narrow(1, 1, n):to(x.dtype)
  return x + (self.batch_first and own or own:unsqueeze(2))
end

--- nn.RotaryPositionalEmbeddings(dim [, {max_seq_len = 4096, base = 10000, interleaved = true}]): queries or keys
--- [N, H, L, dim] turned by their places, pair by pair (Su et al. 2021, RoPE). Pairs are neighbours, or without
--- `interleaved` entries dim / 2 apart, as Hugging Face's LLaMA has them.
--- rope(x [, {first = 1, input_pos}]): first is the place of x's first entry; input_pos [L] or [N, L], int64, says the
--- place of each, from 1.
local RotaryPositionalEmbeddings = layer.define("RotaryPositionalEmbeddings")
positions.RotaryPositionalEmbeddings = RotaryPositionalEmbeddings

function RotaryPositionalEmbeddings:init(dim, ...)
  local who = "RotaryPositionalEmbeddings"
  self.dim = arg(who, "dim", dim, "count")
  local o = layer.options(who, {
    {"max_seq_len", "count", 4096}, {"base", "positive", 10000}, {"interleaved", "boolean", true},
  }, ...)
  if dim % 2 ~= 0 then fail("%s: dim %d is odd; entries are turned in pairs", who, dim) end
  self.max_seq_len, self.interleaved = o.max_seq_len, o.interleaved
  local turns = angles(o.max_seq_len, dim, o.base)
  for name, values in pairs {cosines = turns:cos(), sines = turns:sin()} do
    self:register_buffer(name, values:to(o.dtype or "float32"):to(o.device or "cpu"), {persistent = false})
  end
end

-- Rows of a table for the places, broadcasting to [N, H, L, dim / 2].
local function rows_of(self, name, x, first, input_pos)
  local values = self[name]
  if not input_pos then
    values = values:narrow(1, first, x.shape[3])
  elseif input_pos.ndim == 1 then
    values = values:index_select(1, input_pos)
  else
    values = values:index_select(1, input_pos:reshape(-1)):view(input_pos.shape[1], 1, input_pos.shape[2], -1)
  end
  return values:to(x.dtype)
end

function RotaryPositionalEmbeddings:forward(x, ...)
  local who = "RotaryPositionalEmbeddings"
  local first, input_pos = arguments.read(who, {{"first", "count", 1}, {"input_pos", "tensor?"}}, ...)
  arg(who, "x", x, "tensor")
  if x.ndim ~= 4 or x.shape[4] ~= self.dim then
    fail("%s: x is %s; [N, H, L, %d] wanted", who, describe(x), self.dim)
  end
  if not input_pos and first - 1 + x.shape[3] > self.max_seq_len then
    fail("%s: places %d to %d, max_seq_len is %d", who, first, first - 1 + x.shape[3], self.max_seq_len)
  end
  local cos, sin = rows_of(self, "cosines", x, first, input_pos), rows_of(self, "sines", x, first, input_pos)
  if not self.interleaved then
    local a, b = unpack(x:chunk(2, -1))
    return ops.cat({a * cos - b * sin, b * cos + a * sin}, -1)
  end
  local pairs_of = x:unflatten(-1, {-1, 2})
  local a, b = pairs_of:select(-1, 1), pairs_of:select(-1, 2)
  return ops.stack({a * cos - b * sin, b * cos + a * sin}, -1):flatten(-2)
end

return positions
