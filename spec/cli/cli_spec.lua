-- The command `luminary`: scripts, chunks, and the prompt.
local lm = require "luminary"
local temp = require "spec.support.temp"
local pty = require "spec.support.pty"
local command = "bin/luminary"

local folder = temp.during(setup, teardown)

local function luminary(arguments)
  return temp.run(folder, command .. " " .. arguments)
end

-- Writes a script of that text; returns its path.
local function script(text, name) return temp.write(folder .. "/" .. (name or "script.lua"), text) end

-- Returns what the prompt prints for lines of input, without its first two lines and the prompts.
local function prompt(input)
  temp.write(folder .. "/input", input)
  local ok, text = temp.run(folder, ("%s <%s/input"):format(command, folder))
  assert(ok, text)
  assert.matches("^luminary %d", text)
  return (text:gsub("^[^\n]*\n[^\n]*\n", ""):gsub(">+ ", ""):gsub("\n+$", ""))
end

describe("luminary FILE #lua", function()
  it("runs a script with its arguments", function()
    script [[
      print(#arg, arg[0], arg[1], arg[2], ...)
      local lm = require "luminary"
      print(lm.ones{2}:sum():item())
      print(rawget(_G, "lm"))
    ]]
    local ok, text = luminary(folder .. "/script.lua one 'two words'")
    assert(ok, text)
    assert.equal(("2\t%s/script.lua\tone\ttwo words\tone\ttwo words\n2\nnil\n"):format(folder), text)
  end)

  it("fails with the message and a traceback of the script's own lines", function()
    local path = script 'local function inner() error("boom") end\nlocal function outer() inner() end\nouter()\n'
    local ok, text, code = luminary(path)
    assert(not ok)
    assert.equal(1, code)
    assert.matches("^luminary: [^\n]*script.lua:1: boom\nstack traceback:", text)
    assert.matches("script.lua:3: in main chunk", text)
    assert.not_matches("cli", text)
    ok, text = luminary(script "local lm = require 'luminary'\nlm.ones{2} + lm.ones{3}\n")
    assert(not ok)
    assert.matches("script.lua:2: unexpected symbol", text)
    ok, text = luminary(script "local lm = require 'luminary'\nlocal x = lm.ones{2} + lm.ones{3}\n")
    assert(not ok)
    assert.matches("script.lua:2: add: ", text)
    ok, text = luminary(script "error({code = 3})")
    assert(not ok)
    assert.matches("error object is a table value", text)
  end)

  it("names a file that is missing", function()
    local ok, text, code = luminary "/nonexistent/script.lua"
    assert(not ok)
    assert.equal(1, code)
    assert.matches("luminary: .*/nonexistent/script.lua", text)
  end)

  it("takes the exit status of the script", function()
    local _, _, code = luminary(script "os.exit(7)")
    assert.equal(7, code)
    _, _, code = luminary(script "return 3")
    assert.equal(0, code)
  end)

  it("takes a script from standard input", function()
    script "print('from standard input', ...)"
    local ok, text = temp.run(folder, ("%s - a b <%s/script.lua"):format(command, folder))
    assert(ok, text)
    assert.equal("from standard input\ta\tb\n", text)
  end)

  it("is found through a link", function()
    assert(os.execute(("ln -sf $(realpath %s) %s/link"):format(command, folder)) == 0)
    local ok, text = temp.run(folder, folder .. "/link --version")
    assert(ok, text)
  end)
end)

describe("luminary's options #lua", function()
  it("-e runs a chunk, with luminary as lm", function()
    local ok, text = luminary "-e 'print(lm.arange(4):sum():item(), ...)' x y"
    assert(ok, text)
    assert.equal("6\tx\ty\n", text)
    ok, text = luminary "-e 'x ='"
    assert(not ok)
    assert.matches("command line", text)
    ok, text = luminary "-e"
    assert(not ok)
    assert.matches("%-e needs a chunk", text)
  end)

  it("help of a name", function()
    local ok, text = luminary "help nn.Linear"
    assert(ok and text:find("nn.Linear(in_features", 1, true), text)
    ok, text = luminary "help mp.Event.wait" -- lm.cuda has an Event, too
    assert(ok and text:find("lm.mp.Event:wait(timeout)", 1, true), text)
    ok, text = luminary "help mp.Pool"
    assert(ok and text:find("Its methods: apply, apply_async", 1, true), text)
    local help = require "luminary.help" -- called by the command
    for name, pattern in pairs {
      stop_strings = "^stop_strings is an option of lm.models.generate\n",
      temperature = "an option of .*models.generate", on_text = "an option of lm.chat, lm.models.generate",
      attention_mask = "an option of .*lm.models.generate",
      max_length = "an option of Tokenizer:encode\n.*Of functions that lack it: here it is max_new_tokens",
      num_beams = "an option of lm.models.generate",
      key_padding_mask = "^key_padding_mask is an option of nn.MultiheadAttention\n.*true%s+for%s+positions%s+that%s+"
        .. "are%s+not%s+attended",
      is_causal = "^is_causal is an option of .*nn.MultiheadAttention", attn_mask = "an option of .*MultiheadAttention",
      src_mask = "^src_mask is an option of nn.Transformer, nn.TransformerEncoderLayer;",
      src_key_padding_mask = "^src_key_padding_mask is an option of nn.Transformer, nn.TransformerEncoder,",
      ["nn.TransformerEncoder"] = "true%s+is%s+not%s+attended", ["nn.Transformer"] = "true%s+is%s+not%s+attended",
      from_pretrained = "Of models: lm.models' gpt2, llama, .*nothing%s+is%s+downloaded%.",
      ["lm.models.gpt2.from_pretrained"] = "^Of models: lm.models' gpt2, llama, .*nothing%s+is%s+downloaded%.",
      ["lm.models.gpt2.generate"] = "^net:generate%(ids", ["models.llama.new_cache"] = "^net:new_cache%(batch_size",
      new_cache = "^net:new_cache%(batch_size", ["lm.models.resnet18.parameters"] = "^Module:parameters%(",
    } do
      assert.matches(pattern, help.wrapped((assert(help.text(name), name))))
    end
    for name, words in pairs {
      AutoTokenizer = "is text.Tokenizer", AutoModelForCausalLM = "lm.models'", t5 = "this version has gpt2, llama",
      BitsAndBytesConfig = "lm.quantize", quantize_dynamic = "lm.quantize", complex64 = "no complex numbers",
      uint32 = "int64", TextIteratorStreamer = "tokenizer:streamer", AutoImageProcessor = "transforms",
      EulerDiscreteScheduler = "DDIMScheduler", train_from_iterator = "tokenizers are not trained",
      BpeTrainer = "tokenizers are not trained",
    } do
      local found, why = help.text(name)
      assert.is_nil(found, name)
      assert.matches(words, help.wrapped(why):gsub("%s+", " "), 1, true)
    end
    assert.matches("Its methods: those of optim%.lr_scheduler%.LRScheduler%.",
      (help.text "optim.lr_scheduler.StepLR":gsub("%s+", " ")))
    ok, text = luminary "help nn.Linaer"
    assert(not ok and text:find("did you mean ?Linear", 1, true), text)
  end)

  it("--version and --help", function()
    local ok, text = luminary "--version"
    assert(ok, text)
    assert.matches("^luminary " .. lm.version:gsub("%.", "%%.") .. ", LuaJIT", text)
    ok, text = luminary "--help"
    assert(ok, text)
    for _, word in ipairs { "usage: luminary", "FILE", "-e CHUNK", "--version", "?name" } do
      assert.matches(word, text, 1, true)
    end
    assert.equal(text, (select(2, luminary "-h")))
  end)

  it("that are none", function()
    local ok, text, code = luminary "--vresion"
    assert(not ok)
    assert.equal(1, code)
    assert.matches("unrecognized argument '--vresion'", text, 1, true)
    assert.matches("usage", text)
  end)
end)

describe("the prompt", function()
  it("prints values, all of them", function()
    assert.equal("3", prompt "1 + 2\n")
    assert.equal('"text"\nnil\ntrue', prompt '"text", nil, true\n')
    assert.equal("{1, 2, key = {3}}", prompt "{1, 2, key = {3}}\n")
    assert.equal("tensor([[1., 1.],\n        [1., 1.]])", prompt "lm.ones{2, 2}\n")
    assert.equal("5", prompt "=5\n")
    assert.equal("7", prompt "x = 7\nx\n") -- statements print nothing
    assert.equal("1\n2", prompt "for i = 1, 2 do print(i) end\n")
    assert.equal("3", prompt "return 3\n")
    assert.equal("", prompt "")
    assert.equal("", prompt "\n\n")
  end)

  it("keeps the last value in _", function()
    assert.equal("2\n6\n5", prompt "1 + 1\n_ * 3\n_ - 1\n")
    assert.equal("tensor([1., 1.])\n2", prompt "lm.ones{2}\n_:sum():item()\n")
  end)

  it("goes on until a chunk is whole", function()
    assert.equal("10", prompt "f = function(x)\nreturn x * 2\nend\nf(5)\n")
    assert.equal("{1, 2}", prompt "{1,\n2}\n")
    assert.equal("6", prompt "s = 0\nfor i = 1, 3 do\n  s = s + i\nend\ns\n")
    assert.equal("unfinished chunk", prompt "for i = 1, 3 do\n")
  end)

  it("does not wait for more where none would help", function()
    assert.equal("prompt:1: unfinished string near '<eof>'\n5", prompt '"abc\n5\n')
    assert.equal('"abc\\nd"', prompt '"abc\\\nd"\n')
    assert.equal('"a\\nb"', prompt "[[a\nb]]\n")
    for _, line in ipairs { "x:shape", "y = x:shape", "function f() return x:shape" } do
      assert.equal("x:shape: x:shape() calls a method, x.shape is a field\n7", prompt(line .. "\n7\n"))
    end
    assert.equal("…:sum: …:sum() calls a method, ….sum is a field", prompt "lm.ones(2):sum\n")
  end)

  it("knows help, exit and quit, unless they are somebody's", function()
    assert.matches("^%?name explains", prompt "help\n")
    for _, word in ipairs { "exit", "quit()", " exit ( ) " } do
      assert.equal("1", prompt(("1\n%s\n2\n"):format(word)))
    end
    assert.equal("3\n4", prompt "quit = 3\nquit\n4\n")
  end)

  it("blames the user's own lines alone", function()
    local text = prompt "f = function(x)\nreturn x + nil\nend\ng = function() return 1 + f(lm.ones{2}) end\ng()\n"
    local message, frames = text:match("^(prompt:2: add: [^\n]*)\nstack traceback:(.*)$")
    assert.is_string(message, text)
    for frame in frames:gmatch "[^\n]+" do assert.matches("^\tprompt:[12]: in function", frame) end
    assert.not_matches("stack traceback", prompt "lm.ones{2} + lm.ones{3}\n")
  end)

  it("goes on after errors", function()
    local lines = { 'error("boom")', "x = nil + 1", ")", "x = 1 end", "lm.ones{2} + lm.ones{3}", "error({})",
      "lm.nothing.here", '"alive"', "" }
    local text = prompt(table.concat(lines, "\n"))
    assert.matches("boom", text)
    assert.matches("arithmetic on a nil value", text)
    assert.matches("unexpected symbol near ')'", text, 1, true)
    assert.matches("'<eof>' expected near 'end'", text, 1, true)
    assert.matches("add: ", text)
    assert.matches("error object is a table value", text)
    assert.matches('"alive"$', text)
  end)

  it("goes on after values that cannot be printed", function()
    local lines = {
      'setmetatable({}, {__tostring = function() error("first") end})',
      '{setmetatable({}, {__tostring = function() error("second") end})}',
      "setmetatable({}, {__tostring = function() return {} end})",
      'error(setmetatable({}, {__tostring = function() error("third") end}))',
      "error(setmetatable({}, {__metatable = 5}))", "error(nil)", "coroutine.yield(1)",
      "deep = {}; local d = deep; for i = 1, 1e5 do d[1] = {}; d = d[1] end", "deep",
      "cyclic = {}; cyclic.me = cyclic", "cyclic", "function f() return f() + 1 end f()",
      'getmetatable(newproxy(true)).__gc = function() error("collected") end; p = nil', "collectgarbage()",
      '("x"):rep(1e10)', '"\27LJ"', '"alive"', "" }
    local text = prompt(table.concat(lines, "\n"))
    assert.matches("first", text)
    assert.matches("second", text)
    assert.matches("yield across C-call boundary", text, 1, true)
    assert.matches("{{{{…}}}}", text, 1, true)
    assert.matches("{me = {…}}", text, 1, true)
    assert.matches("stack overflow", text)
    assert.matches('"alive"$', text)
  end)

  it("goes on whatever becomes of the globals", function()
    for _, name in ipairs { "print", "tostring", "pcall", "ipairs", "string.find", "string.format", "table.concat" } do
      local text = prompt(name .. " = nil\nerror('boom')\ndo io.write('ali', 've') end\n")
      assert.matches("boom.*alive$", text, 1, false, name)
    end
    assert.matches("alive$", prompt "debug.setmetatable('', nil)\ndo io.write('ali', 've') end\n")
    local ok, text = luminary(script 'local lm = require "luminary" string.match = nil print(lm.ones(2) > 1)')
    assert.is_false(ok)
    assert.matches("\nhint: tensors are compared by methods", text, 1, true)
    assert.not_matches("luminary/cli/", text, 1, true)
  end)

  it("keeps what is made local at the beginning of a line", function()
    assert.equal("3\n4\nnil", prompt "local a, b = 3, 4\na\nb\nlocal a -- again\na\n")
    assert.equal("7", prompt "local function f()\nreturn 7\nend\nf()\n")
    assert.equal("1\n0", prompt "i = 0\ndo local i = 1; print(i) end\ni\n")
    assert.matches("'<name>' expected near '+'", prompt "local + 1\n", 1, true)
  end)

  it("has the libraries' usual names, which scripts do not", function()
    assert.equal("true\ntrue\ntrue\ntrue\ntrue", prompt(
      "nn == lm.nn, F == nn.functional, optim == lm.optim, data == lm.data, dist == lm.dist\n"))
    local ok, text = luminary(script 'print(nn, F, optim, data, dist, lm) require "luminary" print(nn, F, dist, lm)')
    assert(ok, text)
    assert.equal("nil\tnil\tnil\tnil\tnil\tnil\nnil\tnil\tnil\tnil\n", text)
  end)

  it("shows a library on about a screen", function()
    for name, words in pairs {
      lm = {"nn", "conv2d", "sum", "save", "DataLoader"}, nn = {"Linear", "Sequential", "functional"}, F = {"relu"},
      optim = {"SGD", "lr_scheduler"}, data = {"DataLoader"}, dist = {"all_reduce"}, ["lm.cuda"] = {"is_available"},
    } do
      local text = prompt(name .. "\n")
      local _, lines = text:gsub("\n", "")
      assert(lines < (name == "lm" and 124 or 62), ("%s: %d lines"):format(name, lines))
      for line in text:gmatch "[^\n]+" do assert(#line <= 80, line) end
      for _, word in ipairs(words) do
        local there = text:find("%f[%w_]" .. word .. "%f[^%w_]") ~= nil
        assert.equal(word ~= "DataLoader" or name == "data", there, name .. ": " .. word)
      end
    end
    assert.equal("{nn = library nn}", prompt "{nn = nn}\n")
  end)

  it("cuts what is long, and says so", function()
    local text = prompt "t = {}; for i = 1, 1000 do t[i] = i end\nt\n"
    assert.matches("\n  1,\n  2,\n.*… %(960 more%)\n}$", text)
    text = prompt "t = {}; for i = 1, 50 do t[i] = {}; for k = 1, 50 do t[i][k] = k end end\nt\n"
    local _, lines = text:gsub("\n", "")
    assert(lines < 500, lines)
    assert.matches("%(10 more%)\n}$", text)
    assert.matches("{… (50 more)}", text, 1, true)
    assert.not_matches("%(5[1-9] more%)", text) -- the count is not more than there are
    assert.equal("{1, 2, 3}", prompt "{1, 2, 3}\n")
    text = prompt '("x"):rep(1e6)\n'
    assert(#text < 2000)
    assert.matches("bytes", text)
  end)

  it("shows the value of an expression after statements", function()
    assert.equal("4", prompt "shown = 4; shown\n")
    assert.equal("5", prompt "local shown = 5; shown\n")
    assert.equal("3", prompt "for i = 1, 3 do shown = i end; shown\n")
    rawset(_G, "shown", nil)
  end)

  it("explains names", function()
    local explain = require("luminary.cli.repl").help
    rawset(_G, "net", lm.nn.Sequential(lm.nn.Linear(2, 3)))
    rawset(_G, "y", lm.ones(2))
    finally(function() rawset(_G, "net", nil) rawset(_G, "y", nil) end)
    assert.equal(explain "?add", prompt "?add\n")
    assert.matches("add(x, other, {alpha = 1})\n  Adds alpha * other to x.", explain "?add", 1, true)
    assert.equal(explain "?conv2d", explain "  ? conv2d")
    assert.matches("conv2d%(x, weight, %[?bias", explain "?lm.conv2d")
    assert.matches("^nn%.Conv2d%(in_channels, .*groups", explain "?Conv2d")
    assert.matches(explain "?nn.Conv2d", explain "?Conv2d", 1, true)
    assert.equal(explain "?F.relu", explain " ? F.relu(x, 1) ")
    assert.matches("^F%.relu%(x %[, {inplace = false}%]%)", explain "?F.relu")
    assert.matches("^optim%.SGD%(params", explain "?optim.SGD")
    assert.matches("^optim%.lr_scheduler%.StepLR%(optimizer, step_size", explain "?StepLR")
    assert.matches("^dist%.all_reduce%(tensor %[, {op = \"sum\", group.*%)\n  Reduces the tensors of all ranks",
      explain "?dist.all_reduce")
    assert.matches("^x%.shape: ", explain "?shape")
    assert.matches("^Module:parameters%(%[{recurse = true}%]%)\n  Returns a list of all", explain "?Module:parameters")
    assert.matches("^Module:parameters", explain "?net:parameters")
    assert.matches("^Module:to%(…%)", explain "?net[1]:to")
    assert.matches("^x:to%(", explain "?y:to")
    assert.matches("^net%[1%] is a module, Linear, 9 parameters in 2 tensors\n.*\nnn.Linear", explain "?net[1]")
    assert.equal("no 'cov2d'; did you mean ?conv2d", explain "?cov2d")
    assert.equal("no 'nn.Liner'; did you mean ?Linear", explain "?nn.Liner")
    assert.equal("no 'qqqqqqqq'", explain "?qqqqqqqq")
    assert.matches("^no 'from_numpy'; here it is tensor\nlm.tensor%(values", explain "?from_numpy")
    assert.matches("^no 'text.T5Tokenizer'; here it is Tokenizer\ntext.Tokenizer", explain "?text.T5Tokenizer")
    assert.equal("no 'nn.RNNBase' in this version", explain "?nn.RNNBase")
    assert.matches("?nn.Linear", explain "?", 1, true)
    assert.matches("alive$", prompt "?(((\n?.\n?:\n?x..y\n?1\ndo io.write('ali', 've') end\n")
  end)

  it("edits and remembers lines on a terminal", function()
    if os.execute("script -qec true /dev/null >/dev/null 2>&1 && ldconfig -p | grep -q libedit.so.2") ~= 0 then
      return pending("no pseudo-terminal to be had with script, or no libedit")
    end
    temp.write(folder .. "/input", "1 + 1\nlm.ones{2}\n")
    local history = folder .. "/history"
    -- libedit frees nothing at the end; under a sanitizer that is no leak of ours.
    local ok, text = temp.run(folder, ([[
      export LUMINARY_HISTORY=%s ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0
      timeout 60 script -qec '%s' /dev/null <%s/input
    ]]):format(history, command, folder))
    assert(ok, text)
    assert.matches("\n2\r?\n", text)
    assert.matches("tensor([1., 1.])", text, 1, true)
    assert.matches("1 + 1\nlm.ones{2}\n", (temp.read(history):gsub("\\040", " ")), 1, true)
  end)

  it("takes UTF-8 on a terminal, in any locale, and knows its columns", function()
    if os.execute("script -qec true /dev/null >/dev/null 2>&1 && ldconfig -p | grep -q libedit.so.2") ~= 0 then
      return pending("no pseudo-terminal to be had with script, or no libedit")
    end
    local left = "\27[D"
    temp.write(folder .. "/input", 'x = "é漢e\204\129"\n#x\n'
      .. '"漢字"' .. left .. left .. '!\n')
    for _, locale in ipairs { "LC_ALL=C.UTF-8", "LC_ALL=POSIX", "LC_ALL=", "LC_ALL=xx_XX.UTF-8" } do
      local ok, text = temp.run(folder, ([[
        unset LANG LC_CTYPE; export TERM=xterm %s LUMINARY_HISTORY=%s/none/history
        export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0
        timeout 60 script -qec '%s' /dev/null <%s/input
      ]]):format(locale, folder, command, folder))
      assert(ok, text)
      assert.matches("\n8\r?\n", text, 1, false, locale)
      assert.matches("\27[6G!", text, 1, true, locale) -- after two columns each of prompt and character, and the quote
      assert.matches('\n"漢!字"\r?\n', text, 1, false, locale)
    end
  end)

  -- Waits for each answer before the next key, as a person does.
  local function terminal(program)
    local why = pty.lacking()
    if not program and os.execute "ldconfig -p | grep -q libedit.so.2" ~= 0 then why = "no libedit" end
    if why then return nil, why end
    temp.write(folder .. "/typed", "")
    local t = pty.open(("TERM=xterm LUMINARY_HISTORY=%s/typed ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 %s"):format(
      folder, program or command))
    function t:prompt(mark)
      self:expect(mark or "\n> ")
      if not program then self:raw() end
    end
    t:prompt()
    return t
  end

  it("leaves a file alone that is no history", function()
    local why = pty.lacking()
    if not why and os.execute "ldconfig -p | grep -q libedit.so.2" ~= 0 then why = "no libedit" end
    if why then return pending(why) end
    local text = ("a letter to a friend\n"):rep(50)
    temp.write(folder .. "/letter", text)
    for name, problem in pairs {["/letter"] = true, [""] = true, ["/new"] = false} do
      local how = "TERM=xterm LUMINARY_HISTORY=%s%s ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 %s"
      local t = pty.open(how:format(folder, name, command))
      if problem then t:expect "is no history of a prompt; this one is not saved" end
      t:expect "\n> "
      t:send "40 + 2\n"
      t:expect "\n42\r\n"
      t:send "\4"
      t:finish()
    end
    assert.equal(text, temp.read(folder .. "/letter"))
    assert.matches("40.*2", temp.read(folder .. "/new"))
  end)

  -- Sends Ctrl-C until the answer comes. A line about to be read may miss one, which people do not type within
  -- microseconds of the prompt.
  local function send_interrupt(t, answer)
    for _ = 1, 10 do
      t:send "\3"
      if pcall(t.expect, t, answer, 1) then return end
    end
    error(("Ctrl-C did nothing; there came:\n%s"):format(t.all), 2)
  end

  it("keeps the lines of prompts that are open at once, and the last thousand", function()
    local why = pty.lacking()
    if not why and os.execute "ldconfig -p | grep -q libedit.so.2" ~= 0 then why = "no libedit" end
    if why then return pending(why) end
    local history = folder .. "/shared"
    local old = {}
    for i = 1, 2500 do old[i] = ("old_%d\n"):format(i) end
    temp.write(history, "_HiStOrY_V2_\n" .. table.concat(old))
    local function open()
      local t = pty.open(("TERM=xterm LUMINARY_HISTORY=%s ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 %s"):format(history,
        command))
      t:expect "\n> "
      t:raw()
      return t
    end
    local function enter(t, text, answer)
      t:send(text .. "\n")
      t:expect(answer)
      t:expect "\n> "
      t:raw()
    end
    local first, second = open(), open()
    enter(first, "10 + 1", "\n11\r")
    enter(second, "'é\\\\' .. 20 + 2", "é")
    enter(first, "10 + 3", "\n13\r")
    for _, t in ipairs {first, second} do
      t:send "\4"
      t:finish()
    end
    local lines = {}
    for line in temp.read(history):gmatch "[^\n]+" do lines[#lines + 1] = line end
    assert.equal(1004, #lines) -- with libedit's first
    assert.equal("old_1501", lines[2])
    local third = open()
    third:send "\16\16"
    third:expect "'é\\\\' .. 20 + 2"
    third:send "\16"
    third:expect "10 + 1"
    send_interrupt(third, "\n> ")
    third:raw()
    third:send "\4"
    third:finish()
  end)

  local function interrupt(t, answer)
    send_interrupt(t, answer or "\n> ")
    t:prompt(answer and "\n> " or "")
  end

  local function ask(t, line, answer)
    t:send(line .. "\n")
    t:expect(answer)
    t:prompt "> "
  end

  local function interrupts(t)
    t:send "1 + "
    t:expect "1 + "
    interrupt(t)
    ask(t, "40 + 2", "\n42\r\n")
    t:send "for i = 1, 3 do\n"
    t:prompt ">> "
    t:send "error('never')\n"
    t:prompt ">> "
    interrupt(t)
    ask(t, "'al' .. 'ive'", '\n"alive"\r\n')
    for _ = 1, 2 do
      t:send "print('be' .. 'gun') while true do end\n"
      t:expect "begun"
      interrupt(t, "interrupted!")
    end
    interrupt(t)
    ask(t, "6 * 7", "\n42\r\n")
    -- Any number of them, within one operation too; a program can catch one, but no second one within 3 s.
    ask(t, "kept = 41", "\n")
    for _, catch in ipairs {"pcall", "lm.scope(pcall", "coroutine.wrap(pcall)", "xpcall"} do
      local call = (catch:find "%(pcall$" and "%s, step)" or catch == "xpcall" and "%s(step, print)" or "%s(step)")
      ask(t, "step = function() print('tu' .. 'rn') while true do end end", "\n")
      t:send("while true do " .. call:format(catch) .. " end\n")
      for _ = 1, 2 do
        t:expect "turn\r"
        t:send "\3"
      end
      t:expect "interrupted!"
      t:prompt "> "
    end
    t:send "x = lm.ones(1500, 1500) print('be' .. 'gun') for _ = 1, 3 do x = x:mm(x) end\n"
    t:expect "begun"
    for _ = 1, 4 do
      t:send "\3"
      os.execute "sleep 0.02"
    end
    t:prompt "> "
    interrupt(t)
    ask(t, "kept + 1", "\n42\r\n")
    t:send "\4"
    local code, all = t:finish()
    assert.equal(0, code)
    assert.not_matches("never'?%)?\r?\nstack", all)
  end

  it("takes Ctrl-C for the line, the chunk or what runs, and Ctrl-D for the end", function()
    local t, why = terminal()
    if not t then return pending(why) end
    interrupts(t)
  end)

  it("does without libedit", function()
    local without = script([[
      local ffi = require "ffi"
      local load = ffi.load
      function ffi.load(name, ...)
        if name:find "edit" then error "there is none" end
        return load(name, ...)
      end
      os.exit(require("luminary.cli").main {})
    ]], "without.lua")
    local t, why = terminal("luajit " .. without)
    if not t then return pending(why) end
    interrupts(t)
  end)

  it("completes names by Tab, and runs nothing of the user's for it", function()
    local t, why = terminal()
    if not t then return pending(why) end
    ask(t, "local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())", "\n")
    ask(t, "x = lm.ones(2, 3)", "\n")
    ask(t, "sly = setmetatable({}, {__index = function() error 'ran' end, __pairs = error})", "\n")
    for typed, completed in pairs {
      ["lm.nn.Li"] = "Linear", ["F.cr"] = "cross_entropy", ["net[1].we"] = "weight", ["net:par"] = "parameters",
      ["x.sha"] = "shape", ["?nn.Emb"] = "Embedding", ["?StepL"] = "StepLR", ["print(x:sha"] = "share_memory_",
      ["lm.cuda.is_a"] = "is_available", ["optim.lr"] = "lr_scheduler", ["whi"] = "while",
    } do
      t:send(typed .. "\t")
      t:expect(completed:sub(#typed:match "[%w_]*$" + 1))
      interrupt(t)
    end
    t:send "#'é漢' .. x.sha\t"
    t:expect "pe"
    t:send "[1]\n"
    t:expect "2"
    t:prompt "> "
    t:send "x:su\t\t" -- lists what there is
    t:expect "sum_to_size"
    interrupt(t)
    t:send "x:soft\t\t" -- the parts of ops are left out
    t:expect "softplus"
    assert.not_matches("_backward", t.all)
    interrupt(t)
    t:send "sly.fi\t\t"
    ask(t, " = 5", "\n")
    t:send "if x.grad.f\t\t == nil then\n"
    t:prompt ">> "
    interrupt(t)
    ask(t, "rawget(sly, 'fi')", "\n5\r\n")
    t:send "\4"
    local code, all = t:finish()
    assert.equal(0, code)
    assert.not_matches("ran", all:gsub("'ran'", ""), 1, true)
  end)

  it("remembers a chunk of several lines so that it can be had again", function()
    local t, why = terminal()
    if not t then return pending(why) end
    for _, line in ipairs {"for i = 1, 2 do", "  z = i", "end", "f = function() -- notes", "  return 5", "end"} do
      t:send(line .. "\n")
      t:prompt "> "
    end
    ask(t, "f()", "\n5\r\n")
    ask(t, "f = nil", "\n")
    ask(t, "\27[A\27[A\27[A", "end\r\n") -- Up three times: the function, as one entry
    ask(t, "f() * 3", "\n15\r\n")
    t:send "\4"
    t:finish()
    local text = temp.read(folder .. "/typed"):gsub("\\040", " ")
    assert.matches("\nfor i = 1, 2 do\\012  z = i\\012end\n", text, 1, true)
    local entry = "\nf = function() -- notes\\012  return 5\\012end\n"
    assert.matches(entry .. "f()\nf = nil" .. entry, text, 1, true)
  end)
end)

-- Visits the contents of a library or class, by the names that people write.
local function walk(path, value, visit, seen)
  if seen[value] then return end
  seen[value] = true
  local separator = rawget(value, "__name") and ":" or "."
  for name, v in pairs(value) do
    local inner = path .. separator .. tostring(name)
    if type(name) == "string" and not name:find "^_" and not (separator == ":" and type(v) ~= "function") then
      visit(inner)
      local mt = getmetatable(v)
      local ours = type(v) == "table" and (rawget(v, "__name") or mt and rawget(mt, "__library") or not mt)
      if ours then walk(rawget(v, "__name") or inner, v, visit, seen) end
    end
  end
end

describe("every public name #lua", function()
  it("has help", function()
    local count, missing = 0, {}
    local function check(path)
      local constant = path:match "^lm%.distributions%.constraints%.(.*)"
      local text = lm.help(path)
        or constant and lm.help "distributions.constraints":match("%f[%w_]" .. constant .. "%f[^%w_].*")
      count = count + 1
      if not text or #text < 10 then missing[#missing + 1] = path end
    end
    local seen = {[lm.core] = true, [lm.ops] = true}
    for _, name in ipairs {
      "nn", "optim", "data", "dist", "mp", "autograd", "checkpoint", "parallel", "watch", "cuda", "backends", "models",
      "vision", "text", "distributions", "func", "Timer", "repr", "help", "save", "load", "FloatTensor",
    } do
      assert(lm[name] ~= nil, name) -- the index loads the part
    end
    local inner = {["lm.core"] = true, ["lm.ops"] = true}
    walk("lm", lm, function(path)
      if not inner[path] then check(path) end
    end, seen)
    for name in pairs(lm.core.methods) do check("x:" .. name) end
    for name in pairs(lm.core.tensor_fields) do
      if not name:find "^_" then check("x." .. name) end
    end
    for _, of in ipairs {lm.optim.Optimizer, lm.optim.lr_scheduler.StepLR.super, lm.data.Dataset, lm.mp.Process} do
      walk(rawget(of, "__name") or "Process", of, check, seen)
    end
    table.sort(missing)
    assert.equal("", table.concat(missing, " "))
    assert(count > 900, count)
  end)

  it("of a library or class is explained by its path, and nothing else is with it", function()
    local index = require "luminary.help.index"
    local all, count, others = index.all(), 0, {}
    local function check(path, entry)
      local of, text = require("luminary.help").of, lm.help(path)
      local main = index.is_class(entry.value) and require("luminary.help.entry").main(entry) -- an alias has another
      local own = of(entry) and of(main or entry)
      count = count + 1
      if own and text ~= own and text:sub(1, #own) ~= own then others[#others + 1] = path end
    end
    for _, entry in ipairs(index.entries()) do
      if entry.owner == "lm" or entry.owner:find "^lm%." or entry.owner:find "^nn%.?" then check(entry.path, entry) end
      for _, method in ipairs(index.is_class(entry.value) and index.entries() or {}) do
        if method.owner == all.owner_of[entry.value] and not method.inner then
          check(entry.path .. ":" .. method.name, method)
        end
      end
    end
    assert.equal("", table.concat(others, " "))
    assert(count > 1000, count)
  end)

  it("that a comment speaks of is there", function()
    local count = 0
    for _, file in ipairs { "init", "tensor" } do -- files with the comments of functions in C
      local path = package.searchpath("luminary." .. file, package.path) or package.searchpath("luminary", package.path)
      for of, name in temp.read(path):gmatch "\n%-%-%- (%l+)[.:]([%w_]+)[%({:]" do
        local known = of == "lm" and (rawget(lm, name) or getmetatable(lm).lazy()[name])
          or of == "x" and (rawget(lm.core.methods, name) or lm.core.tensor_fields[name])
        assert(known, path .. ": " .. name)
        count = count + 1
      end
    end
    assert(count > 70, count)
  end)

  it("that is an op has its signature and a sentence", function()
    for _, name in ipairs(lm.op_list()) do
      local text = lm.help(name)
      assert.is_string(text, name)
      assert(("\n" .. text):match("\n" .. name .. "%(.*%)\n  %S"), name .. ": " .. text)
    end
    local list = " " .. table.concat(lm.op_list(), " ") .. " "
    for _, inner in ipairs {"softmax_backward", "linalg_qr", "fft_c2c", "max_dim", "nanmedian_all", "huber"} do
      assert.is_nil(list:find(" " .. inner .. " ", 1, true), inner)
      assert.is_true(lm.core.op_info(inner).internal)
    end
    assert.is_truthy(list:find(" conv2d ", 1, true))
    local text, why = lm.help "no_such_op"
    assert.is_nil(text)
    assert.is_string(why)
    assert.error_matches(function() lm.help(3) end, "help: the name must be a string, got 3")
  end)
end)

describe("luminary #lua", function()
  it("fails where output cannot be written, also if little or much of it is", function()
    local weights = folder .. "/out.safetensors"
    lm.save(weights, {w = lm.ones(2)})
    script "print(('x'):rep(1e5))"
    for _, arguments in ipairs {
      "--version", "--help", "help", "help nn.Linear", "help environment", "ops add", "inspect " .. weights,
      "-e 'print(1)'", [[-e 'io.stdout:setvbuf("no") print(1)']], folder .. "/script.lua", "run --help", "</dev/null",
    } do
      local ok, text, code = luminary(arguments .. " 2>&1 >/dev/full")
      assert.same({false, 1}, {ok, code}, arguments)
      assert.matches("^luminary: the output could not be written", text)
      ok, text = luminary(arguments .. " 2>&1 >&-")
      assert.is_false(ok, arguments)
      assert.matches("the output could not be written: Bad file descriptor", text, 1, true)
    end
    assert.is_true((luminary "-e 'io.stdout:close()'"))
  end)

  it("passes no character of a file to the terminal that it obeys, or that hides others", function()
    local names = {"a\194\155b", "c\226\128\174d", "e\194\133", "f\226\128\168", "g\226\128\139", "h\239\187\191",
      "i\226\129\166", "j\27[31m"}
    local value = {kept = "é 漢 \226\128\141"}
    for _, name in ipairs(names) do value[name], value["text " .. name] = lm.ones(1), name end
    local path = folder .. "/controls.pt"
    lm.save(path, value)
    local _, inspected = luminary("inspect " .. path)
    local shown = lm.repr(lm.load(path)) .. inspected
    local _, problem_text = luminary("inspect " .. path .. "x")
    for _, text in ipairs {shown, prompt(("lm.load %q\n"):format(path)), problem_text} do
      for _, name in ipairs(names) do assert.not_matches(name:match "[%z\1-\31\127-\255]+", text, 1, true) end
    end
    assert.matches('["a\\194\\155b"]', shown, 1, true)
    assert.matches("kept = 'é 漢 \226\128\141'", inspected, 1, true)
    for name in shown:gmatch '%[("[^"\n]*")%] = tensor' do
      assert.is_truthy(value[assert(loadstring("return " .. name))()])
    end
    for _, name in ipairs(names) do
      local ok, problem = pcall(lm.load, folder .. "/" .. name)
      assert.is_false(ok)
      assert.not_matches(name:match "[%z\1-\31\127-\255]+", problem, 1, true)
    end
  end)
end)

describe("luminary explain", function()
  it("prints the steps of a script's compiled functions as recorded and as planned", function()
    local path = script [[
      local lm = require "luminary"
      local w = lm.nn.Parameter(lm.ones(3, 4))
      local step = lm.compile(function(x)
        local loss = ((x:matmul(w:t()) * 2 + 1):tanh() * x:sum()):sum()
        loss:backward()
        return loss
      end)
      for _ = 1, 3 do step(lm.ones(2, 4)) end
      print("ran with", arg[1])
    ]]
    local ok, text = luminary("explain " .. path .. " argument 2>&1")
    assert(ok, text)
    assert.matches("compile: a segment that ends after " .. path .. ":%d\n  as recorded, %d+ steps:", text)
    assert.matches("\n    v%d+ float32 %[2, 3%] = mul%(v%d+ float32 %[2, 3%], 2%)\n", text)
    assert.matches("\n  %+ v%d+ float32 %[2, 3%] = tanh%(", text)
    assert.matches("\n  dropped: [^\n]*t", text)
    assert.matches("ran with\targument\n$", text)
    assert.same({"luminary: luminary explain needs a script\n", 1}, {select(2, luminary "explain 2>&1")})
  end)
end)

describe("luminary quantize", function()
  it("writes a GGUF file of a folder, and of a GGUF file, with its tokenizer", function()
    local from = temp.folder()
    local sizes = {vocab_size = 331, hidden_size = 256, intermediate_size = 256, num_hidden_layers = 1,
      num_attention_heads = 2, max_position_embeddings = 32}
    local net = lm.models.llama(sizes):to "bfloat16"
    sizes.model_type = "llama"
    temp.write(from .. "/config.json", require "luminary.base.json_encode"(sizes))
    lm.save(from .. "/model.safetensors", net:state_dict())
    local ok, text, code = luminary(("quantize %s %s/x.gguf"):format(from, folder))
    assert.same({false, 1}, {ok, code})
    assert.matches("^luminary quantize: '.*' has neither tokenizer.json.*; %-%-no%-tokenizer writes none\n", text)
    ok, text = luminary(("quantize %s %s/x.gguf --no-tokenizer"):format(from, folder))
    assert(ok, text)
    assert.matches("x.gguf: q4_k_m, [%d.]+ kB\n$", text)
    local file = lm.load(folder .. "/x.gguf", {keep_blocks = true})
    assert.equal("q4_k", file.tensors["blk.0.attn_q.weight"].kind)
    local assigned = lm.models.llama {weights = from, assign = true}
    assert.equal("bfloat16", assigned.lm_head.weight.dtype)
    assert.is_true(assigned.lm_head.weight:equal(net.lm_head.weight))
    temp.write(from .. "/tokenizer.json", lm.core.json_decode(temp.read "spec/golden/tokenizers.json", false).gpt2.file)
    assert(luminary(("quantize %s %s/y.gguf --kind bfloat16"):format(from, folder)))
    ok, text = luminary(("quantize --kind=Q8_0 %s/y.gguf -- %s/x.gguf"):format(folder, folder))
    assert(ok, text)
    file = lm.load(folder .. "/x.gguf", {keep_blocks = true})
    assert.equal("q8_0", file.tensors["blk.0.attn_q.weight"].kind)
    assert.equal("gpt-2", file.metadata["tokenizer.ggml.pre"])
    assert.equal(331, #file.metadata["tokenizer.ggml.tokens"])
    temp.remove(from)
  end)

  it("says what is wrong, and leaves no file", function()
    for arguments, message in pairs {
      ["a"] = "expected two paths, FROM and OUT.gguf, got 1", ["a b"] = "OUT must end in .gguf, got 'b'",
      ["a b.gguf --kid q8_0"] = "did you mean '--kind'?",
      ["a b.gguf --kind q8"] = "kind must be one of 'q4_k_m',", ["nothing b.gguf"] = "cannot open 'nothing'",
      ["spec b.gguf"] = "cannot open 'spec/config.json'",
    } do
      local ok, text, code = luminary("quantize " .. arguments)
      assert.same({false, arguments:find "^a" and 2 or 1}, {ok, code})
      assert.matches("^luminary quantize: .*" .. message:gsub("%p", "%%%0"), text)
    end
    assert.is_nil(io.open "b.gguf")
    assert.matches("^usage: luminary quantize", select(2, luminary "quantize --help"))
  end)
end)

describe("luminary inspect", function()
  local function inspected(value, name, flags)
    lm.save(folder .. "/" .. name, value)
    local ok, text = luminary(("inspect %s %s/%s"):format(flags or "", folder, name))
    assert(ok, text)
    return (text:gsub("^[^\n]*/", ""))
  end
  local value = {
    net = { w = lm.tensor { { 1, 2 }, { 3, 6 } }, i = lm.arange(3):to "int64" }, epoch = 3, name = "a\27[31m",
    odd = lm.tensor { 1, 0 / 0, math.huge },
  }

  it("lists plain values, then tensors with dtype, shape, size and statistics", function()
    local text = inspected(value, "x.pt")
    assert.equal(table.concat({
      "epoch = 3", "name = 'a?[31m'",
      "name   dtype    shape   size  least  greatest  mean  deviation",
      "net.i  int64    [3]     24 B      0         2     1          1",
      "net.w  float32  [2, 2]  16 B      1         6     3       2.16",
      "odd    float32  [3]     12 B      1         1     1          0  2 NaN or infinite",
      "3 tensors, 10 elements\n",
    }, "\n"), (text:gsub("^[^\n]*\n", "")))
    assert.matches("^x.pt: torch.save, 1%.%d kB\n", text)
    assert.matches("net.w  float32  %[2, 2%]  16 B\n", inspected(value, "x.pt", "--quick"))
  end)

  it("knows safetensors and NumPy's files, and says what it cannot read", function()
    local plain = inspected({ w = lm.ones { 2 } }, "x.safetensors")
    assert.matches("^x.safetensors: safetensors, .*\nw  *float32  %[2%]", plain)
    assert.matches("^deep.safetensors: safetensors, [^\n]*\na%.n = 1\nname[^\n]*\na%.x  *float32  %[2%]",
      inspected({ a = { x = lm.ones { 2 }, n = 1 } }, "deep.safetensors"))
    local core = require "luminary.core"
    require("luminary.file_formats.safetensors").write(folder .. "/meta.safetensors", { w = lm.ones(2) },
      { format = "pt\27[31m" }, { "w" })
    assert.matches("\nmetadata.format = 'pt%?%[31m'\nname[^\n]*\nw  *float32",
      select(2, luminary(("inspect %s/meta.safetensors"):format(folder))))
    for _, name in ipairs { "unreadable.npz", "unreadable new.pt" } do
      local t = require("spec.support.golden").load("_files")[name]
      local path = folder .. "/" .. name:gsub(" ", "_")
      core.write_pieces(path, { t })
      local _, listed = luminary("inspect " .. path)
      assert.matches(name:find "npz" and "\na  *int64  *%[3%]" or "\nw  *float32  *%[5, 8%]", listed)
      assert.matches(name:find "npz" and "\nnot read: 'objects' %(dtype '|O'.*\n2 tensors"
        or "\nnot read: 'hooks.run' %(it calls posix.system.*\n3 tensors", listed)
    end
    -- torch.save(torch.nn.Linear(2, 3)), as far as the name of its class
    local zip = require "luminary.file_formats.zip"
    zip.write(folder .. "/module.pt", { { "m/data.pkl", { "\128\2ctorch.nn.modules.linear\nLinear\n)\129}b." } } }, 64)
    assert.matches("\nnot read: the whole value %(it calls torch.nn.modules.linear.Linear, which is not allowed%)\n"
      .. "[^\n]*in Python: torch.save%(net.state_dict%(%), path%)\n0 tensors", select(2,
      luminary(("inspect %s/module.pt"):format(folder))))
    core.write_pieces(folder .. "/zero.npz", { "" })
    assert.matches("^luminary inspect: .*zero.npz': the file is empty\n",
      select(2, luminary(("inspect %s/zero.npz"):format(folder))))
    zip.write(folder .. "/words.npz", { { "a.txt", { "words" } }, { "b\27.json", { "{}" } } })
    local read, said, status = luminary(("inspect %s/words.npz"):format(folder))
    assert.same({ false, 1 }, { read, status })
    assert.matches("words.npz': not an .npz or torch.save file: a zip archive of 2 files: 'a.txt', 'b%?.json'", said)
    for _, name in ipairs { "none.npz", "none.safetensors", "none.pt" } do
      assert.matches(", %d+ B\nnothing is in it; lm.save%(path, {name = tensor}%) writes tensors by name\n0 tensors",
        inspected({}, name))
    end
    assert.matches("NumPy array.*%(the tensor%)  float32  %[2%]", inspected(lm.ones { 2 }, "x.npy"))
    local ok, text, code = luminary("inspect " .. script "print(1)")
    assert.same({ false, 1 }, { ok, code })
    assert.matches("^luminary inspect: .*script.lua': unknown format", text)
    ok, text, code = luminary "inspect --quik x"
    assert.same({ false, 2 }, { ok, code })
    assert.matches("did you mean '%-%-quick'", text)
    assert.matches("^usage: luminary inspect", select(2, luminary "inspect --help"))
    assert.equal(2, select(3, luminary "inspect"))
  end)

  it("reads so many elements of a file at most that a small one, which repeats its own, ends soon", function()
    local function int(n) return string.char(n % 256, math.floor(n / 256), 0, 0) end
    local function long(n) return int(n) .. int(0) end
    local function text_of(text) return int(#text) .. text end
    local storage = int(4) .. int(1)
    local parts, views = {int(3), int(2), int(300)}, 300
    for i = 1, views do
      parts[#parts + 1] = int(1) .. "\0\0\0\0\0" .. string.char(i % 256, math.floor(i / 256)) .. "\64" -- a key
        .. int(4) .. int(i + 2) .. text_of "V 1" .. text_of "torch.FloatTensor" .. int(2) .. long(1000) .. long(1000)
        .. long(0) .. long(0) .. long(1) .. storage
      if i == 1 then
        parts[#parts] = parts[#parts] .. text_of "V 1" .. text_of "torch.FloatStorage" .. long(1) .. "\0\0\128\63"
      end
    end
    temp.write(folder .. "/views.t7", table.concat(parts))
    local ok, text = luminary(("inspect %s/views.t7"):format(folder))
    assert(ok, text)
    local _, read = text:gsub("4.0 MB  *1  *1  *1  *0\n", "")
    local _, left = text:gsub("4.0 MB  *repeats too much of the file to be read\n", "")
    assert.same({16, 284}, {read, left})
  end)

  it("takes the statistics of many elements in pieces", function()
    local x = lm.rand { 5, 2 ^ 20 }:add(10)
    local least, most, mean, deviation, others = require("luminary.cli.inspect").statistics(x)
    assert.same({ x:min():item(), x:max():item(), 0 }, { least, most, others })
    assert(math.abs(mean - x:double():mean():item()) < 1e-9 and math.abs(deviation - x:double():std():item()) < 1e-9)
  end)
end)
