//! Floats of at most 8 bits, and integers of at most 4.

use super::{Graph, Value};
use crate::io::narrow::Narrow;
use crate::onnx::import::narrow::Rounding;
use crate::onnx::proto::element::*;
use crate::{Device, Precision, Result, Tape, Tensor};

const FORMATS: [Narrow; 5] = [Narrow::E4M3Fn, Narrow::E4M3Fnuz, Narrow::E5M2, Narrow::E5M2Fnuz, Narrow::E2M1];

/// The numbers of a format in order, from 0 up.
fn magnitudes(format: Narrow) -> Vec<f64> {
    let codes = if format == Narrow::E2M1 { 0..8 } else { 0..128 };
    codes.map(|code| f64::from(format.decode(code))).filter(|number| number.is_finite()).collect()
}

/// Numbers at, beside and between all of those of a format.
fn around(format: Narrow) -> Vec<f64> {
    let numbers = magnitudes(format);
    let last = numbers[numbers.len() - 1];
    let mut all = vec![last * 1.01, last * 2.0, 1e30, f64::INFINITY];
    for pair in numbers.windows(2) {
        let middle = f64::midpoint(pair[0], pair[1]);
        all.extend([pair[0], middle * (1.0 - 1e-6), middle, middle * (1.0 + 1e-6), pair[1]]);
    }
    all.iter().flat_map(|&x| [x, -x]).collect()
}

/// Rounding by definition: the nearest of all numbers; of two, that with the even code.
#[test]
fn rounding_finds_the_nearest() {
    for format in FORMATS {
        let numbers = magnitudes(format);
        let largest = numbers[numbers.len() - 1];
        let rounding = Rounding { format, saturates: true };
        for x in around(format) {
            let far = |k: &usize| (numbers[*k] - x.abs()).abs();
            let code = (0..numbers.len()).min_by(|a, b| far(a).total_cmp(&far(b)).then((a % 2).cmp(&(b % 2))));
            let expected = if x.abs() > largest { largest } else { numbers[code.expect("there is one")] };
            assert_eq!(rounding.of(x), expected.copysign(x), "{x} in {format:?}");
        }
    }
    let beyond = |format, x| Rounding { format, saturates: false }.of(x);
    assert!(beyond(Narrow::E4M3Fn, 465.0).is_nan() && beyond(Narrow::E4M3Fn, 464.0) == 448.0);
    assert_eq!(beyond(Narrow::E5M2, -61440.0), f64::NEG_INFINITY);
}

#[test]
fn the_tape_rounds_as_the_host_does() -> Result<()> {
    for precision in [Precision::Full, Precision::Double] {
        let device = Device::cpu_with(precision);
        for format in FORMATS {
            for saturates in [true, false] {
                let rounding = Rounding { format, saturates: saturates || format == Narrow::E2M1 };
                let x: Vec<_> = around(format).into_iter().chain([f64::NAN]).map(|x| f64::from(x as f32)).collect();
                let tensor = Tensor::from_f64(&device, [x.len()], &x)?;
                let found = rounding.record(&Tape::new(&device).input(&tensor)).to_tensor()?.to_f64_vec()?;
                for (x, found) in x.iter().zip(found) {
                    let expected = rounding.of(*x);
                    assert!(found == expected || found.is_nan() && expected.is_nan(), "{x}: {found} {expected}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn packed_numbers_are_read() -> Result<()> {
    for (ty, dims, bytes, expected) in [
        (INT4, 3, vec![0xe1, 0x07], vec![1.0, -2.0, 7.0]),
        (UINT4, 3, vec![0xe1, 0x07], vec![1.0, 14.0, 7.0]),
        (INT2, 5, vec![0b11_10_01_00, 0b01], vec![0.0, 1.0, -2.0, -1.0, 1.0]),
        (UINT2, 5, vec![0b11_10_01_00, 0b01], vec![0.0, 1.0, 2.0, 3.0, 1.0]),
        (FLOAT4E2M1, 3, vec![0xf2, 0x01], vec![1.0, -6.0, 0.5]),
        (FLOAT8E4M3FN, 2, vec![0x7e, 0x81], vec![448.0, -2f64.powi(-9)]),
        (FLOAT8E8M0, 2, vec![0x7f, 0x80], vec![1.0, 2.0]),
    ] {
        let graph = || Graph::new(25).input("x", FLOAT, &[1]).output("y", FLOAT);
        let to = [("to", Value::Int(i64::from(FLOAT)))];
        let mut raw = graph().constant("c", ty, &[dims], &[]).node("Cast", &["c"], &["w"], &to);
        raw.graph.initializer[0].raw_data = bytes.clone().into();
        let raw = raw.node("Add", &["x", "w"], &["y"], &[]);
        assert_eq!(raw.numbers(&[&[0.0]])?, expected, "{ty}");
        let numbers: Vec<_> = bytes.iter().map(|&byte| f64::from(byte)).collect();
        let typed = graph().constant("c", ty, &[dims], &numbers).node("Cast", &["c"], &["w"], &to);
        assert_eq!(typed.node("Add", &["x", "w"], &["y"], &[]).numbers(&[&[0.0]])?, expected, "{ty}");
        // Bytes are missing, or left.
        for extent in [dims + 40, 1] {
            let mut wrong = graph().constant("c", ty, &[extent], &[]).node("Cast", &["c"], &["y"], &to);
            wrong.graph.initializer[0].raw_data = [&bytes[..], &[0; 4]].concat().into();
            let error = wrong.error(&[&[0.0]]);
            assert!(error.to_string().contains("numbers for extents"), "{error}");
        }
    }
    Ok(())
}

#[test]
fn narrow_numbers_are_only_stored() {
    let graph = || Graph::new(25).input("x", FLOAT, &[2]).output("y", FLOAT);
    let to = |ty: i32| [("to", Value::Int(i64::from(ty)))];
    for (ty, name) in [(FLOAT8E4M3FN, "float8e4m3fn"), (INT4, "int4")] {
        let graph = graph().node("Cast", &["x"], &["n"], &to(ty)).node("Add", &["n", "n"], &["y"], &[]);
        let error = graph.error(&[&[1.0, 2.0]]);
        assert!(error.to_string().contains(&format!("operand 0 holds {name}, not a type to compute with")), "{error}");
    }
    let graph = graph().node("Cast", &["x"], &["n"], &to(FLOAT8E8M0));
    let error = graph.node("Cast", &["n"], &["y"], &to(FLOAT)).error(&[&[1.0, 2.0]]);
    assert!(error.to_string().contains("node `n` (Cast): floats are not converted to float8e8m0"), "{error}");
}
