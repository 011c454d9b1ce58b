//! Names that share memory: in the model, which then has a tie, and in the file.

use std::collections::BTreeMap;

use safetensors::SafeTensors;

use super::{with_header, *};

fn tied(value: f32) -> [Param; 3] {
    let param = |value| Param::new(Tensor::full(&Device::cpu(), [2], value).unwrap());
    let first = param(value);
    [first.tied(), param(value + 1.0), first]
}

/// The same values in tensors of their own.
fn apart(value: f32) -> [Param; 3] {
    tied(value).map(|param| Param::new(param.value()))
}

fn firsts(params: &[Param; 3]) -> [f32; 3] {
    params.each_ref().map(|param| param.value().to_vec().unwrap()[0])
}

#[test]
fn tied_tensors_are_stored_once_and_loading_makes_no_ties() {
    let bytes = tied(1.0).to_safetensors().unwrap();
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), 2);
    let mut net = apart(5.0);
    let report = net.load_safetensors(&bytes).unwrap();
    report.strict().unwrap();
    assert_eq!(
        (report.loaded, report.shared),
        (vec!["0".into(), "1".into(), "2".into()], vec![vec!["0".into(), "2".into()]])
    );
    assert!(!net[0].is_tied_to(&net[2]) && !net[0].is_tied_to(&net[1]));
    assert_eq!(firsts(&net), [1.0, 2.0, 1.0]);
    // A step of one leaves the other.
    let tape = crate::Tape::new(&Device::cpu());
    let grads = tape.backward(&tape.param(&net[2]).sum()).unwrap();
    crate::optim::Optimizer::step(&mut crate::optim::Sgd::new(1.0), &mut net[2], &grads).unwrap();
    assert_eq!(firsts(&net), [1.0, 2.0, 0.0]);
    // Loading into a model with the same ties loads each tensor once, and saving gives the same bytes.
    let mut again = tied(7.0);
    let report = again.load_safetensors(&bytes).unwrap();
    assert_eq!((report.loaded, report.shared), (vec!["0".to_owned(), "1".to_owned()], Vec::<Vec<String>>::new()));
    assert_eq!(again.to_safetensors().unwrap(), bytes);
    // The checkpoint of a run restores the model that was saved, ties included.
    let mut restored = apart(5.0);
    assert!(read_exactly(&restored, &bytes).unwrap().put(&mut restored).unwrap().shared.is_empty());
    assert!(restored[0].is_tied_to(&restored[2]) && !restored[0].is_tied_to(&restored[1]));
    assert_eq!(firsts(&restored), [1.0, 2.0, 1.0]);
}

#[test]
fn each_name_of_shared_memory_follows_the_rules_by_itself() {
    // Stored as `0`; the name `2` shares it.
    let bytes = tied(3.0).to_safetensors().unwrap();
    for (names, ignored) in [
        (Names::new().rename("0", "weight").ignore("1").ignore("2"), vec!["1", "2"]),
        (Names::new().rename("2", "weight").ignore("0").ignore("1"), vec!["0", "1"]),
        (Names::new().ignore("0").rename("2", "weight").ignore("1"), vec!["0", "1"]),
        // Both become one.
        (Names::new().rename("0", "weight").rename("2", "weight").ignore("1"), vec!["1"]),
    ] {
        let mut net = BTreeMap::from([("weight".to_owned(), apart(9.0)[0].clone())]);
        let report = net.load_safetensors_with(&bytes, &names).unwrap();
        report.strict().unwrap();
        assert_eq!(
            (report.loaded, report.ignored),
            (vec!["weight".to_owned()], ignored.into_iter().map(str::to_owned).collect())
        );
        assert_eq!(net["weight"].value().to_vec().unwrap(), [3.0; 2]);
    }
    // One name is split, the other is whole.
    let names = Names::new().split("0", ["a", "b"]).rename("2", "c").ignore("1");
    let part = || Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
    let whole = || Param::new(Tensor::zeros(&Device::cpu(), [2]).unwrap());
    let mut net =
        BTreeMap::from([("a", part()), ("b", part()), ("c", whole())].map(|(name, param)| (name.to_owned(), param)));
    let report = net.load_safetensors_with(&bytes, &names).unwrap();
    report.strict().unwrap();
    assert!(report.shared.is_empty() && net["c"].value().to_vec().unwrap() == [3.0; 2]);
    let error = net.load_safetensors_with(&bytes, &Names::new().rename("0", "c").rename("1", "c")).unwrap_err();
    assert!(error.to_string().contains("the rules make both `0` and `1` of the file `c`"), "{error}");
    // Data under a name that the model lacks is not lost if another name has it.
    let report = (whole(), whole()).load_safetensors(&bytes).unwrap();
    assert!(report.unexpected.is_empty());
    let report = [("1".to_owned(), whole())].into_iter().collect::<BTreeMap<_, _>>().load_safetensors(&bytes).unwrap();
    assert_eq!(report.unexpected, ["0", "2"]);
    // Tensors without a model have all names.
    let tensors = tensors_from_safetensors(&bytes, &Device::cpu()).unwrap();
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["0", "1", "2"]);
}

