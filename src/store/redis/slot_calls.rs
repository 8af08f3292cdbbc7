//! The calls for slots: they are run again where the script lacks edges of calendars.

use super::reply::{Answer, Reply};
use super::request::{InLanes, Now, Request, Windows};
use super::{RedisStore, keys};
use crate::limit::LimitSet;
use crate::lock::lock;
use crate::store::{Lanes, Scope, StoreError};
use crate::time::wall_now;

/// How many times the script may ask for the edges of calendars: the worker's clock may be far off, and other limits of
/// a set may move a job to a period whose edges were not sent.
const MAX_CALENDAR_RETRIES: usize = 8;

impl RedisStore {
    pub(super) fn in_lanes<'a>(&self, scope: Scope<'_>, lanes: Lanes<'a>) -> Result<InLanes<'a>, StoreError> {
        let states = lanes.states()?;
        let all = lock(&self.histories);
        let history = all.get(scope.downstream);
        let known_windows = states
            .all
            .iter()
            .map(|(limit, key)| history.and_then(|history| history.window(limit, key)))
            .collect();
        Ok(InLanes { lanes, states, known_windows })
    }

    /// The windows that are sent first. Edges are those by this machine's clock, which is probably near the store's.
    pub(super) fn windows(&self, scope: Scope<'_>) -> Windows {
        let now = self.clock.as_ref().map_or_else(wall_now, |clock| clock.now());
        let known = lock(&self.histories).get(scope.downstream).map(|history| history.windows(scope.key));
        Windows { edges: (now, now), known: known.unwrap_or_default() }
    }

    /// Runs the script, again for each time that it lacks edges of calendars.
    pub(super) async fn run_script(
        &self,
        scope: Scope<'_>,
        mut request: Request<'_>,
    ) -> Result<Reply, StoreError> {
        let mut keys = self.keys(scope, request.limits);
        if let Some(in_lanes) = &request.in_lanes {
            keys.extend(keys::of(&self.prefix, scope, in_lanes.states.all.iter().copied()));
        }
        let now = self.now();
        if let Some(reply) = self.run_fast_script(scope, &keys, &request, now).await? {
            return Ok(reply);
        }
        if request.replica().is_some() {
            keys.push(keys::replicas(&self.prefix, scope));
        }
        for attempt in 0..MAX_CALENDAR_RETRIES {
            let call = |run| {
                let known_record = self.known_record(scope.downstream, run);
                self.scripts.reserve(&keys, &request, now, known_record.with_default_horizon(&request))
            };
            let packed: Vec<u8> = self.servers.invoke(scope.downstream, call).await?;
            let answer = Answer::read(&packed, request.all_limits().map(|(limit, _)| limit))
                .map_err(|detail| self.servers.unexpected(detail))?;
            match answer {
                Answer::Reply(reply) => return Ok(*reply),
                // The span by this machine's clock is dropped: it may be years off.
                Answer::Missing(from, to) if attempt == 0 => request.windows.edges = (from, to),
                Answer::Missing(from, to) => {
                    let edges = &mut request.windows.edges;
                    *edges = (edges.0.min(from), edges.1.max(to));
                }
            }
        }
        let detail = "it asks for the edges of a calendar again and again; is its clock right?";
        Err(self.servers.unexpected(detail.to_owned()))
    }

    /// Runs the fast script; `None` where it does not apply, and then nothing is decided yet.
    async fn run_fast_script(
        &self,
        scope: Scope<'_>,
        keys: &[String],
        request: &Request<'_>,
        now: Now,
    ) -> Result<Option<Reply>, StoreError> {
        let Some(script) = request.fast_script() else { return Ok(None) };
        let takes_turns = request.asker.is_some();
        let call = |run| {
            let known_record = self.known_record(scope.downstream, run);
            let numbers = request.fast(now, known_record.with_default_horizon(request));
            self.scripts.fast(script, keys, takes_turns, &numbers)
        };
        let answer = self.servers.invoke(scope.downstream, call).await?;
        Reply::fast(&answer, request.limits, takes_turns || script.answers_whole())
            .map_err(|detail| self.servers.unexpected(detail))
    }

    pub(super) fn keys(&self, scope: Scope<'_>, limits: &LimitSet) -> Vec<String> {
        keys::all(&self.prefix, scope, limits)
    }
}
