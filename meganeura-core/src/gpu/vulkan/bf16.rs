//! bf16 on matrix units: `VK_KHR_shader_bfloat16`, which neither wgpu nor naga supports. Devices that have the
//! extension are opened with it. Kernels that multiply bf16 are written with f16, and use it only for matrix products;
//! or with matrices A and B of f32, which they load from lines of bf16. So it suffices to rewrite three things in their
//! SPIR-V: the type f16 becomes bf16, unpacking a word into two f16 becomes a bit cast, and the elements of matrices A
//! and B become bf16.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

use ash::vk;
use wgpu::hal::vulkan::Adapter;

use super::spirv::{BOUND, HEADER, instruction, instructions, text};

pub(super) const EXTENSION: &CStr = c"VK_KHR_shader_bfloat16";
/// The number of both the extension's structure and its component type, which `ash` does not have yet.
const NUMBER: i32 = 1_000_141_000;

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`
#[repr(C)]
pub(super) struct Features<'a> {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    numbers: vk::Bool32,
    dot_products: vk::Bool32,
    cooperative_matrices: vk::Bool32,
    _chained: PhantomData<&'a mut ()>,
}

impl Default for Features<'_> {
    fn default() -> Self {
        Self {
            s_type: vk::StructureType::from_raw(NUMBER),
            p_next: std::ptr::null_mut(),
            numbers: vk::FALSE,
            dot_products: vk::FALSE,
            cooperative_matrices: vk::FALSE,
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
        Self { numbers: vk::TRUE, cooperative_matrices: vk::TRUE, ..Self::default() }
    }
}

/// `true` if the matrix units of an adapter, to be opened with these features, multiply bf16.
pub(super) fn is_there(above: &Adapter, features: wgpu::Features) -> bool {
    let units = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
    if !features.contains(units) || !above.physical_device_capabilities().supports_extension(EXTENSION) {
        return false;
    }
    let (instance, physical) = (above.shared_instance(), above.raw_physical_device());
    let matrices = ash::khr::cooperative_matrix::Instance::new(instance.entry(), instance.raw_instance());
    let mut features = Features::default();
    let mut found = vk::PhysicalDeviceFeatures2::default().push_next(&mut features);
    // SAFETY: the device belongs to the instance, and supports the extensions.
    let products = unsafe {
        instance.raw_instance().get_physical_device_features2(physical, &mut found);
        matrices.get_physical_device_cooperative_matrix_properties(physical).unwrap_or_default()
    };
    let is_wanted = |product: &vk::CooperativeMatrixPropertiesKHR<'_>| {
        let bf16 = vk::ComponentTypeKHR::from_raw(NUMBER);
        [product.m_size, product.n_size, product.k_size] == [16; 3]
            && [product.a_type, product.b_type] == [bf16; 2]
            && [product.c_type, product.result_type] == [vk::ComponentTypeKHR::FLOAT32; 2]
            && product.scope == vk::ScopeKHR::SUBGROUP
    };
    features.numbers == vk::TRUE && features.cooperative_matrices == vk::TRUE && products.iter().any(is_wanted)
}

/// `true` if a device was opened with it.
pub(super) fn is_open(extensions: &[&CStr]) -> bool {
    extensions.contains(&EXTENSION)
}

/// Replaces f16 by bf16 in `words`, a module written by naga, and f32 in matrices A and B. Each pair of f16 from
/// `unpack2x16float` and a conversion becomes a pair of bf16 with the bits of the word.
pub(super) fn instead_of_f16(words: &[u32]) -> Vec<u32> {
    const CAPABILITY: u32 = 17;
    const EXTENSION: u32 = 10;
    const EXTENDED: u32 = 12;
    const TYPE_FLOAT: u32 = 22;
    const CONSTANT: u32 = 43;
    const TYPE_MATRIX: u32 = 4456;
    const CONVERT: u32 = 115;
    const CAST: u32 = 124;
    /// `UnpackHalf2x16` in the GLSL instruction set, the only one that naga imports.
    const UNPACK: u32 = 62;
    /// `BFloat16TypeKHR` and `BFloat16CooperativeMatrixKHR`.
    const CAPABILITIES: [u32; 2] = [5116, 5118];
    /// `BFloat16KHR`, the encoding of a float.
    const ENCODING: u32 = 0;
    /// `MatrixAccumulatorKHR`, a matrix's use; 0 and 1 are those of A and B.
    const SUMS: u32 = 2;

    let name = text("SPV_KHR_bfloat16");
    let float = |bits| {
        instructions(words).find_map(|(code, operands)| match operands {
            &[id, of] if code == TYPE_FLOAT && of == bits => Some(id),
            _ => None,
        })
    };
    let single = float(32);
    // A module declares a type once. Matrices may come before the type f16, so the type bf16 is declared with the first
    // float.
    let bf16 = float(16).unwrap_or(words[BOUND]);
    let mut module = words[..HEADER].to_vec();
    module[BOUND] = words[BOUND].max(bf16 + 1);
    CAPABILITIES.iter().for_each(|&capability| module.extend(instruction(CAPABILITY, &[capability])));
    let (mut unpacked, mut constants) = (HashMap::new(), HashMap::new());
    let (mut named, mut declared) = (false, false);
    for (code, operands) in instructions(words) {
        if code != CAPABILITY && !named {
            module.extend(instruction(EXTENSION, &name));
            named = true;
        }
        if code == TYPE_FLOAT && !declared {
            module.extend(instruction(TYPE_FLOAT, &[bf16, 16, ENCODING]));
            declared = true;
        }
        if let (EXTENDED, &[_, id, _, UNPACK, word]) = (code, operands) {
            unpacked.insert(id, word);
        }
        if let (CONSTANT, &[_, id, value]) = (code, operands) {
            constants.insert(id, value);
        }
        module.extend(match (code, operands) {
            (TYPE_FLOAT, &[_, 16]) => Vec::new(),
            (TYPE_MATRIX, &[id, of, scope, rows, columns, usage])
                if Some(of) == single && constants.get(&usage) != Some(&SUMS) =>
            {
                instruction(TYPE_MATRIX, &[id, bf16, scope, rows, columns, usage])
            }
            (CONVERT, &[ty, id, of]) if unpacked.contains_key(&of) => instruction(CAST, &[ty, id, unpacked[&of]]),
            _ => instruction(code, operands),
        });
    }
    module
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_sixteen_bits_alone_becomes_bf16() {
        let header = [0x0723_0203, 0x0001_0600, 0, 9, 0];
        let [shader, f32, f16] =
            [(17, vec![1]), (22, vec![4, 32]), (22, vec![5, 16])].map(|(code, of)| instruction(code, &of));
        let module = instead_of_f16(&[&header[..], &shader, &f32, &f16].concat());
        let name = instruction(10, &[0x5f56_5053, 0x5f52_484b, 0x6f6c_6662, 0x3631_7461, 0]);
        let added = [instruction(17, &[5116]), instruction(17, &[5118])].concat();
        let expected = [&header[..], &added, &shader, &name, &instruction(22, &[5, 16, 0]), &f32].concat();
        assert_eq!(module, expected);
    }

    #[test]
    fn factors_of_f32_become_bf16_and_sums_do_not() {
        let header = [0x0723_0203, 0x0001_0600, 0, 20, 0];
        let (f32, uint) = (instruction(22, &[4, 32]), instruction(21, &[5, 32, 0]));
        let [a, sums] = [(6, 0), (7, 2)].map(|(id, usage)| instruction(43, &[5, id, usage]));
        let matrix = |id, of, usage| instruction(4456, &[id, of, 5, 5, 5, usage]);
        let module = |floats: &[u32], of| [floats, &uint, &a, &sums, &matrix(8, of, 6), &matrix(9, 4, 7)].concat();
        let changed = instead_of_f16(&[&header[..], &module(&f32, 4)].concat());
        assert_eq!(changed[BOUND], 21);
        assert!(changed.ends_with(&module(&[instruction(22, &[20, 16, 0]), f32].concat(), 20)), "{changed:?}");
    }
}
