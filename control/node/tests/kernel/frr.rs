//! FRR, unmodified, drives nodes by BGP and OSPF, with its nexthop objects and without.

use crate::nodes::{NodeInNamespace, until};
use crate::pair::{LINKS, Pair, Side};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Where Debian has the daemons.
const DAEMONS: &str = "/usr/lib/frr";
/// The network behind the right node, of both families.
const BEHIND: [&str; 2] = ["10.2.0.0/16", "fd00:2::/64"];
/// The routes of OSPF, which has two of the links.
const BY_OSPF: &str = "10.22.0.0/16";

/// The daemons of one side.
struct Frr {
    folder: PathBuf,
    namespace: String,
    options: &'static [&'static str],
    running: Vec<(&'static str, Child)>,
}

impl Frr {
    /// Starts zebra, bgpd and ospfd in the namespace of a node.
    fn start(node: &NodeInNamespace, side: Side, nexthops: bool) -> Self {
        let namespace = node.namespace.name().to_owned();
        let folder = std::env::temp_dir().join(format!("frr-{namespace}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let zebra = if nexthops { "" } else { "no zebra nexthop kernel enable\n" };
        let files = [("zebra", zebra.to_owned()), ("bgpd", bgp(side)), ("ospfd", ospf(side))];
        for (daemon, text) in files {
            std::fs::write(folder.join(format!("{daemon}.conf")), text).expect("a file");
        }
        // The daemons leave root behind.
        let owned = Command::new("chown").args(["-R", "frr:frr"]).arg(&folder).status();
        assert!(owned.expect("chown runs").success());
        let options: &[&str] = if nexthops { &[] } else { &["--v6-rr-semantics"] };
        let mut frr = Self { folder, namespace, options, running: Vec::new() };
        ["zebra", "bgpd", "ospfd"].into_iter().for_each(|daemon| frr.run(daemon));
        frr
    }

    fn run(&mut self, daemon: &'static str) {
        let file = |end: &str| self.folder.join(format!("{daemon}.{end}"));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(format!("{DAEMONS}/{daemon}"));
        command.arg("--vty_socket").arg(&self.folder).arg("-f").arg(file("conf"));
        command.arg("-z").arg(self.folder.join("zserv.api")).arg("-i").arg(file("pid"));
        if daemon == "zebra" {
            command.args(self.options);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.running.push((daemon, child.expect("it starts")));
        // Others want zebra to be there, and vtysh all of them.
        until(&format!("{daemon} listens"), || {
            if file("vty").exists() { Ok(()) } else { Err("not yet".into()) }
        });
    }

    fn end(&mut self, daemon: &str) {
        let index = self.running.iter().position(|(name, _)| *name == daemon).expect("it runs");
        let (_, mut child) = self.running.swap_remove(index);
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        let _ = child.wait();
        let _ = std::fs::remove_file(self.folder.join(format!("{daemon}.vty")));
    }

    /// Ends all daemons and starts them again, as watchfrr does when zebra ends.
    fn restart(&mut self) {
        ["ospfd", "bgpd", "zebra"].into_iter().for_each(|daemon| self.end(daemon));
        ["zebra", "bgpd", "ospfd"].into_iter().for_each(|daemon| self.run(daemon));
    }

    /// The output of its shell.
    fn say(&self, commands: &[&str]) -> String {
        let mut shell = Command::new("vtysh");
        shell.arg("--vty_socket").arg(&self.folder);
        commands.iter().for_each(|command| _ = shell.args(["-c", command]));
        let output = shell.output().expect("vtysh is installed with frr");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        for daemon in ["ospfd", "bgpd", "zebra"] {
            if self.running.iter().any(|(name, _)| *name == daemon) {
                self.end(daemon);
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// BGP at all links, both families, each with sessions of its own.
fn bgp(side: Side) -> String {
    let (nth, peer) = (side.nth(), side.other().nth());
    let mut text = format!(
        "router bgp 6500{nth}\n bgp router-id 0.0.0.{nth}\n no bgp ebgp-requires-policy\n \
         no bgp default ipv4-unicast\n bgp bestpath bandwidth ignore\n timers bgp 1 3\n"
    );
    let (mut v4, mut v6) = (String::new(), String::new());
    for link in 1..=LINKS {
        for (ip, family) in [
            (format!("10.0.{link}.{peer}"), &mut v4),
            (format!("2001:db8:{link}::{peer}"), &mut v6),
        ] {
            let _ = writeln!(text, " neighbor {ip} remote-as 6500{peer}");
            let _ = writeln!(text, " neighbor {ip} timers connect 1");
            let _ = writeln!(text, " neighbor {ip} advertisement-interval 0");
            let _ = writeln!(family, "  neighbor {ip} activate");
            let _ = writeln!(family, "  neighbor {ip} route-map WEIGHT{link} out");
        }
    }
    for (family, neighbors, network) in
        [("ipv4", v4, format!("10.{nth}.0.0/16")), ("ipv6", v6, format!("fd00:{nth}::/64"))]
    {
        let _ = write!(
            text,
            " address-family {family} unicast\n  network {network}\n  maximum-paths 4\n\
             {neighbors} exit-address-family\n"
        );
    }
    for link in 1..=LINKS {
        let bandwidth = if link == 1 { 300 } else { 100 };
        let _ = write!(
            text,
            "route-map WEIGHT{link} permit 10\n set extcommunity bandwidth {bandwidth}\n"
        );
    }
    text
}

/// OSPF at the last two links, one of each kind; it tells of a blackhole on the right side.
fn ospf(side: Side) -> String {
    let mut text = String::new();
    for (link, kind) in [(3, "broadcast"), (4, "point-to-point")] {
        let _ = write!(
            text,
            "interface ib{link}\n ip ospf area 0\n ip ospf network {kind}\n \
             ip ospf hello-interval 1\n ip ospf dead-interval 3\n"
        );
    }
    let _ = write!(text, "router ospf\n ospf router-id 0.0.0.{}\n", side.nth());
    let _ = write!(text, " timers throttle spf 10 50 200\n timers throttle lsa all 50\n");
    text + " redistribute kernel\n"
}

/// Waits until the left node has all routes by all paths.
fn wait_for_all(pair: &Pair, after: &str) {
    for to in BEHIND {
        pair.wait_for_paths(to, "kernel, bgp", LINKS, after);
    }
    pair.wait_for_paths(BY_OSPF, "kernel, ospf", 2, after);
}

/// All that happens between two nodes. With the nexthop objects of FRR 8.4, a path that was lost
/// with its link does not come back, in the kernel: there the number of paths is what it is.
fn routes_equal_the_kernels(nexthops: bool) {
    let test = "FRR";
    if pollux_referee::program_of(test, "vtysh", "--referees").is_none() {
        return;
    }
    let Some(mut pair) = Pair::start(test) else { return };
    pair.right.namespace.ip(&format!("route add blackhole {BY_OSPF}"));
    let mut left = Frr::start(&pair.left, Side::Left, nexthops);
    let right = Frr::start(&pair.right, Side::Right, nexthops);
    wait_for_all(&pair, "the start");
    pair.left.wait_for_ping("10.2.0.1", &["-I", "10.1.0.1"]);
    pair.left.wait_for_ping("fd00:2::1", &["-I", "fd00:1::1"]);

    for (side, link) in [(Side::Left, 1), (Side::Right, 2), (Side::Left, 4)] {
        let what = format!("link {link} of the {side:?} side goes");
        pair.unplug(side, link, || {
            for to in BEHIND {
                // Routes that a flap before has removed may still be missing.
                if !nexthops {
                    pair.wait_for_paths(to, "kernel, bgp", LINKS - 1, &what);
                }
            }
            pair.wait_for_equal_routes(&what);
        });
        let what = format!("link {link} of the {side:?} side returns");
        if nexthops {
            pair.wait_for_equal_routes(&what);
        } else {
            wait_for_all(&pair, &what);
        }
    }

    // Sessions that begin anew have new routes of all paths.
    let message = left.say(&["clear bgp *"]);
    wait_for_bgp(&left, &message);
    pair.wait_for_equal_routes("clear bgp");

    left.restart();
    wait_for_all(&pair, "a restart of zebra");

    pair.left = pair.left.restart();
    pair.left.wait_for_links(LINKS + 1);
    wait_for_bgp(&left, "a restart of the node");
    pair.wait_for_equal_routes("a restart of the node");
    wait_for_all(&pair, "a restart of the node");

    let weights = ["configure terminal", "router bgp 65001", "no bgp bestpath bandwidth ignore"];
    let message = left.say(&weights);
    until("weights by bandwidth", || {
        let routes = pair.left.routes();
        let route = routes.iter().find(|one| one.to == BEHIND[0] && one.is_active);
        let via = route.map(|one| one.via.clone()).unwrap_or_default();
        let weight = |of: &str| via.iter().find(|hop| hop.interface == of).map(|hop| hop.weight);
        let (Some(first), Some(second)) = (weight("ib1"), weight("ib2")) else {
            return Err(format!("{via:?}, {message}"));
        };
        // Percentages.
        if (2.5..3.5).contains(&(f64::from(first) / f64::from(second))) {
            Ok(())
        } else {
            Err(format!("{via:?}"))
        }
    });
    pair.wait_for_equal_routes("weights");

    let withdraw = "no network 10.2.0.0/16";
    let bgp = ["configure terminal", "router bgp 65002", "address-family ipv4 unicast", withdraw];
    right.say(&bgp);
    pair.wait_for_paths(BEHIND[0], "kernel, bgp", 0, "a route is withdrawn");
    pair.right.namespace.ip(&format!("route del blackhole {BY_OSPF}"));
    pair.wait_for_paths(BY_OSPF, "kernel, ospf", 0, "a route of OSPF is withdrawn");
}

/// Waits until all sessions of BGP are there.
fn wait_for_bgp(frr: &Frr, after: &str) {
    until(&format!("sessions of BGP after {after}"), || {
        let message = frr.say(&["show bgp summary established"]);
        let established = message.lines().filter(|line| line.contains(" 65002 ")).count();
        if established == 2 * LINKS { Ok(()) } else { Err(message) }
    });
}

#[test]
fn frr_without_nexthop_objects_has_the_node_follow() {
    routes_equal_the_kernels(false);
}

#[test]
fn frr_with_nexthop_objects_has_the_node_follow() {
    routes_equal_the_kernels(true);
}
