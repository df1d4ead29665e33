--- Encodes positions: sinusoidal tables that are added, and rotary embeddings of queries and keys.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local layer = require "luminary.nn.define_layer"
local meta = require "luminary.nn.meta"
local shapes = require "luminary.tensor.shapes"

local ops, arg, fail = core.ops, options.arg, options.fail
local positions = {}

-- Returns base^(-2 i / dim), [dim / 2]: the angle by which each pair rotates from one position to the next.
local function rates_of(dim, base)
  return ops.arange(0, dim, 2, {dtype = "float64"}):mul(-math.log(base) / dim):exp()
end

local AT_ONCE = 2 ^ 16 -- elements in one step

-- Fills tables [positions, dim / 2] with the cosines and sines of all positions, in place and a few positions at a
-- time, so that it takes hardly any more memory.
local function fill_rotations(cosines, sines, rates)
  local count, how = cosines.shape[1], {dtype = "float64"}
  local max_n = math.min(count, math.max(1, math.floor(AT_ONCE / rates:numel())))
  local position, angle, values = ops.arange(0, max_n, how):unsqueeze(2), nil, nil
  for first = 1, count, max_n do
    local n = math.min(max_n, count - first + 1)
    if n < max_n or first == 1 then
      position = position:narrow(1, 1, n)
      angle, values = ops.empty({n, rates:numel()}, how), ops.empty({n, rates:numel()}, how)
    end
    angle:copy_(position):mul_(rates)
    cosines:narrow(1, first, n):copy_(values:copy_(angle):cos_())
    sines:narrow(1, first, n):copy_(angle:sin_())
    position:add_(max_n)
  end
end

--- nn.SinusoidalPositions(…): Adds sines and cosines of its positions to an input [L, N, dim].
local SinusoidalPositions = layer.define("SinusoidalPositions", nil, positions)

SinusoidalPositions.init = signature.of([[SinusoidalPositions(dim: count, {max_seq_len: count = 5000,
  base: positive = 10000, batch_first = false, device, dtype: string})]], function(self, dim, o)
  self.dim = dim
  if dim % 2 ~= 0 then options.must_be("SinusoidalPositions", "dim", "even", dim) end
  self.max_seq_len, self.batch_first = o.max_seq_len, o.batch_first
  local in_pairs = ops.empty({o.max_seq_len, dim / 2, 2}, {dtype = o.dtype or "float32", device = o.device})
  fill_rotations(in_pairs:select(3, 2), in_pairs:select(3, 1), rates_of(dim, o.base))
  self:register_buffer("positions", in_pairs:view(o.max_seq_len, dim), {persistent = false})
end)

function SinusoidalPositions:forward(x)
  local who = "SinusoidalPositions"
  shapes.check(who, "x", arg(who, "x", x, "tensor"), {"N", "L", self.dim})
  local n = x.shape[self.batch_first and 2 or 1]
  if n > self.max_seq_len then
    options.must_be(who, "the length of x", ("at most max_seq_len, %d"):format(self.max_seq_len), n)
  end
  local own = self.positions:narrow(1, 1, n):to(x.dtype)
  return x + (self.batch_first and own or own:unsqueeze(2))
end

