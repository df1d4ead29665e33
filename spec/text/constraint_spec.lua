-- Tests generate's constraint: regular expressions, grammars and JSON schemas as masks over tokens.
local constraint = require "luminary.text.constraint"
local core = require "luminary.core"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local lm = require "luminary"
local matcher = require "luminary.text.constraint.matcher"
local temp = require "spec.support.temp"

local NULL = {}
local folder = temp.during(setup, teardown)

-- Returns "accept" for a text of a constraint, "prefix" for the start of one, "no" for others.
local function match(o, text)
  local m = constraint.matcher("t", o)
  local state = m:after(m.start, text)
  return state and (state.accepts and "accept" or "prefix") or "no"
end

local function check(o, accepted, refused)
  for _, text in ipairs(accepted) do assert.equal("accept", match(o, text), text) end
  for _, text in ipairs(refused) do assert.is_true(match(o, text) ~= "accept", text) end
end

local function refuses(pattern, o)
  local ok, why = pcall(constraint.matcher, "t", o)
  assert.is_false(ok)
  assert.is_truthy(why:find(pattern, 1, true), why)
end

-- Returns true if a value has the JSON schema, for the words that constraint supports.
local function is_valid(schema, v, root)
  if schema == true then return true end
  root = root or schema
  local ref = schema["$ref"]
  if ref then
    local at = root
    for part in ref:gmatch "/([^/]+)" do at = at[part] end
    return is_valid(at, v, root)
  end
  local kind = v == NULL and "null" or type(v) == "table" and (v[1] ~= nil and "array" or "object") or type(v)
  if kind == "number" and v % 1 == 0 then kind = "integer" end
  local kinds = type(schema.type) == "table" and schema.type or {schema.type}
  local is_kind = #kinds == 0
  for _, each in ipairs(kinds) do
    is_kind = is_kind or each == kind or each == "number" and kind == "integer"
      or each == "array" and kind == "object" and next(v) == nil
  end
  if not is_kind then return false end
  local function any_of(list, f)
    for _, each in ipairs(list) do
      if f(each) then return true end
    end
    return false
  end
  local function same(each) return json_encode(each) == json_encode(v) end
  if schema.const ~= nil and not same(schema.const) or schema.enum and not any_of(schema.enum,
    same) then return false end
  if schema.anyOf and not any_of(schema.anyOf, function(each) return is_valid(each, v, root) end) then return false end
  if kind == "string" then
    local _, n = v:gsub("[^\128-\191]", "")
    return n >= (schema.minLength or 0) and n <= (schema.maxLength or math.huge)
      and (not schema.lua_pattern or v:find(schema.lua_pattern) ~= nil)
  elseif kind == "array" then
    for i, each in ipairs(v) do
      if not is_valid((schema.prefixItems or {})[i] or schema.items or true, each, root) then return false end
    end
    return #v >= (schema.minItems or 0) and #v <= (schema.maxItems or math.huge)
  elseif kind == "object" then
    for _, key in ipairs(schema.required or {}) do
      if v[key] == nil then return false end
    end
    for key, each in pairs(v) do
      local of_key = (schema.properties or {})[key]
      if of_key == nil then of_key = schema.additionalProperties end
      if of_key == false or of_key ~= nil and not is_valid(of_key, each, root) then return false end
    end
  end
  return true
end

