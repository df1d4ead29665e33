-- Proximal policy optimization of an agent that pushes carts (cartpole.lua), for ppo.lua and hosts/love.
--
--   local ppo = dofile(folder .. "ppo_learner.lua")
--   local agent = ppo.Agent()
--   local update = ppo.learner(agent, carts, options)    options by the names of ppo.lua's command line
--   update()                                             a round of driving carts and learning from it
local lm = require "luminary"
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data
local Categorical = lm.distributions.Categorical

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
local function drive(agent, carts, horizon)
  local rows = {state = {}, action = {}, logp = {}, value = {}, following = {}, fell = {}, done = {}}
  for t = 1, horizon do
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
local function advantages_of(rows, options)
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

local ppo = {Agent = Agent}

--- Returns a function that drives the carts and learns from it. The learning rate falls to 0 in options.updates calls;
--- without that number it stays.
function ppo.learner(agent, carts, options)
  local opt = optim.Adam(agent:parameters(), {lr = options.lr, eps = 1e-5})
  local schedule = options.updates and optim.lr_scheduler.LinearLR(opt, {
    start_factor = 1, end_factor = 0, total_iters = options.updates,
  })

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

  return function()
    local set = lm.no_grad(function()
      local rows = drive(agent, carts, options.horizon)
      local advantages = advantages_of(rows, options)
      return data.TensorDataset(rows.state:flatten(1, 2), rows.action:flatten(), rows.logp:flatten(),
        advantages:flatten(), (advantages + rows.value):flatten())
    end)
    local loader = data.DataLoader(set, {batch_size = options["batch-size"], shuffle = true})
    for _ = 1, options.epochs do
      for state, action, logp, advantage, wanted in loader:iter() do learn(state, action, logp, advantage, wanted) end
    end
    if schedule then schedule:step() end
  end
end

return ppo
