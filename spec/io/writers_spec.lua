-- Every public function that writes a file, where it cannot: at a limit on the size of files, whose signal ends a
-- process that does not expect it, on a full disk, and in a folder that is gone.
local lm = require "luminary"
local needs, temp = require "spec.support.needs", require "spec.support.temp"

-- Names of the cases in CHILD that use it, by the source file that writes.
local COVERED = {
  ["lua/luminary/cli/line_editing.lua"] = false, -- the prompt's history: spec/cli/cli_spec.lua
  ["lua/luminary/cli/prompt_commands.lua"] = false, -- :edit, in a folder for temporary files
  ["lua/luminary/cli/run_ranks.lua"] = false, -- error files of `luminary run`, in a folder of its own
  ["lua/luminary/cli/script_files.lua"] = false, -- tries a path before a training
  ["lua/luminary/distributed/publish_error.lua"] = {"LM_ERROR_FILE"},
  ["lua/luminary/file_formats/numpy.lua"] = {"lm.save .npy"},
  ["lua/luminary/file_formats/safetensors.lua"] = {"lm.save .safetensors", "checkpoint.save", "checkpoint.Manager"},
  ["lua/luminary/file_formats/zip.lua"] = {"lm.save .npz", "lm.save .pt"},
  ["lua/luminary/onnx/export.lua"] = {"onnx.export"},
  ["lua/luminary/paths.lua"] = {"paths.write", "paths.append"},
  ["lua/luminary/profile/chrome_trace.lua"] = {"profile:export_chrome_trace"},
  ["lua/luminary/text/tokenizer.lua"] = {"Tokenizer:save"},
  ["lua/luminary/vision/image_files.lua"] = {"vision.write_png", "vision.write_jpeg", "vision.write_file"},
  ["lua/luminary/watch/gnuplot.lua"] = false, -- scripts for gnuplot, and the pictures that it drew
  ["lua/luminary/watch/log_file.lua"] = {"watch.SummaryWriter", "watch.JSONLogger", "watch.CSVLogger"},
  ["lua/luminary/watch/plot.lua"] = {"watch.plot.images"},
  ["torch7/lua/luminary/torch7/cmd_line.lua"] = {"torch7 CmdLine:log"},
  ["torch7/lua/luminary/torch7/files.lua"] = {"torch7 torch.save", "torch7 DiskFile"},
  ["torch7/lua/luminary/torch7/logger.lua"] = {"torch7 optim.Logger"},
}

