//! smoltcp over an interface: [`Device`] is a `phy::Device` of smoltcp 0.14, with the medium IP.
//!
//! A program that is written for smoltcp keeps smoltcp's own stack. Only the line that opens the
//! device changes:
//!
//! ```
//! use pollux::Node;
//! use smoltcp::iface::{Config, Interface};
//! use smoltcp::time::Instant;
//! use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
//!
//! let mut device = Node::open("soft:")?.interface("ib0").address("10.0.0.1/24").up_smoltcp()?;
//! let config = Config::new(HardwareAddress::Ip);
//! let mut interface = Interface::new(config, &mut device, Instant::now());
//! interface.update_ip_addrs(|all| all.push(IpCidr::new(IpAddress::v4(10, 0, 0, 1), 24)).unwrap());
//! # Ok::<(), pollux::UpError>(())
//! ```
//!
//! The interface does address resolution, neighbor discovery and connections, so each address has
//! to be configured in both. The interface routes packets to other networks ([`Setup::router`]);
//! smoltcp needs a route to send them at all, but its gateway is ignored. When smoltcp reports a
//! membership in a group (IGMP, MLD), the interface joins the group, and sends its own report in
//! place of smoltcp's.
//!
//! Calls of the device serve the interface, as calls of inline sockets do. A program that sleeps
//! waits at the descriptor of the device ([`AsRawFd`]), with smoltcp's `phy::wait` for example.
//!
//! [`Setup::router`]: crate::Setup::router

use crate::arrivals::Arrivals;
use crate::interface::Interface;
use pollux_dataplane::headers::PacketHeaders;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::group_record::{GroupRecord, RecordType};
use pollux_wire::ip::igmp::IgmpMessage;
use pollux_wire::ip::list::Item;
use pollux_wire::ip::mld::MldMessage;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// The protocol numbers in the IP headers of membership reports: MLD follows a hop-by-hop option
/// (RFC 3810 5).
const REPORTS: [IpProtocol; 3] = [IpProtocol::IGMP, IpProtocol::HOP_BY_HOP, IpProtocol::ICMPV6];

/// An interface as a device of smoltcp.
pub struct Device {
    interface: Interface,
    mtu: usize,
    /// The packet that is being received.
    packet: Vec<u8>,
    wake: WakeSet,
    /// Whether the program has taken the descriptor. Otherwise, the device is not armed for sleeps.
    sleeps: Cell<bool>,
}

/// Packets that were dropped on receive, or were too long to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceDrops {
    /// Received packets that were dropped because 1,024 others waited for a poll of the device.
    pub overflow: u64,
    /// Sent packets that were longer than the MTU of their path. In connected mode, this can happen
    /// to packets to a group, and to a peer without a connection. UDP datagrams among them are sent
    /// in fragments; others are dropped.
    pub too_big: u64,
}

/// A packet that was received.
#[derive(Debug)]
pub struct RxToken<'a> {
    packet: &'a [u8],
}

/// A token to send one packet.
#[derive(Debug)]
pub struct TxToken<'a> {
    interface: &'a Interface,
}

/// The descriptor at which a program sleeps: the device, the control thread or a timer makes it
/// readable.
struct WakeSet {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Device {
    pub(crate) fn new(interface: Interface, mtu: u32) -> io::Result<Self> {
        let (device, mtu) = interface.with(|host, _| {
            host.arrivals = Some(Arrivals::new());
            (host.wake_descriptor(), host.mtu(mtu))
        });
        let control = interface.woken().as_fd();
        let wake = WakeSet::new(device.iter().map(AsFd::as_fd).chain([control]))?;
        Ok(Self {
            interface,
            mtu: mtu as usize,
            packet: Vec::new(),
            wake,
            sleeps: Cell::new(false),
        })
    }

    /// The interface, for its neighbors and for `ping`.
    pub const fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The counters of dropped and too long packets.
    pub fn drops(&self) -> DeviceDrops {
        self.interface.with(|host, _| DeviceDrops {
            overflow: host.arrivals.as_ref().map_or(0, |arrivals| arrivals.dropped),
            too_big: host.too_big,
        })
    }

    /// Receives the next packet. If none waits, arms the descriptor to become readable at the next.
    fn next(&mut self) -> bool {
        let Self { interface, packet, wake, sleeps, .. } = self;
        let woken = interface.woken();
        interface.with(|host, now| {
            if host.next_packet(packet) {
                return true;
            }
            if sleeps.get() {
                woken.clear();
                host.woken();
            }
            host.step(now);
            if host.next_packet(packet) {
                return true;
            }
            if !sleeps.get() {
                return false;
            }
            woken.fall_asleep();
            let is_armed = host.arm();
            host.step(now);
            wake.wake_after(if is_armed { host.sleep_max(now) } else { Duration::ZERO });
            host.next_packet(packet)
        })
    }
}

impl phy::Device for Device {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        self.next().then_some(())?;
        Some((RxToken { packet: &self.packet }, TxToken { interface: &self.interface }))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        let can_send = self.interface.with(|host, now| {
            host.can_send() || {
                host.step(now);
                host.can_send()
            }
        });
        can_send.then_some(TxToken { interface: &self.interface })
    }

