//! Launches of kernels on a GPU as data, what they depend on, and WGSL literals.

pub use super::format::{Channels, Format, LINE, PaddedRows};
pub use super::multiprocessors::Multiprocessors;
use crate::{DType, Layout, TensorType};

/// An operand's type, layout and format, on which the choice of launches depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Argument {
    /// Element type and shape.
    pub ty: TensorType,
    /// The layout; contiguous unless the kernel reads strided operands. For an elementwise program that counts elements
    /// as bf16 counts them, that of [`Format::in_memory`].
    pub layout: Layout,
    /// The format of its elements in memory.
    pub format: Format,
}

impl Argument {
    /// A contiguous operand of this type, in [`Format::Full`].
    #[must_use]
    pub fn contiguous(ty: TensorType) -> Self {
        Self { ty, layout: Layout::contiguous(ty.shape), format: Format::Full }
    }
}

/// The kind of an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only the wgpu executor knows adapters"))]
pub enum Kind {
    /// A processor of its own, with its own memory.
    Discrete,
    /// Part of the host's chip, with the host's memory.
    Integrated,
    /// A driver that computes on the CPU.
    Software,
}

/// A device's capabilities on which the choice of kernels depends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caps {
    /// The kind of the adapter.
    pub kind: Kind,
    /// Bytes of memory that a workgroup may share.
    pub workgroup_memory: usize,
    /// Invocations that a workgroup may have.
    pub workgroup_size: usize,
    /// Buffers that a launch may bind.
    pub bindings: usize,
    /// The alignment, in bytes, of the offset at which a launch binds a buffer.
    pub alignment: usize,
    /// Bytes that a buffer may have.
    pub buffer: usize,
    /// The fewest and the most invocations of a subgroup.
    pub subgroup: (usize, usize),
    /// Its multiprocessors; the number decides which kernels keep the device busy.
    pub multiprocessors: Multiprocessors,
    /// The most iterations of an invocation, as [`Workgroups::loops`] counts them; `usize::MAX` where nothing bounds
    /// them.
    pub loops: usize,
    /// `true` if kernels may keep tiles of products in registers. SwiftShader's compiler takes minutes and gigabytes
    /// for such a kernel.
    pub tiles: bool,
    /// `true` if kernels are to multiply f16 on matrix units, 16×16 by 16×16 summed in f32: the device's precision asks
    /// for it, and a probe succeeded. Subgroups then have one size.
    pub matrix: bool,
    /// `true` if kernels are to store results in [`Format::Bf16`], where they can.
    pub bf16: bool,
    /// `true` if matrix units also multiply bf16, so that they take elements in [`Format::Bf16`] as they are.
    pub bf16_units: bool,
    /// `true` if such units also compute with fragments in registers: convert sums to operands, reduce rows, and apply
    /// functions to elements.
    pub fragments: bool,
    /// `true` if GPUs exchange values without the host.
    pub linked: bool,
}

/// The define of kernels that multiply bf16 on matrix units: what they call f16 is compiled as bf16.
pub const BF16_UNITS: &str = "BF16_UNITS";

impl Caps {
    /// The iterations after which Mesa's lavapipe silently ends every loop of an invocation: gallivm's
    /// `LP_MAX_TGSI_LOOP_ITERATIONS`, one count for all loops of a shader.
    pub const LOOPS_IN_SOFTWARE: usize = 65_535;
}

#[cfg(any(test, all(feature = "gpu", feature = "testing")))]
impl Caps {
    /// A large GPU, without matrix units.
    pub(crate) const DISCRETE: Self = Self {
        kind: Kind::Discrete,
        workgroup_memory: 49_152,
        workgroup_size: 1024,
        bindings: 16,
        alignment: 32,
        buffer: 1 << 30,
        subgroup: (32, 32),
        multiprocessors: Multiprocessors::LARGE,
        loops: usize::MAX,
        tiles: true,
        matrix: false,
        bf16: false,
        bf16_units: false,
        fragments: false,
        linked: false,
    };

    /// A large GPU, with matrix units that multiply bf16.
    #[cfg(all(feature = "gpu", feature = "testing"))]
    pub(crate) const MATRIX_UNITS: Self =
        Self { matrix: true, bf16: true, bf16_units: true, fragments: true, ..Self::DISCRETE };

