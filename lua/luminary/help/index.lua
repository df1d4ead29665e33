--- Indexes every public name, and the comments above the definitions in these files, which are read at first use.
---
--- A comment of `---` lines belongs to the function on the line below it. A comment about a class, a field or a
--- function in C begins with its name: `nn.Linear(in, out): …`, `x.shape: …`. A comment with nothing below it may have
--- several such texts, each on a new line. A class that is made of an entry has its text in `__help`, a function in
--- signature.texts.
local core = require "luminary.core"
local aliases = require "luminary.tensor.aliases"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local pages = require "luminary.help.pages"

local index = {}
local getmetatable_of = require("debug").getmetatable

-- ---- the comments

-- Returns "nn.Linear" for "nn.Linear(in, out): x", and "x.shape" for "x.shape: the sizes".
local function heading(text)
  return text:match("^([%a_][%w_%.:]*[%w_])%s?[%({]") or text:match("^([%a_][%w_]*%.[%w_%.]*[%w_]): ")
end

-- Reads the comments of a file: by the number of the line below, by heading, and the first one.
local function read_comments(path, by_heading)
  local by_line, file, first = {}, require("io").open(path, "r"), nil
  if not file then return by_line end
  local block, declared, number = nil, nil, 0
  local function keep_section(lines)
    local name = heading(lines[1])
    if name and not by_heading[name] then by_heading[name] = lines end
  end
  for text in file:lines() do
    number = number + 1
    local comment = text:match("^%s*%-%-%- ?(.*)$") or text:match("^%s*%-%-%-$") and ""
    if comment then
      block = block or {}
      block[#block + 1] = comment
    elseif declared then
      if text:find("function%(") then by_line[number], declared = declared, nil end
    elseif block then
      first = first or block
      if text:find("%S") then
        by_line[number] = block
        keep_section(block)
        -- The function of name = signature.of("name(…)", function(…) may be on a later line.
        local begins = text:find "signature%.[%w_]+%("
        if begins and not text:find "function%(" then declared = block end
      else
        local entry
        for _, each in ipairs(block) do
          if not entry or heading(each) then
            if entry then keep_section(entry) end
            entry = {}
          end
          entry[#entry + 1] = each
        end
        keep_section(entry)
      end
      block = nil
    end
  end
  file:close()
  return by_line, first
end

-- ---- public names

-- Returns a library's names that are loaded at first use; nil if there are none.
function index.lazy(value)
  local mt = type(value) == "table" and getmetatable_of(value)
  local lazy = type(mt) == "table" and rawget(mt, "lazy")
  return lazy and lazy() or nil
end

-- Returns true if value is a library: one made by options.strict, or a table of functions and constants in one.
local function is_library(value)
  if type(value) ~= "table" or rawget(value, "__name") then return false end
  local mt = getmetatable_of(value)
  return mt == nil or rawget(mt, "__library") ~= nil
end

local function is_class(value)
  local mt = type(value) == "table" and getmetatable_of(value)
  return mt and rawget(mt, "__call") ~= nil and not rawget(mt, "__library") or false
end

--- Returns a class itself, or the class without a public name of a function's result; nil for others.
function index.class_of(value) return is_class(value) and value or class.of_results[value] end

-- Short forms of paths, longer paths first: lm.nn.functional.relu is F.relu.
local short = {
  {"lm.nn.functional", "F"}, {"lm.nn", "nn"}, {"lm.optim", "optim"}, {"lm.data", "data"}, {"lm.dist", "dist"},
  {"lm.vision.transforms", "transforms"}, {"lm.vision", "vision"}, {"lm.text", "text"},
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
  for name in next, index.lazy(t) or {} do
    if rawget(t, name) == nil then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- Returns the set of methods that are only for subclasses, which the class lists in __inner.
local function inner_methods(of)
  local inner = {}
  repeat
    for _, name in ipairs(rawget(of, "__inner") or {}) do inner[name] = true end
    of = rawget(of, "super")
  until not of
  return inner
end

-- Adds the public members of a class: its functions, inherited ones, and fields that it reports.
local function add_class(to, name, of)
  to.owner_of[of] = to.owner_of[of] or name
  if to.classes[name] then return end
  to.classes[name] = of
  local inner = inner_methods(of)
  for _, method in ipairs(sorted_names(class.filled(of))) do
    if type(of[method]) == "function" then
      to.add(name .. ":" .. method, method, of[method], name, inner[method])
    end
  end
  for _, field in ipairs(rawget(of, "__fields") or {}) do to.add(name .. "." .. field, field, "", name) end
  local super = rawget(of, "super")
  if super then add_class(to, super.__name, super) end
end

--- Returns value, or the function behind a table that is called, such as lm.models.gpt2.
function index.called(value)
  local mt = options.stands_for_code(value)
  local called = mt and rawget(mt, "called")
  return called and called() or value
end

local function add_library(to, path, library)
  to.seen[library] = true
  for _, name in ipairs(sorted_names(library)) do
    local value, inner = index.called(library[name]), path .. "." .. name
    if not internal[inner] then
      to.add(shortened(inner), name, value, shortened(path))
      local of = index.class_of(value)
      if of then
        local class_name = rawget(of, "__name") or name
        local other = to.classes[class_name] -- a class of that name in another library
        add_class(to, other and other ~= of and shortened(inner) or class_name, of)
      elseif is_library(value) and not to.seen[value] then
        add_library(to, inner, value)
      end
    end
  end
end

local known -- set at first use, and again after pages.add

-- Returns all public names: a list of {path, name, value, owner}, the same by name, and the comments.
local function all_public_names()
  if known and known.packages == #pages.added then return known end
  local new = {
    packages = #pages.added,
    list = {}, by_name = {}, by_path = {}, classes = {}, seen = {}, -- names
    by_value = {}, owner_of = {}, -- classes to public names, and to the start of their methods' paths
    by_line = {}, by_heading = {}, first = {}, -- comments by position and by heading; heads of files by library
  }
  function new.add(path, name, value, owner, inner)
    if new.by_path[path] then return end
    local entry = {path = path, name = name, value = value, owner = owner, inner = inner}
    new.list[#new.list + 1], new.by_path[path] = entry, entry
    if is_class(value) then new.by_value[value] = new.by_value[value] or path end
    new.by_name[name] = new.by_name[name] or {}
    table.insert(new.by_name[name], entry)
  end
  local lm = require "luminary"
  new.add("lm", "lm", lm, "")
  add_library(new, "lm", lm)
  for _, load in pairs(getmetatable_of(core.methods).rare) do load() end
  for _, name in ipairs(sorted_names(core.methods)) do new.add("x:" .. name, name, core.methods[name], "x") end
  local of_generators = load_module("luminary.generator").methods
  for _, name in ipairs(sorted_names(of_generators)) do
    new.add("Generator:" .. name, name, of_generators[name], "Generator")
  end
  for _, name in ipairs(sorted_names(core.tensor_fields)) do new.add("x." .. name, name, nil, "x") end
  local of_nets = {} -- comments in lm.models by heading, since its nets have no public class
  for _, name in ipairs(sorted_names(package.loaded)) do -- the first of two comments about a name counts
    local path = name:find("^luminary") and not name:find("^luminary%.cli") and package.searchpath(name, package.path)
    if path then
      local first
      local headings = name:find "^luminary%.models%." and of_nets or new.by_heading
      new.by_line["@" .. path], first = read_comments(path, headings)
      if type(package.loaded[name]) == "table" then new.first[package.loaded[name]] = first end
    end
  end
  for _, path in ipairs(sorted_names(of_nets)) do
    local lines = of_nets[path]
    local method = path:match "^net:([%w_]+)$"
    if method then new.add(path, method, nil, "net") end
    new.by_heading[path] = new.by_heading[path] or lines
  end
  known = new
  return known
end

--- Returns all public names: a list of {path = "nn.Linear", name = "Linear", value, owner = "nn"}. The owner is "x" for
--- tensors' methods and fields, the class for a class's methods; `inner` marks methods for subclasses.
function index.entries() return all_public_names().list end

--- Returns the names without owners.
function index.words() return lists.sorted_keys(all_public_names().by_name) end

--- Returns a public class by its name.
function index.class(name) return all_public_names().classes[name] end

--- Returns true for the name of an internal op, or an alias of an op.
function index.is_inner(name)
  local info = core.op_info(name) or core.op_info(name:match "^(.-)_?$") -- softmax_ is softmax in place
  return aliases.of[name] ~= nil or info ~= nil and info.internal
end

local op_owners = {lm = true, x = true, F = true}

--- Returns true if lists of names omit an entry: a method for subclasses, or an internal op.
function index.is_hidden(entry) return entry.inner or op_owners[entry.owner] and index.is_inner(entry.name) or false end

-- Returns a comment's lines as one text, with the lines of a paragraph joined, so that it can be wrapped again.
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

index.all, index.heading, index.joined, index.read_comments, index.shortened, index.sorted_names, index.is_class,
  index.internal = all_public_names, heading, joined, read_comments, shortened, sorted_names, is_class, internal

return index
