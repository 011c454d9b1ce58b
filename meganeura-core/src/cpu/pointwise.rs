//! Fused pointwise programs, run in blocks that stay in the first-level cache. Each row of the program is one SIMD loop
//! over a block; only the program's operands and results touch memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::affine::Chain;
use crate::Layout;
use crate::host::HostWord;
use crate::kernel::native::{
    self, Affine, Finish, OutView, Real, Run, Scratch, Shared, Slice, Transposed, View, parallel,
};
use crate::plan::{Input, Program};

/// Elements in a block.
const BLOCK: usize = 256;
/// The least number of neighbouring elements of a kernel's result, if it has them, that a program does at once.
const AT_ONCE: usize = 4 * BLOCK;
/// Elements in a task.
const TASK: usize = 32 * BLOCK;

/// The source of an operand.
pub(super) enum Source<'a, T> {
    View(View<'a, T>),
    /// This result, which the program updates in place.
    Updated(usize),
}

pub(super) fn run<T: Real>(
    program: &Program,
    inputs: Vec<Source<'_, T>>,
    host: &[HostWord],
    outputs: &mut [OutView<'_, T>],
    scratch: &Scratch,
) {
    if let [to @ (OutView::Index(_) | OutView::Int(_) | OutView::Long(_))] = outputs {
        return copy_integers(program, &inputs, to);
    }
    if let ([OutView::Float(to)], Some((affine, x))) = (&mut *outputs, Affine::over_operand(program, &inputs, host)) {
        return parallel(to, TASK, &|first, y| affine.run(first, x.map(|x| &x[first..][..y.len()]), y));
    }
    let transposed: Vec<_> = inputs.iter().map(transposed).collect();
    if let ([Some(transposed)], [OutView::Float(to)], []) = (&transposed[..], &mut *outputs, &program.instructions[..])
    {
        return transposed.write(to);
    }
    // Blocks of a transpose would read each line of its memory many times.
    let mut copies = Vec::new();
    for transposed in transposed.iter().flatten() {
        let Some(mut copy) = scratch.borrow(program.shape.elements()) else { return };
        transposed.write(&mut copy);
        copies.push(copy);
    }
    let mut copied = copies.iter().map(|copy| View::new(Slice::Float(copy), Layout::contiguous(program.shape)));
    let inputs = inputs.into_iter().zip(&transposed).map(|(input, transposed)| match transposed {
        Some(_) => Source::View(copied.next().expect("one for each")),
        None => input,
    });
    let inputs: Vec<_> = inputs.collect();
    let machine = Machine::new(program, &inputs, host);
    let elements = program.shape.elements();
    let mut outputs: Vec<_> = outputs.iter_mut().map(OutView::floats).collect();
    if elements <= TASK {
        return machine.run(0, &mut machine.blocks(), &mut outputs);
    }
    // Splits every result into tasks, which run in threads.
    let mut tasks: Vec<Vec<&mut [T]>> = Vec::new();
    tasks.resize_with(elements.div_ceil(TASK), Vec::new);
    for output in outputs {
        for (task, part) in tasks.iter_mut().zip(output.chunks_mut(TASK)) {
            task.push(part);
        }
    }
    let tasks = tasks.par_iter_mut().enumerate();
    tasks.for_each_init(|| machine.blocks(), |blocks, (at, parts)| machine.run(at * TASK, blocks, parts));
}

/// A program that runs inside a kernel, on its results.
pub(super) struct Epilogue<'a, T> {
    /// The beginning of the program.
    affine: Chain<'a, T>,
    /// The rest of it.
    machine: Option<Machine<'a, T>>,
    /// The memory of threads, while they do not need it.
    idle: Mutex<Vec<Blocks<T>>>,
}

