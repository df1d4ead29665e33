-- Tests Torch7's tools: command lines, timers, the confusion matrix, the logger and the tester.
local lm = require "luminary"
require "luminary.torch7"
local temp = require "spec.support.temp"
local optim = lm.optim

describe("optim.ConfusionMatrix", function()
  it("counts, and prints as Torch7's", function()
    local c = optim.ConfusionMatrix { "cat", "dog" }
    c:add(1, 1)
    c:add(lm.tensor { 0.1, 0.7 }, 1)
    c:batchAdd(lm.tensor { { 0, 1 }, { 3, 1 } }, lm.tensor({ 2, 1 }, { dtype = "int64" }))
    assert.same({ { 2, 1 }, { 0, 1 } }, c.mat:totable())
    assert.equal("ConfusionMatrix:\n[[       2       1]   66.667% \t[class: cat]\n"
      .. " [       0       1]]  100.000% \t[class: dog]\n + average row correct: 83.333333333333% \n"
      .. " + average rowUcol correct (VOC measure): 58.333333333333% \n + global correct: 75%", tostring(c))
    assert.equal(0.75, c.totalValid)
    c:zero()
    assert.equal(0, c.mat:sum():item())
  end)
  it("refuses classes that are not there", function()
    local c = optim.ConfusionMatrix(2)
    assert.error_matches(function() c:add(3, 1) end, "prediction must be from 1 to 2, got 3")
    assert.error_matches(function() c:batchAdd(lm.ones(2, 3), lm.ones(2)) end, "predictions must have 2 entries, one")
    assert.error_matches(function() c:batchAdd(lm.ones(2), lm.ones(3)) end, "predictions and targets must have the")
  end)
end)

describe("optim.Logger", function()
  it("writes a column for each name, and plots by gnuplot", function()
    local folder = temp.folder()
    local log = optim.Logger(folder .. "/logs/of/a.log"):setNames { "train", "test" }
    log:add { 0.5, 0.25 }
    log:add { test = 2, train = 1 }
    assert.equal("train\ttest\t\n 5.0000e-01\t 2.5000e-01\t\n 1.0000e+00\t 2.0000e+00\t\n",
      temp.read(folder .. "/logs/of/a.log"))
    assert.error_matches(function() log:add { 1 } end, "1 values for 2 columns")
    assert.error_matches(function() log:add { best = 1 } end, "no column 'best'")
    assert.error_matches(function() log:style { "!" } end, "unknown style '!'")
    temp.write(folder .. "/gnuplot", "#!/bin/sh\ncat > " .. folder .. "/plotted\n")
    temp.write(folder .. "/p.lua", ([[local lm = require "luminary" require "luminary.torch7"
      local log = lm.optim.Logger("%s/b.log"):setNames{"train"}:style "-"
      log:add {3} log:add {4} assert(log:plot())]]):format(folder))
    local ok, out = temp.run(folder, ("chmod +x %s/gnuplot; PATH=%s:$PATH luajit %s/p.lua"):format(folder, folder,
      folder))
    assert.is_true(ok, out)
    assert.is_truthy(temp.read(folder .. "/plotted"):find("title 'train' with lines\n1 3\n2 4\ne", 1, true))
    temp.remove(folder)
  end)
end)

