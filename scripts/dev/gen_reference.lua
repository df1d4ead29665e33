--- Writes the reference's pages: every public name, grouped as reference_pages.lua says, from what help knows of it
--- (lua/luminary/help/): the ops' entries, declared arguments, comments, and the sections of lua/luminary/help/pages.
---
---   luajit scripts/dev/gen_reference.lua FOLDER     where to; scripts/docs takes docs/reference
---   luajit scripts/dev/gen_reference.lua --without-section     prints how many names of each page have no section
---   luajit scripts/dev/gen_reference.lua FOLDER --extension torch7     only the pages of names that luminary.torch7
---     adds, as torch7/reference_pages.lua says; the calls above do this too
local here = arg[0]:match("^(.*)/") or "."

local EXTENSIONS = {"torch7"}
local folder, extension = arg[1], arg[2] == "--extension" and arg[3]
if not folder then
  io.stderr:write "gen_reference: a folder for the pages is missing\n"
  os.exit(2)
end
package.path = here .. "/?.lua;" .. package.path
local core = require "luminary.core"
local aliases = require "luminary.tensor.aliases"
local entry = require "luminary.help.entry"
local help = require "luminary.help"
local index = require "luminary.help.index"
local help_pages = require "luminary.help.pages"
local read_file = require "luminary.base.read_file"


-- Returns the pages of the library, or of an extension.
local function pages_of(of)
  return of and dofile(("%s/../../%s/reference_pages.lua"):format(here, of)) or require "reference_pages"
end

local pages, known, known_classes = pages_of(extension), {}, {} -- known: names that the extension does not add
if extension then
  for _, each in ipairs(index.entries()) do known[each.path] = true end
  known_classes = index.all().classes
  require("luminary." .. extension)
end

local by_path = index.all().by_path

local function fail(...) error("gen_reference: " .. string.format(...), 0) end

-- ---- which entry is where

local is_class_of = index.all().classes

-- Returns whether a name has its own entry: a public name, of no class, that stands for itself.
local function has_entry(each)
  return not known[each.path] and not is_class_of[each.owner] and not index.is_hidden(each) and help.of(each)
    and entry.main(each) == each
end

-- Returns whether it is a method that the extension adds to a class of the library.
local function is_added_method(each) return not known[each.path] and known_classes[each.owner] ~= nil end

-- Returns the entry of "Sequential:add", which may be that of a class that Sequential extends.
local function method_of(class, name)
  local of = is_class_of[class]
  while of and not by_path[rawget(of, "__name") .. ":" .. name] do of = rawget(of, "super") end
  return of and by_path[rawget(of, "__name") .. ":" .. name]
end

local of_owner = {} -- the entries of each library, and the methods and fields of each class
for _, each in ipairs(index.entries()) do
  of_owner[each.owner] = of_owner[each.owner] or {}
  table.insert(of_owner[each.owner], each)
end

local page_of = {} -- page of each path
local shown_class = {} -- class that an added method is shown with, by the method's path

