//! Settles the deliveries of one channel in groups, in the background.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use lapin::Channel;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
};
use lapin::types::FieldTable;
use tokio::runtime::Handle;

use super::connection::ask;
use super::error::Error;
use super::tags::{Frame, Tags};
use super::topology::short;
use super::window::Unsettled;
use crate::lock::lock;

/// The most settlements that are written together.
const GROUP: usize = 64;

/// A settlement waits no longer than this for its group.
const LINGER: Duration = Duration::from_millis(10);

/// Owns a consuming channel: when the last handle is dropped, the channel closes, and the broker requeues what is
/// unacked.
pub(super) struct Acker {
    channel: Channel,
    queue: String,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tags: Tags,
    /// Whether a flush is scheduled within [`LINGER`].
    armed: bool,
    /// Whether anything was ever settled.
    has_settled: bool,
}

impl Acker {
    /// Must be called on a tokio runtime.
    pub(super) fn new(channel: Channel, queue: String) -> Arc<Self> {
        Arc::new(Self { channel, queue, runtime: Handle::current(), state: Mutex::default() })
    }

    pub(super) const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Registers a delivery. It must be called in the order of the tags, before the delivery can be settled.
    pub(super) fn delivered(&self, tag: u64) {
        lock(&self.state).tags.delivered(tag);
    }

    /// Registers that later tags belong to another consumer on this channel.
    pub(super) fn another_consumer(&self) {
        lock(&self.state).tags.another_consumer();
    }

    /// The deliveries that are not settled.
    pub(super) fn unsettled(&self) -> Unsettled {
        lock(&self.state).tags.unsettled()
    }

    /// Acks with the next group.
    pub(super) fn ack(self: &Arc<Self>, tag: u64) {
        let mut state = lock(&self.state);
        if state.tags.ack(tag) {
            state.has_settled = true;
            self.write_soon(&mut state);
        }
    }

    /// Gives back with the next group.
    pub(super) fn give_back(self: &Arc<Self>, tag: u64) {
        let mut state = lock(&self.state);
        if state.tags.give_back(tag) {
            state.has_settled = true;
            self.write_soon(&mut state);
        }
    }

    /// Writes all settlements, and waits until the queue has processed them. The caller consumes nothing on the
    /// channel afterwards.
    ///
    /// The broker's channel passes some 32 acks and give-backs at a time to a quorum queue. The rest waits in the
    /// channel, and is lost when the channel closes. So this starts a consumer and cancels it. The queue answers the
    /// consume once it has processed what the channel had passed on, and the cancel once it has processed the rest.
    /// In between, the broker delivers one job at most, which returns to the queue when the channel closes. If
    /// nothing was settled, nothing is asked.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// The channel is gone, or the broker does not answer; deliveries whose settlement was not processed come again.
    pub(super) async fn flush(&self) -> Result<(), Error> {
        self.write_now();
        if !lock(&self.state).has_settled {
            return Ok(());
        }
        let (what, channel) = ("flushing acks", &self.channel);
        ask(what, channel.basic_qos(1, BasicQosOptions::default())).await?;
        let queue = short(&self.queue)?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = ask(what, channel.basic_consume(queue, "".into(), options, arguments)).await?;
        ask(what, channel.basic_cancel(consumer.tag(), BasicCancelOptions::default())).await
    }

    /// Writes all settlements ahead of what is written to the channel next. Returns at once.
    pub(super) fn write_now(&self) {
        self.write(&mut lock(&self.state));
    }

    fn write_soon(self: &Arc<Self>, state: &mut State) {
        if state.tags.pending() >= GROUP {
            self.write(state);
        } else if !state.armed {
            state.armed = true;
            let acker = Arc::clone(self);
            self.runtime.spawn(async move {
                tokio::time::sleep(LINGER).await;
                let mut state = lock(&acker.state);
                state.armed = false;
                acker.write(&mut state);
            });
        }
    }

    /// Writes the settlements, under the lock, since the frames must be written in order.
    ///
    /// The first poll queues the frame; the rest of the future only waits until the frame has left. An error means
    /// that the channel is gone, and then the broker delivers all its messages again.
    fn write(&self, state: &mut State) {
        for frame in state.tags.flush() {
            let _ = match frame {
                Frame::Ack(tag) => self.channel.basic_ack(tag, BasicAckOptions::default()).now_or_never(),
                Frame::AckUpTo(tag) => {
                    self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).now_or_never()
                }
                Frame::GiveBack(tag) => {
                    let options = BasicNackOptions { multiple: false, requeue: true };
                    self.channel.basic_nack(tag, options).now_or_never()
                }
            };
        }
    }
}

impl fmt::Debug for Acker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acker").field("channel", &self.channel.id()).finish_non_exhaustive()
    }
}
