-- Names that a release promises (docs/explain/promises.md): each public name and environment variable of
-- spec/golden/names.txt is still there, or a row of lua/luminary/help/pytorch_names.md names what replaces it.
-- LM_WRITE_NAMES=1 luajit spec/run.lua spec/help/promised_names_spec.lua writes the list, for a release.
local index = require "luminary.help.index"
local temp = require "spec.support.temp"
local variables = require "luminary.environment_variables"

local classes = index.all().classes
-- Every module and most other classes have these.
local OVERRIDDEN = { init = true, extra_repr = true, forward = true, reset_parameters = true }
local LIST, REMOVED = "spec/golden/names.txt", "lua/luminary/help/pytorch_names.md"

-- Returns the names of today by their owner, sorted: "OWNER: NAME NAME …" in each line.
local function lines_of_names()
  local by_owner, lines = { environment = {} }, {}
  for _, variable in ipairs(variables) do table.insert(by_owner.environment, variable.name) end
  for _, each in ipairs(index.entries()) do
    if not index.is_hidden(each) and not (classes[each.owner] and OVERRIDDEN[each.name]) then
      by_owner[each.owner] = by_owner[each.owner] or {}
      table.insert(by_owner[each.owner], each.name)
    end
  end
  for owner, names in pairs(by_owner) do
    table.sort(names)
    lines[#lines + 1] = owner .. ": " .. table.concat(names, " ") .. "\n"
  end
  table.sort(lines)
  return table.concat(lines)
end

-- Calls f(owner, name) for each name.
local function each_name(text, f)
  for owner, names in text:gmatch "([^\n]-): ([^\n]*)" do
    for name in names:gmatch "%S+" do f(owner, name) end
  end
end

describe("public names", function()
  local text = lines_of_names()
  if os.getenv "LM_WRITE_NAMES" then temp.write(LIST, text) end

  it("of the last release are there, or what replaces them is named", function()
    local now, removed, lost = {}, temp.read(REMOVED), {}
    each_name(text, function(owner, name) now[owner .. "." .. name] = true end)
    each_name(temp.read(LIST), function(owner, name)
      if removed:find("`" .. name .. "`", 1, true) then return end
      local class, at = classes[owner], owner -- a method may be a base class's
      while class and not now[at .. "." .. name] do
        class = rawget(class, "super")
        at = class and rawget(class, "__name")
      end
      if not now[(at or owner) .. "." .. name] then lost[#lost + 1] = owner .. "." .. name end
    end)
    table.sort(lost)
    assert.equal("", table.concat(lost, " "), "name what replaces these in " .. REMOVED)
  end)
end)
