//! The requests and answers of the admin API: one set of types for the daemon, the tools and the tests.
//!
//! | module | contents |
//! |---|---|
//! | this one | the endpoints, each with the types of its body and its answer; errors |
//! | [`state`] | what all downstreams are doing, over all replicas |
//! | `downstream` | one downstream: its limits, the rates set over them, its pauses |
//! | [`order`] | changes that operators order |
//! | [`values`] | weights and pauses of one value of lanes |
//! | [`letters`] | dead letters |
//! | [`find`] | where jobs are, and what they wait for |
//! | [`history`] | the last changes by operators |
//!
//! Clients depend on the JSON: `src/admin/api/tests/wire.txt` has it as text.

mod downstream;
pub mod find;
mod fleet;
pub mod history;
pub mod letters;
pub mod order;
mod parked;
mod parts;
pub mod state;
mod unclaimed;
pub mod values;

use std::marker::PhantomData;

use hyper::Method;
use serde::{Deserialize, Serialize};

pub use downstream::{
    Cancelled, Downstream, Downstreams, File, Limit, Override, Pause, Penalty, Rates, SetOverride, Source,
    StoredTerms,
};

/// An instant in epoch milliseconds, on the store's clock.
pub type Millis = i64;

/// A request of the API: its method, its path, and the types of its body `B` and of its answer `A`.
pub struct Endpoint<B, A> {
    /// The method.
    pub method: Method,
    /// The path, in which `{name}` stands for the downstream.
    pub path: &'static str,
    types: PhantomData<fn(B) -> A>,
}

impl<B, A> Endpoint<B, A> {
    const fn new(method: Method, path: &'static str) -> Self {
        Self { method, path, types: PhantomData }
    }
}

/// The state of all downstreams, replicas and servers.
pub const STATUS: Endpoint<(), state::State> = Endpoint::new(Method::GET, "/api/v1/status");
/// A stream of server-sent events, each with a state that has the downstreams that changed.
pub const EVENTS: Endpoint<(), state::State> = Endpoint::new(Method::GET, "/api/v1/events");
/// The jobs released in the last minutes.
pub const HISTORY: Endpoint<(), state::History> = Endpoint::new(Method::GET, "/api/v1/history");
/// All downstreams, from memory.
pub const DOWNSTREAMS: Endpoint<(), Downstreams> = Endpoint::new(Method::GET, "/api/v1/downstreams");
/// One downstream, as the store has it.
pub const DOWNSTREAM: Endpoint<(), Downstream> = Endpoint::new(Method::GET, "/api/v1/downstreams/{name}");
/// What one downstream is doing, as in [`STATUS`].
pub const DOWNSTREAM_STATUS: Endpoint<(), state::Downstream> =
    Endpoint::new(Method::GET, "/api/v1/downstreams/{name}/status");
/// Where jobs are, and what the first one that waits for a slot waits for; the query has the `id` of the jobs, or the `lane`
/// whose next job is meant.
pub const FIND: Endpoint<(), find::Found> = Endpoint::new(Method::GET, "/api/v1/downstreams/{name}/job");
/// Stops the releases.
pub const PAUSE: Endpoint<order::Pause, Downstream> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/pause");
/// Ends a pause.
pub const RESUME: Endpoint<order::Resume, Downstream> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/resume");
/// Starts counts again from 0.
pub const RESET: Endpoint<order::Reset, Downstream> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/reset");
/// Cancels jobs, or ends their cancellation.
pub const CANCEL: Endpoint<order::Cancel, Downstream> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/cancel");
/// The limits, and the rates set over them.
pub const RATES: Endpoint<(), Rates> = Endpoint::new(Method::GET, "/api/v1/downstreams/{name}/rate");
/// Sets a rate over a limit.
pub const SET_RATE: Endpoint<order::SetRate, Downstream> =
    Endpoint::new(Method::PUT, "/api/v1/downstreams/{name}/rate");
/// Restores the rate of the file.
pub const UNSET_RATE: Endpoint<order::UnsetRate, Downstream> =
    Endpoint::new(Method::DELETE, "/api/v1/downstreams/{name}/rate");
/// Sets the weight of a value of the part by which lanes share.
pub const SET_WEIGHT: Endpoint<values::SetWeight, Downstream> =
    Endpoint::new(Method::PUT, "/api/v1/downstreams/{name}/values");
/// Restores the weight of the file.
pub const UNSET_WEIGHT: Endpoint<values::UnsetWeight, Downstream> =
    Endpoint::new(Method::DELETE, "/api/v1/downstreams/{name}/values");
/// Stops the releases of jobs with a value.
pub const PAUSE_VALUE: Endpoint<values::PauseValue, Downstream> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/values/pause");
/// Ends the pause of a value.
pub const RESUME_VALUE: Endpoint<values::ResumeValue, Downstream> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/values/resume");
/// The last changes by operators.
pub const CHANGES: Endpoint<(), history::Changes> =
    Endpoint::new(Method::GET, "/api/v1/downstreams/{name}/changes");
/// The terms in the store, also those that cannot be read.
pub const TERMS: Endpoint<(), StoredTerms> = Endpoint::new(Method::GET, "/api/v1/downstreams/{name}/terms");
/// Puts the limits of the file of the replica that answers in force, also if those in force have a higher revision.
pub const FORCE_TERMS: Endpoint<order::ForceTerms, Downstream> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/terms/force");
/// Puts the limits of that file in place of all terms in the store, also of those that cannot be read.
pub const DROP_TERMS: Endpoint<order::DropTerms, Downstream> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/terms/drop");
/// Lists dead letters.
pub const LETTERS: Endpoint<(), letters::List> =
    Endpoint::new(Method::GET, "/api/v1/downstreams/{name}/dead");
/// Shows a dead letter with its body; the query has the `id` of its job.
pub const LETTER: Endpoint<(), letters::Whole> =
    Endpoint::new(Method::GET, "/api/v1/downstreams/{name}/dead/letter");
/// Publishes dead letters as jobs again.
pub const REPLAY_LETTERS: Endpoint<letters::Change, letters::Replayed> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/dead/replay");
/// Removes dead letters.
pub const PURGE_LETTERS: Endpoint<letters::Change, letters::Purged> =
    Endpoint::new(Method::POST, "/api/v1/downstreams/{name}/dead/purge");

/// The answer to a request that is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong, and what would be right.
    pub error: String,
}
