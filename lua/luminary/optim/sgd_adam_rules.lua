--- Defines the optimizers that treat every element alike, once for all: the build generates their C and CUDA code from
--- this file (src/optim/generate.lua), and luminary.optim makes their classes. All of an entry's names are PyTorch's.
---
--- options   {name, default, kind}: kinds are those of signatures, such as "positive" (at least 0), for a pair one or
---           two; `as` names a pair's numbers below; `fixed` ones are not the user's. true and false count as 1 and 0.
---           `check` gets a table of options of these kinds and returns any other problem as text.
--- positions PyTorch's order of positional arguments, if the options lack some of them: names.
--- modes     options that change the computation if they are not 0. Each has one loop with it and one without, where
---           with_<option> is constant. {name, needs = "other"}: no effect where that other option is 0.
--- states    tensors like the parameter, initially 0 or `start`, a number or an option; `when`: only in that mode.
--- carried   numbers of every parameter, kept from step to step: their `start`, and the `next` step's formula.
--- scalars   numbers of a step, in double: formulas of options, carried numbers, earlier scalars, `t` (this step's
---           number, from 1) and `first` (true if this step made the states).
--- update    C for one element, in float, or double for double parameters, with p (parameter), g (gradient, times the
---           scalar `sign`), states and the names above. sqrt, fabs, sgn (-1, 0, 1) and larger are available; NaN
---           passes through all of them.
local entries = require "luminary.base.entry_reader"

local list, optimizer = entries.of("optimizer", {
  options = "table", positions = "string?", check = "function?", modes = "table", states = "table",
  carried = "table?", scalars = "table", update = "string", source = "string", help = "string",
})

-- Rows that many entries have.
local betas, eps = {"betas", {0.9, 0.999}, "below(0, 1)", as = {"beta1", "beta2"}}, {"eps", 1e-8, "positive"}
local weight_decay, maximize = {"weight_decay", 0, "positive"}, {"maximize", false}
local sign, shrink = {"sign", "maximize ? -1 : 1"}, {"shrink", "1 - lr * weight_decay"}
local fresh1, fresh2 = {"fresh1", "1 - beta1"}, {"fresh2", "1 - beta2"}
local step_size = {"step_size", "lr / (1 - pow(beta1, t))"}
local inverse_correction2 = {"inverse_correction2", "1 / sqrt(1 - pow(beta2, t))"}

optimizer "SGD" {
  options = {
    {"lr", 0.001, "positive"}, {"momentum", 0, "positive"}, {"dampening", 0}, weight_decay, {"nesterov", false},
    maximize,
  },
  check = function(o)
    if o.nesterov and (o.momentum == 0 or o.dampening ~= 0) then return "nesterov needs a momentum and no dampening" end
  end,
  modes = {{"weight_decay"}, {"momentum"}, {"nesterov", needs = "momentum"}},
  states = {{"momentum_buffer", when = "momentum"}},
  scalars = {sign, {"fresh", "first ? 1 : 1 - dampening"}},
  update = [[
    if (with_weight_decay) g += weight_decay * p;
    if (with_momentum) {
      momentum_buffer = momentum * momentum_buffer + fresh * g;
      g = with_nesterov ? g + momentum * momentum_buffer : momentum_buffer;
    }
    p -= lr * g;
  ]],
  source = "Sutskever et al., \"On the importance of initialization and momentum in deep learning\", 2013",
  help = "Implements stochastic gradient descent, optionally with momentum",
}

