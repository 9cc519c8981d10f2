//! The command `pollux-perf`.
//!
//! `lat`, `bw`, `rate` and `connect` measure between a client and a server on this machine, or on
//! another one where `serve` runs; `diff` says what moved from one stored run to another;
//! `isolation` measures latency with and without a storm of management, `scaling` two workers
//! against one, `forward` a router without links; `compare` measures every row with a budget
//! against other programs. Output is text, or JSON with `--json`.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use pollux_perf::compare::compare;
use pollux_perf::diff;
use pollux_perf::error::PerfError;
use pollux_perf::forward;
use pollux_perf::isolation::{self, IsolationPlan};
use pollux_perf::null_router::{ForwardPlan, ROUTES_MAX};
use pollux_perf::pair::{play_part, prioritize};
use pollux_perf::peers::RunConfig;
use pollux_perf::plan::{Layer, MeasuredTransport, Plan, ProgramSockets, What};
use pollux_perf::remote::{self, ServeConfig};
use pollux_perf::rfc2544;
use pollux_perf::rounds;
use pollux_perf::scaling;
use pollux_perf::stored::StoredRun;
use pollux_perf::verbs::bytes_per_connection;
use serde::Serialize;
use serde_json::json;
use std::error::Error;
use std::fmt::Display;
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The message sizes of `--size sweep`, in bytes.
const SWEEP: [u32; 8] = [1, 64, 256, 1024, 2000, 16 << 10, 64 << 10, 1 << 20];

/// Measure Pollux, and compare it with other programs on the same cores.
#[derive(Parser)]
#[command(name = "pollux-perf", version)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Measure latency: half the round trip of one message at a time.
    Lat(Measure),
    /// Measure one-way throughput in bytes.
    Bw(Measure),
    /// Measure the one-way message rate.
    Rate(Measure),
    /// Measure connections opened and closed per second; with verbs, queue pairs of the client,
    /// without a packet.
    Connect(Measure),
    /// Compare every row that has a budget with other programs.
    Compare(Compare),
    /// Measure what a storm of management costs: UDP latency of a worker on the first core, with
    /// and without CM requests and readers of tables on the second
    Isolation(IsolationArguments),
    /// Measure two workers on two cores against one: echo, and round trips of UDP
    Scaling(ScalingArguments),
    /// Measure forwarding between two null ports on one core
    Forward(ForwardArguments),
    /// Say what moved from one stored run to another; fails if a row is worse
    Diff(Diff),
    /// Be the other end for pollux-perf on other hosts, which measure with --connect
    Serve(Serve),
    /// Run one end of a measurement as a process.
    #[command(hide = true)]
    Part { plan: String },
    /// Serve the client at the standard input.
    #[command(hide = true)]
    ServeOne { config: String },
    /// Print the bytes that an idle RC queue pair costs.
    #[command(hide = true)]
    IdleMemory,
}

/// The options of one measurement.
#[derive(Args)]
struct Measure {
    /// Layer to measure: verbs, udp or tcp
    #[arg(long, value_enum, default_value = "verbs")]
    layer: Layer,
    /// Transport service: rc, uc or ud
    #[arg(long, value_enum, default_value = "rc")]
    transport: MeasuredTransport,
    /// Message size in bytes, or `sweep` for sizes from 1 byte to the maximum
    #[arg(long, value_name = "N|sweep", default_value = "64")]
    size: String,
    /// Device of the client: soft:PATH@NODE[:PORT] or mlx5_0[:PORT]; by default both ends use a
    /// software fabric of this process
    #[arg(long, requires = "other_end")]
    device: Option<String>,
    /// Device of the server, on the same machine
    #[arg(long, requires = "device", group = "other_end")]
    peer: Option<String>,
    /// Host of the server, where `pollux-perf serve` runs, with its port if that is not 7091. The
    /// server has chosen its device, core and priority
    #[arg(long, value_name = "HOST[:PORT]", group = "other_end", conflicts_with = "processes")]
    connect: Option<String>,
    /// Duration of each round in seconds, after the warm-up
    #[arg(long, value_parser = seconds, default_value = "0.5")]
    duration: Duration,
    /// Rounds: what counts is their median, with an interval at 95 % from six rounds on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value = "7")]
    rounds: u16,
    /// Send at a fixed rate of N messages/s; latency counts from the scheduled send time
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Let the server sleep between messages, in blocking calls: with --rate 100, what it costs to
    /// wake it
    #[arg(long)]
    sleep: bool,
    /// Measure a program that makes blocking calls on sockets at their defaults: inline or pinned
    /// ones, or the kernel's over loopback. With connect, each connection carries --size bytes each
    /// way
    #[arg(long, value_enum)]
    sockets: Option<ProgramSockets>,
    /// Run client and server as processes instead of threads
    #[arg(long)]
    processes: bool,
    #[command(flatten)]
    place: Place,
}

