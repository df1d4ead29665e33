-- Draws random training programs as Lua text, and compares the bits of all that a program's step, a function f, leaves:
-- results, parameters, gradients, buffers, states, errors and values read by Lua, called as f and as lm.compile(f).
--
--   luajit scripts/dev/random_programs.lua --steps [--count 20000] [--seed 1] [--threads 1..4] [--without hook,read]
--     [--most 5]
--
-- prints a script for each of at most 5 programs that differ, crash or take longer than 10 seconds, of those with equal
-- errors for the first. --without leaves kinds of nodes out, by default gradless.
--
-- A program's text is a function of four arguments: wrap(f) returns the step; make(layout, shape, dtype) returns a
-- tensor; see(label, values …) notes values of any kind; caller(state, results) returns two functions: call(k, f, …)
-- notes the results of f(…), or its error, and the values that state() returns; back(k) calls backward of the results
-- of call k.
local ffi = require "ffi"
local lm = require "luminary"
local programs = require "scripts.dev.random_step_programs"
local fill = require("scripts.dev.random_ops").fill

local steps = {draw = programs.draw, text = programs.text}

-- ---- running a program's text

local function bytes_of(x)
  x = x:detach():cpu():contiguous()
  return ffi.string(x:data_ptr(), x.nbytes)
end

-- Returns the dtype, sizes, strides (those of dims of one element do not matter) and kind of a tensor.
local function form_of(x)
  local sizes, strides = x.shape, x:stride()
  for d, size in ipairs(sizes) do
    if size < 2 then strides[d] = 0 end
  end
  return ("%s [%s] strides [%s]%s%s"):format(x.dtype, table.concat(sizes, ", "), table.concat(strides, ", "),
    x.requires_grad and " requires_grad" or "", x.is_leaf and "" or " not a leaf")
end

