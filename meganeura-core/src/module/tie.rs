//! Tying: parameters in several places become one.

use std::collections::{HashMap, HashSet};

use super::{At, Module, SlotMut};
use crate::error::bail;
use crate::param::Cell;
use crate::{Buffer, Param, Result, TensorType};

/// Another handle on a tensor of a model.
enum Handle {
    Param(Param),
    Buffer(Buffer),
}

/// A tensor of a model before tying, at its first place.
struct Place {
    handle: Handle,
    ty: TensorType,
    path: String,
    /// `true` if another tensor can replace it in all of its places.
    is_own: bool,
    /// `true` if it belongs to an adapter, which goes with its parameter.
    is_adapters: bool,
}

/// The replacement of each tensor, by identity.
#[derive(Default)]
struct Ties(HashMap<u64, u64>);

/// Ties the tensors at the paths of each group: all become the tensor at the first path or, if one of them cannot be
/// replaced, that one. Existing ties stay. Paths that the module does not have are skipped.
///
/// # Errors
///
/// Fails if types or roles differ within a group, if tensors of different modules shared by `Arc` would have to be
/// replaced, or if tensors of adapters are tied whose parameters are not. On error, nothing changes.
#[doc(hidden)]
pub fn tie<M: Module + ?Sized>(module: &mut M, groups: &[Vec<String>]) -> Result<()> {
    let (mut ids, mut places) = (HashMap::new(), HashMap::new());
    module.visit_mut(At::root(), &mut |at, slot| {
        let id = slot.cell().id();
        ids.insert(at.path(), id);
        let found = Place::new(at.path(), &slot);
        places.entry(id).and_modify(|place: &mut Place| place.is_own &= found.is_own).or_insert(found);
    });
    let mut ties = Ties::default();
    let is_adapters = |path: &String| ids.get(path).is_some_and(|id| places[id].is_adapters);
    let (of_adapters, groups): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.iter().any(is_adapters));
    for group in groups {
        let members: Vec<u64> = group.iter().filter_map(|path| ids.get(path)).map(|&id| ties.root(id)).collect();
        let Some(&first) = members.first() else { continue };
        let keeper = members.iter().copied().find(|id| !places[id].is_own).unwrap_or(first);
        for id in members.into_iter().filter(|&id| id != keeper) {
            places[&id].check_can_become(&places[&keeper])?;
            ties.0.insert(id, keeper);
        }
    }
    for group in of_adapters {
        let parameter = |path: &String| path.rsplit_once('.').and_then(|(parameter, _)| ids.get(parameter));
        let mut roots = group.iter().filter_map(parameter).map(|&id| ties.root(id));
        if let Some(first) = roots.next()
            && roots.any(|root| root != first)
        {
            bail!(Argument, "`{}` and `{}` cannot be tied: their parameters are not", group[0], group[1]);
        }
    }
    // The names of replaced tensors, by the identity of the replacement.
    let mut names: HashMap<u64, Vec<String>> = HashMap::new();
    let mut gone = HashSet::new();
    module.visit_mut(At::root(), &mut |at, slot| {
        let id = slot.cell().id();
        let keeper = ties.root(id);
        if keeper != id {
            if gone.insert(id) {
                names.entry(keeper).or_default().extend(slot.cell().names());
            }
            let fits = places[&keeper].take_place_of(slot);
            assert!(fits, "{at} was seen to be exchangeable");
        }
    });
    names.into_iter().for_each(|(keeper, names)| places[&keeper].handle.cell().adopt_names(names));
    Ok(())
}

impl Ties {
    /// The final replacement of `id`.
    fn root(&mut self, id: u64) -> u64 {
        let mut root = id;
        while let Some(&keeper) = self.0.get(&root) {
            root = keeper;
        }
        // Shortens the way for the next call.
        let mut at = id;
        while at != root {
            at = self.0.insert(at, root).unwrap_or(root);
        }
        root
    }
}

impl Handle {
    fn cell(&self) -> &Cell {
        match self {
            Self::Param(param) => param.cell(),
            Self::Buffer(buffer) => buffer.cell(),
        }
    }
}

impl Place {
    fn new(path: String, slot: &SlotMut<'_>) -> Self {
        let (handle, is_own, is_adapters) = match slot {
            SlotMut::Param(param) => (Handle::Param(param.tied()), param.is_own(), param.is_handle()),
            SlotMut::Buffer(buffer) => (Handle::Buffer(buffer.tied()), buffer.is_own(), buffer.is_handle()),
        };
        Self { handle, ty: slot.ty(), path, is_own, is_adapters }
    }

    fn is_adapted(&self) -> bool {
        match &self.handle {
            Handle::Param(param) => param.is_adapted(),
            Handle::Buffer(_) => false,
        }
    }

