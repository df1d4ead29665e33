"""The PyTorch side of scripts/bench: answers each line "name" with "variant seconds ...", and once with "flops N", the
operations of products, convolutions and attention in a step."""
import os
import sys
import subprocess
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

torch.set_num_threads(int(sys.argv[1]))
ROUNDS = {"mlp1": 400, "mlp256": 40, "lenet256": 8, "resnet64": 2, "resnet256": 1, "sgd": 10, "adam": 10, "lenet256_bf16": 8,
          "resnet64_bf16": 2, "mm2048": 4, "mm2048_bf16": 4, "resnet50": 1, "vgg11": 1, "mobilenet": 1,
          "transformer256": 2, "transformer256_dropout": 2,
          "attention4096": 1, "attention4096_causal": 1, "attention4096_dropout": 1}


COMPILE = os.environ.get("LUMINARY_BENCH_COMPILE") == "1"


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride) if stride != 1 or cin != cout else nn.Identity()

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


class Bottleneck(nn.Module):
    def __init__(self, cin, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.skip = nn.Identity() if cin == 4 * width else nn.Sequential(
            nn.Conv2d(cin, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        y = self.bn3(self.conv3(y))
        y += self.skip(x)
        return self.relu(y)


def resnet50():
    """As torchvision has it."""
    layers, cin = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                   nn.MaxPool2d(3, 2, 1)], 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for k in range(count):
            layers.append(Bottleneck(cin, width, 2 if k == 0 and width > 64 else 1))
            cin = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 1000))


class InvertedResidual(nn.Module):
    def __init__(self, cin, cout, stride, expand):
        super().__init__()
        wide = cin * expand
        self.around = stride == 1 and cin == cout
        self.conv = nn.Sequential(*([] if expand == 1 else conv_unit(cin, wide, 1, 1, 1)),
                                  *conv_unit(wide, wide, 3, stride, wide),
                                  nn.Conv2d(wide, cout, 1, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        return x + self.conv(x) if self.around else self.conv(x)


def conv_unit(cin, cout, size, stride, groups):
    return [nn.Conv2d(cin, cout, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(cout),
            nn.ReLU6(inplace=True)]


def mobilenet():
    """MobileNetV2 as torchvision has it."""
    layers, cin = conv_unit(3, 32, 3, 2, 1), 32
    for expand, width, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                         (6, 160, 3, 2), (6, 320, 1, 1)):
        for k in range(count):
            layers.append(InvertedResidual(cin, width, stride if k == 0 else 1, expand))
            cin = width
    return nn.Sequential(*layers, *conv_unit(cin, 1280, 1, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Dropout(0.2), nn.Linear(1280, 1000))


def vgg11():
    """As torchvision has it."""
    layers, cin = [], 3
    for group in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for width in group:
            layers += [nn.Conv2d(cin, width, 3, 1, 1), nn.ReLU(inplace=True)]
            cin = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(),
                         nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(),
                         nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))


def model(name):
    if name == "resnet50":
        return resnet50()
    if name == "vgg11":
        return vgg11()
    if name == "mobilenet":
        return mobilenet()
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    if name == "lenet":
        return nn.Sequential(nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(),
                             nn.AvgPool2d(2), nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))
    layers, cin = [nn.Conv2d(1, 64, 3, 1, 1), nn.BatchNorm2d(64), nn.ReLU()], 64
    for cout in (64, 128, 256, 512):
        for k in range(2):
            layers.append(Block(cin, cout, 2 if k == 0 and cout > 64 else 1))
            cin = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def training(name, batch, channels_last, device="cpu", autocast=False, compiled=False):
    """A function that does one step of SGD with momentum. autocast: to bfloat16. compiled: by torch.compile."""
    net = model(name).to(device)
    large = name in ("resnet50", "vgg11", "mobilenet")
    x = torch.rand(batch, *((3, 224, 224) if large else (1, 28, 28)), device=device)
    y = torch.randint(0, 1000 if large else 10, (batch,), device=device)
    if channels_last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    if compiled:
        net = torch.compile(net)

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item() if device == "cpu" else loss
    return step


def optimizer(make):
    params = [p.detach().clone().requires_grad_() for p in model("resnet").parameters()]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    return make(params).step


