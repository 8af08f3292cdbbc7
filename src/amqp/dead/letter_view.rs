//! A letter as it lies in its queue, and the choice of letters that a command takes. It has no I/O.

use std::time::Duration;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery;

use crate::amqp::guard::{Mark, take_mark};
use crate::amqp::letter::{
    ATTEMPTS, DEAD_AT, DETAIL, REASON, STATUS, header, is_by_broker, is_parked, is_report, parked_key,
    response, routing_key,
};
use crate::amqp::message::{message, value};
use crate::job::{Message, Reason, Value};
use crate::time::Micros;

/// One dead letter, or one message that reached no downstream's queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// The job as it was delivered, with the report among its headers.
    pub message: Message,
    /// All properties and headers as they were delivered.
    pub properties: BasicProperties,
    /// `paced-reason`. `None` where the broker dead-lettered the message, and for most unroutable messages. A header
    /// with this name, or with that of a field below, is the producer's then, and does not count.
    pub reason: Option<String>,
    /// `paced-detail`.
    pub detail: Option<String>,
    /// `paced-status`.
    pub status: Option<String>,
    /// `paced-attempts`.
    pub attempts: Option<String>,
    /// The routing key that its job was published with, where it is known.
    pub routing_key: Option<String>,
    /// `paced-dead-at`: epoch ms.
    pub dead_at: Option<String>,
    /// `paced-response`: the beginning of the API's answer. Bytes that are not UTF-8 are replacement characters here;
    /// the headers of `properties` have them unchanged.
    pub response: Option<String>,
}

impl Letter {
    /// Opens a message of the dead letters. One that the broker put there by itself has no report: headers with such names
    /// are its producer's.
    pub(super) fn dead(mut delivery: Delivery) -> Self {
        let malformed = take_mark(&mut delivery.properties).and_then(Mark::malformed);
        let key = routing_key(&delivery.properties);
        let has_report = !is_by_broker(&delivery.properties);
        Self::open(delivery, key, malformed, has_report)
    }

    /// Opens a message that reached no downstream's queue. The routing key of a parked job is in its headers. These
    /// headers and those of a report count only if `is_ours`: then the message was published to an exchange to which
    /// only paced publishes. Producers publish to other exchanges: to that of jobs, or to one that an operator has
    /// bound to an exchange of paced.
    pub(super) fn unroutable(mut delivery: Delivery, is_ours: bool) -> Self {
        let malformed = take_mark(&mut delivery.properties).and_then(Mark::malformed);
        let is_parked = is_ours && is_parked(&delivery.properties);
        let parked = is_parked.then(|| parked_key(&delivery.properties)).flatten();
        let key = parked.unwrap_or_else(|| delivery.routing_key.clone()).to_string();
        Self::open(delivery, Some(key), malformed, is_ours)
    }

    fn open(
        delivery: Delivery,
        routing_key: Option<String>,
        malformed: Option<String>,
        has_report: bool,
    ) -> Self {
        let Delivery { properties, data, .. } = delivery;
        let header = |name| if has_report { header(&properties, name) } else { None };
        // A letter that the broker or another client put there may be malformed. Then that is its reason, and its
        // header does not count.
        let reason = match malformed {
            Some(_) => Some(Reason::MalformedHeader.to_string()),
            None => header(REASON),
        };
        let key = routing_key.as_deref().unwrap_or_default();
        Self {
            reason,
            detail: malformed.clone().or_else(|| header(DETAIL)),
            status: header(STATUS),
            attempts: header(ATTEMPTS),
            dead_at: header(DEAD_AT),
            response: if has_report { response(&properties) } else { None },
            message: message(key, &properties, Bytes::from(data), malformed),
            routing_key,
            properties,
        }
    }

    /// `paced-dead-at`, where it is a number.
    pub(super) fn died_at(&self) -> Option<Micros> {
        let millis: i64 = self.dead_at.as_ref()?.parse().ok()?;
        Some(Micros(millis.saturating_mul(1000)))
    }

