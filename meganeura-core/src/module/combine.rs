//! Operations on two models of one structure, tensor by tensor, and updates of all tensors of a model in one run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::leaves::leaves;
use super::{At, Leaf, Module, Role, Slot};
use crate::error::bail;
use crate::param::{Cell, Kind};
use crate::{DType, Result, Shape, Tape, Var};

/// The tensors of `one`, each with that of the same path in `other`.
pub(super) fn zip<'a, M: Module + ?Sized>(one: &'a M, other: &'a M) -> Result<Vec<(Leaf<'a>, Leaf<'a>)>> {
    let (ones, others) = (outline(one), outline(other));
    same_structure(&ones, &others)?;
    let mut partners: HashMap<u64, u64> = HashMap::new();
    for ((path, a), (_, b)) in ones.iter().zip(&others) {
        let (Entry::Tensor { id: a, .. }, Entry::Tensor { id: b, .. }) = (a, b) else { continue };
        if *partners.entry(*a).or_insert(*b) != *b {
            bail!(
                Argument,
                "`{path}` is tied to another place in the one model, and has a value of its own in the other"
            );
        }
    }
    let others: HashMap<_, _> = leaves(other).into_iter().map(|leaf| (leaf.cell().id(), leaf)).collect();
    let partner = |leaf: &Leaf<'_>| others[&partners[&leaf.cell().id()]].clone();
    Ok(leaves(one).into_iter().map(|leaf| (leaf.clone(), partner(&leaf))).collect())
}

/// The properties that two models must have in common.
enum Entry {
    Tensor { id: u64, kind: Kind, dtype: DType, shape: Shape },
    Variant(&'static str),
}

fn outline<M: Module + ?Sized>(module: &M) -> Vec<(String, Entry)> {
    let mut outline = Vec::new();
    module.visit(At::root(), &mut |at, slot| {
        let part = match slot {
            Slot::Variant(variant) => Entry::Variant(variant),
            // Not compared: one model may train while the other is evaluated.
            Slot::Mode(_) => return,
            Slot::Param(_) | Slot::Buffer(_) => {
                let cell = slot.cell().expect("a tensor");
                Entry::Tensor { id: cell.id(), kind: cell.kind(), dtype: cell.ty().dtype, shape: cell.ty().shape }
            }
        };
        outline.push((at.path(), part));
    });
    outline
}

fn same_structure(ones: &[(String, Entry)], others: &[(String, Entry)]) -> Result<()> {
    for ((path, a), (other_path, b)) in ones.iter().zip(others) {
        match (a, b) {
            _ if path != other_path => break,
            (Entry::Variant(a), Entry::Variant(b)) if a != b => {
                bail!(Argument, "`{path}` is the variant `{a}` in the one model, `{b}` in the other");
            }
            (Entry::Tensor { shape: a, .. }, Entry::Tensor { shape: b, .. }) if a != b => {
                bail!(Shape, "`{path}` is {a} in the one model, {b} in the other");
            }
            (Entry::Tensor { kind: a, dtype: c, .. }, Entry::Tensor { kind: b, dtype: d, .. })
                if a != b || c.is_float() != d.is_float() =>
            {
                bail!(Argument, "`{path}` is a {a:?} of {c} in the one model, a {b:?} of {d} in the other");
            }
            (Entry::Variant(_), Entry::Tensor { .. }) | (Entry::Tensor { .. }, Entry::Variant(_)) => {
                bail!(Argument, "`{path}` is a tensor in one of the models, an enum in the other");
            }
            _ => {}
        }
    }
    let only = |in_these: &[(String, Entry)], not_in: &[(String, Entry)]| {
        let known: HashSet<_> = not_in.iter().map(|(path, _)| path).collect();
        in_these.iter().map(|(path, _)| path).find(|path| !known.contains(path)).cloned()
    };
    for (these, those, which) in [(ones, others, "one"), (others, ones, "other")] {
        if let Some(path) = only(these, those) {
            bail!(Argument, "`{path}` is in the {which} model only");
        }
    }
    if ones.len() != others.len() || ones.iter().zip(others).any(|((a, _), (b, _))| a != b) {
        bail!(Argument, "the models have their parts in different orders");
    }
    Ok(())
}

/// Replaces the value of each tensor of floats, except constants, by the result of `f`: one run for all.
pub(super) fn update<'a>(
    leaves: impl IntoIterator<Item = (Leaf<'a>, Option<Leaf<'a>>)>,
    mut f: impl FnMut(&Leaf<'_>, &Var, Option<&Var>) -> Var,
) -> Result<()> {
    let mut tape = None;
    let mut updates: Vec<(Arc<Cell>, Var)> = Vec::new();
    for (leaf, partner) in leaves {
        if leaf.role == Role::Constant || !leaf.ty().dtype.is_float() {
            continue;
        }
        let tape = tape.get_or_insert_with(|| Tape::inference(leaf.value().device()));
        let old = tape.cell(leaf.cell());
        let partner = partner.map(|partner| tape.cell(partner.cell()));
        let new = f(&leaf, &old, partner.as_ref());
        new.id().map_err(|error| error.context(&leaf.path))?;
        if !tape.same(new.tape()) {
            bail!(Argument, "{}: the new value is on another tape; make it of the old one", leaf.path);
        }
        if new.ty() != old.ty() {
            bail!(Shape, "{}: {} cannot take the place of {}", leaf.path, new.ty(), old.ty());
        }
        updates.push((Arc::clone(leaf.cell()), new));
    }
    tape.map_or(Ok(()), |tape| tape.update(updates))
}

#[cfg(test)]
mod tests {
    use meganeura_derive::Module;

