//! Unmodified programs of management on the ConnectX in software: libibumad as it is, the
//! infiniband-diags, and OpenSM as the subnet manager.
//!
//! `scripts/host-setup --hca` installs the programs.
#![expect(clippy::disallowed_methods, reason = "other programs are waited for")]

use pollux_node::fabric::Embedded;
use pollux_node::programs::{ProgramEnvironment, find_library};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Ends a hang; no healthy run comes near it, even with a fiftieth of a processor.
const LIMIT: Duration = Duration::from_secs(900);
const STEP: Duration = Duration::from_millis(50);

/// The hosts of a fabric of this process.
struct Bench {
    fabric: Embedded,
}

/// A host, where programs run.
struct Host {
    environment: ProgramEnvironment,
    /// The LID of its port.
    lid: String,
}

/// A program that runs until this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench {
    fn new(topology: &str) -> Self {
        Self { fabric: Embedded::start(topology).unwrap() }
    }

    fn host(&self, name: &str) -> Host {
        let library = find_library().unwrap();
        let environment = ProgramEnvironment::new(&self.fabric.port(name), "mlx5_0", &library);
        let mut host = Host { environment: environment.unwrap(), lid: String::new() };
        host.lid = value_of(&host.run("smpquery", &["portinfo", "-D", "0"]), "Lid").to_owned();
        host
    }
}

impl Host {
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let variables = self.environment.variables().iter();
        // Tools of management are for the administrator.
        let mut command = Command::new(format!("/usr/sbin/{program}"));
        command.args(arguments).envs(variables.map(|(name, value)| (name, value)));
        command
    }

    /// Runs a program to its end, which has to be a success; returns its output.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let (is_ok, output) = self.try_run(program, arguments);
        assert!(is_ok, "{program} {arguments:?}: {output}");
        output
    }

    fn try_run(&self, program: &str, arguments: &[&str]) -> (bool, String) {
        let limit = format!("{}", LIMIT.as_secs());
        let path = format!("/usr/sbin/{program}");
        assert!(File::open(&path).is_ok(), "no {path}; run scripts/host-setup --hca");
        let variables = self.environment.variables().iter();
        let mut command = Command::new("timeout");
        command
            .args([&limit, "env"])
            .args(variables.map(|(name, value)| format!("{name}={value}")));
        let output = command.arg(path).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    /// Asserts that the output of a program has all of these.
    fn says(&self, program: &str, arguments: &[&str], parts: &[&str]) {
        let output = self.run(program, arguments);
        for part in parts {
            assert!(output.contains(part), "{program} {arguments:?}: no {part:?} in:\n{output}");
        }
    }

    fn start(&self, program: &str, arguments: &[&str]) -> Running {
        let mut command = self.command(program, arguments);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Running(
            child
                .unwrap_or_else(|error| panic!("{program}: {error}; run scripts/host-setup --hca")),
        )
    }
}

/// The value of a field as `smpquery` prints it: `Name:......value`.
fn value_of<'a>(output: &'a str, field: &str) -> &'a str {
    let line = output.lines().find(|line| line.starts_with(&format!("{field}:")));
    let line = line.unwrap_or_else(|| panic!("no {field} in:\n{output}"));
    line.rsplit('.').next().unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..LIMIT.as_millis() / STEP.as_millis() {
        if is_so() {
            return;
        }
        sleep(STEP);
    }
    panic!("not within {LIMIT:?}: {what}");
}

mod infiniband_diags {
    use super::Bench;

    /// In the quick gate: what needs one run of each kind.
    #[test]
    fn query_ports_by_directed_routes_by_lids_and_the_administrator() {
        let bench = Bench::new("single:2");
        let (one, two) = (bench.host("host1"), bench.host("host2"));
        one.says(
            "ibstat",
            &["mlx5_0"],
            &["State: Active", "Port GUID: 0x", "Link layer: InfiniBand"],
        );
        one.says("smpquery", &["nodeinfo", "-D", "0"], &["Channel Adapter"]);
        let own = format!("Lid:.............................{}\n", one.lid);
        one.says("smpquery", &["portinfo", "-D", "0"], &[&own, "LinkUp", "Active"]);
        let other = format!("Lid:.............................{}\n", two.lid);
        one.says("smpquery", &["portinfo", &two.lid, "1"], &[&other]);
        one.says("sminfo", &[], &["SMINFO_MASTER"]);
        one.says("perfquery", &["-x", &two.lid, "1"], &["PortXmitPkts", "PortRcvPkts"]);
        let route = format!("{}:{}", one.lid, two.lid);
        let said = format!("dlid....................{}\n", two.lid);
        one.says("saquery", &["--src-to-dst", &route], &[&said]);
        // Nobody is at this LID: the request comes back after its timeout.
        let (is_ok, output) = one.try_run("smpquery", &["-t", "50", "nodeinfo", "77"]);
        assert!(!is_ok && output.contains("failed"), "{output}");
    }