describe("generate's constraint", function()
  it("matches regular expressions", function()
    check({regex = "a(b|c)*d{2,3}"}, {"add", "abcbdd", "addd"}, {"ad", "adddd", "abc", ""})
    check({regex = "^[^a-z\\s]+é?\\d$"}, {"A1", "Äé5", "日本é0"}, {"a1", "A", "\237\160\1285"})
    check({regex = "(?:[\\w.+-]+)@x\\.(de|org)"}, {"a.b@x.de", "_@x.org"}, {"a@xyde", "@x.de"})
    check({regex = "(a*)*b|"}, {"", "b", "aab"}, {"a"})
    check({regex = "[\\u4e00-\\u9fff]{2}.\\x41"}, {"日本éA"}, {"日A", "日本\nA"})
    for pattern, text in pairs {
      ["(?…) other than (?:…)"] = "(?=a)", ["\\b is not supported"] = "a\\b", ["']' is missing"] = "[a",
      ["')'"] = "(a",
      ["unexpected '*'"] = "*", ["descending"] = "[b-a]", ["elements"] = "(a{99999}){99999}",
      ["100 deep"] = ("("):rep(200),
      ["'$' is supported at the end"] = "a$b", ["\\1 is not"] = "(a)\\1",
    } do refuses(pattern, {regex = text}) end
  end)

  it("matches grammars of llama.cpp", function()
    local sum = [[
root  ::= "x=" sum   # a sum
sum   ::= term (("+" | "-") term)*
term  ::= [0-9]+ | "(" sum ")" |
          "\u00e9" [^a-z"]{2}
]]
    check({grammar = sum}, {"x=1+2", "x=(1-(22))", "x=é日é"}, {"x=", "x=1+", "x=(1", "x=éa1"})
    check({grammar = 'root ::= root "a" | "b"'}, {"b", "ba", "baa"}, {"a"})
    for pattern, text in pairs {
      ["no rule 'x'"] = "root ::= x", ["'root' is missing"] = "a ::= \"b\"",
      ["twice"] = "root ::= \"a\"\nroot ::= \"b\"",
      ["expected '::='"] = "root = \"a\"", ["'\"' is missing"] = "root ::= \"a", ["no text matches"] = "root ::= root",
    } do refuses(pattern, {grammar = text}) end
  end)

  it("matches JSON schemas, and refuses what it cannot keep by name", function()
    check({json = true}, {'{"a": [1, -2.5e3, true, null, "x\\n\\u00e9日"], "b":{}}', "{}"},
      {'{"a":1,}', "[1]", '{"a": "\\ud800"}', '{"a": 01}', '{"a": "\n"}'})
    check({json_schema = {properties = {n = {type = "integer"}, s = {enum = {"a", 1.5}}}, required = {"s"}}},
      {'{"s": "a"}', '{"n": 3, "s": 1.5}', '{"n":-1,"s":"a"}'},
      {"{}", '{"n": 3}', '{"s": "b"}', '{"n": 1.5, "s": "a"}'})
    check({json_schema = '{"type": "string", "pattern": "^a\\"[^b]$"}'}, {[["a\"c"]], [["a\"\n"]], [["a\"\\"]]},
      {[["a\"b"]], [["a""]]})
    check({json_schema = '{"type": "string", "minLength": 2.0}'}, {'"ab"'}, {'"a"'})
    check({json_schema = '{"format": "date-time"}'}, {'"2024-02-28T09:05:00Z"'}, {'"2024-02-30T09:05:00Z"', '"x"'})
    check({json_schema = '{"enum": ["a", 1, null], "type": ["integer", "null"]}'}, {"1", "null"}, {'"a"'})
    for pattern, text in pairs {
      ["#: 'minimum' is not"] = '{"type": "integer", "minimum": 3}', ["'oneOf' is not"] = '{"oneOf": []}',
      ["#/properties/a: 'uniqueItems'"] = '{"properties": {"a": {"uniqueItems": true}}}',
      ["$ref 'x' is not"] = '{"$ref": "x"}',
      ["'#/$defs/x' is missing"] = '{"$ref": "#/$defs/x"}', ["unknown type 'any'"] = '{"type": "any"}',
      ["the format 'email'"] = '{"format": "email"}', ["one at a time"] = '{"pattern": "a", "minLength": 2}',
      ["no value is valid"] = "false", ["malformed JSON"] = "{",
      ["required beside const"] = '{"const": 1, "required": []}',
      ["no text matches"] = '{"$ref": "#"}',
      ["#/properties must be an object"] = '{"properties": []}',
      ["#/required must be an array"] = '{"required": "a"}', ["#/required must be strings"] = '{"required": [1]}',
      ["#/prefixItems must be an array"] = '{"prefixItems": {"a": 1}}',
      ["#/items/enum must be an array"] = '{"items": {"enum": 1}}', ["#/anyOf must be an array"] = '{"anyOf": 1}',
      ["#/pattern must be a string"] = '{"pattern": []}',
      ["#/minItems must be a natural number"] = '{"minItems": -1}',
      ["#: at most 0 items are allowed"] = '{"type": "array", "items": false, "minItems": 1}',
      ["#/maxItems must be a natural number"] = '{"maxItems": {"a": 1}}',
    } do refuses(pattern, {json_schema = text}) end
    local properties = {}
    for i = 1, 5000 do properties["p" .. i] = {type = "string"} end
    refuses("more than 131072 elements", {json_schema = {properties = properties}})
  end)

  it("yields values of random schemas from random tokens", function()
    math.randomseed(3)
    local random, texts = math.random, {}
    for byte = 0, 255 do texts[byte + 1] = string.char(byte) end
    for _, text in ipairs {'{"', '":', '", "', "},", "true", " 1", "é", '\\"', "abc", "]", "}}", '"a"', "null",
      "abc", "a", "abc", '"a"'} do
      texts[#texts + 1] = text
    end
    local tree = matcher.tree(texts, #texts)
    local schema
    local kinds = {"string", "integer", "number", "boolean", "null"}
    local function leaf()
      local kind = random(8)
      if kind == 6 then return {enum = {"a", 1, true, "é\n"}} end
      if kind == 7 then return {type = "string", minLength = random(0, 2), maxLength = random(2, 4)} end
      if kind == 8 then return {type = {"null", "integer"}} end
      return {type = kinds[kind]}
    end
    function schema(level)
      local kind = level == 0 and 0 or random(4)
      if kind == 1 then
        local o = {type = "object", properties = {}, required = {}, additionalProperties = false}
        for i = 1, random(4) do
          o.properties["k" .. i] = schema(level - 1)
          if random(2) == 1 then table.insert(o.required, "k" .. i) end
        end
        if #o.required == 0 then o.required = nil end
        return o
      elseif kind == 2 then
        return {type = "array", items = schema(level - 1), minItems = random(0, 2), maxItems = random(2, 3)}
      elseif kind == 3 then
        return {anyOf = {schema(level - 1), schema(level - 1)}}
      elseif kind == 4 and level == 3 then
        return {["$defs"] = {t = schema(2)}, type = "array", prefixItems = {{["$ref"] = "#/$defs/t"}}, maxItems = 2}
      end
      return leaf()
    end
    for _ = 1, 200 do
      local one = schema(3)
      local m = constraint.matcher("t", {json_schema = one})
      local state, out = m.start, {}
      for step = 1, 4000 do
        local mask = m:mask(tree, state, #texts + 1, {[#texts + 1] = true})
        local allowed = mask:logical_not():nonzero():view(-1):totable()
        local may_follow = lists.set(allowed)
        for token = 1, step % 9 == 1 and #texts or 0 do
          assert.equal(m:after(state, texts[token]) ~= false, may_follow[token] == true)
        end
        assert.is_true(#allowed > 0)
        local token = allowed[random(#allowed)]
        for _ = 1, step > 40 and 60 or 0 do -- after a while prefers what ends the text
          if token > #texts or texts[token]:find '^["%]}]' then break end
          token = allowed[random(#allowed)]
        end
        if token > #texts then break end
        out[#out + 1] = texts[token]
        state = m:after(state, texts[token])
        assert.is_truthy(state)
        if state.ends then break end
      end
      if state.accepts then
        local text = table.concat(out)
        assert.is_true(is_valid(one, core.json_decode(text, NULL)), text)
      end
    end
  end)

  it("restricts what generate yields", function()
    lm.manual_seed(4)
    local vocab, merges = {}, {}
    for byte, letter in pairs(require("luminary.text.model_files").letters) do vocab[letter] = byte:byte() end
    vocab["</s>"] = 256
    temp.write(folder .. "/tokenizer.json", json_encode {
      model = {type = "BPE", vocab = vocab, merges = merges}, decoder = {type = "ByteLevel"},
      pre_tokenizer = {type = "ByteLevel", add_prefix_space = false},
      added_tokens = {{id = 256, content = "</s>", special = true}},
    }:gsub('"merges":{}', '"merges":[]'))
    local tokenizer = lm.text.Tokenizer(folder)
    local net = lm.models.gpt2 {vocab_size = 260, n_positions = 80, n_embd = 8, n_layer = 1, n_head = 2}
    local prompt = tokenizer({"a", "b", "c"}).input_ids
    local function generated(o)
      o.tokenizer, o.max_new_tokens = tokenizer, o.max_new_tokens or 60
      local out = net:generate(prompt, o)
      return tokenizer:batch_decode(out:narrow(2, 2, out.shape[2] - 1))
    end
    for _, sampled in ipairs {true, false} do
      local o = {constraint = {regex = "[a-c]{3}é(x|yy)"}, do_sample = sampled, eos_token_id = 257}
      for _, text in ipairs(generated(o)) do
        assert.is_truthy(text:find "^[a-c][a-c][a-c]éx$" or text:find "^[a-c][a-c][a-c]éyy$", text)
      end
    end
    for _, text in ipairs(generated {constraint = {json_schema = {enum = {"yes", "no"}}}}) do
      assert.is_truthy(text:find '^"yes"' or text:find '^"no"', text) -- without an end token the text ends by itself
    end
    local texts = {}
    net:generate(prompt:narrow(1, 1, 1), {constraint = {grammar = 'root ::= "ab" "c"+ "d"'}, tokenizer = tokenizer,
      max_new_tokens = 4, on_text = function(piece) texts[#texts + 1] = piece end})
    assert.equal("abc", table.concat(texts):sub(1, 3))
    for pattern, o in pairs {
      ["one of json, json_schema, regex, grammar"] = {constraint = {}}, ["'regexp'"] = {constraint = {regexp = "a"}},
      ["num_beams cannot be used with constraint"] = {constraint = {json = true}, num_beams = 2},
      ["no token is left for row 1"] = {constraint = {regex = "a"}, bad_words_ids = {{98}}},
    } do
      local ok, why = pcall(generated, o)
      assert.is_false(ok)
      assert.is_truthy(why:find(pattern, 1, true), why)
    end
    local ok, why = pcall(net.generate, net, prompt, {constraint = {json = true}})
    assert.is_false(ok)
    assert.is_truthy(why:find("constraint requires {tokenizer = …}", 1, true), why)
  end)
end)
