-- Checks of the sections about public names (lua/luminary/help/pages.lua), of the library's pages and of a package's.
local lm = require "luminary"
local entry = require "luminary.help.entry"
local index = require "luminary.help.index"
local pages = require "luminary.help.pages"

local sections = {}

--- Returns the sections of the pages of these names, and what breaks their form: files that are none of the pages, too.
function sections.read(folder, names)
  local list, problems, known = {}, {}, {}
  for _, name in ipairs(names) do
    known[name .. ".md"] = true
    local found, wrong = pages.read(("%s/%s.md"):format(folder, name))
    for _, section in ipairs(found) do list[#list + 1] = section end
    for _, problem in ipairs(wrong) do problems[#problems + 1] = problem end
  end
  local files = io.popen("ls " .. folder)
  for file in files:lines() do
    if not known[file] then problems[#problems + 1] = file .. " is no page of the reference" end
  end
  files:close()
  return list, table.concat(problems, "\n")
end

--- Returns the sections that are not about public names, once each, and about arguments that they declare.
function sections.wrong_names(list)
  local seen, wrong = {}, {}
  for _, section in ipairs(list) do
    local declared = {}
    for _, name in ipairs(section.names) do
      local each = index.all().by_path[name]
      if not each or entry.main(each) ~= each then
        wrong[#wrong + 1] = ("%s:%d: no name with an entry of its own: %s"):format(section.file, section.line, name)
      elseif seen[name] then
        wrong[#wrong + 1] = ("%s:%d: a second section of %s"):format(section.file, section.line, name)
      else
        for _, row in ipairs(entry.arguments(each) or {}) do declared[row.name] = true end
      end
      seen[name] = true
    end
    for _, row in ipairs(section.arguments or {}) do
      if not declared[row.name] then
        wrong[#wrong + 1] = ("%s:%d: %s has no argument '%s'"):format(section.file, section.line,
          table.concat(section.names, ", "), row.name)
      end
    end
  end
  return table.concat(wrong, "\n")
end

-- Returns what print writes, on one line.
local function printed(...)
  local texts = {}
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    texts[i] = type(value) == "string" and value or lm.repr(value)
  end
  return (table.concat(texts, " "):gsub("%s+", " "))
end

--- Runs an example; the lines whose comment is not what their print wrote, each as "LINE: expected X, got Y".
function sections.differences(code)
  local got, wrong, number = {}, {}, 0
  local run = assert(loadstring(code, "=example"))
  setfenv(run, setmetatable({
    lm = lm, nn = lm.nn, F = lm.nn.functional, optim = lm.optim, data = lm.data, dist = lm.dist,
    print = function(...)
      local line = debug.getinfo(2, "l").currentline
      got[line] = (got[line] and got[line] .. " " or "") .. printed(...)
    end,
  }, { __index = _G }))
  lm.manual_seed(0)
  run()
  for line in (code .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    local expected = line:find "print%(" and line:match "%-%- (.*)$"
    if expected and expected ~= got[number] then
      wrong[#wrong + 1] = ("%d: expected %s, got %s"):format(number, expected, tostring(got[number]))
    end
  end
  return wrong
end

--- Returns the examples that fail, print something else than their comments say, or are too wide.
function sections.wrong_examples(list)
  local wrong = {}
  for _, section in ipairs(list) do
    for i, line in ipairs(section.example or {}) do
      if #line > 76 then
        wrong[#wrong + 1] = ("%s:%d: more than 76 columns"):format(section.file, section.example_line + i)
      end
    end
    local ok, found = pcall(sections.differences, table.concat(section.example or {}, "\n"))
    if not ok then found = { "0: " .. found } end
    for _, each in ipairs(found) do
      wrong[#wrong + 1] = ("%s:%d, line %s"):format(section.file, section.example_line, each)
    end
  end
  return table.concat(wrong, "\n")
end

return sections
