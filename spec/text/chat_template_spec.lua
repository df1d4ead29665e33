-- Tests chat templates: 40 templates by the rules of published models' for 12 conversations, whose renderings are those
-- of transformers (scripts/dev/golden/gen_chat_templates.py), and what templates may not do.
local bit = require "bit"
local core = require "luminary.core"
local lm = require "luminary"
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

local function crc32(s)
  local crc = -1
  for i = 1, #s do
    crc = bit.bxor(crc, s:byte(i))
    for _ = 1, 8 do crc = bit.bxor(bit.rshift(crc, 1), bit.band(0xedb88320, -bit.band(crc, 1))) end
  end
  return bit.tohex(bit.bnot(crc))
end

local function templates()
  local found, order, name = {}, {}, nil
  for row in temp.read("spec/text/chat/templates.txt"):gmatch "[^\n]*\n" do
    local new = row:match "^### ([%l%d_]+)\n$"
    if new then
      name = new
      order[#order + 1], found[name] = name, {}
    else
      table.insert(found[name], row)
    end
  end
  return found, order
end

local function conversations()
  local list = {}
  for row in temp.read("spec/text/chat/conversations.jsonl"):gmatch "[^\n]+" do
    local one = core.json_decode(row, false)
    for _, key in ipairs {"messages", "tools", "documents"} do one[key] = row:match('"' .. key .. '": (%b[])') end
    list[#list + 1] = one
  end
  return list
end

local tokenizer
local function make(config)
  temp.write(folder .. "/tokenizer.json", [[{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1,
    "b": 2}}, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [{"id": 3, "content": "<s>", "special": true},
    {"id": 4, "content": "</s>", "special": true}]}]])
  temp.write(folder .. "/tokenizer_config.json", config or '{"bos_token": "<s>", "eos_token": "</s>"}')
  return lm.text.Tokenizer(folder, {base = 0})
end
setup(function() tokenizer = make() end)

local function render(template, messages, more)
  local o = {chat_template = template, tokenize = false}
  for key, v in pairs(more or {}) do o[key] = v end
  return tokenizer:apply_chat_template(messages or {{role = "user", content = "hi"}}, o)
end

local function refuses(pattern, ...)
  local ok, why = pcall(render, ...)
  assert.is_false(ok, tostring(why))
  assert.is_truthy(tostring(why):find(pattern, 1, true), tostring(why))
  assert.is_nil(tostring(why):find "[\n%z]")
end

