//! The measurements between two hosts of the demonstration.

use super::host::{ECHO, SINK};
use super::pattern::{Pattern, ReceivedStream};
use pollux::Interface;
use serde_json::{Value, json};
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

const MEASURED_FOR: Duration = Duration::from_millis(500);
/// The timeout of each step: ten times as long as a step takes.
pub const TIMEOUT: Duration = Duration::from_secs(10);
const WARM_UP: usize = 200;
/// Bytes of a message.
const BYTES: usize = 64;
/// Headers of IPv4 and ICMP.
const HEADERS: usize = 20 + 8;
/// Bytes of a write to a stream.
const PART: usize = 1 << 18;
/// The timeout of a reply to a datagram.
const LATE: Duration = Duration::from_millis(500);
/// Maximum number of requests without a reply in time. The fabric loses no datagram, but on a busy
/// machine a reply may be late.
const LOST_MAX: usize = 5;

pub struct RoundTrips {
    sorted: Vec<Duration>,
    total: Duration,
    /// Requests, including the warm-up.
    asked: usize,
    /// Requests without a reply in time.
    lost: usize,
}

impl RoundTrips {
    /// Repeats a round for [`MEASURED_FOR`], after a warm-up. A round returns its duration and the
    /// number of its requests.
    fn measure(
        mut round: impl FnMut() -> Result<(Duration, usize), Box<dyn Error>>,
    ) -> Result<Self, Box<dyn Error>> {
        let (mut rounds, mut asked) = (0, 0);
        let mut next = || {
            let done = round().map_err(|error| format!("{error}, after {rounds} complete rounds"));
            let (took, tries) = done?;
            (rounds, asked) = (rounds + 1, asked + tries);
            Ok::<_, Box<dyn Error>>(took)
        };
        for _ in 0..WARM_UP {
            next()?;
        }
        let (mut sorted, mut total) = (Vec::new(), Duration::ZERO);
        while total < MEASURED_FOR {
            let took = next()?;
            total += took;
            sorted.push(took);
        }
        sorted.sort_unstable();
        Ok(Self { sorted, total, asked, lost: asked - rounds })
    }

    /// A quantile of the times, in microseconds.
    fn at(&self, thousandths: usize) -> f64 {
        let rank = (self.sorted.len() * thousandths).div_ceil(1000);
        let found = self.sorted.get(rank.saturating_sub(1));
        found.map_or(0.0, |time| time.as_nanos() as f64 / 1e3)
    }

    pub fn text(&self) -> String {
        let (median, late) = (self.at(500), self.at(999));
        let lost = if self.lost > 0 { format!(", {} late", self.lost) } else { String::new() };
        format!("{median:.1} us, 99.9 % within {late:.1} us, of {}{lost}", self.sorted.len())
    }

