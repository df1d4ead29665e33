-- lm.checkpoint where the disk is full, read-only or fails, where bytes of files were changed, and where a rank dies:
-- the newest good checkpoint loads, nothing earlier is lost, and the next save leaves no temporary file.
local lm = require "luminary"
local needs = require "spec.support.needs"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local long = lm.getenv "LM_TEST_LONG" ~= nil

local folder, library
setup(function()
  library = temp.folder()
  local ok, text = temp.run(library, ("unset LD_PRELOAD; gcc -std=gnu11 -Wall -Wextra -Werror -O2 -shared -fPIC "
    .. "spec/support/faulty_disk.c -o %s/faulty_disk.so -ldl"):format(library))
  assert(ok, text)
end)
teardown(function() temp.remove(library) end)
before_each(function() folder = temp.folder() end)
after_each(function() temp.remove(folder) end)

-- Runs support/checkpoint_faults.lua on n ranks, after `before`, a shell command.
local function run(n, where, expected, on, off, before)
  temp.write(folder .. "/run.sh", ([[
    set -e
    %s
    exec luminary run --nproc %d spec/support/checkpoint_faults.lua "$@"]]):format(before or "", n))
  assert(lm.paths.mkdir(folder .. "/run"))
  local function quote(text) return "'" .. text:gsub("'", "'\\''") .. "'" end
  local _, text, code = temp.run(folder, ("LD_PRELOAD=\"$LD_PRELOAD %s/faulty_disk.so\" OMP_NUM_THREADS=1 timeout 100 "
    .. "%s sh %s/run.sh %s/run %s %s %s %s"):format(library, before and "unshare -m" or "", folder, folder, where,
    quote(expected), quote(on), quote(off)))
  assert(code == 0, text)
  assert(select(2, text:gsub("finished", "")) == n, text)
end

local function each_world(f)
  f(1, "0")
  f(2, "0")
  f(2, "1")
end

describe("a disk that fails", function()
  local OFF = 'lm_fault("", 0, 0)'
  for i, case in ipairs {
    {"no space at the first byte", 'lm_fault("write", 1, 28)', "cannot write '[^']*': No space left on device"},
    {"no space later", 'lm_fault("write", 3, 28)', "cannot write '[^']*': No space left on device"},
    {"no space after the shard", 'lm_fault("write", 6, 28)', "cannot write '[^']*': No space left on device", "0"},
    {"an error of writing", 'lm_fault("write", 2, 5)', "cannot write '[^']*': Input/output error"},
    {"fsync", 'lm_fault("fsync", 1, 5)', "cannot write '[^']*': Input/output error"},
    {"close", 'lm_fault("close", 1, 122)', "cannot write '[^']*': Disk quota exceeded"},
    {"rename", 'lm_fault("rename", 1, 5)', "cannot replace '[^']*': Input/output error"},
    {"linkat", 'lm_fault("linkat", 1, 5)', "cannot write '[^']*': Input/output error"},
    {"short and interrupted writes", 'lm_fault("write", 1, 0)', "works"},
    {"no nameless files", 'lm_fault("O_TMPFILE", 1, 95)', "works"},
    {"another saver that removes abandoned files", 'lm_fault("clean-up", 1, 0)', "works"},
  } do
    it("loses nothing: " .. case[1], function()
      each_world(function(n, where)
        if case[4] and where ~= case[4] then return end
        if n == 2 and not case[4] and not long and tonumber(where) ~= i % 2 then return end
        temp.remove(folder .. "/run")
        run(n, where, case[3], case[2], OFF)
      end)
    end)
  end
end)

