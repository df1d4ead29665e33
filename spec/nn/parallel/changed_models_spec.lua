-- Divided models that a script changes, initializes, clips, optimizes or calls in a way that needs all of a parameter.
local on = require "spec.support.sharded"

describe("a divided model", function()
  it("is refused by LBFGS, whichever way ranks divide it", function()
    on.succeeds(2, [[
      local line = dist.init_device_mesh("cpu", {2}, {names = {"line"}})
      local function net() return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) end
      local early = net()
      local opt = optim.LBFGS(early:parameters())
      nn.parallel.parallelize(early, line, {["0"] = "column", ["1"] = "row"})
      contains(message(opt.step, opt, function() end), "LBFGS: a step needs all parameters, but 2 ranks")
      contains(message(optim.LBFGS, early:parameters()), "but 2 ranks divide one of shape [4, 4]; choose another")
      local pipe = nn.parallel.Pipeline(net(), {mesh = line, split = {"1"}, microbatches = 2, loss = F.mse_loss})
      contains(message(optim.LBFGS, pipe:parameters()), "LBFGS: a step needs all parameters, but 2 ranks divide")
      contains(message(optim.LBFGS, nn.MixtureOfExperts(4, 8, 4, {mesh = line}):parameters()), "2 ranks divide")
      contains(message(optim.LBFGS, fully_shard(net()):parameters()), "but 2 ranks divide '0.weight'")
    ]])
  end)

  it("takes initial values before it is divided, and equal ones afterwards", function()
    on.succeeds(2, [[
      local line = dist.init_device_mesh("cpu", {2}, {names = {"line"}})
      local sharded, split = fully_shard(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
      nn.parallel.parallelize(split, line, {["0"] = "column"})
      for _, layer in ipairs {sharded, split[1]} do
        for _, f in ipairs {"eye_", "orthogonal_", "xavier_uniform_", "normal_"} do
          contains(message(nn.init[f], layer.weight), "ranks divide a parameter of shape [4, 4]; initialize it before")
        end
        contains(message(layer.reset_parameters, layer), "initialize it before")
        nn.init.ones_(layer.weight)
        nn.init.constant_(layer.bias, 3)
        assert(layer.weight:sum():item() == 8 and layer.bias:sum():item() == 6)
      end
      local alone = dist.init_device_mesh("cpu", {1, 2}, {names = {"one", "two"}})["one"]
      nn.init.eye_(fully_shard(nn.Linear(4, 4), {mesh = alone}).weight) -- this rank has all of it
    ]])
  end)

  it("has its module called twice within a unit", function()
    on.succeeds(2, [[
      local function make()
        lm.manual_seed(3)
        local l = nn.Linear(4, 4)
        return nn.Sequential(l, nn.Tanh(), l)
      end
      local alone, net = make(), fully_shard(make())
      local x = lm.randn(2, 4)
      alone(x):pow(2):mean():backward()
      net(x):pow(2):mean():backward()
      same_grads("twice", net, alone)
      net:load_state_dict(alone:state_dict())
      assert(lm.allclose(net(x), alone(x)))
    ]])
  end)

  it("refuses modules and parameters that were added to it or replaced", function()
    on.succeeds(2, [[
      for _, change in ipairs {
        function(net) net[2] = nn.Linear(4, 4) end,
        function(net) net:append(nn.Linear(4, 4)) end,
        function(net) net[1].bias = nn.Parameter(lm.ones(4)) end,
      } do
        local net = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        net(lm.ones(2, 4)):sum():backward()
        change(net)
        contains(message(net, lm.ones(2, 4)), "was replaced or added; assign parameters and modules before fully_shard")
      end
    ]])
  end)

  it("has no parametrization of a parameter that ranks divide", function()
    on.succeeds(2, [[
      local line = dist.init_device_mesh("cpu", {2}, {names = {"line"}})
      local plan = {["0"] = "column", ["1"] = "row"}
      local function net() return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) end
      for _, norm in ipairs {
        nn.utils.weight_norm, nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
      } do
        local early, late = net(), net()
        norm(early[2])
        contains(message(nn.parallel.parallelize, early, line, plan), "parallelize: '1' has a parametrization")
        assert(early[1].weight:size(1) == 4)
        nn.parallel.parallelize(late, line, plan)
        contains(message(norm, late[2]), "ranks divide 'weight' of this Linear")
        contains(message(norm, fully_shard(nn.Linear(4, 4))), "ranks divide 'weight' of this Linear")
      end
    ]])
  end)

  it("has its norm clipped with one order and limit on all ranks", function()
    for _, call in ipairs {"1, {norm_type = rank + 1}", "rank + 1"} do
      local got = on.run(2, [[
        local net = fully_shard(nn.Linear(4, 4))
        net(lm.ones(2, 4)):sum():backward()
        nn.utils.clip_grad_norm_(net:parameters(), 2)
        nn.utils.clip_grad_norm_(net:parameters(), ]] .. call .. ")")
      for rank = 0, 1 do
        assert.not_equal(0, got[rank].code, got.text)
        assert.matches(" norm of order %d, max_norm %d, over all ranks at", got[rank].output)
      end
    end
  end)

  it("is called in one order with other models on all ranks", function()
    for _, run in ipairs {"f()", "lm.no_grad(f)"} do
      local got = on.run(2, [[
        local a, b = fully_shard(nn.Linear(4, 4)), fully_shard(nn.Linear(4, 4))
        if rank == 1 then a, b = b, a end
        local function f()
          a(lm.ones(1, 4))
          b(lm.ones(1, 4))
        end
      ]] .. run)
      for rank = 0, 1 do
        assert.not_equal(0, got[rank].code, got.text)
        local wanted = "rank %d on [^ ]+ [^,]+ fully_shard: the unit of call %d %%(Linear%%) at"
        for other = 0, 1 do assert.matches(wanted:format(other, other + 1), got[rank].output) end
      end
    end
  end)
end)
