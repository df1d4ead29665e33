--- Returns the named nodes of rules for the JSON texts that a JSON schema allows. Some of those it allows are left out,
--- such as properties that it does not name; a word that cannot be kept is an error that names it.
local lists = require "luminary.base.lists"
local notations = require "luminary.text.constraint.notations"
local rules = require "luminary.text.constraint.rules"
local values = require "luminary.text.jinja.values"

local seq, alt, rep, text, ref = rules.seq, rules.alt, rules.rep, rules.text, rules.ref

local ignored = lists.set {
  "title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions", "deprecated",
  "readOnly", "writeOnly", "$anchor", "contentMediaType", "contentEncoding", "contentSchema",
}
local words = {
  object = lists.set {"properties", "required", "additionalProperties"},
  array = lists.set {"items", "prefixItems", "minItems", "maxItems"},
  string = lists.set {"minLength", "maxLength", "pattern", "format"},
  integer = {}, number = {}, boolean = {}, null = {},
}
local kinds_of_words = {properties = "dict", pattern = "str", format = "str"}
for _, word in ipairs {"required", "prefixItems", "enum", "anyOf"} do kinds_of_words[word] = "list" end
for _, word in ipairs {"minItems", "maxItems", "minLength", "maxLength"} do kinds_of_words[word] = "count" end
local names_of_kinds = {dict = "an object", list = "an array", str = "a string", count = "a natural number"}
local type_names = {
  str = "string", int = "integer", float = "number", bool = "boolean", NoneType = "null", dict = "object",
  list = "array",
}
local formats = {
  date = "\\d{4}-(0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|\\d{4}-(0[469]|11)-(0[1-9]|[12]\\d|30)"
    .. "|\\d{4}-02-(0[1-9]|1\\d|2[0-8])",
  time = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)",
  uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
  ipv4 = "((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)",
}
formats["date-time"] = "(" .. formats.date .. ")T" .. formats.time

