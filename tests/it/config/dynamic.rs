//! Downstreams and plans in files of their own, in the directory of `[dynamic]`.

use paced::config::load_usable;

use super::*;

const BASE: &str = "[dynamic]\ndir = 'downstreams.d'\n";

/// A downstream of this name.
fn downstream(name: &str) -> String {
    format!("[downstreams.{name}]\nrate = '1/s'\nhttp.base_url = 'http://localhost/'\n")
}

/// A configuration with these files in its directory.
fn scene(text: &str, files: &[(&str, &str)]) -> Scene {
    let scene = Scene::new(text);
    fs::create_dir(scene.dir.path().join("downstreams.d")).unwrap();
    files.iter().fold(scene, |scene, (name, text)| scene.file(&format!("downstreams.d/{name}"), text))
}

fn names(loaded: &Loaded) -> Vec<&str> {
    loaded.settings.downstreams.keys().map(String::as_str).collect()
}

#[test]
fn files_of_the_directory_are_checked_and_shown_as_all_others() {
    let plan = "[plans.pro]\nlimits = [{ rate = '5/s' }]\n";
    let b = format!("{}http.headers.authorization_file = 'token'\n", downstream("b"));
    let scene = scene(
        &format!("{BASE}{}", downstream("a")),
        &[("b.toml", &b), ("plans.toml", plan), (".c.toml", "not"), ("d.toml~", "TOML"), ("token", "x")],
    );
    let loaded = scene.right();
    assert_eq!(names(&loaded), ["a", "b"]);
    assert_eq!(loaded.settings.downstreams["a"].plans[0].name, "pro");
    // A path in a file starts at its own directory.
    assert_eq!(loaded.settings.downstreams["b"].http.headers[0].1.expose(), "x");
    let shown = show(&loaded);
    assert!(shown.contains("[downstreams.b]") && shown.contains("downstreams.d/b.toml:2:8"), "{shown}");
    assert_eq!(loaded.dynamic().unwrap().listing().files().count(), 2);
    assert!(!format!("{loaded:?}").contains("spans"), "the sources themselves are not shown");
}

#[test]
fn without_any_file_there_may_be_no_downstream() {
    assert!(names(&scene(BASE, &[]).right()).is_empty());
    let wrong = Scene::new("[dynamic]\n").wrong();
    assert!(wrong[0].contains("downstreams: missing; add a downstream"), "{wrong:?}");
}

#[test]
fn each_mistake_of_a_file_has_its_place() {
    let twice = format!("{}{}", downstream("b"), downstream("a"));
    let other =
        "[amqp]\nprefix = 'mine'\n[downstreams.e]\nrate = '0/s'\nhttp.base_url = 'http://localhost/'\n";
    let scene = scene(
        &format!("{BASE}{}", downstream("a")),
        &[
            ("b.toml", &downstream("b")),
            ("c.toml", &twice),
            ("d.toml", "[downstreams.d\n"),
            ("e.toml", other),
        ],
    );
    let dir = scene.dir.path().join("downstreams.d").display().to_string();
    let wrong = scene.wrong();
    let at = |file: &str, rest: &str| {
        let start = format!("{dir}/{file}");
        wrong.iter().any(|line| line.strip_prefix(&start).is_some_and(|line| line.starts_with(rest)))
    };
    assert!(at("c.toml", &format!(":1:14: downstreams.b: is in {dir}/b.toml too; keep one")), "{wrong:?}");
    assert!(at("c.toml", ":4:14: downstreams.a: is in paced.toml too; keep one"), "{wrong:?}");
    assert!(at("d.toml", ":"), "{wrong:?}");
    assert!(at("e.toml", ":1:2: amqp: belongs into paced.toml"), "{wrong:?}");
    assert!(at("e.toml", ":4:8: downstreams.e.rate: "), "{wrong:?}");
}

