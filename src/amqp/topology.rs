//! Exchanges and queues: declares them, or checks them passively.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, Connection, ExchangeKind};

use super::connection::{ask, channel, close};
use super::error::{Error, NameTooLong};
use super::existing::Existing;
use super::ladder::Rung;
use super::{Downstream, Options};

/// The delivery limit of queues. It is so high that no job is dropped for its returns. It is set, so that a job that
/// is given back keeps its place. It is positive, because RabbitMQ 3.10 drops a job at its first return where the
/// limit is -1.
const DELIVERY_LIMIT: i64 = 1_000_000;

/// The names of exchanges and queues, which all begin with the prefix.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(super) fn jobs(&self) -> String {
        format!("{}.jobs", self.prefix)
    }

    pub(super) fn unroutable(&self) -> String {
        format!("{}.unroutable", self.prefix)
    }

    pub(super) fn dead(&self, downstream: &str) -> String {
        format!("{}.dead.{downstream}", self.prefix)
    }

    /// The exchange of jobs that come back from where they were parked.
    pub(super) fn home(&self) -> String {
        format!("{}.home", self.prefix)
    }

    /// The queue of a downstream's jobs that came back from where they were parked.
    pub(super) fn home_queue(&self, downstream: &str) -> String {
        format!("{}.home.{downstream}", self.prefix)
    }

    /// The exchange of a rung that all downstreams share, and its queue.
    pub(super) fn park(&self, rung: Rung) -> Delay {
        Delay { name: format!("{}.park.{}s", self.prefix, rung.units()), rung, is_own: false }
    }

    /// The exchanges of a downstream's own rungs, and their queues, the shortest stay first.
    pub(super) fn waits(&self, downstream: &str) -> impl Iterator<Item = Delay> + use<> {
        let base = format!("{}.wait.{downstream}", self.prefix);
        Rung::own().map(move |rung| Delay { name: format!("{base}.{}s", rung.units()), rung, is_own: true })
    }

    /// Whether only paced publishes to this exchange: to one of parked jobs (of any downstream, also of one that is not
    /// configured here), or to that of jobs that come back.
    pub(super) fn is_own_exchange(&self, exchange: &str) -> bool {
        let is_wait = |rung: Rung| {
            let rest = exchange.strip_prefix(&*self.prefix).and_then(|rest| rest.strip_prefix(".wait."));
            let downstream = rest.and_then(|rest| rest.strip_suffix(&format!(".{}s", rung.units())));
            downstream.is_some_and(|downstream| !downstream.is_empty())
        };
        exchange == self.home()
            || Rung::all().any(|rung| exchange == self.park(rung).name)
            || Rung::own().any(is_wait)
    }

    pub(super) fn queue(&self, downstream: &Downstream) -> String {
        downstream.queue.clone().unwrap_or_else(|| self.jobs_queue(&downstream.name))
    }

    /// The queue that jobs with this downstream's name as routing key reach.
    pub(super) fn jobs_queue(&self, downstream: &str) -> String {
        format!("{}.jobs.{downstream}", self.prefix)
    }
}

/// A queue that keeps messages for a time, and its exchange, which has the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delay {
    pub(super) name: String,
    pub(super) rung: Rung,
    /// Whether it is a downstream's own, which is consumed at times.
    pub(super) is_own: bool,
}

/// Ensures that one downstream's exchanges and queues exist, for callers that need no others.
///
/// Every call uses a channel of its own, since the broker closes it when it refuses a declaration.
pub(super) async fn ensure(
    connection: &Connection,
    options: &Options,
    downstream: &Downstream,
) -> Result<(), Error> {
    let existing = Existing::default();
    loop {
        let channel = channel(connection).await?;
        let ensured = async {
            if needs_shared(options, downstream) {
                ensure_shared(&channel, &existing, options).await?;
            }
            ensure_own(&channel, &existing, options, downstream).await
        };
        let ensured = ensured.await;
        close(&channel).await;
        match ensured {
            Err(error) if existing.note(&error) => {}
            ensured if is_needless(options, &ensured) => return Ok(()),
            ensured => return ensured,
        }
    }
}

/// Whether a publisher may continue without the check: nothing is to be declared, and the user may not even inspect
/// (RabbitMQ 4.3 requires some permission for that). A missing queue then causes an error when something is
/// published.
pub(super) const fn is_needless(options: &Options, ensured: &Result<(), Error>) -> bool {
    !options.declare && matches!(ensured, Err(Error::Refused { .. }))
}

/// Whether the downstream uses the shared exchanges and queues. A downstream that consumes an existing queue needs
/// none of them, but `declare` still promises them.
pub(super) const fn needs_shared(options: &Options, downstream: &Downstream) -> bool {
    options.declare || downstream.queue.is_none()
}

