//! `pollux run` as a service: what it tells the manager that started it, what it has kept there
//! for the next process, and the privileges that it needs.

use crate::namespace::Namespace;
use crate::running::{Ending, TIMEOUT, output_of, pollux};
use crate::service_manager::ServiceManager;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// An interface of this name and address, at a fabric of its own.
fn config(name: &str, address: &str, more: &str) -> String {
    format!("[interface.{name}]\ndevice = \"soft:\"\naddress = [\"{address}\"]\n{more}")
}

const RUN: [&str; 5] = [env!("CARGO_BIN_EXE_pollux"), "run", "a.toml", "--socket", "a.sock"];

fn signal(signal: &str, child: &Ending) {
    let id = child.0.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
}

/// Asks the node of a manager until it gives this.
fn until(manager: &ServiceManager, question: &[&str], is: impl Fn(&str) -> bool) {
    let start = Instant::now();
    loop {
        let (_, answer) = output_of(&[question, &["--socket", &manager.path("a.sock")]].concat());
        if is(&answer) {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "{question:?}: {answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_node_says_when_it_is_ready_reloads_lives_and_ends() {
    let mut manager = ServiceManager::new("service-says");
    let file = manager.folder.join("a.toml");
    // One device is missing, and for the boot that is no reason to wait.
    let missing = "[interface.ib1]\ndevice = \"soft:nowhere@host1\"\n";
    let text = config("ib0", "10.0.0.1/24", missing);
    std::fs::write(&file, &text).expect("it is ours");
    let mut node = manager.start(&[], &RUN, Some(4));
    let ready = manager.until("READY=1").pop().expect("a message");
    assert!(ready.starts_with("READY=1\nSTATUS="), "{ready}");
    assert!(ready.ends_with("ib1 is missing"), "{ready}");
    if !ready.contains("1 of 2 interfaces are up") {
        manager.until("STATUS=1 of 2 interfaces are up: ib1 is missing");
    }
    manager.until("WATCHDOG=1");
    manager.until("WATCHDOG=1");

    std::fs::write(&file, text.replace(missing, "")).expect("it is ours");
    let reload = ["reload", "--socket", &manager.path("a.sock")];
    assert!(pollux(&reload).stdout(Stdio::null()).status().expect("it runs").success());
    let begin = manager.until("RELOADING=1").pop().expect("a message");
    assert!(begin.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{begin}");
    manager.until("READY=1\nSTATUS=reloaded, changes: 1");
    manager.until("STATUS=1 of 1 interfaces are up");

    // `systemctl reload` fails if the reload does, and the node stays ready.
    std::fs::write(&file, "nonsense = 1\n").expect("it is ours");
    let (is_ok, why) = output_of(&reload);
    assert!(!is_ok && why.contains("nonsense"), "{why}");
    manager.until("RELOADING=1");
    let end = manager.until("READY=1").pop().expect("a message");
    assert!(
        end.contains("STATUS=reload: nothing was changed: ") && end.contains("a.toml"),
        "{end}"
    );

    signal("-TERM", &node);
    manager.until("STOPPING=1");
    assert!(node.0.wait().expect("it is ours").success());
}

/// The judge is the kernel, whose notifications `ip monitor` prints.
#[test]
fn a_shadow_outlives_a_killed_node_and_the_next_one_takes_it_over_unnoticed() {
    let test = "a_shadow_outlives_a_killed_node";
    let Some(namespace) = Namespace::enter(test) else { return };
    let mut manager = ServiceManager::new("service-restart");
    let words = ["ip", "netns", "exec", namespace.name()];
    let write = |manager: &ServiceManager, address: &str| {
        let text = config("ib0", address, "shadow = \"ib0\"\n");
        std::fs::write(manager.folder.join("a.toml"), text).expect("it is ours");
    };
    let is_up = |answer: &str| answer.contains("\"state\":\"up\"");
    let interfaces = ["show", "interfaces", "--json"];

    write(&manager, "10.7.0.1/24");
    let node = manager.start(&words, &RUN, None);
    manager.until("READY=1");
    assert!(manager.kept.contains_key("shadow-ib0"), "kept before it is ready");
    until(&manager, &interfaces, is_up);
    // Two addresses: the interface's link-local one came after duplicate address detection.
    wait_for_addresses(&namespace, |all| all.len() == 2 && all[0] == "10.7.0.1/24");
    namespace.ip("route add 10.8.0.0/16 via 10.7.0.2 dev ib0");
    let mut monitor = Monitor::start(&namespace);
    let before = (link(&namespace), routes(&namespace));
    drop(node);

    let node = manager.start(&words, &RUN, None);
    manager.until("READY=1");
    until(&manager, &interfaces, is_up);
    assert_eq!((link(&namespace), routes(&namespace)), before);
    drop(node);

    // The next one has another address. The old one is removed once the new interface is up.
    assert_eq!(monitor.lines_to_mark(&namespace, TIMEOUT), Some(vec![]), "the kernel noticed");
    write(&manager, "10.7.0.9/24");
    let node = manager.start(&words, &RUN, None);
    wait_for_addresses(&namespace, |all| all.len() == 2 && all[0] == "10.7.0.9/24");

    // One without the shadow has it removed.
    std::fs::write(manager.folder.join("a.toml"), config("ib0", "10.7.0.9/24", "")).expect("ours");
    let reload = ["reload", "--socket", &manager.path("a.sock")];
    assert!(pollux(&reload).stdout(Stdio::null()).status().expect("it runs").success());
    manager.until("FDSTOREREMOVE=1\nFDNAME=shadow-ib0");
    drop(node);
    assert!(manager.kept.is_empty());
    let start = Instant::now();
    while !namespace.json("link show type tun").is_empty() {
        assert!(start.elapsed() < TIMEOUT, "the device stays");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The shadow as `ip` shows it.
fn link(namespace: &Namespace) -> serde_json::Value {
    namespace.json("-d link show ib0").remove(0)
}

fn routes(namespace: &Namespace) -> Vec<serde_json::Value> {
    [namespace.json("route show table all"), namespace.json("-6 route show table all")].concat()
}

/// Waits until the addresses of the shadow are so.
fn wait_for_addresses(namespace: &Namespace, are: impl Fn(&[String]) -> bool) {
    let start = Instant::now();
    loop {
        let shown = namespace.json("address show ib0").remove(0);
        let all = shown["addr_info"].as_array().expect("addresses").iter();
        let all = all.map(|a| format!("{}/{}", a["local"].as_str().expect("one"), a["prefixlen"]));
        let all: Vec<_> = all.collect();
        if are(&all) {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "{all:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the kernel tells of links, addresses and routes.
struct Monitor {
    _child: Ending,
    lines: Receiver<String>,
    /// Marks so far: routes, of which the kernel tells in order with everything else.
    marks: u8,
}

impl Monitor {
    /// One that listens.
    fn start(namespace: &Namespace) -> Self {
        let mut child = Command::new("ip")
            .args(["-n", namespace.name(), "-o", "monitor", "link", "address", "route"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("ip runs");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).take_while(|line| sender.send(line.clone()).is_ok()).count()
        });
        let mut monitor = Self { _child: Ending(child), lines: receiver, marks: 0 };
        while monitor.lines_to_mark(namespace, Duration::from_millis(500)).is_none() {}
        monitor
    }

    /// The lines before a mark that is made now, if the mark is printed within this time.
    fn lines_to_mark(&mut self, namespace: &Namespace, timeout: Duration) -> Option<Vec<String>> {
        self.marks = self.marks.checked_add(1).expect("it listens soon");
        let mark = format!("10.250.{}.0/24", self.marks);
        namespace.ip(&format!("route add blackhole {mark}"));
        let mut lines = Vec::new();
        loop {
            let line = self.lines.recv_timeout(timeout).ok()?;
            if line.contains(&mark) {
                return Some(lines);
            }
            lines.push(line);
        }
    }
}

/// Runs a node as the user nobody, with these capabilities in its namespace, until its interface is
/// up; returns its output.
fn run_as_nobody(test: &str, namespace: &Namespace, capabilities: &str, more: &str) -> String {
    let mut manager = ServiceManager::new(test);
    let pollux = manager.path("pollux");
    std::fs::copy(RUN[0], &pollux).expect("there is space");
    std::fs::write(manager.folder.join("a.toml"), config("ib0", "10.7.0.1/24", more))
        .expect("ours");
    let own = |path: &str| {
        let nobody = Command::new("chown").args(["nobody", path]).status();
        assert!(nobody.expect("it runs").success());
    };
    own(&manager.path("."));
    own(&manager.path("notify"));
    let (inherited, ambient) = (format!("--inh-caps={capabilities}"), "--ambient-caps");
    let bounding = format!("--bounding-set={capabilities}");
    let words = [
        "ip",
        "netns",
        "exec",
        namespace.name(),
        "setpriv",
        "--reuid=nobody",
        "--regid=nogroup",
        "--clear-groups",
        "--no-new-privs",
        &inherited,
        ambient,
        capabilities,
        &bounding,
    ];
    let mut node = manager.start(&words, &[&[&*pollux][..], &RUN[1..]].concat(), None);
    manager.until("READY=1");
    until(&manager, &["show", "interfaces"], |answer| answer.contains(" up "));
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.0.id())).expect("it runs");
    assert!(status.contains("Uid:\t65534\t65534\t65534\t65534"), "{status}");
    signal("-TERM", &node);
    assert!(node.0.wait().expect("it is ours").success());
    manager.until("STOPPING=1");
    std::fs::read_to_string(manager.path("output")).expect("it output something")
}

#[test]
fn a_node_runs_unprivileged_with_shadows_by_one_capability_and_without_any() {
    let Some(namespace) = Namespace::enter("a_node_runs_as_nobody") else { return };
    let shadow = "shadow = \"ib0\"\n";
    let output = run_as_nobody("service-one", &namespace, "-all,+net_admin", shadow);
    assert!(!output.contains("shadow"), "{output}");
    let output = run_as_nobody("service-none", &namespace, "-all", "");
    assert!(output.contains("node: over"), "{output}");
    let output = run_as_nobody("service-refused", &namespace, "-all", shadow);
    assert!(output.contains("give the process CAP_NET_ADMIN"), "{output}");
}
