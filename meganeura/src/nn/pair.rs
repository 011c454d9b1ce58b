//! Settings with a value for the vertical and one for the horizontal direction.

/// One number for both directions, or one for each: vertical first, then horizontal.
///
/// ```
/// use meganeura::nn::IntoPair;
///
/// assert_eq!(3.into_pair(), [3, 3]);
/// assert_eq!((3, 5).into_pair(), [3, 5]);
/// assert_eq!([3, 5].into_pair(), [3, 5]);
/// ```
pub trait IntoPair {
    /// The vertical and the horizontal number.
    fn into_pair(self) -> [usize; 2];
}

impl IntoPair for usize {
    fn into_pair(self) -> [usize; 2] {
        [self, self]
    }
}

impl IntoPair for [usize; 2] {
    fn into_pair(self) -> [usize; 2] {
        self
    }
}

impl IntoPair for (usize, usize) {
    fn into_pair(self) -> [usize; 2] {
        [self.0, self.1]
    }
}
