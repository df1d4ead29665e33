--- Writes C and CUDA code from the entries of src/op/entries/ops.lua and its families:
---
---   luajit src/op/entries/generate.lua SOURCE OUT     SOURCE: this checkout; OUT: the folder for the output
---
--- block_kinds.h         the kinds of lua/luminary/block_kinds.lua, for kernels/blocks.h
--- op_choices.h          choices of arguments
--- op_ids.h              ids of ops and of elementwise kernels
--- op_args_<family>.h    argument structs and run functions of each file in families/
--- op_entries.h          includes these
--- op_entries.c          descriptors, defaults, names
--- op_calls.h            for C: lm_e_<op>(e, …), an op as a call within an expression, and prototypes of C composites
--- op_calls.c            those calls, checks of calls (`needs`), forms and formulas, and their table
--- op_rules.c            the gradients as functions over tensors, and their table
--- op_operands.c         ops that declare their operands: checks, layouts, results, the call of the kernel
--- pointwise_scalars.h       for C and CUDA: one element of each elementwise op and of each fused gradient
--- pointwise_loops_of.inc    the CPU's loops over them, included for each compute type
--- pointwise_table.inc       the CUDA backend's tables of launchers and of rows' names
--- pointwise_rows.cuh, pointwise_launchers.h, pointwise_f32.inc, …      sources of the CUDA kernels
local source, out = arg[1], arg[2]
for _, folder in ipairs {"/lua", "/src/codegen", "/src/op/entries"} do
  package.path = source .. folder .. "/?.lua;" .. package.path
end
local text, formula = require "text", require "formula"
local list, blocks = require "ops", require "luminary.block_kinds"
local fail, line = text.of_entries(source, "op")
local map, fill = text.map, text.fill

-- ---- arguments

-- Kinds of arguments: the LM_ARG_ id, the C type, and the kind in formulas (`of`). `bare` is the value in the argument
-- struct if the argument is left out, `number` the same for the descriptor.
local kinds = {
  ["tensor"] = {id = "T", c = "lm_tensor *", of = "tensor", bare = "NULL"},
  ["tensor?"] = {id = "T_OPT", c = "lm_tensor *", of = "tensor", bare = "NULL", optional = true},
  ["mask"] = {id = "T", c = "lm_tensor *", of = "tensor", bare = "NULL"},
  ["scalar"] = {id = "S", c = "lm_tensor *", of = "tensor", bare = "NULL"},
  ["scalar?"] = {id = "S_OPT", c = "lm_tensor *", of = "tensor", bare = "NULL", optional = true},
  ["tensors"] = {id = "TL", c = "lm_list ", of = "list", bare = "{0, NULL}"},
  ["tensors or nil"] = {id = "TL_HOLES", c = "lm_list ", of = "list", bare = "{0, NULL}"},
  ["number"] = {id = "F", c = "double ", of = "number", required = "F_REQ", bare = "0"},
  ["number?"] = {id = "F_OPT", c = "double ", of = "number", bare = "NAN", number = "NAN", nan = true},
  ["int"] = {id = "I", c = "int64_t ", of = "number", required = "I_REQ", bare = "0"},
  ["int?"] = {id = "I_OPT", c = "int64_t ", of = "number", bare = "LM_NO_INT"},
  ["bool"] = {id = "B", c = "bool ", of = "number", bare = "0"},
  ["pair"] = {id = "I2", c = "int64_t ", of = "pair", pair = true},
  ["pair?"] = {id = "I2", c = "int64_t ", of = "pair", pair = true, bare = "{LM_NO_INT, LM_NO_INT}", number = "-1"},
  ["padding"] = {id = "PAD2", c = "int64_t ", of = "pair", pair = true, choice = "padding"},
  ["dim"] = {id = "DIM", c = "int64_t ", of = "number", bare = "LM_NO_DIM", number = "LM_NO_DIM"},
  ["dim?"] = {id = "DIM_OPT", c = "int64_t ", of = "number", bare = "LM_NO_DIM", number = "LM_NO_DIM"},
  ["dims?"] = {id = "DIMS_OPT", c = "lm_ints ", of = "ints", bare = "{.n = -1}", number = "-1"},
  ["size"] = {id = "SIZE", c = "lm_ints ", of = "ints", bare = "{.n = -1}"},
  ["size?"] = {id = "SIZE_OPT", c = "lm_ints ", of = "ints", bare = "{.n = -1}", number = "-1"},
  ["pads"] = {id = "PADS", c = "lm_pads ", of = "pads", bare = "{.n = -1}"},
  ["dtype?"] = {id = "DTYPE", c = "lm_dtype ", of = "number", bare = "LM_NO_DTYPE", number = "LM_NO_DTYPE"},
  ["device?"] = {id = "DEVICE", c = "lm_device ", of = "number", bare = "LM_NO_DEVICE", number = "LM_NO_DEVICE"},
  ["generator?"] = {id = "GENERATOR", c = "struct lm_generator *", of = "generator", bare = "NULL"},
}
for name in pairs(list.choices) do
  kinds[name] = kinds[name] or {id = "E", c = "int ", of = "number", choice = name}
