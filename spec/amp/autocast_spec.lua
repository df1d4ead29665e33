-- Autocast against PyTorch's record (gen_golden.py _autocast): the dtype of every op's result, and a model
-- through every list, forward and backward; and the copies of weights that a scope keeps.
-- LM_SPEC_DEVICE=cuda asks for PyTorch's lists for CUDA.
local lm = require "luminary"
local temp = require "spec.support.temp"
local nn, F, autograd = lm.nn, lm.nn.functional, lm.autograd

local device = os.getenv "LM_SPEC_DEVICE" or "cpu"
local on_cpu = device:sub(1, 3) == "cpu"
local golden = dofile "spec/golden/autocast.lua"
local stored = lm.load "spec/golden/_autocast.safetensors"

local kind = device:match "^%a+"
local places = {}
for i, dtype in ipairs { "bfloat16", "float16" } do places[i] = { place = kind .. " " .. dtype, dtype = dtype } end

local function compile(text, env)
  return setfenv(assert(loadstring("return " .. text, text)), setmetatable(env, { __index = { lm = lm, F = F } }))
end

local function random(shape, dtype, requires_grad)
  local t = lm.rand(shape):to(dtype):to(device)
  return requires_grad and t:requires_grad_() or t
end

describe("autocast's lists", function()
  for _, row in ipairs(golden.ops) do
    for _, at in ipairs(places) do
      it(row[1] .. ", " .. at.place, function()
        local pairs_of = { { "float32", "float32" }, { at.dtype, at.dtype }, { at.dtype, "float32" },
          { "float32", at.dtype }, { "float64", "float64" } }
        local k = 0
        for want in (row[at.place] or row[kind] or row[2]):gsub("low", at.dtype):gmatch "%S+" do
          k = k + 1
          local first, second = unpack(pairs_of[k])
          local env = {
            x = random({ 4, 4 }, first), p = random({ 4, 4 }, first), w = random({ 4, 4 }, second, true),
            b = random({ 4 }, second, true), i = lm.ones({ 4, 4 }, { dtype = "int64", device = device }),
            c = lm.zeros({ 4, 4 }, { dtype = "bool", device = device }),
          }
          local f = compile(row[1], env)
          local ok, y = pcall(lm.autocast, { device = device, dtype = at.dtype }, f)
          if want ~= "error" then -- dtypes that PyTorch cannot mix may work here
            assert(ok, y)
            assert.equal(want, y.dtype, ("%s of %s and %s"):format(row[1], first, second))
            if y.requires_grad then
              y:sum():backward()
              if env.w.grad then assert.equal(second, env.w.grad.dtype) end
            end
          elseif row[1]:find "binary_cross_entropy%(" then
            assert(not ok)
            assert.matches("binary_cross_entropy: unsafe under autocast.*BCEWithLogitsLoss", tostring(y))
          end
        end
        assert.equal(5, k)
      end)
    end
  end
end)

describe("a model through autocast's lists", function()
  local function leaves()
    local env = {}
    for name, t in pairs(stored) do
      if not name:find "^grad" and name ~= "loss" then
        env[name] = t:clone():to(device)
        if name:find "^%a%d$" then env[name]:requires_grad_() end
      end
    end
    env.h = env.x
    return env
  end

  for _, at in ipairs(places) do
    it("computes each step in PyTorch's dtype, " .. at.place, function()
      local env, dtypes = leaves(), {}
      lm.autocast({ device = device, dtype = at.dtype }, function()
        for i, text in ipairs(golden.steps) do
          env.h = compile(text, env)()
          dtypes[i] = env.h.dtype
        end
      end)
      assert.equal(golden.model[at.place].steps, table.concat(dtypes, " "))
      env.h:backward()
      for name, fits in pairs(golden.model[at.place].fits) do
        local grad = env[name].grad
        assert.equal("float32", grad.dtype)
        assert.equal(fits, grad:eq(grad:to(at.dtype):float()):all():item(), name)
        if at.dtype == "bfloat16" then
          local off = (grad - stored["grad." .. name]):norm():item() / stored["grad." .. name]:norm():item()
          assert(off < 0.02, ("the gradient of %s is off by %.3f"):format(name, off))
        end
      end
      if on_cpu and at.dtype == "bfloat16" then
        assert(math.abs(env.h:item() - stored.loss:item()) < 2e-3 * stored.loss:item())
      end
    end)
  end
end)

