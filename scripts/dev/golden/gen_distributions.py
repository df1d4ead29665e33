#!/usr/bin/env python3
"""Random distributions, transforms, constraints and divergences, with torch.distributions' values and gradients.

gen_distributions.py                 writes spec/golden/_distributions.safetensors, for spec/distributions/golden_spec.lua
gen_distributions.py --compare SEED  compares Luminary's values for that seed, in float64 and float32
"""
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributions as D
from safetensors.torch import save_file
from torch.distributions import constraints as C
from torch.distributions.kl import _KL_REGISTRY

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
warnings.filterwarnings("ignore")
torch.set_num_threads(1)


class Make:
    """A call of a library's function: space is "" for torch.distributions, "constraints" for its constraints."""

    def __init__(self, name, *args, space="", **options):
        self.name, self.args, self.space, self.options = name, args, space, options


class Dim(int):
    """A dim, which counts from 1 in Luminary."""


def transform(name, *args, **options):
    return Make(name, *args, **options)


def constraint(name, *args, **options):
    return Make(name, *args, space="constraints", **options)


class Writer:
    """The flat numbers of all tensors, which rows refer to."""

    def __init__(self):
        self.numbers, self.rows = [], []

    def tensor(self, t):
        t = torch.as_tensor(t).detach()
        where = len(self.numbers)
        self.numbers.extend(t.double().reshape(-1).tolist())
        return {"at": where, "shape": list(t.shape), "dtype": str(t.dtype)[6:]}


def build(value, leaves, dtype):
    """The torch object; floating tensors become leaves of which gradients are taken."""
    if isinstance(value, Make):
        args = [build(a, leaves, dtype) for a in value.args]
        options = {k: build(v, leaves, dtype) for k, v in sorted(value.options.items())}
        if value.name == "inverse":
            return args[0].inv
        made = getattr(C if value.space else D, value.name)
        return made if not args and not options and not callable(made) else made(*args, **options)
    if isinstance(value, list):
        return [build(v, leaves, dtype) for v in value]
    if torch.is_tensor(value) and value.is_floating_point():
        leaf = value.to(dtype).clone().requires_grad_()
        leaves.append(leaf)
        return leaf
    return int(value) if isinstance(value, Dim) else value


def plan(value, writer, dtype):
    if isinstance(value, Make):
        return {"make": value.name, "space": value.space, "args": [plan(a, writer, dtype) for a in value.args],
                "options": {k: plan(v, writer, dtype) for k, v in sorted(value.options.items())}}
    if isinstance(value, list):
        return {"list": [plan(v, writer, dtype) for v in value]}
    if torch.is_tensor(value):
        return writer.tensor(value.to(dtype) if value.is_floating_point() else value)
    if isinstance(value, Dim):
        return int(value) + 1 if value >= 0 else int(value)
    return {"none": True} if value is None else value


def weights(result):
    """The seed of a result's backward pass."""
    return torch.cos(torch.arange(result.numel(), dtype=torch.float64)).reshape(result.shape).to(result.dtype)


def gradients(result, leaves, writer):
    if not (leaves and torch.is_tensor(result) and result.requires_grad):
        return None
    try:
        grads = torch.autograd.grad((result * weights(result)).sum(), leaves, allow_unused=True, retain_graph=True)
    except NotImplementedError:  # igamma's, by its first argument
        return None
    return [{"none": True} if g is None else writer.tensor(g) for g in grads]


def check(row, writer, leaves, call, f, x=None, from_one=False, **more):
    """Adds what f returns: a tensor with its gradients, numbers, or that it fails."""
    entry = dict(call=call, **more)
    if x is not None:
        entry["x"] = writer.tensor(x + 1 if from_one and call in ("log_prob", "check") else x)
    try:
        result = f()
    except Exception:  # torch lacks it, or refuses the value
        entry["fails"] = True
    else:
        if torch.is_tensor(result):
            shifted = result + 1 if from_one and call in ("mode", "enumerate_support") else result
            entry["want"] = writer.tensor(shifted)
            grads = gradients(result, leaves + ([x] if x is not None and x.requires_grad else []), writer)
            if grads:
                entry["grads"] = grads
        else:
            entry["value"] = list(result) if isinstance(result, torch.Size) else result
    row["checks"].append(entry)


# ---- random parameters

def real(*shape):
    return torch.randn(shape, dtype=torch.float64) * 1.5


