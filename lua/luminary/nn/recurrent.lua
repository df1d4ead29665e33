--- Defines recurrent layers: nn.RNN, nn.LSTM, nn.GRU over whole sequences, and the cells of one step.
---
--- On the CPU one direction of a layer is one op; on a GPU cuDNN computes all layers at once, without a second
--- gradient. With `layer.by_steps = true`, on other devices, and for networks that cuDNN does not support (proj_size),
--- ordinary ops compute each step, and have second gradients. Cells on a GPU are computed by ordinary ops too.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local init = require "luminary.nn.initializers"
local layer = require "luminary.nn.define_layer"
local printed = require "luminary.nn.print_values"
local shapes = require "luminary.tensor.shapes"
local PackedSequence = require("luminary.nn.utils.rnn").PackedSequence

local ops, arg, fail, describe = core.ops, options.arg, options.fail, options.describe
local recurrent = {}

-- Number of gates of each cell, by the op recurrent_layer's names.
local gates_of = {rnn_tanh = 1, rnn_relu = 1, gru = 3, lstm = 4}

-- ---- a layer in one direction, step by step

local step = {}

local function plain_step(activation)
  return function(x, w, h) return activation(x + ops.linear(h, w.hh, w.bias_hh)) end
end
step.rnn_tanh, step.rnn_relu = plain_step(ops.tanh), plain_step(ops.relu)

function step.gru(x, w, h)
  local i_reset, i_keep, i_fresh = unpack(x:chunk(3, 2))
  local reset, keep, fresh = unpack(ops.linear(h, w.hh, w.bias_hh):chunk(3, 2))
  keep = ops.sigmoid(i_keep + keep)
  fresh = ops.tanh(i_fresh + ops.sigmoid(i_reset + reset) * fresh)
  return fresh + keep * (h - fresh)
end

function step.lstm(x, w, h, c)
  local input, forget, fresh, output = unpack((x + ops.linear(h, w.hh, w.bias_hh)):chunk(4, 2))
  c = ops.sigmoid(forget) * c + ops.sigmoid(input) * ops.tanh(fresh)
  h = ops.sigmoid(output) * ops.tanh(c)
  return w.hr and ops.linear(h, w.hr) or h, c
end

-- Resizes t [rows, width] to the n rows of the next step: rows after n are moved to `ended`, new rows are from `start`.
local function resized(t, n, start, ended)
  local have = t.shape[1]
  if n < have then
    table.insert(ended, 1, t:narrow(1, n + 1, have - n))
    return t:narrow(1, 1, n)
  end
  return n == have and t or ops.cat({t, start:narrow(1, have + 1, n - have)})
end

-- Computes ops.recurrent_layer by ordinary ops; sizes[t] is the number of rows of step t.
local function run_by_steps(cell, gates, w, h0, c0, reverse, sizes)
  local first, at, outputs, ended_h, ended_c = {}, 1, {}, {}, {}
  for t, n in ipairs(sizes) do first[t], at = at, at + n end
  local from, to, by = 1, #sizes, 1
  if reverse then from, to, by = to, from, -1 end
  local h, c = h0:narrow(1, 1, sizes[from]), c0 and c0:narrow(1, 1, sizes[from])
  for t = from, to, by do
    h, c = resized(h, sizes[t], h0, ended_h), c and resized(c, sizes[t], c0, ended_c)
    h, c = step[cell](gates:narrow(1, first[t], sizes[t]), w, h, c)
    outputs[t] = h
  end
  table.insert(ended_h, 1, h)
  table.insert(ended_c, 1, c)
  return ops.cat(outputs), ops.cat(ended_h), c and ops.cat(ended_c)
end