/// Ensures that the shared exchanges and queues exist.
pub(super) async fn ensure_shared(
    channel: &Channel,
    existing: &Existing,
    options: &Options,
) -> Result<(), Error> {
    let names = options.names();
    if options.declare {
        return declare_exchanges(channel, existing, &names).await;
    }
    find_exchange(channel, &names.jobs()).await?;
    find_exchange(channel, &names.unroutable()).await?;
    find_queue(channel, &names.unroutable()).await.map(|_| ())
}

/// Ensures that the downstream's own queues exist.
pub(super) async fn ensure_own(
    channel: &Channel,
    existing: &Existing,
    options: &Options,
    downstream: &Downstream,
) -> Result<(), Error> {
    let names = options.names();
    if options.declare {
        return declare_queues(channel, existing, &names, downstream).await;
    }
    find_queue(channel, &names.queue(downstream)).await?;
    find_queue(channel, &names.dead(&downstream.name)).await.map(|_| ())
}

/// Ensures that a downstream's jobs can come back from where they are parked.
pub(super) async fn ensure_home(
    channel: &Channel,
    existing: &Existing,
    options: &Options,
    downstream: &Downstream,
) -> Result<(), Error> {
    let names = options.names();
    let (home, queue) = (names.home(), names.home_queue(&downstream.name));
    if !options.declare {
        find_exchange(channel, &home).await?;
        return find_queue(channel, &queue).await.map(|_| ());
    }
    // A job whose downstream is gone would hold up all others on its rung.
    declare_exchange(channel, &home, ExchangeKind::Direct, alternate(&names)?).await?;
    declare_queue(channel, existing, &queue, home_arguments(&names, &downstream.name)?).await?;
    bind(channel, &queue, &home, &downstream.name).await
}

/// Ensures that a rung exists.
pub(super) async fn ensure_rung(channel: &Channel, options: &Options, delay: &Delay) -> Result<(), Error> {
    let (names, Delay { name, rung, is_own }) = (options.names(), delay);
    if !options.declare {
        find_exchange(channel, name).await?;
        return find_queue(channel, name).await.map(|_| ());
    }
    let stay = i64::try_from(rung.stay(options.rung_unit).as_millis()).unwrap_or(i64::MAX);
    let mut arguments = if *is_own { letters_arguments()? } else { quorum() };
    arguments.insert(short("x-message-ttl")?, AMQPValue::LongLongInt(stay));
    arguments.insert(short("x-overflow")?, text("reject-publish"));
    arguments.insert(short("x-dead-letter-exchange")?, text(&names.home()));
    arguments.insert(short("x-dead-letter-strategy")?, text("at-least-once"));
    // Without its queue, what is published to the exchange must not vanish.
    declare_exchange(channel, name, ExchangeKind::Fanout, alternate(&names)?).await?;
    // A rung with another time to live must not be used as it is.
    declare_queue(channel, &Existing::default(), name, arguments).await?;
    bind(channel, name, name, "").await
}

/// The arguments of an exchange from which nothing is lost.
fn alternate(names: &Names) -> Result<FieldTable, Error> {
    let mut arguments = FieldTable::default();
    arguments.insert(short("alternate-exchange")?, text(&names.unroutable()));
    Ok(arguments)
}

/// The arguments of the queue that a downstream's jobs are published to.
pub(super) fn jobs_arguments(names: &Names, downstream: &Downstream) -> Result<FieldTable, Error> {
    let mut arguments = home_arguments(names, &downstream.name)?;
    if let Some(most) = downstream.max_length {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        arguments.insert(short("x-max-length")?, AMQPValue::LongLongInt(most));
    }
    Ok(arguments)
}

/// The arguments of the queue that a downstream's jobs come back to from where they are parked.
pub(super) fn home_arguments(names: &Names, downstream: &str) -> Result<FieldTable, Error> {
    let mut arguments = quorum();
    arguments.insert(short("x-delivery-limit")?, AMQPValue::LongLongInt(DELIVERY_LIMIT));
    arguments.insert(short("x-overflow")?, text("reject-publish"));
    arguments.insert(short("x-dead-letter-exchange")?, text(""));
    arguments.insert(short("x-dead-letter-routing-key")?, text(&names.dead(downstream)));
    arguments.insert(short("x-dead-letter-strategy")?, text("at-least-once"));
    Ok(arguments)
}

