--- Writes lm_op_<name> in C for ops with operands: it checks tensors, lays them out, allocates results and calls the
--- kernel. The head of op/entries/ops.lua has the language.
return function(context)
  local list, text, formula, fail = context.list, context.text, context.formula, context.fail
  local map = text.map

  -- Counts the occurrences of a name in a text.
  local function count_uses(source, name)
    return select(2, source:gsub("%f[%w_]" .. name .. "%f[^%w_]", ""))
  end

  local function rest_uses(source, name)
    return name == "others" and select(2, source:gsub("[%[ ]%.%.%.", "")) or count_uses(source, name)
  end

  -- Writes one entry's function. letter[name]: the C of a size; bound_by[name]: the first operand with that size;
  -- rest[name]: the C of a list of sizes.
  local Writer = {}
  Writer.__index = Writer

  function Writer:wrong(format, ...) fail(self.entry, format, ...) end
  function Writer:add(format, ...) self.lines[#self.lines + 1] = "  " .. format:format(...) end
  function Writer:need(format, ...) self:add("NEED(" .. format .. ");", ...) end
  -- Adds an error that is returned if a condition holds.
  function Writer:refuse(condition, format, ...)
    self:add("if (%s)", condition)
    self:add("  return " .. format .. ";", ...)
  end

  -- ---- numbers

  -- Returns a number or a condition as C: letters, numeric arguments, numel_of(x), ndim_of(x), given(x), sizes_of(x) as
  -- an array, and functions of op/operand_checks.h.
  function Writer:number(source)
    local ok, tree = pcall(formula.read, source)
    if not ok then self:wrong("%s in '%s'", tree, source) end
    return formula.c(tree, function(part, show)
      local kind = part[1]
      if kind == "name" then
        return self:value(part[2])
      elseif kind == "entry" then
        return ("run.%s[%d]"):format(part[2][2], tonumber(part[3][2]) - 1)
      elseif kind == "?" then
        return ("(%s ? %s : %s)"):format(show(part[2], 2), show(part[3], 2), show(part[4], 2))
      elseif kind == "&&" or kind == "||" then
        return ("(%s %s %s)"):format(show(part[2], 5), kind, show(part[3], 5))
      elseif kind == "!" then
        return "!" .. show(part[2], 13)
      elseif kind == "call" then
        local argument = (part[3][1] or {})[2]
        if part[2] == "numel_of" then return ("run.%s->numel"):format(argument) end
        if part[2] == "given" then return ("(run.%s != NULL)"):format(argument) end
        local ints = (self.entry.args[argument] or {is = {}}).is.of == "ints"
        if part[2] == "ndim_of" then return ("run.%s%s"):format(argument, ints and ".n" or "->ndim") end
        if part[2] == "sizes_of" then return ("run.%s%s"):format(argument, ints and ".v" or "->size") end
        return ("lm_%s(%s)"):format(part[2], table.concat(map(part[3], function(each) return show(each, 0) end), ", "))
      elseif part[3] and part[3][1] == "string" then
        local a = self.entry.args[part[2][2]]
        local choices = list.choices[a.is.choice]
        for i, choice in ipairs(choices) do
          if choice == part[3][2] then
            return ("(run.%s %s %s)"):format(a.name, kind, choices.enum and choices.enum[i] or i - 1)
          end
        end
        self:wrong("'%s' is none of %s's names", part[3][2], a.name)
      end
    end)
  end

  -- Returns a condition as C, in parentheses, for `if (…)`.
  function Writer:condition(source)
    local c = self:number(source)
    return c:find "^%b()$" and c or "(" .. c .. ")"
  end

  -- Returns a name as C: a letter, a list of sizes or an argument.
  function Writer:value(name)
    if self.letter[name] then return self.letter[name] end
    if self.rest[name] then return "&" .. self.rest[name] end
    local a = self.entry.args[name]
    if not a then self:wrong("'%s' is no argument, and no operand binds it", name) end
    return (a.is.of == "ints" and "&run." or "run.") .. name
  end

  -- ---- shapes: "[N, C, in...]" as a list of parts

  -- Parses a shape. A size is {name = "C"}, {name = "C", least = 1} for "C+", {name = "N", batch = true} for "N?",
  -- {name = "N", one = true} for "1|N", {value = "2 * n"}; several are {rest = "in"}.
  function Writer:shape(source)
    local parts, depth, from = {}, 0, 2
    for at = 2, #source do
      local c = source:sub(at, at)
      depth = depth + (c:find "[%(%[]" and 1 or c:find "[%)%]]" and -1 or 0)
      if c == "," and depth == 0 or depth < 0 then
        local part = source:sub(from, at - 1):match "^%s*(.-)%s*$"
        from = at + 1
        local rest, name, mark = part:match "^([%a_]*)%.%.%.$", part:match "^([%a_]%w*)([?+]?)$"
        if part == "*" or rest then
          parts[#parts + 1] = {rest = part == "*" and "batch" or rest == "" and "others" or rest, star = part == "*"}
          parts.lead, parts.at = #parts - 1, #parts
        elseif part:find "^1|" then
          parts[#parts + 1] = {name = part:sub(3), one = true}
        elseif name and not self.entry.args[name] then
          parts[#parts + 1] = {name = name, least = mark == "+" and 1, batch = mark == "?"}
        elseif part ~= "" then
          parts[#parts + 1] = {value = part}
        end
      end
    end
    parts.lead = parts.lead or #parts
    parts.tail = parts.at and #parts - parts.at or 0
    return parts
  end

  local function shape_text(a)
    local c = a.is.of == "ints" and "lm_shape_text(a->NAME.n, a->NAME.v)" or "lm_shape_of(a->NAME)"
    return (c:gsub("NAME", a.name))
  end

  -- Describes an argument that bound sizes, for messages.
  local function binder(a)
    return {" for %s of %%s", a.name, shape_text(a)}
  end

  -- Returns the expected shape of an operand as C for a message; letters bound by others appear as their numbers.
  function Writer:expected(parts)
    local words, values, by, least = "", {}, nil, {}
    local function append_value(format, c, source) -- sets by, the first argument that the size depends on
      for name in source:gmatch "[%a_][%w_]*" do
        local a = self.entry.args[name]
        local number = a and a.is.of == "number" and {" for %s = %%lld", name, "(long long)run." .. name}
        by = by or self.bound_by[name] or number or a and a.is.of == "ints" and binder(a)
      end
      values[#values + 1] = c
      return format
    end
    local function size(part)
      if part.value and part.value:find "^%d+$" then return part.value end
      local c = part.value and self:number(part.value) or self.letter[part.name]
      if c and c:find "[ ?]" then c = "(" .. c .. ")" end
      local word = c and append_value("%lld", "(long long)" .. c, part.value or part.name)
      if part.least then least[#least + 1] = part.name end
      return (part.one and "1 or " or "") .. (word or part.name)
    end
    for i, part in ipairs(parts) do
      local comma = i > 1 and not (i == 2 and parts.at == 1 and self:has_rest(parts[1])) and ", " or ""
      if not part.rest then
        words = words .. comma .. size(part)
      elseif not self:has_rest(part) then
        words = words .. comma .. (part.star and "*" or "...")
      elseif #parts == 1 then
        words = words .. append_value("%s", ("lm_sizes_text(%s)"):format(self:value(part.rest)), part.rest)
      else
        local where = i == 1 and "before" or "after"
        words = words .. append_value("%s", ("lm_sizes_%s(%s)"):format(where, self:value(part.rest)), part.rest)
      end
    end
    if not (#parts == 1 and parts.at and self:has_rest(parts[1])) then words = "[" .. words .. "]" end
    if parts[1] and parts[1].batch and not by then
      words = words .. " or [" .. words:match ", (.*)"
    end
    if #least > 0 then
      words = words .. " with " .. table.concat(least, ", "):gsub(", (%w+)$", " and %1") .. " at least 1"
    end
    if by then
      words = words .. by[1]:format(by[2])
      values[#values + 1] = by[3]
    end
    if #values == 0 then return '"' .. words .. '"' end
    return ('lm_text("%s", %s)'):format(words, table.concat(values, ", "))
  end

  function Writer:has_rest(part)
    local a = self.entry.args[part.rest]
    return not part.star and (self.rest[part.rest] or a) and true
  end

  -- Writes the check of an operand's sizes, and binds its letters. `ndim`, `size(i)`: its C.
  function Writer:bind(o, parts)
    local wrong, bound, is_ints = {}, {}, o.arg.is.of == "ints"
    local ndim = is_ints and ("run.%s.n"):format(o.name) or ("run.%s->ndim"):format(o.name)
    local sizes = is_ints and ("run.%s.v"):format(o.name) or ("run.%s->size"):format(o.name)
    local expected = self:expected(parts)
    local rest = parts.at and parts[parts.at]
    if rest and self:has_rest(rest) then
      wrong[1] = ("!lm_sizes_are(%s, %s, %s, %d, %d)")
        :format(self:value(rest.rest), ndim, sizes, parts.lead, parts.tail)
    elseif rest then
      if parts.lead + parts.tail > 0 then wrong[1] = ("%s < %d"):format(ndim, parts.lead + parts.tail) end
    else
      wrong[1] = ("%s != %d"):format(ndim, #parts)
    end
    for i, part in ipairs(parts) do
      local at = parts.at and i > parts.at and ("%s - %d"):format(ndim, #parts - i + 1) or tostring(i - 1)
      local c = ("%s[%s]"):format(sizes, at)
      local known = part.value and self:number(part.value) or self.letter[part.name]
      if part.one then
        wrong[#wrong + 1] = known and ("(%s != 1 && %s != %s)"):format(c, c, known) or nil
      elseif known then
        wrong[#wrong + 1] = ("%s != %s"):format(c, known)
      elseif not part.rest then
        if part.least then wrong[#wrong + 1] = ("%s < %d"):format(c, part.least) end
        if is_ints and not part.least then wrong[#wrong + 1] = ("%s < 0"):format(c) end
        self.letter[part.name], bound[#bound + 1] = c, part.name
      end
    end
    if #wrong > 0 then
      self:refuse(table.concat(wrong, " || "), 'lm_fail_shape(lm_ops[f.op].name, "%s", %s, %s)', o.name, expected,
        shape_text(o.arg))
    end
    for _, name in ipairs(bound) do
      self.bound_by[name] = binder(o.arg)
      if count_uses(self.all, name) > count_uses(o.text, name) then
        self:add(o.arg.is.optional and "%s = %s;" or "const int64_t %s = %s;", name, self.letter[name])
        if o.arg.is.optional then self.late[#self.late + 1] = name end
        self.letter[name] = name
      end
    end
    if rest and rest.star then
      self:need("lm_frame_broadcast(&f, &batch, run.%s, %d)", o.name, parts.tail)
      self.rest.batch = "batch"
    elseif rest and not self:has_rest(rest) and rest_uses(self.all, rest.rest) > rest_uses(o.text, rest.rest) then
      self.rest[rest.rest], self.bound_by[rest.rest] = rest.rest, binder(o.arg)
      self:add("const lm_ints %s = lm_sizes_between(%s, %s, %d, %d);", rest.rest, ndim, sizes, parts.lead, parts.tail)
    end
  end

  -- ---- words that follow a shape

  local dtypes = {
    bool = "LM_BOOL", uint8 = "LM_U8", int8 = "LM_I8", int32 = "LM_I32", int64 = "LM_I64", float32 = "LM_F32",
    float64 = "LM_F64",
  }
  local checks = {
    float = true, real = true, not_bool = true, float_or_int = true, float_or_int64 = true, index = true, matrix = true,
  }
  local layouts = {preserve = true, strided = true, dense = true, private = true}

  -- Parses the words of an operand or a result into o.
  function Writer:words(source, o)
    local at, all = 1, {}
    while source:find "%S" do
      all[#all + 1] = source:match "^%s*([%w_]+%b())" or source:match "^%s*(%S+)"
      source = source:sub(select(2, source:find(all[#all], 1, true)) + 1)
    end
    local function next_word()
      at = at + 1
      return all[at - 1]
    end
    while all[at] do
      local word = next_word()
      if word == "of" or word == "like" or word == "as" or word == "near" then
        o[word] = next_word()
      elseif word == "stat" or word == "or" then
        local stat = word == "stat" or next_word()
        o[word == "or" and "or_stat" or "stat"] = stat and next_word() == "of" and next_word()
      elseif word == "in" then
        o.into = next_word()
        if o.into == "stat" then o.into = next_word() and ("stat(%s)"):format(next_word()) end
      elseif dtypes[word] then
        o.dtype = dtypes[word]
      elseif checks[word] then
        o.check = word
      elseif layouts[word] or word:find "^layout%(" then
        o.layout = word
      elseif word == "on_host" then
        o.on_host = true
      elseif word == "flat" or word == "rows" then
        o.view = word
      elseif word:find "^columns" then
        o.columns = word:match "%((.*)%)$" or true
      else
        self:wrong("%s: '%s' is not understood", o.name, word)
      end
    end
    return o
  end

  -- ---- operands

  -- Writes the check of a numeric argument's bounds: "at least 1", "above 0", "from 1 to C", "a number".
  function Writer:range(o, source)
    local low, high = source:match "^from (.+) to (.+)$"
    low = low or source:match "^at least (.+)$"
    local above = source:match "^above (.+)$"
    local is_float, values = o.arg.is.c == "double ", {}
    local said = source:gsub("[%a_]+", function(name)
      if not self.letter[name] then return nil end
      values[#values + 1] = ", (long long)" .. self.letter[name]
      return "%lld"
    end)
    if not (low or above or source == "a number") then self:wrong("operand %s: '%s' is no bound", o.name, source) end
    for _, name in ipairs(o.arg.is.pair and {o.name .. "[0]", o.name .. "[1]"} or {o.name}) do
      local value, outside = "run." .. name, {}
      if source == "a number" then outside[1] = ("isnan(%s)"):format(value) end
      for operator, limit in pairs {[">="] = low, ["<="] = high, [">"] = above} do
        local opposite = ({[">="] = "<", ["<="] = ">", [">"] = "<="})[operator]
        outside[#outside + 1] = (is_float and "!(%s %s %s)" or "%s %s %s")
          :format(value, is_float and operator or opposite, self:number(limit))
      end
      table.sort(outside)
      self:refuse(table.concat(outside, " || "), '%s(lm_ops[f.op].name, "%s", %s, %s)',
        is_float and "lm_fail_number" or "lm_fail_int", o.name,
        #values > 0 and ('lm_text("%s"%s)'):format(said, table.concat(values)) or '"' .. said .. '"', value)
    end
  end

  function Writer:dtype_checks(o, shape)
    if o.check == "index" then
      self:need('lm_frame_index(&f, "%s", &run.%s)', o.name, o.name)
    elseif o.check then
      self:need('lm_check_%s(f.op, "%s", a->%s)', o.check, o.name, o.name)
    end
    if o.dtype then
      self:need('lm_check_dtype(f.op, "%s", a->%s, %s)', o.name, o.name, o.dtype)
    elseif o.of and not o.or_stat then
      self:need('lm_check_dtypes(f.op, "%s", a->%s, "%s", a->%s)', o.of, o.of, o.name, o.name)
    elseif o.like and not shape then
      self:need('lm_check_like(f.op, "%s", a->%s, "%s", a->%s)', o.name, o.name, o.like, o.like)
    elseif o.of or o.stat then
      self:need('lm_check_stat(f.op, "%s", a->%s, "%s", a->%s, %s)', o.name, o.name, o.of or o.stat, o.of or o.stat,
        tostring(o.of ~= nil))
    end
    if o.layout == "private" then self:need("lm_frame_private(&f, &run.%s)", o.name) end
  end

  function Writer:operand(row)
    if row:find "^[%w_]+%(" then return self:check(row) end
    local name, rest = row:match "^([%a_][%w_]*): *(.+)$"
    local a = name and self.entry.args[name]
    if not a then self:wrong("operand '%s': 'name: …' of an argument expected", row) end
    local o = {name = name, arg = a, text = rest}
    if a.is.of ~= "tensor" and a.is.of ~= "ints" then return self:range(o, rest) end
    local shape = rest:match "^%b[]"
    self:words(shape and rest:sub(#shape + 1) or rest, o)
    local parts = shape and self:shape(shape)
    local first = #self.lines + 1
    if parts and parts[1] and parts[1].batch then
      if a.is.of == "ints" then
        self:add("lm_frame_batch_sizes(&f, &run.%s, %d);", name, #parts)
      else
        self:need("lm_frame_batch(&f, &run.%s, %d)", name, #parts)
      end
      self.batched = true
    end
    if a.is.of == "tensor" then self:dtype_checks(o, shape) end
    if parts then self:bind(o, parts) end
    if a.is.optional and #self.lines >= first then
      for i = first, #self.lines do self.lines[i] = "  " .. self.lines[i] end
      table.insert(self.lines, first, ("  if (run.%s) {"):format(name))
      self:add("}")
    end
    o.parts = parts
    self.operands[#self.operands + 1] = o
    if a.is.of == "tensor" then self.tensor = self.tensor or name end
  end

  -- Returns C for the memory format after `as`: that of a named operand or result, or a call lm_<name>_format(…).
  function Writer:format(o)
    if not o.as then return "LM_CONTIGUOUS" end
    local name, of = o.as:match "^([%w_]+)%(([%w_]+)%)$"
    local ints = name and self.entry.args[of].is.of == "ints"
    if name then return ("lm_%s_format(%s%s)"):format(name, ints and "&a->" or "run.", of) end
    return ("lm_format_of(%s)"):format(self.made[o.as] or "run." .. o.as)
  end

  -- Returns C for the dtype after `in`: a name, or a call lm_<name>_dtype(…).
  local function converted(o)
    local name, of = o.into:match "^([%w_]+)%(([%w_]+)%)$"
    return name and ("lm_%s_dtype(run.%s)"):format(name, of) or dtypes[o.into]
  end

  -- True if an operand is contiguous, as no word says otherwise.
  function Writer:is_contiguous(name)
    for _, o in ipairs(self.operands) do
      if o.name == name then return not (o.layout or o.as or o.like) end
    end
  end

  function Writer:lay_out(o)
    local run = "&run." .. o.name
    if o.into then
      self:need("lm_frame_convert(&f, %s, %s)", run, converted(o))
    end
    if o.parts and o.parts.at and o.parts[o.parts.at].star then
      self:need("lm_frame_expand(&f, %s, &batch, %d)", run, o.parts.tail)
    end
    if o.like and not self:is_contiguous(o.like) then
      self:need("lm_frame_layout_like(&f, %s, run.%s)", run, o.like)
    elseif o.layout == "dense" then
      self:need("lm_frame_dense(&f, %s)", run)
    elseif o.layout and o.layout:find "%(" then
      local name, others = o.layout:match "%((%w+)(.*)%)"
      self:need("lm_layout_%s(&f, %s%s)", name, run, (others:gsub("[%w_]+", "run.%0")))
    elseif o.layout ~= "strided" and o.layout ~= "private" and o.check ~= "index" then
      self:need("lm_frame_layout(&f, %s, %s)", run, o.layout == "preserve" and "LM_PRESERVE" or self:format(o))
    end
    if o.view then
      local size = o.view == "flat" and "1, (int64_t[]){run.%s->numel}" or "2, lm_matrix_sizes(run.%s).v"
      self:need("lm_frame_reshape(&f, %s, " .. size:format(o.name) .. ")", run)
    end
  end

  -- ---- results

  function Writer:result_dtype(o)
    if o.dtype then return o.dtype end
    if o.stat then return ("lm_stat_dtype(run.%s)"):format(o.stat) end
    local of = o.of or o.like
    if not of then self:wrong("result %s: which dtype?", o.name) end
    local own = ("run.%s->dtype"):format(of)
    return o.or_stat and ("run.%s ? %s : lm_stat_dtype(run.%s)"):format(of, own, o.or_stat) or own
  end

  -- Returns sizes as C: their number and an array.
  function Writer:sizes(parts)
    local function array(from, to)
      local out = {}
      for i = from, to do
        out[#out + 1] = parts[i].value and self:number(parts[i].value) or self:value(parts[i].name)
      end
      return #out > 0 and ("(int64_t[]){%s}"):format(table.concat(out, ", ")) or "NULL"
    end
    if not parts.at then return tostring(#parts), array(1, #parts) end
    self.joins = true
    self:need("lm_sizes_join(&f, %d, %s, %s, %d, %s, &size)", parts.lead, array(1, parts.lead),
      self:value(parts[parts.at].rest), parts.tail, array(parts.at + 1, #parts))
    return "size.n", "size.v"
  end

  function Writer:result(i, row)
    local name, rest = row:match "^([%a_][%w_]*): *(.+)$"
    if not name then self:wrong("result '%s': 'name: …' expected", row) end
    local o = {name = name, i = i - 1}
    local body, condition, empty = rest:match "^(.-) if (.-) else (%b[])$"
    if not body then body, condition = rest:match "^(.-) if (.+)$" end
    body = body or rest
    local shape = body:match "^%b[]"
    self:words(shape and body:sub(#shape + 1) or body, o)
    o.parts = shape and self:shape(shape)
    local dtype = self:result_dtype(o)
    local first = #self.lines + 1
    local allocated = o.into and converted(o) or dtype
    local like = not shape and o.like
    if like and self:is_contiguous(like) then
      self:need("lm_frame_result(&f, %d, %s, %s, run.%s->ndim, run.%s->size, LM_CONTIGUOUS)", o.i, allocated,
        self.device, like, like)
    elseif like then
      self:need("lm_frame_result_like(&f, %d, %s, run.%s)", o.i, allocated, like)
    else
      local n, sizes = self:sizes(o.parts)
      if o.near then
        self:need("lm_frame_result_near(&f, %d, %s, run.%s, %s, %s)", o.i, allocated, o.near, n, sizes)
      else
        self:need("lm_frame_result(&f, %d, %s, %s, %s, %s, %s)", o.i, allocated, self.device, n, sizes, self:format(o))
      end
      if o.columns then
        local when = o.columns ~= true and ("if %s "):format(self:condition(o.columns)) or ""
        self:add("%slm_frame_columns(&f, %d);", when, o.i)
      end
      if o.layout then self:need("lm_layout_%s(&f, &f.slot[%d])", o.layout:match "%((%w+)", o.i) end
      if o.view then
        self:need("lm_frame_reshape(&f, &f.slot[%d], %s)", o.i, o.view == "flat"
          and ("1, (int64_t[]){f.slot[%d]->numel}"):format(o.i) or ("2, lm_matrix_sizes(f.slot[%d]).v"):format(o.i))
      end
    end
    if condition then
      for k = first, #self.lines do self.lines[k] = "  " .. self.lines[k] end
      table.insert(self.lines, first, ("  if %s {"):format(self:condition(condition)))
      self:add(empty and "} else {" or "}")
      if empty then
        local parts = self:shape(empty)
        local n, sizes = self:sizes(parts)
        self:add("  NEED(lm_frame_result(&f, %d, %s, %s, %s, %s, LM_CONTIGUOUS));", o.i, allocated, self.device, n,
          sizes)
        self:add("}")
      end
    end
    o.final = o.into and dtype
    self.results[#self.results + 1] = o
  end

  -- ---- the function

  -- Writes a check such as "windows(kernel_size, OH)", which gets the addresses of unbound letters to compute.
  function Writer:check(source)
    local name, arguments = source:match "^([%w_]+)%((.*)%)$"
    if not name then self:wrong("check '%s': 'name(…)' expected", source) end
    local values, by = {"f.op"}, nil
    for word in arguments:gmatch "[%a_][%w_]*" do
      local a = self.entry.args[word]
      if a and (a.place or a.is.of == "ints") then by = by or binder(a) end
    end
    for argument in arguments:gmatch "[^,%s][^,]*" do
      argument = argument:match "^(.-)%s*$"
      if argument:find "^&" then
        values[#values + 1] = "&run." .. argument:sub(2)
      elseif argument:find "^%u%w*$" and not self.letter[argument] and not self.entry.args[argument] then
        self.outs[#self.outs + 1], self.letter[argument], self.bound_by[argument] = argument, argument, by
        values[#values + 1] = "&" .. argument
      elseif argument:find "%.%.%.$" then
        local rest = argument:sub(1, -4)
        self.out_lists[#self.out_lists + 1], self.rest[rest], self.bound_by[rest] = rest, rest, by
        values[#values + 1] = "&" .. rest
      else
        values[#values + 1] = argument == "nil" and "NULL" or self:number(argument)
      end
    end
    self:need("lm_check_%s(%s)", name, table.concat(values, ", "))
  end

  -- Writes the check that all tensors are on one device.
  function Writer:devices()
    local names = {}
    local hosts = table.concat(self.entry.operands, "\n")
    for _, a in ipairs(self.entry.tensors) do
      if not hosts:find("%f[%w_]" .. a.name .. ": [^\n]*on_host") then names[#names + 1] = "a->" .. a.name end
    end
    if #names > 1 then
      self:need("lm_check_same_device(f.op, %d, (lm_tensor *[]){%s})", #names, table.concat(names, ", "))
    end
  end

  function Writer:body()
    local entry = self.entry
    self:devices()
    for _, row in ipairs(entry.operands) do self:operand(row) end
    if not self.tensor then self:wrong("has no tensor among its operands") end
    self.device = ("run.%s->device"):format(self.tensor)
    local written = {}
    for _, name in ipairs(entry.writes or {}) do
      local when = entry.writes.when and " && run." .. entry.writes.when or ""
      written[#written + 1] = ("if (run.%s%s) "):format(name, when)
      self:add("%sNEED(lm_check_writable(f.op, run.%s));", written[#written], name)
    end
    for i, row in ipairs(entry.makes) do self.made[row:match "^[%w_]+"] = ("f.result[%d]"):format(i - 1) end
    for _, o in ipairs(self.operands) do
      if o.arg.is.of == "tensor" and not self.made[o.as] then self:lay_out(o) end
    end
    for i, row in ipairs(entry.makes) do self:result(i, row) end
    for _, o in ipairs(self.operands) do
      if self.made[o.as] then self:lay_out(o) end
    end
    local slot = entry.compute and ("lm_compute_%s(&f, &run)"):format(entry.compute)
      or ("lm_frame_dispatch%s(&f, %s, &run)"):format(entry.host and "_or_host" or "", self.device)
    if entry.zeros then
      self:need("%s ? lm_frame_zero(&f) : %s", self:number(entry.zeros), slot)
    else
      self:need("%s", slot)
    end
    for i, name in ipairs(entry.writes or {}) do self:add("%slm_bump(run.%s, f.op);", written[i], name) end
    for _, o in ipairs(self.results) do
      if o.final then self:need("lm_frame_convert_result(&f, %d, %s)", o.i, o.final:gsub("run%.", "a->")) end
      if o.parts and o.parts[1] and o.parts[1].batch then self:add("lm_frame_unbatch(&f, %d);", o.i) end
    end
  end

  local function written(entry)
    local self = setmetatable({
      entry = entry, lines = {}, letter = {}, bound_by = {}, rest = {}, late = {}, outs = {}, out_lists = {},
      operands = {}, results = {}, made = {},
    }, Writer)
    local said = {}
    for _, rows in ipairs {entry.operands, entry.makes, {entry.zeros}} do
      for _, row in ipairs(rows) do said[#said + 1] = row end
    end
    self.all = table.concat(said, "\n"):gsub("\n[%w_]+: ", "\n")
    self:body()
    local before = {}
    local letters = {}
    for _, name in ipairs(self.outs) do letters[#letters + 1] = name end
    for _, name in ipairs(self.late) do letters[#letters + 1] = name .. " = 0" end
    if #letters > 0 then before[#before + 1] = ("  int64_t %s;"):format(table.concat(letters, ", ")) end
    if self.rest.batch then before[#before + 1] = "  lm_ints batch = {.n = 0};" end
    if #self.out_lists > 0 then before[#before + 1] = ("  lm_ints %s;"):format(table.concat(self.out_lists, ", ")) end
    if self.joins then before[#before + 1] = "  lm_ints size;" end
    return text.fill([[
lm_status lm_op_$name(${family}const lm_${name}_args *a, lm_tensor **out) {
  lm_${name}_args run = *a;
  $before
  LM_FRAME(f, $id);
  $lines
  return lm_frame_end(&f, out);
}
]], {name = entry.name, family = entry.is_family and "lm_op_id op, " or "",
      id = entry.is_family and "op" or "LM_OP_" .. entry.name, before = map(before, function(l) return l:sub(3) end),
      lines = map(self.lines, function(l) return l:sub(3) end)})
  end

  return {
    functions = function()
      local body = {context.made, '#include "base/message.h"\n#include "op/frame.h"\n#include "op/operand_checks.h"\n'}
      for _, entries in ipairs {list, list.families} do
        for _, entry in ipairs(entries) do
          if entry.operands then body[#body + 1] = written(entry) end
        end
      end
      return table.concat(body, "\n")
    end,
  }
end