end

local words = {inf = "INFINITY", ["-inf"] = "-INFINITY", nan = "NAN", ["true"] = "1", ["false"] = "0"}

-- Parses "stride: pair = 1" into a table: its kind, and its default in C for the struct and as the descriptor's number.
local function argument_of(entry, row)
  local name, rest = row:match("^([%a_][%w_]*)(.*)$")
  if not name then fail(entry, "argument '%s': 'name', 'name: kind' or 'name = default' expected", row) end
  local before, default = rest:match("^(.-)%s*=%s*(%S+)$")
  local kind = (before or rest):match("^: (.+)$")
  if rest == "?" then kind = "tensor?" end
  if rest == "" then kind = "tensor" end
  if before == "" then kind = (default == "true" or default == "false") and "bool" or "number" end
  local is = kinds[kind]
  if not is then fail(entry, "argument %s: there is no kind '%s'", name, kind or rest) end
  local a = {name = name, kind = kind, is = is, id = is.id}
  if is.choice and is.id == "E" then
    for i, choice in ipairs(list.choices[kind]) do
      if choice == default then a.value, a.number = tostring(i - 1), tostring(i - 1) end
    end
    if not a.value then fail(entry, "argument %s: '%s' is none of %s's names", name, default or "nothing", kind) end
  elseif default then
    if is.of ~= "number" and not is.pair then fail(entry, "argument %s: a %s has no default", name, kind) end
    a.number = words[default] or default
    if not words[default] and not tonumber(default) then
      fail(entry, "argument %s: the default '%s' is no number", name, default)
    end
    a.value = is.pair and ("{%s, %s}"):format(a.number, a.number) or a.number
  else
    if is.required then a.id = is.required end
    if not is.bare then fail(entry, "argument %s: a %s needs a default", name, kind) end
    a.value, a.number = is.bare, is.number or "0"
  end
  return a
end

local op_kinds = {view = "VIEW", write = "WRITE", new = "NEW", composite = "COMP"}
local casts = {lower = true, keep = true, keep_result = true, keep_gpu = true, banned_gpu = true, widest = true}
local classes = {float = "FLOAT", bool = "BOOL", number = "NUMBER"}