describe("a folder", function()
  it("that is full loses nothing", function()
    local why = needs.mounts()
    if why then return pending(why) end
    for n = 1, 2 do
      temp.remove(folder .. "/run")
      run(n, "all", "cannot write '[^']*': No space left on device",
        'os.execute("cat /dev/zero 2>/dev/null >" .. folder .. "/fill")', 'os.remove(folder .. "/fill")',
        ("mount -t tmpfs -o size=24m none %s/run"):format(folder))
    end
  end)

  it("that is read-only loses nothing", function()
    local why = needs.mounts()
    if why then return pending(why) end
    for n = 1, 2 do
      temp.remove(folder .. "/run")
      run(n, "all", "cannot write '[^']*': Read%-only file system",
        'assert(os.execute("mount -o remount,ro " .. folder) == 0)',
        'assert(os.execute("mount -o remount,rw " .. folder) == 0)',
        ("mount -t tmpfs none %s/run"):format(folder))
    end
  end)

  it("that became a file loses nothing", function()
    for n = 1, 2 do
      temp.remove(folder .. "/run")
      local there = folder .. "/run"
      local got = ranks.run {n = n, timeout = 60, script = ([[
        local lm = require "luminary"
        local size = tonumber(os.getenv "WORLD_SIZE")
        lm.dist.init_process_group {timeout = 60}
        local rank = lm.dist.get_rank()
        local manager = lm.checkpoint.Manager {dir = %q}
        manager:save(1, {w = lm.ones(3)})
        if rank == 0 then assert(os.execute "mv %s %s.away && touch %s" == 0) end
        lm.dist.barrier()
        local ok, why = pcall(manager.save, manager, 2, {w = lm.ones(3)})
        assert(not ok and why:find "cannot write '[^']*': Not a directory", why)
        ok, why = pcall(manager.load, manager)
        assert(not ok and why:find "cannot read '[^']*': Not a directory", why)
        lm.dist.barrier()
        if rank == 0 then assert(os.execute "rm %s && mv %s.away %s" == 0) end
        lm.dist.barrier()
        assert(manager:load().step == 1)
        lm.dist.destroy_process_group()]]):format(there, there, there, there, there, there, there)}
      assert(got.ok, got.text)
    end
  end)
end)

-- Ranks with a manager and the fault; they end with "finished".
local function run_with_faults(n, script, env)
  env = env or {}
  env.LD_PRELOAD = ("%s %s/faulty_disk.so"):format(os.getenv "LD_PRELOAD" or "", library)
  local got = ranks.run {n = n, timeout = 60, env = env, script = ([[
    local lm = require "luminary"
    local ffi = require "ffi"
    ffi.cdef "void lm_fault(const char *folder, const char *call, int first, int error); int lm_fault_calls(void);"
    local size, folder = tonumber(os.getenv "WORLD_SIZE"), %q
    if size > 1 then lm.dist.init_process_group {timeout = 60} end
    local rank = size > 1 and lm.dist.get_rank() or 0
    local function barrier() if size > 1 then lm.dist.barrier() end end
    local manager = lm.checkpoint.Manager {dir = folder .. "/run", keep_last = 1}
    local function fails(pattern, f, ...)
      local began = lm.time()
      local ok, why = pcall(f, ...)
      assert(not ok and why:find(pattern), tostring(why))
      assert(lm.time() - began < 30)
    end
    %s
    if size > 1 then lm.dist.destroy_process_group() end
    print "finished"]]):format(folder, script)}
  assert(got.ok, got.text)
  assert(select(2, got.text:gsub("finished", "")) == n, got.text)
  return got.text
end

