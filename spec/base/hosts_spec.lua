-- Programs that run Lua: Luminary refuses other Luas than LuaJIT, and computes on threads with small C stacks.
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

local function has(command) return temp.execute(("command -v %s >/dev/null"):format(command)) == 0 end

describe("a Lua that is no LuaJIT #lua", function()
  local refusal = "luminary: expected LuaJIT, got Lua %s; run it with luajit, or in a host linked to LuaJIT"

  for _, version in ipairs {"5.1", "5.2", "5.3", "5.4"} do
    it("is refused in a sentence: " .. version, function()
      if not has("lua" .. version) then return pending(("there is no lua%s"):format(version)) end
      for module, blames in pairs {luminary = folder .. "/script.lua:2: ", ["luminary.torch7"] = ""} do
        local script = temp.write(folder .. "/script.lua", ('\nlocal lm = require "%s"\n'):format(module))
        local ok, text = temp.run(folder, ("unset LUA_INIT; lua%s %s"):format(version, script))
        assert.is_false(ok)
        assert.matches(blames .. refusal:format(version), text, 1, true)
      end
    end)
  end

  it("is refused in mpv", function()
    if not has "mpv" then return pending "there is no mpv" end
    local script = temp.write(folder .. "/script.lua",
      'print(_VERSION, select(2, pcall(require, "luminary")))\nmp.command("quit")\n')
    local _, text = temp.run(folder, "timeout 30 mpv --no-config --idle=yes --vo=null --ao=null --script=" .. script)
    if text:find "Lua 5.1\t" then return pending "this mpv has LuaJIT" end
    assert.matches(refusal:format(text:match "Lua (5%.%d)"), text, 1, true)
  end)
end)

