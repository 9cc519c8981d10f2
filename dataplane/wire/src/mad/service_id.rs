//! Service IDs: the 64 bits that name a service in a connection request, a path query or a service
//! record (IBA annex A3). A listener matches all of them.

use core::fmt;

/// A service ID. Its first byte names the authority that assigned the rest.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

debug_by_display!(ServiceId);
number_field!(ServiceId(u64));
