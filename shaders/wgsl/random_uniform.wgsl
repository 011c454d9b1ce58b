// Uniform random numbers in [0, 1), from the counter-based generator Philox-4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). Element i is a function of the seed, STREAM and i alone, so that any device
// computes the same bits.
//
// Four words come from the counter c = (⌊i/4⌋, STREAM, 0, 0) and the key k = (seed[SEED_AT], seed[SEED_AT + 1]). Each
// of ten rounds replaces c by (hi(M1·c₂) ⊕ c₁ ⊕ k₀, lo(M1·c₂), hi(M0·c₀) ⊕ c₃ ⊕ k₁, lo(M0·c₀)), M0 = d2511f53, M1 =
// cd9e8d57 (hexadecimal), hi and lo being the halves of the 64-bit product; between two rounds k grows by (9e3779b9,
// bb67ae85), modulo 2³². Element i is u[i] = ⌊c[i mod 4] / 2⁸⌋ · 2⁻²⁴.
//
// Bindings: seed (u32, two words from SEED_AT on) → u[N]. One invocation computes four elements; ⌈⌈N/4⌉/WG⌉ workgroups.
//
// Defines: WG
//          N       number of elements
//          STREAM  a u32 that distinguishes draws with the same seed
//          SEED_AT the place of the seed's first word

#include "shared/elements"
#include "shared/epilogue"

const N: u32 = ${N};
const STREAM: u32 = ${STREAM};
const ELEMENTS: u32 = (N + 3u) / 4u;

@group(0) @binding(0) var<storage, read> seed: array<u32>;

/// Upper half of the 64-bit product, from four 16-bit products. No sum here overflows.
fn multiply_high(x: u32, y: u32) -> u32 {
    let x_low = x & 0xffffu;
    let x_high = x >> 16u;
    let y_low = y & 0xffffu;
    let y_high = y >> 16u;
    let middle = x_high * y_low + ((x_low * y_low) >> 16u);
    let carry = x_low * y_high + (middle & 0xffffu);
    return x_high * y_high + (middle >> 16u) + (carry >> 16u);
}

fn philox(counter: vec4<u32>, seed_words: vec2<u32>) -> vec4<u32> {
    var c = counter;
    var key = seed_words;
    for (var round = 0u; round < 10u; round++) {
        c = vec4<u32>(
            multiply_high(0xcd9e8d57u, c.z) ^ c.y ^ key.x,
            0xcd9e8d57u * c.z,
            multiply_high(0xd2511f53u, c.x) ^ c.w ^ key.y,
            0xd2511f53u * c.x,
        );
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}

fn compute(block: u32) {
    let words = philox(vec4<u32>(block, STREAM, 0u, 0u), vec2<u32>(seed[${SEED_AT}], seed[${SEED_AT} + 1]));
    for (var i = 0u; i < 4u; i++) {
        if block * 4u + i < N {
            store(block * 4u + i, f32(words[i] >> 8u) * 0x1p-24f);
        }
    }
}
