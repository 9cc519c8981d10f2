//! Our sends through the contract, beside perftest's on the same devices: latency and message rate.
//!
//! ```text
//! cargo build --release -p pollux-ibverbs --features hca --example rxe-guest
//! scripts/rxe-vm --counted --program target/release/examples/rxe-guest 'rxe-guest speed'
//! ```
//!
//! The two take turns, pair by pair, and do the same: two processes, as many requests outstanding,
//! every hundredth signaled (every one for latency), receives posted as long as they will be
//! needed, completions taken by sixteen, nothing inline. The median of the pairs is printed.
//!
//! Why they sleep for completions (perftest's `-e`) and do not spin: in a machine whose clock
//! counts instructions there is one processor, and programs that spin would measure the turns that
//! its scheduler gives them. With two processors and the host's clock, medians of either program
//! came near 50 us in some runs and near 4 ms in others. An emulated machine measures
//! nothing of adapters, only our share on top of the library and the kernel.
//!
//! Medians of five pairs in one run:
//!
//! | | ours | perftest | ratio |
//! |---|---|---|---|
//! | RC latency | 80.41 us | 69.96 us | 1.149 |
//! | UD latency | 75.34 us | 65.57 us | 1.149 |
//! | RC rate | 14.18 k/s | 14.74 k/s | 1.039 |
//! | UD rate | 15.35 k/s | 13.81 k/s | 0.900 |
//!
//! The latencies differ in the sleep: ours ends after a time or at an asynchronous
//! event, so it is a `poll` and a `read` where perftest's is one `read`, twice for each half of a
//! round trip. That this is the whole of it was not measured.

use crate::end::{End, RECEIVES_MAX, SENDS_MAX, name_of, text_of};
use pollux_verbs::{QpType, SendFlags};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BYTES: u32 = 64;
const PAIRS: usize = 5;
const ROUND_TRIPS: usize = 1000;
const MESSAGES: usize = 2000;
/// Of datagrams no more than the peer has receives for: nothing holds the sender back.
const DATAGRAMS: usize = RECEIVES_MAX as usize - 12;
/// Every so many sends are signaled, as perftest does; counts of messages are multiples of it.
const SIGNALED_EVERY: usize = 100;

/// One measurement.
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

/// Measures, and prints a table and a line of JSON for each.
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
            "{{\"measure\":\"{name}\",\"unit\":\"{unit}\",\"bytes\":{BYTES},\"pairs\":{PAIRS},\
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

/// The two ends, a process each, as perftest's are; the other one serves.
fn client(measure: &Measure, what: &str, count: usize) -> (End, Child) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["speed-peer", &measure.qp_type.to_string(), what, &count.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut line = || lines.next().expect("a line").expect("of text");
    let mut end = End::new("rxe1", measure.qp_type);
    end.connect(name_of(&line()));
    let mut input = child.stdin.take().expect("its input");
    writeln!(input, "{}", text_of(end.name())).expect("it listens");
    assert_eq!(line(), "ready");
    end.arm();
    (end, child)
}

/// The end that serves, in a process of its own.
pub fn peer(qp_type: &str, what: &str, count: &str) -> bool {
    let qp_type = if qp_type == "UD" { QpType::Ud } else { QpType::Rc };
    let count = count.parse().expect("a number");
    let mut end = End::new("rxe0", qp_type);
    println!("{}", text_of(end.name()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("somebody speaks");
    end.connect(name_of(&line));
    end.arm();
    println!("ready");
    let serve = if what == "latency" { pong } else { sink };
    serve(&mut end, count);
    true
}

/// Half of the time from one post to the next, in microseconds: the median.
fn our_latency(measure: &Measure) -> f64 {
    let (mut end, mut child) = client(measure, "latency", ROUND_TRIPS);
    let mut posted = Vec::with_capacity(ROUND_TRIPS);
    for nth in 1..=ROUND_TRIPS {
        posted.push(Instant::now());
        end.send(BYTES, SendFlags::SIGNALED);
        end.sleep(end.send_cq);
        end.take(end.send_cq);
        hear(&mut end, nth, ROUND_TRIPS);
    }
    child.wait().expect("it ends");
    let halves = posted.windows(2).map(|two| (two[1] - two[0]).as_secs_f64() * 1e6 / 2.0);
    median(halves.collect())
}

fn pong(end: &mut End, count: usize) {
    for nth in 1..=count {
        hear(end, nth, count);
        end.send(BYTES, SendFlags::SIGNALED);
        end.sleep(end.send_cq);
        end.take(end.send_cq);
    }
}

/// Takes a message; a receive is posted for it if one will be needed.
fn hear(end: &mut End, nth: usize, count: usize) {
    end.sleep(end.recv_cq);
    assert_eq!(end.take(end.recv_cq), 1);
    if nth + RECEIVES_MAX as usize <= count {
        end.receive();
    }
}

/// Messages a millisecond.
fn our_rate(measure: &Measure) -> f64 {
    let count = messages(measure);
    let (mut end, mut child) = client(measure, "rate", count);
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < SENDS_MAX as usize {
            posted += 1;
            let is_signaled = posted % SIGNALED_EVERY == 0;
            let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::NONE };
            end.send(BYTES, flags);
        }
        end.sleep(end.send_cq);
        done += end.take(end.send_cq) * SIGNALED_EVERY;
    }
    let rate = count as f64 / start.elapsed().as_secs_f64() / 1e3;
    child.wait().expect("it ends");
    rate
}

fn sink(end: &mut End, count: usize) {
    let mut received = 0;
    while received < count {
        end.sleep(end.recv_cq);
        loop {
            let taken = end.take(end.recv_cq);
            for _ in 0..taken {
                received += 1;
                if received + RECEIVES_MAX as usize <= count {
                    end.receive();
                }
            }
            if taken == 0 {
                break;
            }
        }
    }
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
    let start = |device: &str, rest: &[&str]| -> Child {
        Command::new(program)
            .args(["-e", "-F", "-d", device, "-x", "0", "-m", "1024"])
            .args(["-c", &service, "-s", &BYTES.to_string(), "-n", &count])
            .args(rest)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"))
    };
    let mut server = start("rxe0", &[]);
    // It listens when it has made its queue pair.
    std::thread::sleep(Duration::from_millis(700));
    let client = start("rxe1", &["127.0.0.1"]);
    let output = client.wait_with_output().expect("the client runs");
    server.wait().expect("the server runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().filter(|line| !line.contains('#')).find_map(|line| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        (cells.first() == Some(&BYTES.to_string().as_str()))
            .then(|| cells.get(column)?.parse().ok())
    });
    let figure: f64 = row.flatten().unwrap_or_else(|| panic!("{program} has no figure: {text}"));
    if measure.is_latency { figure } else { figure * 1e3 }
}