-- Calls note(path, text, tensor or nil) for v, or for what is in it.
local function walk(path, v, note)
  if lm.is_tensor(v) then
    local live, form = pcall(form_of, v) -- an error: lm.scope freed it
    note(path, form)
    if not live then return end
    note(path, bytes_of(v), v)
    if v.is_leaf then walk(path .. ".grad", v.grad, note) end
  elseif type(v) == "table" then
    local keys = {}
    for key in pairs(v) do keys[#keys + 1] = key end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    note(path, #keys .. " keys")
    for _, key in ipairs(keys) do walk(("%s[%s]"):format(path, tostring(key)), v[key], note) end
  else
    note(path, type(v) == "number" and ("%.17g"):format(v) or tostring(v))
  end
end

-- Returns text about the first element of x that differs from that in bytes.
local function element(x, bytes)
  local want = lm.empty(x.shape, {dtype = x.dtype})
  ffi.copy(want:data_ptr(), bytes, #bytes)
  local got, size = bytes_of(x), x:element_size()
  want, x = want:flatten(), x:detach():flatten()
  for i = 1, x:numel() do
    if got:sub((i - 1) * size + 1, i * size) ~= bytes:sub((i - 1) * size + 1, i * size) then
      return ("element %d of %s is %.17g instead of %.17g"):format(i, form_of(x), tonumber(x[i]) or x[i],
        tonumber(want[i]) or want[i])
    end
  end
end

-- Runs a program's text. Returns the list of what it showed and, beside the list of another run, the first difference.
local function run(text, wrap, threads, want)
  local seen, wrong = {}, nil
  local function note(path, shown, x)
    local at = #seen + 1
    seen[at] = shown
    if not want or wrong or want[at] == shown then return end
    wrong = path .. ": " .. (x and want[at] and #want[at] == #shown and element(x, want[at])
      or ("%s instead of %s"):format(shown, tostring(want[at])))
  end
  local function see(label, ...)
    for i = 1, select("#", ...) do walk(label, (select(i, ...)), note) end
  end
  local failed = 0
  local function caller(state, results)
    local function call(k, f, ...)
      local list = {pcall(f, ...)}
      if not list[1] then failed = failed + 1 end
      results[k] = list
      if not list[1] then list[2] = tostring(list[2]) end
      see("error of call " .. k, list[1] and "no error" or list[2])
      see("result of call " .. k, list)
      see("after call " .. k, state(), lm.get_rng_state())
    end
    local function back(k)
      for i, x in pairs(results[k]) do
        if lm.is_tensor(x) and x.requires_grad and not x.is_leaf then
          local ok, why = pcall(x.backward, x, lm.ones_like(x))
          see("back " .. k, i, ok or tostring(why))
        end
      end
    end
    return call, back
  end
  lm.set_num_threads(threads)
  lm.set_default_dtype("float32")
  local program = type(text) == "function" and text or assert(loadstring(text, "=program"))
  setfenv(program, setmetatable({}, {__index = _G})) -- a reduced program may assign to what it no longer declares
  local ok, why = pcall(program, wrap, programs.make, see, caller)
  lm.set_default_dtype("float32")
  see("the program", ok or why)
  if want and not wrong and #want ~= #seen then wrong = ("%d values instead of %d"):format(#seen, #want) end
  return seen, wrong, ok and failed or math.huge
end

local function as_it_is(f) return f end

--- Returns what differs if the step of a program, its text or its function, is what wrap returns for it, or nil.
--- threads: numbers for both. most: nil is returned if more calls than these raise an error.
function steps.difference(program, threads, wrap, most)
  local seen, _, failed = run(program, as_it_is, threads[1])
  if failed > (most or math.huge) then return end
  return (select(2, run(program, wrap or lm.compile, threads[2], seen)))
end

--- Returns what differs between f and wrap(f), by default lm.compile(f), in the program of a seed, or nil; the program;
--- how many of its calls raised an error; and how many times recordings ran. o: {without, wrap, threads = {least,
--- most}}.
function steps.wrong(seed, o)
  o = o or {}
  local states, runs = {}, 0
  local function compile(f)
    local step, state = lm.compile(f)
    states[#states + 1] = state
    return step
  end
  local p, seen, failed, _
  for attempt = 0, 5 do
    p = steps.draw(seed * 8 + attempt, o)
    seen, _, failed = run(steps.text(p), as_it_is, p.threads[1])
    if failed == 0 or (p.raises or seed % 8 == 0) and failed < #p.calls then break end
  end
  local wrong = select(2, run(steps.text(p), o.wrap or compile, p.threads[2], seen))
  for _, state in ipairs(states) do runs = runs + (state.runs or 0) end
  return wrong, p, failed, runs
end

-- ---- reducing a program

local function copied(v)
  if type(v) ~= "table" then return v end
  local copy = {}
  for key, value in pairs(v) do copy[key] = copied(value) end
  return copy
end

-- Returns the program's lists of nodes, in an order that a copy has too.
local function lists_of(p)
  local all = {}
  local function add(list)
    all[#all + 1] = list
    for _, n in ipairs(list) do
      if n.body then add(n.body) end
    end
  end
  add(p.calls)
  add(p.body)
  add(p.setup)
  return all
end

local function rewrite(p, change)
  for _, list in ipairs(lists_of(p)) do
    for _, n in ipairs(list) do
      for _, field in ipairs {"text", "open", "close", "from"} do n[field] = n[field] and change(n[field]) end
    end
  end
  for i, name in ipairs(p.returns) do p.returns[i] = change(name) end
end

-- Removes nodes first .. last of a list; `from` takes the place of what they defined.
local function remove(p, list, first, last)
  local stand_in = {}
  local function drop(n)
    for _, inner in ipairs(n.body or {}) do drop(inner) end
    if n.out and n.from then stand_in[n.out] = stand_in[n.from] or n.from end
  end
  for _ = first, last do drop(table.remove(list, first)) end
  rewrite(p, function(text) return fill(text, stand_in) end)
end

local simpler = {
  {'make%("[%a ]+"', 'make("plain"'}, {'"bfloat16"', '"float32"'}, {'"float64"', '"float32"'},
    {"opt = optim%.%a+%((.-}), .*%)",
    "opt = optim.SGD(%1, {lr = 0.1})"}, {"opt = optim%.%a+%((.-})%)", "opt = optim.SGD(%1, {lr = 0.1})"},
}

--- Returns a program that still fails, fails(p), after nodes that it does not need are gone.
function steps.reduce(p, fails)
  local function attempt(edit)
    local copy = copied(p)
    if edit(copy) == false or not fails(copy) then return false end
    p = copy
    return true
  end
  local before
  repeat
    before = steps.text(p)
    local k = 1
    while k <= #lists_of(p) do
      local length = #lists_of(p)[k]
      while length >= 1 do
        local first = 1
        while first <= #(lists_of(p)[k] or {}) do
          local last = math.min(#lists_of(p)[k], first + length - 1)
          if not attempt(function(c) remove(c, lists_of(c)[k], first, last) end) then first = first + length end
        end
        length = math.floor(length / 2)
      end
      for i = #(lists_of(p)[k] or {}), 1, -1 do
        attempt(function(c)
          local list = lists_of(c)[k]
          if not list[i].body then return false end
          local n = table.remove(list, i)
          for j = #n.body, 1, -1 do table.insert(list, i, n.body[j]) end
        end)
      end
      k = k + 1
    end
    for i = #p.inputs, 2, -1 do
      attempt(function(c)
        local name = table.remove(c.inputs, i)
        rewrite(c, function(text) return text:find "^call%(" and text:gsub(", " .. name .. "%f[%W]", "") or text end)
        return not steps.text(c):gsub(name .. " = [^\n]*", ""):find(name .. "%f[%W]")
      end)
    end
    for i = #p.returns, 1, -1 do attempt(function(c) table.remove(c.returns, i) end) end
    for _, pair in ipairs(simpler) do
      attempt(function(c) rewrite(c, function(text) return (text:gsub(pair[1], pair[2])) end) end)
    end
    attempt(function(c) c.threads = {1, 1} end)
  until steps.text(p) == before
  return p
end

--- Returns a program as a script, to be run from the repository's root, that prints what differs.
function steps.script(p, why)
  local body = steps.text(p):gsub("^[^\n]*\n", "")
  return ("-- Program %d: %s\nlocal function program(wrap, make, see, caller)\n%send\n"):format(p.seed,
    why:gsub("%c+", " "), body) .. ('require("scripts.dev.random_steps").show(program, {%d, %d})\n'):format(
    p.threads[1], p.threads[2])
end

--- Prints what differs in a program's function, and exits with 1 if something does.
function steps.show(program, threads)
  lm.set_warnings(false)
  local wrong = steps.difference(program, threads)
  print(wrong or "no difference")
  os.exit(wrong and 1 or 0)
end

-- ---- the command

ffi.cdef "unsigned alarm(unsigned seconds);"
local LIMIT = 10 -- seconds that a program may take

-- Returns a number for a difference that is an error: its text without numbers and names of ops and arguments; nil for
-- others.
local function kind_of(wrong)
  local text = wrong:gsub(" instead of .*", "")
  if not text:find ":%d+: " then return end
  text = text:gsub("^.*: ", ""):gsub("%d+", ""):gsub("^%S+ must", "must"):gsub("%S+'s", "")
  local sum = 0
  for i = 1, #text do sum = (sum * 31 + text:byte(i)) % 1000003 end
  return sum
end

-- Runs seeds first .. last and prints, beside scripts of failures: "at SEED" before a program, "did …" after it, "kind"
-- with the kind of an error, which is not printed again, and "done" with the number of live tensors at the end.
local function work(first, last, o)
  lm.set_warnings(false)
  local reported, known = 0, o.known
  for seed = first, last do
    print("at " .. seed)
    ffi.C.alarm(LIMIT)
    local wrong, p, failed, runs = steps.wrong(seed, o)
    local key = wrong and kind_of(wrong)
    if wrong and not known[key] then
      reported = reported + 1
      if key then
        known[key] = true
        print("kind " .. key)
      end
      print(("-- Seed %d: %s"):format(seed, wrong:gsub("%c+", " ")))
      local reduced = steps.reduce(p, function(c)
        ffi.C.alarm(LIMIT)
        local now = steps.difference(steps.text(c), c.threads, nil, failed)
        return now ~= nil and kind_of(now) == key
      end)
      print(steps.script(reduced, steps.difference(steps.text(reduced), reduced.threads) or wrong))
    end
    print(("did %d %d %d %d %d"):format(p.count, p.trained and 1 or 0, failed > 0 and 1 or 0, wrong and 1 or 0,
      runs > 0 and 1 or 0))
    if reported >= o.most then break end
  end
  ffi.C.alarm(0)
  collectgarbage()
  collectgarbage()
  print("done " .. lm.live_tensors())
  return 0
end

-- Returns whether a program, of which at most `most` calls raise an error, ends its process or runs too long.
local function crashes(p, most)
  local _, _, failed = run(steps.text(p), as_it_is, 1)
  if failed > most then return false end
  local path = os.tmpname()
  lm.paths.write(path, steps.script(p, "crashes"))
  local code = os.execute(("timeout 3 luajit %s >/dev/null 2>&1"):format(path))
  os.remove(path)
  return code ~= 0 and code ~= 256
end

--- Runs the command line's programs in processes of their own, so that a crash is a failure like others.
function steps.main(arg)
  io.stdout:setvbuf "line"
  local o = {count = "1000", seed = "1", threads = "1..4", without = "gradless", most = "5", known = ""}
  local i, worker = 2, false
  while arg[i] do
    local name = arg[i]:match "^%-%-(%a+)$"
    if name == "worker" then
      worker, i = true, i + 1
    else
      if not name or not o[name] or not arg[i + 1] then error(("unrecognized argument '%s'"):format(arg[i]), 0) end
      o[name], i = arg[i + 1], i + 2
    end
  end
  local options = {most = assert(tonumber(o.most)), without = {}, threads = {}, known = {}}
  for name in o.without:gmatch "[%a_]+" do options.without[name] = true end
  for n in o.threads:gmatch "%d+" do table.insert(options.threads, tonumber(n)) end
  for n in o.known:gmatch "%d+" do options.known[tonumber(n)] = true end
  options.threads[2] = options.threads[2] or options.threads[1]
  local seed = assert(tonumber(o.seed))
  local last = seed + assert(tonumber(o.count)) - 1
  if worker then return work(seed, last, options) end
  local sums, count, reported, live, began = {0, 0, 0, 0, 0}, 0, 0, 0, lm.time()
  while seed <= last and reported < options.most do
    local command = "luajit %s --steps --worker --seed %d --count %d --threads %s --most %d --without '%s' --known '%s'"
    command = command:format(arg[0], seed, last - seed + 1, o.threads, options.most - reported, o.without, o.known)
    local at, done = seed, nil
    for line in io.popen(command):lines() do
      local word, rest = line:match "^(%l+) ([%d ]+)$"
      if word == "at" then
        at, count = tonumber(rest), count + 1
      elseif word == "did" then
        i = 1
        for n in rest:gmatch "%d+" do sums[i], i = sums[i] + tonumber(n), i + 1 end
      elseif word == "kind" then
        o.known = o.known .. rest .. ","
      elseif word == "done" then
        done, live = true, tonumber(rest)
      else
        print(line)
        if line:find "^%-%- Seed" then reported = reported + 1 end
      end
    end
    if done then break end
    reported, sums[4] = reported + 1, sums[4] + 1
    local _, p, failed = steps.wrong(at, {without = options.without, threads = options.threads, wrap = as_it_is})
    print(("-- Seed %d ended its process or took longer than %d seconds"):format(at, LIMIT))
    if crashes(p, failed) then p = steps.reduce(p, function(c) return crashes(c, failed) end) end
    print(steps.script(p, "crashes"))
    seed = at + 1
  end
  print(("%d programs, %d failures, %.0f s; %.1f nodes; %d train, %d run recordings, %d raise errors; %d live tensors")
    :format(count, sums[4], lm.time() - began, sums[1] / math.max(1, count), sums[2], sums[5], sums[3], live))
  return sums[4] == 0 and 0 or 1
end

return steps
