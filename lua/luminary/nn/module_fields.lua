--- Manages the fields of modules: parameters, buffers and children, checks of assignments to them, and the Lua lists of
--- containers' children.
local core = require "luminary.core"
local class = require "luminary.base.class"
local interpreted = require "luminary.base.interpreted"
local truncate_text = require "luminary.base.truncate_text"
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"
local fail = options.fail

-- The record of a module (see class.lua) also has:
--   kind (name -> "param", "buffer" or "child"), param, buffer, child (names in order), transient (buffers that
--   state_dict omits), counted (of a container: the number of children if they are named 0, 1, …, else -1; nil if
--   unknown), lists of functions or nil (hook_lists), and on_clone(twin), which is called on copies
--
-- Containers (classes with `numbered`) are tables, not userdata: their children are also at 1, 2, …, so that ipairs, #,
-- unpack, table.insert and table.remove work as on any list. record_of copies such changes into the record.

local hook_lists = {
  "pre_hooks", "hooks", "backward_pre_hooks", "backward_hooks", "state_hooks", "load_pre_hooks", "load_hooks",
}

--- Returns whether v is an instance of a class that extends nn.Module.
local function is_module(v)
  local record = class.record(v)
  return record ~= nil and record.is_module == true
end

local function remove_name(names, name)
  for i, n in ipairs(names) do
    if n == name then return table.remove(names, i) end
  end
end

-- ---- containers

local function number_in(name) return tonumber(name:match("^%d+$")) end

-- Returns names for a container's new children: numbers from 0. If an existing name is not a number, old children keep
-- their names, and new ones get the next numbers.
local function names_for(record, list)
  local names, numbers, known, next_number, numbered = {}, {}, {}, 0, true
  for _, name in ipairs(record.child) do
    local child = record.values[name]
    known[child] = known[child] or {}
    table.insert(known[child], name)
    next_number = math.max(next_number, (number_in(name) or -1) + 1)
  end
  for i, child in ipairs(list) do
    names[i] = known[child] and table.remove(known[child], 1)
    if not names[i] then
      names[i] = tostring(next_number)
      next_number = next_number + 1
    end
    numbers[i], numbered = tostring(i - 1), numbered and number_in(names[i]) ~= nil
  end
  return numbered and numbers or names
end

-- Sets entries 1, 2, … of a container to its children, from its record.
local function show_children(self, record)
  if not record.class.numbered then return end
  for i, name in ipairs(record.child) do rawset(self, i, record.values[name]) end
end

local record_of

local changes = 0 -- the number of changes of any module's parameters, buffers or children

-- Returns true if `module` is or contains `sought`.
local function contains(module, sought, seen)
  if module == sought then return true end
  if seen[module] then return false end
  seen[module] = true
  local inner = record_of(module)
  for _, n in ipairs(inner.child) do
    if contains(inner.values[n], sought, seen) then return true end
  end
  return false
end
contains = interpreted(contains)

-- Fails if the child contains the module: walks over such a module would not end.
local function check_acyclic(self, record, name, child)
  if contains(child, self, {}) then
    fail("%s: the child '%s' is or contains this module, and a module cannot contain itself; hold it in a plain "
      .. "table: self.%s = {module}", record.class.__name, name, number_in(name) and "other" or name)
  end
end

-- Makes the list the container's children.
local function set_children(self, record, list)
  local values, kind = record.values, record.kind
  local names = #list == #record.child and record.child or names_for(record, list)
  for i, child in ipairs(list) do
    if kind[names[i]] ~= "child" or values[names[i]] ~= child then check_acyclic(self, record, names[i], child) end
  end
  for _, name in ipairs(record.child) do values[name], kind[name] = nil, nil end
  for key in next, self do rawset(self, key, nil) end
  record.counted, changes = #names, changes + 1
  for i, name in ipairs(names) do
    values[name], kind[name] = list[i], "child"
    if name ~= tostring(i - 1) then record.counted = -1 end
  end
  record.child = names
  show_children(self, record)
end

-- Appends a module to a container's children without comparing all of them, if its record is known to be current.
-- Returns true if it did.
local function append(self, record, module)
  local child, values = record.child, record.values
  local n, name = #child, tostring(#child)
  local known = (record.counted or 0) == n and #self == n and not record.taking and values[name] == nil
  if not known or n > 0 and rawget(self, n) ~= values[child[n]] then return false end
  check_acyclic(self, record, name, module)
  child[n + 1], values[name], record.kind[name], record.counted, changes = name, module, "child", n + 1, changes + 1
  rawset(self, n + 1, module)
  return true
end

-- Returns the modules in a container's list, in order and without holes.
local function list_of(self, record)
  local keys, list = {}, {}
  for key in next, self do
    if type(key) ~= "number" then
      fail("%s: rawset set [%s], which the module does not register; assign it without rawset", record.class.__name,
        tostring(key))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  for i, key in ipairs(keys) do
    list[i] = rawget(self, key)
    if not is_module(list[i]) then
      options.must_be(record.class.__name, ("child %s"):format(tostring(key)), "a module", list[i])
    end
  end
  return list
