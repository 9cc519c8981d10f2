//! Our packets compared with those of Linux in the same role, field by field as tshark shows them.
//!
//! Two guests meet, and then the second of them and a node of ours with the first one's addresses.
//! Of each kind of packet the first that was sent is compared. A field is the same, or it names
//! something that differs between any two nodes ([`NAMES`]), or it is listed with its reason
//! ([`DIFFERENCES`]). A difference that is listed and not found fails the test too.

use crate::fabric::{Manager, Running};
use crate::guest::Guest;
use crate::meeting::Meeting;
use pollux_node::interface::echo::EchoOutcome;
use pollux_referee::tshark::dissect_whole;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The fields that tshark finds in a packet: the values of each field, in order.
type Fields = BTreeMap<String, Vec<String>>;

/// A kind of packet: its name, and fields that identify it.
type Kind = (&'static str, &'static [(&'static str, &'static str)]);

/// Management classes.
const SA: (&str, &str) = ("infiniband.mad.mgmtclass", "0x03");
const CM: (&str, &str) = ("infiniband.mad.mgmtclass", "0x07");
/// Which message it is.
const ATTRIBUTE: &str = "infiniband.mad.attributeid";

const KINDS: [Kind; 14] = [
    ("ARP request", &[("arp.opcode", "1"), ("arp.dst.proto_ipv4", "10.0.0.3")]),
    ("ARP reply", &[("arp.opcode", "2")]),
    ("duplicate detection", &[("icmpv6.type", "135"), ("ipv6.src", "::")]),
    ("solicitation", &[("icmpv6.type", "135"), ("icmpv6.opt.type", "1")]),
    ("advertisement", &[("icmpv6.type", "136"), ("icmpv6.nd.na.flag.s", "1")]),
    ("IGMP report", &[("igmp.maddr", "239.1.2.3")]),
    ("MLD report", &[("icmpv6.mldr.mar.multicast_address", "ff15::77")]),
    ("join", &[SA, (ATTRIBUTE, "0x0038"), ("infiniband.mcmemberrecord.mgid", BROADCAST)]),
    ("path query", &[SA, (ATTRIBUTE, "0x0035")]),
    ("REQ", &[CM, (ATTRIBUTE, "0x0010"), ("infiniband.cm.req.serviceid.kind", "0x10")]),
    ("REP", &[CM, (ATTRIBUTE, "0x0013")]),
    ("RTU", &[CM, (ATTRIBUTE, "0x0014")]),
    ("DREQ", &[CM, (ATTRIBUTE, "0x0015")]),
    ("packet of a connection", &[("icmp.type", "0"), ("infiniband.bth.opcode", "4")]),
];

const BROADCAST: &str = "ff12:401b:ffff::ffff:ffff";

/// Fields that differ between any two nodes, or runs; and with that, checksums and the bytes of
/// headers, whose fields are compared one by one.
const NAMES: [&str; 62] = [
    "arp.dst.hw",
    "arp.dst.hw.address",
    "arp.src.hw",
    "arp.src.hw.address",
    "data.data",
    "icmp.checksum",
    "icmp.ident",
    "icmp.ident_le",
    "icmp.resp_to",
    "icmp.resptime",
    "icmpv6.checksum",
    "icmpv6.nd.na.target_address",
    "icmpv6.nd.ns.target_address",
    "icmpv6.opt.linkaddr",
    "icmpv6.opt.linkaddr.address",
    "icmpv6.opt.src_linkaddr",
    "icmpv6.opt.src_linkaddr.address",
    "icmpv6.opt.target_linkaddr",
    "icmpv6.opt.target_linkaddr.address",
    "igmp.checksum",
    "infiniband.bth",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.cm.drep.localcommid",
    "infiniband.cm.dreq.localcommid",
    "infiniband.cm.dreq.remotecommid",
    "infiniband.cm.rep",
    "infiniband.cm.rep.localcaguid",
    "infiniband.cm.rep.localqpn",
    "infiniband.cm.rep.private",
    "infiniband.cm.rep.remotecommid",
    "infiniband.cm.rep.startpsn",
    "infiniband.cm.req",
    "infiniband.cm.req.localcaguid",
    "infiniband.cm.req.localqpn",
    "infiniband.cm.req.prim_localgid",
    "infiniband.cm.req.prim_locallid",
    "infiniband.cm.req.prim_remotegid",
    "infiniband.cm.req.prim_remotelid",
    "infiniband.cm.req.private",
    "infiniband.cm.req.remoteqpneecn",
    "infiniband.cm.rtu.localcommid",
    "infiniband.cm.rtu.remotecommid",
    "infiniband.deth",
    "infiniband.deth.srcqp",
    "infiniband.grh",
    "infiniband.grh.dgid",
    "infiniband.grh.sgid",
    "infiniband.invariant.crc",
    "infiniband.lrh",
    "infiniband.lrh.dlid",
    "infiniband.lrh.slid",
    "infiniband.mad",
    "infiniband.mad.data",
    "infiniband.mad.transactionid",
    "infiniband.mcmemberrecord.portgid",
    "infiniband.pathrecord.dgid",
    "infiniband.pathrecord.sgid",
    "infiniband.payload",
    "infiniband.sa.drdlid",
    "infiniband.smplid.smpdata",
    "infiniband.variant.crc",
];

