-- word2vec's skip-gram with negative sampling (Mikolov et al., "Distributed Representations of Words and Phrases and
-- their Compositionality", 2013) over sentences that a small grammar writes. Words of one class, such as animals, stand
-- in the same positions, and so come to lie beside each other.
--
--   luajit examples/word2vec.lua
--   luajit examples/word2vec.lua --dim 50 --window 4 --near dog

local lm = require "luminary"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data

local USAGE = [[
usage: luajit word2vec.lua [options]

  --sentences N     that the grammar writes                         (2000)
  --dim N           of a word's vector                              (24)
  --window N        words to each side that a word has to guess     (2)
  --negatives N     words drawn for each that stands there          (5)
  --epochs N        passes over all pairs of words                  (5)
  --batch-size N    pairs of a step                                 (256)
  --lr X            learning rate                                   (0.01)
  --near WORD       prints the words nearest to this one            (each class's first)
  --seed N          of everything                                   (1)
  --selftest        whether 90 % of the words lie nearest to one of their class
]]

local options, _, refuse = require "luminary.cli.script_options"(USAGE)
lm.manual_seed(options.seed)
math.randomseed(options.seed)

-- ---- the text

local classes = {
  animal = {"dog", "cat", "fox", "horse", "mouse", "bear"},
  person = {"girl", "boy", "nurse", "farmer", "king", "teacher"},
  food = {"bread", "cheese", "soup", "apples", "rice", "fish"},
  place = {"forest", "city", "garden", "river", "market", "castle"},
  color = {"red", "brown", "white", "black", "gray", "golden"},
  mood = {"happy", "angry", "tired", "clever", "lonely", "brave"},
  eats = {"eats", "likes", "finds", "steals", "wants", "hides"},
  goes = {"runs", "walks", "travels", "returns", "hurries", "wanders"},
}
local grammar = { -- a word in capitals is one of its class, others stand for themselves
  "the COLOR ANIMAL GOES to the PLACE", "the MOOD PERSON EATS some FOOD", "the COLOR ANIMAL EATS some FOOD",
  "a MOOD PERSON GOES to the PLACE", "the PERSON has a COLOR ANIMAL", "a PERSON at the PLACE is MOOD",
}

local function any(list) return list[math.random(#list)] end

-- Returns the vocabulary (words, and positions of words) and the sentences, as lists of positions in it.
local function write_text()
  local words, index_of, sentences = {}, {}, {}
  for i = 1, options.sentences do
    local sentence = {}
    for word in any(grammar):gmatch("%a+") do
      local class = classes[word:lower()]
      if class and word == word:upper() then word = any(class) end
      if not index_of[word] then
        table.insert(words, word)
        index_of[word] = #words
      end
      table.insert(sentence, index_of[word])
    end
    sentences[i] = sentence
  end
  return words, index_of, sentences
end

-- Pairs each word with each of those around it: two int64 tensors [N].
local function pairs_of(sentences)
  local centers, contexts = {}, {}
  for _, sentence in ipairs(sentences) do
    for i, center in ipairs(sentence) do
      for j = math.max(1, i - options.window), math.min(#sentence, i + options.window) do
        if j ~= i then
          table.insert(centers, center)
          table.insert(contexts, sentence[j])
        end
      end
    end
  end
  return lm.LongTensor(centers), lm.LongTensor(contexts)
end

-- ---- the model

local SkipGram = nn.Module:extend("SkipGram")

function SkipGram:init(vocabulary)
  self.center = nn.Embedding(vocabulary, options.dim)
  self.context = nn.Embedding(vocabulary, options.dim)
  nn.init.uniform_(self.center.weight, -0.5 / options.dim, 0.5 / options.dim)
  nn.init.zeros_(self.context.weight)
end

-- Takes centers [N], contexts [N, K]; returns how well each context fits, as logits [N, K].
function SkipGram:forward(centers, contexts)
  return self.context(contexts):matmul(self.center(centers):unsqueeze(3)):squeeze(3)
end

local words, index_of, sentences = write_text()
if options.near and not index_of[options.near] then refuse("--near: the text has no word '%s'", options.near) end
local centers, contexts = pairs_of(sentences)
local noise = contexts:bincount {minlength = #words}:to("float32"):pow(0.75) -- weights by which negatives are drawn
print(("%d words, %d pairs"):format(#words, #centers))

local net = SkipGram(#words)
local opt = optim.Adam(net:parameters(), {lr = options.lr})
local set = data.TensorDataset(centers, contexts)
local loader = data.DataLoader(set, {batch_size = options["batch-size"], shuffle = true})
for epoch = 1, options.epochs do
  local sum, steps = 0, 0
  for center, context in loader:epoch(epoch) do
    local n = #center
    local negatives = noise:multinomial(n * options.negatives, true):view(n, options.negatives)
    local logits = net(center, lm.cat({context:unsqueeze(2), negatives}, 2))
    local targets = lm.zeros_like(logits)
    targets[{{}, 1}] = 1
    local loss = F.binary_cross_entropy_with_logits(logits, targets, {reduction = "sum"}) / n
    opt:zero_grad()
    loss:backward()
    opt:step()
    sum, steps = sum + loss:item(), steps + 1
  end
  print(("epoch %d: loss %.4f"):format(epoch, sum / steps))
end

-- ---- what lies where

local vectors = F.normalize(net.center.weight:detach(), {dim = 2})
local _, nearest = vectors:matmul(vectors:t()):fill_diagonal_(-1):topk(4, 2)
nearest = nearest:tolist()

local function print_near(word)
  if not index_of[word] then return end -- a short text may lack the word
  local near = {}
  for i, index in ipairs(nearest[index_of[word]]) do near[i] = words[index] end
  print(("%-8s lies near %s"):format(word, table.concat(near, ", ")))
end

local class_of, right, all = {}, 0, 0
for name, list in pairs(classes) do
  for _, word in ipairs(list) do class_of[word] = name end
end
for i, word in ipairs(words) do
  if class_of[word] then
    all = all + 1
    if class_of[words[nearest[i][1]]] == class_of[word] then right = right + 1 end
  end
end

if options.near then
  print_near(options.near)
else
  for _, name in ipairs {"animal", "person", "food", "place", "color", "mood", "eats", "goes"} do
    print_near(classes[name][1])
  end
end
print(("%.1f %% of %d words lie nearest to one of their class"):format(100 * right / all, all))
if options.selftest then os.exit(right / all >= 0.9 and 0 or 1, true) end
