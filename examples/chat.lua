-- A conversation with a model in the shape of LLaMA (Llama 2 and 3, TinyLlama, SmolLM, …), of a folder as Hugging Face
-- has them: config.json, weights, tokenizer.json. Answers are written as they come. Nothing is downloaded.
--
--   luajit examples/chat.lua --model SmolLM2-135M-Instruct
--   luajit examples/chat.lua --model Llama-3.2-1B-Instruct --int8 --system "You answer in verse."
--   echo "Why is the sky blue?" | luajit examples/chat.lua --model TinyLlama --dtype bfloat16 --temperature 0
local lm = require "luminary"
local F, optim = lm.nn.functional, lm.optim

local USAGE = [[
usage: luajit chat.lua --model FOLDER [options]      a line of yours, an answer; an empty line ends it

  --model FOLDER        with config.json, weights and tokenizer.json
  --format NAME         how turns are written: chatml, llama3, zephyr, llama2 or plain   (as the folder says)
  --system TEXT         text that comes before the conversation
  --dtype NAME          float32, bfloat16, float16           (float32)
  --int8                linear layers in int8
  --max-tokens N        of an answer                         (256)
  --temperature X       0: always the likeliest              (as generation_config.json in the folder says, else 0.7)
  --top-p X                                                  (the same, else 0.9)
  --top-k N             0: all                               (the same, else 0)
  --repetition-penalty X                                     (the same, else 1)
  --seed N              (1)
  --device DEVICE       such as cpu or cuda:0                (a GPU if there is one)
  --selftest            some seconds: teaches a small model to talk, and fails unless it answers
]]

local options, _, refuse, files = require "luminary.cli.script_options"(USAGE, {
  ["top-k"] = {"natural"},
}, {temperature = 0, ["max-tokens"] = 40})

-- ---- how a conversation is written: each turn, what an answer begins with, and what ends it

local formats = {
  chatml = {
    needs = "<|im_start|>", turn = "<|im_start|>%s\n%s<|im_end|>\n", answer = "<|im_start|>assistant\n",
    ends = {"<|im_end|>"},
  },
  llama3 = {
    needs = "<|start_header_id|>", first = "<|begin_of_text|>",
    turn = "<|start_header_id|>%s<|end_header_id|>\n\n%s<|eot_id|>",
    answer = "<|start_header_id|>assistant<|end_header_id|>\n\n", ends = {"<|eot_id|>", "<|end_of_text|>"},
  },
  zephyr = { -- TinyLlama's
    needs = "<|user|>", turn = "<|%s|>\n%s</s>\n", answer = "<|assistant|>\n", ends = {"</s>"},
  },
  llama2 = {
    needs = "[INST]", first = "<s>", ends = {"</s>"}, answer = "", system = "<<SYS>>\n%s\n<</SYS>>\n\n",
    turns = {user = "[INST] %s [/INST]", assistant = " %s </s><s>"},
  },
  plain = {
    turns = {system = "%s\n", user = "User: %s\n", assistant = "Assistant: %s\n"}, answer = "Assistant:",
    stop = "\nUser:", ends = {"</s>", "<|endoftext|>"},
  },
}

local function format_for(tokenizer, name)
  if name and not formats[name] then
    refuse("--format: '%s' is none of chatml, llama3, zephyr, llama2 and plain", name)
  elseif name then
    return formats[name]
  end
  for _, each in ipairs {"chatml", "llama3", "zephyr", "llama2"} do
    local needs = formats[each].needs -- in the folder's own template, or among the tokens
    local from_model = (tokenizer.chat_template or ""):find(needs, 1, true)
    if from_model or tokenizer:token_to_id(needs) then return formats[each] end
  end
  return formats.plain
end

