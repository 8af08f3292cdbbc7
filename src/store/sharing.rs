//! How a caller shares a downstream with other replicas: its lease, or a shorter horizon.

use std::time::Duration;

/// How a caller shares a downstream with other replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing<'a> {
    /// The call says nothing about it.
    #[default]
    None,
    /// Renews the replica's lease, and asks for the number of replicas; it is not needed with every call.
    Lease(Lease<'a>),
    /// How far ahead a slot may lie while other replicas work on the downstream; not allowed together with lanes.
    Horizon(SharedHorizon<'a>),
}

impl<'a> Sharing<'a> {
    /// The lease that is renewed.
    #[must_use]
    pub const fn lease(self) -> Option<Lease<'a>> {
        if let Self::Lease(lease) = self { Some(lease) } else { None }
    }

    /// The horizon while others work on the downstream.
    #[must_use]
    pub const fn horizon(self) -> Option<SharedHorizon<'a>> {
        if let Self::Horizon(shared) = self { Some(shared) } else { None }
    }
}

/// A replica's lease on a downstream: for a while it counts among the replicas that work on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    /// The id of the replica, 1 to 64 bytes long, unique among the replicas of a downstream.
    pub replica: &'a str,
    /// How long the lease lasts from the store's now on, up to [`LONGEST_LEASE`](super::LONGEST_LEASE).
    pub ttl: Duration,
}

/// How far ahead a slot may lie while others wait in order for slots of the downstream, or replicas hold leases on it:
/// slots far ahead would starve these. Only then the caller takes turns
/// ([`Reserve::asker`](super::Reserve::asker)), of one slot each, and before its turn it gets no slot that lies within
/// the turns of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedHorizon<'a> {
    /// The id of the caller, 1 to 64 bytes long. A lease under this id does not count.
    pub replica: &'a str,
    /// How far after the store's now a slot may lie while others wait or hold leases; otherwise
    /// [`Reserve::ahead`](super::Reserve::ahead) bounds it.
    pub horizon: Duration,
    /// Whether others wait in order in the caller's own process.
    pub waits_here: bool,
}
