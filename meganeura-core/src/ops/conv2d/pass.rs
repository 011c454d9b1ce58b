//! The three passes of a convolution.

/// A convolution, or one of its gradients. Operands: forward `x, w`; gradient of the input `dy, w`; gradient of the
/// weight `x, dy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    Forward,
    GradInput,
    GradWeight,
}
