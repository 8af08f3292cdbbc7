//! The whole screen, as it is on small and on large terminals, against the files in `snapshots`.
//!
//! `PACED_WRITE_SNAPSHOTS=1` writes them anew. Look at what changed before you commit them.

use std::path::Path;

use paced::api::state::{Orphan, State};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::draw;
use super::view::{Change, Last, Mode, Order, View, Wish};

const NOW: i64 = 1_764_000_000_000;
const SIZES: [(u16, u16); 2] = [(80, 24), (200, 60)];

fn downstream(name: &str, rate: f64, more: Value) -> Value {
    let mut downstream = json!({
        "name": name, "rate_limit": 50.0, "rate": rate,
        "limits": [{"name": "leaky-bucket-0", "algorithm": "leaky-bucket", "rate": "50/s"}],
        "overrides": [], "failures": [], "replicas": [],
        "binding": {"reason": "idle", "since": NOW - 61_000, "text": "nothing to do"},
        "waiting": 0, "delayed": 0, "retrying": 0, "held": 0, "sending": 0, "settling": 0,
        "queued": 0, "parked": 0, "dead": 0, "released": 0, "delivered": 0,
    });
    let fields = more.as_object().unwrap().clone();
    downstream.as_object_mut().unwrap().extend(fields);
    downstream
}

fn state(downstreams: Vec<Value>) -> State {
    let replica = |id: &str, is_me: bool| {
        json!({
            "id": id, "host": "host-1", "pid": 1, "version": "0.1.0", "started_at": NOW - 3_600_000, "seen_at": NOW,
            "is_me": is_me, "amqp": true, "store": true,
        })
    };
    let state = json!({
        "now": NOW, "replica": "a", "version": "0.1.0", "can_change": true, "unroutable": 3,
        "amqp": {"connected": true}, "store": {"connected": true, "kind": "redis"},
        "replicas": [replica("a", true), replica("b", false)], "downstreams": downstreams,
    });
    serde_json::from_value(state).unwrap()
}

/// One downstream at its limit, one that is paused, one whose API fails.
fn three() -> State {
    let share = |id: &str| json!({"id": id, "waiting": 300, "held": 25, "sending": 4, "rate": 24.9, "reason": "limit"});
    state(vec![
        downstream(
            "billing",
            49.8,
            json!({
                "limits": [
                    {"name": "leaky-bucket-0", "algorithm": "leaky-bucket", "rate": "50/s", "file_rate": "60/s"},
                    {"name": "quota-1", "algorithm": "quota", "rate": "10000/d", "remaining": 812, "of": 10_000,
                     "whole_at": NOW + 28_800_000},
                ],
                "overrides": [{"limit": "leaky-bucket-0", "rate": "50/s", "by": "127.0.0.1:40000",
                    "reason": "they are migrating", "set_at": NOW - 600_000, "until": NOW + 6_600_000}],
                "binding": {"reason": "limit", "limit": "leaky-bucket-0", "since": NOW - 185_000,
                    "text": "the limit leaky-bucket-0 (50/s)"},
                "waiting": 600, "delayed": 3, "retrying": 1, "held": 50, "sending": 8, "settling": 2,
                "queued": 123_456, "parked": 17, "dead": 2, "released": 90_000, "delivered": 89_990,
                "oldest": NOW - 12_000, "next_slot": NOW + 20, "through_at": NOW + 2_400_000,
                "lateness": {"p50_us": 31, "p99_us": 160}, "replicas": [share("a"), share("b")],
            }),
        ),
        downstream(
            "crm",
            0.0,
            json!({
                "pause": {"by": "127.0.0.1:40000", "reason": "maintenance", "at": NOW - 60_000},
                "binding": {"reason": "paused", "since": NOW - 60_000,
                    "text": "paused by 127.0.0.1:40000 until somebody resumes: maintenance"},
                "waiting": 40, "queued": 7,
            }),
        ),
        downstream(
            "search",
            0.3,
            json!({
                "failing": {"since": NOW - 95_000, "kind": "connect api:443", "attempts": 35,
                    "detail": "connection refused \u{1b}[2J(os error 111)",
                    "kinds": [{"kind": "connect api:443", "count": 31}, {"kind": "429", "count": 4}]},
                "failures": [
                    {"at": NOW - 1_000, "kind": "connect api:443", "count": 31, "detail": "connection refused"},
                    {"at": NOW - 9_000, "kind": "429", "count": 4, "detail": "the downstream answered 429",
                     "response": "{\n  \"error\": \"slow\u{1b}[2J down\"\n}"},
                ],
                "binding": {"reason": "unreachable", "since": NOW - 95_000, "text": "the API cannot be reached"},
                "waiting": 90, "retrying": 12, "sending": 1, "parked": null, "dead": null,
            }),
        ),
    ])
}

