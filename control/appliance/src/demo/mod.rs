//! `pollux demo`: a fabric, three hosts, all modes, and measurements, in one process without
//! configuration.
//!
//! ```text
//!   host1: client, in this thread --+
//!   host2: server ------------------+-- switch1, and a subnet manager in the thread of the fabric
//!   host3: server ------------------+
//! ```
//!
//! Every printed line is an observation. The first failure ends the demonstration with the reason,
//! the remedy and a failure status. With `--json`, progress goes to standard error.

mod host;
mod measure;
mod pattern;

use crate::output::say;
use crate::table::{Column, table};
use clap::Args;
use host::DemoHost;
use measure::{RoundTrips, TIMEOUT, timed};
use pollux::{Interface, Mode, NeighborRoute, Node};
use pollux_node::fabric::Embedded;
use serde_json::{Value, json};
use std::error::Error;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

#[derive(Args)]
pub struct DemoArguments {
    /// Print the figures as JSON, and progress to standard error
    #[arg(long)]
    json: bool,
}

type DemoResult<T> = Result<T, Box<dyn Error>>;

const MODES: [(Mode, &str, &str); 3] = [
    (Mode::Ud, "UD", "datagrams"),
    (Mode::Rc, "RC", "reliable connections"),
    (Mode::Uc, "UC", "unreliable connections"),
];

/// The remedy when the fabric does not start.
const NO_FABRIC: &str = "The fabric of this process has a socket in the folder TMPDIR, or /tmp: \
    let TMPDIR name a folder that you may write to.";
/// The remedy after another failure.
const FAILED: &str = "All of it runs in this process, so a machine that is busy otherwise may be \
    too slow for it: run it again while a core or two are free. If it fails again, it is a defect \
    of Pollux: report what is printed above, the number of cores and what uname -a prints.";

pub fn demo(arguments: &DemoArguments) -> DemoResult<()> {
    let progress = Progress { json: arguments.json };
    progress.line("An InfiniBand fabric in software, and IP over it, in this process alone.\n");
    let fabric = progress.step("a switch, three hosts, a subnet manager", || {
        let fabric = Embedded::start("single:3")?;
        Ok((fabric, String::new()))
    });
    let fabric = fabric.map_err(|error| format!("{error}\n{NO_FABRIC}"))?;
    let mut rows = Vec::new();
    for (mode, name, by) in MODES {
        progress.line(&format!("\n{name}: {by}"));
        let row = run_mode(&progress, &fabric, mode, name);
        rows.push(row.map_err(|error| format!("{name}: {error}\n{FAILED}"))?);
    }
    match arguments.json {
        true => say(&json!({ "hosts": 3, "switches": 1, "modes": rows }).to_string()),
        false => say(&format!(
            "\nRound trips of 64 bytes in microseconds, and one stream:\n\n{}",
            figures(&rows)
        )),
    }
    Ok(())
}

fn run_mode(progress: &Progress, fabric: &Embedded, mode: Mode, name: &str) -> DemoResult<Value> {
    let is_over = AtomicBool::new(false);
    let (sender, states) = sync_channel(2);
    std::thread::scope(|scope| {
        // Ends the servers, also after an error.
        let _end = EndServers(&is_over);
        for host in [2, 3] {
            let (sender, is_over) = (sender.clone(), &is_over);
            scope.spawn(move || serve(fabric, mode, host, &sender, is_over));
        }
        drop(sender);
        let row = measure_mode(progress, fabric, mode, name, &states);
        // A failed server may be the cause of an error of the client.
        match (row, states.try_recv()) {
            (Ok(_), Ok(Err(host))) => Err(host.into()),
            (Err(error), Ok(Err(host))) => Err(format!("{error}; {host}").into()),
            (row, _) => row,
        }
    })
}

fn measure_mode(
    progress: &Progress,
    fabric: &Embedded,
    mode: Mode,
    name: &str,
    states: &Receiver<Result<(), String>>,
) -> DemoResult<Value> {
    let (interface, up) = come_up(progress, fabric, mode, states)?;
    let (first, mtu) = resolve(progress, &interface, mode, address(2))?;
    let (second, _) = resolve(progress, &interface, mode, address(3))?;
    let to = address(2);
    let longest = progress.step("the longest packet, and none longer", || {
        let bytes = measure::longest(&interface, to, mtu)?;
        Ok((bytes, format!("an echo of {bytes} bytes")))
    })?;
    let trips = |what: &str, f: &dyn Fn() -> DemoResult<RoundTrips>| {
        progress.step(what, || {
            let trips = f()?;
            let text = trips.text();
            Ok((trips.json(), text))
        })
    };
    let ping = trips("ping", &|| measure::ping(&interface, to))?;
    let udp = trips("UDP there and back", &|| measure::udp(&interface, address(1), to))?;
    let tcp = trips("TCP, request and response", &|| measure::tcp(&interface, to))?;
    let stream = progress.step("TCP, one stream", || {
        let stream = measure::stream(&interface, to)?;
        let text = format!("{:.1} Gb/s", stream.gbit_s());
        Ok((stream, text))
    })?;
    Ok(json!({
        "mode": name,
        "up_ms": up.as_secs_f64() * 1e3,
        "resolved": [first, second],
        "longest_echo_bytes": longest,
        "ping": ping,
        "udp": udp,
        "tcp": tcp,
        "stream": stream.json(),
        "stream_gbit_s": stream.gbit_s(),
    }))
}

