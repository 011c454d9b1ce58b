#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl ::meganeura::__private::Module for Digits {
    fn visit<'__visit>(
        &'__visit self,
        __at: ::meganeura::__private::At<'_>,
        __f: &mut dyn ::meganeura::__private::core::ops::FnMut(
            ::meganeura::__private::At<'_>,
            ::meganeura::__private::Slot<'__visit>,
        ),
    ) {
        match self {
            Self { stem: field_stem, r#type: field_type, head: field_head, .. } => {
                {
                    use ::meganeura::__private::{Content as _, ModuleContent as _};
                    ::meganeura::__private::check_skipped::<
                        f32,
                        _,
                    >(&::meganeura::__private::skipped::<f32>().__content());
                }
                <Conv2d as ::meganeura::__private::Module>::visit(
                    field_stem,
                    ::meganeura::__private::At::field(&__at, "stem"),
                    __f,
                );
                <Block as ::meganeura::__private::Module>::visit(
                    field_type,
                    ::meganeura::__private::At::frozen(
                        ::meganeura::__private::At::field(&__at, "block"),
                    ),
                    __f,
                );
                <Linear as ::meganeura::__private::Module>::visit(
                    field_head,
                    ::meganeura::__private::At::field(&__at, "head"),
                    __f,
                );
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
            Self { stem: field_stem, r#type: field_type, head: field_head, .. } => {
                <Conv2d as ::meganeura::__private::Module>::visit_mut(
                    field_stem,
                    ::meganeura::__private::At::field(&__at, "stem"),
                    __f,
                );
                <Block as ::meganeura::__private::Module>::visit_mut(
                    field_type,
                    ::meganeura::__private::At::frozen(
                        ::meganeura::__private::At::field(&__at, "block"),
                    ),
                    __f,
                );
                <Linear as ::meganeura::__private::Module>::visit_mut(
                    field_head,
                    ::meganeura::__private::At::field(&__at, "head"),
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
impl ::meganeura::__private::core::fmt::Display for Digits {
    fn fmt(
        &self,
        __f: &mut ::meganeura::__private::core::fmt::Formatter<'_>,
    ) -> ::meganeura::__private::core::fmt::Result {
        ::meganeura::__private::fmt_module(self, __f)
    }
}
#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl ::meganeura::__private::Layer for Digits {
    fn forward(&self, __x: &::meganeura::__private::Var) -> ::meganeura::__private::Var {
        let __entered = ::meganeura::__private::enter(self, __x);
        ::meganeura::__private::apply(
            |__x: &::meganeura::__private::Var| -> ::meganeura::__private::Var {
                let __y: ::meganeura::__private::Var = {
                    let __entered = ::meganeura::__private::enter_field(
                        &self.stem,
                        "stem",
                        __x,
                    );
                    <Conv2d as ::meganeura::__private::Layer>::forward(&self.stem, __x)
                };
                let __y: ::meganeura::__private::Var = ::meganeura::__private::Var::relu(
                    &__y,
                );
                let __y: ::meganeura::__private::Var = ::meganeura::__private::Var::leaky_relu(
                    &__y,
                    self.slope,
                );
                let __y: ::meganeura::__private::Var = self::scale(&__y);
                let __y: ::meganeura::__private::Var = {
                    let __entered = ::meganeura::__private::enter_field(
                        &self.r#type,
                        "block",
                        &__y,
                    );
                    <Block as ::meganeura::__private::Layer>::forward(&self.r#type, &__y)
                };
                let __y: ::meganeura::__private::Var = ::meganeura::__private::apply(
                    |x| x.flatten(),
                    &__y,
                );
                {
                    let __entered = ::meganeura::__private::enter_field(
                        &self.head,
                        "head",
                        &__y,
                    );
                    <Linear as ::meganeura::__private::Layer>::forward(&self.head, &__y)
                }
            },
            __x,
        )
    }
    fn flow(&self) -> ::meganeura::__private::Flow {
        let __y = ::meganeura::__private::FlowChain::new();
        let __y = ::meganeura::__private::FlowChain::then(
            __y,
            "stem",
            &{
                use ::meganeura::__private::{KnownFlow as _, UnknownFlow as _};
                (&::meganeura::__private::FlowOf(&self.stem)).flow()
            },
        );
        let __y = ::meganeura::__private::FlowChain::unknown(__y);
        let __y = ::meganeura::__private::FlowChain::then(
            __y,
            "block",
            &{
                use ::meganeura::__private::{KnownFlow as _, UnknownFlow as _};
                (&::meganeura::__private::FlowOf(&self.r#type)).flow()
            },
        );
        let __y = ::meganeura::__private::FlowChain::unknown(__y);
        let __y = ::meganeura::__private::FlowChain::then(
            __y,
            "head",
            &{
                use ::meganeura::__private::{KnownFlow as _, UnknownFlow as _};
                (&::meganeura::__private::FlowOf(&self.head)).flow()
            },
        );
        ::meganeura::__private::FlowChain::finish(__y)
    }
}
#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl ::meganeura::__private::FromSeed for Digits {
    fn from_seed(
        __device: &::meganeura::__private::Device,
        __seed: ::meganeura::__private::Seed,
    ) -> ::meganeura::__private::Result<Self> {
        let __model = Self {
            stem: {
                let __built = ::meganeura::__private::init_field(
                    "stem",
                    ::meganeura::__private::Init::init(
                        Conv2d::new(1, 32, 3).padding(1),
                        __device,
                        ::meganeura::__private::Seed::field(__seed, "stem"),
                    ),
                )?;
                __built
            },
            r#type: ::meganeura::__private::init_field(
                "block",
                <Block as ::meganeura::__private::FromSeed>::from_seed(
                    __device,
                    ::meganeura::__private::Seed::field(__seed, "block"),
                ),
            )?,
            head: {
                let __built = ::meganeura::__private::init_field(
                    "head",
                    ::meganeura::__private::Init::init(
                        Linear::new(2048, 10),
                        __device,
                        ::meganeura::__private::Seed::field(__seed, "head"),
                    ),
                )?;
                __built
            },
            slope: 0.1,
        };
        ::meganeura::__private::check_flow(&__model)?;
        ::meganeura::__private::core::result::Result::Ok(__model)
    }
}
impl Digits {
    /// Builds a `Digits` on `device`, its initial values drawn from `seed`.
    ///
    /// The `#[module(init)]` of each field builds the field, and every parameter learns its path.
    ///
    /// # Errors
    ///
    /// The error of the first field that cannot be built.
    #[allow(
        dead_code,
        reason = "a part of another module may be built through that alone"
    )]
    #[track_caller]
    pub fn init(
        device: &::meganeura::__private::Device,
        seed: impl ::meganeura::__private::core::convert::Into<
            ::meganeura::__private::Seed,
        >,
    ) -> ::meganeura::__private::Result<Self> {
        ::meganeura::__private::init_module(device, seed)
    }
}
