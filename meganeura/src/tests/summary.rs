//! Summaries of models.

use crate::nn::{Conv3d, Dropout};
use crate::{Device, Init, ModuleExt, Param, Seed, Tensor};

#[test]
fn evaluated_parts_show_once() {
    let param = || Param::new(Tensor::zeros(&Device::cpu(), [2]).unwrap());
    let block = || (param(), Dropout::new(0.5), param());
    let mut net = vec![(block(), Dropout::new(0.1)), (block(), Dropout::new(0.1))];
    let shown = |net: &Vec<_>| net.summary().to_string().lines().map(str::to_owned).collect::<Vec<_>>();
    let plain = shown(&net);
    assert!(!plain.join("").contains("evaluated") && plain.len() == 9, "{plain:#?}");
    net.evaluate("0").unwrap();
    net.evaluate("1.0.1").unwrap();
    net.evaluate("1.1").unwrap();
    let expected = "\
Vec<((Param, Dropout, Param), Dropout)> (8 parameters, partly evaluated, 32 B)
├─ 0                4  16 B  evaluated
│  └─ 0             4  16 B
│     ├─ 0  f32[2]  2   8 B
│     └─ 2  f32[2]  2   8 B
└─ 1                4  16 B
   ├─ 0             4  16 B
   │  ├─ 0  f32[2]  2   8 B
   │  ├─ 1                   evaluated
   │  └─ 2  f32[2]  2   8 B
   └─ 1                      evaluated";
    assert_eq!(shown(&net).join("\n"), expected, "\n{}", shown(&net).join("\n"));
    net.evaluate("**").unwrap();
    let all = shown(&net);
    assert!(all[0].ends_with("(8 parameters, evaluated, 32 B)") && all[1..] == plain[1..], "{all:#?}");
}

#[test]
fn layers_have_their_aliases() {
    let net = vec![Conv3d::new(1, 1, 1).init(&Device::cpu(), Seed::new(1)).unwrap()];
    assert!(net.summary().to_string().starts_with("Vec<Conv3d> ("), "{}", net.summary());
}
