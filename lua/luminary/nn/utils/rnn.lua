--- nn.utils.rnn: Batches sequences of different lengths, padded or packed.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local shapes = require "luminary.tensor.shapes"

local ops, fail = core.ops, options.fail
local rnn = {}

local function check_sequences(who, sequences)
  if not options.is_plain(sequences) or #options.list(who, "sequences", sequences) == 0 then
    options.expected(who, "a list of tensors", sequences)
  end
  for i, t in ipairs(sequences) do
    if options.arg(who, "sequence " .. i, t, "tensor").ndim < 1 then
      fail("%s: sequence %d must have at least 1 dim", who, i)
    end
  end
end

-- Pads the first dim of t by `before` and `after` entries of a value.
local function padded_rows(t, before, after, value)
  local sides = {}
  for k = 1, 2 * (t.ndim - 1) do sides[k] = 0 end
  sides[#sides + 1], sides[#sides + 2] = before, after
  return before + after > 0 and ops.pad(t, sides, {value = value}) or t
end

--- Joins sequences of different lengths into one padded tensor.
rnn.pad_sequence = signature.of([[pad_sequence(sequences, {batch_first = false, padding_value = 0,
  padding_side = "right" | "left"})]], function(sequences, opts)
  local who = "pad_sequence"
  check_sequences(who, sequences)
  local longest, padded, left = 0, {}, opts.padding_side == "left"
  local function after_first(t) return table.concat(t.shape, ", ", 2) end
  for i, t in ipairs(sequences) do
    longest = math.max(longest, t.shape[1])
    if t.ndim ~= sequences[1].ndim or after_first(t) ~= after_first(sequences[1]) then
      fail("%s: sequences may differ only in their first dim: sequence %d is %s, the first %s", who, i,
        options.describe(t), options.describe(sequences[1]))
    end
  end
  for i, t in ipairs(sequences) do
    local missing = longest - t.shape[1]
    padded[i] = padded_rows(t, left and missing or 0, left and 0 or missing, opts.padding_value)
  end
  return ops.stack(padded, opts.batch_first and 1 or 2)
end)

-- Returns the lengths (a list or a tensor [B]) of a padded batch [longest, B, …] as a list of integers ≥ min_length.
local function lengths_of(who, lengths, x, min_length, batch_first)
  if core.is_tensor(lengths) then
    if lengths.ndim ~= 1 then options.wrong_shape(who, "lengths", lengths, {x.shape[2]}) end
    lengths = lengths:totable()
  end
  options.list(who, "lengths", options.arg(who, "lengths", lengths, "table"))
  if #lengths ~= x.shape[2] then
    options.wrong_length(who, "lengths", x.shape[2], "sequence", #lengths, #lengths == x.shape[1] and (batch_first
      and "with batch_first = true x is [B, T, …], without it [T, B, …]"
      or "x is [T, B, …], or [B, T, …] with {batch_first = true}") or nil)
  end
  for i, n in ipairs(lengths) do
    local name = ("lengths[%d]"):format(i)
    options.arg(who, name, n, min_length == 0 and "natural" or "count")
    if n > x.shape[1] then options.must_be(who, name, ("at most %d, the number of steps"):format(x.shape[1]), n) end
  end
  return lengths
end

--- Splits a padded tensor into a list of sequences of different lengths.
rnn.unpad_sequence = signature.of([[unpad_sequence(padded: tensor, lengths,
  {batch_first = false})]], function(padded, lengths, opts)
  local who = "unpad_sequence"
  if padded.ndim < 2 then options.wrong_shape(who, "padded", padded, "[T, B, …]") end
  if opts.batch_first then padded = padded:transpose(1, 2) end
  return lists.map(lengths_of(who, lengths, padded, 0, opts.batch_first), function(n, i)
    return padded:select(2, i):narrow(1, 1, n)
  end)
end)

--- nn.utils.rnn.PackedSequence(data, batch_sizes): Holds sequences of different lengths as one batch without padding.
local PackedSequence = class.root("PackedSequence")
rnn.PackedSequence = PackedSequence

