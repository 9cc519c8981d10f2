//! Groups that are made because somebody wants to hear them.

use crate::world::{World, packet, v4};
use pollux_control::interface::{Way, Worker};
use pollux_fabric::sm::{Config, Partitions};
use pollux_fabric::subnet::Datagram;
use pollux_wire::address::Qpn;
use pollux_wire::ip::mgid::{GroupId, LinkGroup};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::sa::{McMemberRecord, McMemberRecordMask, SaMad, Selector};
use pollux_wire::mad::{Attribute, MadHeader, Method};
use pollux_wire::units::{Mtu, Rate};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// A link of which nothing is as it usually is.
const UNUSUAL: &str = "Default=0x7fff, ipoib, mtu=5, rate=6, sl=3, Q_Key=0x1234, TClass=9, \
                       FlowLabel=77, defmember=full : ALL=full, SELF=full;";

// req: ud-group-create
#[test]
fn a_group_is_made_like_the_broadcast_group() {
    let partitions = Partitions::read("partitions.conf", UNUSUAL).unwrap();
    let manager = Config { partitions, ..Config::default() };
    let mut world = World::with(21, 2, manager, |config, _| config);
    world.pass(Duration::from_secs(5));
    world.assert_up();
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let id = GroupId::of(group).unwrap();
    let link = *world.hosts[0].mover.link.as_ref().unwrap();
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
    assert_eq!((record.mtu_selector, record.mtu), (Selector::EXACTLY, Mtu::OCTETS_4096));
    assert_eq!((record.rate_selector, record.rate), (Selector::EXACTLY, Rate(6)));

    // And so the administrator makes it, which those who join it afterwards are told.
    let slid = world.view(0).lid;
    let (src_qp, dest_qp, dlid) = (Qpn::GSI, asked.peer.qpn, asked.peer.lid);
    let datagram = Datagram { slid, dlid, src_qp, dest_qp, mad: asked.mad };
    let at = world.hosts[0].at;
    world.subnet.send(world.now, at, datagram);
    world.settle();
    let rows: Vec<_> = world.hosts[0].interface.group_rows().collect();
    let row = rows.iter().find(|row| row.mgid == mgid).unwrap();
    assert_eq!((row.state, row.is_heard), ("joined", true));
    let long = packet(v4(2), group, &[7; 4000]);
    assert!(world.reaches(1, 0, &long, Duration::from_secs(1)), "its datagrams are as long");
    let sender = &world.hosts[1].mover;
    let Way::Datagram(way) = sender.peers[&(sender.groups[&mgid], Worker::LEAD)] else {
        panic!("no datagrams")
    };
    let route = way.vector.grh.unwrap();
    assert_eq!((way.vector.sl, way.vector.static_rate, way.mtu), (3, 6, 4092));
    assert_eq!((route.traffic_class, route.flow_label, route.hop_limit), (9, 77, 0));
}
