//! The macro that makes a type from a table of offsets.
//!
//! Nearly every format in this crate is a header of fixed length with each field at a fixed bit
//! offset. [`layout!`](crate::layout!) makes a plain struct with `read`, `parse`, `write` and
//! `emit` from the table of the specification. A mistake in a format is then one wrong number in
//! one table.
//!
//! Why a macro and not hand-written accessors: there are about a hundred formats with a thousand
//! fields, and the macro rejects overlapping or out-of-range fields at compile time. Offsets and
//! widths are constants, so a field access compiles to the same load, shift and mask as
//! hand-written code.
//!
//! Bits that belong to no field are reserved: `parse` ignores them, and `emit` sets them to zero.
//!
//! A format with a variable part (options, segments, payload) also has a hand-written *view*: a
//! struct that borrows the bytes. Its constructor checks the lengths, so its accessors cannot fail.

use core::fmt;
use thiserror::Error;

/// A parse or write error. `format` names the header or message, and `field` the row of its table.
/// `needed` and `have` are in bytes.
///
/// Receivers do not log every error; they count errors by [`WireError::reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    #[error("{format}: {have} bytes where at least {needed} belong")]
    Truncated { format: &'static str, needed: usize, have: usize },
    /// A length contradicts the bytes that are present, or exceeds a limit of the format.
    #[error("{format}: its length field is wrong")]
    BadLength { format: &'static str },
    /// A version, type or constant field has a value that this format does not allow.
    #[error("{format}: {field} has no such value")]
    BadValue { format: &'static str, field: &'static str },
    #[error("{format}: checksum does not match")]
    BadChecksum { format: &'static str },
    #[error("{format}: needs {needed} bytes of output, has {have}")]
    NoRoom { format: &'static str, needed: usize, have: usize },
}

impl WireError {
    /// The name of the drop counter for this error.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Truncated { .. } => "truncated",
            Self::BadLength { .. } => "bad_length",
            Self::BadValue { .. } => "bad_value",
            Self::BadChecksum { .. } => "bad_checksum",
            Self::NoRoom { .. } => "no_room",
        }
    }
}

/// One row of a layout's table. `bit` is the offset from the most significant bit of byte 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    pub name: &'static str,
    pub bit: usize,
    pub width: usize,
}

/// A type that a field of a layout can have.
///
/// `bit` is the offset from the most significant bit of the first byte, as in the figures of IBA
/// and of the RFCs. Implementations are inlined with constant arguments.
pub trait Field: Copy {
    const WIDTH_MAX: usize;
    fn load(bytes: &[u8], bit: usize, width: usize) -> Self;
    /// Stores the low `width` bits of the value in `bytes`; other bits stay unchanged.
    fn store(self, bytes: &mut [u8], bit: usize, width: usize);
    /// Sets all bits of the field that are not reserved. Only a field whose type is itself a layout
    /// has reserved bits. Tests use this to find the bits that survive parsing and emitting.
    fn occupy(bytes: &mut [u8], bit: usize, width: usize) {
        for bit in bit..bit + width {
            store_bits(bytes, bit, 1, 1);
        }
    }
}

/// A format of fixed length; [`layout!`](crate::layout!) implements it.
pub trait Layout: Copy + fmt::Debug + PartialEq {
    const NAME: &'static str;
    const LEN: usize;
    const FIELDS: &'static [FieldSpec];
    /// Parses this format at the front of `bytes`; also returns the rest of `bytes`.
    fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError>;
    /// Writes this format to the front of `out`; returns the rest of `out`.
    fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], WireError>;
}

/// Loads `width` bits (at most 64) of `bytes` from offset `bit`.
///
/// Why words: most fields share an aligned 32-bit word with other fields. The compiler merges the
/// loads of one word, and keeps the word in a register while a header is assembled. It does neither
/// for single bytes.
#[inline(always)]
pub fn load_bits(bytes: &[u8], bit: usize, width: usize) -> u64 {
    if let Some((at, spare)) = word_of(bytes.len(), bit, width) {
        return u64::from(u32::from_be_bytes(array_at(bytes, at))) >> spare & mask(width);
    }
    if bit.is_multiple_of(8) && width == 64 {
        return u64::from_be_bytes(array_at(bytes, bit / 8));
    }
    let (first, last, spare) = span(bit, width);
    let all = bytes[first..=last].iter().fold(0, |all, &byte| all << 8 | u128::from(byte));
    (all >> spare) as u64 & mask(width)
}