    /// The job as its producer published it, without the report.
    pub fn job(&self) -> Message {
        let mut job = self.message.clone();
        job.headers.retain(|(name, _)| !is_report(name));
        job
    }

    /// The value of any header, also of one that paced does not read.
    pub fn header(&self, name: &str) -> Option<Value> {
        self.properties.headers().as_ref()?.inner().get(name).map(value)
    }
}

/// A choice of letters. A letter matches if it meets every condition that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only letters with this `paced-reason`.
    pub reason: Option<String>,
    /// Only letters with this `paced-status`.
    pub status: Option<u16>,
    /// Only letters whose job has this `message_id`.
    pub id: Option<String>,
    /// Only letters whose job was published with exactly this routing key.
    pub key: Option<String>,
    /// Only letters whose `paced-dead-at` is at least this long ago. Letters without it have no age, and do not
    /// match.
    pub older_than: Option<Duration>,
    /// Only letters whose `paced-dead-at` is less long ago. Letters without it have no age, and do not match.
    pub newer_than: Option<Duration>,
}

impl Filter {
    /// True where every letter matches.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the letter matches; `now` is the wall clock's instant.
    pub(super) fn takes(&self, letter: &Letter, now: Micros) -> bool {
        fn is<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none_or(|wanted| found == Some(wanted))
        }
        let status = letter.status.as_ref().and_then(|status| status.parse().ok());
        // It is zero where the time is in the future.
        let age = letter.died_at().map(|at| now.since(at));
        is(self.reason.as_ref(), letter.reason.as_ref())
            && is(self.status.as_ref(), status.as_ref())
            && is(self.id.as_ref(), letter.message.message_id.as_ref())
            && is(self.key.as_ref(), letter.routing_key.as_ref())
            && self.older_than.is_none_or(|least| age.is_some_and(|age| age >= least))
            && self.newer_than.is_none_or(|most| age.is_some_and(|age| age < most))
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::{AMQPValue, FieldArray, FieldTable};

    use super::*;
    use crate::amqp::topology::Names;

    const NOW: Micros = Micros(1_700_000_000_000_000);
    const HOUR: Duration = Duration::from_secs(3600);

    fn letter(dead_at: Option<i64>) -> Letter {
        Letter {
            message: Message { message_id: Some("a".to_owned()), ..Message::default() },
            properties: BasicProperties::default(),
            reason: Some("status".to_owned()),
            detail: None,
            status: Some("422".to_owned()),
            attempts: None,
            routing_key: Some("billing.eu".to_owned()),
            dead_at: dead_at.map(|at| at.to_string()),
            response: None,
        }
    }

    /// A delivery over this exchange, with the headers of a report and of a parked job, and perhaps the broker's account of a
    /// dead-lettering.
    fn delivery(exchange: &str, is_by_broker: bool) -> Delivery {
        let mut headers = FieldTable::default();
        let all = [REASON, DETAIL, STATUS, ATTEMPTS, DEAD_AT, "paced-response", "paced-parked"];
        for name in all {
            headers.insert(name.into(), AMQPValue::LongString("7".into()));
        }
        headers.insert("paced-routing-key".into(), AMQPValue::LongString("other.x".into()));
        if is_by_broker {
            headers.insert("x-death".into(), AMQPValue::FieldArray(FieldArray::default()));
        }
        let mut delivery = Delivery::mock(1, exchange.into(), "billing.eu".into(), false, Vec::new());
        delivery.properties = BasicProperties::default().with_headers(headers);
        delivery
    }

    /// Whether the letter has all of a report, or nothing of it.
    #[track_caller]
    fn has_report(letter: &Letter) -> bool {
        let Letter { reason, detail, status, attempts, dead_at, response, .. } = letter;
        let all = [reason, detail, status, attempts, dead_at, response];
        let found = all.iter().filter(|field| field.is_some()).count();
        assert!([0, all.len()].contains(&found), "{letter:?}");
        found > 0
    }

