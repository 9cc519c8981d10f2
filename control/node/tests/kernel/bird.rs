//! BIRD, unmodified, drives nodes: it sees the shadows of their interfaces, speaks OSPF and BGP by
//! them, and its routes become theirs.

use crate::nodes::{NodeInNamespace, Routers, until};
use crate::pair::{LINKS, Pair, Side};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A routing daemon in the namespace of a node.
pub struct Bird {
    child: Child,
    control: PathBuf,
}

impl Bird {
    /// Starts it with OSPF at both links, for both families. `None` if it is not installed.
    fn with_ospf(test: &str, node: &NodeInNamespace, nth: u8) -> Option<Self> {
        let area = "area 0 { interface \"ib0\" { type broadcast; hello 1; dead 4; wait 2; }; \
                    interface \"ib1\" { stub; }; };";
        let text = format!(
            "protocol kernel {{ ipv4 {{ export all; }}; }}\n\
             protocol kernel {{ ipv6 {{ export all; }}; }}\n\
             protocol ospf v2 {{ ipv4 {{ export none; }}; {area} }}\n\
             protocol ospf v3 {{ ipv6 {{ export none; }}; {area} }}\n"
        );
        Self::start(test, node, nth, &text)
    }

    /// Starts it with these protocols beside `device`.
    pub fn start(test: &str, node: &NodeInNamespace, nth: u8, protocols: &str) -> Option<Self> {
        let program = pollux_referee::program_of(test, "bird", "--referees")?;
        let at = std::env::temp_dir().join(node.namespace.name());
        let (config, control) = (at.with_extension("conf"), at.with_extension("ctl"));
        let text = format!(
            "router id 0.0.0.{nth};\nlog stderr all;\n\
             protocol device {{ scan time 1; }}\n{protocols}"
        );
        std::fs::write(&config, text).expect("a file");
        let mut command = node.namespace.command(&program.display().to_string());
        command.args(["-f", "-c"]).arg(&config).arg("-s").arg(&control);
        let child = command.stderr(Stdio::null()).spawn().expect("it starts");
        Some(Self { child, control })
    }

    /// The output of its client.
    pub fn say(&self, question: &str) -> String {
        let mut client = Command::new("birdc");
        client.arg("-s").arg(&self.control).args(question.split(' '));
        let output = client.output().expect("birdc is installed with bird");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        self.say("down");
        let _ = self.child.wait();
    }
}

