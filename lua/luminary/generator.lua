--- Generators of random numbers. The same seed gives the same numbers on every device, with any number of threads.
local core = require "luminary.core"
local options = require "luminary.base.options"

local methods = {}

local function checked(who, g)
  if not core.is_generator(g) then
    options.expected(who, "a generator", g, "as a method, call it with a colon: g:%s(…)", who)
  end
  return g
end

--- Begins anew from an integer. Gives the generator.
function methods.manual_seed(g, seed)
  core.seed_generator(checked("manual_seed", g), options.arg("manual_seed", "seed", seed, "any"))
  return g
end
--- Begins anew from a number that the system draws, and gives it.
function methods.seed(g) return core.seed_generator(checked("seed", g)) end
--- The seed that it last began from.
function methods.initial_seed(g) return core.initial_seed(checked("initial_seed", g)) end
--- Where it is in its numbers: a uint8 tensor, for set_state.
function methods.get_state(g) return core.get_rng_state(checked("get_state", g)) end
--- Goes on from what get_state (or lm.get_rng_state) gave. Gives the generator.
function methods.set_state(g, state)
  core.set_rng_state(state, checked("set_state", g))
  return g
end

options.exact_all(methods)

local metatable = debug.getmetatable(core.generator("cpu"))
function metatable.__index(g, key)
  if key == "device" then return core.generator_device(g) end
  return methods[key]
end
function metatable.__tostring(g) return ("Generator(%s)"):format(core.generator_device(g)) end

--- lm.Generator([device]): random numbers of its own for that device (the default one), which ops take by
--- {generator = g}. Every new one begins from the same seed, PyTorch's 67280421310721. `device` says which it is for.
local function Generator(device) return core.generator(device) end

return {
  methods = methods,
  Generator = options.exact("Generator", Generator, 1),
  --- lm.default_generator: what the CPU's random numbers come from without `generator`; lm.manual_seed seeds it.
  default_generator = core.generator("cpu", true),
}
