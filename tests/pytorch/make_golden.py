#!/usr/bin/env python3
"""PyTorch's results, for the tests to compare with: files beside this one, computed in double precision.

    python3 tests/pytorch/make_golden.py
    python3 tests/pytorch/make_golden.py --onnx
    python3 tests/pytorch/make_golden.py --peft
    cargo xtask agreement --save DIR && python3 tests/pytorch/make_golden.py --check-ours DIR

Needs torch and safetensors. The second line writes only the ONNX files, with both of torch's exporters, and also needs onnx and
onnxscript. The third writes only the adapters of PEFT, and also needs peft. The fourth writes this framework's models under PyTorch's names, loads them with `load_state_dict(strict=True)` and
compares their results with the expected ones.

A file of cases holds these tensors for case N (line N of `cases` in `__metadata__`, from 0, is its name):

    N.state.KEY      the module's parameters and buffers, under PyTorch's keys
    N.input.NAME     the inputs
    N.cotangent      the gradients are those of Σ output · cotangent
    N.output         the results
    N.grad.KEY       the gradient of a parameter
    N.input_grad.NAME
    N.after.KEY      a buffer after a forward pass that changed it; for an optimizer, `N.after.STEP.KEY`

All inputs are exact in 16 bits, so every precision starts from the same numbers. Gradients of models are rounded to single
precision, with a relative error of 6e-8; all other results are stored in double precision.
"""

import argparse
import re
import sys
import zlib
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.package
from safetensors.torch import load_file, save_file
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import lr_scheduler

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent.parent / "examples" / "bench"))

import cases
import modules
import torch_twin

NAMES = {**vars(lr_scheduler), **vars(modules), "nn": nn, "F": F, "torch": torch, "optim": optim}


def exact(shape, generator, unit=2**-10):
    """Normal numbers, rounded to multiples of a unit."""
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return ((x / unit).round() * unit).half().double()


def draw(spec, generator, unit):
    if isinstance(spec, cases.ints):
        return torch.randint(spec.end, spec.shape, generator=generator)
    return exact(spec, generator, unit)


@torch.no_grad()
def fill(module, generator):
    """Different numbers from the initial ones, many of which are 0 or 1: weights whose sums are about 1."""
    for name, x in module.state_dict(keep_vars=True).items():
        if name.endswith("running_var"):
            x.copy_((0.5 + exact(x.shape, generator).abs()).half())
        elif x.is_floating_point():
            fan = x[0].numel() if x.dim() > 1 else 1
            x.copy_((exact(x.shape, generator) / fan**0.5).half())
    for part in module.modules():
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            part.weight[part.padding_idx] = 0


def as_float(tensors):
    return {name: x.float() if x.is_floating_point() else x for name, x in tensors.items()}


def differentiate(module, inputs, call, generator):
    """The part of a case's file about the call of a module, if there is one."""
    # Class weights are settings, not operands.
    floats = {name: x.requires_grad_() for name, x in inputs.items() if x.is_floating_point() and name != "w"}
    before = {} if module is None else {name: x.clone() for name, x in module.named_buffers()}
    y = eval(call, {**NAMES, "m": module, **inputs})
    cotangent = exact(y.shape, generator) if y.dim() > 0 else torch.ones((), dtype=torch.float64)
    (y * cotangent).sum().backward()
    result = as_float({f"input.{name}": x.detach() for name, x in inputs.items()})
    result |= {"cotangent": cotangent.float(), "output": y.detach()}
    result |= {f"input_grad.{name}": x.grad for name, x in floats.items() if x.grad is not None}
    if module is not None:
        result |= {f"grad.{name}": x.grad for name, x in module.named_parameters()}
        changed = lambda name, x: x.is_floating_point() and not torch.equal(x, before[name])
        result |= {f"after.{name}": x for name, x in module.named_buffers() if changed(name, x)}
    return result


def of_case(case, generator):
    inputs = {name: draw(spec, generator, case.unit) for name, spec in case.inputs.items()}
    if not re.match(r"nn\.|[A-Z]\w+\(", case.torch):
        return differentiate(None, inputs, case.torch, generator)
    module = eval(case.torch, NAMES).double()
    fill(module, generator)
    state = as_float({f"state.{name}": x.detach().clone() for name, x in module.state_dict().items()})
    return state | differentiate(module, inputs, case.call, generator)


