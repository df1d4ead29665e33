-- Proximal policy optimization on CartPole (Schulman et al., "Proximal Policy Optimization Algorithms", 2017) with
-- generalized advantage estimation (Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage
-- Estimation", 2016), with the details that CleanRL's ppo.py has made usual.
--
--   luajit examples/ppo.lua                         until the pole stands
--   luajit examples/ppo.lua --carts 32 --lr 0.001   with more carts

local lm = require "luminary"

local USAGE = [[
usage: luajit ppo.lua [options]

  --updates N       rounds of driving carts and learning from it     (60)
  --carts N         carts at once                                       (16)
  --horizon N       steps of every cart in an update                    (128)
  --epochs N        passes over an update's steps                       (4)
  --batch-size N    steps in a batch                                    (512)
  --gamma X         discount of what comes a step later                 (0.99)
  --lambda X        of the advantages: 0 trusts the critic, 1 the end   (0.95)
  --clip X          how far a probability may move from the ratio 1     (0.2)
  --entropy X       weight of the policy's entropy                      (0.01)
  --lr X            learning rate, from which it falls to 0             (0.0025)
  --seed N          of everything                                       (1)
  --save FILE       writes the agent's weights, with which hosts/love plays
  --selftest        a short run, whose return must be 150 or more
]]

local options, _, _, files = require "luminary.cli.script_options"(USAGE)
local CartPole, ppo = files.beside "cartpole.lua", files.beside "ppo_learner.lua"
if options.save then files.try("save", options.save) end
if options.selftest then options.updates = 20 end
lm.manual_seed(options.seed)
math.randomseed(options.seed)

local agent, carts = ppo.Agent(), CartPole.new(options.carts)
local update_agent = ppo.learner(agent, carts, options)
for update = 1, options.updates do
  update_agent()
  if update % 5 == 0 then
    print(("update %d: mean return of the last 20 episodes %.1f"):format(update, carts:mean_return(20)))
  end
end
if options.save then lm.save(options.save, agent:state_dict()) end

local score = CartPole.evaluate(function(states)
  return lm.no_grad(function() return agent.actor(states):argmax(2) end)
end, 20)
print(("mean return of 20 episodes of the likeliest actions: %.1f of 500"):format(score))
if options.selftest then os.exit(score >= 150 and 0 or 1, true) end
