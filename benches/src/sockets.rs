//! Layers `udp` and `tcp`: the library's sockets, with ends that busy-poll.

use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::payload::{self, MessageStream, NumberedMessage, PayloadCheck};
use crate::plan::{EndRole, Layer, MeasuredTransport, MeasurementOutcome, Plan, What};
use crate::samples::{Schedule, per_second, ping_pong};
use pollux::stack::{StackConfig, TcpConfig};
use pollux::{Interface, Node, TcpListener, TcpStream, UdpSlot, UdpSocket};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
/// The timeout of a warm-up request, within which addresses are resolved and connections opened.
const WARM_UP_TIMEOUT: Duration = Duration::from_millis(200);
const TRIES_MAX: u32 = 100;
/// After this many empty polls, a server checks whether the client has finished, and a client sends
/// a request again.
const POLLS_IDLE: u32 = 50_000;
/// After this many empty polls, an end yields its core, because control threads have the same
/// priority.
const POLLS_AWAKE: u32 = 1_000;
/// The interval at which a sleeping server checks whether the client has finished.
const SLEEP: Duration = Duration::from_millis(100);
const WINDOW_BYTES: usize = 4 << 20;
const BATCH: usize = 32;
/// Longer than the longest IP packet in datagram mode, 4,092 bytes, so that only a connection can
/// carry it.
const LONGER_THAN_DATAGRAMS: usize = 4096;

/// The address of an end on the fabric.
pub const fn at(role: EndRole) -> SocketAddr {
    let host = match role {
        EndRole::Client => 1,
        EndRole::Server => 2,
    };
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 91, 0, host)), PORT)
}

/// Runs one end at a device. Only the client returns an outcome.
pub fn play(
    plan: &Plan,
    role: EndRole,
    device: &str,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    let setup = Node::open(device)?.interface("ib0").mode(plan.transport.mode()).limits(limits());
    let interface = setup.address(&format!("{}/24", at(role).ip())).up()?;
    if plan.layer == Layer::Tcp {
        let is_server = role == EndRole::Server;
        let listener = is_server.then(|| interface.tcp_listen(at(role), 128)).transpose()?;
        exchange.begin(plan)?;
        return match listener {
            None => client_tcp(plan, &interface, exchange).map(Some),
            Some(listener) => server_tcp(plan, &listener, exchange).map(|()| None),
        };
    }
    let socket = interface.udp_bind(at(role))?;
    exchange.meet()?;
    match role {
        EndRole::Client => client_udp(plan, &interface, &socket, exchange).map(Some),
        EndRole::Server => server_udp(plan, &socket, exchange).map(|()| None),
    }
}

/// Limits with larger TCP windows, as large as those of the kernel.
fn limits() -> StackConfig {
    let tcp =
        TcpConfig { receive_bytes: WINDOW_BYTES, send_bytes: WINDOW_BYTES, ..TcpConfig::default() };
    StackConfig { tcp, ..StackConfig::default() }
}

/// Repeats a call until it returns something other than `WouldBlock` or `TimedOut`. Yields the core
/// after every [`POLLS_AWAKE`] calls. Asks `gives_up` after a timeout and after every
/// [`POLLS_IDLE`] calls, and returns `None` if it returns true.
fn poll<T>(
    mut call: impl FnMut() -> io::Result<T>,
    mut gives_up: impl FnMut() -> bool,
) -> io::Result<Option<T>> {
    for turn in 1u32.. {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                if gives_up() {
                    break;
                }
            }
            other => return other.map(Some),
        }
        if turn.is_multiple_of(POLLS_AWAKE) {
            std::thread::yield_now();
        }
        if turn.is_multiple_of(POLLS_IDLE) && gives_up() {
            break;
        }
    }
    Ok(None)
}

fn client_udp(
    plan: &Plan,
    interface: &Interface,
    socket: &UdpSocket,
    exchange: &mut Exchange,
) -> Result<MeasurementOutcome, PerfError> {
    let (peer, mut buffer) = (at(EndRole::Server), vec![0; 1 << 16]);
    let first = warm_up(plan, socket, &mut buffer)?;
    exchange.begin(plan)?;
    if plan.what == What::Lat {
        return ping_datagrams(plan, socket, first, exchange);
    }
    let bytes = plan.bytes as usize;
    let mut payloads = vec![vec![7; bytes]; BATCH];
    if !plan.unchecked {
        payloads.iter_mut().for_each(|one| payload::prepare(&mut one[..], bytes));
    }
    let (mut sent, mut schedule) = (0, Schedule::new(plan.per_second));
    let mut send = |due: u64| {
        let due = due.min(BATCH as u64) as usize;
        if !plan.unchecked {
            for (message, number) in payloads[..due].iter_mut().zip(sent..) {
                payload::write(&mut message[..], bytes, number);
            }
        }
        let batch: [_; BATCH] = std::array::from_fn(|nth| (&payloads[nth][..], peer));
        // Sending alone does not poll for completions.
        let send = || {
            interface.step();
            if due == 0 { Ok(0) } else { socket.send_batch(&batch[..due]) }
        };
        let count = poll(send, || false)?.unwrap_or(0) as u64;
        sent += count;
        Ok::<_, PerfError>((count, sent))
    };
    let mut all = 0;
    let rate = per_second(plan.duration, || {
        let count;
        (count, all) = send(schedule.due(all))?;
        Ok(count)
    })?;
    let mut left = schedule.left(all);
    while left > 0 {
        let count;
        (count, all) = send(left)?;
        left -= count;
    }
    exchange.send(&all)?;
    let outcome = MeasurementOutcome::one_way(plan, rate.per_second, all, exchange.receive()?);
    Ok(outcome.with_course(rate.timeline, schedule.late_max()))
}

