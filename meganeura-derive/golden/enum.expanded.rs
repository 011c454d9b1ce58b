#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl<T> ::meganeura::__private::Module for Norm<T> {
    fn visit<'__visit>(
        &'__visit self,
        __at: ::meganeura::__private::At<'_>,
        __f: &mut dyn ::meganeura::__private::core::ops::FnMut(
            ::meganeura::__private::At<'_>,
            ::meganeura::__private::Slot<'__visit>,
        ),
    ) {
        match self {
            Self::Group { 0: field_0, .. } => {
                __f(__at, ::meganeura::__private::Slot::Variant("Group"));
                let __at = ::meganeura::__private::At::field(&__at, "Group");
                <GroupNorm as ::meganeura::__private::Module>::visit(
                    field_0,
                    ::meganeura::__private::At::field(&__at, "0"),
                    __f,
                );
            }
            Self::Spectral { weight: field_weight, inner: field_inner, .. } => {
                {
                    use ::meganeura::__private::{Content as _, ModuleContent as _};
                    ::meganeura::__private::check_skipped::<
                        T,
                        _,
                    >(&::meganeura::__private::skipped::<T>().__content());
                }
                __f(__at, ::meganeura::__private::Slot::Variant("Spectral"));
                let __at = ::meganeura::__private::At::field(&__at, "spectral");
                <Param as ::meganeura::__private::Module>::visit(
                    field_weight,
                    ::meganeura::__private::At::field(&__at, "weight"),
                    __f,
                );
                <Box<
                    Norm<T>,
                > as ::meganeura::__private::Module>::visit(
                    field_inner,
                    ::meganeura::__private::At::frozen(
                        ::meganeura::__private::At::field(&__at, "inner"),
                    ),
                    __f,
                );
            }
            Self::Skipped { .. } => {
                {
                    use ::meganeura::__private::{Content as _, ModuleContent as _};
                    ::meganeura::__private::check_skipped::<
                        T,
                        _,
                    >(&::meganeura::__private::skipped::<T>().__content());
                }
                __f(__at, ::meganeura::__private::Slot::Variant("Skipped"));
            }
            Self::None { .. } => {
                __f(__at, ::meganeura::__private::Slot::Variant("None"));
            }
        }
    }
    fn visit_mut<'__visit>(
        &'__visit mut self,
        __at: ::meganeura::__private::At<'_>,
        __f: &mut dyn ::meganeura::__private::core::ops::FnMut(
            ::meganeura::__private::At<'_>,
            ::meganeura::__private::SlotMut<'__visit>,
        ),
    ) {
        match self {
            Self::Group { 0: field_0, .. } => {
                let __at = ::meganeura::__private::At::field(&__at, "Group");
                <GroupNorm as ::meganeura::__private::Module>::visit_mut(
                    field_0,
                    ::meganeura::__private::At::field(&__at, "0"),
                    __f,
                );
            }
            Self::Spectral { weight: field_weight, inner: field_inner, .. } => {
                let __at = ::meganeura::__private::At::field(&__at, "spectral");
                <Param as ::meganeura::__private::Module>::visit_mut(
                    field_weight,
                    ::meganeura::__private::At::field(&__at, "weight"),
                    __f,
                );
                <Box<
                    Norm<T>,
                > as ::meganeura::__private::Module>::visit_mut(
                    field_inner,
                    ::meganeura::__private::At::frozen(
                        ::meganeura::__private::At::field(&__at, "inner"),
                    ),
                    __f,
                );
            }
            Self::Skipped { .. } => {}
            Self::None { .. } => {}
        }
    }
}
