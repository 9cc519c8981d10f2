//! `pollux ping`: ICMP echo requests from a running node, with the output of ping(8).

use crate::asking::{Progress, seconds};
use crate::output::{OutputError, print};
use crate::signals::{signals, wait};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use pollux_node::admin::client::{AskError, Client};
use pollux_node::admin::reply::PingOutcome;
use pollux_node::admin::request::AdminRequest;
use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct PingArguments {
    /// Address to ping
    address: IpAddr,
    /// Socket of the node that sends the requests
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Interface to send from [default: the interface with a route to the address]
    #[arg(long, value_name = "INTERFACE")]
    from: Option<String>,
    /// Data bytes of each request
    #[arg(long, value_name = "N", default_value_t = 56)]
    size: u16,
    /// TTL, or hop limit, of each request: how many routers it may pass
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(1..))]
    ttl: Option<u8>,
    /// Number of requests, at least 1 [default: until a signal]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    count: Option<u32>,
    /// Interval between requests
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// How long to wait before the first request for a node that is starting, and for its interface
    /// to come up; 0 for no wait
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    wait: Duration,
}

/// How long later requests wait for a busy node.
const BUSY_MAX: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Statistics {
    sent: u32,
    /// Round-trip times in milliseconds.
    times: Vec<f64>,
}

/// Sends requests and prints replies: exits with 0 after any reply, 1 after none.
#[expect(clippy::disallowed_methods, reason = "the total time is part of the output")]
pub fn ping(arguments: &PingArguments) -> Result<ExitCode, Box<dyn Error>> {
    let PingArguments { address, size, interval, .. } = arguments;
    let request = AdminRequest::Ping {
        address: *address,
        bytes: (*size).into(),
        ttl: arguments.ttl,
        interface: arguments.from.clone(),
    };
    let (wake, is_over) = signals()?;
    let is_over = || is_over.load(Ordering::Relaxed);
    let headers = if address.is_ipv4() { 28 } else { 48 };
    print(&format!("PING {address} {size}({}) bytes of data.\n", u32::from(*size) + headers))?;
    let (mut statistics, mut timeout) = (Statistics::default(), arguments.wait);
    let mut progress = Progress::default();
    let mut begun = Instant::now();
    while !is_over() {
        let asked = Instant::now();
        let client = Client::new(&arguments.socket, timeout);
        let answer = client.ask(&request, &mut |error, pause| {
            if statistics.sent == 0 {
                progress.say(error, timeout);
            }
            wait(&wake, pause).is_ok() && !is_over()
        });
        if is_over() && answer.is_err() {
            break;
        }
        match answer {
            // After the first request, a node that is down counts as a lost reply.
            Err(AskError::Later(why)) if statistics.sent > 0 => {
                statistics.lost(*address, &why)?;
            }
            answer => {
                if statistics.sent == 0 {
                    (begun, timeout) = (asked, BUSY_MAX);
                }
                statistics.take(address, &answer?)?;
            }
        }
        if arguments.count == Some(statistics.sent) {
            break;
        }
        wait(&wake, interval.saturating_sub(asked.elapsed()))?;
    }
    statistics.say(address, begun.elapsed())?;
    Ok(if statistics.times.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Statistics {
    fn take(&mut self, address: &IpAddr, outcome: &PingOutcome) -> Result<(), OutputError> {
        let (bytes, ttl, us) = match outcome {
            PingOutcome::Answered { bytes, ttl, us } => (bytes, ttl, us),
            PingOutcome::Lost { lost, from } => {
                return self.lost(from.unwrap_or(*address), lost);
            }
        };
        self.sent += 1;
        let (sequence, time) = (self.sent, us / 1e3);
        self.times.push(time);
        print(&format!(
            "{bytes} bytes from {address}: icmp_seq={sequence} ttl={ttl} time={time:.3} ms\n"
        ))
    }

    fn lost(&mut self, from: IpAddr, why: &str) -> Result<(), OutputError> {
        self.sent += 1;
        print(&format!("From {from}: icmp_seq={} {why}\n", self.sent))
    }

    fn say(&self, address: &IpAddr, took: Duration) -> Result<(), OutputError> {
        let (sent, received) = (self.sent, self.times.len());
        let lost = 100.0 * (1.0 - received as f64 / f64::from(sent.max(1)));
        print(&format!(
            "\n--- {address} ping statistics ---\n{sent} packets transmitted, {received} received, \
             {lost:.0}% packet loss, time {}ms\n",
            took.as_millis()
        ))?;
        if received == 0 {
            return Ok(());
        }
        let count = received as f64;
        let mean = self.times.iter().sum::<f64>() / count;
        let least = self.times.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.times.iter().copied().fold(0.0, f64::max);
        let square = self.times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
        let deviation = square.sqrt();
        print(&format!("rtt min/avg/max/mdev = {least:.3}/{mean:.3}/{most:.3}/{deviation:.3} ms\n"))
    }
}
