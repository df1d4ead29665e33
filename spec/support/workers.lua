-- Spec files side by side, each in a process of its own, the longest first. What a process has printed is shown if
-- something is wrong with it. One that crashes, hangs or leaks is a failure that names the file and the spec that ran.
-- Closes with "N passed, N failed, N skipped".
local ffi = require "ffi"
local temp = require "spec.support.temp"

ffi.cdef [[
  struct lm_spec_usage { long user_s, user_us, system_s, system_us, others[14]; };
  int fork(void); int execvp(const char *, const char *const *); void _exit(int);
  int open(const char *, int, ...); int dup2(int, int); int setenv(const char *, const char *, int);
  int wait4(int, int *, int, struct lm_spec_usage *); int prctl(int, ...); int setsid(void); int getsid(int);
  struct lm_spec_ended { int signal, error, code, pad, pid, others[27]; };
  int waitid(int, unsigned, struct lm_spec_ended *, int);
  struct lm_spec_time { long s, ns; }; int clock_gettime(int, struct lm_spec_time *);
  int usleep(unsigned);
]]
local C = ffi.C
local LIMIT = os.getenv "LM_TEST_LONG" and 7200 or 900 -- seconds for one file

-- The files that take longest, to begin first.
local LONGEST = {
  "elastic_spec", "compile_steps_spec", "step_counts_spec", "async_spec", "models_spec", "chaos_spec", "mpi_spec",
  "doctor_spec", "faults_spec", "package_spec", "install_spec", "world_spec", "examples_spec", "manners_spec",
  "ops_spec", "half_spec", "random_steps_spec", "threads_spec", "cli_spec", "conv_spec", "store_spec", "start_spec",
  "attention_spec", "compare_more_spec", "gpu_check_spec", "c_interface_spec", "ranks_spec", "collectives_spec",
  "docs_spec", "train_gpt_spec", "launcher_spec", "train_spec", "compare_spec", "freeing_spec", "imagenet_spec",
  "gemm_spec", "arguments_spec", "loader_state_spec", "nccl_failing_spec", "nccl_spec", "plan_spec",
  "data_parallel_spec", "pipeline_spec", "tensor_parallel_spec", "loader_workers_spec", "rows_spec", "oom_spec",
  "interpreted_spec",
}

local function now()
  local t = ffi.new "struct lm_spec_time"
  C.clock_gettime(1, t)
  return tonumber(t.s) + tonumber(t.ns) / 1e9
end

-- Returns the share of the CPUs' time since its last call that no process of the machine used.
local last_idle, last_all = 0, 0
local function idle_share()
  local idle, all, column = 0, 0, 0
  for ticks in temp.read("/proc/stat"):match "^cpu([^\n]*)":gmatch "%d+" do
    column = column + 1
    if column == 4 or column == 5 then idle = idle + ticks end -- idle, iowait
    if column <= 8 then all = all + ticks end -- others are parts of the first two
  end
  local share = (idle - last_idle) / math.max(all - last_all, 1)
  last_idle, last_all = idle, all
  return share
end

