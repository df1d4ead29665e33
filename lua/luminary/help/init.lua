--- What each public name is, as text: from the core for the ops, and from the comments that stand above the definitions
--- in these files. They are read when first asked for.
---
--- A comment of `---` lines belongs to the function that begins on the line below it. Where there is no such function
--- (a class, a field, what is written in C) it begins with what it is about, as it is written: `nn.Linear(in, out): …`,
--- `x.shape: …`; then a comment with nothing below it may hold several, each from a line of its own on. A class that is
--- made of an entry brings its text along, in `__help`.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local help = {}
local getmetatable_of, getinfo, getlocal, getupvalue =
  debug.getmetatable, debug.getinfo, debug.getlocal, debug.getupvalue

-- ---- the comments

-- "nn.Linear" of "nn.Linear(in, out): x", "x.shape" of "x.shape: the sizes".
local function heading(text)
  return text:match("^([%a_][%w_%.:]*[%w_])%s?[%({]") or text:match("^([%a_][%w_]*%.[%w_%.]*[%w_]): ")
end

-- The comments of a file by the line below, those that say what they are about by that, and the first one.
local function read_comments(path, by_heading)
  local by_line, file, first = {}, io.open(path, "r"), nil
  if not file then return by_line end
  local block, number = nil, 0
  local function keep(lines)
    local name = heading(lines[1])
    if name and not by_heading[name] then by_heading[name] = lines end
  end
  for text in file:lines() do
    number = number + 1
    local comment = text:match("^%s*%-%-%- ?(.*)$") or text:match("^%s*%-%-%-$") and ""
    if comment then
      block = block or {}
      block[#block + 1] = comment
    elseif block then
      first = first or block
      if text:find("%S") then
        by_line[number] = block
        keep(block)
      else
        local entry
        for _, each in ipairs(block) do
          if not entry or heading(each) then
            if entry then keep(entry) end
            entry = {}
          end
          entry[#entry + 1] = each
        end
        keep(entry)
      end
      block = nil
    end
  end
  file:close()
  return by_line, first
end

-- ---- public names

-- A library's names that are loaded when they are first asked for; nil where there are none.
function help.lazy(value)
  local mt = type(value) == "table" and getmetatable_of(value)
  local lazy = type(mt) == "table" and rawget(mt, "lazy")
  return lazy and lazy() or nil
end

-- A library: one of ours, or a table of functions and constants in one.
local function is_library(value)
  if type(value) ~= "table" or rawget(value, "__name") then return false end
  local mt = getmetatable_of(value)
  return mt == nil or rawget(mt, "__library") ~= nil
end

local function is_class(value)
  local mt = type(value) == "table" and getmetatable_of(value)
  return mt and rawget(mt, "__call") ~= nil or false
end

-- As people write it: lm.nn.functional.relu is F.relu. Longer ones first.
local short = {
  {"lm.nn.functional", "F"}, {"lm.nn", "nn"}, {"lm.optim", "optim"}, {"lm.data", "data"}, {"lm.dist", "dist"},
  {"lm.vision.transforms", "transforms"}, {"lm.vision", "vision"},
}
local function shortened(path)
  for _, pair in ipairs(short) do
    local long, as = unpack(pair)
    if path == long or path:sub(1, #long + 1) == long .. "." then return as .. path:sub(#long + 1) end
  end
  return path
end

local internal = {["lm.core"] = true, ["lm.ops"] = true}

local function sorted_names(t)
  local names = {}
  for name in next, t do
    if type(name) == "string" and not name:find("^_") then names[#names + 1] = name end
  end
  for name in next, help.lazy(t) or {} do
    if rawget(t, name) == nil then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- What of a class is for its users: functions that it has, or has from its class.
local function add_class(index, name, of)
  if index.classes[name] then return end
  index.classes[name] = of
  for _, method in ipairs(sorted_names(of)) do
    if type(of[method]) == "function" then
      index.add(name .. ":" .. method, method, of[method], name)
    end
  end
  local super = rawget(of, "super")
  if super then add_class(index, super.__name, super) end
end

local function add_library(index, path, library)
  index.seen[library] = true
  for _, name in ipairs(sorted_names(library)) do
    local value, inner = library[name], path .. "." .. name
    if not internal[inner] then
      index.add(shortened(inner), name, value, shortened(path))
      if is_class(value) then
        add_class(index, rawget(value, "__name") or name, value)
      elseif is_library(value) and not index.seen[value] then
        add_library(index, inner, value)
      end
    end
  end
end

local index -- made when first asked for

-- Everything public: a list of {path, name, value, owner}, the same by name, and the comments.
local function all()
  if index then return index end
  local new = {
    list = {}, by_name = {}, by_path = {}, classes = {}, seen = {}, -- names
    by_line = {}, by_heading = {}, first = {}, -- comments: first is by the library that a file gives
  }
  function new.add(path, name, value, owner)
    if new.by_path[path] then return end
    local entry = {path = path, name = name, value = value, owner = owner}
    new.list[#new.list + 1], new.by_path[path] = entry, entry
    new.by_name[name] = new.by_name[name] or {}
    table.insert(new.by_name[name], entry)
  end
  local lm = require "luminary"
  new.add("lm", "lm", lm, "")
  add_library(new, "lm", lm)
  for _, name in ipairs(sorted_names(core.methods)) do new.add("x:" .. name, name, core.methods[name], "x") end
  for _, name in ipairs(sorted_names(core.tensor_fields)) do new.add("x." .. name, name, nil, "x") end
  for _, name in ipairs(sorted_names(package.loaded)) do -- of two comments about one name the first counts
    local path = name:find("^luminary") and not name:find("^luminary%.cli") and package.searchpath(name, package.path)
    if path then
      local first
      new.by_line["@" .. path], first = read_comments(path, new.by_heading)
      if type(package.loaded[name]) == "table" then new.first[package.loaded[name]] = first end
    end
  end
  index = new
  return index
end

--- Everything public: a list of {path = "nn.Linear", name = "Linear", value, owner = "nn"}. Tensors' methods and fields
--- are the owner "x"'s; methods of classes are the class's.
function help.entries() return all().list end

--- The names, without what they are names in.
function help.words()
  local list = {}
  for name in pairs(all().by_name) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- A public class, by its name.
function help.class(name) return all().classes[name] end

local inner_ops = {
  conv2d_input = true, conv2d_weight = true, index_get = true, index_put = true, to_copy = true, max_dim = true,
  min_dim = true,
}

--- Whether a name is that of an op which is there for others to be made of.
function help.is_inner(name) return inner_ops[name] or core.ops[name] ~= nil and name:find("_backward$") ~= nil end

-- ---- what is said about one

-- The function that stands behind one of options.exact and the like.
local function original(f)
  for _ = 1, 5 do
    local info = getinfo(f, "S")
    if not info.source:find("/base/options%.lua$") and not info.source:find("/base/class%.lua$") then return f, info end
    local i, inner = 1, nil
    while true do
      local name, value = getupvalue(f, i)
      if not name then break end
      if type(value) == "function" and (name == "f" or name == "exact" or name == "method") then inner = value end
      i = i + 1
    end
    if not inner then return f, info end
    f = inner
  end
  return f, getinfo(f, "S")
end

local function call_of(path, f)
  local names, info = {}, getinfo(f, "u")
  for i = 1, info.nparams do
    local name = getlocal(f, i)
    if not (i == 1 and path:find(":", 1, true)) then names[#names + 1] = name end
  end
  if info.isvararg then names[#names + 1] = "…" end
  return ("%s(%s)"):format(path, table.concat(names, ", "))
end

-- A comment's lines as one text: what belongs together is joined, so that it can be wrapped anew.
local function joined(lines)
  local out = {}
  for _, text in ipairs(lines) do
    local last = out[#out]
    if last and last ~= "" and text ~= "" and not text:find("^%s") and not last:find("^%s") then
      out[#out] = last .. " " .. text
    else
      out[#out + 1] = text
    end
  end
  return table.concat(out, "\n")
end

-- What a comment says of a name: as it stands where it begins with a call, else below the call.
local function worded(path, name, lines, f)
  local about = heading(lines[1])
  if about and about:match("[%w_]+$") == name then return joined(lines) end
  return (f and call_of(path, f) or path) .. "\n  " .. joined(lines):gsub("\n", "\n  ")
end

-- What is above a function.
local function of_function(entry, value)
  local f, info = original(value)
  local files = all().by_line
  if info.what ~= "C" and not files[info.source] then -- a user's
    files[info.source] = info.source:find("^@") and read_comments(info.source:sub(2), {}) or {}
  end
  local lines = info.what ~= "C" and files[info.source][info.linedefined]
  if lines then return worded(entry.path, entry.name, lines, f) end
end

local explain

-- Of a method that says nothing itself, what is said of the one that it overrides.
local function of_super(entry)
  local of = all().classes[entry.owner]
  if not of then return nil end
  local super, common = rawget(of, "super"), class.methods[entry.name]
  local text = super and explain(super.__name .. ":" .. entry.name) or common and of_function(entry, common)
  if text then return text end
  if entry.name == "init" or entry.name == "forward" then return explain(entry.owner) end
end

-- Another public name of the same value.
local function of_alias(entry)
  local kind = type(entry.value)
  if kind ~= "function" and kind ~= "table" then return nil end
  for _, other in ipairs(all().list) do
    if other ~= entry and other.value == entry.value then
      local lines = all().by_heading[other.path]
      if lines then return joined(lines) end
    end
  end
end

local function find_text(entry)
  local lines = all().by_heading[entry.path] or entry.owner == "x" and all().by_heading["lm." .. entry.name]
  if type(entry.value) == "function" then
    local text = of_function(entry, entry.value)
    if text then return text end
  end
  if lines then return worded(entry.path, entry.name, lines) end
  local own = is_class(entry.value) and rawget(entry.value, "__help")
  if own then return own end
  lines = type(entry.value) == "table" and all().first[entry.value]
  if lines then return joined(lines) end
  if entry.owner == "x" or entry.owner == "lm" or entry.owner == "F" then
    local text = core.help(entry.name)
    if text then return text end
  end
  local kind = type(entry.value)
  if kind == "string" or kind == "number" then return explain(entry.owner) end -- a constant among others
  return of_alias(entry) or of_super(entry)
end

--- Methods that every class has, or that calls stand for.
help.usual = {
  init = true, forward = true, extend = true, repr = true, extra_repr = true, is = true, reset_parameters = true,
}

-- The text of a class ends with the methods that it adds to those of the class it extends.
local function with_methods(entry, text)
  local names, owner = {}, rawget(entry.value, "__name") or entry.name
  for _, each in ipairs(all().list) do
    if each.owner == owner and not help.usual[each.name] then names[#names + 1] = each.name end
  end
  if #names == 0 then return text end
  return ("%s\nIts methods: %s."):format(text, table.concat(names, ", "))
end

--- What is known of an entry of help.entries(); nil if nothing is.
function help.of(entry)
  if entry.text == nil then
    entry.text = false
    local text = find_text(entry)
    entry.text = text and is_class(entry.value) and with_methods(entry, text) or text or false
  end
  return entry.text or nil
end

function explain(path)
  if all().by_path[path] then return help.of(all().by_path[path]) end
  local of = all().classes[path]
  for _, entry in ipairs(of and all().by_name[path] or {}) do
    if entry.value == of then return help.of(entry) end
  end
  local lines = of and all().by_heading[path]
  return lines and joined(lines)
end

-- ---- asking by name

local others = {
  x = "tensors", lm = "luminary", nn = "nn", F = "nn.functional", optim = "optim", data = "data",
  ["optim.lr_scheduler"] = "optim.lr_scheduler",
}

-- What is said of a name of PyTorch's or Torch7's: in other_names, of the library that it is asked of, or of the first.
local function elsewhere(qualifier, name)
  local names = require "luminary.help.other_names"
  local found = names[others[qualifier]] and names[others[qualifier]][name]
  for _, owner in ipairs {"x", "lm", "nn", "F", "optim", "optim.lr_scheduler", "data"} do
    if not found and names[others[owner]][name] ~= nil then found = names[others[owner]][name] end
  end
  return found
end

-- Whether what stands before an entry's name is what somebody wrote there.
local function belongs(entry, qualifier)
  return qualifier and (entry.owner == shortened(qualifier) or entry.owner == shortened("lm." .. qualifier))
end

local common = {lm = 1, x = 1, F = 1, nn = 1}

-- The entries that a name may stand for: with what stands before it, where that helps; what is used most comes first,
-- and methods of classes last.
local function candidates(qualifier, name)
  local narrow, ranked = {}, {{}, {}, {}}
  for _, entry in ipairs(all().by_name[name] or {}) do
    if belongs(entry, qualifier) then narrow[#narrow + 1] = entry end
    table.insert(ranked[common[entry.owner] or all().classes[entry.owner] and 3 or 2], entry)
  end
  if #narrow > 0 then return narrow end
  local list = {}
  for _, entries in ipairs(ranked) do
    for _, entry in ipairs(entries) do list[#list + 1] = entry end
  end
  return list
end

-- The owners that a value's methods are found under: "x", or its classes' names.
local function owners_of(value)
  if core.is_tensor(value) then return {"x"} end
  local record, owners = class.record(value), {}
  local of = record and record.class
  while of do
    owners[#owners + 1] = of.__name
    of = of.super
  end
  return owners
end

local function no_name(path, name, qualifier)
  local ours = elsewhere(qualifier and shortened(qualifier), name)
  if ours == false then return ("no '%s' in this version"):format(path) end
  if ours and ours:find(" ") then return ("no '%s'; %s"):format(path, ours) end
  if ours then
    local text = ours ~= path and ours ~= name and not path:find("." .. ours, 1, true) and help.text(ours)
    return ("no '%s'; here it is %s%s"):format(path, ours, text and "\n" .. text or "")
  end
  local there = {}
  for _, entry in ipairs(all().list) do
    if belongs(entry, qualifier) then there[#there + 1] = entry.name end
  end
  local near = core.nearest(name, there) or core.nearest(name, help.words())
  return ("no '%s'%s"):format(path, near and "; did you mean ?" .. near or "")
end

--- What is known of a name: "conv2d", "nn.Linear", "x:sum", "Module:parameters". nil, and a sentence that says what is
--- near, where there is no such name. of: the value that stands before the last dot or colon, if it is known.
function help.text(path, of)
  options.arg("help", "the name", path, "string")
  path = path:gsub("^luminary%f[^%w_]", "lm")
  local qualifier, name = path:match("^(.*)[%.:]([%w_]+)$")
  name = name or path:match("^[%w_]+$")
  if not name then return nil, ("no '%s'"):format(path) end
  local classes = all().classes
  local named = qualifier
    and (classes[qualifier] or classes["lm." .. qualifier] or classes[qualifier:match("[%w_]+$")])
  local owners = of ~= nil and owners_of(of) or {}
  while named do
    owners[#owners + 1] = named.__name
    named = rawget(named, "super")
  end
  for _, owner in ipairs(owners) do
    local entry = all().by_path[owner .. ":" .. name] or all().by_path[owner .. "." .. name]
    local text = entry and help.of(entry)
    if text then return text end
  end
  if all().by_path[path] then
    local text = help.of(all().by_path[path])
    if text then return text end
  end
  local texts, said = {}, {}
  for _, entry in ipairs(candidates(qualifier, name)) do
    local text = help.of(entry)
    if text and not said[text] then
      said[text] = true
      texts[#texts + 1] = text
    end
  end
  if #texts == 0 then
    local text = core.help(name) or all().classes[name] and explain(name)
    if text then return text end
    return nil, no_name(path, name, qualifier)
  end
  return table.concat(texts, "\n", 1, math.min(#texts, 4))
end

--- What is known of a value that somebody calls `name`.
function help.value(name, value)
  if type(value) == "function" then
    local entry, info = {path = name, name = name}, getinfo(value, "S")
    return of_function(entry, value) or call_of(name, original(value))
      .. (info.what == "C" and "" or ("\n  %s:%d"):format(info.short_src, info.linedefined))
  end
  local record = class.record(value)
  local text = record and explain(record.class.__name)
  return ("%s is %s%s"):format(name, options.describe(value), text and "\n" .. text or "")
end

-- ---- overviews

local WIDTH = 78

--- The text with its lines broken at blanks; what follows a line's first keeps its margin.
function help.wrapped(text)
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

--- Words in columns; one that is longer than a column takes several.
function help.columns(list)
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

-- Which group a library's name stands in; nil for what is not worth a place.
local function group_of(library, name, value)
  if is_class(value) then return CLASSES end
  if type(value) == "table" then
    for _, v in next, value do
      if type(v) == "function" then return LIBRARIES end
    end
    return getmetatable_of(value) and rawget(getmetatable_of(value), "__library") and LIBRARIES or VALUES
  end
  if type(value) ~= "function" then return VALUES end
  if rawget(require "luminary.tensor.typed_constructors", name) then return TYPED end
  if library ~= require "luminary" then return FUNCTIONS end
  if not rawget(core.ops, name) then return FUNCTIONS end
  if help.is_inner(name) then return nil end
  return rawget(core.methods, name) and OPS or NEW
end

--- A library on about a screen: what it is, and its names in groups.
function help.overview(library)
  local lines, found = all().first[library], {}
  local path = "?"
  for _, entry in ipairs(all().list) do
    if entry.value == library then
      path = entry.path
      break
    end
  end
  for _, name in ipairs(sorted_names(library)) do
    local value = library[name]
    local group = not internal[path .. "." .. name] and group_of(library, name, value)
    local plain = name:match("^(.*)_$")
    if group and not (plain and rawget(library, plain)) then
      found[group] = found[group] or {}
      table.insert(found[group], name)
    end
  end
  local about = lines and joined(lines) or path
  local out = {help.wrapped(about:match("^(.-%.)%s") or about:match("^[^\n]*"))}
  for _, group in ipairs {LIBRARIES, CLASSES, NEW, OPS, FUNCTIONS, TYPED, VALUES} do
    if found[group] then
      out[#out + 1] = group .. ":"
      out[#out + 1] = help.columns(found[group])
    end
  end
  out[#out + 1] = ("?%s.NAME explains one of them"):format(path)
  return table.concat(out, "\n")
end

return options.exact_all(help)
