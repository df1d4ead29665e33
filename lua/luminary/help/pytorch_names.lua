--- Maps PyTorch's names that are different here or absent, for errors about unknown names: those of pytorch_names.md
--- (see names_page.lua), and those that follow from names here.
local other = require "luminary.help.names_page"()
local python = other.Python
other.Python = nil

-- Names of torchmetrics for one task are options here.
for class, f in pairs {
  Accuracy = "accuracy", Precision = "precision", Recall = "recall", F1Score = "f1_score", FBetaScore = "fbeta_score",
  ConfusionMatrix = "confusion_matrix", JaccardIndex = "jaccard_index", AUROC = "auroc",
} do
  for _, task in ipairs {"Binary", "Multiclass", "Multilabel"} do
    local small = task:lower()
    other.metrics[task .. class] = ("it is %s(%q, …) here"):format(class, small)
    other["metrics.functional"][small .. "_" .. f] = ("it is %s(preds, target, %q, …) here"):format(f, small)
  end
end

-- Names for queries of the constructors of networks. Those of a folder of Hugging Face's have its reader in the page.
for name in pairs(require "luminary.models") do
  local of_folder = ("gpt2 llama mistral qwen2 qwen3 qwen3_moe olmoe smollm3 gemma gemma2 gemma3 phi3 bert roberta "
    .. "distilbert vit deit dinov2 unet2d ")
    :find("%f[%w]" .. name .. " ")
  local reads = other.models.GPT2Model:gsub("^lm%.models%.gpt2", "lm.models." .. name)
  local loading = of_folder and reads or other.options.pretrained
  other["models." .. name] = {
    from_pretrained = loading, from_single_file = loading, from_config = other.models.GPT2Config,
  }
end

for name, words in pairs(python) do
  local is_sentence = words:find " is " or words:find " are " or words:find " has "
  if other.luminary[name] == nil then other.luminary[name] = (is_sentence and "" or "write ") .. words end
end

-- Removes replacements for names that exist here by now.
local core, lm = require "luminary.core", require "luminary"
for _, names in ipairs {core.ops, core.methods, lm, getmetatable(lm).lazy()} do
  for name in pairs(names) do
    if names ~= core.methods then other.luminary[name] = nil end
    if rawget(core.methods, name) then other.tensors[name] = nil end
  end
end
-- Functions of our other libraries: a query of lm for one names its library.
for library, names in pairs {
  ["nn.functional"] = "interpolate gumbel_softmax grid_sample affine_grid normalize cross_entropy linear one_hot",
  data = "random_split DataLoader Dataset TensorDataset Subset",
  nn = "Module Linear Sequential Parameter",
} do
  for name in names:gmatch "%S+" do
    local lacking = other.luminary[name] == nil and rawget(core.ops, name) == nil
    if lacking then other.luminary[name] = library .. "." .. name end
  end
end

return other
