--- Formulas as a book has them, "g * (1 - y * y)", read into trees:
---
---   {"number", "0.5"}  {"name", "x"}  {"nil"}  {"call", "exp", {arguments}}  {"entry", list, "1"}
---   {"-", a}  {"+", a, b}, and so on for - * / == != < <= > >= && ||  {"?", condition, a, b}
---
--- with C's precedence. true and false are the numbers 1 and 0.
local formula = {}

local level = {
  ["||"] = 2, ["&&"] = 3, ["=="] = 4, ["!="] = 4, ["<"] = 5, ["<="] = 5, [">"] = 5, [">="] = 5,
  ["+"] = 6, ["-"] = 6, ["*"] = 7, ["/"] = 7,
}
local UNARY, ATOM = 8, 9

local function tokens(text)
  local list, at = {}, 1
  while true do
    at = text:find("%S", at)
    if not at then break end
    local token = text:match("^%d+%.?%d*[eE][-+]?%d+", at) or text:match("^%d+%.?%d*", at)
      or text:match("^[%a_][%w_]*", at) or text:match("^[=!<>]=", at) or text:match("^&&", at) or text:match("^||", at)
      or text:match("^[-+*/<>?:(),%[%]]", at)
    if not token then error(("'%s' is not understood"):format(text:sub(at, at)), 0) end
    list[#list + 1] = token
    at = at + #token
  end
  return list
end

--- The tree of a formula. Errors are strings without a position.
function formula.read(text)
  local list, at = tokens(text), 1
  local expression
  local function expect(token)
    if list[at] ~= token then error(("'%s' expected, got '%s'"):format(token, list[at] or "the end"), 0) end
    at = at + 1
  end
  local function atom()
    local token = list[at]
    at = at + 1
    if token == "(" then
      local inner = expression()
      expect(")")
      return inner
    elseif token == "-" then
      return {"-", atom()}
    elseif token and token:find("^%d") then
      return {"number", token}
    elseif token == "true" or token == "false" then
      return {"number", token == "true" and "1" or "0"}
    elseif token == "nil" then
      return {"nil"}
    elseif not token or not token:find("^[%a_]") then
      error(("a value expected, got '%s'"):format(token or "the end"), 0)
    end
    local value = {"name", token}
    if list[at] == "(" then
      local arguments = {}
      at = at + 1
      while list[at] ~= ")" do
        arguments[#arguments + 1] = expression()
        if list[at] ~= ")" then expect(",") end
      end
      at = at + 1
      value = {"call", token, arguments}
    end
    if list[at] == "[" then
      value = {"entry", value, list[at + 1]}
      at = at + 2
      expect("]")
    end
    return value
  end
  local function binary(lowest)
    local left = atom()
    while level[list[at]] and level[list[at]] >= lowest do
      local operator = list[at]
      at = at + 1
      left = {operator, left, binary(level[operator] + 1)}
    end
    return left
  end
  function expression()
    local condition = binary(1)
    if list[at] ~= "?" then return condition end
    at = at + 1
    local yes = expression()
    expect(":")
    return {"?", condition, yes, expression()}
  end
  local tree = expression()
  if list[at] then error(("'%s' is left over"):format(list[at]), 0) end
  return tree
end

--- Calls f with each part of a tree, the whole first; f may return false to leave out what is within.
function formula.walk(tree, f)
  if f(tree) == false then return end
  for i = 2, #tree do
    local part = tree[i]
    if tree[1] == "call" and i == 3 then
      for _, argument in ipairs(part) do formula.walk(argument, f) end
    elseif type(part) == "table" then
      formula.walk(part, f)
    end
  end
end

--- Whether a tree is a comparison or made of them, whose value is 1 or 0.
function formula.is_test(tree)
  local place = level[tree[1]]
  return #tree == 3 and place ~= nil and place <= 5
end

--- A tree as C over numbers. leaf(part, show) gives the C of names, calls, entries and nil, and nil for all others.
function formula.c(tree, leaf)
  local show
  local function test(part, lowest)
    if formula.is_test(part) then return show(part, lowest) end
    return show({"!=", part, {"number", "0"}}, lowest)
  end
  function show(part, lowest)
    local text, place = leaf(part, show), ATOM
    local kind = part[1]
    if not text then
      if kind == "number" then
        text = part[2]:find("[.eE]") and ("K(%s)"):format(part[2]) or part[2]
      elseif kind == "?" then
        text, place = ("%s ? %s : %s"):format(test(part[2], 2), show(part[3], 2), show(part[4], 1)), 1
      elseif kind == "&&" or kind == "||" then -- both sides are computed, so that loops vectorize
        text, place = ("(%s) %s (%s)"):format(test(part[2], 0), kind:sub(1, 1), test(part[3], 0)), 1
      elseif kind == "-" and #part == 2 then
        text, place = "-" .. show(part[2], ATOM), UNARY
      else
        place = level[kind]
        text = ("%s %s %s"):format(show(part[2], place), kind, show(part[3], place + 1))
      end
    end
    return place < lowest and "(" .. text .. ")" or text
  end
  return show(tree, 0)
end

return formula
