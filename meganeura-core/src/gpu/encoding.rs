//! Launches that wgpu encodes again in each run. Many launches are split into several command buffers, so that the GPU
//! can start before the last is encoded.

use std::sync::Arc;

use super::Inner;
use super::recording::{Dispatch, Pipeline};
use super::timer::Timer;
use crate::executor::Profiling;

/// The number of launches in the first command buffer of a run, and the most in a command buffer that is not the last.
const PORTION: (usize, usize) = (32, 256);

/// The numbers of launches in a run's command buffers. Encoding a launch takes almost as long as a small kernel runs,
/// so the first command buffer is short, to let the GPU start. Each next one is twice as long, up to a limit, and the
/// last takes the rest.
fn portions(launches: usize) -> Vec<usize> {
    let (mut portions, mut left, mut next) = (Vec::new(), launches, PORTION.0);
    while left > 2 * next {
        portions.push(next);
        left -= next;
        next = (2 * next).min(PORTION.1);
    }
    portions.push(left);
    portions
}

/// Launches with their bind groups, which keep the buffers alive.
pub(super) struct Recording {
    launches: Vec<(Arc<Pipeline>, wgpu::BindGroup, (u32, u32))>,
    profiling: Profiling,
}

fn pipeline(pipeline: &Pipeline) -> &wgpu::ComputePipeline {
    match pipeline {
        Pipeline::Wgpu(pipeline) => pipeline,
        Pipeline::Vulkan(_) => unreachable!("a device has pipelines of one kind"),
    }
}

fn bind_group(device: &wgpu::Device, dispatch: &Dispatch<'_>) -> wgpu::BindGroup {
    let entries: Vec<_> = (0..)
        .zip(&dispatch.buffers)
        .map(|(binding, bound)| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: bound.buffer.raw(),
                offset: bound.begin,
                size: std::num::NonZeroU64::new(bound.bytes),
            }),
        })
        .collect();
    let layout = pipeline(dispatch.pipeline).get_bind_group_layout(0);
    device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries })
}

impl Recording {
    pub(super) fn new(device: &wgpu::Device, dispatches: &[Dispatch<'_>], profiling: Profiling) -> Self {
        let launch =
            |dispatch: &Dispatch<'_>| (Arc::clone(dispatch.pipeline), bind_group(device, dispatch), dispatch.grid);
        Self { launches: dispatches.iter().map(launch).collect(), profiling }
    }

    /// Encodes the launches, and submits all command buffers except the last. Returns the encoder of the last, the
    /// buffer for timestamps, and the total number of submissions.
    pub(super) fn encode(&self, gpu: &Inner) -> (wgpu::CommandEncoder, Option<wgpu::Buffer>, u64) {
        let timer = Timer::new(&gpu.device, self.profiling, self.launches.len());
        // A timed run is not split.
        let portions = if timer.is_some() { vec![self.launches.len()] } else { portions(self.launches.len()) };
        let new_encoder = || gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut encoder = new_encoder();
        let mut end = 0;
        for &portion in &portions {
            if end > 0 {
                gpu.queue.submit([std::mem::replace(&mut encoder, new_encoder()).finish()]);
            }
            let begin = end;
            end += portion;
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            let stamp = |pass: &mut _, at| timer.as_ref().map_or((), |timer| timer.stamp(pass, at));
            stamp(&mut pass, 0);
            let mut last: Option<&Arc<Pipeline>> = None;
            for (at, (kernel, group, grid)) in (begin..).zip(&self.launches[begin..end]) {
                if last.is_none_or(|last| !Arc::ptr_eq(last, kernel)) {
                    pass.set_pipeline(pipeline(kernel));
                    last = Some(kernel);
                }
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(grid.0, grid.1, 1);
                match self.profiling {
                    Profiling::Launches => stamp(&mut pass, at + 1),
                    Profiling::Runs if at + 1 == self.launches.len() => stamp(&mut pass, 1),
                    _ => {}
                }
            }
        }
        let staging = timer.map(|timer| timer.finish(&gpu.device, &mut encoder));
        (encoder, staging, portions.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::portions;

    #[test]
    fn portions_grow() {
        assert_eq!(portions(0), [0]);
        assert_eq!(portions(64), [64]);
        assert_eq!(portions(65), [32, 33]);
        assert_eq!(portions(876), [32, 64, 128, 256, 396]);
        assert!((0..2000).all(|launches| portions(launches).iter().sum::<usize>() == launches));
    }
}