#[test]
fn routes_of_ospf_are_learnt_and_lost_with_the_neighbor() {
    let test = "BIRD";
    let Some(Routers { first, second, _fabric }) = Routers::start(test) else { return };
    let Some(left) = Bird::with_ospf(test, &first, 1) else { return };
    let Some(right) = Bird::with_ospf(test, &second, 2) else { return };
    for bird in [&left, &right] {
        for protocol in ["ospf1", "ospf2"] {
            let question = format!("show ospf neighbors {protocol}");
            until(&question, || {
                let message = bird.say(&question);
                if message.contains("Full") { Ok(()) } else { Err(message) }
            });
        }
    }
    first.wait_for_route("10.2.0.0/16", "kernel, bird", &["10.0.0.2"]);
    second.wait_for_route("10.1.0.0/16", "kernel, bird", &["10.0.0.1"]);
    until("a route of OSPFv3", || {
        // Its gateway is the link-local address of the other router.
        match &first.route("fd00:2::/64")[..] {
            [(source, via)] if source == "kernel, bird" && via[0].starts_with("fe80:") => Ok(()),
            found => Err(format!("{found:?}")),
        }
    });
    first.wait_for_ping("10.2.0.1", &["-I", "10.1.0.1"]);
    first.wait_for_ping("fd00:2::1", &["-I", "fd00:1::1"]);

    drop(right);
    until("no route without the neighbor", || {
        let found = first.route("10.2.0.0/16");
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// BGP at all links, both families, and the routes of a file; the network behind it is announced.
fn bgp(side: Side) -> String {
    let (nth, peer) = (side.nth(), side.other().nth());
    let mut text = String::from("protocol direct { ipv4; ipv6; interface \"ib5\"; }\n");
    for family in ["ipv4", "ipv6"] {
        let export = "export where source != RTS_DEVICE";
        let _ = writeln!(
            text,
            "protocol kernel {{ {family} {{ {export}; }}; merge paths on limit {LINKS}; }}"
        );
    }
    for link in 1..=LINKS {
        for (local, neighbor, family) in [
            (format!("10.0.{link}.{nth}"), format!("10.0.{link}.{peer}"), "ipv4"),
            (format!("2001:db8:{link}::{nth}"), format!("2001:db8:{link}::{peer}"), "ipv6"),
        ] {
            let _ = writeln!(
                text,
                "protocol bgp {{ local {local} as 6500{nth}; neighbor {neighbor} as 6500{peer}; \
                 {family} {{ import all; export where source = RTS_DEVICE; }}; hold time 3; \
                 connect delay time 1; connect retry time 1; error wait time 1, 2; }}"
            );
        }
    }
    if side == Side::Left {
        text += "protocol static { ipv4;\n route 10.90.0.0/16 blackhole;\n \
                 route 10.91.0.0/16 unreachable;\n route 10.92.0.0/16 prohibit;\n \
                 route 10.93.0.0/16 via 10.0.1.2 weight 1 via 10.0.2.2 weight 3;\n}\n\
                 protocol static { ipv6;\n route 2001:db8:90::/48 blackhole;\n \
                 route 2001:db8:91::/48 unreachable;\n route 2001:db8:92::/48 prohibit;\n}\n";
    }
    text
}

#[test]
fn routes_of_bgp_have_all_paths_and_those_that_reject_packets_are_the_same() {
    let test = "BIRD with BGP";
    let Some(pair) = Pair::start(test) else { return };
    let Some(_left) = Bird::start(test, &pair.left, 1, &bgp(Side::Left)) else { return };
    let Some(right) = Bird::start(test, &pair.right, 2, &bgp(Side::Right)) else { return };
    let behind = ["10.2.0.0/16", "fd00:2::/64"];
    behind.into_iter().for_each(|to| pair.wait_for_paths(to, "kernel, bird", LINKS, "the start"));
    pair.left.wait_for_ping("10.2.0.1", &["-I", "10.1.0.1"]);
    pair.left.wait_for_ping("fd00:2::1", &["-I", "fd00:1::1"]);
    let routes = pair.left.routes();
    let route = |to: &str| routes.iter().find(|one| one.to == to).expect("it is there");
    for (nth, kind) in ["blackhole", "unreachable", "prohibit"].into_iter().enumerate() {
        assert_eq!(route(&format!("10.9{nth}.0.0/16")).kind, kind);
        assert_eq!(route(&format!("2001:db8:9{nth}::/48")).kind, kind);
    }
    let weights = &route("10.93.0.0/16").via;
    let weight = |of: &str| weights.iter().find(|hop| hop.interface == of).map(|hop| hop.weight);
    assert_eq!((weight("ib1"), weight("ib2")), (Some(1), Some(3)), "{weights:?}");

    for (side, link) in [(Side::Left, 1), (Side::Right, 2)] {
        let what = format!("link {link} of the {side:?} side goes");
        pair.unplug(side, link, || {
            behind
                .into_iter()
                .for_each(|to| pair.wait_for_paths(to, "kernel, bird", LINKS - 1, &what));
        });
        behind
            .into_iter()
            .for_each(|to| pair.wait_for_paths(to, "kernel, bird", LINKS, "it returns"));
    }
    drop(right);
    behind.into_iter().for_each(|to| pair.wait_for_paths(to, "kernel, bird", 0, "the peer ends"));
}
