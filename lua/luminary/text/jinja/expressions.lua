--- Reads tokens and expressions of templates. Methods that read an expression return its node: function(env), which
--- returns the value. env: {vars = by name, parent = the enclosing one}.
local filters = require "luminary.text.jinja.filters"
local lists = require "luminary.base.lists"
local operators = require "luminary.text.jinja.operators"
local strings = require "luminary.text.jinja.strings"
local values = require "luminary.text.jinja.values"

local fail, step, charge, truth, undefined = values.fail, values.step, values.charge, values.truth, values.undefined

local Parser = {}
Parser.__index = Parser

local DEEPEST, LONGEST = 100, 500 -- limits: levels of nesting in a template, operators in a row

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

--- Returns the result of a template's function for arguments, a list with n, and those by name.
function Parser.call_value(f, args, named)
  step()
  local k = values.kind(values.defined(f))
  if k ~= "function" then fail("'%s' object is not callable", k) end
  return f.call(args, named)
end

--- Returns the node of a variable.
function Parser.variable(name)
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
  local args, names, named, all = {}, {}, {}, nil
  if not self:skip "(" then return no_arguments end
  self:items(")", function()
    local following = self.tokens[self.at + 1]
    if self:skip "*" then
      all = self:expression()
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

Parser.constants = {
  ["true"] = true, True = true, ["false"] = false, False = false, none = values.NONE, None = values.NONE,
}

function Parser:primary()
  local token = self.tokens[self.at]
  local kind, value = token.kind, token.value
  self.at = self.at + 1
  if kind == "name" then
    if Parser.constants[value] ~= nil then return constant(Parser.constants[value]) end
    return Parser.variable(value)
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
    return Parser.call_value(f, arguments(env))
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

-- Reads the test behind "is".
function Parser:test(node)
  local negated = self:skip "not"
  local name, arguments = self:name(), self:arguments()
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

Parser.product = binary("unary", {"*", "//", "/", "%"}, applied)
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
    local ends = self:is_kind "block" or self:is_kind "variable" or self:is ")"
    if is_tuple and ends then break end
    list[#list + 1] = self:deeper(method or "conditional")
    local more = self:skip ","
    is_tuple = is_tuple or more
  until not more
  if not is_tuple then return list[1] end
  return function(env) return values.tuple(evaluated(list, env), #list) end
end

return Parser
