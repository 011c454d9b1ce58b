// How products of frequencies become weights again: their parts are added up, and the weights of a workgroup's pairs of
// channels, nine each, are stored through the epilogue.
//
// Defines: WG, O, C
//          FREQUENCIES  16 or 36, as the kernel's transform has
//          PARTS        added up in their order
// Bindings: du[PARTS,FREQUENCIES,O,C] → dw[O,C,3,3] by its epilogue. ⌈O·C/WG⌉ workgroups.

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const O: u32 = ${O};
const C: u32 = ${C};
const PARTS: u32 = ${PARTS};
const FREQUENCIES: u32 = ${FREQUENCIES};

@group(0) @binding(0) var<storage, read> du: array<f32>;

var<workgroup> weights: array<f32, 9u * WG>;

/// The products of a pair of channels. All of a part are read together: to read one alone waits just as long for
/// memory.
fn products(pair: u32) -> array<f32, FREQUENCIES> {
    var sums: array<f32, FREQUENCIES>;
#for F in FREQUENCIES
    sums[${F}] = du[${F}u * O * C + pair];
#endfor
    for (var part = 1u; part < PARTS; part++) {
        let first = part * FREQUENCIES * O * C + pair;
#for F in FREQUENCIES
        sums[${F}] += du[first + ${F}u * O * C];
#endfor
    }
    return sums;
}

/// Stores what is in `weights`, the pairs from `first` on, so that neighbours store neighbours. All invocations call
/// this together.
fn store_weights(first: u32, lane: u32) {
    workgroupBarrier();
#for T in 9
    let at_${T} = first * 9u + ${T}u * WG + lane;
    let epilogue_${T} = epilogue(select(0u, at_${T}, at_${T} < O * C * 9u));
#endfor
#for T in 9
    if at_${T} < O * C * 9u {
        finish(epilogue_${T}, weights[${T}u * WG + lane]);
    }
#endfor
}
