//! Operations on fragments of matrix units in registers: `VK_NV_cooperative_matrix2`, which neither wgpu nor naga
//! supports. Devices that have the extension are opened with it. Kernels call functions of certain names, which
//! `shared/fragments` describes; in their SPIR-V the calls become instructions of the extension.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

use ash::vk;
use wgpu::hal::vulkan::Adapter;

use super::spirv::{BOUND, HEADER, instruction, instructions, text};

pub(super) const EXTENSION: &CStr = c"VK_NV_cooperative_matrix2";
/// The number of the extension's structure, which `ash` does not have yet.
const NUMBER: i32 = 1_000_593_000;

/// `VkPhysicalDeviceCooperativeMatrix2FeaturesNV`
#[repr(C)]
pub(super) struct Features<'a> {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    workgroup_scope: vk::Bool32,
    flexible_dimensions: vk::Bool32,
    reductions: vk::Bool32,
    conversions: vk::Bool32,
    per_element_operations: vk::Bool32,
    tensor_addressing: vk::Bool32,
    block_loads: vk::Bool32,
    _chained: PhantomData<&'a mut ()>,
}

impl Default for Features<'_> {
    fn default() -> Self {
        Self {
            s_type: vk::StructureType::from_raw(NUMBER),
            p_next: std::ptr::null_mut(),
            workgroup_scope: vk::FALSE,
            flexible_dimensions: vk::FALSE,
            reductions: vk::FALSE,
            conversions: vk::FALSE,
            per_element_operations: vk::FALSE,
            tensor_addressing: vk::FALSE,
            block_loads: vk::FALSE,
            _chained: PhantomData,
        }
    }
}

// SAFETY: it starts like all Vulkan structures, and has the layout of the structure that its type names.
unsafe impl<'a> vk::TaggedStructure for Features<'a> {
    const STRUCTURE_TYPE: vk::StructureType = vk::StructureType::from_raw(NUMBER);
}

// SAFETY: the specification allows it to extend both.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Features<'_> {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Features<'_> {}

impl Features<'_> {
    /// The features that kernels need.
    pub(super) fn all() -> Self {
        Self { reductions: vk::TRUE, conversions: vk::TRUE, per_element_operations: vk::TRUE, ..Self::default() }
    }
}

/// `true` if an adapter, to be opened with these features, converts, reduces and maps fragments in registers.
pub(super) fn is_there(above: &Adapter, features: wgpu::Features) -> bool {
    let units = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
    if !features.contains(units) || !above.physical_device_capabilities().supports_extension(EXTENSION) {
        return false;
    }
    let (instance, physical) = (above.shared_instance(), above.raw_physical_device());
    let mut features = Features::default();
    let mut found = vk::PhysicalDeviceFeatures2::default().push_next(&mut features);
    // SAFETY: the device belongs to the instance, and supports the extension.
    unsafe { instance.raw_instance().get_physical_device_features2(physical, &mut found) };
    [features.reductions, features.conversions, features.per_element_operations] == [vk::TRUE; 3]
}

/// `true` if a device was opened with it.
pub(super) fn is_open(extensions: &[&CStr]) -> bool {
    extensions.contains(&EXTENSION)
}

/// The prefix of functions whose calls become instructions.
const PREFIX: &str = "coop_";

/// `true` if a module calls such functions.
pub(super) fn are_mapped(module: &naga::Module) -> bool {
    let is_one = |name: &String| name.starts_with(PREFIX);
    module.functions.iter().any(|(_, function)| function.name.as_ref().is_some_and(is_one))
}

/// The functions that reduce rows. Their two arguments are those of an instruction, which passes no others.
pub(super) fn reducing(module: &naga::Module) -> Vec<naga::Handle<naga::Function>> {
    let names: Vec<_> = module.functions.iter().filter_map(|(_, function)| function.name.as_deref()).collect();
    let reduced: Vec<_> = names.iter().filter_map(|name| name.strip_prefix(PREFIX)?.strip_prefix("rows_")).collect();
    let is_one = |function: &naga::Function| function.name.as_deref().is_some_and(|name| reduced.contains(&name));
    module.functions.iter().filter(|(_, function)| is_one(function)).map(|(handle, _)| handle).collect()
}