/// Brings up all three interfaces; returns that of the client, and the time that it took.
fn come_up(
    progress: &Progress,
    fabric: &Embedded,
    mode: Mode,
    states: &Receiver<Result<(), String>>,
) -> DemoResult<(Interface, Duration)> {
    let mut took = Duration::ZERO;
    let interface = progress.step("three interfaces join the broadcast group", || {
        let (interface, time) = timed(|| -> DemoResult<_> {
            let interface = up(fabric, mode, 1)?;
            for _ in [2, 3] {
                // The interface of the client advances only in its calls.
                loop {
                    match states.try_recv() {
                        Ok(came_up) => break came_up?,
                        Err(std::sync::mpsc::TryRecvError::Empty) => interface.step(),
                        Err(error) => return Err(error.into()),
                    };
                }
            }
            Ok(interface)
        });
        took = time;
        Ok((interface?, format!("{} ms", took.as_millis())))
    })?;
    Ok((interface, took))
}

/// Resolves an address, and waits for the connection of the mode. Also returns the MTU.
fn resolve(
    progress: &Progress,
    interface: &Interface,
    mode: Mode,
    to: IpAddr,
) -> DemoResult<(Value, u32)> {
    progress.step(&format!("{to} is resolved, and pinged"), || {
        let (found, took) = timed(|| find(interface, mode, to));
        let one = found?;
        let by = one.connection.map_or("datagram".into(), |kind| format!("{kind} connection"));
        let (ms, mtu, qpn) = (took.as_secs_f64() * 1e3, one.mtu, one.link.qpn.0);
        let text = format!("{ms:.1} ms: queue pair {qpn} of {}, by {by}, MTU {mtu}", one.link.gid);
        let gid = one.link.gid.to_string();
        let row = json!({ "address": to, "gid": gid, "qpn": qpn, "by": by, "mtu": mtu, "ms": ms });
        Ok(((row, mtu), text))
    })
}

/// Pings until the transport to a host is that of the mode.
fn find(interface: &Interface, mode: Mode, to: IpAddr) -> DemoResult<NeighborRoute> {
    let mut rest = TIMEOUT;
    loop {
        let (answer, took) = timed(|| interface.ping(to, 56, rest));
        answer?;
        let known = interface.neighbors().into_iter().find(|one| one.addresses.contains(&to));
        let is_expected = |one: &NeighborRoute| {
            one.connection.map(|kind| kind.to_string()).as_deref() == kind(mode)
        };
        match known.filter(is_expected) {
            Some(one) => return Ok(one),
            None if rest <= took => {
                return Err(format!(
                    "packets to {to} are not sent by the transport of mode {mode}"
                )
                .into());
            }
            None => rest -= took,
        }
    }
}

/// The name of the connections of a mode; `None` for datagrams.
const fn kind(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Rc => Some("RC"),
        Mode::Uc => Some("UC"),
        _ => None,
    }
}

/// Runs host 2 or 3. Sends whether the host came up, and later a failure.
fn serve(
    fabric: &Embedded,
    mode: Mode,
    host: u8,
    sender: &SyncSender<Result<(), String>>,
    is_over: &AtomicBool,
) {
    let run = || -> DemoResult<()> {
        let serving = DemoHost::new(up(fabric, mode, host)?, address(host))?;
        sender.send(Ok(()))?;
        Ok(serving.run(is_over)?)
    };
    if let Err(error) = run() {
        // The client may have ended.
        let _ = sender.send(Err(format!("host{host}: {error}")));
    }
}

fn up(fabric: &Embedded, mode: Mode, host: u8) -> DemoResult<Interface> {
    let setup = Node::open(&fabric.port(&format!("host{host}")))?.interface("ib0");
    let setup = setup.address(&format!("{}/24", address(host))).mode(mode).timeout(TIMEOUT);
    Ok(setup.up()?)
}

const fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
}

fn figures(rows: &[Value]) -> String {
    fn us(value: &Value) -> String {
        format!("{:.1}", value.as_f64().unwrap_or_default())
    }
    let columns: [Column<Value>; 8] = [
        ("mode", |row| row["mode"].as_str().unwrap_or_default().into()),
        ("MTU", |row| row["resolved"][0]["mtu"].to_string()),
        ("ping", |row| us(&row["ping"]["median_us"])),
        ("UDP", |row| us(&row["udp"]["median_us"])),
        ("UDP 99.9 %", |row| us(&row["udp"]["p999_us"])),
        ("TCP", |row| us(&row["tcp"]["median_us"])),
        ("TCP 99.9 %", |row| us(&row["tcp"]["p999_us"])),
        ("stream", |row| format!("{} Gb/s", us(&row["stream_gbit_s"]))),
    ];
    table(rows, &columns)
}

/// Ends the servers when it is dropped.
struct EndServers<'a>(&'a AtomicBool);

impl Drop for EndServers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Progress {
    json: bool,
}

impl Progress {
    fn line(&self, line: &str) {
        self.print(&format!("{line}\n"));
    }

    fn step<T>(&self, what: &str, f: impl FnOnce() -> DemoResult<(T, String)>) -> DemoResult<T> {
        self.print(&format!("  {what:<44}"));
        match f() {
            Ok((result, text)) => {
                self.line(if text.is_empty() { "done" } else { &text });
                Ok(result)
            }
            Err(error) => {
                self.line("failed");
                Err(format!("{what}: {error}").into())
            }
        }
    }

    /// Write errors are ignored: the demonstration needs no reader.
    fn print(&self, text: &str) {
        let _ = match self.json {
            true => write!(std::io::stderr(), "{text}"),
            false => write!(std::io::stdout(), "{text}").and_then(|()| std::io::stdout().flush()),
        };
    }
}
