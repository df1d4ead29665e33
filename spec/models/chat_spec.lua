-- Tests lm.chat: conversations with a model in the shape of LLaMA with random weights, from a net and from a folder.
local json_encode = require "luminary.base.json_encode"
local lm = require "luminary"
local small = require "spec.support.small_chat"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)
local TEMPLATE, make_net = small.TEMPLATE, small.net
local tokenizer

setup(function()
  temp.execute("mkdir " .. folder .. "/model")
  small.write(folder .. "/model")
  tokenizer = lm.text.Tokenizer(folder .. "/model")
end)

describe("lm.chat", function()
  it("talks, streams and remembers", function()
    local chat = lm.chat(make_net(), {tokenizer = tokenizer, system = "Be.", max_new_tokens = 8})
    local pieces = {}
    local answer, calls = chat:say("Hé?", {on_text = function(piece) pieces[#pieces + 1] = piece end})
    assert.equal(answer, table.concat(pieces))
    assert.is_nil(calls)
    assert.same({{role = "system", content = "Be."}, {role = "user", content = "Hé?"},
      {role = "assistant", content = answer}}, chat.messages)
    local net = chat.net
    local ids = tokenizer("<|im_start|>system Be.<|im_end|><|im_start|>user Hé?<|im_end|><|im_start|>").input_ids
    local out = net:generate(ids, {max_new_tokens = 8, eos_token_id = 258})
    assert.equal(tokenizer:decode(out[1]:narrow(1, ids.shape[2] + 1, out.shape[2] - ids.shape[2])), answer)
    assert.equal(chat, chat:reset())
    assert.same({{role = "system", content = "Be."}}, chat.messages)
  end)

  it("ends an answer at the template's end of a turn, and takes constraints", function()
    local chat = lm.chat(make_net(), {tokenizer = tokenizer, constraint = {regex = "yes|no"}, max_new_tokens = 20})
    local answer = chat:say "Well?"
    assert.is_true(answer == "yes" or answer == "no")
    chat.tokenizer.chat_template = TEMPLATE:gsub("<|im_end|>", "<|eot_id|>") -- not in the vocabulary: a string
    local pieces = {}
    answer = chat:say("Again?", {constraint = {regex = "abc<<\\|eot_id\\|>def"}, on_text = function(piece)
      pieces[#pieces + 1] = piece
    end})
    assert.equal("abc<", answer)
    assert.equal("abc<", table.concat(pieces))
    answer = chat:say("And?", {constraint = {regex = "abc"}, stop_strings = "cd", on_text = function(piece)
      pieces[#pieces + 1] = piece
    end})
    assert.equal("abc<" .. answer, table.concat(pieces))
    local _ = chat:say("Stop?", {constraint = {regex = "(ab)+"}, on_text = function() return false end})
    assert.is_true(#chat.messages[#chat.messages].content < 4)
    chat.tokenizer.chat_template = TEMPLATE
  end)

  it("drops the oldest turns", function()
    local chat = lm.chat(make_net(100), {tokenizer = tokenizer, system = "S", max_new_tokens = 4,
      constraint = {regex = "a{4}"}})
    for i = 1, 6 do chat:say("turn " .. i) end
    assert.equal("S", chat.messages[1].content)
    assert.equal("user", chat.messages[2].role)
    assert.is_true(#chat.messages < 13)
    assert.equal("turn 6", chat.messages[#chat.messages - 1].content)
    local ok, why = pcall(chat.say, chat, ("x"):rep(200))
    assert.is_false(ok)
    assert.is_truthy(why:find("more than the model's 100 positions", 1, true), why)
  end)

  it("computes only the tokens that earlier answers did not", function()
    for _, dtype in ipairs {"float32", "bfloat16"} do
      local count = 0
      local chat = lm.chat(make_net():to(dtype), {tokenizer = tokenizer, max_new_tokens = 3, eos_token_id = false,
        constraint = {regex = "[a-z]+"}})
      chat.net:register_forward_pre_hook(function(_, arguments) count = count + arguments[1]:numel() end)
      local function computed(message)
        count = 0
        return chat:say(message), count
      end
      local message = ("Hello there. "):rep(3)
      local _, first = computed(message)
      assert.equal(#"?user ??" + #message + 2, first) -- the last token of an answer is not computed
      local answer, second = computed "And?"
      assert.near(#"assistant abc??user And???" + 2, second, 1) -- one less if the answer begins with "a"
      local messages = {unpack(chat.messages, 1, 3)}
      chat.past = {}
      chat.messages = messages
      assert.equal(answer, (chat:say()))
      chat:reset() -- another beginning
      _, first = computed "hello there."
      assert.equal(#"hello there.??" + 2, first)
      _, first = computed(("x"):rep(90)) -- more than the room of the cache
      assert.is_true(first > 90)
    end
  end)

  it("uses the positions of `context`", function()
    local chat = lm.chat(make_net(), {tokenizer = tokenizer, context = 40, constraint = {regex = "a{4}"}})
    assert.equal(20, chat.options.max_new_tokens)
    chat:say("turn 1", {max_new_tokens = 4})
    chat:say("turn 2", {max_new_tokens = 4})
    assert.equal(2, #chat.messages)
    assert.equal("turn 2", chat.messages[1].content)
  end)

  it("answers on a worker thread, which keeps the model and what it computed", function()
    local path, o = folder .. "/model", {max_new_tokens = 6, system = "ignored"}
    local messages = {{role = "system", content = "S"}, {role = "user", content = "Hello"}}
    local chat = lm.chat(path .. ".gguf", {max_new_tokens = 6, system = "S"})
    local want, pieces = chat:say "Hello", {}
    for _, ending in ipairs {"", ".gguf", ""} do
      local future = lm.async(lm.chat.answer, path .. ending, messages, o):on_part(function(piece)
        pieces[#pieces + 1] = piece
      end)
      assert.equal(want, (future:get()))
      assert.equal(want, table.concat(pieces))
      pieces = {}
    end
    assert.equal(2, #messages)
    assert.equal(want, (lm.async(lm.chat.answer, path, {messages[2]}, {max_new_tokens = 6, system = "S"}):get()))
    local ids = tokenizer("Once up").input_ids
    local all = chat.net:generate(ids, {max_new_tokens = 6})[1]:tolist()
    local text = tokenizer:decode(lm.tensor(all, {dtype = "int64"}):narrow(1, ids.shape[2] + 1, 6))
    assert.equal(text, (lm.async(lm.chat.answer, path, "Once up", o):get()))
    assert.is_string(lm.async(lm.chat.answer, path, ("x"):rep(500), o):get()) -- its last tokens
    local shortest = math.huge -- a busy machine may learn of the end after the last token
    for _ = 1, 5 do
      local n = 0
      local future = lm.async(lm.chat.answer, path, "Once up", {max_new_tokens = 100}):on_part(function()
        n = n + 1
        return n < 3
      end)
      shortest = math.min(shortest, #future:get())
      assert.equal(3, n)
    end
    assert.is_true(shortest < 60)
    local answer, calls = lm.async(lm.chat.answer, path, messages, {max_new_tokens = 60, tools = {{name = "f"}},
      constraint = {regex = '\\{"name": "f"\\}'}}):get()
    assert.equal('{"name": "f"}', answer)
    assert.equal("f", calls[1]["function"].name)
    for problem, arguments in pairs {
      ["cannot open 'none.gguf'"] = {"none.gguf", "x"}, ["messages must be a table, got 3"] = {path, 3},
      ["unknown option 'temp'"] = {path, "x", {temp = 1}}, ["options must be a table, got 3"] = {path, "x", 3},
      ["there is no message"] = {path, {}}, ["more than the context of 9 positions"] = {path, messages, {context = 9}},
      ["the text has no tokens"] = {path, ""}, ["template must be a table, got 3"] = {path, messages, {template = 3}},
      ["unavailable device 'cuda:99'"] = {path, messages, {device = "cuda:99"}},
    } do
      local ok, why = pcall(function() return lm.async(lm.chat.answer, unpack(arguments)):get() end)
      assert.is_false(ok)
      assert.matches(problem, why, 1, true)
    end
    assert.equal(want, (lm.async(lm.chat.answer, path, messages, o):get()))
    lm.set_async {}
  end)

  it("reads calls of tools", function()
    local parse = lm.chat.tool_calls
    local function names(answer)
      local list = {}
      for i, call in ipairs(parse(answer) or {}) do
        list[i] = call["function"].name .. json_encode(call["function"].arguments)
      end
      return list
    end
    assert.same({'f{"a":1}', "g{}"}, names [[Well. <tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call><tool_call>{"name": "g"}</tool_call>]])
    assert.same({'f{"a":"é"}'}, names '{"name": "f", "parameters": {"a": "é"}}')
    assert.same({"f{}", "g{}"}, names '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{}"}]')
    assert.same({'f{"a":[1]}'}, names '[TOOL_CALLS]f[ARGS]{"a": [1]}')
    assert.same({"f{}"}, names '<|python_tag|>{"name": "f", "parameters": {}}')
    for _, answer in ipairs {
      "", "{}", "{x", "<tool_call>", '{"name": 1}', '{"name": "f", "arguments": 3}', "[TOOL_CALLS][",
    } do
      assert.is_nil(parse(answer))
    end
    local chat = lm.chat(make_net(), {tokenizer = tokenizer, tools = {{name = "f"}}, max_new_tokens = 60})
    local _, calls = chat:say("Call.", {constraint = {regex = '\\{"name": "f"\\}'}})
    assert.equal("f", calls[1]["function"].name)
    chat:add {role = "tool", content = "3"}
    assert.error_matches(function() chat:add {content = "3"} end, "message.role must be a string, got nil")
    assert.is_string(chat:say(nil, {max_new_tokens = 2}))
  end)

  it("checks what it is given", function()
    for pattern, case in pairs {
      ["cannot open 'nowhere'"] = {"nowhere"},
      ["'README.md' is not a GGUF file; pass one, or a folder"] = {"README.md"},
      ["source must be a path"] = {3}, ["requires {tokenizer"] = {make_net()},
      ["options must be a table"] = {make_net(), 1},
      ["unknown option 'temp'"] = {make_net(), {tokenizer = tokenizer, temp = 1}},
      ["temperature must be"] = {make_net(), {tokenizer = tokenizer, temperature = "hot"}},
      ["system"] = {make_net(), {tokenizer = tokenizer, system = 1}},
      ["tokenizer must be a tokenizer of lm.text, got 1"] = {make_net(), {tokenizer = 1}},
      ["{base = 0}"] = {make_net(), {tokenizer = lm.text.Tokenizer(folder .. "/model", {base = 0})}},
    } do
      local ok, why = pcall(lm.chat, case[1], case[2])
      assert.is_false(ok)
      assert.is_truthy(why:find(pattern, 1, true), why)
    end
    local chat = lm.chat(make_net(), {tokenizer = tokenizer})
    for _, case in ipairs {
      {"there is no message"}, {"message must be", 3}, {"unknown option 'temp'", "a", {temp = 1}},
    } do
      local ok, why = pcall(chat.say, chat, case[2], case[3])
      assert.is_false(ok)
      assert.is_truthy(why:find(case[1], 1, true), why)
    end
  end)

  it("loads a folder and a GGUF file", function()
    local a = lm.chat(make_net(), {tokenizer = tokenizer, max_new_tokens = 6}):say "Hello"
    for _, ending in ipairs {"", ".gguf"} do
      assert.equal(a, lm.chat(folder .. "/model" .. ending, {max_new_tokens = 6}):say "Hello")
    end
  end)
end)
