//! The adapter behind the doorbells. It takes WQEs from the program's rings, posts them to the
//! fabric's adapter ([`SoftDevice`]), and writes completions to the program's rings.
//!
//! A turn ([`Hca::turn`]) does the following, in this order: it takes sends whose doorbells were
//! rung, lets the adapter make progress, writes completions and notifications, and sends
//! asynchronous events. The adapter itself fetches receives when it needs them. A turn allocates
//! memory only if a WQE names a new path. A program that polls takes turns in its polls
//! ([`Hca::turn_of_poll`]), so a turn without work has to be short.

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
    /// The contexts of memory windows, by the R_Key that a window had at creation.
    pub(crate) windows: BTreeMap<u32, u32>,
    pub(crate) cqs: Table<CqObject>,
    pub(crate) srqs: Table<SrqObject>,
    pub(crate) qps: Table<QpObject>,
    /// The numbers of all contexts, completion queues and queue pairs, for the loops of a turn.
    pub(crate) context_numbers: Vec<u32>,
    pub(crate) cq_numbers: Vec<u32>,
    pub(crate) qp_numbers: Vec<u32>,
    /// The keys of `qps`, by QPN.
    pub(crate) by_qpn: BTreeMap<u32, u32>,
    pub(crate) handles: Handles,
    /// A buffer for polled completions.
    completions: Vec<Completion>,
    /// Buffers for the WQE that is taken.
    parts: WqeParts,
    /// A buffer for a receive WQE.
    slot: Vec<u8>,
    /// The adapter's count of completions when they were last moved to the program.
    completions_moved: u64,
    /// Whether a queue pair has sends that the adapter has not accepted yet.
    has_waiting_sends: bool,
    turns: u32,
    /// The number of printed fault messages, which is limited.
    pub(crate) faults_reported: u32,
    /// Whether the fabric has ended, so that the adapter was removed.
    pub(crate) is_removed: bool,
}

/// Completions per poll of the adapter, at most.
const COMPLETIONS_AT_ONCE: usize = 32;
/// Turns between checks for work that nothing signals: receives posted to queue pairs in state ERR,
/// because receives ring no doorbell, and events for which the socket was full.
const TURNS_PER_FLUSH: u32 = 32;
/// The maximum number of objects of each kind.
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

    /// Takes one turn. Returns whether there was any work.
    pub(crate) fn turn(&mut self) -> bool {
        let taken = self.begin_turn();
        self.device.progress();
        taken | self.end_turn()
    }

    /// Takes a turn for a program that polls for up to `completions_max` completions. Returns
    /// whether completions were written.
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

    /// Acts like the removal of a card: flushes all requests, and sends a fatal event to each
    /// context. From then on, programs can only destroy their objects.
    fn remove_adapter(&mut self) {
        self.is_removed = true;
        eprintln!("pollux-connectx: the fabric has ended; the adapter is gone");
        let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        for (_, qp) in self.qps.iter() {
            // A queue pair in RESET has no requests. It refuses the change and stays in RESET.
            let _ = self.device.modify_qp(qp.qp, &error);
        }
        self.send_to_all(0, async_events::DEVICE_FATAL);
    }

    /// The longest sleep before the next turn. It is short while events wait for a full socket.
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

/// The number of a queue in the adapter's formats, which have 24 bits for it.
pub(crate) const fn low_24_bits(number: u32) -> u32 {
    number & 0xff_ffff
}