-- Runs one direction of a layer over x [rows, inputs] from the states h0, c0. Returns all h, the last h and the last c.
local function run(self, cell, x, w, h0, c0, reverse, sizes)
  local fused = not self.by_steps and x.device == "cpu"
  local bias, bias_hh = w.bias_ih, nil
  if bias and cell == "gru" then
    bias_hh = w.bias_hh
  elseif bias then
    bias = bias + w.bias_hh
  end
  local gates = ops.linear(x, w.ih, bias)
  if fused then
    local remade = not core.is_autocast_enabled() -- autocast would convert x again
    local y, h, c = ops.recurrent_layer(gates, w.hh, h0, c0, bias_hh, w.hr, {
      cell = cell, reverse = reverse, batch_sizes = sizes.tensor, x = remade and x or nil,
      weight_ih = remade and w.ih or nil, bias_ih = remade and bias or nil,
    })
    if sizes.lengths then table.insert(PackedSequence.exported, {y, sizes.lengths}) end
    return y, h, c
  elseif sizes.lengths then
    fail("%s: lengths that are an input can be exported on the CPU alone, without by_steps", self.__name)
  end
  return run_by_steps(cell, gates, {hh = w.hh, bias_hh = bias_hh, hr = w.hr}, h0, c0, reverse, sizes:list())
end

-- Returns the number of rows of each step, in the form that `run` takes.
local function packed_sizes(tensor) return {tensor = tensor, list = function() return tensor:totable() end} end
local function equal_sizes(steps, n)
  return {list = function()
    local list = {}
    for t = 1, steps do list[t] = n end
    return list
  end}
end

local function check_dtype(who, name, t, weight)
  if not t:is_floating_point() then
    fail("%s: %s must be floating, got %s; use %s:to('%s')%s", who, name, t.dtype, name, weight.dtype,
      name == "x" and ", or nn.Embedding for class indices" or "")
  elseif t.dtype ~= weight.dtype and not core.is_autocast_enabled() then
    fail("%s: dtype mismatch: %s is %s, the parameters are %s; use %s:to('%s') or the layer's :to('%s')", who, name,
      t.dtype, weight.dtype, name, weight.dtype, t.dtype)
  end
end

-- Returns an initial state of these sizes, by default zeros in the dtype of `weight`; single: t lacks the dim `batch`.
local function initial_state(who, name, t, weight, device, sizes, batch, single)
  if t == nil then return ops.zeros(sizes, {dtype = weight.dtype, device = device}) end
  if single then table.remove(sizes, batch) end
  check_dtype(who, name, shapes.check(who, name, t, sizes), weight)
  return single and t:unsqueeze(batch) or t
end

-- Returns a parameter; fails unless it has those sizes, since a user may have assigned it.
local function parameter_of(self, name, ...) return shapes.check(self.__name, name, self[name], {...}) end

-- Makes the parameters of one direction of a layer, whose names end with `suffix`. `width` is the size of h.
local function make_direction(self, suffix, inputs, width, o)
  local gates = gates_of[self.mode] * self.hidden_size
  self["weight_ih" .. suffix] = layer.parameter({gates, inputs}, o)
  self["weight_hh" .. suffix] = layer.parameter({gates, width}, o)
  if o.bias then
    self["bias_ih" .. suffix] = layer.parameter({gates}, o)
    self["bias_hh" .. suffix] = layer.parameter({gates}, o)
  end
end

-- Returns a layer's parameters of one direction by role; biases are nil without bias, `hr` unless `projected`.
local function parameters_of(self, suffix, inputs, width, projected)
  local gates = gates_of[self.mode] * self.hidden_size
  return {
    ih = parameter_of(self, "weight_ih" .. suffix, gates, inputs),
    hh = parameter_of(self, "weight_hh" .. suffix, gates, width),
    hr = projected and parameter_of(self, "weight_hr" .. suffix, width, self.hidden_size) or nil,
    bias_ih = self.bias and parameter_of(self, "bias_ih" .. suffix, gates) or nil,
    bias_hh = self.bias and parameter_of(self, "bias_hh" .. suffix, gates) or nil,
  }
end

-- Returns h and, for an LSTM, c from a call's second argument: nil, a tensor or {h, c}.
local function states_of(who, cell, hx)
  if cell ~= "lstm" then
    if hx ~= nil and not core.is_tensor(hx) then options.must_be(who, "h0", "a tensor", hx) end
    return hx
  end
  if hx == nil then return nil, nil end
  if not options.is_plain(hx) or #hx ~= 2 then options.must_be(who, "the state", "{h, c}", hx) end
  return hx[1], hx[2]
end

-- ---- layers

local Recurrent = layer.define("RNNBase")

