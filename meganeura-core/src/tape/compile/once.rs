//! The part of a compiled function that depends on parameters and captured values alone. It is computed in the first
//! call, and anew in the first call after a parameter has changed.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::PreparedPlan;
use crate::executor::Bindings;
use crate::graph::{Graph, ValueId};
use crate::host::HostWord;
use crate::plan::{Memory, Plan, kept_values};
use crate::tape::run::locate;
use crate::tape::subgraph::SubgraphLeaf;
use crate::tape::{Leaf, TapeState};
use crate::{Device, Error, Result, Tensor, TensorType};

/// A plan for the kept values of a function, and their tensors.
pub(super) struct Once {
    prepared: Arc<PreparedPlan>,
    graph: Graph,
    origins: Vec<&'static Location<'static>>,
    host: Vec<HostWord>,
    /// The function's leaf behind each leaf of the plan. None is an input.
    leaves: Vec<usize>,
    /// The type of each kept value.
    types: Vec<TensorType>,
    /// Those that were computed last.
    latest: Mutex<Option<Kept>>,
    /// The number of times that they were computed.
    count: AtomicU64,
}

/// Kept values.
#[derive(Clone)]
pub(super) struct Kept {
    /// The version of each leaf that they were computed from.
    versions: Arc<[u64]>,
    pub(super) tensors: Arc<[Tensor]>,
    /// A version of their own, which no others have.
    pub(super) version: u64,
}

impl TapeState {
    /// The values that a function of the declared inputs keeps, if it wants these.
    pub(super) fn kept(&self, wanted: &[ValueId]) -> Vec<ValueId> {
        kept_values(&self.graph, wanted, |leaf| !matches!(self.leaves[leaf], Leaf::Declared { .. }))
    }

    /// Plans these values. Appends leaves that only they need to those of the function.
    pub(super) fn once(&self, kept: &[ValueId], leaves: &mut Vec<SubgraphLeaf>) -> Result<Option<Once>> {
        if kept.is_empty() {
            return Ok(None);
        }
        let mut part = self.part(kept, &[], []);
        part.excerpt.once = true;
        let (graph, origins) = (part.excerpt.to_graph(), self.part_origins(&part));
        let path = |leaf: usize| self.leaf_path(part.leaves[leaf]);
        let prepared = self.device.plan(&part.excerpt).map_err(|error| locate(error, &graph, &origins, path))?;
        let number = |leaf: &SubgraphLeaf| {
            leaves.iter().position(|known| known == leaf).unwrap_or_else(|| {
                leaves.push(*leaf);
                leaves.len() - 1
            })
        };
        Ok(Some(Once {
            prepared,
            graph,
            origins,
            leaves: part.leaves.iter().map(number).collect(),
            host: part.host,
            types: kept.iter().map(|&value| self.graph.ty(value)).collect(),
            latest: Mutex::new(None),
            count: AtomicU64::new(0),
        }))
    }
}

impl Once {
    /// The values for these tensors and versions of the function's leaves. No lock is held while they are computed, so
    /// two first calls at the same time both compute them.
    pub(super) fn values(
        &self,
        device: &Device,
        tensors: &[Option<Tensor>],
        versions: &[Option<u64>],
        path: impl Fn(usize) -> Option<Arc<str>>,
    ) -> Result<Kept> {
        let version = |leaf: &usize| versions[*leaf].expect("not an input");
        let is_current = |kept: &&Kept| self.leaves.iter().map(version).eq(kept.versions.iter().copied());
        if let Some(kept) = self.latest().as_ref().filter(is_current) {
            return Ok(kept.clone());
        }
        let path = |leaf: usize| path(self.leaves[leaf]);
        let paths = device.paths_to_report((0..self.leaves.len()).map(path));
        let storage = |leaf: &usize| tensors[*leaf].as_ref().expect("bound").storage().clone();
        let mut leaves = self.leaves.iter().map(storage).collect();
        let mut bindings = Bindings { leaves: &mut leaves, host: &self.host, paths: &paths, fixed: None };
        let results = device.run(&self.prepared, &mut bindings);
        let results = results.map_err(|error| self.locate(error, path))?;
        let values = self.types.iter().zip(results);
        let tensors = values.map(|(&ty, storage)| Tensor::from_storage(device, ty, storage)).collect();
        let versions: Arc<[u64]> = self.leaves.iter().map(version).collect();
        let kept = Kept { versions, tensors, version: self.count.fetch_add(1, Ordering::Relaxed) };
        let mut latest = self.latest();
        // A slow call with earlier versions may finish after a later one.
        let is_later = |known: &Kept| known.versions.iter().zip(&*kept.versions).all(|(known, new)| known <= new);
        if latest.as_ref().is_none_or(is_later) {
            *latest = Some(kept.clone());
        }
        Ok(kept)
    }

    /// The memory of a function, given the plan that runs in each call, and which of its leaves are kept values.
    pub(super) fn memory(&self, each: &Plan, is_kept: impl Fn(usize) -> bool) -> Memory {
        let (each, own, others) = (each.memory(), self.prepared.plan.memory(), each.leaf_bytes());
        let mut slots = each.slots;
        slots.resize(slots.len().max(own.slots.len()), 0);
        slots.iter_mut().zip(&own.slots).for_each(|(slot, own)| *slot = (*slot).max(*own));
        let mut leaves: HashMap<_, _> = others.filter(|(leaf, _)| !is_kept(*leaf)).collect();
        leaves.extend(self.prepared.plan.leaf_bytes().map(|(leaf, bytes)| (self.leaves[leaf], bytes)));
        Memory { slots, kept: own.outputs, leaves: leaves.values().sum(), ..each }
    }

    /// An estimate of the host memory that it takes, apart from the values.
    pub(super) fn host_bytes(&self) -> usize {
        size_of_val(self.graph.nodes()) + self.prepared.host_bytes()
    }

    fn locate(&self, error: Error, path: impl Fn(usize) -> Option<Arc<str>>) -> Error {
        locate(error, &self.graph, &self.origins, path)
    }

    fn latest(&self) -> MutexGuard<'_, Option<Kept>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
