-- The prompt's commands, completion and screens. Screens are tmux's, which draws what a terminal would show.
local lm = require "luminary"
local temp = require "spec.support.temp"
local within = require("spec.support.time").within
local completion = require "luminary.cli.completion"
local commands = require "luminary.cli.prompt_commands"

local folder, root
setup(function()
  folder, root = temp.folder(), lm.paths.cwd()
end)
teardown(function() temp.remove(folder) end)

local function write(name, text) return temp.write(folder .. "/" .. name, text) end

-- Returns what the prompt prints for lines of input, in the specs' folder, without its first two lines and the prompts.
local function prompt(input, variables)
  write("input", input)
  local ok, text = temp.run(folder, ("cd %s; LUA_PATH='./?.lua;'\"$LUA_PATH\" %s %s/bin/luminary <input"):format(folder,
    variables or "", root))
  assert(ok, text)
  return (text:gsub("^[^\n]*\n[^\n]*\n", ""):gsub(">+ ", ""):gsub("\n+$", ""))
end

describe("a command of the prompt #lua", function()
  it(":help lists all, and one that is none names the nearest", function()
    local text = prompt ":help\n"
    assert.matches("\n" .. commands.HELP, "\n" .. prompt "help\n", 1, true)
    assert.equal(commands.HELP, text)
    for _, name in ipairs(commands.names) do assert.matches("%f[^%z\n]:" .. name .. "%f[^%w]", text) end
    assert.equal("no command ':tiem'; did you mean ':time'?", prompt ":tiem 1\n")
    assert.matches("\n:reload MODULE ", prompt "?:reload\n")
    assert.equal("no command ':qqqqqq'; :help lists them", prompt ":qqqqqq\n")
  end)

  it("?name describes a variable of the session", function()
    local net = "net = nn.Sequential(nn.Linear(2, 3), nn.ReLU()):bfloat16()\n"
    assert.matches("^net is a module, Sequential, 9 parameters in 2 tensors\n  0.weight %[3, 2%]\n  0.bias %[3%]\n\n"
      .. "nn.Sequential%(", prompt(net .. "?net\n"))
    assert.matches("^net%[1%] is a module, Linear, 9 parameters in 2 tensors\n.*\nnn.Linear%(",
      prompt(net .. "?net[1]\n"))
    assert.equal("net[1].weight is a tensor [3, 2], bfloat16 on cpu, requires_grad", prompt(net .. "?net[1].weight\n"))
    assert.equal("where is a tensor [2, 1], float32 on cpu", prompt "where = lm.ones(2, 1)\n?where\n")
    assert.matches("^opt is an Adam\n\noptim.Adam%(", prompt(net .. "opt = optim.Adam(net:parameters())\n?opt\n"))
    assert.equal("y is 3\ns is string 'a'", prompt "y, s = 3, 'a'\n?y\n?s\n")
    assert.equal("my is a module, My, 0 parameters in 0 tensors", prompt "My = nn.Module:extend 'My'\nmy = My()\n?my\n")
    local many = prompt "net = nn.Sequential()\nfor i = 1, 30 do net:append(nn.Linear(1, 1)) end\n?net\n"
    assert.matches("60 parameters in 60 tensors\n", many, 1, true)
    assert.matches("\n  9.bias [1]\n  …\n", many, 1, true)
    -- libraries, methods and fields of tensors are not the session's
    assert.matches("^x.shape: The sizes of x", prompt "x = lm.ones(2)\n?x.shape\n")
    assert.matches("^sum%(x", prompt "x = lm.ones(2)\n?lm.sum\n")
    assert.matches("^nn.ReLU%(", prompt "?nn.ReLU\n")
    assert.matches("\n  Returns", prompt "x = lm.ones(2)\n?x:topk\n")
  end)

  it(":time prints values and the time, of chunks of several lines too", function()
    local TIME = "[%d.]+ [µm]*s, [%d.]+ [µm]*s of CPU"
    assert.matches("^3\n" .. TIME .. "$", prompt ":time 1 + 2\n")
    assert.matches("^" .. TIME .. "\n2$", prompt ":time for i = 1, 2 do\nx = i\nend\nx\n")
    assert.equal("kept", prompt ":time local x = 'kept'\nprint(x)\n":match "kept$")
    local real = prompt ":time os.execute 'sleep 0.2'\n":match "\n([%d.]+) ms,"
    assert(real and tonumber(real) >= 200, real)
    local failed = prompt ":time error 'boom'\n"
    assert.matches("boom", failed)
    assert.not_matches("CPU", failed)
    assert.equal("time: CHUNK must be an expression or statements; write :time lm.ones(3):sum()", prompt ":time\n")
  end)

  it(":mem and :devices say what is there", function()
    local text = prompt "x = lm.ones(1000, 1000)\n:mem\n"
    assert.matches("^tensors: %d+\n  cpu: 4%.[0-3] MB, at most [%d.]+ MB; [%d.]+ %w+ reserved", text)
    assert.matches("\nLua: [%d.]+ MB\nprocess: [%d.]+ MB resident, at most [%d.]+ MB$", text)
    text = prompt ":devices\n"
    assert.matches(("^cpu: [^\n]*%d cores, %d threads\n"):format(require("luminary.core").process_cores(),
      lm.get_num_threads()), text)
    assert.matches(lm.cuda.is_available() and "\ncuda:0 " or "\nno CUDA device", text)
  end)

  it(":load runs a file, whose globals stay", function()
    write("mine.lua", "#!/usr/bin/luajit\nloaded_here = 41\nreturn 'value'\n")
    assert.equal('"value"\n42', prompt ":load mine.lua\nloaded_here + 1\n")
    assert.equal("load: cannot open 'none.lua': No such file or directory", prompt ":load none.lua\n")
    assert.equal("load: cannot open '/tmp': Is a directory", prompt ":load /tmp\n")
    assert.equal("load: FILE must be the path of a Lua file; write :load train.lua", prompt ":load\n")
    write("wrong.lua", "x = = 2\n")
    assert.matches("wrong.lua:1: unexpected symbol near '='", prompt ":load wrong.lua\n")
    write("fails.lua", "before = 1\nlocal function inner() error 'boom' end\ninner()\n")
    assert.matches("^fails.lua:2: boom\nstack traceback:\n\tfails.lua:2: .*\n1$", prompt ":load fails.lua\nbefore\n")
  end)

  it(":reload requires a module again, and globals get the new one", function()
    write("part.lua", "count = (count or 0) + 1\nif count == 3 then error 'third' end\nreturn {number = count}\n")
    assert.equal("1\nreloaded 'part' in m, n\n2\n2", prompt(
      "m = require 'part'; n = m\nm.number\n:reload part\nm.number\nrequire('part').number\n"))
    assert.matches("third.*\n2\n2$", prompt(
      "count = 1; m = require 'part'\n:reload part\nm.number\nrequire('part').number\n"))
    assert.equal("reload: MODULE must be a loaded module, got 'part'; require it first", prompt ":reload part\n")
    assert.equal("reload: MODULE must be a loaded module, got 'prat'; did you mean 'part'?",
      prompt "m = require 'part'\n:reload prat\n")
    assert.equal("reload: MODULE must not be of the library, got 'luminary.nn'; start the prompt again",
      prompt ":reload luminary.nn\n")
  end)

  it(":edit opens the last input or a file in the editor, and runs it then", function()
    assert.equal("5\nx = 6; x\n6\n6", prompt("x = 5; x\n:edit\nx\n", "VISUAL= EDITOR='sed -i s/5/6/'"))
    write("file.lua", "return 'was'\n")
    assert.equal('"edited"', prompt(":edit file.lua\n", "VISUAL='sed -i s/was/edited/' EDITOR=false"))
    assert.equal("5\nedit: editor 'false' must exit with status 0, got 1; set EDITOR to an editor, such as nano",
      prompt("5\n:edit\n", "VISUAL= EDITOR=false"))
    assert.equal("unfinished chunk", prompt("5\n:edit\n", "VISUAL= EDITOR='sed -i s/5/f\\(/'"):match "[^\n]*$")
  end)
end)