    /// smoltcp computes and verifies all checksums.
    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.packet)
    }
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut changes = None;
        let result = self.interface.with(|host, now| {
            let result = host.send_packet(now, len, f, |packet| {
                changes = memberships(packet);
                changes.is_none()
            });
            if let (Some(changes), Some(arrivals)) = (&changes, &mut host.arrivals) {
                changes.iter().for_each(|change| arrivals.set_member(*change));
            }
            result
        });
        let control = self.interface.control();
        for (group, is_member) in changes.into_iter().flatten() {
            match is_member {
                true => control.run(move |interface, now| _ = interface.join_group(now, group)),
                false => control.leave_group(group),
            }
        }
        result
    }
}

/// The descriptor becomes readable when the device has to be polled.
impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// The same descriptor as that of [`AsRawFd`].
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sleeps.set(true);
        self.wake.epoll.as_fd()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (addresses, drops) = (self.interface.addresses(), self.drops());
        f.debug_struct("Device")
            .field("addresses", &addresses)
            .field("mtu", &self.mtu)
            .field("drops", &drops)
            .finish_non_exhaustive()
    }
}

impl WakeSet {
    fn new<'fd>(others: impl IntoIterator<Item = BorrowedFd<'fd>>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let add = |fd: BorrowedFd<'_>| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        };
        add(timer.as_fd())?;
        for fd in others {
            add(fd)?;
        }
        Ok(Self { epoll, timer })
    }

    /// Makes the descriptor readable after this time, in place of the time set before.
    fn wake_after(&self, longest: Duration) {
        const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would disarm the timer.
        let longest = longest.max(Duration::from_nanos(1));
        let it_value = Timespec::try_from(longest).unwrap_or(NEVER);
        let value = Itimerspec { it_interval: NEVER, it_value };
        // If this fails, the control thread ends the sleep, only later.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
    }
}

/// The memberships in a membership report (RFC 2236 2, RFC 3376 4.2, RFC 3810 5.2), each with
/// whether the host is a member; `None` for other packets.
fn memberships(packet: &[u8]) -> Option<Vec<(IpAddr, bool)>> {
    // The protocol number alone rules out most packets.
    let protocol = match packet.first()? >> 4 {
        4 => packet.get(9),
        _ => packet.get(6),
    };
    let is_report = protocol.is_some_and(|protocol| REPORTS.contains(&IpProtocol(*protocol)));
    let headers = PacketHeaders::parse_ip(packet).ok().filter(|_| is_report)?;
    let payload = headers.payload(packet);
    match headers.protocol {
        IpProtocol::IGMP => match IgmpMessage::parse(payload).ok()? {
            IgmpMessage::ReportV1(group) | IgmpMessage::ReportV2(group) => {
                Some(vec![(group.into(), true)])
            }
            IgmpMessage::Leave(group) => Some(vec![(group.into(), false)]),
            IgmpMessage::ReportV3(records) => Some(records.iter().map(membership).collect()),
            _ => None,
        },
        IpProtocol::ICMPV6 => match MldMessage::parse(payload).ok()? {
            MldMessage::ReportV1(group) => Some(vec![(group.into(), true)]),
            MldMessage::Done(group) => Some(vec![(group.into(), false)]),
            MldMessage::ReportV2(records) => Some(records.iter().map(membership).collect()),
            _ => None,
        },
        _ => None,
    }
}

/// The host is a member unless the record includes no source.
fn membership<'a, A: Item<'a> + Into<IpAddr>>(record: GroupRecord<'a, A>) -> (IpAddr, bool) {
    let is_include =
        matches!(record.kind, RecordType::MODE_IS_INCLUDE | RecordType::CHANGE_TO_INCLUDE_MODE);
    (record.group.into(), !is_include || record.sources.iter().next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An MLD report with one record (RFC 3810 5.2), after a router alert option.
    fn mld_report(kind: u8, group: [u8; 16], source: &[u8]) -> Vec<u8> {
        let record = [&[kind, 0, 0, (source.len() / 16) as u8], &group[..], source].concat();
        let payload = [&[58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 1], &record[..]].concat();
        let addresses = [[0xfe; 16], group].concat();
        [&[0x60, 0, 0, 0, 0, payload.len() as u8, 0, 1], &addresses[..], &payload].concat()
    }

    #[test]
    fn reports_tell_memberships() {
        let group = "ff02::fb".parse::<std::net::Ipv6Addr>().unwrap();
        for (kind, source, is_member) in
            [(2, &[][..], true), (4, &[], true), (3, &[], false), (3, &[1; 16], true)]
        {
            let found = memberships(&mld_report(kind, group.octets(), source));
            assert_eq!(found, Some(vec![(IpAddr::V6(group), is_member)]), "{kind}");
        }
    }

    #[test]
    fn other_packets_tell_none() {
        let query = mld_report(130, [0; 16], &[]);
        assert_eq!(memberships(&query[..48]), None, "cut");
        assert_eq!(memberships(&[]), None);
        let mut datagram = mld_report(4, [0xff; 16], &[]);
        datagram[6] = 17;
        assert_eq!(memberships(&datagram), None);
    }
}
