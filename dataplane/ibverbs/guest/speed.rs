//! Our sends through the contract, beside perftest's on the same devices: latency and message rate.
//!
//! The two take turns, pair by pair, on the same two processors, with the same depth, size and
//! signalling. What is printed is the median of the pairs. An emulated machine tells nothing about
//! adapters; it tells what we put on top of the library and the kernel.

use crate::end::{End, RECEIVES_MAX, SENDS_MAX};
use pollux_verbs::{QpType, SendFlags};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const OCTETS: u32 = 64;
const PAIRS: usize = 7;
const ROUND_TRIPS: usize = 2000;
const MESSAGES: usize = 5000;
/// Of datagrams no more than the peer has receives for: nothing holds the sender back.
const DATAGRAMS: usize = RECEIVES_MAX as usize - 12;
/// Every so many sends are signalled, as perftest does.
const SIGNALED_EVERY: usize = 100;

/// One thing that is measured.
struct Measure {
    name: &'static str,
    unit: &'static str,
    qp_type: QpType,
    is_latency: bool,
}

const MEASURES: [Measure; 4] = [
    Measure { name: "RC latency", unit: "us", qp_type: QpType::Rc, is_latency: true },
    Measure { name: "UD latency", unit: "us", qp_type: QpType::Ud, is_latency: true },
    Measure { name: "RC rate", unit: "k/s", qp_type: QpType::Rc, is_latency: false },
    Measure { name: "UD rate", unit: "k/s", qp_type: QpType::Ud, is_latency: false },
];

/// Measures, and prints a table and a line of JSON each.
pub fn run() -> bool {
    println!("{:12} {:>10} {:>10} {:>8}", "", "ours", "perftest", "ratio");
    let mut lines = Vec::new();
    for measure in &MEASURES {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            ours.push(if measure.is_latency { our_latency(measure) } else { our_rate(measure) });
            theirs.push(perftest(measure));
        }
        let (ours, theirs) = (median(ours), median(theirs));
        // Of both, 1.05 is five in a hundred worse than the peer.
        let ratio = if measure.is_latency { ours / theirs } else { theirs / ours };
        let Measure { name, unit, .. } = measure;
        println!("{name:12} {ours:>10.2} {theirs:>10.2} {ratio:>8.3} {unit}");
        lines.push(format!(
            "{{\"measure\":\"{name}\",\"unit\":\"{unit}\",\"octets\":{OCTETS},\"pairs\":{PAIRS},\
             \"ours\":{ours:.3},\"perftest\":{theirs:.3},\"ratio\":{ratio:.4}}}"
        ));
    }
    println!("{}", lines.join("\n"));
    true
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the two ends on a processor each; gives what the first one found.
fn both<T: Send>(
    qp_type: QpType,
    first: impl FnOnce(&mut End) -> T + Send,
    second: impl FnOnce(&mut End) + Send,
) -> T {
    let (to_first, from_second) = mpsc::channel();
    let (to_second, from_first) = mpsc::channel();
    let (is_ready, ready) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(0);
            let mut end = End::new("rxe0", qp_type);
            to_first.send(end.name()).expect("the other end listens");
            end.connect(from_first.recv().expect("the other end's name"));
            is_ready.send(()).expect("the other end listens");
            second(&mut end);
        });
        let first = scope.spawn(move || {
            pin(1);
            let mut end = End::new("rxe1", qp_type);
            to_second.send(end.name()).expect("the other end listens");
            end.connect(from_second.recv().expect("the other end's name"));
            ready.recv().expect("the other end is ready");
            first(&mut end)
        });
        first.join().expect("the first end does not fail")
    })
}

fn pin(core: usize) {
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
}

/// Half round trips, in microseconds: the median of a run.
fn our_latency(measure: &Measure) -> f64 {
    let ping = |end: &mut End| {
        let mut halves = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            end.send(OCTETS, SendFlags::SIGNALED);
            end.done(end.send_cq);
            end.done(end.recv_cq);
            halves.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
            end.receive();
        }
        median(halves)
    };
    let pong = |end: &mut End| {
        for _ in 0..ROUND_TRIPS {
            end.done(end.recv_cq);
            end.receive();
            end.send(OCTETS, SendFlags::SIGNALED);
            end.done(end.send_cq);
        }
    };
    both(measure.qp_type, ping, pong)
}

/// Messages a millisecond.
fn our_rate(measure: &Measure) -> f64 {
    let count = messages(measure);
    let send = move |end: &mut End| {
        let start = Instant::now();
        let mut outstanding = 0;
        for nth in 1..=count {
            let is_signaled = nth % SIGNALED_EVERY == 0 || nth == count;
            let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::NONE };
            end.send(OCTETS, flags);
            outstanding += 1;
            while outstanding >= SENDS_MAX as usize || nth == count && outstanding > 0 {
                end.done(end.send_cq);
                outstanding = outstanding.saturating_sub(SIGNALED_EVERY);
            }
        }
        count as f64 / start.elapsed().as_secs_f64() / 1e3
    };
    let receive = move |end: &mut End| {
        for _ in 0..count {
            end.done(end.recv_cq);
            end.receive();
        }
    };
    both(measure.qp_type, send, receive)
}

fn messages(measure: &Measure) -> usize {
    if measure.qp_type == QpType::Ud { DATAGRAMS } else { MESSAGES }
}

/// The same by perftest: a server, then a client, whose table has the figure.
fn perftest(measure: &Measure) -> f64 {
    let (program, count, column) = match measure.is_latency {
        true => ("ib_send_lat", ROUND_TRIPS, 4),
        false => ("ib_send_bw", messages(measure), 4),
    };
    let count = count.to_string();
    let service = measure.qp_type.to_string();
    let start = |core: &str, device: &str, rest: &[&str]| -> Child {
        Command::new("taskset")
            .args([core, program, "-F", "-d", device, "-x", "0", "-m", "1024"])
            .args(["-c", &service, "-s", &OCTETS.to_string(), "-n", &count])
            .args(rest)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"))
    };
    let mut server = start("1", "rxe0", &[]);
    // It listens when it has made its queue pair.
    std::thread::sleep(Duration::from_millis(700));
    let client = start("2", "rxe1", &["127.0.0.1"]);
    let output = client.wait_with_output().expect("the client runs");
    server.wait().expect("the server runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().filter(|line| !line.contains('#')).find_map(|line| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        (cells.first() == Some(&OCTETS.to_string().as_str()))
            .then(|| cells.get(column)?.parse().ok())
    });
    let figure: f64 = row.flatten().unwrap_or_else(|| panic!("{program} has no figure: {text}"));
    if measure.is_latency { figure } else { figure * 1e3 }
}
