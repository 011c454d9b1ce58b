//! Settings with a number for each axis.

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
        [self; 2]
    }
}

impl IntoPair for [usize; 2] {
    fn into_pair(self) -> [usize; 2] {
        self
    }
}

impl IntoPair for (usize, usize) {
    fn into_pair(self) -> [usize; 2] {
        self.into()
    }
}

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
        self.into()
    }
}

/// A setting of a layer over `D` axes: one number for all of them, or one for each.
///
/// For two axes that is any [`IntoPair`], for three any [`IntoTriple`].
pub trait IntoExtents<const D: usize> {
    /// The number of each axis.
    fn into_extents(self) -> [usize; D];
}

impl IntoExtents<1> for usize {
    fn into_extents(self) -> [usize; 1] {
        [self]
    }
}

impl IntoExtents<1> for [usize; 1] {
    fn into_extents(self) -> [usize; 1] {
        self
    }
}

impl<T: IntoPair> IntoExtents<2> for T {
    fn into_extents(self) -> [usize; 2] {
        self.into_pair()
    }
}

impl<T: IntoTriple> IntoExtents<3> for T {
    fn into_extents(self) -> [usize; 3] {
        self.into_triple()
    }
}
