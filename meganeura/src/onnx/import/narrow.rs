//! Rounding to floats of at most 8 bits, on the host and on the tape: to the nearest, ties to even.

use super::call::Call;
use crate::error::bail;
use crate::io::narrow::Narrow;
use crate::{Result, Var};

/// How floats become those of a format.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    pub(super) format: Narrow,
    /// Numbers beyond the largest become the largest. Otherwise they become infinite, or NaN in a format without
    /// infinities.
    pub(super) saturates: bool,
}

impl Rounding {
    /// Of a node's attribute `saturate`.
    pub(super) fn of_call(call: &Call<'_>, format: Narrow) -> Result<Self> {
        if format == Narrow::E8M0 {
            bail!(Checkpoint, "floats are not converted to float8e8m0; numbers of this type are only read");
        }
        // A format of 4 bits has nothing else.
        Ok(Self { format, saturates: call.flag("saturate", true)? || format == Narrow::E2M1 })
    }

    fn largest(self) -> f64 {
        match self.format {
            Narrow::E4M3Fn => 448.0,
            Narrow::E4M3Fnuz => 240.0,
            Narrow::E5M2 | Narrow::E5M2Fnuz => 57_344.0,
            Narrow::E8M0 => 2f64.powi(127),
            Narrow::E2M1 => 6.0,
        }
    }

    /// The magnitude of numbers beyond the largest.
    fn beyond(self) -> f64 {
        match self.format {
            _ if self.saturates => self.largest(),
            Narrow::E5M2 => f64::INFINITY,
            _ => f64::NAN,
        }
    }

    /// A number, rounded.
    pub(super) fn of(self, x: f64) -> f64 {
        if x.is_nan() {
            // There is none in 4 bits.
            return if self.format == Narrow::E2M1 { 0.0 } else { x };
        }
        let (fraction, bias) = self.format.layout();
        let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        let unit = 2f64.powi(exponent.max(1 - bias) - fraction);
        let rounded = (x.abs() / unit).round_ties_even() * unit;
        let magnitude = if rounded > self.largest() { self.beyond() } else { rounded };
        magnitude.copysign(x)
    }

    /// Floats on the tape, rounded. Every operation but the rounding is exact.
    pub(super) fn record(self, x: &Var) -> Var {
        let (fraction, bias) = self.format.layout();
        // In units of the smallest normal number, below the range of a float.
        let least = 2f64.powi(1 - bias);
        let mut y = x.abs().minimum(x.constant(2.0 * self.largest())).scale(least.recip());
        let mut unit = x.constant(2f64.powi(1 - bias - fraction));
        // Until it is below 2, so that the fraction has its place. What is below 1 is subnormal.
        for power in [16, 8, 4, 2, 1] {
            let reach = x.constant(2f64.powi(power));
            let is_above = y.ge(&reach);
            y = is_above.where_cond(&y.scale(2f64.powi(-power)), &y);
            unit = is_above.where_cond(&unit.scale(2f64.powi(power)), &unit);
        }
        let rounded = y.scale(2f64.powi(fraction)).round() * unit;
        let largest = x.constant(self.largest());
        let magnitude = rounded.gt(&largest).where_cond(&x.constant(self.beyond()), &rounded);
        let signed = x.lt(x.constant(0.0)).where_cond(&-&magnitude, &magnitude);
        if self.format == Narrow::E2M1 { x.ne(x).where_cond(&x.constant(0.0), &signed) } else { signed }
    }
}
