"""The comparisons: PyTorch expressions, which are also the names of the cases, and the shapes of the inputs."""

from dataclasses import dataclass


@dataclass
class Case:
    """An expression of a module (`nn.…`) or of a value (`F.…`, or a function of `modules.py`), and its inputs: a shape, or `ints` of one."""

    torch: str
    inputs: dict
    # The call of a module.
    call: str = "m(x)"
    # Floats are multiples of this: multiples of 0.5 give zeros, ties and numbers at a threshold.
    unit: float = 2**-10


@dataclass
class ints:
    """Integers below `end`."""

    end: int
    shape: tuple


def case(torch, call="m(x)", unit=2**-10, **inputs):
    return Case(torch, inputs, call, unit)


LAYERS = [
    case("nn.Linear(5, 3)", x=(1, 5)),
    case("nn.Linear(7, 4, bias=False)", x=(2, 3, 7)),
    case("nn.Conv2d(3, 5, (3, 2), stride=(1, 2), padding=(1, 0))", x=(1, 3, 7, 5)),
    case("nn.Conv2d(4, 6, 3, stride=(2, 3), padding=(2, 1), dilation=(2, 1), groups=2, bias=False)", x=(3, 4, 9, 8)),
    case("nn.Conv2d(3, 6, (2, 3), padding=(0, 2), groups=3)", x=(2, 3, 5, 7)),
    case("nn.Conv2d(5, 3, 1, stride=2)", x=(2, 5, 5, 4)),
    case("nn.Conv2d(8, 8, 3, padding=1)", x=(2, 8, 11, 13)),
    case("nn.Conv2d(2, 3, (4, 5))", x=(1, 2, 4, 5)),
    case("nn.ConvTranspose2d(3, 2, 3)", x=(1, 3, 4, 5)),
    case(
        "nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(1, 2), groups=2)",
        x=(2, 4, 3, 5),
    ),
    case("nn.ConvTranspose2d(3, 3, (2, 3), stride=(3, 1), padding=(0, 2), groups=3, bias=False)", x=(3, 3, 5, 3)),
    case("nn.BatchNorm2d(3)", x=(4, 3, 5, 3)),
    case("nn.BatchNorm2d(3, eps=0.1, momentum=0.3)", x=(1, 3, 3, 5)),
    case("nn.BatchNorm2d(5, affine=False)", x=(7, 5, 1, 1)),
    case("nn.BatchNorm2d(3).eval()", x=(1, 3, 5, 3)),
    case("nn.BatchNorm2d(2, eps=0.1, affine=False).eval()", x=(3, 2, 1, 1)),
    case("nn.GroupNorm(2, 6, eps=0.1)", x=(1, 6, 3, 5)),
    case("nn.GroupNorm(3, 3)", x=(3, 3, 5, 7)),
    case("nn.LayerNorm(7)", x=(3, 2, 7)),
    case("nn.LayerNorm((3, 5), eps=0.1, elementwise_affine=False)", x=(1, 2, 3, 5)),
    case("nn.InstanceNorm2d(3)", x=(2, 3, 5, 3)),
    case("nn.InstanceNorm2d(3, eps=0.1, affine=True)", x=(1, 3, 3, 7)),
    case("nn.Embedding(7, 3)", x=ints(7, (5, 3))),
    case("nn.Embedding(5, 3, padding_idx=2)", x=ints(5, (3, 7))),
    case("nn.MultiheadAttention(6, 2, batch_first=True)", "m(x, x, x)[0]", x=(2, 5, 6)),
    case("nn.MultiheadAttention(3, 1, bias=False, batch_first=True)", "m(x, x, x)[0]", x=(1, 2, 3)),
    case(
        "nn.MultiheadAttention(4, 2, batch_first=True)", "m(x, context, context, attn_mask=mask)[0]",
        x=(2, 3, 4), context=(2, 5, 4), mask=(3, 5),
    ),
    case("SelfAttention2d(6, 3)", x=(2, 6, 3, 5)),
    case("SinusoidalEmbedding(6)", x=(5,)),
    case("nn.MaxPool2d(2)", x=(1, 2, 6, 4)),
    case("nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))", x=(2, 3, 7, 5)),
    case("nn.MaxPool2d(3, stride=2, padding=1)", x=(2, 2, 7, 9), unit=0.5),
    case("nn.AvgPool2d((3, 2))", x=(1, 2, 7, 5)),
    case("nn.AvgPool2d(3, stride=(2, 1), padding=1)", x=(2, 2, 5, 7)),
    case("nn.AvgPool2d((3, 2), stride=2, padding=(1, 0), count_include_pad=False)", x=(2, 2, 5, 7)),
    case("nn.AdaptiveAvgPool2d((3, 2))", x=(2, 3, 7, 5)),
    case("nn.AdaptiveAvgPool2d((5, 3))", x=(1, 2, 2, 4)),
    case("nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())", x=(2, 3, 5, 3)),
    case("nn.Upsample(scale_factor=(2, 3))", x=(2, 2, 3, 5)),
    case("nn.Upsample(scale_factor=(3, 2), mode='bilinear')", x=(1, 2, 3, 5)),
    case("nn.Upsample(scale_factor=(2, 3), mode='bilinear', align_corners=True)", x=(2, 2, 3, 1)),
    case("F.interpolate(x, size=(5, 2), mode='bilinear')", x=(2, 2, 3, 7)),
    case("F.interpolate(x, size=(2, 9), mode='bilinear', align_corners=True)", x=(1, 3, 5, 4)),
    case("nn.PixelShuffle(2)", x=(2, 8, 3, 1)),
    case("nn.PixelUnshuffle(3)", x=(1, 2, 6, 3)),
    case("nn.Dropout(0.3).eval()", x=(3, 5)),
    case("nn.Flatten()", x=(2, 3, 1, 5)),
    case("nn.ReLU()", x=(5, 7), unit=0.5),
    case("nn.LeakyReLU(0.2)", x=(5, 7), unit=0.5),
    case("nn.ELU(1.3)", x=(5, 7), unit=0.5),
    case("nn.GELU()", x=(5, 7)),
    case("nn.GELU(approximate='tanh')", x=(5, 7)),
    case("nn.SiLU()", x=(5, 7)),
    case("nn.Sigmoid()", x=(5, 7)),
    case("nn.Tanh()", x=(5, 7)),
    case("nn.Softplus()", x=(5, 7)),
    case("nn.ReLU6()", x=(5, 7)),
    case("nn.Hardsigmoid()", x=(5, 7)),
    case("nn.Hardswish()", x=(5, 7)),
]

