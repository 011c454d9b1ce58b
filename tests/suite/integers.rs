//! Integers: exact results of every operation that takes them, on both executors, against numbers of 128 bits.

mod indices;

use libtest_mimic::Trial;
use meganeura::Result;
use meganeura::prelude::*;

use crate::Outcome;
use crate::adapter::gpu_trial;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("integers::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("integers::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("pairs", pairs);
    both("single_numbers", single_numbers);
    both("choices", choices);
    both("conversions", conversions);
    both("reductions", reductions);
    both("long_reductions", long_reductions);
    both("scans", scans);
    both("einsum", einsum);
    both("orders", orders);
    both("movement", movement);
    both("mixed_types_are_refused", mixed_types);
    both("they_stay_beside_floats", beside_floats);
    both("labels_and_indices", indices::indices);
    trials.push(Trial::test("integers::in_double_precision", || {
        let device = Device::cpu().with_precision(Precision::Double)?.for_testing(0);
        conversions(&device)?;
        choices(&device)
    }));
}

/// Sums of products wrap around, as the products do.
fn einsum(device: &Device) -> Outcome {
    for dtype in TYPES {
        let large = if dtype == DType::I32 { 1 << 29 } else { 1 << 61 };
        let number = |k: i128| (k * 7 - 20) * if k % 3 == 0 { large + 1 } else { 1 };
        let x: Vec<_> = (0..12).map(|k| wrapped(dtype, number(k))).collect();
        let y: Vec<_> = (5..14).map(|k| wrapped(dtype, number(k))).collect();
        let tape = Tape::inference(device);
        let a = tape.input(&tensor(device, dtype, &[2, 2, 3], &x)?);
        let b = tape.input(&tensor(device, dtype, &[3, 3], &y)?);
        let sum = |terms: &dyn Fn(usize) -> i128| wrapped(dtype, (0..3).map(terms).sum());
        let product = |n: usize, k: usize| sum(&|j| i128::from(x[3 * n + j]) * i128::from(y[3 * j + k]));
        let expected: Vec<_> = (0..12).map(|at| product(at / 3, at % 3)).collect();
        assert_eq!(Var::einsum("bij,jk->bik", &[&a, &b]).to_tensor()?.to_i64_vec()?, expected, "{dtype}");
        let trace = sum(&|j| i128::from(y[4 * j]));
        assert_eq!(Var::einsum("ii->", &[&b]).to_tensor()?.to_i64_vec()?, [trace], "{dtype}");
        let squares: Vec<_> = y.iter().map(|&y| wrapped(dtype, i128::from(y) * i128::from(y))).collect();
        assert_eq!(Var::einsum("ij,ij->ij", &[&b, &b]).to_tensor()?.to_i64_vec()?, squares, "{dtype}");
    }
    Ok(())
}

const TYPES: [DType; 2] = [DType::I32, DType::I64];

/// Numbers of all magnitudes, with the corners.
fn numbers(dtype: DType) -> Vec<i64> {
    let mut numbers = vec![0, 1, -1, 2, -2, 3, -7, 10, 31, 32, 33, 63, 64, 65, 1 << 16, (1 << 24) + 1, -(1 << 24) - 1];
    numbers.extend([i64::from(i32::MAX), i64::from(i32::MIN)]);
    if dtype == DType::I64 {
        let words = i64::from(u32::MAX);
        numbers.extend([words, words + 1, -words, (1 << 53) + 1, i64::MAX, i64::MIN, i64::MIN + 1]);
        numbers.extend([0x1234_5678_9abc_def0, -0x7edc_ba98_7654_3210, 5_000_000_007]);
    } else {
        numbers.extend([0x1234_5678, -0x7edc_ba98]);
    }
    numbers
}

fn tensor(device: &Device, dtype: DType, shape: &[usize], data: &[i64]) -> Result<Tensor> {
    let shape = Shape::new(shape);
    match dtype {
        DType::I64 => Tensor::from_i64(device, shape, data),
        _ => Tensor::from_i32(device, shape, &data.iter().map(|&x| i32::try_from(x).unwrap()).collect::<Vec<_>>()),
    }
}

/// The lower bits.
fn wrapped(dtype: DType, number: i128) -> i64 {
    if dtype == DType::I32 { i64::from(number as i32) } else { number as i64 }
}

