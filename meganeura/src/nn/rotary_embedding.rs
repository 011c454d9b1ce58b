//! Rotary position embedding.

use meganeura_derive::Module;

use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Device, ErrorKind, Result, Shape, Tensor, Var};

/// Rotary position embedding of queries and keys.
///
/// Features `i` and `i + d/2` of the vector at position `p` are rotated by the angle `p·base^(−2i/d)`. So the product
/// of a query and a key depends on the distance between them. Features are paired as in GPT-NeoX and in Hugging Face's
/// Llama ("rotate half"), not interleaved as in Meta's Llama. Sines and cosines are computed in double precision, for
/// positions as large as you like.
///
/// Shapes: `x [.., L, d]`, `d` even, kept: heads `[N, heads, L, d]`, for example.
/// [Su et al., 2021](https://arxiv.org/abs/2104.09864).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let rotary = RotaryEmbedding::new(8);
///
/// let tape = Tape::inference(&device);
/// let query = tape.input(&Tensor::full(&device, [1, 2, 5, 8], 1.0)?);
/// let all = rotary.forward(&query);
/// // The last position on its own, as when a model generates.
/// let last = rotary.forward_from(&query.slice(2, 4..5), 4);
/// assert_eq!(last.to_vec()?, all.slice(2, 4..5).to_vec()?);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct RotaryEmbedding {
    #[module(skip)]
    width: usize,
    #[module(skip)]
    base: f64,
}

impl RotaryEmbedding {
    /// An embedding of vectors of this many features, those of a head; an even number.
    pub const fn new(width: usize) -> Self {
        Self { width, base: 10_000.0 }
    }

    /// The base of the frequencies, about the ratio of the slowest period to the fastest; 10,000 by default.
    pub const fn base(self, base: f64) -> Self {
        Self { base, ..self }
    }

    /// [`forward`](Layer::forward) for vectors whose first one is at position `offset`, the number of vectors before
    /// it.
    #[must_use]
    #[track_caller]
    pub fn forward_from(&self, x: &Var, offset: usize) -> Var {
        let _entered = crate::module::enter(self, x);
        let (length, rank) = match self.length(x) {
            Ok(length) => (length, x.shape().rank()),
            Err((kind, message)) => return x.refuse("rotary_embedding", kind, message),
        };
        let half = self.width / 2;
        let device = x.tape().device();
        let (mut cos, mut sin) = (Vec::with_capacity(length * half), Vec::with_capacity(length * half));
        for position in offset..offset.saturating_add(length) {
            for pair in 0..half {
                let angle = self.angle(position, pair);
                cos.push(angle.cos());
                sin.push(angle.sin());
            }
        }
        let tables = Tensor::from_f64(&device, [length, half], &cos)
            .and_then(|cos| Ok([cos, Tensor::from_f64(&device, [length, half], &sin)?]));
        match tables {
            Ok([cos, sin]) => rotate(x, &x.tape().input(&cos), &x.tape().input(&sin), rank - 1),
            Err(error) => x.fail(error),
        }
    }

    /// [`forward`](Layer::forward) for vectors at given positions.
    ///
    /// Positions are integers `[L]`, or `[N, L]` if each example has its own. They index the rows of `table`, which is
    /// [`table`](Self::table) on this tape. Use it in [compiled](crate::Device::compile) functions, where positions are
    /// an input.
    #[must_use]
    #[track_caller]
    pub fn forward_at(&self, x: &Var, table: &Var, positions: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let length = match self.length(x) {
            Ok(length) => length,
            Err((kind, message)) => return x.refuse("rotary_embedding", kind, message),
        };
        let (rank, half) = (x.shape().rank(), self.width / 2);
        let fits = match *positions.shape().dims() {
            [own] => own == length,
            [n, own] => rank > 2 && own == length && n == x.shape()[0],
            _ => false,
        };
        if !fits || table.shape().dims().get(1..) != Some(&[2, half]) {
            let message = format!(
                "positions must be integers [{length}] or [N, {length}] and the table [P, 2, {half}], they are {} and {}",
                positions.ty(),
                table.ty()
            );
            return x.refuse("rotary_embedding", ErrorKind::Shape, message);
        }
        let rows = table.embedding(positions);
        let axis = positions.shape().rank();
        // [N, L] becomes [N, 1, .., L], which broadcasts over heads.
        let mut shape = vec![1; rank - 2];
        if axis == 2 {
            shape[0] = positions.shape()[0];
        }
        shape.extend([length, half]);
        let cos = rows.slice(axis, 0..1).reshape(Shape::new(&shape));
        let sin = rows.slice(axis, 1..2).reshape(Shape::new(&shape));
        rotate(x, &cos, &sin, rank - 1)
    }

