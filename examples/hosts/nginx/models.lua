-- The models of the server. Run by luajit with `--make FOLDER`, it writes untrained ones in place of yours: weights of
-- an image classifier, and the vocabulary and weights of a text model.
local lm = require "luminary"
local nn = lm.nn
local models = {}

--- Returns a network of images [N, 3, 32, 32] with 10 classes.
function models.classifier()
  return nn.Sequential(
    nn.Conv2d(3, 16, 3, {stride = 2, padding = 1}), nn.ReLU(), nn.Conv2d(16, 32, 3, {stride = 2, padding = 1}),
    nn.ReLU(), nn.Flatten(), nn.Linear(32 * 8 * 8, 10))
end

--- Returns a text model for a vocabulary of n words.
function models.writer(n)
  return lm.models.gpt2 {vocab_size = n, n_positions = 128, n_embd = 64, n_layer = 2, n_head = 2}
end

--- Returns network with the weights of a file, mapped, so that nginx's workers share them.
function models.loaded(network, path)
  network:load_state_dict(lm.load(path, {mmap = true}), {assign = true})
  return network:eval()
end

if arg and arg[1] == "--make" then
  local folder = arg[2]
  lm.manual_seed(0)
  local words = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
  for word in ("once upon a time there was the king queen who had in and of"):gmatch "%a+" do
    words[#words + 1] = word
  end
  lm.paths.write(folder .. "/vocab.txt", table.concat(words, "\n") .. "\n")
  lm.save(folder .. "/classifier.safetensors", models.classifier():state_dict())
  lm.save(folder .. "/writer.safetensors", models.writer(#words):state_dict())
end

return models
