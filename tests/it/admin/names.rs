//! Tokens with names and roles, and the history of changes over all replicas.

use serde_json::json;

use super::api::AdminReplica;
use super::*;

const TOKENS: &str = "token = 'correct-horse-battery'\n\
    [admin.tokens.alice]\ntoken = 'token-of-alice-1234'\nrole = 'operate'\n\
    [admin.tokens.ci]\ntoken = 'token-of-ci-1234567'\nrole = 'admin'\n\
    [admin.tokens.grafana]\ntoken = 'token-of-grafana-12'\nrole = 'read'\n";

#[tokio::test]
async fn changes_are_shown_with_whose_they_are_by_every_replica() {
    let site = Site::shared("names", "rate = '100/s'").await;
    let config = format!("{}{ADMIN}{TOKENS}", site.config());
    let (one, other) = tokio::join!(AdminReplica::with_config(&config), AdminReplica::with_config(&config));
    let send = async |token: &str, method, what: &str, body: &str| {
        let bearer = format!("Bearer {token}");
        one.send(method, what, &[("authorization", &bearer)], body).await
    };
    let pause = r#"{"for": "10m", "reason": "they asked"}"#;
    let (status, answer) = send("token-of-alice-1234", Method::POST, "/pause", pause).await;
    assert_eq!((status, &answer["pause"]["by"]), (200, &json!("alice")), "{answer}");
    for (token, method, what, body, status) in [
        ("token-of-grafana-12", Method::POST, "/pause", "", 401),
        ("token-of-alice-1234", Method::PUT, "/rate", r#"{"rate": "9/s"}"#, 401),
        ("token-of-alice-1234", Method::POST, "/dead/purge", r#"{"all": true}"#, 401),
        ("token-of-alice-1234", Method::GET, "/dead", "", 200),
        ("token-of-ci-1234567", Method::PUT, "/rate", r#"{"rate": "9/s", "for": "90m"}"#, 200),
        ("token-of-grafana-12", Method::GET, "", "", 200),
    ] {
        assert_eq!(send(token, method.clone(), what, body).await.0, status, "{token} {method} {what}");
    }
    assert_eq!(
        one.client.get(&format!("{}/metrics", one.base)).await.unwrap().status,
        401,
        "nobody reads without"
    );
    let resumed = one.tool("token-of-alice-1234", &["--as", "bob", "resume", "billing"]).await;
    assert_eq!(resumed.code, 0, "{resumed:?}");

    let (status, answer) =
        other.send(Method::GET, "/changes", &[("authorization", "Bearer token-of-grafana-12")], "").await;
    let changes = answer["changes"].as_array().unwrap();
    assert_eq!((status, changes.len()), (200, 3), "{answer}");
    let column = |name: &str| changes.iter().map(|change| change[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("by"), [json!("alice"), json!("ci"), json!("alice")]);
    assert_eq!(column("change"), [json!("pause"), json!("rate set"), json!("resume")]);
    assert_eq!((&changes[0]["reason"], &changes[2]["claimed"]), (&json!("they asked"), &json!("bob")));
    let after = changes[0]["after"].as_str().unwrap();
    assert!(after.starts_with("paused for 10 minutes until 20") && after.ends_with('Z'), "{after}");
    let after = changes[1]["after"].as_str().unwrap();
    assert!(after.starts_with("leaky-bucket-0: 9/s until 20") && after.ends_with('Z'), "{after}");

    let env = [("PACED_ADMIN__READ_TOKEN", "token-of-grafana-12")];
    let args = ["--admin", &other.base, "history", "billing"];
    let output = site.cli_with(&args, &env).await;
    assert_eq!((output.code, output.stdout.lines().count()), (0, 4), "{output:?}");
    assert!(output.stdout.contains("alice (as bob)"), "{}", output.stdout);
    let args = ["--admin", &other.base, "-o", "json", "history"];
    let output = site.cli_with(&args, &env).await;
    let last: Value = serde_json::from_str(output.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&last["downstream"], &last["change"]), (&json!("billing"), &json!("resume")), "{last}");
    let line = &one.audit("admin: changed", 3).await[2];
    assert_eq!((&line["by"], &line["claimed"]), (&json!("alice"), &json!("bob")), "{line}");
    assert_eq!((one.paced.stop().await, other.paced.stop().await), (0, 0));
}
