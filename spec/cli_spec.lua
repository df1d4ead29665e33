-- The command `luminary`: scripts, chunks, and the prompt.
local lm = require "luminary"
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = here .. "/support/?.lua;" .. package.path
local temp = require "temp"
local command = here .. "/../bin/luminary"

local folder
setup(function() folder = temp.folder() end)
teardown(function() temp.remove(folder) end)

local function luminary(arguments)
  return temp.run(folder, command .. " " .. arguments)
end

-- A script of that text, by its path.
local function script(text, name) return temp.write(folder .. "/" .. (name or "script.lua"), text) end

-- What the prompt prints for lines of input, without its first line and the prompts.
local function prompt(input)
  temp.write(folder .. "/input", input)
  local ok, text = temp.run(folder, ("%s <%s/input"):format(command, folder))
  assert(ok, text)
  assert.matches("^luminary %d", text)
  return (text:gsub("^[^\n]*\n", ""):gsub(">+ ", ""):gsub("\n+$", ""))
end

describe("luminary FILE", function()
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

describe("luminary's options", function()
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
    assert.matches("no option '--vresion'", text, 1, true)
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
  end)

  it("explains ops", function()
    assert.matches("add(x, other, {alpha = 1})\n  x + alpha * other", prompt "?add\n", 1, true)
    assert.equal(prompt "?conv2d\n", prompt "  ? conv2d\n")
    assert.matches("conv2d%(x, weight, %[?bias", prompt "?lm.conv2d\n")
    assert.equal("no op 'cov2d'; did you mean ?conv2d", prompt "?cov2d\n")
    assert.equal("no op 'qqqqqqqq'", prompt "?qqqqqqqq\n")
    assert.matches("conv2d", prompt "?\n")
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
      timeout 20 script -qec '%s' /dev/null <%s/input
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
        timeout 20 script -qec '%s' /dev/null <%s/input
      ]]):format(locale, folder, command, folder))
      assert(ok, text)
      assert.matches("\n8\r?\n", text, 1, false, locale)
      assert.matches("\27[6G!", text, 1, true, locale) -- after two columns each of prompt and character, and the quote
      assert.matches('\n"漢!字"\r?\n', text, 1, false, locale)
    end
  end)
end)

describe("every op", function()
  it("has help: a signature and a sentence", function()
    for _, name in ipairs(lm.op_list()) do
      local text = lm.help(name)
      assert.is_string(text, name)
      assert(text:match("^" .. name .. "%(.*%)\n  %S"), name .. ": " .. text)
    end
    assert.is_nil(lm.help "no such op")
  end)
end)