def steps(kind):
    """Variants of a step of torch.optim's class with its defaults: fused where it is, foreach, and one by one."""
    variants = {}
    for how in ({"fused": True}, {"foreach": True}, {"foreach": False}) if kind else ():
        try:
            step = optimizer(lambda p: kind(p, **how))
            step()
            variants["%s=%s" % next(iter(how.items()))] = step
        except (TypeError, RuntimeError):  # not for this one
            pass
    return variants


def sequences(net, batch, length, compiled=False):
    """A step of a layer over sequences [N, L, 256]."""
    x, opt = torch.randn(batch, length, 256), torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
    if compiled:
        net = torch.compile(net)

    def step():
        y = net(x)
        y = y[0] if isinstance(y, tuple) else y
        opt.zero_grad()
        y.square().mean().backward()
        opt.step()
    return step


def transformer(dropout, compiled=False):
    layer = nn.TransformerEncoderLayer(256, 4, dim_feedforward=1024, dropout=dropout, batch_first=True)
    return sequences(nn.TransformerEncoder(layer, 6), 16, 128, compiled)


def attention(**options):
    """Attention [1, 8, 4096, 64] and its gradients."""
    q, k, v = (torch.randn(1, 8, 4096, 64, requires_grad=True) for _ in range(3))
    g = torch.randn(1, 8, 4096, 64)

    def step():
        q.grad = k.grad = v.grad = None
        F.scaled_dot_product_attention(q, k, v, **options).backward(g)
    return step


SEQUENCES = {
    "rnn256": lambda: sequences(nn.RNN(256, 256, batch_first=True), 32, 64),
    "gru256": lambda: sequences(nn.GRU(256, 256, batch_first=True), 32, 64),
    "lstm256": lambda: sequences(nn.LSTM(256, 256, batch_first=True), 32, 64),
    "transformer256": lambda: transformer(0), "transformer256_dropout": lambda: transformer(0.1),
    "attention4096": attention, "attention4096_causal": lambda: attention(is_causal=True),
    "attention4096_dropout": lambda: attention(dropout_p=0.1),
}


def convolution(name, channels_last):
    """A pass of a convolution of 8 images: fwd, in or wt, channels in, out, kernel, stride, side of the images."""
    which, *numbers = name.split("_")
    c, k, size, stride, side = map(int, numbers)
    x, w = torch.rand(8, c, side, side), torch.rand(k, c, size, size)
    if channels_last:
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    options = [stride, stride], [size // 2, size // 2], [1, 1]
    g = torch.rand_like(F.conv2d(x, w, None, *options))
    if which == "fwd":
        return lambda: F.conv2d(x, w, None, *options)
    wanted = [which == "in", which == "wt", False]
    return lambda: torch.ops.aten.convolution_backward(g, x, w, None, *options, False, [0, 0], 1, wanted)


def build(name):
    """Variants by name: functions that do one step."""
    if name.split("_")[0] in ("fwd", "in", "wt"):
        return {"default": convolution(name, False), "channels_last": convolution(name, True)}
    if name in SEQUENCES:
        variants = {"eager": SEQUENCES[name]()}
        if COMPILE and name.startswith("transformer"):
            variants["compiled"] = transformer(0.1 if name.endswith("dropout") else 0, True)
        return variants
    if name in ("resnet50", "vgg11", "mobilenet"):
        batch = 16 if name == "vgg11" else 8
        variants = {"default": training(name, batch, False), "channels_last": training(name, batch, True)}
        if COMPILE:
            variants["compiled"] = training(name, batch, True, compiled=True)
        return variants
    if name == "sgd":
        return {"fused": optimizer(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True))}
    if name == "adam":
        return {"fused": optimizer(lambda p: torch.optim.Adam(p, lr=0.001, fused=True))}
    if name.startswith("step_"):
        return steps(getattr(torch.optim, name[5:], None))
    name, _, low = name.partition("_")
    if name == "mm2048":
        a, b = (torch.randn(2048, 2048).to(torch.bfloat16 if low else torch.float32) for _ in range(2))
        return {"eager": lambda: a @ b}
    net, batch = name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
    variants = {"default": training(net, batch, False, autocast=bool(low))}
    if net != "mlp":
        variants["channels_last"] = training(net, batch, True, autocast=bool(low))
    if COMPILE:
        variants["compiled"] = training(net, batch, net != "mlp", autocast=bool(low), compiled=True)
    return variants


def warm_up(f):
    start = time.perf_counter()
    for _ in range(3):
        f()
    while time.perf_counter() - start < 0.5:
        f()