describe("a thread's C stack #unsanitized", function() -- sanitizers make frames larger
  local program

  local function on_stack(kilobytes, ...)
    program = program or folder .. "/small_stack"
    if not temp.exists(program) then
      local ok, text = temp.run(folder, ("unset LD_PRELOAD; gcc -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror "
        .. "spec/support/small_stack.c -o %s $(pkg-config --cflags --libs luajit) -lpthread"):format(program))
      assert(ok, text)
    end
    local command = ("timeout 120 %s %d"):format(program, kilobytes)
    for _, chunk in ipairs {...} do command = command .. " '" .. chunk .. "'" end
    return temp.run(folder, command)
  end

  local has_compiler = has "gcc" and has "pkg-config"
  local NET = [[
    lm = require "luminary"
    lm.manual_seed(1)
    lm.set_num_threads(%d)
    nn, F = lm.nn, lm.nn.functional
    function train(net, x, y)
      local opt = lm.optim.Adam(net:parameters())
      for _ = 1, 2 do
        local loss = F.cross_entropy(net(x), y)
        opt:zero_grad()
        loss:backward()
        opt:step()
      end
      assert(net(x):isfinite():all():item())
    end]]
  local steps = {
    mlp = "train(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)), lm.rand(64, 784),"
      .. " lm.randint(1, 11, {64}))",
    convolution = [[for _, size in ipairs {{3, 8, 3}, {3, 8, 5}, {16, 32, 3}, {64, 64, 1}} do
      train(nn.Sequential(nn.Conv2d(size[1], size[2], size[3], {padding = 1}), nn.BatchNorm2d(size[2]), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(4)), lm.rand(8, size[1], 24, 24), lm.randint(1, 5, {8}))
    end]],
    text = [[local net = nn.TransformerEncoderLayer(32, 4, 64)
      net(lm.rand(4, 20, 32)):sum():backward()
      nn.LSTM(16, 16)(lm.rand(5, 2, 16)):sum():backward()]],
    others = [[local x = lm.rand(200, 200, {requires_grad = true})
      local y = x:mm(x:t()) + lm.eye(200)
      lm.linalg.svd(y)
      lm.linalg.cholesky(y):sum():backward()
      lm.linalg.eigh(y:detach())
      lm.fft.rfft(x:detach())
      x:detach():sort(1)
      x:softmax(1):logcumsumexp(1):sum():backward()
      F.grid_sample(lm.rand(1, 2, 30, 30, {requires_grad = true}), lm.rand(1, 9, 9, 2, {requires_grad = true})):sum()
        :backward()
      F.interpolate(lm.rand(1, 3, 20, 20, {requires_grad = true}), {size = {40, 40}, mode = "bicubic"}):sum():backward()
      local half = x:detach():to("bfloat16")
      half:mm(half):argmax(1)
      local path = "%s/x.safetensors"
      lm.save(path, {x = x:detach()})
      lm.load(path)
      tostring(x)]],
  }

  it("of 48 KB is refused, with both sizes", function()
    if not has_compiler then return pending "there is no compiler" end
    local ok, text = on_stack(48, 'require "luminary"')
    assert.is_false(ok)
    assert.equal("luminary: the stack of this thread, of 48 KB, is too small; it needs 64 KB\n", text)
  end)

  for _, threads in ipairs {1, 2} do
    it(("of 64 KB is enough for training, with %d threads of kernels"):format(threads), function()
      if not has_compiler then return pending "there is no compiler" end
      for name, step in pairs(steps) do
        local ok, text = on_stack(64, NET:format(threads), name == "others" and step:format(folder) or step)
        assert(ok, name .. ": " .. text)
        local loading, using = text:match "^used (%d+)\nused (%d+)\n$"
        -- The rest of the stack is for the frames of the host.
        assert(tonumber(loading) < 32 * 1024 and tonumber(using) < 48 * 1024, name .. ": " .. text)
      end
    end)
  end

  it("of 64 KB ends endless nesting by an error", function()
    if not has_compiler then return pending "there is no compiler" end
    local ok, text = on_stack(64, [[local lm = require "luminary"
      local depth = 0
      local function f() depth = depth + 1 return (lm.no_grad(f)) end
      local ok, why = pcall(f)
      assert(not ok and why:find "stack overflow" and depth > 5, why)
      assert(lm.is_grad_enabled() and lm.ones(2, 2):mm(lm.ones(2, 2)):sum():item() == 8)]])
    assert(ok, text)
  end)

  it("of sysbench is enough, or its size is named", function()
    if not has "sysbench" then return pending "there is no sysbench" end
    local script = temp.write(folder .. "/script.lua", [[
      function thread_init() lm = require "luminary" end
      function event()
        assert(type(debug) == "boolean") -- an option of sysbench
        local net = lm.nn.Linear(4, 2)
        net(lm.ones(3, 4)):sum():backward()
        assert(net.bias.grad:sum():item() == 6)
      end]])
    local command = "timeout 60 sysbench %s --threads=2 --events=4 %s run"
    local ok, text = temp.run(folder, command:format("", script)) -- 64 KB
    assert(ok, text)
    assert.matches("total number of events: +4\n", text)
    ok, text = temp.run(folder, command:format("--thread-stack-size=40K", script))
    assert.is_false(ok)
    assert.matches("luminary: the stack of this thread, of 40 KB, is too small; it needs 64 KB", text, 1, true)
  end)
end)

describe("a host that has LuaJIT for a plugin alone", function()
  it("shows its symbols to luminary", function()
    if not (has "gcc" and has "pkg-config") then return pending "there is no compiler" end
    temp.write(folder .. "/plugin.c", [[
      #include <lauxlib.h>
      #include <lualib.h>
      #include <stdio.h>
      int run(const char *code) {
        lua_State *L = luaL_newstate();
        luaL_openlibs(L);
        int failed = luaL_dostring(L, code);
        if (failed) puts(lua_tostring(L, -1));
        lua_close(L);
        return failed;
      }]])
    temp.write(folder .. "/host.c", [[
      #include <dlfcn.h>
      int main(int argc, char **argv) {
        void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        int (*run)(const char *) = (int (*)(const char *))dlsym(plugin, "run");
        for (int i = 2; i < argc; i++)
          if (run(argv[i])) return 1;
        return 0;
      }]])
    local ok, text = temp.run(folder, ([[unset LD_PRELOAD; cd %s && gcc -shared -fPIC plugin.c -o plugin.so \
      $(pkg-config --cflags --libs luajit) && gcc host.c -o host -ldl]]):format(folder))
    assert(ok, text)
    local code = [['local lm = require "luminary"
      print(lm.async(lm.nn.Linear(2, 2), lm.ones(1, 2)):get().shape[2])']]
    ok, text = temp.run(folder, ("timeout 60 %s/host %s/plugin.so %s %s"):format(folder, folder, code, code))
    assert(ok, text)
    assert.equal("2\n2\n", text)
  end)
end)
