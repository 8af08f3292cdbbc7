//! Cuts bodies of deliveries as they arrive: those for which there is no room, or that nobody wants. It has no I/O.

use std::fmt;
use std::sync::Arc;

use super::content::body_size;
use super::frame::Head;
use super::method::is_redelivery;

/// Decides which bodies are accepted.
pub(crate) trait Admit: fmt::Debug + Send + Sync {
    /// Whether the body of a delivery on this channel is accepted, given its length. `redelivered` is the broker's
    /// flag.
    fn admit(&self, channel: u16, body: u64, redelivered: bool) -> bool;

    /// Called for each frame of a body that is cut.
    fn cut(&self);

    /// Whether a message on this channel whose body is cut keeps its properties.
    fn keeps_properties(&self, channel: u16) -> bool {
        let _ = channel;
        false
    }
}

/// Cuts every body and keeps all properties, for a reader of nothing else.
#[derive(Debug)]
pub(crate) struct HeadsOnly;

impl Admit for HeadsOnly {
    fn admit(&self, _channel: u16, _body: u64, _redelivered: bool) -> bool {
        false
    }

    fn cut(&self) {}

    fn keeps_properties(&self, _channel: u16) -> bool {
        true
    }
}

/// What remains of a message whose body is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    /// Nothing but a mark with the length of the body.
    Length(u64),
    /// Its properties, and a mark with the length of the body.
    Properties,
}

/// The bodies of one connection. Without an [`Admit`], all of them pass.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    admit: Option<Arc<dyn Admit>>,
    /// The channels whose next content header belongs to a message that was delivered before.
    redelivered: Vec<u16>,
    /// The channels whose body is being cut, and how many bytes of it are still to come.
    cut: Vec<(u16, u64)>,
}

impl Bodies {
    pub(super) fn new(admit: Option<Arc<dyn Admit>>) -> Self {
        Self { admit, ..Self::default() }
    }

    /// Records a method, by its payload, since a delivery may begin.
    pub(super) fn method(&mut self, channel: u16, payload: &[u8]) {
        if self.admit.is_some() {
            self.redelivered.retain(|other| *other != channel);
            self.cut.retain(|(other, _)| *other != channel);
            if is_redelivery(payload) {
                self.redelivered.push(channel);
            }
        }
    }

    /// Decides on the body that follows a content header. Returns what remains of the message if it is cut.
    pub(super) fn header(&mut self, channel: u16, payload: &[u8]) -> Option<Remains> {
        let (admit, size) = (self.admit.as_ref()?, body_size(payload)?);
        let index = self.redelivered.iter().position(|redelivered| *redelivered == channel);
        let is_redelivered = index.map(|index| self.redelivered.swap_remove(index)).is_some();
        if admit.admit(channel, size, is_redelivered) {
            return None;
        }
        let keeps = admit.keeps_properties(channel);
        if size > 0 {
            self.cut.push((channel, size));
        }
        Some(if keeps { Remains::Properties } else { Remains::Length(size) })
    }

    /// Whether a frame of a body on this channel is cut.
    pub(super) fn is_cut(&self, channel: u16) -> bool {
        self.cut.iter().any(|(cut, _)| *cut == channel)
    }

    /// Records that this frame of a body is cut.
    pub(super) fn cut(&mut self, head: Head) {
        self.admit.iter().for_each(|admit| admit.cut());
        if let Some((_, left)) = self.cut.iter_mut().find(|(channel, _)| *channel == head.channel) {
            *left = left.saturating_sub(head.payload.into());
        }
        self.cut.retain(|(_, left)| *left > 0);
    }
}
