//! Two adapters in virtual time, at the link of a world.

use crate::pair_world::World;
use crate::uneven::{Schedule, Trace, UnevenLink};
use crate::{group, setting};
use pollux_conformance::{Adapters, Factory, Group, Side, WaitDecision};
use pollux_fabric::link::Wire;
use pollux_fabric::{Adapter, Port, SoftDevice};
use pollux_verbs::{Device, VerbsError};
use pollux_wire::address::{Guid, Lid};
use pollux_wire::keys::PKey;
use std::cell::RefCell;
use std::rc::Rc;

/// The most steps of a case: more than any case needs.
const TURNS_MAX: u32 = 1_000_000;

/// Packets of all cases, in the order of their sending.
pub type Seen = Rc<RefCell<Vec<Vec<u8>>>>;

/// Makes pairs: the same for the same seed.
pub struct Worlds {
    name: &'static str,
    wire: Wire,
    seed: u64,
    is_even: bool,
    /// The trace of the cases so far.
    pub trace: Trace,
    seen: Option<Seen>,
}

impl Worlds {
    /// Worlds with such a wire, and an even schedule.
    pub fn new(name: &'static str, wire: Wire, seed: u64) -> Self {
        Self { name, wire, seed, is_even: true, trace: Trace::default(), seen: None }
    }

    /// The same, with the schedule of the seed.
    pub fn uneven(self) -> Self {
        Self { is_even: false, ..self }
    }

    /// The same, with a tap for every packet.
    pub fn tapped(self) -> (Self, Seen) {
        let seen = Seen::default();
        (Self { seen: Some(seen.clone()), ..self }, seen)
    }
}

impl Factory for Worlds {
    fn name(&self) -> String {
        format!("{} (seed {})", self.name, self.seed)
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let trace = self.trace.clone();
        let schedule = match self.is_even {
            true => Schedule::even(trace),
            false => Schedule::uneven(self.seed, trace),
        };
        let wire = Wire { jitter: schedule.jitter, ..self.wire };
        let (world, links) = World::new(self.seed, wire);
        if let Some(seen) = self.seen.clone() {
            world.set_tap(Box::new(move |_, _, bytes| seen.borrow_mut().push(bytes.to_vec())));
        }
        let mut ends = 0..;
        let devices = links.map(|link| {
            let end = ends.next().unwrap_or_default();
            // Two LIDs for each port.
            let lid = 2 * (end as u16 + 1);
            let port = Port { lmc: 1, ..Port::active(Lid(lid), Guid(u64::from(lid))) };
            let link = UnevenLink::new(link, end, schedule.clone());
            SoftDevice::new(format!("soft{lid}"), Adapter::new(port), link)
        });
        Ok(Box::new(Virtual { world, schedule, devices, turns: 0 }))
    }

    fn is_lossy(&self) -> bool {
        !self.wire.faults.are_none()
    }
}

struct Virtual {
    world: World,
    schedule: Schedule,
    devices: [SoftDevice<UnevenLink>; 2],
    turns: u32,
}

impl Adapters for Virtual {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        &mut self.devices[side as usize]
    }

    fn port(&self, _: Side) -> u8 {
        1
    }

    fn turn(&mut self) -> WaitDecision {
        self.turns += 1;
        let goes_on = self.turns < TURNS_MAX && (self.schedule.take_busy() || self.world.step());
        for side in self.schedule.turns() {
            self.devices[side].progress();
        }
        if goes_on { WaitDecision::GoOn } else { WaitDecision::GiveUp }
    }

    fn group(&mut self, nth: u8) -> Option<Group> {
        Some(group(nth))
    }

    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        self.devices[side as usize].adapter.port_mut().pkeys = pkeys.to_vec();
        true
    }

    fn memory_bytes_max(&self) -> u64 {
        setting("POLLUX_MEMORY_BYTES").unwrap_or(64 << 20)
    }
}