-- Runs the cases in a folder; prints a line for each. writes(path, size) replaces a file or adds about `size` bytes; of
-- a file that grows what it had must be the beginning of what is there afterwards, of all others all. Warnings count as
-- errors: loggers end no training.
local CHILD = [[
local folder, condition = arg[1], arg[2]
local lm = require "luminary"
local ffi = require "ffi"
ffi.cdef "int setrlimit(int, const long *);"
local watch, vision, paths = lm.watch, lm.vision, lm.paths
local nn = lm.nn
io.stdout:setvbuf "no"

local warned
lm.core.warn = function(text) warned = warned or text end -- Lua files look this field up at each call

local function tensors(n) return {w = lm.rand(math.ceil(n / 4))} end
local function image(n) return lm.randint(0, 255, {1, 64, math.ceil(n / 64)}, {dtype = "uint8"}) end
local tokens = [=[{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "byte_fallback": false, "vocab":
  {"a": 0%s}, "merges": []}}]=]
local tokenizers = {}
for _, n in ipairs {100, 20000} do
  local vocab, path = {}, arg[0] .. ".json"
  for i = 1, math.ceil(n / 16) do vocab[i] = (', "a%d": %d'):format(i, i) end
  paths.write(path, tokens:format(table.concat(vocab)))
  tokenizers[n] = lm.text.Tokenizer(path)
end
local function log_of(class) -- returns one logger, which stays open
  return function(path, n, state)
    state.log = state.log or class(path, {append = true})
    state.step = (state.step or 0) + 1
    if class == watch.CSVLogger then
      for i = 1, math.ceil(n / 8) do state.log:log_metrics({loss = i}, i + state.step) end
      return state.log:flush()
    end
    state.log:add_text("text", ("x"):rep(n), state.step)
    if state.step > 1 then state.log:flush() end
  end
end

local cases = {
  {"lm.save .safetensors", ".safetensors", function(path, n) lm.save(path, tensors(n)) end},
  {"lm.save .pt", ".pt", function(path, n) lm.save(path, tensors(n)) end},
  {"lm.save .npy", ".npy", function(path, n) lm.save(path, tensors(n).w) end},
  {"lm.save .npz", ".npz", function(path, n) lm.save(path, tensors(n)) end},
  {"onnx.export", ".onnx", function(path, n)
    lm.onnx.export(nn.Linear(math.ceil(n / 4), 1), lm.ones(1, math.ceil(n / 4)), path)
  end},
  {"checkpoint.save", ".safetensors", function(path, n)
    lm.checkpoint.save(path, {model = nn.Linear(math.ceil(n / 4), 1)})
  end},
  {"checkpoint.Manager", "", function(path, n, state)
    state.step = (state.step or 0) + 1
    lm.checkpoint.Manager(path):save(state.step, {model = nn.Linear(math.ceil(n / 4), 1)})
  end, folder = true},
  {"vision.write_png", ".png", function(path, n) vision.write_png(image(n), path) end},
  {"vision.write_jpeg", ".jpg", function(path, n) vision.write_jpeg(image(n), path) end},
  {"vision.write_file", ".bin", function(path, n) vision.write_file(path, image(n):flatten()) end},
  {"watch.plot.images", ".png", function(path, n) watch.plot.images(image(n):div(255), {path = path}) end},
  {"Tokenizer:save", ".json", function(path, n) tokenizers[n]:save(path) end},
  {"profile:export_chrome_trace", ".json", function(path, n)
    lm.profile(function()
      for _ = 1, math.ceil(n / 100) do lm.ones(1):add(1) end
    end):export_chrome_trace(path)
  end},
  {"paths.write", ".txt", function(path, n) paths.write(path, {("x"):rep(n), "\n"}) end},
  {"paths.append", ".txt", function(path, n) paths.append(path, ("x"):rep(n) .. "\n") end, grows = true},
  {"watch.SummaryWriter", "", function(path, n, state)
    state.log = state.log or watch.SummaryWriter(path)
    state.log:add_text("text", ("x"):rep(n), 1)
    state.log:flush()
  end, folder = true, grows = true},
  {"watch.JSONLogger", ".jsonl", log_of(watch.JSONLogger), grows = true},
  {"watch.CSVLogger", ".csv", log_of(watch.CSVLogger), grows = true},
  {"LM_ERROR_FILE", ".json", function(path, n)
    ffi.cdef "int setenv(const char *, const char *, int);"
    ffi.C.setenv("LM_ERROR_FILE", path, 1)
    require "luminary.distributed.publish_error"("error", ("x"):rep(n))
  end, silent = true, empties = true}, -- an older error would mislead
}
local has_torch7 = pcall(require, "luminary.torch7")
if has_torch7 then
  local torch = require "luminary.torch7"
  for _, case in ipairs {
    {"torch7 torch.save", ".t7", function(path, n) torch.save(path, torch.rand(math.ceil(n / 8))) end},
    {"torch7 DiskFile", ".t7", function(path, n)
      local file = torch.DiskFile(path, "w")
      file:writeString(("x"):rep(n))
      file:close()
    end},
    {"torch7 optim.Logger", ".log", function(path, n, state)
      state.log = state.log or lm.optim.Logger(path)
      for i = 1, math.ceil(n / 12) do state.log:add {i} end
    end, grows = true},
    {"torch7 CmdLine:log", ".log", function(path, n, state)
      local print_before = print
      if not state.print then
        local cmd = lm.CmdLine()
        cmd:silent()
        cmd:log(path)
        state.print, print = print, print_before
      end
      state.print(("x"):rep(n))
    end, grows = true},
  } do cases[#cases + 1] = case end
end

local function read(path)
  if paths.dirp(path) then
    local all = {}
    for _, name in ipairs(paths.dir(path)) do
      if name:sub(1, 1) ~= "." then all[#all + 1] = name .. ":" .. (read(path .. "/" .. name) or "") end
    end
    return table.concat(all, "\n")
  end
  local file = io.open(path, "rb")
  local text = file and file:read "*a"
  if file then file:close() end
  return text
end
local function read_all(path) return paths.filep(path) and read(path) or paths.dirp(path) and read(path) or nil end

-- Masks and dispositions of signals, which are the host's, and what is pending.
local function signals()
  local found = {}
  for line in io.lines "/proc/self/status" do
    local name, mask = line:match "^(S[hi]%a+):%s*(%x+)$"
    if name then found[#found + 1] = ("%s %x"):format(name, tonumber(mask:sub(-8), 16) % 2 ^ 31) end -- not libc's own
  end
  return table.concat(found, " ")
end

local function limit(bytes) assert(ffi.C.setrlimit(1, ffi.new("long[2]", bytes, -1)) == 0) end

local filler
local begin = {
  limit = function() limit(512) end,
  disk = function()
    filler = assert(io.open(folder .. "/filler", "wb"))
    filler:setvbuf "no"
    while filler:write(("x"):rep(512)) do end
  end,
  gone = function(at) paths.rmall(at, "yes") end,
}
local finish = {
  limit = function() limit(-1) end,
  disk = function()
    filler:close()
    os.remove(folder .. "/filler")
  end,
  gone = function() end,
}

for i, case in ipairs(cases) do
  local at, state = ("%s/%d"):format(folder, i), {}
  paths.mkdir(at)
  local path = at .. "/file" .. case[2]
  if case.folder then paths.mkdir(path) end
  case[3](path, 100, state)
  local names, before, host = table.concat(paths.dir(at), " "), read_all(path), signals()
  warned = nil
  begin[condition](at)
  local ok, why = pcall(case[3], path, 20000, state)
  local after = signals()
  finish[condition]()
  why = tostring(not ok and why or warned or "no error"):gsub("^[^\n]-:%d+: ", "")
  if case.silent and ok then why = "" end
  local kept = "kept"
  if condition ~= "gone" then
    local now = read_all(path)
    if case.empties then before = "" end
    if not now or (case.grows and now:sub(1, #before) ~= before or not case.grows and now ~= before) then
      kept = ("lost: %d bytes, %d before"):format(now and #now or -1, #before)
    end
    if table.concat(paths.dir(at), " ") ~= names then kept = kept .. "; left " .. table.concat(paths.dir(at), " ") end
  end
  io.stdout:write(("%s\t%s\t%s\t%s\n"):format(case[1], why:gsub("[\t\n]", " "), kept,
    host == after and "same signals" or host .. " became " .. after))
  case, state = nil, nil
  collectgarbage()
end
io.stdout:write "end\n"
]]

local folder = temp.during(setup, teardown)

-- Returns the child's lines, by case: {error, kept, signals}.
local function run(condition, at, before)
  temp.write(folder .. "/child.lua", CHILD)
  local _, text, code = temp.run(folder, ("%s luajit %s/child.lua %s %s"):format(before or "", folder, at,
    condition))
  assert.equal(0, code, text)
  local found = {}
  for name, why, kept, signals in text:gmatch "([^\t\n]+)\t([^\t\n]*)\t([^\t\n]*)\t([^\t\n]*)\n" do
    found[name] = {why, kept, signals}
  end
  assert.matches("end\n$", text)
  return found
end

local function check(found, reason)
  local wrong = {}
  local function need(good, ...) if not good then wrong[#wrong + 1] = table.concat({...}, ": ") end end
  for _, names in pairs(COVERED) do
    for _, name in ipairs(names or {}) do
      local got = found[name]
      if got or not name:find "^torch7" then
        need(got, name, "did not run")
        local recreated = reason:find "^No such" and name == "checkpoint.Manager" -- Manager makes its folder
        if got and name ~= "LM_ERROR_FILE" and not recreated then
          need(got[1]:find("cannot write '[^']+': " .. reason), name, got[1])
        end
        need(got and got[2] == "kept", name, got and got[2] or "")
        need(got and got[3] == "same signals", name, got and got[3] or "")
      end
    end
  end
  assert.equal("", table.concat(wrong, "\n"))
end

describe("A file that cannot be written", function()
  it("at a limit on the size of files is an error, and keeps what it had", function()
    local at = folder .. "/limit"
    lm.paths.mkdir(at)
    check(run("limit", at), "File too large")
  end)

  it("on a full disk is an error, and keeps what it had", function()
    local why = needs.mounts()
    if why then return pending(why) end
    local at = folder .. "/disk"
    lm.paths.mkdir(at)
    local mount = ("env -u LD_PRELOAD mount -t tmpfs -o size=1m none %s; trap 'umount %s' EXIT; "):format(at, at)
    check(run("disk", at, mount), "No space left on device")
  end)

  it("in a folder that is gone is an error", function()
    local at = folder .. "/gone"
    lm.paths.mkdir(at)
    check(run("gone", at), "No such file or directory")
  end)

  it("ends no process where warnings go to it", function()
    -- LeakSanitizer itself is ended by the limit.
    local _, text, code = temp.run(folder, ([[(export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0"; ulimit -f 0
      exec luajit -e 'require("luminary").core.warn "text" os.exit(3)' 2>%s/warnings)]]):format(folder))
    assert.equal(3, code, text)
  end)

  it("is written by the writers that this spec covers alone", function()
    local pipe, wrong = io.popen "ls lua/luminary/*.lua lua/luminary/*/*.lua lua/luminary/*/*/*.lua \z
      torch7/lua/luminary/*/*.lua torch7/lua/luminary/*/*/*.lua scripts/*.lua examples/*.lua 2>/dev/null", {}
    for path in pipe:lines() do
      local text = temp.read(path)
      for mode in text:gmatch "[%.%s=(]open%([^\n]-,%s*[\"']([rwab+]+)[\"']%)" do
        if mode:find "[wa+]" then wrong[#wrong + 1] = path .. " opens a file by io.open to write" end
      end
      local calls = text:find "write_pieces%(" or text:find "background_write%(" or text:find "growing_file_open%("
        or text:find "growing_file_open," or text:find "[^%w]paths%.write[,( ]"
      if calls and not path:find "^scripts/" and not path:find "^examples/" and COVERED[path] == nil then
        wrong[#wrong + 1] = path .. " writes a file, which no case of this spec does"
      end
    end
    pipe:close()
    assert.equal("", table.concat(wrong, "\n"))
  end)
end)