# Each of these draws its numbers from its name, so a new case does not change the others. Add cases here.
LATER_LAYERS = [
    case("nn.BatchNorm1d(3)", x=(7, 3)),
    case("nn.BatchNorm1d(3, eps=0.1, momentum=0.3)", x=(2, 3, 5)),
    case("nn.BatchNorm1d(5, affine=False)", x=(1, 5, 4)),
    case("nn.BatchNorm1d(3).eval()", x=(1, 3)),
    case("nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode='reflect')", x=(2, 2, 5, 4)),
    case("nn.Conv2d(2, 4, (3, 2), stride=2, padding=(1, 2), groups=2, bias=False, padding_mode='replicate')", x=(1, 2, 4, 7)),
    case("nn.Conv2d(1, 2, 3, padding=3, padding_mode='circular')", x=(2, 1, 3, 5)),
    case("F.pad(x, (3, 1, 0, 2), mode='reflect')", x=(2, 3, 4, 5)),
    case("F.pad(x, (7, 0, 1, 2), mode='replicate')", x=(1, 2, 3, 2)),
    case("F.pad(x, (2, 5, 3, 0), mode='circular')", x=(2, 1, 3, 5)),
    case("nn.Upsample(scale_factor=(2, 3), mode='bicubic')", x=(1, 2, 3, 5)),
    case("F.interpolate(x, size=(5, 2), mode='bicubic')", x=(2, 2, 3, 7)),
    case("F.interpolate(x, size=(2, 9), mode='bicubic', align_corners=True)", x=(1, 3, 5, 4)),
    case("F.grid_sample(x, grid, align_corners=False)", x=(2, 3, 4, 5), grid=(2, 3, 5, 2)),
    case("F.grid_sample(x, grid, padding_mode='border', align_corners=True)", x=(1, 2, 5, 3), grid=(1, 7, 2, 2)),
    case("F.grid_sample(x, w, mode='nearest', align_corners=True)", x=(2, 2, 5, 4), w=(2, 4, 3, 2)),
    case("F.grid_sample(x, w, mode='nearest', padding_mode='border', align_corners=False)", x=(1, 3, 3, 7), w=(1, 5, 5, 2)),
    case("nn.Mish()", x=(5, 7)),
    case("nn.SELU()", x=(5, 7), unit=0.5),
    case("nn.Identity()", x=(5, 7)),
    case("nn.Softmax(1)", x=(2, 3, 4)),
    case("nn.LogSoftmax(-1)", x=(2, 3, 4)),
    case("nn.PReLU()", x=(5, 7), unit=0.5),
    case("nn.PReLU(3)", x=(2, 3, 4), unit=0.5),
]

