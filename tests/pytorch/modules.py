"""Modules and optimizers that PyTorch does not have, or that live outside it."""

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class BasicBlock(nn.Module):
    """Like torchvision's."""

    def __init__(self, inplanes, planes, stride=1, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        return self.relu(out + identity)


class ResNet(nn.Module):
    """Like torchvision's, but of any width: `resnet18` has layers (2, 2, 2, 2) and a width of 64."""

    def __init__(self, layers, width, num_classes):
        super().__init__()
        self.inplanes = width
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(width, layers[0])
        self.layer2 = self._make_layer(2 * width, layers[1], stride=2)
        self.layer3 = self._make_layer(4 * width, layers[2], stride=2)
        self.layer4 = self._make_layer(8 * width, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, num_classes)

    def _make_layer(self, planes, blocks, stride=1):
        downsample = None
        if stride != 1 or self.inplanes != planes:
            conv = nn.Conv2d(self.inplanes, planes, kernel_size=1, stride=stride, bias=False)
            downsample = nn.Sequential(conv, nn.BatchNorm2d(planes))
        layers = [BasicBlock(self.inplanes, planes, stride, downsample)]
        self.inplanes = planes
        layers += (BasicBlock(planes, planes) for _ in range(1, blocks))
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class SelfAttention2d(nn.Module):
    """Attention of every pixel to every pixel, based on PyTorch's attention."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.output = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        n, c, h, w = x.shape
        split = lambda part: part.reshape(n, self.heads, c // self.heads, h * w).transpose(2, 3)
        q, k, v = (split(part) for part in self.qkv(x).chunk(3, 1))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.output(y.transpose(2, 3).reshape(n, c, h, w))


def by_products(q, k, v, mask):
    """PyTorch's attention in the form that it can differentiate twice."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class SinusoidalEmbedding(nn.Module):
    """Like DDPM's."""

    def __init__(self, width, max_period=10_000):
        super().__init__()
        half = width // 2
        self.frequencies = [math.exp(-math.log(max_period) / (half - 1) * k) for k in range(half)]

    def forward(self, x):
        angles = x[..., None] * torch.tensor(self.frequencies, dtype=x.dtype)
        return torch.cat([angles.sin(), angles.cos()], -1)


class SwiGlu(nn.Module):
    """Llama's feed-forward layer."""

    def __init__(self, width, hidden, bias=False):
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=bias)
        self.up_proj = nn.Linear(width, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RotaryEmbedding(nn.Module):
    """Like Llama's and GPT-NeoX's: a feature of the first half rotates with its partner in the second."""

    def __init__(self, width, base=10_000.0, offset=0):
        super().__init__()
        self.width, self.base, self.offset = width, base, offset

    def forward(self, x):
        frequencies = self.base ** (-torch.arange(0, self.width, 2, dtype=x.dtype) / self.width)
        positions = self.offset + torch.arange(x.shape[-2], dtype=x.dtype)
        angles = torch.outer(positions, frequencies).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def recurrent(module, x, *states, lengths=None):
    """The outputs and all final states, one after the other."""
    states = states if len(states) > 1 else states[0] if states else None
    if lengths is None:
        y, last = module(x, states)
    else:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, last = module(packed, states)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
    last = last if isinstance(last, tuple) else (last,)
    return torch.cat([part.flatten() for part in (y, *last)])


class Lion(optim.Optimizer):
    """The authors' algorithm (Chen et al., 2023, algorithm 2)."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"])
                p.sub_(lr * (beta1 * m + (1 - beta1) * p.grad).sign())
                m.mul_(beta2).add_((1 - beta2) * p.grad)


def reduced(losses, reduction):
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]()


def dice_loss(x, t, smooth=1.0, squared=False, reduction="mean"):
    """The loss of Milletari et al., 2016, for each class of each example."""
    x, t = x.flatten(2), t.flatten(2)
    both = x**2 + t**2 if squared else x + t
    return reduced(1 - (2 * (x * t).sum(2) + smooth) / (both.sum(2) + smooth), reduction)


def sigmoid_focal_loss(x, t, alpha=0.25, gamma=2.0, reduction="mean"):
    """Like torchvision's."""
    p = x.sigmoid()
    p_t = p * t + (1 - p) * (1 - t)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - p_t) ** gamma
    if alpha >= 0:
        loss = (alpha * t + (1 - alpha) * (1 - t)) * loss
    return reduced(loss, reduction)


def focal_loss(x, labels, gamma=2.0, weight=None, reduction="mean"):
    """The loss of Lin et al., 2017, for several classes; the mean is weighted like cross-entropy's."""
    surprise = F.cross_entropy(x, labels, reduction="none")
    weights = torch.ones_like(surprise) if weight is None else weight[labels]
    losses = weights * (1 - (-surprise).exp()) ** gamma * surprise
    return losses.sum() / weights.sum() if reduction == "mean" else reduced(losses, reduction)
