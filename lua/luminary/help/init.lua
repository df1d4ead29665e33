--- Finds the help text of each public name: from the core for ops, and from the comments in these files (index.lua).
local debug = require "debug"
local core = require "luminary.core"
local aliases = require "luminary.tensor.aliases"
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local index = require "luminary.help.index"
local op_text = require "luminary.help.op_text"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local overview = require "luminary.help.overview"

local help = {
  show = nil, -- function(text), set by the prompt
  entries = index.entries, words = index.words, class = index.class, is_inner = index.is_inner, lazy = index.lazy,
  wrapped = overview.wrapped, columns = overview.columns, overview = overview.overview,
}
local all, heading, is_class, joined, read_comments, shortened = index.all, index.heading, index.is_class, index.joined,
  index.read_comments, index.shortened
local getinfo, getlocal, getupvalue = debug.getinfo, debug.getlocal, debug.getupvalue

-- ---- the text of a name

local wrappers = {options = true, class = true, signature = true, full_precision = true}

-- Returns the function that options.exact and other wrappers wrap, and its debug info.
local function original(f)
  for _ = 1, 5 do
    local info = getinfo(f, "S")
    if not wrappers[info.source:match "/base/([%w_]+)%.lua$"] then return f, info end
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

-- Returns the text between the parentheses of a call of a value with declared arguments; nil for others.
local function declared_call(value, path)
  local takes = signature.declared(value)
  return takes and takes:call(path:find "^x:" and 2 or 1) -- without x
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

-- Returns a comment's text about a name: unchanged if it begins with a call, else below the call.
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

-- Returns the text of the comment above a function.
local function help_of_function(entry, value)
  local f, info = original(value)
  local files = all().by_line
  if info.what ~= "C" and not files[info.source] then -- a user's function
    files[info.source] = info.source:find("^@") and read_comments(info.source:sub(2), {}) or {}
  end
  local lines = info.what ~= "C" and files[info.source][info.linedefined]
  if lines then return worded(entry.path, entry.name, lines, f, value) end
end

local explain

-- Returns, for a method without a comment, the text of the method that it overrides.
local function help_of_super(entry)
  local of = all().classes[entry.owner]
  if not of then return nil end
  local super, common = rawget(of, "super"), class.methods[entry.name]
  local text = super and explain(super.__name .. ":" .. entry.name) or common and help_of_function(entry, common)
  if text then return text end
  if entry.name == "init" or entry.name == "forward" then return explain(entry.owner) end
end

-- Returns the text of another public name of the same value.
local function help_of_alias(entry)
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
    local text = help_of_function(entry, entry.value)
    if text then return text end
  end
  if lines then return worded(entry.path, entry.name, lines, nil, entry.value) end
  local own = is_class(entry.value) and rawget(entry.value, "__help") or signature.texts[entry.value]
  if own then return worded(entry.path, entry.name, {own}, nil, entry.value) end
  lines = type(entry.value) == "table" and all().first[entry.value]
  if lines then return joined(lines) end
  if entry.owner == "x" or entry.owner == "lm" or entry.owner == "F" then
    local text = op_text(aliases.of[entry.name] or entry.name)
    if text and not declared_call(entry.value, entry.path) then return text end
    if text then return worded(entry.path, entry.name, {(text:gsub("^[%w_]+", entry.path))}, nil, entry.value) end
  end
  local kind = type(entry.value)
  if kind == "string" or kind == "number" then return explain(entry.owner) end -- a constant: its library's text
  return help_of_alias(entry) or help_of_super(entry)
end

--- Methods that every class has, or that a call of the object runs.
help.usual = {
  init = true, forward = true, extend = true, repr = true, extra_repr = true, is = true, reset_parameters = true,
}