def positive(*shape):
    return torch.exp(torch.randn(shape, dtype=torch.float64))


def unit(*shape):
    return torch.rand(shape, dtype=torch.float64) * 0.9 + 0.05


def edges(*shape):
    """Probabilities, some of which are 0 or 1."""
    p = unit(*shape)
    return torch.where(torch.rand(shape) < 0.3, (p > 0.5).double(), p)


def simplex(*shape):
    return torch.softmax(real(*shape), -1)


def definite(*shape):
    a = real(*shape)
    return a @ a.mT + torch.eye(shape[-1], dtype=torch.float64) * 0.5


def lower(*shape):
    return torch.linalg.cholesky(definite(*shape))


def batch():
    return random.choice([(), (3,), (2, 3), (1, 3)])


def one_of(**kinds):
    name = random.choice(sorted(kinds))
    return {name: kinds[name]()}


def broad(*makers):
    """Parameters of shapes that broadcast, some without dims."""
    shape = batch()
    return [m(*random.choice([shape, shape, shape[-1:], ()])) for m in makers]


def two_outcomes(shape=None, p=edges):
    shape = batch() if shape is None else shape
    return one_of(probs=lambda: p(*shape), logits=lambda: real(*shape))


def categories(k=4):
    shape = batch()
    def some_zero():
        p = positive(*shape, k)
        return torch.where(torch.rand((*shape, k)) < 0.2, 0.0, p) + torch.eye(k, dtype=torch.float64)[1]
    return one_of(probs=some_zero, logits=lambda: real(*shape, k))


def matrix(n, shape):
    return one_of(covariance_matrix=lambda: definite(*shape, n, n), precision_matrix=lambda: definite(*shape, n, n),
                  scale_tril=lambda: lower(*shape, n, n))


def normal_of(n):
    return Make("MultivariateNormal", real(*batch(), n), **matrix(n, random.choice([(), (3,)])))


def low_rank(n):
    shape = random.choice([(), (3,)])
    return Make("LowRankMultivariateNormal", real(*shape, n), real(*shape, n, 2), positive(*shape, n))


def count(shape=()):
    return torch.full(shape, float(random.randint(1, 7)), dtype=torch.float64)


def uniform():
    low, width = broad(real, positive)
    return Make("Uniform", low, low + width)


def wishart():
    shape = random.choice([(), (3,)])
    return Make("Wishart", positive(*shape) + 2.2, **matrix(2, shape))


def mixture():
    shape = random.choice([(), (2,)])
    weights_ = Make("Categorical", logits=real(*random.choice([(), shape]), 3))
    parts = random.choice([
        Make("Normal", real(*shape, 3), positive(*shape, 3)), Make("Gamma", positive(*shape, 3), positive(*shape, 3)),
        Make("Independent", Make("Normal", real(*shape, 3, 2), positive(*shape, 3, 2)), 1),
        Make("Poisson", positive(*shape, 3)),
    ])
    return Make("MixtureSameFamily", weights_, parts)


def transformed():
    return random.choice([
        Make("TransformedDistribution", Make("Normal", real(2, 3), positive(2, 3)),
             [transform("AffineTransform", real(3), positive(3)), transform("ExpTransform")]),
        Make("TransformedDistribution", Make("Uniform", torch.zeros(2), torch.ones(2)),
             [transform("inverse", transform("SigmoidTransform")), transform("AffineTransform", real(3, 1), -positive(2))]),
        Make("TransformedDistribution", normal_of(3), [transform("StickBreakingTransform")]),
        Make("TransformedDistribution", Make("Normal", real(2, 6), positive(2, 6)), [transform("CorrCholeskyTransform")]),
        Make("TransformedDistribution", Make("Gamma", positive(4, 6), positive(6)),
             [transform("ReshapeTransform", [6], [2, 3]), transform("AffineTransform", 1.0, 2.0)]),
        Make("TransformedDistribution", Make("Normal", real(2), positive(2)), transform("TanhTransform")),
    ])


def independent():
    return random.choice([
        Make("Independent", Make("Normal", real(2, 3), positive(2, 3)), random.randint(0, 2)),
        Make("Independent", Make("Bernoulli", unit(3)), random.randint(0, 1)),
        Make("Independent", Make("Dirichlet", positive(2, 3)), 1),
    ])


