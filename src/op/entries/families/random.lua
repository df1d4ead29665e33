--- Random numbers. `generator` is the lm.Generator to draw from; without one it is the device's default one.
local op = ...

-- ---- new tensors
for _, row in ipairs {{"rand", "uniform in [0, 1)"}, {"randn", "standard normal"}} do
  local name, what = unpack(row)
  op(name) {
    "size: size", options = {"dtype: dtype?", "device: device?", "generator: generator?"}, kind = "new",
    help = what,
  }
  op(name .. "_like") {
    "x", options = {"dtype: dtype?", "device: device?", "generator: generator?"}, kind = "new",
    grad = "none",
    help = what .. ", shaped and laid out like x",
  }
end
op "randint" {
  "low: int", "high: int", "size: size", options = {"dtype: dtype?", "device: device?", "generator: generator?"},
  kind = "new",
  help = "int64 integers in [low, high); lm.randint(high, size) begins at 0",
}
op "randint_like" {
  "x", "low: int", "high: int?", options = {"dtype: dtype?", "device: device?", "generator: generator?"}, kind = "new",
  grad = "none",
  help = "integers in [low, high), shaped and laid out like x; randint_like(x, high) begins at 0",
}
op "randperm" {
  "n: int", options = {"dtype: dtype?", "device: device?", "generator: generator?"}, kind = "new",
  help = "1 to n in random order, int64",
}
op "normal" {
  "mean: scalar", "std: scalar?", "size: size?",
  options = {"dtype: dtype?", "device: device?", "generator: generator?"},
  grad = "none",
  help = "normal numbers, each of its mean and standard deviation (1), tensors; of two numbers a tensor of that size",
}

-- ---- of a tensor
op "bernoulli" {
  "x", "p: scalar?", options = {"generator: generator?"},
  grad = {x = "g * 0", p = "nil"},
  help = "1 with the probability that x has there, else 0; with p, a number or a tensor that broadcasts to x, that one",
}
op "multinomial" {
  "x", "num_samples: int", "replacement = false", options = {"generator: generator?"},
  grad = "none",
  help = "num_samples places, from 1, of each row of x ([n] or [rows, n]), as likely as x's elements say in proportion",
}
op "poisson" {
  "x", options = {"generator: generator?"},
  grad = {x = "g * 0"},
  help = "drawn from Poisson distributions with the rates x",
}
op "binomial" {
  "count", "prob", options = {"generator: generator?"},
  grad = {count = "g * 0", prob = "g * 0"},
  help = "how many of count trials succeed, each with probability prob",
}

-- ---- writing in place
op "uniform_" {
  "x", "from: number = 0", "to: number = 1", options = {"generator: generator?"}, kind = "write",
  grad = {x = "nil"},
  help = "drawn from [from, to)",
}
op "normal_" {
  "x", "mean: number = 0", "std: number = 1", options = {"generator: generator?"}, kind = "write",
  grad = {x = "nil"},
  help = "drawn from a normal distribution",
}
op "log_normal_" {
  "x", "mean: number = 1", "std: number = 2", options = {"generator: generator?"}, kind = "write",
  grad = {x = "nil"},
  help = "e to the power of normal numbers of that mean and standard deviation",
}
op "exponential_" {
  "x", "lambd: number = 1", options = {"generator: generator?"}, kind = "write",
  grad = {x = "nil"},
  help = "drawn from an exponential distribution of rate lambd; above 0",
}
op "cauchy_" {
  "x", "median: number = 0", "sigma: number = 1", options = {"generator: generator?"}, kind = "write",
  grad = {x = "nil"},
  help = "drawn from a Cauchy distribution",
}
op "geometric_" {
  "x", "p: number", options = {"generator: generator?"}, kind = "write",
  grad = {x = "nil"},
  help = "how many trials it takes until one succeeds, each with probability p; at least 1",
}
op "bernoulli_" {
  "x", "p: scalar?", options = {"generator: generator?"}, kind = "write",
  grad = {x = "nil", p = "nil"},
  help = "1 with probability p (0.5), a number or a tensor that broadcasts to x, else 0",
}
op "random_" {
  "x", "from: int?", "to: int?", options = {"generator: generator?"}, kind = "write",
  grad = {x = "nil"},
  help = "integers drawn from [from, to); random_(to) begins at 0, random_() goes as far as the dtype",
}
