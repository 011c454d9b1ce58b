//! Gradients of a weight that is used several times: one product instead of a sum of products.

use crate::ops::{KernelOp, Op};
use crate::tape::Var;

/// The product of two matrices that are smaller than it, `left [M, K]` and `right [K, N]`.
///
/// The gradient of a weight is such a product if few rows were multiplied by the weight, as in each step of a recurrent
/// layer.
pub(crate) struct OuterProduct {
    left: Var,
    right: Var,
    /// `true` if the matrix is `(left·right)ᵀ` instead of `left·right`.
    is_transposed: bool,
}

impl OuterProduct {
    /// `x` as such a product; `None` if it is not a product, or if its operands are together no smaller than it.
    pub(crate) fn of(x: &Var) -> Option<Self> {
        let (mut product, mut is_transposed) = (x.clone(), false);
        while let Some(straight) = untransposed(&product) {
            (product, is_transposed) = (straight, !is_transposed);
        }
        let (_, mut operands) = product.made_by(|op| matches!(op, Op::Kernel(KernelOp::Matmul(_))).then_some(()))?;
        let (right, left) = (operands.pop()?, operands.pop()?);
        let (&[m, k], &[_, n]) = (left.shape().dims(), right.shape().dims()) else { return None };
        (k * (m + n) < m * n).then_some(Self { left, right, is_transposed })
    }

    /// The sum of such products of one shape: the product of their operands, concatenated along the terms.
    #[track_caller]
    pub(crate) fn sum(products: &[Self]) -> Var {
        // All products as they are, or all transposed.
        let is_transposed = products.iter().all(|product| product.is_transposed);
        let operands = products.iter().map(|product| match product.is_transposed == is_transposed {
            true => (product.left.clone(), product.right.clone()),
            false => (product.right.t(), product.left.t()),
        });
        let (left, right): (Vec<_>, Vec<_>) = operands.unzip();
        let product = joined(&left, 1).matmul(&joined(&right, 0));
        if is_transposed { product.t() } else { product }
    }
}

/// Matrices concatenated along an axis. Transposed matrices are concatenated before the transposition, as their
/// operands are contiguous.
#[track_caller]
fn joined(x: &[Var], axis: usize) -> Var {
    let concat = |x: &[Var], axis| Var::concat(&x.iter().collect::<Vec<_>>(), axis);
    match x.iter().map(untransposed).collect::<Option<Vec<_>>>() {
        Some(straight) => concat(&straight, 1 - axis).t(),
        None => concat(x, axis),
    }
}

/// The operand of a transposition, if the value is one.
fn untransposed(x: &Var) -> Option<Var> {
    if !x.is_transposed() {
        return None;
    }
    x.made_by(|op| matches!(op, Op::View(_)).then_some(()))?.1.pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Param, Precision, Result, Tape, Tensor};

    /// The gradient of `Σₜ Σ f(xₜ, w)²` by a weight `[16, 12]`. Also its extents, if it is an [`OuterProduct`].
    fn gradient(steps: &[fn(&Var, &Var) -> Var]) -> Result<(Vec<f64>, Option<[usize; 3]>)> {
        let device = Device::cpu_with(Precision::Double);
        let weight = Param::new(Tensor::randn(&device, [16, 12], 1)?);
        let tape = Tape::new(&device);
        let w = tape.param(&weight);
        let terms = steps.iter().enumerate().map(|(seed, step)| {
            let x = tape.input(&Tensor::randn(&device, [2, 16], seed as u64 + 2)?);
            Ok(step(&x, &w).square().sum())
        });
        let terms = terms.collect::<Result<Vec<_>>>()?;
        let loss = terms.into_iter().reduce(|a, b| a + b).expect("a step at least");
        let gradient = tape.backward(&loss)?.get(&weight).expect("of a trained parameter");
        let product = OuterProduct::of(&gradient).map(|product| {
            let (left, right) = (product.left.shape(), product.right.shape());
            [left[0], left[1], right[1]]
        });
        Ok((gradient.to_tensor()?.to_f64_vec()?, product))
    }

    #[test]
    fn products_of_few_rows_are_joined() -> Result<()> {
        let straight: fn(&Var, &Var) -> Var = |x, w| x.matmul(w);
        let turned: fn(&Var, &Var) -> Var = |x, w| w.t().matmul(&x.t());
        let scaled: fn(&Var, &Var) -> Var = |x, w| x.matmul(&(w * 2.0));
        for (steps, extents) in [
            (vec![straight; 2], Some([16, 4, 12])),
            (vec![straight; 3], Some([16, 6, 12])),
            // With more terms, it is still one product, but its operands are larger than the matrix.
            (vec![straight; 4], None),
            (vec![straight, turned], Some([16, 4, 12])),
            (vec![straight, scaled, straight], None),
        ] {
            let (whole, product) = gradient(&steps)?;
            assert_eq!(product, extents);
            let mut expected = vec![0.0; whole.len()];
            for (seed, step) in steps.iter().enumerate() {
                // One step alone; the others count 0 times.
                let silent: fn(&Var, &Var) -> Var = |x, w| (x.matmul(w)) * 0.0;
                let alone: Vec<_> = (0..steps.len()).map(|other| if other == seed { *step } else { silent }).collect();
                expected.iter_mut().zip(gradient(&alone)?.0).for_each(|(sum, x)| *sum += x);
            }
            for (x, expected) in whole.iter().zip(&expected) {
                assert!((x - expected).abs() < 1e-12 * expected.abs().max(1.0), "{x} {expected}");
            }
        }
        Ok(())
    }

    /// Cotangents of an activation are added one by one: joined products would grow from layer to layer.
    #[test]
    fn cotangents_of_activations_are_added_one_by_one() -> Result<()> {
        let device = Device::cpu_with(Precision::Double);
        let tape = Tape::new(&device);
        let random =
            |shape: [usize; 2], seed: u64| Ok::<_, crate::Error>(tape.input(&Tensor::randn(&device, shape, seed)?));
        let h = random([64, 48], 1)?.tanh();
        let [a, b] = [random([48, 4], 2)?, random([48, 4], 3)?];
        let loss = (h.matmul(&a) + h.matmul(&b)).square().sum();
        let gradient = tape.backward(&loss)?.of(&h).expect("the loss depends on it");
        assert!(OuterProduct::of(&gradient).is_none());
        let expected = (h.matmul(&(&a + &b)) * 2.0).matmul(&(a + b).t());
        gradient.to_tensor()?.expect_close(&expected.to_tensor()?, 1e-12, 1e-12)
    }
}
