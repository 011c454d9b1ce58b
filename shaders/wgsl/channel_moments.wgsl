// Moments of each channel of x[N,C,S] over N·S elements, which are read once: the mean, as the sum of two numbers, and
// the sum of squares about it.
//
// An invocation takes STRETCH cells at a time. It subtracts a pivot, the mean of the first four: differences from it
// are exact near the mean. Their sum gives the rest of the mean; their squares, which are summed about the pivot, lose
// a few bits when that rest is taken away. The moments of stretches are joined by Chan, Golub and LeVeque's formula,
// which subtracts no large numbers. Those of invocations are joined as `group_norm_apply` joins parts: `high` first,
// relative to an element, then `low` and the squares about `high`.
//
// Bindings: x → parts[C,PARTS,4]: high, low, squares about their sum, 0 (TO scratch; see `channel_moments_join`); or
// mean[C], rest[C], variance[C] by its epilogue, where `rest` is the rounding error of `mean` (TO result, PARTS 1).
// ⌈UNITS·LANES/WG⌉ workgroups, or UNITS with lines.
//
// Defines: TO result or scratch; the others see shared/channels

#include "shared/channels"
#include "shared/float"
#if TO == result
#include "shared/epilogue_all"
#endif

@group(0) @binding(0) var<storage, read> x: array<Held>;
#if TO == scratch
@group(0) @binding(1) var<storage, read_write> parts: array<vec4<f32>>;
#endif

struct Moments {
    high: V,
    low: V,
    squares: V,
}

/// At least 0. NaN stays NaN: a comparison may become a maximum, which loses it.
fn not_negative(x: V) -> V {
#if FORMAT == lines
    let is_below = vec4(is_at_most_zero(x.x), is_at_most_zero(x.y), is_at_most_zero(x.z), is_at_most_zero(x.w));
    return select(x, V(), is_below);
#else
    return select(x, 0.0, is_at_most_zero(x));
#endif
}

/// The moments of numbers, from their count, the sum of their differences from a pivot, and the sum of the squares.
fn about(pivot: V, count: f32, sum: V, squares: V) -> Moments {
    let low = sum / count;
    return Moments(pivot, low, not_negative(squares - sum * low));
}

/// The moments of two sets of numbers together.
fn joined(a: Moments, of_a: f32, b: Moments, of_b: f32) -> Moments {
    let share = of_b / (of_a + of_b);
    let distance = (b.high - a.high) + (b.low - a.low);
    let shift = a.low + distance * share;
    let high = a.high + shift;
    return Moments(high, shift - (high - a.high), a.squares + b.squares + distance * (of_a * share) * distance);
}

/// Reads cells FIRST, FIRST + APART, …, four of them, those below LAST.
#macro read_four(OWN, FIRST, LAST)
#for U in 4
        let at_${U} = ${FIRST} + ${U}u * APART;
        let in_${U} = at_${U} < ${LAST};
        let cell_${U} = cell(x[place(${OWN}, select(${FIRST}, at_${U}, in_${U}))]);
#endfor
#endmacro

/// Adds the differences of four cells from the pivots, and their squares. IN is the prefix of the conditions.
#macro add_four(IN)
#for H in HALVES
#for U in 4
        let d_${H}_${U} = kept(cell_${U}[${H}] - pivot_${H}, ${IN}_${U});
#endfor
        sum_${H} += (d_${H}_0 + d_${H}_1) + (d_${H}_2 + d_${H}_3);
        squares_${H} += (d_${H}_0 * d_${H}_0 + d_${H}_1 * d_${H}_1) + (d_${H}_2 * d_${H}_2 + d_${H}_3 * d_${H}_3);
#endfor
#endmacro

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if is_beyond(index) {
        return;
    }
    let work = work_of(index, lane);
    var count = 0.0;
    var moments: array<Moments, ${HALVES}>;
    for (var r = work.begin + work.member; r < work.end; r += STRETCH * APART) {
        let last = min(r + STRETCH * APART, work.end);
        let of_first = f32(min(count_of(r, last), 4u));
        let of_stretch = f32(count_of(r, last));
#insert read_four(work.own, r, last)
#for H in HALVES
        let pivot_${H} = ((kept(cell_0[${H}], in_0) + kept(cell_1[${H}], in_1))
            + (kept(cell_2[${H}], in_2) + kept(cell_3[${H}], in_3))) / of_first;
        var sum_${H} = V();
        var squares_${H} = V();
#endfor
#insert add_four(in)
        for (var s = r + 4u * APART; s < last; s += 4u * APART) {
#insert read_four(work.own, s, last)
#insert add_four(in)
        }
#for H in HALVES
        let stretch_${H} = about(pivot_${H}, of_stretch, sum_${H}, squares_${H});
        if count == 0.0 {
            moments[${H}] = stretch_${H};
        } else {
            moments[${H}] = joined(moments[${H}], count, stretch_${H}, of_stretch);
        }
#endfor
        count += of_stretch;
    }

    // Invocations without a cell have a count of 0.
    let len = f32(work.end - work.begin);
    let pivots = cell(x[place(work.own, work.begin)]);
#if FORMAT == lines
    var terms: Cell;
#for H in HALVES
    terms[${H}] = kept(count * ((moments[${H}].high - pivots[${H}]) + moments[${H}].low), count > 0.0);
#endfor
    let shifts = total_of(lane, terms);
    var others: Cell;
#for H in HALVES
    let high_${H} = pivots[${H}] + shifts[${H}] / len;
    let d_${H} = kept((moments[${H}].high - high_${H}) + moments[${H}].low, count > 0.0);
    terms[${H}] = count * d_${H};
    others[${H}] = moments[${H}].squares + count * d_${H} * d_${H};
#endfor
    let sums = total_of(lane, terms);
    let squares = total_of(lane, others);
    if lane < EIGHTS && work.is_unit {
#for H in HALVES
        let whole_${H} = about(high_${H}, len, sums[${H}], squares[${H}]);
#for E in 4
        if 8u * work.own + ${H}u * 4u + ${E}u < C {
            parts[(8u * work.own + ${H}u * 4u + ${E}u) * PARTS + work.part] =
                vec4(whole_${H}.high[${E}], whole_${H}.low[${E}], whole_${H}.squares[${E}], 0.0);
        }
#endfor
#endfor
    }
#else
    var whole = moments[0];
    if LANES > 1u {
        let shift = count * ((whole.high - pivots[0]) + whole.low);
        let high = pivots[0] + segment_total(lane, vec2(kept(shift, count > 0.0), 0.0)).x / len;
        let d = kept((whole.high - high) + whole.low, count > 0.0);
        let both = segment_total(lane, vec2(count * d, whole.squares + count * d * d));
        whole = about(high, len, both.x, both.y);
    }
    if work.is_unit && work.member == 0u {
#if TO == scratch
        parts[work.own * PARTS + work.part] = vec4(whole.high, whole.low, whole.squares, 0.0);
#else
        let sum = whole.high + whole.low;
        store_all(work.own, vec4(sum, (whole.high - sum) + whole.low, whole.squares / len, 0.0));
#endif
    }
#endif
}
