//! Integers as indices and labels.

use meganeura::TensorType;
use meganeura::loss::CrossEntropyOptions;
use meganeura::metric::Confusion;
use meganeura::prelude::*;

use super::{TYPES, tensor};
use crate::Outcome;

/// Integers with a sign select what indices do, and are checked as those are.
pub(super) fn indices(device: &Device) -> Outcome {
    let numbers: Vec<f32> = (0..12).map(|x| x as f32 * 0.5).collect();
    let table = Tensor::from_slice(device, [4, 3], &numbers)?;
    let (chosen, labels) =
        (Tensor::indices(device, [4, 1], &[2, 0, 1, 2])?, Tensor::indices(device, [4], &[0, 9, 2, 1])?);
    for dtype in TYPES {
        let tape = Tape::new(device);
        let x = tape.input(&table);
        let own = |numbers: &Tensor, marked: i64| {
            let numbers: Vec<_> = numbers.to_u32_vec()?.into_iter().map(i64::from).collect();
            let dims = if numbers[1] == 0 { vec![4, 1] } else { vec![4] };
            tensor(device, dtype, &dims, &numbers.iter().map(|&x| if x == 9 { marked } else { x }).collect::<Vec<_>>())
        };
        let (index, of) = (tape.input(&own(&chosen, 0)?), tape.input(&chosen));
        let ones = tape.input(&Tensor::full(device, [4, 1], 1.0)?);
        for (result, expected) in [
            (x.gather(1, &index), x.gather(1, &of)),
            (x.embedding(&index), x.embedding(&of)),
            (x.index_select(1, &index.reshape([4])), x.index_select(1, &of.reshape([4]))),
            (index.one_hot(3), of.one_hot(3)),
            (x.scatter_add(1, &index, &ones), x.scatter_add(1, &of, &ones)),
            (x.scatter(1, &index, &ones), x.scatter(1, &of, &ones)),
        ] {
            assert_eq!(result.to_vec()?, expected.to_vec()?);
        }
        // PyTorch's mark of an ignored label is -100.
        let options = |ignored| CrossEntropyOptions { ignored: Some(ignored), ..Default::default() };
        let expected = x.cross_entropy_with(&labels, &options(9)).item()?;
        let marked = own(&labels, -100)?;
        assert_eq!(x.cross_entropy_with(&marked, &options(u32::MAX)).item()?, expected);
        let error = x.cross_entropy(&marked).to_tensor().unwrap_err().to_string();
        assert!(error.contains("label 4294967295, or a number that is no `u32`, is out of range"), "{error}");
        let error = x.embedding(&tape.input(&own(&labels, 7)?)).to_tensor().unwrap_err().to_string();
        assert!(error.contains("index 7 is past the end, the table has 4 rows"), "{error}");
        // What is bound later is checked then; what the host does not know gives NaN.
        let lookup = device.compile((TensorType::new(dtype, Shape::from([4])), [4, 3]), |(i, x)| x.embedding(i))?;
        let error = lookup.call((&marked, &table)).unwrap_err().to_string();
        assert!(error.contains("which is out of range: there are 4 classes or rows"), "{error}");
        let computed = tape.input(&own(&labels, 1 << 30)?) * 2.0;
        let rows = x.embedding(&computed).to_vec()?;
        let known = rows[..3] == numbers[..3] && rows[9..] == numbers[6..9];
        assert!(known && rows[3..9].iter().all(|x| x.is_nan()), "{rows:?}");
        let mut confusion = Confusion::new(3)?.ignored(u32::MAX);
        confusion.update(&table, &marked)?;
        assert_eq!(confusion.rows().flatten().sum::<u64>(), 3);
    }
    Ok(())
}
