//! Kernels for shapes that vary. Numbers of a kernel that differ between shapes become push constants, so that one
//! compiled kernel serves all of these shapes.
//!
//! Kernels have extents, strides and offsets as literals, which is fastest, but costs a compilation for each shape.
//! Two kernels have one *structure* if naga's modules differ in integer literals alone. The dynamic form of a kernel
//! takes the differing ones as arguments of its functions; an entry point reads them from push constants and passes
//! them on. It computes the same bits, because arithmetic on floats is untouched. Numbers that must be known to the
//! compiler, such as sizes of arrays, are part of the structure.

use std::fmt::{Debug, Write};

use naga::{
    AddressSpace, Arena, Block, Expression, Function, FunctionArgument, GlobalVariable, Handle, Literal,
    MemoryDecorations, Module, Range, Scalar, ScalarKind, Span, Statement, StructMember, Type, TypeInner,
};

use super::fragments;

/// The push constants of a kernel, at most. Vulkan promises 128 bytes.
pub(super) const MOST_WORDS: usize = 32;

/// The integer literals of a module, and a hash of everything else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Numbers {
    pub(super) structure: blake3::Hash,
    pub(super) values: Box<[Number]>,
}

/// An integer literal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Number {
    is_signed: bool,
    bits: u32,
}

impl Number {
    fn of(expression: &Expression) -> Option<Self> {
        match *expression {
            Expression::Literal(Literal::U32(bits)) => Some(Self { is_signed: false, bits }),
            Expression::Literal(Literal::I32(value)) => Some(Self { is_signed: true, bits: value.cast_unsigned() }),
            _ => None,
        }
    }

    fn scalar(self) -> Scalar {
        if self.is_signed { Scalar::I32 } else { Scalar::U32 }
    }
}

/// The expressions of a module, in the order in which its numbers are counted.
fn arenas(module: &Module) -> impl Iterator<Item = &Arena<Expression>> {
    let functions = module.functions.iter().map(|(_, function)| function);
    let functions = functions.chain(module.entry_points.iter().map(|entry| &entry.function));
    [&module.global_expressions].into_iter().chain(functions.map(|function| &function.expressions))
}

impl Numbers {
    /// The numbers of a module that is compiled with `options`.
    pub(super) fn of(module: &Module, options: impl Debug) -> Self {
        let mut hash = Hash(blake3::Hasher::new());
        hash.add(&options);
        hash.add(&module.types);
        hash.add(&module.constants);
        hash.add(&module.overrides);
        hash.add(&module.global_variables);
        let functions = module.functions.iter().map(|(_, function)| function);
        let entries = module.entry_points.iter();
        hash.add(&entries.clone().map(|entry| (&entry.name, entry.workgroup_size)).collect::<Vec<_>>());
        for Function { arguments, result, local_variables, body, .. } in
            functions.chain(entries.map(|entry| &entry.function))
        {
            hash.add(&(arguments, result, local_variables));
            hash.add(&without_spans(body));
        }
        let mut values = Vec::new();
        for arena in arenas(module) {
            hash.add(&arena.len());
            for (_, expression) in arena.iter() {
                match Number::of(expression) {
                    Some(number) => {
                        hash.add(&number.scalar());
                        values.push(number);
                    }
                    None => hash.add(expression),
                }
            }
        }
        Self { structure: hash.0.finalize(), values: values.into() }
    }
}

struct Hash(blake3::Hasher);

impl Hash {
    fn add(&mut self, part: &impl Debug) {
        write!(self, "{part:?};").expect("a hash takes everything");
    }
}

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

/// A copy that does not know where its statements stand in the text, which depends on the digits of numbers.
fn without_spans(block: &Block) -> Block {
    let mut statements: Vec<Statement> = block.iter().cloned().collect();
    for inner in statements.iter_mut().flat_map(blocks) {
        *inner = without_spans(inner);
    }
    Block::from_vec(statements)
}

/// The blocks of a statement.
fn blocks(statement: &mut Statement) -> Vec<&mut Block> {
    match statement {
        Statement::Block(block) => vec![block],
        Statement::If { accept, reject, .. } => vec![accept, reject],
        Statement::Loop { body, continuing, .. } => vec![body, continuing],
        Statement::Switch { cases, .. } => cases.iter_mut().map(|case| &mut case.body).collect(),
        _ => Vec::new(),
    }
}

/// The push constant of each number of a structure; `None` for numbers that are compiled in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slots {
    slots: Box<[Option<usize>]>,
    /// The numbers of one of the shapes.
    values: Box<[Number]>,
    /// The type of each push constant.
    words: Box<[Scalar]>,
}

