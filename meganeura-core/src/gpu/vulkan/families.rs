//! Kernels by their structure, so that shapes can share them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::dynamic::{Number, Numbers, Slots};
use super::pipeline::Kernel;
use crate::gpu::lock;

/// The number of structures above which those without kernels in use are forgotten.
const FAMILIES_KEPT: usize = 1024;

/// The shapes of a structure that are remembered, for comparison with new ones.
const SHAPES_KEPT: usize = 32;

/// The kernels of a device by their structure.
#[derive(Default)]
pub(super) struct Families(Mutex<HashMap<blake3::Hash, Arc<Mutex<Family>>>>);

impl Families {
    /// The family of a kernel.
    pub(super) fn of(&self, numbers: &Numbers) -> Arc<Mutex<Family>> {
        let mut known = lock(&self.0);
        if known.len() > FAMILIES_KEPT {
            known.retain(|_, family| Arc::strong_count(family) > 1 || lock(family).is_used());
        }
        Arc::clone(known.entry(numbers.structure).or_default())
    }
}

/// Kernels of one structure.
#[derive(Default)]
pub(super) struct Family {
    /// The last shapes, the newest last.
    shapes: Vec<Box<[Number]>>,
    dynamic: Vec<Dynamic>,
}

/// A kernel that serves several shapes.
struct Dynamic {
    slots: Slots,
    /// The shapes that show which numbers differ.
    shapes: Vec<Box<[Number]>>,
    kernel: Arc<Kernel>,
}

impl Family {
    fn is_used(&self) -> bool {
        self.dynamic.iter().any(|dynamic| Arc::strong_count(&dynamic.kernel) > 1)
    }

    /// Remembers a shape.
    pub(super) fn note(&mut self, shape: &[Number]) {
        if !self.shapes.iter().any(|known| **known == *shape) {
            self.shapes.push(shape.into());
            let surplus = self.shapes.len().saturating_sub(SHAPES_KEPT);
            self.shapes.drain(..surplus);
        }
    }

    /// A dynamic kernel that serves a shape, with its push constants for that shape.
    pub(super) fn find(&self, shape: &[Number]) -> Option<(Arc<Kernel>, Box<[u32]>)> {
        self.dynamic.iter().find_map(|dynamic| Some((Arc::clone(&dynamic.kernel), dynamic.slots.words(shape)?)))
    }

    /// The shapes that a new dynamic kernel should serve: this one, the most similar of the others, and those that the
    /// other's kernel serves. Layers of a network may share a structure; each is most similar to its own earlier
    /// shapes.
    pub(super) fn related(&self, shape: &[Number]) -> Vec<Box<[Number]>> {
        let differences = |known: &[Number]| known.iter().zip(shape).filter(|(known, number)| known != number).count();
        let others = self.shapes.iter().filter(|known| ***known != *shape);
        let Some(similar) = others.min_by_key(|known| differences(known)) else { return Vec::new() };
        let kernel = self.dynamic.iter().find(|dynamic| dynamic.slots.words(similar).is_some());
        let mut related = kernel.map_or(Vec::new(), |dynamic| dynamic.shapes.clone());
        related.extend([similar.clone(), shape.into()]);
        related
    }

    /// Keeps a dynamic kernel for these shapes, instead of those for fewer of them.
    pub(super) fn keep(&mut self, slots: Slots, shapes: Vec<Box<[Number]>>, kernel: Arc<Kernel>) {
        self.dynamic.retain(|dynamic| !dynamic.shapes.iter().all(|shape| slots.words(shape).is_some()));
        self.dynamic.push(Dynamic { slots, shapes, kernel });
    }
}