    /// A device with WebGPU's default limits, which every device of WebGPU has, and no optional feature.
    #[cfg(all(feature = "gpu", feature = "testing"))]
    pub(crate) const BASELINE: Self = Self {
        workgroup_memory: 16_384,
        workgroup_size: 256,
        bindings: 8,
        alignment: 256,
        buffer: 1 << 27,
        // Unknown to a page without the feature.
        subgroup: (4, 128),
        ..Self::DISCRETE
    };

    /// Mesa's lavapipe.
    #[cfg(test)]
    pub(crate) const SOFTWARE: Self = Self {
        kind: Kind::Software,
        workgroup_memory: 32_768,
        buffer: 1 << 27,
        subgroup: (8, 8),
        multiprocessors: Multiprocessors::SOFTWARE,
        loops: Self::LOOPS_IN_SOFTWARE,
        ..Self::DISCRETE
    };
}

/// One way to compute an operation on a GPU: launches that run one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The variant's name among those of its operation.
    pub name: &'static str,
    /// The launches, in order.
    pub launches: Vec<Launch>,
    /// Floats of each scratch buffer that the launches pass results through.
    pub scratch: Vec<usize>,
}

/// The most bytes of all scratch buffers of a variant that transforms its operands: a bound that does not grow with the
/// batch.
const TRANSFORMED_BYTES: usize = 1 << 29;

impl Variant {
    /// A variant of one launch that binds all operands, then all results.
    #[must_use]
    pub fn simple(name: &'static str, launch: Launch) -> Self {
        Self { name, launches: vec![launch], scratch: Vec::new() }
    }

    /// The variant, if its scratch buffers are within the bound for transformed operands.
    #[must_use]
    pub fn bounded(self) -> Option<Self> {
        let elements = self.scratch.iter().fold(0, |sum: usize, &elements| sum.saturating_add(elements));
        (elements <= TRANSFORMED_BYTES / 4).then_some(self)
    }
}

/// The workgroups of a launch. The parameters of a kernel compute them, beside the defines from which the WGSL has the
/// same sizes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Workgroups {
    /// Their number; the executor folds it into the device's grid.
    pub count: usize,
    /// Invocations of each, the kernel's define `WG`; 0 for a user's kernel, which has its own.
    pub invocations: usize,
    /// Bytes of workgroup memory of each, by [`workgroup_memory`].
    pub memory: usize,
    /// An upper bound on the iterations of one invocation, over all loops of the kernel. Entering a loop counts as one
    /// more iteration, for the final test. 0 if the kernel has no loop, or is not trusted.
    pub loops: usize,
}

impl Workgroups {
    /// So many workgroups of so many invocations, without memory and loops.
    #[must_use]
    pub fn new(count: usize, invocations: usize) -> Self {
        Self { count, invocations, ..Self::default() }
    }

    /// As many as have an invocation for each of so many items.
    #[must_use]
    pub fn of(items: usize, invocations: usize) -> Self {
        Self::new(items.div_ceil(invocations), invocations)
    }

    /// For kernels that include `shared/elements`: one invocation for each of so many elements.
    #[must_use]
    pub fn of_elements(elements: usize) -> Self {
        Self::of(elements, 64)
    }

    /// The same, with variables of these bytes in workgroup memory.
    #[must_use]
    pub fn with_memory(self, variables: &[usize]) -> Self {
        Self { memory: self.memory + workgroup_memory(variables), ..self }
    }

    /// The same, with so many iterations of an invocation.
    #[must_use]
    pub fn looping(self, loops: usize) -> Self {
        Self { loops, ..self }
    }

    /// `true` if a device can run them.
    #[must_use]
    pub fn fit(&self, caps: &Caps) -> bool {
        self.invocations <= caps.workgroup_size && self.memory <= caps.workgroup_memory
    }
}

/// Bytes of workgroup memory for variables of these sizes, as WebGPU counts them: each is rounded up to 16.
#[must_use]
pub fn workgroup_memory(variables: &[usize]) -> usize {
    variables.iter().map(|bytes| bytes.next_multiple_of(16)).sum()
}

