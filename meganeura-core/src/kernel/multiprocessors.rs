//! The multiprocessors of a GPU, and the numbers of workgroups that keep them busy.

/// The multiprocessors of a device, also called compute units or cores, and what resides on one at a time.
///
/// Where a number of parts decides the bits of a result in full precision, kernels ask [`Multiprocessors::LARGE`]
/// instead of the device, so that all devices compute the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Multiprocessors {
    /// Their number.
    pub count: usize,
    /// Invocations that reside on one.
    pub invocations: usize,
    /// Bytes of workgroup memory that the workgroups on one share.
    pub memory: usize,
}

impl Multiprocessors {
    /// Those of NVIDIA's H100 and H200 through Vulkan, to which estimates of kernels are fitted. Assumed of discrete
    /// GPUs that do not report theirs.
    pub const LARGE: Self = Self { count: 132, invocations: 2048, memory: 48 << 10 };

    /// Assumed of a GPU on the host's chip that does not report its multiprocessors.
    #[cfg(any(feature = "gpu", test))]
    pub const INTEGRATED: Self = Self { count: 16, ..Self::LARGE };

    /// Assumed of a driver that computes on the CPU.
    #[cfg(any(feature = "gpu", test))]
    pub const SOFTWARE: Self = Self { count: 4, ..Self::LARGE };

    /// The number of workgroups that keeps the device busy with `each` on each multiprocessor. It is rounded down to a
    /// power of two, so that devices of about the same size choose the same kernels.
    #[must_use]
    pub const fn enough(&self, each: usize) -> usize {
        1 << (each * self.count).ilog2()
    }

    /// Bytes of workgroup memory with which so many workgroups reside on a multiprocessor.
    #[must_use]
    pub const fn memory_of(&self, workgroups: usize) -> usize {
        self.memory / workgroups
    }

    /// The number of workgroups that the device runs at once, if each has so many invocations and bytes of memory:
    /// at least one on each multiprocessor, and at most two, because the registers of tiles leave room for no more.
    #[must_use]
    pub const fn at_once(&self, invocations: usize, memory: usize) -> usize {
        let two_fit = 2 * invocations <= self.invocations && memory <= self.memory_of(2);
        if two_fit { 2 * self.count } else { self.count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_is_a_power_of_two_that_each_multiprocessor_shares() {
        let of = |device: Multiprocessors| [1, 2, 4, 8, 16].map(|each| device.enough(each));
        assert_eq!(of(Multiprocessors::LARGE), [128, 256, 512, 1024, 2048]);
        assert_eq!(of(Multiprocessors::INTEGRATED), [16, 32, 64, 128, 256]);
        assert_eq!(of(Multiprocessors { count: 96, ..Multiprocessors::LARGE }), [64, 128, 256, 512, 1024]);
        assert_eq!(Multiprocessors { count: 1, ..Multiprocessors::LARGE }.enough(1), 1);
    }

    #[test]
    fn two_workgroups_share_a_multiprocessor_where_both_fit() {
        let device = Multiprocessors::LARGE;
        assert_eq!(device.at_once(128, 24 << 10), 264);
        assert_eq!(device.at_once(128, (24 << 10) + 16), 132);
        assert_eq!(device.at_once(1024 + 32, 1024), 132);
    }
}
