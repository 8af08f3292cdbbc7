//! The numbers in the arguments and answers of scripts: packed doubles.

use crate::time::Micros;

/// A buffer of packed doubles. Each number is an integer below 2^53, so that none is rounded.
#[derive(Debug, Default)]
pub(super) struct Packed(Vec<u8>);

impl Packed {
    /// Creates an empty buffer with capacity for this many numbers.
    pub(super) fn with_capacity(numbers: usize) -> Self {
        Self(Vec::with_capacity(8 * numbers))
    }

    #[expect(clippy::cast_precision_loss, reason = "none of an integer below 2^53")]
    pub(super) fn put<const N: usize>(&mut self, numbers: [i64; N]) {
        for number in numbers {
            self.0.extend_from_slice(&(number as f64).to_le_bytes());
        }
    }

    /// Appends a count; one above the largest integer of a double is replaced by that.
    pub(super) fn put_count(&mut self, count: u64) {
        self.put([i64::try_from(count).unwrap_or(i64::MAX).min(Micros::MAX.0)]);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The number that a double holds.
#[expect(clippy::cast_possible_truncation, reason = "an integer below 2^53")]
pub(super) fn integer(double: [u8; 8]) -> i64 {
    f64::from_le_bytes(double) as i64
}

/// Reads exactly `N` doubles; `None` if there are more or fewer.
pub(super) fn doubles<const N: usize>(packed: &[u8]) -> Option<[i64; N]> {
    let (doubles, rest) = packed.as_chunks::<8>();
    let doubles: [[u8; 8]; N] = doubles.try_into().ok().filter(|_| rest.is_empty())?;
    Some(doubles.map(integer))
}

/// All packed doubles.
pub(super) fn all(packed: &[u8]) -> Vec<i64> {
    packed.as_chunks::<8>().0.iter().copied().map(integer).collect()
}