    /// A job may have an `expiration`, and any headers.
    #[test]
    fn a_letter_of_the_broker_has_no_report() {
        assert!(has_report(&Letter::dead(delivery("", false))));
        let brokers = Letter::dead(delivery("", true));
        assert!(!has_report(&brokers));
        assert!(brokers.job().headers.is_empty(), "they are no part of the job either");
    }

    /// It would be published for a downstream that the producer may not publish for.
    #[test]
    fn what_a_producer_says_of_an_unroutable_message_does_not_count() {
        let names = Names::new("p");
        for (exchange, is_ours) in [
            ("p.jobs", false),
            ("p.unroutable", false),
            // What is published to a queue by its name.
            ("", false),
            // One that an operator has bound to an exchange of paced.
            ("legacy", false),
            ("p.park.3s", false),
            ("p.wait.billing.5s", false),
            ("p.wait.4s", false),
            ("q.wait.billing.4s", false),
            ("p.home", true),
            ("p.park.2s", true),
            ("p.wait.billing.4s", true),
        ] {
            let opened = Letter::unroutable(delivery(exchange, false), names.is_own_exchange(exchange));
            let key = if is_ours { "other.x" } else { "billing.eu" };
            assert_eq!(
                (opened.routing_key.as_deref(), has_report(&opened)),
                (Some(key), is_ours),
                "{exchange}"
            );
        }
    }

    #[test]
    fn everything_that_is_given_must_hold() {
        let text = |text: &str| Some(text.to_owned());
        let filter = Filter::default;
        let good = Filter {
            reason: text("status"),
            status: Some(422),
            id: text("a"),
            key: text("billing.eu"),
            older_than: Some(HOUR),
            newer_than: Some(2 * HOUR),
        };
        let letter = letter(Some(NOW.minus(HOUR).0 / 1000));
        assert!(filter().takes(&letter, NOW) && filter().is_empty());
        assert!(good.takes(&letter, NOW) && !good.is_empty());
        for bad in [
            Filter { reason: text("expired"), ..good.clone() },
            Filter { status: Some(42), ..good.clone() },
            Filter { id: text("A"), ..good.clone() },
            Filter { key: text("billing"), ..good.clone() },
            Filter { older_than: Some(HOUR + Duration::from_millis(1)), ..good.clone() },
            Filter { newer_than: Some(HOUR), ..good.clone() },
        ] {
            assert!(!bad.takes(&letter, NOW), "{bad:?}");
        }
    }

    #[test]
    fn letters_without_a_time_have_no_age() {
        let older = Filter { older_than: Some(Duration::ZERO), ..Filter::default() };
        let newer = Filter { newer_than: Some(1000 * HOUR), ..Filter::default() };
        for filter in [&older, &newer] {
            assert!(!filter.takes(&letter(None), NOW), "{filter:?}");
            assert!(!filter.takes(&Letter { dead_at: Some("soon".to_owned()), ..letter(None) }, NOW));
        }
        // The clocks of two machines differ a little.
        let ahead = letter(Some(NOW.0 / 1000 + 5));
        assert!(older.takes(&ahead, NOW) && newer.takes(&ahead, NOW));
        assert!(!newer.takes(&letter(Some(i64::MIN)), NOW), "and nothing overflows");
    }

    #[test]
    fn a_letter_without_the_field_does_not_match() {
        let bare = Letter { reason: None, status: None, routing_key: None, ..letter(None) };
        for filter in [
            Filter { reason: Some("status".to_owned()), ..Filter::default() },
            Filter { status: Some(422), ..Filter::default() },
            Filter { key: Some(String::new()), ..Filter::default() },
        ] {
            assert!(!filter.takes(&bare, NOW), "{filter:?}");
        }
    }
}
