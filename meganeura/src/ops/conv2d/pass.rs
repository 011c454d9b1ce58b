//! Which of a convolution's kernels is meant.

/// Which of the three kernels. Operands: forward `x, w`; gradient of the input `dy, w`; gradient of the weight `x, dy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    Forward,
    GradInput,
    GradWeight,
}
