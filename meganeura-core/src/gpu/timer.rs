//! Timestamps that the GPU writes before a run's first launch and after its last, or after each.

use super::Inner;
use super::recording::stamps;
use crate::Result;
use crate::error::bail;
use crate::executor::Profiling;

/// The features that an adapter needs to write timestamps between launches.
const FEATURES: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);

/// The features to open an adapter with so that its runs can be timed: all or none.
pub(super) fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
    if adapter.features().contains(FEATURES) { FEATURES } else { wgpu::Features::empty() }
}

/// The timestamps of one run.
pub(super) struct Timer {
    /// No set holds more than [`wgpu::QUERY_SET_MAX_QUERIES`].
    sets: Vec<wgpu::QuerySet>,
    stamps: u32,
}

impl Timer {
    /// A timer for a run with this number of launches, if it is to be timed.
    pub(super) fn new(device: &wgpu::Device, profiling: Profiling, launches: usize) -> Option<Self> {
        let stamps = stamps(profiling, launches)?;
        let most = wgpu::QUERY_SET_MAX_QUERIES;
        let sets = (0..stamps.div_ceil(most)).map(|set| {
            device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("launches"),
                ty: wgpu::QueryType::Timestamp,
                count: (stamps - set * most).min(most),
            })
        });
        Some(Self { sets: sets.collect(), stamps })
    }

    /// Writes timestamp number `at` when everything before it in the pass is done.
    pub(super) fn stamp(&self, pass: &mut wgpu::ComputePass<'_>, at: usize) {
        let most = wgpu::QUERY_SET_MAX_QUERIES as usize;
        pass.write_timestamp(&self.sets[at / most], (at % most) as u32);
    }

    /// Encodes the copy of the timestamps to the host.
    pub(super) fn finish(self, device: &wgpu::Device, encoder: &mut wgpu::CommandEncoder) -> wgpu::Buffer {
        let buffer = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("stamps"),
                size: u64::from(self.stamps) * 8,
                usage,
                mapped_at_creation: false,
            })
        };
        let resolved = buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC);
        let staging = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
        let most = wgpu::QUERY_SET_MAX_QUERIES;
        for (set, at) in self.sets.iter().zip((0..).step_by(most as usize)) {
            encoder.resolve_query_set(set, 0..(self.stamps - at).min(most), &resolved, u64::from(at) * 8);
        }
        encoder.copy_buffer_to_buffer(&resolved, 0, &staging, 0, staging.size());
        staging
    }
}

impl Inner {
    /// Fails with the reason if runs cannot be timed.
    pub(super) fn expect_timing(&self) -> Result<()> {
        if !self.device.features().contains(FEATURES) {
            bail!(Device, "{} cannot time launches: it has no timestamps inside compute passes", self.name);
        }
        Ok(())
    }
}
