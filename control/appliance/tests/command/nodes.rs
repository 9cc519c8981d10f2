//! `pollux run`: nodes as processes at one fabric, and requests by `pollux show` and `pollux ping`.

use crate::running::{Ending, Running, TIMEOUT, output_of};
use pollux_dataplane::engine::counts::CountsSegment;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A node that runs at a host of a fabric.
pub struct Node {
    pub child: Ending,
    pub socket: String,
}

impl Node {
    /// Its interface has this mode.
    pub fn start(fabric: &Running, host: u32, mode: &str) -> Self {
        let interface = interface(fabric, host, "ib0", "10.0.0");
        Self::with(fabric, host, &format!("{interface}mode = {mode:?}\n"))
    }

    /// It is configured so.
    pub fn with(fabric: &Running, host: u32, text: &str) -> Self {
        let (config, socket) = (format!("node{host}.toml"), fabric.path(&format!("node{host}")));
        std::fs::write(fabric.path(&config), text).expect("there is a folder");
        let (is_ok, printed) = output_of(&["check", &fabric.path(&config)]);
        assert!(is_ok && printed.contains("interfaces: ib0"), "{printed}");
        let child = Command::new(env!("CARGO_BIN_EXE_pollux"))
            .args(["run", &fabric.path(&config), "--socket", &socket])
            .stdout(Stdio::null())
            .spawn();
        Self { child: Ending(child.expect("it starts")), socket }
    }

    pub fn ask(&self, question: &[&str]) -> (bool, String) {
        output_of(&[question, &["--socket", &self.socket]].concat())
    }

    pub fn show(&self, what: &str) -> Value {
        let (is_ok, answer) = self.ask(&["show", what, "--json"]);
        assert!(is_ok, "{answer}");
        serde_json::from_str(&answer).expect("it is JSON")
    }

    /// Whether one of its counters of this reason is not zero.
    fn has_dropped(&self, why: &str) -> bool {
        let rows = self.show("drops");
        let mut rows = rows.as_array().expect("rows").iter();
        rows.any(|row| row["why"] == why && row["count"] != 0)
    }

    /// Asks until there is an answer.
    pub fn reach(&self, address: &str, size: &str) {
        let begun = Instant::now();
        loop {
            let (is_ok, printed) = self.ask(&["ping", address, "--count", "1", "--size", size]);
            if is_ok {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "{printed}");
        }
    }

