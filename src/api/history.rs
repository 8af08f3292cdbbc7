//! The last changes by operators, over all replicas.

use serde::{Deserialize, Serialize};

use super::Millis;

/// The answer of `GET .../changes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The name of the downstream.
    pub name: String,
    /// The changes, the oldest first.
    pub changes: Vec<Change>,
}

/// A change by an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When it was noted, on the store's clock.
    #[serde(default)]
    pub at: Millis,
    /// Who made it.
    #[serde(flatten)]
    pub author: Author,
    /// The change in a word or two, such as `rate set`.
    pub change: String,
    /// What of the downstream was changed, where that is not the whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub chosen: String,
    /// The state before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub before: String,
    /// The state after.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub after: String,
    /// The reason that was given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Whether it is not known if it was made.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_unknown: bool,
}

/// Who made a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The name of the token; or that in the client's certificate; or the address that the request came from.
    pub by: String,
    /// The name in the certificate that the client has shown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// The name that the client claimed, which nothing proves.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claimed: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}