    #[test]
    fn tables_of_many_nodes_arrive_in_segments() {
        // 208 nodes, whose records are 23 kB.
        let bench = Bench::new("fat-tree:8");
        let host = bench.host("host1");
        let nodes = host.run("saquery", &["NR"]);
        assert_eq!(nodes.matches("NodeRecord dump:").count(), 208, "{nodes}");
        let paths = host.run("saquery", &["--src-to-dst", &format!("{}:{}", host.lid, host.lid)]);
        assert!(paths.contains("PathRecord dump:"), "{paths}");
        let map = host.run("ibnetdiscover", &[]);
        let count = |kind: &str| map.lines().filter(|line| line.starts_with(kind)).count();
        assert_eq!((count("Ca\t"), count("Switch\t")), (128, 80), "{map}");
        let links = host.run("iblinkinfo", &["-l"]);
        assert!(links.contains("host128"), "{links}");
    }
}

mod ibping {
    use super::{Bench, wait_until};

    #[test]
    fn of_one_process_is_answered_by_another() {
        let bench = Bench::new("single:2");
        let (one, two) = (bench.host("host1"), bench.host("host2"));
        let server = one.start("ibping", &["-S"]);
        // It prints nothing when it is ready.
        wait_until("an answer", || two.try_run("ibping", &["-c", "1", "-t", "100", &one.lid]).0);
        two.says(
            "ibping",
            &["-c", "5", &one.lid],
            &["5 packets transmitted, 5 received, 0% packet loss"],
        );
        // The port of the server has another process at the same time.
        one.says("smpquery", &["nodedesc", &two.lid], &["Node Description"]);
        // A second server cannot have its class.
        let (is_ok, output) = one.try_run("ibping", &["-S"]);
        assert!(!is_ok && output.contains("can't serve class"), "{output}");
        drop(server);
        // A server that was killed leaves its class to the next one.
        let _server = one.start("ibping", &["-S"]);
        wait_until("an answer", || two.try_run("ibping", &["-c", "1", "-t", "100", &one.lid]).0);
    }
}

/// Messages between two hosts, by the addresses that the subnet manager gave them.
fn ping_pong(one: &Host, two: &Host) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let arguments = ["-e", "-n", "200", "-p", &port];
    let start = |host: &Host, peer: &[&str]| {
        let variables = host.environment.variables().iter();
        let mut command = Command::new("ibv_rc_pingpong");
        command.args(arguments).args(peer).envs(variables.map(|(name, value)| (name, value)));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Running(child.expect("run scripts/host-setup --hca"))
    };
    let mut server = start(one, &[]);
    let mut client = start(two, &["127.0.0.1"]);
    let mut restarted = 0;
    wait_until("the client has ended", || match client.0.try_wait().unwrap() {
        Some(status) if status.success() => true,
        // The server was not there yet.
        Some(_) => {
            restarted += 1;
            client = start(two, &["127.0.0.1"]);
            restarted > 1000
        }
        None => false,
    });
    wait_until("the server has ended", || server.0.try_wait().unwrap().is_some());
    let [one, two] = [server, client].map(|mut program| {
        let mut output = String::new();
        program.0.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        output
    });
    assert!(one.contains("200 iters in") && two.contains("200 iters in"), "{one}\n{two}");
}

mod opensm {
    use super::*;

    #[test]
    fn brings_a_fabric_up_for_pingpongs() {
        let fabric = Embedded::start_unmanaged("single:2", &["host1"]).unwrap();
        let bench = Bench { fabric };
        let manager = bench.host("host1");
        assert_eq!(manager.lid, "0", "nobody has managed it");
        let folder = std::env::temp_dir().join(format!("pollux-opensm-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = manager.command("opensm", &["-e", "-f", "stdout", "-d", "2", "-s", "1"]);
        command.env("OSM_TMP_DIR", &folder).env("OSM_CACHE_DIR", &folder).current_dir(&folder);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut opensm = Running(child.expect("run scripts/host-setup --hca"));
        let mut lines = BufReader::new(opensm.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("SUBNET UP")), "it has ended");
        let drain = std::thread::spawn(move || lines.for_each(drop));
        let (one, two) = (bench.host("host1"), bench.host("host2"));
        two.says("sminfo", &[], &["SMINFO_MASTER"]);
        // IsSM, while OpenSM has the file open.
        two.says("smpquery", &["portinfo", &one.lid, "1"], &["IsSM\n"]);
        // Tables of OpenSM: it is the sender of their segments.
        let nodes = two.run("saquery", &["NR"]);
        assert_eq!(nodes.matches("NodeRecord dump:").count(), 3, "{nodes}");
        two.says(
            "saquery",
            &["--src-to-dst", &format!("{}:{}", two.lid, one.lid)],
            &["PathRecord"],
        );
        ping_pong(&one, &two);
        drop(opensm);
        drain.join().unwrap();
        let capabilities = two.run("smpquery", &["portinfo", &one.lid, "1"]);
        assert!(!capabilities.contains("IsSM\n"), "{capabilities}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
