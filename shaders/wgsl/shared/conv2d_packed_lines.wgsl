// The rows of products of convolutions: weights w[G,DEPTH/8,ROWS,8], in the order that `conv2d_pack_lines` leaves them in.

@group(0) @binding(1) var<storage, read> w: array<vec4<f32>>;

fn load_a(group: u32, i: u32, k: u32, end: u32) -> FullLine {
    let there = is_row(i) && is_term(k, end);
    let at = select(0u, ((group * DEPTH + k) / 8u * ROWS + i) * 2u, there);
    return FullLine(w[at], w[at + 1u], there);
}
