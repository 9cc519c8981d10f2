//! All drop counters of an interface, zeros included: of its workers, its MAD transport and its
//! control plane.
//!
//! Why structs are destructured without `..`: a new counter does not compile until it has a row.
//! Enums of reasons list their variants themselves.

use crate::admin::rows::DropCount;
use crate::interface::IpoibLink;
use crate::interface::for_kernel::KernelDrops;
use crate::interface::port_driver::Counts;
use crate::interface::port_driver::counters::DriverCounters;
use crate::port::MadDrops;
use pollux_dataplane::ipoib::Traffic;
use std::collections::BTreeMap;

/// The part name of the counters of packets that could not be sent at once.
pub(super) const REFUSED: &str = "refused";

impl IpoibLink {
    /// All drop counters, zeros included, as rows of an interface of this name. The counters of
    /// workers are those that they published last.
    pub fn drop_counts(&self, name: &str) -> Vec<DropCount> {
        let mut all = BTreeMap::new();
        let mut count = |of, why, count| *all.entry((of, why)).or_insert(0) += count;
        for (_, counters) in self.counters() {
            of_worker(&counters, &mut count);
        }
        count("port_driver", "control_no_room", self.packets_dropped());
        let MadDrops { unsent, malformed } = self.mad_drops();
        count("mad_transport", "unsent", unsent);
        count("mad_transport", "malformed", malformed);
        let KernelDrops { full, refused, malformed } = self.kernel_drops();
        let kernel = [("full", full), ("refused", refused), ("malformed", malformed)];
        kernel.into_iter().for_each(|(why, times)| count("kernel", why, times));
        count("interface", "no_socket", self.no_socket);
        self.control().drop_rows().for_each(|(of, why, times)| count(of, why, times));
        all.into_iter().map(|((of, why), count)| DropCount::new(name, of, why, count)).collect()
    }
}

fn of_worker(counters: &DriverCounters, count: &mut impl FnMut(&'static str, &'static str, u64)) {
    let DriverCounters { traffic, drops, refusals, forward_drops, counts, uses: _, refused: _ } =
        counters;
    forward_drops.iter().for_each(|(why, times)| count("forward", why, times));
    drops.iter().for_each(|(why, times)| count("received", why, times));
    refusals.iter().for_each(|(why, times)| count(REFUSED, why, times));
    let Counts { transit, no_room, refused_actions, given_up, punts_dropped } = *counts;
    let Traffic {
        datagrams_sent: _,
        connected_sent: _,
        datagrams_received: _,
        connected_received: _,
        bytes_sent: _,
        bytes_received: _,
        starved,
    } = *traffic;
    let driver = [
        ("transit", transit),
        ("no_room", no_room),
        ("refused_actions", refused_actions),
        ("given_up", given_up),
        ("punts_dropped", punts_dropped),
        ("no_receive_buffer", starved),
    ];
    driver.into_iter().for_each(|(why, times)| count("port_driver", why, times));
}
