// Cotangents of a convolution's outputs in lines, eight channels of a pixel, from the kernel's binding `dy`, an array of
// `Element`s (shared/line): dy[N,O,P,Q], or with FORMAT half dy[N,P,Q,O].

#if FORMAT == half
fn cotangent_line(n: u32, o: u32, p: u32, q: u32, there: bool) -> Line {
    return Line(dy[select(0u, ((n * P + p) * Q + q) * (O / 8u) + o / 8u, there)], there);
}
#else
fn cotangent_line(n: u32, o: u32, p: u32, q: u32, there: bool) -> Line {
    let at = select(0u, ((n * O + o) * P + p) * Q + q, there);
    return Line(
        vec4(dy[at], dy[at + P * Q], dy[at + 2u * P * Q], dy[at + 3u * P * Q]),
        vec4(dy[at + 4u * P * Q], dy[at + 5u * P * Q], dy[at + 6u * P * Q], dy[at + 7u * P * Q]),
        there,
    );
}
#endif

/// Channels o.. of a pixel of image n; nothing outside of it, and unless `wanted`.
fn cotangent(n: u32, o: u32, p: u32, q: u32, wanted: bool) -> Line {
    return cotangent_line(n, o, p, q, wanted && p < P && q < Q);
}