fn view(state: &State) -> View {
    let mut view = View::new(String::new(), true, NOW - 30_000);
    for second in (0..30).rev() {
        view.on_answer(state, NOW - second * 1000);
    }
    view
}

fn press(view: &mut View, state: &State, codes: &[KeyCode]) {
    for code in codes {
        assert_eq!(view.on_key(KeyEvent::from(*code), Some(state), 24), Wish::Stay, "{code:?}");
    }
}

fn screen(view: &View, state: Option<&State>, (width, height): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, view, state)).unwrap();
    terminal
}

fn text(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let lines = buffer.content.chunks(width).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

/// Compares the screen with its file, for each size.
fn check(name: &str, view: &View, state: Option<&State>) {
    for (width, height) in SIZES {
        let drawn = text(&screen(view, state, (width, height)));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/top/snapshots");
        let file = folder.join(format!("{name}-{width}x{height}.txt"));
        if std::env::var_os("PACED_WRITE_SNAPSHOTS").is_some() {
            std::fs::write(&file, &drawn).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        let lines = expected.lines().zip(drawn.lines()).enumerate();
        let differences: Vec<String> = lines
            .filter(|(_, (expected, drawn))| expected != drawn)
            .map(|(line, (expected, drawn))| format!("line {}\n- {expected}\n+ {drawn}", line + 1))
            .collect();
        assert!(
            expected == drawn,
            "{} differs (PACED_WRITE_SNAPSHOTS=1 writes it anew):\n{}\n\nthe whole screen:\n{drawn}",
            file.display(),
            differences.join("\n")
        );
    }
}

#[test]
fn three_downstreams() {
    let state = three();
    check("three", &view(&state), Some(&state));
}

#[test]
fn what_nobody_serves_is_counted() {
    let mut state = three();
    let orphan = |name: &str| Orphan { name: name.to_owned(), since: None };
    for (names, expected) in [(&["old"][..], "  1 orphan  "), (&["old", "older"], "  2 orphans  ")] {
        state.unclaimed.orphans = names.iter().copied().map(orphan).collect();
        let drawn = text(&screen(&view(&state), Some(&state), (200, 60)));
        assert!(drawn.lines().next().unwrap().contains(expected), "{drawn}");
    }
}

#[test]
fn many_downstreams_are_scrolled() {
    let some = (0..60).map(|n| downstream(&format!("downstream-{n:02}"), f64::from(n) / 1.2, json!({})));
    let state = state(some.collect());
    let mut view = view(&state);
    press(&mut view, &state, &[KeyCode::PageDown, KeyCode::PageDown, KeyCode::Down, KeyCode::Char('j')]);
    check("many", &view, Some(&state));
    press(&mut view, &state, &[KeyCode::End, KeyCode::Up]);
    assert_eq!(view.selected(&view.shown(&state)), 58);
    press(&mut view, &state, &[KeyCode::Home, KeyCode::Up]);
    assert_eq!(view.selected(&view.shown(&state)), 0);
}

#[test]
fn what_needs_somebody_comes_first() {
    let mut state = three();
    let names = |state: &State| {
        let shown = view(state).shown(state);
        shown.iter().map(|downstream| downstream.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&state), ["search", "billing", "crm"], "an API that fails, dead letters, a pause");
    state.downstreams[0].queues.dead = Some(0);
    assert_eq!(names(&state), ["search", "crm", "billing"]);
    state.downstreams[2].health.failing = None;
    assert_eq!(names(&state), ["search", "crm", "billing"], "it cannot be reached");
    state.downstreams[2].binding.reason = "idle".to_owned();
    assert_eq!(names(&state), ["crm", "billing", "search"]);
}

#[test]
fn a_change_is_ordered_when_the_user_confirms_it() {
    let mut state = three();
    let [p, r, y] = ['p', 'r', 'y'].map(KeyCode::Char);
    let pause = Change { order: Order::Pause, downstream: "billing".to_owned() };
    for (before, in_details) in [(Mode::Table, false), (Mode::Details, true)] {
        let mut view = view(&state);
        press(&mut view, &state, &[KeyCode::Down]);
        view.mode = before.clone();
        let confirm = Mode::Confirm { change: pause.clone(), in_details };
        for no in [KeyCode::Char('n'), KeyCode::Enter, KeyCode::Esc, KeyCode::Char('q'), p] {
            press(&mut view, &state, &[p]);
            assert_eq!(view.mode, confirm);
            press(&mut view, &state, &[no]);
            assert_eq!((&view.mode, &view.last), (&before, &Last::None), "{no:?}");
        }
        press(&mut view, &state, &[p]);
        // Another one takes its place meanwhile.
        state.downstreams.rotate_left(1);
        assert_eq!(view.on_key(KeyEvent::from(y), Some(&state), 24), Wish::Change(pause.clone()));
        state.downstreams.rotate_right(1);
        assert_eq!((&view.mode, &view.last), (&before, &Last::UnderWay(pause.clone())));
        // One at a time.
        press(&mut view, &state, &[p, y, r, y]);
        assert_eq!((&view.mode, &view.last), (&before, &Last::UnderWay(pause.clone())));
        view.on_changed(Ok("billing is paused".to_owned()));
        assert_eq!(view.last, Last::Done("billing is paused".to_owned()));
        press(&mut view, &state, &[KeyCode::Up]);
        assert_eq!(view.last, Last::None, "it was seen");
        view.on_changed(Err("no answer".to_owned()));
        assert_eq!(view.last, Last::Failed("no answer".to_owned()));
    }
}

#[test]
fn what_cannot_be_changed_is_reported_without_a_question() {
    let mut state = three();
    let mut view = view(&state);
    let last = |view: &View| match &view.last {
        Last::Failed(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    press(&mut view, &state, &[KeyCode::Char('r')]);
    assert_eq!(last(&view), "nobody has paused search");
    press(&mut view, &state, &[KeyCode::End, KeyCode::Char('p')]);
    assert_eq!(last(&view), "crm is paused; r resumes it");
    let penalty = serde_json::from_value(json!({"until": NOW + 9_000})).unwrap();
    state.downstreams[2].terms.penalty = Some(penalty);
    press(&mut view, &state, &[KeyCode::Home, KeyCode::Char('r')]);
    let resume = Change { order: Order::Resume, downstream: "search".to_owned() };
    assert_eq!(view.mode, Mode::Confirm { change: resume, in_details: false });
    press(&mut view, &state, &[KeyCode::Esc]);
    state.can_change = false;
    press(&mut view, &state, &[KeyCode::Char('r')]);
    assert!(last(&view).contains("admin.token"), "{:?}", view.last);
    assert_eq!(view.mode, Mode::Table);
    state.downstreams.clear();
    press(&mut view, &state, &[KeyCode::Char('p')]);
    assert_eq!((&view.mode, &view.last), (&Mode::Table, &Last::None));
    assert_eq!(view.on_key(KeyEvent::from(KeyCode::Char('p')), None, 24), Wish::Stay);
}

#[test]
fn a_change_is_confirmed_and_reported() {
    let state = three();
    let mut view = view(&state);
    press(&mut view, &state, &[KeyCode::Down, KeyCode::Char('p')]);
    check("confirm", &view, Some(&state));
    press(&mut view, &state, &[KeyCode::Esc]);
    view.on_changed(Ok("billing is paused until it is resumed".to_owned()));
    check("changed", &view, Some(&state));
}

#[test]
fn the_details_of_one() {
    let state = three();
    let mut view = view(&state);
    press(&mut view, &state, &[KeyCode::Down, KeyCode::Enter]);
    check("details", &view, Some(&state));
    press(&mut view, &state, &[KeyCode::Left, KeyCode::Char('h')]);
    check("details-failing", &view, Some(&state));
}

#[test]
fn a_filter_is_typed_and_kept_and_lifted() {
    let state = three();
    let mut view = view(&state);
    let typed: Vec<KeyCode> = "/SEq".chars().map(KeyCode::Char).chain([KeyCode::Backspace]).collect();
    press(&mut view, &state, &typed);
    check("filter", &view, Some(&state));
    press(&mut view, &state, &[KeyCode::Enter]);
    assert_eq!(view.mode, Mode::Table);
    assert_eq!((view.filter.as_str(), view.shown(&state).len()), ("SE", 1));
    press(&mut view, &state, &[KeyCode::Esc]);
    assert_eq!(view.shown(&state).len(), 3);
    let typed: Vec<KeyCode> = "/none".chars().map(KeyCode::Char).chain([KeyCode::Enter]).collect();
    press(&mut view, &state, &typed);
    press(&mut view, &state, &[KeyCode::Enter, KeyCode::Down]);
    assert_eq!(view.mode, Mode::Table, "there are no details of nothing");
    assert!(text(&screen(&view, Some(&state), (80, 24))).contains("None of 3 downstreams"));
}

#[test]
fn a_daemon_that_is_away() {
    let state = three();
    let mut view = view(&state);
    view.on_failure("no answer from http://127.0.0.1:9750/: Connection refused (os error 111)".to_owned());
    view.now += 75_000;
    check("away", &view, Some(&state));
    view.on_answer(&state, view.now);
    assert_eq!(view.away(), None);
    view.now += 6_000;
    assert!(view.away().is_some(), "a request that takes long counts too");
    let never = View::new(String::new(), true, NOW);
    check("asking", &never, None);
}

#[test]
fn the_help() {
    let state = three();
    let mut view = view(&state);
    press(&mut view, &state, &[KeyCode::Char('?')]);
    check("help", &view, Some(&state));
    press(&mut view, &state, &[KeyCode::Char('q')]);
    assert_eq!(view.mode, Mode::Table);
}

#[test]
fn how_to_leave() {
    let state = three();
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for key in [KeyEvent::from(KeyCode::Char('q')), KeyEvent::from(KeyCode::Esc), control_c] {
        assert_eq!(view(&state).on_key(key, Some(&state), 24), Wish::Leave, "{key:?}");
        assert_eq!(View::new(String::new(), true, NOW).on_key(key, None, 0), Wish::Leave, "{key:?}");
    }
    let mut view = view(&state);
    press(&mut view, &state, &[KeyCode::Char('/')]);
    assert_eq!(view.on_key(control_c, Some(&state), 24), Wish::Leave);
}

#[test]
fn no_foreign_text_steers_the_terminal() {
    let evil = "a\u{1b}[2J\u{9b}1m\u{202e}b\n";
    let failing = json!({"since": NOW, "kind": evil, "attempts": 1, "detail": evil,
        "kinds": [{"kind": evil, "count": 1}]});
    let failures = json!([{"at": NOW, "kind": evil, "detail": evil, "count": 1, "response": evil}]);
    let binding = json!({"reason": evil, "since": NOW, "text": evil});
    let mut state = state(vec![downstream(
        evil,
        1.0,
        json!({"failing": failing, "failures": failures, "binding": binding}),
    )]);
    state.version = evil.to_owned();
    let mut view = view(&state);
    view.on_failure(evil.to_owned());
    view.filter = "a\u{1b}".to_owned();
    view.last = Last::Failed(evil.to_owned());
    let change = Change { order: Order::Pause, downstream: evil.to_owned() };
    for mode in [Mode::Table, Mode::Filter, Mode::Details, Mode::Confirm { change, in_details: true }] {
        view.mode = mode.clone();
        for size in SIZES {
            let drawn = text(&screen(&view, Some(&state), size));
            let lines: String = drawn.lines().collect();
            assert!(!lines.contains(paced::text::is_unsafe), "{mode:?} {drawn:?}");
            assert!(drawn.contains("\\u{1b}"), "{mode:?} {drawn}");
        }
    }
}

#[test]
fn colour_says_nothing_that_text_does_not() {
    let state = three();
    let colours = |has_color: bool| {
        let mut view = view(&state);
        view.has_color = has_color;
        let terminal = screen(&view, Some(&state), (80, 24));
        let drawn = text(&terminal);
        let cells = &terminal.backend().buffer().content;
        (cells.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count(), drawn)
    };
    let ((with, coloured), (without, plain)) = (colours(true), colours(false));
    assert!(with > 0);
    assert_eq!((without, plain), (0, coloured));
}

#[test]
fn any_size_is_drawn() {
    let state = three();
    for (width, height) in [(1, 1), (2, 3), (10, 5), (80, 3), (500, 2)] {
        for mode in [Mode::Table, Mode::Details, Mode::Help, Mode::Filter] {
            let mut view = view(&state);
            view.mode = mode;
            view.on_failure("away".to_owned());
            screen(&view, Some(&state), (width, height));
        }
    }
}
