--- Ops of ai.onnx.ml: models of scikit-learn and the like.
local core = require "luminary.core"
local helpers = require "luminary.onnx.ops.sizes"

local ops, is_tensor, to = core.ops, core.is_tensor, core.methods.to
local ml = {}

-- ---- scores of classes

-- Returns scores [n, classes] after the transform that an attribute names.
local function transformed(scores, name)
  if name == "SOFTMAX" then return ops.softmax(scores, 2) end
  if name == "LOGISTIC" then return ops.sigmoid(scores) end
  if name == "SOFTMAX_ZERO" then
    local zero = ops.eq(scores, 0)
    local y = ops.softmax(ops.masked_fill(scores, zero, -math.huge), 2)
    return ops.masked_fill(y, zero, 0)
  end
  if name == "PROBIT" then return ops.erfinv(scores * 2 - 1) * math.sqrt(2) end
  return scores
end
local transforms = {[0] = "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"}

-- Returns scores [n, 1] of the second of two classes as scores of both, and whether it is chosen, [n]. positive: they
-- are probabilities.
local function of_both(scores, name, positive)
  local chosen = ops.gt(ops.select(scores, 2, 1), positive and 0.5 or 0)
  if positive and name ~= "LOGISTIC" then return ops.cat({1 - scores, scores}, 2), chosen end
  return transformed(ops.cat({-scores, scores}, 2), name), chosen
end

-- Returns labels, a tensor or a list of texts, at indices [n] from 1.
local function labels_at(a, index)
  local texts = a.classlabels_strings
  if not texts or #texts == 0 then
    local numbers = a.classlabels_int64s or a.classlabels_ints
    return ops.index_select(core.tensor(numbers, {dtype = "int64"}), 1, index)
  end
  local out = {shape = {index:numel()}}
  for i, k in ipairs(index:totable()) do out[i] = texts[k] end
  return out
end

