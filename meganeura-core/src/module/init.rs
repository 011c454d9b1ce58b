//! Initialization: from a builder, or from a seed alone, to a module on a device.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::sync::Arc;

use super::containers::Key;
use super::{Mode, Module, ModuleExt, Seed};
use crate::error::here;
use crate::{Device, Result};

/// A module not yet built: the sizes and options of a layer, such as `Conv2d::new(1, 32, 3).padding(1)`.
///
/// `#[module(init = …)]` takes one. A `Vec`, `VecDeque`, `Option`, array, tuple, `Box`, `Arc` or map of builders builds
/// the same container of modules; each element gets its own seed. Implement it for the settings of your own modules, to
/// use them there as well:
///
/// ```
/// use meganeura::module::{Init, Seed};
/// use meganeura::{Device, Result};
///
/// struct Block {
///     width: usize,
/// }
///
/// struct BlockSettings {
///     width: usize,
/// }
///
/// impl Init for BlockSettings {
///     type Output = Block;
///
///     fn build(self, _device: &Device, _seed: Seed) -> Result<Block> {
///         Ok(Block { width: self.width })
///     }
/// }
///
/// let block = BlockSettings { width: 8 }.init(&Device::cpu(), 42)?;
/// assert_eq!(block.width, 8);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a builder of a module",
    label = "`init` takes a builder here",
    note = "a layer's `new` gives one: `#[module(init = Linear::new(64, 10))]`",
    note = "a struct that can build itself needs only the bare `#[module(init)]`",
    note = "for a type without a builder, use a closure: `#[module(init = |device, seed| …)]`",
    note = "for a field that is not a module, add `skip`: `#[module(skip, init = 0.5)]`"
)]
pub trait Init: Sized {
    /// The module that is built.
    type Output;

    /// The builder's own part of [`init`](Self::init), which is the method to call.
    ///
    /// # Errors
    ///
    /// Fails if sizes or options are invalid, or if the device runs out of memory.
    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output>;

    /// Builds the module on `device`, with initial values drawn from `seed`: a [`Seed`] or a plain number.
    ///
    /// # Errors
    ///
    /// Fails if sizes or options are invalid, or if the device runs out of memory. The error names the line of this
    /// call.
    #[track_caller]
    fn init(self, device: &Device, seed: impl Into<Seed>) -> Result<Self::Output> {
        here(|| self.build(device, seed.into()))
    }
}

/// A module that can be built without settings.
///
/// `#[derive(Module)]` implements it if every field has an `init`; the bare `#[module(init)]` requires it. Arrays,
/// tuples, `Box` and `Arc` of such modules can be built the same way.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be built from a seed alone",
    label = "no `init` is given for it",
    note = "a struct that derives `Module` can be built if each field has an `init`, such as `#[module(init = Linear::new(64, 10))]`",
    note = "for a field of a type with a builder, give the builder: `#[module(init = Linear::new(64, 10))]`, not the bare `#[module(init)]`",
    note = "for a type with a config, give the config: `#[module(init = NetConfig {{ … }})]`"
)]
pub trait FromSeed: Sized {
    /// Builds the module on `device`, with initial values drawn from `seed`.
    ///
    /// # Errors
    ///
    /// Fails like [`Init::init`] for the first part that fails.
    #[track_caller]
    fn from_seed(device: &Device, seed: Seed) -> Result<Self>;
}

/// A module that is built from a config.
///
/// `#[derive(Module)]` implements it for a struct with `#[module(config(…))]`. Its config also implements [`Init`] and
/// can be used in place of a builder.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura::{FromConfig, Result};
///
/// /// The first model with at least `count` parameters.
/// fn first_above<M: Module + FromConfig>(count: usize, configs: Vec<M::Config>, device: &Device) -> Result<Option<M>> {
///     for config in configs {
///         let model = M::from_config(config, device, Seed::new(42))?;
///         if model.parameter_count() >= count {
///             return Ok(Some(model));
///         }
///     }
///     Ok(None)
/// }
///
/// #[derive(Module)]
/// #[module(sequential, config(width: usize))]
/// struct Net(#[module(init = Linear::new(width, 1))] Linear);
///
/// let configs = vec![NetConfig { width: 4 }, NetConfig { width: 16 }];
/// let net: Option<Net> = first_above(10, configs, &Device::cpu())?;
/// assert_eq!(net.map(|net| net.parameter_count()), Some(17));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be built from a config",
    label = "not built from a config",
    note = "if it derives `Module`, put `#[module(config(…))]` above it and give each of its fields an `init`"
)]
pub trait FromConfig: Sized {
    /// The config: sizes and options.
    type Config;

