-- Tests the names that `require "luminary.torch7"` adds to Luminary's libraries: none exists without it.
local lm = require "luminary"
local complete = require "luminary.cli.completion"
local help = require "luminary.help"
local help_sections = require "spec.support.help_sections"
local index = require "luminary.help.index"
local pages = require "luminary.help.pages"
local search = require "luminary.help.search"
local temp = require "spec.support.temp"

local ADDED = {
  ["nn."] = [[Concat ConcatTable ParallelTable JoinTable SplitTable SelectTable NarrowTable FlattenTable CAddTable
    CSubTable CMulTable CDivTable CMaxTable CMinTable View Reshape Transpose Select Narrow Squeeze Unsqueeze Sum Mean
    Max Min AddConstant MulConstant]],
  ["optim."] = [[sgd adam adadelta adagrad adamax asgd lbfgs nag rmsprop rprop lswolfe checkgrad ConfusionMatrix
    Logger]],
  ["lm."] = "CmdLine", ["Module:"] = "evaluate getParameters zeroGradParameters", ["Numbered:"] = "add get",
  ["Timer:"] = "resume",
}

local globals = {lm = lm, nn = lm.nn, optim = lm.optim, net = lm.nn.Sequential(lm.nn.ReLU()), timer = lm.Timer()}
local objects = {["Module:"] = "net:", ["Numbered:"] = "net:", ["Timer:"] = "timer:"}

-- Calls f(path, name, text) for each added name; text: the prompt's text before a name.
local function each_added(f)
  for prefix, names in pairs(ADDED) do
    for name in names:gmatch "%S+" do f(prefix .. name, name, objects[prefix] or prefix) end
  end
end

-- Returns all names of the library, including tensors' methods, by path, with their values.
local function all_names()
  local values = {}
  for _, each in ipairs(index.entries()) do values[each.path] = each.value or true end
  return values
end

-- is_offered: true if Tab offers a name after a text; is_read: true if a program can read it.
local function is_offered(text, name)
  for _, word in ipairs(complete.words(text .. name, globals)) do
    if word == name then return true end
  end
  return false
end
local function is_read(text, name)
  local ok, value = pcall(function() return globals[text:match "^%w+"][name] end)
  return ok and value ~= nil
end