#[test]
fn shared_memory_is_kept_under_other_names() {
    let names = Names::new().rename("head.w", "0").rename("body.w", "1").rename("tail.w", "2");
    let bytes = tied(1.0).to_safetensors_with(&names).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut found = file.names();
    found.sort_unstable();
    assert_eq!(found, ["body.w", "head.w"]);
    let mut net = apart(5.0);
    let report = net.load_safetensors_with(&bytes, &names).unwrap();
    report.strict().unwrap();
    assert_eq!((report.shared, firsts(&net)), (vec![vec!["0".to_owned(), "2".to_owned()]], [1.0, 2.0, 1.0]));
    // Tied parameters that are parts of tensors in the file are stored at each of their places.
    let names = Names::new().split("all", ["0", "1", "2"]);
    let bytes = tied(1.0).to_safetensors_with(&names).unwrap();
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().tensor("all").unwrap().shape(), [6]);
    let mut model = tied(7.0);
    model.load_safetensors_with(&bytes, &names).unwrap().strict().unwrap();
    assert_eq!(model.each_ref().map(|param| param.value().to_vec().unwrap()[0]), [1.0, 2.0, 1.0]);
}

#[test]
fn a_tie_holds_against_a_file_that_agrees_and_refuses_one_that_does_not() {
    let mut model = tied(1.0);
    let with_last = |last: f32| {
        let [a, b, _] = apart(3.0);
        [a, b, Param::new(Tensor::full(&Device::cpu(), [2], last).unwrap())].to_safetensors().unwrap()
    };
    model.load_safetensors(&with_last(3.0)).unwrap().strict().unwrap();
    assert!(model[0].is_tied_to(&model[2]));
    let error = model.load_safetensors(&with_last(4.0)).unwrap_err();
    assert!(error.to_string().contains("`0` and `2` are tied in the model, but differ in the file"), "{error}");
    assert_eq!(model[0].value().to_vec().unwrap(), [3.0; 2]);
}

#[test]
fn shared_memory_that_does_not_fit_is_refused() {
    let tensor = |value| Tensor::full(&Device::cpu(), [2], value).unwrap();
    let mut net =
        (Param::new(tensor(1.0)), Buffer::new(tensor(2.0)), Param::new(Tensor::zeros(&Device::cpu(), [3]).unwrap()));
    let header = |alias: &str| {
        let tensor = r#""0":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        with_header(&format!(r#"{{"__metadata__":{{"{alias}":"0","format":"pt","elsewhere":"0"}},{tensor}}}"#), 8)
    };
    // The checkpoint of a run restores ties, and a buffer is no parameter.
    let error = read_exactly(&(net.0.clone(), net.1.clone()), &header("1"))
        .and_then(|loaded| loaded.put(&mut (net.0.clone(), net.1.clone())))
        .unwrap_err();
    assert!(error.to_string().contains("one is a parameter, the other a buffer"), "{error}");
    let error = net.load_safetensors(&header("2")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Checkpoint);
    assert!(error.to_string().contains("`2`: [2] in the file, [3]"), "{error}");
    assert_eq!((net.0.value().to_vec().unwrap(), net.1.value().to_vec().unwrap()), (vec![1.0; 2], vec![2.0; 2]));
    // A parameter and a buffer may have equal values.
    let report = net.load_safetensors(&header("1")).unwrap();
    assert_eq!(
        (report.loaded, report.shared),
        (vec!["0".to_owned(), "1".to_owned()], vec![vec!["0".to_owned(), "1".to_owned()]])
    );
    // Metadata of other programs does no harm.
    let report = net.load_safetensors(&header("3")).unwrap();
    assert_eq!((report.loaded, report.missing.len()), (vec!["0".to_owned()], 2));
}