/// Stores the low `width` bits of `value` at offset `bit`; all other bits stay unchanged.
#[inline(always)]
pub fn store_bits(bytes: &mut [u8], bit: usize, width: usize, value: u64) {
    let value = value & mask(width);
    if let Some((at, spare)) = word_of(bytes.len(), bit, width) {
        let kept = u32::from_be_bytes(array_at(bytes, at)) & !((mask(width) << spare) as u32);
        let word = kept | (value << spare) as u32;
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        return;
    }
    if bit.is_multiple_of(8) && width == 64 {
        bytes[bit / 8..bit / 8 + 8].copy_from_slice(&value.to_be_bytes());
        return;
    }
    let (first, last, spare) = span(bit, width);
    let mut value = u128::from(value) << spare;
    let mut kept = !(u128::from(mask(width)) << spare);
    for byte in bytes[first..=last].iter_mut().rev() {
        *byte = *byte & kept as u8 | value as u8;
        value >>= 8;
        kept >>= 8;
    }
}

/// The byte offset of the aligned 32-bit word that contains the whole field, and the number of bits
/// after the field in that word; `None` if no single word contains the field.
#[inline(always)]
const fn word_of(len: usize, bit: usize, width: usize) -> Option<(usize, usize)> {
    let at = bit / 32 * 4;
    let end = bit + width;
    if end <= at * 8 + 32 && at + 4 <= len { Some((at, at * 8 + 32 - end)) } else { None }
}

#[inline(always)]
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut all = [0; N];
    all.copy_from_slice(&bytes[at..at + N]);
    all
}

/// The first and last byte of a field, and the number of bits after the field in its last byte.
#[inline(always)]
const fn span(bit: usize, width: usize) -> (usize, usize, usize) {
    let last = (bit + width - 1) / 8;
    (bit / 8, last, (last + 1) * 8 - (bit + width))
}

#[inline(always)]
const fn mask(width: usize) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Fails at compile time if fields of a table overlap, are out of order or exceed the length.
pub const fn check_table(fields: &[FieldSpec], len: usize) {
    let mut i = 0;
    while i < fields.len() {
        let field = fields[i];
        assert!(field.width > 0, "a field has no bits");
        assert!(field.bit + field.width <= len * 8, "a field sticks out of its format");
        if i > 0 {
            let before = fields[i - 1];
            assert!(before.bit + before.width <= field.bit, "fields overlap, or are out of order");
        }
        i += 1;
    }
}

/// Splits `bytes` after a header of `LEN` bytes.
#[inline(always)]
pub(crate) fn split_header<'a, const LEN: usize>(
    format: &'static str,
    bytes: &'a [u8],
) -> Result<(&'a [u8; LEN], &'a [u8]), WireError> {
    bytes.split_first_chunk().ok_or(WireError::Truncated { format, needed: LEN, have: bytes.len() })
}

macro_rules! unsigned_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            const WIDTH_MAX: usize = <$type>::BITS as usize;
            #[inline(always)]
            fn load(bytes: &[u8], bit: usize, width: usize) -> Self {
                load_bits(bytes, bit, width) as $type
            }
            #[inline(always)]
            fn store(self, bytes: &mut [u8], bit: usize, width: usize) {
                store_bits(bytes, bit, width, u64::from(self));
            }
        }
    )*};
}
unsigned_field!(u8, u16, u32, u64);

impl Field for bool {
    const WIDTH_MAX: usize = 1;
    #[inline(always)]
    fn load(bytes: &[u8], bit: usize, width: usize) -> Self {
        load_bits(bytes, bit, width) != 0
    }
    #[inline(always)]
    fn store(self, bytes: &mut [u8], bit: usize, width: usize) {
        store_bits(bytes, bit, width, u64::from(self));
    }
}