end

function record_of(self)
  local record = getmetatable(self)
  if not record.class.numbered then return record end
  local child, values, unchanged = record.child, record.values, 0
  for key, v in next, self do
    local name = child[key]
    unchanged = name and values[name] == v and unchanged + 1 or 1 / 0
  end
  if unchanged ~= #child and not record.taking then
    local list = list_of(self, record)
    record.taking = true -- check_acyclic may call record_of for this container again
    local ok, problem = pcall(set_children, self, record, list)
    record.taking = nil
    if not ok then error(problem, 0) end
  end
  return record
end

-- Converts an index into a container to 1, 2, …; -1 is the last.
local function index_of(record, key) return key < 0 and #record.child + key + 1 or key end

-- Reads a container's field at a key that its list lacks: a negative index, a name, a slice or a field.
local function field_of_container(self, key)
  if type(key) == "number" then
    local record = record_of(self)
    local name = record.child[index_of(record, key)]
    if name then return record.values[name] end
    options.out_of_range(record.class.__name, key, #record.child, "modules")
  end
  if type(key) == "string" and key:find("^%d") then return record_of(self).values[key] end
  if options.is_plain(key) and #key <= 2 then return self:slice(unpack(key, 1, 2)) end
  return getmetatable(self).values[key]
end

-- ---- assigning fields

local nouns = {param = "parameter", buffer = "buffer", child = "child module"}

-- Returns true if the class or a base class has that field, ignoring class.__missing.
local function has_field(of, name)
  while of and rawget(of, name) == nil do of = rawget(of, "super") end
  return of ~= nil
end

local function check_name(record, kind, name)
  local who = record.class.__name
  if type(name) ~= "string" then
    options.must_be(who, "the name of a " .. nouns[kind], "a string", name,
      kind == "child" and "use nn.ModuleList for numbered modules" or nil)
  end
  if name == "" or name:find(".", 1, true) then
    fail("%s: the name of a %s must be non-empty and without a dot, got '%s'", who, nouns[kind], name)
  end
  if has_field(record.class, name) then
    fail("%s: a %s cannot be named '%s': the class has a field of that name", who, nouns[kind], name)
  end
end

local function unregister(record, name)
  local kind = record.kind[name]
  if kind then
    remove_name(record[kind], name)
    if kind == "child" then record.counted = -1 end
    record.kind[name], record.transient[name], changes = nil, nil, changes + 1
  end
end

local function register(self, record, kind, name, value)
  if kind == "child" then check_acyclic(self, record, name, value) end
  if record.kind[name] ~= kind then
    check_name(record, kind, name)
    unregister(record, name)
    record.kind[name] = kind
    table.insert(record[kind], name)
    if kind == "child" then record.counted = -1 end
  end
  record.values[name], changes = value, changes + 1
  if kind == "child" then show_children(self, record) end
end

local function assign(self, key, value)
  local record = getmetatable(self)
  local is_next = record.class.numbered and key == #record.child + 1 and not record.class.field_of
  if is_next and is_module(value) and append(self, record, value) then return end
  record_of(self)
  if record.class.field_of then key, value = record.class.field_of(self, key, value) end
  if record.class.numbered and type(key) == "number" then
    local at = index_of(record, key)
    key = record.child[at]
    if not key and at ~= #record.child + 1 then
      options.out_of_range(record.class.__name, at, #record.child, "modules")
    end
    if value ~= nil and not is_module(value) then
      options.must_be(record.class.__name, ("child %d"):format(at), "a module", value)
    end
    if not key then
      local list = list_of(self, record)
      list[at] = value
      return set_children(self, record, list)
    end
  end
  if is_module(value) then return register(self, record, "child", key, value) end
  if parameter.is(value) then return register(self, record, "param", key, value) end

  local was = record.kind[key]
  if was and value == nil then
    if was == "child" and record.class.numbered then
      local left = list_of(self, record)
      for i, name in ipairs(record.child) do
        if name == key then table.remove(left, i) end
      end
      return set_children(self, record, left)
    end
    unregister(record, key)
    record.values[key] = nil
    return
  end
  if was == "param" or was == "child" then
    options.must_be(record.class.__name, ("%s '%s'"):format(nouns[was], key),
      was == "param" and "an nn.Parameter or nil" or "a module or nil", value)
  elseif was == "buffer" and not core.is_tensor(value) then
    options.must_be(record.class.__name, ("buffer '%s'"):format(key), "a tensor or nil", value)
  end
  if value ~= nil and type(value) ~= "function" and type(record.class[key]) == "function" then
    fail("%s: '%s' is a method and cannot be assigned; got %s", record.class.__name, tostring(key),
      options.describe(value))
  end
  if core.is_tensor(value) or options.is_plain(value) then core.keep(value) end
  record.values[key] = value
end

-- Returns a module without fields, and its record; `call` is the function that runs when it is called. A class with
-- field_of(self, key, value, reading) stores fields under the names and values that field_of returns.
local function blank(of, call)
  local record = {
    is_module = true, kind = {}, param = {}, buffer = {}, child = {}, transient = {},
    __newindex = assign, __call = call,
  }
  if of.field_of then
    function record.__index(self, key)
      if type(key) == "number" then key = of.field_of(self, key, nil, true) end
      return record.values[key]
    end
  end
  if not of.numbered then return class.object(of, record), record end
  record.__index = field_of_container
  return class.list(of, record), record
end

-- Fails if a module is lazy and has no sizes yet.
local function check_sized(who, module)
  local record = record_of(module)
  if not (record.class.base and record.values.given) then return end
  fail("%s: this %s has no weight before its first forward pass; call the net once", who, record.class.__name)
end

-- Returns a module of the same class, fields, names and hooks, with copy(value) in place of each field's value; adds it
-- to `copies` before it copies fields.
local function twin_of(module, copies, copy)
  local source = record_of(module)
  local twin, record = blank(source.class, source.__call)
  copies[module] = twin
  for key, value in pairs(source.values) do record.values[key] = copy(value) end
  for _, part in ipairs {"kind", "param", "buffer", "child", "transient"} do
    for key, value in pairs(source[part]) do record[part][key] = value end
  end
  for _, name in ipairs(hook_lists) do record[name] = source[name] end
  record.most_inputs = source.most_inputs
  show_children(twin, record)
  return twin
end

-- ---- dotted names

local function joined(prefix, name) return prefix == "" and name or prefix .. "." .. name end

-- Finds a dotted name, which must be of the given kind. Returns the value, the module that has it and its name there.
-- `look` is record_of, which compares all children of a container, or a function that caches it, for many names of an
-- unchanged module.
local function find_by_path(who, self, path, kind, look)
  options.arg(who, "the name", path, "string")
  look = look or record_of
  local module, at = self, ""
  for name, dot in path:gmatch "([^.]*)(%.?)" do
    if name == "" and dot == "" then break end
    local record, wanted = look(module), dot == "" and kind or "child"
    if record.kind[name] ~= wanted then
      fail("%s: %s has no %s '%s'%s", who, at == "" and self.__name or ("'%s'"):format(at), nouns[wanted],
        truncate_text(name, 60), #record[wanted] > 0 and "; it has " .. table.concat(record[wanted], ", ") or "")
    end
    if dot == "" then return record.values[name], module, name end
    module, at = record.values[name], joined(at, name)
  end
  return module
end

-- Replaces children by modules of the same names.
local function replace_children(self, modules)
  local record = record_of(self)
  for name, module in pairs(modules) do
    check_acyclic(self, record, name, module)
    record.values[name], changes = module, changes + 1
  end
  show_children(self, record)
end

-- ---- state

-- Returns the persistent state in order: a list of {name, tensor}. A wrapper (class field `transparent`) adds no prefix
-- to the names in the wrapped module.
local function state_of(self, prefix, out)
  local record = record_of(self)
  prefix, out = prefix or "", out or {}
  for _, name in ipairs(record.param) do out[#out + 1] = {prefix .. name, record.values[name]} end
  for _, name in ipairs(record.buffer) do
    if not record.transient[name] then out[#out + 1] = {prefix .. name, record.values[name]} end
  end
  for _, name in ipairs(record.child) do
    state_of(record.values[name], record.class.transparent and prefix or prefix .. name .. ".", out)
  end
  return out
end

-- Calls f(module, prefix of its names in state_dict) for the module and all descendants, once for each name.
local function each_prefix(self, f, prefix)
  prefix = prefix or ""
  f(self, prefix)
  local record = record_of(self)
  for _, name in ipairs(record.child) do
    each_prefix(record.values[name], f, record.class.transparent and prefix or prefix .. name .. ".")
  end
end

-- Calls the hooks of this name, of the module and all descendants: hook(module, argument, prefix of its names).
local function run_hooks(self, name, argument)
  each_prefix(self, function(module, prefix)
    for _, hook in ipairs(record_of(module)[name] or {}) do hook(module, argument, prefix) end
  end)
end

return {
  is_module = is_module, of = record_of, blank = blank, show_children = show_children, check_name = check_name,
  register = register, append = append, nouns = nouns, joined = joined, find = find_by_path,
  replace_children = replace_children, check_acyclic = check_acyclic, check_sized = check_sized, twin = twin_of,
  state_of = state_of, each_prefix = each_prefix, run_hooks = run_hooks, changes = function() return changes end,
}
