-- Cases of scripts/dev/gpu_cases.lua: each expression of scripts/bench/ops_cases.lua, and those below, on the device.
local lm = require "luminary"
local common = require "scripts.dev.gpu.common"
local list = require "scripts.bench.ops_cases"
local fail = common.fail

-- Expressions that ops_cases.lua leaves to scripts/bench/compute.
list.list = [[
# usual
grad u v: u + v
grad u v: u * v
grad u: u:exp()
grad n: F.relu(n)
grad n: F.gelu(n)
grad u: F.dropout(u, {p = 0.1})
grad u: u:softmax(-1)
grad u: u:log_softmax(-1)
grad u: u:sum()
grad u: u:sum(-1)
grad u: u:sum(1)
grad u: u:mean(-1)
grad u: u:max()
u:argmax(-1)
u:clone()
u:bfloat16()
u:gt(v)
lm.where(b, u, v)
u:topk(50, -1)
grad u: F.cross_entropy(u, labels)
grad batch batch2: batch:matmul(batch2)
grad img w2: F.conv2d(img, w2:transpose(1, 2):contiguous(), {padding = 1})
grad img k16: F.batch_norm(img, nil, nil, {weight = k16, bias = k16, training = true})
grad batch: F.scaled_dot_product_attention(batch:unsqueeze(2), batch2:unsqueeze(2), batch:unsqueeze(2))
]] .. list.list

