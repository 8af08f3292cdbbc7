//! A configuration that is read again: values that take effect at once, and values that need a restart.

use std::collections::BTreeSet;

use paced::config::{DownstreamChanges, Reload};
use paced::dispatch::OnUnavailable;

use super::*;

const TEXT: &str = "\
[amqp]
prefix = 'p'
[plans.free]
limits = [{ rate = '1/s' }]
[plans.pro]
limits = [{ rate = '5/s' }]
[downstreams.a]
rate = '50/s'
limits = [{ algorithm = 'sliding-log', rate = '100/m' }]
revision = 1
[downstreams.a.http]
base_url = 'http://localhost/'
headers = { authorization = 'Bearer hunter2' }
[downstreams.a.lanes]
default_plan = 'free'
[downstreams.b]
rate = '7/s'
http.base_url = 'http://localhost/'
";

#[track_caller]
fn reload(from: &str, edits: &[(&str, &str)]) -> Reload {
    let new = edits.iter().fold(from.to_owned(), |text, (old, new)| {
        assert!(text.contains(old), "{old}");
        text.replacen(old, new, 1)
    });
    Scene::new(from).right().reload(&Scene::new(&new).right())
}

/// Edits, with the keys that take effect at once, the downstreams that come (+), go (-) and restart (=, with the key), and
/// the keys that need a restart.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a [&'a str], &'a [&'a str]);

/// The downstreams that come, go and restart, as in [`Case`].
fn moves(DownstreamChanges { added, removed, replaced }: &DownstreamChanges) -> Vec<String> {
    let restarts = |(name, keys): (&String, &BTreeSet<String>)| {
        keys.iter().map(|key| format!("={name} {key}")).collect::<Vec<_>>()
    };
    let come = added.iter().map(|name| format!("+{name}"));
    let go = removed.iter().map(|name| format!("-{name}"));
    come.chain(go).chain(replaced.iter().flat_map(restarts)).collect()
}

