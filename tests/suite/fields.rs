//! Examples with several fields or different lengths, and weighted and stratified orders: through loader threads, and
//! from the middle of an epoch.

use libtest_mimic::Trial;
use meganeura::data::{Array, Batches, Collate, Examples, Fields, HorizontalFlip};
use meganeura::prelude::*;
use meganeura::{ErrorKind, Result};

use crate::Outcome;
use crate::adapter::gpu_trial;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("data::fields", || fields(&Device::cpu())));
    trials.push(gpu_trial("data::gpu::fields", fields));
    trials.push(Trial::test("data::pairs_are_trained_on", || pairs(&Device::cpu())));
    trials.push(gpu_trial("data::gpu::pairs_are_trained_on", pairs));
    trials.push(Trial::test("data::ragged", || ragged(&Device::cpu())));
    trials.push(gpu_trial("data::gpu::ragged", ragged));
    trials.push(Trial::test("data::collate_may_fail", collate_may_fail));
    trials.push(Trial::test("data::samplers_resume", samplers));
}

/// The bits of all tensors of a batch.
trait Bits {
    fn bits(&self) -> Result<Vec<u32>>;
}

impl Bits for Tensor {
    fn bits(&self) -> Result<Vec<u32>> {
        match self.ty().dtype {
            DType::U32 => self.to_u32_vec(),
            _ => Ok(self.to_vec()?.into_iter().map(f32::to_bits).collect()),
        }
    }
}

impl<A: Bits, B: Bits> Bits for (A, B) {
    fn bits(&self) -> Result<Vec<u32>> {
        Ok([self.0.bits()?, self.1.bits()?].concat())
    }
}

/// The contents of each batch.
fn all<I: Fields, T: Fields, C: Collate<I, T>>(batches: Batches<I, T, C>, device: &Device) -> Result<Vec<Vec<u32>>>
where
    <C::Inputs as Fields>::Tensors: Bits,
    <C::Targets as Fields>::Tensors: Bits,
{
    let bits = |batch: Result<Batch<_, _>>| {
        let batch = batch?;
        Ok([Bits::bits(&batch.inputs)?, Bits::bits(&batch.targets)?].concat())
    };
    batches.on(device).map(bits).collect()
}

/// Batches are the same with threads, and when resumed in the middle.
fn expect_same<I: Fields, T: Fields, C: Collate<I, T>>(batches: &Batches<I, T, C>, device: &Device) -> Outcome
where
    <C::Inputs as Fields>::Tensors: Bits,
    <C::Targets as Fields>::Tensors: Bits,
{
    let expected = all(batches.clone(), device)?;
    for workers in [1, 3] {
        assert_eq!(all(batches.clone().workers(workers), device)?, expected, "{workers} threads");
    }
    for skip in 0..=expected.len() {
        assert_eq!(all(batches.clone().skip(skip).workers(skip % 3), device)?, expected[skip..], "from {skip} on");
    }
    Ok(())
}

