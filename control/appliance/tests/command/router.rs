//! A node that forwards between two partitions, and hosts in each.

use crate::running::{Ending, TIMEOUT, folder, pollux};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

const PARTITIONS: &str = "Default=0x7fff, ipoib, defmember=full : ALL=full, SELF=full;\n\
    one=0x1, ipoib, defmember=full : ALL=full, SELF=full;\n";

/// A host in the default partition, with connections.
const A: &str = "[interface.ib0]\ndevice = \"soft:fabric.sock@host1\"\nmode = \"rc\"\n\
    address = [\"10.1.0.1/24\", \"fd01::1/64\"]\nrouter = [\"10.1.0.254\", \"fd01::fe\"]\n";

/// A host in the other partition, with datagrams.
const B: &str = "[interface.ib0]\ndevice = \"soft:fabric.sock@host2\"\npkey = 0x8001\n\
    address = [\"10.2.0.1/24\", \"fd02::1/64\"]\nrouter = [\"10.2.0.254\", \"fd02::fe\"]\n";

/// The router between the two.
pub const R: &str = "[interface.ib0]\ndevice = \"soft:fabric.sock@host3\"\nmode = \"rc\"\n\
    address = [\"10.1.0.254/24\", \"fd01::fe/64\"]\n\
    [interface.ib1]\ndevice = \"soft:fabric.sock@host3\"\npkey = 0x8001\n\
    address = [\"10.2.0.254/24\", \"fd02::fe/64\"]\n";

/// Two hosts and a router.
pub struct Net {
    pub folder: PathBuf,
    _processes: Vec<Ending>,
}

impl Net {
    pub fn new(test: &str, router: &str) -> Self {
        Self::of(test, [A, B, router])
    }

    /// With these configurations of host a, host b and the router r.
    pub fn of(test: &str, [a, b, router]: [&str; 3]) -> Self {
        let folder = folder(test);
        std::fs::create_dir(&folder).expect("no other test has this folder");
        let files = [("a.toml", a), ("b.toml", b), ("r.toml", router)];
        for (name, text) in files.into_iter().chain([("partitions.conf", PARTITIONS)]) {
            std::fs::write(folder.join(name), text).expect("it is ours");
        }
        let start = |arguments: &str| {
            let mut command = pollux(&arguments.split(' ').collect::<Vec<_>>());
            let command = command.current_dir(&folder).stdout(Stdio::null());
            Ending(command.stderr(Stdio::null()).spawn().expect("it starts"))
        };
        let fabric = "fabric --topology single:4 --socket fabric.sock --partitions partitions.conf";
        let mut processes = vec![start(fabric)];
        let run = |name| start(&format!("run {name}.toml --socket {name}.sock"));
        processes.extend(["a", "b", "r"].map(run));
        Self { folder, _processes: processes }
    }

    /// A command for a node: whether it succeeds, and what it prints.
    pub fn run(&self, node: &str, arguments: &str) -> (bool, String) {
        let mut command = pollux(&arguments.split(' ').collect::<Vec<_>>());
        command.args(["--socket", &format!("{node}.sock")]).current_dir(&self.folder);
        let output = command.output().expect("it starts");
        let printed = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
    }

    pub fn rows(&self, node: &str, table: &str) -> Vec<Value> {
        let (is_done, printed) = self.run(node, &format!("show {table} --json"));
        assert!(is_done, "{printed}");
        serde_json::from_str(&printed).expect("it is JSON")
    }

    /// The count of a reason at an interface of the router.
    pub fn drops(&self, interface: &str, of: &str, why: &str) -> u64 {
        let rows = self.rows("r", "drops");
        let is_it =
            |row: &&Value| row["interface"] == interface && row["of"] == of && row["why"] == why;
        rows.iter().find(is_it).and_then(|row| row["count"].as_u64()).expect("a row of each")
    }

    /// Has the router read another configuration.
    pub fn reload(&self, router: &str) -> String {
        std::fs::write(self.folder.join("r.toml"), router).expect("it is ours");
        let (is_done, printed) = self.run("r", "reload");
        assert!(is_done, "{printed}");
        printed
    }

