--- Writes the C code of autograd/: ops as calls within expressions, and from those gradients, composites, forms and
--- the checks of calls (`needs`).
return function(context)
  local list, text, formula, fail = context.list, context.text, context.formula, context.fail
  local map, fill = text.map, text.fill

  local function kind_of_c(c)
    if c:find("lm_tensor %*") then return "tensor" end
    if c:find("lm_ints ") then return c:find("%*") and "other" or "ints" end
    if c:find("lm_pads ") then return "pads" end
    if c:find("struct") then return "other" end
    return c:find("lm_list") and "list" or c:find("char %*") and "text" or c:find("%*") and "pair" or "number"
  end

  -- Functions that a formula may call beside ops, by the prototypes of autograd/formulas.h: result and parameters.
  local functions = {}
  local formulas_h = text.read(context.source .. "/src/autograd/formulas.h")
  for result, name, takes in formulas_h:gmatch("\n([%w_ ]+%*?)lm_f_([%w_]+)%(([^)]*)%)") do
    local parameters = {}
    local others, of_e = takes:gsub("^void$", ""):gsub("^struct lm_expr %*e,?", "")
    for parameter in others:gmatch("[^,]+") do parameters[#parameters + 1] = kind_of_c(parameter) end
    functions[name] = {result = kind_of_c(result), takes = parameters, of_e = of_e > 0}
  end

  local operators = {
    ["+"] = "add", ["-"] = "sub", ["*"] = "mul", ["/"] = "div", ["=="] = "eq", ["!="] = "ne",
    ["<"] = "lt", ["<="] = "le", [">"] = "gt", [">="] = "ge", ["&&"] = "logical_and", ["||"] = "logical_or",
    ["@"] = "matmul",
  }
  local constants = {inf = "INFINITY", nan = "NAN"}
  local reserved = {a = true, e = true, r = true, args = true, out = true, whole = true, in_place = true, taken = true}
  local c_types = {tensor = "lm_tensor *const ", number = "const double ", ints = "const lm_ints "}

  local about_own = {size_of = "ints", is_transposed = "number"} -- properties of a gradient's argument

  local function enclosed(c) return c:find("[^%w_.>%-]") and "(" .. c .. ")" or c end

  -- ---- a formula as C over tensors

  -- Writes the trees of an entry's formula `label` as C. `scope.name` returns the C and the kind of names that are not
  -- arguments; `scope.touch` is called for each argument used, with its conditions; `scope.about_own` is for functions
  -- of a gradient's own argument; `scope.pure`: no ops, which need an lm_expr.
  local Emitter = {}
  Emitter.__index = Emitter

  function Emitter:wrong(format, ...) fail(self.entry, "%s: " .. format, self.label, ...) end
  function Emitter:erring() return function(...) self:wrong(...) end end

  -- Returns the number of a choice's name, such as "mean", for argument a.
  function Emitter:chosen(a, name)
    if not (a and a.is.choice) then return nil end
    if a.is.of == "pair" then return name == "same" and "LM_PAD_SAME" or "0" end
    local choices = list.choices[a.is.choice]
    for i, choice in ipairs(choices) do
      if choice == name then return choices.enum and choices.enum[i] or tostring(i - 1) end
    end
    self:wrong("'%s' is none of %s's names", name, a.is.choice)
  end

  -- Returns the C of an argument of an op that a tree calls, or its default.
  function Emitter:passed(a, tree, name)
    local is = a.is
    if not tree then
      if is.of == "tensor" and is.optional then return "NULL" end
      local needed = is.of == "tensor" or is.of == "list" or a.id:find "_REQ$"
      if needed or a.id == "DIM" or a.id == "SIZE" or a.id == "PADS" then
        self:wrong("%s lacks its argument %s", name, a.name)
      end
      return is.pair and "(const int64_t[2])" .. a.value or is.of == "ints" and "(lm_ints)" .. a.value or a.value
    end
    if tree[1] == "string" and is.choice then return self:chosen(a, tree[2]) end
    if tree[1] == "list" and is.of == "pair" then
      local parts = map(tree[2], function(part) return (self:emit(part)) end)
      return ("(const int64_t[2]){%s}"):format(table.concat(parts, ", "))
    end
    local c, of = self:emit(tree)
    if of == "nil" and is.of == "tensor" then return "NULL" end
    if of == is.of then return c end
    if of == "number" and is.of == "tensor" then return ("lm_e_number(e, %s)"):format(c) end
    if of == "number" and is.of == "ints" then return ("(lm_ints){1, {%s}}"):format(c) end
    self:wrong("%s: argument %s is a %s, got a %s", name, a.name, a.kind, of)
  end

  function Emitter:arguments(other, trees)
    if #trees > #other.args then self:wrong("%s has %d arguments, got %d", other.name, #other.args, #trees) end
    return map(other.args, function(a, i) return self:passed(a, trees[i], other.name) end)
  end

  local function initializers(other, values)
    return table.concat(map(other.args, function(a, i) return (".%s = %s"):format(a.name, values[i]) end), ", ")
  end

  function Emitter:call(name, trees, in_place)
    local other = list[name]
    if self.scope.pure then self:wrong("%s is an op, and here are only numbers", name) end
    local values = self:arguments(other, trees)
    if in_place and other.elementwise then
      return ("lm_e_run_form(e, LM_OP_%s, &(lm_%s_args){%s}, in_place)"):format(name, name,
        initializers(other, values)), "tensor"
    end
    return ("lm_e_%s(e, %s)"):format(name, table.concat(values, ", ")), "tensor"
  end

  function Emitter:function_call(name, trees)
    local f = functions[name]
    if not f then self:wrong("'%s' is no op and no function of autograd/formulas.h", name) end
    if #trees ~= #f.takes then self:wrong("%s has %d arguments, got %d", name, #f.takes, #trees) end
    local values = map(trees, function(tree, i)
      local c, of = self:emit(tree)
      if of ~= f.takes[i] and not (of == "nil" and f.takes[i] == "tensor") then
        self:wrong("%s: argument %d is a %s, got a %s", name, i, f.takes[i], of)
      end
      return c
    end)
    if f.of_e then table.insert(values, 1, "e") end
    return ("lm_f_%s(%s)"):format(name, table.concat(values, ", ")), f.result
  end

  function Emitter:of_name(name)
    local a = self.entry.args[name]
    if a then
      if self.scope.touch then self.scope.touch(a, table.concat(self.conditions, " && ")) end
      return "a->" .. name, a.is.of
    end
    local c, of = self.scope.name(name, table.concat(self.conditions, " && "))
    if not c and constants[name] then return constants[name], "number" end
    if not c then self:wrong("there is no '%s'", name) end
    return c, of
  end

  function Emitter:of_list(trees)
    local kind
    local parts = map(trees, function(tree)
      local c, of = self:emit(tree)
      if of ~= (kind or of) or of ~= "tensor" and of ~= "number" then self:wrong("a list holds tensors or numbers") end
      kind = of
      return c
    end)
    local c = table.concat(parts, ", ")
    if kind == "tensor" then return ("((lm_list){%d, (lm_tensor *[]){%s}})"):format(#parts, c), "list" end
    return ("((lm_ints){%d, {%s}})"):format(#parts, #parts == 0 and "0" or c), "ints"
  end

  function Emitter:of_entry(of_what, index)
    local c, of = self:emit(of_what)
    local at, of_index = self:emit(index)
    if of == "pair" then return ("%s[%s - 1]"):format(c, at), "number" end
    if of ~= "ints" or of_index ~= "number" then self:wrong("only sizes, dims and pairs have entries, by number") end
    return ("lm_e_entry(%s, %s)"):format(c, at), "number"
  end

  function Emitter:of_choice(tree)
    local c, of = self:emit(tree[2])
    if of == "tensor" then return self:call("where", {{"c", c, of}, tree[3], tree[4]}) end
    local own = true -- a condition on arguments alone is known when a call is recorded
    formula.walk(tree[2], function(part)
      local later = part[1] == "name" and not self.entry.args[part[2]] or part[1] == "call" and part[2] == "recorded"
      own = own and not later
    end)
    local place = own and #self.conditions + 1 or nil
    local when = enclosed(self.scope.while_recording and self.scope.while_recording(c) or c)
    if place then self.conditions[place] = when end
    local yes, of_yes = self:emit(tree[3])
    if place then self.conditions[place] = "!" .. when end
    local no, of_no = self:emit(tree[4])
    if place then self.conditions[place] = nil end
    if of_yes ~= of_no and of_yes ~= "nil" and of_no ~= "nil" then
      if of_yes == "number" then yes, of_yes = ("lm_e_number(e, %s)"):format(yes), "tensor" end
      if of_no == "number" then no, of_no = ("lm_e_number(e, %s)"):format(no), "tensor" end
      if of_yes ~= of_no then self:wrong("? : between a %s and a %s", of_yes, of_no) end
    end
    return ("(%s ? %s : %s)"):format(enclosed(c), yes, no), of_yes == "nil" and of_no or of_yes,
      of_yes == "nil" or of_no == "nil"
  end

  function Emitter:emit(tree, in_place)
    local kind = tree[1]
    if kind == "number" then return tree[2], "number" end
    if kind == "nil" then return "NULL", "nil" end
    if kind == "c" then return tree[2], tree[3] end -- a part that is already C
    if kind == "string" then return ('"%s"'):format(tree[2]), "text" end
    if kind == "name" then return self:of_name(tree[2]) end
    if kind == "list" then return self:of_list(tree[2]) end
    if kind == "entry" then return self:of_entry(tree[2], tree[3]) end
    if kind == "?" then return self:of_choice(tree) end
    if kind == "call" then
      local name, trees = tree[2], tree[3]
      local a = name == "given" and trees[1] and self.entry.args[trees[1][2]]
      if a and a.is.nan then return ("!isnan(%s)"):format((self:emit(trees[1]))), "number" end
      local of_argument = trees[1] and trees[1][1] == "name" and self.entry.args[trees[1][2]]
      local kept = of_argument and self.scope.about_own and about_own[name]
      if kept then return self.scope.about_own(name, trees, self:erring()), kept end
      if name == "given" and self.scope.given then return self.scope.given(trees, self:erring()), "number" end
      if list[name] then return self:call(name, trees, in_place) end
      return self:function_call(name, trees)
    end
    local c, of = self:emit(tree[2])
    if #tree == 2 then
      if of == "tensor" then return self:call(kind == "!" and "logical_not" or "neg", {{"c", c, of}}) end
      return kind .. enclosed(c), of
    end
    if tree[3][1] == "string" and tree[2][1] == "name" then
      local a = self.entry.args[tree[2][2]]
      local number = self:chosen(a, tree[3][2])
      if number then return ("%s%s %s %s"):format(c, a.is.pair and "[0]" or "", kind, number), "number" end
    end
    local c2, of2 = self:emit(tree[3])
    if of == "number" and of2 == "number" then
      return ("%s%s %s %s"):format(kind == "/" and "(double)" or "", enclosed(c), kind, enclosed(c2)), "number"
    end
    if not operators[kind] then self:wrong("tensors have no operator %s", kind) end
    return self:call(operators[kind], {{"c", c, of}, {"c", c2, of2}})
  end

  function Emitter.new(entry, label, scope)
    return setmetatable({entry = entry, label = label, scope = scope, conditions = {}}, Emitter)
  end

  -- Returns emit(tree), and a function that raises an error about it.
  local function emitter(entry, label, scope)
    local self = Emitter.new(entry, label, scope)
    return function(...) return self:emit(...) end, self:erring()
  end

  local function read_formula(entry, label, given)
    local ok, tree = pcall(formula.read, given)
    if not ok then fail(entry, "%s: %s in '%s'", label, tree, given) end
    return tree
  end

  -- Compiles the lines of a formula, "name = formula" or "formula": returns C that defines the names, and the values of
  -- the others. `root` is passed on with the trees of the latter.
  local function compiled(entry, label, given, scope, root)
    local body, values, known, outside = {}, {}, {}, scope.name
    scope.name = function(name, condition)
      if known[name] then return name, known[name] end
      return outside(name, condition)
    end
    local emit, wrong = emitter(entry, label, scope)
    for _, line in ipairs(type(given) == "table" and given or {given}) do
      local name, rest = line:match("^([%a_][%w_]*) = (.*)$")
      local c, of, may_be_nil = emit(read_formula(entry, label, rest or line), not name and root)
      if name then
        if not c_types[of] then wrong("%s is a %s, and has no name", name, of) end
        if entry.args[name] or outside(name) or known[name] or reserved[name] then
          wrong("'%s' is something else already", name)
        end
        known[name] = of
        body[#body + 1] = context.line(entry, line)
        body[#body + 1] = ("%s%s = %s;"):format(c_types[of], name, c)
      else
        values[#values + 1] = {c = c, of = of, may_be_nil = may_be_nil, line = context.line(entry, line)}
      end
    end
    return body, values
  end

  local rules = {}

  local function is_c_composite(entry) return entry.c_kind == "COMP" and not entry.formula end

  -- Returns the names of tensors that a composite reads in more than one of its ops, views of them included: their
  -- gradient is a sum.
  function rules.reuses(entry)
    if not entry.formula then
      return map(is_c_composite(entry) and entry.tensors or {}, function(a) return a.name end)
    end
    local total, views = {}, {}
    local function add_counts(to, from)
      for name, n in pairs(from) do to[name] = (to[name] or 0) + n end
      return to
    end
    local function count_uses(tree)
      local kind, name = tree[1], tree[2]
      if kind == "name" then return views[name] or {[name] = 1} end
      if kind == "call" and functions[name] and functions[name].result ~= "tensor" and not list[name] then return {} end
      if kind == "?" then
        local found, yes, no = add_counts({}, count_uses(tree[2])), count_uses(tree[3]), count_uses(tree[4])
        for other in pairs(add_counts(add_counts({}, yes), no)) do
          found[other] = (found[other] or 0) + math.max(yes[other] or 0, no[other] or 0)
        end
        return found
      end
      local found = {}
      for _, part in ipairs((kind == "call" or kind == "list") and tree[#tree] or tree) do
        if type(part) == "table" then add_counts(found, count_uses(part)) end
      end
      return found
    end
    local function is_view(tree)
      if tree[1] == "?" then return is_view(tree[3]) or is_view(tree[4]) end
      local called = tree[1] == "call" and list[tree[2]]
      return tree[1] == "name" or tree[1] == "call" and (not called or called.c_kind == "VIEW")
    end
    for _, line in ipairs(type(entry.formula) == "table" and entry.formula or {entry.formula}) do
      local name, rest = line:match "^([%a_][%w_]*) = (.*)$"
      local tree = read_formula(entry, "formula", rest or line)
      if name and is_view(tree) then
        views[name] = count_uses(tree)
      else
        add_counts(total, count_uses(tree))
      end
    end
    local names = {}
    for _, a in ipairs(entry.tensors) do
      if (total[a.name] or 0) > 1 then names[#names + 1] = a.name end
    end
    return names
  end

  -- ---- gradients

  local function compiled_gradient(row)
    local entry, touched, used, sometimes = row.entry, {args = 0, results = 0, list = false}, {}, {}
    local function note_touched(what, bit, condition)
      if condition ~= "" then
        sometimes[#sometimes + 1] = {when = condition, what = what, bit = bit}
      elseif what == "list" then
        touched.list = true
      elseif touched[what] % (2 * bit) < bit then
        touched[what] = touched[what] + bit
      end
    end
    local was_given = {} -- given(x) saves only whether x was given, not x
    local body, values = compiled(entry, row.label, row.text, {
      given = function(trees, wrong)
        local a = trees[1] and entry.args[trees[1][2]]
        if not a or not a.is.optional then wrong("given() is of an argument that may be left out") end
        local c = ("lm_rule_given(r, %d)"):format(a.place - 1)
        was_given[c] = "a->" .. a.name
        return c
      end,
      while_recording = function(c) return (c:gsub("lm_rule_given%(r, %d+%)", was_given)) end,
      touch = function(a, condition)
        used.a = true
        if a.is.of == "tensor" then note_touched("args", 2 ^ (a.place - 1), condition) end
        if a.is.of == "list" then note_touched("list", nil, condition) end
      end,
      name = function(name, condition)
        if row.each and (name == "sizes" or name == "at" or name == "before") then
          return ({sizes = "r->node->list_size", at = "r->at", before = "&r->before"})[name],
            name == "at" and "number" or "other"
        end
        if name == "more" then
          used.more = "r->node->out[0].more"
          return name, "tensor"
        end
        local letter, number = name:match("^([gy])(%d?)$")
        local k = tonumber(number) or 0
        if not letter or k >= (entry.results or 1) + (letter == "y" and entry.hidden or 0) then return nil end
        used[name] = ("r->%s[%d]"):format(letter, k)
        if letter == "y" then note_touched("results", 2 ^ k, condition or "") end
        return name, "tensor"
      end,
      about_own = function(name, trees, wrong)
        local a, own = trees[1] and entry.args[trees[1][2]], false
        for _, place in ipairs(row.tensor_args) do own = own or a and a.place == place end
        if not own then wrong("%s() is of the argument that the formula is for", name) end
        return ("lm_rule_%s(r, %d)"):format(name == "size_of" and "size" or name, a.place - 1)
      end,
    })
    if #values ~= 1 then fail(entry, "%s: one value expected, got %d", row.label, #values) end
    body[#body + 1] = values[1].line
    body[#body + 1] = ("return %s;"):format(values[1].c)
    return body, touched, used, sometimes
  end

  -- ---- output

  local function signature(entry)
    return ("lm_tensor *lm_e_%s(lm_expr *e, %s)"):format(entry.name, table.concat(map(entry.args, function(a)
      return (a.is.pair and "const int64_t *" or a.is.c) .. a.name
    end), ", "))
  end

  function rules.calls_header()
    local composites = {}
    for _, entry in ipairs(list) do
      if is_c_composite(entry) then
        composites[#composites + 1] = ("lm_status lm_composite_%s(const lm_%s_args *a, lm_tensor **out);"):format(
          entry.name, entry.name)
      end
    end
    return fill([[
$made
#pragma once

#include "autograd/autograd.h"
#include "op_entries.h"

typedef struct lm_expr lm_expr;

/* Written in autograd/: an op as others. */
$composites

/* An op within an expression (autograd/expr.h). Undefined where a tensor that it needs is. */
$calls
]], {
      made = context.made, composites = composites,
      calls = map(list, function(entry) return signature(entry) .. ";" end),
    })
  end

  -- ---- needs, forms, composites

  local about = { -- error code, by a function in the condition
    is_float = "DTYPE", is_bool = "DTYPE", dtype_of = "DTYPE", ndim_of = "SHAPE", size_of = "SHAPE",
    same_dtype = "DTYPE", same_size = "SHAPE", numel_of = "SHAPE",
  }

  local function pure_emitter(entry, label) -- emits arguments and functions of them, without ops
    return emitter(entry, label, {pure = true, name = function() end})
  end

  --- Returns the family that computes an op, and its argument struct's fields as C.
  function rules.call_of_family(entry)
    local tree = read_formula(entry, "kernel", entry.kernel)
    local family = tree[1] == "call" and list.families[tree[2]]
    if not family then fail(entry, "kernel: a call of a family expected, got '%s'", entry.kernel) end
    local emitting = Emitter.new(entry, "kernel", {pure = true, name = function() end})
    return family.name, initializers(family, emitting:arguments(family, tree[3]))
  end

  -- Returns {condition, message} as C that returns an error or a warning, with the message's {formula} filled in.
  local function needs_in_c(entry, rows)
    return map(rows or {}, function(row)
      if type(row[1]) ~= "string" or type(row[2]) ~= "string" then
        fail(entry, "needs: {condition, message} expected")
      end
      local emit, wrong = pure_emitter(entry, "needs")
      local tree, code = read_formula(entry, "needs", row[1]), "ARG"
      formula.walk(tree, function(part) code = part[1] == "call" and about[part[2]] or code end)
      local values = {}
      local message = row[2]:gsub("%%", "%%%%"):gsub('["\\]', "\\%0"):gsub("{([^{}]+)}", function(inner)
        local c, of = emit(read_formula(entry, "needs", inner))
        values[#values + 1] = of == "tensor" and ("lm_shape_of(%s)"):format(c)
          or of == "ints" and ("lm_f_text_of(%s)"):format(c) or of == "number" and ("lm_f_shown(%s)"):format(c)
          or of == "text" and c or wrong("a %s has no words: '%s'", of, inner)
        return of == "number" and "%.15g" or "%s"
      end)
      table.insert(values, 1, ('"%s: %s"'):format(entry.name, message))
      local words = table.concat(values, ", ")
      return ("if (!(%s)) %s(%s);"):format(emit(tree), row.warn and "lm_warn" or "return lm_fail",
        row.warn and words or ("LM_E_%s, %s"):format(code, words))
    end)
  end

  -- Returns the formulas of a composite or a form as C that fills `out`.
  local function made_of(entry, label, lines, in_place)
    local body, values = compiled(entry, label, lines, {name = function() end}, in_place)
    local expected = entry.results or 1
    if #values ~= expected then fail(entry, "%s: %d values expected, got %d", label, expected, #values) end
    local nils = 0
    local given = map(values, function(value, i)
      if value.may_be_nil then nils = nils + 2 ^ (i - 1) end
      if value.of ~= "tensor" then fail(entry, "%s: expected a tensor, got a %s", label, value.of) end
      return value.c
    end)
    table.insert(body, 1, "lm_expr_begin(e);")
    body[#body + 1] = values[1].line
    body[#body + 1] = ("return lm_expr_results(e, %d, %d, (lm_tensor *[]){%s}, out);"):format(#given, nils,
      table.concat(given, ", "))
    body[#body + 1] = "#line @here@"
    return body
  end

  local begin = [[
static lm_status ${what}_$name(const void *args$more) {
  const lm_${name}_args *a = args;
  $local
  $body
}
]]
  local expression = {"lm_expr whole, *e = &whole;"}

  local function parts_of(entry)
    local functions_of, fields = {}, {}
    local function add_function(what, more, locals, body)
      functions_of[#functions_of + 1] = fill(begin, {
        what = what, name = entry.name, more = more, ["local"] = locals, body = body,
      })
      fields[#fields + 1] = (".%s = %s_%s"):format(what, what, entry.name)
    end
    if entry.needs then
      local body = needs_in_c(entry, entry.needs)
      body[#body + 1] = "return LM_OK;"
      add_function("needs", "", {}, body)
    end
    if entry.forms then
      local body = {}
      for _, form in ipairs(entry.forms) do
        if not form.when then fail(entry, "forms: {when = condition, formula} expected") end
        body[#body + 1] = ("if (%s) {"):format((pure_emitter(entry, "forms")(read_formula(entry, "forms", form.when))))
        for _, lines in ipairs {needs_in_c(entry, form.needs), made_of(entry, "forms", form, true)} do
          for _, line in ipairs(lines) do body[#body + 1] = line:find("^#") and line or "  " .. line end
        end
        body[#body + 1] = "}"
      end
      body[#body + 1] = "*taken = false;"
      body[#body + 1] = "return LM_OK;"
      table.insert(body, 1, "(void)in_place;")
      add_function("form", ", bool in_place, bool *taken, lm_tensor **out", expression, body)
    end
    if entry.formula then
      add_function("made_of", ", lm_tensor **out", expression, made_of(entry, "formula", entry.formula))
    elseif is_c_composite(entry) then
      add_function("made_of", ", lm_tensor **out", {}, {("return lm_composite_%s(a, out);"):format(entry.name)})
    end
    return table.concat(functions_of), fields
  end

  function rules.calls()
    local body, rows = {context.made .. [[

#include "autograd/composite.h"
#include "autograd/formulas.h"
#include "base/log.h"
#include "autograd/expr.h"

]]}, {}
    for _, entry in ipairs(list) do
      local needed = {}
      for _, a in ipairs(entry.tensors) do
        if not a.is.optional then needed[#needed + 1] = "!" .. a.name end
      end
      if entry.list and entry.list.kind == "tensors" then
        needed[#needed + 1] = ("lm_e_lacks_one(%s)"):format(entry.list.name)
      end
      local parts, fields = parts_of(entry)
      if #fields > 0 then
        rows[#rows + 1] = ("[LM_OP_%s] = {%s},"):format(entry.name, table.concat(fields, ", "))
      end
      body[#body + 1] = fill([[
$signature {
  $check
  const lm_${name}_args a = {$values};
  return lm_e_run(e, LM_OP_$name, &a);
}
]], {
        signature = signature(entry), name = entry.name,
        check = #needed > 0 and {("if (%s) return NULL;"):format(table.concat(needed, " || "))} or {},
        values = table.concat(map(entry.args, function(a)
          return (a.is.pair and ".%s = {%s[0], %s[1]}" or ".%s = %s"):format(a.name, a.name, a.name)
        end), ", "),
      }) .. parts
    end
    body[#body + 1] = fill([[

const lm_composition lm_compositions[LM_OP_COUNT] = {
    $rows
};
]], {rows = rows})
    return table.concat(body)
  end

  local function function_of(row)
    local lines, touched, used, sometimes = compiled_gradient(row)
    local locals = {}
    if used.a then locals[1] = fill("const lm_${name}_args *a = r->args;\n", row.entry):gsub("\n", "") end
    for _, name in ipairs {"g", "g1", "g2", "g3", "more", "y", "y1", "y2", "y3"} do
      if used[name] then locals[#locals + 1] = ("lm_tensor *%s = %s;"):format(name, used[name]) end
    end
    if table.concat(lines):find("%(e,") then table.insert(locals, 1, "lm_expr *e = &r->e;") end
    if #locals == 0 then locals[1] = "(void)r;" end
    local body = fill([[

static lm_tensor *grad_$name(lm_rule *r) {
  $locals
  $lines
  $after
}
]], {name = row.name, locals = locals, lines = lines, after = {"#line @here@"}})
    local masks = {}
    for _, what in ipairs {"args", "results", "list"} do
      local value = touched[what]
      if value and value ~= 0 then masks[#masks + 1] = (".%s = %s"):format(what, tostring(value)) end
    end
    local mask = #masks > 0 and table.concat(masks, ", ") or "0"
    local fields = {
      (".kind = LM_RULE_%s"):format(row.each and "EACH" or #row.tensor_args > 1 and "JOINT"
        or row.kernel and "POINTWISE" or "FORMULA"),
      (".touched = {%s}"):format(mask), ".fn = grad_" .. row.name,
    }
    if #sometimes > 0 then
      body = body .. fill([[

static lm_touched touches_$name(const void *args) {
  const lm_${op}_args *a = args;
  lm_touched t = {$mask};
  $lines
  return t;
}
]], {name = row.name, op = row.entry.name, mask = mask, lines = map(sometimes, function(one)
        if one.what == "list" then return ("if (%s) t.list = true;"):format(one.when) end
        return ("if (%s) t.%s |= %d;"):format(one.when, one.what, one.bit)
      end)})
      fields[#fields + 1] = ".touches = touches_" .. row.name
    end
    if used.more then fields[#fields + 1] = ".takes_more = true" end
    if row.kernel then
      fields[#fields + 1] = (".reads = %d, .kernel = %s"):format(row.kernel.bits, row.kernel.id)
    end
    return body, table.concat(fields, ", ")
  end

  function rules.gradients()
    local body, rows = {context.made .. [[

#include "autograd/formulas.h"
#include "autograd/gradient_rules.h"
]]}, {}
    for _, entry in ipairs(list) do
      local fields = {}
      if entry.grad == "none" or (#entry.tensors == 0 and not entry.list) then fields[1] = ".none = true" end
      if entry.grad == "formula" then fields[1] = ".decompose = true" end
      if entry.c_kind == "COMP" and #entry.rows > 0 then fields[1] = ".record_as_one = true" end
      for _, row in ipairs(entry.rows) do
        local c, row_fields = function_of(row)
        body[#body + 1] = c
        if row.each then fields[#fields + 1] = (".each = true, .list = {%s}"):format(row_fields) end
        for part, place in ipairs(row.each and {} or row.tensor_args) do
          fields[#fields + 1] = (".arg[%d] = {%s, .part = %d}"):format(place - 1, row_fields, part - 1)
        end
      end
      if #fields > 0 then
        rows[#rows + 1] = ("    [LM_OP_%s] = {%s},"):format(entry.name, table.concat(fields, ", "))
      end
    end
    body[#body + 1] = "\nconst lm_rules lm_rule_table[LM_OP_COUNT] = {\n" .. table.concat(rows, "\n") .. "\n};\n"
    return table.concat(body)
  end

  return rules
end
