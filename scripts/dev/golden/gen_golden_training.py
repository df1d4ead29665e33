#!/usr/bin/env python3
"""Golden values of many steps of schedules and averages, made with PyTorch: spec/golden/_schedules.safetensors, _averaged.safetensors.

usage: gen_golden_training.py [name...]
"""
import os
import sys
import warnings

import torch
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
STEPS = 200
S = torch.optim.lr_scheduler


def losses():
    """A metric that gets better ever more slowly, with setbacks. Exact in any order of computation."""
    return [8 / (1 + k // 9) + (k * 37 % 11) / 64 for k in range(STEPS)]


# As spec/optim/schedules_spec.lua's. Two groups, of rates 0.1 and 0.03.
SCHEDULES = {
    "step": lambda o: S.StepLR(o, 30),
    "step_gamma": lambda o: S.StepLR(o, 7, gamma=0.9),
    "multistep": lambda o: S.MultiStepLR(o, [20, 60, 60, 150]),
    "multistep_gamma": lambda o: S.MultiStepLR(o, [1, 100], gamma=0.5),
    "constant": lambda o: S.ConstantLR(o),
    "constant_options": lambda o: S.ConstantLR(o, factor=0.25, total_iters=80),
    "linear": lambda o: S.LinearLR(o),
    "linear_options": lambda o: S.LinearLR(o, start_factor=0.9, end_factor=0.2, total_iters=120),
    "exponential": lambda o: S.ExponentialLR(o, 0.97),
    "polynomial": lambda o: S.PolynomialLR(o),
    "polynomial_options": lambda o: S.PolynomialLR(o, total_iters=150, power=1.7),
    "lambda": lambda o: S.LambdaLR(o, lambda e: 0.95 ** e),
    "lambda_list": lambda o: S.LambdaLR(o, [lambda e: 0.95 ** e, lambda e: 1 / (1 + e)]),
    "multiplicative": lambda o: S.MultiplicativeLR(o, lambda e: 0.99 if e % 2 else 1.005),
    "multiplicative_list": lambda o: S.MultiplicativeLR(o, [lambda e: 0.99, lambda e: 0.98 if e > 50 else 1]),
    "cosine": lambda o: S.CosineAnnealingLR(o, 50),
    "cosine_min": lambda o: S.CosineAnnealingLR(o, 23, eta_min=0.01),
    "restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 20),
    "restarts_options": lambda o: S.CosineAnnealingWarmRestarts(o, 10, T_mult=3, eta_min=0.001),
    "onecycle": lambda o: S.OneCycleLR(o, 0.5, total_steps=200),
    "onecycle_epochs": lambda o: S.OneCycleLR(o, [0.5, 0.2], epochs=25, steps_per_epoch=8, anneal_strategy="linear"),
    "onecycle_three": lambda o: S.OneCycleLR(o, 0.5, total_steps=200, three_phase=True, pct_start=0.4, div_factor=10,
                                             final_div_factor=100),
    "onecycle_three_linear": lambda o: S.OneCycleLR(o, 0.5, total_steps=210, three_phase=True, anneal_strategy="linear",
                                                    base_momentum=[0.7, 0.8], max_momentum=0.9),
    "onecycle_still": lambda o: S.OneCycleLR(o, 0.5, total_steps=200, cycle_momentum=False),
    "cyclic": lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=25),
    "cyclic_default": lambda o: S.CyclicLR(o, 0.01, 0.2),
    "cyclic_down": lambda o: S.CyclicLR(o, [0.01, 0.02], [0.2, 0.1], step_size_up=10, step_size_down=33,
                                        base_momentum=[0.7, 0.6], max_momentum=[0.95, 0.9]),
    "cyclic_triangular2": lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=20, mode="triangular2"),
    "cyclic_exp": lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=20, mode="exp_range", gamma=0.99),
    "cyclic_fn": lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=20, scale_fn=lambda x: 1 / x),
    "cyclic_fn_iterations": lambda o: S.CyclicLR(o, 0.01, 0.2, step_size_up=20, scale_fn=lambda x: 1 / (1 + x),
                                                 scale_mode="iterations", cycle_momentum=False),
    "chained": lambda o: S.ChainedScheduler([S.ConstantLR(o, factor=0.5, total_iters=40), S.ExponentialLR(o, 0.98)]),
    "chained_three": lambda o: S.ChainedScheduler([S.LinearLR(o, total_iters=10), S.StepLR(o, 50, gamma=0.3),
                                                   S.MultiplicativeLR(o, lambda e: 0.999)], optimizer=o),
    "sequential": lambda o: S.SequentialLR(o, [S.LinearLR(o, start_factor=0.1, total_iters=20),
                                               S.CosineAnnealingLR(o, 180)], [20]),
    "sequential_many": lambda o: S.SequentialLR(o, [
        S.ConstantLR(o, factor=0.1, total_iters=10), S.ExponentialLR(o, 0.95), S.StepLR(o, 5, gamma=0.5),
        S.PolynomialLR(o, total_iters=30), S.MultiStepLR(o, [3, 9]), S.LambdaLR(o, lambda e: 1 / (1 + e)),
        S.CosineAnnealingWarmRestarts(o, 7, T_mult=2), S.LinearLR(o)], [15, 40, 60, 90, 110, 130, 180]),
    "sequential_restarts": lambda o: S.SequentialLR(o, [S.CosineAnnealingWarmRestarts(o, 9), S.ExponentialLR(o, 0.9)],
                                                    [50]),
    "sequential_of_chained": lambda o: S.SequentialLR(o, [
        S.ChainedScheduler([S.LinearLR(o, total_iters=10), S.StepLR(o, 20)]), S.ExponentialLR(o, 0.9)], [60]),
    "plateau": lambda o: S.ReduceLROnPlateau(o),
    "plateau_min": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=3, threshold=0.05, cooldown=4,
                                                 min_lr=[0.001, 0.002]),
    "plateau_abs": lambda o: S.ReduceLROnPlateau(o, "min", factor=0.7, patience=1, threshold=0.1, threshold_mode="abs",
                                                 eps=1e-3),
    "plateau_max": lambda o: S.ReduceLROnPlateau(o, mode="max", factor=0.8, patience=5, threshold=0.01, min_lr=1e-4),
    "plateau_max_abs": lambda o: S.ReduceLROnPlateau(o, mode="max", patience=0, factor=0.99, threshold_mode="abs"),
}
# Over Adam, where the first of betas is cycled.
OVER_ADAM = {"onecycle_adam": SCHEDULES["onecycle"], "cyclic_adam": SCHEDULES["cyclic_down"]}
# The first group's rate is set to 0.5 before step 100.
CHANGED = ["step", "multistep", "constant_options", "linear_options", "exponential", "polynomial_options", "lambda",
           "multiplicative", "cosine", "restarts", "onecycle", "cyclic", "chained", "sequential", "plateau_min"]