impl Slots {
    /// Slots for the numbers that differ among shapes of one structure. Numbers that are equal in each of them share a
    /// slot. `None` if there are too many.
    pub(super) fn new(shapes: &[&[Number]]) -> Option<Self> {
        let values: Box<[Number]> = (*shapes.last()?).into();
        let mut distinct: Vec<Vec<Number>> = Vec::new();
        let slot = |at: usize| {
            let across: Vec<Number> = shapes.iter().map(|shape| shape[at]).collect();
            if across.iter().all(|number| *number == across[0]) {
                return None;
            }
            Some(distinct.iter().position(|known| *known == across).unwrap_or_else(|| {
                distinct.push(across);
                distinct.len() - 1
            }))
        };
        let slots = (0..values.len()).map(slot).collect();
        let words: Box<[Scalar]> = distinct.iter().map(|across| across[0].scalar()).collect();
        (words.len() <= MOST_WORDS).then_some(Self { slots, values, words })
    }

    /// The push constants for a shape; `None` if it differs in other numbers as well.
    pub(super) fn words(&self, values: &[Number]) -> Option<Box<[u32]>> {
        let mut words = vec![None; self.words.len()];
        let mut fits = |((slot, known), number): ((&Option<usize>, &Number), &Number)| match slot {
            Some(slot) => *words[*slot].get_or_insert(number.bits) == number.bits,
            None => known == number,
        };
        let fits = self.slots.iter().zip(&self.values).zip(values).all(&mut fits);
        fits.then(|| words.into_iter().map(|word| word.expect("each slot has a number")).collect())
    }

    /// Turns a module of the structure into its dynamic form. `None` if a number that differs must be known to the
    /// compiler. The result must be validated, because a number may stand where only a constant may.
    pub(super) fn apply(&self, module: &mut Module) -> Option<()> {
        let mut insert = |inner| module.types.insert(Type { name: None, inner }, Span::UNDEFINED);
        let word = insert(TypeInner::Scalar(Scalar::U32));
        let types: Vec<_> = self.words.iter().map(|&scalar| insert(TypeInner::Scalar(scalar))).collect();
        let member = |at: usize| StructMember { name: None, ty: word, binding: None, offset: 4 * at as u32 };
        let (members, span) = ((0..types.len()).map(member).collect(), 4 * types.len() as u32);
        let block = insert(TypeInner::Struct { members, span });

        let mut slots = self.slots.iter().copied();
        let mut take = |expression: &Expression| Number::of(expression).and_then(|_| slots.next().flatten());
        let globals: Vec<_> = module.global_expressions.iter().map(|(_, expression)| take(expression)).collect();
        let of_global = |handle: Handle<Expression>| globals[handle.index()];
        let constants: Vec<_> = module.constants.iter().map(|(_, constant)| of_global(constant.init)).collect();
        // Only literals, and constants that are literals, may differ.
        let is_fixed = |expression: &Expression| match expression {
            Expression::Compose { components, .. } => components.iter().all(|&part| of_global(part).is_none()),
            Expression::Splat { value, .. } => of_global(*value).is_none(),
            Expression::Constant(constant) => constants[constant.index()].is_none(),
            Expression::Literal(_) | Expression::ZeroValue(_) => true,
            _ => false,
        };
        let fits = module.overrides.is_empty()
            && module.global_expressions.iter().all(|(_, expression)| is_fixed(expression))
            && module.global_variables.iter().all(|(_, variable)| variable.init.and_then(of_global).is_none());
        let reducing = fragments::reducing(module);
        let [entry] = &mut module.entry_points[..] else { return None };
        if !fits {
            return None;
        }
        let functions = module.functions.iter_mut().map(|(handle, function)| (Some(handle), function));
        for (handle, function) in functions.chain([(None, &mut entry.function)]) {
            let first = function.arguments.len();
            let mut needs_words = false;
            for (_, expression) in function.expressions.iter_mut() {
                let slot = match &*expression {
                    Expression::Constant(constant) => constants[constant.index()],
                    other => take(other),
                };
                if let Some(slot) = slot {
                    *expression = word_argument(first, slot);
                    needs_words = true;
                }
            }
            if !handle.is_some_and(|handle| reducing.contains(&handle)) {
                take_words(function, first, &types);
            } else if needs_words {
                return None;
            }
        }

        let kernel = std::mem::take(&mut entry.function);
        let memory_decorations = MemoryDecorations::empty();
        let (space, binding, init) = (AddressSpace::Immediate, None, None);
        let words = GlobalVariable { name: None, space, binding, ty: block, init, memory_decorations };
        let words = module.global_variables.append(words, Span::UNDEFINED);
        let arguments: Vec<_> = kernel.arguments[..kernel.arguments.len() - types.len()].to_vec();
        let unbound = kernel.arguments.into_iter().map(|argument| FunctionArgument { binding: None, ..argument });
        let name = Some("kernel".to_owned());
        let kernel = Function { name, arguments: unbound.collect(), ..kernel };
        let kernel = module.functions.append(kernel, Span::UNDEFINED);
        entry.function = entry_point(arguments, kernel, words, &self.words);
        Some(())
    }
}

