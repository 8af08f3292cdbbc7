//! The certificates of the daemon's connections, which may be replaced while it runs, and when they end.

use std::collections::HashMap;
use std::mem::{self, Discriminant};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use metrics::{Gauge, gauge};
use paced::config::Settings;
use paced::episode::Episode;
use paced::lock::lock;
use paced::metric;
use paced::time::{Micros, wall_now};
use paced::tls::{Concern, ServerTls, Tls, TlsError, TlsOptions, Validity};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::watches::Refresh;

/// How often the same concern about the same certificate is logged.
const REPEAT: Duration = Duration::from_secs(86_400);

/// Files with a certificate that this process shows, which may be replaced while it runs.
pub(super) trait Files: Send + Sync {
    /// Checks the files, reads again those that have changed, and logs the result. It blocks meanwhile.
    fn refresh(&self);

    /// Whether they cannot be used, so the old contents stay in use.
    fn is_failing(&self) -> bool;

    /// From when to when the certificate in use is valid; `None` without a certificate.
    fn validity(&self) -> Option<Validity>;
}

impl Files for Tls {
    fn refresh(&self) {
        Self::refresh(self);
    }

    fn is_failing(&self) -> bool {
        Self::is_failing(self)
    }

    fn validity(&self) -> Option<Validity> {
        Self::validity(self)
    }
}

impl Files for ServerTls {
    fn refresh(&self) {
        Self::refresh(self);
    }

    fn is_failing(&self) -> bool {
        Self::is_failing(self)
    }

    fn validity(&self) -> Option<Validity> {
        Self::validity(self)
    }
}

/// The files of all settings. Those of downstreams come and go with reloads.
#[derive(Default)]
pub(crate) struct Handles {
    all: Vec<Arc<Watched>>,
    /// The handles for HTTP, which are among `all`.
    http: HashMap<TlsOptions, (Tls, Arc<Watched>)>,
}

/// The files that one or more settings name.
struct Watched {
    files: Box<dyn Files>,
    settings: Mutex<Vec<String>>,
    shown: Mutex<Shown>,
}

/// The state of a certificate in the metrics and the log.
struct Shown {
    validity: Option<Validity>,
    /// Whether it has been replaced since the start.
    is_renewed: bool,
    /// A kind of concern about one certificate, however much time is left.
    concern: Episode<(Validity, Discriminant<Concern>)>,
}

impl Handles {
    /// Adds the files of a setting, such as `amqp.tls`, if it has any.
    pub(super) fn add(&mut self, setting: &str, files: Option<impl Files + 'static>) {
        if let Some(files) = files {
            self.watch(setting.to_owned(), files);
        }
    }

    /// Adds the files of a setting, and exports when their certificate is valid. The check of the configuration has
    /// already warned of what is wrong with them.
    fn watch(&mut self, setting: String, files: impl Files + 'static) -> Arc<Watched> {
        let (files, settings) = (Box::new(files), Mutex::new(vec![setting]));
        let watched = Arc::new(Watched { files, settings, shown: Mutex::new(Shown::new()) });
        let _ = watched.show();
        self.all.push(Arc::clone(&watched));
        watched
    }

    /// TLS for HTTP with these options, which a setting has. All settings with equal options share one handle, so that
    /// their files are checked and read once.
    pub(super) fn http(&mut self, setting: String, options: &TlsOptions) -> Result<Tls, TlsError> {
        if let Some((tls, watched)) = self.http.get(options) {
            watched.add(setting);
            return Ok(tls.clone());
        }
        let tls = Tls::load_for_http(options.clone())?;
        let watched = self.watch(setting, tls.clone());
        self.http.insert(options.clone(), (tls.clone(), watched));
        Ok(tls)
    }

    /// Drops the files that no downstream of these settings has.
    pub(super) fn retain(&mut self, settings: &Settings) {
        for (options, (_, watched)) in &self.http {
            lock(&watched.settings).retain(|setting| names(settings, setting) == Some(options));
        }
        self.http.retain(|_, (_, watched)| !lock(&watched.settings).is_empty());
        self.all.retain(|watched| !lock(&watched.settings).is_empty());
    }

    /// The files of each setting, to be watched. Connections check their files themselves when they are opened. But
    /// the log must name a file that cannot be used as soon as it is there, and not when a connection is lost weeks
    /// later. The same holds for a certificate that ends. The admin server only depends on this watch.
    pub(super) fn watched(&self) -> impl Iterator<Item = Arc<dyn Refresh>> {
        self.all.iter().map(|watched| Arc::clone(watched) as Arc<dyn Refresh>)
    }
}