# Layers over sequences and volumes, with separate random numbers.
SEQUENCES = [
    case("nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True)", x=(2, 3, 4)),
    case(
        "nn.TransformerEncoderLayer(4, 2, 3, 0.0, F.gelu, batch_first=True, norm_first=True)",
        "m(x, nn.Transformer.generate_square_subsequent_mask(5, dtype=x.dtype), is_causal=True)", x=(2, 5, 4),
    ),
    case(
        "nn.TransformerEncoderLayer(4, 1, 6, 0.0, layer_norm_eps=0.1, batch_first=True)",
        "m(x, src_key_padding_mask=torch.arange(5) > lengths[:, None])", x=(3, 5, 4), lengths=ints(5, (3,)),
    ),
    case("nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True)", "m(x, t)", x=(2, 3, 4), t=(2, 5, 4)),
    case(
        "nn.TransformerDecoderLayer(6, 3, 5, 0.0, norm_first=True, batch_first=True)",
        "m(x, t, nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype), tgt_is_causal=True)",
        x=(2, 3, 6), t=(2, 4, 6),
    ),
    case("nn.Conv1d(3, 5, 3, stride=2, padding=1)", x=(2, 3, 9)),
    case("nn.Conv1d(4, 6, 3, stride=2, padding=3, dilation=2, groups=2, bias=False)", x=(3, 4, 8)),
    case("nn.Conv1d(3, 6, 4, groups=3)", x=(1, 3, 4)),
    case("nn.ConvTranspose1d(3, 2, 3)", x=(2, 3, 5)),
    case(
        "nn.ConvTranspose1d(4, 6, 3, stride=3, padding=1, output_padding=2, dilation=2, groups=2, bias=False)", x=(2, 4, 5)
    ),
    case("nn.MaxPool1d(3, stride=2, padding=1, dilation=2)", x=(2, 3, 9)),
    case("nn.AvgPool1d(3, stride=2, padding=1)", x=(2, 2, 8)),
    case("nn.AvgPool1d(2, count_include_pad=False, padding=1)", x=(1, 3, 7)),
    case("nn.AdaptiveAvgPool1d(3)", x=(2, 3, 7)),
    case("nn.AdaptiveAvgPool1d(5)", x=(1, 2, 3)),
    case("nn.RNN(3, 4, batch_first=True)", "recurrent(m, x)", x=(2, 5, 3)),
    case(
        "nn.RNN(2, 3, 2, nonlinearity='relu', bias=False, bidirectional=True, batch_first=True)",
        "recurrent(m, x, h, lengths=1 + lengths)", x=(3, 4, 2), h=(4, 3, 3), lengths=ints(4, (3,)),
    ),
    case("nn.LSTM(3, 4, batch_first=True)", "recurrent(m, x)", x=(2, 5, 3)),
    case("nn.LSTM(3, 4, bias=False, batch_first=True)", "recurrent(m, x, h, c)", x=(1, 3, 3), h=(1, 1, 4), c=(1, 1, 4)),
    case(
        "nn.LSTM(3, 2, num_layers=2, bidirectional=True, batch_first=True)", "recurrent(m, x, lengths=1 + lengths)",
        x=(4, 5, 3), lengths=ints(5, (4,)),
    ),
    case("nn.LSTM(2, 3, num_layers=3, dropout=0.5, batch_first=True).eval()", "recurrent(m, x)", x=(2, 3, 2)),
    case("nn.GRU(3, 4, batch_first=True)", "recurrent(m, x)", x=(2, 5, 3)),
    case("nn.GRU(3, 4, bias=False, batch_first=True)", "recurrent(m, x, h)", x=(2, 3, 3), h=(1, 2, 4)),
    case(
        "nn.GRU(3, 2, num_layers=2, bidirectional=True, batch_first=True)", "recurrent(m, x, h, lengths=1 + lengths)",
        x=(3, 5, 3), h=(4, 3, 2), lengths=ints(5, (3,)),
    ),
    case("nn.RNNCell(3, 4, nonlinearity='relu')", "m(x, h)", x=(2, 3), h=(2, 4)),
    case("nn.LSTMCell(3, 4)", "torch.cat(m(x, (h, c)))", x=(2, 3), h=(2, 4), c=(2, 4)),
    case("nn.GRUCell(3, 4)", "m(x, h)", x=(2, 3), h=(2, 4)),
    case("nn.RMSNorm(7, eps=1e-5)", x=(3, 2, 7)),
    case("nn.RMSNorm((3, 5), eps=0.1, elementwise_affine=False)", x=(2, 3, 5)),
    case("nn.GLU()", x=(2, 3, 6)),
    case("nn.GLU(dim=1)", x=(2, 6, 3)),
    case("SwiGlu(4, 6)", x=(2, 3, 4)),
    case("SwiGlu(4, 3, bias=True)", x=(5, 4)),
    case("RotaryEmbedding(6)", x=(2, 3, 4, 6)),
    case("RotaryEmbedding(4, base=100.0, offset=7)", x=(3, 2, 4)),
    case("nn.Conv3d(2, 3, 3)", x=(2, 2, 4, 5, 3)),
    case("nn.Conv3d(3, 4, (2, 3, 1), stride=(2, 1, 2), padding=(1, 1, 0), dilation=(2, 1, 1))", x=(2, 3, 5, 4, 3)),
    case("nn.Conv3d(4, 6, (3, 2, 2), stride=(1, 2, 1), padding=(2, 0, 1), groups=2, bias=False)", x=(2, 4, 3, 4, 3)),
    case("nn.Conv3d(3, 6, (1, 2, 2), groups=3)", x=(1, 3, 2, 3, 4)),
    case("nn.Conv3d(2, 2, 2, stride=3)", x=(1, 2, 8, 5, 4)),
    case("nn.MaxPool3d(2)", x=(2, 2, 4, 5, 6)),
    case("nn.MaxPool3d((3, 2, 2), stride=(2, 1, 1), padding=(1, 0, 1), dilation=(1, 2, 1))", x=(1, 2, 5, 4, 4), unit=0.5),
    case("nn.AvgPool3d((2, 3, 2))", x=(1, 2, 5, 6, 4)),
    case("nn.AvgPool3d(3, stride=(1, 2, 2), padding=(1, 0, 1))", x=(2, 2, 3, 5, 4)),
    case("nn.AvgPool3d(2, stride=1, padding=1, count_include_pad=False)", x=(1, 2, 3, 2, 3)),
]

