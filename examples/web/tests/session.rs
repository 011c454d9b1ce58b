//! The page's session, run natively: it learns, reads hand-drawn digits, and resumes from files and snapshots.

use meganeura::prelude::*;
use meganeura::{ErrorKind, Result};
use meganeura_web::{Model, Session, image_of};
use pollster::block_on;

/// Twelve epochs, like the page.
const STEPS: usize = 264;

fn session(reader: usize, drawer: usize) -> Result<Session> {
    let mut session = Session::new(&Device::cpu(), 42)?;
    block_on(session.train(Model::Reader, reader))?;
    block_on(session.train(Model::Drawer, drawer))?;
    Ok(session)
}

fn best(chances: &[f32]) -> usize {
    (0..chances.len()).max_by(|&a, &b| chances[a].total_cmp(&chances[b])).unwrap()
}

/// An arc of an ellipse, in degrees clockwise from the right.
fn arc([x, y]: [f32; 2], [rx, ry]: [f32; 2], from: i32, to: i32) -> Vec<[f32; 2]> {
    let steps = 24;
    let at = |i| (from as f32 + (to - from) as f32 * i as f32 / steps as f32).to_radians();
    (0..=steps).map(|i| [x + rx * at(i).cos(), y + ry * at(i).sin()]).collect()
}

/// Each digit as a person might draw it.
fn drawn() -> [Vec<Vec<[f32; 2]>>; 10] {
    let line = |points: &[[f32; 2]]| points.to_vec();
    let two = [arc([0.5, 0.32], [0.2, 0.17], 180, 390), line(&[[0.66, 0.44], [0.3, 0.85], [0.72, 0.85]])].concat();
    let three = [arc([0.45, 0.3], [0.2, 0.17], 200, 450), arc([0.45, 0.66], [0.22, 0.19], 270, 510)].concat();
    let five = [line(&[[0.68, 0.15], [0.36, 0.15], [0.33, 0.45]]), arc([0.46, 0.63], [0.22, 0.21], 235, 500)].concat();
    let six = [line(&[[0.6, 0.12], [0.42, 0.35], [0.34, 0.62]]), arc([0.5, 0.68], [0.16, 0.19], 190, 540)].concat();
    let nine = [arc([0.5, 0.32], [0.17, 0.18], 360, 0), line(&[[0.67, 0.32], [0.64, 0.6], [0.55, 0.88]])].concat();
    let eight = [arc([0.5, 0.3], [0.15, 0.17], 90, 450), arc([0.5, 0.66], [0.18, 0.19], 270, 630)].concat();
    [
        vec![arc([0.5, 0.5], [0.22, 0.36], 270, 630)],
        vec![line(&[[0.38, 0.3], [0.52, 0.15], [0.52, 0.87]])],
        vec![two],
        vec![three],
        vec![line(&[[0.5, 0.12], [0.27, 0.58], [0.72, 0.58]]), line(&[[0.58, 0.38], [0.55, 0.88]])],
        vec![five],
        vec![six],
        vec![line(&[[0.28, 0.17], [0.7, 0.17], [0.45, 0.88]]), line(&[[0.36, 0.5], [0.66, 0.5]])],
        vec![eight],
        vec![nine],
    ]
}

#[test]
fn hand_drawn_digits_are_read() {
    let session = session(STEPS, 0).unwrap();
    let accuracy = block_on(session.evaluate()).unwrap().accuracy().unwrap();
    assert!(accuracy > 0.97, "{accuracy}");
    let images = drawn().map(|strokes| {
        let strokes: Vec<_> = strokes.iter().map(Vec::as_slice).collect();
        image_of(&strokes).unwrap()
    });
    let chances = block_on(session.read(&images.concat())).unwrap();
    let read: Vec<_> = chances.chunks(10).map(best).collect();
    assert_eq!(read, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn drawings_are_recognised() {
    let session = session(STEPS, 1200).unwrap();
    let chances = block_on(session.read(&block_on(session.draw(4)).unwrap())).unwrap();
    let recognised = chances.chunks(10).enumerate().filter(|(index, row)| best(row) == index % 10).count();
    assert!(recognised >= 24, "{recognised} of 40");
}

#[test]
fn a_resumed_snapshot_reaches_the_same_bits() {
    let mut session = session(30, 30).unwrap();
    session.set_lr(Model::Drawer, 1e-3).unwrap();
    let snapshot = block_on(session.snapshot()).unwrap();
    let mut other = Session::restore(&Device::cpu(), &snapshot).unwrap();
    assert_eq!((other.steps(Model::Reader), other.lr(Model::Drawer)), (30, 1e-3));
    for model in [Model::Reader, Model::Drawer] {
        block_on(session.train(model, 5)).unwrap();
        block_on(other.train(model, 5)).unwrap();
        assert!(block_on(session.save(model)).unwrap() == block_on(other.save(model)).unwrap(), "{model:?}");
    }
    assert!(Session::restore(&Device::cpu(), &snapshot[..1000]).is_err());
}

#[test]
fn weights_move_from_session_to_session() {
    let (from, mut to) = (session(5, 5).unwrap(), session(1, 1).unwrap());
    for model in [Model::Reader, Model::Drawer] {
        let bytes = block_on(from.save(model)).unwrap();
        assert_eq!(to.load(&bytes).unwrap(), model);
        assert!(block_on(to.save(model)).unwrap() == bytes);
        block_on(to.train(model, 1)).unwrap();
    }
}

#[test]
fn a_wrong_file_changes_nothing() {
    let mut session = session(2, 2).unwrap();
    let save = |session: &Session| [Model::Reader, Model::Drawer].map(|model| block_on(session.save(model)).unwrap());
    let before = save(&session);
    let other = Linear::new(3, 2).init(&Device::cpu(), Seed::new(1)).unwrap().to_safetensors().unwrap();
    let half = &before[0][..before[0].len() / 2];
    for (bytes, said) in [(&b"no weights"[..], "safetensors"), (half, "safetensors"), (&other, "neither model")] {
        let error = session.load(bytes).unwrap_err();
        assert!(error.kind() == ErrorKind::Checkpoint && error.to_string().contains(said), "{error}");
    }
    assert!(save(&session) == before);
    assert!(session.set_lr(Model::Reader, f64::NAN).is_err() && session.set_lr(Model::Reader, 0.0).is_err());
}
