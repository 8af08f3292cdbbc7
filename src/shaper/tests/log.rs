//! Tests of the log events that programs with the embedded library see.

use std::sync::{Arc, Mutex};

use tracing::span::{Attributes, Id};
use tracing::{Event, Instrument as _, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use super::*;

/// The span of each event, by its name and fields.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let shown = format!("{} {}", span.name(), attributes.values());
        span.extensions_mut().insert(shown);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let names = context.event_scope(event).into_iter().flatten();
        let names = names.filter_map(|span| span.extensions().get::<String>().cloned());
        self.0.lock().unwrap().push(names.collect::<Vec<_>>().join(" in "));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_logged_of_a_downstream_is_inside_its_span_and_in_no_other() {
    // While a process has one subscriber alone, the first thread that reaches an event decides for all threads whether
    // the event is wanted, and a thread of another test has no subscriber. With a second one, all subscribers are asked.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let bench = Bench::new();
    let shaper = builder("10/s", &bench).build().unwrap();
    let request = tracing::info_span!("request");
    shaper.acquire("any").instrument(request).await.unwrap();
    shaper.penalize(ms(2000)).await.unwrap();
    shaper.acquire("any").await.unwrap();
    let logged = spans.0.lock().unwrap().clone();
    assert!(!logged.is_empty(), "a pause is logged");
    for span in logged {
        assert!(span.starts_with("downstream ") && span.contains("billing"), "{span}");
        assert!(!span.contains("request"), "the task outlives the request that started it: {span}");
    }
}
