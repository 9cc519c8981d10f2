//! A host with IP addresses for rdma-core programs: its IPoIB interface, and the connection manager
//! that programs use in place of the kernel's `rdma_ucm`.
//!
//! ```text
//!   programs --socket--> Programs --commands--> RdmaCm --CM messages--> CmAgent --> fabric
//!                                                  | addresses to resolve
//!                                                  v
//!                                 interface: ARP, ND, paths of the SA   --> fabric
//! ```
//!
//! One thread runs all of it, and sleeps while there is nothing to do. The interface answers ARP,
//! ND and echo requests, and has no sockets. An address is resolved by an echo request: after it,
//! the interface knows the port of the neighbor, and the path to it.
//!
//! Why the interface has mode `ud`: IPoIB connections need CM messages, but a port has one agent
//! for them, and the connections of programs need that agent.

mod cm_agent;
mod programs;

use crate::config::{AddressSetting, InterfaceSettings, Mode, Prefix};
use crate::device::Opened;
use crate::interface::echo::{EchoId, EchoRequest};
use crate::interface::{DeviceError, Inline, IpoibLink};
use cm_agent::CmAgent;
use pollux_control::rdma_cm::{HostView, RdmaCm, ResolvedAddress};
use pollux_dataplane::port::PacketPort;
use pollux_fabric::link::threads::Clock;
use pollux_verbs::time::Time;
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::units::{Rate, TimeCode};
use programs::Programs;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Interval of echo requests to an address that is being resolved.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The longest sleep. The state of the port and the addresses are read after each.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The longest sleep while an address, or the path to it, is being resolved.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The longest time for disconnecting peers at the end.
const LEAVE_MAX: Duration = Duration::from_millis(500);
const LEAVE_LOOK: Duration = Duration::from_millis(1);
/// The longest wait until the interface is up and may use its addresses.
const UP_MAX: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaCmServiceError {
    #[error("the interface cannot start: {0}")]
    Interface(#[from] DeviceError),
    #[error("no agent for connection management: {0}")]
    Agent(String),
    #[error(
        "{0} has addresses of another `pollux exec` already; run both programs by one, or choose \
         another node"
    )]
    Taken(String),
    #[error("{path}: {error}")]
    Socket { path: String, error: Errno },
    #[error("no thread: {0}")]
    Thread(std::io::Error),
    #[error(
        "the interface of {0} is not up after {limit:?}: the fabric has no subnet manager, or \
         another host has one of the addresses",
        limit = UP_MAX
    )]
    Down(String),
}

/// A host for programs, which runs until this is dropped.
#[derive(Debug)]
pub struct RdmaCmService {
    /// Ends the thread once something is written to it.
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl RdmaCmService {
    /// Starts a host with these addresses at the device `opened`, which is the port `name` of the
    /// group with this secret. Programs reach the connection manager at the socket `path`.
    pub(crate) fn start(
        (name, secret): (&str, u64),
        opened: Opened,
        addresses: &[Prefix],
        path: &Path,
    ) -> Result<Self, RdmaCmServiceError> {
        let clock = clock();
        let agent = CmAgent::open(name, secret, &clock)?;
        let failed = |error| RdmaCmServiceError::Socket { path: path.display().to_string(), error };
        let programs = Programs::listen(path).map_err(failed)?;
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?);
        let settings = InterfaceSettings {
            device: name.into(),
            mode: Mode::Ud,
            address: addresses.iter().copied().map(AddressSetting::Fixed).collect(),
            ..InterfaceSettings::default()
        };
        let node_guid = opened.device.attributes().node_guid;
        let seed = || RandomState::new().hash_one(());
        let (interface, mut workers) = IpoibLink::new(clock(), opened, &settings, seed())?;
        let inline = Inline { worker: workers.remove(0), interface: Some(interface) };
        let (up, is_up) = sync_channel(1);
        let host = Host {
            clock,
            inline,
            cm: RdmaCm::new(node_guid, seed()),
            agent,
            programs,
            asked: BTreeMap::new(),
            end: Arc::clone(&end),
            up: Some((up, addresses.iter().map(|prefix| prefix.ip).collect())),
        };
        let thread = Builder::new().name("rdma-cm".into()).spawn(move || host.run());
        let service = Self { end, thread: Some(thread.map_err(RdmaCmServiceError::Thread)?) };
        match is_up.recv_timeout(UP_MAX) {
            Ok(()) => Ok(service),
            Err(_) => Err(RdmaCmServiceError::Down(name.into())),
        }
    }
}

impl Drop for RdmaCmService {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Host {
    clock: Clock,
    inline: Inline,
    cm: RdmaCm,
    agent: CmAgent,
    programs: Programs,
    /// Addresses that are being resolved: the pending echo request, and when the next one is due.
    asked: BTreeMap<IpAddr, (Option<EchoId>, Time)>,
    end: Arc<OwnedFd>,
    /// Until the host is up: the channel to notify, and the addresses that have to be usable by
    /// then.
    up: Option<(SyncSender<()>, Vec<IpAddr>)>,
}

impl Host {
    fn run(mut self) {
        while !self.is_over() {
            if !self.turn() {
                self.sleep();
            }
        }
        self.programs.end(self.now(), &mut self.cm);
        if let Some(interface) = &mut self.inline.interface {
            interface.leave((self.clock)());
        }
        let until = self.now() + LEAVE_MAX;
        while self.inline.failed().is_none() && self.now() < until {
            let is_busy = self.turn();
            let has_left = self.interface().is_none_or(IpoibLink::has_left);
            if has_left && !is_busy {
                break;
            }
            let _ = poll(&mut [], Timespec::try_from(LEAVE_LOOK).ok().as_ref());
        }
    }

