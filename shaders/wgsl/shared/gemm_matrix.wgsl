// `main` of shared/gemm with UNITS matrix; see there for what it computes, its defines and the kernel's declarations.
// It uses fetch, is_of_a, place_a and place_b of shared/gemm, macro find_tile of shared/product, and shared/units.

// The pitch of terms: 16 bytes more than the tile, so that neighbouring terms lie in different banks.
const PITCH_A: u32 = LINES_A + 2u;
const PITCH_B: u32 = LINES_B + 2u;
/// The pitch of the rows of a fragment's sums.
const PITCH: u32 = 20u;
const SUMS: u32 = SM * SN * 16u * PITCH;
/// Binary digits of room above the peaks of the first step, less one.
const ROOM: i32 = 3;
/// Magnitudes of an operand that `sums` has room for while they are compared, a power of two. It divides WG.
const FINDERS: u32 = min(WG, 128u);

/// One fragment of sums for each subgroup, on its way to the epilogue; before that, the magnitudes that are compared.
var<workgroup> sums: array<f32, SUMS>;
/// Nonzero in x if a sum is not finite. Four components, because the next variable must begin at a multiple of 16
/// bytes: NVIDIA's driver does not align variables, and loads fragments wrongly from other places.
var<workgroup> too_large: vec4<u32>;
var<workgroup> tile_a: array<vec4<f16>, HALVES * BK * PITCH_A>;
var<workgroup> tile_b: array<vec4<f16>, HALVES * BK * PITCH_B>;

/// Notes a sum that is not finite.
fn note_sum(sum: f32) {
    if (bitcast<u32>(sum) & 0x7f800000u) == 0x7f800000u {
        too_large.x = 1u;
    }
}

/// The maximum over the workgroup of each of two values, which are not negative. All invocations call this together. It
/// overwrites 2·FINDERS elements of `sums`.
fn largest_of_workgroup(lane: u32, held: vec2<f32>) -> vec2<f32> {
    workgroupBarrier();
    let at = lane % FINDERS;
    for (var turn = 0u; turn < WG / FINDERS; turn += 1u) {
        if lane / FINDERS == turn {
            sums[at] = max(held.x, select(sums[at], 0.0, turn == 0u));
            sums[FINDERS + at] = max(held.y, select(sums[FINDERS + at], 0.0, turn == 0u));
        }
        workgroupBarrier();
    }
    for (var stride = FINDERS / 2u; stride > 0u; stride /= 2u) {
        if lane < stride {
            sums[lane] = max(sums[lane], sums[lane + stride]);
            sums[FINDERS + lane] = max(sums[FINDERS + lane], sums[FINDERS + lane + stride]);
        }
        workgroupBarrier();
    }
    return vec2(sums[0], sums[FINDERS]);
}

/// The exponents of the powers that scale a and b; `held` has the invocation's largest magnitude of each. All
/// invocations call this together.
fn exponents_of_block(lane: u32, held: vec2<f32>) -> vec2<i32> {
    workgroupBarrier();
    if lane == 0u {
        too_large.x = 0u;
    }
    return exponents_for(largest_of_workgroup(lane, held), ROOM);
}

/// `true` if an operand's elements were all zero, or so small that its exponent was clamped.
fn are_unknown(exponents: vec2<i32>) -> bool {
    return max(exponents.x, exponents.y) == 113;
}

/// The largest finite magnitudes in block number `first + lane`: of a in x, of b in y.
fn magnitudes(lane: u32, first: u32, block: mat4x4<f32>) -> vec2<f32> {
    var of_all = vec4<f32>();
#for C in 4
    of_all = max(of_all, finite_magnitudes(block[${C}]));
#endfor
    return select(vec2(0.0, largest(of_all)), vec2(largest(of_all), 0.0), is_of_a(lane, first));
}

/// The largest finite magnitudes of a and b in all blocks that this invocation loads for the tile.
fn largest_of_all(b: u32, row0: u32, column0: u32, begin: u32, end: u32, lane: u32) -> vec2<f32> {
    var held = vec2<f32>();
    for (var k = begin; k < end; k += BK) {
#for L in LOADS
        held = max(held, magnitudes(lane, ${L}u * WG, fetch(b, row0, column0, k, end, lane, ${L}u * WG)));
#endfor
    }
    return held;
}

/// Stores block number `first + lane` of a step into a half of workgroup memory, scaled and rounded.
fn put(half: u32, lane: u32, first: u32, block: mat4x4<f32>, scale: vec2<f32>) {
    if is_of_a(lane, first) {
        let place = place_a(first + lane);
        let line = (half * BK + 4u * place.y) * PITCH_A + place.x;
#for C in 4
        tile_a[line + ${C}u * PITCH_A] = vec4<f16>(block[${C}] * scale.x);
#endfor
        return;
    }
    let place = place_b(first + lane - BLOCKS_A);
    let line = (half * BK + 4u * place.y) * PITCH_B + place.x;
#for C in 4
    tile_b[line + ${C}u * PITCH_B] = vec4<f16>(block[${C}] * scale.y);
#endfor
}

// Accumulates the products of a step in sum_I_J. The step is in half H of workgroup memory. It takes `y` and `x` of
// find_tile.
#macro multiply_step(H)
#for U in STEPS
        // Places are variables, because naga's SPIR-V writer rejects them inside the calls.
