//! Kernels whose results are sums of terms: the launches of kernels that include `shared/terms.wgsl`.
//!
//! A result is computed by an invocation, by a few, or by a workgroup. An invocation that adds up all terms of a large
//! window loops for long. It then keeps a GPU waiting, and on Mesa's lavapipe it never reaches the end: see
//! [`Caps::LOOPS_IN_SOFTWARE`](crate::kernel::launch::Caps::LOOPS_IN_SOFTWARE).

use super::{Bf16, Innermost, Stores};
use crate::Shape;
use crate::kernel::launch::{Caps, Channels, Define, Format, Kind, LINE, Launch, Variant, Workgroups, define, tree};

/// The number of terms from which a workgroup computes a result, instead of an invocation.
const LONG: usize = 4096;

/// The number of terms from which a sum has a large tree.
const MANY: usize = 1 << 20;

/// The size of a workgroup in which each invocation computes a result.
const GROUP: usize = 64;

/// The size of a workgroup in which several invocations share a result.
const SLICED: usize = 256;

/// A kernel, and the sums that it computes.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) kernel: &'static str,
    pub(super) defines: Vec<Define>,
    /// The number of operands that it binds, and of results. The first result is stored through the epilogue.
    pub(super) bindings: (usize, usize),
    /// The elements of the first result.
    pub(super) results: usize,
    /// The most terms of one result, vertically and horizontally.
    pub(super) extent: [usize; 2],
}

impl Terms {
    /// Each invocation computes a result.
    pub(super) fn by_invocations(self) -> Launch {
        self.launch("invocation", "full", 1)
    }

    /// Each invocation computes a line, with operands and results in [bf16](crate::kernel::launch::Format::Bf16).
    pub(super) fn by_lines(self) -> Launch {
        self.launch("invocation", "lines", LINE).by_lines()
    }

    fn launch(mut self, by: &'static str, format: &'static str, each: usize) -> Launch {
        let [down, across] = self.extent;
        self.defines.extend(define![BY: by, FORMAT: format]);
        let loops = across.saturating_add(2).saturating_mul(down).saturating_add(1);
        let workgroups = Workgroups::of(self.results.div_ceil(each), GROUP).looping(loops);
        Launch::new(self.kernel, self.defines, self.bindings, workgroups).stores_through_epilogue()
    }

    /// `slices` invocations share a result: a power of two, at least 2.
    fn by_slices(mut self, slices: usize) -> Launch {
        let terms = self.extent[0].saturating_mul(self.extent[1]);
        self.defines.extend(define![SLICES: slices, BY: "slices", FORMAT: "full"]);
        let workgroups = Workgroups::new(self.results.div_ceil(SLICED / slices), SLICED)
            .with_memory(&[4 * SLICED])
            .looping(terms.div_ceil(slices) + slices + 2);
        Launch::new(self.kernel, self.defines, self.bindings, workgroups).stores_through_epilogue()
    }

    /// Variants for few results with few terms, best first: one invocation, or several, for each result. A driver that
    /// computes on the CPU gains nothing from several.
    pub(super) fn by_few(self, caps: &Caps) -> Vec<Variant> {
        let each = Variant::simple("each", self.clone().by_invocations());
        match (slices(self.extent[0].saturating_mul(self.extent[1])), caps.kind) {
            (1, _) => vec![each],
            (slices, Kind::Software) => vec![each, Variant::simple("sliced", self.by_slices(slices))],
            (slices, _) => vec![Variant::simple("sliced", self.by_slices(slices))],
        }
    }

    /// Each workgroup computes a result.
    pub(super) fn by_workgroups(mut self, shape: Tree) -> Launch {
        self.defines.extend(define![EACH: shape.each, BY: "workgroup", FORMAT: "full"]);
        // Workgroup memory has a word for each result: a sum, or the largest and its place.
        let workgroups = Workgroups::new(self.results, shape.group)
            .with_memory(&[4 * self.bindings.1 * shape.group])
            .looping(shape.loops(self.extent[0].saturating_mul(self.extent[1])));
        Launch::new(self.kernel, self.defines, self.bindings, workgroups).stores_through_epilogue()
    }

