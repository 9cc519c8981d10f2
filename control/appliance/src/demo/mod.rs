//! `pollux demo`: all of it in one process, without configuration: a fabric, interfaces over
//! datagrams and over both kinds of connection, and what they do for sockets.
//!
//! ```text
//!   host1: asks, in this thread --+
//!   host2: serves ----------------+-- switch1, and a subnet manager in the fabric's thread
//!   host3: serves ----------------+
//! ```
//!
//! What it says it has seen. The first thing that does not go as it should ends it, with a reason,
//! what to do and a bad status. With `--json`, progress goes to standard error.

mod host;
mod measure;
mod pattern;

use crate::output::say;
use crate::show::table;
use clap::Args;
use host::Host;
use measure::{PATIENCE, RoundTrips, timed};
use pollux::{Interface, Mode, Neighbor, Node};
use pollux_node::fabric::Embedded;
use serde_json::{Value, json};
use std::error::Error;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// How the demonstration is told.
#[derive(Args)]
pub struct Arguments {
    /// Prints the figures as JSON, and progress to standard error
    #[arg(long)]
    json: bool,
}

type Done<T> = Result<T, Box<dyn Error>>;

const MODES: [(Mode, &str, &str); 3] = [
    (Mode::Ud, "UD", "datagrams"),
    (Mode::Rc, "RC", "reliable connections"),
    (Mode::Uc, "UC", "unreliable connections"),
];

/// What to do when the fabric does not start.
const NO_FABRIC: &str = "The fabric of this process has a socket in the folder TMPDIR, or /tmp: \
    let TMPDIR name a folder that you may write to.";
/// What to do when something else fails.
const NOT_WELL: &str = "All of it runs in this process, so a machine that is busy otherwise may be \
    too slow for it: run it again while a core or two are free. If it fails again, it is a defect \
    of Pollux: report what is printed above, the number of cores and what uname -a prints.";