describe("autocast's copies of weights", function()
  local low = { device = device, dtype = "bfloat16" }
  local function operands()
    return lm.ones({ 2, 4 }, { device = device }), lm.full({ 4, 4 }, 0.5, { device = device }):requires_grad_()
  end

  -- Returns the number of tensors that f leaves, and its result.
  local function taken(f)
    collectgarbage()
    local before, y = lm.live_tensors(), f()
    return lm.live_tensors() - before, y
  end

  it("are made once in the outermost scope, and go with it", function()
    local x, w = operands()
    local before = lm.live_tensors()
    lm.autocast(low, function()
      local first = taken(function() return x:mm(w) end)
      lm.autocast(low, function()
        assert.equal(first - 1, (taken(function() return x:mm(w) end)))
      end)
      assert.equal(first - 1, (taken(function() return x:mm(w) end)))
    end)
    collectgarbage()
    collectgarbage()
    assert.equal(before, lm.live_tensors())
  end)

  it("are not kept with cache_enabled = false", function()
    local x, w = operands()
    lm.autocast({ device = device, dtype = "bfloat16", cache_enabled = false }, function()
      local first = taken(function() return x:mm(w) end)
      assert.equal(first, (taken(function() return x:mm(w) end)))
    end)
  end)

  it("follow what is written to the weight", function()
    local x, w = operands()
    lm.autocast(low, function()
      assert.equal(2, x:mm(w):max():item())
      lm.no_grad(function() w:mul_(2) end)
      assert.equal(4, x:mm(w):max():item())
      w.data:fill_(1)
      assert.equal(4, x:mm(w):max():item())
    end)
  end)

  it("follow a weight that is given other memory", function()
    local x = lm.ones({ 2, 4 }, { device = device })
    local layer = nn.Linear(4, 1, { bias = false }):to(device)
    lm.no_grad(function() layer.weight:fill_(0.5) end)
    lm.autocast(low, function()
      assert.equal(2, layer(x):max():item())
      layer:double()
      assert.equal("float64", layer.weight.dtype)
      lm.no_grad(function() layer.weight:fill_(1) end)
      layer:float()
      assert.equal(4, layer(x):max():item())
      lm.core.set_data(layer.weight, lm.full({ 1, 4 }, 2, { device = device }))
      assert.equal(8, layer(x):max():item())
    end)
  end)

  it("carry a gradient also after a forward within no_grad", function()
    local x, w = operands()
    lm.autocast(low, function()
      lm.no_grad(function() x:mm(w) end)
      x:mm(w):sum():backward()
    end)
    assert.equal(2, w.grad:max():item())
  end)

  it("follow the dtype of nested scopes", function()
    local x, w = operands()
    lm.autocast(low, function()
      assert.equal("bfloat16", x:mm(w).dtype)
      lm.autocast({ device = device, dtype = "float16" }, function() assert.equal("float16", x:mm(w).dtype) end)
      lm.autocast({ enabled = false }, function() assert.equal("float32", x:mm(w).dtype) end)
      assert.equal("bfloat16", x:mm(w).dtype)
    end)
  end)

  it("pass on the sum of the gradients of all uses, through two passes", function()
    local x, w = operands()
    lm.autocast(low, function()
      for _ = 1, 2 do
        local h = x:mm(w) + (x * 2):mm(w)
        h:sum():backward()
      end
    end)
    assert.equal(12, w.grad:max():item()) -- 2 + 4 a pass
    assert.equal("float32", w.grad.dtype)
  end)

  it("serve more leaves than there is room for at first", function()
    local x, all = operands(), {}
    for i = 1, 200 do all[i] = lm.full({ 4, 4 }, i, { device = device }):requires_grad_() end
    lm.autocast(low, function()
      for _ = 1, 2 do
        for i = 1, 200 do assert.equal(4 * i, x:mm(all[i])[{ 1, 1 }]:item()) end
      end
    end)
  end)
end)