def of_optimizer(expression, generator, steps=3):
    """Steps on a linear layer's squared error. Muon takes only matrices, and computes in `bfloat16` by default; `NAdam` keeps a
    number in the default type."""
    net = nn.Linear(4, 3, bias="Muon" not in expression).double()
    fill(net, generator)
    result = as_float({f"state.{name}": x.detach().clone() for name, x in net.state_dict().items()})
    x, t = exact((6, 4), generator), exact((6, 3), generator)
    result |= {"input.x": x.float(), "input.t": t.float()}
    with mock.patch.object(torch, "bfloat16", torch.float64):
        optimizer = eval(expression, {**NAMES, "p": list(net.parameters())})

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), t)
            loss.backward()
            return loss

        for step in range(1, steps + 1):
            torch.set_default_dtype(torch.float64)
            if "LBFGS" in expression:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            torch.set_default_dtype(torch.float32)
            result |= {f"after.{step}.{name}": x.detach().clone() for name, x in net.named_parameters()}
    return result


def of_schedule(expression, steps):
    """The rate before each step, or after each metric."""
    optimizer = optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = eval(expression, {**NAMES, "o": optimizer})
    rates = []
    if isinstance(steps, list):
        for metric in steps:
            scheduler.step(metric)
            rates.append(optimizer.param_groups[0]["lr"])
        return {"input.metrics": torch.tensor(steps, dtype=torch.float64), "output": torch.tensor(rates, dtype=torch.float64)}
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"output": torch.tensor(rates, dtype=torch.float64)}


def resnet18gn():
    """The reference workload, with 4 channels."""
    inputs = {"x": (3, 3, 17, 15), "labels": cases.ints(10, (3,))}
    return torch_twin.ResNet18Gn(4, groups=2), inputs, "F.cross_entropy(m(x), labels)"


def unet():
    """The reference workload, with 4 channels."""
    inputs = {"x": (2, 3, 8, 12), "t": cases.ints(1000, (2,)), "noise": (2, 3, 8, 12)}
    return torch_twin.UNet(4, groups=2), inputs, "F.mse_loss(m(x, t.double()), noise)"


def torchvision_resnet():
    """Narrow, with one stage of two blocks."""
    return modules.ResNet((1, 2, 1, 1), 4, 10).eval(), {"x": (2, 3, 37, 41)}, "m(x)"


def vit():
    """The reference workload, with two layers of 16 features on 9 patches."""
    inputs = {"x": (3, 3, 12, 12), "labels": cases.ints(10, (3,))}
    net = torch_twin.ViT(16, layers=2, side=12, patch=4, head=8, classes=10)
    return net, inputs, "F.cross_entropy(m(x), labels)"


def gpt2():
    """The reference workload, with two layers of 16 features, on sequences shorter than its context."""
    inputs = {"tokens": cases.ints(11, (2, 7)), "next": cases.ints(11, (2, 7))}
    net = torch_twin.Gpt2(16, layers=2, length=9, vocabulary=11, head=8)
    return net, inputs, "F.cross_entropy(m(tokens).flatten(0, 1), next.flatten())"


def mobilenet():
    """The reference workload, narrow, with three stages."""
    inputs = {"x": (3, 3, 13, 15), "labels": cases.ints(10, (3,))}
    net = torch_twin.MobileNetV2(4, ((1, 4, 1, 1), (2, 6, 2, 2), (3, 10, 1, 1)), last=12, classes=10)
    return net, inputs, "F.cross_entropy(m(x), labels)"


def lstm():
    """The reference workload, with two layers of 6 features."""
    inputs = {"tokens": cases.ints(11, (2, 5)), "next": cases.ints(11, (2, 5))}
    return torch_twin.LstmLanguage(6, vocabulary=11), inputs, "F.cross_entropy(m(tokens).flatten(0, 1), next.flatten())"


