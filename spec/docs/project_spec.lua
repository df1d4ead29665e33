-- Pages that a release relies on: each promise has a test, issue templates ask for a command that is there, CI runs
-- README's commands, maintainers have one address, and gaps for newcomers are still open.
local lm = require "luminary"
local temp = require "spec.support.temp"

-- Returns true if a path such as lm.linalg.qr names something. Modules raise an error for a name that they lack.
local function is_there(path)
  local value = {lm = lm, nn = lm.nn}
  return pcall(function()
    for name in path:gmatch "[%w_]+" do value = assert(value[name]) end
  end)
end

describe("pages of the project #lua", function()
  it("names a spec that exists for each section of docs/explain/promises.md", function()
    local page = temp.read "docs/explain/promises.md"
    local sections = 0
    for section in (page:gsub("\n## ", "\0%0") .. "\0"):gmatch "\n## (%Z+)" do
      sections = sections + 1
      local specs = 0
      for path in section:gmatch "`([%w_/]+%.lua)`" do
        assert(path:match "^spec/" and temp.exists(path), path)
        specs = specs + 1
      end
      assert(specs > 0 or section:match "^Speed\n\nNo speed is promised", section:match "[^\n]+")
    end
    assert.is_true(sections >= 7)
  end)

  it("names a test in each row about compatibility, except where nothing is promised", function()
    local rows, before = 0, nil
    for promise, test in temp.read("docs/explain/promises.md"):match "| promise | test |\n(.-)\n\n"
      :gmatch "|[^|\n]*|([^|\n]*)|([^|\n]*)|" do
      rows = rows + 1
      assert(test:find "`spec/" or test == " the same " and before or promise == " none " or promise == "---", promise)
      before = test:find "`spec/"
    end
    assert.is_true(rows >= 7)
  end)

  it("asks in issues for the output of a command that is there", function()
    local asked = temp.read(".github/ISSUE_TEMPLATE/bug.md"):match "the output of `luminary (doctor %-%-%l+)`"
    local option = assert(asked):match "%-%-%l+"
    assert.matches(option, temp.output_of "luminary doctor --help", 1, true)
    for _, path in ipairs {"SECURITY.md", "CONTRIBUTING.md", "docs/maintain/releasing.md"} do
      assert.matches("debian/", temp.read(path), 1, true)
    end
  end)

  it("runs README's commands in ci.yml, on each release of Debian that was tried", function()
    local workflow, readme = temp.read ".github/workflows/ci.yml", temp.read "README.md"
    local commands = 0
    for command in workflow:gmatch "%- run: (scripts/[^\n]+)" do
      commands = commands + 1
      assert.matches("\n" .. command .. " ", readme, 1, true)
    end
    assert.is_true(commands >= 2)
    local suites = {["12"] = "bookworm", ["13"] = "trixie"}
    local row = assert(temp.read("docs/start/install.md"):match "\n| (Debian[^|]*)| tried")
    for release in row:gmatch "%d+" do assert.matches(suites[release], workflow:match "debian: (%b[])", 1, true) end
  end)

  it("has one address of the maintainers", function()
    local address = assert(temp.read("debian/control"):match "\nMaintainer: [^\n]*(%b<>)")
    assert.matches(address, temp.read "debian/changelog", 1, true)
  end)

  it("docs/maintain/good_first_issues.md calls absent only names that are absent", function()
    local absent = 0
    for row in temp.read("docs/maintain/good_first_issues.md"):gmatch "\n| ([^|\n]*)" do
      for path in (row:match "^(.-) %l+ absent" or ""):gmatch "`([%w_.]+)`" do
        if path:find "%." then
          absent = absent + 1
          assert.is_false(is_there(path), path)
        end
      end
    end
    assert.is_true(absent >= 3)
  end)
end)
