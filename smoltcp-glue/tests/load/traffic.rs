//! Programs of hosts: streams with checked bytes, datagrams and their echoes, groups.
//!
//! A stream begins with its number and two lengths: the bytes to the server, and then the bytes
//! back. Each byte is a function of the stream's number and the offset. A receiver panics at a
//! wrong byte; a lost one is found by the length of the stream.

use crate::world::{Program, Turn};
use pollux::host::Host;
use pollux::stack::{ListenerId, TcpError, TcpId, UdpId};
use pollux_verbs::time::Time;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// The ports of servers.
pub const STREAMS: u16 = 80;
pub const ECHOES: u16 = 7;
pub const GROUP_PORT: u16 = 5000;
pub const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
/// The timeout of a program for a silent peer.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a send or receive call.
const CHUNK: usize = 16 << 10;
const HEAD: usize = 16;

/// The counters of programs.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub begun: u64,
    /// Streams that ended with all bytes in both directions.
    pub done: u64,
    /// Other streams, by outcome.
    pub failed: BTreeMap<String, u64>,
    /// Received bytes of streams.
    pub bytes: u64,
    pub asked: u64,
    pub echoed: u64,
    pub group_sent: u64,
    pub group_received: u64,
}

pub type Shared = Rc<RefCell<Counters>>;