/// Measures the latency of datagrams. Each request has a number, and is sent again after
/// [`POLLS_IDLE`] empty polls.
fn ping_datagrams(
    plan: &Plan,
    socket: &UdpSocket,
    first: Duration,
    exchange: &mut Exchange,
) -> Result<MeasurementOutcome, PerfError> {
    let bytes = plan.bytes as usize;
    let (mut request, mut reply) = (vec![7; bytes], vec![0; 1 << 16]);
    let (mut number, mut lost, mut check) = (0u64, 0, PayloadCheck::default());
    if !plan.unchecked {
        payload::prepare(&mut request[..], bytes);
    }
    let digits = bytes.min(8);
    let mut latency = ping_pong(plan.duration, plan.per_second, || {
        number += 1;
        match plan.unchecked {
            true => request[..digits].copy_from_slice(&number.to_le_bytes()[..digits]),
            false => payload::write(&mut request[..], bytes, number),
        }
        for _ in 0..TRIES_MAX {
            poll(|| socket.send_to(&request, at(EndRole::Server)), || true)?;
            while poll(|| socket.recv_from(&mut reply), || true)?.is_some() {
                if reply[..digits] == request[..digits] {
                    if !plan.unchecked {
                        check.check_is(&reply[..bytes], bytes, number);
                    }
                    return Ok(());
                }
            }
            lost += 1;
        }
        Err(PerfError::OtherEnd(format!("no reply to {TRIES_MAX} datagrams")))
    })?;
    (latency.lost, latency.first_ns) = (lost, first.as_nanos() as f64);
    exchange.add_wrong_payloads(check.wrong);
    Ok(MeasurementOutcome::Latency(latency))
}

/// Sends requests until a reply arrives, which resolves the address and the path and opens a
/// connection. The reply to a request above the datagram MTU proves that a connection exists.
/// Returns the time until the first reply.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
fn warm_up(plan: &Plan, socket: &UdpSocket, buffer: &mut [u8]) -> Result<Duration, PerfError> {
    let first =
        vec![1; if plan.transport == MeasuredTransport::Ud { 1 } else { LONGER_THAN_DATAGRAMS }];
    socket.set_read_timeout(Some(WARM_UP_TIMEOUT))?;
    let begun = Instant::now();
    let answered = (0..TRIES_MAX).any(|_| {
        let _ = socket.send_to(&first, at(EndRole::Server));
        socket.recv_from(buffer).is_ok()
    });
    if !answered {
        return Err(PerfError::OtherEnd("no reply to any datagram".into()));
    }
    let first = begun.elapsed();
    // Discard late replies to earlier requests.
    while socket.recv_from(buffer).is_ok() {}
    socket.set_nonblocking(true)?;
    Ok(first)
}

fn server_udp(plan: &Plan, socket: &UdpSocket, exchange: &mut Exchange) -> Result<(), PerfError> {
    let mut buffer = vec![0; 1 << 16];
    match plan.sleeps {
        true => socket.set_read_timeout(Some(SLEEP)),
        false => socket.set_nonblocking(true),
    }?;
    let mut check = PayloadCheck::default();
    let mut echo = |is_checked: bool, exchange: &mut Exchange| {
        while let Some((len, from)) = poll(|| socket.recv_from(&mut buffer), || exchange.is_over())?
        {
            // Ignore errors: the client sends a lost request again.
            let _ = socket.send_to(&buffer[..len], from);
            if is_checked {
                check.check_any(&buffer[..len], len);
            }
        }
        Ok::<_, io::Error>(())
    };
    // Echo warm-up requests, until the client sends a control message.
    echo(false, exchange)?;
    exchange.begin(plan)?;
    if plan.what != What::Lat {
        return drain_udp(plan, socket, exchange);
    }
    echo(!plan.unchecked, exchange)?;
    exchange.add_wrong_payloads(check.wrong);
    Ok(())
}

fn drain_udp(plan: &Plan, socket: &UdpSocket, exchange: &mut Exchange) -> Result<(), PerfError> {
    let mut buffers = vec![vec![0; plan.bytes as usize]; BATCH];
    let slot = |buffer| UdpSlot { buffer, received: None };
    let mut slots: Vec<_> = buffers.iter_mut().map(|buffer| slot(&mut buffer[..])).collect();
    let (mut received, mut check) = (0, PayloadCheck::default());
    while let Some(count) = poll(|| socket.recv_batch(&mut slots), || exchange.is_over())? {
        received += count as u64;
        for slot in slots[..count].iter().filter(|_| !plan.unchecked) {
            check.check(&*slot.buffer, plan.bytes as usize);
        }
    }
    exchange.add_wrong_payloads(check.wrong);
    let _sent: u64 = exchange.receive()?;
    exchange.send(&received)
}

