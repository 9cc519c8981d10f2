//! Routes that are added and removed while packets are forwarded: none is lost, and the tables are
//! equal in the end. The same holds while the control thread does not read notifications.

use crate::debugger;
use crate::nodes::{NodeInNamespace, control_thread, until};
use pollux_node::admin::reply::PingOutcome;
use pollux_node::admin::rows::{InterfaceStatus, NeighborStatus};
use pollux_node::fabric::Embedded;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A router between two hosts.
struct Hosts {
    router: NodeInNamespace,
    sender: NodeInNamespace,
    _receiver: NodeInNamespace,
    _fabric: Embedded,
}

/// Where packets go: behind the receiver, by a route of the router's kernel.
const TO: [&str; 2] = ["198.51.100.1", "2001:db8:51::1"];

/// Whether the hosts find the router by ARP and neighbor discovery, or know where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Neighbors {
    Asked,
    Static,
}

impl Hosts {
    fn start(test: &str, neighbors: Neighbors) -> Option<Self> {
        let fabric = Embedded::start("single:4").expect("it starts");
        let device = |host: u8| fabric.port(&format!("host{host}"));
        let mut config = String::from("[router]\nkernel_table = 254\n");
        for n in 1..=2 {
            config += &format!(
                "[interface.ib{n}]\ndevice = {:?}\nshadow = \"ib{n}\"\n\
                 address = [\"10.0.{n}.1/24\", \"2001:db8:{n}::1/64\"]\n",
                device(n)
            );
        }
        let router = NodeInNamespace::start(test, &config)?;
        router.wait_for_links(2);
        let interfaces = router.show::<InterfaceStatus>();
        let host = |host: u8, address: &str, n: u8| {
            let mut config = format!(
                "[interface.ib0]\ndevice = {:?}\naddress = [{address}]\n\
                 router = [\"10.0.{n}.1\", \"2001:db8:{n}::1\"]\n",
                device(host)
            );
            let named = format!("ib{n}");
            let routers = interfaces.iter().find(|row| row.interface == named);
            let link = routers.and_then(|row| row.link.clone()).expect("it is up");
            for ip in [format!("10.0.{n}.1"), format!("2001:db8:{n}::1")] {
                if neighbors == Neighbors::Static {
                    config +=
                        &format!("[[interface.ib0.neighbor]]\naddress = {ip:?}\nlink = {link:?}\n");
                }
            }
            NodeInNamespace::start(test, &config)
        };
        let sender = host(3, "\"10.0.1.5/24\", \"2001:db8:1::5/64\"", 1)?;
        // It has two addresses that may be gateways.
        let own = "\"10.0.2.5/24\", \"10.0.2.6/24\", \"198.51.100.1/24\", \
                   \"2001:db8:2::5/64\", \"2001:db8:2::6/64\", \"2001:db8:51::1/64\"";
        let receiver = host(4, own, 2)?;
        let hosts = Self { router, sender, _receiver: receiver, _fabric: fabric };
        hosts.router.namespace.ip("route add 198.51.100.0/24 via 10.0.2.5");
        hosts.router.namespace.ip("-6 route add 2001:db8:51::/64 via 2001:db8:2::5");
        hosts.wait_for_ping();
        Some(hosts)
    }

    fn wait_for_ping(&self) {
        for to in TO {
            until(&format!("a reply of {to}"), || {
                if self.sender.ping(to) { Ok(()) } else { Err("none".into()) }
            });
        }
    }

    fn under_traffic(&self, happens: impl FnOnce()) {
        under_traffic(&self.sender, &TO, happens);
    }
}

/// Pings while something happens; every packet has a reply.
#[expect(clippy::disallowed_methods, reason = "neighbors live in the machine's time")]
pub fn under_traffic(sender: &NodeInNamespace, to: &[&str], happens: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    let sent = std::thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let mut sent = 0;
            while !is_over.load(Ordering::Relaxed) || sent < 20 {
                for to in to {
                    let outcome = sender.ping_outcome(to);
                    assert!(
                        matches!(outcome, Ok(PingOutcome::Answered { .. })),
                        "after {sent} replies and {:?}: {outcome:?} of {to}; {:#?}",
                        begun.elapsed(),
                        sender.show::<NeighborStatus>()
                    );
                    sent += 1;
                }
            }
            sent
        });
        let end = End(&is_over);
        happens();
        drop(end);
        pings.join()
    });
    println!("{} of {0} packets had a reply", sent.expect("every packet has a reply"));
}

/// Ends the packets, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Routes, by default few: a long run has those of the Internet's size.
#[expect(clippy::disallowed_methods, reason = "the size is the environment's to say")]
pub fn count(default: usize) -> usize {
    let given = std::env::var("POLLUX_KERNEL_ROUTES").ok();
    given.map_or(default, |given| given.parse().expect("POLLUX_KERNEL_ROUTES is a number"))
}

