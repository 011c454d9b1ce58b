//! Sums of values that are parts of one shape, with zeros around them, such as the gradients of slices.
//!
//! `n` slices of a value have `n` cotangents of the whole value's size. Adding those one by one would take time and
//! memory `n` times the value's. Here the parts are added only where they overlap, and then concatenated: the work is
//! proportional to the parts' sizes, and the number of operations to the number of parts.

use std::collections::{BTreeMap, HashMap};

use crate::Shape;
use crate::graph::Exact;
use crate::ops::{KernelOp, Op, View};
use crate::tape::Var;

/// The depth up to which equal ranges are searched for parts along further axes, as in slices of slices.
const DEPTH: usize = 8;

/// Up to this many pieces are taken out of an operand that is itself a concatenation, …
const FEW_PIECES: usize = 8;
/// … and up to this many times as many as there are other pieces. So a concatenation of a concatenation, and so on,
/// does not list the innermost pieces at each level.
const PIECES_RATIO: usize = 4;

/// `true` if the value is zero outside of a range of one axis, or a view of such a value.
pub(crate) fn is_part(x: &Var) -> bool {
    Part::of(x).is_some()
}

/// The sum of values of one shape, at least one. Parts are joined, see the module's documentation.
#[track_caller]
pub(crate) fn sum_of_parts(values: &[Var]) -> Var {
    sum(values, DEPTH)
}

#[track_caller]
fn sum(values: &[Var], depth: usize) -> Var {
    if let [value] = values {
        return value.clone();
    }
    // In the order of their first values, so that equal programs have equal structures.
    let (mut groups, mut places): (Vec<Group>, HashMap<_, usize>) = (Vec::new(), HashMap::new());
    let mut terms = Vec::new();
    for value in values {
        match Part::of(value).filter(|_| depth > 0) {
            Some(Part { whole, views, axis, start, inside }) => {
                let place = *places.entry((views, whole, axis)).or_insert_with_key(|(views, whole, _)| {
                    groups.push(Group { whole: *whole, views: views.clone(), axis, ranges: Vec::new() });
                    groups.len() - 1
                });
                groups[place].ranges.push((start, inside, value.clone()));
            }
            None => terms.push(value.clone()),
        }
    }
    terms.extend(groups.into_iter().map(|group| group.sum(depth)));
    terms.into_iter().reduce(|sum, term| sum + term).expect("there are values")
}

/// A value that is zero outside of a range of one axis.
struct Part {
    /// The shape with the zeros.
    whole: Shape,
    /// The views through which the value reads that, the last one first.
    views: Vec<View>,
    axis: usize,
    start: usize,
    inside: Var,
}

impl Part {
    fn of(x: &Var) -> Option<Self> {
        let (mut views, mut x) = (Vec::new(), x.clone());
        while let Some((view, mut operands)) = x.made_by(|op| match op {
            Op::View(view @ (View::Reshape(_) | View::Permute(_))) => Some(view.clone()),
            _ => None,
        }) {
            if views.len() == DEPTH {
                return None;
            }
            views.push(view);
            x = operands.swap_remove(0);
        }
        let (pad, mut operands) = x.made_by(|op| match op {
            Op::Kernel(KernelOp::Pad(pad)) => Some(pad.clone()),
            _ => None,
        })?;
        let mut widened = pad.widths.iter().enumerate().filter(|(_, widths)| **widths != (0, 0));
        match (widened.next(), widened.next()) {
            (Some((axis, &(start, _))), None) if pad.value == Exact(0.0) => {
                Some(Self { whole: x.shape(), views, axis, start, inside: operands.swap_remove(0) })
            }
            _ => None,
        }
    }
}

/// Parts of one shape along one axis.
struct Group {
    whole: Shape,
    views: Vec<View>,
    axis: usize,
    /// The start of each part, what is inside, and the value with its zeros.
    ranges: Vec<(usize, Var, Var)>,
}

