//! Service IDs: 64 bits that identify a service in a connection request, a path query or a service
//! record (IBA annex A3). A listener matches all 64 bits.

/// A service ID. The first byte identifies the authority that assigned the other bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

hex_number!(ServiceId(u64), 18);
