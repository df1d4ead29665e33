-- lm.watch.progress: on a terminal, and in plain lines.
local lm = require "luminary"
local characters = require "luminary.base.characters"
local message = require "spec.support.error_of"
local pty = require "spec.support.pty"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

local function lines(script)
  local ok, text = temp.run(folder, ("luajit -e '\n%s' 2>&1"):format(script))
  assert(ok, text)
  return text
end

describe("watch.progress", function()
  it("prints plain lines where there is no terminal", function()
    assert.equal("train 3/3  0:00 left  loss=0.25 step=x\nend\n", lines [[
      local lm = require "luminary"
      local bar = lm.watch.progress.new(3, {desc = "train"})
      for _ in bar:over(ipairs {1, 2, 3}) do bar:set_postfix {loss = lm.tensor(0.25), step = "x"} end
      print "end"]])
    assert.equal("1/2  0:00 left  a\nhello\n2/2  0:00 left  a\n", lines [[
      local bar = require("luminary").watch.progress.new(2, {lines_every = 0})
      bar:update(1, "a")
      bar:write "hello"
      bar:advance()
      bar:update(2)]])
    assert.equal("1  0:00\n", lines [[require("luminary").watch.progress.new(nil, {lines_every = 0}):advance()]])
    assert.equal("", lines [[
      local bar = require("luminary").watch.progress.new(2, {lines_every = 0, disable = true})
      bar:update(1)
      bar:write "hello"]])
    assert.equal("", lines [[require("luminary").watch.progress.new(10):update(3)]]) -- the first after 10 s
  end)

  it("passes on what an iterator yields", function()
    local bar, got = lm.watch.progress.new(2, {disable = true}), {}
    local loader = lm.data.DataLoader(lm.data.TensorDataset(lm.arange(4), lm.arange(4)), {batch_size = 2})
    for x, y in bar:over(loader:iter()) do got[#got + 1] = x[1] + y[2] end
    assert.same({1, 5}, got)
    assert.equal(2, bar.done)
    for key, value in lm.watch.progress.new(1, {disable = true}):over(pairs {a = 3}) do got = {key, value} end
    assert.same({"a", 3}, got)
  end)

  it("draws one line on a terminal, as wide as that", function()
    local lacking = pty.lacking()
    if lacking then return pending(lacking) end
    local path = folder .. "/bar.lua"
    temp.write(path, [[
      local bar = require("luminary").watch.progress.new(4, {done = 1, desc = "train"})
      for step = 2, 4 do
        bar:update(step, ("é"):rep(step == 2 and 25 or 100))
        if step == 2 then bar:write "above" end
      end
      print "end"]])
    local terminal = pty.open("TERM=xterm luajit " .. path)
    terminal:expect "end"
    terminal:finish()
    local drawn = {}
    for line in terminal.all:gmatch "\r\27%[J([^\r\27]*)" do drawn[#drawn + 1] = line:gsub("\n.*", "") end
    assert.matches("^train %[##########%.+%] 2/4  %d:%d%d left  é", drawn[1])
    assert.matches("above", terminal.all, 1, true)
    assert.matches("^train 4/4  0:00 left  é", drawn[#drawn]) -- the text takes the bar's place, not the time's
    for _, line in ipairs(drawn) do assert(characters.columns(line) <= 79, line) end
    assert.equal(79, characters.columns(drawn[#drawn]))
    assert.matches("left  [\195\169]+\r\n.*end", terminal.all) -- a complete bar is a line
  end)

  it("makes place for what is printed, on one line whatever its text", function()
    local lacking = pty.lacking()
    if lacking then return pending(lacking) end
    local path = folder .. "/print.lua"
    temp.write(path, [[
      local printed = print
      local bar = require("luminary").watch.progress.new(4, {desc = "train\n1"})
      bar:update(1, "some\r\ntext")
      print("hello", 1)
      print "again"
      bar:update(2)
      assert(print ~= printed)
      bar:clear()
      assert(print == printed)
      bar:update(4)
      assert(print == printed)
      print "end"]])
    local terminal = pty.open("TERM=xterm luajit " .. path)
    terminal:expect "end"
    terminal:finish()
    assert.matches("^\r\27%[Jtrain 1 %[##.*%] 1/4  %d:%d%d left  some  text\r\r\27%[Jhello\t1\r\nagain\r\n"
      .. "\r\27%[Jtrain 1 %[.-%] 2/4  %d:%d%d left  some  text\r\r\27%[Jtrain 1 .- 4/4 .-\r\nend\r\n$", terminal.all)
  end)

  it("ends no training where standard output is closed or full", function()
    local path = folder .. "/closed.lua"
    temp.write(path, [[
      local bar = require("luminary").watch.progress.new(3, {lines_every = 0})
      if arg[1] then io.stdout:close() end
      for _ in bar:over(ipairs {1, 2, 3}) do bar:write "text" end
      io.stderr:write "done"]])
    for _, how in ipairs {"close 2>&1", "2>&1 >&-", "2>&1 >/dev/full"} do
      local ok, text = temp.run(folder, ("luajit %s %s"):format(path, how))
      assert(ok, text)
      assert.matches("done$", text)
    end
  end)

  it("leaves nothing of a bar that a narrowed terminal has wrapped", function()
    if os.execute "command -v tmux >/dev/null" ~= 0 then return pending "no tmux" end
    local path, socket = folder .. "/narrow.lua", folder .. "/tmux"
    temp.write(path, [[
      local bar = require("luminary").watch.progress.new(4, {desc = "train"})
      print(("above\n"):rep(20))
      for step = 1, 3 do
        bar:update(step, "some text that is long")
        io.read()
        os.execute "sleep 0.2" -- a bar is drawn ten times a second
      end]])
    local tmux = ("tmux -S %s -f /dev/null "):format(socket)
    local function screen(until_shown)
      local text
      for _ = 1, 100 do
        local pipe = io.popen(tmux .. "capture-pane -p")
        text = pipe:read "*a"
        pipe:close()
        if text:find(until_shown, 1, true) then break end
        os.execute "sleep 0.1"
      end
      return (text:gsub("%s*$", ""))
    end
    assert(os.execute(tmux .. ("new-session -d -x 80 -y 10 'stty -echo; luajit %s'"):format(path)) == 0)
    finally(function() os.execute(tmux .. "kill-server 2>/dev/null") end)
    assert.matches("above\n\ntrain %[#####%.+%] 1/4  %d:%d%d left  some text that is long$", screen "1/4")
    os.execute(tmux .. "resize-window -x 30 -y 10")
    os.execute(tmux .. "send-keys a Enter")
    assert.matches("above\n\ntrain 2/4  %d:%d%d left  some te?x?$", screen "2/4")
  end)

  it("counts the columns of wide and of combining characters", function()
    for text, columns in pairs {
      [""] = 0, abc = 3, ["é"] = 1, ["训练"] = 4, ["e\204\129x"] = 2, ["😀"] = 2, ["… █"] = 3, ["\255\254"] = 2, ["ü"] = 1,
    } do
      assert.equal(columns, characters.columns(text), text)
      assert.equal(text, characters.first_columns(text, columns))
    end
    assert.equal("训", characters.first_columns("训练", 3))
    assert.equal("a训", characters.first_columns("a训练", 4))
    assert.equal("", characters.first_columns("训练", 1))
  end)

  it("rejects wrong calls", function()
    assert.matches("total must be an integer of at least 0", message(lm.watch.progress.new, -1))
    local bar = lm.watch.progress.new(1, {disable = true})
    assert.matches(": over: iterator must be a function", message(bar.over, bar, {1, 2}))
    assert.equal("true\n", lines [[require("luminary").watch.progress.new(2):write(true)]])
    assert.matches("done must be an integer of at least 0", message(function() lm.watch.progress.new(3):update(-1) end))
  end)
end)
