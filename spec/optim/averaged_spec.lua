-- Copies of modules; averages of weights against PyTorch's (spec/golden/_averaged.safetensors), and what goes with it.
local lm = require "luminary"
local golden = require "spec.support.golden"
local temp = require "spec.support.temp"
local message = require "spec.support.error_of"
local nn, optim = lm.nn, lm.optim

local stored
setup(function() stored = golden.load("_averaged") end)
teardown(function() stored = nil end)

local function same(got, want)
  local difference = golden.differs(got, want, { 1e-12, 1e-13 })
  if difference then error(difference, 2) end
end

local function net() return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)):double() end

local function tensors_of(module)
  local list = module:parameters()
  for _, t in ipairs(module:buffers()) do list[#list + 1] = t end
  return list
end

local function flat(tensors)
  local list = {}
  for i, t in ipairs(tensors) do list[i] = t:detach():double():flatten() end
  return lm.cat(list)
end

-- Returns the module's tensors values that stand one after the other in v.
local function fill(module, v)
  local at = 1
  lm.no_grad(function()
    for _, t in ipairs(tensors_of(module)) do
      t:copy_(v[{ { at, at + t:numel() - 1 } }]:reshape(t.shape))
      at = at + t:numel()
    end
  end)
end

local options = {
  swa = {}, ema = { decay = 0.9 }, ema_slow = { decay = 0.999 }, ema_fast = { decay = 0.25, use_buffers = true },
  avg_fn = { avg_fn = function(a, p, n) return a * 0.5 + p / (n + 2) end },
  ema_buffers = { use_buffers = true, multi_avg_fn = function(averages, values)
    for i, a in ipairs(averages) do a:copy_(a:double() * 0.75 + values[i]:double() * 0.25) end
  end },
}

describe("an averaged model has PyTorch's values:", function()
  for name, given in pairs(options) do
    it(name, function()
      local model = net()
      local average = optim.AveragedModel(model, given)
      for k = 1, 12 do
        fill(model, stored[name .. ".model"][k])
        if k % 2 == 0 then average:update(model) else average:update_parameters(model) end
        same(flat(tensors_of(average.module)), stored[name][k])
      end
      assert.equal(12, average.n_averaged:item())
    end)
  end

  it("and goes on from a file", function()
    local folder = temp.folder()
    finally(function() temp.remove(folder) end)
    local model = net()
    local average = optim.AveragedModel(model)
    for k = 1, 5 do
      fill(model, stored["swa.model"][k])
      average:update(model)
    end
    lm.save(folder .. "/average", average:state_dict())
    local again = optim.AveragedModel(net())
    local dict = lm.load(folder .. "/average")
    assert.is_true(dict["module.0.weight"] ~= nil and dict.n_averaged:item() == 5)
    again:load_state_dict(dict)
    for k = 6, 12 do
      fill(model, stored["swa.model"][k])
      average:update(model)
      again:update(model)
    end
    assert.is_true(flat(tensors_of(average)):equal(flat(tensors_of(again))))
  end)
end)

describe("an averaged model", function()
  it("is a module of its own", function()
    local model = nn.Linear(2, 2)
    local average = optim.AveragedModel(model, { decay = 0.5 })
    average:update(model)
    local x = lm.ones { 1, 2 }
    local before = average(x):detach()
    assert.is_true(before:equal(model(x):detach()))
    lm.no_grad(function() model.weight:zero_() end)
    assert.is_true(before:equal(average(x):detach()))
    average:update(model)
    assert.is_false(before:equal(average(x):detach()))
    assert.equal("AveragedModel(\n  (module): Linear(in_features=2, out_features=2, bias=True)\n)", tostring(average))
    assert.equal(optim.AveragedModel, optim.swa_utils.AveragedModel)
    local there = optim.AveragedModel(model, { device = "cpu:1" })
    there:update(model)
    assert.equal("cpu:1", there.module.weight.device)
  end)

  it("takes what a wrapper wraps", function()
    local model = nn.Linear(2, 2)
    local wrapped = nn.DataParallel(model, { device_ids = { "cpu:0", "cpu:1" } })
    local average = optim.AveragedModel(wrapped)
    average:update(wrapped)
    average:update(model)
    assert.is_true(average.module.weight:equal(model.weight))
  end)

  it("names wrong arguments", function()
    local A, model = optim.AveragedModel, nn.Linear(2, 2)
    for problem, try in pairs {
      ["AveragedModel: model must be a module, got 3"] = function() A(3) end,
      ["AveragedModel: decay must be a number from 0 to 1, got 2"] = function() A(model, { decay = 2 }) end,
      ["AveragedModel: decay, avg_fn and multi_avg_fn are mutually exclusive"] = function()
        A(model, { decay = 0.5, avg_fn = print })
      end,
      ["AveragedModel: unknown option 'decy'; did you mean 'decay'?"] = function() A(model, { decy = 0.5 }) end,
      ["AveragedModel:update: model is missing or nil; expected a module"] = function() A(model):update() end,
      ["AveragedModel:update: the model has 1 parameters and 0 buffers, the averaged model 2 and 0"] = function()
        A(model):update(nn.Linear(2, 2, { bias = false }))
      end,
      ["AveragedModel:update: the model has a tensor [3, 2] where"] = function() A(model):update(nn.Linear(2, 3)) end,
      ["AveragedModel: the result of avg_fn is missing or nil; expected a tensor"] = function()
        local average = A(model, { avg_fn = function() end })
        average:update(model)
        average:update(model)
      end,
    } do
      local text = message(try)
      assert.matches("averaged_spec.lua:%d+: ", text, 1, false, problem)
      assert.matches(problem, text, 1, true)
    end
  end)
end)

describe("SWALR gives PyTorch's rates", function()
  local make = {
    swalr = function(o) return optim.SWALR(o, 0.05) end,
    swalr_linear = function(o)
      return optim.SWALR(o, { 0.5, 0.001 }, { anneal_epochs = 37, anneal_strategy = "linear" })
    end,
    swalr_at_once = function(o) return optim.SWALR(o, { swa_lr = 0.5, anneal_epochs = 0 }) end,
    ["swalr.changed"] = function(o) return optim.SWALR(o, 0.05, { anneal_epochs = 150 }) end,
  }
  local function optimizer()
    local function group(lr) return { params = { nn.Parameter(lm.zeros { 1 }) }, lr = lr } end
    return optim.SGD({ group(), group(0.03) }, { lr = 0.1, momentum = 0.5 })
  end
  for name, new in pairs(make) do
    it(name, function()
      local opt = optimizer()
      local schedule, seen = new(opt), {}
      for k = 0, 200 do
        seen[k + 1] = schedule:get_last_lr()
        if k == 100 and name == "swalr.changed" then opt.param_groups[1].lr = 0.5 end
        opt:step()
        if k < 200 then schedule:step() end
      end
      same(lm.tensor(seen, { dtype = "float64" }), stored[name])
    end)
  end

  it("and goes on from a state_dict", function()
    local opt, other = optimizer(), optimizer()
    local schedule, again = make.swalr(opt), make.swalr_linear(other)
    for _ = 1, 4 do schedule:step() end
    other:load_state_dict(opt:state_dict())
    again:load_state_dict(schedule:state_dict())
    for _ = 1, 9 do
      schedule:step()
      again:step()
      assert.same(schedule:get_last_lr(), again:get_last_lr())
    end
    assert.matches("SWALR: swa_lr is missing or nil; expected a number", message(optim.SWALR, opt))
    assert.matches("anneal_strategy must be one of 'cos',", message(optim.SWALR, opt, 1, { anneal_strategy = "x" }))
  end)
end)

describe("update_bn", function()
  it("makes the statistics anew, as averages over the batches", function()
    local model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, { momentum = 0.3 }), nn.Dropout(0.5))
    model:eval()
    model[3]:train()
    local batches = { lm.randn { 5, 3 }, lm.randn { 7, 3 } * 3, lm.randn { 2, 3 } }
    local means, vars = {}, {}
    for i, x in ipairs(batches) do
      local y = model[1](x):detach()
      means[i], vars[i] = y:mean(1), y:var(1)
    end
    local function check()
      assert.is_true(model[2].running_mean:allclose((means[1] + means[2] + means[3]) / 3))
      assert.is_true(model[2].running_var:allclose((vars[1] + vars[2] + vars[3]) / 3))
      assert.same({ 0.3, false, true, 3 }, { model[2].momentum, model.training, model[3].training,
        model[2].num_batches_tracked:item() })
    end
    optim.swa_utils.update_bn(batches, model)
    check()
    optim.swa_utils.update_bn({ { batches[1], 5 }, { batches[2] }, { batches[3] } }, model, { device = "cpu" })
    check()
    local set = lm.data.TensorDataset(lm.cat { batches[1], batches[2] }, lm.zeros { 12 })
    optim.swa_utils.update_bn(lm.data.DataLoader(set, { batch_size = 4 }), model)
    assert.equal(3, model[2].num_batches_tracked:item())
    local text = message(optim.swa_utils.update_bn, { batches[1], lm.ones { 2, 9 } }, model)
    assert.matches("9", text)
    assert.same({ 0.3, false }, { model[2].momentum, model.training })
    assert.matches("update_bn: expected a loader or a list of batches, got 3",
      message(optim.swa_utils.update_bn, 3, model))
    assert.matches("update_bn: a batch must be a tensor, got 3", message(optim.swa_utils.update_bn, { 3 },
      model))
    optim.swa_utils.update_bn({}, nn.Linear(1, 1))
  end)
