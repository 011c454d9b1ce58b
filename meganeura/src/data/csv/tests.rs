use super::*;
use crate::ErrorKind;

fn read<T: Columns>(csv: Csv<T>, text: &str) -> Result<Vec<(Array<f32>, T::Fields)>> {
    let dataset = csv.read_from("some.csv", text.as_bytes())?;
    (0..dataset.len()).map(|index| dataset.get(index)).collect()
}

#[test]
fn columns_are_found_by_their_names() {
    let text = "kind\theight\tnote\twidth\n1\t2.5\t\"a\tb\"\t3\n0\t\t\t4\n";
    let csv = || Csv::new([2]).columns(["width", "height"]).target_columns(["kind"]).separator(b'\t');
    let rows = read(csv().gaps(f32::NAN), text).unwrap();
    assert_eq!(rows[0], (Array::from(vec![3.0, 2.5]), 1));
    assert!(rows[1].0.values()[0] == 4.0 && rows[1].0.values()[1].is_nan() && rows[1].1 == 0);
    let message = |csv: Csv, text: &str| read(csv, text).unwrap_err().to_string();
    let error = message(csv(), text);
    assert!(error.contains("line 3, column 2: \"\" is not a finite number"), "{error}");
    let error = message(csv().columns(["width", "depth"]), text);
    assert!(error.contains("line 1: no column \"depth\" among [\"kind\", \"height\""), "{error}");
    let error = message(csv().columns(["width"]), text);
    assert!(error.contains("1 columns were named for an input of 2 numbers"), "{error}");
    let error = message(csv(), "kind\theight\twidth\twidth\n");
    assert!(error.contains("several columns \"width\""), "{error}");
    let error = message(csv(), "kind\theight\twidth\n1\t2\n");
    assert!(error.contains("line 2: 2 columns, where the first row names 3"), "{error}");
    let error = message(Csv::new([1]).columns(["a"]), "a,b\n");
    assert!(error.contains("goes with `Csv::target_columns`"), "{error}");
    let error = message(csv().gaps(0.0), "kind\theight\twidth\n\t1\t1\n");
    assert!(error.contains("is not a label"), "{error}");
    assert_eq!(read(csv().separator(b'"'), text).unwrap_err().kind(), ErrorKind::Argument);
}

#[test]
fn dates_are_days_from_the_first() {
    let csv = Csv::new([2]).targets([1]).divided_by(10.0).dates_from("2026-02-28");
    let rows = read(csv.clone(), "2026-03-01,20,2026-02-28T12:00Z\n\"2026-02-27 18:00\",1e1,3\n").unwrap();
    let row = |input: [f32; 2], target: f32| (Array::from(input.to_vec()), Array::from(vec![target]));
    assert_eq!(rows, [row([1.0, 2.0], 0.5), row([-0.25, 1.0], 3.0)]);
    let error = read(csv.clone(), "2026-02-29,1,2\n").unwrap_err().to_string();
    assert!(error.contains("line 1, column 1: \"2026-02-29\" is not a finite number or a date"), "{error}");
    let error = read(csv.dates_from("today"), "1,2,3\n").unwrap_err();
    assert!(error.kind() == ErrorKind::Argument && error.to_string().contains("not \"today\""), "{error}");
}

#[test]
fn rows_become_examples() {
    let csv = Csv::new([1, 1, 2]).divided_by(16.0);
    let input = |numbers: [f32; 2]| Array::new(numbers.to_vec(), [1, 1, 2]).unwrap();
    let expected = vec![(input([0.0, 1.0]), 3), (input([0.5, -0.25]), 0)];
    assert_eq!(read(csv.clone(), "0,16,3\n8,-4,0\n").unwrap(), expected);
    assert_eq!(read(csv.clone(), "0,16,3\r\n 8 , -4.0,0").unwrap(), expected);
    assert_eq!(read(csv.clone().header(), "a,b,label\n0,16,3\n8,-4,0\n").unwrap(), expected);
    assert_eq!(read(csv.clone().target_first(), "3,0,16\n0,8,-4\n").unwrap(), expected);
    assert_eq!(read(csv.clone(), "").unwrap(), []);
}

