//! Settings with a value for each of three directions.

/// One number for all three directions, or one for each: depth, height, width.
///
/// ```
/// use meganeura::nn::IntoTriple;
///
/// assert_eq!(3.into_triple(), [3, 3, 3]);
/// assert_eq!((1, 3, 5).into_triple(), [1, 3, 5]);
/// assert_eq!([1, 3, 5].into_triple(), [1, 3, 5]);
/// ```
pub trait IntoTriple {
    /// The numbers of depth, height and width.
    fn into_triple(self) -> [usize; 3];
}

impl IntoTriple for usize {
    fn into_triple(self) -> [usize; 3] {
        [self; 3]
    }
}

impl IntoTriple for [usize; 3] {
    fn into_triple(self) -> [usize; 3] {
        self
    }
}

impl IntoTriple for (usize, usize, usize) {
    fn into_triple(self) -> [usize; 3] {
        [self.0, self.1, self.2]
    }
}
