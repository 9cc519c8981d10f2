//! Groups that are made because somebody wants to hear them, and every state of a group with
//! everything that can happen in it.

use crate::alone::Alone;
use crate::world::{World, packet, v4};
use pollux_control::ipoib::{Adjacency, GroupRow, WorkerId};
use pollux_fabric::sm::{Partitions, SmConfig};
use pollux_fabric::subnet::Datagram;
use pollux_wire::address::Qpn;
use pollux_wire::ip::mgid::{GroupId, LinkGroup};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::notice::TrapNumber;
use pollux_wire::mad::sa::{McMemberRecord, McMemberRecordMask, SaMad, Selector};
use pollux_wire::mad::{Attribute, MadHeader, MadStatus, Method};
use pollux_wire::units::{Mtu, Rate};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// A link of which nothing is as it usually is.
const UNUSUAL: &str = "Default=0x7fff, ipoib, mtu=5, rate=6, sl=3, Q_Key=0x1234, TClass=9, \
                       FlowLabel=77, defmember=full : ALL=full, SELF=full;";

// req: ud-group-create
#[test]
fn a_group_is_made_like_the_broadcast_group() {
    let partitions = Partitions::read("partitions.conf", UNUSUAL).unwrap();
    let manager = SmConfig { partitions, ..SmConfig::default() };
    let mut world = World::with(21, 2, manager, |config, _| config);
    world.pass(Duration::from_secs(5));
    world.assert_up();
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let id = GroupId::of(group).unwrap();
    let link = *world.hosts[0].port_driver.link.as_ref().unwrap();
    let scope = pollux_wire::address::Scope::LINK_LOCAL;
    let mgid = LinkGroup { id, p_key: PKey::DEFAULT, scope }.mgid();

    let now = world.now;
    assert!(world.hosts[0].interface.join(now, group));
    let asked = world.hosts[0].interface.poll_mad().unwrap();
    let header = MadHeader::parse(asked.mad.first_chunk().unwrap());
    assert_eq!((header.method, header.attribute_id), (Method::SET, McMemberRecord::ID));
    let (mask, record) = SaMad::parse(&asked.mad).record::<McMemberRecord>().unwrap();
    assert_eq!(mask, McMemberRecordMask::LINUX_JOIN, "all that it takes to make a group");
    assert_eq!((record.mgid, record.port_gid), (mgid, link.gid));
    assert_eq!((record.q_key, record.p_key, record.sl), (QKey(0x1234), PKey::DEFAULT, 3));
    assert_eq!((record.traffic_class, record.flow_label, record.hop_limit), (9, 77, 0));
    assert_eq!((record.mtu_selector, record.mtu), (Selector::EXACTLY, Mtu::BYTES_4096));
    assert_eq!((record.rate_selector, record.rate), (Selector::EXACTLY, Rate(6)));

    // The administrator creates it so, and later members get these properties.
    let slid = world.view(0).lid;
    let (src_qp, dest_qp, dlid) = (Qpn::GSI, asked.peer.qpn, asked.peer.lid);
    let (p_key, mad) = (asked.peer.p_key, asked.mad);
    let datagram = Datagram { slid, dlid, src_qp, dest_qp, p_key, mad };
    let at = world.hosts[0].at;
    world.subnet.send(world.now, at, datagram);
    world.settle();
    let rows: Vec<_> = world.hosts[0].interface.group_rows().collect();
    let row = rows.iter().find(|row| row.mgid == mgid).unwrap();
    assert_eq!((row.state, row.is_full_member), ("joined", true));
    let long = packet(v4(2), group, &[7; 4000]);
    assert!(world.reaches(1, 0, &long, Duration::from_secs(1)), "its datagrams are as long");
    let sender = &world.hosts[1].port_driver;
    let Adjacency::Datagram(adjacency) = sender.peers[&(sender.groups[&mgid], WorkerId::PRIMARY)]
    else {
        panic!("no datagrams")
    };
    let route = adjacency.vector.grh.unwrap();
    assert_eq!((adjacency.vector.sl, adjacency.vector.static_rate, adjacency.mtu), (3, 6, 4092));
    assert_eq!((route.traffic_class, route.flow_label, route.hop_limit), (9, 77, 0));
}

type Bring = fn() -> Alone;
type Happen = fn(&mut Alone);

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
/// How requests about it are called.
const NAME: &str = "v4 f010203";

const STATES: [(&str, Bring); 13] = [
    ("nobody wants it", up),
    ("asked, to send", || after(up, send)),
    ("asked, to hear", || after(up, hear)),
    ("send-only", || after(STATES[1].1, |it| answer(it, MadStatus::OK))),
    ("send-only, asked to hear", || after(STATES[3].1, hear)),
    ("joined", || after(STATES[2].1, |it| answer(it, MadStatus::OK))),
    ("joined, and to join again", || {
        after(STATES[5].1, |it| {
            it.interface.handle_reregister(it.now);
            while it.interface.group_rows().all(|row| row.mgid != mgid() || row.until.is_none()) {
                it.pass(Duration::from_millis(100));
                assert!(it.now.since_start() < Duration::from_secs(60));
            }
            it.requests.clear();
        })
    }),
    ("missing", || after(STATES[1].1, |it| answer(it, MadStatus::SA_NO_RECORDS))),
    ("refused, to send", || after(STATES[1].1, |it| answer(it, MadStatus::SA_DENIED))),
    ("refused, to hear", || after(STATES[2].1, |it| answer(it, MadStatus::SA_DENIED))),
    ("unwanted, while asked to hear", || after(STATES[2].1, leave)),
    ("unwanted, while send-only and asked to hear", || after(STATES[4].1, leave)),
    ("left, not heard of yet", || after(STATES[5].1, leave)),
];

