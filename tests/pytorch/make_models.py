#!/usr/bin/env python3
"""The results of the models that `meganeura-models` has as well, computed in double precision by the packages themselves.

    python3 tests/pytorch/make_models.py
    python3 tests/pytorch/make_models.py --names resnet18

The numbers in the repository are of torch 2.15.0, torchvision 0.29.2, timm 1.0.31, transformers 5.24.0 and diffusers 0.42.1.

Parameters and inputs are stored nowhere. Both sides compute them from their names: see `numbers`. A small model of every class
gives the cases of `zoo.safetensors`, each with its outputs alone. `zoo.txt` has a line for every published size: its name, its
number of tensors, and a checksum of their names and shapes. The second line prints those of one size.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
import torchvision
from diffusers import AutoencoderKL, UNet2DConditionModel, UNet2DModel
from safetensors.torch import save_file
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig
from torchvision.models.mobilenetv2 import MobileNetV2
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.models.vision_transformer import VisionTransformer
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, Wav2Vec2Config, Wav2Vec2Model
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

HERE = Path(__file__).parent


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def uniform(name, count):
    """Numbers from -1 to below 1: a hash of the name, and of each number's index."""
    with np.errstate(over="ignore"):
        x = np.uint32(fnv1a(name.encode()) & 0xFFFFFFFF) + np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        x = x ^ (x >> np.uint32(16))
    return x.astype(np.float64) / 2**31 - 1


def numbers(name, shape):
    """A tensor of single-precision numbers. Weights keep the size of what passes through."""
    x = uniform(name, int(np.prod(shape)))
    if name.endswith("running_var"):
        x = 1 + 0.5 * x
    elif len(shape) > 1:
        x = x * (3 / np.prod(shape[1:])) ** 0.5
    elif name.endswith("weight"):
        x = 1 + 0.25 * x
    else:
        x = 0.1 * x
    return torch.from_numpy(x.astype(np.float32).astype(np.float64).reshape(shape))


def picture(name, shape):
    x = uniform(name, int(np.prod(shape))).astype(np.float32).astype(np.float64)
    return torch.from_numpy(x.reshape(shape))


def tokens(name, shape, count):
    x = (uniform(name, int(np.prod(shape))) + 1) / 2 * count
    return torch.from_numpy(x.astype(np.int64).reshape(shape))


def state_of(model):
    """The tensors of a file, each once: a tied one under its first name."""
    seen, state = set(), {}
    for name, x in model.state_dict(keep_vars=True).items():
        if id(x) not in seen and not name.endswith("num_batches_tracked"):
            state[name] = x
        seen.add(id(x))
    return state


class Narrow(ResNet):
    """A ResNet with an eighth of the channels."""

    def __init__(self, block, *args, num_classes=10, **options):
        super().__init__(block, *args, **options)
        self.fc = nn.Linear(64 * block.expansion, num_classes)

    def _make_layer(self, block, planes, *args, **options):
        if planes == 64:
            self.conv1 = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
            self.bn1 = self._norm_layer(8)
            self.inplanes = 8
        return super()._make_layer(block, planes // 8, *args, **options)


def group_norm(groups):
    return lambda channels: nn.GroupNorm(groups, channels)


def images(model):
    return model(picture("x", (2, 3, 32, 32)))


def mobilenet_v2():
    stages = [[1, 8, 1, 1], [2, 16, 2, 2], [3, 24, 1, 1]]
    return MobileNetV2(num_classes=10, inverted_residual_setting=stages, width_mult=0.5)


def mobilenet_v3():
    blocks = [[16, 3, 16, 16, True, "RE", 2, 1], [16, 5, 40, 24, False, "HS", 1, 1], [24, 3, 64, 24, True, "HS", 1, 1]]
    return MobileNetV3([InvertedResidualConfig(*block, width_mult=1.0) for block in blocks], 20, num_classes=10)


def efficientnet():
    scale = dict(width_mult=0.5, depth_mult=1.2)
    stages = [MBConvConfig(1, 3, 1, 32, 16, 1, **scale), MBConvConfig(4, 5, 2, 16, 24, 2, **scale)]
    return EfficientNet(stages, 0.2, num_classes=10, norm_layer=lambda channels: nn.BatchNorm2d(channels, eps=1e-3))


def efficientnet_v2():
    stages = [FusedMBConvConfig(1, 3, 1, 16, 16, 2), FusedMBConvConfig(2, 3, 2, 16, 24, 2), MBConvConfig(2, 3, 2, 24, 32, 2)]
    return EfficientNet(stages, 0.2, num_classes=10, last_channel=40)


def convnext():
    stages = [CNBlockConfig(8, 12, 2), CNBlockConfig(12, 20, 1), CNBlockConfig(20, None, 2)]
    return ConvNeXt(stages, num_classes=10)


def vit():
    return VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=24, mlp_dim=40, num_classes=10)


