//! The load of a storm: CM requests of a third host, and reads of six tables of a node.

use crate::error::PerfError;
use pollux_control::mad::{Envelope, MadAddress};
use pollux_node::admin::client::ask;
use pollux_node::admin::request::{AdminRequest, AdminTable};
use pollux_node::config::NodeConfig;
use pollux_node::node::{NodeRunner, Order};
use pollux_node::port::{DevicePort, PortHandle};
use pollux_verbs::time::Time;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::ipoib::Dialect;
use pollux_wire::mad::cm::{CmMessage, CommId, Rej, Req};
use pollux_wire::mad::smp::PortState;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BURST_EVERY: Duration = Duration::from_millis(1);
const ACTIVE_MAX: Duration = Duration::from_secs(10);
/// Source and destination of the memory copies, which fit in a second-level cache.
const COMPUTED_BYTES: usize = 256 << 10;
const TABLES: [AdminTable; 6] = [
    AdminTable::Interfaces,
    AdminTable::Neighbors,
    AdminTable::Connections,
    AdminTable::Groups,
    AdminTable::Workers,
    AdminTable::Drops,
];

#[derive(Debug, Default)]
pub struct StormControl {
    /// Whether storm threads send requests and read tables now.
    pub is_on: AtomicBool,
    /// Whether [`compute`] copies memory now.
    pub is_computing: AtomicBool,
    pub is_over: AtomicBool,
    pub requests: AtomicU64,
    pub refusals: AtomicU64,
    pub tables: AtomicU64,
}

impl StormControl {
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Sends CM requests to the interface with this LID and queue pair, which refuses them.
#[expect(clippy::disallowed_methods, reason = "a storm has a rate")]
pub fn requests(
    device: &str,
    (lid, qpn): (Lid, Qpn),
    per_second: u32,
    control: &StormControl,
) -> Result<(), PerfError> {
    let port = DevicePort::new(pollux_node::open(device)?)?;
    let mut port = port.context(PKey::DEFAULT)?;
    wait_until_active(&port)?;
    let peer = MadAddress::gsi(lid, 0, PKey::DEFAULT);
    let burst = (f64::from(per_second) * BURST_EVERY.as_secs_f64()).ceil() as u32;
    let (start, mut number, mut received) = (Instant::now(), 0u32, Vec::new());
    let mut due = start;
    while !control.is_over() {
        if !control.is_on() {
            std::thread::sleep(BURST_EVERY);
            due = Instant::now();
        } else if due <= Instant::now() {
            for _ in 0..burst {
                number = number.wrapping_add(1);
                let mad = request(number, qpn).emit_mad(number.into());
                let _ = port.send(&Envelope { peer, mad });
            }
            control.requests.fetch_add(burst.into(), Ordering::Relaxed);
            due += BURST_EVERY * burst * 1000 / per_second.max(1) / BURST_EVERY.as_millis() as u32;
        } else {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        port.poll(Time::START + start.elapsed(), &mut received)?;
        let is_refusal = |envelope: &Envelope| {
            matches!(CmMessage::parse_mad(&envelope.mad), Ok((_, CmMessage::Rej(Rej { .. }))))
        };
        let refusals = received.drain(..).filter(is_refusal).count() as u64;
        control.refusals.fetch_add(refusals, Ordering::Relaxed);
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a fabric takes its time")]
fn wait_until_active(port: &PortHandle) -> Result<(), PerfError> {
    let begun = Instant::now();
    while port.view()?.state != PortState::ACTIVE {
        if begun.elapsed() > ACTIVE_MAX {
            let why = format!("the port of the storm is not active after {ACTIVE_MAX:?}");
            return Err(PerfError::Local(why));
        }
        std::thread::sleep(BURST_EVERY);
    }
    Ok(())
}

fn request(number: u32, qpn: Qpn) -> CmMessage {
    CmMessage::Req(Req {
        local_comm_id: CommId(number),
        service_id: Dialect::Rfc.service_id(qpn),
        local_qpn: Qpn(number & Qpn::MULTICAST.0),
        p_key: PKey::DEFAULT,
        ..Req::default()
    })
}

/// Keeps the core busy with memory copies while `is_computing` is set.
#[expect(clippy::disallowed_methods, reason = "it waits for its turn")]
pub fn compute(control: &StormControl) {
    let (from, mut to) = (vec![1u8; COMPUTED_BYTES], vec![0u8; COMPUTED_BYTES]);
    while !control.is_over() {
        if !control.is_computing.load(Ordering::Relaxed) {
            std::thread::sleep(BURST_EVERY);
            continue;
        }
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
}

pub fn node(config: NodeConfig, socket: &Path, control: &StormControl) -> Result<(), PerfError> {
    let (_wake, woken) = UnixStream::pair()?;
    let node = NodeRunner::new(config, Some(socket));
    let node = node.map_err(|error| PerfError::Local(error.to_string()))?;
    let order = || if control.is_over() { Order::End } else { Order::Run };
    Ok(node.run(woken, order, |_| {})?)
}

#[expect(clippy::disallowed_methods, reason = "it waits for its turn")]
pub fn readers(socket: &Path, control: &StormControl) {
    for table in TABLES.iter().cycle() {
        if control.is_over() {
            return;
        }
        if !control.is_on() || ask(socket, &AdminRequest::Show(*table)).is_err() {
            std::thread::sleep(BURST_EVERY);
            continue;
        }
        control.tables.fetch_add(1, Ordering::Relaxed);
    }
}