# Options of convolutions and of pooling, in each number of dimensions.
WINDOWS = [
    case("nn.Conv1d(3, 4, 4, padding='same')", x=(2, 3, 7)),
    case("nn.Conv1d(4, 4, 2, padding='same', dilation=3, groups=2, padding_mode='circular')", x=(2, 4, 6)),
    case("nn.Conv1d(2, 3, 3, stride=2, padding=2, padding_mode='reflect', bias=False)", x=(2, 2, 5)),
    case("nn.Conv1d(2, 3, 3, padding=4, padding_mode='replicate')", x=(1, 2, 4)),
    case("nn.Conv2d(2, 3, (4, 3), padding='same', dilation=(1, 2))", x=(2, 2, 5, 6)),
    case("nn.Conv2d(2, 4, (2, 3), padding='same', groups=2, padding_mode='reflect')", x=(1, 2, 4, 5)),
    case("nn.Conv3d(2, 3, (2, 3, 4), padding='same')", x=(1, 2, 3, 4, 5)),
    case("nn.Conv3d(2, 2, 2, padding='same', dilation=(3, 1, 2), padding_mode='replicate')", x=(1, 2, 3, 4, 3)),
    case("nn.Conv3d(2, 3, (3, 2, 3), stride=(1, 2, 2), padding=(2, 1, 1), padding_mode='circular')", x=(2, 2, 3, 4, 3)),
    case("nn.Conv3d(2, 2, 3, padding=(1, 2, 1), padding_mode='reflect', bias=False)", x=(1, 2, 3, 4, 2)),
    case("nn.ConvTranspose3d(2, 3, 2)", x=(2, 2, 3, 2, 4)),
    case(
        "nn.ConvTranspose3d(4, 6, (3, 2, 3), stride=(2, 3, 1), padding=(1, 0, 2), output_padding=(1, 2, 0), groups=2)",
        x=(2, 4, 3, 2, 4),
    ),
    case(
        "nn.ConvTranspose3d(2, 2, (2, 3, 1), stride=(1, 2, 2), output_padding=(1, 0, 1), dilation=(2, 3, 1), bias=False)",
        x=(1, 2, 2, 3, 2),
    ),
    case("nn.ConvTranspose3d(3, 3, (1, 2, 2), stride=3, padding=(0, 1, 1), output_padding=2, groups=3)", x=(1, 3, 1, 2, 3)),
    case("nn.MaxPool1d(2, ceil_mode=True)", x=(2, 2, 5)),
    # A fourth window would begin in the padding at the end.
    case("nn.MaxPool1d(2, stride=3, padding=1, ceil_mode=True)", x=(1, 2, 7)),
    case("nn.MaxPool1d(3, stride=2, dilation=2, ceil_mode=True, return_indices=True)", "m(x)[0] + m(x)[1]", x=(2, 2, 8)),
    case("nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)", x=(2, 2, 6, 5)),
    case("nn.MaxPool2d((2, 3), stride=(3, 4), padding=(1, 0), ceil_mode=True, return_indices=True)", "m(x)[0] + m(x)[1]",
         x=(2, 2, 4, 6), unit=0.5),
    case("nn.MaxPool3d((2, 3, 2), stride=2, padding=(1, 1, 0), ceil_mode=True)", x=(1, 2, 4, 4, 5)),
    case("nn.MaxPool3d(2, stride=(1, 2, 2), ceil_mode=True, return_indices=True)", "m(x)[0] + m(x)[1]",
         x=(2, 2, 3, 5, 4), unit=0.5),
    case("nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True)", x=(2, 2, 6)),
    case("nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)", x=(2, 2, 6)),
    case("nn.AvgPool2d((3, 2), stride=(2, 3), padding=(1, 0), ceil_mode=True)", x=(2, 2, 6, 6)),
    case("nn.AvgPool2d((3, 2), stride=(2, 3), padding=(1, 0), ceil_mode=True, count_include_pad=False)", x=(2, 2, 6, 6)),
    case("nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, divisor_override=5)", x=(1, 2, 6, 4)),
    case("nn.AvgPool2d((4, 3), stride=3, ceil_mode=True)", x=(1, 2, 3, 5)),
    case("nn.AvgPool3d((2, 3, 2), stride=2, padding=(1, 1, 0), ceil_mode=True)", x=(1, 2, 4, 4, 5)),
    case("nn.AvgPool3d((2, 3, 2), stride=2, padding=(1, 1, 0), ceil_mode=True, count_include_pad=False)", x=(1, 2, 4, 4, 5)),
    case("nn.AvgPool3d(2, padding=1, divisor_override=3)", x=(1, 2, 3, 4, 2)),
    case("nn.AdaptiveAvgPool3d((2, 3, 4))", x=(1, 2, 5, 3, 6)),
    case("nn.AdaptiveMaxPool1d(3)", x=(2, 2, 7)),
    case("nn.AdaptiveMaxPool1d(5, return_indices=True)", "m(x)[0] + m(x)[1]", x=(2, 2, 3)),
    case("nn.AdaptiveMaxPool2d((3, 2), return_indices=True)", "m(x)[0] + m(x)[1]", x=(2, 2, 7, 4), unit=0.5),
    case("nn.AdaptiveMaxPool2d((2, 3))", x=(2, 2, 4, 6)),
    case("nn.AdaptiveMaxPool3d((2, 3, 2), return_indices=True)", "m(x)[0] + m(x)[1]", x=(1, 2, 3, 4, 4), unit=0.5),
]

