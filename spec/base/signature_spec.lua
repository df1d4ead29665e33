-- Signatures: one text says what a function takes. Calls, errors and help follow from it.
local lm = require "luminary"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return (tostring(problem):gsub("^[^:\n]+:%d+: ", ""))
end

local function values(text, ...)
  return {signature.of(text, function(...) return ... end)(...)}
end

describe("a signature", function()
  local x = lm.ones(2)

  it("reads arguments by position and by name, and fills in defaults", function()
    local text = [[f(x: tensor, n: count = 2, mode = "a" | "b", same = n, flag = false)]]
    assert.same({x, 2, "a", 2, false}, values(text, x))
    assert.same({x, 3, "b", 3, false}, values(text, x, 3, "b"))
    assert.same({x, 2, "b", 7, true}, values(text, x, {flag = true, same = 7, mode = "b"}))
    assert.same({x, 5, "b", 5, false}, values(text, {x = x, n = 5, mode = "b"}))
    assert.same({x, 2, "a", 2, false}, values(text, x, nil, nil, nil))
    assert.same({x, 2, "a", 2, false}, values(text, x, {}))
  end)

  it("collects the arguments in braces, which are optional, in a table after the others", function()
    local text = "f(x: tensor, {p = 2, dim: integer, other})"
    assert.same({x, {p = 2}}, values(text, x))
    assert.same({x, {p = 3, dim = 1, other = "o"}}, values(text, x, 3, 1, "o"))
    assert.same({x, {p = 2, dim = -1}}, values(text, x, {dim = -1}))
    assert.same({{a = 1}}, values("f({a = 1})"))
  end)

  it("passes self to methods, and takes the name of the object's class where the text has none", function()
    local init = signature.of("(n: count, {flag = true})", function(self, n, opts) return self, n, opts.flag end)
    local object = {__name = "Thing"}
    assert.same({object, 3, true}, {init(object, 3)})
    assert.equal("Thing: n must be an integer of at least 1, got 0", message(init, object, 0))
    local fill = signature.fields("(a: count, b = a)", function(self) self.sum = self.a + self.b end)
    local filled = {__name = "Filled"}
    fill(filled, 4)
    assert.same({4, 4, 8}, {filled.a, filled.b, filled.sum})
    assert.same({{a = 1, b = 2}}, {signature.by_name("f(a: count, b = 2)", function(all) return all end)(1)})
  end)

  it("accepts nil with a question mark, and false with |false", function()
    assert.same({n = 1, last = 3}, {n = values("f(a: count?)")[1] or 1, last = values("f(a: count?)", 3)[1]})
    assert.same({{m = false}}, values("f({m: number|false = 0.1})", {m = false}))
    assert.equal("f: m must be a number, got true", message(values, "f({m: number|false = 0.1})", {m = true}))
    assert.equal("f: a must be a number, got false", message(values, "f(a: number?)", false))
  end)

  it("copies a default that is a table, and keeps one in parentheses for help alone", function()
    local f = signature.of("f({list: table = {1, 2}, n: count = (all of them)})", function(o) return o end)
    local first = f()
    first.list[1] = 9
    assert.same({{1, 2}}, {f().list})
    assert.is_nil(f().n)
    assert.equal("[{list = {1, 2}, n = all of them}]", signature.declared(f):call())
  end)

  it("keeps the position of an argument of PyTorch that is lacking", function()
    local text = "f(a: count, {b: lacks, c: lacks = 0, d = 1})"
    assert.same({1, {d = 5}}, values(text, 1, nil, 0, 5))
    assert.equal("f: unknown option 'b'; did you mean 'a'?", message(values, text, 1, true))
    assert.equal("f: unknown option 'c'; did you mean 'a'?", message(values, text, 1, {c = 2}))
  end)

  it("takes arguments after * by name alone", function()
    local text = "f(a: count, {b = 1, *, c = 2})"
    assert.same({1, {b = 3, c = 4}}, values(text, 1, 3, {c = 4}))
    assert.equal("f: takes at most 2 arguments, got 3: a, b", message(values, text, 1, 3, 4))
  end)

  it("has one error for each mistake", function()
    local text = [[f(x: tensor, n: count = 2, {mode = "a" | "b", p = 0.5})]]
    for problem, given in pairs {
      ["f: x is missing or nil; expected a tensor"] = {},
      ["f: n must be an integer of at least 1, got 0"] = {x, 0},
      ["f: n must be an integer of at least 1, got string 'a'"] = {x, {n = "a"}},
      ["f: mode must be one of 'a', 'b', got string 'x y'"] = {x, 1, "x y"},
      ["f: p must be a number, got true"] = {x, {p = true}},
      ["f: unknown option 'mod'; did you mean 'mode'?"] = {x, {mod = "a"}},
      ["f: n is passed twice, by position and by name"] = {x, 1, {n = 1}},
      ["f: takes at most 4 arguments, got 5: x, n, mode, p"] = {x, 1, "a", 1, 2},
    } do
      assert.equal(problem, message(values, text, unpack(given)))
    end
  end)

  it("leaves a table to an argument that may be one, unless it names arguments", function()
    assert.same({{weight = x}, {n = 1}}, values("f(state, {n = 1})", {weight = x}))
    assert.same({{weight = x}, {n = 2}}, values("f(state: table, {n = 1})", {weight = x}, 2))
    assert.same({{weight = x}, {n = 2}}, values("f(state: table, {n = 1})", {state = {weight = x}, n = 2}))
    assert.same({{{}}, {{}}}, {values("f({list: list})", {})[1] and {{}}, {values("f({list: list})", {})[1].list}})
    assert.equal("f: unknown option 'weight'; options are x, n", message(values, "f(x: tensor, {n = 1})", {weight = x}))
  end)

  it("names kinds with parameters, which convert values and defaults", function()
    local function text(of) return "multiple of " .. of end
    options.kind("spec_multiple", text, function(who, name, v, of)
      if v % of ~= 0 then options.must_be(who, name, "a " .. text(of), v) end
      return v / of
    end)
    assert.same({2, 5}, values("f(a: spec_multiple(3), b: spec_multiple(2) = 10)", 6))
    assert.equal("f: a must be a multiple of 3, got 7", message(values, "f(a: spec_multiple(3))", 7))
    assert.equal("multiple of 3", options.kind_text "spec_multiple(3)")
  end)

  it("declares the options that one table holds", function()
    local items = '{mode = "a" | "b", n: count|false, gone: lacks, list: integer[] = {1}}'
    assert.same({mode = "a", list = {1}}, options.check("f", nil, items))
    assert.same({mode = "b", n = false, list = {}}, options.check("f", {mode = "b", n = false, list = {}}, items))
    assert.equal("f: unknown option 'kind'; options are list, mode, n", message(options.check, "f", {kind = 1}, items))
    assert.equal("f: n must be an integer of at least 1, got 0", message(options.check, "f", {n = 0}, items))
    assert.equal("f: options must be in one table at the end: {mode = 3}", message(options.check, "f", 3, items))
  end)

  it("bounds numbers and integers, and refuses lists with holes", function()
    local text = "f(a: integer(-2^24, 8), b: finite(0, 2^30) = 1, c: integer[] = {})"
    assert.same({8, 0.5, {1, 2}}, values(text, 8, 0.5, {1, 2}))
    assert.equal("f: a must be an integer from -16777216 to 8, got 9", message(values, text, 9))
    assert.equal("f: a must be an integer from -16777216 to 8, got 1024", message(values, text, 1024))
    for _, b in ipairs {0 / 0, 1 / 0, -1, 2 ^ 31} do
      assert.matches("f: b must be a number from 0 to 2%^30, got ", message(values, text, 1, b))
    end
    local holed = {1, 2, 3, 4, 5, 6, 7}
    holed[2] = nil
    assert.equal("f: c[2] is missing or nil; expected an integer", message(values, text, 1, 1, holed))
    assert.equal("integer from -16777216 to 8", options.kind_text "integer(-2^24, 8)")
  end)

  it("is shown by help, and is what a class's constructor takes", function()
    local call = signature.parse("f(x: tensor, n, m = 2, {p = 1, q, r: lacks})"):call()
    assert.equal("x, n [, m = 2] [, {p = 1, q}]", call)
    local takes = signature.declared(lm.nn.Linear)
    assert.equal("in_features, out_features [, {bias = true, device, dtype}]", takes:call())
    assert.matches("F.glu(x [, dim = -1])", lm.help "F.glu", 1, true)
    assert.is_nil(signature.declared(print))
  end)

  it("is parsed at the first call, so that the wrong text of a developer is an error there", function()
    local f = signature.of("f(a: no_such_kind)", function() end)
    assert.matches("f: a: unknown kind of option string 'no_such_kind'; kinds are", message(f, 1))
  end)
end)