describe("Tab at the prompt #lua", function()
  local globals = {nn = lm.nn, io = io, optim = lm.optim}
  local function words(before, typed) return completion.words(before, globals, typed) end

  it("completes options of a call's signature that it does not have yet", function()
    assert.same({"padding", "padding_mode"}, words "nn.Conv2d(3, 8, 3, {pad")
    assert.same({"padding_mode"}, words "nn.Conv2d(3, 8, 3, {padding = 1, pad")
    assert.same({"padding", "padding_mode"}, words ":time nn.Conv2d(3, 8, 3, {pad")
    assert.same({}, words "nn.Conv2d(3, 8, 3, {-- pad")
  end)

  it("completes files in strings and after commands, and commands and modules", function()
    for _, name in ipairs {"mnist-test.bin", "mnist-train.bin", ".hidden"} do write(name, "") end
    assert(lm.paths.mkdir(folder .. "/sub folder"))
    local at = 'io.open("' .. folder .. "/"
    assert.same({"test.bin", "train.bin"}, words(at .. "mnist-t", "t"))
    assert.same({"sub folder/"}, words(at .. "sub"))
    assert.same({"folder/"}, words(at .. "sub fo", "fo"))
    assert.same({"hidden"}, words(at .. ".hi", "hi"))
    assert.same({}, words(at .. "none/x"))
    assert.same({"test.bin", "train.bin"}, words(":load " .. folder .. "/mnist-t", "t"))
    assert.same({"test.bin"}, words(":edit " .. folder .. "/mnist-te", "te"))
    assert.same({"load"}, words ":l")
    assert.same(commands.names, words(":", ""))
    package.loaded["user.module"] = true
    finally(function() package.loaded["user.module"] = nil end)
    assert.same({"user.module"}, words ":reload user")
    assert.same({"module"}, words(":reload user.m", "m"))
  end)
end)