/// The byte at an offset of a stream.
const fn byte(stream: u64, at: usize) -> u8 {
    let mixed = (at as u64 ^ stream << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// A direction of a stream.
#[derive(Clone, Copy, Debug)]
struct Half {
    stream: u64,
    at: usize,
    len: usize,
}

impl Half {
    /// Sends what there is space for; returns whether that was anything.
    fn send(&mut self, host: &mut Host, id: TcpId) -> Result<bool, TcpError> {
        let before = self.at;
        while self.at < self.len {
            let len = CHUNK.min(self.len - self.at);
            let bytes: Vec<u8> = (0..len).map(|nth| byte(self.stream, self.at + nth)).collect();
            match host.stack.tcp_send(id, &bytes)? {
                Some(taken) => self.at += taken,
                None => break,
            }
        }
        Ok(self.at > before)
    }

    /// Checks received bytes.
    fn check(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        assert!(end <= self.len, "stream {}: bytes beyond its {}", self.stream, self.len);
        let is_right = bytes.iter().zip(self.at..).all(|(it, at)| *it == byte(self.stream, at));
        assert!(is_right, "stream {}: a wrong byte in {}..{end}", self.stream, self.at);
        self.at = end;
    }
}

/// The parameters of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub stream: u64,
    pub to: SocketAddr,
    pub there: usize,
    pub back: usize,
    /// The client aborts it after this number of sent bytes.
    pub abort_at: Option<usize>,
    /// The maximum time without progress.
    pub timeout: Duration,
}

impl Plan {
    pub const fn new(stream: u64, to: SocketAddr, there: usize, back: usize) -> Self {
        Self { stream, to, there, back, abort_at: None, timeout: TIMEOUT }
    }
}

/// The client of a stream.
pub struct Client {
    plan: Plan,
    counters: Shared,
    id: Option<TcpId>,
    has_sent_head: bool,
    there: Half,
    back: Half,
    is_shut: bool,
    moved_at: Time,
}

impl Client {
    pub fn new(plan: Plan, counters: &Shared) -> Self {
        counters.borrow_mut().begun += 1;
        let there = Half { stream: plan.stream, at: 0, len: plan.there };
        let back = Half { stream: !plan.stream, at: 0, len: plan.back };
        Self {
            plan,
            counters: Rc::clone(counters),
            id: None,
            has_sent_head: false,
            there,
            back,
            is_shut: false,
            moved_at: Time::START,
        }
    }

    /// Makes progress; returns whether there was any, and whether the stream has ended.
    fn advance(&mut self, host: &mut Host, now: Time) -> Result<(bool, bool), TcpError> {
        let Some(id) = self.id else {
            let from = host.source_for(self.plan.to.ip()).map_err(|_| TcpError::Unreachable)?;
            let id = host.stack.tcp_connect(now, SocketAddr::new(from, 0), self.plan.to);
            self.id = Some(id.map_err(|_| TcpError::Closed)?);
            return Ok((true, false));
        };
        if !host.stack.tcp_is_open(id)? && !self.has_sent_head {
            return Ok((false, false));
        }
        let mut moved = false;
        if !self.has_sent_head {
            let Plan { stream, there, back, .. } = self.plan;
            let mut head = stream.to_be_bytes().to_vec();
            head.extend((there as u32).to_be_bytes());
            head.extend((back as u32).to_be_bytes());
            let taken = host.stack.tcp_send(id, &head)?;
            assert_eq!(taken, Some(HEAD), "an empty send buffer");
            (self.has_sent_head, moved) = (true, true);
        }
        moved |= self.there.send(host, id)?;
        if self.plan.abort_at.is_some_and(|at| self.there.at >= at) {
            host.stack.tcp_abort(now, id);
            return Err(TcpError::ShutDown);
        }
        if self.there.at == self.there.len && !self.is_shut {
            host.stack.tcp_shut_down(now, id)?;
            (self.is_shut, moved) = (true, true);
        }
        let mut buffer = [0; CHUNK];
        while let Some(received) = host.stack.tcp_recv(id, &mut buffer)? {
            if received == 0 {
                return Ok((true, true));
            }
            self.back.check(&buffer[..received]);
            moved = true;
        }
        Ok((moved, false))
    }
}

impl Program for Client {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        if self.moved_at == Time::START {
            self.moved_at = now;
        }
        let outcome = match self.advance(host, now) {
            Ok((true, false)) => {
                self.moved_at = now;
                return Turn::Busy;
            }
            Ok((false, false)) if now < self.moved_at + self.plan.timeout => {
                return Turn::Waits(Some(self.moved_at + self.plan.timeout));
            }
            Ok((_, false)) => "timeout".to_owned(),
            Ok((_, true)) => {
                let (back, there) = (self.back, self.there);
                assert_eq!((back.at, there.at), (back.len, there.len), "a stream ended early");
                let counters = &mut *self.counters.borrow_mut();
                counters.done += 1;
                counters.bytes += back.len as u64;
                host.stack.tcp_close(now, self.id.expect("it was open"));
                return Turn::Over;
            }
            Err(TcpError::ShutDown) if self.plan.abort_at.is_some() => "aborted".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        let outcome = format!("{outcome} at {}", self.plan.to);
        *self.counters.borrow_mut().failed.entry(outcome).or_default() += 1;
        if let Some(id) = self.id {
            host.stack.tcp_abort(now, id);
        }
        Turn::Over
    }
}

/// The server's end of a stream.
struct Served {
    id: TcpId,
    head: Vec<u8>,
    there: Option<Half>,
    back: Half,
    is_at_eof: bool,
    moved_at: Time,
}

impl Served {
    /// Makes progress, and receives at most `bytes_max` bytes; returns whether there was any.
    fn advance(
        &mut self,
        host: &mut Host,
        mut bytes_max: usize,
        counters: &Shared,
    ) -> Result<bool, TcpError> {
        let mut moved = false;
        let mut buffer = [0; CHUNK];
        while !self.is_at_eof && bytes_max > 0 {
            let len = if self.there.is_some() { CHUNK } else { HEAD - self.head.len() };
            let len = len.min(bytes_max);
            let Some(received) = host.stack.tcp_recv(self.id, &mut buffer[..len])? else { break };
            (moved, bytes_max) = (true, bytes_max - received);
            self.is_at_eof = received == 0;
            counters.borrow_mut().bytes += received as u64;
            match &mut self.there {
                Some(there) => there.check(&buffer[..received]),
                None => self.head.extend(&buffer[..received]),
            }
            if self.head.len() == HEAD && self.there.is_none() {
                let part = |at: usize, len: usize| &self.head[at..at + len];
                let stream = u64::from_be_bytes(part(0, 8).try_into().expect("8 bytes"));
                let lens = [8, 12].map(|at| part(at, 4).try_into().expect("4 bytes"));
                let [there, back] = lens.map(|bytes| u32::from_be_bytes(bytes) as usize);
                self.there = Some(Half { stream, at: 0, len: there });
                self.back = Half { stream: !stream, at: 0, len: back };
            }
        }
        if self.is_at_eof {
            let is_complete = self.there.is_some_and(|there| there.at == there.len);
            assert!(is_complete, "a stream was shut down early: {:?}", self.there);
            moved |= self.back.send(host, self.id)?;
        }
        Ok(moved)
    }
}

/// The pace of a slow reader: from a time on, a number of bytes each time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub from: Time,
    pub bytes: usize,
    pub every: Duration,
}

