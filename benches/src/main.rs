//! The command `pollux-perf`.
//!
//! | subcommand | what it measures or prints |
//! |---|---|
//! | `lat`, `bw`, `rate`, `connect` | messages, or connections, between a client and a server |
//! | `serve` | nothing: it is the server for clients on other hosts |
//! | `campaign` | all measurements that a file lists |
//! | `compare` | every measurement that has a budget, against peer programs |
//! | `isolation` | latency with and without a storm of management requests |
//! | `scaling` | two workers against one |
//! | `forward` | a router between null ports |
//! | `diff` | significant changes between two stored runs |
//! | `report`, `schema` | a stored run as a page or as data, and the JSON schema of stored runs |
//!
//! Measurements and `diff` print text, or JSON with `--json`; `campaign` stores JSON with `--into`.
//! [`arguments`] defines the options.
#![forbid(unsafe_code)]

mod arguments;

use arguments::{
    Action, Arguments, CampaignArguments, Compare, Diff, ForwardArguments, IsolationArguments,
    Measure, Place, ReportArguments, ReportFormat, ScalingArguments, Serve,
};
use clap::Parser;
use pollux_perf::campaign::{Campaign, of_sizes};
use pollux_perf::compare;
use pollux_perf::diff;
use pollux_perf::error::PerfError;
use pollux_perf::forward;
use pollux_perf::isolation::{self, IsolationPlan};
use pollux_perf::null_router::{ForwardPlan, ROUTES_MAX};
use pollux_perf::pair::{play_part, prioritize};
use pollux_perf::peers::RunConfig;
use pollux_perf::plan::{Plan, ProgramSockets, RouterPlan, What};
use pollux_perf::remote::{self, ServeConfig};
use pollux_perf::report;
use pollux_perf::rfc2544;
use pollux_perf::rounds::{self, RoundsConfig, RoundsProgress};
use pollux_perf::scaling;
use pollux_perf::stored::StoredRun;
use pollux_perf::verbs::bytes_per_connection;
use pollux_perf::verbs_plan::VerbsPlan;
use serde::Serialize;
use serde_json::json;
use std::error::Error;
use std::fmt::Display;
use std::net::{IpAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

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
        Action::Campaign(arguments) => run_campaign(&arguments),
        Action::Diff(arguments) => run_diff(&arguments),
        Action::Report(arguments) => run_report(&arguments),
        Action::Schema => print_schema(),
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

/// Checks the cores. Sets the real-time priority of this process to one above that of the ends,
/// because the ends wait for its threads.
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
    if measure.sockets == Some(ProgramSockets::Kernel) && measure.device.is_some() {
        return Err("--sockets kernel uses no --device: omit it".into());
    }
    let plan = Plan {
        duration: measure.duration,
        per_second: measure.rate,
        sleeps: measure.sleep,
        program: measure.sockets,
        verbs: VerbsPlan {
            op: measure.op,
            bidirectional: measure.bidirectional,
            qps: measure.qp,
            depth: measure.tx_depth,
            post_list: measure.post_list,
            completion_every: measure.cq_mod,
            inline_bytes: measure.inline_size,
            events: measure.events,
        },
        unchecked: measure.unchecked,
        router: measure.routes.map(|routes| RouterPlan {
            routes,
            flows: measure.flows,
            ipv6: measure.ipv6,
        }),
        devices: measure
            .device
            .clone()
            .map(|device| [device, measure.peer.clone().unwrap_or_default()]),
        processes: measure.processes,
        fifo: measure.place.fifo,
        cores: measure.place.cores,
        ..Plan::new(what, measure.layer, measure.transport, 64)
    };
    let sizes = if measure.all { "sweep" } else { &measure.size };
    let plans = of_sizes(vec![plan], sizes)?;
    plans.iter().try_for_each(Plan::check)?;
    let mut so_far = None;
    let report = |progress: &RoundsProgress<'_>, run: &StoredRun| {
        if measure.rounds > 1 {
            eprintln!("{progress}");
            so_far = Some(run.clone());
        }
        Ok(())
    };
    let config = RoundsConfig {
        rounds: measure.rounds,
        server: measure.connect.as_deref(),
        keeps_disturbed: measure.keep_disturbed,
    };
    let measured = rounds::measure(plans, &config, None, report);
    if let (Err(_), Some(run)) = (&measured, &so_far) {
        // Print the rounds measured before the failure.
        print_pretty(run, measure.place.json)?;
    }
    print_pretty(&measured?, measure.place.json)
}