    use super::*;
    use crate::{Buffer, Device, ErrorKind, ModuleExt, Param, Precision, Tensor};

    #[derive(Module, Clone)]
    struct Net {
        stem: Param,
        skip: Option<Param>,
        mean: Buffer,
        table: Buffer,
        classes: Buffer,
    }

    fn tensor(shape: &[usize], value: f32) -> Tensor {
        Tensor::full(&Device::cpu(), Shape::new(shape), value).unwrap()
    }

    fn net(value: f32) -> Net {
        Net {
            stem: Param::new(tensor(&[2], value)),
            skip: Some(Param::new(tensor(&[1], value + 1.0))),
            mean: Buffer::new(tensor(&[], value + 2.0)),
            table: Buffer::constant(tensor(&[], 7.0)),
            classes: Buffer::new(Tensor::indices(&Device::cpu(), [1], &[3]).unwrap()),
        }
    }

    fn values(net: &Net) -> [f32; 4] {
        let skip = net.skip.as_ref().unwrap().value();
        [net.stem.value(), skip, net.mean.value(), net.table.value()].map(|tensor| tensor.to_vec().unwrap()[0])
    }

    #[test]
    fn an_average_follows_in_one_run() {
        let (mut average, net) = (net(0.0), net(4.0));
        average.zip_with(&net, |_, average, new| average * 0.75 + new * 0.25).unwrap();
        assert_eq!(values(&average), [1.0, 2.0, 3.0, 7.0]);
        assert_eq!(values(&net), [4.0, 5.0, 6.0, 7.0]);
        // New values that need no computation: an old value, and a value of the other model.
        average.map(|_, x| x.clone()).unwrap();
        assert_eq!(values(&average), [1.0, 2.0, 3.0, 7.0]);
        average.zip_with(&net, |_, _, new| new.clone()).unwrap();
        average.map(|leaf, x| if leaf.path == "mean" { x * 0.5 } else { x + 1.0 }).unwrap();
        assert_eq!(values(&average), [5.0, 6.0, 3.0, 7.0]);
        assert_eq!(values(&net), [4.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn differences_are_seen_pair_by_pair() {
        let (a, b) = (net(0.0), net(4.0));
        let difference = |(a, b): &(Leaf<'_>, Leaf<'_>)| {
            assert_eq!(a.path, b.path);
            Some((a.path.clone(), b.value().to_vec().ok()?[0] - a.value().to_vec().ok()?[0]))
        };
        let found: Vec<_> = a.zip(&b).unwrap().iter().filter_map(difference).collect();
        let expected = [("stem", 4.0), ("skip", 4.0), ("mean", 4.0), ("table", 0.0)];
        assert_eq!(found, expected.map(|(path, value)| (path.to_owned(), value)));
    }

    #[test]
    fn values_are_copied_between_precisions() {
        let (mut to, mut from) = (net(0.0), net(4.0));
        from.to_device(&Device::cpu_with(Precision::Double)).unwrap();
        to.copy_from(&from).unwrap();
        assert_eq!(values(&to), [4.0, 5.0, 6.0, 7.0]);
        assert_eq!(to.stem.ty().dtype, DType::F32);
        // They are copies, not shared storage.
        to.map(|_, x| x * 2.0).unwrap();
        assert_eq!(values(&from), [4.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn another_structure_is_an_error_that_names_the_path() {
        let mut one = net(0.0);
        let absent = Net { skip: None, ..net(1.0) };
        let wide = Net { stem: Param::new(tensor(&[3], 1.0)), ..net(1.0) };
        let unsaved = Net { mean: Buffer::constant(tensor(&[], 1.0)), ..net(1.0) };
        for (other, kind, message) in [
            (&absent, ErrorKind::Argument, "`skip` is in the one model only"),
            (&wide, ErrorKind::Shape, "`stem` is [2] in the one model, [3] in the other"),
            (
                &unsaved,
                ErrorKind::Argument,
                "`mean` is a Buffer of f32 in the one model, a Constant of f32 in the other",
            ),
        ] {
            let results = [
                one.copy_from(other).unwrap_err(),
                one.zip_with(other, |_, _, new| new.clone()).unwrap_err(),
                one.zip(other).map(drop).unwrap_err(),
            ];
            for error in results {
                assert_eq!((error.kind(), error.message()), (kind, message));
            }
        }
        assert!(absent.zip(&one).unwrap_err().to_string().contains("`skip` is in the other model only"));
        assert_eq!(values(&one), [0.0, 1.0, 2.0, 7.0]);
    }

    /// Variants without leaves, and variants with leaves of the same paths and shapes.
    #[derive(Module)]
    enum Layer {
        Relu,
        Tanh,
        Scale(Param),
        Shift(Param),
    }

    #[test]
    fn another_variant_is_an_error_with_or_without_leaves() {
        let param = || Param::new(tensor(&[1], 1.0));
        for (a, b, message) in [
            (Layer::Relu, Layer::Tanh, "`0` is the variant `Relu` in the one model, `Tanh` in the other"),
            (Layer::Scale(param()), Layer::Shift(param()), "`0` is the variant `Scale` in the one model, `Shift`"),
            (Layer::Scale(param()), Layer::Relu, "`0` is the variant `Scale` in the one model, `Relu`"),
        ] {
            let error = [a].zip(&[b]).map(drop).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
        }
        let boxed: [Box<dyn Module>; 2] = [Box::new(param()), Box::new(Layer::Relu)];
        for (a, b) in [(&boxed[0], &boxed[1]), (&boxed[1], &boxed[0])] {
            assert!(a.zip(b).map(drop).unwrap_err().message().ends_with("an enum in the other"));
        }
    }

    #[test]
    fn only_tied_parameters_copy_to_tied_ones() {
        let w = Param::new(tensor(&[2], 1.0));
        let (mut tied, mut apart) = ([w.tied(), w], [1.0, 2.0].map(|value| Param::new(tensor(&[2], value))));
        let error = tied.copy_from(&apart).unwrap_err();
        assert!(error.to_string().starts_with("`1` is tied to another place in the one model"), "{error}");
        apart.copy_from(&tied).unwrap();
        assert_eq!(apart[1].value().to_vec().unwrap(), [1.0; 2]);
    }

    #[test]
    fn new_values_must_fit() {
        let mut net = net(1.0);
        let error = net.map(|_, x| x.sum()).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Shape, "stem: f32[] cannot take the place of f32[2]"));
        let other = Tape::inference(&Device::cpu());
        assert!(net.map(|_, _| other.scalar(1.0)).unwrap_err().to_string().contains("another tape"));
        let wrong = tensor(&[7], 0.0);
        assert!(net.map(|_, x| x + x.tape().input(&wrong)).unwrap_err().to_string().contains("stem"));
        assert_eq!(values(&net), [1.0, 2.0, 3.0, 7.0]);
    }
}