local function written(format, turns)
  local parts, before = {format.first or ""}, ""
  for _, turn in ipairs(turns) do
    if turn.role == "system" and format.system then -- the system's text stands within the user's first one
      before = format.system:format(turn.text)
    elseif format.turn then
      parts[#parts + 1] = format.turn:format(turn.role, turn.text)
    else
      parts[#parts + 1], before = format.turns[turn.role]:format(before .. turn.text), ""
    end
  end
  return table.concat(parts) .. format.answer
end

-- Returns a function that calls write(text), except for `stop` and what follows it; text that may begin it waits.
local function until_stop(stop, write)
  local waiting, over = "", false
  return function(text)
    if over then return false end
    waiting = waiting .. text
    local from = stop and waiting:find(stop, 1, true)
    if from then
      write(waiting:sub(1, from - 1))
      waiting, over = "", true
      return false
    end
    local keep = 0
    for n = 1, stop and math.min(#stop, #waiting) or 0 do
      if waiting:sub(-n) == stop:sub(1, n) then keep = n end
    end
    write(waiting:sub(1, #waiting - keep))
    waiting = waiting:sub(#waiting - keep + 1)
  end, function() write(waiting) end
end

-- ---- a conversation

-- Returns options to add to a folder's generation_config.json, whose own options win.
local function defaults_beside(from_model)
  for _, name in ipairs {"do_sample", "temperature", "top_p", "top_k", "min_p"} do
    if from_model and from_model[name] ~= nil then return {} end
  end
  return {temperature = 0.7, top_p = 0.9}
end

local function conversation(folder, o)
  local tokenizer = files.attempt("model", lm.text.Tokenizer, folder)
  local format = format_for(tokenizer, o.format)
  local net, report = files.attempt("model", lm.models.llama, {
    weights = folder, dtype = o.dtype, device = o.device,
  })
  if tostring(report) ~= "<all keys matched>" and not o.selftest then io.stderr:write(tostring(report), "\n") end
  if o.int8 then lm.quantize(net) end
  local ends, turns = {}, {}
  for _, token in ipairs(format.ends) do ends[#ends + 1] = tokenizer:token_to_id(token) end
  if #ends == 0 then ends = nil end -- generation then ends at the tokens of config.json
  local usual = defaults_beside(net.generation_config)
  if o.system then turns[1] = {role = "system", text = o.system} end

  -- Answers a text; the oldest turns are forgotten when there is no more room.
  return function(text, write)
    turns[#turns + 1] = {role = "user", text = text}
    local room, ids = math.min(net.config.max_positions, net.config.max_position_embeddings) - o["max-tokens"]
    while true do
      ids = tokenizer(written(format, turns), {add_special_tokens = false}).input_ids
      local first = o.system and 2 or 1
      if ids:size(2) <= room then break end
      if #turns <= first then refuse("what was said takes %d tokens; there is room for %d", ids:size(2), room) end
      table.remove(turns, first)
    end
    local said = {}
    local on_text, rest = until_stop(format.stop, function(part)
      said[#said + 1] = part
      write(part)
    end)
    net:generate(ids:to(o.device), {
      max_new_tokens = o["max-tokens"], temperature = o.temperature or usual.temperature,
      top_p = o["top-p"] or usual.top_p, top_k = o["top-k"], repetition_penalty = o["repetition-penalty"],
      num_beams = 1, num_return_sequences = 1, eos_token_id = ends, stop_strings = format.stop, tokenizer = tokenizer,
      on_text = on_text,
    })
    rest()
    local answer = table.concat(said):gsub("^%s+", ""):gsub("%s+$", "")
    turns[#turns + 1] = {role = "assistant", text = answer}
    return answer
  end
end

-- ---- the selftest's model: bytes for tokens, and some answers that it learns by heart

local lessons = {
  {"hello", "Hello, who are you?"}, {"a robot", "Nice to meet you, robot."}, {"what is 2 + 2?", "4"}, {"é?", "é, è, ê"},
}

local function teach(folder)
  local vocabulary, added = {}, {}
  for byte = 0, 255 do vocabulary[#vocabulary + 1] = ('"<0x%02X>": %d'):format(byte, byte) end
  for i, token in ipairs {"<|im_start|>", "<|im_end|>"} do
    vocabulary[#vocabulary + 1] = ('"%s": %d'):format(token, 255 + i)
    added[i] = ([[{"id": %d, "content": "%s", "single_word": false, "lstrip": false, "rstrip": false,
      "normalized": false, "special": true}]]):format(255 + i, token)
  end
  lm.paths.write(folder .. "/tokenizer.json", ([[{"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [%s], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "vocab": {%s}, "merges": []}}]]):format(
    table.concat(added, ", "), table.concat(vocabulary, ", ")))
  lm.paths.write(folder .. "/config.json", [[{"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 258, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 257}]])

  local tokenizer, texts, turns = lm.text.Tokenizer(folder), {}, {}
  for i, lesson in ipairs(lessons) do -- lessons one by one, and all in a row
    texts[i] = written(formats.chatml, {{role = "user", text = lesson[1]}}) .. lesson[2] .. "<|im_end|>"
    turns[2 * i - 1], turns[2 * i] = {role = "user", text = lesson[1]}, {role = "assistant", text = lesson[2]}
  end
  texts[#texts + 1] = written(formats.chatml, turns)
  local batch = tokenizer(texts, {add_special_tokens = false, padding = true, pad_token_id = 1})
  local ids, mask = batch.input_ids:to(options.device), batch.attention_mask:to(options.device)
  local net = lm.models.llama {
    vocab_size = 258, hidden_size = 48, intermediate_size = 96, num_hidden_layers = 2, num_attention_heads = 4,
    num_key_value_heads = 2, max_position_embeddings = 256, device = options.device,
  }
  local opt, length = optim.AdamW(net:parameters(), {lr = 6e-3, betas = {0.9, 0.95}}), ids:size(2)
  local targets = ids:narrow(2, 2, length - 1):masked_fill(mask:narrow(2, 2, length - 1):eq(0), -100)
  for _ = 1, 150 do
    local loss = F.cross_entropy(net(ids:narrow(2, 1, length - 1)):flatten(1, 2), targets:flatten(), {
      ignore_index = -100,
    })
    opt:zero_grad()
    loss:backward()
    opt:step()
  end
  lm.save(folder .. "/model.safetensors", net:cpu():state_dict())
end

local function selftest()
  local folder = os.tmpname()
  os.remove(folder)
  lm.paths.mkdir(folder)
  local ok, problem = pcall(function()
    teach(folder)
    for _, how in ipairs {{"float32"}, {"bfloat16"}, {"float32", true}} do
      local o = setmetatable({dtype = how[1], int8 = how[2]}, {__index = options})
      local answer = conversation(folder, o)
      for _, lesson in ipairs(lessons) do
        local pieces = {}
        local got = answer(lesson[1], function(part) pieces[#pieces + 1] = part end)
        print(("%s%s: %s -> %s"):format(how[1], how[2] and ", int8" or "", lesson[1], got))
        assert(got == lesson[2] and table.concat(pieces) == got, "it did not learn to answer")
      end
    end
  end)
  lm.paths.rmall(folder, "yes")
  if not ok then error(problem, 0) end
end

-- ---- the program

lm.manual_seed(options.seed)
if options.selftest then
  selftest()
  os.exit(0, true)
end
if not options.model then refuse "--model FOLDER is required" end
if not lm.paths.dirp(options.model) then refuse("--model: '%s' is no folder", options.model) end
local answer = conversation(options.model, options)
io.stdout:setvbuf "no"
while true do
  io.write "> "
  local line = io.read "*l"
  if not line then io.write "\n" end
  if not line or line == "" then break end
  answer(line, io.write)
  io.write "\n"
end
