--- Functions whose steps lm.compile makes groups of: {name, make = makes its arguments, f = it}, by dtype.
local lm = require "luminary"
local F = lm.nn.functional

local function rand(sizes, dtype) return lm.randn(sizes, {device = "cuda"}):to(dtype) end
local function leaf(sizes, dtype) return rand(sizes, dtype):requires_grad_() end

-- A random function of x, y (of x's shape) and z (broadcast to it), of `n` ops.
local function random_function(seed, n)
  local function below(k)
    seed = (seed * 1103515245 + 12345) % 2147483648
    return math.floor(seed / 65536) % k
  end
  local unary = {"tanh", "sigmoid", "abs", "relu", "neg", "square"}
  local binary = {"add", "sub", "mul", "maximum"}
  local plan = {}
  for i = 1, n do plan[i] = {below(5), below(#unary) + 1, below(#binary) + 1, below(i + 2) + 1, below(i + 2) + 1} end
  return function(x, y, z)
    local values = {x, y, z}
    for i, p in ipairs(plan) do
      local a, b = values[p[4]], values[p[5]]
      if p[1] <= 1 then
        values[i + 3] = a[unary[p[2]]](a)
      elseif p[1] == 2 and a:dim() == x:dim() and a:size(1) == x:size(1) then
        values[i + 3] = b - a:mean(-1, true)
      elseif p[1] == 3 then
        values[i + 3] = lm.where(a:gt(b), a, b * 0.5)
      else
        values[i + 3] = a[binary[p[3]]](a, b)
      end
    end
    return values[n + 1], values[n + 2], values[n + 3]
  end
end

return function(t)
  local cases = {}
  local function case(name, make, f) cases[#cases + 1] = {name = name .. " of " .. t, make = make, f = f} end

  case("a row of elementwise ops", function() return {rand({6, 33}, t), rand({6, 33}, t)} end,
    function(x, y) return ((x + y):tanh() * 3):exp() end)
  case("broadcasting", function() return {rand({6, 32}, t), rand({32}, t), rand({6, 1}, t)} end,
    function(x, y, z) return ((x + y) * z):sigmoid() - x end)
  case("transposed operands and sums of rows", function() return {rand({12, 20}, t), rand({20, 12}, t)} end,
    function(x, y)
      local other = y:t()
      return (x + other) * other:abs(), (x * other):sum(1), (x * other):sum(2)
    end)
  case("in place", function() return {rand({5, 24}, t), rand({24}, t)} end, function(x, y)
    local h = x * 2
    local g = h + y
    h:add_(g):mul_(y)
    return h:tanh(), g
  end)
  case("views of another shape", function() return {rand({2, 5, 24}, t), rand({10, 24}, t)} end, function(x, y)
    local h = (x * 2):reshape {10, 24} + y
    return F.softmax(h:reshape {2, 5, 24}, -1) + x
  end)
  case("softmax", function() return {rand({6, 40}, t), rand({40}, t)} end,
    function(x, b) return F.softmax((x + b) * 2, -1) * 3 end)
  case("the gradient of softmax", function() return {leaf({6, 40}, t), rand({6, 40}, t)} end, function(x, r)
    local y = F.softmax(x * 2, -1)
    y:backward(r)
    return y
  end)
  case("log_softmax of an odd length", function() return {leaf({6, 41}, t), rand({6, 41}, t)} end, function(x, r)
    local y = F.log_softmax(x * 2, -1)
    y:backward(r)
    return y
  end)
  case("a root mean square", function() return {rand({4, 6, 40}, t), rand({40}, t)} end,
    function(x, w) return x * (x * x):mean(-1, true):add(1e-5):rsqrt() * w end)
  case("layer_norm and what stands around it", function()
    return {leaf({4, 6, 64}, t), rand({4, 6, 64}, t), leaf({64}, t), leaf({64}, t)}
  end, function(x, r, w, b)
    local h = x * 2
    local y = F.layer_norm(h, {64}, w, b) * r
    y:backward(r)
    return y
  end)
  case("the gradient of a bias", function() return {leaf({5, 7, 24}, t), leaf({24}, t), rand({5, 7, 24}, t)} end,
    function(x, b, r)
      local y = F.gelu((x + b):tanh())
      y:backward(r)
      return y
    end)
  case("dropout of rows' means", function() return {leaf({4, 3, 40}, t), rand({4, 3}, t)} end, function(x, r)
    local y = F.dropout(x:mean(3) * 2, 0.3) + r
    y:backward(r)
    return y
  end)
  for _, columns in ipairs {32, 41} do
    case("dropout of " .. columns, function()
      return {leaf({6, columns}, t), rand({6, columns}, t), leaf({columns}, t), leaf({columns}, t)}
    end, function(x, r, w, b)
      local h = F.dropout(x * 2, 0.3) + r
      local y = F.layer_norm(h, {columns}, w, b)
      F.dropout(y, 0.5):backward(r)
      return y
    end)
  end
  case("rows of a block", function() return {rand({3, 5000}, t), rand({5000}, t)} end,
    function(x, b) return F.softmax(x * 2 + b, -1) + 1 end)
  case("rows that are read again", function() return {rand({2, 50001}, t), rand({50001}, t)} end,
    function(x, b) return F.log_softmax(x * 2 + b, -1) * 2 end)
  for seed = 1, 4 do
    local shapes = {{7, 40}, {3, 4, 32}, {64, 9}, {5, 264}}
    local shape = shapes[seed]
    case("random ops " .. seed, function()
      return {rand(shape, t), rand(shape, "float32"), rand({shape[#shape]}, t)}
    end, random_function(seed, 9))
  end
  return cases
end