#[test]
fn a_directory_or_a_file_that_cannot_be_read_is_a_mistake() {
    let wrong = Scene::new(&format!("{BASE}{}", downstream("a"))).wrong();
    assert!(
        wrong[0].contains("downstreams.d: cannot be read (No such file or directory); make"),
        "{wrong:?}"
    );
    let wrong = Scene::new("[dynamic]\ndir = ''\n").wrong();
    assert!(wrong.iter().any(|line| line.contains("dynamic.dir: empty; name a directory")), "{wrong:?}");

    let scene = scene(BASE, &[("long.toml", &"#".repeat((1 << 20) + 1))]);
    fs::create_dir(scene.dir.path().join("downstreams.d/folder.toml")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", scene.dir.path().join("downstreams.d/link.toml")).unwrap();
    let wrong = scene.wrong();
    let reports = |text: &str| wrong.iter().any(|line| line.contains(text));
    assert!(reports("folder.toml: cannot be read (no file)"), "{wrong:?}");
    assert!(reports("long.toml: cannot be read (over 1048576 bytes)"), "{wrong:?}");
    #[cfg(unix)]
    assert!(reports("link.toml: cannot be read (No such file or directory)"), "{wrong:?}");
}

/// As Kubernetes mounts the keys of a ConfigMap.
#[cfg(unix)]
#[test]
fn links_are_followed() {
    let scene = scene(BASE, &[]);
    let dir = scene.dir.path().join("downstreams.d");
    fs::create_dir(dir.join("..data")).unwrap();
    fs::write(dir.join("..data/a.toml"), downstream("a")).unwrap();
    std::os::unix::fs::symlink("..data/a.toml", dir.join("a.toml")).unwrap();
    assert_eq!(names(&scene.right()), ["a"]);
}

#[cfg(unix)]
#[test]
fn a_directory_that_all_may_write_to_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = scene(BASE, &[]);
    let dir = scene.dir.path().join("downstreams.d");
    let warnings = |mode| {
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        scene.right().warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings(0o755), [""; 0]);
    assert_eq!(warnings(0o775), [""; 0]);
    let open = warnings(0o777);
    assert!(
        open[0].contains(
            "dynamic.dir: warning: every user of this machine can write to the directory (mode 777)"
        ),
        "{open:?}"
    );
}

/// A change of the directory does not bring in what was changed elsewhere, and not yet read by a reload.
#[test]
fn the_directory_is_read_again_beside_the_sources_as_they_were() {
    let scene = scene(&format!("{BASE}{}", downstream("a")), &[("b.toml", &downstream("b"))]);
    let old = scene.right();
    let scene = scene
        .file("paced.toml", &format!("{BASE}{}", downstream("other")))
        .file("downstreams.d/c.toml", &downstream("c"));
    fs::remove_file(scene.dir.path().join("downstreams.d/b.toml")).unwrap();
    let new = old.load_dynamic(&scene.sources).unwrap();
    assert_eq!(names(&new), ["a", "c"]);
    assert_ne!(new.dynamic().unwrap().listing(), old.dynamic().unwrap().listing());
    let reload = old.reload(&new);
    let moves = &reload.downstreams;
    assert_eq!((moves.added.len(), moves.removed.len(), moves.replaced.len()), (1, 1, 0));
    assert_eq!(reload.restart, [""; 0]);
    // A reload reads all.
    let moves = reload.loaded.reload(&scene.right()).downstreams;
    assert!(moves.added.contains("other") && moves.removed.contains("a"));
    // A mistake there changes nothing of that file.
    let scene = scene.file("downstreams.d/c.toml", "[downstreams.c]\nrate = '1/s'\n");
    let kept = new.load_dynamic(&scene.sources).unwrap();
    assert_eq!(names(&kept), ["a", "c"]);
    let mistakes: Vec<String> = kept.mistakes().iter().map(ToString::to_string).collect();
    assert_eq!(mistakes.len(), 1);
    assert!(mistakes[0].contains("c.toml:1:1: downstreams.c.http.base_url: missing"), "{mistakes:?}");
    assert!(new.reload(&kept).downstreams.is_empty());
}