-- Remedies for names of tensors' methods, which the class lacks.
local of_data = "x.data has its numbers, and nn.utils.rnn.pad_packed_sequence(x) makes it one padded tensor"
PackedSequence.__missing = setmetatable({}, {__index = function(_, name)
  return rawget(core.methods, name) and "this is a PackedSequence: " .. of_data
end})
PackedSequence.__no_tensor = of_data

-- While lm.onnx.export records, PackedSequence.exported is a list of {result of a recurrent layer, its lengths}, and
-- lengths that depend on the inputs, int64 [B], are kept: data has the padding, which the file's recurrent nodes skip.
function PackedSequence:init(data, batch_sizes, sorted_indices, unsorted_indices, lengths)
  self.lengths = lengths and core.keep(lengths)
  self.data = core.keep(options.arg("PackedSequence", "data", data, "tensor"))
  self.batch_sizes = core.keep(options.arg("PackedSequence", "batch_sizes", batch_sizes, "tensor"))
  self.sorted_indices = sorted_indices and core.keep(sorted_indices)
  self.unsorted_indices = unsorted_indices and core.keep(unsorted_indices)
end

-- Returns the number of sequences of each step, a list; fails if fields that were set by hand do not match.
function PackedSequence:_checked(who)
  local data, sizes = self.data, self.batch_sizes
  if not core.is_tensor(data) or data.ndim == 0 then
    options.wrong_shape(who, "data of the PackedSequence", data, "[steps, …]")
  end
  if not core.is_tensor(sizes) or sizes.ndim ~= 1 or sizes.shape[1] == 0 or sizes.dtype ~= "int64" then
    fail("%s: batch_sizes of the PackedSequence must be int64 [steps of the longest sequence], got %s%s", who,
      core.is_tensor(sizes) and sizes.dtype .. ", " or "", options.describe(sizes))
  end
  local list, sum = sizes:totable(), 0
  for i, n in ipairs(list) do
    local size = tonumber(n)
    list[i], sum = size, sum + size
    if size < 1 or i > 1 and size > list[i - 1] then
      fail("%s: batch_sizes of the PackedSequence must be at least 1 and must not increase; at step %d it is %.0f", who,
        i, size)
    end
  end
  if sum ~= data.shape[1] then
    fail("%s: batch_sizes of the PackedSequence add up to %.0f, but its data has %d steps", who, sum, data.shape[1])
  end
  for _, name in ipairs {"sorted_indices", "unsorted_indices"} do
    local index = self[name]
    if index ~= nil then shapes.check(who, name .. " of the PackedSequence", index, {list[1]}) end
  end
  return list
end

-- Returns the same sequences with data on another device or in another dtype; the indices are on its device.
local function with_data(self, data)
  local sorted, unsorted = self.sorted_indices, self.unsorted_indices
  sorted, unsorted = sorted and sorted:to(data.device), unsorted and unsorted:to(data.device)
  return PackedSequence(data, self.batch_sizes, sorted, unsorted, self.lengths)
end

--- Returns the same sequences on a device or in a dtype.
function PackedSequence:to(...)
  self:_checked "PackedSequence:to"
  return with_data(self, self.data:to(...))
end

for _, name in ipairs {
  "cuda", "cpu", "double", "float", "half", "bfloat16", "long", "int", "short", "char", "byte",
} do
  --- Returns the same sequences, with data converted as the tensor method of this name does.
  PackedSequence[name] = function(self, ...)
    self:_checked("PackedSequence:" .. name)
    return with_data(self, self.data[name](self.data, ...))
  end
end

local function int64(list) return core.tensor(list, {dtype = "int64", device = "cpu"}) end

