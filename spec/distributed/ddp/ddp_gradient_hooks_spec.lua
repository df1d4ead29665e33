-- Hooks of gradients under DistributedDataParallel, which see this rank's gradient and decide what is averaged.
local ddp = require "spec.support.ddp"
local run = ddp.run

local function both(n, script)
  ddp.succeeds(n, script)
  ddp.succeeds(n, script, { LM_SHM = "0" })
end

-- model(opts, hook, when): a layer of weight 0 whose gradient on rank r is r + 1.
local lines = [[
  local function model(opts, hook, when)
    local net = nn.Linear(2, 1, { bias = false })
    lm.no_grad(function() net.weight:fill_(0) end)
    if when == "before" then net.weight:register_post_accumulate_grad_hook(hook) end
    local n = DDP(net, opts)
    if when == "after" then net.weight:register_post_accumulate_grad_hook(hook) end
    return n, net.weight
  end
  local function pass(n) n(lm.full({ 1, 2 }, rank + 1, { dtype = n.module.weight.dtype })):sum():backward() end
  local mean = (size + 1) / 2
]]

describe("post-accumulate hooks under DistributedDataParallel", function()
  it("see this rank's gradient in each of many steps, whatever the other ranks have sent", function()
    both(2, lines .. [[
      for _, opts in ipairs { {}, { static_graph = true }, { find_unused_parameters = true },
        { gradient_as_bucket_view = false } } do
        for _, when in ipairs { "before", "after" } do
          local seen = {}
          local n, w = model(opts, function(t) seen[t.grad:min():item()] = true end, when)
          for _ = 1, 60 do
            n:zero_grad()
            pass(n)
            assert(w.grad:min():item() == mean and w.grad:max():item() == mean)
          end
          assert(seen[rank + 1] and next(seen, next(seen)) == nil, "a hook saw another rank's gradient")
        end
      end
    ]])
  end)

  it("decide what is averaged: writes, another tensor, or nothing, as PyTorch's", function()
    both(2, lines .. [[
      -- Values of PyTorch 2.15: of two passes without zero_grad in between.
      local cases = {
        { function(t) t.grad:mul_(10) end, 15, 165 },
        { function(t) t.grad = lm.full({ 1, 2 }, 7 * (rank + 1)) end, 10.5, 10.5 },
        { function(t) t.grad = nil end, 0, 0 },
      }
      for _, opts in ipairs { {}, { gradient_as_bucket_view = false } } do
        for i, case in ipairs(cases) do
          for _, when in ipairs { "before", "after" } do
            local n, w = model(opts, case[1], when)
            for step = 1, 2 do
              pass(n)
              local what = ("case %d, step %d"):format(i, step)
              near(what, w.grad:min():item(), case[1 + step], 0)
              near(what, w.grad:max():item(), case[1 + step], 0)
            end
          end
        end
      end
    ]])
  end)

  it("that step their parameter are an error on every rank: replicas would part", function()
    for _, case in ipairs { "w, w", "first, last", "last, first" } do -- the first's hook changes the second
      local got = run(2, lines .. ([[
        local net = nn.Sequential(nn.Linear(2, 2, { bias = false }), nn.Linear(2, 1, { bias = false }))
        local first, last, w = net[1].weight, net[2].weight, net[1].weight
        local hooked, changed = %s
        hooked:register_post_accumulate_grad_hook(function() lm.no_grad(function() changed:add_(1) end) end)
        local n = DDP(net)
        lm.dist.barrier() -- both have n before one fails
        print(message(function() n(lm.ones { 1, 2 }):sum():backward() end))
        os.exit(0, true)
      ]]):format(case))
      assert(got.ok, got.text)
      for rank = 0, 1 do
        assert.matches("a hook changed '[01].weight' during backward, before its gradient was averaged",
          got[rank].output)
      end
    end
  end)

  it("may read other gradients with {gradient_as_bucket_view = false}: those of this rank until backward ends",
    function()
      both(2, lines .. [[
        local net = nn.Sequential(nn.Linear(2, 1, { bias = false }), nn.Linear(1, 1, { bias = false })):double()
        lm.no_grad(function() for _, p in ipairs(net:parameters()) do p:fill_(1) end end)
        local n = DDP(net, { gradient_as_bucket_view = false, bucket_cap_mb = 1e-6 })
        local seen = {}
        net[1].weight:register_post_accumulate_grad_hook(function() seen[net[2].weight.grad:item()] = true end)
        for _ = 1, 40 do
          n:zero_grad()
          n(lm.full({ 1, 2 }, rank + 1, { dtype = "float64" })):sum():backward()
          near("the average", net[2].weight.grad:item(), 2 * mean, 0)
        end
        assert(seen[2 * (rank + 1)] and next(seen, next(seen)) == nil)
        n(lm.full({ 1, 2 }, rank + 1, { dtype = "float64" })):sum():backward()
        near("added to the last average", net[2].weight.grad:item(), 4 * mean, 0)
      ]])
    end)
end)

describe("create_graph under DistributedDataParallel", function()
  it("is an error before anything has run; autograd.grad and no_sync return this rank's gradients", function()
    for _, dtype in ipairs { "float64", "bfloat16" } do
      both(2, lines .. ([[
        local net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)):to %q
        local n, ran = DDP(net), 0
        net[1].weight:register_hook(function() ran = ran + 1 end)
        local x = lm.full({ 2, 3 }, rank + 1, { dtype = %q })
        local loss = n(x):square():mean()
        local said = message(function() loss:backward { create_graph = true } end)
        assert(said:find("backward: DistributedDataParallel: create_graph is not supported", 1, true), said)
        assert(ran == 0 and not net[1].weight.grad and not net[3].bias.grad)
        loss:backward() -- the graph is as it was
        assert(net[1].weight.grad and not net[1].weight.grad.requires_grad)
        n:zero_grad()
        local grads = lm.autograd.grad(n(x):square():mean(), net:parameters(), { create_graph = true })
        assert(grads[1].requires_grad)
        n:no_sync(function() n(x):square():mean():backward { create_graph = true } end)
        assert(net[1].weight.grad.requires_grad)
      ]]):format(dtype, dtype))
    end
  end)
end)