/// Cores, priority and output format.
#[derive(Args)]
struct Place {
    /// Cores to pin client and server to
    #[arg(long, value_parser = cores, default_value = "0,1")]
    cores: [usize; 2],
    /// Real-time priority (SCHED_FIFO) of both ends; needs root
    #[arg(long, value_name = "1-98", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
    /// Print machine-readable JSON
    #[arg(long)]
    json: bool,
}

/// The options of `diff`.
#[derive(Args)]
struct Diff {
    /// The run before: a file that lat, bw, rate or connect wrote with --json
    before: PathBuf,
    /// The run after
    after: PathBuf,
    /// Changes of less than so many percent do not count
    #[arg(long, value_name = "PERCENT", default_value = "2")]
    least: f64,
    /// Print machine-readable JSON
    #[arg(long)]
    json: bool,
}

/// The options of `serve`.
#[derive(Args)]
struct Serve {
    /// Device of this end; without one, only --sockets kernel can be measured
    #[arg(long)]
    device: Option<String>,
    /// Address and port to listen at: by default this machine alone reaches it
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1")]
    listen: String,
    /// Core to pin each measurement to
    #[arg(long, default_value = "1")]
    core: usize,
    /// Real-time priority (SCHED_FIFO) of measurements; needs root
    #[arg(long, value_name = "1-98", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
}

/// The options of `isolation`.
#[derive(Args)]
struct IsolationArguments {
    /// CM requests per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    #[arg(default_value = "20000")]
    rate: u32,
    /// Rounds of measurements, each without and with the storm
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value = "7")]
    rounds: u16,
    /// Duration of each measurement in seconds
    #[arg(long, value_parser = seconds, default_value = "1")]
    duration: Duration,
    /// Core of the worker, and core of everything else
    #[arg(long, value_parser = cores, default_value = "0,1")]
    cores: [usize; 2],
    /// Real-time priority (SCHED_FIFO) of the worker alone; needs root
    #[arg(long, value_name = "1-98", value_parser = clap::value_parser!(u8).range(1..=98))]
    fifo: Option<u8>,
    /// Print machine-readable JSON
    #[arg(long)]
    json: bool,
}

/// The options of `scaling`.
#[derive(Args)]
struct ScalingArguments {
    /// Rounds of measurements, each of one worker and of two
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value = "7")]
    rounds: u16,
    /// Duration of each measurement in seconds
    #[arg(long, value_parser = seconds, default_value = "1")]
    duration: Duration,
    /// Cores of the workers; one worker has the first
    #[arg(long, value_parser = cores, default_value = "0,1")]
    cores: [usize; 2],
    /// Print machine-readable JSON
    #[arg(long)]
    json: bool,
}

/// The options of `forward`.
#[derive(Args)]
struct ForwardArguments {
    /// Routes in the FIB, several numbers with commas between them
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,1000,100000,1000000"
    )]
    routes: Vec<usize>,
    /// Destinations of the packets of each port; by default a million, or one with one route, and
    /// with --rfc2544 as many as routes
    #[arg(long, value_name = "N")]
    flows: Option<usize>,
    /// Lengths of the packets in bytes, headers included, with commas between them
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = clap::value_parser!(u16).range(40..=2048))]
    size: Vec<u16>,
    /// Measure as RFC 2544 does: throughput without loss, latency under load, back-to-back packets
    /// and recovery
    #[arg(long, conflicts_with = "rounds")]
    rfc2544: bool,
    /// Packets that can wait at each port
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    #[arg(default_value = "1024", requires = "rfc2544")]
    queue: u32,
    /// Packets of IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Rounds of measurements
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value = "5")]
    rounds: u16,
    /// Duration of each measurement in seconds
    #[arg(long, value_parser = seconds, default_value = "1")]
    duration: Duration,
    /// Core of the worker
    #[arg(long, default_value = "1")]
    core: usize,
    /// Print machine-readable JSON
    #[arg(long)]
    json: bool,
}

