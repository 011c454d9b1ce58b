//! Cases: operands on which tests check each operation, with the tolerance and its reason.

use std::fmt;
use std::sync::Arc;

use crate::ops::{self, Op, Pointwise, Primitive, View, each_kernel_op};
use crate::tape::Var;
use crate::{Error, Shape};

/// Numbers with a shape, in double precision.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    /// The extents along each axis.
    pub shape: Shape,
    /// The numbers, in row-major order.
    pub data: Vec<f64>,
}

/// One operand of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// Random normal numbers times a scale, or uniform in a range if one is given, rounded to `f32`.
    Floats {
        /// The extents along each axis.
        shape: Shape,
    },
    /// Random labels below a bound.
    Labels {
        /// The extents along each axis.
        shape: Shape,
        /// The upper bound, exclusive.
        classes: usize,
    },
}

/// What the tests do with the cases of an operation besides the usual, or leave out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// A product, which matrix units compute: the cases also run in fast precision.
    Product,
    /// Results after the first are statistics for the gradient and are not differentiable.
    Statistics,
    /// Launches or merges differ where only eight buffers are bound: the cases also run on such a device.
    AtBaseline,
    /// ONNX has no form of the operation.
    WithoutOnnx,
}

type Build = Arc<dyn Fn(&[Var]) -> Vec<Var> + Send + Sync>;
type Naive = Arc<dyn Fn(&[Array]) -> Vec<Array> + Send + Sync>;

/// One operation on operands of certain shapes.
#[derive(Clone)]
pub struct Case {
    /// The operation, its attributes and shapes.
    pub name: String,
    /// The operation's name.
    pub op: String,
    /// The operands.
    pub operands: Vec<Operand>,
    /// Records the operation.
    pub build: Build,
    /// The largest error of an `f32` result, relative to the largest magnitude in the reference.
    pub tolerance: f64,
    /// The factor of normal random operands.
    pub scale: f64,
    /// The range of the operands instead.
    pub range: Option<(f64, f64)>,
    /// A naive way to compute the results. Labels are numbers there.
    pub naive: Option<Naive>,
    /// `true` if recording must fail.
    pub fails: bool,
    /// Whether several operations are recorded.
    pub recorded: bool,
    /// What is special about the operation.
    pub special: &'static [Special],
}

impl Case {
    /// A case of an operation itself.
    pub fn new(op: impl Into<Op>) -> Self {
        let op: Op = op.into();
        let (name, op_name) = (op.to_string(), op.name().to_owned());
        let build = move |x: &[Var]| {
            let tape = x[0].tape();
            tape.record(op.clone(), &x.iter().collect::<Vec<_>>(), std::panic::Location::caller()).into_vec()
        };
        Self {
            name,
            op: op_name,
            operands: Vec::new(),
            build: Arc::new(build),
            tolerance: 1e-6,
            scale: 1.0,
            range: None,
            naive: None,
            fails: false,
            recorded: false,
            special: &[],
        }
    }

    /// A case recorded through public methods, on operands of these shapes.
    pub fn recorded(name: &str, shapes: &[&[usize]], f: impl Fn(&[Var]) -> Var + Send + Sync + 'static) -> Self {
        let case = Self {
            name: format!("{name} recorded"),
            op: name.to_owned(),
            operands: Vec::new(),
            build: Arc::new(move |x| vec![f(x)]),
            tolerance: 1e-5,
            scale: 1.0,
            range: None,
            naive: None,
            fails: false,
            recorded: true,
            special: &[],
        };
        shapes.iter().fold(case, |case, shape| case.input(shape))
    }

    /// Adds an operand of floats.
    #[must_use]
    pub fn input(mut self, shape: &[usize]) -> Self {
        let shape = Shape::new(shape);
        self.name = format!("{} {shape}", self.name);
        self.operands.push(Operand::Floats { shape });
        self
    }

    /// Adds an operand of labels.
    #[must_use]
    pub fn labels(mut self, shape: &[usize], classes: usize) -> Self {
        self.operands.push(Operand::Labels { shape: Shape::new(shape), classes });
        self
    }

    /// Sets the tolerance.
    #[must_use]
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Sets the scale of the operands.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the range of the operands.
    #[must_use]
    pub fn range(mut self, lo: f64, hi: f64) -> Self {
        self.range = Some((lo, hi));
        self
    }

    /// Sets a naive way to compute the results.
    #[must_use]
    pub fn naive(mut self, f: impl Fn(&[Array]) -> Vec<Array> + Send + Sync + 'static) -> Self {
        self.naive = Some(Arc::new(f));
        self
    }

    /// Expects that recording fails.
    #[must_use]
    pub fn expect_error(mut self) -> Self {
        self.fails = true;
        self
    }

    /// `true` if this is special about the operation.
    #[must_use]
    pub fn is(&self, special: Special) -> bool {
        self.special.contains(&special)
    }

    /// The error of a poisoned result.
    #[must_use]
    pub fn error(results: &[Var]) -> Option<Error> {
        results.iter().find_map(Var::error)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// An operation with cases.
pub(crate) trait Tested: Primitive {
    /// Examples on which tests check every part of the operation.
    fn cases() -> Vec<Case>;

    /// What the tests do differently with all of these cases, except those that say it themselves.
    fn special() -> &'static [Special] {
        &[]
    }
}

macro_rules! all_cases {
    ($($module:ident::$name:ident),+ $(,)?) => {
        /// The cases of every operation.
        #[must_use]
        pub fn all_cases() -> Vec<Case> {
            fn of<P: Tested>() -> impl Iterator<Item = Case> {
                let all = |case: &Case| if case.special.is_empty() { P::special() } else { case.special };
                P::cases().into_iter().map(move |case| Case { special: all(&case), ..case })
            }
            let mut cases = Pointwise::cases();
            cases.extend(View::cases());
            $(cases.extend(of::<ops::$module::$name>());)+
            cases
        }
    };
}

each_kernel_op!(all_cases);
