// Cotangents of a convolution's outputs in lines, eight channels of a pixel, from the kernel's binding `dy`: dy[N,P,Q,O] in halves.

fn cotangent_line(n: u32, o: u32, p: u32, q: u32, there: bool) -> Line {
    return Line(dy[select(0u, ((n * P + p) * Q + q) * (O / 8u) + o / 8u, there)], there);
}

/// Channels o.. of a pixel of image n; nothing outside of it, and unless `wanted`.
fn cotangent(n: u32, o: u32, p: u32, q: u32, wanted: bool) -> Line {
    return cotangent_line(n, o, p, q, wanted && p < P && q < Q);
}