/// The options of a comparison.
#[derive(Args)]
struct Compare {
    /// Finish within two minutes: three pairs of 0.3 s, which decide nothing, instead of seven
    /// pairs of 1 s
    #[arg(long)]
    quick: bool,
    /// Fail if any peer program gives no figure
    #[arg(long)]
    all_peers: bool,
    #[command(flatten)]
    place: Place,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse::<f64>().map_err(|error| error.to_string())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    let is_sensible = (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&duration);
    is_sensible.then_some(duration).ok_or("write 0.001 to 3600 seconds".into())
}

fn cores(text: &str) -> Result<[usize; 2], String> {
    let parts = text.split_once(',').ok_or("write two cores, such as 0,1")?;
    let core = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a core number"));
    Ok([core(parts.0)?, core(parts.1)?])
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Action::Lat(measure) => run_measure(What::Lat, &measure),
        Action::Bw(measure) => run_measure(What::Bw, &measure),
        Action::Rate(measure) => run_measure(What::Rate, &measure),
        Action::Connect(measure) => run_measure(What::Connect, &measure),
        Action::Compare(arguments) => run_compare(&arguments),
        Action::Isolation(arguments) => run_isolation(&arguments),
        Action::Scaling(arguments) => run_scaling(&arguments),
        Action::Forward(arguments) => run_forward(&arguments),
        Action::Diff(arguments) => run_diff(&arguments),
        Action::Serve(arguments) => run_serve(&arguments),
        Action::ServeOne { config } => {
            remote::serve_one(&config).map(|what| println!("{what}")).map_err(Into::into)
        }
        Action::Part { plan } => play_part(&plan).map_err(Into::into),
        Action::IdleMemory => {
            bytes_per_connection().map(|bytes| println!("{bytes}")).map_err(Into::into)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pollux-perf: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Checks the cores, and sets the real-time priority of this process: one above that of the ends,
/// which it serves.
fn apply(place: &Place) -> Result<(), PerfError> {
    check_cores(&place.cores)?;
    place.fifo.map_or(Ok(()), |fifo| prioritize(fifo + 1, std::process::id().to_string()))
}

fn check_cores(cores: &[usize]) -> Result<(), PerfError> {
    let existing = core_affinity::get_core_ids().unwrap_or_default();
    let missing = cores.iter().find(|core| existing.iter().all(|one| one.id != **core));
    let advice = match cores {
        [_] => "give --core an existing core",
        _ => "give --cores two existing cores",
    };
    missing
        .map_or(Ok(()), |core| Err(PerfError::Plan(format!("there is no core {core}; {advice}"))))
}

fn run_measure(what: What, measure: &Measure) -> Result<(), Box<dyn Error>> {
    apply(&measure.place)?;
    let sizes = match measure.size.as_str() {
        "sweep" => SWEEP.to_vec(),
        text => {
            vec![text.parse().map_err(|_| format!("--size {text:?}: write a number, or sweep"))?]
        }
    };
    let plans = sizes.iter().map(|bytes| Plan {
        duration: measure.duration,
        per_second: measure.rate,
        sleeps: measure.sleep,
        program: measure.sockets,
        devices: measure
            .device
            .clone()
            .map(|device| [device, measure.peer.clone().unwrap_or_default()]),
        processes: measure.processes,
        fifo: measure.place.fifo,
        cores: measure.place.cores,
        ..Plan::new(what, measure.layer, measure.transport, *bytes)
    });
    // A sweep omits the sizes above the maximum of the layer.
    let plans: Vec<Plan> = plans.filter(|plan| sizes.len() == 1 || plan.check().is_ok()).collect();
    let report = |round| {
        if measure.rounds > 1 {
            eprintln!("round {round} of {}", measure.rounds);
        }
    };
    let record = rounds::measure(plans, measure.rounds, measure.connect.as_deref(), report)?;
    print_pretty(&record, measure.place.json)
}

fn run_diff(arguments: &Diff) -> Result<(), Box<dyn Error>> {
    let [before, after] = [&arguments.before, &arguments.after].map(|path| StoredRun::read(path));
    let moved = diff::diff(&before?, &after?, arguments.least);
    print_pretty(&moved, arguments.json)?;
    match moved.is_worse() {
        true => Err("some rows are worse".into()),
        false => Ok(()),
    }
}

fn run_serve(arguments: &Serve) -> Result<(), Box<dyn Error>> {
    let Serve { device, listen, core, fifo } = arguments;
    check_cores(&[*core])?;
    let listener = match listen.parse::<IpAddr>() {
        Ok(address) => TcpListener::bind((address, remote::PORT)),
        Err(_) => TcpListener::bind(listen),
    };
    let listener = listener.map_err(|error| format!("--listen {listen}: {error}"))?;
    let at = listener.local_addr()?;
    eprintln!("pollux-perf serves clients at {at}: pollux-perf lat --connect {at} ...");
    if !at.ip().is_loopback() {
        eprintln!("whoever reaches it uses this core and this device: let trusted hosts alone");
    }
    let config = ServeConfig { device: device.clone(), core: *core, fifo: *fifo };
    remote::serve(&listener, &config, |what| eprintln!("pollux-perf: {what}"));
    Ok(())
}

fn run_compare(arguments: &Compare) -> Result<(), Box<dyn Error>> {
    apply(&arguments.place)?;
    let (pairs, duration) = if arguments.quick { (3, 300) } else { (7, 1000) };
    let duration = Duration::from_millis(duration);
    let config = RunConfig { cores: arguments.place.cores, fifo: arguments.place.fifo, duration };
    let comparison = compare(&config, pairs, |what| eprintln!("{what}"));
    match arguments.place.json {
        true => println!("{}", serde_json::to_string_pretty(&comparison)?),
        false => println!("{comparison}"),
    }
    let missing: Vec<_> = comparison.without_peer().map(|row| row.id).collect();
    if arguments.all_peers && !missing.is_empty() {
        return Err(format!("peers without a figure: {}", missing.join(", ")).into());
    }
    Ok(())
}

fn run_isolation(arguments: &IsolationArguments) -> Result<(), Box<dyn Error>> {
    let &IsolationArguments { rate: per_second, rounds, duration, cores, fifo, json } = arguments;
    check_cores(&cores)?;
    let plan = IsolationPlan { cores, rounds: rounds.into(), duration, per_second, fifo };
    print_pretty(&isolation::run(plan)?, json)
}

fn run_forward(arguments: &ForwardArguments) -> Result<(), Box<dyn Error>> {
    check_cores(&[arguments.core])?;
    let mut numbers = arguments.routes.iter().chain(&arguments.flows);
    if let Some(wrong) = numbers.find(|one| !(1..=ROUTES_MAX).contains(*one)) {
        let why = format!("{wrong} routes or flows: write 1 to {ROUTES_MAX}");
        return Err(PerfError::Plan(why).into());
    }
    let plans = arguments.size.iter().flat_map(|&bytes| {
        arguments.routes.iter().map(move |&routes| {
            let plan = ForwardPlan::new(routes, arguments.core, arguments.duration);
            let flows =
                arguments.flows.unwrap_or(if arguments.rfc2544 { routes } else { plan.flows });
            ForwardPlan { flows, bytes, ipv6: arguments.ipv6, ..plan }
        })
    });
    let plans = plans.collect();
    if arguments.rfc2544 {
        let measured = rfc2544::run(plans, arguments.queue.into(), |what| eprintln!("{what}"))?;
        print_compact(&measured, arguments.json);
    } else {
        print_compact(&forward::run(plans, arguments.rounds.into())?, arguments.json);
    }
    Ok(())
}

fn print_compact(measured: &(impl Serialize + Display), as_json: bool) {
    match as_json {
        true => println!("{}", json!(measured)),
        false => print!("{measured}"),
    }
}

fn run_scaling(arguments: &ScalingArguments) -> Result<(), Box<dyn Error>> {
    let &ScalingArguments { rounds, duration, cores, json } = arguments;
    check_cores(&cores)?;
    print_pretty(&scaling::run(cores, rounds.into(), duration)?, json)
}

fn print_pretty(
    measured: &(impl Serialize + Display),
    as_json: bool,
) -> Result<(), Box<dyn Error>> {
    match as_json {
        true => println!("{}", serde_json::to_string_pretty(measured)?),
        false => print!("{measured}"),
    }
    Ok(())
}