    fn check_can_become(&self, keeper: &Self) -> Result<()> {
        let (path, kept) = (&self.path, &keeper.path);
        if self.ty != keeper.ty {
            bail!(Shape, "`{path}` {} cannot be tied to `{kept}` {}", self.ty, keeper.ty);
        }
        if std::mem::discriminant(&self.handle) != std::mem::discriminant(&keeper.handle) {
            bail!(Argument, "`{path}` cannot be tied to `{kept}`: one is a parameter, the other a buffer");
        }
        if self.is_adapted() != keeper.is_adapted() {
            bail!(Argument, "`{path}` cannot be tied to `{kept}`: one of them has an adapter, the other has none");
        }
        if !self.is_own {
            bail!(Argument, "`{path}` cannot be tied to `{kept}`: both are in modules shared by `Arc`, but not in one");
        }
        Ok(())
    }

    fn take_place_of(&self, slot: SlotMut<'_>) -> bool {
        match (&self.handle, slot) {
            (Handle::Param(keeper), SlotMut::Param(mut param)) => {
                let tied = keeper.tied_in_place_of(&param);
                param.put(tied)
            }
            (Handle::Buffer(keeper), SlotMut::Buffer(mut buffer)) => {
                let tied = keeper.tied_in_place_of(&buffer);
                buffer.put(tied)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Device, ErrorKind, ModuleExt, Shape, Tape, Tensor};

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
        copy.name_parameters();
        assert!(!copy.0.is_tied_to(&copy.1.1));
        copy.tie_like(&net).unwrap();
        assert!(copy.0.is_tied_to(&copy.1.1) && !copy.0.is_tied_to(&net.0) && !copy.0.is_tied_to(&copy.1.0));
        assert_eq!((net.parameter_count(), copy.parameter_count()), (4, 4));
        // Gradients are found under both of its paths.
        let tape = Tape::new(&Device::cpu());
        let grads = tape.backward(&tape.param(&copy.0).sum()).unwrap();
        assert!(grads.by_path("0").is_some() && grads.by_path("1.1").is_some() && grads.by_path("1.0").is_none());
    }

    #[test]
    fn impossible_ties_are_an_error_and_change_nothing() {
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
    fn a_tie_that_cannot_be_made_is_an_error() {
        let w = param(&[2], 1.0);
        let net = vec![w.tied(), param(&[2], 2.0), w];
        let mut short = vec![param(&[2], 1.0), param(&[2], 2.0)];
        let error = short.tie_like(&net).unwrap_err();
        assert_eq!(error.message(), "`2` is tied in the other model, and is not in this one");
    }

    #[test]
    fn existing_ties_are_kept() {
        let [a, b] = [1.0, 2.0].map(|value| param(&[2], value));
        // Both groups tie an earlier place to one of the pair in the middle.
        let mut net = (param(&[2], 3.0), [a.tied(), a], param(&[2], 4.0), b);
        tie(&mut net, &[group(&["0", "1.0"]), group(&["2", "1.1"])].concat()).unwrap();
        let (first, [a, b], second, other) = &net;
        assert!(a.is_tied_to(b) && a.is_tied_to(first) && a.is_tied_to(second) && !a.is_tied_to(other));
    }

    #[test]
    fn shared_modules_stay_and_others_are_tied_to_them() {
        let shared = Arc::new(param(&[2], 1.0));
        let mut net = (param(&[2], 2.0), Arc::clone(&shared), Arc::new(param(&[2], 3.0)));
        tie(&mut net, &group(&["0", "1"])).unwrap();
        assert!(net.0.is_tied_to(&shared));
        let error = tie(&mut net, &group(&["2", "1"])).unwrap_err();
        assert!(error.to_string().contains("shared by `Arc`"), "{error}");
    }

    #[test]
    fn long_rows_of_ties_are_followed_once() {
        // Each group ties the previous parameter to the next one, so the replacement of the first is known only at the
        // end.
        const COUNT: usize = 100_000;
        let one = Tensor::full(&Device::cpu(), [1], 1.0).unwrap();
        let mut net: Vec<_> = (0..COUNT).map(|_| Param::new(one.clone())).collect();
        net.name_parameters();
        let groups: Vec<_> = (1..COUNT).map(|k| vec![k.to_string(), (k - 1).to_string()]).collect();
        tie(&mut net, &groups).unwrap();
        assert_eq!(net.leaves().len(), 1);
        assert!(net.iter().all(|param| param.is_tied_to(&net[COUNT - 1])));
        for name in ["0", "777", "99999"] {
            assert!(net[0].cell().is_called(name), "{name}");
        }
    }
}
