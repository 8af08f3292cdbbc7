//! One dead letter with its body, for clients with the role `admin`.

use std::num::ParseIntError;
use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use paced::amqp::{DeadLetters, Error, Filter, Letter, Scan};
use paced::api::Millis;
use paced::api::letters::{Bounds, Chosen, Whole};
use paced::text::excerpt;

use super::{Done, Work};
use crate::admin::api::Api;
use crate::admin::audit;
use crate::admin::reply::{Refusal, answer};
use crate::admin::routes::Client;
use crate::status::words;

/// The most bytes of a body that are shown.
const MAX_BODY: usize = 64 << 10;

/// `GET /api/v1/downstreams/NAME/dead/letter`
pub(in crate::admin::api) async fn show(
    State(api): State<Arc<Api>>,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    api.operations.known(&name)?;
    let Named { id, key, dead_at } = named(query.as_deref().unwrap_or_default())?;
    let chosen = Chosen { id: Some(id.clone()), key: key.clone(), ..Chosen::default() };
    let died = dead_at.map(|at| format!(", died {}", words::instant(at))).unwrap_or_default();
    let chosen = super::which(&chosen, Bounds::default()) + &died;
    audit::reads_body(&client, &name, &chosen).await;
    let scan = Scan { filter: Filter { id: Some(id), key, ..Filter::default() }, ..Scan::default() };
    // If the client gives the request up, the letters go back at once.
    let _ends_work = scan.stop.clone().drop_guard();
    let Done { whole, tally, .. } = api.letters.work(&name, scan, Work::Show { dead_at }).await?;
    let Some(whole) = whole else {
        return Err(match tally.stopped {
            true => {
                let text = "the time was over before all letters were examined; see `paced dead show`";
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
            }
            false => Refusal::new(StatusCode::NOT_FOUND, "there is no such dead letter"),
        });
    };
    Ok(answer(&whole))
}

/// The letter that a query names. Ids may repeat: those of copies do, and those of producers that count.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    id: String,
    key: Option<String>,
    dead_at: Option<Millis>,
}

/// The letter that a query names, as `id=invoice-4711&key=billing.acme&dead_at=1764000000000`.
fn named(query: &str) -> Result<Named, Refusal> {
    let mut named = Named::default();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "id" if named.id.is_empty() => named.id = value.into_owned(),
            "key" if named.key.is_none() => named.key = Some(value.into_owned()),
            "dead_at" if named.dead_at.is_none() => {
                let problem = |_: ParseIntError| {
                    Refusal::wrong(format!("dead_at: `{value}` is no instant; write one as a list has it"))
                };
                named.dead_at = Some(value.parse().map_err(problem)?);
            }
            _ => return Err(Refusal::wrong("there are id, key and dead_at, each once")),
        }
    }
    if named.id.is_empty() {
        return Err(Refusal::wrong("write ?id=ID with the id of the letter's job"));
    }
    Ok(named)
}

/// The first of the letters that match and died at `dead_at`, if that is known.
pub(super) async fn find(letters: &DeadLetters, scan: &Scan, dead_at: Option<Millis>) -> Result<Done, Error> {
    let mut whole = None;
    let keep = |letter: Letter, bytes| {
        if whole.is_none() && dead_at.is_none_or(|at| super::number(letter.dead_at.as_deref()) == Some(at)) {
            whole = Some(view(letter, bytes));
            scan.stop.cancel();
        }
    };
    let (_, tally) = letters.list_as(scan, keep, |_| ()).await?;
    Ok(Done { whole, tally, ..Done::default() })
}

/// A letter as the API shows it, with its body, which has this length.
pub(super) fn view(letter: Letter, bytes: u64) -> Whole {
    let content = letter.message.content.clone();
    let beginning = &content.body[..content.body.len().min(MAX_BODY)];
    Whole {
        letter: super::view(letter, bytes),
        content_type: content.content_type,
        content_encoding: content.content_encoding,
        body: excerpt(beginning, usize::MAX),
        is_cut: content.body.len() > MAX_BODY,
    }
}

#[cfg(test)]
mod tests {
    use paced::amqp::BasicProperties;
    use paced::job::{Content, Message, Value};
    use serde_json::json;

    use super::*;

    fn letter(body: Vec<u8>) -> Letter {
        let content =
            Content { body: body.into(), content_type: Some("text/csv".to_owned()), ..Content::default() };
        let header = |name: &str, value: &'static str| (name.to_owned(), Value::Text(value.into()));
        Letter {
            message: Message {
                message_id: Some("a".to_owned()),
                content,
                headers: vec![header("paced-method", "PUT"), header("paced-path", "customers/7")],
                ..Message::default()
            },
            properties: BasicProperties::default(),
            reason: None,
            detail: None,
            status: None,
            attempts: None,
            routing_key: None,
            dead_at: None,
            response: None,
        }
    }

    #[test]
    fn a_letter_is_shown_with_its_request_and_its_body() {
        let shown = json!(view(letter(b"a,b\r\n\x1b[2J\xff".to_vec()), 10));
        assert_eq!(shown["body"], "a,b\n\\u{1b}[2J\u{fffd}");
        assert_eq!(
            (&shown["method"], &shown["path"], &shown["id"]),
            (&json!("PUT"), &json!("customers/7"), &json!("a"))
        );
        assert_eq!(
            (&shown["content_type"], &shown["is_cut"], &shown["bytes"]),
            (&json!("text/csv"), &json!(false), &json!(10))
        );
        let long = view(letter(vec![b'x'; MAX_BODY + 1]), 0);
        assert_eq!((long.body.len(), long.is_cut), (MAX_BODY, true));
        assert!(!view(letter(vec![b'x'; MAX_BODY]), 0).is_cut);
    }

    #[test]
    fn a_query_names_one_letter() {
        let one = |id: &str| Named { id: id.to_owned(), ..Named::default() };
        assert_eq!(named("id=a%2Fb"), Ok(one("a/b")));
        let all = Named { key: Some(String::new()), dead_at: Some(-7), ..one("a") };
        assert_eq!(named("dead_at=-7&key=&id=a"), Ok(all));
        for query in ["", "id=", "id=a&id=b", "key=a", "id=a&key=b&key=c", "id=a&dead_at=", "id=a&limit=2"] {
            assert_eq!(named(query).unwrap_err().status(), 400, "{query}");
        }
    }
}