/// One that is wrong keeps no other one out. It counts as it was when it was right.
#[test]
fn a_wrong_file_counts_as_before_and_the_others_as_they_are() {
    let fast = |name: &str| downstream(name).replace("'1/s'", "'9/s'");
    let scene = scene(BASE, &[("a.toml", &downstream("a")), ("b.toml", &downstream("b"))]);
    let old = load_usable(scene.sources.clone(), None).unwrap();
    assert!(names(&old) == ["a", "b"] && old.mistakes().is_empty());
    let scene = scene
        .file("downstreams.d/a.toml", "[downstreams.a\n")
        .file("downstreams.d/b.toml", &fast("b"))
        .file("downstreams.d/c.toml", "[downstreams.c]\nrate = '1/s'\n")
        .file("downstreams.d/0.toml", &fast("b"))
        .file("downstreams.d/d.toml", &downstream("d"));
    let rate = |loaded: &Loaded, name: &str| {
        let limits = &loaded.settings.downstreams[name].limits;
        limits.iter().next().unwrap().rate().to_string()
    };
    for new in [old.load_dynamic(&scene.sources), load_usable(scene.sources.clone(), Some(&old))] {
        let new = new.unwrap();
        assert_eq!(names(&new), ["a", "b", "d"]);
        assert_eq!((rate(&new, "a"), rate(&new, "b")), ("1/s".to_owned(), "9/s".to_owned()));
        let mistakes: Vec<String> = new.mistakes().iter().map(ToString::to_string).collect();
        // The missing key shows once the one that may have hidden it is left out.
        let reports = |text: &str| mistakes.iter().any(|mistake| mistake.contains(text));
        assert!(
            reports("a.toml:") && reports("c.toml:1:1: downstreams.c.http.base_url: missing"),
            "{mistakes:?}"
        );
        assert!(reports("0.toml:1:14: downstreams.b: is in "), "who was there first counts: {mistakes:?}");
        // One that is wrong still counts as it was, however often it is read.
        let again = new.load_dynamic(&scene.sources).unwrap();
        assert_eq!((names(&again), again.mistakes().len()), (vec!["a", "b", "d"], new.mistakes().len()));
    }
    // At a start there is no before.
    assert_eq!(names(&load_usable(scene.sources.clone(), None).unwrap()), ["b", "d"]);
    assert!(scene.load().is_err(), "a check reports them");
    // A mistake elsewhere is one of all.
    let scene = scene.file("paced.toml", &format!("{BASE}[amqp]\nprefx = 'p'\n"));
    assert!(load_usable(scene.sources.clone(), Some(&old)).is_err());
}