#[test]
fn cells_may_have_quotes() {
    let csv = Csv::new([1]).targets([1]);
    let expected = [(1.5, 2.0), (3.0, 4.0)].map(|(input, target)| (vec![input].into(), vec![target].into()));
    for text in
        ["\"1.5\",\"2\"\n\"3\",4\n", "\"1.5\",2\r\n3,\"4\"\r\n", "1.5,\"2\n\"\n\" 3\",\"4\"", "\u{feff}\"1.5\",2\n3,4"]
    {
        assert_eq!(read(csv.clone(), text).unwrap(), expected, "{text:?}");
    }
    // Commas, line breaks and quotes in names.
    let names = "\"width, in \"\"cm\"\"\",\"price\n(EUR)\"\n";
    assert_eq!(read(csv.clone().header(), &format!("{names}1.5,2\n3,\"4\"\n")).unwrap(), expected);
    for (text, part) in [
        ("1.5,\"2,5\"\n", "byte 4: line 1, column 2: \"2,5\" is not a finite number"),
        ("1.5,2\n3,\"\"\"4\"\n", "byte 8: line 2, column 2: \"\\\"4\" is not"),
        ("\"1.5\n\",2\n3,x", "byte 11: line 3, column 2: \"x\" is not"),
        ("1.5,2\n3,\"4\n5,6\n", "byte 8: line 2: a quote that does not end"),
    ] {
        let error = read(csv.clone(), text).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    let long = format!("1,\"{}", "2\n".repeat(70_000));
    let error = read(csv.clone(), &long).unwrap_err().to_string();
    assert!(error.contains("byte 0: a row of more than 65536 bytes") && error.len() < 200, "{error}");
}

#[test]
fn targets_may_be_numbers() {
    let csv = Csv::new([1]).targets([2]).divided_by(4.0);
    let expected = [(0.5, [3.0, -4.5]), (0.25, [0.0, 1.0])];
    let expected = expected.map(|(input, target)| (Array::from(vec![input]), Array::from(target.to_vec())));
    assert_eq!(read(csv.clone(), "2,3,-4.5\n1,0,1\n").unwrap(), expected);
    assert_eq!(read(csv.clone().target_first(), "3,-4.5,2\n0,1,1\n").unwrap(), expected);
    for (csv, text, part) in [
        (csv.clone(), "2,3", "line 1: 2 columns, 3 were expected: a target [2] and an input [1]"),
        (csv.clone(), "2,3,x", "line 1, column 3: \"x\" is not a finite number"),
        (Csv::new([1]).classes(2).targets([2]), "2,3,4", "`Csv::classes` is for labels"),
        (Csv::new([1]).targets([0]), "2", "a target needs at least one number"),
        (Csv::new([1]).targets([1; 8]), "2,3", "a target of shape [1, 1, 1, 1, 1, 1, 1, 1] leaves no axis"),
    ] {
        let error = read(csv.clone(), text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn errors_name_the_byte_the_line_and_the_column() {
    let csv = Csv::new([2]).classes(10);
    let long = "1".repeat(70_000);
    let cell = format!("1,{},3", "x".repeat(60_000));
    for (text, part) in [
        ("1,2,3\n1,2\n", "some.csv, byte 6: line 2: 2 columns, 3 were expected"),
        ("1,2,3,4", "byte 0: line 1: 4 columns"),
        ("1,2,3\n\n1,2,3", "byte 6: line 2: 0 columns"),
        ("\n", "line 1: 0 columns"),
        ("1,2,3\n1,x,3", "byte 8: line 2, column 2: \"x\" is not a finite number"),
        ("1,,3", "byte 2: line 1, column 2"),
        ("1,nan,3", "byte 2: line 1, column 2"),
        ("1,1e99,3", "byte 2: line 1, column 2"),
        ("1,2,10", "byte 4: line 1, column 3: \"10\" is not a label of 10 classes"),
        ("1,2,-1", "\"-1\" is not a label"),
        ("1,2,3.5", "\"3.5\" is not a label"),
        ("a,b,c\n1,2,3", "byte 0: line 1, column 1: \"a\""),
        (&long, "byte 0: a line of more than 65536 bytes"),
        (&cell, "xxx\"… is not a finite number"),
    ] {
        let error = read(csv.clone(), text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        assert!(error.to_string().contains(part) && error.to_string().len() < 200, "{part}: {error}");
    }
    assert!(read(csv.clone().divided_by(1e-30), "1e30,2,3").unwrap_err().to_string().contains("not a finite number"));
    assert_eq!(read(csv.clone().divided_by(0.0), "1,2,3").unwrap_err().kind(), ErrorKind::Argument);
    assert_eq!(read(Csv::new([0]), "3").unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(Csv::new([2]).read("no such file").unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn memory_that_runs_out_is_an_error() {
    let (csv, text) = (Csv::new([2]), "1,2,3\n".repeat(100));
    let mut failed = 0;
    while let (result, true) = crate::host::shortage::at(failed, || csv.clone().read_from("some.csv", text.as_bytes()))
    {
        let error = result.unwrap_err();
        assert!(error.to_string().starts_with("some.csv") && error.to_string().contains("no room"), "{error}");
        failed += 1;
    }
    assert!(failed > 100, "{failed}");
}

#[cfg(feature = "gzip")]
#[test]
fn the_unpacked_size_of_a_table_is_limited() {
    use std::io::Write;
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    // Zeros compress well, so a small file unpacks to a huge table.
    let row = format!("{0},{0},0\n", "0".repeat(30_000));
    (0..1200).for_each(|_| gz.write_all(row.as_bytes()).unwrap());
    let packed = gz.finish().unwrap();
    let error = Csv::new([2]).read_from("bomb.csv.gz", &packed[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    for part in ["bomb.csv.gz, byte ", "more than 67108864, the limit", "or raise `Csv::unpacked_limit`"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let error = Csv::new([2]).unpacked_limit(6000).read_from("bomb.csv.gz", &packed[..]).unwrap_err();
    assert!(error.to_string().contains("more than 6000, the limit"), "{error}");
    let whole = Csv::new([2]).unpacked_limit(1 << 30).read_from("table.csv.gz", &packed[..]).unwrap();
    assert_eq!(whole.len(), 1200);
}
