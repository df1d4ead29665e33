-- A GPT trained from nothing on a text, character by character, in the shape of Karpathy's nanoGPT: AdamW that decays
-- matrices only, warm-up and cosine, clipped gradients, checkpoints to continue from.
--
--   luajit examples/gpt.lua                                a text of its own making (sentences.lua)
--   luajit examples/gpt.lua --text shakespeare.txt --checkpoint gpt.safetensors --bfloat16
--   luajit examples/gpt.lua --resume gpt.safetensors --steps 4000
--   luajit examples/gpt.lua --resume gpt.safetensors --steps 0 --prompt "the old dog" --sample 500
local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local USAGE = [[
usage: luajit gpt.lua [options]

  --text FILE         what to learn                        (20,000 sentences of a small grammar)
  --layers N          blocks                               (4)
  --heads N           in each                              (4)
  --width N           of the embeddings                    (128)
  --length N          characters it sees at once           (64)
  --dropout X         (0)
  --steps N           steps of the optimizer, in all       (1000)
  --batch-size N      stretches of text a pass             (16)
  --accumulate N      passes a step                        (1)
  --lr X              the highest learning rate            (0.001)
  --min-lr X          the last one                         (0.0001)
  --warmup N          steps until the highest              (100)
  --weight-decay X    (0.1)
  --clip X            norm of the gradients; 0: any        (1)
  --bfloat16          under autocast
  --eval-every N      steps                                (250)
  --curve FILE        the learning curve, .svg or .png     (none is written)
  --checkpoint FILE   written at each evaluation
  --resume FILE       resume from a checkpoint: its model and characters, its optimizer, its random numbers
  --prompt TEXT       what the sample begins with          (the)
  --sample N          characters to write at the end       (300)
  --temperature X     (0.8)
  --top-k N           only among the likeliest; 0: all     (0)
  --seed N            (1)
  --device DEVICE     such as cpu or cuda:0                (a GPU if there is one)
  --selftest          a few seconds; fails if it did not learn
]]

local options, given, refuse, files = require "luminary.cli.script_options"(USAGE, {
  steps = {"natural"}, warmup = {"natural"}, sample = {"natural"}, ["top-k"] = {"natural"},
}, {layers = 2, heads = 2, width = 64, length = 32, steps = 200, lr = 5e-3, warmup = 20, sample = 40})
local device = options.device
if options.checkpoint then files.try("checkpoint", options.checkpoint) end
if options.curve then -- to know now, and not after the training, that it can be drawn
  files.attempt("curve", lm.watch.plot.curves, {0}, {path = options.curve})
end
if options.dropout > 1 then refuse("--dropout: at most 1, got %g", options.dropout) end

-- ---- data: the text as numbers of its characters

local sentences = files.beside "sentences.lua"
local text, entropy = sentences.text(options.text, options.selftest and 2000 or 20000, refuse)

local saved
if options.resume then
  local readable, problem = io.open(options.resume)
  if not readable then refuse("--resume: %s", problem) end
  readable:close()
  saved = files.attempt("resume", lm.load, options.resume)
  if not (saved.config and saved.alphabet and saved.schedule and saved.opt) then
    refuse("--resume: %s is no checkpoint of this program", options.resume)
  end
  local config, schedule, groups = saved.config, saved.schedule, saved.opt.param_groups
  for name, value in pairs {
    layers = config.n_layer, heads = config.n_head, width = config.n_embd, length = config.n_positions,
    dropout = config.embd_pdrop, lr = schedule.base_lrs[1], ["weight-decay"] = groups[1].weight_decay,
  } do
    if given[name] and options[name] ~= value then refuse("--%s: the checkpoint's is %g", name, value) end
    options[name] = value
  end
end
if options.width % options.heads ~= 0 then
  refuse("--heads: --width (%d) must be divisible by --heads (%d)", options.width, options.heads)