describe("lm.CmdLine", function()
  local function line()
    local cmd = lm.CmdLine()
    cmd:text "Trains"
    cmd:option("-lr", 0.1, "rate")
    cmd:option("-name", "a", "name")
    cmd:option("--fast", false, "no waiting")
    return cmd
  end
  it("parses by the defaults' types", function()
    assert.same({ lr = 0.1, name = "a", fast = false }, line():parse {})
    assert.same({ lr = -2, name = "-b", fast = true }, line():parse { "-lr", "-2", "-name=-b", "--fast" })
    local cmd = line()
    cmd:argument("file", "what to read")
    assert.equal("x", cmd:parse({ "x" }).file)
    local dashed = lm.CmdLine()
    dashed:argument("-data", "what to read")
    dashed:option("-lr", 1, "rate")
    dashed:option("-lr", 2, "rate")
    dashed:option("-log", nil, "a file")
    assert.same({ data = "x", lr = 2 }, dashed:parse { "x" })
    assert.same(line():parse {}, line():default())
    assert.equal("run,fast=t,lr=3", cmd:string("run", cmd:parse { "x", "-lr", "3", "-fast" }, { file = true }))
  end)
  it("says what is wrong, and ends", function()
    local folder = temp.folder()
    local script = temp.write(folder .. "/s.lua", [[local cmd = require("luminary.torch7").CmdLine()
      cmd:option("-rate", 0.1, "the rate") cmd:parse(arg) print "on"]])
    for given, wanted in pairs { ["-rata 1"] = "did you mean '-rate'", ["-rate x"] = "must be a number, got 'x'",
      ["-rate"] = "requires a value", more = "unrecognized argument 'more'" } do
      local ok, out, code = temp.run(folder, ("luajit %s %s"):format(script, given))
      assert.is_false(ok)
      assert.equal(1, code)
      assert.is_truthy(out:find(wanted, 1, true), out)
    end
    local ok, out = temp.run(folder, ("luajit %s -help"):format(script))
    assert.is_true(ok)
    assert.is_truthy(out:find("-rate the rate [0.1]", 1, true), out)
    temp.remove(folder)
  end)
  it("log has print write to a file too", function()
    local folder, before = temp.folder(), print
    local cmd = line()
    cmd:addTime("spec", "%Y")
    cmd:silent()
    cmd:log(folder .. "/log", { lr = 3 })
    local logging = print
    logging("a", 1)
    print = before -- luacheck: ignore
    assert.is_true(logging ~= before)
    local text = temp.read(folder .. "/log")
    assert.is_truthy(text:find("[command line arguments]\nlr\t3\n", 1, true), text)
    assert.is_truthy(text:find "\n%d%d%d%d%[spec%]: a\t1\n$", text)
    temp.remove(folder)
  end)
end)