impl Group {
    #[track_caller]
    fn sum(self, depth: usize) -> Var {
        let Self { whole, views, axis, ranges } = self;
        if let [(_, _, value)] = &ranges[..] {
            return value.clone();
        }
        let mut equal: BTreeMap<(usize, usize), Vec<Var>> = BTreeMap::new();
        for (start, inside, _) in ranges {
            equal.entry((start, start + inside.shape()[axis])).or_default().push(inside);
        }
        let mut segments = Segments { axis, covered: BTreeMap::new() };
        for ((start, end), inside) in equal {
            segments.add(start, end, &sum(&inside, depth - 1));
        }
        let result = segments.join(whole);
        views.into_iter().rev().fold(result, |x, view| x.record(view, &[&x]))
    }
}

/// A sum along one axis, as segments in order, with nothing where no value was added.
struct Segments {
    axis: usize,
    /// For the start of each segment, its end and its value.
    covered: BTreeMap<usize, (usize, Var)>,
}

impl Segments {
    /// Adds a value to a range. The segments that it meets, if they adjoin, become one. So all additions together make
    /// a number of segments proportional to the number of values, and are as large as the values.
    #[track_caller]
    fn add(&mut self, start: usize, end: usize, value: &Var) {
        let axis = self.axis;
        self.split(start);
        self.split(end);
        let of_value = |from: usize, to: usize| match (from, to) == (start, end) {
            true => value.clone(),
            false => value.slice(axis, from - start..to - start),
        };
        let mut met = Vec::new();
        while let Some((&from, _)) = self.covered.range(start..end).next() {
            let (to, segment) = self.covered.remove(&from).expect("it was found");
            met.push((from, to, segment));
        }
        let mut at = start;
        for run in met.chunk_by(|(_, end, _), (start, ..)| end == start) {
            let (from, to) = (run[0].0, run[run.len() - 1].1);
            if at < from {
                self.covered.insert(at, (from, of_value(at, from)));
            }
            let segments: Vec<_> = run.iter().map(|(.., segment)| segment).collect();
            let sum = if let [segment] = segments[..] { segment.clone() } else { Var::concat(&segments, axis) };
            self.covered.insert(from, (to, sum + of_value(from, to)));
            at = to;
        }
        if at < end {
            self.covered.insert(at, (end, of_value(at, end)));
        }
    }

    /// Makes two segments of one that lies on both sides of a place.
    #[track_caller]
    fn split(&mut self, place: usize) {
        let Some((&start, &(end, _))) = self.covered.range(..place).next_back() else { return };
        if end <= place {
            return;
        }
        let (_, whole) = self.covered.remove(&start).expect("it was found");
        for part in [start..place, place..end] {
            let value = whole.slice(self.axis, part.start - start..part.end - start);
            self.covered.insert(part.start, (part.end, value));
        }
    }

    /// The value of this shape, with zeros where there is no segment.
    #[track_caller]
    fn join(self, whole: Shape) -> Var {
        let axis = self.axis;
        let mut widths = vec![(0, 0); whole.rank()];
        let mut at = *self.covered.keys().next().expect("it has segments");
        widths[axis].0 = at;
        let count = self.covered.len();
        let mut pieces = Vec::with_capacity(count);
        for (start, (end, value)) in self.covered {
            if at < start {
                pieces.push(value.constant(0.0).expand(whole.with(axis, start - at)));
            }
            let own = pieces_of(&value, axis);
            if own.len() <= FEW_PIECES.max(PIECES_RATIO * (count - 1)) {
                pieces.extend(own);
            } else {
                pieces.push(value);
            }
            at = end;
        }
        widths[axis].1 = whole[axis] - at;
        let joined = match &pieces[..] {
            [piece] => piece.clone(),
            pieces => Var::concat(&pieces.iter().collect::<Vec<_>>(), axis),
        };
        if widths[axis] == (0, 0) { joined } else { joined.pad(&widths, 0.0) }
    }
}

/// The operands of a concatenation along this axis, or else the value itself.
fn pieces_of(value: &Var, axis: usize) -> Vec<Var> {
    let made = value.made_by(|op| match op {
        Op::Kernel(KernelOp::Concat(concat)) => concat.is_along(axis).then_some(()),
        _ => None,
    });
    made.map_or_else(|| vec![value.clone()], |((), pieces)| pieces)
}
