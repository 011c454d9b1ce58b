//! Printed summaries.

use super::*;
use crate::module::{At, SlotMut};
use crate::{Buffer, Device, Param, Tensor};

struct Net {
    stem: Vec<Param>,
    norm: (Param, Buffer),
}

impl Module for Net {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        self.stem.visit(at.field("stem").frozen(), f);
        self.norm.visit(at.field("norm"), f);
    }

    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_module(self, f)
    }
}

fn net() -> Net {
    let tensor = |shape: &[usize]| Tensor::zeros(&Device::cpu(), crate::Shape::new(shape)).unwrap();
    Net {
        stem: vec![Param::new(tensor(&[32, 3, 3, 3])), Param::new(tensor(&[32]))],
        norm: (Param::new(tensor(&[4096, 256])), Buffer::new(tensor(&[1]))),
    }
}

#[test]
fn a_model_in_one_line() {
    assert_eq!(net().to_string(), "Net (1,049,472 parameters, 896 frozen)");
    assert_eq!(format!("{:45}|", net()), "Net (1,049,472 parameters, 896 frozen)       |");
}

#[test]
fn a_model_as_a_tree() {
    let expected = "\
Net (1,049,472 parameters, 896 frozen, 4.0 MiB)
├─ stem                          896  3,584 B
│  ├─ 0  f32[32, 3, 3, 3]        864  3,456 B  frozen
│  └─ 1  f32[32]                  32    128 B  frozen
└─ norm                    1,048,576  4.0 MiB
   ├─ 0  f32[4096, 256]    1,048,576  4.0 MiB
   └─ 1  f32[1]                           4 B  buffer";
    assert_eq!(format!("{:#}", net()), expected);
    assert_eq!(Summary::of(&net()).to_string(), expected);
    let expected = "\
Net (1,049,472 parameters, 896 frozen, 4.0 MiB)
├─ stem          896  3,584 B
└─ norm    1,048,576  4.0 MiB";
    assert_eq!(Summary::of(&net()).depth(1).to_string(), expected);
    assert_eq!(Summary::of(&net()).depth(0).to_string(), "Net (1,049,472 parameters, 896 frozen, 4.0 MiB)");
}

#[test]
fn a_leaf_alone_and_nothing_at_all() {
    let bias = Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
    assert_eq!(Summary::of(&bias).to_string(), "Param (1 parameter, 4 B)");
    assert_eq!(Summary::of(&Vec::<Param>::new()).to_string(), "Vec<Param> (0 parameters, 0 B)");
}

enum Norm {
    Affine(Param, Param),
}

impl Module for Norm {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        f(at, Slot::Variant("Affine"));
        let Self::Affine(scale, shift) = self;
        scale.visit(at.index(0), f);
        shift.visit(at.index(1), f);
    }

    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}

#[test]
fn ties_variants_and_constants_show() {
    let zeros = || Tensor::zeros(&Device::cpu(), [2]).unwrap();
    let (w, table) = (Param::new(zeros()), Buffer::constant(zeros()));
    let net =
        vec![(Norm::Affine(w.tied(), Param::new(zeros())), table), (Norm::Affine(w.tied(), w), Buffer::new(zeros()))];
    let expected = "\
Vec<(Norm, Buffer)> (4 parameters, 32 B)
├─ 0                     4  24 B
│  ├─ 0: Affine          4  16 B
│  │  ├─ 0       f32[2]  2   8 B
│  │  └─ 1       f32[2]  2   8 B
│  └─ 1          f32[2]      8 B  constant
└─ 1                         8 B
   ├─ 0: Affine
   │  ├─ 0       f32[2]           = 0.0.0
   │  └─ 1       f32[2]           = 0.0.0
   └─ 1          f32[2]      8 B  buffer";
    let shown = Summary::of(&net).to_string();
    assert_eq!(shown, expected, "\n{shown}");
}

#[test]
fn a_large_model_is_summed_up_in_one_walk() {
    const COUNT: usize = 100_000;
    let bias = Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
    let other = Param::new(bias.value());
    // Every second place repeats a tie.
    let net: Vec<_> =
        (0..COUNT / 2).map(|_| (bias.tied(), Param::new(bias.value()))).chain([(other, bias.tied())]).collect();
    let shown = Summary::of(&net).to_string();
    assert!(shown.starts_with("Vec<(Param, Param)> (50,002 parameters, 195.3 KiB)"), "{}", &shown[..80]);
    assert_eq!(shown.lines().count(), 1 + 3 * (COUNT / 2 + 1));
    assert_eq!(shown.matches("= 0.0\n").count(), COUNT / 2 - 1);
    assert!(shown.ends_with("= 0.0"));
    assert_eq!(Summary::of(&net).depth(1).to_string().lines().count(), COUNT / 2 + 2);
}

#[test]
fn children_are_one_by_their_names() {
    struct Scattered(Vec<Param>);
    impl Module for Scattered {
        fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
            // Returns to a branch that was left: once by its index, once by its name.
            f(at.field("a").index(0), Slot::Param(&self.0[0]));
            f(at.field("b"), Slot::Param(&self.0[1]));
            f(at.field("a").field("1"), Slot::Param(&self.0[2]));
            f(at.field("a").field("0").field("c"), Slot::Param(&self.0[3]));
        }

        fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
    }
    let param = || Param::new(Tensor::zeros(&Device::cpu(), [2]).unwrap());
    let expected = "\
Scattered (8 parameters, 32 B)
├─ a                6  24 B
│  ├─ 0     f32[2]  4  16 B
│  │  └─ c  f32[2]  2   8 B
│  └─ 1     f32[2]  2   8 B
└─ b        f32[2]  2   8 B";
    let shown = Summary::of(&Scattered((0..4).map(|_| param()).collect())).to_string();
    assert_eq!(shown, expected, "\n{shown}");
}

#[test]
fn bytes_have_units() {
    let cases = [(0, "0 B"), (9_999, "9,999 B"), (10_240, "10.0 KiB"), (1_023_999, "1000.0 KiB"), (5 << 30, "5.0 GiB")];
    assert_eq!(cases.map(|(n, _)| bytes(n)), cases.map(|(_, text)| text.to_owned()));
}

#[test]
fn thousands_are_set_apart() {
    assert_eq!(
        [0, 999, 1000, 12_345, 123_456, 1_234_567].map(thousands),
        ["0", "999", "1,000", "12,345", "123,456", "1,234,567"]
    );
}

#[test]
fn type_names_lose_their_paths() {
    assert_eq!(without_paths("alloc::vec::Vec<net::Block<core::option::Option<u8>>>"), "Vec<Block<Option<u8>>>");
    assert_eq!(without_paths("(a::B, [c::D; 4], dyn e::F)"), "(B, [D; 4], dyn F)");
    assert_eq!(without_paths("Digits"), "Digits");
    assert_eq!(without_paths("(meganeura::nn::conv::Conv<2>, a::Conv<2>)"), "(Conv2d, Conv<2>)");
}