-- Returns the size of h.
local function width_of(self) return self.proj_size > 0 and self.proj_size or self.hidden_size end

local function directions_of(self) return self.bidirectional and 2 or 1 end

-- Returns the ending of the names of a direction's parameters, and the number of its inputs.
local function direction_of(self, l, direction)
  local suffix = ("_l%d%s"):format(l - 1, direction == 2 and "_reverse" or "")
  return suffix, l == 1 and self.input_size or width_of(self) * directions_of(self)
end

local function make_layers(self, cell, input_size, hidden_size, o)
  local who = self.__name
  self.mode, self.input_size, self.hidden_size = cell, input_size, hidden_size
  self.num_layers, self.bias, self.batch_first = o.num_layers, o.bias, o.batch_first
  self.dropout, self.bidirectional, self.proj_size = o.dropout, o.bidirectional, o.proj_size or 0
  if self.proj_size >= hidden_size then
    options.must_be(who, "proj_size", ("less than hidden_size, %d"):format(hidden_size), self.proj_size)
  end
  if o.dropout > 0 and o.num_layers == 1 then
    core.warn(("%s: dropout is between layers, and num_layers is 1: with %g nothing is dropped"):format(who, o.dropout))
  end
  local width = width_of(self)
  for l = 1, o.num_layers do
    for direction = 1, directions_of(self) do
      local suffix, inputs = direction_of(self, l, direction)
      make_direction(self, suffix, inputs, width, o)
      if self.proj_size > 0 then self["weight_hr" .. suffix] = layer.parameter({width, hidden_size}, o) end
    end
  end
  self:reset_parameters()
end

--- Draws the parameters again, from uniform(-k, k) with k = 1 / sqrt(hidden_size).
function Recurrent:reset_parameters()
  local bound = 1 / math.sqrt(self.hidden_size)
  for _, p in ipairs(self:parameters()) do init.uniform_(p, -bound, bound) end
end

--- Does nothing and returns the layer: parameters need no packing, and cuDNN's are packed at each call.
function Recurrent:flatten_parameters() return self end

local function weights_of(self, l, direction)
  local suffix, inputs = direction_of(self, l, direction)
  return parameters_of(self, suffix, inputs, width_of(self), self.proj_size > 0)
end

-- Returns the parameter whose dtype is the layer's.
local function first_weight(self)
  return parameter_of(self, "weight_hh_l0", gates_of[self.mode] * self.hidden_size, width_of(self))
end

