"""The models of `serve_twin.py`, with random weights, and their ONNX files."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F

from torch_twin import MobileNetV2, ResNet50, UNet, ViT


class Block(nn.Module):
    def __init__(self, c, o, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.skip = nn.Identity()
        if stride != 1 or c != o:
            self.skip = nn.Sequential(nn.Conv2d(c, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks, self.head = nn.Sequential(*(Block(*width) for width in widths)), nn.Linear(512, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Fire(nn.Module):
    def __init__(self, c, squeeze, expand):
        super().__init__()
        self.squeeze = nn.Conv2d(c, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


class SqueezeNet(nn.Sequential):
    def __init__(self):
        pool = nn.MaxPool2d(3, 2)
        super().__init__(
            nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool,
            Fire(64, 16, 64), Fire(128, 16, 64), pool,
            Fire(128, 32, 128), Fire(256, 32, 128), pool,
            Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
            nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )


# name: model, shapes of the inputs
MODELS = {
    "resnet18": (ResNet18, [(1, 3, 224, 224)]),
    "resnet18-batch8": (ResNet18, [(8, 3, 224, 224)]),
    "resnet50": (ResNet50, [(1, 3, 224, 224)]),
    "mobilenet": (MobileNetV2, [(1, 3, 224, 224)]),
    "squeezenet": (SqueezeNet, [(1, 3, 224, 224)]),
    "squeezenet64": (SqueezeNet, [(1, 3, 64, 64)]),
    "unet32": (lambda: UNet(ch=32), [(1, 3, 32, 32), (1,)]),
    "vit": (lambda: ViT(ch=192, layers=4), [(1, 3, 224, 224)]),
}


def model(name):
    """A model in evaluation mode, with running statistics as after a training, and inputs."""
    torch.manual_seed(42)
    make, shapes = MODELS[name]
    net = make().eval()
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for numbers in (norm.running_var, norm.weight.data):
                numbers.uniform_(0.5, 1.5)
            for numbers in (norm.running_mean, norm.bias.data):
                numbers.normal_(0, 0.1)
    return net, [torch.randn(shape) for shape in shapes]


def export(name, path):
    net, inputs = model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # As it is: an exporter that folds normalisations would hide whether programs do.
        torch.onnx.export(
            net, tuple(inputs), path, dynamo=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
