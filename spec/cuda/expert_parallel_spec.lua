-- nn.MixtureOfExperts over the stand-in for NCCL (support/nccl/): how often the host waits for the device.
local nccl_ranks = require "spec.support.nccl_ranks"
local spans = require "spec.support.nccl_spans"
if not nccl_ranks.are_there then return end

local PRELUDE = spans .. [[
  local function layer(mesh, capacity)
    lm.manual_seed(1)
    return nn.MixtureOfExperts(6, 5, 4, { mesh = mesh, capacity_factor = capacity }):double():to(device)
  end
  local function rows(seed, n)
    lm.manual_seed(seed)
    return lm.randn({ n, 6 }, { dtype = "float64" }):to(device):requires_grad_()
  end
  local function step(m, x)
    local y = m(x)
    return y, (y:square():sum() + m.balance_loss + m.z_loss):backward()
  end
  local function waits_of(m, x)
    step(m, x)
    local before = waits()
    step(m, x)
    return waits() - before
  end
]]

describe("nn.MixtureOfExperts over NCCL", function()
  it("lets the host wait once for the experts' numbers of tokens, and never with a capacity", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local mesh = dist.init_device_mesh("cuda", { 2 }, { names = { "expert" } })
      local got = {}
      for _, each in ipairs { { mesh }, { nil }, { mesh, 1.5 }, { nil, 1.5 } } do
        got[#got + 1] = waits_of(layer(each[1], each[2]), rows(rank, 8 + rank))
      end
      assert(table.concat(got, " ") == "1 1 0 0", table.concat(got, " "))
    ]])
  end)

  it("lets the host wait for nothing with a capacity on a group of NCCL alone", function()
    nccl_ranks.succeeds(2, PRELUDE .. [[
      local mesh = dist.init_device_mesh("cuda", { 2 }, { names = { "expert" } })
      local got = waits_of(layer(mesh, 1.5), rows(rank, 8 + rank))
      assert(got == 0, got)
    ]], { init = 'timeout = 20, backend = "nccl"' })
  end)
end)
