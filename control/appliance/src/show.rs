//! `pollux show`, `pollux idle` and `pollux fault`: requests to a running node or fabric, and its
//! replies as tables.

use crate::asking::{self, NodeSocket, Wait, ask};
use crate::columns::{Columns, Selected};
use crate::output::{print, print_value};
use crate::table::{Cell, table};
use crate::topology::{TopologyForm, show_planned, show_running};
use clap::{Args, Subcommand, ValueEnum};
use pollux_node::admin::request::AdminRequest;
use pollux_node::admin::rows::{
    AclStatus, ConnectionStatus, DropCount, FaultStatus, GroupStatus, InterfaceStatus,
    KernelStatus, LinkStatus, MulticastStatus, MulticastTree, NeighborStatus, NodeStatus,
    PortStatus, RouteStatus, SocketStatus, TableRow, WorkerStatus,
};
use std::error::Error;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct ShowArguments {
    /// The table to show
    what: What,
    /// topology: instead of a running fabric, show a plan: a file with the output of
    /// ibnetdiscover, or a specification as in `pollux fabric --topology`
    #[arg(value_name = "FILE|SPEC", conflicts_with = "socket")]
    plan: Option<String>,
    /// Socket of the node, the fabric or the program (`Setup::admin_socket`)
    #[arg(long, value_name = "PATH", required_unless_present = "plan")]
    socket: Option<PathBuf>,
    /// Only the rows of this interface of a node
    #[arg(long, value_name = "INTERFACE")]
    interface: Option<String>,
    /// Also drop counters that are zero, and routes that others replace; JSON has them always
    #[arg(long)]
    all: bool,
    /// Also what TCP connections measured: round-trip time, windows, retransmissions; JSON has it
    /// always
    #[arg(long)]
    verbose: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// topology: print a picture in SVG: nodes, ports, links, states, rates and counters
    #[arg(long, conflicts_with_all = ["json", "html"])]
    svg: bool,
    /// topology: print a page in HTML: the picture, and tables of nodes and links
    #[arg(long, conflicts_with = "json")]
    html: bool,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Fabric: nodes, with GUIDs, LIDs and drop counters
    Nodes,
    /// Fabric: ports, with state, attached process and counters
    Ports,
    /// Fabric: links, with rate and state
    Links,
    /// Fabric: switches and hosts by level, with their links, as text, a picture or a page
    Topology,
    /// Fabric: multicast groups, with the switch ports in their trees; node: groups, with state
    Groups,
    /// Node: interfaces, with state and its reason, addresses and counters
    Interfaces,
    /// Node: neighbors, with state, link address, and transport of packets to them
    Neighbors,
    /// Node: connections, with peer, state and counters
    Connections,
    /// Node: worker threads, with core, idle strategy and counters
    Workers,
    /// Node: routes, with their next hops, their source, and why some are not used
    Routes,
    /// Node: rules of access control lists, with counters
    Acl,
    /// Node: multicast routes, with the interfaces where packets arrive and leave
    Multicast,
    /// Node: drop counters, by reason
    Drops,
    /// Node: the routing table of the kernel whose routes it uses, and what it read
    Kernel,
    /// Program that uses the library: sockets, with peer, state and queues in bytes
    Sockets,
}

#[derive(Args)]
pub struct IdleArguments {
    /// Idle strategy: poll, pause or adaptive
    strategy: String,
    /// Change only this worker, numbered as in `show workers` [default: all]
    #[arg(long, value_name = "NUMBER")]
    worker: Option<usize>,
    #[command(flatten)]
    node: NodeSocket,
}

#[derive(Args)]
pub struct FaultArguments {
    /// Socket of the fabric
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    #[command(flatten)]
    wait: Wait,
    #[command(subcommand)]
    command: FaultCommand,
}

#[derive(Subcommand)]
enum FaultCommand {
    /// Add a rule, and print its number
    Add {
        /// [NODE:PORT/]loss=1%,duplicate=..,reorder=..,delay=20us,corrupt=..; or NODE:PORT/down
        rule: String,
    },
    /// Remove a rule
    Del {
        /// Number of the rule, as printed by `add` and `list`
        number: u32,
    },
    /// List all rules
    List,
}

impl ShowArguments {
    fn socket(&self) -> Result<&Path, Box<dyn Error>> {
        Ok(self.socket.as_deref().ok_or("no socket given; name it with --socket PATH")?)
    }
}