-- Runs the layers from `first` to `last` by the device's library. Returns nothing if the library does not support them.
local function run_by_library(self, first, last, x, h0, c0, sizes)
  local o = {cell = self.mode, bidirectional = self.bidirectional, bias = self.bias}
  local list = {}
  for l = first, last do
    for direction = 1, directions_of(self) do
      local w = weights_of(self, l, direction)
      for _, name in ipairs(self.bias and {"ih", "hh", "bias_ih", "bias_hh"} or {"ih", "hh"}) do
        list[#list + 1] = w[name]
      end
    end
  end
  local weights = ops.recurrent_weights(list, o)
  if weights:numel() == 0 then return end
  o.keep, o.batch_sizes = core.is_grad_enabled(), sizes.tensor
  local y, h, c = ops.recurrent_network(x, weights, h0, c0, o)
  if y.ndim == 2 then return y, h, c0 and c end
end

-- Runs all layers by the library, but one at a time if dropout is between them, so that all devices draw equal masks.
local function all_by_library(self, x, h0, c0, sizes)
  local dropping, last_h, last_c = self.training and self.dropout > 0 and self.num_layers > 1, {}, {}
  if not dropping then return run_by_library(self, 1, self.num_layers, x, h0, c0, sizes) end
  local directions = directions_of(self)
  for l = 1, self.num_layers do
    local function part(t) return t and t:narrow(1, (l - 1) * directions + 1, directions) end
    local y, h, c = run_by_library(self, l, l, x, part(h0), part(c0), sizes)
    if not y then return end
    x, last_h[l], last_c[l] = l < self.num_layers and ops.dropout(y, self.dropout) or y, h, c
  end
  return x, ops.cat(last_h), c0 and ops.cat(last_c)
end

-- Runs all layers: x [rows, inputs], h0 [layers * directions, N, P], c0 [layers * directions, N, H]. Returns the output
-- and the last states in the same shapes.
local function run_layers(self, x, h0, c0, sizes)
  local directions, last_h, last_c = directions_of(self), {}, {}
  if x.device ~= "cpu" and not self.by_steps and self.proj_size == 0 and x.shape[1] > 0 then
    local y, h, c = all_by_library(self, x, h0, c0, sizes)
    if y then return y, h, c end
  end
  for l = 1, self.num_layers do
    local outputs = {}
    for direction = 1, directions do
      local i = #last_h + 1
      outputs[direction], last_h[i], last_c[i] = run(self, self.mode, x, weights_of(self, l, direction),
        h0:select(1, i), c0 and c0:select(1, i), direction == 2, sizes)
    end
    x = directions == 2 and ops.cat(outputs, 2) or outputs[1]
    if self.training and self.dropout > 0 and l < self.num_layers then x = ops.dropout(x, self.dropout) end
  end
  return x, ops.stack(last_h), c0 and ops.stack(last_c)
end

-- Returns the initial states, [layers * directions, N, …], after checking the caller's; `single`: they have no dim N.
local function first_states(self, x, h, c, n, single)
  local who, count = self.__name, self.num_layers * directions_of(self)
  local weight = first_weight(self)
  local function state(name, t, size)
    return initial_state(who, name, t, weight, x.device, {count, n, size}, 2, single)
  end
  return state("h0", h, width_of(self)), self.mode == "lstm" and state("c0", c, self.hidden_size) or nil
end

local function check_width(self, x, size)
  if size ~= self.input_size then
    options.wrong_shape(self.__name, "x", x, ("[*, %d] for input_size %d"):format(self.input_size, self.input_size))
  end
  check_dtype(self.__name, "x", x, first_weight(self))
end

local function results(y, h, c)
  if c then return y, {h, c} end
  return y, h
end

local function forward_packed(self, packed, h, c)
  packed:_checked(self.__name)
  local x, sizes, order, back = packed.data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
  if x.ndim ~= 2 then options.wrong_shape(self.__name, "packed data", x, "[steps, input_size]") end
  check_width(self, x, x.shape[2])
  local n = sizes[1]
  local function sorted(t, index) return t and (index and ops.index_select(t, 2, index:to(t.device)) or t) end
  h, c = first_states(self, x, h, c, n)
  local y
  local how = packed.lengths and equal_sizes(sizes.shape[1], n) or packed_sizes(sizes)
  how.lengths = packed.lengths
  y, h, c = run_layers(self, x, sorted(h, order), sorted(c, order), how)
  return results(PackedSequence(y, sizes, order, back, packed.lengths), sorted(h, back), sorted(c, back))
end

function Recurrent:forward(x, hx)
  local who = self.__name
  local h, c = states_of(who, self.mode, hx)
  if class.is(x, PackedSequence) then return forward_packed(self, x, h, c) end
  arg(who, "x", x, "tensor")
  if x.ndim ~= 2 and x.ndim ~= 3 then
    options.wrong_shape(who, "x", x,
      (self.batch_first and "[N, T, input_size]" or "[T, N, input_size]") .. ", [T, input_size] or a PackedSequence")
  end
  local single = x.ndim == 2
  check_width(self, x, x.shape[x.ndim])
  if single then x = x:unsqueeze(2) elseif self.batch_first then x = x:transpose(1, 2) end
  local steps, n, size = unpack(x.shape)
  if steps == 0 then fail("%s: x must have at least one step, got %s", who, describe(x)) end
  h, c = first_states(self, x, h, c, n, single)
  local y
  y, h, c = run_layers(self, x:reshape(steps * n, size), h, c, equal_sizes(steps, n))
  if single then return results(y, h:squeeze(2), c and c:squeeze(2)) end
  y = y:view(steps, n, y.shape[2])
  return results(self.batch_first and y:transpose(1, 2) or y, h, c)
end

function Recurrent:extra_repr()
  local parts = {("%d, %d"):format(self.input_size, self.hidden_size)}
  if self.proj_size > 0 then parts[#parts + 1] = "proj_size=" .. self.proj_size end
  if self.num_layers > 1 then parts[#parts + 1] = "num_layers=" .. self.num_layers end
  if not self.bias then parts[#parts + 1] = "bias=False" end
  if self.batch_first then parts[#parts + 1] = "batch_first=True" end
  if self.dropout > 0 then parts[#parts + 1] = "dropout=" .. printed.float(self.dropout) end
  if self.bidirectional then parts[#parts + 1] = "bidirectional=True" end
  return table.concat(parts, ", ")
end

-- ---- cells

local Cell = layer.define("RNNCellBase")

local function make_cell(self, cell, input_size, hidden_size, o)
  self.mode, self.input_size, self.hidden_size, self.bias = cell, input_size, hidden_size, o.bias
  make_direction(self, "", input_size, hidden_size, o)
  self:reset_parameters()
end

Cell.reset_parameters = Recurrent.reset_parameters

function Cell:forward(x, hx)
  local who, size = self.__name, self.hidden_size
  arg(who, "x", x, "tensor")
  if (x.ndim ~= 1 and x.ndim ~= 2) or x.shape[x.ndim] ~= self.input_size then
    options.wrong_shape(who, "x", x, ("[N, %d] or [%d]"):format(self.input_size, self.input_size))
  end
  local w = parameters_of(self, "", self.input_size, size)
  check_dtype(who, "x", x, w.hh)
  local single = x.ndim == 1
  if single then x = x:unsqueeze(1) end
  local n = x.shape[1]
  local function state(name, t) return initial_state(who, name, t, w.hh, x.device, {n, size}, 1, single) end
  local h, c = states_of(who, self.mode, hx)
  h, c = state("h", h), self.mode == "lstm" and state("c", c) or nil
  local _
  h, _, c = run(self, self.mode, x, w, h, c, false, equal_sizes(1, n))
  if single then h, c = h:squeeze(1), c and c:squeeze(1) end
  if self.mode == "lstm" then return h, c end
  return h
end

function Cell:extra_repr()
  local text = ("%d, %d"):format(self.input_size, self.hidden_size)
  if not self.bias then text = text .. ", bias=False" end
  if self.mode == "rnn_relu" then text = text .. ", nonlinearity=relu" end
  return text
end

-- ---- classes

-- Adds a class. rows: its options; set_fields(self, cell, input_size, hidden_size, options).
local function add(name, base, cell, rows, set_fields, help)
  local new = layer.define(name, base)
  local text = ("%s(input_size: count, hidden_size: count, {%s, device, dtype: string})"):format(name, rows)
  new.init = signature.of(text, function(self, input_size, hidden_size, o)
    self.nonlinearity = o.nonlinearity
    set_fields(self, o.nonlinearity and "rnn_" .. o.nonlinearity or cell, input_size, hidden_size, o)
  end)
  recurrent[name], new.__help = new, ("nn.%s(…): %s"):format(name, help)
end

local nonlinearity = 'nonlinearity = "tanh" | "relu"'
local common = "bias = true, batch_first = false, dropout: probability = 0, bidirectional = false"
add("RNN", Recurrent, nil, "num_layers: count = 1, " .. nonlinearity .. ", " .. common, make_layers,
  "Applies an Elman recurrent network to a sequence.")
add("GRU", Recurrent, "gru", "num_layers: count = 1, " .. common, make_layers,
  "Applies a network of gated recurrent units to a sequence.")
add("LSTM", Recurrent, "lstm", "num_layers: count = 1, " .. common .. ", proj_size: natural = 0", make_layers,
  "Applies a long short-term memory network to a sequence.")
recurrent.LSTM.__state_is = "the state is one argument, lstm(x, {h, c})"

add("RNNCell", Cell, nil, "bias = true, " .. nonlinearity, make_cell, "Computes one step of an nn.RNN.")
add("LSTMCell", Cell, "lstm", "bias = true", make_cell, "Computes one step of an nn.LSTM.")
add("GRUCell", Cell, "gru", "bias = true", make_cell, "Computes one step of an nn.GRU.")
recurrent.LSTMCell.__state_is = "the state is one argument, cell(x, {h, c})"

return recurrent