    fn now(&self) -> Time {
        (self.clock)()
    }

    fn interface(&self) -> Option<&IpoibLink> {
        self.inline.interface.as_ref()
    }

    /// Whether the service was dropped, or the fabric has ended.
    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.end, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let has_ended = poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0);
        has_ended || self.inline.failed().is_some()
    }

    /// Handles what has arrived, and timers. Returns whether there was anything to do.
    fn turn(&mut self) -> bool {
        let now = self.now();
        let mut busy = self.inline.step(now);
        self.show_host();
        busy |= self.programs.turn(now, &mut self.cm);
        busy |= self.carry_messages(now);
        self.resolve(now);
        if self.cm.poll_timeout().is_some_and(|due| due <= now) {
            self.cm.handle_timeout(now);
            busy = true;
        }
        self.programs.announce(&mut self.cm);
        busy
    }

    /// Passes the current state of the host to the connection manager.
    fn show_host(&mut self) {
        let Some(interface) = &self.inline.interface else { return };
        let Ok(port) = interface.port() else { return };
        let addresses = interface.control().snapshot().own().collect();
        let host = HostView { port, addresses };
        let is_up = interface.control().is_up();
        let has_all = |all: &Vec<IpAddr>| all.iter().all(|ip| host.addresses.contains(ip));
        if let Some((up, _)) = self.up.take_if(|(_, all)| is_up && has_all(all)) {
            let _ = up.send(());
        }
        if self.cm.host() != Some(&host) {
            self.cm.handle_host(host);
        }
    }

    /// Receives and sends CM messages.
    fn carry_messages(&mut self, now: Time) -> bool {
        let Some(view) = self.cm.host().map(|host| host.port.clone()) else { return false };
        let mut busy = false;
        while let Ok(Some(envelope)) = self.agent.receive(&view) {
            self.cm.handle_mad(now, &envelope);
            busy = true;
        }
        while let Some(envelope) = self.cm.poll_transmit() {
            self.agent.send(&envelope, &view);
            busy = true;
        }
        busy
    }

    /// Resolves the addresses that CM IDs wait for.
    fn resolve(&mut self, now: Time) {
        let wanted = self.cm.wanted();
        let Some(interface) = &mut self.inline.interface else { return };
        for (echo, _) in self.asked.values_mut() {
            let _ = echo.take_if(|echo| interface.echo(*echo).is_some());
        }
        self.asked.retain(|to, (echo, _)| echo.is_some() || wanted.contains(to));
        for to in wanted {
            if let Some(resolved) = resolved(interface, self.cm.host(), to) {
                self.cm.handle_resolution(to, &resolved);
                continue;
            }
            let asked = self.asked.entry(to).or_insert((None, now));
            if asked.0.is_none() && asked.1 <= now {
                let request = EchoRequest::new(to, 0, ASK_EVERY);
                *asked = (interface.ping(now, request).ok(), now + ASK_EVERY);
            }
        }
    }

    fn sleep(&mut self) {
        let now = self.now();
        let can_sleep = self.inline.worker.arm();
        if let Some(interface) = &self.inline.interface {
            interface.sleep_port().arm();
        }
        if self.inline.step(now) || !can_sleep {
            return;
        }
        let mut longest = SLEEP_MAX;
        if !self.cm.wanted().is_empty() {
            longest = LOOK_EVERY;
        }
        let due = [self.inline.poll_timeout(), self.cm.poll_timeout()].into_iter().flatten().min();
        longest = due.map_or(longest, |due| due.since(now).min(longest));
        let Inline { worker, interface } = &mut self.inline;
        let port = interface.as_ref().map(IpoibLink::sleep_port);
        longest = port.map_or(longest, |port| port.sleep_max().min(longest));
        let of_port = port.into_iter().flat_map(|port| port.descriptors());
        let source = worker.wake_source();
        longest = source.as_ref().map_or(longest, |source| source.longest.min(longest));
        let of_worker = source.map(|source| source.fd);
        let own = [self.agent.as_fd(), self.end.as_fd()];
        let all = of_port.chain(of_worker).chain(own);
        let mut fds: Vec<_> =
            all.map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        fds.extend(self.programs.poll_fds());
        // The next turn polls everything, so the result does not matter.
        let _ = poll(&mut fds, Timespec::try_from(longest).ok().as_ref());
        drop(fds);
        self.inline.worker.woken();
        self.programs.close_ended(now, &mut self.cm);
    }
}

/// The port of an address and the path to it, if the interface has resolved the address.
fn resolved(interface: &IpoibLink, host: Option<&HostView>, to: IpAddr) -> Option<ResolvedAddress> {
    let host = host?;
    if host.addresses.contains(&to) {
        let gid = *host.port.gids.first()?;
        return Some(ResolvedAddress { source: to, gid, path: Some(path_to_self(host)?) });
    }
    let source = interface.control().addresses().source_for(to)?;
    let (gid, path) = interface.control().port_of(to)?;
    Some(ResolvedAddress { source, gid, path })
}

/// The path from the port to itself, which needs no SA query.
fn path_to_self(host: &HostView) -> Option<PathRecord> {
    let gid = *host.port.gids.first()?;
    Some(PathRecord {
        sgid: gid,
        dgid: gid,
        slid: host.port.lid,
        dlid: host.port.lid,
        p_key: *host.port.pkeys.iter().find(|key| key.is_valid())?,
        mtu: host.port.mtu,
        rate: Rate::GBPS_100,
        packet_life_time: TimeCode(0),
        ..PathRecord::default()
    })
}

#[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
fn clock() -> Clock {
    let start = Instant::now();
    Arc::new(move || Time::START + start.elapsed())
}
