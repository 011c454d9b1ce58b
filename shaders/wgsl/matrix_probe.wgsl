// A test of a device's matrix units, which multiply f16 and accumulate in f32, before kernels use them.
//
// FORM direct: y[0] = a · b and y[1] = aᵀ · b for 16×16 matrices of f16 in storage; one subgroup. Bindings: a, b → y.
//
// FORM shared: y = a · b for 64×64 matrices of f32, which are rounded to f16 on their way through 16 KB of workgroup
// memory; one workgroup of four subgroups, each of which computes 16 rows. Bindings: a, b → y.
//
// FORM bf16: with BF16_UNITS, the products of FORM direct for bf16, which passes through workgroup memory as words; see
// shared/units.
//
// FORM registers: with BF16_UNITS, operations of shared/fragments on a: y[0] is the largest element of each row, y[1]
// its sum, y[2] a function of the element, its place and the row, and y[3] = a · a from converted sums. b is the
// identity. Bindings: a, b → y.
//
// FORM lines: with BF16_UNITS, the products of FORM direct for bf16, whose fragments pass through memory as lines of
// shared/fragment_lines. Bindings: a, b → y.
//
// Defines: FORM     direct, shared, bf16, registers or lines
//          SUBGROUP invocations of a subgroup, at most 64

enable f16;
enable wgpu_cooperative_matrix;

const SUBGROUP: u32 = ${SUBGROUP};

#if FORM == direct
@group(0) @binding(0) var<storage, read> a: array<f16>;
@group(0) @binding(1) var<storage, read> b: array<f16>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(SUBGROUP)
fn main() {
    // `coopLoadT` reads rows, `coopLoad` columns.
    let rows = coopLoadT<coop_mat16x16<f16, A>>(&a[0], 16u);
    let columns = coopLoad<coop_mat16x16<f16, A>>(&a[0], 16u);
    let right = coopLoadT<coop_mat16x16<f16, B>>(&b[0], 16u);
    var product: coop_mat16x16<f32, C>;
    product = coopMultiplyAdd(rows, right, product);
    coopStoreT(product, &y[0], 16u);
    var transposed: coop_mat16x16<f32, C>;
    transposed = coopMultiplyAdd(columns, right, transposed);
    coopStoreT(transposed, &y[256], 16u);
}
#endif
#if FORM == bf16
#include "shared/units"

@group(0) @binding(0) var<storage, read> a: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> b: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> a_tile: array<Four, 64>;
var<workgroup> b_tile: array<Four, 64>;

@compute @workgroup_size(SUBGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var e = lane; e < 64u; e += SUBGROUP) {
        a_tile[e] = four_of(a[e]);
        b_tile[e] = four_of(b[e]);
    }
    workgroupBarrier();
    let rows = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[0], 4u);
    let columns = coopLoad<coop_mat16x16<f16, A>>(&a_tile[0], 4u);
    let right = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[0], 4u);
    var product: coop_mat16x16<f32, C>;
    product = coopMultiplyAdd(rows, right, product);
    coopStoreT(product, &y[0], 16u);
    var transposed: coop_mat16x16<f32, C>;
    transposed = coopMultiplyAdd(columns, right, transposed);
    coopStoreT(transposed, &y[256], 16u);
}
#endif
#if FORM == registers
#include "shared/units"
#include "shared/fragments"

@group(0) @binding(0) var<storage, read> a: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> b: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> a_tile: array<Four, 64>;
var<workgroup> b_tile: array<Four, 64>;

fn of_place(row: u32, column: u32, x: f32, largest: f32, half: f32) -> f32 {
    return largest - 2.0 * x + f32(row * 16u + column) + half;
}

fn coop_map_of_place(x: Sums, largest: Sums, half: f32) -> Sums {
    return x;
}

@compute @workgroup_size(SUBGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var e = lane; e < 64u; e += SUBGROUP) {
        a_tile[e] = four_of(a[e]);
        b_tile[e] = four_of(b[e]);
    }
    workgroupBarrier();
    let rows = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[0], 4u);
    let identity = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[0], 4u);
    let x = coopMultiplyAdd(rows, identity, Sums());
    let largest = coop_rows_larger(x);
    coopStoreT(largest, &y[0], 16u);
    coopStoreT(coop_rows_sum(x), &y[256], 16u);
    coopStoreT(coop_map_of_place(x, largest, 0.5), &y[512], 16u);
    coopStoreT(coopMultiplyAdd(coop_as_left(x), coop_as_right(x), Sums()), &y[768], 16u);
}
#endif
#if FORM == lines
#include "shared/fragment_lines"

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> tiles: array<vec4<f32>, 64>;
var<workgroup> ordered: array<vec4<u32>, 96>;

@compute @workgroup_size(SUBGROUP)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var e = lane; e < 32u; e += SUBGROUP) {
        tiles[e] = a[e];
        tiles[32u + e] = b[e];
    }
    workgroupBarrier();
    ordered[lane] = coop_to_line_left(coopLoadT<Left>(&tiles[0], 2u));
    ordered[32u + lane] = coop_to_line_left(coopLoad<Left>(&tiles[0], 2u));
    ordered[64u + lane] = coop_to_line_right(coopLoadT<Right>(&tiles[32], 2u));
    workgroupBarrier();
    let rows = coop_from_line_left(ordered[lane]);
    let columns = coop_from_line_left(ordered[32u + lane]);
    let right = coop_from_line_right(ordered[64u + lane]);
    var product: coop_mat16x16<f32, C>;
    product = coopMultiplyAdd(rows, right, product);
    coopStoreT(product, &y[0], 16u);
    var transposed: coop_mat16x16<f32, C>;
    transposed = coopMultiplyAdd(columns, right, transposed);
    coopStoreT(transposed, &y[256], 16u);
}
#endif
#if FORM == shared
const SIDE: u32 = 64u;
const WG: u32 = 4u * SUBGROUP;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> a_tile: array<f16, SIDE * SIDE>;
var<workgroup> b_tile: array<f16, SIDE * SIDE>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var e = lane; e < SIDE * SIDE; e += WG) {
        a_tile[e] = f16(a[e]);
        b_tile[e] = f16(b[e]);
    }
    workgroupBarrier();
    let row = lane / SUBGROUP * 16u;
    for (var column = 0u; column < SIDE; column += 16u) {
        var sum: coop_mat16x16<f32, C>;
        for (var k = 0u; k < SIDE; k += 16u) {
            // Places are variables, because naga's SPIR-V writer rejects them inside the call.
            let a_at = row * SIDE + k;
            let b_at = k * SIDE + column;
            let left = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[a_at], SIDE);
            let right = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_at], SIDE);
            sum = coopMultiplyAdd(left, right, sum);
        }
        let y_at = row * SIDE + column;
        coopStoreT(sum, &y[y_at], SIDE);
    }
}
#endif
