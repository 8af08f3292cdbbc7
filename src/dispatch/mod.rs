//! The way of a job: intake, lane, pacer, release clock, sink, settle.

mod source;

pub use source::{DeadLetter, Delivery, Report, RetryPolicy, Source, Ticket};