/// A kernel's define, and its value.
pub type Define = (&'static str, String);

/// One dispatch of a WGSL kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// The kernel's file in the shaders crate.
    pub kernel: &'static str,
    /// The values of the kernel's defines.
    pub defines: Vec<Define>,
    /// The buffer of each binding, in order.
    pub bindings: Vec<Binding>,
    /// The elements, in `f32`, from which on the bindings begin, as [`Caps::alignment`] permits; empty for the first.
    pub begins: Vec<usize>,
    /// The number and the needs of its workgroups.
    pub workgroups: Workgroups,
    /// The operand that the kernel reads through `load`, which the plan writes.
    pub loads: Option<usize>,
    /// `true` if the kernel stores result 0 through `store`, whose body the plan writes.
    pub stores: bool,
    /// The elements that it loads and stores at a time through these functions.
    pub access: Access,
}

/// The number of elements that a kernel loads and stores at a time through functions that the plan writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// One, through `load` and `store` of `shared/prologue` and `shared/epilogue`.
    #[default]
    Elements,
    /// One; or any, directly, if nothing is fused into `store`, which is faster. The kernel takes the define `PLAIN`:
    /// the name of the result's binding, or `none`.
    ElementsOrPlain,
    /// One; or a line in the order of the API, if the result is bf16. The kernel then takes the define `ROWS`, includes
    /// `shared/epilogue_lines`, and has one f32 of each invocation in workgroup memory.
    ElementsOrLines,
    /// Eight neighbours, through `load_line` and `store_line` of `shared/prologue_lines` and `shared/epilogue_lines`.
    /// An operand in `f32` is loaded through `load`.
    Lines,
}

impl Launch {
    /// A launch that binds operands `0..inputs`, then results `0..outputs`. It adds the define `WG`.
    #[must_use]
    pub fn new(
        kernel: &'static str,
        mut defines: Vec<Define>,
        (inputs, outputs): (usize, usize),
        workgroups: Workgroups,
    ) -> Self {
        if workgroups.invocations > 0 {
            defines.extend(define![WG: workgroups.invocations]);
        }
        let bindings = (0..inputs).map(Binding::Input).chain((0..outputs).map(Binding::Output)).collect();
        Self {
            kernel,
            defines,
            bindings,
            begins: Vec::new(),
            workgroups,
            loads: None,
            stores: false,
            access: Access::Elements,
        }
    }

    /// The kernel includes `shared/epilogue` and stores result 0 through `store` alone: each element once, by its
    /// number in the contiguous result. The plan declares the binding, after those of the kernel, and writes the body
    /// of `store`.
    #[must_use]
    pub fn stores_through_epilogue(mut self) -> Self {
        self.bindings.retain(|binding| *binding != Binding::Output(0));
        self.stores = true;
        self
    }

    /// The kernel includes `shared/epilogue_all` and stores all results through `store_all` alone, element by element.
    #[must_use]
    pub fn stores_all_through_epilogue(mut self) -> Self {
        self.bindings.retain(|binding| !matches!(binding, Binding::Output(_)));
        self.stores = true;
        self
    }

    /// The kernel's prologue and epilogue go by lines of [`Format::Bf16`]: it includes `shared/prologue_lines` and
    /// `shared/epilogue_lines` instead. Elements are counted in the order of memory, with channels innermost.
    #[must_use]
    pub fn by_lines(mut self) -> Self {
        self.access = Access::Lines;
        self
    }

    /// The kernel multiplies bf16 on matrix units, if the device can.
    #[must_use]
    pub fn on_bf16_units(mut self, caps: &Caps) -> Self {
        if caps.bf16_units {
            self.defines.push((BF16_UNITS, "1".into()));
        }
        self
    }

    /// The kernel includes `shared/prologue` and reads operand `operand` through `load` alone, by the element's place
    /// in memory. The plan declares the binding, after those of the kernel, and writes `load`.
    #[must_use]
    pub fn loads_through_prologue(mut self, operand: usize) -> Self {
        self.bindings.retain(|binding| *binding != Binding::Input(operand));
        self.loads = Some(operand);
        self
    }
}

