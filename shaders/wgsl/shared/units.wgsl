// What matrix units multiply: numbers of 16 bits, in workgroup memory in fours. They are f16, which lines of images are
// scaled to fit; or with BFLOAT bf16, as lines of images are in memory. WGSL has no bf16: with BFLOAT, what it calls
// f16 is bf16, which the host tells the driver. Nothing is computed with it but products of matrices.

#include "shared/half"

alias Four = vec4<f16>;

/// Four numbers of 16 bits that are two in a word: the same bits.
fn four_of(words: vec2<u32>) -> Four {
    return Four(vec2<f16>(unpack2x16float(words.x)), vec2<f16>(unpack2x16float(words.y)));
}

/// The first and the last four of a line of an image, for matrix units.
fn first_four(words: vec4<u32>, scale: f32) -> Four {
#if BFLOAT
    return four_of(words.xy);
#else
    return Four(eight_of(words).first * scale);
#endif
}

fn last_four(words: vec4<u32>, scale: f32) -> Four {
#if BFLOAT
    return four_of(words.zw);
#else
    return Four(eight_of(words).second * scale);
#endif
}
