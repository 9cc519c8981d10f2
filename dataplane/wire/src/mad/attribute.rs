//! Attributes: the data of a management datagram, by attribute ID (IBA 13.4.3).
//!
//! Attribute IDs of different classes overlap. So the ID is a constant of each attribute, and the
//! agent of a class matches on the constants of its own attributes.

use super::AttributeId;
use crate::layout::{Field, Layout};

/// Implements [`Attribute`] for layouts, with these IDs.
macro_rules! attributes {
    ($($attribute:ident = $id:literal),* $(,)?) => {$(
        impl $crate::mad::Attribute for $attribute {
            const ID: $crate::mad::AttributeId = $crate::mad::AttributeId($id);
        }
    )*};
}
pub(crate) use attributes;

/// The format of a datagram's data when the header has attribute ID `ID`.
pub trait Attribute: Layout + Field {
    const ID: AttributeId;

    /// Parses the attribute at the front of a datagram's data. A compile-time check ensures that
    /// the data is long enough.
    fn from_data<const N: usize>(data: &[u8; N]) -> Self {
        const { assert!(Self::LEN <= N, "the attribute is longer than the data") };
        Self::load(data, 0, Self::LEN * 8)
    }

    /// The data of a datagram: this attribute, followed by zeros.
    fn to_data<const N: usize>(self) -> [u8; N] {
        const { assert!(Self::LEN <= N, "the attribute is longer than the data") };
        let mut data = [0; N];
        self.store(&mut data, 0, Self::LEN * 8);
        data
    }
}
