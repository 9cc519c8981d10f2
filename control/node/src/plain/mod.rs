//! Plain interfaces: the interfaces of a node at links other than InfiniBand.
//!
//! ```text
//!   kernel device: addresses, MTU, carrier <--> PlainLink: pollux_control::plain
//!         |                                        |  ^
//!         +-- queues <--> PlainPort, in workers <--+  +---- packets to this node, and those that
//!                                                           need an ICMP error
//! ```
//!
//! PlainLink sets addresses, MTU and carrier of a TUN device. Those of an Ethernet device it reads.
//!
//! 1. [`PlainLink`]: the control plane, and its requests to the kernel's device;
//! 2. `device`: the kernel's device, TUN or `ethernet_device`;
//! 3. `channel`: between control and a port; [`port`]: a port in a worker; `tun`: the driver of a
//!    port at a queue of a TUN device; `ethernet`: the driver of a port at an Ethernet device, by
//!    `frame_queue`; `next_hops`: the addresses of neighbors; `counters`: the counters of ports.
//!
//! If the kernel refuses a setting of an open device, such as an address for a process without
//! `CAP_NET_ADMIN`, reports show this, and the request is repeated. Packets pass meanwhile.

mod channel;
mod counters;
mod device;
mod ethernet;
mod ethernet_device;
mod frame_queue;
mod next_hops;
pub(crate) mod port;
mod rows;
mod tun;

pub(crate) use ethernet_device::XDP_MTU_MAX;

use crate::config::diff::Setting;
use crate::config::{InterfaceSettings, Prefix};
use crate::interface::echo::{EchoId, EchoOutcome, EchoRequest, Echoes};
use crate::interface::port_driver::memory::WorkerMemory;
use crate::interface::{MemoryOf, PingError, icmp_error};
use crate::kernel::KernelError;
use crate::kernel::tun::{TunOptions, TunQueue};
use crate::kernel::tun_device::TunDevice;
use channel::{ControlSide, PlainEvent, PortState, channel};
use counters::PlainCounters;
use device::PlainDevice;
use ethernet::{EthernetDriver, LinkNames};
use ethernet_device::{EthernetDevice, EthernetError};
use next_hops::NextHops;
use pollux_control::beyond::{InterfaceTransfer, NodeRoutes, TransferKind};
use pollux_control::ethernet::EthernetConfig;
use pollux_control::icmp::IcmpConfig;
use pollux_control::plain::{PlainConfig, PlainInterface};
use pollux_dataplane::capture::{CaptureReader, CaptureTerms};
use pollux_dataplane::port::PortId;
use pollux_mem::pool::PoolError;
use pollux_mem::snapshot::Publisher;
use pollux_verbs::time::Time;
use port::{PlainPort, PortCore};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tun::TunDriver;

