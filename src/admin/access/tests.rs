use super::*;

const TOKEN: &str = "correct-horse";

fn access(token: Option<&str>) -> Access {
    Access::new(&Admin {
        listen: Some("Paced.Example:9750".to_owned()),
        token: token.map(Secret::hidden),
        allow_hosts: vec!["paced.internal".to_owned(), "other.internal:80".to_owned()],
        ..Admin::default()
    })
}

/// The status of a request that reads, or of one that changes something.
fn status(access: &Access, method: &str, headers: &[(&'static str, &str)]) -> u16 {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    let client = Network::from("10.0.0.7".parse::<IpAddr>().unwrap());
    let checked =
        access.is_meant(&"/api/v1/downstreams".parse().unwrap(), &map).and_then(|()| match method {
            "GET" => access.may(Role::Read, &map, client).map(drop),
            _ => access.may(Role::Admin, &map, client).and_then(|_| has_json(&map)),
        });
    match checked {
        Ok(()) => 200,
        Err(refusal) => refusal.status().as_u16(),
    }
}

#[test]
fn only_names_of_this_daemon_are_answered_for() {
    let access = access(None);
    for (host, expected) in [
        ("localhost", 200),
        ("LocalHost:1234", 200),
        ("127.0.0.1:9750", 200),
        ("127.8.8.8", 200),
        ("[::1]:9750", 200),
        ("10.0.0.5:9750", 200),
        ("[::ffff:10.0.0.5]:9750", 200),
        ("paced.example:80", 200),
        ("paced.internal", 200),
        ("Paced.Internal:8080", 200),
        ("other.internal:80", 200),
        ("other.internal", 421),
        ("other.internal:81", 421),
        // Another address than the one that it listens on, such as that of a pod's node.
        ("10.0.0.6", 200),
        ("[2001:db8::1]", 200),
        ("203.0.113.7:80", 200),
        ("10.0.0", 421),
        ("0x0a000006", 421),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("paced.internal@evil.example", 421),
        ("localhost@localhost", 421),
        ("", 421),
        ("a b", 421),
    ] {
        assert_eq!(status(&access, "GET", &[("host", host)]), expected, "{host}");
    }
    assert_eq!(status(&access, "GET", &[]), 421);
    assert_eq!(status(&access, "GET", &[("host", "localhost"), ("host", "localhost")]), 421);
    let absolute = |uri: &str| {
        let mut headers = HeaderMap::new();
        headers.append(HOST, "localhost".parse().unwrap());
        access.is_meant(&uri.parse().unwrap(), &headers).is_ok()
    };
    assert!(absolute("http://localhost/x") && !absolute("http://evil.example/x"), "the first line counts");
}

#[test]
fn a_refusal_says_what_was_asked_and_which_key_to_set() {
    let refusal = |host: &'static str| {
        let mut headers = HeaderMap::new();
        headers.append(HOST, host.parse().unwrap());
        access(None).is_meant(&"/metrics".parse().unwrap(), &headers).unwrap_err().text().to_owned()
    };
    let text = refusal("paced.jobs.svc:9750");
    assert!(text.contains("`paced.jobs.svc:9750`") && text.contains("admin.allow_hosts"), "{text}");
    assert!(refusal("a b").contains("no name"));
}

#[test]
fn tokens_are_replaced_for_the_next_request() {
    let access = access(Some(TOKEN));
    let can_change = access.can_change();
    let ask = |token: &str| {
        let given = format!("Bearer {token}");
        let headers =
            [("host", "localhost"), ("content-type", "application/json"), ("authorization", &*given)];
        status(&access, "POST", &headers)
    };
    assert_eq!((ask(TOKEN), can_change.load(Ordering::Relaxed)), (200, true));
    let new = Token { name: None, role: Role::Admin, secret: Some(Secret::hidden("new")) };
    access.replace_tokens(Tokens { all: vec![new], guards_reads: false });
    assert_eq!((ask(TOKEN), ask("new")), (401, 200));
    access.replace_tokens(Tokens::default());
    assert_eq!((ask("new"), can_change.load(Ordering::Relaxed)), (403, false));
}

#[test]
fn wrong_tokens_make_a_client_wait_and_no_other() {
    let access = access(Some(TOKEN));
    let ask = |address: &str, token: &str| {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        let client = Network::from(address.parse::<IpAddr>().unwrap());
        access.may(Role::Admin, &headers, client).map_or_else(|refusal| refusal.status().as_u16(), |_| 200)
    };
    let statuses: Vec<u16> = (0..22).map(|_| ask("2001:db8::1", "wrong")).collect();
    assert_eq!((statuses[..20].to_vec(), &statuses[20..]), (vec![401; 20], &[429, 429][..]));
    // Even the right one, which was never sent from this network, waits: otherwise the answer would show that it is right.
    assert_eq!((ask("2001:db8::2", TOKEN), ask("2001:db8:0:1::1", TOKEN)), (429, 200));
    // The right token was sent from the other network before, so a guesser there does not lock its holder out.
    let guesses: Vec<u16> = (0..22).map(|_| ask("2001:db8:0:1::1", "wrong")).collect();
    assert_eq!((guesses[20..].to_vec(), ask("2001:db8:0:1::2", TOKEN)), (vec![429; 2], 200));
    // Without any token there is nothing to guess.
    let client = Network::from("2001:db8::1".parse::<IpAddr>().unwrap());
    let refusal = access.may(Role::Admin, &HeaderMap::new(), client).unwrap_err();
    assert_eq!(refusal.status(), 401);
    assert!(access.may(Role::Read, &HeaderMap::new(), client).is_ok());
}

#[test]
fn pages_of_other_origins_are_refused_for_all_requests() {
    let access = access(Some(TOKEN));
    for (origin, expected) in [
        ("http://localhost:9750", 200),
        ("https://LOCALHOST:9750", 200),
        ("http://localhost", 403),
        ("http://localhost:3000", 403),
        ("http://127.0.0.1:9750", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("file://", 403),
    ] {
        for method in ["GET", "POST"] {
            let headers = [
                ("host", "localhost:9750"),
                ("origin", origin),
                ("authorization", "Bearer correct-horse"),
                ("content-type", "application/json"),
            ];
            assert_eq!(status(&access, method, &headers), expected, "{method} {origin}");
        }
    }
    let usual = [("host", "localhost"), ("origin", "https://localhost:443")];
    assert_eq!(status(&access, "GET", &usual), 200);
}

#[test]
fn changes_need_the_token() {
    let with = access(Some(TOKEN));
    let ask = |access: &Access, method: &str, given: &[&str]| {
        let mut headers = vec![("host", "localhost"), ("content-type", "application/json")];
        headers.extend(given.iter().map(|given| ("authorization", *given)));
        status(access, method, &headers)
    };
    for (given, expected) in [
        ("Bearer correct-horse", 200),
        ("bearer  correct-horse", 200),
        ("Bearer correct-hors", 401),
        ("Bearer correct-horsf", 401),
        ("Bearer correct-horsecorrect-horse", 401),
        ("Bearer correct-horse2", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("correct-horse", 401),
        ("Basic correct-horse", 401),
    ] {
        assert_eq!(ask(&with, "POST", &[given]), expected, "{given}");
        assert_eq!(ask(&access(None), "POST", &[given]), 403, "without a token configured");
        assert_eq!(ask(&with, "GET", &[given]), 200);
    }
    assert_eq!(ask(&with, "POST", &[]), 401);
    assert_eq!(ask(&with, "POST", &["Bearer correct-horse", "Bearer correct-horse"]), 401, "twice");
}

#[test]
fn changes_are_json() {
    let access = access(Some(TOKEN));
    for (kind, expected) in [
        (Some("application/json"), 200),
        (Some("Application/JSON; charset=utf-8"), 200),
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some("application/jsonp"), 415),
        (Some(""), 415),
        (None, 415),
    ] {
        let mut headers = vec![("host", "localhost"), ("authorization", "Bearer correct-horse")];
        headers.extend(kind.map(|kind| ("content-type", kind)));
        assert_eq!(status(&access, "PUT", &headers), expected, "{kind:?}");
    }
}

#[test]
fn where_a_token_is_needed_to_look_that_of_changes_does_too() {
    let access = Access::new(&Admin {
        token: Some(Secret::hidden(TOKEN)),
        read_token: Some(Secret::hidden("battery-staple")),
        ..Admin::default()
    });
    let bearer = |token: &str| format!("Bearer {token}");
    for (given, look, change) in [
        (None, 401, 401),
        (Some("wrong"), 401, 401),
        (Some("battery-staple"), 200, 401),
        (Some(TOKEN), 200, 200),
    ] {
        let given = given.map(bearer);
        let mut headers = vec![("host", "localhost"), ("content-type", "application/json")];
        headers.extend(given.as_deref().map(|given| ("authorization", given)));
        assert_eq!(status(&access, "GET", &headers), look, "{given:?}");
        assert_eq!(status(&access, "POST", &headers), change, "{given:?}");
    }
}

#[test]
fn a_token_with_a_name_allows_what_its_role_says() {
    let named = |name: &str, role| {
        let (name, token) = (name.to_owned(), Secret::hidden(format!("token-of-{name}")));
        NamedToken { name, token, role }
    };
    let tokens =
        vec![named("grafana", Role::Read), named("alice", Role::Operate), named("root", Role::Admin)];
    let access = Access::new(&Admin { tokens, ..Admin::default() });
    let client = Network::from("10.0.0.7".parse::<IpAddr>().unwrap());
    let ask = |token: &str, needed| {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        access.may(needed, &headers, client).map(|holder| holder.name.unwrap_or_default())
    };
    for (name, allowed) in [("grafana", Role::Read), ("alice", Role::Operate), ("root", Role::Admin)] {
        for needed in [Role::Read, Role::Operate, Role::Admin] {
            let answer = ask(&format!("token-of-{name}"), needed);
            match needed <= allowed {
                true => assert_eq!(answer, Ok(name.to_owned())),
                false => {
                    let answer = answer.unwrap_err();
                    let role = format!("`{name}`, whose role `{}` does not allow this", allowed.name());
                    assert!(answer.status() == 401 && answer.text().contains(&role), "{}", answer.text());
                }
            }
        }
    }
    // If a token has the role to read, reads need a token.
    assert_eq!(access.may(Role::Read, &HeaderMap::new(), client).unwrap_err().status(), 401);
    let operate = Admin { tokens: vec![named("alice", Role::Operate)], ..Admin::default() };
    let access = Access::new(&operate);
    assert!(access.can_change().load(Ordering::Relaxed));
    assert!(access.may(Role::Read, &HeaderMap::new(), client).is_ok());
    assert_eq!(access.may(Role::Admin, &HeaderMap::new(), client).unwrap_err().status(), 403, "nobody may");
}

#[test]
fn bodies_are_shown_if_the_configuration_says_so() {
    let access = Access::new(&Admin::default());
    for shown in [false, true, false] {
        access.show_bodies(shown);
        let status = access.has_bodies().map_err(|refusal| refusal.status());
        assert_eq!(status, if shown { Ok(()) } else { Err(StatusCode::FORBIDDEN) });
    }
    let admin = Admin { show_bodies: true, ..Admin::default() };
    assert!(Access::new(&Admin::default()).has_bodies().is_err() && Access::new(&admin).has_bodies().is_ok());
}