def simple(name, *makers):
    return lambda: Make(name, *broad(*makers))


DISTRIBUTIONS = {
    "Bernoulli": lambda: Make("Bernoulli", **two_outcomes()),
    "Beta": simple("Beta", positive, positive),
    "Binomial": lambda: Make("Binomial", count(), **two_outcomes()),
    "Categorical": lambda: Make("Categorical", **categories()),
    "Cauchy": simple("Cauchy", real, positive),
    "Chi2": simple("Chi2", positive),
    "ContinuousBernoulli": lambda: Make("ContinuousBernoulli", **two_outcomes(p=lambda *s: random.choice(
        [unit(*s), unit(*s), 0.5 + 0.001 * real(*s)]))),
    "Dirichlet": lambda: Make("Dirichlet", positive(*batch(), 3)),
    "Exponential": simple("Exponential", positive),
    "FisherSnedecor": simple("FisherSnedecor", lambda *s: 2 * positive(*s), lambda *s: 5 * positive(*s)),
    "Gamma": simple("Gamma", positive, positive),
    "GeneralizedPareto": lambda: Make("GeneralizedPareto", *broad(
        real, positive, lambda *s: random.choice([0.0, 1.0, 1.0]) * 0.5 * real(*s))),
    "Geometric": lambda: Make("Geometric", **two_outcomes(p=lambda *s: torch.where(edges(*s) == 0, 1.0, edges(*s).clamp(min=0.01)))),
    "Gumbel": simple("Gumbel", real, positive),
    "HalfCauchy": simple("HalfCauchy", positive),
    "HalfNormal": simple("HalfNormal", positive),
    "Independent": independent,
    "InverseGamma": simple("InverseGamma", positive, positive),
    "Kumaraswamy": simple("Kumaraswamy", positive, positive),
    "LKJCholesky": lambda: Make("LKJCholesky", random.randint(2, 4), positive(*batch())),
    "Laplace": simple("Laplace", real, positive),
    "LogNormal": simple("LogNormal", real, positive),
    "LogisticNormal": lambda: Make("LogisticNormal", real(*batch(), 3), positive(3)),
    "LowRankMultivariateNormal": lambda: low_rank(4),
    "MixtureSameFamily": mixture,
    "Multinomial": lambda: Make("Multinomial", random.randint(1, 5), **categories(3)),
    "MultivariateNormal": lambda: normal_of(3),
    "NegativeBinomial": lambda: Make("NegativeBinomial", count(), **two_outcomes(p=unit)),
    "Normal": simple("Normal", real, positive),
    "OneHotCategorical": lambda: Make("OneHotCategorical", **categories()),
    "OneHotCategoricalStraightThrough": lambda: Make("OneHotCategoricalStraightThrough", **categories()),
    "Pareto": simple("Pareto", positive, positive),
    "Poisson": lambda: Make("Poisson", random.choice([positive(3), torch.tensor([0.0, 2.0])])),
    "RelaxedBernoulli": lambda: Make("RelaxedBernoulli", positive(), **two_outcomes(p=unit)),
    "RelaxedOneHotCategorical": lambda: Make("RelaxedOneHotCategorical", positive(), **categories()),
    "StudentT": simple("StudentT", lambda *s: 2 * positive(*s), real, positive),
    "TransformedDistribution": transformed,
    "Uniform": uniform,
    "VonMises": simple("VonMises", real, lambda *s: 3 * positive(*s)),
    "Weibull": simple("Weibull", positive, positive),
    "Wishart": wishart,
}
RELAXED = {"LogitRelaxedBernoulli": D.relaxed_bernoulli, "ExpRelaxedCategorical": D.relaxed_categorical}
for _name, _module in RELAXED.items():
    setattr(D, _name, getattr(_module, _name))
DISTRIBUTIONS["LogitRelaxedBernoulli"] = lambda: Make("LogitRelaxedBernoulli", positive(), **two_outcomes(p=unit))
DISTRIBUTIONS["ExpRelaxedCategorical"] = lambda: Make("ExpRelaxedCategorical", positive(), **categories())
PROPERTIES = """mean mode variance stddev batch_shape event_shape has_rsample has_enumerate_support covariance_matrix
    precision_matrix scale_tril param_shape probs logits""".split()