-- Changes the rates for sequences longer than in training: transformers' names, formulas of modeling_rope_utils.py.
local scalings = {
  default = {},
  linear = {needs = {"factor"}, rates = function(rates, s) return rates / s.factor end},
  -- RotaryPositionalEmbeddings.forward changes the base by the length of the sequence.
  dynamic = {needs = {"factor"}},
  -- Low frequencies are divided by factor, high ones stay, and those between are interpolated.
  llama3 = {
    needs = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    rates = function(rates, s)
      local turns = rates * (s.original_max_position_embeddings / (2 * math.pi)) -- rotations in the original length
      local share = ((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)):clamp(0, 1)
      return rates * share + rates / s.factor * (1 - share)
    end,
  },
  -- High frequencies stay, low ones are divided by factor, and those between are interpolated (Peng et al., "YaRN:
  -- Efficient Context Window Extension of Large Language Models", 2024).
  yarn = {
    needs = {"factor", "original_max_position_embeddings"},
    also = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"},
    rates = function(rates, s, dim, base)
      local function dim_of(turns) -- the pair that rotates `turns` times in the original length
        return dim * math.log(s.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(base))
      end
      local low, high = dim_of(s.beta_fast or 32), dim_of(s.beta_slow or 1)
      if s.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
      low, high = math.max(low, 0), math.min(high, dim - 1)
      if low == high then high = high + 0.001 end
      local share = (1 - (ops.arange(0, dim / 2, {dtype = "float64"}) - low) / (high - low)):clamp(0, 1)
      return rates * share + rates / s.factor * (1 - share)
    end,
    attention_factor = function(s)
      local function scale(by) return s.factor <= 1 and 1 or 0.1 * by * math.log(s.factor) + 1 end
      return s.mscale and s.mscale_all_dim and scale(s.mscale) / scale(s.mscale_all_dim) or scale(1)
    end,
  },
  -- Divides the rates by short_factor up to the original length, max_seq_len, and by long_factor beyond, in
  -- RotaryPositionalEmbeddings.forward (Ding et al., "LongRoPE", 2024).
  longrope = {
    needs = {"factor", "original_max_position_embeddings"}, also = {"attention_factor"},
    lists = {"short_factor", "long_factor"},
    rates = function(rates, s) return rates / core.tensor(s.short_factor, {dtype = "float64"}) end,
    attention_factor = function(s)
      return s.factor <= 1 and 1 or math.sqrt(1 + math.log(s.factor) / math.log(s.original_max_position_embeddings))
    end,
  },
  -- Divides each rate by its own divisor, as GGUF files have them.
  factors = {
    lists = {"factors"}, rates = function(rates, s) return rates / core.tensor(s.factors, {dtype = "float64"}) end,
  },
}

local function above_0(who, name, value) return arg(who, name, value, "above(0)") end

-- Checks {rope_type, factor, …}, as in a config.json, and returns it.
local function check_scaling(who, dim, given)
  if not given then return {rope_type = "default"} end
  local out = {rope_type = given.rope_type or given.type or "default"}
  options.choice(who, "scaling.rope_type", out.rope_type, options.sorted_keys(scalings))
  local scaling = scalings[out.rope_type]
  for _, name in ipairs(scaling.needs or {}) do out[name] = above_0(who, "scaling." .. name, given[name]) end
  for _, name in ipairs(scaling.also or {}) do
    out[name] = given[name] and above_0(who, "scaling." .. name, given[name])
  end
  for _, name in ipairs(scaling.lists or {}) do
    out[name] = arg(who, "scaling." .. name, given[name], "table")
    local n = #out[name]
    if n ~= dim / 2 then fail("%s: scaling.%s has %d numbers; expected %d", who, name, n, dim / 2) end
    for _, each in ipairs(out[name]) do above_0(who, "scaling." .. name, each) end
  end
  out.truncate = given.truncate
  out.attention_factor = out.attention_factor or scaling.attention_factor and scaling.attention_factor(out)
  return out
end

--- nn.RotaryPositionalEmbeddings(…): Rotates queries or keys [N, H, L, dim] by their positions.
local RotaryPositionalEmbeddings = layer.define("RotaryPositionalEmbeddings", nil, positions)
RotaryPositionalEmbeddings.__inner = {"reset_buffers", "divisors", "rows", "rotate"}

RotaryPositionalEmbeddings.init = signature.of([[RotaryPositionalEmbeddings(dim: count, {max_seq_len: count = 4096,
  base: above(0) = 10000, interleaved = true, scaling: table, device, dtype: string})]], function(self, dim, o)
  local who = "RotaryPositionalEmbeddings"
  self.dim = dim
  if dim % 2 ~= 0 then options.must_be(who, "dim", "even", dim) end
  self.max_seq_len, self.interleaved, self.base = o.max_seq_len, o.interleaved, o.base
  self.scaling, self.longest = check_scaling(who, dim, o.scaling), o.max_seq_len
  for _, name in ipairs {"cosines", "sines"} do
    local values = meta.empty_buffer({o.max_seq_len, dim / 2}, {dtype = o.dtype or "float32", device = o.device})
    self:register_buffer(name, values, {persistent = false})
  end
  if not meta.skips_buffers() then self:reset_buffers() end
end)

--- Fills the tables of cosines and sines, which are not in state_dict.
function RotaryPositionalEmbeddings:reset_buffers()
  local rates, change = rates_of(self.dim, self.base), scalings[self.scaling.rope_type].rates
  fill_rotations(self.cosines, self.sines, change and change(rates, self.scaling, self.dim, self.base) or rates)
  local factor = self.scaling.attention_factor or 1
  if factor ~= 1 then
    self.cosines:mul_(factor)
    self.sines:mul_(factor)
  end
end

--- Returns the numbers that divide the rates without scaling, a list.
function RotaryPositionalEmbeddings:divisors()
  local rates = rates_of(self.dim, self.base)
  return (rates / scalings[self.scaling.rope_type].rates(rates, self.scaling, self.dim, self.base)):tolist()
end

-- Returns cosines and sines for n positions from `first` in sequences of `longest` positions, more than max_seq_len.
-- The latest tables are cached, since all layers of a model need the same.
local function longer(self, first, n)
  local latest, longest = self.latest, self.longest
  if not latest or latest.first ~= first or latest.n ~= n or latest.longest ~= longest then
    local factor, dim, divisors, base = self.scaling.factor, self.dim, self.scaling.long_factor, self.base
    if not divisors then base = base * (factor * longest / self.max_seq_len - (factor - 1)) ^ (dim / (dim - 2)) end
    local rates = rates_of(dim, base)
    if divisors then rates = rates / core.tensor(divisors, {dtype = "float64"}) end
    local angle = ops.arange(first - 1, first - 1 + n, {dtype = "float64"}):unsqueeze(2) * rates
    latest = {first = first, n = n, longest = longest}
    for name, values in pairs {cosines = angle:cos(), sines = angle:sin()} do
      values = values * (self.scaling.attention_factor or 1)
      latest[name] = core.keep(values:to(self.cosines.dtype):to(self.cosines.device))
    end
    self.latest = latest
  end
  return latest
end

-- Returns true if rates depend on the length of a sequence.
local function by_length_of(self) return self.scaling.rope_type == "dynamic" or self.scaling.long_factor ~= nil end

-- Returns the rows of both tables for the positions of x, which broadcast to [N, H, L, dim / 2].
local function rows_of(self, x, first, input_pos)
  local tables, start = self, 1
  local by_length = by_length_of(self)
  local last = input_pos and by_length and input_pos:max():item() or first - 1 + x.shape[3]
  if by_length then
    local rows = self.max_seq_len
    self.longest = last < rows and rows or math.max(last, self.longest)
    if self.longest > rows then
      tables, start = longer(self, input_pos and 1 or first, input_pos and last or x.shape[3]), input_pos and 1 or first
    end
  end
  local function rows_at_positions(values)
    if not input_pos then
      values = values:narrow(1, first - start + 1, x.shape[3])
    elseif input_pos.ndim == 1 then
      values = values:index_select(1, input_pos)
    else
      values = values:index_select(1, input_pos:reshape(-1)):view(input_pos.shape[1], 1, input_pos.shape[2], -1)
    end
    return values:to(x.dtype)
  end
  return rows_at_positions(tables.cosines), rows_at_positions(tables.sines)
end

--- Returns the cosines and sines for the positions of x, which rotate takes; layers of a net share them. The sines of
--- first elements of pairs are negative.
function RotaryPositionalEmbeddings:rows(x, first, input_pos)
  local who = "RotaryPositionalEmbeddings"
  shapes.check(who, "x", x, {"N", "H", "L", self.dim})
  if not input_pos and first - 1 + x.shape[3] > self.max_seq_len and not by_length_of(self) then
    fail("%s: positions %d to %d must be at most max_seq_len, %d", who, first, first - 1 + x.shape[3], self.max_seq_len)
  end
  local cos, sin = rows_of(self, x, first, input_pos)
  if not self.interleaved then return ops.cat({cos, cos}, -1), ops.cat({-sin, sin}, -1) end
  return ops.stack({cos, cos}, -1):flatten(-2), ops.stack({-sin, sin}, -1):flatten(-2)
end

--- Returns x, rotated by rows: the elements (a, b) of a pair become (a * cos - b * sin, b * cos + a * sin).
function RotaryPositionalEmbeddings:rotate(x, cos, sin)
  local others = self.interleaved and x:unflatten(-1, {-1, 2}):roll(1, -1):flatten(-2) or x:roll(self.dim / 2, -1)
  return x * cos + others * sin
end

RotaryPositionalEmbeddings.forward = signature.of([[RotaryPositionalEmbeddings(x: tensor, first: count = 1,
  input_pos: tensor?)]], function(self, x, first, input_pos) return self:rotate(x, self:rows(x, first, input_pos)) end)

return positions