def gpt2():
    # No token ends a text: the tests compare a given number of tokens.
    return GPT2LMHeadModel(GPT2Config(vocab_size=29, n_positions=16, n_embd=24, n_layer=2, n_head=3, eos_token_id=None, bos_token_id=None))


def gpt2_text(model):
    """What follows a prompt, the most likely token each time."""
    prompt = tokens("prompt", (1, 5), 29)
    text = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=11, do_sample=False, pad_token_id=0)
    return text[0, 5:]


def bert():
    return BertModel(BertConfig(vocab_size=29, max_position_embeddings=12, hidden_size=24, num_hidden_layers=2,
                                num_attention_heads=3, intermediate_size=40))


def wav2vec2():
    return Wav2Vec2Model(Wav2Vec2Config(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, conv_dim=(8,) * 4, conv_stride=(5, 2, 2, 2),
        conv_kernel=(10, 3, 3, 2), num_feat_extract_layers=4, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=3))


def bert_masked(model):
    """Two sentences, the end of the second text hidden; the hidden tokens' own features are not compared."""
    visible = torch.ones(2, 9).double()
    visible[1, 6:] = 0
    features = model(tokens("x", (2, 9), 29), attention_mask=visible, token_type_ids=tokens("kinds", (2, 9), 2))
    return with_pooled(features.last_hidden_state * visible[..., None], features.pooler_output)


def timm_blocks(kind, blocks, **options):
    """One of timm's nets of blocks, which it describes by words."""
    from timm.models._efficientnet_builder import decode_arch_def

    return kind(decode_arch_def(blocks), num_classes=10, **options)


def timm_mobilenet_v2():
    from timm.models.efficientnet import EfficientNet

    blocks = [["ds_r1_k3_s1_c8"], ["ir_r2_k3_s2_e2_c16"], ["ir_r1_k3_s1_e3_c24"]]
    return timm_blocks(EfficientNet, blocks, num_features=1280, stem_size=32, act_layer=nn.ReLU6)


def timm_mobilenet_v3():
    from functools import partial

    from timm.models._efficientnet_blocks import SqueezeExcite
    from timm.models._efficientnet_builder import round_channels
    from timm.models.mobilenetv3 import MobileNetV3

    blocks = [["ds_r1_k3_s2_e1_c16_se0.25_nre"], ["ir_r2_k5_s1_e3_c24"], ["ir_r1_k3_s1_e2_c32_se0.25"], ["cn_r1_k1_s1_c192"]]
    squeeze = partial(SqueezeExcite, gate_layer="hard_sigmoid", force_act_layer=nn.ReLU, rd_round_fn=round_channels)
    # The argument is the width behind the mean.
    return timm_blocks(MobileNetV3, blocks, num_features=20, stem_size=16, fix_stem=True, act_layer=nn.Hardswish, se_layer=squeeze)


def timm_efficientnet():
    from timm.models.efficientnet import EfficientNet

    blocks = [["ds_r2_k3_s1_e1_c8_se0.25"], ["ir_r2_k5_s2_e4_c16_se0.25"]]
    return timm_blocks(EfficientNet, blocks, num_features=40, stem_size=16, act_layer=nn.SiLU)


def timm_efficientnet_v2():
    from timm.models.efficientnet import EfficientNet

    blocks = [["cn_r2_k3_s1_e1_c16_skip"], ["er_r2_k3_s2_e2_c24"], ["ir_r2_k3_s2_e2_c32_se0.25"]]
    return timm_blocks(EfficientNet, blocks, num_features=40, stem_size=16, act_layer=nn.SiLU)


def timm_convnext():
    from timm.models.convnext import ConvNeXt as Net

    return Net(depths=(2, 1, 1, 1), dims=(8, 12, 14, 16), num_classes=10)


