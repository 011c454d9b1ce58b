//! The passes that make a plan from a graph, in order. Each has tests of its own.
//!
//! | pass | what it does |
//! |---|---|
//! | `simplify` | drops unwanted nodes, folds constants, merges equal operations |
//! | `means` | lets each reader of a mean over ranks divide the sum itself |
//! | `copies` | computes what views cannot express (GPU with bf16 only) |
//! | `fuse` | groups pointwise operations, and orders all work |
//! | `merge` | moves groups into kernels |
//! | `format` | decides which values are stored as bf16, and inserts conversions (GPU only) |
//! | `lower` | turns the schedule into steps on storages, and views into layouts |
//! | `collectives::join` | joins the exchanges of a world's ranks |
//! | `count` | refuses operands with more elements than kernels can count |
//! | `collectives::reuse` | lets exchanges reuse memory (GPU only) |
//! | `binding_offsets` | binds views where they begin, so that views of several places have the same kernel (GPU only) |
//! | `launch` | chooses the variant of each kernel (GPU only) |
//! | `share` | drops launches whose scratch results an earlier launch left (GPU only) |
//! | `place` | assigns storages to shared slots |
//!
//! `uses` is no pass: it tells the passes up to `lower` who reads which value.

mod binding_offsets;
mod collectives;
mod copies;
mod count;
mod format;
mod fuse;
mod launch;
mod lower;
mod means;
mod merge;
mod place;
mod share;
mod simplify;
mod uses;

use super::{Plan, Request, Target};
use crate::Result;

/// The most buffers that a step of the native executor touches: few enough for one block of each to stay in the L1
/// cache.
const MOST_BUFFERS: usize = 8;

impl Plan {
    /// Plans the request for a target.
    pub(crate) fn new(request: &Request<'_>, mut target: Target<'_>) -> Result<Self> {
        if let Target::Gpu { caps, preferences } = &mut target {
            caps.bf16 |= preferences.bf16;
        }
        let roots: Vec<_> =
            request.outputs.iter().chain(request.assigns.iter().map(|(_, value)| value)).copied().collect();
        let (graph, roots) = simplify::simplify(request.graph, &roots);
        let (graph, roots) = means::means(graph, roots);
        let (graph, roots) = match target {
            Target::Gpu { caps, .. } if caps.bf16 => copies::copies(&graph, &roots),
            _ => (graph, roots),
        };
        let uses = uses::Uses::new(&graph, &roots);
        let (bindings, merges) = match target {
            Target::Cpu => (None, false),
            Target::Gpu { caps, preferences } => (Some(caps.bindings), !preferences.apart),
        };
        let most = bindings.unwrap_or(MOST_BUFFERS);
        let mut schedule = fuse::fuse(&uses, most);
        let host = match target {
            Target::Cpu => Some(merge::Host::Native { trains: !request.assigns.is_empty() }),
            Target::Gpu { caps, .. } => {
                merges.then_some(merge::Host::Launches { bindings: caps.bindings, units: caps.matrix })
            }
        };
        if let Some(host) = host {
            schedule = merge::merge(&uses, schedule, host);
        }
        let lowered = |uses: &_, schedule: &[_], formats: &_, roots: &[_]| {
            let (outputs, assigned) = roots.split_at(request.outputs.len());
            let leaves = request.assigns.iter().map(|&(leaf, _)| leaf);
            let assigns: Vec<_> = leaves.zip(assigned.iter().copied()).collect();
            lower::lower(uses, schedule, formats, outputs, &assigns, bindings, merges)
        };
        let converted = match target {
            Target::Gpu { caps, preferences } if caps.bf16 => {
                let assigned = &roots[request.outputs.len()..];
                let formats = format::Formats::new(&uses, &schedule, assigned, &caps, preferences.bf16);
                let converted = format::convert(&uses, &schedule, &formats, &roots);
                Some(converted).filter(|converted| !preferences.economical || converted.may_pay())
            }
            Target::Cpu | Target::Gpu { .. } => None,
        };
        let mut plan = match converted {
            Some(format::Converted { graph, schedule, formats, roots }) => {
                lowered(&uses::Uses::new(&graph, &roots), &schedule, &formats, &roots)
            }
            None => {
                if let Target::Gpu { caps, .. } = &mut target {
                    caps.bf16 = false;
                }
                lowered(&uses, &schedule, &format::Formats::full(&uses, &schedule), &roots)
            }
        };
        collectives::join(&mut plan);
        count::expect_countable(&plan, target)?;
        if let Target::Gpu { caps, preferences } = target {
            collectives::reuse(&mut plan);
            binding_offsets::set(&mut plan, &caps);
            launch::launch(&mut plan, &caps, preferences)?;
            share::share(&mut plan);
        }
        place::place(&mut plan, target);
        count::expect_addressable(&plan)?;
        Ok(plan)
    }
}
