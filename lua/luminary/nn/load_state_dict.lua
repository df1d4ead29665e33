--- Loads a state dict (Module:load_state_dict): compares tensors by name, copies them, and reports mismatches.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local changes = require "luminary.base.weight_changes"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"

local fail, is_plain = options.fail, options.is_plain

-- Removes names that wrappers add: torch.compile's "_orig_mod." anywhere, and up to 20 leading "module.".
local function without_prefix(dict, own, depth)
  local bare, wrapped = {}, next(dict) ~= nil
  for key, value in pairs(dict) do
    if type(key) ~= "string" then return dict end
    local name = own[key] and key or ("." .. key):gsub("%._orig_mod%f[.]", ""):sub(2)
    if bare[name] ~= nil then return dict end
    bare[name], wrapped = value, wrapped and name:sub(1, 7) == "module." and not own[name]
  end
  if not wrapped or depth == 20 then return bare end
  local inner = {}
  for name, value in pairs(bare) do inner[name:sub(8)] = value end
  return without_prefix(inner, own, depth + 1)
end

local function quoted(names)
  return table.concat(lists.map(names, function(name) return '"' .. printable_name(name, 200) .. '"' end), ", ")
end

local function shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

local function mismatch_text(entry)
  return ("%s: %s in the state_dict, %s in the model"):format(printable_name(entry.name, 200), shape_text(entry.given),
    shape_text(entry.wanted))
end

-- The metatable of load_state_dict's result.
local report = {__plain = true, __report = true}