describe("torch.Tester", function()
  it("is a class that others extend, as totem does", function()
    local torch = require "luminary.torch7"
    local place = {}
    local Own, parent = torch.class("spec.Tester", "torch.Tester", place)
    local seen = {}
    function Own:_assert_sub(ok, message)
      seen[#seen + 1] = { ok, message }
      return parent._assert_sub(self, ok, message)
    end
    function Own._success() return true, "fine" end
    function Own._failure(_, message) return false, message end
    local tester = place.Tester()
    assert.same({ true, "fine" }, { tester:eq(1, 1, "x") })
    local ok, message = tester:assertTensorEq(torch.ones(1), torch.zeros(1), 0.5, "x")
    assert.is_false(ok)
    assert.matches("^x\n", message)
    assert.equal(2, #seen)
  end)
  local torch = require "luminary.torch7"
  local function report(tests, ...)
    local written, before = {}, io.write
    io.write = function(...) table.insert(written, table.concat { ... }) end -- luacheck: ignore
    local names = { ... }
    local ok, err = pcall(function() return tests:run(unpack(names)) end)
    io.write = before -- luacheck: ignore
    return ok, table.concat(written), tostring(err)
  end
  it("counts what holds and names what does not", function()
    local tester, suite, around = torch.Tester(), torch.TestSuite(), 0
    function suite.holds()
      tester:eq({ 1, { torch.ones(2) } }, { 1, { torch.ones(2) } })
      tester:ne(torch.ones(2), torch.ones(3))
      tester:assertTensorEq(torch.ones(2), torch.ones(2) + 1e-4, 1e-3)
      tester:assertalmosteq(1, 1.0001, 1e-3)
      tester:assertlt(1, 2)
      tester:assertge(2, 2)
      tester:assertError(function() error "x" end)
      tester:assertErrorPattern(function() error "some words" end, "me wo")
      tester:assertNoError(function() end)
      tester:assertErrorObj(function() error { code = 3 } end, function(e) return e.code == 3 end)
      tester:eq(torch.ones(2, 3):size(), torch.LongStorage { 2, 3 })
      tester:assert(true)
      tester:eq(1, 1 + 1e-9, "label", 1e-6)
      tester:assertTensorEq(torch.ones(1, 2), torch.ones(2) + 1e-9, "label", 1e-6)
      tester:assertTableNe({ 1, a = 2 }, { 1 }, "label")
      tester:ne(torch.ones(1, 2), torch.ones(2))
      tester:ne(0 / 0, 0 / 0)
      tester:assertne({}, {})
    end
    suite._setUp = function() around = around + 1 end
    tester:add(suite)
    local ok, out = report(tester)
    assert.is_true(ok, out)
    assert.equal("Completed 18 asserts in 1 tests with 0 failed\n", out)
    assert.equal(1, around)
    tester:add({ fails = function()
      tester:eq(1, 2, "one is two")
      tester:assertTensorEq(torch.ones(2), torch.zeros(2), 0.5)
    end, breaks = function() error "broken" end })
    local text, err
    ok, text, err = report(tester)
    assert.is_false(ok)
    assert.is_truthy(err:find "failed: breaks, fails")
    assert.is_truthy(text:find "tools_spec.lua:%d+: one is two\nGENERALEQ violation: 1 and 2, tolerance=0")
    assert.is_truthy(text:find "broken")
    assert.is_true((report(tester, "holds")))
    text = select(2, report(tester:setEarlyAbort(true):setSummaryOnly(true)))
    assert.equal("Completed 0 asserts in 3 tests with 1 failed\n", text:gsub("Completed %d+", "Completed 0"), 1)
    assert.matches("broken", select(3, report(tester:setRethrowErrors(true), "breaks")))
    tester:setRethrowErrors(false):setEarlyAbort(false)
    assert.is_true((report(tester:disable { "fails", "breaks" })))
    assert.error_matches(function() tester:eq(1, 1, "a", "b") end, "expected a tolerance of at least 0 and a message")
    assert.error_matches(function() tester:assertlt(1, 2, 0.5) end, "expected a message, got 0.5")
    assert.error_matches(function() suite.holds = print end, "Test holds is already defined.")
    assert.error_matches(function() tester:add { x = 1 } end, "'x' must be a function")
  end)
end)

describe("xlua", function()
  it("progress takes steps and totals", function()
    local xlua = require "luminary.torch7".xlua
    for i = 1, 3 do xlua.progress(i, 3) end
    for _, i in ipairs { 0.5, 1.5, 4 } do xlua.progress(i, 2.5) end
    assert.error_matches(function() xlua.progress("a", 3) end, "i must be a number, got string 'a'")
    assert.same({ "1h2m", "3s500ms", "0ms" }, { xlua.formatTime(3723), xlua.formatTime(3.5), xlua.formatTime(0) })
  end)
end)

describe("torch.Timer", function()
  it("is resumed, which does nothing while a lap runs", function()
    local torch = require "luminary.torch7"
    local timer = torch.Timer()
    timer:stop()
    local at = timer:time()
    assert.is_true(timer:resume():time().real >= at.real)
    assert.equal(timer, timer:resume())
    timer:stop()
    assert.equal(2, #timer.times)
  end)
end)

describe("Torch7's names #lua", function()
  it("are there, or left out for a reason", function()
    local folder = temp.folder()
    local ok, out = temp.run(folder, "luajit torch7/missing_names.lua")
    temp.remove(folder)
    assert.is_true(ok, out)
    assert.is_truthy(out:find "\nnn: %d+ of 190\n", out)
    assert.is_truthy(out:find "\n0 names without a reason, 0 missing that 4 or more use\n", out)
  end)
end)
