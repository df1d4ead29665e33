--- Writes docs/status/: what runs where, speed, environment variables.
---
---   luajit scripts/dev/gen_status.lua [FOLDER]     FOLDER: where to, instead of docs/status
---
--- Needs no build. Ops and their kernels are read from the sources, measurements from status/speed.lua, the rest from
--- status/what_runs_where.lua beside this file.
local root = (arg[0]:match "^(.*)/" or ".") .. "/../.."
local folder = arg[1] or root .. "/docs/status"
package.path = ("%s/src/op/entries/?.lua;%s/lua/?.lua;%s"):format(root, root, package.path)
local ops = require "ops"
local variables = require "luminary.environment_variables"
local where = dofile(root .. "/scripts/dev/status/what_runs_where.lua")
local speed = dofile(root .. "/scripts/dev/status/speed.lua")

local function read(path)
  local file = assert(io.open(root .. "/" .. path))
  local text = file:read "*a"
  file:close()
  return text
end

local function write(name, lines)
  local file = assert(io.open(("%s/%s.md"):format(folder, name), "w"))
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
end

local function add(lines, form, ...) lines[#lines + 1] = select("#", ...) > 0 and form:format(...) or form end

local function add_row(lines, cells)
  for i = 1, #cells do cells[i] = tostring(cells[i]) end
  add(lines, "%s", ("| %s |"):format(table.concat(cells, " | ")))
end

local function add_head(lines, cells)
  add_row(lines, cells)
  add(lines, "%s", "|" .. ("---|"):rep(#cells))
end

-- ---- what runs where

-- Returns the names in the X(name) lists of a header.
local function kernels_in(path)
  local names = {}
  for list in read(path):gmatch "#define LM_%u+_%u+%(X%)(.-[^\\])\n" do
    for name in list:gmatch "X%(([%w_]+)%)" do names[name] = true end
  end
  assert(next(names), path .. " has no list of kernels")
  return names
end

local KINDS = {
  {"elementwise", "element by element; one kernel generated from the op's entry"},
  {"kernel", "by its own kernel"},
  {"view", "a view; no kernel"},
  {"made of others", "by other ops, on whatever device those run"},
}

local function add_ops(lines)
  local cpu, cuda = kernels_in "src/backend/cpu/cpu.h", kernels_in "src/backend/cuda/cuda.h"
  local counts, missing = {}, {}
  for _, op in ipairs(ops) do
    if not op.internal then
      local slot = op.kernel and op.kernel:match "^[%w_]+" or op.name
      local kind = op.elementwise and "elementwise" or cpu[slot] and "kernel" or op.kind == "view" and "view"
        or "made of others"
      local count = counts[kind] or {cpu = 0, cuda = 0}
      counts[kind] = count
      count.cpu = count.cpu + 1
      if not cpu[slot] or cuda[slot] then
        count.cuda = count.cuda + 1
      else
        missing[#missing + 1] = ("`%s`"):format(op.name)
      end
    end
  end
  add(lines, "\n## Ops\n")
  add(lines, "Counted in the sources; `luminary ops` lists each op with its dtypes, gradient and autocast rule.\n")
  add_head(lines, {"computed", "CPU", "CUDA"})
  for _, kind in ipairs(KINDS) do
    local count = counts[kind[1]]
    counts[kind[1]] = nil
    add_row(lines, {kind[2], count.cpu, count.cuda})
  end
  assert(not next(counts), next(counts))
  table.sort(missing)
  add(lines, "\nKernels of the CPU alone: %s. On a GPU `group_norm`, `masked_select` and `lm.fft.multiply` take other "
    .. "ops; the entry of each op says which.", table.concat(missing, ", "))
end

-- Adds what `luminary doctor` checks, from its own help.
local function add_doctor(lines)
  add(lines, "\n## What `luminary doctor` checks\n")
  local help = read "lua/luminary/cli/doctor/init.lua"
  local subjects = assert(help:match "%-%-only SUBJECTS[^\n]*\n(.-)\n  %-%-with", "the doctor's help lists no subjects")
  add_head(lines, {"subject", "what"})
  local rows = 0
  for line in (subjects .. "\n"):gmatch "([^\n]*)\n" do
    local name, what = line:match "^%s+(%l+)%s%s+(.*)$"
    add_row(lines, {("`%s`"):format(assert(name, line)), what})
    rows = rows + 1
  end
  assert(rows > 5, rows)
  add(lines, "\nIts findings on GPUs were seen only on made-up machines (`spec/support/machine.lua`).")
end

local function what_runs_where()
  local states, lines = {[""] = ""}, {"# What runs where\n"}
  add(lines, "Written by `luajit scripts/dev/gen_status.lua`.\n")
  add(lines, "%s\n", where.gpu)
  add_head(lines, {"state", "meaning"})
  for _, state in ipairs(where.states) do
    states[state[1]] = state[1]
    add_row(lines, {state[1], state[2]})
  end
  for _, section in ipairs(where.sections) do
    add(lines, "\n## %s\n", section[1])
    add_head(lines, {"", "CPU", "CUDA", ""})
    for i = 2, #section do
      local row = section[i]
      local cpu, cuda = states[row[2]], states[row[3]]
      assert(cpu and cuda, row[1] .. " has an unknown state")
      add_row(lines, {row[1], cpu, cuda, row[4] or ""})
    end
  end
  add_ops(lines)
  add(lines, "\n## Systems\n")
  add_head(lines, {"system", "state", ""})
  for _, row in ipairs(where.systems) do add_row(lines, {row[1], row[2], row[3]}) end
  add_doctor(lines)
  return lines
end

-- ---- speed

local function speed_page()
  local lines = {"# Speed\n"}
  add(lines, "Written by `luajit scripts/dev/gen_status.lua` from `scripts/dev/status/speed.lua`.\n")
  add(lines, "Each figure was printed by the command above it. Both sides run in one sitting, in interleaved rounds; "
    .. "medians count. PyTorch's is its best of default and channels_last, each with and without tcmalloc. A ratio "
    .. "above 1 means that Luminary is faster. PYTHON is an interpreter that has torch.\n")
  add(lines, "Sections without a date are older than this page, and were not measured again for it.")
  add(lines, "\n`scripts/bench/all` measures every row of the benches and writes them as a page: [with AVX-512]("
    .. "rows/avx512.md), [with AVX2](rows/avx2.md). No arm64 machine has been measured.")
  for _, section in ipairs(speed) do
    add(lines, "\n## %s\n", section.title)
    local commands = {}
    for command in (section.command .. ";"):gmatch "%s*([^;]+);" do
      while #command > 76 do -- columns, which a page has
        local head = command:sub(1, 74):match "^(.*) "
        commands[#commands + 1], command = head .. " \\", "  " .. command:sub(#head + 2)
      end
      commands[#commands + 1] = command
    end
    add(lines, "%s", "```sh\n" .. table.concat(commands, "\n") .. "\n```\n")
    add(lines, "On %s; against %s%s.\n", section.machine, section.against, section.when and "; " .. section.when or "")
    add_head(lines, {unpack(section.columns)})
    for _, row in ipairs(section) do
      assert(#row == #section.columns, row[1] .. ": a cell for each column")
      add_row(lines, {unpack(row)})
    end
    if section.remark then add(lines, "\n%s", section.remark) end
  end
  return lines
end

-- ---- environment variables

local function variables_page()
  return {
    "# Environment variables\n",
    "Written by `luajit scripts/dev/gen_status.lua`; `luminary help environment` prints the same.\n",
    (variables.text(true):gsub("\n$", "")),
  }
end

os.execute(("mkdir -p '%s'"):format((folder:gsub("'", "'\\''"))))
write("what_runs_where", what_runs_where())
write("speed", speed_page())
write("environment_variables", variables_page())