/// The options that a setting of a downstream names, such as `downstreams.billing.tls`.
fn names<'s>(settings: &'s Settings, setting: &str) -> Option<&'s TlsOptions> {
    let (name, table) = setting.strip_prefix("downstreams.")?.split_once('.')?;
    let downstream = settings.downstreams.get(name)?;
    match table {
        "tls" => downstream.tls.as_ref(),
        _ => downstream.http.oauth2.as_ref()?.tls.as_ref(),
    }
}

impl Refresh for Watched {
    fn refresh(self: Arc<Self>) -> BoxFuture<'static, ()> {
        let look = move || {
            self.files.refresh();
            if let Some(concern) = self.show() {
                self.log(concern);
            }
        };
        // Only a runtime that shuts down does not run it.
        Box::pin(spawn_blocking(look).map(drop))
    }

    fn is_failing(&self) -> bool {
        self.files.is_failing()
    }
}

impl Watched {
    /// Adds a setting that names these files too.
    fn add(&self, setting: String) {
        if let Some(validity) = lock(&self.shown).validity {
            export(&setting, validity);
        }
        let mut settings = lock(&self.settings);
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }

    /// Exports when the certificate is valid, and returns a concern about it that must be logged now.
    fn show(&self) -> Option<Concern> {
        let validity = self.files.validity()?;
        let mut shown = lock(&self.shown);
        if shown.validity != Some(validity) {
            lock(&self.settings).iter().for_each(|setting| export(setting, validity));
        }
        shown.news(validity, wall_now(), Instant::now())
    }

    fn log(&self, concern: Concern) {
        let setting = match lock(&self.settings).as_slice() {
            [first, more @ ..] if !more.is_empty() => format!("{first} and {} more", more.len()),
            settings => settings.concat(),
        };
        match concern {
            Concern::Expired(_) => tracing::error!(setting, "the certificate in cert_file {concern}"),
            _ => tracing::warn!(setting, "the certificate in cert_file {concern}"),
        }
    }
}

impl Shown {
    fn new() -> Self {
        Self { validity: None, is_renewed: false, concern: Episode::at_interval(REPEAT) }
    }

    /// The concern about the certificate in use that must be logged now: a new one at once, and an old one once a
    /// day. The first call returns none, since the check of the configuration has reported it.
    ///
    /// A certificate that was put in place while the process runs may live for less than two weeks, the time in which
    /// others must be renewed. Such a certificate is logged only once it should have been replaced.
    fn news(&mut self, validity: Validity, wall: Micros, now: Instant) -> Option<Concern> {
        let is_first = self.validity.is_none();
        self.is_renewed |= !is_first && self.validity != Some(validity);
        self.validity = Some(validity);
        let is_in_time = |concern: &Concern| {
            let ends = matches!(concern, Concern::EndsSoon { .. });
            ends && self.is_renewed && !validity.is_overdue(wall)
        };
        let Some(concern) = validity.concern(wall).filter(|concern| !is_in_time(concern)) else {
            self.concern.end();
            return None;
        };
        let is_due = self.concern.note_at((validity, mem::discriminant(&concern)), now);
        (is_due && !is_first).then_some(concern)
    }
}

/// Exports when the certificate of a setting is valid.
fn export(setting: &str, validity: Validity) {
    gauge_of(metric::CERTIFICATE_START.name, setting).set(float(validity.not_before()));
    gauge_of(metric::CERTIFICATE_EXPIRY.name, setting).set(float(validity.not_after()));
}

fn gauge_of(name: &'static str, setting: &str) -> Gauge {
    gauge!(name, "setting" => setting.to_owned())
}