MODELS = [resnet18gn, unet, torchvision_resnet]
# Each with a generator of its own.
LATER_MODELS = [vit, gpt2, mobilenet, lstm]


def of_model(model, generator):
    """The model's file with the keys of `state_dict`, its results, and a suffix of its name."""
    module, inputs, call = model()
    module = module.double()
    fill(module, generator)
    state = {name: x.half() if x.is_floating_point() else x for name, x in module.state_dict().items()}
    inputs = {name: draw(spec, generator, 2**-6) for name, spec in inputs.items()}
    result = differentiate(module, inputs, call, generator)
    answer = as_float({name: x for name, x in result.items() if name != "output"}) | {"output": result["output"]}
    return state, answer, "" if module.training else ".eval()"


def save(name, tensors, metadata=None):
    path = HERE / f"{name}.safetensors"
    save_file({name: x.contiguous() for name, x in tensors.items()}, path, metadata)
    print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size:,} bytes")


def save_cases(name, named):
    tensors = {f"{i}.{key}": x for i, (_, case) in enumerate(named) for key, x in case.items()}
    # One entry: several would come in a different order each time.
    save(name, tensors, {"cases": "\n".join(name for name, _ in named)})


def own_generator(name):
    """Numbers that depend only on the name of a case."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def later(named):
    return [(case.torch, of_case(case, own_generator(case.torch))) for case in named]


def save_pickled():
    """A checkpoint from `torch.save`, the same tensors in safetensors, and a module that is pickled as a whole."""
    generator = own_generator("pickled")
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Linear(4, 4))
    fill(net, generator)
    table = torch.arange(24.0).reshape(4, 6)
    views = {
        "transposed": table.T,
        "strided": table[1:, ::2],
        "expanded": table[0, :2].expand(3, 2),
        "half": table.half(),
        "bfloat16": table.bfloat16(),
        "double": table.double() / 3,
        "scalar": torch.tensor(0.5),
        "parameter": torch.nn.Parameter(table[2]),
        "bool": table > 3,
        "uint8": table.to(torch.uint8),
        "int64": table.long(),
    }
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    net(torch.zeros(1, 2, 6, 6)).sum().backward()
    optimizer.step()
    checkpoint = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "views": views,
        "list": [table[:1], (table[3], None)],
        "epoch": 3,
        "name": "net",
        "shape": table.shape,
    }
    torch.save(checkpoint, HERE / "pickled.pt")
    torch.save(net, HERE / "module.pt")
    # The old format has the source of each class, which nobody reads.
    with mock.patch("torch.serialization.get_source_lines_and_file", return_value=(["class"], 0, "module.py")):
        torch.save(net, HERE / "module_old.pt", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(net), HERE / "module_script.pt")
    gate = mock.patch("torch.package.package_exporter._gate_torchscript_serialization", False)
    with gate, torch.package.PackageExporter(HERE / "module_package.pt") as package:
        package.save_pickle("net", "net.pkl", torch.jit.script(net))
    tensors = {}

    def walk(value, path):
        if isinstance(value, torch.Tensor):
            tensors[".".join(path)] = value.detach().clone()
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, [*path, str(key)])
        elif isinstance(value, (list, tuple)):
            for key, item in enumerate(value):
                walk(item, [*path, str(key)])

    walk(checkpoint, [])
    save("pickled", tensors)


ARRAYS = ["array.rows", "array.columns", "array.bools", "count.uint8", "count.int64", "float.float16", "float.float64"]


class Attributed(torch.Tensor):
    """A subclass of tensors."""


def save_types():
    """Tensors of every type and kind from `torch.save` in both formats, and their values in safetensors."""
    numbers = torch.arange(12.0).reshape(3, 4) - 2.5
    bits = torch.arange(256, dtype=torch.uint8)
    counts = torch.tensor([3, 0, 200])
    tensors = {f"count.{name}": counts.to(getattr(torch, name)) for name in "uint8 int16 int32 int64 uint16 uint32 uint64".split()}
    floats = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
    tensors |= {f"bits.{name}": bits.clone().view(getattr(torch, name)).clone() for name in floats}
    tensors |= {f"float.{name}": numbers.to(getattr(torch, name)) for name in "float64 float16 bfloat16".split()}
    z = torch.complex(numbers, numbers.flip(1))
    tensors |= {
        "negated": z.clone().conj().imag,
        "negative": numbers.long(),
        "subclass": numbers.as_subclass(Attributed),
        "array.rows": numbers.numpy(),
        "array.columns": numbers.double().numpy().T,
        "array.bools": (numbers > 0).numpy(),
    }
    refused = {
        "complex": z,
        "empty": numbers[:0],
        "nested": torch.nested.nested_tensor([numbers[0], numbers[1, :3]]),
        "per_channel": torch.quantize_per_channel(numbers, torch.ones(3), torch.zeros(3), 0, torch.qint8),
        "quantised": torch.quantize_per_tensor(numbers, 0.5, 3, torch.quint8),
        "sparse": numbers.to_sparse(),
    }
    arrays = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in tensors.items() if name in ARRAYS}
    np.save(HERE / "array.npy", arrays["array.columns"])
    np.savez(HERE / "arrays.npz", **arrays, complex=z.numpy(), text=np.array(["a"]))
    np.savez_compressed(HERE / "arrays_packed.npz", **arrays, complex=z.numpy(), text=np.array(["a"]))
    for name, options in [("dtypes", {}), ("dtypes_old", {"_use_new_zipfile_serialization": False})]:
        torch.save(tensors | refused, HERE / f"{name}.pt", **options)
    tensors = {name: torch.as_tensor(x).as_subclass(torch.Tensor).resolve_neg() for name, x in tensors.items()}
    save("dtypes", {name: x.float() if name.startswith("bits") else x.clone() for name, x in tensors.items()})


class Adapted(nn.Module):
    """A layer of each kind that PEFT adapts."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.conv = nn.Conv1d(8, 6, 3, padding=1)
        self.grouped = nn.Conv2d(6, 9, (1, 3), padding=(0, 1), groups=3)
        self.mix = nn.Linear(9, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = self.conv(self.embed(x).transpose(1, 2))
        x = self.grouped(x[:, :, None])[:, :, 0].transpose(1, 2)
        return self.head(self.mix(x).tanh())


def save_peft():
    """Adapters of PEFT, the weights below them, and results."""
    import peft

    generator = own_generator("peft")
    net = Adapted()
    fill(net, generator)
    ids = torch.tensor([[0, 3, 6, 1], [2, 2, 5, 4]])
    tensors = {f"base.{name}": x.clone() for name, x in net.state_dict().items()} | {"ids": ids}
    gradients = {}
    for name, settings in {
        "plain": {"r": 3, "lora_alpha": 6, "bias": "lora_only", "modules_to_save": ["head"], "lora_dropout": 0.1},
        "patterns": {
            "r": 3,
            "lora_alpha": 7,
            "use_rslora": True,
            "rank_pattern": {"mix": 2, "embed": 4},
            "alpha_pattern": {"^grouped": 5, "m[a-z]x": 3},
        },
        "magnitudes": {"r": 2, "lora_alpha": 3, "use_dora": True, "target_modules": ["embed", "conv", "mix"]},
        "biased": {"r": 3, "lora_alpha": 6, "lora_bias": True, "target_modules": ["conv", "grouped", "mix"]},
    }.items():
        settings = {"target_modules": ["embed", "conv", "grouped", "mix"]} | settings
        config = peft.LoraConfig(**settings)
        model = peft.get_peft_model(Adapted(), config)
        model.base_model.model.load_state_dict(net.state_dict(), strict=False)
        base = {key: x for key, x in model.state_dict().items() if "lora_" not in key}
        for key, x in base.items():
            plain = key.removeprefix("base_model.model.").replace(".base_layer.", ".").replace(".original_module.", ".")
            plain = plain.replace(".modules_to_save.default.", ".")
            x.copy_(net.state_dict()[plain])
        with torch.no_grad():
            for key, x in model.named_parameters():
                if "lora_" in key or x.requires_grad:
                    x.copy_(exact(x.shape, generator) / 2)
        model.eval()
        output = model(ids)
        tensors[f"{name}.output"] = output.detach()
        if name in ("magnitudes", "biased"):
            output.square().mean().backward()
            for key, x in model.named_parameters():
                if x.grad is not None:
                    plain = key.removeprefix("base_model.model.").replace(".default", "")
                    gradients[f"{name}.{plain}"] = x.grad.clone()
        folder = HERE / "peft" / name
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
    tensors["base.output"] = net(ids).detach()
    save("peft/answers", tensors)
    save("peft/gradients", gradients)


def check_peft(directory):
    """Loads adapters that this framework saved in folders below, with the expected results, and compares these."""
    import peft

    answers = load_file(HERE / "peft" / "answers.safetensors")
    for folder in sorted(directory.iterdir()):
        net = Adapted()
        net.load_state_dict({name: answers[f"base.{name}"] for name in net.state_dict()})
        model = peft.PeftModel.from_pretrained(net, folder)
        want = load_file(folder / "output.safetensors")["output"]
        error = (model(answers["ids"]) - want).abs().max().item()
        print(f"{folder.name}: error {error:.1e}, of {want.abs().max().item():.1e}")
        if error > 1e-5:
            sys.exit("error: not what it should compute")


class Decoder(nn.Module):
    """The other parts of small image networks."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding="same")
        self.norm = nn.GroupNorm(2, 8)
        self.line = nn.InstanceNorm2d(8, affine=True)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.shuffle = nn.Conv2d(8, 16, 1, groups=4)
        self.slopes = nn.PReLU(4)
        self.head = nn.Conv2d(16, 2, (1, 3), padding=(0, 1), padding_mode="reflect")

    def forward(self, x):
        x = F.hardswish(self.norm(self.stem(x)))
        y = self.slopes(self.up(self.line(x)))
        z = F.pixel_shuffle(self.shuffle(x), 2)
        n, c, h, w = y.shape
        near = F.interpolate(x[:, :4], size=(h, w), mode="nearest")
        smooth = F.interpolate(x[:, 4:], scale_factor=2, mode="bilinear", align_corners=False)
        y = torch.cat([y, z, near, smooth], 1)
        y = F.silu(y) + F.hardsigmoid(y) * F.elu(y) - F.leaky_relu(y, 0.1).clamp(-1, 2)
        y = F.avg_pool2d(F.max_pool2d(y, 3, 2, 1), 2, ceil_mode=True, count_include_pad=False)
        y = self.head(y)
        return F.adaptive_avg_pool2d(y, 1).flatten(1) + y.amax((2, 3)) + y.view(n, 2, -1).std(-1)


class Words(nn.Module):
    """A transformer on a sequence of tokens."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.places = nn.Parameter(torch.zeros(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True, activation="gelu")
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, words):
        n, length = words.shape
        x = self.words(words) + self.places[:length]
        mask = torch.full((length, length), float("-inf")).triu(1)
        x = self.norm(self.layer(x, src_mask=mask))
        return torch.log_softmax(self.head(x.tanh()), -1), x.mean(1).argmax(-1)


