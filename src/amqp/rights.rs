//! Determines the user's permissions by calls that the broker refuses in any case, but with another error where a
//! permission is missing.

use lapin::options::{BasicConsumeOptions, BasicPublishOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection};

use super::connection::{ANSWER, ask, channel, close, confirming};
use super::error::{Error, soft, text};
use super::topology::short;

/// Checks that the user may consume the queue. It requests a consumer whose priority is not a number, which no broker
/// accepts.
///
/// # Errors
/// [`Error::Refused`] if the user may not; any other error of the broker except the expected one.
pub(super) async fn check_consume(connection: &Connection, queue: &str) -> Result<(), Error> {
    let channel = channel(connection).await?;
    let mut arguments = FieldTable::default();
    arguments.insert(short("x-priority")?, AMQPValue::LongString("paced-check".into()));
    let options = BasicConsumeOptions::default();
    let consume = channel.basic_consume(short(queue)?, "".into(), options, arguments);
    let consumed = ask(&format!("queue {queue}"), consume).await;
    close(&channel).await;
    match consumed {
        // A broker that accepts the consumer has cancelled it with the channel.
        Ok(_) | Err(Error::Inequivalent { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The reason why the user may not publish through the default exchange. It is determined by a message for a queue
/// that does not exist, which the broker returns. `None` where the user may, or the broker does not say.
pub(super) async fn refused_publish(connection: &Connection) -> Option<String> {
    let channel = confirming(connection).await.ok()?;
    let published = async {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let key = format!("paced.check.{:016x}", fastrand::u64(..));
        let key = short(&key).ok()?;
        let confirm = channel.basic_publish("".into(), key, options, b"", BasicProperties::default()).await;
        let error = match confirm {
            Ok(confirm) => confirm.await.err()?,
            Err(error) => error,
        };
        (soft(&error) == Some(AMQPSoftError::ACCESSREFUSED)).then(|| text(&error))
    };
    let refused = tokio::time::timeout(ANSWER, published).await.ok().flatten();
    close(&channel).await;
    refused
}