REDUCTIONS = ("mean", "sum", "none")

LOSSES = [
    *(
        case(f"F.{loss}, reduction='{reduction}')", x=(3, 5), t=(3, 5), unit=0.5)
        for loss in ("mse_loss(x, t", "l1_loss(x, t", "huber_loss(x, t, delta=0.5", "smooth_l1_loss(x, t, beta=1.5")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"F.binary_cross_entropy_with_logits(x, t.sigmoid(), {weight}reduction='{reduction}')", x=(3, 5), t=(3, 5), w=(5,))
        for weight in ("", "pos_weight=w.exp(), ")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"F.cross_entropy(x, labels{options}, reduction='{reduction}')", x=shape, labels=ints(4, labels), w=(4,))
        for options, shape, labels in (
            ("", (1, 4), (1,)),
            (", ignore_index=1", (7, 4), (7,)),
            (", label_smoothing=0.1", (2, 4, 3, 5), (2, 3, 5)),
            (", weight=w.exp()", (7, 4), (7,)),
            (", weight=w.exp(), ignore_index=2, label_smoothing=0.3", (2, 4, 5, 3), (2, 5, 3)),
        )
        for reduction in REDUCTIONS
    ),
]

# Like LATER_LAYERS.
LATER_LOSSES = [
    *(
        case(f"F.nll_loss(x, labels{options}, reduction='{reduction}')", x=shape, labels=ints(4, labels), w=(4,))
        for options, shape, labels in (
            ("", (1, 4), (1,)),
            (", weight=w.exp(), ignore_index=2", (2, 4, 3, 5), (2, 3, 5)),
        )
        for reduction in REDUCTIONS
    ),
    *(
        case(f"F.cross_entropy(x, t.softmax(1){options}, reduction='{reduction}')", x=shape, t=shape, w=(4,))
        for options, shape in (("", (7, 4)), (", weight=w.exp(), label_smoothing=0.3", (2, 4, 3, 5)))
        for reduction in REDUCTIONS
    ),
    *(
        case(f"F.kl_div(x.log_softmax(1), t.{target}, reduction='{reduction}')", x=(3, 5), t=(3, 5))
        for target in ("softmax(1)", "log_softmax(1), log_target=True")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"F.hinge_embedding_loss(x, w.sign(){options}, reduction='{reduction}')", x=(3, 5), w=(3, 5))
        for options in ("", ", margin=0.3")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"F.multi_margin_loss(x, labels{options}, reduction='{reduction}')", x=(7, 4), labels=ints(4, (7,)), w=(4,))
        for options in ("", ", p=2, margin=0.3, weight=w.exp()")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"F.cosine_embedding_loss(x, y, w.sign(){options}, reduction='{reduction}')", x=(7, 5), y=(7, 5), w=(7,))
        for options in ("", ", margin=-0.3")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"F.triplet_margin_loss(x, y, z{options}, reduction='{reduction}')", x=(5, 3), y=(5, 3), z=(5, 3))
        for options in ("", ", margin=2.5, p=3.0, swap=True", ", p=1.0, eps=0.01")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"dice_loss(x.sigmoid(), t.sigmoid(){options}, reduction='{reduction}')", x=(2, 3, 4, 5), t=(2, 3, 4, 5))
        for options in ("", ", smooth=0.1, squared=True")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"sigmoid_focal_loss(x, t.sigmoid(){options}, reduction='{reduction}')", x=(3, 5), t=(3, 5))
        for options in ("", ", alpha=-1, gamma=0.5")
        for reduction in REDUCTIONS
    ),
    *(
        case(f"focal_loss(x, labels{options}, reduction='{reduction}')", x=(2, 4, 5), labels=ints(4, (2, 5)), w=(4,))
        for options in ("", ", gamma=0.5, weight=w.exp()")
        for reduction in REDUCTIONS
    ),
    *(
        case(
            f"F.ctc_loss(x.log_softmax(2), labels, {steps}, b, blank=4{options}, reduction='{reduction}')",
            x=(9, 4, 5), labels=ints(4, (4, 3)), a=ints(5, (4,)), b=ints(4, (4,)),
        )
        for steps, options in (("5 + a", ""), ("a", ", zero_infinity=True"))
        for reduction in REDUCTIONS
    ),
]