class Masked(nn.Module):
    """Attention with a boolean mask, in which some queries see no key."""

    def forward(self, x):
        sees = (x[..., :1] > 0) & (x[..., 1].unsqueeze(-2) > -0.5)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=sees)


def plain(path):
    """Removes the source locations of nodes: paths of this machine."""
    import onnx

    model = onnx.load(path)
    del model.metadata_props[:], model.graph.metadata_props[:], model.graph.value_info[:]
    for node in model.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    for value in [*model.graph.input, *model.graph.output, *model.graph.initializer]:
        del value.metadata_props[:]
    onnx.save(model, path)


def save_onnx():
    """Models from `torch.onnx`, by the exporters of TorchScript and of `torch.export`."""
    folder = HERE / "onnx"
    folder.mkdir(exist_ok=True)
    resnet = modules.ResNet((1, 2, 1, 1), 2, 10)
    for name, module, spec in [
        ("resnet", resnet, (2, 3, 37, 41)),
        ("decoder", Decoder(), (2, 3, 10, 8)),
        ("words", Words(), cases.ints(11, (2, 6))),
        ("masked", Masked(), (2, 3, 7, 4)),
    ]:
        generator = own_generator(name)
        module = module.double()
        fill(module, generator)
        module = module.float().eval()
        x = draw(spec, generator, 2**-6)
        with torch.no_grad():
            y = module.double()(x)
        x = x.float() if x.is_floating_point() else x
        y = y if isinstance(y, tuple) else (y,)
        save(f"onnx/{name}", {"input.0": x.float(), **{f"output.{k}": y.double() for k, y in enumerate(y)}})
        module = module.float()
        files = {"script": {"dynamo": False}, "export": {"dynamo": True, "external_data": False}}
        if name == "resnet":
            # The other two fold normalisation into the preceding convolutions.
            kept = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
            files["norms"] = {"dynamo": False, "opset_version": 13, **kept}
        if name == "masked":
            # From operator set 23 on, attention is one operator.
            files = {"export": {"dynamo": True, "external_data": False, "opset_version": 23}}
        for suffix, settings in files.items():
            path = folder / f"{name}_{suffix}.onnx"
            torch.onnx.export(module, (x,), path, **settings)
            plain(path)
            print(f"{path.name}: {path.stat().st_size:,} bytes")


