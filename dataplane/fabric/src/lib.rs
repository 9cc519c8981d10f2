//! A software InfiniBand subnet that carries data as well as management.
//!
//! A [`Fabric`] has a net of nodes and links, subnet managers, and the users of its ports:
//! adapters, programs, processes, and wires to nodes of other fabrics. The caller passes the time,
//! and [`Fabric::step`] handles all due events.
//!
//! Read in this order:
//!
//! 1. [`link`]: links between adapters, with fault injection;
//! 2. [`net`]: packets of data through links, switches and routers of a subnet;
//! 3. [`umad`]: unmodified programs, for example OpenSM, at a port of the subnet; [`listen`]: the
//!    listening unix sockets of a fabric;
//! 4. [`wire_io`]: wires to nodes of other fabrics;
//! 5. [`process`]: adapters in processes of their own, over shared memory;
//! 6. [`null`]: the null device, for benchmarks of the layers above an adapter.
#![forbid(unsafe_code)]

pub mod link;
pub mod listen;
pub mod net;
pub mod null;
pub mod process;
pub mod umad;
pub mod wire_io;

pub use pollux_hca::violation::KeyViolation;
pub use pollux_hca::{Adapter, DropReason, Frame, LeaseTable, PORT_CONTEXTS_MAX, Port, SoftDevice};
pub use pollux_subnet::{node, pma, sa, sm, sma, subnet, switch, topology};
pub use pollux_verbs::time::{self, Time};

use net::{MadDelivery, Net};
use pollux_wire::mad::{MAD_LEN, MadHeader};
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use sm::Residents;
use std::io;
use std::time::Duration;
use topology::End;
use umad::{Programs, Sockets};
use wire_io::ForeignWire;

/// A net, its subnet managers, and the programs, processes and wires at its ports.
pub struct Fabric {
    pub net: Net,
    pub managers: Residents,
    pub programs: Programs,
    /// The sockets of these programs; without sockets, no program finds the fabric.
    pub program_sockets: Option<Sockets>,
    pub processes: Option<process::Server>,
    pub wires: Vec<ForeignWire>,
}

impl Fabric {
    pub fn new(net: Net) -> Self {
        Self {
            net,
            managers: Residents::default(),
            programs: Programs::default(),
            program_sockets: None,
            processes: None,
            wires: Vec::new(),
        }
    }

    /// Starts a subnet manager of this process at a port, 0 at a switch.
    pub fn start_manager(&mut self, at: End, config: sm::SmConfig) {
        self.managers.start(self.net.subnet_mut(), at, config);
    }

    /// Receives from wires, processes and programs, advances the net, and sends to them.
    pub fn step(&mut self, now: Time) -> io::Result<()> {
        self.wires.iter_mut().for_each(|wire| wire.receive(now, &mut self.net));
        if let Some(processes) = &mut self.processes {
            processes.receive(now, &mut self.net);
        }
        let mut sockets = self.program_sockets.take();
        if let Some(sockets) = &mut sockets {
            sockets.receive(now, self)?;
        }
        self.advance(now);
        if let Some(sockets) = &mut sockets {
            sockets.send(self);
        }
        self.program_sockets = sockets;
        self.wires.iter_mut().for_each(|wire| wire.send(now, &mut self.net));
        if let Some(processes) = &mut self.processes {
            processes.send(now, &mut self.net);
        }
        Ok(())
    }

    /// The part of a step without sockets: timers of managers, traps, arriving frames, and timeouts
    /// of programs' requests.
    pub fn advance(&mut self, now: Time) {
        self.managers.timeout(now);
        if self.net.subnet().traps_due().is_some_and(|due| due <= now) {
            self.net.subnet_mut().send_traps(now);
        }
        self.net.advance(now);
        self.deliver(now, MAD_LEN as u64);
        self.programs.timeout(now);
    }

    /// When [`Fabric::step`] must run next, even if nothing is received.
    pub fn due(&self) -> Option<Time> {
        let wires = self.wires.iter().filter_map(ForeignWire::due).min();
        let (net, traps) = (self.net.deadline(), self.net.subnet().traps_due());
        [net, traps, self.managers.due(), self.programs.due(), wires].into_iter().flatten().min()
    }