    /// Builds the module on `device`, with initial values drawn from `seed`.
    ///
    /// # Errors
    ///
    /// Fails like [`Init::init`] for the first part that fails.
    #[track_caller]
    fn from_config(config: Self::Config, device: &Device, seed: Seed) -> Result<Self>;
}

impl<I: Init> Init for Vec<I> {
    type Output = Vec<I::Output>;

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        self.into_iter().enumerate().map(|(index, builder)| builder.build(device, seed.index(index))).collect()
    }
}

impl<I: Init> Init for VecDeque<I> {
    type Output = VecDeque<I::Output>;

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        Vec::from(self).build(device, seed).map(VecDeque::from)
    }
}

impl<I: Init, const N: usize> Init for [I; N] {
    type Output = [I::Output; N];

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        Vec::from(self).build(device, seed).map(into_array)
    }
}

/// A layer keeps its seed, like its path, when it becomes optional.
impl<I: Init> Init for Option<I> {
    type Output = Option<I::Output>;

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        self.map(|builder| builder.build(device, seed)).transpose()
    }
}

impl<I: Init> Init for Box<I> {
    type Output = Box<I::Output>;

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        (*self).build(device, seed).map(Box::new)
    }
}

impl<I: Init + Clone> Init for Arc<I> {
    type Output = Arc<I::Output>;

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        Self::unwrap_or_clone(self).build(device, seed).map(Arc::new)
    }
}

impl<K: Key, I: Init> Init for BTreeMap<K, I> {
    type Output = BTreeMap<K, I::Output>;

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        init_entries(self, device, seed)
    }
}

impl<K: Key + Hash, I: Init, S: BuildHasher + Default> Init for HashMap<K, I, S> {
    type Output = HashMap<K, I::Output, S>;

    fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
        init_entries(self, device, seed)
    }
}

fn init_entries<K: Key, I: Init, Map: FromIterator<(K, I::Output)>>(
    entries: impl IntoIterator<Item = (K, I)>,
    device: &Device,
    seed: Seed,
) -> Result<Map> {
    let init = |(key, builder): (K, I)| {
        let seed = seed.field(key.segment());
        Ok((key, builder.build(device, seed)?))
    };
    entries.into_iter().map(init).collect()
}

impl<M: FromSeed, const N: usize> FromSeed for [M; N] {
    fn from_seed(device: &Device, seed: Seed) -> Result<Self> {
        let modules = || (0..N).map(|index| M::from_seed(device, seed.index(index))).collect::<Result<Vec<M>>>();
        here(modules).map(into_array)
    }
}

impl<M: FromSeed> FromSeed for Box<M> {
    fn from_seed(device: &Device, seed: Seed) -> Result<Self> {
        M::from_seed(device, seed).map(Box::new)
    }
}

impl<M: FromSeed> FromSeed for Arc<M> {
    fn from_seed(device: &Device, seed: Seed) -> Result<Self> {
        M::from_seed(device, seed).map(Self::new)
    }
}

impl<T: ?Sized> FromSeed for PhantomData<T> {
    fn from_seed(_: &Device, _: Seed) -> Result<Self> {
        Ok(Self)
    }
}

/// Starts in training.
impl FromSeed for Mode {
    fn from_seed(_: &Device, _: Seed) -> Result<Self> {
        Ok(Self::new())
    }
}

fn into_array<M, const N: usize>(modules: Vec<M>) -> [M; N] {
    modules.try_into().unwrap_or_else(|modules: Vec<M>| unreachable!("{} modules for {N} places", modules.len()))
}

