--- What each public name is, as text: from the core for the ops, and from the comments in these files (index.lua).
local core = require "luminary.core"
local aliases = require "luminary.tensor.aliases"
local arguments = require "luminary.base.arguments"
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local index = require "luminary.help.index"
local options = require "luminary.base.options"
local overview = require "luminary.help.overview"

local help = {
  entries = index.entries, words = index.words, class = index.class, is_inner = index.is_inner, lazy = index.lazy,
  wrapped = overview.wrapped, columns = overview.columns, overview = overview.overview,
}
local all, heading, is_class, joined, read_comments, shortened = index.all, index.heading, index.is_class, index.joined,
  index.read_comments, index.shortened
local getinfo, getlocal, getupvalue = debug.getinfo, debug.getlocal, debug.getupvalue

-- ---- what is said about one

local wrappers = {options = true, class = true, arguments = true}

-- The function that stands behind one of options.exact and the like.
local function original(f)
  for _ = 1, 5 do
    local info = getinfo(f, "S")
    if not wrappers[info.source:match "/base/(%w+)%.lua$"] then return f, info end
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

-- What is between the parentheses of a call of a value that declares its arguments; nil for others.
local function declared_call(value, path)
  local rows, least = arguments.declared(value)
  if rows and path:find "^x:" then rows, least = {unpack(rows, 2)}, least - 1 end -- x itself
  return rows and arguments.call(rows, least)
end

