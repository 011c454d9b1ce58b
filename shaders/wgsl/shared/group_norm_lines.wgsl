// Slabs, for group normalisation of bf16. A slab is SLAB channels of an image, or fewer where the last line is padded;
// each workgroup takes one. Neighbouring
// invocations read the lines of a pixel, and the next OCTETS invocations those of the next pixel, so that loads
// coalesce. Lines are counted through the tensor: line i begins with element 8·i.
//
// An invocation takes one line of every PIXELS-th pixel. HELD 1: it keeps them in registers, packed as in memory. HELD
// 0: it reads them in each pass, QUADS·EACH of them at a step.
//
// A cell is the neighbouring channels of a line that are in one group: a line has CELLS of them. A group's sums are
// those of its cells.
//
// Sums have a fixed order. Chains are short: after an outlier, every addition in a chain may round the same way.
//
// Defines: N, C, S, G
//          SLAB   a divisor of C, rounded up to lines; a multiple of 8 and of C/G, or all channels
//          PADDED 1 if C is no multiple of 8, else 0
//          OCTETS, GROUPS, SLABS   lines of a slab's pixel, its groups, and the slabs of an image
//          PIXELS a power of two, 2 at least; WG: SLAB/8·PIXELS
//          HELD   1 or 0
//          QUADS, EACH   with EACH ≤ 4, and QUADS·EACH·PIXELS ≥ S where HELD is 1
//          CELLS  8 divided by the greatest common divisor of 8 and C/G
//          PLANES number of an invocation's sums, at least two for each cell
//          FOLDS  partial sums of a group; 1 where the group has few terms
//          KEPT   invocations whose sums are in workgroup memory: all, or half, to which the other half's are added
//          TERMS, FEWER, ROWS   adding TERMS of these at a time leaves FEWER, KEPT/TERMS, those of ROWS pixels

#include "shared/bf16"

const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const G: u32 = ${G};
const SLAB: u32 = ${SLAB};
const PIXELS: u32 = ${PIXELS};
const CELLS: u32 = ${CELLS};
const PLANES: u32 = ${PLANES};
const FOLDS: u32 = ${FOLDS};
const GROUP_C: u32 = C / G;
const LEN: u32 = GROUP_C * S;
const OCTETS: u32 = ${OCTETS};
const WG: u32 = ${WG};
const SLABS: u32 = ${SLABS};
const GROUPS: u32 = ${GROUPS};
/// Channels of a cell, and cells of a group.
const CELL: u32 = 8u / CELLS;
const GROUP_CELLS: u32 = GROUP_C / CELL;
/// Lines of a pixel.
const LINES: u32 = (C + 7u) / 8u;
/// Pixels that a workgroup takes at a step.
const STEP: u32 = ${QUADS}u * ${EACH}u * PIXELS;
const STEPS: u32 = (S + STEP - 1u) / STEP;

fn plus(a: Eight, b: Eight) -> Eight {
    return Eight(a.first + b.first, a.second + b.second);
}

fn minus(a: Eight, b: Eight) -> Eight {
    return Eight(a.first - b.first, a.second - b.second);
}

fn times(a: Eight, b: Eight) -> Eight {
    return Eight(a.first * b.first, a.second * b.second);
}

/// The line if `is_in`, else zeros.
fn only(is_in: bool, a: Eight) -> Eight {
    return Eight(select(vec4<f32>(), a.first, is_in), select(vec4<f32>(), a.second, is_in));
}

#if HELD == 1
/// Always 0, which compilers cannot know.
var<workgroup> nothing: u32;
#endif

/// Prepares calls of `again`, which must come after a barrier.
fn prepare(lane: u32) {
#if HELD == 1
    if lane == 0u {
        nothing = 0u;
    }
#endif
}

/// Unpacks a held line in a pass after the first. Compilers cannot see that it is the line of the first pass: else they
/// would keep that one unpacked, in twice as many registers.
fn again(words: vec4<u32>) -> Eight {
#if HELD == 1
    return eight_of(words ^ vec4(nothing));
#else
    return eight_of(words);
#endif
}

