-- docs/maintain/: the tables of fields have the fields of the structs, and the files that the pages name exist.
local temp = require "spec.support.temp"

-- Returns the fields of a C struct, in order. An anonymous union's count as the struct's.
local function fields_of(header, name)
  local body = assert(header:match("\n%s*typedef struct " .. name .. " (%b{})")
    or header:match("\n%s*struct " .. name .. " (%b{})"), "no struct " .. name)
  body = body:sub(2, -2):gsub("/%*.-%*/", ""):gsub("union%s*(%b{})", function(inner) return inner:sub(2, -2) end)
  local fields = {}
  for declaration in body:gmatch "([^;]+);" do
    local pointer = declaration:match "%(%*([%w_]+)%)%s*%b()%s*$"
    if pointer then
      fields[#fields + 1] = pointer
    else
      for declarator in (declaration:gsub("_Alignas%b()", "") .. ","):gmatch "([^,]*)," do
        fields[#fields + 1] = declarator:gsub("%b[]", ""):match "([%w_]+)%s*$"
      end
    end
  end
  return fields
end

local function sorted(list)
  table.sort(list)
  return table.concat(list, " ")
end

describe("docs/maintain", function()
  local page = temp.read "docs/maintain/architecture.md"
  local tables = 0

  for section in (page:gsub("\n#+ ", "\0%0") .. "\0"):gmatch "(%Z+)" do
    local name, path = section:match "^\n### `(lm_[%w_]+)` %(`(src/[%w_/.]+)`%)\n"
    if name then
      tables = tables + 1
      it("lists all fields of " .. name, function()
        local named = {}
        for cell in section:gmatch "\n| (`[^|]*) |" do
          for field in cell:gmatch "`([%w_]+)`" do named[#named + 1] = field end
        end
        assert.equal(sorted(fields_of(temp.read(path), name)), sorted(named))
      end)
    end
  end

  it("describes structs", function() assert.is_true(tables >= 8) end)

  local ENDINGS = {c = true, h = true, cu = true, cuh = true, lua = true, py = true, md = true, map = true, txt = true}
  local WRITTEN = {["op_entries.h"] = true, ["op_ids.h"] = true} -- files that the build writes
  local names = {} -- names of all files and folders
  for path in io.popen "git ls-files":lines() do
    for name in path:gmatch "[^/]+" do names[name] = true end
  end

  for path in io.popen "ls docs/maintain/*.md src/README.md src/distributed/README.md":lines() do
    it(path .. " names files that exist", function()
      local missing = {}
      for name in temp.read(path):gmatch "`([%w_./]+)`" do
        local ending = name:match "%.(%l+)$"
        local is_path = name:sub(-1) == "/" or ENDINGS[ending] or name:find "^scripts/"
        local found = not is_path or WRITTEN[name] or name:find "^build/"
        if not name:find "[^.]/." then found = found or names[name:match "[^/.][^/]*"] end
        for _, folder in ipairs {"", "src/", "src/distributed/", "lua/luminary/", "docs/"} do
          found = found or os.rename(folder .. name, folder .. name)
        end
        if not found then missing[#missing + 1] = name end
      end
      assert.equal("", table.concat(missing, " "))
    end)
  end

  it("fits a terminal: src/README.md", function()
    for line in io.lines "src/README.md" do
      local _, letters = line:gsub("[^\128-\191]", "")
      assert(letters <= 120, line)
    end
  end)
end)