/// The same of the headers of IP.
const IP_NAMES: [&str; 12] = [
    "ip.checksum",
    "ip.checksum_calculated",
    "ip.id",
    "ipv6.addr",
    "ipv6.dst",
    "ipv6.dst_host",
    "ipv6.host",
    "ipv6.src",
    "ipv6.src_host",
    "ipv6.src_sa_mac",
    "ipv6.dst_sa_mac",
    "ipv6.sa_mac",
];

const UC: &str = "we offer unreliable connections, which Linux has not (RFC 4755 3.1)";
const NONCE: &str =
    "Linux marks its questions to know them again (RFC 7527); we know them by sender";
const CONTROL: &str = "ours says that it is control traffic: CS6 (RFC 4594 3.2)";
const BY_DATAGRAM: &str =
    "goes by datagram (RFC 4755 7); Linux takes the connection if there is one";
const MORE: &str = "Linux has just as many groups to tell of, we one";
const SOONER: &str = "we ask again sooner, and take less time to answer";
const RETRIES: &str = "a lost packet is sent again; with Linux it ends the connection";
const WORDS: &str = "ours are in every message (RFC 4755 6), Linux's in REQ and REP";

/// Kinds of packets, the fields of theirs that begin so, and why they differ; of a kind without a
/// name, all do.
const DIFFERENCES: [(&str, &str, &str); 32] = [
    ("", "arp.src.hw.flags", UC),
    ("solicitation", "icmpv6.opt.linkaddr.flags", UC),
    ("solicitation", "icmpv6.opt.src_linkaddr.flags", UC),
    ("advertisement", "icmpv6.opt.linkaddr.flags", UC),
    ("advertisement", "icmpv6.opt.target_linkaddr.flags", UC),
    ("duplicate detection", "icmpv6.opt", NONCE),
    ("duplicate detection", "infiniband.grh.paylen", NONCE),
    ("duplicate detection", "infiniband.lrh.pktlen", NONCE),
    ("duplicate detection", "ipv6.plen", NONCE),
    ("", "ipv6.tclass", CONTROL),
    ("advertisement", "infiniband.bth.a", BY_DATAGRAM),
    ("advertisement", "infiniband.bth.opcode", BY_DATAGRAM),
    ("advertisement", "infiniband.deth", BY_DATAGRAM),
    ("advertisement", "infiniband.lrh.pktlen", BY_DATAGRAM),
    ("advertisement", "infiniband.reserved", BY_DATAGRAM),
    ("IGMP report", "ip.flags", "RFC 3376 does not ask for it, and none is ever cut"),
    ("MLD report", "icmpv6.mldr", MORE),
    ("MLD report", "infiniband.grh.paylen", MORE),
    ("MLD report", "infiniband.lrh.pktlen", MORE),
    ("MLD report", "ipv6.plen", MORE),
    ("REQ", "infiniband.cm.req.localresptout", SOONER),
    ("REQ", "infiniband.cm.req.remoteresptout", SOONER),
    ("REQ", "infiniband.cm.req.maxcmretr", SOONER),
    ("REQ", "infiniband.cm.req.prim_localacktout", SOONER),
    ("REP", "infiniband.cm.rep.tgtackdelay", SOONER),
    ("REQ", "infiniband.cm.req.responderres", "nobody may read or write our memory"),
    ("REQ", "infiniband.cm.req.retrcount", RETRIES),
    ("REQ", "infiniband.cm.req.rnrretrcount", RETRIES),
    ("REP", "infiniband.cm.rep.rnrretrcount", RETRIES),
    ("REQ", "infiniband.cm.req.startpsn", "Linux begins with 0, we with a number nobody guesses"),
    ("RTU", "infiniband.cm.rtu.private", WORDS),
    ("DREQ", "infiniband.cm.dreq.private", WORDS),
];