# Optimizers of `p`, the parameters of a linear layer.
OPTIMIZERS = [
    "optim.SGD(p, lr=0.125)",
    "optim.SGD(p, lr=0.125, momentum=0.9, weight_decay=0.01)",
    "optim.SGD(p, lr=0.125, momentum=0.5, weight_decay=0.1, nesterov=True)",
    "optim.Adam(p, lr=0.125)",
    "optim.Adam(p, lr=0.125, betas=(0.5, 0.75), eps=0.01, weight_decay=0.1)",
    "optim.AdamW(p, lr=0.125)",
    "optim.AdamW(p, lr=0.125, betas=(0.5, 0.75), eps=0.01, weight_decay=0.3)",
    "optim.RMSprop(p, lr=0.125)",
    "optim.RMSprop(p, lr=0.125, alpha=0.5, eps=0.01, momentum=0.3, weight_decay=0.1)",
    "optim.RMSprop(p, lr=0.125, alpha=0.9, eps=0.01, centered=True)",
    "optim.Muon(p, lr=0.125, adjust_lr_fn='match_rms_adamw')",
    "optim.Muon(p, lr=0.125, momentum=0.5, nesterov=False, weight_decay=0.3, adjust_lr_fn='match_rms_adamw')",
    "Lion(p, lr=0.125, betas=(0.5, 0.75), weight_decay=0.1)",
]

# Like LATER_LAYERS, with the number of steps.
LATER_OPTIMIZERS = {
    "optim.Adam(p, lr=0.125, betas=(0.5, 0.25), weight_decay=0.1, amsgrad=True)": 5,
    "optim.AdamW(p, lr=0.125, betas=(0.5, 0.25), eps=0.01, weight_decay=0.3, amsgrad=True)": 5,
    "optim.Adagrad(p, lr=0.125)": 3,
    "optim.Adagrad(p, lr=0.125, lr_decay=0.5, weight_decay=0.1, initial_accumulator_value=0.25, eps=0.01)": 3,
    "optim.NAdam(p, lr=0.125)": 3,
    "optim.NAdam(p, lr=0.125, betas=(0.5, 0.75), eps=0.01, weight_decay=0.1, momentum_decay=0.25)": 3,
    "optim.NAdam(p, lr=0.125, weight_decay=0.3, decoupled_weight_decay=True)": 3,
    "optim.RAdam(p, lr=0.125)": 8,
    "optim.RAdam(p, lr=0.125, betas=(0.5, 0.9375), eps=0.01, weight_decay=0.1)": 8,
    "optim.RAdam(p, lr=0.125, weight_decay=0.3, decoupled_weight_decay=True)": 8,
    "optim.LBFGS(p, lr=0.5, max_iter=3, history_size=2)": 3,
    "optim.LBFGS(p, max_iter=3, line_search_fn='strong_wolfe')": 3,
}

METRICS = [3.0, 2.5, 2.49, 2.6, 2.4, 2.4, 2.4, 2.3999, 2.5, 2.45, 2.41, 1.0, 1.5, 1.2, 0.9999, 1.1, -2.0, -2.0001, -1.0]

# Schedules of an optimizer `o` with a learning rate of 0.1, with the number of steps or the metrics.
SCHEDULES = {
    "ConstantLR(o, factor=1.0)": 5,
    "LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=4)": 8,
    "StepLR(o, step_size=3, gamma=0.5)": 10,
    "MultiStepLR(o, milestones=[2, 5], gamma=0.1)": 8,
    "ExponentialLR(o, gamma=0.9)": 8,
    "CosineAnnealingLR(o, T_max=7, eta_min=0.01)": 8,
    "PolynomialLR(o, total_iters=6, power=2.0)": 9,
    "OneCycleLR(o, max_lr=1.0, total_steps=10)": 10,
    "OneCycleLR(o, max_lr=1.0, total_steps=12, pct_start=0.4, div_factor=10.0, final_div_factor=100.0)": 12,
    "SequentialLR(o, [LinearLR(o, start_factor=0.25, total_iters=3), CosineAnnealingLR(o, T_max=6)], [3])": 10,
    "SequentialLR(o, [ConstantLR(o, factor=1.0), ExponentialLR(o, gamma=0.5)], [4])": 8,
    "CosineAnnealingWarmRestarts(o, T_0=3, eta_min=0.01)": 10,
    "CosineAnnealingWarmRestarts(o, T_0=2, T_mult=3)": 30,
    "ReduceLROnPlateau(o, patience=1)": METRICS,
    "ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.05, cooldown=2, min_lr=0.01)": METRICS,
    "ReduceLROnPlateau(o, mode='max', factor=0.7, patience=2, threshold=0.1, threshold_mode='abs')": METRICS,
    "ReduceLROnPlateau(o, mode='max', factor=0.7, patience=1)": METRICS,
}