/// A new file never makes an unchanged one wrong, in each order of their names.
#[test]
fn a_change_takes_no_name_and_no_queue_of_a_file_that_is_as_it_was() {
    let queue = |name: &str, queue: &str| format!("{}queue.name = '{queue}'\n", downstream(name));
    let elsewhere = downstream("x").replace("localhost", "elsewhere");
    let both = format!("{}{elsewhere}", downstream("a"));
    let base = format!("{BASE}{}", queue("base", "of-base"));
    let was = [
        ("a.toml", downstream("a")),
        ("x.toml", downstream("x")),
        ("zzz.toml", queue("zzz", "orders")),
        ("zz.toml", queue("zz", "paced.jobs.aa")),
    ];
    let was = was.each_ref().map(|(name, text)| (*name, text.as_str()));
    let cases = [
        ("a.toml", both.clone(), ["a.toml:4:14: downstreams.x: is in ", "x.toml too; keep one"]),
        ("0.toml", elsewhere, ["0.toml:1:14: downstreams.x: is in ", "x.toml too; keep one"]),
        ("aaa.toml", queue("aaa", "orders"), ["aaa.toml:4:14: downstreams.aaa.queue.name: ", "`zzz` too"]),
        ("aaa.toml", queue("aaa", "of-base"), ["aaa.toml:4:14: downstreams.aaa.queue.name: ", "`base` too"]),
        ("aa.toml", downstream("aa"), ["aa.toml:1:14: downstreams.aa: the queue of ", "`zz` too"]),
    ];
    for (file, text, mistake) in cases {
        let scene = scene(&base, &was);
        let old = load_usable(scene.sources.clone(), None).unwrap();
        let scene = scene
            .file(&format!("downstreams.d/{file}"), &text)
            .file("downstreams.d/new.toml", &downstream("new"));
        for new in [old.load_dynamic(&scene.sources), load_usable(scene.sources.clone(), Some(&old))] {
            let new = new.unwrap();
            let mistakes: Vec<String> = new.mistakes().iter().map(ToString::to_string).collect();
            assert_eq!(mistakes.len(), 1, "{file}: {mistakes:?}");
            assert!(mistake.iter().all(|part| mistakes[0].contains(part)), "{file}: {mistakes:?}");
            assert_eq!(names(&new), ["a", "base", "new", "x", "zz", "zzz"], "{file}");
            let reload = old.reload(&new);
            assert_eq!(reload.downstreams.added, ["new".to_owned()].into(), "{file}");
            assert!(
                reload.downstreams.removed.is_empty() && reload.downstreams.replaced.is_empty(),
                "{file}"
            );
        }
    }
}

/// Where the change of one file is a mistake of another one, which is as it was, nothing of it counts.
#[test]
fn plans_that_others_need_stay_as_they_were() {
    let pro = "[plans.pro]\nlimits = [{ rate = '5/s' }]\n";
    let needs = format!("{}lanes.default_plan = 'pro'\n", downstream("b"));
    let base = format!("{BASE}{}", needs.replace(".b]", ".base]"));
    for (was, file) in [(BASE, "b.toml"), (base.as_str(), "paced.toml")] {
        for change in [None, Some("[plans.basic]\nlimits = [{ rate = '5/s' }]\n"), Some("[plans")] {
            let scene =
                scene(was, &[("b.toml", &needs), ("plans.toml", pro), ("gone.toml", &downstream("gone"))]);
            let old = load_usable(scene.sources.clone(), None).unwrap();
            assert!(old.mistakes().is_empty(), "{:?}", old.mistakes());
            let dir = scene.dir.path().join("downstreams.d");
            fs::remove_file(dir.join("gone.toml")).unwrap();
            match change {
                Some(text) => fs::write(dir.join("plans.toml"), text).unwrap(),
                None => fs::remove_file(dir.join("plans.toml")).unwrap(),
            }
            let scene = scene.file("downstreams.d/new.toml", &downstream("new"));
            let new = old.load_dynamic(&scene.sources).unwrap();
            let mistakes: Vec<String> = new.mistakes().iter().map(ToString::to_string).collect();
            assert!(mistakes.iter().any(|mistake| mistake.contains(file)), "{change:?}: {mistakes:?}");
            let reload = old.reload(&new);
            // The other changes count.
            assert!(reload.downstreams.replaced.is_empty() && reload.changed.is_empty(), "{change:?}");
            assert_eq!(reload.downstreams.added, ["new".to_owned()].into());
            assert_eq!(reload.downstreams.removed, ["gone".to_owned()].into());
            // It stays so, however often the directory is read.
            let again = new.load_dynamic(&scene.sources).unwrap();
            assert!(new.reload(&again).downstreams.is_empty());
            let again: Vec<String> = again.mistakes().iter().map(ToString::to_string).collect();
            assert_eq!(again, mistakes, "{change:?}");
        }
    }
}