pub fn show(arguments: &ShowArguments) -> Result<(), Box<dyn Error>> {
    let ShowArguments { plan, svg, html, .. } = arguments;
    if arguments.what != What::Topology && (plan.is_some() || *svg || *html) {
        let advice = "only `pollux show topology` has FILE|SPEC, --svg and --html";
        return Err(
            format!("{advice}; leave them out, and name a socket with --socket PATH").into()
        );
    }
    match arguments.what {
        What::Topology => topology(arguments),
        What::Nodes => show_table::<NodeStatus>(arguments),
        What::Ports => show_table::<PortStatus>(arguments),
        What::Links => show_table::<LinkStatus>(arguments),
        What::Groups => print_rows(arguments, rows(arguments)?, groups),
        What::Interfaces => show_table::<InterfaceStatus>(arguments),
        What::Neighbors => show_table::<NeighborStatus>(arguments),
        What::Connections => show_table::<ConnectionStatus>(arguments),
        What::Workers => show_table::<WorkerStatus>(arguments),
        What::Acl => show_table::<AclStatus>(arguments),
        What::Multicast => show_table::<MulticastStatus>(arguments),
        What::Routes => show_table::<RouteStatus>(arguments),
        What::Drops => print_rows(arguments, rows(arguments)?, drops),
        What::Kernel => show_table::<KernelStatus>(arguments),
        What::Sockets => {
            print_rows(arguments, rows(arguments)?, |rows| sockets(&rows, arguments.verbose))
        }
    }
}

fn topology(arguments: &ShowArguments) -> Result<(), Box<dyn Error>> {
    let form = match arguments {
        ShowArguments { svg: true, .. } => TopologyForm::Svg,
        ShowArguments { html: true, .. } => TopologyForm::Html,
        ShowArguments { json: true, .. } => TopologyForm::Json,
        _ => TopologyForm::Text,
    };
    match &arguments.plan {
        Some(plan) => show_planned(plan, form),
        None => show_running(arguments.socket()?, arguments.wait, form),
    }
}

fn show_table<R: TableRow + Columns + Selected>(
    arguments: &ShowArguments,
) -> Result<(), Box<dyn Error>> {
    print_rows(arguments, rows::<R>(arguments)?, |rows| table(&rows, R::COLUMNS))
}

/// The rows of the given interface, or all rows.
fn rows<R: TableRow + Selected>(arguments: &ShowArguments) -> Result<Vec<R>, Box<dyn Error>> {
    let ShowArguments { wait, interface, .. } = arguments;
    let socket = arguments.socket()?;
    let mut rows: Vec<R> = asking::rows(socket, *wait)?;
    let Some(interface) = interface else { return Ok(rows) };
    rows.retain(|row| row.is_of(interface));
    if rows.is_empty() {
        let known: Vec<InterfaceStatus> = asking::rows(socket, *wait)?;
        if !known.iter().any(|one| one.is_of(interface)) {
            let advice = "list them with `pollux show interfaces`";
            return Err(format!("there is no interface {interface}; {advice}").into());
        }
    }
    Ok(rows)
}

fn print_rows<R: TableRow + Selected>(
    arguments: &ShowArguments,
    mut rows: Vec<R>,
    text: impl FnOnce(Vec<R>) -> String,
) -> Result<(), Box<dyn Error>> {
    rows.retain(|row| arguments.json || arguments.all || !row.is_zero());
    print_value(arguments.json, rows, text)
}

/// Drops that indicate a fault come first.
fn drops(mut rows: Vec<DropCount>) -> String {
    rows.sort_by_key(|row| row.usual);
    table(&rows, DropCount::COLUMNS)
}

fn sockets(rows: &[SocketStatus], is_verbose: bool) -> String {
    let mut columns = SocketStatus::COLUMNS.to_vec();
    if is_verbose {
        columns.push(("tcp", |row| row.tcp.cell()));
    }
    table(rows, &columns)
}

/// The groups of a node have other columns than the groups of a fabric.
fn groups(rows: Vec<GroupStatus>) -> String {
    let (mut memberships, mut trees) = (Vec::new(), Vec::<MulticastTree>::new());
    for row in rows {
        match row {
            GroupStatus::Membership(membership) => memberships.push(membership),
            GroupStatus::Tree(tree) => trees.push(tree),
        }
    }
    match memberships.is_empty() {
        true => table(&trees, Columns::COLUMNS),
        false => table(&memberships, Columns::COLUMNS),
    }
}

pub fn fault(arguments: &FaultArguments) -> Result<(), Box<dyn Error>> {
    let socket = arguments
        .socket
        .as_deref()
        .ok_or("no socket given; name the fabric's socket with --socket PATH")?;
    match &arguments.command {
        FaultCommand::Add { rule } => {
            let request = AdminRequest::AddFault(rule.clone());
            let number: u32 = ask(socket, arguments.wait, &request)?;
            Ok(print(&format!("{number}\n"))?)
        }
        FaultCommand::Del { number } => {
            ask::<u32>(socket, arguments.wait, &AdminRequest::RemoveFault(*number))?;
            Ok(())
        }
        FaultCommand::List => {
            let rules: Vec<_> = ask(socket, arguments.wait, &AdminRequest::ListFaults)?;
            Ok(print(&table(&rules, FaultStatus::COLUMNS))?)
        }
    }
}

pub fn idle(arguments: &IdleArguments) -> Result<(), Box<dyn Error>> {
    let IdleArguments { strategy, worker, node } = arguments;
    let request = AdminRequest::Idle { strategy: strategy.clone(), worker: *worker };
    Ok(node.ask(&request)?)
}
