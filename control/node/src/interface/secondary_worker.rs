//! A secondary worker of an interface: it moves packets by queue pairs of its own, and the control
//! of the primary worker decides about them.
//!
//! ```text
//!   device --> port driver --take: a socket's?--no--> events ---ring--> Interface: control
//!              port driver <-- commands ------------------------ring--- WorkerGroup
//! ```
//!
//! Its UD queue pair is in no link address and in no group: datagrams leave by it, and few come.
//! It has a device context of its own ([`pollux_verbs::Device::open_shared`]), and so can have a
//! thread of its own. It ends when its primary worker does; its caller drops it then.

use super::counters::DriverCounters;
use super::port_driver::{Arrived, DeviceError, PortDriver, Terms};
use super::sockets::{LOOK_EVERY, Take, Used, WorkerPort};
use super::worker_channel::{SecondaryEnd, WorkerCommand, WorkerEvent, channel};
use super::{USES_EVERY, WorkerGroup};
use pollux_control::interface::{Delivery, InterfaceSnapshot, Worker};
use pollux_dataplane::ipoib::Received;
use pollux_mem::snapshot::Publisher;
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// How often what it has moved is published.
const COUNTERS_EVERY: Duration = Duration::from_millis(100);

/// A worker of an interface beside its primary worker.
pub struct SecondaryWorker {
    worker: Worker,
    // It goes before the line, by which the primary worker knows that it has gone.
    driver: PortDriver,
    arrived: Arrived,
    facts: Arc<InterfaceSnapshot>,
    counters: Publisher<DriverCounters>,
    counters_due: Time,
    uses_due: Time,
    used: Used,
    confirmed: Used,
    look_at: Time,
    failed: Option<VerbsError>,
    end: SecondaryEnd,
}

impl SecondaryWorker {
    /// One more of this worker group, beside the primary worker's port driver.
    pub(super) fn join(
        now: Time,
        workers: &mut WorkerGroup,
        (worker, primary): (Worker, &mut PortDriver),
        terms: Terms,
        seed: u64,
    ) -> Result<Self, DeviceError> {
        let driver = primary.for_worker(terms, seed)?;
        primary.netdev.add_sibling(driver.qpn());
        let (primary_end, end) = channel();
        let counters = Publisher::new(DriverCounters::default());
        workers.join(primary_end, counters.reader());
        Ok(Self {
            worker,
            driver,
            arrived: Arrived::default(),
            facts: Arc::default(),
            counters,
            counters_due: now,
            uses_due: now + USES_EVERY,
            used: Used::new(),
            confirmed: Used::new(),
            look_at: now,
            failed: None,
            end,
        })
    }

    /// Which of the interface's workers it is.
    pub const fn worker(&self) -> Worker {
        self.worker
    }

    /// What it moves, to be shown.
    pub const fn driver(&self) -> &PortDriver {
        &self.driver
    }

    /// Does what there is to do; says whether that was anything.
    pub fn step(&mut self, now: Time) -> bool {
        self.failed.is_none() && self.turn(now, &mut |_| false)
    }

    fn turn(&mut self, now: Time, take: Take<'_>) -> bool {
        if self.end.is_over() {
            let (what, why) = ("interface", "its first worker has ended");
            self.failed = Some(VerbsError::Lost { what, why });
            return true;
        }
        let mut busy = self.carry_out_commands(now);
        match self.driver.poll(now, &mut self.arrived) {
            Ok(polled) => busy |= polled,
            Err(error) => return self.fail(error),
        }
        busy |= self.send_events(take);
        if self.uses_due <= now {
            self.driver.report_uses();
            self.driver.retry(now);
            self.uses_due = now + USES_EVERY;
        }
        let has_sent = self.end.has_sent_events() && self.driver.has_moved();
        self.end.show(self.driver.is_idle(), has_sent && self.driver.netdev().has_sent());
        if self.counters_due <= now {
            self.publish();
            self.counters_due = now + COUNTERS_EVERY;
        }
        busy
    }

    /// Does what the primary worker wants.
    fn carry_out_commands(&mut self, now: Time) -> bool {
        let mut has_acted = false;
        while let Some(command) = self.end.poll() {
            match command {
                WorkerCommand::Act(action) => self.driver.carry_out(now, action),
                WorkerCommand::SetState(facts) => self.facts = facts,
            }
            has_acted = true;
        }
        if has_acted {
            self.driver.show_changes();
        }
        has_acted
    }

