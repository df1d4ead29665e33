-- README and docs/: their programs run, the shown output is true, their commands and links exist.
local markdown = require "spec.support.markdown"
local ranks = require "spec.support.ranks"
local reference = require "spec.support.reference"
local temp = require "spec.support.temp"

local MAX_LINES = 299      -- lines of a page of docs/
local MAX_README = 200
local MAX_NOT_RUN = 12     -- Lua blocks with `<!-- run: no, REASON -->`
local SECONDS = 120        -- after which a page's programs or a command's --help are stopped

local function listed(command)
  local paths, pipe = {}, io.popen(command .. " | sort")
  for path in pipe:lines() do paths[#paths + 1] = path end
  pipe:close()
  return paths
end

local pages = listed(
  "ls README.md; find docs -name '*.md' -not -path 'docs/reference/*' -not -path 'docs/status/rows/*'")
local parsed = {}
local function parse(path)
  parsed[path] = parsed[path] or markdown.parse(temp.read(path))
  return parsed[path]
end

local folder
setup(function() folder = temp.folder() end)
teardown(function()
  temp.remove(folder)
  reference.remove()
end)

local function exists(path) return (os.rename(path, path)) end -- files and folders

describe("README and docs #unsanitized", function()
  for _, path in ipairs(pages) do
    local needs_data
    for _, block in ipairs(parse(path).blocks) do
      needs_data = needs_data or block.language == "lua" and block.code:find "data%.FashionMNIST"
    end
    it(path .. ": its programs run, and print what is shown", function()
      if needs_data and not exists "/usr/share/datasets/fashion-mnist" and not os.getenv "LUMINARY_DATA" then
        return pending "needs Fashion-MNIST"
      end
      local ok, text = temp.run(folder, ("timeout %d luajit spec/support/docs_page.lua %s"):format(SECONDS, path))
      assert(ok, text)
    end)
  end

  for _, n in ipairs { 2, 4 } do
    it(("docs/howto/sharded.md: its programs run in order on %d ranks"):format(n), function()
      local got = ranks.run {
        n = n, file = "spec/support/docs_page.lua", args = "docs/howto/sharded.md", timeout = SECONDS,
        env = { DOCS_FOLDER = folder },
      }
      assert(got.ok, got.text)
    end)
  end

  it("leave few programs out", function()
    local left_out = {}
    for _, path in ipairs(pages) do
      for _, block in ipairs(parse(path).blocks) do
        if block.language == "lua" and (block.directive or ""):find "^no," then
          left_out[#left_out + 1] = ("%s:%d: %s"):format(path, block.first, block.directive)
        end
      end
    end
    assert(#left_out <= MAX_NOT_RUN, table.concat(left_out, "\n"))
  end)

  it("say the same of GPUs on the README and on the home page", function()
    local function words(path) return (temp.read(path):gsub("%*", ""):gsub("%s+", " ")) end
    local said = assert(words "README.md":match "On GPUs [%w ]+", "README.md: no sentence about GPUs")
    assert(words "docs/index.md":find(said, 1, true), said .. " is not in docs/index.md")
  end)

  it("are short", function()
    local long = {}
    for _, path in ipairs(pages) do
      local n = #parse(path).lines
      local most = path == "README.md" and MAX_README or MAX_LINES
      if n > most then long[#long + 1] = ("%s: %d lines"):format(path, n) end
    end
    assert.equal("", table.concat(long, "\n"))
  end)

  it("have lines of code that fit the page, in the reference too", function()
    local MAX_CODE = 76 -- columns
    local wide, all = {}, reference.pages()
    for _, path in ipairs(pages) do all[#all + 1] = path end
    for _, path in ipairs(all) do
      local page = markdown.parse(temp.read(path))
      for _, block in ipairs(page.blocks) do
        for n = block.first + 1, block.last - 1 do
          local columns = #page.lines[n]:gsub("[\128-\191]", "") -- characters of UTF-8
          if columns > MAX_CODE then wide[#wide + 1] = ("%s:%d: %d columns"):format(path, n, columns) end
        end
      end
    end
    assert.equal("", table.concat(wide, "\n"))
  end)

  it("README's figures of speed are those of docs/status/speed.md", function()
    local status, n = temp.read "docs/status/speed.md", 0
    for row in temp.read("README.md"):match("\n## Speed\n(.-)\n## "):gmatch "\n(|[^\n]*%d[^\n]*|)" do
      n = n + 1
      assert(status:find("\n" .. row .. "\n", 1, true), row)
    end
    assert(n > 0)
  end)

  it("are all in the site's contents", function()
    local contents, missing = temp.read "mkdocs.yml", {}
    for _, path in ipairs(pages) do
      local page = path:match "^docs/(.*)"
      if page and not contents:find(": " .. page .. "\n", 1, true) then missing[#missing + 1] = page end
    end
    assert.equal("", table.concat(missing, "\n"))
  end)
end)

describe("scripts/docs #unsanitized", function()
  it("builds the site, of the same bytes on any day, which loads nothing from other hosts", function()
    if not exists "build/docs_venv/version" then return pending "needs mkdocs-material: scripts/docs installs it" end
    local ok, text = temp.run(folder, "TZ=UTC scripts/docs")
    assert(ok, text)
    assert(exists "build/docs/search/search_index.js")
    -- The same bytes on any day: compressed files have the day of the commit.
    local a, b, c, d = temp.read("build/docs/sitemap.xml.gz"):byte(5, 8)
    local commit = tonumber(os.getenv "SOURCE_DATE_EPOCH" or temp.output_of "git log -1 --format=%ct")
    assert.equal(math.floor(commit / 86400) * 86400, a + 256 * (b + 256 * (c + 256 * d)))
  end)
end)

describe("links in Markdown #unsanitized", function()
  local anchors_of = {}
  local function anchors(path)
    anchors_of[path] = anchors_of[path] or parse(path).anchors
    return anchors_of[path]
  end

  -- Returns FOLDER/../x.md as one path of the tree, or of the pages that scripts/docs writes.
  local function resolved(from, target)
    local parts = {}
    for part in ((from:match "^(.*/)" or "") .. target):gmatch "[^/]+" do
      if part == ".." then
        if not table.remove(parts) then return nil end
      elseif part ~= "." then
        parts[#parts + 1] = part
      end
    end
    return (table.concat(parts, "/"):gsub("^docs/reference/", reference.folder() .. "/"))
  end

  it("lead to files and headings that exist", function()
    local broken, n = {}, 0
    local all = listed "find . -name '*.md' -not -path './build*' -not -path './docs/reference/*' -printf '%P\\n'"
    for _, path in ipairs(reference.pages()) do all[#all + 1] = path end
    for _, path in ipairs(all) do
      for _, link in ipairs(parse(path).links) do
        if not link.target:find "^%a+:" then
          n = n + 1
          local file, anchor = link.target:match "^([^#]*)#?(.*)$"
          local to = file == "" and path or resolved(path:gsub("^.*/reference/", "docs/reference/"), file)
          local found = to and exists(to)
          if found and anchor ~= "" then found = to:find "%.md$" and anchors(to)[anchor] == 1 end
          if not found then broken[#broken + 1] = ("%s:%d: %s"):format(path, link.line, link.target) end
        end
      end
    end
    assert(n > 100, n)
    assert.equal("", table.concat(broken, "\n"))
  end)

  it("and pages that sources name exist", function()
    local missing = {}
    local pipe = io.popen "grep -rInoE '(^|[^/[:alnum:]])docs/[a-z0-9_/]+\\.md' src lua scripts spec examples bin *.md"
    for line in pipe:lines() do
      local where, path = line:match "^(.-:%d+):.*(docs/[%w_/]+%.md)$"
      local at = path:gsub("^docs/reference/", reference.folder() .. "/")
      if not exists(at) then missing[#missing + 1] = where .. ": " .. path end
    end
    pipe:close()
    assert.equal("", table.concat(missing, "\n"))
  end)
end)

-- Commands in blocks for a shell: `luajit FILE`, `luminary COMMAND` and `scripts/NAME`, with their options. A file
-- without a folder is the reader's own.
describe("commands in README and docs #unsanitized", function()
  local SUBCOMMANDS = {
    run = true, doctor = true, inspect = true, chat = true, serve = true, quantize = true, help = true, ops = true,
  }
  local help_texts = {}

  -- Returns what --help prints; for a developer's tool, which may take no --help, the comment at its head.
  local function help(command)
    local tool = command:match "scripts/dev/%S+$"
    if not help_texts[command] then
      local _, text = temp.run(folder, tool and "grep -E '^(#|--)' " .. tool
        or ("timeout %d %s --help"):format(SECONDS, command))
      help_texts[command] = text
    end
    return help_texts[command]
  end

  -- Returns the command of a program of the tree that explains itself; nil and what is wrong if it is not there.
  -- Python's may need packages that are not there even for --help.
  local function program(path, interpreter)
    if not exists(path) then return nil, path .. " does not exist" end
    local first = temp.read(path):match "^[^\n]*"
    if first:find "python" then return end
    return (interpreter or "") .. path
  end

  local function check(line, complain)
    local command
    local words = {}
    for word in line:gsub("%s#%s.*$", ""):gsub("[|;&]+", " ; "):gmatch "%S+" do words[#words + 1] = word end
    for i, word in ipairs(words) do
      local path, interpreter = nil, nil
      if word == ";" then
        command = nil
      elseif word == "luminary" then
        local sub = words[i + 1]
        command = SUBCOMMANDS[sub] and "luminary " .. sub or "luminary"
        if sub and sub:find "^%l+$" and not SUBCOMMANDS[sub] then complain("no command luminary " .. sub) end
      elseif word:find "^[%w_/.]+%.lua$" and (words[i - 1] == "luajit" or (command or ""):find "^luminary") then
        interpreter, path = "luajit ", word
      elseif word:find "^%.?/?scripts/[%w_/]+$" and not command then
        path = word
      elseif word:find "^%-%-?%a" and command then
        local option = word:match "^[^=]+"
        if not (help(command) .. " "):find(option:gsub("%-", "%%-") .. "%f[^%w-]") then
          complain(("'%s' has no %s"):format(command, option))
        end
      end
      if path then
        local problem
        command, problem = nil, nil
        if path:find "/" then command, problem = program(path, interpreter) end
        if problem then complain(problem) end
      end
    end
  end

  it("and their options exist", function()
    local wrong, n = {}, 0
    for _, path in ipairs(pages) do
      for _, block in ipairs(parse(path).blocks) do
        if block.language == "sh" or block.language == "console" then
          local at = block.first
          for line in (block.code .. "\n"):gsub("\\\n", "  "):gmatch "(.-)\n" do
            at = at + 1
            if block.language == "console" then line = line:match "^%$ (.*)" or "" end
            n = n + 1
            check(line, function(problem) wrong[#wrong + 1] = ("%s:%d: %s"):format(path, at, problem) end)
          end
        end
      end
    end
    assert(n > 10, n)
    assert.equal("", table.concat(wrong, "\n"))
  end)

  -- In a ```console block `> ` is the prompt of luminary. All of a page are one session.
  for _, path in ipairs(pages) do
    local typed, shown = {}, {}
    for _, block in ipairs(parse(path).blocks) do
      for line in (block.language == "console" and block.code .. "\n" or ""):gmatch "(.-)\n" do
        local input = line:match "^> (.*)"
        if input then
          typed[#typed + 1] = input
        elseif not line:find "^%$ " then
          shown[#shown + 1] = line
        end
      end
    end
    if typed[1] then
      it(path .. ": the prompt prints what is shown", function()
        local input = temp.write(folder .. "/input", table.concat(typed, "\n") .. "\n")
        local _, text = temp.run(folder, ("cat %s | timeout %d luminary"):format(input, SECONDS))
        local printed = text:gsub("^.-\n.-\n", "\n"):gsub("\n[> ]*> ", "\n")
        local function words(s) return (s:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", "")) end
        assert.equal(words(table.concat(shown, " ")), words(printed))
      end)
    end
  end
end)

describe("scripts/dev/README.md #unsanitized", function()
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