/// Commands for `ip -batch` with a route of each number.
fn batch(verb: &str, numbers: std::ops::Range<usize>, gateway: &str) -> String {
    let mut lines = String::new();
    for n in numbers {
        let (a, b, c) = (16 + (n >> 16), n >> 8 & 255, n & 255);
        writeln!(lines, "route {verb} 172.{a}.{b}.{c}/32 via {gateway}").expect("text");
    }
    lines
}

/// How often all routes are replaced.
const ROUNDS: usize = 6;

#[test]
#[expect(clippy::disallowed_methods, reason = "the rate of changes is shown")]
fn no_packet_is_lost_while_routes_are_added_replaced_and_removed() {
    let Some(hosts) = Hosts::start("churn", Neighbors::Asked) else { return };
    let routes = count(3000);
    let namespace = &hosts.router.namespace;
    namespace.batch(&batch("add", 0..routes, "10.0.2.5"));
    hosts.router.wait_for_equal_routes("routes came");
    let before = processor_time(&hosts.router);
    hosts.under_traffic(|| {
        // The very routes in use; of IPv6 as FRR replaces them.
        let mut replaced = String::new();
        for n in 0..50 {
            let last = 5 + n % 2;
            let v6 = "route del 2001:db8:51::/64\nroute add 2001:db8:51::/64 via 2001:db8:2";
            writeln!(replaced, "route replace 198.51.100.0/24 via 10.0.2.{last}").expect("text");
            writeln!(replaced, "{v6}::{last}").expect("text");
        }
        namespace.batch(&replaced);
        let begun = Instant::now();
        for round in 0..ROUNDS {
            namespace.batch(&batch("replace", 0..routes, &format!("10.0.2.{}", 5 + round % 2)));
        }
        let rate = (ROUNDS * routes) as f64 / begun.elapsed().as_secs_f64();
        println!("{rate:.0} routes are replaced in a second");
        namespace.batch(&batch("del", routes / 2..routes, "10.0.2.6"));
        let kept = routes / 2 + 2;
        until("half of the routes", || {
            let kernel = hosts.router.kernel();
            let is_it = kernel.routes == kept && kernel.state == "following";
            if is_it { Ok(()) } else { Err(format!("{kernel:?}")) }
        });
    });
    let changes = (ROUNDS * routes + routes / 2 + 150) as f64;
    let spent = (processor_time(&hosts.router) - before) as f64 / 1000.0 / changes;
    println!("{routes} routes: {spent:.1} us of control's processor time for each change");
    hosts.router.wait_for_equal_routes("routes came and went");
}

/// Nanoseconds that the control thread of a node ran.
fn processor_time(node: &NodeInNamespace) -> u64 {
    let name = control_thread(&node.namespace);
    let tasks = std::fs::read_dir("/proc/self/task").expect("it is there").flatten();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let mut named = tasks.filter(|task| read(task.path().join("comm")).trim_end() == name);
    let task = named.next().expect("it runs").path();
    let spent = read(task.join("schedstat"));
    spent.split(' ').next().and_then(|spent| spent.parse().ok()).expect("a number")
}

/// Routes that are added between two looks at what the kernel lost.
const ROUTES_IN_BATCH: usize = 2_000;
/// Far more than the receive buffer has notifications of, whatever a kernel counts for each.
const ROUTES_MAX: usize = 200_000;

#[test]
fn a_control_thread_that_does_not_read_loses_notifications_and_no_packets() {
    let test = "overrun";
    // A stopped control thread answers no ARP: hosts give it up 8 s later.
    let Some(hosts) = Hosts::start(test, Neighbors::Static) else { return };
    let router = &hosts.router;
    let Some(stopped) = debugger::stop(test, &control_thread(&router.namespace)) else { return };
    let mut routes = 0;
    hosts.under_traffic(|| {
        while router.namespace.lost_notifications() == 0 {
            assert!(routes < ROUTES_MAX, "{routes} notifications fit the buffer");
            let next = routes + ROUTES_IN_BATCH;
            router.namespace.batch(&batch("add", routes..next, "10.0.2.5"));
            routes = next;
        }
    });
    router.namespace.ip("route del 198.51.100.0/24");
    println!("{routes} routes, of which {} are not told", router.namespace.lost_notifications());
    drop(stopped);
    router.wait_for_equal_routes("an overrun");
    let kernel = router.kernel();
    assert!(kernel.overruns >= 1 && kernel.dumps >= 2, "{kernel:?}");
    assert_eq!(kernel.routes, routes + 1);
    assert!(!hosts.sender.ping(TO[0]), "that route was deleted meanwhile");
}