# Resumed after epoch 99; the groups' initial rates are 0.2 and 0.06.
RESUMED = {
    "step": lambda o: S.StepLR(o, 30, last_epoch=99),
    "cosine": lambda o: S.CosineAnnealingLR(o, 50, last_epoch=99),
    "linear_options": lambda o: S.LinearLR(o, 0.9, 0.2, 120, last_epoch=99),
    "exponential": lambda o: S.ExponentialLR(o, 0.97, last_epoch=99),
    "polynomial_options": lambda o: S.PolynomialLR(o, 150, 1.7, last_epoch=99),
    "lambda": lambda o: S.LambdaLR(o, lambda e: 0.95 ** e, last_epoch=99),
}


def parameter():
    return torch.zeros(1, requires_grad=True)


def run(make, adam=False, change=None, jumps=False):
    """Rates of both groups after each step, and what is cycled as the momentum."""
    groups = [{"params": [parameter()]}, {"params": [parameter()], "lr": 0.03}]
    opt = torch.optim.Adam(groups, lr=0.1) if adam else torch.optim.SGD(groups, lr=0.1, momentum=0.5)
    schedule = make(opt)
    metrics = losses()

    def look():
        return [[g["lr"], g["betas"][0] if adam else g["momentum"]] for g in opt.param_groups]

    seen = [look()]
    for k in range(STEPS):
        if k == change:
            opt.param_groups[0]["lr"] = 0.5
        opt.step()
        if isinstance(schedule, S.ReduceLROnPlateau):
            schedule.step(metrics[k])
        elif jumps and k % 4 != 3:
            schedule.step(k * 37 % 150 + k / 8)
        else:
            schedule.step()
        seen.append(look())
    seen = torch.tensor(seen, dtype=torch.float64)
    return seen if (seen[:, :, 1] != seen[0, 0, 1]).any() else seen[:, :, 0].contiguous()


