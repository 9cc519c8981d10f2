//! From cables to a subnet where every port is active: our manager, and beside it OpenSM over
//! ibsim.
//!
//! ```text
//! cargo bench -p pollux-fabric --bench bring_up
//! ```
//!
//! On two cores of a virtual machine (clock of 2.3 GHz) that others kept busy, from two runs; the
//! first two rows are medians of five that took turns. OpenSM's time is that of its whole process.
//!
//! | what | figure |
//! |---|---|
//! | 1,008 hosts, ours, in memory | 0.092 to 0.094 s |
//! | 1,008 hosts, `opensm -o` over ibsim | 1.00 to 1.34 s |
//! | 10,000 hosts, ours | 0.83 to 4.2 s, 63 MB resident |
//! | paths asked for as Linux does, 10,000 hosts | 25,000 to 76,000 a second |
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use pollux_fabric::Time;
use pollux_fabric::sm::{Config, Residents};
use pollux_fabric::subnet::{Datagram, Subnet};
use pollux_fabric::topology::{End, Topology};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::sa::{PathRecord, PathRecordMask, SaMad};
use pollux_wire::mad::smp::{NodeType, PortState};
use pollux_wire::mad::{MadStatus, Method};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const THOUSAND: &str = "leaf-spine:63x16x16";
const TEN_THOUSAND: &str = "leaf-spine:100x20x100";
const RUNS: usize = 5;
const QUESTIONS: u32 = 200_000;

fn main() {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.push(bring_up(THOUSAND).1);
        theirs.extend(opensm(THOUSAND));
    }
    println!("{THOUSAND}: ours {:.3?}", median(&mut ours));
    match theirs.is_empty() {
        true => println!("SKIP: opensm or ibsim is not installed"),
        false => println!("{THOUSAND}: opensm over ibsim {:.3?}", median(&mut theirs)),
    }
    let (mut managed, took) = bring_up(TEN_THOUSAND);
    println!("{TEN_THOUSAND}: ours {took:.3?}, {} MB resident", resident_megabytes());
    let took = managed.ask(QUESTIONS);
    println!("path records: {:.0} a second", f64::from(QUESTIONS) / took.as_secs_f64());
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

struct Managed {
    subnet: Subnet,
    managers: Residents,
}

/// A subnet without addresses, until all its ports are active.
fn bring_up(spec: &str) -> (Managed, Duration) {
    let mut subnet = Subnet::new(Topology::generate(spec, 1).expect("a topology"));
    let mut managers = Residents::default();
    let at = host(&subnet, 0);
    let began = Instant::now();
    managers.start(&mut subnet, at, Config::default());
    managers.settle(Time::START, &mut subnet, |_, _| {});
    let took = began.elapsed();
    let ports = || subnet.nodes().iter().flat_map(|node| &node.ports[1..]);
    let is_up = ports().all(|port| port.info.port_state == PortState::ACTIVE);
    assert!(is_up, "all ports are active");
    (Managed { subnet, managers }, took)
}

fn host(subnet: &Subnet, number: usize) -> End {
    let nodes = (0..).zip(subnet.topology().nodes());
    let mut hosts = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
    End { node: hosts.nth(number).expect("so many hosts").0, port: 1 }
}

impl Managed {
    /// Asks for paths as Linux does, from one host to all others in turn.
    fn ask(&mut self, questions: u32) -> Duration {
        let gid = |end: End| self.subnet.nodes()[end.node as usize].gid(end.port);
        let lid = |end: End| self.subnet.nodes()[end.node as usize].lid(end.port);
        let (manager, from) = (host(&self.subnet, 0), host(&self.subnet, 1));
        let hosts = (0..).zip(self.subnet.nodes()).filter(|(_, node)| !node.is_switch());
        let gids: Vec<Gid> = hosts.map(|(node, _)| gid(End { node, port: 1 })).collect();
        let (sgid, slid, dlid) = (gid(from), lid(from), lid(manager));
        let (mut answers, began) = (0, Instant::now());
        for (number, dgid) in (0..questions).zip(gids.iter().cycle()) {
            let wanted = PathRecord {
                sgid,
                dgid: *dgid,
                numb_path: 1,
                p_key: PKey::DEFAULT,
                ..PathRecord::default()
            };
            let mask = PathRecordMask::LINUX_QUERY;
            let mad = SaMad::new(Method::GET, number.into(), mask, wanted).emit();
            let (src_qp, dest_qp) = (Qpn::GSI, Qpn::GSI);
            let datagram = Datagram { slid, dlid, src_qp, dest_qp, mad };
            self.subnet.send(Time::START, from, datagram);
            self.managers.settle(Time::START, &mut self.subnet, |_, datagram| {
                let answer = SaMad::parse(&datagram.mad);
                assert_eq!(answer.header.status, MadStatus::OK);
                answers += u32::from(
                    PathRecord::read(&answer.data).is_ok_and(|(path, _)| path.dlid != Lid::NONE),
                );
            });
        }
        let took = began.elapsed();
        assert_eq!(answers, questions, "every question has its answer");
        took
    }
}

fn resident_megabytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096 / 1_000_000
}

/// OpenSM's one sweep over ibsim, from its start until it says that the subnet is up.
fn opensm(spec: &str) -> Option<Duration> {
    let program = |name: &str| {
        let folders = ["/usr/sbin", "/usr/bin"].into_iter();
        folders.map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
    };
    let (opensm, ibsim) = (program("opensm")?, program("ibsim")?);
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    let mut preloads = folders.map(|folder| folder.path().join("umad2sim/libumad2sim.so"));
    let preload = preloads.find(|path| path.is_file())?;
    let name = format!("pollux-bench-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir_all(&folder).expect("a folder");
    let topology = Topology::generate(spec, 1).expect("a topology");
    fs::write(folder.join("net"), topology.to_string()).expect("the net");
    let mut nodes = topology.nodes().iter();
    let first = nodes.find(|node| node.kind == NodeType::CHANNEL_ADAPTER).expect("a host");
    let first = format!("H-{:016x}", first.guid.0);
    let mut command = Command::new(ibsim);
    // Its tables are for smaller nets than ours.
    command.args(["-s", "-n", "-N", "2000", "-S", "200", "-P", "20000", "-L", "50000", "net"]);
    let simulator = Running::start(command.env("IBSIM_SOCKNAME", &name), &folder);
    let mut command = Command::new(opensm);
    command.args(["-o", "-e", "-f", "osm.log", "-d", "2"]).env("LD_PRELOAD", preload);
    command.env("IBSIM_SOCKNAME", &name).env("SIM_HOST", first);
    command.env("OSM_TMP_DIR", ".").env("OSM_CACHE_DIR", ".");
    // The simulator may need a while to read the net; who connects too early waits two seconds.
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    let mut manager = Running::start(&mut command, &folder);
    let _ = manager.0.wait();
    let took = began.elapsed();
    let log = fs::read_to_string(folder.join("osm.log")).unwrap_or_default();
    drop(simulator);
    let _ = fs::remove_dir_all(&folder);
    log.contains("SUBNET UP").then_some(took)
}

/// A program that runs beside us; it ends with this.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, folder: &Path) -> Self {
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.stderr(Stdio::null()).spawn().expect("the program starts"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
