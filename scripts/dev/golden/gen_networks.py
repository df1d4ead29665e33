"""Writes spec/golden/network_*.safetensors: BERT and ViT by Hugging Face's transformers, ViT by torchvision, a U-Net by
diffusers, drawn from a seed, each with its state_dict under "state.", its inputs and its outputs; and results of
diffusion's schedulers, by formulas written here, which diffusers' schedulers confirm.

    python scripts/dev/golden/gen_networks.py        (with torch, torchvision, transformers, diffusers, safetensors)
"""
import math
import os
import tempfile

import diffusers
import numpy as np
import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")


def save(name, store):
    store = {k: (t.float() if t.is_floating_point() else t).contiguous().clone() for k, t in store.items()}
    save_file(store, f"{ROOT}/spec/golden/network_{name}.safetensors")


def drawn(model):
    model.eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3 + (p.ndim == 1))
    return model


def state(model, prefix="state."):
    return {prefix + key: t for key, t in model.state_dict().items()}


def bert():
    config = transformers.BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                     intermediate_size=24, max_position_embeddings=16, num_labels=3)
    ids, types = torch.randint(0, 40, (2, 7)), torch.randint(0, 2, (2, 7))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
    options = dict(attention_mask=mask, token_type_ids=types)
    body = drawn(transformers.BertModel(config))
    store = {"ids": ids + 1, "types": types + 1, "mask": mask, **state(body, "state.bert.")}
    bare, all_of = body(ids), body(ids, **options)
    store.update({"hidden": bare[0], "pooled": bare[1], "masked.hidden": all_of[0], "masked.pooled": all_of[1]})
    for name, kind in {"words": transformers.BertForMaskedLM, "classes": transformers.BertForSequenceClassification}.items():
        model = drawn(kind(config))
        model.bert.load_state_dict(body.state_dict(), strict=False)
        store[name] = model(ids, **options).logits
        store.update({k: t for k, t in state(model).items() if not k.startswith("state.bert.")})
    del store["state.cls.predictions.decoder.weight"], store["state.cls.predictions.decoder.bias"]
    save("bert", store)


def vit():
    model = drawn(torchvision.models.VisionTransformer(image_size=12, patch_size=4, num_layers=2, num_heads=2,
                                                       hidden_dim=16, mlp_dim=24, num_classes=5))
    x = torch.randn(2, 3, 12, 12)
    save("vit", {"x": x, "y": model(x), **state(model)})
    model = drawn(transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=12, patch_size=4, num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=24,
        num_labels=5)))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # names in files differ from those of state_dict
        named = {"file." + key: t for key, t in load_file(folder + "/model.safetensors").items()}
    save("vit_hugging_face", {"x": x, "y": model(x).logits, **named, **state(model)})


def unet():
    common = dict(block_out_channels=(4, 8), norm_num_groups=2, layers_per_block=1, sample_size=8)
    x, steps = torch.randn(2, 3, 8, 8), torch.tensor([3, 712])
    for name, more, options in [
        ("unet", dict(down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
                      attention_head_dim=4), {}),
        ("unet_other", dict(down_block_types=("AttnDownBlock2D", "DownBlock2D"),
                            up_block_types=("UpBlock2D", "AttnUpBlock2D"), attention_head_dim=None, num_class_embeds=3,
                            flip_sin_to_cos=False, freq_shift=1, downsample_padding=0, center_input_sample=True,
                            resnet_time_scale_shift="scale_shift", norm_eps=1e-6, attn_norm_num_groups=2),
         dict(class_labels=torch.tensor([0, 2]))),
    ]:
        model = drawn(diffusers.UNet2DModel(**common, **more))
        save(name, {"x": x, "y": model(x, steps, **options).sample, "one": model(x, 41, **options).sample, **state(model)})


# ---- schedulers: the papers' formulas in float64

def cumulative(schedule, n):
    if schedule == "linear":
        betas = np.linspace(0.0001, 0.02, n)
    elif schedule == "scaled_linear":
        betas = np.linspace(0.0001 ** 0.5, 0.02 ** 0.5, n) ** 2
    else:
        bar = np.cos((np.arange(n + 1) / n + 0.008) / 1.008 * math.pi / 2) ** 2
        betas = np.minimum(1 - bar[1:] / bar[:-1], 0.999)
    return np.cumprod(1 - betas)


