-- The case "where" of scripts/dev/gpu_cases.lua: where the time of a step goes, kernel by kernel, by CUPTI.
local ffi = require "ffi"
local lm = require "luminary"
local common = require "scripts.dev.gpu.common"
local short = require "scripts.dev.gpu.kernel_names"
local bench = require "scripts.bench.cuda_networks"

ffi.cdef [[
  int kernel_times_start(void);
  const char *kernel_times_read(void);
]]

local root = arg[0]:match "^(.*)/scripts/dev/[^/]*$" or "."
local build = assert(package.searchpath("luminary.core", package.cpath)):match "^(.*)/lib/luminary/core%.so$"

-- Arguments of count_step by network: MODEL, its dtype and other options, as scripts/dev/bundle counts them.
local networks = {
  gpt2_bf16 = { "gpt2", "bfloat16", "--dropout 0" }, resnet18 = { "resnet18", "float32" },
  resnet50_bf16 = { "resnet50", "bfloat16" }, lenet = { "lenet", "float32" }, lstm_bf16 = { "lstm", "bfloat16" },
  token_bf16 = { "token", "bfloat16" },
}

local function contents(path)
  local file = io.open(path)
  local text = file and file:read "*a"
  if file then file:close() end
  return text
end

-- Returns the recorder of kernel_times.c, which scripts/dev/bundle compiled or which is compiled here, or nil and why
-- there is none.
local function start_recorder()
  local path, made = build and build .. "/kernel_times.so", nil
  if not (path and contents(path)) then
    path, made = os.tmpname(), true
    local headers = os.getenv "CUDA_HOME" or "/usr/local/cuda"
    local command = "cc -D_GNU_SOURCE -shared -fPIC -O1 -I'%s/include' -o %s '%s/scripts/dev/gpu/kernel_times.c' -ldl"
    if os.execute(command:format(headers, path, root)) ~= 0 then
      os.remove(path)
      return nil, "kernel_times.c does not compile: a C compiler and CUPTI's headers are needed"
    end
  end
  local ok, library = pcall(ffi.load, path)
  if made then os.remove(path) end
  if not ok then return nil, library end
  local code = library.kernel_times_start()
  if code ~= 0 then return nil, code == -1 and "no libcupti is found" or "CUPTI's error " .. code end
  return library
end

