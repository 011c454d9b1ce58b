//! Containers are modules if their elements are.
//!
//! Elements of sequences, arrays and tuples have their index as the path segment, entries of maps their key. `Option`,
//! `Box` and `Arc` add no segment: a layer keeps its path when it becomes optional. A `HashMap` is visited in the order
//! of its keys, so the order of parameters never depends on the process.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;

use super::{At, Module, Slot, SlotMut};

/// A key of a map of modules: a segment of their paths.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the key of a map of modules",
    label = "the key must be a `String`",
    note = "the key becomes a part of paths, as in `heads.left.weight`",
    note = "for modules with numbers, use a `Vec`, or a `Vec<Option<…>>` if some are missing"
)]
pub trait Key: Ord {
    fn segment(&self) -> &str;
}

impl Key for String {
    fn segment(&self) -> &str {
        self
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        visit_sequence(self, at, f);
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        visit_sequence_mut(self, at, f);
    }
}

impl<M: Module> Module for VecDeque<M> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        visit_sequence(self, at, f);
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        visit_sequence_mut(self, at, f);
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        visit_sequence(self, at, f);
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        visit_sequence_mut(self, at, f);
    }
}

fn visit_sequence<'a, M: Module + 'a>(
    elements: impl IntoIterator<Item = &'a M>,
    at: At<'_>,
    f: &mut dyn FnMut(At<'_>, Slot<'a>),
) {
    for (index, element) in elements.into_iter().enumerate() {
        element.visit(at.index(index), f);
    }
}

fn visit_sequence_mut<'a, M: Module + 'a>(
    elements: impl IntoIterator<Item = &'a mut M>,
    at: At<'_>,
    f: &mut dyn FnMut(At<'_>, SlotMut<'a>),
) {
    for (index, element) in elements.into_iter().enumerate() {
        element.visit_mut(at.index(index), f);
    }
}

impl<M: Module> Module for Option<M> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        if let Some(module) = self {
            module.visit(at, f);
        }
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        if let Some(module) = self {
            module.visit_mut(at, f);
        }
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        (**self).visit(at, f);
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        (**self).visit_mut(at, f);
    }
}

/// One module in several places, or in several models: one set of parameters under several paths, trained and saved
/// once.
///
/// A clone of the `Arc` is the same module. Parameters in it cannot be replaced by others, for example by
/// [`Param::tied`], but their values can be set.
///
/// [`Param::tied`]: crate::Param::tied
impl<M: Module + ?Sized> Module for Arc<M> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        (**self).visit(at, f);
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        (**self).visit(at, &mut |at, slot| {
            if let Some(slot) = slot.shared() {
                f(at, slot);
            }
        });
    }
}

impl<K: Key, M: Module> Module for BTreeMap<K, M> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        for (key, module) in self {
            module.visit(at.field(key.segment()), f);
        }
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        for (key, module) in self {
            module.visit_mut(at.field(key.segment()), f);
        }
    }
}

impl<K: Key, M: Module, S> Module for HashMap<K, M, S> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        for (key, module) in entries {
            module.visit(at.field(key.segment()), f);
        }
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        let mut entries: Vec<_> = self.iter_mut().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        for (key, module) in entries {
            module.visit_mut(at.field(key.segment()), f);
        }
    }
}

/// Holds nothing, so a struct may be generic over a type without a value of it.
impl<T: ?Sized> Module for PhantomData<T> {
    fn visit<'a>(&'a self, _: At<'_>, _: &mut dyn FnMut(At<'_>, Slot<'a>)) {}

    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}

/// Holds nothing: the module of a function without parameters.
impl Module for () {
    fn visit<'a>(&'a self, _: At<'_>, _: &mut dyn FnMut(At<'_>, Slot<'a>)) {}

    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}

