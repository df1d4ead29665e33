-- Files of older versions: values, weights, checkpoints, sharded checkpoints and ONNX models load, and trainings
-- continue with the bits that the older version computed. The folders of spec/golden/upgrade are named by the day of
-- the commit that wrote them (scripts/dev/golden/gen_upgrade.lua).
local lm = require "luminary"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local upgrade = require "spec.support.upgrade"

local function same(got, expected)
  for name, value in pairs(expected) do
    if type(value) == "userdata" then
      assert(got[name].dtype == value.dtype and got[name]:equal(value), name)
    else
      assert.same(value, got[name])
    end
  end
end

for day in io.popen "ls spec/golden/upgrade":lines() do
  describe("files of " .. day, function()
    local folder = "spec/golden/upgrade/" .. day .. "/"
    local function saved(name) return lm.load(folder .. name) end

    it("values of each dtype and kind", function()
      same(saved "values.safetensors", upgrade.values())
    end)

    it("weights as safetensors, .pt and .npz", function()
      local expected = upgrade.training().model:state_dict()
      for _, name in ipairs {"weights.safetensors", "weights.pt", "weights.npz"} do same(saved(name), expected) end
    end)

    it("a training continues in mid-epoch with the same bits", function()
      local parts, train = upgrade.training()
      local states = saved "training.safetensors"
      if states.rng then -- saved by lm.save
        for name, part in pairs(parts) do part:load_state_dict(states[name]) end
        lm.set_rng_state(states.rng)
      else
        parts.rng = true
        states = lm.checkpoint.load(folder .. "training.safetensors", parts)
      end
      assert.equal(2, states.step)
      train()
      same(parts.model:state_dict(), saved "expected.safetensors")
    end)

    it("an optimizer's state as .pt", function()
      local opt, other = upgrade.training().optimizer, upgrade.training().optimizer
      local states = saved "training.safetensors"
      opt:load_state_dict(saved "optimizer.pt")
      other:load_state_dict((states.rng and states or lm.checkpoint.load(folder .. "training.safetensors")).optimizer)
      local state = opt:state_dict().state
      assert.equal(4, #state)
      for i, expected in ipairs(other:state_dict().state) do same(state[i], expected) end
    end)

    for _, way in ipairs {"zero", "fully_shard"} do
      local path = folder .. way .. ".safetensors"
      if temp.exists(path) then
        it("shards of " .. way .. " continue in one process and in two ranks", function()
          local parts, train = upgrade.sharded(upgrade.alone)
          lm.checkpoint.load(path, parts)
          train(2)
          same(parts.model:state_dict(), saved "sharded_expected.safetensors")
          local got = ranks.run {n = 2, script = ([[
            local lm, upgrade = require "luminary", require "spec.support.upgrade"
            lm.dist.init_process_group()
            local parts, train = upgrade.sharded(upgrade.%s, lm.dist.get_rank(), 2)
            lm.checkpoint.load("%s", parts)
            train(2)
            local state = parts.model:state_dict()
            if "%s" == "fully_shard" then state = lm.nn.parallel.full_state_dict(parts.model) end
            for name, value in pairs(lm.load "%ssharded_expected.safetensors") do
              assert(state[name]:equal(value), name)
            end
          ]]):format(way, path, way, folder)}
          assert(got.ok, got.text)
        end)
      end
    end

    if temp.exists(folder .. "model.onnx") then
      it("an exported ONNX model", function()
        if not lm.onnx then pending "this build has no ONNX" end
        local net, x = upgrade.exported()
        local expected = saved "model_expected.safetensors".y
        assert(net(x):equal(expected))
        assert(lm.onnx.load(folder .. "model.onnx")(x):equal(expected))
      end)
    end
  end)
end
