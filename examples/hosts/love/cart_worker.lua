-- Learns to balance the pole on a worker thread of main.lua: an agent of this thread drives 16 carts.
local worker = {}

local agent, carts, update

--- Learns for a round from the folder `examples`. weights: those to begin with, a state dict, or nil. Returns the
--- agent's weights, and the mean return of the last 20 episodes.
function worker.learn(examples, weights)
  if not agent then
    local ppo = dofile(examples .. "ppo_learner.lua")
    agent, carts = ppo.Agent(), dofile(examples .. "cartpole.lua").new(16)
    if weights then agent:load_state_dict(weights) end
    update = ppo.learner(agent, carts, {
      horizon = 128, epochs = 4, ["batch-size"] = 512, gamma = 0.99, lambda = 0.95, clip = 0.2, entropy = 0.01,
      lr = 1e-3,
    })
  end
  update()
  local copies = {}
  for name, weight in pairs(agent:state_dict()) do copies[name] = weight:clone() end -- the window shows them meanwhile
  return copies, carts:mean_return(20)
end

return worker
