// The windows and weights of resampling, along each axis; see `resample`.
//
// Defines: N             planes, or images in lines
//          SIDE          values of a pixel
//          H, W, P, Q    extents of the operand's planes, and of the result's
//          ROWS, COLUMNS the axes, expressions of type Axis
//          RULE          mean: of windows that cover the axis (adaptive average); linear: interpolation of two;
//                        cubic: of four
//          TRANSPOSED    1 for the transpose; the axes are those of the operation that is transposed

const N: u32 = ${N};
const SIDE: u32 = ${SIDE};
const H: u32 = ${H};
const W: u32 = ${W};
const P: u32 = ${P};
const Q: u32 = ${Q};

/// An axis of `inputs` positions, resampled to `outputs`. Position p lies at coordinate max(p·slope + shift, 0)/unit
/// with the linear rule, and (p·slope + shift)/unit with the cubic one.
struct Axis {
    inputs: i32,
    outputs: i32,
    slope: i32,
    shift: i32,
    unit: i32,
}

fn quotient_up(x: i32, divisor: i32) -> i32 {
    return (max(x, 0) + divisor - 1) / divisor;
}

#if RULE == cubic
/// The coordinate of position p, rounded down; at least −1.
fn low_of(axis: Axis, p: i32) -> i32 {
    return (p * axis.slope + axis.shift + axis.unit) / axis.unit - 1;
}

/// The weight of a position at distance d, between 0 and 2.
fn cubic(d: f32) -> f32 {
    let near = (1.25 * d - 2.25) * d * d + 1.0;
    let far = ((3.75 - 0.75 * d) * d - 6.0) * d + 3.0;
    return select(far, near, d <= 1.0);
}
#endif

/// The first position that contributes to position p.
fn window_first(axis: Axis, p: i32) -> i32 {
#if RULE == mean
    return p * axis.inputs / axis.outputs;
#elif RULE == cubic
    return clamp(low_of(axis, p) - 1, 0, axis.inputs - 1);
#else
    return max(p * axis.slope + axis.shift, 0) / axis.unit;
#endif
}

/// One past the last.
fn window_end(axis: Axis, p: i32) -> i32 {
#if RULE == mean
    return quotient_up((p + 1) * axis.inputs, axis.outputs);
#elif RULE == cubic
    return clamp(low_of(axis, p) + 2, 0, axis.inputs - 1) + 1;
#else
    return min(window_first(axis, p) + 2, axis.inputs);
#endif
}

/// The weight of position h in position p. Except with rule mean, h may lie outside the window: its weight is 0.
fn share(axis: Axis, p: i32, h: i32) -> f32 {
    let first = window_first(axis, p);
#if RULE == mean
    return 1.0 / f32(window_end(axis, p) - first);
#elif RULE == cubic
    let low = low_of(axis, p);
    let part = f32(p * axis.slope + axis.shift - low * axis.unit) / f32(axis.unit);
    // Positions beyond the ends are clamped: the outermost one gets their weights as well.
    let end = axis.inputs - 1;
    var sum = select(0.0, cubic(1.0 + part), clamp(low - 1, 0, end) == h);
    sum += select(0.0, cubic(part), clamp(low, 0, end) == h);
    sum += select(0.0, cubic(1.0 - part), clamp(low + 1, 0, end) == h);
    sum += select(0.0, cubic(2.0 - part), clamp(low + 2, 0, end) == h);
    return sum;
#else
    let part = f32(max(p * axis.slope + axis.shift, 0) - first * axis.unit) / f32(axis.unit);
    if h == first {
        // The last position has no neighbour.
        return select(1.0 - part, 1.0, first + 1 == axis.inputs);
    }
    return select(0.0, part, h == first + 1);
#endif
}

#if TRANSPOSED == 1
/// The first position whose window may include position h.
fn operand_first(axis: Axis, h: i32) -> i32 {
#if RULE == mean
    return h * axis.outputs / axis.inputs;
#elif RULE == cubic
    return quotient_up((h - 2) * axis.unit - axis.shift, axis.slope);
#else
    return quotient_up((h - 1) * axis.unit - axis.shift, axis.slope);
#endif
}

/// One past the last position whose window may include position h.
fn operand_end(axis: Axis, h: i32) -> i32 {
#if RULE == mean
    return quotient_up((h + 1) * axis.outputs, axis.inputs);
#elif RULE == cubic
    return min(quotient_up((h + 2) * axis.unit - axis.shift, axis.slope), axis.outputs);
#else
    return min(quotient_up((h + 1) * axis.unit - axis.shift, axis.slope), axis.outputs);
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