def anywhere(d, x):
    """Values of which some are outside of the support, at its ends or beyond."""
    if len(d.event_shape) > 0 or not x.is_floating_point():
        return None
    out = x.clone().reshape(-1)
    special = [-1.0, 0.0, 1.0, 2.0, 0.5, -0.5, 7.0, 8.0, 9.0, 1.5, -3.0, 1e3]
    for i in range(len(out)):
        if random.random() < 0.7:
            out[i] = random.choice(special)
    return out.reshape(x.shape)


def of_distribution(name, dtype, writer):
    make = DISTRIBUTIONS[name]()
    leaves = []
    d = build(make, leaves, dtype)
    row = {"kind": "distribution", "name": name, "make": plan(make, writer, dtype), "checks": []}
    one = name == "Categorical"

    def add(call, f, x=None, **more):
        check(row, writer, leaves, call, f, x, one, **more)

    for call in PROPERTIES:
        if hasattr(type(d), call) and (name, call) != ("LogitRelaxedBernoulli", "has_rsample"):  # False, but there is one
            add(call, lambda call=call: getattr(d, call), property=True)
    add("entropy", lambda: d.entropy())
    add("perplexity", lambda: d.perplexity())
    add("enumerate_support", lambda: d.enumerate_support())
    add("enumerate_support", lambda: d.enumerate_support(False), flag=False)
    shape = random.choice([(), (2,), (2, 1)])
    if name == "MixtureSameFamily":  # whose sample needs a mixture of the components' batch_shape
        x = d.component_distribution.sample(shape).select(len(shape) + len(d.batch_shape), 0)
    else:
        x = d.sample(shape).detach()
    if x.is_floating_point() and not d.support.is_discrete:
        x.requires_grad_()
    add("log_prob", lambda: d.log_prob(x), x)
    add("cdf", lambda: d.cdf(x), x)
    add("log_survival_function", lambda: d.log_survival_function(x), x)
    p = unit(*d.batch_shape).to(dtype).requires_grad_()
    add("icdf", lambda: d.icdf(p), p)
    bigger = d.expand(torch.Size((2,)) + d.batch_shape)
    for call in ("batch_shape", "event_shape", "mean"):
        add(call, lambda call=call: getattr(bigger, call), property=True, expand=list((2,) + d.batch_shape))
    if len(shape) < 2:
        add("log_prob", lambda: bigger.log_prob(x), x, expand=list((2,) + d.batch_shape))
    add("check", lambda: d.support.check(x), x, support=True)
    y = anywhere(d, x.detach()) if name != "Categorical" else None
    if y is not None:
        add("check", lambda: d.support.check(y), y, support=True)
        unchecked = Make(make.name, *make.args, validate_args=False, **make.options)
        leaves2 = []
        free = build(unchecked, leaves2, dtype)
        row2 = {"kind": "distribution", "name": name, "make": plan(unchecked, writer, dtype), "checks": []}
        y.requires_grad_()
        if name not in ("Independent", "MixtureSameFamily", "TransformedDistribution"):
            check(row2, writer, leaves2, "log_prob", lambda: free.log_prob(y), y)
            check(row2, writer, leaves2, "cdf", lambda: free.cdf(y), y)
            writer.rows.append(row2)
    writer.rows.append(row)


# Parameters of two distributions that lie within each other's supports now and then.
KL = {
    "Uniform": lambda: random.choice([uniform(), Make("Uniform", torch.tensor([0.1, 0.3]), torch.tensor([0.4, 0.9])),
                                      Make("Uniform", torch.tensor(-1.0), torch.tensor(2.0))]),
    "Binomial": lambda: Make("Binomial", torch.tensor(4.0), **two_outcomes(p=unit)),
    "MultivariateNormal": lambda: normal_of(4), "LowRankMultivariateNormal": lambda: low_rank(4),
    "Independent": lambda: Make("Independent", Make("Normal", real(2, 3), positive(2, 3)), 1),
    "TransformedDistribution": lambda: random.choice([
        Make("TransformedDistribution", Make("Normal", real(3), positive(3)), [transform("TanhTransform")]),
        Make("TransformedDistribution", Make("Normal", real(3), positive(3)), [transform("AffineTransform", 1.0, 2.0)])]),
    "Pareto": lambda: Make("Pareto", *broad(lambda *s: 0.5 * positive(*s), lambda *s: 2 * positive(*s))),
    "Wishart": lambda: Make("Wishart", positive() + 2.2, **matrix(2, ())),
}


