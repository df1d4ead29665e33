-- Cases of scripts/dev/gpu_cases.lua: values on the device beside the CPU's in float64.
local lm = require "luminary"
local lists = require "luminary.base.lists"
local common = require "scripts.dev.gpu.common"
local nn, F = lm.nn, lm.nn.functional
local fail, expect = common.fail, common.expect

local case = {}

local tolerance = { float64 = 1e-10, float32 = 1e-4, bfloat16 = 5e-2, float16 = 1e-2 }

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

-- Compares compiled functions with the functions: groups of ops, which NVRTC compiles. Over the stand-in some of them.
function case.groups()
  local limit = { float64 = 1e-13, float32 = 1e-5, bfloat16 = 3e-2, float16 = 4e-3 }
  for first, dtype in pairs { [0] = "bfloat16", "float32", "float16", "float64" } do
    for i, group in ipairs(require "spec.support.cuda.group_cases"(dtype)) do
      local args = group.make()
      local function values(f)
        for _, a in ipairs(args) do a.grad = nil end
        lm.manual_seed(7)
        local list = { f(unpack(args)) }
        for _, a in ipairs(args) do list[#list + 1] = a.grad end
        for k, t in ipairs(list) do list[k] = t:detach():cpu() end
        return list
      end
      if not common.stand_in or i % 12 == first then
        local want, step, state = values(group.f), lm.compile(group.f, { warmup = 1000 })
        for _ = 1, 3 do common.expect_all(group.name, want, values(step), limit[dtype]) end
        local reason = state.reason or ""
        if reason:find("one by one", 1, true) then fail("%s: %s", group.name, reason) end
      end
    end
  end
end

-- Checks products that compute more than the product: sums of an operand, gelu_tanh, its gradient.
function case.fused_products()
  local layouts = require "spec.support.half_layouts".layouts
  for _, dtype in ipairs { "bfloat16", "float16", "float32", "float64" } do
    lm.manual_seed(1)
    for _, size in ipairs { { 8, 24, 16 }, { 33, 40, 13 }, common.sized({ 1024, 768, 3072 }, { 64, 32, 96 }) } do
      local m, k, n = unpack(size)
      for _, layout in ipairs(layouts) do
        local function rand(shape) return lm.rand(shape, { device = "cuda" }):mul(2):sub(1):to(dtype) end
        local function made(shape) return layout[2](rand, shape) or rand(shape) end
        local x, other, bias, at = made { m, k }, made { k, n }, rand { n }, rand { m, n }
        local function wide(t) return t:cpu():double() end
        local product = wide(x):matmul(wide(other))
        local what = ("%s, %d %d %d, %s"):format(dtype, m, k, n, layout[1])
        for _, of_other in ipairs { false, true } do
          local y, sums = lm.ops.mm_with_sums(x, other, { of_other = of_other })
          common.expect_all("sums " .. what, { product, of_other and wide(other):sum(1) or wide(x):sum(2) },
            { y, sums }, dtype == "float64" and 1e-12 or 1e-4)
        end
        for _, input in ipairs { false, bias } do
          local sum = input and product + wide(bias) or product
          common.expect_all("gelu " .. what, { F.gelu(sum, { approximate = "tanh" }), sum },
            { lm.ops.addmm_gelu(x, other, input or nil) }, tolerance[dtype])
        end
        local leaf = wide(at):requires_grad_()
        F.gelu(leaf, { approximate = "tanh" }):backward(product)
        expect("gelu's gradient " .. what, leaf.grad, lm.ops.mm_gelu_backward(x, other, at), tolerance[dtype])
      end
    end
  end
end

-- Checks linear or conv2d with an operand n elements behind a boundary of 256 bytes.
local function compare_offset(op, dtype, which, n)
  lm.manual_seed(1)
  local shapes = op == "linear" and { x = { 64, 128 }, weight = { 96, 128 }, bias = { 96 } }
    or { x = { 8, 16, 14, 14 }, weight = { 32, 16, 3, 3 }, bias = { 32 } }
  local here, there = {}, {}
  for name, shape in lists.sorted_pairs(shapes) do
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

-- Returns whether the device still works: after a fault of a kernel nothing does, in this process.
local function is_alive()
  return (pcall(function() assert(lm.ones({ 2 }, { device = "cuda" }):sum():item() == 2) end))
end

-- Checks all operands in one process, which takes seconds to start; those left after a fault in a process each. With an
-- op's name and the rest, that one alone.
function case.alignment(op, dtype, which, n)
  if op then return compare_offset(op, dtype, which, assert(tonumber(n), "how many elements off?")) end
  local alive, failed = true, {}
  local function try(...)
    local name = ("%s %s %s %d"):format(...)
    print(name .. " off")
    local ok, why
    if alive then
      ok, why = pcall(compare_offset, ...)
      if ok then return end
      print(why)
      alive = is_alive()
      if alive then failed[#failed + 1] = name return end
      print "the device is lost; this case again and the rest in processes of their own"
    end
    local passes = os.execute(("luajit %s alignment %s"):format(arg[0], name)) == 0
    if why then -- an earlier case may have caused it
      failed[#failed + 1] = name .. (passes and ", which passes alone" or ", alone too")
    elseif not passes then
      failed[#failed + 1] = name
    end
  end
  for _, each_op in ipairs { "linear", "conv2d" } do
    for _, each_dtype in ipairs { "float32", "float16", "bfloat16" } do
      for _, operand in ipairs { "x", "weight", "bias" } do
        for _, elements in ipairs { 1, 2, 4 } do try(each_op, each_dtype, operand, elements) end
      end
    end
  end
  if #failed > 0 then fail("%d cases of alignment failed: %s", #failed, table.concat(failed, ", ")) end
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

-- Lists calls whose results do not depend on the signs that vectors come with; f gets the tensors, on either device.
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

-- Fails unless these libraries are loaded: without one the backend computes otherwise, and as well.
local function expect_libraries(...)
  if common.stand_in or os.getenv "LM_CUDA_WITHOUT" then return end
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
        print(("%40s CPU %8.3f ms, GPU %8.3f ms"):format("", common.milliseconds(f, here),
          common.milliseconds(f, there)))
      end
    end
  end
  expect_libraries("libcufft", "libcusolver")
end

return case