end)

describe("a module's clone", function()
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.blocks = nn.ModuleList { nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2) }
    self.again = self.blocks[1]
    self.tied = self.blocks[3].weight
    self:register_buffer("seen", lm.zeros { 2 }, { persistent = false })
    self.settings = { width = 2, names = { "a", "b" }, mask = lm.ones { 2 } }
    self.settings.me = self.settings
    self.opt = optim.SGD(self.blocks[1]:parameters(), { lr = 1 })
  end
  function Net:forward(x)
    for _, block in ipairs(self.blocks) do x = block(x) end
    return x + self.seen
  end

  it("computes the same from memory of its own", function()
    local model = Net()
    local calls = 0
    model.blocks[1]:register_forward_hook(function() calls = calls + 1 end)
    model(lm.randn { 4, 2 }):sum():backward()
    model.blocks[2]:eval()
    model.blocks[1].weight.requires_grad = false
    local twin = model:clone()
    local a, b = model:state_dict(), twin:state_dict()
    for key, t in pairs(a) do
      assert.is_true(t:equal(b[key]), key)
      assert.is_true(t:data_ptr() ~= b[key]:data_ptr(), key)
      b[key] = nil
    end
    assert.is_nil(next(b))
    assert.is_true(twin:is(Net))
    assert.equal(tostring(model), tostring(twin))
    assert.is_true(twin.blocks[3].weight.grad:equal(model.blocks[3].weight.grad))
    assert.is_false(twin.blocks[1].weight.requires_grad)
    assert.is_true(twin.blocks[1].bias.requires_grad)
    assert.is_false(twin.blocks[2].training)
    local names = {}
    for name in twin:named_parameters() do names[#names + 1] = name end
    local want = {}
    for name in model:named_parameters() do want[#want + 1] = name end
    assert.same(want, names)
    -- Nothing that is done to one shows in the other.
    local x = lm.randn { 3, 2 }
    local y = model(x):detach()
    assert.is_true(y:equal(twin(x):detach()))
    assert.equal(3, calls)
    lm.no_grad(function() for _, t in ipairs(tensors_of(twin)) do t:fill_(0) end end)
    twin.settings.names[1] = "c"
    twin.settings.mask:zero_()
    table.remove(twin.blocks, 2)
    assert.is_true(y:equal(model(x):detach()))
    assert.same({ "a", "b" }, model.settings.names)
    assert.equal(2, model.settings.mask:sum():item())
    assert.equal(3, #model.blocks)
  end)

  it("shares within itself what was shared", function()
    local model = Net()
    local twin = model:clone()
    assert.equal(twin.again, twin.blocks[1])
    assert.equal(twin.tied, twin.blocks[3].weight)
    assert.is_true(twin.tied ~= model.tied)
    assert.equal(twin.settings, twin.settings.me)
    assert.is_true(twin.settings ~= model.settings)
    assert.equal(model.opt, twin.opt) -- other objects are the same
    assert.equal(#model:parameters(), #twin:parameters())
    assert.is_nil(twin:state_dict().seen)
    twin.blocks:append(nn.ReLU())
    assert.same({ 4, 3 }, { #twin.blocks, #model.blocks })
  end)

  it("is not made of a wrapper", function()
    local wrapped = nn.DataParallel(nn.Linear(1, 1), { device_ids = { "cpu:0", "cpu:1" } })
    assert.matches("DataParallel belongs to its processes or devices; clone the module inside it, its field module",
      message(wrapped.clone, wrapped))
  end)
end)