FUNCTIONS = [
    case("F.scaled_dot_product_attention(x, k, v)", x=(2, 3, 5, 4), k=(2, 3, 7, 4), v=(2, 3, 7, 6)),
    case("F.scaled_dot_product_attention(x, k, v, is_causal=True, scale=0.3)", x=(2, 70, 4), k=(2, 70, 4), v=(2, 70, 4)),
    case("F.scaled_dot_product_attention(x, x, k, attn_mask=mask)", x=(2, 2, 5, 3), k=(1, 2, 5, 3), mask=(2, 1, 5, 5)),
    case("torch.sort(x, 1)[0]", x=(3, 7)),
    case("torch.sort(x, dim=0, descending=True, stable=True)[0]", x=(300, 2)),
    case("torch.topk(x, 3, 1)[0]", x=(2, 5, 4)),
    case("x + torch.argsort(x, dim=1, stable=True)", x=(3, 270), unit=0.5),
    case("x + torch.argmax(x, 1, keepdim=True)", x=(3, 7)),
    case("x + torch.argmin(x, 0)", x=(5, 3), unit=0.5),
    case("torch.cumsum(x, 1)", x=(2, 70, 3)),
    case("torch.cumprod(x, 0)", x=(7, 3), unit=0.5),
    case("torch.stack([x, t], 1)", x=(3, 5), t=(3, 5)),
    case("torch.chunk(x, 3, 1)[2]", x=(2, 7)),
    case("torch.split(x, [2, 1, 4], 1)[2]", x=(2, 7, 3)),
    case("torch.transpose(x, 0, 2)", x=(2, 3, 5)),
    case("x[1, :, 2:4]", x=(2, 3, 5)),
    case("torch.gather(x, 1, labels)", x=(3, 5), labels=ints(5, (3, 7))),
    case("torch.scatter_add(x, 0, labels, t)", x=(5, 3), labels=ints(5, (7, 3)), t=(7, 3)),
    case("torch.scatter(x, 1, labels.argsort(1), t)", x=(3, 5), labels=ints(1000, (3, 5)), t=(3, 5)),
    case("torch.index_select(x, 1, labels)", x=(3, 5, 2), labels=ints(5, (7,))),
    case("F.one_hot(labels, 5) * x", x=(2, 3, 5), labels=ints(5, (2, 3))),
    case("torch.where(x > t, x, t * 2)", x=(3, 5), t=(5,)),
    case("x.masked_fill(t > 0, -2.5)", x=(3, 5), t=(3, 5)),
    case("torch.tril(x, -1)", x=(2, 5, 4)),
    case("torch.triu(x, 2)", x=(3, 7)),
    case("torch.diagonal(x, dim1=-2, dim2=-1)", x=(2, 4, 4)),
    case("torch.flip(x, [0, 2])", x=(2, 3, 5)),
    case("torch.roll(x, 3, 1)", x=(2, 5)),
    case("torch.roll(x, -4, 0)", x=(3, 2)),
    case("x.repeat(2, 3, 1)", x=(2, 5)),
    case("torch.repeat_interleave(x, 3, 1)", x=(2, 5, 3)),
    case("torch.floor(x) + torch.ceil(x) + torch.round(x) + x", x=(5, 7), unit=0.5),
    case("torch.linalg.vector_norm(x)", x=(3, 5)),
    case("torch.linalg.vector_norm(x, 3, (0, 2))", x=(2, 3, 5)),
    case("torch.linalg.vector_norm(x, 1, 1)", x=(4, 3)),
    case("torch.logsumexp(x * 100, (0, 1))", x=(3, 4, 2)),
    case("torch.std(x, 1)", x=(3, 5)),
    case("torch.einsum('bij,bjk->bik', x, t)", x=(2, 3, 5), t=(2, 5, 4)),
    case("torch.einsum('iij->j', x)", x=(3, 3, 4)),
    case("torch.einsum('ij,kj,j->ki', x, t, v.exp())", x=(2, 5), t=(3, 5), v=(5,)),
    case("torch.einsum('nchw,cd->ndwh', x, t)", x=(2, 3, 4, 5), t=(3, 2)),
    case("torch.einsum('ab,cd', x, t)", x=(2, 3), t=(4, 5)),
    case("torch.tan(x)", x=(5, 7)),
    case("torch.logcumsumexp(x * 30, 1)", x=(2, 70, 3)),
    case("torch.erfinv(x / 3.5)", x=(5, 7)),
    case("torch.trapezoid(x, dim=0)", x=(7, 3)),
    case("torch.trapezoid(x, dx=0.25, dim=1)", x=(2, 5, 3)),
    case("torch.trapezoid(x, dim=1)", x=(3, 1)),
    case("torch.cumulative_trapezoid(x, dim=1)", x=(2, 7)),
    case("torch.cumulative_trapezoid(x, dx=0.25, dim=0)", x=(5, 3)),
]

