--- Defines random ops. `generator` is the lm.Generator to draw from; the default is the device's generator.
local op, family = ...

family("fill_random(x, distribution: distribution = uniform, a: number = 0, b: number = 1, from: int?, to: int?, "
  .. "generator: generator?)") {
  help = "x filled from a distribution with the numbers a and b; integers: from from to to - 1",
}
family "bernoulli_of(like, p?, into?, generator: generator?)" {
  help = "1 with probability p, of a number or a tensor, else 0, in like's layout: into a tensor or a new one",
}
family("new_random(size: size?, like?, distribution: distribution = uniform, from: int?, to: int?, dtype: dtype?, "
  .. "device: device?, generator: generator?)") {
  help = "fill_random of a new tensor of that size, or like another",
}

-- ---- new tensors: of a size, and in the shape of x
local new = "{dtype: dtype?, device: device?, generator: generator?}"
for _, row in ipairs {
  {"rand(size: size, ", "rand_like(x, ", "'uniform', 0, 1", "numbers from the uniform distribution over [0, 1)"},
  {"randn(size: size, ", "randn_like(x, ", "'normal', 0, 1", "numbers from the standard normal distribution"},
  {"randint(low: int, high: int, size: size, ", "randint_like(x, low: int, high: int?, ", "'integers', low, high",
    "integers from low to high - 1"},
} do
  local of_size, like, drawn, what = unpack(row)
  op(of_size .. new .. ")") {
    kind = "new", kernel = ("new_random(size, nil, %s, dtype, device, generator)"):format(drawn),
    help = ("Returns a tensor of random %s."):format(what),
  }
  op(like .. new .. ")") {
    kind = "new", kernel = ("new_random([], x, %s, dtype, device, generator)"):format(drawn), grad = "none",
    help = ("Returns a tensor of random %s, in the shape of x."):format(what),
  }
end
op "randperm(n: int, {dtype: dtype?, device: device?, generator: generator?})" {
  kind = "new", help = "Returns a random permutation of the integers from 1 to n.",
}
op "normal(mean: scalar, std: scalar?, size: size?, {dtype: dtype?, device: device?, generator: generator?})" {
  grad = "none",
  values = "fail",
  help = "Returns random numbers from normal distributions of the given means and standard deviations.",
}

-- ---- distributions with tensors as parameters
op "bernoulli(x, p: scalar?, {generator: generator?})" {
  kernel = "bernoulli_of(x, p, nil, generator)",
  grad = {x = "g * 0", p = "nil"},
  values = "fail", help = "Draws 1 with the probabilities in x, or p, else 0.",
}
op "multinomial(x, num_samples: int, replacement = false, {generator: generator?})" {
  grad = "none",
  values = "fail", help = "Draws indices of categories with probabilities in proportion to the weights x.",
}
op "poisson(x, {generator: generator?})" {
  grad = {x = "g * 0"},
  values = "fail", help = "Draws from Poisson distributions with the rates x.",
}
op "binomial(count, prob, {generator: generator?})" {
  grad = {count = "g * 0", prob = "g * 0"},
  values = "fail", help = "Draws the number of successes in count trials of probability prob.",
}

-- ---- writing in place
for _, row in ipairs {
  {"uniform_(x, from: number = 0, to: number = 1", "fill_random(x, 'uniform', from, to, 0, 0, generator)",
    "numbers from the uniform distribution over [from, to)"},
  {"normal_(x, mean: number = 0, std: number = 1", "fill_random(x, 'normal', mean, std, 0, 0, generator)",
    "numbers from a normal distribution"},
  {"log_normal_(x, mean: number = 1, std: number = 2", "fill_random(x, 'log_normal', mean, std, 0, 0, generator)",
    "e to the power of numbers from a normal distribution"},
  {"exponential_(x, lambd: number = 1", "fill_random(x, 'exponential', lambd, 0, 0, 0, generator)",
    "numbers from the exponential distribution of rate lambd"},
  {"cauchy_(x, median: number = 0, sigma: number = 1", "fill_random(x, 'cauchy', median, sigma, 0, 0, generator)",
    "numbers from a Cauchy distribution"},
  {"geometric_(x, p: number", "fill_random(x, 'geometric', p, 0, 0, 0, generator)",
    "the numbers of trials up to the first success of probability p"},
  {"bernoulli_(x, p: scalar?", "bernoulli_of(x, p, x, generator)", "1 with probability p, 0.5 by default, else 0"},
  {"random_(x, from: int?, to: int?", "fill_random(x, 'integers', 0, 0, from, to, generator)",
    "random integers from from to to - 1"},
} do
  local head, kernel, what = unpack(row)
  op(head .. ", {generator: generator?})") {
    kind = "write", kernel = kernel, grad = {x = "nil", p = head:find "p: scalar" and "nil" or nil},
    help = ("Fills x with %s."):format(what),
  }
end
