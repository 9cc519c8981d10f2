//! A server host of the demonstration: UDP echo, TCP echo, and a TCP sink that reports how much of
//! a stream arrived intact.

use super::pattern::{Pattern, ReceivedStream};
use pollux::{Interface, TcpListener, TcpStream, UdpSocket};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The port of the echo servers.
pub const ECHO: u16 = 7;
/// The port of the sink.
pub const SINK: u16 = 9;
/// Idle turns before a host sleeps, so that other hosts get its core.
const TURNS_AWAKE: u32 = 20_000;
const NAP: Duration = Duration::from_micros(200);

pub struct DemoHost {
    interface: Interface,
    datagrams: UdpSocket,
    echo: TcpListener,
    sink: TcpListener,
    streams: Vec<(TcpStream, Service)>,
    pattern: Pattern,
    buffer: Vec<u8>,
}

enum Service {
    Echo,
    Sink(ReceivedStream),
}

impl DemoHost {
    pub fn new(interface: Interface, ip: IpAddr) -> io::Result<Self> {
        let (echo, sink) = (SocketAddr::new(ip, ECHO), SocketAddr::new(ip, SINK));
        Ok(Self {
            datagrams: interface.udp_bind(echo)?,
            echo: interface.tcp_listen(echo, 4)?,
            sink: interface.tcp_listen(sink, 4)?,
            streams: Vec::new(),
            pattern: Pattern::new(),
            buffer: vec![0; 1 << 18],
            interface,
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this is how an idle host sleeps")]
    pub fn run(mut self, is_over: &AtomicBool) -> io::Result<()> {
        let mut idle = 0;
        while !is_over.load(Ordering::Relaxed) {
            let is_busy = self.turn()?;
            idle = if is_busy { 0 } else { idle + 1 };
            match idle {
                0 => {}
                1..TURNS_AWAKE => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<bool> {
        let is_busy = self.interface.step();
        while self.datagrams.is_readable() {
            let (len, from) = self.datagrams.recv_from(&mut self.buffer)?;
            self.datagrams.send_to(&self.buffer[..len], from)?;
        }
        for (listener, is_sink) in [(&self.echo, false), (&self.sink, true)] {
            while listener.is_ready() {
                let service =
                    if is_sink { Service::Sink(ReceivedStream::default()) } else { Service::Echo };
                self.streams.push((listener.accept()?.0, service));
            }
        }
        let (buffer, pattern) = (&mut self.buffer, &self.pattern);
        self.streams.retain_mut(|(stream, service)| {
            // An error only ends the stream here, because the client reports it.
            !stream.is_readable() || service.serve(stream, buffer, pattern).unwrap_or(false)
        });
        Ok(is_busy)
    }
}

impl Service {
    /// Handles received bytes. Returns whether the stream is still open.
    fn serve(
        &mut self,
        stream: &mut TcpStream,
        buffer: &mut [u8],
        pattern: &Pattern,
    ) -> io::Result<bool> {
        let len = stream.read(buffer)?;
        match self {
            Self::Echo => stream.write_all(&buffer[..len])?,
            Self::Sink(reception) => {
                reception.compare(pattern, &buffer[..len]);
                if len == 0 {
                    stream.write_all(&reception.to_bytes())?;
                }
            }
        }
        Ok(len > 0)
    }
}
