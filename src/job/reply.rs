//! Decides where a reply may go. It has no I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

use super::shown;

/// The prefix of every name of RabbitMQ's Direct Reply-To.
const DIRECT: &str = "amq.rabbitmq.reply-to";

/// Which queues a job may name as its `reply_to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyRules {
    /// The allowed prefixes of the name; "" allows every name.
    pub allow: Vec<String>,
    /// The prefix of paced's own queues, such as `paced.`, which are never allowed.
    pub own: Option<String>,
    /// The queues that downstreams consume, which are never allowed.
    pub consumed: Arc<BTreeSet<String>>,
}

impl Default for ReplyRules {
    /// Allows every queue, since no queues of paced are known.
    fn default() -> Self {
        Self { allow: vec![String::new()], own: None, consumed: Arc::default() }
    }
}

impl ReplyRules {
    /// Whether a reply may go to this queue.
    ///
    /// # Errors
    /// A text that says why not, and what would be right.
    pub fn permit(&self, queue: &str) -> Result<(), String> {
        let name = shown(queue.as_bytes(), 60);
        let own = self.own.as_deref().is_some_and(|prefix| queue.starts_with(prefix));
        if own || self.consumed.contains(queue) {
            return Err(format!("reply_to is `{name}`, a queue of paced itself; send one of your own"));
        }
        if queue.starts_with(DIRECT) && !is_direct(queue) {
            return Err(format!(
                "reply_to is `{name}`, which no broker makes for Direct Reply-To; consume from \
                 `{DIRECT}` on the channel that publishes, and send that"
            ));
        }
        if !self.allow.iter().any(|prefix| queue.starts_with(prefix.as_str())) {
            return Err(format!("reply_to is `{name}`, which `reply.allow` does not allow; add it there"));
        }
        Ok(())
    }
}

/// Whether this is the name of a requester as a broker makes them: the process of its channel and a key, each
/// in base64.
///
/// Brokers up to 4.1 decode these names without validation: a malformed one crashes their channel, and with it the
/// connection that publishes to it.
fn is_direct(queue: &str) -> bool {
    let parts = queue.strip_prefix(DIRECT).and_then(|rest| rest.strip_prefix('.'));
    let Some((process, key)) = parts.and_then(|rest| rest.split_once('.')) else { return false };
    let process = base64(process);
    process.is_some_and(|term| is_process(&term)) && base64(key).is_some_and(|key| !key.is_empty())
}

/// Whether `term` is the id of a process in Erlang's external term format, on a node such as `reply@3508`: in such a
/// term RabbitMQ writes a number in place of the host of its node.
fn is_process(term: &[u8]) -> bool {
    const VERSION: u8 = 131;
    const NEW_PID: u8 = 88;
    const PID: u8 = 103;
    let [VERSION, tag, rest @ ..] = term else { return false };
    // The fields are id, serial and creation.
    let numbers = match *tag {
        NEW_PID => 12,
        PID => 9,
        _ => return false,
    };
    // An atom: with a length of two bytes (Latin-1, UTF-8), or of one.
    let (length, atom) = match rest {
        [100 | 118, high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        [115 | 119, length, rest @ ..] => (usize::from(*length), rest),
        _ => return false,
    };
    let Some((node, after)) = atom.split_at_checked(length) else { return false };
    let hash = str::from_utf8(node).ok().and_then(|node| node.split_once('@')).map(|(_, hash)| hash);
    let named = hash.is_some_and(|hash| hash.len() <= 10 && hash.parse::<u32>().is_ok());
    named && after.len() == numbers
}

/// The bytes of a text in base64 (RFC 4648, with padding, as brokers write it). Bits that are left over may be anything.
fn base64(text: &str) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&STANDARD, LENIENT).decode(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Names as RabbitMQ 3.10 and 4 make them: `reply@<hash>`, `generated@<hash>`.
    const REAL: [&str; 2] = [
        "amq.rabbitmq.reply-to.g1h3DnJlcGx5QDQxNjc0MTA2AAADOgAAAABnb1Vb.kZcTtkQJ0F5VRCmTRRgxCQ==",
        "amq.rabbitmq.reply-to.g2dkABJnZW5lcmF0ZWRANDE2NzQxMDYAAAM6AAAAAAM=.kZcTtkQJ0F5VRCmTRRgxCQ==",
    ];

    fn rules(allow: &[&str]) -> ReplyRules {
        ReplyRules {
            allow: allow.iter().map(|prefix| (*prefix).to_owned()).collect(),
            own: Some("paced.".to_owned()),
            consumed: Arc::new(["invoices".to_owned()].into()),
        }
    }

    #[test]
    fn replies_go_where_they_are_allowed_and_never_to_paced_itself() {
        let all = rules(&["amq.rabbitmq.reply-to", ""]);
        for queue in ["replies", "amq.gen-x", "invoices.replies", "pacedx", REAL[0], REAL[1]] {
            assert_eq!(all.permit(queue), Ok(()), "{queue}");
        }
        for queue in ["paced.jobs.billing", "paced.dead.billing", "paced.unroutable", "invoices"] {
            assert!(all.permit(queue).unwrap_err().contains("a queue of paced itself"), "{queue}");
        }
        let some = rules(&["amq.rabbitmq.reply-to", "replies."]);
        assert_eq!((some.permit("replies.a"), some.permit(REAL[0])), (Ok(()), Ok(())));
        for queue in ["other", "replies", "amq.gen-x"] {
            assert!(some.permit(queue).unwrap_err().contains("`reply.allow`"), "{queue}");
        }
        assert!(rules(&[]).permit("replies").is_err());
        assert_eq!(
            all.permit("paced.\u{202e}x").unwrap_err(),
            "reply_to is `paced.\\u{202e}x`, a queue of paced itself; send one of your own"
        );
    }

    #[test]
    fn names_for_direct_reply_to_that_no_broker_makes_are_refused() {
        let all = rules(&[""]);
        let changed = |from: &str, to: &str| REAL[0].replace(from, to);
        for queue in [
            "amq.rabbitmq.reply-to".to_owned(),
            "amq.rabbitmq.reply-to.".to_owned(),
            "amq.rabbitmq.reply-to.x".to_owned(),
            "amq.rabbitmq.reply-to.x.y".to_owned(),
            "amq.rabbitmq.reply-to..".to_owned(),
            "amq.rabbitmq.reply-tox".to_owned(),
            // In turn: no base64, no term, no process, cut short, a node with a name.
            changed("g1h3", "g1h!"),
            changed("g1h3", "AAAA"),
            changed("g1h3", "g2FB"),
            changed("AABnb1Vb.", "AABn."),
            changed("DnJlcGx5QDQxNjc0MTA2", "DnJlcGx5QHJhYmJpdG1x"),
            changed(".kZcTtkQJ0F5VRCmTRRgxCQ==", ".a=bc"),
            format!("{}.more", REAL[0]),
        ] {
            assert!(!REAL.contains(&queue.as_str()), "changed");
            let refused = all.permit(&queue).expect_err(&queue);
            assert!(refused.contains("Direct Reply-To"), "{refused}");
        }
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmF=", "fooba"),
        ] {
            assert_eq!(base64(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        for text in ["Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Z=g=", "Zm9-", "Zm 9"] {
            assert_eq!(base64(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_name_makes_it_panic(rest in "[A-Za-z0-9+/=.@]{0,80}") {
            let _ = rules(&[""]).permit(&format!("amq.rabbitmq.reply-to.{rest}"));
        }
    }
}
