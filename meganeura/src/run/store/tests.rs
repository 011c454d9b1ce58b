use super::*;

fn state(step: u64) -> State {
    let position = Position { step, epoch: 3, batch: 7 };
    let metrics = [("loss".to_owned(), f64::INFINITY), ("accuracy".to_owned(), 0.1)].into();
    let taken = (0..2).map(|k| Count { batch: k, examples: 40, size: 10 + k, order: u64::MAX - k as u64 }).collect();
    State { position, taken, time: 1.5, seed: u64::MAX, metrics, metrics_bytes: 12, metrics_checksum: "0f".repeat(8) }
}

fn parts() -> Parts {
    let mut parts = Parts::new();
    parts.files.insert("model".into(), (0..100).collect());
    parts.put_text("note", "a \"quote\"\n∞").unwrap();
    parts
}

#[test]
fn written_checkpoints_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    assert!(list(folder.path()).unwrap().is_empty());
    let first = write(folder.path(), None, state(9), &parts(), || Ok(())).unwrap();
    let again = write(folder.path(), Some(&first), state(9), &parts(), || Ok(())).unwrap();
    write(folder.path(), Some(&again), state(10), &parts(), || Ok(())).unwrap();
    let all = list(folder.path()).unwrap();
    assert_eq!(all.iter().map(Saved::name).collect::<Vec<_>>(), ["step-00000009", "step-00000009.1", "step-00000010"]);
    assert_eq!(all[1].state.as_ref().unwrap(), &state(9));
    let read = read_parts(&all[2]).unwrap();
    assert_eq!((read.files, read.texts), (parts().files, parts().texts));
    delete(&all[1]).unwrap();
    assert_eq!(list(folder.path()).unwrap().len(), 2);
    assert_eq!(fs::read_dir(folder.path().join(FILES.checkpoints)).unwrap().count(), 2);
}

#[test]
fn damage_is_detected_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let saved = write(folder.path(), None, state(9), &parts(), || Ok(())).unwrap();
    let (model, state) = (saved.path.join("model.safetensors"), saved.path.join(FILES.state));
    let (bytes, text) = (fs::read(&model).unwrap(), fs::read_to_string(&state).unwrap());
    let error = || read_parts(&list(folder.path()).unwrap()[0]).unwrap_err().to_string();
    for cut in [0, 1, 50, 99] {
        fs::write(&model, &bytes[..cut]).unwrap();
        assert!(error().contains(&format!("model.safetensors is damaged: it has {cut} bytes of 100")), "{}", error());
    }
    for at in 0..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 16;
        fs::write(&model, wrong).unwrap();
        assert!(error().contains("other bytes than were written"), "byte {at}");
    }
    fs::remove_file(&model).unwrap();
    assert!(error().contains("model.safetensors could not be read"), "{}", error());
    for cut in 0..text.trim_end().len() {
        fs::write(&state, &text.as_bytes()[..cut]).unwrap();
        assert!(list(folder.path()).unwrap()[0].state.is_err(), "cut at {cut}");
    }
    // Wrong contents whose own checksum is valid.
    for (from, to, part) in [
        ("\"step\": 9", "\"step\": -9", "`step` is not a whole number: -9"),
        ("\"step\": 9", "\"step\": 18446744073709551615", "`step` is 18446744073709551615, and no run comes as far"),
        ("\"step\": 9", "\"step\": 8", "state.json is of step 8, and its folder's name is of another"),
        ("\"model\": {", "\"../model\": {", "state.json is damaged: no part is called `../model`"),
        ("\"format\": 3", "\"format\": 7", "is of format 7"),
    ] {
        assert!(text.contains(from));
        fs::write(&state, json::resealed(text.replacen(from, to, 1).as_bytes()).unwrap()).unwrap();
        assert!(error().contains(part), "{part}: {}", error());
    }
    assert!(list(folder.path()).unwrap()[0].state.is_err());
}

