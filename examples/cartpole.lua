-- Gym's CartPole-v1: a pole stands on a cart, and pushing the cart to the left or right is to keep it up. The physics
-- are those of Barto, Sutton and Anderson, "Neuronlike Adaptive Elements That Can Solve Difficult Learning Control
-- Problems", 1983. Several carts go at once, since a network is as quick with eight states as with one.
--
--   local carts = dofile(folder .. "cartpole.lua").new(8)
--   local states = carts:states()                                float32 [8, 4]
--   local step = carts:step(lm.randint(1, 3, {8}))               1 pushes to the left, 2 to the right
--
-- Every step is worth a reward of 1, so that an episode's return is its length. A cart starts at random near the
-- middle, by math.random, and again as soon as its episode ends.
local lm = require "luminary"

local gravity, cart_mass, pole_mass, half_length = 9.8, 1.0, 0.1, 0.5 -- m/s^2, kg, kg, m
local force, tau = 10, 0.02 -- N, s
local limit_x, limit_angle, limit_steps = 2.4, 12 * math.pi / 180, 500

local CartPole = {}
CartPole.__index = CartPole

-- Returns a state: position, velocity, angle (0 is upright) and angular velocity of one cart.
local function start()
  local state = {}
  for i = 1, 4 do state[i] = math.random() * 0.1 - 0.05 end
  return state
end

-- Returns the state 0.02 s later, by Euler's method.
local function push(state, action)
  local x, v, angle, spin = unpack(state)
  local sin, cos, mass = math.sin(angle), math.cos(angle), cart_mass + pole_mass
  local pushed = ((action == 2 and force or -force) + pole_mass * half_length * spin ^ 2 * sin) / mass
  local spin_up = (gravity * sin - cos * pushed) / (half_length * (4 / 3 - pole_mass * cos ^ 2 / mass))
  local speed_up = pushed - pole_mass * half_length * spin_up * cos / mass
  return {x + tau * v, v + tau * speed_up, angle + tau * spin, spin + tau * spin_up}
end

-- Returns n carts at their start.
function CartPole.new(n)
  local self = setmetatable({now = {}, steps = {}, returns = {}}, CartPole)
  for i = 1, n do self.now[i], self.steps[i] = start(), 0 end
  return self
end

-- Returns the carts' states: float32 [n, 4].
function CartPole:states() return lm.tensor(self.now, {dtype = "float32"}) end

-- Moves every cart; actions: int64 [n], of 1 and 2. Returns a table of float32 tensors: next [n, 4], the states
-- that were reached; fell [n], 1 where the episode ended for a fall or at the edge, after which there is nothing to
-- gain; done [n], 1 where it fell or its 500 steps were over. Appends the returns of ended episodes to carts.returns.
function CartPole:step(actions)
  local reached, fell, done = {}, {}, {}
  for i, action in ipairs(actions:tolist()) do
    local state = push(self.now[i], action)
    local over = math.abs(state[1]) > limit_x or math.abs(state[3]) > limit_angle
    self.now[i], self.steps[i] = state, self.steps[i] + 1
    reached[i], fell[i] = state, over and 1 or 0
    done[i] = (over or self.steps[i] == limit_steps) and 1 or 0
    if done[i] == 1 then
      table.insert(self.returns, self.steps[i])
      self.now[i], self.steps[i] = start(), 0
    end
  end
  local options = {dtype = "float32"}
  return {next = lm.tensor(reached, options), fell = lm.tensor(fell, options), done = lm.tensor(done, options)}
end

-- Returns the mean of the last n returns (of fewer, where there are no more; 0 at first).
function CartPole:mean_return(n)
  local sum, first = 0, math.max(1, #self.returns - n + 1)
  for i = first, #self.returns do sum = sum + self.returns[i] end
  return sum / math.max(1, #self.returns - first + 1)
end

-- Returns the mean return of the first episode of each of n new carts, whose actions are policy(states).
function CartPole.evaluate(policy, n)
  local carts, first, left = CartPole.new(n), {}, n
  while left > 0 do
    local done = carts:step(policy(carts:states())).done:tolist()
    local ended = #carts.returns
    for i = n, 1, -1 do -- the returns of this step are the last ones, in the carts' order
      if done[i] == 1 then
        if not first[i] then first[i], left = carts.returns[ended], left - 1 end
        ended = ended - 1
      end
    end
  end
  local sum = 0
  for i = 1, n do sum = sum + first[i] end
  return sum / n
end

return CartPole
