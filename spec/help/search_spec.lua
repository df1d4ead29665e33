-- Searching help: ?word, luminary help word, lm.help, and what Tab offers in a table of options.
local lm = require "luminary"
local complete = require "luminary.cli.completion"
local help = require "luminary.help"
local index = require "luminary.help.index"
local repl = require "luminary.cli.repl"
local search = require "luminary.help.search"
local temp = require "spec.support.temp"

-- Returns the paths that a search finds, in order, on one line.
local function found(query)
  local paths = {}
  for i, each in ipairs(search.find(query)) do paths[i] = each.path end
  return " " .. table.concat(paths, " ") .. " "
end

-- Returns the position of a path in it.
local function at(paths, path) return assert(paths:find(" " .. path .. " ", 1, true), path .. " is not in" .. paths) end

describe("a search of help #lua", function()
  it("has exact names first, case ignored, then names with the word, then first sentences", function()
    local paths = found "lstm"
    assert.equal(1, at(paths, "nn.LSTM"))
    assert(at(paths, "nn.LSTM") < at(paths, "nn.LSTMCell"))
    assert.equal(paths, found "LSTM")
    paths = found "convolution"
    assert(at(paths, "F.conv2d"), paths) -- conv2d's sentence has the word
    paths = found "sgd"
    assert(at(paths, "optim.SGD") < at(paths, "optim.ASGD")) -- a name that is longer
  end)

  it("lists classes before functions before methods, and one name of each function", function()
    local paths = found "attention"
    assert(at(paths, "nn.MultiheadAttention") < at(paths, "F.scaled_dot_product_attention"))
    paths = found "relu"
    at(paths, "F.relu")
    for _, other in ipairs { "lm.relu", "x:relu", "x:relu_", "ReLU:forward" } do
      assert.is_nil(paths:find(" " .. other .. " ", 1, true), other)
    end
  end)

  it("lists nothing internal", function()
    for name in ("attention conv2d_input check_group hooked softmax_backward next_momentum"):gmatch "%S+" do
      for _, each in ipairs(search.find(name)) do assert.not_equal(name, each.name) end
    end
  end)

  it("of several words wants all of them, in names or first sentences", function()
    local paths = found "batch normalization"
    for path in paths:gmatch "%S+" do
      local text = (path .. " " .. lm.help(path)):lower()
      assert(text:find "batch" and text:find "normalization", path)
    end
    assert.same({}, search.find "no such words anywhere")
    assert.same({}, search.headings "no such words anywhere")
    assert.same({}, search.headings "")
    assert.same({"docs/howto/hangs.md: Stop a hung job"}, search.headings "hung job")
    assert.matches("^pages with 'Hung jobs' [^\n]*:\n  docs/howto/hangs.md: Stop a hung job$", help.text "Hung jobs")
    assert.same({}, search.find "")
  end)

  it("print a page of docs/, and the sections of a page of the reference", function()
    assert.matches("^# ", lm.help "docs/howto/images.md")
    assert.matches("\n## lm%.distributions", lm.help "docs/reference/distributions.md")
    assert.is_nil(lm.help "docs/reference/no-such-page.md")
  end)

  -- Each pattern matches one of the first three answers.
  local ASKED = {
    ["gradient accumulation"] = "howto/optimizer.md", ["top-5"] = "howto/metrics.md: top.5",
    ["two machines"] = "several_machines", ["use my own images"] = "howto/images.md",
    ["web server"] = "howto/serving.md",
    -- with a word that the page lacks
    ["quantize int8 inference"] = "text_generation.md: quantization", ["export onnx model"] = "ONNX",
    ["early stopping"] = "Early stopping", ["freeze layers"] = "transfer_learning", imbalanced = "Rare classes",
    ["class weights"] = "Rare classes", ["mixed precision"] = "mixed_precision.md",
    ["out of memory"] = "[Oo]ut of memory",
    ["resume training"] = "resume training", ["learning rate warmup"] = "warmup", ["multi gpu"] = "several_gpus",
    export = "ONNX file", ["inference server"] = "howto/serving.md", ["custom dataset"] = "Write your own dataset",
    ["data augmentation"] = "augment", ["confusion matrix"] = "confusion_matrix", ["clip gradients"] = "Clip gradients",
    ["k-fold"] = "cross validation", ["label smoothing"] = "cross_entropy", oom = "[Oo]ut of memory",
    ["exploding gradients"] = "gradient clipping", ["batch norm"] = "BatchNorm",
    ["fine-tuning"] = "transfer_learning",
    ["how do I save the best model?"] = "the best", ["embedding categorical columns"] = "Tables with categories",
    ["sentence piece"] = "Tokenizer%f[%W]", ["custom distribution"] = "distributions",
    ["average pooling"] = "nn.AvgPool2d",
    ["inverse transform"] = "distributions.md", ["animated gif"] = "decode_gif", ["gamma function"] = "^  lm.lgamma",
    ["sample from a distribution"] = "^  docs/reference/distributions", ["nucleus sampling"] = "howto/text_generation",
    ["positional encoding"] = "nn.SinusoidalPositions", ["multivariate gaussian"] = "MultivariateNormal",
    ["transposed convolution"] = "nn.ConvTranspose2d", ["matrix inverse"] = "lm.inverse ",
    ["focal loss"] = "howto/dataset",
    ["subword tokenizer"] = "Tokenizer%f[%W]", ["custom scheduler"] = "Write your own schedule",
    ["dot product"] = "lm.dot ",
    ["fsdp shard parameters"] = "howto/sharded.md", fsdp = "howto/sharded.md",
    ["fully sharded"] = "fully_shard", ["tensor parallel"] = "howto/sharded.md",
    ["pipeline parallelism"] = "howto/sharded.md: Pipeline parallel", deepspeed = "howto/sharded.md",
    ["deploy without python"] = "howto/serving.md", ["numerical stability"] = "nan_and_memory.md: .*numerical",
    ["pin memory workers"] = "tutorial/data.md: Load with",
    ["activation checkpointing"] = "compute a part again", ["no grad"] = "lm.no_grad ",
    ["triangular matrix"] = "lm.tril ",
    ["prompt injection"] = "howto/text_generation", ["read a video"] = "images.md", ["stop tokens"] = "text_generation",
    ["max pooling"] = "nn.MaxPool2d",
    ["reproducibility"] = "seed", ["count parameters"] = "count parameters", ["fp16"] = "mixed_precision",
    ["reduce memory usage"] = "nan_and_memory.md", ["time series forecasting"] = "sequences.md",
    ["dropout at inference"] = "tutorial/model.md", ["disable gradient"] = "no_grad",
    ["hook intermediate activations"] = "transfer_learning.md", ["int8 inference"] = "int8",
    ["without gradients"] = "no_grad", ["generate text with a transformer"] = "text_generation",
    ["save gpu memory"] = "nan_and_memory.md", ["get features from a hidden layer"] = "transfer_learning.md",
    ["variable length sequences"] = "sequences.md", ["LR schedule"] = "schedule", ["object detection"] = "boxes",
  }

  it("finds what users of PyTorch ask for, in one of the first three answers", function()
    local wrong = {}
    for query, expected in pairs(ASKED) do
      local answers = {}
      for line in (help.text(query) or ""):gmatch "[^\n]+" do
        if line:find "^  " and #answers < 3 then answers[#answers + 1] = line end
      end
      local text = table.concat(answers, "\n")
      if not text:find(expected) then wrong[#wrong + 1] = ("%s:\n%s"):format(query, text) end
    end
    assert.equal("", table.concat(wrong, "\n"))
  end)

  it("has whole words first, and for short words none else", function()
    assert.not_matches("Upsample", help.text "mp", 1, true)
    assert.not_matches("Upsample", found "amp", 1, true)
    local paths = found "pool"
    assert(at(paths, "nn.MaxPool2d"), paths)
    assert(at(found "sample", "nn.Upsample") > at(found "sample", "F.grid_sample"))
  end)

  it("prints a page", function()
    assert.equal(temp.read "docs/howto/images.md", help.text "docs/howto/images.md")
    assert.is_nil((help.text "docs/../README.md"))
    assert.is_nil((help.text("docs/" .. "none.md")))
  end)

  it("finds the pages of an installed library beside it", function()
    local folder = temp.folder()
    temp.execute(("cp -r lua/luminary %s/ && cp -r docs %s/luminary/docs"):format(folder, folder))
    temp.write(folder .. "/luminary/docs/howto/images.md", "# Images\n\n## A quokka\n\ntext\n")
    local ok, text = temp.run(folder, ([[LUA_PATH="%s/?.lua;%s/?/init.lua;;" luajit -e \
      'print(require("luminary").help "quokka")']]):format(folder, folder))
    temp.remove(folder)
    assert(ok, text)
    assert.matches("docs/howto/images.md: A quokka", text, 1, true)
  end)

  it("finds each of the names that it lists, by that name", function()
    local count, lost = 0, {}
    for i, each in ipairs(search.find "a") do
      if i % 10 == 0 then
        count = count + 1
        if not found(each.name):find(" " .. each.path .. " ", 1, true) then lost[#lost + 1] = each.path end
      end
    end
    assert.equal("", table.concat(lost, " "))
    assert(count > 50, count)
  end)
end)

describe("help of a word #lua", function()
  it("that is a name shows its text, then the other matches", function()
    local text = lm.help "LSTM"
    assert.matches("^nn%.LSTM%(input_size", text)
    assert.matches("\n\nSee also: nn%.LSTMCell[^\n]*$", text)
    assert.equal(text, lm.help "lstm")
    assert.matches("^optim%.SGD%(params", lm.help "sgd")
    assert.matches("\nSee also: [^\n]*optim%.ASGD", lm.help "sgd")
    assert.matches("\nReturns: two values: ", lm.help "topk")
    assert.not_matches("Returns: two", lm.help "exp", 1, true)
    assert.not_matches("See also", lm.help "nn.LSTM", 1, true)
    assert.not_matches("See also", lm.help "where", 1, true) -- names whose texts have the word are not near
    for _, name in ipairs { "AveragedModel", "SWALR" } do
      assert.equal(lm.help("optim." .. name), lm.help("optim.swa_utils." .. name))
    end
    assert.matches("\nArguments:\n", lm.help "optim.swa_utils.AveragedModel")
    assert.matches("^nn%.LSTM%(", lm.help "nn.lstm")
    assert.matches("^lm%.func%.vmap%(", lm.help "vmap")
  end)

  it("never lacks in this version what has that name in another case or module", function()
    local there, wrong, count = {}, {}, 0
    for _, each in ipairs(index.entries()) do
      if not index.is_hidden(each) and not each.path:find ":" then there[each.name:lower()] = true end
    end
    for _, names in pairs(require "luminary.help.pytorch_names") do
      for name, ours in pairs(names) do
        if ours == false and there[name:lower()] then
          count = count + 1
          local text, why = help.text(name)
          if not text then wrong[#wrong + 1] = name .. ": " .. why end
        end
      end
    end
    assert.equal("", table.concat(wrong, "\n"))
    assert(count > 10, count)
  end)

  it("that is no name lists the names and first sentences with it", function()
    local text = lm.help "attention"
    assert.matches("^names and first sentences with 'attention':\n  nn%.MultiheadAttention +%S", text)
    for line in text:gmatch "[^\n]+" do assert(#line <= 82, line) end -- 78 columns, "…" has three bytes
    local nothing, why = lm.help "no such words zz"
    assert.is_nil(nothing)
    assert.equal("no name or text with 'no such words zz'", why)
  end)

  it("that is in no name and first sentence lists the texts with it", function()
    assert.matches("^texts with 'orthonormal':\n.*  lm%.linalg%.qr ", lm.help "orthonormal")
    assert.matches("\n  nn%.ConvTranspose2d ", lm.help "deconvolution")
  end)

  it("that is an option shows what sections say of it", function()
    assert.matches("^betas is an option of .*\noptim%.AdamW, optim%.Adam: decay rates", lm.help "betas")
    assert.matches("\nnn%.Embedding: the index of padding", lm.help "padding_idx")
  end)

  it("that is an option of one function lists the names and pages with it instead of that function's text", function()
    local text = lm.help "loss"
    assert.matches("^loss is an option of nn%.parallel%.Pipeline; %?nn%.parallel%.Pipeline explains it\n", text)
    assert.is_nil(text:find("Example:", 1, true))
    assert.matches("\npages with 'loss'.*\n  F%.l1_loss ", text)
  end)
end)

describe("help of a class #lua", function()
  it("names a public base class, whose methods it has", function()
    for name, methods in pairs {
      SummaryWriter = "Its methods: close, flush, get_logdir, and those of lm.watch.Logger.",
      ["optim.AdamW"] = "Its methods: those of optim.Adam.", ["nn.ReLU"] = "Its methods: those of nn.Module.",
      ["data.Sampler"] = "Its methods: iter, len, load_state_dict, state_dict.",
    } do
      assert.equal(methods, lm.help(name):match "\n(Its methods: [^\n]*)" or "", name)
    end
  end)

  it("says it once, under however many names", function()
    local _, times = lm.help("GradScaler"):gsub("Its methods: ", "")
    assert.equal(1, times)
  end)

  it("without a public name has its methods, which the function that returns it lists", function()
    assert.matches("\nIts result's methods: export_chrome_trace, range, rows, start, step, stop, table.\n",
      lm.help "lm.profile", 1, true)
    assert.matches("\nIts result's methods: rows, table.\n", lm.help "lm.memory_snapshot", 1, true)
    for _, name in ipairs {"prof:export_chrome_trace", "export_chrome_trace", "Profiler:export_chrome_trace"} do
      assert.matches("^Profiler:export_chrome_trace%(path%)\n  Writes a trace", lm.help(name))
    end
    assert.matches("\nProfiler:table(", "\n" .. lm.help "prof:table", 1, true)
  end)
end)

describe("at the prompt #lua", function()
  local folder = temp.during(setup, teardown)

  it("lm.help and help print, and ?words search", function()
    temp.write(folder .. "/input", "lm.help 'nn.Linear'\nhelp(nn.Linear)\nhelp\n?learning rate\n?\n")
    local ok, text = temp.run(folder, ("luminary <%s/input"):format(folder))
    assert(ok, text)
    local _, times = text:gsub("\n?> nn%.Linear%(in_features", "")
    assert.equal(2, times)
    assert.matches("> %?name explains a name", text)
    assert.matches("> pages with 'learning rate' ", text)
    assert.equal(repl.help "?learning rate", help.wrapped(help.text "learning rate"))
  end)

  it("Tab offers the options of a call in its table", function()
    local globals = { lm = lm, nn = lm.nn, optim = lm.optim, F = lm.nn.functional, x = lm.ones(2), p = {}, l = 1 }
    for text, want in pairs {
      ["optim.SGD(p, {l"] = "lr", ["optim.SGD(p, {lr = 0.1, m"] = "maximize momentum", ["x:sum {k"] = "keepdim",
      ["nn.CrossEntropyLoss {re"] = "reduction", ["F.pad(x, {1, 2}, {mode = \"a, {\", v"] = "value",
      ["nn.Conv2d(3, 4, (3), {padding_"] = "padding_mode", ["lm.zeros({2}, {de"] = "device",
      -- no table of options: a list, a value, a string, a comment, other functions
      ["y = {l"] = "l lm local", ["optim.SGD(p, {lr = l"] = "l lm local", ["optim.SGD(p, l"] = "l lm local",
      ["nope(p, {l"] = "l lm local", ["optim.SGD(p, {lr = 1}) l"] = "l lm local",
    } do
      assert.equal(want, table.concat(complete.words(text, globals), " "), text)
    end
    for _, text in ipairs {
      'optim.SGD(p, "{l', "optim.SGD(p, -- {l", "optim.SGD(p, {'\\'{l", "(({", "}})]{l", "f(\"\\",
    } do
      assert.is_table(complete.words(text, globals))
    end
  end)
end)

describe("a misspelt command", function()
  it("is answered with the nearest one", function()
    for arguments, answer in pairs {
      docter = "cannot open docter: No such file or directory; did you mean 'luminary doctor'?\n",
      ["--hepl"] = "unrecognized argument '--hepl'; did you mean '--help'?\n",
      zebra = "cannot open zebra: No such file or directory; luminary --help lists commands\n",
      ["docter.lua"] = "cannot open docter.lua: No such file or directory\n",
    } do
      local folder = temp.folder()
      finally(function() temp.remove(folder) end)
      local ok, text = temp.run(folder, "luminary " .. arguments)
      assert.is_false(ok)
      assert.matches("luminary: " .. answer, text, 1, true)
    end
  end)
end)