/// A repeated field, such as a table of P_Keys or ports, and plain bytes.
impl<T: Field + Default, const N: usize> Field for [T; N] {
    const WIDTH_MAX: usize = N * T::WIDTH_MAX;
    #[inline(always)]
    fn load(bytes: &[u8], bit: usize, width: usize) -> Self {
        let mut all = [T::default(); N];
        for (i, one) in all.iter_mut().enumerate() {
            *one = T::load(bytes, bit + i * (width / N), width / N);
        }
        all
    }
    #[inline(always)]
    fn store(self, bytes: &mut [u8], bit: usize, width: usize) {
        for (i, one) in self.into_iter().enumerate() {
            one.store(bytes, bit + i * (width / N), width / N);
        }
    }
    fn occupy(bytes: &mut [u8], bit: usize, width: usize) {
        assert!(width.is_multiple_of(N), "{width} bits are not {N} values");
        for i in 0..N {
            T::occupy(bytes, bit + i * (width / N), width / N);
        }
    }
}

/// Makes a struct from a table of offsets.
///
/// A row is `byte:bit  width  name: type`. Bit 0 is the most significant bit of its byte.
///
/// ```
/// pollux_wire::layout! {
///     /// Acknowledge extended transport header (IBA 9.2.7).
///     pub struct Example: 4 bytes {
///         0:0    8  syndrome: u8,
///         1:0   24  msn: u32,
///     }
/// }
/// let (header, rest) = Example::read(&[0x1f, 0, 0, 6, 0xaa]).unwrap();
/// assert_eq!((header.syndrome, header.msn, rest), (0x1f, 6, &[0xaa][..]));
/// ```
#[macro_export]
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $len:literal bytes {
            $(
                $(#[$field_meta:meta])*
                $byte:literal:$bit:literal $width:literal $field:ident: $type:ty
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        impl $name {
            pub const LEN: usize = $len;
            pub const FIELDS: &'static [$crate::layout::FieldSpec] = &[
                $( $crate::layout::FieldSpec {
                    name: stringify!($field),
                    bit: $byte * 8 + $bit,
                    width: $width,
                }, )*
            ];

            /// Parses this format at the front of `bytes`; also returns the rest of `bytes`.
            #[inline]
            pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), $crate::WireError> {
                match bytes.split_first_chunk::<$len>() {
                    Some((head, rest)) => Ok((Self::parse(head), rest)),
                    None => Err($crate::WireError::Truncated {
                        format: stringify!($name),
                        needed: $len,
                        have: bytes.len(),
                    }),
                }
            }

            /// Parses an array of exactly the length of this format.
            #[inline(always)]
            pub fn parse(bytes: &[u8; $len]) -> Self {
                Self {
                    $( $field: $crate::layout::Field::load(bytes, $byte * 8 + $bit, $width), )*
                }
            }

            /// Writes this format to the front of `out`; returns the rest of `out`.
            #[inline]
            pub fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], $crate::WireError> {
                let have = out.len();
                match out.split_first_chunk_mut::<$len>() {
                    Some((head, rest)) => {
                        *head = self.emit();
                        Ok(rest)
                    }
                    None => Err($crate::WireError::NoRoom {
                        format: stringify!($name),
                        needed: $len,
                        have,
                    }),
                }
            }

            /// The bytes of this format. Reserved bits are zero, and values are truncated to the
            /// width of their fields.
            #[inline(always)]
            pub fn emit(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                $( $crate::layout::Field::store(
                    self.$field, &mut bytes, $byte * 8 + $bit, $width,
                ); )*
                bytes
            }
        }

        const _: () = {
            $crate::layout::check_table($name::FIELDS, $len);
            $( assert!(
                $width <= <$type as $crate::layout::Field>::WIDTH_MAX,
                concat!(stringify!($field), " has more bits than its type"),
            ); )*
        };

        impl Default for $name {
            /// All bits zero.
            fn default() -> Self {
                Self::parse(&[0; $len])
            }
        }

        impl $crate::layout::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const LEN: usize = $len;
            const FIELDS: &'static [$crate::layout::FieldSpec] = Self::FIELDS;
            fn read(bytes: &[u8]) -> Result<(Self, &[u8]), $crate::WireError> {
                Self::read(bytes)
            }
            fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], $crate::WireError> {
                self.write(out)
            }
        }

        /// Allows this layout as a field of another layout.
        impl $crate::layout::Field for $name {
            const WIDTH_MAX: usize = $len * 8;
            #[inline(always)]
            fn load(bytes: &[u8], bit: usize, _width: usize) -> Self {
                let mut own = [0; $len];
                own.copy_from_slice(&bytes[bit / 8..bit / 8 + $len]);
                Self::parse(&own)
            }
            #[inline(always)]
            fn store(self, bytes: &mut [u8], bit: usize, _width: usize) {
                bytes[bit / 8..bit / 8 + $len].copy_from_slice(&self.emit());
            }
            fn occupy(bytes: &mut [u8], bit: usize, _width: usize) {
                $( <$type as $crate::layout::Field>::occupy(
                    bytes, bit + $byte * 8 + $bit, $width,
                ); )*
            }
        }
    };
}

