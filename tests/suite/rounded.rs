//! Functions whose values are bf16 in memory, forward and backward, against `f64`. Memory holds NaN before each run, so
//! that padding that is read but not written shows.

use libtest_mimic::Failed;
use meganeura::{Device, Precision, Result, Shape, Tape, Tensor, Var};

use crate::nets::normal;
use crate::numbers::{Computed, Reference, compare};
use crate::ops::{each_variant, offered};

/// A function of operands of these shapes.
pub(crate) struct Function<'a, S, R> {
    /// The operands' numbers follow from it.
    pub(crate) name: &'a str,
    pub(crate) shapes: &'a [S],
    pub(crate) record: R,
}

/// Numbers that are exact in bf16.
pub(crate) fn numbers(name: &str, shape: &[usize]) -> Vec<f64> {
    let round = |x: f64| (x * 32.0).round().clamp(-127.0, 127.0) / 32.0;
    normal(name, shape.iter().product()).into_iter().map(round).collect()
}

impl<S: AsRef<[usize]>, R: Fn(&[Var]) -> Result<Var>> Function<'_, S, R> {
    /// Checks the function wherever values may be bf16: without matrix units, and with them in every variant of the
    /// products. The result is the dump of its plans without them. Errors begin with `what`.
    pub(crate) fn check(&self, device: &Device, what: &str) -> Result<String, Failed> {
        let reference = self.evaluate(&Device::cpu_with(Precision::Double))?;
        let hold = |device: &Device| -> Result<usize, Failed> {
            let found = self.evaluate(device)?;
            assert_eq!(found.len(), reference.len());
            for (k, (found, reference)) in found.into_iter().zip(&reference).enumerate() {
                // A few roundings to eight bits, of terms up to the largest magnitude.
                let scale = reference.iter().fold(0.0f64, |max, x| max.max(x.abs()));
                let scaled = |data: &[f64]| data.iter().map(|x| x / scale).collect::<Vec<_>>();
                let what = format!("{what} on {device}: value {k}");
                compare(&what, &Computed(scaled(&found)), &Reference(scaled(reference)), 0.03)?;
            }
            Ok(offered(device))
        };
        let all = device.for_testing_bf16(0);
        hold(&all)?;
        let fast = device.with_precision(Precision::Fast);
        fast.map_or(Ok(()), |device| each_variant(&device, hold))?;
        Ok(all.plan_dumps().join("\n"))
    }

    /// The value, and the gradient for each operand.
    fn evaluate(&self, device: &Device) -> Result<Vec<Vec<f64>>> {
        let tape = Tape::new(device);
        let input = |name: &str, shape: &[usize]| {
            Ok::<_, meganeura::Error>(tape.input(&Tensor::from_f64(device, Shape::new(shape), &numbers(name, shape))?))
        };
        let shapes = self.shapes.iter().enumerate();
        let operands = shapes.map(|(k, shape)| input(&format!("{} {k}", self.name), shape.as_ref()));
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let value = (self.record)(&operands)?;
        let cotangent = input("cotangent", value.shape().dims())?;
        let grads = tape.backward(&(&value * cotangent).sum())?;
        let gradients = operands.iter().filter_map(|operand| grads.of(operand));
        let values: Vec<_> = std::iter::once(value.clone()).chain(gradients).collect();
        drop(value);
        values.iter().map(|value| value.to_tensor()?.to_f64_vec()).collect()
    }
}
