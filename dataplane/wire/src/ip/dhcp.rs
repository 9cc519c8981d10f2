//! DHCP for IPv4 (RFC 2131, RFC 2132; RFC 4390 for InfiniBand).
//!
//! A link address of InfiniBand does not fit in the field for the client's hardware address. So
//! this field is empty with length zero, and the client identifier option alone identifies the
//! client (RFC 4390 2). If the option OVERLOAD is present, options continue in the fields for the
//! server name and the file name.

use super::arp::HardwareType;
use super::list::{Item, Items, List};
use super::{put, split};
use crate::layout::WireError;
use core::net::Ipv4Addr;

layout! {
    /// The header of a message (RFC 2131 2), including the magic cookie before the options.
    pub struct DhcpHeader: 240 bytes {
        0:0      8  op: DhcpOp,
        1:0      8  hardware_type: u8,
        /// Length of the hardware address in bytes; zero on InfiniBand.
        2:0      8  hardware_len: u8,
        3:0      8  hops: u8,
        4:0     32  xid: u32,
        /// Seconds since the client began to acquire or renew an address.
        8:0     16  seconds: u16,
        /// Replies must be broadcast, because the client cannot receive unicast before it has an
        /// address.
        10:0     1  broadcast: bool,
        /// The client's current address, if it has one (ciaddr).
        12:0    32  client: Ipv4Addr,
        /// The address that the server assigns to the client (yiaddr).
        16:0    32  yours: Ipv4Addr,
        /// The next server of the bootstrap (siaddr).
        20:0    32  next_server: Ipv4Addr,
        /// The relay agent (giaddr).
        24:0    32  relay: Ipv4Addr,
        /// Hardware address of the client (chaddr); zero on InfiniBand.
        28:0   128  hardware: [u8; 16],
        /// The server name, or options.
        44:0   512  server_name: [u8; 64],
        /// The boot file name, or options.
        108:0 1024  file: [u8; 128],
        236:0   32  cookie: u32,
    }
}

impl DhcpHeader {
    /// The magic cookie (RFC 2131 3).
    pub const COOKIE: u32 = 0x6382_5363;
    /// [`HardwareType::INFINIBAND`] in the width of [`DhcpHeader::hardware_type`].
    pub const INFINIBAND: u8 = HardwareType::INFINIBAND.0 as u8;
    pub const SERVER_PORT: u16 = 67;
    pub const CLIENT_PORT: u16 = 68;

    const SERVER_NAME_AT: usize = 44;
    const FILE_AT: usize = 108;
    const COOKIE_AT: usize = 236;
}

codes! {
    /// The direction of a message (RFC 2131 2).
    pub struct DhcpOp(u8) {
        REQUEST = 1,
        REPLY = 2,
    }
}

codes! {
    /// The message type (RFC 2132 9.6).
    pub struct DhcpKind(u8) {
        DISCOVER = 1,
        OFFER = 2,
        REQUEST = 3,
        DECLINE = 4,
        ACK = 5,
        NAK = 6,
        RELEASE = 7,
        INFORM = 8,
    }
}