optimizer "Adam" {
  options = {
    {"lr", 0.001, "positive"}, betas, eps, weight_decay, {"amsgrad", false}, maximize,
    {"decoupled_weight_decay", false},
  },
  modes = {{"weight_decay"}, {"decoupled_weight_decay", needs = "weight_decay"}, {"amsgrad"}},
  states = {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq", when = "amsgrad"}},
  scalars = {sign, shrink, fresh1, fresh2, step_size, inverse_correction2},
  update = [[
    if (with_decoupled_weight_decay) p *= shrink;
    else if (with_weight_decay) g += weight_decay * p;
    exp_avg = beta1 * exp_avg + fresh1 * g;
    exp_avg_sq = beta2 * exp_avg_sq + fresh2 * g * g;
    if (with_amsgrad) max_exp_avg_sq = larger(max_exp_avg_sq, exp_avg_sq);
    p -= step_size * exp_avg / (sqrt(with_amsgrad ? max_exp_avg_sq : exp_avg_sq) * inverse_correction2 + eps);
  ]],
  source = "Kingma and Ba, \"Adam: A Method for Stochastic Optimization\", 2015",
  help = "Implements the Adam algorithm",
}

optimizer "AdamW" {
  like = "Adam",
  options = {{"weight_decay", 0.01, "positive"}, {"decoupled_weight_decay", true, fixed = true}},
  source = "Loshchilov and Hutter, \"Decoupled Weight Decay Regularization\", 2019",
  help = "Implements the AdamW algorithm, Adam with decoupled weight decay",
}

optimizer "Adamax" {
  options = {{"lr", 0.002, "positive"}, betas, eps, weight_decay, maximize},
  positions = "lr betas eps weight_decay foreach maximize",
  modes = {{"weight_decay"}},
  states = {{"exp_avg"}, {"exp_inf"}},
  scalars = {sign, fresh1, step_size},
  update = [[
    if (with_weight_decay) g += weight_decay * p;
    exp_avg = beta1 * exp_avg + fresh1 * g;
    exp_inf = larger(beta2 * exp_inf, fabs(g) + eps);
    p -= step_size * exp_avg / exp_inf;
  ]],
  source = "Kingma and Ba, \"Adam: A Method for Stochastic Optimization\", 2015, section 7.1",
  help = "Implements the Adamax algorithm, a variant of Adam based on the infinity norm",
}

optimizer "AdaBelief" {
  options = {
    {"lr", 0.001, "positive"}, betas, {"eps", 1e-16, "positive"}, weight_decay, {"amsgrad", false}, maximize,
    {"decoupled_weight_decay", true},
  },
  modes = {{"weight_decay"}, {"decoupled_weight_decay", needs = "weight_decay"}, {"amsgrad"}},
  states = {{"exp_avg"}, {"exp_avg_var"}, {"max_exp_avg_var", when = "amsgrad"}},
  scalars = {sign, shrink, fresh1, fresh2, step_size, inverse_correction2},
  update = [[
    if (with_decoupled_weight_decay) p *= shrink;
    else if (with_weight_decay) g += weight_decay * p;
    exp_avg = beta1 * exp_avg + fresh1 * g;
    real surprise = g - exp_avg;
    exp_avg_var = beta2 * exp_avg_var + fresh2 * surprise * surprise + eps;
    if (with_amsgrad) max_exp_avg_var = larger(max_exp_avg_var, exp_avg_var);
    p -= step_size * exp_avg / (sqrt(with_amsgrad ? max_exp_avg_var : exp_avg_var) * inverse_correction2 + eps);
  ]],
  source = "Zhuang et al., \"AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients\", 2020",
  help = [[Implements the AdaBelief algorithm, Adam scaled by the variance of the gradient around its moving average]],
}

optimizer "NAdam" {
  options = {
    {"lr", 0.002, "positive"}, betas, eps, weight_decay, {"momentum_decay", 0.004, "positive"},
    {"decoupled_weight_decay", false}, maximize,
  },
  modes = {{"weight_decay"}, {"decoupled_weight_decay", needs = "weight_decay"}},
  states = {{"exp_avg"}, {"exp_avg_sq"}},
  carried = {{"mu_product", start = "1", next = "product"}},
  scalars = {
    sign, shrink, fresh1, fresh2, {"mu", "beta1 * (1 - 0.5 * pow(0.96, t * momentum_decay))"},
    {"mu_next", "beta1 * (1 - 0.5 * pow(0.96, (t + 1) * momentum_decay))"}, {"product", "mu_product * mu"},
    {"g_size", "lr * (1 - mu) / (1 - product)"}, {"avg_size", "lr * mu_next / (1 - product * mu_next)"},
    inverse_correction2,
  },
  update = [[
    if (with_decoupled_weight_decay) p *= shrink;
    else if (with_weight_decay) g += weight_decay * p;
    exp_avg = beta1 * exp_avg + fresh1 * g;
    exp_avg_sq = beta2 * exp_avg_sq + fresh2 * g * g;
    p -= (g_size * g + avg_size * exp_avg) / (sqrt(exp_avg_sq) * inverse_correction2 + eps);
  ]],
  source = "Dozat, \"Incorporating Nesterov Momentum into Adam\", 2016",
  help = "Implements the NAdam algorithm, Adam with Nesterov momentum",
}

optimizer "RAdam" {
  options = {{"lr", 0.001, "positive"}, betas, eps, weight_decay, {"decoupled_weight_decay", false}, maximize},
  modes = {{"weight_decay"}, {"decoupled_weight_decay", needs = "weight_decay"}},
  states = {{"exp_avg"}, {"exp_avg_sq"}},
  scalars = {
    sign, shrink, fresh1, fresh2, step_size, {"correction2", "1 - pow(beta2, t)"}, {"rho_inf", "2 / (1 - beta2) - 1"},
    {"rho", "rho_inf - 2 * t * pow(beta2, t) / correction2"}, {"rectified", "rho > 5"},
    {"adaptive", "rho > 5 ? step_size * sqrt(correction2 * (rho - 4) * (rho - 2) * rho_inf"
      .. " / ((rho_inf - 4) * (rho_inf - 2) * rho)) : 0"},
  },
  update = [[
    if (with_decoupled_weight_decay) p *= shrink;
    else if (with_weight_decay) g += weight_decay * p;
    exp_avg = beta1 * exp_avg + fresh1 * g;
    exp_avg_sq = beta2 * exp_avg_sq + fresh2 * g * g;
    p -= exp_avg * (rectified != 0 ? adaptive / (sqrt(exp_avg_sq) + eps) : step_size);
  ]],
  source = "Liu et al., \"On the Variance of the Adaptive Learning Rate and Beyond\", 2020",
  help = "Implements the RAdam algorithm, Adam with a rectified adaptive learning rate",
}

optimizer "Adagrad" {
  options = {
    {"lr", 0.01, "positive"}, {"lr_decay", 0, "positive"}, weight_decay, {"initial_accumulator_value", 0, "positive"},
    {"eps", 1e-10, "positive"}, maximize,
  },
  positions = "lr lr_decay weight_decay initial_accumulator_value eps foreach maximize",
  modes = {{"weight_decay"}},
  states = {{"sum", start = "initial_accumulator_value"}},
  scalars = {sign, {"step_size", "lr / (1 + (t - 1) * lr_decay)"}},
  update = [[
    if (with_weight_decay) g += weight_decay * p;
    sum += g * g;
    p -= step_size * g / (sqrt(sum) + eps);
  ]],
  source = "Duchi et al., \"Adaptive Subgradient Methods for Online Learning and Stochastic Optimization\", 2011",
  help = "Implements the Adagrad algorithm",
}

optimizer "Adadelta" {
  options = {{"lr", 1, "positive"}, {"rho", 0.9, "probability"}, {"eps", 1e-6, "positive"}, weight_decay, maximize},
  positions = "lr rho eps weight_decay foreach maximize",
  modes = {{"weight_decay"}},
  states = {{"square_avg"}, {"acc_delta"}},
  scalars = {sign, {"fresh", "1 - rho"}},
  update = [[
    if (with_weight_decay) g += weight_decay * p;
    square_avg = rho * square_avg + fresh * g * g;
    real delta = sqrt(acc_delta + eps) / sqrt(square_avg + eps) * g;
    acc_delta = rho * acc_delta + fresh * delta * delta;
    p -= lr * delta;
  ]],
  source = "Zeiler, \"ADADELTA: An Adaptive Learning Rate Method\", 2012",
  help = "Implements the Adadelta algorithm",
}

optimizer "RMSprop" {
  options = {
    {"lr", 0.01, "positive"}, {"alpha", 0.99, "positive"}, eps, weight_decay, {"momentum", 0, "positive"},
    {"centered", false}, maximize,
  },
  positions = "lr alpha eps weight_decay momentum centered capturable foreach maximize differentiable",
  modes = {{"weight_decay"}, {"momentum"}, {"centered"}},
  states = {{"square_avg"}, {"momentum_buffer", when = "momentum"}, {"grad_avg", when = "centered"}},
  scalars = {sign, {"fresh", "1 - alpha"}},
  update = [[
    if (with_weight_decay) g += weight_decay * p;
    square_avg = alpha * square_avg + fresh * g * g;
    real square = square_avg;
    if (with_centered) {
      grad_avg = alpha * grad_avg + fresh * g;
      square = larger(square_avg - grad_avg * grad_avg, 0); /* rounding may make it negative */
    }
    real step = g / (sqrt(square) + eps);
    if (with_momentum) step = momentum_buffer = momentum * momentum_buffer + step;
    p -= lr * step;
  ]],
  source = "Tieleman and Hinton, \"Lecture 6.5: rmsprop\", COURSERA: Neural Networks for Machine Learning, 2012",
  help = "Implements the RMSprop algorithm",
}

optimizer "Rprop" {
  options = {
    {"lr", 0.01, "positive"}, {"etas", {0.5, 1.2}, {"between(0, 1)", "above(1)"}, as = {"etaminus", "etaplus"}},
    {"step_sizes", {1e-6, 50}, as = {"step_size_min", "step_size_max"}}, maximize,
  },
  modes = {},
  states = {{"prev"}, {"step_size", start = "lr"}},
  scalars = {sign},
  update = [[
    real turn = g * prev;
    step_size *= turn > 0 ? etaplus : turn < 0 ? etaminus : 1;
    step_size = step_size < step_size_min ? step_size_min : step_size;
    step_size = step_size > step_size_max ? step_size_max : step_size;
    g = turn < 0 ? 0 : g;
    p -= sgn(g) * step_size;
    prev = g;
  ]],
  source = "Riedmiller and Braun, \"A Direct Adaptive Method for Faster Backpropagation Learning\", 1993",
  help = "Implements the resilient backpropagation algorithm, which uses only the signs of gradients",
}

optimizer "ASGD" {
  options = {
    {"lr", 0.01, "positive"}, {"lambd", 1e-4, "positive"}, {"alpha", 0.75, "positive"}, {"t0", 1e6}, weight_decay,
    maximize,
  },
  positions = "lr lambd alpha t0 weight_decay foreach maximize differentiable capturable",
  modes = {{"weight_decay"}},
  states = {{"ax"}},
  carried = {
    {"eta", start = "lr", next = "lr / pow(1 + lambd * lr * t, alpha)"},
    {"mu", start = "1", next = "1 / fmax(1, t - t0)"},
  },
  scalars = {sign, {"shrink", "1 - lambd * eta"}},
  update = [[
    if (with_weight_decay) g += weight_decay * p;
    p = p * shrink - eta * g;
    ax = mu == 1 ? p : ax + mu * (p - ax);
  ]],
  source = "Polyak and Juditsky, \"Acceleration of Stochastic Approximation by Averaging\", 1992",
  help = "Implements averaged stochastic gradient descent",
}

optimizer "Lion" {
  options = {
    {"lr", 1e-4, "positive"}, {"betas", {0.9, 0.99}, "below(0, 1)", as = {"beta1", "beta2"}}, weight_decay, maximize,
  },
  modes = {{"weight_decay"}},
  states = {{"exp_avg"}},
  scalars = {sign, shrink, fresh1, fresh2},
  update = [[
    if (with_weight_decay) p *= shrink;
    p -= lr * sgn(beta1 * exp_avg + fresh1 * g);
    exp_avg = beta2 * exp_avg + fresh2 * g;
  ]],
  source = "Chen et al., \"Symbolic Discovery of Optimization Algorithms\", 2023, algorithm 2",
  help = "Implements the Lion algorithm, which steps by the sign of an interpolated momentum",
}

return list
