-- What scripts/dev/gpu_check runs in a process of its own, so that a lost context takes nothing else along:
--   luajit gpu_cases.lua smoke                                      a step of training in each dtype, beside the CPU
--   luajit gpu_cases.lua off OP DTYPE WHICH N                       linear or conv2d with an operand N elements off
--   luajit gpu_cases.lua steps [NAME]                               optimizers' steps of many sizes, aligned and not
--   luajit gpu_cases.lua scaling                                    gradients checked and unscaled, likewise
--   luajit gpu_cases.lua linalg [SIZE]                              transforms, linear algebra; with a size their times
--   luajit gpu_cases.lua recurrent [SIZE]                           recurrent layers; with a size their times
--   luajit gpu_cases.lua attention [LENGTH]                         attention of many sizes; with a length its times
--   luajit gpu_cases.lua properties PROGRAM JSON                    the card's properties beside those on file
--   luajit gpu_cases.lua nccl                                       the group "nccl" of one rank
--   luminary run --nproc 2 gpu_cases.lua issue                      what a call of NCCL costs the thread that makes it
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional
lm.backends.cudnn.allow_tf32 = false -- the tolerances below are float32's own

local function fail(...) error(string.format(...), 0) end

-- The largest difference relative to the largest value.
local function apart(here, there)
  here, there = here:double(), there:to("cpu"):double()
  local scale = here:abs():max():item()
  return (here - there):abs():max():item() / (scale > 0 and scale or 1)
end

local function expect(what, here, there, limit)
  local worst = apart(here, there)
  print(("%-40s off by %.2e"):format(what, worst))
  if worst > limit or worst ~= worst then fail("%s: off by %.2e, which may be %.0e", what, worst, limit) end
end

-- The same for lists, as one line.
local function expect_all(what, here, there, limit)
  local worst = 0
  for i, t in ipairs(here) do
    local off = apart(t, there[i])
    if off ~= off or off > worst then worst = off end
    if off ~= off then break end
  end
  print(("%-40s off by %.2e"):format(what, worst))
  if worst > limit or worst ~= worst then fail("%s: off by %.2e, which may be %.0e", what, worst, limit) end
end

local tolerance = { float64 = 1e-10, float32 = 1e-4, bfloat16 = 5e-2, float16 = 1e-2 }

local case = {}

