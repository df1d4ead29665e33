-- ONNX's recurrent nodes on the op of nn.LSTM and nn.GRU: values, gradients, lengths that a recording does not read.
local lm = require "luminary"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"

local GATES = {RNN = 1, GRU = 3, LSTM = 4}
local T, B, N, H = 6, 3, 4, 5
local ELEMENT = {float32 = 1, float16 = 10, float64 = 11, bfloat16 = 16}
local folder = temp.during(setup, teardown)

local function info(name, dtype) return {name = name, type = {tensor_type = {elem_type = dtype}}} end

-- Loads a graph of one recurrent node; o: {direction, lengths, states, attributes, dtype}.
local function load(kind, o)
  lm.manual_seed(5)
  local element, directions = ELEMENT[o.dtype or "float32"], o.direction == "bidirectional" and 2 or 1
  local function weight(name, ...)
    local t = lm.randn(directions, ...):to(o.dtype or "float32")
    return {name = name, data_type = element, dims = t.shape, raw_data = t}
  end
  local gates = GATES[kind] * H
  local attributes = {{name = "hidden_size", type = 2, i = H}}
  if o.direction then attributes[2] = {name = "direction", type = 3, s = o.direction} end
  for _, a in ipairs(o.attributes or {}) do attributes[#attributes + 1] = a end
  local inputs = {"x", "w", "r", "b", o.lengths and "lengths" or ""}
  local declared = {info("x", element)}
  if o.lengths then declared[2] = info("lengths", 6) end
  if o.states then
    inputs[6], declared[#declared + 1] = "h0", info("h0", element)
    if kind == "LSTM" then inputs[7], declared[#declared + 1] = "c0", info("c0", element) end
  end
  local outputs = {"y", "h", kind == "LSTM" and "c" or nil}
  local path = folder .. "/r.onnx"
  lm.core.onnx_write(path, {ir_version = 8, opset_import = {{version = 17}}, graph = {
    name = "g", input = declared, output = {info("y", element), info("h", element), outputs[3] and info("c", element)},
    initializer = {weight("w", gates, N), weight("r", gates, H), weight("b", 2 * gates)},
    node = {{op_type = kind, input = inputs, output = outputs, attribute = attributes}},
  }})
  return lm.onnx.load(path)
end

local function states(o, kind)
  local directions = o.direction == "bidirectional" and 2 or 1
  local function state() return lm.randn(directions, B, H):to(o.dtype or "float32") end
  if not o.states then return end
  return state(), kind == "LSTM" and state() or nil
end

-- Returns the results and gradients of a call, in order; weighted so that each result's gradient is another.
local function results_of(net, inputs)
  local x = inputs[1]:clone():requires_grad_(true)
  local given = {x, unpack(inputs, 2, #inputs)}
  local out, loss = {net(unpack(given))}, 0
  for k, y in ipairs(out) do loss = loss + ((y:double() + 0.3 * k) ^ 2):sum() end
  net:zero_grad()
  loss:backward()
  for _, p in ipairs(net:parameters()) do out[#out + 1] = p.grad end
  out[#out + 1] = x.grad
  return out
end

local LINEAR = {name = "linear_before_reset", type = 2, i = 1}
local CLIP = {name = "clip", type = 1, f = 1e4} -- with which each step is computed by ordinary ops
local function relu(count)
  local names = {}
  for i = 1, count do names[i] = "Relu" end
  return {name = "activations", type = 8, strings = names}
end

describe("recurrent nodes of lm.onnx", function()
  if needs.lacks(it, pending, needs.onnx()) then return end

  -- Calls f(kind, options) for each kind of layer that one op computes.
  local function each(f, directions)
    for _, kind in ipairs {"RNN", "RNN relu", "GRU", "LSTM"} do
      for _, direction in ipairs(directions or {"forward", "reverse", "bidirectional"}) do
        for variant = 0, 3 do
          local name = kind:match "%S+"
          f(name, {direction = direction, lengths = variant % 2 == 1, states = variant > 1, attributes = {
            name == "GRU" and LINEAR or kind ~= name and relu(direction == "bidirectional" and 2 or 1) or nil,
          }})
        end
      end
    end
  end

  for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
    it("computes by one op what steps compute, in " .. dtype, function()
      local limit = ({float16 = 2e-2, bfloat16 = 1e-1, float32 = 1e-5, float64 = 1e-12})[dtype]
      each(function(kind, o)
        o.dtype = dtype
        local fused = load(kind, o)
        o.attributes[#o.attributes + 1] = CLIP
        local steps = load(kind, o)
        local x = lm.randn(B, T, N):to(dtype):transpose(1, 2)
        local inputs = {x, unpack({o.lengths and lm.tensor({6, 1, 4}, {dtype = "int32"}) or nil})}
        for _, state in ipairs {states(o, kind)} do inputs[#inputs + 1] = state end
        local a, b = results_of(fused, inputs), results_of(steps, inputs)
        assert.equal(#b, #a)
        local is_kinked = #o.attributes > 1 and kind == "RNN" and limit > 1e-3 -- relu's: rounding decides
        for k = 1, is_kinked and 2 or #b do
          local scale = 1 + b[k]:double():abs():max():item()
          local difference = (a[k]:double() - b[k]:double()):abs():max():item()
          assert.is_true(difference <= limit * scale,
            ("%s %s, lengths %s, result %d: %g"):format(kind, o.direction, tostring(o.lengths), k, difference))
        end
      end, dtype ~= "float32" and {"bidirectional"} or nil)
    end)
  end

  it("runs a direction as one op, whatever the number of steps", function()
    each(function(kind, o)
      if o.states then return end
      local net = load(kind, o)
      local function ops_of(steps)
        local lengths = o.lengths and lm.tensor({steps, 1, 2}, {dtype = "int32"}) or nil
        local _, state = lm.prepare(net, unpack({lm.randn(steps, B, N), lengths}))
        assert.is_nil(state.reason)
        local ops, count = state.plan:ops(), 0
        for _, op in ipairs(ops) do count = count + (op == "recurrent_layer" and 1 or 0) end
        assert.equal(o.direction == "bidirectional" and 2 or 1, count)
        return #ops
      end
      assert.equal(ops_of(3), ops_of(40))
    end)
  end)

  it("holds a recording for other lengths, of which some may be 0", function()
    for _, kind in ipairs {"RNN", "GRU", "LSTM"} do
      for _, attributes in ipairs {{kind == "GRU" and LINEAR or nil}, {CLIP}} do
        local o = {direction = "bidirectional", lengths = true, states = true, attributes = attributes}
        local net, x = load(kind, o), lm.randn(T, B, N)
        local h, c = states(o, kind)
        local function call(f, v, lengths) return f(unpack {v, lm.tensor(lengths, {dtype = "int32"}), h, c}) end
        local run, state = lm.prepare(net)
        call(run, x, {6, 6, 6})
        for _, lengths in ipairs {{6, 2, 3}, {1, 0, 5}} do
          local y, last, cell = call(run, x, lengths)
          for b, length in ipairs(lengths) do
            local function of(t, dim) return t and t:narrow(dim, b, 1) or nil end
            assert.is_true(y:narrow(1, length + 1, T - length):narrow(3, b, 1):eq(0):all():item())
            if length == 0 then
              assert.is_true(lm.equal(of(last, 2), of(h, 2)))
            else
              local one = {load(kind, {direction = o.direction, states = true, attributes = attributes})(
                unpack {of(x, 2):narrow(1, 1, length), of(h, 2), of(c, 2)})}
              assert.is_true(lm.allclose(one[1], y:narrow(1, 1, length):narrow(3, b, 1), {atol = 1e-6}))
              assert.is_true(lm.allclose(one[2], of(last, 2), {atol = 1e-6}))
              if cell then assert.is_true(lm.allclose(one[3], of(cell, 2), {atol = 1e-6})) end
            end
          end
        end
        assert.equal(1, state.recordings)
        assert.is_nil(state.reason)
      end
    end
  end)
end)