describe("a file system", function()
  it("that cannot set modes keeps those of the umask and the old file, and takes the save", function()
    run_with_faults(1, [[
      ffi.cdef "unsigned umask(unsigned); int chmod(const char *, unsigned);"
      local path = folder .. "/a.safetensors"
      local function mode() return io.popen("stat -c %a " .. path):read() end
      for _, case in ipairs {{384, 18, "600"}, {416, 63, "600"}, {438, 18, "644"}, {384, 0, "600"}} do
        ffi.C.lm_fault("", "", 0, 0)
        lm.checkpoint.save(path, {step = 1})
        ffi.C.chmod(path, case[1])
        ffi.C.umask(case[2])
        for _, code in ipairs {1, 95, 38} do -- EPERM, EOPNOTSUPP, ENOSYS
          ffi.C.lm_fault(folder, "fchmod", 1, code)
          lm.checkpoint.save(path, {step = 2})
          assert(lm.checkpoint.load(path).step == 2)
          assert(mode() == case[3], mode())
        end
        ffi.C.umask(18)
        ffi.C.lm_fault(folder, "fchmod", 1, 5)
        fails("cannot write '[^']*': Input/output error", lm.checkpoint.save, path, {step = 3})
        assert(lm.checkpoint.load(path).step == 2)
      end]])
  end)

  it("that cannot sync folders takes the save; a disk that fails at it is an error, and the file is whole", function()
    for n = 1, 2 do
      temp.remove(folder .. "/run")
      run_with_faults(n, [[
        local net = lm.nn.Linear(30, 20)
        local opt = size > 1 and lm.optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = lm.optim.Adam})
          or lm.optim.Adam(net:parameters())
        net(lm.ones(1, 30)):sum():backward()
        opt:step()
        local parts = {net = net, opt = opt}
        manager:save(1, parts)
        for step, code in pairs {[2] = 22, [3] = 95} do -- EINVAL, EOPNOTSUPP
          if rank == 0 then ffi.C.lm_fault(manager.dir .. "\0", "fsync folder", 1, code) end
          manager:save(step, parts)
          assert(rank > 0 or ffi.C.lm_fault_calls() > 0)
        end
        if rank == 0 then ffi.C.lm_fault(manager.dir, "fsync folder", size, 5) end
        fails("cannot sync the folder of '[^']*': Input/output error", manager.save, manager, 4, parts)
        local step = manager:load(parts).step -- the other rank may have completed the save, or not
        assert(step == 4 or size == 2 and step == 3)
        ffi.C.lm_fault("", "", 0, 0)
        manager:save(5, parts)
        barrier() -- rank 0 has removed the others
        assert(#lm.paths.dir(manager.dir) == 3 + (size > 1 and size or 0))
        assert(manager:load(parts).step == 5)]])
    end
  end)

  it("that fails while a large file is still written is an error, which its fsync would not repeat", function()
    run_with_faults(1, [[
      local path, w = folder .. "/a.safetensors", lm.zeros(40e6) -- 160 MB
      for code, why in pairs {[5] = "Input/output error", [122] = "Disk quota exceeded"} do
        ffi.C.lm_fault(folder, "sync_file_range", 1, code)
        fails("cannot write '[^']*': " .. why, lm.checkpoint.save, path, {w = w})
        assert(#lm.paths.dir(folder) == 3)
      end
      ffi.C.lm_fault(folder, "sync_file_range", 1, 38) -- ENOSYS
      lm.checkpoint.save(path, {w = w})
      assert(ffi.C.lm_fault_calls() > 0)]])
  end)

  it("without locks takes the save, and removes what was abandoned a day ago", function()
    run_with_faults(1, [[
      for _, code in ipairs {37, 38, 95, 5} do -- ENOLCK, ENOSYS, EOPNOTSUPP; EIO
        ffi.C.lm_fault(folder, "flock", 1, code)
        for _, name in ipairs {"tmp-1-1", "shard-a-0"} do
          for _, age in ipairs {"25 hours", "23 hours"} do
            assert(os.execute(("touch -d '%s ago' '%s.%s %s'"):format(age, manager:path(1), name, age)) == 0)
          end
        end
        manager:save(1, {step = 1})
        local names = table.concat(lm.paths.dir(manager.dir), ",")
        assert(manager:load().step == 1 and names:find "tmp%-1%-1 23" and names:find "shard%-a%-0 23", names)
        assert((names:find "tmp%-1%-1 25" ~= nil) == (code == 5) and (names:find "%-0 25" ~= nil) == (code == 5), names)
      end]])
  end)
end)

