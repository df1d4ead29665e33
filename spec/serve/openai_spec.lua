-- serve.OpenAI: requests in the forms of OpenAI's API, without and with an HTTP server.
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local lm = require "luminary"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)
local server

local SIZES = {hidden_size = 32, intermediate_size = 48, num_hidden_layers = 2, max_position_embeddings = 512}
setup(function() dofile "examples/random_model.lua"(folder, SIZES) end)

-- Defines a spec with a server of its own.
local function serves(name, f)
  it(name, function()
    server = lm.serve.OpenAI(folder, {name = "m", max_body = 100000})
    local ok, problem = pcall(f)
    server:close()
    server = nil
    if not ok then error(problem, 0) end
  end)
end

local function decode(text) return core.json_decode(text, false) end

-- Waits until f returns true, 60 s at most, under sanitizers 100 s.
local function wait_for(f)
  local deadline = lm.time() + (os.getenv "LM_SPEC_SANITIZED" == "1" and 100 or 60)
  while not f() do
    assert(lm.time() < deadline, "timeout")
    lm.poll(0.005)
  end
end

-- Returns the status and the text of the answer to a request.
local function ask(path, body, of)
  local reply, parts = (of or server):request {method = body and "POST" or "GET", path = path,
    body = type(body) == "table" and json_encode(body) or body}, {}
  wait_for(function()
    local text = reply:read()
    parts[#parts + 1] = text
    return not text
  end)
  return reply.status, table.concat(parts)
end

-- Returns the decoded answer to a request that succeeds.
local function answer(path, body)
  local status, text = ask(path, body)
  assert.equal(200, status, text)
  return decode(text)
end

local function chat(more)
  local body = {model = "m", messages = {{role = "user", content = "Hé?"}}, max_tokens = 12, temperature = 0}
  for name, v in pairs(more or {}) do body[name] = v end
  return body
end

-- Returns the objects of a stream of events, which ends as OpenAI's do.
local function events(text)
  local list = {}
  for json in text:gmatch "data: (%b{})\n\n" do list[#list + 1] = decode(json) end
  assert.matches("\n\ndata: %[DONE%]\n\n$", text)
  return list
end

local WEATHER = {type = "function", ["function"] = {name = "weather", parameters = {type = "object",
  properties = {city = {["$ref"] = "#/$defs/City"}}, required = {"city"}, additionalProperties = false,
  ["$defs"] = {City = {enum = {"Rome", "Oslo"}}}}}}

local function metric(name) return tonumber(select(2, ask "/metrics"):match("\n" .. name .. " (%S+)")) end

describe("serve.OpenAI", function()
  serves("answers a chat as lm.chat does, in one piece and as events", function()
    local own = lm.chat(folder, {max_new_tokens = 12, do_sample = false})
    local parts = {}
    own:say("Hé?", {on_text = function(part) parts[#parts + 1] = part end})
    local want, got = table.concat(parts), answer("/v1/chat/completions", chat())
    assert.same({content = want, role = "assistant", refusal = false}, got.choices[1].message)
    assert.equal("length", got.choices[1].finish_reason)
    assert.equal("chat.completion", got.object)
    local prompt = own.tokenizer("<|im_start|>user\nHé?<|im_end|>\n<|im_start|>assistant\n").input_ids.shape[2]
    assert.same({prompt_tokens = prompt, completion_tokens = 12, total_tokens = prompt + 12}, got.usage)
    local status, text = ask("/v1/chat/completions", chat {stream = true, stream_options = {include_usage = true}})
    assert.equal(200, status)
    local list, content = events(text), ""
    assert.same({role = "assistant", content = ""}, list[1].choices[1].delta)
    for _, event in ipairs(list) do
      content = content .. (event.choices[1] and event.choices[1].delta.content or "")
      assert.equal("chat.completion.chunk", event.object)
    end
    assert.equal(want, content)
    assert.equal("length", list[#list - 1].choices[1].finish_reason)
    assert.matches('"choices":[]', text, 1, true)
    assert.same(got.usage, list[#list].usage)
  end)

  serves("ends a text before a stop string, also in a stream", function()
    local whole = answer("/v1/completions", {model = "m", prompt = "a", max_tokens = 40, temperature = 0}).choices[1]
    local stop = whole.text:match "^..-([%w%p][%w%p])" or whole.text:sub(4, 6)
    local want = whole.text:sub(1, whole.text:find(stop, 1, true) - 1)
    local body = {model = "m", prompt = "a", max_tokens = 40, temperature = 0, stop = {"never", stop}}
    local got = answer("/v1/completions", body).choices[1]
    assert.same({want, "stop"}, {got.text, got.finish_reason})
    body.stream = true
    local text = ""
    for _, event in ipairs(events(select(2, ask("/v1/completions", body)))) do text = text .. event.choices[1].text end
    assert.equal(want, text)
  end)

  serves("answers a failure in the middle by one JSON object, or by an event", function()
    local schema = {type = "string", pattern = "^(((a{0,100}){0,100}){0,100}){0,100}$"} -- too ambiguous
    local more = {response_format = {type = "json_schema", json_schema = {schema = schema}}}
    local status, text = ask("/v1/chat/completions", chat(more))
    assert.same({400, "invalid_request_error"}, {status, decode(text).error.type})
    assert.matches("more than 4096 stacks", decode(text).error.message, 1, true)
    more.stream = true
    local list = events(select(2, ask("/v1/chat/completions", chat(more))))
    assert.matches("more than 4096 stacks", list[#list].error.message, 1, true)
  end)

  serves("samples by a seed, several choices, and reads token ids", function()
    local body = {model = "m", prompt = {{0, 104, 32}, {97}}, max_tokens = 9, seed = -7, n = 2, temperature = 1.5}
    local a, b = answer("/v1/completions", body).choices, answer("/v1/completions", body).choices
    assert.same(a, b)
    assert.equal(4, #a)
    assert.not_equal(a[1].text, a[2].text)
    for i, choice in ipairs(a) do assert.equal(i - 1, choice.index) end
  end)

  serves("calls tools", function()
    for _, choice in ipairs {"required", {type = "function", ["function"] = {name = "weather"}}} do
      local more = {tools = {WEATHER}, tool_choice = choice, max_tokens = 200, temperature = 1, seed = 1}
      local got = answer("/v1/chat/completions", chat(more)).choices[1]
      assert.equal("tool_calls", got.finish_reason)
      assert.is_false(got.message.content)
      local call = got.message.tool_calls[1]
      assert.equal("weather", call["function"].name)
      assert.matches('^{"city":"%u%l+"}$', call["function"].arguments)
      more.stream = true
      local found
      for _, event in ipairs(events(select(2, ask("/v1/chat/completions", chat(more))))) do
        found = event.choices[1].delta.tool_calls or found
      end
      assert.same({call["function"], 0}, {found[1]["function"], found[1].index})
    end
    local status = ask("/v1/chat/completions", chat {tools = {WEATHER}, tool_choice = "none", messages = {
      {role = "assistant", content = "", tool_calls = {{id = "1", type = "function",
        ["function"] = {name = "weather", arguments = '{"city": "Rome"}'}}}},
      {role = "tool", tool_call_id = "1", content = {{type = "text", text = "sunny"}}},
    }})
    assert.equal(200, status)
  end)

  serves("constrains answers to JSON", function()
    local schema = {type = "object", properties = {ok = {type = "boolean"}}, required = {"ok"},
      additionalProperties = false}
    local got = answer("/v1/chat/completions", chat {max_tokens = 200, temperature = 1, seed = 2,
      response_format = {type = "json_schema", json_schema = {name = "x", schema = schema}}})
    assert.equal("boolean", type(decode(got.choices[1].message.content).ok))
    assert.equal("stop", got.choices[1].finish_reason)
  end)

  serves("embeds texts as the mean of the last hidden states, of length 1", function()
    local own = lm.chat(folder)
    local got = answer("/v1/embeddings", {model = "m", input = {"Hello", "a longer text"}})
    local packed = answer("/v1/embeddings", {model = "m", input = "a longer text", encoding_format = "base64"})
    for i, text in ipairs {"Hello", "a longer text"} do
      local ids = own.tokenizer(text).input_ids
      local x = lm.no_grad(function() return own.net(ids, {hidden_states = true})[1]:mean(1) end)
      assert.is_true((lm.tensor(got.data[i].embedding) - x / x:norm()):abs():max():item() < 1e-5)
    end
    local bytes = require("luminary.base.base64").decode(packed.data[1].embedding)
    local x = lm.frombuffer(bytes, "float32")
    assert.is_true((x - lm.tensor(got.data[2].embedding)):abs():max():item() < 1e-6)
    assert.equal(18, got.usage.prompt_tokens)
  end)

  serves("lists its model, its health and its counts", function()
    assert.same({"m", "model"}, {answer "/v1/models".data[1].id, answer "/v1/models/m".object})
    assert.equal("ok", answer "/health".status)
    answer("/v1/completions", {model = "m", prompt = "a"})
    local _, text = ask "/metrics"
    for _, line in ipairs {
      '\nluminary_requests_total{path="/v1/models",status="200"} 1\n', "\nluminary_generated_tokens_total ",
      '\nluminary_time_between_tokens_seconds_bucket{le="0.001"} ', "\nluminary_time_to_first_token_seconds_count ",
      "\n# TYPE luminary_conversations_open gauge\nluminary_conversations_open 0\n",
    } do assert.matches(line, text, 1, true) end
  end)

  serves("refuses bad requests with OpenAI's error objects", function()
    local deep = ("["):rep(300) .. ("]"):rep(300)
    for body, want in pairs {
      [""] = "malformed JSON", ["[]"] = "object", ["{"] = "malformed JSON", ["{}"] = "'model'",
      [("["):rep(50000)] = "nested", ['{"model":"m","messages":"\255"}'] = "UTF%-8",
      ['{"model":"m"}'] = "'messages'",
      ['{"model":"m","messages":[{"role":"user","content":' .. deep .. "}]}"] = "text",
      [chat {model = "x"}] = "'x' does not exist", [chat {messages = {}}] = "messages",
      [chat {messages = {1}}] = "messages%[0%]",
      [chat {messages = {{role = "narrator", content = "x"}}}] = "messages%[0%] .* 'narrator'; .* 'assistant', 'tool'",
      [chat {messages = {{role = "us.r", content = "x"}}}] = "unknown role 'us.r'",
      [chat {messages = {{role = "user", content = 3}}}] = "content",
      [chat {messages = {{role = "user", content = {text = "x"}}}}] = "messages%[0%].content must be a text",
      [chat {messages = {{role = "user", content = {{type = "image_url"}}}}}] = "image_url",
      [chat {max_tokens = -1}] = "max_tokens must be", [chat {max_tokens = 1.5}] = "max_tokens must be",
      [chat {max_tokens = 1000}] = "maximum context length is 513",
      [chat {max_token = 3}] = "did you mean 'max_tokens'",
      [chat {temperature = -1}] = "temperature must be", [chat {temperature = "hot"}] = "temperature must be",
      [chat {n = 1000}] = "n must be", [chat {stop = {""}}] = "'stop'", [chat {stop = {a = 1}}] = "'stop'",
      [chat {logprobs = true}] = "'logprobs' is not",
      [chat {tools = {{}}}] = "tools%[0%]", [chat {tool_choice = "required"}] = "tool_choice",
      [chat {response_format = {type = "json_schema"}}] = "response_format",
      [chat {response_format = {type = "json_schema", json_schema = {schema = {type = "no"}}}}] = "unknown type 'no'",
      [chat {messages = {{role = "user", content = ("x"):rep(600)}}}] = "context length",
    } do
      local status, text = ask("/v1/chat/completions", body)
      local problem = decode(text).error
      assert.equal(want:find "does not" and 404 or 400, status, text)
      assert.matches(want, problem.message)
      assert.equal("invalid_request_error", problem.type)
      assert.no.matches("%.lua", problem.message)
    end
    assert.equal(413, (ask("/v1/chat/completions", ("x"):rep(100001))))
    assert.equal(404, (ask "/v1/models/x"))
    assert.equal(405, (ask "/v1/chat/completions"))
    for input, want in pairs {
      [{}] = "'input'", [{{1}, {999}}] = "token id", [""] = "'input'", [("x"):rep(600)] = "length",
    } do
      local status, text = ask("/v1/embeddings", {model = "m", input = input})
      assert.same({400, want}, {status, text:match(want)})
    end
    assert.equal(200, (ask("/v1/chat/completions", chat()))) -- it is as before
  end)

  serves("takes the roles of OpenAI's API, and those that the template names", function()
    local body = chat {messages = {}}
    for i, role in ipairs {"system", "developer", "user", "assistant", "tool", "function"} do
      body.messages[i] = {role = role, content = "x"}
    end
    assert.equal(200, (ask("/v1/chat/completions", body)))
    local tokenizer = lm.text.Tokenizer(folder)
    tokenizer.chat_template = "{% for m in messages %}{% if m['role'] == 'ipython' or m.role in ['a', \"critic\"] or "
      .. "m.role == 'developer' %}{{ m.role }}{% endif %}{% endfor %}"
    local own = lm.serve.OpenAI(folder, {name = "m", tokenizer = tokenizer})
    for role, want in pairs {ipython = 200, critic = 200, developer = 200, role = 400, a = 200, python = 400} do
      local status, text = ask("/v1/chat/completions", chat {messages = {{role = role, content = "x"}}}, own)
      assert.equal(want, status, role .. text)
      if want == 200 then assert.equal(#role, decode(text).usage.prompt_tokens) end
    end
    own:close()
  end)

  serves("ends a stream that is not read by an error", function()
    local reply = server:request {method = "POST", path = "/v1/completions", body = json_encode {
      model = "m", prompt = {"a", "b", "c"}, stream = true, n = 16, max_tokens = 450, temperature = 1.5, seed = 1}}
    wait_for(function() return reply.is_over end)
    local text = reply:read()
    assert.matches("the client does not read it[^\n]*\n\n$", text)
    assert.is_true(#text > 2 ^ 20 and #text < 2 ^ 20 + 2000)
    assert.is_nil(reply:read())
    assert.equal(0, metric "luminary_conversations_open")
  end)

  serves("ends a conversation whose client has gone, or does not read", function()
    local reply = server:request {method = "POST", path = "/v1/chat/completions",
      body = json_encode(chat {stream = true, max_tokens = 450, logit_bias = {}})}
    wait_for(function() return reply.status end)
    reply:cancel()
    wait_for(function() return reply.is_over end)
    assert.equal(0, metric "luminary_conversations_open")
  end)

  serves("refuses requests whose fields have another type", function()
    for pattern, request in pairs {
      ["path must be a string, got 1"] = {method = "GET", path = 1}, ["body must be a string"] = {path = "/", body = 1},
      ["on_change must be a function"] = {path = "/health", on_change = 1}, ["unknown option 'url'"] = {url = "/"},
    } do
      assert.error_matches(function() server:request(request) end, pattern)
    end
    assert.equal(404, (ask ""))
  end)

  serves("ends open answers with an error when it is closed, and refuses requests after it", function()
    local own = lm.serve.OpenAI(folder, {name = "m"})
    local reply = own:request {method = "POST", path = "/v1/completions", body = json_encode {
      model = "m", prompt = "a", stream = true, n = 16, max_tokens = 450, temperature = 1.5}}
    wait_for(function() return reply.status end)
    own:close(0)
    assert.is_true(reply.is_over)
    reply:read()
    assert.is_nil(reply:read())
    assert.error_matches(function() reply.future:get(5) end, "the worker was closed before the call ended")
    assert.equal(503, (ask("/health", nil, own)))
  end)

  serves("refuses more requests than its queue takes, and reports a model that cannot be loaded", function()
    local small = lm.serve.OpenAI(folder, {max_queue = 1})
    local first = small:request {method = "GET", path = "/health"}
    local status, text = ask("/health", nil, small)
    assert.same({503, "server_error"}, {status, decode(text).error.type})
    wait_for(function() return first.is_over end)
    small:close()
    local none = lm.serve.OpenAI(folder .. "/none")
    assert.error_matches(function() none:check() end, "No such file")
  end)

  serves("keeps the answers of many conversations apart", function()
    local replies, want = {}, {}
    for i = 1, 40 do
      replies[i] = {reply = server:request {method = "POST", path = "/v1/completions",
        body = json_encode {model = "m", prompt = "text " .. i % 5, max_tokens = 10 + i % 5, temperature = 0}}}
    end
    for i, each in ipairs(replies) do
      local text = ""
      wait_for(function()
        local part = each.reply:read()
        text = text .. (part or "")
        return not part
      end)
      local got = decode(text).choices[1].text
      want[i % 5] = want[i % 5] or got
      assert.equal(want[i % 5], got)
    end
  end)
end)

-- A program that opens connections to a port and sends nothing.
local CONNECTIONS = [[
  local ffi, bit, port, n = require "ffi", require "bit", tonumber(arg[1]), tonumber(arg[2])
  ffi.cdef "int socket(int, int, int); int connect(int, const void *, unsigned);"
  for _ = 1, n do
    local address = ffi.new("uint8_t[16]", 2, 0, bit.rshift(port, 8), bit.band(port, 255), 127, 0, 0, 1)
    ffi.C.connect(ffi.C.socket(2, 1, 0), address, 16)
  end
  print "connected"
  io.stdout:flush()
  io.read()
]]

describe("luminary serve", function()
  -- Runs a shell script while `luminary serve` runs: $url is its address, $pid its process. Returns what it printed.
  local function with_command(script)
    if not pcall(require("ffi").load, "libmicrohttpd.so.12") or temp.output_of "command -v curl" == "" then
      return pending "no libmicrohttpd (on Debian: libmicrohttpd-dev), or no curl"
    end
    temp.write(folder .. "/script", ([[
      ulimit -S -n 1024
      luajit bin/luminary serve --port 0 --name m --end-seconds 10 %s >%s/out 2>%s/errors &
      pid=$!
      trap 'kill -9 $pid 2>/dev/null' EXIT
      for i in $(seq 300); do [ -s %s/out ] || sleep 0.1; done
      url=$(sed 's/.* at //' %s/out)
      ask() { curl -s -m 20 "$@"; }
    ]]):format(folder, folder, folder, folder, folder) .. script)
    local ok, text = temp.run(folder, "timeout 60 sh " .. folder .. "/script")
    assert(ok, text)
    return text
  end

  serves("answers over HTTP, refuses garbage, and ends by SIGTERM after its answers #lua #unsanitized", function()
    local body = json_encode(chat())
    local text = with_command(([[
      ask $url/models; echo
      ask $url/chat/completions -d '%s'; echo
      ask -N $url/chat/completions -d '%s'; echo
      head -c 3000000 /dev/zero | ask -o /dev/null -w '%%{http_code}\n' --data-binary @- $url/completions
      head -c 3000000 /dev/zero | ask -o /dev/null -w '%%{http_code}\n' -H 'Transfer-Encoding: chunked' -T - \
        -X POST $url/completions
      port=${url#*1:} port=${port%%/v1}
      for garbage in 'garbage\r\n\r\n' 'POST /v1/models HTTP/1.1\r\nContent-Length: -3\r\n\r\n'; do
        printf "$garbage" | ask -m 0.3 telnet://127.0.0.1:$port >/dev/null
      done
      ask -m 0.1 -N $url/chat/completions -d '%s' >/dev/null
      for i in $(seq 50); do
        [ "$(ask http://127.0.0.1:$port/metrics | sed -n 's/^luminary_conversations_open //p')" = 0 ] || sleep 0.1
      done
      ask http://127.0.0.1:$port/metrics | sed -n '/^luminary_conversations_open/p'
      ask -N $url/chat/completions -d '%s' >%s/last &
      sleep 0.3
      kill -TERM $pid
      wait $pid; echo "exit $?"
      tail -c 15 %s/last
    ]]):format(body, json_encode(chat {stream = true}), json_encode(chat {stream = true, max_tokens = 450}),
      json_encode(chat {stream = true, max_tokens = 400}), folder, folder))
    if not text then return end
    local lines = lists.parts(text, "[^\n]+")
    assert.equal("m", decode(lines[1]).data[1].id)
    local want = answer("/v1/chat/completions", chat()).choices[1].message.content
    assert.equal(want, decode(lines[2]).choices[1].message.content)
    assert.matches("\ndata: %[DONE%]\n+413\n413\nluminary_conversations_open 0\nexit 0\n", text)
    assert.matches("data: %[DONE%]%s*$", text)
  end)

  serves("answers beside a thousand connections that send nothing, and bodies of any size #lua #unsanitized", function()
    temp.write(folder .. "/connect.lua", CONNECTIONS)
    local text = with_command(([[
      port=${url#*1:} port=${port%%/v1}
      mkfifo %s/fifo
      for i in 1 2; do luajit %s/connect.lua $port 550 <%s/fifo >%s/connected$i & done
      exec 3>%s/fifo
      for i in $(seq 100); do [ -s %s/connected1 -a -s %s/connected2 ] || sleep 0.1; done
      ask -m 5 -o /dev/null -w '%%{http_code}\n' $url/models
      ask -m 5 $url/chat/completions -d '%s' | head -c 10; echo
      exec 3>&-
      for header in 'Expect:' 'X: y' 'Transfer-Encoding: chunked'; do
        head -c 60000000 /dev/zero | ask -o /dev/null -w '%%{http_code}\n' -H "$header" --data-binary @- \
          $url/completions
      done
    ]]):format(folder, folder, folder, folder, folder, folder, folder, json_encode(chat())))
    if text then assert.equal('200\n{"choices"\n413\n413\n413\n', text) end
  end)
end)
