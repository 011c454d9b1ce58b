//! Matrix units: detecting the features that kernels use, and probing the results.

use std::sync::Arc;

use super::pipelines::Source;
use super::recording::{BufferRange, Dispatch};
use super::vulkan::Vulkan;
use super::{Buffer, Gpu};
use crate::error::bail;
use crate::executor::Profiling;
use crate::host::HostBuffer;
use crate::kernel::launch::BF16_UNITS;
use crate::wait::block_or_refuse;
use crate::{DType, Error, Result, Shape, TensorType};

/// The features that kernels on matrix units use.
const FEATURES: wgpu::Features =
    wgpu::Features::SHADER_F16.union(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX).union(wgpu::Features::SUBGROUP);

/// The features to open an adapter with so that kernels can use its matrix units: all or none.
pub(super) fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
    if missing(adapter).is_empty() { FEATURES } else { wgpu::Features::empty() }
}

/// The features and properties that an adapter lacks for kernels on matrix units.
pub(super) fn missing(adapter: &wgpu::Adapter) -> Vec<&'static str> {
    let features = adapter.features();
    let info = adapter.get_info();
    let multiplies = |properties: &wgpu::CooperativeMatrixProperties| {
        [properties.m_size, properties.n_size, properties.k_size] == [16; 3]
            && properties.ab_type == wgpu::CooperativeScalarType::F16
            && properties.cr_type == wgpu::CooperativeScalarType::F32
    };
    [
        (features.contains(wgpu::Features::SHADER_F16), "16-bit floats in shaders"),
        (features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX), "cooperative matrices"),
        (features.contains(wgpu::Features::SUBGROUP), "subgroup operations"),
        (
            adapter.cooperative_matrix_properties().iter().any(multiplies),
            "products of 16×16 f16 matrices with f32 sums",
        ),
        // Each subgroup computes its own part of a product, so kernels must know the number of subgroups in a
        // workgroup.
        (info.subgroup_min_size == info.subgroup_max_size, "a fixed subgroup size"),
    ]
    .into_iter()
    .filter_map(|(is_there, what)| (!is_there).then_some(what))
    .collect()
}

/// The result of the first request for matrix units.
pub(super) struct Probe {
    /// The reason not to use them, if there is one.
    refused: Option<String>,
    /// `true` if they also multiply bf16.
    pub(super) bf16: bool,
    /// `true` if operations on fragments of bf16 in registers are right, too.
    pub(super) fragments: bool,
}

fn line(dtype: DType, elements: usize) -> TensorType {
    TensorType::new(dtype, Shape::from([elements]))
}

impl Gpu {
    /// Fails with the reason if matrix units are missing or compute wrong results. Probed only once.
    pub(crate) fn expect_matrix(&self) -> Result<()> {
        let probe = self.0.matrix.get_or_init(|| {
            let refused = self.probe().err().map(|error| error.to_string());
            let has = |claims: fn(&Vulkan) -> bool| self.0.vulkan.as_ref().is_some_and(claims);
            let bf16 = refused.is_none() && has(Vulkan::multiplies_bf16) && self.probe_bf16().is_ok();
            let has_fragments = bf16 && has(Vulkan::maps_fragments);
            let fragments = has_fragments && self.probe_fragments().and_then(|()| self.probe_lines()).is_ok();
            Probe { refused, bf16, fragments }
        });
        match &probe.refused {
            None => Ok(()),
            Some(why) => bail!(Device, "{} has no fast precision: {why}", self.0.name),
        }
    }

    fn probe(&self) -> Result<()> {
        if !self.0.missing.is_empty() {
            bail!(Device, "it lacks {}", self.0.missing.join(", "));
        }
        if !self.0.device.features().contains(FEATURES) {
            bail!(Device, "its driver cannot open it with matrix units");
        }
        let fails = |error: Error| error.context("its matrix units failed to run");
        let (a, b) = (numbers(1, 256), numbers(2, 256));
        let upload = |x: &[f32]| self.upload(&HostBuffer::U32(pairs(x)), line(DType::U32, x.len() / 2));
        let y = self.product("direct", 512, &upload(&a)?, &upload(&b)?).map_err(fails)?;
        expect_product("16×16 product", 16, |i, k| a[i * 16 + k], &b, &y[..256])?;
        expect_product("product of a transposed 16×16 matrix", 16, |i, k| a[k * 16 + i], &b, &y[256..])?;
        let (mut a, b) = (numbers(3, 4096), numbers(4, 4096));
        let floats = |x: &[f32]| self.upload(&HostBuffer::F32(x.to_vec()), line(DType::F32, x.len()));
        let y = self.product("shared", 4096, &floats(&a)?, &floats(&b)?).map_err(fails)?;
        expect_product("64×64 product", 64, |i, k| a[i * 64 + k], &b, &y)?;
        a[0] = TOO_LARGE;
        let y = self.product("shared", 4096, &floats(&a)?, &floats(&b)?).map_err(fails)?;
        expect_overflow(&y[..64])
    }

