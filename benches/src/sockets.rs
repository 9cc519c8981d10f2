//! Layers `udp` and `tcp`: sockets of the library, whose threads poll without pause.

use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::pair::{Outcome, Side};
use crate::plan::{Layer, Plan, Transport, What};
use crate::samples::{per_second, ping_pong};
use pollux::stack::{StackConfig, TcpConfig};
use pollux::{Interface, Node, TcpListener, TcpStream, UdpSlot, UdpSocket};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

const PORT: u16 = 7000;
/// How long an answer is waited for before the question is asked again, while ways are made.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Times that something is tried again.
const TRIES_MAX: u32 = 100;
/// Reads in vain before who answers asks whether all is over.
const READS_IDLE: u32 = 50_000;
/// Bytes that TCP takes before they are read or acknowledged.
const WINDOW_BYTES: usize = 4 << 20;
/// Datagrams of a batch.
const BATCH: usize = 32;
/// More than a datagram that no connection carries.
const LONGER_THAN_DATAGRAMS: usize = 4000;

const fn at(side: Side) -> SocketAddr {
    let host = match side {
        Side::Asks => 1,
        Side::Answers => 2,
    };
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 91, 0, host)), PORT)
}

/// Plays one side at the device of this name.
pub fn play(
    plan: &Plan,
    side: Side,
    device: &str,
    exchange: &mut Exchange,
) -> Result<Option<Outcome>, PerfError> {
    let setup = Node::open(device)?.interface("ib0").mode(plan.transport.mode()).limits(limits());
    let interface = setup.address(&format!("{}/24", at(side).ip())).up()?;
    let socket = match plan.layer {
        Layer::Tcp => None,
        _ => Some(interface.udp_bind(at(side))?),
    };
    let listener = match (&socket, side) {
        (None, Side::Answers) => Some(interface.tcp_listen(at(side), 128)?),
        _ => None,
    };
    exchange.meet()?;
    match (socket, listener) {
        (Some(socket), _) if side == Side::Asks => {
            ask_udp(plan, &interface, &socket, exchange).map(Some)
        }
        (Some(socket), _) => answer_udp(plan, &socket, exchange).map(|()| None),
        (None, None) => ask_tcp(plan, &interface).map(Some),
        (None, Some(listener)) => answer_tcp(plan, &listener, exchange).map(|()| None),
    }
}

/// Windows as wide as the kernel lets them grow.
fn limits() -> StackConfig {
    let tcp =
        TcpConfig { receive_bytes: WINDOW_BYTES, send_bytes: WINDOW_BYTES, ..TcpConfig::default() };
    StackConfig { tcp, ..StackConfig::default() }
}

/// Calls until the answer is another one than that it would wait; at times lets others run, and
/// asks whether all is over, which is the answer then.
fn poll<T>(
    mut call: impl FnMut() -> io::Result<T>,
    mut is_over: impl FnMut() -> bool,
) -> io::Result<Option<T>> {
    for turn in 1u32.. {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other.map(Some),
        }
        if turn.is_multiple_of(READS_IDLE) {
            std::thread::yield_now();
            if is_over() {
                break;
            }
        }
    }
    Ok(None)
}

// ---------------------------------------------------------------- udp

fn ask_udp(
    plan: &Plan,
    interface: &Interface,
    socket: &UdpSocket,
    exchange: &mut Exchange,
) -> Result<Outcome, PerfError> {
    let (peer, mut buffer) = (at(Side::Answers), vec![0; 1 << 16]);
    let payload = vec![7; plan.bytes as usize];
    make_way(plan, socket, &mut buffer)?;
    exchange.meet()?;
    if plan.what == What::Lat {
        return ask_datagrams(plan, socket, payload, buffer);
    }
    let (batch, mut sent) = ([(&payload[..], peer); BATCH], 0);
    let rate = per_second(plan.duration, || {
        // Sending alone does not look at what the device has completed.
        let send = || {
            interface.step();
            socket.send_batch(&batch)
        };
        let count = poll(send, || false)?.unwrap_or(0) as u64;
        sent += count;
        Ok(count)
    })?;
    exchange.send(&sent)?;
    Ok(Outcome::one_way(plan, rate, sent, exchange.receive()?))
}

/// Each question has its number, and is asked again when the answer does not come.
fn ask_datagrams(
    plan: &Plan,
    socket: &UdpSocket,
    mut question: Vec<u8>,
    mut answer: Vec<u8>,
) -> Result<Outcome, PerfError> {
    let (mut number, mut lost) = (0u32, 0);
    let digits = question.len().min(4);
    let mut latency = ping_pong(plan.duration, plan.per_second, || {
        number = number.wrapping_add(1);
        question[..digits].copy_from_slice(&number.to_ne_bytes()[..digits]);
        for _ in 0..TRIES_MAX {
            poll(|| socket.send_to(&question, at(Side::Answers)), || true)?;
            while poll(|| socket.recv_from(&mut answer), || true)?.is_some() {
                if answer[..digits] == question[..digits] {
                    return Ok(());
                }
            }
            lost += 1;
        }
        Err(PerfError::OtherEnd(format!("no answer to {TRIES_MAX} datagrams")))
    })?;
    latency.lost = lost;
    Ok(Outcome::Latency(latency))
}

