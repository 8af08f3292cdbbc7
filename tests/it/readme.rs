//! The snippets of the README and of docs/embed.md, run: they are what people try first.

use std::time::Duration;

use paced::config::{self, Sources};
use paced::store::{MemoryStore, RedisStore, Store};
use paced::time::{ManualClock, Micros};
use paced::{Limit, LimitSet, RedisOptions};

use crate::support::servers::redis;
use crate::support::{LONG, real_now, unique};

const README: &str = include_str!("../../README.md");
const EMBED: &str = include_str!("../../docs/embed.md");

mod worker {
    include!("readme/worker.rs");

    pub(super) async fn run(config: &str) {
        work(config).await.unwrap();
    }
}

mod shaper {
    include!("readme/shaper.rs");

    pub(super) async fn build(redis: Option<&str>) -> Shaper {
        shaper(redis).await.unwrap()
    }

    pub(super) async fn run(shaper: &Shaper) {
        later(shaper).await.unwrap();
    }
}

mod limiter {
    include!("readme/limiter.rs");

    pub(super) fn build() -> Limiter {
        limiter().unwrap()
    }

    pub(super) async fn run(limiter: &Limiter, caller: &str) {
        handle(limiter, caller).await.unwrap();
    }
}

/// The blocks of a language on a page.
fn blocks(page: &'static str, language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    let rest = page.split(begin.as_str()).skip(1);
    rest.map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_snippets_that_are_run_here_are_those_of_the_pages() {
    assert_eq!(blocks(README, "rust"), [include_str!("readme/worker.rs")]);
    let run = [include_str!("readme/shaper.rs"), include_str!("readme/limiter.rs")];
    assert_eq!(blocks(EMBED, "rust"), run);
    for page in [README, EMBED] {
        assert!(!page.contains("```rust,"), "each is run");
    }
}

/// The limits of a downstream of a block of TOML.
fn limits(toml: &str, downstream: &str) -> config::Downstream {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("paced.toml");
    std::fs::write(&file, toml).unwrap();
    for (name, secret) in [("billing.token", "Bearer secret"), ("admin.token", "0123456789abcdef")] {
        std::fs::write(folder.path().join(name), secret).unwrap();
    }
    let loaded = config::load(Sources::from_process(vec![file], vec![])).unwrap();
    loaded.settings.downstreams[downstream].clone()
}

/// When, in ms, the slots of this many calls lie that all come at once.
fn slots(limits: &LimitSet, calls: usize) -> Vec<u128> {
    let start = Micros(1_760_000_000_000_000);
    let store = MemoryStore::with_clock(std::sync::Arc::new(ManualClock::new(start)));
    let gate = store.handle("any", limits.clone()).unwrap();
    let slot = |_| gate.reserve("", 1, Duration::from_secs(86_400)).unwrap().since(start).as_millis();
    (0..calls).map(slot).collect()
}

#[test]
fn the_configuration_releases_what_it_says() {
    let toml = blocks(README, "toml");
    let slots_of = slots(&limits(toml[0], "billing").limits, 1001);
    assert_eq!(slots_of[..4], [0, 20, 40, 60], "50/s");
    assert_eq!(slots_of[999], 19_980, "1 000 of them");
    assert!(slots_of[1000] >= 60_000, "in a minute: {}", slots_of[1000]);

    let search =
        limits(&format!("{}\n[downstreams.search.http]\nbase_url = 'http://a/'\n", toml[1]), "search");
    let slots_of = slots(&search.limits, 100);
    assert_eq!(slots_of[1], 50, "20/s");
    assert_eq!(slots_of[99] - slots_of[98], 200, "300/minute behind its 50 tokens");
    let rates: Vec<String> = search.limits.iter().map(paced::terms::rate_text).collect();
    assert_eq!(rates, ["20/s", "300/m", "1000/h", "500000/month"]);
    let free = &search.plans[0];
    assert_eq!((free.name.as_str(), slots(&free.limits, 2)[1]), ("free", 500));
    let names: Vec<&str> = free.limits.iter().map(Limit::name).collect();
    assert_eq!(names.len(), 6, "those of the downstream, and those of the plan: {names:?}");
}

#[tokio::test]
async fn a_worker_uses_the_configuration_and_informs_the_others() {
    let (folder, prefix) = (tempfile::TempDir::new().unwrap(), unique("readme"));
    let (file, url) = (folder.path().join("paced.toml"), redis().await.url());
    let toml = format!(
        "[store]\nurl = '{url}'\nkey_prefix = '{prefix}'\n[downstreams.billing]\nrate = '5/s'\n\
         [downstreams.billing.http]\nbase_url = 'http://127.0.0.1:1/'\n"
    );
    std::fs::write(&file, toml).unwrap();
    let options = RedisOptions::default().with_timeouts(LONG, LONG).with_key_prefix(prefix);
    let store = RedisStore::open(&url, options).unwrap();
    let begun = store.read_record("billing").await.unwrap().now;
    let start = real_now();
    worker::run(file.to_str().unwrap()).await;
    assert!(start.elapsed() >= Duration::from_millis(200), "two calls at 5/s");
    let record = store.read_record("billing").await.unwrap();
    let penalty = Duration::from_secs(5);
    let ends = begun.plus(penalty)..=record.now.plus(penalty);
    assert!(ends.contains(&record.status.penalty), "{:?}, not in {ends:?}", record.status.penalty);
    assert!(record.terms.unwrap().contains("20/s"), "the rate that it set");
}

#[tokio::test]
async fn a_shaper_without_a_configuration_keeps_its_pace() {
    let url = redis().await.url();
    for redis in [None, Some(url.as_str())] {
        let built = shaper::build(redis).await;
        let start = real_now();
        for _ in 0..4 {
            built.acquire("tenant-42").await.unwrap();
        }
        shaper::run(&built).await;
        built.acquire("tenant-42").await.unwrap();
        // A burst of 5, and one 20 ms later. Nobody else uses this server and this name.
        assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_limiter_limits() {
    let (limiter, start) = (limiter::build(), real_now());
    for _ in 0..20 {
        limiter::run(&limiter, "one").await;
    }
    // 10/s: a unit comes back in 100 ms.
    let denied = limiter.check("one").await.unwrap();
    assert!(!denied.allowed || start.elapsed() > Duration::from_millis(100), "{denied:?}");
    assert!(limiter.check("other").await.unwrap().allowed);
}