describe("autocast", function()
  it("is on for every kind of device where none is named", function()
    local x = lm.ones({ 2, 2 }, { device = device })
    lm.autocast({}, function()
      assert.equal(on_cpu and "bfloat16" or "float16", x:mm(x).dtype)
      assert.equal("bfloat16", lm.ones(2, 2):mm(lm.ones(2, 2)).dtype)
      assert.equal("bfloat16", lm.get_autocast_dtype "cpu")
      assert.is_true(lm.is_autocast_enabled "cpu:1")
      lm.autocast({ device = "cpu", enabled = false }, function()
        assert.is_false(lm.is_autocast_enabled "cpu")
        assert.is_true(lm.is_autocast_enabled())
        assert.is_nil(lm.get_autocast_dtype "cpu")
      end)
    end)
    assert.is_nil(lm.get_autocast_dtype "cpu")
  end)

  it("goes into functions of one's own, and leaves their backward as it says", function()
    local seen = {}
    local Twice = autograd.Function:extend "Twice"
    function Twice.forward(ctx, a, b)
      ctx:save_for_backward(a, b)
      local y = a:mm(b)
      seen.forward = y.dtype
      return y
    end
    function Twice.backward(ctx, g)
      local a, b = unpack(ctx.saved_tensors)
      seen.backward, seen.gradient = a:mm(a).dtype, g.dtype
      return g:float():mm(b:t()), a:t():mm(g:float())
    end
    local a = lm.ones({ 2, 2 }, { device = device }):requires_grad_()
    local b = lm.ones({ 2, 2 }, { device = device }):requires_grad_()
    lm.autocast({ device = device, dtype = "bfloat16" }, function() Twice.apply(a, b):sum():backward() end)
    assert.same({ forward = "bfloat16", backward = "float32", gradient = "bfloat16" }, seen)
    assert.equal("float32", a.grad.dtype)
  end)

  it("comes back in the backward of custom_bwd, and casts what custom_fwd says", function()
    for _, wanted in ipairs { "none", "float32" } do
      local seen = {}
      local Twice = autograd.Function:extend "Twice"
      Twice.forward = lm.amp.custom_fwd(function(ctx, a, b)
        ctx:save_for_backward(a, b)
        seen.input, seen.forward = a.dtype, a:mm(b).dtype
        return a:mm(b)
      end, { cast_inputs = wanted ~= "none" and wanted or nil })
      Twice.backward = lm.amp.custom_bwd(function(ctx, g)
        local a, b = unpack(ctx.saved_tensors)
        seen.backward = g:mm(b:t()).dtype
        return g:mm(b:t()), a:t():mm(g)
      end)
      local a = lm.ones({ 2, 2 }, { device = device, dtype = "float16" }):requires_grad_()
      local b = lm.ones({ 2, 2 }, { device = device, dtype = "float16" }):requires_grad_()
      local low = wanted == "none" and "bfloat16" or "float32"
      lm.autocast({ device = device, dtype = "bfloat16" }, function() Twice.apply(a, b):sum():backward() end)
      assert.same({ input = wanted == "none" and "float16" or wanted, forward = low, backward = low }, seen)
      assert.equal("float16", a.grad.dtype)
      Twice.apply(a, b):sum():backward()
      assert.same({ input = "float16", forward = "float16", backward = "float16" }, seen)
    end
  end)

  it("is a thread's own", function()
    lm.autocast({}, function()
      lm.mp.spawn(function() assert(not require "luminary".is_autocast_enabled()) end,
        { nprocs = 1, method = "thread" })
      assert.is_true(lm.is_autocast_enabled())
    end)
  end)

  it("covers all replicas of DataParallel", function()
    if not on_cpu then return pending("cpu:0 and cpu:1 are enough") end
    local model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    local x = lm.randn(6, 4)
    local alone = lm.autocast({ device = "cpu" }, function() return model(x) end)
    alone:sum():backward()
    local want = model[1].weight.grad:clone()
    model:zero_grad()
    local both = nn.DataParallel(model, { device_ids = { "cpu:0", "cpu:1" } })
    local y = lm.autocast({ device = "cpu" }, function() return both(x) end)
    assert.equal("bfloat16", y.dtype)
    assert(y:allclose(alone, { rtol = 0.02, atol = 0.02 }))
    y:sum():backward()
    assert.equal("float32", model[1].weight.grad.dtype)
    assert((model[1].weight.grad - want):norm():item() < 0.02 * want:norm():item())
  end)
end)

