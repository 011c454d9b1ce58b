//! Operations that models are seldom made of, but that some spend their time in: selections, orders, pools, scans.

use std::fmt;

use meganeura::ops::{GridSampleOptions, RecurrentFormula, RecurrentOptions};
use meganeura::{Shape, Var};

/// Such an operation; `Display` writes it as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corner {
    /// The `k` largest numbers of each row of `[M,N]`
    Topk { m: usize, n: usize, k: usize },
    /// `[M,N]` with sorted rows
    Sort { m: usize, n: usize },
    /// `[A,B,C]` as `[C,A,B]`
    Permute { a: usize, b: usize, c: usize },
    /// `[M,N]` as `[N,M]`
    Transpose { m: usize, n: usize },
    /// `n` images `h×w` of `c` channels, sampled at as many places
    GridSample { n: usize, c: usize, h: usize, w: usize },
    /// The largest number of each row of `[M,N]`, gathered by its index
    ArgmaxGather { m: usize, n: usize },
    /// `gelu(x)` of so many numbers
    Gelu { len: usize },
    /// The sums of the first numbers of each row of `[M,N]`
    Cumsum { m: usize, n: usize },
    /// Pools of `n` images `h×h` of `c` channels in windows `r×r`, padded by `r / 2`
    Pool { max: bool, n: usize, c: usize, h: usize, r: usize, stride: usize },
    /// An LSTM of `h` features over `t` steps of `n` sequences of as many features
    Lstm { t: usize, n: usize, h: usize },
}

impl Corner {
    pub const FORMS: &str = "topk:M,N,K, sort:M,N, permute:A,B,C, transpose:M,N, grid_sample:N,C,H,W, \
                             argmax_gather:M,N, gelu:COUNT, cumsum:M,N, max_pool:N,C,H,R,STRIDE, \
                             avg_pool:N,C,H,R,STRIDE, lstm:T,N,H";

    /// The operation of this name with these extents; `None` if there is none.
    pub fn find(name: &str, extents: &[usize]) -> Option<Self> {
        Some(match (name, extents) {
            ("topk", &[m, n, k]) if k <= n => Self::Topk { m, n, k },
            ("sort", &[m, n]) => Self::Sort { m, n },
            ("permute", &[a, b, c]) => Self::Permute { a, b, c },
            ("transpose", &[m, n]) => Self::Transpose { m, n },
            ("grid_sample", &[n, c, h, w]) => Self::GridSample { n, c, h, w },
            ("argmax_gather", &[m, n]) => Self::ArgmaxGather { m, n },
            ("gelu", &[len]) => Self::Gelu { len },
            ("cumsum", &[m, n]) => Self::Cumsum { m, n },
            ("max_pool", &[n, c, h, r, stride]) if r <= h => Self::Pool { max: true, n, c, h, r, stride },
            ("avg_pool", &[n, c, h, r, stride]) if r <= h => Self::Pool { max: false, n, c, h, r, stride },
            ("lstm", &[t, n, h]) => Self::Lstm { t, n, h },
            _ => return None,
        })
    }

    /// `true` if there is a gradient to time. That of a recurrent layer is part of a training step: see the workload.
    pub fn is_trained(&self) -> bool {
        !matches!(self, Self::Lstm { .. })
    }

    /// The operands, with the standard deviation of their numbers.
    pub fn operands(&self) -> Vec<(Shape, f32)> {
        match *self {
            Self::Topk { m, n, .. }
            | Self::Sort { m, n }
            | Self::Transpose { m, n }
            | Self::ArgmaxGather { m, n }
            | Self::Cumsum { m, n } => vec![(Shape::from([m, n]), 1.0)],
            Self::Permute { a, b, c } => vec![(Shape::from([a, b, c]), 1.0)],
            Self::GridSample { n, c, h, w } => {
                vec![(Shape::from([n, c, h, w]), 1.0), (Shape::from([n, h, w, 2]), 0.5)]
            }
            Self::Gelu { len } => vec![(Shape::from([len]), 1.0)],
            Self::Pool { n, c, h, .. } => vec![(Shape::from([n, c, h, h]), 1.0)],
            Self::Lstm { t, n, h } => {
                let weight = (Shape::from([4 * h, h]), 1.0 / (h as f32).sqrt());
                let state = (Shape::from([n, h]), 1.0);
                vec![(Shape::from([t, n, h]), 1.0), weight, weight, (Shape::from([4 * h]), 1.0), state, state]
            }
        }
    }

    pub fn result(&self) -> Shape {
        match *self {
            Self::Topk { m, k, .. } => Shape::from([m, k]),
            Self::Permute { a, b, c } => Shape::from([c, a, b]),
            Self::Transpose { m, n } => Shape::from([n, m]),
            Self::ArgmaxGather { m, .. } => Shape::from([m, 1]),
            Self::Pool { n, c, h, r, stride, .. } => {
                let p = (h + 2 * (r / 2) - r) / stride + 1;
                Shape::from([n, c, p, p])
            }
            _ => self.operands()[0].0,
        }
    }

    /// Bytes if the first operand is read and the result written once, in each direction.
    pub fn bytes(&self, directions: usize) -> f64 {
        (4 * directions * (self.operands()[0].0.elements() + self.result().elements())) as f64
    }

    pub fn forward(&self, x: &[Var]) -> Var {
        match *self {
            Self::Topk { k, .. } => x[0].topk(k, 1).0,
            Self::Sort { .. } => x[0].sort(1, false).0,
            Self::Permute { .. } => x[0].permute(&[2, 0, 1]),
            Self::Transpose { .. } => x[0].t(),
            Self::GridSample { .. } => x[0].grid_sample(&x[1], GridSampleOptions::default()),
            Self::ArgmaxGather { m, .. } => x[0].gather(1, &x[0].argmax(1).reshape([m, 1])),
            Self::Gelu { .. } => x[0].gelu(),
            Self::Cumsum { .. } => x[0].cumsum(1),
            Self::Pool { max: true, r, stride, .. } => x[0].max_pool2d([r; 2], [stride; 2], [r / 2; 2], [1; 2]),
            Self::Pool { r, stride, .. } => x[0].avg_pool2d([r; 2], [stride; 2], [r / 2; 2], true),
            Self::Lstm { t, n, h } => {
                let of_input = x[0].reshape([t * n, h]).matmul(&x[1].t()) + &x[3];
                let options =
                    RecurrentOptions { formula: RecurrentFormula::Lstm, reverse: false, bias: None, mask: None };
                of_input.reshape([t, n, 4 * h]).recurrent(&x[2], &x[4..6], options).0
            }
        }
    }
}

impl fmt::Display for Corner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Topk { m, n, k } => write!(f, "topk:{m},{n},{k}"),
            Self::Sort { m, n } => write!(f, "sort:{m},{n}"),
            Self::Permute { a, b, c } => write!(f, "permute:{a},{b},{c}"),
            Self::Transpose { m, n } => write!(f, "transpose:{m},{n}"),
            Self::GridSample { n, c, h, w } => write!(f, "grid_sample:{n},{c},{h},{w}"),
            Self::ArgmaxGather { m, n } => write!(f, "argmax_gather:{m},{n}"),
            Self::Gelu { len } => write!(f, "gelu:{len}"),
            Self::Cumsum { m, n } => write!(f, "cumsum:{m},{n}"),
            Self::Pool { max, n, c, h, r, stride } => {
                write!(f, "{}_pool:{n},{c},{h},{r},{stride}", if max { "max" } else { "avg" })
            }
            Self::Lstm { t, n, h } => write!(f, "lstm:{t},{n},{h}"),
        }
    }
}
