-- Tests what `luminary FILE` and the prompt add to errors in LuaJIT's own words, and which frames tracebacks show.
local temp = require "spec.support.temp"
local command = "bin/luminary"

local folder = temp.during(setup, teardown)

local head = "local lm = require 'luminary' local nn, x = lm.nn, lm.ones(2, 2) local net = nn.Linear(2, 2)\n"

-- Returns what `luminary FILE`, or another command, prints for lines after `head`.
local function said(text, how, bare)
  local path = temp.write(folder .. "/script.lua", (bare and "" or head) .. text)
  local ok, out = temp.run(folder, (how or command) .. " " .. path)
  assert.is_false(ok, out)
  return (out:gsub("[^%s']*/script", "script"))
end

local function prompt(input)
  temp.write(folder .. "/input", input)
  local ok, text = temp.run(folder, ("%s <%s/input"):format(command, folder))
  assert(ok, text)
  return (text:gsub("^[^\n]*\n[^\n]*\n", ""):gsub("\n>+ ", "\n"):gsub("^[> ]+", ""):gsub("\n+$", ""))
end

-- {code, what LuaJIT says, the hint}
local seven = {
  {"local y = x > 1", "attempt to compare number with userdata",
    "tensors are compared by methods: x:gt(1); of a tensor of one element x:item() > 1"},
  {"local y = x[:, 1]", "unexpected symbol near ':'",
    "slices are tables: x[{{1, 2}}] is Python's x[0:2], x[{{}, {1, 2}}] is x[:, 0:2]"},
  {"local y = x\n(y * 2):sum()", "ambiguous syntax (function call x new statement) near '('",
    "a line that begins with ( continues the one before: write ;(…), or name the value first: local loss = …"},
  {"for v in x do print(v) end", "attempt to call a userdata value",
    "a tensor is walked by its first dim: for i = 1, #x do local row = x[i] … end"},
  {"print(('%.3f'):format(x:sum()))", "(number expected, got userdata)",
    'format takes numbers: ("%.3f"):format(loss:item())'},
  {"local y = x // 2", "unexpected symbol near '/'",
    "a // b is math.floor(a / b) of numbers, a:floor_divide(b) of tensors"},
  {"local y = (x & x)", "')' expected near '&'",
    "a & b is a:logical_and(b) of tensors, `a and b` of conditions, bit.band(a, b) of numbers"},
}

