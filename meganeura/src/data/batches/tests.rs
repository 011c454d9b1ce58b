//! The orders, numbers and errors of batches.

use super::*;
use crate::data::order::shuffle;
use crate::data::{Dataset, HorizontalFlip, RandomCrop};
use crate::{ErrorKind, Shape};

/// Five examples of shape `[1, 1, 2]`; example `i` is `(i, −i)` with label `10·i`.
fn dataset() -> Dataset {
    let features = (0..5u8).map(f32::from).flat_map(|i| [i, -i]).collect();
    Dataset::new(features, [1, 1, 2], (0..5).map(|i| 10 * i).collect::<Vec<_>>()).unwrap()
}

fn labels(batches: Batches) -> Vec<Vec<u32>> {
    batches.on(&Device::cpu()).map(|batch| batch.unwrap().targets.to_u32_vec().unwrap()).collect()
}

fn inputs(batches: Batches) -> Vec<Vec<f32>> {
    batches.on(&Device::cpu()).map(|batch| batch.unwrap().inputs.to_vec().unwrap()).collect()
}

#[test]
fn batches_come_in_order() {
    let dataset = dataset();
    let mut batches = dataset.batches(2).on(&Device::cpu());
    assert_eq!(batches.len(), 3);
    let batch = batches.nth(1).unwrap().unwrap();
    assert_eq!(batch.inputs.shape(), Shape::from([2, 1, 1, 2]));
    assert_eq!(batch.inputs.to_vec().unwrap(), [2.0, -2.0, 3.0, -3.0]);
    assert_eq!(batch.targets.to_u32_vec().unwrap(), [20, 30]);
    assert_eq!(batches.next().unwrap().unwrap().inputs.shape(), Shape::from([1, 1, 1, 2]));
    assert!(batches.next().is_none() && batches.next().is_none());
    assert!(dataset.batches(2).on(&Device::cpu()).nth(usize::MAX).is_none());
}

#[test]
fn parts_of_all_ranks_make_up_the_batches() {
    let data = Dataset::new((0..48u8).map(f32::from).collect(), [1, 2, 2], (0..12).collect::<Vec<_>>()).unwrap();
    let batches = || {
        data.batches(8)
            .shuffle(7)
            .epoch(0)
            .transform(HorizontalFlip::new(0.5))
            .transform(RandomCrop::new(2, 2).padding(1))
    };
    for parts in [2, 4] {
        let of = |part| batches().with(|settings| settings.part = (part, parts));
        let joined = |each: Vec<Vec<Vec<f32>>>| -> Vec<Vec<f32>> {
            (0..each[0].len()).map(|batch| each.iter().flat_map(|part| part[batch].clone()).collect()).collect()
        };
        assert_eq!(joined((0..parts).map(|part| inputs(of(part))).collect()), inputs(batches()));
        let (first, all) = (labels(of(0).skip(1).workers(2)), labels(batches().skip(1)));
        assert_eq!(first[0], all[0][..4 / parts]);
    }
    let refused = |batches: Batches| batches.on(&Device::cpu()).next().unwrap().unwrap_err().to_string();
    let of_three = |batches: Batches| batches.with(|settings| settings.part = (0, 3));
    assert!(refused(of_three(batches())).starts_with("batches of 8 examples have no 3 equal parts"));
    let uneven = of_three(data.batches(9)).skip(0);
    assert_eq!(labels(uneven).len(), 2);
    let said = refused(data.batches(10).with(|settings| settings.part = (0, 5)));
    assert!(said.contains("the last batch, of 2 examples, has no 5 equal parts"), "{said}");
    assert_eq!(labels(data.batches(10).drop_last().with(|settings| settings.part = (0, 5))), [[0, 1]]);
}

#[test]
fn shuffled_batches_follow_the_seed() {
    let dataset = dataset();
    let mut rows: Vec<usize> = (0..5).collect();
    shuffle(&mut rows, Seed::new(7).index(3));
    let of: Vec<u32> = rows.iter().map(|&row| 10 * u32::try_from(row).unwrap()).collect();
    let shuffled = |size| dataset.batches(size).shuffle(7).epoch(3);
    assert_eq!(labels(shuffled(2)), [of[..2].to_vec(), of[2..4].to_vec(), of[4..].to_vec()]);
    assert_eq!(labels(shuffled(2).drop_last()), [&of[..2], &of[2..4]]);
    assert_eq!(labels(shuffled(2).fill_last()), [of[..2].to_vec(), of[2..4].to_vec(), vec![of[4], of[0]]]);
    assert_ne!(labels(dataset.batches(5).shuffle(8).epoch(3)), labels(shuffled(5)));
    assert_eq!(labels(dataset.batches(5)), [[0, 10, 20, 30, 40]]);
    assert_ne!(labels(shuffled(5)), labels(shuffled(5).epoch(4)));
    let each: Vec<_> = dataset.batches(5).shuffle(7).epochs(2..5).map(labels).collect();
    assert_eq!(each, [2, 3, 4].map(|epoch| labels(shuffled(5).epoch(epoch))));
    assert_eq!(labels(dataset.batches(5).epoch(1)), labels(dataset.batches(5)), "nobody asked for shuffling");
}

