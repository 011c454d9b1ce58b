//! The average precision of detected boxes.

use std::collections::BTreeMap;

use crate::Result;
use crate::error::{bail, here};
use crate::host::{reserve, try_filled};
use crate::world::World;
#[cfg(not(target_family = "wasm"))]
use crate::{Shape, Tensor};

/// The overlaps from which a box counts as found: 0.5, 0.55, … 0.95.
const OVERLAPS: [f64; 10] = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95];

/// The most boxes of a class that count in an image: those with the best scores.
const MOST: usize = 100;

/// The recalls at which the precision is read, less one.
const RECALLS: usize = 100;

/// A box in an image: `[left, top, right, bottom]` in any unit, its class, and how sure the model is of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// `[left, top, right, bottom]`
    pub bounds: [f64; 4],
    /// The class, from 0.
    pub class: u32,
    /// The score by which detections are ordered. That of a true box does not matter.
    pub score: f64,
}

/// The average precision of detected boxes, as in the COCO challenge: mAP.
///
/// A detected box is right if it overlaps a true box of its class by a certain part of their union, one which no
/// detection with a better score has taken. The average precision of a class is the area under its curve of precision
/// over recall, read at 101 recalls. [`value`](Self::value) is the mean over the classes that occur, and over the
/// overlaps 0.5, 0.55, … 0.95; [`at`](Self::at) the mean over the classes for one of these. In an image, the 100 best
/// detections of a class count.
///
/// ```
/// use meganeura::metric::{AveragePrecision, Detection};
///
/// let mut precision = AveragePrecision::new();
/// let truth = [([10.0, 10.0, 30.0, 30.0], 0), ([50.0, 20.0, 70.0, 60.0], 1)];
/// let found = [
///     Detection { bounds: [11.0, 10.0, 30.0, 30.0], class: 0, score: 0.9 },
///     Detection { bounds: [50.0, 20.0, 60.0, 60.0], class: 1, score: 0.8 }, // half of the box
/// ];
/// precision.update(&found, &truth)?; // one image
/// assert_eq!((precision.at(0.5)?, precision.at(0.75)?), (1.0, 0.5));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct AveragePrecision {
    classes: BTreeMap<u32, Class>,
}

/// What is known of a class.
#[derive(Clone, Debug, Default)]
struct Class {
    /// The number of true boxes.
    truth: u64,
    /// The score of each detection, and for which of the overlaps it is right, as bits.
    found: Vec<(f64, u16)>,
}

impl AveragePrecision {
    /// An accumulator without images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts an image: the detected boxes, and the true ones with their classes.
    ///
    /// # Errors
    ///
    /// Fails if a number is not finite, or if a box ends before it begins. Then it counts nothing.
    #[track_caller]
    pub fn update(&mut self, found: &[Detection], truth: &[([f64; 4], u32)]) -> Result<()> {
        here(|| {
            let boxes = found.iter().map(|found| ("detection", found.bounds, found.score));
            let all = boxes.enumerate().chain(truth.iter().map(|(bounds, _)| ("true box", *bounds, 0.0)).enumerate());
            for (at, (what, bounds, score)) in all {
                if bounds.iter().chain([&score]).any(|number| !number.is_finite()) {
                    bail!(NotFinite, "{what} {at} is {bounds:?} with the score {score}");
                }
                if bounds[2] < bounds[0] || bounds[3] < bounds[1] {
                    bail!(Argument, "{what} {at} is {bounds:?}, which is not [left, top, right, bottom]");
                }
            }
            let mut classes: Vec<_> =
                found.iter().map(|found| found.class).chain(truth.iter().map(|(_, class)| *class)).collect();
            classes.sort_unstable();
            classes.dedup();
            for class in classes {
                let mut found: Vec<_> = found.iter().filter(|found| found.class == class).collect();
                found.sort_by(|a, b| b.score.total_cmp(&a.score));
                found.truncate(MOST);
                let truth: Vec<_> = truth.iter().filter(|(_, of)| *of == class).map(|(bounds, _)| *bounds).collect();
                let right = right(&found, &truth);
                let known = self.classes.entry(class).or_default();
                reserve(&mut known.found, found.len())?;
                known.truth += truth.len() as u64;
                known.found.extend(found.iter().zip(right).map(|(found, right)| (found.score, right)));
            }
            Ok(())
        })
    }

