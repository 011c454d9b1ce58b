//! Memory of results that nobody holds any more.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::HostBuffer;
use crate::DType;

/// Buffers of earlier results, for later ones of the same size. Other memory would be zeroed first, and the system adds
/// a page at a time.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    /// The last one that came back is the last one.
    buffers: Mutex<VecDeque<HostBuffer>>,
}

/// The fewest bytes of a buffer that are worth keeping.
const LEAST: usize = 1 << 16;

/// The most bytes of all buffers that are kept.
const MOST: usize = 64 << 20;

fn bytes(buffer: &HostBuffer) -> usize {
    buffer.len() * buffer.dtype().bytes()
}

impl Spares {
    /// The buffer of this type and length that came back last. Its numbers are arbitrary.
    pub(crate) fn take(&self, dtype: DType, len: usize) -> Option<HostBuffer> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let at = buffers.iter().rposition(|buffer| buffer.dtype() == dtype && buffer.len() == len)?;
        buffers.remove(at)
    }

    /// Keeps a buffer, and frees those that came back first if all are too large.
    pub(crate) fn give(&self, buffer: HostBuffer) {
        if !(LEAST..=MOST).contains(&bytes(&buffer)) {
            return;
        }
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.push_back(buffer);
        let mut sum: usize = buffers.iter().map(bytes).sum();
        while sum > MOST {
            sum -= buffers.pop_front().map_or(sum, |buffer| bytes(&buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_a_size_is_taken_and_the_oldest_are_freed() {
        let spares = Spares::default();
        let full = |len, number| HostBuffer::F32(vec![number; len]);
        let large = MOST / 4 - LEAST / 2;
        for number in [1.0, 2.0] {
            spares.give(full(LEAST, number));
        }
        spares.give(full(1, 3.0));
        assert_eq!([spares.take(DType::F32, 1), spares.take(DType::U32, LEAST)], [None, None]);
        assert_eq!(spares.take(DType::F32, LEAST), Some(full(LEAST, 2.0)));
        // Each leaves no room for those before it.
        for number in [4.0, 5.0] {
            spares.give(full(large, number));
        }
        assert_eq!(spares.take(DType::F32, LEAST), None);
        assert_eq!(spares.take(DType::F32, large), Some(full(large, 5.0)));
        assert_eq!(spares.take(DType::F32, large), None);
        spares.give(full(MOST, 6.0));
        assert_eq!(spares.take(DType::F32, MOST), None);
    }
}