describe("the prompt's screen", function()
  local socket, servers = nil, 0
  local function tmux(text)
    local ok, out = temp.run(folder, ("tmux -S %s -f /dev/null %s"):format(socket, text))
    assert(ok, out)
    return out
  end

  local function screen() return (tmux("capture-pane -p -t s"):gsub("%s+$", "")) end

  -- Waits until the screen has a text, or without one a single line; returns the screen.
  local function expect(wanted)
    local began = os.time()
    repeat
      local now = screen()
      if wanted and now:find(wanted, 1, true) or not (wanted or now:find "\n") then return now end
      os.execute "sleep 0.02"
    until os.time() - began > 40
    error(("'%s' did not come; the screen is:\n%s"):format(wanted or ">", screen()), 2)
  end

  local function keys(names) tmux("send-keys -t s " .. names) end
  local function send(text) tmux(("send-keys -t s -l -- '%s'"):format((text:gsub("'", "'\\''")))) end

  -- Types a line on a screen without others; returns the screen when the next prompt is there.
  local function enter(text, wanted)
    keys "C-l"
    expect()
    send(text)
    keys "Enter"
    return expect(wanted or "\n>")
  end

  local function open(columns, rows)
    if os.execute "command -v tmux >/dev/null && ldconfig -p | grep -q libedit.so.2" ~= 0 then
      return false
    end
    servers = servers + 1 -- a socket each: the last server may not have ended yet
    socket = folder .. "/tmux" .. servers
    tmux(([[new-session -d -s s -x %d -y %d "cd %s; exec env TERM=xterm LUA_PATH='./?.lua;$LUA_PATH' \
      LUMINARY_HISTORY=%s/history ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 %s/bin/luminary"]]):format(columns, rows,
      folder, folder, root))
    finally(function() temp.run(folder, ("tmux -S %s kill-server"):format(socket)) end)
    expect "\n>"
    return true
  end

  it("fits values, modules and tables, with the number of what is left out", function()
    if not open(60, 16) then return pending "no tmux or no libedit" end
    local function fits(text, wanted)
      local now = enter(text, wanted)
      local lines = {}
      for line in now:gmatch "[^\n]+" do
        lines[#lines + 1] = line
        local _, characters = line:gsub("[^\128-\191]", "")
        assert(characters <= 60, line)
      end
      assert.equal("> " .. text, lines[1]) -- nothing scrolled
      assert.equal(">", lines[#lines])
      return table.concat(lines, "\n", 2, #lines - 1)
    end
    enter("t, u = {}, {}; for i = 1, 1000 do t[i] = i; u[i] = t end", "\n>")
    assert.equal("{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, … (987 more)}", fits("t", "}\n>"))
    assert.matches("^{\n  {1, 2, 3, 4, 5, 6, … %(994 more%)},\n.*\n  … %(994 more%)\n}$", fits("u", "}\n>"))
    local net = fits("lm.models.resnet18()", ")\n>")
    assert.matches("^ResNet%(\n  %(conv1%): Conv2d%(3, 64, .*… %(38 more%)\n", net)
    assert.matches("\n… %(%d+ more lines%)\n.*\n%)$", net)
    assert.matches("^tensor%(%[%[.*%.%.%..*%]%]%)$", fits("lm.zeros(30, 30)", "]])\n>"))
    assert.equal(30, lm.zeros(30, 30):size(1))
    assert.is_nil(fits("lm.zeros(2, 40)", "]])\n>"):find("more", 1, true)) -- rows are whole
    assert.matches('^{\n  a = "[é]+… %(161 more%)\n}$', fits('{a = ("é"):rep(200)}', "}\n>"))
    assert.equal("{a = 1}", fits("{a = 1}", "}\n>"))
  end)

  it("searches the history with Ctrl-R, and recalls a function with comments as one entry", function()
    if not open(70, 16) then return pending "no tmux or no libedit" end
    for _, line in ipairs {"f = function() -- notes", "  return 5", "end", "first = 1", "second = 2"} do
      send(line)
      keys "Enter"
    end
    expect "second = 2\n>"
    keys "C-l C-r"
    send "notes"
    assert.matches("^> f = function%(%) %-%- notes\n  return 5\nend\nbck:notes$", (expect "bck:notes"))
    keys "Enter"
    assert.equal("> f = function() -- notes\n  return 5\nend\n>", (expect("end\n>"):gsub("\nbck:notes", "")))
    assert.matches("\n5\n>$", (enter("f()", "\n5\n>")))
    keys "C-l Up Up"
    assert.equal("> f = function() -- notes\n  return 5\nend", (expect "end"))
  end)

  it("completes a file's name in a string and an option in a call", function()
    if not open(70, 16) then return pending "no tmux or no libedit" end
    for _, name in ipairs {"mnist-test.bin", "mnist-train.bin"} do write(name, "") end
    keys "C-l"
    send 'io.open("mn'
    keys "Tab"
    expect '> io.open("mnist-t'
    send "es"
    keys "Tab"
    expect '> io.open("mnist-test.bin'
    keys "C-c"
    expect "\n>"
    keys "C-l"
    send "nn.Conv2d(3, 8, 3, {stri"
    keys "Tab"
    expect "nn.Conv2d(3, 8, 3, {stride"
  end)

  it("stops at Ctrl-C a loop that is typed or in a module, in 0.3 s, with variables intact", function()
    if not open(70, 16) then return pending "no tmux or no libedit" end
    local core = require "luminary.core"
    write("spinner.lua", "return {spin = function() x = 0 for i = 1, 1e11 do x = i end end}\n")
    enter("kept = lm.ones(2); m = require 'spinner'", "'\n>")
    for _, loop in ipairs {"for i = 1, 1e11 do x = i end", "m.spin()", "loadstring'for i = 1, 1e11 do x = i end'()"} do
      local began = core.time()
      enter("'echo'", '"echo"\n>') -- as long as this machine takes now for a line
      local echo = core.time() - began
      enter(loop, loop)
      os.execute "sleep 0.3"
      began = core.time()
      keys "C-c"
      expect "interrupted!"
      local seconds = core.time() - began
      within(seconds, 0.3 + echo, ("%s; a line takes %.3f s"):format(loop, echo))
      assert.matches("\ntensor%(%[1., 1.%]%)\ntrue\n>$", (enter("kept, x > 1000", "true\n>")))
    end
  end)
end)