/// Asks until there is an answer: at first there is no address, no path and no connection. A
/// datagram that only a connection carries shows that there is one.
fn make_way(plan: &Plan, socket: &UdpSocket, buffer: &mut [u8]) -> Result<(), PerfError> {
    let first = vec![1; if plan.transport == Transport::Ud { 1 } else { LONGER_THAN_DATAGRAMS }];
    socket.set_read_timeout(Some(TIMEOUT));
    let answered = (0..TRIES_MAX).any(|_| {
        let _ = socket.send_to(&first, at(Side::Answers));
        socket.recv_from(buffer).is_ok()
    });
    if !answered {
        return Err(PerfError::OtherEnd("no datagram reaches it and comes back".into()));
    }
    // Answers to questions that were asked twice.
    while socket.recv_from(buffer).is_ok() {}
    socket.set_nonblocking(true);
    Ok(())
}

fn answer_udp(plan: &Plan, socket: &UdpSocket, exchange: &mut Exchange) -> Result<(), PerfError> {
    let mut buffer = vec![0; 1 << 16];
    socket.set_nonblocking(true);
    let mut echo = |socket: &UdpSocket, exchange: &mut Exchange| {
        while let Some((len, from)) = poll(|| socket.recv_from(&mut buffer), || exchange.is_over())?
        {
            // While ways are made, whoever asked asks again.
            let _ = socket.send_to(&buffer[..len], from);
        }
        Ok::<_, io::Error>(())
    };
    echo(socket, exchange)?;
    exchange.meet()?;
    match plan.what {
        What::Lat => Ok(echo(socket, exchange)?),
        _ => drain_udp(plan, socket, exchange),
    }
}

fn drain_udp(plan: &Plan, socket: &UdpSocket, exchange: &mut Exchange) -> Result<(), PerfError> {
    let mut buffers = vec![vec![0; plan.bytes as usize]; BATCH];
    let slot = |buffer| UdpSlot { buffer, received: None };
    let mut slots: Vec<_> = buffers.iter_mut().map(|buffer| slot(&mut buffer[..])).collect();
    let mut came = 0;
    while let Some(count) = poll(|| socket.recv_batch(&mut slots), || exchange.is_over())? {
        came += count as u64;
    }
    let _sent: u64 = exchange.receive()?;
    exchange.send(&came)
}

// ---------------------------------------------------------------- tcp

fn ask_tcp(plan: &Plan, interface: &Interface) -> Result<Outcome, PerfError> {
    let mut stream = connect(interface)?;
    let mut buffer = vec![7; plan.bytes as usize];
    match plan.what {
        What::Lat => {
            let latency = ping_pong(plan.duration, plan.per_second, || {
                write_all(&mut stream, &buffer)?;
                read_exact(&mut stream, &mut buffer, || false)?;
                Ok(())
            })?;
            Ok(Outcome::Latency(latency))
        }
        What::Connect => {
            let rate = per_second(plan.duration, || {
                connect(interface)?;
                Ok(1)
            })?;
            Ok(Outcome::Connections { per_second: rate })
        }
        What::Bw | What::Rate => {
            let mut sent = 0;
            let rate = per_second(plan.duration, || {
                let count = poll(|| stream.write(&buffer), || false)?.unwrap_or(0) as u64;
                sent += count;
                Ok(count)
            })?;
            // The other end says what it has read when it has read all.
            stream.shutdown(Shutdown::Write)?;
            let mut came = [0; size_of::<u64>()];
            let heard = read_exact(&mut stream, &mut came, || false)?;
            heard
                .ok_or(PerfError::OtherEnd("it ended the stream before it had read all".into()))?;
            let lost = sent.saturating_sub(u64::from_be_bytes(came));
            Ok(Outcome::OneWay { per_second: rate, bytes: 1, lost, sent })
        }
    }
}

/// The peer may not have been asked for its address yet.
fn connect(interface: &Interface) -> Result<TcpStream, PerfError> {
    let mut tries = (1..=TRIES_MAX).map(|_| interface.tcp_connect(at(Side::Answers)));
    let stream = tries.find_map(Result::ok);
    let stream = stream.ok_or(PerfError::OtherEnd("it takes no connection".into()))?;
    stream.set_nonblocking(true);
    Ok(stream)
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = poll(|| stream.write(bytes), || false)?.unwrap_or(0);
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Reads so much; none if all is over before.
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

fn answer_tcp(
    plan: &Plan,
    listener: &TcpListener,
    exchange: &mut Exchange,
) -> Result<(), PerfError> {
    listener.set_nonblocking(true);
    let mut buffer = vec![0; if plan.what == What::Lat { plan.bytes as usize } else { 1 << 18 }];
    while let Some((mut stream, _)) = poll(|| listener.accept(), || exchange.is_over())? {
        stream.set_nonblocking(true);
        match plan.what {
            What::Lat => {
                while read_exact(&mut stream, &mut buffer, || exchange.is_over())?.is_some() {
                    write_all(&mut stream, &buffer)?;
                }
            }
            What::Connect => {}
            What::Bw | What::Rate => {
                let (mut came, mut is_whole) = (0, false);
                while !is_whole {
                    match poll(|| stream.read(&mut buffer), || exchange.is_over())? {
                        Some(0) => is_whole = true,
                        Some(count) => came += count as u64,
                        None => break,
                    }
                }
                if is_whole {
                    write_all(&mut stream, &came.to_be_bytes())?;
                }
            }
        }
    }
    Ok(())
}
