--- Reads Python's pickles (protocols 0 to 5, Lib/pickletools.py) as data: a machine that knows plain values and the few
--- names that its caller passes. It runs no code: where a pickle needs anything else, a value is lost, and reported
--- with its position.
---
--- Lists, tuples and sets become lists, dicts tables, ints beyond 2^53 int64 cdata, bytes strings. Ints beyond
--- int64 become numbers that equal them, or are lost.
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"

local pickle = {}
local NONE = setmetatable({}, {__tostring = function() return "None" end})
local MARK = {}
local Name = {__tostring = function(name) return name.name end}
local Lost = {}

--- Makes the meaning of a Python name: call(list of arguments, machine) returns the value. takes_lost: it is also
--- called if an argument is lost; otherwise the result is that lost argument.
function pickle.callable(name, call, takes_lost)
  return setmetatable({name = name, call = call, takes_lost = takes_lost}, Name)
end

--- Makes a value that plain tables cannot represent, such as a storage type; errors call it `name`. Its value(self,
--- machine) returns its form in the result, once; its build(self, state, machine) takes a following state.
function pickle.opaque(name, fields)
  fields.name = name
  return setmetatable(fields, Name)
end

pickle.NONE = NONE

--- Represents a value that cannot be read; values made from it are lost too. fields: {lacking = true: only because
--- there is no such dtype, advice = a remedy}.
function pickle.lost(why, fields)
  fields = fields or {}
  fields.why = why
  return setmetatable(fields, Lost)
end

local function is_lost(value) return getmetatable(value) == Lost end

local ADVICE = "tensors, numbers, strings, lists and dicts are read; in Python: torch.save(net.state_dict(), path)"

--- Returns a lost value for a name that a pickle may not call.
local function refused(name)
  name = printable_name(name, 200)
  return pickle.lost(("it calls %s, which is not allowed"):format(name), {advice = ADVICE, name = name})
end
pickle.refused = refused

pickle.is_lost = is_lost

local Machine = {}
Machine.__index = Machine

function Machine:fail(format, ...) self.cursor.source:malformed("pickle", format, ...) end

function Machine:push(value)
  self.n = self.n + 1
  self.stack[self.n] = value
end

function Machine:top()
  local value = self.stack[self.n]
  if value == nil or value == MARK then self:fail "the stack is empty" end
  return value
end

function Machine:pop()
  local value = self:top()
  self.stack[self.n], self.n = nil, self.n - 1
  return value
end

-- Returns the values pushed since the last mark.
function Machine:pop_mark()
  local at = self.n
  while at > 0 and self.stack[at] ~= MARK do at = at - 1 end
  if at == 0 then self:fail "a mark is missing" end
  local list = {}
  for i = at + 1, self.n do list[i - at] = self.stack[i] end
  for i = at, self.n do self.stack[i] = nil end
  self.n = at - 1
  return list
end

--- Returns a new table of a kind: "list", "tuple" or "dict".
function Machine:new(kind, t)
  t = t or {}
  self.kind[t] = kind
  return t
end

function Machine:of_kind(value, kind)
  if self.kind[value] ~= kind then self:fail("expected a %s", kind) end
  return value
end

function Machine:set_items(dict, list)
  if is_lost(dict) then return end
  if #list % 2 ~= 0 then self:fail "a key without a value" end
  self:of_kind(dict, "dict")
  for i = 1, #list, 2 do
    local key, value = list[i], list[i + 1]
    local kind = type(key)
    if kind ~= "string" and kind ~= "boolean" and (kind ~= "number" or key ~= key) then
      value = is_lost(key) and key or pickle.lost("a key is not a string, number or boolean: "
        .. (self.kind[key] and "a " .. self.kind[key] or printable_name(tostring(key), 80)))
      key = value
    end
    dict[key] = value
  end
end

function Machine:append(list, values)
  if is_lost(list) then return end
  if not self.kind[list] or self.kind[list] == "dict" then self:of_kind(list, "list") end
  local n = #list
  for i, value in ipairs(values) do list[n + i] = value end
end