def of_divergence(p_name, q_name, dtype, writer):
    p, q = (KL.get(n) or DISTRIBUTIONS[n] for n in (p_name, q_name))
    p, q = p(), q()
    leaves = []
    first, second = build(p, leaves, dtype), build(q, leaves, dtype)
    row = {"kind": "kl", "name": f"{p_name}, {q_name}", "p": plan(p, writer, dtype), "q": plan(q, writer, dtype),
           "checks": []}

    def divergence():  # infinite ones have p's shape alone in PyTorch
        shape = torch.broadcast_shapes(first.batch_shape, second.batch_shape)
        result = D.kl_divergence(first, second)
        return result.expand(shape) if result.shape != shape and result.isinf().all() else result

    check(row, writer, leaves, "kl", divergence)
    writer.rows.append(row)


def transforms():
    inner = transform("ComposeTransform", [transform("ExpTransform"), transform("AffineTransform", real(3), positive(3))])
    return [
        (transform("ExpTransform"), real(2, 3)), (transform("AbsTransform"), real(2, 3)),
        (transform("SigmoidTransform"), real(2, 3)), (transform("TanhTransform"), real(2, 3)),
        (transform("SoftplusTransform"), real(2, 3)), (transform("AffineTransform", 1.5, -2.0), real(2, 3)),
        (transform("AffineTransform", real(3), real(2, 1)), real(2, 3)),
        (transform("AffineTransform", real(3), real(3), event_dim=1), real(2, 3)),
        (transform("PowerTransform", positive(3)), positive(2, 3)), (transform("PowerTransform", torch.tensor(-1.5)), positive(3)),
        (inner, real(2, 3)), (transform("inverse", inner), positive(2, 3) + 8),
        (transform("ComposeTransform", [transform("ExpTransform"), transform("StickBreakingTransform")]), real(2, 3)),
        (transform("ComposeTransform", []), real(2, 3)),
        (transform("IndependentTransform", transform("TanhTransform"), 1), real(2, 3)),
        (transform("ReshapeTransform", [6], [2, 3]), real(2, 6)), (transform("SoftmaxTransform"), real(2, 3)),
        (transform("StickBreakingTransform"), real(2, 3)), (transform("CorrCholeskyTransform"), real(2, 6)),
        (transform("inverse", transform("CorrCholeskyTransform")), torch.linalg.cholesky(corr(3))),
        (transform("LowerCholeskyTransform"), real(2, 3, 3)), (transform("PositiveDefiniteTransform"), real(2, 3, 3)),
        (transform("CatTransform", [transform("ExpTransform"), transform("AffineTransform", 1.0, 3.0)], dim=Dim(0),
                   lengths=[2, 1]), real(3, 2)),
        (transform("CatTransform", [transform("StickBreakingTransform"), transform("StickBreakingTransform")], dim=Dim(0),
                   lengths=[2, 1]), real(3, 2)),
        (transform("CatTransform", [transform("ExpTransform"), transform("TanhTransform")], dim=Dim(-1)), real(3, 2)),
        (transform("StackTransform", [transform("ExpTransform"), transform("TanhTransform")], dim=Dim(1)), real(3, 2)),
        (transform("CumulativeDistributionTransform", Make("Normal", real(3), positive(3))), real(2, 3)),
        (transform("IndependentTransform", transform("ExpTransform"), 1), real(2, 3)),
    ]


def corr(n):
    c = definite(n, n)
    s = c.diagonal().rsqrt()
    return c * s[:, None] * s


def of_transform(make, x, dtype, writer):
    leaves = []
    t = build(make, leaves, dtype)
    x = x.to(dtype).requires_grad_()
    row = {"kind": "transform", "name": make.name, "make": plan(make, writer, dtype), "checks": []}
    y = t(x)
    free = y.detach().requires_grad_()
    check(row, writer, leaves, "forward", lambda: t(x), x)
    check(row, writer, leaves, "inv", lambda: t.inv(free), free)
    check(row, writer, leaves, "log_abs_det_jacobian", lambda: t.log_abs_det_jacobian(x, t(x)), x)
    check(row, writer, leaves, "sign", lambda: t.sign)
    for call in ("domain", "codomain"):
        check(row, writer, leaves, call, lambda call=call: getattr(t, call).event_dim)
    check(row, writer, leaves, "bijective", lambda: t.bijective)
    check(row, writer, leaves, "forward_shape", lambda: t.forward_shape(x.shape), shape=list(x.shape))
    check(row, writer, leaves, "inverse_shape", lambda: t.inverse_shape(y.shape), shape=list(y.shape))
    writer.rows.append(row)