/// Seconds of Unix time as metrics have them: exact until long after the last date that a certificate can have.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn float(seconds: u64) -> f64 {
    seconds as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const START: u64 = 1_700_000_000;

    /// A certificate as it is shown, and a clock.
    struct Bench {
        shown: Shown,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { shown: Shown::new(), start: Instant::now() }
        }

        /// What is logged this long after the start, in seconds, of a certificate that is valid in this time.
        fn news(&mut self, from: u64, until: u64, after: u64) -> Option<Concern> {
            let wall = Micros(i64::try_from(START + after).unwrap() * 1_000_000);
            let validity = Validity::new(START + from, START + until);
            self.shown.news(validity, wall, self.start + Duration::from_secs(after))
        }
    }

    #[test]
    fn each_thing_is_logged_once_and_again_each_day() {
        let mut bench = Bench::new();
        let end = 20 * DAY;
        assert_eq!(bench.news(0, end, 0), None);
        assert_eq!(bench.news(0, end, 6 * DAY), None, "two weeks are left");
        let soon = bench.news(0, end, 6 * DAY + 1);
        assert!(matches!(soon, Some(Concern::EndsSoon { .. })), "{soon:?}");
        assert_eq!(bench.news(0, end, 6 * DAY + 2), None);
        assert_eq!(bench.news(0, end, 7 * DAY), None);
        let again = bench.news(0, end, 7 * DAY + 1);
        assert!(matches!(again, Some(Concern::EndsSoon { .. })), "{again:?}");
        assert_eq!(bench.news(0, end, end + 1), Some(Concern::Expired(START + end)));
        assert_eq!(bench.news(0, end, end + 2), None);
        // It is renewed, too early at first.
        let next = (end + 10, end + 90 * DAY);
        assert_eq!(bench.news(next.0, next.1, end + 3), Some(Concern::NotYetValid(START + next.0)));
        assert_eq!(bench.news(next.0, next.1, end + 10), None);
    }

    #[test]
    fn what_the_configuration_has_reported_is_logged_the_day_after() {
        let mut bench = Bench::new();
        assert_eq!(bench.news(0, 0, 5), None);
        assert_eq!(bench.news(0, 0, 6), None);
        assert_eq!(bench.news(0, 0, 5 + DAY), Some(Concern::Expired(START)));
    }

    #[test]
    fn a_certificate_that_is_renewed_by_itself_is_logged_once_it_is_not() {
        let mut bench = Bench::new();
        let hours = |count: u64| count * 3600;
        assert_eq!(bench.news(0, DAY, 0), None);
        for renewed in (16..160).step_by(16) {
            let (from, until) = (hours(renewed), hours(renewed) + DAY);
            assert_eq!(bench.news(from, until, from), None, "{renewed}");
            assert_eq!(bench.news(from, until, from + hours(16)), None, "{renewed}");
        }
        // Nobody renews the last one.
        let last = hours(144);
        let concern = bench.news(last, last + DAY, last + hours(16) + 1);
        assert!(
            matches!(concern, Some(Concern::EndsSoon { within, .. }) if within < hours(8)),
            "{concern:?}"
        );
    }

    #[test]
    fn settings_with_equal_options_share_their_files() {
        let mut handles = Handles::default();
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/tls/ca.pem");
        let options = TlsOptions::default().with_ca_file(file);
        let other = options.clone().with_server_name("a.example");
        let one = handles.http("downstreams.a.tls".to_owned(), &options).unwrap();
        handles.add("amqp.tls", Some(Tls::load(options.clone()).unwrap()));
        let two = handles.http("downstreams.b.tls".to_owned(), &options).unwrap();
        let three = handles.http("downstreams.c.tls".to_owned(), &other).unwrap();
        assert!(one == two && one != three);
        let names = |handles: &Handles| -> Vec<String> {
            handles.all.iter().map(|watched| lock(&watched.settings).join(" ")).collect()
        };
        let shared = "downstreams.a.tls downstreams.b.tls";
        assert_eq!(names(&handles), [shared, "amqp.tls", "downstreams.c.tls"]);

        // The one goes, another one has other options, and the third one stays.
        let tls = |name: &str, more: &str| {
            format!(
                "[downstreams.{name}]\nrate = '1/s'\nhttp.base_url = 'https://localhost/'\n\
                 tls = {{ ca_file = '{file}'{more} }}\n"
            )
        };
        let text = format!("{}{}", tls("b", ""), tls("c", ", server_name = 'b.example'"));
        let settings = paced::config::load_text("paced.toml", &text, "".as_ref()).unwrap().settings;
        assert_eq!(settings.downstreams["b"].tls.as_ref(), Some(&options), "it has the same ones");
        handles.retain(&settings);
        assert_eq!(names(&handles), ["downstreams.b.tls", "amqp.tls"]);
        assert_eq!((handles.http.len(), handles.watched().count()), (1, 2));
    }
}
