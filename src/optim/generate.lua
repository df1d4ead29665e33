--- Writes C and CUDA code from the optimizer entries of lua/luminary/optim/sgd_adam_rules.lua:
---
---   luajit src/optim/generate.lua SOURCE OUT     SOURCE: this checkout; OUT: the folder for the output
---
--- optim_entries.h     for every device: coefficients, made of options and the step's number, and one element's update
--- optim_entries.c     descriptors for the core and the binding: names of options and states, modes
--- optim_loops_of.inc  the CPU's loops, included for each dtype
--- optim_entries.cuh   sources of the CUDA kernels
---
--- An entry that is `like` another shares its code; such entries are a family.
local source, out = arg[1], arg[2]
package.path = source .. "/lua/?.lua;" .. source .. "/src/codegen/?.lua;" .. package.path
local text = require "text"
local list = require "luminary.optim.sgd_adam_rules"
local fail, line_of = text.of_entries(source, "optimizer")
local map, fill = text.map, text.fill

-- ---- entries as the code needs them

local function number(v) return type(v) == "boolean" and (v and "1" or "0") or ("%.17g"):format(v) end

-- Returns the options as single numbers; a pair becomes two with names of their own.
local function numbers_of(entry)
  local numbers = {}
  for _, row in ipairs(entry.options) do
    local name, default = row[1], row[2]
    for i, value in ipairs(type(default) == "table" and default or {default}) do
      numbers[#numbers + 1] = {
        name = row.as and row.as[i] or name, option = name, value = number(value), fixed = row.fixed or false,
      }
    end
  end
  return numbers
end