def timm_vit():
    from timm.models.vision_transformer import VisionTransformer as Net

    return Net(img_size=32, patch_size=8, depth=2, num_heads=3, embed_dim=24, mlp_ratio=40 / 24, num_classes=10)


def with_pooled(features, pooled):
    return torch.cat([features, pooled[:, None]], 1)


def bert_plain(model):
    features = model(tokens("x", (2, 9), 29))
    return with_pooled(features.last_hidden_state, features.pooler_output)


def unet(**options):
    return UNet2DModel(
        in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_eps=1e-6, downsample_padding=0, flip_sin_to_cos=False, freq_shift=1, **options)


def unet_text():
    return UNet2DConditionModel(
        in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=2,
        cross_attention_dim=12, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))


def vae(levels=2, **options):
    return AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * levels, up_block_types=("UpDecoderBlock2D",) * levels, **options)


def denoise(channels, *conditions):
    return lambda model: model(picture("x", (2, channels, 8, 8)), picture("t", (2,)) * 8, *(condition() for condition in conditions)).sample


def encode_and_decode(model):
    latents = model.encode(picture("x", (2, 3, 16, 16))).latent_dist
    image = model.decode(latents.mean).sample
    return torch.cat([latents.mean, latents.logvar, image.mean(1).reshape(2, 4, 8, 8)], 1)


# The small models: their name, and their class's instance with the function that calls it.
CASES = {
    "resnet_basic": (lambda: Narrow(BasicBlock, [1, 2, 1, 1]), images),
    "resnet_bottleneck": (lambda: Narrow(Bottleneck, [1, 2, 1, 1], groups=4, width_per_group=8), images),
    "resnet_group_norm": (lambda: Narrow(BasicBlock, [1, 1, 1, 1], norm_layer=group_norm(2)), images),
    "mobilenet_v2": (mobilenet_v2, images),
    "mobilenet_v3": (mobilenet_v3, images),
    "efficientnet": (efficientnet, images),
    "efficientnet_v2": (efficientnet_v2, images),
    "convnext": (convnext, images),
    "unet": (unet, denoise(3)),
    "unet_text": (unet_text, denoise(4, lambda: picture("text", (2, 5, 12)))),
    "unet_class": (lambda: unet(num_class_embeds=7), denoise(3, lambda: tokens("class", (2,), 7))),
    "vae": (lambda: vae(block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4), encode_and_decode),
    "vit": (vit, images),
    "gpt2": (gpt2, lambda model: model(tokens("x", (2, 9), 29)).logits),
    "bert": (bert, bert_plain),
    "bert_masked": (bert, bert_masked),
    "wav2vec2": (wav2vec2, lambda model: model(picture("x", (2, 500))).last_hidden_state),
    "timm_convnext": (timm_convnext, images),
    "timm_efficientnet": (timm_efficientnet, images),
    "timm_efficientnet_v2": (timm_efficientnet_v2, images),
    "timm_mobilenet_v2": (timm_mobilenet_v2, images),
    "timm_mobilenet_v3": (timm_mobilenet_v3, images),
    "timm_vit": (timm_vit, images),
}


def of_torchvision(name):
    return lambda: getattr(torchvision.models, name)()


def of_timm(name):
    import timm

    return lambda: timm.create_model(name)


def of_gpt2(layers, heads, width):
    return lambda: GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=heads, n_embd=width))


def of_bert(vocabulary, layers, heads, width):
    config = BertConfig(vocab_size=vocabulary, num_hidden_layers=layers, num_attention_heads=heads, hidden_size=width,
                        intermediate_size=4 * width)
    return lambda: BertModel(config)


def of_wav2vec2(layers, heads, width):
    return lambda: Wav2Vec2Model(Wav2Vec2Config(
        num_hidden_layers=layers, num_attention_heads=heads, hidden_size=width, intermediate_size=4 * width))


