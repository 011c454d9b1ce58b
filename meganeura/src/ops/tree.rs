//! Sums of many terms, a workgroup for each: the launches of kernels that include `shared/tree.wgsl`, and when they beat one
//! invocation for each.
//!
//! An invocation that adds up all terms of a large window loops for long. So it keeps a GPU waiting, and on Mesa's lavapipe it never
//! reaches the end: see [`Caps::LOOPS_IN_SOFTWARE`](crate::kernel::launch::Caps::LOOPS_IN_SOFTWARE).

use crate::kernel::launch::{Launch, Variant, define, tree};

/// Terms from which a workgroup computes a window, rather than an invocation.
const LONG: usize = 4096;

/// Terms from which a sum has a large tree.
const MANY: usize = 1 << 20;

/// The shape of a workgroup that computes a sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tree {
    group: usize,
    /// Terms that an invocation adds in a row.
    each: usize,
}

impl Tree {
    /// For sums that fill it.
    pub(super) const LARGE: Self = Self { group: 256, each: 4 };

    /// For what is a sum of so many terms by nature: a dot product, the gradient of a weight.
    pub(super) fn of(terms: usize) -> Self {
        if terms < MANY { Self { group: 64, each: 1 } } else { Self::LARGE }
    }

    /// The launch of a kernel that binds so many operands, then results, of which there are `elements`, each of at most so many
    /// terms. The first is stored through the epilogue.
    pub(super) fn launch(
        self,
        kernel: &'static str,
        mut defines: Vec<(&'static str, String)>,
        bindings: (usize, usize),
        elements: usize,
        terms: usize,
    ) -> Launch {
        let Self { group, each } = self;
        defines.extend(define![WG: group, EACH: each]);
        Launch::new(kernel, defines, bindings, elements).loops(self.loops(terms)).stores_through_epilogue()
    }

    /// Turns of several terms, then of one, and the tree.
    fn loops(self, terms: usize) -> usize {
        (terms / (self.group * self.each)).saturating_add(self.each + 2 + tree(self.group))
    }
}

/// Both ways to add up windows of at most so many terms, the better one first.
pub(super) fn either(name: &'static str, one: Launch, tree: Launch, terms: usize) -> Vec<Variant> {
    let mut variants = vec![Variant::simple(name, one), Variant::simple("tree", tree)];
    if terms >= LONG {
        variants.reverse();
    }
    variants
}

/// The iterations of an invocation that goes over all pairs of positions down and across.
pub(super) fn pairs(down: usize, across: usize) -> usize {
    across.saturating_add(2).saturating_mul(down).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::launch::Caps;

    #[test]
    fn what_a_buffer_holds_is_added_before_lavapipe_stops() {
        let most = Caps::SOFTWARE.buffer / 4;
        for terms in [1, 100, MANY - 1, MANY, most] {
            assert!(Tree::of(terms).loops(terms) <= Caps::LOOPS_IN_SOFTWARE, "{terms}");
            assert!(Tree::LARGE.loops(terms) <= Caps::LOOPS_IN_SOFTWARE, "{terms}");
        }
        assert!(pairs(256, 254) > Caps::LOOPS_IN_SOFTWARE && pairs(64, 64) < Caps::LOOPS_IN_SOFTWARE);
        assert_eq!(Tree::LARGE.loops(usize::MAX).checked_mul(1024), None);
    }
}
