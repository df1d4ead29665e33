-- luminary chat: conversations in a pipe and on a terminal, with a small model with random weights.
local json_encode = require "luminary.base.json_encode"
local lm = require "luminary"
local pty = require "spec.support.pty"
local small = require "spec.support.small_chat"
local temp = require "spec.support.temp"

describe("luminary chat #lua", function()
  local folder = temp.during(setup, teardown)
  local POSITIONS = 20000
  setup(function()
    temp.execute("mkdir " .. folder .. "/model")
    small.write(folder .. "/model", POSITIONS)
  end)

  -- Returns whether the command succeeded, its output and its exit code.
  local function run(input, options, model)
    temp.write(folder .. "/input", input)
    return temp.run(folder, ("bin/luminary chat %s %s/%s <%s/input"):format(options or "", folder,
      model or "model.gguf", folder))
  end
  local function answers(input, options, model)
    local ok, text = run(input, options, model)
    assert(ok, text)
    return text
  end
  -- Returns the answers of lm.chat to messages, a line each.
  local function expected(messages, o)
    o.max_new_tokens = 8
    local chat, list = lm.chat(folder .. "/model", o), {}
    for i, message in ipairs(messages) do list[i] = chat:say(message) .. "\n" end
    return lm.core.printable(table.concat(list))
  end

  it("answers each line of a pipe as lm.chat does, and takes commands", function()
    local greedy = "--temperature 0 --max-tokens 8 "
    local two = expected({"Hello", "And?"}, {temperature = 0})
    assert.equal(two, answers("Hello\n\nAnd?\n", greedy))
    assert.equal(two, answers("Hello\nAnd?", greedy, "model"))
    assert.equal(two, answers("Hello\nAnd?", "--temperature 0", "model --max-tokens 8"))
    assert.equal(two, answers("Hello\nAnd?", greedy .. "--", "model"))
    assert.equal(two .. two, answers("Hello\nAnd?\n/clear\nHello\nAnd?\n/exit\nHello\n", greedy))
    local be = expected({"Hello"}, {temperature = 0, system = "Be kind."})
    assert.equal(be, answers("Hello\n", greedy .. "--system 'Be kind.'"))
    assert.equal(be .. expected({"Hello"}, {temperature = 0}),
      answers("/system Be kind.\nHello\n/system\nHello\n", greedy))
    assert.matches("^no command '/claer'\n  /clear  .*/exit [^\n]*\n$", answers "/claer\n")
    assert.equal(expected({"turn 2"}, {temperature = 0}), -- the first turn leaves no room
      answers("turn 1\nturn 2\n", greedy .. "--context 40"):match "\n(.*)$")
  end)

  it("draws by a seed, and as the model's files say where options do not", function()
    local first = answers("Hello\n", "--seed 1 --max-tokens 8", "model")
    assert.equal(first, answers("Hello\n", "--seed 1 --max-tokens 8 --temperature 0.7", "model"))
    assert.not_equal(first, answers("Hello\n", "--seed 2 --max-tokens 8", "model"))
    local file = temp.write(folder .. "/model/generation_config.json", json_encode {
      do_sample = true, top_k = 1, num_beams = 2,
    })
    assert.equal(expected({"Hello"}, {}), answers("Hello\n", "--seed 1 --max-tokens 8", "model"))
    assert.not_equal(expected({"Hello"}, {}), answers("Hello\n", "--seed 1 --max-tokens 8 --top-k 0", "model"))
    os.remove(file)
  end)

  it("says what is wrong, and continues after an answer that fails", function()
    for _, case in ipairs {
      {"", "", "none.gguf", "^luminary chat: cannot open '.*': No such file or directory; nothing is downloaded\n$", 1},
      {"", "", "model/config.json", "^luminary chat: '.*/config.json' is not a GGUF file", 1},
      {"", "--dtype flaot", "model", "^luminary chat: dtype: unknown dtype 'flaot'; did you mean 'float'", 1},
      {"", "--top-p -1", "model", "^luminary chat: %-%-top%-p must be a number of at least 0, got '%-1'\n", 2},
      {"", "--sistem x", "model", "unrecognized argument '%-%-sistem'; did you mean '%-%-system'", 2},
      {"", "", "model more", "expected one FILE, got 'more' too", 2}, {"", "", "model --bad", "'%-%-bad'", 2},
      {"a long one\nx\n", "--context 40 --max-tokens 25 --temperature 0", "model",
        "^\nluminary chat: the last turn has 18 tokens[^\n]*\n.", 1},
      {"x", "", "model --context 1", "more than the context of 1 positions; .* larger %-%-context", 1},
      {"x", "--max-tokens 20000", "model", "more than the model's 20000 positions; .* a smaller %-%-max%-tokens\n", 1},
      {"\255\nx\n", "--max-tokens 1", "model", "^luminary chat: the line is not UTF%-8: '[^\n]+'\n[^\n]*\n$", 1},
      {"/system \255\nx\n", "--max-tokens 1", "model", "^luminary chat: the line is not UTF%-8: [^\n]*\n[^\n]*\n$",
        1},
      {"", "--device cuda:99", "model", "^luminary chat: unavailable device 'cuda:99': .*", 1},
    } do
      local ok, text, code = run(case[1], case[2], case[3])
      assert.is_false(ok)
      assert.matches(case[4], text)
      assert.equal(case[5], code)
    end
  end)

  it("stops an answer by Ctrl-C on a terminal, keeps what was said and the history of inputs", function()
    local why = pty.lacking()
    if not why and os.execute "ldconfig -p | grep -q libedit.so.2" ~= 0 then why = "no libedit" end
    if why then return pending(why) end
    local t = pty.open(("TERM=xterm LUMINARY_HISTORY=%s/typed ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 "
      .. "bin/luminary chat --temperature 0 --max-tokens %d %s/model"):format(folder, POSITIONS - 100, folder))
    t:expect "Ctrl-D leaves.\r\n"
    t:expect "> "
    t:raw()
    t:send "Hello\n"
    t:expect "Hello\r\n"
    t:expect "l" -- a letter of the answer
    for _ = 1, 10 do
      t:send "\3"
      if pcall(t.expect, t, "\n> ", 2) then break end
    end
    t:raw()
    t:send "/clear\n"
    t:expect "> "
    t:raw()
    t:send "\4"
    assert.equal(0, (t:finish()))
    assert.matches("Hello\n/clear\n", temp.read(folder .. "/typed_chat"))
  end)
end)
