--- Splits help for a public name into parts: its call, first sentence, arguments and section (pages.lua). Help, its
--- search and the pages of the reference show them.
local core = require "luminary.core"
local aliases = require "luminary.tensor.aliases"
local help = require "luminary.help"
local index = require "luminary.help.index"
local options = require "luminary.base.options"
local pages = require "luminary.help.pages"
local signature = require "luminary.base.signature"

local entry = {}

local op_owners = {x = true, lm = true, F = true}

-- ---- texts

-- Splits a text of help into the call or name at its start and the rest, without the rest's margin.
local function split(text)
  local call, rest = text:match "^([%w_.:]+%b()[^:\n]*): (.*)$"
  if not call then call, rest = text:match "^([%w_.]*[%w_]): (.*)$" end
  if call then return call, rest end
  call, rest = text:match "^([%w_.:]+%b()[^\n]*)\n(.*)$"
  if not call then call, rest = text:match "^([%w_.:]+)\n(.*)$" end
  if call then return call, (("\n" .. rest):gsub("\n  ", "\n"):sub(2)) end
  if text:match "^[%w_.:]+%b()$" then return text, "" end
  return nil, text
end

-- Returns the first sentence, up to a dot before a capital letter, unless the dot ends "et al." or an initial.
local function first_sentence(text)
  local line = text:match "^[^\n]*"
  local from = 1
  while true do
    local dot = line:find("%.%s+[%u`]", from)
    if not dot then return line, text:sub(#line + 1) end
    local before = line:sub(1, dot)
    if not before:find "et al%.$" and not before:find "%f[%w]%u%.$" then
      return before, (line:sub(dot + 1):gsub("^%s+", "")) .. text:sub(#line + 1)
    end
    from = dot + 1
  end
end

-- ---- arguments

local function as_default(text)
  if text ~= "nil" then return text end
end

local types_of_names = {device = "device", dtype = "dtype"}

-- Returns the declared rows of a function or class, without a method's x.
local function row_arguments(each, rows)
  local list = {}
  for i, row in ipairs(rows) do
    if not row.lacks and not (i == 1 and each.path:find "^x:") then
      local kind = row[2]
      list[#list + 1] = {
        name = row[1], type = types_of_names[row[1]] or options.kind_text(kind),
        choices = type(kind) == "table" and kind or nil, default = row.says, named = row.named,
        optional = row.optional or row.says ~= nil,
      }
    end
  end
  return list
end

local function op_arguments(each, info)
  local list = {}
  for i, row in ipairs(info.arguments) do
    if not (i == 1 and each.path:find ":") then
      list[#list + 1] = {
        name = row.name, type = row.type, choices = row.choices, default = as_default(row.default), named = row.named,
        optional = row.default ~= nil or row.named,
      }
    end
  end
  return list
end

-- Returns each name of "x, dim [, {keepdim = false, dtype}]"; names in brackets or braces are optional.
local function argument_names(call)
  local list, depth, seen = {}, 0, {}
  local whole = (call:match "%b()" or ""):sub(2, -2)
  local text = whole:gsub("%b\"\"", function(s) return (s:gsub("[%[%]{}(),]", "_")) end) -- a text as long as `whole`
  for before, name, after in text:gmatch "([^%a_]*)([%a_][%w_%.]*)()" do
    depth = depth + select(2, before:gsub("[%[{]", "")) - select(2, before:gsub("[%]}]", ""))
    local starts = before == "" and #list == 0 or before:find "[,%[{]%s*$"
    if starts and not seen[name] and not name:find "%." then
      local from, to = text:match("^%s*=%s*()[^,%[%]{}]+()", after)
      if text:find("^%s*=%s*{", after) then from, to = text:match("^%s*=%s*()%b{}()", after) end
      local default = from and whole:sub(from, to - 1)
      seen[name] = true
      list[#list + 1] = {name = name, default = default, optional = depth > 0}
    end
  end
  return list
end

--- Returns the arguments of a public name, in order: a list of {name, type, choices, default, optional, named}; and
--- true if they are declared, else type and choices are nil. named: only by name. nil for a name that cannot be called.
function entry.arguments(each)
  local takes = signature.declared(each.value)
  if takes then return row_arguments(each, takes.rows), true end
  local callable = type(each.value) == "function" or index.is_class(each.value)
  local info = op_owners[each.owner] and core.op_info(aliases.of[each.name] or each.name:match "^(.-)_?$")
  local call = each.path ~= "" and split(help.of(each) or "")
  if info and not (call and call:find "%[") then return op_arguments(each, info), true end
  if not call or not call:find "%(" or not callable and not each.path:find ":" then return nil end
  return argument_names(call)
end

--- Returns the arguments of a value: a function, a class, or the method `name` of a tensor or an object; nil if
--- unknown.
function entry.arguments_of(value, name)
  if name then
    for _, owner in ipairs(help.owners_of(value)) do
      local each = index.all().by_path[owner .. ":" .. name]
      if each then return (entry.arguments(each)) end
    end
    return nil
  end
  value = index.called(value)
  for _, each in ipairs(index.entries()) do
    if rawequal(each.value, value) then return (entry.arguments(each)) end
  end
  return (entry.arguments {path = "", owner = "", name = "", value = value})
end

-- Returns a call in valid Lua: the required arguments, then a table of the others with their defaults.
local function signature_of(each, list)
  local parts, named = {}, {}
  for _, row in ipairs(list) do
    local default = row.default
    if default and not loadstring("return " .. default) then default = nil end
    if #named == 0 and not row.optional then
      parts[#parts + 1] = loadstring("local " .. row.name) and row.name or row.name .. "_" -- for lm.lerp's `end`
    else
      named[#named + 1] = default and ("%s = %s"):format(row.name, default) or row.name
    end
  end
  if #named > 0 then parts[#parts + 1] = "{" .. table.concat(named, ", ") .. "}" end
  return ("%s(%s)"):format(each.path, table.concat(parts, ", "))
end

-- Applies `change` to the text outside of quotes.
local function outside_strings(text, change)
  local strings, i = {}, 0
  local masked = text:gsub("%b\"\"", function(s)
    strings[#strings + 1] = s
    return "\1"
  end)
  return (change(masked):gsub("\1", function()
    i = i + 1
    return strings[i]
  end))
end

-- Returns a documented call as valid Lua, without brackets and defaults: "f(x [, dim = -1])" becomes "f(x, dim)".
local function without_brackets(call)
  local before, list = call:match "^([^%(]*)(%b())"
  local named = list:match "%b{}"
  local text = list:gsub("%b{}", "\0"):gsub("%[%s*,?", ","):gsub("%]", ""):gsub(" = [^,%)]*", "")
  text = text:gsub("%s*,[%s,]*", ", "):gsub("^%(, ", "("):gsub(", %)", ")")
  text = text:gsub("([%w_%)])…", "%1, ..."):gsub("…", "...")
  named = named and outside_strings(named, function(s)
    return (s:gsub("…", "..."):gsub("%s*%[, ", ", "):gsub("%]", ""))
  end)
  return before .. text:gsub("%z", function() return named end)
end

-- ---- sections

--- Returns the section of a public name, or nil. A tensor's method has the section of the function of lm, and an
--- in-place op that of the op.
function entry.section(each)
  local all = pages.all()
  local found = all[each.path]
  if found or not op_owners[each.owner] or type(each.value) == "table" then return found end
  local name = aliases.of[each.name] or each.name
  for _, one in ipairs {name, name:match "^(.-)_?$"} do
    found = found or all["F." .. one] or all["lm." .. one] or all["x:" .. one]
  end
  return found
end

-- ---- all parts

--- Returns the parts of an entry of index.entries(): {call, summary, more, signature, arguments, declared, section};
--- call is nil if the text begins with none, `more` is the text after the first sentence. nil if there is no help.
function entry.parts(each)
  if each.parts then return each.parts end
  local text = help.of(each)
  if not text then return nil end
  text = text:gsub("\nIts [^\n]*methods: [^\n]*$", "")
  local call, rest = split(text)
  local summary, more = first_sentence(rest)
  local list, declared = entry.arguments(each)
  local parts = {call = call, summary = summary, more = more, arguments = list, declared = declared}
  if declared then
    parts.signature = signature_of(each, list)
  elseif call and call:find "%(" then
    local own = call:match "^[%w_.:]+%b()"
    if not own:find("^[%w_.]*:") then own = own:gsub("^[%w_.]+", each.path) end
    parts.signature = without_brackets(own)
  end
  parts.section = entry.section(each)
  each.parts = parts
  return parts
end

-- ---- one function under several names

local unlike_plain_name = {normal_ = true, bernoulli_ = true} -- the functions without _ have other arguments

--- Returns the entry that represents all names of one function or class in the reference and in lists: F.relu for
--- lm.relu, x:relu and x:relu_; abs for absolute. Other entries represent themselves.
function entry.main(each)
  local as_class = type(each.value) == "table" and index.all().by_value[each.value]
  if as_class and as_class ~= each.path then return index.all().by_path[as_class] end
  if not op_owners[each.owner] or each.path:find "^x%." or type(each.value) == "table" then return each end
  local name = aliases.of[each.name] or each.name == "repeat" and "repeat_tensor" or each.name
  local by_path = index.all().by_path
  local function same(other)
    if not other then return nil end
    local ours, theirs = entry.parts(each), entry.parts(other)
    return ours and theirs and (ours.summary == theirs.summary or other.value == each.value) and other
  end
  local plain = not unlike_plain_name[name] and name:match "^(.*%w)_$"
  if plain and not index.is_inner(plain) then
    local main = by_path["F." .. plain] or by_path["lm." .. plain] or by_path["x:" .. plain]
    if main then return main end
  end
  return same(by_path["F." .. name]) or same(by_path["lm." .. name]) or by_path["x:" .. name] or each
end

--- Describes an argument's values: its type, or its choices.
function entry.type_of(row)
  if not row.choices then return row.type end
  local text = '"' .. table.concat(row.choices, '" | "') .. '"'
  return row.type ~= nil and row.type ~= "string" and row.type .. " | " .. text or text
end

--- Returns the section's descriptions of arguments, by name.
function entry.descriptions(section)
  local by_name = {}
  for _, row in ipairs(section and section.arguments or {}) do by_name[row.name] = row.about end
  return by_name
end

-- ---- as text

--- Removes Markdown's marks from a text: `lr` becomes lr, [a link](page.md) a link.
function entry.plain(text) return (text:gsub("%[([^%]]*)%]%([^%)]*%)", "%1"):gsub("`", "")) end
local plain = entry.plain

local function add_arguments(out, list, section)
  local said = entry.descriptions(section)
  local any
  for _, row in ipairs(list or {}) do
    if said[row.name] then
      if not any then out[#out + 1] = "\nArguments:" end
      any = true
      local kind, default = entry.type_of(row), row.default and "default " .. row.default
      local note = table.concat({kind or default, kind and default}, ", ")
      out[#out + 1] = ("  %s%s: %s"):format(row.name, note ~= "" and " (" .. note .. ")" or "", plain(said[row.name]))
    end
  end
end

local WORDS = {nil, "two", "three", "four"}

--- Returns the section's text about results, or a text for an op with several results; else nil.
function entry.returns(each)
  local section = entry.section(each)
  if section and section.returns then return section.returns[1] end
  local info = op_owners[each.owner] and core.op_info(aliases.of[each.name] or each.name)
  local count = info and WORDS[info.results]
  return count and count .. " values." or nil
end

--- Returns the complete help of a public name as text: its call and comment, then the parts of its section; or nil.
function entry.text(each)
  local text = help.of(each)
  local parts = text and entry.parts(each)
  local section, returns = parts and parts.section, text and entry.returns(each)
  if not section then return returns and text .. "\n\nReturns: " .. returns or text end
  local out = {text}
  for _, paragraph in ipairs(section.remarks or {}) do out[#out + 1] = "\n" .. plain(paragraph) end
  add_arguments(out, parts.arguments, section)
  local first = true
  for _, label in ipairs(pages.labels) do
    local said = label[2] == "returns" and returns or section[label[2]] and section[label[2]][1]
    if said then out[#out + 1] = ("%s%s: %s"):format(first and "\n" or "", label[1], plain(said)) end
    first = first and not said
  end
  if section.example then
    out[#out + 1] = "\nExample:"
    for _, line in ipairs(section.example) do out[#out + 1] = line == "" and "" or "  " .. line end
  end
  if section.pytorch then out[#out + 1] = "\nPyTorch: " .. plain(section.pytorch[1]) end
  return table.concat(out, "\n")
end

return options.exact_all(entry)
