//! A kernel's specification: operands, computation, and amount of work.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use meganeura::loss::{CrossEntropyOptions, Reduction};
use meganeura::ops::{AttentionOptions, Conv1dOptions, Conv2dOptions, Conv3dOptions};
use meganeura::{Result, Shape, Tape, Tensor, Var};

use super::corner::Corner;

/// The number of groups of the group normalisation.
const GROUPS: usize = 32;

/// An operation on operands of given shapes; `Display` writes it as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `a [M,K] · b [K,N]`
    Matmul {
        m: usize,
        k: usize,
        n: usize,
    },
    /// `k` kernels of `r` taps along each of `axes` axes on `n` tensors of `c` channels, padded by `r / 2`; sequences
    /// of `h` elements, images `h×h`, or volumes `d×h×h`
    Conv {
        axes: usize,
        n: usize,
        c: usize,
        d: usize,
        h: usize,
        k: usize,
        r: usize,
        stride: usize,
    },
    /// `c` kernels `r×r` on `n` images `h×w` of `c` channels in groups of `each`, padded by `r / 2`; in groups of one,
    /// a depthwise convolution
    Grouped {
        n: usize,
        c: usize,
        h: usize,
        w: usize,
        r: usize,
        stride: usize,
        each: usize,
    },
    /// Group normalisation in 32 groups, then `SiLU`
    GroupNorm {
        n: usize,
        c: usize,
        h: usize,
        w: usize,
    },
    /// `gelu(x [M,K] · w [N,K]ᵀ + b)`
    LinearGelu {
        m: usize,
        k: usize,
        n: usize,
    },
    /// Self-attention on `b` sequences of length `l` with `h` heads of `d` features
    Attention {
        b: usize,
        h: usize,
        l: usize,
        d: usize,
        form: Form,
    },
    /// Layer normalisation of `m` rows of `n` numbers, with weight and bias
    LayerNorm {
        m: usize,
        n: usize,
    },
    /// Lookup of `count` random rows of a table of `rows` rows
    Embedding {
        rows: usize,
        count: usize,
        width: usize,
    },
    /// Cross-entropy of `m` labels among `classes`, each on its own
    CrossEntropy {
        m: usize,
        classes: usize,
    },
    /// A copy in the device's memory, for its bandwidth
    Copy {
        bytes: usize,
    },
    Corner(Corner),
}

/// The kernels that one command times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernels {
    One(Kernel),
    /// Those of `kernels.txt`, as far as their text contains this one.
    Standard(String),
    /// Those of `corners.txt`, as far as their text contains this one.
    Corners(String),
}

impl FromStr for Kernels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, filter) = text.split_once(':').unwrap_or((text, ""));
        match name {
            "standard" => Ok(Self::Standard(filter.to_owned())),
            "corners" => Ok(Self::Corners(filter.to_owned())),
            _ => text.parse().map(Self::One),
        }
    }
}

impl Kernels {
    /// The kernels, in order.
    pub fn list(&self) -> Result<Vec<Kernel>, String> {
        let (lines, filter) = match self {
            Self::One(kernel) => return Ok(vec![*kernel]),
            Self::Standard(filter) => (include_str!("../kernels.txt"), filter),
            Self::Corners(filter) => (include_str!("../corners.txt"), filter),
        };
        let lines = lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let found = lines.filter(|line| line.contains(filter.as_str()));
        let found = found.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        if found.is_empty() { Err(format!("no kernel of the list contains {filter}")) } else { Ok(found) }
    }
}

/// The algorithm of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `Var::attention_with`, in the form that it chooses
    Full,
    /// The same, causal
    Causal,
    /// Matrix products, with the scores in memory
    Composed,
}

impl Form {
    const ALL: [Self; 3] = [Self::Full, Self::Causal, Self::Composed];

    fn name(self) -> &'static str {
        match self {
            Self::Full => "attention",
            Self::Causal => "causal_attention",
            Self::Composed => "composed_attention",
        }
    }
}

/// The pass that is computed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub enum Pass {
    /// Outside of training: nothing is kept for gradients
    Forward,
    /// The gradient of the first operand
    GradInput,
    /// The gradient of the second operand
    GradWeight,
    /// All gradients, after a forward pass that kept the values that they need: the time of `both` minus that of
    /// `forward` in training
    Backward,
    /// The forward pass and all gradients
    Both,
}