-- Returns a node that matches texts of `node` as they are inside of a JSON string.
local function escaped(node)
  if node.text then
    return {seq = lists.map((values.characters(node.text)), function(c)
      local code = values.code(c)
      return escaped {set = {code, code}}
    end)}
  elseif node.set then
    local list, outside = {}, rules.complement(node.set)
    for _, edge in ipairs {0, 31, 34, 34, 92, 92} do outside[#outside + 1] = edge end
    local plain = rules.complement(outside)
    if #plain > 0 then list[1] = {set = plain} end
    local function has(code)
      for i = 1, #node.set, 2 do
        if code >= node.set[i] and code <= node.set[i + 1] then return true end
      end
    end
    for code = 0, 92 do
      local form = ({[34] = '\\"', [92] = "\\\\", [10] = "\\n", [9] = "\\t", [13] = "\\r"})[code]
      if (code < 32 or form) and has(code) then list[#list + 1] = text(form or ("\\u%04x"):format(code)) end
    end
    return rules.alt(list)
  elseif node.rep then
    return rep(escaped(node.rep), node.min, node.max)
  end
  return {[node.seq and "seq" or "alt"] = lists.map(node.seq or node.alt, escaped)}
end

--- schema: a template's value (chat_template.value_of), whose dicts keep their order. fail(format, …) raises errors.
return function(schema, fail)
  local digit, hex = {set = {48, 57}}, {set = {48, 57, 65, 70, 97, 102}}
  local named, counts, with_refs = {}, 0, {}
  local digits, any = rep(digit, 1, 15), ref "value"
  local integer = seq(rep(text "-", 0, 1), alt {text "0", seq({set = {49, 57}}, rep(digit, 0, 14))})
  local character = alt {
    {set = rules.complement {0, 31, 34, 34, 92, 92, 127, 127}},
    seq(text "\\", alt {
      {set = {34, 34, 47, 47, 92, 92, 98, 98, 102, 102, 110, 110, 114, 114, 116, 116}},
      seq(text "u", alt {
        seq({set = {48, 57, 65, 67, 69, 70, 97, 99, 101, 102}}, hex, hex, hex),
        seq({set = {68, 68, 100, 100}}, {set = {48, 55}}, hex, hex),
      }),
    }),
  }
  named.space = alt {text "", text " ", seq(text "\n", rep({set = {9, 9, 32, 32}}, 0, 20))}
  named.character = character
  local space = ref "space"
  local comma = seq(space, text ",", space)
  local function quoted(inner) return seq(text '"', inner, text '"') end
  local string = quoted(rep(ref "character", 0))
  -- Returns the items with commas between, within brackets.
  local function listed(open, item, close)
    return alt {
      seq(text(open), space, text(close)),
      seq(text(open), space, item, rep(seq(comma, item), 0), space, text(close)),
    }
  end
  named.integer = integer
  named.number = seq(ref "integer", rep(seq(text ".", digits), 0, 1),
    rep(seq({set = {69, 69, 101, 101}}, rep({set = {43, 43, 45, 45}}, 0, 1), rep(digit, 1, 2)), 0, 1))
  named.string, named.boolean, named.null = string, alt {text "true", text "false"}, text "null"
  named.object = listed("{", seq(ref "string", space, text ":", space, any), "}")
  named.array = listed("[", any, "]")
  named.value = alt(lists.map({"object", "array", "string", "number", "boolean", "null"}, ref))

  local function name_of(node)
    counts = counts + 1
    named["schema " .. counts] = node
    return ref("schema " .. counts)
  end
  local function constant(v) return text(values.repr(v, {json = true, between = ", ", after_key = ": "})) end
  local get, convert = values.at, nil

  local function object(one, path)
    local properties, required = get(one, "properties") or values.dict(), get(one, "required") or values.list {}
    local more = get(one, "additionalProperties")
    local keys, needs = lists.slice(properties.keys), {}
    for _, key in ipairs(required) do
      if type(key) ~= "string" then fail("%s/required must be strings", path) end
      needs[key] = true
      if values.at(properties, key) == nil then keys[#keys + 1] = key end
    end
    if #keys == 0 then
      if more == nil or more == false then return more == nil and ref "object" or seq(text "{", space, text "}") end
      return listed("{", seq(ref "string", space, text ":", space, convert(more, path .. "/additionalProperties")), "}")
    end
    local last = seq(space, text "}")
    local first, later = last, last -- nodes of the properties from a key on, of the first one and behind others
    for i = #keys, 1, -1 do
      local key = keys[i]
      local of_key = values.at(properties, key)
      if of_key == nil then of_key = more == nil and true or more end
      local node = convert(of_key, path .. "/properties/" .. key)
      local pair = seq(space, constant(key), space, text ":", space, node, later)
      local behind = seq(space, text ",", pair)
      first = name_of(needs[key] and pair or alt {pair, first})
      later = name_of(needs[key] and behind or alt {behind, later})
    end
    return seq(text "{", first)
  end

  local function array(one, path)
    local prefix, items = get(one, "prefixItems") or values.list {}, get(one, "items")
    local min, max = get(one, "minItems") or 0, get(one, "maxItems")
    local item = items == nil and any or items ~= false and convert(items, path .. "/items")
    if items == false then max = math.min(max or prefix.n, prefix.n) end
    if max and max < min then fail("%s: at most %d items are allowed, which is less than minItems", path, max) end
    local function rest(i) -- the items from the i-th on
      if max and i > max then return seq() end
      if i > math.max(1, prefix.n) then
        return rep(seq(comma, item), math.max(0, min - i + 1), max and max - i + 1)
      end
      local one_item = i > prefix.n and item or convert(prefix[i], path .. "/prefixItems")
      local node = seq(i > 1 and comma or seq(), one_item, rest(i + 1))
      return i > min and alt {node, seq()} or node
    end
    return seq(text "[", space, rest(1), space, text "]")
  end

  local function a_string(one, path)
    local min, max = get(one, "minLength"), get(one, "maxLength")
    local pattern, format = get(one, "pattern"), get(one, "format")
    if (pattern and 1 or 0) + (format and 1 or 0) + ((min or max) and 1 or 0) > 1 then
      fail("%s: pattern, format and lengths are supported one at a time", path)
    end
    if max and max < (min or 0) then fail("%s: maxLength is less than minLength", path) end
    if format and not formats[format] then fail("%s: the format '%s' is not supported", path, tostring(format)) end
    local regex = formats[format] or pattern
    if regex then return quoted(escaped(notations.regex(regex, fail, pattern ~= nil))) end
    return quoted(rep(ref "character", min or 0, max))
  end

  -- Returns the list of a schema's types.
  local function types_of(one)
    local kinds = get(one, "type")
    return kinds == nil and {} or values.is_list(kinds) and kinds or {kinds}
  end

  -- Returns the node of the values of a list that have the schema's type.
  local function one_of(one, list, path)
    local kinds = types_of(one)
    local fitting = lists.filter(list, function(v)
      local kind = type_names[values.kind(v)]
      return #kinds == 0 or lists.find(kinds, function(each)
        return each == kind or each == "number" and kind == "integer"
      end) ~= nil
    end)
    if #fitting == 0 then fail("%s: no value has the type", path) end
    return rules.alt(lists.map(fitting, constant))
  end

  local makers = {object = object, array = array, string = a_string}

  local function resolve(path, pointer)
    if type(pointer) ~= "string" or not (pointer == "#" or pointer:find "^#/") then
      fail("%s: $ref '%s' is not supported", path, tostring(pointer))
    end
    local at = schema
    for part in pointer:gmatch "/([^/]*)" do
      part = part:gsub("~1", "/"):gsub("~0", "~")
      at = values.kind(at) == "dict" and values.at(at, part) or values.is_list(at) and at[(tonumber(part) or -1) + 1]
      if not at then fail("%s: $ref '%s' is missing", path, pointer) end
    end
    if not with_refs[pointer] then
      with_refs[pointer] = name_of(seq())
      named[with_refs[pointer].ref] = convert(at, pointer)
    end
    return with_refs[pointer]
  end

  local level = 0
  function convert(one, path)
    if one == true then return any end
    if one == false then fail("%s: no value is valid for false", path) end
    if values.kind(one) ~= "dict" then fail("%s must be a schema, an object or a boolean", path) end
    local kinds, used, of_words = types_of(one), {}, nil
    for _, key in ipairs(one.keys) do
      local want, v = kinds_of_words[key], get(one, key)
      local empty = want == "list" and values.kind(v) == "dict" and v.n == 0 -- {} of a script
      local fits = empty or values.kind(v) == want or want == "count" and type(v) == "number" and v >= 0 and v % 1 == 0
      if want and not fits then fail("%s/%s must be %s", path, key, names_of_kinds[want]) end
      if not ignored[key] then used[#used + 1] = key end
    end
    local function alone(key)
      for _, other in ipairs(used) do
        if other ~= key and not (other == "type" and key ~= "$ref") then
          fail("%s: %s beside %s is not supported", path, other, key)
        end
      end
      return get(one, key)
    end
    level = level + 1
    if level > 64 then fail("%s is nested more than 64 deep", path) end
    local node
    if get(one, "$ref") ~= nil then
      node = resolve(path, alone "$ref")
    elseif get(one, "const") ~= nil then
      node = one_of(one, {alone "const"}, path)
    elseif get(one, "enum") ~= nil then
      node = one_of(one, alone "enum", path)
    elseif get(one, "anyOf") ~= nil then
      node = rules.alt(lists.map(alone "anyOf", function(each, i)
        return convert(each, ("%s/anyOf/%d"):format(path, i - 1))
      end))
    else
      for _, key in ipairs(used) do
        local kind = lists.find({"object", "array", "string"}, function(each) return words[each][key] end)
        if key ~= "type" and not kind then fail("%s: '%s' is not supported", path, tostring(key)) end
        of_words = of_words or kind or nil
      end
      if #kinds == 0 and of_words then kinds = {of_words} end
      local list = lists.map(kinds, function(kind)
        if not words[kind] then fail("%s: unknown type '%s'", path, tostring(kind)) end
        return makers[kind] and makers[kind](one, path) or ref(kind)
      end)
      node = #list == 0 and any or rules.alt(list)
    end
    level = level - 1
    return node
  end
  named.root = convert(schema, "#")
  return named
end
