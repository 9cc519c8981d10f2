//! Messages of the client. The state determines their options and addresses (RFC 2131 4.3.6, table
//! 5; RFC 4390 2).

use super::Dhcp;
use super::lease::{self, DhcpLease};
use crate::frame::{LinkFrame, NoLink, To};
use pollux_verbs::time::Time;
use pollux_wire::address::Guid;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::dhcp::{
    DhcpHeader, DhcpKind, DhcpMessage, DhcpOp, DhcpOption, DhcpOptionCode,
};
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::list::List;
use pollux_wire::ip::udp::{self, UdpHeader};
use pollux_wire::keys::PKey;
use std::net::Ipv4Addr;

const MESSAGE_LEN_MAX: [u8; 2] = 1500u16.to_be_bytes();

/// The client identifier of an interface, from the port GUID and the P_Key: unique forevery
/// interface, and stable across restarts (RFC 4361 6.1, RFC 8415 11.4).
pub fn client_id(guid: Guid, p_key: PKey) -> Vec<u8> {
    const FROM_DUID: u8 = 255;
    const DUID_LL: u16 = 3;
    let mut id = vec![FROM_DUID];
    id.extend(u32::from(p_key.0).to_be_bytes());
    id.extend(DUID_LL.to_be_bytes());
    id.extend(u16::from(DhcpHeader::INFINIBAND).to_be_bytes());
    id.extend(guid.0.to_be_bytes());
    id
}

impl Dhcp {
    pub(super) fn send(
        &mut self,
        now: Time,
        kind: DhcpKind,
        lease: Option<&DhcpLease>,
        to: To<NoLink>,
    ) {
        let has_address = self.lease().is_some();
        let own = lease.filter(|_| has_address && kind != DhcpKind::DECLINE);
        let client = own.map_or(Ipv4Addr::UNSPECIFIED, |lease| lease.ip);
        let is_to_server = to == To::Route || kind == DhcpKind::RELEASE;
        let waited = now.nanos().saturating_sub(self.began.nanos()) / 1_000_000_000;
        let header = DhcpHeader {
            op: DhcpOp::REQUEST,
            hardware_type: DhcpHeader::INFINIBAND,
            xid: self.xid,
            seconds: u16::try_from(waited).unwrap_or(u16::MAX),
            // A client without an address can receive only broadcast answers (RFC 4390 2).
            broadcast: !has_address,
            client,
            ..DhcpHeader::default()
        };
        let wished = lease.filter(|_| own.is_none());
        let names_server = wished.or(lease.filter(|_| kind == DhcpKind::RELEASE));
        let (ip, server) =
            (wished.map(|it| it.ip.octets()), names_server.map(|it| it.server.octets()));
        let asks = matches!(kind, DhcpKind::DISCOVER | DhcpKind::REQUEST);
        let options = [
            Some((DhcpOptionCode::MESSAGE_TYPE, &[kind.0][..])),
            Some((DhcpOptionCode::CLIENT_IDENTIFIER, &self.client_id[..])),
            ip.as_ref().map(|ip| (DhcpOptionCode::REQUESTED_ADDRESS, &ip[..])),
            server.as_ref().map(|server| (DhcpOptionCode::SERVER_IDENTIFIER, &server[..])),
            asks.then_some((DhcpOptionCode::PARAMETER_REQUEST_LIST, &lease::WANTED[..])),
            asks.then_some((DhcpOptionCode::MESSAGE_SIZE_MAX, &MESSAGE_LEN_MAX[..])),
        ];
        let options = options.into_iter().flatten();
        let options: Vec<_> = options.map(|(code, data)| DhcpOption { code, data }).collect();
        let server = lease.map_or(Ipv4Addr::BROADCAST, |lease| lease.server);
        let destination = if is_to_server { server } else { Ipv4Addr::BROADCAST };
        let message = DhcpMessage::new(header, List::of(&options));
        if let Some(frame) = datagram(to, client, destination, &message) {
            self.output.send(frame);
        }
    }
}

fn datagram(
    to: To<NoLink>,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    message: &DhcpMessage<'_>,
) -> Option<LinkFrame<NoLink>> {
    let header = Ipv4Header {
        ttl: 64,
        protocol: IpProtocol::UDP,
        source,
        destination,
        ..Ipv4Header::default()
    };
    let ports = UdpHeader {
        source_port: DhcpHeader::CLIENT_PORT,
        destination_port: DhcpHeader::SERVER_PORT,
        ..UdpHeader::default()
    };
    let mut payload = vec![0; UdpHeader::LEN + message.wire_len()];
    message.write(ports.write_datagram(message.wire_len(), &mut payload).ok()?).ok()?;
    udp::fill_checksum(&mut payload, &header.pseudo_header()).ok()?;
    LinkFrame::ipv4(to, &header, &[], &payload)
}
