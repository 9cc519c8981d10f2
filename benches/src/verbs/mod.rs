//! Layer `verbs`: messages between queue pairs of two adapters.

pub mod end;

use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::plan::{EndRole, MeasurementOutcome, Plan, What};
use crate::samples::{per_second, ping_pong};
use end::{BYTES, EndAddress, GRH_BYTES, VerbsEnd, VerbsEndSetup};
use pollux_mem::Memory;
use pollux_verbs::{Completion, Data, Device, SendFlags, SendRequest, Sge};
use pollux_wire::address::Qpn;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Outstanding messages in `bw` and `rate`; and posted receives.
const WINDOW: u64 = 256;
const RECEIVES: usize = 512;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Empty polls before the server checks whether the client has finished.
const POLLS_IDLE: u32 = 20_000;
/// From this length on, messages are posted in small batches.
const LONG_BYTES: u32 = 4096;

/// Plays a role at a port. Only a client has an outcome.
pub fn play<D: Device + ?Sized>(
    plan: &Plan,
    role: EndRole,
    device: Box<D>,
    port: u8,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    // Another process can only read shared memory.
    let memory = if plan.processes { Memory::shared(BYTES) } else { Memory::private(BYTES) };
    let memory = memory.map_err(no_memory)?;
    let mut end =
        VerbsEnd::new(device, port, &memory, &VerbsEndSetup::of(plan.transport.qp_type()))?;
    let other: EndAddress = exchange.swap(&end.address()?)?;
    end.connect(&other)?;
    for _ in 0..RECEIVES {
        end.recv(receive_bytes(plan))?;
    }
    exchange.meet()?;
    match (plan.what, role) {
        (What::Connect, EndRole::Client) => connect(plan, &mut end, &other).map(Some),
        (What::Connect, EndRole::Server) => Ok(None),
        (What::Lat, EndRole::Client) => client(plan, &mut end).map(Some),
        (What::Lat, EndRole::Server) => server(plan, &mut end, exchange).map(|()| None),
        (What::Bw | What::Rate, EndRole::Client) => stream(plan, &mut end, exchange).map(Some),
        (What::Bw | What::Rate, EndRole::Server) => drain(plan, &mut end, exchange).map(|()| None),
    }
}

fn no_memory(error: impl Display) -> PerfError {
    PerfError::Plan(format!("no memory for messages: {error}"))
}

fn receive_bytes(plan: &Plan) -> u32 {
    (plan.bytes + GRH_BYTES).min(BYTES as u32)
}

#[expect(clippy::disallowed_methods, reason = "messages may be lost")]
fn client<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
) -> Result<MeasurementOutcome, PerfError> {
    let latency = ping_pong(plan.duration, plan.per_second, || {
        end.send(plan.bytes)?;
        let mut sent_at = None;
        let mut is_late = || sent_at.get_or_insert_with(Instant::now).elapsed() > TIMEOUT;
        match end.wait(&mut is_late)? {
            true => end.recv(receive_bytes(plan)),
            false => Err(PerfError::OtherEnd(format!("no reply for {TIMEOUT:?}"))),
        }
    })?;
    Ok(MeasurementOutcome::Latency(latency))
}

fn server<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
    exchange: &mut Exchange,
) -> Result<(), PerfError> {
    while end.wait(|| exchange.is_over())? {
        end.send(plan.bytes)?;
        end.recv(receive_bytes(plan))?;
    }
    Ok(())
}

/// Sends batches, of which only the last message is signaled.
fn stream<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
    exchange: &mut Exchange,
) -> Result<MeasurementOutcome, PerfError> {
    let batch = if plan.bytes >= LONG_BYTES { 4 } else { 32 };
    let region = end.region;
    let sge = [Sge { address: region.address, bytes: plan.bytes, lkey: region.lkey }];
    let op = end.op();
    let request = |flags| SendRequest { id: 0, op, flags, data: Data::Sges(&sge) };
    let mut requests = vec![request(SendFlags::NONE); batch as usize];
    requests[batch as usize - 1] = request(SendFlags::SIGNALED);
    let (mut sent, mut done, mut out) = (0, 0, [Completion::NOTHING; 16]);
    let rate = per_second(plan.duration, || {
        if sent - done + batch <= WINDOW {
            end.device.post_send(end.qps[0], &requests)?;
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

fn drain<D: Device + ?Sized>(
    plan: &Plan,
    end: &mut VerbsEnd<D>,
    exchange: &mut Exchange,
) -> Result<(), PerfError> {
    let (mut received, mut idle, mut out) = (0u64, 0u32, [Completion::NOTHING; 64]);
    loop {
        let count = end.poll(&mut out)?;
        for _ in 0..count {
            end.recv(receive_bytes(plan))?;
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
    Ok(MeasurementOutcome::Connections { per_second: rate, first: None })
}

/// Bytes of this process per connected, idle RC queue pair, without its share of the shared receive
/// queue.
pub fn bytes_per_connection() -> Result<f64, PerfError> {
    const COUNT: usize = 8192;
    let [device, _peer] = end::devices(false);
    let memory = Memory::private(1 << 12).map_err(no_memory)?;
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