describe("a save of shards in the background", function()
  local PARTS = [[
    local net = lm.nn.Linear(500, 400)
    for _, p in ipairs(net:parameters()) do lm.dist.broadcast(p:detach(), 0) end
    local opt = lm.optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = lm.optim.Adam})
    net(lm.ones(1, 500)):sum():backward()
    opt:step()
    local parts = {net = net, opt = opt}
    manager.async, manager.keep_last = true, 9
    local function names() return table.concat(lm.paths.dir(manager.dir), " ") end
  ]]

  it("returns before they are written, and writes what was there", function()
    run_with_faults(2, PARTS .. [[
      local before = net.weight:clone()
      ffi.C.lm_fault(folder, "slow write", 1, 300)
      local saving = lm.checkpoint.save(manager:path(1), parts, {async = true}) -- 3 s
      assert(not saving:is_done() and #manager:steps() == 0)
      lm.no_grad(function() net.weight:zero_() end)
      opt:step()
      lm.checkpoint.wait()
      assert(saving:is_done())
      ffi.C.lm_fault("", "", 0, 0)
      local _, count = names():gsub("shard", "")
      assert(count == 2, names())
      assert(#manager:steps() == 1 and manager:load(parts))
      assert(net.weight:equal(before))]])
  end)

  it("counts once the last shard is there, whichever rank writes it", function()
    for slow = 0, 1 do
      temp.remove(folder .. "/run")
      run_with_faults(2, PARTS .. ([[
        if rank == %d then ffi.C.lm_fault(folder, "slow write", 1, 300) end
        local saving = lm.checkpoint.save(manager:path(1), parts, {async = true})
        if rank ~= %d then
          while not saving:is_done() do end
          assert(names():find "shard.*shard" or not names():find "%%.safetensors ")
          assert(#manager:steps() == 0)
        end
        saving:wait()
        assert(saving:is_done() and #manager:steps() == 1)
        assert(manager:load(parts))]]):format(slow, slow))
    end
  end)

  it("that fails on one rank is an error of all at the next call, and leaves the one before", function()
    for where = 0, 1 do
      for call, begins in pairs {
        ["manager.save, manager, 3, parts"] = "Manager:save", ["manager.load, manager, parts"] = "Manager:load",
        ["lm.checkpoint.wait"] = "checkpoint.wait",
        ["lm.checkpoint.load, manager:path(1), parts"] = "checkpoint.load",
      } do
        temp.remove(folder .. "/run")
        run_with_faults(2, PARTS .. ([[
          manager:save(1, parts)
          lm.checkpoint.wait()
          if rank == %d then ffi.C.lm_fault(folder, "write", 2, 28) end
          manager:save(2, parts)
          manager:best()
          assert(lm.checkpoint.load(manager:path(1))) -- one rank alone loads the checkpoint
          fails("%s: .*the save of '[^']*' in the background failed: cannot write '[^']*': No space left on device", %s)
          barrier()
          assert(#manager:steps() == 1 and not names():find "2.safetensors", names())
          ffi.C.lm_fault("", "", 0, 0)
          assert(manager:load(parts).step == 1)
          manager:save(3, parts)
          lm.checkpoint.wait()
          assert(manager:load(parts).step == 3)]]):format(where, begins, call))
      end
    end
  end)

  it("that fails is shown at the end of the program if no call of all ranks has raised it", function()
    local ok, text = pcall(run_with_faults, 2, PARTS .. [[
      if rank == 1 then ffi.C.lm_fault(folder, "write", 2, 28) end
      manager:save(1, parts)
      manager:best()]])
    assert.is_false(ok)
    assert.matches("rank 1: exit code 1 .*a save in the background failed: cannot write '[^']*': No space left", text)
    assert.same({}, lm.checkpoint.Manager({dir = folder .. "/run"}):steps())
  end)

  it("replaces the file behind a link, whose mode stays", function()
    run_with_faults(2, PARTS .. [[
      local real, link = folder .. "/real", folder .. "/run/link.safetensors"
      if rank == 0 then
        assert(os.execute(("touch %s && chmod 600 %s && ln -s ../real %s"):format(real, real, link)) == 0)
      end
      barrier()
      for i = 1, 2 do
        parts.i = i
        lm.checkpoint.save(link, parts, {async = true}):wait()
        assert(lm.checkpoint.load(link, parts).i == i)
      end
      assert(io.popen("stat -c '%a %F' " .. real):read() == "600 regular file")
      assert(io.popen("stat -c '%F' " .. link):read() == "symbolic link")]])
  end)

  it("is waited for at the end of the program by each rank, and ends complete", function()
    for slow = 0, 1 do
      temp.remove(folder .. "/run")
      run_with_faults(2, PARTS .. ([[
        if rank == %d then ffi.C.lm_fault(folder, "slow write", 1, 300) end
        manager:save(1, parts)]]):format(slow))
      local names = table.concat(lm.paths.dir(folder .. "/run"), " ")
      assert.equal(5, #lm.paths.dir(folder .. "/run"), names)
      assert.equal(1, lm.checkpoint.Manager({dir = folder .. "/run"}):load().step)
      lm.checkpoint.load(folder .. "/run/step-0000000001.safetensors", {opt = lm.optim.Adam(
        lm.nn.Linear(500, 400):parameters())})
    end
  end)
end)

describe("a save of shards", function()
  it("looks for those of other ranks once they are there, since NFS remembers absent names", function()
    for slow = 1, 0, -1 do
      temp.remove(folder .. "/run")
      run_with_faults(2, ([[
        local net = lm.nn.Linear(500, 400)
        local opt = lm.optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = lm.optim.Adam})
        net(lm.ones(1, 500)):sum():backward()
        opt:step()
        for step, async in ipairs {false, true} do
          if rank == %d then
            ffi.C.lm_fault(folder, "slow write", 1, 100)
          else
            ffi.C.lm_fault(folder, "absence", 1, 0)
          end
          manager.async = async
          manager:save(step, {net = net, opt = opt})
          lm.checkpoint.wait()
          if rank ~= %d then assert(ffi.C.lm_fault_calls() == 1, "lookups of others' shards") end -- one of its own
          ffi.C.lm_fault("", "", 0, 0)
          assert(manager:load({net = net, opt = opt}).step == step)
        end]]):format(slow, slow))
    end
  end)
end)

describe("the end of a program", function()
  local SAVE = [[
    ffi.C.lm_fault(folder, "slow write", %d, %d)
    lm.checkpoint.save(folder .. "/a.safetensors", {w = lm.ones(1e6)}, {async = true})]]

  it("waits for a save in the background as long as it is written", function()
    run_with_faults(1, SAVE:format(1, 250), {LM_SAVE_TIMEOUT = "1"})
    assert.equal(1e6, lm.checkpoint.load(folder .. "/a.safetensors").w:sum():item())
  end)

  it("gives up where nothing is written for a time, and names the file", function()
    local began = lm.time()
    local ok, text = pcall(run_with_faults, 1, SAVE:format(3, 60000), {LM_SAVE_TIMEOUT = "1"})
    assert.is_true(lm.time() - began < 60) -- writes that take 60 s each are not waited for
    assert.is_false(ok)
    assert.matches("exit code 1 .*a save in the background failed: cannot finish '[^']*a.safetensors': nothing was "
      .. "written for 1 s", text)
    assert.is_false(temp.exists(folder .. "/a.safetensors"))
  end)
end)

describe("a folder that cannot be read", function()
  for _, case in ipairs {{"opendir", 1, 13, "Permission denied"}, {"readdir", 1, 5, "Input/output error"},
    {"readdir", 4, 5, "Input/output error"}} do
    local call, first, code, reason = unpack(case)
    it(("is an error, not a run without checkpoints: %s %d"):format(call, first), function()
      local text = run_with_faults(1, ([[
        local why = "cannot read '[^']*/run': %s"
        manager:save(1, {w = lm.ones(3)})
        ffi.C.lm_fault(folder, %q, %d, %d)
        for _, method in ipairs {"steps", "load", "latest"} do fails(why, manager[method], manager) end
        assert(select(2, lm.paths.dir(manager.dir)) == %q)
        fails(%q, lm.paths.files, manager.dir)
        ffi.C.lm_fault(folder, %q, %d, %d)
        manager:save(2, {w = lm.ones(3)})
        ffi.C.lm_fault("", "", 0, 0)
        assert(table.concat(manager:steps(), " ") == "1 2")
        assert(manager:load().step == 2)]]):format(reason, call, first, code, reason, reason, call, first, code))
      assert.matches("warning: Manager:save: removed no older checkpoint: cannot read '[^']*': " .. reason, text)
    end)
  end

  it("by one rank is an error of all", function()
    for where = 0, 1 do
      temp.remove(folder .. "/run")
      run_with_faults(2, ([[
        manager:save(1, {w = lm.ones(3)})
        if rank == %d then ffi.C.lm_fault(folder, "opendir", 1, 5) end
        fails("cannot read '[^']*/run': Input/output error", manager.load, manager)
        ffi.C.lm_fault("", "", 0, 0)
        assert(manager:load().step == 1)]]):format(where))
    end
  end)
end)

describe("a file that a stranger changed", function()
  it("is noticed, wherever the change is", function()
    local path, rounds = folder .. "/a.safetensors", long and 20000 or 600
    local net = lm.nn.Linear(7, 5)
    local opt = lm.optim.Adam(net:parameters())
    net(lm.ones(1, 7)):sum():backward()
    opt:step()
    local text = {"a", ["b\n"] = {1 / 0, true}}
    lm.checkpoint.save(path, {net = net, opt = opt, rng = true, text = text, flags = lm.tensor {true, false}})
    local bytes = temp.read(path)
    math.randomseed(11)
    local changes = {
      function(s) -- other bits of some bytes
        for _ = 1, math.random(3) do
          local at = math.random(#s)
          s = s:sub(1, at - 1) .. string.char(bit.bxor(s:byte(at), math.random(255))) .. s:sub(at + 1)
        end
        return s
      end,
      function(s) return s:sub(1, math.random(#s) - 1) end,
      function(s) return s .. string.rep(string.char(math.random(0, 255)), math.random(50)) end,
      function(s) -- a piece is gone
        local at = math.random(#s)
        return s:sub(1, at - 1) .. s:sub(at + math.random(20))
      end,
      function(s) -- a piece is zeros, as after a crash of the machine
        local at, n = math.random(#s), math.random(100)
        return s:sub(1, at - 1) .. ("\0"):rep(math.min(n, #s - at + 1)) .. s:sub(at + n)
      end,
    }
    -- Spaces at the end of the header are the only bytes that mean nothing.
    local function meaning(s) return (s:gsub("}%s*", "}", 1)) end
    for round = 1, rounds do
      local changed = changes[round % #changes + 1](bytes)
      temp.write(path, changed)
      local ok, why = pcall(lm.checkpoint.load, path, {net = net, opt = opt, rng = true})
      if ok and meaning(changed) ~= meaning(bytes) then
        local at = 1
        while changed:byte(at) == bytes:byte(at) do at = at + 1 end
        error(("round %d: a change is not noticed: '%s' at byte %d"):format(round, changed:sub(at, at + 20), at - 1))
      end
      if not ok then
        assert(why:find("'" .. path, 1, true) and not why:find "\n" and #why < 1200, why)
      end
    end
    for _, what in ipairs {"(luminary_crc32c[^ ]+)( )", '(luminary_crc32c":".-)([a-f])'} do
      temp.write(path, (bytes:gsub(what, function(before, c) return before .. (c == " " and "k" or c:upper()) end, 1)))
      assert.matches("damaged", select(2, pcall(lm.checkpoint.load, path)))
    end
    local damaged = bytes:sub(1, -2)
    temp.write(path, damaged)
    local before = net.weight:clone()
    assert.is_false(pcall(lm.checkpoint.load, path, {net = net}))
    assert.is_true(net.weight:equal(before))
  end)

  it("and that is a shard is noticed on all ranks before anything is loaded", function()
    local got = ranks.run {n = 2, timeout = 60, script = ([[
      local lm = require "luminary"
      lm.dist.init_process_group {timeout = 60}
      local rank, optim = lm.dist.get_rank(), lm.optim
      lm.manual_seed(rank)
      local net = lm.nn.Linear(30, 20)
      for _, p in ipairs(net:parameters()) do lm.dist.broadcast(p:detach(), 0) end
      local opt = optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = optim.Adam})
      net(lm.ones(1, 30)):sum():backward()
      opt:step()
      local manager = lm.checkpoint.Manager {dir = %q}
      for step = 1, 2 do manager:save(step, {net = net, opt = opt}) end
      lm.dist.barrier()
      if rank == 0 then
        for _, name in ipairs(lm.paths.dir(manager.dir)) do
          if name:find "^step%%-0*2%%.safetensors%%.shard" and name:find "%%-1$" then
            local f = io.open(manager.dir .. "/" .. name, "r+b")
            f:seek("end", -5)
            f:write "!"
            f:close()
          end
        end
      end
      lm.dist.barrier()
      assert(manager:load {net = net, opt = opt}.step == 1)
      local ok, why = pcall(lm.checkpoint.load, manager:path(2), {net = net, opt = opt})
      assert(not ok and why:find "damaged", why)
      lm.dist.destroy_process_group()]]):format(folder)}
    assert(got.ok, got.text)
  end)
end)

describe("a shard", function()
  it("of another save, of another rank, or that is absent is noticed on all ranks before anything is loaded", function()
    local got = ranks.run {n = 2, timeout = 60, script = ([[
      local lm = require "luminary"
      lm.dist.init_process_group {timeout = 60}
      local rank, optim, dir = lm.dist.get_rank(), lm.optim, %q
      lm.manual_seed(1)
      local net = lm.nn.Linear(30, 20)
      local opt = optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = optim.Adam})
      local path, others = dir .. "/checkpoint.safetensors", dir .. "/other.safetensors"
      local function step()
        net(lm.ones(1, 30)):sum():backward()
        opt:step()
      end
      local function shard(of, r)
        for _, name in ipairs(lm.paths.dir(dir)) do
          if name:find("^" .. of .. "%%.safetensors%%.shard%%-.*%%-" .. r .. "$") then return dir .. "/" .. name end
        end
      end
      step()
      lm.checkpoint.save(others, {net = net, opt = opt})
      step()
      lm.checkpoint.save(path, {net = net, opt = opt})
      lm.dist.barrier()
      local names = {[0] = shard("checkpoint", 0), shard("checkpoint", 1)}
      step()
      local before = net.weight:clone()
      for i, case in ipairs {{1, shard("other", 1), "it was saved as 'other.*%%-1'"},
        {1, names[0], "it was saved as 'checkpoint.*%%-0'"}, {0, names[1], "it was saved as 'checkpoint.*%%-1'"},
        {1, nil, "cannot open .*: No such file"}, {0, nil, "cannot open .*: No such file"}} do
        local name, other = names[case[1] ], case[2]
        lm.dist.barrier()
        if rank == 0 then
          os.rename(name, name .. ".kept")
          if other then os.execute(("cp '%%s' '%%s'"):format(other, name)) end
        end
        lm.dist.barrier()
        local ok, why = pcall(lm.checkpoint.load, path, {net = net, opt = opt})
        assert(not ok and why:find(case[3]), ("case %%d: %%s"):format(i, tostring(why)))
        assert(net.weight:equal(before), i)
        lm.dist.barrier()
        if rank == 0 then os.rename(name .. ".kept", name) end
      end
      lm.dist.barrier()
      lm.checkpoint.load(path, {net = net, opt = opt})
      assert(not net.weight:equal(before))
      lm.dist.destroy_process_group()]]):format(folder)}
    assert(got.ok, got.text)
  end)
end)

describe("ranks with folders of their own", function()
  it("cannot save shards, and keep what is there", function()
    local got = ranks.run {n = 2, timeout = 60, script = ([[
      local lm = require "luminary"
      lm.dist.init_process_group {timeout = 60}
      local rank, dir = lm.dist.get_rank(), %q
      local net = lm.nn.Linear(30, 20)
      local opt = lm.optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = lm.optim.Adam})
      net(lm.ones(1, 30)):sum():backward()
      opt:step()
      local manager = lm.checkpoint.Manager {dir = dir .. "/shared"}
      manager:save(1, {net = net, opt = opt})
      manager.dir = dir .. "/own" .. rank
      lm.paths.mkdir(manager.dir)
      local ok, why = pcall(manager.save, manager, 2, {net = net, opt = opt})
      assert(not ok and why:find "rank 1's shard is not in rank 0's folder", why)
      assert(#lm.paths.dir(manager.dir) == 2, table.concat(lm.paths.dir(manager.dir), " "))
      manager.dir = dir .. "/shared"
      assert(manager:load {net = net, opt = opt}.step == 1)
      lm.dist.destroy_process_group()]]):format(folder)}
    assert(got.ok, got.text)
  end)
end)

describe("ranks that see other files", function()
  it("compare the checksums of their copies of the shards", function()
    run_with_faults(2, [[
      local net = lm.nn.Linear(30, 20)
      for _, p in ipairs(net:parameters()) do lm.dist.broadcast(p:detach(), 0) end
      local opt = lm.optim.ZeroRedundancyOptimizer(net:parameters(), {optimizer_class = lm.optim.Adam})
      net(lm.ones(1, 30)):sum():backward()
      opt:step()
      manager:save(1, {net = net, opt = opt})
      if rank == 1 then
        local own = folder .. "/own"
        assert(os.execute(("cp -rp %s %s"):format(manager.dir, own)) == 0)
        manager.dir = own
      end
      assert(manager:load({net = net, opt = opt}).step == 1)
      if rank == 1 then
        for _, name in ipairs(lm.paths.dir(manager.dir)) do
          if name:find "shard%-.*%-0$" then -- rank 0 compares those of its copy
            local f = io.open(manager.dir .. "/" .. name, "r+b")
            f:seek("end", -5)
            f:write "!"
            f:close()
          end
        end
      end
      lm.no_grad(function() net.weight:fill_(5) end)
      fails("damaged", lm.checkpoint.load, manager:path(1), {net = net, opt = opt})
      assert(net.weight:min():item() == 5)]])
  end)

  it("begin a new run together where there is no folder, and where it is empty", function()
    run_with_faults(2, [[
      manager.dir = folder .. "/none"
      assert(manager:load() == nil)
      if rank == 0 then lm.paths.mkdir(manager.dir) end
      assert(manager:load() == nil)]])
  end)

  it("load the newest step that all can read", function()
    local text = run_with_faults(2, [[
      manager.keep_last = 9
      for step = 1, 3 do manager:save(step, {w = lm.full({3}, step)}) end
      if rank == 0 then
        assert(os.execute(("cp -r %s %s1; rm %s1/*3.safetensors"):format(manager.dir, manager.dir, manager.dir)) == 0)
      end
      barrier()
      if rank == 1 then manager.dir = manager.dir .. "1" end
      assert(manager:load {w = lm.ones(3)}.step == 2)
      os.remove(manager:path(rank == 0 and 1 or 2))
      barrier()
      fails("Manager:load: no checkpoint is whole on all ranks: rank 0 has steps 2, 3 in '[^']*/run'; rank 1 has "
        .. "step 1 in '[^']*/run1'", manager.load, manager)]])
    assert.matches("Manager:load: left out rank 1: cannot open '[^']*3.safetensors': No such file or directory", text)
  end)

  it("raise where one of them has none", function()
    for where = 0, 1 do
      temp.remove(folder .. "/run")
      local lists = {[where] = "no step in '[^']*/none'", [1 - where] = "step 1 in '[^']*/run'"}
      run_with_faults(2, ([[
        manager:save(1, {w = lm.ones(3)})
        if rank == %d then manager.dir = folder .. "/none" end
        fails("Manager:load: no checkpoint is whole on all ranks: rank 0 has %s; rank 1 has %s", manager.load,
          manager)]]):format(where, lists[0], lists[1]))
    end
  end)

  it("raise where their files differ, with both sides named", function()
    run_with_faults(2, [[
      local path = folder .. "/own" .. rank .. ".safetensors"
      local groups = package.loaded["luminary.distributed.groups"]
      local default = groups.default
      groups.default = nil -- as if each were alone
      lm.checkpoint.save(path, {w = lm.full({3}, rank)})
      lm.paths.mkdir(folder .. "/own" .. rank)
      manager.dir = folder .. "/own" .. rank
      manager:save(4, {w = lm.full({3}, rank)})
      groups.default = default
      local why = ": ranks 0 and 1 read different files, rank 0 '[^']*own0[^']*' with checksum %x+, rank 1 "
        .. "'[^']*own1[^']*' with checksum %x+"
      fails("checkpoint.load" .. why, lm.checkpoint.load, path, {w = true})
      fails("Manager:load" .. why, manager.load, manager)
      assert(lm.checkpoint.load(path).w[1] == rank) -- without parts each reads alone
      if rank == 0 then lm.checkpoint.load(path) end]])
  end)
end)

describe("a rank that dies", function()
  for _, what in ipairs {"saving", "loading"} do
    it("while " .. what .. " makes the others raise, soon", function()
      for dying = 0, 1 do
        temp.remove(folder .. "/run")
        local got = ranks.run {n = 3, timeout = 60, script = ([[
          local lm = require "luminary"
          local ffi = require "ffi"
          ffi.cdef "int kill(int, int); int getpid(void); int usleep(unsigned);"
          lm.dist.init_process_group {timeout = 60}
          local rank = lm.dist.get_rank()
          local manager = lm.checkpoint.Manager {dir = %q}
          local Part = lm.nn.Module:extend "Part"
          local part, dies = Part(), false
          part.differs_by_rank = true
          part.state_dict = function()
            if dies then
              ffi.C.usleep(200000) -- the others have ended the save before
              ffi.C.kill(ffi.C.getpid(), 9)
            end
            return {n = rank}
          end
          part.load_state_dict = part.state_dict
          manager:save(1, {part = part})
          dies = rank == %d
          local began = lm.time()
          local ok, why = pcall(function()
            if %q == "saving" then manager:save(2, {part = part}) else manager:load {part = part} end
            manager:save(3, {part = part})
          end)
          assert(not ok and why:find "rank %d ", why)
          assert(lm.time() - began < 30)
          assert(#manager:steps() == 1 and lm.checkpoint.load(manager:path(1)))
          print "raised"]]):format(folder .. "/run", dying, what, dying)}
        for rank = 0, 2 do
          assert(rank == dying or got[rank].output:find "raised", got.text)
        end
      end
    end)
  end
end)