local function pack(who, x, lengths, opts)
  local enough = options.arg(who, "x", x, "tensor").ndim > 1 and x.shape[opts.batch_first and 1 or 2] > 0
  if not enough then options.wrong_shape(who, "x", x, "[T, B, …] with a B of at least 1") end
  if opts.batch_first then x = x:transpose(1, 2) end
  if core.is_tensor(lengths) and PackedSequence.exported and core.depends_on_inputs(lengths) then
    local T, B = x.shape[1], x.shape[2]
    local sizes = ops.full({T}, B, {dtype = "int64", device = "cpu"})
    return PackedSequence(ops.flatten(x, 1, 2), sizes, nil, nil, lengths:to(x.device):to "int64")
  end
  lengths = lengths_of(who, lengths, x, 1, opts.batch_first)
  local sorted, unsorted
  for i = 2, opts.enforce_sorted and #lengths or 0 do
    if lengths[i] > lengths[i - 1] then
      fail("%s: sequence %d is longer than the previous one; pass {enforce_sorted = false} to sort them", who, i)
    end
  end
  if not opts.enforce_sorted then
    local order = ops.argsort(int64(lengths), {descending = true, stable = true})
    lengths = lists.pick(lengths, order:totable())
    sorted, unsorted = order:to(x.device), ops.argsort(order):to(x.device)
    x = ops.index_select(x, 2, sorted)
  end
  local parts, sizes, size = {}, {}, #lengths
  for step = 1, lengths[1] do
    while lengths[size] < step do size = size - 1 end
    sizes[step], parts[step] = size, x:select(1, step):narrow(1, 1, size)
  end
  return PackedSequence(ops.cat(parts), int64(sizes), sorted, unsorted)
end

--- Packs a padded batch of sequences of different lengths.
rnn.pack_padded_sequence = signature.of([[pack_padded_sequence(x, lengths, {batch_first = false,
  enforce_sorted = true})]], function(x, lengths, opts) return pack("pack_padded_sequence", x, lengths, opts) end)

--- Pads a packed batch of sequences of different lengths.
rnn.pad_packed_sequence = signature.of([[pad_packed_sequence(packed, {batch_first = false, padding_value = 0,
  total_length: count})]], function(packed, opts)
  local who = "pad_packed_sequence"
  if not class.is(packed, PackedSequence) then options.expected(who, "a PackedSequence", packed) end
  local sizes, steps, lengths, first = packed:_checked(who), {}, {}, 1
  local count = sizes[1]
  local longest = opts.total_length or #sizes
  if longest < #sizes then
    options.must_be(who, "total_length", "at least " .. #sizes .. ", the longest sequence", longest)
  end
  if packed.lengths then
    local filled = load_module("luminary.onnx.ops.sizes").filled
    local x, n = packed.data:reshape {#sizes, count, unpack(packed.data.shape, 2)}, packed.lengths
    local at = ops.arange(#sizes, {dtype = "int64"}):reshape(filled(x.ndim, 1, 1, -1))
    x = ops.where(ops.gt(n:reshape(filled(x.ndim, 1, 2, -1)), at), x, opts.padding_value)
    x = padded_rows(x, 0, longest - #sizes, opts.padding_value)
    return opts.batch_first and x:transpose(1, 2) or x, n
  end
  for i = 1, count do lengths[i] = 0 end
  for step, size in ipairs(sizes) do
    steps[step] = padded_rows(packed.data:narrow(1, first, size), 0, count - size, opts.padding_value)
    first = first + size
    for i = 1, size do lengths[i] = step end
  end
  local x, n = padded_rows(ops.stack(steps), 0, longest - #sizes, opts.padding_value), int64(lengths)
  if packed.unsorted_indices then
    x = ops.index_select(x, 2, packed.unsorted_indices)
    n = ops.index_select(n, 1, packed.unsorted_indices:to("cpu"))
  end
  return opts.batch_first and x:transpose(1, 2) or x, n
end)

--- Packs a list of sequences of different lengths.
rnn.pack_sequence = signature.of("pack_sequence(sequences, {enforce_sorted = true})", function(sequences, opts)
  local who = "pack_sequence"
  check_sequences(who, sequences)
  local lengths = lists.map(sequences, function(t) return t.shape[1] end)
  return pack(who, rnn.pad_sequence(sequences), lengths, opts)
end)

--- Splits a packed batch into a list of sequences in their original order.
function rnn.unpack_sequence(packed) return rnn.unpad_sequence(rnn.pad_packed_sequence(packed)) end

return options.strict("nn.utils.rnn", signature.all(rnn))
