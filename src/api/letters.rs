//! Dead letters: listed, replayed and purged.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The answer of `GET .../dead`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// The first letters.
    pub letters: Vec<Letter>,
    /// The number of all letters.
    pub total: u32,
    /// Whether the time was over before all were examined, or the letters take too much memory.
    pub stopped: bool,
    /// What ended the list before all were examined.
    pub stopped_by: Option<StoppedBy>,
    /// When the list was begun, on the clock of the replica that answers.
    pub listed_at: Millis,
}

/// A dead letter without its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Letter {
    /// The id of the job.
    pub id: Option<String>,
    /// The reason of its death.
    pub reason: Option<String>,
    /// The same in words.
    pub detail: Option<String>,
    /// The status of the last answer.
    pub status: Option<i64>,
    /// The attempts.
    pub attempts: Option<i64>,
    /// How its job was published.
    #[serde(flatten)]
    pub request: Request,
    /// When it died.
    pub dead_at: Option<Millis>,
    /// The beginning of the last answer's body, as text.
    pub response: Option<String>,
    /// The length of the job's body.
    pub bytes: u64,
}

/// How the job of a letter was published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The routing key.
    pub key: Option<String>,
    /// The method: `paced-method`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path: `paced-path`. In a list it is without its query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// The answer of `GET .../dead/letter`: a dead letter with its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    /// The letter.
    #[serde(flatten)]
    pub letter: Letter,
    /// The MIME type of the body, as its producer gave it.
    pub content_type: Option<String>,
    /// The encoding of the body, as its producer gave it.
    pub content_encoding: Option<String>,
    /// The beginning of the body as text. All but line feeds that could steer a terminal is escaped, and what is not UTF-8 is
    /// replaced.
    pub body: String,
    /// Whether the body is longer than that.
    pub is_cut: bool,
}

/// `POST .../dead/replay` and `POST .../dead/purge`: the letters that are meant, and how.
///
/// It is read in two steps, as orders are. Either something of a letter is named, or `all` is true: a filter that is
/// missing or null by mistake must not choose every letter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "body::Options")]
pub struct Change {
    /// The letters.
    #[serde(flatten)]
    pub chosen: Chosen,
    /// The bounds.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// The pace at which the jobs of a replay are published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// The reason of the change, for the audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<String>,
}

/// Letters: those that everything given here holds for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Chosen {
    /// Every letter; then nothing else is given.
    pub all: bool,
    /// Only letters with this reason of their death.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only letters with this status of the last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Only the letter of this job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Only letters with this routing key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// How many letters, and of what age: those that a list showed and no later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// The most letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Examines only this number of letters, from the oldest one on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u32>,
    /// Only letters that died by this instant, such as [`List::listed_at`], and those whose time of death is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_until: Option<Millis>,
}

/// What ended the work on letters before all were examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoppedBy {
    /// As many letters were found as were asked for.
    Limit,
    /// The time for one request was over.
    Time,
    /// The letters to list take as much memory as a list may.
    Size,
    /// The broker takes no more jobs; `error` says why.
    Error,
}

/// The answer of `POST .../dead/replay`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// The letters at the start.
    pub found: u32,
    /// Those that are jobs again.
    pub replayed: u32,
    /// Those that were not meant.
    pub passed: u32,
    /// Those that could not be published.
    pub failed: u32,
    /// Whether the time was over before all were examined.
    pub stopped: bool,
    /// What ended the replay before all were examined.
    pub stopped_by: Option<StoppedBy>,
    /// The last error of those that failed.
    pub error: Option<String>,
}

/// The answer of `POST .../dead/purge`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// The letters at the start.
    pub found: u32,
    /// Those that were removed.
    pub purged: u32,
    /// Those that were not meant.
    pub passed: u32,
    /// Whether the time was over before all were examined.
    pub stopped: bool,
    /// What ended the purge before all were examined.
    pub stopped_by: Option<StoppedBy>,
}

/// The body in its first step.
mod body {
    use serde::{Deserialize, Deserializer};

    use super::Millis;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Options {
        pub(super) limit: Option<u32>,
        #[serde(default, deserialize_with = "present")]
        pub(super) reason: Option<Option<String>>,
        #[serde(default, deserialize_with = "present")]
        pub(super) status: Option<Option<u16>>,
        #[serde(default, deserialize_with = "present")]
        pub(super) id: Option<Option<String>>,
        #[serde(default, deserialize_with = "present")]
        pub(super) key: Option<Option<String>>,
        pub(super) rate: Option<String>,
        pub(super) audit: Option<String>,
        #[serde(default)]
        pub(super) all: bool,
        pub(super) first: Option<u32>,
        pub(super) died_until: Option<Millis>,
    }

    /// A field that is there, also where it is null.
    fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
        from: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Option::deserialize(from).map(Some)
    }
}

impl TryFrom<body::Options> for Change {
    type Error = String;

    fn try_from(body: body::Options) -> Result<Self, String> {
        let body::Options { limit, reason, status, id, key, rate, audit, all, first, died_until } = body;
        let chosen = Chosen {
            all,
            reason: not_null("reason", reason)?,
            status: not_null("status", status)?,
            id: not_null("id", id)?,
            key: not_null("key", key)?,
        };
        match (all, chosen == Chosen { all, ..Chosen::default() }) {
            (false, true) => {
                Err("no letters are chosen; give reason, status, id or key, or \"all\": true for every \
                                  letter"
                    .to_owned())
            }
            (true, false) => {
                Err("all: not with reason, status, id or key, which choose some; leave one out".to_owned())
            }
            _ => Ok(Self { chosen, bounds: Bounds { limit, first, died_until }, rate, audit }),
        }
    }
}

fn not_null<T>(name: &str, field: Option<Option<T>>) -> Result<Option<T>, String> {
    match field {
        Some(None) => Err(format!("{name}: null chooses no letters; leave it out, or give a value")),
        given => Ok(given.flatten()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_letters_says_which() {
        let parse = |text: &str| serde_json::from_str::<Change>(text).map_err(|error| error.to_string());
        for text in ["{}", r#"{"limit": 6}"#, r#"{"all": false, "first": 6}"#, r#"{"rate": "1/s"}"#] {
            assert!(parse(text).unwrap_err().contains("no letters are chosen"), "{text}");
        }
        for (text, name) in [
            (r#"{"reason": null}"#, "reason"),
            (r#"{"status": null, "all": true}"#, "status"),
            (r#"{"id": null, "status": 404}"#, "id"),
            (r#"{"reason": "status", "key": null}"#, "key"),
        ] {
            assert_eq!(
                parse(text).unwrap_err(),
                format!("{name}: null chooses no letters; leave it out, or give a value")
            );
        }
        assert!(parse(r#"{"all": true, "id": "a"}"#).unwrap_err().contains("leave one out"));
        let bounds = Bounds { limit: None, first: Some(6), died_until: Some(1_764_000_000_000) };
        let all = Change { chosen: Chosen { all: true, ..Chosen::default() }, bounds, ..Change::default() };
        assert_eq!(parse(r#"{"all": true, "first": 6, "died_until": 1764000000000}"#), Ok(all.clone()));
        // It is written as it is read.
        assert_eq!(parse(&serde_json::to_string(&all).unwrap()), Ok(all));
        let one = Chosen { id: Some(String::new()), ..Chosen::default() };
        assert_eq!(parse(r#"{"id": ""}"#).map(|change| change.chosen), Ok(one), "a value may be empty");
    }
}