#[test]
fn each_key_counts_at_once_or_restarts_a_downstream_or_the_process() {
    let a = |text: &'static str| ("revision = 1\n", text);
    let cases: [Case<'_>; 29] = [
        (&[], &[], &[], &[]),
        // Another position or spelling is no change.
        (&[("[amqp]\n", "# a comment\n\n[amqp]\nurl = 'amqp://127.0.0.1:5672/%2f'\n")], &[], &[], &[]),
        (&[("rate = '50/s'", "rate = '20/s'")], &["downstreams.a.rate"], &[], &[]),
        (&[("'100/m'", "'200/m'")], &["downstreams.a.limits"], &[], &[]),
        (&[("rate = '50/s'\n", "")], &["downstreams.a.rate"], &[], &[]),
        (&[a("")], &["downstreams.a.revision"], &[], &[]),
        (&[a("revision = 2\n")], &["downstreams.a.revision"], &[], &[]),
        (&[a("concurrency = 5\n")], &["downstreams.a.concurrency", "downstreams.a.revision"], &[], &[]),
        (&[("'1/s'", "'2/s'")], &["plans.free.limits"], &[], &[]),
        (
            &[("default_plan = 'free'", "default_plan = 'pro'")],
            &["downstreams.a.lanes.default_plan"],
            &[],
            &[],
        ),
        (&[("default_plan = 'free'", "")], &["downstreams.a.lanes.default_plan"], &[], &[]),
        (&[a("revision = 1\nhorizon = '1s'\n")], &["downstreams.a.horizon"], &[], &[]),
        (&[("[amqp]", "[store]\non_unavailable = 'local'\n[amqp]")], &["store.on_unavailable"], &[], &[]),
        (&[a("revision = 1\non_unavailable = 'open'\n")], &["downstreams.a.on_unavailable"], &[], &[]),
        (
            &[a(
                "revision = 1\nretry = { max_attempts = 2, max_throttled = 5, on_unauthorized = [403], min_backoff = '2s', max_backoff = '3s', max_pause = '4s' }\n",
            )],
            &[
                "downstreams.a.retry.max_attempts",
                "downstreams.a.retry.max_backoff",
                "downstreams.a.retry.max_pause",
                "downstreams.a.retry.max_throttled",
                "downstreams.a.retry.min_backoff",
                "downstreams.a.retry.on_unauthorized",
            ],
            &[],
            &[],
        ),
        (
            &[a(
                "revision = 1\nmax_wait = '1h'\nretry = { max_age = '1d', on = [500, '503-504'], never = [503], status.500.max_attempts = 3 }\n",
            )],
            &[
                "downstreams.a.max_wait",
                "downstreams.a.retry.max_age",
                "downstreams.a.retry.never",
                "downstreams.a.retry.on",
                "downstreams.a.retry.status.500.max_attempts",
            ],
            &[],
            &[],
        ),
        (
            &[a(
                "revision = 1\nretry = { answers = [{ status = 409, is = 'retry' }], heed_remaining = true, max_cooldown = '5s' }\n",
            )],
            &[
                "downstreams.a.retry.answers",
                "downstreams.a.retry.heed_remaining",
                "downstreams.a.retry.max_cooldown",
            ],
            &[],
            &[],
        ),
        (&[("prefix = 'p'", "prefix = 'q'")], &[], &[], &["amqp.prefix"]),
        // A secret changed, which is shown masked before and after.
        (&[("hunter2", "hunter3")], &["downstreams.a.http.headers.authorization"], &[], &[]),
        (
            &[("[amqp]", "[admin]\ntoken = 'a'\nlisten = '127.0.0.1:0'\n[amqp]")],
            &["admin.token"],
            &[],
            &["admin.listen"],
        ),
        (&[("[amqp]", "[amqp]\ndeclare = false")], &[], &[], &["amqp.declare"]),
        (&[("[amqp]", "[store]\nkey_prefix = 'q'\n[amqp]")], &[], &[], &["store.key_prefix"]),
        (&[a("revision = 1\nqueue.prefetch = 5\n")], &[], &["=a downstreams.a.queue.prefetch"], &[]),
        (
            &[("base_url = 'http://localhost/'", "base_url = 'http://other/'")],
            &[],
            &["=a downstreams.a.http.base_url"],
            &[],
        ),
        (&[("[amqp]", "precision = 'coarse'\n[amqp]")], &[], &[], &["precision"]),
        (&[("downstreams.b", "downstreams.c")], &[], &["+c", "-b"], &[]),
        (
            &[("plans.pro", "plans.gold")],
            &[],
            &["=a plans.gold", "=a plans.pro", "=b plans.gold", "=b plans.pro"],
            &[],
        ),
        (
            &[("plans.pro", "plans.gold"), ("default_plan = 'free'", "default_plan = 'gold'")],
            &["downstreams.a.lanes.default_plan"],
            &["=a plans.gold", "=a plans.pro", "=b plans.gold", "=b plans.pro"],
            &[],
        ),
        (
            &[a("on_limit = 'reject'\nconcurrency = 5\n"), ("rate = '50/s'", "rate = '20/s'")],
            &["downstreams.a.concurrency", "downstreams.a.rate", "downstreams.a.revision"],
            &["=a downstreams.a.on_limit"],
            &[],
        ),
    ];
    for (edits, changed, moved, restart) in cases {
        let Reload { loaded, changed: live, downstreams, restart: later } = reload(TEXT, edits);
        assert_eq!(
            (live, moves(&downstreams), later),
            (owned(changed), owned(moved), owned(restart)),
            "{edits:?}"
        );
        // The configuration in effect is one like any other.
        let shown = show(&loaded);
        let tables: Vec<&str> = shown.lines().filter(|line| line.starts_with('[')).collect();
        let unique: std::collections::BTreeSet<&str> = tables.iter().copied().collect();
        assert_eq!(tables.len(), unique.len(), "{shown}");
    }
}