def ddpm_cifar10():
    return UNet2DModel(
        block_out_channels=(128, 256, 256, 256), layers_per_block=2, attention_head_dim=None,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"))


# The published sizes.
EFFICIENTNETS = [*(f"b{size}" for size in range(8)), "v2_s", "v2_m", "v2_l"]
# Layers, heads and width, as in the configurations beside the published files; BERT's begin with the vocabulary.
GPT2 = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280), "gpt2-xl": (48, 25, 1600)}
BERT = {"bert-base-uncased": (30522, 12, 12, 768), "bert-base-cased": (28996, 12, 12, 768),
        "bert-large-uncased": (30522, 24, 16, 1024)}
WAV2VEC2 = {"wav2vec2-base": (12, 12, 768), "wav2vec2-large": (24, 16, 1024)}
TIMM = ["efficientnet_b0", "efficientnet_b4", "efficientnetv2_s", "mobilenetv2_100", "mobilenetv3_large_100",
        "mobilenetv3_small_100", "convnext_tiny", "vit_base_patch16_224"]
RESNETS = ["18", "34", "50", "101", "152"]
SIZES = {
    **{f"resnet{size}": of_torchvision(f"resnet{size}") for size in RESNETS},
    "resnet50_gn": of_timm("resnet50_gn"),
    **{name: of_torchvision(name) for name in ["resnext50_32x4d", "resnext101_32x8d", "wide_resnet50_2", "wide_resnet101_2"]},
    **{name: of_torchvision(name) for name in ["mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"]},
    **{f"efficientnet_{size}": of_torchvision(f"efficientnet_{size}") for size in EFFICIENTNETS},
    **{f"convnext_{size}": of_torchvision(f"convnext_{size}") for size in ["tiny", "small", "base", "large"]},
    **{f"vit_{size}": of_torchvision(f"vit_{size}") for size in ["b_16", "b_32", "l_16", "l_32", "h_14"]},
    **{name: of_gpt2(*size) for name, size in GPT2.items()},
    "ddpm-cifar10-32": ddpm_cifar10,
    "stable-diffusion-v1": lambda: UNet2DConditionModel(attention_head_dim=8, cross_attention_dim=768),
    "stable-diffusion-v2": lambda: UNet2DConditionModel(attention_head_dim=(5, 10, 20, 20), cross_attention_dim=1024,
                                                        use_linear_projection=True),
    "stable-diffusion-vae": lambda: vae(4, block_out_channels=(128, 256, 512, 512), layers_per_block=2),
    **{name: of_bert(*size) for name, size in BERT.items()},
    **{name: of_wav2vec2(*size) for name, size in WAV2VEC2.items()},
    **{f"timm/{name}": of_timm(name) for name in TIMM},
}


def sampling():
    """The probabilities of tokens at a temperature, among the most likely ones."""
    scores = 4 * picture("scores", (1, 20))
    warpers = [TemperatureLogitsWarper(0.7), TopKLogitsWarper(12), TopPLogitsWarper(0.8)]
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(-1)[0]


def names_of(model):
    """The line of every tensor: its name and its extents."""
    return sorted(" ".join([name, *map(str, x.shape)]) for name, x in state_of(model).items())


def line_of(name, model):
    lines = names_of(model)
    checksum = fnv1a("".join(line + "\n" for line in lines).encode())
    parameters = sum(x.numel() for x in state_of(model).values())
    return f"{name} {len(lines)} {parameters} {checksum:016x}\n"


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", metavar="SIZE", help="print the names and shapes of a published size, or of a small model")
    only = parser.parse_args().names
    if only:
        with torch.device("meta"):
            print("\n".join(names_of(SIZES[only]() if only in SIZES else CASES[only][0]())))
        return
    tensors, lines = {}, []
    for index, (name, (build, call)) in enumerate(CASES.items()):
        model = build().double().eval()
        for key, x in state_of(model).items():
            x.copy_(numbers(key, tuple(x.shape)))
        output = call(model)
        assert output.isfinite().all() and output.std() > 1e-3, (name, output.std())
        tensors[f"{index}.output"] = output.double().contiguous()
        lines.append(line_of(f"small/{name}", model))
        print(name, tuple(output.shape), float(output.abs().max()), file=sys.stderr)
        if name == "gpt2":
            tensors["text"] = gpt2_text(model).double()
    tensors["shares"] = sampling()
    save_file(tensors, HERE / "zoo.safetensors", metadata={"cases": "\n".join(CASES)})
    for name, build in SIZES.items():
        with torch.device("meta"):
            lines.append(line_of(name, build()))
    (HERE / "zoo.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
