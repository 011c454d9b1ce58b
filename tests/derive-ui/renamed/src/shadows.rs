//! Names that shadow those of generated code.

/// Not `core`.
pub mod core {}
/// Not `std`.
pub mod std {}
/// Not the framework.
pub mod meganeura {}

macro_rules! shadows {
    ($($Name:ident)+) => {
        $(
            /// Shadows a prelude name.
            #[derive(::core::fmt::Debug)]
            pub struct $Name;
        )+
    };
}

shadows!(
    Result Option Vec Box String Ok Err Some None Into From Default Clone Debug Display FnMut FnOnce Add Sized At Slot SlotMut
    Seed Device Init FromSeed FromConfig Shortcut Content ModuleExt
);
