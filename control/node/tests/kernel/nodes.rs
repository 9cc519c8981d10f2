//! Nodes whose kernel has shadows of their interfaces, each in a network namespace of its own.

use crate::namespace::Namespace;
use crate::shown::{Said, Table, shown};
use pollux_node::admin::client::{AskError, Client};
use pollux_node::admin::reply::PingOutcome;
use pollux_node::admin::request::AdminRequest;
use pollux_node::admin::rows::{DropCount, KernelStatus, RouteHop, RouteStatus, TableRow};
use pollux_node::config::NodeConfig;
use pollux_node::fabric::Embedded;
use pollux_node::node::{NodeRunner, Order};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// The timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A node in a namespace.
pub struct NodeInNamespace {
    pub namespace: Arc<Namespace>,
    config: String,
    running: Running,
}

/// The node itself.
struct Running {
    client: Client,
    is_over: Arc<AtomicBool>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a node whose threads are in the namespace.
    fn start(namespace: &Arc<Namespace>, config: &str) -> Self {
        let config = NodeConfig::read("test", config).expect("a configuration");
        let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let (sender, started) = sync_channel(1);
        let path = std::env::temp_dir().join(format!("{}.sock", namespace.name()));
        let client = Client::new(&path, TIMEOUT);
        let name = control_thread(namespace);
        let namespace = Arc::clone(namespace);
        // The thread moves to the namespace, and so do those that it starts.
        let run = move || {
            namespace.join();
            let node = NodeRunner::new(config, Some(&path)).expect("it starts");
            sender.send(()).expect("the test waits");
            let order = || if over.load(Ordering::Relaxed) { Order::End } else { Order::Run };
            node.run(woken, order, |message| println!("{message}")).expect("it runs");
        };
        let thread = Builder::new().name(name).spawn(run).expect("a thread");
        started.recv().expect("it starts");
        Self { client, is_over, wake, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.wake.write_all(&[0]);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// The name of the control thread of the node in a namespace: its end is what differs.
pub fn control_thread(namespace: &Namespace) -> String {
    let name = namespace.name();
    name[name.len().saturating_sub(15)..].to_owned()
}

impl NodeInNamespace {
    /// Starts a node with the configuration. `None`, with a printed reason, where `test` may not.
    pub fn start(test: &str, config: &str) -> Option<Self> {
        let namespace = Arc::new(Namespace::make(test)?);
        let running = Running::start(&namespace, config);
        Some(Self { namespace, config: config.to_owned(), running })
    }

    /// Ends the node, and starts another one with its configuration.
    pub fn restart(self) -> Self {
        let Self { namespace, config, running } = self;
        drop(running);
        let running = Running::start(&namespace, &config);
        Self { namespace, config, running }
    }

    /// Its state about the kernel.
    pub fn kernel(&self) -> KernelStatus {
        self.running.client.show(&mut pause).expect("a reply").remove(0)
    }

    /// Waits until the node has the routes that `ip` shows, and waits for nothing.
    pub fn wait_for_equal_routes(&self, after: &str) {
        until(after, || {
            let state = self.kernel().state;
            let (expected, found) = (shown(&self.namespace, |by| by != "kernel"), self.table());
            if found == expected && state == "following" && self.kernel().state == state {
                return Ok(());
            }
            Err(format!("{state}; {}", differences(&found, &expected)))
        });
    }

    /// The routes of the kernel that the node can use.
    fn table(&self) -> Table {
        let routes = self.routes().into_iter().filter(|one| one.source.starts_with("kernel"));
        let row = |one: RouteStatus| {
            let (ip, len) = one.to.split_once('/').expect("a prefix");
            let (ip, len) = (ip.parse().expect("an address"), len.parse().expect("a length"));
            let message = match one.kind.as_str() {
                "unicast" if one.via.is_empty() => return None,
                "unicast" => {
                    let hop = |via: RouteHop| (via.interface, via.gateway, via.weight.into());
                    Said::Via(one.via.into_iter().map(hop).collect())
                }
                "blackhole" => Said::Other("blackhole"),
                "unreachable" => Said::Other("unreachable"),
                other => Said::Other(if other == "prohibit" { "prohibit" } else { "unknown" }),
            };
            Some(((ip, len, one.metric.expect("a metric")), message))
        };
        routes.filter_map(row).collect()
    }

    /// The rows of a table.
    pub fn show<R: TableRow>(&self) -> Vec<R> {
        self.running.client.show(&mut pause).expect("a reply")
    }

    pub fn routes(&self) -> Vec<RouteStatus> {
        self.running.client.show(&mut pause).expect("a reply")
    }

    /// Its drops, by reason.
    pub fn drops(&self) -> Vec<DropCount> {
        self.running.client.show(&mut pause).expect("a reply")
    }

    /// The source and the next hops of the routes to a prefix that are in use.
    pub fn route(&self, to: &str) -> Vec<(String, Vec<String>)> {
        let routes = self.routes();
        let active = routes.into_iter().filter(|one| one.to == to && one.is_active);
        let hop =
            |gateway: Option<std::net::IpAddr>| gateway.map_or("link".into(), |ip| ip.to_string());
        active
            .map(|one| (one.source, one.via.iter().map(|via| hop(via.gateway)).collect()))
            .collect()
    }

    /// Waits until a route to a prefix leads by these gateways.
    pub fn wait_for_route(&self, to: &str, source: &str, via: &[&str]) {
        let via: Vec<_> = via.iter().map(ToString::to_string).collect();
        let wanted = (source.to_owned(), via);
        until(&format!("a route to {to} {wanted:?}"), || {
            let found = self.route(to);
            (found.first() == Some(&wanted)).then_some(()).ok_or(format!("{found:?}"))
        });
    }

    /// Waits until so many interfaces are up with all of their addresses, here and in the kernel.
    pub fn wait_for_links(&self, count: usize) {
        until(&format!("{count} links"), || {
            let is_subnet = |one: &&RouteStatus| {
                one.source == "connected" && one.kind == "unicast" && !one.to.starts_with("fe80")
            };
            let subnets = self.routes().iter().filter(is_subnet).count();
            let is_up = |link: &&Value| {
                let flags = link["flags"].as_array();
                link["ifname"].as_str().is_some_and(|name| name.starts_with("ib"))
                    && flags.is_some_and(|flags| flags.iter().any(|flag| flag == "LOWER_UP"))
            };
            let links = self.namespace.json("address show up");
            let up = links.iter().filter(is_up);
            let addresses = up.flat_map(|link| link["addr_info"].as_array().into_iter().flatten());
            let addresses = addresses.filter(|address| address["scope"] == "global").count();
            let message = format!("{subnets} subnets, {addresses} addresses in the kernel");
            if (subnets, addresses) == (2 * count, 2 * count) { Ok(()) } else { Err(message) }
        });
    }

    /// Has the node itself ping an address once; returns whether a reply came.
    pub fn ping(&self, to: &str) -> bool {
        matches!(self.ping_outcome(to), Ok(PingOutcome::Answered { .. }))
    }

    /// The same, with what came of it.
    pub fn ping_outcome(&self, to: &str) -> Result<PingOutcome, AskError> {
        let to = to.parse().expect("an address");
        let request = AdminRequest::Ping { address: to, bytes: 56, ttl: None, interface: None };
        self.running.client.ask(&request, &mut pause)
    }

    /// Waits until the kernel can ping an address.
    pub fn wait_for_ping(&self, to: &str, options: &[&str]) {
        until(&format!("a reply of {to}"), || {
            let mut ping = self.namespace.command("ping");
            let output = ping.args(["-c", "1", "-W", "1"]).args(options).arg(to).output();
            let output = output.expect("ping runs");
            let message = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() { Ok(()) } else { Err(message) }
        });
    }
}

/// Differences between a node and `ip`: all of it would be long.
fn differences(found: &Table, expected: &Table) -> String {
    const SHOWN_MAX: usize = 20;
    let keys: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let differs = keys.into_iter().filter(|&key| found.get(key) != expected.get(key));
    let lines: Vec<_> = differs
        .map(|key| {
            format!("{key:?}: ours {:?}, that of ip {:?}", found.get(key), expected.get(key))
        })
        .collect();
    format!("{} differ: {:#?}", lines.len(), &lines[..lines.len().min(SHOWN_MAX)])
}

/// Waits until something holds; what it gave last is in the panic.
#[expect(clippy::disallowed_methods, reason = "nodes go by the clock")]
pub fn until(what: &str, mut holds: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + TIMEOUT;
    loop {
        match holds() {
            Ok(()) => return,
            Err(last) if Instant::now() > end => panic!("not yet: {what}: {last}"),
            Err(_) => sleep(Duration::from_millis(100)),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "nodes go by the clock")]
fn pause(_: &AskError, time: Duration) -> bool {
    sleep(time);
    true
}

/// Two routers at one link, each with a link of its own behind it.
pub struct Routers {
    pub first: NodeInNamespace,
    pub second: NodeInNamespace,
    pub _fabric: Embedded,
}

impl Routers {
    pub fn start(test: &str) -> Option<Self> {
        let fabric = Embedded::start("single:4").expect("it starts");
        let config = |nth: u8| {
            let (link, own) =
                (fabric.port(&format!("host{nth}")), fabric.port(&format!("host{}", nth + 2)));
            format!(
                "[router]\nkernel_table = 254\n\
                 [interface.ib0]\ndevice = {link:?}\nshadow = \"ib0\"\n\
                 address = [\"10.0.0.{nth}/24\", \"fd00::{nth}/64\"]\n\
                 [interface.ib1]\ndevice = {own:?}\nshadow = \"ib1\"\n\
                 address = [\"10.{nth}.0.1/16\", \"fd00:{nth}::1/64\"]\n"
            )
        };
        let first = NodeInNamespace::start(test, &config(1))?;
        let second = NodeInNamespace::start(test, &config(2))?;
        Some(Self { first, second, _fabric: fabric })
    }
}

#[test]
fn programs_of_the_kernel_send_and_receive_by_shadows() {
    let Some(Routers { first, second, _fabric }) = Routers::start("shadows") else { return };
    first.wait_for_ping("10.0.0.2", &[]);
    first.wait_for_ping("fd00::2", &[]);
    second.wait_for_ping("10.0.0.1", &["-s", "1400"]);
}

#[test]
fn routes_of_the_kernel_are_followed() {
    let Some(Routers { first, second, _fabric }) = Routers::start("followed") else { return };
    first.wait_for_ping("10.0.0.2", &[]);
    first.wait_for_ping("fd00::2", &[]);
    first.namespace.ip("route add 10.2.0.0/16 via 10.0.0.2 proto static");
    first.wait_for_route("10.2.0.0/16", "kernel, static", &["10.0.0.2"]);
    first.namespace.ip("-6 route add fd00:2::/64 via fd00::2 proto static");
    first.wait_for_route("fd00:2::/64", "kernel, static", &["fd00::2"]);
    // The kernel's packets leave by the shadow, and by our route.
    first.wait_for_ping("10.2.0.1", &["-I", "10.0.0.1"]);
    first.wait_for_ping("fd00:2::1", &["-I", "fd00::1"]);
    first.namespace.ip("route replace 10.2.0.0/16 via 10.0.0.3 proto static");
    first.wait_for_route("10.2.0.0/16", "kernel, static", &["10.0.0.3"]);
    first.namespace.ip("route add blackhole 10.99.0.0/16");
    first.wait_for_route("10.99.0.0/16", "kernel, boot", &[]);
    first.namespace.ip("route del 10.2.0.0/16");
    until("no route", || {
        let found = first.route("10.2.0.0/16");
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    });
    drop(second);
}