macro_rules! tuple {
    ($($M:ident $i:tt),+) => {
        impl<$($M: Init),+> Init for ($($M,)+) {
            type Output = ($($M::Output,)+);

            fn build(self, device: &Device, seed: Seed) -> Result<Self::Output> {
                Ok(($(self.$i.build(device, seed.index($i))?,)+))
            }
        }

        impl<$($M: FromSeed),+> FromSeed for ($($M,)+) {
            fn from_seed(device: &Device, seed: Seed) -> Result<Self> {
                Ok(($($M::from_seed(device, seed.index($i))?,)+))
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

/// The body of the derived `init`.
#[doc(hidden)]
#[track_caller]
pub fn init_module<M: Module + FromSeed>(device: &Device, seed: impl Into<Seed>) -> Result<M> {
    here(|| {
        let module = M::from_seed(device, seed.into())?;
        module.name_parameters();
        Ok(module)
    })
}

/// The body of the derived `init` of a module with a config.
#[doc(hidden)]
#[track_caller]
pub fn init_configured<M: Module + FromConfig>(device: &Device, seed: impl Into<Seed>, config: M::Config) -> Result<M> {
    here(|| {
        let module = M::from_config(config, device, seed.into())?;
        module.name_parameters();
        Ok(module)
    })
}

/// Calls the closure of an `init`. It is a function so that the closure's parameters have inferred types.
#[doc(hidden)]
#[track_caller]
pub fn init_by<M>(build: impl FnOnce(&Device, Seed) -> Result<M>, device: &Device, seed: Seed) -> Result<M> {
    here(|| build(device, seed))
}

/// Adds the field's name to the error of building it.
#[doc(hidden)]
#[track_caller]
pub fn init_field<M>(key: &str, built: Result<M>) -> Result<M> {
    here(|| built.map_err(|error| error.context(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorKind};

    /// A module that keeps its seed; the builder `Fails` fails.
    #[derive(Clone, Debug)]
    struct Echo;

    #[derive(Debug, PartialEq)]
    struct Seeded(Seed);

    impl Init for Echo {
        type Output = Seeded;

        fn build(self, _: &Device, seed: Seed) -> Result<Seeded> {
            Ok(Seeded(seed))
        }
    }

    impl FromSeed for Seeded {
        fn from_seed(_: &Device, seed: Seed) -> Result<Self> {
            Ok(Self(seed))
        }
    }

    struct Fails(&'static str);

    impl Init for Fails {
        type Output = ();

        fn build(self, _: &Device, _: Seed) -> Result<()> {
            Err(Error::new(ErrorKind::Argument, self.0))
        }
    }

    const SEED: Seed = Seed::new(42);

    fn init<I: Init>(builder: I) -> I::Output {
        builder.init(&Device::cpu(), SEED).unwrap()
    }

    fn at(index: usize) -> Seeded {
        Seeded(SEED.index(index))
    }

    #[test]
    fn every_element_has_its_own_seed() {
        assert_eq!(init(vec![Echo, Echo]), vec![at(0), at(1)]);
        assert_eq!(init(VecDeque::from([Echo, Echo])), [at(0), at(1)]);
        assert_eq!(init([Echo, Echo]), [at(0), at(1)]);
        assert_eq!(init((Echo, [Echo])), (at(0), [Seeded(SEED.index(1).index(0))]));
    }

    #[test]
    fn option_box_and_arc_pass_the_seed_on() {
        assert_eq!(init(Some(Echo)), Some(Seeded(SEED)));
        assert_eq!(init(None::<Echo>), None);
        assert_eq!(init(Box::new(Echo)), Box::new(Seeded(SEED)));
        assert_eq!(init(Arc::new(Echo)), Arc::new(Seeded(SEED)));
    }

    #[test]
    fn the_entries_of_a_map_are_seeded_by_their_keys() {
        let entries = || ["b", "a"].map(|key| (key.to_owned(), Echo));
        assert_eq!(init(BTreeMap::from(entries()))["a"], Seeded(SEED.field("a")));
        assert_eq!(init(HashMap::from(entries()))["b"], Seeded(SEED.field("b")));
    }

    #[test]
    fn from_seed_gives_the_same_seeds() {
        let device = Device::cpu();
        assert_eq!(<[Seeded; 2]>::from_seed(&device, SEED).unwrap(), [at(0), at(1)]);
        assert_eq!(<(Seeded, Box<Seeded>)>::from_seed(&device, SEED).unwrap(), (at(0), Box::new(at(1))));
        assert_eq!(<PhantomData<str>>::from_seed(&device, SEED).unwrap(), PhantomData);
    }

    #[test]
    fn the_first_failure_is_returned() {
        let error = vec![Fails("first"), Fails("second")].init(&Device::cpu(), SEED).unwrap_err();
        assert!(error.to_string().contains("first"));
    }
}