function case.smoke()
  for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
    lm.manual_seed(1)
    local net = nn.Sequential(nn.Conv2d(3, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    local twin = nn.Sequential(nn.Conv2d(3, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    twin:load_state_dict(net:state_dict())
    local x, y = lm.randn { 8, 3, 16, 16 }, lm.randint(1, 11, { 8 })
    twin:to("cuda", dtype)
    -- The CPU's side in float64 is the judge of all.
    net:double()
    local function losses(model, input, label)
      local opt, list = lm.optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 }), {}
      for i = 1, 3 do
        local loss = F.cross_entropy(model(input), label)
        opt:zero_grad()
        loss:backward()
        opt:step()
        list[i] = loss:detach():to("cpu"):double()
      end
      return lm.stack(list)
    end
    expect("three steps in " .. dtype, losses(net, x:double(), y), losses(twin, x:to("cuda", dtype), y:cuda()),
      tolerance[dtype])
  end
end

function case.off(op, dtype, which, n)
  lm.manual_seed(1)
  n = assert(tonumber(n), "how many elements off?")
  local shapes = op == "linear" and { x = { 64, 128 }, weight = { 96, 128 }, bias = { 96 } }
    or { x = { 8, 16, 14, 14 }, weight = { 32, 16, 3, 3 }, bias = { 32 } }
  local here, there = {}, {}
  for name, shape in pairs(shapes) do
    here[name] = lm.randn(shape):to(dtype)
    local off = name == which and n or 0
    local room = lm.zeros({ here[name]:numel() + off }, { dtype = dtype, device = "cuda" })
    local view = room:narrow(1, off + 1, here[name]:numel()):view(shape)
    view:copy_(here[name])
    there[name] = view:detach():requires_grad_()
    here[name] = here[name]:double():requires_grad_()
  end
  local function run(t)
    local y = op == "linear" and F.linear(t.x, t.weight, t.bias)
      or F.conv2d(t.x, t.weight, t.bias, { padding = 1 })
    y:sum():backward()
    return y
  end
  expect("result", run(here), run(there), tolerance[dtype])
  for name in pairs(shapes) do expect("gradient of " .. name, here[name].grad, there[name].grad, tolerance[dtype]) end
  lm.synchronize("cuda")
end

-- Tensors for what goes by tables and chunks: more than one table has, some of more than one chunk, some that begin off
-- a pack. Those that make(n) makes here, and their copies there.
local function many(dtype, make)
  local here, there, n = {}, {}, 0
  local function add(size, off)
    n = n + 1
    here[n] = make(size)
    local room = lm.zeros({ size + off }, { dtype = dtype, device = "cuda" })
    there[n] = room:narrow(1, off + 1, size)
    there[n]:copy_(here[n])
    there[n] = there[n]:detach()
  end
  for _, off in ipairs { 0, 1, 2, 3 } do
    for _, size in ipairs { 1, 7, 4096, 4099, 40001 } do add(size, off) end
  end
  for size = 1, 130 do add(size, 0) end
  return here, there
end

local function whole(list)
  local flat = {}
  for i, t in ipairs(list) do flat[i] = t:detach():to("cpu"):double() end
  return lm.cat(flat)
end

-- Both sides store by rounding to nearest, and one may round products before a sum that the other does not. Where they
-- cancel, Lion's sign turns, and the element is a few hundredths off.
local rounding = { float64 = 1e-12, float32 = 1e-5, bfloat16 = 2e-2, float16 = 1e-2 }

function case.steps(only)
  local options = {
    SGD = { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.1 }, Adam = { lr = 0.01, amsgrad = true },
    RMSprop = { momentum = 0.9, centered = true }, ASGD = { t0 = 1 },
  }
  for _, entry in ipairs(require "luminary.optim.sgd_adam_rules") do
    local name, tried = entry.name, options[entry.name] or { lr = 0.01 }
    for _, dtype in ipairs(only and only ~= name and {} or { "float32", "float64", "bfloat16", "float16" }) do
      lm.manual_seed(1)
      local function make(n) return lm.randn({ n }):to(dtype) end
      local here, there = many(dtype, make)
      for i = 1, #here do here[i]:requires_grad_(); there[i]:requires_grad_() end
      local one, two = lm.optim[name](here, tried), lm.optim[name](there, tried)
      for _ = 1, 3 do
        local gradients, its = many(dtype, make)
        for i = 1, #here do here[i].grad, there[i].grad = gradients[i], its[i] end
        one:step()
        two:step()
      end
      expect(name .. " in " .. dtype, whole(here), whole(there), rounding[dtype])
    end
  end
end

function case.scaling()
  local core, kinds = lm.core, { "float32", "float64", "bfloat16", "float16" }
  for _, x in ipairs(kinds) do
    lm.manual_seed(1)
    local here, from = many(x, function(n) return lm.randn({ n }):to(x) end)
    for _, y in ipairs(kinds) do
      local want, to = many(y, function(n) return lm.zeros({ n }, { dtype = y }) end)
      for i, t in ipairs(here) do want[i] = (t:double() * 0.25):to(y) end
      if core.rescale(from, to, 0.25):item() ~= 0 then fail("%s to %s: something is not finite", x, y) end
      expect(x .. " to " .. y, whole(want), whole(to), 0)
    end
    for _, bad in ipairs { math.huge, -math.huge, 0 / 0 } do
      for _, i in ipairs { 5, 10, #from } do
        local kept = from[i][-1]
        from[i][-1] = bad
        if core.rescale(from, nil, 1):item() ~= 1 then fail("%s: %g in tensor %d was not found", x, bad, i) end
        from[i][-1] = kept
      end
    end
  end
end

-- What says the same as its result, whatever signs vectors come with; f gets the tensors, on either side.
local function transforms_and_solutions(n)
  local la, fft = lm.linalg, lm.fft
  local x = lm.randn { n, n }
  local far, positive = x + 2 * math.sqrt(n) * lm.eye(n), x:matmul(x:t()) / n + lm.eye(n)
  local tall, b, small = lm.randn { 2 * n, n }, lm.randn { n, 3 }, lm.randn { 64, 8, 8 } + 4 * lm.eye(8)
  return {
    { "fft, lines", function(t) return lm.fft_c2c(t) end, lm.randn { 65, n, 2 } },
    { "fft, columns", function(t) return lm.fft_c2c(t, true, 1 / n, 1) end, lm.randn { n, 65, 2 } },
    { "fft, a dim between", function(t) return lm.fft_c2c(t, false, 1, 2) end, lm.randn { 9, n, 17, 2 } },
    { "fft, a large prime", function(t) return lm.fft_c2c(t) end, lm.randn { 3, 1009, 2 } },
    { "rfft, odd and off", function(t) return fft.rfft(t:slice(2, 2)) end, lm.randn { 65, n } },
    { "irfft", function(t) return fft.irfft(t, n) end, lm.randn { 65, math.floor(n / 2) + 1, 2 } },
    { "inverse", lm.inverse, far },
    { "inverse, many", lm.inverse, small },
    { "slogdet", function(t) return select(2, lm.slogdet(t)) end, far },
    { "det, many", lm.det, small / 4 },
    { "solve", la.solve, far, b },
    { "solve, many, from the right", function(t) return la.solve(t, t:mul(2), { left = false }) end, small },
    { "lu_factor", function(t) return (la.lu_factor(t)) end, far },
    { "lu_factor, tall", function(t)
      local p, l, u = lm.lu_unpack(la.lu_factor(t))
      return p:matmul(l):matmul(u)
    end, tall },
    { "cholesky", lm.cholesky, positive },
    { "cholesky, many, upper", function(t) return lm.cholesky(t:matmul(t:transpose(-1, -2)), true) end, small },
    { "triangle", function(t, r) return la.solve_triangular(t, r, { upper = false }) end, far, b },
    { "triangles, many", function(t) return la.solve_triangular(t, t, { upper = true, left = false }) end, small },
    { "qr", function(t) local q, r = la.qr(t); return q:matmul(r) end, tall },
    { "qr, complete", function(t) return (select(2, la.qr(t, "complete")):abs()) end, tall },
    { "eigh", function(t) local w, v = la.eigh(t); return (v * w):matmul(v:t()) end, positive },
    { "eigvalsh", la.eigvalsh, positive },
    { "eigvalsh, many", function(t) return la.eigvalsh(t + t:transpose(-1, -2)) end, small },
    { "svd", function(t) local u, s, v = la.svd(t, false); return (u * s):matmul(v) end, tall },
    { "svd, wide", function(t) local u, s, v = la.svd(t, false); return (u * s):matmul(v) end, tall:t() },
    { "svd, whole", function(t) local u = la.svd(t); return u:t():matmul(u) end, tall },
    { "svdvals, many", la.svdvals, small },
    { "pinv", function(t) return t:matmul(la.pinv(t)):matmul(t) end, tall },
    { "lstsq", function(t) return (la.lstsq(t, t:narrow(2, 1, 2) * 2)) end, tall },
    { "lstsq, gels", function(t) return (la.lstsq(t, t:narrow(2, 1, 2) + 1, { driver = "gels" })) end, tall },
  }
end

local function milliseconds(f, inputs) -- the best of three
  local best = math.huge
  for i = 0, 3 do
    lm.synchronize("cuda")
    local start = lm.time()
    f(unpack(inputs))
    lm.synchronize("cuda")
    if i > 0 then best = math.min(best, 1000 * (lm.time() - start)) end
  end
  return best
end

local stand_in = (os.getenv "LD_PRELOAD" or ""):find("fake_cuda", 1, true) ~= nil

-- What is missing is computed otherwise, and as well; here it has to be the libraries.
local function expect_libraries(...)
  if stand_in or os.getenv "LM_CUDA_WITHOUT" then return end
  local file = assert(io.open "/proc/self/maps")
  local maps = file:read "*a"
  file:close()
  for _, name in ipairs { ... } do
    if not maps:find("/" .. name .. ".so", 1, true) then fail("%s was not loaded", name) end
  end
end

function case.linalg(size)
  for _, dtype in ipairs { "float64", "float32" } do
    lm.manual_seed(1)
    for _, row in ipairs(transforms_and_solutions(size and assert(tonumber(size), "which size?") or 50)) do
      local name, f, here, there = row[1], row[2], {}, {}
      for i = 3, #row do
        there[i - 2] = row[i]:to("cuda", dtype)
        here[i - 2] = there[i - 2]:to("cpu"):double()
      end
      expect(("%s in %s"):format(name, dtype), f(unpack(here)), f(unpack(there)),
        dtype == "float64" and 1e-9 or 1e-3)
      if size then
        for i, t in ipairs(here) do here[i] = t:to(dtype) end
        print(("%40s CPU %8.3f ms, GPU %8.3f ms"):format("", milliseconds(f, here), milliseconds(f, there)))
      end
    end
  end
  expect_libraries("libcufft", "libcusolver")
end

-- Recurrent layers by cuDNN beside the CPU's in float64: results and gradients. With a size: milliseconds of forward
-- and backward of two layers of that size over 100 steps of 32 sequences, beside the same step by step.
function case.recurrent(size)
  local packed = { 7, 7, 5, 4, 1, 1, 1, 1 }
  local function values(net, x)
    local input = x:detach():requires_grad_()
    local sequences = nn.utils.rnn.pack_padded_sequence(input, packed)
    local padded, last = net(input)
    local y, hidden = net(sequences)
    local list, loss = { padded, y.data, type(last) == "table" and last[2] or last,
      type(hidden) == "table" and hidden[1] or hidden }, 0
    for i, t in ipairs(list) do loss = loss + (t:double() * i):sin():sum() end
    loss:backward()
    list[#list + 1] = input.grad
    for _, p in ipairs(net:parameters()) do list[#list + 1] = p.grad end
    return list
  end
  local limits = { float64 = 1e-10, float32 = 1e-4, bfloat16 = 0.1, float16 = 2e-2 }
  for _, kind in ipairs { "RNN", "GRU", "LSTM" } do
    for _, dtype in ipairs { "float64", "float32", "bfloat16", "float16" } do
      lm.manual_seed(1)
      local options = { num_layers = 2, bidirectional = true }
      local here, there = nn[kind](24, 32, options), nn[kind](24, 32, options):to("cuda", dtype)
      there:load_state_dict(here:state_dict())
      here:load_state_dict(there:state_dict())
      local cell = {cell = kind == "RNN" and "rnn_tanh" or kind:lower(), bidirectional = true}
      if lm.recurrent_weights(there:parameters(), cell):numel() == 0 then
        fail("%s in %s goes step by step; LM_LOG=op says why", kind, dtype)
      end
      local x = lm.randn { 7, 8, 24 }:to(dtype)
      expect_all(kind .. " in " .. dtype, values(here:double(), x:double()), values(there, x:cuda()), limits[dtype])
      if size then
        local net = nn[kind](assert(tonumber(size), "which size?"), tonumber(size), 2):to("cuda", dtype)
        local input = lm.randn({ 100, 32, tonumber(size) }):to("cuda", dtype):requires_grad_()
        local took = {}
        for _, by_steps in ipairs { false, true } do
          net.by_steps = by_steps
          took[by_steps] = milliseconds(function() net(input):sum():backward() end, {})
        end
        print(("%40s cuDNN %8.3f ms, step by step %8.3f ms"):format("", took[false], took[true]))
      end
    end
  end
end

-- Attention beside the CPU's in float64, with and without masks, of heads that are shared: results and gradients, by
-- cuDNN and by our kernels. 37 queries are part of a block, 300 several. With a length, how long these and products
-- take.
function case.attention(length)
  local ops = require "luminary.core".ops
  -- As F.scaled_dot_product_attention, where that might choose products.
  local function by_kernels(q, k, v, o)
    local draw = o.dropout_p and o.dropout_p > 0 and ops.attention_draw(q, k) or nil
    return (ops.attention(q, k, v, o.attn_mask, o.is_causal or false, nil, o.dropout_p or 0, draw))
  end
  local limits = { float64 = 1e-10, float32 = 1e-4, bfloat16 = 5e-2, float16 = 1e-2 }
  lm.backends.cudnn.benchmark = true -- cuDNN from a length's first call on, else from its second
  for _, dtype in ipairs { "float64", "float32", "bfloat16", "float16" } do
    local half = dtype == "bfloat16" or dtype == "float16"
    for _, e in ipairs(stand_in and { 80 } or { 64, 80, 128, 256 }) do
      for _, how in ipairs { "plain", "causal", "masked", "shared heads", "dropout" } do
        for _, queries in ipairs(stand_in and { 37 } or { 37, 300 }) do
          lm.manual_seed(1)
          local heads = how == "shared heads" and 2 or 4
          local list = { lm.randn { 2, 4, queries, e }, lm.randn { 2, heads, queries, e } }
          list[3] = lm.randn(list[2].shape)
          local mask = how == "masked" and lm.rand({ queries, queries }):lt(0.7) or nil
          local function values(device, as, attend)
            local on = {}
            for i, t in ipairs(list) do on[i] = t:to(dtype):to(device, as):detach():requires_grad_() end
            lm.manual_seed(2)
            local y = attend(on[1], on[2], on[3], {
              is_causal = how == "causal", enable_gqa = how == "shared heads", attn_mask = mask and mask:to(device),
              dropout_p = how == "dropout" and 0.3 or 0,
            })
            y:double():sin():sum():backward()
            return { y, on[1].grad, on[2].grad, on[3].grad }
          end
          local want = values("cpu", "float64", F.scaled_dot_product_attention)
          for _, enabled in ipairs(half and { true, false } or { true }) do
            lm.backends.cudnn.enabled = enabled
            expect_all(("%d x %d %s, %s%s"):format(queries, e, how, dtype, enabled and "" or ", no cuDNN"), want,
              values("cuda", dtype, enabled and F.scaled_dot_product_attention or by_kernels), limits[dtype])
          end
          lm.backends.cudnn.enabled = true
        end
      end
    end
    -- Scores far below 0, of which e to the power of what is not there would be inf; and one query, or one key.
    for _, size in ipairs { { 64, 64 }, { 192, 192 }, { 320, 320 }, { 1000, 1000 }, { 1, 128 }, { 128, 1 } } do
      if stand_in and size[1] + size[2] > 130 then break end
      local q, k = lm.zeros { 1, 2, size[1], 64 }, lm.zeros { 1, 2, size[2], 64 }
      q:select(4, 1):fill_(1)
      k:select(4, 1):fill_(-960)
      local list = { q, k, lm.randn(k.shape) }
      local function values(device, as)
        local on = {}
        for i, t in ipairs(list) do on[i] = t:to(device, as):detach():requires_grad_() end
        local y = F.scaled_dot_product_attention(on[1], on[2], on[3])
        y:double():sin():sum():backward()
        return { y, on[3].grad }, on
      end
      local got, on = values("cuda", dtype)
      expect_all(("%d x %d of small scores, %s"):format(size[1], size[2], dtype), values("cpu", "float64"), got,
        limits[dtype])
      for i = 1, 2 do
        if not on[i].grad:isfinite():all():item() then fail("a gradient of %s that is not finite", dtype) end
      end
    end
    if length then
      local x = lm.randn({ 3, 4, 12, assert(tonumber(length), "which length?"), 64 }):to("cuda", dtype)
      local q, k, v = x[1]:detach():requires_grad_(), x[2]:detach():requires_grad_(), x[3]:detach():requires_grad_()
      local took = {}
      local function timed(f) took[#took + 1] = milliseconds(function() f():sum():backward() end, {}) end
      for _, causal in ipairs { false, true } do
        for _, enabled in ipairs { true, false } do
          lm.backends.cudnn.enabled = enabled
          timed(function() return by_kernels(q, k, v, { is_causal = causal }) end)
        end
      end
      lm.backends.cudnn.enabled = true
      timed(function() return (q * 0.125):matmul(k:transpose(-2, -1)):softmax(-1):matmul(v) end)
      print(("%40s cuDNN %.3f ms, no cuDNN %.3f ms; causal %.3f and %.3f ms; products and softmax %.3f ms"):format(
        dtype, unpack(took)))
    end
  end
end

local of_a_machine = {totalGlobalMem = true, driverVer = true} -- and not of the kind of card

function case.properties(program, path)
  local function facts(text)
    local list = {}
    for name, value in text:gmatch '"([%w_]+)"%s*:%s*([^,}%s]+)' do list[name] = value end
    return list
  end
  local file = assert(io.open(path))
  local filed = facts(file:read("*a"))
  file:close()
  local pipe = io.popen(program .. " --dump")
  local own = facts(pipe:read("*a"))
  pipe:close()
  if next(own) == nil then fail("%s --dump says nothing", program) end
  local names, different = {}, 0
  for name in pairs(filed) do names[#names + 1] = name end
  for name in pairs(own) do
    if filed[name] == nil then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if own[name] ~= filed[name] and not of_a_machine[name] then
      different = different + 1
      print(("%-40s on file %s, here %s"):format(name, tostring(filed[name]), tostring(own[name])))
    end
  end
  if different > 0 then fail("%d properties differ: put this card's own JSON into %s", different, path) end
end

function case.nccl()
  local dist = lm.dist
  dist.init_process_group { backend = "cpu:gloo,cuda:nccl", rank = 0, world_size = 1,
    init_method = "tcp://127.0.0.1:0" }
  local group = dist.new_group({ 0 }, { backend = "nccl" })
  local x = lm.arange(1000, { dtype = "float32", device = "cuda" })
  local before = x:clone()
  for _, op in ipairs { "sum", "max", "min", "mean" } do
    dist.all_reduce(x, { op = op, group = group })
    expect("all_reduce, " .. op, before:to("cpu"), x, 0)
  end
  dist.broadcast(x, 0, { group = group })
  expect("broadcast", before:to("cpu"), x, 0)
  local work = dist.all_reduce(x, { group = group, async_op = true })
  work:wait()
  expect("all_reduce, asynchronous", before:to("cpu"), x, 0)
  dist.destroy_process_group()
end

-- What backward pays for each bucket that it sends.
function case.issue()
  local dist, taken = lm.dist, {}
  dist.init_process_group { timeout = 30 }
  local x = lm.ones({ 2 ^ 18 }, { device = "cuda:" .. dist.local_device():match "%d+" })
  for i = -20, 200 do
    local start = lm.time()
    local work = dist.all_reduce(x, { op = "mean", async_op = true })
    if i > 0 then taken[i] = 1e6 * (lm.time() - start) end
    work:wait()
    if i % 10 == 0 then lm.cuda.synchronize() end
  end
  table.sort(taken)
  print(("rank %d: %.0f us, one in ten calls more than %.0f us"):format(dist.get_rank(), taken[100], taken[180]))
  dist.destroy_process_group()
end

local run = case[arg[1] or ""]
  or fail("gpu_cases: smoke, off, steps, scaling, linalg, recurrent, attention, properties, nccl or issue, not %s",
    tostring(arg[1]))
local ok, message = pcall(run, select(2, unpack(arg)))
if not ok then
  print(message)
  os.exit(1)
end
