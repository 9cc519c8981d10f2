//! A worker of an interface beside its primary worker: it moves packets by queue pairs of its own, and what
//! is to be decided about them the primary worker's control decides.
//!
//! ```text
//!   device --> port driver --take: a socket's?--no--> told --ring--> Interface: control
//!              port driver <---------- orders -------------ring--- WorkerGroup
//! ```
//!
//! Its UD queue pair is in no link address and in no group: datagrams leave by it, and few come.
//! It has a device of its own ([`pollux_verbs::Device::beside`]), and so a thread of its own if
//! whoever runs it wants that. It ends when its primary worker does; whoever runs it drops it then.

use super::line::{Order, SecondaryEnd, Told, line};
use super::port_driver::{Arrived, DeviceError, PortDriver, Terms};
use super::sockets::{LOOK_EVERY, Take, Used, WorkerPort};
use super::tally::Tally;
use super::{USES_EVERY, WorkerGroup};
use pollux_control::interface::{Delivery, Facts, Worker};
use pollux_dataplane::ipoib::Received;
use pollux_mem::snapshot::Publisher;
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// How often what it has moved is published.
const TALLY_EVERY: Duration = Duration::from_millis(100);

/// A worker of an interface beside its primary worker.
pub struct SecondaryWorker {
    worker: Worker,
    // It goes before the line, by which the primary worker knows that it has gone.
    driver: PortDriver,
    arrived: Arrived,
    facts: Arc<Facts>,
    tally: Publisher<Tally>,
    tally_due: Time,
    uses_due: Time,
    used: Used,
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
        let driver = primary.beside(terms, seed)?;
        primary.station.add_sibling(driver.qpn());
        let (primary_end, end) = line();
        let tally = Publisher::new(Tally::default());
        workers.join(primary_end, tally.reader());
        Ok(Self {
            worker,
            driver,
            arrived: Arrived::default(),
            facts: Arc::default(),
            tally,
            tally_due: now,
            uses_due: now + USES_EVERY,
            used: Used::new(),
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
        let mut busy = self.obey(now);
        match self.driver.poll(now, &mut self.arrived) {
            Ok(polled) => busy |= polled,
            Err(error) => return self.fail(error),
        }
        busy |= self.hear(take);
        if self.uses_due <= now {
            self.driver.tell_uses();
            self.driver.retry(now);
            self.uses_due = now + USES_EVERY;
        }
        let has_sent = self.end.has_told() && self.driver.has_moved();
        self.end.show(self.driver.is_idle(), has_sent && self.driver.station().has_sent());
        if self.tally_due <= now {
            self.publish();
            self.tally_due = now + TALLY_EVERY;
        }
        busy
    }

    /// Does what the primary worker wants.
    fn obey(&mut self, now: Time) -> bool {
        let mut has_acted = false;
        while let Some(order) = self.end.poll() {
            match order {
                Order::Act(action) => self.driver.carry_out(now, action),
                Order::Know(facts) => self.facts = facts,
            }
            has_acted = true;
        }
        if has_acted {
            self.driver.show_changes();
        }
        has_acted
    }

    /// Tells the primary worker what has come. The port is the primary worker's to look at.
    fn hear(&mut self, take: Take<'_>) -> bool {
        let busy = !self.arrived.is_empty();
        let Self { driver, arrived, end, .. } = self;
        end.tell_news(arrived.news.drain(..));
        let mut untold = 0;
        for received in arrived.packets.drain(..) {
            if !take(received.packet.bytes())
                && driver.is_for_us(&received)
                && let Some(told) = told(driver, &received)
            {
                untold += u64::from(!end.tell(told));
            }
            driver.recycle(received);
        }
        let too_big = arrived.too_big.drain(..).map(|(packet, mtu)| Told::TooBig(packet, mtu));
        for told in arrived.misses.drain(..).map(Told::Miss).chain(too_big) {
            untold += u64::from(!end.tell(told));
        }
        driver.counts.untold += untold;
        (arrived.port_changed, arrived.reregister) = (false, false);
        busy
    }

    fn publish(&mut self) {
        let tally = self.driver.tally();
        if *self.tally.current() != tally {
            self.tally.publish(tally);
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
fn told(driver: &PortDriver, received: &Received) -> Option<Told> {
    let from = driver.from(received)?;
    Some(Told::Packet(received.ether_type, received.packet.bytes().to_vec(), from))
}

impl WorkerPort for SecondaryWorker {
    fn driver(&self) -> &PortDriver {
        &self.driver
    }

    fn driver_mut(&mut self) -> &mut PortDriver {
        &mut self.driver
    }

    fn tell_use(&mut self, now: Time, next_hop: IpAddr) {
        if self.used.is_news(now, next_hop) {
            // What is not heard now is in use again soon.
            let _ = self.end.tell(Told::Use(next_hop));
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
        self.failed.is_none().then(|| self.uses_due.min(self.tally_due))
    }

    /// None: what control has seen is the primary worker's.
    fn poll_delivery(&mut self) -> Option<Delivery> {
        None
    }

    fn refuse(&mut self, _: Time, packet: &[u8]) {
        let is_told = self.end.tell(Told::Unheard(packet.to_vec()));
        self.driver.counts.untold += u64::from(!is_told);
    }

    fn take_called(&mut self) -> u32 {
        u32::from(self.end.take_told())
    }

    fn has_sent(&self, _: Time) -> bool {
        self.driver.has_moved() && self.end.has_told()
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
