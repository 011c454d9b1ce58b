//! The launches of recurrent layers on a GPU: one for each time step, and one at the beginning or the end.
//!
//! A launch cannot read and write one buffer through two bindings, so the state goes from step to step through two
//! scratch buffers in turn. Bindings of operands and results begin at the elements of a step, as far as the device's
//! alignment permits, so that all steps share a kernel, or a few.

use super::{At, Recurrent, RecurrentFormula, RecurrentGrad, RecurrentShape, WEIGHT};
use crate::kernel::launch::{Binding, Caps, Define, Format, LINE, Launch, Variant, Workgroups, define};

/// The most invocations of a workgroup that compute blocks of 4×4 sums. Where a device has workgroups of twice as many,
/// they compute blocks of 2×4: more of them wait for memory at once. Both add the same sums in the same order.
const INVOCATIONS: usize = 256;

/// The fewest invocations of a workgroup, so that none has many elements of the state; some of their groups may have
/// no terms.
const FEWEST: usize = 64;

/// The bytes of workgroup memory in which terms wait to be multiplied, at most. More would leave no room for a second
/// workgroup on a multiprocessor.
const MEMORY: usize = 40 << 10;

/// The bytes of workgroup memory that every device has.
const SMALLEST: usize = 16 << 10;

/// Terms of each group of invocations in workgroup memory: the more, the fewer barriers. The fewest for lines is 8.
const DEPTHS: [usize; 4] = [32, 16, 8, 4];

/// `true` if a device has memory for the kernels that read lines.
pub(super) fn fits_lines(caps: &Caps) -> bool {
    caps.workgroup_memory >= 32 << 10
}

/// What the product of a step needs; see `shared/recurrent.wgsl`.
#[derive(Clone, Copy, Debug)]
struct Tile {
    /// `true` if terms of a column are adjacent in the weight.
    along: bool,
    /// Rows, columns and hidden units of a tile.
    rows: usize,
    columns: usize,
    units: usize,
    /// Tiles down and across.
    grid: [usize; 2],
    /// Rows of an invocation.
    each: usize,
    /// Groups of invocations, which share the terms, and the terms of each.
    splits: usize,
    part: usize,
    /// Terms of all groups.
    terms: usize,
    /// Terms of each group in workgroup memory.
    depth: usize,
    /// Elements of the weight in a load.
    width: usize,
}

impl Tile {
    /// The largest tile with few rows that are not there. Tiles are small: a step has few of them for a GPU.
    fn new(shape: RecurrentShape, gates: usize, along: bool, lines: bool, caps: &Caps) -> Self {
        let RecurrentShape { n, h, .. } = shape;
        let (units, most) = if along { (8, 32) } else { (16, 16) };
        let (columns, terms) = if along { (units * gates, h) } else { (units, gates * h) };
        let times = if caps.tiles && caps.workgroup_size >= 2 * INVOCATIONS { 2 } else { 1 };
        let each = if caps.tiles { 4 / times } else { 1 };
        let most = if caps.tiles { most } else { 4 };
        let rows = n.next_power_of_two().clamp(4, most);
        let grid = [n.div_ceil(rows), h.div_ceil(units)];
        let width = if lines { LINE } else { 4 };
        let made = |splits: usize, depth| {
            let part = terms.div_ceil(splits).next_multiple_of(LINE);
            Self { along, rows, columns, units, grid, each, splits, part, terms, depth, width }
        };
        let memory = MEMORY.min(caps.workgroup_memory);
        // In full precision, bits do not depend on how much memory a device has.
        let most = if lines { memory } else { SMALLEST } / (16 * made(1, width).fours_of_operands());
        let of_tile = rows / each * columns / 4;
        let wanted = terms.div_ceil(LINE).max(times * FEWEST / of_tile);
        let splits = wanted.min(times * INVOCATIONS / of_tile).min(most).max(1);
        let suits = |tile: &Self| tile.depth >= width && tile.depth < 2 * tile.part && 16 * tile.fours() <= memory;
        DEPTHS.into_iter().map(|depth| made(splits, depth)).find(suits).unwrap_or(made(splits, width))
    }

    fn invocations(&self) -> usize {
        self.splits * self.rows / self.each * self.columns / 4
    }