def split(kind, out, x, a):
    if kind == "epsilon":
        clean, noise = (x - (1 - a) ** 0.5 * out) / a ** 0.5, out
    elif kind == "sample":
        clean, noise = out, (x - a ** 0.5 * out) / (1 - a) ** 0.5
    else:
        clean, noise = a ** 0.5 * x - (1 - a) ** 0.5 * out, a ** 0.5 * out + (1 - a) ** 0.5 * x
    return np.clip(clean, -1, 1), noise


def ddpm_step(kind, out, x, a, before, noise, last):
    """Formula 7 of Ho et al.: mean and variance of q(x before | x, clean)."""
    beta = 1 - a / before
    clean, _ = split(kind, out, x, a)
    mean = before ** 0.5 * beta / (1 - a) * clean + (a / before) ** 0.5 * (1 - before) / (1 - a) * x
    return mean if last else mean + ((1 - before) / (1 - a) * beta) ** 0.5 * noise


def ddim_step(kind, out, x, a, before, noise, eta):
    """Formulas 12 and 16 of Song et al."""
    sigma = eta * ((1 - before) / (1 - a)) ** 0.5 * (1 - a / before) ** 0.5
    clean, direction = split(kind, out, x, a)
    return before ** 0.5 * clean + (1 - before - sigma ** 2) ** 0.5 * direction + sigma * noise


def schedulers():
    n, shape = 5, (2, 3, 4)
    outs, noises, start = (torch.randn(k, *shape) if k else torch.randn(shape) for k in (n, n, 0))
    store = {"outs": outs, "noises": noises, "start": start}
    for spacing in "linspace leading trailing".split():
        its = diffusers.DDPMScheduler(timestep_spacing=spacing)
        for count in (1, 7, 20):
            its.set_timesteps(count)
            store[f"{spacing}.{count}"] = its.timesteps.clone()
    for schedule in "linear scaled_linear squaredcos_cap_v2".split():
        bars = cumulative(schedule, 1000)
        at = np.array([0, 437])
        store[schedule] = torch.from_numpy(bars[[0, 1, 437, 998, 999]])
        store[schedule + ".noised"] = torch.from_numpy(
            bars[at, None, None] ** 0.5 * start.numpy() + (1 - bars[at, None, None]) ** 0.5 * noises[0].numpy())
        store[schedule + ".velocity"] = torch.from_numpy(
            bars[at, None, None] ** 0.5 * noises[0].numpy() - (1 - bars[at, None, None]) ** 0.5 * start.numpy())
        for kind in "epsilon sample v_prediction".split():
            settings = dict(beta_schedule=schedule, prediction_type=kind)
            theirs = {"ddpm": diffusers.DDPMScheduler(**settings), "ddim": diffusers.DDIMScheduler(**settings)}
            theirs["ddim_eta"] = theirs["ddim"]
            for name, it in theirs.items():
                it.set_timesteps(n)
                x, xs = start.double().numpy(), []
                y = start
                for i, t in enumerate(it.timesteps.tolist()):
                    before = bars[t - 1000 // n] if t >= 1000 // n else 1.0
                    out, noise = outs[i].numpy(), noises[i].numpy()
                    if name == "ddpm":
                        x = ddpm_step(kind, out, x, bars[t], before, noise, t == 0)
                        original = diffusers.schedulers.scheduling_ddpm.randn_tensor
                        diffusers.schedulers.scheduling_ddpm.randn_tensor = lambda *_, **__: noises[i]
                        y = it.step(outs[i], t, y).prev_sample
                        diffusers.schedulers.scheduling_ddpm.randn_tensor = original
                    else:
                        eta = 0.7 if name == "ddim_eta" else 0.0
                        x = ddim_step(kind, out, x, bars[t], before, noise, eta)
                        y = it.step(outs[i], t, y, eta=eta, variance_noise=noises[i]).prev_sample
                    assert np.allclose(x, y.numpy(), rtol=2e-3, atol=2e-3), (name, schedule, kind, t)
                    xs.append(x)
                store[f"{name}.{schedule}.{kind}"] = torch.from_numpy(np.stack(xs))
    save("schedulers", store)


torch.manual_seed(17)
with torch.no_grad():
    bert()
    vit()
    unet()
    schedulers()
