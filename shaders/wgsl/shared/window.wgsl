// Geometry of a 2-D window that slides over padded planes of H×W and yields P×Q outputs: KH×KW taps, stride SH, SW,
// padding PH, PW before the plane, dilation DH, DW.
//
// Defines: N, H, W, P, Q, KH, KW, SH, SW, PH, PW, DH, DW

const N: u32 = ${N};
const H: u32 = ${H};
const W: u32 = ${W};
const P: u32 = ${P};
const Q: u32 = ${Q};
const KH: u32 = ${KH};
const KW: u32 = ${KW};
const SH: u32 = ${SH};
const SW: u32 = ${SW};
const PH: u32 = ${PH};
const PW: u32 = ${PW};
const DH: u32 = ${DH};
const DW: u32 = ${DW};

/// The first tap of output `out` that reads no padding, and the number of such taps, which are consecutive.
fn taps_inside(out: u32, taps: u32, stride: u32, padding: u32, dilation: u32, extent: u32) -> vec2<u32> {
    // Negative in the padding.
    let start = i32(out * stride - padding);
    let first = (u32(max(-start, 0)) + dilation - 1u) / dilation;
    let end = min(taps, (u32(max(i32(extent) - start, 0)) + dilation - 1u) / dilation);
    return vec2(first, max(end, first) - first);
}

fn rows_inside(p: u32) -> vec2<u32> {
    return taps_inside(p, KH, SH, PH, DH, H);
}

fn columns_inside(q: u32) -> vec2<u32> {
    return taps_inside(q, KW, SW, PW, DW, W);
}

/// The first output whose window covers coordinate `at`, and the number of such outputs, which are consecutive. With a
/// dilation, some windows skip it.
fn outputs_over(at: u32, taps: u32, stride: u32, padding: u32, dilation: u32, outputs: u32) -> vec2<u32> {
    let start = at + padding;
    let reach = (taps - 1u) * dilation;
    let first = (max(start, reach) - reach + stride - 1u) / stride;
    let end = min(outputs, start / stride + 1u);
    return vec2(first, max(end, first) - first);
}

fn outputs_over_row(row: u32) -> vec2<u32> {
    return outputs_over(row, KH, SH, PH, DH, P);
}

fn outputs_over_column(column: u32) -> vec2<u32> {
    return outputs_over(column, KW, SW, PW, DW, Q);
}