-- Ops, then families of ops, which have ids, argument structs and descriptors too.
local slots = {unpack(list)}
for _, entry in ipairs(list.families) do
  if list[entry.name] then fail(entry, "is an op, too") end
  slots[#slots + 1], entry.is_family, entry.internal = entry, true, true
end

for i, entry in ipairs(slots) do
  entry.id, entry.args, entry.tensors, entry.numbers = i - 1, {}, {}, {}
  if type(entry.results) == "table" then
    entry.makes, entry.results = entry.results, #entry.results - (entry.hidden or 0)
  end
  if (entry.operands == nil) ~= (entry.makes == nil) then
    fail(entry, "operands and a list of results go together")
  end
  for _, rows in ipairs {entry, entry.options or {}} do
    for _, row in ipairs(rows) do
      local a = argument_of(entry, row)
      if entry.args[a.name] then fail(entry, "argument %s is there twice", a.name) end
      entry.args[#entry.args + 1], entry.args[a.name] = a, a
      a.index = #entry.args
      a.field = ("offsetof(lm_%s_args, %s)"):format(entry.name, a.name)
      if a.is.of == "tensor" then
        entry.tensors[#entry.tensors + 1] = a
        a.place = #entry.tensors
      elseif a.kind == "number" or a.kind == "number?" then
        entry.numbers[#entry.numbers + 1] = a
        a.number_position = #entry.numbers - 1
      elseif a.is.of == "list" then
        entry.list = a
      end
      entry.draws = entry.draws or a.kind == "generator?"
    end
  end
  local composite = entry.formula and entry.grad ~= "formula" and "COMP"
  entry.c_kind = entry.elementwise and "POINTWISE" or composite or op_kinds[entry.kind or ""] or "PRIM"
  if entry.kind and (entry.elementwise or entry.formula or not op_kinds[entry.kind]) then
    fail(entry, "kind '%s'", entry.kind)
  end
  if entry.autocast and not casts[entry.autocast] then fail(entry, "there is no autocast '%s'", entry.autocast) end
  local result_dtype = entry.args[entry.result_dtype]
  local known = classes[entry.result_dtype] or result_dtype and result_dtype.place
  if entry.result_dtype and not (entry.elementwise and known) then
    fail(entry, "result_dtype '%s'", entry.result_dtype)
  end
  if entry.takes and not (entry.elementwise and entry.takes == "integers") then
    fail(entry, "takes '%s'", entry.takes)
  end
  if type(entry.grad) == "string" and entry.grad ~= "none" and not (entry.grad == "formula" and entry.formula) then
    fail(entry, "grad is a table, \"none\" or, with a formula, \"formula\"")
  end
  if #entry.args > 16 or #entry.tensors > 12 then fail(entry, "has too many arguments") end
  for _, name in ipairs(entry.writes or {}) do
    if not (entry.args[name] and entry.args[name].place) then fail(entry, "writes: %s is no tensor of it", name) end
  end
  if entry.divisor_arg and not (entry.args[entry.divisor_arg] and entry.args[entry.divisor_arg].place) then
    fail(entry, "divisor_arg: %s is no tensor of it", entry.divisor_arg)
  end
  local by = type(entry.draws) == "string" and (entry.args[entry.draws] or {kind = "nothing"}).kind or "bool"
  if by ~= "bool" and by ~= "number" then fail(entry, "draws: %s is no bool and no number of it", entry.draws) end
  if entry.integral_arg and not (entry.args[entry.integral_arg] or {}).number_position then
    fail(entry, "integral_arg: %s is no number of it", entry.integral_arg)
  end
  if entry.elementwise then -- the core relies on this order
    local order, last = {tensor = 1, number = 2}, 1
    for _, a in ipairs(entry.args) do
      local place = (a.place or a.number_position) and order[a.is.of] or 3
      if place < last then fail(entry, "argument %s: tensors come first here, then numbers, then others", a.name) end
      last = place
    end
    if #entry.tensors > 3 or #entry.numbers > 4 then fail(entry, "has too many arguments for an elementwise op") end
  end
end

-- Returns the gradients of an entry, in the order of their arguments.
local function rows_of(entry)
  local rows = {}
  for names, given in pairs(type(entry.grad) == "table" and entry.grad or {}) do
    local row = {entry = entry, text = given, tensor_args = {}, label = "grad of " .. names}
    for name in names:gmatch("[^,%s]+") do
      local a = entry.args[name]
      if not a or not (a.place or a == entry.list) then fail(entry, "%s: '%s' is no tensor of it", row.label, name) end
      if a == entry.list then row.each = true end
      row.tensor_args[#row.tensor_args + 1] = a.place or 100
    end
    if type(given) == "string" then
      local ok, tree = pcall(formula.read, given)
      if not ok then fail(entry, "%s: %s in '%s'", row.label, tree, given) end
      row.tree = tree
    end
    row.name = entry.name .. "_" .. names:gsub(",%s*", "_")
    rows[#rows + 1] = row
  end
  table.sort(rows, function(a, b) return a.tensor_args[1] < b.tensor_args[1] end)
  return rows
end
for _, entry in ipairs(list) do entry.rows = rows_of(entry) end

local context = {source = source, list = list, text = text, formula = formula, fail = fail, line = line}
context.made = "/* Written by src/op/entries/generate.lua from src/op/entries/families. */"
local pointwise = require "write_elementwise" (context)
local rules = require "write_formulas" (context)
local operands = require "write_operands" (context)
for _, entry in ipairs(list) do
  if entry.kernel and entry.elementwise then fail(entry, "kernel: an elementwise op has none of a family") end
  if entry.kernel then entry.family, entry.family_args = rules.call_of_family(entry) end
end

-- ---- headers

local function sorted_keys(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function choices()
  local body = {context.made, '#pragma once\n\n#include "base/status.h"\n'}
  for _, name in ipairs(sorted_keys(list.choices)) do
    local choice = list.choices[name]
    if choice.enum then
      body[#body + 1] = ("typedef enum lm_%s { %s } lm_%s;"):format(name, table.concat(choice.enum, ", "), name)
    end
    local quoted = table.concat(map(choice, function(one) return '"' .. one .. '"' end), ", ")
    body[#body + 1] = ("LM_API extern const char *const lm_names_%s[]; /* %s, NULL */"):format(name, quoted)
  end
  return table.concat(body, "\n") .. "\n"
end

local function block_kinds()
  local function numbers(row) return "{" .. table.concat(row, ", ") .. "}" end
  local body = {"/* Written by src/op/entries/generate.lua from lua/luminary/block_kinds.lua. For C and CUDA. */\n"
    .. "#pragma once\n"}
  local function add(format, ...) body[#body + 1] = format:format(...) end
  for _, kind in ipairs(blocks) do
    local halves = {"0", "0"} -- the table's bytes, the first lowest
    for i = 1, kind.table and 2 or 0 do
      halves[i] = "0x"
      for k = 8, 1, -1 do halves[i] = ("%s%02x"):format(halves[i], kind.table[(i - 1) * 8 + k]) end
    end
    add("LM_BLOCK_KIND(%s, \"%s\", %d, %d, %d, %d, %d, LM_BLOCK_%s, %s, %s, %s)", kind.name, kind.name, kind.bytes,
      kind.elements, kind.group, kind.zero, kind.flip, kind.scales:upper(), numbers(kind.low), numbers(kind.high),
      numbers(halves))
  end
  local names = map(blocks, function(kind) return ("X(%s)"):format(kind.name) end)
  add("#define LM_BLOCK_KINDS(X) %s", table.concat(names, " "))
  return table.concat(body, "\n") .. "\n"
end

local function ids()
  return context.made .. fill([[

#pragma once

enum { /* lm_op_id */
  $ids
  LM_OP_COUNT,
  $families
  LM_SLOT_COUNT
};

/* Elementwise kernels: those of ops are their LM_OP_ ids; the fused gradients follow. */
enum {
  $kernels
  LM_POINTWISE_KERNELS$none
};
]], {
    ids = map(list, function(entry) return ("LM_OP_%s,"):format(entry.name) end),
    families = map(list.families, function(entry, i)
      return ("LM_OP_%s%s,"):format(entry.name, i == 1 and " = LM_OP_COUNT" or "")
    end),
    kernels = map(pointwise.gradients, function(row, i)
      return ("LM_GRAD_%s%s,"):format(row.name, i == 1 and " = LM_OP_COUNT" or "")
    end), none = #pointwise.gradients == 0 and " = LM_OP_COUNT" or "",
  })
end

-- Returns the entries of each file of families, by its name.
local function by_file()
  local files = {}
  for _, entry in ipairs(slots) do
    local name = entry.file:match "([%w_]+)%.lua$"
    files[name] = files[name] or {}
    table.insert(files[name], entry)
  end
  return files
end

local function structs(entries)
  local body = {context.made, '#pragma once\n\n#include "op/op.h"\n#include "op_choices.h"'}
  for _, entry in ipairs(entries) do
    body[#body + 1] = fill([[

typedef struct lm_${name}_args {
  $fields
} lm_${name}_args;
]], {name = entry.name, fields = map(entry.args, function(a)
      return ("%s%s%s;"):format(a.is.c, a.name, a.is.pair and "[2]" or "")
    end)}):gsub("\n$", "")
    if entry.c_kind ~= "POINTWISE" and entry.c_kind ~= "COMP" and not entry.family then
      body[#body + 1] = ("lm_status lm_op_%s(%sconst lm_%s_args *a, lm_tensor **out);")
        :format(entry.name, entry.is_family and "lm_op_id op, " or "", entry.name)
    end
  end
  return table.concat(body, "\n") .. "\n"
end

-- ---- op_entries.c

local function quoted(s) return '"' .. s:gsub('[\\"]', "\\%0") .. '"' end

-- Returns the named tensor arguments as bits.
local function bits(entry, names)
  local sum = 0
  for _, name in pairs(names) do
    if (entry.args[name] or {}).place then sum = sum + 2 ^ (entry.args[name].place - 1) end
  end
  return sum
end

-- Returns the tensors that have a gradient, in order, as a C string; NULL if the ops of the entry's formula have them.
local function grads(entry)
  if (entry.c_kind == "COMP" or entry.formula) and type(entry.grad) ~= "table" or entry.grad == "formula" then
    return "NULL"
  end
  local all, names = "", {}
  for name in pairs(type(entry.grad) == "table" and entry.grad or {}) do all = all .. " " .. name end
  for _, a in ipairs(entry.args) do
    if (all .. " "):find("[ ,]" .. a.name .. "[ ,]") then names[#names + 1] = a.name end
  end
  return quoted(table.concat(names, ", "))
end

local function descriptor(entry)
  local below = entry.index_below
  local runs = (entry.c_kind == "COMP" or entry.is_family) and "NULL" or "run_" .. entry.name
  return fill([[
    [LM_OP_$name] =
        {
            .name = "$name",
            .help = $help,
            .grads = $grads,
            .kind = LM_$kind, .cast = LM_$cast,
            .result_dtype = LM_RESULT_DTYPE_$result_dtype, .divisor_arg = $divisor_arg,
            .size = sizeof(lm_${name}_args), .outs = $outs, .aux = $aux,
            .nargs = $nargs, .npositional = $npositional, .ntensor = $ntensor, .nnumber = $nnumber,
            .tensor = {$tensors},
            .list = $list, .masks = $masks, .has_precheck = $has_precheck,
            .result_dtype_arg = $result_dtype_arg, .integers = $integers, .integral_arg = $integral_arg,
            .not_bool = $bool, .widens = $widens, .reuses = $reuses,
            .values = LM_VALUES_$values, .index = $index, .index_of = $index_of, .index_dim = $index_dim,
            .writes = $writes, .writes_when = $when, .draws = $draws, .internal = $internal, .slot = LM_OP_$slot,
            .arg = arguments_$name,
            .defaults = &defaults_$name,
            .run = $run, .flops = $flops,
        },
]], {
    name = entry.name, help = quoted(entry.help), grads = grads(entry),
    kind = entry.c_kind, cast = (entry.autocast or "asis"):upper(),
    result_dtype = not entry.result_dtype and "SAME" or classes[entry.result_dtype] or "ARGUMENT",
    result_dtype_arg = entry.args[entry.result_dtype] and entry.args[entry.result_dtype].place - 1 or 0,
    integers = tostring(entry.takes == "integers"),
    integral_arg = entry.integral_arg and entry.args[entry.integral_arg].number_position or -1,
    divisor_arg = entry.divisor_arg and entry.args[entry.divisor_arg].place or 0,
    outs = entry.results or 1, aux = entry.hidden or 0, nargs = #entry.args, npositional = #entry,
    ntensor = #entry.tensors, nnumber = #entry.numbers,
    tensors = table.concat(map(entry.tensors, function(a) return a.field end), ", "),
    list = entry.list and entry.list.field or "-1",
    writes = bits(entry, entry.writes or {}),
    masks = bits(entry, map(entry.tensors, function(a) return a.kind == "mask" and a.name or nil end)),
    widens = entry.widens == true and 65535 or bits(entry, entry.widens or {}),
    reuses = bits(entry, rules.reuses(entry)), internal = tostring(entry.internal == true),
    slot = entry.family or entry.name,
    values = (entry.values or "none"):upper(),
    index = below and entry.args[below[1]].place or 0, index_of = below and entry.args[below[2]].place - 1 or 0,
    index_dim = below and below[3] - 1 or 0,
    has_precheck = tostring((entry.needs or entry.forms) ~= nil), bool = entry.bool and quoted(entry.bool) or "NULL",
    draws = entry.draws == true and "LM_DRAWS" or (entry.args[entry.draws] or {}).index or 0,
    when = entry.writes and entry.writes.when and entry.args[entry.writes.when].field or "-1",
    run = runs, flops = entry.flops and "flops_" .. entry.name or "NULL",
  })
end

local runners = {
  PRIM = "static lm_status run_$name(const void *args, lm_tensor **out) $body\n",
  POINTWISE = [[
static lm_status run_$name(const void *args, lm_tensor **out) { return lm_run_pointwise(LM_OP_$name, args, NULL, out); }
]],
  WRITE = [[
static lm_status write_$name(const void *args, lm_tensor **out) $body
static lm_status run_$name(const void *args, lm_tensor **out) {
  return lm_run_write(LM_OP_$name, args, write_$name, out);
}
]],
  COMP = "",
}

local function runner(entry)
  if entry.is_family then return "" end
  local body = ("{ return lm_op_%s(args, out); }"):format(entry.name)
  if entry.family then
    body = ("{\n  const lm_%s_args *a = args;\n  return lm_op_%s(LM_OP_%s, &(lm_%s_args){%s}, out);\n}"):format(
      entry.name, entry.family, entry.name, entry.family, entry.family_args)
  end
  return fill(runners[entry.c_kind] or runners.PRIM, {name = entry.name, body = body})
end

-- Returns a function that computes an op's floating-point operations from its arguments and results.
local function flops(entry)
  if not entry.flops then
    if entry.family == "product" or entry.compute == "conv" then fail(entry, "flops: expected a formula, got none") end
    return ""
  end
  local function tensor(tree)
    local name = tree[1] == "name" and tree[2]
    if name == "y" then return "out[0]" end
    local a = entry.args[name]
    if not (a and a.is.of == "tensor") then
      fail(entry, "flops: expected a tensor argument or y, got '%s'", name or tree[1])
    end
    return "a->" .. name
  end
  local function emit_c(tree)
    if tree[1] == "number" then return tree[2] end
    if tree[1] == "*" or tree[1] == "/" or tree[1] == "+" then
      return ("(%s %s %s)"):format(emit_c(tree[2]), tree[1], emit_c(tree[3]))
    elseif tree[1] == "call" and tree[2] == "numel_of" then
      return ("(double)%s->numel"):format(tensor(tree[3][1]))
    elseif tree[1] == "entry" and tree[2][2] == "size_of" then
      local x, k, last = tensor(tree[2][3][1]), tree[3], tree[3][1] == "-"
      return last and ("(double)%s->size[%s->ndim - %d]"):format(x, x, k[2][2])
        or ("(double)%s->size[%d]"):format(x, k[2] - 1)
    end
    fail(entry, "flops: expected numbers, * / +, numel_of(x) and size_of(x)[k], got '%s'", tree[1])
  end
  local ok, tree = pcall(formula.read, entry.flops)
  if not ok then fail(entry, "flops: %s", tree) end
  return fill([[
static double flops_$name(const void *args, lm_tensor *const *out) {
  const lm_${name}_args *a = args;
  (void)out;
  return $value;
}
]], {name = entry.name, value = emit_c(tree)})
end

local function tables()
  local body = {context.made .. [[

#include "op/pointwise.h"
#include "op/run.h"
#include "op_entries.h"

]]}
  for _, name in ipairs(sorted_keys(list.choices)) do
    body[#body + 1] = ("const char *const lm_names_%s[] = {%s, NULL};\n"):format(name,
      table.concat(map(list.choices[name], quoted), ", "))
  end
  for _, entry in ipairs(slots) do
    body[#body + 1] = "\n" .. fill([[
static const lm_arg arguments_$name[] = {
    $rows
};
static const lm_${name}_args defaults_$name = {$defaults};
_Static_assert(sizeof defaults_$name <= sizeof(lm_args_union), "room for every op's arguments");
]], {
      name = entry.name,
      rows = map(entry.args, function(a)
        local names = a.is.choice and "lm_names_" .. a.is.choice or "NULL"
        return ("{LM_ARG_%s, %s, \"%s\", %s, %s},"):format(a.id, a.field, a.name, a.number, names)
      end),
      defaults = table.concat(map(entry.args, function(a) return (".%s = %s"):format(a.name, a.value) end), ", "),
    }) .. runner(entry) .. flops(entry)
  end
  body[#body + 1] = "\nconst lm_op lm_ops[LM_SLOT_COUNT] = {\n" .. table.concat(map(slots, descriptor)) .. "};\n"
  body[#body + 1] = "\nconst lm_overload lm_overloads[] = {\n"
  for _, name in ipairs(sorted_keys(list.overloads)) do
    local o = list.overloads[name]
    local function key_as_id(key)
      local op = o[key] or o[1]
      if not list[op] then error(("src/op/entries/ops.lua: overload %s: there is no op '%s'"):format(name, op), 0) end
      return "LM_OP_" .. op
    end
    body[#body + 1] = ("    {%s, %s, %s, %s, %s, %s},\n"):format(quoted(name), o.option and quoted(o.option) or "NULL",
      key_as_id(1), key_as_id "number", key_as_id "tensor", key_as_id "with")
  end
  body[#body + 1] = "    {0},\n};\n"
  body[#body + 1] = fill([[

static const uint16_t op_of_gradient[] = {
    $rows
    0,
};
int lm_pointwise_op(int kernel) { return kernel < LM_OP_COUNT ? kernel : op_of_gradient[kernel - LM_OP_COUNT]; }
int lm_pointwise_divisor(int kernel) { return kernel < LM_OP_COUNT ? lm_ops[kernel].divisor_arg : 0; }

static const uint16_t row_of[LM_POINTWISE_KERNELS] = {
    $indices
};
int lm_pointwise_row(int kernel) { return row_of[kernel]; }
]], {
    indices = pointwise.rows_by_id(),
    rows = map(pointwise.gradients, function(row) return ("LM_OP_%s,"):format(row.entry.name) end),
  })
  return table.concat(body)
end

local function write_file(file, body) text.put(out, file, body) end

local args = by_file()
for name, entries in pairs(args) do write_file(("op_args_%s.h"):format(name), structs(entries)) end
write_file("block_kinds.h", block_kinds())
write_file("op_choices.h", choices())
write_file("op_ids.h", ids())
write_file("op_entries.h", context.made .. "\n#pragma once\n\n" .. table.concat(map(sorted_keys(args), function(name)
  return ('#include "op_args_%s.h"\n'):format(name)
end)) .. '#include "op_ids.h"\n')
write_file("op_entries.c", tables())
write_file("op_calls.h", rules.calls_header())
write_file("op_calls.c", rules.calls())
write_file("op_rules.c", rules.gradients())
write_file("op_operands.c", operands.functions())
write_file("pointwise_scalars.h", pointwise.scalars())
write_file("pointwise_loops_of.inc", pointwise.loops())
write_file("pointwise_table.inc", pointwise.tables())
write_file("pointwise_rows.cuh", pointwise.rows())
write_file("pointwise_launchers.h", pointwise.launchers())
write_file("pointwise_f32.inc", pointwise.definitions("f32", "float", "LM_F32"))
write_file("pointwise_f64.inc", pointwise.definitions("f64", "double", "LM_F64"))
write_file("pointwise_i64.inc", pointwise.definitions("i64", "int64_t", "LM_I64"))
write_file("pointwise_grad_f32.inc", pointwise.gradient_definitions("f32", "float", "LM_F32"))
write_file("pointwise_grad_f64.inc", pointwise.gradient_definitions("f64", "double", "LM_F64"))
