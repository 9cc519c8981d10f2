//! Service IDs: the 64 bits by which a connection request, a path query or a service record says
//! what it is for (IBA annex A3). Whoever listens matches all of them.

use core::fmt;

/// The name of a service. Its first byte says who gave out the rest.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({self})")
    }
}

number_field!(ServiceId(u64));
