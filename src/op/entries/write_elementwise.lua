--- Writes C and CUDA code of elementwise ops: forward formulas and fused gradients.
local functions = { -- functions of one element; files that include pointwise_scalars.h define them as macros
  exp = true, expm1 = true, log = true, log1p = true, sqrt = true, sin = true, cos = true, tanh = true, erf = true,
  pow = true, abs = true, floor = true, ceil = true, round = true, trunc = true, floor_divide = true,
  trunc_divide = true, remainder = true, isnan = true, exp2 = true, log2 = true, log10 = true, tan = true, asin = true,
  acos = true, atan = true, asinh = true, acosh = true, atanh = true, erfc = true, erfinv = true, atan2 = true,
  hypot = true, copysign = true, fmod = true, gcd = true, lgamma = true, digamma = true, polygamma = true,
  igamma = true, igammac = true, gamma_slope = true, shift_left = true, shift_right = true,
}

-- Exactness of a function in loops of a narrow integer type, whose arithmetic is C's int: "exact" is the number itself,
-- "wraps" is equal once stored, nil may differ. For exact arguments.
local narrow_functions = {
  floor = "exact", ceil = "exact", round = "exact", trunc = "exact", isnan = "exact", remainder = "exact",
  fmod = "exact", abs = "wraps", floor_divide = "wraps", trunc_divide = "wraps", shift_left = "wraps",
  shift_right = "exact",
}
local keeps = {["+"] = true, ["-"] = true, ["*"] = true, ["~"] = true, ["&"] = true, ["|"] = true, ["^"] = true}
local compares = {
  ["=="] = true, ["!="] = true, ["<"] = true, ["<="] = true, [">"] = true, [">="] = true, ["&&"] = true, ["||"] = true,
  ["!"] = true,
}

-- Functions whose result is exact in a few instructions unless the quotient is large.
local near = {fmod = true, remainder = true, floor_divide = true}

local bitwise = {["&"] = true, ["|"] = true, ["^"] = true, ["~"] = true, ["<<"] = true, [">>"] = true}
local misplaced = {["nil"] = "nil", entry = "[]", list = "[]", string = "''"}

