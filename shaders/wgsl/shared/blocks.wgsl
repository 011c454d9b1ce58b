// Where the blocks of 4×4 are that shared/gemm reads its operands in.

// Groups of four rows (columns) of a step.
const LINES_A: u32 = BM / 4u;
const LINES_B: u32 = BN / 4u;
const BLOCKS_A: u32 = LINES_A * BK / 4u;

/// Place of block number `at` in a step: its group of rows, and its group of k.
fn place_a(at: u32) -> vec2<u32> {
#if A_ALONG == k
    return vec2(at / (BK / 4u), at % (BK / 4u));
#else
    return vec2(at % LINES_A, at / LINES_A);
#endif
}

fn place_b(at: u32) -> vec2<u32> {
#if B_ALONG == k
    return vec2(at / (BK / 4u), at % (BK / 4u));
#else
    return vec2(at % LINES_B, at / LINES_B);
#endif
}

/// Whether the block that an invocation loads, counted from `first`, is one of a. `first` is a constant, so this often
/// is one, too.
fn is_of_a(lane: u32, first: u32) -> bool {
    return first + WG <= BLOCKS_A || (first < BLOCKS_A && first + lane < BLOCKS_A);
}

/// The block of the step at k0 that an invocation loads, counted from `first`; first come those of a.
fn fetch(b: u32, row0: u32, column0: u32, k0: u32, end: u32, lane: u32, first: u32) -> mat4x4<f32> {
    if is_of_a(lane, first) {
        let place = place_a(first + lane);
        return load_a(b, row0 + 4u * place.x, k0 + 4u * place.y, end);
    }
    let place = place_b(first + lane - BLOCKS_A);
    return load_b(b, k0 + 4u * place.y, column0 + 4u * place.x, end);
}
