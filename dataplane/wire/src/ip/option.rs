//! The common format of IPv4 and TCP options (RFC 791 3.1, RFC 9293 3.1): a kind, the length of the
//! whole option, and data. Two kinds consist of the kind byte only: no operation, and the end of
//! the list.

use super::list::{self, Item};
use super::put;
use crate::layout::WireError;

/// Ends the list of options, and pads the header.
const END: u8 = 0;
/// Pads between options.
const NO_OPERATION: u8 = 1;

/// An option of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawOption<'a> {
    pub(super) kind: u8,
    pub(super) data: &'a [u8],
}

impl<'a> RawOption<'a> {
    /// Reads the next option at the front of `bytes`; `None` at the end of the list.
    pub(super) fn read(
        format: &'static str,
        bytes: &'a [u8],
    ) -> Result<Option<(Self, &'a [u8])>, WireError> {
        let padding = bytes.iter().take_while(|&&kind| kind == NO_OPERATION).count();
        let (&kind, rest) = match bytes[padding..].split_first() {
            None | Some((&END, _)) => return Ok(None),
            Some(first) => first,
        };
        let own = rest.split_first().and_then(|(&len, rest)| {
            rest.split_at_checked(usize::from(len).checked_sub(Self::PREFIX_LEN)?)
        });
        match own {
            Some((data, rest)) => Ok(Some((Self { kind, data }, rest))),
            None => Err(WireError::BadLength { format }),
        }
    }

    pub(super) const PREFIX_LEN: usize = 2;

    pub(super) fn write<'o>(
        &self,
        format: &'static str,
        out: &'o mut [u8],
    ) -> Result<&'o mut [u8], WireError> {
        let len = u8::try_from(Self::PREFIX_LEN + self.data.len())
            .map_err(|_| WireError::BadLength { format })?;
        put(format, self.data, put(format, &[self.kind, len], out)?)
    }
}

/// Length of `options` in a header, in bytes, padded to a 32-bit boundary.
pub(super) fn padded_len<'a, T: Item<'a>>(options: &[T]) -> usize {
    list::wire_len(options).next_multiple_of(4)
}

/// Writes `options` and padding into `out`, the options part of a header.
pub(super) fn write_padded<'a, T: Item<'a>>(
    options: &[T],
    out: &mut [u8],
) -> Result<(), WireError> {
    list::write(options, out)?.fill(END);
    Ok(())
}
