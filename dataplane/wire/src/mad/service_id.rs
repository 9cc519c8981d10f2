//! Service IDs: the 64 bits that name a service in a connection request, a path query or a service
//! record (IBA annex A3). A listener matches all of them.

/// A service ID. Its first byte names the authority that assigned the rest.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

hex_number!(ServiceId(u64), 18);