-- Returns the inputs that an expression names.
local function inputs_of(expression)
  local names, seen = {}, {}
  local bare = expression:gsub('"[^"]*"', ""):gsub("[.:][%a_][%w_]*", "")
  for name in bare:gmatch "%f[%w_][%a_][%w_]*" do
    if (list.inputs[name] or list.derived[name]) and not seen[name] then
      names[#names + 1], seen[name] = name, true
    end
  end
  return names
end

-- Returns whether an expression's result is as large as the rows of its inputs are many.
local function has_rows(expression)
  local grows = false
  for _, name in ipairs(inputs_of(expression)) do
    if not list.inputs[name] or not (list.has_rows(name) or name == "row") then return false end
    grows = grows or list.has_rows(name)
  end
  return grows
end

local floats = { uniform = true, normal = true, sign = true, zeroone = true }

-- Returns an environment for expressions, which makes inputs when they are first named.
local function environment(device, rows, dtype)
  return setmetatable({ lm = lm, F = lm.nn.functional, select = select }, { __index = function(env, name)
    if list.derived[name] then
      env[name] = list.compile(list.derived[name]:match "^[^|]*", env)():to(device)
    elseif list.inputs[name] then
      env[name] = list.input(lm, name, device, rows)
      if dtype and floats[list.inputs[name][1]] then env[name] = env[name]:to(dtype) end
    end
    return rawget(env, name)
  end })
end

-- Returns the result of an expression, then the gradients of the inputs that grads names.
local function evaluate(grads, expression, env)
  local own, leaves = setmetatable({}, { __index = env }), {}
  for name in grads:gmatch "%S+" do
    own[name] = env[name]:clone():requires_grad_()
    leaves[#leaves + 1] = own[name]
  end
  lm.manual_seed(7)
  local out = list.compile(expression, own)()
  local results = { type(out) == "table" and out.detach == nil and out[1] or out }
  if #leaves > 0 then
    results[1]:backward(lm.ones_like(results[1]))
    for _, leaf in ipairs(leaves) do results[#results + 1] = leaf.grad end
    results[1] = results[1]:detach()
  end
  return results
end

-- Calls f(grads, expression) for each expression; reports and counts those that fail. Leaves out what the CPU refuses
-- too, such as a dtype.
local function walk(wanted, dtype, f)
  local failed, refused = {}, {}
  local on_cpu = environment("cpu", 4, dtype)
  list.each(function(grads, expression)
    if not wanted(expression) then return end
    local ok, why = pcall(function()
      f(grads, expression)
      lm.synchronize "cuda" -- this reports bad indices
    end)
    if ok then return end
    local here = has_rows(expression) and not pcall(evaluate, "", expression, on_cpu)
    local kind = here and refused or failed
    kind[#kind + 1] = expression
    print(("%s %s: %s"):format(here and "left out" or "error in", expression, tostring(why)))
  end)
  if #refused > 0 then print(("%d expressions are not for %s"):format(#refused, dtype)) end
  if #failed > 0 then fail("%d expressions failed: %s", #failed, table.concat(failed, "; ")) end
end

local case = {}

-- Bytes are those of the inputs, each read once, and of the first result, written once.
function case.bandwidth(mib, dtype)
  mib, dtype = assert(tonumber(mib), "how many MiB?"), dtype or "float32"
  local width = dtype == "float32" and 4 or 2
  local rows = common.sized(math.floor(mib * 2 ^ 20 / 1000 / width), 4)
  local env, copy, all = environment("cuda", rows, dtype), common.ceiling "copy", {}
  print(("%s, [%d, 1000] is %.0f MiB; a copy %.0f GB/s"):format(dtype, rows, rows * 1000 * width / 2 ^ 20, copy))
  walk(has_rows, dtype, function(_, expression)
    local f, bytes = list.compile(expression, env), 0
    local out = f()
    if type(out) == "userdata" or out.numel then bytes = common.bytes(out) end
    out = nil -- luacheck: ignore
    for _, name in ipairs(inputs_of(expression)) do bytes = bytes + common.bytes(env[name]) end
    local rate = bytes / common.seconds(f) / 1e9
    all[#all + 1] = { expression, rate / copy }
    print(("%-64s %8.1f GB/s %6.2f"):format(expression, rate, rate / copy))
    collectgarbage()
  end)
  table.sort(all, function(a, b) return a[2] < b[2] end)
  print "the slowest, as fractions of a copy:"
  for i = 1, math.min(30, #all) do print(("  %6.3f %s"):format(all[i][2], all[i][1])) end
end

-- Returns whether both are equal bit for bit, NaN being itself.
local function is_same(a, b)
  if not a.dtype:find "float" then return lm.equal(a, b) end
  return a:eq(b):logical_or(a:ne(a):logical_and(b:ne(b))):all():item()
end

local function everything(expression) return not common.stand_in or has_rows(expression) end

-- Ops that add in any order, as the help of lm.use_deterministic_algorithms says, or have any value (scatter, empty).
local any_order = { "scatter", "grid_sample", "F%.fold", "ctc_loss", "conv3d", "lm%.empty" }

local function has_any_order(expression)
  for _, name in ipairs(any_order) do
    if expression:find(name) then return true end
  end
  return false
end

function case.repeated()
  lm.use_deterministic_algorithms(true)
  local env, n, different = environment("cuda", common.sized(1000, 4)), 0, {}
  walk(everything, "float32", function(grads, expression)
    if expression:find "%w_%(" or has_any_order(expression) then return end -- the first writes its input
    local first, second = evaluate(grads, expression, env), evaluate(grads, expression, env)
    n = n + 1
    for i = 1, #first do
      if not is_same(first[i], second[i]) then
        different[#different + 1] = expression .. (i > 1 and ", a gradient" or "")
        print("different bits: " .. different[#different])
        break
      end
    end
  end)
  print(("%d expressions twice, %d with other bits"):format(n, #different))
  if #different > 0 then fail("other bits: %s", table.concat(different, "; ")) end
end

function case.once()
  local small, natural, n = environment("cuda", common.sized(37, 4)), environment("cuda"), 0
  walk(everything, "float32", function(grads, expression)
    evaluate(grads, expression, has_rows(expression) and small or natural)
    n = n + 1
  end)
  lm.synchronize "cuda"
  print(("%d expressions, with gradients"):format(n))
end

return case