-- Returns labels and scores of a classifier.
local function classified(scores, a, positive)
  local labels = math.max(#(a.classlabels_strings or {}), #(a.classlabels_int64s or a.classlabels_ints or {}))
  if scores.shape[2] == 1 and labels == 2 then
    local both, chosen = of_both(scores, a.post_transform, positive)
    return labels_at(a, to(chosen, "int64") + 1), both
  end
  return labels_at(a, ops.argmax(scores, 2)), transformed(scores, a.post_transform)
end

local function rows_of(x)
  x = x.ndim == 1 and x:reshape(1, -1) or x
  return x.dtype == "float64" and x or to(x, "float32")
end

-- ---- linear models

local function matrix(list, rows) return core.tensor(list, {dtype = "float32"}):reshape(rows, -1) end

function ml.LinearRegressor(n)
  local a = n.a
  local w = matrix(a.coefficients, a.targets or 1)
  local bias = a.intercepts and #a.intercepts > 0 and core.tensor(a.intercepts, {dtype = "float32"})
  return function(x)
    local y = ops.matmul(to(rows_of(x), "float32"), ops.t(w))
    return transformed(bias and y + bias or y, a.post_transform)
  end
end

function ml.LinearClassifier(n)
  local a = n.a
  local bias = core.tensor(a.intercepts and #a.intercepts > 0 and a.intercepts or {0}, {dtype = "float32"})
  local classes = math.max(#(a.intercepts or {}), 1)
  if not a.intercepts then classes = #(a.classlabels_strings or a.classlabels_ints or {0}) end
  local w = matrix(a.coefficients, classes)
  return function(x) return classified(ops.matmul(to(rows_of(x), "float32"), ops.t(w)) + bias, a, false) end
end

-- ---- trees

local compares = {
  BRANCH_LEQ = function(x, v) return x <= v end, BRANCH_LT = function(x, v) return x < v end,
  BRANCH_GTE = function(x, v) return x >= v end, BRANCH_GT = function(x, v) return x > v end,
  BRANCH_EQ = function(x, v) return x == v end, BRANCH_NEQ = function(x, v) return x ~= v end,
  BRANCH_MEMBER = function(x, set) return set[x] == true end,
}
local modes = {[0] = "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"}

-- Returns scores [n, targets] of trees: lists of nodes {feature, value, test, yes, no, missing}, or leaves, lists of
-- {target, weight}.
local function evaluate(x, roots, targets, how, base)
  local scores, counts, rows = {}, #roots, rows_of(x):totable()
  for i, row in ipairs(rows) do
    local out, seen = {}, {}
    for _, root in ipairs(roots) do
      local node, steps = root, 0
      while node.test do
        local v = row[node.feature + 1]
        if v == nil then error(("a tree reads feature %d of %d"):format(node.feature, #row), 0) end
        node, steps = (node.test(v, node.value) or node.missing and v ~= v) and node.yes or node.no, steps + 1
        if steps > 1e6 then error("the nodes of a tree form a circle", 0) end
      end
      for _, leaf in ipairs(node) do
        local target, weight = leaf[1] + 1, leaf[2]
        local before = out[target]
        if how == "MIN" and seen[target] then
          weight = math.min(before, weight)
        elseif how == "MAX" and seen[target] then
          weight = math.max(before, weight)
        elseif how ~= "MIN" and how ~= "MAX" then
          weight = weight + (before or 0)
        end
        out[target], seen[target] = weight, true
      end
    end
    for k = 1, targets do
      local v = (out[k] or 0)
      if how == "AVERAGE" then v = v / counts end
      out[k] = v + (base and (base[k] or 0) or 0)
    end
    scores[i] = {unpack(out, 1, targets)}
  end
  if #rows == 0 then return ops.zeros({0, targets}, {dtype = rows_of(x).dtype}) end
  return core.tensor(scores, {dtype = rows_of(x).dtype})
end

local function list_of(n, name)
  local a = n.a
  if a[name .. "_as_tensor"] then return n:tensor(name .. "_as_tensor"):totable() end
  return a[name] or {}
end

-- Returns the roots of the trees in the attributes of a classifier or regressor. kind: "class" or "target".
local function trees_of(n, kind)
  local a, nodes, roots, values = n.a, {}, {}, list_of(n, "nodes_values")
  local missing = a.nodes_missing_value_tracks_true or {}
  local function key(tree, node) return tree .. " " .. node end
  for i, tree in ipairs(a.nodes_treeids or {}) do
    local node = {}
    if a.nodes_modes[i] ~= "LEAF" then
      node.feature, node.value, node.test = a.nodes_featureids[i], values[i], compares[a.nodes_modes[i]]
      node.missing = missing[i] == 1
      if not node.test then n:unsupported("with nodes of the mode " .. tostring(a.nodes_modes[i])) end
    end
    local name = key(tree, a.nodes_nodeids[i])
    if not nodes["first " .. tree] then nodes["first " .. tree], roots[#roots + 1] = true, node end
    nodes[name] = node
  end
  for i, tree in ipairs(a.nodes_treeids or {}) do
    local node = nodes[key(tree, a.nodes_nodeids[i])]
    if node.test then
      node.yes, node.no = nodes[key(tree, a.nodes_truenodeids[i])], nodes[key(tree, a.nodes_falsenodeids[i])]
      if not (node.yes and node.no) then n:fail "a node of a tree lacks a child" end
    end
  end
  local ids, weights, one, positive = a[kind .. "_ids"], list_of(n, kind .. "_weights"), nil, true
  for i, tree in ipairs(a[kind .. "_treeids"] or {}) do
    local node = nodes[key(tree, a[kind .. "_nodeids"][i])] or n:fail "a leaf is of no tree"
    node[#node + 1] = {ids[i], weights[i]}
    if one == nil then one = ids[i] elseif one ~= ids[i] then one = false end
    positive = positive and weights[i] >= 0
  end
  return roots, one, positive
end

function ml.TreeEnsembleRegressor(n)
  local roots, a = trees_of(n, "target"), n.a
  local base = list_of(n, "base_values")
  return function(x)
    return transformed(to(evaluate(x, roots, a.n_targets or 1, a.aggregate_function, base), "float32"), a.post_transform)
  end
end

function ml.TreeEnsembleClassifier(n)
  local roots, one, positive = trees_of(n, "class")
  local a, base = n.a, list_of(n, "base_values")
  local classes = #(a.classlabels_strings or a.classlabels_int64s or {})
  local single = classes == 2 and one
  return function(x)
    local scores = evaluate(x, roots, classes, "SUM", base)
    if single then scores = ops.narrow(scores, 2, one + 1, 1) end
    return classified(to(scores, "float32"), a, positive)
  end
end

function ml.TreeEnsemble(n)
  local a = n.a
  local splits, kinds, weights = n:tensor("nodes_splits"):totable(), n:tensor("nodes_modes"):totable(),
    n:tensor("leaf_weights"):totable()
  local members = a.membership_values and n:tensor("membership_values"):totable() or {}
  local nodes, leaves, missing, at = {}, {}, a.nodes_missing_value_tracks_true or {}, 1
  for i, kind in ipairs(kinds) do
    nodes[i] = {feature = a.nodes_featureids[i], value = splits[i], missing = missing[i] == 1,
      test = compares[modes[kind] or ""] or n:unsupported("with nodes of the mode " .. tostring(kind))}
    if modes[kind] == "BRANCH_MEMBER" then
      nodes[i].value = {}
      while members[at] and members[at] == members[at] do nodes[i].value[members[at]], at = true, at + 1 end
      at = at + 1
    end
  end
  for i, weight in ipairs(weights) do leaves[i] = {{a.leaf_targetids[i], weight}} end
  local function child(is_leaf, id) return (is_leaf == 1 and leaves or nodes)[id + 1] or n:fail "a node lacks a child" end
  for i, node in ipairs(nodes) do
    node.yes = child(a.nodes_trueleafs[i], a.nodes_truenodeids[i])
    node.no = child(a.nodes_falseleafs[i], a.nodes_falsenodeids[i])
  end
  local roots = {}
  for i, root in ipairs(a.tree_roots) do roots[i] = nodes[root + 1] or n:fail "a root is no node" end
  local how = ({[0] = "AVERAGE", "SUM", "MIN", "MAX"})[a.aggregate_function or 1]
  local post = transforms[a.post_transform or 0]
  return function(x)
    return transformed(to(evaluate(x, roots, a.n_targets or 1, how), x.dtype), post)
  end
end

-- ---- support vectors

-- Returns f(x) of the kernel's values [n, vectors].
local function kernel_of(a, vectors)
  local gamma, coef, degree = unpack(a.kernel_params or {})
  local kind = a.kernel_type or "LINEAR"
  return function(x)
    if kind == "RBF" then
      local difference = ops.unsqueeze(x, 2) - ops.unsqueeze(vectors, 1)
      return ops.exp(ops.sum(ops.square(difference), {3}) * -(gamma or 0))
    end
    local y = ops.matmul(x, ops.t(vectors))
    if kind == "POLY" then return ops.pow(y * gamma + coef, degree) end
    return kind == "SIGMOID" and ops.tanh(y * gamma + coef) or y
  end
end

function ml.SVMRegressor(n)
  local a = n.a
  local count = a.n_supports or 0
  local w = core.tensor(a.coefficients, {dtype = "float32"})
  local kernel = count > 0 and kernel_of(a, matrix(a.support_vectors, count))
  return function(x)
    x = to(rows_of(x), "float32")
    local y = (kernel and ops.matmul(kernel(x), w) or ops.matmul(x, w)) + (a.rho or {0})[1]
    if a.one_class == 1 then y = ops.where(ops.gt(y, 0), ops.ones_like(y), -ops.ones_like(y)) end
    return transformed(ops.unsqueeze(y, 2), a.post_transform)
  end
end

function ml.SVMClassifier(n)
  local a = n.a
  local per_class = a.vectors_per_class or {}
  local classes, total = #per_class, 0
  for _, count in ipairs(per_class) do total = total + count end
  if total == 0 then -- linear
    classes = #(a.classlabels_strings or a.classlabels_ints or {})
    local w, bias = matrix(a.coefficients, classes), core.tensor(a.rho or {0}, {dtype = "float32"})
    return function(x) return classified(ops.matmul(to(rows_of(x), "float32"), ops.t(w)) + bias, a, false) end
  end
  local kernel, coefficients = kernel_of(a, matrix(a.support_vectors, total)), matrix(a.coefficients, classes - 1)
  local first = {}
  for i = 1, classes do first[i] = (first[i - 1] or 1) + (per_class[i - 1] or 0) end
  local has_proba = a.prob_a and #a.prob_a > 0
  return function(x)
    local k = kernel(to(rows_of(x), "float32"))
    local decisions, votes = {}, {}
    for i = 1, classes do votes[i] = 0 end
    for i = 1, classes do
      for j = i + 1, classes do
        local function part(of, row)
          local from, length = first[of], per_class[of]
          return ops.matmul(ops.narrow(k, 2, from, length), ops.select(coefficients, 1, row):narrow(1, from, length))
        end
        local d = part(i, j - 1) + part(j, i) + a.rho[#decisions + 1]
        local wins = to(ops.gt(d, 0), "float32")
        votes[i], votes[j] = wins + votes[i], (1 - wins) + votes[j]
        decisions[#decisions + 1] = d
      end
    end
    local index = ops.argmax(ops.stack(votes, 2), 2)
    if has_proba then return ml.svm_probabilities(decisions, a, classes) end
    if classes == 2 then
      local d = ops.unsqueeze(decisions[1], 2)
      return labels_at(a, index), transformed(ops.cat({d, -d}, 2), a.post_transform)
    end
    return labels_at(a, index), transformed(ops.stack(decisions, 2), a.post_transform)
  end
end

-- Returns labels and probabilities of classes from pairwise decisions, coupled as libsvm does (Wu, Lin and Weng,
-- "Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004, algorithm 2).
function ml.svm_probabilities(decisions, a, classes)
  local pairs_, rows = {}, {}
  for k, d in ipairs(decisions) do
    pairs_[k] = ops.clamp(ops.sigmoid(-(d * a.prob_a[k] + a.prob_b[k])), 1e-7, 1 - 1e-7):totable()
  end
  for row = 1, #pairs_[1] do
    local r, q, p, k = {}, {}, {}, 0
    for i = 1, classes do r[i], q[i], p[i] = {}, {}, 1 / classes end
    for i = 1, classes do
      for j = i + 1, classes do
        k = k + 1
        r[i][j], r[j][i] = pairs_[k][row], 1 - pairs_[k][row]
      end
    end
    for i = 1, classes do
      q[i][i] = 0
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
        local difference = (pqp - qp[i]) / q[i][i]
        p[i] = p[i] + difference
        pqp = (pqp + difference * (difference * q[i][i] + 2 * qp[i])) / (1 + difference) ^ 2
        for j = 1, classes do
          qp[j] = (qp[j] + difference * q[i][j]) / (1 + difference)
          p[j] = p[j] / (1 + difference)
        end
      end
    end
    rows[row] = p
  end
  local scores = core.tensor(rows, {dtype = "float32"})
  return labels_at(a, ops.argmax(scores, 2)), scores
end

-- ---- features

function ml.Scaler(n)
  local offset, scale = core.tensor(n.a.offset or {0}), core.tensor(n.a.scale or {1})
  return function(x) return (to(x, "float32") - offset) * scale end
end

function ml.Normalizer(n)
  local kind = n.a.norm or "MAX"
  return function(x)
    x = to(x, "float32")
    local size = kind == "MAX" and ops.amax(ops.abs(x), {-1}, true) or ops.norm(x, kind == "L1" and 1 or 2, {-1}, true)
    return x / ops.where(ops.eq(size, 0), ops.ones_like(size), size)
  end
end

function ml.Binarizer(n)
  local threshold = n.a.threshold or 0
  return function(x) return to(ops.gt(x, threshold), x.dtype) end
end

function ml.Imputer(n)
  local a = n.a
  local floats = a.imputed_value_floats and #a.imputed_value_floats > 0
  local values, replaced = floats and a.imputed_value_floats or a.imputed_value_int64s,
    floats and a.replaced_value_float or a.replaced_value_int64
  return function(x)
    local gone = (replaced == nil or replaced ~= replaced) and ops.isnan(x) or ops.eq(x, replaced)
    return ops.where(gone, core.tensor(values, {dtype = x.dtype}), x)
  end
end

function ml.FeatureVectorizer(n)
  local widths = n.a.inputdimensions or {}
  return function(list, count)
    local parts = {}
    for i = 1, count do
      local x = rows_of(list[i])
      parts[i] = to(ops.narrow(x, 2, 1, math.min(widths[i] or x.shape[2], x.shape[2])), "float32")
    end
    return ops.cat(parts, 2)
  end, "list"
end

function ml.ArrayFeatureExtractor()
  return function(x, index) return ops.index_select(x, -1, index:reshape(-1) + 1) end
end

function ml.OneHotEncoder(n)
  local texts, numbers, position = n.a.cats_strings, n.a.cats_int64s or {}, {}
  local lenient = n.a.zeros ~= 0
  local list = texts and #texts > 0 and texts or numbers
  for i, value in ipairs(list) do position[value] = i end
  return function(x)
    local values, sizes = is_tensor(x) and x:reshape(-1):totable() or x, {unpack(x.shape)}
    local rows = {}
    for i, value in ipairs(values) do
      rows[i] = helpers.filled(#list, 0)
      if position[value] then rows[i][position[value]] = 1 end
      if not position[value] and not lenient then error("a category is unknown", 0) end
    end
    sizes[#sizes + 1] = #list
    return core.tensor(rows, {dtype = "float32"}):reshape(sizes)
  end, "holds"
end

-- Returns the list of an attribute, {values, dtype}, of several possible names.
local function typed(n, name)
  for suffix, dtype in pairs {int64s = "int64", floats = "float32", strings = "string"} do
    local list = n.a[name .. "_" .. suffix]
    if list and #list > 0 then return list, dtype end
  end
  if n.a[name .. "_tensor"] then
    local t = n:tensor(name .. "_tensor")
    if is_tensor(t) then return t:reshape(-1):totable(), t.dtype end
    return t, "string"
  end
  n:fail("it has no %s", name)
end

function ml.LabelEncoder(n)
  local a, keys, values, dtype = n.a, nil, nil, nil
  if n.version < 2 then
    keys, values, dtype = a.classes_strings, {}, "int64"
    for i = 1, #keys do values[i] = i - 1 end
  else
    keys = typed(n, "keys")
    values, dtype = typed(n, "values")
  end
  local default = a.default_tensor and n:tensor "default_tensor"
  if is_tensor(default) then default = default:reshape(-1):select(1, 1):item() end
  if default == nil then
    default = dtype == "string" and (a.default_string or "_Unused") or dtype:find "float" and (a.default_float or -0)
      or a.default_int64 or -1
  elseif type(default) == "table" then
    default = default[1]
  end
  local map, of_nan = {}, nil
  for i, key in ipairs(keys) do
    if key ~= key then of_nan = values[i] else map[key] = values[i] end
  end
  return function(x)
    local out = {}
    for i, key in ipairs(is_tensor(x) and x:reshape(-1):totable() or x) do
      out[i] = key == key and map[key] or key ~= key and of_nan or nil
      if out[i] == nil then out[i] = default end
    end
    if dtype ~= "string" then return core.tensor(out, {dtype = dtype}):reshape(x.shape) end
    out.shape = {unpack(x.shape)}
    return out
  end, "holds"
end

function ml.ZipMap(n)
  local labels = n.a.classlabels_strings or n.a.classlabels_int64s
  return function(x)
    local list = {}
    for i, row in ipairs(rows_of(x):totable()) do
      list[i] = {}
      for k, label in ipairs(labels) do list[i][label] = row[k] end
    end
    return list
  end, "holds"
end

return ml