type Pair = (&'static str, fn(&Var, &Var) -> Var, fn(i128, i128) -> i128);

/// The quotient, rounded down.
fn floor(a: i128, b: i128) -> i128 {
    a.div_euclid(b) - i128::from(b < 0 && a.rem_euclid(b) != 0)
}

fn power(a: i128, b: i128) -> i128 {
    match (a, b) {
        (1, _) | (_, 0) => 1,
        (-1, b) => {
            if b % 2 == 0 {
                1
            } else {
                -1
            }
        }
        (_, ..0) => 0,
        (a, b) => {
            // By squaring, modulo 2⁶⁴.
            let (mut result, mut factor, mut left) = (1_i64, a as i64, b);
            while left > 0 {
                if left % 2 == 1 {
                    result = result.wrapping_mul(factor);
                }
                factor = factor.wrapping_mul(factor);
                left /= 2;
            }
            i128::from(result)
        }
    }
}

const PAIRS: [Pair; 12] = [
    ("add", |a, b| a + b, |a, b| a + b),
    ("sub", |a, b| a - b, |a, b| a - b),
    ("mul", |a, b| a * b, |a, b| a * b),
    ("div", |a, b| a / b, |a, b| if b == 0 { 0 } else { a / b }),
    ("rem", Var::rem, |a, b| if b == 0 { a } else { a % b }),
    ("div_floor", Var::div_floor, |a, b| if b == 0 { 0 } else { floor(a, b) }),
    ("modulo", Var::modulo, |a, b| if b == 0 { a } else { a - b * floor(a, b) }),
    ("minimum", |x, y| x.minimum(y), |a, b| a.min(b)),
    ("maximum", |x, y| x.maximum(y), |a, b| a.max(b)),
    ("and", Var::bitwise_and, |a, b| a & b),
    ("or", Var::bitwise_or, |a, b| a | b),
    ("xor", Var::bitwise_xor, |a, b| a ^ b),
];

type Comparison = (&'static str, fn(&Var, &Var) -> Var, fn(&i64, &i64) -> bool);

const COMPARISONS: [Comparison; 6] = [
    ("eq", |x, y| x.eq(y), |a, b| a == b),
    ("ne", |x, y| x.ne(y), |a, b| a != b),
    ("lt", |x, y| x.lt(y), |a, b| a < b),
    ("le", |x, y| x.le(y), |a, b| a <= b),
    ("gt", |x, y| x.gt(y), |a, b| a > b),
    ("ge", |x, y| x.ge(y), |a, b| a >= b),
];

/// Every function of two numbers, of every pair of numbers, by broadcasting.
fn pairs(device: &Device) -> Outcome {
    for dtype in TYPES {
        let x = numbers(dtype);
        let tape = Tape::inference(device);
        let a = tape.input(&tensor(device, dtype, &[x.len(), 1], &x)?);
        let b = tape.input(&tensor(device, dtype, &[x.len()], &x)?);
        let each = || x.iter().flat_map(|&a| x.iter().map(move |&b| (a, b)));
        for (name, function, exact) in PAIRS {
            let found = function(&a, &b).to_tensor()?.to_i64_vec()?;
            for (found, (a, b)) in found.into_iter().zip(each()) {
                assert_eq!(found, wrapped(dtype, exact(a.into(), b.into())), "{name} of {a} and {b}, {dtype}");
            }
        }
        let found = a.pow(&b).to_tensor()?.to_i64_vec()?;
        for (found, (a, b)) in found.into_iter().zip(each()) {
            assert_eq!(found, wrapped(dtype, power(a.into(), b.into())), "{a} to the power {b}, {dtype}");
        }
        let bits = if dtype == DType::I32 { 32 } else { 64 };
        let (left, right) = (a.shift_left(&b).to_tensor()?.to_i64_vec()?, a.shift_right(&b).to_tensor()?.to_i64_vec()?);
        for ((left, right), (a, b)) in left.into_iter().zip(right).zip(each()) {
            let (there, by) = ((0..bits).contains(&b), u32::try_from(b.clamp(0, 63)).unwrap());
            let moved = if there { i128::from(a) << by } else { 0 };
            assert_eq!(left, wrapped(dtype, moved), "{a} << {b}, {dtype}");
            assert_eq!(right, if there { a >> by } else { a >> 63 }, "{a} >> {b}, {dtype}");
        }
        for (name, function, exact) in COMPARISONS {
            let found = function(&a, &b).to_vec()?;
            for (found, (a, b)) in found.into_iter().zip(each()) {
                assert_eq!(found, f32::from(u8::from(exact(&a, &b))), "{a} {name} {b}, {dtype}");
            }
        }
    }
    Ok(())
}

type Single = (&'static str, fn(&Var) -> Var, fn(i128) -> i128);

fn single_numbers(device: &Device) -> Outcome {
    const FUNCTIONS: [Single; 9] = [
        ("neg", |x| -x, |x| -x),
        ("abs", Var::abs, i128::abs),
        ("sign", Var::sign, i128::signum),
        ("relu", Var::relu, |x| x.max(0)),
        ("square", Var::square, |x| x.wrapping_mul(x)),
        ("bitwise_not", Var::bitwise_not, |x| !x),
        ("a number", |x| x * 3.0 + 7.0, |x| x * 3 + 7),
        ("a number first", |x| 100.0 - x, |x| 100 - x),
        ("clamp", |x| x.clamp(-100.0, 65.0), |x| x.clamp(-100, 65)),
    ];
    for dtype in TYPES {
        let x = numbers(dtype);
        let input = Tape::inference(device).input(&tensor(device, dtype, &[x.len()], &x)?);
        for (name, function, exact) in FUNCTIONS {
            let found = function(&input).to_tensor()?;
            assert_eq!(found.ty().dtype, dtype);
            for (found, &x) in found.to_i64_vec()?.into_iter().zip(&x) {
                assert_eq!(found, wrapped(dtype, exact(x.into())), "{name} of {x}, {dtype}");
            }
        }
    }
    Ok(())
}

fn choices(device: &Device) -> Outcome {
    for dtype in TYPES {
        let x = numbers(dtype);
        let tape = Tape::inference(device);
        let a = tape.input(&tensor(device, dtype, &[x.len()], &x)?);
        let chosen = a.gt(a.constant(0.0)).where_cond(&a, &(-&a)).to_tensor()?.to_i64_vec()?;
        assert_eq!(chosen, x.iter().map(|x| wrapped(dtype, i128::from(*x).abs())).collect::<Vec<_>>());
        let filled = a.masked_fill(&a.lt(a.constant(0.0)), -5.0).to_tensor()?.to_i64_vec()?;
        assert_eq!(filled, x.iter().map(|&x| if x < 0 { -5 } else { x }).collect::<Vec<_>>());
    }
    Ok(())
}

fn conversions(device: &Device) -> Outcome {
    let tape = Tape::inference(device);
    for from in TYPES {
        let x = numbers(from);
        let input = tape.input(&tensor(device, from, &[x.len()], &x)?);
        for to in TYPES {
            let found = input.cast(to).to_tensor()?;
            assert_eq!(found.ty().dtype, to);
            assert_eq!(found.to_i64_vec()?, x.iter().map(|&x| wrapped(to, x.into())).collect::<Vec<_>>());
        }
        let words = input.cast(DType::U32);
        assert_eq!(words.to_tensor()?.to_u32_vec()?, x.iter().map(|&x| x as u32).collect::<Vec<_>>());
        for to in TYPES {
            let back = words.cast(to).to_tensor()?.to_i64_vec()?;
            assert_eq!(back, x.iter().map(|&x| wrapped(to, i128::from(x as u32))).collect::<Vec<_>>());
        }
        let index = input.to_index().to_tensor()?.to_u32_vec()?;
        assert_eq!(index, x.iter().map(|&x| u32::try_from(x).unwrap_or(u32::MAX)).collect::<Vec<_>>());
        // The nearest float: rounded once.
        let floats = input.to_float().to_tensor()?.to_f64_vec()?;
        let double = device.precision() == Precision::Double;
        let nearest = |&x: &i64| if double { x as f64 } else { f64::from(x as f32) };
        assert_eq!(floats, x.iter().map(nearest).collect::<Vec<_>>(), "{from}");
    }
    // Between two floats, where the last bits decide, and ties.
    let mut ties = Vec::new();
    for bits in 24..63 {
        let half = 1_i64 << (bits - 24);
        let top = 1_i64 << bits;
        ties.extend([top + half, top + half - 1, top + half + 1, top + 3 * half, -top - half, top.wrapping_sub(1)]);
    }
    if device.precision() == Precision::Full {
        let found = tape.input(&Tensor::from_i64(device, [ties.len()], &ties)?).to_float().to_tensor()?.to_vec()?;
        assert_eq!(found, ties.iter().map(|&x| x as f32).collect::<Vec<_>>());
    }
    let mut floats = vec![0.0, -0.0, 0.9, -0.9, 1.0, -1.5, 2.5, 8_388_609.0, 16_777_216.0, -33_554_436.0];
    floats.extend([
        2_147_483_520.0,
        2_147_483_648.0,
        -2_147_483_648.0,
        -2_147_483_904.0,
        4_294_967_040.0,
        4_294_967_296.0,
    ]);
    floats.extend([1e12, -1e15, 9.223_371e18, 9.223_372e18, -9.223_372e18, 1e19, -1e19, 1e38, 1e-42]);
    floats.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    let input = tape.input(&Tensor::from_slice(device, [floats.len()], &floats)?);
    let [short, long] = TYPES.map(|to| input.cast(to).to_tensor().and_then(|x| x.to_i64_vec()));
    assert_eq!(short?, floats.iter().map(|&x| i64::from(x as i32)).collect::<Vec<_>>());
    assert_eq!(long?, floats.iter().map(|&x| x as i64).collect::<Vec<_>>());
    let words = input.cast(DType::U32).to_tensor()?.to_u32_vec()?;
    assert_eq!(words, floats.iter().map(|&x| x as u32).collect::<Vec<_>>());
    Ok(())
}

/// Numbers that repeat with a long period, in all magnitudes.
fn many(dtype: DType, len: usize) -> Vec<i64> {
    let mut state = 9_i64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (state >> 7) ^ (state << 29);
        if dtype == DType::I32 { number >> 32 } else { number }
    };
    (0..len).map(next).collect()
}

fn reduced(device: &Device, shape: [usize; 3], axes: &[usize]) -> Outcome {
    for dtype in TYPES {
        let x = many(dtype, shape.iter().product());
        let tape = Tape::inference(device);
        let input = tape.input(&tensor(device, dtype, &shape, &x)?);
        let kept: Vec<_> = (0..3).filter(|axis| !axes.contains(axis)).collect();
        let outs: usize = kept.iter().map(|&axis| shape[axis]).product();
        let mut groups = vec![Vec::new(); outs];
        for (at, &x) in x.iter().enumerate() {
            let index = [at / (shape[1] * shape[2]), at / shape[2] % shape[1], at % shape[2]];
            groups[kept.iter().fold(0, |place, &axis| place * shape[axis] + index[axis])].push(x);
        }
        let what = format!("{dtype}{shape:?} over {axes:?}");
        let read = |y: Var| y.to_tensor().and_then(|y| y.to_i64_vec());
        let sums = groups.iter().map(|x| wrapped(dtype, x.iter().map(|&x| i128::from(x)).sum()));
        assert_eq!(read(input.sum_over(axes))?, sums.collect::<Vec<_>>(), "sums of {what}");
        let largest = groups.iter().map(|x| *x.iter().max().unwrap());
        assert_eq!(read(input.max_over(axes))?, largest.collect::<Vec<_>>(), "maxima of {what}");
        let smallest = groups.iter().map(|x| *x.iter().min().unwrap());
        assert_eq!(read(input.min_over(axes))?, smallest.collect::<Vec<_>>(), "minima of {what}");
        let products = groups.iter().map(|x| {
            let product = x.iter().fold(1_i64, |product, &x| product.wrapping_mul(x));
            wrapped(dtype, product.into())
        });
        assert_eq!(read(input.prod_over(axes))?, products.collect::<Vec<_>>(), "products of {what}");
        let &[axis] = axes else { continue };
        let place = |x: &Vec<i64>, best: i64| u32::try_from(x.iter().position(|&x| x == best).unwrap()).unwrap();
        let largest: Vec<_> = groups.iter().map(|x| place(x, *x.iter().max().unwrap())).collect();
        assert_eq!(input.argmax(axis).to_tensor()?.to_u32_vec()?, largest, "argmax of {what}");
        let smallest: Vec<_> = groups.iter().map(|x| place(x, *x.iter().min().unwrap())).collect();
        assert_eq!(input.argmin(axis).to_tensor()?.to_u32_vec()?, smallest, "argmin of {what}");
    }
    Ok(())
}

fn reductions(device: &Device) -> Outcome {
    for (shape, axes) in [
        ([1, 1, 1], &[0][..]),
        ([2, 3, 5], &[1]),
        ([2, 3, 5], &[0, 2]),
        ([2, 3, 5], &[]),
        ([3, 130, 2], &[1]),
        ([2, 2, 1030], &[2]),
        ([3, 77, 65], &[0, 1, 2]),
    ] {
        reduced(device, shape, axes)?;
    }
    Ok(())
}

/// Long enough to be split into parts.
fn long_reductions(device: &Device) -> Outcome {
    reduced(device, [1, 1, 50_001], &[2])?;
    reduced(device, [1, 33_001, 3], &[1])
}

fn scans(device: &Device) -> Outcome {
    for dtype in TYPES {
        for len in [1, 5, 300, 5003] {
            let x = many(dtype, 2 * len * 3);
            let input = Tape::inference(device).input(&tensor(device, dtype, &[2, len, 3], &x)?);
            let found = input.cumsum(1).to_tensor()?.to_i64_vec()?;
            let mut sums = x.clone();
            for at in 0..sums.len() {
                if at / 3 % len > 0 {
                    sums[at] = wrapped(dtype, i128::from(sums[at]) + i128::from(sums[at - 3]));
                }
            }
            assert_eq!(found, sums, "{dtype}, {len} elements");
        }
    }
    Ok(())
}

fn orders(device: &Device) -> Outcome {
    for dtype in TYPES {
        for len in [1, 7, 700] {
            let mut x = many(dtype, len);
            // Equal elements, and the corners.
            x.iter_mut().step_by(3).for_each(|x| *x %= 5);
            let corners = numbers(dtype);
            x.iter_mut().zip(&corners).take(len / 7 * corners.len().min(len)).for_each(|(x, corner)| *x = *corner);
            let input = Tape::inference(device).input(&tensor(device, dtype, &[len], &x)?);
            for descending in [false, true] {
                let mut sorted: Vec<_> = (0u32..).zip(&x).collect();
                sorted.sort_by(|a, b| if descending { b.1.cmp(a.1) } else { a.1.cmp(b.1) });
                let (values, order) = input.sort(0, descending);
                let expected: Vec<_> = sorted.iter().map(|(_, x)| **x).collect();
                assert_eq!(values.to_tensor()?.to_i64_vec()?, expected, "{dtype}, {len} elements");
                let expected: Vec<_> = sorted.iter().map(|(at, _)| *at).collect();
                assert_eq!(order.to_tensor()?.to_u32_vec()?, expected, "{dtype}, {len} elements");
            }
        }
    }
    Ok(())
}

fn movement(device: &Device) -> Outcome {
    for dtype in TYPES {
        let x = many(dtype, 12);
        let tape = Tape::inference(device);
        let input = tape.input(&tensor(device, dtype, &[3, 4], &x)?);
        let read = |y: &Var| y.to_tensor().and_then(|y| y.to_i64_vec());
        let of = |places: &[usize]| places.iter().map(|&place| x[place]).collect::<Vec<_>>();
        let nothing = if dtype == DType::I32 { i64::from(i32::MIN) } else { i64::MIN };
        assert_eq!(read(&input.t())?, of(&[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]));
        assert_eq!(read(&input.slice(0, 1..3).slice(1, 1..3))?, of(&[5, 6, 9, 10]));
        assert_eq!(read(&input.slice(1, 2..3).expand([2, 3, 2]))?, of(&[2, 2, 6, 6, 10, 10, 2, 2, 6, 6, 10, 10]));
        assert_eq!(read(&input.flip(&[0, 1]))?, of(&[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]));
        assert_eq!(read(&input.t().flip(&[0]).reshape([12]))?, of(&[3, 7, 11, 2, 6, 10, 1, 5, 9, 0, 4, 8]));
        let joined = Var::concat(&[&input.slice(1, 1..2), &(&input + &input.constant(0.0)), &input.slice(1, 0..1)], 1);
        assert_eq!(read(&joined)?, of(&[1, 0, 1, 2, 3, 0, 5, 4, 5, 6, 7, 4, 9, 8, 9, 10, 11, 8]));
        assert_eq!(
            read(&Var::stack(&[&input.slice(0, 0..1), &input.slice(0, 2..3)], 0))?,
            of(&[0, 1, 2, 3, 8, 9, 10, 11])
        );
        let padded = read(&input.slice(1, 0..2).pad(&[(0, 1), (1, 0)], -9.0))?;
        assert_eq!(padded, [-9, x[0], x[1], -9, x[4], x[5], -9, x[8], x[9], -9, -9, -9]);
        let index = tape.input(&Tensor::indices(device, [2], &[2, 0])?);
        assert_eq!(read(&input.embedding(&index))?, of(&[8, 9, 10, 11, 0, 1, 2, 3]));
        assert_eq!(read(&input.index_select(1, &index))?, of(&[2, 0, 6, 4, 10, 8]));
        // Computed integers as indices, below 0 and past the end.
        let index = tape.input(&tensor(device, dtype, &[3, 1], &[-2, 2, 3])?) + 1.0;
        assert_eq!(read(&input.gather(1, &index))?, [nothing, x[7], nothing]);
        assert_eq!(read(&input.embedding(&index.reshape([3])).slice(1, 0..1))?, [nothing, nothing, nothing]);
        let labels = tape.input(&Tensor::indices(device, [2, 2], &[7, u32::MAX, 0, 1])?);
        assert_eq!(labels.flip(&[1]).to_tensor()?.to_u32_vec()?, [u32::MAX, 7, 1, 0]);
        assert_eq!(labels.t().pad(&[(0, 0), (1, 0)], 3.0).to_tensor()?.to_u32_vec()?, [3, 7, 0, 3, u32::MAX, 1]);
    }
    Ok(())
}

fn mixed_types(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let long = tape.input(&Tensor::from_i64(device, [2], &[1, 2])?);
    let short = tape.input(&Tensor::from_i32(device, [2], &[1, 2])?);
    let float = tape.input(&Tensor::from_slice(device, [2], &[1.0, 2.0])?);
    let index = tape.input(&Tensor::indices(device, [2], &[1, 0])?);
    for (result, expected) in [
        (&long + &short, "add: needs operands of one type, not i64 and i32; convert one of them with `cast`"),
        (&float * &long, "mul: needs operands of one type, not f32 and i64"),
        (long.modulo(&index), "modulo: needs operands of one type, not i64 and u32"),
        (float.bitwise_and(&float), "bitwise_and: needs i32 or i64, the operands hold f32"),
        (&index + &index, "add: needs floats, one operand holds u32; `to_float` converts it"),
        (long.exp(), "exp: needs floats, one operand holds i64; `to_float` converts it"),
        (long.mean(), "scalar: 0.5 is no i64; convert the integers with `to_float`"),
        (&short + 3e9, "scalar: 3000000000.0 is no i32"),
        (long.where_cond(&long, &long), "where_cond: needs a condition of floats"),
        (Var::concat(&[&long, &float], 0), "concat: needs elements of one type, not i64 and f32; `cast` converts them"),
        (long.pad(&[(1, 0)], 0.5), "pad: the value must fit an i64, it is 0.5"),
        (index.sum(), "sum: needs floats, i32 or i64, the operand holds u32"),
        (float.to_float(), "to_float: takes integers, the operand holds f32"),
        (float.cast(DType::F64), "cast: the device's floats are f32, not f64"),
        (long.embedding(&float), "embedding: the indices must be integers, from `Tensor::indices` or `to_index`"),
        (long.softmax(0), "softmax"),
        (long.logcumsumexp(0), "logcumsumexp: needs floats"),
    ] {
        let error = result.to_tensor().expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}, expected {expected}");
        assert!(error.location().is_some_and(|line| line.file().ends_with("integers.rs")), "{error}");
    }
    let error = tape.input(&Tensor::from_i64(device, [1], &[1])?).to_vec().unwrap_err();
    assert!(error.to_string().contains("read as f32, but the tensor is i64[1]"), "{error}");
    let error = Tensor::from_i64(device, [1], &[1 << 40])?.to_i32_vec().unwrap_err();
    assert!(error.to_string().contains("read as i32, but an element is 1099511627776"), "{error}");
    Ok(())
}

/// In one plan with floats, of which gradients flow.
fn beside_floats(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_slice(device, [4], &[0.5, -1.5, 2.5, 7.0])?);
    let count = x.cast(DType::I64);
    let y = (&x * count.to_float() + count.gt(count.constant(0.0))).square();
    let grads = tape.backward(&y.sum())?;
    // d(x·n + c)² = 2(x·n + c)·n, with n = trunc x.
    assert_eq!(grads.of(&x).expect("it depends on it").to_vec()?, [0.0, -3.0, 24.0, 700.0]);
    assert_eq!(count.to_tensor()?.to_i64_vec()?, [0, -1, 2, 7]);
    assert!(grads.of(&count).is_none());
    let step = device.compile(vec![count.ty()], |x: &Vec<Var>| vec![&x[0] * 2.0 + 1.0])?;
    let found = step.call(&[&Tensor::from_i64(device, [4], &[1, -2, i64::MAX, 0])?])?;
    assert_eq!(found[0].to_i64_vec()?, [3, -3, -1, 1]);
    Ok(())
}