    /// Waits until the interface is up.
    pub fn come_up(&self) {
        let begun = Instant::now();
        loop {
            let (is_ok, answer) = self.ask(&["show", "interfaces", "--json"]);
            if is_ok && answer.contains("\"state\":\"up\"") {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "{answer}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// An interface at a host's port, with an address in a subnet.
pub fn interface(fabric: &Running, host: u32, name: &str, subnet: &str) -> String {
    let device = fabric.port(host);
    format!("[interface.{name}]\ndevice = {device:?}\naddress = [\"{subnet}.{host}/24\"]\n")
}

#[test]
fn nodes_at_a_fabric_ping_each_other_and_show_what_they_are() {
    let fabric = Running::new("nodes", &["--topology", "single:2"]);
    let nodes = [Node::start(&fabric, 1, "ud"), Node::start(&fabric, 2, "ud")];
    nodes.iter().for_each(Node::come_up);

    let (is_ok, text) = nodes[0].ask(&["ping", "10.0.0.2", "--count", "3", "--interval", "0.1"]);
    assert!(is_ok, "{text}");
    assert!(text.starts_with("PING 10.0.0.2 56(84) bytes of data.\n64 bytes from 10.0.0.2: "));
    assert!(text.contains("icmp_seq=3 ttl=64 time=") && text.contains("\n--- 10.0.0.2 ping"));
    assert!(text.contains("3 packets transmitted, 3 received, 0% packet loss"), "{text}");
    assert!(text.contains("rtt min/avg/max/mdev = "), "{text}");

    let neighbors = nodes[0].show("neighbors");
    assert_eq!(
        (&neighbors[0]["address"], &neighbors[0]["by"]),
        (&"10.0.0.2".into(), &"datagram".into())
    );
    let interfaces = nodes[1].show("interfaces");
    assert_eq!(interfaces[0]["mtu"], 2044);
    assert!(interfaces[0]["sent"].as_u64() >= Some(3), "{interfaces}");
    let groups = nodes[0].show("groups").to_string();
    assert!(groups.contains("ff12:401b:ffff::ffff:ffff"), "{groups}");
    assert_eq!(nodes[0].show("connections"), Value::Array(Vec::new()));
    let (is_ok, table) = nodes[0].ask(&["show", "groups"]);
    assert!(is_ok && table.starts_with("interface  group"), "{table}");
    assert!(nodes[0].ask(&["show", "drops"]).0);
}

#[test]
fn nodes_recover_after_a_peer_or_the_fabric_was_killed() {
    let mut fabric = Running::new("back", &["--topology", "single:2"]);
    let first = Node::start(&fabric, 1, "rc");
    let second = Node::start(&fabric, 2, "rc");
    [&first, &second].into_iter().for_each(Node::come_up);
    first.reach("10.0.0.2", "60000");
    let connections = first.show("connections");
    assert_eq!((&connections[0]["type"], &connections[0]["state"]), (&"RC".into(), &"open".into()));

    // Killed, not asked to end: no connection is disconnected.
    drop(second);
    let second = Node::start(&fabric, 2, "rc");
    first.reach("10.0.0.2", "60000");
    second.reach("10.0.0.1", "60000");

    fabric.replace();
    first.reach("10.0.0.2", "60000");
    second.reach("10.0.0.1", "60000");
}

// req: ud-pkey-configured
#[test]
fn interfaces_share_a_port_and_one_waits_for_its_partition() {
    let folder = crate::running::folder("shared");
    std::fs::create_dir_all(&folder).expect("a folder");
    let allow = |text: &str| {
        std::fs::write(folder.join("partitions"), text).expect("it is ours");
    };
    let default = "Default=0x7fff, ipoib, defmember=full : ALL=full, SELF=full;\n";
    allow(default);
    let arguments = ["--topology", "single:2", "--partitions", "partitions"];
    let mut fabric = Running::new("shared", &arguments);
    let nodes = [1, 2].map(|host| {
        let both = [("ib0", "10.0.0"), ("ib1", "10.0.1")];
        let [one, other] = both.map(|(name, subnet)| interface(&fabric, host, name, subnet));
        Node::with(&fabric, host, &format!("{one}mode = \"rc\"\n{other}pkey = 0x8001\n"))
    });
    nodes.iter().for_each(Node::come_up);
    nodes[0].reach("10.0.0.2", "60000");
    let rows = nodes[0].show("interfaces");
    assert_eq!((&rows[0]["interface"], &rows[0]["state"]), (&"ib0".into(), &"up".into()));
    assert_eq!((&rows[1]["interface"], &rows[1]["state"]), (&"ib1".into(), &"down".into()));
    assert_eq!(rows[1]["why"], "the port's table has no key of the partition");
    assert_eq!(rows[1]["waits_for"], "the subnet manager to give the port the key");

    allow(&format!("{default}one=0x1, ipoib, defmember=full : ALL=full, SELF=full;\n"));
    fabric.replace();
    for (node, peer) in nodes.iter().zip([2, 1]) {
        node.reach(&format!("10.0.0.{peer}"), "60000");
        node.reach(&format!("10.0.1.{peer}"), "56");
        let rows = node.show("interfaces");
        assert_eq!((&rows[0]["state"], &rows[1]["state"]), (&"up".into(), &"up".into()));
    }
}

#[test]
fn workers_share_the_interfaces_of_a_node_and_are_seen_from_outside() {
    let cores = core_affinity::get_core_ids().expect("there are cores");
    let cores: Vec<_> = cores.iter().map(|core| core.id).take(2).collect();
    let fabric = Running::new("workers", &["--topology", "single:2"]);
    let both = [("ib0", 1, "10.0.0"), ("ib1", 2, "10.0.1")];
    let both = both.map(|(name, host, subnet)| interface(&fabric, host, name, subnet));
    let text = format!("[workers]\ncores = {cores:?}\nidle = \"pause\"\n{}", both.concat());
    let node = Node::with(&fabric, 1, &text);
    // They are of two ports of one subnet, so the state of one says nothing of the other.
    fabric.until_it(&["show", "ports"], "two members", |_| {
        let rows = node.show("interfaces");
        rows.as_array().is_some_and(|rows| rows.iter().all(|row| row["state"] == "up"))
    });
    let rows = node.show("interfaces");
    assert_eq!((&rows[0]["interface"], &rows[1]["interface"]), (&"ib0".into(), &"ib1".into()));
    // Workers publish their counters now and then.
    fabric.until_it(&["show", "ports"], "counted packets", |_| {
        let workers = node.show("workers");
        let mut rows = workers.as_array().expect("rows").iter();
        rows.all(|worker| worker["packets"].as_u64() > Some(0))
    });
    let workers = node.show("workers");
    assert_eq!(workers.as_array().map(Vec::len), Some(cores.len()), "{workers}");
    for (worker, core) in workers.as_array().expect("rows").iter().zip(&cores) {
        assert_eq!((&worker["core"], &worker["idle"]), (&(*core).into(), &"pause".into()));
        assert!(worker["sleeps"] == 0, "{worker}");
        let idle = worker["idle_percent"].as_f64();
        assert!(idle > Some(0.0) && idle < Some(100.0), "{worker}");
        assert!(worker["busy_ms"].as_u64() <= worker["running_ms"].as_u64(), "{worker}");
        for mean in ["ns_per_packet", "batch_size"] {
            assert!(worker[mean].as_f64() > Some(0.0), "{mean}: {worker}");
        }
    }
    // The node sends it by an interface with a route.
    for (own, subnet) in [("ib0", "10.0.0"), ("ib1", "10.0.1")] {
        let (_, printed) = node.ask(&["ping", &format!("{subnet}.9"), "--count", "1"]);
        assert!(printed.contains("0 received"), "{own}: {printed}");
        let neighbors = node.show("neighbors").to_string();
        assert!(neighbors.contains(&format!("{subnet}.9")), "{neighbors}");
    }

    let path = workers[0]["memory"].as_str().expect("a path");
    let memory = std::fs::File::options().read(true).write(true).open(path).expect("it is ours");
    let counts =
        CountsSegment::open(memory.into()).expect("it is sealed").expect("it is of workers");
    let read = || counts.read().map(Option::unwrap_or_default).collect::<Vec<_>>();
    assert!(read().iter().all(|worker| worker.sleeps == 0), "{:?}", read());
    let (is_ok, printed) = node.ask(&["idle", "adaptive", "--worker", "0"]);
    assert!(is_ok, "{printed}");
    let begun = Instant::now();
    while read()[0].sleeps == 0 {
        assert!(begun.elapsed() < TIMEOUT, "it does not sleep");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(read()[1..].iter().all(|worker| worker.sleeps == 0), "{:?}", read());
    let (is_ok, printed) = node.ask(&["idle", "sleepy"]);
    assert!(!is_ok && printed.contains("poll, pause or adaptive"), "{printed}");
    let (is_ok, printed) = node.ask(&["idle", "poll", "--worker", "7"]);
    assert!(!is_ok && printed.contains("there is no worker 7"), "{printed}");
}

#[test]
fn several_workers_move_one_interface_and_find_another_fabric() {
    let cores = core_affinity::get_core_ids().expect("there are cores");
    let cores: Vec<_> = cores.iter().map(|core| core.id).take(2).collect();
    let mut fabric = Running::new("several_workers", &["--topology", "single:2"]);
    let text = |fabric: &Running, host| {
        let interface = interface(fabric, host, "ib0", "10.0.0");
        format!("[workers]\ncores = {cores:?}\n{interface}mode = \"rc\"\nworkers = 3\n")
    };
    let nodes = [1, 2].map(|host| Node::with(&fabric, host, &text(&fabric, host)));
    let until_dropped = |node: &Node, why: &str| {
        let begun = Instant::now();
        while !node.has_dropped(why) {
            assert!(begun.elapsed() < TIMEOUT, "no {why}: {}", node.show("drops"));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for round in 0..2 {
        for (node, peer) in nodes.iter().zip(["10.0.0.2", "10.0.0.1"]) {
            node.come_up();
            node.reach(peer, "60000");
            let rows = node.show("interfaces");
            assert_eq!(rows[0]["workers"], 3, "{rows}");
            let workers = node.show("workers");
            let names: Vec<_> =
                workers.as_array().expect("rows").iter().map(|row| &row["interfaces"][0]).collect();
            assert_eq!(names, vec!["ib0"; cores.len()], "{workers}");
            let connections = node.show("connections");
            assert_eq!(connections[0]["worker"], 0, "control speaks by the first: {connections}");
        }
        // Workers lose their contexts there, and get others.
        if round == 0 {
            fabric.replace();
            nodes.iter().for_each(|node| until_dropped(node, "down"));
        }
    }
    // They end together, and the remaining node has got their DREQ.
    let [mut first, second] = nodes;
    let id = first.child.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert!(first.child.0.wait().expect("it is ours").success());
    until_dropped(&second, "peer_ended");
}

#[test]
fn a_ping_without_a_reply_exits_with_1_and_one_with_an_error_with_2() {
    let fabric = Running::new("silence", &["--topology", "single:2"]);
    let node = Node::start(&fabric, 1, "ud");
    node.come_up();
    let status = |arguments: &[&str]| {
        let command = Command::new(env!("CARGO_BIN_EXE_pollux"))
            .args(arguments)
            .args(["--count", "1", "--socket", &node.socket])
            .output();
        let output = command.expect("it runs");
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&printed).into_owned())
    };
    let (code, printed) = status(&["ping", "10.0.0.9"]);
    assert_eq!(code, Some(1), "{printed}");
    let error = "\nFrom 10.0.0.1: icmp_seq=1 destination host unreachable\n";
    assert!(printed.contains(error), "{printed}");
    assert!(printed.contains("1 packets transmitted, 0 received, 100% packet loss"), "{printed}");
    let (code, printed) = status(&["ping", "192.0.2.1"]);
    assert!(
        code == Some(2) && printed.contains("no interface has a route to 192.0.2.1"),
        "{printed}"
    );
    let (code, printed) = status(&["ping", "10.0.0.9", "--from", "ib7"]);
    assert!(code == Some(2) && printed.contains("there is no interface ib7"), "{printed}");
    let (code, printed) = status(&["ping", "10.0.0.9", "--size", "3000"]);
    assert!(code == Some(1) && printed.contains("unreachable"), "{printed}");
}

#[test]
fn a_configuration_that_cannot_be_is_refused_with_its_line() {
    let folder = crate::running::folder("refused");
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = folder.join("node.toml");
    let path = config.display().to_string();
    std::fs::write(&config, "[interface.ib0]\ndevcie = \"soft:/x@host1\"\n").expect("it is ours");
    for command in ["check", "run"] {
        let (is_ok, printed) = output_of(&[command, &path]);
        assert!(!is_ok && printed.contains("node.toml:2:1: unknown key `devcie`"), "{printed}");
        assert!(printed.contains("did you mean `device`?"), "{printed}");
    }
    let nowhere = "[interface.ib0]\ndevice = \"soft:/nowhere/fabric@host1\"\n";
    for (text, line, why) in [
        (
            format!("[workers]\ncores = [99999]\n{nowhere}"),
            2,
            "core 99999 is not available; choose",
        ),
        ("[interface.ib0]\ndevice = \"\"\n".into(), 2, "ib0 has no device; write device = "),
        (nowhere.replace("host1", "host1:999"), 2, "is not a device name; write soft:"),
        (format!("{nowhere}address = [\"127.0.0.1/8\"]\n"), 3, "ib0 cannot have 127.0.0.1/8"),
        (format!("{nowhere}\n{nowhere}"), 4, "duplicate key"),
    ] {
        std::fs::write(&config, &text).expect("it is ours");
        for command in ["check", "run"] {
            let (is_ok, printed) = output_of(&[command, &path]);
            let is_named = printed.contains(&format!("node.toml:{line}:")) && printed.contains(why);
            assert!(!is_ok && is_named, "{command}: {printed}");
        }
    }
    std::fs::write(&config, "").expect("it is ours");
    for command in ["check", "run"] {
        let (is_ok, printed) = output_of(&[command, &path]);
        assert!(
            !is_ok && printed.contains("node.toml: the configuration has no interface"),
            "{printed}"
        );
    }
    // A device that may appear later is no error.
    std::fs::write(&config, nowhere).expect("it is ours");
    let (is_ok, printed) = output_of(&["check", &path]);
    assert!(is_ok, "{printed}");
    std::fs::remove_dir_all(&folder).expect("it is ours");
}