/// The server of streams.
pub struct Server {
    counters: Shared,
    port: u16,
    pace: Option<Pace>,
    listener: Option<ListenerId>,
    served: Vec<Served>,
}

impl Server {
    pub fn new(counters: &Shared) -> Self {
        let counters = Rc::clone(counters);
        Self { counters, port: STREAMS, pace: None, listener: None, served: Vec::new() }
    }

    /// A server at another port that reads slowly.
    pub fn slow(counters: &Shared, port: u16, pace: Pace) -> Self {
        Self { port, pace: Some(pace), ..Self::new(counters) }
    }

    /// The bytes to read now of each stream.
    fn bytes_max(&mut self, now: Time) -> usize {
        match &mut self.pace {
            None => usize::MAX,
            Some(pace) if now < pace.from => 0,
            Some(pace) => {
                pace.from = now + pace.every;
                pace.bytes
            }
        }
    }
}

impl Program for Server {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        let listener = *self.listener.get_or_insert_with(|| {
            let any_address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), self.port);
            host.stack.tcp_listen(any_address, 256).expect("the port is free")
        });
        while let Some(id) = host.stack.tcp_accept(listener).expect("it listens") {
            let back = Half { stream: 0, at: 0, len: 0 };
            let (head, there, is_at_eof) = (Vec::new(), None, false);
            self.served.push(Served { id, head, there, back, is_at_eof, moved_at: now });
        }
        let mut busy = false;
        let bytes_max = self.bytes_max(now);
        let is_slow = self.pace.is_some();
        self.served.retain_mut(|one| match one.advance(host, bytes_max, &self.counters) {
            Ok(moved) => {
                if moved {
                    (one.moved_at, busy) = (now, true);
                }
                let is_done = one.is_at_eof && one.back.at == one.back.len;
                if is_done {
                    host.stack.tcp_close(now, one.id);
                } else if now >= one.moved_at + TIMEOUT && !is_slow {
                    host.stack.tcp_abort(now, one.id);
                    return false;
                }
                !is_done
            }
            Err(_) => {
                host.stack.tcp_close(now, one.id);
                false
            }
        });
        let due = match self.pace {
            Some(pace) => Some(pace.from),
            None => self.served.iter().map(|one| one.moved_at + TIMEOUT).min(),
        };
        if busy { Turn::Busy } else { Turn::Waits(due) }
    }
}

/// Sends datagrams at an interval, and checks their echoes.
pub struct EchoClient {
    pub counters: Shared,
    pub to: SocketAddr,
    pub lens: Vec<usize>,
    pub every: Duration,
    socket: Option<UdpId>,
    due: Time,
}

impl EchoClient {
    pub fn new(counters: &Shared, to: SocketAddr, lens: Vec<usize>, every: Duration) -> Self {
        Self { counters: Rc::clone(counters), to, lens, every, socket: None, due: Time::START }
    }
}