function report.__tostring(self)
  local lines = {}
  local function add_problem_lines(what, list, text)
    if #list == 0 then return end
    lines[#lines + 1] = ("%d %s:"):format(#list, what)
    for _, each in ipairs(list) do lines[#lines + 1] = "  " .. text(each) end
  end
  local function short(name) return printable_name(name, 200) end
  add_problem_lines("missing in the state_dict", self.missing_keys, short)
  add_problem_lines("unexpected, not in the model", self.unexpected_keys, short)
  add_problem_lines("of another shape, left as they were", self.mismatched_keys or {}, mismatch_text)
  if #lines == 0 then lines[1] = "<all keys matched>" end
  for _, each in ipairs(self.converted or {}) do
    lines[#lines + 1] = ("%d of %s, which became %s, as the model is; {dtype = \"%s\"} keeps them as they were")
      :format(each.count, each.from, each.to, each.from)
  end
  return table.concat(lines, "\n")
end

-- Returns the names that dict lacks, values of wrong types, and mismatched shapes. Reshapes dict's tensors of one
-- element for parameters without dims.
local function compare_keys(entries, dict, old)
  local missing, wrong, mismatched = {}, {}, {}
  for _, entry in ipairs(entries) do
    local name, t, place = entry[1], old.filled[entry[1]] or entry[2], core.field(entry[2], "placement")
    if place then dict[name] = place:own_part(dict[name]) end
    local value = dict[name]
    if core.is_tensor(value) and t.ndim == 0 and value.ndim == 1 and value.shape[1] == 1 then -- PyTorch 0.3 saved these
      value = value:reshape {}
      dict[name] = value
    end
    if value == nil then
      if not old.optional[name] then missing[#missing + 1] = old.names[name] or name end
    elseif not core.is_tensor(value) then
      wrong[#wrong + 1] = ("%s must be a tensor, got %s"):format(printable_name(name, 200), options.describe(value))
    elseif shape_text(value.shape) ~= shape_text(t.shape) then
      mismatched[#mismatched + 1] = {name = name, given = value.shape, wanted = t.shape}
    elseif (value.dtype == "int8") ~= (t.dtype == "int8") and (value:is_floating_point() or t:is_floating_point()) then
      wrong[#wrong + 1] = ("%s is %s in the state_dict, %s in the model; %s"):format(
        printable_name(name, 200), value.dtype,
        t.dtype, t.dtype == "int8" and "load it before lm.quantize(net)" or "lm.quantize(net) makes room for it")
    end
  end
  return missing, wrong, mismatched
end

-- Counts the floating tensors to convert: returns a list of {from, to, count}, one for each pair of dtypes, or nil.
local function conversions(entries, dict, skipped)
  local list, found = {}, {}
  for _, entry in ipairs(entries) do
    local from, to = dict[entry[1]], entry[2]
    if from and not skipped[entry[1]] and from.dtype ~= to.dtype and from:is_floating_point() then
      local key = from.dtype .. " " .. to.dtype
      if not found[key] then
        found[key] = {from = from.dtype, to = to.dtype, count = 0}
        list[#list + 1] = found[key]
      end
      found[key].count = found[key].count + 1
    end
  end
  return #list > 0 and list or nil
end

-- Returns a copy of dict under the module's names (renamed, adapted), the names that it lacks, and adapt's result.
local function named_as(self, own, dict, rename, run_hooks, adapt)
  if not is_plain(dict) then
    local record = options.record(dict)
    options.expected("load_state_dict", "a table of tensors by name", dict,
      record and record.is_module and "pass its :state_dict()"
        or type(dict) == "string" and "lm.load(path) reads it" or nil)
  end
  local names, copy = {}, {}
  dict = without_prefix(changes.renamed("load_state_dict", dict, rename), own, 0)
  for key, value in pairs(dict) do copy[tostring(key)] = value end -- dict may be a list; hooks read names
  run_hooks("load_pre_hooks", copy)
  local old = adapt(copy)
  local found
  for key in pairs(copy) do
    names[#names + 1] = not own[key] and tostring(key) or nil
    found = found or own[key]
  end
  table.sort(names)
  local first = next(own)
  for key, value in pairs(found and {} or copy) do -- a checkpoint that contains the state_dict
    if first and is_plain(value) and value[first] then
      fail("load_state_dict: for %s: no key matches, but '%s' is a table whose keys do; pass that table", self.__name,
        printable_name(tostring(key), 200))
    end
  end
  return copy, names, old
end

-- Makes the tensor use value's memory, dtype and device.
local function take_over(t, value)
  t.grad = nil
  core.set_data(t, value:detach())
end

local function copy_values(self, entries, dict, skipped, opts)
  local dtype, device = changes.dtype("load_state_dict", opts.dtype), opts.device
  local function convert() return (dtype or device) and self:to {dtype = dtype, device = device} end
  if not opts.assign then convert() end
  core.no_grad(function()
    for _, entry in ipairs(entries) do -- tied tensors get the value of their last name
      local value, t = dict[entry[1]], entry[2]
      if value ~= nil and not skipped[entry[1]] and opts.assign then
        take_over(t, changes.converted(value, dtype, device))
      elseif value ~= nil and not skipped[entry[1]] and not rawequal(value, t) then
        t:copy_(value)
      end
    end
  end)
  if opts.assign then convert() end -- tensors that dict lacks
end

--- Loads a state dict. entries: the module's state in order, {name, tensor} each; run_hooks(name, argument) runs its
--- hooks of that name; walk(f) calls f(module, prefix of its names) for each module.
---
--- A class with _adapt_state(self, dict, prefix, old) converts dict from another version, or adds what the class does
--- not know yet. `old` has: made, tensors of the shapes that parameters will have, by name; names, the old names of
--- missing tensors; optional, the set of names that may be missing; commit, functions to call once nothing can fail.
return function(self, entries, run_hooks, walk, dict, opts)
  local own, skipped = {}, {}
  for _, entry in ipairs(entries) do own[entry[1]] = entry[2] end
  local given, unexpected, old = named_as(self, own, dict, opts.rename, run_hooks, function(copied)
    local old = {filled = {}, names = {}, optional = {}, commit = {}}
    walk(function(module, prefix)
      if module._adapt_state then module:_adapt_state(copied, prefix, old) end
    end)
    return old
  end)
  local missing, problems, mismatched = compare_keys(entries, given, old)

  local result = setmetatable({missing_keys = missing, unexpected_keys = unexpected}, report)
  run_hooks("load_hooks", result)
  missing, unexpected = result.missing_keys, result.unexpected_keys
  for _, entry in ipairs(mismatched) do
    skipped[entry.name] = true
    if not opts.ignore_mismatched_sizes then problems[#problems + 1] = "size mismatch for " .. mismatch_text(entry) end
  end
  if opts.ignore_mismatched_sizes then result.mismatched_keys = mismatched end
  if opts.strict and #unexpected > 0 then
    table.insert(problems, 1, "unexpected keys in the state_dict: " .. quoted(unexpected))
  end
  if opts.strict and #missing > 0 then
    table.insert(problems, 1, "missing keys in the state_dict: " .. quoted(missing))
  end
  if #problems > 0 then
    if opts.strict and #unexpected + #missing > 0 then
      problems[#problems + 1] = "pass {strict = false} to ignore missing and unexpected keys"
    end
    fail("load_state_dict: for %s:\n  %s", self.__name, table.concat(problems, "\n  "))
  end
  if not (opts.dtype or opts.assign) then result.converted = conversions(entries, given, skipped) end
  if opts.dry_run then return result end
  for _, commit in ipairs(old.commit) do commit() end
  copy_values(self, entries, given, skipped, opts)
  return result
end