/// Replaces the calls of `coop_` functions in `words`, a module that naga wrote with names and whose f16 is already
/// bf16: `coop_as_…` converts a fragment, `coop_rows_NAME` reduces its rows with function `NAME`, and `coop_map_NAME`
/// applies function `NAME` to each element. `coop_from_line_…` and `coop_to_line_…` are the elements that an invocation
/// holds of a fragment, in their order: two in each word.
pub(super) fn in_registers(words: &[u32]) -> Vec<u32> {
    const NAME: u32 = 5;
    const EXTENSION: u32 = 10;
    const CAPABILITY: u32 = 17;
    const FUNCTION: u32 = 54;
    const CALL: u32 = 57;
    const CONVERT: u32 = 115;
    const REDUCE: u32 = 5366;
    const MAP: u32 = 5369;
    /// `CooperativeMatrixReductionsNV`, `…ConversionsNV` and `…PerElementOperationsNV`.
    const CAPABILITIES: [u32; 3] = [5430, 5431, 5432];
    /// `CooperativeMatrixReduceRow`.
    const ROWS: u32 = 1;

    let named = |(code, operands): (u32, &[u32])| match operands {
        [id, name @ ..] if code == NAME => Some((*id, string(name))),
        _ => None,
    };
    let names: HashMap<u32, String> = instructions(words).filter_map(named).collect();
    // Variables may have the same names.
    let defined = instructions(words).filter(|(code, _)| *code == FUNCTION).map(|(_, operands)| operands[1]);
    let functions: HashMap<&str, u32> = defined.filter_map(|id| Some((names.get(&id)?.as_str(), id))).collect();
    let called = |code: u32, operands: &[u32]| match operands {
        [_, _, function, ..] if code == CALL => names.get(function)?.strip_prefix(PREFIX)?.split_once('_'),
        _ => None,
    };
    let kinds = || instructions(words).filter_map(|(code, operands)| Some(called(code, operands)?.0));
    let mut lines = kinds().any(|kind| matches!(kind, "from" | "to")).then(|| Lines::new(words));
    // Elements alone need no extension.
    let mut is_extended = !kinds().any(|kind| matches!(kind, "as" | "rows" | "map"));
    let mut module = words[..HEADER].to_vec();
    if !is_extended {
        CAPABILITIES.iter().for_each(|&capability| module.extend(instruction(CAPABILITY, &[capability])));
    }
    let mut is_defined = false;
    for (code, operands) in instructions(words) {
        if code != CAPABILITY && !is_extended {
            module.extend(instruction(EXTENSION, &text("SPV_NV_cooperative_matrix2")));
            is_extended = true;
        }
        if let Some(lines) = &lines
            && code == FUNCTION
            && !is_defined
        {
            module.extend(&lines.definitions);
            is_defined = true;
        }
        let (Some(called), [ty, id, _, operand, others @ ..]) = (called(code, operands), operands) else {
            module.extend(instruction(code, operands));
            continue;
        };
        module.extend(match (called, &mut lines) {
            (("as", _), _) => instruction(CONVERT, &[*ty, *id, *operand]),
            (("rows", name), _) => instruction(REDUCE, &[*ty, *id, *operand, ROWS, functions[name]]),
            (("map", name), _) => instruction(MAP, &[&[*ty, *id, *operand, functions[name]], others].concat()),
            (("from", _), Some(lines)) => lines.fragment(*ty, *id, *operand),
            (("to", _), Some(lines)) => lines.line(*ty, *id, *operand),
            _ => unreachable!("shared/fragments has no {called:?}"),
        });
    }
    if let Some(lines) = lines {
        module[BOUND] = lines.bound;
    }
    module
}

