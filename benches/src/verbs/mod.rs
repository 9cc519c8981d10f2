//! Layer `verbs`: messages between queue pairs of two adapters.

mod buffers;
pub mod connection;
pub mod end;
mod one_sided;
mod stream;

use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::plan::{EndRole, MeasurementOutcome, Plan, What};
use crate::samples::ping_pong;
use crate::verbs_plan::VerbsOp;
use buffers::MessageBuffers;
use end::{EndAddress, INLINE_BYTES, RecvId, VerbsEnd, VerbsEndSetup};
use one_sided::RemoteAccess;
use pollux_mem::Memory;
use pollux_verbs::{Device, SendFlags};
use pollux_wire::address::Qpn;
use std::time::{Duration, Instant};
use stream::Stream;

const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of polls of an end before it checks the clock, or checks whether the other end has
/// finished.
const POLLS_IDLE: u32 = 20_000;
/// In latency measurements, one send of this many is signaled. Its completion frees the send queue.
const SIGNALED_EVERY: u64 = 32;

/// Runs one end at a port. Only the client returns an outcome.
pub fn play<D: Device + ?Sized>(
    plan: &Plan,
    role: EndRole,
    device: Box<D>,
    port: u8,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    let mut buffers = MessageBuffers::new(plan)?;
    let mut end = VerbsEnd::new(device, port, &buffers.memory, &setup(plan))?;
    let other: EndAddress = exchange.swap(&end.address()?)?;
    end.connect(&other)?;
    buffers.post(&mut end)?;
    exchange.begin(plan)?;
    let outcome = measure(plan, role, (&mut end, &other), &mut buffers, exchange)?;
    exchange.add_wrong_payloads(buffers.wrong());
    Ok(outcome)
}

fn setup(plan: &Plan) -> VerbsEndSetup {
    let depth = plan.verbs.depth(plan.bytes);
    // By default, only latency measurements send inline, as in perftest.
    let inline_bytes = if plan.what == What::Lat { INLINE_BYTES } else { 0 };
    VerbsEndSetup {
        qps: plan.verbs.qps.into(),
        requests: [depth.max(2 * SIGNALED_EVERY as u32), 2 * depth],
        inline_bytes: plan.verbs.inline_bytes.map_or(inline_bytes, u32::from),
        sleeps: plan.verbs.events,
        ..VerbsEndSetup::of(plan.transport.qp_type())
    }
}

fn measure<D: Device + ?Sized>(
    plan: &Plan,
    role: EndRole,
    (end, other): (&mut VerbsEnd<D>, &EndAddress),
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    if plan.what != What::Lat {
        return Stream { plan, end, other, buffers }.play(role, exchange);
    }
    match (plan.verbs.op, role) {
        (VerbsOp::Send, EndRole::Client) => client(plan, end, buffers).map(Some),
        (VerbsOp::Send, EndRole::Server) => server(plan, end, buffers, exchange).map(|()| None),
        _ => RemoteAccess { plan, end, other, buffers }.play(role, exchange),
    }
}

#[expect(clippy::disallowed_methods, reason = "messages may be lost")]
fn client<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
) -> Result<MeasurementOutcome, PerfError> {
    let (qps, mut turn) = (u64::from(plan.verbs.qps), 0);
    let latency = ping_pong(plan.duration, plan.per_second, || {
        let qp = (turn % qps) as usize;
        let (number, at) = buffers.next(qp);
        end.post_from((qp, end.op(qp), flags(turn)), &buffers.memory, (at, plan.bytes))?;
        turn += 1;
        let mut sent_at = None;
        let mut is_late = || sent_at.get_or_insert_with(Instant::now).elapsed() > TIMEOUT;
        match end.wait(&mut is_late)? {
            Some(reply) => {
                buffers.check(&reply, Some(number));
                buffers.receive(end, RecvId::of(&reply))
            }
            None => Err(PerfError::OtherEnd(format!("no reply for {TIMEOUT:?}"))),
        }
    })?;
    Ok(MeasurementOutcome::Latency(latency))
}

/// Echoes messages until the client has finished.
fn server<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
) -> Result<(), PerfError> {
    let mut turn = 0;
    while let Some(request) = end.wait(|| exchange.is_over())? {
        let id = RecvId::of(&request);
        let (qp, at) = (id.qp, buffers.received_at(id));
        end.post_from((qp, end.op(qp), flags(turn)), &buffers.memory, (at, plan.bytes))?;
        turn += 1;
        buffers.check(&request, None);
        buffers.receive(end, id)?;
    }
    Ok(())
}

/// Signals one message of [`SIGNALED_EVERY`].
fn flags(number: u64) -> SendFlags {
    if number.is_multiple_of(SIGNALED_EVERY) { SendFlags::SIGNALED } else { SendFlags::NONE }
}

fn not_done() -> PerfError {
    PerfError::OtherEnd(format!("a request was not done for {TIMEOUT:?}"))
}

/// Resident memory of this process per connected, idle RC queue pair, in bytes. The queue pairs use
/// an SRQ, whose memory is not included.
pub fn bytes_per_connection() -> Result<f64, PerfError> {
    const COUNT: usize = 8192;
    let [device, _peer] = end::devices(false);
    let memory = Memory::private(1 << 12)
        .map_err(|error| PerfError::Plan(format!("no memory for messages: {error}")))?;
    let setup =
        VerbsEndSetup { qps: 0, has_srq: true, ..VerbsEndSetup::of(pollux_verbs::QpType::Rc) };
    let mut end = VerbsEnd::new(Box::new(device), 1, &memory, &setup)?;
    let path = end.path_to(&end.address()?);
    let before = resident_bytes();
    for _ in 0..COUNT {
        let qp = end.create_qp()?;
        end.connect_qp(qp, Qpn(1), path)?;
    }
    Ok((resident_bytes() - before) / COUNT as f64)
}

fn resident_bytes() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0
}
