-- The reader of entries, and what the build writes from those of optimizers and ops.
local entries = require "luminary.base.entry_reader"
local temp = require "spec.support.temp"
local message = require "spec.support.error_of"

local fields = { options = "table", check = "function?", update = "string" }
describe("entries", function()
  it("are a list, by place and by name; one may be like another", function()
    local list, thing = entries.of("thing", fields)
    thing "A" { options = { { "x", 1 }, { "y", 2 } }, update = "a" }
    thing "B" { like = "A", options = { { "y", 3 }, { "z", 4 } } }
    assert.equal(2, #list)
    assert.equal(list[2], list.B)
    assert.equal("a", list.B.update)
    assert.same({ { "x", 1 }, { "y", 3 }, { "z", 4 } }, list.B.options)
    assert.same({ { "x", 1 }, { "y", 2 } }, list.A.options)
  end)

  it("list the arguments after their name, and know their file and line", function()
    local list, word = entries.of("word", { grad = "table|string?" }, true)
    word "A(x, k: int = 1, {flag = true, p: number?})" { grad = "none" }
    local here = debug.getinfo(1, "Sl")
    local where = { file = here.source:sub(2), line = here.currentline - 1 }
    assert.same({
      "x", "k: int = 1", options = { "flag = true", "p: number?" }, name = "A", grad = "none", file = where.file,
      line = where.line,
    }, list.A)
    local function define(head)
      return function(entry) word(head, 1)(entry) end
    end
    define "B({flag = true})" {}
    assert.same({ options = { "flag = true" }, name = "B", file = where.file, line = where.line + 10 }, list.B)
    word "C()" {}
    assert.same({ name = "C", file = where.file, line = where.line + 12 }, list.C)
  end)

  it("are checked where they stand", function()
    local _, thing = entries.of("thing", fields)
    for text, entry in pairs {
      ["entries_spec.lua:%d+: thing C: unknown field 'updat'; fields are check, options, update"] = { updat = "" },
      ["thing C: options must be a table"] = { options = 1, update = "" },
      ["thing C: check must be a function"] = { options = {}, update = "", check = 1 },
      ["thing C: update is missing"] = { options = {} },
      ["thing C: like = 'D': no entry of that name precedes it"] = { like = "D" },
    } do
      assert.matches(text, message(function() thing "C" (entry) end))
    end
    local _, word = entries.of("word", { grad = "table|string?" }, true)
    assert.matches("word A: unknown field '1'; fields are grad", message(function() word "A(x)" { {} } end))
    assert.matches("word A: grad must be a table or a string", message(function() word "A" { grad = 1 } end))
    thing "C" { options = {}, update = "" }
    assert.matches("thing C: is defined twice", message(function() thing "C" { options = {}, update = "" } end))
  end)
end)

describe("the generator of optimizers #lua", function()
  -- Runs it on a copy of the sources with another entry beside those that are there.
  local folder
  local function generate(entry)
    temp.remove(folder)
    os.execute((([[unset LD_PRELOAD; mkdir -p OUT/lua/luminary/base OUT/lua/luminary/optim OUT/src/optim OUT/out &&
      cp -r src/codegen OUT/src/ && cp src/optim/generate.lua OUT/src/optim/ &&
      cp lua/luminary/base/entry_reader.lua OUT/lua/luminary/base/]])
      :gsub("OUT", folder)))
    local file = assert(io.open("lua/luminary/optim/sgd_adam_rules.lua"))
    local text = file:read("*a"):gsub("return list%s*$", function() return entry .. "\nreturn list\n" end)
    file:close()
    temp.write(folder .. "/lua/luminary/optim/sgd_adam_rules.lua", text)
    local pipe = io.popen(("luajit %s/src/optim/generate.lua %s %s/out 2>&1"):format(folder, folder, folder))
    local said = pipe:read("*a")
    pipe:close()
    return said
  end
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  local function with(changes)
    local entry = {
      options = '{{"lr", 1, "positive"}, {"size", 0}}', modes = '{{"size"}}', states = '{{"old", when = "size"}}',
      scalars = "{}", update = "[[\n    p -= lr * g;\n    if (with_size) old = size * g;]]",
      source = '"nobody"', help = '"none"',
    }
    for key, value in pairs(changes) do entry[key] = value end
    local parts = {}
    for key, value in pairs(entry) do parts[#parts + 1] = key .. " = " .. value end
    return 'optimizer "Extra" {' .. table.concat(parts, ", ") .. "}"
  end

  it("writes code that says where its text stands", function()
    assert.equal("", generate(with {}))
    local file = assert(io.open(folder .. "/out/optim_entries.h"))
    local text = file:read("*a")
    file:close()
    assert.matches('#line %d+ "lua/luminary/optim/sgd_adam_rules.lua"\n  p %-= lr %* g;', text)
    assert.matches("enum { LM_EXTRA_SIZE = 1 };", text, 1, true)
  end)

  it("refuses entries that make no sense", function()
    for text, changes in pairs {
      ["optimizer Extra: mode speed is no option"] = { modes = '{{"speed"}}', states = "{}" },
      ["optimizer Extra: mode size: 'speed' is no mode"] = { modes = '{{"size", needs = "speed"}}' },
      ["optimizer Extra: state old: 'speed' is no mode"] = { states = '{{"old", when = "speed"}}' },
      ["optimizer Extra: scalar twice is used by nothing"] = { scalars = '{{"twice", "2 * lr"}}' },
      ["optimizer Extra: 'lr' is there twice"] = { scalars = '{{"lr", "2"}}' },
      ["optimizer Extra: 'size' is a state and a number"] = { states = '{{"size"}}' },
      ["optimizer Extra: update has to stand in the file as it is"] = { update = [["a;\nb;"]] },
    } do
      local said = generate(with(changes))
      assert.matches("lua/luminary/optim/sgd_adam_rules.lua:%d+: ", said)
      assert.matches(text, said, 1, true)
    end
  end)
end)

describe("the generator of ops #lua", function()
  -- Runs it on a copy of the sources with another entry beside those that are there.
  local folder
  local function generate(entry)
    temp.remove(folder)
    os.execute((([[unset LD_PRELOAD; mkdir -p OUT/lua/luminary/base OUT/src/autograd OUT/out &&
      cp -r src/codegen src/op OUT/src/ && cp src/autograd/formulas.h OUT/src/autograd/ &&
      cp lua/luminary/base/entry_reader.lua OUT/lua/luminary/base/]])
      :gsub("OUT", folder)))
    local file = assert(io.open("src/op/entries/ops.lua"))
    local text = file:read("*a"):gsub("return list%s*$", function() return entry .. "\nreturn list\n" end)
    file:close()
    temp.write(folder .. "/src/op/entries/ops.lua", text)
    local pipe = io.popen(("luajit %s/src/op/entries/generate.lua %s %s/out 2>&1"):format(folder, folder, folder))
    local said = pipe:read("*a")
    pipe:close()
    return said
  end
  local function written(name)
    local file = assert(io.open(folder .. "/out/" .. name))
    local text = file:read("*a")
    file:close()
    return text
  end
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  it("writes plain C that says where its text stands", function()
    assert.equal("", generate [[op "halved(x, by: number = 0.5, {mode: reduction = sum, flag = true})" {
      elementwise = "x * by", result_dtype = "float",
      grad = {x = "g * by + 0 * (x > 1 && y > 2 ? g : 0.5)"}, help = "h",
    }]])
    assert.matches([[
typedef struct lm_halved_args {
  lm_tensor *x;
  double by;
  int mode;
  bool flag;
} lm_halved_args;]], written "op_args_ops.h", 1, true)
    assert.matches("lm_halved_args defaults_halved = {.x = NULL, .by = 0.5, .mode = 2, .flag = 1}",
      written "op_entries.c", 1, true)
    assert.matches("/* op halved, elementwise: x * by */\nLM_ELEMENT num lm_of_halved(num x, num by) {\n"
      .. "  return (num)(x * by);", written "pointwise_scalars.h", 1, true)
    assert.matches("g * by + 0 * (((x > 1) & (y > 2)) ? g : K(0.5))", written "pointwise_scalars.h", 1, true)
    assert.matches('lm_tensor %*y = r%->y%[0%];\n#line %d+ "src/op/entries/ops.lua"\n  return lm_e_add%(e, '
      .. "lm_e_mul%(e, g, lm_e_number%(e, a%->by%)%)", written "op_rules.c")
    assert.matches(".touched = {.args = 1, .results = 1}", written "op_rules.c", 1, true)
  end)

  it("saves what a gradient's choice needs", function()
    assert.equal("", generate [[op "either(x, weight?, flag = true)" {
      grad = {x = "mul(g, flag ? x : weight)"}, help = "h",
    }]])
    assert.matches("lm_touched t = {0};\n  if (a->flag) t.args |= 1;\n  if (!a->flag) t.args |= 2;",
      written "op_rules.c", 1, true)
  end)

  it("writes ops that are formulas of others, what they need and their other forms", function()
    assert.equal("", generate [[op "extra(x, weight?, {reduction: reduction = mean, stride: pair = 1})" {
      results = 2,
      needs = {{"ndim_of(x) == 2", "x is {x}, 100% {dtype_of(x)}, stride {{stride[1]}}"},
        {"!is_bool(x)", "x is bool", warn = true}},
      forms = {{when = "reduction == 'none' && !given(weight)", "sigmoid(x)", "relu(x)"}},
      formula = {"n = size_of(x)[-1]", "rows = reshape(x, [n, -1])",
        "reduced(rows / n, reduction)", "stack([x, rows])"},
      help = "h",
    }]])
    local c = written("op_calls.c"):gsub("%s+", " ")
    assert.matches('if (!((lm_f_ndim_of(a->x)) == 2)) return lm_fail(LM_E_SHAPE, '
      .. '"extra: x is %s, 100%% %s, stride {%.15g}"', c, 1, true)
    assert.matches('lm_warn("extra: x is bool")', c, 1, true)
    assert.matches("if ((a->reduction == LM_NONE) && (!(lm_f_given(a->weight)))) {", c, 1, true)
    assert.matches("lm_e_run_form(e, LM_OP_sigmoid, &(lm_sigmoid_args){.x = a->x}, in_place)", c, 1, true)
    assert.matches("const double n = lm_e_entry(lm_f_size_of(a->x), -1);", c, 1, true)
    assert.matches("lm_e_reshape(e, a->x, ((lm_ints){2, {n, -1}}));", c, 1, true)
    assert.matches("(lm_list){2, (lm_tensor *[]){a->x, rows}}", c, 1, true)
    assert.matches("[LM_OP_extra] = {.needs = needs_extra, .form = form_extra, .made_of = made_of_extra}", c, 1, true)
  end)

  it("writes ops of integers alone, and for dtypes of their own", function()
    assert.equal("", generate [[
      op "extra(x: scalar, n: scalar)" {
        elementwise = "(x & ~n) << 1 | !x", takes = "integers", grad = "none", help = "h"}
      op "like(x, n: scalar)" {elementwise = "x + n", result_dtype = "x", grad = "none", help = "h"}]])
    assert.matches("return (num)((x & ~n) << 1 | x == 0);", written "pointwise_scalars.h", 1, true)
    assert.matches("#if defined LM_WHOLE && !defined LM_NARROW\n"
      .. "[^#]*%[%d+%] = LM_KERNEL%(extra, point_extra%),\n#endif", written "pointwise_loops_of.inc")
    assert.matches("lm_pointwise_i64_extra;", written "pointwise_launchers.h", 1, true)
    assert.not_matches("lm_pointwise_f32_extra", written "pointwise_launchers.h", 1, true)
    assert.matches(".integers = true", written "op_entries.c", 1, true)
    assert.matches(".result_dtype = LM_RESULT_DTYPE_ARGUMENT", written "op_entries.c", 1, true)
  end)

  it("writes an op of a family as the family's call under its own name", function()
    assert.equal("", generate [[op "extra(x, d: dims?)" {help = "h", kernel = "reduce(x, d, true, 'mean')"}]])
    local c, h = written "op_entries.c":gsub("%s+", " "), written "op_args_ops.h" .. written "op_args_reductions.h"
    assert.matches("return lm_op_reduce(LM_OP_extra, &(lm_reduce_args){.x = a->x, .dim = a->d, .keepdim = 1, "
      .. ".statistic = LM_STATISTIC_MEAN,", c, 1, true)
    assert.matches('.name = "extra",.-%.slot = LM_OP_reduce', c)
    assert.not_matches("lm_op_extra", h, 1, true)
    assert.matches("lm_status lm_op_reduce(lm_op_id op, const lm_reduce_args *a, lm_tensor **out);", h, 1, true)
  end)

  it("writes ops that declare their operands: checks, layouts, results, and one place that releases", function()
    assert.equal("", generate [[op "extra(x, weight, index?, p: number = 0, hop: int = 1)" {
      operands = {"x: [N, at..., D] float preserve", "weight: [K, D] of x strided", "index: [1|N, K] index",
        "p: from 0 to 1", "hop: from 1 to D", "order(x, OH)"},
      results = {"y: [N, at..., K] of x as x", "sums: [OH, K / 2] stat of x if p > 0"},
      zeros = "numel_of(x) == 0", help = "h"}]])
    local c = written("op_operands.c"):gsub("%s+", " "):match "lm_op_extra.*"
    for _, part in ipairs {
      "NEED(lm_check_same_device(f.op, 3, (lm_tensor *[]){a->x, a->weight, a->index}));",
      'NEED(lm_check_float(f.op, "x", a->x)); if (run.x->ndim < 2) '
        .. 'return lm_fail_shape(lm_ops[f.op].name, "x", "[N, ..., D]", lm_shape_of(a->x));',
      'const int64_t N = run.x->size[0];',
      'NEED(lm_check_dtypes(f.op, "x", a->x, "weight", a->weight)); '
        .. 'if (run.weight->ndim != 2 || run.weight->size[1] != D) return lm_fail_shape(lm_ops[f.op].name, "weight", '
        .. 'lm_text("[K, %lld] for x of %s", (long long)D, lm_shape_of(a->x)), lm_shape_of(a->weight));',
      'if (run.index) { NEED(lm_frame_index(&f, "index", &run.index)); if (run.index->ndim != 2 || '
        .. '(run.index->size[0] != 1 && run.index->size[0] != N) || run.index->size[1] != K)',
      'if (!(run.p <= 1) || !(run.p >= 0)) return lm_fail_number(lm_ops[f.op].name, "p", "from 0 to 1", run.p);',
      'if (run.hop < 1 || run.hop > D) return lm_fail_int(lm_ops[f.op].name, "hop", '
        .. 'lm_text("from 1 to %lld", (long long)D), run.hop);',
      "NEED(lm_check_order(f.op, run.x, &OH)); NEED(lm_frame_layout(&f, &run.x, LM_PRESERVE));",
      "NEED(lm_sizes_join(&f, 1, (int64_t[]){N}, &at, 1, (int64_t[]){K}, &size)); "
        .. "NEED(lm_frame_result(&f, 0, run.x->dtype, run.x->device, size.n, size.v, lm_format_of(run.x)));",
      "if (run.p > 0) { NEED(lm_frame_result(&f, 1, lm_stat_dtype(run.x), run.x->device, 2, "
        .. "(int64_t[]){OH, K / 2}, LM_CONTIGUOUS)); }",
      "NEED(run.x->numel == 0 ? lm_frame_zero(&f) : lm_frame_dispatch(&f, run.x->device, &run)); "
        .. "return lm_frame_end(&f, out); }",
    } do
      assert.matches(part, c, 1, true)
    end
  end)

  it("refuses entries that make no sense, by file, line, op and argument", function()
    local function entry(arguments, rest)
      return ([[op "extra(%s)" {help = "h", %s}]]):format(arguments, rest or "")
    end
    for text, given in pairs {
      ["op extra: argument x: there is no kind 'tensr'"] = entry 'x: tensr',
      ["op extra: argument x is there twice"] = entry 'x, x',
      ["op extra: argument s: a pair needs a default"] = entry 's: pair',
      ["op extra: argument m: 'most' is none of reduction's names"] = entry 'm: reduction = most',
      ["op extra: argument p: the default 'none' is no number"] = entry 'p: number = none',
      ["op extra: there is no autocast 'low'"] = entry('x', 'autocast = "low"'),
      ["op extra: elementwise: there is no tensor or number 'z'"] = entry('x', 'elementwise = "x + z"'),
      ["op extra: elementwise: 'mm' is no function of one element"] = entry('x', 'elementwise = "mm(x, x)"'),
      ["op extra: elementwise: a value expected, got ')' in 'x * )'"] = entry('x', 'elementwise = "x * )"'),
      ["op extra: argument x: tensors come first here"] = entry('p: number, x', 'elementwise = "x * p"'),
      ["op extra: grad of z: 'z' is no tensor of it"] = entry('x', 'grad = {z = "g"}'),
      ["op extra: grad of x: there is no 'w'"] = entry('x', 'grad = {x = "g * w"}'),
      ["op extra: grad of x: 'nosuch' is no op and no function"] = entry('x', 'grad = {x = "nosuch(g)"}'),
      ["op extra: grad of x: mm lacks its argument other"] = entry('x', 'grad = {x = "mm(g)"}'),
      ["op extra: grad of x: transpose: argument dim0 is a dim, got a tensor"] = entry('x',
        'grad = {x = "transpose(g, x, 1)"}'),
      ["op extra: grad of x: size_of() is of the argument"] = entry('x, z',
        'grad = {x = "reshape(g, size_of(z))"}'),
      ["op extra: writes: z is no tensor of it"] = entry('x', 'writes = {"z"}'),
      ["op extra: elementwise: '&' is for ops with takes"] = entry('x', 'elementwise = "x & 1"'),
      ["op extra: result_dtype 'z'"] = entry('x', 'elementwise = "x", result_dtype = "z"'),
      ["op extra: integral_arg: x is no number of it"] = entry('x', 'elementwise = "x", integral_arg = "x"'),
      ["op extra: flops: expected a tensor argument or y, got 'z'"] = entry('x', 'flops = "2 * numel_of(z)"'),
      ["op extra: flops: expected numbers, * / +, numel_of(x) and size_of(x)[k], got 'name'"] = entry('x',
        'flops = "2 * x"'),
      ["op extra: flops: expected a formula, got none"] = entry('x, other', 'kernel = "product(x, other)"'),
      ["op extra: formula: there is no 'z'"] = entry('x', 'formula = "x + z"'),
      ["op extra: formula: 2 values expected, got 1"] = entry('x', 'results = 2, formula = "x + 1"'),
      ["op extra: formula: expected a tensor, got a number"] = entry('x', 'formula = "ndim_of(x)"'),
      ["op extra: formula: ndim_of has 1 arguments, got 0"] = entry('x', 'formula = "x + ndim_of()"'),
      ["op extra: formula: along: argument 2 is a number, got a tensor"] = entry('x', 'formula = "along(x, x, 1)"'),
      ["op extra: formula: 'x' is something else already"] = entry('x', 'formula = {"x = x + 1", "x"}'),
      ["op extra: formula: 'most' is none of reduction's names"] = entry('x, r: reduction = sum',
        [[formula = "r == 'most' ? x : -x"]]),
      ["op extra: formula: tensors have no operator &"] = entry('x', 'formula = "x & x"'),
      ["op extra: needs: exp is an op, and here are only numbers"] = entry('x', 'needs = {{"exp(x)", "m"}}'),
      ["op extra: needs: {condition, message} expected"] = entry('x', 'needs = {{"true"}}'),
      ["op extra: forms: {when = condition, formula} expected"] = entry('x', 'forms = {{"x"}}'),
      ["op extra: kernel: a call of a family expected, got 'mm(x, x)'"] = entry('x', 'kernel = "mm(x, x)"'),
      ["op extra: kernel: reduce lacks its argument x"] = entry('x', 'kernel = "reduce()"'),
      ["op extra: kernel: an elementwise op has none"] = entry('x', 'elementwise = "x", kernel = "reduce(x)"'),
      ["op extra: grad is a table"] = entry('x', 'grad = "formula"'),
      ["op extra: operands and a list of results go together"] = entry('x', 'operands = {"x: float"}'),
      ["op extra: operand 'z: float'"] = entry('x', 'operands = {"z: float"}, results = {"y: like x"}'),
      ["op extra: x: 'loose' is not understood"] = entry('x', 'operands = {"x: loose"}, results = {"y: like x"}'),
      ["op extra: 'K' is no argument, and no operand binds it"] = entry('x',
        'operands = {"x: [N] float"}, results = {"y: [K] of x"}'),
      ["op extra: operand p: 'small' is no bound"] = entry('x, p: number',
        'operands = {"x: float", "p: small"}, results = {"y: like x"}'),
      ["op extra: result y: which dtype?"] = entry('x', 'operands = {"x: [N] float"}, results = {"y: [N]"}'),
      ["op extra: draws: x is no bool and no number of it"] = entry('x', 'draws = "x"'),
      ["op extra: divisor_arg: z is no tensor of it"] = entry('x', 'elementwise = "x", divisor_arg = "z"'),
    } do
      local said = generate(given)
      assert.matches("src/op/entries/ops.lua:%d+: ", said)
      assert.matches(text, said, 1, true)
    end
  end)
end)
