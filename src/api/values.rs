//! What operators set for one value of the part by which lanes share, such as a tenant. The tools make these orders, and
//! the daemon reads them, in two steps as those of [`order`](super::order).

use serde::{Deserialize, Serialize};

use super::Millis;
use super::order::{Span, span};

/// The longest value, in bytes: no job has a longer one.
const LONGEST_VALUE: usize = 128;

/// The highest weight, as in a file.
const MAX_WEIGHT: u32 = 1_000_000;

/// What an operator set for one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetValue {
    /// The value.
    pub value: String,
    /// The weight that was set; `None` if it is a pause.
    pub weight: Option<u32>,
    /// Its end; none if it lasts until it is unset or resumed.
    pub until: Option<Millis>,
    /// The reason.
    pub reason: Option<String>,
    /// Who set it.
    pub by: Option<String>,
    /// When it was set.
    pub set_at: Millis,
}

/// Sets the weight of a value over that of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "body::SetWeight")]
pub struct SetWeight {
    /// The value; without text it is that of jobs that do not have the part.
    pub value: String,
    /// The weight.
    pub weight: u32,
    /// How long it applies; without one until it is unset.
    #[serde(rename = "for")]
    pub span: Option<Span>,
    /// The reason.
    pub reason: Option<String>,
}

/// Restores the weight that the file has for a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "body::Value")]
pub struct UnsetWeight {
    /// The value.
    pub value: String,
    /// The reason.
    pub reason: Option<String>,
}

/// Stops the releases of jobs with a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "body::PauseValue")]
pub struct PauseValue {
    /// The value; without text it is that of jobs that do not have the part.
    pub value: String,
    /// The length; without one it lasts until it is resumed.
    #[serde(rename = "for")]
    pub span: Option<Span>,
    /// The reason.
    pub reason: Option<String>,
}

/// Ends the pause of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "body::Value")]
pub struct ResumeValue {
    /// The value.
    pub value: String,
    /// The reason.
    pub reason: Option<String>,
}

/// The bodies in their first step.
mod body {
    use serde::Deserialize;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct SetWeight {
        pub(super) value: String,
        pub(super) weight: u32,
        #[serde(rename = "for")]
        pub(super) span: Option<String>,
        pub(super) reason: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct PauseValue {
        pub(super) value: String,
        #[serde(rename = "for")]
        pub(super) span: Option<String>,
        pub(super) reason: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Value {
        pub(super) value: String,
        pub(super) reason: Option<String>,
    }
}

/// A value that a job may have, checked.
fn checked(value: String) -> Result<String, String> {
    match value.len() {
        ..=LONGEST_VALUE => Ok(value),
        bytes => {
            Err(format!("value: it has {bytes} bytes, and no job has a value of more than {LONGEST_VALUE}"))
        }
    }
}

impl TryFrom<body::SetWeight> for SetWeight {
    type Error = String;

    fn try_from(body: body::SetWeight) -> Result<Self, String> {
        let body::SetWeight { value, weight, span: text, reason } = body;
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(format!("weight: use 1 to {MAX_WEIGHT}"));
        }
        Ok(Self { value: checked(value)?, weight, span: span(text)?, reason })
    }
}

impl TryFrom<body::PauseValue> for PauseValue {
    type Error = String;

    fn try_from(body: body::PauseValue) -> Result<Self, String> {
        let body::PauseValue { value, span: text, reason } = body;
        Ok(Self { value: checked(value)?, span: span(text)?, reason })
    }
}

impl TryFrom<body::Value> for UnsetWeight {
    type Error = String;

    fn try_from(body::Value { value, reason }: body::Value) -> Result<Self, String> {
        Ok(Self { value: checked(value)?, reason })
    }
}

impl TryFrom<body::Value> for ResumeValue {
    type Error = String;

    fn try_from(body::Value { value, reason }: body::Value) -> Result<Self, String> {
        Ok(Self { value: checked(value)?, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tools send what the daemon reads.
    #[test]
    fn orders_are_read_as_they_are_sent() {
        let span: Option<Span> = Some("2h".parse().unwrap());
        let set = SetWeight { value: "acme".to_owned(), weight: 5, span: span.clone(), reason: None };
        let sent = serde_json::to_string(&set).unwrap();
        assert_eq!(sent, r#"{"value":"acme","weight":5,"for":"2h","reason":null}"#);
        assert_eq!(serde_json::from_str::<SetWeight>(&sent).unwrap(), set);
        let pause = PauseValue { value: String::new(), span, reason: Some("r".to_owned()) };
        let sent = serde_json::to_string(&pause).unwrap();
        assert_eq!(sent, r#"{"value":"","for":"2h","reason":"r"}"#);
        assert_eq!(serde_json::from_str::<PauseValue>(&sent).unwrap(), pause);
        let resume = ResumeValue { value: "acme".to_owned(), reason: None };
        let sent = serde_json::to_string(&resume).unwrap();
        assert_eq!(sent, r#"{"value":"acme","reason":null}"#);
        assert_eq!(serde_json::from_str::<ResumeValue>(&sent).unwrap(), resume);
        assert_eq!(serde_json::from_str::<UnsetWeight>(&sent).unwrap().value, "acme");
    }

    #[test]
    fn an_order_that_is_none_is_refused_with_its_mistake() {
        let set = |body: &str| serde_json::from_str::<SetWeight>(body).unwrap_err().to_string();
        for (body, expected) in [
            (r#"{"weight": 5}"#, "missing field `value`"),
            (r#"{"value": "a"}"#, "missing field `weight`"),
            (r#"{"value": "a", "weight": 0}"#, "weight: use 1 to 1000000"),
            (r#"{"value": "a", "weight": 1000001}"#, "weight: use 1 to 1000000"),
            (r#"{"value": "a", "weight": -1}"#, "invalid value"),
            (r#"{"value": "a", "weight": 1, "rate": "5/s"}"#, "unknown field `rate`"),
            (r#"{"value": "a", "weight": 1, "for": "0s"}"#, "for: no time at all"),
        ] {
            assert!(set(body).contains(expected), "{body}: {}", set(body));
        }
        let long = format!(r#"{{"value": "{}"}}"#, "x".repeat(129));
        let error = serde_json::from_str::<ResumeValue>(&long).unwrap_err().to_string();
        assert!(error.contains("it has 129 bytes"), "{error}");
        assert!(serde_json::from_str::<ResumeValue>(&long.replacen('x', "", 1)).is_ok());
    }
}