    /// Prepares [`Fabric::wait`]: processes wake the fabric from now on. Returns how long the
    /// fabric may wait, `longest` at most.
    pub fn prepare_wait(&mut self, now: Time, mut longest: Duration) -> Duration {
        if let Some(due) = self.due() {
            longest = longest.min(due.since(now));
        }
        let retry = self.program_sockets.as_ref().and_then(Sockets::retry);
        longest = retry.map_or(longest, |retry| longest.min(retry));
        // A datagram wire sends its remaining packets in the next step, so do not wait. A full
        // stream wakes the poll when it has space.
        let waits = |wire: &ForeignWire| wire.is_batched() && self.net.has_foreign(wire.end());
        if self.wires.iter().any(waits) {
            longest = Duration::ZERO;
        }
        self.processes.as_mut().map_or(longest, |processes| processes.sleep(longest))
    }

    /// Waits, for `longest` at most, until a socket of the fabric or one of `others` is ready.
    pub fn wait(&mut self, longest: Duration, others: Vec<PollFd<'_>>) -> io::Result<()> {
        let sockets = self.program_sockets.iter().flat_map(Sockets::poll_fds);
        let mut fds: Vec<_> = sockets.collect();
        let program_fds = fds.len();
        fds.extend(self.wires.iter().filter_map(ForeignWire::poll_fd));
        fds.extend(self.processes.iter().flat_map(process::Server::poll_fds));
        fds.extend(others);
        let (tv_sec, tv_nsec) = (longest.as_secs() as i64, longest.subsec_nanos().into());
        let ready = match poll(&mut fds, Some(&Timespec { tv_sec, tv_nsec })) {
            Ok(_) => (0..program_fds).filter(|index| !fds[*index].revents().is_empty()).collect(),
            Err(Errno::INTR) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        if let Some(sockets) = &mut self.program_sockets {
            sockets.set_ready(ready);
        }
        if let Some(processes) = &mut self.processes {
            processes.wake();
        }
        Ok(())
    }

    /// Delivers arrived datagrams to programs, managers and adapters, until no manager has more to
    /// send. `len` is the length to report to programs: the length that a program gave for its
    /// datagram, or else the length of a MAD.
    fn deliver(&mut self, now: Time, len: u64) {
        loop {
            while let Some(delivery) = self.net.poll_delivery() {
                self.hand_over(now, delivery, len);
            }
            let net = &mut self.net;
            if !self.managers.transmit(now, |at, datagram| net.send_datagram(now, at, datagram)) {
                break;
            }
        }
    }

    /// Delivers a datagram to its receiver. A response goes to the program, or the agent of a
    /// process, that sent the request. Other datagrams of subnet management and administration go
    /// to the manager at the port, if there is one. Other requests go to a program or an agent of
    /// their class, and the rest goes to the adapter.
    fn hand_over(&mut self, now: Time, delivery: MadDelivery, len: u64) {
        let (at, datagram) = (delivery.at, &delivery.datagram);
        let Ok((header, _)) = MadHeader::read(&datagram.mad) else { return };
        let slot = self.programs.receiver(at, &header);
        let agents = self.processes.as_mut().filter(|all| all.has_agent_for(&delivery));
        let is_request = !header.method.is_response();
        let is_taken = slot.is_some() || agents.is_some();
        let is_for_manager =
            self.managers.takes(at, header.mgmt_class) && (is_request || !is_taken);
        if is_request && (is_for_manager || is_taken) {
            self.programs.set_handed_over(header.transaction_id);
        }
        match slot {
            _ if is_for_manager => self.managers.handle(now, at, datagram),
            Some(slot) => self.send_to_program(now, slot, delivery, len),
            None => match agents {
                Some(agents) => agents.give_to_agent(&mut self.net, &delivery),
                None => self.net.deliver_to_adapter(delivery),
            },
        }
    }
}