    /// The variants for an operand in this format, best first. The variant by invocations has the given name.
    pub(super) fn variants(self, format: Format, name: &'static str) -> Vec<Variant> {
        if format.is_bf16() {
            return vec![Variant::simple("lines", self.by_lines())];
        }
        let is_long = is_long(self.extent);
        let by_invocations = Variant::simple(name, self.clone().by_invocations());
        let by_workgroups = Variant::simple("tree", self.by_workgroups(Tree::LARGE));
        if is_long { vec![by_workgroups, by_invocations] } else { vec![by_invocations, by_workgroups] }
    }
}

/// The operands and results that a kernel takes as bf16 if it computes `y` by lines, from an operand like `x` and
/// sums of this number of terms.
pub(super) fn bf16(operands: &'static [usize], [x, y]: [Shape; 2], extent: [usize; 2], caps: &Caps) -> Option<Bf16> {
    let in_lines = [x, y].iter().all(|&shape| Channels::of(shape).is_some());
    let fit = caps.bf16 && in_lines && !is_long(extent);
    fit.then_some(Bf16::new(Innermost::Channels, operands, Stores::Lines))
}

/// `true` if a workgroup should compute a result with this number of terms, instead of an invocation.
fn is_long([down, across]: [usize; 2]) -> bool {
    down.saturating_mul(across) >= LONG
}

/// The number of invocations that share a result with so many terms. On an H200, for products of 32 to 512 terms, it is
/// the fastest of 4, 8, 16 and 32, or at most a sixth slower than the fastest.
fn slices(terms: usize) -> usize {
    match terms {
        ..8 => 1,
        8..512 => 1 << (terms / 4).min(16).ilog2(),
        512.. => 32,
    }
}

/// The tree by which a workgroup computes a sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tree {
    group: usize,
    /// The terms that an invocation adds in a row.
    each: usize,
}

impl Tree {
    /// For sums that fill it.
    pub(super) const LARGE: Self = Self { group: 256, each: 4 };

    /// For a sum that naturally has `terms` terms: a dot product, the gradient of a weight.
    pub(super) fn of(terms: usize) -> Self {
        if terms < MANY { Self { group: 64, each: 1 } } else { Self::LARGE }
    }

    /// The iterations: turns of several terms, then of one, and the tree.
    fn loops(self, terms: usize) -> usize {
        (terms / (self.group * self.each)).saturating_add(self.each + 2 + tree(self.group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_invocations_share_a_result_where_it_has_terms_for_them() {
        let names = |terms, caps| {
            let of_terms =
                Terms { kernel: "matmul_dot", defines: Vec::new(), bindings: (2, 1), results: 100, extent: [1, terms] };
            of_terms.by_few(&caps).into_iter().map(|variant| variant.name).collect::<Vec<_>>()
        };
        assert_eq!([1, 7, 8, 31, 32, 64, 511, 512, 5000].map(slices), [1, 1, 2, 4, 8, 16, 16, 32, 32]);
        assert_eq!(names(7, Caps::DISCRETE), ["each"]);
        assert_eq!(names(8, Caps::DISCRETE), ["sliced"]);
        assert_eq!(names(7, Caps::SOFTWARE), ["each"]);
        assert_eq!(names(8, Caps::SOFTWARE), ["each", "sliced"]);
        assert!((1..10_000).all(|terms| SLICED.is_multiple_of(slices(terms))));
    }

    #[test]
    fn sums_over_a_whole_buffer_stay_below_the_loop_limit() {
        let most = Caps::SOFTWARE.buffer / 4;
        for terms in [1, 100, MANY - 1, MANY, most] {
            assert!(Tree::of(terms).loops(terms) <= Caps::LOOPS_IN_SOFTWARE, "{terms}");
            assert!(Tree::LARGE.loops(terms) <= Caps::LOOPS_IN_SOFTWARE, "{terms}");
        }
        let loops = |extent| {
            let terms = Terms { kernel: "conv2d", defines: Vec::new(), bindings: (2, 1), results: 1, extent };
            terms.by_invocations().workgroups.loops
        };
        assert!(loops([256, 254]) > Caps::LOOPS_IN_SOFTWARE && loops([64, 64]) < Caps::LOOPS_IN_SOFTWARE);
        assert!(loops([1, LONG]) < Caps::LOOPS_IN_SOFTWARE && loops([LONG, 1]) < Caps::LOOPS_IN_SOFTWARE);
        assert_eq!(Tree::LARGE.loops(usize::MAX).checked_mul(1024), None);
    }
}