function Machine:find(module, name)
  if name:find "[%c]" or module:find "[%c]" then self:fail "a name with a control character" end
  local full = module:gsub("^__builtin__$", "builtins") .. "." .. name
  local value = self.names(full)
  if value == nil then value = refused(full) end
  self:push(value)
end

-- Returns f.call(tuple, self), or the first value of the tuple that is lost.
local function unless_lost(self, f, tuple)
  for _, value in ipairs(f.takes_lost and {} or self:of_kind(tuple, "tuple")) do
    if is_lost(value) then return value end
  end
  return f.call(tuple, self)
end

-- Returns f(…), or a lost value if it raises an error that is not about the file, such as for its arguments. An
-- interrupt and "out of memory" or "not enough memory" are raised.
local function call_or_lost(self, name, f, ...)
  local ok, value = pcall(f, ...)
  if ok then return value end
  local why = tostring(value)
  if self.cursor.source:why(why) ~= why or why:find "[hf] memory" or why:find "interrupted" then error(why, 0) end
  return pickle.lost("it calls " .. printable_name(name, 200) .. " with arguments that do not fit", {advice = ADVICE})
end

--- Returns the result of a callable for a tuple of arguments.
function Machine:call(f, args)
  if is_lost(f) or is_lost(args) then return is_lost(f) and f or args end
  self:of_kind(args, "tuple")
  if getmetatable(f) ~= Name or not f.call then
    return refused(getmetatable(f) == Name and f.name or "a " .. (self.kind[f] or type(f)))
  end
  return call_or_lost(self, f.name, unless_lost, self, f, args)
end

--- Returns a value in its form in the result, such as the tensor of a storage.
function Machine:plain(v)
  if getmetatable(v) ~= Name then return v end
  if v.object == nil then v.object = v.value and call_or_lost(self, v.name, v.value, v, self) or refused(v.name) end
  return v.object
end

function Machine:remember(i) self.memo[i] = self:top() end

function Machine:recall(i)
  local value = self.memo[i]
  if value == nil then self:fail("memo %.0f is empty", i or 0 / 0) end
  self:push(value)
end

-- Returns what stands for an integer beyond int64 that no number equals; nearest: the number closest to it.
local function too_large(nearest)
  return pickle.lost(("an integer of about %.3g is beyond int64"):format(nearest), {
    advice = "in Python, save str(n), or a float", nearest = nearest,
  })
end