fn run_campaign(arguments: &CampaignArguments) -> Result<(), Box<dyn Error>> {
    let CampaignArguments { file, into, .. } = arguments;
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut campaign =
        Campaign::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    campaign.cores = arguments.cores.unwrap_or(campaign.cores);
    campaign.device = arguments.device.clone().or(campaign.device);
    if arguments.peer.is_some() || arguments.connect.is_some() {
        (campaign.peer, campaign.connect) = (arguments.peer.clone(), arguments.connect.clone());
    }
    check_cores(&campaign.cores)?;
    campaign.fifo.map_or(Ok(()), |fifo| prioritize(fifo + 1, std::process::id().to_string()))?;
    let begun = into.exists().then(|| StoredRun::read(into)).transpose()?;
    let (plans, left_out) = campaign.plans()?;
    left_out.iter().for_each(|what| eprintln!("left out: {what}"));
    let config = RoundsConfig {
        rounds: campaign.rounds,
        server: campaign.connect.as_deref(),
        keeps_disturbed: campaign.keep_disturbed,
    };
    let report = |progress: &RoundsProgress<'_>, run: &StoredRun| {
        eprintln!("{progress}");
        run.write(into)
    };
    let run = rounds::measure(plans, &config, begun, report)?;
    run.write(into)?;
    print!("{run}");
    Ok(())
}

fn run_diff(arguments: &Diff) -> Result<(), Box<dyn Error>> {
    let [before, after] = [&arguments.before, &arguments.after].map(|path| StoredRun::read(path));
    let moved = diff::diff(&before?, &after?, arguments.least);
    print_pretty(&moved, arguments.json)?;
    if moved.is_worse() {
        return Err("some rows are worse".into());
    }
    match arguments.strict && moved.is_incomplete() {
        true => Err("some rows are undecided or missing".into()),
        false => Ok(()),
    }
}

fn run_report(arguments: &ReportArguments) -> Result<(), Box<dyn Error>> {
    let run = StoredRun::read(&arguments.run)?;
    let text = match arguments.format {
        ReportFormat::Html => report::page(&run),
        ReportFormat::Svg => report::svg(&run),
        ReportFormat::Csv => report::csv(&run),
        ReportFormat::HdrLog => report::hdr_log(&run),
        ReportFormat::Markdown => compare::RatioTable(&run.rows).to_string(),
    };
    if text.is_empty() {
        return Err(
            "this run compares nothing with a peer: the Markdown table is for runs of `compare`"
                .into(),
        );
    }
    print!("{text}");
    Ok(())
}

fn print_schema() -> Result<(), Box<dyn Error>> {
    println!("{}", serde_json::to_string_pretty(&schemars::schema_for!(StoredRun))?);
    Ok(())
}

fn run_serve(arguments: &Serve) -> Result<(), Box<dyn Error>> {
    let Serve { device, listen, core, fifo } = arguments;
    check_cores(&[*core])?;
    // Open the device once now, so that an error shows before the first client connects.
    device.as_deref().map_or(Ok(()), |device| pollux_node::open(device).map(drop))?;
    let listener = match listen.parse::<IpAddr>() {
        Ok(address) => TcpListener::bind((address, remote::PORT)),
        Err(_) => TcpListener::bind(listen),
    };
    let listener = listener.map_err(|error| format!("--listen {listen}: {error}"))?;
    let at = listener.local_addr()?;
    eprintln!("pollux-perf serves clients at {at}: pollux-perf lat --connect {at} ...");
    if !at.ip().is_loopback() {
        eprintln!("any host that can connect uses this core and device: allow trusted hosts only");
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
    let run = compare::compare(&config, pairs, |what| eprintln!("{what}"));
    print_pretty(&run, arguments.place.json)?;
    let missing = compare::without_peer(&run);
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
    if cores[0] == cores[1] {
        return Err("two workers need two cores; write --cores 0,1".into());
    }
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
