use paced::config;
use paced::job::{Message, Value, decode};

use super::*;
use crate::daemon;

const START: i64 = 1_760_000_040_000_000;
const SECOND: i64 = 1_000_000;

/// The forecast of jobs with these headers, a number of each.
fn forecast(downstream: &str, jobs: &[(u64, &[(&str, i64)])]) -> Ended {
    let text = format!("[downstreams.a]\nhttp.base_url = 'http://localhost/'\n{downstream}\n");
    let loaded = config::load_text("test", &text, std::path::Path::new("")).unwrap();
    let downstream = &loaded.settings.downstreams["a"];
    let rules = daemon::rules(&loaded.settings, downstream);
    let mut simulation = Simulation::new(downstream, Micros(START));
    for (line, (times, headers)) in jobs.iter().enumerate() {
        let header = |(name, value): &(&str, i64)| (format!("paced-{name}"), Value::Integer((*value).into()));
        let message = Message { headers: headers.iter().map(header).collect(), ..Message::default() };
        match decode(&message, &rules) {
            Ok(job) => simulation.add(&job, line as u64 + 1, *times),
            Err(rejection) => simulation.refuse(rejection.reason, &rejection.detail, line as u64 + 1, *times),
        }
    }
    simulation.run()
}

#[test]
fn an_even_pace_binds_all_but_the_first() {
    let ended = forecast("rate = '10/s'", &[(101, &[])]);
    assert_eq!((ended.first, ended.last), (Some(Micros(START)), Some(Micros(START + 10 * SECOND))));
    assert_eq!((ended.released, ended.dead.len()), (101, 0));
    let [span] = &ended.spans[..] else { panic!("{:?}", ended.spans) };
    assert_eq!((span.what.as_str(), span.jobs), ("leaky-bucket-0 (10/s)", 100));
}

#[test]
fn a_quota_binds_when_it_is_used_up_and_costs_count() {
    let limits =
        "rate = '10/s'\nlimits = [{ algorithm = 'fixed-window', rate = '100/min', name = 'minute' }]";
    // The start is a full minute.
    let ended = forecast(limits, &[(150, &[]), (10, &[("cost", 5)])]);
    assert_eq!(ended.released, 160);
    assert_eq!(ended.last, Some(Micros(START + 60 * SECOND + 5 * SECOND + 9 * SECOND / 2)));
    let what: Vec<&str> = ended.spans.iter().map(|span| span.what.as_str()).collect();
    let (pace, minute) = ("leaky-bucket-0 (10/s)", "minute (100/m)");
    assert_eq!(what, [pace, minute, pace]);
}

#[test]
fn jobs_that_would_be_dead_are_reported_with_their_reason() {
    let deadline = START / SECOND + 5;
    let jobs: [(u64, &[(&str, i64)]); 3] =
        [(30, &[]), (100, &[("deadline", deadline)]), (1, &[("cost", 100_000)])];
    let ended = forecast("rate = '10/s'", &jobs);
    assert_eq!(ended.released, 51, "those whose slots come within 5 s");
    assert_eq!(ended.dead["expired"].jobs, 79);
    assert_eq!((ended.dead["cost-too-large"].jobs, ended.dead["cost-too-large"].line), (1, 3));
    let waits = forecast("rate = '10/s'\nmax_wait = '2s'", &[(100, &[])]);
    assert_eq!((waits.released, waits.dead["queue-full"].jobs), (21, 79));
    let polices = forecast("rate = '10/s'\non_limit = 'reject'", &[(5, &[])]);
    assert_eq!((polices.released, polices.dead["rejected"].jobs), (1, 4));
}

#[test]
fn a_job_for_later_goes_at_its_time_or_behind_those_that_wait() {
    let at = START / SECOND + 3600;
    let ended = forecast("rate = '1/s'", &[(1, &[("not-before", at)]), (2, &[])]);
    assert_eq!((ended.released, ended.last), (3, Some(Micros(START + 3600 * SECOND))));
    let soon = START / SECOND + 2;
    let ended = forecast("rate = '1/s'", &[(1, &[("not-before", soon)]), (10, &[])]);
    assert_eq!((ended.released, ended.last), (11, Some(Micros(START + 10 * SECOND))));
}

/// `max_wait` counts from the time at which a job may go.
#[test]
fn a_job_for_later_waits_from_its_time_on() {
    let at = START / SECOND + 3600;
    let jobs: [(u64, &[(&str, i64)]); 2] = [(4, &[("not-before", at)]), (2, &[])];
    let ended = forecast("rate = '1/s'\nmax_wait = '2s'", &jobs);
    assert_eq!((ended.released, ended.last), (5, Some(Micros(START + 3602 * SECOND))));
    assert_eq!(ended.dead["queue-full"].jobs, 1);
    let far = START / SECOND + 400 * 86_400;
    let ended = forecast("rate = '1/s'", &[(1, &[("not-before", far)])]);
    assert_eq!((ended.released, ended.dead["malformed-header"].jobs), (0, 1));
}

/// A job goes in the place of its line, also once it has waited for its time.
#[test]
fn jobs_keep_their_places() {
    let (soon, deadline) = (START / SECOND + 2, START / SECOND + 3);
    let jobs: [(u64, &[(&str, i64)]); 2] = [(1, &[("not-before", soon), ("deadline", deadline)]), (10, &[])];
    let ended = forecast("rate = '1/s'", &jobs);
    assert_eq!((ended.released, ended.dead.len()), (11, 0), "{ended:?}");
}

/// What a job leaves of a window that is too small for it goes to those behind it, as the limits plan it.
#[test]
fn the_rest_of_a_window_goes_to_jobs_that_fit() {
    let limits = "limits = [{ algorithm = 'fixed-window', rate = '10/min', name = 'minute' }]";
    let jobs: [(u64, &[(&str, i64)]); 3] = [(1, &[("cost", 7)]), (1, &[("cost", 7)]), (3, &[])];
    let ended = forecast(limits, &jobs);
    assert_eq!((ended.released, ended.last), (5, Some(Micros(START + 60 * SECOND))));
    assert_eq!(ended.spans.iter().map(|span| span.jobs).sum::<u64>(), 1, "{:?}", ended.spans);
}

#[test]
fn each_limit_has_its_own_cost() {
    let limits = "limits = [{ algorithm = 'fixed-window', rate = '500/min', name = 'requests', cost = 1 }, \
                  { algorithm = 'fixed-window', rate = '30000/min', name = 'tokens', cost = 'header:tokens' }]";
    let text = format!("[downstreams.a]\nhttp.base_url = 'http://localhost/'\n{limits}\n");
    let loaded = config::load_text("test", &text, std::path::Path::new("")).unwrap();
    let downstream = &loaded.settings.downstreams["a"];
    let rules = daemon::rules(&loaded.settings, downstream);
    let mut simulation = Simulation::new(downstream, Micros(START));
    let headers = vec![("tokens".to_owned(), Value::Integer(1500))];
    let message = Message { headers, ..Message::default() };
    simulation.add(&decode(&message, &rules).unwrap(), 1, 40);
    let ended = simulation.run();
    assert_eq!((ended.released, ended.dead.len()), (40, 0));
    let [span] = &ended.spans[..] else { panic!("{:?}", ended.spans) };
    assert_eq!((span.what.as_str(), span.until), ("tokens (30000/m)", Micros(START + 60 * SECOND)));
}
