-- nn.RNN, nn.GRU and nn.LSTM by cuDNN, against the CPU's, on the fake library of support/cuda: when it is asked, what
-- it is given, and what happens where it is left out, declines or fails.
local scripts = require "spec.support.cuda_scripts"

-- First lines of every script, after those that cuda_scripts.lua returns.
local preamble = [[
local nn = lm.nn
local passes = {"cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"}
-- Returns what f() adds to the calls of the three passes, such as "1 1 1".
local function counted(f)
  local before, list = {}, {}
  for i, name in ipairs(passes) do before[i] = calls(name) end
  f()
  for i, name in ipairs(passes) do list[i] = calls(name) - before[i] end
  return table.concat(list, " ")
end
local function same(want, got, what)
  assert(want == got, ("%s: %s calls of the passes, not %s"):format(what, got, want))
end
local function near(want, got, tolerance, what)
  assert(got.is_cuda and want.ndim == got.ndim, what)
  for d = 1, want.ndim do assert(want.shape[d] == got.shape[d], what) end
  local worst = (want:double() - got:cpu():double()):abs():max():item()
  assert(worst <= tolerance, ("%s: differs by %g"):format(what, worst))
end
local function flat(into, ...)
  for _, value in ipairs {...} do
    if lm.is_tensor(value) then into[#into + 1] = value else flat(into, unpack(value)) end
  end
  return into
end
-- Results of a network, and the gradients of a sum of them, of its inputs and of its parameters.
local function values(net, inputs, call)
  for _, t in ipairs(inputs) do t.grad = nil end
  net:zero_grad()
  local results = flat({}, call(net, unpack(inputs)))
  local loss = 0
  for k, y in ipairs(results) do loss = loss + (y:double() * (k + 1)):sin():sum() end
  loss:backward()
  local list = {unpack(results)}
  for _, t in ipairs(inputs) do list[#list + 1] = t.grad end
  for _, p in ipairs(net:parameters()) do list[#list + 1] = p.grad end
  return list
end
-- Expects equal results of one network and inputs on both devices, and these calls of the passes.
local function compared(what, net, twin, inputs, expected, tolerance, call)
  call = call or function(layer, x, h, c) return layer(x, c and {h, c} or h) end
  twin:load_state_dict(net:state_dict())
  local here, there, got = {}, {}, nil
  for i, t in ipairs(inputs) do
    here[i] = t:clone():requires_grad_()
    there[i] = t:cuda():requires_grad_()
  end
  local want = values(net, here, call)
  same(expected, counted(function() got = values(twin, there, call) end), what)
  assert(#want == #got)
  for k = 1, #want do near(want[k], got[k], tolerance or 1e-10, ("%s, value %d"):format(what, k)) end
end
local function pair(kind, ...)
  return nn[kind](...):double(), nn[kind](...):double():cuda()
end
lm.manual_seed(3)
]]

describe("CUDA's recurrent layers #fake", function()
  local script = scripts.tests(it, pending, preamble)

  local kinds = [[
    local function states(kind, ...)
      local h = lm.randn({...}, {dtype = "float64"})
      if kind == "LSTM" then return h, lm.randn({...}, {dtype = "float64"}) end
      return h
    end
    local function random(...) return lm.randn({...}, {dtype = "float64"}) end
    for _, kind in ipairs {"RNN", "GRU", "LSTM"} do
      local function both(what, expected, options, inputs, call)
        local net, twin = pair(kind, 3, 4, options)
        if options.by_steps then twin.by_steps = true end
        compared(kind .. " " .. what, net, twin, inputs, expected, nil, call)
      end
  ]]
  local variants = [[
      local whole = {num_layers = 3, bidirectional = true}
      both("plain", ONCE, {}, {random(5, 2, 3)})
      both("with states", ONCE, whole, {random(4, 2, 3), states(kind, 6, 2, 4)})
      both("batch first, without bias", ONCE, {bias = false, batch_first = true}, {random(2, 4, 3)})
      both("of one sequence", ONCE, {bidirectional = true}, {random(4, 3), states(kind, 2, 4)})
      for _, lengths in ipairs {{4, 2, 2}, {1, 4, 3}, {3, 3, 3}} do
        both("packed", ONCE, whole, {random(4, 3, 3), states(kind, 6, 3, 4)}, function(layer, x, h, c)
          local packed = nn.utils.rnn.pack_padded_sequence(x, lengths, {enforce_sorted = false})
          local y, last = layer(packed, c and {h, c} or h)
          return {y.data, last}
        end)
      end
      local turned = random(3, 5, 2):transpose(1, 3) -- inputs and weights of other strides, and off their place
      both("strided", ONCE, {}, {turned})
    end
    local net, twin = pair("RNN", 3, 4, {nonlinearity = "relu", num_layers = 2})
    compared("relu", net, twin, {lm.randn({5, 2, 3}, {dtype = "float64"})}, ONCE)
  ]]
  script("are one call of cuDNN's for all layers and directions", kinds .. variants:gsub("ONCE", '"1 1 1"'))
  script("do without it", kinds .. variants:gsub("ONCE", '"0 0 0"'), "LM_CUDA_WITHOUT=cudnn_rnn")

  script("ask it where it has such a network, may be asked and is wanted", [[
    local function both(what, expected, options, before)
      local net, twin = pair("LSTM", 3, 4, options)
      if before then before(twin) end
      compared(what, net, twin, {lm.randn({5, 2, 3}, {dtype = "float64"})}, expected)
    end
    both("projected", "0 0 0", {proj_size = 2})
    both("by steps", "0 0 0", {}, function(net) net.by_steps = true end)
    local cudnn = lm.backends.cudnn
    cudnn.enabled = false
    both("disabled", "0 0 0", {})
    cudnn.enabled, cudnn.deterministic = true, true
    both("deterministic", os.getenv "CUBLAS_WORKSPACE_CONFIG" and "1 1 1" or "0 0 0", {})
  ]], "CUBLAS_WORKSPACE_CONFIG=:4096:2")
  script("go by steps where they have to be deterministic", [[
    lm.backends.cudnn.deterministic = true
    local net, twin = pair("LSTM", 3, 4)
    compared("deterministic", net, twin, {lm.randn({5, 2, 3}, {dtype = "float64"})}, "0 0 0")
  ]], "env -u CUBLAS_WORKSPACE_CONFIG")

  script("go by steps where it declines, and tell what fails", [[
    local x = lm.randn({5, 2, 3}, {dtype = "float64"})
    fake.lm_fake_fail("cudnnSetRNNDescriptor_v8", 1, 3000)
    local net, twin = pair("GRU", 3, 4)
    compared("declined", net, twin, {x}, "0 0 0")
    local asked = calls "cudnnSetRNNDescriptor_v8"
    compared("declined before", net, twin, {x}, "0 0 0")
    assert(calls "cudnnSetRNNDescriptor_v8" == asked, "asked again")
    net, twin = pair("GRU", 3, 7)
    fake.lm_fake_fail("cudnnCreateRNNDescriptor", 1, 1008) -- libcudnn_adv is missing
    compared("without its part of the library", net, twin, {x}, "0 0 0")
    net, twin = pair("GRU", 3, 5)
    fake.lm_fake_fail("cudnnRNNForward", 1, 3000)
    compared("declined at the call", net, twin, {x}, "1 0 0")
    compared("not declined", net, twin, {x}, "1 1 1")
    local device = x:cuda():requires_grad_()
    collectgarbage()
    collectgarbage()
    for _, name in ipairs {
      "cudnnRNNForward", "cudnnGetRNNTempSpaceSizes", "cudnnSetRNNDataDescriptor", "cudnnCreateRNNDataDescriptor",
      "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8", "cudnnCreateTensorDescriptor",
    } do
      local before = live "descriptor"
      fake.lm_fake_fail(name, 1, 5000)
      refused(name .. ": error 5000 (CUDNN_STATUS_EXECUTION_FAILED)", function() twin(device):sum():backward() end)
      assert(live "descriptor" == before, name .. " leaves descriptors")
    end
    for _, name in ipairs {
      "cudnnCreateRNNDescriptor", "cudnnGetRNNWeightSpaceSize", "cudnnGetRNNWeightParams", "cudnnSetDropoutDescriptor",
    } do
      fake.lm_fake_fail(name, 1, 5000)
      local one, two = pair("GRU", 3, 6 + #name) -- no handle knows this network yet
      refused(name .. ": error 5000", function() two(device) end)
      compared("after " .. name, one, two, {x}, "1 1 1")
    end
  ]])

  script("give the same gradients again, and those of part of the results", [[
    local net, twin = pair("LSTM", 3, 4, {num_layers = 2})
    twin:load_state_dict(net:state_dict())
    local x = lm.randn({5, 2, 3}, {dtype = "float64"})
    local here, there = x:clone():requires_grad_(), x:cuda():requires_grad_()
    local y = twin(there)
    y:sum():backward {retain_graph = true}
    local first = there.grad:clone()
    y:sum():backward()
    near((2 * first):cpu(), there.grad, 1e-12, "twice")
    for k = 1, 2 do
      for _, p in ipairs {here, there} do p.grad = nil end
      local _, one = net(here)
      local _, two = twin(there)
      one[k]:sum():backward()
      two[k]:sum():backward()
      near(here.grad, there.grad, 1e-10, "the last state alone")
    end
    refused("recurrent_network_backward: no gradient is implemented", function()
      lm.autograd.grad(twin(there):sum(), {there}, {create_graph = true})
    end)
  ]])

  script("keep nothing where there will be no gradient", [[
    local net = nn.LSTM(3, 40):cuda()
    local x = lm.randn({50, 8, 3}):cuda()
    net(x)
    local function grown(f)
      collectgarbage()
      collectgarbage()
      lm.cuda.synchronize()
      local before = lm.cuda.memory_allocated()
      local y = f()
      lm.cuda.synchronize()
      collectgarbage()
      collectgarbage()
      return lm.cuda.memory_allocated() - before, y
    end
    local kept = grown(function() return (net(x)) end)
    local bare = grown(function() return lm.no_grad(function() return (net(x)) end) end)
    assert(kept > bare + 50 * 8 * 40 * 8, ("%d and %d bytes"):format(kept, bare))
    assert(bare < 2 * 50 * 8 * 40 * 4 + 4096, bare)
  ]])

  script("take 16-bit floats, autocast and TF32", [[
    local net = nn.GRU(8, 8, 2):double()
    local x = lm.randn({4, 2, 8}, {dtype = "float64"})
    local y = net(x)
    for dtype, tolerance in pairs {float16 = 4e-3, bfloat16 = 3e-2} do
      local low = nn.GRU(8, 8, 2, {dtype = dtype}):cuda()
      low:load_state_dict(net:state_dict())
      local z
      same("1 1 1", counted(function()
        z = low(x:to(dtype):cuda())
        z:sum():backward()
      end), dtype)
      assert(z.dtype == dtype and low.weight_hh_l0.grad.dtype == dtype)
      near(y, z, tolerance, dtype)
    end
    local twin = nn.GRU(8, 8, 2):cuda()
    twin:load_state_dict(net:state_dict())
    local z
    same("1 1 1", counted(function()
      z = lm.autocast({dtype = "bfloat16", device = "cuda"}, function() return (twin(x:float():cuda())) end)
      z:sum():backward()
    end), "autocast")
    assert(z.dtype == "bfloat16" and twin.weight_hh_l0.grad.dtype == "float32")
    near(y, z, 3e-2, "autocast")
    local function off(allowed)
      lm.backends.cudnn.allow_tf32 = allowed
      return (y - twin(x:float():cuda()):cpu():double()):abs():max():item()
    end
    assert(off(false) < 1e-6, off(false))
    assert(off(true) > 1e-6 and off(true) < 5e-3, off(true))
  ]])

  script("drop between layers as the CPU does", [[
    local net, twin = pair("LSTM", 3, 8, 3, {dropout = 0.5, bidirectional = true})
    twin:load_state_dict(net:state_dict())
    local x = lm.randn({5, 4, 3}, {dtype = "float64"})
    lm.manual_seed(7)
    local y, last = net(x)
    lm.manual_seed(7)
    local z, ours
    same("3 0 0", counted(function() z, ours = twin(x:cuda()) end), "a call for each layer")
    near(y, z, 1e-10, "what is dropped")
    for k = 1, 2 do near(last[k], ours[k], 1e-10, "the last states") end
    twin:eval()
    net:eval()
    same("1 0 0", counted(function() z = twin(x:cuda()) end), "nothing is dropped")
    near(net(x), z, 1e-10, "evaluation")
  ]])

  script("can be captured, and work on their own stream", [[
    local net, twin = pair("LSTM", 3, 4, 2)
    twin:load_state_dict(net:state_dict())
    local list = {}
    for i = 1, 4 do list[i] = lm.randn({5, 2, 3}, {dtype = "float64"}) end
    local function step_of(model)
      local opt = lm.optim.SGD(model:parameters(), {lr = 0.1})
      return function(x)
        opt:zero_grad()
        local loss = model(x):square():sum()
        loss:backward()
        opt:step()
        return loss
      end
    end
    local here = step_of(net)
    for _ = 1, 2 do here(list[1]) end -- as the warm-up below
    local there
    same("3 3 3", counted(function()
      there = lm.cuda.make_graphed_step(step_of(twin), {list[1]:cuda()}, {warmup = 2})
    end), "warming up and capturing")
    for i = 1, 4 do
      local loss
      same("0 0 0", counted(function() loss = there(list[i]:cuda()) end), "a replay")
      near(here(list[i]), loss, 1e-9, "step " .. i)
    end
    local side = lm.cuda.Stream()
    local x = list[1]:cuda()
    local y = lm.cuda.stream(side, function() return (twin(x)) end)
    near(net(list[1]), y * 1, 1e-10, "another stream")
  ]])
end)
