//! An API that counts ten requests in any second, with and without a margin.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::figures::{Bound, Figure, Section, Unit};
use crate::fleet;
use crate::stage::Stage;
use crate::support::api::{Answer, Api, Arrival};
use crate::support::count::effective_rate;
use crate::support::poll;
use crate::support::publish::{Job, publish};
use crate::support::site::compare;

pub const NAME: &str = "margin";

const REPLICAS: usize = 2;
/// The API accepts this many requests in any second.
const COUNT: usize = 10;
const SECOND: u64 = 1_000_000_000;
/// Twice as long as any run takes, unless jobs are lost.
const PATIENCE: Duration = Duration::from_secs(150);

const REFUSED: Figure = Figure::highest("answers of 429", Unit::Count);
const LOST: Figure = Figure::highest("jobs lost", Unit::Count);
const CLOSEST: Figure = Figure::median("shortest time from a request to the tenth after it", Unit::Millis);
const RATE: Figure = Figure::median("requests per second", Unit::Plain(2));

/// A limit of 10/s, and the number of jobs.
struct Stretch {
    column: &'static str,
    limit: &'static str,
    jobs: usize,
    /// Whether no request may be refused.
    judged: bool,
}

const STRETCHES: [Stretch; 2] = [
    Stretch { column: "a margin of 50 ms", limit: "rate = '10/s', margin = '50ms'", jobs: 600, judged: true },
    Stretch { column: "no margin", limit: "rate = '10/s'", jobs: 200, judged: false },
];

pub async fn run(stage: &Stage) -> Result<Section, String> {
    let mut section = Section::new(
        NAME,
        "An API that counts in any second",
        "The API answers 429 to a request if it has accepted ten requests within the last 1.000 s. It counts when a \
         request arrives. Two replicas share a limit of 10/s, with a margin for 600 jobs, and without one for 200. The \
         shortest time from a request to the tenth after it shows the jitter of arrivals. Without any jitter it is \
         1 050 ms with the margin, and 1 000 ms without one. A release may be late by 50 ms, so a machine that stalls \
         has refusals in spite of the margin.",
    );
    for run in 1..=stage.runs {
        for stretch in &STRETCHES {
            eprintln!("  margin, run {run}: {}", stretch.column);
            measure(stage, stretch, &mut section).await?;
        }
        section.runs = run;
    }
    Ok(section)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn measure(stage: &Stage, stretch: &Stretch, section: &mut Section) -> Result<(), String> {
    let &Stretch { column, limit, jobs, judged } = stretch;
    let api = Api::try_start(0).map_err(|error| format!("no API: {error}"))?;
    let accepted = Accepted::count(&api);
    let site = stage.site(NAME);
    let table = format!("[downstreams.bench]\nlimits = [{{ {limit} }}]\nhttp.base_url = '{}'\n", api.url());
    let daemons = fleet::start(&site, &vec![site.store.clone(); REPLICAS], |_| table.clone()).await?;
    publish(&site.amqp, &site.prefix, "bench", Job::many("job", jobs)).await;
    let all = || async { (accepted.len() >= jobs).then_some(()) };
    // Those that did not come count as lost.
    let _ = poll(PATIENCE, all).await;
    fleet::end(daemons).await?;

    let (accepted, stamps) = (accepted.arrivals(), api.stamps());
    let refused = (stamps.len() - accepted.len()) as f64;
    let lost = compare("job", jobs, &accepted).lost.len() as f64;
    if judged {
        section.judge(column, REFUSED, refused, Bound::AtMost(0.0));
    } else {
        section.note(column, REFUSED, refused);
    }
    section.judge(column, LOST, lost, Bound::AtMost(0.0));
    let spans = stamps.windows(COUNT + 1).map(|window| window[COUNT] - window[0]);
    section.note(column, CLOSEST, spans.min().map(|span| span as f64 / 1e6));
    section.note(column, RATE, effective_rate(&stamps));
    Ok(())
}

/// The requests that the API has accepted.
#[derive(Clone, Default)]
struct Accepted(Arc<Mutex<Vec<Arrival>>>);

impl Accepted {
    /// Makes the API accept [`COUNT`] requests in any second.
    fn count(api: &Api) -> Self {
        let accepted = Self::default();
        let counted = accepted.clone();
        api.rule(move |arrival| {
            let mut accepted = counted.lock();
            let tenth = accepted.len().checked_sub(COUNT).map(|tenth| accepted[tenth].at);
            if tenth.is_some_and(|tenth| arrival.at < tenth + SECOND) {
                return Answer::status(429);
            }
            accepted.push(arrival.clone());
            Answer::ok()
        });
        accepted
    }

    fn len(&self) -> usize {
        self.lock().len()
    }

    fn arrivals(&self) -> Vec<Arrival> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
