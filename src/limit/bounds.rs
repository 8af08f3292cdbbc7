//! The largest numbers of limits.

/// The most limits of one set.
pub const MAX_LIMITS: usize = 16;

/// The highest N of a log.
pub const LONGEST_LOG: u64 = 10_000;

/// The most jobs of one call.
pub const MAX_BATCH: usize = 1024;
