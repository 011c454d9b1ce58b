#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl ::meganeura::__private::Module for Block {
    fn visit<'__visit>(
        &'__visit self,
        __at: ::meganeura::__private::At<'_>,
        __f: &mut dyn ::meganeura::__private::core::ops::FnMut(
            ::meganeura::__private::At<'_>,
            ::meganeura::__private::Slot<'__visit>,
        ),
    ) {
        match self {
            Self {
                conv: field_conv,
                norm: field_norm,
                shortcut: field_shortcut,
                ..
            } => {
                <Conv2d as ::meganeura::__private::Module>::visit(
                    field_conv,
                    ::meganeura::__private::At::field(&__at, "conv"),
                    __f,
                );
                <GroupNorm as ::meganeura::__private::Module>::visit(
                    field_norm,
                    ::meganeura::__private::At::field(&__at, "norm"),
                    __f,
                );
                <Option<
                    Conv2d,
                > as ::meganeura::__private::Module>::visit(
                    field_shortcut,
                    ::meganeura::__private::At::field(&__at, "shortcut"),
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
            Self {
                conv: field_conv,
                norm: field_norm,
                shortcut: field_shortcut,
                ..
            } => {
                <Conv2d as ::meganeura::__private::Module>::visit_mut(
                    field_conv,
                    ::meganeura::__private::At::field(&__at, "conv"),
                    __f,
                );
                <GroupNorm as ::meganeura::__private::Module>::visit_mut(
                    field_norm,
                    ::meganeura::__private::At::field(&__at, "norm"),
                    __f,
                );
                <Option<
                    Conv2d,
                > as ::meganeura::__private::Module>::visit_mut(
                    field_shortcut,
                    ::meganeura::__private::At::field(&__at, "shortcut"),
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
impl ::meganeura::__private::Layer for Block {
    fn forward(&self, __x: &::meganeura::__private::Var) -> ::meganeura::__private::Var {
        let __entered = ::meganeura::__private::enter(self, __x);
        ::meganeura::__private::apply(
            |__x: &::meganeura::__private::Var| -> ::meganeura::__private::Var {
                let __y: ::meganeura::__private::Var = {
                    let __entered = ::meganeura::__private::enter_field(
                        &self.conv,
                        "conv",
                        __x,
                    );
                    <Conv2d as ::meganeura::__private::Layer>::forward(&self.conv, __x)
                };
                let __y: ::meganeura::__private::Var = {
                    let __entered = ::meganeura::__private::enter_field(
                        &self.norm,
                        "norm",
                        &__y,
                    );
                    <GroupNorm as ::meganeura::__private::Layer>::forward(
                        &self.norm,
                        &__y,
                    )
                };
                let __y: ::meganeura::__private::Var = ::meganeura::__private::Var::relu(
                    &__y,
                );
                let __y: ::meganeura::__private::Var = ::meganeura::__private::add_residual(
                    &<Option<
                        Conv2d,
                    > as ::meganeura::__private::Shortcut>::shortcut(
                        &self.shortcut,
                        "shortcut",
                        __x,
                    ),
                    &__y,
                );
                ::meganeura::__private::Var::relu(&__y)
            },
            __x,
        )
    }
    fn flow(&self) -> ::meganeura::__private::Flow {
        let __y = ::meganeura::__private::FlowChain::new();
        let __y = ::meganeura::__private::FlowChain::then(
            __y,
            "conv",
            &{
                use ::meganeura::__private::{KnownFlow as _, UnknownFlow as _};
                (&::meganeura::__private::FlowOf(&self.conv)).flow()
            },
        );
        let __y = ::meganeura::__private::FlowChain::then(
            __y,
            "norm",
            &{
                use ::meganeura::__private::{KnownFlow as _, UnknownFlow as _};
                (&::meganeura::__private::FlowOf(&self.norm)).flow()
            },
        );
        let __y = ::meganeura::__private::FlowChain::beside(
            __y,
            ::meganeura::__private::core::option::Option::Some((
                "shortcut",
                &{
                    use ::meganeura::__private::{KnownFlowBeside as _, UnknownFlow as _};
                    (&::meganeura::__private::FlowOf(&self.shortcut)).flow_beside()
                },
            )),
        );
        ::meganeura::__private::FlowChain::finish(__y)
    }
}
/// The constructor arguments of a `Block`. As an `Init`, it builds one.
#[derive(
    ::meganeura::__private::core::fmt::Debug,
    ::meganeura::__private::core::clone::Clone
)]
pub struct BlockConfig {
    /// Channels of the input.
    pub inputs: usize,
    /// The `outputs` of the model.
    pub outputs: usize,
}
#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl ::meganeura::__private::FromConfig for Block {
    type Config = BlockConfig;
    fn from_config(
        __config: Self::Config,
        __device: &::meganeura::__private::Device,
        __seed: ::meganeura::__private::Seed,
    ) -> ::meganeura::__private::Result<Self> {
        let BlockConfig { inputs, outputs } = __config;
        let __model = Self {
            conv: {
                let __built = ::meganeura::__private::init_field(
                    "conv",
                    ::meganeura::__private::Init::init(
                        Conv2d::new(inputs, outputs, 3),
                        __device,
                        ::meganeura::__private::Seed::field(__seed, "conv"),
                    ),
                )?;
                __built
            },
            norm: {
                let __built = ::meganeura::__private::init_field(
                    "norm",
                    ::meganeura::__private::init_by(
                        |device, seed| GroupNorm::new(8, outputs).init(device, seed),
                        __device,
                        ::meganeura::__private::Seed::field(__seed, "norm"),
                    ),
                )?;
                __built
            },
            shortcut: {
                let __built = ::meganeura::__private::init_field(
                    "shortcut",
                    ::meganeura::__private::Init::init(
                        (inputs != outputs).then(|| Conv2d::new(inputs, outputs, 1)),
                        __device,
                        ::meganeura::__private::Seed::field(__seed, "shortcut"),
                    ),
                )?;
                __built
            },
        };
        ::meganeura::__private::check_flow(&__model)?;
        ::meganeura::__private::core::result::Result::Ok(__model)
    }
}
#[automatically_derived]
#[allow(
    unused_qualifications,
    reason = "paths are written out so that nothing can shadow them"
)]
impl ::meganeura::__private::Init for BlockConfig {
    type Output = Block;
    fn build(
        self,
        __device: &::meganeura::__private::Device,
        __seed: ::meganeura::__private::Seed,
    ) -> ::meganeura::__private::Result<Self::Output> {
        ::meganeura::__private::FromConfig::from_config(self, __device, __seed)
    }
}
impl Block {
    /// Builds a `Block` on `device`, its initial values drawn from `seed`.
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
        config: BlockConfig,
    ) -> ::meganeura::__private::Result<Self> {
        ::meganeura::__private::init_configured(device, seed, config)
    }
}
