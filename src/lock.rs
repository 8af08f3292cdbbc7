//! The lock of a mutex, also after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A panic while it was locked counts for nothing: what is kept under these locks is whole after each statement
/// that changes it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
