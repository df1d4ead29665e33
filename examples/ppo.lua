-- Proximal policy optimization on CartPole (Schulman et al., "Proximal Policy Optimization Algorithms", 2017) with
-- generalized advantage estimation (Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage
-- Estimation", 2016), with the details that CleanRL's ppo.py has made usual.
--
--   luajit examples/ppo.lua                         until the pole stands
--   luajit examples/ppo.lua --carts 32 --lr 0.001   with more carts

local lm = require "luminary"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data
local Categorical = lm.distributions.Categorical

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
  --selftest        a short run, whose return must be 150 or more
]]

local options, _, _, files = require "luminary.cli.script_options"(USAGE)
local CartPole = files.beside "cartpole.lua"
if options.selftest then options.updates = 20 end
lm.manual_seed(options.seed)
math.randomseed(options.seed)

-- ---- the agent: two networks, of which one acts and the other says how much is still to come

local function layer(inputs, outputs, gain)
  local linear = nn.Linear(inputs, outputs)
  nn.init.orthogonal_(linear.weight, gain)
  nn.init.zeros_(linear.bias)
  return linear
end

local function network(outputs, gain)
  local wide = math.sqrt(2)
  return nn.Sequential(layer(4, 64, wide), nn.Tanh(), layer(64, 64, wide), nn.Tanh(), layer(64, outputs, gain))
end

local Agent = nn.Module:extend("Agent")

function Agent:init()
  self.actor = network(2, 0.01)
  self.critic = network(1, 1)
end

-- Takes states [N, 4]; returns the distribution of the actions and the values [N].
function Agent:forward(states)
  return Categorical {logits = self.actor(states)}, self.critic(states):squeeze(2)
end

-- ---- driving

-- Drives all carts for `horizon` steps. Returns tensors [horizon, carts]: state (of [.., 4]), action, logp, value,
-- fell, done, and following, the value of the state that was reached, before the cart began again.
local function drive(agent, carts)
  local rows = {state = {}, action = {}, logp = {}, value = {}, following = {}, fell = {}, done = {}}
  for t = 1, options.horizon do
    local states = carts:states()
    local policy, value = agent(states)
    local action = policy:sample()
    local seen = carts:step(action)
    rows.state[t], rows.action[t], rows.logp[t], rows.value[t] = states, action, policy:log_prob(action), value
    rows.following[t] = agent.critic(seen.next):squeeze(2)
    rows.fell[t], rows.done[t] = seen.fell, seen.done
  end
  for name, list in pairs(rows) do rows[name] = lm.stack(list) end
  return rows
end

-- Returns how much better each action was than its state's value: sums of later steps' surprises, to the episode's end.
local function advantages_of(rows)
  local surprise = 1 + options.gamma * (1 - rows.fell) * rows.following - rows.value
  local keep = options.gamma * options.lambda * (1 - rows.done)
  local advantages, running = {}, 0
  for t = options.horizon, 1, -1 do
    running = surprise[t] + keep[t] * running
    advantages[t] = running
  end
  return lm.stack(advantages)
end

-- ---- learning

local agent, carts = Agent(), CartPole.new(options.carts)
local opt = optim.Adam(agent:parameters(), {lr = options.lr, eps = 1e-5})
local schedule = optim.lr_scheduler.LinearLR(opt, {start_factor = 1, end_factor = 0, total_iters = options.updates})

local function learn(state, action, logp, advantage, wanted)
  local policy, value = agent(state)
  local ratio = (policy:log_prob(action) - logp):exp()
  local good = (advantage - advantage:mean()) / (advantage:std() + 1e-8)
  local clipped = ratio:clamp(1 - options.clip, 1 + options.clip)
  local gain = (ratio * good):minimum(clipped * good):mean()
  local loss = 0.5 * F.mse_loss(value, wanted) - gain - options.entropy * policy:entropy():mean()
  opt:zero_grad()
  loss:backward()
  nn.utils.clip_grad_norm_(agent:parameters(), 0.5)
  opt:step()
end

for update = 1, options.updates do
  local set = lm.no_grad(function()
    local rows = drive(agent, carts)
    local advantages = advantages_of(rows)
    return data.TensorDataset(rows.state:flatten(1, 2), rows.action:flatten(), rows.logp:flatten(),
      advantages:flatten(), (advantages + rows.value):flatten())
  end)
  local loader = data.DataLoader(set, {batch_size = options["batch-size"], shuffle = true})
  for _ = 1, options.epochs do
    for state, action, logp, advantage, wanted in loader:iter() do learn(state, action, logp, advantage, wanted) end
  end
  schedule:step()
  if update % 5 == 0 then
    print(("update %d: mean return of the last 20 episodes %.1f"):format(update, carts:mean_return(20)))
  end
end

local score = CartPole.evaluate(function(states)
  return lm.no_grad(function() return agent.actor(states):argmax(2) end)
end, 20)
print(("mean return of 20 episodes of the likeliest actions: %.1f of 500"):format(score))
if options.selftest then os.exit(score >= 150 and 0 or 1, true) end