describe("without luminary.torch7", function()
  local before, torch

  it("none of its names is there", function()
    before = all_names()
    local there = {}
    each_added(function(path, name, text)
      local found = before[path] or is_offered(text, name) or is_read(text, name) or pages.all()[path]
      if found then there[#there + 1] = path end
    end)
    assert.equal("", table.concat(there, " "))
  end)

  it("no method of tensors or modules has one of Torch7's names in mixed case", function()
    local there, count = {}, 0
    for line in io.lines "torch7/names.txt" do
      local title, names = line:match "^([^#%s]%S*) (.*)$"
      local of = ({Tensor = lm.core.methods, ["nn.Module"] = lm.nn.Module, ["nn.Sequential"] = lm.nn.Sequential})[title]
      for name in (of and names or ""):gmatch "%f[%w](%l+%u%w*)" do
        count = count + 1
        if pcall(function() return assert(of[name]) end) then there[#there + 1] = title .. "." .. name end
      end
    end
    assert.equal("", table.concat(there, " "))
    assert(count > 40, count)
  end)

  it("no text of help speaks of Torch7, but of its files", function()
    local wrong = {}
    for _, each in ipairs(index.entries()) do
      local speaks = not each.path:find "%f[%w]load$" and (help.text(each.path) or ""):find "Torch7"
      if speaks then wrong[#wrong + 1] = each.path end
    end
    assert.equal("", table.concat(wrong, " "))
    for name in pairs(package.loaded) do
      assert(name == "luminary.file_formats.torch7_file" or not name:find "torch7", name)
    end
    assert.error_matches(function() return lm.ones(1).nElement end, "^tensors have no field or method 'nElement'")
    assert.error_matches(function() return lm.nn.SpatialConvolution end, "^nn has no 'SpatialConvolution'")
    assert.matches("^pages with 'SpatialConvolution'[^\n]*:\n  docs/from_torch7.md: [^\n]*$",
      (help.text "SpatialConvolution"))
  end)

  it("require adds these, and changes no other", function()
    torch = require "luminary.torch7"
    assert.equal("torch.FloatTensor", torch.FloatTensor.__typename)
    local after, wanted = all_names(), {}
    each_added(function(path, name, text)
      wanted[path] = true
      assert(after[path] and is_offered(text, name) and is_read(text, name), path)
      assert.is_string((help.text(path)), path)
    end)
    for path, value in pairs(after) do
      local class = path:match "^([%w.]+):" or path:match "^(%w+)%."
      assert(before[path] ~= nil or wanted[path] or wanted["nn." .. class] or wanted["optim." .. class]
        or wanted["lm." .. class] or wanted[class], path)
      if before[path] then assert(rawequal(before[path], value), path) end
    end
    for path in pairs(before) do assert(after[path] ~= nil, path) end
  end)

  it("help, its search and errors then have them", function()
    assert.matches("^optim.sgd%(feval, x", help.text "optim.sgd")
    assert.matches("Torch7's function", help.text "sgd")
    assert.matches("^no 'cmul'; here it is mul\nmul%(x, other%)", select(2, help.text "cmul"))
    assert.matches("^no 'nn.SpatialConvolution'; here it is Conv2d\nnn.Conv2d",
      select(2, help.text "nn.SpatialConvolution"))
    assert.equal("optim.SGD", search.find("SGD")[1].path)
    local paths = {}
    for i, each in ipairs(search.find "sgd") do paths[i] = each.path end
    assert.matches("optim.sgd", table.concat(paths, " "), 1, true)
    assert.error_matches(function() return lm.nn.CAddTabel end, "did you mean 'CAddTable'?")
    assert.error_matches(function() return lm.ones(1).cmul end,
      "^tensors have no field or method 'cmul'; it is named 'mul' here$")
    assert.error_matches(function() return lm.ones(1).maskedFill end, "it is named 'masked_fill_' here$")
    assert.error_matches(function() return lm.nn.SpatialConvolution end, "it is named 'Conv2d' here$")
    assert.error_matches(function() return lm.nn.gModule end, "^nn has no 'gModule' in this version$")
    assert.error_matches(function() lm.nn.Linear(3, 2):updateOutput(lm.ones(1, 3)) end,
      "^no field 'updateOutput'; net%(x%) calls forward$")
  end)

  it("names that stand for Torch7's lead somewhere", function()
    local of = {tensors = lm.ones(1), luminary = lm, nn = lm.nn, cuda = lm.cuda}
    for library, names in pairs(require "luminary.help.pytorch_names") do
      for theirs, ours in pairs(of[library] and names or {}) do
        local at = of[library]
        for name in (ours and not ours:find " " and ours:gsub("^lm%.", "") or ""):gmatch "[%w_]+" do
          at = (ours:find "^lm%." and at == of[library] and lm or at)[name]
          assert(at ~= nil, ("%s.%s: %s"):format(library, theirs, ours))
        end
      end
    end
  end)

  it("the sections of its pages of help are of the form, and their examples run", function()
    local list, problems = help_sections.read("torch7/lua/luminary/torch7/help", pages.added[1].names)
    assert.equal("", problems)
    assert(#list >= 15, #list)
    assert.equal("", help_sections.wrong_names(list))
    assert.equal("", help_sections.wrong_examples(list))
  end)

  it("an error names the script's line, and its traceback none of the rock's", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    temp.write(folder .. "/script.lua", 'local torch = require "luminary.torch7"\nlocal x = torch.ones(2)\nx:copy(3)\n')
    local ok, text = temp.run(folder, "luminary " .. folder .. "/script.lua")
    assert.is_false(ok)
    assert.matches("^luminary: [^\n]*script.lua:3: copy: expected a tensor, got 3\n", text)
    assert.not_matches("torch7/", text, 1, true)
  end)

  it("Luminary's own containers, modules and timers have its methods", function()
    local nn = lm.nn
    local net = nn.Sequential():add(nn.Linear(3, 2)):add(nn.ReLU())
    assert.equal(2, #net)
    assert.equal(net[1], net:get(1))
    net:evaluate()
    assert.is_false(net.training)
    net(lm.ones(1, 3)):sum():backward()
    net:zeroGradParameters()
    assert.equal(0, net[1].bias.grad:sum():item())
  end)
end)
