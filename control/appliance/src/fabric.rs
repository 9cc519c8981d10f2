//! `pollux fabric`: runs the fabric that its arguments describe.

use crate::descriptors;
use crate::output::say;
use crate::signals::signals;
use clap::{Args, ValueEnum};
use pollux_node::fabric::{FabricConfig, Partitions, Plug, RunningFabric, config, partitions};
use pollux_wire::mad::smp::NodeType;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

#[derive(Args)]
pub struct FabricArguments {
    /// Topology: single:N, ring:N, torus:XxY, fat-tree:K, leaf-spine:LxSxH, routed:NxM, or a file
    /// with the output of ibnetdiscover
    #[arg(long, value_name = "SPEC|FILE", default_value = "single:3")]
    topology: String,
    /// Subnet manager: the embedded one, or none, to run OpenSM
    #[arg(long, default_value = "embedded")]
    sm: Manager,
    /// Partitions for the embedded manager: a file in the syntax of OpenSM's partitions.conf
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
    /// LMC: the embedded manager gives each adapter port 2^N LIDs, each with a path of its own, and
    /// reliable connections migrate to a second path when the first fails
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = lmc)]
    lmc: u8,
    /// Ports whose programs and wires may manage the subnet; the SMPs of other ports can only read.
    /// Programs at --umad always may
    #[arg(long, value_name = "NODE[:PORT]", value_delimiter = ',')]
    managers: Vec<String>,
    /// M_Key with which the embedded manager protects all ports; 0 for no protection [default:
    /// random]
    #[arg(long, value_name = "KEY", value_parser = key)]
    m_key: Option<u64>,
    /// SM_Key of the embedded manager. It trusts managers and SA queries with the same key, such as
    /// those of saquery --smkey [default: random]
    #[arg(long, value_name = "KEY", value_parser = key)]
    sm_key: Option<u64>,
    /// Listen here for `pollux show` and `pollux fault`, and at PATH.ports for programs that open
    /// `soft:PATH@NODE[:PORT]`
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Name by which programs with libumad2sim find the fabric (IBSIM_SOCKNAME)
    #[arg(long, value_name = "NAME")]
    umad: Option<String>,
    /// Connect a free port to an external node, by stream:PATH, udp:LOCAL,REMOTE or, on one
    /// machine, udp:ADDRESS:PORT; udp:LOCAL,any accepts the first sender
    #[arg(long = "wire", value_name = "NODE:PORT=WIRE")]
    wires: Vec<Plug>,
    /// Write every packet to a pcap file
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Add link faults: [NODE:PORT/]loss=1%,duplicate=..,reorder=..,delay=20us,corrupt=..;
    /// or NODE:PORT/down
    #[arg(long = "fault", value_name = "RULE")]
    faults: Vec<String>,
    /// Have links take the time of their rates: packets wait at ports, by virtual lanes, credits
    /// and VL arbitration. Without this option, a link takes no time
    #[arg(long)]
    paced: bool,
    /// Seed of GUIDs and of faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Manager {
    /// The embedded subnet manager
    Embedded,
    /// None, for an external manager such as OpenSM
    None,
}

/// An LMC: 0 to 7, which fits its field in PortInfo (IBA 14.2.5.6).
fn lmc(text: &str) -> Result<u8, String> {
    let lmc = text.parse().ok().filter(|lmc| *lmc < 8);
    lmc.ok_or_else(|| "not an LMC; write a number from 0 to 7".into())
}

/// A management key: decimal, or hexadecimal with 0x.
fn key(text: &str) -> Result<u64, String> {
    let key = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    key.ok_or_else(|| "not a key; write a 64-bit number, as in 0x1234".into())
}

/// Runs a fabric until a signal ends it.
pub fn run(arguments: FabricArguments) -> Result<(), Box<dyn Error>> {
    descriptors::raise_limit();
    let partitions = match (arguments.sm, &arguments.partitions) {
        (Manager::Embedded, Some(file)) => Some(partitions(file)?),
        (Manager::Embedded, None) => Some(Partitions::default()),
        (Manager::None, Some(_)) => {
            return Err(
                "--partitions needs --sm embedded; OpenSM has its own partitions.conf".into()
            );
        }
        (Manager::None, None) if arguments.lmc > 0 => {
            return Err("--lmc needs --sm embedded; OpenSM has an option -l of its own".into());
        }
        (Manager::None, None) if arguments.m_key.is_some() || arguments.sm_key.is_some() => {
            let options = "--m-key and --sm-key need --sm embedded";
            return Err(format!("{options}; OpenSM has m_key and sm_key of its own").into());
        }
        (Manager::None, None) => None,
    };
    let note = |note: &str| eprintln!("pollux: {note}");
    let topology = config::topology(&arguments.topology, arguments.seed, note)?;
    let (nodes, links) = (topology.nodes().len(), topology.links().len());
    let umad = arguments.umad.clone();
    let hosts = topology.nodes().iter().filter(|node| node.kind == NodeType::CHANNEL_ADAPTER);
    let hosts: Vec<String> = hosts.map(|node| node.name.clone()).collect();
    let ports = arguments.socket.as_ref().map(|socket| device_names(socket, &hosts));
    // Signals are handled before there are sockets, which a signal would leave behind otherwise.
    let (wake, is_over) = signals()?;
    let mut fabric = RunningFabric::new(FabricConfig {
        topology,
        seed: arguments.seed,
        socket: arguments.socket,
        umad: arguments.umad,
        wires: arguments.wires,
        capture: arguments.capture,
        faults: arguments.faults,
        is_paced: arguments.paced,
        partitions,
        managers: arguments.managers,
        m_key: arguments.m_key,
        sm_key: arguments.sm_key,
        lmc: arguments.lmc,
    })?;
    let spec = arguments.topology;
    say(&format!("fabric {spec}: {nodes} nodes, {links} links, seed {}", arguments.seed));
    if let Some(ports) = ports.filter(|_| !hosts.is_empty()) {
        say(&ports);
    }
    if let Some(name) = umad {
        let preload = "LD_PRELOAD=libumad2sim.so";
        say(&format!("programs: {preload} IBSIM_SOCKNAME={name} SIM_HOST=NODE opensm"));
    }
    fabric.run(wake, || is_over.load(Ordering::Relaxed))?;
    say("fabric: over");
    Ok(())
}

/// The device names by which programs open the ports of the hosts.
fn device_names(socket: &Path, hosts: &[String]) -> String {
    let socket = socket.display();
    match hosts {
        [first, .., last] => format!("devices: soft:{socket}@{first} to soft:{socket}@{last}"),
        [one] => format!("devices: soft:{socket}@{one}"),
        [] => String::new(),
    }
}