describe("tokenizer:apply_chat_template", function()
  local now = os.time
  setup(function()
    rawset(os, "time", function(t) return now(t or {year = 2025, month = 3, day = 4, hour = 5}) end)
  end)
  teardown(function() rawset(os, "time", now) end)

  it("renders as transformers do", function()
    local found, order = templates()
    local expected = core.json_decode(temp.read "spec/golden/chat_templates.json")
    assert.equal(40, #order)
    local list, wrong = conversations(), {}
    for _, name in ipairs(order) do
      local i = 0
      for crc in expected[name]:gmatch "%x+" do
        i = i + 1
        local ok, text = pcall(render, table.concat(found[name]), list[i].messages, list[i])
        if crc32(ok and text or "error") ~= crc then wrong[#wrong + 1] = ("%s %d: %s"):format(name, i, text) end
      end
      assert.equal(#list, i)
    end
    assert.same({}, wrong)
  end)
end)

describe("Jinja of chat templates", function()
  -- Runs cases: a line of a template, then one of its text, in which \n is the end of a line.
  local function check_cases(cases)
    for template, expected in cases:gmatch "([^\n]*)\n([^\n]*)\n" do
      template = template:find "[{}]%%" and template:gsub("\\n", "\n") or template
      assert.equal((expected:gsub("\\n", "\n")), render(template))
    end
  end

  it("has Python's values", function()
    check_cases [==[
{{ [1, 'a\'', none, true, 2.0, 1e16, 1/3, -0.0, 1e-5, (1,), {'k': 'é\u2028'}] }}
[1, "a'", None, True, 2.0, 1e+16, 0.3333333333333333, -0.0, 1e-05, (1,), {'k': 'é\u2028'}]
{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 * 'ab' }} {{ [1] + [2] }} {{ 2.50 }} {{ 1e2 }}
3 -4 2 3.5 3.0 abab [1, 2] 2.5 100.0
{{ '日本語é'[::-1] }} {{ 'héllo'[1:-1] }} {{ 'hé' | length }} {{ [1, 2, 3][-2:] }} {{ (1, 2, 3)[::2] }}
é語本日 éll 2 [2, 3] (1, 3)
{{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b  c '.split(none, 1) }} {{ 'abab'.replace('b', '-', 1) }}
['a', 'b', 'c'] ['a', 'b,c'] ['a', 'b  c '] a-ab
{{ '\u00a0x\u3000' | trim }}|{{ 'xxaxx'.strip('x') }}
x|a
{{ 'ÀÉÎ ПРИВЕТ'.lower() }} {{ 'straße' | upper }} {{ "they're".title() }} {{ "they're" | title }}
àéî привет STRASSE They'Re They're
{{ {'b': [1, {}], 'a': '<é>"'} | tojson }} {{ {'b': [], 'a': 1} | tojson(indent=1, sort_keys=true) }}
{"b": [1, {}], "a": "<é>\""} {\n "a": 1,\n "b": []\n}
{{ '%s|%d|%s' % ('é', -2.75, [1]) }} {{ '%d%%' % 99 }} {{ 'é😀\u0001' | tojson(false) }}
é|-2|[1] 99% "é😀\u0001"
{{ 1 < 2 <= 2 }} {{ true == 1 }} {{ [1] == [1.0] }} {{ 'b' in 'abc' }} {{ 2 not in (1,) }} {{ 'a' if 0 }}|
True True True True True |
{{ ['b', 'A'] | sort | join }} {{ [1, 2, 1] | unique | list }} {{ {'b': 1, 'a': 2} | dictsort }}
Ab [1, 2] [('a', 2), ('b', 1)]
{{ '42' | int }} {{ 'x' | int(7) }} {{ '3.9' | int }}
42 7 3
]==]
  end)

  it("has statements, scopes and white space as in Python", function()
    check_cases [==[
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}
15151
{% set n = namespace(a=1) %}{% for i in range(3) %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}
4
{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}
02
{% for x in [1, 2, 3] if x is odd %}{{ loop.index }}{{ x }}{{ loop.nextitem }}{% endfor %}
11323
{% for x in [] %}{{ x }}{% else %}-{% endfor %}
-
{% macro m(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m(*[5, 6]) }}
1x124356
{% macro w() %}<{{ caller('i') }}>{% endmacro %}{% call(x) w() %}b{{ x }}{% endcall %}
<bi>
{% set t %}a{{ 1 }}{% endset %}{{ t | upper }}
A1
  {% if true %}  \n  x\n  {%- endif +%}\n{#- c #}\n y {%+ if true %} z{% endif %}\n
  \n  x y  z
{% raw %}{{ x }}{% endraw %}{{ '{{' }}{{ {'a': {'b': 1}}['a'].b }}{{ [[0, 2]].0[1] }}
{{ x }}{{12
{% generation %}a{% set g = 1 %}{% endgeneration %}{{ g is defined }}{{ tools is none }}{{ bos_token }}
aFalseTrue<s>
]==]
  end)

  it("refuses what is not safe, by name", function()
    for template, pattern in pairs {
      ["{{ [].append(1) }}"] = "access to attribute 'append' of 'list' object is unsafe",
      ["{{ ''.__class__.__mro__ }}"] = "no attribute '__class__'", ["{{ x.y }}"] = "line 1: 'x' is undefined",
      ["\n{{ raise_exception('no\n\0') }}"] = "line 2: no", ["{% include 'x' %}"] = "{% include %} is not supported",
      ["{{ os }}{{ print(1) }}"] = "'print' is undefined", ["{{ 1 | nosuch }}"] = "no filter named 'nosuch'",
      ["{{ 1 + 'a' }}"] = "'int' and 'str'", ["{{ 1 // 0 }}"] = "division by zero",
      ["{{ 2 * 9007199254740992 }}"] = "2^53",
      ["{% for x in y"] = "a tag does not end", ["{% if 1 %}"] = "{% elif or else or endif %}",
      ["{{ 'a }}"] = "unterminated string", ["{% endif %}"] = "{% endif %}", ["{{ ${} }}"] = "unexpected character '$'",
      ["{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}"] = "takes not more than 1 argument",
      ["{% macro m(a) %}{% endmacro %}{{ m(1, b=2) }}"] = "takes no keyword argument 'b'",
      ["{{ '%d %d' % 1 }}"] = "not enough arguments", ["{{ 'é' | tojson(true) }}"] = "ensure_ascii = true",
      ["{{ 1 is eq 1 }}"] = "expected end",
      ["{{ '%5d' % 1 }}"] = "unsupported format '%5'",
      ["{{ '%d' % 'a' }}"] = "a number is required, not str",
      ["{{ 'a'.replace('', 'b') }}"] = "must not be empty", ["{{ [1] < [2] }}"] = "'<' not supported",
      ["{{ ''.splitlines() }}"] = "no attribute 'splitlines'", ["{% with %}"] = "{% with %} is not supported",
      ["{% break %}"] = "requires a loop", ["{{ [1, }}"] = "unexpected '}'",
    } do refuses(pattern, template) end
  end)

  it("is bounded in steps, memory and nesting", function()
    collectgarbage()
    local before = collectgarbage "count"
    local doubled = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
    local nested = "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}"
    for template, pattern in pairs {
      ["{% for a in range(99999) %}{% for b in range(999) %}{% endfor %}{% endfor %}"] = "more than %d+",
      ["{% macro f(n) %}{% for a in 'abcdef' %}{{ f(n + 1) if n < 50 }}{% endfor %}{% endmacro %}{{ f(0) }}"] = "more",
      ["{{ range(100001) }}"] = "range() of more than 100000", ["{{ 'a' * 999999999999 }}"] = "more than %d+ bytes",
      ["{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}"] = "bytes",
      [nested] = "nested more than 100", [doubled .. "{{ n.x }}"] = "more than %d+",
      [doubled .. "{% set o = n.x %}" .. doubled .. "{{ n.x == o }}"] = "more than %d+ steps",
      ["{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"] = "nested more than 60",
      ["{{ ('a' * 9999).replace('a', '" .. ("a"):rep(2000) .. "') * 9999 }}"] = "bytes",
      ["{{ " .. ("("):rep(5000) .. (")"):rep(5000) .. " }}"] = "nested more than 100",
      ["{{ 1" .. ("+1"):rep(5000) .. " }}"] = "operators in a row", ["{{ x" .. ("[0]"):rep(600) .. " }}"] = "in a row",
      ["{{ " .. ("not "):rep(5000) .. "1 }}"] = "nested more", [("{% if 1 %}"):rep(5000)] = "nested more",
      [("x"):rep(2 ^ 20 + 1)] = "at most 1048576",
    } do
      local ok, why = pcall(render, template)
      assert.is_false(ok)
      assert.is_truthy(why:find(pattern) or why:find(pattern, 1, true), why)
    end
    collectgarbage()
    assert.is_true(collectgarbage "count" - before < 16 * 1024)
  end)
end)

describe("tokenizer:apply_chat_template's arguments", function()
  local turns = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"

  it("take tables, JSON texts and variables", function()
    assert.equal("user:hi;", render(turns))
    local json, first = '{"b": 1, "a": [], "n": null}', "{{ tools[0] | tojson }}"
    assert.equal(json, render(first, nil, {tools = "[" .. json .. "]"}))
    assert.equal('{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"a": 1, "b": {}}}}',
      render(first, nil, {tools = {{
        type = "function", ["function"] = {parameters = {b = {}, a = 1}, description = "d", name = "f"},
      }}}))
    assert.equal("{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}",
      render("{{ messages[0] }}", '[{"role": "a", "reasoning": "r", "x": null}]'))
    assert.equal("5True2", render("{{ n }}{{ flag }}{{ list | length }}", nil, {n = 5, flag = true, list = {1, 2}}))
    local long = ("é"):rep(1e5)
    assert.equal(long, render("{{ messages[0].content | trim }}", {{role = "user", content = " " .. long}}))
    local batch = tokenizer:apply_chat_template({{role = "user", content = "a b"}}, {
      chat_template = "{{ bos_token }}{{ messages[0].content }}{{ 'a' if add_generation_prompt }}",
      add_generation_prompt = true,
    })
    assert.same({{3, 1, 0}}, batch.input_ids:totable()) -- "ba" is unknown
  end)

  it("find the template by name", function()
    local named = make [[{"chat_template": [{"name": "default", "template": "D"},
      {"name": "tool_use", "template": "T"}]}]]
    local function text(o)
      o.tokenize = false
      return named:apply_chat_template({{role = "user", content = ""}}, o)
    end
    assert.equal("D", text {})
    assert.equal("T", text {tools = {{}}})
    assert.equal("T", text {chat_template = "tool_use"})
    assert.equal("x", text {chat_template = "x"})
    named:save_pretrained(folder .. "/saved")
    assert.same({default = "D", tool_use = "T"}, lm.text.Tokenizer(folder .. "/saved").chat_template)
    make()
  end)

  it("are checked", function()
    local itself = {}
    itself[1] = itself
    for pattern, case in pairs {
      ["messages[1] must be a table with role"] = {{"hi"}}, ["options must be a table"] = {{{role = 1}}, 3},
      ["messages: malformed JSON at byte 2"] = {"[x"}, ["messages must be a list"] = {{}},
      ["messages[1].content must be UTF-8"] = {{{role = "user", content = "\255"}}},
      ["got a function"] = {{{role = print}}}, ["nested more than 64"] = {{{role = itself}}},
      ["a list with the field 'x'"] = {{{1, x = 2}}},
      ["add_generation_prompt"] = {{{}}, {chat_template = turns, add_generation_prompt = 1}},
      ["continue_final_message is not supported; append"] = {{{}}, {chat_template = "", continue_final_message = true}},
      ["the tokenizer has no chat_template"] = {{{}}, {}},
    } do
      local messages, o = case[1], case[2] or {chat_template = turns}
      local ok, why = pcall(tokenizer.apply_chat_template, tokenizer, messages, o)
      assert.is_false(ok)
      assert.is_truthy(why:find(pattern, 1, true), why)
    end
  end)
end)