const EVENTS: [(&str, Happen); 12] = [
    ("wanted", hear),
    ("unwanted", leave),
    ("packet", send),
    ("granted", |it| answer(it, MadStatus::OK)),
    ("no such group", |it| answer(it, MadStatus::SA_NO_RECORDS)),
    ("denied", |it| answer(it, MadStatus::SA_DENIED)),
    ("no room", |it| answer(it, MadStatus::SA_NO_RESOURCES)),
    ("left", |it| _ = it.answer(&format!("leave {NAME}"), MadStatus::OK, Mtu::BYTES_2048)),
    ("created", |it| it.be_told(TrapNumber::MULTICAST_GROUP_CREATED, mgid())),
    ("deleted", |it| it.be_told(TrapNumber::MULTICAST_GROUP_DELETED, mgid())),
    ("reregister", |it| it.interface.handle_reregister(it.now)),
    ("taken down", |it| it.interface.set_open(it.now, false)),
];

fn up() -> Alone {
    let mut alone = Alone::new(|mut config| {
        config.ipv6 = false;
        config.address(v4(5), 24)
    });
    alone.up();
    alone
}

fn after(bring: Bring, happen: Happen) -> Alone {
    let mut alone = bring();
    happen(&mut alone);
    alone.said();
    alone
}

fn hear(alone: &mut Alone) {
    assert!(alone.interface.join(alone.now, GROUP));
}

fn leave(alone: &mut Alone) {
    alone.interface.leave(alone.now, GROUP);
}

fn send(alone: &mut Alone) {
    alone.interface.handle_miss(
        alone.now,
        WorkerId::PRIMARY,
        packet(v4(5), GROUP, b"to the group"),
    );
}

/// The answer to the oldest request to be in the group.
fn answer(alone: &mut Alone, status: MadStatus) {
    let asked = [format!("join {NAME} to send"), format!("create {NAME}")];
    _ = asked.iter().any(|asked| alone.answer(asked, status, Mtu::BYTES_2048));
}

fn mgid() -> pollux_wire::address::Gid {
    let (id, p_key) = (GroupId::of(GROUP).unwrap(), PKey::DEFAULT);
    LinkGroup { id, p_key, scope: pollux_wire::address::Scope::LINK_LOCAL }.mgid()
}

/// The group's state, with what counts in it.
fn state(alone: &Alone) -> String {
    let Some(row) = alone.interface.group_rows().find(|row| row.mgid == mgid()) else {
        assert!(!alone.port_driver.attached.contains_key(&mgid()), "heard by nobody");
        return "none".into();
    };
    let GroupRow { is_wanted, is_full_member, state, until, pending, .. } = row;
    let is_attached = alone.port_driver.attached.contains_key(&mgid());
    assert_eq!(is_attached, state == "joined", "{state}, wanted: {is_wanted}");
    assert_eq!(is_attached, is_full_member, "{state}");
    let wanted = if is_wanted { ", wanted" } else { "" };
    let until = until.map(|until| until.since_start() - alone.now.since_start());
    let until = until.map_or(String::new(), |until| format!(", {} s", until.as_secs()));
    let pending = if pending > 0 { format!(", {pending} wait") } else { String::new() };
    format!("{state}{wanted}{until}{pending}")
}

#[test]
fn every_state_of_a_group_and_everything_that_can_happen() {
    let mut table = String::new();
    for (name, bring) in STATES {
        writeln!(table, "{name}: {}", state(&bring())).unwrap();
        for (event, happen) in EVENTS {
            let mut alone = bring();
            let (before, frames) = (state(&alone), alone.frames);
            happen(&mut alone);
            let mut said = alone.said();
            // Membership reports to routers are sent by timers.
            let sent = alone.frames - frames;
            said.retain(|said| said.contains(NAME) || said.ends_with("v4 2 to send"));
            said.extend((sent > 0).then(|| format!("{sent} sent")));
            let after = state(&alone);
            if said.is_empty() && before == after {
                continue;
            }
            let said = if said.is_empty() { "-".into() } else { said.join(", ") };
            writeln!(table, "    {event}: {} / {after}", said.replace(NAME, "it")).unwrap();
        }
    }
    assert!(table == include_str!("groups.txt"), "{table}");
}

/// Otherwise the port would receive packets of a group that nothing here listens to.
#[test]
fn a_full_join_that_is_granted_to_a_send_only_group_is_left() {
    let mut alone = after(STATES[2].1, leave);
    send(&mut alone);
    assert!(alone.answer(&format!("create {NAME}"), MadStatus::OK, Mtu::BYTES_2048));
    assert_eq!(alone.said(), [format!("join {NAME} to send"), format!("leave {NAME}")]);
    assert_eq!(state(&alone), "asked, 1 wait");
    answer(&mut alone, MadStatus::OK);
    assert_eq!(state(&alone), "send-only");
}
