//! Two routers with the same links, addresses and routes: the kernel, and a node. Each has three
//! TUN devices, whose far ends are here.
//!
//! ```text
//!   here --a-- kernel --b, c-- here          here --ta=>a-- node --b=>tb, c=>tc-- here
//! ```
//!
//! A node has the descriptors of its devices itself, so the kernel of its namespace takes packets
//! from one device to another before it looks at them (`fwd` of nftables).

use super::packets::{Sender, marker};
use crate::namespace::Namespace;
use crate::nodes::{NodeInNamespace, until};
use pollux_node::kernel::tun::{TunOptions, TunQueue, TunWritten};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The number of a link: of `a`, `b` and `c`.
pub type LinkNumber = usize;
/// The MTU of each link.
pub const MTU: [u32; 3] = [65_520, 1500, 1280];
/// The timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Numbers of markers, which no other packet has.
const FIRST_MARKER: u32 = 0x8000;
const MARKERS: u32 = 8;

/// Addresses by link, and routes: `via` a neighbor at a link, or a kind that rejects.
const ADDRESSES: [[&str; 2]; 3] = [
    ["10.0.0.1/16", "fd00:a::1/64"],
    ["10.1.0.1/24", "fd00:b::1/64"],
    ["10.2.0.1/24", "fd00:c::1/64"],
];
const ROUTES: [(&str, &str); 13] = [
    ("198.18.0.0/16", "10.1.0.2"),
    ("198.19.0.0/16", "10.2.0.2"),
    ("192.0.2.0/24", "10.0.0.9"),
    ("10.128.0.0/9", "10.0.0.9"),
    ("203.0.113.0/26", "blackhole"),
    ("203.0.113.64/26", "unreachable"),
    ("203.0.113.128/26", "prohibit"),
    ("2001:db8:b::/48", "fd00:b::2"),
    ("2001:db8:c::/48", "fd00:c::2"),
    ("2001:db8:a::/48", "fd00:a::9"),
    ("2001:db8:bad:1::/64", "blackhole"),
    ("2001:db8:bad:2::/64", "unreachable"),
    ("2001:db8:bad:3::/64", "prohibit"),
];

/// A router, as its neighbors see it.
pub struct Router {
    links: [TunQueue; 3],
    /// Batches so far.
    round: u32,
    _running: Running,
}

enum Running {
    Kernel { _namespace: Namespace },
    Node { _node: NodeInNamespace },
}

impl Router {
    /// The kernel. `None`, with a printed reason, where `test` may not have a namespace.
    pub fn kernel(test: &str) -> Option<Self> {
        let namespace = Namespace::make(test)?;
        let links = open_links(&namespace, ["a", "b", "c"]);
        for (setting, value) in [
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            ("net/ipv4/conf/all/send_redirects", "0"),
            ("net/ipv4/icmp_ratelimit", "0"),
            ("net/ipv4/icmp_msgs_per_sec", "1000000"),
            ("net/ipv4/icmp_msgs_burst", "1000000"),
            ("net/ipv6/icmp/ratelimit", "0"),
            ("net/ipv6/auto_flowlabels", "0"),
            ("net/ipv6/conf/all/accept_ra", "0"),
        ] {
            namespace.set(setting, value);
        }
        for (link, name) in ["a", "b", "c"].into_iter().enumerate() {
            namespace.set(&format!("net/ipv4/conf/{name}/rp_filter"), "0");
            namespace.set(&format!("net/ipv4/conf/{name}/send_redirects"), "0");
            namespace.set(&format!("net/ipv6/conf/{name}/addr_gen_mode"), "1");
            namespace.ip(&format!("link set dev {name} mtu {} up", MTU[link]));
            for address in ADDRESSES[link] {
                namespace.ip(&format!("address add {address} dev {name} nodad"));
            }
        }
        for (to, target) in ROUTES {
            let family = if to.contains(':') { "-6" } else { "-4" };
            match target.parse::<std::net::IpAddr>() {
                Ok(gateway) => namespace.ip(&format!("{family} route add {to} via {gateway}")),
                Err(_) => namespace.ip(&format!("{family} route add {target} {to}")),
            }
        }
        namespace.set("net/ipv4/ip_forward", "1");
        namespace.set("net/ipv6/conf/all/forwarding", "1");
        let running = Running::Kernel { _namespace: namespace };
        Some(Self { links, round: 0, _running: running })
    }

