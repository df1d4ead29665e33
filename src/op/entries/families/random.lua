--- Defines random ops. `generator` is the lm.Generator to draw from; the default is the device's generator.
local op, family = ...

family "fill_random" {
  "x", "distribution: distribution = uniform", "a: number = 0", "b: number = 1", "from: int?", "to: int?",
  "generator: generator?",
  help = "x filled from a distribution with the numbers a and b; integers: from from to to - 1",
}
family "bernoulli_of" {
  "like", "p?", "into?", "generator: generator?",
  help = "1 with probability p, of a number or a tensor, else 0, in like's layout: into a tensor or a new one",
}
family "new_random" {
  "size: size?", "like?", "distribution: distribution = uniform", "from: int?", "to: int?", "dtype: dtype?",
  "device: device?", "generator: generator?",
  help = "fill_random of a new tensor of that size, or like another",
}

-- ---- new tensors
for _, row in ipairs {
  {"rand", "uniform", "the uniform distribution over [0, 1)"},
  {"randn", "normal", "the standard normal distribution"},
} do
  local name, distribution, what = unpack(row)
  op(name) {
    "size: size", options = {"dtype: dtype?", "device: device?", "generator: generator?"}, kind = "new",
    kernel = ("new_random(size, nil, '%s', 0, 1, dtype, device, generator)"):format(distribution),
    help = ("Returns a tensor of random numbers from %s."):format(what),
  }
  op(name .. "_like") {
    "x", options = {"dtype: dtype?", "device: device?", "generator: generator?"}, kind = "new",
    kernel = ("new_random([], x, '%s', 0, 1, dtype, device, generator)"):format(distribution), grad = "none",
    help = ("Returns a tensor of random numbers from %s, in the shape of x."):format(what),
  }
end
op "randint" {
  "low: int", "high: int", "size: size", options = {"dtype: dtype?", "device: device?", "generator: generator?"},
  kind = "new", kernel = "new_random(size, nil, 'integers', low, high, dtype, device, generator)",
  help = "Returns a tensor of random integers from low to high - 1.",
}
op "randint_like" {
  "x", "low: int", "high: int?", options = {"dtype: dtype?", "device: device?", "generator: generator?"}, kind = "new",
  kernel = "new_random([], x, 'integers', low, high, dtype, device, generator)", grad = "none",
  help = "Returns a tensor of random integers from low to high - 1, in the shape of x.",
}
op "randperm" {
  "n: int", options = {"dtype: dtype?", "device: device?", "generator: generator?"}, kind = "new",
  help = "Returns a random permutation of the integers from 1 to n.",
}
op "normal" {
  "mean: scalar", "std: scalar?", "size: size?",
  options = {"dtype: dtype?", "device: device?", "generator: generator?"},
  grad = "none",
  help = "Returns random numbers from normal distributions of the given means and standard deviations.",
}

-- ---- distributions with tensors as parameters
op "bernoulli" {
  "x", "p: scalar?", options = {"generator: generator?"}, kernel = "bernoulli_of(x, p, nil, generator)",
  grad = {x = "g * 0", p = "nil"},
  help = "Draws 1 with the probabilities in x, or p, else 0.",
}
op "multinomial" {
  "x", "num_samples: int", "replacement = false", options = {"generator: generator?"},
  grad = "none",
  help = "Draws indices of categories with probabilities in proportion to the weights x.",
}
op "poisson" {
  "x", options = {"generator: generator?"},
  grad = {x = "g * 0"},
  help = "Draws from Poisson distributions with the rates x.",
}
op "binomial" {
  "count", "prob", options = {"generator: generator?"},
  grad = {count = "g * 0", prob = "g * 0"},
  help = "Draws the number of successes in count trials of probability prob.",
}

-- ---- writing in place
op "uniform_" {
  "x", "from: number = 0", "to: number = 1", options = {"generator: generator?"}, kind = "write",
  kernel = "fill_random(x, 'uniform', from, to, 0, 0, generator)",
  grad = {x = "nil"},
  help = "Fills x with numbers from the uniform distribution over [from, to).",
}
op "normal_" {
  "x", "mean: number = 0", "std: number = 1", options = {"generator: generator?"}, kind = "write",
  kernel = "fill_random(x, 'normal', mean, std, 0, 0, generator)",
  grad = {x = "nil"},
  help = "Fills x with numbers from a normal distribution.",
}
op "log_normal_" {
  "x", "mean: number = 1", "std: number = 2", options = {"generator: generator?"}, kind = "write",
  kernel = "fill_random(x, 'log_normal', mean, std, 0, 0, generator)",
  grad = {x = "nil"},
  help = "Fills x with e to the power of numbers from a normal distribution.",
}
op "exponential_" {
  "x", "lambd: number = 1", options = {"generator: generator?"}, kind = "write",
  kernel = "fill_random(x, 'exponential', lambd, 0, 0, 0, generator)",
  grad = {x = "nil"},
  help = "Fills x with numbers from the exponential distribution of rate lambd.",
}
op "cauchy_" {
  "x", "median: number = 0", "sigma: number = 1", options = {"generator: generator?"}, kind = "write",
  kernel = "fill_random(x, 'cauchy', median, sigma, 0, 0, generator)",
  grad = {x = "nil"},
  help = "Fills x with numbers from a Cauchy distribution.",
}
op "geometric_" {
  "x", "p: number", options = {"generator: generator?"}, kind = "write",
  kernel = "fill_random(x, 'geometric', p, 0, 0, 0, generator)",
  grad = {x = "nil"},
  help = "Fills x with the numbers of trials up to the first success of probability p.",
}
op "bernoulli_" {
  "x", "p: scalar?", options = {"generator: generator?"}, kind = "write",
  kernel = "bernoulli_of(x, p, x, generator)",
  grad = {x = "nil", p = "nil"},
  help = "Fills x with 1 with probability p, 0.5 by default, else 0.",
}
op "random_" {
  "x", "from: int?", "to: int?", options = {"generator: generator?"}, kind = "write",
  kernel = "fill_random(x, 'integers', 0, 0, from, to, generator)",
  grad = {x = "nil"},
  help = "Fills x with random integers from from to to - 1.",
}
