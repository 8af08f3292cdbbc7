//! What one replica goes by while it cannot share the pace.

mod replica_share;

pub(crate) use replica_share::replica_share;
