//! What one host of the demonstration finds out about another.

use super::host::{ECHO, SINK};
use pollux::Interface;
use serde_json::{Value, json};
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

/// How long each figure is measured.
const MEASURED_FOR: Duration = Duration::from_millis(500);
/// How long anything may take. Nothing takes a tenth of it.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Rounds that come before, so that what is measured is what stays.
const WARM_UP: usize = 200;
/// What goes there and back.
const OCTETS: usize = 64;
/// How long a datagram is waited for, and how many may be lost: nothing here loses any, but a busy
/// machine may be late.
const LATE: Duration = Duration::from_millis(500);
const LOST_MAX: usize = 5;

/// How long round trips take.
pub struct RoundTrips {
    sorted: Vec<Duration>,
}

impl RoundTrips {
    /// Goes there and back as often as the time allows.
    fn measure(
        mut round: impl FnMut() -> Result<Duration, Box<dyn Error>>,
    ) -> Result<Self, Box<dyn Error>> {
        for _ in 0..WARM_UP {
            round()?;
        }
        let (mut sorted, mut total) = (Vec::new(), Duration::ZERO);
        while total < MEASURED_FOR {
            let took = round()?;
            total += took;
            sorted.push(took);
        }
        sorted.sort_unstable();
        Ok(Self { sorted })
    }

    /// The one that so many thousandths are not slower than.
    fn at(&self, thousandths: usize) -> f64 {
        let found = self.sorted.get(self.sorted.len() * thousandths / 1000);
        found.map_or(0.0, |time| time.as_nanos() as f64 / 1e3)
    }

    /// Microseconds, for people.
    pub fn text(&self) -> String {
        let (median, late) = (self.at(500), self.at(999));
        format!("{median:.1} us, 99.9 % within {late:.1} us, of {}", self.sorted.len())
    }

    /// And for programs.
    pub fn json(&self) -> Value {
        json!({ "median_us": self.at(500), "p999_us": self.at(999), "count": self.sorted.len() })
    }
}

/// How long something takes.
#[expect(clippy::disallowed_methods, reason = "it measures")]
pub fn timed<R>(f: impl FnOnce() -> R) -> (R, Duration) {
    let begun = Instant::now();
    let result = f();
    (result, begun.elapsed())
}

/// Echoes of ICMP.
pub fn ping(interface: &Interface, to: IpAddr) -> Result<RoundTrips, Box<dyn Error>> {
    RoundTrips::measure(|| Ok(interface.ping(to, OCTETS, PATIENCE)?))
}

/// Datagrams there and back.
pub fn udp(interface: &Interface, from: IpAddr, to: IpAddr) -> Result<RoundTrips, Box<dyn Error>> {
    let socket = interface.udp_bind(SocketAddr::new(from, 0))?;
    socket.connect(SocketAddr::new(to, ECHO))?;
    socket.set_read_timeout(Some(LATE));
    let (mut number, mut lost) = (0_u64, 0);
    RoundTrips::measure(|| {
        loop {
            number += 1;
            let mut octets = [0; OCTETS];
            octets[..8].copy_from_slice(&number.to_be_bytes());
            let (answer, took) = timed(|| {
                socket.send(&octets)?;
                let mut answer = [0; OCTETS];
                // One that came late is no answer to this.
                while answer != octets {
                    socket.recv_from(&mut answer)?;
                }
                Ok::<_, std::io::Error>(())
            });
            match answer {
                Ok(()) => return Ok(took),
                Err(error) if error.kind() == ErrorKind::TimedOut && lost < LOST_MAX => lost += 1,
                Err(error) => return Err(error.into()),
            }
        }
    })
}

/// Requests and responses by one connection.
pub fn tcp(interface: &Interface, to: IpAddr) -> Result<RoundTrips, Box<dyn Error>> {
    let mut stream = interface.tcp_connect(SocketAddr::new(to, ECHO))?;
    stream.set_read_timeout(Some(PATIENCE));
    RoundTrips::measure(|| {
        let (answer, took) = timed(|| {
            stream.write_all(&[7; OCTETS])?;
            stream.read_exact(&mut [0; OCTETS])
        });
        Ok(answer.map(|()| took)?)
    })
}

/// One stream, in gigabits a second. All that was written has come when this says so.
pub fn stream(interface: &Interface, to: IpAddr) -> Result<f64, Box<dyn Error>> {
    let mut stream = interface.tcp_connect(SocketAddr::new(to, SINK))?;
    stream.set_read_timeout(Some(PATIENCE));
    stream.set_write_timeout(Some(PATIENCE));
    let part = vec![7; 1 << 18];
    let (mut sent, mut took) = (0, Duration::ZERO);
    while took < MEASURED_FOR {
        let (written, part_took) = timed(|| stream.write_all(&part));
        written?;
        sent += part.len() as u64;
        took += part_took;
    }
    let mut came = [0; 8];
    let (told, rest) = timed(|| {
        stream.shutdown(Shutdown::Write)?;
        stream.read_exact(&mut came)
    });
    told?;
    let came = u64::from_be_bytes(came);
    if came != sent {
        return Err(format!("of {sent} octets, {came} have come").into());
    }
    Ok(sent as f64 * 8.0 / (took + rest).as_secs_f64() / 1e9)
}
