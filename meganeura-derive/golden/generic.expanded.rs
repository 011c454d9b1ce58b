#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl<'a, L: Named, const N: usize> crate::__private::Module for Residual<'a, L, N>
where
    L: Clone,
    L: crate::__private::Module,
    Option<Vec<L::Block>>: crate::__private::Module,
{
    fn visit<'__visit>(
        &'__visit self,
        __at: crate::__private::At<'_>,
        __f: &mut dyn crate::__private::core::ops::FnMut(
            crate::__private::At<'_>,
            crate::__private::Slot<'__visit>,
        ),
    ) {
        match self {
            Self { 0: field_0, 1: field_1, 2: field_2, .. } => {
                {
                    use crate::__private::{Content as _, ModuleContent as _};
                    crate::__private::check_skipped::<
                        &'a str,
                        _,
                    >(&crate::__private::skipped::<&'a str>().__content());
                }
                <L as crate::__private::Module>::visit(
                    field_0,
                    crate::__private::At::field(&__at, "0"),
                    __f,
                );
                <[Linear; N] as crate::__private::Module>::visit(
                    field_1,
                    crate::__private::At::field(&__at, "1"),
                    __f,
                );
                <Option<
                    Vec<L::Block>,
                > as crate::__private::Module>::visit(
                    field_2,
                    crate::__private::At::field(&__at, "2"),
                    __f,
                );
            }
        }
    }
    fn visit_mut<'__visit>(
        &'__visit mut self,
        __at: crate::__private::At<'_>,
        __f: &mut dyn crate::__private::core::ops::FnMut(
            crate::__private::At<'_>,
            crate::__private::SlotMut<'__visit>,
        ),
    ) {
        match self {
            Self { 0: field_0, 1: field_1, 2: field_2, .. } => {
                <L as crate::__private::Module>::visit_mut(
                    field_0,
                    crate::__private::At::field(&__at, "0"),
                    __f,
                );
                <[Linear; N] as crate::__private::Module>::visit_mut(
                    field_1,
                    crate::__private::At::field(&__at, "1"),
                    __f,
                );
                <Option<
                    Vec<L::Block>,
                > as crate::__private::Module>::visit_mut(
                    field_2,
                    crate::__private::At::field(&__at, "2"),
                    __f,
                );
            }
        }
    }
}
#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl<'a, L: Named, const N: usize> crate::__private::core::fmt::Display
for Residual<'a, L, N>
where
    L: Clone,
    L: crate::__private::Module,
    Option<Vec<L::Block>>: crate::__private::Module,
{
    fn fmt(
        &self,
        __f: &mut crate::__private::core::fmt::Formatter<'_>,
    ) -> crate::__private::core::fmt::Result {
        crate::__private::fmt_module(self, __f)
    }
}