-- Builds the family of an entry: everything its code is written from.
local function family_of(entry)
  local _, stands = line_of(entry, entry.update)
  if not stands then fail(entry, "update has to stand in the file as it is, in [[ ]]") end
  local f = {
    entry = entry, lower = entry.name:lower(), upper = entry.name:upper(), numbers = numbers_of(entry),
    carried = entry.carried or {}, modes = entry.modes, states = entry.states, bit = {},
  }
  for i, mode in ipairs(f.modes) do f.bit[mode[1]] = 2 ^ (i - 1) end
  for _, mode in ipairs(f.modes) do
    if mode.needs and not f.bit[mode.needs] then fail(entry, "mode %s: '%s' is no mode", mode[1], mode.needs) end
  end
  for _, state in ipairs(f.states) do
    if state.when and not f.bit[state.when] then fail(entry, "state %s: '%s' is no mode", state[1], state.when) end
  end

  -- Checks that names are unique, and finds which numbers the update uses directly and which others depend on.
  local known = {t = true, first = true, p = true, g = true, c = true, next = true}
  for _, rows in ipairs {f.numbers, f.carried, entry.scalars} do
    for _, row in ipairs(rows) do
      local name = row.name or row[1]
      if known[name] then fail(entry, "'%s' is there twice", name) end
      known[name] = true
    end
  end
  for _, mode in ipairs(f.modes) do
    if not known[mode[1]] then fail(entry, "mode %s is no option", mode[1]) end
  end
  local in_update, needed = text.words("sign " .. entry.update), {}
  for _, row in ipairs(f.carried) do
    for word in pairs(text.words(row.next .. " " .. row.start)) do needed[word] = true end
  end
  for i = #entry.scalars, 1, -1 do
    local row = entry.scalars[i]
    if not in_update[row[1]] and not needed[row[1]] then fail(entry, "scalar %s is used by nothing", row[1]) end
    for word in pairs(text.words(row[2])) do needed[word] = true end
  end
  f.needed, f.coefficients = needed, {}
  for _, rows in ipairs {f.numbers, f.carried, entry.scalars} do
    for _, row in ipairs(rows) do
      local name = row.name or row[1]
      if in_update[name] then
        for _, state in ipairs(f.states) do
          if state[1] == name then fail(entry, "'%s' is a state and a number", name) end
        end
        f.coefficients[#f.coefficients + 1] = name
      end
    end
  end
  return f
end

local families, entries = {}, {}
for _, entry in ipairs(list) do
  local base = entry.like and entries[entry.like].family
  if not base then
    base = family_of(entry)
    families[#families + 1] = base
  elseif entry.update ~= base.entry.update then
    fail(entry, "an update of its own beside like = '%s'", entry.like)
  end
  local own = {name = entry.name, family = base, numbers = numbers_of(entry)}
  entries[#entries + 1], entries[entry.name] = own, own
end

-- Lists the valid combinations of modes: a mode is on only with the mode it needs.
local function mode_combinations(f)
  local found = {}
  for bits = 0, 2 ^ #f.modes - 1 do
    local with, on, possible = {}, {}, true
    for i, mode in ipairs(f.modes) do
      with[mode[1]] = math.floor(bits / 2 ^ (i - 1)) % 2 == 1
      if with[mode[1]] then on[#on + 1] = ("LM_%s_%s"):format(f.upper, mode[1]:upper()) end
    end
    for _, mode in ipairs(f.modes) do
      if with[mode[1]] and mode.needs and not with[mode.needs] then possible = false end
    end
    if possible then
      found[#found + 1] = {
        with = with, label = bits == 0 and "0" or table.concat(on, " | "),
        flags = map(f.modes, function(mode) return with[mode[1]] and "1" or "0" end),
      }
    end
  end
  return found
end

-- Returns the states that a form has, as bits.
local function states_in(f, form)
  local mask = 0
  for i, state in ipairs(f.states) do
    if not state.when or form.with[state.when] then mask = mask + 2 ^ (i - 1) end
  end
  return mask
end

local function most(count)
  local n = 1
  for _, f in ipairs(families) do n = math.max(n, count(f)) end
  return n
end

-- ---- optim_entries.h

local precisions = {
  {real = "float", suffix = "f32", words = {real = "float", sqrt = "sqrtf", fabs = "fabsf", sgn = "lm_sgn_f32",
    larger = "lm_larger_f32"}},
  {real = "double", suffix = "f64", words = {real = "double", sgn = "lm_sgn_f64", larger = "lm_larger_f64"}},
}

local function spaced(c) return c == "" and "" or ", " .. c end

-- Returns a declaration such as: const float a = c[0], b = c[1];
local function declared(real, names, value)
  local parts = map(names, function(name, i) return ("%s = %s"):format(name, value(name, i)) end)
  return #parts > 0 and {("const %s %s;"):format(real, table.concat(parts, ", "))} or {}
end

local function trimmed(update)
  local lines = {}
  for line in update:gmatch("[^\n]+") do
    if line:find("%S") then lines[#lines + 1] = (line:gsub("^    ", "")) end
  end
  return lines
end

local function update_function(f, precision)
  local flags = table.concat(map(f.modes, function(mode) return "int with_" .. mode[1] end), ", ")
  local pointers = table.concat(map(f.states, function(state)
    return ("%s *%s_at"):format(precision.real, state[1])
  end), ", ")
  local values = {}
  for _, state in ipairs(f.states) do
    values[#values + 1] = ("%s %s = *%s_at;"):format(precision.real, state[1], state[1])
  end
  return fill([[
LM_DEVICE_CODE void lm_${lower}_update_$suffix(const $real *c$flags, $real g, $real *p_at$pointers) {
  $coefficients
  $real p = *p_at;
  $values
  g *= sign;
  $line
  $update
  $after
  *p_at = p;
  $back
}
]], {
    lower = f.lower, suffix = precision.suffix, real = precision.real,
    flags = spaced(flags), pointers = spaced(pointers),
    coefficients = declared(precision.real, f.coefficients, function(_, i) return ("c[%d]"):format(i - 1) end),
    values = values, line = {(line_of(f.entry, f.entry.update))},
    update = map(trimmed(f.entry.update), function(line) return text.replace(line, precision.words) end),
    after = {"#line @here@"},
    back = map(f.states, function(state) return ("*%s_at = %s;"):format(state[1], state[1]) end),
  })
end

local function plan_function(f)
  local lines, used = {}, {}
  local at = {}
  for i, row in ipairs(f.numbers) do at[row.name] = i - 1 end
  for name in pairs(f.needed) do used[name] = true end
  for _, name in ipairs(f.coefficients) do used[name] = true end
  local options = {}
  for _, row in ipairs(f.numbers) do
    if used[row.name] then options[#options + 1] = row.name end
  end
  for _, line in ipairs(declared("double", options, function(name) return ("in->option[%d]"):format(at[name]) end)) do
    lines[#lines + 1] = line
  end
  if used.t then lines[#lines + 1] = "const double t = in->t;" end
  if used.first then lines[#lines + 1] = "const bool first = in->first;" end
  for i, row in ipairs(f.carried) do
    lines[#lines + 1] = ("const double %s = in->carries ? in->carried[%d] : %s;"):format(row[1], i - 1, row.start)
  end
  for _, row in ipairs(f.entry.scalars) do
    lines[#lines + 1] = ("const double %s = %s;"):format(row[1], row[2])
  end
  for i, name in ipairs(f.coefficients) do lines[#lines + 1] = ("c[%d] = %s;"):format(i - 1, name) end
  for i, row in ipairs(f.carried) do lines[#lines + 1] = ("next[%d] = %s;"):format(i - 1, row.next) end
  if #f.carried == 0 then lines[#lines + 1] = "(void)next;" end
  return fill([[
LM_DEVICE_CODE void lm_${lower}_plan(const lm_optim_numbers *in, double *c, double *next) {
  $lines
}
]], {lower = f.lower, lines = lines})
end

local function family_code(f)
  local bits = map(f.modes, function(mode)
    return ("LM_%s_%s = %d"):format(f.upper, mode[1]:upper(), f.bit[mode[1]])
  end)
  local parts = {fill([[
/* ---- $name: $help. $source. */

$bits
]], {
    name = f.entry.name, help = f.entry.help, source = f.entry.source,
    bits = #bits > 0 and {("enum { %s };"):format(table.concat(bits, ", "))} or {},
  }), plan_function(f)}
  for _, precision in ipairs(precisions) do parts[#parts + 1] = update_function(f, precision) end
  return table.concat(parts, "\n")
end

local function header()
  local body = {fill([[
/* Written by src/optim/generate.lua from lua/luminary/optim/sgd_adam_rules.lua. For C and CUDA. */
#pragma once

#include "optim_math.h"

/* Those that share their arithmetic are one family. */
enum { $families, LM_OPTIM_FAMILIES };
/* The most of each that one has. */
enum { LM_OPTIM_OPTIONS = $options, LM_OPTIM_STATES = $states, LM_OPTIM_CARRIED = $carried };
enum { LM_OPTIM_COEFFICIENTS = $coefficients };
/* X(family, its name in functions) for each. */
#define LM_OPTIM_EACH(X) $each

/* A step's numbers: the options' in the entry's order, and those kept from the step before, if there are. */
typedef struct lm_optim_numbers {
  double option[LM_OPTIM_OPTIONS], carried[LM_OPTIM_CARRIED];
  double t; /* from 1 */
  bool first, carries;
} lm_optim_numbers;

/* A step's coefficients, in the order in which the family's update declares them. */
typedef struct lm_optim_f64 {
  double of[LM_OPTIM_COEFFICIENTS];
} lm_optim_f64;
typedef struct lm_optim_f32 {
  float of[LM_OPTIM_COEFFICIENTS];
} lm_optim_f32;

]], {
    families = map(families, function(f) return "LM_OPTIM_" .. f.upper end),
    options = most(function(f) return #f.numbers end), states = most(function(f) return #f.states end),
    carried = most(function(f) return #f.carried end), coefficients = most(function(f) return #f.coefficients end),
    each = table.concat(map(families, function(f) return ("X(%s, %s)"):format(f.upper, f.lower) end), " "),
  })}
  for _, f in ipairs(families) do body[#body + 1] = family_code(f) .. "\n" end
  body[#body + 1] = fill([[
/* ---- by family */

/* A step's coefficients, and in next what is carried to the step after it. */
LM_DEVICE_CODE void lm_optim_plan(int family, const lm_optim_numbers *in, lm_optim_f64 *c, double *next) {
  switch (family) {
    $plans
  }
}
]], {plans = map(families, function(f)
    return ("case LM_OPTIM_%s: lm_%s_plan(in, c->of, next); break;"):format(f.upper, f.lower)
  end)})
  return table.concat(body)
end

-- ---- optim_entries.c

local function table_of_entries()
  local body = {[[
/* Written by src/optim/generate.lua from lua/luminary/optim/sgd_adam_rules.lua. */
#include "optim/optim.h"

]]}
  local rows = {}
  for _, entry in ipairs(entries) do
    local f = entry.family
    local place = {}
    for i, row in ipairs(entry.numbers) do
      if not place[row.option] then place[row.option] = i - 1 end
    end
    rows[#rows + 1] = fill([[
    {
        .name = "$name",
        .family = LM_OPTIM_$upper,
        .counts = $counts,
        .n_options = $n_options, .n_modes = $n_modes, .n_states = $n_states, .n_carried = $n_carried,
        .option = {$options},
        .mode = {$modes},
        .state = {$states},
        .carried = {$carried},
    },
]], {
      name = entry.name, upper = f.upper, counts = tostring(f.needed.t or #f.carried > 0),
      n_options = #entry.numbers, n_modes = #f.modes, n_states = #f.states, n_carried = #f.carried,
      options = map(entry.numbers, function(row)
        return ("{\"%s\", %s, %s}"):format(row.name, row.value, row.fixed)
      end),
      modes = map(f.modes, function(mode)
        return ("{%d, %d}"):format(place[mode[1]], mode.needs and f.bit[mode.needs] or 0)
      end),
      states = map(f.states, function(state)
        return ("{\"%s\", %d}"):format(state[1], state.when and f.bit[state.when] or 0)
      end),
      carried = map(f.carried, function(row) return ("\"%s\""):format(row[1]) end),
    })
  end
  body[#body + 1] = fill([[
const lm_optimizer lm_optimizers[] = {
$rows
};
const int lm_optimizer_count = $count;
]], {rows = rows, count = #entries})
  return (table.concat(body):gsub("\n\n+( *[{}])", "\n%1"))
end

-- ---- optim_loops_of.inc

local function loops()
  local body = {[[
/* Written by src/optim/generate.lua from lua/luminary/optim/sgd_adam_rules.lua; included by templates/optim.inc. */
]]}
  for _, f in ipairs(families) do
    local function flags(of) return table.concat(map(f.modes, of), ", ") end
    local function has(state) return state.when and "with_" .. state.when end
    local gets, puts = {}, {}
    for i, state in ipairs(f.states) do
      local get = ("LM_LOAD(s%d[i])"):format(i)
      gets[i] = ("LM_ACC %s = %s;"):format(state[1], has(state) and has(state) .. " ? " .. get .. " : 0" or get)
      puts[i] = ("%ss%d[i] = LM_STORE(%s);"):format(has(state) and "if (" .. has(state) .. ") " or "", i, state[1])
    end
    body[#body + 1] = fill([[

LM_INLINE void LM_FN(${lower}_form)(const LM_ACC *c$flags, int64_t n, LM_ELEM *restrict ps,
                                    const LM_ELEM *restrict gs$states) {
  for (int64_t i = 0; i < n; i++) {
    LM_ACC p = LM_LOAD(ps[i]);
    $gets
    LM_ISA_JOIN(lm_${lower}_update, LM_REAL_NAME)(c$given, LM_LOAD(gs[i]), &p$pointers);
    ps[i] = LM_STORE(p);
    $puts
  }
}

static void LM_FN($lower)(const lm_optim_coefficients *given, int64_t n, void *p, const void *g,
    void *const *state) {
  const LM_ISA_JOIN(lm_optim, LM_REAL_NAME) c = given->LM_REAL_NAME;
  switch (given->modes) {
    $cases
  }
}
]], {
      lower = f.lower, flags = spaced(flags(function(mode) return "int with_" .. mode[1] end)),
      states = spaced(table.concat(map(f.states, function(_, i) return "LM_ELEM *restrict s" .. i end), ", ")),
      gets = gets, puts = puts, given = spaced(flags(function(mode) return "with_" .. mode[1] end)),
      pointers = spaced(table.concat(map(f.states, function(state) return "&" .. state[1] end), ", ")),
      cases = map(mode_combinations(f), function(form)
        return ("case %s: LM_FN(%s_form)(c.of%s, n, p, g%s); break;"):format(form.label, f.lower,
          spaced(table.concat(form.flags, ", ")),
          spaced(table.concat(map(f.states, function(_, i) return ("state[%d]"):format(i - 1) end), ", ")))
      end),
    })
  end
  return table.concat(body)
end

-- ---- optim_entries.cuh

local function kernels()
  local body = {[[
/* Written by src/optim/generate.lua from lua/luminary/optim/sgd_adam_rules.lua; included by optim.cu. */
]]}
  for _, f in ipairs(families) do
    local modes = spaced(table.concat(map(f.modes, function(mode)
      return ("(modes & LM_%s_%s) != 0"):format(f.upper, mode[1]:upper())
    end), ", "))
    local own = spaced(table.concat(map(f.states, function(_, i) return "own + " .. i end), ", "))
    body[#body + 1] = fill([[

struct lm_${lower}_element {
  enum { STATES = $states, COEFFICIENTS = $coefficients };
  LM_DEVICE static void update(const float *c, unsigned modes, float g, float *own) {
    $unused
    lm_${lower}_update_f32(c$modes, g, own$own);
  }
  LM_DEVICE static void update(const double *c, unsigned modes, double g, double *own) {
    $unused
    lm_${lower}_update_f64(c$modes, g, own$own);
  }
};
]], {
      lower = f.lower, states = #f.states, coefficients = #f.coefficients, modes = modes, own = own,
      unused = #f.modes == 0 and {"(void)modes;"} or {},
    })
  end
  local cases = {}
  for _, f in ipairs(families) do
    cases[#cases + 1] = ("case LM_OPTIM_%s:"):format(f.upper)
    local seen = {}
    for _, form in ipairs(mode_combinations(f)) do
      local mask = states_in(f, form)
      if not seen[mask] then
        seen[mask] = true
        cases[#cases + 1] = ("  if (call->states == %d) return launch<lm_%s_element, %d>(dtype, table, call, stream);")
          :format(mask, f.lower, mask)
      end
    end
    cases[#cases + 1] = "  break;"
  end
  body[#body + 1] = fill([[

static int launch_family(int dtype, const lm_optim_table *table, const lm_optim_call *call,
    void *stream) {
  switch (call->family) {
    $cases
  }
  return (int)cudaErrorInvalidValue;
}
]], {cases = cases})
  return table.concat(body)
end

local function put(file, body) text.put(out, file, body) end

put("optim_entries.h", header())
put("optim_entries.c", table_of_entries())
put("optim_loops_of.inc", loops())
put("optim_entries.cuh", kernels())
