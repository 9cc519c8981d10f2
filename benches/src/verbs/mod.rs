//! Layer `verbs`: messages between queue pairs of two adapters.

mod buffers;
pub mod end;
mod one_sided;
mod two_way;

use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::plan::{EndRole, MeasurementOutcome, Plan, VerbsOp, What};
use crate::samples::{per_second, ping_pong};
use buffers::MessageBuffers;
use end::{EndAddress, VerbsEnd, VerbsEndSetup};
use pollux_mem::Memory;
use pollux_verbs::{Completion, Data, Device, SendFlags, SendRequest};
use pollux_wire::address::Qpn;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Empty polls before the server checks whether the client has finished.
const POLLS_IDLE: u32 = 20_000;
/// Messages of a batch, and from which length on there are fewer in one.
const BATCH: usize = 32;
const LONG_BYTES: u32 = 4096;
const LONG_BATCH: u64 = 4;

/// Plays a role at a port. Only a client has an outcome.
pub fn play<D: Device + ?Sized>(
    plan: &Plan,
    role: EndRole,
    device: Box<D>,
    port: u8,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    let mut buffers = MessageBuffers::new(plan)?;
    let setup = VerbsEndSetup::of(plan.transport.qp_type());
    let mut end = VerbsEnd::new(device, port, &buffers.memory, &setup)?;
    let other: EndAddress = exchange.swap(&end.address()?)?;
    end.connect(&other)?;
    buffers.post(&mut end)?;
    exchange.begin(plan)?;
    let outcome = measure(plan, role, (&mut end, &other), &mut buffers, exchange)?;
    exchange.add_wrong_payloads(buffers.wrong());
    Ok(outcome)
}

fn measure<D: Device + ?Sized>(
    plan: &Plan,
    role: EndRole,
    (end, other): (&mut VerbsEnd<D>, &EndAddress),
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    if plan.op != VerbsOp::Send {
        return one_sided::play(plan, role, (end, other), buffers, exchange);
    }
    if plan.bidirectional {
        return two_way::play(plan, role, end, buffers, exchange);
    }
    match (plan.what, role) {
        (What::Connect, EndRole::Client) => connect(plan, end, other).map(Some),
        (What::Connect, EndRole::Server) => Ok(None),
        (What::Lat, EndRole::Client) => client(plan, end, buffers).map(Some),
        (What::Lat, EndRole::Server) => server(end, buffers, exchange).map(|()| None),
        (What::Bw | What::Rate, EndRole::Client) => stream(plan, end, buffers, exchange).map(Some),
        (What::Bw | What::Rate, EndRole::Server) => drain(end, buffers, exchange).map(|()| None),
    }
}

#[expect(clippy::disallowed_methods, reason = "messages may be lost")]
fn client<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
) -> Result<MeasurementOutcome, PerfError> {
    let latency = ping_pong(plan.duration, plan.per_second, || {
        let number = buffers.send(end)?;
        let mut sent_at = None;
        let mut is_late = || sent_at.get_or_insert_with(Instant::now).elapsed() > TIMEOUT;
        match end.wait(&mut is_late)? {
            Some(reply) => {
                buffers.check(&reply, Some(number));
                buffers.receive(end, reply.id)
            }
            None => Err(PerfError::OtherEnd(format!("no reply for {TIMEOUT:?}"))),
        }
    })?;
    Ok(MeasurementOutcome::Latency(latency))
}

fn server<D: Device + ?Sized>(
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
) -> Result<(), PerfError> {
    while let Some(request) = end.wait(|| exchange.is_over())? {
        buffers.send_back(end, &request)?;
        buffers.check(&request, None);
        buffers.receive(end, request.id)?;
    }
    Ok(())
}

/// Sends batches.
fn stream<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
) -> Result<MeasurementOutcome, PerfError> {
    let window = buffers.window();
    let batch = if plan.bytes >= LONG_BYTES { LONG_BATCH } else { BATCH as u64 };
    let batch = batch.min(window / 2);
    let (mut sent, mut done, mut out) = (0, 0, [Completion::NOTHING; 16]);
    let rate = per_second(plan.duration, || {
        if sent - done + batch <= window {
            post_batch(end, buffers, batch)?;
            sent += batch;
        }
        let completed = batch * end.poll(&mut out)? as u64;
        done += completed;
        Ok(completed)
    })?;
    while done < sent {
        done += batch * end.poll(&mut out)? as u64;
    }
    exchange.send(&sent)?;
    Ok(MeasurementOutcome::one_way(plan, rate, sent, exchange.receive()?))
}

/// Sends the next messages, of which only the last one is signaled.
fn post_batch<D: Device + ?Sized>(
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
    batch: u64,
) -> Result<(), PerfError> {
    let op = end.op();
    let mut sges = [[end.sge(0, 0)]; BATCH];
    sges[..batch as usize].fill_with(|| [buffers.next_sge(end)]);
    let requests: [_; BATCH] = std::array::from_fn(|nth| {
        let is_last = nth as u64 + 1 == batch;
        let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::NONE };
        SendRequest { id: 0, op, flags, data: Data::Sges(&sges[nth]) }
    });
    Ok(end.device.post_send(end.qps[0], &requests[..batch as usize])?)
}

/// Keeps the device running, whose memory the client accesses, until that is done.
fn serve_until_over<D: Device + ?Sized>(
    end: &mut VerbsEnd<D>,
    exchange: &mut Exchange,
) -> Result<(), PerfError> {
    while !exchange.is_over() {
        for _ in 0..POLLS_IDLE {
            end.poll(&mut [Completion::NOTHING; 4])?;
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn drain<D: Device + ?Sized>(
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
) -> Result<(), PerfError> {
    let (mut received, mut idle, mut out) = (0u64, 0u32, [Completion::NOTHING; 64]);
    loop {
        let count = end.poll(&mut out)?;
        for message in &out[..count] {
            buffers.check(message, None);
            buffers.receive(end, message.id)?;
        }
        received += count as u64;
        idle = if count > 0 { 0 } else { idle + 1 };
        if idle == POLLS_IDLE {
            idle = 0;
            std::thread::yield_now();
            if exchange.is_over() {
                let _sent: u64 = exchange.receive()?;
                return exchange.send(&received);
            }
        }
    }
}

fn connect<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
    other: &EndAddress,
) -> Result<MeasurementOutcome, PerfError> {
    let path = end.path_to(other);
    let rate = per_second(plan.duration, || {
        let qp = end.create_qp()?;
        end.connect_qp(qp, Qpn(1), path)?;
        end.device.destroy_qp(qp)?;
        Ok(1)
    })?;
    Ok(MeasurementOutcome::Connections { per_second: rate, first_ns: None })
}

/// Bytes of this process per connected, idle RC queue pair, without its share of the shared receive
/// queue.
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
