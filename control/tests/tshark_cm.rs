//! tshark reads what two connection managers say to each other.

use pollux_control::cm::{Cm, CmConfig, CmDatagram, CmEvent, Connect, LocalPort, request_along};
use pollux_control::mad::{Envelope, MadAddress};
use pollux_referee::frames::gmp;
use pollux_referee::tshark::{DissectedFrame, judge};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::MadHeader;
use pollux_wire::mad::cm::ipoib::{Dialect, IpoibPrivateData};
use pollux_wire::mad::cm::{Rep, Req};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};

const UD_QPN: Qpn = Qpn(0x48);

fn gid(end: usize) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1000 + end as u64))
}

fn side(end: usize) -> Cm {
    let mut cm = Cm::new(CmConfig::of(gid(end).guid()), SeededRng::new(end as u64));
    cm.handle_port(LocalPort { gids: vec![gid(end)], ..LocalPort::default() });
    cm.listen(Dialect::Rfc.service_id(UD_QPN), [0; 148]).unwrap();
    cm
}

fn connect() -> Connect {
    let path = PathRecord {
        sgid: gid(0),
        dgid: gid(1),
        slid: Lid(1),
        dlid: Lid(2),
        p_key: PKey::DEFAULT,
        mtu: Mtu::BYTES_2048,
        packet_life_time: TimeCode(18),
        ..PathRecord::default()
    };
    let ours = IpoibPrivateData { ud_qpn: Qpn(0x47), receive_mtu: 65_524 };
    let req = Req {
        service_id: Dialect::Rfc.service_id(UD_QPN),
        local_qpn: Qpn(0x100),
        starting_psn: Psn::new(0x123),
        private_data: ours.padded(),
        ..request_along(&path, TimeCode(15))
    };
    Connect { to: MadAddress::gsi(Lid(2), 0, PKey::DEFAULT), req, packet_life_time: TimeCode(18) }
}

/// All datagrams from REQ to time-wait, with the attribute of each.
fn said() -> Vec<(u16, [u8; 256])> {
    let mut sides = [side(0), side(1)];
    let mut said = Vec::new();
    let now = Time::START;
    let key = sides[0].new_key();
    sides[0].connect(now, key, connect()).unwrap();
    for turn in 0..8 {
        let (from, to) = (turn % 2, 1 - turn % 2);
        while let Some(envelope) = sides[from].poll_transmit() {
            let (header, _) = MadHeader::read(&envelope.mad).unwrap();
            said.push((header.attribute_id.0, envelope.mad));
            let peer = MadAddress { lid: Lid(from as u16 + 1), ..envelope.peer };
            sides[to].handle_mad(now, &CmDatagram::parse(&Envelope { peer, ..envelope }));
        }
        while let Some(event) = sides[to].poll_event() {
            match event {
                CmEvent::Request { key, .. } => {
                    let rep = Rep { local_qpn: Qpn(0x200), ..Rep::default() };
                    sides[to].accept(now, key, rep).unwrap();
                }
                CmEvent::Reply { key, .. } => sides[to].confirm(now, key, [0; 224]).unwrap(),
                CmEvent::Established { .. } => {
                    sides[0].disconnect(now, key, [0; 220]).unwrap();
                }
                _ => {}
            }
        }
    }
    said
}

#[test]
fn tshark_reads_a_connection_from_beginning_to_end() {
    let said = said();
    let attributes: Vec<_> = said.iter().map(|(attribute, _)| *attribute).collect();
    assert_eq!(attributes, [0x10, 0x13, 0x14, 0x15, 0x16], "REQ REP RTU DREQ DREP");
    let frame = |(attribute, mad): &(u16, [u8; 256])| {
        DissectedFrame::new(format!("CM {attribute:#06x}"), gmp(mad))
            .expect_hex("infiniband.mad.mgmtclass", 7u8, 2)
            .expect_hex("infiniband.mad.attributeid", *attribute, 4)
    };
    let mut frames: Vec<_> = said.iter().map(frame).collect();
    let req = frames.remove(0).expect_hex("infiniband.cm.req.localqpn", 0x100u32, 6);
    let service_id = Dialect::Rfc.service_id(UD_QPN);
    frames.push(req.expect_hex("infiniband.cm.req.serviceid", service_id.0, 16));
    judge("tshark_reads_a_connection_from_beginning_to_end", &frames);
}
