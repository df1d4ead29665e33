-- Layers of sequences against PyTorch's values (spec/golden/_sequences.safetensors).
local lm = require "luminary"
local golden = require "spec.support.golden"
local nn = lm.nn

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
local stored
setup(function() stored = golden.load("_sequences") end)
teardown(function() stored = nil end)

local function below(prefix)
  local found = {}
  for name, t in pairs(stored) do
    local rest = name:sub(1, #prefix) == prefix and name:sub(#prefix + 1)
    if rest then found[tonumber(rest) or rest] = t:to(device):clone() end
  end
  return found
end

-- Tensors of results, nested ones too, in their order.
local function flat(into, ...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if lm.is_tensor(value) then
      into[#into + 1] = value
    elseif type(value) == "table" then
      flat(into, unpack(value))
    end
  end
  return into
end

-- Expects that a layer with its stored state returns the stored results, and gradients of the sum of their squares.
-- `call`: what is done with the layer and its inputs, if they are not its arguments.
local function check(name, net, options, same, call)
  net = net:double():to(device)
  net:load_state_dict(below(name .. ".state."))
  local inputs, given = below(name .. ".in."), below(name .. ".mask.")
  assert.is_true(#inputs > 0)
  for _, x in ipairs(inputs) do x:requires_grad_() end
  for key, value in pairs(options or {}) do given[key] = value end
  local arguments = same and {inputs[1], inputs[1], inputs[1]} or {unpack(inputs)}
  if next(given) then arguments[#arguments + 1] = given end
  call = call or function() return net(unpack(arguments)) end
  local results = flat({}, call(net, inputs))
  local function near(what, got, want)
    local difference = golden.differs(got, want)
    if difference then error(name .. " " .. what .. ": " .. difference, 2) end
  end
  local loss, wanted = 0, below(name .. ".out.")
  assert.equal(#wanted, #results)
  for k, want in ipairs(wanted) do
    near("result " .. k, results[k], want)
    loss = loss + results[k]:square():sum()
  end
  loss:backward()
  for k, want in ipairs(below(name .. ".in_grad.")) do near("gradient of input " .. k, inputs[k].grad, want) end
  local grads = below(name .. ".grad.")
  for key, p in net:named_parameters() do near("gradient of " .. key, p.grad or lm.zeros_like(p), grads[key]) end
end

describe("attention", function()
  it("is PyTorch's MultiheadAttention", function()
    check("mha", nn.MultiheadAttention(6, 2))
    check("mha_self", nn.MultiheadAttention(6, 3, {batch_first = true}), nil, true)
    check("mha_plain", nn.MultiheadAttention(6, 2, {bias = false}), {need_weights = false}, true)
    check("mha_widths", nn.MultiheadAttention(6, 2, {kdim = 4, vdim = 5}), {average_attn_weights = false})
    check("mha_more", nn.MultiheadAttention(6, 2, {add_bias_kv = true, add_zero_attn = true}))
    check("mha_numbers", nn.MultiheadAttention(6, 2))
    check("mha_single", nn.MultiheadAttention(6, 2))
  end)

  it("makes PyTorch's transformers", function()
    local quiet = {dim_feedforward = 7, dropout = 0}
    local function encoder_layer() return nn.TransformerEncoderLayer(6, 2, quiet) end
    check("encoder_layer", encoder_layer())
    check("encoder_layer_first", nn.TransformerEncoderLayer(6, 2, {
      dim_feedforward = 7, dropout = 0, norm_first = true, activation = "gelu", batch_first = true, bias = false,
    }))
    check("decoder_layer", nn.TransformerDecoderLayer(6, 2, quiet))
    check("encoder", nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(6)))
    check("encoder", nn.TransformerEncoder(encoder_layer(), 2, {norm = nn.LayerNorm(6), enable_nested_tensor = false}))
    check("encoder", nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(6), true, false))
    check("transformer", nn.Transformer(6, 2, 2, 2, {dim_feedforward = 7, dropout = 0, batch_first = true}))
  end)

  it("sees no further than its own place by is_causal, with and without weights", function()
    local mha = nn.MultiheadAttention(6, 2, {batch_first = true}):to(device)
    local x = lm.randn({2, 5, 6}, {device = device})
    local later = x:clone()
    later[{{}, 5}] = 7
    for _, need in ipairs {true, false} do
      local y, weights = mha(x, x, x, {is_causal = true, need_weights = need})
      local z = mha(later, later, later, {is_causal = true, need_weights = need})
      assert.is_true(y:narrow(2, 1, 4):allclose(z:narrow(2, 1, 4), 1e-5, 1e-6))
      assert.is_false(y:allclose(z))
      assert.equal(need, weights ~= nil)
      assert.equal(need and 2 or 1, select("#", mha(x, x, x, {need_weights = need})))
      local mask = nn.Transformer.generate_square_subsequent_mask(5):to(device)
      assert.is_true(y:allclose(mha(x, x, x, {attn_mask = mask}), 1e-5, 1e-6))
    end
  end)

  it("says what is wrong with its inputs", function()
    local says = require "spec.support.says"
    local mha = nn.MultiheadAttention(6, 2)
    local x, y = lm.randn(4, 3, 6), lm.randn(5, 3, 6)
    says("^MultiheadAttention: embed_dim %(6%) must be divisible by num_heads %(4%)$", nn.MultiheadAttention, 6, 4)
    says("query, key and value must have the same batch size, and key and value the", function() mha(x, y, x) end)
    says("^MultiheadAttention: expected key to have shape %[length, batch, 6%], got %[4, 3, 5%]$",
      function() mha(x, lm.randn(4, 3, 5), x) end)
    says("^MultiheadAttention: value is missing or nil; expected a tensor$", function() mha(x, x) end)
    says("^MultiheadAttention: expected attn_mask to have shape %[4, 4%] or %[6, 4, 4%], got %[4, 5%]$",
      function() mha(x, x, x, {attn_mask = lm.ones(4, 5)}) end)
    says("^MultiheadAttention: attn_mask must be bool %(true: masked%) or floating, got a tensor %[4, 4%]$",
      function() mha(x, x, x, {attn_mask = lm.ones(4, 4):long()}) end)
    says("^MultiheadAttention: expected key_padding_mask to have shape %[3, 4%], got %[4, 4%]$",
      function() mha(x, x, x, {key_padding_mask = lm.ones(4, 4)}) end)
    says("expected key_padding_mask to have shape %[3, 4%], got %[4, 3%]",
      mha, x, x, x, {key_padding_mask = lm.ones(3, 4):t()})
    says("^MultiheadAttention: unknown option 'need_weight'; did you mean 'need_weights'%?$",
      function() mha(x, x, x, {need_weight = true}) end)
    for _, name in ipairs {"TransformerEncoder", "TransformerDecoder"} do
      local one = nn.Linear(1, 1)
      says(name .. ": norm must be a module, got 5", function() nn[name](one, 2, 5) end)
      says(name .. ": unknown option 'nrom'; did you mean 'norm'", function() nn[name](one, 2, {nrom = one}) end)
      assert.equal(one, nn[name](one, 2, {norm = one}).norm)
    end
    says("^TransformerEncoderLayer: activation must be 'relu', 'gelu' or a function, got string 'tanh'$",
      function() nn.TransformerEncoderLayer(6, 2, {activation = "tanh"}) end)
  end)
end)

describe("recurrent layers", function()
  -- Tests a layer in one op and step by step.
  local function both(name, make, lengths)
    for _, by_steps in ipairs {false, true} do
      local net = make()
      net.by_steps = by_steps
      check(name, net, nil, false, function(layer, inputs)
        local x, hx = inputs[1], inputs[3] and {inputs[2], inputs[3]} or inputs[2]
        if not lengths then return layer(x, hx) end
        local y, last = layer(nn.utils.rnn.pack_padded_sequence(x, lengths, {enforce_sorted = lengths[1] == 4}), hx)
        return y.data, last
      end)
    end
  end

  it("are PyTorch's RNN, GRU and LSTM", function()
    for name, kind in pairs {rnn = nn.RNN, gru = nn.GRU, lstm = nn.LSTM} do
      local function of(...)
        local arguments = {...}
        return function() return kind(3, 4, unpack(arguments)) end
      end
      both(name .. "_plain", of())
      both(name .. "_states", of {num_layers = 2, bidirectional = true})
      both(name .. "_no_bias", of {bias = false, batch_first = true})
      both(name .. "_single", of {bidirectional = true})
      both(name .. "_packed", of {num_layers = 2, bidirectional = true}, {4, 2, 1})
      both(name .. "_unsorted", of {bidirectional = true}, {2, 4, 2})
    end
    both("rnn_relu", function() return nn.RNN(3, 4, 2, "relu", true, false, 0, true) end)
    both("lstm_projected", function() return nn.LSTM(3, 4, 2, true, false, 0, true, 2) end)
    both("lstm_projected_packed", function() return nn.LSTM(3, 4, {proj_size = 2, bidirectional = true}) end, {1, 4, 2})
  end)

  it("have PyTorch's cells", function()
    both("rnn_cell", function() return nn.RNNCell(3, 4) end)
    both("rnn_cell_relu", function() return nn.RNNCell(3, 4, false, "relu") end)
    both("gru_cell", function() return nn.GRUCell(3, 4) end)
    both("gru_cell_single", function() return nn.GRUCell(3, 4) end)
    both("lstm_cell", function() return nn.LSTMCell(3, 4) end)
    both("lstm_cell_single", function() return nn.LSTMCell(3, 4, {bias = false}) end)
  end)

  -- Expects equal results and gradients in one op, or by the library, and step by step, on one thread and several.
  local function same(net, x, hx)
    local function values(by_steps)
      net.by_steps = by_steps
      net:zero_grad()
      x.grad = nil
      local list = flat({}, net(x, hx))
      local loss = 0
      for k, y in ipairs(list) do loss = loss + (y * (k + 1)):sin():sum() end
      loss:backward()
      list[#list + 1] = x.grad
      for _, p in ipairs(net:parameters()) do list[#list + 1] = p.grad end
      return list
    end
    local want = values(true)
    for i, got in ipairs(values(false)) do
      assert.near(0, (got - want[i]):abs():max():item(), got.dtype == "float64" and 1e-11 or 1e-3)
    end
  end

  it("are the same for sizes beyond one block, in both widths of numbers", function()
    local cudnn = lm.backends.cudnn
    local tf32 = cudnn.allow_tf32
    finally(function() cudnn.allow_tf32 = tf32 end)
    cudnn.allow_tf32 = false
    for _, dtype in ipairs {"float32", "float64"} do
      for _, n in ipairs {1, 3, 21} do
        local o = {dtype = dtype, device = device}
        local x = lm.randn({6, n, 37}, {dtype = dtype, device = device, requires_grad = true})
        same(nn.LSTM(37, 150, o), x)
        same(nn.GRU(37, 150, o), x)
        same(nn.RNN(37, 150, o), x)
        same(nn.LSTM(37, 150, {dtype = dtype, device = device, proj_size = 70, bidirectional = true}), x)
      end
    end
  end)

  it("take empty batches, and name what is no sequence", function()
    local x = lm.zeros({5, 0, 3}, {device = device, requires_grad = true})
    for _, by_steps in ipairs {false, true} do
      local net = nn.LSTM(3, 4, 2, {bidirectional = true}):to(device)
      net.by_steps = by_steps
      local y, hc = net(x)
      y:sum():backward()
      assert.same({{5, 0, 8}, {4, 0, 4}, {4, 0, 4}}, {y.shape, hc[1].shape, hc[2].shape})
      assert.same({5, 0, 3}, x.grad.shape)
      assert.equal(0, net.weight_hh_l0.grad:abs():max():item())
    end
    local h, c = lm.randn(2, 3), lm.randn(2, 3) -- no steps leave the state as it is
    local _, h_n, c_n = lm.recurrent_layer(lm.zeros(0, 12), lm.randn(12, 3), h, c)
    assert.is_true(h:equal(h_n) and c:equal(c_n))
    assert.same({0, 4}, nn.GRUCell(3, 4):to(device)(lm.zeros({0, 3}, {device = device})).shape)
    assert.error_matches(function() nn.GRU(3, 4)(lm.zeros(0, 2, 3)) end,
      "^GRU: x must have at least one step, got a tensor %[0, 2, 3%]$")
  end)

  it("drop between layers while training alone", function()
    local net = nn.GRU(3, 40, 2, {dropout = 0.5}):to(device)
    local x = lm.randn({4, 30, 3}, {device = device})
    net:eval()
    local quiet = net(x)
    assert.is_true(quiet:equal((net(x))))
    net:train()
    assert.is_false(quiet:equal((net(x))))
    -- The layer after it gets each number doubled or not at all.
    for name, p in net:named_parameters() do
      if name:find "l1" then lm.no_grad(function() p:zero_() end) end
    end
    lm.no_grad(function() net.weight_ih_l1:narrow(1, 81, 40):copy_(lm.eye(40):mul(1e-3):to(device)) end)
    local first = nn.GRU(3, 40):to(device)
    for name, p in first:named_parameters() do lm.no_grad(function() p:copy_(net[name]) end) end
    local given = first(x):select(1, 1)
    local ratio = net(x):select(1, 1) / given * 2e3 -- half of it, for z is 1/2
    local dropped = ratio:eq(0):float():mean():item()
    assert.near(0.5, dropped, 0.1)
    assert.near(2, ratio:max():item(), 0.01)
    assert.error_matches(function() nn.GRU(3, 4, {dropout = 2}) end,
      "^GRU: dropout must be a number from 0 to 1, got 2$")
  end)

  it("have second gradients step by step", function()
    local net = nn.LSTM(2, 3, {proj_size = 2}):double():to(device)
    local x = lm.randn({3, 2, 2}, {dtype = "float64", device = device, requires_grad = true})
    local function f(input) return (net(input)) end
    assert.is_true(lm.autograd.gradcheck(f, {x}))
    net.by_steps = true
    assert.is_true(lm.autograd.gradgradcheck(f, {x}))
  end)

  -- Returns the gradients of sum((d loss / d x)^2), of x and of all parameters.
  local function penalty(net, x, call)
    net:zero_grad()
    local loss = 0
    for k, y in ipairs(call(net, x)) do loss = loss + (y * y * k):sin():sum() end
    local g = lm.autograd.grad(loss, x, {create_graph = true})[1]
    local all = {x}
    for _, p in ipairs(net:parameters()) do all[#all + 1] = p end
    return lm.autograd.grad(g:square():sum(), all, {allow_unused = true})
  end

  local function everything(net, input)
    local y, state = net(input)
    if not lm.is_tensor(y) then y = y.data end
    if type(state) == "table" then return {y, state[1], state[2]} end
    return {y, state}
  end

  local kinds = {
    LSTM = {{}, {proj_size = 2}, {bias = false}}, GRU = {{}, {bias = false}}, RNN = {{}, {nonlinearity = "relu"}},
  }
  for kind, all in pairs(kinds) do
    for _, o in ipairs(all) do
      for _, shape in ipairs {{}, {num_layers = 2, bidirectional = true}} do
        local opts = {num_layers = shape.num_layers, bidirectional = shape.bidirectional}
        for k, v in pairs(o) do opts[k] = v end
        it(("have the second gradients of their steps: %s %s"):format(kind, lm.repr(opts):gsub("%s+", " ")), function()
          local net = nn[kind](2, 3, opts):double()
          local function agree(x, call)
            local fused = penalty(net, x, call)
            net.by_steps = true
            local by_steps = penalty(net, x, call)
            net.by_steps = nil
            for i, g in ipairs(by_steps) do assert.is_true(lm.allclose(fused[i], g, {rtol = 1e-9, atol = 1e-12})) end
          end
          local x = lm.randn({4, 3, 2}, {dtype = "float64"}):requires_grad_()
          agree(x, everything)
          agree(x, function(n, input)
            return everything(n, nn.utils.rnn.pack_padded_sequence(input, {2, 4, 1},
              {enforce_sorted = false}))
          end)
        end)
      end
    end
  end

  it("have second gradients in cells, with dropout and in halves", function()
    for _, cell in ipairs {nn.LSTMCell(2, 3), nn.GRUCell(2, 3), nn.RNNCell(2, 3), nn.RNNCell(2, 3, {bias = false})} do
      cell:double()
      local x = lm.randn({3, 2}, {dtype = "float64", requires_grad = true})
      local h = lm.randn({3, 3}, {dtype = "float64", requires_grad = true})
      local lstm = cell.mode == "lstm"
      assert.is_true(lm.autograd.gradgradcheck(function(input, state)
        return (cell(input, lstm and {state, state * 2} or state))
      end, {x, h}))
    end
    local net = nn.GRU(2, 3, {num_layers = 2, dropout = 0.5}):double()
    local x = lm.randn({3, 2, 2}, {dtype = "float64", requires_grad = true})
    assert.is_true(lm.autograd.gradgradcheck(function(input)
      lm.manual_seed(1)
      return (net(input))
    end, {x}))
    local low = nn.LSTM(2, 3, {dtype = "bfloat16"})
    local half = lm.randn({3, 2, 2}, {dtype = "bfloat16"}):requires_grad_()
    for _, g in ipairs(penalty(low, half, everything)) do assert.equal("bfloat16", g.dtype) end
    lm.autocast({dtype = "bfloat16"}, function()
      local g = penalty(nn.LSTM(2, 3), lm.randn(3, 2, 2):requires_grad_(), everything)
      assert.is_true(g[1]:isfinite():all():item())
    end)
  end)

  -- torch.nn.LSTM(1, 1) with all parameters 0.5, x = [[1], [-1]]: the gradient of sum(g^2), g = d sum(y) / d x.
  it("have PyTorch's second gradients", function()
    local want = {
      LSTM = {-0.0625871309649634, 0.249781148512038, -0.0149851794165407, -0.125174261929927, -0.125174261929927},
      GRU = {-0.0529906115579, 0.245604139945573, -0.0112141334691645, -0.1059812231158, -0.0722285059406955},
      RNN = {-0.108003411858412, 0.351225273170188, -0.133441441544729, -0.216006823716823, -0.216006823716823},
    }
    for _, kind in ipairs {"LSTM", "GRU", "RNN"} do
      local net = nn[kind](1, 1, {dtype = "float64"})
      lm.no_grad(function() for _, p in ipairs(net:parameters()) do p:fill_(0.5) end end)
      local x = lm.tensor({{1}, {-1}}, {dtype = "float64"}):requires_grad_()
      local g = lm.autograd.grad((net(x)):sum(), x, {create_graph = true})[1]
      g:square():sum():backward()
      for i, value in ipairs(want[kind]) do
        local have = i == 1 and x.grad or net:parameters()[i - 1].grad
        assert.near(value, have:sum():item(), 1e-12)
      end
    end
  end)

  it("take 16-bit floats, and autocast", function()
    local net = nn.LSTM(8, 8):to(device)
    local x = lm.randn({4, 2, 8}, {device = device})
    local y = net(x)
    local low = nn.LSTM(8, 8, {dtype = "bfloat16"}):to(device)
    low:load_state_dict(net:state_dict())
    local z = low(x:to "bfloat16")
    assert.equal("bfloat16", z.dtype)
    assert.near(0, (z:float() - y):abs():max():item(), 0.03)
    z:sum():backward()
    assert.equal("bfloat16", low.weight_hh_l0.grad.dtype)
    lm.autocast({dtype = "bfloat16"}, function() z = net(x) end)
    assert.near(0, (z:float() - y):abs():max():item(), 0.03)
  end)

  it("print as PyTorch's, begin within 1 / sqrt(hidden_size) and name their parameters as it does", function()
    assert.equal("LSTM(3, 4, proj_size=2, num_layers=2, bias=False, batch_first=True, dropout=0.5)",
      tostring(nn.LSTM(3, 4, 2, false, true, 0.5, false, 2)))
    assert.equal("RNNCell(3, 4, bias=False, nonlinearity=relu)", tostring(nn.RNNCell(3, 4, false, "relu")))
    local net = nn.LSTM(3, 16, {proj_size = 2, bidirectional = true})
    local names = {}
    for name, p in net:named_parameters() do
      names[#names + 1] = name
      assert.is_true(p:abs():max():item() <= 0.25)
    end
    assert.equal("weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_hr_l0 weight_ih_l0_reverse "
      .. "weight_hh_l0_reverse bias_ih_l0_reverse bias_hh_l0_reverse weight_hr_l0_reverse", table.concat(names, " "))
    assert.is_true(net.weight_hh_l0:max():item() > 0.2)
    net:flatten_parameters()
  end)

  it("say what is wrong with what they get", function()
    local says = require "spec.support.says"
    local gru, lstm, x = nn.GRU(3, 4), nn.LSTM(3, 4), lm.randn(5, 2, 3)
    says("^GRU: expected x to have shape %[%*, 3%] for input_size 3, got %[5, 2, 2%]$", gru, lm.randn(5, 2, 2))
    says("^GRU: expected x to have shape %[T, N, input_size%], %[T, input_size%] or a PackedSequence, got %[5%]$",
      function() gru(lm.randn(5)) end)
    says("^GRU: x is missing or nil; expected a tensor$", function() gru() end)
    says("GRU: dtype mismatch: x is float64, the parameters are float32", function() gru(x:double()) end)
    says("^LSTM: x must be floating, got int64; use x:to%('float32'%), or nn%.Embedding for class indices$",
      function() lstm(x:long()) end)
    says("LSTM: dtype mismatch: h0 is float64, the parameters are float32; use h0:to%('float32'%) or the layer's",
      function() lstm(x, {lm.zeros(1, 2, 4):double(), lm.zeros(1, 2, 4)}) end)
    says("^GRUCell: x must be floating, got bool; use x:to%('float32'%), or nn%.Embedding for class indices$",
      function() nn.GRUCell(3, 4)(x[1]:gt(0)) end)
    says("^GRU: expected h0 to have shape %[1, 2, 4%], got %[1, 3, 4%]$", function() gru(x, lm.zeros(1, 3, 4)) end)
    says("^GRU: expected h0 to have shape %[1, 4%], got %[1, 1, 4%]$", gru, lm.randn(5, 3), lm.zeros(1, 1, 4))
    says("^GRU: h0 must be a tensor, got a table$", function() gru(x, {lm.zeros(1, 2, 4)}) end)
    says("^LSTM: the state must be {h, c}, got a tensor %[1, 2, 4%]$", function() lstm(x, lm.zeros(1, 2, 4)) end)
    says("^LSTM: expected c0 to have shape %[1, 2, 4%], got %[1, 2, 3%]$",
      function() lstm(x, {lm.zeros(1, 2, 4), lm.zeros(1, 2, 3)}) end)
    says("^LSTM: proj_size must be less than hidden_size, 4, got 4$", function() nn.LSTM(3, 4, {proj_size = 4}) end)
    says("unknown option 'proj_size'", function() nn.GRU(3, 4, {proj_size = 2}) end)
    says("^GRU: hidden_size must be an integer of at least 1, got 0$", function() nn.GRU(3, 0) end)
    says("^GRU: num_layers must be an integer of at least 1, got 0$", function() nn.GRU(3, 4, 0) end)
    says("^RNN: nonlinearity must be one of 'tanh', 'relu', got string 'gelu'; did you mean 'relu'%?$",
      function() nn.RNN(3, 4, {nonlinearity = "gelu"}) end)
    says("^GRUCell: expected x to have shape %[N, 3%] or %[3%], got %[5, 2, 3%]$", function() nn.GRUCell(3, 4)(x) end)
    says("^GRUCell: expected h to have shape %[2, 4%], got %[3, 4%]$",
      function() nn.GRUCell(3, 4)(x[1], lm.zeros(3, 4)) end)
  end)

  it("say what is wrong with parameters that were set by hand", function()
    local says = require "spec.support.says"
    local x = lm.randn(5, 2, 3)
    for name, gates in pairs {RNN = 4, GRU = 12, LSTM = 16} do
      for _, by_steps in ipairs {false, true} do
        local net = nn[name](3, 4, {num_layers = 2, bidirectional = true})
        net.by_steps = by_steps
        for _, suffix in ipairs {"ih_l0", "hh_l1_reverse"} do
          local was = net["bias_" .. suffix]
          net["bias_" .. suffix] = nn.Parameter(lm.randn(1))
          says(("%s: expected bias_%s to have shape %%[%d%%], got %%[1%%]"):format(name, suffix, gates), net, x)
          net["bias_" .. suffix] = nil
          says(("%s: expected bias_%s to have shape %%[%d%%], got nil"):format(name, suffix, gates), net, x)
          net["bias_" .. suffix] = was
        end
        net.weight_ih_l1 = nn.Parameter(lm.randn(gates, 3))
        says(("%s: expected weight_ih_l1 to have shape %%[%d, 8%%], got %%[%d,"):format(name, gates, gates), net, x)
        net.weight_hh_l0 = nil
        says(("%s: expected weight_hh_l0 to have shape %%[%d, 4%%], got nil"):format(name, gates), net, x)
        says(("%s: expected weight_hh_l0 to have shape"):format(name), net,
          nn.utils.rnn.pack_padded_sequence(x, {5, 2}))
      end
      local cell = nn[name .. "Cell"](3, 4)
      cell.bias_hh = nn.Parameter(lm.randn(1))
      says(("%sCell: expected bias_hh to have shape %%[%d%%], got %%[1%%]"):format(name, gates), cell, x[1])
      cell.weight_hh = nil
      says(("%sCell: expected weight_hh to have shape %%[%d, 4%%], got nil"):format(name, gates), cell, x[1])
    end
    local projected = nn.LSTM(3, 4, {proj_size = 2})
    projected.weight_hr_l0 = nn.Parameter(lm.randn(1, 4))
    says("^LSTM: expected weight_hr_l0 to have shape %[2, 4%], got %[1, 4%]$", projected, x)
  end)

  it("say what is wrong with sequences and lengths", function()
    local rnn, x = nn.utils.rnn, lm.ones(3, 2, 4)
    local function fails(words, f, ...)
      local ok, problem = pcall(f, ...)
      assert.is_false(ok)
      assert.matches(words, problem)
    end
    fails("pad_sequence: sequences may differ only in their first dim: sequence 2 is a tensor %[2, 3%], the first a",
      rnn.pad_sequence, {lm.ones(3, 2), lm.ones(2, 3)})
    fails("pad_sequence: sequences may differ only in their first", rnn.pad_sequence, {lm.ones(3, 2), lm.ones(3)})
    fails("pack_sequence: sequence 2 is longer", rnn.pack_sequence, {lm.ones(1, 2), lm.ones(3, 2)})
    fails("pack_sequence: lengths%[2%] must be an integer of at least", rnn.pack_sequence,
      {lm.ones(1, 2), lm.ones(0, 2)})
    fails("pack_padded_sequence: expected x to have shape %[T, B, …%] with a B of at least 1, got %[4, 0, 3%]$",
      rnn.pack_padded_sequence, lm.ones(4, 0, 3), {})
    fails("pack_padded_sequence: lengths%[1%] must be at most 3, the number of steps, got 4$",
      rnn.pack_padded_sequence, x, {4, 1})
    fails("unpad_sequence: lengths%[1%] must be at most 3, the number of steps, got 4$",
      rnn.unpad_sequence, x, {4, 1})
    fails("unpad_sequence: lengths must have 2 entries, one for each sequence, got 1",
      rnn.unpad_sequence, x, {3})
    fails("unpad_sequence: lengths must have 2 entries, one for each sequence, got 3",
      rnn.unpad_sequence, x, {3, 1, 1})
    fails("unpad_sequence: lengths%[2%] must be an integer of at least 0, got 1%.5", rnn.unpad_sequence, x, {3, 1.5})
    fails("unpad_sequence: expected padded to have shape %[T, B, …%], got %[3%]", rnn.unpad_sequence, lm.ones(3), {3})
    local parts = rnn.unpad_sequence(x:transpose(1, 2), lm.tensor({3, 0}, {dtype = "int64"}), {batch_first = true})
    assert.same({{3, 4}, {0, 4}}, {{parts[1]:size(1), parts[1]:size(2)}, {parts[2]:size(1), parts[2]:size(2)}})
  end)

  it("say what is wrong with a PackedSequence that was changed by hand", function()
    local rnn, net = nn.utils.rnn, nn.GRU(3, 4)
    local function long(list) return lm.tensor(list, {dtype = "int64"}) end
    for _, case in ipairs {
      {"batch_sizes", lm.zeros({0}, {dtype = "int64"}), "batch_sizes of the PackedSequence must be int64 %[.*got"},
      {"batch_sizes", long {{2, 2, 1}}, "batch_sizes of the PackedSequence must be int64 %[.*got int64, a tensor %[1,"},
      {"batch_sizes", lm.tensor {2, 2, 1}, "batch_sizes of the PackedSequence must be int64 %[.*got float32, a tensor"},
      {"batch_sizes", {2, 2, 1}, "batch_sizes of the PackedSequence must be int64 %[.*got a table"},
      {"batch_sizes", long {2 ^ 62, 2 ^ 62}, "batch_sizes of the PackedSequence add up to 9223372036854775808, but"},
      {"batch_sizes", long {2, 3}, "batch_sizes of the PackedSequence must be at least 1 .*at step 2 it is 3"},
      {"batch_sizes", long {5, 1, -1}, "batch_sizes of the PackedSequence must be at least 1 .*at step 3 it is %-1"},
      {"batch_sizes", long {2, 2}, "batch_sizes of the PackedSequence add up to 4, but its data has 5 steps"},
      {"data", "x", "expected data of the PackedSequence to have shape %[steps, …%], got string 'x'"},
      {"data", lm.tensor(3), "expected data of the PackedSequence to have shape %[steps, …%], got %[%]"},
      {"unsorted_indices", long {1}, "expected unsorted_indices of the PackedSequence to have shape %[2%], got %[1%]"},
      {"sorted_indices", {1, 2}, "expected sorted_indices of the PackedSequence to have shape %[2%], got a table"},
    } do
      local field, value, words = unpack(case)
      for who, f in pairs {
        GRU = net, pad_packed_sequence = rnn.pad_packed_sequence,
        ["PackedSequence:to"] = function(packed) return packed:to "float64" end,
      } do
        local packed = rnn.pack_padded_sequence(lm.randn(3, 2, 3), {3, 2})
        packed[field] = value
        assert.error_matches(function() f(packed) end, who .. ": " .. words)
      end
    end
  end)
end)

describe("a PackedSequence", function()
  local rnn = nn.utils.rnn
  local function packed()
    return rnn.pack_padded_sequence(lm.randn(3, 2, 4), {2, 3}, {enforce_sorted = false})
  end

  it("changes its dtype and device as a tensor does", function()
    local p = packed()
    local q = p:double()
    assert.equal("float64", q.data.dtype)
    assert.is_true(q.data:float():equal(p.data))
    assert.is_true(q.sorted_indices:equal(p.sorted_indices) and q.batch_sizes:equal(p.batch_sizes))
    assert.equal("float16", p:half().data.dtype)
    assert.equal("cpu", tostring(p:cpu().data.device))
    local y = nn.LSTM(4, 2, {dtype = "float64"})(q)
    assert.equal("float64", y.data.dtype)
  end)

  it("says where its tensor is to what asks for one", function()
    local p = packed()
    assert.is_nil(rnn.pack_sequence({lm.ones(2, 1)}).sorted_indices) -- a field, no method of tensors
    assert.error_matches(function() p:mean() end, "no field 'mean'; this is a PackedSequence: x%.data has its")
    assert.error_matches(function() nn.Linear(4, 2)(p) end,
      "x must be a tensor, got a PackedSequence; x.data .*pad_packed_sequence")
  end)

  it("is made of lengths that fit the dim of sequences", function()
    local x = lm.randn(4, 7, 2)
    assert.error_matches(function() rnn.pack_padded_sequence(x, {7, 5, 3, 2}) end,
      "lengths must have 7 entries, one for each sequence, got 4; "
        .. "x is %[T, B, …%], or %[B, T, …%] with {batch_first = true}")
    assert.error_matches(function() rnn.pack_padded_sequence(x, {7, 5, 3, 2, 1, 1, 1}, {batch_first = true}) end,
      "lengths must have 4 entries, one for each sequence, got 7; "
        .. "with batch_first = true x is %[B, T, …%], without it %[T, B, …%]")
    assert.error_matches(function() rnn.pack_padded_sequence(x, lm.ones(4, 7)) end,
      "^pack_padded_sequence: expected lengths to have shape %[7%], got %[4, 7%]$")
  end)
end)

describe("the state of an LSTM", function()
  it("is one argument, as an error says", function()
    local x, h = lm.randn(3, 2, 4), lm.zeros(1, 2, 5)
    assert.error_matches(function() nn.LSTM(4, 5)(x, h, h) end,
      "^LSTM: forward takes 2 arguments, got 3; the state is one argument, lstm%(x, {h, c}%)$")
    assert.error_matches(function() nn.LSTMCell(4, 5)(x[1], h[1], h[1]) end,
      "^LSTMCell: forward takes 2 arguments, got 3; the state is one argument, cell%(x, {h, c}%)$")
  end)

  it("is to be detached before the next step, as an error says", function()
    local cell = nn.GRUCell(4, 5)
    local h = cell(lm.ones(2, 4))
    h:sum():backward()
    h = cell(lm.ones(2, 4), h)
    assert.error_matches(function() h:sum():backward() end,
      "saved tensors were freed .*retain_graph = true} to the first; detach%(%) a state")
    h = cell(lm.ones(2, 4), cell(lm.ones(2, 4)):detach())
    h:sum():backward()
  end)
end)

describe("recurrent layers", function()
  it("are the same bits with any number of threads, of one row too", function()
    local before = lm.get_num_threads()
    finally(function() lm.set_num_threads(before) end)
    for _, class in ipairs { "RNN", "GRU", "LSTM" } do
      local net = lm.nn[class](40, 130)
      for _, batch in ipairs { 1, 2, 3, 5 } do
        local x, want = lm.randn(20, batch, 40), nil
        for threads = 1, 4 do
          lm.set_num_threads(threads)
          net:zero_grad()
          local y = net(x)
          y:sum():backward()
          local got = { y:detach(), net.weight_hh_l0.grad:clone(), net.bias_hh_l0.grad:clone() }
          want = want or got
          for k in ipairs(got) do
            assert.is_true(lm.equal(want[k], got[k]), ("%s, %d rows, %d threads: %d"):format(class, batch, threads, k))
          end
        end
        lm.set_num_threads(before)
      end
    end
  end)
end)
