//! Layer `tcp` as ordinary programs use it: blocking calls on sockets with default settings (the
//! kernel's with TCP_NODELAY). The same program runs on the library's inline and pinned sockets,
//! and on the kernel's.
//!
//! All threads of an end are pinned to the core of that end, as if the ends were on two hosts.
//! Otherwise the scheduler puts both ends on one core, because they mostly sleep. A round trip over
//! the kernel's loopback then costs only two thread switches (15 us). Between two hosts it also
//! wakes an idle core, which alone takes 70 us on a virtual machine.

use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::payload::NumberedMessage;
use crate::plan::{EndRole, MeasurementOutcome, Plan, ProgramSockets, What};
use crate::samples::{per_second, ping_pong};
use crate::sockets::at;
use pollux::{Node, Setup, pinned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

const BACKLOG: usize = 128;

/// The socket calls that the program makes.
trait Sockets {
    type Listener;
    type Stream: Read + Write;

    fn listen(&self) -> io::Result<(Self::Listener, SocketAddr)>;
    fn accept(&self, listener: &Self::Listener) -> io::Result<Self::Stream>;
    fn connect(&self, to: SocketAddr) -> io::Result<Self::Stream>;
}

/// The kernel's sockets. The server listens at this address.
struct Kernel(IpAddr);

impl Sockets for Kernel {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen(&self) -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind((self.0, 0))?;
        let at = listener.local_addr()?;
        Ok((listener, at))
    }

    fn accept(&self, listener: &TcpListener) -> io::Result<TcpStream> {
        sent_at_once(listener.accept()?.0)
    }

    fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        sent_at_once(TcpStream::connect(to)?)
    }
}

/// Disables the Nagle algorithm, as the library's sockets do by default.
fn sent_at_once(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

macro_rules! impl_sockets {
    ($($module:ident)::+) => {
        impl Sockets for $($module)::+::Interface {
            type Listener = $($module)::+::TcpListener;
            type Stream = $($module)::+::TcpStream;

            fn listen(&self) -> io::Result<(Self::Listener, SocketAddr)> {
                let listener = self.tcp_listen(at(EndRole::Server), BACKLOG)?;
                Ok((listener, at(EndRole::Server)))
            }

            fn accept(&self, listener: &Self::Listener) -> io::Result<Self::Stream> {
                Ok(listener.accept()?.0)
            }

            fn connect(&self, to: SocketAddr) -> io::Result<Self::Stream> {
                self.tcp_connect(to)
            }
        }
    };
}

impl_sockets!(pollux);
impl_sockets!(pinned);

/// Runs one end. Only the client returns an outcome.
pub fn play(
    plan: &Plan,
    role: EndRole,
    sockets: ProgramSockets,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    match sockets {
        ProgramSockets::Kernel => {
            let kernel = Kernel(plan.host.unwrap_or(Ipv4Addr::LOCALHOST.into()));
            play_with(&kernel, plan, role, exchange)
        }
        ProgramSockets::Inline => {
            let interface = setup(plan, role)?.up()?;
            play_with(&interface, plan, role, exchange)
        }
        ProgramSockets::Pinned => {
            let interface = setup(plan, role)?.up_pinned(pinned::Config::default())?;
            play_with(&interface, plan, role, exchange)
        }
    }
}

fn setup(plan: &Plan, role: EndRole) -> Result<Setup, PerfError> {
    let setup = Node::open(plan.device(role)?)?.interface("ib0").mode(plan.transport.mode());
    Ok(setup.address(&format!("{}/24", at(role).ip())))
}

fn play_with(
    sockets: &impl Sockets,
    plan: &Plan,
    role: EndRole,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    match role {
        EndRole::Server => {
            let (listener, at) = sockets.listen()?;
            exchange.send(&at)?;
            exchange.begin(plan)?;
            exchange.add_wrong_payloads(serve(sockets, &listener, plan)?);
            Ok(None)
        }
        EndRole::Client => {
            let to = exchange.receive()?;
            exchange.begin(plan)?;
            let mut message = NumberedMessage::new(plan.bytes as usize, !plan.unchecked);
            let outcome = measure(sockets, plan, to, &mut message);
            exchange.add_wrong_payloads(message.wrong());
            // A connection without data ends the server.
            drop(sockets.connect(to)?);
            outcome.map(Some)
        }
    }
}

/// Echoes the requests of one connection after the other, until a connection ends without a
/// request. Returns the number of requests with a wrong payload.
fn serve<S: Sockets>(sockets: &S, listener: &S::Listener, plan: &Plan) -> io::Result<u64> {
    let mut message = NumberedMessage::new(plan.bytes as usize, !plan.unchecked);
    loop {
        let mut stream = sockets.accept(listener)?;
        let mut requests = 0;
        while is_read(&mut stream, &mut message.bytes)? {
            stream.write_all(&message.bytes)?;
            message.check_request();
            requests += 1;
        }
        if requests == 0 {
            return Ok(message.wrong());
        }
    }
}

/// Fills the buffer with a request; returns `false` if the stream has ended.
fn is_read(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match stream.read_exact(buffer) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

fn measure<S: Sockets>(
    sockets: &S,
    plan: &Plan,
    to: SocketAddr,
    message: &mut NumberedMessage,
) -> Result<MeasurementOutcome, PerfError> {
    let mut round = |stream: &mut S::Stream| -> io::Result<()> {
        message.renew();
        stream.write_all(&message.bytes)?;
        stream.read_exact(&mut message.bytes)?;
        message.check_answer();
        Ok(())
    };
    #[expect(clippy::disallowed_methods, reason = "this is what is measured")]
    let begun = Instant::now();
    match plan.what {
        What::Lat => {
            let mut stream = sockets.connect(to)?;
            let opened = begun.elapsed();
            let mut latency =
                ping_pong(plan.duration, plan.per_second, || Ok(round(&mut stream)?))?;
            latency.first_ns += opened.as_nanos() as f64;
            Ok(MeasurementOutcome::Latency(latency))
        }
        What::Connect => {
            let mut connection = || -> Result<u64, PerfError> {
                round(&mut sockets.connect(to)?)?;
                Ok(1)
            };
            connection()?;
            let first_ns = Some(begun.elapsed().as_nanos() as f64);
            let per_second = per_second(plan.duration, connection)?.per_second;
            Ok(MeasurementOutcome::Connections { per_second, first_ns })
        }
        What::Bw | What::Rate => unreachable!("Plan::check refuses it"),
    }
}
