-- Programs compute, write and say the same in every process, although LuaJIT seeds the hash of strings in each, so that
-- `pairs` walks names in another order.
local temp = require "spec.support.temp"

local PROCESSES = 8 -- two orders of two names all agree by chance in 2 ^ -7 of the runs, and there are more names

-- Runs a script, whose global `folder` is an empty folder, in several processes. Fails unless each prints the same.
local function prints_the_same(script)
  local folder, outputs = temp.folder(), {}
  local path = temp.write(folder .. "/script.lua", ([[
    local lm = require "luminary"
    local core, nn = require "luminary.core", lm.nn
    local folder = %q
    local function checksum(path)
      local file = assert(io.open(path, "rb"))
      local bytes = file:read "*a"
      file:close()
      return ("%%08x of %%d bytes"):format(core.crc32c(core.bytes_tensor(bytes), 0), #bytes)
    end
    lm.manual_seed(1)
    %s
  ]]):format(folder, script))
  for i = 1, PROCESSES do
    local ok, text = temp.run(folder, "timeout 60 luajit " .. path)
    assert(ok, text)
    outputs[i] = text
  end
  temp.remove(folder)
  assert(outputs[1]:find "%S")
  for i = 2, PROCESSES do assert.equal(outputs[1], outputs[i]) end
  return outputs[1]
end

describe("names in tables, in several processes", function()
  it("give a file of ONNX the same bytes", function()
    prints_the_same [[
      local Net = nn.Module:extend "Net"
      function Net:init()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.c = nn.Parameter(lm.ones(4))
        self.d = nn.Parameter(lm.ones(4) * 2)
        self.e = nn.Parameter(lm.ones(4) * 3)
      end
      function Net:forward(x)
        local y = self.b(self.a(x))
        y = lm.where(y:gt(0), y * self.c, self.d)
        return lm.addcmul(y, self.c, self.d), lm.lerp(self.c:expand(2, 4), y, self.e), self.a.weight
      end
      lm.onnx.export(Net(), {lm.ones(2, 4)}, folder .. "/net.onnx")
      print(checksum(folder .. "/net.onnx"))
    ]]
  end)

  it("give checkpoints, safetensors and PyTorch's files the same bytes", function()
    prints_the_same [[
      local net = nn.ModuleDict {first = nn.Linear(2, 2), second = nn.BatchNorm1d(2), third = nn.Linear(2, 1)}
      local opt = lm.optim.AdamW({{params = net.first:parameters()}, {params = net.third:parameters(), lr = 1}})
      net.third(net.second(net.first(lm.ones(3, 2)))):sum():backward()
      opt:step()
      local state = {model = net:state_dict(), optimizer = opt:state_dict(), a = {x = 1, y = {z = lm.ones(2), w = 2}}}
      lm.save(folder .. "/a.safetensors", state)
      lm.save(folder .. "/a.pt", state)
      lm.checkpoint.save(folder .. "/b.safetensors", {net = net, opt = opt, note = {u = 1, v = 2}})
      print(checksum(folder .. "/a.safetensors"), checksum(folder .. "/b.safetensors"))
    ]]
  end)

  it("load two values of tied parameters as PyTorch does: the last of the module's names counts", function()
    local text = prints_the_same [[
      local net = nn.Module:extend "Net"()
      net.zeta = nn.Linear(2, 2, {bias = false})
      net.beta = nn.Linear(2, 2, {bias = false})
      net.alpha = nn.Linear(2, 2, {bias = false})
      net.beta.weight = net.zeta.weight
      net.alpha.weight = net.zeta.weight
      for _, dtype in ipairs {"float32", "bfloat16"} do
        net:to(dtype)
        net:load_state_dict {
          ["zeta.weight"] = lm.full({2, 2}, 1), ["beta.weight"] = lm.full({2, 2}, 2),
          ["alpha.weight"] = lm.full({2, 2}, 3),
        }
        print(net.zeta.weight:min():item(), net:state_dict()["alpha.weight"]:max():item())
      end
    ]]
    assert.equal("3\t3\n3\t3\n", text)
  end)

  it("choose one tensor among the fields of a distribution", function()
    prints_the_same [[
      local D = lm.distributions.Distribution
      local d = D:extend "Own"()
      d.narrow, d.wide, d.half = lm.ones(1), lm.ones(1):double(), lm.ones(1):half()
      print(d:first_parameter().dtype)
    ]]
  end)

  it("split tables for DataParallel by the same tensor", function()
    prints_the_same [[
      local given = {zeta = lm.ones(5, 2), alpha = lm.ones(6, 2), mid = lm.ones(5)}
      local parts = {pcall(nn.parallel.scatter, given, {"cpu:0", "cpu:1"})}
      print(parts[1], parts[1] and parts[2][1].alpha.shape or parts[2])
      given = {zeta = lm.ones(1), alpha = lm.ones(4, 2), mid = lm.ones(1)}
      print(pcall(nn.parallel.scatter, given, {"cpu:0", "cpu:1"}))
    ]]
  end)
end)