impl<'a, T: Real> Epilogue<'a, T> {
    /// A program of a step with these operands, after its beginning, which is `affine`.
    pub(super) fn new(
        affine: Chain<'a, T>,
        rest: Option<&'a Program>,
        inputs: &'a [Source<'a, T>],
        host: &[HostWord],
    ) -> Self {
        let machine = rest.map(|program| Machine::new(program, inputs, host));
        Self { affine, machine, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Blocks<T>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for the rest of the program, if there is one.
    fn blocks(&self) -> Option<Blocks<T>> {
        let machine = self.machine.as_ref()?;
        let idle = self.idle().pop();
        Some(idle.unwrap_or_else(|| machine.blocks()))
    }

    /// Runs the program after its first pass on neighbouring elements, from number `first` on.
    fn rest(&self, first: usize, y: &mut [T], blocks: &mut Option<Blocks<T>>) {
        self.affine.iter().skip(1).for_each(|affine| affine.run(first, None, y));
        if let (Some(machine), Some(blocks)) = (&self.machine, blocks) {
            machine.run(first, blocks, &mut [y]);
        }
    }
}

impl<T: Real> Finish<T> for Epilogue<'_, T> {
    fn finish(&self, first: usize, y: &mut [T]) {
        if let Some(affine) = self.affine.first() {
            affine.run(first, None, y);
        }
        self.after_first(first, y);
    }

    fn affine(&self) -> Option<&Affine<'_, T>> {
        match (&self.affine[..], &self.machine) {
            ([affine], None) => Some(affine),
            _ => None,
        }
    }

    fn first(&self) -> Option<&Affine<'_, T>> {
        self.affine.first()
    }

    fn after_first(&self, first: usize, y: &mut [T]) {
        let mut blocks = self.blocks();
        self.rest(first, y, &mut blocks);
        self.idle().extend(blocks);
    }

    unsafe fn store(&self, values: &[T], runs: &mut dyn Iterator<Item = Run>, y: &Shared<'_, T>) {
        if let Some(affine) = self.affine() {
            // SAFETY: the caller's promise.
            return unsafe { affine.store(values, runs, y) };
        }
        let mut blocks = self.blocks();
        // Elements that the rest of the program is left to do: runs that follow each other are done at once, since
        // lines of images are short.
        let mut left = 0..0;
        for Run { first, at, len } in runs {
            if first != left.end || left.len() >= AT_ONCE {
                // SAFETY: the caller's promise.
                self.rest(left.start, unsafe { y.part(left.start, left.len()) }, &mut blocks);
                left = first..first;
            }
            left.end += len;
            // SAFETY: the caller's promise.
            let y = unsafe { y.part(first, len) };
            let values = &values[at..][..len];
            match self.affine.first() {
                Some(affine) => affine.run(first, Some(values), y),
                None => y.copy_from_slice(values),
            }
        }
        // SAFETY: the caller's promise.
        self.rest(left.start, unsafe { y.part(left.start, left.len()) }, &mut blocks);
        self.idle().extend(blocks);
    }
}

/// A large operand that is a transpose.
fn transposed<'a, T: Real>(input: &Source<'a, T>) -> Option<Transposed<'a, T>> {
    let Source::View(view) = input else { return None };
    let is_large = view.layout().shape_ref().elements() > TASK;
    if is_large { Transposed::of(view.floats(), view.layout()) } else { None }
}

/// Copies integers, the only work of programs on them.
fn copy_integers<T: Real>(program: &Program, inputs: &[Source<'_, T>], to: &mut OutView<'_, T>) {
    let [Source::View(view)] = inputs else { unreachable!("integers are not updated in place") };
    let place = program.places[0].unwrap_or_else(|| Layout::contiguous(program.shape));
    native::of_one_type!(*view, *to, |from, to| match Transposed::of(from, view.layout()) {
        Some(transposed) if program.places[0].is_none() => transposed.write(to),
        _ => native::copy_strided(from, view.layout(), to, &place),
    });
}

/// A block for the result of each row, and for each operand that is not read in place.
struct Blocks<T> {
    results: Vec<[T; BLOCK]>,
    gathered: Vec<[T; BLOCK]>,
}

struct Machine<'a, T> {
    /// The widest SIMD of this processor, found at run time; tasks are compiled for each width. The number of lanes
    /// does not change the bits of a result. Whether `a·b + c` is rounded once does: see `kernel/native/fast.rs`.
    arch: pulp::Arch,
    program: &'a Program,
    inputs: &'a [Source<'a, T>],
    /// The layout of each operand, with as few axes as possible.
    layouts: Vec<Option<Layout>>,
    /// Whether the program reads each operand.
    read: Vec<bool>,
    /// The program's constants and host numbers, each filling a block.
    numbers: Vec<(Input, Vec<T>)>,
    /// For each row the result that it writes itself, because no other row reads it.
    stored: Vec<Option<usize>>,
}

impl<'a, T: Real> Machine<'a, T> {
    fn new(program: &'a Program, inputs: &'a [Source<'a, T>], host: &[HostWord]) -> Self {
        let layout = |source: &Source<'_, T>| match source {
            Source::View(view) if !view.layout().is_contiguous() => Some(view.layout().collapse()),
            Source::View(_) | Source::Updated(_) => None,
        };
        let mut numbers: Vec<(Input, Vec<T>)> = Vec::new();
        for input in program.instructions.iter().flat_map(|(_, inputs)| inputs).chain(&program.results) {
            let value = match *input {
                Input::Const(value) => value.0,
                Input::Host(at) => match host[at] {
                    HostWord::Float(value) => value,
                    HostWord::Word(_) => unreachable!("programs read floats"),
                },
                Input::Operand(_) | Input::Result(_) | Input::Kernel(_) => continue,
            };
            if numbers.iter().all(|(known, _)| known != input) {
                numbers.push((*input, vec![T::from_f64(value); BLOCK]));
            }
        }
        let layouts = inputs.iter().map(layout).collect();
        let named = || program.instructions.iter().flat_map(|(_, inputs)| inputs).chain(&program.results);
        let read = (0..inputs.len()).map(|k| named().any(|input| *input == Input::Operand(k))).collect();
        Self { arch: pulp::Arch::new(), program, inputs, layouts, read, numbers, stored: stored(program) }
    }