/// A push constant, as an argument of a function after `first` others.
fn word_argument(first: usize, slot: usize) -> Expression {
    Expression::FunctionArgument((first + slot) as u32)
}

/// Gives a function the push constants as arguments after its own, and passes them on to the functions that it calls.
fn take_words(function: &mut Function, first: usize, types: &[Handle<Type>]) {
    let argument = |&ty: &Handle<Type>| FunctionArgument { name: None, ty, binding: None };
    function.arguments.extend(types.iter().map(argument));
    let words: Vec<_> =
        (0..types.len()).map(|slot| function.expressions.append(word_argument(first, slot), Span::UNDEFINED)).collect();
    pass_words(&mut function.body, &words);
    // Variables begin with constants only.
    let mut stores = Vec::new();
    for (variable, local) in function.local_variables.iter_mut() {
        let is_word = |init: &mut Handle<Expression>| match function.expressions[*init] {
            Expression::FunctionArgument(at) => at as usize >= first,
            _ => false,
        };
        if let Some(value) = local.init.take_if(is_word) {
            let pointer = function.expressions.append(Expression::LocalVariable(variable), Span::UNDEFINED);
            stores.push(Statement::Store { pointer, value });
        }
    }
    function.body.splice(0..0, Block::from_vec(stores));
}

/// Appends the push constants to the arguments of all calls in a block.
fn pass_words(block: &mut Block, words: &[Handle<Expression>]) {
    for statement in block.iter_mut() {
        if let Statement::Call { arguments, .. } = statement {
            arguments.extend(words);
        }
        for inner in blocks(statement) {
            pass_words(inner, words);
        }
    }
}

/// An entry point that reads the push constants, and calls the kernel with its own arguments and with these.
fn entry_point(
    arguments: Vec<FunctionArgument>,
    kernel: Handle<Function>,
    words: Handle<GlobalVariable>,
    types: &[Scalar],
) -> Function {
    let mut expressions = Arena::new();
    let mut push = |expression| expressions.append(expression, Span::UNDEFINED);
    let mut passed: Vec<_> = (0..arguments.len() as u32).map(|at| push(Expression::FunctionArgument(at))).collect();
    let base = push(Expression::GlobalVariable(words));
    let mut body = Vec::new();
    for (index, scalar) in (0..).zip(types) {
        let pointer = push(Expression::AccessIndex { base, index });
        let mut word = push(Expression::Load { pointer });
        if scalar.kind != ScalarKind::Uint {
            word = push(Expression::As { expr: word, kind: scalar.kind, convert: None });
        }
        body.push(Statement::Emit(Range::new_from_bounds(pointer, word)));
        passed.push(word);
    }
    body.push(Statement::Call { function: kernel, arguments: passed, result: None });
    body.push(Statement::Return { value: None });
    Function { arguments, expressions, body: Block::from_vec(body), ..Function::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of arguments of the functions of a kernel's dynamic form: an extent is a push constant.
    fn arguments(function: &str) -> Option<Vec<(String, usize)>> {
        let module = |extent: u32| {
            let text = format!(
                "{function}
                fn coop_rows_larger(x: f32) -> f32 {{ return x; }}
                fn other(x: f32) -> f32 {{ return x + f32({extent}u + u32(x)); }}
                @group(0) @binding(0) var<storage, read_write> x: array<f32>;
                @compute @workgroup_size(32)
                fn main() {{ x[0] = coop_rows_larger(other(larger(x[0], x[1]))); }}",
                function = function.replace("EXTENT", &extent.to_string()),
            );
            naga::front::wgsl::parse_str(&text).expect("parses")
        };
        let shapes = [7, 9].map(|extent| Numbers::of(&module(extent), ()).values);
        let mut dynamic = module(9);
        Slots::new(&[&shapes[0], &shapes[1]]).expect("few").apply(&mut dynamic)?;
        let functions = dynamic.functions.iter();
        Some(functions.map(|(_, it)| (it.name.clone().expect("named"), it.arguments.len())).collect())
    }

    #[test]
    fn functions_that_reduce_rows_take_no_words() {
        let found = arguments("fn larger(a: f32, b: f32) -> f32 { return max(a, b); }").expect("is dynamic");
        let expected = [("larger", 2), ("coop_rows_larger", 2), ("other", 2), ("kernel", 1)];
        assert_eq!(found, expected.map(|(name, count)| (name.to_owned(), count)));
        let with_extent = "fn larger(a: f32, b: f32) -> f32 { return max(a, b) + f32(EXTENTu + u32(a)); }";
        assert_eq!(arguments(with_extent), None);
    }
}