/// The types and constants by which a module's fragments and lines become each other.
struct Lines {
    bound: u32,
    word: u32,
    half: u32,
    pair: u32,
    /// A fragment of zeros for each type of fragments.
    zeros: HashMap<u32, u32>,
    /// Those of them that the module lacks.
    definitions: Vec<u32>,
}

impl Lines {
    const EXTRACT: u32 = 81;
    const INSERT: u32 = 82;
    const CONSTRUCT: u32 = 80;
    const CAST: u32 = 124;
    /// Words of a line.
    const WORDS: u32 = 4;

    fn new(words: &[u32]) -> Self {
        const INTEGER: u32 = 21;
        const FLOAT: u32 = 22;
        const VECTOR: u32 = 23;
        const NULL: u32 = 46;
        const MATRIX: u32 = 4456;

        let find = |code: u32, starts: &[u32]| {
            instructions(words).find_map(|(found, operands)| match operands {
                [id, rest @ ..] if found == code && rest.starts_with(starts) => Some(*id),
                _ => None,
            })
        };
        let word = find(INTEGER, &[32, 0]).expect("lines are words");
        let half = find(FLOAT, &[16]).expect("their elements have 16 bits");
        let (mut bound, mut definitions) = (words[BOUND], Vec::new());
        let mut define = |code: u32, before: &[u32], after: &[u32]| {
            bound += 1;
            definitions.extend(instruction(code, &[before, &[bound - 1], after].concat()));
            bound - 1
        };
        let pair = find(VECTOR, &[half, 2]).unwrap_or_else(|| define(VECTOR, &[], &[half, 2]));
        let fragments = instructions(words).filter(|(code, operands)| *code == MATRIX && operands[1] == half);
        let zeros = fragments.map(|(_, operands)| (operands[0], define(NULL, &[operands[0]], &[]))).collect();
        Self { bound, word, half, pair, zeros, definitions }
    }

    fn fresh(&mut self) -> u32 {
        self.bound += 1;
        self.bound - 1
    }

    /// The fragment `id` whose elements are those of a line.
    fn fragment(&mut self, ty: u32, id: u32, line: u32) -> Vec<u32> {
        let (mut code, mut fragment) = (Vec::new(), self.zeros[&ty]);
        for at in 0..Self::WORDS {
            let [word, pair] = [self.fresh(), self.fresh()];
            code.extend(instruction(Self::EXTRACT, &[self.word, word, line, at]));
            code.extend(instruction(Self::CAST, &[self.pair, pair, word]));
            for part in 0..2 {
                let element = self.fresh();
                let is_last = (at, part) == (Self::WORDS - 1, 1);
                let next = if is_last { id } else { self.fresh() };
                code.extend(instruction(Self::EXTRACT, &[self.half, element, pair, part]));
                code.extend(instruction(Self::INSERT, &[ty, next, element, fragment, 2 * at + part]));
                fragment = next;
            }
        }
        code
    }

    /// The line `id` of a fragment's elements.
    fn line(&mut self, ty: u32, id: u32, fragment: u32) -> Vec<u32> {
        let (mut code, mut words) = (Vec::new(), vec![ty, id]);
        for at in 0..Self::WORDS {
            let elements = [0, 1].map(|part| {
                let element = self.fresh();
                code.extend(instruction(Self::EXTRACT, &[self.half, element, fragment, 2 * at + part]));
                element
            });
            let [pair, word] = [self.fresh(), self.fresh()];
            code.extend(instruction(Self::CONSTRUCT, &[self.pair, pair, elements[0], elements[1]]));
            code.extend(instruction(Self::CAST, &[self.word, word, pair]));
            words.push(word);
        }
        code.extend(instruction(Self::CONSTRUCT, &words));
        code
    }
}

