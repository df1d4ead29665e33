--- Reads entries: declarations of one kind in a file that both the library and the build read.
---
---   local list, optimizer = entries.of("optimizer", {options = "table", update = "string"})
---   optimizer "SGD" {options = …, update = …}
---   return list
---
--- It only reads and checks entries. It requires no other file of the library, which may not be built yet.
local entries = {}

local function sorted(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = tostring(key) end
  table.sort(keys)
  return table.concat(keys, ", ")
end

-- Returns the rows of `base`; rows of `given` replace those of the same name, and rows of new names are appended.
local function joined(base, given)
  local rows, index = {}, {}
  for i, row in ipairs(base) do rows[i], index[row[1]] = row, i end
  for _, row in ipairs(given) do rows[index[row[1]] or #rows + 1] = row end
  return rows
end

-- Splits "name(x, k: int = 1, {flag = false})" into the name, a list of arguments, and one of those in braces.
local function read_head(head)
  local name, inner = head:match "^([%w_]+)%((.*)%)$"
  local positional, braces = (inner or ""):match "^([^{]*){(.*)}$"
  local function split(arguments)
    local parts = {}
    for part in arguments:gmatch "[^,%s][^,]*" do parts[#parts + 1] = part end
    return parts
  end
  return name or head, split(positional or inner or ""), braces and split(braces)
end

--- Returns a list of entries, by position and by name, and a function that adds one. `fields` has the type of each
--- field: "string?" is optional, "table|string" is either. An entry has its `file` and `line`. With `like = "Name"` it
--- inherits the fields that it does not set from that entry, which must precede it; rows of its tables replace the
--- rows of the same name. With `with_arguments` a name is followed by arguments, "name(x, k: int, {flag = false})": the
--- entry lists them, and has those in braces in `options`. A function that adds entries for its caller passes 1 after
--- the name.
function entries.of(kind, fields, with_arguments)
  local list = {}
  local function add_entry(name, entry, level, arguments, options)
    local function wrong(format, ...)
      error(("%s %s: %s"):format(kind, tostring(name), format:format(...)), 4 + level)
    end
    if list[name] then wrong("is defined twice") end
    local like = entry.like
    if like ~= nil and not list[like] then wrong("like = '%s': no entry of that name precedes it", tostring(like)) end
    for field, value in pairs(entry) do
      local of = fields[field]
      if field ~= "like" and not of then wrong("unknown field '%s'; fields are %s", tostring(field), sorted(fields)) end
      local types = of and of:gsub("%?", "")
      if of and not ("|" .. types .. "|"):find("|" .. type(value) .. "|", 1, true) then
        wrong("%s must be a %s", field, (types:gsub("|", " or a ")))
      end
    end
    local info = require("debug").getinfo(3 + level, "Sl")
    local whole = {name = name, like = like, file = info.source:sub(2), line = info.currentline, unpack(arguments)}
    for field, of in pairs(fields) do
      local own, base = entry[field], like and list[like][field]
      whole[field] = own
      if like and own == nil then whole[field] = base end
      if own and base and of:find("^table") then whole[field] = joined(base, own) end
      if whole[field] == nil and not of:find("?", 1, true) then wrong("%s is missing", field) end
    end
    whole.options = whole.options or options
    list[#list + 1], list[name] = whole, whole
  end
  return list, function(head, level)
    local name, arguments, options = head, {}, nil
    if with_arguments then name, arguments, options = read_head(head) end
    return function(entry) add_entry(name, entry, level or 0, arguments, options) end
  end
end

return entries