/// Every kind of packet of the node of this LID.
fn kinds(whole: &str, lid: &str) -> BTreeMap<&'static str, Fields> {
    let packets: Vec<Value> = serde_json::from_str(whole).expect("tshark writes JSON");
    let mut first = BTreeMap::new();
    for packet in packets {
        let mut fields = Fields::new();
        let layers = packet["_source"]["layers"].as_object().expect("they are there");
        let own = layers.iter().filter(|(name, _)| !["frame", "erf"].contains(&name.as_str()));
        own.for_each(|(name, value)| flatten(name, value, &mut fields));
        let has = |field: &str, value: &str| {
            fields.get(field).is_some_and(|all| all.iter().any(|one| one == value))
        };
        if !has("infiniband.lrh.slid", lid) {
            continue;
        }
        let found =
            KINDS.iter().find(|(_, marks)| marks.iter().all(|(field, value)| has(field, value)));
        if let Some((name, _)) = found {
            first.entry(*name).or_insert(fields);
        }
    }
    first
}

fn flatten(name: &str, value: &Value, fields: &mut Fields) {
    match value {
        Value::Object(inner) => inner.iter().for_each(|(name, value)| flatten(name, value, fields)),
        Value::Array(all) => all.iter().for_each(|value| flatten(name, value, fields)),
        Value::String(text) => {
            fields.entry(name.into()).or_default().push(text.clone());
            for (part, value) in parts(name, text) {
                fields.entry(format!("{name}.{part}")).or_default().push(value.into());
            }
        }
        other => panic!("{name}: {other}"),
    }
}

/// Fields that tshark shows in one piece though a part names a node, and the rest is its action.
fn parts<'a>(name: &str, text: &'a str) -> Vec<(&'static str, &'a str)> {
    let mut parts = Vec::new();
    if name == "infiniband.cm.req.serviceid" {
        parts.push(("kind", &text[..4]));
    } else if name.starts_with("infiniband.cm.") && name.ends_with(".private") {
        // RFC 4755 6: a byte, the queue pair, the receive MTU.
        parts.extend([("reserved", &text[..2]), ("mtu", &text[12..23]), ("rest", &text[24..])]);
    } else if name.ends_with(".hw") || name.ends_with("linkaddr") {
        // RFC 4391 9.1.1: flags before the queue pair. Two bytes of padding are before those in
        // options (9.3).
        let (flags, address) = text.split_at(text.len() - 57);
        parts.extend([("flags", flags), ("address", address)]);
    }
    parts
}

/// A state of both, in the output of the guest.
const ASK: &str = "ip neigh flush dev ib0; wait_for 10 ping -c1 -W1 10.0.0.1";

/// Membership reports are sent to groups of routers.
const HEAR: &str = "ip addr add 224.0.0.22/32 dev ib0 autojoin;
    ip addr add ff02::16/128 dev ib0 autojoin; sleep 0.5";

