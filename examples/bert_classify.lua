-- Sentences classified by BERT: a small one trained from nothing, or weights of Hugging Face's, such as
-- bert-base-uncased, fine-tuned. Batches of sentences of different lengths, a mask for what pads them, warm-up and a
-- linear descent. Where no data is given it learns who does what in sentences of a small grammar: in "the dogs that
-- chase a cat sleep." several move.
--
--   luajit examples/bert_classify.lua
--   luajit examples/bert_classify.lua --data reviews.tsv --weights bert-base-uncased --lr 3e-5 --epochs 3 --save mine
--   luajit examples/bert_classify.lua --weights mine --classify "a wonderful film"
local lm = require "luminary"
local json_encode = require "luminary.base.json_encode"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data

local USAGE = [[
usage: luajit bert_classify.lua [options]

  --data FILE         lines of a label, a tab and a text   (4,000 sentences of a small grammar)
  --weights FOLDER    with config.json, weights and tokenizer.json or vocab.txt    (a small model, drawn);
                      without --data it only says the class of --classify TEXT
  --layers N          of a model that is drawn             (2)
  --heads N           in each                              (4)
  --width N           of its embeddings                    (64)
  --length N          tokens of a text at most             (64)
  --epochs N          (4)
  --batch-size N      (32)
  --lr X              the highest learning rate            (0.002)
  --warmup X          share of the steps until then        (0.1)
  --weight-decay X    (0.01)
  --save FOLDER       where to write the model, for --weights
  --classify TEXT     the class of a text, at the end
  --seed N            (1)
  --device DEVICE     such as cpu or cuda:0                (a GPU if there is one)
  --selftest          some seconds; fails if it did not learn
]]

local options, _, refuse, files = require "luminary.cli.script_options"(USAGE, {
  epochs = {"natural"},
}, {epochs = 6, width = 32, heads = 2, lr = 4e-3})
local device = options.device
lm.manual_seed(options.seed)
if options.save then
  files.attempt("save", lm.paths.mkdir, options.save)
  files.try("save", options.save .. "/model.safetensors")
end

-- ---- data: texts and the numbers of their classes