-- Returns a little-endian two's complement integer of any length.
local function integer(text)
  if text == "" then return 0 end
  local zeros = #text > 8 and #text:match "^%z*" or 0
  local sign = text:byte(-1) >= 128 and "\255" or "\0"
  if #text - zeros <= 8 then
    local head = Source.int64(text:sub(zeros + 1) .. sign:rep(8 - #text + zeros), 1)
    if zeros == 0 then return head end
    local value = tonumber(head) * 256 ^ zeros
    if tonumber(head) == head and math.abs(value) < math.huge then return value end
  end
  local nearest = 0
  for i = #text, 1, -1 do nearest = nearest * 256 + text:byte(i) end
  return too_large(sign == "\255" and nearest - 256 ^ #text or nearest)
end

local function decimal(machine, text)
  local digits = text:match("^(%-?%d+)L?$")
  if not digits then machine:fail("malformed int '%s'", printable_name(text, 40)) end
  local value = tonumber(digits)
  if math.abs(value) <= 2 ^ 53 or ("%.0f"):format(value) == digits then return value end
  return Source.decimal(digits) or too_large(value)
end

local function without_escapes(machine, text)
  if text:find "\\" then machine:fail "strings with escapes are not supported" end
  return text
end

local function text_of(size)
  return function(m)
    local n = size == 8 and m.cursor:count() or m.cursor:unsigned(size)
    m:push(m.cursor:take(n))
  end
end

local function tuple_of(n)
  return function(m)
    local t = m:new "tuple"
    for i = n, 1, -1 do t[i] = m:pop() end
    m:push(t)
  end
end

local function constant(value) return function(m) m:push(value) end end
local function empty(kind) return function(m) m:push(m:new(kind)) end end
local function marked(kind) return function(m) m:push(m:new(kind, m:pop_mark())) end end

local function refuse_object(m)
  local module, name = m.cursor:line(), m.cursor:line()
  m:pop_mark()
  m:push(refused(module .. "." .. name))
end

local function number_of(m)
  local line = m.cursor:line()
  return line:find "^%d+$" and tonumber(line) or m:fail "malformed memo number"
end

local function reduce(m)
  local args = m:pop()
  m:push(m:call(m:pop(), args))
end

local codes = {
  ["\128"] = function(m)
    local version = m.cursor:unsigned(1)
    if version > 5 then m:fail("unsupported protocol %d; supported are 0 to 5", version) end
  end,
  ["\149"] = function(m) m.cursor:take(8) end, -- FRAME
  ["("] = constant(MARK), ["0"] = function(m) m:pop() end, ["1"] = function(m) m:pop_mark() end,
  ["2"] = function(m) m:push(m:top()) end,
  N = constant(NONE), ["\136"] = constant(true), ["\137"] = constant(false),
  I = function(m)
    local line = m.cursor:line()
    if line == "00" or line == "01" then m:push(line == "01") else m:push(decimal(m, line)) end
  end,
  L = function(m) m:push(decimal(m, m.cursor:line())) end,
  J = function(m) m:push(m.cursor:signed(4)) end,
  K = function(m) m:push(m.cursor:unsigned(1)) end,
  M = function(m) m:push(m.cursor:unsigned(2)) end,
  ["\138"] = function(m) m:push(integer(m.cursor:take(m.cursor:unsigned(1)))) end,
  ["\139"] = function(m)
    local n = m.cursor:unsigned(4)
    if n > 1024 then m:fail("an int of %.0f bytes", n) end
    m:push(integer(m.cursor:take(n)))
  end,
  F = function(m)
    local line = m.cursor:line()
    m:push(line:find "^[%d.eE+%-]+$" and tonumber(line) or line == "nan" and 0 / 0 or line:find "^%-?inf$"
      and (line == "inf" and math.huge or -math.huge) or m:fail "malformed float")
  end,
  G = function(m) m:push(Source.float(m.cursor:take(8):reverse(), 1, 8)) end,
  S = function(m)
    local line = m.cursor:line()
    m:push(without_escapes(m, line:match("^'(.*)'$") or line:match('^"(.*)"$') or "\\"))
  end,
  V = function(m) m:push(without_escapes(m, m.cursor:line())) end,
  T = text_of(4), U = text_of(1), X = text_of(4), ["\140"] = text_of(1), ["\141"] = text_of(8),
  B = text_of(4), C = text_of(1), ["\142"] = text_of(8), ["\150"] = text_of(8),
  ["]"] = empty "list", ["}"] = empty "dict", [")"] = empty "tuple", ["\143"] = empty "set",
  l = marked "list", t = marked "tuple", ["\145"] = marked "set",
  d = function(m)
    local list = m:pop_mark()
    m:push(m:new "dict")
    m:set_items(m:top(), list)
  end,
  ["\133"] = tuple_of(1), ["\134"] = tuple_of(2), ["\135"] = tuple_of(3),
  a = function(m)
    local value = m:pop()
    m:append(m:top(), {value})
  end,
  e = function(m)
    local list = m:pop_mark()
    m:append(m:top(), list)
  end,
  s = function(m)
    local value = m:pop()
    local key = m:pop()
    m:set_items(m:top(), {key, value})
  end,
  u = function(m)
    local list = m:pop_mark()
    m:set_items(m:top(), list)
  end,
  c = function(m)
    local module = m.cursor:line()
    m:find(module, m.cursor:line())
  end,
  ["\147"] = function(m)
    local name = m:pop()
    local module = m:pop()
    if type(name) ~= "string" or type(module) ~= "string" then m:fail "a name is not a string" end
    m:find(module, name)
  end,
  R = reduce, ["\129"] = reduce,
  ["\146"] = function(m) -- NEWOBJ_EX
    local named = m:pop()
    if m.kind[named] ~= "dict" or next(named) ~= nil then m:fail "named arguments are not supported" end
    reduce(m)
  end,
  i = refuse_object,
  o = function(m)
    local f = m:pop_mark()[1]
    m:push(is_lost(f) and f or refused(getmetatable(f) == Name and f.name or "an object"))
  end,
  b = function(m) -- attributes of an OrderedDict, such as a state dict's _metadata, are skipped
    local state, top = m:pop(), m:top()
    local build = m.build[top] or getmetatable(top) == Name and top.build
    if build then
      local lost = call_or_lost(m, "__setstate__", build, top, state, m)
      if is_lost(lost) then m.stack[m.n] = lost end
    elseif m.kind[top] ~= "dict" and not is_lost(top) then
      m:fail "attributes must be a dict"
    end
  end,
  p = function(m) m:remember(number_of(m)) end, q = function(m) m:remember(m.cursor:unsigned(1)) end,
  r = function(m) m:remember(m.cursor:unsigned(4)) end,
  ["\148"] = function(m)
    m:remember(m.memo_size)
    m.memo_size = m.memo_size + 1
  end,
  g = function(m) m:recall(number_of(m)) end, h = function(m) m:recall(m.cursor:unsigned(1)) end,
  j = function(m) m:recall(m.cursor:unsigned(4)) end,
  Q = function(m) m:push(unless_lost(m, m.persistent, m:pop())) end,
}

codes["\144"] = codes.e -- ADDITEMS

local MOST_KEYS = 8

-- Returns the path of a table's entry from the whole value: its keys, or the last of them if there are many. parents:
-- {table, key} by inner table.
local function path_of(parents, t, key)
  local keys = {}
  while t do
    if #keys == MOST_KEYS then
      table.insert(keys, 1, "...")
      break
    end
    table.insert(keys, 1, is_lost(key) and "(a key)" or printable_name(tostring(key), 100))
    t, key = unpack(parents[t])
  end
  return table.concat(keys, ".")
end

-- Returns v, the entry of t, in its form in the result; nil if it is lost.
local function final_form(walk, v, t, key)
  v = walk.machine:plain(v)
  if v == NONE then return walk.null end
  for _, lost in ipairs(is_lost(v) and {v} or walk.machine.notes[v] or {}) do
    walk.lost[#walk.lost + 1] = {path = path_of(walk.parents, t, key), lost = lost}
  end
  if is_lost(v) then return nil end
  if walk.kind[v] and not walk.parents[v] then
    walk.parents[v] = {t, key}
    walk.todo[#walk.todo + 1] = v
  end
  return v
end

-- Replaces None by opts.null (without it, a dict lacks the key, and a list has a hole), and removes lost values.
-- Returns the value and the list of lost ones.
local function finish(machine, value)
  local walk = {
    null = machine.cursor.source.opts.null, machine = machine, kind = machine.kind, parents = {}, todo = {}, lost = {},
  }
  value = final_form(walk, value)
  while #walk.todo > 0 do
    local t = table.remove(walk.todo)
    for key, v in pairs(t) do t[key] = final_form(walk, v, t, key) end
  end
  table.sort(walk.lost, function(a, b) return a.path < b.path end)
  return value, walk.lost
end

--- Loads the pickle at the cursor, which it moves. Returns its value, nil if lost, and the list of lost values, by
--- position: {path, lost = the lost value}. names(full name) returns a result of pickle.callable or pickle.opaque, a
--- plain value, or nil to refuse it; persistent(tuple, machine) returns a persistent id's value. dry: only move.
function pickle.load(cursor, names, persistent, dry)
  local m = setmetatable({
    cursor = cursor, names = names, persistent = {call = persistent}, dry = dry, stack = {}, n = 0, memo = {},
    memo_size = 0, -- values that MEMOIZE has numbered
    kind = {}, build = {}, notes = {}, -- keyed by value: its kind, its build function, its lost parts
    storages = {}, by_key = {}, -- results of `persistent`, and their bytes
  }, Machine)
  while true do
    local code = cursor:take(1)
    if code == "." then break end
    local step = codes[code]
    if not step then m:fail("unknown opcode %d at byte %.0f", code:byte(), cursor.at - 1) end
    step(m)
  end
  if dry then return end
  return finish(m, m:pop())
end

return pickle