def timed(f, n):
    start = time.perf_counter()
    for _ in range(n):
        f()
    return (time.perf_counter() - start) / n


def small(name):
    a, b = torch.rand(4), torch.rand(4)
    if name == "add4":
        return lambda: a + b
    w = torch.rand(4, requires_grad=True)

    def step():
        ((w + a) * b).sum().backward()
    return step


def data_epoch():
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
    images, labels = torch.randint(0, 256, (60000, 1, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (60000,))
    data = TensorDataset(images, labels)

    class Whole(torch.utils.data.Dataset):  # the fastest way DataLoader offers: whole batches by index list
        def __len__(self):
            return len(data)

        def __getitem__(self, index):
            return images[index].float() / 255, labels[index]
    loader = DataLoader(Whole(), sampler=BatchSampler(RandomSampler(data), 256, False), batch_size=None)

    def epoch():
        for _ in loader:
            pass
    return epoch


def fashion():
    """torchvision's FashionMNIST with its ToTensor and Normalize; without torchvision, what these do."""
    import gzip
    import numpy
    folder = "/usr/share/datasets/fashion-mnist/"

    def read(name):
        with gzip.open(folder + name + ".gz") as file:
            return file.read()
    try:
        from torchvision import transforms
        from torchvision.datasets import FashionMNIST
    except ImportError:
        images = numpy.frombuffer(read("train-images-idx3-ubyte"), numpy.uint8, offset=16).reshape(-1, 28, 28).copy()
        labels = numpy.frombuffer(read("train-labels-idx1-ubyte"), numpy.uint8, offset=8)

        class Fashion(torch.utils.data.Dataset):
            def __len__(self):
                return len(images)

            def __getitem__(self, i):
                x = torch.from_numpy(images[i]).unsqueeze(0).float().div_(255)
                return x.sub_(0.2860).div_(0.3530), int(labels[i])
        return Fashion()
    with tempfile.TemporaryDirectory() as root:
        raw = root + "/FashionMNIST/raw/"
        os.makedirs(raw)
        for part in ("train", "t10k"):
            for name in (part + "-images-idx3-ubyte", part + "-labels-idx1-ubyte"):
                with open(raw + name, "wb") as file:
                    file.write(read(name))
        transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.2860,), (0.3530,))])
        return FashionMNIST(root, train=True, transform=transform)


def photographs():
    """torchvision's ImageFolder, as its reference scripts train on it."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder
    return ImageFolder(os.environ["LUMINARY_BENCH_IMAGES"], transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]))


def passes(data, batch):
    """Epochs by count of workers."""
    from torch.utils.data import DataLoader

    def epoch(loader):
        for _ in loader:
            pass
    made = {}
    for count in range(3):
        loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=count, persistent_workers=count > 0)
        made[f"workers{count}"] = lambda loader=loader: epoch(loader)
    return made


def main():
    cache = {}
    epochs, photos = {}, {}
    for line in sys.stdin:
        name = line.strip()
        if name == "require":
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import torch"], check=True)
            answer = {"import": time.perf_counter() - start}
        elif name in ("add4", "small_step"):
            f = cache.setdefault(name, small(name))
            timed(f, 2000)
            answer = {"eager": timed(f, 20000)}
        elif name == "data_epoch":
            if name not in cache:
                cache[name] = data_epoch()
                cache[name]()
            answer = {"DataLoader": timed(cache[name], 1)}
        elif name in ("normal_epoch", "sample_epoch"):
            epochs = epochs or passes(fashion(), 256)
            answer = {variant: timed(f, 1) for variant, f in epochs.items()}
        elif name == "photo_epoch":
            photos = photos or passes(photographs(), 64)
            answer = {variant: timed(f, 1) for variant, f in photos.items()}
        else:
            if name not in cache:
                cache.clear()
                cache[name] = build(name)
                with FlopCounterMode(display=False) as counter:
                    for f in list(cache[name].values())[:1]:  # PyTorch lacks a few optimizers
                        f()
                for f in cache[name].values():
                    warm_up(f)
                flops = counter.get_total_flops()
            answer = {variant: timed(f, ROUNDS.get(name, 10)) for variant, f in cache[name].items()}
            if flops:
                answer["flops"] = flops
        print(" ".join(f"{variant} {seconds:.9f}" for variant, seconds in answer.items()), flush=True)


if __name__ == "__main__":
    main()