impl Program for EchoClient {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        let socket = *self.socket.get_or_insert_with(|| {
            let any_address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            host.stack.udp_bind(any_address).expect("a port is free")
        });
        let mut buffer = [0; 4096];
        loop {
            match host.stack.udp_recv(socket, &mut buffer) {
                Ok(Some(received)) => {
                    check_datagram(&buffer[..received.len]);
                    self.counters.borrow_mut().echoed += 1;
                }
                Ok(None) => break,
                // The destination is unreachable, or the port is closed.
                Err(_) => {}
            }
        }
        if now < self.due {
            return Turn::Waits(Some(self.due));
        }
        let Some(len) = self.lens.pop() else {
            host.stack.udp_close(socket);
            return Turn::Over;
        };
        self.counters.borrow_mut().asked += 1;
        // The queue may be full, or the datagram longer than the path MTU.
        let _ = host.udp_send(now, socket, self.to, &datagram(len));
        self.due = now + if self.lens.is_empty() { Duration::from_secs(1) } else { self.every };
        Turn::Busy
    }
}

/// Echoes datagrams.
#[derive(Default)]
pub struct Echo {
    socket: Option<UdpId>,
}

impl Program for Echo {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        let socket = *self.socket.get_or_insert_with(|| {
            let any_address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), ECHOES);
            host.stack.udp_bind(any_address).expect("the port is free")
        });
        let mut buffer = [0; 4096];
        let mut busy = false;
        while let Ok(Some(received)) = host.stack.udp_recv(socket, &mut buffer) {
            check_datagram(&buffer[..received.len]);
            let _ = host.udp_send(now, socket, received.from, &buffer[..received.len]);
            busy = true;
        }
        if busy { Turn::Busy } else { Turn::Waits(None) }
    }
}

/// Sends datagrams to the group.
pub struct GroupSender {
    pub counters: Shared,
    pub times: usize,
    pub every: Duration,
    socket: Option<UdpId>,
    due: Time,
}

impl GroupSender {
    pub fn new(counters: &Shared, times: usize, every: Duration) -> Self {
        Self { counters: Rc::clone(counters), times, every, socket: None, due: Time::START }
    }
}

impl Program for GroupSender {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        if now < self.due {
            return Turn::Waits(Some(self.due));
        }
        let socket = *self.socket.get_or_insert_with(|| {
            let any_address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            host.stack.udp_bind(any_address).expect("a port is free")
        });
        if self.times == 0 {
            host.stack.udp_close(socket);
            return Turn::Over;
        }
        self.times -= 1;
        self.counters.borrow_mut().group_sent += 1;
        let _ = host.udp_send(now, socket, SocketAddr::new(GROUP, GROUP_PORT), &datagram(1000));
        self.due = now + self.every;
        Turn::Busy
    }
}

/// Receives datagrams of the group.
pub struct GroupMember {
    counters: Shared,
    socket: Option<UdpId>,
}

impl GroupMember {
    pub fn new(counters: &Shared) -> Self {
        Self { counters: Rc::clone(counters), socket: None }
    }
}

impl Program for GroupMember {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        let socket = *self.socket.get_or_insert_with(|| {
            let any_address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), GROUP_PORT);
            let socket = host.stack.udp_bind(any_address).expect("the port is free");
            assert_eq!(host.stack.udp_join(socket, GROUP), Ok(true));
            assert!(host.join_group(now, GROUP), "there is space for a group");
            socket
        });
        let mut buffer = [0; 2048];
        let mut busy = false;
        while let Ok(Some(received)) = host.stack.udp_recv(socket, &mut buffer) {
            assert_eq!(received.to, GROUP);
            check_datagram(&buffer[..received.len]);
            self.counters.borrow_mut().group_received += 1;
            busy = true;
        }
        if busy { Turn::Busy } else { Turn::Waits(None) }
    }
}

/// A datagram, whose bytes are a function of its length.
fn datagram(len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(len as u64, at)).collect()
}

fn check_datagram(bytes: &[u8]) {
    assert!(bytes == datagram(bytes.len()), "a datagram of {} bytes is wrong", bytes.len());
}