/// The launch that converts images `[N, C, S]` to the other format, `bf16` or `full`. Neighbours in one format are far
/// apart in the other, so elements go through workgroup memory. In bf16, channels are rounded up to lines, with
/// zeros.
#[must_use]
pub fn conversion(to: &'static str, [n, c, s]: [usize; 3]) -> Launch {
    /// Channels and pixels of a tile, and the pitch of its channels: odd, so that neighbours lie in different banks.
    const SIDE: usize = 32;
    const PITCH: usize = SIDE + 1;
    let of_images = define![TO: to, N: n, C: c, S: s];
    if c <= LINE {
        // A tile would be almost empty.
        let defines = [of_images, define![FORM: "pixels"]].concat();
        return Launch::new("convert", defines, (1, 1), Workgroups::of(n.saturating_mul(s), 128));
    }
    let [tiles_c, tiles_s] = [c, s].map(|extent| extent.div_ceil(SIDE));
    let count = n.saturating_mul(tiles_c).saturating_mul(tiles_s);
    let workgroups = Workgroups::new(count, SIDE * SIDE / LINE).with_memory(&[4 * SIDE * PITCH]);
    let tile = define![FORM: "tiles", SIDE: SIDE, PITCH: PITCH, TILES_C: tiles_c, TILES_S: tiles_s];
    Launch::new("convert", [of_images, tile].concat(), (1, 1), workgroups)
}

/// The iterations of a reduction in a tree over so many values, as [`Workgroups::loops`] counts them.
#[must_use]
pub fn tree(values: usize) -> usize {
    values.next_power_of_two().ilog2() as usize + 1
}

/// The buffer of a kernel's binding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binding {
    /// Operand of the operation, read.
    Input(usize),
    /// Result of the operation, written.
    Output(usize),
    /// Scratch memory of the variant: a launch writes it, and later ones read it. A buffer that is written from
    /// operands alone is written once, because other steps may read it, too.
    Scratch(usize),
    /// The block of small numbers that the host sends.
    Host,
}

/// Defines by name: `define![N: batch, C: channels]`.
#[macro_export]
#[doc(hidden)]
macro_rules! __define {
    ($($name:ident: $value:expr),* $(,)?) => { vec![$((stringify!($name), $value.to_string())),*] };
}
pub use crate::__define as define;

/// A number as WGSL of type `f32`, rounded to `f32`: a literal, or a call of a function of `shared/float` where WGSL
/// has no literal, which is for infinities and NaN. A constant expression must be finite, so these stand in functions
/// only.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "shaders compute in f32")]
pub fn literal(value: f64) -> String {
    // In decimal digits, Tint takes the largest number for a larger one.
    match value as f32 {
        f32::MAX => "0x1.fffffep+127f".into(),
        f32::MIN => "-0x1.fffffep+127f".into(),
        f32::INFINITY => "infinity()".into(),
        f32::NEG_INFINITY => "negative_infinity()".into(),
        value if value.is_nan() => "quiet_nan()".into(),
        value => format!("{value:?}f"),
    }
}

/// A number as WGSL of an element type, for an integer that the type has, or for floats as [`literal`] gives it.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the lower and the upper word")]
pub fn literal_of(dtype: DType, value: f64) -> String {
    match dtype.integer(value) {
        None => literal(value),
        Some(integer) if dtype == DType::I64 => format!("vec2({}u, {}u)", integer as u32, (integer >> 32) as u32),
        // A literal is a sign and a number, and the smallest integer has no counterpart.
        Some(integer) => format!("{dtype}({integer})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_words() {
        assert_eq!(literal_of(DType::I64, -2.0), "vec2(4294967294u, 4294967295u)");
        assert_eq!(literal_of(DType::I32, -2_147_483_648.0), "i32(-2147483648)");
        assert_eq!(literal_of(DType::U32, 7.0), "u32(7)");
        assert_eq!(literal_of(DType::F32, 7.0), "7.0f");
    }

    #[test]
    fn literals_round_trip() {
        for value in [0.0, -0.0, -1.5, 1e-30, 1e30, 0.1, 1e-40, -1e-45, f64::from(f32::MIN_POSITIVE)] {
            let text = literal(value);
            let read = text.trim_end_matches('f').parse::<f32>().expect("it is a number");
            assert_eq!(read.to_bits(), (value as f32).to_bits(), "{text}");
        }
        assert_eq!(literal(f64::from(f32::MAX)), "0x1.fffffep+127f");
        // What has no literal, or rounds to it.
        assert_eq!([f64::INFINITY, 1e39].map(literal), ["infinity()"; 2]);
        assert_eq!([f64::NEG_INFINITY, -1e300].map(literal), ["negative_infinity()"; 2]);
        assert_eq!(literal(f64::NAN), "quiet_nan()");
    }
}
