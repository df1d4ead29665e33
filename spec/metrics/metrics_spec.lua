-- lm.metrics: values against torchmetrics' (scripts/dev/golden/gen_metrics.py); states, ranks, errors.
local lm = require "luminary"
local cases = require "spec.support.metric_cases"
local message = require "spec.support.error_of"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local M = lm.metrics
local F = M.functional

local function labels(list) return lm.tensor(list, {dtype = "int64"}) end

local function value(x) return tonumber(("%.6g"):format(x:item())) end

describe("metrics", function()
  it("have torchmetrics' values, as objects and as functions", function()
    local rows, stored = cases.load "spec/golden/_metrics.safetensors"
    assert.equal(78, #rows)
    local wrong = {}
    for i, row in ipairs(rows) do
      local ok, problem = pcall(cases.check, row, stored, i)
      if not ok then wrong[#wrong + 1] = problem end
    end
    assert.same({}, wrong)
  end)

  it("of counts are worked out by hand", function()
    local preds, target = labels {1, 2, 2, 3, 3, 3}, labels {1, 2, 3, 3, 3, 1}
    assert.equal(0.666667, value(F.accuracy(preds, target, "multiclass", {num_classes = 3})))
    assert.same({{1, 0, 1}, {0, 1, 0}, {0, 1, 2}},
      F.confusion_matrix(preds, target, "multiclass", {num_classes = 3}):totable())
    assert.equal(0.75, value(F.auroc(lm.tensor {0.1, 0.4, 0.35, 0.8}, labels {0, 0, 1, 1}, "binary")))
    assert.equal(2, value(F.perplexity(lm.zeros(1, 4, 2), labels {{1, 2, 1, 1}})))
    assert.equal(1, value(F.bleu_score("the cat is on the mat", {"the cat is on the mat"})))
    assert.equal(0, value(F.bleu_score({"a"}, {{"b"}})))
  end)

  it("take no gradient, and states outlive a scope", function()
    local x = lm.tensor({{2, 0}, {0, 2}}, {requires_grad = true})
    local mse, accuracy = M.MeanSquaredError(), M.Accuracy("multiclass", {num_classes = 2})
    lm.scope(function()
      mse:update(x * 2, lm.zeros(2, 2))
      accuracy:update(x * 2, labels {1, 2})
    end)
    assert.is_false(mse:compute().requires_grad)
    assert.equal(8, value(mse:compute()))
    assert.equal(1, value(accuracy:compute()))
  end)

  it("return the value of a batch from a call, and that of all from compute", function()
    for _, metric in ipairs {M.AUROC "binary", M.AUROC("binary", {thresholds = 5}), M.Accuracy "binary"} do
      local first = metric(lm.tensor {0.2, 0.8}, labels {0, 1})
      local second = metric(lm.tensor {0.2, 0.8}, labels {1, 0})
      assert.equal(1, value(first))
      assert.equal(0, value(second))
      assert.equal(0.5, value(metric:compute()))
      metric:reset()
      metric:update(lm.tensor {0.2, 0.8}, labels {0, 1})
      assert.equal(1, value(metric:compute()))
    end
  end)

  it("aggregate numbers", function()
    local mean, sum, largest, smallest = M.MeanMetric(), M.SumMetric(), M.MaxMetric(), M.MinMetric()
    for _, v in ipairs {lm.tensor {1, 2}, 6} do
      mean:update(v)
      sum:update(v)
      largest:update(v)
      smallest:update(v)
    end
    assert.same({3, 9, 6, 1}, {value(mean:compute()), value(sum:compute()), value(largest:compute()),
      value(smallest:compute())})
    local weighted = M.MeanMetric()
    weighted:update(lm.tensor {1, 2}, lm.tensor {3, 1})
    assert.equal(1.25, value(weighted:compute()))
    local running = M.RunningMean {window = 3}
    for i = 1, 10 do running:update(i) end
    assert.equal(9, value(running:compute()))
    local total = M.RunningSum {window = 2}
    total:update(5)
    assert.equal(5, value(total:compute()))
  end)

  it("of scores take NaN as the largest, and as a probability of no positive", function() -- as torchmetrics 1.x does
    local nan = 0 / 0
    local function accuracy(rows) return F.accuracy(lm.tensor(rows), labels {1, 2}, "multiclass", {num_classes = 3}) end
    assert.equal(0.5, value(accuracy {{nan, 0, 0}, {1, 0, 0}}))
    assert.equal(0, value(accuracy {{0, nan, 0}, {1, 0, 0}}))
    for _, case in ipairs {{{0, 0}, 0.5, 0}, {{1, 0}, 0, 1}} do
      local scores, target = lm.tensor {nan, 0.3}, labels(case[1])
      assert.equal(case[2], value(F.accuracy(scores, target, "binary")))
      assert.equal(case[3], value(F.auroc(scores, target, "binary")))
    end
  end)

  it("leave out, replace or reject NaN", function()
    local nan = 0 / 0
    local function mean(strategy)
      local metric = M.MeanMetric {nan_strategy = strategy}
      metric:update(lm.tensor {1, nan, 3})
      return value(metric:compute())
    end
    assert.equal(2, mean "ignore")
    assert.equal(3, mean(5))
    local disabled = mean "disable"
    assert.is_true(disabled ~= disabled)
    assert.matches("MeanMetric: value must not be NaN", message(mean, "error"))
  end)

  it("are collected", function()
    local both = M.MetricCollection({
      M.Accuracy("multiclass", {num_classes = 2}), f1 = M.F1Score("multiclass", {num_classes = 2}),
    }, {prefix = "val_"})
    both:update(labels {1, 2}, labels {1, 1})
    local values = both:compute()
    assert.equal(0.5, value(values.val_Accuracy))
    assert.equal(0.5, value(values.val_f1))
    both:reset()
    both:update(labels {1, 2}, labels {1, 2})
    assert.equal(1, value(both:compute().val_f1))
    assert.matches("two metrics 'Accuracy'", message(M.MetricCollection, {
      M.Accuracy("multiclass", {num_classes = 2}), M.Accuracy("multiclass", {num_classes = 2}),
    }))
  end)

  it("are evaluated over a loader, in evaluation mode and without gradients", function()
    lm.manual_seed(1)
    local x, y = lm.randn(10, 3), lm.arange(10):remainder(2) + 1
    local loader = lm.data.DataLoader(lm.data.TensorDataset(x, y), {batch_size = 4})
    local frozen = lm.nn.BatchNorm1d(3)
    local net = lm.nn.Sequential(frozen, lm.nn.Dropout(0.9), lm.nn.Linear(3, 2))
    net:train()
    frozen:eval()
    local accuracy = M.Accuracy("multiclass", {num_classes = 2})
    accuracy:update(labels {1}, labels {2}) -- evaluate forgets this batch
    local right = M.evaluate(net, loader, accuracy)
    assert.is_false(right.requires_grad)
    assert.same({true, false, true}, {net.training, frozen.training, net[2].training})
    net:eval()
    assert.near(net(x):argmax(2):eq(y):float():mean():item(), right:item(), 1e-6)
    net:to "float64" -- inputs become float64
    local both = M.MetricCollection {accuracy = accuracy}
    assert.near(right:item(), M.evaluate(net, loader, both).accuracy:item(), 1e-6)
    assert.near(right:item(), M.evaluate(lm.nn.Sequential(net), loader, both).accuracy:item(), 1e-6)

    net:train()
    for words, args in pairs {
      ["evaluate: expected a loader, got a table"] = {net, {}, accuracy},
      ["evaluate: expected a metric, got a function"] = {net, loader, print},
      ["evaluate: model must be a module"] = {1, loader, accuracy},
      ["evaluate: a batch's target is missing or nil"] = {net, lm.data.DataLoader(lm.data.TensorDataset(x)), accuracy},
      ["shape"] = {lm.nn.Linear(4, 2), loader, accuracy},
    } do
      assert.matches(words, message(M.evaluate, unpack(args)), 1, true)
    end
    assert.is_true(net.training)
  end)

  it("are saved and loaded", function()
    local folder = temp.folder()
    local path = folder .. "/metrics.safetensors"
    local function make()
      local metrics = {M.AUROC "binary", M.Accuracy "binary", unused = M.AUROC "binary", mean = M.MeanMetric()}
      return M.MetricCollection(metrics)
    end
    local saved, loaded = make(), make()
    for _, name in ipairs {"AUROC", "Accuracy"} do saved.metrics[name]:update(lm.tensor {0.2, 0.8}, labels {0, 1}) end
    saved.metrics.mean:update(3)
    lm.save(path, saved:state_dict())
    loaded:load_state_dict(lm.load(path))
    temp.remove(folder)
    for _, name in ipairs {"AUROC", "Accuracy"} do
      loaded.metrics[name]:update(lm.tensor {0.2, 0.8}, labels {1, 0})
      assert.equal(0.5, value(loaded.metrics[name]:compute()))
    end
    assert.equal(3, value(loaded.metrics.mean:compute()))
    assert.matches("expected a tensor 'sum'", message(M.MeanMetric().load_state_dict, M.MeanMetric(), {}))
  end)

  it("are extended", function()
    local Hits = M.Metric:extend "Hits"
    function Hits:init(opts)
      Hits.super.init(self, opts)
      self:add_state("hits", lm.zeros(1))
      self:add_state("seen", {})
    end
    function Hits:update(preds, target)
      self.hits = self.hits + preds:eq(target):sum()
      table.insert(self.seen, target)
    end
    function Hits:compute() return self.hits, #self.seen end
    local hits = Hits()
    assert.equal(1, value(hits(labels {1, 2}, labels {1, 1})))
    hits:update(labels {1, 2}, labels {1, 2})
    assert.equal(3, value(hits:compute()))
    local Bad = M.Metric:extend "Bad"
    function Bad:init() self:add_state("x", lm.zeros(1)) end
    assert.matches("Bad: init must call Metric.init", message(Bad))
    assert.matches("define function Metric:compute", message(function() M.Metric():compute() end))
  end)

  it("reject wrong calls", function()
    local scores, target = lm.rand(4, 3), labels {1, 2, 3, 1}
    local options = {num_classes = 3}
    for _, row in ipairs {
      { "requires num_classes", M.Accuracy, "multiclass" },
      { "task must be", M.Accuracy, "multi" },
      { "unknown option 'classes'", M.Accuracy, "binary", {classes = 3} },
      { "classes from 1 to 3, got 0; classes start at 1", F.accuracy, scores, target - 1, "multiclass", options },
      { "expected preds to have shape %[4, 3%], got %[4, 2%]",
        F.accuracy, scores:narrow(2, 1, 2), target, "multiclass", options },
      { "target must be an integer or bool dtype, got float32",
        F.accuracy, scores, target:float(), "multiclass", options },
      { "target must be 0 or 1, got 2", F.accuracy, lm.rand(4), target, "binary" },
      { "top_k must be at most num_classes %(3%), got 4",
        F.accuracy, scores, target, "multiclass", {num_classes = 3, top_k = 4} },
      { "max_fpr requires task 'binary'", F.auroc, scores, target, "multiclass", {num_classes = 3, max_fpr = 0.5} },
      { "at least 2 samples", F.r2_score, lm.ones(1), lm.ones(1) },
      { "2 entries, one for each line of preds, got 1", F.bleu_score, {"a", "b"}, {"a"} },
      { "it is named 'JaccardIndex' here", function() return M.MeanIoU end },
      { 'it is F1Score%("binary", …%) here', function() return M.BinaryF1Score end },
      { 'it is auroc%(preds, target, "multiclass", …%) here', function() return F.multiclass_auroc end },
      { "metrics has no 'CohenKappa' in this version", function() return M.CohenKappa end },
      { "call it with a colon", function() M.MeanMetric().update(3) end },
    } do
      assert.matches(row[1], message(unpack(row, 2, table.maxn(row))))
    end
  end)

  it("of no samples have a value", function()
    local on = lm.set_warnings(false)
    assert.equal(0, value(M.AUROC("binary"):compute()))
    assert.equal(0, value(M.F1Score("binary"):compute()))
    local none = lm.zeros({0}, {dtype = "int64"})
    assert.equal(0, value(F.accuracy(lm.zeros(0, 3), none, "multiclass", {num_classes = 3})))
    lm.set_warnings(on)
  end)

  it("AUROC warns of batches of logits beside probabilities, and of labels without positives", function()
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write [[
local lm = require "luminary"
local function labels(list) return lm.tensor(list, {dtype = "int64"}) end
for _, thresholds in ipairs {false, 5} do
  local m = lm.metrics.AUROC("binary", {thresholds = thresholds or nil})
  m:update(lm.tensor({2, -1}, {dtype = "float16"}), labels {1, 0})
  m:update(lm.tensor {3, -2}, labels {1, 0}) -- logits again
  m:reset()
  m:update(lm.tensor {0.3, 0.2}, labels {1, 0})
  m:update(lm.tensor {3, -2}, labels {1, 0}) -- warns
end
lm.metrics.functional.auroc(lm.tensor {0.1, 0.2}, labels {0, 0}, "binary") -- warns
lm.metrics.functional.auroc(lm.rand(4, 3), labels {1, 1, 2, 2}, "multiclass", {num_classes = 3}) -- warns
lm.metrics.functional.auroc(lm.rand(2, 2), labels {{0, 1}, {1, 1}}, "multilabel", {num_labels = 2}) -- warns
]]
    file:close()
    local pipe = io.popen("luajit " .. path .. " 2>&1")
    local text = pipe:read("*a"):gsub("[^\n]*:(%d+): warning: AUROC: ", "%1 ")
    pipe:close()
    os.remove(path)
    assert.equal("9 some batches are taken as logits and some, within 0 and 1, as probabilities; pass probabilities\n"
      .. "11 no target of the samples is positive, so that its area is 0\n"
      .. "12 no target of class 3 is positive, so that its area is 0\n"
      .. "13 no target of label 2 is negative, so that its area is 0\n", text)
  end)

  it("have one value over ranks with any number of samples", function()
    -- Rank r has the samples r * 3 of 10, and rank 3 none: a mean of the ranks' values would be another.
    local got = ranks.run {n = 4, env = {LM_TOKEN = "a token for specs"}, script = [[
      local lm = require "luminary"
      local M, dist = lm.metrics, lm.dist
      dist.init_process_group()
      lm.manual_seed(1)
      local scores, target = lm.rand(10, 3), lm.randint(1, 4, {10})
      local numbers = lm.rand(10)
      local function make(options)
        local function with(t)
          for k, v in pairs(options) do t[k] = v end
          return t
        end
        return {
          M.Accuracy("multiclass", with {num_classes = 3}), M.F1Score("multiclass", with {num_classes = 3,
            average = "macro"}), M.AUROC("multiclass", with {num_classes = 3}),
          M.AUROC("multiclass", with {num_classes = 3, thresholds = 7}),
        }, {M.MeanMetric(with {}), M.MaxMetric(with {}), M.SumMetric(with {})}
      end
      local first = dist.get_rank() == 3 and 11 or dist.get_rank() * 3 + 1
      local last = dist.get_rank() == 2 and 10 or first + 2
      local alone, alone_numbers = make {sync_on_compute = false}
      local shared, shared_numbers = make {}
      for i, metric in ipairs(alone) do
        metric:update(scores, target)
        for k = first, math.min(last, 10) do -- each sample is an update: ranks have different numbers
          shared[i]:update(scores:narrow(1, k, 1), target:narrow(1, k, 1))
        end
      end
      for i, metric in ipairs(alone_numbers) do
        metric:update(numbers)
        if first <= 10 then shared_numbers[i]:update(numbers:narrow(1, first, math.min(last, 10) - first + 1)) end
      end
      for i, list in ipairs {alone, alone_numbers} do
        local others = i == 1 and shared or shared_numbers
        for k, metric in ipairs(list) do
          for _ = 1, 2 do -- the states of a rank stay as they are
            local want, value = metric:compute():item(), others[k]:compute():item()
            assert(math.abs(want - value) < 1e-6, ("%d %d: %g instead of %g"):format(i, k, value, want))
          end
        end
      end
      local local_count = M.SumMetric()
      local_count:update(1)
      print(local_count:compute():item(), dist.get_rank() == 3 and shared[1].update_count)
    ]]}
    assert(got.ok, got.text)
    for rank = 0, 3 do assert.equal(("4\t%s\n"):format(rank == 3 and "0" or "false"), got[rank].output) end
  end)

  it("makes NaN of NaN where torchmetrics does", function()
    local nan = 0 / 0
    local rising = lm.tensor {0, 1, 2}
    for _, pair in ipairs {{lm.tensor {1, nan, 3}, rising}, {rising, lm.tensor {1, nan, 3}}} do
      local r2 = F.r2_score(unpack(pair)):item()
      assert.is_true(r2 ~= r2)
    end
    assert.equal(0, F.r2_score(lm.full({3}, nan), lm.zeros(3)):item()) -- a target without variance
  end)
end)
