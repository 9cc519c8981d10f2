//! The arguments of the command.

use clap::{Args, Parser, Subcommand, ValueEnum};
use pollux_perf::plan::{Layer, MeasuredTransport, ProgramSockets};
use pollux_perf::verbs_plan::VerbsOp;
use std::path::PathBuf;
use std::time::Duration;

/// Measure Pollux, and compare it with other programs on the same cores.
#[derive(Parser)]
#[command(name = "pollux-perf", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Action,
}

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Measure latency: half the round trip of one message at a time, as perftest does; with
    /// --rate, the whole round trip. Short options are those of perftest.
    Lat(Measure),
    /// Measure one-way throughput in bytes.
    Bw(Measure),
    /// Measure the one-way message rate.
    Rate(Measure),
    /// Measure connections opened and closed per second. With --layer verbs, the connection manager
    /// opens them, and each carries a message each way.
    Connect(Measure),
    /// Compare Pollux with other programs: each figure that has a budget.
    Compare(Compare),
    /// Measure what a storm of management costs: UDP latency of a worker on the first core, while
    /// the second core is idle, copies memory, or handles CM requests and reads of admin tables
    Isolation(IsolationArguments),
    /// Measure two workers on two cores against one: echo, and round trips of UDP
    Scaling(ScalingArguments),
    /// Measure forwarding between two null ports on one core
    Forward(ForwardArguments),
    /// Measure all that a file lists, and store it. A campaign that was interrupted goes on
    Campaign(CampaignArguments),
    /// Say what moved from one stored run to another; fails if a row is worse
    Diff(Diff),
    /// Print a stored run as a page of HTML, or for other programs
    Report(ReportArguments),
    /// Print the JSON schema of stored runs
    Schema,
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

const FORWARD: &str = "Options of the layer forward";
const VERBS: &str = "Options of the layer verbs";

