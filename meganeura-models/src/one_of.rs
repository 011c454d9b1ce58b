//! Enums of layers that leave no trace in the names of parameters.

/// An enum of layers, and its builder, an enum of their builders.
///
/// The derive gives the field of a variant a segment of the path. In the models that are followed here, each of several
/// layers stands in the same place, so these enums pass the path on.
///
/// With `: Layer`, all of them map one value to one value, and so does the enum.
macro_rules! one_of {
    ($(#[$doc:meta])* $vis:vis enum $Name:ident of $Config:ident: Layer {
        $($(#[$variant_doc:meta])* $Variant:ident($Layer:ty, $Builder:ty)),+ $(,)?
    }) => {
        one_of! {
            $(#[$doc])*
            $vis enum $Name of $Config {
                $($(#[$variant_doc])* $Variant($Layer, $Builder)),+
            }
        }

        impl meganeura::Layer for $Name {
            fn forward(&self, x: &meganeura::Var) -> meganeura::Var {
                match self {
                    $(Self::$Variant(layer) => meganeura::Layer::forward(layer, x),)+
                }
            }
        }
    };
    ($(#[$doc:meta])* $vis:vis enum $Name:ident of $Config:ident {
        $($(#[$variant_doc:meta])* $Variant:ident($Layer:ty, $Builder:ty)),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        $vis enum $Name {
            $($(#[$variant_doc])* $Variant($Layer),)+
        }

        impl meganeura::Module for $Name {
            fn visit<'a>(
                &'a self,
                at: meganeura::module::At<'_>,
                f: &mut dyn FnMut(meganeura::module::At<'_>, meganeura::module::Slot<'a>),
            ) {
                match self {
                    $(Self::$Variant(layer) => {
                        f(at, meganeura::module::Slot::Variant(stringify!($Variant)));
                        layer.visit(at, f);
                    })+
                }
            }

            fn visit_mut<'a>(
                &'a mut self,
                at: meganeura::module::At<'_>,
                f: &mut dyn FnMut(meganeura::module::At<'_>, meganeura::module::SlotMut<'a>),
            ) {
                match self {
                    $(Self::$Variant(layer) => layer.visit_mut(at, f),)+
                }
            }
        }

        #[derive(Debug, Clone)]
        pub(crate) enum $Config {
            $($Variant($Builder),)+
        }

        impl meganeura::Init for $Config {
            type Output = $Name;

            fn build(self, device: &meganeura::Device, seed: meganeura::Seed) -> meganeura::Result<$Name> {
                match self {
                    $(Self::$Variant(builder) => meganeura::Init::build(builder, device, seed).map($Name::$Variant),)+
                }
            }
        }
    };
}

pub(crate) use one_of;