    /// Tells the primary worker what has come. The port is the primary worker's to look at.
    fn send_events(&mut self, take: Take<'_>) -> bool {
        let busy = !self.arrived.is_empty();
        let Self { driver, arrived, end, .. } = self;
        end.send_connection_events(arrived.connection_events.drain(..));
        let mut punts_dropped = 0;
        for received in arrived.packets.drain(..) {
            if !take(received.packet.bytes())
                && driver.is_for_us(&received)
                && let Some(event) = to_event(driver, &received)
            {
                punts_dropped += u64::from(!end.send(event));
            }
            driver.recycle(received);
        }
        let too_big =
            arrived.too_big.drain(..).map(|(packet, mtu)| WorkerEvent::TooBig(packet, mtu));
        for event in arrived.punts.drain(..).map(WorkerEvent::Punt).chain(too_big) {
            punts_dropped += u64::from(!end.send(event));
        }
        driver.counts.punts_dropped += punts_dropped;
        (arrived.port_changed, arrived.reregister) = (false, false);
        busy
    }

    fn publish(&mut self) {
        let counters = self.driver.counters();
        if *self.counters.current() != counters {
            self.counters.publish(counters);
        }
    }

    /// It is none any more; the primary worker is told why.
    fn fail(&mut self, why: VerbsError) -> bool {
        self.end.fail(&why);
        self.failed = Some(why);
        true
    }
}

/// A packet that no socket took, for control.
fn to_event(driver: &PortDriver, received: &Received) -> Option<WorkerEvent> {
    let from = driver.from(received)?;
    Some(WorkerEvent::Packet(received.ether_type, received.packet.bytes().to_vec(), from))
}

impl WorkerPort for SecondaryWorker {
    fn driver(&self) -> &PortDriver {
        &self.driver
    }

    fn driver_mut(&mut self) -> &mut PortDriver {
        &mut self.driver
    }

    fn report_use(&mut self, now: Time, next_hop: IpAddr) {
        if self.used.is_due(now, next_hop) {
            // What is not heard now is in use again soon.
            let _ = self.end.send(WorkerEvent::Use(next_hop));
        }
    }

    fn report_progress(&mut self, now: Time, to: IpAddr) {
        if self.confirmed.is_due(now, to) {
            // A report that finds no room is made again soon.
            let _ = self.end.send(WorkerEvent::Progress(to));
        }
    }

    fn failed(&self) -> Option<&VerbsError> {
        self.failed.as_ref()
    }

    fn breathe(&mut self, now: Time, take: Take<'_>) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let packets = &mut self.arrived.packets;
        let busy = match self.driver.poll_packets(packets, take) {
            Ok(busy) => busy,
            Err(error) => return self.fail(error),
        };
        if packets.is_empty() && now < self.look_at {
            return busy;
        }
        self.look_at = now + LOOK_EVERY;
        self.turn(now, take) | busy
    }

    fn is_due(&self, now: Time) -> bool {
        self.look_at <= now
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.failed.is_none().then(|| self.uses_due.min(self.counters_due))
    }

    /// None: what control has seen is the primary worker's.
    fn poll_delivery(&mut self) -> Option<Delivery> {
        None
    }

    fn refuse(&mut self, _: Time, packet: &[u8]) {
        let is_sent = self.end.send(WorkerEvent::NoListener(packet.to_vec()));
        self.driver.counts.punts_dropped += u64::from(!is_sent);
    }

    fn take_notified(&mut self) -> u32 {
        u32::from(self.end.take_has_events())
    }

    fn has_sent(&self, _: Time) -> bool {
        self.driver.has_moved() && self.end.has_sent_events()
    }

    fn own(&self) -> BTreeSet<IpAddr> {
        self.facts.own().collect()
    }

    fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        self.facts.source_for(to)
    }

    fn is_on_link(&self, _: Time, to: IpAddr) -> bool {
        self.facts.is_on_link(to)
    }

    fn datagram_mtu(&self) -> Option<u32> {
        self.facts.datagram_mtu()
    }
}