-- Returns the kernels of f() in their order: a list of {name, us}.
local function recorded(recorder, f)
  lm.synchronize "cuda"
  recorder.kernel_times_read()
  f()
  lm.synchronize "cuda"
  local text, list = recorder.kernel_times_read(), {}
  if text == nil then common.fail "CUPTI lost records" end
  for start, ns, name in ffi.string(text):gmatch "(%d+)\t(%d+)\t([^\n]*)\n" do
    list[#list + 1] = { start = tonumber(start), us = ns / 1e3, name = short(name), at = #list }
  end
  table.sort(list, function(a, b)
    if a.start ~= b.start then return a.start < b.start end
    return a.at < b.at
  end)
  return list
end

-- Returns the counted work of a step, {name, us at least, flops}, or nil and why it is unknown.
local function counted(model, dtype, others)
  local path = build and ("%s/counts/%s"):format(build, model)
  local text
  if not common.stand_in then
    text = path and contents(path)
  else
    path = os.tmpname()
    os.execute(("LD_PRELOAD= '%s/scripts/dev/count_step' %s --dtype %s %s --small --totals --write %s >/dev/null")
      :format(root, model, dtype, others or "", path))
    text = contents(path)
    os.remove(path)
  end
  if not text or text == "" then return nil, "scripts/dev/bundle counts it" end
  local list = {}
  for name, flops, us in text:gmatch "([^\t\n]*)\t%d+\t%d+\t(%d+)\t([%d.]+)\n" do
    list[#list + 1] = { name = name, flops = tonumber(flops), us = tonumber(us) }
  end
  return list
end

local function is_ours(w) return w.name:find "^lm_" ~= nil end
local function is_copy(w) return w.name:find "^cudaMem" ~= nil end

-- Splits work at our own kernels: returns these, and before each of them and at the end the libraries' work.
local function split(list)
  local own, between = {}, { {} }
  for _, w in ipairs(list) do
    if is_ours(w) then
      own[#own + 1] = w
      between[#own + 1] = {}
    elseif not is_copy(w) then
      table.insert(between[#own + 1], w)
    end
  end
  return own, between
end

local function label(products)
  local names, flops = {}, 0
  for _, p in ipairs(products) do
    names[p.name], flops = true, flops + p.flops
  end
  local list = {}
  for name in pairs(names) do list[#list + 1] = name end
  table.sort(list)
  return table.concat(list, ", ") .. (flops > 0 and (", %.3g GFLOP"):format(flops / 1e9) or "")
end

-- Kernels of ours in a row that are not counted at most: of a graph's inputs and random numbers.
local EXTRA = 8

-- Returns the libraries' kernels of a step before each counted kernel of ours and at the end; nil if others ran.
local function between_counted(list, counted_own)
  local own, between = split(list)
  local found, gap, k, extra = {}, between[1], 1, 0
  for i, w in ipairs(own) do
    if counted_own[k] and w.name == counted_own[k].name then
      found[k], gap, k, extra = gap, {}, k + 1, 0
    else
      extra = extra + 1
      if extra > EXTRA then return nil end
    end
    for _, kernel in ipairs(between[i + 1]) do gap[#gap + 1] = kernel end
  end
  found[k] = gap
  return k > #counted_own and found or nil
end

-- Names the libraries' kernels after the counted products that they compute: `as` of each kernel. Between the same two
-- kernels of ours lie a product and its kernels. Returns false if other kernels of ours ran than were counted: then a
-- library's kernel keeps its own name.
local function name_products(list, counts)
  local counted_own, products = split(counts)
  local between = between_counted(list, counted_own)
  if not between then return false end
  for i, kernels in ipairs(between) do
    local expected = products[i]
    local is_each = #expected == #kernels
    for k, w in ipairs(kernels) do w.as = #expected > 0 and label(is_each and {expected[k]} or expected) or nil end
    for _, p in ipairs(expected) do p.as = label(is_each and {p} or expected) end
  end
  return true
end

local STEPS = common.sized(3, 1)

local function us(value) return value and ("%10.1f"):format(value) or ("%10s"):format "-" end

-- Prints a network's table: for each kernel its launches and microseconds of a step, eager and captured, and the least
-- that its bytes and operations take.
local function show(name, recorder)
  local model, dtype, others = unpack(networks[name])
  local step, inputs, samples, unit = bench.models("cuda")[model](dtype)()
  local function eager() step(unpack(inputs)) end
  local counts, unknown = counted(model, dtype, others)
  local rows, order, sums, aligned = {}, {}, { bound = 0 }, true
  local function row_of(key)
    if not rows[key] then
      rows[key] = { name = key, calls = {}, library = {} }
      order[#order + 1] = rows[key]
    end
    return rows[key]
  end
  local modes = { { "eager", eager } }
  for _ = 1, 4 do eager() end
  local ok, graphed = pcall(lm.cuda.make_graphed_step, step, inputs, { warmup = 1 })
  if ok then modes[2] = { "captured", function() graphed(unpack(inputs)) end } end
  for _, mode in ipairs(modes) do
    local kind, run = unpack(mode)
    local seconds = common.seconds(run)
    sums[kind] = 0
    for _ = 1, STEPS do
      local list = recorded(recorder, run)
      if #list == 0 then common.fail("%s: CUPTI saw no kernel of a step, %s", name, kind) end
      aligned = aligned and (not counts or name_products(list, counts))
      for _, w in ipairs(list) do
        local row = row_of(w.as or w.name)
        row[kind] = (row[kind] or 0) + w.us / STEPS
        row.calls[kind] = (row.calls[kind] or 0) + 1 / STEPS
        if w.as then row.library[w.name] = true end
        sums[kind] = sums[kind] + w.us / STEPS
      end
    end
    mode.wall = seconds * 1e6
  end
  for _, w in ipairs(counts or {}) do
    local row = row_of(aligned and w.as or is_ours(w) and w.name or is_copy(w) and w.name or "all products, counted")
    row.bound = (row.bound or 0) + w.us
    sums.bound = sums.bound + w.us
  end

  print(("%s, %d %s a step"):format(name, samples, unit))
  if not ok then print("it is not captured: " .. tostring(graphed)) end
  if not counts then print("its bound is unknown: " .. unknown) end
  if counts and not aligned then print "other kernels ran than were counted; products have their libraries' names" end
  for _, mode in ipairs(modes) do
    print(("%-9s %10.1f us a step, %10.1f us in kernels, %10.1f us outside; bound %s us"):format(mode[1], mode.wall,
      sums[mode[1]], mode.wall - sums[mode[1]], counts and ("%.1f"):format(sums.bound) or "-"))
  end
  local last = modes[#modes][1]
  table.sort(order, function(a, b)
    local x, y = a[last] or a.eager or 0, b[last] or b.eager or 0
    if x ~= y then return x > y end
    return a.name < b.name
  end)
  local form = "%7s %10s %10s %10s %7s %7s  %s"
  print(form:format("calls", "eager us", "captured", "bound us", "bounds", "share", "kernel"))
  for _, row in ipairs(order) do
    local took = row[last] or row.eager or 0
    local calls = row.calls.eager or row.calls[last] or 0
    print(form:format(("%.0f"):format(calls), us(row.eager), us(row.captured), us(row.bound),
      row.bound and row.bound > 0.05 and ("%.1f"):format(took / row.bound) or "-",
      ("%.1f %%"):format(100 * took / sums[last]), row.name))
    local library = {}
    for each in pairs(row.library) do library[#library + 1] = each end
    table.sort(library)
    for _, each in ipairs(library) do print((" "):rep(60) .. each:sub(1, 120)) end
  end
end

-- Prints each op's time on the device in an eager step, by events, which need no CUPTI.
local function show_ops(name, why)
  local model, dtype = unpack(networks[name])
  local step, inputs = bench.models("cuda")[model](dtype)()
  for _ = 1, 4 do step(unpack(inputs)) end
  local profile = lm.profile(function() step(unpack(inputs)) end, { lines = false })
  print(("%s: %s; by events instead, op by op, eager"):format(name, why))
  print(profile:table { sort_by = "device_time", limit = 100 })
end

local case = {}

-- Runs "where NAME [events]".
function case.where(name, events)
  if not networks[name or ""] then common.fail("where: unknown network '%s'", tostring(name)) end
  lm.backends.cudnn.allow_tf32 = true -- as count_step counts
  local recorder, why
  if events then
    why = "without CUPTI"
  else
    recorder, why = start_recorder()
  end
  if recorder then show(name, recorder) else show_ops(name, why) end
end

return case