describe("the hint of an error in LuaJIT's own words #lua", function()
  it("is one line that says what to write, from luminary FILE", function()
    for _, case in ipairs(seven) do
      local text = said(case[1])
      local _, lines = text:gsub("\nhint: ", "")
      assert.equal(1, lines, text)
      assert.matches("^luminary: script.lua:%d: [^\n]*", text)
      assert.matches(case[2] .. "\nhint: " .. case[3] .. "\n", text, 1, true)
    end
  end)

  -- {code, part of the hint}; each is said of a file and, at once, at the prompt
  local python = {
    {"if x: print(1)", "if x == 1 then"}, {"if x and x:", "if x == 1 then"}, {"else:", "if x == 1 then"},
    {"for i in range(3): print(i)", "for i = 1, n do"}, {"for i in range(3):", "for i = 1, n do"},
    {"for i, (a, b) in enumerate(x):", "for i = 1, n do"}, {"while True: break", "while true do"},
    {"while True:", "while true do"}, {"try:", "pcall"}, {"y = x.cat((x, x), 1)", "a tuple is a list in braces"},
    {"a, b = (1, 2)", "a tuple is"}, {"f = lambda a: a + 1", "function(x)"},
    {"if x is None: y = 1", "if x == 1 then"}, {"y = x is None", "x == nil"}, {"y = x is not None", "x ~= nil"},
    {"y = 1 # comment", "comments begin with --"}, {"if x then pass end", "an empty block"}, {"@f", "f = decorator(f)"},
    {"y: int = 3", "no annotations"}, {"self.y: float = 3", "no annotations"}, {"yield x", "coroutine.yield"},
    {"y = 2 * x // 1", "math.floor"}, {"y = x if x else 1", "c and a or b"}, {"return x if x else 1", "c and a or b"},
    {"global y", "without local"}, {"nonlocal y", "functions assign"},
  }
  it("knows Python's statements, where LuaJIT finds them wrong later too", function()
    for _, case in ipairs(python) do
      assert.matches("\nhint: [^\n]*" .. case[2]:gsub("%p", "%%%0"), said(case[1] .. "\n"), case[1])
      assert.matches("\nhint: [^\n]*" .. case[2]:gsub("%p", "%%%0") .. "[^\n]*\n1", prompt(case[1] .. "\n0 + 1\n"))
    end
    assert.matches("hint: if x == 1 then", said("if x:\n  print(1)\n\nlocal y = 2\n"), 1, true)
    assert.matches("hint: an empty block", said("pass\n\n"), 1, true)
    assert.matches("hint: a // b", prompt "2 * x // 1\n", 1, true)
    assert.matches("hint: a text of several lines is [[…]]", prompt '"""text"""\n', 1, true)
    assert.matches("hint: comments", prompt "# comment\n", 1, true)
  end)

  it("takes no line of Lua for a block of Python", function()
    for _, text in ipairs {
      'if x == "a: b"\nthen print(1) end', "if x:gt(1):any()\n:item() then print(1) end print(1)",
      "for _, v in pairs {x = function() return 'a: ' end}\ndo print(1) end",
    } do
      assert.matches("1", prompt("x = lm.ones(2) + 1\n" .. (text:gsub("x == ", "'a: b' == ")) .. "\n"), text)
      assert.not_matches("hint", prompt("x = lm.ones(2) + 1\n" .. text .. "\n"), 1, true)
    end
  end)

  it("says at an empty line how to leave an unfinished input", function()
    temp.write(folder .. "/input", "for i = 1, 2 do\n\nend\n")
    local ok, text = temp.run(folder, ("%s <%s/input"):format(command, folder))
    assert.is_true(ok)
    assert.matches("> >> >> (Ctrl-C drops this input) > ", text, 1, true)
  end)

  it("is the same at the prompt, from -e and in luminary run", function()
    for _, case in ipairs(seven) do
      local text = prompt("x = lm.ones(2, 2)\ndo " .. case[1] .. "\nend\n")
      assert.matches(case[2] .. "\nhint: " .. case[3], text, 1, true)
    end
    local ok, text = temp.run(folder, command .. " -e 'local x = lm.ones(2) return 1 < x'")
    assert.is_false(ok)
    assert.matches("hint: tensors are compared by methods: x:gt(1);", text, 1, true)
    text = said("local y = x > 1", command .. " run --nproc_per_node 1")
    assert.matches("[rank 0] hint: tensors are compared by methods", text, 1, true)
    assert.matches("  script.lua:2: attempt to compare number with userdata\n  hint: tensors are", text, 1, true)
  end)

  it("follows the line that failed", function()
    for code, hint in pairs {
      ["if x:sum() <= 0 then return end"] = "x:le(0); of a tensor of one element x:item() <= 0",
      ["if 3 < x then return end"] = "x:gt(3)",
      ["local y = x[1:2]"] = "slices are tables", ["local y = x[a:b]"] = "slices are tables",
      ["if x then y = 1 else: end"] = false, ["if x == 1: y = 2"] = "if x == 1 then … end",
      ["// a comment"] = "comments begin with --", ["x += 1"] = "x = x + 1; of a tensor in place x:add_(1)",
      ["local y = x | x"] = "x:logical_or(b)", ["local y = ~x"] = "a:logical_not()",
      ["if x != net then end"] = "a != b is a ~= b", ["local y = x ** 2"] = "a ** b is a ^ b",
      ["local y = x @ x"] = "a @ b is a:matmul(b)", ["local y = [1, 2]"] = "lists have braces",
      ["local y = x[1, 2]"] = "x[{1, 2}]", ["local y = 1 if x else 2"] = "a if c else b is c and a or b",
      ["x:sum(dim=1)"] = "arguments by name stand in a table at the end: f(x, {dim = 2})",
      ["import torch"] = 'local lm = require "luminary"', ["from torch import nn"] = 'local lm = require "luminary"',
      ["def f(x):"] = "function name(x) … end", ["class Net(nn.Module):"] = 'local Net = nn.Module:extend "Net"',
      ["with lm.no_grad():"] = "lm.no_grad(function() … end)",
      ["for v in {1, 2} do print(v) end"] = "for i, v in ipairs(list) do … end",
      ["for i, v in ipairs(x) do print(v) end"] = "a tensor is walked by its first dim",
      ["x(1)"] = "a tensor is indexed with brackets: x[1]", ["x:grad()"] = "write x.grad",
      ["x:dtype()"] = "write x.dtype", ["net:weight()"] = "write x.weight",
      ["lm.distributions.Normal(0, 1):mean()"] = ".mean is a field and not a method: write x.mean",
      ["local d = lm.distributions.Normal(0, 1)\nprint(d:mean())"] = ".mean is a field and not a method",
      ["local d = lm.distributions.Normal(0, 1)\nprint(d.mean())"] = "a field and not a function: write x.mean",
      ["print(({mean = x}):mean())"] = "a field and not a method", ["print(({y = x}).y(1))"] = "with brackets: x[1]",
      ["print(x.grad:sum())"] = "x.grad is nil until backward()", ["print('net ' .. net)"] = "tostring(x) is its text",
      ["print(table.concat({x}, ','))"] = "tostring(x)", ["print(math.floor(x))"] = "a tensor is no number: x:item()",
      ["local a, b = x:split(1)\nprint(b:sum())"] = "split returns one list: local a, b = unpack(list)",
      ["local a, b = lm.meshgrid(x[1], x[1])\nprint(a, b + 1)"] = "meshgrid returns one list",
      ["local a = {1, 2}\nprint(a * 2)"] = "lm.tensor(t) makes a tensor of numbers",
      ["for i = 1, x:size() do print(i) end"] = "x:size() is a list: x:size(1)",
      ["for i in range(3) do print(i) end"] = "for i = 1, n do … end",
      ["for i = 1, #lm.range(3) do print(i) end"] = false, -- the library's own error says it
      ["print(len({1}))"] = "hint: #x", ["print(sorted({2, 1}))"] = "table.sort(list, f)",
      ["print(zip({1}))"] = "a[i], b[i]",
      ["super().__init__()"] = "Base.init(self, …)", ["local d = dict()"] = "{name = value}",
      ["print(isinstance(x, 1))"] = "module:is(nn.Linear)", ["print(np.ones(2))"] = "lm has what numpy",
      ['print({"a": 1})'] = "a dict is {name = value}", ["print(x is None)"] = "x == nil",
      ['print("a".upper())'] = '("text"):upper()', ["print('%d' % 3)"] = '("%d"):format(n)',
      ["print('a' + 'b')"] = "..",
      ['print(os.path.join("a", "b"))'] = "lm.paths has concat", ['os.makedirs("a")'] = "lm.paths.mkdir(folder)",
      ["print(os.environ.HOME)"] = "os.getenv", ["time.sleep(1)"] = "lm.time()", ["tqdm(1)"] = "lm.watch.progress",
      ["self.x = 1"] = "function Net:forward(x)", ['local t = ("a,b").split(",")'] = "gmatch",
      ["print(torch.ones(2))"] = "torch.ones is lm.ones",
      ["print(F.relu(x))"] = "local F = lm.nn.functional",
      ["print((x == net):sum())"] = "x:eq(y) compares their elements",
      ["local s = x ~= 1\nprint(s:float())"] = "x:eq(y) compares", ["print((x == 1) * 2)"] = "x:eq(y) compares",
      ["lm.where(x == net, x, x)"] = false, ["print(x[x == 1])"] = false, -- the op's own error says it
      ["local s = true\nif 1 == 1 then print(({s})[1].x) end"] = false,
      ["local s = true\nprint(s.x)"] = false, ["print((1 == 2) .. '')"] = false,
      ["local set = {loader = lm.data.DataLoader(lm.data.TensorDataset(x))}\nfor v in ipairs(set.loader) do end"] =
        "hint: for x, y in loader:iter() do … end",
      ["for i, v in ipairs(net) do print(v) end"] = "hint: net:named_children() walks a module",
      ["for i, v in ipairs(lm.data.TensorDataset(x)) do end"] = "net:named_children() walks a module; for x, y in",
      ["local set = lm.data.TensorDataset(x)\nfor i, v in ipairs(set) do print(v) end"] = "set:get(i) … end",
      ["local y = x[::2]"] = "x[{{1, -1, 2}}] is Python's x[::2]", ["local y = x[1::2]"] = "x[{{1, -1, 2}}]",
      ["local y = 4 >> 1"] = "bit.rshift(a, b)", ["local y = 4 << 1"] = "bit.lshift(a, b)",
      ["local f = lambda x: x + 1"] = "hint: function(x) return … end",
      ["local f = map(lambda x: x[1], x)"] = "hint: function(x) return … end", ["local lambda = 1 * * 2"] = false,
      ["print(f'loss {x}')"] = '("%d: %s"):format(i, name)', ['print(f"loss {x}")'] = '("%d: %s"):format(i, name)',
      ["for i = 1, x do print(i) end"] = "a tensor is no number: #x is its first size",
      ["for i = x:sum(), 2 do print(i) end"] = "a tensor is no number: #x is its first size",
      ["for i = 1, '?' do print(i) end"] = false,
      ["for k, v in ({a = 1}):items() do print(k, v) end"] = "for name, value in pairs(t) do … end",
      ["local d = {}\nfor k in d.keys() do print(k) end"] = "for name, value in pairs(t) do … end",
      ["local d = {}\nd:append(1)"] = "table.insert(list, v)", ["local y = x:repeat(2, 1)"] = "x:repeat_tensor(2, 1)",
      ["print(None.x)"] = "True, False and None are true, false and nil",
      ["nn.ReLU()(None)"] = "True, False and None are true, false and nil",
      ["print(missing + 1)"] = false, ["local a, b = x:max(1), nil\nprint(b + 1)"] = false,
      ["error('attempt to be clear')"] = false, ["local y = x + lm.ones(3)"] = false, ["local y = )"] = false,
    } do
      local text = said(code):match "^[^\n]*\n(hint: [^\n]*)"
      if hint then
        assert.matches((hint:gsub("^x:logical_or", "a:logical_or")), text or code, 1, true)
      else
        assert.is_nil(text, code)
      end
    end
  end)

  it("is looked for in lines that somebody wrote, not in one of data, which would take hours", function()
    local data = "local s = '" .. ("a"):rep(400000) .. (" for"):rep(100000) .. "' "
    assert.matches("\nhint: tensors are compared by methods: x:gt(1);", said(data .. "local y = x > 1"), 1, true)
    assert.matches("\nhint: a tensor is indexed with brackets: x[1]\n", said(data .. "x(1)"), 1, true)
    assert.not_matches("hint", said(data .. "local y = x // 2"):sub(-300))
  end)

  it("names the field that was meant, of a module or a table", function()
    for code, hint in pairs {
      ["net.wieght:sum()"] = "Linear has no field 'wieght'; did you mean 'weight'?",
      ["print(net.wieght * 2)"] = "Linear has no field 'wieght'; did you mean 'weight'?",
      ["net:forwrad(x)"] = "Linear has no field 'forwrad'; did you mean 'forward'?",
      ["local options = {rate = 1}\nprint(options.rat + 1)"] = "the table has no field 'rat'; did you mean 'rate'?",
      ["local Net = nn.Module:extend 'Net'\nfunction Net:init() self.layer = nn.ReLU() end\n"
        .. "function Net:forward(t) return (self.layr:forward(t)) end\nNet()(x)"] =
        "Net has no field 'layr'; did you mean 'layer'?",
      ["local outer = nn.Module:extend 'Outer'()\nouter.inner = net\n"
        .. "local function f() return outer.inner.wieght:sum() end print((f()))"] =
        "Linear has no field 'wieght'; did you mean 'weight'?",
    } do
      assert.matches("\nhint: " .. hint .. "\n", said(code), 1, true)
    end
    assert.not_matches("hint", said "net.qqqqqqqqq:sum()")
    assert.matches("did you mean 'weight'", prompt "net = nn.Linear(2, 2)\nnet.wieght:sum()\n", 1, true)
    assert.equal("nil\ntrue", prompt "net = nn.Linear(2, 2)\nnet.wieght\nnot net.skip\n") -- fields are nil until set
  end)

  it("of a name of Python's that is asked of the library is in the error itself", function()
    for name, words in pairs {
      enumerate = "for i, v in ipairs(list) do … end", range = "for i = 1, n do … end; lm.arange(1, n) is a tensor",
      zip = "a[i], b[i]", len = "#x", inf = "math.huge", dict = "{name = value}", isinstance = "module:is(nn.Linear)",
      None = "true, false and nil", True = "true, false and nil", np = "lm has what numpy", sorted = "table.sort",
      list = "{1, 2, 3}", str = "tostring(x)", super = "Base.init(self, …)", open = "io.open(path)",
    } do
      local text = said("lm." .. name .. "(1)")
      assert.matches("luminary has no '" .. name .. "'; ", text, 1, true)
      assert.matches(words, text:match "[^\n]*", 1, true)
    end
  end)

  it("does not go to files that a launcher reads, nor to the other ranks", function()
    local record = folder .. "/record.json"
    said("local y = x > 1", ("LM_ERROR_FILE=%s %s"):format(record, command))
    local read = require("luminary.core").json_decode(temp.read(record))
    assert.matches("^%S*script.lua:2: attempt to compare number with userdata$", read.message)
    assert.matches("\nhint: tensors are compared", read.traceback, 1, true)
  end)

  it("is left out where the line could only be read by waiting for a writer", function()
    local ok, out = temp.run(folder, ("cd %s && mkfifo pipe && (echo 'local y = 1 // 2' >pipe &) && "
      .. "timeout 60 $OLDPWD/%s pipe"):format(folder, command))
    assert.is_false(ok)
    assert.equal("luminary: pipe:1: unexpected symbol near '/'\n", out)
  end)

  it("is left out where the script took away what it needs", function()
    assert.matches("attempt to compare", said "string.find, io.open, debug.getlocal = nil\nlocal y = x > 1")
  end)
end)