    /// The cosines and sines of the first `positions` positions, `[positions, 2, d/2]`, for
    /// [`forward_at`](Self::forward_at).
    ///
    /// # Errors
    ///
    /// Fails if the settings are invalid, if there are no positions, or if the device fails.
    #[track_caller]
    pub fn table(&self, device: &Device, positions: usize) -> Result<Tensor> {
        crate::error::here(|| {
            self.check()?;
            let half = self.width / 2;
            let mut table = Vec::with_capacity(positions * self.width);
            for position in 0..positions {
                table.extend((0..half).map(|pair| self.angle(position, pair).cos()));
                table.extend((0..half).map(|pair| self.angle(position, pair).sin()));
            }
            Tensor::from_f64(device, [positions, 2, half], &table)
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "positions and widths are far below 2^53")]
    fn angle(self, position: usize, pair: usize) -> f64 {
        position as f64 * self.base.powf(-2.0 * pair as f64 / self.width as f64)
    }

    /// The number of positions, or the error if the input does not fit.
    fn length(self, x: &Var) -> Result<usize, (ErrorKind, String)> {
        if let Some(problem) = self.problem() {
            return Err((ErrorKind::Argument, problem));
        }
        match *x.shape().dims() {
            [.., length, width] if width == self.width && x.ty().dtype.is_float() => Ok(length),
            _ => {
                let message = format!("the input must be floats [.., L, {}], it is {}", self.width, x.ty());
                Err((ErrorKind::Shape, message))
            }
        }
    }

    /// The error in the settings.
    fn problem(self) -> Option<String> {
        let Self { width, base } = self;
        if width == 0 || width % 2 != 0 {
            return Some(format!("the number of features must be even, because they turn in pairs; it is {width}"));
        }
        (!base.is_finite() || base <= 0.0).then(|| format!("the base must be above 0, it is {base}"))
    }

    fn check(self) -> Result<()> {
        match self.problem() {
            Some(problem) => bail!(Argument, "rotary_embedding: {problem}"),
            None => Ok(()),
        }
    }
}

/// `(a, b) → (a·cos − b·sin, b·cos + a·sin)` for the halves of the last axis.
#[track_caller]
fn rotate(x: &Var, cos: &Var, sin: &Var, axis: usize) -> Var {
    let width = x.shape()[axis];
    let (a, b) = (x.slice(axis, 0..width / 2), x.slice(axis, width / 2..width));
    Var::concat(&[&(&a * cos - &b * sin), &(&b * cos + &a * sin)], axis)
}

/// Checks the settings, like [`forward`](Layer::forward).
impl Init for RotaryEmbedding {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        self.check().map(|()| self)
    }
}

impl Layer for RotaryEmbedding {
    fn forward(&self, x: &Var) -> Var {
        self.forward_from(x, 0)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tape;

    fn input(tape: &Tape, shape: &[usize]) -> Var {
        let x: Vec<_> = (0..shape.iter().product::<usize>()).map(|i| i as f32 - 3.0).collect();
        tape.input(&Tensor::from_slice(&tape.device(), Shape::new(shape), &x).unwrap())
    }

    #[test]
    fn products_depend_on_distances() {
        let tape = Tape::inference(&Device::cpu_with(crate::Precision::Double));
        let (rotary, q, k) = (RotaryEmbedding::new(6).base(50.0), input(&tape, &[1, 6]), input(&tape, &[1, 6]).cos());
        let product = |at_q, at_k| {
            let (q, k) = (rotary.forward_from(&q, at_q), rotary.forward_from(&k, at_k));
            (q * k).sum().to_tensor().unwrap().to_f64_vec().unwrap()[0]
        };
        assert!((product(3, 5) - product(1003, 1005)).abs() < 1e-9);
        assert!((product(3, 5) - product(3, 6)).abs() > 1e-3);
    }

    #[test]
    fn positions_of_a_table_are_the_same() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::inference(&device);
        let rotary = RotaryEmbedding::new(4);
        let x = input(&tape, &[2, 3, 2, 4]);
        let table = tape.input(&rotary.table(&device, 10)?);
        let positions = |shape: &[usize], numbers: &[u32]| {
            tape.input(&Tensor::indices(&device, Shape::new(shape), numbers).unwrap())
        };
        let at = rotary.forward_at(&x, &table, &positions(&[2], &[7, 8]));
        assert_eq!(at.to_vec()?, rotary.forward_from(&x, 7).to_vec()?);
        let at = rotary.forward_at(&x, &table, &positions(&[2, 2], &[7, 8, 0, 1]));
        assert_eq!(at.slice(0, 0..1).to_vec()?, rotary.forward_from(&x.slice(0, 0..1), 7).to_vec()?);
        assert_eq!(at.slice(0, 1..2).to_vec()?, rotary.forward(&x.slice(0, 1..2)).to_vec()?);
        let message = rotary.forward_at(&x, &table, &positions(&[3], &[7, 8, 9])).error().unwrap().to_string();
        assert!(message.contains("positions must be integers [2] or [N, 2] and the table [P, 2, 2]"), "{message}");
        Ok(())
    }

    #[test]
    fn misfits_are_errors() {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = input(&tape, &[2, 4]);
        for rotary in [RotaryEmbedding::new(0), RotaryEmbedding::new(3), RotaryEmbedding::new(4).base(f64::NAN)] {
            assert_eq!(rotary.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            assert_eq!(rotary.forward(&x).error().unwrap().kind(), ErrorKind::Argument);
            assert!(rotary.table(&device, 3).is_err());
        }
        for x in [input(&tape, &[2, 6]), input(&tape, &[4])] {
            let (y, line) = (RotaryEmbedding::new(4).forward(&x), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().starts_with("rotary_embedding: the input must be floats [.., L, 4]"), "{error}");
        }
    }
}