/// The pause before a request that the kernel refused is repeated.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of events of a port that are handled in one step.
const EVENTS_PER_STEP: usize = 256;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PlainError {
    #[error("{0}")]
    Memory(#[from] PoolError),
    #[error("{0}")]
    Kernel(#[from] KernelError),
    #[error("{0}")]
    Ethernet(#[from] EthernetError),
}

impl PlainError {
    pub(crate) const fn is_missing(&self) -> bool {
        matches!(self, Self::Ethernet(EthernetError::Missing(_)))
    }
}

/// A plain interface and its device. `node::kinds::NodeInterface` documents the methods that IPoIB
/// interfaces also have.
pub(crate) struct PlainLink {
    control: PlainInterface,
    device: PlainDevice,
    /// The link addresses of neighbors, at an Ethernet interface.
    next_hops: Option<NextHops>,
    /// The addresses of the kernel's end.
    kernel_addresses: BTreeSet<(IpAddr, u8)>,
    /// A refusal of the kernel, and when the request is repeated next.
    refused: Option<(KernelError, Time)>,
    ports: Vec<ControlSide>,
    state: Publisher<PortState>,
    echoes: Echoes,
    /// Packets for this node without a receiver.
    no_socket: u64,
    is_leaving: bool,
}

impl PlainLink {
    /// Opens the TUN device of an interface, with a queue for each of its workers.
    pub(crate) fn open(
        now: Time,
        settings: &InterfaceSettings,
        seed: u64,
        memory: MemoryOf<'_>,
    ) -> Result<(Self, Vec<PlainPort>), PlainError> {
        let options = TunOptions { multi_queue: settings.workers > 1, vnet_header: true };
        let device = TunDevice::open(&settings.device, options)?;
        let mut queues = vec![device.queue().share()?];
        for _ in 1..settings.workers {
            queues.push(TunQueue::open(device.name(), options)?);
        }
        let config = config(settings, settings.mtu, None);
        let mut link = Self::new(now, settings, &config, PlainDevice::Tun(device), seed);
        let mut ports = Vec::new();
        for (number, queue) in (0..).zip(queues) {
            ports.push(PlainPort::new(TunDriver::new(queue), link.join(now, number, memory)?));
        }
        link.control.set_link(now, None);
        link.follow(now);
        link.drain(now);
        Ok((link, ports))
    }

    /// Opens the Ethernet device of an interface, with a frame queue for each worker.
    pub(crate) fn open_ethernet(
        now: Time,
        settings: &InterfaceSettings,
        seed: u64,
        memory: MemoryOf<'_>,
    ) -> Result<(Self, Vec<PlainPort>), PlainError> {
        let (device, queues) = EthernetDevice::open(settings)?;
        let names = LinkNames { address: device.address(), vlan: settings.vlan };
        let static_ones = settings.neighbor.iter();
        let ethernet = EthernetConfig {
            ipv6: settings.ipv6,
            neighbors: static_ones
                .filter_map(|one| Some((one.address, one.link.ethernet()?)))
                .collect(),
            ..EthernetConfig::new(names.address)
        };
        let config = config(settings, settings.mtu.min(device.mtu()), Some(ethernet));
        let device = PlainDevice::Ethernet { device, look_at: now, failed: None };
        let mut link = Self::new(now, settings, &config, device, seed);
        let next_hops = NextHops::new(seed);
        let mut ports = Vec::new();
        for (number, queue) in (0..).zip(queues) {
            let driver = EthernetDriver::new(queue, names, next_hops.reader());
            ports.push(PlainPort::new(driver, link.join(now, number, memory)?));
        }
        link.next_hops = Some(next_hops);
        link.follow(now);
        link.drain(now);
        Ok((link, ports))
    }

    fn new(
        now: Time,
        settings: &InterfaceSettings,
        config: &PlainConfig,
        device: PlainDevice,
        seed: u64,
    ) -> Self {
        let down = format!("{} is being opened", settings.device);
        Self {
            control: PlainInterface::new(now, config, down, seed),
            device,
            next_hops: None,
            kernel_addresses: settings.kernel_address.iter().map(pair).collect(),
            refused: None,
            ports: Vec::new(),
            state: Publisher::new(PortState::default()),
            echoes: Echoes::default(),
            no_socket: 0,
            is_leaving: false,
        }
    }

    fn join(
        &mut self,
        now: Time,
        number: u8,
        memory: MemoryOf<'_>,
    ) -> Result<PortCore, PlainError> {
        let memory: Arc<WorkerMemory> = memory(number)?;
        let (control, side) = channel(self.state.reader());
        self.ports.push(control);
        Ok(PortCore::new(now, number, side, memory))
    }

    /// Sets a TUN device to the state of the interface, or the interface to the state of an
    /// Ethernet device.
    fn follow(&mut self, now: Time) {
        let Self { device, control, kernel_addresses, .. } = self;
        let followed = device.follow(now, control, kernel_addresses);
        self.refused = followed.err().map(|why| (why, now + RETRY_EVERY));
    }

    pub(crate) fn step(&mut self, now: Time) -> bool {
        if self.refused.as_ref().is_some_and(|(_, at)| *at <= now) || self.device.is_due(now) {
            self.follow(now);
        }
        if self.control.poll_timeout().is_some_and(|due| due <= now) {
            self.control.handle_timeout(now);
        }
        self.echoes.handle_timeout(now);
        let Self { ports, control, .. } = self;
        let mut busy = false;
        for port in ports {
            for _ in 0..EVENTS_PER_STEP {
                let Some(event) = port.poll() else { break };
                busy = true;
                match event {
                    PlainEvent::Packet(packet) => control.handle_packet(now, &packet),
                    PlainEvent::Rejected(packet, why) => {
                        control.handle_rejected(now, &packet, icmp_error(why));
                    }
                    PlainEvent::TooBig(packet, hop) => control.handle_too_big(now, packet, hop),
                    PlainEvent::Unresolved(packet, next_hop) => {
                        control.handle_unresolved(now, next_hop, packet);
                    }
                    PlainEvent::Arp(packet) => control.handle_arp(now, &packet),
                    PlainEvent::Use(next_hop) => control.handle_use(now, next_hop),
                }
            }
        }
        self.drain(now) | busy
    }

    /// Sends the output of control. Returns whether there were packets.
    fn drain(&mut self, now: Time) -> bool {
        let Self { control, ports, state, echoes, next_hops, no_socket, .. } = self;
        if let Some(next_hops) = next_hops {
            while let Some((ip, address)) = control.poll_neighbor() {
                next_hops.set(ip, address);
            }
            next_hops.publish();
        }
        if let Some(changed) = control.poll_state() {
            state.publish(PortState::of(&changed));
        }
        let mut busy = false;
        while let Some(frame) = control.poll_frame() {
            ports.first_mut().into_iter().for_each(|port| port.send(frame.clone()));
            busy = true;
        }
        while let Some(delivery) = control.poll_delivery() {
            if !echoes.handle(now, &delivery) {
                *no_socket += 1;
                if delivery.has_port() {
                    control.handle_no_listener(now, &delivery.packet);
                }
            }
            busy = true;
        }
        busy
    }

    /// Whether no packet waits for the address of its neighbor.
    pub(crate) fn is_drained(&self) -> bool {
        self.control.ethernet().is_none_or(|link| link.pending() == 0)
    }

    /// Why the device cannot be used any more, if it cannot.
    pub(crate) fn lost(&self) -> Option<PlainError> {
        self.device.failed().map(PlainError::Ethernet)
    }

    /// The reason why a port has ended, if one has.
    pub(crate) fn failure(&self) -> Option<KernelError> {
        let lost = || KernelError::NoAnswer { operation: "pass packets by a device" };
        let ended = |port: &ControlSide| {
            let is_lost = port.is_gone() && !self.is_leaving;
            port.failure().cloned().or_else(|| is_lost.then(lost))
        };
        self.ports.iter().find_map(ended)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let retry = self.refused.as_ref().map(|(_, at)| *at);
        let all = [
            retry,
            self.echoes.poll_timeout(),
            self.device.poll_timeout(),
            self.control.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    pub(crate) fn take_notified(&mut self) -> u32 {
        let bit =
            |(number, port): (u32, &mut ControlSide)| u32::from(port.take_notified()) << number;
        (0..).zip(&mut self.ports).map(bit).sum()
    }

    /// Clears the carrier of the device, and ends all ports.
    pub(crate) fn leave(&mut self, now: Time) {
        self.is_leaving = true;
        self.control.set_link(now, Some("it leaves".into()));
        self.device.leave();
        self.ports.iter_mut().for_each(ControlSide::end);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.ports.iter().all(ControlSide::is_gone)
    }

    pub(crate) fn apply(&mut self, now: Time, setting: &Setting) -> bool {
        match *setting {
            Setting::SetAddress(prefix) => {
                let is_added = self.control.add_address(now, prefix.ip, prefix.len);
                self.drain(now);
                return is_added;
            }
            Setting::RemoveAddress(ip) => self.control.remove_address(now, ip),
            Setting::SetMtu(mtu) => self.control.set_mtu(mtu.min(self.device.mtu_max())),
            Setting::SetNeighbor(one) => {
                let Some(link) = one.link.ethernet() else { return true };
                let is_set = self.control.set_neighbor(now, one.address, link);
                self.drain(now);
                return is_set;
            }
            Setting::RemoveNeighbor(ip) => self.control.remove_neighbor(now, ip),
            Setting::SetKernelAddress(prefix) => {
                self.kernel_addresses.retain(|(ip, _)| *ip != prefix.ip);
                self.kernel_addresses.insert(pair(&prefix));
            }
            Setting::RemoveKernelAddress(ip) => {
                self.kernel_addresses.retain(|(own, _)| *own != ip);
            }
            // The node handles routers, domains, filters and RPF. Other settings do not apply to
            // this kind.
            _ => return true,
        }
        self.follow(now);
        self.drain(now);
        true
    }

    pub(crate) fn set_node_addresses(&mut self, now: Time, all: &Arc<BTreeSet<IpAddr>>) -> bool {
        let is_new = self.control.set_node_addresses(all);
        if is_new {
            self.drain(now);
        }
        is_new
    }

    pub(crate) fn set_node_routes(&mut self, number: PortId, routes: Arc<dyn NodeRoutes>) {
        self.control.set_node_routes(number.0, routes);
    }

    pub(crate) fn poll_transfer(&mut self) -> Option<InterfaceTransfer> {
        self.control.poll_transfer()
    }

    pub(crate) fn handle_transfer(&mut self, now: Time, packet: Vec<u8>, kind: TransferKind) {
        self.control.handle_transfer(now, packet, kind);
        self.drain(now);
    }

    pub(crate) fn ping(&mut self, now: Time, request: EchoRequest) -> Result<EchoId, PingError> {
        if !self.control.is_up() {
            return Err(PingError::Down);
        }
        let from = self.control.addresses().source_for(request.to).ok_or(PingError::NoSource)?;
        let (id, packet) = self.echoes.request(now, from, request)?;
        self.control.send_packet(now, packet);
        self.drain(now);
        Ok(id)
    }

    pub(crate) fn echo(&mut self, id: EchoId) -> Option<(EchoOutcome, Option<IpAddr>)> {
        self.echoes.take(id)
    }

    pub(crate) fn capture(&mut self, terms: &CaptureTerms) -> Vec<CaptureReader> {
        self.ports.iter_mut().map(|port| port.capture(terms.clone())).collect()
    }

    pub(crate) const fn control(&self) -> &PlainInterface {
        &self.control
    }

    fn counters(&self) -> impl Iterator<Item = PlainCounters> {
        self.ports.iter().map(ControlSide::counters)
    }
}

const fn pair(prefix: &Prefix) -> (IpAddr, u8) {
    (prefix.ip, prefix.len)
}

/// The configuration of control for these settings.
fn config(settings: &InterfaceSettings, mtu: u32, ethernet: Option<EthernetConfig>) -> PlainConfig {
    let addresses = settings.fixed_addresses().map(pair).collect();
    PlainConfig { addresses, mtu, icmp: IcmpConfig::default(), ethernet }
}
