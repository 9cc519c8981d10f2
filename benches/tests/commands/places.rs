//! One campaign between two processes, between two network namespaces, and between the software
//! fabric's adapter and the ConnectX in software; its page, and what moved when a core is shared.

use crate::browser;
use crate::programs::{self, Folder, PERF, Server, printed};
use pollux_node::fabric::Embedded;
use std::fs;
use std::process::Command;

const CAMPAIGN: &str = "
rounds = 7
keep_disturbed = true
duration = 0.05

[[measure]]
what = [\"lat\"]
transport = [\"rc\", \"ud\"]
size = [64, 2000]

[[measure]]
what = [\"bw\"]
size = [2000, 100000]

[[measure]]
what = [\"lat\"]
layer = [\"udp\", \"tcp\"]

[[measure]]
what = [\"lat\"]
layer = [\"tcp\"]
sockets = [\"kernel\"]
";
const ROWS: usize = 9;
const ROWS_OF_LATENCY: usize = 7;
/// Three sweeps, the percentiles of each latency, and the rounds of each row.
const PLOTS: usize = 3 + ROWS_OF_LATENCY + ROWS;

const TRIES: u32 = 4;

/// Runs the campaign, and in pairs of which the second has both ends on one core. `client` is the
/// command where the client runs.
fn check(server: &Server, client: impl Fn() -> Command, device: &str) {
    let _alone = programs::alone();
    let folder = Folder::new();
    let campaign = folder.write("campaign.toml", CAMPAIGN);
    let run = |name: &str, cores: &str| {
        let into = folder.path(name);
        let mut command = client();
        command.args(["campaign", &campaign, "--into", &into, "--connect", &server.at]);
        let text = printed(&command.args(["--device", device, "--cores", cores]).output().unwrap());
        assert_eq!(text.matches(" messages").count(), ROWS_OF_LATENCY, "{text}");
        into
    };
    let diff = |before: &str, after: &str| {
        let output = Command::new(PERF).args(["diff", before, after]).output().expect("it runs");
        (output.status.success(), String::from_utf8(output.stdout).expect("it is text"))
    };
    let alone = run("alone.json", "1,0");
    assert_eq!(diff(&alone, &alone), (true, format!("nothing moved, in {ROWS} rows\n")));
    // Where others take the cores, the first run is as slow as the second.
    let is_seen = (0..TRIES).any(|_| {
        let (alone, shared) = (run("again.json", "1,0"), run("shared.json", "0,0"));
        let (is_well, moved) = diff(&alone, &shared);
        println!("{moved}");
        for path in [&alone, &shared] {
            fs::remove_file(path).expect("it is there");
        }
        let rows = ["lat of verbs over rc, 64 bytes", "lat of tcp over rc, 64 bytes"];
        !is_well && rows.iter().all(|row| moved.contains(&format!("worse: {row}: ")))
    });
    assert!(is_seen, "no slower on a shared core, in {TRIES} tries");
    let report = Command::new(PERF).args(["report", &alone]).output().expect("it runs");
    browser::check(&printed(&report), PLOTS);
}

#[test]
fn two_processes() {
    let fabric = Embedded::start("single:2").expect("a fabric");
    let server = Server::start(&["--device", &fabric.port("host2")]);
    check(&server, || Command::new(PERF), &fabric.port("host1"));
}

/// Two network namespaces with a cable between them, gone when dropped.
struct Namespaces([String; 2]);

impl Namespaces {
    const ADDRESSES: [&str; 2] = ["192.168.91.1", "192.168.91.2"];

    /// `None`, with a printed reason, where the test may not.
    fn make(test: &str) -> Option<Self> {
        pollux_referee::program_of(test, "ip", "--vm")?;
        let names = [1, 2].map(|end| format!("pollux-perf-{}-{end}", std::process::id()));
        let ip = |arguments: &str| {
            let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
            output.status.success()
        };
        let [near, far] = &names;
        if !ip(&format!("netns add {near}")) {
            pollux_referee::skip(test, "network namespaces need root");
            return None;
        }
        let both = Self(names.clone());
        assert!(ip(&format!("netns add {far}")));
        assert!(ip(&format!("-n {near} link add eth0 type veth peer name eth0 netns {far}")));
        for (name, address) in names.iter().zip(Self::ADDRESSES) {
            assert!(ip(&format!("-n {name} address add {address}/24 dev eth0")));
            assert!(ip(&format!("-n {name} link set eth0 up")));
            assert!(ip(&format!("-n {name} link set lo up")));
        }
        Some(both)
    }

    fn command(&self, end: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[end], PERF]);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

#[test]
fn two_network_namespaces() {
    let Some(namespaces) = Namespaces::make("two_network_namespaces") else { return };
    let fabric = Embedded::start("single:2").expect("a fabric");
    let far = ["--device", &fabric.port("host2")];
    let server = Server::run(namespaces.command(1), Namespaces::ADDRESSES[1], &far);
    check(&server, || namespaces.command(0), &fabric.port("host1"));
}

/// The server's end is the ConnectX in software: the genuine libibverbs, and our work queues.
#[cfg(feature = "hca")]
#[test]
fn the_fabrics_adapter_and_the_connectx_in_software() {
    let test = "the_fabrics_adapter_and_the_connectx_in_software";
    if pollux_referee::program_of(test, "ibv_devinfo", "--hca").is_none() {
        return;
    }
    let built =
        pollux_referee::adapters::built("pollux-appliance", &["--package", "pollux-connectx"]);
    let fabric = Embedded::start("single:2").expect("a fabric");
    let mut exec = Command::new(built.join("pollux"));
    exec.args(["exec", "--fabric"]).arg(fabric.path()).args(["--node", "host2", "--", PERF]);
    let server = Server::run(exec, "127.0.0.1", &["--device", "mlx5_0:1"]);
    check(&server, || Command::new(PERF), &fabric.port("host1"));
}
