//! Several datasets, one after the other.

use super::{Dataset, Examples, Fields};
use crate::Result;
use crate::error::{bail, here};

/// The examples of several datasets.
struct Joined<I, T> {
    parts: Vec<Dataset<I, T>>,
    /// The index of the first example of each part.
    starts: Vec<usize>,
    count: usize,
}

impl<I: Fields, T: Fields> Joined<I, T> {
    /// The part of an example, and its index there.
    fn find(&self, index: usize) -> (&Dataset<I, T>, usize) {
        let part = self.starts.partition_point(|&start| start <= index) - 1;
        (&self.parts[part], index - self.starts[part])
    }
}

impl<I: Fields, T: Fields> Examples for Joined<I, T> {
    type Inputs = I;
    type Targets = T;

    fn len(&self) -> usize {
        self.count
    }

    fn read(&self, index: usize) -> Result<(I, T)> {
        let (part, index) = self.find(index);
        part.get(index)
    }

    fn read_targets(&self, index: usize) -> Result<T> {
        let (part, index) = self.find(index);
        part.target(index)
    }
}

impl<I: Fields, T: Fields> Dataset<I, T> {
    /// All examples of several datasets, one dataset after the other. PyTorch's `ConcatDataset`.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let old = Dataset::new(vec![0.0; 4], [2], vec![0, 1])?;
    /// let new = Dataset::new(vec![1.0; 6], [2], vec![2, 2, 2])?;
    /// assert_eq!(Dataset::concat([old, new])?.targets()?, [0, 1, 2, 2, 2]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if there are more examples than can be counted in memory.
    #[track_caller]
    pub fn concat(datasets: impl IntoIterator<Item = Self>) -> Result<Self> {
        here(|| {
            let (mut parts, mut starts, mut count) = (Vec::new(), Vec::new(), 0_usize);
            for part in datasets.into_iter().filter(|part| !part.is_empty()) {
                starts.push(count);
                let Some(sum) = count.checked_add(part.len()) else {
                    bail!(OutOfMemory, "{count} and {} examples are too many for a dataset", part.len());
                };
                count = sum;
                parts.push(part);
            }
            Self::of(Joined { parts, starts, count })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn examples_keep_their_places() {
        let part = |labels: Vec<u32>| {
            let inputs = labels.iter().map(|&label| label as f32).collect();
            Dataset::new(inputs, [1], labels).unwrap()
        };
        let (first, _) = part(vec![1, 2, 3]).split_at(2).unwrap();
        let all = Dataset::concat([first, part(vec![]), part(vec![7]), part(vec![8, 9])]).unwrap();
        assert_eq!(all.targets().unwrap(), [1, 2, 7, 8, 9]);
        for (index, label) in [1, 2, 7, 8, 9].into_iter().enumerate() {
            let (input, target) = all.get(index).unwrap();
            assert_eq!((input.values(), target), (&[label as f32][..], label));
        }
        assert_eq!(all.get(5).unwrap_err().kind(), ErrorKind::Argument);
        assert!(Dataset::concat([part(vec![])]).unwrap().is_empty());
        // Parts of different shapes are an error of the batch that has both.
        let wide = Dataset::new(vec![0.0; 2], [2], vec![0]).unwrap();
        let both = Dataset::concat([part(vec![1]), wide]).unwrap();
        assert_eq!(both.batches(2).on(&crate::Device::cpu()).next().unwrap().unwrap_err().kind(), ErrorKind::Shape);
    }
}