end
local bytes = lm.frombuffer(text, {dtype = "uint8"})
local fingerprint = (bytes:long() * lm.arange(#text):remainder(65521)):sum():item() -- identifies the text
if saved and (saved.fingerprint or fingerprint) ~= fingerprint and options.steps > saved.step then
  io.stderr:write "gpt.lua: warning: the text is not the one of the checkpoint\n"
end
local alphabet = saved and saved.alphabet or bytes:unique()
local chars, id_of = {}, {}
for i, byte in ipairs(alphabet:totable()) do
  chars[i] = string.char(byte)
  id_of[chars[i]] = i
end
local function encode(option, s)
  local ids = {}
  for i = 1, #s do
    ids[i] = id_of[s:sub(i, i)]
    if not ids[i] then
      local first = i -- byte of a character of UTF-8, whose bytes are learned one by one
      while first > 1 and s:find("^[\128-\191]", first) do first = first - 1 end
      refuse("--%s: the character '%s' is not in the vocabulary", option, s:match("^.[\128-\191]*", first))
    end
  end
  return lm.tensor(ids, {dtype = "int64"})
end

-- Every stretch of `length` characters and the one after, without a copy: [positions, length + 1].
local ids = encode("text", text)
if options.prompt == "" then refuse "--prompt must not be empty" end
local written = encode("prompt", options.prompt) -- at the end
local split, length = math.floor(0.9 * #ids), options.length
if #ids - split <= length then refuse("a text of %d characters is too short for --length %d", #text, length) end
local train = ids:narrow(1, 1, split):unfold(1, length + 1, 1)
local valid = ids:narrow(1, split + 1, #ids - split):unfold(1, length + 1, length)

local function inputs_and_targets(stretches)
  return stretches:narrow(2, 1, length):to(device), stretches:narrow(2, 2, length):to(device)
end

-- ---- model, optimizer, schedule

lm.manual_seed(options.seed)
local config = saved and saved.config or {
  vocab_size = #chars, n_positions = length, n_embd = options.width, n_layer = options.layers, n_head = options.heads,
  embd_pdrop = options.dropout, attn_pdrop = options.dropout, resid_pdrop = options.dropout,
}
local net = lm.models.gpt2(config):to(device)

local matrices, rest = {}, {}
for _, p in ipairs(net:parameters()) do table.insert(p.ndim >= 2 and matrices or rest, p) end
local opt = optim.AdamW({
  {params = matrices, weight_decay = options["weight-decay"]},
  {params = rest, weight_decay = 0},
}, {lr = options.lr, betas = {0.9, 0.99}})

local min_factor = options["min-lr"] / options.lr
local schedule = optim.lr_scheduler.LambdaLR(opt, function(step) -- from 0
  if step < options.warmup then return (step + 1) / options.warmup end
  local done = math.min(1, (step - options.warmup) / math.max(1, options.steps - options.warmup))
  return min_factor + (1 - min_factor) * 0.5 * (1 + math.cos(math.pi * done))
end)

local step = 0
if saved then
  net:load_state_dict(saved.net)
  opt:load_state_dict(saved.opt)
  schedule:load_state_dict(saved.schedule)
  lm.set_rng_state(saved.random)
  step = saved.step
end

local function save()
  lm.save(options.checkpoint, {
    net = net:state_dict(), opt = opt:state_dict(), schedule = schedule:state_dict(), random = lm.get_rng_state(),
    step = step, config = config, alphabet = alphabet, fingerprint = fingerprint,
  })
end

local function loss_of(x, y)
  return lm.autocast({enabled = options.bfloat16, dtype = "bfloat16"}, function()
    return F.cross_entropy(net(x):flatten(1, 2), y:flatten())
  end)
end

local function validate()
  net:eval()
  local sum, n = 0, 0
  lm.no_grad(function()
    for _, part in ipairs(valid:split(64)) do
      sum, n = sum + loss_of(inputs_and_targets(part)):item() * #part, n + #part
    end
  end)
  net:train()
  return sum / n
end

-- ---- training

local began, reached = lm.time(), nil
local losses, validated = {x = {}, y = {}}, {x = {}, y = {}}
local function add(curve, value) curve.x[#curve.x + 1], curve.y[#curve.y + 1] = step, value end
while step < options.steps do
  local loss = 0
  opt:zero_grad()
  for _ = 1, options.accumulate do
    local starts = lm.randint(1, #train + 1, {options["batch-size"]})
    local part = loss_of(inputs_and_targets(train:index_select(1, starts))) / options.accumulate
    part:backward()
    loss = loss + part:item()
  end
  if options.clip > 0 then nn.utils.clip_grad_norm_(net:parameters(), options.clip) end
  opt:step()
  schedule:step()
  step = step + 1
  add(losses, loss)
  if step % options["eval-every"] == 0 or step == options.steps then
    reached = validate()
    add(validated, reached)
    print(("step %d  loss %.4f  on text not seen %.4f  %.1f s"):format(step, loss, reached, lm.time() - began))
    if options.checkpoint then save() end
  end
end
if options.curve and #losses.x > 0 then
  lm.watch.plot.curves({losses.y, validated.y}, {
    x = {losses.x, validated.x}, names = {"training", "text not seen"}, xlabel = "step", ylabel = "nats a character",
    path = options.curve,
  })
end
if entropy then print(("the text itself has %.4f nats a character"):format(entropy)) end

-- ---- what it writes by itself: as many characters as it has positions for, again and again from the last half of them

net:eval()
while #written < #options.prompt + options.sample do
  local prompt = written:narrow(1, math.max(1, #written - length / 2 + 1), math.min(#written, length / 2))
  local longer = net:generate(prompt:view(1, -1):to(device), {
    max_new_tokens = math.min(length - #prompt, #options.prompt + options.sample - #written),
    temperature = options.temperature, top_k = options["top-k"],
  })
  written = lm.cat {written, longer:cpu():view(-1):narrow(1, #prompt + 1, longer:size(2) - #prompt)}
end
local letters = written:totable()
for i, id in ipairs(letters) do letters[i] = chars[id] end
print(table.concat(letters))

-- Characters by the one before alone are 1.60 nats.
if options.selftest then assert(reached < 1.3, "it did not learn: a loss below 1.3 was expected") end
