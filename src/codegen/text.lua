--- Helps generators of C: finds and replaces words of C text, and writes files only if their text changes.
local text = {}

--- Returns the set of identifiers in a piece of C.
function text.words(c)
  local set = {}
  for word in c:gsub("/%*.-%*/", " "):gmatch("[%a_][%w_]*") do set[word] = true end
  return set
end

--- Returns a piece of C with some words replaced: {sqrt = "sqrtf"}.
function text.replace(c, words)
  return (c:gsub("[%a_][%w_]*", words))
end

--- Replaces $name and ${name} in a template by values from a table. A list of lines is joined; a line with only an
--- empty list is left out.
function text.fill(template, values)
  local lines = {}
  for line in template:gmatch("([^\n]*)\n") do
    local indent, alone = line:match("^(%s*)%$([%a_]+)$")
    if alone and type(values[alone]) == "table" then
      for _, each in ipairs(values[alone]) do lines[#lines + 1] = each:match("^#") and each or indent .. each end
    else
      local function value_of(name)
        local value = values[name]
        if value == nil then error("no value for $" .. name, 0) end
        return type(value) == "table" and table.concat(value, ", ") or tostring(value)
      end
      lines[#lines + 1] = line:gsub("%${([%a_][%w_]*)}", value_of):gsub("%$([%a_][%w_]*)", value_of)
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

--- Returns a list of f(entry, index) for each entry of a list.
function text.map(list, f)
  local out = {}
  for i, each in ipairs(list) do out[i] = f(each, i) end
  return out
end

local function within_string(c)
  return select(2, c:gsub("\\.", ""):gsub('"', "")) % 2 == 1
end

--- Breaks lines of C above 118 characters at their spaces, except those in strings.
function text.wrap(line)
  local out, indent = {}, line:match("^%s*") .. "    "
  local macro = line:match("^#define") and " \\" or ""
  while #line > 118 do
    local at = 118
    while at > #indent and (not line:sub(at, at):match("%s") or within_string(line:sub(1, at))) do at = at - 1 end
    if at <= #indent then break end
    out[#out + 1] = line:sub(1, at - 1) .. macro
    line = indent .. line:sub(at + 1)
  end
  out[#out + 1] = line
  return table.concat(out, "\n")
end

function text.read(path)
  local file = assert(io.open(path, "rb"))
  local whole = file:read("*a")
  file:close()
  return whole
end

--- Returns two functions for the entries of a kind. fail(entry, format, …) raises an error that names file (relative to
--- `source`), line and entry. line(entry, part) returns the #line that leads compiler errors to that part's text, and
--- true if the text is found unchanged in the file.
function text.of_entries(source, kind)
  local files = {}
  local function path_of(entry) return entry.file:sub(#source + 2) end
  local function fail(entry, format, ...)
    error(("%s:%d: %s %s: %s"):format(path_of(entry), entry.line, kind, entry.name, format:format(...)), 0)
  end
  local function line(entry, part)
    files[entry.file] = files[entry.file] or text.read(entry.file)
    local whole, from = files[entry.file], 1
    for _ = 2, entry.line do from = whole:find("\n", from, true) + 1 end
    local at = whole:find(part, from, true)
    local number = at and select(2, whole:sub(1, at):gsub("\n", "")) + 1
    return ("#line %d \"%s\""):format(number or entry.line, path_of(entry)), at ~= nil
  end
  return fail, line
end

--- Writes a file unless it has that text already, so that files that depend on it are not built again.
function text.write(path, whole)
  local file = io.open(path, "rb")
  local old = file and file:read("*a")
  if file then file:close() end
  if old == whole then return end
  file = assert(io.open(path, "wb"))
  assert(file:write(whole))
  assert(file:close())
end

--- Writes C with long lines broken. A line `#line @here@` returns compiler errors from an entry's file to this file.
function text.put(folder, file, body)
  local n, lines = 0, {}
  for long in body:gmatch("([^\n]*)\n") do
    for line in (text.wrap(long) .. "\n"):gmatch("([^\n]*)\n") do
      n = n + 1
      lines[n] = line:gsub("^#line @here@$", ("#line %d \"%s\""):format(n + 1, file))
    end
  end
  text.write(folder .. "/" .. file, table.concat(lines, "\n") .. "\n")
end

return text
