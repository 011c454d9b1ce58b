// The windows and weights of resampling, along each axis; see `resample`.
//
// Defines: N             planes, or images in lines
//          SIDE          values of a pixel
//          H, W, P, Q    extents of the operand's planes, and of the result's
//          ROWS, COLUMNS the axes, an expression of type Axis
//          RULE          mean: of windows that cover the axis; linear: interpolated between two
//          TRANSPOSED    1 for the transpose; the axes are those of the operation that it is the transpose of

const N: u32 = ${N};
const SIDE: u32 = ${SIDE};
const H: u32 = ${H};
const W: u32 = ${W};
const P: u32 = ${P};
const Q: u32 = ${Q};

/// `made` positions out of `taken`. In the linear rule, position p lies at max(p·slope + shift, 0)/unit.
struct Axis {
    taken: i32,
    made: i32,
    slope: i32,
    shift: i32,
    unit: i32,
}

fn quotient_up(x: i32, divisor: i32) -> i32 {
    return (max(x, 0) + divisor - 1) / divisor;
}

/// The first position that position p is made of.
fn window_first(axis: Axis, p: i32) -> i32 {
#if RULE == mean
    return p * axis.taken / axis.made;
#else
    return max(p * axis.slope + axis.shift, 0) / axis.unit;
#endif
}

/// One past the last.
fn window_end(axis: Axis, p: i32) -> i32 {
#if RULE == mean
    return quotient_up((p + 1) * axis.taken, axis.made);
#else
    return min(window_first(axis, p) + 2, axis.taken);
#endif
}

/// The share of position h, which may be outside of the window.
fn share(axis: Axis, p: i32, h: i32) -> f32 {
    let first = window_first(axis, p);
#if RULE == mean
    return 1.0 / f32(window_end(axis, p) - first);
#else
    let part = f32(max(p * axis.slope + axis.shift, 0) - first * axis.unit) / f32(axis.unit);
    if h == first {
        // The last position has no neighbour.
        return select(1.0 - part, 1.0, first + 1 == axis.taken);
    }
    return select(0.0, part, h == first + 1);
#endif
}

#if TRANSPOSED == 1
/// Positions among which are all that position h has a share in: the first …
fn operand_first(axis: Axis, h: i32) -> i32 {
#if RULE == mean
    return h * axis.made / axis.taken;
#else
    return quotient_up((h - 1) * axis.unit - axis.shift, axis.slope);
#endif
}

/// … and one past the last.
fn operand_end(axis: Axis, h: i32) -> i32 {
#if RULE == mean
    return quotient_up((h + 1) * axis.made, axis.taken);
#else
    return min(quotient_up((h + 1) * axis.unit - axis.shift, axis.slope), axis.made);
#endif
}

fn weight(axis: Axis, result: i32, operand: i32) -> f32 {
    return share(axis, operand, result);
}
#else
fn operand_first(axis: Axis, p: i32) -> i32 {
    return window_first(axis, p);
}

fn operand_end(axis: Axis, p: i32) -> i32 {
    return window_end(axis, p);
}

fn weight(axis: Axis, result: i32, operand: i32) -> f32 {
    return share(axis, result, operand);
}
#endif