impl Pass {
    /// `true` for all but the forward pass by itself.
    pub fn is_training(self) -> bool {
        self != Self::Forward
    }
}

/// The minimum work of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Multiplications and additions of the direct algorithm.
    Flops(f64),
    /// Bytes if each input is read once and each output written once.
    Bytes(f64),
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, extents) = text.split_once(':').unwrap_or((text, ""));
        let extents: Vec<usize> = extents.split(',').map(str::parse).collect::<Result<_, _>>().unwrap_or_default();
        let kernel = match (name, &extents[..]) {
            ("matmul", &[m]) => Self::Matmul { m, k: m, n: m },
            ("matmul", &[m, k, n]) => Self::Matmul { m, k, n },
            ("conv1d", &[n, c, h, k, r, stride]) => Self::Conv { axes: 1, n, c, d: 1, h, k, r, stride },
            ("conv2d", &[n, c, h, k, r, stride]) => Self::Conv { axes: 2, n, c, d: 1, h, k, r, stride },
            ("conv3d", &[n, c, d, h, k, r, stride]) => Self::Conv { axes: 3, n, c, d, h, k, r, stride },
            ("depthwise", &[n, c, h, w, r, stride]) => Self::Grouped { n, c, h, w, r, stride, each: 1 },
            ("grouped", &[n, c, h, w, r, stride, each]) => Self::Grouped { n, c, h, w, r, stride, each },
            ("group_norm", &[n, c, h, w]) => Self::GroupNorm { n, c, h, w },
            ("linear_gelu", &[m, k, n]) => Self::LinearGelu { m, k, n },
            ("layer_norm", &[m, n]) => Self::LayerNorm { m, n },
            ("embedding", &[rows, count, width]) => Self::Embedding { rows, count, width },
            ("cross_entropy", &[m, classes]) => Self::CrossEntropy { m, classes },
            ("copy", &[bytes]) => Self::Copy { bytes },
            (name, &[b, h, l, d]) if let Some(form) = Form::ALL.into_iter().find(|form| form.name() == name) => {
                Self::Attention { b, h, l, d, form }
            }
            (name, extents) if let Some(corner) = Corner::find(name, extents) => Self::Corner(corner),
            _ => {
                return Err(format!(
                    "write matmul:SIDE, matmul:M,K,N, conv1d:N,C,L,K,R,STRIDE, conv2d:N,C,H,K,R,STRIDE, \
                            conv3d:N,C,D,H,K,R,STRIDE, depthwise:N,C,H,W,R,STRIDE, grouped:N,C,H,W,R,STRIDE,CHANNELS, group_norm:N,C,H,W, \
                            linear_gelu:M,K,N, layer_norm:M,N, embedding:ROWS,COUNT,WIDTH, \
                            cross_entropy:M,CLASSES, attention:B,HEADS,L,D (or causal_attention, composed_attention), \
                            copy:BYTES, {}, or standard or corners for a list",
                    Corner::FORMS
                ));
            }
        };
        if extents.contains(&0) {
            return Err("no extent may be 0".into());
        }
        match kernel {
            Self::Conv { axes, d, h, r, .. } if r > h + 2 * (r / 2) || axes == 3 && r > d + 2 * (r / 2) => {
                Err(format!("kernels of {r} taps along an axis are larger than the input"))
            }
            Self::Grouped { c, each, .. } if c % each != 0 => {
                Err(format!("{c} channels are not equal groups of {each}"))
            }
            Self::GroupNorm { c, .. } if c % GROUPS != 0 => Err(format!("{c} channels are not {GROUPS} equal groups")),
            Self::Copy { bytes } if bytes % 8 != 0 => Err("the bytes of a copy must be a multiple of 8".into()),
            kernel => Ok(kernel),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Matmul { m, k, n } if m == k && k == n => write!(f, "matmul:{m}"),
            Self::Matmul { m, k, n } => write!(f, "matmul:{m},{k},{n}"),
            Self::Conv { axes: 3, n, c, d, h, k, r, stride } => write!(f, "conv3d:{n},{c},{d},{h},{k},{r},{stride}"),
            Self::Conv { axes, n, c, h, k, r, stride, .. } => write!(f, "conv{axes}d:{n},{c},{h},{k},{r},{stride}"),
            Self::Grouped { n, c, h, w, r, stride, each: 1 } => write!(f, "depthwise:{n},{c},{h},{w},{r},{stride}"),
            Self::Grouped { n, c, h, w, r, stride, each } => write!(f, "grouped:{n},{c},{h},{w},{r},{stride},{each}"),
            Self::GroupNorm { n, c, h, w } => write!(f, "group_norm:{n},{c},{h},{w}"),
            Self::LinearGelu { m, k, n } => write!(f, "linear_gelu:{m},{k},{n}"),
            Self::Attention { b, h, l, d, form } => write!(f, "{}:{b},{h},{l},{d}", form.name()),
            Self::LayerNorm { m, n } => write!(f, "layer_norm:{m},{n}"),
            Self::Embedding { rows, count, width } => write!(f, "embedding:{rows},{count},{width}"),
            Self::CrossEntropy { m, classes } => write!(f, "cross_entropy:{m},{classes}"),
            Self::Copy { bytes } => write!(f, "copy:{bytes}"),
            Self::Corner(corner) => write!(f, "{corner}"),
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.pad(value.get_name()))
    }
}

