//! What a datagram's attribute id says about its data (IBA 13.4.3).
//!
//! The id alone does not tell: the classes use overlapping numbers. So an attribute knows its own
//! id, and who handles a class matches on the ids of the attributes that the class has.

use super::AttributeId;
use crate::layout::{Field, Layout};

/// A format that stands in the data of a datagram, whose header then has `ID`.
pub trait Attribute: Layout + Field {
    /// What the header calls it.
    const ID: AttributeId;

    /// Takes it off the front of a datagram's data, which the compiler sees to be long enough.
    fn from_data<const N: usize>(data: &[u8; N]) -> Self {
        const { assert!(Self::LEN <= N, "the attribute is longer than the data") };
        Self::load(data, 0, Self::LEN * 8)
    }

    /// The data of a datagram that begin with it; the rest is zero.
    fn to_data<const N: usize>(self) -> [u8; N] {
        const { assert!(Self::LEN <= N, "the attribute is longer than the data") };
        let mut data = [0; N];
        self.store(&mut data, 0, Self::LEN * 8);
        data
    }
}