    /// The distance of rows in workgroup memory, in fours; odd, so that neighbours lie in different banks.
    fn pitch(&self) -> usize {
        (self.depth / 4) | 1
    }

    fn fours_of_state(&self) -> usize {
        self.splits * self.rows * self.pitch()
    }

    fn fours_of_weight(&self) -> usize {
        self.splits * if self.along { self.columns * self.pitch() } else { self.depth * self.columns / 4 }
    }

    fn fours_of_sums(&self) -> usize {
        self.splits * self.rows * self.columns / 4
    }

    fn fours_of_operands(&self) -> usize {
        self.fours_of_state() + self.fours_of_weight()
    }

    /// Fours of workgroup memory: operands, and then the sums.
    fn fours(&self) -> usize {
        self.fours_of_operands().max(self.fours_of_sums())
    }

    fn steps(&self) -> usize {
        self.part.div_ceil(self.depth)
    }

    /// Elements of a state for each invocation.
    fn pairs(&self) -> usize {
        (self.rows * self.units).div_ceil(self.invocations())
    }

    fn workgroups(&self, multiplies: bool, gates: usize) -> Workgroups {
        let workgroups = Workgroups::new(self.grid[0] * self.grid[1], self.invocations());
        if !multiplies {
            return workgroups;
        }
        let loops = (self.steps() + 1) * (self.depth / 4 + 2) + self.pairs() * gates * (self.splits + 1);
        workgroups.with_memory(&[16 * self.fours()]).looping(loops)
    }

    /// The defines of a kernel that multiplies, or else of one that only computes elements.
    fn defines(&self, shape: RecurrentShape, multiplies: bool) -> Vec<Define> {
        let Self { rows, columns, units, each, splits, part, terms, depth, width, .. } = *self;
        let mut defines = define![
            N: shape.n, H: shape.h, ROWS: rows, UNITS: units, TILES_H: self.grid[1],
            TILES: self.grid[0] * self.grid[1], PAIRS: self.pairs(),
        ];
        if multiplies {
            let loads = |elements: usize, width: usize| (elements / width).div_ceil(self.invocations());
            let of_weight = splits * depth * if self.along { columns } else { units };
            let held = if width == LINE {
                "line"
            } else if shape.h.is_multiple_of(4) {
                "four"
            } else {
                "one"
            };
            defines.extend(define![
                WEIGHT: if self.along { "along" } else { "across" }, HELD: held,
                TERMS: terms, PART: part, SPLITS: splits, COLUMNS: columns, EACH: each, DOWN: rows / each,
                ACROSS: columns / 4, DEPTH: depth, STEPS: self.steps(), PITCH: self.pitch(), PLACES: self.fours(),
                PLACES_STATE: self.fours_of_state(), LOADS_STATE: loads(splits * rows * depth, 4),
                LOADS_WEIGHT: loads(of_weight, width),
            ]);
        }
        defines
    }
}

/// The bindings of a launch, each with its define, and the elements at which they begin.
struct Bound {
    bindings: Vec<Binding>,
    begins: Vec<usize>,
    defines: Vec<Define>,
    /// Elements of the device's alignment.
    every: usize,
}

impl Bound {
    fn new(caps: &Caps) -> Self {
        Self { bindings: Vec::new(), begins: Vec::new(), defines: Vec::new(), every: caps.alignment / 4 }
    }

    /// Binds a whole buffer. The define is the number of the binding.
    fn whole(&mut self, define: &'static str, binding: Binding) {
        self.part(define, binding, 0);
    }

    /// Binds a buffer from an element on, or from an earlier one that is aligned; returns that.
    fn part(&mut self, define: &'static str, binding: Binding, from: usize) -> usize {
        let begin = from / self.every * self.every;
        self.defines.push((define, self.bindings.len().to_string()));
        self.bindings.push(binding);
        self.begins.push(begin);
        begin
    }

    fn define(&mut self, name: &'static str, value: usize) {
        self.defines.push((name, value.to_string()));
    }

    fn launch(self, kernel: &'static str, defines: Vec<Define>, workgroups: Workgroups) -> Launch {
        let launch = Launch::new(kernel, [self.defines, defines].concat(), (0, 0), workgroups);
        Launch { bindings: self.bindings, begins: self.begins, ..launch }
    }
}