describe("a traceback", function()
  local failing = [[
local Set = lm.data.Dataset:extend "Set"
function Set:len() return 4 end
function Set:get(i)
  if i == 3 then error "boom" end
  return x
end
local function epoch(n) for _ in lm.data.DataLoader(Set(), {num_workers = n}):iter() do end end
]]

  it("shows the script's frames, all with LM_LOG=trace", function()
    local text = said(failing .. "epoch(0)")
    assert.equal("luminary: script.lua:5: boom\nstack traceback:\n\tscript.lua:5: in function 'get'\n"
      .. "\tscript.lua:8: in function 'epoch'\n\tscript.lua:9: in main chunk\n", text)
    for _, topics in ipairs {"trace", "io,trace", "all"} do
      text = said(failing .. "epoch(0)", ("LM_LOG=%s %s"):format(topics, command))
      assert.matches("luminary/data/loader.lua:%d+: in function", text)
      assert.matches("[C]: in function 'error'", text, 1, true)
    end
  end)

  it("is one for the error of a loader's worker: the worker's", function()
    local text = said(failing .. "epoch(1)")
    assert.equal("luminary: script.lua:9: DataLoader: worker 0, sample 3 of Set: script.lua:5: boom\n"
      .. "stack traceback of the worker:\n\tscript.lua:5: in function 'get'\n",
      (text:gsub("script.lua:8: DataLoader", "script.lua:9: DataLoader")))
    text = said(failing .. "epoch(1)", "LM_LOG=trace " .. command)
    assert.matches("stack traceback of the worker:.*in function 'get'.*stack traceback:.*in main chunk", text)
  end)

  it("of a library file with a long path is of the library", function()
    local frames = require "luminary.base.script_frames"
    local own = debug.getinfo(require("luminary.base.truncate_text"), "S").source:match "^@(.*)base/"
    assert.is_false(frames.is_scripts(("\t%sdata/loader.lua:3: in function 'x'"):format(own)))
    assert.is_false(frames.is_scripts(("\t...%sdata/loader.lua:3: in function 'x'"):format(own:sub(-12))))
    assert.is_true(frames.is_scripts "\t...other/luminary/data/loader.lua:3: in function 'x'")
    frames.add_own "/a/checkout/rock/lua/luminary/rock/"
    assert.is_false(frames.is_scripts "\t...out/rock/lua/luminary/rock/tensor.lua:3: in function 'x'")
    assert.is_true(frames.is_scripts "\tscript.lua:3: in main chunk")
    assert.is_false(frames.is_scripts "\t[C]: in function 'error'")
  end)
end)