codes! {
    /// Option codes (RFC 2132; IANA).
    pub struct DhcpOptionCode(u8) {
        SUBNET_MASK = 1,
        ROUTER = 3,
        DOMAIN_NAME_SERVER = 6,
        INTERFACE_MTU = 26,
        REQUESTED_ADDRESS = 50,
        LEASE_TIME = 51,
        /// The header fields that contain options, as bits: 1 is `file`, 2 is `server_name`.
        OVERLOAD = 52,
        MESSAGE_TYPE = 53,
        SERVER_IDENTIFIER = 54,
        PARAMETER_REQUEST_LIST = 55,
        MESSAGE_SIZE_MAX = 57,
        RENEWAL_TIME = 58,
        REBINDING_TIME = 59,
        CLIENT_IDENTIFIER = 61,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhcpOption<'a> {
    pub code: DhcpOptionCode,
    pub data: &'a [u8],
}

const PAD: u8 = 0;
const END: u8 = 255;

impl<'a> Item<'a> for DhcpOption<'a> {
    fn read(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
        let padding = bytes.iter().take_while(|&&byte| byte == PAD).count();
        let (&code, rest) = match bytes[padding..].split_first() {
            None | Some((&END, _)) => return Ok(None),
            Some(first) => first,
        };
        let Some((&len, rest)) = rest.split_first() else {
            return Err(WireError::BadLength { format: "DhcpOption" });
        };
        let (data, rest) = split("DhcpOption", rest, usize::from(len))?;
        Ok(Some((Self { code: DhcpOptionCode(code), data }, rest)))
    }

    fn wire_len(&self) -> usize {
        2 + self.data.len()
    }

    fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let format = "DhcpOption";
        let len = u8::try_from(self.data.len()).map_err(|_| WireError::BadLength { format })?;
        put(format, self.data, put(format, &[self.code.0, len], out)?)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhcpMessage<'a> {
    /// The header, with a valid cookie.
    pub header: DhcpHeader,
    pub options: List<'a, DhcpOption<'a>>,
    /// Options in the header fields `file` and `server_name`.
    more: [&'a [u8]; 2],
}

impl<'a> DhcpMessage<'a> {
    /// Makes a message to send, with all options behind the header.
    pub const fn new(header: DhcpHeader, options: List<'a, DhcpOption<'a>>) -> Self {
        let header = DhcpHeader { cookie: DhcpHeader::COOKIE, ..header };
        Self { header, options, more: [&[], &[]] }
    }

    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, rest) = DhcpHeader::read(bytes)?;
        if header.cookie != DhcpHeader::COOKIE {
            return Err(WireError::BadValue { format: "DhcpMessage", field: "cookie" });
        }
        let options = List::<DhcpOption<'_>>::filling(rest)?;
        let mut all = options.iter();
        let overload = all.find(|option| option.code == DhcpOptionCode::OVERLOAD);
        let which = overload.and_then(|option| option.data.first()).copied().unwrap_or(0);
        let file = &bytes[DhcpHeader::FILE_AT..DhcpHeader::COOKIE_AT];
        let server_name = &bytes[DhcpHeader::SERVER_NAME_AT..DhcpHeader::FILE_AT];
        let more = [
            if which & 1 != 0 { file } else { &[] },
            if which & 2 != 0 { server_name } else { &[] },
        ];
        for field in more {
            List::<DhcpOption<'_>>::filling(field)?;
        }
        Ok(Self { header, options, more })
    }

    /// The value of the first option with this code.
    pub fn option(&self, code: DhcpOptionCode) -> Option<&'a [u8]> {
        let more = self.more.into_iter().flat_map(|field| Items::new(field).flatten());
        let mut all = self.options.iter().chain(more);
        all.find(|option: &DhcpOption<'a>| option.code == code).map(|option| option.data)
    }

    pub fn wire_len(&self) -> usize {
        DhcpHeader::LEN + self.options.wire_len() + 1
    }

    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        put("DhcpMessage", &[END], self.options.write(self.header.write(out)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn discover() -> DhcpHeader {
        DhcpHeader {
            op: DhcpOp::REQUEST,
            hardware_type: DhcpHeader::INFINIBAND,
            xid: 0x0102_0304,
            broadcast: true,
            ..DhcpHeader::default()
        }
    }

    fn written(message: &DhcpMessage<'_>) -> Vec<u8> {
        let mut out = vec![0xff; message.wire_len()];
        assert!(message.write(&mut out).unwrap().is_empty());
        out
    }

    #[test]
    fn a_client_on_infiniband_has_no_hardware_address() {
        let options = [
            DhcpOption { code: DhcpOptionCode::MESSAGE_TYPE, data: &[1] },
            DhcpOption { code: DhcpOptionCode::CLIENT_IDENTIFIER, data: &[255, 7] },
        ];
        let message = DhcpMessage::new(discover(), List::of(&options));
        let bytes = written(&message);
        assert_eq!(bytes[..12], [1, 32, 0, 0, 1, 2, 3, 4, 0, 0, 0x80, 0]);
        assert!(bytes[12..236].iter().all(|&byte| byte == 0));
        assert_eq!(bytes[236..], [0x63, 0x82, 0x53, 0x63, 53, 1, 1, 61, 2, 255, 7, 255]);
        assert_eq!(DhcpMessage::parse(&bytes).map(|parsed| parsed.header), Ok(message.header));
    }

    #[test]
    fn options_continue_in_overloaded_fields() {
        let options = [DhcpOption { code: DhcpOptionCode::OVERLOAD, data: &[3] }];
        let mut header = discover();
        header.file[..5].copy_from_slice(&[0, 3, 2, 10, 11]);
        header.server_name[..3].copy_from_slice(&[26, 1, 5]);
        let bytes = written(&DhcpMessage::new(header, List::of(&options)));
        let message = DhcpMessage::parse(&bytes).unwrap();
        assert_eq!(message.option(DhcpOptionCode::ROUTER), Some(&[10, 11][..]));
        assert_eq!(message.option(DhcpOptionCode::INTERFACE_MTU), Some(&[5][..]));
        let mut none = bytes;
        none[242] = 0;
        let message = DhcpMessage::parse(&none).unwrap();
        assert_eq!(message.option(DhcpOptionCode::ROUTER), None, "it is a name");
    }

    #[test]
    fn other_cookies_and_options_that_stick_out_are_refused() {
        let bytes = written(&DhcpMessage::new(discover(), List::of(&[])));
        assert!(DhcpMessage::parse(&bytes).is_ok());
        let mut other = bytes.clone();
        other[239] ^= 1;
        assert!(DhcpMessage::parse(&other).is_err());
        let mut long = bytes;
        long[240] = 53;
        long.push(2);
        assert!(DhcpMessage::parse(&long).is_err());
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(
            tail in proptest::collection::vec(prop_oneof![any::<u8>(), Just(52), 0u8..4], 0..200),
            fill in any::<u8>(),
        ) {
            let mut bytes = vec![fill; DhcpHeader::LEN];
            bytes[236..].copy_from_slice(&DhcpHeader::COOKIE.to_be_bytes());
            bytes.extend(tail);
            if let Ok(message) = DhcpMessage::parse(&bytes) {
                let again = written(&DhcpMessage::new(message.header, message.options));
                prop_assert!(DhcpMessage::parse(&again).is_ok());
                let _ = message.option(DhcpOptionCode::ROUTER);
            }
        }
    }
}