    /// Fails unless they multiply bf16 correctly. This is optional, as there is f16.
    fn probe_bf16(&self) -> Result<()> {
        let (mut a, b) = (numbers(1, 256), numbers(2, 256));
        let y = self.product("bf16", 512, &self.upload_bf16(&a)?, &self.upload_bf16(&b)?)?;
        expect_product("16×16 product of bf16", 16, |i, k| a[i * 16 + k], &b, &y[..256])?;
        expect_product("product of a transposed 16×16 matrix of bf16", 16, |i, k| a[k * 16 + i], &b, &y[256..])?;
        // A power of two that overflows f16.
        a[0] = 2f32.powi(100);
        let y = self.product("bf16", 512, &self.upload_bf16(&a)?, &self.upload_bf16(&b)?)?;
        expect_product("16×16 product of large bf16", 16, |i, k| a[i * 16 + k], &b, &y[..256])
    }

    /// Fails unless operations on fragments in registers are right. They are optional.
    fn probe_fragments(&self) -> Result<()> {
        let a = numbers(5, 256);
        let identity: Vec<f32> = (0..256).map(|at| if at % 17 == 0 { 1.0 } else { 0.0 }).collect();
        let y = self.product("registers", 1024, &self.upload_bf16(&a)?, &self.upload_bf16(&identity)?)?;
        let row = |at: usize| &a[at / 16 * 16..][..16];
        let largest = |at: usize| row(at).iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for at in 0..256 {
            let expected = [largest(at), row(at).iter().sum(), largest(at) - 2.0 * a[at] + at as f32 + 0.5];
            let found = [0, 1, 2].map(|part: usize| y[256 * part + at]);
            if found != expected {
                bail!(Device, "its matrix units compute {found:?} in registers, not {expected:?}");
            }
        }
        expect_product("16×16 product of converted sums", 16, |i, k| a[i * 16 + k], &a, &y[768..])
    }

    /// Fails unless fragments survive as the elements that invocations hold.
    fn probe_lines(&self) -> Result<()> {
        if self.0.caps.subgroup != (32, 32) {
            bail!(Device, "a fragment's elements are not eight of each invocation");
        }
        let (a, b) = (numbers(6, 256), numbers(7, 256));
        let y = self.product("lines", 512, &self.upload_bf16(&a)?, &self.upload_bf16(&b)?)?;
        expect_product("16×16 product of lines", 16, |i, k| a[i * 16 + k], &b, &y[..256])?;
        expect_product("product of a transposed 16×16 matrix of lines", 16, |i, k| a[k * 16 + i], &b, &y[256..])
    }

    /// Numbers that are exact in bf16, two in a word.
    fn upload_bf16(&self, x: &[f32]) -> Result<Arc<Buffer>> {
        let words = x.as_chunks().0.iter().map(|[low, high]| low.to_bits() >> 16 | high.to_bits()).collect();
        self.upload(&HostBuffer::U32(words), line(DType::U32, x.len() / 2))
    }

