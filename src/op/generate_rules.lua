--- The part of op/generate.lua for autograd/: ops as calls within expressions, and gradients made of those.
return function(context)
  local list, text, fail = context.list, context.text, context.fail
  local map, fill = text.map, text.fill

  -- What a formula may call beside ops: name -> "tensor" or "number".
  local functions = {}
  local formulas_h = text.read(context.source .. "/src/autograd/formulas.h")
  for result, name in formulas_h:gmatch("\n([%w_]+ ?%*?)lm_f_([%w_]+)%(") do
    functions[name] = result:find("%*") and "tensor" or "number"
  end

  local operators = {
    ["+"] = "add", ["-"] = "sub", ["*"] = "mul", ["/"] = "div", ["=="] = "eq", ["!="] = "ne",
    ["<"] = "lt", ["<="] = "le", [">"] = "gt", [">="] = "ge", ["&&"] = "logical_and", ["||"] = "logical_or",
  }

  -- ---- a formula as C over tensors

  local function compiled(row)
    local entry, touched = row.entry, {args = 0, results = 0, list = false}
    local used, conditions, sometimes, while_recording = {}, {}, {}, {}
    local function wrong(...) fail(entry, "%s: %s", row.label, (...):format(select(2, ...))) end
    local function touch(what, bit)
      if #conditions > 0 then
        sometimes[#sometimes + 1] = {when = table.concat(conditions, " && "), what = what, bit = bit}
      elseif what == "list" then
        touched.list = true
      elseif touched[what] % (2 * bit) < bit then
        touched[what] = touched[what] + bit
      end
    end
    local emit

    local function is_optional(a) return a.is.optional end
    -- An argument of an op's call from a tree, or its default.
    local function passed(a, tree, name)
      local is = a.is
      if not tree then
        if is.of == "tensor" and is_optional(a) then return "NULL" end
        if is.of == "tensor" or is.of == "list" or a.id:find("_REQ$") or a.id == "DIM" or a.id == "SIZE" then
          wrong("%s lacks its argument %s", name, a.name)
        end
        return is.pair and "(const int64_t[2])" .. a.value or is.of == "ints" and "(lm_ints)" .. a.value or a.value
      end
      local c, of = emit(tree)
      if of == "nil" and is.of == "tensor" then return "NULL" end
      if of == is.of then return c end
      if of == "number" and is.of == "tensor" then return ("lm_e_number(e, %s)"):format(c) end
      if of == "number" and is.of == "ints" then return ("(lm_ints){1, {%s}}"):format(c) end
      wrong("%s: argument %s is a %s, got a %s", name, a.name, a.kind, of)
    end
    local function call(name, trees)
      local other = list[name]
      if #trees > #other.args then wrong("%s has %d arguments, got %d", name, #other.args, #trees) end
      return ("lm_e_%s(e, %s)"):format(name, table.concat(map(other.args, function(a, i)
        return passed(a, trees[i], name)
      end), ", ")), "tensor"
    end
    local function within(c) return c:find("[^%w_.>%-]") and "(" .. c .. ")" or c end

    local function of_name(name)
      local a = entry.args[name]
      if a then
        used.a = true
        if a.is.of == "tensor" then touch("args", 2 ^ (a.place - 1)) end
        if a.is.of == "list" then touch("list") end
        return "a->" .. name, a.is.of
      elseif row.each and (name == "sizes" or name == "at" or name == "before") then
        return ({sizes = "r->node->list_size", at = "r->at", before = "&r->before"})[name], "other"
      end
      local letter, number = name:match("^([gy])(%d?)$")
      local k = tonumber(number) or 0
      if not letter or k >= (entry.results or 1) + (letter == "y" and entry.hidden or 0) then
        wrong("there is no '%s'", name)
      end
      used[name] = ("r->%s[%d]"):format(letter, k)
      if letter == "y" then touch("results", 2 ^ k) end
      return name, "tensor"
    end

    function emit(tree)
      local kind = tree[1]
      if kind == "number" then return tree[2], "number" end
      if kind == "nil" then return "NULL", "nil" end
      if kind == "name" then return of_name(tree[2]) end
      if kind == "entry" then
        local c, of = emit(tree[2])
        if of ~= "ints" then wrong("only sizes have entries") end
        return ("%s.v[%d]"):format(c, tree[3] - 1), "number"
      end
      if kind == "call" then
        local name, trees = tree[2], tree[3]
        if name == "size_of" then
          local a = trees[1] and entry.args[trees[1][2]]
          local own = false
          for _, place in ipairs(row.places) do own = own or a and a.place == place end
          if not own then wrong("size_of() is of the argument that the formula is for") end
          return ("lm_rule_size(r, %d)"):format(a.place - 1), "ints"
        end
        if name == "given" then
          local a = trees[1] and entry.args[trees[1][2]]
          if not a or not a.is.optional then wrong("given() is of an argument that may be left out") end
          local c = ("lm_rule_given(r, %d)"):format(a.place - 1)
          while_recording[c] = "a->" .. a.name
          return c, "number"
        end
        if list[name] then return call(name, trees) end
        if not functions[name] then wrong("'%s' is no op and no function of autograd/formulas.h", name) end
        return ("lm_f_%s(%s)"):format(name, table.concat({"e", unpack(map(trees, function(part)
          return (emit(part))
        end))}, ", ")), functions[name]
      end
      if kind == "?" then
        local c, of = emit(tree[2])
        if of == "tensor" then return call("where", {tree[2], tree[3], tree[4]}) end
        conditions[#conditions + 1] = while_recording[c] or within(c)
        local yes, of_yes = emit(tree[3])
        conditions[#conditions] = "!" .. conditions[#conditions]
        local no, of_no = emit(tree[4])
        conditions[#conditions] = nil
        return ("(%s ? %s : %s)"):format(within(c), yes, no), of_yes == "nil" and of_no or of_yes
      end
      local c, of = emit(tree[2])
      if #tree == 2 then
        if of == "tensor" then return call("neg", {tree[2]}) end
        return "-" .. within(c), of
      end
      local c2, of2 = emit(tree[3])
      if of == "number" and of2 == "number" then return ("%s %s %s"):format(within(c), kind, within(c2)), "number" end
      return call(operators[kind], {tree[2], tree[3]})
    end

    local c = emit(row.tree)
    return c, touched, used, sometimes
  end

  -- ---- what is written

  local rules = {}

  local function is_composite(entry) return entry.c_kind == "COMP" or entry.grad == "composite" end
  local function signature(entry)
    return ("lm_tensor *lm_e_%s(lm_expr *e, %s)"):format(entry.name, table.concat(map(entry.args, function(a)
      return (a.is.pair and "const int64_t *" or a.is.c) .. a.name
    end), ", "))
  end

  function rules.calls_header()
    local composites, calls = {}, {}
    for _, entry in ipairs(list) do
      calls[#calls + 1] = signature(entry) .. ";"
      if is_composite(entry) then
        composites[#composites + 1] = ("lm_status lm_composite_%s(const lm_%s_args *a, lm_tensor **out);"):format(
          entry.name, entry.name)
      end
    end
    return fill([[
$made
#ifndef LM_OP_CALLS_H
#define LM_OP_CALLS_H

#include "autograd/autograd.h"

typedef struct lm_expr lm_expr;

/* Written in autograd/: an op as others. */
$composites

/* An op within an expression (autograd/expr.h). Undefined where a tensor that it needs is. */
$calls

#endif
]], {made = context.made, composites = composites, calls = calls})
  end

  function rules.calls()
    local body = {context.made .. "\n#include \"autograd/composite.h\"\n#include \"autograd/expr.h\"\n"}
    for _, entry in ipairs(list) do
      local needed = {}
      for _, a in ipairs(entry.tensors) do
        if not a.is.optional then needed[#needed + 1] = "!" .. a.name end
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
      })
    end
    local trampolines, rows = {}, {}
    for _, entry in ipairs(list) do
      if is_composite(entry) then
        trampolines[#trampolines + 1] = fill([[
static lm_status run_$name(const void *args, lm_tensor **out) { return lm_composite_$name(args, out); }
]], entry):gsub("\n", "")
        rows[#rows + 1] = ("[LM_OP_%s] = run_%s,"):format(entry.name, entry.name)
      end
    end
    body[#body + 1] = fill([[
$trampolines
static const lm_composite_fn composites[LM_OP_COUNT] = {
    $rows
};
lm_composite_fn lm_composite_of(lm_op_id op) { return composites[op]; }
]], {trampolines = trampolines, rows = rows})
    return table.concat(body, "\n")
  end

  function rules.names()
    return context.made .. "\n" .. table.concat(map(list, function(entry)
      return fill("#undef $name\n#define $name(...) LM_NAMED($name, __VA_ARGS__)\n", entry)
    end))
  end

  local function function_of(row)
    local c, touched, used, sometimes = compiled(row)
    local locals = {}
    if used.a then locals[1] = fill("const lm_${name}_args *a = r->args;\n", row.entry):gsub("\n", "") end
    for _, name in ipairs {"g", "g1", "g2", "y", "y1", "y2"} do
      if used[name] then locals[#locals + 1] = ("lm_tensor *%s = %s;"):format(name, used[name]) end
    end
    if c:find("%(e,") then table.insert(locals, 1, "lm_expr *e = &r->e;") end
    if #locals == 0 then locals[1] = "(void)r;" end
    local body = fill([[

static lm_tensor *grad_$name(lm_rule *r) {
  $locals
  $line
  return $value;
  $after
}
]], {
      name = row.name, locals = locals, line = {context.line(row.entry, row.text)}, value = c,
      after = {"#line @here@"},
    })
    local masks = {}
    for _, what in ipairs {"args", "results", "list"} do
      local value = touched[what]
      if value and value ~= 0 then masks[#masks + 1] = (".%s = %s"):format(what, tostring(value)) end
    end
    local mask = #masks > 0 and table.concat(masks, ", ") or "0"
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
    end
    local fields = {
      (".kind = LM_RULE_%s"):format(row.each and "EACH" or #row.places > 1 and "JOINT" or row.kernel and "POINT" or
        "FORMULA"),
      (".touched = {%s}"):format(mask), ".fn = grad_" .. row.name,
    }
    if #sometimes > 0 then fields[#fields + 1] = ".touches = touches_" .. row.name end
    if row.kernel then
      fields[#fields + 1] = (".reads = %d, .kernel = %s"):format(row.kernel.bits, row.kernel.id)
    end
    return body, table.concat(fields, ", ")
  end

  function rules.gradients()
    local body, rows = {context.made .. [[

#include "autograd/formulas.h"
#include "autograd/rules.h"
]]}, {}
    for _, entry in ipairs(list) do
      local fields = {}
      if entry.grad == "none" or (#entry.tensors == 0 and not entry.list) then fields[1] = ".none = true" end
      if entry.grad == "composite" then fields[1] = ".decompose = true" end
      local lines = {}
      for _, row in ipairs(entry.rows) do
        local c, row_fields = function_of(row)
        body[#body + 1] = c
        for part, place in ipairs(row.places) do
          if row.each then
            fields[#fields + 1] = ".each = true"
            lines[#lines + 1] = ("        .list = {%s},"):format(row_fields)
          else
            lines[#lines + 1] = ("        .arg[%d] = {%s%s},"):format(place - 1, row_fields,
              part > 1 and (", .part = %d"):format(part - 1) or "")
          end
        end
      end
      if #fields + #lines > 0 then
        local own = table.concat(fields, ", ")
        rows[#rows + 1] = ("    [LM_OP_%s] = {%s"):format(entry.name, #lines == 0 and own .. "}," or own == "" and "" or
          own .. ",")
        for _, line in ipairs(lines) do rows[#rows + 1] = line end
        if #lines > 0 then rows[#rows + 1] = "    }," end
      end
    end
    body[#body + 1] = "\nconst lm_rules lm_rule_table[LM_OP_COUNT] = {\n" .. table.concat(rows, "\n") .. "\n};\n"
    return table.concat(body)
  end

  return rules
end