-- Returns the names of the methods that a class adds to those of its public base class, and that class; nil if there
-- are none. The methods of a base class that is not public are among them.
local function methods_of(of)
  local names, owners, said = {}, {}, {}
  repeat
    owners[all().owner_of[of]] = true
    of = rawget(of, "super")
  until not of or all().by_value[of]
  for _, each in ipairs(all().list) do
    if owners[each.owner] and not (help.usual[each.name] or said[each.name] or each.inner) then
      names[#names + 1], said[each.name] = each.name, true
    end
  end
  if of and methods_of(of) then
    names[#names + 1] = (#names > 0 and "and " or "") .. "those of " .. all().by_value[of]
  end
  return #names > 0 and table.concat(names, ", ") or nil
end

-- Appends to a text the methods of a class, or of the class of a function's result.
local function with_methods(entry, text)
  local of = index.class_of(entry.value)
  local methods = of and methods_of(of)
  return methods and ("%s\nIts %smethods: %s."):format(text, of ~= entry.value and "result's " or "", methods) or text
end

--- Returns the text of an entry of help.entries(), or nil.
function help.of(entry)
  if entry.text == nil then
    entry.text = false
    local text = find_text(entry)
    entry.text = text and with_methods(entry, text) or false
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

-- Returns the replacement for a method's name in another library, from the classes' __missing.
local function help_of_methods(name)
  local classes = all().classes
  for _, of in ipairs(options.sorted_keys(classes)) do
    local missing = rawget(classes[of], "__missing")
    if missing and rawget(missing, name) then return missing[name] end
  end
end

-- Returns the replacement for another library's name, from pytorch_names: for the query's library, or the first that
-- has one.
local function elsewhere(qualifier, name)
  local names = load_module "luminary.help.pytorch_names"
  local found = names[others[qualifier]] and names[others[qualifier]][name]
  for _, owner in ipairs {"x", "lm", "nn", "F", "optim", "optim.lr_scheduler", "data", "text", "lm.models"} do
    if not found and names[others[owner]][name] ~= nil then found = names[others[owner]][name] end
  end
  return found or help_of_methods(name) or names.options[name] or found
end

-- Returns true if the qualifier of a query is the entry's owner.
local function belongs(entry, qualifier)
  return qualifier and (entry.owner == shortened(qualifier) or entry.owner == shortened("lm." .. qualifier))
end

local common = {lm = 1, x = 1, F = 1, nn = 1, Module = 1}

-- Returns the rank of an entry: common libraries first, then others, and methods of classes. In each group, names in
-- the same case are first.
local function order_of(entry, name)
  local tier = common[entry.owner] or all().classes[entry.owner] and 3 or 2
  return tier * 2 + (entry.name == name and 0 or 1)
end

-- Returns true for an internal op; aliases of public ops are not internal.
local function is_internal(entry) return index.is_hidden(entry) and not aliases.of[entry.name] end

-- Returns the entries of a name, ignoring case: those of the qualifier's library, if there are any.
local function candidates(qualifier, name)
  local narrow, list, order = {}, {}, {}
  for i, entry in ipairs(all().list) do
    local is_name = entry.name:lower() == name:lower() or not qualifier and entry.path == name -- F is nn.functional
    if is_name and not is_internal(entry) then
      if belongs(entry, qualifier) then narrow[#narrow + 1] = entry end
      list[#list + 1], order[entry] = entry, order_of(entry, name) * 1e6 + i
    end
  end
  if #narrow > 0 then list = narrow end
  table.sort(list, function(a, b) return order[a] < order[b] end)
  return list
end

-- Returns the sections' descriptions of an argument, a line for each text: "optim.Adam, optim.AdamW: decay rates of …".
local function descriptions(name, paths)
  local entry, lines, of_text = load_module "luminary.help.entry", {}, {}
  for _, path in ipairs(paths) do
    local section = entry.section(all().by_path[path])
    local about = entry.descriptions(section)[name]
    if about and of_text[about] then
      lines[of_text[about]] = path .. ", " .. lines[of_text[about]]
    elseif about then
      lines[#lines + 1] = ("%s: %s"):format(path, entry.plain(about))
      of_text[about] = #lines
    end
  end
  return #lines > 0 and "\n" .. table.concat(lines, "\n") or ""
end

-- Returns the text about an option, or with by_position a positional argument: the text of the function that has it, if
-- the option has "_" and is thus no word of other texts, else the functions' names.
local function about_option(name, by_position)
  local paths, said, first = {}, {}, nil
  local before, what = by_position and "[%({,]%s*" or "[{,]%s*", by_position and "argument" or "option"
  local entries = load_module "luminary.help.entry"
  for _, entry in ipairs(all().list) do
    local text = not index.is_inner(entry.name) and help.of(entry) or ""
    local section = text ~= "" and entries.section(entry) or {}
    local calls = "\n" .. text .. "\n" .. table.concat(section.remarks or {}, "\n"):gsub("`", "")
    calls = calls:gsub("\n%s*local [%w_, ]+= ", "\n")
    for call in calls:gmatch "\n%s*[%a_][%w_%.:]*%s?(%b())" do
      local names = by_position and call or call:match "%b{}"
      if names and names:find(before .. name .. "%f[^%w_]") and not said[text] then
        said[text], first = true, first or entries.text(entry)
        paths[#paths + 1] = entry.path
      end
    end
  end
  if #paths == 0 then return nil end
  local theirs = load_module("luminary.help.pytorch_names").options[name]
  theirs = theirs and ("\nOf functions that lack it: %s."):format(theirs) or ""
  local about, path = descriptions(name, paths), #paths == 1 and paths[1]
  if path and name:find "_" then return ("%s is an %s of %s%s\n%s%s"):format(name, what, path, about, first, theirs) end
  local shown = table.concat(paths, ", ", 1, math.min(#paths, 8))
  return ("%s is an %s of %s%s; ?%s explains %s%s%s"):format(name, what, shown,
    #paths > 8 and (" and %d more"):format(#paths - 8) or "", paths[1], path and "it" or "the first", about, theirs)
end

-- Returns the owners of a value's methods: "x", or the names of its classes.
function help.owners_of(value)
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

local MAX_TEXTS = 4 -- texts of one name

local function elsewhere_of_models(name)
  local text = load_module("luminary.help.pytorch_names").models[name]
  return text and ("Of models: %s."):format(text)
end

-- Returns the text of lm.models.gpt2.NAME: a net's method, or a name in other libraries' models.
local function help_of_net(path, name)
  local text = explain("net:" .. name) or explain("Module:" .. name) or elsewhere_of_models(name)
  if text then return text end
  return nil, no_name(path, name, "lm.models")
end

-- Returns the class of a qualifier, by its path or its name.
local function class_named(qualifier, entry)
  if entry and is_class(entry.value) then return entry.value end
  local classes = all().classes
  return classes[qualifier] or classes["lm." .. qualifier] or classes[qualifier:match("[%w_]+$")]
end

-- Returns the text of the entries of a name: the first in full, then others in the same case, then other entries with
-- that word. `query`: the word, if it has no qualifier.
local function help_of_entries(list, name, query)
  local entries, search = load_module "luminary.help.entry", load_module "luminary.help.search"
  local texts, said, shown = {}, {}, {}
  for _, entry in ipairs(list) do
    local text = help.of(entry)
    local same = is_class(entry.value) and entry.value or text -- a class has one text for all its names
    local fits = #texts == 0 or entry.name == name and #texts < MAX_TEXTS
    if text and not said[same] and fits then
      texts[#texts + 1] = #texts == 0 and entries.text(is_class(entry.value) and entries.main(entry) or entry) or text
      said[same], shown[entry] = true, true
    elseif text and said[same] then
      shown[entry] = true
    end
  end
  if #texts == 0 then return nil end
  texts[#texts + 1] = elsewhere_of_models(name)
  if query then texts[#texts + 1] = search.see_also(query, shown) end
  return table.concat(texts, "\n")
end

-- Returns the text of an entry by its path, qualifier and name; `of` is the qualifier's value, a class or a library.
local function help_of_path(path, qualifier, name, of)
  local before = qualifier and (all().by_path[shortened(qualifier)] or all().by_path[shortened("lm." .. qualifier)])
  local named, owners = qualifier and class_named(qualifier, before), of ~= nil and help.owners_of(of) or {}
  while named do
    owners[#owners + 1] = all().owner_of[named]
    named = rawget(named, "super")
  end
  for _, owner in ipairs(owners) do
    local entry = all().by_path[owner .. ":" .. name] or all().by_path[owner .. "." .. name]
    local text = entry and help_of_entries({entry}, name)
    if text then return text end
  end
  local entry = qualifier and all().by_path[path]
  local text = entry and help_of_entries({entry}, name)
  if text then return text end
  if before and before.owner == "lm.models" and type(before.value) == "function" then return help_of_net(path, name) end
end

-- Returns the sections of docs/ with the words, and the list of entries with them in their names or first sentences,
-- else anywhere in their texts; or nil. Sections are first if they fit better.
local function help_of_search(query)
  local search = load_module "luminary.help.search"
  local found, tier = search.find(query)
  local headings, is_named, lacks = search.headings(query)
  local where, texts = "names and first sentences", {}
  if #found == 0 and (#headings == 0 or lacks) then found, where = search.mentions(query), "texts" end
  local several = query:find "%W" ~= nil
  local by_name = tier == 0 or several and (tier == 1 or tier == 1.5 and not is_named)
  local pages_first = not by_name and (is_named or several and not (lacks and #found > 0))
  if #found > 0 then texts[1] = ("%s with '%s':\n%s"):format(where, query, search.lines(found)) end
  if #headings > 0 then
    table.insert(texts, pages_first and 1 or #texts + 1,
      ("pages with '%s' (luminary help docs/… prints one):\n  %s"):format(query, table.concat(headings, "\n  ")))
  end
  return #texts > 0 and table.concat(texts, "\n") or nil
end

-- Returns the text for a word that is not a name: an option, a name of PyTorch, or a word in sentences.
local function help_of_word(name)
  local listed, theirs = help_of_search(name), elsewhere(nil, name)
  local text = about_option(name) or theirs == nil and name:find "_" and about_option(name, true)
  if text then return listed and text .. "\n" .. listed or text end
  if theirs and theirs:find " " then
    return nil, ("no '%s'; %s%s"):format(name, theirs, listed and "\n" .. listed or "")
  end
  if not theirs then return listed end
end

--- Returns the text of help for a name, a value or words, as lm.help; nil and a sentence if there is none.
function help.text(path, of) -- `of`: the value before the last dot or colon, if known
  local kind = type(path)
  if kind == "function" or kind == "table" or kind == "userdata" then return help.value(nil, path) end
  options.arg("help", "the name", path, "string")
  path = path:gsub("^luminary%f[^%w_]", "lm"):match "^%s*(.-)%s*$"
  local page = path:find "%.md$" and load_module("luminary.help.search").page(path)
  if page then return page end
  if path:find "%s" or path:find "^[%w_]+%-[%w_%-]+$" then
    local text = help_of_search(path)
    return text, not text and ("no name or text with '%s'"):format(path) or nil
  end
  local qualifier, name = path:match("^(.*)[%.:]([%w_]+)$")
  name = name or path:match("^[%w_]+$")
  if not name then return help_of_search(path) or nil, ("no '%s'"):format(path) end
  local text, why = help_of_path(path, qualifier, name, of)
  if text or why then return text, why end
  text = help_of_entries(candidates(qualifier, name), name, not qualifier and name or nil)
  if text then return text end
  text = all().classes[name] and explain(name)
  if text then return text end
  if not qualifier then
    text, why = help_of_word(name)
    if text or why then return text, why end
  end
  text = op_text(name)
  if text then return text end
  return nil, no_name(path, name, qualifier)
end

--- lm.help(name): Returns the help text of a public name; at the prompt it prints it.
---
--- name may be a path ("nn.Linear", "x:sum", "Module:parameters"), a value (nn.Linear itself), or words ("learning
--- rate"), for which the names and first sentences with them are listed. Returns nil and the nearest names where
--- nothing is found.
function help.ask(path)
  local text, why = help.text(path)
  if not help.show then return text, why end
  help.show(text or why)
end

-- Returns the dtype and device of a tensor, or the number of a module's parameters and their shapes; "" for others.
local function details(value)
  if core.is_tensor(value) then
    return (", %s on %s%s"):format(value.dtype, value.device, value.requires_grad and ", requires_grad" or "")
  end
  if not options.is("module", value) then return "" end
  local count, lines = 0, {}
  for path, p in value:named_parameters() do
    count, lines[#lines + 1] = count + p:numel(), ("\n  %s [%s]"):format(path, table.concat(p.shape, ", "))
  end
  local shown = table.concat(lines, "", 1, math.min(#lines, 20)) .. (#lines > 20 and "\n  …" or "")
  return (", %d parameters in %d tensors%s"):format(count, #lines, shown)
end

--- Returns the text for a value called `name`; without a name, that of the public entry with the same value.
function help.value(name, value)
  value = index.called(value)
  for _, entry in ipairs(name == nil and all().list or {}) do
    if rawequal(entry.value, value) and help.of(entry) then return load_module("luminary.help.entry").text(entry) end
  end
  name = name or "it"
  if type(value) == "function" then
    local entry, info = {path = name, name = name}, getinfo(value, "S")
    return help_of_function(entry, value) or call_of(name, original(value), value)
      .. (info.what == "C" and "" or ("\n  %s:%d"):format(info.short_src, info.linedefined))
  end
  local record = class.record(value)
  local text = record and explain(record.class.__name)
  return ("%s is %s%s%s"):format(name, options.describe(value), details(value), text and "\n\n" .. text or "")
end

return options.exact_all(help)
