//! Attributes: the data of a management datagram, by attribute ID (IBA 13.4.3).
//!
//! Classes use overlapping IDs. So an attribute has its ID as a constant, and the agent of a class
//! matches on the IDs of that class.

use super::AttributeId;
use crate::layout::{Field, Layout};

/// Ties attributes to their IDs.
macro_rules! attributes {
    ($($attribute:ident = $id:literal),* $(,)?) => {$(
        impl $crate::mad::Attribute for $attribute {
            const ID: $crate::mad::AttributeId = $crate::mad::AttributeId($id);
        }
    )*};
}
pub(crate) use attributes;

/// The format of the data of a datagram whose header has `ID`.
pub trait Attribute: Layout + Field {
    const ID: AttributeId;

    /// Reads it from the front of a datagram's data, which is long enough by a compile-time check.
    fn from_data<const N: usize>(data: &[u8; N]) -> Self {
        const { assert!(Self::LEN <= N, "the attribute is longer than the data") };
        Self::load(data, 0, Self::LEN * 8)
    }

    /// The data of a datagram that begins with it; the rest is zero.
    fn to_data<const N: usize>(self) -> [u8; N] {
        const { assert!(Self::LEN <= N, "the attribute is longer than the data") };
        let mut data = [0; N];
        self.store(&mut data, 0, Self::LEN * 8);
        data
    }
}
