//! Generated code resolves no name in the user's scope.
#![no_implicit_prelude]
#![expect(non_camel_case_types, dead_code, reason = "they only stand in the way")]

struct Result;
struct Option;
struct Vec;
struct Box;
struct String;
struct Ok;
struct Some;
struct None;
struct Module;
struct Layer;
struct Display;
struct FnMut;
struct Into;
struct At;
struct Slot;
struct SlotMut;
struct Seed;
struct Var;
struct Device;
struct str;
mod core {}
mod std {}
mod meganeura {}

#[derive(::meganeura::prelude::Module)]
#[module(sequential)]
struct Net {
    #[module(init = ::meganeura_derive_ui::Scale::new(2.0), then = [relu, |x| x.square()], before = ::meganeura::Var::square)]
    scale: ::meganeura_derive_ui::Scale,
    #[module(init)]
    part: Part,
}

#[derive(::meganeura::prelude::Module)]
#[module(sequential)]
struct Part(#[module(init = ::meganeura_derive_ui::Scale::new(2.0))] ::meganeura_derive_ui::Scale);

#[derive(::meganeura::prelude::Module)]
enum Choice<T> {
    Some(T),
    None,
}

#[::core::prelude::v1::test]
fn nothing_is_shadowed() {
    let net = Net::init(&::meganeura_derive_ui::device(), 42).unwrap();
    let y = ::meganeura_derive_ui::apply(&net, -3.0).unwrap();
    ::std::assert_eq!(y, 648.0);
}