/// A reload of all that contradicts a file which is as it was is refused as a whole: nothing of that file may end.
#[test]
fn a_reload_that_contradicts_a_file_which_is_as_it_was_is_refused() {
    let scene = scene(BASE, &[("b.toml", &downstream("b"))]);
    let old = load_usable(scene.sources.clone(), None).unwrap();
    let scene = scene
        .file("paced.toml", &format!("{BASE}{}", downstream("b")))
        .file("downstreams.d/new.toml", &downstream("new"));
    let error = load_usable(scene.sources.clone(), Some(&old)).unwrap_err().to_string();
    assert!(error.contains("b.toml:1:14: downstreams.b: is in paced.toml too"), "{error}");
    assert_eq!(
        names(&load_usable(scene.sources.clone(), None).unwrap()),
        ["b", "new"],
        "a start leaves it out"
    );
}

/// They are files: the environment and `--set` override them, and no mistake of those is one of a file.
#[test]
fn the_environment_and_set_override_the_files_of_the_directory() {
    let mut scene = scene(BASE, &[("a.toml", &downstream("a")), ("b.toml", &downstream("b"))]);
    scene.sources.env = vec![("PACED_DOWNSTREAMS__A__RATE".into(), "7/s".into())];
    scene.sources.set = vec!["downstreams.b.rate=8/s".to_owned()];
    let old = load_usable(scene.sources.clone(), None).unwrap();
    for loaded in [&scene.right(), &old, &old.load_dynamic(&scene.sources).unwrap()] {
        let rate = |name: &str| {
            let limits = &loaded.settings.downstreams[name].limits;
            limits.iter().next().unwrap().rate().to_string()
        };
        assert_eq!((rate("a"), rate("b")), ("7/s".to_owned(), "8/s".to_owned()));
        assert!(loaded.mistakes().is_empty());
    }
    // One that has keys there stays, and keeps no other file out.
    fs::remove_file(scene.dir.path().join("downstreams.d/a.toml")).unwrap();
    fs::write(scene.dir.path().join("downstreams.d/c.toml"), downstream("c")).unwrap();
    let new = old.load_dynamic(&scene.sources).unwrap();
    assert_eq!(names(&new), ["a", "b", "c"]);
    assert!(
        new.mistakes()[0].to_string().contains("downstreams.a.http.base_url: missing"),
        "{:?}",
        new.mistakes()
    );
    scene.sources.set = vec!["downstreams.b.rate=0/s".to_owned(), "no-key".to_owned()];
    let error = load_usable(scene.sources.clone(), Some(&old)).unwrap_err().to_string();
    assert!(error.contains("--set: downstreams.b.rate: ") && error.contains("--set: argument 2"), "{error}");
}

/// A full disk leaves an empty file, and so does an editor for a moment.
#[test]
fn an_empty_file_removes_nothing() {
    let scene = scene(BASE, &[("a.toml", &downstream("a"))]);
    let old = load_usable(scene.sources.clone(), None).unwrap();
    for empty in ["", "\n# [downstreams.a]\n", "[downstreams]\n", "[plans]\n[downstreams]\n"] {
        fs::write(scene.dir.path().join("downstreams.d/a.toml"), empty).unwrap();
        let new = old.load_dynamic(&scene.sources).unwrap();
        assert!(old.reload(&new).downstreams.is_empty(), "{empty:?}");
        let mistakes: Vec<String> = new.mistakes().iter().map(ToString::to_string).collect();
        assert_eq!(mistakes.len(), 1, "{empty:?}: {mistakes:?}");
        assert!(mistakes[0].contains("a.toml: has no [downstreams.NAME] and no"), "{mistakes:?}");
    }
}

/// Each has keys in a file of its own, which are read in a time that grows with their number.
#[test]
fn thousands_of_files_are_read() {
    const FILES: usize = 1_000;
    let scene = scene(BASE, &[]);
    for n in 0..FILES {
        let file = scene.dir.path().join(format!("downstreams.d/d{n}.toml"));
        fs::write(file, downstream(&format!("d{n}"))).unwrap();
    }
    let loaded = scene.right();
    assert_eq!(loaded.settings.downstreams.len(), FILES);
    let origin = "downstreams.d/d999.toml:2:8";
    assert!(show(&loaded).contains(origin));
}