/// Shows it.
pub fn demo(arguments: &Arguments) -> Done<()> {
    let told = Told { json: arguments.json };
    told.line("An InfiniBand fabric in software, and IP over it, in this process alone.\n");
    let fabric = told.step("a switch, three hosts, a subnet manager", || {
        let fabric = Embedded::start("single:3")?;
        Ok((fabric, String::new()))
    });
    let fabric = fabric.map_err(|error| format!("{error}\n{NO_FABRIC}"))?;
    let mut rows = Vec::new();
    for (mode, name, by) in MODES {
        told.line(&format!("\n{name}: {by}"));
        let row = show(&told, &fabric, mode, name);
        rows.push(row.map_err(|error| format!("{name}: {error}\n{NOT_WELL}"))?);
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

/// What is shown of one mode, by the first host, while the others serve.
fn show(told: &Told, fabric: &Embedded, mode: Mode, name: &str) -> Done<Value> {
    let is_over = AtomicBool::new(false);
    let (tell, heard) = sync_channel(2);
    std::thread::scope(|scope| {
        // Whatever happens here, the others are not to go on for ever.
        let _end = End(&is_over);
        for host in [2, 3] {
            let (tell, is_over) = (tell.clone(), &is_over);
            scope.spawn(move || serve(fabric, mode, host, &tell, is_over));
        }
        drop(tell);
        let row = measured(told, fabric, mode, name, &heard);
        // What is missed here may be missing since a host there has failed.
        match (row, heard.try_recv()) {
            (Ok(_), Ok(Err(host))) => Err(host.into()),
            (Err(error), Ok(Err(host))) => Err(format!("{error}; {host}").into()),
            (row, _) => row,
        }
    })
}

/// What the first host finds out.
fn measured(
    told: &Told,
    fabric: &Embedded,
    mode: Mode,
    name: &str,
    heard: &Receiver<Result<(), String>>,
) -> Done<Value> {
    let (interface, up) = come_up(told, fabric, mode, heard)?;
    let (first, mtu) = resolve(told, &interface, mode, address(2))?;
    let (second, _) = resolve(told, &interface, mode, address(3))?;
    let to = address(2);
    let longest = told.step("the longest packet, and none longer", || {
        let bytes = measure::longest(&interface, to, mtu)?;
        Ok((bytes, format!("an echo of {bytes} bytes")))
    })?;
    let trips = |what: &str, f: &dyn Fn() -> Done<RoundTrips>| {
        told.step(what, || {
            let trips = f()?;
            let text = trips.text();
            Ok((trips.json(), text))
        })
    };
    let ping = trips("ping", &|| measure::ping(&interface, to))?;
    let udp = trips("UDP there and back", &|| measure::udp(&interface, address(1), to))?;
    let tcp = trips("TCP, request and response", &|| measure::tcp(&interface, to))?;
    let stream = told.step("TCP, one stream", || {
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

/// Brings up all three; ours is given.
fn come_up(
    told: &Told,
    fabric: &Embedded,
    mode: Mode,
    heard: &Receiver<Result<(), String>>,
) -> Done<(Interface, Duration)> {
    let mut took = Duration::ZERO;
    let interface = told.step("three interfaces join the broadcast group", || {
        let (interface, time) = timed(|| -> Done<_> {
            let interface = up(fabric, mode, 1)?;
            for _ in [2, 3] {
                // Who waits serves his own interface.
                loop {
                    match heard.try_recv() {
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

/// Finds somebody by address, and waits until packets go there as the mode says; with the MTU.
fn resolve(told: &Told, interface: &Interface, mode: Mode, to: IpAddr) -> Done<(Value, u32)> {
    told.step(&format!("{to} is resolved, and pinged"), || {
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

/// Asks somebody for echoes until packets go there as the mode says.
fn find(interface: &Interface, mode: Mode, to: IpAddr) -> Done<Neighbor> {
    let mut rest = PATIENCE;
    loop {
        let (answer, took) = timed(|| interface.ping(to, 56, rest));
        answer?;
        let known = interface.neighbors().into_iter().find(|one| one.addresses.contains(&to));
        let is_as_it_should =
            |one: &Neighbor| one.connection.map(|kind| kind.to_string()).as_deref() == kind(mode);
        match known.filter(is_as_it_should) {
            Some(one) => return Ok(one),
            None if rest <= took => return Err("packets do not go there as the mode says".into()),
            None => rest -= took,
        }
    }
}

/// The kind of connection that packets go by in a mode; none: by datagram.
const fn kind(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Rc => Some("RC"),
        Mode::Uc => Some("UC"),
        _ => None,
    }
}

/// What host 2 and host 3 do. First they say whether they are up, later why they are not any more.
fn serve(
    fabric: &Embedded,
    mode: Mode,
    host: u8,
    tell: &SyncSender<Result<(), String>>,
    is_over: &AtomicBool,
) {
    let run = || -> Done<()> {
        let serving = Host::new(up(fabric, mode, host)?, address(host))?;
        tell.send(Ok(()))?;
        Ok(serving.run(is_over)?)
    };
    if let Err(error) = run() {
        // Nobody listens any more if it is over.
        let _ = tell.send(Err(format!("host{host}: {error}")));
    }
}

fn up(fabric: &Embedded, mode: Mode, host: u8) -> Done<Interface> {
    let setup = Node::open(&fabric.port(&format!("host{host}")))?.interface("ib0");
    let setup = setup.address(&format!("{}/24", address(host))).mode(mode).timeout(PATIENCE);
    Ok(setup.up()?)
}

const fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
}

/// The figures in a table.
fn figures(rows: &[Value]) -> String {
    let us = |value: &Value| format!("{:.1}", value.as_f64().unwrap_or_default());
    let row = |row: &Value| {
        json!({
            "mode": row["mode"],
            "MTU": row["resolved"][0]["mtu"],
            "ping": us(&row["ping"]["median_us"]),
            "UDP": us(&row["udp"]["median_us"]),
            "UDP 99.9 %": us(&row["udp"]["p999_us"]),
            "TCP": us(&row["tcp"]["median_us"]),
            "TCP 99.9 %": us(&row["tcp"]["p999_us"]),
            "stream": format!("{} Gb/s", us(&row["stream_gbit_s"])),
        })
    };
    let rows: Value = rows.iter().map(row).collect();
    let columns = ["mode", "MTU", "ping", "UDP", "UDP 99.9 %", "TCP", "TCP 99.9 %", "stream"];
    table(&rows, &columns)
}

/// Ends the hosts that serve.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whom progress is told.
struct Told {
    json: bool,
}

impl Told {
    fn line(&self, line: &str) {
        self.print(&format!("{line}\n"));
    }

    /// Says what is done now, and then what came of it.
    fn step<T>(&self, what: &str, f: impl FnOnce() -> Done<(T, String)>) -> Done<T> {
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

    /// That nobody reads it any more is no reason to end.
    fn print(&self, text: &str) {
        let _ = match self.json {
            true => write!(std::io::stderr(), "{text}"),
            false => write!(std::io::stdout(), "{text}").and_then(|()| std::io::stdout().flush()),
        };
    }
}