    pub fn json(&self) -> Value {
        json!({
            "median_us": self.at(500),
            "p999_us": self.at(999),
            "min_us": self.at(0),
            "max_us": self.at(1000),
            "count": self.sorted.len(),
            "warm_up": WARM_UP,
            "asked": self.asked,
            "lost": self.lost,
            "seconds": self.total.as_secs_f64(),
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
pub fn timed<R>(f: impl FnOnce() -> R) -> (R, Duration) {
    let begun = Instant::now();
    let result = f();
    (result, begun.elapsed())
}

pub fn ping(interface: &Interface, to: IpAddr) -> Result<RoundTrips, Box<dyn Error>> {
    RoundTrips::measure(|| Ok((interface.ping(to, BYTES, TIMEOUT)?, 1)))
}

/// Checks the MTU of a path: an echo of that size passes, and a longer one does not. The MTU is
/// 2,044 bytes for UD datagrams and 65,520 for connections, so this shows which transport is used.
/// Returns the data bytes of the echo.
pub fn longest(interface: &Interface, to: IpAddr, mtu: u32) -> Result<usize, Box<dyn Error>> {
    let longest = mtu as usize - HEADERS;
    interface.ping(to, longest, TIMEOUT)?;
    match interface.ping(to, longest + 1, TIMEOUT) {
        Err(error) if error.kind() != ErrorKind::TimedOut => Ok(longest),
        Err(error) => Err(error.into()),
        Ok(_) => Err(format!("an echo of {} bytes went there by one packet", longest + 1).into()),
    }
}

pub fn udp(interface: &Interface, from: IpAddr, to: IpAddr) -> Result<RoundTrips, Box<dyn Error>> {
    let socket = interface.udp_bind(SocketAddr::new(from, 0))?;
    socket.connect(SocketAddr::new(to, ECHO))?;
    socket.set_read_timeout(Some(LATE))?;
    let (mut number, mut lost) = (0_u64, 0);
    RoundTrips::measure(|| {
        for tries in 1.. {
            number += 1;
            let bytes = numbered(number);
            let (answer, took) = timed(|| {
                socket.send(&bytes)?;
                let mut answer = [0; BYTES];
                // A late reply belongs to an earlier request.
                while answer != bytes {
                    socket.recv_from(&mut answer)?;
                }
                Ok::<_, std::io::Error>(())
            });
            match answer {
                Ok(()) => return Ok((took, tries)),
                Err(error) if error.kind() == ErrorKind::TimedOut && lost < LOST_MAX => lost += 1,
                Err(error) => return Err(error.into()),
            }
        }
        unreachable!("it ends when it was answered, or failed")
    })
}

pub fn tcp(interface: &Interface, to: IpAddr) -> Result<RoundTrips, Box<dyn Error>> {
    let mut stream = interface.tcp_connect(SocketAddr::new(to, ECHO))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut number = 0;
    RoundTrips::measure(|| {
        number += 1;
        let (request, mut response) = (numbered(number), [0; BYTES]);
        let (answer, took) = timed(|| {
            stream.write_all(&request)?;
            stream.read_exact(&mut response)
        });
        answer?;
        match response == request {
            true => Ok((took, 1)),
            false => Err(format!("response {number} is not what was asked").into()),
        }
    })
}

fn numbered(number: u64) -> [u8; BYTES] {
    let mut bytes = [7; BYTES];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

pub struct Streamed {
    bytes: u64,
    took: Duration,
}

impl Streamed {
    pub fn gbit_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.took.as_secs_f64() / 1e9
    }

    pub fn json(&self) -> Value {
        json!({ "bytes": self.bytes, "seconds": self.took.as_secs_f64() })
    }
}

/// Measures a TCP stream. The receiver has compared every byte when this returns.
pub fn stream(interface: &Interface, to: IpAddr) -> Result<Streamed, Box<dyn Error>> {
    let mut stream = interface.tcp_connect(SocketAddr::new(to, SINK))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let pattern = Pattern::new();
    let (mut sent, mut took) = (0, Duration::ZERO);
    while took < MEASURED_FOR {
        let part = pattern.at(sent, PART);
        let (written, part_took) = timed(|| stream.write_all(part));
        written?;
        sent += part.len() as u64;
        took += part_took;
    }
    let mut reply = [0; 16];
    let (done, rest) = timed(|| {
        stream.shutdown(Shutdown::Write)?;
        stream.read_exact(&mut reply)
    });
    done?;
    match ReceivedStream::from_bytes(reply) {
        ReceivedStream { first_wrong: Some(at), .. } => {
            Err(format!("byte {at} of {sent} arrived with another value").into())
        }
        ReceivedStream { bytes, .. } if bytes != sent => {
            Err(format!("of {sent} bytes, {bytes} have come").into())
        }
        ReceivedStream { .. } => Ok(Streamed { bytes: sent, took: took + rest }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_a_known_distribution() {
        let sorted: Vec<_> = (1..=2000).map(Duration::from_micros).collect();
        let total = sorted.iter().sum();
        let trips = RoundTrips { sorted, total, asked: 2200, lost: 0 };
        let found = [0, 500, 990, 999, 1000].map(|thousandths| trips.at(thousandths));
        assert_eq!(found, [1.0, 1000.0, 1980.0, 1998.0, 2000.0]);
        let odd = [3, 5, 9].map(Duration::from_micros).to_vec();
        let trips = RoundTrips { sorted: odd, total, asked: 3, lost: 0 };
        assert_eq!([0, 500, 999].map(|thousandths| trips.at(thousandths)), [3.0, 5.0, 9.0]);
    }

    #[test]
    fn rounds_are_counted_without_those_that_warm_up() {
        let mut rounds = 0;
        let trips = RoundTrips::measure(|| {
            rounds += 1;
            // The third round needs two requests.
            Ok((Duration::from_millis(10), if rounds == 3 { 2 } else { 1 }))
        });
        let trips = trips.expect("nothing fails");
        assert_eq!((trips.sorted.len(), rounds), (50, WARM_UP + 50));
        assert_eq!((trips.asked, trips.lost), (rounds + 1, 1));
        assert_eq!(trips.total, MEASURED_FOR);
    }

    #[test]
    fn a_failure_reports_completed_rounds() {
        let mut rounds = 0;
        let failed = RoundTrips::measure(|| {
            rounds += 1;
            if rounds == 8 { Err("timed out".into()) } else { Ok((Duration::from_micros(1), 1)) }
        });
        let error = failed.err().expect("the eighth fails").to_string();
        assert_eq!(error, "timed out, after 7 complete rounds");
    }
}
