--- Defines metrics of text: BLEU and perplexity, with torchmetrics' values.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local labels = require "luminary.metrics.labels"
local metric = require "luminary.metrics.metric"
local shapes = require "luminary.tensor.shapes"

local ops, fail = core.ops, options.fail

-- ---- BLEU

-- White space of Unicode beyond ASCII, at which Python's split() separates words, too.
local SPACES = {
  "\194\133", "\194\160", "\225\154\128", "\226\128[\128-\138\168\169\175]", "\226\129\159", "\227\128\128",
}

local function words_of(line)
  if line:find "[\194\225-\227]" then
    for _, space in ipairs(SPACES) do line = line:gsub(space, " ") end
  end
  return lists.parts(line, "[^%s\28-\31]+")
end

-- Counts each n-gram among the words, by n and its text.
local function ngrams_of(words, longest)
  local counts = {}
  for n = 1, longest do
    local of_length = {}
    for i = 1, #words - n + 1 do
      local text = table.concat(words, " ", i, i + n - 1)
      of_length[text] = (of_length[text] or 0) + 1
    end
    counts[n] = of_length
  end
  return counts
end

local function strings(who, name, v)
  if type(v) == "string" then return {v} end
  return options.arg(who, name, v, "string[]")
end

-- Counts a line's n-grams that its references contain; an n-gram counts at most as often as in the best reference.
local function count_common_ngrams(line, references, longest, hits, all)
  local pred, best, target_length = words_of(line), {}, nil
  for n = 1, longest do best[n] = {} end
  for _, reference in ipairs(references) do
    local words = words_of(reference)
    if not target_length or math.abs(#words - #pred) < math.abs(target_length - #pred) then target_length = #words end
    for n, of_length in ipairs(ngrams_of(words, longest)) do
      for text, count in pairs(of_length) do best[n][text] = math.max(best[n][text] or 0, count) end
    end
  end
  for n, of_length in ipairs(ngrams_of(pred, longest)) do
    for text, count in pairs(of_length) do
      hits[n], all[n] = hits[n] + math.min(count, best[n][text] or 0), all[n] + count
    end
  end
  return #pred, target_length
end

local function update_bleu(self, preds, target)
  local who = "BLEUScore"
  preds = strings(who, "preds", preds)
  if type(target) ~= "table" then options.must_be(who, "target", "a list with the references of each line", target) end
  if #preds ~= #target then options.wrong_length(who, "target", #preds, "line of preds", #target) end
  local hits, all, lengths = {}, {}, {0, 0}
  for n = 1, self.n_gram do hits[n], all[n] = 0, 0 end
  for i, line in ipairs(preds) do
    local references = strings(who, ("target[%d]"):format(i), target[i])
    if #references == 0 then fail("%s: target[%d] must have at least one reference", who, i) end
    local length, target_length = count_common_ngrams(line, references, self.n_gram, hits, all)
    lengths[1], lengths[2] = lengths[1] + length, lengths[2] + target_length
  end
  local function add_to(name, list) self[name] = self[name] + core.tensor(list, {dtype = "float64"}):to(self.device) end
  add_to("numerator", hits)
  add_to("denominator", all)
  add_to("lengths", lengths)
end

local function compute_bleu(self)
  local hits, all = self.numerator:totable(), self.denominator:totable()
  local length, target_length = unpack(self.lengths:totable())
  local score = 0
  if math.min(unpack(hits)) > 0 then
    for n = 1, self.n_gram do
      local smooth = self.smooth and n > 1 and 1 or 0
      local weight = self.weights and self.weights[n] or 1 / self.n_gram
      score = score + weight * math.log((hits[n] + smooth) / (all[n] + smooth))
    end
    score = math.exp(score) * (length > target_length and 1 or math.exp(1 - target_length / length))
  end
  return labels.result(core.tensor(score, {dtype = "float64"}))
end

metric.define("BLEUScore", {
  help = [[Computes the BLEU score of a corpus. Papineni et al., "BLEU: a method for automatic evaluation of machine
    translation", 2002; smoothed as by Lin and Och, 2004.]],
  call = "bleu_score", takes = "preds: any, target: any", options = "n_gram: count = 4, smooth = false, weights: list",
  make = function(self)
    if self.weights and #self.weights ~= self.n_gram then
      options.wrong_length("BLEUScore", "weights", self.n_gram, "length of n-grams", #self.weights)
    end
  end,
  states = function(self) return {numerator = {self.n_gram}, denominator = {self.n_gram}, lengths = {2}} end,
  update = update_bleu, compute = compute_bleu,
})

-- ---- perplexity

metric.define("Perplexity", {
  help = "Computes the perplexity of a language model: exp of the mean cross entropy of its tokens.",
  call = "perplexity", options = "ignore_index: integer", states = function() return {loss = {}, count = {}} end,
  update = function(self, preds, target)
    local who = "Perplexity"
    labels.check_integers(who, "target", target)
    local n, length = unpack(shapes.check(who, "target", target, {"N", "L"}).shape)
    local size = shapes.check(who, "preds", preds, {"N", "L", "V"}).shape[3]
    shapes.check(who, "preds", preds, {n, length, size})
    target = labels.as_long(target):reshape(-1)
    labels.check_range(who, "target", target, 1, size, self.ignore_index)
    local loss = ops.cross_entropy(preds:reshape(-1, size):float(), target,
      {ignore_index = self.ignore_index, reduction = "none"})
    self.loss = self.loss + labels.double(loss):sum()
    self.count = self.count + (self.ignore_index and target:ne(self.ignore_index):sum() or target:numel())
  end,
  compute = function(self) return labels.result(ops.exp(self.loss / self.count)) end,
})
