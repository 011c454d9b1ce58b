// The rows of products of convolutions: weights w[G,DEPTH,ROWS], in the order that `conv2d_pack` leaves them in, four
// at a time.

@group(0) @binding(1) var<storage, read> w: array<vec4<f32>>;

fn weights(group: u32, i: u32, k: u32, end: u32) -> vec4<f32> {
    let there = is_row(i) && is_term(k, end);
    return select(vec4<f32>(), w[select(0u, ((group * DEPTH + k) * ROWS + i) / 4u, there)], there);
}

fn load_a(group: u32, i: u32, k: u32, end: u32) -> mat4x4<f32> {
    return mat4x4(
        weights(group, i, k, end),
        weights(group, i, k + 1u, end),
        weights(group, i, k + 2u, end),
        weights(group, i, k + 3u, end),
    );
}
