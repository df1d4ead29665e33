-- Tests tensors that lie over a mapped file, and a file that is truncated under them.
local temp = require "spec.support.temp"

describe("a mapped file that was truncated", function()
  local folder = temp.during(before_each, after_each)

  local function run(script)
    local path = temp.write(folder .. "/script.lua", ([[
      local lm = require "luminary"
      local folder = %q
      local function save(name, n)
        local u = lm.ones(4 * n, { dtype = "uint8" })
        lm.save(folder .. "/" .. name, { x = lm.arange(1, n + 1):float(), y = lm.ones(n), u = u })
        return folder .. "/" .. name
      end
      local function cut(path, bytes) assert(os.execute(("truncate -s %%d '%%s'"):format(bytes, path)) == 0) end
      local function gone(path, f, ...)
        local ok, problem = pcall(f, ...)
        assert(not ok, "no error")
        assert(problem:find(path .. " was truncated while mapped", 1, true), problem)
      end
    ]]):format(folder) .. script .. '\nprint "finished"\n')
    local ok, text = temp.run(folder, "luajit " .. path)
    assert.is_true(ok, text)
    assert.matches("finished\n$", text)
  end

  it("is an error of each call that reads what is gone, and of no other", function()
    run [[
      local path, other = save("a.safetensors", 100000), save("b.safetensors", 100000)
      local a, b = lm.load(path, { mmap = true }), lm.load(other, { mmap = true })
      cut(path, 8192)
      for _ = 1, 2 do
        gone(path, lm.sum, a.x)
        gone(path, lm.add, a.x, 1)
        gone(path, function() return a.y[100000] end)
        gone(path, a.y.item, a.y:narrow(1, 90000, 1))
        gone(path, a.y.totable, a.y[{ { 5000, 5010 } }])
        assert(b.y:sum():item() == 100000)
        assert(a.x[100] == 100)
      end
      gone(path, a.x.add_, a.x, 1)
      a, b = nil, nil
      collectgarbage()
      collectgarbage()
      local again = lm.load(other, { mmap = true })
      cut(other, 4096)
      gone(other, lm.mean, again.x)
    ]]
  end)

  it("is an error of a plan whose elementwise ops read it together", function()
    run [[
      local path = save("a.safetensors", 100000)
      local a = lm.load(path, { mmap = true })
      jit.off() -- compiled code may hold a tensor of a call that has ended
      local before = lm.memory_allocated()
      local run = lm.prepare(function(x) return (x * 2 + 1):square() end, lm.ones(100000))
      cut(path, 8192)
      for _ = 1, 3 do gone(path, run, a.x) end
      assert(run(lm.ones(100000))[100000] == 9)
      run = nil
      collectgarbage()
      collectgarbage()
      assert(lm.memory_allocated() <= before, lm.memory_allocated() - before)
    ]]
  end)

  it("is an error of threads that compute, and of gradients", function()
    run [[
      lm.set_num_threads(2)
      local path = save("a.safetensors", 2 ^ 20)
      local weight = lm.load(path, { mmap = true }).x:view(1024, 1024)
      local x = lm.randn(1024, 1024):requires_grad_()
      local y = x:mm(weight):sum()
      cut(path, 65536)
      gone(path, y.backward, y)
      gone(path, lm.mm, x, weight)
    ]]
  end)

  it("is an error of a model that is loaded", function()
    run [[
      local options = { vocab_size = 300, n_positions = 64, n_embd = 64, n_layer = 2, n_head = 2 }
      local path = folder .. "/model.safetensors"
      lm.save(path, lm.models.gpt2(options):state_dict())
      options.weights = path
      lm.models.gpt2(options)
      local first = true
      options.rename = function(name)
        if first then cut(path, 8192) end
        first = false
        return name
      end
      gone(path, lm.models.gpt2, options)
    ]]
  end)

  it("is an error of what reads it without an op, and spoils no file", function()
    run [[
      local path, out = save("a.safetensors", 100000), folder .. "/kept"
      local old = lm.ones(3)
      local a = lm.load(path, {mmap = true})
      lm.set_warnings(false)
      cut(path, 8192)
      local function reads(f, ...)
        gone(path, f, ...)
        assert(lm.ones(3):sum():item() == 3) -- nothing is left to tell
      end
      reads(tostring, a.y)
      reads(lm.repr, a.y)
      for _, ending in ipairs {".safetensors", ".pt", ".npy", ".npz"} do
        local file = out .. ending
        lm.save(file, ending == ".npy" and old or {y = old})
        reads(lm.save, file, ending == ".npy" and a.y or {y = a.y})
        local kept = lm.load(file)
        assert(lm.equal(ending == ".npy" and kept or kept.y, old), ending)
        assert(io.popen("ls -A " .. folder .. " | grep -c ^kept"):read "*n" == 1, "something is left beside " .. file)
        os.remove(file)
      end
      local p = lm.nn.Parameter(lm.ones(100000))
      p.grad = a.y
      reads(lm.nn.utils.clip_grad_norm_, {p}, 1)
      local opt = lm.optim.SGD({p}, {lr = 1})
      reads(opt.step, opt)
      local y = lm.ones(100000):requires_grad_() * 2
      reads(y.backward, y, a.y)
      local queue = lm.mp.Queue()
      reads(queue.put, queue, a.y)
      reads(lm.vision.encode_png, a.u:narrow(1, 300001, 300):view(3, 10, 10))
      reads(a.y.to, a.y, "int64")
      reads(lm.nn.functional.embedding, a.u:narrow(1, 300001, 8), lm.ones(2, 2)) -- no index is 0
    ]]
  end)

  it("is named by its own name, where several are truncated", function()
    run [[
      local a, b, c = save("a.safetensors", 100000), save("b.safetensors", 100000), save("c.safetensors", 100000)
      local x, y, z = lm.load(a, {mmap = true}).x, lm.load(b, {mmap = true}).x, lm.load(c, {mmap = true}).x
      cut(a, 8192)
      cut(b, 8192)
      gone(b, lm.sum, y)
      gone(a, lm.sum, x)
      local ok, problem = pcall(lm.add, x, y)
      assert(not ok and problem:find(a, 1, true) and problem:find(b, 1, true), problem)
      assert(problem:find("were truncated while mapped", 1, true) and not problem:find(c, 1, true), problem)
      assert(z:max():item() == 100000)
      x, y = nil, nil
      collectgarbage()
      collectgarbage()
      local again = lm.load(c, {mmap = true}).x
      cut(c, 8192)
      gone(c, lm.sum, again)
    ]]
  end)

  it("stays gone when it has grown again", function()
    run [[
      local path = save("a.safetensors", 100000)
      local x = lm.load(path, {mmap = true}).x
      cut(path, 8192)
      gone(path, lm.sum, x)
      cut(path, 900000)
      gone(path, lm.sum, x)
      assert(x[100] == 100)
    ]]
  end)

  it("is an error of the loader whose workers read it, and of no loader after it", function()
    run [[
      local path, other = save("a.safetensors", 100000), save("b.safetensors", 100000)
      local Mapped = lm.data.Dataset:extend "Mapped"
      function Mapped:init(file) self.file = file end
      function Mapped:len() return 100 end
      function Mapped:get(i)
        self.x = self.x or require("luminary").load(self.file, {mmap = true}).x
        if i == 60 then os.execute("truncate -s 8192 " .. self.file) end
        return self.x:narrow(1, i * 1000 - 999, 1000):clone()
      end
      local function read(file, workers, kind)
        local n = 0
        local opts = {batch_size = 5, num_workers = workers, worker_type = kind}
        for x in lm.data.DataLoader(Mapped(file), opts):iter() do
          n = n + x:numel()
        end
        return n
      end
      for _, kind in ipairs {"thread", "process"} do
        path = save(kind .. ".safetensors", 100000)
        gone(path, read, path, 2, kind)
        pcall(lm.ones, 1) -- each thread of a process reports it once
        local set = lm.data.TensorDataset(lm.load(other, {mmap = true}).x)
        local n = 0
        for x in lm.data.DataLoader(set, {batch_size = 100, num_workers = 2, worker_type = kind}):iter() do
          n = n + x:numel()
        end
        assert(n == 100000, n)
      end
    ]]
  end)

  it("is an error of processes and threads that get it", function()
    run [[
      local path = save("a.safetensors", 100000)
      local function work(file, cut)
        local lm = require "luminary"
        local x = lm.load(file, {mmap = true}).x
        if cut then os.execute("truncate -s 8192 " .. file) end
        local ok, problem = pcall(lm.sum, x)
        return ok, tostring(problem)
      end
      local pool = lm.mp.Pool(1)
      local ok, problem = unpack(pool:apply(function(...) return {work(...)} end, {path, true}))
      assert(not ok and problem:find(path .. " was truncated while mapped", 1, true), problem)
      pool:close()
      pool:join()
    ]]
  end)

  it("leaves bus errors of others as they are", function()
    local path = temp.write(folder .. "/script.lua", ([[
      local lm = require "luminary"
      lm.save(%q, { x = lm.ones(100000) })
      local x = lm.load(%q, { mmap = true }).x
      require("ffi").cdef "int raise(int);"
      require("ffi").C.raise(7)
      print "finished"
    ]]):format(folder .. "/a.safetensors", folder .. "/a.safetensors"))
    local ok, text = temp.run(folder, "luajit " .. path)
    assert.is_false(ok)
    assert.not_matches("finished", text)
  end)
end)