/// Flips every bit of every file, and changes the folder's name.
#[test]
fn any_flipped_bit_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let saved = write(folder.path(), None, state(9), &parts(), || Ok(())).unwrap();
    let mut bits = 0;
    for path in contents(&saved.path).unwrap() {
        let mut bytes = fs::read(&path).unwrap();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            let error = read_parts(&saved).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Checkpoint, "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{}, bit {bit}: {error}", path.display());
            bytes[bit / 8] ^= 1 << (bit % 8);
            bits += 1;
        }
        fs::write(&path, &bytes).unwrap();
    }
    assert!(bits > 8 * 500, "{bits}");
    assert_eq!(read_parts(&saved).unwrap().files, parts().files);
    let name = b"step-00000009";
    for bit in 0..name.len() * 8 {
        let mut other = name.to_vec();
        other[bit / 8] ^= 1 << (bit % 8);
        let Ok(other) = String::from_utf8(other) else { continue };
        if let Some(order) = order(&other) {
            let error = read_state(&saved.path, order).unwrap_err();
            assert!(error.to_string().contains("its folder's name is of another"), "{error}");
        }
    }
}

#[test]
fn names_have_one_form() {
    for (name, expected) in [
        ("step-00000009", Some((9, 0))),
        ("step-123456789012.10", Some((123_456_789_012, 10))),
        ("step-00000009.0", None),
        ("step-00000009.01", None),
        ("step-9", None),
        ("step-+0000009", None),
        ("step-00000009.damaged", None),
        ("step-00000009.partial", None),
    ] {
        assert_eq!(order(name), expected, "{name}");
    }
}

#[test]
fn unusable_checkpoints_are_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    for expected in ["step-00000009.damaged", "step-00000009.damaged-2", "step-00000009.damaged-3"] {
        let saved = write(folder.path(), None, state(9), &parts(), || Ok(())).unwrap();
        assert_eq!(set_aside(&saved).unwrap(), saved.path.with_file_name(expected));
        assert!(list(folder.path()).unwrap().is_empty());
    }
    sweep(folder.path()).unwrap();
    assert_eq!(fs::read_dir(folder.path().join(FILES.checkpoints)).unwrap().count(), 3, "nothing is deleted");
}

#[test]
fn deleting_a_missing_checkpoint_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let saved = write(folder.path(), None, state(9), &parts(), || Ok(())).unwrap();
    fs::remove_dir_all(&saved.path).unwrap();
    delete(&saved).unwrap();
}

/// By now, the folder may hold another run's files under the same names.
#[test]
fn a_folder_of_another_run_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = folder.path().join(FILES.checkpoints);
    let lost = || Err(Error::new(ErrorKind::Io, "no longer ours"));
    let error = write(folder.path(), None, state(9), &parts(), lost).unwrap_err();
    assert!(error.to_string().contains("no longer ours"), "{error}");
    assert!(checkpoints.join("step-00000009.partial").exists() && list(folder.path()).unwrap().is_empty());
    // Nor is a folder created.
    fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(write(folder.path(), None, state(9), &parts(), || Ok(())).unwrap_err().kind(), ErrorKind::Io);
    assert!(!folder.path().exists());
}

#[test]
fn unfinished_checkpoints_are_not_listed_and_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), None, state(9), &parts(), || Ok(())).unwrap();
    let checkpoints = folder.path().join(FILES.checkpoints);
    fs::create_dir(checkpoints.join("step-00000011.partial")).unwrap();
    fs::write(checkpoints.join("step-00000011.partial/model.safetensors"), "half").unwrap();
    fs::create_dir(checkpoints.join("somebody's.partial")).unwrap();
    for name in ["run.json", "run.json.12-0.partial", "net.safetensors.12-1.partial"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    assert_eq!(list(folder.path()).unwrap().len(), 1);
    sweep(folder.path()).unwrap();
    assert_eq!(contents(folder.path()).unwrap().len(), 3, "the folder, run.json, and what is not the run's");
    let mut left: Vec<_> = fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["somebody's.partial", "step-00000009"]);
}

#[test]
fn a_failed_write_leaves_the_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let saved = write(folder.path(), None, state(9), &parts(), || Ok(())).unwrap();
    // A file in place of the folder makes the write fail for every user, root included.
    fs::write(saved.path.with_file_name("step-00000010.partial"), "").unwrap();
    let error = write(folder.path(), Some(&saved), state(10), &parts(), || Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    let message = error.to_string();
    assert!(message.contains("step 10 could not be saved; the last one is still there, "), "{message}");
    assert!(read_parts(&list(folder.path()).unwrap()[0]).is_ok());
}
