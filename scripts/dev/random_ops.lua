-- Ops that random programs draw, as Lua text: x is a value of at least one dim, dim one of its dims; y and z are values
-- that broadcast to x. Results stay around 1 if x does.
local ops = {unary = {}, several = {}}

for _, name in ipairs {"neg", "abs", "tanh", "sigmoid", "relu", "square", "sin", "cos", "erf", "sign", "floor"} do
  table.insert(ops.unary, ("x:%s()"):format(name))
end
for _, name in ipairs {"gelu", "silu", "softplus", "elu", "leaky_relu", "logsigmoid", "hardswish", "mish", "relu6"} do
  table.insert(ops.unary, ("F.%s(x)"):format(name))
end
for _, text in ipairs {
  "1 - x", "x * 0.5 + 0.25", "x:clamp(-1, 1.5)", "(-x:abs()):exp()", "(x:abs() + 0.25):sqrt()",
  "(x:abs() + 0.5):reciprocal()", "(x:abs() + 0.5):log()", "x:masked_fill(x:gt(0.5), 0.125)",
  "x:float():tanh():to(x.dtype)", "x:clone():mul_(0.75):sub_(0.5)",
  "F.layer_norm(x, {x.shape[#x.shape]}, {eps = 0.25})", "x:contiguous()",
  "x:softmax(dim)", "x:log_softmax(dim) * 0.25", "x:mean(dim, true)", "x:sum(dim, true) / x.shape[dim]",
  "x:amax(dim, true)", "x:cumsum(dim) * 0.01", "x:flip {dim}", "x:transpose(dim, 1)",
  "x:narrow(dim, 1, math.ceil(x.shape[dim] * 0.7))", "x:slice(dim, 1, -1, 2)",
  "x:select(dim, x.shape[dim]):unsqueeze(dim):expand(x.shape)",
  "x:index_select(dim, lm.arange(1, x.shape[dim] + 1):mul(7):remainder(x.shape[dim]):add(1))", "x:flatten()",
} do
  table.insert(ops.unary, text)
end

ops.several = {
  "x + y", "x - y", "y - x", "x * y", "x / (y:abs() + 0.5)", "x:maximum(y)", "x:minimum(y)",
  "lm.where(x:gt(y), x, y * 0.5)", "lm.atan2(x, y:abs() + 0.1)", "x:clone():add_(y)", "lm.hypot(x, y)",
  "lm.cat({x, y:expand(x.shape)}, 1)", "lm.addcmul(x, y, z, {value = 0.5})", "lm.lerp(x, y, z)",
  "lm.where(y:gt(0), x, z)", "x * y + z",
}

--- Returns text with the words that are keys of `words` replaced.
function ops.fill(text, words) return (text:gsub("[%a_][%w_]*", words)) end

return ops
