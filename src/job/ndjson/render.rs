//! Writes a message as the line that [`parse`](super::parse) reads it from.

use serde_json::{Map, Number, Value as Json};

use crate::job::{Message, Value};

/// A message as a job on a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The keys of the job.
    pub job: Map<String, Json>,
    /// The headers and properties that such a line has no place for.
    pub left_out: Vec<String>,
}

/// Renders the message; `None` where it is malformed or its body is no UTF-8, which a line cannot hold.
pub fn render(message: &Message) -> Option<Rendered> {
    let body = std::str::from_utf8(&message.content.body).ok().filter(|_| message.malformed.is_none())?;
    let (mut job, mut headers, mut costs) = (Map::new(), Map::new(), Map::new());
    let mut left_out = Vec::new();
    if let Some(id) = &message.message_id {
        job.insert("id".to_owned(), id.as_str().into());
    }
    if !body.is_empty() {
        job.insert("body".to_owned(), body.into());
    }
    if let Some(priority) = message.priority {
        job.insert("priority".to_owned(), priority.into());
    }
    let content = [
        ("content-type", &message.content.content_type),
        ("content-encoding", &message.content.content_encoding),
    ];
    for (name, value) in content {
        if let Some(value) = value {
            headers.insert(name.to_owned(), value.as_str().into());
        }
    }
    let reply = [("correlation_id", &message.correlation_id), ("reply_to", &message.reply_to)];
    left_out.extend(reply.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| (*name).to_owned()));
    for (name, value) in &message.headers {
        let place = match (name.strip_prefix("http-"), key(name)) {
            (Some(request), _) => Some((&mut headers, request.to_ascii_lowercase(), scalar(value))),
            (None, Some((key, is_text))) => {
                let value = scalar(value).filter(|value| value.is_string() || !is_text);
                Some((&mut job, key.to_owned(), value))
            }
            (None, None) => {
                name.strip_prefix("paced-cost-").map(|limit| (&mut costs, limit.to_owned(), scalar(value)))
            }
        };
        match place {
            Some((object, key, Some(value))) if !object.contains_key(&key) => {
                object.insert(key, value);
            }
            _ => left_out.push(name.clone()),
        }
    }
    if !costs.is_empty() {
        job.insert("costs".to_owned(), costs.into());
    }
    if !headers.is_empty() {
        job.insert("headers".to_owned(), headers.into());
    }
    Some(Rendered { job, left_out })
}

/// The key of a header, and whether its value must be text.
fn key(header: &str) -> Option<(&'static str, bool)> {
    Some(match header {
        "paced-lane" => ("lane", true),
        "paced-plan" => ("plan", true),
        "paced-method" => ("method", true),
        "paced-path" => ("path", true),
        "paced-cost" => ("cost", false),
        "paced-not-before" => ("not_before", false),
        "paced-deadline" => ("deadline", false),
        _ => return None,
    })
}

fn scalar(value: &Value) -> Option<Json> {
    match value {
        Value::Text(text) => std::str::from_utf8(text).ok().map(Json::from),
        Value::Integer(number) => {
            let signed = i64::try_from(*number).map(Number::from);
            let number = signed.or_else(|_| u64::try_from(*number).map(Number::from));
            number.ok().map(Json::Number)
        }
        Value::Timestamp(seconds) => Some((*seconds).into()),
        Value::Float(number) => Number::from_f64(*number).map(Json::Number),
        Value::Bool(_) | Value::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::job::Content;
    use crate::job::ndjson::parse;

    fn text(value: &str) -> Value {
        Value::Text(Bytes::copy_from_slice(value.as_bytes()))
    }

    fn header(name: &str, value: Value) -> (String, Value) {
        (name.to_owned(), value)
    }

    #[test]
    fn a_line_is_read_as_the_message_that_it_was_written_from() {
        let message = Message {
            message_id: Some("i1".to_owned()),
            content: Content {
                body: Bytes::from_static("{\"n\": \"gr\u{fc}\u{df}e\"}\n".as_bytes()),
                content_type: Some("application/json".to_owned()),
                content_encoding: Some("identity".to_owned()),
            },
            priority: Some(7),
            headers: vec![
                header("http-x-number", Value::Integer(-5)),
                header("http-x-tag", text("t")),
                header("paced-cost", Value::Float(3.0)),
                header("paced-deadline", text("2030-01-31T08:00:00Z")),
                header("paced-lane", text("acme")),
                header("paced-method", text("PUT")),
                header("paced-not-before", Value::Integer(u64::MAX.into())),
                header("paced-path", text("a/b?c")),
                header("paced-plan", text("pro")),
            ],
            ..Message::default()
        };
        let Rendered { job, left_out } = render(&message).unwrap();
        assert_eq!(left_out, Vec::<String>::new());
        let mut read = parse(Json::from(job).to_string().as_bytes()).unwrap();
        read.message.headers.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(read.message, message);
        assert_eq!(render(&Message::default()).unwrap().job, Map::new());
    }

    #[test]
    fn what_a_line_has_no_place_for_is_named() {
        let message = Message {
            correlation_id: Some("c".to_owned()),
            content: Content { content_type: Some("text/plain".to_owned()), ..Content::default() },
            headers: vec![
                header("traceparent", text("00-1-2-01")),
                header("paced-retries", text("3")),
                header("paced-lane", Value::Integer(3)),
                header("paced-path", Value::Text(Bytes::from_static(b"\xff"))),
                header("paced-cost", Value::Integer(i128::MAX)),
                header("http-content-type", text("text/html")),
                header("http-x", Value::Bool(true)),
                header("paced-plan", text("pro")),
            ],
            ..Message::default()
        };
        let Rendered { job, left_out } = render(&message).unwrap();
        assert_eq!(
            left_out,
            [
                "correlation_id",
                "traceparent",
                "paced-retries",
                "paced-lane",
                "paced-path",
                "paced-cost",
                "http-content-type",
                "http-x"
            ]
        );
        assert_eq!(Json::from(job).to_string(), r#"{"headers":{"content-type":"text/plain"},"plan":"pro"}"#);
    }

    #[test]
    fn a_body_that_is_no_text_cannot_be_rendered() {
        let binary = Message { content: Bytes::from_static(b"\xff").into(), ..Message::default() };
        let malformed = Message { malformed: Some("cut".to_owned()), ..Message::default() };
        assert_eq!((render(&binary), render(&malformed)), (None, None));
    }
}