    /// Counts the `N` images of a batch: `K` detected boxes in each, `[N, K, 4]`, with the scores of the classes,
    /// `[N, K, C]`, of which the highest counts; and `M` true boxes, `[N, M, 4]`, with their classes, `[N, M]`. In an
    /// image with fewer true boxes, the class `u32::MAX` stands for none. Where there is one of each, the axes `K` and
    /// `M` may be left out: `[N, 4]`, `[N, C]`, `[N, 4]`, `[N]`. Waits for the device.
    ///
    /// ```
    /// use meganeura::metric::AveragePrecision;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let boxes = Tensor::new(&device, [[0.1, 0.1, 0.5, 0.5], [0.2, 0.0, 0.8, 0.9]])?; // one in each of two images
    /// let scores = Tensor::new(&device, [[0.9, 0.1], [0.2, 0.8]])?; // of two classes
    /// let classes = Tensor::indices(&device, [2], &[0, 1])?;
    /// let mut precision = AveragePrecision::new();
    /// precision.update_batch(&boxes, &scores, &boxes, &classes)?;
    /// assert_eq!(precision.value()?, 1.0);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`update`](Self::update), if the shapes do not fit, and if the device does. Then it counts nothing.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn update_batch(
        &mut self,
        boxes: &Tensor,
        scores: &Tensor,
        true_boxes: &Tensor,
        true_classes: &Tensor,
    ) -> Result<()> {
        here(|| {
            let shapes = [boxes, scores, true_boxes, true_classes].map(Tensor::shape);
            let misfit = || {
                let [boxes, scores, true_boxes, true_classes] = shapes;
                bail!(
                    Shape,
                    "boxes {boxes} with scores {scores}, and true boxes {true_boxes} of classes {true_classes}, are not \
                     [N, K, 4], [N, K, C], [N, M, 4] and [N, M]"
                )
            };
            let [[found @ .., 4], [scored @ .., classes], [truth @ .., 4], labelled] =
                shapes.each_ref().map(Shape::dims)
            else {
                return misfit();
            };
            let is_fit = found == scored && truth == labelled && found.first() == truth.first();
            let (&[images, ref each @ ..], true, 1..=2, 1..=2) = (found, is_fit, found.len(), truth.len()) else {
                return misfit();
            };
            let each = each.first().copied().unwrap_or(1);
            let (boxes, scores) = (boxes.to_f64_vec()?, scores.to_f64_vec()?);
            let (true_boxes, true_classes) = (true_boxes.to_f64_vec()?, true_classes.to_u32_vec()?);
            let best = |scores: &[f64]| {
                let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
                best.map_or((0, f64::NAN), |(class, score)| (class as u32, *score))
            };
            let found = boxes.as_chunks::<4>().0.iter().zip(scores.chunks(*classes)).map(|(&bounds, scores)| {
                let (class, score) = best(scores);
                Detection { bounds, class, score }
            });
            let found: Vec<_> = found.collect();
            let truth: Vec<_> = true_boxes.as_chunks::<4>().0.iter().copied().zip(true_classes).collect();
            let mut batch = Self::new();
            for (found, truth) in found.chunks(each).zip(truth.chunks(truth.len() / images)) {
                let truth: Vec<_> = truth.iter().copied().filter(|(_, class)| *class != u32::MAX).collect();
                batch.update(found, &truth)?;
            }
            self.merge(&batch)
        })
    }

    /// Adds the images of another accumulator.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for them.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        here(|| {
            for (class, other) in &other.classes {
                let known = self.classes.entry(*class).or_default();
                reserve(&mut known.found, other.found.len())?;
                known.found.extend_from_slice(&other.found);
                known.truth += other.truth;
            }
            Ok(())
        })
    }

    /// An accumulator with the images of all ranks, the same on each. The call is collective: it waits for all ranks.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left; if there is no memory for all detections.
    #[track_caller]
    pub fn over(&self, world: &World) -> Result<Self> {
        here(|| {
            // Class by class: number of true boxes, number of detections, and the two numbers of each detection.
            let mut own = Vec::new();
            for (class, known) in &self.classes {
                own.extend([f64::from(*class), known.truth as f64, known.found.len() as f64]);
                own.extend(known.found.iter().flat_map(|(score, right)| [*score, f64::from(*right)]));
            }
            let mut counts = vec![0.0; world.size()];
            counts[world.rank()] = own.len() as f64;
            let count = |count: f64| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of counts")]
                let count = count as usize;
                count
            };
            let counts: Vec<_> = world.sum(&counts)?.into_iter().map(count).collect();
            let begin: usize = counts[..world.rank()].iter().sum();
            // Each rank's numbers are where the others have zeros.
            let mut all = world.expect_all(try_filled(counts.iter().sum(), 0.0))?;
            all[begin..][..own.len()].copy_from_slice(&own);
            let all = world.sum(&all)?;
            let (mut sum, mut rest) = (Self::new(), &all[..]);
            while let [class, truth, found, numbers @ ..] = rest {
                let (numbers, after) = numbers.split_at(2 * count(*found));
                let known = sum.classes.entry(count(*class) as u32).or_default();
                known.truth += count(*truth) as u64;
                known.found.extend(numbers.chunks_exact(2).map(|pair| (pair[0], count(pair[1]) as u16)));
                rest = after;
            }
            Ok(sum)
        })
    }

    /// The mean over all classes and overlaps: the figure by which detectors are compared.
    ///
    /// # Errors
    ///
    /// Fails if there was no true box.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        here(|| {
            let each: Result<Vec<_>> = (0..OVERLAPS.len()).map(|overlap| self.mean(overlap)).collect();
            Ok(each?.iter().sum::<f64>() / OVERLAPS.len() as f64)
        })
    }

    /// The mean over all classes where a box counts as found if it overlaps by this part: 0.5, 0.55, … or 0.95.
    ///
    /// # Errors
    ///
    /// Fails with another overlap, and if there was no true box.
    #[track_caller]
    pub fn at(&self, overlap: f64) -> Result<f64> {
        here(|| match OVERLAPS.iter().position(|of| (of - overlap).abs() < 1e-9) {
            Some(overlap) => self.mean(overlap),
            None => bail!(Argument, "an overlap is one of {OVERLAPS:?}, not {overlap}"),
        })
    }

    /// The average precision of a class, over all overlaps; `None` if the class has no true box.
    #[must_use]
    pub fn of_class(&self, class: u32) -> Option<f64> {
        let known = self.classes.get(&class).filter(|known| known.truth > 0)?;
        Some((0..OVERLAPS.len()).map(|overlap| known.average(overlap)).sum::<f64>() / OVERLAPS.len() as f64)
    }

    fn mean(&self, overlap: usize) -> Result<f64> {
        let known: Vec<_> = self.classes.values().filter(|known| known.truth > 0).collect();
        if known.is_empty() {
            bail!(Argument, "the average precision of no boxes: `update` has counted no true one");
        }
        Ok(known.iter().map(|known| known.average(overlap)).sum::<f64>() / known.len() as f64)
    }
}

