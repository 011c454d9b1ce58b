//! Tying: making the parameters of several places one.

use std::collections::HashMap;

use super::{At, LeafMut, Module, SlotMut};
use crate::error::bail;
use crate::{Buffer, Param, Result, TensorType};

/// One more handle on a tensor of a model.
enum Handle {
    Param(Param),
    Buffer(Buffer),
}

/// A tensor of a model, before anything is tied.
struct Place {
    handle: Handle,
    ty: TensorType,
    id: u64,
    /// Whether another could be put there.
    is_own: bool,
}

/// Makes the tensors at the paths of each group one, that of the first path; paths that the module does not have are passed
/// over.
///
/// # Errors
///
/// If types or roles differ within a group, or if tensors of different modules that are shared by `Arc` would have to be
/// exchanged; nothing has changed then.
pub(crate) fn tie<M: Module + ?Sized>(module: &mut M, groups: &[Vec<String>]) -> Result<()> {
    let mut places = HashMap::new();
    module.visit_mut(At::root(), &mut |at, slot| {
        places.insert(at.path(), Place::of(&slot));
    });
    let mut kept = HashMap::new();
    for group in groups {
        let mut paths = group.iter().filter(|path| places.contains_key(*path));
        let Some(first) = paths.next() else { continue };
        // What cannot be exchanged is what the others become.
        let keeper = group.iter().find(|path| places.get(*path).is_some_and(|place| !place.is_own)).unwrap_or(first);
        for path in std::iter::once(first).chain(paths).filter(|path| *path != keeper) {
            if places[path].may_become(&places[keeper], path, keeper)? {
                kept.insert(path, keeper);
            }
        }
    }
    module.visit_mut(At::root(), &mut |at, slot| {
        if let Some(keeper) = kept.get(&at.path()) {
            let fits = places[*keeper].take_place_of(slot);
            assert!(fits, "{at} was seen to be exchangeable");
        }
    });
    Ok(())
}

impl Place {
    fn of(slot: &SlotMut<'_>) -> Self {
        let (handle, is_own) = match slot {
            SlotMut::Param(param) => (Handle::Param(param.tied()), param.is_own()),
            SlotMut::Buffer(buffer) => (Handle::Buffer(buffer.tied()), buffer.is_own()),
        };
        Self { handle, ty: slot.ty(), id: slot.cell().id(), is_own }
    }

    /// Whether `keeper` must be put here; it need not if it is here.
    fn may_become(&self, keeper: &Self, path: &str, kept: &str) -> Result<bool> {
        if self.id == keeper.id {
            return Ok(false);
        }
        if self.ty != keeper.ty {
            bail!(Shape, "`{path}` {} cannot be tied to `{kept}` {}", self.ty, keeper.ty);
        }
        if std::mem::discriminant(&self.handle) != std::mem::discriminant(&keeper.handle) {
            bail!(Argument, "`{path}` cannot be tied to `{kept}`: one is a parameter, the other a buffer");
        }
        if !self.is_own {
            bail!(Argument, "`{path}` cannot be tied to `{kept}`: both are in modules shared by `Arc`, but not in one");
        }
        Ok(true)
    }

    fn take_place_of(&self, slot: SlotMut<'_>) -> bool {
        match (&self.handle, slot) {
            (Handle::Param(keeper), SlotMut::Param(mut param)) => LeafMut::put(&mut param, keeper.tied()),
            (Handle::Buffer(keeper), SlotMut::Buffer(mut buffer)) => LeafMut::put(&mut buffer, keeper.tied()),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Device, ErrorKind, ModuleExt, Shape, Tensor};

    fn param(shape: &[usize], value: f32) -> Param {
        Param::new(Tensor::full(&Device::cpu(), Shape::new(shape), value).unwrap())
    }

    fn group(paths: &[&str]) -> Vec<Vec<String>> {
        vec![paths.iter().map(|&path| path.to_owned()).collect()]
    }

    #[test]
    fn a_clone_is_tied_like_its_original() {
        let w = param(&[2], 1.0);
        let net = (w.tied(), (param(&[2], 2.0), w));
        let mut copy = net.clone();
        assert!(!copy.0.is_tied_to(&copy.1.1));
        copy.tie_like(&net).unwrap();
        assert!(copy.0.is_tied_to(&copy.1.1) && !copy.0.is_tied_to(&net.0) && !copy.0.is_tied_to(&copy.1.0));
        assert_eq!((net.parameter_count(), copy.parameter_count()), (4, 4));
    }

    #[test]
    fn what_cannot_be_tied_is_an_error_and_stays() {
        let buffer = Buffer::new(param(&[2], 0.0).value());
        let mut net = (param(&[2], 1.0), param(&[3], 2.0), buffer, param(&[2], 3.0));
        for (paths, kind) in [(["0", "1"], ErrorKind::Shape), (["0", "2"], ErrorKind::Argument)] {
            let groups = [group(&["0", "3"]), group(&paths)].concat();
            let error = tie(&mut net, &groups).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(&format!("`{}` ", paths[1])), "{error}");
            assert!(!net.0.is_tied_to(&net.3));
        }
        tie(&mut net, &group(&["absent", "3", "0"])).unwrap();
        assert_eq!(net.0.value().to_vec().unwrap(), [3.0; 2]);
    }

    #[test]
    fn what_is_shared_stays_and_others_are_tied_to_it() {
        let shared = Arc::new(param(&[2], 1.0));
        let mut net = (param(&[2], 2.0), Arc::clone(&shared), Arc::new(param(&[2], 3.0)));
        tie(&mut net, &group(&["0", "1"])).unwrap();
        assert!(net.0.is_tied_to(&shared));
        let error = tie(&mut net, &group(&["1", "2"])).unwrap_err();
        assert!(error.to_string().contains("shared by `Arc`"), "{error}");
    }
}