# Gradients whose gradients are compared, too.
PENALTIES = [
    case(
        "torch.autograd.grad(F.silu(F.group_norm(x, 2, v, b)).sum(), x, create_graph=True)[0].square().sum((1, 2)).sqrt()",
        x=(3, 4, 5), v=(4,), b=(4,),
    ),
    case("torch.autograd.grad(F.silu(F.layer_norm(x, (6,), v, b)).sum(), x, create_graph=True)[0]", x=(4, 6), v=(6,), b=(6,)),
    case(
        "torch.autograd.grad(F.cross_entropy(x, labels, label_smoothing=0.1, ignore_index=1), x, create_graph=True)[0]",
        x=(2, 4, 3), labels=ints(4, (2, 3)),
    ),
    case("torch.autograd.grad(F.max_pool2d(x, 3, 2, 1).square().sum(), x, create_graph=True)[0]", x=(2, 2, 7, 6)),
]

# Attention in which some queries see no key, or share keys.
ATTENTION = [
    case(
        "F.scaled_dot_product_attention(x, k, v, attn_mask=(t > 0) & (torch.arange(5) != 2)[:, None])",
        x=(2, 3, 5, 4), k=(2, 3, 7, 4), v=(2, 3, 7, 6), t=(2, 1, 5, 7),
    ),
    case(
        "F.scaled_dot_product_attention(x, k, v, attn_mask=mask.masked_fill((torch.arange(5) > 2)[:, None], -torch.inf))",
        x=(2, 2, 5, 3), k=(1, 2, 4, 3), v=(2, 1, 4, 3), mask=(2, 1, 5, 4),
    ),
    # Several tiles of queries and keys, in the first of which the first queries see nothing.
    case(
        "F.scaled_dot_product_attention(x, k, v, attn_mask=(torch.arange(70)[:, None] % 9 > 2) & (torch.arange(90) >= 65))",
        x=(2, 70, 20), k=(2, 90, 20), v=(2, 90, 36),
    ),
    case(
        "F.scaled_dot_product_attention(x, k, v, attn_mask=torch.ones(9, 5).tril(-4) > 0)",
        x=(2, 9, 4), k=(2, 5, 4), v=(2, 5, 3),
    ),
    case(
        "nn.MultiheadAttention(6, 3, batch_first=True)",
        "m(x, context, context, key_padding_mask=torch.arange(5) >= torch.tensor([3, 0, 5])[:, None], need_weights=False)[0]",
        x=(3, 4, 6), context=(3, 5, 6),
    ),
    case(
        "nn.TransformerEncoderLayer(6, 2, 5, 0.0, batch_first=True, norm_first=True)",
        "m(x, src_key_padding_mask=torch.arange(4) >= torch.tensor([0, 2, 4])[:, None])", x=(3, 4, 6),
    ),
    case(
        "nn.TransformerDecoderLayer(4, 2, 3, 0.0, batch_first=True)",
        "m(x, t, memory_key_padding_mask=torch.arange(5) >= torch.tensor([4, 0])[:, None])", x=(2, 3, 4), t=(2, 5, 4),
    ),
    case(
        "torch.autograd.grad(by_products(x, k, v, (t > -1) & (torch.arange(5) != 2)[:, None]).square().sum(), x, create_graph=True)[0]",
        x=(2, 5, 4), k=(2, 3, 4), v=(2, 3, 4), t=(5, 3), unit=0.5,
    ),
    case(
        "torch.autograd.grad(by_products(x, k, v, (t > -1) & (torch.arange(5) != 2)[:, None]).square().sum(), v, create_graph=True)[0]",
        x=(2, 5, 4), k=(2, 3, 4), v=(2, 3, 4), t=(5, 3), unit=0.5,
    ),
    # Heads of queries that share one of keys and values.
    case(
        "F.scaled_dot_product_attention(x, k, v, is_causal=True, enable_gqa=True)",
        x=(2, 6, 5, 4), k=(2, 2, 5, 4), v=(2, 2, 5, 3),
    ),
    case(
        "F.scaled_dot_product_attention(x, k, v, attn_mask=(t > 0) & (torch.arange(5) != 2)[:, None], enable_gqa=True)",
        x=(2, 4, 5, 4), k=(2, 1, 7, 4), v=(2, 1, 7, 6), t=(4, 5, 7),
    ),
]