/// The shape of two axes and the last ones of three.
fn spatial(first: [usize; 2], axes: usize, extents: [usize; 3]) -> Shape {
    Shape::new(&[&first, &extents[3 - axes..]].concat())
}

impl Kernel {
    /// The passes of the kernel.
    pub fn passes(&self) -> &'static [Pass] {
        match self {
            Self::Matmul { .. } | Self::Conv { .. } | Self::Grouped { .. } => {
                &[Pass::Forward, Pass::GradInput, Pass::GradWeight]
            }
            Self::Copy { .. } => &[Pass::Forward],
            Self::Corner(corner) if !corner.is_trained() => &[Pass::Forward],
            _ => &[Pass::Forward, Pass::Backward, Pass::Both],
        }
    }

    /// The operands, with the standard deviation of their numbers: weights are as small as initial weights.
    pub fn operands(&self) -> Vec<(Shape, f32)> {
        let scale = |terms: usize| 1.0 / (terms as f32).sqrt();
        match *self {
            Self::Matmul { m, k, n } => vec![(Shape::from([m, k]), 1.0), (Shape::from([k, n]), scale(k))],
            Self::Conv { axes, n, c, d, h, k, r, .. } => {
                let taps: usize = [r; 3][..axes].iter().product();
                vec![(spatial([n, c], axes, [d, h, h]), 1.0), (spatial([k, c], axes, [r; 3]), scale(c * taps))]
            }
            Self::Grouped { n, c, h, w, r, each, .. } => {
                vec![(Shape::from([n, c, h, w]), 1.0), (Shape::from([c, each, r, r]), scale(each * r * r))]
            }
            Self::GroupNorm { n, c, h, w } => {
                vec![(Shape::from([n, c, h, w]), 1.0), (Shape::from([c]), 1.0), (Shape::from([c]), 1.0)]
            }
            Self::LinearGelu { m, k, n } => {
                vec![(Shape::from([m, k]), 1.0), (Shape::from([n, k]), scale(k)), (Shape::from([n]), 1.0)]
            }
            Self::Attention { b, h, l, d, .. } => vec![(Shape::from([b, h, l, d]), 1.0); 3],
            Self::LayerNorm { m, n } => {
                vec![(Shape::from([m, n]), 1.0), (Shape::from([n]), 1.0), (Shape::from([n]), 1.0)]
            }
            Self::Embedding { rows, width, .. } => vec![(Shape::from([rows, width]), 1.0)],
            Self::CrossEntropy { m, classes } => vec![(Shape::from([m, classes]), 1.0)],
            Self::Copy { bytes } => vec![(Shape::from([bytes / 4]), 1.0)],
            Self::Corner(corner) => corner.operands(),
        }
    }

    /// The number of the kernel's indices, and their bound, if it has any.
    pub fn indices(&self) -> Option<(usize, usize)> {
        match *self {
            Self::Embedding { rows, count, .. } => Some((count, rows)),
            Self::CrossEntropy { m, classes } => Some((m, classes)),
            _ => None,
        }
    }

    /// The common prefix of the names of the kernel's operations, including its gradients; `None` if it has others'.
    pub fn operations(&self) -> Option<&'static str> {
        match self {
            Self::Conv { axes, .. } => Some(["conv1d", "conv2d", "conv3d"][axes - 1]),
            Self::Grouped { .. } => Some("conv2d"),
            Self::Matmul { .. } => Some("matmul"),
            Self::Attention { form, .. } => (*form != Form::Composed).then_some("attention"),
            _ => None,
        }
    }

    fn is_convolution(&self) -> bool {
        matches!(self, Self::Conv { .. } | Self::Grouped { .. })
    }

    /// The shape of the result and of its cotangent.
    pub fn result(&self) -> Shape {
        match *self {
            Self::Matmul { m, n, .. } | Self::LinearGelu { m, n, .. } => Shape::from([m, n]),
            Self::Conv { axes, n, d, h, k, r, stride, .. } => {
                spatial([n, k], axes, [d, h, h].map(|extent| (extent + 2 * (r / 2) - r) / stride + 1))
            }
            Self::Grouped { n, c, h, w, r, stride, .. } => {
                let [p, q] = [h, w].map(|extent| (extent + 2 * (r / 2) - r) / stride + 1);
                Shape::from([n, c, p, q])
            }
            Self::GroupNorm { n, c, h, w } => Shape::from([n, c, h, w]),
            Self::Attention { b, h, l, d, .. } => Shape::from([b, h, l, d]),
            Self::LayerNorm { m, n } => Shape::from([m, n]),
            Self::Embedding { count, width, .. } => Shape::from([count, width]),
            Self::CrossEntropy { m, .. } => Shape::from([m]),
            Self::Copy { bytes } => Shape::from([2, bytes / 8]),
            Self::Corner(corner) => corner.result(),
        }
    }

    /// The work of a pass.
    pub fn work(&self, pass: Pass) -> Work {
        let real = |x: usize| x as f64;
        match *self {
            Self::Matmul { m, k, n } => Work::Flops(2.0 * real(m) * real(k) * real(n)),
            Self::Conv { .. } => {
                let weight = self.operands()[1].0;
                Work::Flops(2.0 * real(self.result().elements()) * real(weight.elements() / weight[0]))
            }
            Self::LinearGelu { m, k, n } => {
                let products = match pass {
                    Pass::Both => 3.0,
                    Pass::Backward => 2.0,
                    _ => 1.0,
                };
                Work::Flops(products * 2.0 * real(m) * real(k) * real(n))
            }
            // Each image is read or written once; the weight is negligible.
            Self::Grouped { .. } => Work::Bytes(real(4 * (self.operands()[0].0.elements() + self.result().elements()))),
            // The same for causal attention, although about half of it need not be computed.
            Self::Attention { b, h, l, d, .. } => {
                let products = match pass {
                    Pass::Both => 7.0,
                    Pass::Backward => 5.0,
                    _ => 2.0,
                };
                Work::Flops(products * 2.0 * real(b * h) * real(l * l) * real(d))
            }
            // The parameters and their gradients are negligible.
            Self::GroupNorm { .. } | Self::LayerNorm { .. } => {
                let tensors = match pass {
                    Pass::Both => 4,
                    Pass::Backward => 3,
                    _ => 2,
                };
                Work::Bytes(real(tensors * 4 * self.result().elements()))
            }
            // The rows in use are read and written; the gradient has all rows.
            Self::Embedding { rows, count, width } => {
                let lines = match pass {
                    Pass::Both => 3 * count + rows,
                    Pass::Backward => count + rows,
                    _ => 2 * count,
                };
                Work::Bytes(real(4 * lines * width))
            }
            Self::CrossEntropy { m, classes } => {
                let tensors = match pass {
                    Pass::Both => 3,
                    Pass::Backward => 2,
                    _ => 1,
                };
                Work::Bytes(real(tensors * 4 * m * classes))
            }
            Self::Copy { bytes } => Work::Bytes(real(2 * bytes)),
            Self::Corner(corner) => Work::Bytes(corner.bytes(if pass == Pass::Both { 2 } else { 1 })),
        }
    }

    /// Records a pass on a tape and returns the requested values; no others are held. `data` holds the operands, then
    /// the cotangent of the result, then the indices, if there are any. With `inside`, other operations produce the
    /// operands, except for the weight of a convolution, and read the results, as in a network; the requested values
    /// are then the results of those operations.
    pub fn record(&self, tape: &Tape, data: &[Tensor], pass: Pass, inside: bool) -> Result<Vec<Var>> {
        let is_weight = |shape: Shape| self.is_convolution() && shape == self.operands()[1].0;
        let is_between = |shape: Shape| inside && !is_weight(shape);
        let input = |tensor| {
            let x = tape.input(tensor);
            if is_between(x.shape()) { x.abs() } else { x }
        };
        // The sums of each channel of images, of each feature of other values.
        let kept_axis = if self.is_convolution() { 1 } else { self.result().rank() - 1 };
        let summed: Vec<usize> = (0..self.result().rank()).filter(|&axis| axis != kept_axis).collect();
        let read = |x: &Var| if is_between(x.shape()) { x.sum_over(&summed) } else { x.clone() };
        let (floats, indices) = data.split_at(self.operands().len() + 1);
        let inputs: Vec<_> = floats.iter().map(input).collect();
        let y = self.forward(&inputs, indices);
        if pass == Pass::Forward {
            return Ok(vec![read(&y)]);
        }
        let (dy, operands) = inputs.split_last().expect("the cotangent at least");
        let grads = tape.backward_with(&y, dy)?;
        let wanted = match pass {
            Pass::GradInput => &operands[..1],
            Pass::GradWeight => &operands[1..2],
            _ => operands,
        };
        let of = |x: &Var| grads.of(x).expect("the result depends on every operand");
        let kept = if pass == Pass::Both { Some(y) } else { None };
        let wanted: Vec<_> = kept.into_iter().chain(wanted.iter().map(of)).collect();
        Ok(wanted.iter().map(read).collect())
    }

    fn forward(&self, x: &[Var], indices: &[Tensor]) -> Var {
        match *self {
            // As the layer does: a group of one channel for each row.
            Self::LayerNorm { m, n } => {
                let [one, zero] = [1.0, 0.0].map(|value| x[0].constant(value).expand([1]));
                x[0].reshape([m, 1, n]).group_norm(1, 1e-5, &one, &zero).reshape([m, n]) * &x[1] + &x[2]
            }
            Self::Embedding { .. } => x[0].embedding(&x[0].tape().input(&indices[0])),
            Self::CrossEntropy { .. } => {
                let options = CrossEntropyOptions { reduction: Reduction::None, ..CrossEntropyOptions::default() };
                x[0].cross_entropy_with(&indices[0], &options)
            }
            Self::Matmul { .. } => x[0].matmul(&x[1]),
            Self::Conv { axes: 1, r, stride, .. } => {
                let options = Conv1dOptions { stride: [stride], padding: [r / 2], ..Conv1dOptions::default() };
                x[0].conv1d(&x[1], options)
            }
            Self::Conv { axes: 2, r, stride, .. } => {
                let options = Conv2dOptions { stride: [stride; 2], padding: [r / 2; 2], ..Conv2dOptions::default() };
                x[0].conv2d(&x[1], options)
            }
            Self::Conv { r, stride, .. } => {
                let options = Conv3dOptions { stride: [stride; 3], padding: [r / 2; 3], ..Conv3dOptions::default() };
                x[0].conv3d(&x[1], options)
            }
            Self::Grouped { c, r, stride, each, .. } => {
                let options =
                    Conv2dOptions { stride: [stride; 2], padding: [r / 2; 2], dilation: [1; 2], groups: c / each };
                x[0].conv2d(&x[1], options)
            }
            Self::GroupNorm { .. } => x[0].group_norm(GROUPS, 1e-5, &x[1], &x[2]).silu(),
            Self::LinearGelu { .. } => (x[0].matmul(&x[1].t()) + &x[2]).gelu(),
            Self::Attention { d, form: Form::Composed, .. } => {
                let scores = (&x[0] * (d as f64).sqrt().recip()).matmul(&x[1].t());
                scores.softmax(3).matmul(&x[2])
            }
            Self::Attention { form, .. } => {
                let options = AttentionOptions { causal: form == Form::Causal, ..AttentionOptions::default() };
                x[0].attention_with(&x[1], &x[2], options)
            }
            // A view that is stored in its own memory is a copy.
            Self::Copy { .. } => x[0].reshape(self.result()),
            Self::Corner(corner) => corner.forward(x),
        }
    }
}
