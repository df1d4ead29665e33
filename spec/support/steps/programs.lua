--- Programs of README, docs/ and examples/ that train, by path, with the place of their step: the name of a function,
--- or the lines `from` to `to` (how they begin) of a loop, which take and return local variables. `arguments` are the
--- shell's words; `file`: the step is in another file.
local function lines(from, to, takes, returns)
  return {from = from, to = to, takes = takes or "", returns = returns or "loss"}
end
local net_x_y = "local loss = F.cross_entropy(net(x), y)"

local programs = {
  ["README.md"] = lines(net_x_y, "opt:step()"),
  ["docs/start/first_model.md"] = lines(net_x_y, "opt:step()"),
  ["docs/tutorial/autograd.md"] = lines("local loss = F.cross_entropy(images:matmul(weight)", "end)"),
  ["docs/tutorial/model.md"] = lines("local loss = F.cross_entropy(net(images), labels)", "opt:step()"),
  ["docs/tutorial/data.md"] = lines(net_x_y, "opt:step()", "x, y"),
  ["docs/tutorial/training.md"] = lines(net_x_y, "schedule:step()", "x, y"),
  ["docs/tutorial/saving.md"] = lines("local loss = F.cross_entropy(job.net(x), y)", "job.opt:step()", "job, x, y"),
  ["docs/howto/optimizer.md"] = lines("local loss = F.mse_loss(net(x), y)", "opt:step()"),
  ["docs/howto/checkpoints.md"] = {name = "train_epoch"},
  ["docs/howto/metrics.md"] = lines("local loss = F.cross_entropy(net(input), target)", "opt:step()", "input, target"),
  ["docs/howto/watching.md"] = lines("local output = net(input)", "opt:step()", "input, target", "loss, output"),
  ["docs/howto/elastic.md"] = lines("local loss = (net(x) - y):square():mean()", "opt:step()", "x, y"),
  ["docs/howto/profiling.md"] = lines("local loss = lm.record_function", "opt:step()", "x, y"),
  ["docs/howto/mixed_precision.md"] = lines("local loss = lm.autocast({}, function()", "scaler:update()"),
  ["docs/howto/several_gpus.md"] = lines("local loss = F.cross_entropy(net(x:to(device))", "opt:step()", "x, y"),
  ["docs/howto/sharded.md"] = lines(net_x_y, "opt:step()", "x, y"),
  ["examples/bert_classify.lua"] = lines("local loss = F.cross_entropy", "schedule:step()", "ids, mask, targets"),
  ["examples/char_lstm.lua"] = lines("local logits, after = net(inputs:narrow", "opt:step()", "", "loss, after"),
  ["examples/chat.lua"] = lines("local loss = F.cross_entropy(net(ids):flatten", "opt:step()"),
  ["examples/dcgan.lua"] = {name = "step"},
  ["examples/ddpm.lua"] = lines("local loss = loss_of(net, images)", "average:update(net)", "images"),
  ["examples/detector.lua"] = lines("local logits, sides = net(x:to(device))", "schedule:step()", "x, boxes, classes"),
  ["examples/dqn.lua"] = {name = "learn"},
  ["examples/first_ddp.lua"] = lines("local loss = nn.functional.mse_loss", "opt:step()", "x, y"),
  ["examples/gcn.lua"] = lines("local loss = F.cross_entropy(net(features", "opt:step()"),
  ["examples/gpt.lua"] = lines("local loss = 0", "schedule:step()"),
  ["examples/ppo.lua"] = {file = "examples/ppo_learner.lua", name = "learn"},
  ["examples/train_gpt.lua"] = lines("opt:zero_grad()", "schedule:step()", "batch"),
  ["examples/vae.lua"] = lines("local loss = loss_of(x, net(x))", "opt:step()", "x"),
  ["examples/word2vec.lua"] = lines("local n = #center", "opt:step()", "center, context"),
}
for path, program in pairs(programs) do program.arguments = path:find "^examples" and "--selftest" or "" end
programs["examples/first_ddp.lua"].arguments = ""
programs["examples/train_gpt.lua"].arguments = "--layers 2 --width 16 --length 16 --steps 60 ../train_gpt.lua"
return programs