/// Declares the exchange that jobs are published to, and that of jobs whose downstream does not exist.
async fn declare_exchanges(channel: &Channel, existing: &Existing, names: &Names) -> Result<(), Error> {
    let unroutable = names.unroutable();
    declare_exchange(channel, &unroutable, ExchangeKind::Fanout, FieldTable::default()).await?;
    declare_queue(channel, existing, &unroutable, letters_arguments()?).await?;
    bind(channel, &unroutable, &unroutable, "").await?;
    declare_exchange(channel, &names.jobs(), ExchangeKind::Topic, alternate(names)?).await
}

async fn declare_queues(
    channel: &Channel,
    existing: &Existing,
    names: &Names,
    downstream: &Downstream,
) -> Result<(), Error> {
    let dead = names.dead(&downstream.name);
    declare_queue(channel, existing, &dead, letters_arguments()?).await?;

    let queue = names.queue(downstream);
    if downstream.queue.is_some() {
        return find_queue(channel, &queue).await.map(|_| ());
    }
    declare_queue(channel, existing, &queue, jobs_arguments(names, downstream)?).await?;
    bind(channel, &queue, &names.jobs(), &format!("{}.#", downstream.name)).await
}

/// Fails where the exchange does not exist.
pub(super) async fn find_exchange(channel: &Channel, name: &str) -> Result<(), Error> {
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let declare = channel.exchange_declare(short(name)?, ExchangeKind::Topic, options, FieldTable::default());
    ask(&format!("exchange {name}"), declare).await
}

/// The number of messages in the queue; fails if the queue does not exist.
pub(super) async fn find_queue(channel: &Channel, name: &str) -> Result<u32, Error> {
    queue_counts(channel, name).await.map(|(ready, _)| ready)
}

/// The numbers of messages and of consumers of the queue; fails if the queue does not exist.
pub(super) async fn queue_counts(channel: &Channel, name: &str) -> Result<(u32, u32), Error> {
    let options = QueueDeclareOptions::default().passive();
    let declare = channel.queue_declare(short(name)?, options, FieldTable::default());
    let queue = ask(&format!("queue {name}"), declare).await?;
    Ok((queue.message_count(), queue.consumer_count()))
}

/// Returns the number of messages in a queue.
pub(super) async fn count(connection: &Connection, queue: &str) -> Result<u32, Error> {
    // The broker closes the channel where the queue is missing.
    let channel = channel(connection).await?;
    let count = find_queue(&channel, queue).await;
    close(&channel).await;
    count
}

async fn declare_exchange(
    channel: &Channel,
    name: &str,
    kind: ExchangeKind,
    arguments: FieldTable,
) -> Result<(), Error> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    ask(&format!("exchange {name}"), channel.exchange_declare(short(name)?, kind, options, arguments)).await
}

/// The arguments of a queue whose messages are listed. Listing gives them back to their queue, so the queue needs the
/// delivery limit too.
pub(super) fn letters_arguments() -> Result<FieldTable, Error> {
    let mut arguments = quorum();
    arguments.insert(short("x-delivery-limit")?, AMQPValue::LongLongInt(DELIVERY_LIMIT));
    Ok(arguments)
}

/// Declares a queue. If it exists with other arguments, it is used as it is.
async fn declare_queue(
    channel: &Channel,
    existing: &Existing,
    name: &str,
    arguments: FieldTable,
) -> Result<(), Error> {
    if existing.has(name) {
        let found = find_queue(channel, name).await;
        if matches!(found, Err(Error::NotFound { .. })) {
            // The broker has closed the channel, so the next attempt declares the queue.
            existing.forget(name);
        }
        return found.map(|_| ());
    }
    let declare = channel.queue_declare(short(name)?, QueueDeclareOptions::durable(), arguments);
    ask(&format!("queue {name}"), declare).await.map(|_| ())
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<(), Error> {
    let options = QueueBindOptions::default();
    let bind =
        channel.queue_bind(short(queue)?, short(exchange)?, short(key)?, options, FieldTable::default());
    ask(&format!("queue {queue}, bound to {exchange}"), bind).await
}

/// Ends a binding, if there is one.
pub(super) async fn unbind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<(), Error> {
    let unbind = channel.queue_unbind(short(queue)?, short(exchange)?, short(key)?, FieldTable::default());
    ask(&format!("queue {queue}, bound to {exchange}"), unbind).await
}

fn quorum() -> FieldTable {
    FieldTable::from(std::collections::BTreeMap::from([("x-queue-type".into(), text("quorum"))]))
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// Converts a name to an AMQP short string of at most 255 bytes.
pub(super) fn short(name: &str) -> Result<ShortString, NameTooLong> {
    ShortString::try_new(name).map_err(|_| NameTooLong(name.to_owned()))
}