/// An image, its mask, the tokens of its caption and a number.
fn fields(device: &Device) -> Outcome {
    const N: usize = 23;
    let number = |i: usize| (i * 37 % 101) as f32 - 50.0;
    let images = Array::new((0..N * 12).map(number).collect(), [N, 1, 3, 4])?;
    let captions = Array::new((0..N as u32 * 5).collect(), [N, 5])?;
    let scores: Vec<_> = (0..N).map(|i| number(i) / 4.0).collect();
    let dataset = Dataset::from_columns((images.clone(), captions), (images, scores))?;

    let batch = dataset.batches(4).on(device).nth(2).ok_or("a third")??;
    let ((image, caption), (mask, score)) = (&batch.inputs, &batch.targets);
    assert_eq!([image.shape(), caption.shape()], [Shape::from([4, 1, 3, 4]), [4, 5].into()]);
    assert_eq!([mask.shape(), score.shape()], [Shape::from([4, 1, 3, 4]), [4].into()]);
    assert_eq!(image.to_vec()?, (8 * 12..12 * 12).map(number).collect::<Vec<_>>());
    assert_eq!(caption.to_u32_vec()?, (40..60).collect::<Vec<_>>());
    assert_eq!(score.to_vec()?, (8..12).map(|i| number(i) / 4.0).collect::<Vec<_>>());

    let (train, _) = dataset.split(0.9, 1)?;
    let batches = train.batches(4).shuffle(3).epoch(2).map(|(image, caption), (mask, score), seed| {
        let flip = HorizontalFlip::new(0.5);
        let (image, mask) = (image.transformed(&flip, seed)?, mask.transformed(&flip, seed)?);
        Ok(((image, caption), (mask, score)))
    });
    expect_same(&batches, device)?;
    let (mut flipped, mut kept) = (0, 0);
    for batch in batches.on(device) {
        let batch = batch?;
        let (image, caption) = (batch.inputs.0.to_vec()?, batch.inputs.1.to_u32_vec()?);
        assert_eq!(image, batch.targets.0.to_vec()?);
        for (image, caption) in image.chunks(12).zip(caption.chunks(5)) {
            let first = caption[0] as usize / 5 * 12;
            match image[0] {
                x if x == number(first) => kept += 1,
                x if x == number(first + 3) => flipped += 1,
                x => return Err(format!("{x} at the front of image {}", first / 12).into()),
            }
        }
    }
    assert!(flipped > 3 && kept > 3 && flipped + kept == train.len(), "{flipped} flipped, {kept} not");
    Ok(())
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Pair {
    #[module(init = Linear::new(2, 8), then = tanh)]
    hidden: Linear,
    #[module(init = Linear::new(8, 1))]
    head: Linear,
}

/// Two inputs and a number to predict, with the metric of such a model.
fn pairs(device: &Device) -> Outcome {
    let of = |offset: usize| (0..64).map(|i| ((i * 29 + offset) % 64) as f32 / 32.0 - 1.0).collect::<Vec<_>>();
    let (a, b) = (of(0), of(17));
    let targets = a.iter().zip(&b).map(|(a, b)| a * b).collect();
    let column = |values: Vec<f32>| Array::new(values, [64, 1]);
    let dataset = Dataset::from_columns((column(a)?, column(b)?), column(targets)?)?;
    let (mut net, mut adam) = (Pair::init(device, 1)?, Adam::new(0.02));
    for epoch in 0..60 {
        for batch in dataset.batches(16).shuffle(5).epoch(epoch).on(device) {
            let batch = batch?;
            let tape = Tape::new(device);
            let x = Var::concat(&[&tape.input(&batch.inputs.0), &tape.input(&batch.inputs.1)], 1);
            let loss = net.forward(&x).mse(&tape.input(&batch.targets));
            let grads = tape.backward(&loss)?;
            adam.step(&mut net, &grads)?;
        }
    }
    let mut error = meganeura::metric::MeanSquaredError::new();
    for batch in dataset.batches(24).on(device) {
        let batch = batch?;
        let tape = Tape::inference(device);
        let x = Var::concat(&[&tape.input(&batch.inputs.0), &tape.input(&batch.inputs.1)], 1);
        error.update(&net.forward(&x).to_tensor()?, &batch.targets)?;
    }
    // The products to predict have a variance of about a ninth.
    let error = error.value()?;
    assert!(error < 0.03, "a mean squared error of {error}");
    Ok(())
}

/// Sentences of 1 to 6 tokens; sentence `i` has tokens `i + 1`.
struct Sentences(usize);

impl Sentences {
    fn length(index: usize) -> usize {
        index * 5 % 6 + 1
    }
}

impl Examples for Sentences {
    type Inputs = Array<u32>;
    type Targets = f32;

    fn len(&self) -> usize {
        self.0
    }

    fn read(&self, index: usize) -> Result<(Array<u32>, f32)> {
        Ok((Array::from(vec![index as u32 + 1; Self::length(index)]), index as f32))
    }
}

/// Tokens padded with zeros up to the longest sentence, a mask of the padding, and the targets.
type Padded = ((Array<u32>, Array<f32>), Array<f32>);

fn padded(sentences: Vec<(Array<u32>, f32)>) -> Result<Padded> {
    let longest = sentences.iter().map(|(tokens, _)| tokens.values().len()).max().unwrap_or(0);
    let shape = [sentences.len(), longest];
    let (mut tokens, mut mask) = (Array::zeros(shape)?, Array::zeros(shape)?);
    for (row, (sentence, _)) in sentences.iter().enumerate() {
        let at = row * longest..row * longest + sentence.values().len();
        tokens.values_mut()[at.clone()].copy_from_slice(sentence.values());
        mask.values_mut()[at].fill(1.0);
    }
    let targets: Vec<_> = sentences.into_iter().map(|(_, target)| target).collect();
    Ok(((tokens, mask), Array::from(targets)))
}

fn ragged(device: &Device) -> Outcome {
    let dataset = Dataset::of(Sentences(20))?;
    let error = dataset.batches(3).on(device).next().ok_or("an error")?.map(drop).expect_err("of other lengths");
    assert_eq!(error.kind(), ErrorKind::Shape);
    let expected = "example 1 has inputs u32[6] and targets f32[], and example 0, the first of its batch, \
                    inputs u32[1] and targets f32[]; to batch examples that differ, ";
    assert!(error.message().starts_with(expected), "{error}");
    // Batches of one are never ragged.
    assert_eq!(dataset.batches(1).on(device).filter(Result::is_ok).count(), 20);

    let batches = dataset.batches(3).shuffle(8).epoch(0).collate(padded);
    expect_same(&batches, device)?;
    let mut seen = Vec::new();
    for batch in batches.on(device) {
        let batch = batch?;
        let (tokens, mask) = (&batch.inputs.0, batch.inputs.1.to_vec()?);
        let targets = batch.targets.to_vec()?;
        let longest = targets.iter().map(|&index| Sentences::length(index as usize)).max();
        assert_eq!((tokens.shape()[0], Some(tokens.shape()[1])), (targets.len(), longest));
        let rows = tokens.to_u32_vec()?;
        for ((row, mask), &target) in rows.chunks(tokens.shape()[1]).zip(mask.chunks(tokens.shape()[1])).zip(&targets) {
            let length = Sentences::length(target as usize);
            assert!(row[..length].iter().all(|&token| token == target as u32 + 1), "{row:?}");
            assert!(row[length..].iter().all(|&token| token == 0), "{row:?}");
            assert!(mask.iter().enumerate().all(|(at, &x)| x == f32::from(u8::from(at < length))), "{mask:?}");
        }
        seen.extend(targets.into_iter().map(|target| target as usize));
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..20));
    Ok(())
}

