//! Running sums: an operation outside the framework, with its gradient rule and both kernels.

use meganeura::ops::CustomOp;
use meganeura::{Result, TensorType, Var};

/// Running sums along the last axis: `y[r,i] = Σ x[r,j]` over `j ≤ i`; `backwards`, over `j ≥ i`
///
/// Shapes: `x [.., n]` → `y [.., n]`. Gradient: the running sums of `dy` in the other direction.
#[derive(Debug)]
pub struct CumSum {
    /// `true` if sums run from the end of a row to its beginning.
    pub backwards: bool,
}

impl CustomOp for CumSum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn key(&self) -> String {
        format!("{self:?}")
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match x {
            [x] if x.shape.rank() > 0 => Ok(vec![*x]),
            _ => Err("takes one tensor of at least one axis".into()),
        }
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let dx = |dy: &Var| dy.custom(Self { backwards: !self.backwards }, &[]);
        Ok(vec![dy[0].as_ref().map(dx)])
    }

    fn cpu(&self, types: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
        let n = row_length(types);
        for (x, y) in x[0].chunks(n).zip(y[0].chunks_mut(n)) {
            let mut sum = 0.0;
            for k in 0..n {
                let i = if self.backwards { n - 1 - k } else { k };
                sum += x[i];
                y[i] = sum;
            }
        }
    }

    fn wgsl(&self, types: &[TensorType]) -> (String, usize) {
        let n = row_length(types);
        let rows = types[0].shape.elements() / n;
        let i = if self.backwards { "N - 1u - k" } else { "k" };
        let source = format!(
            "const N = {n}u;
             @group(0) @binding(0) var<storage, read> x: array<f32>;
             @group(0) @binding(1) var<storage, read_write> y: array<f32>;

             @compute @workgroup_size(64)
             fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>,
                     @builtin(local_invocation_index) lane: u32) {{
                 let row = (id.x + id.y * grid.x) * 64u + lane;
                 if row >= {rows}u {{ return; }}
                 var sum = 0.0;
                 for (var k = 0u; k < N; k++) {{
                     let i = row * N + {i};
                     sum += x[i];
                     y[i] = sum;
                 }}
             }}"
        );
        (source, rows.div_ceil(64))
    }
}

fn row_length(types: &[TensorType]) -> usize {
    *types[0].shape.dims().last().expect("`outputs` asked for an axis")
}
