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
  for _, case in ipairs {
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
        lm.dist.init_process_group {timeout = 20}
        local rank = lm.dist.get_rank()
        local manager = lm.checkpoint.Manager {dir = %q}
        manager:save(1, {w = lm.ones(3)})
        if rank == 0 then assert(os.execute "mv %s %s.away && touch %s" == 0) end
        lm.dist.barrier()
        local ok, why = pcall(manager.save, manager, 2, {w = lm.ones(3)})
        assert(not ok and why:find "cannot write '[^']*': Not a directory", why)
        assert(#manager:steps() == 0)
        lm.dist.barrier()
        if rank == 0 then assert(os.execute "rm %s && mv %s.away %s" == 0) end
        lm.dist.barrier()
        assert(manager:load().step == 1)
        lm.dist.destroy_process_group()]]):format(there, there, there, there, there, there, there)}
      assert(got.ok, got.text)
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
      lm.dist.init_process_group {timeout = 20}
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
      if rank == 1 then
        local ok, why = pcall(lm.checkpoint.load, manager:path(2), {net = net, opt = opt})
        assert(not ok and why:find "damaged", why)
      end
      lm.dist.destroy_process_group()]]):format(folder)}
    assert(got.ok, got.text)
  end)
end)

describe("a shard", function()
  it("of another save, of another rank, or that is absent is noticed on all ranks before anything is loaded", function()
    local got = ranks.run {n = 2, timeout = 60, script = ([[
      local lm = require "luminary"
      lm.dist.init_process_group {timeout = 20}
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
      lm.dist.init_process_group {timeout = 20}
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

describe("a rank that dies", function()
  for _, what in ipairs {"saving", "loading"} do
    it("while " .. what .. " makes the others raise, soon", function()
      for dying = 0, 1 do
        temp.remove(folder .. "/run")
        local got = ranks.run {n = 3, timeout = 60, script = ([[
          local lm = require "luminary"
          local ffi = require "ffi"
          ffi.cdef "int kill(int, int); int getpid(void);"
          lm.dist.init_process_group {timeout = 20}
          local rank = lm.dist.get_rank()
          local manager = lm.checkpoint.Manager {dir = %q}
          local Part = lm.nn.Module:extend "Part"
          local part, dies = Part(), false
          part.differs_by_rank = true
          part.state_dict = function()
            if dies then ffi.C.kill(ffi.C.getpid(), 9) end
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
          assert(lm.time() - began < 20)
          assert(#manager:steps() == 1 and lm.checkpoint.load(manager:path(1)))
          print "raised"]]):format(folder .. "/run", dying, what, dying)}
        for rank = 0, 2 do
          assert(rank == dying or got[rank].output:find "raised", got.text)
        end
      end
    end)
  end
end)
