//! Programs that hosts run: streams whose every byte is looked at, datagrams and their echoes,
//! groups.
//!
//! A stream begins with its number and two lengths. So many bytes go there, each of which its
//! place and the stream's number decide, and then so many come back. Whoever gets a byte that is
//! not the one that was sent panics; one that is lost shows in where a stream ends.

use crate::world::{Program, Turn};
use pollux::host::Host;
use pollux::stack::{ListenerId, TcpError, TcpId, UdpId};
use pollux_verbs::time::Time;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// Where streams are served, datagrams echoed, and groups heard.
pub const STREAMS: u16 = 80;
pub const ECHOES: u16 = 7;
pub const NEWS: u16 = 5000;
pub const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
/// How long a program waits for a peer that says nothing.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that are given or taken at once.
const CHUNK: usize = 16 << 10;
const HEAD: usize = 16;

/// What programs did.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub begun: u64,
    /// Streams that came to their end with all bytes there and back.
    pub done: u64,
    /// Others, by why.
    pub failed: BTreeMap<String, u64>,
    /// Bytes that streams brought.
    pub bytes: u64,
    pub asked: u64,
    pub echoed: u64,
    pub told: u64,
    pub heard: u64,
}

pub type Shared = Rc<RefCell<Counters>>;

/// The byte at a place of a stream.
const fn byte(stream: u64, at: usize) -> u8 {
    let mixed = (at as u64 ^ stream << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// Half of a stream: bytes that are to go, or to come.
#[derive(Clone, Copy, Debug)]
struct Half {
    stream: u64,
    at: usize,
    len: usize,
}

impl Half {
    /// Gives what there is room for; says whether that was anything.
    fn give(&mut self, host: &mut Host, id: TcpId) -> Result<bool, TcpError> {
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

    /// Takes bytes and looks at them.
    fn take(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        assert!(end <= self.len, "stream {}: bytes beyond its {}", self.stream, self.len);
        let is_right = bytes.iter().zip(self.at..).all(|(it, at)| *it == byte(self.stream, at));
        assert!(is_right, "stream {}: a wrong byte in {}..{end}", self.stream, self.at);
        self.at = end;
    }
}

/// What a stream is to be.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub stream: u64,
    pub to: SocketAddr,
    pub there: usize,
    pub back: usize,
    /// It is given up when so many bytes have gone.
    pub abort_at: Option<usize>,
    /// How long nothing may move.
    pub timeout: Duration,
}

impl Plan {
    pub const fn new(stream: u64, to: SocketAddr, there: usize, back: usize) -> Self {
        Self { stream, to, there, back, abort_at: None, timeout: TIMEOUT }
    }
}

/// Opens a stream.
pub struct Client {
    plan: Plan,
    counters: Shared,
    id: Option<TcpId>,
    has_greeted: bool,
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
            has_greeted: false,
            there,
            back,
            is_shut: false,
            moved_at: Time::START,
        }
    }

    /// Goes on as far as it goes; says whether that was anywhere, and whether it is at its end.
    fn go_on(&mut self, host: &mut Host, now: Time) -> Result<(bool, bool), TcpError> {
        let Some(id) = self.id else {
            let from = host.source_for(self.plan.to.ip()).map_err(|_| TcpError::Unreachable)?;
            let id = host.stack.tcp_connect(now, SocketAddr::new(from, 0), self.plan.to);
            self.id = Some(id.map_err(|_| TcpError::Closed)?);
            return Ok((true, false));
        };
        if !host.stack.tcp_is_open(id)? && !self.has_greeted {
            return Ok((false, false));
        }
        let mut moved = false;
        if !self.has_greeted {
            let Plan { stream, there, back, .. } = self.plan;
            let mut head = stream.to_be_bytes().to_vec();
            head.extend((there as u32).to_be_bytes());
            head.extend((back as u32).to_be_bytes());
            let taken = host.stack.tcp_send(id, &head)?;
            assert_eq!(taken, Some(HEAD), "there is room at the beginning");
            (self.has_greeted, moved) = (true, true);
        }
        moved |= self.there.give(host, id)?;
        if self.plan.abort_at.is_some_and(|at| self.there.at >= at) {
            host.stack.tcp_abort(now, id);
            return Err(TcpError::ShutDown);
        }
        if self.there.at == self.there.len && !self.is_shut {
            host.stack.tcp_shut_down(now, id)?;
            (self.is_shut, moved) = (true, true);
        }
        let mut buffer = [0; CHUNK];
        while let Some(came) = host.stack.tcp_recv(id, &mut buffer)? {
            if came == 0 {
                return Ok((true, true));
            }
            self.back.take(&buffer[..came]);
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
        let outcome = match self.go_on(host, now) {
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
                assert_eq!((back.at, there.at), (back.len, there.len), "a stream that ended short");
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

/// A stream that is served.
struct Served {
    id: TcpId,
    head: Vec<u8>,
    there: Option<Half>,
    back: Half,
    has_heard_all: bool,
    moved_at: Time,
}

impl Served {
    /// Goes on, and takes so many bytes at the most.
    fn go_on(
        &mut self,
        host: &mut Host,
        mut bytes_max: usize,
        counters: &Shared,
    ) -> Result<bool, TcpError> {
        let mut moved = false;
        let mut buffer = [0; CHUNK];
        while !self.has_heard_all && bytes_max > 0 {
            let len = if self.there.is_some() { CHUNK } else { HEAD - self.head.len() };
            let len = len.min(bytes_max);
            let Some(came) = host.stack.tcp_recv(self.id, &mut buffer[..len])? else { break };
            (moved, bytes_max) = (true, bytes_max - came);
            self.has_heard_all = came == 0;
            counters.borrow_mut().bytes += came as u64;
            match &mut self.there {
                Some(there) => there.take(&buffer[..came]),
                None => self.head.extend(&buffer[..came]),
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
        if self.has_heard_all {
            let is_whole = self.there.is_some_and(|there| there.at == there.len);
            assert!(is_whole, "a stream that was shut down in its middle: {:?}", self.there);
            moved |= self.back.give(host, self.id)?;
        }
        Ok(moved)
    }
}

/// How quickly a server reads: not before that moment, and then so many bytes each time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub from: Time,
    pub bytes: usize,
    pub every: Duration,
}

/// Serves streams.
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

    /// One that reads slowly, at another port.
    pub fn slow(counters: &Shared, port: u16, pace: Pace) -> Self {
        Self { port, pace: Some(pace), ..Self::new(counters) }
    }

    /// How many bytes it reads now, of each stream.
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
            let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), self.port);
            host.stack.tcp_listen(anywhere, 256).expect("the port is free")
        });
        while let Some(id) = host.stack.tcp_accept(listener).expect("it listens") {
            let back = Half { stream: 0, at: 0, len: 0 };
            let (head, there, has_heard_all) = (Vec::new(), None, false);
            self.served.push(Served { id, head, there, back, has_heard_all, moved_at: now });
        }
        let mut busy = false;
        let bytes_max = self.bytes_max(now);
        let is_slow = self.pace.is_some();
        self.served.retain_mut(|one| match one.go_on(host, bytes_max, &self.counters) {
            Ok(moved) => {
                if moved {
                    (one.moved_at, busy) = (now, true);
                }
                let is_done = one.has_heard_all && one.back.at == one.back.len;
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

/// Sends a datagram now and then, and looks at what comes back.
pub struct Asker {
    pub counters: Shared,
    pub to: SocketAddr,
    pub lens: Vec<usize>,
    pub every: Duration,
    socket: Option<UdpId>,
    due: Time,
}

impl Asker {
    pub fn new(counters: &Shared, to: SocketAddr, lens: Vec<usize>, every: Duration) -> Self {
        Self { counters: Rc::clone(counters), to, lens, every, socket: None, due: Time::START }
    }
}

impl Program for Asker {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        let socket = *self.socket.get_or_insert_with(|| {
            let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            host.stack.udp_bind(anywhere).expect("a port is free")
        });
        let mut buffer = [0; 4096];
        loop {
            match host.stack.udp_recv(socket, &mut buffer) {
                Ok(Some(received)) => {
                    check_datagram(&buffer[..received.len]);
                    self.counters.borrow_mut().echoed += 1;
                }
                Ok(None) => break,
                // Nobody is there, or there is no way: said once for each time.
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
        // There may be no room, or no way for one so long.
        let _ = host.udp_send(now, socket, self.to, &datagram(len));
        self.due = now + if self.lens.is_empty() { Duration::from_secs(1) } else { self.every };
        Turn::Busy
    }
}

/// Sends datagrams back.
#[derive(Default)]
pub struct Echo {
    socket: Option<UdpId>,
}

impl Program for Echo {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        let socket = *self.socket.get_or_insert_with(|| {
            let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), ECHOES);
            host.stack.udp_bind(anywhere).expect("the port is free")
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

/// Tells a group something, a number of times.
pub struct Speaker {
    pub counters: Shared,
    pub times: usize,
    pub every: Duration,
    socket: Option<UdpId>,
    due: Time,
}

impl Speaker {
    pub fn new(counters: &Shared, times: usize, every: Duration) -> Self {
        Self { counters: Rc::clone(counters), times, every, socket: None, due: Time::START }
    }
}

impl Program for Speaker {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        if now < self.due {
            return Turn::Waits(Some(self.due));
        }
        let socket = *self.socket.get_or_insert_with(|| {
            let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            host.stack.udp_bind(anywhere).expect("a port is free")
        });
        if self.times == 0 {
            host.stack.udp_close(socket);
            return Turn::Over;
        }
        self.times -= 1;
        self.counters.borrow_mut().told += 1;
        let _ = host.udp_send(now, socket, SocketAddr::new(GROUP, NEWS), &datagram(1000));
        self.due = now + self.every;
        Turn::Busy
    }
}

/// Hears the group.
pub struct Hearer {
    counters: Shared,
    socket: Option<UdpId>,
}

impl Hearer {
    pub fn new(counters: &Shared) -> Self {
        Self { counters: Rc::clone(counters), socket: None }
    }
}

impl Program for Hearer {
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn {
        let socket = *self.socket.get_or_insert_with(|| {
            let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), NEWS);
            let socket = host.stack.udp_bind(anywhere).expect("the port is free");
            assert_eq!(host.stack.udp_join(socket, GROUP), Ok(true));
            assert!(host.join_group(now, GROUP), "there is room for a group");
            socket
        });
        let mut buffer = [0; 2048];
        let mut busy = false;
        while let Ok(Some(received)) = host.stack.udp_recv(socket, &mut buffer) {
            assert_eq!(received.to, GROUP);
            check_datagram(&buffer[..received.len]);
            self.counters.borrow_mut().heard += 1;
            busy = true;
        }
        if busy { Turn::Busy } else { Turn::Waits(None) }
    }
}

/// A datagram of so many bytes, which its length decides.
fn datagram(len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(len as u64, at)).collect()
}

fn check_datagram(bytes: &[u8]) {
    assert!(bytes == datagram(bytes.len()), "a datagram of {} bytes is wrong", bytes.len());
}