/// The options of one measurement.
#[derive(Args)]
pub(crate) struct Measure {
    /// Layer to measure: queue pairs, sockets of the library, or a router (only for `rate`)
    #[arg(long, value_enum, default_value = "verbs")]
    pub(crate) layer: Layer,
    /// Transport service: rc, uc or ud
    #[arg(long, short = 'c', visible_alias = "connection", value_enum, ignore_case = true)]
    #[arg(default_value = "rc")]
    pub(crate) transport: MeasuredTransport,
    /// Operation that carries a message. Latencies of read and atomic are those of the whole round
    /// trip, since the other end sends no message back
    #[arg(long, value_enum, default_value = "send", help_heading = VERBS)]
    pub(crate) op: VerbsOp,
    /// Message sizes in bytes, such as 64 or 64,2k,1m; `sweep` measures powers of four up to the
    /// longest message, and that one
    #[arg(long, short, value_name = "N,...|sweep", default_value = "64")]
    pub(crate) size: String,
    /// The same as --size sweep
    #[arg(long, short, conflicts_with = "size")]
    pub(crate) all: bool,
    /// Send in both directions at the same time, with bw and rate of --op send; the messages of
    /// both ends count
    #[arg(long, short, help_heading = VERBS)]
    pub(crate) bidirectional: bool,
    /// Queue pairs of each end; messages use them in turn
    #[arg(long, short, value_name = "N", default_value = "1", help_heading = VERBS)]
    pub(crate) qp: u16,
    /// Messages in flight on each queue pair, at most, with bw and rate [default: 2 to 256, so that
    /// all of them together have at most 1 MiB]
    #[arg(long, short, value_name = "N", help_heading = VERBS)]
    pub(crate) tx_depth: Option<u16>,
    /// Messages that one call posts, with bw and rate [default: 32, or 4 for messages of 4096 bytes
    /// or more; at most half of --tx-depth]
    #[arg(long, short = 'l', visible_alias = "post_list", value_name = "N", help_heading = VERBS)]
    pub(crate) post_list: Option<u16>,
    /// Messages for each completion of a sender, with bw and rate [default: the same as
    /// --post-list]
    #[arg(long, short = 'Q', value_name = "N", help_heading = VERBS)]
    pub(crate) cq_mod: Option<u16>,
    /// Send messages up to this length inline, within the work request [default: 64 with lat,
    /// otherwise 0]
    #[arg(long, short = 'I', visible_alias = "inline_size", value_name = "BYTES")]
    #[arg(help_heading = VERBS)]
    pub(crate) inline_size: Option<u16>,
    /// Both ends sleep until a completion event instead of polling
    #[arg(long, short, help_heading = VERBS)]
    pub(crate) events: bool,
    /// Routes in the FIB of the router
    #[arg(long, value_name = "N", help_heading = FORWARD)]
    pub(crate) routes: Option<u32>,
    /// Destinations of the packets of each port [default: a million; with --routes 1, one]
    #[arg(long, value_name = "N", requires = "routes", help_heading = FORWARD)]
    pub(crate) flows: Option<u32>,
    /// Packets of IPv6 instead of IPv4
    #[arg(long, requires = "routes", help_heading = FORWARD)]
    pub(crate) ipv6: bool,
    /// Device of the client: soft:PATH@NODE[:PORT] or mlx5_0[:PORT]; by default both ends use a
    /// software fabric of this process
    #[arg(long, short, visible_alias = "ib-dev", requires = "other_end")]
    pub(crate) device: Option<String>,
    /// Device of the server, on the same machine
    #[arg(long, requires = "device", group = "other_end")]
    pub(crate) peer: Option<String>,
    /// Host where `pollux-perf serve` runs, with its port if that is not 7091. That command chooses
    /// the device, the core and the priority of the server
    #[arg(long, value_name = "HOST[:PORT]", group = "other_end", conflicts_with = "processes")]
    pub(crate) connect: Option<String>,
    /// Duration of each round in seconds, after the warm-up
    #[arg(long, short = 'D', value_parser = seconds, default_value = "0.5")]
    pub(crate) duration: Duration,
    /// Number of rounds. The result is their median, with a 95 % interval from six rounds on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value = "7")]
    pub(crate) rounds: u16,
    /// Count rounds that other programs disturbed, too. By default, each is measured again, up to
    /// twice --rounds in all
    #[arg(long)]
    pub(crate) keep_disturbed: bool,
    /// Send N messages/s at fixed times, without waiting for earlier messages. Latency is the whole
    /// round trip from the scheduled time; bw and rate report how late messages were sent
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u32>,
    /// The server sleeps between messages, in blocking calls. With --rate 100, this shows what it
    /// costs to wake it
    #[arg(long)]
    pub(crate) sleep: bool,
    /// Measure a program with blocking calls on sockets at their default settings: the library's,
    /// served by the calling thread (inline) or by workers (pinned), or the kernel's, over loopback
    /// or to the host of --connect. With connect, each connection carries --size bytes each way
    #[arg(long, value_enum)]
    pub(crate) sockets: Option<ProgramSockets>,
    /// Do not check payloads. By default, each message repeats its number throughout the payload,
    /// the receiver checks it, and each message in flight has its own buffer
    #[arg(long)]
    pub(crate) unchecked: bool,
    /// Run client and server as processes instead of threads
    #[arg(long)]
    pub(crate) processes: bool,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Cores, priority and output format.
#[derive(Args)]
pub(crate) struct Place {
    /// Cores to pin client and server to
    #[arg(long, value_parser = cores, default_value = "0,1")]
    pub(crate) cores: [usize; 2],
    /// Real-time priority (SCHED_FIFO) of both ends; needs root
    #[arg(long, value_name = "1-98", value_parser = clap::value_parser!(u8).range(1..=98))]
    pub(crate) fifo: Option<u8>,
    /// Print machine-readable JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A campaign for `campaign --help`.
const CAMPAIGN: &str = "\
A file has the keys rounds, duration, cores, fifo, device, peer, connect and keep_disturbed, and
tables of measurements. Every combination of the values in lists is measured; a single value needs
no brackets:

  duration = 0.5
  cores = [0, 1]

