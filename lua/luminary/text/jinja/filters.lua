--- Filters and tests of templates: tables from a name to {parameters, function(value, …)}.
local lists = require "luminary.base.lists"
local operators = require "luminary.text.jinja.operators"
local strings = require "luminary.text.jinja.strings"
local values = require "luminary.text.jinja.values"

local fail, charge, NONE, kind = values.fail, values.charge, values.NONE, values.kind
local text, truth, items, undefined = values.text, values.truth, values.items, values.undefined
local filters = {}

-- Returns the truth of an argument, false if it is absent.
local function flag(v) return v ~= nil and truth(v) end

-- Returns a function that returns a value's attribute by a path such as "function.name"; nil for no path.
local function getter(path)
  if path == nil or path == NONE then return nil end
  local parts = {}
  for part in (text(path) .. "."):gmatch "([^.]*)%." do parts[#parts + 1] = tonumber(part:match "^%d+$") or part end
  return function(v)
    for _, part in ipairs(parts) do v = operators.get_item(v, part) end
    return v
  end
end

-- Returns a function of an item by which lists are ordered: its attribute, without case unless case_sensitive.
local function order_of(attribute, case_sensitive)
  local get = getter(attribute)
  return function(v)
    if get then v = get(v) end
    return type(v) == "string" and not flag(case_sensitive) and strings.lower(v) or v
  end
end

-- Returns the list of f(item) of the items, without nil.
local function each(v, f)
  local out, list = {}, items(v)
  for i = 1, list.n do
    values.step()
    out[#out + 1] = f(list[i])
  end
  return values.list(out)
end

-- Returns arguments from the k-th on.
local function rest(args, k)
  local out = lists.slice(args, k, args.n)
  out.n = #out
  return out
end

-- Defines select, reject, selectattr and rejectattr.
local function selects(wanted, first)
  return {false, function(v, args, named)
    local get = first == 2 and (getter(args[1]) or fail "selectattr() requires an attribute")
    local name, more = args[first], rest(args, first + 1)
    return each(v, function(item)
      local tested = get and get(item) or not get and item
      local yes = tested
      if name ~= nil then yes = filters.test(text(name), tested, more, named) end
      if truth(yes) == wanted then return item end
    end)
  end}
end

local function of_text(f)
  return {"", function(v) return f(text(v)) end}
end

local function tojson(v, to_ascii, indent, separators, sort_keys)
  local is_flat = indent == nil or indent == NONE
  if flag(to_ascii) then fail "tojson: ensure_ascii = true is not supported" end
  local o = {json = true, sort_keys = flag(sort_keys)}
  if not is_flat then
    o.indent = type(indent) == "string" and indent or (" "):rep(math.min(100, values.index(indent, "indent")))
  end
  local pair = separators ~= nil and separators ~= NONE and items(separators) or {is_flat and ", " or ",", ": "}
  o.between, o.after_key = text(pair[1] or ""), text(pair[2] or "")
  return values.repr(v, o)
end

local function to_int(v, default)
  local x = values.number(values.defined(v))
  if type(v) == "string" then
    local s = strings.strip(v, nil, true, true)
    x = s:find "^[-+]?[%d.]+[eE]?[-+]?%d*$" and tonumber((s:gsub("^%+", "")))
  end
  if not x or x - x ~= 0 then return default == nil and 0 or default end
  return values.int(x < 0 and math.ceil(x) or math.floor(x))
end

local function indent(v, width, first, blank)
  local s, by = text(v), width
  if type(width) ~= "string" then by = (" "):rep(math.min(1000, width and values.index(width, "width") or 4)) end
  charge(#s + (select(2, s:gsub("\n", "")) + 1) * #by)
  s = s:gsub(flag(blank) and "\n" or "\n%f[^\n%z]", function(newline) return newline .. by end)
  return (flag(first) and by or "") .. s
end

local function unique(v, case_sensitive, attribute)
  local order, seen = order_of(attribute, case_sensitive), values.dict()
  return each(v, function(item)
    local key = order(item)
    if values.at(seen, key) ~= nil then return nil end
    values.put(seen, key, true)
    return item
  end)
end

local function length(v)
  if type(v) == "string" then return values.length(v) end
  if kind(v) == "Undefined" then return 0 end
  return (kind(v) == "dict" or values.is_list(v)) and v.n or fail("object of type '%s' has no len()", kind(v))
end

local function default(v, other, boolean)
  if kind(v) == "Undefined" or flag(boolean) and not truth(v) then return other == nil and "" or other end
  return v
end

local function dict_items(v)
  if kind(v) == "Undefined" then return values.list {} end
  return kind(v) == "dict" and strings.dict.items[2](v) or fail "Can only get item pairs from a mapping."
end

local function map(v, args, named)
  local get = getter(named.attribute)
  if not get and args.n == 0 then fail "map requires a filter argument" end
  return each(v, function(item)
    if not get then return filters.filter(text(args[1]), item, rest(args, 2), named) end
    local found = get(item)
    return kind(found) == "Undefined" and named.default ~= nil and named.default or found
  end)
end

local all = {
  trim = {"chars?", function(v, chars) return strings.strip(text(v), chars, true, true) end},
  upper = of_text(strings.upper), lower = of_text(strings.lower), capitalize = of_text(strings.capitalize),
  title = of_text(function(s) return (s:gsub("[^-%s({%[<]+", strings.capitalize)) end), -- Jinja's differs from Python's
  string = of_text(text), safe = of_text(text), list = {"", items},
  tojson = {"ensure_ascii? indent? separators? sort_keys?", tojson}, length = {"", length}, count = {"", length},
  default = {"default_value? boolean?", default}, d = {"default_value? boolean?", default},
  join = {"d? attribute?", function(v, between, attribute)
    local get = getter(attribute)
    return strings.join(get and each(v, get) or items(v), between == nil and "" or text(between))
  end},
  first = {"", function(v)
    local list = items(v)
    return list.n == 0 and undefined "No first item, sequence was empty." or list[1]
  end},
  last = {"", function(v)
    local list = items(v)
    return list.n == 0 and undefined "No last item, sequence was empty." or list[list.n]
  end},
  replace = {"old new count?", function(v, old, new, n)
    return strings.replace(text(v), text(old), text(new), strings.count(n))
  end},
  reverse = {"", function(v) return values.slice(type(v) == "string" and v or items(v), nil, nil, -1) end},
  int = {"default?", to_int},
  sort = {"reverse? case_sensitive? attribute?", function(v, reverse, case_sensitive, attribute)
    return values.sorted(items(v), order_of(attribute, case_sensitive), flag(reverse))
  end},
  dictsort = {"case_sensitive? by? reverse?", function(v, case_sensitive, by, reverse)
    return values.sorted(dict_items(v), order_of(by == "value" and "1" or "0", case_sensitive), flag(reverse))
  end},
  items = {"", dict_items}, unique = {"case_sensitive? attribute?", unique},
  indent = {"width? first? blank?", indent}, map = {false, map},
  select = selects(true, 1), reject = selects(false, 1), selectattr = selects(true, 2), rejectattr = selects(false, 2),
}

-- ---- tests

local function is_kind(...)
  local set = " " .. table.concat({...}, " ") .. " "
  return {"", function(v) return set:find(" " .. kind(v) .. " ", 1, true) ~= nil end}
end

local function divisible(v, by) return operators["=="](operators["%"](v, by), 0) end

local containers = is_kind("str", "list", "tuple", "dict", "Undefined")
local all_tests = {
  defined = {"", function(v) return kind(v) ~= "Undefined" end}, undefined = is_kind "Undefined",
  none = is_kind "NoneType", string = is_kind "str", mapping = is_kind "dict", number = is_kind("int", "float", "bool"),
  integer = is_kind "int", float = is_kind "float", boolean = is_kind "bool",
  callable = is_kind("function", "Undefined"), iterable = containers, sequence = containers,
  ["true"] = {"", function(v) return v == true end}, ["false"] = {"", function(v) return v == false end},
  ["in"] = {"seq", operators["in"]}, sameas = {"other", rawequal}, divisibleby = {"num", divisible},
  even = {"", function(v) return divisible(v, 2) end}, odd = {"", function(v) return not divisible(v, 2) end},
}
for names, sign in pairs {
  ["eq equalto =="] = "==", ["ne !="] = "!=", ["lt lessthan <"] = "<", ["le <="] = "<=", ["gt greaterthan >"] = ">",
  ["ge >="] = ">=",
} do
  for name in names:gmatch "%S+" do all_tests[name] = {"other", operators[sign]} end
end

local function runner(what, rows)
  return function(name, v, args, named)
    if not rows[name] then fail("no %s named '%s' in chat templates", what, name) end
    return strings.run(rows, name, v, args, named)
  end
end

--- filters.filter(name, v, args, named), filters.test(…): Return the result of a filter, of a test.
filters.filter, filters.test = runner("filter", all), runner("test", all_tests)

return filters
