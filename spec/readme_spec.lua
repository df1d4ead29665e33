-- README's page for whoever writes programs: its blocks run, and its table names what there is.
local lm = require "luminary"
local temp = require "spec.support.temp"

local file = assert(io.open("README.md"))
local text = file:read "*a"
file:close()
local page = assert(text:match("\n## Writing programs\n(.-)\n## "), "README.md has no page called Writing programs")
local preamble = assert(text:match("```lua\n(.-\n.-\n)"), "README.md has no tour")

describe("README's page on writing programs", function()
  local programs, title, code = {}, nil, nil
  for line in page:gmatch("[^\n]*") do
    title = line:match("^### (.*)") or title
    if code and line == "```" then
      programs[#programs + 1], code = { title = title, code = table.concat(code, "\n") }, nil
    elseif code then
      code[#code + 1] = line
    elseif line == "```lua" then
      code = {}
    end
  end
  it("has programs", function() assert.is_true(#programs >= 6) end)

  for i, program in ipairs(programs) do
    it(("runs: %d, %s"):format(i, program.title), function()
      local run = assert(loadstring(preamble .. program.code, "=README.md"))
      setfenv(run, setmetatable({ print = function(...) -- quietly, but all that is printed
        for k = 1, select("#", ...) do assert.is_string(tostring((select(k, ...)))) end
      end }, { __index = _G }))
      run()
    end)
  end

  local libraries = {
    "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "data", "autograd", "mp", "vision",
    "vision.transforms", "vision.transforms.functional", "text",
  }
  for _, where in ipairs(libraries) do
    it("names all of " .. where, function()
      local library, missing = lm, {}
      for name in where:gmatch("[^.]+") do library = library[name] end
      for name in pairs(getmetatable(library).lazy()) do assert(library[name]) end
      for name in pairs(library) do
        if not name:find("^_") and not page:find("`" .. name .. "`", 1, true) then missing[#missing + 1] = name end
      end
      table.sort(missing)
      assert.equal("", table.concat(missing, " "))
    end)
  end
end)

describe("docs/reference #lua", function()
  it("is what scripts/dev/gen_reference.lua writes", function()
    local folder = temp.folder()
    local script = ("luajit scripts/dev/gen_reference.lua %s"):format(folder)
    assert(os.execute(script) == 0, script .. " failed")
    local pipe = io.popen(("diff -r docs/reference %s 2>&1 | head -20"):format(folder))
    local difference = pipe:read "*a"
    pipe:close()
    temp.remove(folder)
    assert.equal("", difference, "docs/reference is not up to date: luajit scripts/dev/gen_reference.lua")
  end)
end)

describe("scripts/dev/README.md", function()
  it("names every tool", function()
    local tools, missing = io.open("scripts/dev/README.md"), {}
    local page_of_tools = tools:read "*a"
    tools:close()
    local pipe = io.popen "find scripts/dev -type f -perm -u+x | sort"
    for path in pipe:lines() do
      local name = path:match "^scripts/dev/(.*)$"
      if not page_of_tools:find("`" .. name .. "[` ]") then missing[#missing + 1] = name end
    end
    pipe:close()
    assert.equal("", table.concat(missing, " "))
  end)
end)
