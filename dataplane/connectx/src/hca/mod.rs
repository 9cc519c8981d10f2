//! The adapter behind the doorbells. It takes work from the program's rings, has the fabric's
//! adapter execute it, and writes completions into the program's rings.
//!
//! A turn ([`Hca::turn`]) does, in this order: sends whose doorbells were rung, progress of the
//! adapter and its completions, notifications, events. The adapter fetches receives when it needs
//! them. A turn allocates nothing unless a WQE names a new path. A program that polls takes turns
//! itself ([`Hca::turn_of_poll`]), and polls often, so a turn without work has to be short.

mod async_events;
pub(crate) mod completions;
mod receives;
mod scatter;
mod sends;
#[cfg(test)]
mod tests;

pub(crate) use receives::{RecvRing, SrqRing};

use crate::objects::{Context, CqObject, Handles, QpObject, RegionObject, SrqObject};
use pollux_hca::{Link, SoftDevice};
use pollux_verbs::Completion;
use pollux_verbs::table::Table;
use pollux_verbs::{Device, QpAttributes, QpState};
use sends::WqeParts;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) struct Hca<L: Link> {
    pub(crate) device: SoftDevice<L>,
    pub(crate) contexts: Table<Context>,
    pub(crate) regions: BTreeMap<u32, RegionObject>,
    /// Memory windows, by the key at creation.
    pub(crate) windows: BTreeMap<u32, u32>,
    pub(crate) cqs: Table<CqObject>,
    pub(crate) srqs: Table<SrqObject>,
    pub(crate) qps: Table<QpObject>,
    /// The numbers of all objects, for the loops of a turn.
    pub(crate) context_numbers: Vec<u32>,
    pub(crate) cq_numbers: Vec<u32>,
    pub(crate) qp_numbers: Vec<u32>,
    /// The numbers in `qps`, by QPN.
    pub(crate) by_qpn: BTreeMap<u32, u32>,
    pub(crate) handles: Handles,
    /// Buffer for completions on their way to the program.
    completions: Vec<Completion>,
    /// Buffers for the WQE that is taken, and for the slot of a receive.
    parts: WqeParts,
    slot: Vec<u8>,
    /// How many completions the adapter had at the last move.
    completions_moved: u64,
    /// Some queue pair has sends that the adapter had no space for.
    has_waiting_sends: bool,
    turns: u32,
    /// How many lines about faults were printed; their number is limited.
    pub(crate) faults_reported: u32,
    /// The fabric has ended, and the adapter was removed.
    pub(crate) is_removed: bool,
}

/// Completions that are moved at once, at most.
const COMPLETIONS_AT_ONCE: usize = 32;
/// Turns between checks for work that has no notification: receives that were posted to queue pairs
/// in error, which ring no doorbell, and events whose socket was full.
const TURNS_PER_FLUSH: u32 = 32;
/// Objects of each kind, at most.
const OBJECTS_MAX: u32 = 65_536;

impl<L: Link> Hca<L> {
    pub(crate) fn new(device: SoftDevice<L>) -> Self {
        Self {
            device,
            contexts: Table::new(256),
            regions: BTreeMap::new(),
            windows: BTreeMap::new(),
            cqs: Table::new(OBJECTS_MAX),
            srqs: Table::new(OBJECTS_MAX),
            qps: Table::new(OBJECTS_MAX),
            context_numbers: Vec::new(),
            cq_numbers: Vec::new(),
            qp_numbers: Vec::new(),
            by_qpn: BTreeMap::new(),
            handles: Handles::new(),
            completions: vec![Completion::NOTHING; COMPLETIONS_AT_ONCE],
            parts: WqeParts::default(),
            slot: Vec::new(),
            completions_moved: 0,
            has_waiting_sends: false,
            turns: 0,
            faults_reported: 0,
            is_removed: false,
        }
    }

    /// Does what is due. Returns whether there was anything.
    pub(crate) fn turn(&mut self) -> bool {
        let taken = self.begin_turn();
        self.device.progress();
        taken | self.end_turn()
    }

    /// A turn of a program that polls for up to `completions_max` completions. Returns whether
    /// there were any.
    pub(crate) fn turn_of_poll(&mut self, completions_max: u32) -> bool {
        self.begin_turn();
        self.device.progress_to_completions(completions_max.into());
        self.end_turn()
    }

    fn begin_turn(&mut self) -> bool {
        self.turns = (self.turns + 1) % TURNS_PER_FLUSH;
        let mut taken = self.take_doorbells();
        if self.turns == 0 {
            taken |= self.flush_receives();
            self.flush_events();
        }
        taken
    }

    fn end_turn(&mut self) -> bool {
        if self.device.link.is_lost() && !self.is_removed {
            self.remove_adapter();
        }
        let moved = self.move_completions();
        self.send_events();
        moved
    }

    /// The effects of a card that is taken out: an event at each context, and flushed requests.
    /// From now on, programs can only destroy their objects.
    fn remove_adapter(&mut self) {
        self.is_removed = true;
        eprintln!("pollux-connectx: the fabric has ended; the adapter is gone");
        let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        for (_, qp) in self.qps.iter() {
            // A queue pair in RESET has no requests, and stays there.
            let _ = self.device.modify_qp(qp.qp, &error);
        }
        self.send_to_all(0, async_events::DEVICE_FATAL);
    }

    /// The longest sleep before the next turn.
    pub(crate) fn sleep_max(&self) -> Duration {
        let is_full = |context: &Context| {
            context.events.is_full() || context.channels.values().any(|queue| queue.is_full())
        };
        match self.contexts.iter().any(|(_, context)| is_full(context)) {
            true => Duration::from_millis(1),
            false => Duration::MAX,
        }
    }
}

/// The number of a queue as the adapter's formats have it: 24 bits.
pub(crate) const fn low_24_bits(number: u32) -> u32 {
    number & 0xff_ffff
}