    /// The memory of one thread.
    fn blocks(&self) -> Blocks<T> {
        let zeros = |count| vec![[T::ZERO; BLOCK]; count];
        Blocks { results: zeros(self.program.instructions.len()), gathered: zeros(self.inputs.len()) }
    }

    /// Runs the program for the elements that fit in `outputs`, from `first` on.
    fn run(&self, first: usize, blocks: &mut Blocks<T>, outputs: &mut [&mut [T]]) {
        self.arch.dispatch(Task { machine: self, first, blocks, outputs });
    }

    #[inline(always)]
    fn run_here<S: Simd>(&self, first: usize, blocks: &mut Blocks<T>, outputs: &mut [&mut [T]]) {
        let Blocks { results, gathered } = blocks;
        let elements = outputs.first().map_or(0, |output| output.len());
        for start in (0..elements).step_by(BLOCK) {
            let len = BLOCK.min(elements - start);
            // A kernel's own operands are among the inputs.
            for (k, input) in self.inputs.iter().enumerate().filter(|(k, _)| self.read[*k]) {
                match (input, &self.layouts[k]) {
                    (Source::Updated(result), _) => {
                        gathered[k][..len].copy_from_slice(&outputs[*result][start..][..len]);
                    }
                    (Source::View(view), Some(layout)) => {
                        native::gather(view.floats(), layout, first + start, &mut gathered[k][..len]);
                    }
                    // The rows of one block take about as long as memory takes to answer.
                    (Source::View(view), None) => native::prefetch(view.floats(), first + start + len, BLOCK),
                }
            }
            for (row, (op, inputs)) in self.program.instructions.iter().enumerate() {
                let (done, rest) = results.split_at_mut(row);
                // A kernel's result becomes the program's only one.
                let (of_kernel, to): (&[T], _) = match self.stored[row] {
                    Some(result) => (&[], &mut outputs[result][start..]),
                    None => (&outputs[0][start..], &mut rest[0][..]),
                };
                let mut operands: [&[T]; 3] = [&[]; 3];
                for (operand, input) in operands.iter_mut().zip(inputs) {
                    *operand = match input {
                        Input::Kernel(_) => &of_kernel[..len],
                        input => &self.read(input, done, gathered, first + start)[..len],
                    };
                }
                op.eval::<T, S>(&operands[..inputs.len()], &mut to[..len]);
            }
            for (k, (output, result)) in outputs.iter_mut().zip(&self.program.results).enumerate() {
                if !self.stored.contains(&Some(k)) {
                    let from = self.read(result, results, gathered, first + start);
                    output[start..][..len].copy_from_slice(&from[..len]);
                }
            }
        }
    }

    #[inline(always)]
    fn read<'b>(
        &'b self,
        input: &Input,
        results: &'b [[T; BLOCK]],
        gathered: &'b [[T; BLOCK]],
        first: usize,
    ) -> &'b [T] {
        match *input {
            Input::Result(row) => &results[row],
            Input::Operand(k) => match (&self.inputs[k], &self.layouts[k]) {
                (Source::View(view), None) => &view.floats()[first..],
                _ => &gathered[k],
            },
            Input::Kernel(_) => unreachable!("a kernel's result is not stored as it is"),
            Input::Const(_) | Input::Host(_) => {
                &self.numbers.iter().find(|(known, _)| known == input).expect("collected before").1
            }
        }
    }
}

/// For each row of a program the only result that is the row's, if no row reads it. None of a program that reads the
/// result that it replaces.
fn stored(program: &Program) -> Vec<Option<usize>> {
    let read = || program.instructions.iter().flat_map(|(_, inputs)| inputs);
    if read().any(|input| matches!(input, Input::Kernel(_))) {
        return vec![None; program.instructions.len()];
    }
    let stored = |row| {
        let mut results = program.results.iter().enumerate().filter(|(_, result)| **result == Input::Result(row));
        match (results.next(), results.next()) {
            (Some((k, result)), None) if read().all(|input| input != result) => Some(k),
            _ => None,
        }
    };
    (0..program.instructions.len()).map(stored).collect()
}

/// A task in the form that `pulp` needs. A closure would be compiled only once, for the least capable processor.
struct Task<'a, 'b, T> {
    machine: &'a Machine<'a, T>,
    first: usize,
    blocks: &'a mut Blocks<T>,
    outputs: &'a mut [&'b mut [T]],
}

impl<T: Real> WithSimd for Task<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.machine.run_here::<S>(self.first, self.blocks, self.outputs);
    }
}
