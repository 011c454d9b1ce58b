//! Operations on fragments of matrix units in registers: `VK_NV_cooperative_matrix2`, which neither wgpu nor naga
//! supports. Devices that have the extension are opened with it. Kernels call functions of certain names, which
//! `shared/fragments` describes; in their SPIR-V the calls become instructions of the extension.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

use ash::vk;
use wgpu::hal::vulkan::Adapter;

use super::spirv::{HEADER, instruction, instructions, text};

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

/// Replaces the calls of `coop_` functions in `words`, a module that naga wrote with names: `coop_as_…` converts a
/// fragment, `coop_rows_NAME` reduces its rows with function `NAME`, and `coop_map_NAME` applies function `NAME` to
/// each element.
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
    let mut module = words[..HEADER].to_vec();
    CAPABILITIES.iter().for_each(|&capability| module.extend(instruction(CAPABILITY, &[capability])));
    let mut is_extended = false;
    for (code, operands) in instructions(words) {
        if code != CAPABILITY && !is_extended {
            module.extend(instruction(EXTENSION, &text("SPV_NV_cooperative_matrix2")));
            is_extended = true;
        }
        let called = match operands {
            [_, _, function, ..] if code == CALL => names.get(function).and_then(|name| name.strip_prefix(PREFIX)),
            _ => None,
        };
        let (Some(called), [ty, id, _, fragment, others @ ..]) = (called, operands) else {
            module.extend(instruction(code, operands));
            continue;
        };
        module.extend(match called.split_once('_') {
            Some(("as", _)) => instruction(CONVERT, &[*ty, *id, *fragment]),
            Some(("rows", name)) => instruction(REDUCE, &[*ty, *id, *fragment, ROWS, functions[name]]),
            Some(("map", name)) => instruction(MAP, &[&[*ty, *id, *fragment, functions[name]], others].concat()),
            _ => unreachable!("shared/fragments has no {called}"),
        });
    }
    module
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
}