fn owned(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[test]
fn what_counts_at_once_is_in_effect_and_the_rest_is_as_it_was() {
    let reload = reload(
        TEXT,
        &[
            ("rate = '50/s'", "rate = '20/s'\nconcurrency = 5\nhorizon = '1s'"),
            ("revision = 1", "revision = 2\non_unavailable = 'open'"),
            ("'5/s'", "'9/s'"),
            ("prefix = 'p'", "prefix = 'q'\n[store]\non_unavailable = 'local'"),
            (
                "default_plan = 'free'",
                "default_plan = 'pro'\n[downstreams.a.retry]\nmax_pause = '1s'\nmax_attempts = 2",
            ),
            ("rate = '7/s'\n", "rate = '8/s'\nqueue.prefetch = 5\n"),
        ],
    );
    let settings = &reload.loaded.settings;
    let (a, b) = (&settings.downstreams["a"], &settings.downstreams["b"]);
    let rates = |set: &paced::LimitSet| set.iter().map(|limit| limit.rate().to_string()).collect::<Vec<_>>();
    assert_eq!(rates(&a.limits), ["20/s", "100/m"]);
    assert_eq!(rates(&a.plans[1].limits), ["20/s", "100/m", "9/s"]);
    assert_eq!(rates(&b.limits), ["8/s"]);
    assert_eq!((a.concurrency, a.horizon, a.revision), (5, Duration::from_secs(1), Some(2)));
    assert_eq!((a.retry.max_attempts, a.retry.max_pause), (2, Duration::from_secs(1)));
    assert_eq!((a.on_unavailable, b.on_unavailable), (OnUnavailable::Open, OnUnavailable::Local));
    assert_eq!(a.default_plan(), Some(1));
    assert_eq!((settings.amqp.prefix.as_str(), b.queue.prefetch), ("p", 5));
    assert_eq!(moves(&reload.downstreams), ["=b downstreams.b.queue.prefetch"]);
    assert_eq!(reload.restart, ["amqp.prefix"]);
    // When it is read once more, only what needs a restart still differs.
    let again = reload.loaded.reload(&reload.loaded);
    assert_eq!((again.changed.len(), again.restart.len()), (0, 0));
    assert!(again.downstreams.is_empty());
}

#[test]
fn where_a_plan_goes_all_downstreams_restart_without_it() {
    let reload = reload(TEXT, &[("[plans.pro]\nlimits = [{ rate = '5/s' }]\n", ""), ("'50/s'", "'20/s'")]);
    assert_eq!(reload.changed, ["downstreams.a.rate"]);
    assert_eq!(moves(&reload.downstreams), ["=a plans.pro", "=b plans.pro"]);
    let a = &reload.loaded.settings.downstreams["a"];
    let names: Vec<_> = a.plans.iter().map(|plan| plan.name.as_str()).collect();
    assert_eq!(names, ["free"]);
    let rates: Vec<_> = a.plans[0].limits.iter().map(|limit| limit.rate().to_string()).collect();
    assert_eq!(rates, ["20/s", "100/m", "1/s"]);
}

#[test]
fn one_that_comes_is_there_as_a_whole_and_one_that_goes_leaves_nothing() {
    let reload = reload(
        TEXT,
        &[("[downstreams.b]", "[downstreams.c]\nconcurrency = 3"), ("prefix = 'p'", "prefix = 'q'")],
    );
    let settings = &reload.loaded.settings;
    assert_eq!(settings.downstreams.keys().collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!((settings.downstreams["c"].concurrency, settings.amqp.prefix.as_str()), (3, "p"));
    let shown = show(&reload.loaded);
    assert!(shown.contains("[downstreams.c.http]") && !shown.contains("downstreams.b"), "{shown}");
    let back = reload.loaded.reload(&Scene::new(TEXT).right());
    assert_eq!((moves(&back.downstreams), back.restart), (owned(&["+b", "-c"]), owned(&[])));
}

#[test]
fn headers_in_files_count_together_with_the_host_that_they_were_written_for() {
    let text = "[downstreams.a]\nrate = '1/s'\n[downstreams.a.http]\nbase_url_file = 'base'\nproxy_file = 'proxy'\n\
                headers = { authorization_file = 'token' }\n";
    let with = |scene: Scene, name: &str| {
        let scene = scene.file("base", &format!("http://{name}/")).file("token", name);
        scene.file("proxy", &format!("http://{name}:3128"))
    };
    let parts = |loaded: &Loaded| {
        let http = &loaded.settings.downstreams["a"].http;
        [&http.base_url, http.proxy.as_ref().unwrap(), &http.headers[0].1]
            .map(|part| part.expose().to_owned())
    };
    let scene = with(Scene::new(text), "old");
    let old = scene.right();
    let scene = with(scene, "new");
    let Reload { loaded, changed, downstreams, restart } = old.reload(&scene.right());
    assert!(downstreams.is_empty());
    assert_eq!((changed, restart), (owned(&["downstreams.a.http.headers.authorization"]), owned(&[])));
    assert_eq!(parts(&loaded), ["http://new/", "http://new:3128", "new"]);
    // Another file is another host.
    let scene = scene.file("other", "http://other/").file("paced.toml", &text.replace("'base'", "'other'"));
    let Reload { loaded, downstreams, .. } = loaded.reload(&scene.right());
    assert_eq!(moves(&downstreams), ["=a downstreams.a.http.base_url"]);
    assert_eq!(parts(&loaded)[0], "http://other/");
}

const LANES: &str = "\
[plans.free]
limits = [{ rate = '1/s' }]
[plans.pro]
limits = [{ rate = '5/s' }]
[downstreams.a]
rate = '50/s'
http.base_url = 'http://localhost/'
[downstreams.a.lanes]
by = { tenant = 'header:paced-lane', end = 'routing-key:2' }
fair_by = 'tenant'
limits = [{ rate = '7/s', per = ['tenant'] }]
weights = { acme = 2 }
";

/// Limits of lanes would hold for all jobs of a plan, or be two states.
#[test]
fn where_lanes_come_or_go_or_have_other_states_the_downstream_restarts() {
    let [by, fair_by, rest] = [
        "by = { tenant = 'header:paced-lane', end = 'routing-key:2' }\n",
        "fair_by = 'tenant'\n",
        "limits = [{ rate = '7/s', per = ['tenant'] }]\nweights = { acme = 2 }\n",
    ];
    let (with, without) = (
        LANES.to_owned(),
        [by, fair_by, rest].iter().fold(LANES.to_owned(), |text, part| text.replace(part, "")),
    );
    let cases: [(&str, String); 5] = [
        ("lanes come", with.replace("'50/s'", "'60/s'").replace("'5/s'", "'6/s'")),
        ("lanes go", without.replace("'50/s'", "'60/s'").replace("'5/s'", "'6/s'")),
        ("of other values", with.replace("routing-key:2", "routing-key:3").replace("'7/s'", "'8/s'")),
        ("shared by others", with.replace("fair_by = 'tenant'", "fair_by = 'end'").replace("'5/s'", "'6/s'")),
        ("per others", with.replace("per = ['tenant']", "per = ['end']").replace("'50/s'", "'60/s'")),
    ];
    for (what, new) in cases {
        let old = if what == "lanes come" { &without } else { &with };
        let (old, new) = (Scene::new(old).right(), Scene::new(&new).right());
        let reload = old.reload(&new);
        let shown = |loaded: &Loaded| {
            let a = &loaded.settings.downstreams["a"];
            format!("{:?} {:?} {:?}", a.limits, a.plans, a.lanes)
        };
        assert_eq!(shown(&reload.loaded), shown(&new), "{what}");
        assert!(!reload.changed.iter().any(|key| key.starts_with("downstreams.a.lanes.")), "{what}");
        let moves = moves(&reload.downstreams);
        assert!(moves.iter().any(|key| key.starts_with("=a downstreams.a.lanes.")), "{what}: {moves:?}");
        assert!(reload.restart.is_empty(), "{what}: {:?}", reload.restart);
    }
}

#[test]
fn limits_and_weights_of_lanes_that_stay_count_at_once() {
    let edits = [
        ("'7/s'", "'8/s'"),
        ("acme = 2", "acme = 3"),
        ("fair_by = 'tenant'\n", "fair_by = 'tenant'\npause_per = ['end']\n"),
        ("[plans.pro]\nlimits = [{ rate = '5/s' }]\n", ""),
    ];
    let reload = reload(LANES, &edits);
    let changed = ["limits", "pause_per", "weights.acme"].map(|key| format!("downstreams.a.lanes.{key}"));
    assert_eq!(reload.changed, changed);
    assert_eq!((moves(&reload.downstreams), reload.restart.len()), (owned(&["=a plans.pro"]), 0));
    let a = &reload.loaded.settings.downstreams["a"];
    let rules = a.lanes.rules.as_ref().unwrap();
    assert_eq!((rules.weights["acme"], &rules.pause_per[..]), (3, &[0][..]));
    // The limits of lanes have the same numbers in all plans.
    let rates =
        |place: usize| a.plans[place].limits.iter().map(|limit| limit.rate().to_string()).collect::<Vec<_>>();
    assert_eq!(
        (rates(0), rates(1), a.plans.len()),
        (["50/s", "8/s", "1/s"].map(str::to_owned).to_vec(), ["50/s", "8/s"].map(str::to_owned).to_vec(), 2,)
    );
}