def make():
    save_pickled()
    save_types()
    generator = torch.Generator().manual_seed(1)
    save_cases("layers", [(case.torch, of_case(case, generator)) for case in cases.LAYERS] + later(cases.LATER_LAYERS))
    save_cases("losses", [(case.torch, of_case(case, generator)) for case in cases.LOSSES] + later(cases.LATER_LOSSES))
    optimizers = [(name, of_optimizer(name, generator)) for name in cases.OPTIMIZERS]
    more = [(name, of_optimizer(name, own_generator(name), steps)) for name, steps in cases.LATER_OPTIMIZERS.items()]
    save_cases("optimizers", optimizers + more)
    save_cases("schedules", [(name, of_schedule(name, steps)) for name, steps in cases.SCHEDULES.items()])
    answers = []
    for model in MODELS + LATER_MODELS:
        state, answer, mode = of_model(model, own_generator(model.__name__) if model in LATER_MODELS else generator)
        save(model.__name__, state)
        answers.append((model.__name__ + mode, answer))
    save_cases("models", answers)
    save_cases("functions", later(cases.FUNCTIONS))
    save_cases("sequences", later(cases.SEQUENCES))
    save_cases("windows", later(cases.WINDOWS))
    save_cases("penalties", later(cases.PENALTIES))
    save_cases("attention", later(cases.ATTENTION))
    save_onnx()


