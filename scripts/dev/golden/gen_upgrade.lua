-- Writes what a version of Luminary saves, for spec/checkpoint/upgrade_spec.lua. Run it by that version's libraries and
-- Lua files, first in one process, then on two ranks:
--   luajit gen_upgrade.lua OUT                          values, weights, a training in mid-epoch, an ONNX model
--   luminary run --nproc 2 gen_upgrade.lua OUT          sharded checkpoints
-- What that version lacks is left out. Files *expected.safetensors have the results.
local here = arg[0]:match("^(.*)/") or "."
local upgrade = dofile(here .. "/../../../spec/support/upgrade.lua")
local lm = require "luminary"
local _, checkpoint = pcall(function() return lm.checkpoint.Manager and lm.checkpoint end)
local has = type(checkpoint) == "table" -- else it has lm.save alone
local out = arg[1] .. "/"

if not os.getenv "WORLD_SIZE" then
  lm.save(out .. "values.safetensors", upgrade.values())
  local parts, train = upgrade.training()
  lm.save(out .. "weights.safetensors", parts.model:state_dict())
  lm.save(out .. "weights.pt", parts.model:state_dict())
  lm.save(out .. "weights.npz", parts.model:state_dict())
  lm.manual_seed(7)
  train()
  lm.save(out .. "expected.safetensors", parts.model:state_dict())
  parts, train = upgrade.training() -- again, up to the second of four batches
  lm.manual_seed(7)
  train(2)
  lm.save(out .. "optimizer.pt", parts.optimizer:state_dict())
  if has then
    parts.rng, parts.step = true, 2
    checkpoint.save(out .. "training.safetensors", parts)
  else
    local states = {rng = lm.get_rng_state(), step = 2}
    for name, part in pairs(parts) do states[name] = part:state_dict() end
    lm.save(out .. "training.safetensors", states)
  end
  if pcall(function() return lm.onnx.export end) then
    local net, x = upgrade.exported()
    lm.onnx.export(net, x, out .. "model.onnx")
    lm.save(out .. "model_expected.safetensors", {y = net(x)})
  end
  parts, train = upgrade.sharded(upgrade.alone)
  train(4)
  lm.save(out .. "sharded_expected.safetensors", parts.model:state_dict())
elseif has then
  lm.dist.init_process_group()
  for _, way in ipairs {"zero", "fully_shard"} do
    local known, parts, train = pcall(upgrade.sharded, upgrade[way], lm.dist.get_rank(), lm.dist.get_world_size())
    if known then
      train(2)
      checkpoint.save(out .. way .. ".safetensors", parts)
    end
  end
end