impl Class {
    fn average(&self, overlap: usize) -> f64 {
        let mut found = self.found.clone();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut right, mut curve) = (0u64, Vec::with_capacity(found.len()));
        for (at, (_, bits)) in found.iter().enumerate() {
            right += u64::from(bits >> overlap & 1);
            curve.push((right, right as f64 / (at + 1) as f64));
        }
        // The best precision at this recall or a larger one.
        let mut best = 0.0f64;
        for (_, precision) in curve.iter_mut().rev() {
            best = best.max(*precision);
            *precision = best;
        }
        let at_recall = |recall: usize| {
            let least = recall as f64 / RECALLS as f64;
            let place = curve.partition_point(|(right, _)| (*right as f64 / self.truth as f64) < least);
            curve.get(place).map_or(0.0, |(_, precision)| *precision)
        };
        (0..=RECALLS).map(at_recall).sum::<f64>() / (RECALLS + 1) as f64
    }
}

/// For each detection of a class in an image, best first, for which of the overlaps it is right.
fn right(found: &[&Detection], truth: &[[f64; 4]]) -> Vec<u16> {
    let overlaps: Vec<Vec<f64>> =
        found.iter().map(|found| truth.iter().map(|truth| overlap(found.bounds, *truth)).collect()).collect();
    let mut right = vec![0; found.len()];
    for (bit, least) in OVERLAPS.into_iter().enumerate() {
        let mut taken = vec![false; truth.len()];
        for (right, overlaps) in right.iter_mut().zip(&overlaps) {
            let free = (0..truth.len()).filter(|&at| !taken[at] && overlaps[at] >= least);
            if let Some(best) = free.max_by(|&a, &b| overlaps[a].total_cmp(&overlaps[b])) {
                taken[best] = true;
                *right |= 1 << bit;
            }
        }
    }
    right
}