def check_ours(directory):
    """Loads files of this framework, strictly, and compares the results with the golden output."""
    answers = load_file(HERE / "models.safetensors")
    for i, model in enumerate(MODELS + LATER_MODELS):
        module, inputs, call = model()
        state = load_file(directory / f"{model.__name__}.safetensors")
        dtypes = {str(x.dtype) for x in state.values()}
        module.double().load_state_dict(state, strict=True)
        values = {name: answers[f"{i}.input.{name}"] for name in inputs}
        values = {name: x.double() if x.is_floating_point() else x for name, x in values.items()}
        with torch.no_grad():
            y = eval(call, {**NAMES, "m": module, **values})
        want = answers[f"{i}.output"]
        error = ((y - want).abs().max() / want.abs().max()).item()
        print(f"{model.__name__}: {len(state)} tensors of {', '.join(dtypes)} loaded strictly, error of the output {error:.1e}")
        if error > 1e-12:
            sys.exit("error: not what it should compute")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check-ours", type=Path, metavar="DIR", help="load files of this framework instead")
    parser.add_argument("--onnx", action="store_true", help="write the files of ONNX alone")
    parser.add_argument("--peft", action="store_true", help="write the adapters of PEFT alone")
    parser.add_argument("--check-peft", type=Path, metavar="DIR", help="load adapters of this framework with PEFT instead")
    options = parser.parse_args()
    if options.onnx:
        save_onnx()
    elif options.peft:
        save_peft()
    elif options.check_peft:
        check_peft(options.check_peft)
    elif options.check_ours:
        check_ours(options.check_ours)
    else:
        make()