def constraints():
    values = torch.tensor([[-1.0, 0.0, 1.0], [0.5, 2.0, 3.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [math.nan, 1.5, -2.0]],
                          dtype=torch.float64)
    squares = torch.stack([lower(3, 3), definite(3, 3), -definite(3, 3), real(3, 3), torch.eye(3, dtype=torch.float64),
                           torch.linalg.cholesky(corr(3)), torch.zeros(3, 3, dtype=torch.float64)])
    c = constraint
    flat = [c(n) for n in """boolean nonnegative_integer positive_integer real positive nonnegative unit_interval simplex
        one_hot real_vector""".split()]
    flat += [c("greater_than", 0.5), c("greater_than_eq", 0.5), c("less_than", 1.0), c("interval", -1.0, 1.0),
             c("half_open_interval", 0.0, 1.0), c("integer_interval", 0, 2), c("multinomial", 2),
             c("greater_than", torch.tensor([0.0, 1.0, 2.0])), c("independent", c("positive"), 1),
             c("cat", [c("positive"), c("boolean")], dim=Dim(1), lengths=[2, 1]),
             c("stack", [c("real"), c("positive"), c("boolean")], dim=Dim(-1)),
             c("MixtureSameFamilyConstraint", c("positive"))]
    square = [c(n) for n in """square symmetric lower_triangular lower_cholesky corr_cholesky positive_semidefinite
        positive_definite""".split()]
    return [(m, values) for m in flat] + [(m, one[None]) for m in square for one in squares]


def of_constraint(make, x, dtype, writer):
    made = build(make, [], dtype)
    x = x.to(dtype)
    row = {"kind": "constraint", "name": make.name, "make": plan(make, writer, dtype), "checks": []}
    check(row, writer, [], "check", lambda: made.check(x), x)
    check(row, writer, [], "event_dim", lambda: made.event_dim)
    check(row, writer, [], "is_discrete", lambda: bool(made.is_discrete))
    y = real(*x.shape).to(dtype)
    if "corr" in make.name:
        y = real(2, 3).to(dtype)
    for registry in ("transform_to", "biject_to"):
        check(row, writer, [], registry, lambda registry=registry: getattr(D, registry)(made)(y), y)
    writer.rows.append(row)


def write(path, seed, dtypes, rounds):
    torch.manual_seed(seed)
    random.seed(seed)
    writer = Writer()
    for dtype in dtypes:
        for _ in range(rounds):
            for name in DISTRIBUTIONS:
                of_distribution(name, dtype, writer)
            pairs = [(p.__name__, q.__name__) for p, q in _KL_REGISTRY if p.__name__ != "ExponentialFamily"]
            more = [("Chi2", "Gamma"), ("Chi2", "Chi2"), ("Wishart", "Wishart"), ("LogNormal", "LogNormal"),
                    ("InverseGamma", "InverseGamma"), ("LogisticNormal", "LogisticNormal"), ("HalfCauchy", "HalfCauchy"),
                    ("StudentT", "StudentT"), ("Poisson", "Gamma"), ("Kumaraswamy", "Kumaraswamy")]
            for p, q in pairs + more:
                of_divergence(p, q, dtype, writer)
            for make, x in transforms():
                of_transform(make, x, dtype, writer)
            for make, x in constraints():
                of_constraint(make, x, dtype, writer)
    text = json.dumps(writer.rows, separators=(",", ":")).encode()
    save_file({"numbers": torch.tensor(writer.numbers, dtype=torch.float64),
               "cases": torch.frombuffer(bytearray(text), dtype=torch.uint8)}, path)


if len(sys.argv) == 3 and sys.argv[1] == "--compare":
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "distributions.safetensors")
        write(path, int(sys.argv[2]), [torch.float64, torch.float32], 2)
        sys.exit(subprocess.call(["luajit", "scripts/dev/compare_distributions.lua", path], cwd=ROOT))
elif len(sys.argv) == 1:
    write(os.path.join(ROOT, "spec/golden/_distributions.safetensors"), 1, [torch.float64], 1)
else:
    sys.exit(__doc__)