#[test]
fn batch_sizes_may_exceed_the_dataset() {
    let dataset = dataset();
    assert_eq!(labels(dataset.batches(100)).concat().len(), 5);
    let error = dataset.batches(6).drop_last().on(&Device::cpu()).next().unwrap().unwrap_err();
    assert!(error.to_string().contains("batches of 6 examples from 5: `drop_last` leaves no batch"), "{error}");
    let twice = labels(dataset.batches(12).fill_last()).concat();
    assert_eq!(twice, [0, 10, 20, 30, 40, 0, 10, 20, 30, 40, 0, 10]);
    let empty = Dataset::new(vec![], [1], Vec::<u32>::new()).unwrap();
    assert_eq!(labels(empty.batches(3)).len() + labels(empty.batches(3).fill_last().workers(1)).len(), 0);
    let error = dataset.batches(usize::MAX).fill_last().on(&Device::cpu()).next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
}

#[test]
fn skipped_batches_do_not_change_the_rest() {
    let batches = dataset().batches(1).shuffle(7).epoch(2).transform(RandomCrop::new(1, 1).padding(1));
    let (all, all_images) = (labels(batches.clone()), inputs(batches.clone()));
    for skip in 0..7 {
        let from = skip.min(5);
        assert_eq!(labels(batches.clone().skip(skip)), all[from..]);
        assert_eq!(inputs(batches.clone().skip(skip)), all_images[from..]);
        assert_eq!(batches.clone().on(&Device::cpu()).skip(skip).count(), 5 - from);
    }
    let mut rest = batches.skip(2).on(&Device::cpu());
    assert_eq!((rest.len(), rest.nth(1).is_some(), rest.len()), (3, true, 1));
}

#[test]
fn transformations_depend_on_seed_epoch_and_position() {
    let constant = Dataset::new([0.0, 1.0].repeat(64), [1, 1, 2], vec![0; 64]).unwrap();
    let batches = constant.batches(64).transform(HorizontalFlip::new(0.5));
    let seen = |batches: &Batches| inputs(batches.clone()).concat();
    let first = seen(&batches);
    assert!(first.chunks(2).any(|x| x == [0.0, 1.0]) && first.chunks(2).any(|x| x == [1.0, 0.0]), "{first:?}");
    assert_eq!(seen(&batches), first);
    assert_ne!(seen(&batches.clone().seed(1)), first);
    assert_ne!(seen(&batches.clone().epoch(1)), first);
    assert_eq!(inputs(batches.clone().with(|settings| settings.size = 7)).concat(), first);
    // Examples that are repeated to fill the last batch are transformed independently.
    let twice = seen(&batches.fill_last().with(|settings| settings.size = 128));
    assert_eq!(twice[..128], first);
    assert_ne!(twice[128..], first);
}

#[test]
fn invalid_settings_give_a_single_error() {
    let dataset = dataset();
    let again = "the order would be the same in every epoch";
    for (batches, says, has_len) in [
        (dataset.batches(0).shuffle(1).epoch(0).drop_last(), "the batch size is 0", false),
        (dataset.batches(1).workers(2).ahead(0), "`ahead` is 0", false),
        (dataset.batches(1).weighted([0.0; 5], 1).epoch(0), "weight", true),
        (dataset.batches(1).stratified([0; 4], 1).epoch(0), "4 classes for 5 examples", true),
        (dataset.batches(1).shuffle(1), again, true),
        (dataset.batches(1).weighted([1.0; 5], 1), again, true),
        (dataset.batches(1).stratified([0; 5], 1), again, true),
        (dataset.batches(1).draws(3), "a number of draws needs weights", true),
    ] {
        if !has_len {
            let error = batches.len().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let mut batches = batches.on(&Device::cpu());
        assert_eq!(batches.len(), 1);
        let error = batches.next().unwrap().unwrap_err();
        assert!(error.kind() == ErrorKind::Argument && error.to_string().contains(says), "{error}");
        assert!(batches.next().is_none());
    }
}

#[test]
fn the_number_of_batches_is_known_before_they_are_made() {
    let dataset = dataset();
    for size in 1..8 {
        let all = [
            dataset.batches(size),
            dataset.batches(size).fill_last().skip(1),
            dataset.batches(size).shuffle(7).epoch(1),
            dataset.batches(size).weighted([1.0; 5], 7).draws(13).epoch(1),
            dataset.batches(size.min(5)).drop_last(),
        ];
        for batches in all {
            let (len, made) = (batches.len().unwrap(), labels(batches.clone().skip(0)).len());
            assert_eq!(len, made, "{batches:?}");
        }
    }
}
