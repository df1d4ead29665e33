-- Deep Q-learning on CartPole (Mnih et al., "Human-level control through deep reinforcement learning", 2015), as in
-- PyTorch's DQN tutorial: a replay memory, a target network that follows the policy's slowly, epsilon-greedy actions.
--
--   luajit examples/dqn.lua                  until the pole stands
--   luajit examples/dqn.lua --steps 20000    longer

local lm = require "luminary"
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

local USAGE = [[
usage: luajit dqn.lua [options]

  --steps N         optimizer steps, each after one step of all carts  (10000)
  --carts N         carts at once                                      (8)
  --batch-size N    transitions of a step                              (128)
  --memory N        transitions that are remembered                    (20000)
  --gamma X         discount of what comes a step later                (0.99)
  --tau X           how much of the way the target follows in a step   (0.01)
  --epsilon X       share of random actions at the end, from 0.9 on    (0.02)
  --lr X            learning rate                                      (0.001)
  --seed N          of everything                                      (1)
  --selftest        a short run, whose return must be 100 or more
]]

local options, _, _, files = require "luminary.cli.script_options"(USAGE)
local CartPole = files.beside "cartpole.lua"
if options.selftest then options.steps = 3000 end
lm.manual_seed(options.seed)
math.randomseed(options.seed)

-- ---- the replay memory: a ring of the last transitions, a row each

local Memory = {}
Memory.__index = Memory

function Memory.new(capacity)
  return setmetatable({
    capacity = capacity, size = 0, at = 0, state = lm.zeros(capacity, 4), next = lm.zeros(capacity, 4),
    action = lm.zeros({capacity}, {dtype = "int64"}), fell = lm.zeros(capacity),
  }, Memory)
end

function Memory:push(transitions)
  local n = #transitions.action
  local rows = (lm.arange(n) + self.at):remainder(self.capacity) + 1
  for name, values in pairs(transitions) do self[name][rows] = values end
  self.at, self.size = (self.at + n) % self.capacity, math.min(self.size + n, self.capacity)
end

function Memory:sample(n)
  local rows = lm.randint(1, self.size + 1, {n})
  return self.state[rows], self.action[rows], self.next[rows], self.fell[rows]
end

-- ---- learning

local policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
local target = optim.AveragedModel(policy, {decay = 1 - options.tau})
local opt = optim.AdamW(policy:parameters(), {lr = options.lr, amsgrad = true})
local schedule = optim.lr_scheduler.LinearLR(opt, {start_factor = 1, end_factor = 0, total_iters = options.steps})

local function greedy(states)
  return lm.no_grad(function() return policy(states):argmax(2) end)
end

local function act(states, epsilon)
  local n = #states
  return lm.where(lm.rand(n):lt(epsilon), lm.randint(1, 3, {n}), greedy(states))
end

-- Learns from steps: the reward of each is 1, and nothing follows a fall. The policy chooses the next action and the
-- target values it (van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", 2016).
local function learn(state, action, reached, fell)
  local wanted = lm.no_grad(function()
    local best = policy(reached):argmax(2, true)
    return 1 + options.gamma * (1 - fell) * target(reached):gather(2, best):squeeze(2)
  end)
  local q = policy(state):gather(2, action:unsqueeze(2)):squeeze(2)
  local loss = F.smooth_l1_loss(q, wanted)
  opt:zero_grad()
  loss:backward()
  nn.utils.clip_grad_value_(policy:parameters(), 100)
  opt:step()
  schedule:step()
  target:update(policy)
end

local carts, memory = CartPole.new(options.carts), Memory.new(options.memory)
local states = carts:states()
for step = 1, options.steps do
  local epsilon = options.epsilon + (0.9 - options.epsilon) * math.exp(-8 * step / options.steps)
  local actions = act(states, epsilon)
  local seen = carts:step(actions)
  memory:push {state = states, action = actions, next = seen.next, fell = seen.fell}
  states = carts:states()
  if memory.size >= options["batch-size"] then learn(memory:sample(options["batch-size"])) end
  if step % 500 == 0 then
    print(("step %d: mean return of the last 20 episodes %.1f"):format(step, carts:mean_return(20)))
  end
end

local score = CartPole.evaluate(greedy, 20)
print(("mean return of 20 episodes without random actions: %.1f of 500"):format(score))
if options.selftest then os.exit(score >= 100 and 0 or 1, true) end