-- Starts a process that runs these arguments in its own session, with variables, and its output in a file. It ends when
-- this one does.
local function start(arguments, env, out)
  local argv = ffi.new("const char *[?]", #arguments + 1, arguments)
  argv[#arguments] = nil
  local pid = C.fork()
  if pid ~= 0 then return pid end
  C.setsid()
  C.prctl(1, ffi.cast("long", 15)) -- PR_SET_PDEATHSIG, SIGTERM
  for name, value in pairs(env) do C.setenv(name, value, 1) end
  local fd = C.open(out, 1089, ffi.cast("int", 420)) -- O_WRONLY | O_CREAT | O_APPEND
  C.dup2(C.open("/dev/null", 0), 0)
  C.dup2(fd, 1)
  C.dup2(fd, 2)
  C.execvp(argv[0], argv)
  C._exit(127)
end

-- Returns what a file's report says: counts by status, and the specs. A run that did not end has a failure more.
local function judge(job, code)
  local counts = { success = 0, failure = 0, error = 0, pending = 0 }
  local running, ended
  for line in (temp.exists(job.report) and temp.read(job.report) or ""):gmatch "[^\n]+" do
    local status, seconds, name, reason = line:match "^(%a+)\t(%S+)\t([^\t]*)\t(.*)$"
    ended = ended or line == "end"
    if status == "begin" then
      running = name
    elseif status then
      counts[status] = counts[status] + 1
      running = nil
      job.specs[#job.specs + 1] = { status = status, seconds = tonumber(seconds), name = name, reason = reason }
    end
  end
  job.passed, job.failed, job.skipped = counts.success, counts.failure + counts.error, counts.pending
  if job.failed > 0 or (code == 0 and ended) then return end
  job.failed = 1
  local how = "exit code " .. code
  if code == 124 then how = ("not done after %d s"):format(LIMIT) end
  if code > 128 then how = "ended by signal " .. code - 128 end
  return how .. (running and ", in: " .. running or ended and ", after its last spec" or "")
end

return function(files, options)
  if #files == 0 then
    io.stderr:write "run.lua: there is no such spec file\n"
    return 1
  end
  C.prctl(36, ffi.cast("long", 1)) -- PR_SET_CHILD_SUBREAPER: processes that others left behind are counted here
  local began, all, running = now(), { passed = 0, failed = 0, skipped = 0, cpu = 0, reasons = {} }, {}
  local done, excluded = {}, table.concat(options.excluded, ",")

  -- Starts the file's part of that number, from 0.
  local function launch(file, part, parts)
    local job = {
      path = file, part = part, parts = parts, specs = {}, began = now(), cpu = 0,
      out = os.tmpname(), report = os.tmpname(),
    }
    local arguments = { "timeout", "-k", "10", tostring(LIMIT), "luajit", "spec/run.lua", file }
    for _, option in ipairs(options.busted) do arguments[#arguments + 1] = option end
    local tags = options.tags_of(file)
    if tags then arguments[#arguments + 1] = "--tags=" .. tags end
    if excluded ~= "" then arguments[#arguments + 1] = "--exclude-tags=" .. excluded end
    job.file = parts > 1 and ("%s %d/%d"):format(file, part + 1, parts) or file
    job.pid = start(arguments, {LM_SPEC_REPORT = job.report, LM_SPEC_PART = part .. "/" .. parts}, job.out)
    assert(job.pid > 0, "no process to be had")
    running[job.pid] = job
  end

  -- Waits until a file has ended, or with `poll` only looks; returns whether one has.
  local function reap(poll)
    local ended, status, usage = ffi.new "struct lm_spec_ended", ffi.new "int[1]", ffi.new "struct lm_spec_usage"
    local job
    repeat
      -- P_ALL; WEXITED | WNOWAIT (| WNOHANG): the session can still be asked for
      assert(C.waitid(0, 0, ended, poll and 0x1000005 or 0x1000004) == 0)
      if ended.pid == 0 then return false end
      local pid, session = ended.pid, C.getsid(ended.pid)
      C.wait4(pid, status, 0, usage)
      job = running[pid]
      local cpu = tonumber(usage.user_s + usage.system_s) + tonumber(usage.user_us + usage.system_us) / 1e6
      all.cpu = all.cpu + cpu
      local of = job or running[session]
      if of then of.cpu = of.cpu + cpu end
    until job
    running[job.pid] = nil
    job.seconds = now() - job.began
    local code = status[0] % 128 == 0 and bit.rshift(status[0], 8) or 128 + status[0] % 128
    local why = judge(job, code)
    job.has_ended = why == nil
    for _, count in ipairs { "passed", "failed", "skipped" } do all[count] = all[count] + job[count] end
    if job.passed + job.failed + job.skipped > 0 then
      io.write(("%-6s %-38s %4d passed%s%s, %.1f s, of the CPU %.1f s\n"):format(job.failed > 0 and "FAILED" or "ok",
        job.file, job.passed, job.failed > 0 and (", %d failed"):format(job.failed) or "",
        job.skipped > 0 and (", %d skipped"):format(job.skipped) or "", job.seconds, job.cpu))
    end
    if job.failed > 0 then
      io.write(temp.read(job.out):sub(-20000), why and ("FAILED %s: %s\n"):format(job.file, why) or "", "\n")
    end
    io.flush()
    os.remove(job.out)
    os.remove(job.report)
    done[#done + 1] = job
    return true
  end

  local place = {}
  for i, name in ipairs(LONGEST) do place[name] = i end
  local function at(file) return place[file:match "([^/]*)%.lua$"] or math.huge end
  for i, file in ipairs(files) do files[i] = { file, at(file), i } end
  table.sort(files, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[3] < b[3]) end)

  local count = 0
  for _, file in ipairs(files) do
    local parts = 1
    for line in temp.read(file[1]):gmatch "[^\n]+" do -- the comment at its head
      if not line:find "^%-%-" then break end
      parts = tonumber(line:match "^%-%- parts: (%d+)$") or parts
    end
    for part = 0, parts - 1 do
      while count >= options.jobs do
        local poll = options.most and count < options.most
        if reap(poll) then
          count = count - 1
        elseif poll then
          idle_share() -- from here on, not since a last look long ago
          C.usleep(250000)
          if idle_share() > 0.25 then break end
        end
      end
      launch(file[1], part, parts)
      count = count + 1
    end
  end
  for _ = 1, count do reap() end

  -- Several failed files, a crash and a hang are faults of the code. Of few files whose specs failed, each runs again
  -- with the machine to itself, and that counts: it has to pass three times.
  local failed, ended = {}, true
  for i, job in ipairs(done) do
    if job.failed > 0 then failed[#failed + 1] = i end
    ended = ended and (job.failed == 0 or job.has_ended)
  end
  if options.again and ended and #failed <= options.again then
    for _, i in ipairs(failed) do
      local first = done[i]
      io.write(("again, alone: %s\n"):format(first.file))
      for _ = 1, 3 do
        for _, name in ipairs { "passed", "failed", "skipped" } do all[name] = all[name] - done[i][name] end
        launch(first.path, first.part, first.parts)
        reap()
        done[i] = table.remove(done)
        if done[i].failed > 0 then break end
      end
      if done[i].failed == 0 then io.write(("unsteady: %s failed beside others, not alone\n"):format(first.file)) end
    end
  end

  for _, job in ipairs(done) do
    for _, spec in ipairs(job.specs) do
      if spec.status == "pending" then
        local reason = spec.reason:gsub("^[^ ]*:%d+: ", "")
        if reason == "" then reason = spec.name end
        if not all.reasons[reason] then
          all.reasons[#all.reasons + 1] = reason
          all.reasons[reason] = 0
        end
        all.reasons[reason] = all.reasons[reason] + 1
      end
    end
  end
  for _, reason in ipairs(all.reasons) do io.write(("skipped %d: %s\n"):format(all.reasons[reason], reason)) end
  if options.slowest then
    local specs = {}
    for _, job in ipairs(done) do
      for _, spec in ipairs(job.specs) do
        specs[#specs + 1] = { spec.seconds, ("%s: %s"):format(job.file, spec.name) }
      end
    end
    local function show(title, rows, form)
      table.sort(rows, function(a, b) return a[1] > b[1] end)
      io.write(title, "\n")
      for i = 1, math.min(options.slowest, #rows) do io.write("  ", form:format(unpack(rows[i])), "\n") end
    end
    for i, job in ipairs(done) do done[i] = { job.seconds, job.cpu, job.file } end
    show("the slowest specs:", specs, "%7.2f s  %s")
    show("the slowest files:", done, "%7.2f s, of the CPU %7.2f s  %s")
    io.write(("%.1f s, of the CPU %.1f s\n"):format(now() - began, all.cpu))
  end
  io.write(("%d passed, %d failed, %d skipped\n"):format(all.passed, all.failed, all.skipped))
  return all.failed == 0 and 0 or 1
end
