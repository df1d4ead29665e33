--- Makes generators of random numbers. A seed yields the same numbers on every device, with any number of threads.
local core = require "luminary.core"
local options = require "luminary.base.options"

local methods = {}

local function checked(who, g)
  if not core.is_generator(g) then
    options.expected(who, "a generator", g, "as a method, call it with a colon: g:%s(…)", who)
  end
  return g
end

--- Seeds the generator, and returns it.
function methods.manual_seed(g, seed)
  core.seed_generator(checked("manual_seed", g), options.arg("manual_seed", "seed", seed, "any"))
  return g
end
--- Seeds the generator with a number from the system, and returns that number.
function methods.seed(g) return core.seed_generator(checked("seed", g)) end
--- Returns the seed of the generator.
function methods.initial_seed(g) return core.initial_seed(checked("initial_seed", g)) end
--- Returns the state of the generator, a uint8 tensor.
function methods.get_state(g) return core.get_rng_state(checked("get_state", g)) end
--- Restores a state of get_state or lm.get_rng_state, and returns the generator.
function methods.set_state(g, state)
  core.set_rng_state(state, checked("set_state", g))
  return g
end

options.exact_all(methods)

local metatable = require("debug").getmetatable(core.generator("cpu"))
function metatable.__index(g, key)
  if key == "device" then return core.generator_device(g) end
  return methods[key]
end
function metatable.__tostring(g) return ("Generator(%s)"):format(core.generator_device(g)) end

--- lm.Generator([device]): Returns a generator of random numbers for a device.
local function Generator(device) return core.generator(device) end

return {
  methods = methods,
  Generator = options.exact("Generator", Generator, 1),
  --- lm.default_generator: The generator of the CPU that ops use by default.
  default_generator = core.generator("cpu", true),
}