/// Implements `Debug` as the type's name with the `Display` output in parentheses.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_by_display {
    ($($name:ident),*) => {$(
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({})", stringify!($name), self)
            }
        }
    )*};
}

/// Implements [`layout::Field`](crate::layout::Field) for a newtype of a number or of bytes.
#[doc(hidden)]
#[macro_export]
macro_rules! number_field {
    ($name:ident($repr:ty)) => {
        impl $crate::layout::Field for $name {
            const WIDTH_MAX: usize = <$repr as $crate::layout::Field>::WIDTH_MAX;
            #[inline(always)]
            fn load(bytes: &[u8], bit: usize, width: usize) -> Self {
                Self(<$repr as $crate::layout::Field>::load(bytes, bit, width))
            }
            #[inline(always)]
            fn store(self, bytes: &mut [u8], bit: usize, width: usize) {
                $crate::layout::Field::store(self.0, bytes, bit, width);
            }
        }
    };
}

/// Makes a newtype of a number a field that prints in hexadecimal. `$width` includes the `0x`.
macro_rules! hex_number {
    ($name:ident($repr:ty), $width:literal) => {
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#0width$x}", self.0, width = $width)
            }
        }
        debug_by_display!($name);
        number_field!($name($repr));
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{format, vec};

    proptest! {
        /// The oracle reads one bit at a time.
        #[test]
        fn bits_agree_with_an_oracle(
            bytes in proptest::collection::vec(any::<u8>(), 24),
            bit in 0usize..100,
            width in 1usize..=64,
            value: u64,
        ) {
            let at = |bytes: &[u8], i: usize| u64::from(bytes[i / 8] >> (7 - i % 8) & 1);
            let slow = (bit..bit + width).fold(0, |acc, i| acc << 1 | at(&bytes, i));
            prop_assert_eq!(load_bits(&bytes, bit, width), slow);

            let mut stored = bytes.clone();
            store_bits(&mut stored, bit, width, value);
            prop_assert_eq!(load_bits(&stored, bit, width), value & mask(width));
            for i in (0..bytes.len() * 8).filter(|i| !(bit..bit + width).contains(i)) {
                prop_assert_eq!(at(&bytes, i), at(&stored, i));
            }
        }
    }

    layout! {
        /// Unaligned fields, fields across byte and word boundaries, and reserved bits.
        pub struct Awkward: 12 bytes {
            0:1    3  a: u8,
            0:7   12  b: u16,
            3:0    1  c: bool,
            4:0   16  d: [u8; 4],
            6:4   36  e: u64,
        }
    }

    #[test]
    fn reserved_bits_are_ignored_and_sent_as_zero() {
        let (value, rest) = Awkward::read(&[0xff; 13]).unwrap();
        assert_eq!(value, Awkward { a: 7, b: 0xfff, c: true, d: [15; 4], e: (1 << 36) - 1 });
        assert_eq!((Awkward::LEN, rest), (12, &[0xff][..]));
        let bytes = value.emit();
        assert_eq!(bytes, [0x71, 0xff, 0xe0, 0x80, 0xff, 0xff, 0x0f, 0xff, 0xff, 0xff, 0xff, 0]);
        assert_eq!(Awkward::parse(&bytes), value);
    }

    #[test]
    fn short_input_and_output_are_errors_that_name_the_format() {
        assert_eq!(
            format!("{}", Awkward::read(&[0; 11]).unwrap_err()),
            "Awkward: 11 bytes where at least 12 belong"
        );
        let mut out = vec![0; 11];
        assert_eq!(
            Awkward::default().write(&mut out).unwrap_err(),
            WireError::NoRoom { format: "Awkward", needed: 12, have: 11 }
        );
    }
}
