//! Two clients of a server of processes: through the server, and by direct rings.
//!
//! Both are in this process, and map all shared memory as separate processes do. Tests with killed
//! processes are in the tests of the fabric.

use crate::served::{Served, clock};
use crate::threads::{WAIT_MAX, judge_together};
use crate::{group, setting};
use pollux_conformance::{Adapters, Factory, Group, Side, WaitDecision};
use pollux_fabric::SoftDevice;
use pollux_fabric::node::PKeys;
use pollux_fabric::process::{ProcessLink, open};
use pollux_mem::Memory;
use pollux_mem::region::MapError;
use pollux_verbs::{Device, VerbsError};
use pollux_wire::keys::PKey;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Makes pairs of clients.
#[derive(Clone)]
struct Clients {
    /// Whether the other client can map the memory.
    is_shared: bool,
    /// Whether the path needs packets.
    wants_packets: bool,
}

static SERVERS: AtomicU32 = AtomicU32::new(0);

impl Factory for Clients {
    fn name(&self) -> String {
        let memory = if self.is_shared { "shared" } else { "private" };
        let kind = if self.wants_packets { "packets" } else { "messages" };
        format!("processes ({memory} memory, {kind})")
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let name = format!("suite-{}", SERVERS.fetch_add(1, Ordering::Relaxed));
        let served = Served::start(&name, "single:2");
        if self.wants_packets {
            served.ask(|server| server.net_mut().set_tap(Box::new(|_, _, _| {})));
        }
        let devices = [1, 2].map(|host| open(&served.name(host), clock()).expect("it is free"));
        Ok(Box::new(Pair { devices, served, start: Instant::now(), is_shared: self.is_shared }))
    }
}

struct Pair {
    devices: [SoftDevice<ProcessLink>; 2],
    served: Served,
    start: Instant,
    is_shared: bool,
}

impl Adapters for Pair {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        &mut self.devices[side as usize]
    }

    fn port(&self, _: Side) -> u8 {
        1
    }

    fn turn(&mut self) -> WaitDecision {
        // On a busy machine the server needs its turn, so that a message that a case counts as lost
        // is not still in flight.
        self.served.ask(|_| ());
        if self.start.elapsed() < WAIT_MAX { WaitDecision::GoOn } else { WaitDecision::GiveUp }
    }

    fn group(&mut self, nth: u8) -> Option<Group> {
        Some(group(nth))
    }

    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        let mut entries = [PKey::INVALID; 32];
        entries[..pkeys.len()].copy_from_slice(pkeys);
        // Node 0 is the switch.
        let node = 1 + side as u32;
        self.served.ask(move |server| {
            let node = server.net_mut().subnet_mut().node_mut(node);
            node.ports[1].p_keys = PKeys::new(entries);
        });
        self.devices[side as usize].progress();
        true
    }

    fn memory(&self, bytes: usize) -> Result<Memory, MapError> {
        if self.is_shared { Memory::shared(bytes) } else { Memory::private(bytes) }
    }

    fn memory_bytes_max(&self) -> u64 {
        setting("POLLUX_MEMORY_BYTES").unwrap_or(8 << 20)
    }
}

// req: iba-rc, iba-uc, iba-ud, iba-work-queues, iba-memory
#[test]
fn at_a_server_in_shared_memory() {
    judge_together(Clients { is_shared: true, wants_packets: false });
}

#[test]
fn at_a_server_in_private_memory() {
    judge_together(Clients { is_shared: false, wants_packets: false });
}

#[test]
fn at_a_server_as_packets() {
    judge_together(Clients { is_shared: false, wants_packets: true });
}