local texts, labels, classes, class_of = {}, {}, {}, {}
local function add(label, text)
  if not class_of[label] then
    classes[#classes + 1] = label
    class_of[label] = #classes
  end
  texts[#texts + 1], labels[#labels + 1] = text, class_of[label]
end

-- Sentences of the grammar. Who stands first; a verb of thinking is the main one wherever there is one, and one of
-- acting only where there is no other, as clauses within have those, too.
local function add_sentences(count)
  local sentences, number_of, kind_of = files.beside "sentences.lua", {}, {}
  for number, who in ipairs {"one", "several"} do
    for _, noun in ipairs(sentences.words.noun[number]) do number_of[noun] = who end
    for _, kind in ipairs {"moves", "acts", "thinks"} do
      for _, verb in ipairs(sentences.words[kind][number]) do kind_of[verb] = kind end
    end
  end
  for sentence in sentences.make(count):gmatch "%a[^.]+%." do
    local who, found = nil, {}
    for word in sentence:gmatch "%a+" do
      who = who or number_of[word]
      found[kind_of[word] or 0] = true
    end
    local does = found.thinks and "thinks" or found.moves and "moves" or "acts"
    add(who .. " " .. (who == "one" and does or does:gsub("s$", "")), sentence)
  end
end

if options.data then
  if lm.paths.dirp(options.data) then refuse("--data: '%s' is a folder", options.data) end
  local file, problem = io.open(options.data)
  if not file then refuse("--data: %s", problem) end
  for line in file:lines() do
    local label, text = line:match "^([^\t]+)\t(.+)$"
    if not label then refuse("--data: '%s' is no label, tab and text", line:sub(1, 60)) end
    add(label, text)
  end
  file:close()
  if #classes < 2 then refuse("--data: %d texts of %d classes; at least two classes wanted", #texts, #classes) end
elseif options.weights then
  if not options.classify then refuse("--weights without --data: --classify TEXT wanted") end
else
  add_sentences(options.selftest and 2000 or 4000)
end

-- ---- tokenizer and model

local tokenizer, net
local vocabulary = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}

-- Numbers the classes as a model does that knows them all; false if it does not.
local function take_labels(theirs)
  local number = {}
  for i, name in ipairs(theirs or {}) do number[name] = i end
  for _, name in ipairs(classes) do
    if not number[name] then return false end
  end
  for i, label in ipairs(labels) do labels[i] = number[classes[label]] end
  classes = theirs
  return true
end

if options.weights then
  if not lm.paths.dirp(options.weights) then refuse("--weights: '%s' is no folder", options.weights) end
  tokenizer = files.attempt("weights", lm.text.Tokenizer, options.weights)
  local report
  net, report = files.attempt("weights", lm.models.bert, {
    weights = options.weights, head = "sequence_classification", strict = false,
  })
  print(report)
  if not options.data then
    classes = net.config.labels
    if not classes then refuse("--weights: '%s' names no classes; --data FILE teaches it some", options.weights) end
  elseif not take_labels(net.config.labels) then
    print(("a new head for the %d classes of %s"):format(#classes, options.data))
    net.classifier = nn.Linear(net.config.hidden_size, #classes)
    nn.init.normal_(net.classifier.weight, 0, 0.02)
    nn.init.zeros_(net.classifier.bias)
  end
else
  local seen = {}
  for _, text in ipairs(texts) do
    for word in text:lower():gmatch "[%w]+" do
      if not seen[word] then vocabulary[#vocabulary + 1] = word end
      seen[word] = true
    end
  end
  for mark in (".,;:!?'\"-()"):gmatch "." do vocabulary[#vocabulary + 1] = mark end
  local path = os.tmpname()
  lm.paths.write(path, table.concat(vocabulary, "\n") .. "\n")
  tokenizer = lm.text.BertWordPieceTokenizer(path)
  os.remove(path)
  net = lm.models.bert {
    head = "sequence_classification", num_labels = #classes, vocab_size = #vocabulary, hidden_size = options.width,
    num_hidden_layers = options.layers, num_attention_heads = options.heads, intermediate_size = 4 * options.width,
    max_position_embeddings = options.length,
  }
end
net:to(device)
local length = math.min(options.length, net.config.max_position_embeddings)

local function scores_of(ids, mask) return net(ids:to(device), {attention_mask = mask:to(device)}) end

local function class_by_net(text)
  net:eval()
  local e = tokenizer(text, {truncation = true, max_length = length})
  local shares = lm.no_grad(function() return scores_of(e.input_ids, e.attention_mask):softmax(2)[1] end)
  local best = shares:argmax():item()
  return classes[best], shares[best]
end

local function say_class(text)
  local class, share = class_by_net(text)
  print(("%s: %s (%.0f %%)"):format(text, class, 100 * share))
end

if #texts == 0 then
  say_class(options.classify)
  return
end

local Sentences = data.Dataset:extend "Sentences"
function Sentences:init(first, last) self.first, self.last = first, last end
function Sentences:len() return self.last - self.first + 1 end
function Sentences:get(i) return texts[self.first + i - 1], labels[self.first + i - 1] end

-- Collates samples, whose texts are padded to the longest.
local function collated(samples)
  local batch, targets = {}, {}
  for i, sample in ipairs(samples) do batch[i], targets[i] = unpack(sample) end
  local e = tokenizer(batch, {padding = true, truncation = true, max_length = length})
  return e.input_ids, e.attention_mask, lm.tensor(targets, {dtype = "int64"})
end

-- Texts of one class may stand together in a file: in an order of its own, the same for each seed.
local order = lm.randperm(#texts):totable()
local shuffled = {texts = {}, labels = {}}
for i, from in ipairs(order) do shuffled.texts[i], shuffled.labels[i] = texts[from], labels[from] end
texts, labels = shuffled.texts, shuffled.labels

local split = math.floor(0.9 * #texts)
local function loader(first, last, shuffle)
  return data.DataLoader(Sentences(first, last), {
    batch_size = options["batch-size"], shuffle = shuffle, collate_fn = collated,
  })
end
local train, valid = loader(1, split, true), loader(split + 1, #texts, false)

-- ---- training

local decayed, rest = {}, {}
for _, p in ipairs(net:parameters()) do table.insert(p.ndim >= 2 and decayed or rest, p) end
local opt = optim.AdamW({
  {params = decayed, weight_decay = options["weight-decay"]}, {params = rest, weight_decay = 0},
}, {lr = options.lr})
local steps = math.max(1, options.epochs * #train)
local schedule = optim.lr_scheduler.LambdaLR(opt, function(step)
  local warmup = options.warmup * steps
  return step < warmup and (step + 1) / warmup or math.max(0, (steps - step) / (steps - warmup))
end)

local function accuracy()
  net:eval()
  local right = 0
  lm.no_grad(function()
    for ids, mask, targets in valid:iter() do
      right = right + scores_of(ids, mask):argmax(2):eq(targets:to(device)):sum():item()
    end
  end)
  net:train()
  return right / (#texts - split)
end

local reached = options.epochs == 0 and accuracy()
for epoch = 1, options.epochs do
  local sum, began = 0, lm.time()
  net:train()
  for ids, mask, targets in train:epoch(epoch) do
    local loss = F.cross_entropy(scores_of(ids, mask), targets:to(device))
    opt:zero_grad()
    loss:backward()
    nn.utils.clip_grad_norm_(net:parameters(), 1)
    opt:step()
    schedule:step()
    sum = sum + loss:item()
  end
  reached = accuracy()
  print(("epoch %d  loss %.4f  right of those not seen %.1f %%  %.1f s"):format(epoch, sum / #train, 100 * reached,
    lm.time() - began))
end

-- ---- what is kept, and what it says

-- Saves the net as a folder of Hugging Face's form, which Python reads, too.
local function save(folder)
  local names, c = {}, net.config
  for i, name in ipairs(classes) do names[i] = ('"%d": %s'):format(i - 1, json_encode(name)) end
  lm.paths.write(folder .. "/config.json",
    ([[{"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": %d,
 "hidden_size": %d, "num_hidden_layers": %d, "num_attention_heads": %d, "intermediate_size": %d, "hidden_act": "%s",
 "max_position_embeddings": %d, "type_vocab_size": %d, "layer_norm_eps": %g, "id2label": {%s}}
]]):format(c.vocab_size, c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.intermediate_size, c.hidden_act,
    c.max_position_embeddings, c.type_vocab_size, c.layer_norm_eps, table.concat(names, ", ")))
  lm.save(folder .. "/model.safetensors", net:cpu():state_dict())
  net:to(device)
  if not options.weights then
    lm.paths.write(folder .. "/vocab.txt", table.concat(vocabulary, "\n") .. "\n")
  else
    for _, name in ipairs {"tokenizer.json", "vocab.txt"} do
      local from = io.open(options.weights .. "/" .. name, "rb")
      if from then
        lm.paths.write(folder .. "/" .. name, from:read "*a")
        from:close()
      end
    end
  end
end
if options.save then save(options.save) end

for _, text in ipairs {options.classify or texts[split + 1], not options.classify and texts[split + 2] or nil} do
  say_class(text)
end

if options.selftest then
  assert(reached > 0.9, "it did not learn: at least 90 % were expected")
  local folder = os.tmpname()
  os.remove(folder)
  lm.paths.mkdir(folder)
  save(folder)
  local again = lm.models.bert({weights = folder}):to(device)
  local e = tokenizer(texts[1])
  local same = again(e.input_ids:to(device)):allclose(net:eval()(e.input_ids:to(device)), {atol = 1e-4})
  same = same and again.config.labels[2] == classes[2] and #lm.text.Tokenizer(folder) == #tokenizer
  lm.paths.rmall(folder, "yes")
  assert(same, "what was saved is not what was read")
end