/// `true` if pixel first + k·PIXELS exists: the pixel of an invocation's line k in the step that begins at `first`.
fn is_pixel(first: u32, k: u32) -> bool {
#if HELD == 1
    if (k + 1u) * PIXELS <= S {
        return true;
    }
#endif
    return first + k * PIXELS < S;
}

/// A sum over an invocation's lines, for each channel.
struct Sum {
    total: Eight,
#if HELD == 0
    run: Eight,
    stretch: Eight,
#endif
}

#if HELD == 1
fn added(sum: Sum, quad: Eight) -> Sum {
    return Sum(plus(sum.total, quad));
}

fn sum_of(sum: Sum) -> Eight {
    return sum.total;
}
#else
fn added(sum: Sum, quad: Eight) -> Sum {
    return Sum(sum.total, plus(sum.run, quad), sum.stretch);
}

/// The sum after a step. Eight steps are a run, and sixteen runs a stretch: each is added up by itself.
fn after(sum: Sum, step: u32) -> Sum {
    if step % 8u != 7u {
        return sum;
    }
    let stretch = plus(sum.stretch, sum.run);
    if step % 128u != 127u {
        return Sum(sum.total, Eight(), stretch);
    }
    return Sum(plus(sum.total, stretch), Eight(), Eight());
}

fn sum_of(sum: Sum) -> Eight {
    return plus(sum.total, plus(sum.stretch, sum.run));
}
#endif

/// For each cell, the sum of its channels of a line.
fn cells_of(line: Eight) -> array<f32, CELLS> {
    var cells = array<f32, CELLS>();
    cells[0] = line.first.x;
#for I in 3
    if (${I}u + 1u) % CELL == 0u {
        cells[(${I}u + 1u) / CELL] = line.first[${I} + 1];
    } else {
        cells[(${I}u + 1u) / CELL] += line.first[${I} + 1];
    }
#endfor
#for I in 4
    if (${I}u + 4u) % CELL == 0u {
        cells[(${I}u + 4u) / CELL] = line.second[${I}];
    } else {
        cells[(${I}u + 4u) / CELL] += line.second[${I}];
    }
#endfor
    return cells;
}

/// A line that has each cell's value at all channels of the cell.
fn line_of_cells(cells: array<f32, CELLS>) -> Eight {
    return Eight(
        vec4(cells[0], cells[1u / CELL], cells[2u / CELL], cells[3u / CELL]),
        vec4(cells[4u / CELL], cells[5u / CELL], cells[6u / CELL], cells[7u / CELL]),
    );
}

/// The group, within the slab, of cell j of an invocation's line. Cells of padding count as the last group's.
fn group_of(octet: u32, j: u32) -> u32 {
#if PADDED == 1
    return min((octet * CELLS + j) / GROUP_CELLS, GROUPS - 1u);
#else
    return (octet * CELLS + j) / GROUP_CELLS;
#endif
}

/// Group g of a slab among those of the image; padding may have more.
fn group_at(slab: u32, g: u32) -> u32 {
#if PADDED == 1
    return min(slab * GROUPS + g, G - 1u);
#else
    return slab * GROUPS + g;
#endif
}

// Reads the line at LINE of `numbers`, one number of each channel, as LINE_OF_CHANNELS; for the padding, the last one.
#macro line_of_channels(NAME, NUMBERS, LINE)
#if PADDED == 1
#for E in 8
    let ${NAME}_${E} = ${NUMBERS}[min(8u * ${LINE} + ${E}u, C - 1u)];
#endfor
    let ${NAME} = Eight(
        vec4(${NAME}_0, ${NAME}_1, ${NAME}_2, ${NAME}_3),
        vec4(${NAME}_4, ${NAME}_5, ${NAME}_6, ${NAME}_7),
    );
#else
    let ${NAME} = Eight(${NUMBERS}[2u * ${LINE}], ${NUMBERS}[2u * ${LINE} + 1u]);
#endif
#endmacro

#if PADDED == 1
alias OfChannels = f32;
#else
alias OfChannels = vec4<f32>;
#endif

const KEPT: u32 = ${KEPT};
const TERMS: u32 = ${TERMS};
const FEWER: u32 = ${FEWER};
const ROWS: u32 = ${ROWS};