  [[measure]]
  what = [\"lat\", \"bw\"]
  layer = [\"verbs\"]
  transport = [\"rc\", \"ud\"]
  op = [\"send\"]
  size = [64, 2000]

  [[measure]]
  what = \"lat\"
  layer = \"tcp\"
  size = \"64,2k\"
  sockets = [\"pinned\", \"kernel\"]
  rate = 100
  processes = true

A table may also have qp, tx_depth, post_list, cq_mod, inline_size and routes, which may be lists,
and flows, ipv6, sleep, events, bidirectional and unchecked.";

/// The options of `campaign`.
#[derive(Args)]
#[command(after_help = CAMPAIGN)]
pub(crate) struct CampaignArguments {
    /// A file of TOML with tables [[measure]]
    pub(crate) file: PathBuf,
    /// File of the run, for diff and report; written after each measurement
    #[arg(long, value_name = "RUN.json")]
    pub(crate) into: PathBuf,
    /// Device of the client, instead of the one in the file
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// Device of the server, on the same machine, instead of the server in the file
    #[arg(long, conflicts_with = "connect")]
    pub(crate) peer: Option<String>,
    /// Host where `pollux-perf serve` runs, instead of the server in the file
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) connect: Option<String>,
    /// Cores of client and server, instead of those in the file
    #[arg(long, value_parser = cores)]
    pub(crate) cores: Option<[usize; 2]>,
}

/// The options of `report`.
#[derive(Args)]
pub(crate) struct ReportArguments {
    /// A file that campaign wrote, or lat, bw, rate, connect or compare with --json
    pub(crate) run: PathBuf,
    /// What to print
    #[arg(long, value_enum, default_value = "html")]
    pub(crate) format: ReportFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ReportFormat {
    /// One page with tables, plots and the environment, which needs no network
    Html,
    /// The plots
    Svg,
    /// A line for each figure
    Csv,
    /// Round trips, for the tools of HdrHistogram
    HdrLog,
    /// The result of compare, as a Markdown table
    Markdown,
}

/// The options of `diff`.
#[derive(Args)]
pub(crate) struct Diff {
    /// The run before: a file that campaign wrote, or lat, bw, rate, connect or compare with --json
    pub(crate) before: PathBuf,
    /// The run after
    pub(crate) after: PathBuf,
    /// Smaller changes, in percent, do not count
    #[arg(long, value_name = "PERCENT", default_value = "2")]
    pub(crate) least: f64,
    /// Fail also for a row that cannot be decided: it is missing, has too few rounds, or all of
    /// them were disturbed
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print machine-readable JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of `serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// Device of the server; without one, clients can measure only --sockets kernel
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// Address and port to listen at; the default accepts clients of this machine only
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1")]
    pub(crate) listen: String,
    /// Core to pin each measurement to
    #[arg(long, default_value = "1")]
    pub(crate) core: usize,
    /// Real-time priority (SCHED_FIFO) of measurements; needs root
    #[arg(long, value_name = "1-98", value_parser = clap::value_parser!(u8).range(1..=98))]
    pub(crate) fifo: Option<u8>,
}

/// The options of `isolation`.
#[derive(Args)]
pub(crate) struct IsolationArguments {
    /// CM requests per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    #[arg(default_value = "20000")]
    pub(crate) rate: u32,
    /// Rounds, each of three measurements: quiet, busy, and with the storm
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value = "7")]
    pub(crate) rounds: u16,
    /// Duration of each measurement in seconds
    #[arg(long, value_parser = seconds, default_value = "1")]
    pub(crate) duration: Duration,
    /// Core of the worker, and core of everything else
    #[arg(long, value_parser = cores, default_value = "0,1")]
    pub(crate) cores: [usize; 2],
    /// Real-time priority (SCHED_FIFO) of the worker alone; needs root
    #[arg(long, value_name = "1-98", value_parser = clap::value_parser!(u8).range(1..=98))]
    pub(crate) fifo: Option<u8>,
    /// Print machine-readable JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of `scaling`.
#[derive(Args)]
pub(crate) struct ScalingArguments {
    /// Rounds, each of a measurement of one worker and one of two
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value = "7")]
    pub(crate) rounds: u16,
    /// Duration of each measurement in seconds
    #[arg(long, value_parser = seconds, default_value = "1")]
    pub(crate) duration: Duration,
    /// Cores of the workers; a single worker uses the first
    #[arg(long, value_parser = cores, default_value = "0,1")]
    pub(crate) cores: [usize; 2],
    /// Print machine-readable JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of `forward`.
#[derive(Args)]
pub(crate) struct ForwardArguments {
    /// Routes in the FIB, several numbers with commas between them
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,1000,100000,1000000"
    )]
    pub(crate) routes: Vec<usize>,
    /// Destinations of the packets of each port [default: a million; with --routes 1, one; with
    /// --rfc2544, as many as routes]
    #[arg(long, value_name = "N")]
    pub(crate) flows: Option<usize>,
    /// Lengths of the packets in bytes, headers included, with commas between them
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = clap::value_parser!(u16).range(40..=2048))]
    pub(crate) size: Vec<u16>,
    /// Measure as RFC 2544 does: throughput without loss, latency under load, back-to-back packets
    /// and recovery
    #[arg(long, conflicts_with = "rounds")]
    pub(crate) rfc2544: bool,
    /// Packets that can wait at each port
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    #[arg(default_value = "1024", requires = "rfc2544")]
    pub(crate) queue: u32,
    /// Packets of IPv6 instead of IPv4
    #[arg(long)]
    pub(crate) ipv6: bool,
    /// Rounds of measurements
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value = "5")]
    pub(crate) rounds: u16,
    /// Duration of each measurement in seconds
    #[arg(long, value_parser = seconds, default_value = "1")]
    pub(crate) duration: Duration,
    /// Core of the worker
    #[arg(long, default_value = "1")]
    pub(crate) core: usize,
    /// Print machine-readable JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of a comparison.
#[derive(Args)]
pub(crate) struct Compare {
    /// Finish within two minutes: three pairs of measurements (Pollux and the other program) of
    /// 0.3 s instead of seven of 1 s, too few for a verdict
    #[arg(long)]
    pub(crate) quick: bool,
    /// Fail if one of the other programs gives no figure
    #[arg(long)]
    pub(crate) all_peers: bool,
    #[command(flatten)]
    pub(crate) place: Place,
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
