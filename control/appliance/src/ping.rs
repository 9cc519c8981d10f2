//! `pollux ping`: whether somebody answers a running node, told as ping tells it.

use crate::show::ask;
use crate::signals::{say, signals};
use clap::Args;
use serde_json::Value;
use std::error::Error;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Whom to ask.
#[derive(Args)]
pub struct Arguments {
    /// Who is to answer
    address: IpAddr,
    /// The socket of the node that asks
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The interface to ask from; without it, the one that has a route there
    #[arg(long, value_name = "INTERFACE")]
    from: Option<String>,
    /// Octets of data
    #[arg(long, value_name = "N", default_value_t = 56)]
    size: u16,
    /// How often; without it, until a signal ends it
    #[arg(long, value_name = "N")]
    count: Option<u32>,
    /// Seconds between two requests
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
}

/// What has come back.
#[derive(Default)]
struct Statistics {
    sent: u32,
    /// In milliseconds.
    times: Vec<f64>,
}

/// Asks, and says what came of it: 0 if there was an answer, 1 if there was none.
#[expect(clippy::disallowed_methods, reason = "how long all of it took is part of what is said")]
pub fn ping(arguments: &Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let Arguments { address, size, .. } = arguments;
    let from = arguments.from.as_deref().unwrap_or_default();
    let question = format!("ping {address} {size} {from}");
    let interval = Duration::try_from_secs_f64(arguments.interval)?;
    let (wake, is_over) = signals()?;
    let headers = if address.is_ipv4() { 28 } else { 48 };
    say(&format!("PING {address} {size}({}) bytes of data.", u32::from(*size) + headers));
    let (begun, mut statistics) = (Instant::now(), Statistics::default());
    while !is_over.load(Ordering::Relaxed) {
        statistics.sent += 1;
        let asked = Instant::now();
        let answer = ask(&arguments.socket, &question)?;
        statistics.take(address, &answer);
        if arguments.count == Some(statistics.sent) {
            break;
        }
        wait(&wake, interval.saturating_sub(asked.elapsed()))?;
    }
    statistics.say(address, begun.elapsed());
    Ok(if statistics.times.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Until the time is over, or a signal comes.
fn wait(mut wake: &UnixStream, time: Duration) -> std::io::Result<()> {
    if !time.is_zero() {
        wake.set_read_timeout(Some(time))?;
        // Nothing to read means that the time is over.
        let _ = wake.read(&mut [0]);
    }
    Ok(())
}

impl Statistics {
    fn take(&mut self, address: &IpAddr, answer: &Value) {
        let sequence = self.sent;
        let Some(us) = answer["us"].as_f64() else {
            let lost = answer["lost"].as_str().unwrap_or("no answer");
            return say(&format!("From {address}: icmp_seq={sequence} {lost}"));
        };
        let (octets, ttl) = (&answer["octets"], &answer["ttl"]);
        let time = us / 1e3;
        self.times.push(time);
        say(&format!(
            "{octets} bytes from {address}: icmp_seq={sequence} ttl={ttl} time={time:.3} ms"
        ));
    }

    fn say(&self, address: &IpAddr, took: Duration) {
        let (sent, received) = (self.sent, self.times.len());
        let lost = 100.0 * (1.0 - received as f64 / f64::from(sent.max(1)));
        say(&format!(
            "\n--- {address} ping statistics ---\n{sent} packets transmitted, {received} received, \
             {lost:.0}% packet loss, time {}ms",
            took.as_millis()
        ));
        if received > 0 {
            let count = received as f64;
            let mean = self.times.iter().sum::<f64>() / count;
            let least = self.times.iter().copied().fold(f64::INFINITY, f64::min);
            let most = self.times.iter().copied().fold(0.0, f64::max);
            let square = self.times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
            let deviation = square.sqrt();
            say(&format!(
                "rtt min/avg/max/mdev = {least:.3}/{mean:.3}/{most:.3}/{deviation:.3} ms"
            ));
        }
    }
}