def schedules():
    """200 steps of each schedule: [201, groups], or [201, groups, 2] with the momentum where it changes."""
    store = {"losses": torch.tensor(losses(), dtype=torch.float64)}
    for name, make in SCHEDULES.items():
        store[name] = run(make)
    for name, make in OVER_ADAM.items():
        store[name] = run(make, adam=True)
    for name in CHANGED:
        store[name + ".changed"] = run(SCHEDULES[name], change=100)
    for name in ["restarts", "restarts_options"]:
        store[name + ".jumps"] = run(SCHEDULES[name], jumps=True)
    for name, make in RESUMED.items():
        def resumed(o, make=make):
            for g, lr in zip(o.param_groups, [0.2, 0.06]):
                g["initial_lr"] = lr
            return make(o)
        store[name + ".resumed"] = run(resumed)
    save_file(store, os.path.join(ROOT, "spec/golden/_schedules.safetensors"))


def averaged():
    """Twelve updates of averaged models: what the model had (its parameters and buffers, flat), and what they have after
    each. Rates of SWALR."""
    swa, gen, store = torch.optim.swa_utils, torch.Generator().manual_seed(5), {}

    def model():
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).double()
        return net, [*net.parameters(), *net.buffers()]

    def flat(tensors):
        return torch.cat([t.detach().double().flatten() for t in tensors])

    for name, options in {
        "swa": {}, "ema": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.9)},
        "ema_slow": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.999)},
        "ema_fast": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.25), "use_buffers": True},
        "avg_fn": {"avg_fn": lambda a, p, n: 0.5 * a + p / (n + 2)},
        "ema_buffers": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.75), "use_buffers": True},
    }.items():
        net, tensors = model()
        average = swa.AveragedModel(net, **options)
        values, after = [], []
        for k in range(12):
            with torch.no_grad():
                for t in tensors:
                    t.copy_(torch.randn(t.shape, generator=gen, dtype=torch.float64) if t.is_floating_point()
                            else torch.tensor(4 * k))
            average.update_parameters(net)
            values.append(flat(tensors))
            after.append(flat([*average.module.parameters(), *average.module.buffers()]))
        store[name + ".model"] = torch.stack(values)
        store[name] = torch.stack(after)
    for name, make in {
        "swalr": lambda o: swa.SWALR(o, 0.05),
        "swalr_linear": lambda o: swa.SWALR(o, [0.5, 0.001], anneal_epochs=37, anneal_strategy="linear"),
        "swalr_at_once": lambda o: swa.SWALR(o, 0.5, anneal_epochs=0),
    }.items():
        store[name] = run(make)
    store["swalr.changed"] = run(lambda o: swa.SWALR(o, 0.05, anneal_epochs=150), change=100)
    save_file(store, os.path.join(ROOT, "spec/golden/_averaged.safetensors"))


WRITERS = {"schedules": schedules, "averaged": averaged}


def main():
    warnings.simplefilter("ignore")
    for name, write in WRITERS.items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            write()


main()
