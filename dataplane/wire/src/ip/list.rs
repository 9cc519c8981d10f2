//! Lists inside messages: options, addresses, group records.
//!
//! Most messages of the IP family contain lists of items. An [`Item`] reads one item at the front
//! of some bytes, [`Items`] iterates over unchecked bytes, and a [`List`] is a checked part of a
//! message.
//!
//! Why a `List` is bytes *or* values: a received list borrows the packet, and a list to send
//! borrows an array of the sender. With one list type for both, a message has one type as well, and
//! a test can compare a parsed message with the one that was written.

use crate::layout::WireError;
use core::fmt;
use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::net::{Ipv4Addr, Ipv6Addr};

pub trait Item<'a>: Copy {
    /// Reads the item at the front of `bytes`, which must not be empty; also returns the rest.
    /// `None` if only padding is left. An item must take at least one byte, so that iterations end.
    fn read(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError>;
    fn wire_len(&self) -> usize;
    fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError>;
}

/// An iterator over unchecked bytes; it ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Items<'a, T> {
    rest: &'a [u8],
    item: PhantomData<T>,
}

impl<'a, T: Item<'a>> Items<'a, T> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, item: PhantomData }
    }
}

impl<'a, T: Item<'a>> Iterator for Items<'a, T> {
    type Item = Result<T, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match T::read(self.rest) {
            Ok(Some((item, rest))) => {
                self.rest = rest;
                Some(Ok(item))
            }
            Ok(None) => {
                self.rest = &[];
                None
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

impl<'a, T: Item<'a>> FusedIterator for Items<'a, T> {}

/// A well-formed list, either received or to be sent.
#[derive(Clone, Copy)]
pub struct List<'a, T> {
    source: Source<'a, T>,
}

#[derive(Clone, Copy)]
enum Source<'a, T> {
    Bytes(&'a [u8]),
    Values(&'a [T]),
}

impl<'a, T: Item<'a>> List<'a, T> {
    /// Makes a list to be sent.
    pub const fn of(values: &'a [T]) -> Self {
        Self { source: Source::Values(values) }
    }

    /// Checks a received list that fills `bytes`.
    pub fn filling(bytes: &'a [u8]) -> Result<Self, WireError> {
        Items::<T>::new(bytes).try_for_each(|item| item.map(drop))?;
        Ok(Self { source: Source::Bytes(bytes) })
    }

    /// Checks a received list of `count` items at the front of `bytes`; also returns the rest.
    pub fn counted(
        format: &'static str,
        bytes: &'a [u8],
        count: usize,
    ) -> Result<(Self, &'a [u8]), WireError> {
        let mut items = Items::<T>::new(bytes);
        for _ in 0..count {
            items.next().ok_or(WireError::BadLength { format })??;
        }
        let (list, rest) = bytes.split_at(bytes.len() - items.rest.len());
        Ok((Self { source: Source::Bytes(list) }, rest))
    }

    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (bytes, values) = match self.source {
            Source::Bytes(bytes) => (bytes, &[][..]),
            Source::Values(values) => (&[][..], values),
        };
        Items::new(bytes).filter_map(Result::ok).chain(values.iter().copied())
    }

    pub fn wire_len(&self) -> usize {
        match self.source {
            Source::Bytes(bytes) => bytes.len(),
            Source::Values(values) => wire_len(values),
        }
    }

    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        match self.source {
            Source::Bytes(bytes) => super::put("List", bytes, out),
            Source::Values(values) => write(values, out),
        }
    }
}

impl<'a, T: Item<'a> + fmt::Debug> fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T: Item<'a> + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Item<'a> + Eq> Eq for List<'a, T> {}

pub(super) fn wire_len<'a, T: Item<'a>>(items: &[T]) -> usize {
    items.iter().map(T::wire_len).sum()
}

pub(super) fn write<'a, 'o, T: Item<'a>>(
    items: &[T],
    out: &'o mut [u8],
) -> Result<&'o mut [u8], WireError> {
    items.iter().try_fold(out, |out, item| item.write(out))
}

macro_rules! address_item {
    ($type:ty, $len:literal) => {
        impl<'a> Item<'a> for $type {
            fn read(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
                match bytes.split_first_chunk::<$len>() {
                    Some((own, rest)) => Ok(Some((Self::from(*own), rest))),
                    None => Err(WireError::BadLength { format: stringify!($type) }),
                }
            }
            fn wire_len(&self) -> usize {
                $len
            }
            fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
                super::put(stringify!($type), &self.octets(), out)
            }
        }
    };
}
address_item!(Ipv4Addr, 4);
address_item!(Ipv6Addr, 16);

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

    #[test]
    fn received_and_to_be_sent_are_equal_lists() {
        let sent = List::of(&ADDRESSES);
        let mut out = [0; 9];
        assert_eq!(sent.write(&mut out).unwrap().len(), 1);
        let (received, rest) = List::<Ipv4Addr>::counted("test", &out, 2).unwrap();
        assert_eq!((received, rest), (sent, &[0][..]));
        assert_eq!((received.wire_len(), sent.wire_len()), (8, 8));
        assert_eq!(received.iter().collect::<Vec<_>>(), ADDRESSES);
    }

    #[test]
    fn a_short_list_is_an_error_and_its_walk_ends() {
        let bytes = [10, 0, 0, 1, 10];
        assert!(List::<Ipv4Addr>::filling(&bytes).is_err());
        assert!(List::<Ipv4Addr>::counted("test", &bytes[..4], 2).is_err());
        let walk: Vec<_> = Items::<Ipv4Addr>::new(&bytes).collect();
        assert_eq!(walk.len(), 2);
        assert!(walk[0] == Ok(ADDRESSES[0]) && walk[1].is_err());
    }
}
