//! `pollux ping`: ICMP echo requests from a running node, with output in the style of ping(8).

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
    /// TTL, or hop limit, of each request: one more than the routers it may pass
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(1..))]
    ttl: Option<u8>,
    /// Number of requests, at least 1 [default: until a signal]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..))]
    count: Option<u32>,
    /// Interval between requests
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// How long the first request may wait for the node to start and its interface to come up; 0
    /// for no wait
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    wait: Duration,
}

/// How long requests after the first are retried.
const RETRY_MAX: Duration = Duration::from_secs(1);

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
    // The time of the output does not include the wait for the node.
    let mut begun = Instant::now();
    while !is_over() {
        let asked = Instant::now();
        let client = Client::new(&arguments.socket, timeout);
        let is_first = statistics.sent == 0;
        let answer = client.ask(&request, &mut |error, pause| {
            if is_first {
                progress.say(error, timeout);
            }
            let goes_on = wait(&wake, pause).is_ok() && !is_over();
            if is_first {
                begun = Instant::now();
            }
            goes_on
        });
        if is_over() && answer.is_err() {
            break;
        }
        match answer {
            // After the first request, a reply counts as lost if the node is busy or its interface
            // is down. A node that is gone is an error.
            Err(AskError::Later(lost)) if !is_first => {
                statistics.record(address, &PingOutcome::Lost { lost, from: None })?;
            }
            answer => statistics.record(address, &answer?)?,
        }
        timeout = RETRY_MAX;
        if arguments.count == Some(statistics.sent) {
            break;
        }
        wait(&wake, interval.saturating_sub(asked.elapsed()))?;
    }
    statistics.print_summary(address, begun.elapsed())?;
    Ok(if statistics.times.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Statistics {
    /// Counts a request, and prints its outcome.
    fn record(&mut self, address: &IpAddr, outcome: &PingOutcome) -> Result<(), OutputError> {
        self.sent += 1;
        if let PingOutcome::Answered { us, .. } = outcome {
            self.times.push(us / 1e3);
        }
        print(&line(self.sent, address, outcome))
    }

    fn print_summary(&self, address: &IpAddr, took: Duration) -> Result<(), OutputError> {
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
        let variance = self.times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
        let deviation = variance.sqrt();
        print(&format!("rtt min/avg/max/mdev = {least:.3}/{mean:.3}/{most:.3}/{deviation:.3} ms\n"))
    }
}

/// A line in the style of ping(8), also for a lost reply. `From` is the sender of the ICMP error,
/// if that is the reason.
fn line(sequence: u32, address: &IpAddr, outcome: &PingOutcome) -> String {
    match outcome {
        PingOutcome::Answered { bytes, ttl, us } => {
            let time = us / 1e3;
            format!(
                "{bytes} bytes from {address}: icmp_seq={sequence} ttl={ttl} time={time:.3} ms\n"
            )
        }
        PingOutcome::Lost { lost, from: Some(from) } => {
            format!("From {from}: icmp_seq={sequence} {lost}\n")
        }
        PingOutcome::Lost { lost, from: None } => format!("icmp_seq={sequence} {lost}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_icmp_error_is_printed_with_its_sender() {
        let address = "10.0.0.9".parse().expect("an address");
        let lost = |lost: &str, from| PingOutcome::Lost { lost: lost.into(), from };
        let silence = line(1, &address, &lost("no answer", None));
        assert_eq!(silence, "icmp_seq=1 no answer\n");
        let router = "10.0.0.254".parse().ok();
        let error = line(2, &address, &lost("destination host unreachable", router));
        assert_eq!(error, "From 10.0.0.254: icmp_seq=2 destination host unreachable\n");
        let reply = PingOutcome::Answered { bytes: 64, ttl: 63, us: 1234.5 };
        let reply = line(3, &address, &reply);
        assert_eq!(reply, "64 bytes from 10.0.0.9: icmp_seq=3 ttl=63 time=1.234 ms\n");
    }
}
