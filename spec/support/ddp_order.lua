--- The script of a rank that trains nets of random make beside the same nets on the whole batch, late at random where
--- backward comes by: buckets of DistributedDataParallel, sums of SyncBatchNorm, two or three modules in one backward
--- pass and all_reduces in hooks share one group. A trial is three steps, after which parameters must be the same to
--- the bit on all ranks, and one process's. Prints "in order".
---   ddp_order {trials = 10, seed = 1, device = "cpu" [, late = 3e-3]}   `late`: seconds at most
--- Without what starts the group: it finds lm, dist, nn and F, rank and size.
local script = [[
  local ffi = require "ffi"
  pcall(ffi.cdef, "int usleep(unsigned);")
  local DDP, device = nn.parallel.DistributedDataParallel, "$device"
  local f64 = { dtype = "float64" }
  -- Returns a sequence of numbers: `all` says what all ranks do, `own` when this one does it.
  local function sequence(state)
    return function(n)
      state = (state * 1103515245 + 12345) % 2 ^ 31
      return math.floor(state / 2 ^ 31 * n)
    end
  end
  local all = sequence($seed)
  local own = sequence($seed * 1000 + rank * 77 + 5)
  for _ = 1, 10 do own(2) all(2) end
  local function dawdle()
    if own(2) == 0 then ffi.C.usleep(own($late * 1e6)) end
  end
  local summed = 0
  -- Returns a net's pieces; between them ranks are late, and some add things up.
  local function model(norm)
    local list = {}
    for i = 1, 3 do
      list[#list + 1] = nn.Linear(4, 4)
      if norm then list[#list + 1] = nn.BatchNorm1d(4) end
      list[#list + 1] = i < 3 and nn.Tanh() or nil
    end
    return nn.Sequential(unpack(list)):double():to(device)
  end
  local Late = nn.Module:extend("Late")
  function Late:init(body, sums)
    self.body, self.sums = body, sums
  end
  function Late:forward(x)
    for i, piece in ipairs(self.body:children()) do
      x = piece(x)
      x:register_hook(function()
        dawdle()
        if not self.sums[i] then return end
        local t = lm.full({ 5 }, i + rank, f64):to(device)
        local work = dist.all_reduce(t, { async_op = self.sums[i] == "async" or nil })
        if self.sums[i] == "async" then work:wait() end
        local wanted = i * size + size * (size - 1) / 2
        assert(t:eq(wanted):all():item(), "a sum of " .. t[1] .. " in place of " .. wanted)
        summed = summed + 1
      end)
      dawdle()
    end
    return x
  end
  local function worst(a, b)
    local most = 0
    for i, p in ipairs(a) do most = math.max(most, (p:detach() - b[i]:detach()):abs():max():item()) end
    return most
  end

  for trial = 1, $trials do
    lm.manual_seed(trial)
    local n, nets, alone, params, its = 1 + all(3), {}, {}, {}, {}
    local options = {
      bucket_cap_mb = ({ 1e-5, 1e-5, 2e-4, 25 })[1 + all(4)], find_unused_parameters = all(4) == 0,
      static_graph = all(5) == 0,
    }
    for k = 1, n do
      local norm, sums = all(2) == 0, {}
      alone[k] = model(norm)
      local mine = model(norm)
      mine:load_state_dict(alone[k]:state_dict())
      if norm then mine = nn.SyncBatchNorm.convert_sync_batchnorm(mine) end
      for i = 1, 8 do sums[i] = ({ "sync", "async" })[1 + all(5)] end
      nets[k] = DDP(Late(mine, sums), options)
      if all(4) == 0 then
        nets[k]:register_comm_hook(nil, function(state, bucket)
          return nn.parallel.comm_hooks.allreduce_hook(state, bucket)
        end)
      end
      for _, p in ipairs(alone[k]:parameters()) do its[#its + 1] = p end
      for _, p in ipairs(nets[k]:parameters()) do params[#params + 1] = p end
    end
    local steps = { lm.optim.SGD(params, { lr = 0.05 }), lm.optim.SGD(its, { lr = 0.05 }) }
    local chain, uneven = all(2) == 0, all(2) == 0
    local function loss(list, x)
      if chain then
        for _, net in ipairs(list) do x = net(x) end
        return x:square():mean()
      end
      local sum = 0
      for _, net in ipairs(list) do sum = sum + net(x) end
      return sum:square():mean()
    end
    for _ = 1, 3 do
      local first, last, count = 0, 0, 0
      for r = 0, size - 1 do
        local samples = uneven and 2 + all(4) or 3
        if r == rank then first, last = count + 1, count + samples end
        count = count + samples
      end
      local x = lm.randn({ count, 4 }, f64):to(device)
      for _, opt in ipairs(steps) do opt:zero_grad() end
      dawdle()
      loss(nets, x[{ { first, last } }]):backward()
      loss(alone, x):backward()
      for _, opt in ipairs(steps) do opt:step() end
    end
    local off = worst(params, its)
    assert(off < 1e-9, ("trial %d: differs from one process by %g"):format(trial, off))
    for i, p in ipairs(params) do
      local theirs = p:detach():clone()
      dist.broadcast(theirs, 0)
      assert(theirs:eq(p:detach()):all():item(), ("trial %d: parameter %d is not rank 0's"):format(trial, i))
    end
  end
  assert($trials < 10 or summed > $trials / 10, "few sums")
  print "in order"
]]

return function(with)
  local values = {device = "cpu", late = 3e-3, seed = 1}
  for name, value in pairs(with) do values[name] = value end
  return (script:gsub("%$(%l+)", function(name) return tostring(values[name]) end))
end
