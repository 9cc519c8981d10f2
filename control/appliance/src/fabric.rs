//! `pollux fabric`: from arguments to a fabric that runs.

use crate::output::say;
use crate::signals::signals;
use clap::{Args, ValueEnum};
use pollux_node::fabric::{Config, Fabric, Partitions, Plug, config, partitions};
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// What a fabric is to be.
#[derive(Args)]
pub struct Arguments {
    /// single:N, ring:N, torus:XxY, fat-tree:K, leaf-spine:LxSxH, routed:NxM, or a file as
    /// ibnetdiscover prints it
    #[arg(long, value_name = "SPEC|FILE", default_value = "single:3")]
    topology: String,
    /// Who manages the subnet: ours, or nobody of ours, for OpenSM
    #[arg(long, default_value = "embedded")]
    sm: Manager,
    /// Who may talk to whom, for our manager: a file as OpenSM's partitions.conf
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
    /// Our manager gives each adapter's port 2^N addresses, each with a way of its own: then
    /// reliable connections go on by a second path when their first one fails
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = lmc)]
    lmc: u8,
    /// Ports whose programs and wires may manage the subnet; others are hosts, which set nothing by
    /// subnet management. Programs at --umad always may
    #[arg(long, value_name = "NODE[:PORT]", value_delimiter = ',')]
    managers: Vec<String>,
    /// The key by which our manager protects all ports, or 0 for no protection; random by default
    #[arg(long, value_name = "KEY", value_parser = key)]
    m_key: Option<u64>,
    /// The key by which our manager trusts other managers and questions such as those of saquery
    /// --smkey, which asks with 1 by itself; random by default
    #[arg(long, value_name = "KEY", value_parser = key)]
    sm_key: Option<u64>,
    /// Where `pollux show` and `pollux fault` find it; and, by the socket PATH.ports beside it,
    /// programs that open `soft:PATH@NODE[:PORT]`
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The name under which programs with libumad2sim find it (IBSIM_SOCKNAME)
    #[arg(long, value_name = "NAME")]
    umad: Option<String>,
    /// A wire to a node that is not ours: stream:PATH, udp:LOCAL,REMOTE or, on one machine,
    /// udp:ADDRESS:PORT, at a free port. For whoever sends first: udp:LOCAL,any
    #[arg(long = "wire", value_name = "NODE:PORT=WIRE")]
    wires: Vec<Plug>,
    /// Writes every packet to a pcap file
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Makes links bad: [NODE:PORT/]loss=1%,duplicate=..,reorder=..,delay=20us,corrupt=..;
    /// or NODE:PORT/down
    #[arg(long = "fault", value_name = "RULE")]
    faults: Vec<String>,
    /// GUIDs and faults follow from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Who manages the subnet.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Manager {
    /// A subnet manager of ours.
    Embedded,
    /// Nobody of ours.
    None,
}

/// A number that the field in a port's attributes has room for (IBA 14.2.5.6).
fn lmc(text: &str) -> Result<u8, String> {
    let lmc = text.parse().ok().filter(|lmc| *lmc < 8);
    lmc.ok_or_else(|| "give a number from 0 to 7".into())
}

/// A key of management, decimal or as in 0x1234.
fn key(text: &str) -> Result<u64, String> {
    let key = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    key.ok_or_else(|| "give a number of 64 bits, as in 0x1234".into())
}

/// Runs a fabric until a signal ends it.
pub fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let partitions = match (arguments.sm, &arguments.partitions) {
        (Manager::Embedded, Some(file)) => Some(partitions(file)?),
        (Manager::Embedded, None) => Some(Partitions::default()),
        (Manager::None, Some(_)) => return Err("--partitions is for --sm embedded".into()),
        (Manager::None, None) if arguments.lmc > 0 => {
            return Err("--lmc is for --sm embedded; OpenSM takes it as its own option".into());
        }
        (Manager::None, None) if arguments.m_key.is_some() || arguments.sm_key.is_some() => {
            let options = "--m-key and --sm-key are for --sm embedded";
            return Err(format!("{options}; OpenSM takes m_key and sm_key as its own").into());
        }
        (Manager::None, None) => None,
    };
    let note = |note: &str| eprintln!("pollux: {note}");
    let topology = config::topology(&arguments.topology, arguments.seed, note)?;
    let (nodes, links) = (topology.nodes().len(), topology.links().len());
    let umad = arguments.umad.clone();
    let mut fabric = Fabric::new(Config {
        topology,
        seed: arguments.seed,
        socket: arguments.socket,
        umad: arguments.umad,
        wires: arguments.wires,
        capture: arguments.capture,
        faults: arguments.faults,
        partitions,
        managers: arguments.managers,
        m_key: arguments.m_key,
        sm_key: arguments.sm_key,
        lmc: arguments.lmc,
    })?;
    let (wake, is_over) = signals()?;
    let spec = arguments.topology;
    say(&format!("fabric {spec}: {nodes} nodes, {links} links, seed {}", arguments.seed));
    if let Some(name) = umad {
        let preload = "LD_PRELOAD=libumad2sim.so";
        say(&format!("programs: {preload} IBSIM_SOCKNAME={name} SIM_HOST=NODE opensm"));
    }
    fabric.run(wake, || is_over.load(Ordering::Relaxed))?;
    say("fabric: over");
    Ok(())
}