    /// Pings until the output has these words.
    pub fn until(&self, node: &str, ping: &str, words: &str) -> String {
        let begun = Instant::now();
        loop {
            let (_, printed) = self.run(node, &format!("ping {ping} --count 1"));
            if printed.contains(words) {
                return printed;
            }
            assert!(begun.elapsed() < TIMEOUT, "no {words:?} of ping {ping}: {printed}");
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn two_partitions_are_routed() {
    let net = Net::new("router", &format!("{R}[router]\n"));
    for (node, to) in [("a", "10.2.0.1"), ("a", "fd02::1"), ("b", "10.1.0.1"), ("b", "fd01::1")] {
        // One less than the 64 of the reply.
        net.until(node, to, "ttl=63");
        // Every packet, and in step: there is no other traffic.
        let (is_done, printed) = net.run(node, &format!("ping {to} --count 50 --interval 0.002"));
        assert!(is_done && printed.contains("50 received"), "{printed}");
    }
    // The addresses of its other interface are the router's own.
    net.until("a", "10.2.0.254", "ttl=64");
}

#[test]
fn senders_get_the_reason_for_which_a_packet_is_not_forwarded() {
    let routes = "[router]\n\
        [[route]]\nto = \"10.7.0.0/16\"\ntype = \"blackhole\"\n\
        [[route]]\nto = \"10.8.0.0/16\"\ntype = \"unreachable\"\n\
        [[route]]\nto = \"10.9.0.0/16\"\ntype = \"prohibit\"\n\
        [[route]]\nto = \"fd09::/16\"\ntype = \"prohibit\"\n";
    let net = Net::new("router-errors", &format!("{R}{routes}"));
    net.until("a", "10.2.0.1", "ttl=63");
    net.until("a", "fd02::1", "ttl=63");
    // As traceroute sees the way: the address of the router towards the sender.
    net.until("a", "10.2.0.1 --ttl 1", "From 10.1.0.254: icmp_seq=1 time to live exceeded");
    net.until("a", "fd02::1 --ttl 1", "From fd01::fe: icmp_seq=1 time to live exceeded");
    net.until("a", "10.2.0.1 --ttl 2", "ttl=63");
    net.until("a", "10.8.0.1", "From 10.1.0.254: icmp_seq=1 destination host unreachable");
    net.until("a", "10.9.0.1", "From 10.1.0.254: icmp_seq=1 packet filtered");
    net.until("a", "fd09::1", "From fd01::fe: icmp_seq=1 packet filtered");
    net.until("a", "10.66.0.1", "From 10.1.0.254: icmp_seq=1 destination host unreachable");
    net.until("a", "10.7.0.1", "no answer");
    // Nobody has this address: resolution fails at the other interface.
    net.until("a", "10.2.0.99", "From 10.1.0.254: icmp_seq=1 destination host unreachable");
    // Connections take 65,520 bytes, and datagrams 2,044.
    net.until(
        "a",
        "10.2.0.1 --size 8000",
        "From 10.1.0.254: icmp_seq=1 message too long, mtu=2044",
    );
    net.until("a", "fd02::1 --size 8000", "From fd01::fe: icmp_seq=1 message too long, mtu=2044");
    net.until("a", "10.2.0.1 --size 2016", "ttl=63");
    let begun = Instant::now();
    let counted = |why, least| net.drops("ib0", "forward", why) >= least;
    while !(counted("time_exceeded", 2) && counted("no_route", 1) && counted("blackhole", 1)) {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", net.rows("r", "drops"));
    }
    assert!(counted("rejected", 3), "{:?}", net.rows("r", "drops"));
}

#[test]
fn a_node_without_a_router_table_forwards_nothing() {
    let net = Net::new("router-off", R);
    net.until("a", "10.1.0.254", "ttl=64");
    net.until("a", "10.2.0.1", "no answer");
    let begun = Instant::now();
    while net.drops("ib0", "port_driver", "transit") == 0 {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", net.rows("r", "drops"));
    }
    // A reload turns it on.
    std::fs::write(net.folder.join("r.toml"), format!("{R}[router]\n")).expect("it is ours");
    let (is_done, printed) = net.run("r", "reload");
    assert!(is_done && printed.contains("router: forwarding on"), "{printed}");
    net.until("a", "10.2.0.1", "ttl=63");
}

#[test]
fn routes_follow_the_configuration_and_the_links() {
    let routes = |via: &str| format!("{R}[router]\n[[route]]\nto = \"10.9.0.0/16\"\n{via}\n");
    let net = Net::new("router-routes", &routes("via = [\"10.2.0.1\", \"10.99.0.1\"]"));
    net.until("a", "10.2.0.1", "ttl=63");
    let rows = net.rows("r", "routes");
    let row = |to: &str| rows.iter().find(|row| row["to"] == to).expect("a row").clone();
    assert_eq!(row("10.1.0.0/24")["source"], "connected");
    assert_eq!(row("10.1.0.0/24")["via"][0]["interface"], "ib0");
    let hops = row("10.9.0.0/16")["via"].clone();
    let why = "10.99.0.1: on no link of an interface that is up";
    assert_eq!(row("10.9.0.0/16")["why"], why);
    let hop = serde_json::json!({ "interface": "ib1", "gateway": "10.2.0.1", "weight": 1 });
    assert_eq!(hops, serde_json::json!([hop]));
    // b has no such address, and sends it back, until the TTL runs out between the two.
    net.until("a", "10.9.0.1 --ttl 9", "no answer");
    let text = routes("type = \"prohibit\"");
    std::fs::write(net.folder.join("r.toml"), text).expect("it is ours");
    let (is_done, printed) = net.run("r", "reload");
    assert!(is_done && printed.contains("route: prohibit 10.9.0.0/16"), "{printed}");
    net.until("a", "10.9.0.1", "packet filtered");
    // An interface that goes takes its routes along.
    let text = R.split("[interface.ib1]").next().expect("ib0").to_owned() + "[router]\n";
    std::fs::write(net.folder.join("r.toml"), text).expect("it is ours");
    assert!(net.run("r", "reload").0);
    net.until("a", "10.2.0.1", "From 10.1.0.254: icmp_seq=1 destination host unreachable");
    let rows = net.rows("r", "routes");
    assert!(rows.iter().all(|row| row["to"] != "10.2.0.0/24"), "{rows:?}");
}