#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
fn client_tcp(
    plan: &Plan,
    interface: &Interface,
    exchange: &mut Exchange,
) -> Result<MeasurementOutcome, PerfError> {
    let begun = Instant::now();
    let mut stream = connect(interface)?;
    let opened = begun.elapsed();
    let mut message = NumberedMessage::new(plan.bytes as usize, !plan.unchecked);
    match plan.what {
        What::Lat => {
            let mut latency = ping_pong(plan.duration, plan.per_second, || {
                message.renew();
                write_all(&mut stream, &message.bytes)?;
                read_exact(&mut stream, &mut message.bytes, || false)?;
                message.check_answer();
                Ok(())
            })?;
            latency.first_ns += opened.as_nanos() as f64;
            exchange.add_wrong_payloads(message.wrong());
            Ok(MeasurementOutcome::Latency(latency))
        }
        What::Connect => {
            let rate = per_second(plan.duration, || {
                connect(interface)?;
                Ok(1)
            })?;
            Ok(MeasurementOutcome::Connections { per_second: rate.per_second, first_ns: None })
        }
        What::Bw | What::Rate => {
            let (mut sent, mut at) = (0, plan.bytes as usize);
            let mut schedule = Schedule::new(plan.per_second);
            let rate = per_second(plan.duration, || {
                if at == message.bytes.len() {
                    if schedule.due(sent / u64::from(plan.bytes)) == 0 {
                        interface.step();
                        return Ok(0);
                    }
                    message.renew();
                    at = 0;
                }
                let count = poll(|| stream.write(&message.bytes[at..]), || false)?.unwrap_or(0);
                at += count;
                sent += count as u64;
                Ok(count as u64)
            })?;
            // After the end of the stream, the server sends the number of bytes it received.
            stream.shutdown(Shutdown::Write)?;
            let mut received = [0; size_of::<u64>()];
            let counted = read_exact(&mut stream, &mut received, || false)?;
            counted.ok_or(PerfError::OtherEnd("it closed the stream before the end".into()))?;
            let lost = sent.saturating_sub(u64::from_be_bytes(received));
            let outcome = MeasurementOutcome::OneWay {
                per_second: rate.per_second,
                bytes: 1,
                sent,
                lost,
                late_max_ns: None,
                timeline: Vec::new(),
            };
            Ok(outcome.with_course(rate.timeline, schedule.late_max()))
        }
    }
}

/// Connects. The first attempts may fail, until the address of the peer is resolved.
fn connect(interface: &Interface) -> Result<TcpStream, PerfError> {
    let mut tries = (1..=TRIES_MAX).map(|_| interface.tcp_connect(at(EndRole::Server)));
    let stream = tries.find_map(Result::ok);
    let stream = stream.ok_or(PerfError::OtherEnd("it accepts no connection".into()))?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = poll(|| stream.write(bytes), || false)?.unwrap_or(0);
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Fills the buffer. Returns `None` if the measurement or the stream ends first.
fn read_exact(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    mut is_over: impl FnMut() -> bool,
) -> io::Result<Option<()>> {
    let mut have = 0;
    while have < buffer.len() {
        match poll(|| stream.read(&mut buffer[have..]), &mut is_over)? {
            None | Some(0) => return Ok(None),
            Some(read) => have += read,
        }
    }
    Ok(Some(()))
}

fn server_tcp(
    plan: &Plan,
    listener: &TcpListener,
    exchange: &mut Exchange,
) -> Result<(), PerfError> {
    listener.set_nonblocking(true)?;
    let bytes = plan.bytes as usize;
    let mut message = NumberedMessage::new(bytes, !plan.unchecked);
    let mut messages = MessageStream::new(bytes, 1 << 18);
    while let Some((mut stream, _)) = poll(|| listener.accept(), || exchange.is_over())? {
        match plan.sleeps {
            true => stream.set_read_timeout(Some(SLEEP)),
            false => stream.set_nonblocking(true),
        }?;
        match plan.what {
            What::Lat => {
                let mut is_over = || exchange.is_over();
                while read_exact(&mut stream, &mut message.bytes, &mut is_over)?.is_some() {
                    write_all(&mut stream, &message.bytes)?;
                    message.check_request();
                }
            }
            What::Connect => {}
            What::Bw | What::Rate => {
                let (mut received, mut is_complete) = (0, false);
                while !is_complete {
                    match poll(|| stream.read(messages.space()), || exchange.is_over())? {
                        Some(0) => is_complete = true,
                        Some(count) => {
                            received += count as u64;
                            if !plan.unchecked {
                                messages.take(count);
                            }
                        }
                        None => break,
                    }
                }
                if is_complete {
                    write_all(&mut stream, &received.to_be_bytes())?;
                }
            }
        }
    }
    exchange.add_wrong_payloads(message.wrong() + messages.wrong());
    Ok(())
}
