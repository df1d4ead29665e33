-- The sections about public names (lua/luminary/help/pages), and the reference that is made of them.
local lm = require "luminary"
local signature = require "luminary.base.signature"
local options = require "luminary.base.options"
local entry = require "luminary.help.entry"
local index = require "luminary.help.index"
local pages = require "luminary.help.pages"
local help_sections = require "spec.support.help_sections"
local reference = require "spec.support.reference"
local temp = require "spec.support.temp"

local folder = "lua/luminary/help/pages"
local sections, problems = help_sections.read(folder, pages.names)

local function same(expected, found, message) assert.equal(table.concat(expected, "\n"), found, message) end

describe("a section of lua/luminary/help/pages", function()
  it("is in a page of the reference, and of the form that CONTRIBUTING.md shows", function()
    assert.equal("", problems)
    assert(#sections >= 15, #sections)
  end)

  it("that breaks the form is reported with its line", function()
    local at = temp.folder()
    finally(function() temp.remove(at) end)
    for text, problem in pairs {
      ["## a\n\n- x: one\n\nmore"] = "5: remarks must come earlier",
      ["## a\n\nReturns: x\n\nShape: y"] = "5: shape must come earlier",
      ["## a\n\n- x: one\n- y, z: two"] = "4: an argument must be '- name: text'",
      ["## a\n\n```lua\nprint(1)"] = "3: the example has no end",
      ["## a\n\n```lua\n```\n\n```lua\n```"] = "6: a second part of this kind: example",
    } do
      temp.write(at .. "/a.md", text .. "\n")
      local list, found = pages.read(at .. "/a.md")
      assert.equal(1, #list)
      same({ at .. "/a.md:" .. problem }, table.concat(found, "\n"))
    end
  end)

  it("is about public names, once each, and about arguments that they declare", function()
    assert.equal("", help_sections.wrong_names(sections))
  end)

  it("has an example that runs, and prints what its comments say", function()
    same({ "2: expected 3, got 2" }, table.concat(help_sections.differences "print(1) -- 1\nprint(1 + 1) -- 3", "\n"))
    assert.equal("", help_sections.wrong_examples(sections))
    lm.set_async {} -- ends the worker of lm.async's example
  end)

  it("lacks for no more names than spec/help/without_section.txt says of each page", function()
    local pipe = io.popen "luajit scripts/dev/gen_reference.lua --without-section"
    local now = pipe:read "*a"
    pipe:close()
    assert.equal(temp.read "spec/help/without_section.txt", now,
      "luajit scripts/dev/gen_reference.lua --without-section >spec/help/without_section.txt; no number may grow")
  end)
end)

describe("help of a name with a section", function()
  it("shows all of its parts as plain text", function()
    local text = lm.help "nn.Conv2d"
    for _, part in ipairs {
      "nn.Conv2d(in_channels, out_channels, kernel_size [, {", "Applies a 2-d convolution",
      "\n\nArguments:\n  in_channels (integer ≥ 1): ",
      '\n  padding_mode ("zeros" | "reflect" | "replicate" | "circular", default "zeros"): ',
      "\n  groups (integer ≥ 1, default 1): ", "\n\nShape: x [N, C, H, W]", "\n\nExample:\n  local conv = ",
      "\n\nPyTorch: torch.nn.Conv2d.",
    } do
      assert.matches(part, text, 1, true)
    end
    assert.is_nil(text:find "`")
    assert.matches("\nReturns: two values, ", lm.help "nn.GRU", 1, true)
    assert.matches("\n  dim (dim): ", lm.help "lm.cat", 1, true)
    assert.matches("shares the memory of x", lm.help "x:view", 1, true)
  end)

  it("is read when first asked for, not with the library", function()
    local chunk = [[local lm = require "luminary" local _ = lm.nn.Conv2d, lm.optim.SGD
      for name in pairs(package.loaded) do
        assert(not name:find "luminary%.help", name)
      end]]
    local pipe = io.popen(("luajit -e '%s' 2>&1"):format(chunk))
    local said = pipe:read "*a"
    pipe:close()
    assert.equal("", said)
  end)
end)

describe("the reference #lua", function()
  teardown(reference.remove)

  it("has a page for each list of names, and lists them", function()
    local contents, n = temp.read(reference.folder() .. "/README.md"), 0
    for _, path in ipairs(reference.pages()) do
      local name = path:match "[^/]*$"
      n = n + 1
      assert(name == "README.md" or contents:find("(" .. name .. ")", 1, true), name)
    end
    assert(n > 30, n)
    assert.matches("LM_CPU_LEVEL", temp.read(reference.folder() .. "/environment.md"), 1, true)
  end)

  it("has signatures that Lua reads", function()
    local wrong, count = {}, 0
    for _, each in ipairs(index.entries()) do
      local parts = not index.is_hidden(each) and entry.main(each) == each and entry.parts(each)
      if parts and parts.signature then
        count = count + 1
        if not loadstring("return " .. parts.signature) then wrong[#wrong + 1] = parts.signature end
      end
    end
    assert.equal("", table.concat(wrong, "\n"))
    assert(count > 1000, count)
  end)

  it("keeps brackets that are in defaults", function()
    for _, each in ipairs(index.entries()) do
      if each.path == "text.BertWordPieceTokenizer" then
        local parts = entry.parts(each)
        assert.matches('{unk_token = "[UNK]", sep_token = "[SEP]",', parts.signature, 1, true)
        assert.same({ "unk_token", '"[UNK]"' }, { parts.arguments[2].name, parts.arguments[2].default })
        return
      end
    end
    error "no entry"
  end)

  it("has a type of each argument of vision and of schedules whose kind is a function", function()
    local without = {}
    for _, each in ipairs(index.entries()) do
      if each.path:find "^vision%." or each.path:find "^transforms%." or each.path:find "lr_scheduler%." then
        local takes = signature.declared(each.value)
        for _, row in ipairs(takes and takes.rows or {}) do
          local kind = row[2]
          local known = type(kind) == "table" or kind == "any" or row.lacks or options.kind_text(kind)
          if not known then without[#without + 1] = each.path .. " " .. row[1] end
        end
      end
    end
    assert.equal("", table.concat(without, "\n"))
  end)

  it("has the names of PyTorch that differ, each row of which is read", function()
    local names = require "luminary.help.names_page"()
    local library
    for line in io.lines "lua/luminary/help/pytorch_names.md" do
      library = line:match "^## ([^, ]+)" or library
      assert(line:find "^%- `[^`]+`" or not line:find "^%-", line)
      for name in (line:match "^%- (`.-`): " or ""):gmatch "`([^`]+)`" do
        assert(names[library][name] ~= nil, name)
      end
    end
    assert.same({ "rand", false, "a ^ b" }, { names.luminary.random, names.luminary.zeta, names.Python.pow })
    assert.same(names.Python, require "luminary.help.names_page" "Python")
    assert.matches("\n- `random`: rand\n", temp.read(reference.folder() .. "/pytorch-names.md"), 1, true)
  end)

  it("names nothing internal", function()
    local wrong = {}
    local hidden = {}
    for _, each in ipairs(index.entries()) do
      if index.is_hidden(each) and each.path:find ":" then hidden[each.path] = true end
    end
    for _, file in ipairs(reference.pages()) do
      local number = 0
      for line in io.lines(file) do
        number = number + 1
        local path = line:match "^#+ (%S+:%S+)$" or line:match "^%- `([^`%(]+:[%w_]+)"
        for _, pattern in ipairs {
          "%f[%w]check_group%f[%W]", "%f[%w]hooked%f[%W]", "%f[%w]check_input%f[%W]", "%f[%w]next_momentum%f[%W]",
          "head of this file", "pipeline_schedule", "%w[%w_]*/[%w_]+%.lua", "%w[%w_]*/[%w_]+%.[ch]%f[%W]",
        } do
          if not file:find "/README%.md$" and not file:find "/environment%.md$" and line:find(pattern) then
            wrong[#wrong + 1] = ("%s:%d: %s"):format(file, number, line:match(pattern))
          end
        end
        if path and hidden[path:gsub("\\", "")] then wrong[#wrong + 1] = ("%s:%d: %s"):format(file, number, path) end
      end
    end
    assert.equal("", table.concat(wrong, "\n"))
  end)
end)
