--- Lays out help: lines of a screen's width, columns of names, and the contents of a library.
local core = require "luminary.core"
local index = require "luminary.help.index"
local lists = require "luminary.base.lists"

local all, internal, is_class, joined, sorted_names = index.all, index.internal, index.is_class, index.joined,
  index.sorted_names
local getmetatable_of = require("debug").getmetatable
local WIDTH = 78
local overview = {WIDTH = WIDTH}

--- Returns the text with lines broken at blanks; continued lines keep the margin.
function overview.wrapped(text)
  local out, width = {}, WIDTH
  for whole in (text .. "\n"):gmatch("(.-)\n") do
    local margin, rest = whole:match("^(%s*)(.*)$")
    while #margin + #rest > width do
      local at = width - #margin + 1
      while at > 1 and rest:sub(at, at) ~= " " do at = at - 1 end
      if at <= 1 or rest:find("%S%s%s+%S") then break end -- a table, or one long word
      out[#out + 1] = margin .. rest:sub(1, at - 1):gsub("%s+$", "")
      rest = rest:sub(at + 1)
    end
    out[#out + 1] = margin .. rest
  end
  return table.concat(out, "\n")
end

local CELL = 13 -- characters

--- Returns words in columns; a word that is longer than a column takes several.
function overview.columns(list)
  local lines, row = {}, " "
  for _, word in ipairs(list) do
    local cell = word .. (" "):rep(-(#word + 2) % CELL + 2)
    if #row + #word > WIDTH then
      lines[#lines + 1] = row:gsub("%s+$", "")
      row = " "
    end
    row = row .. (row == " " and " " or "") .. cell
  end
  lines[#lines + 1] = row:gsub("%s+$", "")
  return table.concat(lines, "\n")
end

local LIBRARIES, CLASSES, NEW, OPS, FUNCTIONS, VALUES, TYPED = "libraries", "classes", "making tensors",
  "ops, most of which are methods of tensors too", "functions", "values", "Torch's constructors"

-- Returns the group of a library's name; nil for a name that is not listed.
local function group_of(library, name, value)
  if is_class(value) then return CLASSES end
  if type(value) == "table" then
    for _, v in next, value do
      if type(v) == "function" then return LIBRARIES end
    end
    return getmetatable_of(value) and rawget(getmetatable_of(value), "__library") and LIBRARIES or VALUES
  end
  if type(value) ~= "function" then return VALUES end
  if name:find "^%u%w*Tensor$" then return TYPED end
  if library ~= require "luminary" then return FUNCTIONS end
  if index.is_inner(name) then return nil end
  if not rawget(core.ops, name) then return FUNCTIONS end
  if name:find "_loss$" then return nil end -- losses are nn.functional's
  return rawget(core.methods, name) and OPS or NEW
end

--- Returns a library on about a screen: its description, and its names in groups.
function overview.overview(library)
  local lines, found = all().first[library], {}
  local own = lists.find(all().list, function(entry) return entry.value == library end)
  local path = own and own.path or "?"
  for _, name in ipairs(sorted_names(library)) do
    local value = index.called(library[name])
    local group = not internal[path .. "." .. name] and group_of(library, name, value)
    local plain = name:match("^(.*)_$")
    if group and not (plain and rawget(library, plain)) then
      found[group] = found[group] or {}
      table.insert(found[group], name)
    end
  end
  local about = lines and joined(lines) or path
  local out = {overview.wrapped(about:match("^(.-%.)%s") or about:match("^[^\n]*"))}
  for _, group in ipairs {LIBRARIES, CLASSES, NEW, OPS, FUNCTIONS, TYPED, VALUES} do
    if found[group] then
      out[#out + 1] = group .. ":"
      out[#out + 1] = overview.columns(found[group])
    end
  end
  out[#out + 1] = ("?%s.NAME explains one of them"):format(path)
  return table.concat(out, "\n")
end

return overview