macro_rules! tuple {
    ($($M:ident $i:tt),+) => {
        impl<$($M: Module),+> Module for ($($M,)+) {
            fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
                $(self.$i.visit(at.index($i), f);)+
            }

            fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
                $(self.$i.visit_mut(at.index($i), f);)+
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Device, Param, Tensor};

    fn param() -> Param {
        Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap())
    }

    /// The paths of a visit; both kinds of visit must agree.
    fn paths(mut module: impl Module) -> Vec<String> {
        let (mut paths, mut paths_mut) = (Vec::new(), Vec::new());
        module.visit(At::root(), &mut |at, _| paths.push(at.path()));
        module.visit_mut(At::root(), &mut |at, _| paths_mut.push(at.path()));
        assert_eq!(paths, paths_mut);
        paths
    }

    #[test]
    fn a_leaf_stands_where_it_is_visited() {
        assert_eq!(paths(param()), [""]);
        assert_eq!(paths(Buffer::new(param().value())), [""]);
    }

    #[test]
    fn sequences_have_indices() {
        assert_eq!(paths(vec![param(), param()]), ["0", "1"]);
        assert_eq!(paths(VecDeque::from([param(), param()])), ["0", "1"]);
        assert_eq!(paths([param(), param()]), ["0", "1"]);
        assert_eq!(paths((param(), [param(), param()], vec![param()])), ["0", "1.0", "1.1", "2.0"]);
        assert_eq!(paths(Vec::<Param>::new()), [] as [&str; 0]);
    }

    #[test]
    fn twelve_is_the_longest_tuple() {
        let p = param;
        let tuple = (p(), p(), p(), p(), p(), p(), p(), p(), p(), p(), p(), p());
        assert_eq!(paths(tuple), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]);
    }

    #[test]
    fn option_box_and_arc_add_no_segment() {
        assert_eq!(paths(Some(param())), [""]);
        assert_eq!(paths(None::<Param>), [] as [&str; 0]);
        assert_eq!(paths(Box::new(param())), [""]);
        assert_eq!(paths(Arc::new(param())), [""]);
        assert_eq!(paths(vec![Some(param()), None, Some(param())]), ["0", "2"]);
        assert_eq!(paths(Box::new([param()]) as Box<dyn Module>), ["0"]);
        assert_eq!(paths(Arc::new([param()]) as Arc<dyn Module>), ["0"]);
    }

    #[test]
    fn maps_are_visited_in_the_order_of_their_keys() {
        let keys = ["value", "key", "query", "10", "9"].map(String::from);
        let sorted = ["10", "9", "key", "query", "value"];
        assert_eq!(paths(keys.clone().into_iter().map(|key| (key, param())).collect::<BTreeMap<_, _>>()), sorted);
        assert_eq!(paths(keys.into_iter().map(|key| (key, param())).collect::<HashMap<_, _>>()), sorted);
    }

    #[test]
    fn phantom_data_and_unit_hold_nothing() {
        assert_eq!(paths(PhantomData::<str>), [] as [&str; 0]);
        assert_eq!(paths(()), [] as [&str; 0]);
    }

    #[test]
    fn containers_nest_to_any_depth() {
        type Deep = HashMap<String, Vec<Option<Box<(Arc<[BTreeMap<String, VecDeque<Param>>; 2]>, Param)>>>>;
        let map = |key: &str| BTreeMap::from([(key.to_owned(), VecDeque::from([param(), param()]))]);
        let deep: Deep = HashMap::from([
            ("b".to_owned(), vec![None, Some(Box::new((Arc::new([map("x"), map("y")]), param())))]),
            ("a".to_owned(), vec![Some(Box::new((Arc::new([map("z"), BTreeMap::new()]), param())))]),
        ]);
        let a = ["a.0.0.0.z.0", "a.0.0.0.z.1", "a.0.1"];
        let b = ["b.1.0.0.x.0", "b.1.0.0.x.1", "b.1.0.1.y.0", "b.1.0.1.y.1", "b.1.1"];
        assert_eq!(paths(deep), [&a[..], &b].concat());
    }

    #[test]
    fn a_shared_module_is_changed_through_any_of_its_holders() {
        let shared = Arc::new([param()]);
        let mut holders = (Arc::clone(&shared), shared);
        let two = Tensor::full(&Device::cpu(), [1], 2.0).unwrap();
        holders.1.visit_mut(At::root(), &mut |_, mut slot| slot.set(two.clone()).unwrap());
        assert_eq!(holders.0[0].value().item().unwrap(), 2.0);
    }

    #[test]
    fn freezing_reaches_the_leaves() {
        let root = At::root();
        [vec![param()], vec![]].visit(root.field("encoder").frozen(), &mut |at, _| {
            assert_eq!(at.path(), "encoder.0.0");
            assert!(at.is_frozen());
        });
    }
}