return function(context)
  local list, text, formula, fail = context.list, context.text, context.formula, context.fail
  local map, fill = text.map, text.fill

  -- Returns a formula over numbers as C. `reads` collects its names.
  local function scalar(entry, label, tree, reads)
    local function leaf(part, show)
      if part[1] == "name" then
        reads[part[2]] = true
        return part[2]
      elseif part[1] == "call" then
        local name, given = part[2], {}
        local other = list[name]
        if not functions[name] and not (other and other.elementwise) then
          fail(entry, "%s: '%s' is no function of one element", label, name)
        end
        for i, argument in ipairs(part[3]) do
          given[i] = show(argument, 0)
          if argument[1] ~= "name" and argument[1] ~= "call" then given[i] = ("(num)(%s)"):format(given[i]) end
        end
        if functions[name] then return ("%s(%s)"):format(name:upper(), table.concat(given, ", ")) end
        for i = #given + 1, #other.tensors + #other.numbers do
          local a = other.args[i]
          if a.place then fail(entry, "%s: %s lacks its argument %s", label, name, a.name) end
          given[i] = ("K(%s)"):format(a.number)
        end
        return ("lm_of_%s(%s)"):format(name, table.concat(given, ", "))
      elseif misplaced[part[1]] then
        fail(entry, "%s: %s has no place among numbers", label, misplaced[part[1]])
      elseif bitwise[part[1]] and entry.takes ~= "integers" then
        fail(entry, "%s: '%s' is for ops with takes = \"integers\"", label, part[1])
      end
    end
    return formula.c(tree, leaf)
  end

  local function in_narrow(tree)
    local kind, least = tree[1], "exact"
    if kind == "name" then return "exact" end
    if kind == "number" then
      local value = tonumber(tree[2])
      return value and value % 1 == 0 and value <= 127 and "exact" or nil
    end
    for _, part in ipairs(kind == "call" and tree[3] or {unpack(tree, 2)}) do
      local is = in_narrow(part)
      if not is then return nil end
      if is == "wraps" then least = is end
    end
    if keeps[kind] then return "wraps" end
    if kind == "?" then return in_narrow(tree[2]) == "exact" and least or nil end
    if least ~= "exact" then return nil end
    if kind ~= "call" then return compares[kind] and "exact" or nil end
    local other = list[tree[2]]
    if functions[tree[2]] then return narrow_functions[tree[2]] end
    return other and other.elementwise and in_narrow(formula.read(other.elementwise)) or nil
  end

  -- Returns the inputs that a fused gradient may read, in this order, each with its bit in lm_row.reads.
  local function inputs(entry)
    local found = {{name = "g", bit = 0}}
    for _, a in ipairs(entry.tensors) do found[#found + 1] = {name = a.name, bit = a.place} end
    if not entry.args.y then found[#found + 1] = {name = "y", bit = 7} end
    return found
  end

  -- Kernels: name, formula in C, tensors and numbers read.
  local forwards, gradients = {}, {}
  for _, entry in ipairs(list) do
    if entry.elementwise then
      local reads = {}
      local ok, tree = pcall(formula.read, entry.elementwise)
      if not ok then fail(entry, "elementwise: %s in '%s'", tree, entry.elementwise) end
      local c = scalar(entry, "elementwise", tree, reads)
      for name in pairs(reads) do
        local a = entry.args[name]
        if not a or not (a.place or a.number_position) then
          fail(entry, "elementwise: there is no tensor or number '%s'", name)
        end
      end
      forwards[#forwards + 1] = {
        entry = entry, name = entry.name, id = "LM_OP_" .. entry.name, c = c,
        text = entry.elementwise, label = "elementwise",
        tensors = map(entry.tensors, function(a) return a.name end), numbers = entry.numbers,
        real = entry.result_dtype == "float", integers = entry.takes == "integers", test = entry.result_dtype == "bool",
        narrow = entry.result_dtype ~= "float" and in_narrow(tree) ~= nil,
      }
    end
  end

  local function is_fused(row)
    local alone = #row.tensor_args == 1
    local fused = row.tree and row.entry.elementwise and alone and #row.tree > 1 and row.tree[1] ~= "name"
    if not fused then return false end
    formula.walk(row.tree, function(part)
      if part[1] == "call" and not (list[part[2]] and list[part[2]].elementwise) then fused = false end
    end)
    return fused
  end

  for _, entry in ipairs(list) do
    for _, row in ipairs(entry.rows) do
      if is_fused(row) then
        local reads, bits, tensors = {}, 0, {}
        local c = scalar(entry, row.label, row.tree, reads)
        for _, input in ipairs(inputs(entry)) do
          if reads[input.name] then
            tensors[#tensors + 1], bits = input.name, bits + 2 ^ input.bit
            reads[input.name] = nil
          end
        end
        local numbers = {}
        for _, a in ipairs(entry.numbers) do
          if reads[a.name] then numbers[#numbers + 1], reads[a.name] = a, nil end
        end
        if next(reads) then fail(entry, "%s: there is no '%s'", row.label, next(reads)) end
        if #tensors == 0 then fail(entry, "%s: reads no tensor", row.label) end
        row.kernel = {
          entry = entry, name = row.name, id = "LM_GRAD_" .. row.name, c = c, text = row.text, label = row.label,
          bits = bits,
          tensors = tensors, numbers = numbers, real = true,
        }
        gradients[#gradients + 1] = row.kernel
      end
    end
  end

  -- Kernels of any compute type first, then those of integers, then those of float and double alone.
  local in_order = {}
  for _, fits in ipairs {
    function(kernel) return not kernel.real and not kernel.integers and kernel.narrow end,
    function(kernel) return not kernel.real and not kernel.integers and not kernel.narrow end,
    function(kernel) return kernel.integers and kernel.narrow end,
    function(kernel) return kernel.integers and not kernel.narrow end,
    function(kernel) return kernel.real end,
  } do
    for _, kernels in ipairs {forwards, gradients} do
      for _, kernel in ipairs(kernels) do
        if fits(kernel) then in_order[#in_order + 1] = kernel end
      end
    end
  end
  for i, kernel in ipairs(in_order) do kernel.row = i - 1 end

  local function has_variant(kernel, suffix)
    if suffix == "i64" then return not kernel.real end
    return not kernel.integers
  end

  local function of(kernel) return (kernel.bits and "lm_of_grad_" or "lm_of_") .. kernel.name end
  local function short(kernel) return (kernel.bits and "grad_" or "") .. kernel.name end

  -- Return each kernel's lines, those of some compute types between #if of LM_REAL, LM_WHOLE or LM_NARROW and #endif.
  local function guard_of(kernel)
    if kernel.real then return "#ifdef LM_REAL" end
    if kernel.integers and kernel.narrow then return "#ifdef LM_WHOLE" end
    if kernel.integers then return "#if defined LM_WHOLE && !defined LM_NARROW" end
    return not kernel.narrow and "#ifndef LM_NARROW" or nil
  end
  local function guarded(lines_of)
    local body, within = {}, nil
    for _, kernel in ipairs(in_order) do
      local guard = guard_of(kernel)
      if guard ~= within then
        if within then body[#body + 1] = "#endif" end
        body[#body + 1], within = guard, guard
      end
      for _, line in ipairs(lines_of(kernel)) do body[#body + 1] = line end
    end
    body[#body + 1] = within and "#endif"
    return table.concat(body, "\n") .. "\n"
  end

  local pointwise = {gradients = gradients}

  function pointwise.scalars()
    return context.made .. [[

/* One element of each elementwise op, and of each gradient of one as a single formula. Whoever includes this has a type
 * num, the compute type, K(c) for a number of that type, and the functions in capitals; LM_ELEMENT begins a function.
 * LM_REAL: num is float or double; LM_WHOLE: it is an integer, LM_NARROW: a narrower one than int64_t. */
]] .. guarded(function(kernel)
      local parameters = {}
      for i, name in ipairs(kernel.tensors) do parameters[i] = "num " .. name end
      for _, a in ipairs(kernel.numbers) do parameters[#parameters + 1] = "num " .. a.name end
      return { -- a comment, not #line, so that moving an entry recompiles no kernels
        "", ("/* op %s, %s: %s */"):format(kernel.entry.name, kernel.label, kernel.text),
        ("LM_ELEMENT num %s(%s) {"):format(of(kernel), table.concat(parameters, ", ")),
        ("  return (num)(%s);"):format(kernel.c), "}",
      }
    end)
  end

  local function loop_of(kernel)
    local has_near = near[kernel.text:match "^([%w_]+)%(x, other%)$"]
    return (has_near and "LM_LOOP_WHERE_NEAR(%s)" or "point_%s"):format(short(kernel))
  end

  function pointwise.loops()
    local loops = guarded(function(kernel)
      local pointers, values = {}, {}
      for i, name in ipairs(kernel.tensors) do
        pointers[i], values[i] = ("*%s = in_[%d]"):format(name, i - 1), name .. "[i_]"
      end
      local lines = {
        "", ("LM_LOOP void point_%s(void *out_, const void *const *in_, const void *numbers_, int64_t n_) {")
          :format(short(kernel)),
        ("  const num %s;"):format(table.concat(pointers, ", ")),
      }
      for _, a in ipairs(kernel.numbers) do
        lines[#lines + 1] = ("  const num %s = ((const num *)numbers_)[%d];"):format(a.name, a.number_position)
        values[#values + 1] = a.name
      end
      if #kernel.numbers == 0 then lines[#lines + 1] = "  (void)numbers_;" end
      local function loop(of_values)
        lines[#lines + 1] = "#pragma omp simd"
        lines[#lines + 1] = ("  for (int64_t i_ = 0; i_ < n_; i_++) result_[i_] = %s(%s);")
          :format(of(kernel), table.concat(of_values, ", "))
      end
      lines[#lines + 1] = "  num *result_ = out_;"
      lines[#lines + 1] = "  n_ &= -(int64_t)LM_LANES;"
      -- A factor of 1 is left out, since narrow integers have no vector product.
      local factor = kernel.narrow and #kernel.numbers == 1 and tonumber(kernel.numbers[1].number) == 1
      if factor then
        local with_one = map(values, function(value) return value == kernel.numbers[1].name and "1" or value end)
        lines[#lines + 1] = "#ifdef LM_NARROW"
        lines[#lines + 1] = ("  if (%s == 1) {"):format(kernel.numbers[1].name)
        loop(with_one)
        lines[#lines + 1] = "    return;"
        lines[#lines + 1] = "  }"
        lines[#lines + 1] = "#endif"
      end
      loop(values)
      lines[#lines + 1] = "}"
      lines[#lines + 1] = ("LM_AFTER_LOOP(%s, %s, %d)"):format(short(kernel), loop_of(kernel), #kernel.tensors)
      return lines
    end)
    return context.made .. [[

/* Elements depend on no others, even where the result is one of the inputs, which is what `omp simd` asserts. Whoever
 * includes this has LM_LOOP, which begins a loop, LM_AFTER_LOOP(op, loop, inputs), which follows it, and
 * LM_KERNEL(op, loop), the loop that stands in the table. */
]] .. loops .. ("\nstatic lm_pointwise_loop *const kernels[%d] = {\n"):format(#in_order) .. guarded(function(kernel)
      return {("    [%d] = LM_KERNEL(%s, %s),"):format(kernel.row, short(kernel), loop_of(kernel))}
    end) .. "};\n"
  end

  --- Returns the rows of that table as C, by kernel.
  function pointwise.rows_by_id()
    return map(in_order, function(kernel) return ("[%s] = %d,"):format(kernel.id, kernel.row) end)
  end

  local function launcher(kernel, suffix) return ("lm_pointwise_%s_%s"):format(suffix, short(kernel)) end

  function pointwise.tables()
    local body = {context.made, "/* By kernel; NULL where the compute type has no such op. */"}
    for _, suffix in ipairs {"f32", "f64", "i64"} do
      body[#body + 1] = ("static lm_pointwise_launcher *const %s[LM_POINTWISE_KERNELS] = {"):format(suffix)
      for _, kernel in ipairs(in_order) do
        if has_variant(kernel, suffix) then
          body[#body + 1] = ("    [%s] = %s,"):format(kernel.id, launcher(kernel, suffix))
        end
      end
      body[#body + 1] = "};"
    end
    body[#body + 1] = "\nstatic const char *const names[LM_POINTWISE_KERNELS] = {"
    for _, kernel in ipairs(in_order) do
      body[#body + 1] = ('    [%s] = "%s",'):format(kernel.id, short(kernel))
    end
    body[#body + 1] = "};"
    return table.concat(body, "\n") .. "\n"
  end

  function pointwise.launchers()
    local body = {context.made}
    for _, suffix in ipairs {"f32", "f64", "i64"} do
      for _, kernel in ipairs(in_order) do
        local name = has_variant(kernel, suffix) and launcher(kernel, suffix)
        if name then body[#body + 1] = ("LM_C lm_pointwise_launcher %s;"):format(name) end
      end
    end
    return table.concat(body, "\n") .. "\n"
  end

  function pointwise.rows()
    local body = {context.made}
    for _, kernel in ipairs(in_order) do
      local values = {}
      for i = 1, #kernel.tensors do values[i] = ("in_[%d]"):format(i - 1) end
      for _, a in ipairs(kernel.numbers) do values[#values + 1] = ("p_.of[%d]"):format(a.number_position) end
      local divides = not kernel.bits and kernel.entry.divisor_arg -- integers alone: 1 / 2 is 0
      body[#body + 1] = fill([[

template <class num>
struct lm_row_$name {
  enum { NIN = $nin, TEST = $test, DIVIDES = $divides };
  static LM_DEVICE num of(const num *in_, const lm_numbers<num> &$numbers) {
    return $of<num>($values);
  }
};]] .. "\n", {
        name = short(kernel), nin = #kernel.tensors, test = kernel.test and 1 or 0,
        divides = divides and ("(num)1 / 2 == 0 ? %d : 0"):format(kernel.entry.args[divides].place) or 0,
        numbers = #kernel.numbers > 0 and "p_" or "", of = of(kernel), values = values,
      }):gsub("\n$", "")
    end
    return table.concat(body, "\n") .. "\n"
  end

  local function definitions(of_them, suffix, num, dtype)
    local body = {context.made}
    for _, kernel in ipairs(of_them) do
      if has_variant(kernel, suffix) then
        body[#body + 1] = ("LM_POINTWISE_LAUNCHER(%s, lm_row_%s, %s, %s)")
          :format(launcher(kernel, suffix), short(kernel), num, dtype)
      end
    end
    return table.concat(body, "\n") .. "\n"
  end
  function pointwise.definitions(...) return definitions(forwards, ...) end
  function pointwise.gradient_definitions(...) return definitions(gradients, ...) end

  return pointwise
end