-- Returns the entries of a section's words; `wildcards`: those of "lm.linalg.*" alone, or all but these.
local function entries_of(words, file, wildcards)
  local list, prefix = {}, ""
  for word in words:gmatch "%S+" do
    local owner = word:match "^(.*)%.%*$"
    if word:find "[%.:]$" then
      prefix = word
    elseif owner then
      for _, each in ipairs(wildcards and of_owner[owner] or {}) do
        if has_entry(each) and not page_of[each.path] then
          page_of[each.path] = file
          list[#list + 1] = each
        end
      end
    else
      local path = word:find "[%.:]" and word or prefix .. word
      local class, method = path:match "^(%u%w*):(.*)$"
      local each = by_path[path] or class and method_of(class, method) or fail("%s: there is no '%s'", file, path)
      if class and is_added_method(each) then
        path, shown_class[each.path] = each.path, class
      elseif not has_entry(each) then
        fail("%s: '%s' has no entry of its own: it is that of %s", file, path, entry.main(each).path)
      end
      if not wildcards then
        if page_of[path] then fail("'%s' is on %s and on %s", path, page_of[path], file) end
        page_of[path] = file
      end
      list[#list + 1] = each
    end
  end
  return list
end

for _, page in ipairs(pages) do
  for _, section in ipairs(page) do entries_of(section[2], page.file, false) end
end
for _, page in ipairs(pages) do
  for _, section in ipairs(page) do section.entries = entries_of(section[2], page.file, true) end
end
for name, section in pairs(help_pages.all()) do
  local each = by_path[name] or fail("%s:%d: there is no '%s'", section.file, section.line, name)
  local class = is_class_of[each.owner]
  local page = page_of[class and index.all().by_value[class] or name]
  if not known[name] and page ~= section.page then
    local owner = entry.main(each).path
    page = page and page .. ".md" or owner
    fail("%s:%d: the section of '%s' belongs into %s", section.file, section.line, name, page)
  end
end
local lost = {}
for _, each in ipairs(index.entries()) do
  if (has_entry(each) or is_added_method(each)) and not page_of[each.path] then lost[#lost + 1] = each.path end
end
if #lost > 0 then fail("on no page of reference_pages.lua: %s", table.concat(lost, " ")) end

-- Does the same for the extensions, in a process each: here they would add to the library's own pages.
local function run_extensions(argument)
  io.stdout:flush()
  for _, name in ipairs(extension and {} or EXTENSIONS) do
    local command = ("luajit '%s' '%s' --extension %s"):format(arg[0], argument, name)
    if os.execute(command) ~= 0 then fail("%s failed", command) end
  end
end

if arg[1] == "--without-section" then
  local count = {}
  for path, file in pairs(page_of) do
    if not entry.section(by_path[path]) and not shown_class[path] then count[file] = (count[file] or 0) + 1 end
  end
  for _, page in ipairs(pages) do
    if count[page.file] then print(page.file, count[page.file]) end
  end
  run_extensions(arg[1])
  os.exit(0, true)
end

-- ---- text

local function escaped(text) return (text:gsub("<", "\\<"):gsub("%*", "\\*"):gsub("%]%(", "]\\(")) end

local function cell(text) return (text:gsub("|", "\\|")) end

local function add_code(out, lines, margin)
  while lines[#lines] == "" do lines[#lines] = nil end
  local lua = loadstring(table.concat(lines, "\n")) and "lua" or "text" -- with a "…" for a reader alone
  out[#out + 1], out[#out + 2] = "", margin .. "```" .. lua
  for _, line in ipairs(lines) do out[#out + 1] = line == "" and "" or margin .. line end
  out[#out + 1], out[#out + 2] = margin .. "```", ""
end

local WIDTH = 76 -- maximum length of lines of code, so that pages need no scrolling sideways

-- Returns a call in lines that fit the page, broken after commas where there are any.
local function wrapped_call(text)
  local out = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do
    while #line > WIDTH do
      local head = line:sub(1, WIDTH)
      local cut = head:match "^(.*,) " or head:match "^(.*%S) +%S*$"
      if not cut or not cut:find "^%s*%S" or not cut:find "%S%S" then break end
      out[#out + 1], line = cut, "  " .. line:sub(#cut + 1):match "^%s*(.*)$"
    end
    out[#out + 1] = line
  end
  return table.concat(out, "\n")
end

-- Appends a comment's lines: those with a margin are an example.
local function add_text(out, text, margin)
  local code
  for line in (text .. "\n"):gmatch "(.-)\n" do
    if line:find "^%s+%S" or code and line == "" then
      code = code or {}
      code[#code + 1] = line:gsub("^  ", "")
    else
      if code then add_code(out, code, margin) end
      code = nil
      out[#out + 1] = line == "" and "" or margin .. escaped(line)
    end
  end
  if code then add_code(out, code, margin) end
end

-- Appends what add(block) adds, without empty lines at its ends, and one at most within.
local function add_block(out, add)
  local block = {}
  add(block)
  while block[#block] == "" do block[#block] = nil end
  local empty = true
  for _, line in ipairs(block) do
    if line ~= "" or not empty then
      if #out > 0 and out[#out] ~= "" and empty and line ~= "" then out[#out + 1] = "" end
      out[#out + 1] = line
    end
    empty = line == ""
  end
end

-- ---- ops

local CAST = {
  lower = "computed in the low dtype", keep = "computed in float32", keep_result = "computed in float32",
  keep_gpu = "computed in float32 on a GPU",
  banned_gpu = "an error on a GPU", widest = "computed in the widest dtype of the inputs",
}
local DTYPES = {float = "Integers become floating.", bool = "The result is bool."}

local function op_of(each)
  if not (each.owner == "lm" or each.owner == "F" or each.owner == "x") then return nil end
  return core.op_info(aliases.of[each.name] or each.name)
end

local function add_op_lines(lines, info, section)
  if DTYPES[info.result_dtype] and not (section and section.dtypes) then
    lines[#lines + 1] = "**Dtypes:** " .. DTYPES[info.result_dtype]
  end
  if info.gradient == "" then lines[#lines + 1] = "**Gradient:** none." end
  local in_section = section and section.dtypes and tostring(section.dtypes[1] or section.dtypes):find "autocast"
  if CAST[info.autocast] and not in_section then
    lines[#lines + 1] = ("**Autocast:** %s."):format(CAST[info.autocast])
  end
end

-- ---- entries

local others = {} -- a main entry's other paths, by its path
for _, each in ipairs(index.entries()) do
  if not is_class_of[each.owner] and help.of(each) then
    local main = entry.main(each)
    if main ~= each then
      others[main.path] = others[main.path] or {}
      table.insert(others[main.path], each.path)
    end
  end
end

local function other_names(each)
  local here_too, in_place = {}, {}
  for _, path in ipairs(others[each.path] or {}) do
    table.insert(path:find "%w_$" and in_place or here_too, ("`%s`"):format(path))
  end
  local parts = {}
  if #here_too > 0 then parts[#parts + 1] = "**Also:** " .. table.concat(here_too, ", ") .. "." end
  if #in_place > 0 then parts[#parts + 1] = "**In place:** " .. table.concat(in_place, ", ") .. "." end
  return parts
end

local function add_table(out, list, section)
  local said, rows, any = entry.descriptions(section), {}, false
  for _, row in ipairs(list or {}) do
    local kind = entry.type_of(row)
    local about = said[row.name] or ""
    if row.named then about = about .. (about == "" and "" or " ") .. "By name only." end
    any = any or kind or row.default or about ~= ""
    if kind and kind:find '"' then kind = kind:gsub('"[^"]*"', "`%0`") end
    rows[#rows + 1] = ("| `%s` | %s | %s | %s |"):format(row.name, cell(escaped(kind or "")),
      row.default and "`" .. cell(row.default) .. "`" or row.optional and "optional" or "", cell(about))
  end
  if not any then return end
  out[#out + 1] = "| argument | type | default | description |"
  out[#out + 1] = "|---|---|---|---|"
  for _, line in ipairs(rows) do out[#out + 1] = line end
end

-- Returns a link from one entry's page to another entry. Its anchor is the path: those of headings ignore case, and
-- lm.cuda.graph and lm.cuda.Graph would have the same.
local function link(from, to)
  local here_too = page_of[from.path] == page_of[to.path]
  return ("[%s](%s#%s)"):format(to.path, here_too and "" or page_of[to.path] .. ".md", to.path)
end

local shown = {} -- the texts of methods
local add_methods

local function add_section(out, section)
  for _, paragraph in ipairs(section.remarks or {}) do
    add_block(out, function(block) block[1] = paragraph end)
  end
end

local function add_entry(out, each, level)
  local parts = entry.parts(each)
  local section = parts.section
  local first = section and by_path[section.names[1]] -- shows the section; other names refer to it
  if section and first == each then out[#out + 1] = ('\n<a id="%s"></a>'):format(each.path) end
  out[#out + 1] = ("\n%s %s\n"):format(("#"):rep(level), (each.path:gsub("_", "\\_")))
  if parts.signature then
    out[#out + 1] = ("```lua\n%s\n```"):format(wrapped_call(parts.signature))
  end
  add_block(out, function(block)
    add_text(block, parts.summary .. (parts.more ~= "" and "\n" .. parts.more or ""), "")
  end)
  if section and first == each then add_section(out, section) end
  if parts.declared or section then
    add_block(out, function(block) add_table(block, parts.arguments, section) end)
  end
  if section and first ~= each then
    add_block(out, function(block) block[1] = ("More: %s."):format(link(each, first)) end)
  end
  local lines = {}
  for _, label in ipairs(help_pages.labels) do
    local text = section and first == each and section[label[2]] and section[label[2]][1]
    if label[2] == "returns" and not (section and section.returns) then text = entry.returns(each) end
    if text then lines[#lines + 1] = ("**%s:** %s"):format(label[1], text) end
  end
  local info = op_of(each)
  if info then add_op_lines(lines, info, section) end
  for _, line in ipairs(other_names(each)) do lines[#lines + 1] = line end
  for _, line in ipairs(lines) do add_block(out, function(block) block[1] = line end) end
  if section and section.example and first == each then
    add_block(out, function(block)
      block[1] = "```lua"
      for _, line in ipairs(section.example) do block[#block + 1] = line end
      block[#block + 1] = "```"
    end)
  end
  for _, text in ipairs(section and first == each and section.pytorch or {}) do
    add_block(out, function(block) block[1] = "**PyTorch:** " .. text end)
  end
  local of = index.class_of(each.value)
  if of then add_methods(out, each, of, level) end
end

-- ---- methods

local public = {}
for _, each in ipairs(index.entries()) do
  local of = index.class_of(each.value)
  if of then public[of] = true end
end

-- Appends a method without a section: one item of a list. A class without a public name takes its subclass's.
local function add_item(out, each, class)
  local parts = entry.parts(each)
  local call = parts.signature or each.path
  if not public[is_class_of[each.owner]] then call = call:gsub("^" .. each.owner .. "%f[.:]", class.name) end
  local text = parts.summary .. (parts.more ~= "" and "\n" .. parts.more or "")
  local block = {}
  add_text(block, text, "  ")
  local first = table.remove(block, 1) or ""
  first = first:match "^%s*(.*)$"
  out[#out + 1] = ("- `%s`%s%s"):format(call, first ~= "" and ": " or "", first)
  add_block(out, function(more)
    for i, line in ipairs(block) do more[i] = line end
  end)
end

-- Appends the methods and fields that a class adds to those of the public one it extends.
function add_methods(out, each, class_of, level)
  local of, list, seen = class_of, {}, {}
  repeat
    for _, method in ipairs(of_owner[index.all().owner_of[of]] or {}) do
      local own = not known[method.path] and not help.usual[method.name] and not method.inner
      local text = own and not seen[method.name] and help.of(method)
      local parts = text and entry.parts(method)
      if parts and not (shown[text] and of ~= class_of) then
        seen[method.name], shown[text] = true, true
        list[#list + 1] = method
      end
    end
    of = rawget(of, "super")
  until not of or public[of]
  local items = {}
  for _, method in ipairs(list) do
    if not entry.parts(method).section then add_item(items, method, each) end
  end
  if #items > 0 then
    out[#out + 1] = "\n**Methods**\n"
    for _, line in ipairs(items) do out[#out + 1] = line end
  end
  for _, method in ipairs(list) do
    if entry.parts(method).section then add_entry(out, method, level + 1) end
  end
end

-- ---- all pages

local function write(name, lines)
  local file = assert(io.open(("%s/%s.md"):format(folder, name), "w"))
  local text = table.concat(lines, "\n"):gsub("\n\n\n+", "\n\n")
  file:write(text, "\n")
  file:close()
end

if not extension then os.execute(("mkdir -p '%s' && rm -f '%s'/*.md"):format(folder, folder)) end
local contents = {
  "# Reference", "",
  "Every public name, as `?name` at the prompt and `luminary help NAME` explain it. In a call the arguments before the",
  "table must be given. Those in the table may be given there by name, or by position in the order of the list of",
  "arguments; `name = value` shows the default.",
}
for _, page in ipairs(pages) do
  if page.part then
    contents[#contents + 1] = ("\n## %s\n"):format(page.part)
  else
    local out = {"# " .. page.title}
    if extension then
      out[2] = ("\nThese names come with `require \"luminary.%s\"`, of the rock luminary-%s."):format(extension,
        extension)
    end
    for _, section in ipairs(page) do
      if section[1] ~= "" then out[#out + 1] = ("\n## %s\n"):format(section[1]) end
      for _, each in ipairs(section.entries) do
        if shown_class[each.path] then
          add_item(out, each, {name = shown_class[each.path]})
        else
          add_entry(out, each, 3)
        end
      end
    end
    write(page.file, out)
    contents[#contents + 1] = ("- [%s](%s.md)"):format(page.title, page.file)
  end
end
if extension then return end
for _, name in ipairs(EXTENSIONS) do
  contents[#contents + 1] = ("\n## The rock luminary-%s\n"):format(name)
  contents[#contents + 1] = ("These names come with `require \"luminary.%s\"`.\n"):format(name)
  for _, page in ipairs(pages_of(name)) do
    contents[#contents + 1] = ("- [%s](%s.md)"):format(page.title, page.file)
  end
end
contents[#contents + 1] = "\n## Settings\n"
contents[#contents + 1] = "- [Environment variables](environment.md)"
contents[#contents + 1] = "\n## Coming from PyTorch\n"
contents[#contents + 1] = "- [Names of PyTorch that differ here](pytorch-names.md)"
write("pytorch-names", {(read_file(here .. "/../../lua/luminary/help/pytorch_names.md"):gsub("\n$", ""))})
write("environment", {
  "# Environment variables", "", "As `luminary help environment` prints them.", "",
  (require("luminary.environment_variables").text(true):gsub("\n$", "")),
})
write("README", contents)
run_extensions(folder)
