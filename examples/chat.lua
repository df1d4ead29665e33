-- Teaches a small model in the shape of LLaMA to talk: it learns some conversations by heart, in the form of a chat
-- template. The folder that it is saved to is as those of Hugging Face, for lm.chat and `luminary chat FOLDER`.
--
--   luajit examples/chat.lua                       learns, then answers what is typed
--   luajit examples/chat.lua --lessons my.txt --steps 400 --save model
--   luminary chat model
local lm = require "luminary"
local json_encode = require "luminary.base.json_encode"
local F, optim = lm.nn.functional, lm.optim

local USAGE = [[
usage: luajit chat.lua [options]

Learns answers, then answers lines of standard input; an empty line ends it.

  --lessons FILE   messages and answers, a line each in turn                 (some about robots)
  --save FOLDER    keep the model there; luminary chat FOLDER talks with it, too
  --steps N        of training                                              (150)
  --lr X           learning rate                                            (0.006)
  --seed N         of the random numbers                                    (1)
  --device DEVICE  such as cpu or cuda:0                                    (a GPU if there is one)
  --selftest       2 seconds: fails unless it answers as it learned
]]

local options, _, refuse, files = require "luminary.cli.script_options"(USAGE, {}, {})

local function read_lessons(path)
  local file, why = io.open(path)
  local text, lessons = nil, {}
  if file then text, why = file:read "*a" end
  for message, answer in (text or refuse("--lessons: %s", why)):gmatch "([^\r\n]+)\r?\n([^\r\n]+)" do
    lessons[#lessons + 1] = {message, answer}
  end
  return lessons[1] and lessons or refuse("--lessons: '%s' has no message and answer", path)
end

local lessons = options.lessons and read_lessons(options.lessons) or {
  {"hello", "Hello, who are you?"}, {"a robot", "Nice to meet you, robot."}, {"what is 2 + 2?", "4"}, {"é?", "é, è, ê"},
}

-- ---- the model: one token for each byte, and two around each turn

local TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
  .. "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

local config = {
  model_type = "llama", vocab_size = 258, hidden_size = 48, intermediate_size = 96, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 256, eos_token_id = 257, -- from 0
}

local function new_tokenizer(folder)
  local vocabulary, added = {}, {}
  for byte = 0, 255 do vocabulary[#vocabulary + 1] = ('"<0x%02X>": %d'):format(byte, byte) end
  for i, token in ipairs {"<|im_start|>", "<|im_end|>"} do
    vocabulary[#vocabulary + 1] = ('"%s": %d'):format(token, 255 + i)
    added[i] = ('{"id": %d, "content": "%s", "special": true}'):format(255 + i, token)
  end
  lm.paths.write(folder .. "/tokenizer.json", ([[{"added_tokens": [%s],
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "byte_fallback": true, "vocab": {%s}, "merges": []}}]]):format(table.concat(added, ", "),
      table.concat(vocabulary, ", ")))
  lm.paths.write(folder .. "/tokenizer_config.json", ('{"chat_template": "%s"}'):format((TEMPLATE:gsub("\n", "\\n"))))
  return lm.text.Tokenizer(folder)
end

-- Returns ids [N, L] and the ids to predict, -100 for padding: each lesson alone, and all in a row.
local function new_batch(tokenizer)
  local texts, all = {}, {}
  local function add(messages)
    local text = tokenizer:apply_chat_template(messages, {tokenize = false})
    texts[#texts + 1] = text:sub(1, -2) -- ends with <|im_end|>
  end
  for _, lesson in ipairs(lessons) do
    local turn = {{role = "user", content = lesson[1]}, {role = "assistant", content = lesson[2]}}
    add(turn)
    all[#all + 1], all[#all + 2] = turn[1], turn[2]
  end
  add(all)
  local batch = tokenizer(texts, {
    add_special_tokens = false, padding = true, pad_token_id = 1, truncation = true,
    max_length = config.max_position_embeddings,
  })
  local ids, n = batch.input_ids, batch.input_ids:size(2) - 1
  local targets = ids:narrow(2, 2, n):masked_fill(batch.attention_mask:narrow(2, 2, n):eq(0), -100)
  return ids:narrow(2, 1, n):to(options.device), targets:flatten():to(options.device)
end

-- Trains a model and writes its folder.
local function teach(folder)
  files.attempt("save", lm.paths.write, folder .. "/config.json", json_encode(config))
  local tokenizer, o = new_tokenizer(folder), {device = options.device}
  for name, value in pairs(config) do
    if name ~= "eos_token_id" and name ~= "model_type" then o[name] = value end
  end
  local net, ids, targets = lm.models.llama(o), new_batch(tokenizer)
  local opt = optim.AdamW(net:parameters(), {lr = options.lr, betas = {0.9, 0.95}})
  for step = 1, options.steps do
    local loss = F.cross_entropy(net(ids):flatten(1, 2), targets, {ignore_index = -100})
    opt:zero_grad()
    loss:backward()
    opt:step()
    if step % 50 == 0 then io.stderr:write(("step %d: loss %.3f\n"):format(step, loss:item())) end
  end
  lm.save(folder .. "/model.safetensors", net:cpu():state_dict())
end

-- ---- the program

local function selftest(folder)
  for _, how in ipairs {{"float32"}, {"bfloat16"}, {"float32", true}} do
    local chat = lm.chat(folder, {dtype = how[1], device = options.device, max_new_tokens = 40})
    if how[2] then lm.quantize(chat.net) end
    for _, lesson in ipairs(lessons) do
      local pieces = {}
      local answer = chat:say(lesson[1], {on_text = function(piece) pieces[#pieces + 1] = piece end})
      print(("%s%s: %s -> %s"):format(how[1], how[2] and ", int8" or "", lesson[1], answer))
      assert(answer == lesson[2] and table.concat(pieces) == answer, "it did not learn to answer")
    end
  end
end

local function talk(folder)
  local chat = lm.chat(folder, {device = options.device})
  while true do
    io.write "> "
    local line = io.read "*l"
    if not line or line == "" then break end
    chat:say(line, {on_text = io.write})
    io.write "\n"
  end
end

lm.manual_seed(options.seed)
local folder = options.save
if not folder then
  folder = os.tmpname()
  os.remove(folder)
end
lm.paths.mkdir(folder)
local ok, problem = pcall(function()
  teach(folder)
  if options.selftest then selftest(folder) else talk(folder) end
end)
if not options.save then lm.paths.rmall(folder, "yes") end
if not ok then error(problem, 0) end
