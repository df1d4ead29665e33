--- Ops of ai.onnx.ml: models of scikit-learn and the like.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"
local lists = require "luminary.base.lists"
local ops, is_tensor, to = core.ops, core.is_tensor, core.methods.to
local op = {}

-- ---- scores of classes

-- Returns scores [n, classes] after a transform.
local function transformed(scores, name)
  if name == "SOFTMAX" then return ops.softmax(scores, 2) end
  if name == "LOGISTIC" then return ops.sigmoid(scores) end
  if name == "PROBIT" then return ops.erfinv(scores * 2 - 1) * math.sqrt(2) end
  if name ~= "SOFTMAX_ZERO" then return scores end
  local zero = ops.eq(scores, 0)
  return ops.masked_fill(ops.softmax(ops.masked_fill(scores, zero, -math.huge), 2), zero, 0)
end

-- Returns a node's labels, a tensor or a list of texts, at indices [n] from 1.
local function labels_at(n, index)
  local texts = n.classlabels_strings
  if not texts or #texts == 0 then
    return ops.index_select(core.tensor(n.classlabels_int64s or n.classlabels_ints, {dtype = "int64"}), 1, index)
  end
  local out = lists.pick(texts, index:totable())
  out.shape = {index:numel()}
  return out
end

local function count_of(n)
  return math.max(#(n.classlabels_strings or {}), #(n.classlabels_int64s or n.classlabels_ints or {}))
end

-- Returns labels and scores. Of two classes scores may be [n, 1], of the second; positive: they are probabilities.
local function classified(n, scores, positive)
  if scores.shape[2] > 1 or count_of(n) ~= 2 then
    return labels_at(n, ops.argmax(scores, 2)), transformed(scores, n.post_transform)
  end
  local plain = positive and n.post_transform ~= "LOGISTIC"
  local labels = labels_at(n, to(ops.gt(ops.select(scores, 2, 1), positive and 0.5 or 0), "int64") + 1)
  local both = ops.cat({plain and 1 - scores or -scores, scores}, 2)
  return labels, plain and both or transformed(both, n.post_transform)
end

local function rows_of(x) return x.ndim == 1 and x:reshape(1, -1) or x end
local function float(x) return to(rows_of(x), "float32") end
local function float_tensor(list) return core.tensor(list, {dtype = "float32"}) end

-- ---- linear models
local function linear(n, x, rows, bias)
  local y = ops.matmul(float(x), ops.t(float_tensor(n.coefficients):reshape(rows, -1)))
  return bias and #bias > 0 and y + float_tensor(bias) or y
end
op.LinearRegressor = {targets = 1, function(n, x)
  return transformed(linear(n, x, n.targets, n.intercepts), n.post_transform)
end}
op.LinearClassifier = {function(n, x)
  return classified(n, linear(n, x, n.intercepts and #n.intercepts or count_of(n), n.intercepts), false)
end}

-- ---- trees: nodes are {feature, value, test, yes, no, missing}, and leaves lists of {target from 0, weight}
local tests = {
  BRANCH_LEQ = function(x, v) return x <= v end, BRANCH_LT = function(x, v) return x < v end,
  BRANCH_GTE = function(x, v) return x >= v end, BRANCH_GT = function(x, v) return x > v end,
  BRANCH_EQ = function(x, v) return x == v end, BRANCH_NEQ = function(x, v) return x ~= v end,
  BRANCH_MEMBER = function(x, set) return set[x] == true end,
}
local modes = {[0] = "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"}
local folds = {MIN = math.min, MAX = math.max}

local function leaf_of(node, row)
  local steps = 0
  while node.test do
    local v = row[node.feature + 1] or error(("a tree reads feature %d of %d"):format(node.feature, #row), 0)
    node, steps = (node.test(v, node.value) or node.missing and v ~= v) and node.yes or node.no, steps + 1
    if steps > 1e5 then error("the nodes of a tree form a circle", 0) end
  end
  return node
end

-- Returns the scores [n, targets] of the trees n.roots.
local function evaluate(n, x, targets, how, base)
  local scores, fold = {}, folds[how] or function(a, b) return a + b end
  x = rows_of(x)
  for i, row in ipairs(x:totable()) do
    local out = {}
    for _, root in ipairs(n.roots) do
      for _, leaf in ipairs(leaf_of(root, row)) do
        local k = leaf[1] + 1
        out[k] = out[k] and fold(out[k], leaf[2]) or leaf[2]
      end
    end
    for k = 1, helpers.bounded(targets, "the number of targets") do
      out[k] = (out[k] or 0) / (how == "AVERAGE" and #n.roots or 1) + (base and base[k] or 0)
    end
    scores[i] = {unpack(out, 1, targets)}
  end
  return #scores > 0 and float_tensor(scores) or ops.zeros({0, targets})
end

-- Returns the list of an attribute, or of the tensor that may replace it.
local function list_of(n, name)
  return n[name .. "_as_tensor"] and n:tensor(name .. "_as_tensor"):totable() or n[name] or {}
end

-- Sets n.roots by the attributes of a classifier or regressor; kind: "class" or "target". n.one is the only id of all
-- leaves or false; n.positive: no weight is negative.
local function prepare_trees(n, kind)
  local nodes, values, missing, seen = {}, list_of(n, "nodes_values"), n.nodes_missing_value_tracks_true or {}, {}
  local function key(tree, node) return tree .. " " .. node end
  n.roots, n.positive, n.base = {}, true, list_of(n, "base_values")
  for i, tree in ipairs(n.nodes_treeids or {}) do
    local node, mode = {}, n.nodes_modes[i]
    if mode ~= "LEAF" then
      node = {feature = n.nodes_featureids[i], value = values[i], missing = missing[i] == 1,
        test = tests[mode] or n:unsupported("with nodes of the mode " .. tostring(mode))}
    end
    nodes[key(tree, n.nodes_nodeids[i])] = node
    if not seen[tree] then seen[tree], n.roots[#n.roots + 1] = true, node end
  end
  for i, tree in ipairs(n.nodes_treeids or {}) do
    local node = nodes[key(tree, n.nodes_nodeids[i])]
    if node.test then
      node.yes = nodes[key(tree, n.nodes_truenodeids[i])] or n:fail "a node of a tree lacks a child"
      node.no = nodes[key(tree, n.nodes_falsenodeids[i])] or n:fail "a node of a tree lacks a child"
    end
  end
  local ids, weights = n[kind .. "_ids"] or {}, list_of(n, kind .. "_weights")
  n.one = ids[1]
  for i, tree in ipairs(n[kind .. "_treeids"] or {}) do
    local node = nodes[key(tree, n[kind .. "_nodeids"][i])] or n:fail "a leaf is of no tree"
    node[#node + 1], n.one, n.positive = {ids[i], weights[i]}, n.one == ids[i] and n.one, n.positive and weights[i] >= 0
  end
end
op.TreeEnsembleRegressor = {n_targets = 1, prepare = function(n) prepare_trees(n, "target") end, function(n, x)
  return transformed(evaluate(n, x, n.n_targets, n.aggregate_function, n.base), n.post_transform)
end}
op.TreeEnsembleClassifier = {prepare = function(n) prepare_trees(n, "class") end, function(n, x)
  local scores = evaluate(n, x, count_of(n), "SUM", n.base)
  if count_of(n) == 2 and n.one then scores = ops.narrow(scores, 2, n.one + 1, 1) end
  return classified(n, scores, n.positive)
end}
op.TreeEnsemble = {aggregate_function = 1, post_transform = 0, n_targets = 1, prepare = function(n)
  local splits, weights = n:tensor("nodes_splits"):totable(), n:tensor("leaf_weights"):totable()
  local members, at = n.membership_values and n:tensor("membership_values"):totable() or {}, 1
  local missing, nodes, leaves = n.nodes_missing_value_tracks_true or {}, {}, {}
  for i, kind in ipairs(n:tensor("nodes_modes"):totable()) do
    nodes[i] = {feature = n.nodes_featureids[i], value = splits[i], missing = missing[i] == 1,
      test = tests[modes[kind]] or n:unsupported("with nodes of the mode " .. tostring(kind))}
    if modes[kind] == "BRANCH_MEMBER" then
      nodes[i].value = {}
      while members[at] and members[at] == members[at] do nodes[i].value[members[at]], at = true, at + 1 end
      at = at + 1
    end
  end
  for i, weight in ipairs(weights) do leaves[i] = {{n.leaf_targetids[i], weight}} end
  local function child(is_leaf, id)
    return (is_leaf == 1 and leaves or nodes)[id + 1] or n:fail "a node of a tree lacks a child"
  end
  for i, node in ipairs(nodes) do
    node.yes = child(n.nodes_trueleafs[i], n.nodes_truenodeids[i])
    node.no = child(n.nodes_falseleafs[i], n.nodes_falsenodeids[i])
  end
  n.roots = lists.map(n.tree_roots, function(root) return child(0, root) end)
end, function(n, x)
  local how = ({[0] = "AVERAGE", "SUM", "MIN", "MAX"})[n.aggregate_function]
  local post = ({"SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"})[n.post_transform]
  return to(transformed(evaluate(n, x, n.n_targets, how), post), x.dtype)
end}

-- ---- support vectors

-- Returns the kernel's values [n, vectors] of x and `count` vectors.
local function kernel(n, x, count)
  local vectors, gamma, coef, degree = float_tensor(n.support_vectors):reshape(count, -1), unpack(n.kernel_params or {})
  if n.kernel_type == "RBF" then
    return ops.exp(ops.sum(ops.square(ops.unsqueeze(x, 2) - ops.unsqueeze(vectors, 1)), {3}) * -gamma)
  end
  local y = ops.matmul(x, ops.t(vectors))
  if n.kernel_type == "POLY" then return ops.pow(y * gamma + coef, degree) end
  return n.kernel_type == "SIGMOID" and ops.tanh(y * gamma + coef) or y
end
op.SVMRegressor = {n_supports = 0, rho = {0}, function(n, x)
  local w = float_tensor(n.coefficients)
  local y = ops.matmul(n.n_supports > 0 and kernel(n, float(x), n.n_supports) or float(x), w) + n.rho[1]
  if n.one_class == 1 then y = to(ops.gt(y, 0), "float32") * 2 - 1 end
  return transformed(ops.unsqueeze(y, 2), n.post_transform)
end}

-- Returns the probabilities of classes by those of pairs, r[i][j] of i rather than j: Wu, Lin and Weng, "Probability
-- Estimates for Multi-class Classification by Pairwise Coupling", 2004, algorithm 2.
local function coupled(r, classes)
  local q, p = {}, helpers.filled(classes, 1 / classes)
  for i = 1, classes do
    q[i] = helpers.filled(classes, 0)
    for j = 1, classes do
      if i ~= j then q[i][i], q[i][j] = q[i][i] + r[j][i] ^ 2, -r[j][i] * r[i][j] end
    end
  end
  for _ = 1, math.max(100, classes) do
    local qp, pqp, worst = {}, 0, 0
    for i = 1, classes do
      qp[i] = 0
      for j = 1, classes do qp[i] = qp[i] + q[i][j] * p[j] end
      pqp = pqp + p[i] * qp[i]
    end
    for i = 1, classes do worst = math.max(worst, math.abs(qp[i] - pqp)) end
    if worst < 0.005 / classes then break end
    for i = 1, classes do
      local d = (pqp - qp[i]) / q[i][i]
      p[i] = p[i] + d
      pqp = (pqp + d * (d * q[i][i] + 2 * qp[i])) / (1 + d) ^ 2
      for j = 1, classes do qp[j], p[j] = (qp[j] + d * q[i][j]) / (1 + d), p[j] / (1 + d) end
    end
  end
  return p
end

op.SVMClassifier = {vectors_per_class = {}, rho = {0}, prob_a = {}, function(n, x)
  local per_class, total = n.vectors_per_class, 0
  local classes, first, votes, decisions = #per_class, {}, {}, {}
  for i, count in ipairs(per_class) do first[i], total, votes[i] = total + 1, total + count, 0 end
  if total == 0 then return classified(n, linear(n, x, count_of(n), n.rho), false) end
  local values, weights = kernel(n, float(x), total), float_tensor(n.coefficients):reshape(classes - 1, total)
  for i = 1, classes do
    for j = i + 1, classes do
      local function part(of, row)
        local from, count = first[of], per_class[of]
        return ops.matmul(ops.narrow(values, 2, from, count), ops.narrow(ops.select(weights, 1, row), 1, from, count))
      end
      local d = part(i, j - 1) + part(j, i) + n.rho[#decisions + 1]
      local wins = to(ops.gt(d, 0), "float32")
      decisions[#decisions + 1], votes[i], votes[j] = d, wins + votes[i], 1 - wins + votes[j]
    end
  end
  local index = ops.argmax(ops.stack(votes, 2), 2)
  if #n.prob_a == 0 then
    if classes == 2 then decisions = {-decisions[1], decisions[1]} end
    return labels_at(n, index), transformed(ops.stack(decisions, 2), n.post_transform)
  end
  local pairs_of, rows = {}, {}
  for k, d in ipairs(decisions) do
    pairs_of[k] = ops.clamp(ops.sigmoid(-(d * n.prob_a[k] + n.prob_b[k])), 1e-7, 1 - 1e-7):totable()
  end
  for row = 1, #pairs_of[1] do
    local r, k = {}, 0
    for i = 1, classes do r[i] = {} end
    for i = 1, classes do
      for j = i + 1, classes do
        k = k + 1
        r[i][j], r[j][i] = pairs_of[k][row], 1 - pairs_of[k][row]
      end
    end
    rows[row] = coupled(r, classes)
  end
  return labels_at(n, index), float_tensor(rows)
end}

-- ---- features
op.Scaler = {offset = {0}, scale = {1}, function(n, x)
  return (to(x, "float32") - float_tensor(n.offset)) * float_tensor(n.scale)
end}
op.Normalizer = {norm = "MAX", function(n, x)
  x = to(x, "float32")
  local p = n.norm == "MAX" and math.huge or n.norm == "L1" and 1 or 2
  local size = ops.norm(x, p, {-1}, true)
  return x / ops.masked_fill(size, ops.eq(size, 0), 1)
end}
op.Binarizer = {threshold = 0, function(n, x) return to(ops.gt(x, n.threshold), x.dtype) end}
op.Imputer = {function(n, x)
  local floats = n.imputed_value_floats and #n.imputed_value_floats > 0
  local gone = floats and n.replaced_value_float or not floats and n.replaced_value_int64 or 0 / 0
  local values = core.tensor(floats and n.imputed_value_floats or n.imputed_value_int64s, {dtype = x.dtype})
  return ops.where(gone ~= gone and ops.isnan(x) or ops.eq(x, gone), values, x)
end}
op.FeatureVectorizer = {how = "list", inputdimensions = {}, function(n, list, count)
  local parts = {}
  for i = 1, count do
    local x = float(list[i])
    parts[i] = ops.narrow(x, 2, 1, math.min(n.inputdimensions[i] or x.shape[2], x.shape[2]))
  end
  return ops.cat(parts, 2)
end}
op.ArrayFeatureExtractor = function(x, index) return ops.index_select(x, -1, index:reshape(-1) + 1) end

local function values_of(x) return is_tensor(x) and x:reshape(-1):totable() or x end
op.OneHotEncoder = {how = "holds", zeros = 1, function(n, x)
  local list, position, rows = n.cats_strings and #n.cats_strings > 0 and n.cats_strings or n.cats_int64s, {}, {}
  for i, value in ipairs(list) do position[value] = i end
  for i, value in ipairs(values_of(x)) do
    if not position[value] and n.zeros == 0 then error("a category is unknown", 0) end
    rows[i] = helpers.filled(#list, 0, position[value], 1)
  end
  return float_tensor(rows):reshape(helpers.joined(x.shape, {#list}))
end}

-- Returns the values of an attribute that has several possible names, and their dtype.
local function typed(n, name)
  for suffix, dtype in pairs {int64s = "int64", floats = "float32", strings = "string"} do
    local list = n[name .. "_" .. suffix]
    if list and #list > 0 then return list, dtype end
  end
  local t = n:tensor(name .. "_tensor") or n:fail("it has no %s", name)
  return values_of(t), is_tensor(t) and t.dtype or "string"
end
op.LabelEncoder = {
  how = "holds", default_string = "_Unused", default_int64 = -1, default_float = -0,
  prepare = function(n)
    local keys, values
    if n.version < 2 then
      keys, values, n.dtype = n.classes_strings, {}, "int64"
      for i = 1, #keys do values[i] = i - 1 end
    else
      keys = typed(n, "keys")
      values, n.dtype = typed(n, "values")
    end
    n.map, n.default = {}, n[n.dtype == "string" and "default_string" or n.dtype:find "int" and "default_int64"
      or "default_float"]
    if n.default_tensor then n.default = values_of(n:tensor "default_tensor")[1] end
    for i, key in ipairs(keys) do
      if key ~= key then n.of_nan = values[i] else n.map[key] = values[i] end
    end
  end,
  function(n, x)
    local out = {}
    for i, key in ipairs(values_of(x)) do
      out[i] = key == key and n.map[key] or key ~= key and n.of_nan or nil
      if out[i] == nil then out[i] = n.default end
    end
    if n.dtype ~= "string" then return core.tensor(out, {dtype = n.dtype}):reshape(x.shape) end
    out.shape = {unpack(x.shape)}
    return out
  end,
}
op.ZipMap = {how = "holds", function(n, x)
  return lists.map(rows_of(x):totable(), function(row)
    local map = {}
    for k, label in ipairs(n.classlabels_strings or n.classlabels_int64s) do map[label] = row[k] end
    return map
  end)
end}

return op
