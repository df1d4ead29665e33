-- Shows an agent that balances a pole, and learns on a worker thread while it plays.
--   luajit examples/ppo.lua --updates 5 --save agent.safetensors     trains an agent, if you like
--   love examples/hosts/love agent.safetensors       plays with it, or with a new one, which is saved at the end
--   love examples/hosts/love --rounds 6              ends after 6 rounds of learning, and prints counts
local folder = love.filesystem.getSource():gsub("/*$", "/")
local examples = folder .. "../../"
package.path = folder .. "?.lua;" .. package.path

local lm = require "luminary"
local ppo, CartPole = dofile(examples .. "ppo_learner.lua"), dofile(examples .. "cartpole.lua")

local SCALE, GROUND, TAU = 150, 300, 0.02 -- pixels in a meter; pixels from above; seconds of a step of the physics
local CART, POLE = {0.2, 0.45, 0.7}, {0.8, 0.5, 0.25}

local agent, cart = ppo.Agent(), CartPole.new(1)
local path, most_rounds -- arguments
local rounds, first_return, last_return, frames, longest, behind, cart_pixels = 0, nil, nil, 0, 0, 0, nil
local problem

-- ---- learning, on the worker

local function call(name, ...) return require("cart_worker")[name](...) end

local function learn()
  local weights = rounds == 0 and path and agent:state_dict() or nil
  lm.async(call, "learn", examples, weights):on_done(function(future)
    problem = future:exception()
    if problem then return print(problem) end
    local new, mean_return = future:get()
    agent:load_state_dict(new) -- between two frames, since lm.poll calls this function
    rounds, first_return, last_return = rounds + 1, first_return or mean_return, mean_return
    if rounds == most_rounds then
      love.graphics.captureScreenshot(function(image)
        cart_pixels = 0
        image:mapPixel(function(_, _, r, g, b, a)
          if math.abs(r - CART[1]) + math.abs(g - CART[2]) + math.abs(b - CART[3]) < 0.02 then
            cart_pixels = cart_pixels + 1
          end
          return r, g, b, a
        end)
        love.event.quit()
      end)
    end
    learn()
  end)
end

-- ---- playing, on this thread

local function step()
  local states = cart:states()
  cart:step(lm.no_grad(function() return agent(states):sample() end))
end

function love.load(arguments)
  for i, word in ipairs(arguments) do
    if word == "--rounds" then
      most_rounds = tonumber(arguments[i + 1])
    elseif arguments[i - 1] ~= "--rounds" then
      path = word
    end
  end
  local file = path and io.open(path)
  if file then
    file:close()
    agent:load_state_dict(lm.load(path))
  end
  lm.set_async {workers = 1, threads = 1, nice = 10} -- the window comes first
  learn()
end

function love.update(dt)
  lm.poll()
  behind, longest = math.min(behind + dt, 5 * TAU), frames > 1 and math.max(longest, dt) or 0
  while behind >= TAU do
    step()
    behind = behind - TAU
  end
end

function love.draw()
  frames = frames + 1
  local position, _, angle = unpack(cart.now[1])
  local x = love.graphics.getWidth() / 2 + position * SCALE
  love.graphics.clear(1, 1, 1)
  love.graphics.setColor(0.6, 0.6, 0.6)
  love.graphics.line(0, GROUND, love.graphics.getWidth(), GROUND)
  love.graphics.setColor(CART)
  love.graphics.rectangle("fill", x - 40, GROUND - 40, 80, 40)
  love.graphics.setColor(POLE)
  love.graphics.setLineWidth(8)
  love.graphics.line(x, GROUND - 40, x + math.sin(angle) * SCALE, GROUND - 40 - math.cos(angle) * SCALE)
  love.graphics.setColor(0, 0, 0)
  love.graphics.print(problem or ("%d frames a second; %d steps of this episode, %d of the last\n%d rounds learned; "
    .. "mean return %.0f"):format(love.timer.getFPS(), cart.steps[1], cart.returns[#cart.returns] or 0, rounds,
    last_return or 0), 20, 20)
end

function love.quit()
  if path then lm.save(path, agent:state_dict()) end
  if most_rounds then
    print(("%d frames, the longest %.1f ms; %d rounds; mean return %.1f, then %.1f; %d episodes; %d pixels of the cart")
      :format(frames, longest * 1e3, rounds, first_return or 0, last_return or 0, #cart.returns, cart_pixels or 0))
  end
end
