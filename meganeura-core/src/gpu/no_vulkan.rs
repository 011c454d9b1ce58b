//! Replaces [`vulkan`](super::vulkan) on systems where wgpu does not use Vulkan: there is never one.

use super::memory::Buffer;
use super::pipelines::Source;
use super::recording::Dispatch;
use crate::Result;
use crate::executor::{PipelineCache, Profiling};
use crate::kernel::launch::Multiprocessors;

pub(super) enum Vulkan {}

pub(super) enum Pipeline {}

pub(super) enum Recording {}

impl Pipeline {
    pub(super) fn is_dynamic(&self) -> bool {
        match *self {}
    }
}

pub(super) fn open(_: &wgpu::Adapter, _: &wgpu::DeviceDescriptor<'_>, _: bool) -> Option<(wgpu::Device, wgpu::Queue)> {
    None
}

pub(super) fn exporting(_: &wgpu::Adapter) -> wgpu::Features {
    wgpu::Features::empty()
}

pub(super) fn multiprocessors(_: &wgpu::Adapter) -> Option<Multiprocessors> {
    None
}

impl Vulkan {
    pub(super) fn below(_: &wgpu::Adapter, _: &wgpu::Device, _: &wgpu::Limits) -> Option<Self> {
        None
    }

    pub(super) fn multiplies_bf16(&self) -> bool {
        match *self {}
    }

    pub(super) fn maps_fragments(&self) -> bool {
        match *self {}
    }

    pub(super) fn cache(&self) -> (PipelineCache, u64) {
        match *self {}
    }

    pub(super) fn save(&self) {
        match *self {}
    }

    pub(super) fn pipeline(&self, _: &Source, _: bool) -> Result<(Pipeline, bool)> {
        match *self {}
    }

    pub(super) fn record(&self, _: &[Dispatch<'_>], _: Profiling) -> Result<Recording> {
        match *self {}
    }
}

impl Recording {
    pub(super) fn execute(&self, _: &mut wgpu::CommandEncoder, _: Option<(&Buffer, &[u32])>) -> bool {
        match *self {}
    }

    pub(super) fn has_stamps(&self) -> bool {
        match *self {}
    }

    pub(super) fn stamps(&self) -> Result<Vec<u64>> {
        match *self {}
    }
}