local function call_of(path, f, value)
  local declared = declared_call(value, path)
  if declared then return ("%s(%s)"):format(path, declared) end
  local names, info = {}, getinfo(f, "u")
  for i = 1, info.nparams do
    local name = getlocal(f, i)
    if not (i == 1 and path:find(":", 1, true)) then names[#names + 1] = name end
  end
  if info.isvararg then names[#names + 1] = "…" end
  return ("%s(%s)"):format(path, table.concat(names, ", "))
end

-- What a comment says of a name: as it stands where it begins with a call, else below the call.
local function worded(path, name, lines, f, value)
  local about, declared, text = heading(lines[1]), declared_call(value, path), joined(lines)
  if about and about:match("[%w_]+$") == name then
    if declared and text:find("^[%w_%.:]+%b()") then
      text = text:gsub("^([%w_%.:]+)%b()", function(call) return call .. "(" .. declared .. ")" end, 1)
    end
    return text
  end
  return (f and call_of(path, f, value) or path) .. "\n  " .. text:gsub("\n", "\n  ")
end

-- What is above a function.
local function of_function(entry, value)
  local f, info = original(value)
  local files = all().by_line
  if info.what ~= "C" and not files[info.source] then -- a user's
    files[info.source] = info.source:find("^@") and read_comments(info.source:sub(2), {}) or {}
  end
  local lines = info.what ~= "C" and files[info.source][info.linedefined]
  if lines then return worded(entry.path, entry.name, lines, f, value) end
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
  if lines then return worded(entry.path, entry.name, lines, nil, entry.value) end
  local own = is_class(entry.value) and rawget(entry.value, "__help")
  if own then return worded(entry.path, entry.name, {own}, nil, entry.value) end
  lines = type(entry.value) == "table" and all().first[entry.value]
  if lines then return joined(lines) end
  if entry.owner == "x" or entry.owner == "lm" or entry.owner == "F" then
    local text = core.help(aliases.of[entry.name] or entry.name)
    if text and not declared_call(entry.value, entry.path) then return text end
    if text then return worded(entry.path, entry.name, {(text:gsub("^[%w_]+", entry.path))}, nil, entry.value) end
  end
  local kind = type(entry.value)
  if kind == "string" or kind == "number" then return explain(entry.owner) end -- a constant among others
  return of_alias(entry) or of_super(entry)
end

--- Methods that every class has, or that calls stand for.
help.usual = {
  init = true, forward = true, extend = true, repr = true, extra_repr = true, is = true, reset_parameters = true,
}

-- The text of a class ends with the methods that it adds to those of the class it extends, and with that one's where
-- it is no public one.
local function with_methods(entry, text)
  local names, owners, said, of = {}, {}, {}, entry.value
  repeat
    owners[rawget(of, "__name") or entry.name] = true
    of = rawget(of, "super")
  until not of or all().by_value[of]
  for _, each in ipairs(all().list) do
    if owners[each.owner] and not (help.usual[each.name] or said[each.name] or each.inner) then
      names[#names + 1], said[each.name] = each.name, true
    end
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
  ["optim.lr_scheduler"] = "optim.lr_scheduler", ["lm.models"] = "models", text = "text",
}

-- The same of names that methods of a class of ours have elsewhere.
local function of_methods(name)
  local classes, names = all().classes, {}
  for of in pairs(classes) do names[#names + 1] = of end
  table.sort(names)
  for _, of in ipairs(names) do
    local missing = rawget(classes[of], "__missing")
    if missing and rawget(missing, name) then return missing[name] end
  end
end

-- What is said of a name of PyTorch's or Torch7's: in other_names, of the library that it is asked of, or of the first.
local function elsewhere(qualifier, name)
  local names = load_module "luminary.help.other_names"
  local found = names[others[qualifier]] and names[others[qualifier]][name]
  for _, owner in ipairs {"x", "lm", "nn", "F", "optim", "optim.lr_scheduler", "data", "text", "lm.models"} do
    if not found and names[others[owner]][name] ~= nil then found = names[others[owner]][name] end
  end
  return found or of_methods(name) or names.options[name] or found
end

-- Whether what stands before an entry's name is what somebody wrote there.
local function belongs(entry, qualifier)
  return qualifier and (entry.owner == shortened(qualifier) or entry.owner == shortened("lm." .. qualifier))
end

local common = {lm = 1, x = 1, F = 1, nn = 1, Module = 1}

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

-- The text about an option, or an argument that stands by place: that of the function that has it, or the names of
-- several.
local function about_option(name, by_place)
  local paths, said, first = {}, {}, nil
  local before, what = by_place and "[%({,]%s*" or "[{,]%s*", by_place and "argument" or "option"
  for _, entry in ipairs(all().list) do
    local text = not index.is_inner(entry.name) and help.of(entry) or ""
    local calls = ("\n" .. text):gsub("\n%s*local [%w_, ]+= ", "\n")
    for call in calls:gmatch "\n%s*[%a_][%w_%.:]*%s?(%b())" do
      local names = by_place and call or call:match "%b{}"
      if names and names:find(before .. name .. "%f[^%w_]") and not said[text] then
        said[text], first = true, first or text
        paths[#paths + 1] = entry.path
      end
    end
  end
  if #paths == 0 then return nil end
  local theirs = load_module("luminary.help.other_names").options[name]
  theirs = theirs and ("\nOf functions that lack it: %s."):format(theirs) or ""
  if #paths == 1 then return ("%s is an %s of %s\n%s%s"):format(name, what, paths[1], first, theirs) end
  local shown = table.concat(paths, ", ", 1, math.min(#paths, 8))
  return ("%s is an %s of %s%s; ?%s explains the first%s"):format(name, what, shown,
    #paths > 8 and (" and %d more"):format(#paths - 8) or "", paths[1], theirs)
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
  local near = core.nearest(name, there) or core.nearest(name, index.words())
  return ("no '%s'%s"):format(path, near and "; did you mean ?" .. near or "")
end

local function elsewhere_of_models(name)
  local text = load_module("luminary.help.other_names").models[name]
  return text and ("Of models: %s."):format(text)
end

-- lm.models.gpt2.NAME: a net's method, or what others have there.
local function of_net(path, name)
  local text = explain("net:" .. name) or explain("Module:" .. name) or elsewhere_of_models(name)
  if text then return text end
  return nil, no_name(path, name, "lm.models")
end

-- The class that stands before a name: as its path, or by its own name.
local function class_named(qualifier, entry)
  if entry and is_class(entry.value) then return entry.value end
  local classes = all().classes
  return classes[qualifier] or classes["lm." .. qualifier] or classes[qualifier:match("[%w_]+$")]
end

--- What is known of a name: "conv2d", "nn.Linear", "x:sum", "Module:parameters". nil, and a sentence that says what is
--- near, where there is no such name. Or of a value: lm.help(lm.Generator). of: the value that stands before the last
--- dot or colon, if it is known.
function help.text(path, of)
  local kind = type(path)
  if kind == "function" or kind == "table" or kind == "userdata" then return help.value(nil, path) end
  options.arg("help", "the name", path, "string")
  path = path:gsub("^luminary%f[^%w_]", "lm")
  local qualifier, name = path:match("^(.*)[%.:]([%w_]+)$")
  name = name or path:match("^[%w_]+$")
  if not name then return nil, ("no '%s'"):format(path) end
  local before = qualifier and (all().by_path[shortened(qualifier)] or all().by_path[shortened("lm." .. qualifier)])
  local named, owners = qualifier and class_named(qualifier, before), of ~= nil and owners_of(of) or {}
  while named do
    owners[#owners + 1] = all().owner_of[named]
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
  if before and before.owner == "lm.models" and type(before.value) == "function" then return of_net(path, name) end
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
    text = text or not qualifier and (about_option(name)
      or elsewhere(nil, name) == nil and name:find "_" and about_option(name, true))
    if text then return text end
    return nil, no_name(path, name, qualifier)
  end
  local text = table.concat(texts, "\n", 1, math.min(#texts, 4))
  local of_models = elsewhere_of_models(name)
  return of_models and text .. "\n" .. of_models or text
end

--- What is known of a value that somebody calls `name`; without a name by that of what is public and the same.
function help.value(name, value)
  value = index.called(value)
  for _, entry in ipairs(name == nil and all().list or {}) do
    if rawequal(entry.value, value) and help.of(entry) then return help.of(entry) end
  end
  name = name or "it"
  if type(value) == "function" then
    local entry, info = {path = name, name = name}, getinfo(value, "S")
    return of_function(entry, value) or call_of(name, original(value), value)
      .. (info.what == "C" and "" or ("\n  %s:%d"):format(info.short_src, info.linedefined))
  end
  local record = class.record(value)
  local text = record and explain(record.class.__name)
  return ("%s is %s%s"):format(name, options.describe(value), text and "\n" .. text or "")
end

return options.exact_all(help)