fn collate_may_fail() -> Outcome {
    let (device, dataset) = (Device::cpu(), Dataset::of(Sentences(4))?);
    for workers in [0, 2] {
        let failing = dataset.batches(2).workers(workers).collate(|examples| {
            if examples[0].1 == 2.0 {
                return Err(meganeura::Error::new(ErrorKind::Data, "an odd batch"));
            }
            padded(examples)
        });
        let results: Vec<_> = failing.on(&device).collect();
        assert!(results.len() == 2 && results[0].is_ok());
        let error = results[1].as_ref().map(drop).expect_err("the second");
        assert!((error.kind(), error.message()) == (ErrorKind::Data, "an odd batch") && error.location().is_some());
        // A batch without elements cannot be moved to a device.
        let nothing = dataset.batches(2).workers(workers).collate(|_| Ok((Array::<f32>::zeros([2, 0])?, ())));
        let error = nothing.on(&device).next().ok_or("an error")?.map(drop).expect_err("nothing");
        assert!(error.kind() == ErrorKind::Shape && error.message().starts_with("batch 0: "), "{error}");
    }
    let panics = dataset.batches(2).workers(2).collate(|examples| {
        assert!(examples[0].1 > 0.0, "no first sentence");
        padded(examples)
    });
    let error = panics.on(&device).next().ok_or("an error")?.map(drop).expect_err("a panic");
    assert_eq!(error.kind(), ErrorKind::Panic, "{error}");
    Ok(())
}

/// Puts batches into an order, given labels and weights.
type Ordered = fn(Batches, &[u32], &[f64]) -> Batches;

fn samplers() -> Outcome {
    let device = Device::cpu();
    let classes: Vec<u32> = (0..41).map(|i| u32::from(i % 5 == 0)).collect();
    let numbers = (0..41u8).map(f32::from).collect();
    // A split has its own examples; weights and classes follow that order.
    let (dataset, _) = Dataset::new(numbers, [1], classes)?.split(0.8, 3)?;
    let labels = dataset.targets()?;
    let weights: Vec<_> = labels.iter().map(|&label| if label == 1 { 4.0 } else { 1.0 }).collect();
    let orders: [Ordered; 3] = [
        |batches, _, _| batches.shuffle(7),
        |batches, _, weights| batches.weighted(weights, 7),
        |batches, labels, _| batches.stratified(labels, 7),
    ];
    for order in orders {
        let epoch = |epoch| order(dataset.batches(8), &labels, &weights).epoch(epoch);
        for batches in [epoch(4), epoch(4).drop_last(), epoch(4).fill_last()] {
            expect_same(&batches, &device)?;
        }
        assert_ne!(all(epoch(4), &device)?, all(epoch(5), &device)?);
        for batch in epoch(1).on(&device) {
            let batch = batch?;
            let ones =
                batch.inputs.to_vec()?.iter().map(|x| u32::from((*x as u32).is_multiple_of(5))).collect::<Vec<_>>();
            assert_eq!(batch.targets.to_u32_vec()?, ones, "an input with another's label");
        }
    }
    let share = labels.iter().filter(|&&label| label == 1).count() as f64 / labels.len() as f64;
    for batch in dataset.batches(8).stratified(labels.clone(), 7).epoch(0).drop_last().on(&device) {
        let ones = batch?.targets.to_u32_vec()?.iter().sum::<u32>();
        assert!((f64::from(ones) - 8.0 * share).abs() < 2.0, "{ones} of 8");
    }
    for (batches, part) in [
        (dataset.batches(8).weighted(vec![1.0; 3], 1).epoch(0), "3 weights for 33 examples"),
        (dataset.batches(8).weighted(vec![f64::NAN; 33], 1).epoch(0), "the weight of example 0 is NaN"),
        (dataset.batches(8).stratified(vec![0; 32], 1).epoch(0), "32 classes for 33 examples"),
    ] {
        let results: Vec<_> = batches.on(&device).collect();
        assert_eq!(results.len(), 1);
        let error = results[0].as_ref().map(drop).expect_err("bad weights");
        assert!(error.kind() == ErrorKind::Argument && error.message().contains(part), "{error}");
    }
    Ok(())
}
