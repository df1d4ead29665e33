--- Compiles a template to closures: expressions are function(env), statements function(env, out), which return "break"
--- or "continue" to end an iteration. env: {vars = by name, parent = the enclosing one}; out: texts with n.
local filters = require "luminary.text.jinja.filters"
local lexer = require "luminary.text.jinja.lexer"
local lists = require "luminary.base.lists"
local operators = require "luminary.text.jinja.operators"
local strings = require "luminary.text.jinja.strings"
local values = require "luminary.text.jinja.values"

local fail, step, charge, truth, undefined = values.fail, values.step, values.charge, values.truth, values.undefined

-- Limits: levels of nesting in a template, operators in a row, and macros and loops that call each other.
local DEEPEST, LONGEST, MOST_CALLS = 100, 500, 60

local line, calls -- the statement's line, for messages; the number of macros and blocks that run

local function child(env) return {vars = {}, parent = env} end

local function write(out, text)
  charge(#text + 16)
  out.n = out.n + 1
  out[out.n] = text
end

-- Returns the text that a body writes.
local function captured(body, env)
  local out = {n = 0}
  calls = calls + 1
  if calls > MOST_CALLS then fail("macros and blocks are nested more than %d deep", MOST_CALLS) end
  body(env, out)
  calls = calls - 1
  return table.concat(out)
end

local function call_value(f, args, named)
  step()
  local k = values.kind(values.defined(f))
  if k == "function" then return f.call(args, named) end
  if k == "loop" then return f.again(args[1] or fail "loop() requires an iterable") end
  return fail("'%s' object is not callable", k)
end

-- ---- reading tokens

local Parser = {}
Parser.__index = Parser

function Parser:fail_here(expected)
  fail("expected %s, got '%s'", expected, tostring(self.tokens[self.at].value))
end

-- Returns true at a name or operator.
function Parser:is(value)
  local token = self.tokens[self.at]
  return token.value == value and (token.kind == "name" or token.kind == "op")
end

function Parser:is_kind(kind, value)
  local token = self.tokens[self.at]
  return token.kind == kind and (value == nil or token.value == value)
end

function Parser:skip(value)
  local is = self:is(value)
  if is then self.at = self.at + 1 end
  return is
end

function Parser:expect(value) return self:skip(value) or self:fail_here("'" .. value .. "'") end

function Parser:next(kind, value)
  if not self:is_kind(kind, value) then self:fail_here(value or kind) end
  self.at = self.at + 1
  return self.tokens[self.at - 1].value
end
function Parser:name() return self:next "name" end

-- Calls a method of the parser one level deeper.
function Parser:deeper(method, ...)
  self.depth = self.depth + 1
  if self.depth > DEEPEST then fail("nested more than %d deep", DEEPEST) end
  local result, second = self[method](self, ...)
  self.depth = self.depth - 1
  return result, second
end

-- Calls extend(node), which reads more behind an expression and returns its node or nil, as long as it can.
local function chain(node, extend)
  for _ = 1, LONGEST do
    local more = extend(node)
    if not more then return node end
    node = more
  end
  return fail("more than %d operators in a row", LONGEST)
end

-- Calls read(i) for each item up to a closing bracket, between commas.
function Parser:items(closing, read)
  local n = 0
  while not self:skip(closing) do
    if n > 0 then self:expect "," end
    if n > 0 and self:skip(closing) then break end
    n = n + 1
    read(n)
  end
end

-- ---- expressions

local function variable(name)
  return function(env)
    step()
    repeat
      local v = env.vars[name]
      if v ~= nil then return v end
      env = env.parent
    until not env
    return undefined("'%s' is undefined", name)
  end
end

local function constant(v)
  return function() return v end
end

local function evaluated(list, env)
  local out = {n = #list}
  for i = 1, #list do out[i] = list[i](env) end
  return out
end

local function no_arguments() return {n = 0}, {} end

-- Reads the arguments of a call. Returns function(env), which returns a list with n, and those by name.
function Parser:arguments()
  local args, names, named, all, all_named = {}, {}, {}, nil, nil
  if not self:skip "(" then return no_arguments end
  self:items(")", function()
    local following = self.tokens[self.at + 1]
    if self:skip "*" then
      all = self:expression()
    elseif self:skip "**" then
      all_named = self:expression()
    elseif self:is_kind "name" and following.kind == "op" and following.value == "=" then
      names[#names + 1] = self:name()
      self:expect "="
      named[#names] = self:expression()
    else
      args[#args + 1] = #names == 0 and self:expression() or self:fail_here "a named argument"
    end
  end)
  return function(env)
    local list, by_name = evaluated(args, env), {}
    for i, name in ipairs(names) do by_name[name] = named[i](env) end
    for _, v in ipairs(all and values.items(all(env)) or {}) do list[list.n + 1], list.n = v, list.n + 1 end
    local dict = all_named and all_named(env)
    for _, key in ipairs(dict and values.items(dict) or {}) do
      by_name[values.text(key)] = operators.get_item(dict, key)
    end
    return list, by_name
  end
end

-- Reads an index, or bounds between ":", behind "[". Returns the node of an item or slice of base.
function Parser:subscript(base)
  local parts, n = {}, 1
  while not self:skip "]" do
    if self:skip ":" then
      n = n + 1
    else
      parts[n] = (parts[n] or n > 3) and self:fail_here "']'" or self:expression()
    end
  end
  if n == 1 then
    local index = parts[1] or self:fail_here "an index"
    return function(env) return operators.get_item(base(env), index(env)) end
  end
  return function(env)
    local v, bounds = base(env), {}
    for i = 1, 3 do
      local x = parts[i] and parts[i](env)
      bounds[i] = x and x ~= values.NONE and values.index(x, "slice indices") or nil
    end
    return values.slice(v, bounds[1], bounds[2], bounds[3])
  end
end

local constants = {
  ["true"] = true, True = true, ["false"] = false, False = false, none = values.NONE, None = values.NONE,
}

function Parser:primary()
  local token = self.tokens[self.at]
  local kind, value = token.kind, token.value
  self.at = self.at + 1
  if kind == "name" then
    if constants[value] ~= nil then return constant(constants[value]) end
    if self.names then self.names[value] = true end
    return variable(value)
  elseif kind == "str" then
    while self:is_kind "str" do value = value .. self:next "str" end
    return constant(value)
  elseif kind == "number" or kind == "float" then
    return constant(values[kind == "number" and "int" or "float"](value))
  elseif kind == "op" and value == "(" then
    if self:skip ")" then return function() return values.tuple {} end end
    local node = self:tuple()
    self:expect ")"
    return node
  elseif kind == "op" and value == "[" then
    local list = {}
    self:items("]", function(i) list[i] = self:expression() end)
    return function(env) return values.list(evaluated(list, env), #list) end
  elseif kind == "op" and value == "{" then
    local keys, of_keys = {}, {}
    self:items("}", function(i)
      keys[i] = self:expression()
      self:expect ":"
      of_keys[i] = self:expression()
    end)
    return function(env)
      local dict = values.dict()
      for i, key in ipairs(keys) do values.put(dict, key(env), of_keys[i](env)) end
      return dict
    end
  end
  self.at = self.at - 1
  return self:fail_here "an expression"
end

-- Reads the calls, attributes and items behind an expression.
function Parser:postfix(node)
  return chain(node, function(base)
    if self:is "(" then return self:call(base) end
    if self:skip "[" then return self:subscript(base) end
    if not self:skip "." then return nil end
    if self:is_kind "number" then
      local index = self:next "number"
      return function(env) return operators.get_item(base(env), index) end
    end
    local name = self:name()
    return function(env) return operators.get_attribute(base(env), name) end
  end)
end

function Parser:call(callee)
  local arguments = self:arguments()
  local function node(env)
    local f = callee(env)
    return call_value(f, arguments(env))
  end
  self.called[node] = {callee, arguments}
  return node
end

-- Reads a filter's name and arguments. Returns function(env, value).
function Parser:filter()
  local name, arguments = self:name(), self:arguments()
  return function(env, v)
    step()
    local result = filters.filter(name, v, arguments(env))
    if type(result) == "string" then charge(#result) end
    return result
  end
end

local ends_test = lists.set {"else", "or", "and", "is", "if", "not", "in"}

-- Reads the test behind "is".
function Parser:test(node)
  local negated = self:skip "not"
  local name, arguments = self:is_kind "op" and self:next "op" or self:name()
  local token = self.tokens[self.at]
  if token.kind == "name" and not ends_test[token.value] or token.kind == "str" or token.kind == "number"
    or token.kind == "float" or self:is "[" or self:is "{" then
    local value = self:postfix(self:primary())
    arguments = function(env) return {value(env), n = 1}, {} end
  else
    arguments = self:arguments()
  end
  return function(env)
    step()
    return truth(filters.test(name, node(env), arguments(env))) ~= negated
  end
end

function Parser:unary(without_filters)
  local sign, node = self:is "-" and "-" or self:is "+" and "+", nil
  if sign then
    self.at = self.at + 1
    local operand = self:deeper("unary", true)
    node = function(env) return operators.signed(operand(env), sign) end
  end
  node = self:postfix(node or self:primary())
  return without_filters and node or chain(node, function(base)
    if self:skip "is" then return self:test(base) end
    if self:is "(" then return self:call(base) end
    if not self:skip "|" then return nil end
    local apply = self:filter()
    return function(env) return apply(env, base(env)) end
  end)
end

-- Defines a method that reads operands, by the method `operand`, between left-associative operators. make(sign, left,
-- right) returns a node.
local function binary(operand, signs, make)
  return function(self)
    return chain(self[operand](self), function(left)
      local sign = lists.find(signs, function(each) return self:is(each) end)
      if not sign then return nil end
      self.at = self.at + 1
      return make(sign, left, self[operand](self))
    end)
  end
end

local function applied(sign, left, right)
  local apply = operators[sign]
  return function(env)
    step()
    local a = left(env)
    return apply(a, right(env))
  end
end

function Parser:concat()
  local parts = {self:product()}
  while self:skip "~" do parts[#parts + 1] = self:product() end
  if #parts == 1 then return parts[1] end
  return function(env) return strings.join(values.list(evaluated(parts, env)), "") end
end

local comparisons = {"==", "!=", "<=", ">=", "<", ">", "in"}

function Parser:comparison()
  local first, signs, operands = self:sum(), {}, {}
  while true do
    local sign, after = lists.find(comparisons, function(each) return self:is(each) end), self.tokens[self.at + 1]
    if self:is "not" and after.kind == "name" and after.value == "in" then self.at, sign = self.at + 1, "not in" end
    if not sign then break end
    self.at = self.at + 1
    signs[#signs + 1], operands[#operands + 1] = sign, self:sum()
  end
  if #signs == 0 then return first end
  return function(env)
    step()
    local a = first(env)
    for i = 1, #signs do
      local b = operands[i](env)
      if not operators[signs[i]](a, b) then return false end
      a = b
    end
    return true
  end
end

function Parser:negation()
  if not self:skip "not" then return self:comparison() end
  local node = self:deeper "negation"
  return function(env) return not truth(node(env)) end
end

-- Returns the node of `and` or `or`, which evaluates right only if the truth of left is `goes_on`.
local function lazy(goes_on)
  return function(_, left, right)
    return function(env)
      local a = left(env)
      if truth(a) ~= goes_on then return a end
      return right(env)
    end
  end
end

Parser.power = binary("unary", {"**"}, applied)
Parser.product = binary("power", {"*", "//", "/", "%"}, applied)
Parser.sum = binary("concat", {"+", "-"}, applied)
Parser.conjunction = binary("negation", {"and"}, lazy(true))
Parser.disjunction = binary("conjunction", {"or"}, lazy(false))

function Parser:conditional()
  return chain(self:disjunction(), function(yes)
    if not self:skip "if" then return nil end
    local test, no = self:disjunction(), nil
    if self:skip "else" then no = self:deeper "conditional" end
    return function(env)
      if truth(test(env)) then return yes(env) end
      return no and no(env) or not no and undefined "the inline if-expression evaluated to false" or false
    end
  end)
end

function Parser:expression() return self:deeper "conditional" end

-- Reads one expression, or several between commas as a tuple. method: conditional, or disjunction without inline if.
function Parser:tuple(method)
  local list, is_tuple = {}, false
  repeat
    local ends = self:is_kind "block" or self:is_kind "variable" or self:is ")" or self:is "recursive"
    if is_tuple and ends then break end
    list[#list + 1] = self:deeper(method or "conditional")
    local more = self:skip ","
    is_tuple = is_tuple or more
  until not more
  if not is_tuple then return list[1] end
  return function(env) return values.tuple(evaluated(list, env), #list) end
end

-- ---- statements

-- Reads the target of an assignment. Returns function(env, value).
function Parser:target()
  local parts, is_tuple = {}, false
  repeat
    if is_tuple and (self:is "in" or self:is "=" or self:is ")") then break end
    if self:skip "(" then
      parts[#parts + 1] = self:deeper "target"
      self:expect ")"
    else
      local name = self:name()
      local attribute, get = self:skip "." and self:name(), variable(name)
      if constants[name] ~= nil then fail("can't assign to '%s'", name) end
      parts[#parts + 1] = attribute and function(env, v)
        local namespace = get(env)
        if values.kind(namespace) ~= "Namespace" then fail "cannot assign attribute on non-namespace object" end
        if attribute:find "^_" then fail("names of a namespace must not begin with '_', got '%s'", attribute) end
        values.put(namespace, attribute, v)
      end or function(env, v) env.vars[name] = v end
    end
    local more = self:skip ","
    is_tuple = is_tuple or more
  until not more
  if not is_tuple then return parts[1] end
  return function(env, v)
    local list = values.items(values.defined(v))
    if list.n ~= #parts then fail("cannot unpack %d values into %d names", list.n, #parts) end
    for i, part in ipairs(parts) do part(env, list[i]) end
  end
end

-- Reads statements up to one of the tags `ends`, whose name it skips. Returns their function and the name.
function Parser:body(...)
  self:next("block", "end")
  return self:deeper("statements", ...)
end

-- Reads statements up to one tag, and ends it.
function Parser:body_to(name)
  local body = self:body(name)
  self:next("block", "end")
  return body
end

local readers = {}

-- Reads a body whose text, after filters, keep(env, out, text) takes.
function Parser:captured_body(ends, keep)
  local apply = {}
  while self:skip "|" do apply[#apply + 1] = self:filter() end
  local body = self:body_to(ends)
  return function(env, out)
    local v = captured(body, child(env))
    for _, each in ipairs(apply) do v = each(env, v) end
    keep(env, out, v)
  end
end

function readers.set(self)
  local assign = self:target()
  if not self:skip "=" then return self:captured_body("endset", function(env, _, v) assign(env, v) end) end
  local node = self:tuple()
  self:next("block", "end")
  return function(env) assign(env, node(env)) end
end

function readers.filter(self)
  local first = self:filter()
  return self:captured_body("endfilter", function(env, out, v) write(out, values.text(first(env, v))) end)
end

readers["if"] = function(self)
  local tests, bodies, otherwise, ends = {}, {}
  repeat
    tests[#tests + 1] = self:tuple "disjunction"
    bodies[#bodies + 1], ends = self:body("elif", "else", "endif")
  until ends ~= "elif"
  if ends == "else" then otherwise = self:body "endif" end
  self:next("block", "end")
  return function(env, out)
    for i = 1, #tests do
      if truth(tests[i](env)) then return bodies[i](env, out) end
    end
    if otherwise then return otherwise(env, out) end
  end
end

-- Returns the object `loop` of a list; set its index before each iteration.
local function loop_of(list, depth, again)
  local loop, n = values.new("loop", {index = 0, again = again}), list.n
  function loop.get(name)
    local i = loop.index
    if name == "previtem" or name == "nextitem" then
      local item = list[name == "nextitem" and i + 1 or i - 1]
      return item == nil and undefined "there is no such item" or item
    elseif name == "cycle" then
      return values.func(function(args)
        return args.n > 0 and args[(i - 1) % args.n + 1] or fail "cycle() requires items"
      end)
    end
    return ({
      index = i, index0 = i - 1, revindex = n - i + 1, revindex0 = n - i, first = i == 1, last = i == n, length = n,
      depth = depth, depth0 = depth - 1,
    })[name]
  end
  return loop
end

readers["for"] = function(self)
  local assign = self:target()
  self:expect "in"
  local iterable = self:tuple "disjunction"
  local test = self:skip "if" and self:expression()
  local is_recursive, otherwise = self:skip "recursive", nil
  self.loops = self.loops + 1
  local body, ends = self:body("endfor", "else")
  self.loops = self.loops - 1
  if ends == "else" then otherwise = self:body "endfor" end
  self:next("block", "end")
  local function run(env, out, list, depth)
    list = values.items(list)
    for i = 1, test and list.n or 0 do
      local inner = child(env)
      assign(inner, list[i])
      if not truth(test(inner)) then list[i] = nil end
    end
    if test then
      local kept = {}
      for i = 1, list.n do kept[#kept + 1] = list[i] end
      list = values.list(kept)
    end
    local loop = loop_of(list, depth, function(more)
      if not is_recursive then fail "loop() requires 'recursive' in its for" end
      return captured(function(inner, texts) run(inner, texts, more, depth + 1) end, env)
    end)
    for i = 1, list.n do
      step()
      loop.index = i
      local inner = child(env)
      inner.vars.loop = loop
      assign(inner, list[i])
      if body(inner, out) == "break" then break end
    end
    if list.n == 0 and otherwise then return otherwise(child(env), out) end
  end
  return function(env, out) return run(env, out, iterable(env), 1) end
end

for _, word in ipairs {"break", "continue"} do
  readers[word] = function(self)
    if self.loops == 0 then fail("{%% %s %%} requires a loop around it", word) end
    self:next("block", "end")
    return constant(word)
  end
end

-- Reads parameters. Returns a function that reads the body, which returns function(env): the macro's value.
function Parser:macro(who, ends)
  local names, defaults = {}, {}
  if self:skip "(" then
    self:items(")", function(i)
      names[i] = self:name()
      defaults[i] = self:skip "=" and self:expression()
    end)
  end
  return function()
    local outer, loops = self.names, self.loops
    self.names, self.loops = {}, 0
    local body, used = self:body_to(ends), self.names
    self.names, self.loops = outer, loops
    return function(env)
      return values.func(function(args, named)
        local inner, more, rest = child(env), lists.slice(args, #names + 1, args.n), values.dict()
        inner.vars.caller, named.caller = named.caller, nil
        for i, name in ipairs(names) do
          local v = args[i]
          if v == nil then v, named[name] = named[name], nil end
          if v == nil and defaults[i] then v = defaults[i](inner) end
          if v == nil then v = undefined("parameter '%s' was not provided", name) end
          inner.vars[name] = v
        end
        for _, key in ipairs(lists.sorted_keys(named)) do values.put(rest, key, named[key]) end
        if #more > 0 and not used.varargs then
          fail("macro '%s' takes not more than %d argument(s)", who, #names)
        elseif rest.n > 0 and not used.kwargs then
          fail("macro '%s' takes no keyword argument '%s'", who, rest.keys[1])
        end
        inner.vars.varargs, inner.vars.kwargs = values.tuple(more), rest
        return captured(body, inner)
      end)
    end
  end
end

function readers.macro(self)
  local name = self:name()
  local make = self:macro(name, "endmacro")()
  return function(env) env.vars[name] = make(env) end
end

function readers.call(self)
  local read_body = self:macro("caller", "endcall")
  local called = self.called[self:expression()] or self:fail_here "a call"
  local make = read_body()
  return function(env, out)
    local args, named = called[2](env)
    named.caller = make(env)
    write(out, values.text(call_value(called[1](env), args, named)))
  end
end

readers["with"] = function(self)
  local assign, nodes = {}, {}
  while not self:is_kind "block" do
    if #nodes > 0 then self:expect "," end
    assign[#assign + 1] = self:target()
    self:expect "="
    nodes[#nodes + 1] = self:expression()
  end
  local body = self:body_to "endwith"
  return function(env, out)
    local inner = child(env)
    for i, node in ipairs(nodes) do assign[i](inner, node(env)) end
    return body(inner, out)
  end
end

function readers.generation(self)
  local body = self:body_to "endgeneration"
  return function(env, out) return body(child(env), out) end
end

-- Reads the statement at a token. Returns its function.
function Parser:statement()
  local kind, value = self.tokens[self.at].kind, self.tokens[self.at].value
  self.at = self.at + 1
  if kind == "data" then return function(_, out) write(out, value) end end
  if kind == "variable" then
    local node = self:tuple()
    self:next("variable", "end")
    return function(env, out) write(out, values.text(node(env))) end
  end
  local name = self:name()
  return (readers[name] or fail("{%% %s %%} is not supported in chat templates", name))(self)
end

-- Reads statements up to a tag of the names, or the end of the template. Returns their function and the name.
function Parser:statements(...)
  local list, rows, ends = {}, {}, lists.set {...}
  while true do
    local token, name = self.tokens[self.at], self.tokens[self.at + 1]
    line = token.line
    if token.kind == "eof" and not ... then break end
    if token.kind == "eof" then self:fail_here("{% " .. table.concat({...}, " or ") .. " %}") end
    if token.kind == "block" and name.kind == "name" and ends[name.value] then
      self.at, ends = self.at + 2, name.value
      break
    end
    list[#list + 1], rows[#rows + 1] = self:statement(), token.line
  end
  return function(env, out)
    for i = 1, #list do
      step()
      line = rows[i]
      local signal = list[i](env, out)
      if signal then return signal end
    end
  end, ends
end

local parser = {}

--- Compiles a template's text. Returns function(env, out).
function parser.compile(source)
  line = nil
  return (setmetatable({tokens = lexer(source), at = 1, depth = 0, loops = 0, called = {}}, Parser):statements())
end

--- Runs a compiled template with variables, by name, over globals. Returns its text.
function parser.run(body, globals, variables)
  calls = 0
  return captured(body, {vars = variables, parent = {vars = globals}})
end

--- Returns the line of the statement that ran or was compiled last; nil if the template's tokens are malformed.
function parser.line() return line end

return parser