describe("autocast of an optimizer's parameters", function()
  -- Returns copies of list's rows, [1, n], and then the gradients, in one scope.
  local function seen(dtype, list)
    local one, all = lm.ones({ 1, 1 }, { device = device }), {}
    lm.autocast({ device = device, dtype = dtype }, function()
      for i, p in ipairs(list) do
        p.grad = nil
        all[i] = one:mm(p)
        all[i]:backward(lm.ones_like(all[i]):mul_(3))
        all[#list + i] = p.grad
        assert.equal(dtype, all[i].dtype)
      end
    end)
    return all
  end

  for _, dtype in ipairs { "bfloat16", "float16" } do
    it("yields the same as of one after the other: " .. dtype, function()
      lm.manual_seed(3)
      local list, alone = {}, {}
      for i, n in ipairs { 1, 3, 255, 16385, 70, 8 } do
        local x = lm.randn({ 1, 2 * n }):mul_(10 ^ (i - 3)):to(device)
        x[1][1] = ({ 1, math.huge, 0 / 0, 1e-41, 1e-7 })[i] or 1
        list[i] = i == 5 and x:view(1, n, 2):select(3, 1):detach() or x:narrow(2, 1, n):contiguous()
        alone[i] = list[i]:clone():requires_grad_()
        list[i]:requires_grad_()
      end
      local opt = lm.optim.SGD(list, { lr = 0.1 })
      for _ = 1, 3 do
        local of, want = seen(dtype, list), seen(dtype, alone)
        for i in ipairs(want) do
          assert(lm.equal(of[i]:nan_to_num(7), want[i]:nan_to_num(7)), "tensor " .. i)
        end
        lm.no_grad(function() list[6]:mul_(2) alone[6]:mul_(2) end)
      end
      assert.equal(1, #opt.param_groups)
    end)
  end

  it("completes gradients in the order of the ops, the last first", function()
    local list, order = {}, {}
    for i = 1, 3 do
      list[i] = lm.ones({ 2, 2 }, { device = device }):requires_grad_()
      list[i]:register_post_accumulate_grad_hook(function() order[#order + 1] = i end)
    end
    local opt = lm.optim.SGD(list, { lr = 0.1 })
    for _ = 1, 3 do
      lm.autocast({ device = device, dtype = "bfloat16" }, function()
        local y = lm.ones({ 2, 2 }, { device = device })
        for i = 1, 3 do
          local w = list[i]
          y = y:mm(w):exp()
          y:register_hook(function() order[#order + 1] = "op " .. i end)
        end
        y:sum():backward()
      end)
      assert.equal("op 3 3 op 2 2 op 1 1", table.concat(order, " "))
      order = {}
    end
    assert.equal(1, #opt.param_groups)
  end)

  it("follows one that stops requiring a gradient, or leaves the optimizer", function()
    local list = {}
    for i = 1, 3 do list[i] = lm.full({ 1, 2 }, i, { device = device }):requires_grad_() end
    local opt = lm.optim.SGD(list, { lr = 0.1 })
    seen("bfloat16", list)
    list[2]:requires_grad_(false)
    lm.autocast({ device = device, dtype = "bfloat16" }, function()
      local one = lm.ones({ 1, 1 }, { device = device })
      for i = 1, 3 do assert.equal(i ~= 2, one:mm(list[i]).requires_grad) end
    end)
    list[2]:requires_grad_()
    assert.equal(3, #opt.param_groups[1].params)
    opt = lm.optim.SGD({ list[1], list[2] }, { lr = 0.1 })
    collectgarbage()
    collectgarbage()
    for i, y in ipairs(seen("bfloat16", list)) do assert.equal(i <= 3 and i or 3, y:max():item()) end
    assert.equal(2, #opt.param_groups[1].params)
  end)
end)

if not on_cpu then
  describe("autocast in a captured step", function()
    it("casts the weights at each replay, whatever the scope around it keeps", function()
      local net = nn.Linear(6, 3):to(device)
      local x = lm.randn(4, 6):to(device)
      local function output(cached)
        local mode = { device = device, dtype = "bfloat16", cache_enabled = cached }
        return lm.autocast(mode, function() return net(x) end)
      end
      lm.autocast({ device = device, enabled = false }, function()
        output(true)
        local graphed = lm.cuda.make_graphed_step(function() return output(true) end, { x })
        assert(lm.equal(output(false), output(true)), "what the capture made was taken for values")
        lm.no_grad(function() net.weight:mul_(2) end)
        assert(lm.equal(output(false), graphed(x)), "the weight's earlier copy was used")
      end)
    end)
  end)
end

describe("autocast leaves alone", function()
  it("functions that are made of several ops and kept in float32 as a whole", function()
    local x = lm.randn({ 30, 30 }, { device = device })
    local theta = lm.tensor({ { { 1, 0, 0 }, { 0, 1, 0 } } }, { device = device, dtype = "float32" })
    local image = lm.rand({ 1, 1, 4, 4 }, { device = device })
    local calls = {
      matrix_exp = function() return lm.linalg.matrix_exp(x / 5) end,
      cdist = function() return lm.cdist(x, x + 1) end,
    }
    for name, call in pairs(calls) do
      local within = lm.autocast({ device = device }, call)
      assert(within.dtype == "float32" and within:equal(call()), name)
    end
    local turned = lm.autocast({ device = device }, function()
      return F.grid_sample(image, F.affine_grid(theta, { 1, 1, 4, 4 }))
    end)
    assert.equal("float32", turned.dtype)
    assert(turned:allclose(image, { atol = 0.02 }))
  end)
end)

describe('autocast of "cuda" without a GPU', function()
  it("warns and is disabled, and so is a GradScaler", function()
    if lm.core.device_count "cuda" > 0 then return end
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    local script = temp.write(folder .. "/script.lua", [[
local lm = require "luminary"
local x = lm.ones(2, 2)
local function f(...) return lm.mm(x, x).dtype, ... end
for _ = 1, 2 do print(lm.autocast("cuda", f, 1, nil)) end
print(lm.autocast({device = "cuda:0", dtype = "float16"}, f))
print(lm.autocast("cuda", "float16", false, f), lm.autocast({device_type = "cuda", enabled = false}, f))
print(lm.autocast("cpu", function() return lm.autocast("cuda", {enabled = false}, f) end))
local scaler, loss = lm.GradScaler("cuda"), lm.ones(1)
print(scaler:is_enabled(), scaler:scale(loss) == loss)
]])
    local ok, out = temp.run(folder, "luajit " .. script .. " 2>" .. folder .. "/warnings")
    assert(ok, out)
    assert.equal("float32\t1\tnil\nfloat32\t1\tnil\nfloat32\nfloat32\tfloat32\nbfloat16\nfalse\ttrue\n", out)
    local warned = temp.read(folder .. "/warnings"):gsub("[^\n]*/script", "script")
    local autocast = 'warning: autocast: no CUDA device is available; autocast of "cuda" is disabled\n'
    local scaler = 'warning: GradScaler: no CUDA device is available; the scaler of "cuda" is disabled\n'
    assert.equal("script.lua:4: " .. autocast .. "script.lua:5: " .. autocast .. "script.lua:8: " .. scaler, warned)
  end)
end)
