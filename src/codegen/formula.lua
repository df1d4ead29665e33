--- Parses formulas in mathematical notation, "g * (1 - y * y)", into trees:
---
---   {"number", "0.5"}  {"name", "x"}  {"nil"}  {"string", "mean"}  {"call", "exp", {arguments}}
---   {"list", {parts}}  {"entry", list, index}  {"-", a}, also ! ~  {"?", condition, a, b}
---   {"+", a, b}, and so on for - * / == != < <= > >= && || & | ^ << >>
---
--- Operators have C's precedence. a @ b is the matrix product, with the precedence of *; x.T calls transpose on the
--- last two dims. true and false are the numbers 1 and 0. A list is [1, 2], its first entry list[1].
local formula = {}

local level = {
  ["||"] = 2, ["&&"] = 3, ["|"] = 4, ["^"] = 5, ["&"] = 6, ["=="] = 7, ["!="] = 7, ["<"] = 8, ["<="] = 8, [">"] = 8,
  [">="] = 8, ["<<"] = 9, [">>"] = 9, ["+"] = 10, ["-"] = 10, ["*"] = 11, ["/"] = 11,
  ["@"] = 11,
}
local UNARY, ATOM = 12, 13
local tests = {
  ["!"] = true, ["||"] = true, ["&&"] = true, ["=="] = true, ["!="] = true, ["<"] = true, ["<="] = true, [">"] = true,
  [">="] = true,
}
local unary = {["-"] = true, ["!"] = true, ["~"] = true}

local function tokens(text)
  local list, at = {}, 1
  while true do
    at = text:find("%S", at)
    if not at then break end
    local token = text:match("^%d+%.?%d*[eE][-+]?%d+", at) or text:match("^%d+%.?%d*", at)
      or text:match("^[%a_][%w_]*", at) or text:match("^'[^']*'", at) or text:match("^[=!<>]=", at)
      or text:match("^&&", at) or text:match("^||", at) or text:match("^<<", at) or text:match("^>>", at)
      or text:match("^%.T", at) or text:match("^[-+*/@<>?:(),%[%]!~&|^]", at)
    if not token then error(("'%s' is not understood"):format(text:sub(at, at)), 0) end
    list[#list + 1] = token
    at = at + #token
  end
  return list
end

--- Returns the tree of a formula. Errors are strings without a position.
function formula.read(text)
  local list, at = tokens(text), 1
  local expression, atom
  local function expect(token)
    if list[at] ~= token then error(("'%s' expected, got '%s'"):format(token, list[at] or "the end"), 0) end
    at = at + 1
  end
  local function parts_to(last)
    local parts = {}
    while list[at] ~= last do
      parts[#parts + 1] = expression()
      if list[at] ~= last then expect(",") end
    end
    at = at + 1
    return parts
  end
  local function primary()
    local token = list[at]
    at = at + 1
    if token == "(" then
      local inner = expression()
      expect(")")
      return inner
    elseif unary[token] then
      return {token, atom()}
    elseif token == "[" then
      return {"list", parts_to("]")}
    elseif token and token:find("^'") then
      return {"string", token:sub(2, -2)}
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
      at = at + 1
      value = {"call", token, parts_to(")")}
    end
    if list[at] == "[" then
      at = at + 1
      value = {"entry", value, expression()}
      expect("]")
    end
    return value
  end
  function atom()
    local value = primary()
    while list[at] == ".T" do
      at = at + 1
      value = {"call", "transpose", {value, {"number", "-2"}, {"number", "-1"}}}
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

--- Calls f with each part of a tree, the complete tree first.
function formula.walk(tree, f)
  if type(tree[1]) == "string" then f(tree) end
  for _, part in ipairs(tree) do
    if type(part) == "table" then formula.walk(part, f) end
  end
end

--- Returns true if a tree is a comparison or a logical operation, whose value is 1 or 0.
function formula.is_test(tree)
  return tests[tree[1]] ~= nil
end

--- Returns a tree as C over numbers. leaf(part, show) returns the C of names, calls and parts that are not numeric.
function formula.c(tree, leaf)
  local show
  local function emit_test(part, lowest)
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
        text, place = ("%s ? %s : %s"):format(emit_test(part[2], 2), show(part[3], 2), show(part[4], 1)), 1
      elseif kind == "&&" or kind == "||" then -- both sides are computed, so that loops vectorize
        text, place = ("(%s) %s (%s)"):format(emit_test(part[2], 0), kind:sub(1, 1), emit_test(part[3], 0)), 1
      elseif kind == "!" then
        return show({"==", part[2], {"number", "0"}}, lowest)
      elseif unary[kind] and #part == 2 then
        text, place = kind .. show(part[2], ATOM), UNARY
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