/// The scratch buffer that a step reads, and the one that it writes.
fn states(step: usize) -> [Binding; 2] {
    [Binding::Scratch((step + 1) % 2), Binding::Scratch(step % 2)]
}

fn formula_defines(formula: RecurrentFormula, masked: bool) -> Vec<Define> {
    let mut defines = define![FORMULA: formula.define(), GATES: formula.gates()];
    if masked {
        defines.extend(define![MASKED: 1]);
    }
    defines
}

/// The launches of all steps: `h` and `c` of the beginning are copied to the states of all steps, then one launch each.
pub(super) fn forward(op: &Recurrent, shape: RecurrentShape, weight: Format, caps: &Caps) -> Variant {
    let RecurrentShape { t, n, h } = shape;
    let (formula, state) = (op.formula, shape.state());
    let tile = Tile::new(shape, formula.gates(), true, weight != Format::Full, caps);
    let mut launches = vec![start(op, shape, caps)];
    for step in 0..t {
        let At { time, before, after } = op.at(step, t);
        let [from, to] = states(step);
        let (mut bound, low) = (Bound::new(caps), before.min(after) * state);
        bound.whole("AT_STATE", if step == 0 { Binding::Input(2) } else { from });
        bound.whole("AT_WEIGHT", Binding::Input(WEIGHT));
        let at = time * n * formula.gates() * h;
        let begin = bound.part("AT_X", Binding::Input(0), at);
        bound.define("X_FROM", at - begin);
        let begin = bound.part("AT_HIDDEN", Binding::Output(0), after * state);
        bound.define("HIDDEN_TO", after * state - begin);
        if let Some(k) = op.cells() {
            let begin = bound.part("AT_CELLS", Binding::Output(k), low);
            bound.define("CELLS_FROM", before * state - begin);
            bound.define("CELLS_TO", after * state - begin);
        }
        if let Some(k) = op.saved() {
            let begin = bound.part("AT_SAVED", Binding::Output(k), time * 4 * state);
            bound.define("SAVED_TO", time * 4 * state - begin);
        }
        if let Some(k) = op.bias() {
            bound.whole("AT_BIAS", Binding::Input(k));
            bound.define("BIASED", 1);
        }
        if let Some(k) = op.mask() {
            let begin = bound.part("AT_MASK", Binding::Input(k), time * n);
            bound.define("MASK_FROM", time * n - begin);
        }
        match (step + 1 == t, formula.is_lstm()) {
            (false, _) => bound.whole("AT_NEXT", to),
            (true, true) => bound.whole("AT_LAST", Binding::Output(1)),
            (true, false) => {}
        }
        if step + 1 == t {
            bound.define("ENDS", 1);
        }
        let defines = [formula_defines(formula, op.masked), tile.defines(shape, true)].concat();
        launches.push(bound.launch("recurrent", defines, tile.workgroups(true, formula.gates())));
    }
    Variant { name: "steps", launches, scratch: vec![state; t.saturating_sub(1).min(2)] }
}

fn start(op: &Recurrent, shape: RecurrentShape, caps: &Caps) -> Launch {
    let (mut bound, at) = (Bound::new(caps), op.at(0, shape.t).before * shape.state());
    let mut defines = define![ELEMENTS: shape.state()];
    bound.bindings.push(Binding::Input(2));
    bound.begins.push(0);
    let mut copy = |define: &'static str, result: usize| {
        let begin = at / bound.every * bound.every;
        bound.bindings.push(Binding::Output(result));
        bound.begins.push(begin);
        bound.define(define, at - begin);
    };
    copy("HIDDEN_TO", 0);
    if let Some(k) = op.cells() {
        copy("CELLS_TO", k);
        bound.bindings.insert(2, Binding::Input(3));
        bound.begins.insert(2, 0);
        defines.extend(define![CELLS: 1]);
    }
    bound.launch("recurrent_start", defines, Workgroups::of_elements(shape.state()))
}

