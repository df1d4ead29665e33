-- Draws random training programs for random_steps.lua. A program's setup, body (its step) and calls are lists of nodes
-- {kind, text, out = "v3", from = "v1"}, where `from` can stand in for `out`, and of blocks {kind, open = text, close =
-- text, body = list}.
--
-- Each node is tried when it is drawn, on tensors of two batch sizes, and kept if it works.
local lm = require "luminary"
local half = require "spec.support.half_layouts"
local ops = require "scripts.dev.random_ops"

local programs = {}
local random, fill = math.random, ops.fill
local function pick(list) return list[random(#list)] end
local function chance(percent) return random(100) <= percent end
local function same_list(a, b) return table.concat(a, ",") == table.concat(b, ",") end
local function listed(names) return "{" .. table.concat(names, ", ") .. "}" end

local layouts = {}
for _, layout in ipairs(half.layouts) do layouts[layout[1]] = layout[2] end

--- Returns a tensor of a layout of spec/support/half_layouts.lua with elements around 1, or a plain one.
function programs.make(layout, shape, dtype)
  local function rand(size) return (lm.rand(size) * 3 - 1.5):to(dtype) end
  return layouts[layout](rand, shape) or rand(shape)
end

-- ---- a program's text

-- Appends the lines of a list of nodes; live: as Draw:try runs them.
local function emit(list, indent, lines, live)
  for _, node in ipairs(list) do
    if not node.body then
      lines[#lines + 1] = indent .. node.text
    elseif #node.body > 0 then
      lines[#lines + 1] = indent .. (live and node.live or node.open)
      emit(node.body, indent .. "  ", lines, live)
      lines[#lines + 1] = indent .. (live and node.live_close or node.close)
    end
  end
  return lines
end

-- Returns a list of the names that nodes define, and their nodes by name.
local function definitions(list, names, nodes)
  names, nodes = names or {}, nodes or {}
  for _, node in ipairs(list) do
    if node.body then definitions(node.body, names, nodes) end
    if node.out and not nodes[node.out] then
      names[#names + 1], nodes[node.out] = node.out, node
    end
  end
  return names, nodes
end

--- Returns the text of a program; random_steps.lua says what the function is passed.
function programs.text(p)
  local lines = {
    "local wrap, make, see, caller = ...", 'local lm = require "luminary"',
    "local nn, F, optim = lm.nn, lm.nn.functional, lm.optim", ("lm.manual_seed(%d)"):format(p.seed),
  }
  local function add(text, ...) lines[#lines + 1] = text:format(...) end
  local function declare(names, indent)
    if #names > 0 then add("%slocal %s", indent, table.concat(names, ", ")) end
  end
  local names, nodes = definitions(p.setup)
  declare(names, "")
  emit(p.setup, "", lines)
  local inputs = table.concat(p.inputs, ", ")
  add("local function f(%s)", p.packed and "batch" or inputs)
  if p.packed then add("  local %s = unpack(batch)", inputs) end
  declare(definitions(p.body), "  ")
  emit(p.body, "  ", lines)
  if #p.returns > 0 then add("  return %s", table.concat(p.returns, ", ")) end
  add "end"
  local state = {("inputs = {%s}"):format(inputs)}
  for _, name in ipairs(names) do
    local seen = nodes[name].seen or name
    if seen ~= "" then state[#state + 1] = name .. " = " .. seen end
  end
  declare(p.inputs, "")
  add "local r, step = {}, wrap(f)"
  add("local call, back = caller(function() return {%s} end, r)", table.concat(state, ", "))
  emit(p.calls, "", lines)
  add 'see("results at the end", r)'
  return table.concat(lines, "\n") .. "\n"
end

-- ---- drawing

local sizes = {1, 2, 2, 3, 4, 5, 7, 8, 8, 16, 17, 33}
local MOST, MOST_WIDE = 600, 140000 -- elements of a value; one program in 25 is wide, for several threads

local Draw = {}
Draw.__index = Draw

local function floating(x) return x.dtype:find "float" end
local function at_least(n) return function(x) return floating(x) and x.ndim >= n end end
local function is_inner(x) return floating(x) and x.requires_grad and not x.is_leaf end

-- Runs a node's text for both batch sizes, within the open blocks, by their `live` instead of `open` if they have it.
-- Returns false if it fails. With `out` the value of that name must be a tensor of reasonable size and elements.
function Draw:try(text, out)
  local parts = {}
  for i, block in ipairs(self.open) do parts[i] = block.live or block.open end
  parts[#parts + 1] = text
  for i = #self.open, 1, -1 do parts[#parts + 1] = self.open[i].live_close or self.open[i].close end
  local chunk = assert(loadstring(table.concat(parts, "\n"), "=live"))
  for _, env in ipairs(self.envs) do
    if not pcall(setfenv(chunk, env)) then return false end
    if out then
      local y = env[out]
      if not lm.is_tensor(y) or y:numel() > self.most or y:numel() == 0 or y.ndim > 5 then return false end
      local top = floating(y) and y:detach():abs():amax():item() or 0
      if top >= 100 or top ~= top then return false end
    end
  end
  return not out or self.envs[1][out].ndim == self.envs[2][out].ndim
end

-- Empties the environments: hooks and checkpoints of their graphs would keep them, as no collector follows graphs.
function Draw:close()
  for _, env in ipairs(self.envs) do
    for name in pairs(env) do env[name] = nil end
  end
end

-- Runs the program drawn so far again, after a node failed that may have changed values.
function Draw:restart()
  self:close()
  local setup = loadstring(table.concat(emit(self.setup, "", {}, true), "\n"))
  local body = loadstring(table.concat(emit(self.body, "", {}, true), "\n"))
  for i = 1, 2 do
    local env = setmetatable({lm = lm, F = lm.nn.functional, nn = lm.nn, optim = lm.optim, make = programs.make,
      see = function() end, wrap = function(f) return f end}, {__index = _G})
    self.envs[i] = env
    lm.manual_seed(self.seed)
    setfenv(setup, env)()
    for name, text in pairs(self.inputs_live) do env[name] = setfenv(loadstring("return " .. text(i)), env)() end
    pcall(setfenv(body, env))
  end
end

-- Returns a value, nil if it was freed.
function Draw:of(name)
  local x = self.envs[1][name]
  return x and pcall(floating, x) and x or nil
end

function Draw:add(node)
  local list = #self.open > 0 and self.open[#self.open].body or self.body
  list[#list + 1] = node
  self.count = self.count + 1
  return true
end

-- Adds a node that defines a value, if it works; returns the value's name.
function Draw:value(kind, text, from)
  local out = "v" .. (self.last + 1)
  if not self:try(out .. " = " .. text, out) then return end
  self.last = self.last + 1
  self.values[#self.values + 1] = out
  self:add {kind = kind, text = out .. " = " .. text, out = out, from = from}
  return out
end

-- Adds a node that changes values, if it works and, with `check`, leaves the graph of recent values usable.
function Draw:act(kind, text, check)
  local fine = self:try(text)
  if fine and check then
    local roots, leaves = {}, {}
    for i = math.max(1, #self.values - 8), #self.values do
      local y = self:of(self.values[i])
      if y and is_inner(y) then roots[#roots + 1] = y:sum():float() end
    end
    for _, name in ipairs(self.params) do
      if self:of(name).requires_grad then leaves[#leaves + 1] = self:of(name) end
    end
    fine = #roots == 0 or pcall(lm.grad, roots, leaves, {allow_unused = true, retain_graph = true})
  end
  if fine then return self:add {kind = kind, text = text} end
  self:restart()
end

-- Adds a node to the setup, outside of the open blocks. `seen`: text of what is compared of it.
function Draw:define(kind, text, out, seen)
  local open = self.open
  self.open = {}
  local fine = self:try(text)
  self.open = open
  if fine then table.insert(self.setup, {kind = kind, text = text, out = out, seen = seen}) end
  return fine
end

-- Returns the name of a value, later ones more often, that satisfies a condition, and the value.
function Draw:some(condition)
  local list = self.values
  for _ = 1, 8 do
    local name = list[chance(60) and math.max(1, #list - random(0, 5)) or random(#list)]
    local x = self:of(name)
    if x and self.envs[1][name] and self.envs[2][name] and condition(x) then return name, x end
  end
end

-- Returns the sizes of a value that are the same in all calls, 1 in the place of others.
function Draw:static(name)
  local a, b, shape = self.envs[1][name].shape, self.envs[2][name].shape, {}
  for d, size in ipairs(a) do shape[d] = #a == #b and b[d] == size and size or 1 end
  return shape
end

local hooks = {
  "x:register_hook(function(g) return g * 0.5 end)", 'x:register_hook(function(g) see("hook", g) end)',
  'x:register_post_accumulate_grad_hook(function(q) see("hook", q.grad) end)',
  "x:register_post_accumulate_grad_hook(function(q) q.grad = q.grad * 0.5 end)",
}
local usual_layouts = {"plain", "plain", "plain", "transposed", "every second element", "part of a row"}

-- Returns a parameter "p" or buffer "b" of a shape and dtype, a new one or one that is there.
function Draw:leaf(letter, shape, dtype)
  local list = letter == "p" and self.params or self.buffers
  for _, name in ipairs(list) do
    local x = self:of(name)
    if x.dtype == dtype and same_list(x.shape, shape) and chance(60) then return name end
  end
  local name = letter .. (#list + 1)
  local text = ("%s = make(%q, %s, %q)"):format(name, pick(usual_layouts), listed(shape), dtype)
  if letter == "p" and not chance(8) then text = text .. ":requires_grad_()" end
  self:define("leaf", text, name)
  if text:find "requires_grad" and chance(8) then self:define("hook", fill(pick(hooks), {x = name})) end
  list[#list + 1] = name
  if not self.is_tidy or letter == "b" then self.values[#self.values + 1] = name end
  return name
end

-- Returns the name of a value, or of a new parameter, of x's dtype that broadcasts to x.
function Draw:beside(name)
  local x = self:of(name)
  for _ = 1, 4 do
    local other, y = self:some(function(y) return y.dtype == x.dtype and y.ndim <= x.ndim end)
    local fits = other ~= nil
    for d = 1, fits and y.ndim or 0 do
      local size = y.shape[y.ndim + 1 - d]
      fits = fits and (size == 1 or size == x.shape[x.ndim + 1 - d])
    end
    if fits then return other end
  end
  local static, shape = self:static(name), {}
  for d = random(math.max(1, #static)), #static do shape[#shape + 1] = chance(25) and 1 or static[d] end
  return self:leaf("p", shape, x.dtype) .. (self.is_tidy and ":sin()" or "") -- which saves a tensor for backward
end

-- Returns text with x, y, z and dim replaced for the value `name`.
function Draw:filled(text, name)
  local x = self:of(name)
  return fill(text, {
    x = name, y = text:find "%f[%a]y%f[%A]" and self:beside(name), z = text:find "%f[%a]z%f[%A]" and self:beside(name),
    dim = tostring(random(math.max(1, x.ndim))), a1 = self.has_number and "a1" or "scale",
  })
end

-- ---- kinds of nodes; x is a value, y one that broadcasts to it

-- Patterns of text that may end a recording of a step there.
local splitting = {":to%(", ":item", "requires_grad_", ":prod", "float%(%)", "double%(%)", "float16%(%)", "half%(%)",
  "masked_select", "%[x:gt", "one_hot", "lm%.tensor"}

-- Returns one of the texts; in a tidy program seldom one that splits a recording.
local function pick_text(d, texts)
  local text
  for _ = 1, d.is_tidy and 3 or 1 do
    text = pick(texts)
    local splits = false
    for _, pattern in ipairs(splitting) do splits = splits or text:find(pattern) end
    if not splits then break end
  end
  return text
end

local kinds = {}
local function kind(name, weight, draw) kinds[#kinds + 1] = {name = name, weight = weight, draw = draw} end

local function expressions(name, weight, texts)
  kind(name, weight, function(d)
    local x = d:some(at_least(1))
    return x and d:value(name, d:filled(pick_text(d, texts), x), x)
  end)
  return texts
end

local function actions(name, weight, texts)
  kind(name, weight, function(d)
    local x = d:some(at_least(1))
    return x and d:act(name, d:filled(pick_text(d, texts), x), name == "write")
  end)
  return texts
end

expressions("unary", 20, ops.unary)
expressions("several", 20, ops.several)
expressions("view", 10, {
  "x:transpose(dim, -1)", "x:unsqueeze(dim)", "x:select(dim, 1)", "x:narrow(dim, 1, 1)", "x:slice(dim, 1, -1, 2)",
  "x:flatten()", "x:view {-1}", "x:reshape {-1}", "x:detach()", "x.data", "x:expand(x.shape)", "x.T", "x[1]",
  "x[{{1, 1}}]", "x:unsqueeze(1):expand {2, unpack(x.shape)}", "x:diagonal()", "x:unfold(dim, 1, 1)",
  "x:chunk(2, dim)[1]", "x:narrow(dim, x.shape[dim], 1):squeeze(dim)", "x:as_strided(x.shape, x:stride())",
  "x:permute {dim, unpack(x.ndim == 2 and {3 - dim} or {})}", "x:requires_grad_(x.requires_grad)", "x:view(x.shape)",
  "x:detach():requires_grad_()",
})
expressions("reduction", 8, {
  "x:sum()", "x:mean()", "x:sum(dim)", "x:mean(dim)", "x:mean(dim, true)", "x:amax(dim)", "x:amin(dim, true)",
  "x:var(dim, {unbiased = false})", "x:logsumexp(dim)", "x:max(dim)", "x:square():mean(dim, true):add(0.1):rsqrt()",
  "x:softmax(dim)", "x:log_softmax(dim)", "x:norm()", "x:prod(dim)", "x:argmax(dim):to(x.dtype) * 0.1",
  "x:gt(0):sum(dim):to(x.dtype) * 0.1", "x:std()", "x:cumsum(dim) * 0.1", "(x - x:mean(dim, true)):square():mean(dim)",
  "x:mean(axis)", "x:softmax(axis)",
})
local randoms = expressions("random", 6, {
  "F.dropout(x, 0.5)", "F.dropout(x, 0.1)", "x + lm.randn_like(x) * 0.1", "x * lm.rand_like(x)",
  "x:mul(lm.bernoulli(lm.full(x.shape, 0.5)):to(x.dtype))", "x:clone():normal_()", "x:clone():uniform_(-1, 1) + x",
  "lm.randn(x.shape, {dtype = x.dtype})", "lm.rand(x.shape):to(x.dtype) * x", "F.dropout(x, 0.3, training)",
  "x:index_select(dim, lm.randperm(x.shape[dim]))", "x * lm.randint(1, 3, {1}):to(x.dtype)",
  "F.dropout(x, 0.25, {training = false})", "lm.normal(x:detach(), 0.1)",
})
expressions("index", 5, {
  "x:sort(dim)", "x:topk(1, dim)", "x:gather(dim, x:argsort(dim))", "x[x:gt(0)]:sum()", "F.pad(x, {1, 1})",
  "x:index_select(dim, x:narrow(dim, 1, 1):flatten():argsort())", "lm.cat({x, x:flip {dim}}, dim)",
  "lm.stack({x, x * 2}, 1)", "x:roll(1, dim)", "x:repeat_interleave(2, dim)", "x:masked_fill(x:gt(0), 0)",
  "x:scatter(dim, x:argmax(dim, {keepdim = true}), 0.5)", "x:masked_select(x:gt(0)):mean():nan_to_num(0)",
  "x:index_add(dim, lm.ones({1}, {dtype = \"int64\"}), x:narrow(dim, 1, 1))", "x:tril()", "x:flip {dim}",
  "F.one_hot(x:argmax(dim), {num_classes = 40}):to(x.dtype):narrow(-1, 1, 4)",
  "lm.where(x:gt(0), x, lm.zeros_like(x))", "F.embedding(x:detach():argmax(dim), x:reshape(-1, 1))",
})
expressions("cast", 4, {
  'x:to("float32")', 'x:to("float64")', 'x:to("bfloat16")', "x:float()", "x:double()", "x:bfloat16()", "x:clone()",
  "x:contiguous()", "x:to(x.dtype)", "x:long():to(x.dtype)", "x:half():to(x.dtype)", "x:transpose(dim, 1):contiguous()",
})
expressions("creation", 2, {
  "x + lm.tensor({0.5, 0.25, 1}):to(x.dtype):select(1, 2)", "lm.empty_like(x):copy_(x)", "x:new_zeros(x.shape):add(x)",
  "lm.zeros(x.shape, {dtype = x.dtype})", "lm.ones_like(x) - x", "lm.eye(x.shape[1]):to(x.dtype):mul(0.5):sum() + x",
  "lm.linspace(-1, 1, x.shape[dim]):to(x.dtype):sum() * x", "lm.arange(1, 1 + x.shape[1]):to(x.dtype) / x.shape[1]",
})
local numbers = expressions("number", 5, {
  "x * scale", "x + scale", "x * n.last", "x:mul(n.scale):add(n.calls * 0.1)", "flag and x * 2 or x:tanh()", "x * a1",
  "x:clamp(-scale, scale)", "x + lm.tensor(scale):to(x.dtype)", "lm.full(x.shape, scale, {dtype = x.dtype}) * x",
  "x:pow(power)", "n.calls % 2 == 0 and x:sin() or x:cos()", "x * x.shape[1] / 8", "F.leaky_relu(x, scale)",
  "F.dropout(x, scale / 4)", "x / (1 + n.calls)", "x * (1 - 0.5 ^ n.calls)", "(x + a1):tanh()",
  "lm.arange(1, x.shape[1] + 1):sum():to(x.dtype) * 0.01 + x",
})
expressions("kept", 2, {
  "x + kept.a:mean():to(x.dtype)", "x * kept.a:to(x.dtype):flatten()[1]",
  "x + kept.list[#kept.list]:to(x.dtype):mean()", "(x + kept.a:to(x.dtype):flatten()[-1]):tanh()",
  "x + kept.a:detach():sum():to(x.dtype) * 0.01", "x + kept.a:mean()", "x * kept.a:detach():flatten():select(1, 1)",
  "x * kept.list[#kept.list]:detach():mean()", "(x + kept.a:abs():amax()):cos()",
})
local writes = actions("write", 9, {
  "x:mul_(0.75)", "x:add_(0.125)", "x:add_(y)", "x:mul_(y)", "x:sub_(y)", "x:copy_(y)", "x:fill_(0.25)", "x:zero_()",
  "x:tanh_()", "x:sigmoid_()", "x:relu_()", "x:clamp_(-1, 1)", "x:masked_fill_(x:gt(0.5), 0.25)", "x:neg_()",
  "x:narrow(dim, 1, 1):add_(1)", "x:lerp_(y, 0.25)", "x:addcmul_(x:detach():clone(), y, {value = 0.5})", "x[1] = 0.5",
  "x[{{1, 1}}] = 0.25", "x:select(dim, 1):copy_(x:select(dim, x.shape[dim]):clone())", "x:div_(y:abs() + 1)",
  "x:transpose(dim, 1):add_(0.25)", "x:detach():mul_(0.5)", "x.data:add_(0.0625)", "x:select(dim, 1):mul_(0.5)",
  "x:index_add_(dim, lm.ones({1}, {dtype = \"int64\"}), x:detach():narrow(dim, 1, 1):clone())",
  "x:flatten():mul_(0.5)", "x:mul_(scale)", "x:uniform_(-1, 1)", "x:add_(lm.randn_like(x), {alpha = 0.1})",
})
local reads = actions("read", 3, {
  'see("read", x:sum():item())', 'see("read", x:mean():item())', 'see("read", tostring(x))', 'see("read", x:tolist())',
  'see("read", x:flatten()[1])', 'see("read", #x.shape, x.dtype, x.requires_grad)', 'see("read", x)',
  "n.last = math.min(1, math.abs(x:mean():item()))", 'see("read", x:gt(0):any():item())',
  'see("read", lm.equal(x, y))', 'see("read", x:argmax():item())', 'see("read", x:isfinite():all():item())',
  'see("read", x:is_contiguous(), x:stride(), x:storage_offset())', 'see("read", x.grad_fn, x.is_leaf)',
  'see("caught", pcall(x.view, x, {1000003}))', 'see("caught", pcall(function() x:sum(); error("stopped") end))',
})
local stores = actions("store", 3, {
  "kept.a = x:detach():clone()", "kept.a = x:detach()", "kept.b = x", "kept.b = {x, x}", "kept.d = kept.b; kept.b = x",
  "table.insert(kept.list, x:detach())", "table.insert(kept.list, x:mean():detach())", "kept.n = x:detach():mean()",
  "kept.c = {x, x:detach():mean()}", "lm.no_grad(function() kept.a:mul_(0.5) end)",
  "kept.list = {}; kept.list[1] = x:detach()",
  "lm.no_grad(function() kept.a:add_(x:detach():mean():to(kept.a.dtype)) end)",
})
local counters = actions("counter", 2, {
  "n.calls = n.calls + 1", "n.calls = n.calls + 1", "n.scale = n.scale * 0.75", "flag = not flag",
  "scale = scale * 0.9", "n.last = n.scale + 0.125", 'see("counted", n.calls)', "lm.manual_seed(5)",
  "if n.calls == 2 then collectgarbage() end", "kept.random = lm.get_rng_state()",
  "if kept.random then lm.set_rng_state(kept.random) end",
})

kind("product", 9, function(d)
  local name, x = d:some(at_least(1))
  if not name then return end
  local static, dtype = d:static(name), x.dtype
  local last, wide = static[#static], pick(d.sizes)
  if last ~= x.shape[x.ndim] then return d:value("product", ("%s:matmul(%s.mT)"):format(name, name), name) end
  local function p(...) return d:leaf("p", {...}, dtype) end
  local texts = {
    function() return ("F.linear(%s, %s)"):format(name, p(wide, last)) end,
    function() return ("F.linear(%s, %s, %s)"):format(name, p(wide, last), p(wide)) end,
    function() return ("F.linear(%s, %s, %s)"):format(name, p(wide, last), p(wide)) end,
    function() return ("%s:matmul(%s)"):format(name, p(last, wide)) end,
    function() return ("%s:matmul(%s)"):format(name, p(last)) end,
    function() return ("%s:matmul(%s.mT) / %d"):format(name, name, last) end,
  }
  if x.ndim == 2 then
    texts[7] = function() return ("lm.addmm(%s, %s, %s)"):format(p(wide), name, p(last, wide)) end
    texts[8] = function()
      return ("F.conv2d(%s:unsqueeze(1):unsqueeze(1), %s, %s, {padding = 1})"):format(name, p(2, 1, 3, 3), p(2))
    end
  end
  return d:value("product", pick(texts)(), name)
end)

kind("norm", 4, function(d)
  local name, x = d:some(at_least(2))
  if not name then return end
  local static, dtype = d:static(name), x.dtype
  local channels, last = static[2], static[#static]
  local function p(size) return d:leaf("p", {size}, dtype) end
  if chance(50) and last == x.shape[x.ndim] then
    if chance(50) then return d:value("norm", ("F.rms_norm(%s, {%d}, %s)"):format(name, last, p(last)), name) end
    return d:value("norm", ("F.layer_norm(%s, {%d}, %s, %s)"):format(name, last, p(last), p(last)), name)
  end
  if channels ~= x.shape[2] then return end
  return d:value("norm", ("F.batch_norm(%s, %s, %s, %s, %s, {training = %s})"):format(name,
    d:leaf("b", {channels}, dtype), d:leaf("b", {channels}, dtype), p(channels), p(channels),
    pick {"true", "training"}), name)
end)

kind("net", 3, function(d) -- one module for each size of input
  local name, x = d:some(at_least(2))
  if not name or d:static(name)[x.ndim] ~= x.shape[x.ndim] then return end
  local last = x.shape[x.ndim]
  if not d.net then
    local list = {("nn.Linear(%d, %d)"):format(last, pick(d.sizes))}
    local out = list[1]:match ", (%d+)"
    if x.ndim == 2 and chance(40) then list[#list + 1] = ("nn.BatchNorm1d(%d)"):format(out) end
    list[#list + 1] = pick {"nn.ReLU()", "nn.GELU()", "nn.Tanh()", ("nn.LayerNorm(%d)"):format(out)}
    if chance(50) then list[#list + 1] = "nn.Dropout(0.25)" end
    local text = ("net = nn.Sequential(%s):to(%q)"):format(table.concat(list, ", "), x.dtype)
    if not d:define("net", text, "net", "{net:state_dict(), net:parameters()}") then return end
    d.net = true
  end
  return d:value("net", ("net(%s)"):format(name), name)
end)

kind("custom", 1, function(d) -- a function with its own backward
  local x = d:some(at_least(1))
  if not x then return end
  if not d.custom then
    d.custom = d:define("custom", 'Double = lm.autograd.Function:extend("Double"); '
      .. "function Double.forward(ctx, a) ctx:save_for_backward(a); return a * 2 end; "
      .. "function Double.backward(ctx, g) return g * 2 + ctx.saved_tensors[1] * 0 end", "Double", "")
  end
  return d:value("custom", ("Double(%s)"):format(x), x)
end)

kind("inner", 1, function(d) -- a function that is wrapped as the step is
  local x = d:some(at_least(1))
  for _, b in ipairs(d.open) do x = (b.kind ~= "no_grad" or not d.without.gradless) and x end
  if not x then return end
  d.inner = d.inner or d:define("inner", "inner = wrap(function(a) return " .. pick {"a:tanh() * scale + a",
    "F.dropout(a * 0.5, 0.25)", "a:softmax(-1), a"} .. " end)", "inner", "")
  return d:value("inner", ("inner(%s)"):format(x), x)
end)

kind("free", 0.5, function(d)
  local name, x = d:some(at_least(1))
  for other, y in pairs(d.envs[1]) do
    if rawequal(x, y) and not other:find "^v" then return end -- an input or a parameter
  end
  return name and d:act("free", name .. ":free()", true)
end)

kind("buffer", 2, function(d)
  local name, x = d:some(at_least(1))
  if not name then return end
  local b = d:leaf("b", {d:static(name)[x.ndim]}, x.dtype)
  return d:act("buffer", fill(pick {
    "lm.no_grad(function() b:mul_(0.9):add_(x:detach():mean(), {alpha = 0.1}) end)", "b:add_(1)", "b:mul_(0.5)",
    "b:lerp_(x:detach():mean():expand(b.shape), 0.25)", "b:copy_(b:flip {1})", "b[1] = n.calls", "b:mul_(scale)",
  }, {b = b, x = name}))
end)

kind("parameter", 2, function(d)
  return #d.params > 0 and d:act("parameter", fill(pick {
    "lm.no_grad(function() p:mul_(0.95) end)", "lm.no_grad(function() p:sub_(p:sign() * 0.01) end)", "p.grad = nil",
    "lm.no_grad(function() if p.grad then p:sub_(p.grad:to(p.dtype) * 0.01) end end)", "p.data = p.data * 0.9",
    "if p.grad then p.grad:mul_(0.5) end", "lm.no_grad(function() p:clamp_(-scale, scale) end)", "p.data:mul_(0.9)",
    "if p.grad then see(\"gradient\", p.grad:norm():item()) end", "if p.grad then p.grad = p.grad + 0.01 end",
  }, {p = pick(d.params)}), true)
end)

local conditions = {
  "x1.shape[1] > cut", "flag", "n.calls % 2 == 0", "n.calls < 3", "scale > 0.4", "x1.shape[1] % 2 == 0",
  "lm.is_grad_enabled()", "training",
}

kind("branch", 4, function(d)
  local x = d:some(at_least(1))
  if not x then return end
  local condition = chance(15) and ("%s:mean():item() > 0"):format(x) or pick(conditions)
  return d:value("branch", ("%s and %s or %s"):format(condition,
    d:filled(pick_text(d, pick {ops.unary, ops.several, randoms}), x), d:filled(pick_text(d, ops.unary), x)), x)
end)

-- Assigns to a value that is there: the only expressions in blocks that may not run.
local function assign_again(d)
  local name, x = d:some(at_least(1))
  if not name or not name:find "^v" then return end
  local other = d.envs[2][name]
  local text = ("%s = %s"):format(name, d:filled(pick_text(d, pick {ops.unary, ops.several, randoms, numbers}), name))
  if d:try(text, name) then
    local now = d:of(name)
    if now.dtype == x.dtype and same_list(now.shape, x.shape) then return d:add {kind = "again", text = text} end
  end
  d.envs[1][name], d.envs[2][name] = x, other
end
kind("again", 5, assign_again)

kind("checkpoint", 1, function(d)
  local x = d:some(at_least(1))
  return x and d:value("checkpoint", ("lm.autograd.checkpoint(function(a) return %s end, %s)"):format(
    pick {"a:tanh() * 2 + a", "F.dropout(a:sin(), 0.5)", "F.gelu(a:abs():add(1):log())", "a:softmax(-1) * a"}, x), x)
end)

kind("hook", 1, function(d)
  local x = d:some(function(x) return floating(x) and x.requires_grad end)
  return x and d:act("hook", fill(pick {
    "x:register_hook(function(g) return g * 0.5 end)", "x:register_hook(function() n.calls = n.calls + 1 end)",
    'x:register_hook(function(g) see("hook", g) end)', "x:retain_grad()",
  }, {x = x}))
end)

kind("second", 2, function(d) -- double backward
  local x = d:some(is_inner)
  local other = #d.params > 0 and chance(70) and pick(d.params) or d:some(is_inner)
  local text = "lm.grad(%s:square():mean(), %s, {create_graph = true})[1]"
  return x and other and d:value("second", text:format(x, other), x)
end)

kind("error", 0.4, function(d)
  d.raises = d:act("error", pick {
    'if n.calls == 1 then n.calls = 2; error("stopped") end', 'if x1.shape[1] > cut then error("too large") end',
    "if n.calls == 1 then n.calls = 2; lm.ones {2}:view {3} end", 'if cut == 5 then error("cut") end',
    'if not training then error("evaluates") end', "if scale < 0.4 then lm.ones {2}:view {3} end",
  }) or d.raises
end)

-- ---- blocks

local draw_node

-- Draws a block of 1 .. most nodes, by draw_node or `drawn`. b.ends: its values are not used after it.
local function block(d, b, most, drawn)
  if #d.open >= 2 then return end
  local first = #d.values + 1
  local list = #d.open > 0 and d.open[#d.open].body or d.body
  b.body = {}
  list[#list + 1] = b
  d.open[#d.open + 1] = b
  for _ = 1, random(most) do (drawn or draw_node)(d) end
  d.open[#d.open] = nil
  for i = #d.values, b.ends and first or math.huge, -1 do
    if d.values[i]:find "^v" then table.remove(d.values, i) end
  end
  return true
end

kind("no_grad", 1, function(d)
  return block(d, {kind = "no_grad", open = "lm.no_grad(function()", close = "end)"}, 4)
end)
kind("autocast", 1, function(d)
  local open = 'lm.autocast({device_type = "cpu", dtype = "bfloat16"}, function()'
  return block(d, {kind = "autocast", open = open, close = "end)"}, 6)
end)
kind("loop", 1, function(d)
  local open = pick {"for _ = 1, 2 do", "for _ = 1, 3 do", "for _ = 1, math.min(4, x1.shape[1]) do",
    "for _ = 1, 1 + x1:gt(0):sum():item() % 2 do"}
  return block(d, {kind = "loop", open = open, close = "end"}, 5)
end)
kind("scope", 0.5, function(d)
  return block(d, {kind = "scope", open = "lm.scope(function()", close = "end)", live = "do", live_close = "end",
    ends = true}, 5)
end)
kind("choice", 2, function(d)
  local open = ("if %s then"):format(pick(conditions))
  return block(d, {kind = "choice", open = open, close = "end", live = "do"}, 3, function()
    if chance(50) then return assign_again(d) end
    local x = d:some(at_least(1))
    return x and d:act("choice", d:filled(pick(pick {writes, reads, stores, counters}), x), true)
  end)
end)

-- Draws one node of any kind.
function draw_node(d)
  local at = math.random() * d.weight
  for _, k in ipairs(d.kinds) do
    at = at - k.weight
    if at <= 0 then return k.draw(d) end
  end
end

-- ---- training

local optimizers = {
  "SGD(ALL, {lr = 0.05})", "SGD(ALL, {lr = 0.05, momentum = 0.9})", "Adam(ALL, {lr = 0.01})", "AdamW(ALL)",
  "SGD(ALL, {lr = 0.02, momentum = 0.5, nesterov = true, weight_decay = 0.01})", "Adagrad(ALL, {lr_decay = 0.1})",
  "RMSprop(ALL, {lr = 0.01, centered = true, momentum = 0.5})", "Adam(ALL, {lr = 0.01, amsgrad = true})",
  "Adadelta(ALL)", "Adamax(ALL)", "NAdam(ALL)", "RAdam(ALL, {lr = 0.01})", "Rprop(ALL)", "ASGD(ALL)", "Lion(ALL)",
  "AdaBelief(ALL)", "Adafactor(ALL)", "LAMB(ALL)", "SGD(ALL, {lr = 0.01, maximize = true})",
  "AdamW({{params = {p1}, lr = 0.05}, {params = REST}}, {weight_decay = 0.1})", "LBFGS(ALL, {lr = 0.1, max_iter = 2})",
  "Muon(ALL)",
}
local schedules = {
  "StepLR(opt, 2, {gamma = 0.5})", "ExponentialLR(opt, 0.9)", "CosineAnnealingLR(opt, 5)",
  "LambdaLR(opt, function(k) return 1 / (1 + k) end)", "OneCycleLR(opt, 0.1, {total_steps = 100})",
}
local CLOSURE = "opt:step(function() opt:zero_grad(); local l = (p1:float() * scale + 1):square():mean(); "
  .. "l:backward(); return l end)"

-- Returns whether the program has an optimizer, which may be defined now.
local function has_optimizer(d)
  if d.has_opt ~= nil or #d.params == 0 then return d.has_opt end
  local text = pick(optimizers)
  local rest = {unpack(d.params, 2)}
  if d.net then rest[#rest + 1] = "unpack(net:parameters())" end
  if #rest == 0 and text:find "REST" then text = optimizers[1] end
  d.lbfgs = text:find "^LBFGS"
  text = "opt = optim." .. fill(text, {ALL = listed {"p1", unpack(rest)}, REST = listed(rest)})
  d.has_opt = chance(85) and d:define("optimizer", text, "opt", "opt:state_dict()")
  if not d.has_opt then return false end
  if chance(25) then
    d.has_sched = d:define("optimizer", "sched = optim.lr_scheduler." .. pick(schedules), "sched", "sched:state_dict()")
  end
  if chance(15) then
    local text_of_scaler = 'scaler = lm.amp.GradScaler {device = "cpu", init_scale = 8, growth_interval = 2}'
    d.has_scaler = not d.lbfgs and d:define("optimizer", text_of_scaler, "scaler", "scaler:state_dict()")
  end
  return true
end

local clears = {"opt:zero_grad()", "opt:zero_grad({set_to_none = false})"}

-- Returns the names of values with a history that no later node of the step uses, and of those that were written.
local function unused_values(d)
  local used, list = {}, {}
  local function note(nodes)
    for _, n in ipairs(nodes) do
      if n.body then note(n.body) end
      for word in ((n.text or "") .. (n.open or "")):gmatch "%f[%w]v%d+" do used[word] = true end
      local assigned = n.text and n.text:match "^(v%d+) = "
      if assigned then used[assigned] = nil end
    end
  end
  note(d.body)
  for _, name in ipairs(d.values) do
    local x = d:of(name)
    if x and is_inner(x) and (not used[name] or x._version > 0) then list[#list + 1] = name end
  end
  return list
end

-- Draws a loss of a value and its backward pass. Returns whether it works.
local function draw_backward(d)
  local name, x
  for _ = 1, 4 do
    if not name then name, x = d:some(is_inner) end
  end
  if not name then
    name, x = d:some(at_least(1))
    name = name and d:value("several", ("%s * %s"):format(name, d:leaf("p", {1}, x.dtype)), name)
    x = name and d:of(name)
    if not x or not is_inner(x) then return end
  end
  local has_opt = has_optimizer(d)
  if chance(50) and #d.params > 0 then
    local other = d.net and chance(50) and "net:zero_grad()" or pick(d.params) .. ".grad = nil"
    d:act("zero_grad", has_opt and (d.is_tidy and chance(90) and clears[1] or pick(clears)) or other)
  end
  local text = pick_text(d, {"x:mean()", "x:square():mean()", "x:sum() * 0.1", "x:float():mean()",
    "x:square():sum() * scale", "F.smooth_l1_loss(x, lm.zeros_like(x))", "(x:abs() + 0.1):log():mean()",
    "F.mse_loss(x, x:detach() * 0.5)", "F.l1_loss(x, lm.zeros_like(x), {reduction = mode})"})
  if d.has_labels and x.ndim == 2 and x.shape[1] == d:of("t1").shape[1] and x.shape[2] >= 2 then
    text = pick {"F.cross_entropy(x, t1)", "F.cross_entropy(x, t1)", "F.nll_loss(x:log_softmax(2), t1)", text}
  end
  local loss = d:value("loss", fill(text, {x = name}), name)
  local others = d.is_tidy and unused_values(d) or {} -- else a few, so that more of the program has gradients
  for _ = 1, d.is_tidy and 0 or random(0, 4) do others[#others + 1] = d:some(is_inner) end
  for _, other in ipairs(loss and others or {}) do
    if other ~= loss then
      loss = d:value("loss", ("%s + %s:mean()"):format(loss, other), loss) or loss
    end
  end
  if not loss then return end
  local inputs = {}
  for _, p in ipairs(d.params) do
    if d:of(p).requires_grad then inputs[#inputs + 1] = p end
  end
  if chance(d.is_tidy and 2 or 15) and #inputs > 0 then -- a penalty on the gradient
    local g = d:value("second", ("lm.grad(%s, %s, {create_graph = true, allow_unused = true})[1] or %s"):format(loss,
      listed(inputs), loss), loss)
    loss = g and d:value("loss", ("%s + %s:square():sum():to(%s.dtype)"):format(loss, g, loss), loss) or loss
  end
  if chance(d.is_tidy and 1 or 8) then d:act("read", ('see("loss", %s:item())'):format(loss)) end
  local backward = d.has_scaler and {"scaler:scale(l):backward()"} or {
    "l:backward()", "l:backward()", "l:backward()", "l:div(2):backward()", "l:backward {retain_graph = true}",
    "l:backward {retain_graph = true}; l:backward()", "l:backward {gradient = l:detach()}",
  }
  local text_of_backward = d.is_tidy and not d.has_scaler and chance(90) and backward[1] or pick(backward)
  if not d:act("backward", fill(text_of_backward, {l = loss})) then return end
  d.trained = true
  if chance(25) then d:act("read", ('see("loss", %s:item())'):format(loss)) end
  return true
end

-- Draws a loss, its backward pass and the optimizer's step.
local function train(d)
  if not draw_backward(d) then return end
  local params = listed(d.params)
  if chance(15) then
    if d.has_scaler then d:act("step", "scaler:unscale_(opt)") end
    d:act("clip", pick {"nn.utils.clip_grad_norm_(%s, 0.5)", "nn.utils.clip_grad_value_(%s, 0.1)",
      'see("norm", nn.utils.clip_grad_norm_(%s, 1):item())'}:format(params))
  end
  if chance(10) and #d.params > 0 then d:act("read", ('see("gradient", %s.grad)'):format(pick(d.params))) end
  if d.has_opt and chance(85) then
    local step = d.has_scaler and "scaler:step(opt); scaler:update()" or d.lbfgs and CLOSURE or pick {"opt:step()",
      "opt:step()", "opt:step()", "if n.calls % 2 == 0 then opt:step() end", CLOSURE,
      "opt.param_groups[1].lr = 0.01 * scale; opt:step()"}
    if not d:act("step", step) then return end
    if d.has_sched and chance(60) then d:act("step", "sched:step()") end
    if chance(20) then d:act("zero_grad", pick(clears)) end
  end
end
kind("train", 1, function(d) return #d.open == 0 and train(d) end)

kind("accumulate", 0.5, function(d) -- gradients of parts of a batch
  if #d.open > 0 then return end
  local open = "for _, part in ipairs(x1:chunk(2)) do"
  return block(d, {kind = "accumulate", open = open, close = "end", ends = true}, 1, function()
    d:value("view", "part * 1", "x1")
    for _ = 1, random(4) do draw_node(d) end
    draw_backward(d)
  end)
end)

-- ---- calls

-- Appends what happens before call k to a list of nodes.
local function draw_between(d, k, list)
  local choices = {
    "scale = 0.3", "scale = scale + 0.2", "flag = not flag", "power = 3", "n.calls = n.calls + 1", "n.scale = 0.7",
    "training = not training", "collectgarbage()", "lm.manual_seed(7)", "lm.set_num_threads(2)", "cut = cut + 1",
    "axis = -1", 'mode = "sum"', "scale = 0.5", "flag = true", "n.calls = 0",
    "kept.a:add_(0.25)", "kept.list = {kept.a}", 'kept.a = make("plain", {3}, "float32")', "kept.b = nil",
    ("back(%d)"):format(k - 1), ("back(%d)"):format(k - 1), 'lm.set_default_dtype("float64")',
  }
  local function add(texts, words)
    for _, text in ipairs(texts) do choices[#choices + 1] = fill(text, words or {}) end
  end
  if #d.params > 0 then
    add({
      "lm.no_grad(function() p:mul_(0.9) end)", "p.grad = nil", "p.grad = lm.ones_like(p)", "p.data:add_(0.01)",
      "p:requires_grad_(not p.requires_grad)", "p.data = p.data:clone()", "if p.grad then p.grad:zero_() end",
      "p.data = p.data:transpose(1, -1):contiguous():transpose(1, -1)",
      "if p.requires_grad then p:register_hook(function(g) return g * 0.5 end) end",
      "p = p.data:clone():requires_grad_()", "p = p:detach()",
    }, {p = pick(d.params)})
  end
  if #d.params > 1 then add {"p1, p2 = p2, p1", "p2 = p1"} end
  for _, b in ipairs(d.buffers) do add({"b:add_(0.1)", "b.data = b.data:clone()"}, {b = b}) end
  if d.has_opt then
    add {
      "opt.param_groups[1].lr = opt.param_groups[1].lr * 0.5", "opt.param_groups[1].lr = 0.02", "opt:zero_grad()",
      "opt:zero_grad({set_to_none = false})", "opt:load_state_dict(opt:state_dict())",
      "opt.param_groups[1].weight_decay = 0.01",
    }
    if not d.lbfgs then add {"opt:step()", "opt = optim.SGD({p1}, {lr = 0.1})"} end
    add {"opt:register_step_post_hook(function() n.calls = n.calls + 1 end)"}
  end
  if d.has_sched then add {"sched:step()"} end
  if d.inner then add({'see("inner", (inner(b)))'}, {b = pick {"x1", "kept.a"}}) end
  if d.net then
    add {"net:eval()", "net:train()", "net:zero_grad()", "net:load_state_dict(net:state_dict())",
      "net[1].weight.data:mul_(0.9)", "net[1].weight.requires_grad = false",
      "net[1].weight = nn.Parameter(net[1].weight.data * 0.5)",
      "net:register_forward_hook(function(_, _, y) return y * 0.5 end)",
      'net[1]:register_forward_pre_hook(function() see("hook", n.calls) end)',
      "net[1]:register_full_backward_hook(function() n.calls = n.calls + 1 end)"}
  end
  for _ = 1, random(0, 3) do list[#list + 1] = {kind = "between", text = pick(choices)} end
end

-- Returns the text of a new input for a batch size.
local function input_text(form, batch)
  if form.number then return ("%.2f"):format(random()) end
  local shape, slice = {}, ""
  for d, size in ipairs(form.shape) do shape[d] = size == "batch" and batch or size end
  if form.is_sliced then -- rows of a larger tensor, from a row that differs from call to call
    slice = (":narrow(1, %d, %d)"):format(random(4), shape[1])
    shape[1] = shape[1] + 3
  end
  if form.classes then return ("lm.randint(1, %d, %s)%s"):format(form.classes + 1, listed(shape), slice) end
  return ("make(%q, %s, %q)%s%s"):format(form.layout, listed(shape), form.dtype, slice,
    form.grad and ":requires_grad_()" or "")
end

local function draw_calls(d, forms, batches)
  local changing, batch = chance(50), batches[1]
  local calm = d.is_tidy and 20 or 70 -- percent of calls with changes
  for k = 1, d.is_tidy and random(5, 8) or random(4, 6) do
    local b = {kind = "call", open = "do -- call " .. k, close = "end", body = {}}
    local function add(text) b.body[#b.body + 1] = {kind = "input", text = text} end
    if k > 1 and chance(calm) then draw_between(d, k, b.body) end
    local resized = changing and k > 1 and chance(calm)
    if resized then batch = pick(batches) end
    for _, name in ipairs(d.inputs) do
      local form = forms[name]
      if k > 1 and not form.classes and not form.number then
        if chance(calm / 8) then form.layout = pick(half.layouts)[1] end
        if chance(calm / 16) then form.grad = not form.grad end
        if chance(calm / 32) then form.dtype = pick {"float32", "float64", "bfloat16"} end
      end
      local texts = {}
      if k > 1 and not resized and not form.number then
        texts = {"x = x", "x = x.data:clone()"}
        if not form.classes then
          table.insert(texts, "x.data = x.data * 0.5")
          table.insert(texts, "if lm.is_tensor(r[K][2]) then r[K][2].data:add_(0.5) end")
          if form.layout == "plain" then table.insert(texts, "x:detach():mul_(0.5)") end
          if name == "x2" then table.insert(texts, "x2 = x1") end
          for _, p in ipairs(d.params) do
            if same_list(d:of(p).shape, d.shapes[name]) then table.insert(texts, ("x = %s.data"):format(p)) end
          end
          if d.returns[1] and same_list(d.shapes[d.returns[1]] or {}, d.shapes[name]) then
            local result = "if lm.is_tensor(r[K][2]) then x = r[K][2]%s end"
            for _ = 1, 3 do table.insert(texts, result:format(chance(70) and ":detach()" or "")) end
          end
        end
      end
      add(#texts > 0 and chance(30) and fill(pick(texts), {x = name, K = tostring(k - 1)})
        or name .. " = " .. input_text(form, batch))
    end
    local how = "step"
    if chance(d.trained and 6 or 30) then
      how = pick {"lm.no_grad, step", "lm.scope, step", "f",
        'lm.autocast, {device_type = "cpu", dtype = "bfloat16"}, step'}
      if how:find "no_grad" and (d.trained or d.without.gradless) then how = "step" end
    end
    local inputs = table.concat(d.inputs, ", ")
    add(("call(%d, %s, %s)"):format(k, how, d.packed and "{" .. inputs .. "}" or inputs))
    d.calls[#d.calls + 1] = b
  end
end

-- Adds numbers, options and tables that the step reads and writes to the setup.
local function define_state(d, dtype)
  for _, line in ipairs {
    {"scale", "0.5"}, {"flag", "true"}, {"power", "2"}, {"training", "true"}, {"cut", "4"}, {"axis", "1"},
    {"mode", '"mean"'}, {"n", "{calls = 0, last = 0.5, scale = 0.5}"},
    {"kept", ("{a = make(\"plain\", %s, %q), list = {lm.ones {1}}}"):format(listed {pick(d.sizes)}, dtype)},
  } do
    d.setup[#d.setup + 1] = {kind = "setup", text = line[1] .. " = " .. line[2], out = line[1]}
  end
end

-- Chooses what the step returns.
local function draw_returns(d)
  d.shapes = {}
  for i = #d.values, 1, -1 do
    local name = d.values[i]
    local x = d:of(name)
    if x then d.shapes[name] = x.shape else table.remove(d.values, i) end
  end
  for _ = 1, random(0, 3) do d.returns[#d.returns + 1] = pick(d.values) end
  for i = 1, d.is_tidy and #d.returns or 0 do
    local x = d:of(d.returns[i])
    if is_inner(x) and d.trained and chance(60) then d.returns[i] = d.returns[i] .. ":detach()" end
  end
  if chance(15) and #d.returns > 0 then
    d.returns[1] = ("%s and %s or nil"):format(pick {"flag", "n.calls % 2 == 0", "training"}, d.returns[1])
  end
  if chance(40) and #d.returns > 0 then -- the next call's input
    for _, name in ipairs(d.values) do
      if name:find "^v" and same_list(d.shapes[name], d.shapes.x1) then d.returns[1] = name end
    end
  end
  if chance(10) then d.returns[#d.returns + 1] = pick {"n.calls", "'text'", "kept.a", "nil", "{x1, scale}",
    "x1:sum():item()"} end
end

-- Kinds that are rare in tidy programs, whose values are not needed before backward, which uses all of them and frees
-- the history of all: a parameter is an argument only of ops that save tensors.
local untidy = {}
for name in ("read hook second checkpoint scope free inner"):gmatch "%a+" do untidy[name] = true end

--- Draws the program of a seed. o: {without = names of kinds as keys, threads = {least, most}}. Kind "gradless", calls
--- within lm.no_grad, is left out by default: lm.compile records them by lm.prepare's rules, where no Lua runs.
function programs.draw(seed, o)
  math.randomseed(seed)
  local d = setmetatable({
    seed = seed, setup = {}, body = {}, calls = {}, inputs = {}, returns = {}, open = {}, envs = {}, values = {},
    params = {}, buffers = {}, inputs_live = {}, last = 0, count = 0, most = MOST, kinds = {}, weight = 0,
    without = o and o.without or {gradless = true},
  }, Draw)
  d.is_tidy = chance(60)
  for _, k in ipairs(kinds) do
    if not d.without[k.name] then
      local weight = k.weight * (d.is_tidy and untidy[k.name] and 0.05 or 1)
      d.kinds[#d.kinds + 1] = {draw = k.draw, weight = weight}
      d.weight = d.weight + weight
    end
  end
  d.sizes = {pick(sizes), pick(sizes)}
  local batches = {pick(sizes), pick(sizes), pick(sizes)}
  local is_wide = random(12) == 1
  if is_wide then d.most, batches[1], d.sizes[1] = MOST_WIDE, 128, pick {129, 513} end
  local dtype = pick {"float32", "float32", "float32", "float64", "bfloat16", "bfloat16"}
  define_state(d, dtype)

  local forms = {}
  local function input(name, form)
    forms[name] = form
    d.inputs[#d.inputs + 1] = name
    if form.shape and not form.classes then d.values[#d.values + 1] = name end
    d.inputs_live[name] = function(i) return input_text(form, batches[i]) end
  end
  for i = 1, random(2) do
    input("x" .. i, {
      shape = pick {{"batch", d.sizes[1]}, {"batch", d.sizes[1]}, {"batch", d.sizes[1], pick {1, 2, 3}}, {d.sizes[1]},
        {"batch"}},
      dtype = chance(85) and dtype or "float32", layout = pick(half.layouts)[1], grad = chance(10),
      is_sliced = chance(25),
    })
  end
  d.has_labels, d.has_number, d.packed = chance(40), chance(20), chance(10)
  if d.has_labels then input("t1", {shape = {"batch"}, classes = 2, is_sliced = chance(25)}) end
  if d.has_number then input("a1", {number = true}) end
  d:restart()
  for _ = 1, random(3) do d:leaf("p", pick {{d.sizes[1]}, {d.sizes[2], d.sizes[1]}, {1}, {d.sizes[1]}}, dtype) end
  if chance(8) and d:define("leaf", "p0 = p1.data:t():requires_grad_()", "p0") then -- over the same memory
    d.params[#d.params + 1], d.values[#d.values + 1] = "p0", "p0"
  end

  local count, tries = chance(20) and random(25, 60) or random(5, 24), 0
  if is_wide then count = random(5, 16) end
  while d.count < count and tries < 4 * count do
    draw_node(d)
    tries = tries + 1
  end
  if chance(85) and not d.without.train then train(d) end
  for _ = 1, chance(40) and random(3) or 0 do draw_node(d) end
  draw_returns(d)
  draw_calls(d, forms, batches)
  d:close()
  local least, most = unpack(o and o.threads or {1, 4})
  return {
    seed = seed, setup = d.setup, body = d.body, calls = d.calls, inputs = d.inputs, packed = d.packed,
    returns = d.returns, threads = {random(least, most), random(least, most)}, count = d.count, trained = d.trained,
    raises = d.raises, is_tidy = d.is_tidy,
  }
end

return programs