/// A string among the operands of an instruction.
fn string(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_become_instructions() {
        let header = [0x0723_0203, 0x0001_0600, 0, 9, 0];
        let shader = instruction(17, &[1]);
        let name = |id: u32, name: &str| instruction(5, &[&[id], &text(name)[..]].concat());
        let functions = [4, 5, 6, 7, 8].map(|id| instruction(54, &[1, id, 0, 3])).concat();
        // Variables, too, are named `half`.
        let names = [
            name(9, "half"),
            name(4, "coop_as_left"),
            name(5, "coop_rows_larger"),
            name(6, "larger"),
            name(7, "coop_map_half"),
            name(8, "half"),
            name(10, "half"),
        ];
        let module = |calls: &[Vec<u32>]| [&header[..], &shader, &names.concat(), &functions, &calls.concat()].concat();
        let calls =
            [instruction(57, &[1, 20, 4, 19]), instruction(57, &[2, 21, 5, 19]), instruction(57, &[2, 22, 7, 19, 18])];
        let other = instruction(57, &[2, 23, 8, 19]);
        let found = in_registers(&module(&[&calls[..], std::slice::from_ref(&other)].concat()));
        let added = [5430, 5431, 5432].map(|capability| instruction(17, &[capability])).concat();
        let extension = instruction(10, &text("SPV_NV_cooperative_matrix2"));
        let replaced = [
            instruction(115, &[1, 20, 19]),
            instruction(5366, &[2, 21, 19, 1, 6]),
            instruction(5369, &[2, 22, 19, 8, 18]),
            other,
        ];
        let expected =
            [&header[..], &added, &shader, &extension, &names.concat(), &functions, &replaced.concat()].concat();
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_become_fragments_by_their_elements() {
        let header = |bound| [0x0723_0203, 0x0001_0600, 0, bound, 0];
        let names = [(5, "coop_from_line_left"), (6, "coop_to_line_left")];
        let names = names.map(|(id, name)| instruction(5, &[&[id], &text(name)[..]].concat())).concat();
        // u32, bf16, a line, and a fragment.
        let types = [(21, vec![1, 32, 0]), (22, vec![2, 16, 0]), (23, vec![3, 1, 4]), (4456, vec![4, 2, 9, 9, 9, 9])];
        let types = types.map(|(code, operands)| instruction(code, &operands)).concat();
        let functions = [instruction(54, &[4, 5, 0, 8]), instruction(54, &[3, 6, 0, 8])].concat();
        let calls = [instruction(57, &[4, 11, 5, 10]), instruction(57, &[3, 12, 6, 11])].concat();
        let found = in_registers(&[&header(20)[..], &names, &types, &functions, &calls].concat());
        let mut expected = [&header(found[BOUND])[..], &names, &types].concat();
        // Pairs of bf16, and a fragment of zeros.
        expected.extend([instruction(23, &[20, 2, 2]), instruction(46, &[4, 21])].concat());
        expected.extend(functions);
        assert!(found.starts_with(&expected), "{found:?}");
        let code: Vec<(u32, &[u32])> = instructions(&found).skip(10).collect();
        let of = |wanted: u32| code.iter().filter(move |(code, _)| *code == wanted).map(|(_, operands)| *operands);
        let inserted: Vec<u32> = of(82).map(|operands| operands[4]).collect();
        assert_eq!(inserted, (0..8).collect::<Vec<_>>());
        let chain: Vec<[u32; 2]> = of(82).map(|operands| [operands[1], operands[3]]).collect();
        assert!(chain[0][1] == 21 && chain[7][0] == 11 && chain.windows(2).all(|two| two[0][0] == two[1][1]));
        // Elements of words, of pairs, and of the fragment.
        let extracted = |from: u32| of(81).filter(move |operands| operands[2] == from).map(|operands| operands[3]);
        assert_eq!(extracted(10).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(extracted(11).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        let line = of(80).next_back().expect("four words");
        assert_eq!((line[..2].to_vec(), line.len()), (vec![3, 12], 6));
        // Every id is defined once, below the bound.
        let mut ids: Vec<u32> =
            code.iter().filter(|(code, _)| [80, 81, 82, 124].contains(code)).map(|(_, o)| o[1]).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] < two[1]) && ids.last() < Some(&found[BOUND]));
        assert!(!instructions(&found).any(|(code, _)| [10, 17, 57].contains(&code)));
    }
}