/// The launches of the gradient, from the last step to the first; a further one gives the initial state's.
pub(super) fn backward(op: &RecurrentGrad, shape: RecurrentShape, weight: Format, caps: &Caps) -> Variant {
    let RecurrentShape { t, n, h } = shape;
    let (formula, masked, state) = (op.forward.formula, op.forward.masked, shape.state());
    let tile = Tile::new(shape, formula.gates(), false, weight != Format::Full, caps);
    let blocks = formula.blocks();
    let mut launches = Vec::with_capacity(t + 1);
    for turn in 0..=t {
        let (is_last, is_start) = (turn == 0, turn == t);
        // The cotangents of the state after this step, or of the initial state.
        let at = op.forward.at(t - 1 - turn.min(t - 1), t);
        let place = if is_start { at.before } else { at.after };
        let [from, to] = states(turn);
        let mut bound = Bound::new(caps);
        if !is_last {
            bound.whole("AT_STATE", from);
            bound.whole("AT_WEIGHT", Binding::Input(WEIGHT));
        }
        let begin = bound.part("AT_HIDDEN", Binding::Input(0), place * state);
        bound.define("HIDDEN_FROM", place * state - begin);
        let mut defines = formula_defines(formula, masked && !is_start);
        if masked || formula == RecurrentFormula::Gru {
            defines.extend(define![DIRECT: 1]);
        }
        if is_start {
            bound.whole("AT_D_HIDDEN", Binding::Output(1));
            if formula.is_lstm() {
                bound.whole("AT_D_CELL", Binding::Output(2));
            }
        } else {
            let low = match formula {
                RecurrentFormula::Lstm => at.before.min(at.after),
                RecurrentFormula::Gru => at.before,
                RecurrentFormula::Tanh | RecurrentFormula::Relu => at.after,
            };
            let begin = bound.part("AT_VALUES", Binding::Input(2), low * state);
            if formula.saves() {
                bound.define("BEFORE", at.before * state - begin);
            }
            if formula != RecurrentFormula::Gru {
                bound.define("AFTER", at.after * state - begin);
            }
            if let Some(k) = op.saved() {
                let begin = bound.part("AT_SAVED", Binding::Input(k), at.time * 4 * state);
                bound.define("SAVED_FROM", at.time * 4 * state - begin);
            }
            if let Some(k) = op.mask() {
                let begin = bound.part("AT_MASK", Binding::Input(k), at.time * n);
                bound.define("MASK_FROM", at.time * n - begin);
            }
            if let Some(k) = op.last().filter(|_| is_last) {
                bound.whole("AT_D_LAST", Binding::Input(k));
                bound.define("CELL", 1);
            }
            let first = at.time * blocks * state;
            let begin = bound.part("AT_SUMS", Binding::Output(0), first);
            bound.define("SUMS_TO", first - begin);
            bound.whole("AT_NEXT", to);
            defines.extend(define![BLOCKS: blocks]);
        }
        let form = if is_last {
            "last"
        } else if is_start {
            "start"
        } else {
            "step"
        };
        defines.extend(define![FORM: form]);
        defines.extend(tile.defines(shape, !is_last));
        launches.push(bound.launch("recurrent_grad", defines, tile.workgroups(!is_last, 1)));
    }
    let elements = n * h * (formula.gates() + 2);
    Variant { name: "steps", launches, scratch: vec![elements; t.min(2)] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::launch::Caps;

    /// Sums have the same parts, in full precision, whatever the size of a workgroup.
    #[test]
    fn larger_workgroups_share_the_same_parts() {
        let small = Caps { workgroup_size: INVOCATIONS, ..Caps::DISCRETE };
        for (n, h) in [(1, 3), (64, 512), (5, 64), (300, 17)] {
            for (gates, along) in [(4, true), (3, true), (1, false), (4, false)] {
                let tile = |caps: &Caps| Tile::new(RecurrentShape { t: 1, n, h }, gates, along, false, caps);
                let [large, small] = [tile(&Caps::DISCRETE), tile(&small)];
                assert_eq!((large.splits, large.part), (small.splits, small.part), "{n}, {h}");
                assert_eq!((large.each, small.each), (2, 4));
                assert!(large.invocations() == 2 * small.invocations() && small.invocations() <= INVOCATIONS);
            }
        }
    }
}
