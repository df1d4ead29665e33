-- Loading the library, positions of errors, help, threads, time, environment.
local lm = require "luminary"
local core = require "luminary.core"
local temp = require "spec.support.temp"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim
local file = debug.getinfo(1, "S").short_src

-- Runs Lua text in a new process with that environment. Returns its output on both streams.
local function run(text, environment)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
  local pipe = assert(io.popen((environment or "") .. " luajit " .. path .. " 2>&1"))
  local out = pipe:read("*a")
  pipe:close()
  os.remove(path)
  return out
end

describe("require", function()
  it("defines no globals, patches no library and prints nothing", function()
    assert.equal("done\n", run [[
      local function snapshot()
        local seen = {}
        local function look(t, name)
          if seen[t] then return end
          seen[t] = {}
          for k, v in next, t do
            seen[t][k] = v
            if type(v) == "table" and k ~= "loaded" and k ~= "preload" then look(v, name .. "." .. tostring(k)) end
          end
          local mt = debug.getmetatable(t)
          seen[t]['its metatable'] = mt or false
        end
        look(_G, "_G")
        local mt = debug.getmetatable("")
        return seen, mt, mt.__index
      end
      local ffi, jit = require "ffi", require "jit"
      local before, mt, index = snapshot()
      local lm = require "luminary"
      local _ = lm.nn, lm.optim, lm.data, lm.dist, lm.autograd, lm.Timer, lm.repr, lm.save, lm.load
      assert(require "luminary" == lm)
      local x = lm.ones({2, 2}, {requires_grad = true})
      lm.nn.Linear(2, 1)(x):sum():backward()
      local after, mt2, index2 = snapshot()
      assert(mt == mt2 and index == index2)
      for t, fields in pairs(after) do
        assert(before[t], "a new table in a global one")
        for k, v in pairs(fields) do assert(before[t][k] == v, "a new field: " .. tostring(k)) end
        for k in pairs(before[t]) do assert(fields[k] ~= nil, "a field is gone: " .. tostring(k)) end
      end
      for k in pairs { nn = 1, luminary = 1, lm = 1 } do assert(rawget(_G, k) == nil) end
      print "done"
    ]])
  end)

  it("loads what is asked for only", function()
    assert.equal("", run [[
      require "luminary"
      for name in pairs(package.loaded) do
        if name:find("^luminary%.nn") or name:find("^luminary%.optim")
          or name:find("^luminary%.data") then print(name) end
      end
    ]])
  end)

  it("adds no global", function()
    assert.is_nil(rawget(_G, "luminary"))
  end)

  it("says what failed where a file that is loaded when needed cannot be opened", function()
    local out = run([[
      local lm = require "luminary"
      local net, held = lm.nn.Linear(1, 1), {}
      repeat held[#held + 1] = io.open "/dev/null" or false until not held[#held]
      held[#held] = nil
      for _, f in ipairs {
        function() lm.save("/nowhere/x.safetensors", {}) end, function() return lm.text end,
        function() return net:clone() end, function() return lm.nothing end, function() require "luminary.nothing" end,
      } do
        print((select(2, pcall(f)):gsub("^.-(%d+: )", "", 1)))
      end
      for _, file in ipairs(held) do file:close() end
      print(lm.repr {net:clone().in_features}, (pcall(require, "luminary.nothing")))
    ]], "ulimit -n 40;")
    out = out:gsub("\n\tno f[^\n]*", "")
    assert.equal([[
cannot load module 'luminary.save_load': Too many open files
cannot load module 'luminary.text': Too many open files
cannot load module 'luminary.nn.clone': Too many open files
cannot load module 'luminary.help.pytorch_names': Too many open files
module 'luminary.nothing' not found:
{1}	false
]], out)
  end)

  it("loads a part again whose first loading a host's time limit ended, wherever it was", function()
    assert.equal("true\n", run [[
      local lm = require "luminary"
      for _, part in ipairs {"nn", "optim", "data", "distributions", "models"} do
        for steps = 200, 20000, 1800 do
          pcall(function() -- the limit may strike at the last of these lines, which is still inside
            debug.sethook(function() debug.sethook() error "time limit" end, "", steps)
            local _ = lm[part]
            debug.sethook()
          end)
        end
        assert(lm[part], part)
      end
      print((pcall(lm.nn.Linear, 2, 2)))
    ]])
  end)

  it("ends a process that still holds tensors, graphs and running modes without a word", function()
    assert.equal("", run [[
      local lm = require "luminary"
      X = lm.ones({10}, {requires_grad = true})
      Y = (X * X):sum()
      X:register_hook(function(g) return g end)
      CO = coroutine.wrap(function() local t = lm.ones(3); coroutine.yield(t) end)
      T = CO()
    ]])
    assert.equal("", run([[
      local lm = require "luminary"
      lm.scope(function() local x = lm.ones(5); lm.no_grad(function() os.exit(0) end) end)
    ]], "ASAN_OPTIONS=detect_leaks=0")) -- os.exit leaves Lua's objects where they are
  end)
end)

-- raised returns the message of what f raises; next_line, the number of the line below its call.
local function raised(f)
  local ok, err = pcall(f)
  assert(not ok, "no error")
  assert(type(err) == "string", type(err))
  return err
end
local function next_line() return debug.getinfo(2, "l").currentline + 1 end

describe("errors", function()
  it("point at the first line outside the library", function()
    local x = lm.ones(2, 3)
    local line
    local Net = nn.Module:extend("Net")
    function Net:init() self.fc = nn.Linear(2, 2) end
    function Net:forward(input)
      line = next_line()
      local y = self.fc(input)
      return y
    end
    local cases = {
      ["an op"] = function()
        line = next_line()
        local _ = lm.sum(x, 9)
      end,
      ["a method"] = function()
        line = next_line()
        local _ = x:sum(9)
      end,
      ["an operator"] = function()
        line = next_line()
        local _ = x + lm.ones(7)
      end,
      ["an index"] = function()
        line = next_line()
        local _ = x[5]
      end,
      ["an assignment"] = function()
        line = next_line()
        x[5] = 1
      end,
      ["a field"] = function()
        line = next_line()
        x.requires_grad = 5
      end,
      ["lm.tensor"] = function()
        line = next_line()
        local _ = lm.tensor { { 1 }, { 1, 2 } }
      end,
      ["a method written in Lua"] = function()
        line = next_line()
        local _ = x:split(0)
      end,
      ["an op inside a method written in Lua"] = function()
        line = next_line()
        local _ = x:split(1, 9)
      end,
      ["a layer's constructor"] = function()
        line = next_line()
        local _ = nn.Linear(3)
      end,
      ["an op inside a layer"] = function()
        line = next_line()
        local _ = nn.Linear(5, 2)(x)
      end,
      ["an op inside a Sequential"] = function()
        line = next_line()
        local _ = nn.Sequential(nn.ReLU(), nn.Linear(5, 2))(x)
      end,
      ["an op inside a layer inside a user's module"] = function()
        local _ = Net()(x)
      end,
      ["an optimizer"] = function()
        line = next_line()
        local _ = optim.SGD({ x }, { lrr = 1 })
      end,
      backward = function()
        line = next_line()
        x:backward()
      end,
      ["a mode"] = function()
        line = next_line()
        lm.no_grad(3)
      end,
      ["a function in a mode"] = function()
        lm.no_grad(function()
          line = next_line()
          local _ = x:sum(9)
        end)
      end,
      ["lm.try_gpu"] = function()
        line = next_line()
        local _ = lm.try_gpu(-1)
      end,
      ["lm.repr's neighbour, a Timer"] = function()
        local timer = lm.Timer()
        timer:stop()
        line = next_line()
        timer:stop()
      end,
    }
    for name, f in pairs(cases) do
      local err = raised(f)
      local want = ("%s:%d: "):format(file, line)
      assert(err:sub(1, #want) == want, ("%s: %q does not start with %q"):format(name, err, want))
      assert(not err:find("luminary/", 1, true), name .. ": " .. err) -- no other file is named
    end
  end)

  it("point at the running chunk and coroutine", function()
    local chunk = assert(loadstring("local x = ...\n\nlocal y = x:sum(9)\nreturn y", "=mine"))
    assert.matches("^mine:3: sum: dim 9", raised(function() chunk(lm.ones(2)) end))
    local co = coroutine.create(chunk)
    local _, err = coroutine.resume(co, lm.ones(2))
    assert.matches("^mine:3: sum: dim 9", err)
    local other = assert(loadstring("local y = ...\ny = y + 'a'", "@dir/mine.lua"))
    assert.matches("^dir/mine%.lua:2: add: other", raised(function() other(lm.ones(2)) end))
  end)

  it("name the op and the argument, what was given and what is wanted", function()
    local x = lm.ones(2, 3)
    local cases = {
      { function() x:sum { dim = "two" } end, "sum: dim must be a dim or a list of dims, got string 'two'" },
      { function() lm.zeros("2") end, "zeros: size must be an integer or a list of integers, got string '2'" },
      { function() lm.mm(x) end, "mm: other is missing; expected a tensor" },
      { function() lm.cummin(x) end, "cummin: dim is missing; expected a dim %(an integer%)$" },
      { function() lm.linspace(1, 2) end, "linspace: steps is missing; expected an integer$" },
      { function() lm.linspace(1, 2, nil) end, "linspace: steps must be an integer, got nil$" },
      { function() x:to() end, "to: argument 1 is missing; expected a dtype" },
      { function() lm.mm(x, 3) end, "mm: other must be a tensor, got 3" },
      { function() lm.stack { x, x[{ 1, 2 }] } end, "stack: tensors%[2%] must be a tensor, got 1; lm.tensor {…} makes "
        .. "one of numbers; an element is one as x%[{{i, i}}%]$" },
      { function() lm.mm(x, x) end, "mm: inner sizes of x and other must match.*%[2, 3%].*%[2, 3%]" },
      { function() lm.cat(x) end, "cat: tensors must be a list of tensors, got one tensor" },
      { function() lm.cat { x, 3 } end, "cat: tensors%[2%] must be a tensor, got 3" },
      { function() x:sum(1.5) end, "sum: dim must be an integer, got 1.5" },
      { function() x:clamp(1, { 2 }) end, "clamp: max must be a tensor or a number, got a table" },
      { function() lm.relu(io.stdout) end, "relu: x must be a tensor, got a userdata" },
      { function() x:var(1, { keepdim = 1 }) end, "var: keepdim must be true or false, got 1" },
      { function() lm.ones({ 2 }, { dtype = 32 }) end,
        "ones: dtype must be a dtype such as \"float32\", got 32" },
      { function() F.mse_loss(x, x, { reduction = "avg" }) end,
        "mse_loss: reduction must be one of 'none', 'mean', 'sum'" },
      { function() x:permute(1, 2, 3, 4, 5, 6, 7, 8, 9) end,
        "permute: dims must be a list of at most 8 entries, got 9" },
    }
    for _, case in ipairs(cases) do
      local err = raised(case[1])
      assert(err:find("^[^:]+:%d+: " .. case[2]), ("%q does not match %q"):format(err, case[2]))
    end
  end)

  it("name the nearest option", function()
    local x = lm.ones(2, 3)
    local cases = {
      { function() x:sum { keepdims = true } end, "sum: unknown option 'keepdims'; did you mean 'keepdim'%?" },
      { function() lm.zeros({ 2 }, { dype = "int64" }) end, "zeros: unknown option 'dype'; did you mean 'dtype'%?" },
      { function() lm.zeros({ 2 }, { require_grad = true }) end,
        "zeros: unknown option 'require_grad'; did you mean 'requires_grad'%?" },
      { function() x:sum { whatever = 1 } end, "sum: unknown option 'whatever'; options are dim, keepdim, dtype" },
      { function() x:exp { out = x } end, "exp: unknown option 'out'; results are new tensors: y:copy_%(result%) "
        .. "copies one into y, x:exp_%(…%) writes in place$" },
      { function() lm.mm(x, x, { out = x }) end,
        "mm: unknown option 'out'; results are new tensors: y:copy_%(result%) copies one into y$" },
      { function() lm.nn.functional.interpolate(x, { out = x }) end,
        "interpolate: unknown option 'out'; results are new tensors: y:copy_%(result%) copies one into y$" },
      { function() nn.Conv2d(1, 2, 3, { strid = 2 }) end, "Conv2d: unknown option 'strid'; did you mean 'stride'%?" },
      { function() optim.SGD({ x }, { momentun = 0.9 }) end,
        "SGD: unknown option 'momentun'; did you mean 'momentum'%?" },
      { function() lm.tensor({ 1 }, { requires_gard = true }) end,
        "tensor: unknown option 'requires_gard'; did you mean 'requires_grad'%?" },
      { function() x:backward { retain_grph = true } end, "retain_grph.*did you mean 'retain_graph'%?" },
      { function() x:sum { [true] = 1, keepdim = true } end, "sum: " },
    }
    for _, case in ipairs(cases) do
      local err = raised(case[1])
      assert(err:find("^[^:]+:%d+: .*" .. case[2]), ("%q does not match %q"):format(err, case[2]))
    end
  end)

  it("show how PyTorch's further positional arguments are written", function()
    local x = lm.ones(2, 3)
    local cases = {
      { function() x:sum(1, true, "float64") end, "sum: dtype is an option: x:sum%(1, true, {dtype = \"float64\"}%)" },
      { function() lm.sub(x, x, 2) end, "sub: alpha is an option: .*{alpha = 2}" },
      { function() x:exp(1) end, "exp: takes at most 1 argument, got 2: x" },
      { function() x:mm(x, x) end, "mm: takes at most 2 arguments, got 3: x, other" },
      { function() lm.max(x, 1, true, 2) end, "max: takes at most 3 arguments, got 4: x, dim, keepdim" },
      { function() lm.full(2, 2, 3) end, "full: takes at most 2 .*: size, value; several sizes are one list: {2, 3}" },
    }
    for _, case in ipairs(cases) do
      local err = raised(case[1])
      assert(err:find("^[^:]+:%d+: .*" .. case[2]), ("%q does not match %q"):format(err, case[2]))
    end
  end)
end)

describe("lm.help", function()
  it("shows an op's arguments with their defaults, and what it does", function()
    assert.matches("sum(x, dim = nil, keepdim = false, {dtype = nil})\n  Computes the sum of the elements over dim",
      lm.help "lm.sum", 1, true)
    assert.matches("^" .. lm.help("lm.sum"):gsub("%p", "%%%0") .. "\nTimer:sum%(%)\n", lm.help "sum")
    assert.matches("^relu_%(x%)\n.*in place", lm.help "relu_")
    assert.matches("reduction = \"mean\"", lm.help "mse_loss")
    assert.matches("requires_grad = false", lm.help "zeros")
    assert.is_nil(lm.help "no_such_op")
    assert.error_matches(function() lm.help(3) end, "help: .*name")
    for _, name in ipairs(lm.op_list()) do
      local text = lm.help("lm." .. name) -- F.unfold is another one
      assert(text:find("^" .. name .. "%(.*%)\n  %S"), text)
    end
  end)
end)

describe("threads", function()
  it("are as many as set_num_threads says", function()
    local before = lm.get_num_threads()
    assert(before >= 1)
    for _, n in ipairs { 1, 2, 3 } do
      lm.set_num_threads(n)
      assert.equal(n, lm.get_num_threads())
    end
    local a = lm.randn(64, 64)
    local three = a:mm(a)
    lm.set_num_threads(1)
    assert.is_true(three:allclose(a:mm(a), { rtol = 1e-4, atol = 1e-4 }))
    lm.set_num_threads(before)
    for _, bad in ipairs { 0, -1, 1.5, "2", 1e9, 257} do
      assert.error_matches(function() lm.set_num_threads(bad) end, "set_num_threads: n")
    end
    assert.equal(before, lm.get_num_threads())
  end)
end)

describe("time", function()
  it("runs forward, in seconds", function()
    local began, a = os.time(), lm.time()
    local x = 0
    for k = 1, 1e6 do x = x + k end
    local b = lm.time()
    assert(b > a and b - a <= os.time() - began + 1, b - a)
    assert.equal(500000500000, x)
  end)

  it("is stopped by a Timer, lap by lap", function()
    local timer = lm.Timer() -- runs at once
    local first = timer:stop()
    assert(first >= 0)
    assert.equal(timer, timer:start())
    local second = timer:stop()
    assert.same({ first, second }, timer.times)
    assert.equal(first + second, timer:sum())
    assert.equal((first + second) / 2, timer:avg())
    assert.error_matches(function() timer:stop() end, "Timer: call start%(%) before stop%(%)")
    assert.equal(2, #timer.times)
    assert.matches("^Timer%(2 laps, ", tostring(timer))
    assert.equal(0, lm.Timer():avg())
    local outer = lm.time()
    timer:start()
    local lap = timer:stop()
    assert(lap <= lm.time() - outer)
  end)

  it("counts the processor's time in Timer:time, and resets it", function()
    local timer = lm.Timer()
    local stop = os.clock() + 0.02 -- CPU time, as others may keep the processor busy meanwhile
    repeat until os.clock() > stop
    timer:stop()
    local at = timer:time()
    assert.is_true(at.real > 0 and at.user + at.sys >= 0.019)
    assert.same(at, timer:time())
    assert.same({ {}, 0, 0 }, { timer:reset().times, timer.user, timer.sys })
  end)
end)

describe("lm.setenv", function()
  it("sets what this process and its children see, and removes", function()
    local name = "LM_SPEC_VARIABLE"
    assert.is_nil(os.getenv(name))
    lm.setenv(name, "a value")
    assert.equal("a value", os.getenv(name))
    assert.equal("a value", lm.getenv(name))
    local pipe = io.popen("printenv " .. name)
    assert.equal("a value\n", pipe:read("*a"))
    pipe:close()
    lm.setenv(name, 5)
    assert.equal("5", os.getenv(name))
    lm.setenv(name, nil)
    assert.is_nil(os.getenv(name))
    assert.is_nil(lm.getenv(name))
    assert.error_matches(function() lm.setenv(3, "x") end, "setenv: ")
    assert.error_matches(function() lm.setenv("A=B", "x") end,
      "setenv: name must be non%-empty and without '=', got string 'A=B'")
    assert.error_matches(function() lm.setenv("A", {}) end, "setenv: ")
    assert.error_matches(function() lm.getenv() end, "getenv: ")
  end)
end)

describe("the memory of results", function()
  -- Counts blocks of results: half of the machine's cache, of at most 32 MB unless LM_CACHE_BYTES says more.
  local function count_blocks(environment)
    return tonumber(run([[
      local lm = require "luminary"
      local x, seen, n = lm.zeros(2 ^ 18), {}, 0
      for _ = 1, 400 do
        local block = tostring((x + 1):data_ptr())
        if not seen[block] then seen[block], n = true, n + 1 end
      end
      print(n)
    ]], environment))
  end

  it("is used again before a cache is full, of which a process counts on a part #unsanitized", function()
    local few = count_blocks "env -u LM_CACHE_BYTES"
    assert(few <= 20, few)
    local many = count_blocks "LM_CACHE_BYTES=256000000"
    assert(many >= 30, many)
  end)
end)

describe("LM_LOG", function()
  local script = [[
    local lm = require "luminary"
    local x = lm.ones({ 2, 3 }):add(1):sum()
    local big = lm.zeros({ 1000, 1000 }, { device = "cpu:1" })
  ]]

  it("traces what it names, and nothing unasked", function()
    assert.equal("", run(script, "LM_LOG="))
    local ops = run(script, "LM_LOG=op")
    local at = "%[op [%d.]+%] "
    assert.matches("^" .. at .. "ones\n" .. at .. "add float32 %[2, 3%], number\n" ..
      at .. "sum float32 %[2, 3%]\n", ops)
    assert.is_nil(ops:find("[alloc", 1, true))
    local allocations = run(script, "LM_LOG=alloc")
    assert.matches("^%[alloc [%d.]+%] cpu:1: %d+ bytes from the driver for 4000000\n$", allocations)
    local both = run(script, "LM_LOG=op,alloc")
    assert(both:find("[op", 1, true) and both:find("[alloc", 1, true), both)
    assert(run(script, "LM_LOG=all"):find("[alloc", 1, true))
  end)

  it("says so when there is no such topic", function()
    assert.matches("^LM_LOG: no topic 'ops'; there are op, .*all\n$", run(script, "LM_LOG=ops"))
  end)

  it("has no topic that no call logs to", function()
    local header = temp.read "src/base/log.h"
    local pipe = io.popen "grep -rho 'lm_log(LM_LOG_[A-Z]*' src"
    local calls = pipe:read "*a"
    pipe:close()
    for topic in header:match("enum lm_topic {(.-)}"):gmatch "LM_LOG_%u+" do
      local elsewhere = topic == "LM_LOG_TRACE" or topic == "LM_LOG_TOPICS" -- read by cli/init.lua; the number of them
      assert(elsewhere or calls:find("lm_log(" .. topic .. "\n", 1, true), topic)
    end
  end)
end)

describe("what the core hands to Lua", function()
  it("parses names of dtypes and devices once, canonically", function()
    assert.equal("float32", core.dtype "float")
    assert.equal("int64", core.dtype "long")
    assert.equal("cpu", core.device "cpu:0")
    assert.equal("cpu:7", core.device "cpu:7")
    assert.equal(2, core.dtype_size "bfloat16")
    assert.is_true(core.is_floating_point "half")
    assert.is_false(core.is_floating_point "bool")
    assert.error_matches(function() core.dtype "flot" end, "flot.*float")
    assert.error_matches(function() core.device "" end, "device")
    assert.equal("keepdim", core.nearest("keepdims", { "dim", "keepdim", "dtype" }))
    assert.is_nil(core.nearest("zebra", { "dim", "keepdim" }))
  end)
end)

describe("JSON", function()
  local json_encode = require "luminary.base.json_encode"

  it("keeps every byte of strings and keys, and every bit of numbers, in any locale", function()
    local bytes = {}
    for i = 0, 127 do bytes[i + 1] = string.char(i) end
    local value = { text = table.concat(bytes), ["a\0key"] = { "ü\240\159\152\128", true, false, {} }, [""] = "" }
    for _, locale in ipairs { "C", "de_DE.UTF-8" } do
      local before = os.setlocale(nil)
      os.setlocale(locale) -- if this machine has the locale
      local numbers = {}
      for k = 1, 300 do numbers[k] = (math.random() - 0.5) * 10 ^ math.random(-300, 300) end
      local text, again = json_encode(value), core.json_decode(json_encode(numbers))
      os.setlocale(before)
      assert.same(value, core.json_decode(text))
      assert.same(numbers, again)
    end
    assert.equal('{"a\\u0000b":"\\u0001\\n\\"\\\\/"}', json_encode { ["a\0b"] = "\1\n\"\\/" })
    assert.same({ "é", "\240\159\152\128", "/" }, core.json_decode ' [ "\\u00e9","\\ud83D\\uDE00" ,"\\/" ]\n')
    assert.same({ 1, -2.5, 1e300, 9007199254740993, 1, 3, 4, 5 },
      core.json_decode "[1,-2.5,1E+300,9007199254740993,1,3,4,5]")
  end)

  it("keeps the order of keys where a table for them is passed", function()
    local order = {}
    local value = core.json_decode('{"b": [{"z": 1, "a": {}}, []], "a": 2}', nil, order)
    assert.same({ b = { { z = 1, a = {} }, {} }, a = 2 }, value)
    assert.same({ "b", "a" }, order[value])
    assert.same({ "z", "a" }, order[value.b[1]])
    assert.same({}, order[value.b[1].a])
    assert.is_nil(order[value.b])
    assert.is_nil(order[value.b[2]]) -- a list
  end)

  it("that is none is an error at its byte", function()
    for text, words in pairs {
      [""] = "byte 1: expected a JSON value", ["[1,]"] = "byte 4: expected a JSON value",
      ["[1 2]"] = "byte 4: expected ']'",
      ['{"a" 1}'] = "byte 6: expected ':'", ["{a:1}"] = "byte 2: expected a key in quotes",
      ['"ab'] = "byte 1: a string",
      ['["\\x"]'] = "byte 3: unknown escape", ['"\\ud800"'] = "byte 2: half of a surrogate pair",
      ["1 2"] = "byte 3: data",
      ['"a\0"'] = "byte 3: a NUL byte", ["-"] = "byte 1: expected a number", ["[1.2.3]"] = "byte 2: expected a number",
      ["tru"] = "byte 1: expected a JSON value", ['{"k":1,"k":2}'] = "byte 8: key 'k' appears twice",
      [("["):rep(2000)] = "byte 1001: nested more than 1000 deep", ['"\\u12"'] = "byte 2: unknown escape",
    } do
      assert.error_matches(function() core.json_decode(text) end, "json_decode: malformed JSON at " .. words, 1, true)
    end
    assert.error_matches(function() core.json_decode "[null]" end, "null has no value in Lua")
    assert.same({ false, {} }, core.json_decode("[null,{}]", false))
  end)
end)

describe("JSON of a table", function()
  local json_encode = require "luminary.base.json_encode"

  it("is a list or an object; a mixture is an error that names a key", function()
    assert.equal('[1,[2],{"x":3}]', json_encode { 1, lm.ones(2).shape, { x = 3 } })
    for words, value in pairs {
      ["a list of 2 with the key 'x'"] = { 1, 2, x = 3 }, ["a list of 2 with the key 4"] = { 1, 2, [4] = 3 },
      ["a list of 1 with the key 0.5"] = { 1, [0.5] = 3 }, ["a list of 1 with the key boolean"] = { 1, [true] = 3 },
      ["a list of 1 with the key '?[31m'"] = { deep = { { 1, ["\27[31m"] = 2 } } },
      ["json_encode: a key must be a string, or 1 to n, got a number"] = { [2] = 1 },
    } do
      assert.error_matches(function() json_encode(value) end, words, 1, true)
    end
  end)
end)

describe("the text of an error for people and other ranks", function()
  local truncate_text = require "luminary.base.truncate_text"

  it("has its ends whatever its bytes are", function()
    assert.equal("short \\0", truncate_text "short \0")
    for _, piece in ipairs { "x", "\195\188", "\191", "\240\159\152\128" } do
      local text = truncate_text("a" .. piece:rep(1e5) .. "z")
      assert(#text < 4200, piece)
      assert.matches("^a.*%(%d+ bytes%).*z$", text)
    end
    assert.matches("^a\195\188[\195\188]+ %.%.%.", truncate_text("a" .. ("\195\188"):rep(1e5)))
  end)
end)

describe("fields of a tensor", function()
  it("are kept with it beside its hooks, and are nil for other values", function()
    local x = lm.ones(2):requires_grad_()
    assert.is_nil(core.field(x, "note"))
    core.set_field(x, "note", false)
    local hook = x:register_hook(function(g) return g * 2 end)
    assert.is_false(core.field(x, "note"))
    core.set_field(x, "note", "text")
    x:sum():backward()
    assert.equal(2, x.grad[1])
    hook:remove()
    assert.equal("text", core.field(x, "note"))
    assert.is_nil(core.field(x:detach(), "note"))
    for _, v in ipairs {3, "x", {}, io.stdout} do assert.is_nil(core.field(v, "note")) end
    assert.has_error(function() core.set_field({}, "note", 1) end)
  end)

  it("are collected with it, also if they refer to it", function()
    local probe = setmetatable({}, {__mode = "v"})
    local function make()
      local x = lm.ones(1)
      probe.value = {x}
      core.set_field(x, "loop", probe.value)
      core.set_field(x, "hooked", x:requires_grad_():register_hook(function() end))
    end
    make()
    for _ = 1, 4 do
      collectgarbage()
      lm.ones(1)
    end
    assert.is_nil(probe.value)
  end)
end)
