-- What lies over a file as memory, and a file that is cut short under it.
local temp = require "spec.support.temp"

describe("a mapped file that was cut short", function()
  local folder
  before_each(function() folder = temp.folder() end)
  after_each(function() temp.remove(folder) end)

  local function run(script)
    local path = temp.write(folder .. "/script.lua", ([[
      local lm = require "luminary"
      local folder = %q
      local function save(name, n)
        lm.save(folder .. "/" .. name, { x = lm.arange(1, n + 1):float(), y = lm.ones(n) })
        return folder .. "/" .. name
      end
      local function cut(path, bytes) assert(os.execute(("truncate -s %%d '%%s'"):format(bytes, path)) == 0) end
      local function gone(path, f, ...)
        local ok, problem = pcall(f, ...)
        assert(not ok, "no error")
        assert(problem:find(path .. " was cut short", 1, true), problem)
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
