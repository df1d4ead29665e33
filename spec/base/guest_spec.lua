-- A process that has other things in it: requiring the library and training change nothing of theirs.
local temp = require "spec.support.temp"

local folder
setup(function() folder = temp.folder() end)
teardown(function() temp.remove(folder) end)

local SCRIPT = [[
local state = require "spec.support.process_state"
local before = {imports = state.redirected(), signals = state.signals(), environment = state.environment()}

local function compare(when)
  for name, get in pairs {imports = state.redirected, signals = state.signals, environment = state.environment} do
    local now = get()
    if now ~= before[name] then print(("%s, %s: was\n%s\nis\n%s"):format(name, when, before[name], now)) end
  end
end

local lm = require "luminary"
compare "required"
lm.set_num_threads(2)
lm.manual_seed(1)
local nn, F = lm.nn, lm.nn.functional
local net = nn.Sequential(nn.Conv2d(3, 20, 5, {stride = 2}), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2),
  nn.Conv2d(20, 32, 3), nn.Flatten(), nn.Linear(32 * 4 * 4, 300), nn.ReLU(), nn.Linear(300, 10))
local opt = lm.optim.Adam(net:parameters(), {lr = 0.01})
local images, labels = lm.rand {64, 3, 28, 28}, lm.randint(1, 11, {64})
for _ = 1, 3 do
  local loss = F.cross_entropy(net(images), labels)
  opt:zero_grad()
  loss:backward()
  opt:step()
end
local x = lm.randn({300, 300}, {dtype = "float64"})
lm.linalg.svd(x:mm(x))
lm.fft.rfft(lm.randn {64, 1000})
compare "trained"
print(state.threads() .. " threads")
]]

describe("a process of others", function()
  it("keeps its imports, signals and environment, and gets no threads but those asked for", function()
    temp.write(folder .. "/script.lua", SCRIPT)
    local _, text, code = temp.run(folder, "timeout -k 2 60 luajit " .. folder .. "/script.lua")
    assert.equal("2 threads\n", text)
    assert.equal(0, code)
  end)

  it("has a handler of SIGBUS while a mapped file is in use, and not longer", function()
    temp.write(folder .. "/script.lua", [[
      local state = require "spec.support.process_state"
      local before, file = state.signals(), arg[1]
      local lm = require "luminary"
      lm.save(file, {x = lm.ones {1000}})
      lm.load(file)
      print(state.signals() == before)
      local mapped = lm.load(file, {mmap = true})
      print(state.signals() == before, mapped.x:sum():item())
      mapped = nil
      collectgarbage()
      collectgarbage()
      print(state.signals() == before)
    ]])
    local _, text = temp.run(folder, ("timeout -k 2 60 luajit %s/script.lua %s/x.safetensors"):format(folder, folder))
    assert.equal("true\nfalse\t1000\ntrue\n", text)
  end)
end)

describe("the pool of threads", function()
  it("runs loops of many callers, within each other, after a fork and at the exit #unsanitized", function()
    local program = folder .. "/pool"
    local compile = "unset LD_PRELOAD; gcc -std=gnu11 -O1 -Wall -Wextra -Werror -Isrc spec/support/pool_check.c "
      .. "-o %s -L%s -Wl,-rpath,%s -lluminary -lpthread"
    local library = package.searchpath("luminary.core", package.cpath):match "^(.*)/"
    local _, report, failed = temp.run(folder, compile:format(program, library, library))
    if os.execute "gcc --version >/dev/null 2>&1" ~= 0 then return pending "there is no compiler" end
    assert.equal(0, failed, report)
    for _, how in ipairs {"callers", "nested", "fork", "exit", "failing"} do
      local _, text, code = temp.run(folder, ("timeout -k 2 60 %s %s"):format(program, how))
      assert.equal(how .. ": good\n", text)
      assert.equal(0, code)
    end
  end)
end)
