//! Received packets that wait for a stack of the application (`crate::smoltcp`).

use pollux_dataplane::headers::{Form, PacketHeaders};
use pollux_wire::ip::IpProtocol;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

/// Packets that wait at most; later ones are dropped.
const WAITING_MAX: usize = 1024;
/// ICMPv6 messages of the link: listener and neighbor discovery (IANA).
const LINK_MESSAGES: [std::ops::RangeInclusive<u8>; 2] = [130..=137, 143..=143];
/// The port of DHCP clients.
const DHCP_CLIENT: [u8; 2] = 68u16.to_be_bytes();

#[derive(Debug)]
pub(crate) struct Arrivals {
    waiting: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// The groups whose packets are for the stack.
    groups: BTreeSet<IpAddr>,
    pub(crate) dropped: u64,
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        let (waiting, spare) = (VecDeque::with_capacity(WAITING_MAX), Vec::new());
        Self { waiting, spare, groups: BTreeSet::new(), dropped: 0 }
    }

    /// Takes a packet without a detour by the control plane. Fragments and packets of the link are
    /// refused; the control plane returns those of others.
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

    /// Puts the next packet in place of another one. `false` if none waits.
    pub(crate) fn next(&mut self, packet: &mut Vec<u8>) -> bool {
        let Some(next) = self.waiting.pop_front() else { return false };
        self.spare.push(std::mem::replace(packet, next));
        true
    }
}
