//! Clients of OAuth2.

use super::Scene;

/// The path of the client's table.
const AT: &str = "downstreams.a.http.oauth2";

/// A configuration with these lines in the table of HTTP.
fn given(lines: &str) -> Scene {
    Scene::new(&format!(
        "[downstreams.a]\nrate = '1/s'\n[downstreams.a.http]\nbase_url = 'http://a/'\n{lines}\n"
    ))
}

/// The table of a client, with these lines at its end.
fn client(more: &str) -> String {
    format!("[{AT}]\ntoken_url = 'https://l/t'\nclient_id = 'c'\nclient_secret = 's'\n{more}")
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    assert_eq!(
        given(&client("")).right().settings.downstreams["a"].http.oauth2.as_ref().unwrap().client_id,
        "c"
    );
    assert_eq!(
        given(&format!("[{AT}]\nscopes = ['a b']\nclient_auth = 'jwt'\ntimeout = '2m'")).wrong(),
        [
            format!(
                "paced.toml:5:1: {AT}.client_id: missing; name the client, such as client_id = \"paced\""
            ),
            format!(
                "paced.toml:5:1: {AT}.client_secret: missing; name its file, such as client_secret_file = \"secrets/client\""
            ),
            format!(
                "paced.toml:5:1: {AT}.token_url: missing; name the token server, such as token_url = \
                 \"https://login.example.com/token\""
            ),
            format!(
                "paced.toml:6:11: {AT}.scopes[0]: no scope; use visible ASCII characters without spaces, and list each scope by \
                 itself"
            ),
            format!("paced.toml:7:15: {AT}.client_auth: `jwt` is no way to show a secret; use basic or post"),
            format!("paced.toml:8:11: {AT}.timeout: `2m` is out of range; use 100ms to 1m"),
        ]
    );
    for (url, why) in [
        ("https://u:hunter2@l/t", "has credentials in it; give them as client_id and client_secret_file"),
        ("https://l/t?secret=hunter2", "has a query; write https://HOST/PATH, or http://"),
        ("ftp://l/t", "not the URL of a token server; write https://HOST/PATH, or http://"),
    ] {
        let line = client("").replace("https://l/t", url);
        assert_eq!(given(&line).wrong(), [format!("paced.toml:6:13: {AT}.token_url: {why}")], "{url}");
    }
    let both = format!("headers = {{ Authorization = 'hunter2' }}\n{}", client(""));
    assert_eq!(
        given(&both).wrong(),
        [format!("paced.toml:6:21: {AT}: sets authorization, which `headers` sets too; remove one of them")]
    );
}

#[test]
fn other_parameters() {
    let loaded = given(&client(
        "[downstreams.a.http.oauth2.params]\naudience = 'https://a/?b'\n'a.b' = 'ü'\nkey_file = 'key'",
    ))
    .file("key", "hunter2\n")
    .right();
    let oauth2 = loaded.settings.downstreams["a"].http.oauth2.as_ref().unwrap();
    let params: Vec<_> = oauth2.params.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(params, [("a.b", "ü"), ("audience", "https://a/?b"), ("key", "hunter2")]);
    let shown = paced::config::show(&loaded);
    assert!(!shown.contains("https://a/?b") && !shown.contains("hunter2"), "{shown}");
    let long = "x".repeat(1_025);
    for (param, at, why) in [
        ("scope = 'b'", "scope", "is what `scopes` sets; use that"),
        ("grant_type = 'password'", "grant_type", "is set by paced; remove it"),
        ("client_secret = 's'", "client_secret", "is set by paced; remove it"),
        ("'a b' = 'c'", "\"a b\"", "is no name of a parameter; use letters, digits, '-', '.' and '_'"),
        ("audience = ''", "audience", "no value of a parameter; use 1 to 1024 characters, on one line"),
        (
            &*format!("audience = '{long}'"),
            "audience",
            "no value of a parameter; use 1 to 1024 characters, on one line",
        ),
        ("audience = 1", "audience", "an integer where a string belongs; write it in quotes"),
    ] {
        let wrong = given(&client(&format!("params = {{ {param} }}"))).wrong();
        assert!(wrong.len() == 1 && wrong[0].ends_with(&format!("{AT}.params.{at}: {why}")), "{wrong:?}");
    }
}