#for I in FM
        let at_a_${H}_${U}_${I} = (${H}u * BK + ${U}u * 16u) * PITCH_A + 4u * (y + ${I}u);
        let a_${H}_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${H}_${U}_${I}], PITCH_A);
#endfor
#for J in FN
        let at_b_${H}_${U}_${J} = (${H}u * BK + ${U}u * 16u) * PITCH_B + 4u * (x + ${J}u);
        let b_${H}_${U}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b_${H}_${U}_${J}], PITCH_B);
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(a_${H}_${U}_${I}, b_${H}_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
#endmacro

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
#insert find_tile()
    var held = vec2<f32>();
#for L in LOADS
    let first_${L} = fetch(batch, row0, column0, begin, end, lane, ${L}u * WG);
    held = max(held, magnitudes(lane, ${L}u * WG, first_${L}));
#endfor
    var exponents = exponents_of_block(lane, held);
    if are_unknown(exponents) {
        exponents = exponents_of_block(lane, largest_of_all(batch, row0, column0, begin, end, lane));
    }
    let scale = powers(exponents);
#for L in LOADS
    put(0u, lane, ${L}u * WG, first_${L}, scale);
#endfor
    workgroupBarrier();
    for (var k0 = begin; k0 < end; k0 += HALVES * BK) {
#for H in HALVES
        let more_${H} = k0 + ${H}u * BK + BK < begin + PART_K;
#for L in LOADS
        var next_${H}_${L}: mat4x4<f32>;
#endfor
        if more_${H} {
#for L in LOADS
            next_${H}_${L} = fetch(batch, row0, column0, k0 + ${H}u * BK + BK, end, lane, ${L}u * WG);
#endfor
        }
#insert multiply_step(H)
#if HALVES == 1
        workgroupBarrier();
#endif
        if more_${H} {
#for L in LOADS
            put((${H}u + 1u) % HALVES, lane, ${L}u * WG, next_${H}_${L}, scale);
#endfor
        }
        workgroupBarrier();
#endfor
    }

    // A sum that is not finite has a term that was too large for f16, or was not finite itself.
    var total = sum_0_0;
#for I in FM
#for J in FN
    if ${I}u + ${J}u > 0u {
        total = total + sum_${I}_${J};
    }
#endfor
#endfor
    let begin_total = subgroup * 16u * PITCH;
    workgroupBarrier();
    coopStoreT(total, &sums[begin_total], PITCH);
    workgroupBarrier();
    for (var e = lane % SUBGROUP; e < 256u; e += SUBGROUP) {
        note_sum(sums[begin_total + e / 16u * PITCH + e % 16u]);
    }
    workgroupBarrier();
    if too_large.x != 0u {
        // Once more. This is rare, so loads do not overlap with products.
        exponents = exponents_of_block(lane, largest_of_all(batch, row0, column0, begin, end, lane));
        let lower = powers(exponents);
#for I in FM
#for J in FN
        sum_${I}_${J} = coop_mat16x16<f32, C>();
#endfor
#endfor
        for (var k = begin; k < end; k += BK) {
            workgroupBarrier();
#for L in LOADS
            put(0u, lane, ${L}u * WG, fetch(batch, row0, column0, k, end, lane, ${L}u * WG), lower);
#endfor
            workgroupBarrier();
#insert multiply_step(0)
        }
    }

    // Sums are scaled back by the smaller power first, so that no product overflows unless the result does.
    let inverse = powers(-exponents);
    let back = vec2(min(inverse.x, inverse.y), max(inverse.x, inverse.y));
#if PLAIN == none
    // They go through workgroup memory, one fragment of each subgroup at a time.
    let begin_sums = subgroup * 16u * PITCH;
    let member = lane % SUBGROUP;
#for I in FM
#for J in FN
    workgroupBarrier();
    coopStoreT(sum_${I}_${J}, &sums[begin_sums], PITCH);
    workgroupBarrier();
    {
        // Neighbouring invocations store neighbouring elements.
#for E in EACH
        let place_${E} = ${E}u * SUBGROUP + member;
        let row_${E} = row0 + (y + ${I}u) * 16u + place_${E} / 16u;
        let column_${E} = column0 + (x + ${J}u) * 16u + place_${E} % 16u;
        let there_${E} = is_row(row_${E}) && is_column(column_${E});
        let epilogue_${E} = epilogue(select(0u, row_at(batch, part, row_${E}) + column_at(column_${E}), there_${E}));
#endfor
#for E in EACH
        if there_${E} {
            finish(epilogue_${E}, sums[begin_sums + place_${E} / 16u * PITCH + place_${E} % 16u] * back.x * back.y);
        }
#endfor
    }
#endfor
#endfor
#else
#for I in FM
#for J in FN
    let place_${I}_${J} = row_at(batch, part, row0 + (y + ${I}u) * 16u) + column_at(column0 + (x + ${J}u) * 16u);
    let scaled_${I}_${J} = sum_${I}_${J} * back.x * back.y;
    coopStoreT(scaled_${I}_${J}, &${PLAIN}[place_${I}_${J}], PITCH_RESULT);
#endfor
#endfor
#endif
}
