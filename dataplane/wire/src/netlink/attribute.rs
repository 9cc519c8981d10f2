//! Netlink attributes: typed, possibly nested, padded to four bytes (`struct rtattr`, `struct
//! nlattr`).
//!
//! Lengths are untrusted input. An iteration ends with an error at the first attribute with a
//! length that is shorter than its header or longer than the rest.

use super::AddressFamily;
use crate::layout::WireError;
use core::net::IpAddr;

const HEADER_LEN: usize = 4;

/// The bits of a type without the flags for a nest (`NLA_F_NESTED`) and for network byte order
/// (`NLA_F_NET_BYTEORDER`).
const TYPE_MASK: u16 = 0x3fff;
/// The flag of a type for a nest (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;

/// `len` rounded up to the next multiple of four.
pub(crate) const fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_ne_bytes([bytes[offset], bytes[offset + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let b = &bytes[offset..offset + 4];
    u32::from_ne_bytes([b[0], b[1], b[2], b[3]])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetlinkAttribute<'a> {
    /// The attribute type, without flags.
    pub kind: u16,
    /// The value, without padding.
    pub value: &'a [u8],
}

impl<'a> NetlinkAttribute<'a> {
    pub fn u32(&self) -> Result<u32, WireError> {
        let &value = self.value.first_chunk().ok_or(BAD_LENGTH)?;
        Ok(u32::from_ne_bytes(value))
    }

    pub fn u8(&self) -> Result<u8, WireError> {
        self.value.first().copied().ok_or(BAD_LENGTH)
    }

    /// The value as text, without the terminating zero.
    pub fn text(&self) -> &'a [u8] {
        let end = self.value.iter().position(|&byte| byte == 0);
        &self.value[..end.unwrap_or(self.value.len())]
    }

    pub fn address(&self, family: AddressFamily) -> Result<IpAddr, WireError> {
        match family {
            AddressFamily::IPV4 => {
                self.value.try_into().map(|a: [u8; 4]| a.into()).map_err(|_| BAD_LENGTH)
            }
            AddressFamily::IPV6 => {
                self.value.try_into().map(|a: [u8; 16]| a.into()).map_err(|_| BAD_LENGTH)
            }
            _ => Err(WireError::BadValue { format: "NetlinkAttribute", field: "family" }),
        }
    }

    /// The value as an address that is preceded by its family (`struct rtvia`).
    pub fn via(&self) -> Result<IpAddr, WireError> {
        let (&family, value) = self.value.split_first_chunk().ok_or(BAD_LENGTH)?;
        let family = u8::try_from(u16::from_ne_bytes(family)).unwrap_or(0);
        NetlinkAttribute { kind: self.kind, value }.address(AddressFamily(family))
    }
}

const BAD_LENGTH: WireError = WireError::BadLength { format: "NetlinkAttribute" };

/// An iterator over attributes. It ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<NetlinkAttribute<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = core::mem::take(&mut self.rest);
        if bytes.is_empty() {
            return None;
        }
        if bytes.len() < HEADER_LEN {
            return Some(Err(BAD_LENGTH));
        }
        let len = usize::from(u16_at(bytes, 0));
        if len < HEADER_LEN || len > bytes.len() {
            return Some(Err(BAD_LENGTH));
        }
        self.rest = bytes.get(align(len)..).unwrap_or(&[]);
        let kind = u16_at(bytes, 2) & TYPE_MASK;
        Some(Ok(NetlinkAttribute { kind, value: &bytes[HEADER_LEN..len] }))
    }
}

impl core::iter::FusedIterator for Attributes<'_> {}

/// Writes bytes and attributes one after another, each padded to four bytes.
#[derive(Debug)]
pub struct AttributeWriter<'o> {
    out: &'o mut [u8],
    len: usize,
}

impl<'o> AttributeWriter<'o> {
    pub const fn new(out: &'o mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    pub const fn written(&self) -> usize {
        self.len
    }

    /// Appends `len` zero bytes and zero padding; returns them.
    fn reserve(&mut self, len: usize) -> Result<&mut [u8], WireError> {
        let (start, have) = (self.len, self.out.len());
        let end = start + align(len);
        let no_room = WireError::NoRoom { format: "NetlinkAttribute", needed: end, have };
        let out = self.out.get_mut(start..end).ok_or(no_room)?;
        out.fill(0);
        self.len = end;
        Ok(out)
    }

    /// Writes bytes that are not an attribute, such as a fixed header, and padding.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.reserve(bytes.len())?[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Writes an attribute whose value is the concatenation of `value`.
    pub fn attribute(&mut self, kind: u16, value: &[&[u8]]) -> Result<(), WireError> {
        let start = self.len;
        self.bytes(&[0; HEADER_LEN])?;
        let value_len = value.iter().map(|piece| piece.len()).sum();
        let mut rest = self.reserve(value_len)?;
        for piece in value {
            let (front, back) = rest.split_at_mut(piece.len());
            front.copy_from_slice(piece);
            rest = back;
        }
        self.set_header(start, HEADER_LEN + value_len, kind)
    }

    pub fn u32(&mut self, kind: u16, value: u32) -> Result<(), WireError> {
        self.attribute(kind, &[&value.to_ne_bytes()])
    }

    pub fn address(&mut self, kind: u16, address: IpAddr) -> Result<(), WireError> {
        match address {
            IpAddr::V4(address) => self.attribute(kind, &[&address.octets()]),
            IpAddr::V6(address) => self.attribute(kind, &[&address.octets()]),
        }
    }

    /// Writes a gateway: as an attribute of type `plain` if its family is that of the route,
    /// otherwise as type `via`, with the family before the address.
    pub(crate) fn gateway(
        &mut self,
        (plain, via): (u16, u16),
        family: AddressFamily,
        gateway: Option<IpAddr>,
    ) -> Result<(), WireError> {
        let Some(address) = gateway else { return Ok(()) };
        let of = AddressFamily::of(address);
        if of == family {
            return self.address(plain, address);
        }
        let of = u16::from(of.0).to_ne_bytes();
        match address {
            IpAddr::V4(address) => self.attribute(via, &[&of, &address.octets()]),
            IpAddr::V6(address) => self.attribute(via, &[&of, &address.octets()]),
        }
    }

    /// Writes a nest: an attribute with the attributes that `content` writes.
    pub fn nest(
        &mut self,
        kind: u16,
        content: impl FnOnce(&mut Self) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let start = self.len;
        self.bytes(&[0; HEADER_LEN])?;
        content(self)?;
        self.set_header(start, self.len - start, kind | NESTED)
    }

    pub(crate) fn put_u16(&mut self, offset: usize, value: u16) {
        self.out[offset..offset + 2].copy_from_slice(&value.to_ne_bytes());
    }

    pub(crate) fn put_u32(&mut self, offset: usize, value: u32) {
        self.out[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn set_header(&mut self, start: usize, len: usize, kind: u16) -> Result<(), WireError> {
        let len = u16::try_from(len).map_err(|_| BAD_LENGTH)?;
        self.put_u16(start, len);
        self.put_u16(start + 2, kind);
        Ok(())
    }
}