/// The part of the union of two boxes that both cover; 0 if neither covers anything.
fn overlap(a: [f64; 4], b: [f64; 4]) -> f64 {
    let area = |[left, top, right, bottom]: [f64; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let both = area([a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    if both > 0.0 { both / (area(a) + area(b) - both) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noise;
    use super::*;
    use crate::{Device, ErrorKind};

    type Image = (Vec<Detection>, Vec<([f64; 4], u32)>);

    /// Images with up to four boxes of three classes, and detections near some of them and elsewhere.
    fn images() -> Vec<Image> {
        let mut numbers = noise(100_000);
        let mut below = move |most: u32| numbers.next().unwrap() % most;
        let mut images = Vec::new();
        for _ in 0..12 {
            let mut truth = Vec::new();
            for _ in 0..below(5) {
                let [left, top, width, height] = [below(60), below(60), below(30) + 8, below(30) + 8].map(f64::from);
                truth.push(([left, top, left + width, top + height], below(3)));
            }
            let mut found = Vec::new();
            for (bounds, class) in &truth {
                for _ in 0..below(3) {
                    let moved = [0; 4].map(|_| f64::from(below(9)) - 4.0);
                    let bounds = [0, 1, 2, 3].map(|at| bounds[at] + moved[at]);
                    let class = if below(10) == 0 { below(3) } else { *class };
                    found.push(Detection { bounds, class, score: f64::from(below(50)) / 50.0 });
                }
            }
            for _ in 0..below(4) {
                let [left, top, width, height] = [below(60), below(60), below(30) + 8, below(30) + 8].map(f64::from);
                let (class, score) = (below(3), f64::from(below(30)) / 50.0);
                found.push(Detection { bounds: [left, top, left + width, top + height], class, score });
            }
            images.push((found, truth));
        }
        images
    }

    fn of(images: &[Image]) -> AveragePrecision {
        let mut precision = AveragePrecision::new();
        images.iter().for_each(|(found, truth)| precision.update(found, truth).unwrap());
        precision
    }

    #[test]
    fn agrees_with_pycocotools() {
        // What pycocotools 2.0 computes of the same boxes.
        let precision = of(&images());
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
        near(precision.value().unwrap(), 0.153_313_596_065_488_9);
        near(precision.at(0.5).unwrap(), 0.364_880_605_707_629_6);
        near(precision.at(0.75).unwrap(), 0.081_440_496_990_875_55);
        for (class, expected) in
            [0.233_415_841_584_158_43, 0.081_353_135_313_531_35, 0.145_171_811_298_776_97].into_iter().enumerate()
        {
            near(precision.of_class(class as u32).unwrap(), expected);
        }
    }

    #[test]
    fn parts_add_up() {
        let images = images();
        let (whole, mut first, second) = (of(&images), of(&images[..5]), of(&images[5..]));
        first.merge(&second).unwrap();
        assert_eq!(first.value().unwrap(), whole.value().unwrap());
        let alone = whole.over(&World::alone()).unwrap();
        assert_eq!((alone.value().unwrap(), alone.of_class(2)), (whole.value().unwrap(), whole.of_class(2)));
    }

    #[test]
    fn misuse_is_an_error_and_counts_nothing() {
        let mut precision = AveragePrecision::new();
        assert_eq!(precision.value().unwrap_err().kind(), ErrorKind::Argument);
        let good = Detection { bounds: [0.0, 0.0, 2.0, 2.0], class: 0, score: 0.5 };
        let truth = [([0.0, 0.0, 2.0, 2.0], 0)];
        for (wrong, kind, part) in [
            (Detection { bounds: [2.0, 0.0, 0.0, 2.0], ..good }, ErrorKind::Argument, "detection 1 is [2.0"),
            (Detection { score: f64::NAN, ..good }, ErrorKind::NotFinite, "detection 1"),
            (Detection { bounds: [0.0, f64::INFINITY, 0.0, 2.0], ..good }, ErrorKind::NotFinite, "detection 1"),
        ] {
            let error = precision.update(&[good, wrong], &truth).unwrap_err();
            assert!(error.kind() == kind && error.message().contains(part), "{error}");
        }
        let error = precision.update(&[], &[([0.0, 2.0, 2.0, 0.0], 0)]).unwrap_err();
        assert!(error.message().contains("true box 0"), "{error}");
        assert!(precision.value().is_err());
        // A detection of a class that is nowhere does not matter, and a missed box does.
        precision.update(&[Detection { class: 7, ..good }, good], &truth).unwrap();
        assert_eq!((precision.value().unwrap(), precision.of_class(7)), (1.0, None));
        precision.update(&[], &truth).unwrap();
        assert!((precision.value().unwrap() - 51.0 / 101.0).abs() < 1e-12);
        assert!((precision.at(0.6).unwrap() - 51.0 / 101.0).abs() < 1e-12);
        assert_eq!(precision.at(0.3).unwrap_err().kind(), ErrorKind::Argument);
    }

    /// Two detections and up to two true boxes in each of three images.
    #[test]
    fn a_batch_is_counted_like_its_images() -> Result<()> {
        let device = Device::cpu();
        let bounds = |at: u32| [f64::from(at), 0.0, f64::from(at) + 4.0, 4.0];
        let (found, truth) = ([0, 9, 1, 20, 3, 8], [(0, 0), (8, 2), (0, 1), (20, u32::MAX), (3, 2), (30, 1)]);
        let scores =
            [[0.9, 0.0, 0.1], [0.2, 0.1, 0.7], [0.3, 0.4, 0.3], [0.1, 0.8, 0.1], [0.5, 0.1, 0.4], [0.0, 0.0, 1.0]];
        let best = [(0, 0.9), (2, 0.7), (1, 0.4), (1, 0.8), (0, 0.5), (2, 1.0)];
        let mut one_by_one = AveragePrecision::new();
        for image in 0..3 {
            let of = |at: usize| Detection { bounds: bounds(found[at]), class: best[at].0, score: best[at].1 };
            let truth = truth[2 * image..][..2].iter().filter(|(_, class)| *class != u32::MAX);
            let truth: Vec<_> = truth.map(|(at, class)| (bounds(*at), *class)).collect();
            one_by_one.update(&[of(2 * image), of(2 * image + 1)], &truth)?;
        }
        let boxes = Tensor::from_f64(&device, [3, 2, 4], &found.map(bounds).concat())?;
        let scores = Tensor::from_f64(&device, [3, 2, 3], &scores.concat())?;
        let true_boxes = Tensor::from_f64(&device, [3, 2, 4], &truth.map(|(at, _)| bounds(at)).concat())?;
        let classes = Tensor::indices(&device, [3, 2], &truth.map(|(_, class)| class))?;
        let mut batch = AveragePrecision::new();
        batch.update_batch(&boxes, &scores, &true_boxes, &classes)?;
        for overlap in OVERLAPS {
            assert!((batch.at(overlap)? - one_by_one.at(overlap)?).abs() < 1e-6, "{overlap}");
        }
        assert!((0.2..0.9).contains(&batch.at(0.5)?), "{}", batch.at(0.5)?);

        let before = batch.value()?;
        let last = Tensor::from_f64(
            &device,
            [3, 2, 4],
            &[found.map(bounds).concat()[..20].to_vec(), vec![1.0, 0.0, 0.0, 1.0]].concat(),
        )?;
        assert_eq!(batch.update_batch(&last, &scores, &true_boxes, &classes).unwrap_err().kind(), ErrorKind::Argument);
        for (boxes, scores, true_boxes, classes) in [
            (&scores, &scores, &true_boxes, &classes),
            (&boxes, &classes, &true_boxes, &classes),
            (&boxes, &scores, &true_boxes, &true_boxes),
            (&boxes, &scores, &boxes.reshape([6, 4])?, &classes),
            (&boxes, &scores, &boxes.reshape([6, 4])?, &classes.reshape([6])?),
        ] {
            let error = batch.update_batch(boxes, scores, true_boxes, classes).unwrap_err();
            assert!(error.kind() == ErrorKind::Shape && error.message().contains("are not [N, K, 4]"), "{error}");
        }
        assert_eq!(batch.value()?, before);
        Ok(())
    }
}