/// Linux in the role of Pollux.
fn linux_with_linux(test: &str) -> Option<BTreeMap<&'static str, Fields>> {
    let fabric = Running::start(test, 2, Manager::Ours);
    let mut one = Guest::with(test, &fabric.wire(1), 1, "")?;
    let mut other = Guest::with(test, &fabric.wire(2), 2, "")?;
    let run = |guest: &mut Guest, command: &str| {
        guest.begin(command);
        let (status, output) = guest.answer();
        assert_eq!(status, 0, "{command}: {output}");
        output.trim().to_owned()
    };
    run(&mut one, "ipoib_up 10.0.0.1/24 connected");
    run(&mut other, "ipoib_up 10.0.0.2/24 connected");
    run(&mut one, "wait_for 10 ping -c1 -W1 10.0.0.2; ! ping -c1 -W1 10.0.0.3");
    run(&mut other, ASK);
    run(&mut other, HEAR);
    run(&mut one, "ip addr add 239.1.2.3/32 dev ib0 autojoin");
    run(&mut one, "ip addr add ff15::77/128 dev ib0 autojoin; sleep 1");
    let link_local = "ip -6 -o addr show dev ib0 | grep -o 'fe80[^/]*'";
    let [first, second] = [&mut one, &mut other].map(|guest| run(guest, link_local));
    run(&mut one, &format!("wait_for 10 ping -c1 -W1 {second}%ib0"));
    run(&mut other, &format!("ip neigh flush dev ib0; wait_for 10 ping -c1 -W1 {first}%ib0"));
    let lid = run(&mut one, "printf %d $(cat /sys/class/infiniband/vhca0/ports/1/lid)");
    run(&mut one, "ip link set ib0 down");
    drop((one, other));
    judge(test, fabric, &lid)
}

/// Pollux in its own role.
fn we_with_linux(test: &str) -> Option<BTreeMap<&'static str, Fields>> {
    let mut meeting = Meeting::arrange(test, Manager::Ours, ["rc", "connected"])?;
    meeting.hosts.must_answer(0, "10.0.0.2", 56);
    assert_eq!(meeting.hosts.ping(0, "10.0.0.3", 56), EchoOutcome::Unreachable);
    meeting.linux(ASK);
    meeting.linux(HEAR);
    let now = meeting.hosts.now();
    for group in ["239.1.2.3", "ff15::77"] {
        assert!(
            meeting.hosts.hosts[0]
                .interface_mut()
                .join_group(now, group.parse().expect("an address"))
        );
    }
    meeting.linux("sleep 1");
    let (ours, theirs) = (meeting.hosts.link_local(0), meeting.link_local());
    meeting.hosts.must_answer(0, &theirs, 56);
    meeting.linux(&format!("ip neigh flush dev ib0; wait_for 10 ping -c1 -W1 {ours}%ib0"));
    let lid = meeting.hosts.hosts[0].interface().port().expect("it is there").lid.0.to_string();
    meeting.leave();
    let Meeting { fabric, guest, hosts, .. } = meeting;
    drop((guest, hosts));
    judge(test, fabric, &lid)
}

fn judge(test: &str, fabric: Running, lid: &str) -> Option<BTreeMap<&'static str, Fields>> {
    let packets = fabric.end();
    let bytes: Vec<_> = packets.iter().map(Vec::as_slice).collect();
    Some(kinds(&dissect_whole(test, &bytes)?, lid))
}

#[test]
fn our_packets_are_like_those_of_linux() {
    let Some(linux) = linux_with_linux("linux_with_linux") else { return };
    let Some(ours) = we_with_linux("we_with_linux") else { return };
    let none = Vec::new();
    let mut differences = Vec::new();
    let mut found = BTreeSet::new();
    for (kind, _) in KINDS {
        let (Some(linux), Some(ours)) = (linux.get(kind), ours.get(kind)) else {
            differences.push(format!(
                "{kind}: Linux {}, we {}",
                linux.contains_key(kind),
                ours.contains_key(kind)
            ));
            continue;
        };
        let fields: BTreeSet<_> = linux.keys().chain(ours.keys()).collect();
        for field in fields {
            let [theirs, ours] = [linux, ours].map(|all| all.get(field).unwrap_or(&none));
            let names = [&NAMES[..], &IP_NAMES].concat();
            let is_name = names.contains(&field.as_str()) && theirs.len() == ours.len();
            if theirs == ours || is_name {
                continue;
            }
            let is_known = |known: &&(&str, &str, &str)| {
                (known.0.is_empty() || kind == known.0) && field.starts_with(known.1)
            };
            match DIFFERENCES.iter().find(is_known) {
                Some(known) => _ = found.insert(known),
                None => differences.push(format!("{kind}: {field}: Linux {theirs:?}, we {ours:?}")),
            }
        }
    }
    let gone = DIFFERENCES.iter().filter(|known| !found.contains(known));
    differences.extend(gone.map(|known| format!("{}: {}: does not differ", known.0, known.1)));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
