--- Changes weights between a file and a model: names, dtype, device. lm.load, load_state_dict and the functions of
--- lm.models take the same options.
local core = require "luminary.core"
local truncate_text = require "luminary.base.truncate_text"
local options = require "luminary.base.options"

local fail = options.fail
local changes = {}

-- Returns a list of {pattern, replacement}: list entries in order, then named ones, longest first, then alphabetically.
local function rules_of(who, rename)
  local rules = {}
  for key, value in pairs(rename) do
    if type(key) == "string" then
      rules[#rules + 1] = {key, value}
    elseif type(key) ~= "number" or not options.is_plain(value) or type(value[1]) ~= "string" or key > #rename then
      fail("%s: rename must be {[pattern] = replacement}, a list of {pattern, replacement} or a function", who)
    end
  end
  table.sort(rules, function(a, b)
    if #a[1] ~= #b[1] then return #a[1] > #b[1] end
    return a[1] < b[1]
  end)
  for i = #rename, 1, -1 do table.insert(rules, 1, rename[i]) end
  for _, rule in ipairs(rules) do
    local kind = type(rule[2])
    if kind ~= "string" and kind ~= "function" and rule[2] ~= false then
      options.must_be(who, ("rename: the replacement of '%s'"):format(rule[1]),
        "a string, a function or false, which leaves the tensor out", rule[2])
    end
  end
  return rules
end

local function renamed_by_rules(who, name, rules)
  for _, rule in ipairs(rules) do
    local pattern, replacement = unpack(rule)
    local ok, result = pcall(string.gsub, name, pattern, replacement or "")
    if not ok then
      fail("%s: rename: pattern '%s': %s", who, truncate_text(pattern, 60), (tostring(result):gsub("^.-:%d+: ", "")))
    end
    if replacement == false and name:find(pattern) then return nil end
    name = result
  end
  return name
end

--- Returns a table with its tensors renamed. rename: {["^model%."] = ""}, Lua patterns and replacements as of
--- string.gsub (false omits the name); {{"^model%.", ""}, …} if their order matters; or a function(name) that returns
--- the new name, or nil to omit it. Patterns are applied in sequence: a list in its order, else the longest first. Two
--- tensors of one name are an error.
function changes.renamed(who, dict, rename)
  if rename == nil then return dict end
  local rules
  if type(rename) ~= "function" then
    if not options.is_plain(rename) then
      options.must_be(who, "rename", "a table of patterns or a function", rename)
    end
    rules = rules_of(who, rename)
  end
  local names, out, from = {}, {}, {}
  for name, value in pairs(dict) do
    if type(name) == "string" and core.is_tensor(value) then names[#names + 1] = name else out[name] = value end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local new
    if rules then new = renamed_by_rules(who, name, rules) else new = rename(name) end
    if new and type(new) ~= "string" then
      options.must_be(who, ("rename: the result for '%s'"):format(truncate_text(name, 100)), "a string or nil", new)
    elseif new and out[new] ~= nil then
      fail("%s: rename returns '%s' for both '%s' and '%s'", who, truncate_text(new, 100),
        truncate_text(from[new] or new, 100), truncate_text(name, 100))
    end
    if new then out[new], from[new] = dict[name], name end
  end
  return setmetatable(out, getmetatable(dict))
end

--- Returns the dtype for floating tensors, after checking it.
function changes.dtype(who, dtype)
  local name = dtype and core.dtype(dtype)
  if name and not core.is_floating_point(name) then
    fail("%s: dtype must be floating, got %s; integer and bool tensors keep their dtype", who, name)
  end
  return name
end

--- Returns a tensor on this device, in this dtype if it is floating.
function changes.converted(t, dtype, device)
  return t:to {dtype = core.is_floating_point(t) and dtype or nil, device = device}
end

--- Returns value, a result of lm.load, with the tensors in it renamed, each within its table, and converted to the
--- dtype. Calls check(t, path) before a tensor is copied; path is its position in the value.
function changes.applied(who, value, o, check)
  if not (o.rename or o.dtype) then return value end
  local dtype, seen = changes.dtype(who, o.dtype), {}
  local function change(v, path)
    local is_tensor = core.is_tensor(v)
    if seen[v] or not (is_tensor or options.is_plain(v)) then return seen[v] or v end
    if is_tensor then
      if dtype and v.dtype ~= dtype and core.is_floating_point(v) then check(v, path) end
      seen[v] = changes.converted(v:detach(), dtype):requires_grad_(v.requires_grad)
      return seen[v]
    end
    local out = setmetatable({}, getmetatable(v))
    seen[v] = out
    for key, each in pairs(changes.renamed(who, v, o.rename)) do
      out[key] = change(each, (path and path .. "." or "") .. tostring(key))
    end
    return out
  end
  return change(value)
end

return changes