/// Planes of sums. A plane has one sum of each kept invocation.
var<workgroup> values: array<f32, PLANES * KEPT>;
var<workgroup> folds: array<vec2<f32>, GROUPS * FOLDS>;

/// Adds the first `planes` sums of all invocations over the workgroup's pixels, until ROWS terms of each are left. All
/// invocations call this together. A barrier must separate reads of the results from the next call.
fn add_pixels(lane: u32, own: array<f32, PLANES>, planes: u32) {
    if KEPT < WG {
        if lane >= KEPT {
#for P in PLANES
            if ${P}u < planes {
                values[${P}u * KEPT + lane - KEPT] = own[${P}];
            }
#endfor
        }
        workgroupBarrier();
        if lane < KEPT {
#for P in PLANES
            if ${P}u < planes {
                values[${P}u * KEPT + lane] += own[${P}];
            }
#endfor
        }
    } else {
#for P in PLANES
        if ${P}u < planes {
            values[${P}u * KEPT + lane] = own[${P}];
        }
#endfor
    }
    workgroupBarrier();
    if TERMS > 1u {
        for (var i = lane; i < planes * FEWER; i += WG) {
            // The sum replaces its first term, which no other invocation reads.
            let at = i / FEWER * KEPT + i % FEWER;
            var total = values[at];
            for (var j = 1u; j < TERMS; j++) {
                total += values[at + j * FEWER];
            }
            values[at] = total;
        }
        workgroupBarrier();
    }
}

/// A plane's total over all pixels for octet `octet` of the slab, after `add_pixels`.
fn plane_total(octet: u32, plane: u32) -> f32 {
    var total = values[plane * KEPT + octet];
    for (var row = 1u; row < ROWS; row++) {
        total += values[plane * KEPT + row * OCTETS + octet];
    }
    return total;
}

/// Term t of the two sums of group g. Planes from 0 on have the cells of the first sum, planes from CELLS on those of
/// the second. The second sum is 0 if there are only CELLS planes.
fn group_term(g: u32, t: u32, planes: u32) -> vec2<f32> {
    let cell = g * GROUP_CELLS + t % GROUP_CELLS;
    let at = cell % CELLS * KEPT + t / GROUP_CELLS * OCTETS + cell / CELLS;
    if planes == CELLS {
        return vec2(values[at], 0.0);
    }
    return vec2(values[at], values[at + CELLS * KEPT]);
}

/// Adds up each group's terms to FOLDS partial sums, if that is more than one. All invocations call this together.
fn fold_groups(lane: u32, planes: u32) {
    if FOLDS > 1u {
        for (var i = lane; i < GROUPS * FOLDS; i += WG) {
            var total = vec2<f32>();
            for (var t = i % FOLDS; t < ROWS * GROUP_CELLS; t += FOLDS) {
                total += group_term(i / FOLDS, t, planes);
            }
            folds[i] = total;
        }
        workgroupBarrier();
    }
}

/// The two sums of group g of the slab, after `fold_groups`.
fn group_total(g: u32, planes: u32) -> vec2<f32> {
    var total = vec2<f32>();
    if FOLDS > 1u {
        for (var i = 0u; i < FOLDS; i++) {
            total += folds[g * FOLDS + i];
        }
        return total;
    }
    for (var t = 0u; t < ROWS * GROUP_CELLS; t++) {
        total += group_term(g, t, planes);
    }
    return total;
}

// Reads the lines of a step of `x`. BEGIN is the line of the image's first pixel, FIRST the invocation's first pixel of
// the step. It declares in_Q_K: `true` if the pixel exists; at_Q_K: the pixel's line, else that of the image's first
// pixel; and x_Q_K: the line as it is in memory.
#macro read_step(BEGIN, FIRST)
#for Q in QUADS
#for K in EACH
    let in_${Q}_${K} = is_pixel(${FIRST}, ${Q}u * ${EACH}u + ${K}u);
    let at_${Q}_${K} = ${BEGIN} + select(0u, ${FIRST} + (${Q}u * ${EACH}u + ${K}u) * PIXELS, in_${Q}_${K}) * LINES;
    let x_${Q}_${K} = x[at_${Q}_${K}];
#endfor
#endfor
#endmacro
