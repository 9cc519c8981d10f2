//! Received packets that wait for the application's own IP stack (`crate::smoltcp`).

use pollux_dataplane::headers::{Form, PacketHeaders};
use pollux_wire::ip::IpProtocol;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

/// Maximum number of waiting packets; later ones are dropped.
const WAITING_MAX: usize = 1024;
/// ICMPv6 types of the link protocols: multicast listener discovery and neighbor discovery (IANA).
const LINK_MESSAGES: [std::ops::RangeInclusive<u8>; 2] = [130..=137, 143..=143];
/// The port of DHCP clients.
const DHCP_CLIENT: [u8; 2] = 68u16.to_be_bytes();

#[derive(Debug)]
pub(crate) struct Arrivals {
    waiting: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// The groups that the stack has joined.
    groups: BTreeSet<IpAddr>,
    pub(crate) dropped: u64,
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        let (waiting, spare) = (VecDeque::with_capacity(WAITING_MAX), Vec::new());
        Self { waiting, spare, groups: BTreeSet::new(), dropped: 0 }
    }

    /// Takes a packet, unless it is a fragment, belongs to a link protocol, or is for a group that
    /// the stack has not joined. The caller passes a refused packet to the control plane, which
    /// returns packets that it does not handle itself.
    #[inline]
    pub(crate) fn take(&mut self, headers: &PacketHeaders, packet: &[u8]) -> bool {
        let payload = headers.payload(packet);
        let is_taken = headers.form == Form::Plain
            && match headers.protocol {
                IpProtocol::TCP | IpProtocol::ICMPV4 => true,
                IpProtocol::UDP => payload.get(2..4).is_some_and(|to| *to != DHCP_CLIENT),
                IpProtocol::ICMPV6 => payload.first().is_some_and(|kind| {
                    !LINK_MESSAGES.iter().any(|messages| messages.contains(kind))
                }),
                _ => false,
            }
            && headers
                .destination(packet)
                .is_some_and(|to| !to.is_multicast() || self.groups.contains(&to));
        if is_taken {
            self.push(packet);
        }
        is_taken
    }

    pub(crate) fn push(&mut self, packet: &[u8]) {
        if self.waiting.len() == WAITING_MAX {
            self.dropped += 1;
            return;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(packet);
        self.waiting.push_back(buffer);
    }

    pub(crate) fn set_member(&mut self, (group, is_member): (IpAddr, bool)) {
        match is_member {
            true => self.groups.insert(group),
            false => self.groups.remove(&group),
        };
    }

    /// Replaces `packet` by the next waiting packet; `false` if none waits.
    pub(crate) fn next(&mut self, packet: &mut Vec<u8>) -> bool {
        let Some(next) = self.waiting.pop_front() else { return false };
        self.spare.push(std::mem::replace(packet, next));
        true
    }
}