    /// A node. `None`, with a printed reason, where `test` may not.
    pub fn node(test: &str) -> Option<Self> {
        pollux_referee::program_of(test, "nft", "--referees")?;
        let mut config = String::from("[router]\n");
        for (link, name) in ["a", "b", "c"].into_iter().enumerate() {
            config += &format!(
                "[interface.{name}]\nkind = \"tun\"\nmtu = {}\naddress = {:?}\n",
                MTU[link], ADDRESSES[link]
            );
        }
        for (to, target) in ROUTES {
            config += &match target.parse::<std::net::IpAddr>() {
                Ok(gateway) => format!("[[route]]\nto = {to:?}\nvia = [\"{gateway}\"]\n"),
                Err(_) => format!("[[route]]\nto = {to:?}\ntype = {target:?}\n"),
            };
        }
        let node = NodeInNamespace::start(test, &config)?;
        until("three devices", || {
            let text = serde_json::Value::from(node.namespace.json("link show up")).to_string();
            let is_there = |name: &str| text.contains(&format!("\"ifname\":\"{name}\""));
            ["a", "b", "c"].into_iter().all(is_there).then_some(()).ok_or(text)
        });
        let links = open_links(&node.namespace, ["ta", "tb", "tc"]);
        let mut rules = String::from("table netdev t {\n");
        for name in ["a", "b", "c"] {
            node.namespace.ip(&format!("link set dev t{name} mtu 65535 up"));
            for (from, to) in
                [(format!("t{name}"), name.to_owned()), (name.to_owned(), format!("t{name}"))]
            {
                rules += &format!(
                    "chain {from}x {{\ntype filter hook ingress device \"{from}\" priority 0\n\
                     fwd to \"{to}\"\n}}\n"
                );
            }
        }
        rules += "}\n";
        let mut nft = node.namespace.command("nft");
        let mut nft = nft.args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft runs");
        nft.stdin.take().expect("a pipe").write_all(rules.as_bytes()).expect("nft reads");
        assert!(nft.wait().expect("nft ends").success(), "{rules}");
        let running = Running::Node { _node: node };
        Some(Self { links, round: 0, _running: running })
    }

    /// The packets that leave the router by each link, in order, for packets that arrive at the
    /// first one.
    #[expect(clippy::disallowed_methods, reason = "nodes go by the clock")]
    pub fn forward<'a>(
        &mut self,
        packets: impl Iterator<Item = &'a [u8]>,
    ) -> Vec<(LinkNumber, Vec<u8>)> {
        packets.for_each(|packet| self.write(packet));
        let first = FIRST_MARKER + self.round * MARKERS;
        self.round += 1;
        // By each path through a router: fragments to two links, and errors
        // of each link, to senders at two.
        let [to_b, to_c] = [[198, 18, 0, 1], [198, 19, 0, 1]];
        let mut ways = vec![(Sender::AtA, to_b, 9, true), (Sender::AtA, to_c, 9, true)];
        for sender in [Sender::AtA, Sender::AtB] {
            let errors = [(to_b, 1), (to_b, 9), (to_c, 9)];
            ways.extend(errors.map(|(to, ttl)| (sender, to, ttl, false)));
        }
        for (id, (sender, to, ttl, may_fragment)) in (first..).zip(ways) {
            self.write(&marker(id as u16, sender, to.into(), ttl, may_fragment));
        }
        let mut missing: BTreeSet<u32> = (first..first + MARKERS).collect();
        let (mut all, mut buffer) = (Vec::new(), vec![0; 65_536]);
        let end = Instant::now() + TIMEOUT;
        while !missing.is_empty() {
            assert!(Instant::now() < end, "markers {missing:?} of {first} do not come");
            self.wait();
            for (link, queue) in self.links.iter().enumerate() {
                while let Some(bytes) = queue.read(&mut buffer).expect("it can be read") {
                    let packet = buffer[..bytes].to_vec();
                    match super::seen::number(&packet) {
                        Some(id) if id >= FIRST_MARKER => {
                            // Of fragments, the last.
                            if packet[6] & 0x20 == 0 {
                                missing.remove(&id);
                            }
                        }
                        _ => all.push((link, packet)),
                    }
                }
            }
        }
        all
    }

    fn write(&self, packet: &[u8]) {
        // The device takes nothing but versions 4 and 6.
        if !packet.first().is_some_and(|first| [4, 6].contains(&(first >> 4))) {
            return;
        }
        while self.links[0].write(packet).expect("it can be written") == TunWritten::Full {
            std::thread::yield_now();
        }
    }

    /// Waits until a packet is there.
    fn wait(&self) {
        let mut all = self.links.each_ref().map(|queue| PollFd::new(queue, PollFlags::IN));
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut all, Some(&second)).expect("descriptors can be polled");
    }
}

/// TUN devices of a namespace, whose packets the test reads.
fn open_links(namespace: &Namespace, names: [&'static str; 3]) -> [TunQueue; 3] {
    let open = || {
        namespace.join();
        names.map(|name| TunQueue::open(name, TunOptions::default()).expect("a TUN device"))
    };
    std::thread::scope(|scope| scope.spawn(open).join().expect("a thread"))
}
