--- Compiles a template to closures: expressions are function(env), statements function(env, out), which return "break"
--- or "continue" to end an iteration. env: {vars = by name, parent = the enclosing one}; out: texts with n.
local Parser = require "luminary.text.jinja.expressions"
local lexer = require "luminary.text.jinja.lexer"
local lists = require "luminary.base.lists"
local values = require "luminary.text.jinja.values"

local fail, step, charge, truth, undefined = values.fail, values.step, values.charge, values.truth, values.undefined

local MOST_CALLS = 60 -- the limit of macros that call each other

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

-- Reads the target of an assignment. Returns function(env, value).
function Parser:target()
  local parts, is_tuple = {}, false
  repeat
    if is_tuple and (self:is "in" or self:is "=") then break end
    local name = self:name()
    local attribute, get = self:skip "." and self:name(), Parser.variable(name)
    if Parser.constants[name] ~= nil then fail("can't assign to '%s'", name) end
    parts[#parts + 1] = attribute and function(env, v)
      local namespace = get(env)
      if values.kind(namespace) ~= "Namespace" then fail "cannot assign attribute on non-namespace object" end
      if attribute:find "^_" then fail("names of a namespace must not begin with '_', got '%s'", attribute) end
      values.put(namespace, attribute, v)
    end or function(env, v) env.vars[name] = v end
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

function readers.set(self)
  local assign = self:target()
  if not self:skip "=" then
    local body = self:body_to "endset"
    return function(env) assign(env, captured(body, child(env))) end
  end
  local node = self:tuple()
  self:next("block", "end")
  return function(env) assign(env, node(env)) end
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
local function loop_of(list)
  local loop, n = values.new("loop", {index = 0}), list.n
  function loop.get(name)
    local i = loop.index
    if name == "previtem" or name == "nextitem" then
      local item = list[name == "nextitem" and i + 1 or i - 1]
      return item == nil and undefined "there is no such item" or item
    end
    return ({
      index = i, index0 = i - 1, revindex = n - i + 1, revindex0 = n - i, first = i == 1, last = i == n, length = n,
    })[name]
  end
  return loop
end

readers["for"] = function(self)
  local assign = self:target()
  self:expect "in"
  local iterable = self:tuple "disjunction"
  local test = self:skip "if" and self:expression()
  local otherwise
  self.loops = self.loops + 1
  local body, ends = self:body("endfor", "else")
  self.loops = self.loops - 1
  if ends == "else" then otherwise = self:body "endfor" end
  self:next("block", "end")
  return function(env, out)
    local list = values.items(iterable(env))
    if test then
      list = values.list(lists.filter(list, function(item)
        local inner = child(env)
        assign(inner, item)
        return truth(test(inner))
      end))
    end
    local loop = loop_of(list)
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
end

for _, word in ipairs {"break", "continue"} do
  readers[word] = function(self)
    if self.loops == 0 then fail("{%% %s %%} requires a loop around it", word) end
    self:next("block", "end")
    return function() return word end
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
    local loops = self.loops
    self.loops = 0
    local body = self:body_to(ends)
    self.loops = loops
    return function(env)
      return values.func(function(args, named)
        local inner = child(env)
        inner.vars.caller, named.caller = named.caller, nil
        for i, name in ipairs(names) do
          local v = args[i]
          if v == nil then v, named[name] = named[name], nil end
          if v == nil and defaults[i] then v = defaults[i](inner) end
          if v == nil then v = undefined("parameter '%s' was not provided", name) end
          inner.vars[name] = v
        end
        if args.n > #names then fail("macro '%s' takes not more than %d argument(s)", who, #names) end
        local unknown = lists.sorted_keys(named)[1]
        if unknown then fail("macro '%s' takes no keyword argument '%s'", who, unknown) end
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
    write(out, values.text(Parser.call_value(called[1](env), args, named)))
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
