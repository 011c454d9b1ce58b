//! Picks the variant of each GPU kernel: the operation's first, unless another is preferred.

use crate::Result;
use crate::error::bail;

/// The variants that can compute one step of a plan, and the one that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelChoice {
    /// The step's number in [`Device::plan_dumps`](crate::Device::plan_dumps).
    pub step: usize,
    /// The operation's name.
    pub op: &'static str,
    /// The variant that runs; `native` on the CPU.
    pub variant: &'static str,
    /// All variants that the operation offers for these operands on this device, best first.
    pub offered: Vec<&'static str>,
}

/// Preferences for variants other than the first offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preferences {
    /// The index of the variant among those offered; the last one where there are fewer.
    pub(crate) number: usize,
    /// `true` to keep elementwise work out of the launches of kernels.
    pub(crate) apart: bool,
    /// `true` to have every capable kernel read and store bf16, even where it gains nothing.
    pub(crate) bf16: bool,
    /// `true` to keep `f32` in memory where a plan is too small for conversions to pay.
    pub(crate) economical: bool,
    /// Operations, each with the name of its preferred variant.
    pub(crate) named: Vec<(String, String)>,
}

impl Preferences {
    /// The index of the variant of `op` to run among those offered. Fails if the preferred variant is not among them.
    pub(crate) fn choose(&self, op: &str, offered: &[&'static str]) -> Result<usize> {
        let Some((_, wanted)) = self.named.iter().find(|(name, _)| name == op) else {
            return Ok(self.number.min(offered.len() - 1));
        };
        match offered.iter().position(|name| name == wanted) {
            Some(at) => Ok(at),
            None => bail!(Argument, "{op} has no variant {wanted:?} for these operands; the variants are {offered:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_chosen_unless_another_is_preferred() {
        let offered = ["tile", "direct"];
        let choose = |number, named: &[(&str, &str)]| {
            let named = named.iter().map(|&(op, variant)| (op.to_owned(), variant.to_owned())).collect();
            Preferences { number, named, ..Preferences::default() }.choose("conv2d", &offered)
        };
        assert_eq!([0, 1, 2].map(|number| choose(number, &[]).unwrap()), [0, 1, 1]);
        assert_eq!(choose(0, &[("matmul", "dot"), ("conv2d", "direct")]).unwrap(), 1);
        let error = choose(0, &[("conv2d", "dot")]).unwrap_err().to_string();
        for part in ["conv2d", "\"dot\"", "\"tile\"", "\"direct\""] {
            assert!(error.contains(part), "{error}");
        }
    }
}