    /// The result of one form of the probe's kernel.
    fn product(&self, form: &str, elements: usize, a: &Arc<Buffer>, b: &Arc<Buffer>) -> Result<Vec<f32>> {
        let subgroup = self.0.caps.subgroup.1.to_string();
        let mut defines = vec![("FORM", form), ("SUBGROUP", subgroup.as_str())];
        if ["bf16", "registers", "lines"].contains(&form) {
            defines.push((BF16_UNITS, "1"));
        }
        let source = Source::expand("matrix_probe", &defines, false)?;
        let pipeline = Arc::new(self.0.pipeline(&source, false)?.0);
        let ty = line(DType::F32, elements);
        // Elements that the kernel does not write stay NaN.
        let y = self.upload(&HostBuffer::F32(vec![f32::NAN; elements]), ty)?;
        let buffers = [a, b, &y].map(|buffer| BufferRange::whole(buffer)).to_vec();
        let dispatch = Dispatch { pipeline: &pipeline, buffers, grid: (1, 1) };
        self.play(&self.0.record(&[dispatch], Profiling::Off)?, None, None)?;
        match block_or_refuse(self.download(&y, ty), "matrix units work only in native programs")? {
            HostBuffer::F32(y) => Ok(y),
            _ => unreachable!("asked for floats"),
        }
    }
}

/// Random multiples of 1/128 between −1 and 1: exact in `f16` and bf16, with products and sums that are exact in `f32`.
/// So any deviation from the exact result means that sums were not in `f32`.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 16) % 257) as f32 / 128.0 - 1.0
    };
    std::iter::repeat_with(&mut next).take(count).collect()
}

/// The bits of such a number as `f16`: the same exponent with another bias, and the first ten bits of the mantissa.
fn f16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    if magnitude == 0 { 0 } else { bits >> 31 << 15 | (magnitude - (112 << 23)) >> 13 }
}

/// Converts to `f16`, two numbers per word.
fn pairs(x: &[f32]) -> Vec<u32> {
    x.chunks_exact(2).map(|pair| f16_bits(pair[0]) | f16_bits(pair[1]) << 16).collect()
}

/// Compares `y` with the product of square matrices. The tolerance is a hundredth of the error of sums in `f16`.
fn expect_product(what: &str, n: usize, a: impl Fn(usize, usize) -> f32, b: &[f32], y: &[f32]) -> Result<()> {
    for (at, &found) in y.iter().enumerate() {
        let terms = (0..n).map(|k| f64::from(a(at / n, k)) * f64::from(b[k * n + at % n]));
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let close = (f64::from(found) - sum).abs() <= 1e-5 * size;
        if !close {
            bail!(
                Device,
                "its matrix units (or their driver) compute wrong numbers: element ({}, {}) of a {what} is {found}, not {sum}",
                at / n,
                at % n
            );
        }
    }
    Ok(())
}

/// A number that overflows `f16`.
const TOO_LARGE: f32 = 1e6;

/// Checks that the row of a product with such a number is infinite or NaN, as kernels detect overflow that way.
fn expect_overflow(y: &[f32]) -> Result<()> {
    if let Some(found) = y.iter().find(|y| y.is_finite()) {
        bail!(
            Device,
            "its matrix units (or their driver) should overflow on {TOO_LARGE} in 16-bit floats, but return {found}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_is_exact() {
        for (x, bits) in [(0.0, 0), (1.0, 0x3c00), (-1.0, 0xbc00), (0.5, 0x3800), (1.0 / 128.0, 0x2000), (0.75, 0x3a00)]
        {
            assert_eq!(f16_bits(x), bits, "{x}");
        }
        assert_eq!(pairs(&[1.0, -1.0]), [0xbc00_3c00]);
        assert!(numbers(1, 1000).iter().all(|x| x.abs() <= 1.0 && (x * 128.0).fract() == 0.0));
    }

    #[test]
    fn wrong_products_of_matrix_units_are_detected() {
        let (a, b) = (numbers(1, 256), numbers(2, 256));
        let row_by_column = |i: usize, j: usize| (0..16).map(|k| a[i * 16 + k] * b[k * 16 + j]).sum();
        let mut y: Vec<f32> = (0..256).map(|at| row_by_column(at / 16, at % 16)).collect();
        let check = |y: &[f32]| expect_product("16×16 product", 16, |i, k| a[i * 16 + k], &b, y);
        assert!(check(&y).is_ok());
        y[17] += 1e-3;
        assert!(
            check(&y).expect_err("off by an f16's rounding").to_string().contains("element (1, 1) of a 16×16 product")
        );
        y[17] = f32::NAN;
        assert!(check(&y).is_err());
        assert!(expect_overflow(&[f32::INFINITY, f32::NAN]).is_ok() && expect_overflow(&[f32::NAN, 65504.0]).is_err());
    }
}
